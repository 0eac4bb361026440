r"""Delay of the inertial sensor against the joint angles, by feet that stand, before any filter.

Offsets are tried, and the one with the least residual of standing feet is found (`offset_costs`).

Its error has three parts: noise, by the jackknife over n blocks of time; ground that gives way,
which delays slow motion by another time than quick motion, so that windows of two lengths differ;
and a floor. Errors in deviations of a jackknife follow Student's t of n - 1 degrees of freedom,
whose variance is (n - 1) / (n - 3). The deviation includes this factor: 1.3 for the 6 blocks of a
log of 3.5 s. Gyroscope and accelerometer are averaged by their deviations, which grow where the two
contradict each other.

Vertical forces of a gait look alike after half of its period. Where feet stand in pairs, or flat,
the accelerometer therefore counts only if the rates do not contradict it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridctl.base.checks import Array
from hybridctl.base.time_series import Series
from hybridctl.legged.kinematics import LegKinematics
from hybridctl.legged.offset_costs import (
    FEWEST_BLOCKS,
    LARGEST_OFFSET,
    OFFSET_STEP,
    STRIDE_ROWS,
    OffsetCost,
    StanceResiduals,
    list_offsets,
)
from hybridctl.legged.readings import Readings, stood
from hybridctl.legged.stance import (
    FootPaths,
    choose_times,
    compute_paths,
    find_parabola_minimum,
    find_standing,
    interpolate,
    is_sampled,
)
from hybridctl.legged.wiring_stamps import check_stamps

WINDOWS = 4, 6
"""Grid steps T of the residuals, 40 and 60 ms. Of 28 simulated trots without an offset, 40 ms shows
.4 ms and 60 ms .5 ms; 30 and 70 ms show .5 and 1.1 ms, and steps have no time for more."""
FLOOR_DEVIATION = 3e-4
"""Deviation of the offset of a sensor that no log is better than, s: simulated trots without an
offset show up to .5 ms in all their blocks alike, by what contacts give way."""

EXPLAINED_SHARE = 0.5
"""Residual, as a share of what standing feet predict, up to which a sensor counts. Rates of sound
simulated trots have .02 to .6, so that a few say nothing, and forces 1e-3; other axes, signs or
units have more than 1."""
CONTRADICTED_SHARE = 1.0
"""Residual of the gyroscope, as the same share, from which on no sensor counts. It is 2 to 4 where
the inertial sensor is 150 or 200 ms late: a step of the gait, after which forces look alike."""
SIGNIFICANT_DEVIATIONS = 3.0
"""Deviations from which on an offset is compensated, and two sensors differ. A choice."""
LEAST_PERIODS = 0.25
"""Offset, in periods of the samples, from which on it is compensated: a smaller one is no larger
than the effect of interpolation."""
_LEAST_COST = 1e-300
"""Cost in place of zero in a denominator, where residuals vanish exactly."""


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
    """The offset of the inertial sensor against the joint angles, and its compensation.

    Attributes:
        gyroscope: Offset by rates; None where the log does not determine it, or it is given.
        accelerometer: Offset by vertical forces; None as that of the gyroscope.
        compensated: Time in s by which inertial samples are taken later; 0 for none.
        is_given: Whether `compensated` is the setting `time_offset`, and no offset was estimated.
    """

    gyroscope: SensorOffset | None
    accelerometer: SensorOffset | None
    compensated: float = 0.0
    is_given: bool = False

    @property
    def common(self) -> SensorOffset | None:
        """The offset of both sensors as one; None where the log determines neither.

        Where they significantly differ, its deviation is at least half of their difference.
        """
        g, a = self.gyroscope, self.accelerometer
        joined = join_offsets([s for s in (g, a) if s is not None])
        if joined is None or g is None or a is None or not self.has_contradiction:
            return joined
        # With few samples an impact, the accelerometer is 20 ms off with a deviation of 1 ms, so
        # that its weight in the mean is wrong.
        return SensorOffset(joined.value, max(joined.deviation, 0.5 * abs(g.value - a.value)))

    @property
    def has_contradiction(self) -> bool:
        """Whether gyroscope and accelerometer significantly differ.

        Filters inside the sensor do that, and ground that gives way slowly.
        """
        g, a = self.gyroscope, self.accelerometer
        if g is None or a is None:
            return False
        return abs(g.value - a.value) > SIGNIFICANT_DEVIATIONS * float(
            np.hypot(g.deviation, a.deviation)
        )

    @property
    def left(self) -> float | None:
        """How late the inertial sensor may still be after the compensation, as a deviation in s.

        None where the log does not determine it, or the offset is given.
        """
        common = self.common
        if common is None:
            return None
        return float(np.hypot(common.value - self.compensated, common.deviation))

    def __str__(self) -> str:
        """Return the offset and its compensation in words, as the end of a verdict."""
        common, late = self.common, self.compensated
        if self.is_given:
            return f"{_describe_late(late, '')}, as told by `time_offset`"
        if common is None:
            return "delay between inertial sensor and joints unknown"
        error = f" +- {1e3 * common.deviation:.1f}"
        if late:
            found = f"{_describe_late(late, error)}; compensated"
        elif abs(common.value) > SIGNIFICANT_DEVIATIONS * common.deviation:
            found = f"{_describe_late(common.value, error)}: too little to compensate"
        else:
            found = f"no delay of the inertial sensor seen ({1e3 * common.value:.1f}{error} ms)"
        if self.has_contradiction:
            parts = (("gyroscope", self.gyroscope), ("accelerometer", self.accelerometer))
            each = [
                f"{name} {1e3 * s.value:.1f} +- {1e3 * s.deviation:.1f} ms"
                for name, s in parts
                if s is not None
            ]
            found += f"; late by themselves: {', '.join(each)}"
        return found

    def record(self) -> dict[str, Any]:
        """Return the content of summary.json, in s."""
        parts = {"gyroscope": self.gyroscope, "accelerometer": self.accelerometer}
        common = self.common
        return {
            "offset": None if common is None else common.value,
            "deviation": None if common is None else common.deviation,
            **{name: None if s is None else s._asdict() for name, s in parts.items()},
            "compensated": self.compensated,
            "told": self.is_given,
        }


def _describe_late(late: float, error: str) -> str:
    """Return which sensor is late by how much: the inertial sensor, or the joints if negative."""
    who = "joints are" if late < 0.0 else "inertial sensor is"
    return f"{who} {1e3 * abs(late):.1f}{error} ms late"


def join_offsets(offsets: Sequence[SensorOffset]) -> SensorOffset | None:
    """Return the mean of offsets by their deviations; None without any.

    Where they contradict each other, the deviation grows by Birge's ratio, the root of chi-square
    per degree of freedom: one of them has an error that is no offset.

    Args:
        offsets: Offsets of sensors.
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
    """Return the delay of the inertial sensor, and what of it is to be compensated.

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
    if len(angles) < 2:  # there is no motion
        return TimeOffset(None, None)
    times = choose_times(angles, float(angles.times[0]) + stood(angles), inertial)
    if len(times) <= FEWEST_BLOCKS * STRIDE_ROWS:  # the jackknife would have too few blocks
        return TimeOffset(None, None)
    loads = {foot: load.complete_rows for foot, load in timed.loads.items()}
    standing = find_standing(kinematics, loads, times)
    # Between samples far apart the path of a foot is not known.
    standing[~is_sampled(angles.times, times, times)] = False
    if not standing.any():
        return TimeOffset(None, None)
    paths = compute_paths(kinematics, times, interpolate(angles, times))
    radii = np.array([kinematics.radii[foot] for foot in kinematics.feet])
    found = compare_with_stance(paths, standing, radii, inertial)
    period = max(float(np.median(np.diff(s.times))) for s in (inertial, angles))
    late = choose_compensation(found.common, LEAST_PERIODS * period)
    return replace(found, compensated=late)


def choose_compensation(found: SensorOffset | None, least: float) -> float:
    """Return the time in s by which inertial samples are to be taken later; 0 for none.

    Args:
        found: The offset; None where a log does not determine it.
        least: Offset from which on it is compensated, s.
    """
    if found is None or abs(found.value) <= max(least, SIGNIFICANT_DEVIATIONS * found.deviation):
        return 0.0
    return found.value


def compare_with_stance(
    paths: FootPaths, standing: NDArray[np.bool_], radii: Array, inertial: Series
) -> TimeOffset:
    """Return the offsets with the least residuals of standing feet; nothing is compensated.

    Args:
        paths: Paths of k feet at n times.
        standing: Whether each foot stands (n, k).
        radii: Radii (k,) with which feet roll, m.
        inertial: Inertial samples, in order, without missing values.

    Returns:
        The offset of each sensor; None for one whose residuals are too large or contradict rates.
    """
    stance = StanceResiduals(paths, standing, radii, inertial)
    rates = [stance.compute_rate_cost(window) for window in WINDOWS]
    if all(cost is None for cost in rates):  # feet never stand in pairs, nor flat
        return TimeOffset(None, _find_force_offset(stance, 0.0))
    by_rates = find_least_offset(rates)
    # An offset by forces alone may be a step of the gait away from the true one.
    if by_rates is None or not _is_share_below(rates, CONTRADICTED_SHARE):
        return TimeOffset(None, None)
    # Axes of the forces are those of the gyroscope, at its own offset.
    accelerometer = _find_force_offset(stance, by_rates.value)
    if _is_share_below(rates, EXPLAINED_SHARE):
        return TimeOffset(by_rates, accelerometer)
    # Rates that explain less determine no offset of their own, but must not contradict the forces.
    both = TimeOffset(by_rates, accelerometer)
    return TimeOffset(None, None if both.has_contradiction else accelerometer)


def _find_force_offset(stance: StanceResiduals, late: float) -> SensorOffset | None:
    """Return the offset of the accelerometer; None where forces do not determine it.

    Args:
        stance: Residuals of the log.
        late: Offset of the gyroscope, s.
    """
    costs = [stance.compute_force_cost(window, late) for window in WINDOWS]
    return find_least_offset(costs) if _is_share_below(costs, EXPLAINED_SHARE) else None


def _is_share_below(costs: Sequence[OffsetCost | None], limit: float) -> bool:
    """Return whether the residuals for all windows have a share of less than a limit."""
    return all(cost is not None and cost.share < limit for cost in costs)


def find_least_offset(costs: Sequence[OffsetCost | None]) -> SensorOffset | None:
    """Return the offset with the least costs for several windows, with its deviation.

    Args:
        costs: Costs for windows of several lengths; None for those with too few rows.

    Returns:
        The offset; None where a window has too few rows, because the difference of windows is a
        part of the deviation, or where the minimum lies at the edge of what is tried.
    """
    known = [cost for cost in costs if cost is not None]
    if len(known) < len(costs):
        return None
    of_windows = [_find_minimum(cost.blocks.sum(axis=1)) for cost in known]
    normalised = np.sum(
        [cost.blocks / max(cost.blocks.sum(axis=1).min(), _LEAST_COST) for cost in known], axis=0
    )
    total = normalised.sum(axis=1)
    value = _find_minimum(total)
    used = np.flatnonzero(normalised[0] > 0.0)
    n = len(used)
    if abs(value) > LARGEST_OFFSET - OFFSET_STEP or n < FEWEST_BLOCKS:
        return None
    without = np.array([_find_minimum(total - normalised[:, b]) for b in used])
    jackknife = (n - 1) / n * float(np.square(without - without.mean()).sum())
    student = (n - 1) / (n - 3)  # variance of Student's t of n - 1 degrees of freedom
    ground = np.ptp(of_windows) / 2.0
    return SensorOffset(value, float(np.sqrt(student * jackknife + ground**2 + FLOOR_DEVIATION**2)))


def _find_minimum(costs: Array) -> float:
    """Return the offset in s at the minimum of costs (m,) at the offsets that are tried."""
    return find_parabola_minimum(list_offsets(), costs, OFFSET_STEP)
