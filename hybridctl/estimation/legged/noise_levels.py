r"""Noise of a legged base from its own readings: from standing, from creeping feet, by likelihood.

Feet that creep move against each other while two of them are in contact, by
:math:`d = R_2^T (p_1 - p_2)` and :math:`R_2^T R_1`, which joint angles alone say. If each does a
random walk of density q, the change over a time T of such contact has variance 2 q T in each
direction, and the most likely density is :math:`\sum |\Delta|^2 / (3 \sum 2 T)`. Slow creep, which
decides how far an estimate drifts, is seen so; single innovations see the fast noise, and their
likelihood takes what drifts slowly to be far surer than it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np

from hybridctl.checks import Array, number
from hybridctl.errors import InputError
from hybridctl.estimation.filter import SaltedKalmanFilter
from hybridctl.estimation.legged.estimator import BaseSettings
from hybridctl.estimation.legged.kinematics import LegKinematics
from hybridctl.estimation.legged.readings import Readings, stood, stretches
from hybridctl.estimation.legged.rotation import quaternion, vector
from hybridctl.estimation.likelihood import NoiseFit, fit_noise
from hybridctl.mechanics.multibody.robot import Robot


def noise_of_standing(settings: BaseSettings, readings: Readings) -> BaseSettings:
    r"""Settings with the noise of the inertial sensor while the robot stands still.

    The density of white noise sampled every h s is :math:`\sigma \sqrt h`, with :math:`\sigma` the
    standard deviation of the samples, as the root mean square of the three axes.
    """
    series, told = readings.uniform().inertial, settings.standing
    standing = number("standing", stood(readings.angles) if told is None else told, above=0.0)
    still = series.times <= series.times[0] + standing
    samples = series.values[still]
    period = float(np.ptp(series.times[still])) / (len(samples) - 1)
    spread = np.sqrt(np.nanvar(samples, axis=0) * period)
    rate, force = (float(np.sqrt((s**2).mean())) for s in (spread[:3], spread[3:]))
    return replace(settings, noise=replace(settings.noise, gyroscope=rate, accelerometer=force))


def noise_of_creep(settings: BaseSettings, robot: Robot, readings: Readings) -> BaseSettings:
    """Settings with the noise of feet by how pairs of them creep while the robot walks.

    Contacts that begin while it stands at the start are left out. Raises `InputError` where no
    other pair of feet is in contact for a time.
    """
    estimator, timed = settings.build(robot), readings.uniform()
    kinematics, angles = estimator.base.kinematics, timed.angles
    told = settings.standing
    begun = angles.times[0] + (stood(angles) if told is None else told)
    moved = turned = spent = 0.0
    for pair in combinations(timed.loads, 2):
        loads = [timed.loads[foot].held(angles.times)[:, 0] for foot in pair]
        both = np.logical_and(*(estimator.contact.states(load) for load in loads))
        for first, last in stretches(both):
            if last > first and angles.times[first] > begun:
                (p0, r0), (p1, r1) = (
                    _between(kinematics, angles.values[k], pair) for k in (first, last)
                )
                moved += float((p1 - p0) @ (p1 - p0))
                turn = vector(quaternion(r1 @ r0.T))
                turned += float(turn @ turn)
                spent += 6.0 * float(angles.times[last] - angles.times[first])
    if not spent:
        raise InputError("readings must have two feet in contact for a time while the robot walks")
    return _of_feet(settings, np.sqrt([moved / spent, turned / spent]))


def _between(
    kinematics: LegKinematics, angles: Array, pair: tuple[str, str]
) -> tuple[Array, Array]:
    """Position and rotation of the first foot in the axes of the second."""
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
    """Settings with the noise of feet that makes readings most likely, see `fit_noise`.

    readings: of one or more walks, each from standing still.
    """
    estimator = settings.build(robot)
    fit = fit_noise(
        partial(_with_feet, settings, robot),
        [estimator.record(one) for one in readings],
        [estimator.start(one) for one in readings],
        [settings.noise.foot, settings.noise.foot_turn],
        max_evaluations=max_evaluations,
    )
    return _of_feet(settings, fit.levels), fit


def _of_feet(settings: BaseSettings, levels: Array) -> BaseSettings:
    """Settings with the noise of feet in contact, and of their turning."""
    foot, foot_turn = map(float, levels)
    return replace(settings, noise=replace(settings.noise, foot=foot, foot_turn=foot_turn))


def _with_feet(settings: BaseSettings, robot: Robot, levels: Array) -> SaltedKalmanFilter:
    """The filter with this noise of feet."""
    return _of_feet(settings, levels).build(robot).filter
