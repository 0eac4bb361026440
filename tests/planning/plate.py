"""A plate of two corners that motors lift and tilt: tasks of landing on a floor and leaving it."""

from functools import lru_cache

import numpy as np

from hybridctl.mechanics import Contact, Plane, Robot, contact_system
from hybridctl.planning.task import Condition, Margins, Phase, Task

MASS, INERTIA, HALF = 2.0, 0.3, 0.5
OPEN, CLOSED, BOTH = ("open", "open"), ("closed", "closed"), ("left closes", "right closes")
RELEASE = ("left opens", "right opens")
FORCE, UNLOAD, LIFT = 0.5, 10.0, 1.0  # N, N/s, m/s^2: what releases are to keep
SPEED, TIME = 0.6, 0.5


@lru_cache
def plate():
    """A plate that is lifted and tilted by two motors, above a floor."""
    urdf = f"""<robot name="plate"><link name="rail"/><link name="cart"><inertial>
      <mass value="1e-9"/><inertia ixx="0" iyy="1e-12" izz="0" ixy="0" ixz="0" iyz="0"/></inertial>
      </link><link name="plate"><inertial><mass value="{MASS}"/>
      <inertia ixx="1" iyy="{INERTIA}" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>
      <joint name="z" type="prismatic"><parent link="rail"/><child link="cart"/>
      <axis xyz="0 0 1"/><limit lower="-9" upper="9" effort="1" velocity="1"/></joint>
      <joint name="tilt" type="revolute"><parent link="cart"/><child link="plate"/>
      <axis xyz="0 1 0"/><limit lower="-1" upper="1" effort="1" velocity="1"/></joint></robot>"""
    floor = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    corners = [
        Contact(name, "plate", floor, offset=(x, 0.0, 0.0))
        for name, x in (("left", -HALF), ("right", HALF))
    ]
    return contact_system(Robot.from_urdf(urdf), corners)


def landing(**options) -> Task:
    """From 0.2 m to the floor, flat, and half as long on it."""
    given = {
        "system": plate(),
        "phases": [
            Phase(OPEN, BOTH, (TIME, TIME + 1e-9), 3),
            Phase(CLOSED, (), (0.5 * TIME, 0.5 * TIME + 1e-9), 2),
        ],
        "start": [0.2, 0.0, 0.0, 0.0],
        "margins": Margins(force=1.0, impulse=0.1, approach=0.05),
        "torque": 60.0,
    }
    return Task(**(given | options))


def lifting(**options) -> Task:
    """From rest on the floor to 0.1 m above it, both corners leaving at once."""
    given = {
        "system": plate(),
        "phases": [
            Phase(CLOSED, RELEASE, (TIME, TIME + 1e-9), 2),
            Phase(OPEN, (), (TIME, TIME + 1e-9), 2),
        ],
        "start": np.zeros(4),
        "conditions": [Condition("height", lambda a, b, t: b[0], 0.1, 0.1, "m")],
        "margins": Margins(force=FORCE, unload=UNLOAD, lift=LIFT),
        "torque": 60.0,
    }
    return Task(**(given | options))


def guess(k, s):
    return np.array([0.2 * (1.0 - s) * (k == 0), 0.0, -SPEED * (k == 0), 0.0])
