r"""How late the inertial sensor is against the joint angles, by feet that stand, before any filter.

Standing feet predict what the inertial sensor measures. With the position s of a foot in the
inertial frame, the difference d of two of them, and a window T,

.. math:: \dot d - \rho + \omega \times d = 0, \qquad
          n^T \frac{y(t + T) - 2 y(t) + y(t - T)}{T^2} = -n^T \bar f + \text{const}, \quad y = R s,

where :math:`\rho` is by how fast the feet roll apart, n points up, and the mean
:math:`\bar f` of the specific force in axes of the world has triangular weights over the time from
t - T to t + T, so that both sides are exact. The first is about the gyroscope, the second about the
accelerometer. Only its vertical part is used: horizontally feet roll and slip, and gravity leaks in
with any error of tilt. The constant, of half a second each, holds gravity and bias.

Sums of squares of these residuals are minimal where inertial samples are taken at t + offset. All
offsets are compared on the same rows: those that have inertial samples at every offset tried.

An error of the offset has three parts: noise, by the jackknife over n blocks of time; ground that
gives way, which delays slow motion by another time than quick motion, so that windows of two
lengths differ; and a floor. Errors in deviations of a jackknife follow Student's t of n - 1 degrees
of freedom, whose variance is (n - 1) / (n - 3). The deviation includes this factor: 1.3 for the 6
blocks of a log of 3.5 s. Gyroscope and accelerometer are taken together by their deviations, which
grow by what they contradict each other.

Vertical forces of a gait look alike after half of its period. Where feet stand in pairs, or flat,
the accelerometer therefore counts only if the rates do not contradict it.

To compensate, inertial samples are taken at later times by linear interpolation, and keep their
stamps: the pose is that at the stamps of the joints. Multiples of the period are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PPoly
from scipy.spatial.transform import Rotation, Slerp

from hybridctl.base.checks import Array
from hybridctl.base.time_series import Series
from hybridctl.legged.kinematics import LegKinematics
from hybridctl.legged.readings import Readings, stood, stretches
from hybridctl.legged.stance import (
    EARLY,
    GRID,
    LATE,
    FootPaths,
    choose_times,
    compute_paths,
    interpolate,
    is_sampled,
)
from hybridctl.legged.wiring import find_standing
from hybridctl.legged.wiring_signals import check_stamps

WINDOWS = 4, 6
"""Grid steps T of the residuals, 40 and 60 ms. Of 28 simulated trots without an offset, 40 ms shows
.4 ms and 60 ms .5 ms; 30 and 70 ms show .5 and 1.1 ms, and steps have no time for more."""
LARGEST, STEP = 0.06, 5e-3
"""Range and step of offsets that are tried, s: a trot of 0.4 s looks alike after half of that."""
BLOCK = 50
"""Grid rows of a block, half a second: a stride and more, so that blocks are independent."""
FEWEST_BLOCKS = 6
"""Blocks from which on their jackknife says something: 3 s of walking."""
FLOOR = 3e-4
"""Deviation of the offset of a sensor that no log is better than, s: simulated trots without an
offset show up to .5 ms in all their blocks alike, by what contacts give way."""
EXPLAINED = 0.5
"""Residual, as a share of what standing feet predict, up to which a sensor counts. Rates of sound
simulated trots have .02 to .6, so that a few say nothing, and forces 1e-3; other axes, signs or
units have more than 1."""
CONTRADICTED = 1.0
"""The same of the gyroscope from which on nothing is believed. It has 2 to 4 where the inertial
sensor is 150 or 200 ms late, a step of the gait by which vertical forces look alike."""
SIGNIFICANT = 3.0
"""Deviations from which on an offset is compensated."""
LEAST_SHARE = 0.25
"""Offset, in periods of the samples, from which on it is compensated: less is as small as what
interpolation does."""


class SensorOffset(NamedTuple):
    """How late a sensor is against the joint angles.

    Attributes:
        value: Time by which its samples are stamped too late, s; negative where joints are late.
        deviation: Standard deviation, s.
    """

    value: float
    deviation: float


@dataclass(frozen=True)
class TimeOffset:
    """The offset of the inertial sensor against the joint angles, and what is compensated.

    Attributes:
        gyroscope: By rates; None where the log does not say.
        accelerometer: By vertical forces; None where the log does not say.
        compensated: Time in s by which inertial samples are taken later.
        told: Whether `compensated` is told by the settings, and nothing was looked for.
    """

    gyroscope: SensorOffset | None
    accelerometer: SensorOffset | None
    compensated: float = 0.0
    told: bool = False

    @property
    def common(self) -> SensorOffset | None:
        """The offset of both sensors as one; None where the log does not say.

        Where they significantly differ, its deviation is half of what they differ by at least.
        """
        g, a = self.gyroscope, self.accelerometer
        joined = join_offsets([s for s in (g, a) if s is not None])
        if joined is None or g is None or a is None or not self.differs:
            return joined
        # Impacts that few samples meet put the accelerometer 20 ms off with a deviation of 1 ms,
        # and its weight is that of a wrong deviation.
        return SensorOffset(joined.value, max(joined.deviation, 0.5 * abs(g.value - a.value)))

    @property
    def differs(self) -> bool:
        """Whether gyroscope and accelerometer significantly differ.

        Filters inside the sensor do that, and ground that gives way slowly.
        """
        g, a = self.gyroscope, self.accelerometer
        if g is None or a is None:
            return False
        return abs(g.value - a.value) > SIGNIFICANT * float(np.hypot(g.deviation, a.deviation))

    def __str__(self) -> str:
        """Return what was found and done, as the end of a verdict."""
        common, late = self.common, self.compensated
        if self.told:
            return f"{_describe_late(late, '')}, as told by `time_offset`"
        if common is None:
            return "delay between inertial sensor and joints unknown"
        error = f" +- {1e3 * common.deviation:.1f}"
        if late:
            found = f"{_describe_late(late, error)}; compensated"
        elif abs(common.value) > SIGNIFICANT * common.deviation:
            found = f"{_describe_late(common.value, error)}: too little to compensate"
        else:
            found = f"no delay of the inertial sensor seen ({1e3 * common.value:.1f}{error} ms)"
        if self.differs:
            parts = (("gyroscope", self.gyroscope), ("accelerometer", self.accelerometer))
            each = [
                f"{name} {1e3 * s.value:.1f} +- {1e3 * s.deviation:.1f} ms"
                for name, s in parts
                if s is not None
            ]
            found += f"; late by themselves: {', '.join(each)}"
        return found

    def record(self) -> dict[str, Any]:
        """Return what summary.json holds, in s."""
        parts = {"gyroscope": self.gyroscope, "accelerometer": self.accelerometer}
        common = self.common
        return {
            "offset": None if common is None else common.value,
            "deviation": None if common is None else common.deviation,
            **{name: None if s is None else s._asdict() for name, s in parts.items()},
            "compensated": self.compensated,
            "told": self.told,
        }


def _describe_late(late: float, error: str) -> str:
    """Return which sensor is late by how much: the inertial sensor, or the joints if negative."""
    who = "joints are" if late < 0.0 else "inertial sensor is"
    return f"{who} {1e3 * abs(late):.1f}{error} ms late"


def join_offsets(offsets: Sequence[SensorOffset]) -> SensorOffset | None:
    """Return the mean of offsets by their deviations; None without any.

    Where they contradict each other, the deviation grows by Birge's ratio, the root of chi-square
    per degree of freedom: something else than an offset is in one of them.
    """
    if not offsets:
        return None
    values, deviations = np.array(offsets).T
    weights = deviations**-2
    mean = float(weights @ values / weights.sum())
    degrees = max(len(offsets) - 1, 1)
    ratio = float(weights @ (values - mean) ** 2) / degrees
    return SensorOffset(mean, float(np.sqrt(max(ratio, 1.0) / weights.sum())))


def find_time_offset(kinematics: LegKinematics, readings: Readings) -> TimeOffset:
    """Find how late the inertial sensor is, and what of it is to be compensated.

    Args:
        kinematics: Kinematics of the legs.
        readings: Readings as recorded; stamps are taken as those of an even clock.

    Returns:
        The offsets. Both sensors are compensated by their common offset where it is significant.
    """
    if check_stamps(readings):  # on a wrong clock nothing else means anything
        return TimeOffset(None, None)
    timed = readings.uniform()
    inertial, angles = timed.inertial.complete_rows, timed.angles.complete_rows
    if len(angles) < 2:
        return TimeOffset(None, None)
    times = choose_times(angles, float(angles.times[0]) + stood(angles), inertial)
    if len(times) <= FEWEST_BLOCKS * BLOCK:
        return TimeOffset(None, None)
    loads = {foot: load.complete_rows for foot, load in timed.loads.items()}
    standing = find_standing(kinematics, loads, times)
    # Between samples far apart the path of a foot is a guess, however surely it stands.
    standing[~is_sampled(angles.times, times, times)] = False
    if not standing.any():
        return TimeOffset(None, None)
    paths = compute_paths(kinematics, times, interpolate(angles, times))
    radii = np.array([kinematics.radii[foot] for foot in kinematics.feet])
    found = compare_with_stance(paths, standing, radii, inertial)
    period = max(float(np.median(np.diff(s.times))) for s in (inertial, angles))
    late = choose_compensation(found.common, LEAST_SHARE * period)
    return replace(found, compensated=late)


def compare_with_stance(
    paths: FootPaths, standing: NDArray[np.bool_], radii: Array, inertial: Series
) -> TimeOffset:
    """Return the offsets that make standing feet stand; nothing is compensated.

    Args:
        paths: Paths of k feet at n times.
        standing: Whether each foot stands (n, k).
        radii: Radii (k,) with which feet roll, m.
        inertial: Inertial samples, in order, without missing values.

    Returns:
        The offset of each sensor; None for one whose residuals say nothing or contradict rates.
    """
    stance = _Stance(paths, standing, radii, inertial)
    rates = [stance.cost_of_rates(window) for window in WINDOWS]
    if all(cost is None for cost in rates):  # feet never stand in pairs, nor flat
        return TimeOffset(None, stance.find_force_offset(0.0))
    by_rates = _find_offset(rates)
    # An offset by forces alone may be a step of the gait away from the true one.
    if by_rates is None or not _is_share_below(rates, CONTRADICTED):
        return TimeOffset(None, None)
    # Axes of the forces are those of the gyroscope, at its own offset.
    accelerometer = stance.find_force_offset(by_rates.value)
    if _is_share_below(rates, EXPLAINED):
        return TimeOffset(by_rates, accelerometer)
    # Rates that explain less say no offset of their own, but forces must have the same.
    alike = accelerometer is not None and not TimeOffset(by_rates, accelerometer).differs
    return TimeOffset(None, accelerometer if alike else None)


def choose_compensation(found: SensorOffset | None, least: float) -> float:
    """Return the time in s by which inertial samples are to be taken later; 0 for none.

    Args:
        found: The offset; None where a log does not say.
        least: Offset from which on it is compensated, s.
    """
    if found is None or abs(found.value) <= max(least, SIGNIFICANT * found.deviation):
        return 0.0
    return found.value


def align_inertial(readings: Readings, late: float) -> Readings:
    """Return readings whose inertial samples are not late any more.

    Args:
        readings: Readings.
        late: Time in s by which inertial samples are stamped too late.

    Returns:
        The readings, over the time in which there are inertial samples then.
    """
    if not late:
        return readings
    known = readings.inertial.complete_rows
    t = known.times
    kept = t[(t + late >= t[0]) & (t + late <= t[-1])]
    if len(kept) < 2:
        return readings
    columns = [np.interp(kept + late, t, column) for column in known.values.T]
    inside = readings.each(lambda s: s.select_rows((s.times >= kept[0]) & (s.times <= kept[-1])))
    return replace(inside, inertial=Series(kept, np.column_stack(columns)))


class InertialAlignment:
    """Aligns inertial samples one by one, with the numbers of `align_inertial`.

    Life cycle: `add` is called with each sample in order of the stamps. It keeps the stamps that
    wait for later samples, and the samples that they need.
    """

    def __init__(self, late: float) -> None:
        """Begin without samples.

        Args:
            late: Time in s by which inertial samples are stamped too late.
        """
        self._late = late
        self._known = list[tuple[float, Array]]()  # from the last before the next stamp needed on
        self._waiting = list[float]()

    def add(self, time: float, values: Array) -> list[tuple[float, Array]]:
        """Take a sample, and return the stamps that are complete now, with their values.

        Args:
            time: Stamp in s, after the last one.
            values: Rate and specific force (6,).

        Returns:
            Stamps with values (6,); a stamp that moves to before the first sample is left out.
        """
        self._known.append((time, values))
        self._waiting.append(time)
        found = list[tuple[float, Array]]()
        while self._waiting and self._waiting[0] + self._late <= time:
            stamp = self._waiting.pop(0)
            wanted = stamp + self._late
            while len(self._known) > 2 and self._known[1][0] <= wanted:
                self._known.pop(0)
            times = np.array([t for t, _ in self._known])
            if wanted >= times[0]:
                columns = np.array([v for _, v in self._known]).T
                found.append((stamp, np.array([np.interp(wanted, times, c) for c in columns])))
        return found


def offsets_tried() -> Array:
    """Return the offsets (m,) that are tried, s."""
    return np.asarray(STEP * np.arange(-round(LARGEST / STEP), round(LARGEST / STEP) + 1.0))


class _Cost(NamedTuple):
    """Sums of squared residuals.

    Attributes:
        blocks: Sums (m, k) for m offsets over k blocks of time.
        without: The sum without the sensor, whose samples are taken to be constant.
    """

    blocks: Array
    without: float

    @property
    def share(self) -> float:
        """The least sum relative to that without the sensor."""
        return float(self.blocks.sum(axis=1).min() / max(self.without, 1e-300))


class _Stance:
    """Residuals of standing feet against the inertial sensor.

    Args:
        paths: Paths of k feet at n times.
        standing: Whether each foot stands (n, k).
        radii: Radii (k,) with which feet roll, m.
        inertial: Inertial samples, in order, without missing values.
    """

    def __init__(
        self, paths: FootPaths, standing: NDArray[np.bool_], radii: Array, inertial: Series
    ) -> None:
        self._paths, self._standing = paths, standing
        times, beyond = paths.times, LARGEST + GRID
        near = (inertial.times >= times[0] - beyond) & (inertial.times <= times[-1] + beyond)
        sensor = inertial.select_rows(near)
        self._sensor = sensor.select_rows(np.append(np.diff(sensor.times) > 0.0, True))
        self._blocks = np.arange(len(times)) // BLOCK
        self._rolled = _roll_feet(paths, radii, self._sensor.values[:, 3:].mean(axis=0))
        t, rates = self._sensor.times, self._sensor.values[:, :3]
        self._turned = _interpolate_linearly(t, rates).antiderivative()
        self._axes = _integrate_rates(t, rates)

    def cost_of_rates(self, window: int) -> _Cost | None:
        """Return the cost of the gyroscope's offset by feet that do not move against each other.

        Args:
            window: Grid steps over which rates are means.

        Returns:
            The cost, without a constant bias of the gyroscope; None where too few feet stand.
        """
        a, b, begin = self._stack_pairs(window)
        if not self._is_enough(self._blocks[begin]):
            return None
        known = np.linalg.pinv(np.einsum("nij,nik->jk", a, a), rcond=1e-6)

        def sum_squares(mean: Array | None) -> Array:
            r = b if mean is None else np.einsum("nij,nj->ni", a, mean[begin]) + b
            r = r - a @ (known @ np.einsum("nij,ni->j", a, r))
            return self._sum_blocks(self._blocks[begin], (r**2).sum(axis=1))

        costs = []
        for late in offsets_tried().tolist():
            turned = self._turned(self._clip_times(self._paths.times + late))
            costs.append(sum_squares((turned[window:] - turned[:-window]) / (window * GRID)))
        return _Cost(np.array(costs), float(sum_squares(None).sum()))

    def _stack_pairs(self, window: int) -> tuple[Array, Array, NDArray[np.intp]]:
        """Return rows A w + b = 0 of the mean rate w, and the grid rows at which they begin.

        Pairs of feet that stand through the window do not move against each other; a flat foot does
        not turn, and counts as a point at the mean distance of the feet.
        """
        p, c = self._paths.positions, self._paths.rotations
        inner = self._find_stances(window)
        span, arms = window * GRID, list[float]()
        a, b = [np.zeros((0, 3, 3))], [np.zeros((0, 3))]
        begins = [np.zeros(0, int)]
        for i, j in combinations(range(p.shape[1]), 2):
            d, rolled = p[:, i] - p[:, j], self._rolled[:, i] - self._rolled[:, j]
            k = np.flatnonzero(inner[:, i] & inner[:, j])
            total = np.cumsum(np.vstack([np.zeros(3), 0.5 * (d[1:] + d[:-1])]), axis=0)
            a.append(-_skew((total[k + window] - total[k]) / window))
            b.append((d - rolled)[k + window] / span - (d - rolled)[k] / span)
            begins.append(k)
            arms.append(float(np.linalg.norm(d, axis=1).mean()))
        arm = float(np.mean(arms)) if arms else 1.0
        for i in np.flatnonzero(self._paths.flat).tolist():
            k = np.flatnonzero(inner[:, i])
            if len(k):
                turn = c[k, i] @ np.swapaxes(c[k + window, i], 1, 2)
                a.append(np.tile(arm * np.eye(3), (len(k), 1, 1)))
                b.append(-arm / span * Rotation.from_matrix(turn).as_rotvec())
                begins.append(k)
        return np.concatenate(a), np.concatenate(b), np.concatenate(begins)

    def find_force_offset(self, late: float) -> SensorOffset | None:
        """Return the offset of the accelerometer; None where forces do not say it.

        Args:
            late: Offset of the gyroscope, s.
        """
        costs = [self.cost_of_forces(window, late) for window in WINDOWS]
        return _find_offset(costs) if _is_share_below(costs, EXPLAINED) else None

    def _find_stances(self, window: int) -> NDArray[np.bool_]:
        """Return whether feet (m, k) stand through the window from each of m grid rows on.

        Windows without inertial samples at some of the offsets tried are left out. Otherwise the
        last sample would stand for all later ones, and make residuals of 100 m/s^2 at offsets of
        one sign alone.

        Args:
            window: Grid steps of the window.
        """
        times = self._paths.times
        first, last = times[: len(times) - window] - LARGEST, times[window:] + LARGEST
        sampled = is_sampled(self._sensor.times, first, last)
        return _erode(self._standing, window)[: len(times) - window] & sampled[:, None]

    def cost_of_forces(self, window: int, late: float) -> _Cost | None:
        """Return the cost of the accelerometer's offset by the vertical motion over standing feet.

        Args:
            window: Grid steps T of the second differences.
            late: Offset of the gyroscope, s.

        Returns:
            The cost; None where too few feet stand.
        """
        times, span = self._paths.times, window * GRID
        t, forces = self._sensor.times, self._sensor.values[:, 3:]
        world = np.einsum("nij,nj->ni", self._axes, forces)
        moved = _interpolate_linearly(t, world).antiderivative(2)
        ups = self._find_up(t, world)
        axes = Slerp(t, Rotation.from_matrix(self._axes))(self._clip_times(times + late))
        feet = np.einsum("nij,nkj->nki", axes.as_matrix(), self._paths.positions)
        inner = self._find_stances(2 * window)
        count = inner.sum(axis=1)
        k = np.flatnonzero(count)
        blocks, weights = self._blocks[k + window], count[k].astype(float)
        if not self._is_enough(blocks):
            return None
        each = -_second_differences(feet, window) / span**2
        mean = np.where(inner[..., None], each, 0.0).sum(axis=1)[k] / weights[:, None]
        predicted = (mean * ups[blocks]).sum(axis=1)
        sizes = np.maximum(self._sum_blocks(blocks, weights), 1.0)

        def sum_squares(e: Array) -> Array:
            e = e - (self._sum_blocks(blocks, weights * e) / sizes)[blocks]
            return self._sum_blocks(blocks, weights * e**2)

        costs = []
        for offset in offsets_tried().tolist():
            seen = _second_differences(moved(self._clip_times(times + offset)), window)[k] / span**2
            costs.append(sum_squares((seen * ups[blocks]).sum(axis=1) - predicted))
        return _Cost(np.array(costs), float(sum_squares(-predicted).sum()))

    def _find_up(self, times: Array, world: Array) -> Array:
        """Return the direction (b, 3) up in each block: that of the mean force (n, 3) in it."""
        grid = np.clip(self._paths.times.searchsorted(times) - 1, 0, len(self._blocks) - 1)
        blocks = self._blocks[grid]
        sums = np.column_stack([self._sum_blocks(blocks, column) for column in world.T])
        sizes = np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
        return np.asarray(sums / sizes)

    def _clip_times(self, times: Array) -> Array:
        """Return times (n,) in s, moved to the first or last sample where they lie outside."""
        return np.clip(times, self._sensor.times[0], self._sensor.times[-1])

    def _sum_blocks(self, blocks: NDArray[np.intp], values: Array) -> Array:
        """Return the sums of values over blocks."""
        sums: Array = np.bincount(blocks, values, int(self._blocks[-1]) + 1).astype(float)
        return sums

    @staticmethod
    def _is_enough(blocks: NDArray[np.intp]) -> bool:
        """Return whether rows lie in enough blocks."""
        return len(np.unique(blocks)) >= FEWEST_BLOCKS


def _is_share_below(costs: Sequence[_Cost | None], limit: float) -> bool:
    """Return whether the residuals for all windows have a share of less than a limit."""
    return all(cost is not None and cost.share < limit for cost in costs)


def _find_offset(costs: Sequence[_Cost | None]) -> SensorOffset | None:
    """Return the offset that makes costs for several windows minimal, with its deviation.

    Args:
        costs: Costs for windows of several lengths; None for those with too few rows.

    Returns:
        The offset; None where a window has too few rows, because the difference of windows is a
        part of the deviation, or where the minimum lies at the edge of what is tried.
    """
    known = [cost for cost in costs if cost is not None]
    if len(known) < len(costs):
        return None
    each = [_find_minimum(cost.blocks.sum(axis=1)) for cost in known]
    normalised = np.sum(
        [cost.blocks / max(cost.blocks.sum(axis=1).min(), 1e-300) for cost in known], axis=0
    )
    whole = normalised.sum(axis=1)
    value = _find_minimum(whole)
    used = np.flatnonzero(normalised[0] > 0.0)
    n = len(used)
    if abs(value) > LARGEST - STEP or n < FEWEST_BLOCKS:
        return None
    without = np.array([_find_minimum(whole - normalised[:, b]) for b in used])
    jackknife = (n - 1) / n * float(np.square(without - without.mean()).sum())
    student = (n - 1) / (n - 3)  # variance of Student's t of n - 1 degrees of freedom
    ground = np.ptp(each) / 2.0
    return SensorOffset(value, float(np.sqrt(student * jackknife + ground**2 + FLOOR**2)))


def _find_minimum(costs: Array) -> float:
    """Return the offset in s at the minimum of the parabola through the lowest of costs (m,)."""
    k = int(np.clip(np.argmin(costs), 1, len(costs) - 2))
    low, least, high = costs[k - 1 : k + 2]
    bend = low - 2.0 * least + high
    shift = 0.5 * (low - high) / bend if bend > 0.0 else 0.0
    return float(offsets_tried()[k] + STEP * np.clip(shift, -1.0, 1.0))


def _erode(standing: NDArray[np.bool_], window: int) -> NDArray[np.bool_]:
    """Return whether feet (n, k) stand from each row on for a window.

    The first and last rows of a contact are left out, see `EARLY`.
    """
    found = np.zeros_like(standing)
    for foot in range(standing.shape[1]):
        for first, last in stretches(standing[:, foot]):
            begin = first + EARLY if first else first
            end = last - LATE if last < len(standing) - 1 else last
            found[begin : max(end - window + 1, begin), foot] = True
    return found


def _roll_feet(paths: FootPaths, radii: Array, up: Array) -> Array:
    """Return how far legs roll their feet (n, k, 3) along the ground, m, in the inertial frame.

    Args:
        paths: Paths of the feet.
        radii: Radii (k,), m.
        up: Any vector (3,) upwards.
    """
    c = paths.rotations
    turns = (c[1:] @ np.swapaxes(c[:-1], 2, 3)).reshape(-1, 3, 3)
    steps = Rotation.from_matrix(turns).as_rotvec().reshape(len(c) - 1, -1, 3)
    rolls = radii[:, None] * np.cross(steps, up / np.linalg.norm(up))
    return np.concatenate([np.zeros((1, len(radii), 3)), np.cumsum(rolls, axis=0)])


def _integrate_rates(times: Array, rates: Array) -> Array:
    """Return the axes (n, 3, 3) of a frame that turns at rates (n, 3), the first the identity."""
    steps = np.diff(times)[:, None] * 0.5 * (rates[1:] + rates[:-1])
    axes = [np.eye(3)]
    for turn in Rotation.from_rotvec(steps).as_matrix():
        axes.append(axes[-1] @ turn)
    return np.array(axes)


def _interpolate_linearly(times: Array, values: Array) -> PPoly:
    """Return the piecewise linear function through values (n, m) at times (n,)."""
    slopes = np.diff(values, axis=0) / np.diff(times)[:, None]
    return PPoly(np.array([slopes, values[:-1]]), times)


def _second_differences(values: Array, window: int) -> Array:
    """Return x(k + 2 w) - 2 x(k + w) + x(k) of values (n, ...)."""
    return np.asarray(values[2 * window :] - 2.0 * values[window:-window] + values[: -2 * window])


def _skew(vectors: Array) -> Array:
    """Return the cross-product matrices (n, 3, 3) of vectors (n, 3)."""
    return np.asarray(np.cross(vectors[:, None, :], np.eye(3)).transpose(0, 2, 1))
