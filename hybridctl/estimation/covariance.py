r"""The covariance along one arc, and the first-order map that it follows.

Along an arc the covariance obeys :math:`\dot P = A P + P A^T + Q`. Where the noise is constant and
the mode takes compiled steps, these gather it beside the state
(`CompiledSteps.transition`). Elsewhere
it goes by the steps of `sensitivity.collocation`: for noise that is a function of the state, for
modes that take no such steps, and for sliding contacts, whose friction is stiff.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.estimation.model import Model
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.mode import ModeModel
from hybridctl.hybrid.series import TO_SERIES, basis
from hybridctl.sensitivity.collocation import (
    SHORT_FORMULA,
    Propagation,
    choose_step_length,
    integrate_noise,
    propagate_short_step,
)
from hybridctl.sensitivity.propagation import (
    choose_first_leap,
    linearize_field_at,
    propagate_by_steps,
)

_FRACTIONS: list[float] = SHORT_FORMULA.points.tolist()
_TO_POINTS: Array = basis(2.0 * SHORT_FORMULA.points - 1.0) @ TO_SERIES
_INSTANT = 1e-300  # s, of an arc whose length has an inverse
_NEAR = 50.0  # tolerances: an error of few points where one step of more points will do


def transition(model: Model, mode: ModeModel, arc: Arc, p: Array) -> Propagation:
    """The flow of deviations along an arc of a mode, and the noise gathered on it.

    p (ndx, ndx): the covariance at its start, next to which rounding is judged. Raises
    `SystemDefinitionError` if the field has no Jacobian, `InputError` for noise that does not fit
    the mode, `IntegrationError` where A changes faster than steps resolve.
    """
    total = Propagation.identity(arc.space.ndx)
    if arc.end - arc.start <= _INSTANT:
        return total
    noise = partial(model.diffusion, mode)
    begin, total = propagate_by_steps(mode, arc, noise, rtol=model.rtol, atol=model.atol)
    for piece in arc.pieces:
        if piece.end > begin:
            left = replace(piece, start=max(begin, piece.start))
            total = _along(model, mode, left, total, p)
    return total


def step_transition(
    model: Model, mode: ModeModel, t: float, h: float, states: Array, u: Array, p: Array
) -> Propagation | None:
    """The transition on a step of length h from t, with states (8, nx) at the nodes of `series`.

    u (nu,): the input, held. None where one step is not accurate.
    """
    normalize = mode.space.normalize
    at = [(normalize(x), u) for x in _TO_POINTS @ states]
    found, ratio = _across(model, mode, t, h, at, p)
    return found if ratio <= 1.0 else None


def _along(model: Model, mode: ModeModel, arc: Arc, total: Propagation, p: Array) -> Propagation:
    """The propagation before an arc of one law, and along it: in one step, if that is accurate."""
    start, h = arc.start, arc.end - arc.start
    at = [arc.state_and_input(start + c * h) for c in _FRACTIONS]
    found, ratio = _across(model, mode, start, h, at, p)
    if ratio <= 1.0:
        return total.advance(found.state, found.noise)
    return integrate_noise(
        lambda t: _rates(model, mode, t, *arc.state_and_input(t)),
        total,
        start,
        arc.end,
        rtol=model.rtol,
        atol=model.atol,
        first_step=h if ratio < _NEAR else choose_step_length(h, ratio),
        leap=choose_first_leap(mode, arc),
    )


def _across(
    model: Model,
    mode: ModeModel,
    t: float,
    h: float,
    at: list[tuple[Array, Array]],
    p: Array,
) -> tuple[Propagation, float]:
    """The flow over a step with states and inputs at its points, and its error in tolerances."""
    n = len(p)
    matrices, densities = np.empty((2, len(at), n, n))
    for i, (x, u) in enumerate(at):
        matrices[i], densities[i] = _rates(model, mode, t + _FRACTIONS[i] * h, x, u)
    return propagate_short_step(matrices, densities, h, model.rtol, float(np.abs(p).max()))


def _rates(model: Model, mode: ModeModel, t: float, x: Array, u: Array) -> tuple[Array, Array]:
    """A and the density of the noise, both (ndx, ndx)."""
    point, noise = mode.calc(t, x, u), model.process_noise
    c = linearize_field_at(point)
    return c.state, np.zeros_like(c.state) if noise is None else noise.matrix(point, c.input)
