"""A small machine for tests: two legs of three turning joints, feet flat or points."""

import numpy as np
from differences import assert_derivative

from hybridctl.hybrid.model import StepRequest
from hybridctl.legged.kinematics import Foot, LegKinematics
from hybridctl.legged.system import GAP, RISE, BaseNoise, LeggedBase, base_system
from hybridctl.mechanics.multibody.robot import Robot

GRAVITY = np.array([0.0, 0.0, -9.81])
BODY = (
    '<inertial><mass value="1"/>'
    '<inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>'
)


def leg(side, y):
    """Hip about x and y, knee about y, and a sole."""
    links = "".join(f'<link name="{side}{k}">{BODY}</link>' for k in range(3))
    origins = f'xyz="0 {y} -0.1"', 'xyz="0 0 -0.05" rpy="0.1 0 0.2"', 'xyz="0.02 0 -0.3"'
    axes = "1 0 0", "0 1 0", "0 1 0"
    parents = "root", f"{side}0", f"{side}1"
    joints = "".join(
        f'<joint name="{side} joint {k}" type="revolute"><parent link="{parents[k]}"/>'
        f'<child link="{side}{k}"/><origin {origins[k]}/><axis xyz="{axes[k]}"/>'
        '<limit lower="-3" upper="3" effort="1" velocity="1"/></joint>'
        for k in range(3)
    )
    sole = (
        f'<link name="{side} sole"/><joint name="{side} ankle" type="fixed">'
        f'<parent link="{side}2"/><child link="{side} sole"/>'
        '<origin xyz="0.03 0.01 -0.3" rpy="0.2 -0.1 0.3"/></joint>'
    )
    return links + joints + sole


URDF = (
    f'<robot name="walker"><link name="root">{BODY}</link>{leg("left", 0.1)}{leg("right", -0.1)}'
    '<link name="imu"/><joint name="mount" type="fixed"><parent link="root"/><child link="imu"/>'
    '<origin xyz="0.05 -0.02 0.1" rpy="0.4 -0.3 1.2"/></joint></robot>'
)


def machine(flat=(True, False), noise=None, inertial="imu"):
    """The base, and its hybrid system."""
    robot = Robot.from_urdf(URDF)
    feet = [Foot(f"{side} sole", f) for side, f in zip(("left", "right"), flat, strict=True)]
    base = LeggedBase(LegKinematics(robot, inertial, feet), GRAVITY, noise or BaseNoise())
    return base, base_system(base)


def state(base, key, rng):
    """A random state of a mode, and a random input."""
    space = base.space(key)
    x = space.normalize(rng.normal(size=space.nx))
    x[10:16] *= 0.1
    u = np.insert(rng.normal(size=base.nu - 1), RISE, 0.0)
    u[GAP] = 0.0
    u[base.creep_columns] = np.abs(u[base.creep_columns])
    return x, u


def check_transition_derivative(made, key, h, seed):
    """Check the transition matrix of a step of `h` s against differences of its end.

    made: a base and its system, as `machine` returns them.
    """
    base, system = made
    mode = system.mode(key)
    x, u = state(base, key, np.random.default_rng(seed))
    end = mode.transition(StepRequest(0.0, x, h, 1e-9, 1e-9), u)

    def step(e):
        after = mode.transition(StepRequest(0.0, mode.space.integrate(x, e), h, 1e-9, 1e-9), u)
        return mode.space.difference(end.state, after.state)

    assert_derivative(step, end.matrix)


def check_field_jacobian(made, key, seed):
    """Check the derivatives of a mode's field by state and input against its differences."""
    base, system = made
    mode = system.mode(key)
    x, u = state(base, key, np.random.default_rng(seed))
    found = mode.jacobian(0.0, x, u)
    assert_derivative(lambda e: mode.field(0.0, mode.space.integrate(x, e), u), found.state)
    assert_derivative(lambda e: mode.field(0.0, x, u + e), found.input)
