r"""Events that accumulate: recognised by their geometric decay, and where they end.

A sequence of guards that repeats with period m at times t_k has windows of length
D_k = t_k - t_{k-m}. If they shrink by a ratio r < 1, the events accumulate at

.. math:: t_\infty = t_n + D_n \frac{r}{1 - r}.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hybridctl.hybrid.tolerances import SLOWEST, STEADY

INSTANT_EVENTS = 10  # that crowd, whatever their guards
_REPEATED = 3
_LONGEST_PERIOD = 4


class Accumulation(NamedTuple):
    """The predicted end of an infinite sequence of events: its time, and the guards in it."""

    time: float
    guards: tuple[str, ...]


def endings(
    events: Sequence[tuple[float, tuple[str, ...]]], horizon: float, at_once: float
) -> Iterator[Accumulation]:
    """Where events (time, guards) end that shrink steadily, repeat at once, or crowd.

    horizon, s: how far away the end may be, and how long the crowd may last. at_once, s: within
    which three events of the same guards are repeated.
    """
    steady = predict(events)
    if steady is not None and steady.time - events[-1][0] <= horizon:
        yield steady
    if len({fired for _, fired in events[-_REPEATED:]}) == 1:
        again = crowded(events, _REPEATED, at_once)
        if again is not None:
            yield again
    many = crowded(events, INSTANT_EVENTS, horizon)
    if many is not None:
        yield many


def predict(events: Sequence[tuple[float, tuple[str, ...]]]) -> Accumulation | None:
    """Where events (time, guards) accumulate, if their last three windows shrink steadily.

    Ratios of successive windows are at most 0.98, and agree to 0.1.
    """
    for period in range(1, _LONGEST_PERIOD + 1):
        if len(events) <= 3 * period:
            return None
        guards = [fired for _, fired in events[-3 * period :]]
        if guards[:period] * 3 != guards:
            continue
        times = [events[-1 - k * period][0] for k in range(4)]
        last, middle, first = (times[k] - times[k + 1] for k in range(3))
        if middle <= 0.0 or first <= 0.0:
            continue
        ratio, before = last / middle, middle / first
        if max(ratio, before) <= SLOWEST and abs(ratio - before) <= STEADY:
            return Accumulation(times[0] + last * ratio / (1.0 - ratio), _union(guards[:period]))
    return None


def crowded(
    events: Sequence[tuple[float, tuple[str, ...]]], count: int, span: float
) -> Accumulation | None:
    """The last `count` events as an accumulation that ends now, if they fit into `span`.

    Several contacts that bounce at once need not repeat any sequence.
    """
    if len(events) < count or events[-1][0] - events[-count][0] > span:
        return None
    return Accumulation(events[-1][0], _union([fired for _, fired in events[-count:]]))


def _union(sets: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for names in sets for name in names))
