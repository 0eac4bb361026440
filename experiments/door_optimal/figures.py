"""The figure of the comparison: one run, and the errors of many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from hybridctl.experiments.door_optimal.comparison import Stage, Tuned
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hybridctl.control.tracking import ErrorKind, tracking_error
from hybridctl.plots import BASELINE, REFERENCE, TRACKING, save_figure

_FED_BACK: dict[str, ErrorKind] = {"spreading": "spread", "conventional": "conventional"}
_BEFORE, _AFTER = 0.1, 0.3  # s, around the planned impact
_COLORS = {"spreading": TRACKING, "conventional": BASELINE}
_MARKS = ((TRACKING, "o"), (REFERENCE, "D"))


def draw_comparison(
    path: Path,
    stages: Mapping[str, Stage],
    results: Mapping[str, Sequence[Tuned]],
    start: Sequence[float],
    peak_input: float,
) -> None:
    """Left the error that two controllers feed back in one run, right those of unseen runs.

    The run is on the last of the references. start (8,): by how much it begins off that.
    """
    figure = Figure(figsize=(9.5, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.2))
    shown = list(results)[-1]
    _draw_run(left, stages[shown], results[shown], np.array(start))
    left.set_title(f"One run on the {shown} reference (dotted: impact)", fontsize=10)
    for (name, row), (color, mark), up in zip(results.items(), _MARKS, (0.13, -0.13), strict=False):
        places = up + np.arange(len(row))[::-1]
        means = np.array([each.statistics.mean_error for each in row])
        tails = np.array([each.statistics.p95_error for each in row])
        right.hlines(places, means, tails, color=color, lw=1.2)
        right.plot(means, places, mark, color=color, ms=7, label=f"on the {name} reference")
        for each, place, mean in zip(row, places, means, strict=True):
            lost = sum(each.statistics.failures.values())
            if lost:
                right.text(mean, place + 0.1, f"{lost} lost", ha="right")
    names = [each.name for each in results[shown]]
    right.set_yticks(np.arange(len(names))[::-1], names)
    right.set_ylim(-1.3, len(names) - 0.5)  # with room for the legend
    right.set_xscale("log")
    right.set_xlabel("error after the impact: mean, line to 95 % [rad, rad/s]")
    right.set_title(f"Unseen runs, tuned alike with peak input {peak_input:g} N m", fontsize=10)
    right.legend(fontsize=8, loc="lower right")
    right.grid(alpha=0.3, axis="x")
    save_figure(figure, path)


def _draw_run(axes: Axes, stage: Stage, row: Sequence[Tuned], start: np.ndarray) -> None:
    for each in row:
        if each.name in _FED_BACK:
            run = stage.run(each.name, each.gains, start, np.zeros(3))
            error = tracking_error(stage.reference, run, _FED_BACK[each.name])
            axes.plot(error.times, error.norms, color=_COLORS[each.name], lw=1.6, label=each.name)
    planned = stage.reference.events[0].time
    axes.axvline(planned, color=REFERENCE, ls=":", lw=1.0)
    axes.set_xlim(planned - _BEFORE, planned + _AFTER)
    axes.set_ylim(1e-4, 10.0)
    axes.set_yscale("log")
    axes.set_xlabel("time [s]")
    axes.set_ylabel("|error| that is fed back [rad, rad/s]")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
