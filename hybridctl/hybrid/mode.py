r"""The parts of a mode graph: modes that flow, guards that fire, resets that jump.

Argument order is always (t, x, u): time in s, state (nx,), input (nu,). Derivatives with
respect to the state are taken in the tangent space, so they have `ndx` columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from hybridctl.checks import Array, count, floats
from hybridctl.errors import SystemDefinitionError
from hybridctl.spaces import Space

ModeKey: TypeAlias = Hashable
InputLaw: TypeAlias = Callable[[float, Array], Array]


class FieldJacobian(NamedTuple):
    """Derivatives of a vector field: `state` (ndx, ndx) and `input` (ndx, nu).

    value (ndx,): the field itself, where they had to know it; otherwise None.
    """

    state: Array
    input: Array
    value: Array | None = None


class GuardJacobian(NamedTuple):
    """Derivatives of one guard, or of n guards with a leading axis: D_t g, D_x g, D_u g."""

    time: Array
    state: Array
    input: Array


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


def _check_functions(of: str, needed: Mapping[str, Any], optional: Mapping[str, Any]) -> None:
    given = dict(needed) | {name: f for name, f in optional.items() if f is not None}
    for name, function in given.items():
        if not callable(function):
            raise SystemDefinitionError(f"{name} {of} must be a function, got {function!r}")


@dataclass(frozen=True)
class Mode:
    r"""A state space and the vector field :math:`\dot x = f(t, x, u)` on it.

    `field` returns a velocity in the tangent space (ndx,); `jacobian` its exact derivatives.
    `outputs` gives named quantities worth plotting, such as contact forces. `select` names the
    mode that really flows on from (t, x, u) just after a jump, with the post-event input: the
    mode itself where it is consistent with its own forces ([RS] 2.3.4, Fig. 2.6). `pace` tells
    an integrator what the error estimate of its steps does not. `project` takes a state near the
    constraints of the mode, such as closed contacts, to one that obeys them.
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

    def __post_init__(self) -> None:
        count("nu", self.nu, at_least=0)
        if not isinstance(self.space, Space):
            raise SystemDefinitionError(
                f"space of mode {self.key!r} must be a space, such as VectorSpace, got "
                f"{self.space!r}"
            )
        _check_functions(
            f"of mode {self.key!r}",
            {"field": self.field},
            {
                "jacobian": self.jacobian,
                "outputs": self.outputs,
                "select": self.select,
                "pace": self.pace,
                "project": self.project,
            },
        )


@dataclass(frozen=True)
class Guard:
    """A scalar function that is positive inside its mode and fires when it falls through zero."""

    name: str
    value: Callable[[float, Array, Array], float]
    jacobian: Callable[[float, Array, Array], GuardJacobian] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise SystemDefinitionError(f"name of a guard must be text, got {self.name!r}")
        _check_functions(
            f"of guard {self.name!r}", {"value": self.value}, {"jacobian": self.jacobian}
        )


@dataclass(frozen=True)
class GuardSet:
    """All guards of a mode, evaluated in one call: `values(t, x, u)` is (len(names),)."""

    names: tuple[str, ...]
    values: Callable[[float, Array, Array], Array]
    jacobian: Callable[[float, Array, Array], GuardJacobian] | None = None

    def __post_init__(self) -> None:
        if len(set(self.names)) != len(self.names):
            raise SystemDefinitionError(f"guard names must differ within a mode: {self.names}")

    @staticmethod
    def of(guards: Sequence[Guard]) -> GuardSet:
        """The set of separately given scalar guards."""
        together = _Together(tuple(guards))
        complete = all(g.jacobian is not None for g in guards)
        return GuardSet(
            tuple(g.name for g in guards), together.values, together.jacobian if complete else None
        )


@dataclass(frozen=True)
class _Together:
    """Scalar guards as one function."""

    guards: tuple[Guard, ...]

    def values(self, t: float, x: Array, u: Array) -> Array:
        rows = [g.value(t, x, u) for g in self.guards]
        try:
            return floats(rows)
        except (TypeError, ValueError) as error:
            raise SystemDefinitionError(
                f"guards must return a number each, but at t = {t} they are "
                + ", ".join(f"{g.name!r}: {v!r}" for g, v in zip(self.guards, rows, strict=True))
            ) from error

    def jacobian(self, t: float, x: Array, u: Array) -> GuardJacobian:
        rows = [g.jacobian(t, x, u) for g in self.guards if g.jacobian is not None]
        return GuardJacobian(
            np.array([r.time for r in rows], dtype=np.float64),
            np.array([r.state for r in rows], dtype=np.float64).reshape(len(rows), -1),
            np.array([r.input for r in rows], dtype=np.float64).reshape(len(rows), len(u)),
        )


@dataclass(frozen=True)
class Jump:
    """What a reset returns: the post-event state, and what it knows about the event.

    `mode` is the post-event mode where the reset decides it, `impulses` the normal impulse per
    contact in N s, `report` whatever the solver of the reset certifies.
    """

    state: Array
    mode: ModeKey | None = None
    impulses: Array = field(default_factory=lambda: np.zeros(0))
    report: Any = None


@dataclass(frozen=True)
class Reset:
    """The jump map x+ = R(t, x-, u-); `map` returns the new state alone or a whole `Jump`.

    `border` says whether (t, x-, u-) is where the map has two one-sided derivatives, given the
    mode after the event and the input u+ there; None where `jacobian` is its derivative. It
    raises `InputError` where there are more than two, or none.
    """

    map: Callable[[float, Array, Array], Array | Jump]
    jacobian: Callable[[float, Array, Array], ResetJacobian] | None = None
    border: Callable[[float, Array, Array, ModeKey, Array], ResetBorder | None] | None = None

    def __post_init__(self) -> None:
        optional = {"jacobian": self.jacobian, "border": self.border}
        _check_functions("of a reset", {"map": self.map}, optional)

    def __call__(self, t: float, x: Array, u: Array) -> Jump:
        """The jump at (t, x-, u-)."""
        result = self.map(t, x, u)
        if isinstance(result, Jump):
            return result
        try:
            return Jump(floats(result))
        except (TypeError, ValueError) as error:
            raise SystemDefinitionError(
                f"a reset must return a state or a Jump, got {result!r} at t = {t}"
            ) from error

    @staticmethod
    def identity(ndx: int | None = None) -> Reset:
        """The reset that leaves the state alone, for events that only change the mode.

        `ndx` is the dimension of the tangent space, needed where it differs from that of x.
        """
        return Reset(_same, _IdentityJacobian(ndx))


def _same(t: float, x: Array, u: Array) -> Array:
    return x


@dataclass(frozen=True)
class _IdentityJacobian:
    ndx: int | None

    def __call__(self, t: float, x: Array, u: Array) -> ResetJacobian:
        n = len(x) if self.ndx is None else self.ndx
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
                        f"the transition from {source!r} needs a {kind.__name__}, got {part!r}"
                    )
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "guards", guards)
        object.__setattr__(self, "reset", reset)
        object.__setattr__(self, "target", target)
        object.__setattr__(self, "rest", rest)


def _no_edge(fired: tuple[str, ...]) -> Edge | None:
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
    rest: Callable[[tuple[str, ...]], Edge | None] = _no_edge
