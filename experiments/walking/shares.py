"""How the share of the friction cone that a gait may use trades its cost for robustness."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hybridctl.experiments.walking.gait import Gait
from hybridctl.experiments.walking.limits import KINDS, Name, limit
from rich.table import Table

from hybridctl.app.plots import REFERENCE, TRACKING, canvas, save_figure
from hybridctl.app.report import record_table
from hybridctl.hybrid.policy import Policy

WAYS: tuple[Name, ...] = ("push forward", "push back", "up", "down")


def record(gait: Gait, policy: Policy, share: float, ready: bool, steps: int) -> dict[str, Any]:
    """A gait that may use a share of friction: cost, map of a step, and what it survives.

    ready: whether the share holds where it lands early and where it lands late, too. Under the
    policy, for so many steps, from the orbit itself.
    """
    limits = {way: limit(gait, policy, way, gait.middle, steps) for way in WAYS}
    return {
        "share": share,
        "ready": ready,
        "cost": gait.step.cost,
        "largest_multiplier": float(np.abs(gait.multipliers.others).max()),
        "norm_of_map": float(np.linalg.norm(gait.map.state_transition, 2)),
        "limits": limits,
    }


def share_table(records: Sequence[dict[str, Any]]) -> Table:
    """Cost and survival by share."""
    rows = [{**r, "name": f"{r['share']:g}{', ready' * r['ready']}"} for r in records]
    columns = {
        "share": "{name}",
        "cost": "{cost:.0f}",
        "multiplier": "{largest_multiplier:.1f}",
        "norm of the step's map": "{norm_of_map:.0f}",
        **{f"{KINDS[w].title} [{KINDS[w].unit}]": f"{{limits[{w}]:.3g}}" for w in WAYS},
    }
    return record_table("Gaits by the share of friction that they may use", rows, columns)


def draw_shares(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """What is survived over the cost, a point for each share; the last one is the gait that ships.

    Points of gaits that are not ready for early and late landings are joined.
    """
    figure = canvas(8.0, 3.6)
    *plain, shipped = records
    for axes, ways in zip(figure.subplots(1, 2), (WAYS[:2], WAYS[2:]), strict=True):
        for way, color in zip(ways, (TRACKING, REFERENCE), strict=True):
            costs, survived = [r["cost"] for r in plain], [r["limits"][way] for r in plain]
            axes.plot(costs, survived, "o-", color=color, label=KINDS[way].title)
            axes.plot(shipped["cost"], shipped["limits"][way], "*", color=color, ms=12)
        for r in plain:
            at = r["cost"], r["limits"][ways[0]]
            axes.annotate(f"{r['share']:g}", at, xytext=(0, -14), textcoords="offset points")
        axes.set_xlabel("integral of squared torques [N² m² s]")
        axes.set_ylabel(f"survived [{KINDS[ways[0]].unit}]")
        axes.set_ylim(bottom=0.0)
        axes.margins(x=0.1)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.suptitle("Gaits by the share of friction that they may use (stars: the one that ships)")
    save_figure(figure, path)
