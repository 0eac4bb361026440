"""Guards of a mode: functions of (t, x, u) that are positive inside it and fire at zero."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hybridctl.base.checks import Array, convert_to_floats, quote
from hybridctl.base.errors import SystemDefinitionError


class GuardJacobian(NamedTuple):
    """Derivatives of one guard, or of n guards with a leading axis.

    Attributes:
        time: D_t g, a number or (n,).
        state: D_x g, (ndx,) or (n, ndx).
        input: D_u g, (nu,) or (n, nu).
    """

    time: Array
    state: Array
    input: Array


def check_function(name: str, what: str, value: object, *, optional: bool = False) -> None:
    """Check that an argument is a function.

    Args:
        name: Name of the argument.
        what: What it is an argument of, for messages.
        value: The argument.
        optional: Whether it may be None.

    Raises:
        SystemDefinitionError: It is no function.
    """
    if not callable(value) and not (optional and value is None):
        raise SystemDefinitionError(f"{name} of {what} must be a function, got {quote(value)}")


@dataclass(frozen=True)
class Guard:
    """A scalar function that is positive inside its mode and fires when it falls through zero.

    Attributes:
        name: Name of the guard, unique in its mode.
        value: Function of (t, x, u) that returns its value.
        jacobian: Function of (t, x, u) that returns its derivatives. None for none.

    Raises:
        SystemDefinitionError: The name is no text, or `value` or `jacobian` no function.
    """

    name: str
    value: Callable[[float, Array, Array], float]
    jacobian: Callable[[float, Array, Array], GuardJacobian] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise SystemDefinitionError(f"name of a guard must be text, got {quote(self.name)}")
        check_function("value", f"guard {self.name!r}", self.value)
        check_function("jacobian", f"guard {self.name!r}", self.jacobian, optional=True)


@dataclass(frozen=True)
class GuardSet:
    """All n guards of a mode, as functions of (t, x, u).

    Attributes:
        names: Names (n,) of the guards.
        values: Function that returns their values (n,).
        jacobian: Function that returns their derivatives. None for none.
        scales: Size (n,) of each guard that tolerances are relative to, in its own unit (m, m/s,
            N). None for ones.
        one: Function of (i, t, x, u) that returns guard i alone. None where one guard costs as much
            as all.

    Raises:
        SystemDefinitionError: Two guards have one name, or the scales are not n positive numbers.
    """

    names: tuple[str, ...]
    values: Callable[[float, Array, Array], Array]
    jacobian: Callable[[float, Array, Array], GuardJacobian] | None = None
    scales: Array | None = None
    one: Callable[[int, float, Array, Array], float] | None = None

    def __post_init__(self) -> None:
        if len(set(self.names)) != len(self.names):
            raise SystemDefinitionError(f"guard names must differ within a mode: {self.names}")
        if self.scales is not None and not (
            np.shape(self.scales) == (len(self.names),) and np.all(np.asarray(self.scales) > 0.0)
        ):
            raise SystemDefinitionError(
                f"scales of {len(self.names)} guards must be as many positive numbers, got "
                f"{self.scales}"
            )

    @cached_property
    def sizes(self) -> Array:
        """The sizes (n,) of the guards: `scales`, or ones; read-only."""
        sizes = np.ones(len(self.names)) if self.scales is None else np.array(self.scales)
        sizes.setflags(write=False)
        return sizes

    def value(self, i: int, t: float, x: Array, u: Array) -> float:
        """Return the value of one guard, in its unit.

        Args:
            i: Index of the guard.
            t: Time, s.
            x: State (nx,).
            u: Input (nu,).

        Raises:
            SystemDefinitionError: If it is no number.
        """
        given = self.values(t, x, u)[i] if self.one is None else self.one(i, t, x, u)
        if isinstance(given, float):  # np.float64 is one: nothing to be checked on the usual path
            return float(given)
        try:
            value = convert_to_floats(given)
        except (TypeError, ValueError) as error:
            raise self._make_number_error(i, t, given) from error
        if value.shape != ():
            raise self._make_number_error(i, t, given)
        return float(value)

    def _make_number_error(self, i: int, t: float, given: object) -> SystemDefinitionError:
        return SystemDefinitionError(
            f"guard {self.names[i]!r} must return a number, got {quote(given)} at t = {t:.9g} s"
        )

    def checked_values(self, key: Hashable, t: float, x: Array, u: Array) -> Array:
        """Return a copy of the values (n,) after checks.

        Args:
            key: Key of the mode, for messages.
            t: Time, s.
            x: State (nx,).
            u: Input (nu,).

        Raises:
            SystemDefinitionError: They are no numbers, or not as many as the names.
        """
        given, shape = self.values(t, x, u), (len(self.names),)
        try:
            values = convert_to_floats(given)
        except (TypeError, ValueError) as error:
            raise SystemDefinitionError(
                f"guards of mode {key!r} must return numbers, got {quote(given)} at t = {t:.9g} s"
            ) from error
        if values.shape != shape:
            raise SystemDefinitionError(
                f"guards of mode {key!r} must return shape {shape}, got {values.shape} at "
                f"t = {t:.9g} s"
            )
        return values

    @staticmethod
    def of(guards: Sequence[Guard]) -> GuardSet:
        """Return the set of scalar guards; it has derivatives if each of them has, or if empty.

        Args:
            guards: The guards.
        """
        each = _ScalarGuards(tuple(guards))
        complete = all(g.jacobian is not None for g in guards)
        names = tuple(g.name for g in guards)
        return GuardSet(
            names, each.values, each.jacobian if complete else None, one=each.evaluate_one
        )


@dataclass(frozen=True, eq=False)
class _ScalarGuards:
    """The functions of a `GuardSet` of scalar guards, which are evaluated one after the other."""

    guards: tuple[Guard, ...]

    def evaluate_one(self, i: int, t: float, x: Array, u: Array) -> float:
        """Return the value of guard i at a point."""
        return self.guards[i].value(t, x, u)

    def values(self, t: float, x: Array, u: Array) -> Array:
        given = [g.value(t, x, u) for g in self.guards]
        try:
            values = np.array(given)
        except ValueError:  # numbers and lists, mixed
            values = np.array(given, dtype=object)
        if values.dtype.kind not in "iuf":
            each = (f"{g.name!r}: {v!r}" for g, v in zip(self.guards, given, strict=True))
            raise SystemDefinitionError(
                f"guards must return a number each, at t = {t:.9g} s they are {', '.join(each)}"
            )
        return values

    def jacobian(self, t: float, x: Array, u: Array) -> GuardJacobian:
        rows = [g.jacobian(t, x, u) for g in self.guards if g.jacobian is not None]
        # The size ndx of perturbations of the state is known from the guards alone: without any,
        # the empty array has a column for each coordinate.
        ndx = -1 if rows else len(x)
        return GuardJacobian(
            np.array([r.time for r in rows], dtype=np.float64),
            np.array([r.state for r in rows], dtype=np.float64).reshape(len(rows), ndx),
            np.array([r.input for r in rows], dtype=np.float64).reshape(len(rows), len(u)),
        )
