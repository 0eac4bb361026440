"""Feet that begin to slide one after the other, microseconds apart, or beside others that hold."""

from importlib.metadata import files
from itertools import product

import numpy as np
import pytest
from attack.laws import Law, violation
from differences import assert_derivative

import hybridctl as hc
from hybridctl.base.errors import NoContactSolutionError
from hybridctl.mechanics import Contact, Plane, Robot, contact_system
from hybridctl.mechanics.contact_law import solve
from hybridctl.mechanics.modes import slip_directions, standstill
from hybridctl.mechanics.modes.selection import select_modes
from hybridctl.mechanics.modes.slip_directions import find_slip_directions

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
    run = hc.simulate(
        system, ("open",) * 4, x0, (0.0, 0.5), options=hc.SimulationOptions(max_steps=2000)
    )
    assert {"FL_foot slips", "FR_foot slips"} <= {guard for e in run.events for guard in e.guards}
    assert run.final_mode == ("stick",) * 4


def shod(pitches=True):
    """A cube of 4 kg on four corners, and a shoe of 1 kg with an edge on the floor, on two.

    Motors push the shoe along x, up, and turn it about z; about y it hangs free, or is fixed.
    """
    inertia = '<inertia ixx="0.01" iyy="0.01" izz="0.01" ixy="0" ixz="0" iyz="0"/>'
    axes = {"rail": "1 0 0", "mast": "0 0 1", "pin": "0 0 1", "shoe": "0 1 0"}
    if not pitches:
        axes = {"rail": "1 0 0", "mast": "0 0 1", "shoe": "0 0 1"}
    links = ["cube", *axes]
    urdf = '<robot name="shod">'
    for link in links:
        mass = {"cube": 4, "shoe": 1}.get(link)
        body = f'<inertial><mass value="{mass}"/>{inertia}</inertial>' if mass else ""
        urdf += f'<link name="{link}">{body}</link>'
    for (child, axis), parent in zip(axes.items(), links, strict=False):
        kind = "prismatic" if child in ("rail", "mast") else "revolute"
        urdf += f'<joint name="to {child}" type="{kind}"><parent link="{parent}"/>'
        urdf += f'<child link="{child}"/><axis xyz="{axis}"/>'
        urdf += '<limit lower="-1" upper="1" effort="99" velocity="9"/></joint>'
    robot = Robot.from_urdf(urdf + "</robot>", root="floating")
    feet = [("cube", x, y) for x in (0.1, -0.1) for y in (0.1, -0.1)]
    feet += [("shoe", 0.08, 0.0), ("shoe", -0.02, 0.0)]
    ground = Plane((0, 0, 0), (0, 0, 1))
    contacts = [
        Contact(f"{link} {x} {y}", link, ground, offset=(x, y, -0.1), friction=0.7)
        for link, x, y in feet
    ]
    return contact_system(robot, contacts)


def creeping(system, speed, push, turn):
    """State and input of the edge with a corner that creeps, while motors push and turn it."""
    q, v = system.robot.neutral(), np.zeros(system.robot.nv)
    q[2], v[-2] = 0.1, speed / 0.08
    return q, v, np.array([push, -5.0, turn, 0.0])


@pytest.mark.parametrize("creep", [0.0, 5e-10, 2e-9])
@pytest.mark.parametrize("turn", [0.3, -0.6])
def test_an_edge_begins_to_slide_beside_corners_that_hold(creep, turn):
    """The least forces of the cube's corners leave their cones, others make the same motion.

    It is the only one that the law allows, whichever way the edge creeps, by so many m/s.
    """
    system = shod()
    dynamics, (q, v, u) = system.dynamics, creeping(system, creep, 20.0, turn)
    modes = ("stick",) * 4 + ("slip",) * 2
    now = dynamics.acceleration(q, v, u, modes)
    pull = np.linalg.norm(now.friction, axis=1)
    assert (pull <= 0.7 * now.forces + 1e-9 * now.forces.max()).all()
    phase = dynamics.phase(modes)
    law = dynamics.build_acceleration_problem(phase, dynamics.make_rows(phase, q, 0.0 * v, u))
    rates = law.delassus @ now.solution.forces + law.free
    np.testing.assert_allclose(rates, solve(law).rates, atol=1e-8 * law.magnitude)


@pytest.mark.parametrize("creep", [0.0, 5e-10])
def test_what_is_held_where_it_stands_is_selected_to_stick(monkeypatch, creep):
    """So that a guard sees its force, however the search for a direction fares."""
    monkeypatch.setattr(standstill, "solve_in_states", lambda *_: None)
    system = shod()
    dynamics, (q, v, u) = system.dynamics, creeping(system, creep, 8.0, -0.6)
    modes = select_modes(dynamics, q, v, u, ("stick",) * 4 + ("slip",) * 2)
    now = dynamics.acceleration(q, v, u, modes)
    assert not any(now.is_holding(i) for i, mode in enumerate(modes) if mode == "slip")


@pytest.mark.parametrize("creep", [0.0, 5e-10])
@pytest.mark.parametrize(("push", "turn"), [(20.0, 0.3), (8.0, -0.6), (20.0, -0.6), (5.0, 2.0)])
def test_an_edge_whose_points_may_share_its_load_begins_to_slide_with_the_load_they_have(
    creep, push, turn
):
    """Fixed in pitch: how both points share the load says how friction turns the edge.

    Any share has its motion, and all of them obey the law, each with its own directions. So do the
    derivatives: those of differences, which are off by the square of steps from 1e-2 to 1e-5.
    """
    system = shod(pitches=False)
    dynamics, q, v = system.dynamics, system.robot.neutral(), np.zeros(system.robot.nv)
    q[2], v[-1] = 0.1, creep / 0.08
    u, modes = np.array([push, -5.0, turn]), ("stick",) * 4 + ("slip",) * 2
    now = dynamics.acceleration(q, v, u, modes)
    law = dynamics.build_acceleration_problem(
        phase := dynamics.phase(modes), dynamics.make_rows(phase, q, 0.0 * v, u)
    )
    rows = np.concatenate([[i, *tangents] for i, tangents in enumerate(law.tangents)])
    forces = np.column_stack((now.forces, now.friction)).ravel()
    judge = Law(
        law.delassus[np.ix_(rows, rows)], law.free[rows], law.kinetic, (2,) * 6, law.magnitude
    )
    assert violation(judge, forces).worst <= 1e-9
    found = dynamics.derivatives_at(q, v, u, now)
    assert_derivative(
        lambda du: dynamics.acceleration(q, v, u + du, modes).acceleration,
        found.acceleration_z[:, -3:],
    )


@pytest.mark.parametrize(
    ("centre", "turn", "shoe", "slow"),
    [
        (0.0, 1e-7, 0.0, {0, 1, 2, 3}),  # all corners at 1.4e-8 m/s
        (0.05, 1e-7, 0.0, set()),  # at 0.7, 1.6, 1.6 and 2.1e-8
        (0.09, 1e-7, 0.0, {0}),  # at 0.14, 1.9, 1.9 and 2.7e-8
        (0.09, 2e-5, 0.0, set()),  # at 200 times that
        (0.0, 0.0, 3e-7, {0, 1, 2, 3}),  # the shoe alone, at 0.6 and 2.4e-8
    ],
)
def test_velocities_of_a_sole_tell_directions_once_one_of_its_corners_is_fast(
    centre, turn, shoe, slow
):
    """The cube turns about a point on the way to its first corner, or the shoe about its pin."""
    system = shod(pitches=False)
    dynamics, q, v = system.dynamics, system.robot.neutral(), np.zeros(system.robot.nv)
    q[2], v[5], v[-1] = 0.1, turn, shoe
    v[:2] = turn * centre, -turn * centre
    modes = ("slip",) * 4 + (("slip",) * 2 if shoe else ("open",) * 2)
    phase = dynamics.phase(modes)
    rows = dynamics.make_rows(phase, q, v, np.zeros(system.robot.nu))
    directions, found = find_slip_directions(phase, rows)
    assert set(found) == slow
    corners = np.array([(x, y) for x in (0.1, -0.1) for y in (0.1, -0.1)])
    for k in set(range(4)) - slow:
        x, y = corners[k] - centre
        np.testing.assert_allclose(directions[k], np.array([-y, x]) / np.hypot(x, y), atol=1e-9)


def test_a_corner_begins_to_slide_beside_others_in_the_directions_of_their_velocities(monkeypatch):
    """At 1.9, 1.9 and 2.7e-8 m/s, of which one alone would tell: none of them is free to turn."""
    system, asked = shod(pitches=False), []
    dynamics, q, v = system.dynamics, system.robot.neutral(), np.zeros(system.robot.nv)
    q[2], v[5], v[:2] = 0.1, 1e-7, (9e-9, -9e-9)
    solve_in_states = standstill.solve_in_states
    monkeypatch.setattr(
        standstill, "solve_in_states", lambda law, *a: asked.append(law) or solve_in_states(law, *a)
    )
    now = dynamics.solve_phase(
        dynamics.phase(("slip",) * 4 + ("open",) * 2), q, v, np.array([20.0, -5.0, 0.3])
    )
    (law,) = asked
    assert law.sliding[0] is None
    for k in range(1, 4):
        np.testing.assert_allclose(law.sliding[k], now.directions[k], rtol=0.0, atol=1e-15)


def test_what_has_hardly_begun_to_slide_goes_on_as_from_a_standstill():
    """At 5e-9 m/s, what steps leave of a beginning, the edge accelerates as it does from rest.

    So it does where only loads shared anew tell a direction. Terms of these velocities are some
    1e-8 of the others.
    """
    system, rng, shared_anew = shod(pitches=False), np.random.default_rng(1), 0
    dynamics, q, none = system.dynamics, system.robot.neutral(), np.zeros(system.robot.nv)
    modes, starting = ("stick",) * 4 + ("slip",) * 2, (4, 5)
    q[2] = 0.1
    for _ in range(120):
        u = rng.uniform((0.0, -10.0, -2.0), (25.0, 10.0, 2.0))
        v = none.copy()
        v[-1], v[-3] = 5e-9 / 0.08, rng.uniform(-2e-9, 2e-9)
        rest, now = (dynamics.acceleration(q, each, u, modes) for each in (none, v))
        if rest.solution.inside_cones and rest.solution.starting_contacts == starting:
            scale = np.abs(rest.acceleration).max()
            np.testing.assert_allclose(now.acceleration, rest.acceleration, atol=1e-7 * scale)
            first = dynamics.solve_phase(dynamics.phase(modes), q, none, u)
            shared_anew += first.inside_cones is not None
    assert shared_anew >= 5


@pytest.mark.parametrize(
    ("push", "load", "turn"),
    [(10.4, 3.13, 1.04), (5.086, -6.883, 0.983), (10.9, 4.65, -0.364), (1.291, -1.444, 0.752)],
)
def test_corners_that_others_hold_do_not_begin_to_slide(push, load, turn):
    """Two corners of the cube are to slide, two stick: nothing of it moves, in any direction.

    The motion is that with four that stick, and so are its derivatives.
    """
    system = shod(pitches=False)
    dynamics, q, v = system.dynamics, system.robot.neutral(), np.zeros(system.robot.nv)
    q[2], u = 0.1, np.array([push, load, turn])
    asked = ("stick", "stick", "slip", "slip", "slip", "slip")
    now = dynamics.acceleration(q, v, u, asked)
    still = dynamics.acceleration(q, v, u, ("stick",) * 4 + ("slip",) * 2)
    assert [now.is_holding(i) for i in range(6)] == [True] * 4 + [False] * 2
    scale = np.abs(still.acceleration).max()
    np.testing.assert_allclose(now.acceleration, still.acceleration, atol=1e-9 * scale)
    found, expected = (dynamics.derivatives_at(q, v, u, point) for point in (now, still))
    size = np.abs(expected.acceleration_z).max()
    np.testing.assert_allclose(found.acceleration_z, expected.acceleration_z, atol=1e-9 * size)


@pytest.mark.parametrize(("push", "turn"), [(20.0, 0.3), (8.0, -0.6), (5.0, 2.0), (2.0, 1.0)])
def test_directions_are_found_from_afar(push, turn):
    """From 64 pairs of them: Newton's method alone mostly leads to where contacts slow down."""
    system = shod(pitches=False)
    dynamics, q, v = system.dynamics, system.robot.neutral(), np.zeros(system.robot.nv)
    q[2], phase = 0.1, dynamics.phase(("stick",) * 4 + ("slip",) * 2)
    now = dynamics.solve_phase(phase, q, v, np.array([push, -5.0, turn]))
    onwards = 0
    for angles in product(np.arange(8) * np.pi / 4.0, repeat=2):
        start = slip_directions._turn_directions(now, np.array(angles), phase.friction)
        found = slip_directions.turn_starting_contacts(start, phase.friction)
        across, along = (
            slip_directions.compute_slip_accelerations(found, way) for way in (False, True)
        )
        scale = np.abs(found.acceleration).max()
        assert not found.inside_cones or np.abs(across).max() <= 1e-8 * scale
        onwards += bool((along >= -1e-8 * scale).all())
    assert onwards >= 40


def test_directions_that_are_not_found_are_an_error(monkeypatch):
    monkeypatch.setattr(slip_directions, "_MAX_NEWTON_STEPS", 0)
    system = shod(pitches=False)
    q, modes = system.robot.neutral(), ("stick",) * 4 + ("slip",) * 2
    q[2] = 0.1
    with pytest.raises(NoContactSolutionError, match="share loads may begin to slide") as caught:
        system.dynamics.acceleration(
            q, np.zeros(system.robot.nv), np.array([20.0, -5.0, 0.3]), modes
        )
    assert caught.value.numerical


def slab(across):
    """A slab on four corners on a slope of 40 degrees, its centre of mass `across` from its middle.

    It is at rest, and one of four normal forces is open.
    """
    urdf = (
        f'<robot name="slab"><link name="slab"><inertial><origin xyz="0.01 {across} 0"/><mass '
        'value="2"/><inertia ixx="0.01" iyy="0.01" izz="0.02" ixy="0" ixz="0" iyz="0"/>'
        "</inertial></link></robot>"
    )
    robot, slope = Robot.from_urdf(urdf, root="floating"), np.radians(40.0)
    upwards = np.array([np.sin(slope), 0.0, np.cos(slope)])
    corners = [(x, y, -0.05) for x in (0.1, -0.1) for y in (0.06, -0.06)]
    contacts = [
        Contact(f"{x} {y}", "slab", Plane((0, 0, 0), upwards), offset=(x, y, z), friction=0.5)
        for x, y, z in corners
    ]
    q = np.array([*0.05 * upwards, 0.0, np.sin(slope / 2.0), 0.0, np.cos(slope / 2.0)])
    return contact_system(robot, contacts).dynamics, q


@pytest.mark.parametrize("across", [0.0, 0.02, 0.03, -0.035])
def test_a_slab_begins_to_slide_straight(across):
    """Friction acts where the weight does: a = g (sin 40 - 0.5 cos 40), without a turn.

    The friction that would hold it, the first guess, turns by the loads; tan 40 is 0.84.
    """
    dynamics, q = slab(across)
    now = dynamics.acceleration(q, np.zeros(6), np.zeros(0), ("slip",) * 4)
    slope, each = np.radians(40.0), 0.5 * now.forces
    np.testing.assert_allclose(now.friction[:, 0], -each, rtol=1e-8)
    np.testing.assert_allclose(now.friction[:, 1], 0.0, atol=1e-8 * each.max())
    expected = np.zeros(6)
    expected[0] = 9.81 * (np.sin(slope) - 0.5 * np.cos(slope))
    np.testing.assert_allclose(now.acceleration, expected, atol=1e-8)
