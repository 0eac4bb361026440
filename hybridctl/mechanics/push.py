r"""A force on a body for a while, as one more input of the system.

A wrench of size s along a fixed direction w (force and moment) acts at a point of a body, so that

.. math:: M \dot v + h = S u + s\, J_p(q)^T w + J^T \lambda,

with :math:`J_p` the Jacobian of the body at that point. It begins and ends at events without
guards, between which s is constant. What the derivatives of a mode say of motors holds for s, too,
and by the state they gain :math:`s\, D_q (J_p^T w)`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from hybridctl.base.checks import Array, check_instance, check_number, check_sequence, check_vector
from hybridctl.base.errors import InputError
from hybridctl.hybrid.guards import GuardJacobian
from hybridctl.hybrid.laws import DifferentiableLaw, HeldInput, InputLaw, LimitedLaw
from hybridctl.hybrid.mapped import Change, MappedPoint
from hybridctl.hybrid.model import FieldJacobian, JumpPoint, ResetBorder
from hybridctl.hybrid.policy import History, Policy, ask_next_change
from hybridctl.hybrid.trajectory import Event
from hybridctl.mechanics.modes.dynamics import ContactDynamics
from hybridctl.mechanics.multibody.joints import skew
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.terms.contact_terms import OtherTerms, Terms, TermValues

_ROUNDING = 4.0  # spacings of floats between times that are meant to be the same


@dataclass(frozen=True, eq=False)
class Wrench:
    """A force on a body from time `start` until `end`, in s, given to `simulate`.

    body: the frame that is pushed. force (3,): N, in world axes, whatever the body does.
    at (3,): the point where it acts, in m and in that frame, moving with it. moment (3,): N m, in
    world axes, besides the force.

    Raises `InputError` for one that is zero, or does not end after its start.
    """

    body: str
    force: Any
    start: float
    end: float
    at: Any = (0.0, 0.0, 0.0)
    moment: Any = (0.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        check_instance("body", self.body, str)
        check_number("start", self.start)
        check_number("end", self.end, above=self.start)
        for name in ("force", "at", "moment"):
            object.__setattr__(self, name, check_vector(name, getattr(self, name), 3))
        if not self.size > 0.0:
            what = f"force and moment of the wrench on {self.body!r}"
            raise InputError(f"{what} must not both be zero, got none")

    @property
    def size(self) -> float:
        """The norm of the force in N or, where there is none, of the moment in N m."""
        return float(np.linalg.norm(self.force) or np.linalg.norm(self.moment))

    @property
    def label(self) -> str:
        """The name of its size as an input."""
        return f"force on {self.body} [N]" if self.force.any() else f"moment on {self.body} [N m]"


class _Acting:
    """What a wrench of size one does to a robot."""

    def __init__(self, robot: Robot, wrench: Wrench) -> None:
        robot.body(wrench.body)  # refuses one that is fixed to the world
        joint, rotation, position = robot.frame(wrench.body)
        self._robot, self._joint = robot, joint
        self._place = np.append(position + rotation @ wrench.at, 1.0)
        self._supporting = robot.supporting(joint)
        self._force, self._moment = wrench.force / wrench.size, wrench.moment / wrench.size

    def force(self, q: Array) -> Array:
        """The generalized forces J_p' w (nv,)."""
        jacobian, _, spatial = self._at(q)
        return np.asarray(jacobian.T @ spatial)

    def derivative(self, q: Array) -> Array:
        """The derivative D_q (J_p' w), (nv, nv).

        Pinocchio's derivatives hold a wrench fixed in its body, with which it turns by J x* w; this
        one keeps its axes, and its moment about the origin changes as the point moves.
        """
        jacobian, place, spatial = self._at(q)
        in_body = self._robot.impulse_derivative(
            q, np.zeros(self._robot.nv), {self._joint: spatial}
        )
        linear, angular = jacobian[:3], jacobian[3:]
        moved = linear - skew(place) @ angular
        f, m = skew(spatial[:3]), skew(spatial[3:])
        turning = np.concatenate((f @ angular, -f @ moved + m @ angular + f @ linear))
        return np.asarray(jacobian.T @ turning - in_body)

    def _at(self, q: Array) -> tuple[Array, Array, Array]:
        """The Jacobian of the body (6, nv) at the origin, the point, and the wrench there."""
        motion = self._robot.motion(q, np.zeros(self._robot.nv), [self._joint])
        place = (motion.poses[0] @ self._place)[:3]
        moment = np.cross(place, self._force) + self._moment
        jacobian = self._robot.reduce_columns(motion.jacobian * self._supporting)
        return jacobian, place, np.concatenate((self._force, moment))


class Push(Change):
    """A change of a mode: sizes of wrenches as inputs, in place of all generalized forces."""

    def __init__(self, robot: Robot, wrenches: Sequence[Wrench]) -> None:
        self._nq, self._nu, self._nv = robot.nq, robot.nu, robot.nv
        self._acting = tuple(_Acting(robot, wrench) for wrench in wrenches)

    def nu(self, inner: int) -> int:
        """The number of motors' inputs, and one for each wrench."""
        return self._nu + len(self._acting)

    def input(self, u: Array, x: Array) -> Array:
        """Motors and generalized forces (nu + nv,)."""
        q, pushed = x[: self._nq], np.zeros(self._nv)
        for one, size in zip(self._acting, u[self._nu :].tolist(), strict=True):
            if size:
                pushed += size * one.force(q)
        return np.concatenate((u[: self._nu], pushed))

    def field_jacobian(self, point: MappedPoint) -> FieldJacobian:
        """Derivatives by the state and by motors and sizes."""
        return FieldJacobian(*self._chained(*super().field_jacobian(point), point.x, point.u))

    def free_input(self, point: MappedPoint) -> Array:
        """What motors and sizes do where contacts give way (2 nv, nu + k)."""
        return self._by(super().free_input(point), point.x)

    def guard_slopes(
        self, inner: GuardJacobian, point: MappedPoint, rows: int | slice
    ) -> GuardJacobian:
        """Derivatives by the state and by motors and sizes."""
        return self._of(inner, point.x, point.u)

    def reset_jacobian(self, inner: GuardJacobian, at: JumpPoint) -> GuardJacobian:
        """Derivatives by the state and by motors and sizes."""
        return self._of(inner, at.x, at.u)

    def border(self, inner: ResetBorder, at: JumpPoint) -> ResetBorder:
        """The border by the state and by motors and sizes, with its distance."""
        mapped = super().border(inner, at)
        return mapped._replace(distance=self._of(inner.distance, at.x, at.u))

    def _of(self, inner: GuardJacobian, x: Array, u: Array) -> GuardJacobian:
        return GuardJacobian(inner.time, *self._chained(inner.state, inner.input, x, u))

    def _chained(self, state: Array, by: Array, x: Array, u: Array) -> tuple[Array, Array]:
        """Derivatives (..., 2 nv) and (..., nu + k), given those by the inner input."""
        q, forces, state = x[: self._nq], by[..., self._nu :], np.array(state)
        for one, size in zip(self._acting, u[self._nu :].tolist(), strict=True):
            if size:
                state[..., : self._nv] += size * forces @ one.derivative(q)
        return state, self._by(by, x)

    def _by(self, by: Array, x: Array) -> Array:
        """Derivatives (..., nu + k) by motors and sizes, given those by the inner input."""
        forces = by[..., self._nu :]
        columns = [forces @ one.force(x[: self._nq]) for one in self._acting]
        return np.concatenate((by[..., : self._nu], np.stack(columns, axis=-1)), axis=-1)


@dataclass(frozen=True, eq=False)
class Pushing:
    """A policy beside which wrenches act: it sees events with the inputs of its own alone."""

    policy: Policy
    wrenches: tuple[Wrench, ...]
    _seen: dict[Event, Event] = field(default_factory=dict, repr=False)

    def law(self, history: History) -> InputLaw:
        """The law of the policy, and the sizes of the wrenches after it."""
        law, t = self.policy.law(self._own(history)), history.time
        late = _ROUNDING * math.ulp(t)
        sizes = np.array(
            [w.size if w.start - late <= t < w.end - late else 0.0 for w in self.wrenches]
        )
        if isinstance(law, HeldInput):
            demand = None if law.demand is None else np.concatenate((law.demand, sizes))
            return HeldInput(np.concatenate((law.value, sizes)), demand)
        if isinstance(law, DifferentiableLaw):
            none = np.zeros(len(sizes))
            return DifferentiableLaw(
                _with_sizes(law.function, sizes),
                partial(_above, law.jacobian, len(sizes)),
                partial(_beside, law.rate, none),
            )
        return _with_sizes(law, sizes)

    def next_change(self, history: History) -> float:
        """The time when the policy wants to be asked again, or a wrench begins or ends, s."""
        t, change = history.time, ask_next_change(self.policy, self._own(history))
        late = _ROUNDING * math.ulp(t)
        ahead = [e for w in self.wrenches for e in (w.start, w.end) if e > t + late]
        edge = min(ahead, default=math.inf)
        return change if change <= edge + _ROUNDING * math.ulp(edge) else edge

    def _own(self, history: History) -> History:
        """The history as the policy knows it."""
        for event in history.events:
            if event not in self._seen:
                nu = len(event.input_before) - len(self.wrenches)
                inputs = ("input_before", "input_after", "input_rate")
                own = {name: getattr(event, name)[:nu] for name in inputs}
                self._seen[event] = replace(event, **own)
        return replace(history, events=tuple(map(self._seen.__getitem__, history.events)))


def listed_wrenches(wrench: object) -> tuple[Wrench, ...]:
    """One wrench or several; `InputError` for anything else."""
    given = [wrench] if isinstance(wrench, Wrench) else check_sequence("wrench", wrench)
    for one in given:
        check_instance("wrench", one, Wrench)
    return tuple(given)


def driven(dynamics: ContactDynamics) -> ContactDynamics:
    """The dynamics whose inputs are those of the motors and then all generalized forces."""
    every, robot = copy(dynamics), copy(dynamics.robot)
    robot.actuation = np.hstack((robot.actuation, np.eye(robot.nv)))
    robot.nu += robot.nv
    every.robot, every.terms = robot, _Driven(dynamics.terms, dynamics.robot.nu)
    return every


class _Driven(OtherTerms):
    """The terms of a robot whose inputs are its nu motors and then all generalized forces."""

    def __init__(self, own: Terms, nu: int) -> None:
        super().__init__(own)
        self._nu = nu

    def values(self, q: Array, v: Array, u: Array) -> TermValues:
        values = self.own.values(q, v, u[: self._nu])
        return values._replace(drive=values.drive + u[self._nu :])


class _LimitedBeside(LimitedLaw):
    """A limited law with the sizes (k,) of wrenches after its input, which have no limits."""

    def __init__(self, law: LimitedLaw, sizes: Array) -> None:
        self._law, self._sizes = law, sizes
        free = np.full((2, len(sizes)), [[-np.inf], [np.inf]])
        self.limits = None if law.limits is None else np.hstack([law.limits, free])

    def __call__(self, t: float, x: Array) -> Array:
        """The input (nu + k,)."""
        return np.concatenate((self._law(t, x), self._sizes))

    def demand(self, t: float, x: Array) -> Array:
        """Return the input (nu + k,) before it is cut."""
        return np.concatenate((self._law.demand(t, x), self._sizes))


def _with_sizes(law: InputLaw, sizes: Array) -> InputLaw:
    """Return a law with the sizes (k,) of wrenches after its input."""
    if isinstance(law, LimitedLaw):
        return _LimitedBeside(law, sizes)
    return partial(_beside, law, sizes)


def _beside(law: InputLaw, more: Array, t: float, x: Array) -> Array:
    return np.concatenate((law(t, x), more))


def _above(jacobian: InputLaw, more: int, t: float, x: Array) -> Array:
    found = jacobian(t, x)
    return np.concatenate((found, np.zeros((more, found.shape[1]))))
