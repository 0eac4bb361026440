"""Controllers of the walker, all from LQR gains of the same kind of weights, with one limit.

- `spreading`: reference spreading with gains that know the saltation matrix;
- `reset`: the same with the Jacobian of the reset alone;
- `value`: `spreading` at the phase of least value instead of the clock's;
- `cone`: `value`, with torques that keep forces and landings in the friction cones;
- `predictive`: planned on at each sample through the next touchdown, with `cone` where that fails;
- `phase`: the clock of the reference begins anew at each touchdown;
- `clock`: the reference runs on the clock, touchdown or not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from hybridctl.experiments.optimal.lqr import with_jumps
from hybridctl.experiments.walking.cone_filter import ConeFilter
from hybridctl.experiments.walking.gait import Gait, task
from hybridctl.experiments.walking.least_value import LeastValueTracking
from hybridctl.experiments.walking.phases import PhaseReset, ValueFunction
from hybridctl.robots import five_link

from hybridctl.base.checks import Array
from hybridctl.control.lqr.periodic import PeriodicLqr, periodic_lqr
from hybridctl.control.reference import Reference, extend
from hybridctl.control.spreading import ClockTracking, ReferenceSpreading
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.policy import Policy
from hybridctl.planning.horizon import Horizon
from hybridctl.planning.predictive_control import HybridMpc
from hybridctl.planning.task import Margins

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
ROOM = Margins(force=20.0, friction=0.9, impulse=0.3, release=0.02, clearance=0.01)  # predictive
BEND = (0.03, 1.55)  # of its knees, rad, which those of the gait keep well inside
PATIENCE = 0.03  # s, after which a foot that is due is no longer waited for, whatever the law
SAMPLE = 0.01  # s, at which the phase of least value is looked for
USED, PRESSED = 0.8, 80.0  # share of friction inside the cone, and force that is kept there, N
AHEAD = Horizon(early=0.09)  # predictive
_TILT = 0.1  # rad, a unit of slope that the predictive controller looks for
_RISE = np.eye(14)[1]  # up


@dataclass(frozen=True)
class Weights:
    """LQR weights: of coordinates in 1/rad^2, velocities in s^2/rad^2, torques in 1/(N m)^2.

    The way along the ground costs nothing.
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


def predictive(
    gait: Gait,
    lqr: PeriodicLqr,
    weights: Weights,
    fixed: Policy,
    torque: float,
    horizon: Horizon = AHEAD,
    compiled: bool = False,
) -> HybridMpc:
    """Predictive control with the weights of the LQR and its value function after a touchdown."""
    planned, uphill = (
        task(walker, gait.speed, torque=torque, margins=ROOM, bend=BEND)
        for walker in (gait.walker, gait.walker_with(tilt=_TILT))
    )
    back = np.linalg.inv(gait.symmetry.matrix)
    after = back.T @ lqr.period.values[1].start @ back
    both = weights.state, weights.input
    return HybridMpc(
        planned,
        gait.step,
        both,
        [after],
        fixed,
        horizon=horizon,
        rise=_RISE,
        disturbed=uphill,
        compiled=compiled,
    )


def standing(gait: Gait, torque: float) -> ConeFilter:
    """What keeps forces and landings inside the friction cones, with torques of at most so much."""
    landings: dict[ModeKey, ModeKey] = {
        five_link.LEFT_STANCE: five_link.RIGHT_STANCE,
        five_link.RIGHT_STANCE: five_link.LEFT_STANCE,
    }
    most = np.full(4, torque)
    return ConeFilter(gait.walker, most, landings, share=USED, least=PRESSED)


def design(gait: Gait, weights: Weights, jumps: str = "saltation") -> PeriodicLqr:
    """Feedback around the gait, by the jumps that it believes in: "saltation" or "reset"."""
    believed = with_jumps(gait.map, jumps)
    return periodic_lqr(believed, weights.state, weights.input, symmetry=gait.symmetry)


@dataclass(frozen=True, eq=False)
class Tracks:
    """A gait over many steps, extended past its touchdowns by its own inputs.

    extension: before and after each touchdown, s.
    """

    gait: Gait
    reference: Reference
    steps: int
    extension: float

    @staticmethod
    def of(gait: Gait, lqr: PeriodicLqr, steps: int, extension: float) -> Tracks:
        """The tracks for so many steps."""
        orbit, _ = lqr.repeated(steps + 1)
        reference = extend(
            gait.walker,
            orbit,
            before=extension,
            after=extension,
            feedforward=[gait.curve(k) for k in range(steps + 2)],
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
        """The controller of this name, with torques of at most `torque` N m.

        weights: of the LQR, by default the usual ones. compiled: see `HybridMpc`. delay: of plans
        of the predictive controller, s.
        """
        if name == "predictive":
            weights, fixed = weights or Weights(), self.policy("cone", lqr, torque)
            horizon = replace(AHEAD, delay=delay)
            return predictive(self.gait, lqr, weights, fixed, torque, horizon, compiled)
        _, gains = lqr.repeated(self.steps + 1)
        most = np.full(4, torque)
        limits = np.array([-most, most])
        if name == "clock":
            return ClockTracking(self.reference, gains, limits=limits)
        if name == "phase":
            return PhaseReset(self.reference, gains, limits, PATIENCE)
        if name in ("value", "cone"):
            period = self.gait.period
            values = ValueFunction.of(lqr, period, self.extension)
            return LeastValueTracking(
                self.reference,
                gains,
                lambda k, t: values.at(k, t - k * period),
                limits=limits,
                sample=SAMPLE,
                patience=PATIENCE,
                correction=standing(self.gait, torque) if name == "cone" else None,
            )
        return ReferenceSpreading(self.reference, gains, limits=limits, patience=PATIENCE)
