"""Which hypotheses are merged and which are kept, with weights that sum to one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import logsumexp

from hybridctl.estimation.model import Model
from hybridctl.estimation.state import Hypothesis

FORGOTTEN = -14.0  # of its weight, relative to the likeliest
AGREE = 0.5  # deviations
_EXACT = 1e-9  # of a coordinate without deviation, relative


def normalize_weights(hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Return copies of hypotheses with weights that sum to one.

    Args:
        hypotheses: At least one. Relative weights and the order stay.
    """
    total = float(logsumexp([h.weight for h in hypotheses]))
    return [h._replace(log_weight=h.log_weight - total) for h in hypotheses]


def by_weight(h: Hypothesis) -> float:
    """Return minus the log-weight of a hypothesis h: sorting by it puts the likeliest first."""
    return -h.weight


def kept_of(
    model: Model, bound: int, found: list[Hypothesis], log_likelihood: float | None
) -> tuple[Hypothesis, ...]:
    """Return the hypotheses that differ and are likely enough, with weights that sum to one.

    Args:
        model: The system and its noise.
        bound: How many hypotheses are kept at most.
        found: Hypotheses after a value, or after a signal; sorted in place.
        log_likelihood: Of the value, by all of them; None after a signal.
    """
    found.sort(key=by_weight)
    kept = list[Hypothesis]()
    for h in found:
        if h.weight < found[0].weight + FORGOTTEN:
            break
        same = next((k for k, other in enumerate(kept) if _agree(model, other, h)), None)
        if same is None:
            kept.append(h)
        else:
            one = kept[same]
            both = float(np.logaddexp(one.weight, h.weight)) - one.side
            kept[same] = one._replace(log_weight=both, merged=(*one.merged, h))
    kept = sorted(kept, key=by_weight)[:bound]
    best, i = kept[0], kept[0].innovation
    if log_likelihood is not None and i is not None and i.accepted:
        kept[0] = best._replace(innovation=i._replace(log_likelihood=log_likelihood))
    left = float(logsumexp([h.weight for h in kept]))
    dropped = -float(np.expm1(left - logsumexp([h.weight for h in found])))
    return tuple(
        h._replace(
            log_weight=h.log_weight - left,
            merged=tuple(m._replace(log_weight=m.log_weight - left) for m in h.merged),
            dropped=max(dropped, 0.0),
        )
        for h in kept
    )


def _agree(model: Model, a: Hypothesis, b: Hypothesis) -> bool:
    """Whether two hypotheses say the same."""
    if a.estimate.mode != b.estimate.mode or a.pending != b.pending:
        return False
    x, y = a.estimate.mean, b.estimate.mean
    way = model.system.mode(a.estimate.mode).space.difference(x, y)
    spread = np.sqrt(np.maximum(np.diag(a.estimate.covariance), 0.0))
    return bool((np.abs(way) <= AGREE * spread + _EXACT * (1.0 + np.abs(x).max())).all())
