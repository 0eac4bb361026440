"""Soles that land together: corners of a sole are one event, and either sole may be the first."""

from functools import lru_cache

import casadi as ca
import numpy as np
import pytest

import hybridctl as hc
from hybridctl.mechanics import Contact, Plane, Robot, contact_system
from hybridctl.planning.optimisation import optimise
from hybridctl.planning.task import Margins, Phase, Task
from hybridctl.planning.transcription import transcribe

AIR, BOTH = ("open",) * 4, ("stick",) * 4
LEFT, RIGHT = ("stick", "stick", "open", "open"), ("open", "open", "stick", "stick")
CORNERS = ("left heel", "left toe", "right heel", "right toe")
HEIGHT, DROP = 0.05, 0.1  # m, of ankles above soles, and of the fall
SPEED = (2.0 * 9.81 * DROP) ** 0.5
BODY, FOOT = 2.0, 0.5  # kg
HALF, HEEL, TOE = 0.5, 0.1, 0.2  # m
# Feet turn freely about ankles that are their centres: to the body they are masses at its ends.
MASS, INERTIA = BODY + 2.0 * FOOT, 0.3 + 2.0 * FOOT * HALF**2


@lru_cache
def biped():
    """A body that motors move in a plane, with a foot of two corners on an ankle at either end.

    The right ankle slides along the body, so that it holds its place as well where both feet stick.
    """
    inertial = (
        '<inertial><mass value="{0}"/>'
        '<inertia ixx="{1}" iyy="{1}" izz="{1}" ixy="0" ixz="0" iyz="0"/></inertial>'
    )
    limits = '<limit lower="-1" upper="1" effort="20" velocity="9"/>'
    links = "".join(
        f'<link name="{name}">{inertial.format(mass, inertia)}</link>'
        for name, mass, inertia in (
            ("rail", 0.0, 0.0),
            ("cart", 1e-9, 1e-12),
            ("lift", 1e-9, 1e-12),
            ("body", BODY, 0.3),
            ("left", FOOT, 0.01),
            ("slider", 0.1, 0.0),
            ("right", FOOT - 0.1, 0.01),
        )
    )
    joints = "".join(
        f"""<joint name="{child} joint" type="{kind}"><parent link="{parent}"/>
        <child link="{child}"/><origin xyz="{x} 0 0"/><axis xyz="{axis}"/>{limits}</joint>"""
        for parent, child, kind, x, axis in (
            ("rail", "cart", "prismatic", 0.0, "1 0 0"),
            ("cart", "lift", "prismatic", 0.0, "0 0 1"),
            ("lift", "body", "revolute", 0.0, "0 1 0"),
            ("body", "left", "revolute", -HALF, "0 1 0"),
            ("body", "slider", "prismatic", HALF, "1 0 0"),
            ("slider", "right", "revolute", 0.0, "0 1 0"),
        )
    )
    robot = Robot.from_urdf(f'<robot name="biped">{links}{joints}</robot>')
    floor = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    corners = [
        Contact(f"{side} {end}", side, floor, offset=(x, 0.0, -HEIGHT), friction=0.7)
        for side in ("left", "right")
        for end, x in (("heel", -HEEL), ("toe", TOE))
    ]
    return contact_system(robot, corners)


@lru_cache
def landing():
    """From 0.1 m above the floor onto both soles, and 0.1 s on them."""
    start = np.zeros(12)
    start[1] = HEIGHT + DROP
    return Task(
        biped(),
        [
            Phase(AIR, tuple(f"{name} closes" for name in CORNERS), (0.1, 0.3), 2, 3),
            Phase(BOTH, (), (0.1, 0.1 + 1e-9), 2, 3),
        ],
        start=start,
        margins=Margins(force=0.1, impulse=0.01, approach=0.05),
        degree=2,
        implicit=True,
    )


def fall(k, s, tilt_rate=0.0):
    """A free fall onto the floor, with feet that stay level."""
    x = np.zeros(12)
    x[1], x[7] = (HEIGHT + DROP * (1.0 - s * s), -SPEED * s) if k == 0 else (HEIGHT, 0.0)
    x[[8, 9, 11]] = tilt_rate * np.array([1.0, -1.0, -1.0]) * (k == 0)
    return x


@lru_cache
def programme():
    """The programme of the landing."""
    return transcribe(landing())


def find_order_values(guess):
    """What is limited after each order of events, by the names of the limits."""
    start, found = programme().compute_start(guess), {}
    for block in programme().blocks:
        names = [limit.name for limit in block.limits]
        if " after " in names[0]:
            row = ca.Function("row", [programme().column], [block.values])(start)
            found.update(zip(names, np.asarray(row).ravel().tolist(), strict=True))
    return found


def test_either_sole_lands_first_with_both_of_its_corners():
    """One end of a plate stops: L (1/m + h^2/I) = c; the other goes on with the rest of its speed.

    Feet are masses at the ends of the plate. Heel and toe share L with no moment about the ankle.
    """
    found = find_order_values(fall)
    soles = {side: f"{side} heel and {side} toe" for side in ("left", "right")}
    both = {" then ".join(soles.values()), " then ".join(reversed(soles.values()))}
    assert {name.split(" after ")[1] for name in found} == {*soles.values(), *both}
    alone = SPEED / (1.0 / MASS + HALF**2 / INERTIA)
    rate = SPEED - alone * (1.0 / MASS - HALF**2 / INERTIA)
    shares = {"heel": TOE / (HEEL + TOE), "toe": HEEL / (HEEL + TOE)}
    for first, other in (("left", "right"), ("right", "left")):
        for end, share in shares.items():
            impulse = found[f"normal impulse of '{first} {end}' after {soles[first]}"]
            assert impulse == pytest.approx(share * alone)
            fall_rate = found[f"fall of guard '{other} {end} closes' after {soles[first]}"]
            assert fall_rate == pytest.approx(rate)
            assert f"normal force of '{first} {end}' after {soles[first]}" in found


def test_a_sole_that_would_have_to_be_pulled_down_has_negative_impulses():
    """A body that tilts so fast that its left end rises cannot land there first."""
    found = find_order_values(lambda k, s: fall(k, s, tilt_rate=2.0 * SPEED / HALF))
    for end in ("heel", "toe"):
        assert found[f"normal impulse of 'left {end}' after left heel and left toe"] < 0.0
        assert found[f"normal impulse of 'right {end}' after right heel and right toe"] > 0.0


def test_a_planned_landing_on_two_soles_is_followed_whichever_is_first():
    """A tilt of the body by 1 mrad decides, with level feet: corners of a sole touch at once."""
    task = landing()
    found = optimise(task, fall)
    assert found.open_loop.closes, found.open_loop.problem
    (event,) = found.run.events
    assert event.guards == task.phases[0].ends
    for tilt, between in ((-1e-3, LEFT), (1e-3, RIGHT)):
        start = np.array(task.start)
        start[[2, 3, 5]] = tilt * np.array([1.0, -1.0, -1.0])
        run = hc.simulate(task.system, AIR, start, (0.0, found.plan.end))
        assert [arc.mode for arc in run.arcs] == [AIR, between, BOTH]
        assert [len(event.guards) for event in run.events] == [2, 2]
