"""The filter of a legged base for samples as they come, with the numbers of a log to the last bit.

live = estimator.live(heading=0.0)
for sample in samples:
    pose = live.step(sample)

The same samples as `Readings`, filtered with `uniform_clock: false`, give the same estimates. What
a log shows in its opening (see `BaseSettings`) is found from the same samples here: the start, how
long the robot stands, the noise of its angles, the usual period and the first contacts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.checks import Array, array, member, number
from hybridctl.errors import InputError
from hybridctl.estimation.estimate import Estimate, Mixture
from hybridctl.estimation.filter import SaltedKalmanFilter
from hybridctl.estimation.legged.creep import CreepFilter, FootMotion
from hybridctl.estimation.legged.input_rows import ROUNDING, InputRows
from hybridctl.estimation.legged.measurements import ANGLES, GROUND
from hybridctl.estimation.legged.readings import (
    Hysteresis,
    Readings,
    completed,
    longest_step,
    signal_name,
)
from hybridctl.estimation.legged.rest import REST, measure_rest, rest_span
from hybridctl.estimation.legged.space import RootPose
from hybridctl.estimation.legged.system import LeggedBase
from hybridctl.estimation.legged.time_offset import InertialAlignment
from hybridctl.estimation.record import Record
from hybridctl.estimation.state import FilterState
from hybridctl.series import Series

_CATCH_UP = 4
"""Samples that one step filters at most until those of the opening are done.

All at once would block a loop for as long as the opening has samples: seconds at 1 kHz.
"""


class LiveSample(NamedTuple):
    """What the sensors say at one time.

    Attributes:
        time: Stamp in s.
        gyroscope: Rate (3,) in rad/s, in the axes of the sensor.
        accelerometer: Specific force (3,) in m/s^2, in the axes of the sensor.
        joints: Angles (n,) in rad, in the order of the estimator; None where they are missing.
        loads: Vertical forces in N by the frame of the foot, of those that are known.
    """

    time: float
    gyroscope: Array
    accelerometer: Array
    joints: Array | None
    loads: Mapping[str, float]


class LegEstimator(Protocol):
    """What a live filter takes from `BaseEstimator`, where its parts are explained."""

    base: LeggedBase
    filter: SaltedKalmanFilter
    contact: Hysteresis

    @property
    def joints(self) -> tuple[str, ...]:
        """Names of the joints whose angles it takes."""
        ...

    @property
    def opening(self) -> float:
        """Time in s from which everything that then stays fixed is found."""
        ...

    def readings(self, given: Readings) -> Readings:
        """Return readings with forces completed."""
        ...

    def record(self, given: Readings) -> Record:
        """Return the record of readings."""
        ...

    def standing_time(self, angles: Series, start: float) -> float:
        """Return how long the robot stands at the start, s."""
        ...

    def foot_motion(self, record: Record) -> FootMotion:
        """Return how velocities of feet are found."""
        ...

    def contacts(self, belief: Mixture) -> Array:
        """Return the probability (k,) of each foot to stand."""
        ...

    def root(self, estimate: Estimate, rate: ArrayLike | None = None) -> RootPose:
        """Return the root by an estimate."""
        ...


class LiveBaseFilter:
    """Filters samples of a legged base one by one.

    Life cycle: `step` takes samples in order of their stamps. It returns None while it collects
    the opening, and while it catches up with that, four samples a step. From then on each step
    returns the root at its sample. A sample that is refused changes nothing.
    """

    def __init__(
        self,
        estimator: LegEstimator,
        start: Callable[[Readings], Estimate],
        *,
        weight: float | None,
        ground: float | None,
        settle: float,
        late: float = 0.0,
    ) -> None:
        """Begin without samples; see `BaseEstimator.live`.

        Args:
            estimator: The estimator, which takes stamps as they are.
            start: Finds the estimate at the first sample from the readings of the opening.
            weight: Weight in N by which one missing force is completed; None to leave it out.
            ground: Height of level ground in m; None where unknown.
            settle: Time in s from a touch after which the contact counts.
            late: Time in s by which the inertial sensor is stamped too late. If positive, the root
                is that of the latest sample for which inertial samples have come.
        """
        self._estimator, self._start = estimator, start
        self._alignment = InertialAlignment(late) if late else None
        self._unaligned: deque[LiveSample] = deque()  # wait for later inertial samples
        self._weight, self._ground, self._settle = weight, ground, settle
        self._time: float | None = None  # of the last sample; None before the first
        self._collected: list[LiveSample] = []  # the opening; empty once the filter has begun
        self._pending: deque[LiveSample] = deque()  # still to be filtered
        self._run: _Run | None = None  # None while the opening is collected

    @property
    def estimate(self) -> Estimate | None:
        """The estimate after the last sample that was filtered; None before the first."""
        return None if self._run is None else self._run.state.estimate

    @property
    def contacts(self) -> Array:
        """How probable it is of each foot that it stands, (k,); NaN before the first estimate."""
        if self._run is None:
            return np.full(len(self._estimator.base.feet), np.nan)
        return self._estimator.contacts(self._run.state.mixture)

    def step(self, sample: LiveSample) -> RootPose | None:
        """Take a sample, and return the root; None at the start, see this class.

        Raises:
            InputError: The stamp is not after the last, a value has another size or is not finite,
                or the opening has no joint angles.
            UnknownNameError: The robot does not have a foot.
        """
        sample = self._check_sample(sample)
        time, ready = sample.time, [sample] if self._alignment is None else self._align(sample)
        for sample in ready:
            if self._run is None:
                self._collect(sample)
            else:
                self._pending.append(sample)
        self._time = time
        run = self._run
        if run is None or not ready:
            return None
        for _ in range(min(_CATCH_UP, len(self._pending))):
            run.take(self._pending.popleft())
        if self._pending:
            return None
        return self._estimator.root(run.state.estimate, sample.gyroscope)

    def _align(self, sample: LiveSample) -> list[LiveSample]:
        """Return the samples whose inertial values at their stamps are known now, in order."""
        assert self._alignment is not None
        self._unaligned.append(sample)
        found = list[LiveSample]()
        inertial = np.concatenate([sample.gyroscope, sample.accelerometer])
        for time, values in self._alignment.add(sample.time, inertial):
            while self._unaligned[0].time < time:  # no inertial sample is so early
                self._unaligned.popleft()
            own = self._unaligned.popleft()
            found.append(own._replace(gyroscope=values[:3], accelerometer=values[3:]))
        return found

    def _check_sample(self, sample: LiveSample) -> LiveSample:
        """Return the sample with arrays that are its own; see `step` for what is raised."""
        time, joints = number("time", sample.time), sample.joints
        if self._time is not None and not time > self._time:
            raise InputError(f"time must be after the last sample, {self._time} s, got {time}")
        if joints is not None:
            joints = array("joints", joints, (len(self._estimator.joints),)).copy()
        loads = {}
        for foot in self._estimator.base.feet:
            if foot in sample.loads:
                loads[foot] = number(f"load of {foot!r}", sample.loads[foot])
        for foot in sample.loads:
            member("load of", foot, self._estimator.base.feet)
            if self._run is not None and foot not in self._run.loaded:
                raise InputError(
                    f"load of {foot!r} was missing in the first {self._estimator.opening:g} s, so "
                    "that the foot counts as one without a sensor: begin anew, or leave it out"
                )
        gyroscope = array("gyroscope", sample.gyroscope, (3,)).copy()
        force = array("accelerometer", sample.accelerometer, (3,)).copy()
        return LiveSample(time, gyroscope, force, joints, loads)

    def _collect(self, sample: LiveSample) -> None:
        """Collect a sample of the opening, and begin the filter with the first one after it."""
        collected, opening = self._collected, self._estimator.opening
        # The first sample after the opening belongs to it: the input of the last sample in it is
        # the mean of both.
        if not collected or sample.time <= collected[0].time + opening:
            collected.append(sample)
            return
        if all(known.joints is None for known in collected[1:]):
            raise InputError(f"joints were missing in the first {opening:g} s: begin anew")
        samples = [*collected, sample]
        given = readings_of(samples, self._estimator.base.feet)
        first = self._start(given)
        self._run = _Run(self._estimator, given, first, self._weight, self._ground, self._settle)
        self._pending.extend(samples)
        self._collected = []


class _Run:
    """The filter after the opening.

    Life cycle: `take` is called with each sample, those of the opening first. `state` is the state
    after the last. `loaded` are the feet with a force in the opening, in order.
    """

    def __init__(
        self,
        estimator: LegEstimator,
        given: Readings,
        initial: Estimate,
        weight: float | None,
        ground: float | None,
        settle: float,
    ) -> None:
        """Begin with the readings of the opening, and the estimate at its first sample."""
        record = estimator.record(given)
        self._contact, self._weight, self._ground = estimator.contact, weight, ground
        motion = estimator.foot_motion(record)
        self._filter = CreepFilter(estimator.base, estimator.filter, motion)
        times = given.inertial.times
        longest = longest_step(times, estimator.opening)
        self._rows = InputRows(estimator.base, motion.window, longest)
        self._rest = _RestWatch(times[0] + estimator.standing_time(given.angles, times[0]))
        self.loaded = tuple(given.loads)
        whole = estimator.readings(given)
        self._stands = whole.standing(estimator.contact, estimator.opening)
        # Which feet have touched by their forces alone, and since when; a contact that stands at
        # the first sample counts from then on.
        self._settle, self._touched = settle, dict(self._stands)
        self._since = dict.fromkeys(self.loaded, -np.inf)
        self._start = float(times[0])
        # The first angles belong to the input of the first sample, even where they come later.
        self._first_angles = float(given.angles.times[0])
        self._rows.add_angles(self._first_angles, given.angles.values[0])
        self.state: FilterState = estimator.filter.start(initial)

    def take(self, sample: LiveSample) -> None:
        """Filter a sample: predict to its time, then compare angles, rest, forces and ground."""
        time, joints = sample.time, sample.joints
        inertial = np.concatenate([sample.gyroscope, sample.accelerometer])
        if joints is not None and time > self._first_angles:
            self._rows.add_angles(time, joints)
        held = self._rows.add_inertial(time, inertial)
        state = self.state
        if held is not None:
            state = self._filter.predict(state, time, held)
        u = self._rows.last_row()
        # From the angles of the first sample the feet were started, see `readings`.
        if joints is not None and time > self._start:
            state = self._filter.update(state, ANGLES, joints, u)
        for row in self._rest.add(time, inertial, joints):
            state = self._filter.update(state, REST, row, u)
        touched = False
        for foot, force in self._changes(time, sample.loads):
            touched |= self._stands[foot]
            state = self._filter.update(state, signal_name(foot), force, u)
        if touched and self._ground is not None:
            state = self._filter.update(state, GROUND, np.array([self._ground]), u)
        # Without patience (see `SaltedKalmanFilter`) no input of the past is asked for again.
        self.state = state._replace(inputs=())

    def _changes(self, time: float, loads: Mapping[str, float]) -> list[tuple[str, Array]]:
        """Update which feet stand, and return those that changed with their forces (1,)."""
        if not loads:
            return []
        forces = np.array([[loads.get(foot, np.nan) for foot in self.loaded]])
        if self._weight is not None and len(self.loaded) > 1:
            forces = completed(forces, self._weight)
        changes = []
        for foot, given in zip(self.loaded, forces[0].tolist(), strict=True):
            force = self._limit_force(foot, time, given)
            stands = self._stands[foot]
            if (force <= self._contact.off) if stands else (force >= self._contact.on):
                self._stands[foot] = not stands
                changes.append((foot, np.array([force])))
        return changes

    def _limit_force(self, foot: str, time: float, force: float) -> float:
        """Return a force of a foot, no more than that of lift-off until its contact counts.

        As `Readings.settled` does for a log.
        """
        touched = self._touched[foot]
        if (force <= self._contact.off) if touched else (force >= self._contact.on):
            self._touched[foot] = not touched
            self._since[foot] = time
        early = time < self._since[foot] + self._settle - ROUNDING
        if self._touched[foot] and early:
            return float(np.minimum(force, self._contact.off))
        return force


class _RestWatch:
    """Finds rest as `find_rest` does, from samples as they come.

    Life cycle: `add` is called with each sample; it keeps those of the time that is not over.
    """

    def __init__(self, after: float) -> None:
        self._after, self._number = after, 0
        self._inertial: list[tuple[float, Array]] = []
        self._angles: list[tuple[float, Array]] = []

    def add(self, time: float, inertial: Array, joints: Array | None) -> list[Array]:
        """Take a sample, and return rows (4,) of the channel "rest" that are known now."""
        self._inertial.append((time, inertial))
        if joints is not None:
            self._angles.append((time, joints))
        found = list[Array]()
        while self._angles:
            begin, end = rest_span(self._after, self._number)
            if end >= min(time, self._angles[-1][0]):
                break
            row = measure_rest(_series(self._inertial), _series(self._angles), begin)
            found += [] if row is None else [row]
            self._number += 1
            self._inertial = [r for r in self._inertial if r[0] >= end]
            self._angles = [r for r in self._angles if r[0] >= end]
        return found


def _series(rows: list[tuple[float, Array]]) -> Series:
    times, values = zip(*rows, strict=True)
    return Series(np.array(times), np.array(values))


def readings_of(samples: list[LiveSample], feet: tuple[str, ...]) -> Readings:
    """Return samples as readings of a log.

    Args:
        samples: Two samples at least, in order.
        feet: Frames of the feet. Those without any force have no series. The others share the
            stamps of all samples that have a force, NaN where their own is missing.
    """
    inertial = [(s.time, np.concatenate([s.gyroscope, s.accelerometer])) for s in samples]
    angles = [(s.time, s.joints) for s in samples if s.joints is not None]
    told = [s for s in samples if s.loads]
    times = np.array([s.time for s in told])
    loads = {
        foot: Series(times, np.array([s.loads.get(foot, np.nan) for s in told]))
        for foot in feet
        if any(foot in s.loads for s in told)
    }
    return Readings(_series(inertial), _series(angles), loads)
