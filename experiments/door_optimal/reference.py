"""References of the door by optimisation: both corners at once, with room for either to be first.

The task is that of [RS] (5.22)-(5.27): from the published start at rest, both corners on the door
at 1 s, and the door at the published angle, at rest, 1 s later; with friction the corners slide all
the way. With release both corners let go of the door 0.6 s after they touch it, as their forces
vanish together, the door swings on by itself to the published angle, 1 s later, and the arm goes
back to where it began. The optimum presses, in every order of touch and of release, as many times
as hard as the margins ask as it can, and goes on doing so for a spread of event times: the one
that its own tracking is expected to leave, or one that is given. With friction it is given, as the
orders of touch end apart there, and event times have no first order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hybridctl.experiments.door_optimal.comparison import Expected
from hybridctl.experiments.rrr_door.reference import CLOSED, OPEN, Design, build
from hybridctl.experiments.tuning.door import CUT
from hybridctl.robots import rrr_door

from hybridctl.app.report import encode_event
from hybridctl.base.checks import Array, check_member
from hybridctl.base.settings import Positive, Settings
from hybridctl.control.reference import Reference, extend
from hybridctl.hybrid.system import HybridSystem
from hybridctl.mechanics.system import ContactSystem, contact_system
from hybridctl.planning.optimisation import OptimalTrajectory, optimise, optimise_over_spread
from hybridctl.planning.task import Condition, Margins, Phase, Task

CLOSE = ("corner_1 closes", "corner_2 closes")
LET_GO = ("corner_1 opens", "corner_2 opens")
VARIANTS = ("plain", "friction", "release", "friction-release")
_SLIDING = ("slip+", "slip+")
_SLACK = 1e-9  # s, of durations that are given
_BACK = 1.0  # s, from the release to the end


@dataclass(frozen=True)
class Wanted(Settings):
    """What a reference is to keep.

    torque: N m. rate: of joints, rad/s. force, impulse, approach, unload: least values in every
    order of touch and release, N, N s, m/s and N/s, which the common margin multiplies. lift: least
    acceleration with which corners leave the door, m/s^2. spread: of event times, s. widen: weight
    of the margin against the integral of squared torques, (N m)^2 s. friction: coefficient of the
    variants with friction. angle: of the door at the end, rad. hold: how long corners stay on the
    door that leave it again, s. intervals: of collocation before the impact.
    """

    torque: Positive = 20.0
    rate: Positive = 4.0
    force: float = 1.0
    impulse: float = 0.1
    approach: float = 0.05
    unload: float = 5.0
    lift: float = 0.5
    spread: Positive = 0.05
    widen: float = 1000.0
    friction: Positive = 0.2
    angle: float = 0.33
    hold: Positive = 0.6
    intervals: int = 20


@dataclass(frozen=True, eq=False)
class VariantOptimum:
    """A variant with its plant and its optimum, feasible for `spread` s past its events."""

    variant: str
    plant: HybridSystem
    optimum: OptimalTrajectory
    spread: float

    def record(self) -> dict[str, Any]:
        """The optimum as it stands in summary.json."""
        return {
            "margin": 1.0 + self.optimum.margin,
            "spread": self.spread,
            "cost": self.optimum.cost,
            "mismatch": self.optimum.mismatch,
            "iterations": self.optimum.iterations,
            "seconds": self.optimum.seconds,
            "events": [encode_event(event) for event in self.optimum.run.events],
        }

    def extended(self, extension: float) -> Reference:
        """The reference, which goes on for `extension` s past its events."""
        curves = self.optimum.feedforward
        return extend(
            self.plant, self.optimum.run, before=extension, after=extension, feedforward=curves
        )


def published() -> tuple[HybridSystem, Reference]:
    """The plant without friction, and its published reference."""
    parameters = rrr_door.DoorParameters()
    plant = rrr_door.system(parameters)
    return plant, build(plant, parameters, Design(), rtol=1e-9, atol=1e-9)


def door_task(plant: ContactSystem, variant: str, wanted: Wanted, start: Array) -> Task:
    """The task of a variant from a start (8,)."""
    check_member("variant", variant, VARIANTS)
    on_the_door = _SLIDING if "friction" in variant else CLOSED
    phases = [_phase(OPEN, CLOSE, 1.0, wanted.intervals)]
    conditions = [
        Condition("hinge angle at the end", lambda a, b, t: b[3] - wanted.angle, unit="rad")
    ]
    if "release" in variant:
        phases += [_phase(on_the_door, LET_GO, wanted.hold), _phase(OPEN, (), _BACK)]
        conditions += [_comes_back(name, i) for i, name in enumerate(rrr_door.JOINTS[:3])]
        conditions += [_at_rest(name, i) for i, name in enumerate(rrr_door.JOINTS[:3])]
    else:
        phases.append(_phase(on_the_door, (), 1.0))
        conditions.append(_at_rest("hinge", 3))
    return Task(
        plant,
        phases,
        start=start,
        conditions=conditions,
        margins=Margins(
            force=wanted.force,
            impulse=wanted.impulse,
            approach=wanted.approach,
            unload=wanted.unload,
            lift=wanted.lift,
        ),
        torque=wanted.torque,
        rate_limits=dict.fromkeys(rrr_door.JOINTS, (-wanted.rate, wanted.rate)),
        spread=wanted.spread,
        widen=wanted.widen,
    )


def _phase(
    mode: tuple[str, str], ends: tuple[str, ...], length: float, intervals: int = 12
) -> Phase:
    return Phase(mode, ends, (length, length + _SLACK), intervals, 5)


def _comes_back(name: str, i: int) -> Condition:
    return Condition(f"{name} from where it began", lambda a, b, t: b[i] - a[i], unit="rad")


def _at_rest(name: str, i: int) -> Condition:
    return Condition(f"{name} speed at the end", lambda a, b, t: b[4 + i], unit="rad/s")


def guessed_ends(variant: str, wanted: Wanted, known: Reference) -> Array:
    """States at both ends of each arc, one after the other (2 n, 8), from the published reference.

    Where the arm goes back, it does so to the start.
    """
    nominal = known.nominal
    touch = nominal.events[0].time
    states = [nominal(0.0), nominal(touch, side="left"), nominal(touch)]
    if "release" not in variant:
        return np.array([*states, nominal.final_state])
    back = np.concatenate([nominal(0.0)[:3], [wanted.angle], np.zeros(4)])
    release = nominal(touch + wanted.hold)
    return np.array([*states, release, release, back])


def find(
    variant: str,
    wanted: Wanted,
    known: Reference,
    noise: Array | float = 0.0,
    expected: Expected | None = None,
) -> VariantOptimum:
    """The optimum of a variant, from straight ways between the ends of arcs.

    known: the published reference. noise: added to the `guessed_ends`. expected: what the spread
    of event times is derived from, instead of the one that is wanted. Raises what `optimise` and
    `optimise_over_spread` raise.
    """
    friction = wanted.friction if "friction" in variant else 0.0
    parameters = rrr_door.DoorParameters(friction=friction)
    plant = contact_system(rrr_door.robot(parameters), rrr_door.contacts(parameters))
    ends = guessed_ends(variant, wanted, known) + noise

    def guess(k: int, s: float) -> Array:
        return np.asarray((1.0 - s) * ends[2 * k] + s * ends[2 * k + 1])

    planned = door_task(plant, variant, wanted, known.nominal(0.0))
    if expected is None:
        return VariantOptimum(variant, plant, optimise(planned, guess), wanted.spread)
    found = optimise_over_spread(
        replace(planned, spread=0.0),
        guess,
        expected.feedback,
        expected.perturbations.covariance,
        input_covariance=expected.perturbations.input_covariance,
        spread=CUT,
    )
    return VariantOptimum(variant, plant, found.optimum, found.covered[0])
