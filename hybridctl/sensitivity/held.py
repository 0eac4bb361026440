"""Systems whose last inputs are parameters: held at their values, with derivatives by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from hybridctl.checks import Array, array
from hybridctl.errors import InputError, SystemDefinitionError
from hybridctl.hybrid.mode import (
    Edge,
    FieldJacobian,
    GuardJacobian,
    GuardSet,
    Mode,
    ModeKey,
    Outgoing,
    Reset,
    ResetBorder,
    ResetJacobian,
)
from hybridctl.hybrid.system import HybridSystem
from hybridctl.sensitivity.augmentation import AtBorder, Function, ParameterDerivatives

T = TypeVar("T")
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
        )

    def outgoing(self, key: ModeKey) -> Outgoing:
        own = self.system.outgoing(key)
        guards = own.guards
        return Outgoing(
            GuardSet(
                guards.names,
                self._held(guards.values),
                None if guards.jacobian is None else self._first(guards.jacobian),
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
