"""The walker's controllers differ in their law alone: LQR gains and torque limits are of one kind.

- `spreading`: reference spreading with gains by the saltation matrix;
- `reset`: reference spreading with gains by the Jacobian of the reset alone;
- `value`: `spreading` at the phase of least value instead of the clock's;
- `cone`: `value`, with torques that keep forces and landings in the friction cones;
- `predictive`: a plan through the next touchdown at each sample, or `cone` where that fails;
- `phase`: the clock of the reference begins anew at each touchdown;
- `clock`: the reference runs on the clock, whatever touches down.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from hybridctl.experiments.optimal.lqr import replace_jumps
from hybridctl.experiments.walking.cone_filter import ConeFilter
from hybridctl.experiments.walking.gait import Gait, make_task
from hybridctl.experiments.walking.phase_laws import LeastValueTracking, ValueFunction
from hybridctl.robots import five_link

from hybridctl import Reference, ReferenceSpreading, extend
from hybridctl.base.checks import Array
from hybridctl.control import ClockTracking, PhaseReset, periodic_lqr
from hybridctl.control.lqr.periodic import PeriodicLqr
from hybridctl.hybrid import Policy
from hybridctl.hybrid.mode import ModeKey
from hybridctl.planning import Horizon, HybridMpc, Margins

TITLES = {
    "spreading": "reference spreading",
    "reset": "reference spreading, reset's Jacobian",
    "value": "at the phase of least value",
    "cone": "least value, inside the cone",
    "predictive": "predictive",
    "phase": "clock from each touchdown",
    "clock": "clock",
}
NAMES = tuple(TITLES)
ROOM = Margins(force=20.0, friction=0.9, impulse=0.3, release=0.02, clearance=0.01)
"""Margins of the predictive controller."""
BEND = (0.03, 1.55)
"""Bounds of the knees of the predictive controller, rad; the gait keeps well inside."""
PATIENCE = 0.03
"""Time for which an overdue foot is waited for, s, by all laws."""
SAMPLE = 0.01
"""Time between two choices of the phase of least value, s."""
USED, PRESSED = 0.8, 80.0
"""Share of friction that is used inside the cone, and normal force that is kept there, N."""
AHEAD = Horizon(early=0.09)
"""Horizon of the predictive controller."""
EXTENSION = 0.2
"""Extension of the reference before and after touchdowns, s."""
_TILT = 0.1
"""Slope that is a unit of the disturbance which the predictive controller estimates, rad."""
_RISE = np.eye(14)[1]
"""Direction of the state that is up."""


@dataclass(frozen=True)
class Weights:
    """LQR weights; the distance walked costs nothing.

    Attributes:
        coordinates: Weight of coordinates, 1/rad^2.
        velocities: Weight of velocities, s^2/rad^2.
        torques: Weight of torques, 1/(N m)^2.
    """

    coordinates: float = 100.0
    velocities: float = 10.0
    torques: float = 0.01

    @property
    def state(self) -> Array:
        """The weights Q (14, 14) of the state."""
        return np.diag([0.0, *[self.coordinates] * 6, *[self.velocities] * 7])

    @property
    def input(self) -> Array:
        """The weights R (4, 4) of the input."""
        return self.torques * np.eye(4)


def make_predictive(
    gait: Gait,
    lqr: PeriodicLqr,
    weights: Weights,
    fixed: Policy,
    torque: float,
    horizon: Horizon = AHEAD,
    compiled: bool = False,
) -> HybridMpc:
    """Return predictive control with the weights of the LQR and its value after a touchdown.

    Args:
        gait: Gait that is planned around.
        lqr: Feedback whose value function ends the horizon.
        weights: Weights of the cost.
        fixed: Law that acts where there is no plan.
        torque: Greatest torque, N m.
        horizon: Horizon of the plans.
        compiled: Whether functions are compiled to machine code.
    """
    planned, uphill = (
        make_task(walker, gait.speed, torque=torque, margins=ROOM, bend=BEND)
        for walker in (gait.walker, gait.walker_with(tilt=_TILT))
    )
    back = np.linalg.inv(gait.symmetry.matrix)
    after = back.T @ lqr.period.values[1].start @ back
    given = (planned, gait.step, (weights.state, weights.input), [after], fixed)
    return HybridMpc(*given, horizon=horizon, rise=_RISE, disturbed=uphill, compiled=compiled)


def make_cone_filter(gait: Gait, torque: float) -> ConeFilter:
    """Return the filter of torques up to a greatest one, N m, by friction cones of the gait."""
    landings: dict[ModeKey, ModeKey] = {
        five_link.LEFT_STANCE: five_link.RIGHT_STANCE,
        five_link.RIGHT_STANCE: five_link.LEFT_STANCE,
    }
    limits = np.full(4, torque)
    return ConeFilter(gait.walker, limits, landings, share=USED, least=PRESSED)


def design(gait: Gait, weights: Weights, jumps: str = "saltation") -> PeriodicLqr:
    """Return the LQR around the gait.

    Args:
        gait: The gait.
        weights: Weights of the cost.
        jumps: Derivative of a touchdown in the design: "saltation" or "reset".
    """
    assumed = replace_jumps(gait.map, jumps)
    return periodic_lqr(assumed, weights.state, weights.input, symmetry=gait.symmetry)


@dataclass(frozen=True, eq=False)
class Tracks:
    """A gait over many steps, extended past its touchdowns.

    Attributes:
        gait: The gait.
        reference: Its reference over the steps.
        steps: Number of the steps.
        extension: Extension before and after each touchdown, s.
    """

    gait: Gait
    reference: Reference
    steps: int
    extension: float

    @staticmethod
    def of(
        gait: Gait,
        lqr: PeriodicLqr,
        steps: int,
        extension: float = EXTENSION,
        *,
        is_held: bool = False,
    ) -> Tracks:
        """Return the tracks over a number of steps.

        Args:
            gait: The gait.
            lqr: Any feedback around it.
            steps: Number of the steps.
            extension: Extension before and after each touchdown, s.
            is_held: Whether extended arcs hold the inputs at touchdowns. Otherwise the polynomials
                of the gait go on, which leave all bounds where the extension is a large part of
                their interval.
        """
        orbit, _ = lqr.repeated(steps + 1)
        reference = extend(
            gait.walker,
            orbit,
            before=extension,
            after=extension,
            feedforward=None if is_held else [gait.curve(k) for k in range(steps + 2)],
            rtol=1e-8,
            atol=1e-8,
        )
        return Tracks(gait, reference, steps, extension)

    def policy(
        self,
        name: str,
        lqr: PeriodicLqr,
        torque: float,
        weights: Weights | None = None,
        compiled: bool = False,
        delay: float = 0.0,
    ) -> Policy:
        """Return the controller of a name.

        Args:
            name: Name of the controller, of `NAMES`. "reset" is "spreading" with another `lqr`.
            lqr: Feedback around the gait.
            torque: Greatest torque, N m.
            weights: Weights of the LQR, for "predictive"; None for the default ones.
            compiled: Whether functions of "predictive" are compiled to machine code.
            delay: Delay of plans of "predictive", s.
        """
        if name == "predictive":
            weights, fixed = weights or Weights(), self.policy("cone", lqr, torque)
            horizon = replace(AHEAD, delay=delay)
            return make_predictive(self.gait, lqr, weights, fixed, torque, horizon, compiled)
        _, gains = lqr.repeated(self.steps + 1)
        most = np.full(4, torque)
        limits = np.array([-most, most])
        if name == "clock":
            return ClockTracking(self.reference, gains, limits=limits)
        if name == "phase":
            return PhaseReset(self.reference, gains, limits=limits, patience=PATIENCE)
        if name in ("value", "cone"):
            period = self.gait.period
            values = ValueFunction.of(lqr, period, self.extension)
            return LeastValueTracking(
                self.reference,
                gains,
                lambda k, t: values.evaluate(k, t - k * period),
                limits=limits,
                sample=SAMPLE,
                patience=PATIENCE,
                correction=make_cone_filter(self.gait, torque) if name == "cone" else None,
            )
        return ReferenceSpreading(self.reference, gains, limits=limits, patience=PATIENCE)
