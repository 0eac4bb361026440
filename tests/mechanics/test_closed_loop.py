"""A four-bar linkage: a loop that opposed contacts close, against its closed-form kinematics.

In the plane, angles are about -y, so that they turn x towards z. The crank turns about the origin,
the rocker about (GROUND, 0), and the coupler joins their ends.
"""

import numpy as np

import hybridctl as hc
from hybridctl.mechanics import Contact, Plane, Robot, contact_system

CRANK, COUPLER, ROCKER, GROUND = 1.0, 2.0, 1.5, 2.0


def bar(name, length):
    """A uniform rod of 1 kg along x."""
    moment = length**2 / 12.0
    moments = f'ixx="0" iyy="{moment}" izz="{moment}" ixy="0" ixz="0" iyz="0"'
    return (
        f'<link name="{name}"><inertial><origin xyz="{length / 2.0} 0 0"/><mass value="1"/>'
        f"<inertia {moments}/></inertial></link>"
    )


def hinge(name, parent, child, x):
    return (
        f'<joint name="{name}" type="continuous"><parent link="{parent}"/><child link="{child}"/>'
        f'<origin xyz="{x} 0 0"/><axis xyz="0 -1 0"/></joint>'
    )


FOUR_BAR = (
    '<robot name="four_bar"><link name="ground"/>'
    + bar("crank", CRANK)
    + bar("coupler", COUPLER)
    + bar("rocker", ROCKER)
    + hinge("a", "ground", "crank", 0.0)
    + hinge("b", "crank", "coupler", CRANK)
    + hinge("d", "ground", "rocker", GROUND)
    + "</robot>"
)


def closing_contacts():
    """The coupler's end against two pairs of opposed planes at the rocker's end."""
    normals = {"right": (1, 0, 0), "left": (-1, 0, 0), "up": (0, 0, 1), "down": (0, 0, -1)}
    return [
        Contact(name, "coupler", Plane((ROCKER, 0, 0), n), body="rocker", offset=(COUPLER, 0, 0))
        for name, n in normals.items()
    ]


def loop_at(crank):
    """The angles of coupler and rocker in the world: circles about both ends of the gap meet."""
    joint = CRANK * np.array([np.cos(crank), np.sin(crank)])
    gap = np.array([GROUND, 0.0]) - joint
    length = np.hypot(*gap)
    along = (length**2 + COUPLER**2 - ROCKER**2) / (2.0 * length)
    across = np.sqrt(COUPLER**2 - along**2)
    end = joint + (along * gap + across * np.array([-gap[1], gap[0]])) / length
    coupler, rocker = end - joint, end - [GROUND, 0.0]
    return np.arctan2(*coupler[::-1]), np.arctan2(*rocker[::-1])


def angles(robot, q):
    """The angles of the bars in the world, and the ends of coupler and rocker, from the poses."""
    poses = robot.poses(q, [robot.frame(name).joint for name in ("crank", "coupler", "rocker")])
    ends = [
        pose @ [length, 0, 0, 1] for pose, length in zip(poses[1:], (COUPLER, ROCKER), strict=True)
    ]
    return np.arctan2(poses[:, 2, 0], poses[:, 0, 0]), ends


def test_a_four_bar_linkage_closed_by_opposed_contacts_swings_as_its_kinematics_say():
    """Tolerances of 1e-8: an integrator with rtol 1e-9 over 0.6 s."""
    robot = Robot.from_urdf(FOUR_BAR)
    coupler, rocker = loop_at(1.0)
    start = robot.integrate(robot.neutral(), np.array([1.0, coupler - 1.0, rocker]))
    x0 = np.concatenate((start, np.zeros(3)))
    run = hc.simulate(contact_system(robot, closing_contacts()), ("closed",) * 4, x0, (0.0, 0.6))
    assert run.final_mode == ("closed",) * 4
    assert run.events == ()
    energies, cranks = [], []
    for t in np.linspace(0.0, 0.6, 7):
        q, v = run(t)[: robot.nq], run(t)[robot.nq :]
        (crank, *others), (coupler_end, rocker_end) = angles(robot, q)
        np.testing.assert_allclose(coupler_end, rocker_end, atol=1e-8)
        np.testing.assert_allclose(others, loop_at(crank), atol=1e-8)
        energies.append(sum(robot.energy(q, v)))
        cranks.append(crank)
    assert np.ptp(cranks) > 1.0  # it falls by more than a radian
    np.testing.assert_allclose(energies, energies[0], atol=1e-7)
