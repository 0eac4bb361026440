r"""Odometry of loaded feet, and the invariant filter of the literature: what others would do.

They are baselines for the filter of this package, on the same readings and from the same start.

Odometry integrates the gyroscope, less its bias while standing, and turns the estimate towards the
accelerometer's vertical at a slow rate. The base moves so that loaded feet stand:
:math:`\Delta p = -\mathrm{mean}_f \, \Delta (R s_f)` over the feet loaded at both rows, with the
foot at :math:`s_f` in the inertial frame. It claims no covariance.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation, Slerp

from hybridctl.base.checks import Array
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.pose_track import PoseTrack
from hybridctl.legged.attitude import integrate_attitude
from hybridctl.legged.estimator import BaseEstimator, BaseSettings
from hybridctl.legged.kinematics import Foot
from hybridctl.legged.readings import Readings

HARTLEY = {
    "gyroscope": 2e-3,
    "accelerometer": 4e-2,
    "gyroscope_walk": 1e-3,
    "accelerometer_walk": 1e-3,
    "foot": 5e-2,
    "slip_time": 0.0,
    "encoder": float(np.radians(0.5)),
    "measured": 1e-4,
}
"""Noise of the invariant filter in the units of `BaseNoise`: Hartley, Ghaffari, Eustice, Grizzle,
Contact-aided invariant extended Kalman filtering, IJRR 2020, table 1. `measured` is negligible
beside the encoders: that filter has none."""


def literature_settings(settings: BaseSettings) -> BaseSettings:
    """Return the settings of the invariant filter of the literature for the same robot.

    Noise is fixed, see `HARTLEY`. Feet are points, contacts are thresholds of force and begin at
    once. The gyroscope's bias is measured where the robot stands still, as by every filter here.
    Frames, thresholds, clock and start are those of the settings.
    """
    return replace(
        settings,
        feet=tuple(Foot(foot.frame, radius=0.0) for foot in settings.feet),
        evidence=None,
        settle=0.0,
        noise=replace(settings.noise, **HARTLEY),
    )


def leg_odometry(estimator: BaseEstimator, given: Readings, first: Estimate) -> PoseTrack:
    """Return the poses of the root by gyroscope and loaded feet, at the rows of joint angles.

    Args:
        estimator: Kinematics, force thresholds and clock.
        given: Readings. Without any force the lower half of the feet counts as loaded.
        first: Estimate at the start, of `BaseEstimator.start`: pose, and bias of the gyroscope.
    """
    timed = given.uniform() if estimator.settings.uniform_clock else given
    timed = timed.filled(estimator.settings.weight)
    angles = timed.angles.complete_rows
    angles = angles.select_rows(angles.times >= first.time)
    inertial = timed.inertial.complete_rows
    attitudes = integrate_attitude(inertial, first.mean[:4], first.mean[10:13])
    held = np.clip(angles.times, inertial.times[0], inertial.times[-1])
    turns = Slerp(inertial.times, Rotation.from_quat(attitudes))(held)
    kinematics = estimator.base.kinematics
    seen = [kinematics(row, estimator.base.feet) for row in angles.values]
    places = np.array([[foot.position for foot in feet] for feet in seen])
    # Feet relative to the inertial frame, in axes of the world: (n, k, 3).
    reach = np.einsum("nij,nkj->nki", turns.as_matrix(), places)
    loaded = _find_loaded(estimator, timed, angles.times, reach)
    steps = _move_by_feet(reach, loaded)
    positions = first.mean[4:7] + np.cumsum(np.vstack([np.zeros(3), steps]), axis=0)
    axes, offset = kinematics.base
    back = turns.as_matrix() @ axes.T
    root_turns = Rotation.from_matrix(back)
    times, rows = np.unique(angles.times, return_index=True)
    return PoseTrack(times, (positions - back @ offset)[rows], root_turns.as_quat()[rows])


def _find_loaded(
    estimator: BaseEstimator, timed: Readings, times: Array, reach: Array
) -> NDArray[np.bool_]:
    """Return whether each of k feet bears load at each time, (n, k).

    Args:
        estimator: Force thresholds.
        timed: Readings with forces; where no foot has one the lower half of the feet is loaded.
        times: Times (n,) in s.
        reach: Feet (n, k, 3) relative to the inertial frame in m, in axes of the world.
    """
    feet = estimator.base.feet
    if not timed.loads:
        rank = reach[..., 2].argsort(axis=1).argsort(axis=1)
        return np.asarray(rank < max(len(feet) // 2, 1))
    loaded = np.zeros((len(times), len(feet)), dtype=bool)
    for k, foot in enumerate(feet):
        if foot in timed.loads:
            load = timed.loads[foot].sort_by_time()
            states = estimator.contact.states(load.values[:, 0])
            last = np.maximum(load.times.searchsorted(times, "right") - 1, 0)
            loaded[:, k] = states[last]
    return loaded


def _move_by_feet(reach: Array, loaded: NDArray[np.bool_]) -> Array:
    """Return the steps (n - 1, 3) in m of the inertial frame by which loaded feet stand.

    The last step is repeated while no foot is loaded; before the first one the frame rests.

    Args:
        reach: Feet (n, k, 3) relative to the inertial frame in m, in axes of the world.
        loaded: Whether feet bear load, (n, k).
    """
    steps = np.zeros((len(reach) - 1, 3))
    for k, moved in enumerate(np.diff(reach, axis=0)):
        both = loaded[k] & loaded[k + 1]
        if both.any():
            steps[k] = -moved[both].mean(axis=0)
        elif k:
            steps[k] = steps[k - 1]
    return steps
