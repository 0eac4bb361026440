"""The figure compares laws by their mean errors, over all plants and by contact time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from hybridctl.app.plots import BASELINE, REFERENCE, TRACKING, make_figure, save_figure
from hybridctl.base.checks import Array
from hybridctl.control.tuning.ensemble import Statistics, standard_error

_MARKS = {
    "conventional": (BASELINE, "s"),
    "nearest arc": (BASELINE, "x"),
    "spreading": (TRACKING, "o"),
    "impact-invariant": (REFERENCE, "D"),
    "interim": (TRACKING, "P"),
}
_UNFILLED = ("spreading",)
_NAMES = {"interim": "spreading, interim mode"}
_ALL_ERRORS = ", all errors"  # end of the names of plants with all errors


def draw_means(path: Path, results: Mapping[str, Mapping[str, Statistics]]) -> None:
    """Draw each law's mean over plants that report touches, and its errors by contact time.

    Where no plant reports touches the mean is over all.

    A member meets the same perturbations on all plants. So the standard error over plants is that
    of the members' means.

    Args:
        path: File of the figure.
        results: Statistics by plant and law.
    """
    detected = {name: row for name, row in results.items() if "never" not in name}
    shown = detected or results
    means = {
        law: np.mean([row[law].errors for row in shown.values()], axis=0)
        for law in next(iter(results.values()))
    }
    laws = sorted(means, key=lambda law: -means[law].mean())
    figure = make_figure(9.4, 3.7)
    left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.1))
    for k, law in enumerate(laws):
        _draw_bars(left, law, [means[law]], [k])
        mean = means[law].mean()
        left.annotate(
            f"{mean:.4f} ± {standard_error(means[law]):.4f}", (mean, k), (0, 7),
            textcoords="offset points", ha="center", fontsize=8,
        )  # fmt: skip
    left.set_yticks(range(len(laws)), [_NAMES.get(law, law) for law in laws])
    left.set_ylim(-0.5, len(laws) - 0.3)
    left.set_xlim(0.0, 1.25 * max(each.mean() for each in means.values()))
    left.set_xlabel("mean error after the impact [rad, rad/s]")
    where = f"Over {len(shown)} plants on which touches are detected"
    if len(shown) == 1:
        (where,) = shown
    left.set_title(where, fontsize=10)
    rows = {
        name.removesuffix(_ALL_ERRORS): row for name, row in results.items() if _ALL_ERRORS in name
    }
    for k, law in enumerate(laws):
        places = np.arange(len(rows)) + 0.06 * (k - 0.5 * (len(laws) - 1))
        errors = [row[law].errors for row in rows.values()]
        right.plot(places, [e.mean() for e in errors], color=_MARKS[law][0], lw=0.8, alpha=0.5)
        _draw_bars(right, law, errors, places, upright=True)
    right.set_xticks(range(len(rows)), list(rows))
    right.set_ylim(bottom=0.0)
    right.set_xlabel("time constant of the contact")
    right.set_title("With errors of sensors, delay and model", fontsize=10)
    right.set_visible(len(rows) > 1)  # one plant is all that the left side shows
    for axes, way in ((left, "x"), (right, "y")):
        axes.grid(axis=way, alpha=0.3)
    save_figure(figure, path)


def _draw_bars(
    axes: Axes,
    law: str,
    errors: Sequence[Array],
    places: Sequence[float] | NDArray[Any],
    *,
    upright: bool = False,
) -> None:
    """Draw the means of errors with their standard errors, in the look of the law.

    Args:
        axes: Where to draw.
        law: Name of the law.
        errors: Errors (n,), one array for each mean.
        places: Place of each mean along the other axis.
        upright: Whether means are ordinates instead of abscissas.
    """
    color, mark = _MARKS[law]
    means, bars = [e.mean() for e in errors], [standard_error(e) for e in errors]
    ends = (places, means, bars, None) if upright else (means, places, None, bars)
    filled = "white" if law in _UNFILLED else color
    look: dict[str, Any] = {"color": color, "marker": mark, "markerfacecolor": filled}
    name = _NAMES.get(law, law)
    axes.errorbar(*ends, **look, linestyle="none", markersize=6, label=name)
