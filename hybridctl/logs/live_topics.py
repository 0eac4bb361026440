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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from hybridctl.checks import Array, member
from hybridctl.errors import InputError
from hybridctl.estimation.legged.live import LiveSample
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
_UNITS = {_GYROSCOPE: "rad/s", _ACCELEROMETER: "m/s^2", _JOINTS: "rad", _LOAD: "N"}
_VECTOR = (_GYROSCOPE, _ACCELEROMETER)


class _Part(NamedTuple):
    """A value of a message: what it is (foot of a force, else empty), and its numbers (m,)."""

    what: str
    foot: str
    values: Array


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
    width: int = 0

    def read(self, message: Any, received: TopicMessage) -> _Part | None:
        """Return the value of a message; None where it has none, such as no joint of the robot.

        Args:
            message: The decoded message.
            received: The same as it was received.

        Raises:
            InputError: A field has another size than before, or a number that is not finite.
        """
        layout = self._find_layout(message, received)
        if layout is None:
            return None
        parts = [find_field(message, name) for name in self.source.fields]
        row = np.concatenate([np.ravel(np.asarray(part, dtype=np.float64)) for part in parts])
        values = layout.convert(row) if len(row) >= len(layout.columns) else row[:0]
        if self.what == _LOAD:
            values = values[-1:]
            return _Part(_LOAD, self.foot, values) if np.isfinite(values).all() else None
        if not len(values) or not np.isfinite(values).all():
            raise InputError(
                f"topic {received.topic!r}: channel {self.name!r} must be {len(layout.columns)} "
                f"finite numbers, got {row.tolist()[:12]}"
            )
        return _Part(self.what, "", values)

    def _find_layout(self, message: Any, received: TopicMessage) -> ColumnLayout | None:
        """Return the layout for the labels of a message, from its table where they are new."""
        parent, dot, _ = self.source.fields[0].rpartition(".")
        labels = find_field(message, f"{parent}{dot}name")
        key = tuple(labels) if isinstance(labels, list) else ()
        if key not in self.layouts:
            self.layouts[key] = self._make_layout(make_table(message, received))
        return self.layouts[key]

    def _make_layout(self, table: RawTable) -> ColumnLayout | None:
        layout = find_layout(table, self.source, join_fields(table, self.source).shape[1])
        unit, count = _UNITS[self.what], len(layout.columns)
        if layout.unit not in ("1", unit):
            raise InputError(f"channel {self.name!r} must be in {unit}, got {layout.unit}")
        if self.source.rotation:
            raise InputError(f"channel {self.name!r} is no rotation: leave `rotation` out")
        if self.what in _VECTOR and count != 3:
            raise InputError(f"channel {self.name!r} must have 3 columns, got {count}")
        if self.what != _JOINTS:
            return layout
        if self.layouts and not set(self.joints) & set(layout.names):
            return None  # of another publisher on the same topic, such as a gripper
        order = find_columns(self.name, self.joints, layout.names)
        columns = tuple(layout.columns[k] for k in order)
        return ColumnLayout(columns, self.joints, layout.unit, layout.factor)


def make_table(message: Any, received: TopicMessage) -> RawTable:
    """Return the table of a topic of which one message has come, as for a bag.

    Args:
        message: The decoded message.
        received: The same as it was received.
    """
    topic = Topic(received.topic, received.kind)
    topic.add(received.stamp, message)
    return topic.table()


@dataclass(eq=False)
class _Source:
    """Channels of one topic with one clock. Without channels only its stamps count."""

    topic: str
    clock: SourceClock
    channels: list[_Channel]


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
            source = entries[member("channel", name, entries)]
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
        self.topics = tuple(dict.fromkeys(one.topic for one in self._sources))
        with_loads = [s for s in self._sources if any(c.what == _LOAD for c in s.channels)]
        self.shares_stamps = len(with_loads) <= 1
        clocks = [one.clock for one in self._sources]
        self._order = StampOrder(clocks, self._needed, round(1e9 * wait))
        self._has_own_forces = not any(
            {_GYROSCOPE, _ACCELEROMETER} <= {c.what for c in s.channels} for s in self._sources
        )
        self._forces = deque[tuple[float, Array]]()  # from the last before the first open sample on
        self._open = deque[LiveSample]()  # wait for a later force
        self._named = set[int]()  # sources that have been told to be silent

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
        for number, source in enumerate(self._sources):
            if source.topic == received.topic:
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
            parts = self._read_parts(source, message, received)
        except InputError as error:
            if clock.is_used:
                yield str(error)
                return
            raise type(error)(f"topic {source.topic!r}: {error}") from error
        try:
            stamp = clock.read(message, received.stamp)
            self._order.add(number, StampedItem(stamp, number, parts))
        except InputError as error:
            yield f"topic {source.topic!r}: {error}"
            return
        yield from self._find_silent()
        yield from self._release(self._order.release())

    @staticmethod
    def _read_parts(source: _Source, message: Any, received: TopicMessage) -> list[_Part]:
        parts = [channel.read(message, received) for channel in source.channels]
        return [part for part in parts if part is not None]

    def finish(self) -> Iterator[LiveSample | str]:
        """Yield the samples that were still waiting.

        Raises:
            InputError: Rates, forces or joint angles never came.
        """
        yield from self._release(self._order.release(everything=True))
        while self._open:
            yield self._complete(self._open.popleft())
        missing = [s for s in self._sources[: self._needed] if not s.clock.is_used]
        for source in missing:
            if any(channel.what != _LOAD for channel in source.channels):
                raise InputError(_describe_silence(source, "the stream has ended"))

    def _find_silent(self) -> Iterator[str]:
        """Yield topics that have sent nothing for long; raises `InputError` for those needed."""
        if len(self._named) == self._needed or self._order.elapsed < _SILENT:
            return
        for number, source in enumerate(self._sources[: self._needed]):
            if number in self._named:
                continue
            self._named.add(number)
            if not source.clock.is_used:
                text = _describe_silence(source, f"others have for {_SILENT:g} s")
                if any(channel.what != _LOAD for channel in source.channels):
                    raise InputError(text)
                yield text

    def _release(self, items: list[tuple[float, StampedItem]]) -> Iterator[LiveSample]:
        """Yield samples of items in order; those of one stamp are one sample."""
        for time, group in groupby(items, key=lambda pair: pair[0]):
            found = dict[str, Array]()
            loads = dict[str, float]()
            for _, item in group:
                for what, foot, values in item.content:
                    if what == _LOAD:
                        loads[foot] = float(values[0])
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


def _describe_silence(source: _Source, when: str) -> str:
    names = ", ".join(repr(channel.name) for channel in source.channels)
    return (
        f"topic {source.topic!r} has sent nothing, and {when}; the mapping takes {names} from it: "
        "start its sender, or name another topic"
    )
