"""Live odometry of a legged base: a filter that is stepped by samples as they come.

Samples come as JSON lines or on topics. Each is answered by odometry, or by the reason why it is
not used: a damaged sample must not end a control loop. As a JSON line, odometry is

    {"time": 12.345, "position": [x, y, z], "orientation": [qx, qy, qz, qw],
     "velocity": [vx, vy, vz], "covariance": [[...], ...], "contacts": {"FR_foot": 1.0, ...},
     "flags": []}

with the covariance (9, 9) of turn (rad), position (m) and velocity (m/s) in the world, as in
`RootPose`, and the reason is `{"error": "..."}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple, Protocol

import msgspec

from hybridctl.base.checks import Array
from hybridctl.base.errors import HybridctlError, InputError
from hybridctl.estimation.estimate import Estimate
from hybridctl.legged.estimator import RootPose
from hybridctl.legged.live import LiveSample
from hybridctl.logs.live_lines import SampleReader
from hybridctl.logs.live_stream import LiveMessage, TopicMessage
from hybridctl.logs.live_topics import TopicSamples

GAP_PERIODS = 3.0
"""Usual periods from which on the time between two samples is a gap, as in `legged.readings`."""
_LAST_PERIOD_WEIGHT = 0.05
"""Weight of the last period in the mean one, so that it is that of some 20 samples. A choice."""
_ENCODER = msgspec.json.Encoder(decimal_format="number")
"""Encoder that writes stamps of whole nanoseconds with all digits."""


class LiveFilter(Protocol):
    """A filter that is stepped by samples."""

    @property
    def contacts(self) -> Array:
        """Probability (k,) of each foot to stand."""

    @property
    def estimate(self) -> Estimate | None:
        """Estimate from which the last root was computed; None before the first root."""

    @property
    def rate(self) -> Array | None:
        """Measured angular velocity (3,) in rad/s, in axes of the sensor, at the last root.

        None before the first root.
        """

    def step(self, sample: LiveSample) -> RootPose | None:
        """Return the root after a sample; None while samples of standing are collected."""


class Odometry(NamedTuple):
    """The root after a sample.

    Attributes:
        stamp: Time in ns, as samples are stamped.
        time: The same in s; a `Decimal` where stamps are whole nanoseconds.
        root: Pose and velocity of the root.
        contacts: Probability (k,) of each foot to stand.
        flags: Reasons not to trust the pose, such as a gap before the sample.
        estimate: Estimate from which the root was computed; None where the filter has none.
        rate: Measured angular velocity (3,) in rad/s, in axes of the sensor; None without one.
        period: Usual time in s between inertial samples; None before the second one.
    """

    stamp: int
    time: float | Decimal
    root: RootPose
    contacts: Array
    flags: tuple[str, ...] = ()
    estimate: Estimate | None = None
    rate: Array | None = None
    period: float | None = None


class Refusal(NamedTuple):
    """A sample or message that was not used.

    Attributes:
        error: The reason.
    """

    error: str


Answer = Odometry | Refusal
"""Result of a sample or message."""


class OdometrySteps:
    """Steps a filter by samples, and flags gaps between their stamps.

    Life cycle: `step` is called with each sample in the order of the stamps. A sample that raises
    changes nothing.
    """

    def __init__(self, live: LiveFilter) -> None:
        """Begin without samples, with a filter that has not been stepped."""
        self._live = live
        self._time: float | None = None  # of the last inertial sample; None before the first
        self._period: float | None = None  # s, usual one; None before the second sample

    def step(self, sample: LiveSample, origin: int | None = None) -> Odometry | None:
        """Return the odometry after a sample; None while there is none, see `LiveBaseFilter`.

        Args:
            sample: The sample.
            origin: Stamp in ns of time zero; None where times are not from whole nanoseconds.

        Raises:
            InputError: The sample is not after the last inertial one.
            HybridctlError: The filter cannot use the sample.
        """
        if self._time is not None and not sample.time > self._time:
            raise InputError(
                f"time must be after the last sample, {self._time} s, got {sample.time}"
            )
        live = self._live
        root = live.step(sample)
        flags = () if sample.gyroscope is None else self._flag_gap(sample.time)
        if root is None:
            return None
        stamp = (origin or 0) + round(1e9 * root.time)
        time = root.time if origin is None else Decimal(stamp).scaleb(-9)
        contacts, estimate, rate = live.contacts, live.estimate, live.rate
        return Odometry(stamp, time, root, contacts, flags, estimate, rate, self._period)

    def _flag_gap(self, time: float) -> tuple[str, ...]:
        """Update the usual period by a stamp, unless there was a gap before.

        Args:
            time: Stamp of an inertial sample in s.

        Returns:
            The flag of the gap; empty if there was none.
        """
        step = None if self._time is None else time - self._time
        self._time = time
        if step is None:
            return ()
        if self._period is None:
            self._period = step
        elif step > GAP_PERIODS * self._period:
            return (f"no sample for {1e3 * step:.0f} ms",)  # the usual period is not that of a gap
        else:
            self._period += _LAST_PERIOD_WEIGHT * (step - self._period)
        return ()


def write_line(answer: Answer, feet: Sequence[str]) -> bytes:
    """Return the JSON line of odometry or of an error, with its end.

    Args:
        answer: Result of a sample.
        feet: Frames of the k feet.
    """
    if isinstance(answer, Refusal):
        return _ENCODER.encode({"error": answer.error}) + b"\n"
    root = answer.root
    content = {
        "time": answer.time,
        "position": root.position.tolist(),
        "orientation": root.orientation.tolist(),
        "velocity": root.velocity.tolist(),
        "covariance": root.covariance.tolist(),
        "contacts": dict(zip(feet, answer.contacts.tolist(), strict=True)),
        "flags": answer.flags,
    }
    return _ENCODER.encode(content) + b"\n"


class LiveOdometry:
    """Turns samples into odometry, one after the other: JSON lines, or messages of topics.

    Life cycle: `answer_line` is called with each line; or `answer_message` with each message, and
    `finish` once at the end. Lines and messages that are refused change nothing.

    Args:
        reader: Reads samples from lines.
        live: Filter that has not been stepped.
        samples: Makes samples from messages of topics; None where there is no mapping.

    Attributes:
        feet: Frames of the feet.
        topics: Topics whose messages are wanted.
    """

    def __init__(
        self, reader: SampleReader, live: LiveFilter, samples: TopicSamples | None = None
    ) -> None:
        self._reader, self._steps, self._samples = reader, OdometrySteps(live), samples
        self.feet = reader.feet
        self.topics = () if samples is None else samples.topics
        self._kind: type[LiveMessage] | type[TopicMessage] | None = None  # of the first sample

    def answer_line(self, line: bytes | str, logged: float | None = None) -> bytes | None:
        """Return the line of odometry or of the error for a line.

        Args:
            line: A line, or the JSON object of a message.
            logged: Time in s at which the message was logged; None for a line.

        Returns:
            The line with its end; None for a blank line, for a message that is no sample, and while
            the filter has no root yet.
        """
        found = self._step_by_line(line, logged)
        return None if found is None else write_line(found, self.feet)

    def answer_message(self, message: LiveMessage | TopicMessage) -> list[Answer]:
        """Return the results of a line or message; none while its samples wait for others.

        A sample as JSON after messages of topics is a `Refusal`.

        Args:
            message: A message of JSON, or of a topic that the mapping names.

        Raises:
            InputError: A topic does not fit its mapping or is silent (see `TopicSamples.add`), or
                its message comes after a sample as JSON.
        """
        if isinstance(message, LiveMessage):
            found = self._step_by_line(message.text, message.time)
            return [] if found is None else [found]
        assert self._samples is not None
        self._check_kind(TopicMessage)
        return [found for one in self._samples.add(message) if (found := self._step(one))]

    def finish(self) -> list[Answer]:
        """Return the results of messages of topics that were still waiting for others.

        Raises:
            InputError: There were messages of topics, but rates, specific forces or joint angles
                never came.
        """
        if self._kind is not TopicMessage or self._samples is None:
            return []  # lines do not wait
        return [found for one in self._samples.finish() if (found := self._step(one))]

    def _step(self, one: LiveSample | str) -> Answer | None:
        """Return the result of a sample, or of the reason why a message is not used."""
        if isinstance(one, str):
            return Refusal(one)
        assert self._samples is not None
        try:
            return self._steps.step(one, self._samples.origin)
        except HybridctlError as error:
            return Refusal(str(error))

    def _step_by_line(self, line: bytes | str, logged: float | None) -> Answer | None:
        """Return the result of a line, see `answer_line`."""
        if not line.strip():
            return None
        try:
            sample = self._reader.read(line, logged)
            if sample is None:
                return None
            self._check_kind(LiveMessage)
            return self._steps.step(sample)
        except HybridctlError as error:
            return Refusal(str(error))

    def _check_kind(self, kind: type[LiveMessage] | type[TopicMessage]) -> None:
        """Keep the kind of the first message, and check that all later ones are of this kind.

        Args:
            kind: Type of a message with a sample.

        Raises:
            InputError: There were messages of another kind, with which there is no common order.
        """
        if self._kind not in (None, kind):
            raise InputError(
                "samples come as JSON and on topics of the mapping, without a common order: send "
                "one of them"
            )
        self._kind = kind
