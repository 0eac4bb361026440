"""What the walker leaves in summary.json, and its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hybridctl.experiments.walking.gait import Gait
from hybridctl.experiments.walking.limits import KINDS, Name, Survived
from hybridctl.experiments.walking.walk import Walk
from rich.table import Table

from hybridctl.app.report import record_table, table
from hybridctl.base.checks import Array
from hybridctl.control.lqr.periodic import PeriodicLqr
from hybridctl.sensitivity.floquet import FloquetMultipliers


def moduli(multipliers: FloquetMultipliers) -> Array:
    """The moduli of the multipliers that are not trivial, the largest first."""
    return np.abs(multipliers.others)


def gait_record(gait: Gait) -> dict[str, Any]:
    """A gait by its search, and by its map without feedback."""
    return {
        "speed": gait.speed,
        "step_duration": gait.period,
        "closing": gait.closing,
        "cost": gait.step.cost,
        "iterations": gait.step.iterations,
        "seconds": gait.step.seconds,
        "largest_multiplier": float(moduli(gait.multipliers)[0]),
    }


def walk_record(gait: Gait, lqr: PeriodicLqr, blind: PeriodicLqr) -> dict[str, Any]:
    """The gait with its multipliers, under the feedback with and without saltation."""
    opened = gait.multipliers
    unaware = gait.map.closed_loop(blind.period.gains.arcs)
    return {
        **gait_record(gait),
        "multipliers_open": moduli(opened),
        "multipliers_closed": moduli(lqr.multipliers),
        "multipliers_closed_without_saltation": moduli(
            unaware.floquet_multipliers(symmetry=gait.symmetry)
        ),
        "multipliers_trivial": {
            name: [float(abs(opened.values[i])) for i, n in opened.trivial.items() if n == name]
            for name in dict.fromkeys(opened.trivial.values())
        },
    }


def gait_table(records: Sequence[Mapping[str, Any]]) -> Table:
    """The table of gaits by speed."""
    columns = {
        "speed [m/s]": "{speed:g}",
        "step [s]": "{step_duration:.4f}",
        "closing error": "{closing:.1e}",
        "iterations": "{iterations} ({seconds:.1f} s)",
        "largest multiplier": "{largest_multiplier:.1f}",
    }
    return record_table("Gaits of least squared torque, under their feedforward", records, columns)


def multiplier_table(record: Mapping[str, Any]) -> Table:
    """The largest multipliers, open and closed."""
    rows = [
        (name, ", ".join(f"{m:.3g}" for m in record[key][:4]))
        for name, key in (
            ("feedforward", "multipliers_open"),
            ("LQR with saltation", "multipliers_closed"),
            ("LQR, reset's Jacobian only", "multipliers_closed_without_saltation"),
        )
    ]
    return table("Largest multipliers of a step", ["feedback", "moduli"], rows)


def start_table(gait: Gait, walks: Sequence[Walk], steps: int) -> Table:
    """The table of steps and errors of walks from random starts."""
    rows = []
    for k, each in enumerate(walks):
        errors = each.errors(gait) if each.run is not None and each.steps else np.zeros(0)
        ends = [f"{errors[i]:.1e}" if len(errors) else "" for i in (0, -1)]
        rows.append((str(k + 1), f"{each.steps} of {steps}", *ends, each.reason or "walks on"))
    columns = ["start", "steps", "error after step 1", "error after the last", "outcome"]
    return table("Random starts in mid-step, reference spreading", columns, rows)


def limit_table(found: Sequence[Survived], steps: int, budget: int) -> Table:
    """What controllers survive: means with standard errors, and the least; > at ends of grids."""
    kinds = list(found[0].limits)
    rows = [
        (
            each.controller + ("" if each.is_stable else " (unstable)"),
            str(len(each.limits[kinds[0]])),
            *(_limit(each, kind) for kind in kinds),
            f"{each.contraction:.2f}",
        )
        for each in found
    ]
    titles = [f"{KINDS[kind].title} [{KINDS[kind].unit}]" for kind in kinds]
    columns = ["controller", "starts", *titles, "error per step"]
    title = (
        f"Largest disturbances survived for {steps} steps, tuned over {budget} weights: mean ± "
        "standard error (least)"
    )
    return table(title, columns, rows)


def _limit(found: Survived, kind: Name) -> str:
    limits, end = found.limits[kind], KINDS[kind].end
    beyond = ">" if max(limits) >= end else ""
    return f"{beyond}{found.mean(kind):.1f} ± {found.error(kind):.1f} ({min(limits):g})"


def estimate_table(records: Sequence[Mapping[str, Any]], steps: int) -> Table:
    """The table of walks on estimates: steps, and errors of the estimates."""
    rows = [{**r, "error": np.median(r["errors"])} for r in records]
    columns = {
        "sensor noise": "{level:g}",
        "process noise": "{driven:g}",
        "filter": "{filter}",
        "steps": "{steps_walked}",
        "median error": "{error:.3f}",
    }
    title = f"Walks of {steps} steps on estimates (sensor noise 1: encoders 1 mrad, "
    return record_table(title + "inclination 2 mrad, its rate 10 mrad/s)", rows, columns)
