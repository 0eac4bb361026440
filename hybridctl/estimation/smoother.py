r"""The fixed-interval smoother of Rauch, Tung and Striebel, back through the events of a filter.

.. math:: C_k = P_k \Phi_k^T (P_{k+1}^-)^+, \quad
          \hat x_k^s = \hat x_k \boxplus C_k (\hat x_{k+1}^s \boxminus \hat x_{k+1}^-), \quad
          P_k^s = P_k + C_k (P_{k+1}^s - P_{k+1}^-) C_k^T,

with :math:`\Phi_k` the first-order map of the prediction, saltation matrices included. The
pseudo-inverse leaves out what contacts constrain. Where a correction took the estimate through an
event, that is a step of its own, with the first-order map of the event.

Of several hypotheses each is smoothed along its own order of events. Those that the filter merged
once they agreed have different orders before. The likelihood of the values after the merger,
:math:`\psi(x) \propto N(x; \hat x^s, P^s) / N(x; \hat x, P)`, gives the probability of each:

.. math:: w_b^s \propto w_b \int N(x; \hat x_b, P_b)\, \psi(x)\, dx.

Where the filter had several hypotheses, each is truncated at the guards at which the others go on,
and its weight changes as the probability of its side does.

Several ways back that meet in one hypothesis are taken on from there by their common moments. As
the way back is linear, the moments of the states before are the same as if each were taken alone.

On a manifold :math:`P_{k+1}^s` belongs to the tangent space at the smoothed mean. In that at
:math:`\hat x_{k+1}^-` it is :math:`J^{-1} P_{k+1}^s J^{-T}`, with J the derivative of the change
between the two, :math:`\varphi_1(T)` of the way there (see `right_jacobian`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.progress import Progress, Report, report_each, report_share
from hybridctl.base.spaces import Space
from hybridctl.estimation.estimate import (
    Estimate,
    Mixture,
    move_mean,
    nearest_semidefinite,
    right_jacobian,
)
from hybridctl.estimation.filter_state import Hypothesis
from hybridctl.estimation.guard_probabilities import MIN_NOTED_PROBABILITY
from hybridctl.estimation.mixture import (
    combine_estimates,
    compute_moments,
    compute_weights,
    truncate_at_sides,
)
from hybridctl.estimation.result import FilterResult
from hybridctl.hybrid.system import HybridSystem

RESTART_NOTE = "no first-order map: smoothing begins anew"
_MAX_LOG_CHANGE = 50.0
"""Largest logarithm of the factor by which later values may make a side of a guard more probable.

A side with a probability below exp(-50) in the filter is far in the tail of a normal distribution,
where the first-order guard tells nothing."""
_MIN_EIGENVALUE_RATIO = 1e-12
"""Eigenvalue of a correlation matrix, relative to the largest, up to which it counts as zero."""
_ROUNDING_RATIO = 1e-14
"""Predicted variance of a coordinate that is rounding, relative to the one without cancellation.

The latter is (|Phi| sqrt(diag P))^2 of that coordinate. The square of this number is the same
relative to the largest of all coordinates: what rounding of Phi itself leaves."""


@dataclass(frozen=True, eq=False)
class Smoothed:
    """Estimates given all values: at the start, and one for each step of the filter.

    Attributes:
        initial: Estimate at the start.
        estimates: One per step, along the one order of events that was likeliest in the end, given
            that it was right.
        mixtures: One per step: moments of all hypotheses together, each along its own order, with
            probabilities of modes.
        notes: Pairs of a time in s and a text. Estimates before the time do not depend on values
            from there on, or at the time the filter dropped hypotheses with a probability of more
            than 1 %, which are not smoothed.
        probabilities: One per step, given all values: that the state is on the side of its events
            that the entry of `estimates` is on. Where it is not near 1, the state may be far from
            that estimate.
    """

    initial: Estimate
    estimates: tuple[Estimate, ...]
    mixtures: tuple[Mixture, ...]
    notes: tuple[tuple[float, str], ...]
    probabilities: tuple[float, ...]


def smooth(system: HybridSystem, result: FilterResult, *, progress: Progress = None) -> Smoothed:
    """Return the estimates of a filter's result given all its values.

    Of several hypotheses the smoothed estimates are those of the one that was likeliest in the end
    (`FilterResult.history`), given that it was right; `mixtures` are those of all, those that the
    filter has merged included, each along its own order, by their weights given all values.

    Where a prediction or correction has no first-order map (piecewise linear events, contact
    signals that measure a guard, particles), smoothing begins anew from the filtered estimate
    before it, and `notes` says so. Events stay where the filter had them, so a smoothed mean near
    one may lie past its guard. On manifolds covariances are compared in the tangent space at the
    prediction, where they are taken by the exact derivative: the curvature of the manifold adds no
    error to that of the first-order maps.

    Args:
        system: The system of the filter.
        result: What the filter has returned.
        progress: True prints the share of the samples that is smoothed on standard error; a
            function is called with it, from 0 to 1.
    """
    if not result.steps:
        return Smoothed(result.initial, (), (), (), ())
    report = report_share(progress, "smooth")
    (initial, *estimates), notes = _smooth_one_order(system, result.initial, result.history, report)
    # With one hypothesis throughout there is nothing to weigh: the mixture is the estimate.
    if all(len(step.hypotheses) == 1 and not step.hypotheses[0].merged for step in result.steps):
        mixtures = tuple(Mixture.of(e) for e in estimates)
        return Smoothed(initial, tuple(estimates), mixtures, notes, (1.0,) * len(mixtures))
    mixtures, probabilities, others = _smooth_all(system, result, report)
    every = sorted({*notes, *others, *_note_dropped(result)})
    return Smoothed(initial, tuple(estimates), mixtures, tuple(every), probabilities)


Notes = list[tuple[float, str]]


def _note_dropped(result: FilterResult) -> Notes:
    """Return a note for each value after which more than `MIN_NOTED_PROBABILITY` was dropped."""
    found = [(step.time, step.hypotheses[0].dropped) for step in result.steps]
    text = "hypotheses of a probability of {:.2g} were dropped, and are not smoothed"
    return [(time, text.format(p)) for time, p in found if p > MIN_NOTED_PROBABILITY]


class _Node(NamedTuple):
    """A hypothesis of a sample given all values.

    Attributes:
        weight: Its probability given all values.
        estimate: Its moments given all values: those of all later orders of events that lead back
            to it, together.
    """

    weight: float
    estimate: Estimate


def _smooth_all(
    system: HybridSystem, result: FilterResult, report: Report | None
) -> tuple[tuple[Mixture, ...], tuple[float, ...], Notes]:
    """Return the mixtures given all values, probabilities of the likeliest order, and notes.

    At each sample there is one `_Node` for each hypothesis of the filter that has a successor at
    the end. Orders of events that meet in one node are joined, so that the work of a sample does
    not grow with the number of orders.

    Args:
        system: The hybrid system.
        result: What the filter found, with at least one sample.
        report: Called with the share of samples that are done, from 0 to 1; None for no report.

    Returns:
        For each sample in order of time, the mixture and the probability of the hypothesis that is
        on the way to the likeliest last one. Also (time in s, text) of each sample from which the
        smoothed estimates could not be taken back; these notes are in reverse order of time.
    """
    left = result.steps[-1].hypotheses
    nodes = {
        k: _truncate_node(system, h, _Node(w, h.estimate))
        for k, (h, w) in enumerate(zip(left, compute_weights(left).tolist(), strict=True))
    }
    mixtures, notes, likeliest = [result.mixtures[-1]], Notes(), 0
    probabilities = [nodes[0].weight]
    pairs = zip(result.steps[:0:-1], result.steps[-2::-1], strict=True)
    for step, earlier in report_each(pairs, len(result.steps), report):
        ways: dict[int, list[_Node]] = {}
        lost = False
        for k, node in nodes.items():
            for link, way in _split_merged(system, step.hypotheses[k], node):
                before = earlier.hypotheses[link.parent].estimate
                smoothed = _smooth_sample(system, before, link, way.estimate)
                lost |= smoothed is None
                way = way._replace(estimate=before if smoothed is None else smoothed)
                ways.setdefault(link.parent, []).append(way)
        if lost:
            notes.append((step.time, RESTART_NOTE))
        nodes = _normalize_nodes(
            {
                k: _truncate_node(system, earlier.hypotheses[k], _join_nodes(system, found))
                for k, found in ways.items()
            }
        )
        weights = np.array([node.weight for node in nodes.values()])
        estimates = [node.estimate for node in nodes.values()]
        mixtures.append(combine_estimates(system, estimates, weights))
        likeliest = step.hypotheses[likeliest].parent
        probabilities.append(nodes[likeliest].weight)
    return tuple(reversed(mixtures)), tuple(reversed(probabilities)), notes


def _join_nodes(system: HybridSystem, ways: Sequence[_Node]) -> _Node:
    """Return the sum of the weights, and the common moments, of nodes that meet in a hypothesis."""
    if len(ways) == 1:
        return ways[0]
    weights = np.array([way.weight for way in ways])
    total, e = float(weights.sum()), ways[0].estimate
    states = np.array([way.estimate.mean for way in ways])
    covariances = [way.estimate.covariance for way in ways]
    space = system.mode(e.mode).space
    x, p = compute_moments(space, states, weights / total, covariances)
    return _Node(total, replace(e, mean=x, covariance=p))


def _normalize_nodes(nodes: Mapping[int, _Node]) -> dict[int, _Node]:
    """Return nodes with weights that sum to one."""
    total = sum(node.weight for node in nodes.values())
    return {k: node._replace(weight=node.weight / total) for k, node in nodes.items()}


def _truncate_node(system: HybridSystem, h: Hypothesis, node: _Node) -> _Node:
    r"""Return a hypothesis given all values, truncated where others of the same sample go on.

    Its weight changes with the probability of its side of one guard g, which later values change:
    :math:`w \, P(g > 0 \mid \text{all values}) / P(g > 0 \mid \text{values so far})`. That guard is
    the one whose side was the least probable by the values so far.

    Args:
        system: The hybrid system.
        h: The hypothesis of the filter after the value of the sample.
        node: The same, given all values, but not truncated.

    Returns:
        The node with its new weight and moments; the given node if the hypothesis has no `sides`.
    """
    if not h.sides:
        return node
    mode, e = system.mode(h.estimate.mode), h.estimate
    way, p = _move_to_tangent_space(mode.space, e, node.estimate)
    # As in the filter (`find_truncation`), the weight counts the guard that truncates the most.
    before = [side.log_probability(np.zeros(len(way)), e.covariance) for side in h.sides]
    k = int(np.argmin(before))
    change = h.sides[k].log_probability(way, p) - before[k]
    way, p = truncate_at_sides(h.sides, way, p)
    x, p = move_mean(mode, e.mean, nearest_semidefinite(p), way)
    weight = node.weight * float(np.exp(min(change, _MAX_LOG_CHANGE)))
    return _Node(weight, replace(node.estimate, mean=x, covariance=p))


def _split_merged(
    system: HybridSystem, link: Hypothesis, node: _Node
) -> list[tuple[Hypothesis, _Node]]:
    """Return a hypothesis and those merged with it, each given all values.

    Their weights add up to that of the node. Of the weight before later values, the hypothesis has
    what the merged ones leave.

    Args:
        system: The system.
        link: The hypothesis of the filter after a value.
        node: The same, given all values.
    """
    if not link.merged:
        return [(link, node)]
    merged = np.exp([m.weight - link.weight for m in link.merged])
    space = system.mode(link.estimate.mode).space
    later = _LaterValues.of(space, link.estimate, node.estimate)
    found = [(node.estimate, later.log_weight_of_filtered)]
    found += [later.condition(system, link.estimate, m.estimate) for m in link.merged]
    logs = np.array([log for _, log in found])
    weights = np.array([max(1.0 - merged.sum(), 0.0), *merged]) * np.exp(logs - logs.max())
    shares = (weights / weights.sum()).tolist()
    return [
        (h, _Node(w * node.weight, e))
        for h, (e, _), w in zip((link, *link.merged), found, shares, strict=True)
    ]


class _LaterValues(NamedTuple):
    r"""Likelihood of the values after a merger: :math:`\psi \propto \exp(\eta^T u - u^T D u / 2)`.

    Coordinates u are those in which the filtered covariance is the identity:
    :math:`x = \hat x \boxplus L u`. Directions that contacts constrain, without variance, are left
    out.

    Attributes:
        root: L (ndx, r).
        inverse: Its pseudo-inverse (r, ndx).
        precision: D (r, r), positive semidefinite.
        vector: :math:`\eta` (r,).
    """

    root: Array
    inverse: Array
    precision: Array
    vector: Array

    @classmethod
    def of(cls, space: Space, filtered: Estimate, smoothed: Estimate) -> _LaterValues:
        """Return the ratio of a smoothed and a filtered estimate in one mode.

        Directions in which the smoothed variance is not less than the filtered one are left out of
        it.

        Args:
            space: Space of the states of the mode.
            filtered: Estimate given the values so far.
            smoothed: Estimate of the same time given all values.
        """
        p = filtered.covariance
        scale = np.sqrt(np.maximum(np.diag(p), 0.0))
        free = scale > 0.0
        values, vectors = np.linalg.eigh(p[np.ix_(free, free)] / np.outer(scale[free], scale[free]))
        live = values > _MIN_EIGENVALUE_RATIO * values.max(initial=0.0)
        root = np.zeros((len(p), int(live.sum())))
        inverse = root.T.copy()
        root[free] = scale[free, None] * vectors[:, live] * np.sqrt(values[live])
        inverse[:, free] = (vectors[:, live] / np.sqrt(values[live])).T / scale[free]
        way, covariance = _move_to_tangent_space(space, filtered, smoothed)
        m, turn = np.linalg.eigh(inverse @ covariance @ inverse.T)
        # Where the smoothed variance is not less, as that of several ways back together may be,
        # later values count as without information.
        known = (m > 0.0) & (m < 1.0)
        turn, m = turn[:, known], m[known]
        precision = turn * (1.0 / m - 1.0) @ turn.T
        return cls(root, inverse, precision, turn @ ((turn.T @ (inverse @ way)) / m))

    @property
    def log_weight_of_filtered(self) -> float:
        """The logarithm of the integral of psi times the filtered density."""
        n = len(self.vector)
        return self._multiply_by_likelihood(np.zeros(n), np.eye(n))[2]

    def condition(
        self, system: HybridSystem, filtered: Estimate, other: Estimate
    ) -> tuple[Estimate, float]:
        """Return another estimate given the later values, and the log-integral of it times psi.

        Args:
            system: The system.
            filtered: The filtered estimate from which psi was made.
            other: The other estimate, in the same mode at the same time.
        """
        mode = system.mode(filtered.mode)
        way, p = _move_to_tangent_space(mode.space, filtered, other)
        u, b, log = self._multiply_by_likelihood(
            self.inverse @ way, self.inverse @ p @ self.inverse.T
        )
        x, covariance = move_mean(mode, filtered.mean, self.root @ b @ self.root.T, self.root @ u)
        return replace(other, mean=x, covariance=nearest_semidefinite(covariance)), log

    def _multiply_by_likelihood(self, u: Array, b: Array) -> tuple[Array, Array, float]:
        """Return mean (r,), covariance (r, r) and log-integral of N(u, b) times psi."""
        d, factor = self.precision, np.eye(len(u)) + b @ self.precision
        after: Array = np.asarray(np.linalg.solve(factor, b), dtype=np.float64)
        pull = self.vector - d @ u
        log = self.vector @ u - 0.5 * u @ d @ u + 0.5 * pull @ after @ pull
        return u + after @ pull, after, float(log - 0.5 * np.linalg.slogdet(factor)[1])


def _move_to_tangent_space(space: Space, there: Estimate, e: Estimate) -> tuple[Array, Array]:
    """Return mean (ndx,) and covariance (ndx, ndx) of an estimate in the tangent space there."""
    way = space.difference(there.mean, e.mean)
    turn = np.linalg.inv(right_jacobian(space, way))
    return way, turn @ e.covariance @ turn.T


def _smooth_one_order(
    system: HybridSystem, initial: Estimate, links: Sequence[Hypothesis], report: Report | None
) -> tuple[list[Estimate], tuple[tuple[float, str], ...]]:
    """Return the smoothed estimates along one order of events, the initial one first, and notes."""
    later, found, notes = links[-1].estimate, [links[-1].estimate], list[tuple[float, str]]()
    befores = [initial, *(link.estimate for link in links[:-1])]
    pairs = zip(reversed(befores), reversed(links), strict=True)
    for before, link in report_each(pairs, len(links), report):
        smoothed = _smooth_sample(system, before, link, later)
        if smoothed is None:
            notes.append((link.estimate.time, RESTART_NOTE))
        later = before if smoothed is None else smoothed
        found.append(later)
    return found[::-1], tuple(reversed(notes))


def _smooth_sample(
    system: HybridSystem, before: Estimate, link: Hypothesis, later: Estimate
) -> Estimate | None:
    """Return the smoothed estimate of a sample from that of the next one; None without a map.

    Where the correction by the value has passed events, these are a second map after that of the
    prediction, and are taken back first.
    """
    passed, phi, predicted = link.reconciliation, link.transition, link.predicted
    if phi is None or predicted is None:
        return None
    if passed is not None:
        if passed.matrix is None:
            return None
        middle = replace(predicted, mean=passed.mean, covariance=passed.covariance)
        later = _smooth_through_map(system, middle, link.estimate, passed.matrix, later)
    return _smooth_through_map(system, before, predicted, phi, later)


def _smooth_through_map(
    system: HybridSystem, before: Estimate, after: Estimate, phi: Array, later: Estimate
) -> Estimate:
    """Return the smoothed estimate before a map, by the equations of the module.

    Args:
        system: The system.
        before: Filtered estimate before the map.
        after: Filtered estimate that the map led to.
        phi: The first-order map (ndx after, ndx before).
        later: Smoothed estimate at `after`.
    """
    space = system.mode(after.mode).space
    way, covariance = _move_to_tangent_space(space, after, later)
    gain = _smoother_gain(before.covariance, phi, after.covariance)
    change = covariance - after.covariance
    own = before.covariance + gain @ change @ gain.T
    x, p = move_mean(system.mode(before.mode), before.mean, own, gain @ way)
    smoothed = Estimate(before.mode, before.time, x, nearest_semidefinite(p))
    return replace(smoothed, impacts=before.impacts)


def _smoother_gain(p: Array, phi: Array, predicted: Array) -> Array:
    """Return the gain C = P Phi^T predicted^+, (ndx before, ndx after).

    The pseudo-inverse is taken in coordinates scaled to unit variance. Coordinates that contacts
    constrain have no variance but rounding, and a gain of zero.
    """
    variance = np.maximum(np.diag(predicted), 0.0)
    uncancelled = (np.abs(phi) @ np.sqrt(np.maximum(np.diag(p), 0.0))) ** 2
    rounding = np.maximum(
        _ROUNDING_RATIO * uncancelled, _ROUNDING_RATIO**2 * uncancelled.max(initial=0.0)
    )
    free = variance > rounding
    scale = np.sqrt(variance[free])
    values, vectors = np.linalg.eigh(predicted[np.ix_(free, free)] / np.outer(scale, scale))
    live = values > _MIN_EIGENVALUE_RATIO * values.max(initial=0.0)
    root = vectors[:, live] / scale[:, None]
    gain = np.zeros((len(p), len(predicted)))
    gain[:, free] = (p @ phi.T)[:, free] @ root / values[live] @ root.T
    return gain
