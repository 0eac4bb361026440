r"""Covariance along an arc: :math:`\dot P = A P + P A^T + Q`, in a few large steps.

With P = X Y^{-1} it is the linear equation

.. math:: \frac{d}{dt} \begin{pmatrix} X \\ Y \end{pmatrix} =
    \begin{pmatrix} A & Q \\ 0 & -A^T \end{pmatrix} \begin{pmatrix} X \\ Y \end{pmatrix},

solved by Magnus' expansion of order six on three Gauss points (Blanes, Casas, Oteo, Ros 2009,
section 5): exact where A and Q are constant, whatever the length. A panel has to be halved where
the expansion is not accurate: its error is of order h^7, its distance e to the expansion of order
four of order h^5, so that e^(7/5) stands for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.linalg import expm

from hybridctl.checks import Array
from hybridctl.estimation.noise import Noise
from hybridctl.hybrid.mode import Mode
from hybridctl.hybrid.trajectory import Arc
from hybridctl.sensitivity.variation import coefficients

_NODES = 0.5 + np.array([-1.0, 0.0, 1.0]) * np.sqrt(0.15)
_ORDERS = 7.0 / 5.0  # of the errors of both expansions
_SHORTEST = 1e-300  # s, of an arc whose length has an inverse
_LONGEST = 6.0  # size of the exponent, above which growing exponentials lose digits
_ROUNDING = 1e-14  # of the covariance: noise this small need not be right
_HALVINGS = 24
_HALVINGS_FOR_NOISE = 10


class Transition(NamedTuple):
    """z(end) = matrix z(start) + noise: matrix (ndx, ndx), covariance (ndx, ndx) of the noise."""

    matrix: Array
    covariance: Array

    def carry(self, p: Array) -> Array:
        """The covariance at the end."""
        return np.asarray(self.matrix @ p @ self.matrix.T + self.covariance)


def transition(mode: Mode, arc: Arc, noise: Noise | None, p: Array, rtol: float) -> Transition:
    """The flow of deviations along an arc, and the noise gathered on it.

    p (ndx, ndx): the covariance at its start, next to which rounding is judged. rtol: of each
    panel. Raises `SystemDefinitionError` if the field has no Jacobian, `InputError` for noise that
    does not fit the mode.
    """
    n = arc.space.ndx

    def generator(t: float) -> Array:
        x, u = arc.state_and_input(t)
        c = coefficients(mode, t, x, u)
        m = np.zeros((2 * n, 2 * n))
        m[:n, :n], m[n:, n:] = c.state, -c.state.T
        if noise is not None:
            m[:n, n:] = noise.matrix(mode, t, x, u, c.input)
        return m

    total = Transition(np.eye(n), np.zeros((n, n)))
    if arc.end - arc.start <= _SHORTEST:
        return total
    least = _ROUNDING * float(np.abs(p).max())
    accuracy = rtol ** (1.0 / _ORDERS)
    waiting = [(arc.start, arc.end, 0)]
    while waiting:
        start, end, halvings = waiting.pop()
        exponent, error = _exponent(generator, start, end)
        if not _accurate(exponent, error, n, halvings, accuracy, least):
            middle = 0.5 * (start + end)
            waiting += [(middle, end, halvings + 1), (start, middle, halvings + 1)]
            continue
        whole = expm(exponent)
        matrix = whole[:n, :n]
        gathered = whole[:n, n:] @ matrix.T
        p = total.covariance
        p = matrix @ p @ matrix.T + 0.5 * (gathered + gathered.T)
        total = Transition(matrix @ total.matrix, p)
    return total


def _exponent(generator: Callable[[float], Array], start: float, end: float) -> tuple[Array, Array]:
    """Magnus' exponent of order six, and its distance to that of order four."""
    h = end - start
    m1, m2, m3 = (generator(start + c * h) for c in _NODES)
    mean = h * m2
    slope, bend = np.sqrt(15.0) / 3.0 * h * (m3 - m1), 10.0 / 3.0 * h * (m3 - 2.0 * m2 + m1)
    straight = mean + bend / 12.0
    c1 = _commutator(mean, slope)
    c2 = _commutator(mean, 2.0 * bend + c1) / -60.0
    turned = _commutator(-20.0 * mean - bend + c1, slope + c2) / 240.0
    return straight + turned, turned + c1 / 12.0


def _commutator(a: Array, b: Array) -> Array:
    return a @ b - b @ a


def _accurate(
    exponent: Array, error: Array, n: int, halvings: int, accuracy: float, least: float
) -> bool:
    """Whether a panel is short enough; flow and noise are judged apart, their units differ."""
    flow, gathered = exponent[:n, :n], float(np.abs(exponent[:n, n:]).max())
    size = float(np.sqrt(np.abs(flow @ flow).sum(axis=0).max()))  # bounds the eigenvalues
    off, lost = np.abs(error[:n, :n]).max(), np.abs(error[:n, n:]).max()
    steady = halvings >= _HALVINGS or (size <= _LONGEST and off <= accuracy)
    noisy = halvings < _HALVINGS_FOR_NOISE and lost > max(accuracy * gathered, least)
    return bool(steady and not noisy)
