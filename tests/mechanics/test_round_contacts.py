"""Round contacts: spheres that roll, by closed forms, both kinds of terms, and differences."""

from dataclasses import replace

import numpy as np
import pinocchio as pin
import pytest
from differences import assert_derivative
from hybridctl.robots.bodies import free_body

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.mechanics import Contact, Plane, Robot, Sphere, contact_system
from hybridctl.mechanics.contacts.contact_kinematics import ContactSet
from hybridctl.mechanics.terms.expression_terms import ExpressionTerms
from hybridctl.mechanics.terms.general_terms import GeneralTerms
from mechanics.random_robots import random_robot

MASS, RADIUS, G = 0.7, 0.11, 9.81
FLOOR = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
TERMS = ("pinocchio", "generated")


def roller(root, share, surface=FLOOR, friction=2.0, slope=0.0, terms="auto"):
    """A body of inertia share * m r^2 about all axes that touches with a sphere around its centre.

    slope: of gravity against z, rad.
    """
    inertia = [share * MASS * RADIUS**2] * 3
    down = G * np.array([np.sin(slope), 0.0, -np.cos(slope)])
    robot = Robot.from_urdf(free_body("ball", MASS, inertia), root=root, gravity=down)
    contact = Contact("rim", "ball", surface, friction=friction, radius=RADIUS)
    return contact_system(robot, [contact], terms=terms)


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize(("root", "share"), [("sagittal", 0.5), ("floating", 0.4)])
def test_rolling_down_a_slope_has_its_closed_form(terms, root, share):
    """Acceleration g sin a / (1 + I / m r^2): 2/3 of it for a disc, 5/7 for a ball."""
    slope, end = 0.3, 0.8
    system = roller(root, share, slope=slope, terms=terms)
    q = system.robot.neutral()
    q[1 if root == "sagittal" else 2] = RADIUS
    start = np.concatenate((q, np.zeros(system.robot.nv)))
    run = hc.simulate(system, ("stick",), start, (0.0, end))
    acceleration = G * np.sin(slope) / (1.0 + share)
    assert not run.events
    assert run.final_state[0] == pytest.approx(0.5 * acceleration * end**2, rel=1e-8)
    out = system.mode(("stick",)).outputs(end, run.final_state, np.zeros(0))
    np.testing.assert_allclose(out["contact_position"][0], [run.final_state[0], 0, 0], atol=1e-8)
    friction = np.linalg.norm(out["friction_force"][0])
    assert friction == pytest.approx(share * MASS * acceleration, rel=1e-8)


@pytest.mark.parametrize("terms", TERMS)
def test_a_ball_that_slides_rolls_at_five_sevenths_of_its_speed(terms):
    """It slides for 2 v / (7 mu g), during which friction is mu m g."""
    speed, friction = 2.0, 0.3
    system = roller("floating", 0.4, friction=friction, terms=terms)
    start = np.concatenate((system.robot.neutral(), [speed, 0, 0, 0, 0, 0]))
    start[2] = RADIUS
    run = hc.simulate(system, ("slip",), start, (0.0, 0.5))
    (event,) = run.events
    assert event.mode_after == ("stick",)
    assert event.time == pytest.approx(2.0 * speed / (7.0 * friction * G), rel=1e-7)
    moved = system.robot.nq
    spin = run.final_state[moved + 3 :]
    assert np.linalg.norm(run.final_state[moved : moved + 3]) == pytest.approx(5 / 7 * speed)
    assert np.linalg.norm(spin) == pytest.approx(5 / 7 * speed / RADIUS)


@pytest.mark.parametrize("terms", TERMS)
def test_a_disc_in_a_bowl_swings_and_keeps_its_energy(terms):
    """It rolls as a pendulum of length l (1 + I / m r^2), l being the distance of the centres."""
    bowl, share, begin = 0.9, 0.5, 0.02
    surface = Sphere((0.0, 0.0, bowl), bowl, inside=True)
    system = roller("sagittal", share, surface, terms=terms)
    length = bowl - RADIUS
    start = np.zeros(6)
    start[:2] = length * np.sin(begin), bowl - length * np.cos(begin)
    period = 2.0 * np.pi * np.sqrt(length * (1.0 + share) / G)
    run = hc.simulate(system, ("stick",), start, (0.0, period))
    assert not run.events
    within = begin**2 / 8.0  # of a swing of finite size: the period is longer by begin^2 / 16
    np.testing.assert_allclose(run.final_state[:2], start[:2], atol=length * begin * within)
    energy = [
        system.mode(("stick",)).outputs(t, run(t), np.zeros(0))["energy"].sum()
        for t in np.linspace(0.0, period, 5)
    ]
    np.testing.assert_allclose(energy, energy[0], atol=1e-9 * MASS * G * length)


def round_point(seed):
    """A random robot with round contacts, and random arguments."""
    pin.seed(seed)
    rng = np.random.default_rng(seed)
    robot, contacts = random_robot(rng)
    members = ContactSet(robot, [replace(c, radius=float(rng.uniform(0.1, 0.5))) for c in contacts])
    q = robot.integrate(robot.neutral(), rng.normal(size=robot.nv))
    return robot, members, q, rng.normal(size=(2, robot.nv)), rng


@pytest.mark.parametrize("seed", range(8))
def test_random_robots_have_the_same_terms_both_ways(seed):
    robot, members, q, (v, a), rng = round_point(seed)
    u, forces = rng.normal(size=robot.nu), rng.normal(size=len(members.owner))
    ways = ExpressionTerms(robot, members), GeneralTerms(robot, members)
    for what, arguments in (
        ("values", (q, v, u)),
        ("derivatives", (q, v, a, forces)),
        ("impulse_derivatives", (q, a, forces)),
    ):
        generated, other = (getattr(way, what)(*arguments) for way in ways)
        for name in generated._fields:
            expected = getattr(other, name)
            scale = max(float(np.abs(expected).max(initial=0.0)), 1.0)
            found = getattr(generated, name)
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * scale, err_msg=name)


@pytest.mark.parametrize("seed", range(4))
def test_rows_are_differences_of_gaps_and_rates(seed):
    """Along q(t) = q exp(v t) rates of normals change by their drift; rates have derivatives."""
    robot, members, q, (v, a), _ = round_point(seed)
    count = len(members.tangents)

    def rates(dq, speed):
        return members.jacobian(robot.integrate(q, dq)) @ speed

    _, drift, _, rate = members.motion(robot.motion(q, v, members.joints), v)
    np.testing.assert_allclose(rate, members.jacobian(q) @ v, atol=1e-12)
    derivatives = members.derivatives(q, v, a)
    assert_derivative(lambda z: members.gaps(robot.integrate(q, z)), members.jacobian(q)[:count])
    assert_derivative(lambda s: rates(s[0] * v, v)[:count], drift[:count, None])
    assert_derivative(lambda z: rates(z, v), derivatives.rate_q)


@pytest.mark.parametrize("terms", TERMS)
def test_the_flow_of_rolling_has_its_derivative(terms):
    """An unbalanced ball rolls in a bowl; its contact point moves on both."""
    offset = 0.03
    link = f"""<robot name="ball"><link name="ball"><inertial><origin xyz="{offset} 0 0"/>
      <mass value="{MASS}"/><inertia ixx="2e-3" iyy="3e-3" izz="4e-3" ixy="0" ixz="0" iyz="0"/>
      </inertial></link></robot>"""
    robot = Robot.from_urdf(link, root="floating")
    bowl = Sphere((0.0, 0.0, 0.9), 0.9, inside=True)
    contact = Contact("rim", "ball", bowl, friction=3.0, radius=RADIUS)
    system = contact_system(robot, [contact], terms=terms)
    mode, space = system.mode(("stick",)), system.mode(("stick",)).space
    q = robot.integrate(robot.neutral(), np.array([0.3, 0.1, 0.2, 0.4, -0.2, 0.6]))
    v = np.array([0.3, -0.5, 0.2, 2.0, 1.0, -3.0])
    x = mode.project(np.concatenate((q, v)))
    assert np.abs(mode.held.residuals(x)).max() < 1e-9
    run = hc.simulate(system, mode.key, x, (0.0, 0.05), rtol=1e-11, atol=1e-11)
    assert not run.events
    exact = hc.linearize(system, run).state_transition
    held = mode.held.jacobian(x)
    allowed = np.linalg.svd(held)[2][len(held) :]
    h = 1e-5
    for way in allowed[::3]:
        ends = [
            hc.simulate(
                system, mode.key, mode.project(space.integrate(x, s * h * way)), (0.0, 0.05),
                rtol=1e-11, atol=1e-11,
            ).final_state
            for s in (1.0, -1.0)
        ]  # fmt: skip
        along = space.difference(ends[1], ends[0]) / (2.0 * h)
        np.testing.assert_allclose(along, exact @ way, atol=1e-6 * np.abs(exact).max())


def test_a_radius_is_not_negative():
    with pytest.raises(InputError, match="radius must be at least 0"):
        Contact("rim", "ball", FLOOR, radius=-0.1)
