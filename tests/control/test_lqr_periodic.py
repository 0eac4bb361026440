"""Periodic LQR: a ball on a paddle is held on an orbit that it would leave."""

from dataclasses import replace

import casadi as ca
import numpy as np
import pytest
from hybridctl.robots import paddle
from scipy.linalg import solve_continuous_are

import hybridctl as hc
from hybridctl.base.errors import InputError, SimulationError
from hybridctl.control.lqr.periodic import periodic_lqr
from hybridctl.control.reference import extend
from hybridctl.control.spreading import ReferenceSpreading
from hybridctl.hybrid.trajectory import HybridTrajectory

Q, R = np.diag([100.0, 10.0, 1.0, 0.1]), np.array([[1e-2]])
P = paddle.PaddleParameters()


@pytest.fixture(scope="module")
def orbit():
    return hc.orbits.periodic_orbit(
        paddle.system(), paddle.AIR, paddle.apex(), P.period, input=paddle.drive
    )


@pytest.fixture(scope="module")
def held(orbit):
    return periodic_lqr(orbit.linearization, Q, R)


def tracked(held, periods):
    """How a deviation at the start ends after so many periods, by simulation."""
    plant = paddle.system()
    nominal, gains = held.repeated(periods)
    reference = extend(plant, nominal, before=0.2, after=0.2)
    policy = ReferenceSpreading(reference, gains)

    def end(dx):
        run = hc.simulate(
            plant,
            paddle.AIR,
            nominal(0.0) + dx,
            (0.0, nominal.end),
            policy,
            rtol=1e-11,
            atol=1e-12,
        )
        assert len(run.events) == periods
        return run.final_state - nominal(nominal.end)

    return end


def test_the_orbit_is_unstable_and_the_feedback_holds_it(orbit, held):
    assert np.abs(orbit.multipliers.values[0]) > 2.0
    assert not orbit.multipliers.is_stable
    assert held.multipliers.is_stable
    assert np.abs(held.multipliers.values[0]) < 0.5


def test_the_value_function_is_periodic_and_definite(held):
    assert held.residual < 1e-8
    values = held.period.values
    np.testing.assert_allclose(values[0].start, values[-1].end, rtol=1e-6)
    assert np.linalg.eigvalsh(values[0].start).min() > 0.0


def test_the_multipliers_are_those_that_are_measured(held):
    end, h = tracked(held, 1), 1e-5
    map_ = np.array([(end(h * e) - end(-h * e)) / (2.0 * h) for e in np.eye(4)]).T
    np.testing.assert_allclose(
        map_, held.period.closed_loop.state_transition, atol=1e-3 * np.abs(map_).max()
    )
    measured = np.linalg.eigvals(map_)
    measured = measured[np.argsort(-np.abs(measured))]
    np.testing.assert_allclose(measured[:2], held.multipliers.values[:2], rtol=5e-3, atol=1e-5)


def test_a_deviation_decays_by_the_largest_multiplier(held):
    largest, second = held.multipliers.values[:2]
    assert abs(largest.imag) == 0.0
    values, vectors = np.linalg.eig(held.period.closed_loop.state_transition)
    direction = np.real(vectors[:, np.argmax(np.abs(values))])
    ends = [np.linalg.norm(tracked(held, k)(1e-3 * direction)) for k in (1, 2, 3)]
    ratios = np.array(ends[1:]) / ends[:-1]
    np.testing.assert_allclose(ratios, abs(largest), rtol=0.05)  # of second order in 1e-3
    assert abs(second) < abs(largest)


def test_without_feedback_the_ball_leaves(orbit):
    start = paddle.apex() + np.array([1e-4, 0.0, 0.0, 0.0])
    run = hc.simulate(
        paddle.system(),
        paddle.AIR,
        start,
        (0.0, 4 * P.period),
        lambda t, x: paddle.drive(t),
        rtol=1e-10,
        atol=1e-10,
    )
    assert abs(run.final_state[0] - paddle.apex()[0]) > 1e-3  # 2.46^4 = 37 times as far


def test_the_orbit_is_that_of_the_closed_form(orbit):
    np.testing.assert_allclose(orbit.state, paddle.apex(), atol=1e-9)
    event = orbit.trajectory.events[0]
    assert event.time == pytest.approx(0.5 * P.period, abs=1e-9)
    assert event.state_after[2] == pytest.approx(P.rise)
    assert event.state_before[3] == pytest.approx(P.hit)


def test_a_constant_system_has_the_algebraic_solution():
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u")
    plant = hc.symbolic.hybrid_system(
        [hc.symbolic.SymbolicMode("free", state=x, field=[x[1], x[0] + u], input=u)], []
    )
    run = hc.simulate(plant, "free", [0.0, 0.0], (0.0, 0.7))
    q = np.diag([3.0, 1.0])
    found = periodic_lqr(hc.linearize(plant, run), q, R)
    a, b = np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([[0.0], [1.0]])
    exact = solve_continuous_are(a, b, q, R)
    np.testing.assert_allclose(found.period.values[0].start, exact, rtol=1e-7)
    rates = np.sort(np.linalg.eigvals(a - b @ b.T @ exact / R[0, 0]))
    np.testing.assert_allclose(
        np.sort(np.abs(found.multipliers.values)), np.exp(0.7 * rates), rtol=1e-5
    )


def test_an_input_at_the_event_is_found_by_sweeps():
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u")
    t = ca.SX.sym("t")
    modes = [
        hc.symbolic.SymbolicMode(key, state=x, field=[x[1], -4.0 * x[0] + u], input=u, time=t)
        for key in ("a", "b")
    ]
    rung = [x[0], -0.5 * x[1] + 0.05 * u]
    edges = [
        hc.symbolic.SymbolicTransition("a", "rings", ca.cos(2.0 * np.pi * (t - 0.05)), "b", rung),
        hc.symbolic.SymbolicTransition("b", "ends", ca.cos(2.0 * np.pi * (t - 0.55)), "a"),
    ]
    plant = hc.symbolic.hybrid_system(modes, edges)
    run = hc.simulate(plant, "a", [0.0, 0.0], (0.0, 1.0))
    assert len(run.events) == 2
    lin = hc.linearize(plant, run)
    assert lin.jumps[0].input.any()
    found = periodic_lqr(lin, np.eye(2), np.eye(1))
    assert found.residual < 1e-8
    assert found.multipliers.is_stable


def test_an_unstable_direction_out_of_reach_is_an_error():
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u")
    plant = hc.symbolic.hybrid_system(
        [hc.symbolic.SymbolicMode("free", state=x, field=[x[0], -x[1] + u], input=u)], []
    )
    run = hc.simulate(plant, "free", [0.0, 0.0], (0.0, 1.0))
    with pytest.raises(SimulationError, match="no periodic solution"):
        periodic_lqr(hc.linearize(plant, run), np.eye(2), R)


def test_a_trajectory_that_does_not_close_is_refused():
    plant = paddle.system()
    run = hc.simulate(plant, paddle.AIR, paddle.apex(), (0.0, 0.3))
    with pytest.raises(InputError, match="periodic"):
        periodic_lqr(hc.linearize(plant, run), Q, R)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"amplitude": 0.01}, "amplitude must exceed"),
        ({"restitution": 1.2}, "restitution must be at most 1"),
        ({"period": 0.0}, "period must be greater"),
    ],
)
def test_paddles_that_cannot_be_are_refused(setting, message):
    with pytest.raises(InputError, match=message):
        paddle.PaddleParameters(**setting)


def test_an_orbit_that_begins_at_its_event_has_the_same_multipliers():
    """A ball with thrust on a floor that gives all back: the last arc is as long as rounding."""
    g, v = 9.81, np.sqrt(2.0 * 9.81)
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u")
    air = hc.symbolic.SymbolicMode("air", state=x, input=u, field=[x[1], u - g])
    floor = hc.symbolic.SymbolicTransition(
        "air", "floor", guard=x[0], target="air", reset=[x[0], -x[1]]
    )
    system = hc.symbolic.hybrid_system([air], [floor])
    found = []
    for start in ([1.0, 0.0], [0.0, v]):
        run = hc.simulate(system, "air", start, (0.0, 2.0 * v / g), lambda t, x: np.zeros(1))
        held = periodic_lqr(hc.linearize(system, run), np.eye(2), np.eye(1))
        found.append(np.sort_complex(held.multipliers.values))
    # The orbits are integrated to 1e-9.
    np.testing.assert_allclose(found[1], found[0], atol=1e-7)


def test_repeated_gains_are_those_of_one_period_at_all_times(held):
    """Between knots too, and across the joint of two periods, which lies inside an arc."""
    gains = held.period.gains.arcs
    nominal, repeated = held.repeated(3)
    once = held.period.linearization.trajectory
    assert len(nominal.arcs) == 4
    for arc, curve in zip(nominal.arcs, repeated.arcs, strict=True):
        for t in np.linspace(arc.start, arc.end, 41)[1:-1]:
            s = t % P.period
            own = next(c for a, c in zip(once.arcs, gains, strict=True) if a.start <= s <= a.end)
            np.testing.assert_allclose(curve(t), own(s), rtol=1e-9, atol=1e-9)


def test_an_orbit_that_nearly_closes_is_taken_on_demand(orbit):
    """Beside the orbit a period ends some 1e-4 apart, and the gains are nearly those on it."""
    run = hc.simulate(
        paddle.system(),
        paddle.AIR,
        orbit.trajectory(0.0) + 5e-5,
        (0.0, P.period),
        lambda t, x: paddle.drive(t),
    )
    lin = hc.linearize(paddle.system(), run)
    with pytest.raises(InputError, match=r"must be periodic, .* give a larger tolerance"):
        periodic_lqr(lin, Q, R)
    found = periodic_lqr(lin, Q, R, closing_tolerance=1e-3)
    values = found.multipliers.values
    exact = periodic_lqr(orbit.linearization, Q, R).multipliers.values
    np.testing.assert_allclose(np.sort(np.abs(values)), np.sort(np.abs(exact)), atol=1e-2)


def test_images_of_a_nearly_symmetric_robot_are_extended_on_demand(held):
    """Their events are off by what the robot is off, which the message says."""
    nominal, _ = held.repeated(2)
    first, *rest = nominal.events
    moved = replace(first, state_after=first.state_after + np.array([0.0, 0.0, 4e-5, 0.0]))
    off = HybridTrajectory(nominal.arcs, (moved, *rest))
    with pytest.raises(InputError, match=r"a state off by .*e-05 of 1 .* \(tolerated: 1e-06\)"):
        extend(paddle.system(), off, before=0.1, after=0.1)
    found = extend(paddle.system(), off, before=0.1, after=0.1, symmetry_tolerance=1e-4)
    assert len(found.arcs) == len(nominal.arcs)
