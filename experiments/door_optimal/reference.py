"""Optimised references of the door press in every order in which the corners may touch.

The task is that of [RS] (5.22)-(5.27): from the published start at rest, both corners on the door
at 1 s, and the door at rest at the published angle 1 s later. With friction the corners slide all
the way. With release both corners let go of the door 0.6 s after they touch it, as their forces
vanish together; the door swings on by itself to the published angle, 1 s later, and the arm goes
back to its start. The optimum maximises a common factor of all margins, in every order of touch and
of release. It keeps the margins for a spread of event times: that of its own expected tracking, or
a given one. With friction the spread is given: the orders of touch end apart there, and event times
have no first-order map.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hybridctl.experiments.rrr_door.reference import CLOSED, OPEN, Design, build
from hybridctl.experiments.rrr_door.runner import CUT, Perturbations, SpringGains
from hybridctl.robots import rrr_door

from hybridctl import HybridSystem, Reference, contact_system, extend
from hybridctl.app.report import encode_event
from hybridctl.base.checks import Array, check_member
from hybridctl.base.settings import Positive, Settings
from hybridctl.mechanics.system import ContactSystem
from hybridctl.planning import (
    Condition,
    Margins,
    OptimalTrajectory,
    Phase,
    Task,
    optimise,
    optimise_over_spread,
)
from hybridctl.sensitivity import Linearization

CLOSE = ("corner_1 closes", "corner_2 closes")
LET_GO = ("corner_1 opens", "corner_2 opens")
VARIANTS = ("plain", "friction", "release", "friction-release")
_SLIDING = ("slip+", "slip+")
_DURATION_SLACK = 1e-9
"""Freedom of a duration that is given, s: bounds of a duration may not be equal."""
_RETURN_TIME = 1.0
"""Time from the release to the end, s."""


@dataclass(frozen=True)
class Wanted(Settings):
    """The limits and margins of a reference.

    Attributes:
        torque: Greatest torque, N m.
        rate: Greatest rate of a joint, rad/s.
        force: Least force of a closed contact, N. This and the next three hold in every order of
            touch and release, times the common margin.
        impulse: Least impulse, N s.
        approach: Least rate at which a corner meets the door, m/s.
        unload: Least rate at which a force falls to zero at the release, N/s.
        lift: Least acceleration with which corners leave the door, m/s^2.
        spread: Spread of event times, s.
        widen: Weight of the margin against the integral of squared torques, (N m)^2 s.
        friction: Coefficient of the variants with friction.
        angle: Angle of the door at the end, rad.
        hold: Time from touch to release, s.
        intervals: Intervals of collocation before the impact.
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
    """A variant of the reference that was found.

    Attributes:
        variant: Its name, of `VARIANTS`.
        plant: Its plant.
        optimum: Its optimum.
        spread: Time past its events for which arcs are feasible, s.
    """

    variant: str
    plant: HybridSystem
    optimum: OptimalTrajectory
    spread: float

    def record(self) -> dict[str, Any]:
        """Return the optimum as it stands in summary.json."""
        return {
            "margin": 1.0 + self.optimum.margin,
            "spread": self.spread,
            "cost": self.optimum.cost,
            "mismatch": self.optimum.mismatch,
            "iterations": self.optimum.iterations,
            "seconds": self.optimum.seconds,
            "events": [encode_event(event) for event in self.optimum.run.events],
        }

    def extend_reference(self, extension: float) -> Reference:
        """Return the reference, extended by `extension` s before and after its events."""
        curves = self.optimum.feedforward
        return extend(
            self.plant, self.optimum.run, before=extension, after=extension, feedforward=curves
        )


@dataclass(frozen=True, eq=False)
class ExpectedTracking:
    """The tracking that is expected of a reference before its gains are tuned.

    Attributes:
        perturbations: Perturbations of the members.
        start: Frequency (rad/s) and damping ratio before the impact, then after it.
    """

    perturbations: Perturbations
    start: tuple[float, float, float, float]

    def close_loop(self, free: Linearization) -> Linearization:
        """Return a linearization under the expected gains."""
        whole = extend(free.system, free.trajectory, before=0.0, after=0.0)
        structure = SpringGains.build(free.system, whole)
        return free.closed_loop(structure.schedule(np.log(self.start)).arcs)


def build_published() -> tuple[HybridSystem, Reference]:
    """Return the plant without friction, and its published reference."""
    parameters = rrr_door.DoorParameters()
    plant = rrr_door.system(parameters)
    return plant, build(plant, parameters, Design(), rtol=1e-9, atol=1e-9)


def make_task(plant: ContactSystem, variant: str, wanted: Wanted, start: Array) -> Task:
    """Return the optimisation task of a variant.

    Args:
        plant: Plant of the variant.
        variant: Name of the variant.
        wanted: Limits and margins.
        start: State at the start (8,), rad and rad/s.
    """
    check_member("variant", variant, VARIANTS)
    closed = _SLIDING if "friction" in variant else CLOSED
    phases = [_make_phase(OPEN, CLOSE, 1.0, wanted.intervals)]
    conditions = [
        Condition("hinge angle at the end", lambda a, b, t: b[3] - wanted.angle, unit="rad")
    ]
    if "release" in variant:
        arm = list(enumerate(rrr_door.JOINTS[:3]))
        phases += [_make_phase(closed, LET_GO, wanted.hold), _make_phase(OPEN, (), _RETURN_TIME)]
        conditions += [_require_return(name, i) for i, name in arm]
        conditions += [_require_rest(name, i) for i, name in arm]
    else:
        phases.append(_make_phase(closed, (), 1.0))
        conditions.append(_require_rest("hinge", 3))
    names = ("force", "impulse", "approach", "unload", "lift")
    return Task(
        plant,
        phases,
        start=start,
        conditions=conditions,
        margins=Margins(**{name: getattr(wanted, name) for name in names}),
        torque=wanted.torque,
        rate_limits=dict.fromkeys(rrr_door.JOINTS, (-wanted.rate, wanted.rate)),
        spread=wanted.spread,
        widen=wanted.widen,
    )


def _make_phase(
    mode: tuple[str, str], ends: tuple[str, ...], length: float, intervals: int = 12
) -> Phase:
    return Phase(mode, ends, (length, length + _DURATION_SLACK), intervals, 5)


def _require_return(name: str, i: int) -> Condition:
    return Condition(f"{name} from where it began", lambda a, b, t: b[i] - a[i], unit="rad")


def _require_rest(name: str, i: int) -> Condition:
    return Condition(f"{name} speed at the end", lambda a, b, t: b[4 + i], unit="rad/s")


def guess_arc_ends(variant: str, wanted: Wanted, known: Reference) -> Array:
    """Return states at both ends of each arc, one after the other (2 n, 8), for a guess.

    They are those of the published reference. With a release the arm goes back to the start.

    Args:
        variant: Name of the variant.
        wanted: Angle of the door at the end, and time from touch to release.
        known: Published reference.
    """
    nominal = known.nominal
    touch = nominal.events[0].time
    states = [nominal(0.0), nominal(touch, side="left"), nominal(touch)]
    if "release" not in variant:
        return np.array([*states, nominal.final_state])
    back = np.concatenate([nominal(0.0)[:3], [wanted.angle], np.zeros(4)])
    release = nominal(touch + wanted.hold)
    return np.array([*states, release, release, back])


def find_optimum(
    variant: str,
    wanted: Wanted,
    known: Reference,
    noise: Array | float = 0.0,
    expected: ExpectedTracking | None = None,
) -> VariantOptimum:
    """Return the optimum of a variant, begun with straight lines between the ends of arcs.

    Args:
        variant: Name of the variant.
        wanted: Limits and margins.
        known: Published reference.
        noise: Added to the ends of `guess_arc_ends`.
        expected: Tracking whose spread of event times is covered; None for `wanted.spread`.
    """
    friction = wanted.friction if "friction" in variant else 0.0
    parameters = rrr_door.DoorParameters(friction=friction)
    plant = contact_system(rrr_door.robot(parameters), rrr_door.contacts(parameters))
    ends = guess_arc_ends(variant, wanted, known) + noise

    def guess(k: int, s: float) -> Array:
        return np.asarray((1.0 - s) * ends[2 * k] + s * ends[2 * k + 1])

    planned = make_task(plant, variant, wanted, known.nominal(0.0))
    if expected is None:
        return VariantOptimum(variant, plant, optimise(planned, guess), wanted.spread)
    found = optimise_over_spread(
        replace(planned, spread=0.0),
        guess,
        expected.close_loop,
        expected.perturbations.covariance,
        input_covariance=expected.perturbations.input_covariance,
        spread=CUT,
    )
    return VariantOptimum(variant, plant, found.optimum, found.covered[0])
