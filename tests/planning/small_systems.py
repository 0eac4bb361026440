"""Systems of few coordinates with closed forms: a cart, a ball above a floor, a pole."""

import numpy as np

from hybridctl.mechanics import Contact, Plane, Robot, contact_system
from hybridctl.planning.task import Margins, Phase, Task

MASS, WAY, TIME = 2.0, 1.0, 0.8


def _slider(name: str, axis: str, mass: float) -> str:
    return f"""<link name="{name}"><inertial><mass value="{mass}"/>
      <inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>
      <joint name="{axis}" type="prismatic"><parent link="{"rail" if axis == "x" else "cart"}"/>
      <child link="{name}"/><axis xyz="{1 if axis == "x" else 0} 0 {1 if axis == "z" else 0}"/>
      <limit lower="-9" upper="9" effort="100" velocity="1"/></joint>"""


WALL = Plane((WAY, 0.0, 0.0), (-1.0, 0.0, 0.0))


class Unexpressed:
    """The wall as a surface that has no expression."""

    curved = False
    distance, normal = WALL.distance, WALL.normal
    curvature, curvature_along = WALL.curvature, WALL.curvature_along


def cart(wall=WALL):
    """A mass on a rail, with a wall at WAY."""
    urdf = f'<robot name="cart"><link name="rail"/>{_slider("cart", "x", MASS)}</robot>'
    return contact_system(Robot.from_urdf(urdf), [Contact("nose", "cart", wall)])


def ball():
    """A mass on two rails, above a floor and before a wall."""
    body = _slider("cart", "x", 1e-9) + _slider("ball", "z", MASS)
    urdf = f'<robot name="ball"><link name="rail"/>{body}</robot>'
    floor = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    return contact_system(Robot.from_urdf(urdf), [Contact("foot", "ball", floor)])


def to_the_wall(**options) -> Task:
    given = {
        "system": cart(),
        "phases": [Phase(("open",), ("nose closes",), (TIME, TIME + 1e-9), intervals=2)],
        "start": [0.0, 0.0],
        "margins": Margins(approach=0.1),
    }
    return Task(**(given | options))


def straight(k, s):
    return np.array([s * WAY, WAY / TIME])


def pole(length=0.25):
    """A pole on a motor, upright at 0, between which and a wall there is room."""
    urdf = f"""<robot name="pole"><link name="base"/><link name="pole"><inertial>
      <origin xyz="0 0 {length}"/><mass value="1"/>
      <inertia ixx="0" iyy="0" izz="0" ixy="0" ixz="0" iyz="0"/></inertial></link>
      <joint name="tilt" type="revolute"><parent link="base"/><child link="pole"/>
      <axis xyz="0 1 0"/><limit lower="-1" upper="1" effort="1" velocity="1"/></joint></robot>"""
    wall = Plane((1.0, 0.0, 0.0), (-1.0, 0.0, 0.0))
    return contact_system(Robot.from_urdf(urdf), [Contact("tip", "pole", wall)])
