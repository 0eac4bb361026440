"""The order of live messages of several topics by their stamps.

A message waits until every topic has sent one that is at least as late: then no earlier one can
come, as long as each topic is in order. Where a topic is late or silent, the message waits until
the newest stamp is later by a bounded time. A message that is no later than one that has been
released is refused. So is one whose stamp leaps ahead of all others, until a second one confirms
it: released on its word alone, everything that follows would come too late.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import numpy as np

from hybridctl.base.errors import InputError
from hybridctl.logs.live_clock import Stamp, TopicClock

_LEAP = 10_000_000_000
"""Time in ns by which a stamp may be later than all before it.

A choice: longer than pauses of a recording, and than the 5 s after which a silent topic ends the
stream. A stamp of another clock or with a damaged digit is later by more.
"""


class StampedItem(NamedTuple):
    """The values of a message with their stamp.

    Attributes:
        stamp: Stamp of the message.
        source: Index of its clock.
        content: Values of the message.
    """

    stamp: Stamp
    source: int
    content: list[Any]


class StampOrder:
    """Puts items of several clocks in the order of their stamps.

    Life cycle: `add` is called with each item, then `release`, which returns with their times the
    items before which no other can come.

    Args:
        clocks: Clocks of the sources.
        needed: Number of sources, the first ones, for whose items others wait.
        wait: Longest time in ns for which an item waits, by stamps.

    Attributes:
        origin: Stamp in ns of time zero, the earliest of all; 0 before the first release.
    """

    def __init__(self, clocks: Sequence[TopicClock], needed: int, wait: int) -> None:
        self._clocks, self._wait = clocks, wait
        self._newest: list[int | None] = [None] * needed
        self._silent_count = needed  # number of needed sources without an item so far
        self._is_checked = [False] * len(clocks)  # whether a clock is of the kind of the others
        self._last: int | None = None  # newest stamp of all in ns; None before the first
        self._first: int | None = None  # stamp of the item that came first, in ns
        self._leapt: int | None = None  # stamp in ns that was refused as a leap; None without
        self._released: int | None = None  # stamp in ns up to which items have been released
        self._heap = list[tuple[int, int, int, StampedItem]]()  # by stamp, source, and arrival
        self._waiting = dict[tuple[int, int], list[Any]]()  # contents by stamp and source
        self._count = 0
        self.origin = 0

    @property
    def has_begun(self) -> bool:
        """Whether an item has been released."""
        return self._released is not None

    @property
    def elapsed(self) -> float:
        """Time in s from the first stamp that came to the newest."""
        if self._first is None or self._last is None:
            return 0.0
        return 1e-9 * (self._last - self._first)

    def add(self, source: int, item: StampedItem) -> None:
        """Add an item that waits for its release.

        An item without values, or with the values of one of the same source and stamp that waits,
        is dropped: it was sent twice.

        Args:
            source: Index of its clock.
            item: The item.

        Raises:
            InputError: The item is no later than one that has been released, its stamp leaps ahead
                of all others and is the first to do so, one of the same source and stamp waits
                with other values, or clocks are of two kinds. The item is not added.
        """
        ns = item.stamp.ns
        if not self._is_checked[source] and self._clocks[source].is_absolute is not None:
            self._check_kinds(source)
            self._is_checked[source] = True
        if self._released is not None and ns <= self._released:
            newest = self._newest[source] if source < len(self._newest) else None
            remedy = f"messages wait {1e-6 * self._wait:g} ms for other topics: raise --wait"
            if newest is not None and ns <= newest:
                remedy = "its topic has sent a later one: send each topic in order"
            late = 1e-6 * (self._released - ns)
            raise InputError(
                f"a message stamped {format_seconds(ns)} s is out of order, {late:.3f} ms before "
                f"the last sample that is filtered; {remedy}"
            )
        self._check_leap(ns)
        known = self._waiting.get((ns, source))
        if known:
            if not item.content or _has_same_values(known, item.content):
                return  # it was sent twice
            raise InputError(f"two messages are stamped {format_seconds(ns)} s")
        self._waiting[ns, source] = item.content
        if self._first in (None, 0):  # zero is not set
            self._first = ns
        self._count += 1
        heappush(self._heap, (ns, source, self._count, item))
        self._last = ns if self._last is None else max(self._last, ns)
        if source < len(self._newest):
            newest = self._newest[source]
            if newest is None:
                self._silent_count -= 1
            self._newest[source] = ns if newest is None else max(newest, ns)

    def _check_leap(self, ns: int) -> None:
        """Check that a stamp in ns is not the first one that leaps ahead of all before it.

        After a pause of the whole stream the first message is refused, and the second confirms
        its stamp.

        Raises:
            InputError: It is.
        """
        if not self._last or ns <= self._last + _LEAP:  # zero is not set: no stamp to leap from
            self._leapt = None
            return
        confirmed = self._leapt is not None and abs(ns - self._leapt) <= _LEAP
        self._leapt = ns
        if not confirmed:
            raise InputError(
                f"a message stamped {format_seconds(ns)} s is {1e-9 * (ns - self._last):.3g} s "
                "later than all before it; a second one of that time confirms it"
            )

    def _check_kinds(self, source: int) -> None:
        """Remove items whose stamp is not set, and check that clocks are of one kind.

        Args:
            source: Index of a clock whose kind is known now.

        Raises:
            InputError: One clock counts from 1970 and another does not.
        """
        own = self._clocks[source]
        if own.is_absolute and self._heap and self._heap[0][0] == 0:
            # Zeros that came before the first stamp since 1970 were not set either, those of
            # other clocks that have sent nothing else included.
            unset = {s for s, clock in enumerate(self._clocks) if clock.is_absolute is not False}
            self._heap = [entry for entry in self._heap if entry[0] or entry[1] not in unset]
            heapify(self._heap)
            for one in unset:
                self._waiting.pop((0, one), None)
        for other in self._clocks[: len(self._newest)]:
            if None not in (other.is_absolute, own.is_absolute) and (
                other.is_absolute != own.is_absolute
            ):
                raise InputError(
                    f"its stamps and those of {other.topic!r} are of two clocks, one of them since "
                    "1970; stamp both by one clock, with `time` in the mapping"
                )

    def release(self, *, everything: bool = False) -> list[tuple[float, StampedItem]]:
        """Remove the items before which no other can come, and return them with their times in s.

        Args:
            everything: Whether all items are released, because no other comes.

        Returns:
            Times in s and items, in order.
        """
        if self._last is None:
            return []  # there was no item
        until = self._last if everything else self._last - self._wait
        if not self._silent_count:
            until = max(until, min(ns for ns in self._newest if ns is not None))
        found = list[tuple[float, StampedItem]]()
        while self._heap and self._heap[0][0] <= until:
            ns, source, _, item = heappop(self._heap)
            self._waiting.pop((ns, source), None)
            clock = self._clocks[source]
            if clock.origin is None:
                clock.start(item.stamp)
                if not self.has_begun:
                    self.origin = clock.origin or 0
            self._released = ns
            later = 1e-9 * ((clock.origin or 0) - self.origin)
            found.append((clock.find_time(item.stamp) + later, item))
        # By rounding, times of equal stamps of two clocks may differ in the last bit, as in logs.
        found.sort(key=lambda pair: pair[0])
        return found


def format_seconds(ns: int) -> str:
    """Return a stamp in ns as seconds with all digits."""
    return str(Decimal(ns).scaleb(-9))


def _has_same_values(one: list[Any], other: list[Any]) -> bool:
    """Return whether two messages have the same values."""
    return len(one) == len(other) and all(
        a[:2] == b[:2] and np.array_equal(a[2], b[2]) for a, b in zip(one, other, strict=True)
    )
