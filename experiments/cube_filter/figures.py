"""The figure of the filters on tossed cubes: NIS and likelihood, toss by toss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hybridctl.files import atomic
from hybridctl.plots import BASELINE, REFERENCE, TRACKING

if TYPE_CHECKING:
    from hybridctl.experiments.cube_filter.score import Score

COLORS = (TRACKING, REFERENCE, BASELINE, "#1e8449", "#8e44ad")
EXPECTED = 6.0


def draw(path: Path, scores: Mapping[str, Sequence[Score]]) -> None:
    """Mean NIS of each toss on the left, its log-likelihood per row on the right."""
    figure = Figure(figsize=(11.0, 5.4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    names = list(dict.fromkeys(label.split(",")[0] for label in scores))
    for label, found in scores.items():
        done = [s for s in found if s.failure is None]
        style = {
            "color": COLORS[names.index(label.split(",")[0])],
            "marker": "x" if "without" in label else "o",
            "ls": "none",
            "ms": 5,
            "label": label,
        }
        tosses = [s.toss for s in done]
        left.plot(tosses, [s.nis.mean() for s in done], **style)
        right.plot(tosses, [s.log_likelihood.mean() for s in done], **style)
    left.axhline(EXPECTED, color="black", lw=0.8)
    left.set_yscale("log")
    left.set_ylabel("mean NIS (line: where it should be)")
    right.set_ylabel("log-likelihood per row")
    figure.legend(
        *left.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8
    )
    for axes in (left, right):
        axes.set_xlabel("toss")
        axes.grid(alpha=0.3)
    figure.suptitle("Filters on tosses that were held out")
    with atomic(path) as temporary:
        figure.savefig(temporary, dpi=130)
