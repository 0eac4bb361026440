"""Robots for the tests: a pair of bodies on any base, an arm that carries a surface, the door."""

from dataclasses import replace
from functools import cache

import numpy as np
from hybridctl.robots import rrr_door

from hybridctl.mechanics import Contact, ContactDynamics, Plane, Robot, Sphere

_INERTIA = '<inertia ixx="0.0008" iyy="0.0009" izz="0.001" ixy="0.0001" ixz="0" iyz="0"/>'
PAIR = f"""
<robot name="pair">
  <link name="cube"><inertial><origin xyz="0.01 0.02 0.03"/><mass value="0.37"/>{_INERTIA}
  </inertial></link>
  <link name="arm"><inertial><origin xyz="0.01 0.02 0.1"/><mass value="0.2"/>{_INERTIA}
  </inertial></link>
  <joint name="hip" type="revolute"><parent link="cube"/><child link="arm"/><axis xyz="1 0.3 0"/>
    <limit lower="-1" upper="1" effort="1" velocity="1"/><dynamics damping="0.05"/></joint>
</robot>
"""
WHEEL = PAIR.replace('"revolute"', '"continuous"').replace('axis xyz="1 0.3 0"', 'axis xyz="0 1 0"')

_WING = f"""<link name="wing"><inertial><origin xyz="0.02 0 0.1"/><mass value="0.3"/>{_INERTIA}
</inertial></link>
<joint name="hip" type="revolute"><parent link="cube"/><child link="wing"/><axis xyz="0 1 0"/>
<limit lower="-1" upper="1" effort="1" velocity="1"/></joint></robot>"""
TWINS = (
    PAIR.replace('joint name="hip"', 'joint name="flap"')
    .replace("</joint>", '<mimic joint="hip" multiplier="-0.8" offset="0.1"/></joint>')
    .replace("</robot>", _WING)
)
"""The arm follows a wing, on whose joint are the motor and the spring."""

PLANAR_PAIR = PAIR.replace('axis xyz="1 0.3 0"', 'axis xyz="0 1 0"')

SLOPE = Plane((0.0, 0.0, -0.1), (0.1, 0.2, 1.0))
HILL = Sphere((0.0, 0.1, -0.4), 0.3)
HILL_IN_THE_PLANE = Sphere((0.0, 0.05, -0.4), 0.3)
BOWL = Sphere((0.0, 0.1, 1.1), 2.0, inside=True)


@cache
def pair(root: str, ground, urdf: str = PAIR, mu: float = 0.0) -> ContactDynamics:
    """Two bodies that touch the ground with three points, and each other with a fourth."""
    robot = Robot.from_urdf(urdf, root=root, stiffness={"hip": 2.0})
    knob = Sphere((0.0, 0.0, -0.2), 0.05)
    return ContactDynamics(
        robot,
        [
            Contact("a", "cube", ground, offset=(0.05, 0.05, -0.05), restitution=0.3, friction=mu),
            Contact("b", "cube", ground, offset=(-0.05, 0.05, -0.05), friction=mu),
            Contact("c", "arm", ground, offset=(0.0, 0.0, 0.1), restitution=1.0, friction=2.0 * mu),
            Contact(
                "d",
                "arm",
                knob,
                body="cube",
                offset=(0.0, 0.1, 0.1),
                restitution=0.5,
                friction=0.25 * mu,
                static_friction=0.5 * mu,
            ),
        ],
    )


@cache
def door() -> ContactDynamics:
    return ContactDynamics(rrr_door.robot(), rrr_door.contacts())


@cache
def rough_door() -> ContactDynamics:
    contacts = [replace(c, friction=0.3, static_friction=None) for c in rrr_door.contacts()]
    return ContactDynamics(rrr_door.robot(), contacts)


def modes_of(dynamics: ContactDynamics, closed) -> tuple[str, ...]:
    """The modes of contacts without friction of which these are closed."""
    return tuple("closed" if i in closed else "open" for i in range(len(dynamics.contacts)))


def random_state(dynamics: ContactDynamics, seed: int):
    rng = np.random.default_rng(seed)
    robot = dynamics.robot
    q = robot.integrate(robot.neutral(), rng.normal(size=robot.nv))
    return q, rng.normal(size=robot.nv), rng.normal(size=robot.nu)


CASES = {
    "door": (door, [(), (0,), (1,), (0, 1)]),
    "floating on a slope": (lambda: pair("floating", SLOPE), [(), (0,), (0, 1, 2), (1, 3)]),
    "floating on a hill": (lambda: pair("floating", HILL), [(2,), (0, 1, 2), (0, 3)]),
    "floating in a bowl": (lambda: pair("floating", BOWL), [(0, 1)]),
    "sagittal on a hill": (lambda: pair("sagittal", HILL), [(), (0,), (0, 2)]),
    "wheel on a slope": (lambda: pair("floating", SLOPE, WHEEL), [(2,), (0, 2)]),
}
FLAT = [(name, closed) for name, (_, subsets) in CASES.items() for closed in subsets]

_MU = 0.4
ROUGH = {
    "door": (rough_door, [("stick", "open"), ("slip+", "open"), ("slip-", "slip+")]),
    "floating on a slope": (
        lambda: pair("floating", SLOPE, mu=_MU),
        [
            ("stick",) + ("open",) * 3,
            ("slip", "slip", "open", "slip"),
            ("slip", "open", "open", "slip"),
        ],
    ),
    "floating on a hill": (
        lambda: pair("floating", HILL, mu=_MU),
        [
            ("open", "open", "slip", "open"),
            ("stick", "slip", "open", "open"),
            ("slip", "open", "open", "slip"),
        ],
    ),
    "floating in a bowl": (
        lambda: pair("floating", BOWL, mu=_MU),
        [("slip", "slip", "open", "open"), ("stick", "slip", "open", "open")],
    ),
    "sagittal on a hill": (
        lambda: pair("sagittal", HILL_IN_THE_PLANE, PLANAR_PAIR, mu=_MU),
        [
            ("stick",) + ("open",) * 3,
            ("slip+", "slip-", "open", "open"),
            ("open", "open", "open", "slip+"),
        ],
    ),
    "wheel on a slope": (
        lambda: pair("floating", SLOPE, WHEEL, mu=_MU),
        [("open", "stick", "slip", "open")],
    ),
}
ROUGH_FLAT = [(name, modes) for name, (_, sets) in ROUGH.items() for modes in sets]


def twins() -> ContactDynamics:
    return pair("floating", HILL, TWINS)


def rough_twins() -> ContactDynamics:
    return pair("floating", HILL, TWINS, mu=_MU)
