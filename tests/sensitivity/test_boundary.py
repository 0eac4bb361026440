"""Impacts that only just stop a contact: one-sided derivatives of the whole flow, on both sides."""

from dataclasses import replace

import numpy as np
import pytest
from hybridctl.robots import ball, block
from mechanics.test_impact_pieces import (
    MU,
    point_mass,
    rates_to_velocity,
    touching_block,
)
from scipy.integrate import solve_ivp

import hybridctl as hc
from hybridctl.base.errors import AmbiguousEventError, InputError
from hybridctl.hybrid.laws import DifferentiableLaw
from hybridctl.hybrid.mode import FieldJacobian, GuardJacobian, ResetBorder, ResetJacobian
from hybridctl.mechanics import ContactDynamics, Plane, contact_system
from hybridctl.mechanics.impacts.impact import impact
from hybridctl.mechanics.impacts.stick_slip_boundary import find_stick_slip_boundary
from hybridctl.sensitivity.saltation import jump_gains

G = 9.81
TIGHT = {"rtol": 1e-12, "atol": 1e-12}
STEPS = np.array([1e-3, 1e-4, 1e-5])


def backwards(system, mode, x, duration):
    """The state from which `mode` flows to x, without input."""
    m = system.mode(mode)
    none = np.zeros(m.nu)
    flow = solve_ivp(lambda t, z: -m.field(-t, z, none), (0.0, duration), x, "DOP853", **TIGHT)
    return flow.y[:, -1]


def check(system, mode, x0, end, count=6, floor=1e-10, linear=False):
    """One-sided differences of the flow fall to the derivative as h, on both sides of the border.

    Returns modes after the events of the perturbed runs. floor: absolute error of a run.
    """
    run = hc.simulate(system, mode, x0, (0.0, end), **TIGHT)
    lin = hc.linearize(system, run, **TIGHT)
    assert run.events[0].report.border
    assert lin.is_linear == linear
    seen = set()
    half = np.random.default_rng(0).normal(size=(count, len(x0)))
    put_back = system.mode(mode).project or (lambda x: x)  # perturbed motions obey the mode too
    half = np.array([(put_back(x0 + 1e-6 * dx) - x0) / 1e-6 for dx in half])
    for dx in np.vstack([half, -half]):
        predicted = lin.derivative(dx)
        error = []
        for h in STEPS:
            start = put_back(x0 + h * dx)
            moved = hc.simulate(system, mode, start, (0.0, end), event_window=0.0, **TIGHT)
            error.append(np.abs((moved.final_state - run.final_state) / h - predicted).max())
        error = np.array(error) / max(1.0, np.abs(predicted).max())
        assert (error[1:] <= 0.12 * error[:-1] + floor / STEPS[1:]).all(), error
        assert error[-1] <= 1e-3
        seen.add(tuple(event.mode_after for event in moved.events))
        if not linear:
            first = run.events[0].index
            order = lin.jumps[first].order(lin.arcs[first].end @ dx)
            assert (order == (0, 1)) == (moved.events[0].report.states[0] != "stick")
    return seen


def ball_on_the_cone(friction, sign, theta=0.3, fall=1.5, restitution=0.0):
    """A ball that hits a slope with v_t = sign mu (1 + e) |v_n|, downhill or uphill."""
    parameters = ball.BallParameters(friction=friction, slope=theta, restitution=restitution)
    system = ball.system(parameters)
    c, s = np.cos(theta), np.sin(theta)
    along, normal = np.array([c, -s]), np.array([s, c])
    velocity = fall * (sign * friction * (1.0 + restitution) * along - normal)
    return system, backwards(system, ("open",), np.concatenate([0.1 * along, velocity]), 0.1)


@pytest.mark.parametrize(
    ("friction", "sign", "slips", "sticks"),
    [
        (0.5, 1.0, (("slip+",), ("stick",)), (("stick",),)),
        (0.5, -1.0, (("slip-",), ("stick",)), (("stick",),)),
        (0.25, 1.0, (("slip+",),), (("slip+",),)),  # tan 0.3 = 0.309: it slides off downhill
        (0.25, -1.0, (("slip-",), ("slip+",)), (("slip+",),)),
    ],
    ids=["slips on, held", "slips back, held", "slips on, not held", "slips back, not held"],
)
def test_a_ball_that_the_impact_only_just_stops(friction, sign, slips, sticks):
    """Where friction holds it afterwards it ends at rest, slipping briefly or not: linear."""
    system, x0 = ball_on_the_cone(friction, sign)
    assert check(system, ("open",), x0, 0.4, linear=friction == 0.5) == {slips, sticks}


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_ball_that_bounces_where_the_impact_only_just_stops_it_along_the_slope(sign):
    system, x0 = ball_on_the_cone(0.5, sign, restitution=0.5)
    assert check(system, ("open",), x0, 0.2) == {(("open",),)}


def test_the_bounce_by_hand():
    """On a level floor v_x+ = max(v_x - mu (1 + e) |v_z|, 0); the fall is |v_z| = 1.5 m/s.

    v_z+ = e |v_z|. Deviations of the start of the fall, 0.1 s before, without those of the height:
    at fixed time they also fly on from where they hit.
    """
    mu, e, t = 0.5, 0.5, 0.1
    system, x0 = ball_on_the_cone(mu, 1.0, theta=0.0, restitution=e)
    run = hc.simulate(system, ("open",), x0, (0.0, 0.2), **TIGHT)
    jump = hc.jump_derivative(system, run.events[0])
    for faster, left in ((1.0, 1.0), (-1.0, 0.0)):
        found = jump([t * faster, 0.0, faster, 0.0])
        np.testing.assert_allclose(found, [t * faster, 0.0, left, 0.0], atol=1e-12)
    lift = 1e-3  # dt = lift / 1.5, the fall G dt faster
    dt = lift / 1.5
    slower = max(-mu * (1.0 + e) * G * dt, 0.0)
    found = jump([0.0, lift, 0.0, 0.0])
    speed = mu * (1.0 + e) * 1.5  # along x, kept for dt longer
    expected = [speed * dt, -(e * 1.5) * dt, slower, e * G * dt + G * dt]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_a_corner_of_a_block_that_the_impact_only_just_stops():
    """It goes on turning about that corner, whether that slips briefly or not."""
    p = block.BlockParameters(friction=0.5)
    system, dynamics = block.system(p), ContactDynamics(block.robot(p), block.contacts(p))
    q = np.array([0.0, 0.0, -0.9])  # on the left corner
    q[1] = -dynamics.gaps(q).min()
    rows = dynamics.contact_set.jacobian(q)[[0, 2]]
    mass = dynamics.robot.mass_matrix(q)
    turn = np.linalg.svd(rows)[2][-1]
    v = -0.5 * turn - np.linalg.solve(mass, rows.T @ np.array([0.6, -0.5 * 0.6]))
    x0 = backwards(system, ("open", "open"), np.concatenate([q, v]), 0.05)
    seen = check(system, ("open", "open"), x0, 0.1, linear=True)
    assert seen == {(("stick", "open"),), (("slip+", "open"), ("stick", "open"))}


def test_a_corner_that_turns_fast_and_is_not_held_slips_back_at_once():
    """What slows its slip is friction and, with 6 rad/s, 2.3 m/s^2 of its way round."""
    p = block.BlockParameters(friction=0.2)
    system, dynamics = block.system(p), ContactDynamics(block.robot(p), block.contacts(p))
    q = np.array([0.0, 0.0, -0.5])
    q[1] = -dynamics.gaps(q).min()
    rows, mass = dynamics.contact_set.jacobian(q)[[0, 2]], dynamics.robot.mass_matrix(q)
    turn = np.linalg.svd(rows)[2][-1]
    v = -6.0 * turn / turn[2] - np.linalg.solve(mass, rows.T @ np.array([0.6, -0.2 * 0.6]))
    x0 = backwards(system, ("open", "open"), np.concatenate([q, v]), 0.05)
    seen = check(system, ("open", "open"), x0, 0.1)
    assert seen == {(("slip-", "open"),), (("slip+", "open"), ("slip-", "open"))}


def test_two_corners_that_stop_together():
    """A block slides on its left corner while the right one comes down, and both only just stop."""
    p = block.BlockParameters(friction=0.3)
    system, dynamics = block.system(p), ContactDynamics(block.robot(p), block.contacts(p))
    q = np.array([0.0, 0.5 * p.height, 0.0])
    rows, left = (
        dynamics.contact_set.jacobian(q),
        11.0 / 19.0,
    )  # leaves the left corner its zero speed
    forces = 0.2 * np.array([left, 1.0, p.friction * left, p.friction])
    v = -np.linalg.solve(dynamics.robot.mass_matrix(q), rows.T @ forces)
    x0 = backwards(system, ("slip-", "open"), np.concatenate([q, v]), 0.03)
    seen = check(system, ("slip-", "open"), x0, 0.06, linear=True)
    assert seen == {(("slip-", "slip-"), ("stick", "stick")), (("stick", "stick"),)}


@pytest.mark.parametrize("restitution", [0.0, 0.4])
def test_in_space(restitution):
    """On a slope, across the line of fall, so that gravity turns the brief slip.

    Stopping at 1e-9 m/s, runs are right to that times the turn.
    """
    system, x0 = point_on_the_cone((0.1, 0.2, 1.0), restitution)
    held = restitution == 0.0
    seen = check(system, ("open",), x0, 0.2, count=3, floor=3e-9, linear=held)
    assert seen == ({(("slip",), ("stick",)), (("stick",),)} if held else {(("open",),)})


def point_on_the_cone(normal, restitution=0.0, angle=0.7, fall=1.3):
    dynamics = point_mass(("x", "y", "z"), Plane((0.0, 0.0, 0.0), normal))
    contact = replace(dynamics.contacts[0], restitution=restitution)
    system = contact_system(dynamics.robot, [contact])
    side = MU * (1.0 + restitution) * fall * np.array([np.cos(angle), np.sin(angle)])
    v = rates_to_velocity(dynamics, np.zeros(3), [-fall, *side])
    return system, backwards(system, ("open",), np.concatenate([np.zeros(3), v]), 0.1)


def only_event(system, mode, x0, end):
    (event,) = hc.simulate(system, mode, x0, (0.0, end), **TIGHT).events
    return event


def test_other_ways_to_ask_refuse_the_border():
    system, x0 = ball_on_the_cone(0.5, 1.0, restitution=0.5)
    event = only_event(system, ("open",), x0, 0.2)
    for ask in (jump_gains, hc.saltation_matrix):
        with pytest.raises(InputError, match=r"border of .* slips.*jump_derivative"):
            ask(system, event)


def test_a_slip_in_a_surface_that_friction_does_not_stop_is_refused():
    system, x0 = point_on_the_cone((0.6, 0.0, 1.0))  # steeper than friction 0.4
    event = only_event(system, ("open",), x0, 0.15)
    assert event.mode_after == ("slip",)
    with pytest.raises(InputError, match=r"'foot' slip .*no two linear pieces"):
        hc.jump_derivative(system, event)


def landing_level(width, height, friction, slide):
    """A plank that falls level from rest at 1 m/s, sliding at `slide` m/s."""
    system = block.system(block.BlockParameters(width=width, height=height, friction=friction))
    return system, np.array([0.0, 0.5 * height + 0.025, 0.0, slide, -1.0, 0.0])


def assert_one_sided(system, x0, end, count=3):
    """Differences of runs on one side, extrapolated, agree with the linearization to 1e-5."""
    mode = ("open", "open")
    run = hc.simulate(system, mode, x0, (0.0, end), **TIGHT)
    lin = hc.linearize(system, run, **TIGHT)
    for d in np.random.default_rng(0).normal(size=(count, 6)):
        d /= np.linalg.norm(d)
        quotients = []
        for h in (1e-5, 0.5e-5):
            moved = hc.simulate(system, mode, x0 + h * d, (0.0, end), event_window=0.0, **TIGHT)
            quotients.append((moved.final_state - run.final_state) / h)
        found, expected = 2.0 * quotients[1] - quotients[0], lin.derivative(d)
        np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-5 * np.abs(expected).max())


def test_corners_that_hold_each_other_are_at_the_border_together():
    """The second corner to land has the first one pull with all the friction it has, inwards.

    Neither can slip away from the other, and one that slips while the other sticks is held again.
    """
    system, x0 = landing_level(0.1, 0.02, 0.5, 0.0)
    event = only_event(system, ("open", "open"), x0, 0.05)
    after_one = hc.jump_derivative(system, event).jump(frozenset({0}), 1)
    assert np.abs(after_one.state[3:] @ np.array([0.0, 0.0, 0.0, 1.0, 0.0, 0.0])).max() < 1e-12
    assert_one_sided(system, x0, 0.06)


@pytest.mark.parametrize("friction", [0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("size", [(0.1, 0.02), (0.3, 0.05), (1.0, 0.1)])
@pytest.mark.parametrize("slide", [0.0, 0.2])
def test_a_plank_that_lands_level(size, friction, slide):
    assert_one_sided(*landing_level(*size, friction, slide), 0.06, count=2)


def test_level_landings_that_are_refused_end_elsewhere_beside_it():
    """A high block is thrown off its other corner: the flow jumps, and the event is named."""
    system, x0 = landing_level(0.1, 0.3, 0.5, 0.0)
    run = hc.simulate(system, ("open", "open"), x0, (0.0, 0.04), **TIGHT)
    with pytest.raises(AmbiguousEventError, match=r"event 0 at t = 0\.0225.*left closes, right"):
        hc.linearize(system, run)
    for h in (1e-4, 1e-6):
        tilted = x0 + h * np.eye(6)[2]
        moved = hc.simulate(system, ("open", "open"), tilted, (0.0, 0.04), on_zeno="rest", **TIGHT)
        assert np.abs(moved.final_state - run.final_state).max() > 0.1


def test_corners_that_land_together_at_the_border_are_refused():
    """A block falls flat, sideways at mu |v_n|."""
    p = block.BlockParameters(friction=0.3)
    system = block.system(p)
    x0 = backwards(system, ("open", "open"), np.array([0.0, 0.05, 0.0, 0.3, -1.0, 0.0]), 0.05)
    event = only_event(system, ("open", "open"), x0, 0.1)
    assert event.guards == ("left closes", "right closes")
    assert event.report.border == (0, 1)
    with pytest.raises(AmbiguousEventError, match="their order matters"):
        hc.jump_derivative(system, event)


def test_a_contact_that_only_just_takes_part_is_refused():
    """A block slides, and its left corner needs no impulse when the right one hits."""
    dynamics, q, v = touching_block(0.2, 0.3, 0.0)
    result = impact(dynamics, q, v, (0, 1))
    with pytest.raises(InputError, match="only just takes part"):
        find_stick_slip_boundary(dynamics, q, v, result, result.modes, np.zeros(0))


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_static_friction_that_only_just_holds_is_refused(side):
    """Sticking or sliding off: no derivative. Friction a little above or below has one."""
    theta = 0.3
    p = ball.BallParameters(friction=0.2, slope=theta)
    system = ball.system(p)

    def landing(static):
        contact = replace(ball.contacts(p)[0], static_friction=static)
        system = contact_system(ball.robot(p), [contact])
        return system, only_event(system, ("open",), x0, 0.15)

    velocity = 1.5 * -np.array([np.sin(theta), np.cos(theta)])
    x0 = backwards(system, ("open",), np.concatenate([np.zeros(2), velocity]), 0.1)
    with pytest.raises(InputError, match="only just sticks"):
        hc.jump_derivative(*landing(np.tan(theta)))
    other, event = landing(np.tan(theta) + side * 1e-3)
    assert event.mode_after == (("stick",) if side > 0.0 else ("slip+",))
    assert hc.jump_derivative(other, event).state.shape == (4, 4)


_OVERFLOW_START = np.array([0.5, 0.5 * np.exp(-0.15)])  # the event is at 0.5 s, where y = t


def overflowing_system():
    """A reset of its own: y+ = y + 0.7 max(y - t + u, 0) where s falls to 0, with y' = 0.3 y + u.

    After it y' = -y; at the event y = t and u = 0.
    """

    def row(*values):
        return np.array(values)

    def distance(t, x, u):
        return x[1] - t + u[0]

    def border(t, x, u, mode, u_after):
        inside = GuardJacobian(np.array(-1.0), row(0.0, 1.0), row(1.0))
        moved = ResetJacobian(row(0.0, -0.7), np.diag([1.0, 1.7]), np.array([[0.0], [0.7]]))
        kept = ResetJacobian(np.zeros(2), np.eye(2), np.zeros((2, 1)))
        return ResetBorder("overflow", inside, moved, kept)

    reset = hc.Reset(
        lambda t, x, u: row(x[0], x[1] + 0.7 * max(distance(t, x, u), 0.0)),
        lambda t, x, u: border(t, x, u, None, u).negative,
        border,
    )
    modes = [
        hc.Mode(
            name,
            hc.VectorSpace(2),
            lambda t, x, u, k=rate: row(-1.0, k * x[1] + u[0]),
            1,
            lambda t, x, u, k=rate: FieldJacobian(np.diag([0.0, k]), np.array([[0.0], [1.0]])),
        )
        for name, rate in (("before", 0.3), ("after", -1.0))
    ]
    guard = hc.Guard(
        "lands",
        lambda t, x, u: x[0] + 0.2 * u[0],
        lambda t, x, u: GuardJacobian(np.array(0.0), row(1.0, 0.0), row(0.2)),
    )
    return hc.HybridSystem(modes, [hc.Transition("before", guard, reset, "after")])


def test_a_border_that_moves_and_is_pushed():
    """Perturbations by state and input on both sides of the border, against differences."""
    system, x0 = overflowing_system(), _OVERFLOW_START

    def push(t):
        return np.array([np.sin(3.0 * (t - 0.5))])

    def nominal_start(t, x):
        return push(t) * 0.0

    run = hc.simulate(system, "before", x0, (0.0, 1.0), nominal_start, **TIGHT)
    lin = hc.linearize(system, run, **TIGHT)
    sides = set()
    for dx in np.random.default_rng(1).normal(size=(8, 2)):
        for du in (0.0, 1.0, -1.0):
            predicted = lin.derivative(dx, lambda t, du=du: du * (1.0 + push(t)))
            h = 1e-6
            moved = hc.simulate(
                system,
                "before",
                x0 + h * dx,
                (0.0, 1.0),
                lambda t, x, du=du, h=h: h * du * (1.0 + push(t)),
                **TIGHT,
            )
            found = (moved.final_state - run.final_state) / h
            np.testing.assert_allclose(found, predicted, atol=3e-5)
            sides.add(lin.jumps[0].order(lin.arcs[0].end @ dx, [du]))
    assert sides == {(0, 1), (1, 0)}


def test_a_border_that_moves_under_feedback():
    """Perturbations of the closed loop, against differences."""
    system, x0 = overflowing_system(), _OVERFLOW_START
    gain = np.array([0.4, -0.3])
    grown = lambda t: x0[1] * np.exp(0.3 * t)  # noqa: E731
    law = DifferentiableLaw(
        lambda t, x: np.array([gain @ (x - np.array([0.5 - t, grown(t)]))]),
        lambda t, x: gain[None],
        lambda t, x: np.array([gain @ np.array([1.0, -0.3 * grown(t)])]),
    )
    nominal = hc.simulate(system, "before", x0, (0.0, 1.0), law, **TIGHT)
    fed_back = hc.linearize(system, nominal, policy=law, **TIGHT)
    for dx in np.random.default_rng(2).normal(size=(8, 2)):
        moved = hc.simulate(system, "before", x0 + 1e-6 * dx, (0.0, nominal.end), law, **TIGHT)
        found = (moved.final_state - nominal.final_state) / 1e-6
        np.testing.assert_allclose(found, fed_back.derivative(dx), atol=3e-5)


def test_the_matrix_of_a_run_to_the_border_is_refused_for_the_border():
    system, x0 = ball_on_the_cone(0.5, 1.0, restitution=0.5)
    lin = hc.linearize(system, hc.simulate(system, ("open",), x0, (0.0, 0.2), **TIGHT), **TIGHT)
    with pytest.raises(InputError, match="as guard 'slope closes' leads to the border of"):
        _ = lin.state_transition
