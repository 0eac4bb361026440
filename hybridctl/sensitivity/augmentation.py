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
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, check_array
from hybridctl.base.errors import InputError, SystemDefinitionError
from hybridctl.base.spaces import Space, compute_difference_jacobians
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.mapped import Change, MappedMode, MappedPoint
from hybridctl.hybrid.model import (
    FieldJacobian,
    GuardJacobian,
    Held,
    JumpPoint,
    ModeKey,
    ModeModel,
    Point,
    PointProperty,
    ResetBorder,
    ResetJacobian,
)
from hybridctl.hybrid.system import HybridSystem, MappedSystem
from hybridctl.hybrid.trajectory import Event, HybridTrajectory

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
        parts = compute_difference_jacobians(self.space, x0[: -self.n], x1[: -self.n])
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


class _AugmentedMode(MappedMode):
    """A mode with parameters as states that stay as they are."""

    change: _Augmented
    point = _AugmentedPoint

    def __init__(self, inner: ModeModel, change: _Augmented) -> None:
        super().__init__(inner, change)
        self.space = _AugmentedSpace(inner.space, change.n)
        if inner.held is not None:
            self.held = self._held(inner.held)
        if inner.project is not None:
            self.project = partial(self._projected, inner.project)

    def field_at(self, point: MappedPoint) -> Array:
        return np.concatenate((point.inner.field, np.zeros(self.change.n)))

    def field_jacobian_at(self, point: Any) -> FieldJacobian:
        d, by_p, c = point.inner.field_jacobian, point.by_parameters.field, self.change
        d_x = c._beside(d.state, c._shaped("the field", by_p, len(d.state)))
        below = np.zeros((c.n, d_x.shape[1]))
        none = np.zeros((c.n, d.input.shape[1]))
        return FieldJacobian(np.vstack((d_x, below)), np.vstack((d.input, none)))

    def free_input_at(self, point: MappedPoint) -> Array:
        inner = point.inner.free_input
        return np.vstack((inner, np.zeros((self.change.n, inner.shape[1]))))

    def guard_jacobian_at(self, point: Any) -> GuardJacobian:
        return self._with_parameters(point.inner.guard_jacobian, point, slice(None))

    def guard_row_at(self, i: int, point: Any) -> GuardJacobian:
        return self._with_parameters(point.inner.guard_row(i), point, i)

    def _with_parameters(
        self, inner: GuardJacobian, point: Any, rows: int | slice
    ) -> GuardJacobian:
        by_p, c = point.by_parameters.guards, self.change
        by_p = c._shaped("the guards", by_p, len(self.guard_names))
        return inner._replace(state=c._beside(inner.state, by_p[rows]))

    def _projected(self, project: Callable[[Array], Array], x: Array) -> Array:
        return self.change.to_outer_state(project(self.change.state(x)), x)

    def _held(self, inner: Held) -> Held:
        jacobian, refuse = inner.jacobian, inner.refuse
        return replace(
            inner,
            residuals=partial(self._residuals, inner.residuals),
            jacobian=None if jacobian is None else partial(self._residuals_jacobian, jacobian),
            refuse=None if refuse is None else partial(self._refuse, refuse),
        )

    def _residuals(self, residuals: Callable[[Array], Array], x: Array) -> Array:
        return residuals(self.change.state(x))

    def _residuals_jacobian(self, jacobian: Callable[[Array], Array], x: Array) -> Array:
        return self.change._beside(jacobian(self.change.state(x)))

    def _refuse(
        self, refuse: Callable[[str, ModeKey, Array], None], what: str, key: ModeKey, x: Array
    ) -> None:
        refuse(what, key, self.change.state(x))


@dataclass(frozen=True, eq=False)
class _Augmented(Change):
    """Parameters as states that stay as they are; fired: by which guards a reset was reached."""

    by: ParameterModel
    key: ModeKey
    fired: tuple[str, ...] = ()
    mode_class = _AugmentedMode

    @property
    def n(self) -> int:
        return len(self.by.names)

    def state(self, x: Array) -> Array:
        return x[: -self.n]

    def to_inner(self, t: float, x: Array, u: Array) -> tuple[float, Array, Array]:
        return t, self.state(x), u

    def to_outer_state(self, inner: Array, x: Array) -> Array:
        return np.concatenate((inner, x[-self.n :]))

    def map_reset_jacobian(self, inner: ResetJacobian, at: JumpPoint) -> ResetJacobian:
        by_p = self.by.reset_at(self.key, self.fired, self.to_inner_jump(at))
        if by_p is None:
            return self._padded(inner)
        return self._padded(inner, self._shaped("a reset", by_p, len(inner.time)))

    def map_border(self, inner: ResetBorder, at: JumpPoint) -> ResetBorder:
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
        return super().consistent_mode(check_array("x", x, (None,))[: -self._n], u)

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
