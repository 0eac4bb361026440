"""Messages of several topics in the order of their stamps, as they come.

A message waits until every topic has sent one that is at least as late, so that none can come that
is earlier as long as each topic is in order. Where a topic is late or silent, it waits until stamps
have gone on by a bounded time. A message that is no later than one that has gone is refused.

Times have the numbers of a log to the last bit: each clock is relative to its own first stamp, and
these are relative to the earliest of all (see `stamps`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import numpy as np

from hybridctl.base.errors import InputError
from hybridctl.logs.bags import find_field
from hybridctl.logs.mapping import TimeSource
from hybridctl.logs.raw import RawTable
from hybridctl.logs.stamps import ABSOLUTE, find_stamps, find_time_field
from hybridctl.logs.units import NANOSECONDS


class Stamp(NamedTuple):
    """A stamp as a message has it.

    Attributes:
        ns: The stamp in ns.
        value: The same in the unit of its field, as it was sent.
    """

    ns: int
    value: int | float


class SourceClock:
    """The stamps of one topic by one of its fields, or by its recorder.

    Life cycle: `find_field` is called with the first message, `read` with each one, and `start`
    with the earliest stamp, before `find_time`.

    Attributes:
        is_known: Whether the field is known.
        is_used: Whether a stamp has been read.
        is_absolute: Whether stamps count from 1970; None before the first that is not zero.
        origin: Stamp in ns of its time zero; None before `start`.
    """

    def __init__(self, topic: str, source: TimeSource) -> None:
        self.topic, self._source = topic, source
        self._field, self._ns = "", 1  # of the recorder; length of the unit in ns
        self.is_known = not source.field
        self.is_used = False
        self.is_absolute: bool | None = None
        self.origin: int | None = None
        self._first: Stamp | None = None

    def find_field(self, table: RawTable) -> None:
        """Find the field of the stamps in the table of the first message.

        Raises:
            UnknownNameError: It is not there.
            InputError: It is no number.
        """
        find_stamps(table, self._source, slice(0, 1), 1)  # says what is wrong with it
        found = find_time_field(table, self._source)
        assert found is not None
        self._field, self._ns = found[0], NANOSECONDS[found[1]]
        self.is_known = True

    def read(self, message: Any, recorded: int) -> Stamp:
        """Return the stamp of a message.

        Args:
            message: The decoded message.
            recorded: Time in ns at which it was recorded.

        Raises:
            InputError: It has no stamp, or one of another clock than those before.
        """
        value = find_field(message, self._field) if self._field else recorded
        if type(value) is not int:  # the usual one
            value = value.item() if isinstance(value, np.generic) else value
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise InputError(f"stamp {self._field!r} must be a finite number, got {value!r}")
        ns = value * self._ns if isinstance(value, int) else round(value * self._ns)
        if value:
            is_absolute = 1e-9 * ns >= ABSOLUTE
            if self.is_absolute not in (None, is_absolute):
                raise InputError(
                    f"a stamp of {1e-9 * ns:.6g} s is of another clock than those before; take "
                    "another `time` in the mapping"
                )
            self.is_absolute = is_absolute
        elif self.is_absolute:
            raise InputError("a stamp is zero, which says that it is not set")
        self.is_used = True
        return Stamp(ns, value)

    def start(self, first: Stamp) -> None:
        """Take the earliest stamp, to which all are relative if it counts from 1970."""
        self._first = first
        if not self.is_absolute:
            self.origin = 0
        elif isinstance(first.value, int):
            self.origin = first.ns
        else:
            whole = int(first.value)
            self.origin = whole * self._ns + round((first.value - whole) * self._ns)

    def find_time(self, stamp: Stamp) -> float:
        """Return the time of a stamp since the origin in s, with the arithmetic of logs."""
        assert self._first is not None
        assert self.origin is not None
        if isinstance(stamp.value, int):
            return (stamp.ns - self.origin) * 1e-9
        since = stamp.value - self._first.value if self.is_absolute else stamp.value
        return since * (self._ns * 1e-9)


class StampedItem(NamedTuple):
    """What a message says.

    Attributes:
        stamp: Its stamp.
        source: The place of its clock among all.
        content: Its values.
    """

    stamp: Stamp
    source: int
    content: list[Any]


class StampOrder:
    """Puts items of several clocks in order.

    Life cycle: `add` is called with each item, then `release`, which returns those that are in
    order now with their times.

    Attributes:
        origin: Stamp in ns of time zero, the earliest of all; 0 before the first release.
        has_begun: Whether an item has been released.
    """

    def __init__(self, clocks: Sequence[SourceClock], needed: int, wait: int) -> None:
        """Begin without items.

        Args:
            clocks: Clocks of the sources.
            needed: Number of sources, the first ones, that others wait for.
            wait: Time in ns of stamps for which an item waits at most.
        """
        self._clocks, self._wait = clocks, wait
        self._newest: list[int | None] = [None] * needed
        self._missing = needed  # number of those that have sent nothing
        self._is_checked = [False] * len(clocks)  # whether clocks fit the others
        self._last: int | None = None  # newest of all, ns; None before the first
        self._first: int | None = None  # of all, in the order in which they came
        self._released: int | None = None  # up to which items have been released, ns
        self._heap = list[tuple[int, int, int, StampedItem]]()
        self._waiting = dict[tuple[int, int], list[Any]]()  # contents of the heap
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
        """Take an item.

        Args:
            source: The place of its clock among all.
            item: The item.

        Raises:
            InputError: It is no later than one that has been released, there is another one of the
                same source and stamp, or clocks are of two kinds.
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
        known = self._waiting.get((ns, source))
        if known:
            if not item.content or _says_the_same(known, item.content):
                return
            raise InputError(f"two messages are stamped {format_seconds(ns)} s")
        self._waiting[ns, source] = item.content
        if self._first in (None, 0):
            self._first = ns
        self._count += 1
        heappush(self._heap, (ns, source, self._count, item))
        self._last = ns if self._last is None else max(self._last, ns)
        if source < len(self._newest):
            newest = self._newest[source]
            if newest is None:
                self._missing -= 1
            self._newest[source] = ns if newest is None else max(newest, ns)

    def _check_kinds(self, source: int) -> None:
        """Drop stamps that are not set, and raise `InputError` for clocks of two kinds."""
        own = self._clocks[source]
        if own.is_absolute and self._heap and self._heap[0][0] == 0:
            # Zeros that came before the first stamp since 1970 were not set either, those of
            # other clocks that have sent nothing else included.
            unset = [s for s, clock in enumerate(self._clocks) if clock.is_absolute is not False]
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
        """Return the items that are in order now, with their times in s, and forget them.

        Args:
            everything: Whether nothing comes any more.
        """
        if self._last is None:
            return []
        until = self._last if everything else self._last - self._wait
        if not self._missing:
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


def _says_the_same(one: list[Any], other: list[Any]) -> bool:
    """Return whether two messages have the same values."""
    return len(one) == len(other) and all(
        a[:2] == b[:2] and np.array_equal(a[2], b[2]) for a, b in zip(one, other, strict=True)
    )
