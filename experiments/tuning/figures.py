"""The figures of `tune`: error against peak input, distributions of errors, order of gains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

from hybridctl.control.tuning.ensemble import Statistics
from hybridctl.plots import BASELINE, REFERENCE, TRACKING, canvas, save_figure

if TYPE_CHECKING:
    from hybridctl.experiments.tuning.tune import Ranked

COLORS = {"before": REFERENCE, "after": TRACKING, "conventional": BASELINE}


def draw_trade_off(path: Path, summary: Mapping[str, Any]) -> None:
    """All candidates by peak input and mean error, and what the unseen runs say of the chosen."""
    figure = canvas(6.4, 4.6)
    axes = figure.subplots()
    for kind, marker in (("start", "s"), ("prediction", "o"), ("search", ".")):
        points = [c for c in summary["candidates"] if c["origin"].startswith(kind)]
        if points:
            x, y = ([c[name] for c in points] for name in ("peak_input", "mean_error"))
            style = "-" if kind == "prediction" else ""
            axes.plot(x, y, marker + style, color="black", ms=5, lw=0.8, alpha=0.6, label=kind)
    for name in ("before", "after"):
        result = summary[name]
        axes.plot(
            result["peak_input"], result["mean_error"], "*", color=COLORS[name], ms=13, label=name
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        number_log_axis(axis, limits)
    axes.set_xlabel("peak input [N m]")
    axes.set_ylabel("mean post-impact error [rad, rad/s]")
    axes.set_title("Candidates on the runs of the search; stars on unseen runs", fontsize=10)
    _save(figure, axes, path)


def draw_distribution(path: Path, results: Mapping[str, Statistics]) -> None:
    """The share of runs with an error up to each value."""
    figure = canvas(6.4, 4.6)
    axes = figure.subplots()
    for name, result in results.items():
        errors = np.sort(result.errors)
        share = np.arange(1, len(errors) + 1) / len(errors)
        axes.step(errors, share, where="post", color=COLORS[name], lw=1.6, label=name)
    axes.axhline(0.95, color="black", lw=0.6, ls=":")
    axes.set_xscale("log")
    number_log_axis(axes.xaxis, axes.get_xlim())
    axes.set_xlabel("post-impact error [rad, rad/s]")
    axes.set_ylabel("share of runs")
    axes.set_title("Errors of perturbed runs; one that failed counts as 10", fontsize=10)
    _save(figure, axes, path)


def draw_rank(path: Path, ranked: Ranked) -> None:
    """Predicted against simulated cost of random gains."""
    figure = canvas(6.4, 4.6)
    axes = figure.subplots()
    label = f"rank correlation {ranked.correlation:.3f}"
    axes.loglog(ranked.predicted, ranked.simulated, "o", color=TRACKING, ms=4, label=label)
    axes.set_xlabel("predicted cost")
    axes.set_ylabel("mean square error of simulated runs")
    _save(figure, axes, path)


def number_log_axis(axis: Axis, limits: tuple[float, float]) -> None:
    """Number a logarithmic axis plainly: 1, 2, 5, 10, or evenly where it spans few such steps."""
    low, high = limits
    steps = (1.0, 2.0, 5.0) if high < 1e3 * low else (1.0,)
    axis.set_major_locator(LogLocator(subs=steps) if high > 6.0 * low else MaxNLocator(5))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def _save(figure: Figure, axes: Any, path: Path) -> None:
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    save_figure(figure, path)
