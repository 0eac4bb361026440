"""Odometry of a legged base live: the filter stepped by samples, whatever they come from."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import NamedTuple, Protocol

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.estimation.estimate import Estimate
from hybridctl.legged.estimator import RootPose
from hybridctl.legged.live import LiveSample

GAP_PERIODS = 3.0
"""Usual periods from which on the time between two samples is a gap; the same as for logs."""
_RECENT = 0.05
"""Weight of the last period in the usual one: some 20 samples are remembered."""


class LiveFilter(Protocol):
    """A filter that is stepped by samples."""

    @property
    def contacts(self) -> Array:
        """How probable it is of each foot that it stands, (k,)."""

    @property
    def estimate(self) -> Estimate | None:
        """The estimate that the last root is by."""

    @property
    def rate(self) -> Array | None:
        """The measured rate (3,) in rad/s, in axes of the sensor, that the last root is by."""

    def step(self, sample: LiveSample) -> RootPose | None:
        """Return the root after a sample, None while samples of standing are collected."""


class Odometry(NamedTuple):
    """Where the root is after a sample, and what was odd about the sample.

    Attributes:
        stamp: Time in ns, as samples are stamped.
        time: The same in s; a `Decimal` where stamps are whole nanoseconds.
        root: The root.
        contacts: How probable it is of each foot that it stands, (k,).
        flags: What speaks against the pose.
        estimate: Estimate that the root is by; None where the filter does not tell it.
        rate: Measured rate (3,) in rad/s, in axes of the sensor, that the root is by.
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
    """Why a sample or message was not used."""

    error: str


Answer = Odometry | Refusal
"""What comes of a sample."""


class OdometrySteps:
    """Steps a filter by samples, and watches their stamps.

    Life cycle: `step` is called with each sample in the order of the stamps. A sample that is
    refused changes nothing.
    """

    def __init__(self, live: LiveFilter) -> None:
        self._live = live
        self._time: float | None = None  # of the last inertial sample; None before the first
        self._period: float | None = None  # s, usual one; None before the second sample

    def step(self, sample: LiveSample, origin: int | None = None) -> Odometry | None:
        """Return the odometry after a sample; None while there is none, see `LiveBaseFilter`.

        Args:
            sample: The sample.
            origin: Stamp in ns of time zero; None where times are not from whole nanoseconds.

        Raises:
            HybridctlError: The sample cannot be used.
        """
        if self._time is not None and not sample.time > self._time:
            raise InputError(
                f"time must be after the last sample, {self._time} s, got {sample.time}"
            )
        live = self._live
        root = live.step(sample)
        flags = () if sample.gyroscope is None else tuple(self._watch(sample.time))
        if root is None:
            return None
        stamp = (origin or 0) + round(1e9 * root.time)
        time = root.time if origin is None else Decimal(stamp).scaleb(-9)
        contacts, estimate, rate = live.contacts, live.estimate, live.rate
        return Odometry(stamp, time, root, contacts, flags, estimate, rate, self._period)

    def _watch(self, time: float) -> Iterator[str]:
        """Take note of a stamp, and yield what is odd about it."""
        step = None if self._time is None else time - self._time
        self._time = time
        if step is None:
            return
        if self._period is None:
            self._period = step
        elif step > GAP_PERIODS * self._period:
            yield f"no sample for {1e3 * step:.0f} ms"
        else:
            self._period += _RECENT * (step - self._period)
