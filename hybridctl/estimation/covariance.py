r"""The covariance along one arc, and the first-order map that it follows.

Along an arc the covariance obeys :math:`\dot P = A P + P A^T + Q`, which is taken in a few large
panels. With P = X Y^{-1} it is the linear equation

.. math:: \frac{d}{dt} \begin{pmatrix} X \\ Y \end{pmatrix} =
    \begin{pmatrix} A & Q \\ 0 & -A^T \end{pmatrix} \begin{pmatrix} X \\ Y \end{pmatrix},

solved by Magnus' expansion of order six on three Gauss points (Blanes, Casas, Oteo, Ros 2009,
section 5): exact where A and Q are constant, whatever the length. A panel has to be halved where
the expansion is not accurate: its error is of order h^7, its distance e to the expansion of order
four of order h^5, so that e^(7/5) stands for it. That distance is of commutators, and nothing where
A and Q commute at all times. What three points miss of the integral is judged by what the rule of
one point misses more: a part e of it, of order h^2, stands for e^3, of order h^6.

Collocation (`sensitivity.propagation`) does not replace it. A step of Radau IIA over 0.1 s, where
something decays at 1e4 1/s, has the transition to 1e-2, at a thousandth of the cost where rates
vary, but misses more than 90 % of the variance that noise keeps up in that direction; sixteen
steps still miss 21 to 75 %. Where nothing decays so fast it is the cheaper one.

This serves arcs of any simulation, noise that is a function of the state, and modes whose contacts
slide: their friction is stiff, and one panel holds where the error of a compiled step with its
noise (`ModeModel.transition`) is far too large. Elsewhere that step is taken: 9 instead of
46 us for a ball, 19 instead of 51 for a block.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import expm

from hybridctl.checks import Array
from hybridctl.estimation.noise import Noise
from hybridctl.hybrid.mode import ModeModel
from hybridctl.hybrid.series import TO_SERIES, basis
from hybridctl.hybrid.trajectory import Arc
from hybridctl.sensitivity.propagation import Propagation, symmetric_part
from hybridctl.sensitivity.variation import coefficients_at

Generators = list[Array]

_NODES = 0.5 + np.array([-1.0, 0.0, 1.0]) * np.sqrt(0.15)
_FRACTIONS: list[float] = _NODES.tolist()
_TO_NODES: Array = basis(2.0 * _NODES - 1.0) @ TO_SERIES
_ORDERS = 7.0 / 5.0  # of the errors of both expansions
_INSTANT = 1e-300  # s, of an arc whose length has an inverse
_LONGEST = 6.0  # size of the exponent, above which growing exponentials lose digits
_ROUNDING = 1e-14  # of the covariance: noise this small need not be right
_HALVINGS = 24
_HALVINGS_FOR_NOISE = 10


def transition(
    mode: ModeModel, arc: Arc, noise: Noise | None, p: Array, rtol: float
) -> Propagation:
    """The flow of deviations along an arc, and the noise gathered on it.

    p (ndx, ndx): the covariance at its start, next to which rounding is judged. rtol: of each
    panel. Raises `SystemDefinitionError` if the field has no Jacobian, `InputError` for noise that
    does not fit the mode.
    """
    n = arc.space.ndx

    def panel(start: float, end: float) -> Generators:
        times = [start + c * (end - start) for c in _FRACTIONS]
        return [generator(mode, noise, t, *arc.state_and_input(t)) for t in times]

    none = np.zeros((n, n))
    total = Propagation(np.eye(n), none, none)
    if arc.end - arc.start <= _INSTANT:
        return total
    waiting = [(piece.start, piece.end, 0) for piece in reversed(arc.pieces)]
    while waiting:
        start, end, halvings = waiting.pop()
        found = _across(panel(start, end), end - start, p, rtol, halvings)
        if found is None:
            middle = 0.5 * (start + end)
            waiting += [(middle, end, halvings + 1), (start, middle, halvings + 1)]
            continue
        total = Propagation(found.state @ total.state, found.covariance(total.noise), none)
    return total


def step_transition(
    mode: ModeModel, t: float, h: float, states: Array, u: Array, noise: Noise | None, p: Array,
    rtol: float,
) -> Propagation | None:  # fmt: skip
    """The transition on a step of length h from t, with states (8, nx) at the nodes of `series`.

    u (nu,): the input, held. None where one panel is not accurate.
    """
    points = zip(_FRACTIONS, _TO_NODES @ states, strict=True)
    normalize = mode.space.normalize
    panel = [generator(mode, noise, t + c * h, normalize(x), u) for c, x in points]
    return _across(panel, h, p, rtol, 0)


def generator(mode: ModeModel, noise: Noise | None, t: float, x: Array, u: Array) -> Array:
    """The matrix (2 ndx, 2 ndx) of the linear equation at a point."""
    n = mode.space.ndx
    point = mode.calc(t, x, u)
    c = coefficients_at(point)
    m = np.zeros((2 * n, 2 * n))
    m[:n, :n] = c.state
    np.negative(c.state.T, out=m[n:, n:])
    if noise is not None:
        m[:n, n:] = noise.matrix(point, c.input)
    return m


def _across(
    generators: Generators, h: float, p: Array, rtol: float, halvings: int
) -> Propagation | None:
    """The flow across a panel with these generators at its Gauss points; None to halve it."""
    n = len(p)
    exponent, error = _exponent(generators, h)
    if not _accurate(exponent, error, p, rtol, halvings):
        return None
    whole = expm(exponent)
    matrix = whole[:n, :n]
    gathered = whole[:n, n:] @ matrix.T
    return Propagation(matrix, symmetric_part(gathered), np.zeros((n, n)))


class _MagnusErrors(NamedTuple):
    """How far Magnus' exponent is from that of order four, and from that of one Gauss point."""

    turned: Array
    bent: Array


def _exponent(generators: Generators, h: float) -> tuple[Array, _MagnusErrors | None]:
    """Magnus' exponent of order six, and what stands for its errors; None for none."""
    m1, m2, m3 = generators
    mean = h * m2
    if not ((m1 != m2) | (m3 != m2)).any():
        return mean, None
    slope, bend = np.sqrt(15.0) / 3.0 * h * (m3 - m1), 10.0 / 3.0 * h * (m3 - 2.0 * m2 + m1)
    straight = mean + bend / 12.0
    c1 = _commutator(mean, slope)
    c2 = _commutator(mean, 2.0 * bend + c1) / -60.0
    turned = _commutator(-20.0 * mean - bend + c1, slope + c2) / 240.0
    return straight + turned, _MagnusErrors(turned + c1 / 12.0, bend / 12.0)


def _commutator(a: Array, b: Array) -> Array:
    return a @ b - b @ a


def _accurate(
    exponent: Array, error: _MagnusErrors | None, p: Array, rtol: float, halvings: int
) -> bool:
    """Whether a panel is short enough; flow and noise are judged apart, their units differ."""
    n = len(p)
    flow = exponent[:n, :n]
    size = float(np.sqrt(np.abs(flow @ flow).sum(axis=0).max()))  # bounds the eigenvalues
    if error is None:
        return size <= _LONGEST or halvings >= _HALVINGS
    turned, bent = np.abs(error.turned[:n]), np.abs(error.bent[:n])
    grown, gathered = np.abs(flow).max(), np.abs(exponent[:n, n:]).max()
    accuracy, share = rtol ** (1.0 / _ORDERS), rtol ** (1.0 / 3.0)
    exact = turned[:, :n].max() <= accuracy and bent[:, :n].max() ** 3 <= rtol * grown**2
    steady = halvings >= _HALVINGS or (size <= _LONGEST and exact)
    lost = max(turned[:, n:].max() - accuracy * gathered, bent[:, n:].max() - share * gathered)
    noisy = halvings < _HALVINGS_FOR_NOISE and lost > _ROUNDING * np.abs(p).max()
    return bool(steady and not noisy)
