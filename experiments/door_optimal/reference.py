"""References of the door by optimisation: both corners at once, with room for either to be first.

The task is that of [RS] (5.22)-(5.27): from the published start at rest, both corners on the door
at 1 s, and the door at the published angle, at rest, 1 s later; with friction the corners slide all
the way. The optimum presses, in every order
of touch, as many times as hard as the margins ask as it can, and goes on doing so for a spread of
event times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hybridctl.experiments.rrr_door.reference import CLOSED, OPEN, Design, build
from hybridctl.robots import rrr_door

from hybridctl.checks import Array, member, number
from hybridctl.control.reference import Reference, extend
from hybridctl.control.trajectory.optimise import OptimalTrajectory, optimise
from hybridctl.control.trajectory.task import Condition, Margins, Phase, Task
from hybridctl.hybrid.system import HybridSystem
from hybridctl.mechanics.system import ContactSystem, contact_system
from hybridctl.report import event_record

CLOSE = ("corner_1 closes", "corner_2 closes")
VARIANTS = ("plain", "friction")
_SLIDING = ("slip+", "slip+")
_SLACK = 1e-9  # s, of durations that are given


@dataclass(frozen=True)
class Wanted:
    """What a reference is to keep.

    torque: N m. rate: of joints, rad/s. force, impulse, approach: least values in every order of
    touch, N, N s and m/s, which the common margin multiplies. spread: of event times, s. widen:
    weight of the margin against the integral of squared torques, (N m)^2 s. friction: coefficient
    of the variant with friction. angle: of the door at the end, rad. intervals: of collocation
    before the impact.
    """

    torque: float = 20.0
    rate: float = 4.0
    force: float = 1.0
    impulse: float = 0.1
    approach: float = 0.05
    spread: float = 0.05
    widen: float = 1000.0
    friction: float = 0.2
    angle: float = 0.33
    intervals: int = 20

    def __post_init__(self) -> None:
        for name in ("torque", "rate", "spread", "friction"):
            number(name, getattr(self, name), above=0.0)


@dataclass(frozen=True, eq=False)
class Found:
    """A variant with its plant and its optimum."""

    variant: str
    plant: HybridSystem
    optimum: OptimalTrajectory

    def record(self) -> dict[str, Any]:
        """The optimum as it stands in summary.json."""
        return {
            "margin": 1.0 + self.optimum.margin,
            "cost": self.optimum.cost,
            "mismatch": self.optimum.mismatch,
            "iterations": self.optimum.iterations,
            "seconds": self.optimum.seconds,
            "events": [event_record(event) for event in self.optimum.run.events],
        }

    def extended(self, extension: float) -> Reference:
        """The reference, which goes on for `extension` s past its events."""
        curves = self.optimum.feedforward
        return extend(
            self.plant, self.optimum.run, before=extension, after=extension, feedforward=curves
        )


def published() -> tuple[HybridSystem, Reference]:
    """The plant without friction, and its published reference."""
    parameters = rrr_door.Parameters()
    plant = rrr_door.system(parameters)
    return plant, build(plant, parameters, Design(), rtol=1e-9, atol=1e-9)


def door_task(plant: ContactSystem, variant: str, wanted: Wanted, start: Array) -> Task:
    """The task of a variant from a start (8,)."""
    member("variant", variant, VARIANTS)
    second = (1.0, 1.0 + _SLACK)
    after = _SLIDING if variant == "friction" else CLOSED
    phases = [Phase(OPEN, CLOSE, second, wanted.intervals, 5), Phase(after, (), second, 12, 5)]
    conditions = [
        Condition("hinge angle at the end", lambda a, b, t: b[3] - wanted.angle, unit="rad"),
        Condition("hinge speed at the end", lambda a, b, t: b[7], unit="rad/s"),
    ]
    return Task(
        plant,
        phases,
        start=start,
        conditions=conditions,
        margins=Margins(force=wanted.force, impulse=wanted.impulse, approach=wanted.approach),
        torque=wanted.torque,
        rate_limits=dict.fromkeys(rrr_door.JOINTS, (-wanted.rate, wanted.rate)),
        spread=wanted.spread,
        widen=wanted.widen,
    )


def find(variant: str, wanted: Wanted, known: Reference, noise: Array | None = None) -> Found:
    """The optimum of a variant, from straight ways between the published states.

    known: the published reference. noise (4, 8): added to the states at both ends of its arcs.
    Raises what `optimise` raises.
    """
    friction = wanted.friction if variant == "friction" else 0.0
    parameters = rrr_door.Parameters(friction=friction)
    plant = contact_system(rrr_door.robot(parameters), rrr_door.contacts(parameters))
    nominal = known.nominal
    states = [nominal(0.0), nominal(1.0, side="left"), nominal(1.0), nominal.final_state]
    ends = np.array(states) + (np.zeros((4, 8)) if noise is None else noise)

    def guess(k: int, s: float) -> Array:
        return np.asarray((1.0 - s) * ends[2 * k] + s * ends[2 * k + 1])

    planned = door_task(plant, variant, wanted, nominal(0.0))
    return Found(variant, plant, optimise(planned, guess))
