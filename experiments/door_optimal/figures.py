"""The figure of the comparison: one run, and the errors of many."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from hybridctl.experiments.door_optimal.comparison import Stage, Tuned
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hybridctl.control.tracking import ErrorKind, tracking_error
from hybridctl.files import atomic
from hybridctl.plots import BASELINE, REFERENCE, TRACKING

_FED_BACK: dict[str, ErrorKind] = {"spreading": "spread", "conventional": "conventional"}
_BEFORE, _AFTER = 0.1, 0.3  # s, around the planned impact
_COLORS = {"spreading": TRACKING, "conventional": BASELINE}


def draw_comparison(
    path: Path, stage: Stage, row: Sequence[Tuned], start: Sequence[float], peak_input: float
) -> None:
    """Left the error that two controllers feed back in one run, right those of unseen runs.

    start (8,): by how much that run begins off the reference.
    """
    figure = Figure(figsize=(9.5, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(1.1, 1.0))
    for each in row:
        if each.name in _FED_BACK:
            run = stage.run(each.name, each.gains, np.array(start), np.zeros(3))
            error = tracking_error(stage.reference, run, _FED_BACK[each.name])
            left.plot(error.times, error.norms, color=_COLORS[each.name], lw=1.6, label=each.name)
    planned = stage.reference.events[0].time
    left.axvline(planned, color=REFERENCE, ls=":", lw=1.0)
    left.set_xlim(planned - _BEFORE, planned + _AFTER)
    left.set_yscale("log")
    left.set_xlabel("time [s]")
    left.set_ylabel("|error| that is fed back [rad, rad/s]")
    left.set_title("One perturbed run (dotted: planned impact)", fontsize=10)
    left.legend(fontsize=8)
    left.grid(alpha=0.3)
    places = np.arange(len(row))[::-1]
    means = [each.statistics.mean_error for each in row]
    tails = [each.statistics.p95_error for each in row]
    colors = [TRACKING if each.name.startswith("spreading") else BASELINE for each in row]
    right.barh(places, means, color=colors)
    right.plot(tails, places, "|", color="black", ms=14, label="95 % of runs below")
    right.set_yticks(places, [each.name for each in row])
    right.set_xlabel("mean error after the impact [rad, rad/s]")
    right.set_title(f"Tuned alike, peak input {peak_input:g} N m", fontsize=10)
    right.legend(fontsize=8)
    right.grid(alpha=0.3, axis="x")
    with atomic(path) as temporary:
        figure.savefig(temporary, dpi=130)
