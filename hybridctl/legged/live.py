"""The filter of a legged base for samples as they come, with the numbers of a log to the last bit.

::

    live = estimator.live(heading=0.0)
    for sample in samples:
        pose = live.step(sample)

The same samples as `Readings`, filtered with `uniform_clock: false` and the same `time_offset`,
give the same estimates. Without one a log is searched for it as a whole, which also says whether
the noise of positions may follow innovations (`BaseNoise.delay`); live it is then not known. What a
log shows in its opening (see `BaseSettings`) is found from the same samples here: the start, how
long the robot stands, the noise of its angles, the usual period and the first contacts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, check_array, check_member, check_number
from hybridctl.base.errors import InputError
from hybridctl.base.time_series import Series
from hybridctl.estimation.estimate import Estimate, Mixture
from hybridctl.estimation.record import Record
from hybridctl.estimation.salted_kalman_filter import SaltedKalmanFilter
from hybridctl.legged.compiled_formulas import build_formulas, build_root
from hybridctl.legged.creep import FootMotion
from hybridctl.legged.creep_filter import CreepFilter, CreepState
from hybridctl.legged.inertial_alignment import InertialAlignment
from hybridctl.legged.input_rows import ROUNDING, InputRows
from hybridctl.legged.measurements import ANGLES, GROUND
from hybridctl.legged.readings import (
    Hysteresis,
    Readings,
    completed,
    longest_step,
    opening_rows,
    signal_name,
)
from hybridctl.legged.rest import REST, RestSpan, rest_span
from hybridctl.legged.space import RootPose
from hybridctl.legged.system import LeggedBase

_SAMPLES_PER_STEP = 4
"""Samples that one step filters at most until those of the opening are done.

All at once would block a loop for as long as the opening has samples: seconds at 1 kHz.
"""


class LiveSample(NamedTuple):
    """What the sensors say at one time.

    Attributes:
        time: Stamp in s.
        gyroscope: Rate (3,) in rad/s, in the axes of the sensor. None where angles or forces have
            stamps of their own; they are filtered with the next inertial sample.
        accelerometer: Specific force (3,) in m/s^2, in the axes of the sensor; None with
            `gyroscope`.
        joints: Angles (n,) in rad, in the order of the estimator; None where they are missing.
        loads: Vertical forces in N by the frame of the foot, of those that are known.
    """

    time: float
    gyroscope: Array | None
    accelerometer: Array | None
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

    def raise_noise(self, record: Record, motion: FootMotion) -> LegEstimator:
        """Return an estimator whose sensors are as noisy as the opening shows them."""
        ...

    def standing_time(self, angles: Series, start: float) -> float:
        """Return how long the robot stands at the start, s."""
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
    returns the root at its sample. A sample that is refused changes nothing; one of the opening
    that cannot be filtered is passed over, and the sample that comes with it is still taken. A
    sample without inertial values waits for the next one with them, has no root, and is dropped
    with it where that cannot be filtered.

    Attributes:
        shares_stamps: Whether forces of feet come together, so that one that is missing beside
            others was not measured, and is completed by the weight. False where each foot has
            stamps of its own. It is set before the first sample.

    Args:
        estimator: The estimator, which takes stamps as they are.
        start: Finds the estimate at the first sample from the readings of the opening.
        weight: Weight in N by which one missing force is completed; None to leave it out.
        ground: Height of level ground in m; None where unknown.
        settle: Time in s from a touch after which the contact counts.
        late: Time in s by which the inertial sensor is stamped too late. If positive, the root is
            that of the latest sample for which inertial samples have come.
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
        self._estimator, self._start = estimator, start
        self._alignment = InertialAlignment(late) if late else None
        self._unaligned: deque[LiveSample] = deque()  # wait for later inertial samples
        self._weight, self._ground, self._settle = weight, ground, settle
        for count in range(len(estimator.base.feet) + 1):
            build_formulas(count)  # takes longer than a loop can wait for later
        build_root()
        self.shares_stamps = True
        self._rate: Array | None = None  # of the last root; None before the first
        self._begin: float | None = None  # time of the first inertial sample; None before it
        self._time: float | None = None  # of the last sample; None before the first
        self._collected: list[LiveSample] = []  # the opening; empty once the filter has begun
        self._pending: deque[LiveSample] = deque()  # still to be filtered
        self._run: _Run | None = None  # None while the opening is collected

    @property
    def estimate(self) -> Estimate | None:
        """The estimate after the last sample that was filtered; None before the first."""
        return None if self._run is None else self._run.state.estimate

    @property
    def rate(self) -> Array | None:
        """The measured rate (3,) in rad/s, in axes of the sensor, that the last root is by.

        None before the first root.
        """
        return self._rate

    @property
    def contacts(self) -> Array:
        """How probable it is of each foot that it stands, (k,); NaN before the first estimate."""
        if self._run is None:
            return np.full(len(self._estimator.base.feet), np.nan)
        return self._estimator.contacts(self._run.state.filter.mixture)

    def step(self, sample: LiveSample) -> RootPose | None:
        """Return the root after a sample; None at the start, see this class.

        Raises:
            InputError: The stamp is not after the last, a value has another size or is not finite,
                one of gyroscope and accelerometer is missing, a foot has a force now and had none
                in the opening, or the opening has no joint angles or no force at all.
            UnknownNameError: The robot does not have a foot.
            SimulationError: The estimate would not be finite after the sample, or after one of the
                opening that is filtered now.
        """
        sample = self._check_sample(sample)
        before, ready = self._time, [sample] if self._alignment is None else self._align(sample)
        for one in ready:
            if self._run is None:
                self._collect(one)
            else:
                self._pending.append(one)
        self._time = sample.time
        run = self._run
        if run is None:
            return None
        for _ in range(min(_SAMPLES_PER_STEP, len(self._pending))):
            first = self._pending.popleft()
            try:
                run.take(first)
            except BaseException:
                if first is sample:
                    self._time = before
                raise
        if self._pending or not ready or ready[-1].gyroscope is None:
            return None
        self._rate = ready[-1].gyroscope
        return self._estimator.root(run.state.estimate, self._rate)

    def _align(self, sample: LiveSample) -> list[LiveSample]:
        """Return the samples whose inertial values at their stamps are known now, in order."""
        assert self._alignment is not None
        self._unaligned.append(sample)
        found = list[LiveSample]()
        inertial = _join_inertial(sample)
        if inertial is None:
            return found
        for time, values in self._alignment.add(sample.time, inertial):
            while self._unaligned[0].time < time:
                early = self._unaligned.popleft()
                # Nothing counts before the first aligned sample, as in `align_inertial`.
                has_begun = bool(found) or self._begin is not None
                if early.gyroscope is None and has_begun:
                    found.append(early)
            own = self._unaligned.popleft()
            found.append(own._replace(gyroscope=values[:3], accelerometer=values[3:]))
        return found

    def _check_sample(self, sample: LiveSample) -> LiveSample:
        """Return the sample with arrays that are its own.

        Raises:
            InputError: As in `step`.
        """
        time, joints = check_number("time", sample.time), sample.joints
        if self._time is not None and not time > self._time:
            raise InputError(f"time must be after the last sample, {self._time} s, got {time}")
        if joints is not None:
            joints = _check_vector("joints", joints, len(self._estimator.joints))
        loads, feet = dict[str, float](), self._estimator.base.feet
        for foot, load in sample.loads.items():
            if foot not in feet:
                check_member("load of", foot, feet)
            loads[foot] = check_number(f"load of {foot!r}", load)
            if self._run is not None and foot not in self._run.loaded:
                raise InputError(
                    f"load of {foot!r} was missing in the first {self._estimator.opening:g} s, so "
                    "that the foot counts as one without a sensor: begin anew, or leave it out"
                )
        rate, force = sample.gyroscope, sample.accelerometer
        if rate is None and force is None:
            return LiveSample(time, None, None, joints, loads)
        if rate is None or force is None:
            raise InputError("gyroscope and accelerometer must come together, got one of them")
        rate, force = (
            _check_vector("gyroscope", rate, 3),
            _check_vector("accelerometer", force, 3),
        )
        return LiveSample(time, rate, force, joints, loads)

    def _collect(self, sample: LiveSample) -> None:
        """Collect a sample of the opening, and begin the filter with the first one after it.

        Raises:
            InputError: The opening has no joint angles.
        """
        collected, opening = self._collected, self._estimator.opening
        if self._begin is None and sample.gyroscope is not None:
            self._begin = sample.time
        # The first sample after the opening belongs to it: the input of the last sample in it is
        # the mean of both.
        begin = self._begin
        if begin is None or sample.gyroscope is None or sample.time <= begin + opening:
            collected.append(sample)
            return
        if all(s.joints is None or not s.time > begin for s in collected):
            raise InputError(f"joints were missing in the first {opening:g} s: begin anew")
        samples = [*collected, sample]
        given = make_readings(samples, self._estimator.base.feet, self.shares_stamps)
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
        times = given.inertial.times
        self._contact, self._ground = estimator.contact, ground
        stamps = [load.times for load in given.loads.values()]
        shared = all(np.array_equal(own, stamps[0]) for own in stamps)
        self._weight = weight if shared else None  # as `Readings.filled` does
        later = given.angles.select_rows(given.angles.times > times[0])
        motion = FootMotion.of(estimator.base, opening_rows(later, times[0] + estimator.opening))
        own = estimator.raise_noise(given.start_record(estimator.base), motion)
        self._filter = CreepFilter(own.base, own.filter, motion)
        longest = longest_step(times, estimator.opening)
        self._rows = InputRows(estimator.base, motion.window, longest)
        self._rest = _RestWatch.begin(times[0] + estimator.standing_time(given.angles, times[0]))
        self._waiting = list[LiveSample]()  # without inertial values, since the last with them
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
        self._filter.prepare()
        self.state: CreepState = self._filter.start(initial)

    def take(self, sample: LiveSample) -> None:
        """Filter a sample, and those that have waited for it.

        If that raises, everything is as it was before, but for those that have waited: one of them
        may be why, and would be it again.
        """
        inertial = _join_inertial(sample)
        if inertial is None:
            self._waiting.append(sample)
            return
        waiting, self._waiting = self._waiting, []
        state, rows, rest = self.state, self._rows.copy(), self._rest
        contacts = self._stands.copy(), self._touched.copy(), self._since.copy()
        try:
            self._filter_samples(waiting, sample, inertial)
        except BaseException:
            self.state, self._rows, self._rest = state, rows, rest
            self._stands, self._touched, self._since = contacts
            raise

    def _filter_samples(
        self, waiting: list[LiveSample], sample: LiveSample, inertial: Array
    ) -> None:
        """Predict to the time of each sample, then compare angles, rest, forces and ground.

        Args:
            waiting: Samples without inertial values since the last one with them, in order. The
                input held at their times is known by the next inertial sample.
            sample: Sample with inertial values.
            inertial: Its rate and specific force (6,).
        """
        for one in (*waiting, sample):
            if one.joints is not None and one.time > self._first_angles:
                self._rows.add_angles(one.time, one.joints)
        held = self._rows.add_inertial(sample.time, inertial)
        state = self.state
        for one in waiting:
            updates = self._find_updates(one)
            # Before the first inertial sample they are no more than contacts of before.
            if held is not None and updates:
                state = self._filter.predict(state, one.time, held)
                for channel, value in updates:
                    state = self._filter.update(state, channel, value, held)
        if held is not None:
            state = self._filter.predict(state, sample.time, held)
        for channel, value in self._find_updates(sample):
            # Only the events of contacts read the input: a foot begins where the angles put it.
            u = self._rows.last_row() if channel in self._filter.filter.signals else None
            state = self._filter.update(state, channel, value, u)
        self.state = state

    def _find_updates(self, sample: LiveSample) -> list[tuple[str, Array]]:
        """Return channels and values that a sample is compared in, and update rest and contacts."""
        time, joints = sample.time, sample.joints
        updates = list[tuple[str, Array]]()
        # From the angles of the first sample the feet were started, see `readings`.
        if joints is not None and time > self._start:
            updates.append((ANGLES, joints))
        self._rest, still = self._rest.add(time, sample.gyroscope, joints)
        updates += [(REST, row) for row in still]
        touched = False
        for foot, force in self._update_contacts(time, sample.loads):
            touched |= self._stands[foot]
            updates.append((signal_name(foot), force))
        if touched and self._ground is not None:
            updates.append((GROUND, np.array([self._ground])))
        return updates

    def _update_contacts(self, time: float, loads: Mapping[str, float]) -> list[tuple[str, Array]]:
        """Update which feet stand, and return those that changed with their forces (1,).

        Args:
            time: Stamp, s.
            loads: Known forces of this sample by foot, N. Without any, nothing changes.

        Returns:
            Foot and force of each contact that changes, in the order of `loaded`.
        """
        if not loads:
            return []
        forces = [loads.get(foot, math.nan) for foot in self.loaded]
        if self._weight is not None and len(forces) > 1:
            forces = completed(np.array([forces]), self._weight)[0].tolist()
        changes = []
        for foot, given in zip(self.loaded, forces, strict=True):
            force = self._limit_force(foot, time, given)
            stands = self._stands[foot]
            if (force <= self._contact.off) if stands else (force >= self._contact.on):
                self._stands[foot] = not stands
                changes.append((foot, np.array([force])))
        return changes

    def _limit_force(self, foot: str, time: float, force: float) -> float:
        """Return a force of a foot, no more than that of lift-off until its contact counts.

        Update by the force itself whether the foot has touched, and since when. It is what
        `Readings.settled` does for a log.

        Args:
            foot: Frame of the foot.
            time: Stamp, s.
            force: Its force in N; NaN changes nothing.
        """
        touched = self._touched[foot]
        if (force <= self._contact.off) if touched else (force >= self._contact.on):
            self._touched[foot] = not touched
            self._since[foot] = time
        early = time < self._since[foot] + self._settle - ROUNDING
        if self._touched[foot] and early:
            return float(np.minimum(force, self._contact.off))
        return force


class _RestWatch(NamedTuple):
    """Finds rest as `find_rest` does, from samples as they come.

    Attributes:
        after: Time in s before which nothing is looked for.
        number: Number of the first span of time (see `rest_span`) that is not over.
        open: Sums over that span, and over the one after it: by rounding their edge may be a stamp
            of both, or of none.
        known: Rows (4,) of times that are over, with their ends in s, until samples are later.
        last: Stamps in s of the last rate and of the last angles.
    """

    after: float
    number: int
    open: tuple[RestSpan, RestSpan]
    known: tuple[tuple[float, Array], ...] = ()
    last: tuple[float, float] = (-np.inf, -np.inf)

    @staticmethod
    def begin(after: float) -> _RestWatch:
        """Return a watch without samples."""
        return _RestWatch(after, 0, _open_spans(after, 0))

    def add(
        self, time: float, rate: Array | None, joints: Array | None
    ) -> tuple[_RestWatch, list[Array]]:
        """Return the watch after a sample, and rows (4,) of the channel "rest" known by it."""
        if rate is None and joints is None:
            return self, []
        number, (span, following), known = self.number, self.open, self.known
        while time >= span.end:
            row = span.measure()
            if row is not None:
                known = (*known, (span.end, row))
            number += 1
            span, following = following, _open_spans(self.after, number)[1]
            # Times without samples, in a gap, are not gone through one by one.
            late = int((time - self.after) / (span.end - span.begin)) - 1
            if late > number:
                number, (span, following) = late, _open_spans(self.after, late)
        if time >= span.begin:
            span = _add_to_span(span, time, rate, joints)
        if time >= following.begin:
            following = _add_to_span(following, time, rate, joints)
        last_rate, last_joints = self.last
        last = (last_rate if rate is None else time, last_joints if joints is None else time)
        found = list[Array]()
        if known:
            later = min(last)
            found = [row for end, row in known if end < later]
            known = tuple(each for each in known if each[0] >= later)
        return _RestWatch(self.after, number, (span, following), known, last), found


def _add_to_span(span: RestSpan, time: float, rate: Array | None, joints: Array | None) -> RestSpan:
    """Return the sums of a time with a sample whose rate may be missing."""
    if rate is not None:
        return span.add(time, rate, joints)
    return span._replace(halves=span.add(time, np.zeros(3), joints).halves)


def _open_spans(after: float, number: int) -> tuple[RestSpan, RestSpan]:
    """Return empty sums over a time and the one after it, by the number of the first."""
    return RestSpan(rest_span(after, number)[0]), RestSpan(rest_span(after, number + 1)[0])


def _make_series(rows: list[tuple[float, Array]]) -> Series:
    times, values = zip(*rows, strict=True)
    return Series(np.array(times), np.array(values))


def _check_vector(name: str, value: ArrayLike, size: int) -> Array:
    """Return what `check_array` returns for a vector (size,), the usual one in few calls."""
    if type(value) is np.ndarray and value.dtype == np.float64 and value.shape == (size,):
        vector: Array = value.copy()
        if math.isfinite(vector.dot(vector)):
            vector.flags.writeable = False
            return vector
    return check_array(name, value, (size,))


def _join_inertial(sample: LiveSample) -> Array | None:
    """Return rate and specific force (6,) of a sample, None where it has none."""
    if sample.gyroscope is None or sample.accelerometer is None:
        return None
    return np.concatenate([sample.gyroscope, sample.accelerometer])


def make_readings(
    samples: list[LiveSample], feet: tuple[str, ...], shares_stamps: bool = True
) -> Readings:
    """Return samples as readings of a log.

    Args:
        samples: Two samples with inertial values at least, in order.
        feet: Frames of the feet. Those without any force have no series.
        shares_stamps: Whether the others share the stamps of all samples that have a force, NaN
            where their own is missing. If not, each has the stamps of its own forces.
    """
    inertial = [(s.time, six) for s in samples if (six := _join_inertial(s)) is not None]
    angles = [(s.time, s.joints) for s in samples if s.joints is not None]
    loads = {}
    for foot in feet:
        own = [s for s in samples if foot in s.loads]
        if own:
            told = [s for s in samples if s.loads] if shares_stamps else own
            forces = np.array([s.loads.get(foot, np.nan) for s in told])
            loads[foot] = Series(np.array([s.time for s in told]), forces)
    return Readings(_make_series(inertial), _make_series(angles), loads)
