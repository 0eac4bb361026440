"""The limits of a robot's motors, as files give them, and as policies keep them."""

import logging

import numpy as np
import pytest

import hybridctl as hc
from hybridctl.control.reference import extend
from hybridctl.control.spreading import ReferenceSpreading
from hybridctl.mechanics import Contact, Plane, Robot, contact_system

URDF = """<robot name="s"><link name="w"/><link name="m"><inertial><mass value="1"/>
<inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link><joint name="x"
type="prismatic"><parent link="w"/><child link="m"/><axis xyz="1 0 0"/><limit lower="-9" upper="9"
effort="{}" velocity="9"/></joint></robot>"""
MJCF = """<mujoco><worldbody><body name="m"><joint name="x" type="slide" axis="1 0 0"{joint}/>
<geom size=".1" mass="1"/></body></worldbody><actuator>{actuator}</actuator></mujoco>"""


@pytest.mark.parametrize(("given", "effort"), [("4", 4.0), ("0", np.inf)])
def test_effort_of_a_urdf_is_the_limit_of_its_motor(given, effort):
    """An effort of 0 was never filled in: its motor could not move anything."""
    robot = Robot.from_urdf(URDF.format(given))
    assert robot.effort.tolist() == [effort]
    assert Robot.from_urdf(URDF.format(given), actuated=[]).effort.shape == (0,)


@pytest.mark.parametrize(
    ("actuator", "joint", "effort"),
    [
        ('<motor joint="x" gear="7" ctrlrange="-2 1" ctrllimited="true"/>', "", 14.0),
        ('<motor joint="x" gear="7" forcerange="-1 1" forcelimited="true"/>', "", 7.0),
        ('<motor joint="x" gear="7"/>', ' actuatorfrcrange="-3 3"', 3.0),
        ('<position joint="x" kp="5" ctrlrange="-2 2" ctrllimited="true"/>', "", np.inf),
        ('<motor joint="x"/>', "", np.inf),
    ],
)
def test_effort_of_an_mjcf(actuator, joint, effort):
    """The force is gear times control; the control of a servo is a position, and no limit."""
    pytest.importorskip("mujoco")
    robot = Robot.from_mjcf(MJCF.format(actuator=actuator, joint=joint))
    assert robot.effort.tolist() == [effort]


def _reference(effort, push):
    wall = Contact("wall", "m", Plane((5, 0, 0), (-1, 0, 0)))
    system = contact_system(Robot.from_urdf(URDF.format(effort)), [wall])
    run = hc.simulate(system, None, [0.0, 0.0], (0.0, 1.0), lambda t, x: np.array([push]))
    return system, extend(system, run, before=0.1, after=0.1)


def test_policies_keep_to_the_motors_unless_told_otherwise(caplog):
    """A motor of 4 N that tracks a push of 6 N: 2 m after 1 s instead of 3, and one warning."""
    gains = [np.zeros((1, 2))]
    with caplog.at_level(logging.WARNING):
        system, reference = _reference(4.0, 6.0)
        policy = ReferenceSpreading(reference, gains)
    (record,) = caplog.records
    assert "6 of 4" in record.getMessage()
    run = hc.simulate(system, None, [0.0, 0.0], (0.0, 1.0), policy)
    assert len(caplog.records) == 1
    assert run.final_state[0] == pytest.approx(2.0, abs=1e-8)
    for limits in ([np.inf], [[-np.inf], [9.0]]):
        free = ReferenceSpreading(reference, gains, limits=limits)
        run = hc.simulate(system, None, [0.0, 0.0], (0.0, 1.0), free)
        assert run.final_state[0] == pytest.approx(3.0, abs=1e-8)


def test_reference_within_the_motors_is_no_matter(caplog):
    _, reference = _reference(8.0, 6.0)
    policy = ReferenceSpreading(reference, [np.zeros((1, 2))])
    assert not caplog.records
    assert policy.limits.tolist() == [[-8.0], [8.0]]
    _, reference = _reference(0.0, 6.0)
    assert ReferenceSpreading(reference, [np.zeros((1, 2))]).limits is None
