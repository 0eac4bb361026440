"""The weights of hypotheses: which of them agree, which are dropped, and that they sum to one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridctl.estimation.filter_state import FilterRules, Hypothesis
from hybridctl.estimation.noisy_system import NoisySystem
from hybridctl.estimation.unmodelled_motion import add_logs

_AGREEMENT = 0.5
"""Difference of two means, in standard deviations of each coordinate of the likelier, up to which
hypotheses agree. A choice."""
_EXACT_AGREEMENT = 1e-9
"""Difference up to which they agree in a coordinate without variance, relative to the largest
coordinate plus one: rounding."""


def sort_key(h: Hypothesis) -> float:
    """Return minus the log-weight of a hypothesis: sorting by it puts the likeliest first."""
    return -h.weight


def normalize_weights(hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Return copies of hypotheses with weights that sum to one."""
    total = add_logs([h.weight for h in hypotheses])
    return [h._replace(log_weight=h.log_weight - total) for h in hypotheses]


def merge_and_prune(
    rules: FilterRules,
    found: list[Hypothesis],
    log_likelihood: float | None,
    log_total: float,
) -> tuple[Hypothesis, ...]:
    """Return the hypotheses that differ and are likely enough, with weights that sum to one.

    Args:
        rules: The rules of the filter.
        found: Hypotheses after a value, or after a signal; sorted in place.
        log_likelihood: Log-likelihood of the value by all of them; None after a signal, and for
            parts of a single hypothesis, whose innovation has it.
        log_total: Logarithm of the sum of all weights, with those of hypotheses that were dropped
            before.

    Returns:
        The likeliest first. The first has `log_likelihood`, unless that is None, in its innovation,
        if that was accepted; without an innovation of its own the log-likelihood is not reported.
    """
    model, limits = rules.model, rules.limits
    found.sort(key=sort_key)
    kept = list[Hypothesis]()
    for h in found:
        if h.weight < found[0].weight + limits.log_weight:
            break
        same = next((k for k, other in enumerate(kept) if has_agreement(model, other, h)), None)
        if same is None:
            kept.append(h)
        else:
            one = kept[same]
            both = float(np.logaddexp(one.weight, h.weight)) - one.side
            kept[same] = one._replace(log_weight=both, merged=(*one.merged, h))
    kept = sorted(kept, key=sort_key)[: limits.bound]
    best, i = kept[0], kept[0].innovation
    if log_likelihood is not None and i is not None and i.accepted:
        kept[0] = best._replace(innovation=i._replace(log_likelihood=log_likelihood))
    left = add_logs([h.weight for h in kept])
    dropped = -float(np.expm1(left - log_total))
    return tuple(
        h._replace(
            log_weight=h.log_weight - left,
            merged=tuple(m._replace(log_weight=m.log_weight - left) for m in h.merged),
            dropped=max(dropped, 0.0),
        )
        for h in kept
    )


def has_agreement(model: NoisySystem, a: Hypothesis, b: Hypothesis) -> bool:
    """Return whether two hypotheses have the same mode and pending guards, and near means.

    Args:
        model: The system and its noise.
        a: The likelier hypothesis, by whose standard deviations means are near.
        b: The other one.
    """
    if a.estimate.mode != b.estimate.mode or a.pending != b.pending:
        return False
    x, y = a.estimate.mean, b.estimate.mean
    way = model.system.mode(a.estimate.mode).space.difference(x, y)
    spread = np.sqrt(np.maximum(np.diag(a.estimate.covariance), 0.0))
    allowed = _AGREEMENT * spread + _EXACT_AGREEMENT * (1.0 + np.abs(x).max())
    return bool((np.abs(way) <= allowed).all())
