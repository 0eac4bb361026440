"""Records of gaits and walks stand in summary.json, and the tables are made from these records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hybridctl.experiments.walking.gait import Gait
from hybridctl.experiments.walking.limits import KINDS, TUNED, Name, Survived, find_limit
from hybridctl.experiments.walking.walk import Walk
from rich.table import Table

from hybridctl.app.report import make_record_table, make_table
from hybridctl.base.checks import Array
from hybridctl.control.lqr.periodic import PeriodicLqr
from hybridctl.hybrid.policy import Policy
from hybridctl.sensitivity.floquet import FloquetMultipliers


def compute_moduli(multipliers: FloquetMultipliers) -> Array:
    """Return the moduli of the multipliers that are not trivial, the largest first."""
    return np.abs(multipliers.others)


def make_gait_record(gait: Gait) -> dict[str, Any]:
    """Return the record of a gait: its search, and its largest multiplier without feedback."""
    return {
        "speed": gait.speed,
        "step_duration": gait.period,
        "closing": gait.closing,
        "cost": gait.step.cost,
        "iterations": gait.step.iterations,
        "seconds": gait.step.seconds,
        "largest_multiplier": float(compute_moduli(gait.multipliers)[0]),
    }


def make_share_record(
    gait: Gait, policy: Policy, share: float, ready: bool, steps: int
) -> dict[str, Any]:
    """Return the record of a gait that may use a share of friction: cost, map, and its limits.

    Args:
        gait: The gait. Trials start on its orbit.
        policy: Controller of the trials.
        share: Share of the friction cone that the gait may use.
        ready: Whether the share also holds where the foot lands early or late.
        steps: Number of steps to be walked.
    """
    limits = {way: find_limit(gait, policy, way, gait.middle, steps) for way in TUNED}
    return {
        "share": share,
        "ready": ready,
        "cost": gait.step.cost,
        "largest_multiplier": float(np.abs(gait.multipliers.others).max()),
        "norm_of_map": float(np.linalg.norm(gait.map.state_transition, 2)),
        "limits": limits,
    }


def make_share_table(records: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of cost and limits by the share of friction."""
    rows = [{**r, "name": f"{r['share']:g}{', ready' * r['ready']}"} for r in records]
    columns = {
        "share": "{name}",
        "cost": "{cost:.0f}",
        "multiplier": "{largest_multiplier:.1f}",
        "norm of the step's map": "{norm_of_map:.0f}",
        **{f"{KINDS[w].title} [{KINDS[w].unit}]": f"{{limits[{w}]:.3g}}" for w in TUNED},
    }
    return make_record_table("Gaits by the share of friction that they may use", rows, columns)


def make_walk_record(gait: Gait, lqr: PeriodicLqr, blind: PeriodicLqr) -> dict[str, Any]:
    """Return the record of the gait with its multipliers, with and without feedback.

    Args:
        gait: The gait.
        lqr: Feedback by the saltation matrix.
        blind: Feedback by the Jacobian of the reset.
    """
    free = gait.multipliers
    closed = gait.map.closed_loop(blind.period.gains.arcs)
    without_saltation = closed.floquet_multipliers(symmetry=gait.symmetry)
    return {
        **make_gait_record(gait),
        "multipliers_open": compute_moduli(free),
        "multipliers_closed": compute_moduli(lqr.multipliers),
        "multipliers_closed_without_saltation": compute_moduli(without_saltation),
        "multipliers_trivial": {
            name: [float(abs(free.values[i])) for i, n in free.trivial.items() if n == name]
            for name in dict.fromkeys(free.trivial.values())
        },
    }


def make_gait_table(records: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of gaits by speed."""
    columns = {
        "speed [m/s]": "{speed:g}",
        "step [s]": "{step_duration:.4f}",
        "closing error": "{closing:.1e}",
        "iterations": "{iterations} ({seconds:.1f} s)",
        "largest multiplier": "{largest_multiplier:.1f}",
    }
    return make_record_table(
        "Gaits of least squared torque, under their feedforward", records, columns
    )


def make_multiplier_table(record: Mapping[str, Any]) -> Table:
    """Return the table of the four largest multipliers, with and without feedback."""
    rows = [
        (name, ", ".join(f"{m:.3g}" for m in record[key][:4]))
        for name, key in (
            ("feedforward", "multipliers_open"),
            ("LQR with saltation", "multipliers_closed"),
            ("LQR, reset's Jacobian only", "multipliers_closed_without_saltation"),
        )
    ]
    return make_table("Largest multipliers of a step", ["feedback", "moduli"], rows)


def make_start_table(gait: Gait, walks: Sequence[Walk], steps: int) -> Table:
    """Return the table of walks from random starts: steps, errors, and reasons of falls.

    Args:
        gait: Gait that is walked.
        walks: Walks, one for each start.
        steps: Number of steps to be walked.
    """
    rows = []
    for k, each in enumerate(walks):
        errors = each.compute_errors(gait) if each.run is not None and each.steps else np.zeros(0)
        ends = [f"{errors[i]:.1e}" if len(errors) else "" for i in (0, -1)]
        rows.append((str(k + 1), f"{each.steps} of {steps}", *ends, each.reason or "walks on"))
    columns = ["start", "steps", "error after step 1", "error after the last", "outcome"]
    return make_table("Random starts in mid-step, reference spreading", columns, rows)


def make_limit_table(found: Sequence[Survived], steps: int, budget: int) -> Table:
    """Return the table of limits: means with standard errors, and the least; > at ends of grids.

    Args:
        found: Limits of the controllers.
        steps: Number of steps that were to be walked.
        budget: Number of weights that each controller was tuned over.
    """
    kinds = list(found[0].limits)
    rows = [
        (
            each.controller + ("" if each.is_stable else " (unstable)"),
            str(len(each.limits[kinds[0]])),
            *(_format_limit(each, kind) for kind in kinds),
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
    return make_table(title, columns, rows)


def _format_limit(found: Survived, kind: Name) -> str:
    limits, end = found.limits[kind], KINDS[kind].end
    at_end = ">" if max(limits) >= end else ""
    return f"{at_end}{found.mean(kind):.1f} ± {found.error(kind):.1f} ({min(limits):g})"


def make_estimate_table(records: Sequence[Mapping[str, Any]], steps: int) -> Table:
    """Return the table of walks on estimates: steps of those asked for, and errors of estimates."""
    rows = [{**r, "error": np.median(r["errors"])} for r in records]
    columns = {
        "sensor noise": "{level:g}",
        "process noise": "{driven:g}",
        "filter": "{filter}",
        "steps": "{steps_walked}",
        "median error": "{error:.3f}",
    }
    title = f"Walks of {steps} steps on estimates (sensor noise 1: encoders 1 mrad, "
    return make_record_table(title + "inclination 2 mrad, its rate 10 mrad/s)", rows, columns)
