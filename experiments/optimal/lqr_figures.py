"""The figure of the LQR experiment: costs of wrong designs, and of the value function's error."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hybridctl.plots import BASELINE, GREEN, REFERENCE, TRACKING, canvas, save_figure

if TYPE_CHECKING:
    from hybridctl.experiments.optimal.lqr import Config, Result

WRONG = (("reset", "reset's Jacobian only", REFERENCE), ("no", "no jump", BASELINE))
COLORS = (TRACKING, REFERENCE, GREEN)


def draw(path: Path, config: Config, results: Mapping[str, Result]) -> None:
    """Ratios of costs of all starts on the left, value function against simulation on the right."""
    figure = canvas(10.5, 4.6)
    left, right = figure.subplots(1, 2)
    for column, result in enumerate(results.values()):
        for side, (design, label, color) in zip((-0.15, 0.15), WRONG, strict=True):
            ratios = result.ratios(design)
            ratios = np.sort(ratios[np.isfinite(ratios)])
            places = column + side + np.linspace(-0.1, 0.1, len(ratios))
            left.plot(places, ratios, "o", color=color, ms=4, label=label if column == 0 else None)
    left.axhline(1.0, color="black", lw=0.8)
    left.set_yscale("log")
    left.set_xticks(range(len(results)), list(results))
    left.set_ylabel("simulated cost / that with saltation")
    left.set_title("Each start, sorted", fontsize=10)
    for (name, result), color in zip(results.items(), COLORS, strict=True):
        right.loglog(config.sizes, result.gaps, "o-", color=color, ms=4, label=name)
    sizes = np.array(config.sizes)
    middle = float(np.exp(np.mean([np.log(r.gaps) for r in results.values()])))
    guide = middle * sizes / np.exp(np.log(sizes).mean())
    right.loglog(sizes, guide, "--", color="black", lw=1.0, label="slope 1")
    right.set_xticks(sizes, [f"{size:g}" for size in sizes])
    right.minorticks_off()
    right.set_xlabel("size of the deviation")
    right.set_ylabel("|simulated cost / value function - 1|")
    right.set_title("Value function", fontsize=10)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.suptitle("Hybrid LQR with and without the saltation matrix")
    save_figure(figure, path)
