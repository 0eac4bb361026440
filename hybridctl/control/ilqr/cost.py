r"""Costs of optimal control: value, gradient and Hessian, in the tangent space of the state.

.. math:: J = \sum_{k=0}^{N} w_k\, \ell(t_k, x_k, u_k) + \phi(x_N)

with the weights w_k of the trapezoidal rule. A running cost of velocities is sampled, so it jumps
where an impact passes a grid time; one of inputs and positions does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import block_diag

from hybridctl.base.checks import (
    Array,
    check_array,
    check_count,
    check_number,
    check_semidefinite,
    check_vector,
)
from hybridctl.base.spaces import Space, compute_difference_jacobians


class Expansion(NamedTuple):
    """A cost at a point to second order: value, gradient (m,), and Hessian (m, m).

    By (x, u) for a running cost, m = ndx + nu; by x for that of the final state, m = ndx.
    """

    value: float
    gradient: Array
    hessian: Array


class Cost(Protocol):
    """A cost with exact gradients; the Hessians may be those of Gauss and Newton."""

    def running(self, t: float, x: Array, u: Array) -> Expansion:
        """The cost per second, l(t, x, u)."""
        ...

    def final(self, x: Array) -> Expansion:
        """The cost of the final state, phi(x)."""
        ...


class QuadraticCost:
    r"""The cost of the distance from a target, measured in the tangent space at the target.

    .. math:: \ell = \tfrac12 d^T Q d + \tfrac12 w^T R w, \quad
        \phi = \tfrac12 d^T Q_N d, \quad d = x \ominus x^*, \quad w = u - u^*(t)

    space: of all modes. target: x* (nx,). input: R (nu, nu), positive definite. final: Q_N (ndx,
    ndx). state: Q (ndx, ndx), per second; zero if None. feedforward: u*(t) (nu,); zero if None.

    On a Lie group the gradient of d is the inverse of its right Jacobian, so that gradients are
    exact; the Hessian leaves out the curvature of d (Gauss-Newton). Raises `InputError`.
    """

    def __init__(
        self,
        space: Space,
        target: ArrayLike,
        *,
        input: ArrayLike,
        final: ArrayLike,
        state: ArrayLike | None = None,
        feedforward: Callable[[float], Array] | None = None,
    ) -> None:
        n = space.ndx
        self.space = space
        self.target = check_vector("target", target, space.nx)
        space.check("target", self.target)
        self.input = check_semidefinite("input", input, definite=True)
        self.final_state = check_semidefinite("final", final, n)
        self.state = check_semidefinite("state", np.zeros((n, n)) if state is None else state, n)
        self.feedforward = feedforward

    def running(self, t: float, x: Array, u: Array) -> Expansion:
        """The cost per second at time t in s and (x, u)."""
        value, gradient, hessian = self._distance(x, self.state)
        w = u if self.feedforward is None else u - self.feedforward(t)
        force = self.input @ w
        gradient, hessian = np.append(gradient, force), block_diag(hessian, self.input)
        return Expansion(value + 0.5 * float(w @ force), gradient, hessian)

    def final(self, x: Array) -> Expansion:
        """The cost of the final state."""
        return Expansion(*self._distance(x, self.final_state))

    def _distance(self, x: Array, weight: Array) -> tuple[float, Array, Array]:
        d = self.space.difference(self.target, x)
        _, slope = compute_difference_jacobians(self.space, self.target, x)
        pull = weight @ d
        return 0.5 * float(d @ pull), slope.T @ pull, slope.T @ weight @ slope


class TransitionCost:
    r"""A cost of the state, and one of how far deviations are spread in the end.

    .. math:: \phi(x, \Phi) = \phi(x) + \tfrac12 w\, \|C \Phi\|_F^2

    for states (x, Phi) of `symbolic.variational`: with it `ilqr` shapes its events, as in
    :math:`\Phi` they jump by their saltation matrices. cost: of x (n,). weight: w. seen: C (m, n),
    what of the final deviation counts, all of it by default. Saltation matrices see the input at
    their event, whose rate jumps at the times of the grid: the cost has a kink where an event comes
    to one, and a search that ends there says that no step lowers it. Raises `InputError`.
    """

    def __init__(self, cost: Cost, n: int, weight: float, seen: ArrayLike | None = None) -> None:
        self.cost, self.n = cost, check_count("n", n)
        c = np.eye(n) if seen is None else check_array("seen", seen, (None, n))
        self.weight = check_number("weight", weight, at_least=0.0) * np.kron(np.eye(n), c.T @ c)

    def running(self, t: float, x: Array, u: Array) -> Expansion:
        """The cost per second, which does not see Phi."""
        of = self.cost.running(t, x[: self.n], u)
        size = len(x) + len(u)
        seen = np.r_[: self.n, len(x) : size]
        gradient, hessian = np.zeros(size), np.zeros((size, size))
        gradient[seen], hessian[np.ix_(seen, seen)] = of.gradient, of.hessian
        return Expansion(of.value, gradient, hessian)

    def final(self, x: Array) -> Expansion:
        """The cost of the final state and of Phi."""
        of, pull = self.cost.final(x[: self.n]), self.weight @ x[self.n :]
        gradient, hessian = np.append(of.gradient, pull), block_diag(of.hessian, self.weight)
        return Expansion(of.value + 0.5 * float(x[self.n :] @ pull), gradient, hessian)
