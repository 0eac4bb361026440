"""What experiments of one kind share: tables of named records, samples of runs, errors of means."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from hybridctl.app.report import make_record_table
from hybridctl.base.checks import Array
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.relaxation.relax import Relaxed


def tabulate(
    title: str,
    records: Mapping[str, Mapping[str, Any] | Sequence[Mapping[str, Any]]],
    columns: Mapping[str, str],
) -> Table:
    """Return a table of records by name, as `make_record_table` makes it.

    Args:
        title: Title of the table.
        records: One record or several by name. The name is the entry `name` of each row, unless
            the record has one.
        columns: Format of a cell by header.
    """
    rows = [
        {"name": name, **row}
        for name, found in records.items()
        for row in ([found] if isinstance(found, Mapping) else found)
    ]
    return make_record_table(title, rows, columns)


def sample_relaxed_run(
    relaxed: Relaxed,
    run: HybridTrajectory,
    choose_times: Callable[[float, float], Array],
    start: float = -np.inf,
) -> tuple[Array, Array, Array]:
    """Return a relaxed run at chosen times of each arc, in the chart of the mode it enters.

    Args:
        relaxed: Relaxed system.
        run: Run of that system.
        choose_times: Function that returns the times (k,) to take between two times, s.
        start: Time of the first sample, s; what is before is left out.

    Returns:
        Times (m,), states (m, nx) of the original system, and whether (m,) each is in a strip.
    """
    times, states, in_strip = [], [], []
    for arc in run.arcs:
        if arc.end >= start:
            own = choose_times(max(arc.start, start), arc.end)
            times.append(own)
            states += [relaxed.map_to_system(arc.mode, t, arc(t))[1] for t in own.tolist()]
            in_strip += [relaxed.find_strip(arc.mode) is not None] * len(own)
    return np.concatenate(times), np.array(states), np.array(in_strip)


def compute_standard_error(values: Array) -> float | None:
    """Return the standard error of the mean of values (n,), or None for less than two.

    Args:
        values: Independent values (n,).
    """
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
