"""A recorded Go1 that gets up, trots a square of 3 m with one full turn, and lies down.

Nothing is told but what the robot is. Motion capture has no stamps, so that its standing places are
compared: before the walk, and lying at the end. Forces are raw numbers; the scale is the README's.
"""

from pathlib import Path

import numpy as np
import pytest
from hybridctl.robots import public
from scipy.spatial.transform import Rotation
from scipy.stats import chi2

from hybridctl.estimation.record import Series
from hybridctl.legged.estimator import BaseSettings
from hybridctl.legged.kinematics import Foot
from hybridctl.legged.readings import Readings
from hybridctl.mechanics.multibody.robot import Robot

FILE = Path(__file__).parents[3] / "shared/data/go1_square/go1_square.npz"
FEET = ("FR_foot", "FL_foot", "RR_foot", "RL_foot")
WEIGHT = 12.0 * 9.81  # N
STANDS = 1.2  # s from the start, when it has got up
LENGTH = 12.1  # m, of the walk

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FILE.is_file(), reason=f"no recording of the Go1 in {FILE}"),
]


def read_walk(estimator):
    """Readings of the recording, its standing places (2, 3) in m, and the turn between, in rad."""
    data = np.load(FILE)
    times, names = data["time"], data["joint_names"].tolist()
    forces = np.clip(data["foot_force_raw"] + 6.0, 0.0, None) * WEIGHT / (WEIGHT + 24.0)
    angles = data["joints"][:, [names.index(joint) for joint in estimator.joints]]
    readings = Readings(
        Series(times, np.hstack([data["gyroscope"], data["accelerometer"]])),
        Series(times, angles),
        {foot: Series(times, forces[:, k : k + 1]) for k, foot in enumerate(FEET)},
    )
    place, turns = data["mocap_position"], Rotation.from_quat(data["mocap_quat_xyzw"])
    yaw = np.unwrap(turns.as_euler("ZYX")[:, 0])
    rows = slice(180, 240), slice(-100, None)
    ahead = Rotation.from_euler("z", -yaw[rows[0]].mean())
    moved = ahead.apply(place[rows[1]].mean(axis=0) - place[rows[0]].mean(axis=0))
    return readings, moved, yaw[rows[1]].mean() - yaw[rows[0]].mean()


def test_a_walk_is_known_to_two_percent_by_the_defaults():
    """In the region that is claimed, with 99 %."""
    estimator = go1()
    error, claimed = walk_error(estimator, *read_walk(estimator))
    assert np.linalg.norm(error) < 0.02 * LENGTH
    assert error @ np.linalg.solve(claimed, error) < chi2.ppf(0.99, 3)


def test_without_forces_contacts_are_by_motion():
    """To three percent. Rows are means of two each, to take half of the time.

    Its inertial sensor is taken to be 10 ms earlier, which hardly matters with forces but for the
    height, and as much without: the sensor and the joints do not share a clock.
    """
    estimator = go1()
    readings, *truth = read_walk(estimator)
    inertial = average_pairs(readings.inertial)
    early = Series(inertial.times - 0.01, inertial.values)
    bare = Readings(early, average_pairs(readings.angles), {})
    error, claimed = walk_error(estimator, bare, *truth)
    assert np.linalg.norm(error) < 0.03 * LENGTH
    assert error @ np.linalg.solve(claimed, error) < chi2.ppf(0.99, 3)


def go1():
    """The estimator by the defaults."""
    return BaseSettings("trunk", tuple(map(Foot, FEET))).build(Robot.from_urdf(public.urdf("go1")))


def average_pairs(series):
    """Means of two rows each."""
    n = len(series) // 2 * 2
    values = 0.5 * (series.values[:n:2] + series.values[1:n:2])
    return Series(0.5 * (series.times[:n:2] + series.times[1:n:2]), values)


def walk_error(estimator, readings, moved, turned):
    """The error of the end (3,) in m against motion capture, and its claimed covariance (3, 3).

    Yaw and length of the walk are compared as well.
    """
    result = estimator.run(readings)
    roots = [estimator.root(step.estimate) for step in result.steps if step.channel == "angles"]
    place = np.array([root.position for root in roots])
    yaw = np.unwrap(Rotation.from_quat([r.orientation for r in roots]).as_euler("ZYX")[:, 0])
    start = readings.angles.times[0] + STANDS
    first = next(k for k, root in enumerate(roots) if root.time > start)
    back = Rotation.from_euler("z", -yaw[first])
    error = back.apply(place[-50:].mean(axis=0) - place[first]) - moved
    assert abs(np.degrees(yaw[-50:].mean() - yaw[first] - turned)) < 7.0
    length = np.linalg.norm(np.diff(place[first::40], axis=0), axis=1).sum()
    assert length == pytest.approx(LENGTH, rel=0.06)
    return error, roots[-1].covariance[3:6, 3:6]
