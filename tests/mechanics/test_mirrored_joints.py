"""Mirror symmetry of robots whose joints have stops and dry friction, against simulation."""

import numpy as np
import pytest

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.mechanics import Robot, contact_system, limb_symmetry

LINK = """<link name="{name}"><inertial><mass value="{mass}"/><origin xyz="0 0 {center}"/>
<inertia ixx="0.02" iyy="0.02" izz="0.02" ixy="0" ixz="0" iyz="0"/></inertial></link>"""
HIP = """<joint name="{side}_hip" type="revolute"><parent link="body"/><child link="{side}"/>
<origin xyz="0 {y} 0"/><axis xyz="{axis}"/><dynamics friction="{friction}"/>
<limit lower="{low}" upper="{high}" effort="9" velocity="9"/></joint>"""
JOINTS = {"left_hip": "right_hip"}


def walker(axis="1 0 0", limits=((-0.3, 0.8), (-0.8, 0.3)), friction=(0.05, 0.05)):
    """Two legs below a body that slides sideways, along y, with dry friction and stops."""
    slide = """<joint name="slide" type="prismatic"><parent link="w"/><child link="body"/>
    <axis xyz="0 1 0"/><dynamics friction="0.4"/>
    <limit lower="-0.05" upper="0.05" effort="9" velocity="9"/></joint>"""
    parts = [LINK.format(name="body", mass=2.0, center=0.0), slide]
    for side, y, (low, high), rub in zip(
        ("left", "right"), (0.2, -0.2), limits, friction, strict=True
    ):
        parts.append(LINK.format(name=side, mass=1.0, center=-0.4))
        parts.append(HIP.format(side=side, y=y, axis=axis, low=low, high=high, friction=rub))
    robot = Robot.from_urdf(f'<robot name="r"><link name="w"/>{"".join(parts)}</robot>')
    return contact_system(robot, [], joint_stops=0.4)


@pytest.mark.parametrize(
    ("axis", "limits"),
    [("1 0 0", ((-0.3, 0.8), (-0.8, 0.3))), ("0 1 0", ((-0.3, 0.8), (-0.3, 0.8)))],
)
def test_mirrored_motion_is_the_motion_of_the_mirrored_start(axis, limits):
    """Abduction changes its sign, so that lower stops become upper ones; flexion does not."""
    system = walker(axis, limits)
    symmetry = limb_symmetry(system, JOINTS, {})
    start = np.array([0.01, 0.7, 0.1, 0.6, 1.5, -0.5])
    run = hc.simulate(system, None, start, (0.0, 0.5))
    other = hc.simulate(system, None, symmetry.image(start), (0.0, 0.5))
    guards = {name for event in run.events for name in event.guards}
    assert any(name.endswith("stop closes") for name in guards)
    assert any(name.endswith("friction sticks") for name in guards)
    assert len(run.events) == len(other.events)
    for event, image in zip(run.events, other.events, strict=True):
        assert image.time == pytest.approx(event.time, abs=1e-7)
        assert set(image.guards) == {symmetry.guard(name) for name in event.guards}
        assert image.mode_after == symmetry.mode(event.mode_after)
        assert symmetry.mode(symmetry.mode(event.mode_after)) == event.mode_after
        assert image.impulses[list(symmetry.contacts)] == pytest.approx(event.impulses, abs=1e-6)
    assert other.final_state == pytest.approx(symmetry.image(run.final_state), abs=1e-6)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"friction": (0.05, 0.06)}, "must have the same load"),
        ({"friction": (0.05, 0.0)}, "'left_hip' has a contact 'left_hip friction'"),
        ({"limits": ((-0.3, 0.8), (-0.3, 0.8))}, r"gaps \[m\] 0.5"),
    ],
)
def test_joints_that_differ_are_refused(options, said):
    with pytest.raises(InputError, match=said):
        limb_symmetry(walker(**options), JOINTS, {})
