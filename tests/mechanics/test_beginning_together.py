"""Feet that begin to slide one after the other, microseconds apart."""

from importlib.metadata import files

import pytest

import hybridctl as hc
from hybridctl.mechanics import Contact, Plane, Robot, contact_system

LEGS = ("FL", "FR", "RL", "RR")


@pytest.fixture(scope="module")
def quadruped():
    """A public quadruped on springs, its contacts with the ground, and its stance."""
    urdf = next(f for f in files("example-robot-data") if f.name == "go2.urdf").locate()
    angles = {"hip": 0.0, "thigh": 0.8, "calf": -1.5}
    stance = {f"{leg}_{j}_joint": a for leg in LEGS for j, a in angles.items()}
    springs = {"stiffness": dict.fromkeys(stance, 60.0), "damping": dict.fromkeys(stance, 2.0)}
    robot = Robot.from_urdf(urdf, root="floating", **springs, rest=stance)
    ground, each = Plane((0, 0, 0), (0, 0, 1)), {"offset": (0, 0, -0.022), "friction": 0.6}
    contacts = [Contact(f"{leg}_foot", f"{leg}_foot", ground, **each) for leg in LEGS]
    return contact_system(robot, contacts), robot.posture(stance)


@pytest.mark.slow
@pytest.mark.parametrize("height", [0.36, 0.44, 0.53])
def test_a_quadruped_slides_on_its_front_feet_and_comes_to_stand(quadruped, height):
    """From 36 cm they begin at once, from 53 cm 2.5 us apart: none must stop the other."""
    system, q = quadruped
    q = q.copy()
    q[2] = height
    x0 = [*q, *[0.0] * system.robot.nv]
    run = hc.simulate(system, ("open",) * 4, x0, (0.0, 0.5), max_steps=2000)
    assert {"FL_foot slips", "FR_foot slips"} <= {guard for e in run.events for guard in e.guards}
    assert run.final_mode == ("stick",) * 4
