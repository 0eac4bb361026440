r"""The hybrid unscented filter: sigma points through the exact event loop.

The 2 r points :math:`x \boxplus \pm \sqrt r\, l_k` have equal weights, with :math:`P = \sum l_k
l_k^T` and r its rank: the unscented transform without a point at the centre, which is the
third-degree rule and has no negative weights.

Each point is simulated to the time of the sample. Near an event they come to different sides of it.
Their vote, one each, decides which guards have fired and so the mode of the mean; ties go to the
point at the centre. Points of the minority are brought to the side of the majority by the extended
flow (see `points`). Those that do not lead there within the time `rewind` stay as they are if they
are in the mode of the mean, and are left out otherwise.
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
from hybridctl.sampling.sigma_points import (
    CarriedState,
    EventPattern,
    carried,
    fired,
    followed,
    integrated,
    silent,
)

_RANK = 1e-15  # of the largest eigenvalue of a covariance, where coordinates have unit variance


def predict_points(
    model: NoisySystem, estimate: Estimate, end: float, law: InputLaw
) -> StatePrediction:
    """The moments of the sigma points at time `end`; their regression is the `transition`."""
    if end <= estimate.time:
        return predict(model, estimate, end, law)
    mode, ways = model.system.mode(estimate.mode), sigma_points(estimate.covariance)
    starts = integrated(mode, estimate.mean, ways)
    middle = _nominal(model, estimate, estimate.mean, end, law)
    quiet = silent(model)
    paths = [carried(quiet, estimate.mode, x, estimate.time, end, law) for x in starts]
    chosen = EventPattern(fired(middle.events), middle.estimate.mode)
    kind = _elected(paths, chosen)
    if kind != chosen:
        winner = next(k for k, path in enumerate(paths) if path.kind == kind)
        middle = _nominal(model, estimate, starts[winner], end, law)
    images, kept = list[Array](), list[int]()
    for k, path in enumerate(paths):
        state = followed(quiet, path, kind, end, law)
        if state is None and path.mode == kind.mode:
            state = path.state
        if state is not None:
            images.append(state)
            kept.append(k)
    if middle.pre_event:
        start = StatePrediction(estimate, transition=np.eye(len(estimate.covariance)))
        middle = middle._replace(pre_event=(start,))
    return _combined(model, middle, np.array(images), ways[kept])


def _nominal(
    model: NoisySystem, estimate: Estimate, x: Array, end: float, law: InputLaw
) -> StatePrediction:
    """One state with the noise that it gathers."""
    certain = replace(estimate, mean=x, covariance=np.zeros_like(estimate.covariance))
    return predict(model, certain, end, law)


def _combined(
    model: NoisySystem, middle: StatePrediction, images: Array, ways: Array
) -> StatePrediction:
    e = middle.estimate
    if not len(images):
        return middle
    mode = model.system.mode(e.mode)
    weights = np.full(len(images), 1.0 / len(images))
    mean, spread = compute_mean(mode.space, images, weights, e.mean)
    way = mode.space.difference(e.mean, mean)
    mean, noise = move_mean(mode, e.mean, e.covariance, way)
    covariance = nearest_semidefinite(spread.T @ (weights[:, None] * spread) + noise)
    matrix = np.linalg.lstsq(ways, spread, rcond=None)[0].T
    return middle._replace(estimate=replace(e, mean=mean, covariance=covariance), transition=matrix)


def compared_points(
    measurement: AnyMeasurement, mode: ModeModel, estimate: Estimate, value: Array, u: Array
) -> LinearizedResidual | None:
    """The residual of a value (m,) by regression on the sigma points; None where it is missing.

    What the regression leaves of the values at the points counts as noise.
    """
    measurement = require_explicit(measurement)
    given = select_measured(measurement, value)
    if given is None:
        return None
    t, ways = estimate.time, sigma_points(estimate.covariance)
    rows, noise = given
    base = predict_value(measurement, mode, t, estimate.mean, u)
    r = compute_residual(measurement, base, value)[rows]
    seen, weight = np.zeros((len(ways), len(r))), 1.0 / max(len(ways), 1)
    for row, x in zip(seen, integrated(mode, estimate.mean, ways), strict=True):
        row[:] = compute_residual(measurement, base, predict_value(measurement, mode, t, x, u))[
            rows
        ]
    shift = weight * seen.sum(axis=0)
    seen = seen - shift
    h = np.linalg.lstsq(ways, seen, rcond=None)[0].T
    left = seen - ways @ h.T
    return LinearizedResidual(r - shift, h, noise + weight * left.T @ left)


class UnscentedFilter(SaltedKalmanFilter):
    r"""The unscented filter of a hybrid system; arguments are those of `SaltedKalmanFilter`.

    Mean and covariance after prediction and correction are moments of sigma points (see this
    module), on manifolds by `integrate` and `difference`. The noise of flow, resets and guards is
    gathered along the point at the centre, to first order as in the salted filter, and added.
    With small covariances it becomes the salted filter. Hypotheses, reconciliation and recovery
    are the same.
    """

    moments = MomentRule(predict_points, compared_points)


def sigma_points(p: Array) -> Array:
    """The ways (2 r, ndx) to the sigma points of a covariance of rank r; none for zero."""
    scale = np.sqrt(np.maximum(np.diag(p), 0.0))
    free = scale > 0.0
    ways = np.zeros((int(free.sum()), len(p)))
    values, vectors = np.linalg.eigh(p[np.ix_(free, free)] / np.outer(scale[free], scale[free]))
    ways[:, free] = (vectors * np.sqrt(np.maximum(values, 0.0))).T * scale[free]
    ways = np.sqrt((live := values > _RANK * len(p)).sum()) * ways[live]
    return np.concatenate([ways, -ways])


def _elected(paths: list[CarriedState], middle: EventPattern) -> EventPattern:
    votes = Counter(path.kind for path in paths)
    if not votes:
        return middle
    best = max(votes.values())
    return middle if votes[middle] == best else next(k for k in votes if votes[k] == best)
