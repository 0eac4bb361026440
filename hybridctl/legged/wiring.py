"""Name what is wired wrongly in the readings of a legged robot, before any filter runs.

Checks come in the order in which each needs what the ones before it have found to be right: stamps,
units of joint angles, forces (`wiring_signals`); then gyroscope, joint angles and contacts, by
which loaded feet stand (`wiring_trials`); and the direction of gravity, for which the axes of the
gyroscope are known by then. A change of a channel is reported only if the feet stand better with
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from hybridctl.base.checks import Array
from hybridctl.base.time_series import Series
from hybridctl.legged.kinematics import LegKinematics
from hybridctl.legged.readings import Readings, stood
from hybridctl.legged.stance import (
    FootPaths,
    choose_times,
    compute_paths,
    find_contacts,
    interpolate,
)
from hybridctl.legged.wiring_signals import (
    ANGLES,
    FORCES,
    GYROSCOPE,
    INERTIAL,
    NEGATIVE,
    TILTED,
    WiringFault,
    check_accelerometer,
    check_angle_unit,
    check_forces,
    check_stamps,
)
from hybridctl.legged.wiring_trials import (
    SUSPICIOUS,
    JointTrials,
    Residual,
    StanceTrial,
    StanceTrials,
    find_better_trial,
    find_delay,
    find_force_delay,
    list_axes,
    list_forces,
)

_STUCK = 1e-9
"""Change of a joint angle, rad, that is none: encoders resolve 1e-4 and more."""
_MOVES = 0.05
"""Change of a joint angle, rad, from which on a leg moves."""
_STEPS = 0.2
"""Change of a joint angle, rad, with which feet are lifted: a step of 3 cm turns a knee by more."""
_STUCK_FORCES = WiringFault(
    FORCES,
    "never change",
    "check their channels, or leave out `force` of the feet and set `evidence: {forces: false}`",
    "none of them changes while joints move as in steps",
)
_WORSE = 2.0
"""Residual with a foot whose joint does not change, relative to that without, from which on the
encoder is stuck, and the joint not locked: feet on locked joints stand as well as others."""
_ROUNDS = 3
"""Mistakes that are looked for one after the other by standing feet."""
_SINGLE = 0.1
"""Time in s at the start over which gravity is averaged where a log has no more."""


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
        aligned: The same without the delay that is compensated, with stamps of an even clock. If
            None, no delay is.
    """
    stamps = check_stamps(readings)
    if (
        stamps or len(readings.angles.complete_rows) < 2
    ):  # on a wrong clock nothing else means anything
        return stamps
    timed = readings.uniform() if aligned is None else aligned
    inertial, angles = timed.inertial.complete_rows, timed.angles.complete_rows
    faults, angles, loads = _check_signals(kinematics, angles, timed.loads, weight)
    still = stood(angles)
    times = choose_times(angles, float(angles.times[0]) + still, inertial)
    walking = interpolate(angles, times)
    paths = compute_paths(kinematics, times, walking)
    standing = find_standing(kinematics, loads, times)
    now, trials = StanceTrial(paths, standing, np.eye(3)), StanceTrials(inertial)
    joints = JointTrials(kinematics, times, walking)
    stuck, now = _check_stuck_joints(trials, joints, now, walking)
    known = trials.residual(now) is not None
    tried, now = _try_changes(trials, joints, now) if not stuck else ([], now)
    begin = inertial.times[0]
    end = begin + max(still, _SINGLE) if still else inertial.times[-1]
    mean = _average_force(inertial.values[inertial.times <= end, 3:], gravity)
    up = _find_up(kinematics, now.paths, interpolate(angles, angles.times[:1]))
    axes = now.axes / np.cbrt(abs(np.linalg.det(now.axes)))
    upright = check_accelerometer(mean, up, gravity, axes if known else None)
    widened = [_widen_turn(fault, axes, mean, up, upright) for fault in tried]
    found = (upright, *faults, *stuck, *widened)
    return tuple(fault for fault in found if fault is not None)


def _check_signals(
    kinematics: LegKinematics, angles: Series, loads: Mapping[str, Series], weight: float
) -> tuple[list[WiringFault], Series, dict[str, Series]]:
    """Return faults of joint angles and forces by themselves, with what can be used of both.

    Args:
        kinematics: Kinematics of the legs.
        angles: Joint angles (n, m), without missing values.
        loads: Forces (n, 1) of feet.
        weight: Weight of the robot, N.

    Returns:
        The faults, the angles in rad, and the forces that say something, upwards.
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
    if known and useless == set(known) and np.ptp(angles.values, axis=0).max() > _STEPS:
        faults.append(_STUCK_FORCES)
    sign = -1.0 if any(fault.cause == NEGATIVE for fault in forces) else 1.0
    told = {
        foot: replace(load, values=sign * load.values)
        for foot, load in known.items()
        if foot not in useless
    }
    return faults, angles, told


def _widen_turn(
    fault: WiringFault, axes: Array, mean: Array, up: Array, upright: WiringFault | None
) -> WiringFault | None:
    """Return a fault of the gyroscope's axes as one of the whole sensor, where gravity agrees.

    Args:
        fault: Any fault that standing feet have shown.
        axes: Matrix (3, 3) by which rates are to be multiplied.
        mean: Mean specific force (3,), m/s^2.
        up: Direction (3,) away from the feet.
        upright: The fault of gravity. If it is one of the sensor's mounting, the other is the same.

    Returns:
        The fault; None if it is told already.
    """
    turned = np.linalg.det(axes) > 0.0 and not np.allclose(axes, np.eye(3))
    if fault.channel != GYROSCOPE or not turned:
        return fault
    if upright is not None:
        return None if upright.channel == INERTIAL else fault
    if (axes @ mean) @ up < np.cos(np.radians(TILTED)) * np.linalg.norm(mean):
        return fault  # the accelerometer is right as it is
    frame = f"{fault.remedy}, or turn the frame of the inertial sensor if it is mounted so"
    return replace(fault, remedy=frame)


def _average_force(forces: Array, gravity: float) -> Array:
    """Return the specific force (3,) in m/s^2 that gravity leaves on average over forces (n, 3).

    Of mean and median it is the one whose size is nearer to gravity. The mean is wrong where
    samples meet impacts, as of a robot that hops; the median where forces of a gait are skewed.
    """
    averages = forces.mean(axis=0), np.median(forces, axis=0)
    return min(averages, key=lambda force: abs(float(np.linalg.norm(force)) - gravity))


def find_standing(
    kinematics: LegKinematics, loads: Mapping[str, Series], times: Array
) -> NDArray[np.bool_]:
    """Return whether each foot stands, by its force.

    A foot without a force that tells never counts as standing, but where no foot ever lifts: then
    the robot stands.

    Args:
        kinematics: Its k feet.
        loads: Vertical forces (m, 1) in N by foot, complete.
        times: Times (n,) of the grid, s.

    Returns:
        Whether each foot stands at each time, (n, k).
    """
    found = {
        foot: contacts
        for foot, load in loads.items()
        if len(load) and (contacts := find_contacts(load.values[:, 0])) is not None
    }
    columns = []
    for foot in kinematics.feet:
        if foot in found:
            states = Series(loads[foot].times, found[foot].astype(float))
            columns.append(states.hold_last(times)[:, 0] > 0.5)
        else:
            columns.append(np.full(len(times), not found and foot in loads))
    return np.column_stack(columns)


def _find_up(kinematics: LegKinematics, paths: FootPaths, angles: Array) -> Array:
    """Return the direction (3,) away from the feet in the axes of the inertial frame.

    It is that from the mean of the feet to the inertial frame: within some 20 degrees of upwards
    for a robot that stands, wherever on its body the sensor is.
    """
    place = (
        paths.positions
        if len(paths.times)
        else compute_paths(kinematics, np.zeros(1), angles).positions
    )
    away = -place.reshape(-1, 3).mean(axis=0)
    return np.asarray(away / np.linalg.norm(away))


def _check_stuck_joints(
    trials: StanceTrials, joints: JointTrials, now: StanceTrial, angles: Array
) -> tuple[list[WiringFault], StanceTrial]:
    """Return faults of encoders that never change, and a trial without the feet they move.

    Args:
        trials: Residuals of the log.
        joints: The legs, by the numbers of their joints.
        now: The present reading.
        angles: Joint angles (n, m) at the times of the grid, rad.
    """
    moved = np.ptp(angles, axis=0) if len(angles) else np.zeros(angles.shape[1])
    stuck = np.flatnonzero(moved <= _STUCK)
    if not len(stuck) or not moved.max() > _MOVES:
        return [], now
    faults = list[WiringFault]()
    before, names = trials.residual(now), joints.names
    for joint in stuck.tolist():
        own = np.array([joint in leg for leg in joints.legs])
        left = replace(now, standing=now.standing & ~own)
        after = trials.residual(left)
        if before is not None and after is not None and after.share * _WORSE > before.share:
            continue
        now = left
        evidence = f"it is {angles[0, joint]:.4g} rad all along, others move by {moved.max():.2g}"
        if before is not None and after is not None:
            evidence += f"; {_describe(before, after)} without its foot"
        faults.append(
            WiringFault(
                ANGLES, f"are stuck at {names[joint]!r}", "check this encoder's channel", evidence
            )
        )
    return faults, now


def _try_changes(
    trials: StanceTrials, joints: JointTrials, now: StanceTrial
) -> tuple[list[WiringFault], StanceTrial]:
    """Return the mistakes whose remedies make the feet stand better, one after the other.

    Args:
        trials: Residuals of the log.
        joints: Changes of joint angles.
        now: The present reading.

    Returns:
        The faults, and the reading with all remedies.
    """
    faults = list[WiringFault]()
    for _ in range(_ROUNDS):
        before = trials.residual(now)
        if before is None:
            break
        found = find_better_trial(trials, now, chain(list_axes(now), joints.list_orders(now)))
        # A change that makes feet stand as in a sound log needs no costly rivals.
        if before.share > SUSPICIOUS and (found is None or found[1].share > 0.5 * SUSPICIOUS):
            others = chain(list_forces(now, joints.feet), joints.list_legs_and_signs(now))
            found = _choose(found, find_better_trial(trials, now, others))
        for found_delay in (find_delay, find_force_delay):
            found = _choose(found, found_delay(trials, now))
        if found is None:
            break
        now, after = found
        faults.append(WiringFault(now.channel, now.cause, now.remedy, _describe(before, after)))
    return faults, now


def _choose(
    one: tuple[StanceTrial, Residual] | None, other: tuple[StanceTrial, Residual] | None
) -> tuple[StanceTrial, Residual] | None:
    """Return the trial with the smaller residual of those that are there."""
    there = [found for found in (one, other) if found is not None]
    return min(there, key=lambda found: found[1].share, default=None)


def _describe(before: Residual, after: Residual) -> str:
    """Return by how much better the feet stand."""
    return (
        f"loaded feet move at {1e3 * after.speed:.0f} mm/s against each other instead of "
        f"{1e3 * before.speed:.0f}"
    )
