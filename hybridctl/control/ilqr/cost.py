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
    """A cost at a point to second order.

    A running cost is expanded by (x, u), with m = ndx + nu; a final cost by x, with m = ndx.

    Attributes:
        value: Value.
        gradient: Gradient (m,).
        hessian: Hessian (m, m).
    """

    value: float
    gradient: Array
    hessian: Array


class Cost(Protocol):
    """A cost with exact gradients; its Hessians may be those of Gauss-Newton."""

    def running(self, t: float, x: Array, u: Array) -> Expansion:
        """Return the running cost l(t, x, u), per second.

        Args:
            t: Time, s.
            x: State (nx,).
            u: Input (nu,).
        """
        ...

    def final(self, x: Array) -> Expansion:
        """Return the cost phi(x) of the final state (nx,)."""
        ...


class QuadraticCost:
    r"""The cost of the distance from a target, measured in the tangent space at the target.

    .. math:: \ell = \tfrac12 d^T Q d + \tfrac12 w^T R w, \quad
        \phi = \tfrac12 d^T Q_N d, \quad d = x \ominus x^*, \quad w = u - u^*(t)

    On a Lie group the gradient of d is the inverse of its right Jacobian, so that gradients are
    exact. The Hessian leaves out the curvature of d (Gauss-Newton).

    Args:
        space: Space of the states of all modes.
        target: Target x* (nx,).
        input: Weight R (nu, nu), positive definite, per second.
        final: Weight Q_N (ndx, ndx) of the final distance, positive semidefinite.
        state: Weight Q (ndx, ndx) of the distance, per second; None for zero.
        feedforward: Planned input u*(t) (nu,) as a function of time in s; None for zero.

    Raises:
        InputError: A shape does not fit, or a weight is not (semi)definite.

    Attributes:
        space: Space of the states.
        target: Target x* (nx,).
        input: Weight R (nu, nu).
        final_state: Weight Q_N (ndx, ndx).
        state: Weight Q (ndx, ndx), per second.
        feedforward: Planned input u*(t), or None for zero.
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
        """Return the running cost, per second.

        Args:
            t: Time, s.
            x: State (nx,).
            u: Input (nu,).
        """
        value, gradient, hessian = self._expand_distance(x, self.state)
        w = u if self.feedforward is None else u - self.feedforward(t)
        force = self.input @ w
        gradient, hessian = np.append(gradient, force), block_diag(hessian, self.input)
        return Expansion(value + 0.5 * float(w @ force), gradient, hessian)

    def final(self, x: Array) -> Expansion:
        """Return the cost of a final state (nx,)."""
        return Expansion(*self._expand_distance(x, self.final_state))

    def _expand_distance(self, x: Array, weight: Array) -> tuple[float, Array, Array]:
        """Return value, gradient and Hessian of d . weight d / 2 at a state x (nx,)."""
        d = self.space.difference(self.target, x)
        _, jacobian = compute_difference_jacobians(self.space, self.target, x)
        weighted = weight @ d
        return 0.5 * float(d @ weighted), jacobian.T @ weighted, jacobian.T @ weight @ jacobian


class TransitionCost:
    r"""A cost of the state, and one of the final transition matrix.

    .. math:: \phi(x, \Phi) = \phi(x) + \tfrac12 w\, \|C \Phi\|_F^2

    It is for states (x, Phi) of `symbolic.variational`, where :math:`\Phi` jumps by saltation
    matrices. With it `ilqr` shapes the events so that perturbations are spread little.

    A saltation matrix depends on the rate of the input at its event, which jumps at the times of
    the grid. The cost has a kink where an event comes to such a time. A search that ends there
    reports that no step lowers the cost.

    Args:
        cost: Cost of x (n,).
        n: Size of x.
        weight: Weight w of the transition matrix.
        seen: Matrix C (m, n) of the final perturbation that counts; None for all of it.

    Raises:
        InputError: An argument does not fit.

    Attributes:
        cost: Cost of x.
        n: Size of x.
        weight: Weight (n n, n n) of the entries of Phi.
    """

    def __init__(self, cost: Cost, n: int, weight: float, seen: ArrayLike | None = None) -> None:
        self.cost, self.n = cost, check_count("n", n)
        c = np.eye(n) if seen is None else check_array("seen", seen, (None, n))
        self.weight = check_number("weight", weight, at_least=0.0) * np.kron(np.eye(n), c.T @ c)

    def running(self, t: float, x: Array, u: Array) -> Expansion:
        """Return the running cost of x and u, per second; Phi costs nothing before the end.

        Args:
            t: Time, s.
            x: State (x, Phi) of size n + n n.
            u: Input (nu,).
        """
        own = self.cost.running(t, x[: self.n], u)
        size = len(x) + len(u)
        entries = np.r_[: self.n, len(x) : size]
        gradient, hessian = np.zeros(size), np.zeros((size, size))
        gradient[entries], hessian[np.ix_(entries, entries)] = own.gradient, own.hessian
        return Expansion(own.value, gradient, hessian)

    def final(self, x: Array) -> Expansion:
        """Return the cost of a final state (x, Phi)."""
        own, weighted = self.cost.final(x[: self.n]), self.weight @ x[self.n :]
        gradient, hessian = np.append(own.gradient, weighted), block_diag(own.hessian, self.weight)
        return Expansion(own.value + 0.5 * float(x[self.n :] @ weighted), gradient, hessian)
