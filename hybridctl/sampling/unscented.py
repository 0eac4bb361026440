r"""The hybrid unscented filter: sigma points through the exact event loop.

The 2 r points :math:`x \boxplus \pm \sqrt r\, l_k` have equal weights, with :math:`P = \sum l_k
l_k^T` and r its rank: the unscented transform without a point at the centre, which is the
third-degree cubature rule and has no negative weights.

Each point is simulated to the time of the sample. Near an event points come to different sides of
it. Their vote, one each, decides which guards have fired, and so the mode of the mean; ties go to
the point at the centre. Points of the minority are brought to the side of the majority by the
extended flow (see `state_propagation`). Points that do not lead there within the time `rewind` stay
as they are if they are in the mode of the mean, and are left out otherwise.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.spaces import compute_mean
from hybridctl.estimation.estimate import Estimate, move_mean, nearest_semidefinite
from hybridctl.estimation.filter_state import MomentRule
from hybridctl.estimation.kalman_equations import (
    StatePrediction,
    add_open_impacts,
    compute_residual,
    predict_value,
    select_measured,
)
from hybridctl.estimation.measurement import AnyMeasurement, LinearizedResidual, require_explicit
from hybridctl.estimation.noisy_system import NoisySystem
from hybridctl.estimation.prediction import predict
from hybridctl.estimation.salted_kalman_filter import SaltedKalmanFilter
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.mode import ModeModel
from hybridctl.sampling.state_propagation import (
    EventPattern,
    PropagatedState,
    integrate_perturbations,
    list_fired_guards,
    propagate_state,
    propagate_to_pattern,
    remove_noise,
)

_RANK_TOLERANCE = 1e-15
"""Eigenvalues below this are zero, times the size of a covariance of coordinates of unit variance:
the rounding of the eigenvalues."""


def predict_points(
    model: NoisySystem, estimate: Estimate, end: float, law: InputLaw
) -> StatePrediction:
    """Return the prediction by sigma points: their moments, with the noise of one point added.

    The noise is that of the central point, or of the first point of the majority where the central
    one has other events. The transition matrix is the regression of the points.

    Args:
        model: The filter model.
        estimate: The estimate.
        end: Later time, s. If it is not later, the estimate stays as it is.
        law: Input as a function of time and state.

    Raises:
        SimulationError: If a point can neither be simulated nor predicted.
    """
    if end <= estimate.time:
        return predict(model, estimate, end, law)
    mode = model.system.mode(estimate.mode)
    perturbations = compute_sigma_points(estimate.covariance)
    starts = integrate_perturbations(mode, estimate.mean, perturbations)
    middle = _predict_certain(model, estimate, estimate.mean, end, law)
    noiseless = remove_noise(model)
    paths = [propagate_state(noiseless, estimate.mode, x, estimate.time, end, law) for x in starts]
    of_middle = EventPattern(list_fired_guards(middle.events), middle.estimate.mode)
    pattern = _elect_pattern(paths, of_middle)
    if pattern != of_middle:
        # The central point is in the minority: one of the majority gathers the noise.
        winner = next(k for k, path in enumerate(paths) if path.pattern == pattern)
        middle = _predict_certain(model, estimate, starts[winner], end, law)
    images, used = list[Array](), list[int]()
    for k, path in enumerate(paths):
        state = propagate_to_pattern(noiseless, path, pattern, end, law)
        if state is None and path.mode == pattern.mode:
            state = path.state
        if state is not None:
            images.append(state)
            used.append(k)
    if middle.pre_event:
        # Hypotheses branch from what was known before an event: here that is the estimate itself.
        start = StatePrediction(estimate, transition=np.eye(len(estimate.covariance)))
        middle = middle._replace(pre_event=(start,))
    return _combine_points(model, middle, np.array(images), perturbations[used])


def _predict_certain(
    model: NoisySystem, estimate: Estimate, x: Array, end: float, law: InputLaw
) -> StatePrediction:
    """Return the prediction of one state, with the noise that it gathers on its way.

    Args:
        model: The filter model.
        estimate: The estimate, whose mean and covariance are not used.
        x: State (nx,) in its mode.
        end: Later time, s.
        law: Input as a function of time and state.
    """
    certain = replace(estimate, mean=x, covariance=np.zeros_like(estimate.covariance))
    return predict(model, certain, end, law)


def _combine_points(
    model: NoisySystem, middle: StatePrediction, images: Array, perturbations: Array
) -> StatePrediction:
    """Return the moments of propagated sigma points, with the noise of one point added.

    Args:
        model: The filter model.
        middle: Prediction of the point that gathers the noise. It is returned if no points are
            left.
        images: Propagated points (m, nx), in the mode of `middle`.
        perturbations: Perturbations (m, ndx) that led to them.
    """
    e = middle.estimate
    if not len(images):
        return middle
    mode = model.system.mode(e.mode)
    weights = np.full(len(images), 1.0 / len(images))
    mean, spread = compute_mean(mode.space, images, weights, e.mean)
    step = mode.space.difference(e.mean, mean)
    mean, noise = move_mean(mode, e.mean, e.covariance, step)
    covariance = nearest_semidefinite(spread.T @ (weights[:, None] * spread) + noise)
    matrix = np.linalg.lstsq(perturbations, spread, rcond=None)[0].T
    return middle._replace(estimate=replace(e, mean=mean, covariance=covariance), transition=matrix)


def linearize_residual(
    measurement: AnyMeasurement, mode: ModeModel, estimate: Estimate, value: Array, u: Array
) -> LinearizedResidual | None:
    """Return the residual of a value, linearized by regression on the sigma points.

    What the regression leaves of the values at the points counts as noise.

    Args:
        measurement: The measurement.
        mode: Mode of the estimate.
        estimate: The estimate.
        value: Measured value (m,), NaN where it is missing.
        u: Input (nu,).

    Returns:
        The residual of the components that were measured. None where none was, and where a point of
        a manifold is not complete.

    Raises:
        InputError: If the measurement is an implicit one, or its function returns no numbers.
    """
    measurement = require_explicit(measurement)
    given = select_measured(measurement, value)
    if given is None:
        return None
    t, perturbations = estimate.time, compute_sigma_points(estimate.covariance)
    rows, noise = given
    base = predict_value(measurement, mode, t, estimate.mean, u)
    r = compute_residual(measurement, base, value)[rows]
    changes, weight = np.zeros((len(perturbations), len(r))), 1.0 / max(len(perturbations), 1)
    points = integrate_perturbations(mode, estimate.mean, perturbations)
    for row, x in zip(changes, points, strict=True):
        row[:] = compute_residual(measurement, base, predict_value(measurement, mode, t, x, u))[
            rows
        ]
    shift = weight * changes.sum(axis=0)
    changes = changes - shift
    h = np.linalg.lstsq(perturbations, changes, rcond=None)[0].T
    left = changes - perturbations @ h.T
    found = LinearizedResidual(r - shift, h, noise + weight * left.T @ left)
    return add_open_impacts(estimate, found)


class UnscentedFilter(SaltedKalmanFilter):
    r"""The unscented filter of a hybrid system; arguments are those of `SaltedKalmanFilter`.

    Mean and covariance after prediction and correction are moments of sigma points (see this
    module), on manifolds by `integrate` and `difference`. The noise of flow, resets and guards is
    gathered along the central point, to first order as in the salted filter, and added. With small
    covariances it becomes the salted filter. Hypotheses, reconciliation and recovery are the same.
    """

    moments = MomentRule(predict_points, linearize_residual)


def compute_sigma_points(covariance: Array) -> Array:
    """Return the perturbations (2 r, ndx) of the sigma points of a covariance of rank r.

    Row r + k is the negative of row k.

    Args:
        covariance: The covariance (ndx, ndx); of rank zero there are no points.
    """
    scale = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    free = scale > 0.0
    roots = np.zeros((int(free.sum()), len(covariance)))
    correlation = covariance[np.ix_(free, free)] / np.outer(scale[free], scale[free])
    values, vectors = np.linalg.eigh(correlation)
    roots[:, free] = (vectors * np.sqrt(np.maximum(values, 0.0))).T * scale[free]
    nonzero = values > _RANK_TOLERANCE * len(covariance)
    roots = np.sqrt(nonzero.sum()) * roots[nonzero]
    return np.concatenate([roots, -roots])


def _elect_pattern(paths: list[PropagatedState], of_middle: EventPattern) -> EventPattern:
    """Return the pattern that most points have; that of the central point if it is one of these."""
    votes = Counter(path.pattern for path in paths)
    if not votes:
        return of_middle
    best = max(votes.values())
    if votes[of_middle] == best:
        return of_middle
    return next(pattern for pattern in votes if votes[pattern] == best)
