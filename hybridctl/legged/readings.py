r"""What the sensors of a legged robot said, as a record that the filter takes.

Inertial samples become the input, each pair's mean held between them; joint angles a channel that
is compared at every row but the first, from which the feet are started. Of the forces of a foot
only those rows are left at which its contact changes: the others say nothing that the mode does not
know.

Which feet are in contact a threshold with hysteresis says at once: in contact from `on` newtons
upwards until there are no more than `off`. A probability says how surely,

.. math:: p(f) = \frac{1}{1 + e^{-(f - f_0) / w}}, \quad f_0 = \tfrac12 (on + off), \quad
          w = \tfrac14 (on - off),

as evidence beside how the foot moves, see `hypotheses`.

A foot that comes down on ground that gives way, or slips first, moves for a while yet under a force
that is large at once. `Readings.settled` lets its contact count from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hybridctl.base.checks import Array, check_instance, check_member, check_number
from hybridctl.base.errors import InputError
from hybridctl.estimation.record import Record, Series
from hybridctl.legged.creep import FootMotion, measure_angle_noise
from hybridctl.legged.input_rows import ROUNDING, InputRows
from hybridctl.legged.measurements import ANGLES, GROUND
from hybridctl.legged.rest import REST, find_rest
from hybridctl.legged.system import LeggedBase

_LARGEST_LOG_ODDS = np.log(1e6)
"""Largest logarithm of the odds of a contact by one force, because forces have outliers."""
_STILL_ANGLE = 0.02
"""Angle in rad by which joints of a robot that stands still may move."""
_STILL_DEVIATIONS = 10.0
"""Deviations of encoders by which angles differ of a robot that stands still, at most.

Of some thousand differences of two angles the largest is 5 deviations, and the noise is measured by
up to 44 % too low (see `measure_angle_noise`).
"""
_STANDING_TIMES = 0.2, 2.0
"""Times in s: a shorter one is no standing, and biases need no longer one."""


@dataclass(frozen=True)
class Hysteresis:
    """Vertical forces in N from which on a foot is in contact, and down to which it stays so.

    Raises:
        InputError: `off` is not below `on`, or one is not finite.
    """

    on: float
    off: float

    def __post_init__(self) -> None:
        if not check_number("off", self.off) < check_number("on", self.on):
            raise InputError(f"off must be below on, got off = {self.off} N, on = {self.on} N")

    def states(self, forces: Array, opening: int | None = None) -> NDArray[np.bool_]:
        """Return whether a foot is in contact at each of its forces (n,); NaN says nothing.

        Before the first force beyond a threshold it is what that force says. If there is none, it
        is what the mean is nearer to, and not in contact without any force.

        Args:
            forces: Vertical forces (n,) in N.
            opening: Number of forces from which the contact at the start is taken; None for all.
        """
        said = np.where(forces >= self.on, 1, np.where(forces <= self.off, 0, -1))
        early, telling = forces[:opening], np.flatnonzero(said[:opening] >= 0)
        if len(telling):
            first = bool(said[telling[0]] == 1)
        else:
            middle = np.nanmean(early) if np.isfinite(early).any() else -np.inf
            first = bool(middle > 0.5 * (self.on + self.off))
        last = np.maximum.accumulate(np.where(said >= 0, np.arange(len(forces)), -1))
        return np.asarray(np.where(last >= 0, said[last] == 1, first))

    def log_odds(self, force: float) -> float:
        """Return the logarithm of p / (1 - p) of a vertical force in N, p the chance of contact."""
        middle, width = 0.5 * (self.on + self.off), 0.25 * (self.on - self.off)
        return float(np.clip((force - middle) / width, -_LARGEST_LOG_ODDS, _LARGEST_LOG_ODDS))


def completed(forces: Array, weight: float) -> Array:
    """Return forces of feet with one that is missing replaced by what the others leave.

    Rows with more than one missing stay as they are.

    Args:
        forces: Vertical forces (n, k) of k feet in N, NaN where they are missing.
        weight: Weight in N that all feet bear together, exactly only while they stand still.
    """
    missing = ~np.isfinite(forces)
    result: Array = forces.copy()
    alone = missing.sum(axis=1) == 1
    rest = weight - np.nansum(forces[alone], axis=1)
    result[alone] = np.where(missing[alone], rest[:, None], forces[alone])
    return result


OPENING = 5.0
"""Seconds from the start of a log, in which a robot stands or moves slowly for a while."""
_GAP_PERIODS = 3.0
"""Time between two samples, in median periods, above which samples are missing."""


@dataclass(frozen=True, eq=False)
class Readings:
    """Series of the sensors, each with stamps of its own.

    A value that is NaN is missing.

    Attributes:
        inertial: Rates in rad/s and specific forces in m/s^2 (n, 6), in the axes of the sensor.
        angles: Joint angles (n, m), rad.
        loads: Vertical force (n, 1) in N of each foot by the name of its frame; empty where no
            foot measures any.

    Raises:
        InputError: A series has another number of columns, or fewer than two inertial rows are
            without missing values.
    """

    inertial: Series
    angles: Series
    loads: Mapping[str, Series]

    def __post_init__(self) -> None:
        if check_instance("inertial", self.inertial, Series).values.shape[1] != 6:
            raise InputError(
                f"inertial must have 6 columns, rate and force, got {self.inertial.values.shape[1]}"
            )
        check_instance("angles", self.angles, Series)
        for name, load in self.loads.items():
            if check_instance(f"load of {name!r}", load, Series).values.shape[1] != 1:
                raise InputError(f"load of {name!r} must have one column")
        if len(self.inertial.complete_rows.times) < 2:
            raise InputError("inertial must have two rows without missing values at least")

    @property
    def disorder(self) -> int:
        """How many stamps are earlier than the one before them."""
        series = (self.inertial, self.angles, *self.loads.values())
        return sum(s.disorder for s in series)

    @property
    def gaps(self) -> Array:
        """Gaps (k, 2) of the inertial samples, begin and end in s."""
        times = self.inertial.complete_rows.times
        steps = np.diff(times)
        late = np.flatnonzero(steps > _GAP_PERIODS * np.median(steps))
        return np.column_stack([times[late], times[late + 1]])

    def each(self, change: Callable[[Series], Series]) -> Readings:
        """Return readings with all series changed."""
        loads = {name: change(load) for name, load in self.loads.items()}
        return Readings(change(self.inertial), change(self.angles), loads)

    def uniform(self) -> Readings:
        """Return the rows with the stamps of an even clock, see `uniform_stamps`."""

        def timed(series: Series) -> Series:
            ordered = series.sort_by_time()
            return Series(uniform_stamps(ordered.times), ordered.values)

        return self.each(timed)

    def record(
        self,
        base: LeggedBase,
        contact: Hysteresis,
        *,
        standing: float = 0.0,
        ground: float | None = None,
        opening: float = OPENING,
        window: float | None = None,
    ) -> Record:
        """Make the record for the filter of a `BaseEstimator`.

        Args:
            base: Base, feet and noise.
            contact: Forces from which on, and down to which, a foot is in contact.
            standing: How long the robot stands still at the start, s.
            ground: Height of level ground in m, compared at each touchdown; None where unknown.
            opening: Time from the first inertial sample, s, in which the noise of the angles, the
                usual period and the contacts at the start are found.
            window: Time in s over which velocities of feet are means; None for one that suits the
                noise of the angles, see `FootMotion`.

        Returns:
            The record.

        Raises:
            UnknownNameError: The robot does not have a foot.
            InputError: There are angles of another number of joints.
        """
        self._check_fit(base)
        start = self.inertial.complete_rows.times[0]
        later = self.angles.times > start
        channels = {ANGLES: Series(self.angles.times[later], self.angles.values[later])}
        early = opening_rows(channels[ANGLES], start + opening)
        motion = FootMotion.of(base, early, window)
        inputs = self._inputs(base, motion.window, opening)
        still = find_rest(self.inertial.complete_rows, self.angles.complete_rows, start + standing)
        if len(still):
            channels[REST] = still
        touching = [np.zeros(0)]
        for name, given in self.loads.items():
            load = given.sort_by_time()
            states = contact.states(load.values[:, 0], _count_early(load, start + opening))
            rows = np.flatnonzero(np.diff(states)) + 1
            channels[signal_name(name)] = Series(load.times[rows], load.values[rows])
            touching.append(load.times[rows[states[rows]]])
        if ground is not None:
            times = np.unique(np.concatenate(touching))
            channels[GROUND] = Series(
                times, np.full((len(times), 1), check_number("ground", ground))
            )
        return Record(channels, inputs)

    def start_record(self, base: LeggedBase) -> Record:
        """Return what a start needs of `record`: angles, and inputs without the motion of feet.

        The inputs have the same rates, forces and angles to the last bit. A live filter starts
        while samples come, and the motion of feet takes most of the time of `record`.

        Args:
            base: Base and feet.

        Raises:
            UnknownNameError: The robot does not have a foot.
            InputError: There are angles of another number of joints.
        """
        self._check_fit(base)
        inertial, angles = self.inertial.complete_rows, self.angles.complete_rows
        rows = np.zeros((len(inertial), base.nu))
        rows[-1, :6] = inertial.values[-1]
        rows[:-1, :6] = 0.5 * (inertial.values[:-1] + inertial.values[1:])
        rows[:, base.angle_columns] = angles.hold_last(inertial.times)
        later = self.angles.select_rows(self.angles.times > inertial.times[0])
        return Record({ANGLES: later}, Series(inertial.times, rows))

    def _check_fit(self, base: LeggedBase) -> None:
        """Check that feet and joints are those of the robot.

        Raises:
            InputError: There are angles of another number of joints, or (as the class
                `UnknownNameError`) the robot does not have a foot.
        """
        for name in self.loads:
            check_member("load of", name, base.feet)
        joints = base.kinematics.joints
        if self.angles.values.shape[1] != len(joints):
            raise InputError(
                f"angles must have {len(joints)} columns, those of the joints {joints}, got "
                f"{self.angles.values.shape[1]}"
            )

    def standing(self, contact: Hysteresis, opening: float = OPENING) -> dict[str, bool]:
        """Return whether each foot with a force is in contact at the first row, see `record`."""
        end, found = self.inertial.complete_rows.times[0] + opening, {}
        for name, given in self.loads.items():
            load = given.sort_by_time()
            found[name] = bool(contact.states(load.values[:, 0], _count_early(load, end))[0])
        return found

    def filled(self, weight: float | None) -> Readings:
        """Return readings with forces in the order of their stamps.

        Where several feet share all their stamps, and the weight is known, the force of one foot
        that is missing is filled in, see `completed`.

        Args:
            weight: Weight of the robot, N; None to fill in nothing.

        Raises:
            InputError: The weight is not positive.
        """
        loads = {name: load.sort_by_time() for name, load in self.loads.items()}
        times = [load.times for load in loads.values()]
        shared = all(len(t) == len(times[0]) and (t == times[0]).all() for t in times)
        if weight is not None and len(loads) > 1 and shared:
            forces = np.column_stack([load.values for load in loads.values()])
            whole = completed(forces, check_number("weight", weight, above=0.0))
            loads = {name: Series(times[0], whole[:, k]) for k, name in enumerate(loads)}
        return replace(self, loads=loads)

    def settled(self, contact: Hysteresis, wait: float) -> Readings:
        """Return readings with forces that let contacts begin later than they do.

        Those of a contact that stands at the first row stay as they are.

        Args:
            contact: Force thresholds of contact.
            wait: Time in s from a touch after which the contact counts.
        """
        loads = {}
        for name, load in self.loads.items():
            values = load.values.copy()
            for first, last in stretches(contact.states(values[:, 0])):
                rows = np.arange(first, last + 1 if first else first)
                early = rows[load.times[rows] < load.times[first] + wait - ROUNDING]
                values[early] = np.minimum(values[early], contact.off)
            loads[name] = Series(load.times, values)
        return replace(self, loads=loads)

    def _inputs(self, base: LeggedBase, window: float, opening: float) -> Series:
        """Return the rows of the input, see `system` and `InputRows`.

        Args:
            base: Base and feet.
            window: Time over which velocities of feet are means, s.
            opening: Time from the first sample that shows the usual period, s.
        """
        inertial, angles = self.inertial.complete_rows, self.angles.complete_rows
        times = inertial.times.tolist()
        made = InputRows(base, window, longest_step(inertial.times, opening))
        ends = np.maximum(angles.times.searchsorted(times, "right"), 1).tolist()
        rows, taken = list[Array](), 0
        for time, values, end in zip(times, inertial.values, ends, strict=True):
            for k in range(taken, end):
                made.add_angles(float(angles.times[k]), angles.values[k])
            taken = end
            row = made.add_inertial(time, values)
            if row is not None:
                rows.append(row)
        return Series(inertial.times, np.array([*rows, made.last_row()]))


def longest_step(times: Array, opening: float) -> float:
    """Return the longest time between two samples without one missing, s.

    Args:
        times: Stamps (n,) in s, in order.
        opening: Time from the first stamp in which the usual period is seen, s: a filter that runs
            live knows no more. Where it has no two samples, all count.
    """
    steps = np.diff(times)
    early = steps[times[1:] <= times[0] + opening]
    return _GAP_PERIODS * float(np.median(early if len(early) else steps))


def opening_rows(series: Series, end: float) -> Series:
    """Return the rows up to a time in s; all of them where none is so early."""
    early = np.asarray(series.times <= end)
    return series.select_rows(early) if early.any() else series


def _count_early(series: Series, end: float) -> int:
    """Return how many rows in order are not after a time in s."""
    return int(series.times.searchsorted(end, "right"))


def step_time(contact: Hysteresis, loads: Iterable[Series]) -> float | None:
    """Return the median time in s that feet stand or swing by their forces.

    Args:
        contact: Force thresholds of contact.
        loads: Vertical forces (n, 1) of feet, N.

    Returns:
        The time; None where no foot changes its contact twice.
    """
    lasted = [np.zeros(0)]
    for load in loads:
        series = load.sort_by_time()
        changed = np.flatnonzero(np.diff(contact.states(series.values[:, 0]).astype(int)))
        lasted.append(np.diff(series.times[changed]))
    every = np.concatenate(lasted)
    return float(np.median(every)) if len(every) else None


def stood(angles: Series) -> float:
    """Find for how long a robot stands still at the start by its joint angles.

    Args:
        angles: Joint angles (n, m), rad. Noise of encoders is no motion, see `_STILL_DEVIATIONS`.

    Returns:
        The time in s, of at most 2 s; 0 for a robot that walks, or stands for less than 0.2 s.
    """
    known = angles.sort_by_time()
    still = max(_STILL_ANGLE, _STILL_DEVIATIONS * measure_angle_noise(known.complete_rows, 0.0))
    away = np.abs(known.values - known.values[0]).max(axis=1) > still
    end = known.times[int(away.argmax()) if away.any() else -1] - known.times[0]
    least, most = _STANDING_TIMES
    return 0.0 if end < least else min(float(end), most)


def signal_name(foot: str) -> str:
    """Return the name of the channel of the force of a foot."""
    return f"load {foot}"


def uniform_stamps(times: Array) -> Array:
    """Return even stamps (n,) in s for samples that arrived late by turns, from theirs in order.

    Samples are numbered in the order of their stamps; where a gap is longer than three periods,
    those that fit in it are taken to be missing. The clock is the straight line through the stamps
    over the numbers, by least squares. Fewer than three stamps are returned as they are.
    """
    if len(times) < 3:
        return times
    steps = np.diff(times)
    period = float(np.median(steps))
    skipped = np.where(steps > _GAP_PERIODS * period, np.rint(steps / period), 1.0)
    numbers = np.concatenate([[0.0], np.cumsum(skipped)])
    slope, start = np.polyfit(numbers, times - times[0], 1)
    return np.asarray(times[0] + start + slope * numbers)


def stretches(flags: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return first and last row of each stretch of rows that are true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(int)))
    return [(int(a), int(b) - 1) for a, b in edges.reshape(-1, 2)]
