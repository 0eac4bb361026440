r"""The interface of modes and resets: evaluated at a point, differentiated there, and stepped.

A mode is a vector field :math:`\dot x = f(t, x, u)` on a state space with guards that end its flow.
A mode (`ModeModel`) is the model, a `Point` is the data of one evaluation of it:

1. `point = mode.calc(t, x, u)` makes a point and computes nothing.
2. `point.field`, `point.guards`, `point.outputs` and so on are computed when they are first asked
   for, and kept in the point. The class of points of a mode says how: `ModeModel.point`.
3. `mode.calc_diff(point)` returns the derivatives, which start from what the point has.

Models keep nothing of a point, so that threads may share them. What a mode can do is told by what
its points implement: they need `field` and `guards`, and `Point` has a default for the rest. A mode
that is made of another one implements what differs (see `mapped`).

- The guards belong to the mode, the edges behind them to the graph (`Outgoing`): one mode serves
  systems whose guards lead elsewhere.
- `compiled_steps` are functions for whole integrator steps and resets, None where there are none.
  The integrator then goes on stage by stage (`step`).
- A reset is a `ResetModel`. Its derivative is asked for at a `JumpPoint`, which may bring along
  what the jump and the mode before it found there. At a border a reset has two derivatives, one
  on either side, so that the border is no part of `calc_diff`.

Arguments are t (time, s), x (state, (nx,)) and u (input, (nu,)). Derivatives by the state are taken
in the tangent space, so they have `ndx` columns.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from inspect import getattr_static
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from hybridctl.base.checks import Array
from hybridctl.base.errors import ConstraintViolatedError, SystemDefinitionError
from hybridctl.base.spaces import Space
from hybridctl.hybrid.guards import GuardJacobian as GuardJacobian
from hybridctl.hybrid.guards import GuardSet
from hybridctl.hybrid.laws import HeldInput, InputLaw

T = TypeVar("T")
ModeKey: TypeAlias = Hashable
ResetJacobian: TypeAlias = GuardJacobian
"""Derivatives of a reset by (t, x-, u-): D_t R (ndx+,), D_x R (ndx+, ndx) and D_u R (ndx+, nu)."""


class FieldJacobian(NamedTuple):
    """Derivatives of a vector field.

    Attributes:
        state: D_x f, (ndx, ndx).
        input: D_u f, (ndx, nu).
    """

    state: Array
    input: Array


class Slopes(NamedTuple):
    """Derivatives of the field and of all guards of a mode at a point.

    Attributes:
        field: Derivatives of the field.
        guards: Derivatives of all n guards.
    """

    field: FieldJacobian
    guards: GuardJacobian


class Pace(NamedTuple):
    """Limits of the step size of an integrator from a point on, which its error does not show.

    Attributes:
        longest_step: Longest step, s: fast terms of the field may be at rest at the point, or the
            field may end. Infinite for no limit.
        relaxation: Time constant of the fastest decay of the field, s. An explicit method takes no
            steps that are much longer. Infinite for no decay.
    """

    longest_step: float = math.inf
    relaxation: float = math.inf


class StepRequest(NamedTuple):
    """The request for a step.

    Attributes:
        t: Time at its start, s.
        x: State (nx,) there.
        h: Its length, s; negative backward in time.
        rtol: Tolerance of its error relative to each coordinate.
        atol: Absolute tolerance of its error, in the unit of each coordinate.
    """

    t: float
    x: Array
    h: float
    rtol: float
    atol: float


class CompiledStep(NamedTuple):
    """A compiled step, by its values at the nodes of `series`.

    Attributes:
        error: Its error in units of the tolerance.
        states: States (8, nx); the last one is the end of the step.
        inputs: Inputs (8, nu).
        guards: Guards (8, n).
        bounds: Lower bounds (n,) of the guards on the step, see `step.compute_guard_bounds`.
        fastest_decay: Time constant of the fastest decay that the step has seen, s; see
            `explicit.StageKernel.fastest_decay`. Infinite where it does not show one.

    A mode may leave out states, guards and bounds of a step whose error is not below 1: those are
    NaN then.
    """

    error: float
    states: Array
    inputs: Array
    guards: Array
    bounds: Array
    fastest_decay: float = math.inf


class Diffusion(NamedTuple):
    """White noise on a mode.

    Attributes:
        density: Density W (ndx, ndx) in the state.
        through_input: Density V (nu, nu) in the input.
        compliance: Fraction in [0, 1] by which the mode's constraint gives way to V, see
            `estimation.noise`.
    """

    density: Array
    through_input: Array
    compliance: float = 0.0


class StepTransition(NamedTuple):
    """A step with its derivative, and with the covariance of noise where noise was given.

    Attributes:
        error: Its error in units of the tolerance.
        state: State (nx,) at its end.
        matrix: Derivative (ndx, ndx) of that state by the state at its start.
        noise: Covariance (ndx, ndx) of the noise gathered on the step; None without noise.
        bounds: Lower bounds (n,) of the guards as in `CompiledStep`; None without noise.
    """

    error: float
    state: Array
    matrix: Array
    noise: Array | None = None
    bounds: Array | None = None


class JumpTerms(NamedTuple):
    """The jump of one guard to first order, up to the field after it; see `sensitivity.saltation`.

    Attributes:
        slope: Rate of the guard along the field before the jump, in its unit per s.
        size: Sum of the absolute terms of `slope`.
        time_state: Derivative (ndx,) of the time of the event by the state before it, s.
        time_input: Derivative (nu,) of the time of the event by the input before it, s per unit.
        reset_state: Derivative (ndx+, ndx) of the reset by the state.
        reset_input: Derivative (ndx+, nu) of the reset by the input.
        reset_rate: Rate of change (ndx+,) of the reset along the field before the jump.
    """

    slope: float
    size: float
    time_state: Array
    time_input: Array
    reset_state: Array
    reset_input: Array
    reset_rate: Array


BatchFunction: TypeAlias = Callable[..., list[Array]]
"""A function of many points at once, with one point in each row of its arguments and results."""


class BatchedSteps(NamedTuple):
    """Functions for compiled steps from m points at once.

    `step` and `varied` take the scalars (t, h, rtol, atol) (m, 4) of each step, x (m, nx) and
    u (m, nu). A step is sound where its soundness is positive; else its other results do not hold.

    Attributes:
        rate: Function of t (m, 1), x (m, nx) and u (m, nu) that returns the rates (m, nx) of the
            coordinates.
        step: Returns soundness and error (m, 1), states (m, 8, nx), guards (m, 8, n), and their
            bounds (m, n) as in `CompiledStep`.
        varied: Returns soundness and error (m, 1), end states (m, nx), and their derivatives
            (m, ndx, ndx).
    """

    rate: BatchFunction
    step: BatchFunction
    varied: BatchFunction


class CompiledSteps:
    """Functions of a mode for whole integrator steps and resets.

    A method returns None where the mode has no such function, or where its result would not hold:
    the caller then goes on stage by stage, or with derivatives at a point. Steps are those of
    DOP853, or a closed form. They go through coordinates, which are normalised where field and
    guards are evaluated.

    Attributes:
        retakes_steps: Whether steps are taken again to end at an event. If not, the polynomial of
            the step is cut off there, where field and guards at one point cost less than a step.
    """

    retakes_steps: bool = True

    @property
    def batched(self) -> BatchedSteps | None:
        """The same steps for many points at once."""
        return None

    @property
    def batched_slopes(self) -> BatchFunction | None:
        """Function of t (m, 1), x (m, nx) and u (m, nu) for the variational equation there.

        It returns soundness (m, 1), A = D_x f + T(f) (m, ndx, ndx) with the transport T of the
        space, and D_u f (m, ndx, nu), which hold where the soundness is positive.
        """
        return None

    def step(self, ahead: StepRequest, law: InputLaw) -> CompiledStep | None:
        """Return a step under an input law.

        Args:
            ahead: Start, length and tolerances of the step.
            law: The input law; of most laws there is no compiled step.
        """
        return None

    def sample_guards(self, states: Array, law: HeldInput) -> Array | None:
        """Return the guards (k, n) at several states under a held input.

        None where the mode does not evaluate several at once.

        Args:
            states: Coordinates (k, nx), of any norm.
            law: The held input.
        """
        return None

    def transition(
        self, ahead: StepRequest, u: Array, noise: Diffusion | None = None
    ) -> StepTransition | None:
        """Return a step with its derivative, whose error counts for that of the step too.

        Args:
            ahead: Start, length and tolerances of the step.
            u: Input (nu,), held on the step.
            noise: White noise whose covariance is gathered on the step; None for none.
        """
        return None

    def jump_terms(self, i: int, reset: ResetModel, at: JumpPoint, du: Array) -> JumpTerms | None:
        """Return the first-order terms of a jump.

        Args:
            i: Index of the guard that fires.
            reset: The reset.
            at: The point before the jump.
            du: Rate (nu,) of the input before the jump, 1/s.
        """
        return None

    def batched_jump(self, i: int, reset: ResetModel) -> BatchFunction | None:
        """Return the function of a jump from many points (t, x, u) under held inputs.

        Its results are the states x+ (m, nx+) after the jump, the rate of the guard and the size of
        its terms (m, 2), and `time_state`, `reset_state` and `reset_rate` of `JumpTerms`.

        Args:
            i: Index of the guard that fires.
            reset: The reset.
        """
        return None


@dataclass(frozen=True, eq=False)
class Held:
    """The constraint of a mode: residuals that are zero on it, such as gaps of closed contacts.

    Attributes:
        names: Names (k,) of the residuals, for messages.
        residuals: Function of the state x (nx,) that returns the residuals (k,).
        tolerances: Size (k,) of each residual that still counts as zero, in its own unit.
        units: Units (k,) of the residuals, for messages.
        jacobian: Function of the state that returns their derivatives (k, ndx). None for none.
        refuse: Function (what, key, x) that raises an error for further states at which no arc of
            the mode begins. None for no such states.
        decay: Rate at which the field itself takes residuals back, 1/s; a gap of 1 m then closes at
            up to `decay` m/s. Zero if the field leaves them as they are.
    """

    names: tuple[str, ...]
    residuals: Callable[[Array], Array]
    tolerances: Array
    units: tuple[str, ...]
    jacobian: Callable[[Array], Array] | None = field(default=None, kw_only=True)
    refuse: Callable[[str, Hashable, Array], None] | None = field(default=None, kw_only=True)
    decay: float = field(default=0.0, kw_only=True)

    def excess(self, x: Array) -> float:
        """Return the largest residual in units of its tolerance.

        Args:
            x: State (nx,).
        """
        return float((np.abs(self.residuals(x)) / self.tolerances).max(initial=0.0))

    def check(self, what: str, key: Hashable, x: Array) -> None:
        """Check that a state obeys the constraint.

        Args:
            what: What the state is, for messages.
            key: Key of the mode.
            x: State (nx,).

        Raises:
            ConstraintViolatedError: A residual is above its tolerance, or not a number.
            EscapingError: `refuse` raises it.
        """
        residuals = self.residuals(x)
        ratios = np.abs(residuals) / self.tolerances
        if len(ratios) and not ratios.max() <= 1.0:
            i = int(ratios.argmax())
            raise ConstraintViolatedError(
                f"{what} is off what mode {key!r} holds: {self.names[i]} is {residuals[i]:.6g} "
                f"{self.units[i]}, tolerated are {self.tolerances[i]:.3g} {self.units[i]}; "
                f"x0 = system.mode({key!r}).project(x0) puts a state on it"
            )
        if self.refuse is not None:
            self.refuse(what, key, x)


class PointProperty(Generic[T]):
    """A property of a point that is computed when it is first asked for, and then kept."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, point: Any, owner: type) -> T:
        value: T = self._compute(point)
        setattr(point, self._name, value)  # found before this descriptor from now on
        return value


class Point:
    """One evaluation of a mode, whose parts are computed when they are first asked for.

    A point is read, never changed. It pickles as its arguments. Each kind of modes has its own
    class of points, which implements `field` and `guards`, and overrides what else it can compute.

    Args:
        mode: The mode.
        t: Time, s.
        x: State (nx,), a point of the space: normalised where that is a manifold.
        u: Input (nu,).
    """

    mode: ModeModel

    def __init__(self, mode: ModeModel, t: float, x: Array, u: Array) -> None:
        self.mode, self.t, self.x, self.u = mode, t, x, u

    def __reduce__(self) -> tuple[Callable[..., Point], tuple[float, Array, Array]]:
        return self.mode.calc, (self.t, self.x, self.u)

    @PointProperty
    def field(self) -> Array:
        """The vector field f, (ndx,)."""
        raise NotImplementedError(f"{type(self).__name__} does not implement field")

    @PointProperty
    def guards(self) -> Array:
        """The guards (n,), each in its own unit."""
        raise NotImplementedError(f"{type(self).__name__} does not implement guards")

    @PointProperty
    def field_jacobian(self) -> FieldJacobian:
        """The derivatives of the field.

        Raises:
            SystemDefinitionError: The field has none.
        """
        raise SystemDefinitionError(f"the vector field of mode {self.mode.key!r} has no Jacobian")

    @PointProperty
    def guard_jacobian(self) -> GuardJacobian:
        """The derivatives of all guards.

        Raises:
            SystemDefinitionError: The guards have none.
        """
        raise SystemDefinitionError(f"the guards of mode {self.mode.key!r} have no Jacobian")

    @PointProperty
    def free_input(self) -> Array:
        """D_u f (ndx, nu) without the mode's constraint; by default D_u f itself."""
        return self.field_jacobian.input

    @PointProperty
    def outputs(self) -> Mapping[str, Array]:
        """Named quantities worth plotting, in arrays that nobody changes later; by default none."""
        return {}

    @PointProperty
    def selected_mode(self) -> ModeKey:
        """Key of the mode that flows on from here just after a jump; by default of this one."""
        return self.mode.key

    @PointProperty
    def pace(self) -> Pace:
        """The limits of an integrator's steps from here on; by default the mode's `steady_pace`."""
        assert self.mode.steady_pace is not None
        return self.mode.steady_pace

    def guard(self, i: int) -> float:
        """Return the value of guard i, in its unit; overridden where one alone costs less."""
        return float(self.guards[i])

    def guard_row(self, i: int) -> GuardJacobian:
        """Return the derivatives of guard i: by time a number, by state (ndx,), by input (nu,)."""
        d = self.guard_jacobian
        return GuardJacobian(d.time[i], d.state[i], d.input[i])


FREE_PACE = Pace()
"""Pace of a mode that does not limit steps."""


_TOLD_BY_PROPERTIES = {
    "differentiable": "field_jacobian",
    "guards_differentiable": "guard_jacobian",
    "selects": "selected_mode",
}
"""Attributes of a mode that tell whether the class of its points implements a property."""


class ModeModel(ABC):
    """A state space, the vector field on it, the guards that end its flow, and its constraint.

    A subclass sets `key`, `space`, `nu`, `guard_names` and `point`, the class of its points, which
    computes what there is at one.

    Attributes:
        key: Key of the mode, unique in its system.
        space: The state space.
        nu: Number of inputs.
        guard_names: Names (n,) of the guards.
        held: The constraint that every state of the mode obeys; None for none.
        project: Takes a state near the constraint to one on it; None where there is none.
        steady_pace: The limits of steps, if they are the same at all points. None if each point has
            its own, see `Point.pace`.
        differentiable: Whether the field has derivatives. By default it is whether points implement
            `field_jacobian`; a mode whose arguments decide it sets it in its constructor.
        guards_differentiable: Whether the guards have derivatives; likewise for `guard_jacobian`.
        selects: Whether another mode may flow on from a state of this one: whether points implement
            `selected_mode`.
        point: The class of its points.
    """

    key: ModeKey
    space: Space
    nu: int = 0
    guard_names: tuple[str, ...] = ()
    held: Held | None = None
    project: Callable[[Array], Array] | None = None
    steady_pace: Pace | None = FREE_PACE
    differentiable: bool = False
    guards_differentiable: bool = False
    selects: bool = False
    point: ClassVar[type[Point]] = Point

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for flag, name in _TOLD_BY_PROPERTIES.items():
            if flag not in vars(cls):
                setattr(cls, flag, getattr_static(cls.point, name) is not vars(Point)[name])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key!r})"

    @property
    def guard_scales(self) -> Array:
        """Sizes (n,) of the guards that tolerances are relative to, each in its unit: ones."""
        return np.ones(len(self.guard_names))

    @property
    def compiled_steps(self) -> CompiledSteps | None:
        """Functions for whole steps and resets; None where the mode has none."""
        return None

    # Evaluation

    def calc(self, t: float, x: Array, u: Array) -> Point:
        """Return the point of this mode at (t, x, u), which computes what it is asked for.

        Args:
            t: Time, s.
            x: State (nx,), normalised where the space is a manifold.
            u: Input (nu,).
        """
        return self.point(self, t, x, u)

    def calc_together(
        self, times: Array, states: Array, inputs: Array, has_slopes: bool
    ) -> list[Point]:
        """Return the points of this mode at m places (t, x, u).

        A mode may override it where one call evaluates many points; here each is as `calc` makes
        it.

        Args:
            times: Times (m,), s.
            states: States (m, nx).
            inputs: Inputs (m, nu).
            has_slopes: Whether derivatives will be asked for, beside field and guards.
        """
        return [self.calc(float(t), x, u) for t, x, u in zip(times, states, inputs, strict=True)]

    def calc_diff(self, point: Point) -> Slopes:
        """Return the derivatives of field and guards.

        Args:
            point: A point that this mode has made.

        Raises:
            SystemDefinitionError: The field or the guards have no derivatives.
        """
        return Slopes(point.field_jacobian, point.guard_jacobian)

    def field(self, t: float, x: Array, u: Array) -> Array:
        """Return `calc(t, x, u).field`, for who wants one thing at one point.

        A mode whose points keep nothing may override it with a function that makes no point: the
        integrator then calls that.

        Args:
            t: Time, s.
            x: State (nx,).
            u: Input (nu,).
        """
        return self.calc(t, x, u).field

    def jacobian(self, t: float, x: Array, u: Array) -> FieldJacobian:
        """Return `calc(t, x, u).field_jacobian`, for who wants one thing at one point.

        Args:
            t: Time, s.
            x: State (nx,).
            u: Input (nu,).
        """
        return self.calc(t, x, u).field_jacobian

    def guards(self, t: float, x: Array, u: Array) -> Array:
        """Return `calc(t, x, u).guards`, for who wants one thing at one point.

        Args:
            t: Time, s.
            x: State (nx,).
            u: Input (nu,).
        """
        return self.calc(t, x, u).guards

    def outputs(self, t: float, x: Array, u: Array) -> Mapping[str, Array]:
        """Return `calc(t, x, u).outputs`, for who wants one thing at one point.

        Args:
            t: Time, s.
            x: State (nx,).
            u: Input (nu,).
        """
        return self.calc(t, x, u).outputs

    @cached_property
    def guard_set(self) -> GuardSet:
        """The guards alone, as functions of (t, x, u)."""
        return GuardSet(
            self.guard_names,
            self.guards,
            self._evaluate_guard_jacobian if self.guards_differentiable else None,
            self.guard_scales,
            None if self.point.guard is Point.guard else self._evaluate_guard,
        )

    def _evaluate_guard(self, i: int, t: float, x: Array, u: Array) -> float:
        return self.calc(t, x, u).guard(i)

    def _evaluate_guard_jacobian(self, t: float, x: Array, u: Array) -> GuardJacobian:
        return self.calc(t, x, u).guard_jacobian


def compute_jump_terms(
    mode: ModeModel, i: int, reset: ResetModel, at: JumpPoint, du: Array
) -> JumpTerms:
    """Return the first-order terms of a jump, by a compiled function where the mode has one.

    Args:
        mode: The mode before the jump.
        i: Index of the guard that fires.
        reset: The reset.
        at: The point before the jump.
        du: Rate (nu,) of the input before the jump, 1/s.

    Raises:
        SystemDefinitionError: Guard or reset have no derivative.
    """
    departure = reset.differentiate_departure(at)
    if departure is not None:
        return compute_linear_terms(mode, i, reset.calc_diff(at), at, du, departure)
    steps = mode.compiled_steps
    terms = None if steps is None else steps.jump_terms(i, reset, at, du)
    return compute_linear_terms(mode, i, reset.calc_diff(at), at, du) if terms is None else terms


def compute_linear_terms(
    mode: ModeModel,
    i: int,
    reset_jacobian: ResetJacobian,
    at: JumpPoint,
    du: Array,
    guard: GuardJacobian | None = None,
) -> JumpTerms:
    """Return the first-order terms of a jump from derivatives, see `sensitivity.saltation`.

    Args:
        mode: The mode before the jump.
        i: Index of the guard that fires.
        reset_jacobian: Derivatives of the reset.
        at: The point before the jump.
        du: Rate (nu,) of the input before the jump, 1/s.
        guard: Derivatives of what falls through zero in place of the guard; None for the guard.

    Raises:
        SystemDefinitionError: The guard has no derivative.
    """
    r, point = reset_jacobian, mode.calc(at.t, at.x, at.u) if at.before is None else at.before
    f = np.asarray(point.field, dtype=np.float64)
    g = point.guard_row(i) if guard is None else guard
    slope = float(g.time + g.state @ f + g.input @ du)
    size = abs(g.time) + np.abs(g.state) @ np.abs(f) + np.abs(g.input) @ np.abs(du)
    # A guard that is met with no rate is refused by the caller, which knows names and tolerances.
    with np.errstate(divide="ignore", invalid="ignore"):
        by_state, by_input = -g.state / slope, -g.input / slope
    rate = r.time + r.state @ f + r.input @ du
    return JumpTerms(slope, float(size), by_state, by_input, r.state, r.input, rate)


@dataclass(frozen=True)
class Jump:
    """The result of a reset.

    Attributes:
        state: State (nx+,) after the event.
        mode: Key of the mode after the event, where the reset decides it. None leaves it to the
            edge.
        impulses: Normal impulse of each contact, N s; empty where the reset reports none.
        report: What the solver of the reset certifies; None where there is none.
        guards: Names of the guards that took part in the event, where others that fired with them
            did not; None for all. Of guards that fire one after the other all take part.
    """

    state: Array
    mode: ModeKey | None = None
    impulses: Array = field(default_factory=lambda: np.zeros(0))
    report: Any = None
    guards: tuple[str, ...] | None = None


class JumpPoint(NamedTuple):
    """The point (t, x-, u-) before a jump, and what is known there.

    Attributes:
        t: Time of the event, s.
        x: State (nx,) before it.
        u: Input (nu,) before it.
        report: Report of the reset's `Jump` there; None where it is not known.
        before: The point of the mode before the event; None where there is none yet.
    """

    t: float
    x: Array
    u: Array
    report: Any = None
    before: Point | None = None


class ResetBorder(NamedTuple):
    """The derivative of a reset at the border between two cases: linear on either side of it.

    What is over in a time as short as the perturbation is small, like a brief slip, is part of the
    reset: afterwards the mode after the event flows.

    Attributes:
        name: Name of the case that is entered where the distance to the border is positive.
        distance: Derivatives of that distance by (t, x, u) before the event. The distance is zero
            at the border.
        positive: Derivatives of the reset where the distance is positive.
        negative: Derivatives of the reset where it is negative.
    """

    name: str
    distance: GuardJacobian
    positive: ResetJacobian
    negative: ResetJacobian

    @property
    def is_linear(self) -> bool:
        """Whether both sides have the same derivative."""
        return all(map(np.array_equal, self.positive, self.negative))


class ResetBatch(ABC):
    """The derivatives of m jumps that resets make together, see `ResetModel.batch_jumps`.

    Attributes:
        is_sound: Whether the derivatives of each hold, (m,). Other jumps are differentiated alone.
    """

    is_sound: NDArray[np.bool_]

    @property
    @abstractmethod
    def jacobian(self) -> ResetJacobian:
        """The derivatives D_t R (m, ndx+), D_x R (m, ndx+, ndx) and D_u R (m, ndx+, nu)."""


class ResetModel(ABC):
    """The jump map x+ = R(t, x-, u-), and its derivatives.

    A subclass implements `calc`, and overrides what else it can do.

    Attributes:
        differentiable: Whether it has derivatives. By default it is whether `calc_diff` is
            implemented; a reset whose arguments decide it sets it in its constructor.
        at_once: Whether it is the whole event of guards of which some are only about to fall
            through zero.
        keeps_field: Whether it keeps the state, and the field of every mode that some of its guards
            lead to is the same at that state under the same input, as where contacts let go whose
            forces are zero. Such an event changes no perturbation to first order, whatever the
            order of its guards is.
    """

    differentiable: bool = False
    at_once: bool = False
    keeps_field: bool = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "differentiable" not in vars(cls):
            cls.differentiable = cls.calc_diff is not ResetModel.calc_diff

    @abstractmethod
    def calc(self, t: float, x: Array, u: Array) -> Jump:
        """Return the jump.

        Args:
            t: Time of the event, s.
            x: State (nx,) before it.
            u: Input (nu,) before it.
        """

    def calc_diff(self, at: JumpPoint) -> ResetJacobian:
        """Return the derivatives D_t R (ndx+,), D_x R (ndx+, ndx) and D_u R (ndx+, nu).

        Args:
            at: The point before the jump.

        Raises:
            SystemDefinitionError: The reset has none.
        """
        raise SystemDefinitionError("the reset has no Jacobian")

    def find_border(self, at: JumpPoint, key: ModeKey, u_after: Array) -> ResetBorder | None:
        """Return both derivatives where the reset is at a border, None where it is not.

        Implementations raise `InputError` where there are more than two derivatives.

        Args:
            at: The point before the jump.
            key: Key of the mode after the event.
            u_after: Input (nu+,) after the event.
        """
        return None

    def differentiate_departure(self, at: JumpPoint) -> GuardJacobian | None:
        """Return the derivatives of what falls through zero where perturbed runs have this event.

        Perturbed runs may have another event before it, of which the run itself has none: a foot
        that lets go slips first, and then its guard falls at another rate.

        Args:
            at: The point before the jump.

        Returns:
            The derivatives by time (a number), state (ndx,) and input (nu,). None for those of the
            guard that fires; here it is None.
        """
        return None

    def find_batch(self, at: JumpPoint, key: ModeKey) -> Hashable:
        """Return what jumps that are differentiated together have in common.

        Args:
            at: The point before the jump.
            key: Key of the mode after the event.

        Returns:
            Jumps of resets of one class with the same value are. None for a jump that is
            differentiated alone: one at a border, one with a departure of its own, or where nothing
            is gained, as here.
        """
        return None

    @classmethod
    def batch_jumps(cls, jumps: Sequence[tuple[ResetModel, JumpPoint]]) -> ResetBatch:
        """Return the derivatives of jumps for which `find_batch` has returned the same value.

        Args:
            jumps: Each reset, of this class, and the point before its jump.
        """
        raise NotImplementedError(f"{cls.__name__} does not differentiate jumps together")

    def __call__(self, t: float, x: Array, u: Array) -> Jump:
        """Return `calc(t, x, u)`: a reset is a function.

        Args:
            t: Time of the event, s.
            x: State (nx,) before it.
            u: Input (nu,) before it.
        """
        return self.calc(t, x, u)
