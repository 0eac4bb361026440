r"""The covariance along one arc, and the first-order map that it follows.

Along an arc the covariance obeys :math:`\dot P = A P + P A^T + Q`. Where the noise is constant and
the mode takes compiled steps, these gather it beside the state (`ModeModel.transition`). Elsewhere
steps are collocated at four Radau points (`sensitivity.propagation`): for noise that is a function
of the state, for modes that take no such steps, and for sliding contacts, whose friction is stiff.

A step gives the maps :math:`\Lambda` to its end from its points. That of the last point, where the
identity would be right, is off by e, of order h^4, and the transition differs from the identity by
E: e^2 / E stands for the error of the transition. The last coefficient of the noise that arrives
from the points is of order h^3, the error of their sum h^7: the power 7/3 stands for it.

Magnus' expansion of order six was measured beside it, on flows of four states for 0.1 s of which
one direction decays at 1e2 to 1e4 1/s, and on a slide that stops, to 1e-6 of the variances. Where
rates change both take about as many evaluations (180 and 189, 15,452 and 6,141, the slide 220 and
219), and these steps keep the tolerance (4.7e-7 at most), which Magnus' miss (1.1e-5, the slide
5.6e-6). Where rates are constant Magnus' takes a fifth of them.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from numpy.polynomial.chebyshev import chebvander

from hybridctl.checks import Array
from hybridctl.estimation.model import Model
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.mode import ModeModel
from hybridctl.hybrid.series import TO_SERIES, basis
from hybridctl.sensitivity.propagation import LinearStep, Propagation, radau, symmetric_part
from hybridctl.sensitivity.variation import by_steps, coefficients_at

_RADAU = radau(4)
_FRACTIONS: list[float] = _RADAU.points.tolist()
_TO_POINTS: Array = basis(2.0 * _RADAU.points - 1.0) @ TO_SERIES
_LAST: Array = np.linalg.inv(chebvander(2.0 * _RADAU.points - 1.0, len(_RADAU.points) - 1))[-1]
_ORDERS = 7.0 / 3.0  # of the error of the noise, and of its last coefficient
_FAR = 50.0  # times: how far that coefficient is above the error, at the least
_INSTANT = 1e-300  # s, of an arc whose length has an inverse
_ROUNDING = 1e-14  # of maps, and of the covariance: noise this small need not be right
_HALVINGS = 24
_HALVINGS_FOR_NOISE = 10


def transition(model: Model, mode: ModeModel, arc: Arc, p: Array) -> Propagation:
    """The flow of deviations along an arc of a mode, and the noise gathered on it.

    p (ndx, ndx): the covariance at its start, next to which rounding is judged. Raises
    `SystemDefinitionError` if the field has no Jacobian, `InputError` for noise that does not fit
    the mode.
    """
    total = Propagation.of_no_time(arc.space.ndx)
    if arc.end - arc.start <= _INSTANT:
        return total
    noise = partial(model.diffusion, mode)
    begin, total = by_steps(mode, arc, noise, rtol=model.rtol, atol=model.atol)
    waiting = [
        (max(begin, piece.start), piece.end, 0)
        for piece in reversed(arc.pieces)
        if piece.end > begin
    ]
    while waiting:
        start, end, halvings = waiting.pop()
        h = end - start
        states = [arc.state_and_input(start + c * h) for c in _FRACTIONS]
        found = _across(model, mode, start, h, states, p, halvings)
        if found is None:
            middle = 0.5 * (start + end)
            waiting += [(middle, end, halvings + 1), (start, middle, halvings + 1)]
            continue
        total = total.onward(found.state, found.noise)
    return total


def step_transition(
    model: Model, mode: ModeModel, t: float, h: float, states: Array, u: Array, p: Array
) -> Propagation | None:
    """The transition on a step of length h from t, with states (8, nx) at the nodes of `series`.

    u (nu,): the input, held. None where one step is not accurate.
    """
    normalize = mode.space.normalize
    found = [(normalize(x), u) for x in _TO_POINTS @ states]
    return _across(model, mode, t, h, found, p, 0)


def _across(
    model: Model,
    mode: ModeModel,
    t: float,
    h: float,
    states: list[tuple[Array, Array]],
    p: Array,
    halvings: int,
) -> Propagation | None:
    """The flow over a step with states and inputs at its points; None where it is to be halved."""
    n, noise = len(p), model.process_noise
    matrices, densities = np.empty((2, len(states), n, n))
    for i, (x, u) in enumerate(states):
        point = mode.calc(t + _FRACTIONS[i] * h, x, u)
        c = coefficients_at(point)
        matrices[i] = c.state
        densities[i] = 0.0 if noise is None else noise.matrix(point, c.input)
    step = LinearStep(matrices, h, _RADAU)
    arriving = step.arriving(densities)
    gathered = symmetric_part(_sum(step.weights, arriving))
    moved, unit = step.to_end[0], np.eye(n)
    lost, grown = _largest(step.to_end[-1] - unit), _largest(moved - unit)
    if lost > math.sqrt(model.rtol * grown) + _ROUNDING and halvings < _HALVINGS:
        return None
    lost, share = h * _largest(_sum(_LAST, arriving)), (_FAR * model.rtol) ** (1.0 / _ORDERS)
    rounding = _ROUNDING * _largest(p)
    if lost > share * _largest(gathered) + rounding and halvings < _HALVINGS_FOR_NOISE:
        return None
    return Propagation(moved, gathered, np.zeros((n, n)))


def _sum(weights: Array, matrices: Array) -> Array:
    """The sum (n, n) of matrices (k, n, n), weighted."""
    k, *square = matrices.shape
    return np.asarray((weights @ matrices.reshape(k, -1)).reshape(square))


def _largest(matrix: Array) -> float:
    return float(np.abs(matrix).max())
