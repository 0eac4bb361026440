"""A log to the poses of a legged robot's base, by a model that YAML could hold."""

from dataclasses import replace

import numpy as np
import pytest
import yaml
from legged.machine import URDF

from hybridctl import Series
from hybridctl.base.errors import InputError, UnknownNameError
from hybridctl.base.settings import parse_settings
from hybridctl.logs import Log
from hybridctl.logs.base_model import BaseModel
from hybridctl.logs.legged import filter_base
from hybridctl.mechanics.multibody.robot import Robot

MODEL = """
urdf: walker.urdf
channels: {gyroscope: gyro, accelerometer: accel, joints: joints, loads: [force, null]}
settings:
  inertial: imu
  feet: [{frame: left sole, flat: true}, {frame: right sole}]
  touch_force: 100
  lift_force: 50
  standing: 0.2
  noise: {foot: 2.0e-3}
heading: 0.4
position: [1, 2, 3]
"""
NAMES = [f"{side} joint {k}" for side in ("right", "left") for k in range(3)]
TIMES = 0.01 * np.arange(60)


@pytest.fixture
def model(tmp_path):
    (tmp_path / "walker.urdf").write_text(URDF)
    made = parse_settings(BaseModel, yaml.safe_load(MODEL), "model")
    return replace(made, urdf=str(tmp_path / made.urdf))


def log(**changed):
    """A machine that stands still, its accelerometer with stamps of its own."""
    n = len(TIMES)
    from scipy.spatial.transform import Rotation

    inertial = Rotation.from_euler("xyz", [0.4, -0.3, 1.2])  # of the mount in the URDF
    force = np.tile(inertial.inv().apply([0.0, 0.0, 9.81]), (n, 1))
    channels = {
        "gyro": Series(TIMES, np.zeros((n, 3)), unit="rad/s"),
        "accel": Series(TIMES + 0.003, force, unit="m/s^2"),
        "joints": Series(TIMES, np.tile(0.1 * np.arange(6), (n, 1)), NAMES, "rad"),
        "force": Series(TIMES, np.full((n, 3), 150.0), unit="N"),
    }
    return Log(channels | changed)


def test_a_robot_that_stands_is_where_the_model_says(model):
    run = filter_base(log(), model)
    assert len(run.roots) == len(TIMES) - 1  # the first row starts the feet
    root = run.roots[-1]
    np.testing.assert_allclose(root.position, [1.0, 2.0, 3.0], atol=1e-9)
    np.testing.assert_allclose(root.orientation, [0.0, 0.0, np.sin(0.2), np.cos(0.2)], atol=1e-9)
    assert run.flags == ("no forces of 'right sole': contacts by motion",)
    assert run.estimator.settings.noise.foot == 2e-3


def test_angles_are_found_by_the_names_of_their_columns(model):
    run = filter_base(log(), model)
    order = [NAMES.index(joint) for joint in run.estimator.joints]
    np.testing.assert_allclose(run.readings.angles.values[0], 0.1 * np.array(order))


def torques_of_standing(force):
    """Torques (6,) that hold the machine of `log`, in the order of its names, as M g - J^T f."""
    robot = Robot.from_urdf(URDF, root="floating")
    q = robot.posture(dict(zip(NAMES, 0.1 * np.arange(6), strict=True)))
    held = robot.bias(q, np.zeros(robot.nv))
    held = held - robot.point_jacobian(q, "right sole", np.zeros(3)).T @ [0.0, 0.0, force]
    return np.array([held[robot.velocities(name)[0]] for name in NAMES])


def test_a_foot_without_force_has_that_of_the_torques(model):
    """Once the observer has answered, after ten times 7 ms; the other foot has its own force."""
    rows = np.tile(torques_of_standing(120.0), (len(TIMES), 1))
    given = log(torques=Series(TIMES, rows, NAMES, "Nm"))
    told = replace(model, channels=replace(model.channels, torques="torques"))
    run = filter_base(given, told)
    late = run.readings.loads["right sole"]
    np.testing.assert_allclose(late.values[late.times > 0.07], 120.0, rtol=1e-3)
    assert (run.readings.loads["left sole"].values == 150.0).all()
    assert not any("no forces" in flag for flag in run.flags)
    np.testing.assert_allclose(run.roots[-1].position, [1.0, 2.0, 3.0], atol=1e-9)
    with pytest.raises(InputError, match="channel 'torques' must be in Nm, got N"):
        filter_base(log(torques=Series(TIMES, rows, NAMES, "N")), told)
    with pytest.raises(UnknownNameError, match="channel 'torques' has no column"):
        filter_base(log(torques=Series(TIMES, rows[:, :5], NAMES[:5], "Nm")), told)


def test_what_was_found_is_written(model, tmp_path):
    paths = filter_base(log(), model).write(tmp_path / "out")
    with np.load(paths[0]) as found:
        assert found["covariance"].shape == (len(TIMES) - 1, 9, 9)
        np.testing.assert_allclose(found["position"][-1], [1.0, 2.0, 3.0], atol=1e-9)


def test_what_does_not_fit_is_refused(model):
    wrong = Series(TIMES, np.zeros((len(TIMES), 3)), unit="m")
    with pytest.raises(InputError, match="channel 'gyro' must be in rad/s, got m"):
        filter_base(log(gyro=wrong), model)
    few = Series(TIMES, np.zeros((len(TIMES), 2)), unit="m/s^2")
    with pytest.raises(InputError, match="'accel' must have 3 columns, got 2"):
        filter_base(log(accel=few), model)
    other = Series(TIMES, np.zeros((len(TIMES), 1)), ("left joint 0",), "rad")
    with pytest.raises(UnknownNameError, match=r"channel 'joints' has no column .*'left joint 1'"):
        filter_base(log(joints=other), model)
    with pytest.raises(InputError, match="for each of 2 feet"):
        replace(model, channels=replace(model.channels, loads=("force",)))
