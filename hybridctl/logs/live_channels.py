"""Channels that a filter takes from one topic of a live stream, read from messages one by one.

The first message of a topic goes through the same tables, column layouts and units as those of a
bag, so that a mapping means the same for both, and errors are the same. Later messages are read
field by field, with the same arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.logs.column_layout import ColumnLayout, find_column_layout, join_fields
from hybridctl.logs.column_names import find_columns
from hybridctl.logs.live_clock import TopicClock
from hybridctl.logs.live_stream import TopicMessage
from hybridctl.logs.mapping import ChannelSource
from hybridctl.logs.raw import RawTable
from hybridctl.logs.topic_table import CollectedTopic, find_field

GYROSCOPE, ACCELEROMETER, JOINTS, LOAD = "gyroscope", "accelerometer", "joints", "load"
UNITS_OF_SIGNALS = {GYROSCOPE: "rad/s", ACCELEROMETER: "m/s^2", JOINTS: "rad", LOAD: "N"}
"""Unit of each signal that the filter of a legged base takes."""
_VECTORS = (GYROSCOPE, ACCELEROMETER)
_SHOWN_NAMES = 8
"""Names that an error lists."""


class SignalValue(NamedTuple):
    """The value of one channel in a message, in SI units.

    Attributes:
        signal: Signal, a key of `UNITS_OF_SIGNALS`.
        foot: Frame of the foot of a force; empty for other signals.
        values: Numbers (m,); the vertical force in N as a float.
    """

    signal: str
    foot: str
    values: Array | float


@dataclass(eq=False)
class LiveChannel:
    """A channel that the filter takes, read from messages of its topic.

    Attributes:
        name: Name in the mapping.
        source: Fields of the channel.
        signal: Signal, a key of `UNITS_OF_SIGNALS`.
        foot: Frame of the foot of a force; empty for other signals.
        joints: Names of the joints whose angles are wanted, in order.
        layouts: Layouts of the columns that have come so far, by the labels of a message; None for
            a message that has none of the joints.
    """

    name: str
    source: ChannelSource
    signal: str
    foot: str
    joints: tuple[str, ...]
    layouts: dict[tuple[str, ...], ColumnLayout | None] = field(default_factory=dict)

    def read(
        self, labels: tuple[str, ...], row: Array, table: Callable[[], RawTable]
    ) -> SignalValue | None:
        """Return the value of the channel in a message.

        Args:
            labels: Labels of the columns that the message has; empty without any.
            row: All columns of its fields (n,).
            table: Function that makes the table of the message, called for labels that are new.

        Returns:
            The value; None for a message without joints of the robot, or with a force that is not
            finite.

        Raises:
            InputError: A field has another size than before, or a number that is not finite. With
                new labels also: the channel has another unit or number of columns, or is a
                rotation.
            UnknownNameError: With new labels: a field, column or joint is not there.
        """
        if labels not in self.layouts:
            self.layouts[labels] = self._make_layout(table())
        layout = self.layouts[labels]
        if layout is None:
            return None
        if len(row) != layout.width:
            raise InputError(
                f"channel {self.name!r} is of {len(row)} numbers, of {layout.width} before"
            )
        if self.signal == LOAD:
            force = float(row[layout.columns[0]]) * layout.factor
            # In a log, a force that is not finite is missing as well.
            return SignalValue(LOAD, self.foot, force) if isfinite(force) else None
        values = layout.convert(row)
        if not np.isfinite(values).all():
            raise InputError(f"channel {self.name!r} must be finite numbers, got {values.tolist()}")
        return SignalValue(self.signal, self.foot, values)

    @property
    def is_found(self) -> bool:
        """Whether a message has had the columns of the channel."""
        return any(layout is not None for layout in self.layouts.values())

    def describe_lack(self) -> str:
        """Return why no message has had the columns of the channel."""
        if not self.layouts:
            return f"it has sent nothing, and the mapping takes {self.name!r} from it"
        shown = ", ".join(map(repr, next(iter(self.layouts))[:_SHOWN_NAMES]))
        return (
            f"channel {self.name!r} has no joint of the robot, such as {self.joints[0]!r}, but "
            f"{shown}: name its columns by `labels` in the mapping"
        )

    def _make_layout(self, table: RawTable) -> ColumnLayout | None:
        """Return the layout of the columns of a message.

        Args:
            table: Table of the message.

        Returns:
            The layout of the wanted columns; None for a message without joints of the robot.

        Raises:
            InputError: The channel has another unit or number of columns, or is a rotation.
            UnknownNameError: A field, column or joint is not there.
        """
        layout = find_column_layout(table, self.source, join_fields(table, self.source).shape[1])
        unit, count = UNITS_OF_SIGNALS[self.signal], len(layout.columns)
        if layout.unit not in ("1", unit):
            raise InputError(f"channel {self.name!r} must be in {unit}, got {layout.unit}")
        if self.source.rotation:
            raise InputError(f"channel {self.name!r} is no rotation: leave `rotation` out")
        if self.signal in _VECTORS and count != 3:
            raise InputError(f"channel {self.name!r} must have 3 columns, got {count}")
        if self.signal == LOAD:  # the last column is the vertical force
            return replace(layout, columns=layout.columns[-1:], names=layout.names[-1:])
        if self.signal in _VECTORS:
            return layout
        if not set(self.joints) & set(layout.names):
            return None  # another node publishes on the same topic, such as a gripper
        order = find_columns(self.name, self.joints, layout.names)
        columns = tuple(layout.columns[k] for k in order)
        return replace(layout, columns=columns, names=self.joints)


def make_table(message: Any, received: TopicMessage) -> RawTable:
    """Return the table of a topic with one message, as of a bag.

    Args:
        message: The decoded message.
        received: The message as it was received.
    """
    topic = CollectedTopic(received.topic, received.kind)
    topic.add(received.stamp, message)
    return topic.make_table()


class _FieldReader:
    """Reads the numbers of some fields, and the labels beside them, from messages of one type.

    Life cycle: `read` is called with each message. The first one decides how all are read.
    """

    def __init__(self, fields: tuple[str, ...]) -> None:
        """Begin without messages; `fields` are dotted paths of one channel."""
        self._fields = fields
        parent, dot, _ = fields[0].rpartition(".")
        self._labels = f"{parent}{dot}name"
        self._is_plain: bool | None = None  # see `_find_plain`; None before the first message
        self._has_labels = False
        self._get = attrgetter(*fields)
        self._get_labels: Callable[[Any], Any] = lambda message: find_field(message, self._labels)

    def read(self, message: Any) -> tuple[tuple[str, ...], Array]:
        """Return labels, which may be none, and numbers (n,) of the fields of a message.

        Args:
            message: The decoded message.

        Raises:
            InputError: A field does not hold numbers.
        """
        if self._is_plain is None:
            self._is_plain = self._find_plain(message)
            self._has_labels = isinstance(find_field(message, self._labels), list)
            if self._is_plain:
                self._get_labels = attrgetter(self._labels)
        labels = tuple(self._get_labels(message)) if self._has_labels else ()
        try:
            if self._is_plain:
                return labels, np.array(self._get(message), dtype=np.float64).ravel()
            parts = [find_field(message, name) for name in self._fields]
            rows = [np.ravel(np.array(part, dtype=np.float64)) for part in parts]
            return labels, np.concatenate(rows)
        except (TypeError, ValueError) as error:
            raise InputError(f"fields {list(self._fields)} are no numbers: {error}") from error

    def _find_plain(self, message: Any) -> bool:
        """Return whether the fields are one array or scalars, which are read faster."""
        try:
            values = [attrgetter(name)(message) for name in self._fields]
        except AttributeError:
            return False
        if len(values) == 1 and isinstance(values[0], np.ndarray):
            return True
        return all(isinstance(value, int | float) for value in values)


@dataclass(eq=False)
class LiveSource:
    """The channels of one topic that have one clock.

    Attributes:
        topic: The topic.
        clock: Clock of its stamps.
        channels: Channels that are read; none where only the stamps are used.
        readers: Readers of messages, by the fields of the channels.
    """

    topic: str
    clock: TopicClock
    channels: list[LiveChannel]
    readers: dict[tuple[str, ...], _FieldReader] = field(default_factory=dict)

    def read(self, message: Any, received: TopicMessage) -> list[SignalValue]:
        """Return the values of all channels in a message.

        Args:
            message: The decoded message.
            received: The message as it was received.

        Raises:
            InputError: A channel cannot be read from it.
        """
        found = dict[tuple[str, ...], tuple[tuple[str, ...], Array]]()
        values = list[SignalValue]()
        table = partial(make_table, message, received)
        for channel in self.channels:
            fields = channel.source.fields
            if fields not in found:
                if fields not in self.readers:
                    join_fields(table(), channel.source)  # raises if they cannot be used
                    self.readers[fields] = _FieldReader(fields)
                found[fields] = self.readers[fields].read(message)
            value = channel.read(*found[fields], table)
            if value is not None:
                values.append(value)
        return values
