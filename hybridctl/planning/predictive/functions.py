r"""What a programme over a horizon asks of a phase: values with their derivatives, at many points.

A state is carried over an interval of length h, under an input that goes from one value through
another to a third one, by a step of Runge and Kutta's method of fourth order. With the stages

.. math:: k_i = f(x + c_i h k_{i-1}, u_i)

the derivatives of the step by x, by an addition to all inputs, and by h follow stage by stage.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import casadi as ca
import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.function_cache import compile_function
from hybridctl.planning.predictive.sides import LimitSides
from hybridctl.planning.trajectory.functions import PhaseFunctions, phase_functions, stepped
from hybridctl.planning.trajectory.task import Task
from hybridctl.symbolic.compiled_function import BatchedFunction, build_transposed_function

_STAGES = ((0.0, 1.0), (0.5, 2.0), (0.5, 2.0), (1.0, 1.0))  # c_i, and weights times 6


class Rows(NamedTuple):
    """Values (m, r) at m points, and their derivatives (m, r, nx) and (m, r, nu)."""

    values: Array
    by_state: Array
    by_input: Array


class Steps(NamedTuple):
    """States (m, nx) after steps; derivatives by state, input, disturbance and length, s."""

    states: Array
    by_state: Array
    by_input: Array
    by_disturbance: Array
    by_length: Array


class PhaseModel:
    """Functions of phase k of a task, in its own coordinates.

    disturbed: a task that differs from it by a unit of a disturbance. Of how many units there are,
    d, all values are affine functions: those of the task, and d times what the other one's differ.
    inside_limits, start_limits, end_limits: of what `inside`, `start` and `end` return, in order;
    the gaps of open contacts, `open`, come last in the first, and have none. zero: which of the
    last vanish; guards: which of these are guards. lands: whether they are gaps. inside_sides,
    start_sides, end_sides: of the limits that have slack. compiled: whether functions are machine
    code. implied: guards, by phase, that vanish with others.
    """

    def __init__(
        self,
        task: Task,
        k: int,
        disturbed: Task | None = None,
        compiled: bool = False,
        implied: frozenset[tuple[int, str]] = frozenset(),
    ) -> None:
        made = phase_functions(replace(task, torque=np.inf), k, implied)
        x, u = made.field.sx_in()
        self.nx, self.nu = x.numel(), u.numel()
        self.inside_limits, self.end_limits = made.inside.limits, made.end.limits
        self.start_limits, self.open = made.start.limits, made.open
        self.zero = [i for i, limit in enumerate(self.end_limits) if limit.lower == limit.upper]
        names = [f"guard {name!r}" for name in task.phases[k].ends]
        self.guards = [i for i in self.zero if self.end_limits[i].name in names]
        self.lands = bool(names) and all(name.endswith(" closes") for name in task.phases[k].ends)
        self.inside_sides = LimitSides.of(self.inside_limits, gaps=len(self.open))
        self.start_sides = LimitSides.of(self.start_limits)
        self.end_sides = LimitSides.of(self.end_limits, self.zero)
        d, share, rate = ca.SX.sym("d"), ca.SX.sym("share"), ca.SX.sym("rate", self.nu)
        values = _values(made, x, u, share, rate)
        if disturbed is not None:
            other = phase_functions(replace(disturbed, torque=np.inf), k, implied)
            pairs = zip(values, _values(other, x, u, share, rate), strict=True)
            values = [ca.cse(value + d * (moved - value)) for value, moved in pairs]
        field, inside, start, end, jump = values
        self._rate = _mapped("rate", compiled, [field], x, u, d)
        self._field = _mapped("field", compiled, _sloped(field, x, u, d), x, u, d)
        self._inside = _mapped("inside", compiled, _sloped(inside, x, u, d), x, u, d, share)
        self._start = _mapped("start", compiled, _sloped(start, x, u, d), x, u, d)
        self._end = _mapped("end", compiled, _sloped(end, x, u, d), x, u, d, rate)
        self._jump = _mapped("jump", compiled, _sloped(jump, x, u, d), x, u, d)

    def field(self, x: Array, u: Array, d: float = 0.0) -> Rows:
        """The field f at states (m, nx) and inputs (m, nu)."""
        return Rows(*self._field(x, u, _column(d, x))[:3])

    def inside(self, x: Array, u: Array, share: Array, d: float = 0.0) -> Rows:
        """Values that have limits wherever in the phase, then gaps of open contacts, m.

        share (m,): of the phase, that is over.
        """
        return Rows(*self._inside(x, u, _column(d, x), share[:, None])[:3])

    def start(self, x: Array, u: Array, d: float = 0.0) -> Rows:
        """Values that have limits where the phase begins."""
        return Rows(*self._start(x, u, _column(d, x))[:3])

    def end(self, x: Array, u: Array, rate: Array, d: float = 0.0) -> Rows:
        """Values that have limits where the phase ends, the input changing at a rate (nu,), 1/s."""
        rates = np.broadcast_to(rate, u.shape)
        return Rows(*self._end(x, u, _column(d, x), rates)[:3])

    def jump(self, x: Array, d: float = 0.0) -> tuple[Array, Array]:
        """The state (nx,) after the event that ends the phase, with its derivative (nx, nx)."""
        x = x[None]
        after, by_state, *_ = self._jump(x, np.zeros((1, self.nu)), _column(d, x))
        return after[0], by_state[0]

    def moved(self, x: Array, u: tuple[Array, Array, Array], h: Array, d: float = 0.0) -> Array:
        """States (m, nx) after the same steps as those of `steps`."""
        column = _column(d, x)
        return np.asarray(stepped(lambda x, u: self._rate(x, u, column)[0], x, u, h[:, None]))

    def steps(
        self, x: Array, u: tuple[Array, Array, Array], h: Array, d: float | Array = 0.0
    ) -> Steps:
        """Steps from states (m, nx), with inputs (m, nu) at begin, middle and end; h (m,), s.

        d: one for all, or (m, 1).
        """
        m, nx, nu = len(x), self.nx, self.nu
        h, d_column = h[:, None], _column(d, x)
        unit = np.zeros((m, nx, nx + nu + 2))
        unit[:, :, :nx] = np.eye(nx)
        rate, slope = np.zeros((m, nx)), np.zeros_like(unit)
        total, slopes = np.zeros((m, nx)), np.zeros_like(unit)
        for (c, weight), at in zip(_STAGES, (u[0], u[1], u[1], u[2]), strict=True):
            moved = unit + c * h[:, :, None] * slope
            moved[:, :, -1] += c * rate
            rate, by_state, by_input, by_disturbance = self._field(x + c * h * rate, at, d_column)
            slope = by_state @ moved
            slope[:, :, nx:-2] += by_input
            slope[:, :, -2:-1] += by_disturbance
            total += weight / 6.0 * rate
            slopes += weight / 6.0 * slope
        whole = unit + h[:, :, None] * slopes
        whole[:, :, -1] += total
        slopes_by = np.split(whole, [nx, nx + nu, nx + nu + 1], axis=2)
        return Steps(x + h * total, *slopes_by[:2], *(part[:, :, 0] for part in slopes_by[2:]))


def _values(made: PhaseFunctions, x: Any, u: Any, share: Any, rate: Any) -> list[Any]:
    """Field, limited values inside, at the start and at the end, and the state after it."""
    inside = ca.vertcat(made.inside(x, u), made.gaps(x, share))
    after = x if made.jump is None else made.jump(x)
    return [made.field(x, u), inside, made.start(x, u), made.end(x, u, rate), after]


def _column(d: float | Array, x: Array) -> Array:
    return np.full((len(x), 1), d)


def _sloped(value: Any, *known: Any) -> list[Any]:
    """Values (r, 1) with their derivatives by what is known."""
    return [value, *(ca.jacobian(value, each) for each in known)]


def _mapped(name: str, compiled: bool, results: list[Any], *arguments: Any) -> BatchedFunction:
    """Values (r, 1), and derivatives (r, n), at many points."""
    function = build_transposed_function(name, arguments, results)
    if compiled:
        function = compile_function(function)
    first, *slopes = (result.shape for result in results)
    return BatchedFunction(function, [first[:1], *slopes])
