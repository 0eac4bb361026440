"""A body that slides so that friction presses it down: no acceleration, or two of them.

A point at (x, -z) of a body with m = I = 1 slides in +x. With a_n = W_nn - mu W_nt < 0 the law
0 <= c + a_n lambda _|_ lambda >= 0, c = omega^2 z - g, has no solution for c < 0 and two for
c > 0: lambda = 0 and lambda = -c / a_n (Painleve). [RS] 2.3.4 excludes it, the software says so.
"""

from dataclasses import replace

import numpy as np
import pytest
from differences import assert_derivative
from hybridctl.robots.bodies import free_body
from scipy.optimize import brentq

import hybridctl as hc
from hybridctl.base.errors import (
    GuardViolatedError,
    JammingError,
    NoContactSolutionError,
    SeveralContactSolutionsError,
)
from hybridctl.mechanics import Contact, ContactDynamics, Plane, Robot, contact_system
from hybridctl.mechanics.impacts.resets import NEAR_JAM
from hybridctl.mechanics.modes.selection import select_modes
from hybridctl.mechanics.modes.tolerances import JAMMED

G, X, Z = 9.81, 1.0, 1.0
NONE = np.zeros(0)


def sliding(mu, omega, x=X, speed=0.5):
    """The body with its point on the ground, sliding at `speed`, and turning at `omega`."""
    robot = Robot.from_urdf(free_body("body", 1.0, (1.0, 1.0, 1.0)), root="sagittal")
    ground = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    point = Contact("point", "body", ground, offset=(x, 0.0, -Z), friction=mu)
    dynamics = ContactDynamics(robot, [point])
    q = np.array([0.0, Z, 0.0])
    rows = dynamics.contact_set.jacobian(q)
    v = np.array([0.0, 0.0, omega])
    v[:2] = np.linalg.solve(rows[[1, 0], :2], np.array([speed, 0.0]) - rows[[1, 0], 2] * omega)
    return dynamics, q, v


def presses(dynamics, q, mu):
    """W_nn - mu W_nt for sliding in +x."""
    w_n, w_t = dynamics.contact_set.jacobian(q)
    return w_n @ w_n - mu * (w_n @ w_t)


@pytest.mark.parametrize("side", [1.0, -1.0])
@pytest.mark.parametrize("mu", [0.5, 1.9, 2.1, 3.0])
@pytest.mark.parametrize("omega", [0.0, 2.0, 4.0])
def test_no_or_two_solutions_are_reported_exactly_where_the_closed_form_has_them(side, mu, omega):
    dynamics, q, v = sliding(mu, omega, side * X)
    a_n, c = presses(dynamics, q, mu), omega**2 * Z - G
    if a_n > 0.0:
        expected = "slip+" if c < 0.0 else "open"
        assert select_modes(dynamics, q, v, NONE, ("slip+",)) == (expected,)
    elif c < 0.0:
        with pytest.raises(NoContactSolutionError) as none:
            select_modes(dynamics, q, v, NONE, ("slip+",))
        assert none.value.problem.delassus[0, 0] == pytest.approx(1.0 + X**2)
        assert none.value.problem.free[0] == pytest.approx(c)
    else:
        with pytest.raises(SeveralContactSolutionsError) as several:
            select_modes(dynamics, q, v, NONE, ("slip+",))
        forces = sorted(solution.forces[0] for solution in several.value.solutions)
        np.testing.assert_allclose(forces, [0.0, -c / a_n], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("side", [1.0, -1.0])
@pytest.mark.parametrize("mu", [0.5, 1.9, 1.999, 2.001, 3.0])
@pytest.mark.parametrize("omega", [0.0, 2.0, 4.0])
def test_a_compiled_mode_of_one_sliding_contact_selects_as_the_law_does(side, mu, omega):
    """Where its guards hold it does not solve the law: a_n > 0 leaves no other solution."""
    dynamics, q, v = sliding(mu, omega, side * X)
    mode = contact_system(dynamics.robot, dynamics.contacts).mode(("slip+",))
    assert mode.has_one_solution
    point = mode.calc(0.0, np.concatenate((q, v)), NONE)
    assert point.values is not None  # else it is no compiled mode here
    try:
        expected = select_modes(dynamics, q, v, NONE, ("slip+",))
    except (NoContactSolutionError, SeveralContactSolutionsError) as error:
        with pytest.raises(type(error)):
            assert point.selected_mode
    else:
        assert point.selected_mode == expected


def test_static_friction_does_not_excuse_a_second_solution_of_a_contact_that_slides():
    """Sliding with the force -c / a_n is consistent, and so is opening."""
    dynamics, q, v = min(
        (sliding(3.0, 4.0, side * X) for side in (1.0, -1.0)),
        key=lambda case: presses(case[0], case[1], 3.0),
    )
    (point,) = dynamics.contacts
    sticky = ContactDynamics(dynamics.robot, [replace(point, static_friction=3.5)])
    with pytest.raises(SeveralContactSolutionsError):
        select_modes(sticky, q, v, NONE, ("slip+",))


def test_a_run_does_not_start_where_the_contact_would_pull():
    mu = 3.0
    cases = [sliding(mu, 0.0, side * X) for side in (1.0, -1.0)]
    (dynamics, q, v) = min(cases, key=lambda case: presses(case[0], case[1], mu))
    system = contact_system(dynamics.robot, dynamics.contacts)
    with pytest.raises(GuardViolatedError, match="point opens"):
        hc.simulate(system, ("slip+",), np.concatenate([q, v]), (0.0, 1.0))


def rod(mu, angle, rate, speed, tips=("tip",)):
    """A uniform rod of 2 m and 1 kg at an angle to the ground, on which its tip slides.

    Several tips are at one point: contacts that share a load they cannot tell apart.
    """
    robot = Robot.from_urdf(free_body("rod", 1.0, (1e-3, 1.0 / 3.0, 1.0 / 3.0)), root="sagittal")
    ground = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    each = {"offset": (-1.0, 0.0, 0.0), "friction": mu}
    system = contact_system(robot, [Contact(tip, "rod", ground, **each) for tip in tips])
    q, v = np.array([0.0, 0.0, angle]), np.array([0.0, 0.0, rate])
    q[1] -= system.dynamics.gaps(q)[0]
    rows = system.dynamics.contact_set.jacobian(q)[[len(tips), 0]]
    v[:2] = np.linalg.solve(rows[:, :2], np.array([speed, 0.0]) - rows[:, 2] * rate)
    return system, np.concatenate([q, v])


def left(mu, sign, angle):
    """What friction leaves of 1 + 3 c^2, the response of the tip to a normal force on 1 kg."""
    c, s = np.cos(angle), np.sin(angle)
    return 1.0 - sign * mu * 3.0 * s * c / (1.0 + 3.0 * c * c)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("angle", [-1.4, -1.1, -0.5, 0.3])
def test_the_guard_of_a_rod_that_slides_is_the_closed_form(sign, angle):
    system, x = rod(2.0, angle, 0.7, sign)
    guards = system.outgoing(("slip+" if sign > 0.0 else "slip-",)).guards
    i = guards.names.index("sliding jams")
    assert guards.values(0.0, x, NONE)[i] == pytest.approx(left(2.0, sign, angle) - JAMMED)
    derivative = guards.jacobian(0.0, x, NONE).state[i : i + 1]
    assert_derivative(lambda z: guards.values(0.0, x + z, NONE)[i : i + 1], derivative)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("angle", [-0.5, 0.3])
def test_the_guard_of_contacts_that_share_a_load_is_that_of_one(sign, angle):
    """Of the responses a [[1, 1], [1, 1]] the one motion that forces make has 2 a."""
    system, x = rod(0.8, angle, 0.7, sign, ("left", "right"))
    guards = system.outgoing(("slip+" if sign > 0.0 else "slip-",) * 2).guards
    i = guards.names.index("sliding jams")
    assert guards.values(0.0, x, NONE)[i] == pytest.approx(left(0.8, sign, angle) - JAMMED)
    derivative = guards.jacobian(0.0, x, NONE).state[i : i + 1]
    assert_derivative(lambda z: guards.values(0.0, x + z, NONE)[i : i + 1], derivative)


@pytest.mark.parametrize(("mu", "jams"), [(1.33, False), (1.34, True)])
def test_a_uniform_rod_can_jam_from_a_friction_of_four_thirds_on(mu, jams):
    worst = np.arctan(2.0)
    system, x = rod(mu, -worst, 0.0, -1.0)
    guards = system.outgoing(("slip-",)).guards
    value = guards.value(guards.names.index("sliding jams"), 0.0, x, NONE)
    assert (value < 0.0) == jams


@pytest.mark.parametrize("tips", [("tip",), ("left", "right")])
@pytest.mark.parametrize("rate", [-2.0, -0.5])
def test_a_rod_that_jams_ends_its_run_before_forces_are_without_meaning(rate, tips):
    """N (1 + 3 c^2) p = g - rate^2 s on the way, so that N is at most that over 1e-6.

    It ends at p = 1e-6, known as well as the angle is, to 1e-9 of flow and 1e-8 of the guard.
    """
    system, x0 = rod(2.0, -0.5, rate, -30.0, tips)
    with pytest.raises(JammingError, match=tips[0]) as jam:
        hc.simulate(system, ("slip-",) * len(tips), x0, (0.0, 1.0), on_jam="raise")
    assert jam.value.contacts == tips
    assert jam.value.ratio == pytest.approx(JAMMED, abs=1e-7)
    assert 1e4 < jam.value.forces[0] < 10.0 / JAMMED


def at_ratio(ratio):
    """A rod that slides so that friction leaves this part of its response, and its jam's edge."""
    angle = brentq(lambda a: left(2.0, 1.0, a) - ratio, 0.3, 1.0, xtol=1e-16)
    system, x = rod(2.0, angle, 0.0, 1.0)
    return system, x, system.outgoing(("slip+",))


@pytest.mark.parametrize(("times", "ends"), [(0.9, True), (1.1, False)])
def test_a_mode_ends_while_its_forces_are_known_to_a_thousandth(times, ends):
    """N (1 + 3 c^2) p = g for a rod that does not turn: 1e-9 of the angle, 1e-9 of p = 1e-6."""
    system, x, outgoing = at_ratio(times * JAMMED)
    i = outgoing.guards.names.index("sliding jams")
    assert (outgoing.guards.values(0.0, x, NONE)[i] < 0.0) == ends
    forces = []
    for angle in (x[2], x[2] - 1e-9):
        ratio = left(2.0, 1.0, angle)
        forces.append(G / ((1.0 + 3.0 * np.cos(angle) ** 2) * ratio))
    point = system.mode(("slip+",)).calc(0.0, x, NONE).contact
    assert point.forces[0] == pytest.approx(forces[0], rel=1e-6)
    assert abs(forces[1] / forces[0] - 1.0) < 5e-3


@pytest.mark.parametrize(("times", "jams"), [(0.9, True), (1.1, False)])
def test_a_guard_that_only_seemed_to_fall_is_no_jam(times, jams):
    """Flow past the guard's time by 1e-6 s of motions at some radians a second leaves 1e-5."""
    _, x, outgoing = at_ratio(times * NEAR_JAM)
    reset = outgoing.edge(("sliding jams",)).reset
    if jams:
        with pytest.raises(JammingError, match="tip"):
            reset(0.0, x, NONE)
    else:
        jump = reset(0.0, x, NONE)
        assert (jump.mode, *jump.state) == (("slip+",), *x)


def test_a_contact_that_slides_in_a_surface_has_the_derivative_of_its_guard():
    """Its direction turns with the velocity."""
    robot = Robot.from_urdf(free_body("body", 1.3, (0.7, 0.9, 1.1)), root="floating")
    ground = Plane((0.0, 0.0, 0.0), (0.1, 0.0, 1.0))
    points = [
        Contact(name, "body", ground, offset=offset, friction=0.8)
        for name, offset in (("a", (0.8, 0.1, -0.5)), ("b", (-0.6, 0.3, -0.4)))
    ]
    system = contact_system(robot, points)
    rng, space = np.random.default_rng(3), system.space
    x = space.integrate(np.concatenate([robot.neutral(), np.zeros(6)]), rng.normal(size=12))
    for modes in (("slip", "open"), ("slip", "stick"), ("slip", "slip")):
        guards = system.outgoing(modes).guards
        derivative = guards.jacobian(0.0, x, NONE).state[-1:]
        assert guards.names[-1] == "sliding jams"
        assert_derivative(
            lambda z, g=guards: g.values(0.0, space.integrate(x, z), NONE)[-1:], derivative
        )
