"""The clock of one topic in a live stream: stamps of messages, and times that count like a log's.

Times equal those of a log to the last bit: each clock is relative to its own first stamp, and these
are relative to the earliest of all (see `stamps`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from hybridctl.base.errors import InputError
from hybridctl.logs.mapping import TimeSource
from hybridctl.logs.raw import RawTable
from hybridctl.logs.stamps import EPOCH_STAMP, find_stamps
from hybridctl.logs.time_fields import find_time_field
from hybridctl.logs.topic_table import find_field
from hybridctl.logs.units import NANOSECONDS


class Stamp(NamedTuple):
    """The stamp of a message.

    Attributes:
        ns: The stamp in ns.
        value: The same in the unit of its field, as it was sent: its digits are those of a log.
    """

    ns: int
    value: int | float


class TopicClock:
    """The stamps of one topic by one of its fields, or by its recorder.

    Life cycle: `find_field` is called with the first message, `read` with each one, and `start`
    with the earliest stamp, before `find_time`.

    Args:
        topic: The topic.
        source: Field and unit of the stamps; without a field, those of the recorder are used.

    Attributes:
        topic: The topic.
        is_known: Whether the field of the stamps is known, which a first message shows.
        is_used: Whether a stamp has been read.
        is_absolute: Whether stamps count from 1970; None before the first that is not zero.
        origin: Stamp in ns at which its times are zero; None before `start`.
    """

    def __init__(self, topic: str, source: TimeSource) -> None:
        self.topic, self._source = topic, source
        self._field, self._unit_ns = "", 1  # those of the recorder, in ns
        self.is_known = not source.field
        self.is_used = False
        self.is_absolute: bool | None = None
        self.origin: int | None = None
        self._first: Stamp | None = None

    def find_field(self, table: RawTable) -> None:
        """Find the field of the stamps, and its unit.

        Args:
            table: Table of the first message.

        Raises:
            UnknownNameError: There is no such field.
            InputError: The field does not hold a number.
        """
        find_stamps(table, self._source, slice(0, 1), 1)  # raises if the field cannot be used
        found = find_time_field(table, self._source)
        assert found is not None
        self._field, self._unit_ns = found[0], NANOSECONDS[found[1]]
        self.is_known = True

    def read(self, message: Any, recorded: int) -> Stamp:
        """Return the stamp of a message.

        Args:
            message: The decoded message.
            recorded: Time in ns at which it was recorded.

        Raises:
            InputError: The message has no stamp, or one of another clock than those before.
        """
        value = find_field(message, self._field) if self._field else recorded
        if type(value) is not int:  # int is the usual type, and is checked quickly
            value = value.item() if isinstance(value, np.generic) else value
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise InputError(f"stamp {self._field!r} must be a finite number, got {value!r}")
        ns = value * self._unit_ns if isinstance(value, int) else round(value * self._unit_ns)
        if value:
            is_absolute = 1e-9 * ns >= EPOCH_STAMP
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
        """Set the origin by the earliest stamp; it is zero if stamps do not count from 1970."""
        self._first = first
        if not self.is_absolute:
            self.origin = 0
        elif isinstance(first.value, int):
            self.origin = first.ns
        else:
            # As for the stamps of a log, only the fraction is rounded.
            whole = int(first.value)
            self.origin = whole * self._unit_ns + round((first.value - whole) * self._unit_ns)

    def find_time(self, stamp: Stamp) -> float:
        """Return the time of a stamp since the origin in s, with the arithmetic of logs."""
        assert self._first is not None
        assert self.origin is not None
        if isinstance(stamp.value, int):
            return (stamp.ns - self.origin) * 1e-9
        since = stamp.value - self._first.value if self.is_absolute else stamp.value
        return since * (self._unit_ns * 1e-9)
