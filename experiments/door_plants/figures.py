"""The figure of the comparison: mean errors on all plants, with their standard errors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hybridctl.app.plots import BASELINE, REFERENCE, TRACKING, save_figure
from hybridctl.control.tuning.ensemble import Statistics

_MARKS = {
    "conventional": (BASELINE, "s"),
    "nearest arc": (BASELINE, "x"),
    "spreading": (TRACKING, "o"),
    "impact-invariant": (REFERENCE, "D"),
    "interim": (TRACKING, "P"),
}
_OPEN = ("spreading",)  # drawn without filling
_APART = 0.14  # of laws in a row
_WIDE = 2.5  # medians: farther errors are written at the border


def draw_errors(path: Path, results: Mapping[str, Mapping[str, Statistics]]) -> None:
    """A row for each plant, a mark for each law."""
    figure = Figure(figsize=(8.0, 1.2 + 0.42 * len(results)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    rows = np.arange(len(results))[::-1]
    laws = list(next(iter(results.values())))
    means = [[each.errors.mean() for each in row.values()] for row in results.values()]
    right = _WIDE * float(np.median(means))
    for k, law in enumerate(laws):
        found = [row[law] for row in results.values()]
        errors = [each.errors for each in found]
        color, mark = _MARKS[law]
        heights = rows + _APART * (0.5 * (len(laws) - 1) - k)
        for height, mean in zip(heights, [e.mean() for e in errors], strict=True):
            if mean > right:
                label = f"{mean:.2f} $\\rightarrow$"
                axes.text(0.99 * right, height, label, ha="right", va="center", color=color)
        axes.errorbar(
            [e.mean() for e in errors],
            heights,
            xerr=[e.std() / np.sqrt(max(len(e) - 1, 1)) for e in errors],
            color=color,
            marker=mark,
            markerfacecolor="white" if law in _OPEN else color,
            markersize=6,
            linestyle="none",
            label={"interim": "spreading, interim mode"}.get(law, law),
        )
    axes.set_yticks(rows, list(results))
    axes.set_xlim(0.0, right)
    axes.set_xlabel("mean error after the impact [rad, rad/s], one set of gains a law")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.4, -0.14), ncols=len(laws))
    save_figure(figure, path)
