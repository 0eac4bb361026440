r"""A force on a body for a while, as one more input of the system.

A wrench of size s along a fixed direction w (force and moment) acts at a point of a body, so that

.. math:: M \dot v + h = S u + s\, J_p(q)^T w + J^T \lambda,

with :math:`J_p` the Jacobian of the body at that point. It begins and ends at events without
guards, between which s is constant. The derivatives of a mode by motors hold for s, too. By the
state they gain the term :math:`s\, D_q (J_p^T w)`.

`PushedSystem` in `system` is made in two steps: `add_generalized_forces` gives the dynamics all
generalized forces as inputs, and `WrenchInputs` replaces these by the sizes of the wrenches.
`PolicyWithWrenches` gives the sizes beside the inputs of a policy.
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
from hybridctl.hybrid.mapped import Change, MappedMode, MappedPoint
from hybridctl.hybrid.model import FieldJacobian, JumpPoint, ModeModel, PointProperty, ResetBorder
from hybridctl.hybrid.policy import History, Policy, ask_next_change, keeps_law
from hybridctl.hybrid.trajectory import Event
from hybridctl.mechanics.modes.dynamics import ContactDynamics
from hybridctl.mechanics.multibody.joints import skew
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.terms.contact_terms import Terms, TermValues, WrappedTerms
from hybridctl.mechanics.terms.expression_terms import ExpressionTerms

_SAME_TIME = 4.0
"""Spacings of floats between two times up to which they are one. A choice: sums of few terms."""


@dataclass(frozen=True, eq=False)
class Wrench:
    """A force and moment on a body for a while, which `simulate` accepts.

    Attributes:
        body: Name of the frame that is pushed.
        force: Force (3,) in N, in world axes, whatever the body does.
        start: Time at which it begins, s.
        end: Time at which it ends, s, after its start.
        at: Point (3,) where it acts, m, in the axes of the frame, moving with it.
        moment: Moment (3,) in N m, in world axes, besides the moment that the force has there.

    Raises:
        InputError: If force and moment are both zero, if it does not end after its start, or if a
            vector is not of three finite numbers.
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
        """Norm of the force in N or, if there is none, of the moment in N m.

        It is the wrench as an input: force and moment are this times a fixed direction of both.
        """
        return float(np.linalg.norm(self.force) or np.linalg.norm(self.moment))

    @property
    def label(self) -> str:
        """Name of its size as an input."""
        return f"force on {self.body} [N]" if self.force.any() else f"moment on {self.body} [N m]"


class _UnitWrench:
    """The generalized forces of a wrench of size one on a robot.

    Args:
        robot: The robot.
        wrench: The wrench, whose force and moment are divided by its `size`.

    Raises:
        InputError: If the body is fixed to the world.
        UnknownNameError: If the robot has no such frame.
    """

    def __init__(self, robot: Robot, wrench: Wrench) -> None:
        robot.body(wrench.body)  # refuses one that is fixed to the world
        joint, rotation, position = robot.frame(wrench.body)
        self._robot, self._joint = robot, joint
        self._place = np.append(position + rotation @ wrench.at, 1.0)
        self._supporting = robot.supporting(joint)
        self._force, self._moment = wrench.force / wrench.size, wrench.moment / wrench.size

    def compute_force(self, q: Array) -> Array:
        """Return the generalized forces J_p' w (nv,) at a configuration."""
        jacobian, _, spatial = self._evaluate(q)
        return np.asarray(jacobian.T @ spatial)

    def differentiate_force(self, q: Array) -> Array:
        """Return the derivative D_q (J_p' w), (nv, nv), at a configuration.

        Pinocchio's derivatives keep a wrench fixed in its body, with which it turns by J x* w. This
        wrench keeps its axes, and its moment about the origin changes as the point moves.
        """
        jacobian, place, spatial = self._evaluate(q)
        in_body = self._robot.impulse_derivative(
            q, np.zeros(self._robot.nv), {self._joint: spatial}
        )
        linear, angular = jacobian[:3], jacobian[3:]
        moved = linear - skew(place) @ angular
        f, m = skew(spatial[:3]), skew(spatial[3:])
        turning = np.concatenate((f @ angular, -f @ moved + m @ angular + f @ linear))
        return np.asarray(jacobian.T @ turning - in_body)

    def _evaluate(self, q: Array) -> tuple[Array, Array, Array]:
        """Return the Jacobian (6, nv) of the body at the world's origin, the point, and the wrench.

        The wrench (6,) is force and moment about the origin.
        """
        motion = self._robot.motion(q, np.zeros(self._robot.nv), [self._joint])
        place = (motion.poses[0] @ self._place)[:3]
        moment = np.cross(place, self._force) + self._moment
        jacobian = self._robot.reduce_columns(motion.jacobian * self._supporting)
        return jacobian, place, np.concatenate((self._force, moment))


class PushedPoint(MappedPoint):
    """A point of a pushed mode: derivatives are by the state and by motors and sizes."""

    mode: PushedMode

    @PointProperty
    def field_jacobian(self) -> FieldJacobian:
        """The derivatives of the field."""
        inner = self.inner.field_jacobian
        return FieldJacobian(*self.mode.change.convert_slopes(*inner, self.x, self.u))

    @PointProperty
    def free_input(self) -> Array:
        """The derivatives (2 nv, nu + k) of the field where contacts give way."""
        return self.mode.change.convert_inputs(self.inner.free_input, self.x)

    @PointProperty
    def guard_jacobian(self) -> GuardJacobian:
        """The derivatives of all guards."""
        return self.mode.change.convert_jacobian(self.inner.guard_jacobian, self.x, self.u)

    def guard_row(self, i: int) -> GuardJacobian:
        """Return the derivatives of guard i."""
        return self.mode.change.convert_jacobian(self.inner.guard_row(i), self.x, self.u)


class PushedMode(MappedMode):
    """A mode with sizes of wrenches as inputs, in place of all generalized forces."""

    change: WrenchInputs
    point = PushedPoint

    def __init__(self, inner: ModeModel, change: WrenchInputs) -> None:
        super().__init__(inner, change)
        self.nu = change.nu


class WrenchInputs(Change):
    """A change of a mode: sizes of wrenches as inputs, in place of all generalized forces.

    Args:
        robot: The robot.
        wrenches: The k wrenches.

    Attributes:
        nu: Number of inputs: those of the motors, and one for each wrench.
    """

    mode_class = PushedMode

    def __init__(self, robot: Robot, wrenches: Sequence[Wrench]) -> None:
        self._nq, self._nu, self._nv = robot.nq, robot.nu, robot.nv
        self._unit_wrenches = tuple(_UnitWrench(robot, wrench) for wrench in wrenches)
        self.nu = self._nu + len(self._unit_wrenches)

    def input(self, u: Array, x: Array) -> Array:
        """Return motors and generalized forces (nu + nv,) for motors and sizes (nu + k,)."""
        q, pushed = x[: self._nq], np.zeros(self._nv)
        for one, size in zip(self._unit_wrenches, u[self._nu :].tolist(), strict=True):
            if size:
                pushed += size * one.compute_force(q)
        return np.concatenate((u[: self._nu], pushed))

    def to_inner(self, t: float, x: Array, u: Array) -> tuple[float, Array, Array]:
        """Return time, state, and motors and generalized forces, for those of the pushed mode.

        Args:
            t: Time, s.
            x: State (nx,).
            u: Motors and sizes of the wrenches (nu + k,).
        """
        return t, x, self.input(u, x)

    def map_reset_jacobian(self, inner: GuardJacobian, at: JumpPoint) -> GuardJacobian:
        """Return derivatives of a reset by the state and by motors and sizes.

        Args:
            inner: Derivatives by the inner input.
            at: The jump.
        """
        return self.convert_jacobian(inner, at.x, at.u)

    def map_departure(self, inner: GuardJacobian, at: JumpPoint) -> GuardJacobian:
        """Return derivatives of a departure by the state and by motors and sizes.

        Args:
            inner: Derivatives by the inner input.
            at: The jump.
        """
        return self.convert_jacobian(inner, at.x, at.u)

    def map_border(self, inner: ResetBorder, at: JumpPoint) -> ResetBorder:
        """Return both derivatives of a reset at a border, and that of the distance from it.

        Args:
            inner: The border by the inner input.
            at: The jump.
        """
        mapped = super().map_border(inner, at)
        return mapped._replace(distance=self.convert_jacobian(inner.distance, at.x, at.u))

    def convert_jacobian(self, inner: GuardJacobian, x: Array, u: Array) -> GuardJacobian:
        """Return derivatives by the state and by motors and sizes, of those by the inner input.

        Args:
            inner: Derivatives by the state, and by the inner input at a fixed state.
            x: State (q, v).
            u: Motors and sizes (nu + k,).
        """
        return GuardJacobian(inner.time, *self.convert_slopes(inner.state, inner.input, x, u))

    def convert_slopes(
        self, state: Array, by_inner: Array, x: Array, u: Array
    ) -> tuple[Array, Array]:
        """Return derivatives (..., 2 nv) by the state and (..., nu + k) by motors and sizes.

        Args:
            state: Derivatives (..., 2 nv) by the state at fixed inner input.
            by_inner: Derivatives (..., nu + nv) by the inner input.
            x: State (q, v).
            u: Motors and sizes (nu + k,).
        """
        q, forces, state = x[: self._nq], by_inner[..., self._nu :], np.array(state)
        for one, size in zip(self._unit_wrenches, u[self._nu :].tolist(), strict=True):
            if size:
                state[..., : self._nv] += size * forces @ one.differentiate_force(q)
        return state, self.convert_inputs(by_inner, x)

    def convert_inputs(self, by_inner: Array, x: Array) -> Array:
        """Return derivatives (..., nu + k) by motors and sizes, by those of the inner input."""
        forces = by_inner[..., self._nu :]
        columns = [forces @ one.compute_force(x[: self._nq]) for one in self._unit_wrenches]
        return np.concatenate((by_inner[..., : self._nu], np.stack(columns, axis=-1)), axis=-1)


@dataclass(frozen=True, eq=False)
class PolicyWithWrenches:
    """A policy of motors, with the sizes of wrenches after its inputs.

    The policy receives a history whose events have the inputs of the motors alone.

    Attributes:
        policy: Policy of the motors.
        wrenches: The k wrenches.
    """

    policy: Policy
    wrenches: tuple[Wrench, ...]
    _motor_events: dict[Event, Event] = field(default_factory=dict, repr=False)

    def law(self, history: History) -> InputLaw:
        """Return the law of the policy, with the sizes of the wrenches after its input."""
        law, t = self.policy.law(self._motor_history(history)), history.time
        rounding = _SAME_TIME * math.ulp(t)
        sizes = np.array(
            [w.size if w.start - rounding <= t < w.end - rounding else 0.0 for w in self.wrenches]
        )
        if isinstance(law, HeldInput):
            demand = None if law.demand is None else np.concatenate((law.demand, sizes))
            return HeldInput(np.concatenate((law.value, sizes)), demand)
        if isinstance(law, DifferentiableLaw):
            none = np.zeros(len(sizes))
            return DifferentiableLaw(
                _append_sizes(law.function, sizes),
                partial(_append_zero_rows, law.jacobian, len(sizes)),
                partial(_append_values, law.rate, none),
            )
        return _append_sizes(law, sizes)

    def next_change(self, history: History) -> float:
        """Return the time of the next change of the law, or at which a wrench begins or ends, s.

        A change of the law that differs from the latter by rounding takes its place, so that no arc
        is as short as rounding.
        """
        t, change = history.time, ask_next_change(self.policy, self._motor_history(history))
        rounding = _SAME_TIME * math.ulp(t)
        later = [e for w in self.wrenches for e in (w.start, w.end) if e > t + rounding]
        edge = min(later, default=math.inf)
        return change if change <= edge + _SAME_TIME * math.ulp(edge) else edge

    @property
    def keeps_law(self) -> bool:
        """Whether the policy goes through events with the law it has."""
        return keeps_law(self.policy)

    def _motor_history(self, history: History) -> History:
        """Return the history with the inputs of the motors alone."""
        for event in history.events:
            if event not in self._motor_events:
                nu = len(event.input_before) - len(self.wrenches)
                inputs = ("input_before", "input_after", "input_rate")
                own = {name: getattr(event, name)[:nu] for name in inputs}
                self._motor_events[event] = replace(event, **own)
        return replace(history, events=tuple(map(self._motor_events.__getitem__, history.events)))


def check_wrenches(wrench: object) -> tuple[Wrench, ...]:
    """Return one wrench or a sequence of them as a tuple, checked.

    Args:
        wrench: What a user gave.

    Raises:
        InputError: If it is neither.
    """
    given = [wrench] if isinstance(wrench, Wrench) else check_sequence("wrench", wrench)
    for one in given:
        check_instance("wrench", one, Wrench)
    return tuple(given)


def add_generalized_forces(dynamics: ContactDynamics) -> ContactDynamics:
    """Return the dynamics with inputs of the motors and then all generalized forces (nu + nv)."""
    every, robot = copy(dynamics), copy(dynamics.robot)
    robot.actuation = np.hstack((robot.actuation, np.eye(robot.nv)))
    robot.nu += robot.nv
    every.robot, every.terms = robot, _DrivenTerms(dynamics.terms, dynamics.robot.nu)
    if dynamics.kernel_terms is not None:
        machine_code = dynamics.kernel_terms.machine_code
        every.kernel_terms = ExpressionTerms(robot, every.contact_set, machine_code=machine_code)
    return every


class _DrivenTerms(WrappedTerms):
    """The terms of a robot whose inputs are its nu motors and then all generalized forces."""

    def __init__(self, own: Terms, nu: int) -> None:
        super().__init__(own)
        self._nu = nu

    def values(self, q: Array, v: Array, u: Array) -> TermValues:
        values = self.own.values(q, v, u[: self._nu])
        return values._replace(drive=values.drive + u[self._nu :])


class _LimitedLawWithSizes(LimitedLaw):
    """A limited law with the sizes (k,) of wrenches after its input, which have no limits."""

    def __init__(self, law: LimitedLaw, sizes: Array) -> None:
        self._law, self._sizes = law, sizes
        unlimited = np.full((2, len(sizes)), [[-np.inf], [np.inf]])
        self.limits = None if law.limits is None else np.hstack([law.limits, unlimited])

    def __call__(self, t: float, x: Array) -> Array:
        """Return the input (nu + k,)."""
        return np.concatenate((self._law(t, x), self._sizes))

    def demand(self, t: float, x: Array) -> Array:
        """Return the input (nu + k,) before it is cut."""
        return np.concatenate((self._law.demand(t, x), self._sizes))


def _append_sizes(law: InputLaw, sizes: Array) -> InputLaw:
    """Return a law with the sizes (k,) of wrenches after its input."""
    if isinstance(law, LimitedLaw):
        return _LimitedLawWithSizes(law, sizes)
    return partial(_append_values, law, sizes)


def _append_values(law: InputLaw, values: Array, t: float, x: Array) -> Array:
    return np.concatenate((law(t, x), values))


def _append_zero_rows(jacobian: InputLaw, count: int, t: float, x: Array) -> Array:
    found = jacobian(t, x)
    return np.concatenate((found, np.zeros((count, found.shape[1]))))
