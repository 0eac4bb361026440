"""Modes of a contact system by compiled functions: field, guards, derivatives, whole steps.

The functions are those of `mode_functions`, called with the numbers of the mode's own robot.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import NamedTuple, TypeAlias

import numpy as np

from hybridctl.base.checks import Array, Indices
from hybridctl.hybrid.model import (
    BatchFunction,
    FieldJacobian,
    GuardJacobian,
    ModeKey,
    Pace,
    Point,
    PointProperty,
    Slopes,
)
from hybridctl.mechanics.modes.contact_mode import ContactMode, ContactPoint
from hybridctl.mechanics.modes.mode_functions import ModeFunctions
from hybridctl.mechanics.modes.selection import select_modes
from hybridctl.mechanics.modes.tolerances import STANDSTILL
from hybridctl.mechanics.terms.expression_terms import ExpressionTerms
from hybridctl.symbolic.compiled_function import (
    BatchedFunction,
    CompiledFunction,
    fix_last_argument,
)
from hybridctl.symbolic.compiled_step import CompiledMode, Function


def _evaluate_field_slopes(
    function: BatchedFunction, turning: Array | None, t: Array, x: Array, u: Array
) -> list[Array]:
    """Return soundness (m, 1), A and B at m points, where perturbations may turn with the motion.

    Perturbations of joints with quaternions or circles are in the axes of the body, which turn: to
    their rate belongs the transport, -ad(v), which is linear in v.

    Args:
        function: The function of `slope_function` at many points.
        turning: Transport (nv, nv, nv) by each unit velocity, see `Robot.transport`. None in a
            vector space.
        t: Times (m, 1), s.
        x: States (m, nq + nv).
        u: Inputs (m, nu).
    """
    sound, by_state, by_input, *_ = function(x, u)
    if turning is not None:
        nv = len(turning)
        by_state[:, :nv, :nv] += (x[:, -nv:] @ turning.reshape(nv, nv * nv)).reshape(-1, nv, nv)
    return [sound, by_state, by_input]


def _arrange_slopes(field_x: Array, field_u: Array, guards_x: Array, guards_u: Array) -> Slopes:
    """Return the results of `mode_derivatives` at one point, by name."""
    guards = GuardJacobian(np.zeros(len(guards_x)), guards_x, guards_u)
    return Slopes(FieldJacobian(field_x, field_u), guards)


_Described: TypeAlias = tuple[Function, list[tuple[int, ...]]]
"""A function as it is called, and the shapes of its results."""


class NumberSlopes(NamedTuple):
    """Derivatives of k quantities of a mode by the numbers of robot and contacts.

    Attributes:
        function: Returns soundness (m, 1) and the entries (m, e) that are not always zero.
        numbers: Index (e,) of the number of each entry, among `parameter_values` of the mode.
        rows: Index (e,) of the quantity of each entry.
        size: Number k of quantities.
        last_weights: The last changes with what multiplies entries along these; empty at first.
    """

    function: BatchedFunction
    numbers: Indices
    rows: Indices
    size: int
    last_weights: list[tuple[Array, Array]]

    @staticmethod
    def of(made: Function, finished: Function) -> NumberSlopes:
        """Return the derivatives by a function of a last argument without a value.

        Args:
            made: Function of soundness and a sparse matrix (numbers, k).
            finished: The same function as it is called.
        """
        pattern = made.sparsity_out(1)
        numbers, rows = (np.array(found, dtype=np.intp) for found in pattern.get_triplet())
        function = BatchedFunction(finished, [(1,), (len(rows),)])
        return NumberSlopes(function, numbers, rows, pattern.size2(), [])

    def with_values(self, parameter_values: Array) -> NumberSlopes:
        """Return the derivatives with a value of the last argument of their function."""
        return self._replace(function=self.function.with_values(parameter_values))

    def combine(self, changes: Array, *points: Array) -> tuple[Array, Array]:
        """Return soundness (m,) and the derivatives (m, k, np) along changes of the numbers.

        Args:
            changes: Derivatives of the numbers by np parameters.
            *points: Arguments of the function at m points.
        """
        known = tuple(self.last_weights)  # read once, as another thread may replace it
        if known and known[0][0] is changes:
            weights = known[0][1]
        else:
            weights = np.zeros((len(self.rows), self.size, changes.shape[1]))
            weights[np.arange(len(self.rows)), self.rows] = changes[self.numbers]
            self.last_weights[:] = [(changes, weights)]
        count = len(points[0])
        if not weights.any():  # as of gaps, which depend on lengths alone
            return np.ones(count), np.zeros((count, *weights.shape[1:]))
        sound, entries = self.function(*points)
        along = entries @ weights.reshape(len(weights), self.size * changes.shape[1])
        return sound[:, 0], along.reshape(count, *weights.shape[1:])


class GeneratedPoint(ContactPoint):
    """A point of a generated mode.

    Where the generated functions are not sound at the point (`ModeField.sound`), each quantity is
    that of a `ContactPoint`, computed in Python.
    """

    mode: GeneratedContactMode

    @PointProperty
    def values(self) -> tuple[Array, Array] | None:
        """Rate (nq + nv,) of the coordinates (q, v), and guards (n,); None if not sound."""
        rate, guards, sound = self.mode.value_function((self.t,), self.x, self.u)
        return (rate.copy(), guards.copy()) if sound[0] > 0.0 else None

    @PointProperty
    def slopes(self) -> Slopes | None:
        """Derivatives of field and guards by state and input; None if not sound."""
        sound, *found = self.mode.slope_function(self.x, self.u)
        if not sound[0] > 0.0:
            return None
        return _arrange_slopes(*(a.copy() for a in found))

    @PointProperty
    def field(self) -> Array:
        """The field (v, a), (2 nv,)."""
        values = self.values
        if values is None:
            return super().field
        return np.concatenate((self.v, values[0][len(self.q) :]))

    @PointProperty
    def guards(self) -> Array:
        """The guards (n,)."""
        return super().guards if self.values is None else self.values[1]

    @PointProperty
    def field_jacobian(self) -> FieldJacobian:
        """The derivatives of the field, D_x (2 nv, 2 nv) and D_u (2 nv, nu)."""
        return super().field_jacobian if self.slopes is None else self.slopes.field

    @PointProperty
    def guard_jacobian(self) -> GuardJacobian:
        """The derivatives of the guards by state (n, 2 nv) and input (n, nu)."""
        return super().guard_jacobian if self.slopes is None else self.slopes.guards

    def guard_row(self, i: int) -> GuardJacobian:
        """Return the derivatives of guard i, from those of all where they are compiled.

        Args:
            i: Number of the guard.
        """
        return super().guard_row(i) if self.slopes is None else Point.guard_row(self, i)

    @PointProperty
    def pace(self) -> Pace:
        """The step-size limits, see `ContactPoint.pace`."""
        mode = self.mode
        if mode.steady_pace is not None:
            return mode.steady_pace
        rates, sound = mode.sliding_rate_function(self.x, self.u)
        if not sound[0] > 0.0:
            return super().pace
        stop, turn = (1.0 / rate if rate > 0.0 else np.inf for rate in rates.tolist())
        return mode.limit_steps(stop, turn)

    @PointProperty
    def selected_mode(self) -> ModeKey:
        """The mode that flows on: this one where its compiled guards show that it is consistent.

        With friction Coulomb's law may have other solutions. `select_modes` then looks for them,
        unless `has_one_solution`.
        """
        mode, values = self.mode, self.values
        holds = values is not None and bool((values[1] > mode.sure_values).all())
        if holds and mode.has_one_solution:
            return mode.key
        at, contact = (self.q, self.v, self.u), None if holds else self.contact
        return select_modes(mode.dynamics, *at, mode.modes, contact, holds)


class GeneratedContactMode(ContactMode, CompiledMode):
    """A mode whose field and guards are generated functions.

    Where these are not sound (see `ModeField`) it evaluates as a `ContactMode`.
    """

    point = GeneratedPoint
    compiled = True

    def calc_together(
        self, times: Array, states: Array, inputs: Array, has_slopes: bool
    ) -> list[Point]:
        """Return the points of this mode at m places, with values from one call for all.

        Args:
            times: Times (m,), s.
            states: States (m, nx).
            inputs: Inputs (m, nu).
            has_slopes: Whether their derivatives come from one call as well.
        """
        points = super().calc_together(times, states, inputs, has_slopes)
        if len(points) == 1:  # which needs no wider function
            return points
        rates, guards, sound = self.batched_values(times[:, None], states, inputs)
        nq = self.dynamics.robot.nq
        fields = np.concatenate((states[:, nq:], rates[:, nq:]), axis=1)
        for i, holds in enumerate((sound[:, 0] > 0.0).tolist()):
            found = vars(points[i])
            found["values"] = (rates[i], guards[i]) if holds else None
            if holds:
                found["field"] = fields[i]
        if has_slopes:
            sound, *slopes = self.batched_point_slopes(states, inputs)
            for i, holds in enumerate((sound[:, 0] > 0.0).tolist()):
                known = _arrange_slopes(*(each[i] for each in slopes)) if holds else None
                vars(points[i])["slopes"] = known
        return points

    @cached_property
    def sure_values(self) -> Array:
        """Values (n,) of guards above which contacts push, hold, or slide the way they do.

        Forces and the response ratio are to be positive, and sliding speeds above `STANDSTILL`:
        below it a direction may be a guess. Gaps and margins say nothing of this.
        """
        least = {"closes": -np.inf, "leaves": -np.inf, "sticks": STANDSTILL}
        return np.array([least.get(guard.kind, 0.0) for guard in self.contact_guards.guards])

    @cached_property
    def has_one_solution(self) -> bool:
        """Whether no other mode obeys Coulomb's law where all guards are above `sure_values`.

        Without friction the law is a convex problem. One contact that slides has a direction, so
        that its normal acceleration is a = R f + c by its force f, with f, a >= 0 and f a = 0. That
        has one solution where R > 0, which the guard of the response ratio shows, see `jamming`.
        If a constant load presses that contact, its force is known.
        """
        phase = self.phase
        is_smooth = len(phase.owner) == len(phase.closed)
        return is_smooth or (len(phase.sliding) == len(phase.closed) == 1)

    @cached_property
    def value_function(self) -> CompiledFunction:
        """The function (t, x, u) -> rate (nq + nv,), guards (n,), soundness (1,).

        Soundness is positive where the other two are those of a `ContactPoint`.
        """

        def describe() -> _Described:
            made = self._functions.motion
            return self._finish(made), [(made.numel_out(0),), (made.numel_out(1),), (1,)]

        return self._bind("values", describe)

    @cached_property
    def batched_values(self) -> BatchedFunction:
        """The function `value_function` at m points."""
        return self.value_function.build_batched()

    @cached_property
    def batched_point_slopes(self) -> BatchedFunction:
        """The function `slope_function` at m points, without transport."""
        return self.slope_function.build_batched()

    @cached_property
    def slope_function(self) -> CompiledFunction:
        """The function (x, u) -> soundness, and the results of `mode_derivatives`."""
        return self._bind("slopes", self._describe_slopes)

    def _describe_slopes(self) -> _Described:
        """Return the function of `slope_function` without the numbers of this mode."""
        made = self._functions.slopes
        n, nu, count = made.size2_out(1), made.size1_out(2), made.size2_out(3)
        return self._finish(made), [(1,), (n, n), (n, nu), (count, n), (count, nu)]

    @cached_property
    def sliding_rate_function(self) -> CompiledFunction:
        """The function (x, u) -> sliding rates (2,), soundness (1,), see `ModeField`.

        It is not compiled to machine code: it is called once in a step, and takes 3 to 16 us for
        one to four contacts of a cube.
        """
        return self._bind("sliding rates", lambda: (self._functions.sliding_rates, [(2,), (1,)]))

    @cached_property
    def batched_slopes(self) -> BatchFunction:
        """The function (t, x, u) of m points -> soundness, A (2 nv, 2 nv) and B (2 nv, nu).

        dx' = A dx + B du is the variational equation, transport of perturbations included.
        """

        def describe() -> tuple[BatchedFunction, Array | None]:
            robot, turning = self.dynamics.robot, None
            if robot.nq != robot.nv:  # else a vector space: no transport
                turning = np.array([robot.transport(unit) for unit in np.eye(robot.nv)])
            # Single points have the same function: it is not made and compiled twice.
            known = self._functions.recall("slopes", self._describe_slopes)
            return BatchedFunction(*known), turning

        function, turning = self._functions.recall("batched slopes", describe)
        own = function.with_values(self.parameter_values)
        return partial(_evaluate_field_slopes, own, turning)

    @cached_property
    def field_number_slopes(self) -> NumberSlopes:
        """The derivatives of the acceleration (nv,) by numbers, for (t, x, u) of m points."""
        return self._bind_number_slopes("field_number_slopes")

    @cached_property
    def guard_number_slopes(self) -> NumberSlopes:
        """The derivatives of the guards (n,) by numbers, for (x, u) of m points."""
        return self._bind_number_slopes("guard_number_slopes")

    def _bind_number_slopes(self, name: str) -> NumberSlopes:
        """Return the derivatives by numbers of a function of this name, at those of this mode."""

        def describe() -> NumberSlopes:
            made = getattr(self._functions, name)
            return NumberSlopes.of(made, self._finish(made))

        return self._functions.recall(name, describe).with_values(self.parameter_values)

    def _bind(self, name: str, describe: Callable[[], _Described]) -> CompiledFunction:
        """Return a function of this name with the numbers of this mode.

        Args:
            name: Name of the function.
            describe: Returns the function and its shapes, where no mode alike has called it.
        """
        return CompiledFunction(*self._functions.recall(name, describe), self.parameter_values)

    def _compile(self, name: str) -> CompiledFunction:
        """Return a function of the compiled steps."""
        return self._bind(name, partial(self.describe_function, name))

    @property
    def is_redundant(self) -> bool:
        """Whether some of the constrained rows depend on others."""
        equations = self._functions.equations
        return len(equations.independent.rows) < len(equations.phase.rows)

    @property
    def parameter_values(self) -> Array:
        """The numbers (np,) of robot and contacts, the last argument of all functions made here."""
        return self.dynamics.mode_numbers

    def build_function(self, name: str) -> Function:
        """Return a function of the compiled steps of this mode.

        Args:
            name: "motion", or a name of `compiled_step.build_function`.
        """
        if name == "motion":
            return fix_last_argument(self._functions.motion, self.parameter_values)
        # A mode that holds constraints has noise of inputs only where these give way.
        return self._finish(self._functions.load_step(name, self.held is not None))

    def _finish(self, made: Function) -> Function:
        """Return a function as it is called: as machine code, if the terms are."""
        terms = self.dynamics.terms
        assert isinstance(terms, ExpressionTerms)
        return terms.finish_function(made)

    @cached_property
    def _functions(self) -> ModeFunctions:
        """The functions of this mode, which systems that differ in numbers share."""
        return self.dynamics.structure.functions_of(self.modes)
