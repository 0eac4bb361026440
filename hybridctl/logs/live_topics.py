"""Samples of a legged base from live messages of topics, by the mapping of its logs.

Messages come on several topics, each with stamps of its own. They are put in order (`stamp_order`),
and those of one stamp are one sample. Where the accelerometer has stamps of its own, its specific
forces are interpolated at the stamps of the gyroscope.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from hybridctl.base.checks import Array, check_member
from hybridctl.base.errors import InputError
from hybridctl.legged.live import LiveSample
from hybridctl.logs.base_model import BaseChannels
from hybridctl.logs.live_channels import (
    ACCELEROMETER,
    GYROSCOPE,
    JOINTS,
    LOAD,
    LiveChannel,
    LiveSource,
    make_table,
)
from hybridctl.logs.live_clock import TopicClock
from hybridctl.logs.live_stream import TopicMessage
from hybridctl.logs.mapping import ChannelSource, Mapping
from hybridctl.logs.stamp_order import StampedItem, StampOrder

DEFAULT_WAIT = 0.02
"""Longest time in s for which a message waits for those of other topics, by stamps.

Two periods of joint angles at 100 Hz, the slowest that drivers of legged robots send them.
"""
_SILENT_TIME = 5.0
"""Time in s, by stamps, after which a topic that has sent nothing is named. A choice.

For as long rates may wait for specific forces that have stopped.
"""


class TopicSamples:
    """Makes samples of one robot from messages of topics.

    Life cycle: `add` is called with each message as it comes, and `finish` once at the end. Both
    yield samples in the order of their stamps, or the reason why a message is not used. They take
    effect while they are iterated over.

    Args:
        mapping: Fields of each channel.
        channels: Names of the channels that the filter takes.
        joints: Names of the joints, in order.
        feet: Frames of the feet, in order.
        wait: Longest time in s for which a message waits for other topics, by stamps.

    Attributes:
        topics: Topics that the mapping names.
        shares_stamps: Whether forces of all feet come in one message, or none come.

    Raises:
        UnknownNameError: The mapping does not have a channel.
        InputError: A channel has no topic, the mapping has a segment, or stamps are by a rate or by
            steps.
    """

    def __init__(
        self,
        mapping: Mapping,
        channels: BaseChannels,
        joints: Sequence[str],
        feet: Sequence[str],
        wait: float = DEFAULT_WAIT,
    ) -> None:
        entries = {name: source for name, _, source in mapping.list_sources()}
        used = [
            (channels.gyroscope, GYROSCOPE, ""),
            (channels.accelerometer, ACCELEROMETER, ""),
            (channels.joints, JOINTS, ""),
            *((n, LOAD, f) for f, n in zip(feet, channels.loads, strict=True) if n is not None),
        ]
        sources = dict[tuple[str, str, str], LiveSource]()
        for name, signal, foot in used:
            source = entries[check_member("channel", name, entries)]
            if not source.topic:
                raise InputError(f"channel {name!r} needs `topic` in the mapping to be read live")
            found = _find_source(sources, mapping, source)
            found.channels.append(LiveChannel(name, source, signal, foot, tuple(joints)))
        self._needed = len(sources)
        # Time is zero at the earliest first stamp of all topics of the mapping, as in a log.
        for source in entries.values():
            if source.topic:
                _find_source(sources, mapping, source)
        self._sources = list(sources.values())
        self._by_topic = dict[str, list[tuple[int, LiveSource]]]()
        for number, one in enumerate(self._sources):
            self._by_topic.setdefault(one.topic, []).append((number, one))
        self.topics = tuple(self._by_topic)
        with_loads = [s for s in self._sources if any(c.signal == LOAD for c in s.channels)]
        self.shares_stamps = len(with_loads) <= 1
        clocks = [one.clock for one in self._sources]
        self._order = StampOrder(clocks, self._needed, round(1e9 * wait))
        # Whether specific forces have stamps of their own, so that they are interpolated.
        self._has_own_forces = not any(
            {GYROSCOPE, ACCELEROMETER} <= {c.signal for c in s.channels} for s in self._sources
        )
        # Specific forces with their times, from the last one before the first open sample on.
        self._forces = deque[tuple[float, Array]]()
        self._open = deque[LiveSample]()  # samples that wait for a later specific force
        self._has_named_silent = False  # whether topics that have sent nothing have been named

    @property
    def origin(self) -> int:
        """Stamp in ns of time zero, as that of a log; 0 before the first sample."""
        return self._order.origin

    def add(self, received: TopicMessage) -> Iterator[LiveSample | str]:
        """Add a message, and yield the samples that are complete.

        Args:
            received: A message of one of `topics`.

        Yields:
            Samples in order, or the reason why the message is not used, such as a stamp of another
            kind of clock, or notes that topics of foot forces are silent.

        Raises:
            InputError: The first message of a topic does not fit the mapping, or rates, specific
                forces or angles have not come for `_SILENT_TIME`.
        """
        try:
            message = received.decode(received.data)
        except Exception as error:  # decoders raise nearly anything on damaged bytes
            yield f"topic {received.topic!r}: a message cannot be decoded ({error})"
            return
        for number, source in self._by_topic[received.topic]:
            yield from self._add_to_source(number, source, message, received)

    def _add_to_source(
        self, number: int, source: LiveSource, message: Any, received: TopicMessage
    ) -> Iterator[LiveSample | str]:
        """Add a message to one source, and yield the samples that are complete.

        Args:
            number: Index of the source.
            source: The source, whose clock and readers are updated.
            message: The decoded message.
            received: The message as it was received.

        Yields:
            Samples in order, or the reason why the message is not used.

        Raises:
            InputError: See `add`.
        """
        if number >= self._needed and self._order.has_begun:
            return  # its stamp was wanted for the origin alone, which is known now
        clock = source.clock
        try:
            if not clock.is_known:
                clock.find_field(make_table(message, received))
            values = source.read(message, received)
        except InputError as error:
            if clock.is_used:  # earlier messages fitted: this one is damaged, the mapping is right
                yield f"topic {source.topic!r}: {error}"
                return
            raise type(error)(f"topic {source.topic!r}: {error}") from error
        try:
            stamp = clock.read(message, received.stamp)
            self._order.add(number, StampedItem(stamp, number, values))
        except InputError as error:
            yield f"topic {source.topic!r}: {error}"
            return
        if not self._has_named_silent and self._order.elapsed >= _SILENT_TIME:
            self._has_named_silent = True
            yield from self._name_silent_topics()
        items = self._order.release()
        if items:
            yield from self._release(items)

    def finish(self) -> Iterator[LiveSample | str]:
        """Yield the samples that were still waiting.

        Yields:
            Samples in order.

        Raises:
            InputError: Rates, specific forces or joint angles never came, or rates have waited for
                specific forces for too long.
        """
        yield from self._release(self._order.release(everything=True))
        while self._open:
            yield self._complete(self._open.popleft())
        for source in self._sources:
            for channel in source.channels:
                if channel.signal != LOAD and not channel.is_found:
                    raise InputError(f"topic {source.topic!r}: {channel.describe_lack()}")

    def _name_silent_topics(self) -> Iterator[str]:
        """Yield notes about topics of foot forces that have sent nothing.

        Yields:
            One sentence for each channel.

        Raises:
            InputError: Rates, specific forces or joint angles have not come.
        """
        for source in self._sources:
            for channel in source.channels:
                if not channel.is_found:
                    text = f"topic {source.topic!r}: {channel.describe_lack()}"
                    if channel.signal != LOAD:
                        raise InputError(f"{text}, for {_SILENT_TIME:g} s of other stamps")
                    yield text

    def _release(self, items: list[tuple[float, StampedItem]]) -> Iterator[LiveSample]:
        """Yield the samples that are complete, after items of one stamp became one sample each.

        Args:
            items: Times in s and items, in order.

        Yields:
            Samples in order.

        Raises:
            InputError: Samples have waited for specific forces for too long.
        """
        for time, group in groupby(items, key=lambda pair: pair[0]):
            found = dict[str, Array]()
            loads = dict[str, float]()
            for _, item in group:
                for signal, foot, values in item.content:
                    if isinstance(values, float):
                        loads[foot] = values
                    else:
                        found[signal] = values
            force = found.get(ACCELEROMETER)
            if self._has_own_forces and force is not None:
                self._forces.append((time, force))
            rate, joints = found.get(GYROSCOPE), found.get(JOINTS)
            if rate is None:
                force = None  # it waits in `_forces` for the rates around it
            if rate is not None or joints is not None or loads:
                self._open.append(LiveSample(time, rate, force, joints, loads))
        while self._open and self._is_complete(self._open[0]):
            yield self._complete(self._open.popleft())
        if self._open and self._open[-1].time - self._open[0].time > _SILENT_TIME:
            stopped = next(
                s.topic for s in self._sources if any(c.signal == ACCELEROMETER for c in s.channels)
            )
            raise InputError(
                f"topic {stopped!r}: it has sent no forces for {_SILENT_TIME:g} s, and rates wait "
                "for them: is its driver running?"
            )

    def _is_complete(self, sample: LiveSample) -> bool:
        """Return whether the specific force of a sample can be interpolated."""
        return (
            not self._has_own_forces
            or sample.gyroscope is None
            or bool(self._forces and self._forces[-1][0] >= sample.time)
        )

    def _complete(self, sample: LiveSample) -> LiveSample:
        """Return a sample with the specific force at its stamp; beyond all forces the nearest one.

        Forces that no later sample needs are removed.
        """
        if not self._has_own_forces or sample.gyroscope is None:
            return sample
        while len(self._forces) > 2 and self._forces[1][0] <= sample.time:
            self._forces.popleft()
        if not self._forces:  # at the end of a stream without forces: its rates are of no use
            return sample._replace(gyroscope=None, accelerometer=None)
        times = np.array([time for time, _ in self._forces])
        columns = np.array([force for _, force in self._forces]).T
        force = np.array([np.interp(sample.time, times, column) for column in columns])
        return sample._replace(accelerometer=force)


def _find_source(
    sources: dict[tuple[str, str, str], LiveSource], mapping: Mapping, source: ChannelSource
) -> LiveSource:
    """Return the source of a channel, which is added to the sources if it is new.

    Args:
        sources: Sources by topic, field and unit of the stamps.
        mapping: The mapping.
        source: Fields and stamps of the channel.

    Raises:
        InputError: Stamps are not those of messages.
    """
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
        sources[key] = LiveSource(source.topic, TopicClock(source.topic, time), [])
    return sources[key]
