r"""The moments of several hypotheses together, and the probabilities of modes.

A hypothesis is a normal distribution of which a part belongs to others: what lies beyond a guard
that has fired in them, or is still to fire. So it is truncated there, at one guard after the other,
as if it were normal in the direction of each (`truncate_at_guard`). With weights w of the
hypotheses, and :math:`y_h = x_h \boxminus x` their means in the tangent space at the mean of all,

.. math:: \sum_h w_h y_h = 0, \qquad P = \sum_h w_h (J_h^{-1} P_h J_h^{-T} + y_h y_h^T),

found by iteration from the likeliest mean; J changes the tangent space, see `right_jacobian`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.special import logsumexp

from hybridctl.base.checks import Array
from hybridctl.base.spaces import Space, compute_mean
from hybridctl.estimation.estimate import (
    Estimate,
    Mixture,
    move_mean,
    nearest_semidefinite,
    right_jacobian,
    truncate_at_guard,
)
from hybridctl.estimation.filter_state import GuardSide, Hypothesis
from hybridctl.estimation.mode_consistency import find_rising_guards
from hybridctl.estimation.noisy_system import NoisySystem
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.system import HybridSystem


def mix_hypotheses(system: HybridSystem, hypotheses: Sequence[Hypothesis]) -> Mixture:
    """Return the moments of hypotheses at one time, each truncated at its `sides`.

    Args:
        system: The hybrid system.
        hypotheses: The hypotheses, whose weights need not sum to one.

    Returns:
        Mean, covariance and probabilities of the modes, see `combine_estimates`.
    """
    parts = [truncate_hypothesis(system, h) for h in hypotheses]
    return combine_estimates(system, parts, compute_weights(hypotheses))


def compute_weights(hypotheses: Sequence[Hypothesis]) -> Array:
    """Return the weights (n,) of hypotheses, which sum to one.

    Args:
        hypotheses: At least one hypothesis.
    """
    logs = np.array([h.weight for h in hypotheses])
    return np.asarray(np.exp(logs - logsumexp(logs)))


def combine_estimates(
    system: HybridSystem, estimates: Sequence[Estimate], weights: Array
) -> Mixture:
    """Return the moments of weighted estimates at one time.

    Modes whose states have another size than that of the most probable mode count in the
    probabilities only.

    Args:
        system: The hybrid system.
        estimates: The n estimates.
        weights: Their weights (n,), which sum to one.
    """
    shares = mode_probabilities([e.mode for e in estimates], weights)
    space, same_size = select_most_probable(system, shares)
    rows = [k for k, e in enumerate(estimates) if e.mode in same_size]
    parts, shared = [estimates[k] for k in rows], weights[rows] / weights[rows].sum()
    means, covariances = np.array([e.mean for e in parts]), [e.full_covariance for e in parts]
    mean, p = compute_moments(space, means, shared, covariances)
    return Mixture(next(iter(shares)), estimates[0].time, mean, p, shares)


def mode_probabilities(modes: Sequence[ModeKey], weights: Array) -> dict[ModeKey, float]:
    """Return the probabilities of modes, the most probable first.

    Args:
        modes: The mode of each of n hypotheses or particles.
        weights: Their weights (n,).
    """
    shares: dict[ModeKey, float] = {}
    for key, w in zip(modes, weights.tolist(), strict=True):
        shares[key] = shares.get(key, 0.0) + w
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def select_most_probable(
    system: HybridSystem, shares: Mapping[ModeKey, float]
) -> tuple[Space, set[ModeKey]]:
    """Return the space of the most probable mode, and the modes whose states have its size.

    Args:
        system: The hybrid system.
        shares: Probabilities of the modes, the most probable first.
    """
    spaces = {key: system.mode(key).space for key in shares}
    space = next(iter(spaces.values()))
    return space, {k for k, s in spaces.items() if (s.nx, s.ndx) == (space.nx, space.ndx)}


def compute_moments(
    space: Space, states: Array, weights: Array, covariances: Sequence[Array] | None = None
) -> tuple[Array, Array]:
    """Return mean (nx,) and covariance (ndx, ndx) of weighted states or distributions.

    Args:
        space: Space of the states.
        states: States, or means, (n, nx).
        weights: Their weights (n,), which sum to one.
        covariances: Covariance (ndx, ndx) of each, in the tangent space at its mean. None for
            states without uncertainty.
    """
    mean, ways = compute_mean(space, states, weights, states[weights.argmax()])
    total = ways.T @ (weights[:, None] * ways)
    if covariances is not None:
        for w, way, p in zip(weights.tolist(), ways, covariances, strict=True):
            turn = np.linalg.inv(right_jacobian(space, way))
            total += w * (turn @ p @ turn.T)
    return mean, nearest_semidefinite(total)


def add_sides(model: NoisySystem, h: Hypothesis, law: InputLaw) -> Hypothesis:
    """Return a copy of a hypothesis with the guards beyond which other hypotheses go on.

    These are its pending and passed guards, and those of its last event that rise from zero.

    Args:
        model: System and noise of the filter.
        h: The hypothesis.
        law: Input law, which is evaluated at the estimate.

    Returns:
        The hypothesis with `sides` at its mean; the hypothesis itself if it has no such guards.
    """
    point = model.evaluate_at(h.estimate, law)
    names = point.mode.guard_names
    others = dict.fromkeys((*h.pending, *h.passed))
    rows = [names.index(name) for name in others if name in names]
    rows += [k for k in find_rising_guards(point, h.fired) if k not in rows]
    if not rows:
        return h
    g, slopes, noise = point.guards, point.guard_jacobian.state, model.guard_noise
    sides = [GuardSide(float(g[k]), slopes[k], noise.variance_of(names[k])) for k in rows]
    return h._replace(sides=tuple(sides))


def truncate_hypothesis(system: HybridSystem, h: Hypothesis) -> Estimate:
    """Return the moments of a hypothesis truncated where others go on.

    Args:
        system: The hybrid system.
        h: The hypothesis, with its `sides`.
    """
    e = h.estimate
    if not h.sides:
        return e
    step, p = truncate_at_sides(h.sides, np.zeros(len(e.covariance)), e.covariance)
    x, p = move_mean(system.mode(e.mode), e.mean, nearest_semidefinite(p), step)
    return Estimate(e.mode, e.time, x, p, e.since, e.impacts)


def truncate_at_sides(sides: Sequence[GuardSide], way: Array, p: Array) -> tuple[Array, Array]:
    """Return mean and covariance of the part of N(way, p) where all guards are positive.

    Args:
        sides: The guards, to first order about the mean of an estimate.
        way: Mean (ndx,) in the tangent space at that mean.
        p: Covariance (ndx, ndx) there.
    """
    for side in sides:
        g, s = side.moments(way, p)
        if s > 0.0:
            further, p = truncate_at_guard(p, side.gradient, g, s)
            way = way + further
    return way, p
