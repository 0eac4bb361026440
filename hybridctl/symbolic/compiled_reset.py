r"""What one guard and a reset do to first order, as one compiled function.

Where mode, guard and reset are expressions, so are the terms of `sensitivity.gains`: with the rates
f of the state and du of the input before the event,

.. math::
    \dot g = D_t g + D_x g f + D_u g\, du, \qquad \dot R = D_t R + D_x R f + D_u R\, du.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import casadi as ca

from hybridctl.base.checks import Array
from hybridctl.hybrid.model import JumpTerms
from hybridctl.symbolic.compiled_function import Compiled, MappedFunction

Expression = Any
Function = Any


class CompiledJump:
    """The jump of guard i of a mode by a reset.

    before: what the mode does, a Function (t, x, u) -> (rate (nx,), guards (n,), sound) of SX in a
    vector space. reset: a Function (t, x, u) -> x+ (nx+,) of SX.
    """

    def __init__(self, before: Function, i: int, reset: Function) -> None:
        self._before, self._guard, self._reset = before, i, reset

    def __call__(self, t: float, x: Array, u: Array, du: Array) -> JumpTerms:
        """The terms of the jump from (t, x, u); du (nu,) is the rate of u."""
        (slope, size), *arrays = self._terms((t,), x, u, du)
        return JumpTerms(float(slope), float(size), *(a.copy() for a in arrays))

    @cached_property
    def _terms(self) -> Compiled:
        t, x, u = self._before.sx_in()
        n, nx, nu = self._reset.numel_out(0), x.numel(), u.numel()
        symbols = [t, x, u, ca.SX.sym("du", nu)]
        terms = [ca.densify(term.T) for term in self._linear(*symbols)]
        made = ca.Function("jump", symbols, ca.cse(terms))
        return Compiled(made, [(2,), (nx,), (nu,), (n, nx), (n, nu), (n,)])

    @cached_property
    def many(self) -> MappedFunction:
        """A function of rows t, x and u, under inputs that are held.

        Its columns are x+ (nx+,), slope and size (2,), the derivative of the event time (nx,),
        D_x R (nx+, nx) and the rate of the reset (nx+,).
        """
        t, x, u = self._before.sx_in()
        state = self._reset(t, x, u)
        rates, by_state, _, r_x, _, rate = self._linear(t, x, u, 0.0 * u)
        columns = [ca.densify(c) for c in (state, rates, by_state, r_x.T, rate)]
        made = ca.Function("jump", [t, x, u], ca.cse(columns))
        n, nx = state.numel(), x.numel()
        return MappedFunction(made, [(n,), (2,), (nx,), (n, nx), (n,)])

    def _linear(self, *symbols: Expression) -> tuple[Expression, ...]:
        """Slope and size in one column, and the arrays of `JumpTerms`, vectors as columns."""
        t, x, u, du = symbols
        f, guards, _ = self._before(t, x, u)
        guard, state = guards[self._guard], self._reset(t, x, u)
        moved, rates = ca.vertcat(t, x, u), ca.vertcat(1.0, f, du)
        g, r = ca.jacobian(guard, moved), ca.jacobian(state, moved)
        slope, size = g @ rates, ca.fabs(g) @ ca.fabs(rates)
        of_state, of_input = slice(1, 1 + x.numel()), slice(1 + x.numel(), None)
        return (
            ca.vertcat(slope, size),
            -g[of_state].T / slope,
            -g[of_input].T / slope,
            r[:, of_state],
            r[:, of_input],
            r @ rates,
        )
