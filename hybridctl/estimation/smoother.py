r"""The fixed-interval smoother of Rauch, Tung and Striebel, back through the events of a filter.

.. math:: C_k = P_k \Phi_k^T (P_{k+1}^-)^+, \quad
          \hat x_k^s = \hat x_k \boxplus C_k (\hat x_{k+1}^s \boxminus \hat x_{k+1}^-), \quad
          P_k^s = P_k + C_k (P_{k+1}^s - P_{k+1}^-) C_k^T,

with :math:`\Phi_k` the first-order map of the prediction, saltation matrices included. The
pseudo-inverse leaves out what contacts hold. Where a correction took the estimate through an event,
that is a step of its own, with the first-order map of the event. The way back is along the
hypothesis that was right in the end.

On a manifold :math:`P_{k+1}^s` belongs to the tangent space at the smoothed mean. In that at
:math:`\hat x_{k+1}^-` it is :math:`J^{-1} P_{k+1}^s J^{-T}`, with J the derivative of the change
between the two, :math:`\varphi_1(T)` of the way there (see `right_jacobian`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hybridctl.checks import Array
from hybridctl.estimation.estimate import (
    Estimate,
    Mixture,
    corrected,
    nearest_semidefinite,
    right_jacobian,
)
from hybridctl.estimation.mixture import combined, shares_of
from hybridctl.estimation.result import FilterResult
from hybridctl.estimation.state import Hypothesis
from hybridctl.hybrid.system import HybridSystem

_RANK = 1e-12
# Of the variance that is carried to a coordinate, when almost all cancels; squared, of the largest
# that is carried to any, which is what rounding of the map itself leaves.
_ROUNDING = 1e-14


@dataclass(frozen=True, eq=False)
class Smoothed:
    """Estimates given all values: at the start, and one for each step of the filter.

    mixtures: the same of all hypotheses that are left in the end, with probabilities of modes.
    notes: times before which estimates do not know of later values, and why.
    """

    initial: Estimate
    estimates: tuple[Estimate, ...]
    mixtures: tuple[Mixture, ...]
    notes: tuple[tuple[float, str], ...]


def smooth(system: HybridSystem, result: FilterResult) -> Smoothed:
    """Smooth the result of a filter on `system`.

    Of several hypotheses the smoothed estimates are those of the one that was right in the end
    (`FilterResult.history`), given that it was; `mixtures` are those of all that are left in the
    end, each along its own way, by their weights.

    Where a prediction or correction has no first-order map (piecewise linear events, contact
    signals that measure a guard, particles), the past does not learn of what comes after it, and
    `notes` says so. Events stay where the filter had them, so a smoothed mean near one may lie past
    its guard. On manifolds covariances are compared in the tangent space at the prediction, where
    they are taken by the exact derivative: the curvature of the manifold adds no error to that of
    the first-order maps.
    """
    if not result.steps:
        return Smoothed(result.initial, (), (), ())
    left = result.steps[-1].hypotheses
    chains = [_along(system, result.initial, result.history_of(k)) for k in range(len(left))]
    (initial, *estimates), notes = chains[0]
    mixtures = tuple(Mixture.of(e) for e in estimates)
    if len(left) > 1:
        rows = zip(*(found[1:] for found, _ in chains), strict=True)
        mixtures = tuple(combined(system, row, shares_of(left)) for row in rows)
    return Smoothed(initial, tuple(estimates), mixtures, notes)


def _along(
    system: HybridSystem, initial: Estimate, links: Sequence[Hypothesis]
) -> tuple[list[Estimate], tuple[tuple[float, str], ...]]:
    """The smoothed estimates of one way, from the initial one on, and notes."""
    later, found, notes = links[-1].estimate, [links[-1].estimate], list[tuple[float, str]]()
    befores = [initial, *(link.estimate for link in links[:-1])]
    for before, link in zip(reversed(befores), reversed(links), strict=True):
        smoothed = _back(system, before, link, later)
        if smoothed is None:
            notes.append((link.estimate.time, "no first-order map: smoothing begins anew"))
        later = before if smoothed is None else smoothed
        found.append(later)
    return found[::-1], tuple(reversed(notes))


def _back(
    system: HybridSystem, before: Estimate, link: Hypothesis, later: Estimate
) -> Estimate | None:
    """The smoothed estimate of a sample from that of the one after it; None without a map."""
    passed, phi, predicted = link.reconciliation, link.transition, link.predicted
    if phi is None or predicted is None:
        return None
    if passed is not None:
        if passed.matrix is None:
            return None
        middle = replace(predicted, mean=passed.mean, covariance=passed.covariance)
        later = _through(system, middle, link.estimate, passed.matrix, later)
    return _through(system, before, predicted, phi, later)


def _through(
    system: HybridSystem, before: Estimate, after: Estimate, phi: Array, later: Estimate
) -> Estimate:
    """The smoothed estimate before a map phi that led to `after`, which smoothed is `later`."""
    space = system.mode(after.mode).space
    way = space.difference(after.mean, later.mean)
    turn = np.linalg.inv(right_jacobian(space, way))
    gain = _gain(before.covariance, phi, after.covariance)
    change = turn @ later.covariance @ turn.T - after.covariance
    own = before.covariance + gain @ change @ gain.T
    x, p = corrected(system.mode(before.mode), before.mean, own, gain @ way)
    return Estimate(before.mode, before.time, x, nearest_semidefinite(p))


def _gain(p: Array, phi: Array, predicted: Array) -> Array:
    """The gain P Phi^T predicted^+, in coordinates of unit variance, without those held."""
    variance = np.maximum(np.diag(predicted), 0.0)
    carried = (np.abs(phi) @ np.sqrt(np.maximum(np.diag(p), 0.0))) ** 2
    free = variance > np.maximum(_ROUNDING * carried, _ROUNDING**2 * carried.max(initial=0.0))
    scale = np.sqrt(variance[free])
    values, vectors = np.linalg.eigh(predicted[np.ix_(free, free)] / np.outer(scale, scale))
    live = values > _RANK * values.max(initial=0.0)
    root = vectors[:, live] / scale[:, None]
    gain = np.zeros((len(p), len(predicted)))
    gain[:, free] = (p @ phi.T)[:, free] @ root / values[live] @ root.T
    return gain
