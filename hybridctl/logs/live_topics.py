"""Samples of a legged base from messages of topics as they come, by the mapping of its logs.

The first message of a topic goes through the same tables, layouts of columns and units as those of
a bag, so that a mapping means the same for both, and what is wrong with it is said in the same
words. Later ones are read field by field, with the same arithmetic.

Messages come on several topics, each with stamps of its own. They wait until every topic has sent
one at least as late, at most for a time in stamps, and are then put in order (see `stamp_order`).
Those of one stamp are one sample. Where the accelerometer has stamps of its own, its forces are
interpolated at those of the gyroscope.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from math import isfinite
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from hybridctl.base.checks import Array, check_member
from hybridctl.base.errors import InputError
from hybridctl.legged.live import LiveSample
from hybridctl.logs.bags import Topic, find_field
from hybridctl.logs.build import ColumnLayout, find_layout, join_fields
from hybridctl.logs.column_names import find_columns
from hybridctl.logs.legged import BaseChannels
from hybridctl.logs.live_stream import TopicMessage
from hybridctl.logs.mapping import ChannelSource, Mapping
from hybridctl.logs.raw import RawTable
from hybridctl.logs.stamp_order import SourceClock, StampedItem, StampOrder

DEFAULT_WAIT = 0.02
"""Time in s of stamps for which a message waits at most for those of other topics.

Two periods of joint angles at 100 Hz, the slowest that drivers of legged robots send them.
"""
_SILENT = 5.0
"""Time in s of stamps after which a topic that has sent nothing is named. The value is a choice."""
_GYROSCOPE, _ACCELEROMETER, _JOINTS, _LOAD = "gyroscope", "accelerometer", "joints", "load"
_SHOWN_NAMES = 8
"""Names that an error lists."""
_UNITS = {_GYROSCOPE: "rad/s", _ACCELEROMETER: "m/s^2", _JOINTS: "rad", _LOAD: "N"}
_VECTOR = (_GYROSCOPE, _ACCELEROMETER)


class _Part(NamedTuple):
    """A value of a message.

    Attributes:
        what: What it is, a key of `_UNITS`.
        foot: Frame of the foot of a force, else empty.
        values: Numbers (m,); of a force a single one, in N.
    """

    what: str
    foot: str
    values: Array | float


@dataclass(eq=False)
class _Channel:
    """A channel that the filter takes, and how it is read from messages of its topic.

    Attributes:
        name: Its name in the mapping.
        source: Where it comes from.
        what: What it is, a key of `_UNITS`.
        foot: Frame of the foot of a force.
        joints: Names of the joints whose angles are wanted, in order.
        layouts: Layout of the columns by the labels of a message; None for a message that has none
            of the joints.
    """

    name: str
    source: ChannelSource
    what: str
    foot: str
    joints: tuple[str, ...]
    layouts: dict[tuple[str, ...], ColumnLayout | None] = field(default_factory=dict)

    def read(
        self, labels: tuple[str, ...], row: Array, table: Callable[[], RawTable]
    ) -> _Part | None:
        """Return the value of a message; None where it has none, such as no joint of the robot.

        Args:
            labels: Labels of the columns that the message has; empty without any.
            row: All columns of its fields (n,).
            table: Makes the table of the message, for labels that are new.

        Raises:
            InputError: A field has another size than before, or a number that is not finite.
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
        if self.what == _LOAD:
            force = float(row[layout.columns[0]]) * layout.factor
            return (
                _Part(_LOAD, self.foot, force) if isfinite(force) else None
            )  # missing, as in a log
        values = layout.convert(row)
        if not np.isfinite(values).all():
            raise InputError(f"channel {self.name!r} must be finite numbers, got {values.tolist()}")
        return _Part(self.what, self.foot, values)

    @property
    def is_found(self) -> bool:
        """Whether a message had its columns."""
        return any(layout is not None for layout in self.layouts.values())

    def describe_lack(self) -> str:
        """Return why its columns were not found."""
        if not self.layouts:
            return f"it has sent nothing, and the mapping takes {self.name!r} from it"
        shown = ", ".join(map(repr, next(iter(self.layouts))[:_SHOWN_NAMES]))
        return (
            f"channel {self.name!r} has no joint of the robot, such as {self.joints[0]!r}, but "
            f"{shown}: name its columns by `labels` in the mapping"
        )

    def _make_layout(self, table: RawTable) -> ColumnLayout | None:
        layout = find_layout(table, self.source, join_fields(table, self.source).shape[1])
        unit, count = _UNITS[self.what], len(layout.columns)
        if layout.unit not in ("1", unit):
            raise InputError(f"channel {self.name!r} must be in {unit}, got {layout.unit}")
        if self.source.rotation:
            raise InputError(f"channel {self.name!r} is no rotation: leave `rotation` out")
        if self.what in _VECTOR and count != 3:
            raise InputError(f"channel {self.name!r} must have 3 columns, got {count}")
        if self.what == _LOAD:  # the last column is the vertical force
            return replace(layout, columns=layout.columns[-1:], names=layout.names[-1:])
        if self.what in _VECTOR:
            return layout
        if not set(self.joints) & set(layout.names):
            return None  # of another publisher on the same topic, such as a gripper
        order = find_columns(self.name, self.joints, layout.names)
        columns = tuple(layout.columns[k] for k in order)
        return replace(layout, columns=columns, names=self.joints)


def make_table(message: Any, received: TopicMessage) -> RawTable:
    """Return the table of a topic of which one message has come, as for a bag.

    Args:
        message: The decoded message.
        received: The same as it was received.
    """
    topic = Topic(received.topic, received.kind)
    topic.add(received.stamp, message)
    return topic.table()


class _FieldReader:
    """Reads the numbers of some fields, and the labels beside them, from messages of one type.

    Life cycle: the first message says how; `read` is called with it and all later ones.
    """

    def __init__(self, fields: tuple[str, ...]) -> None:
        self._fields = fields
        parent, dot, _ = fields[0].rpartition(".")
        self._labels = f"{parent}{dot}name"
        self._is_plain: bool | None = None  # whether all fields are attributes; None at first
        self._has_labels = False
        self._get = attrgetter(*fields)
        self._get_labels: Callable[[Any], Any] = lambda message: find_field(message, self._labels)

    def read(self, message: Any) -> tuple[tuple[str, ...], Array]:
        """Return labels and numbers (n,); raises `InputError` for what is no array of numbers."""
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
        """Return whether the numbers are attributes, an array or scalars, which is read faster."""
        try:
            values = [attrgetter(name)(message) for name in self._fields]
        except AttributeError:
            return False
        if len(values) == 1 and isinstance(values[0], np.ndarray):
            return True
        return all(isinstance(value, int | float) for value in values)


@dataclass(eq=False)
class _Source:
    """Channels of one topic with one clock. Without channels only its stamps count.

    Attributes:
        topic: The topic.
        clock: Its clock.
        channels: Its channels.
        readers: Readers of the fields of the channels, by these.
    """

    topic: str
    clock: SourceClock
    channels: list[_Channel]
    readers: dict[tuple[str, ...], _FieldReader] = field(default_factory=dict)

    def read(self, message: Any, received: TopicMessage) -> list[_Part]:
        """Return the values of a message.

        Args:
            message: The decoded message.
            received: The same as it was received.

        Raises:
            InputError: A channel cannot be read from it.
        """
        found = dict[tuple[str, ...], tuple[tuple[str, ...], Array]]()
        parts = list[_Part]()
        table = partial(make_table, message, received)
        for channel in self.channels:
            fields = channel.source.fields
            if fields not in found:
                if fields not in self.readers:
                    join_fields(table(), channel.source)  # says what is wrong with them
                    self.readers[fields] = _FieldReader(fields)
                found[fields] = self.readers[fields].read(message)
            part = channel.read(*found[fields], table)
            if part is not None:
                parts.append(part)
        return parts


class TopicSamples:
    """Makes samples of one robot from messages of topics.

    Life cycle: `add` is called with each message as it comes, and `finish` once at the end. Both
    yield samples in the order of their stamps, or the reason why a message is not used.

    Attributes:
        topics: Topics that the mapping names.
        shares_stamps: Whether forces of all feet come in one message.
    """

    def __init__(
        self,
        mapping: Mapping,
        channels: BaseChannels,
        joints: Sequence[str],
        feet: Sequence[str],
        wait: float = DEFAULT_WAIT,
    ) -> None:
        """Begin without messages.

        Args:
            mapping: Fields of each channel.
            channels: Names of the channels that the filter takes.
            joints: Names of the joints, in order.
            feet: Frames of the feet, in order.
            wait: Time in s of stamps for which a message waits at most.

        Raises:
            UnknownNameError: The mapping does not have a channel.
            InputError: A channel has no topic, or stamps that messages do not have.
        """
        entries = {name: source for name, _, source in mapping.sources()}
        used = [
            (channels.gyroscope, _GYROSCOPE, ""),
            (channels.accelerometer, _ACCELEROMETER, ""),
            (channels.joints, _JOINTS, ""),
            *((n, _LOAD, f) for f, n in zip(feet, channels.loads, strict=True) if n is not None),
        ]
        sources = dict[tuple[str, str, str], _Source]()
        for name, what, foot in used:
            source = entries[check_member("channel", name, entries)]
            if not source.topic:
                raise InputError(f"channel {name!r} needs `topic` in the mapping to be read live")
            made = _find_source(sources, mapping, source)
            made.channels.append(_Channel(name, source, what, foot, tuple(joints)))
        self._needed = len(sources)
        # Their first stamps say where time is zero in a log.
        for source in entries.values():
            if source.topic:
                _find_source(sources, mapping, source)
        self._sources = list(sources.values())
        self._by_topic = dict[str, list[tuple[int, _Source]]]()
        for number, one in enumerate(self._sources):
            self._by_topic.setdefault(one.topic, []).append((number, one))
        self.topics = tuple(self._by_topic)
        with_loads = [s for s in self._sources if any(c.what == _LOAD for c in s.channels)]
        self.shares_stamps = len(with_loads) <= 1
        clocks = [one.clock for one in self._sources]
        self._order = StampOrder(clocks, self._needed, round(1e9 * wait))
        self._has_own_forces = not any(
            {_GYROSCOPE, _ACCELEROMETER} <= {c.what for c in s.channels} for s in self._sources
        )
        self._forces = deque[tuple[float, Array]]()  # from the last before the first open sample on
        self._open = deque[LiveSample]()  # wait for a later force
        self._has_looked = False  # whether topics that have sent nothing have been named

    @property
    def origin(self) -> int:
        """Stamp in ns of time zero, as that of a log; 0 before the first sample."""
        return self._order.origin

    def add(self, received: TopicMessage) -> Iterator[LiveSample | str]:
        """Take a message, and yield the samples that are complete, or why it is not used.

        Args:
            received: A message of one of `topics`.

        Raises:
            InputError: The first message of a topic does not fit the mapping, topics have clocks
                of two kinds, or rates, forces or angles have not come for a while.
        """
        try:
            message = received.decode(received.data)
        except Exception as error:  # decoders raise nearly anything on damaged bytes
            yield f"topic {received.topic!r}: a message cannot be decoded ({error})"
            return
        for number, source in self._by_topic[received.topic]:
            yield from self._add_to_source(number, source, message, received)

    def _add_to_source(
        self, number: int, source: _Source, message: Any, received: TopicMessage
    ) -> Iterator[LiveSample | str]:
        """Take a message for one clock, see `add`; number: its place among the sources."""
        if number >= self._needed and self._order.has_begun:
            return
        clock = source.clock
        try:
            if not clock.is_known:
                clock.find_field(make_table(message, received))
            parts = source.read(message, received)
        except InputError as error:
            if clock.is_used:
                yield f"topic {source.topic!r}: {error}"
                return
            raise type(error)(f"topic {source.topic!r}: {error}") from error
        try:
            stamp = clock.read(message, received.stamp)
            self._order.add(number, StampedItem(stamp, number, parts))
        except InputError as error:
            yield f"topic {source.topic!r}: {error}"
            return
        if not self._has_looked and self._order.elapsed >= _SILENT:
            self._has_looked = True
            yield from self._find_silent()
        items = self._order.release()
        if items:
            yield from self._release(items)

    def finish(self) -> Iterator[LiveSample | str]:
        """Yield the samples that were still waiting.

        Raises:
            InputError: Rates, forces or joint angles never came.
        """
        yield from self._release(self._order.release(everything=True))
        while self._open:
            yield self._complete(self._open.popleft())
        for source in self._sources:
            for channel in source.channels:
                if channel.what != _LOAD and not channel.is_found:
                    raise InputError(f"topic {source.topic!r}: {channel.describe_lack()}")

    def _find_silent(self) -> Iterator[str]:
        """Yield topics without forces for long; raises `InputError` for rates, forces, angles."""
        for source in self._sources:
            for channel in source.channels:
                if not channel.is_found:
                    text = f"topic {source.topic!r}: {channel.describe_lack()}"
                    if channel.what != _LOAD:
                        raise InputError(f"{text}, for {_SILENT:g} s of other stamps")
                    yield text

    def _release(self, items: list[tuple[float, StampedItem]]) -> Iterator[LiveSample]:
        """Yield samples of items in order; those of one stamp are one sample."""
        for time, group in groupby(items, key=lambda pair: pair[0]):
            found = dict[str, Array]()
            loads = dict[str, float]()
            for _, item in group:
                for what, foot, values in item.content:
                    if isinstance(values, float):
                        loads[foot] = values
                    else:
                        found[what] = values
            force = found.get(_ACCELEROMETER)
            if self._has_own_forces and force is not None:
                self._forces.append((time, force))
            rate, joints = found.get(_GYROSCOPE), found.get(_JOINTS)
            if rate is None:
                force = None
            if rate is not None or joints is not None or loads:
                self._open.append(LiveSample(time, rate, force, joints, loads))
        while self._open and self._is_complete(self._open[0]):
            yield self._complete(self._open.popleft())
        if self._open and self._open[-1].time - self._open[0].time > _SILENT:
            stopped = next(
                s.topic for s in self._sources if any(c.what == _ACCELEROMETER for c in s.channels)
            )
            raise InputError(
                f"topic {stopped!r}: it has sent no forces for {_SILENT:g} s, and rates wait for "
                "them: is its driver running?"
            )

    def _is_complete(self, sample: LiveSample) -> bool:
        return (
            not self._has_own_forces
            or sample.gyroscope is None
            or bool(self._forces and self._forces[-1][0] >= sample.time)
        )

    def _complete(self, sample: LiveSample) -> LiveSample:
        """Return a sample with the force at its stamp; beyond all forces that of the nearest."""
        if not self._has_own_forces or sample.gyroscope is None:
            return sample
        while len(self._forces) > 2 and self._forces[1][0] <= sample.time:
            self._forces.popleft()
        if not self._forces:
            return sample._replace(gyroscope=None, accelerometer=None)
        times = np.array([time for time, _ in self._forces])
        columns = np.array([force for _, force in self._forces]).T
        force = np.array([np.interp(sample.time, times, column) for column in columns])
        return sample._replace(accelerometer=force)


def _find_source(
    sources: dict[tuple[str, str, str], _Source], mapping: Mapping, source: ChannelSource
) -> _Source:
    """Return the topic and clock of a channel, which is added to the sources where it is new."""
    time = source.time or mapping.time
    if mapping.segment is not None:
        raise InputError("topics have no segments: leave `segment` out of the mapping")
    if time.rate or time.steps:
        raise InputError(
            f"topic {source.topic!r}: live, stamps are those of messages or of a field, and "
            "messages that are lost would shift others: leave `rate` and `steps` out of `time`"
        )
    key = (source.topic, time.field, time.unit)
    if key not in sources:
        sources[key] = _Source(source.topic, SourceClock(source.topic, time), [])
    return sources[key]
