r"""Parameters beside the state, so that the same maps and jumps serve both.

A parameter p is a state that stays as it is, :math:`\dot p = 0`, so in (x, p) the variational
flow and the jump of an event are

.. math::
    \dot z = A z + B\, \delta u + D_p f\, \delta p, \qquad
    \delta t = -(D_x g\, \delta x^- + D_p g\, \delta p) / \dot g, \qquad
    \delta x^+ = D_x R\, \delta x^- + D_p R\, \delta p - (f^+ - \dot R)\, \delta t,

and everything that takes a system and a trajectory (linearization, simultaneous events, moments,
feedback) serves parameters too. `with_parameters` gives both in (x, p), where p is the
*deviation* from the nominal value: it is recorded as zero, and of it only derivatives are used.

A system whose last inputs are parameters gives its own derivatives, see `inputs_as_parameters`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from hybridctl.checks import Array, array
from hybridctl.errors import InputError, SystemDefinitionError
from hybridctl.hybrid.mode import (
    Edge,
    FieldJacobian,
    GuardJacobian,
    Held,
    Jump,
    Mode,
    ModeKey,
    Outgoing,
    Reset,
    ResetBorder,
    ResetJacobian,
)
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Arc, Event, HybridTrajectory
from hybridctl.spaces import Space, difference_jacobians

At = Callable[[ModeKey, float, Array, Array], Array]
T = TypeVar("T")
Function = Callable[[float, Array, Array], T]
AtBorder = Callable[[float, Array, Array, ModeKey, Array], ResetBorder | None]


@dataclass(frozen=True, eq=False)
class ParameterDerivatives:
    """Derivatives of a hybrid system by np named parameters, at (t, x, u) of a mode.

    field(mode, t, x, u): D_p f (ndx, np). guards(mode, t, x, u): D_p g (n, np), in the order of
    the guards of the mode. reset(mode, fired, t, x, u): D_p R (ndx+, np), of the edge from `mode`
    when the guards `fired` fire, None where no reset depends on p. moves_borders: False where
    parameters change neither the border of a reset nor what the reset does at it; otherwise resets
    at a border are refused.
    """

    names: tuple[str, ...]
    field: At
    guards: At
    reset: Callable[[ModeKey, tuple[str, ...], float, Array, Array], Array] | None
    moves_borders: bool = True

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) != len(self.names):
            raise InputError(f"names must be one or more different parameters, got {self.names}")


def with_parameters(
    system: HybridSystem, trajectory: HybridTrajectory, derivatives: ParameterDerivatives
) -> tuple[HybridSystem, HybridTrajectory]:
    """The system and its trajectory in (x, p); see this module. Inputs stay as they are.

    Where the system lacks a Jacobian, so does the result. When they are asked for, derivatives of
    the wrong shape raise `SystemDefinitionError`, and resets at a border `InputError`.
    """
    view, n = _Augmented(system, derivatives), len(derivatives.names)
    names = system.guard_names
    return HybridSystem(view.mode, view.outgoing, names), HybridTrajectory(
        tuple(_augmented_arc(arc, n) for arc in trajectory.arcs),
        tuple(_augmented_event(event, n) for event in trajectory.events),
    )


def with_guard_offsets(system: HybridSystem, event: Event) -> tuple[HybridSystem, Event]:
    """The system and one of its events in (x, w), where guard i of the event fires at g + w_i = 0.

    w is recorded as zero. Where the reset has a border, that stays where it is.
    """
    n = len(event.guards)

    def field(key: ModeKey, t: float, x: Array, u: Array) -> Array:
        return np.zeros((system.mode(key).space.ndx, n))

    def guards(key: ModeKey, t: float, x: Array, u: Array) -> Array:
        names = system.outgoing(key).guards.names
        return np.array([[float(name == own) for own in event.guards] for name in names])

    by = ParameterDerivatives(event.guards, field, guards, None, moves_borders=False)
    view = _Augmented(system, by)
    return HybridSystem(view.mode, view.outgoing, system.guard_names), _augmented_event(event, n)


@dataclass(frozen=True)
class _AugmentedSpace:
    """A space with n parameters beside it."""

    space: Space
    n: int

    @property
    def nx(self) -> int:
        return self.space.nx + self.n

    @property
    def ndx(self) -> int:
        return self.space.ndx + self.n

    def integrate(self, x: Array, dx: Array) -> Array:
        moved = self.space.integrate(x[: -self.n], dx[: -self.n])
        return np.concatenate((moved, x[-self.n :] + dx[-self.n :]))

    def difference(self, x0: Array, x1: Array) -> Array:
        moved = self.space.difference(x0[: -self.n], x1[: -self.n])
        return np.concatenate((moved, x1[-self.n :] - x0[-self.n :]))

    def difference_jacobians(self, x0: Array, x1: Array) -> tuple[Array, Array]:
        by_first, by_second = -np.eye(self.ndx), np.eye(self.ndx)
        parts = difference_jacobians(self.space, x0[: -self.n], x1[: -self.n])
        by_first[: -self.n, : -self.n], by_second[: -self.n, : -self.n] = parts
        return by_first, by_second

    def rate(self, x: Array, dx: Array) -> Array:
        return np.concatenate((self.space.rate(x[: -self.n], dx[: -self.n]), dx[-self.n :]))

    def transport(self, dx: Array) -> Array:
        result = np.zeros((self.ndx, self.ndx))
        result[: -self.n, : -self.n] = self.space.transport(dx[: -self.n])
        return result

    def normalize(self, x: Array) -> Array:
        return np.concatenate((self.space.normalize(x[: -self.n]), x[-self.n :]))

    def check(self, name: str, x: Array) -> None:
        self.space.check(name, x[: -self.n])


@dataclass(frozen=True, eq=False)
class _Augmented:
    """A system with parameters as states that stay as they are."""

    system: HybridSystem
    by: ParameterDerivatives

    @property
    def n(self) -> int:
        return len(self.by.names)

    def mode(self, key: ModeKey) -> Mode:
        mode, n = self.system.mode(key), self.n
        return replace(
            mode,
            space=_AugmentedSpace(mode.space, n),
            field=lambda t, x, u: np.concatenate((mode.field(t, x[:-n], u), np.zeros(n))),
            jacobian=None if mode.jacobian is None else self._field(key, mode.jacobian),
            outputs=None if mode.outputs is None else _of_state(mode.outputs, n),
            select=None if mode.select is None else _of_state(mode.select, n),
            pace=None if mode.pace is None else _of_state(mode.pace, n),
            project=None if mode.project is None else _beside(mode.project, n),
            held=None if mode.held is None else _held_beside(mode.held, n),
            step=None,
            flow=None,
        )

    def _field(self, key: ModeKey, own: Function[FieldJacobian]) -> Function[FieldJacobian]:
        def jacobian(t: float, x: Array, u: Array) -> FieldJacobian:
            x = x[: -self.n]
            d = own(t, x, u)
            by_p = self._shaped("the field", self.by.field(key, t, x, u), key, len(d.state))
            below = np.zeros((self.n, d.state.shape[1] + self.n))
            return FieldJacobian(
                np.vstack((np.hstack((d.state, by_p)), below)),
                np.vstack((d.input, np.zeros((self.n, len(u))))),
            )

        return jacobian

    def outgoing(self, key: ModeKey) -> Outgoing:
        own = self.system.outgoing(key)
        guards, n = own.guards, self.n
        return Outgoing(
            replace(
                guards,
                values=_of_state(guards.values, n),
                jacobian=None if guards.jacobian is None else self._guards(key, guards.jacobian),
                one=None,
            ),
            lambda fired: self._edge(key, fired, own.edge(fired)),
            lambda fired: self._rest(own.rest(fired)),
        )

    def _guards(self, key: ModeKey, own: Function[GuardJacobian]) -> Function[GuardJacobian]:
        def jacobian(t: float, x: Array, u: Array) -> GuardJacobian:
            x = x[: -self.n]
            d = own(t, x, u)
            by_p = self._shaped("the guards", self.by.guards(key, t, x, u), key, len(d.time))
            return GuardJacobian(d.time, np.hstack((d.state, by_p)), d.input)

        return jacobian

    def _edge(self, key: ModeKey, fired: tuple[str, ...], edge: Edge | None) -> Edge | None:
        if edge is None:
            return None
        own = edge.reset.jacobian
        jacobian = None if own is None else self._reset(key, fired, own)
        border = None if edge.reset.border is None else self._border(edge.reset.border)
        return Edge(Reset(self._jump(edge.reset), jacobian, border), edge.target)

    def _rest(self, edge: Edge | None) -> Edge | None:
        return None if edge is None else Edge(Reset(self._jump(edge.reset)), edge.target)

    def _border(self, own: AtBorder) -> AtBorder:
        """The border in (x, p) where parameters leave it alone; otherwise it is refused."""

        def border(
            t: float, x: Array, u: Array, key: ModeKey, u_after: Array
        ) -> ResetBorder | None:
            found = own(t, x[: -self.n], u, key, u_after)
            if found is None:
                return None
            if self.by.moves_borders:
                raise InputError(
                    f"the reset at t = {t:.9g} s is at the border of {found.name!r}, where it has "
                    "no derivatives by parameters"
                )
            distance = np.append(found.distance.state, np.zeros(self.n))
            return found._replace(
                distance=found.distance._replace(state=distance),
                positive=self._padded(found.positive),
                negative=self._padded(found.negative),
            )

        return border

    def _jump(self, reset: Reset) -> Function[Jump]:
        def jump(t: float, x: Array, u: Array) -> Jump:
            own = reset(t, x[: -self.n], u)
            return replace(own, state=np.concatenate((own.state, x[-self.n :])))

        return jump

    def _reset(
        self, key: ModeKey, fired: tuple[str, ...], own: Function[ResetJacobian]
    ) -> Function[ResetJacobian]:
        def jacobian(t: float, x: Array, u: Array) -> ResetJacobian:
            x = x[: -self.n]
            d = own(t, x, u)
            if self.by.reset is None:
                return self._padded(d)
            by_p = self.by.reset(key, fired, t, x, u)
            return self._padded(d, self._shaped("a reset", by_p, key, len(d.time)))

        return jacobian

    def _padded(self, d: ResetJacobian, by_p: Array | None = None) -> ResetJacobian:
        """Derivatives of a reset in (x, p), which leaves p alone; by_p (ndx+, np), or none."""
        n = self.n
        by_p = np.zeros((len(d.time), n)) if by_p is None else by_p
        below = np.hstack((np.zeros((n, d.state.shape[1])), np.eye(n)))
        return ResetJacobian(
            np.concatenate((d.time, np.zeros(n))),
            np.vstack((np.hstack((d.state, by_p)), below)),
            np.vstack((d.input, np.zeros((n, d.input.shape[1])))),
        )

    def _shaped(self, what: str, value: Array, key: ModeKey, rows: int) -> Array:
        if np.shape(value) != (rows, self.n):
            raise SystemDefinitionError(
                f"derivatives of {what} of mode {key!r} by parameters must have shape "
                f"({rows}, {self.n}), got {np.shape(value)}"
            )
        return value


def _of_state(function: Function[T], n: int) -> Function[T]:
    """The function of (t, x, u) as one of (t, (x, p), u)."""
    return lambda t, x, u: function(t, x[:-n], u)


def _beside(project: Callable[[Array], Array], n: int) -> Callable[[Array], Array]:
    """The projection of x as one of (x, p), which leaves p alone."""
    return lambda x: np.concatenate((project(x[:-n]), x[-n:]))


def _held_beside(held: Held, n: int) -> Held:
    """What a mode holds of x, as what it holds of (x, p)."""
    slopes, refuse = held.jacobian, held.refuse

    def jacobian(x: Array) -> Array:
        assert slopes is not None
        d = slopes(x[:-n])
        return np.hstack((d, np.zeros((len(d), n))))

    return replace(
        held,
        residuals=lambda x: held.residuals(x[:-n]),
        jacobian=None if slopes is None else jacobian,
        refuse=None if refuse is None else lambda what, key, x: refuse(what, key, x[:-n]),
    )


def _augmented_arc(arc: Arc, n: int) -> Arc:
    steps, order, _ = arc.states.shape
    states = np.concatenate((arc.states, np.zeros((steps, order, n))), axis=2)
    states.flags.writeable = False
    return replace(arc, space=_AugmentedSpace(arc.space, n), states=states)


def _augmented_event(event: Event, n: int) -> Event:
    states = [np.append(x, np.zeros(n)) for x in (event.state_before, event.state_after)]
    for x in states:
        x.flags.writeable = False
    return replace(event, state_before=states[0], state_after=states[1])


Derivative = TypeVar("Derivative", FieldJacobian, GuardJacobian, ResetJacobian)


def inputs_as_parameters(
    system: HybridSystem, values: Mapping[str, float]
) -> tuple[HybridSystem, ParameterDerivatives]:
    """A system whose last inputs, in all modes, are the parameters `values`, held at these.

    Returns the system in the inputs that are left, and the derivatives by the parameters: the
    last columns of the system's own Jacobians. Modes of fewer inputs raise `InputError` when
    they are entered, and derivatives of what has no Jacobian `SystemDefinitionError`.
    """
    held = _Held(system, array("values", list(values.values()), (None,)))
    derivatives = ParameterDerivatives(tuple(values), held.field, held.guards, held.reset)
    return HybridSystem(held.mode, held.outgoing, system.guard_names), derivatives


@dataclass(frozen=True, eq=False)
class _Held:
    """A system with its last inputs held at values."""

    system: HybridSystem
    values: Array

    def field(self, key: ModeKey, t: float, x: Array, u: Array) -> Array:
        return self._last("the field", key, self.system.mode(key).jacobian)(t, x, u)

    def guards(self, key: ModeKey, t: float, x: Array, u: Array) -> Array:
        jacobian = self.system.outgoing(key).guards.jacobian
        return self._last("the guards", key, jacobian)(t, x, u)

    def reset(self, key: ModeKey, fired: tuple[str, ...], t: float, x: Array, u: Array) -> Array:
        edge = self.system.outgoing(key).edge(fired)
        jacobian = None if edge is None else edge.reset.jacobian
        return self._last(f"the reset of {fired}", key, jacobian)(t, x, u)

    def mode(self, key: ModeKey) -> Mode:
        mode = self.system.mode(key)
        nu = mode.nu - len(self.values)
        if nu < 0:
            raise InputError(
                f"mode {key!r} must have at least {len(self.values)} inputs, one for each "
                f"parameter, got {mode.nu}"
            )
        return replace(
            mode,
            field=self._held(mode.field),
            nu=nu,
            jacobian=None if mode.jacobian is None else self._first(mode.jacobian),
            outputs=None if mode.outputs is None else self._held(mode.outputs),
            select=None if mode.select is None else self._held(mode.select),
            pace=None if mode.pace is None else self._held(mode.pace),
            step=None,
            flow=None,
        )

    def outgoing(self, key: ModeKey) -> Outgoing:
        own = self.system.outgoing(key)
        guards = own.guards
        return Outgoing(
            replace(
                guards,
                values=self._held(guards.values),
                jacobian=None if guards.jacobian is None else self._first(guards.jacobian),
                one=None,
            ),
            lambda fired: self._edge(own.edge(fired)),
            lambda fired: self._edge(own.rest(fired)),
        )

    def _edge(self, edge: Edge | None) -> Edge | None:
        if edge is None:
            return None
        jacobian = edge.reset.jacobian
        known = None if jacobian is None else self._first(jacobian)
        border = None if edge.reset.border is None else self._border(edge.reset.border)
        return Edge(Reset(self._held(edge.reset), known, border), edge.target)

    def _border(self, own: AtBorder) -> AtBorder:
        """The border of a reset, with its derivatives by the inputs that are left."""

        def border(
            t: float, x: Array, u: Array, key: ModeKey, u_after: Array
        ) -> ResetBorder | None:
            found = own(t, x, self._all(u), key, self._all(u_after))
            if found is None:
                return None
            return found._replace(
                distance=_cut(found.distance, len(u)),
                positive=_cut(found.positive, len(u)),
                negative=_cut(found.negative, len(u)),
            )

        return border

    def _all(self, u: Array) -> Array:
        return np.concatenate((u, self.values))

    def _held(self, function: Function[T]) -> Function[T]:
        """The function of (t, x, (u, p)) as one of (t, x, u)."""
        return lambda t, x, u: function(t, x, self._all(u))

    def _first(self, jacobian: Function[Derivative]) -> Function[Derivative]:
        """A Jacobian with the columns of the inputs that are left."""
        whole = self._held(jacobian)
        return lambda t, x, u: _cut(whole(t, x, u), len(u))

    def _last(
        self, what: str, key: ModeKey, jacobian: Function[Derivative] | None
    ) -> Function[Array]:
        """The columns of the parameters of a Jacobian."""
        if jacobian is None:
            raise SystemDefinitionError(f"{what} of mode {key!r} has no Jacobian")
        whole = self._held(jacobian)
        return lambda t, x, u: np.asarray(whole(t, x, u).input[..., len(u) :])


def _cut(derivative: Derivative, inputs: int) -> Derivative:
    """Derivatives by the first inputs only."""
    return derivative._replace(input=derivative.input[..., :inputs])
