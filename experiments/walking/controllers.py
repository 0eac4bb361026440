"""Controllers of the walker, all from LQR gains of the same kind of weights, with one limit.

- `spreading`: reference spreading with gains that know the saltation matrix;
- `reset`: the same with the Jacobian of the reset alone;
- `cone`: `spreading`, whose torques are moved as little as keeps the foot inside its friction cone
  and the motors inside their limits: a quadratic programme at every instant, on the model's forces,
  which are affine in the torques;
- `phase`: the clock of the reference begins anew at each touchdown;
- `clock`: the reference runs on the clock, touchdown or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import casadi as ca
import numpy as np
from hybridctl.experiments.optimal.lqr import with_jumps
from hybridctl.experiments.walking.gait import Gait
from scipy.optimize import nnls

from hybridctl.checks import Array
from hybridctl.control.gains import GainSchedule
from hybridctl.control.laws import tracking_law
from hybridctl.control.lqr.periodic import PeriodicLqr, periodic_lqr
from hybridctl.control.reference import Reference, extend
from hybridctl.control.spreading import ClockTracking, ReferenceSpreading
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.policy import History, Policy
from hybridctl.mechanics.mode_expressions import mode_field
from hybridctl.mechanics.phase import contact_modes

NAMES = ("spreading", "reset", "cone", "phase", "clock")
_SHARE = 0.95  # of friction that the cone-aware design uses
_LEAST = 5.0  # N: normal force that it keeps
_INFEASIBLE = 1e-12  # of the residual of the dual problem, which is 1 where nothing is missed


@dataclass(frozen=True)
class Weights:
    """Of the LQR: of coordinates in 1/rad^2, velocities in s^2/rad^2, torques in 1/(N m)^2.

    The way along the ground costs nothing.
    """

    coordinates: float = 100.0
    velocities: float = 10.0
    torques: float = 0.01

    @property
    def state(self) -> Array:
        """Q (14, 14)."""
        return np.diag([0.0, *[self.coordinates] * 6, *[self.velocities] * 7])

    @property
    def input(self) -> Array:
        """R (4, 4)."""
        return self.torques * np.eye(4)


def design(gait: Gait, weights: Weights, jumps: str = "saltation") -> PeriodicLqr:
    """Feedback around the gait, by the jumps that it believes in: "saltation" or "reset"."""
    believed = with_jumps(gait.map, jumps)
    return periodic_lqr(believed, weights.state, weights.input, symmetry=gait.symmetry)


@dataclass(frozen=True, eq=False)
class Tracks:
    """A gait over many steps, extended past its touchdowns by its own inputs."""

    gait: Gait
    reference: Reference
    steps: int

    @staticmethod
    def of(gait: Gait, lqr: PeriodicLqr, steps: int, extension: float) -> Tracks:
        """For so many steps; `extension`: before and after each touchdown, s."""
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
        return Tracks(gait, reference, steps)

    def policy(self, name: str, lqr: PeriodicLqr, torque: float) -> Policy:
        """One of the controllers, with torques of at most `torque` N m."""
        _, gains = lqr.repeated(self.steps + 1)
        limits = np.full(4, torque)
        if name == "clock":
            return ClockTracking(self.reference, gains, limits=limits)
        if name == "phase":
            return PhaseReset(self.reference, gains, np.array([-limits, limits]))
        spreading = ReferenceSpreading(self.reference, gains, limits=limits)
        return InsideCone(spreading, ConeModel(self.gait), torque) if name == "cone" else spreading


@dataclass(frozen=True, eq=False)
class PhaseReset:
    """The reference of the present step, begun anew when the foot touched down."""

    reference: Reference
    gains: GainSchedule
    limits: Array

    def law(self, history: History) -> InputLaw:
        """Feedforward and feedback at the time that has gone by since the touchdown."""
        touched = [event for event in history.events if event.guards]
        k = min(len(touched), len(self.reference.arcs) - 1)
        late = touched[-1].time - self.reference.events[k - 1].time if k else 0.0
        law = tracking_law(self.reference.arcs[k], self.gains.arcs[k], self.limits)
        return lambda t, x: law(t - late, x)


class ConeModel:
    """What torques do to the force on the standing foot: a u + b >= 0 (3 rows), in N."""

    def __init__(self, gait: Gait) -> None:
        self._gait = gait
        self._functions: dict[ModeKey, Any] = {}

    def __call__(self, key: ModeKey, x: Array) -> tuple[Array, Array]:
        """a (3, 4), b (3,): normal force above the least, and both sides of the cone."""
        if key not in self._functions:
            self._functions[key] = self._made(key)
        a, b = self._functions[key](x)
        return np.asarray(a), np.asarray(b).ravel()

    def _made(self, key: ModeKey) -> Any:
        walker, modes = self._gait.walker, contact_modes(key)
        mode = mode_field(
            walker.robot, walker.contacts, modes, stabilization=walker.dynamics.stabilization
        )
        foot = modes.index("stick")
        normal, along = mode.forces[foot], mode.forces[len(modes) + foot]
        limit = _SHARE * self._gait.friction * normal
        rows = ca.vertcat(normal - _LEAST, limit - along, limit + along)
        at_rest = ca.substitute(rows, mode.u, ca.SX.zeros(mode.u.numel()))
        return ca.Function("cone", [mode.x], [ca.densify(ca.jacobian(rows, mode.u)), at_rest])


@dataclass(frozen=True, eq=False)
class InsideCone:
    """A policy whose torques are moved into the friction cone and the limits, no further."""

    policy: ReferenceSpreading
    model: ConeModel
    torque: float

    def law(self, history: History) -> InputLaw:
        """The law of the policy, projected."""
        law, key = self.policy.law(history), history.mode
        if "stick" not in contact_modes(key):
            return law
        return lambda t, x: nearest(law(t, x), *self.model(key, x), self.torque)

    def next_change(self, history: History) -> float:
        """When the policy wants to be asked again, s."""
        return self.policy.next_change(history)


def nearest(wanted: Array, a: Array, b: Array, limit: float) -> Array:
    """The u nearest to `wanted` (n,) with a u + b >= 0 and |u| <= limit; cut where there is none.

    Least distance programming by nonnegative least squares: C. L. Lawson and R. J. Hanson, *Solving
    Least Squares Problems* (1974), chapter 23.
    """
    if (a @ wanted + b >= 0.0).all() and (np.abs(wanted) <= limit).all():
        return wanted
    n = len(wanted)
    rows = np.vstack([a, np.eye(n), -np.eye(n)])
    missing = -(rows @ wanted + np.concatenate((b, np.full(2 * n, limit))))
    dual, unit = np.vstack([rows.T, missing]), np.eye(n + 1)[n]
    try:
        residual = dual @ nnls(dual, unit)[0] - unit
    except RuntimeError:  # no convergence
        return np.clip(wanted, -limit, limit)
    if -residual[n] < _INFEASIBLE:
        return np.clip(wanted, -limit, limit)
    return np.asarray(np.clip(wanted - residual[:n] / residual[n], -limit, limit))
