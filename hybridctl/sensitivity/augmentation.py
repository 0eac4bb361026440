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

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import block_diag

from hybridctl.checks import Array, array
from hybridctl.errors import InputError, SystemDefinitionError
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.laws import HeldInput, InputLaw
from hybridctl.hybrid.mapped import Change, MappedMode, MappedPoint
from hybridctl.hybrid.model import (
    Diffusion,
    FieldJacobian,
    GuardJacobian,
    JumpPoint,
    JumpTerms,
    ModeKey,
    Point,
    PointProperty,
    ResetBorder,
    ResetJacobian,
)
from hybridctl.hybrid.policy import Policy
from hybridctl.hybrid.system import HybridSystem, MappedSystem
from hybridctl.hybrid.trajectory import Event, HybridTrajectory
from hybridctl.spaces import Space, difference_jacobians

At = Callable[[ModeKey, float, Array, Array], Array]
AtReset = Callable[[ModeKey, tuple[str, ...], float, Array, Array], Array]


class ParameterPoint:
    """A point of a mode with the derivatives by parameters there, found when they are asked for."""

    def __init__(self, model: ParameterModel, at: Point) -> None:
        self.model, self.at = model, at

    @PointProperty
    def field(self) -> Array:
        """The derivative D_p f (ndx, np) of the field."""
        return self.model.field_at(self)

    @PointProperty
    def guards(self) -> Array:
        """The derivative D_p g (n, np) of the guards."""
        return self.model.guards_at(self)


class ParameterModel(ABC):
    """Derivatives of a hybrid system by np named parameters, at points of its modes.

    moves_borders: False where parameters change neither the border of a reset nor what the reset
    does at it; otherwise resets at a border are refused. Raises `InputError` for names that are
    none or that are not different.
    """

    def __init__(self, names: Sequence[str], moves_borders: bool = True) -> None:
        self.names, self.moves_borders = tuple(names), moves_borders
        if not self.names or len(set(self.names)) != len(self.names):
            raise InputError(f"names must be one or more different parameters, got {self.names}")

    def calc(self, at: Point) -> ParameterPoint:
        """The derivatives at a point of a mode of the system."""
        return ParameterPoint(self, at)

    @abstractmethod
    def field_at(self, point: Any) -> Array:
        """The derivative D_p f (ndx, np) of the field."""

    @abstractmethod
    def guards_at(self, point: Any) -> Array:
        """The derivative D_p g (n, np) of the guards, in the order of the mode."""

    @abstractmethod
    def reset_at(self, key: ModeKey, fired: tuple[str, ...], at: JumpPoint) -> Array | None:
        """The derivative D_p R (ndx+, np) of the edge from mode `key` when guards `fired` fire.

        None where it does not depend on the parameters.
        """


class ParameterDerivatives(ParameterModel):
    """Derivatives of a hybrid system by np named parameters, as functions of (t, x, u) of a mode.

    field(mode, t, x, u): D_p f (ndx, np). guards(mode, t, x, u): D_p g (n, np), in the order of
    the guards of the mode. reset(mode, fired, t, x, u): D_p R (ndx+, np), of the edge from `mode`
    when the guards `fired` fire, None where no reset depends on p. moves_borders: see
    `ParameterModel`.
    """

    def __init__(
        self,
        names: Sequence[str],
        field: At,
        guards: At,
        reset: AtReset | None,
        moves_borders: bool = True,
    ) -> None:
        super().__init__(names, moves_borders)
        self.field, self.guards, self.reset = field, guards, reset

    def field_at(self, point: ParameterPoint) -> Array:
        """The derivative of the field."""
        at = point.at
        return self.field(at.mode.key, at.t, at.x, at.u)

    def guards_at(self, point: ParameterPoint) -> Array:
        """The derivative of the guards."""
        at = point.at
        return self.guards(at.mode.key, at.t, at.x, at.u)

    def reset_at(self, key: ModeKey, fired: tuple[str, ...], at: JumpPoint) -> Array | None:
        """The derivative of a reset."""
        return None if self.reset is None else self.reset(key, fired, at.t, at.x, at.u)


class SystemParameters(ParameterModel):
    """Derivatives by parameters of a system that is known, so that its modes make the points."""

    def __init__(self, system: HybridSystem, names: Sequence[str]) -> None:
        super().__init__(names)
        self.system = system

    def field(self, key: ModeKey, t: float, x: Array, u: Array) -> Array:
        """The derivative D_p f (ndx, np) of the field of a mode."""
        return self.calc(self.system.mode(key).calc(t, x, u)).field

    def guards(self, key: ModeKey, t: float, x: Array, u: Array) -> Array:
        """The derivative D_p g (n, np) of the guards of a mode."""
        return self.calc(self.system.mode(key).calc(t, x, u)).guards

    def reset(
        self, key: ModeKey, fired: tuple[str, ...], t: float, x: Array, u: Array
    ) -> Array | None:
        """The derivative D_p R (ndx+, np) of a reset."""
        return self.reset_at(key, fired, JumpPoint(t, x, u))


def with_parameters(
    system: HybridSystem, trajectory: HybridTrajectory, derivatives: ParameterModel
) -> tuple[HybridSystem, HybridTrajectory]:
    """The system and its trajectory in (x, p); see this module. Inputs stay as they are.

    Where the system lacks a Jacobian, so does the result. When they are asked for, derivatives of
    the wrong shape raise `SystemDefinitionError`, and resets at a border `InputError`.
    """
    n = len(derivatives.names)
    moved = _WithParameters(system, derivatives)
    return moved, HybridTrajectory(
        tuple(_augmented_arc(arc, n) for arc in trajectory.arcs),
        tuple(_augmented_event(event, n) for event in trajectory.events),
        source=moved if trajectory.source is system else None,
    )


def with_guard_offsets(system: HybridSystem, event: Event) -> tuple[HybridSystem, Event]:
    """The system and one of its events in (x, w), where guard i of the event fires at g + w_i = 0.

    w is recorded as zero. Where the reset has a border, that stays where it is.
    """
    by = _GuardOffsets(event.guards, moves_borders=False)
    return _WithParameters(system, by), _augmented_event(event, len(event.guards))


class _GuardOffsets(ParameterModel):
    """Offsets of guards of these names."""

    def field_at(self, point: ParameterPoint) -> Array:
        return np.zeros((point.at.mode.space.ndx, len(self.names)))

    def guards_at(self, point: ParameterPoint) -> Array:
        names = point.at.mode.guard_names
        return np.array([[float(name == own) for own in self.names] for name in names])

    def reset_at(self, key: ModeKey, fired: tuple[str, ...], at: JumpPoint) -> None:
        return None


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


class _AugmentedPoint(MappedPoint):
    """A point with parameters, and derivatives by these."""

    @PointProperty
    def by_parameters(self) -> ParameterPoint:
        """The derivatives by parameters at the inner point."""
        change = self.mode.change
        assert isinstance(change, _Augmented)
        return change.by.calc(self.inner)


@dataclass(frozen=True, eq=False)
class _Augmented(Change):
    """Parameters as states that stay as they are; fired: by which guards a reset was reached."""

    by: ParameterModel
    key: ModeKey
    fired: tuple[str, ...] = ()

    @property
    def n(self) -> int:
        return len(self.by.names)

    def point(
        self, mode: MappedMode, t: float, x: Array, u: Array, inner: Point
    ) -> _AugmentedPoint:
        return _AugmentedPoint(mode, t, x, u, inner)

    def state(self, x: Array) -> Array:
        return x[: -self.n]

    def back(self, inner: Array, x: Array) -> Array:
        return np.concatenate((inner, x[-self.n :]))

    def space(self, inner: Space) -> Space:
        return _AugmentedSpace(inner, self.n)

    def field(self, point: MappedPoint) -> Array:
        return np.concatenate((point.inner.field, np.zeros(self.n)))

    def field_jacobian(self, point: Any) -> FieldJacobian:
        d, by_p = super().field_jacobian(point), point.by_parameters.field
        d_x = self._beside(d.state, self._shaped("the field", by_p, len(d.state)))
        below = np.zeros((self.n, d_x.shape[1]))
        none = np.zeros((self.n, d.input.shape[1]))
        return FieldJacobian(np.vstack((d_x, below)), np.vstack((d.input, none)))

    def free_input(self, point: MappedPoint) -> Array:
        inner = super().free_input(point)
        return np.vstack((inner, np.zeros((self.n, inner.shape[1]))))

    def guard_slopes(self, inner: GuardJacobian, point: Any, rows: int | slice) -> GuardJacobian:
        by_p, count = point.by_parameters.guards, len(point.inner.mode.guard_names)
        by_p = self._shaped("the guards", by_p, count)
        return inner._replace(state=self._beside(inner.state, by_p[rows]))

    def held_jacobian(self, inner: Array) -> Array:
        return self._beside(inner)

    def reset_jacobian(self, inner: ResetJacobian, at: JumpPoint) -> ResetJacobian:
        known = JumpPoint(at.t, self.state(at.x), at.u, at.report)
        by_p = self.by.reset_at(self.key, self.fired, known)
        if by_p is None:
            return self._padded(inner)
        return self._padded(inner, self._shaped("a reset", by_p, len(inner.time)))

    def border(self, inner: ResetBorder, at: JumpPoint) -> ResetBorder:
        """The border in (x, p) where parameters leave it alone; otherwise it is refused."""
        if self.by.moves_borders:
            raise InputError(
                f"the reset at t = {at.t:.9g} s is at the border of {inner.name!r}, where it has "
                "no derivatives by parameters"
            )
        distance = np.append(inner.distance.state, np.zeros(self.n))
        return inner._replace(
            distance=inner.distance._replace(state=distance),
            positive=self._padded(inner.positive),
            negative=self._padded(inner.negative),
        )

    def _padded(self, d: ResetJacobian, by_p: Array | None = None) -> ResetJacobian:
        """Derivatives of a reset in (x, p), which leaves p alone; by_p (ndx+, np), or none."""
        n = self.n
        below = np.hstack((np.zeros((n, d.state.shape[1])), np.eye(n)))
        return ResetJacobian(
            np.concatenate((d.time, np.zeros(n))),
            np.vstack((self._beside(d.state, by_p), below)),
            np.vstack((d.input, np.zeros((n, d.input.shape[1])))),
        )

    def _beside(self, d_x: Array, by_p: Array | None = None) -> Array:
        """Derivatives (..., ndx) by the state, and beside them (..., np) by parameters."""
        return np.hstack((d_x, np.zeros((len(d_x), self.n)) if by_p is None else by_p))

    def _shaped(self, what: str, value: Array, rows: int) -> Array:
        if np.shape(value) != (rows, self.n):
            raise SystemDefinitionError(
                f"derivatives of {what} of mode {self.key!r} by parameters must have shape "
                f"({rows}, {self.n}), got {np.shape(value)}"
            )
        return value


class _WithParameters(MappedSystem):
    """A system in (x, p)."""

    def __init__(self, inner: HybridSystem, by: ParameterModel) -> None:
        super().__init__(inner, partial(_Augmented, by), partial(_Augmented, by))
        self._n = len(by.names)

    def consistent_mode(self, x: ArrayLike, u: ArrayLike | None = None) -> ModeKey:
        """The mode in which the state without its parameters flows on."""
        return super().consistent_mode(array("x", x, (None,))[: -self._n], u)

    def pushed(self, wrench: object) -> HybridSystem:
        """The derivatives by parameters are those of a system that is not pushed."""
        raise InputError(
            "wrench must be None in a system with parameters, whose derivatives do not know it: "
            "push the system first, and give the derivatives of that"
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


def inputs_as_parameters(
    system: HybridSystem, values: Mapping[str, float]
) -> tuple[HybridSystem, SystemParameters]:
    """A system whose last inputs, in all modes, are the parameters `values`, held at these.

    Returns the system in the inputs that are left, and the derivatives by the parameters: the
    last columns of the system's own Jacobians. Modes of fewer inputs raise `InputError` when
    they are entered, and derivatives of what has no Jacobian `SystemDefinitionError`.
    """
    held = HeldInputs(array("values", list(values.values()), (None,)))
    mapped = _WithHeldInputs(system, held)
    return mapped, _LastInputs(mapped, held, tuple(values))


class _WithHeldInputs(MappedSystem):
    """A system of which the last inputs are held. Its policies give all that are left."""

    def __init__(self, inner: HybridSystem, held: HeldInputs) -> None:
        super().__init__(inner, self._held_in)
        self._held = held

    def consistent_mode(self, x: ArrayLike, u: ArrayLike | None = None) -> ModeKey:
        """The mode in which the state flows on under the inputs that are left and those held."""
        if u is None:
            u = np.zeros(self.mode(super().consistent_mode(x)).nu)
        return super().consistent_mode(x, self._held.input(array("u", u, (None,)), np.array(x)))

    def pushed(self, wrench: object) -> HybridSystem:
        """The size of a wrench would be the last input."""
        raise InputError(
            "wrench must be None in a system whose last inputs are held, as the size of a wrench "
            "is the last one: push the system first"
        )

    def acting(self, policy: Policy | InputLaw | None) -> Policy | InputLaw | None:
        """The policy."""
        return policy

    def _held_in(self, key: ModeKey) -> HeldInputs:
        held, nu = self._held, self.inner.mode(key).nu
        if nu < len(held.values):
            raise InputError(
                f"mode {key!r} must have at least {len(held.values)} inputs, one for each "
                f"parameter, got {nu}"
            )
        return held


@dataclass(frozen=True, eq=False)
class HeldInputs(Change):
    """The last inputs held at values."""

    values: Array
    keeps_steps = True

    def input(self, u: Array, x: Array) -> Array:
        """The inner input (u, values)."""
        return np.concatenate((u, self.values))

    def nu(self, inner: int) -> int:
        """How many inputs are left."""
        return inner - len(self.values)

    def field_jacobian(self, point: MappedPoint) -> FieldJacobian:
        """Derivatives by the inputs that are left."""
        d = super().field_jacobian(point)
        return d._replace(input=d.input[:, : len(point.u)])

    def free_input(self, point: MappedPoint) -> Array:
        """What the inputs that are left do."""
        return super().free_input(point)[:, : len(point.u)]

    def guard_slopes(
        self, inner: GuardJacobian, point: MappedPoint, rows: int | slice
    ) -> GuardJacobian:
        """Derivatives by the inputs that are left."""
        return _cut(inner, len(point.u))

    def law(self, law: InputLaw) -> InputLaw | None:
        """A held input with the values, too."""
        if not isinstance(law, HeldInput):
            return None
        return HeldInput(np.concatenate((law.value, self.values)))

    def inputs(self, inner: Array) -> Array:
        """The inputs that are left."""
        return inner[:, : -len(self.values)]

    def many_inputs(self, u: Array) -> Array:
        """The inner inputs (u, values) of each point."""
        return np.hstack((u, np.tile(self.values, (len(u), 1))))

    def input_rate(self, du: Array) -> Array:
        """The rate of the inner input: values that are held have none."""
        return np.concatenate((du, np.zeros(len(self.values))))

    def jump_terms(self, inner: JumpTerms) -> JumpTerms:
        """Derivatives by the inputs that are left."""
        left = slice(len(inner.time_input) - len(self.values))
        by_input = inner.time_input[left], inner.reset_input[:, left]
        return inner._replace(time_input=by_input[0], reset_input=by_input[1])

    def diffusion(self, noise: Diffusion) -> Diffusion:
        """The noise on the inner mode: none in the inputs that are held."""
        none = np.zeros((len(self.values),) * 2)
        return noise._replace(through_input=block_diag(noise.through_input, none))

    def reset_jacobian(self, inner: ResetJacobian, at: JumpPoint) -> ResetJacobian:
        """Derivatives by the inputs that are left."""
        return _cut(inner, len(at.u))

    def border(self, inner: ResetBorder, at: JumpPoint) -> ResetBorder:
        """Derivatives by the inputs that are left."""
        return super().border(inner, at)._replace(distance=_cut(inner.distance, len(at.u)))


class _LastInputs(SystemParameters):
    """Derivatives of a system by its last inputs, which are held: by those of the inner points."""

    system: MappedSystem

    def __init__(self, system: MappedSystem, held: HeldInputs, names: Sequence[str]) -> None:
        super().__init__(system, names)
        self.held = held

    def calc(self, at: Point) -> ParameterPoint:
        """The derivatives at a point of a mode in which the inputs are held, or like one."""
        if not (isinstance(at, MappedPoint) and at.mode.change is self.held):
            at = self.system.mode(at.mode.key).calc(at.t, at.x, at.u)
        assert isinstance(at, MappedPoint)
        return ParameterPoint(self, at.inner)

    def field_at(self, point: ParameterPoint) -> Array:
        return self._last(point.at.field_jacobian.input)

    def guards_at(self, point: ParameterPoint) -> Array:
        return self._last(point.at.guard_jacobian.input)

    def reset_at(self, key: ModeKey, fired: tuple[str, ...], at: JumpPoint) -> Array:
        edge = self.system.inner.outgoing(key).edge(fired)
        if edge is None or not edge.reset.differentiable:
            raise SystemDefinitionError(f"the reset of {fired} of mode {key!r} has no Jacobian")
        known = JumpPoint(at.t, at.x, self.held.input(at.u, at.x), at.report)
        return self._last(edge.reset.calc_diff(known).input)

    def _last(self, by_input: Array) -> Array:
        return by_input[:, by_input.shape[1] - len(self.held.values) :]


def _cut(derivative: GuardJacobian, inputs: int) -> GuardJacobian:
    """Derivatives by the first inputs only."""
    return derivative._replace(input=derivative.input[..., :inputs])
