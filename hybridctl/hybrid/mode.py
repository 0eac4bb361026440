"""The parts of a mode graph that users give as functions: modes, resets, edges, transitions.

Argument order is always (t, x, u), see `model`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

from hybridctl.base.checks import Array, check_count, check_hashable, convert_to_floats, quote
from hybridctl.base.errors import SystemDefinitionError
from hybridctl.base.spaces import Space
from hybridctl.hybrid.guards import Guard as Guard
from hybridctl.hybrid.guards import GuardJacobian as GuardJacobian
from hybridctl.hybrid.guards import GuardSet as GuardSet
from hybridctl.hybrid.guards import check_function
from hybridctl.hybrid.mapped import ModeWithGuards
from hybridctl.hybrid.model import FREE_PACE, Point, PointProperty
from hybridctl.hybrid.model import Diffusion as Diffusion
from hybridctl.hybrid.model import FieldJacobian as FieldJacobian
from hybridctl.hybrid.model import Held as Held
from hybridctl.hybrid.model import Jump as Jump
from hybridctl.hybrid.model import JumpPoint as JumpPoint
from hybridctl.hybrid.model import ModeKey as ModeKey
from hybridctl.hybrid.model import ModeModel as ModeModel
from hybridctl.hybrid.model import Pace as Pace
from hybridctl.hybrid.model import ResetBorder as ResetBorder
from hybridctl.hybrid.model import ResetJacobian as ResetJacobian
from hybridctl.hybrid.model import ResetModel as ResetModel

T = TypeVar("T")
Function: TypeAlias = Callable[[float, Array, Array], T]


def _return_no_values(t: float, x: Array, u: Array) -> Array:
    return np.zeros(0)


NO_GUARDS = GuardSet((), _return_no_values)
"""Guards of a `Mode` before a system gives it those of its transitions."""


class FunctionPoint(Point):
    """A point of a mode of functions, which has what these return there."""

    mode: Mode

    @PointProperty
    def field(self) -> Array:
        """The field, as the function returns it."""
        return self.mode.field(self.t, self.x, self.u)

    @PointProperty
    def guards(self) -> Array:
        """The guards (n,)."""
        return np.asarray(self.mode.guard_set.values(self.t, self.x, self.u))

    @PointProperty
    def field_jacobian(self) -> FieldJacobian:
        """The derivatives of the field."""
        function = self.mode._jacobian
        return super().field_jacobian if function is None else function(self.t, self.x, self.u)

    @PointProperty
    def guard_jacobian(self) -> GuardJacobian:
        """The derivatives of all guards."""
        function = self.mode.guard_set.jacobian
        return super().guard_jacobian if function is None else function(self.t, self.x, self.u)

    @PointProperty
    def outputs(self) -> Mapping[str, Array]:
        """Named quantities worth plotting; none without a function for them."""
        function = self.mode._outputs
        return {} if function is None else function(self.t, self.x, self.u)

    @PointProperty
    def selected_mode(self) -> ModeKey:
        """Key of the mode that flows on; without a function for it, of this one."""
        function = self.mode._select
        return self.mode.key if function is None else function(self.t, self.x, self.u)

    @PointProperty
    def pace(self) -> Pace:
        """The limits of an integrator's steps; none without a function for them."""
        function = self.mode._pace
        return FREE_PACE if function is None else function(self.t, self.x, self.u)

    def guard(self, i: int) -> float:
        """Return the value of guard i, alone where it is given alone.

        Args:
            i: Index of the guard.

        Raises:
            SystemDefinitionError: It is no number.
        """
        return self.mode.guard_set.value(i, self.t, self.x, self.u)


class Mode(ModeModel):
    r"""A mode of functions: a state space and the vector field :math:`\dot x = f(t, x, u)` on it.

    Its guards are those of the transitions that leave it.

    Args:
        key: Key of the mode, unique in its system.
        space: The state space.
        field: Returns a velocity (ndx,) in the tangent space.
        nu: Number of inputs.
        jacobian: Returns the exact derivatives of the field. None for none.
        outputs: Returns named quantities worth plotting, such as contact forces. None for none.
        select: Returns the key of the mode that flows on from (t, x, u) just after a jump, with
            the input after the event: that of this mode where it is consistent with its own forces
            ([RS] 2.3.4, Fig. 2.6). None for this mode at all points.
        pace: Returns the limits of an integrator's steps that their error does not show. None for
            no limits.
        project: Takes a state near the mode's constraint to one on it. None for no constraint.
        held: The constraint that every state of the mode obeys, such as closed contacts. None for
            no constraint.

    Raises:
        SystemDefinitionError: An argument is of the wrong type.
        InputError: `nu` is no count, or the key is not hashable.
    """

    point = FunctionPoint

    def __init__(
        self,
        key: ModeKey,
        space: Space,
        field: Function[Array],
        nu: int = 0,
        jacobian: Function[FieldJacobian] | None = None,
        outputs: Function[Mapping[str, Array]] | None = None,
        select: Function[ModeKey] | None = None,
        pace: Function[Pace] | None = None,
        project: Callable[[Array], Array] | None = None,
        held: Held | None = None,
    ) -> None:
        check_hashable("key of a mode", key)
        self.nu = check_count("nu", nu, at_least=0)
        if not isinstance(space, Space):
            raise SystemDefinitionError(
                f"space of mode {key!r} must be a space, such as VectorSpace, got {space!r}"
            )
        what = f"mode {key!r}"
        check_function("field", what, field)
        optional = {"jacobian": jacobian, "outputs": outputs, "select": select, "pace": pace}
        for name, value in {**optional, "project": project}.items():
            check_function(name, what, value, optional=True)
        self.key, self.space, self.held, self.project = key, space, held, project
        self._field, self._jacobian, self._outputs = field, jacobian, outputs
        self._select, self._pace, self._guards = select, pace, NO_GUARDS
        self.differentiable, self.guards_differentiable = jacobian is not None, False
        self.selects = select is not None
        self.steady_pace = FREE_PACE if pace is None else None

    def replace_guards(self, guards: GuardSet) -> Mode:
        """Return a copy of this mode with the guards of the edges that leave it.

        Args:
            guards: The guards.
        """
        mode = copy(self)
        mode._guards, mode.guard_names = guards, guards.names
        mode.guards_differentiable = guards.jacobian is not None
        return mode

    @property
    def guard_set(self) -> GuardSet:
        """The guards as they were given."""
        return self._guards

    @property
    def guard_scales(self) -> Array:
        """Sizes (n,) of the guards."""
        return self._guards.sizes

    def field(self, t: float, x: Array, u: Array) -> Array:
        """Return the field, as the function returns it, without a point.

        Args:
            t: Time, s.
            x: State (nx,).
            u: Input (nu,).
        """
        return self._field(t, x, u)


def attach_guards(mode: ModeModel, guards: GuardSet) -> ModeModel:
    """Return a mode with the guards of the edges that leave it.

    Args:
        mode: The mode. A `Mode` has no guards of its own and is given these.
        guards: The guards. Where they are the mode's own, the mode is returned as it is.
    """
    if isinstance(mode, Mode):
        return mode.replace_guards(guards)
    return mode if guards is mode.guard_set else ModeWithGuards(mode, guards)


class Reset(ResetModel):
    """A reset of functions: the jump map x+ = R(t, x-, u-).

    Args:
        map: Returns the state (nx+,) after the event, or a whole `Jump`.
        jacobian: Returns the derivatives of that state. None for none.
        border: Returns both derivatives where the map has two one-sided ones, else None, as
            `ResetModel.find_border` does. It takes (t, x-, u-), the key of the mode after the
            event, and the input after it. None for a map without borders.

    Raises:
        SystemDefinitionError: An argument is no function.
    """

    def __init__(
        self,
        map: Function[Array | Jump],
        jacobian: Function[ResetJacobian] | None = None,
        border: Callable[[float, Array, Array, ModeKey, Array], ResetBorder | None] | None = None,
    ) -> None:
        check_function("map", "a reset", map)
        check_function("jacobian", "a reset", jacobian, optional=True)
        check_function("border", "a reset", border, optional=True)
        self.map, self._jacobian, self._border = map, jacobian, border
        self.differentiable = jacobian is not None

    def calc(self, t: float, x: Array, u: Array) -> Jump:
        """Return the jump.

        Args:
            t: Time of the event, s.
            x: State (nx,) before it.
            u: Input (nu,) before it.

        Raises:
            SystemDefinitionError: The function returns neither a state nor a `Jump`.
        """
        result = self.map(t, x, u)
        if isinstance(result, Jump):
            return result
        try:
            return Jump(convert_to_floats(result))
        except (TypeError, ValueError) as error:
            raise SystemDefinitionError(
                f"a reset must return a state or a Jump, got {quote(result)} at t = {t:.9g} s"
            ) from error

    def calc_diff(self, at: JumpPoint) -> ResetJacobian:
        """Return the derivatives of the reset.

        Args:
            at: The point before the jump.
        """
        if self._jacobian is None:
            return super().calc_diff(at)
        return self._jacobian(at.t, at.x, at.u)

    def find_border(self, at: JumpPoint, key: ModeKey, u_after: Array) -> ResetBorder | None:
        """Return both derivatives at a border, None where the reset is at none.

        Args:
            at: The point before the jump.
            key: Key of the mode after the event.
            u_after: Input (nu+,) after the event.
        """
        return None if self._border is None else self._border(at.t, at.x, at.u, key, u_after)

    @staticmethod
    def identity(ndx: int | None = None) -> Reset:
        """Return the reset that leaves the state alone, for events that only change the mode.

        Args:
            ndx: Dimension of the tangent space. None for the length of the state.
        """
        return Reset(_identity, partial(_identity_jacobian, ndx))


def _identity(t: float, x: Array, u: Array) -> Array:
    return x


def _identity_jacobian(ndx: int | None, t: float, x: Array, u: Array) -> ResetJacobian:
    n = len(x) if ndx is None else ndx
    return ResetJacobian(np.zeros(n), np.eye(n), np.zeros((n, len(u))))


@dataclass(frozen=True)
class Edge:
    """A reset and where it leads.

    Attributes:
        reset: The reset.
        target: Key of the mode after it. None leaves the mode to the reset.
    """

    reset: ResetModel
    target: ModeKey | None = None

    def jump(self, t: float, x: Array, u: Array) -> tuple[ModeKey, Jump]:
        """Return the key of the mode after the reset, and its jump.

        Args:
            t: Time of the event, s.
            x: State (nx,) before it.
            u: Input (nu,) before it.

        Raises:
            SystemDefinitionError: Neither the reset nor the edge names the mode.
        """
        jump = self.reset(t, x, u)
        key = self.target if jump.mode is None else jump.mode
        if key is None:
            raise SystemDefinitionError("a reset without a target mode must return one in its Jump")
        return key, jump


@dataclass(frozen=True)
class Transition:
    """An edge of the mode graph, from the mode and the guards that fire in it.

    Args:
        source: Key of the mode before the event.
        guard: The guard that fires, or several where an event of simultaneous guards has a reset of
            its own.
        reset: The reset.
        target: Key of the mode after the event. None leaves it to the reset.
        rest: The edge to take instead where events of these guards accumulate (see `simulate`).
            None for none.

    Raises:
        SystemDefinitionError: There is no guard, or an argument is of the wrong type.
        InputError: A key is not hashable.
    """

    source: ModeKey
    guards: tuple[Guard, ...]
    reset: ResetModel
    target: ModeKey | None
    rest: Edge | None

    def __init__(
        self,
        source: ModeKey,
        guard: Guard | Sequence[Guard],
        reset: ResetModel,
        target: ModeKey | None = None,
        rest: Edge | None = None,
    ) -> None:
        check_hashable("source of a transition", source)
        check_hashable("target of a transition", target)
        guards = tuple(guard) if isinstance(guard, Sequence) else (guard,)
        if not guards:
            raise SystemDefinitionError(f"the transition from {source!r} has no guard")
        needed = ("Guard", Guard, guards), ("Reset", ResetModel, (reset,))
        for name, kind, parts in needed:
            for part in parts:
                if not isinstance(part, kind):
                    raise SystemDefinitionError(
                        f"the transition from {source!r} needs a {name}, got {quote(part)}"
                    )
        if rest is not None and not isinstance(rest, Edge):
            raise SystemDefinitionError(
                f"rest of the transition from {source!r} must be an Edge or None, got {quote(rest)}"
            )
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "guards", guards)
        object.__setattr__(self, "reset", reset)
        object.__setattr__(self, "target", target)
        object.__setattr__(self, "rest", rest)


class Bridge(NamedTuple):
    """A way past an instant whose events cannot be resolved, such as a jam of sliding contacts.

    Attributes:
        mode: Key of the mode that flows on first, whatever its guards say.
        length: How long it does, s.
        edge: The edge after that.
    """

    mode: ModeKey
    length: float
    edge: Edge


def _return_no_rest(fired: tuple[str, ...]) -> None:
    return None


@dataclass(frozen=True)
class Outgoing:
    """The ways out of a mode: its guards, and the edges behind them.

    Attributes:
        guards: The guards, which may be those that the mode has of itself (`ModeModel.guard_set`).
        edge: Function of the names of guards that fire together, which returns their edge. None
            where they have none together: the single edges are then applied one after the other.
            It may have edges for names that are no guards, of events that contact signals report.
        rest: Function of the names of guards whose events accumulate, which returns the edge to the
            state that these tend to, and to the mode that flows on from there. None for none.
        bridge: Function of (t, x, u) that returns the way past an instant whose events cannot be
            resolved, None where there is none. None for no such function.
    """

    guards: GuardSet
    edge: Callable[[tuple[str, ...]], Edge | None]
    rest: Callable[[tuple[str, ...]], Edge | None] = _return_no_rest
    bridge: Callable[[float, Array, Array], Bridge | None] | None = None
