"""The figure compares laws in one run through an impact that splits, and in many unseen runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hybridctl.experiments.rrr_door.runner import Member, Stage
from matplotlib.axes import Axes

from hybridctl.app.plots import (
    BASELINE,
    REFERENCE,
    TRACKING,
    make_figure,
    number_log_axis,
    save_figure,
)
from hybridctl.base.checks import Array
from hybridctl.control.gains import GainSchedule
from hybridctl.control.tracking_error import tracking_error
from hybridctl.control.tuning.ensemble import Statistics

_BEFORE, _AFTER = 4.0, 12.0  # time shown before and after the touches, by the time between them
_PERIOD = 1e-4  # s, between samples
_LINES = {
    "spreading": (TRACKING, "-"),
    "impact-invariant": (REFERENCE, "-"),
    "nearest arc": (BASELINE, ":"),
    "conventional": (BASELINE, "-"),
}
_MARKS = (("o", True), ("D", False))  # of each reference: shape, and whether it is filled
_APART = 0.17  # rows, between the centre of a row and each of its two references
_BOX = 5.0  # points, width of the line between quartiles


@dataclass(frozen=True, eq=False)
class TunedLaw:
    """A law with the gains that the search has found, and statistics of unseen runs.

    Attributes:
        name: Name of the law.
        parameters: Frequencies (rad/s) and damping ratios (4,).
        gains: Gains of these parameters.
        statistics: Statistics of unseen runs.
    """

    name: str
    parameters: Array
    gains: GainSchedule
    statistics: Statistics

    def record(self) -> dict[str, Any]:
        """Return the law as it stands in summary.json."""
        return {"frequencies_and_dampings": self.parameters, **self.statistics.record()}


def draw_comparison(
    path: Path,
    stages: Mapping[str, Stage],
    results: Mapping[str, Sequence[TunedLaw]],
    drawn: Member,
    peak_input: float,
) -> None:
    """Draw the errors of laws in one run on the left, those of unseen runs on the right.

    Args:
        path: File of the figure.
        stages: Plant and reference by name.
        results: Laws by the name of their reference; the run is on the first one.
        drawn: Member that the run is of.
        peak_input: Limit of the search, N m.
    """
    figure = make_figure(10.0, 4.2)
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
    axes: Axes, name: str, row: Sequence[TunedLaw], up: float, mark: tuple[str, bool]
) -> None:
    """Draw mean, quartiles and 95th percentile of each law, and write its peak input.

    Args:
        axes: Where to draw.
        name: Name of the reference.
        row: Laws, the first one at the top.
        up: Distance from the centre of the rows.
        mark: Shape of the means, and whether it is filled.
    """
    places = up + np.arange(len(row))[::-1]
    shape, filled = mark
    label: str | None = f"on the {name} reference"
    for each, place in zip(row, places, strict=True):
        color, _ = _LINES[each.name.removesuffix(", late")]
        low, high = np.percentile(each.statistics.errors, (25.0, 75.0))
        axes.hlines(place, low, each.statistics.p95_error, color=color, lw=1.0)
        axes.hlines(place, low, high, color=color, lw=_BOX, alpha=0.4)
        inside = color if filled else "white"
        mean = each.statistics.mean_error
        axes.plot(mean, place, shape, color=color, mfc=inside, ms=6, label=label)
        label = None
        lost = sum(each.statistics.failures.values())
        text = f"{each.statistics.peak_input:.0f} N m" + (f", {lost} lost" if lost else "")
        beside = axes.get_yaxis_transform()
        axes.text(1.01, place, text, fontsize=8, va="center", color=color, transform=beside)


def _draw_run(axes: Axes, stage: Stage, row: Sequence[TunedLaw], drawn: Member) -> None:
    """Draw spread errors of all laws, and the error that conventional tracking feeds back.

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
            label, times = "fed back by conventional", 1e3 * (seen.times - planned)
            axes.plot(times, seen.norms, "--", color=color, lw=1.0, label=label)
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
