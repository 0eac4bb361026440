"""Wiring mistakes that single channels show: stamps, units of angles, gravity, sums of forces.

Nothing here needs standing feet, so that logs of standing robots are checked as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations, permutations, product

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.time_series import Series
from hybridctl.legged.readings import Readings

GYROSCOPE, ACCELEROMETER = "gyroscope", "accelerometer"
INERTIAL, ANGLES, FORCES = "inertial sensor", "joint angles", "forces"
NEGATIVE = "have the wrong sign"
"""Cause of a fault of forces that point down."""
STANDARD_GRAVITY = 9.80665
"""Acceleration of one g, m/s^2, by which sensors in g are scaled."""

_LONGEST_PERIOD, _SHORTEST_PERIOD = 0.4, 5e-5
"""Periods of samples of a legged robot, s: sensors of 2.5 Hz do not balance one, none has 20 kHz.
Stamps in ms are farther apart than that at up to 2.5 kHz."""
_USUAL_PERIOD = 2e-4, 0.05
"""Periods that a unit of the stamps must lead to, s."""
_TIME_UNITS = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_SAME_STAMPS = 0.5
"""Share of steps between stamps that are zero, from which on they tell no time. Half of them are
zero where each row was written twice, which `Log` mends."""
_JUMP = 1e3
"""Step between two stamps, relative to the time that all others take together, that is no gap."""
_FEWEST_SHARED = 0.5
"""Share of the shorter of two channels that lies in the time of the other."""

_GONE = 0.3
"""Mean specific force, as a share of gravity, below which gravity is not in it. A robot that lies
on its side still measures all of it."""
_GRAVITY_OFF = 0.7
"""Deviation of the mean specific force from gravity that is named, m/s^2. A bias of 0.3, ten times
what the filter expects, stays below it, as do recorded logs (0.02 and 0.11)."""
_UNIT_OFF = 0.1
"""Relative deviation from a known ratio of units at which it still counts as that ratio."""
TILTED = 50.0
"""Angle between measured gravity and the side on which the feet are, deg. Slopes and crouching
stay below 30; the smallest mistake of axes is 90."""

_TURN = 2.0 * np.pi
"""Median size of a joint angle, rad, that no leg has: larger angles are degrees."""

_FORCE_UNITS = {
    "kgf (factor 9.81)": 1.0 / STANDARD_GRAVITY,
    "lbf (factor 4.45)": 1.0 / 4.448,
    "g (factor 9.81e-3)": 1e3 / STANDARD_GRAVITY,
    "mN (factor 1e-3)": 1e3,
    "kN (factor 1e3)": 1e-3,
}
_FORCE_UNIT_OFF = 0.35
"""Relative deviation of the mean force from a unit's ratio at which it still counts as that. A
recorded humanoid bears 1.2 times the weight of its description, a payload adds as much. Other
ratios are not named: feet of cheap sensors read up to 7 times the weight, and only contact
counts."""
_DRIFT = 0.3
"""Change of a force in flight over a log, relative to its range within a step, that is drift."""
_STEP_WINDOW = 1.0
"""Time in s that holds at least one step of a walking robot; of slow humanoids, 2 s a step, every
second window holds none and is left out."""
_STUCK = 1e-6
"""Change of a force, relative to its size or to the weight, that is none."""
_FEWEST_WINDOWS = 4
"""Windows with steps from which on drift is looked for."""


@dataclass(frozen=True)
class WiringFault:
    """A wiring mistake.

    Attributes:
        channel: Channel that is wrong.
        cause: What is wrong, as the end of a sentence about the channel.
        remedy: What to change.
        evidence: Numbers by which it was found.
    """

    channel: str
    cause: str
    remedy: str
    evidence: str

    def __str__(self) -> str:
        """Return the fault as one sentence."""
        return f"{self.channel} {self.cause}: {self.remedy} ({self.evidence})"


def check_stamps(readings: Readings) -> tuple[WiringFault, ...]:
    """Return faults of stamps: none that tells time, a jump, a unit, clocks apart."""
    channels = {INERTIAL: readings.inertial, ANGLES: readings.angles}
    channels |= {f"force of {foot!r}": load for foot, load in readings.loads.items()}
    channels = {name: series for name, series in channels.items() if len(series) > 1}
    found = [fault for name, series in channels.items() for fault in _check_clock(name, series)]
    if len(found) == len(channels) and len({fault.cause for fault in found}) == 1:
        return (replace(found[0], channel="stamps of all channels"),)
    return tuple(found) or _check_clocks_apart(channels)


def _check_clock(name: str, series: Series) -> list[WiringFault]:
    """Return faults of the stamps of one channel."""
    times = np.sort(series.times)
    steps = np.diff(times)
    same = float((steps == 0.0).mean())
    if same > _SAME_STAMPS:
        return [
            WiringFault(
                f"stamps of {name}",
                "do not advance",
                "take another field as `time`, or `time: {rate: ...}` in the mapping",
                f"{100.0 * same:.0f} % of them equal the one before, the first is {times[0]:g} s",
            )
        ]
    rest = float(steps.sum() - steps.max())
    if steps.max() > _JUMP * max(rest, float(np.median(steps))):
        k = int(steps.argmax())
        return [
            WiringFault(
                f"stamps of {name}",
                f"jump by {steps.max():.3g} s",
                f"leave out the {min(k + 1, len(steps) - k)} rows that were not stamped",
                f"{times[k]:g} s is followed by {times[k + 1]:.9g} s",
            )
        ]
    period = float(np.median(steps[steps > 0.0]))
    factors = _TIME_UNITS if period > _LONGEST_PERIOD else {}
    if period < _SHORTEST_PERIOD:
        factors = {
            f"{unit} that were taken for s twice": 1.0 / f for unit, f in _TIME_UNITS.items()
        }
    low, high = _USUAL_PERIOD
    for unit, factor in factors.items():
        if low <= factor * period <= high:
            return [
                WiringFault(
                    f"stamps of {name}",
                    f"look like {unit}",
                    f"multiply them by {factor:g}, by `time: {{unit: {unit.split()[0]}}}`",
                    f"samples are {period:.3g} s apart, then {1e3 * factor * period:.3g} ms",
                )
            ]
    return []


def _check_clocks_apart(channels: Mapping[str, Series]) -> tuple[WiringFault, ...]:
    """Return the fault of the first two channels that share little time."""
    for (one, a), (other, b) in combinations(channels.items(), 2):
        a0, a1, b0, b1 = a.times.min(), a.times.max(), b.times.min(), b.times.max()
        shared, shorter = min(a1, b1) - max(a0, b0), min(a1 - a0, b1 - b0)
        if shared < _FEWEST_SHARED * shorter:
            return (
                WiringFault(
                    f"stamps of {other}",
                    f"are of another clock than those of {one}",
                    f"subtract about {b0 - a0:.6g} s from them, or stamp both by one clock",
                    f"{b0:.6g} to {b1:.6g} s against {a0:.6g} to {a1:.6g} s",
                ),
            )
    return ()


def check_angle_unit(angles: Series) -> WiringFault | None:
    """Return the fault of joint angles in degrees, None if they are in rad."""
    size = float(np.median(np.abs(angles.values), axis=0).max())
    if not size > _TURN:
        return None
    return WiringFault(
        ANGLES,
        "look like degrees",
        f"multiply them by {np.pi / 180.0:.4g}, by unit deg in the mapping",
        f"one is near {size:.0f} half of the time, in rad that were {size / _TURN:.0f} turns",
    )


def check_accelerometer(
    force: Array, up: Array, gravity: float, axes: Array | None
) -> WiringFault | None:
    """Return the fault of an accelerometer by what it measures on average.

    Args:
        force: Mean specific force (3,) in the axes of the sensor, m/s^2.
        up: Direction (3,) away from the feet, in the same axes.
        gravity: Size of gravity, m/s^2.
        axes: Matrix (3, 3) by which the gyroscope's rates make the feet stand, the identity if they
            do as they are; None where this is not known.
    """
    size = float(np.linalg.norm(force))
    mean = f"its mean is {size:.3g} m/s^2 instead of {gravity:.4g}"
    units = {"g": STANDARD_GRAVITY, "mg": 1e-3 * STANDARD_GRAVITY, "cm/s^2": 1e-2}
    for unit, factor in units.items():
        if abs(factor * size / gravity - 1.0) < _UNIT_OFF:
            return WiringFault(
                ACCELEROMETER,
                f"looks like {unit}",
                f"multiply it by {factor:.5g}, by unit {unit} in the mapping",
                f"{mean}, then {factor * size:.3g}",
            )
    if size < _GONE * gravity:
        return WiringFault(
            ACCELEROMETER,
            "lacks gravity",
            "log the specific force, without compensation of gravity: upwards at rest",
            mean,
        )
    if abs(size - gravity) > _GRAVITY_OFF:
        return WiringFault(
            ACCELEROMETER,
            "has a wrong scale or a large bias",
            f"calibrate it, or multiply it by {gravity / size:.3g}",
            mean,
        )
    return _check_gravity_direction(force / size, up, axes)


def _check_gravity_direction(
    down_to_up: Array, up: Array, axes: Array | None
) -> WiringFault | None:
    """Return the fault of an accelerometer whose gravity is not where the feet say.

    Args: as in `check_accelerometer`; `down_to_up` (3,) is the direction of the mean force.
    """

    def tilt(turn: Array) -> float:
        return float(np.degrees(np.arccos(np.clip(turn @ down_to_up @ up, -1.0, 1.0))))

    identity = np.eye(3)
    now = tilt(identity)
    if not now > TILTED:
        return None
    if axes is not None and not np.allclose(axes, identity) and tilt(axes) < TILTED:
        return WiringFault(
            INERTIAL,
            f"is mounted otherwise, with axes {describe_map(axes)}",
            f"turn its frame in the URDF: its x, y, z are the {describe_map(axes.T)} of the log",
            f"gravity is {now:.0f} deg off upright, then {tilt(axes):.0f}, and the feet stand",
        )
    turns = list_signed_permutations()
    best = min(turns, key=lambda turn: tilt(turn) + 1e-3 * float(np.abs(turn - identity).sum()))
    if tilt(-identity) < TILTED:
        best = -identity
    if np.array_equal(best, -identity):
        cause = "points down"
        remedy = "negate it" if axes is not None else "negate it, or turn the sensor's frame over"
    else:
        cause = "points sideways"
        remedy = f"map its axes to {describe_map(best)}, or turn the sensor's frame"
    return WiringFault(
        ACCELEROMETER,
        cause,
        remedy,
        f"gravity is {now:.0f} deg off the side away from the feet, then {tilt(best):.0f}",
    )


def list_signed_permutations() -> list[Array]:
    """Return the 48 matrices (3, 3) that exchange axes and their signs, the identity first."""
    return [
        np.eye(3)[list(order)] * np.array(signs)[:, None]
        for order in permutations(range(3))
        for signs in product((1.0, -1.0), repeat=3)
    ]


def describe_map(turn: Array) -> str:
    """Return what a signed permutation (3, 3) makes of three columns, as "(y, -x, z)"."""
    names = []
    for row in turn:
        column = int(np.abs(row).argmax())
        names.append(("-" if row[column] < 0.0 else "") + "xyz"[column])
    return f"({', '.join(names)})"


def check_forces(
    loads: Mapping[str, Series], weight: float, *, all_feet: bool
) -> tuple[list[WiringFault], set[str]]:
    """Return faults of foot forces, and the feet whose forces say nothing.

    Args:
        loads: Vertical forces (n, 1) of feet, without missing values.
        weight: Weight of the robot, N.
        all_feet: Whether these are all feet, which bear the weight together.
    """
    values = {foot: load.values[:, 0] for foot, load in loads.items() if len(load)}
    faults, useless = list[WiringFault](), set[str]()
    ranges = {foot: float(np.ptp(v)) for foot, v in values.items()}
    largest = max(ranges.values(), default=0.0)
    for foot, force in values.items():
        size = max(float(np.abs(force).max()), weight)
        if ranges[foot] <= _STUCK * size:
            useless.add(foot)
            if largest <= _STUCK * size:
                continue  # none changes: the robot may stand still, for all that forces say
            faults.append(
                WiringFault(
                    f"force of {foot!r}",
                    "never changes",
                    "check its channel; without `force`, or with none of all, motion decides",
                    f"it is {force[0]:.4g} N at all {len(force)} rows",
                )
            )
            continue
        drift, span = _measure_drift(loads[foot])
        if drift > _DRIFT * span:
            useless.add(foot)
            faults.append(
                WiringFault(
                    f"force of {foot!r}",
                    "drifts",
                    "take off its value in flight, step by step, before filtering",
                    f"in flight it changes by {drift:.3g} N, in a step by {span:.3g} N",
                )
            )
    unit = _check_weight(values, weight) if all_feet and not useless else None
    return faults + ([] if unit is None else [unit]), useless


def _measure_drift(load: Series) -> tuple[float, float]:
    """Return by how much a force in flight changes over a log, and its range in a step, in N.

    Only windows count in which the foot steps: there the force falls to its lowest.
    """
    begin, force = load.times[0], load.values[:, 0]
    number = ((load.times - begin) / _STEP_WINDOW).astype(int)
    ends = np.flatnonzero(np.diff(number)) + 1
    parts = [part for part in np.split(force, ends) if len(part) >= 5]
    lows = np.array([np.percentile(part, 5.0) for part in parts])
    spans = np.array([np.percentile(part, 95.0) for part in parts]) - lows
    steps = spans > 0.5 * spans.max() if len(spans) else np.zeros(0, bool)
    if steps.sum() < _FEWEST_WINDOWS:
        return 0.0, np.inf
    lows, span = lows[steps], float(np.median(spans[steps]))
    places = np.linspace(0.0, 1.0, len(lows))
    slope = float(np.polyfit(places, lows, 1)[0])
    return abs(slope), span


def _check_weight(values: Mapping[str, Array], weight: float) -> WiringFault | None:
    """Return the fault of forces whose sum is, on average, not the weight but another unit's.

    Over a walk the mean vertical force is the weight, because the body does not fly away. Switches,
    which have two values, are no forces.
    """
    if any(len(np.unique(force)) <= 2 for force in values.values()):
        return None
    ratio = sum(float(force.mean()) for force in values.values()) / weight
    found = f"their mean sum is {ratio * weight:.3g} N, the weight {weight:.3g} N"
    if ratio < -_FORCE_UNIT_OFF:
        return WiringFault(FORCES, NEGATIVE, "negate them", found)
    for unit, share in _FORCE_UNITS.items():
        if abs(ratio / share - 1.0) < _FORCE_UNIT_OFF:
            return WiringFault(
                FORCES,
                f"look like {unit}",
                "multiply them by that factor, or name the unit in the mapping",
                f"{found}, then {ratio / share * weight:.3g} N",
            )
    return None
