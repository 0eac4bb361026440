r"""The parts of a mode graph: modes that flow, guards that fire, resets that jump.

Argument order is always (t, x, u): time in s, state (nx,), input (nu,). Derivatives with
respect to the state are taken in the tangent space, so they have `ndx` columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from hybridctl.checks import Array, count, floats, quoted
from hybridctl.errors import ConstraintViolatedError, SystemDefinitionError
from hybridctl.hybrid.guards import Guard as Guard
from hybridctl.hybrid.guards import GuardJacobian as GuardJacobian
from hybridctl.hybrid.guards import GuardSet as GuardSet
from hybridctl.hybrid.guards import check_functions
from hybridctl.hybrid.laws import LinearFeedback
from hybridctl.spaces import Space

ModeKey: TypeAlias = Hashable


class FieldJacobian(NamedTuple):
    """Derivatives of a vector field: `state` (ndx, ndx) and `input` (ndx, nu).

    value (ndx,): the field itself, where they had to know it; otherwise None.
    """

    state: Array
    input: Array
    value: Array | None = None


class ResetJacobian(NamedTuple):
    """Derivatives of a reset: D_t R (ndx+,), D_x R (ndx+, ndx-), D_u R (ndx+, nu)."""

    time: Array
    state: Array
    input: Array


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


class Pace(NamedTuple):
    """Times in s that limit an integrator's steps from a point (t, x, u) on.

    longest_step: none may be longer, because fast terms of the field are at rest there, or
    because the field ends. relaxation: the time constant of its fastest decay; an explicit
    method takes no steps much longer than that.
    """

    longest_step: float = math.inf
    relaxation: float = math.inf


class Taken(NamedTuple):
    """One step: its error in units of the tolerance, and its values at the nodes of `series`.

    states (8, nx), guards (8, n), and the bounds (n,) of these, see `step`; inputs (8, nu) where
    they are not held.
    """

    error: float
    states: Array
    guards: Array
    bounds: Array
    inputs: Array | None = None


class Diffusion(NamedTuple):
    """White noise on a mode: densities W (ndx, ndx), and V (nu, nu) of what enters as the input."""

    density: Array
    through_input: Array


class Moved(NamedTuple):
    """A step with its error, its end state (nx,) and the derivative of that (ndx, ndx).

    noise (ndx, ndx): the covariance of the noise gathered on it, and bounds (n,) of the guards as
    those of `Taken`, where noise was asked for.
    """

    error: float
    state: Array
    matrix: Array
    noise: Array | None = None
    bounds: Array | None = None


class WholeStep(Protocol):
    """A compiled step of DOP853, for the field and guards it was made of.

    It goes through coordinates, normalised where field and guards are evaluated, as a generic step
    does. Where what it was made of does not hold for such a step there is none. A pure function: it
    keeps nothing between calls.
    """

    @property
    def field(self) -> Callable[[float, Array, Array], Array]:
        """The field of the mode."""
        ...

    @property
    def guards(self) -> Callable[[float, Array, Array], Array]:
        """The values of its guards."""
        ...

    def __call__(
        self, t: float, x: Array, u: Array, h: float, rtol: float, atol: float
    ) -> Taken | None:
        """The step of length h from (t, x) with the input u held, None where it does not hold."""
        ...

    def under(
        self, law: LinearFeedback, t: float, x: Array, h: float, rtol: float, atol: float
    ) -> Taken | None:
        """The step under a feedback law, in a vector space."""
        ...

    def transition(
        self,
        t: float,
        x: Array,
        u: Array,
        h: float,
        rtol: float,
        atol: float,
        noise: Diffusion | None = None,
    ) -> Moved | None:
        """The same step with its derivative, and noise; their entries count for the error too."""
        ...


class Flowed(NamedTuple):
    """The end of a flow: state (nx,), its derivative (ndx, ndx), noise on the way (ndx, ndx)."""

    state: Array
    matrix: Array
    noise: Array


@dataclass(frozen=True, eq=False)
class Held:
    """What a mode holds: residuals(x) (k,), zero on it, such as gaps of closed contacts.

    tolerances (k,): the size of each residual that still counts as zero, in its own unit. names,
    units: (k,), for messages. jacobian: D_x of the residuals (k, ndx). refuse(what, key, x): raises
    for further states at which no arc of the mode begins.
    """

    names: tuple[str, ...]
    residuals: Callable[[Array], Array]
    tolerances: Array
    units: tuple[str, ...]
    jacobian: Callable[[Array], Array] | None = field(default=None, kw_only=True)
    refuse: Callable[[str, ModeKey, Array], None] | None = field(default=None, kw_only=True)

    def excess(self, x: Array) -> float:
        """The largest residual at x in units of its tolerance."""
        return float((np.abs(self.residuals(x)) / self.tolerances).max(initial=0.0))

    def check(self, what: str, key: ModeKey, x: Array) -> None:
        """Raise `ConstraintViolatedError` if `what`, the state x, is off what mode `key` holds.

        And what `refuse` raises.
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


@dataclass(frozen=True)
class Mode:
    r"""A state space and the vector field :math:`\dot x = f(t, x, u)` on it.

    `field` returns a velocity in the tangent space (ndx,); `jacobian` its exact derivatives.
    `outputs` gives named quantities worth plotting, such as contact forces. `select` names the
    mode that really flows on from (t, x, u) just after a jump, with the post-event input: the
    mode itself where it is consistent with its own forces ([RS] 2.3.4, Fig. 2.6). `pace` tells
    an integrator what the error estimate of its steps does not. `held` are the constraints that
    every state of the mode obeys, such as closed contacts, and `project` takes a state near them to
    one that does. `step` takes whole steps of this field, compiled. `flow(t, x, u, h, density)`
    is the flow over h s in closed form, under a held input and noise of this density (ndx, ndx) at
    x, None for none; of a mode whose guards no state reaches: they are fired by contact signals.
    """

    key: ModeKey
    space: Space
    field: Callable[[float, Array, Array], Array]
    nu: int = 0
    jacobian: Callable[[float, Array, Array], FieldJacobian] | None = None
    outputs: Callable[[float, Array, Array], Mapping[str, Array]] | None = None
    select: Callable[[float, Array, Array], ModeKey] | None = None
    pace: Callable[[float, Array, Array], Pace] | None = None
    project: Callable[[Array], Array] | None = None
    held: Held | None = None
    step: WholeStep | None = None
    flow: Callable[[float, Array, Array, float, Array | None], Flowed] | None = None

    def __post_init__(self) -> None:
        count("nu", self.nu, at_least=0)
        if not isinstance(self.space, Space):
            raise SystemDefinitionError(
                f"space of mode {self.key!r} must be a space, such as VectorSpace, got "
                f"{self.space!r}"
            )
        optional = ("jacobian", "outputs", "select", "pace", "project", "step", "flow")
        check_functions(self, f"mode {self.key!r}", "field", *optional)


@dataclass(frozen=True)
class Jump:
    """What a reset returns: the post-event state, and what it knows about the event.

    `mode` is the post-event mode where the reset decides it, `impulses` the normal impulse per
    contact in N s, `report` whatever the solver of the reset certifies. `guards`: those that took
    part in the event, where others that seemed to fire with them do not; None for all.
    """

    state: Array
    mode: ModeKey | None = None
    impulses: Array = field(default_factory=lambda: np.zeros(0))
    report: Any = None
    guards: tuple[str, ...] | None = None


class JumpTerms(NamedTuple):
    """The jump of one guard to first order, see `sensitivity.gains`.

    slope: the rate of the guard. size: of the terms it is the sum of. The others are the arrays of
    `JumpGains`.
    """

    slope: float
    size: float
    time_state: Array
    time_input: Array
    reset_state: Array
    reset_input: Array
    field_change: Array
    reset_rate: Array


class WholeJump(Protocol):
    """The jump of one guard between two modes, compiled, to first order."""

    def joins(self, before: Mode, after: Mode, guards: GuardSet) -> bool:
        """Whether these fields and guards are those that it was made of."""
        ...

    def __call__(
        self, t: float, x: Array, u: Array, du: Array, x_after: Array, u_after: Array
    ) -> JumpTerms:
        """The jump from (t, x, u) to (x_after, u_after); du (nu,) is the rate of u."""
        ...


@dataclass(frozen=True)
class Reset:
    """The jump map x+ = R(t, x-, u-); `map` returns the new state alone or a whole `Jump`.

    `border` says whether (t, x-, u-) is where the map has two one-sided derivatives, given the
    mode after the event and the input u+ there; None where `jacobian` is its derivative. It
    raises `InputError` where there are more than two, or none. `whole` has its derivative together
    with those of the guard and the fields, compiled, where it serves one guard. `known` makes this
    reset at the state of one event from the `report` of its jump, so that its derivatives need
    not find again what the jump found.
    """

    map: Callable[[float, Array, Array], Array | Jump]
    jacobian: Callable[[float, Array, Array], ResetJacobian] | None = None
    border: Callable[[float, Array, Array, ModeKey, Array], ResetBorder | None] | None = None
    whole: WholeJump | None = None
    known: Callable[[Any], Reset] | None = None

    def __post_init__(self) -> None:
        check_functions(self, "a reset", "map", "jacobian", "border", "whole", "known")

    def given(self, report: Any) -> Reset:
        """The reset at an event with this report, None for one of which nothing is known."""
        return self if self.known is None or report is None else self.known(report)

    def __call__(self, t: float, x: Array, u: Array) -> Jump:
        """The jump at (t, x-, u-)."""
        result = self.map(t, x, u)
        if isinstance(result, Jump):
            return result
        try:
            return Jump(floats(result))
        except (TypeError, ValueError) as error:
            raise SystemDefinitionError(
                f"a reset must return a state or a Jump, got {quoted(result)} at t = {t:.9g} s"
            ) from error

    @staticmethod
    def identity(ndx: int | None = None) -> Reset:
        """The reset that leaves the state alone, for events that only change the mode.

        `ndx` is the dimension of the tangent space, needed where it differs from that of x.
        """
        return Reset(_unchanged, partial(_unit, ndx))


def _unchanged(t: float, x: Array, u: Array) -> Array:
    return x


def _unit(ndx: int | None, t: float, x: Array, u: Array) -> ResetJacobian:
    n = len(x) if ndx is None else ndx
    return ResetJacobian(np.zeros(n), np.eye(n), np.zeros((n, len(u))))


@dataclass(frozen=True)
class Edge:
    """A reset and where it leads; `target` None leaves the mode to the reset."""

    reset: Reset
    target: ModeKey | None = None


@dataclass(frozen=True)
class Transition:
    """An edge of the mode graph: what happens when `guards` fire in mode `source`.

    One guard in the ordinary case; several where an event of simultaneous guards has a reset of
    its own. `target` None leaves the post-event mode to the reset. `rest` is the edge to take
    instead where events of these guards accumulate (see `simulate`).
    """

    source: ModeKey
    guards: tuple[Guard, ...]
    reset: Reset
    target: ModeKey | None
    rest: Edge | None

    def __init__(
        self,
        source: ModeKey,
        guard: Guard | Sequence[Guard],
        reset: Reset,
        target: ModeKey | None = None,
        rest: Edge | None = None,
    ) -> None:
        guards = tuple(guard) if isinstance(guard, Sequence) else (guard,)
        if not guards:
            raise SystemDefinitionError(f"the transition from {source!r} has no guard")
        for kind, parts in ((Guard, guards), (Reset, (reset,))):
            for part in parts:
                if not isinstance(part, kind):
                    raise SystemDefinitionError(
                        f"the transition from {source!r} needs a {kind.__name__}, got "
                        f"{quoted(part)}"
                    )
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "guards", guards)
        object.__setattr__(self, "reset", reset)
        object.__setattr__(self, "target", target)
        object.__setattr__(self, "rest", rest)


def _no_rest(fired: tuple[str, ...]) -> None:
    return None


@dataclass(frozen=True)
class Outgoing:
    """The ways out of a mode: its guards, and the edge for a set of them that fire together.

    `edge` returns None where this set has no edge of its own; the single edges are then
    applied one after the other. `rest` gives the edge to take where events of these guards
    accumulate: the state they tend to, and the mode that flows on from there.
    """

    guards: GuardSet
    edge: Callable[[tuple[str, ...]], Edge | None]
    rest: Callable[[tuple[str, ...]], Edge | None] = _no_rest
