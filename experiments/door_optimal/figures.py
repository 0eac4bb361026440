"""The figure of the comparison: one run through an impact that splits, and the errors of many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from hybridctl.experiments.door_optimal.comparison import Stage, Tuned
from hybridctl.experiments.tuning.door import Draw
from matplotlib.axes import Axes

from hybridctl.app.plots import BASELINE, REFERENCE, TRACKING, canvas, number_log_axis, save_figure
from hybridctl.control.tracking_error import tracking_error

_BEFORE, _AFTER = 4.0, 12.0  # of the time between the touches, that is shown around them
_PERIOD = 1e-4  # s, of samples
_LINES = {
    "spreading": (TRACKING, "-"),
    "impact-invariant": (REFERENCE, "-"),
    "nearest arc": (BASELINE, ":"),
    "conventional": (BASELINE, "-"),
}
_MARKS = (("o", True), ("D", False))  # of references: their shape, and whether it is filled
_APART, _BOX = 0.17, 5.0  # of two references in one row, and how wide quartiles are drawn


def draw_comparison(
    path: Path,
    stages: Mapping[str, Stage],
    results: Mapping[str, Sequence[Tuned]],
    drawn: Draw,
    peak_input: float,
) -> None:
    """Draw the error of controllers in one run on the left, those of unseen runs on the right.

    The run, perturbed as drawn, is on the first of the references.
    """
    figure = canvas(10.0, 4.2)
    left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.15))
    shown = next(iter(results))
    _draw_run(left, stages[shown], results[shown], drawn)
    left.set_title(
        f"A typical run on the {shown} reference: planned is\n"
        "a touch with both corners at once, here it splits",
        fontsize=10,
    )
    for (name, row), mark, up in zip(results.items(), _MARKS, (_APART, -_APART), strict=False):
        _draw_errors(right, name, row, up, mark)
    delay = f"{1e3 * stages[shown].delay:g} ms late"
    names = [each.name.replace("late", delay) for each in results[shown]]
    right.set_yticks(np.arange(len(names))[::-1], names)
    right.set_ylim(-1.2, len(names) - 0.5)  # with room for the legend
    right.set_xscale("log")
    number_log_axis(right.xaxis)
    right.set_xlabel("error after the impact [rad, rad/s]")
    right.set_title(
        f"Unseen runs, tuned alike to {peak_input:g} N m: mean, middle half,\n"
        "line to 95 %; at the right the peak input",
        fontsize=10,
    )
    right.legend(fontsize=8, loc="lower center", ncols=2)
    right.grid(alpha=0.3, axis="x")
    save_figure(figure, path)


def _draw_errors(
    axes: Axes, name: str, row: Sequence[Tuned], up: float, mark: tuple[str, bool]
) -> None:
    """Mean, quartiles and 95th percentile of each controller, and its peak input beside."""
    places = up + np.arange(len(row))[::-1]
    shape, filled = mark
    label: str | None = f"on the {name} reference"
    for each, place in zip(row, places, strict=True):
        color, _ = _LINES[each.name.removesuffix(", late")]
        low, high = np.percentile(each.statistics.errors, (25.0, 75.0))
        axes.hlines(place, low, each.statistics.p95_error, color=color, lw=1.0)
        axes.hlines(place, low, high, color=color, lw=_BOX, alpha=0.4)
        inside = color if filled else "white"
        axes.plot(
            each.statistics.mean_error,
            place,
            shape,
            color=color,
            markerfacecolor=inside,
            ms=6,
            label=label,
        )
        label = None
        lost = sum(each.statistics.failures.values())
        text = f"{each.statistics.peak_input:.0f} N m" + (f", {lost} lost" if lost else "")
        axes.text(
            1.01,
            place,
            text,
            fontsize=8,
            va="center",
            color=color,
            transform=axes.get_yaxis_transform(),
        )


def _draw_run(axes: Axes, stage: Stage, row: Sequence[Tuned], drawn: Draw) -> None:
    """Errors against the arc of the state's own event count, and what conventional tracking sees.

    Time is in ms from the planned impact on.
    """
    planned = stage.reference.events[0].time
    for each in row:
        if each.name not in _LINES:
            continue
        run = stage.run(each.name, each.gains, drawn)
        color, style = _LINES[each.name]
        error = tracking_error(stage.reference, run, "spread", _PERIOD)
        axes.plot(1e3 * (error.times - planned), error.norms, style, color=color, label=each.name)
        if each.name == "conventional":
            seen = tracking_error(stage.reference, run, "conventional", _PERIOD)
            label = "fed back by conventional"
            axes.plot(
                1e3 * (seen.times - planned), seen.norms, "--", color=color, lw=1.0, label=label
            )
        if each.name == "spreading":
            touches = [1e3 * (e.time - planned) for e in run.events if e.guards][:2]
            split = touches[-1] - touches[0]
            axes.axvspan(touches[0], touches[-1], color=color, alpha=0.12, lw=0.0)
            axes.set_xlim(touches[0] - _BEFORE * split, touches[-1] + _AFTER * split)
    axes.set_ylim(1e-3, 1e3)  # with room for the legend
    axes.set_yscale("log")
    axes.set_xlabel("time after the planned impact [ms]; shaded: between touches")
    axes.set_ylabel("|error| [rad, rad/s]")
    axes.legend(fontsize=8, ncols=2, loc="upper center")
    axes.grid(alpha=0.3)
