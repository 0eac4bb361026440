"""Equilibria of joints with dry friction, against closed forms."""

import numpy as np
import pytest

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.mechanics import Contact, Plane, Robot, contact_system, equilibrium

MASS, LENGTH, LIMIT = 2.0, 0.5, 3.0  # kg, m, N m
WEIGHT_TORQUE = MASS * 9.81 * LENGTH  # N m, of the pendulum held out level
PENDULUM = f"""<robot name="p"><link name="w"/><link name="bar"><inertial>
<origin xyz="0 0 {-LENGTH}"/><mass value="{MASS}"/>
<inertia ixx="0.1" iyy="0.1" izz="0.1" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="swing" type="revolute"><parent link="w"/><child link="bar"/><axis xyz="0 1 0"/>
<limit lower="-3" upper="3" effort="99" velocity="9"/><dynamics friction="{LIMIT}"/></joint>
</robot>"""


def pendulum(*actuated):
    robot = Robot.from_urdf(PENDULUM, actuated=actuated)
    return contact_system(robot, [Contact("tip", "bar", Plane((0, 0, -9), (0, 0, 1)))])


@pytest.mark.parametrize("angle", [-0.2, 0.0, 0.15, 0.25, 2.9])
@pytest.mark.parametrize("mode", [("open",), ("open", "stick")])
def test_friction_holds_a_limp_pendulum(angle, mode):
    """At angle t it holds m g l sin t, up to `share` of its limit; a run from there stays."""
    system = pendulum()
    found = equilibrium(system, mode, [angle])
    assert found.state == pytest.approx([angle, 0.0], abs=1e-5)
    assert found.joint_friction == pytest.approx([WEIGHT_TORQUE * np.sin(angle)], abs=1e-4)
    assert found.residual < 1e-9
    assert found.normal.tolist() == [0.0]
    run = hc.simulate(system, None, found.state, (0.0, 1.0))
    assert run.final_state == pytest.approx(found.state, abs=1e-9)
    assert not run.events


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_beyond_its_limit_the_pendulum_rests_at_the_nearest_angle_that_friction_holds(share):
    """That is where m g l sin t is the share of the limit; within a smaller reach it is refused."""
    nearest = np.arcsin(share * LIMIT / WEIGHT_TORQUE)
    found = equilibrium(pendulum(), ("open",), [0.6], share=share)
    assert found.state[0] == pytest.approx(nearest, abs=1e-5)
    assert found.joint_friction == pytest.approx([share * LIMIT], abs=1e-4)
    needed = WEIGHT_TORQUE * np.sin(0.55)
    said = rf"'swing friction' would have to be {needed:.4g} of {share * LIMIT:.4g} N m"
    with pytest.raises(InputError, match=said):
        equilibrium(pendulum(), ("open",), [0.6], share=share, reach=0.05)


def test_motors_hold_what_they_can_and_friction_the_least_that_is_left():
    """A motor alone holds m g l sin t; with at most 1 N m, friction has to hold the rest."""
    system, angle = pendulum("swing"), 0.2
    alone = equilibrium(system, ("open",), [angle])
    assert alone.joint_friction == pytest.approx([0.0], abs=1e-9)
    assert alone.input == pytest.approx([WEIGHT_TORQUE * np.sin(alone.state[0])], abs=1e-6)
    assert alone.state[0] == pytest.approx(angle, abs=1e-4)
    weak = equilibrium(system, ("open",), [angle], torque=1.0)
    assert weak.state[0] == pytest.approx(angle, abs=1e-4)
    assert weak.input == pytest.approx([1.0], abs=1e-2)
    total = weak.input[0] + weak.joint_friction[0]
    assert total == pytest.approx(WEIGHT_TORQUE * np.sin(weak.state[0]), abs=1e-6)


def test_a_joint_that_slips_is_no_equilibrium():
    with pytest.raises(InputError, match="no contact that slides"):
        equilibrium(pendulum(), ("open", "slip+"), [0.1])
