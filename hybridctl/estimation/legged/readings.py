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

from hybridctl.checks import Array, instance, member, number
from hybridctl.errors import InputError
from hybridctl.estimation.legged.creep import FootMotion
from hybridctl.estimation.legged.measurements import ANGLES, GROUND
from hybridctl.estimation.legged.rest import REST, find_rest
from hybridctl.estimation.legged.system import LeggedBase
from hybridctl.estimation.record import Record, Series

_LARGEST = np.log(1e6)  # of log odds, because forces have outliers
_STILL = 0.02  # rad, by which joints move of a robot that stands still
_STANDS = 0.2, 2.0  # s: a shorter time is no standing, and biases need no longer one


@dataclass(frozen=True)
class Hysteresis:
    """Vertical forces in N from which on a foot is in contact, and down to which it stays so."""

    on: float
    off: float

    def __post_init__(self) -> None:
        if not number("off", self.off) < number("on", self.on):
            raise InputError(f"off must be below on, got off = {self.off} N, on = {self.on} N")

    def states(self, forces: Array) -> NDArray[np.bool_]:
        """Whether a foot is in contact at each of its forces (n,); NaN says nothing.

        Before the first force that says something it is what that is not.
        """
        said = np.where(forces >= self.on, 1, np.where(forces <= self.off, 0, -1))
        telling = np.flatnonzero(said >= 0)
        if not len(telling):
            middle = np.nanmean(forces) if np.isfinite(forces).any() else -np.inf
            return np.full(len(forces), bool(middle > 0.5 * (self.on + self.off)))
        last = np.maximum.accumulate(np.where(said >= 0, np.arange(len(forces)), -1))
        return np.asarray(np.where(last >= 0, said[last], said[telling[0]]) == 1)

    def log_odds(self, force: float) -> float:
        """The logarithm of p / (1 - p) of a force."""
        middle, width = 0.5 * (self.on + self.off), 0.25 * (self.on - self.off)
        return float(np.clip((force - middle) / width, -_LARGEST, _LARGEST))


def completed(forces: Array, weight: float) -> Array:
    """Forces (n, k) of k feet with one that is missing replaced by what the others leave.

    weight: that all feet bear together in N, exactly only while they stand still. Rows with more
    than one missing stay as they are.
    """
    missing = ~np.isfinite(forces)
    result: Array = forces.copy()
    alone = missing.sum(axis=1) == 1
    rest = weight - np.nansum(forces[alone], axis=1)
    result[alone] = np.where(missing[alone], rest[:, None], forces[alone])
    return result


_ROUNDING = 1e-9  # s, of stamps
_GAP = 3.0  # median periods, from which on samples are missing between two


@dataclass(frozen=True, eq=False)
class Readings:
    """Series of the sensors, each with stamps of its own.

    inertial (n, 6): rate in rad/s and specific force in m/s^2, in the axes of the sensor. angles
    (n, m): of the joints in rad. loads: vertical force (n, 1) in N for each foot by the name of its
    frame; empty where there are none. A value that is NaN is missing.
    """

    inertial: Series
    angles: Series
    loads: Mapping[str, Series]

    def __post_init__(self) -> None:
        if instance("inertial", self.inertial, Series).values.shape[1] != 6:
            raise InputError(
                f"inertial must have 6 columns, rate and force, got {self.inertial.values.shape[1]}"
            )
        instance("angles", self.angles, Series)
        for name, load in self.loads.items():
            if instance(f"load of {name!r}", load, Series).values.shape[1] != 1:
                raise InputError(f"load of {name!r} must have one column")
        if len(self.inertial.complete.times) < 2:
            raise InputError("inertial must have two rows without missing values at least")

    @property
    def disorder(self) -> int:
        """How many stamps are earlier than the one before them."""
        series = (self.inertial, self.angles, *self.loads.values())
        return sum(s.disorder for s in series)

    @property
    def gaps(self) -> Array:
        """Gaps (k, 2) of the inertial samples, begin and end in s."""
        times = self.inertial.complete.times
        steps = np.diff(times)
        late = np.flatnonzero(steps > _GAP * np.median(steps))
        return np.column_stack([times[late], times[late + 1]])

    def each(self, change: Callable[[Series], Series]) -> Readings:
        """The readings with all series changed."""
        loads = {name: change(load) for name, load in self.loads.items()}
        return Readings(change(self.inertial), change(self.angles), loads)

    def uniform(self) -> Readings:
        """The rows with the stamps of an even clock, see `uniform_stamps`."""

        def timed(series: Series) -> Series:
            ordered = series.sorted()
            return Series(uniform_stamps(ordered.times), ordered.values)

        return self.each(timed)

    def record(
        self,
        base: LeggedBase,
        contact: Hysteresis,
        *,
        standing: float = 0.0,
        ground: float | None = None,
    ) -> Record:
        """Make the record for the filter of a `BaseEstimator`.

        Args:
            base: Base, feet and noise.
            contact: Forces from which on, and down to which, a foot is in contact.
            standing: How long the robot stands still at the start, s.
            ground: Height of level ground in m, compared at each touchdown; None where unknown.

        Returns:
            The record.

        Raises:
            UnknownNameError: The robot does not have a foot.
            InputError: There are angles of another number of joints.
        """
        for name in self.loads:
            member("load of", name, base.feet)
        joints = base.kinematics.joints
        if self.angles.values.shape[1] != len(joints):
            raise InputError(
                f"angles must have {len(joints)} columns, those of the joints {joints}, got "
                f"{self.angles.values.shape[1]}"
            )
        start = self.inertial.complete.times[0]
        later = self.angles.times > start
        channels = {ANGLES: Series(self.angles.times[later], self.angles.values[later])}
        motion = FootMotion.of(base, channels[ANGLES])
        inputs = self._inputs(base, motion.window)
        still = find_rest(self.inertial.complete, self.angles.complete, start + standing)
        if len(still):
            channels[REST] = still
        touching = [np.zeros(0)]
        for name, given in self.loads.items():
            load = given.sorted()
            states = contact.states(load.values[:, 0])
            rows = np.flatnonzero(np.diff(states)) + 1
            channels[signal_name(name)] = Series(load.times[rows], load.values[rows])
            touching.append(load.times[rows[states[rows]]])
        if ground is not None:
            times = np.unique(np.concatenate(touching))
            channels[GROUND] = Series(times, np.full((len(times), 1), number("ground", ground)))
        return Record(channels, inputs)

    def standing(self, contact: Hysteresis) -> dict[str, bool]:
        """Whether each foot that has a force is in contact at the first row."""
        return {
            name: bool(contact.states(load.sorted().values[:, 0])[0])
            for name, load in self.loads.items()
        }

    def filled(self, weight: float | None) -> Readings:
        """The readings with forces in order.

        Where they share their stamps, and the weight is known, that of one foot that is missing is
        filled in, see `completed`.
        """
        loads = {name: load.sorted() for name, load in self.loads.items()}
        times = [load.times for load in loads.values()]
        shared = all(len(t) == len(times[0]) and (t == times[0]).all() for t in times)
        if weight is not None and len(loads) > 1 and shared:
            forces = np.column_stack([load.values for load in loads.values()])
            whole = completed(forces, number("weight", weight, above=0.0))
            loads = {name: Series(times[0], whole[:, k]) for k, name in enumerate(loads)}
        return replace(self, loads=loads)

    def settled(self, contact: Hysteresis, wait: float) -> Readings:
        """The readings with forces that let contacts begin `wait` s later than they do.

        Those of a contact that stands at the first row stay as they are.
        """
        loads = {}
        for name, load in self.loads.items():
            values = load.values.copy()
            for first, last in stretches(contact.states(values[:, 0])):
                rows = np.arange(first, last + 1 if first else first)
                early = rows[load.times[rows] < load.times[first] + wait - _ROUNDING]
                values[early] = np.minimum(values[early], contact.off)
            loads[name] = Series(load.times, values)
        return replace(self, loads=loads)

    def _inputs(self, base: LeggedBase, window: float) -> Series:
        """Make the rows of the input, see `system`.

        Args:
            base: Base and feet.
            window: Time over which velocities of feet are means, s.
        """
        inertial, angles = self.inertial.complete, self.angles.complete
        times = inertial.times
        steps = np.diff(times)
        gaps = np.append(np.where(steps > _GAP * np.median(steps), steps, 0.0), 0.0)
        means = inertial.values.copy()
        means[:-1] = 0.5 * (inertial.values[:-1] + inertial.values[1:])
        row = np.maximum(angles.times.searchsorted(times, "right") - 1, 0)
        held = angles.values[row]
        feet = [base.kinematics(values, base.feet) for values in angles.values]
        places = np.array([[foot.position for foot in seen] for seen in feet])
        turning = np.array([[foot.turning for foot in seen] for seen in feet])
        before = np.maximum(np.arange(len(places)) - 1, 0)
        first = np.minimum(angles.times.searchsorted(angles.times - window - _ROUNDING), before)
        lasted = np.maximum(angles.times - angles.times[first], _ROUNDING)
        moving = (places - places[first]) / lasted[:, None, None]
        mean = 0.5 * (turning[row[:-1]] + turning[row[1:]])
        spins = np.zeros((len(times), *places.shape[1:]))
        turned = np.einsum("nkij,nj->nki", mean, np.diff(held, axis=0))
        spins[:-1] = turned / np.maximum(steps, _ROUNDING)[:, None, None]
        of_feet = [spins, moving[row], np.zeros((len(times), len(base.feet)))]
        parts = [means, gaps[:, None], held, *(part.reshape(len(times), -1) for part in of_feet)]
        return Series(times, np.hstack(parts))


def step_time(contact: Hysteresis, loads: Iterable[Series]) -> float | None:
    """The time in s that a foot stands or swings by forces (n, 1), the median; None without any."""
    lasted = [np.zeros(0)]
    for load in loads:
        series = load.sorted()
        changed = np.flatnonzero(np.diff(contact.states(series.values[:, 0]).astype(int)))
        lasted.append(np.diff(series.times[changed]))
    every = np.concatenate(lasted)
    return float(np.median(every)) if len(every) else None


def stood(angles: Series) -> float:
    """How long a robot stands still at the start by its joint angles, s; 0 for one that walks."""
    known = angles.sorted()
    away = np.abs(known.values - known.values[0]).max(axis=1) > _STILL
    end = known.times[int(away.argmax()) if away.any() else -1] - known.times[0]
    least, most = _STANDS
    return 0.0 if end < least else min(float(end), most)


def signal_name(foot: str) -> str:
    """The name of the channel of the force of a foot."""
    return f"load {foot}"


def uniform_stamps(times: Array) -> Array:
    """Stamps (n,) in order, of samples that were taken evenly and arrived late by turns.

    Samples are numbered in the order of their stamps; where a gap is longer than three periods,
    those that fit in it are taken to be missing. The clock is the straight line through the stamps
    over the numbers, by least squares.
    """
    if len(times) < 3:
        return times
    steps = np.diff(times)
    period = float(np.median(steps))
    skipped = np.where(steps > _GAP * period, np.rint(steps / period), 1.0)
    numbers = np.concatenate([[0.0], np.cumsum(skipped)])
    slope, start = np.polyfit(numbers, times - times[0], 1)
    return np.asarray(times[0] + start + slope * numbers)


def stretches(flags: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First and last row of each stretch of rows that are true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(int)))
    return [(int(a), int(b) - 1) for a, b in edges.reshape(-1, 2)]
