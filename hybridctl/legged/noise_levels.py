r"""Noise of a legged base from its own readings: from standing, from creeping feet, by likelihood.

Feet that creep move against each other while two of them are in contact, by
:math:`d = R_2^T (p_1 - p_2)` and :math:`R_2^T R_1`, which joint angles alone say. If each does a
random walk of density q, the change over a time T of such contact has variance 2 q T in each
direction, and the most likely density is :math:`\sum |\Delta|^2 / (3 \sum 2 T)`. Slow creep, which
decides how far an estimate drifts, is seen so; single innovations see the fast noise, and their
likelihood takes what drifts slowly to be far surer than it is.

`noise_of_creep` fits one density to a whole log, of soles with their turn, by joint angles alone.
`foot_distances` does the same with point feet while the filter runs: there the estimate turns the
distances into the world, so that level and vertical creep are apart, feet may roll, and older pairs
fade. Both take the change of a pair's distance to have the variance 2 q T.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np

from hybridctl.base.checks import Array, check_number
from hybridctl.base.errors import InputError
from hybridctl.estimation.likelihood import NoiseFit, fit_noise
from hybridctl.estimation.salted_kalman_filter import SaltedKalmanFilter
from hybridctl.legged.estimator import BaseSettings
from hybridctl.legged.kinematics import LegKinematics
from hybridctl.legged.readings import Readings, stood, stretches
from hybridctl.legged.rotation import quaternion, vector
from hybridctl.mechanics.multibody.robot import Robot


def noise_of_standing(settings: BaseSettings, readings: Readings) -> BaseSettings:
    r"""Return settings with the noise of the inertial sensor while the robot stands still.

    The density of white noise sampled every h s is :math:`\sigma \sqrt h`, with :math:`\sigma` the
    standard deviation of the samples, as the root mean square of the three axes. All that a sensor
    does at rest counts here, drift and pushes too, and noise may become lower. At the start of each
    log `sensor_noise` measures white noise alone, by second differences, and only raises noise.

    Args:
        settings: Settings; their `standing` says how long the robot stands, None what joints say.
        readings: Readings of a log that begins with standing.

    Returns:
        The settings with `noise.gyroscope` and `noise.accelerometer` of this log.

    Raises:
        InputError: The robot does not stand at the start.
    """
    series, told = readings.uniform().inertial, settings.standing
    standing = check_number("standing", stood(readings.angles) if told is None else told, above=0.0)
    still = series.times <= series.times[0] + standing
    samples = series.values[still]
    period = float(np.ptp(series.times[still])) / (len(samples) - 1)
    spread = np.sqrt(np.nanvar(samples, axis=0) * period)
    rate, force = (float(np.sqrt((s**2).mean())) for s in (spread[:3], spread[3:]))
    return replace(settings, noise=replace(settings.noise, gyroscope=rate, accelerometer=force))


def noise_of_creep(settings: BaseSettings, robot: Robot, readings: Readings) -> BaseSettings:
    """Return settings with the noise of feet by how pairs of them creep while the robot walks.

    Contacts that begin while it stands at the start are left out.

    Args:
        settings: Settings of the base.
        robot: The robot with its root fixed.
        readings: Readings of a walk, with forces of two feet at least.

    Returns:
        The settings with `noise.foot` and `noise.foot_turn` of this log.

    Raises:
        InputError: No other pair of feet is in contact for a time.
    """
    estimator, timed = settings.build(robot), readings.uniform()
    kinematics, angles = estimator.base.kinematics, timed.angles
    told = settings.standing
    begun = angles.times[0] + (stood(angles) if told is None else told)
    moved = turned = spent = 0.0
    for pair in combinations(timed.loads, 2):
        loads = [timed.loads[foot].hold_last(angles.times)[:, 0] for foot in pair]
        both = np.logical_and(*(estimator.contact.states(load) for load in loads))
        for first, last in stretches(both):
            if last > first and angles.times[first] > begun:
                (p0, r0), (p1, r1) = (
                    _locate_foot(kinematics, angles.values[k], pair) for k in (first, last)
                )
                moved += float((p1 - p0) @ (p1 - p0))
                turn = vector(quaternion(r1 @ r0.T))
                turned += float(turn @ turn)
                spent += 6.0 * float(angles.times[last] - angles.times[first])
    if not spent:
        raise InputError("readings must have two feet in contact for a time while the robot walks")
    return _set_foot_noise(settings, np.sqrt([moved / spent, turned / spent]))


def _locate_foot(
    kinematics: LegKinematics, angles: Array, pair: tuple[str, str]
) -> tuple[Array, Array]:
    """Return position (3,) in m and rotation (3, 3) of the first foot in the axes of the second."""
    one, other = kinematics(angles, pair)
    back = other.rotation.T
    return back @ (one.position - other.position), back @ one.rotation


def noise_of_innovations(
    settings: BaseSettings,
    robot: Robot,
    readings: Sequence[Readings],
    *,
    max_evaluations: int = 200,
) -> tuple[BaseSettings, NoiseFit]:
    """Return settings with the noise of feet that makes readings most likely, see `fit_noise`.

    Args:
        settings: Settings of the base, whose noise of feet is where the search begins.
        robot: The robot with its root fixed.
        readings: Readings of one or more walks, each from standing still.
        max_evaluations: Number of likelihoods that are computed at most.

    Returns:
        The settings with `noise.foot` and `noise.foot_turn`, and the fit.
    """
    estimator = settings.build(robot)
    fit = fit_noise(
        partial(_build_filter, settings, robot),
        [estimator.record(one) for one in readings],
        [estimator.start(one) for one in readings],
        [settings.noise.creep(any(foot.flat for foot in settings.feet)), settings.noise.foot_turn],
        max_evaluations=max_evaluations,
    )
    return _set_foot_noise(settings, fit.levels), fit


def _set_foot_noise(settings: BaseSettings, levels: Array) -> BaseSettings:
    """Return settings with the densities (2,) of feet that creep, and that turn, in contact."""
    foot, foot_turn = map(float, levels)
    return replace(settings, noise=replace(settings.noise, foot=foot, foot_turn=foot_turn))


def _build_filter(settings: BaseSettings, robot: Robot, levels: Array) -> SaltedKalmanFilter:
    """Return the filter with these densities (2,) of the noise of feet."""
    return _set_foot_noise(settings, levels).build(robot).filter
