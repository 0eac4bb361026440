"""Sliding and sticking against closed forms: on a belt, on a slope in space, on a flat table."""

import numpy as np
import pytest
from hybridctl.robots import ball, cube
from hybridctl.robots.bodies import free_body
from scipy.integrate import quad
from scipy.optimize import brentq

import hybridctl as hc
from hybridctl.mechanics import Contact, Plane, Robot, contact_system
from mechanics.hopper import hopper

G = 9.81


@pytest.mark.parametrize("turns", [50, pytest.param(500, marks=pytest.mark.slow)])
def test_a_mass_on_a_moving_belt_sticks_and_slips_at_every_turn(turns):
    """Seen from the belt: a spring whose other end moves at the speed of the belt.

    Sticking, the spring grows from 2 c - x_s to x_s with x_s = mu_s g / k, c = mu_k g / k; then
    e'' = -omega^2 (e - c) until the mass has the belt's speed again, half a turn and twice the
    phase of the breakaway later. Speeds are right to about rtol x 0.1 m/s, which over an
    acceleration of 2 m/s^2 and the slow growth of the spring means 1e-7 s.
    """
    k, speed, static, kinetic = 100.0, 0.1, 0.4, 0.2
    robot = Robot.from_urdf(ball.urdf(), stiffness={"x": k})
    belt = Contact(
        "pad", "ball", Plane((0, 0, 0), (0, 0, 1)), friction=kinetic, static_friction=static
    )
    omega, longest, center = np.sqrt(k), static * G / k, kinetic * G / k
    phase = np.arctan2(speed / omega, longest - center)
    slipping, sticking = (np.pi + 2.0 * phase) / omega, 2.0 * (longest - center) / speed
    first = longest / speed
    end = first + (turns + 0.5) * (slipping + sticking) - sticking
    run = hc.simulate(
        contact_system(robot, [belt]),
        ("stick",),
        np.zeros(4),
        (0.0, end),
        lambda t, x: np.array([-k * speed * t, 0.0]),
        max_events=1500,
    )
    assert [e.guards for e in run.events[:2]] == [("pad slips-",), ("pad sticks",)]
    assert {e.guards for e in run.events[0::2]} == {("pad slips-",)}
    assert {e.guards for e in run.events[1::2]} == {("pad sticks",)}
    gaps = np.diff([e.time for e in run.events])
    assert run.events[0].time == pytest.approx(first, abs=1e-9)
    np.testing.assert_allclose(gaps[0::2], slipping, atol=1e-7)
    np.testing.assert_allclose(gaps[1::2], sticking, atol=1e-7)
    assert len(run.events) == 2 * turns + 1


def test_a_point_that_slides_across_a_slope_in_space_turns_downhill_as_the_closed_form():
    """With phi the angle to the line of fall, dv/dphi = v (mu c - s cos phi) / (s sin phi).

    So v = C tan(phi / 2)^k / sin phi with k = mu / tan(theta), and t = int v / (g s sin phi).
    """
    theta, mu, speed = 0.3, 0.2, 1.0
    s, c = np.sin(theta), np.cos(theta)
    robot, contacts = hopper(
        3, mass=1.0, upper=1e-9, stiffness=1e-9, normal=(s, 0.0, c), friction=mu
    )
    system = contact_system(robot, contacts)
    x0 = np.zeros(8)
    x0[5] = speed  # across the line of fall
    run = hc.simulate(system, ("slip",), x0, (0.0, 0.6), rtol=1e-11, atol=1e-12)
    assert not run.events
    v = run.final_state[4:7]
    found = np.array([v @ [c, 0.0, -s], v[1]])
    k = mu * c / s
    constant = speed * np.sin(np.pi / 2) / np.tan(np.pi / 4) ** k

    def fast(phi):
        return constant * np.tan(phi / 2.0) ** k / np.sin(phi)

    def elapsed(phi):
        return quad(lambda a: fast(a) / (G * s * np.sin(a)), phi, np.pi / 2, epsabs=1e-13)[0]

    phi = brentq(lambda a: elapsed(a) - 0.6, 0.01, np.pi / 2, xtol=1e-14)
    np.testing.assert_allclose(found, fast(phi) * np.array([np.cos(phi), np.sin(phi)]), atol=1e-9)


def test_a_puck_on_a_table_stops_once_at_the_closed_form_time_and_place():
    """v / (mu g) and v^2 / (2 mu g); the guard fires at |v_t| = 1e-8 m/s, 3.4e-9 s early."""
    mu, v = 0.3, np.array([0.8, -0.6])
    robot, contacts = hopper(3, upper=1e-9, stiffness=1e-9, friction=mu)
    x0 = np.array([0.0, 0.0, 0.0, 0.0, *v, 0.0, 0.0])
    run = hc.simulate(contact_system(robot, contacts), ("slip",), x0, (0.0, 1.0))
    (event,) = run.events
    assert event.mode_after == ("stick",)
    assert event.time == pytest.approx((1.0 - 1e-8) / (mu * G), abs=1e-9)
    np.testing.assert_allclose(run.final_state[:2], v / (2.0 * mu * G), atol=1e-8)


def test_a_growing_pull_breaks_a_mass_away_at_the_static_limit():
    """Pull a t reaches mu_s m g; then m v' = a t - mu_k m g."""
    rate, static, kinetic = 4.0, 0.25, 0.2
    pad = Contact(
        "pad", "ball", Plane((0, 0, 0), (0, 0, 1)), friction=kinetic, static_friction=static
    )
    system = contact_system(Robot.from_urdf(ball.urdf()), [pad])
    run = hc.simulate(
        system, ("stick",), np.zeros(4), (0.0, 1.0), lambda t, x: np.array([rate * t, 0.0])
    )
    (event,) = run.events
    begin = static * G / rate
    assert event.mode_after == ("slip+",)
    assert event.time == pytest.approx(begin, abs=1e-10)
    speed = 0.5 * rate * (1.0 - begin**2) - kinetic * G * (1.0 - begin)
    assert run.final_state[2] == pytest.approx(speed, abs=1e-9)


def tipped(speed):
    """A body of 1 kg and 1 kg m^2 whose point, 1.8 m ahead and 1 m below, slides and digs in.

    Friction presses it down: the normal response 1 + x^2 - mu x z is 0.28 of 4.24 at first, and
    goes to 1e-2 and less until the point stops.
    """
    robot = Robot.from_urdf(free_body("body", 1.0, (1.0, 1.0, 1.0)), root="floating")
    ground = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    point = Contact("point", "body", ground, offset=(1.8, 0.0, -1.0), friction=2.2)
    system = contact_system(robot, [point])
    q, v = robot.neutral(), np.zeros(6)
    q[2], v[4] = 1.0, 2.0
    rows = system.dynamics.contact_set.jacobian(q)
    v[[2, 0, 1]] = np.linalg.solve(rows[:, [2, 0, 1]], np.array([0.0, speed, 0.3]) - rows @ v)
    return system, np.concatenate([q, v])


@pytest.mark.parametrize(
    ("speed", "force"),
    [
        pytest.param(2.5, 432.2, marks=pytest.mark.slow),
        pytest.param(3.5, 3787.0, marks=[pytest.mark.slow, pytest.mark.long]),
    ],
)
def test_a_stop_in_a_surface_from_which_a_contact_slips_back_is_an_event(speed, force):
    """Its normal force grows to many times the weight of 9.81 N, and falls at once.

    The derivative of the flow: central differences over 2e-6 miss O(1e-12) of the third one and
    the 1e-11 of the flow's tolerance over that, 1e-5 where perturbations grow a thousandfold
    before the stop; what they find agrees over steps from 1e-7 to 1e-4 to 1e-8.
    """
    system, x0 = tipped(speed)
    options = {"rtol": 1e-11, "atol": 1e-12}
    run = hc.simulate(system, ("slip",), x0, (0.0, 0.05), **options)
    (stop,) = run.events
    assert (stop.guards, stop.mode_after) == (("point sticks",), ("slip",))
    (before,) = system.mode(("slip",)).outputs(stop.time, stop.state_before, np.zeros(0))[
        "normal_force"
    ]
    (after,) = system.mode(("slip",)).outputs(stop.time, stop.state_after, np.zeros(0))[
        "normal_force"
    ]
    assert before == pytest.approx(force, rel=1e-4)
    assert after < 10.0
    slip = system.dynamics.slip_velocities(run.final_state[:7], run.final_state[7:])[0]
    assert slip[0] < 0.0
    project, space = system.mode(("slip",)).project, system.space
    transition = hc.linearize(system, run).state_transition
    for direction in np.random.default_rng(1).normal(size=(3, 12)):
        starts = [project(space.integrate(x0, s * 1e-6 * direction)) for s in (1.0, -1.0)]
        ends = [
            hc.simulate(system, ("slip",), x, (0.0, 0.05), **options).final_state for x in starts
        ]
        change, found = (space.difference(b, a) / 2e-6 for a, b in (starts, ends))
        np.testing.assert_allclose(
            transition @ change, found, rtol=0.0, atol=1e-6 * np.abs(found).max()
        )


@pytest.mark.parametrize("tolerance", [1e-9, 1e-10, 1e-11])
@pytest.mark.parametrize("speed", [2.1, 2.5, 3.1])
def test_a_stop_from_which_a_contact_slips_back_is_no_pole(speed, tolerance):
    """Its force falls from hundreds of newtons to 0.4 N within the step on which it stops.

    Steps before a stop are short, and guards that fire together there would make it a pole.
    """
    system, x0 = tipped(speed)
    run = hc.simulate(system, ("slip",), x0, (0.0, 0.05), rtol=tolerance, atol=tolerance)
    assert [event.guards for event in run.events] == [("point sticks",)]


@pytest.mark.parametrize("friction", [0.3, 1.0])
def test_a_contact_about_to_stop_slides_as_a_faster_one_does(friction):
    """Friction knows the direction of a sliding velocity, not its size, until the stop.

    A cube falls onto a corner and slides on it without turning; between 1e-5 and 1e-8 m/s nothing
    else changes the acceleration. It is compared where friction slows the corner down the way it
    goes: of one that speeds up at 1e-8 m/s the direction is that of its acceleration.
    """
    system = cube.system(cube.CubeParameters(friction=friction))
    dynamics, robot = system.dynamics, system.robot
    modes = ("slip",) + ("open",) * 7
    q = robot.integrate(robot.neutral(), np.array([0.0, 0.0, 0.0, 0.1, 0.5, 0.3]))
    tangents, slowed = dynamics.tangent_jacobian(q)[0], 0
    for angle in np.linspace(0.0, 2.0 * np.pi, 48, endpoint=False):
        heading = np.array([np.cos(angle), np.sin(angle)])
        v = np.concatenate([heading @ tangents[:, :3], np.zeros(3)])
        fast = dynamics.acceleration(q, 1e-5 * v, np.zeros(0), modes)
        slow = dynamics.acceleration(q, 1e-8 * v, np.zeros(0), modes)
        change = tangents @ fast.acceleration
        if heading @ change < -0.6 * np.linalg.norm(change):
            slowed += 1
            np.testing.assert_allclose(slow.acceleration, fast.acceleration, atol=1e-6)
    assert slowed
