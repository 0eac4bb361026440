"""Wiring mistakes in the readings of a legged robot, found before any filter runs.

Each check relies on the ones before it: stamps (`wiring_stamps`), the unit of joint angles
(`wiring_signals`), forces (`wiring_forces`); then gyroscope, joint angles and contacts, by loaded
feet that stand (`wiring_changes`, `wiring_delays`); and the direction of gravity, for which the
axes of the gyroscope must be known. A change of a channel is reported only if feet stand better
with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.time_series import Series
from hybridctl.legged.kinematics import LegKinematics
from hybridctl.legged.readings import Readings, stood
from hybridctl.legged.stance import (
    FootPaths,
    choose_times,
    compute_paths,
    find_standing,
    interpolate,
)
from hybridctl.legged.stance_trials import (
    Residual,
    StanceTrial,
    StanceTrials,
    find_better_trial,
)
from hybridctl.legged.wiring_changes import JointTrials, list_axes, list_forces
from hybridctl.legged.wiring_delays import find_force_delay, find_inertial_delay
from hybridctl.legged.wiring_fault import ANGLES, FORCES, GYROSCOPE, INERTIAL, WiringFault
from hybridctl.legged.wiring_forces import NEGATIVE_CAUSE, check_forces
from hybridctl.legged.wiring_signals import LARGEST_TILT, check_accelerometer, check_angle_unit
from hybridctl.legged.wiring_stamps import check_stamps

SUSPICIOUS_SHARE = 0.15
"""Residual, relative to the speed of feet, from which on legs and forces are exchanged and joints
negated, which takes time. Sound simulated logs have .02 to .04, a recorded humanoid .09, a recorded
trot .13."""
_SOUND_RATIO = 0.5
"""Residual, relative to `SUSPICIOUS_SHARE`, up to which feet stand as in a sound log."""
_STUCK_RANGE = 1e-9
"""Range of a joint angle, rad, up to which it never changes: encoders resolve 1e-4 and more."""
_MOVING_RANGE = 0.05
"""Range of a joint angle, rad, from which on a leg moves. The value is a choice."""
_STEPPING_RANGE = 0.2
"""Range of a joint angle, rad, above which feet are lifted: a step of 3 cm turns a knee by more."""
_STUCK_FORCES = WiringFault(
    FORCES,
    "never change",
    "check their channels, or leave out `force` of the feet and set `evidence: {forces: false}`",
    "none of them changes while joints move as in steps",
)
_STUCK_GAIN = 2.0
"""Residual with a foot whose joint does not change, relative to the residual without it, from which
on the encoder is stuck. Below, the joint is locked: feet on locked joints stand like others."""
_MOST_MISTAKES = 3
"""Mistakes that standing feet are searched for, one after the other. The value is a choice."""
_LEAST_STANDING = 0.1
"""Shortest time in s at the start over which gravity is averaged. The value is a choice."""


def find_wiring_faults(
    kinematics: LegKinematics,
    readings: Readings,
    *,
    weight: float,
    gravity: float,
    aligned: Readings | None = None,
) -> tuple[WiringFault, ...]:
    """Return what is wired wrongly, the first cause first; empty for a sound log.

    Args:
        kinematics: Kinematics of the legs.
        readings: Readings as recorded.
        weight: Weight of the robot, N.
        gravity: Size of gravity, m/s^2.
        aligned: Readings without the delay that is compensated, with stamps of an even clock; None
            if no delay is compensated.
    """
    stamp_faults = check_stamps(readings)
    # All other checks need a right clock, and motion.
    if stamp_faults or len(readings.angles.complete_rows) < 2:
        return stamp_faults
    timed = readings.uniform() if aligned is None else aligned
    inertial, angles = timed.inertial.complete_rows, timed.angles.complete_rows
    faults, angles, loads = _check_signals(kinematics, angles, timed.loads, weight)
    still = stood(angles)
    times = choose_times(angles, float(angles.times[0]) + still, inertial)
    walking = interpolate(angles, times)
    paths = compute_paths(kinematics, times, walking)
    standing = find_standing(kinematics, loads, times)
    reading, trials = StanceTrial(paths, standing, np.eye(3)), StanceTrials(inertial)
    joints = JointTrials(kinematics, times, walking)
    stuck, reading = _check_stuck_joints(trials, joints, reading, walking)
    has_axes = trials.compute_residual(reading) is not None
    # Beside a stuck encoder no other mistake is searched for. No reason is known.
    changes, reading = _find_changes(trials, joints, reading) if not stuck else ([], reading)
    begin = inertial.times[0]
    end = begin + max(still, _LEAST_STANDING) if still else inertial.times[-1]
    mean = _average_force(inertial.values[inertial.times <= end, 3:], gravity)
    up = _find_up(kinematics, reading.paths, interpolate(angles, angles.times[:1]))
    axes = reading.axes / np.cbrt(abs(np.linalg.det(reading.axes)))  # without the unit
    gravity_fault = check_accelerometer(mean, up, gravity, axes if has_axes else None)
    widened = [_widen_turn(fault, axes, mean, up, gravity_fault) for fault in changes]
    found = (gravity_fault, *faults, *stuck, *widened)
    return tuple(fault for fault in found if fault is not None)


def _check_signals(
    kinematics: LegKinematics, angles: Series, loads: Mapping[str, Series], weight: float
) -> tuple[list[WiringFault], Series, dict[str, Series]]:
    """Return faults that joint angles and forces show by themselves, and both without these.

    Args:
        kinematics: Kinematics of the legs.
        angles: Joint angles (n, m), without missing values.
        loads: Forces (n, 1) of feet.
        weight: Weight of the robot, N.

    Returns:
        The faults, the angles in rad, and the forces that can be used, positive upwards.
    """
    faults = list[WiringFault]()
    unit = check_angle_unit(angles)
    if unit is not None:
        faults.append(unit)
        angles = replace(angles, values=np.radians(angles.values))
    known = {foot: load.complete_rows for foot, load in loads.items()}
    all_feet = all(len(known.get(foot, ())) for foot in kinematics.feet)
    forces, useless = check_forces(known, weight, all_feet=all_feet)
    faults += forces
    if known and useless == set(known) and np.ptp(angles.values, axis=0).max() > _STEPPING_RANGE:
        faults.append(_STUCK_FORCES)
    sign = -1.0 if any(fault.cause == NEGATIVE_CAUSE for fault in forces) else 1.0
    usable = {
        foot: replace(load, values=sign * load.values)
        for foot, load in known.items()
        if foot not in useless
    }
    return faults, angles, usable


def _widen_turn(
    fault: WiringFault, axes: Array, mean: Array, up: Array, gravity_fault: WiringFault | None
) -> WiringFault | None:
    """Return a fault of the gyroscope's axes as one of the whole sensor, where gravity agrees.

    Args:
        fault: Any fault that standing feet have shown.
        axes: Matrix (3, 3) by which rates are to be multiplied.
        mean: Mean specific force (3,), m/s^2.
        up: Direction (3,) away from the feet.
        gravity_fault: Fault of the accelerometer. If it is one of the sensor's mounting, both are
            the same mistake.

    Returns:
        The fault; None if the fault of the accelerometer covers it.
    """
    is_turned = np.linalg.det(axes) > 0.0 and not np.allclose(axes, np.eye(3))
    if fault.channel != GYROSCOPE or not is_turned:
        return fault
    if gravity_fault is not None:
        return None if gravity_fault.channel == INERTIAL else fault
    if (axes @ mean) @ up < np.cos(np.radians(LARGEST_TILT)) * np.linalg.norm(mean):
        return fault  # the accelerometer is right as it is
    frame = f"{fault.remedy}, or turn the frame of the inertial sensor if it is mounted so"
    return replace(fault, remedy=frame)


def _average_force(forces: Array, gravity: float) -> Array:
    """Return the average (3,) of specific forces (n, 3) in m/s^2, which is due to gravity.

    Of mean and median it is the one whose size is nearer to gravity. The mean is wrong where
    samples fall on impacts, as of a robot that hops; the median where forces of a gait are skewed.
    """
    averages = forces.mean(axis=0), np.median(forces, axis=0)
    return min(averages, key=lambda force: abs(float(np.linalg.norm(force)) - gravity))


def _find_up(kinematics: LegKinematics, paths: FootPaths, angles: Array) -> Array:
    """Return the direction (3,) away from the feet in the axes of the inertial frame.

    It points from the mean of the feet to the inertial frame, which is within some 20 degrees of
    upwards for a robot that stands, wherever on its body the sensor is.

    Args:
        kinematics: Kinematics of the legs.
        paths: Paths of the feet; the start is used where they are empty.
        angles: Joint angles (1, m) at the start, rad.
    """
    positions = (
        paths.positions
        if len(paths.times)
        else compute_paths(kinematics, np.zeros(1), angles).positions
    )
    away = -positions.reshape(-1, 3).mean(axis=0)
    return np.asarray(away / np.linalg.norm(away))


def _check_stuck_joints(
    trials: StanceTrials, joints: JointTrials, present: StanceTrial, angles: Array
) -> tuple[list[WiringFault], StanceTrial]:
    """Return faults of encoders that never change, and a trial without the feet they move.

    Args:
        trials: Residuals of the log.
        joints: The legs, by the numbers of their joints.
        present: The present reading.
        angles: Joint angles (n, m) at the times of the grid, rad.

    Returns:
        The faults, and the reading in which the feet of stuck joints never stand.
    """
    ranges = np.ptp(angles, axis=0) if len(angles) else np.zeros(angles.shape[1])
    stuck = np.flatnonzero(ranges <= _STUCK_RANGE)
    if not len(stuck) or not ranges.max() > _MOVING_RANGE:
        return [], present  # all joints change, or the robot stands still
    faults = list[WiringFault]()
    before, names = trials.compute_residual(present), joints.names
    for joint in stuck.tolist():
        own = np.array([joint in leg for leg in joints.legs])
        without = replace(present, standing=present.standing & ~own)
        after = trials.compute_residual(without)
        if before is not None and after is not None and after.share * _STUCK_GAIN > before.share:
            continue  # the joint is locked
        present = without
        evidence = f"it is {angles[0, joint]:.4g} rad all along, others move by {ranges.max():.2g}"
        if before is not None and after is not None:
            evidence += f"; {_describe_gain(before, after)} without its foot"
        faults.append(
            WiringFault(
                ANGLES, f"are stuck at {names[joint]!r}", "check this encoder's channel", evidence
            )
        )
    return faults, present


def _find_changes(
    trials: StanceTrials, joints: JointTrials, present: StanceTrial
) -> tuple[list[WiringFault], StanceTrial]:
    """Return the changes that make the feet stand better, one after the other, as faults.

    Args:
        trials: Residuals of the log.
        joints: Changes of joint angles.
        present: The present reading.

    Returns:
        The faults, and the reading with all changes.
    """
    faults = list[WiringFault]()
    for _ in range(_MOST_MISTAKES):
        before = trials.compute_residual(present)
        if before is None:
            break
        changes = chain(list_axes(present), joints.list_orders(present))
        found = find_better_trial(trials, present, changes)
        # A change that makes feet stand as in a sound log needs no costly rivals.
        if before.share > SUSPICIOUS_SHARE and (
            found is None or found[1].share > _SOUND_RATIO * SUSPICIOUS_SHARE
        ):
            others = chain(list_forces(present, joints.feet), joints.list_legs_and_signs(present))
            found = _choose_better(found, find_better_trial(trials, present, others))
        for find_delay in (find_inertial_delay, find_force_delay):
            found = _choose_better(found, find_delay(trials, present))
        if found is None:
            break
        present, after = found
        evidence = _describe_gain(before, after)
        faults.append(WiringFault(present.channel, present.cause, present.remedy, evidence))
    return faults, present


def _choose_better(
    one: tuple[StanceTrial, Residual] | None, other: tuple[StanceTrial, Residual] | None
) -> tuple[StanceTrial, Residual] | None:
    """Return the trial with the smaller residual; None if both are None."""
    known = [found for found in (one, other) if found is not None]
    return min(known, key=lambda found: found[1].share, default=None)


def _describe_gain(before: Residual, after: Residual) -> str:
    """Return in words how much better the feet stand."""
    return (
        f"loaded feet move at {1e3 * after.speed:.0f} mm/s against each other instead of "
        f"{1e3 * before.speed:.0f}"
    )
