"""Public robots dropped on their feet, level and tilted, or swung against a wall, for 0.5 s.

From higher up they fall limp as well as held by their springs. Limp ones jam (Painleve), and end by
bridges; what these do is chaotic, so that only laws are asked for.
"""

import warnings
from functools import cache
from itertools import product

import numpy as np
import pinocchio as pin
import pytest
from hybridctl.robots import public

import hybridctl as hc
from attack.machines import Machine
from attack.runs import faults
from attack.systems import StepLimit
from hybridctl.base.errors import BridgeWarning
from hybridctl.mechanics import contact_system

G = 9.81
END = 0.5
STANDING = ["solo12", "anymal", "go1", "talos", "icub"]
FALLING = [name for name, model in public.MODELS.items() if model.stands]
ARMS = [name for name, model in public.MODELS.items() if not model.stands]
TILTS = {"level": (0.0, 0.0), "rolled": (0.1, 0.0), "tilted": (0.1, 0.1)}
# Feet that land one after the other, and slide: seconds to half a minute.
LONG = {
    ("icub", "level"),
    *product(("solo12", "anymal", "go1", "talos", "icub"), ("rolled", "tilted")),
}


@cache
def dropped(name, tilt, end=END):
    """System, run and the number of its steps."""
    system, counter = public.system(name), StepLimit()
    start = public.start(name, 0.01, *TILTS[tilt])
    return system, simulated(system, start, end, counter), counter.steps


def simulated(system, start, end, counter):
    settings = {"on_zeno": "rest", "max_events": 2000}
    flying = ("open",) * len(system.contacts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BridgeWarning)
        return hc.simulate(system, flying, start, (0.0, end), progress=counter, **settings)


def marked(*case):
    """A name, level if no tilt follows it; among the slow cases if its run takes long.

    Tilted ones roll too, so that landings that only roll are more of the same.
    """
    slow = [pytest.mark.slow] * ((*case, "level")[:2] in LONG)
    return pytest.param(*case, marks=slow + [pytest.mark.long] * ("rolled" in case))


def model_of(name):
    """The model for the judge, read apart from the robot, with Pinocchio's own mimic joints."""
    text = public.urdf(name)
    if public.MODELS[name].stands:
        return pin.buildModelFromXML(text, pin.JointModelFreeFlyer(), mimic=True)
    return pin.buildModelFromXML(text, mimic=True)


def judged(name, made=public.robot):
    """The robot as the judge sees it: its springs and dampers about its posture."""
    robot, model = made(name), model_of(name)
    angles, rest = public.MODELS[name].posture, pin.neutral(model)
    for joint, angle in angles.items():
        rest[model.joints[model.getJointId(joint)].idx_q] = angle
    passive = robot.passive
    return Machine(robot, model, rest, public.contacts(name), passive.stiffness, passive.damping)


def vertical(system, run, t):
    """Sum of the normal forces of all contacts, N."""
    arc = run.arc(t)
    outputs = system.mode(arc.mode).outputs(t, arc(t), arc.input(t))
    return float(outputs["normal_force"].sum())


@pytest.mark.parametrize(("name", "tilt"), [marked(*c) for c in product(STANDING, TILTS)])
def test_a_robot_lands_on_its_feet(name, tilt):
    system, run, _ = dropped(name, tilt)
    assert run.end == END
    assert run.events
    assert not faults(judged(name), system, run, INSTANT).wrong()


@pytest.mark.parametrize("name", [marked(name) for name in STANDING])
def test_a_robot_that_has_landed_level_carries_its_weight(name):
    system, run, _ = dropped(name, "level")
    weight = G * sum(inertia.mass for inertia in model_of(name).inertias)
    assert vertical(system, run, END) == pytest.approx(weight, rel=0.02)
    assert run.final_mode.count("open") == 0
    # the falling speed is sqrt(2 g h) = 0.44 m/s; what rocks on is slower by more than ten
    assert np.abs(run.final_state[-model_of(name).nv :][:3]).max() < 0.04


@pytest.mark.parametrize("name", STANDING)
def test_a_robot_that_lands_tilted_meets_the_floor_foot_by_foot(name):
    fall = np.sqrt(2.0 * 0.01 / G)  # s, of the lowest contact, freely
    first = dropped(name, "tilted", 1.06 * fall)[1].events[0]
    assert len(first.guards) == 1
    assert first.time == pytest.approx(fall, rel=0.05)


QUICK = {
    ("anymal", 0.3, 0.15, "limp"),
    ("hyq", 0.05, 0.0, "held"),
    ("go1", 0.6, 0.0, "limp"),
    ("anymal", 0.05, 0.0, "held"),
}
# Forces of redundant corners, within rounding of having none inside all cones, are beside them by
# up to 8 % for less.
INSTANT = 1e-6  # s
FALLS = list(product(FALLING, (0.05, 0.1, 0.3, 0.6), (0.0, 0.15), ("limp", "held")))
MADE = {"limp": public.limp, "held": public.robot}


def marks(i, fall):
    """All but the quick ones are slow, and eight of nine of these long.

    There are 16 falls of each robot, so that every ninth meets all robots, heights and kinds.
    """
    if fall in QUICK:
        return []
    return [pytest.mark.slow] + [pytest.mark.long] * (i % 9 != 0)


@pytest.mark.parametrize(
    "fall", [pytest.param(f, marks=marks(i, f)) for i, f in enumerate(FALLS)], ids=str
)
def test_a_fall_ends_and_obeys_the_laws(fall):
    """Contacts that let go on a bridge are 1e-7 m deep at its end, and energy never rises.

    Feet that slide by 1e-8 m/s have no direction but rounding: friction is off by up to 1e-3 there.
    """
    name, height, tilt, kind = fall
    robot, contacts = MADE[kind](name), public.contacts(name)
    system = contact_system(robot, contacts, on_several="dissipation")
    run = simulated(system, public.start(name, height, tilt, tilt), END, StepLimit())
    assert run.end == END
    found = faults(judged(name, MADE[kind]), system, run, INSTANT)
    assert max(found.pull, found.cone, found.oppose) < 1e-3
    assert not found.wrong().keys() - {"pull", "cone", "oppose"}
    assert found.penetration < 1.2e-7
    if kind == "limp":
        states = [arc(t) for arc in run.arcs for t in (arc.start, arc.end)]
        energy = np.array([sum(robot.energy(x[: robot.nq], x[robot.nq :])) for x in states])
        assert np.diff(energy).max() < 1e-8 * np.abs(energy).max()


@pytest.mark.parametrize("name", ARMS)
def test_an_arm_that_swings_against_a_wall_ends_pressed_to_it(name):
    system, run, _ = dropped(name, "level")
    assert run.end == END
    assert not faults(judged(name), system, run).wrong()
    assert "open" not in run.final_mode
    assert vertical(system, run, END) > 0.0


@pytest.mark.parametrize("name", [marked(name) for name in [*STANDING, *ARMS]])
def test_runs_take_few_steps(name):
    """Flight, impact and standing are smooth: nothing asks for more than one step in 0.1 ms."""
    assert dropped(name, "level")[2] <= END / 1e-4
