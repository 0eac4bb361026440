"""The figure of the filters on tossed cubes: how NIS and likelihood are spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy.stats import chi2

from hybridctl.checks import Array
from hybridctl.plots import BASELINE, GREEN, REFERENCE, SKY, TRACKING, save_figure

if TYPE_CHECKING:
    from hybridctl.experiments.cube_filter.score import Score

COLORS = (TRACKING, REFERENCE, BASELINE, GREEN, SKY)
DEGREES = 6
SPAN = (1e-2, 1e3)  # of NIS
BELOW = 5.0  # by which a filter may stay below the best median log-likelihood and still be shown


def draw(path: Path, scores: Mapping[str, Sequence[Score]]) -> None:
    """Shares of poses below a NIS, left, and of tosses below a mean log-likelihood, right."""
    figure = Figure(figsize=(10.0, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    names = list(dict.fromkeys(label.split(",")[0] for label in scores))
    medians = []
    for label, found in scores.items():
        done = [s for s in found if s.failure is None]
        if not done:
            continue
        style = {
            "color": COLORS[names.index(label.split(",")[0])],
            "ls": "--" if "without" in label else "-",
            "lw": 1.5,
            "label": f"{label}, {len(done)} tosses",
        }
        likelihoods = np.array([s.log_likelihood.mean() for s in done])
        medians.append(float(np.median(likelihoods)))
        left.step(*_shares(np.concatenate([s.nis for s in done])), **style)
        right.step(*_shares(likelihoods), **style)
    grid = np.geomspace(*SPAN, 200)
    left.plot(grid, chi2.cdf(grid, DEGREES), color="black", lw=1.0, ls=":", label="consistent")
    left.set_xscale("log")
    left.set_xlim(SPAN)
    left.set_xlabel("NIS of a pose")
    left.set_ylabel("share below")
    best = max(medians, default=0.0)
    right.set_xlim(best - BELOW, best + 0.6 * BELOW)
    right.set_xlabel("log-likelihood per pose, mean of a toss")
    figure.legend(
        *left.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8
    )
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.suptitle("Filters on tosses that were held out")
    save_figure(figure, path)


def _shares(values: Array) -> tuple[Array, Array]:
    """Sorted values, and the share of them up to each."""
    return np.sort(values), np.arange(1, len(values) + 1) / len(values)
