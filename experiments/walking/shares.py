"""What room in the friction cone costs a gait, and what it survives for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hybridctl.experiments.walking.controllers import Tracks, Weights, design
from hybridctl.experiments.walking.gait import Gait
from hybridctl.experiments.walking.walk import over_a_step, pushed, walk
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.table import Table

from hybridctl.app.plots import REFERENCE, TRACKING, save_figure
from hybridctl.app.report import table
from hybridctl.hybrid.policy import Policy

WAYS = {
    "push forward": (1.0, "N s"),
    "push back": (1.0, "N s"),
    "up": (100.0, "cm"),
    "down": (100.0, "cm"),
}


def record(
    gait: Gait,
    share: float,
    pushes: Sequence[float],
    heights: Sequence[float],
    *,
    weights: Weights,
    torque: float,
    extension: float,
    steps: int,
) -> dict[str, Any]:
    """A gait that may use a share of friction: cost, map of a step, and what it survives.

    Under tracking at the phase of least value, for so many steps: the last of ascending pushes in
    N s and heights in m before the first that it falls from, in the units of `WAYS`.
    """
    lqr = design(gait, weights)
    policy = Tracks.of(gait, lqr, steps, extension).policy("value", lqr, torque)
    sizes = {way: pushes if unit == "N s" else heights for way, (_, unit) in WAYS.items()}
    limits = {
        way: factor * _last(gait, policy, way, sizes[way], steps)
        for way, (factor, _) in WAYS.items()
    }
    return {
        "share": share,
        "cost": gait.step.cost,
        "largest_multiplier": float(np.abs(gait.multipliers.others).max()),
        "norm_of_map": float(np.linalg.norm(gait.map.state_transition, 2)),
        "limits": limits,
    }


def _last(gait: Gait, policy: Policy, way: str, sizes: Sequence[float], steps: int) -> float:
    """The last of ascending sizes before the first that is not survived; 0 where that is all."""
    survived = 0.0
    for size in sizes:
        signed = -size if way in ("push back", "down") else size
        if way in ("up", "down"):
            found = over_a_step(gait, policy, signed, steps)
        else:
            found = walk(gait, policy, pushed(gait, signed), steps)
        if found.steps < steps:
            break
        survived = size
    return survived


def share_table(records: Sequence[dict[str, Any]]) -> Table:
    """Cost and survival by share."""
    rows = [
        (
            f"{r['share']:g}",
            f"{r['cost']:.0f}",
            f"{r['largest_multiplier']:.1f}",
            f"{r['norm_of_map']:.0f}",
            *(f"{size:.3g}" for size in r["limits"].values()),
        )
        for r in records
    ]
    ways = [f"{way} [{unit}]" for way, (_, unit) in WAYS.items()]
    columns = ["share", "cost", "multiplier", "norm of its map", *ways]
    return table("Gaits by the share of friction that they may use", columns, rows)


def draw_shares(path: Path, records: Sequence[dict[str, Any]], chosen: float) -> None:
    """What is survived over the cost, a point for each share; the chosen one is marked."""
    figure = Figure(figsize=(8.0, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    costs = [r["cost"] for r in records]
    for axes, ways in zip(
        figure.subplots(1, 2), (("push forward", "push back"), ("up", "down")), strict=True
    ):
        for way, color in zip(ways, (TRACKING, REFERENCE), strict=True):
            axes.plot(costs, [r["limits"][way] for r in records], "o-", color=color, label=way)
        for r in records:
            at = r["cost"], r["limits"][ways[0]]
            axes.annotate(f"{r['share']:g}", at, xytext=(0, -14), textcoords="offset points")
            if r["share"] == chosen:
                axes.axvline(r["cost"], color="black", lw=0.8, ls="--")
        axes.set_xlabel("integral of squared torques [N² m² s]")
        axes.set_ylabel(f"survived [{WAYS[ways[0]][1]}]")
        axes.set_ylim(bottom=0.0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.suptitle("Gaits by the share of friction that they may use (dashed: the one that ships)")
    save_figure(figure, path)
