r"""The moments of several hypotheses together, and how probable each mode is.

A hypothesis is a normal distribution, of which a part belongs to others: what lies beyond a guard
that they have fired, or have still to fire. So it is cut off there, at one guard after the other as
if it were normal in the direction of each: with value g, derivative :math:`g_x`, and variance
:math:`s^2 = g_x P g_x^T + \sigma_g^2`,

.. math:: \delta x = P g_x^T \frac{r}{s}, \quad P' = P - P g_x^T g_x P \frac{r (r + g / s)}{s^2},
          \quad r = \frac{\varphi(g / s)}{\Phi(g / s)},

the moments of a truncated normal distribution. With weights w of the hypotheses, and
:math:`y_h = x_h \boxminus x` their means seen from that of all,

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
    corrected,
    cut_off,
    nearest_semidefinite,
    right_jacobian,
)
from hybridctl.estimation.model import Model
from hybridctl.estimation.reconcile import risen
from hybridctl.estimation.state import GuardSide, Hypothesis
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.system import HybridSystem


def mixed(model: Model, hypotheses: Sequence[Hypothesis], law: InputLaw) -> Mixture:
    """The moments of hypotheses at one time; those of the estimate itself where there is one."""
    if len(hypotheses) == 1:
        return Mixture.of(hypotheses[0].estimate)
    return mixed_sides(model.system, [with_sides(model, h, law) for h in hypotheses])


def mixed_sides(system: HybridSystem, hypotheses: Sequence[Hypothesis]) -> Mixture:
    """Return the moments of several hypotheses at one time, each cut off at its `sides`.

    Args:
        system: The hybrid system.
        hypotheses: The hypotheses, whose weights need not sum to one.

    Returns:
        Mean, covariance and probabilities of the modes, see `combined`.
    """
    parts = [own_part(system, h) for h in hypotheses]
    return combined(system, parts, shares_of(hypotheses))


def shares_of(hypotheses: Sequence[Hypothesis]) -> Array:
    """The weights of hypotheses (n,), which sum to one."""
    logs = np.array([h.weight for h in hypotheses])
    return np.asarray(np.exp(logs - logsumexp(logs)))


def combined(system: HybridSystem, estimates: Sequence[Estimate], weights: Array) -> Mixture:
    """The moments of estimates at one time that have weights (n,), which sum to one.

    Modes whose states have another size than that of the most probable one count in the
    probabilities alone.
    """
    shares = mode_shares([e.mode for e in estimates], weights)
    space, alike = of_most_probable(system, shares)
    rows = [k for k, e in enumerate(estimates) if e.mode in alike]
    parts, shared = [estimates[k] for k in rows], weights[rows] / weights[rows].sum()
    means, covariances = ([getattr(e, name) for e in parts] for name in ("mean", "covariance"))
    mean, p = moments(space, np.array(means), shared, covariances)
    return Mixture(next(iter(shares)), estimates[0].time, mean, p, shares)


def mode_shares(modes: Sequence[ModeKey], weights: Array) -> dict[ModeKey, float]:
    """The probabilities of modes, the most probable first, of what has weights (n,) in them."""
    shares: dict[ModeKey, float] = {}
    for key, w in zip(modes, weights.tolist(), strict=True):
        shares[key] = shares.get(key, 0.0) + w
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def of_most_probable(
    system: HybridSystem, shares: Mapping[ModeKey, float]
) -> tuple[Space, set[ModeKey]]:
    """The space of the most probable mode, which is the first, and the modes of its size."""
    spaces = {key: system.mode(key).space for key in shares}
    space = next(iter(spaces.values()))
    return space, {k for k, s in spaces.items() if (s.nx, s.ndx) == (space.nx, space.ndx)}


def moments(
    space: Space, states: Array, weights: Array, covariances: Sequence[Array] | None = None
) -> tuple[Array, Array]:
    """Mean (nx,) and covariance (ndx, ndx) of states (n, nx) whose weights (n,) sum to one.

    covariances: n of (ndx, ndx), each in the tangent space of its state; none for states that are
    known.
    """
    mean, ways = compute_mean(space, states, weights, states[weights.argmax()])
    total = ways.T @ (weights[:, None] * ways)
    if covariances is not None:
        for w, way, p in zip(weights.tolist(), ways, covariances, strict=True):
            turn = np.linalg.inv(right_jacobian(space, way))
            total += w * (turn @ p @ turn.T)
    return mean, nearest_semidefinite(total)


def with_sides(model: Model, h: Hypothesis, law: InputLaw) -> Hypothesis:
    """Return a copy of a hypothesis with the guards beyond which other hypotheses go on.

    These are its pending and passed guards, and those of its last event that rise from zero.

    Args:
        model: System and noise of the filter.
        h: The hypothesis.
        law: Input law, which is evaluated at the estimate.

    Returns:
        The hypothesis with `sides` at its mean; the hypothesis itself if it has no such guards.
    """
    point = model.at(h.estimate, law)
    names = point.mode.guard_names
    others = dict.fromkeys((*h.pending, *h.passed))
    rows = [names.index(name) for name in others if name in names]
    rows += [k for k in risen(point, h.fired) if k not in rows]
    if not rows:
        return h
    g, slopes = point.guards, point.guard_jacobian.state
    return h._replace(
        sides=tuple(GuardSide(float(g[k]), slopes[k], model.guard_noise.of(names[k])) for k in rows)
    )


def own_part(system: HybridSystem, h: Hypothesis) -> Estimate:
    """Return the moments of a hypothesis cut off where others go on."""
    e = h.estimate
    if not h.sides:
        return e
    step, p = cut_off_sides(h.sides, np.zeros(len(e.covariance)), e.covariance)
    x, p = corrected(system.mode(e.mode), e.mean, nearest_semidefinite(p), step)
    return Estimate(e.mode, e.time, x, p, e.since)


def cut_off_sides(sides: Sequence[GuardSide], way: Array, p: Array) -> tuple[Array, Array]:
    """Return mean and covariance of what is left of N(way, p) where all guards are positive.

    Args:
        sides: The guards, to first order about the mean of an estimate.
        way: Mean (ndx,) in the tangent space at that mean.
        p: Covariance (ndx, ndx) there.
    """
    for side in sides:
        g, s = side.moments(way, p)
        if s > 0.0:
            further, p = cut_off(p, side.gradient, g, s)
            way = way + further
    return way, p
