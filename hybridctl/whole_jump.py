r"""The jump of one guard and its derivative, each as one compiled function.

Where modes, guard and reset are expressions, so are the terms of `sensitivity.gains`. With the
rates f of the state and du of the input before the event, and f+ of the state after it,

.. math::
    \dot g = D_t g + D_x g f + D_u g\, du, \quad \dot R = D_t R + D_x R f + D_u R\, du, \quad
    G = D_x R + (f^+ - \dot R) \frac{D_x g}{\dot g}.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import casadi as ca

from hybridctl.checks import Array
from hybridctl.compiled import Compiled, Mapped
from hybridctl.hybrid.mode import GuardSet, JumpTerms, Mode

Expression = Any
Function = Any
Value = Callable[[float, Array, Array], Array]


class CompiledJump:
    """The jump of guard i of one mode to another, in vector spaces.

    before, after: what the modes do, Functions (t, x, u) -> (rate (nx,), guards (n,), sound) of SX.
    reset: a Function (t, x, u) -> x+ (nx+,). parts: the callables that evaluate the same, the
    fields before and after, and the guards.
    """

    def __init__(
        self,
        before: Function,
        i: int,
        reset: Function,
        after: Function,
        parts: tuple[Value, Value, Value],
    ) -> None:
        self._before, self._guard, self._reset, self._after = before, i, reset, after
        self._parts = parts

    def joins(self, before: Mode, after: Mode, guards: GuardSet) -> bool:
        """Whether these fields and guards are those that it was made of."""
        return self._parts == (before.field, after.field, guards.values)

    def __call__(
        self, t: float, x: Array, u: Array, du: Array, x_after: Array, u_after: Array
    ) -> JumpTerms:
        """The terms of the jump from (t, x, u) to (x_after, u_after); du (nu,) is the rate of u."""
        (slope, size), *arrays = self._terms((t,), x, u, du, x_after, u_after)
        return JumpTerms(float(slope), float(size), *(a.copy() for a in arrays))

    @cached_property
    def _terms(self) -> Compiled:
        t, x, u = self._before.sx_in()
        n, nx, nu = self._reset.numel_out(0), x.numel(), u.numel()
        du, x_after, u_after = (
            ca.SX.sym(name, size)
            for name, size in (("du", nu), ("x", n), ("u", self._after.numel_in(2)))
        )
        symbols = [t, x, u, du, x_after, u_after]
        terms = [ca.densify(term.T) for term in self._linear(*symbols)]
        made = ca.Function("jump", symbols, ca.cse(terms))
        return Compiled(made, [(2,), (nx,), (nu,), (n, nx), (n, nu), (n,), (n,)])

    @cached_property
    def many(self) -> Mapped:
        """A function of rows t, x, u and u+, under inputs that are held.

        Its columns are x+ (nx+,), slope and size (2,), and the saltation matrix G (nx+, nx).
        """
        t, x, u = self._before.sx_in()
        u_after = ca.SX.sym("u", self._after.numel_in(2))
        state = self._reset(t, x, u)
        rates, by_state, _, r_x, _, change, _ = self._linear(t, x, u, 0.0 * u, state, u_after)
        columns = [state, rates, (r_x - change @ by_state.T).T]
        made = ca.Function("jump", [t, x, u, u_after], ca.cse([ca.densify(c) for c in columns]))
        n = state.numel()
        return Mapped(made, [(n,), (2,), (n, x.numel())])

    def _linear(self, *symbols: Expression) -> tuple[Expression, ...]:
        """Slope and size in one column, and the arrays of `JumpTerms`, vectors as columns."""
        t, x, u, du, x_after, u_after = symbols
        f, guards, _ = self._before(t, x, u)
        guard, state = guards[self._guard], self._reset(t, x, u)
        moved, rates = ca.vertcat(t, x, u), ca.vertcat(1.0, f, du)
        g, r = ca.jacobian(guard, moved), ca.jacobian(state, moved)
        slope, size = g @ rates, ca.fabs(g) @ ca.fabs(rates)
        of_state, of_input = slice(1, 1 + x.numel()), slice(1 + x.numel(), None)
        rate = r @ rates
        return (
            ca.vertcat(slope, size),
            -g[of_state].T / slope,
            -g[of_input].T / slope,
            r[:, of_state],
            r[:, of_input],
            self._after(t, x_after, u_after)[0] - rate,
            rate,
        )


def compiled_jump(
    before: Function, i: int, reset: Function, after: Function, parts: tuple[Value, Value, Value]
) -> CompiledJump | None:
    """See `CompiledJump`; None for functions of MX that have no expansion to SX."""
    try:
        before, reset, after = (function.expand() for function in (before, reset, after))
    except RuntimeError:  # CasADi's, for what has no SX
        return None
    return CompiledJump(before, i, reset, after, parts)
