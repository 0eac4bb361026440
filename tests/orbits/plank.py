r"""A plank that hops from one end to the other, with its floating base.

A plank of mass m and inertia I about its long axis x, with elastic ends without friction at
(y, z) = (+-b, -c), hits the ground with its left end, flies, and hits with the right one. The
reflected half of its motion is the other half. With roll -phi at the hit of the left end, whose
distance from the centre is l = b cos(phi) - c sin(phi) along the ground, the impulse has to turn
the whole motion back, (v_z, w) -> -(v_z, w), so that w = v_z m l / I. A flight of T has
v_z = g T / 2 and w T = 2 phi: T^2 = 4 phi I / (m g l).
"""

import numpy as np

from hybridctl.mechanics import Contact, Plane, Robot, contact_system

MASS, INERTIA, B, C, G = 2.0, 0.05, 0.3, 0.05, 9.81
ROLL, SPEED = 0.15, 0.4
URDF = f"""<robot name="plank"><link name="body"><inertial><mass value="{MASS}"/>
<inertia ixx="{INERTIA}" iyy="0.08" izz="0.09" ixy="0" ixz="0" iyz="0"/>
</inertial></link></robot>"""
GROUND = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
FREE = {"translation": ("root_joint", "x")}


def make_plank(robot):
    """The plank on its two elastic ends."""
    ends = [
        Contact(name, "body", GROUND, offset=(0.0, y, -C), restitution=1.0)
        for name, y in (("left", B), ("right", -B))
    ]
    return contact_system(robot, ends)


def make_robot():
    """The plank as a floating base, without contacts."""
    return Robot.from_urdf(URDF, root="floating", gravity=(0.0, 0.0, -G))


def hop():
    """The state just after the hit of the left end, and the duration of the flight after it."""
    arm = B * np.cos(ROLL) - C * np.sin(ROLL)
    time = np.sqrt(4.0 * ROLL * INERTIA / (MASS * G * arm))
    height = B * np.sin(ROLL) + C * np.cos(ROLL)
    half = -0.5 * ROLL
    q = [0.0, 0.0, height, np.sin(half), 0.0, 0.0, np.cos(half)]
    roll = np.array([[np.cos(ROLL), -np.sin(ROLL)], [np.sin(ROLL), np.cos(ROLL)]])
    lateral = roll @ [0.0, 0.5 * G * time]  # velocities are in axes of the body
    return np.array([*q, SPEED, *lateral, 2.0 * ROLL / time, 0.0, 0.0]), time
