r"""Functions of a phase for predictive control: values with derivatives, at many points at once.

`PhaseModel` evaluates the `phase_functions` of a phase in batches, as arrays, optionally as machine
code. A state is predicted over an interval of length h by one classical Runge-Kutta step. Its input
goes from one value through another to a third one. With the stages

.. math:: k_i = f(x + c_i h k_{i-1}, u_i), \qquad x^+ = x + h \sum_i w_i k_i

the derivatives of the step by x, by an addition to all inputs, by the disturbance and by h follow
stage by stage.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import casadi as ca
import numpy as np

from hybridctl.base.checks import Array, Indices
from hybridctl.base.function_cache import compile_function
from hybridctl.planning.phase_functions import (
    Limit,
    PhaseFunctions,
    build_phase_functions,
    step_runge_kutta,
)
from hybridctl.planning.task import Task
from hybridctl.symbolic.compiled_function import BatchedFunction, build_transposed_function

_RUNGE_KUTTA_STAGES = ((0.0, 1.0), (0.5, 2.0), (0.5, 2.0), (1.0, 1.0))
"""The nodes c_i and the weights 6 w_i of the four stages."""
_SLACK_COSTS = {
    "N": 50.0,
    "rad": 3e4,
    "m": 3e4,
    "rad/s": 2e3,
    "N s": 2e3,
    "m/s": 2e3,
    "m/s^2": 20.0,
    "m/s/s": 20.0,
    "N/s": 0.5,
}
"""Cost of a unit of slack by the unit of the limit: per second on the path, once at the start and
the end of a phase. A choice, beside state costs of some 100 per rad^2 s."""


@dataclass(frozen=True, eq=False)
class LimitSides:
    r"""One-sided limits :math:`s_k (v_{i_k} - b_k) \ge 0` of values v, in units that share a slack.

    All limits of one unit at one point share a slack, and so the largest violation is what costs.
    The gap of each contact has a slack of its own.

    Attributes:
        index: Index i (r,) of the value.
        sign: Sign s (r,), 1 for lower and -1 for upper limits.
        bound: Bound b (r,).
        fades: Whether the bound (r,) falls to zero over a phase.
        group: Number (r,) of the slack.
        costs: Cost (g,) of each slack.
    """

    index: Indices
    sign: Array
    bound: Array
    fades: Array
    group: Indices
    costs: Array

    @staticmethod
    def from_limits(
        limits: Sequence[Limit], excluded: Collection[int] = (), gaps: int = 0
    ) -> LimitSides:
        """Return the finite sides of limits.

        Args:
            limits: The limits.
            excluded: Indices of limits that have no slack, as they are equations.
            gaps: Number of gaps that follow the values with limits; each gets a lower limit of
                zero.
        """
        units = list(dict.fromkeys(r.unit for i, r in enumerate(limits) if i not in excluded))
        rows = [
            (i, sign, bound, limit.fades and sign > 0.0, units.index(limit.unit))
            for i, limit in enumerate(limits)
            for sign, bound in ((1.0, limit.lower), (-1.0, limit.upper))
            if i not in excluded and np.isfinite(bound)
        ]
        rows += [(len(limits) + g, 1.0, 0.0, False, len(units) + g) for g in range(gaps)]
        columns = [np.array([row[k] for row in rows], dtype=float) for k in range(5)]
        index, sign, bound, fades, group = columns
        costs = np.array([_SLACK_COSTS[unit] for unit in units] + [_SLACK_COSTS["m"]] * gaps)
        return LimitSides(
            index.astype(int), sign, bound, fades.astype(bool), group.astype(int), costs
        )

    def compute_bounds(self, fractions: Array) -> Array:
        """Return the bounds (m, r) at fractions (m,) of the phase."""
        left = np.maximum(1.0 - fractions, 0.0)
        return np.where(self.fades, self.bound * left[:, None], self.bound)


class LinearizedValues(NamedTuple):
    """Values at m points, with their derivatives.

    Attributes:
        values: Values (m, r).
        by_state: Derivatives (m, r, nx).
        by_input: Derivatives (m, r, nu).
    """

    values: Array
    by_state: Array
    by_input: Array


class LinearizedSteps(NamedTuple):
    """States after m steps, with their derivatives.

    Attributes:
        states: States (m, nx).
        by_state: Derivatives (m, nx, nx) by the state at the start.
        by_input: Derivatives (m, nx, nu) by an addition to all inputs of the step.
        by_disturbance: Derivatives (m, nx) by the disturbance.
        by_length: Derivatives (m, nx) by the length of the step, 1/s.
    """

    states: Array
    by_state: Array
    by_input: Array
    by_disturbance: Array
    by_length: Array


class PhaseModel:
    """Functions of one phase of a task, at many points at once.

    With a disturbed task, all values are affine in the disturbance d: those of the task at d = 0,
    those of the disturbed task at d = 1. Limits of inputs are not among the values.

    Args:
        task: The task.
        k: Index of the phase.
        disturbed: Task that differs from it by one unit of a disturbance. None for no disturbance.
        compiled: Whether the functions are machine code, made by the C compiler of this machine.
        implied: Guards, by phase and name, that vanish wherever the others of their phase do.

    Attributes:
        nx: Number of entries of a state.
        nu: Number of inputs.
        path_limits: Limits of the values of `evaluate_path`, but for the gaps at their end.
        start_limits: Limits of the values of `evaluate_start`.
        end_limits: Limits of the values of `evaluate_end`.
        open_contacts: Names of the contacts whose gaps `evaluate_path` appends.
        equations: Indices of the end values that vanish.
        guards: Indices of the equations that are guards.
        ends_with_landing: Whether all guards that end the phase are gaps.
        path_sides: Limits on the path that have slacks, with the gaps.
        start_sides: Limits at the start that have slacks.
        end_sides: Limits at the end that have slacks.
    """

    def __init__(
        self,
        task: Task,
        k: int,
        disturbed: Task | None = None,
        compiled: bool = False,
        implied: frozenset[tuple[int, str]] = frozenset(),
    ) -> None:
        functions = build_phase_functions(replace(task, torque=np.inf), k, implied)
        x, u = functions.field.sx_in()
        self.nx, self.nu = x.numel(), u.numel()
        self._collect_limits(task.phases[k].ends, functions)
        d, share, rate = ca.SX.sym("d"), ca.SX.sym("share"), ca.SX.sym("rate", self.nu)
        values = _build_values(functions, x, u, share, rate)
        if disturbed is not None:
            other = build_phase_functions(replace(disturbed, torque=np.inf), k, implied)
            pairs = zip(values, _build_values(other, x, u, share, rate), strict=True)
            values = [ca.cse(value + d * (moved - value)) for value, moved in pairs]
        field, path, start, end, jump = values

        def build(name: str, value: Any, *more: Any) -> BatchedFunction:
            """Return the function of (x, u, d, more) with value, and derivatives by x, u and d."""
            results = [value, *(ca.jacobian(value, each) for each in (x, u, d))]
            return _build_batched(name, compiled, results, x, u, d, *more)

        self._rate = _build_batched("rate", compiled, [field], x, u, d)
        self._field = build("field", field)
        self._path = build("path", path, share)
        self._start = build("start", start)
        self._end = build("end", end, rate)
        self._jump = build("jump", jump)

    def _collect_limits(self, ends: tuple[str, ...], functions: PhaseFunctions) -> None:
        """Set the attributes for limits.

        Args:
            ends: Names of the guards that end the phase.
            functions: Functions of the phase.
        """
        self.path_limits, self.end_limits = functions.path.limits, functions.end.limits
        self.start_limits, self.open_contacts = functions.start.limits, functions.open_contacts
        self.equations = [i for i, r in enumerate(self.end_limits) if r.lower == r.upper]
        names = [f"guard {name!r}" for name in ends]
        self.guards = [i for i in self.equations if self.end_limits[i].name in names]
        self.ends_with_landing = bool(ends) and all(name.endswith(" closes") for name in ends)
        self.path_sides = LimitSides.from_limits(self.path_limits, gaps=len(self.open_contacts))
        self.start_sides = LimitSides.from_limits(self.start_limits)
        self.end_sides = LimitSides.from_limits(self.end_limits, self.equations)

    def evaluate_field(self, x: Array, u: Array, d: float = 0.0) -> LinearizedValues:
        """Return the field f at m points.

        Args:
            x: States (m, nx).
            u: Inputs (m, nu).
            d: Disturbance.
        """
        return LinearizedValues(*self._field(x, u, _fill_column(d, x))[:3])

    def evaluate_path(
        self, x: Array, u: Array, fractions: Array, d: float = 0.0
    ) -> LinearizedValues:
        """Return the values that have limits on the path, then gaps of open contacts, m.

        Args:
            x: States (m, nx).
            u: Inputs (m, nu).
            fractions: Fractions (m,) of the phase.
            d: Disturbance.
        """
        return LinearizedValues(*self._path(x, u, _fill_column(d, x), fractions[:, None])[:3])

    def evaluate_start(self, x: Array, u: Array, d: float = 0.0) -> LinearizedValues:
        """Return the values that have limits where the phase begins.

        Args:
            x: States (m, nx).
            u: Inputs (m, nu).
            d: Disturbance.
        """
        return LinearizedValues(*self._start(x, u, _fill_column(d, x))[:3])

    def evaluate_end(self, x: Array, u: Array, rate: Array, d: float = 0.0) -> LinearizedValues:
        """Return the values that have limits where the phase ends.

        Args:
            x: States (m, nx).
            u: Inputs (m, nu).
            rate: Rate of the inputs (nu,), in their unit per s.
            d: Disturbance.
        """
        rates = np.broadcast_to(rate, u.shape)
        return LinearizedValues(*self._end(x, u, _fill_column(d, x), rates)[:3])

    def evaluate_jump(self, x: Array, d: float = 0.0) -> tuple[Array, Array]:
        """Return the state (nx,) after the event that ends the phase, and its derivative (nx, nx).

        Args:
            x: State (nx,) before the event.
            d: Disturbance.
        """
        x = x[None]
        after, by_state, *_ = self._jump(x, np.zeros((1, self.nu)), _fill_column(d, x))
        return after[0], by_state[0]

    def step_states(
        self, x: Array, u: tuple[Array, Array, Array], h: Array, d: float = 0.0
    ) -> Array:
        """Return the states (m, nx) after m steps, the same as those of `linearize_steps`.

        Args:
            x: States (m, nx) at the start.
            u: Inputs (m, nu) at the start, in the middle and at the end.
            h: Lengths (m,), s.
            d: Disturbance.
        """
        column = _fill_column(d, x)
        return np.asarray(
            step_runge_kutta(lambda x, u: self._rate(x, u, column)[0], x, u, h[:, None])
        )

    def linearize_steps(
        self, x: Array, u: tuple[Array, Array, Array], h: Array, d: float | Array = 0.0
    ) -> LinearizedSteps:
        """Return the states after m steps, and their derivatives.

        Args:
            x: States (m, nx) at the start.
            u: Inputs (m, nu) at the start, in the middle and at the end.
            h: Lengths (m,), s.
            d: Disturbance, one for all steps or (m, 1).
        """
        m, nx, nu = len(x), self.nx, self.nu
        h, d_column = h[:, None], _fill_column(d, x)
        # Columns of all derivatives: state, input, disturbance, length.
        identity = np.zeros((m, nx, nx + nu + 2))
        identity[:, :, :nx] = np.eye(nx)
        rate, slope = np.zeros((m, nx)), np.zeros_like(identity)
        total, slopes = np.zeros((m, nx)), np.zeros_like(identity)
        for (c, weight), inputs in zip(_RUNGE_KUTTA_STAGES, (u[0], u[1], u[1], u[2]), strict=True):
            by_all = identity + c * h[:, :, None] * slope
            by_all[:, :, -1] += c * rate
            rate, by_state, by_input, by_disturbance = self._field(
                x + c * h * rate, inputs, d_column
            )
            slope = by_state @ by_all
            slope[:, :, nx:-2] += by_input
            slope[:, :, -2:-1] += by_disturbance
            total += weight / 6.0 * rate
            slopes += weight / 6.0 * slope
        whole = identity + h[:, :, None] * slopes
        whole[:, :, -1] += total
        by_state, by_input, by_disturbance, by_length = np.split(
            whole, [nx, nx + nu, nx + nu + 1], axis=2
        )
        return LinearizedSteps(
            x + h * total, by_state, by_input, by_disturbance[:, :, 0], by_length[:, :, 0]
        )


def _build_values(functions: PhaseFunctions, x: Any, u: Any, share: Any, rate: Any) -> list[Any]:
    """Return field, values on the path, at the start and at the end, and state after the event.

    Args:
        functions: Functions of the phase.
        x: State (nx, 1) in symbols.
        u: Input (nu, 1) in symbols.
        share: Fraction of the phase (1, 1).
        rate: Rate of the input (nu, 1).
    """
    path = ca.vertcat(functions.path(x, u), functions.gaps(x, share))
    after = x if functions.jump is None else functions.jump(x)
    return [functions.field(x, u), path, functions.start(x, u), functions.end(x, u, rate), after]


def _fill_column(d: float | Array, x: Array) -> Array:
    """Return the disturbance as a column (m, 1) for states (m, nx)."""
    return np.full((len(x), 1), d)


def _build_batched(
    name: str, compiled: bool, results: list[Any], *arguments: Any
) -> BatchedFunction:
    """Return the function of many points.

    Args:
        name: Name of the function.
        compiled: Whether it is machine code.
        results: A value (r, 1), then derivatives (r, n).
        *arguments: Symbols.
    """
    function = build_transposed_function(name, arguments, results)
    if compiled:
        function = compile_function(function)
    first, *slopes = (result.shape for result in results)
    return BatchedFunction(function, [first[:1], *slopes])
