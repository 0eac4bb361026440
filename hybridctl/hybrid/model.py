r"""A mode as a model: evaluated once at a point, differentiated there, and stepped by itself.

A `ModeModel` says how a state flows, :math:`\dot x = f(t, x, u)`, when that ends (its guards), and
what belongs to it. `calc(t, x, u)` gives a `Point`: whatever is asked of it is found once, from
what the point knows already, and `calc_diff(point)` goes on from there. Models keep nothing of a
point, so that threads share them, and points are read, not changed.

What a mode does at a point is written once, in methods that take it and end in `_at`; those of
(t, x, u) are for who wants one thing. A mode that is made of another one maps it (see `mapped`) and
says only what differs.

What belongs where:

- The guards are the mode's, the edges behind them the graph's (`Outgoing`): one mode serves systems
  whose guards lead elsewhere.
- `step` takes an input law, and None is its answer where the mode has no whole steps under such a
  law or where they do not hold; `hybrid.step` then goes on stage by stage. A step is a method of
  the mode it was made of, so it is of no other field and no other guards.
- `transition` gives the derivative of that step under a held input, and with white noise given also
  what that gathers. Noise is of who predicts, not of the mode.
- `jump_terms` is a method, too: what one guard and a reset do to first order, compiled for the
  resets of this mode where it can be.
- A reset is a `ResetModel`. Its derivative and its border are asked for at a `JumpPoint`, which may
  bring along what the jump and the mode before it found there. At a border the reset has two
  derivatives, one on either side, so it is no part of `calc_diff`.

Arguments are (t, x, u): time in s, state (nx,), input (nu,). Derivatives by the state are taken in
the tangent space, so they have `ndx` columns.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import SystemDefinitionError
from hybridctl.base.spaces import Space
from hybridctl.hybrid.guards import GuardJacobian as GuardJacobian
from hybridctl.hybrid.guards import GuardSet
from hybridctl.hybrid.held import Held as Held
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.many import Many, ManySteps

T = TypeVar("T")
ModeKey: TypeAlias = Hashable
ResetJacobian: TypeAlias = GuardJacobian


class FieldJacobian(NamedTuple):
    """Derivatives of a vector field: `state` (ndx, ndx) and `input` (ndx, nu)."""

    state: Array
    input: Array


class Slopes(NamedTuple):
    """Derivatives of the field and of all guards of a mode at a point."""

    field: FieldJacobian
    guards: GuardJacobian


class Pace(NamedTuple):
    """Times in s that limit an integrator's steps from a point (t, x, u) on.

    longest_step: none may be longer, because fast terms of the field are at rest there, or
    because the field ends. relaxation: the time constant of its fastest decay; an explicit
    method takes no steps much longer than that.
    """

    longest_step: float = math.inf
    relaxation: float = math.inf


class StepAhead(NamedTuple):
    """A step to be taken: from x (nx,) at t over h s, to these tolerances of every entry."""

    t: float
    x: Array
    h: float
    rtol: float
    atol: float


class WholeStep(NamedTuple):
    """A step taken at once: its error in units of the tolerance, and values at its nodes.

    The nodes are those of `series`: states (8, nx), guards (8, n), and the bounds (n,) of these,
    see `step`; inputs (8, nu).
    """

    error: float
    states: Array
    inputs: Array
    guards: Array
    bounds: Array


class Diffusion(NamedTuple):
    """White noise on a mode: densities W (ndx, ndx), and V (nu, nu) of what enters as the input.

    compliance: how far what the mode holds gives way to V, see `estimation.noise`.
    """

    density: Array
    through_input: Array
    compliance: float = 0.0


class StepTransition(NamedTuple):
    """A step with its error, its end state (nx,) and the derivative of that (ndx, ndx).

    noise (ndx, ndx): the covariance of the noise gathered on it, and bounds (n,) of the guards as
    those of `WholeStep`, where noise was asked for.
    """

    error: float
    state: Array
    matrix: Array
    noise: Array | None = None
    bounds: Array | None = None


class JumpTerms(NamedTuple):
    """The jump of one guard to first order, up to the field after it; see `sensitivity.saltation`.

    slope: the rate of the guard. size: of the terms it is the sum of. time_state (ndx,) and
    time_input (nu,): by how much the time of the event changes. reset_state (ndx+, ndx),
    reset_input (ndx+, nu): derivatives of the reset. reset_rate (ndx+,): its rate of change.
    """

    slope: float
    size: float
    time_state: Array
    time_input: Array
    reset_state: Array
    reset_input: Array
    reset_rate: Array


class PointProperty(Generic[T]):
    """A property that a point finds by this function when it is first asked for, and then knows."""

    def __init__(self, find: Callable[[Any], T]) -> None:
        self._find = find

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, point: Any, owner: type) -> T:
        value: T = self._find(point)
        point.__dict__[self._name] = value
        return value


class Point:
    """A mode at (t, x, u): field (ndx,), guards (n,) and their derivatives, found when asked for.

    Subclasses keep more. x is a point of the space: normalised where that is a manifold.
    """

    mode: ModeModel

    def __init__(self, mode: ModeModel, t: float, x: Array, u: Array) -> None:
        self.mode, self.t, self.x, self.u = mode, t, x, u

    def __reduce__(self) -> tuple[Callable[..., Point], tuple[float, Array, Array]]:
        return self.mode.calc, (self.t, self.x, self.u)

    @PointProperty
    def field(self) -> Array:
        """The field."""
        return self.mode.field_at(self)

    @PointProperty
    def guards(self) -> Array:
        """The guards."""
        return self.mode.guards_at(self)

    @PointProperty
    def field_jacobian(self) -> FieldJacobian:
        """The derivatives of the field."""
        return self.mode.field_jacobian_at(self)

    @PointProperty
    def guard_jacobian(self) -> GuardJacobian:
        """The derivatives of the guards."""
        return self.mode.guard_jacobian_at(self)


FREE_PACE = Pace()


class ModeModel(ABC):
    """A state space, the vector field on it, the guards that end its flow, and what it holds.

    `guard_scales` (n,) are the sizes that tolerances of the guards are relative to, in the unit of
    each. `held` are the constraints that every state of the mode obeys, and `project` takes a state
    near them to one that does; None where there are none.

    What it is not made for, a mode says: whether it and its guards have derivatives
    (`differentiable`, `guards_differentiable`), whether another mode may flow on from a state
    (`selects`), and whether it takes whole steps at once (`compiled`). `steady_pace` is the pace
    where that is one at all points, None where each has its own. `takes_guards`: its guards are
    those of the edges that leave it. A point serves field and guards where it `keeps_points`, and
    one guard costs as much as all with `guards_together`.
    """

    key: ModeKey
    space: Space
    nu: int = 0
    guard_names: tuple[str, ...] = ()
    held: Held | None = None
    project: Callable[[Array], Array] | None = None
    differentiable: bool = True
    guards_differentiable: bool = True
    selects: bool = False
    steady_pace: Pace | None = FREE_PACE
    compiled: bool = False
    takes_guards: bool = False
    keeps_points: bool = True
    guards_together: bool = True
    point: ClassVar[type[Point]] = Point

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key!r})"

    @property
    def guard_scales(self) -> Array:
        """Sizes (n,) of the guards: ones."""
        return np.ones(len(self.guard_names))

    def owns(self, guards: GuardSet) -> bool:
        """Whether these guards, given with its edges, are those that it has of itself."""
        return guards is self.guard_set

    def with_guards(self, guards: GuardSet) -> ModeModel:
        """The mode with these guards, where it takes guards."""
        raise SystemDefinitionError(f"mode {self.key!r} has guards of its own")

    # At a point

    def calc(self, t: float, x: Array, u: Array) -> Point:
        """The mode at (t, x, u)."""
        return self.point(self, t, x, u)

    def calc_diff(self, point: Point) -> Slopes:
        """Derivatives of field and guards at a point that this mode has made.

        Raises `SystemDefinitionError` where it has none.
        """
        return Slopes(point.field_jacobian, point.guard_jacobian)

    @abstractmethod
    def field_at(self, point: Any) -> Array:
        """The field f (ndx,)."""

    @abstractmethod
    def guards_at(self, point: Any) -> Array:
        """The guards (n,)."""

    def field_jacobian_at(self, point: Any) -> FieldJacobian:
        """Derivatives of the field alone."""
        raise SystemDefinitionError(f"the vector field of mode {self.key!r} has no Jacobian")

    def guard_jacobian_at(self, point: Any) -> GuardJacobian:
        """Derivatives of the guards alone."""
        raise SystemDefinitionError(f"the guards of mode {self.key!r} have no Jacobian")

    def free_input_at(self, point: Any) -> Array:
        """The derivative D_u f (ndx, nu) if the mode held nothing; here that of the field."""
        by_input: Array = point.field_jacobian.input
        return by_input

    def guard_row_at(self, i: int, point: Any) -> GuardJacobian:
        """Derivatives of guard i alone: by time a number, by state (ndx,), by input (nu,)."""
        d = point.guard_jacobian
        return GuardJacobian(d.time[i], d.state[i], d.input[i])

    def outputs_at(self, point: Any) -> Mapping[str, Array]:
        """Named quantities worth plotting, such as contact forces; arrays that last."""
        return {}

    def select_at(self, point: Any) -> ModeKey:
        """The mode that really flows on from a point just after a jump, with its own forces."""
        return self.key

    def pace_at(self, point: Any) -> Pace:
        """What the error estimates of an integrator do not tell it."""
        assert self.steady_pace is not None
        return self.steady_pace

    # At (t, x, u)

    def field(self, t: float, x: Array, u: Array) -> Array:
        """The field (ndx,)."""
        return self.calc(t, x, u).field

    def jacobian(self, t: float, x: Array, u: Array) -> FieldJacobian:
        """Derivatives of the field."""
        return self.calc(t, x, u).field_jacobian

    def guards(self, t: float, x: Array, u: Array) -> Array:
        """The guards (n,)."""
        return self.calc(t, x, u).guards

    def guard(self, i: int, t: float, x: Array, u: Array) -> float:
        """The value of guard i."""
        return float(self.guards(t, x, u)[i])

    def guard_jacobian(self, t: float, x: Array, u: Array) -> GuardJacobian:
        """Derivatives of the guards."""
        return self.calc(t, x, u).guard_jacobian

    def outputs(self, t: float, x: Array, u: Array) -> Mapping[str, Array]:
        """Named quantities worth plotting."""
        return self.outputs_at(self.calc(t, x, u))

    def select(self, t: float, x: Array, u: Array) -> ModeKey:
        """The mode that really flows on."""
        return self.select_at(self.calc(t, x, u))

    def pace(self, t: float, x: Array, u: Array) -> Pace:
        """The limits of an integrator's steps from a point on."""
        return self.steady_pace or self.pace_at(self.calc(t, x, u))

    @cached_property
    def guard_set(self) -> GuardSet:
        """The guards alone."""
        return GuardSet(
            self.guard_names,
            self.guards,
            self.guard_jacobian if self.guards_differentiable else None,
            self.guard_scales,
            self.guard,
        )

    # Along a step, and across an event

    def step(self, ahead: StepAhead, law: InputLaw) -> WholeStep | None:
        """The step of DOP853 at once, None where there is none.

        It goes through coordinates, normalised where field and guards are evaluated.
        """
        return None

    def transition(
        self, ahead: StepAhead, u: Array, noise: Diffusion | None = None
    ) -> StepTransition | None:
        """A step with its derivative, and noise; their entries count for the error too."""
        return None

    @property
    def many(self) -> ManySteps | None:
        """Its steps from many points at once, None where there are none."""
        return None

    def many_jumps(self, i: int, reset: ResetModel) -> Many | None:
        """The jump of guard i by a reset from many points (t, x, u), None where there is none.

        Under held inputs: x+ (m, nx+), the guard's rate and the size of its terms (m, 2), and
        `time_state`, `reset_state` and `reset_rate` of `JumpTerms`.
        """
        return None

    def jump_terms(self, i: int, reset: ResetModel, at: JumpPoint, du: Array) -> JumpTerms:
        """What guard i and a reset do to first order at a jump; du (nu,): the rate of the input.

        Raises `SystemDefinitionError` where guard or reset have no derivative.
        """
        return linear_terms(self, i, reset.calc_diff(at), at, du)


def linear_terms(mode: ModeModel, i: int, r: ResetJacobian, at: JumpPoint, du: Array) -> JumpTerms:
    """The terms of guard i of a mode and a reset, see `sensitivity.saltation`."""
    point = mode.calc(at.t, at.x, at.u) if at.before is None else at.before
    f, g = np.asarray(point.field, dtype=np.float64), mode.guard_row_at(i, point)
    slope = float(g.time + g.state @ f + g.input @ du)
    size = abs(g.time) + np.abs(g.state) @ np.abs(f) + np.abs(g.input) @ np.abs(du)
    with np.errstate(divide="ignore", invalid="ignore"):
        by_state, by_input = -g.state / slope, -g.input / slope
    rate = r.time + r.state @ f + r.input @ du
    return JumpTerms(slope, float(size), by_state, by_input, r.state, r.input, rate)


@dataclass(frozen=True)
class Jump:
    """What a reset returns: the post-event state, and what it knows about the event.

    `mode` is the post-event mode where the reset decides it, `impulses` the normal impulse per
    contact in N s, `report` whatever the solver of the reset certifies. `guards`: those that took
    part in the event, where others that seemed to fire with them do not; None for all. Of guards
    that fire one after the other all take part.
    """

    state: Array
    mode: ModeKey | None = None
    impulses: Array = field(default_factory=lambda: np.zeros(0))
    report: Any = None
    guards: tuple[str, ...] | None = None


class JumpPoint(NamedTuple):
    """The point (t, x-, u-) where a reset is made, and what is known there, None where it is not.

    report: of the jump of the reset. before: the mode before it at this point.
    """

    t: float
    x: Array
    u: Array
    report: Any = None
    before: Point | None = None


class ResetBorder(NamedTuple):
    """The derivative of a reset at the border between two cases: linear on either side of it.

    name: the case entered where `distance`, a number that is zero at the border, is positive.
    `distance` has its derivatives by (t, x, u) before the event; `positive` and `negative` are
    those of the reset on either side. What is over in a time as short as the perturbation is
    small, like a brief slip, is part of the reset: afterwards the mode after the event flows.
    """

    name: str
    distance: GuardJacobian
    positive: ResetJacobian
    negative: ResetJacobian

    @property
    def is_linear(self) -> bool:
        """Whether both sides have the same derivative."""
        return all(map(np.array_equal, self.positive, self.negative))


class ResetModel(ABC):
    """The jump map x+ = R(t, x-, u-), and its derivatives.

    at_once: whether it is the whole event of guards of which some are about to fall through zero.
    """

    differentiable: bool = True
    at_once: bool = False

    @abstractmethod
    def calc(self, t: float, x: Array, u: Array) -> Jump:
        """The jump at (t, x-, u-)."""

    def calc_diff(self, at: JumpPoint) -> ResetJacobian:
        """Derivatives D_t R (ndx+,), D_x R (ndx+, ndx-), D_u R (ndx+, nu).

        Raises `SystemDefinitionError` where there are none.
        """
        raise SystemDefinitionError("the reset has no Jacobian")

    def border_at(self, at: JumpPoint, key: ModeKey, u_after: Array) -> ResetBorder | None:
        """Two derivatives where the reset is at a border; None where `calc_diff` is its derivative.

        key, u_after: mode after the event, and the input there. Raises `InputError` where there are
        more than two, or none.
        """
        return None

    def __call__(self, t: float, x: Array, u: Array) -> Jump:
        """The jump at (t, x-, u-)."""
        return self.calc(t, x, u)

    def jacobian(self, t: float, x: Array, u: Array) -> ResetJacobian:
        """Derivatives at (t, x-, u-)."""
        return self.calc_diff(JumpPoint(t, x, u))
