"""Figures of the B-derivative experiment: balls and their images, errors of differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes

from hybridctl.plots import GREEN, REFERENCE, TRACKING, canvas, save_figure

if TYPE_CHECKING:
    from hybridctl.experiments.linearization.bderivative import Result

ORDERS = (TRACKING, REFERENCE)
STYLES = ("o-", "s--", "^-")
MARKS = (*ORDERS, GREEN)
DOT = 4  # of so many simulated points one is drawn


def draw_balls(path: Path, results: Mapping[str, Result]) -> None:
    """The ball before the surfaces and its image behind them, simulated and predicted."""
    figure = canvas(1.0 + 4.6 * len(results), 5.4)
    grid = figure.subplots(1, len(results), squeeze=False)
    for axes, (name, result) in zip(grid[0], results.items(), strict=True):
        _draw_ball(axes, result)
        axes.set_title(name, fontsize=10)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8)
    figure.suptitle("A ball of initial points and its image after 1 s")
    save_figure(figure, path)


def _draw_ball(axes: Axes, result: Result) -> None:
    instance, b = result.instance, result.instance.derivative()
    start, end = instance.start, instance.end
    axes.axhline(0.0, color="#555555", lw=1.5)
    axes.axvline(0.0, color="#555555", lw=1.5, label="surfaces")
    times = np.linspace(0.0, 1.0, 61)
    path = [instance.nominal(t) for t in times]
    axes.plot(*np.transpose(path), color="black", lw=1.0, label="nominal")
    axes.plot(*np.transpose([start, end]), "o", color="black", ms=4)
    orders = b.follow(instance.turned(result.rim)).orders[:, 0]
    for first, color in enumerate(ORDERS):
        for points, centre, label in (
            (result.rim, start, None),
            (result.predicted, end, f"B-derivative, x{first + 1} = 0 first"),
        ):
            mine = orders == first
            shown = np.where((mine | np.roll(mine, 1))[:, None], centre + points, np.nan)
            axes.plot(*np.vstack([shown, shown[:1]]).T, color=color, lw=2.0, label=label)
    axes.plot(*(end + result.image)[::DOT].T, "o", color="black", ms=3, label="simulated", zorder=4)
    axes.set_aspect("equal")
    axes.set_xlabel("x1 [m]")
    axes.set_ylabel("x2 [m]")
    axes.grid(alpha=0.3)


def draw_errors(path: Path, steps: Sequence[float], results: Mapping[str, Result]) -> None:
    """Errors of one-sided differences of the flow, for shrinking steps."""
    figure = canvas(6.2, 4.6)
    axes = figure.subplots()
    for (name, result), style, color in zip(results.items(), STYLES, MARKS, strict=True):
        shown = np.maximum(result.errors, np.finfo(np.float64).eps)
        axes.loglog(steps, shown, style, color=color, ms=4, lw=1.4, label=name)
    scale = results["turning"].errors[0] / steps[0]
    axes.loglog(steps, scale * np.array(steps), ":", color="black", lw=1.0, label="slope 1")
    axes.set_xlabel("step [m]")
    axes.set_ylabel("largest error [m/m]")
    axes.set_title("One-sided differences of the flow against the B-derivative", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    save_figure(figure, path)
