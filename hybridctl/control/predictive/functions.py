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

from hybridctl.checks import Array
from hybridctl.compiled import MappedFunction, transposed
from hybridctl.control.trajectory.functions import phase_functions
from hybridctl.control.trajectory.task import Task

_STAGES = ((0.0, 1.0), (0.5, 2.0), (0.5, 2.0), (1.0, 1.0))  # c_i, and weights times 6


class Rows(NamedTuple):
    """Values (m, r) at m points, and their derivatives (m, r, nx) and (m, r, nu)."""

    values: Array
    by_state: Array
    by_input: Array


class Steps(NamedTuple):
    """States (m, nx) after steps; derivatives by state, input, and length (m, nx), 1/s."""

    states: Array
    by_state: Array
    by_input: Array
    by_length: Array


class PhaseModel:
    """Functions of phase k of a task, in its own coordinates.

    inside_limits, end_limits: of what `inside` and `end` return, in order; the gaps of open
    contacts come last in the former, and have none. zero: which of the latter vanish, as guards.
    """

    def __init__(self, task: Task, k: int) -> None:
        made = phase_functions(replace(task, torque=np.inf), k)
        x, u = made.field.sx_in()
        self.nx, self.nu = x.numel(), u.numel()
        self.inside_limits, self.end_limits = made.inside_limits, made.end_limits
        self.zero = [i for i, limit in enumerate(self.end_limits) if limit.lower == limit.upper]
        share = ca.SX.sym("share")
        inside = ca.vertcat(made.inside(x, u), made.gaps(x, share))
        end = made.end(x, u, ca.SX.zeros(self.nu))
        jump = x if made.jump is None else made.jump(x)
        self._field = _mapped("field", x, u, made.field(x, u))
        self._inside = _mapped("inside", x, u, inside, share)
        self._end = _mapped("end", x, u, end)
        self._jump = _mapped("jump", x, u, jump)

    def inside(self, x: Array, u: Array, share: Array) -> Rows:
        """Values that have limits wherever in the phase, then gaps of open contacts, m.

        share (m,): of the phase, that is over.
        """
        return Rows(*self._inside(x, u, share[:, None]))

    def end(self, x: Array, u: Array) -> Rows:
        """Values that have limits where the phase ends."""
        return Rows(*self._end(x, u))

    def jump(self, x: Array) -> tuple[Array, Array]:
        """The state (nx,) after the event that ends the phase, with its derivative (nx, nx)."""
        after, by_state, _ = self._jump(x[None], np.zeros((1, self.nu)))
        return after[0], by_state[0]

    def steps(self, x: Array, u: tuple[Array, Array, Array], h: Array) -> Steps:
        """Steps from states (m, nx), with inputs (m, nu) at begin, middle and end; h (m,), s."""
        m, nx, nu = len(x), self.nx, self.nu
        h = h[:, None]
        unit = np.zeros((m, nx, nx + nu + 1))
        unit[:, :, :nx] = np.eye(nx)
        rate, slope = np.zeros((m, nx)), np.zeros_like(unit)
        total, slopes = np.zeros((m, nx)), np.zeros_like(unit)
        for (c, weight), at in zip(_STAGES, (u[0], u[1], u[1], u[2]), strict=True):
            moved = unit + c * h[:, :, None] * slope
            moved[:, :, -1] += c * rate
            rate, by_state, by_input = self._field(x + c * h * rate, at)
            slope = by_state @ moved
            slope[:, :, nx:-1] += by_input
            total += weight / 6.0 * rate
            slopes += weight / 6.0 * slope
        whole = unit + h[:, :, None] * slopes
        whole[:, :, -1] += total
        return Steps(x + h * total, whole[:, :, :nx], whole[:, :, nx:-1], whole[:, :, -1])


def _mapped(name: str, x: Any, u: Any, value: Any, *others: Any) -> MappedFunction:
    """Values (r,) with their derivatives by x and u, at many points."""
    r, nx, nu = value.numel(), x.numel(), u.numel()
    results = [value, ca.jacobian(value, x), ca.jacobian(value, u)]
    function = transposed(name, [x, u, *others], results)
    return MappedFunction(function, [(r,), (r, nx), (r, nu)])
