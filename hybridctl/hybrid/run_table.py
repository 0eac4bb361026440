"""A run as a table of pandas: modes, states, inputs and outputs over time."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.base.tables import format_mode
from hybridctl.hybrid.arc import Arc, compute_outputs
from hybridctl.hybrid.system import HybridSystem


def make_run_table(system: HybridSystem, parts: Sequence[tuple[Arc, Array]]) -> Any:
    """Return the `pandas.DataFrame` of `HybridTrajectory.to_dataframe`.

    Args:
        system: The system of the run.
        parts: Arcs, each with its times (n,), s. Their rows stand one below the other.

    Raises:
        InputError: Pandas is not installed.
    """
    pd = import_pandas()
    frames = [_make_arc_table(pd, system, arc, times) for arc, times in parts if len(times)]
    return pd.concat(frames) if frames else pd.DataFrame()


def import_pandas() -> Any:
    """Return the module pandas, which is optional.

    Raises:
        InputError: It is not installed.
    """
    try:
        return import_module("pandas")
    except ImportError as error:
        raise InputError(
            'to_dataframe needs the package pandas; install it with pip install "hybridctl[pandas]"'
        ) from error


def _make_arc_table(pd: Any, system: HybridSystem, arc: Arc, times: Array) -> Any:
    states, inputs = arc(times), arc.input(times)
    columns: dict[str, Any] = {"mode": [format_mode(arc.mode)] * len(times)}
    columns |= zip(system.state_labels(arc.mode), states.T, strict=True)
    columns |= zip(system.input_labels(arc.mode), inputs.T, strict=True)
    mode = system.mode(arc.mode)
    rows = [compute_outputs(mode, arc, t) for t in times.tolist()]
    for name in rows[0]:
        values = np.array([row[name] for row in rows])
        labels = system.output_labels(name, values.shape[1:])
        columns |= zip(labels, values.reshape(len(times), -1).T, strict=True)
    return pd.DataFrame(columns, index=pd.Index(times, name="time [s]"))
