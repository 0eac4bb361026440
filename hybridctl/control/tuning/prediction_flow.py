r"""Exponentials of many small matrices with the integrals of a quadratic cost, and their gradient.

For each of n intervals of length h on which the rate M and the cost density C are constant,

.. math:: \Phi = e^{M h}, \qquad W = \int_0^h e^{M^T t} C\, e^{M t}\, dt,

so that z(h) = Phi z(0), and z(0)^T W z(0) is the cost on the way. Taylor series on a part of the
interval that is short for the fastest rate, then doubling,
:math:`W(2h) = W(h) + \Phi(h)^T W(h) \Phi(h)`: no inverse, and no growth where M is stiff.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridctl.checks import Array

_ORDER = 8
_SHORT = 0.25  # the series ends with terms of _SHORT**9 / 9!, 1e-11


@dataclass(frozen=True, eq=False)
class Flow:
    """Phi and W (n, d, d) of all intervals, with what their gradient needs.

    part (n, d, d): M times the short part of the interval. doubled: the pairs (Phi, W) before
    each doubling.
    """

    transition: Array
    cost: Array
    part: Array
    density: Array
    length: float
    doubled: tuple[tuple[Array, Array], ...]

    def pullback(self, transition: Array, cost: Array) -> tuple[Array, Array]:
        """The gradients (n, d, d) by M and C, for those by Phi and by W; the latter symmetric."""
        for phi, w in reversed(self.doubled):
            # Phi2 = Phi Phi, W2 = W + Phi^T W Phi
            turned = _t(phi)
            transition = (
                transition @ turned + turned @ transition + 2.0 * (w @ phi @ _symmetric(cost))
            )
            cost = cost + phi @ cost @ turned
        by_part = _series_pullback(self.part, transition)
        by_cost_part, density = _integral_pullback(self.part, self.density, cost)
        return (by_part + by_cost_part) * self.length, density * self.length


def flow(rate: Array, density: Array, length: float) -> Flow:
    """Phi and W for rates M and symmetric densities C (n, d, d) on intervals of `length` s."""
    fastest = float(np.abs(rate).sum(axis=2).max(initial=0.0)) * length
    doublings = max(int(np.ceil(np.log2(max(fastest, 1e-300) / _SHORT))), 0)
    short = length / 2**doublings
    part, scaled = rate * short, density * short
    phi, w = _total(_power_terms(part)), _total(_integral_terms(part, scaled))
    steps: list[tuple[Array, Array]] = []
    for _ in range(doublings):
        steps.append((phi, w))
        w = w + _t(phi) @ w @ phi
        phi = phi @ phi
    return Flow(phi, w, part, scaled, short, tuple(steps))


def _total(terms: list[Array]) -> Array:
    return np.asarray(np.sum(terms, axis=0))


def _power_terms(part: Array) -> list[Array]:
    """part^j / j! for j = 0 to _ORDER."""
    terms = [np.broadcast_to(np.eye(part.shape[1]), part.shape)]
    for j in range(_ORDER):
        terms.append(terms[-1] @ part / (j + 1))
    return terms


def _series_pullback(part: Array, gradient: Array) -> Array:
    terms, turned = _power_terms(part), _t(part)
    total, by_term = np.zeros_like(part), gradient
    for j in reversed(range(_ORDER)):
        total = total + _t(terms[j]) @ by_term / (j + 1)
        by_term = gradient + by_term @ turned / (j + 1)
    return total


def _integral_terms(part: Array, density: Array) -> list[Array]:
    """The terms of W: each is part^T V + V part of the one before it, over its number."""
    terms = [density]
    for j in range(_ORDER):
        half = terms[-1] @ part
        terms.append((half + _t(half)) / (j + 2))
    return terms


def _integral_pullback(part: Array, density: Array, gradient: Array) -> tuple[Array, Array]:
    """Gradients by `part` and by `density`."""
    terms, gradient = _integral_terms(part, density), _symmetric(gradient)
    total, by_term = np.zeros_like(part), gradient
    for j in reversed(range(_ORDER)):
        total = total + 2.0 * terms[j] @ by_term / (j + 2)
        half = part @ by_term
        by_term = gradient + (half + _t(half)) / (j + 2)
    return total, by_term


def _t(a: Array) -> Array:
    return np.swapaxes(a, 1, 2)


def _symmetric(a: Array) -> Array:
    return 0.5 * (a + _t(a))
