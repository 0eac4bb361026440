"""Events without a gradient: which are refused whatever `kink` is, and what it takes of the others.

Events are made by hand, so that they are exactly at their border or without a rate.
"""

import numpy as np
import pytest
from hybridctl.robots import ball

import hybridctl as hc
from hybridctl.base.errors import GrazingError, HybridctlError, InputError, SystemDefinitionError
from hybridctl.gradients.event_adjoint import linearize_event
from hybridctl.hybrid.guards import GuardJacobian
from hybridctl.hybrid.mode import Edge, FieldJacobian, ResetJacobian
from hybridctl.hybrid.model import JumpPoint
from hybridctl.hybrid.trajectory import Event

KINKS = ("raise", "mean", "first")
FRICTION, RESTITUTION = 0.5, 0.4
NONE = np.zeros(0)


def strike(system, speed, **attributes):
    """Return the event at which a ball of a level floor comes with a velocity (2,)."""
    x, u = np.r_[0.3, 0.0, speed], np.zeros(2)
    jump = system.outgoing(("open",)).edge(("slope closes",)).reset(0.5, x, u)
    key = jump.mode or ("open",)
    given = {"report": jump.report, **attributes}
    return Event(
        0, 0.5, ("open",), key, ("slope closes",), x, jump.state, u, u, u, np.zeros(1), **given
    )


def make_ball(**matter):
    """Return a ball above a level floor."""
    return ball.system(ball.BallParameters(slope=0.0, **matter))


@pytest.mark.parametrize("kink", KINKS)
def test_a_touch_without_a_rate_keeps_its_time(kink):
    """A ball that glides along the floor: v_z+ = -e v_z, at a time that does not change."""
    system = make_ball(restitution=RESTITUTION)
    event = strike(system, [1.0, -1e-12])
    if kink == "raise":
        with pytest.raises(GrazingError, match="not crossed transversally"):
            linearize_event(system, event, kink, "in turn")
        return
    found = linearize_event(system, event, kink, "in turn")
    assert found.choice.startswith("the states that the reset reports: guard")
    np.testing.assert_allclose(found.state, np.diag([1.0, 1.0, 1.0, -RESTITUTION]), atol=1e-12)
    assert not found.time_state.any()
    assert not found.input.any()


def fall_on_two_floors(*, jacobian=True, rest=None):
    """Return a ball (height, velocity) on two floors that are one, and have no edge together."""
    drop = hc.Mode(
        "air",
        hc.VectorSpace(2),
        lambda t, x, u: np.array([x[1], -1.0]),
        jacobian=lambda t, x, u: FieldJacobian(
            np.array([[0.0, 1.0], [0.0, 0.0]]), np.zeros((2, 0))
        ),
    )
    slope = ResetJacobian(np.zeros(2), np.diag([1.0, -0.5]), np.zeros((2, 0)))
    bounce = hc.Reset(lambda t, x, u: x * [1.0, -0.5], lambda t, x, u: slope)
    row = GuardJacobian(0.0, np.array([1.0, 0.0]), NONE)
    moves = [
        hc.Transition(
            "air", hc.Guard(name, lambda t, x, u: x[0], lambda t, x, u: row), bounce, "air", rest
        )
        for name in ("floor", "carpet")
    ]
    return hc.HybridSystem([drop], moves)


def touch(guards, velocity, **attributes):
    """Return an event of these guards at a velocity."""
    x = np.array([0.0, velocity])
    return Event(0, 1.0, "air", "air", guards, x, -0.5 * x, NONE, NONE, NONE, NONE, **attributes)


@pytest.mark.parametrize("kink", KINKS)
def test_guards_without_an_edge_together_are_refused_whatever_the_choice(kink):
    """There is no reset whose derivative could be taken. Each guard alone has one."""
    system = fall_on_two_floors()
    with pytest.raises((GrazingError, InputError)):
        linearize_event(system, touch(("floor", "carpet"), -1e-12), kink, "in turn")
    if kink != "raise":
        found = linearize_event(system, touch(("floor",), -1e-12), kink, "in turn")
        np.testing.assert_array_equal(found.state, np.diag([1.0, -0.5]))


@pytest.mark.parametrize("kink", KINKS)
def test_a_jam_that_was_passed_is_refused_whatever_the_choice(kink):
    """Although the ball's reset itself has a derivative."""
    system = make_ball(restitution=RESTITUTION)
    assert linearize_event(system, strike(system, [1.0, -2.0]), kink, "in turn").choice is None
    with pytest.raises(HybridctlError, match="events cannot be resolved"):
        linearize_event(system, strike(system, [1.0, -2.0], bridged=0.0), kink, "in turn")


@pytest.mark.parametrize("kink", KINKS)
@pytest.mark.parametrize("is_stated", [False, True])
def test_a_rest_without_a_derivative_is_refused_whatever_the_choice(kink, is_stated):
    """One that the system does not state, and one that has no Jacobian."""
    stay = Edge(hc.Reset(lambda t, x, u: np.zeros(2)), "air") if is_stated else None
    event = touch(("floor",), -1e-3, accumulation=1.001)
    with pytest.raises(SystemDefinitionError, match="has no Jacobian"):
        linearize_event(fall_on_two_floors(rest=stay), event, kink, "in turn")


SLOPE = 0.6
"""Steeper than friction of 0.5 holds, tan 0.6 = 0.68: a ball that has stopped slides down."""


def come_to_rest(slope, along):
    """Return a system, the end of a ball's bounces, and the derivative if it stops at once.

    Along the slope, downwards, and off it the ball comes with (along, -2) m/s. Where the impact
    stops it, v+ = 0, at a time that moves by dn / 2 for a distance dn off the slope.
    """
    system = ball.system(
        ball.BallParameters(slope=slope, friction=FRICTION, restitution=RESTITUTION)
    )
    c, s = np.cos(slope), np.sin(slope)
    turn = np.kron(np.eye(2), [[c, -s], [s, c]])  # from (x, z) to along and off the slope
    x, u = turn.T @ [0.3, 0.0, along, -2.0], np.zeros(2)
    key, jump = system.outgoing(("open",)).rest(("slope closes",)).jump(0.5, x, u)
    key = system.mode(key).calc(0.5, jump.state, u).selected_mode
    given = ("slope closes",), x, jump.state, u, u, u, np.zeros(1)
    event = Event(0, 0.5, ("open",), key, *given, report=jump.report, accumulation=0.501)
    reset, slides = np.diag([1.0, 1.0, 0.0, 0.0]), 9.81 * (s - FRICTION * c) * (slope > 0.0)
    change = np.array([0.0, 0.0, slides, 0.0]) - reset @ [along, -2.0, 0.0, 0.0]
    stops = turn.T @ (reset - np.outer(change, [0.0, 0.5, 0.0, 0.0])) @ turn
    return system, event, stops


@pytest.mark.parametrize("kink", KINKS)
@pytest.mark.parametrize("along", [-0.7, -1.0])
def test_a_rest_on_level_ground_has_a_gradient_on_the_border_of_slip(kink, along):
    """Slip of dv that is left stops within dv / (mu g), so that it counts to second order only."""
    system, event, stops = come_to_rest(0.0, along)
    assert event.report.border == ((0,) if along == -1.0 else ())
    found = linearize_event(system, event, kink, "in turn")
    assert found.choice is None
    np.testing.assert_allclose(found.state, stops, atol=1e-9)


@pytest.mark.parametrize("kink", KINKS)
@pytest.mark.parametrize("along", [-0.7, -1.0])
def test_a_rest_on_the_border_of_slip_takes_the_side_that_sticks(kink, along):
    """A ball that goes up a slope is stopped by its impact, or just so, and slides down again.

    If it is faster it goes on, and friction slows it down where else it would push it: a kink.
    """
    system, event, stops = come_to_rest(SLOPE, along)
    if along == -1.0 and kink == "raise":
        with pytest.raises(InputError, match=r"^rest after .* has no gradient: .*border"):
            linearize_event(system, event, kink, "in turn")
        return
    found = linearize_event(system, event, kink, "in turn")
    assert (found.choice is None) == (along == -0.7)
    np.testing.assert_allclose(found.state, stops, atol=1e-9)


def test_both_sides_of_the_border_of_a_rest_differ_by_what_is_left_of_the_slip():
    """Slip of dv upwards stops after dv / (g (s + mu c)) and then slides down, as if it began late.

    So g (s - mu c) times that is missing of the velocity, where s and c are of the slope.
    """
    system, event, _ = come_to_rest(SLOPE, -1.0)
    reset = system.outgoing(("open",)).rest(("slope closes",)).reset
    at = JumpPoint(0.5, event.state_before, event.input_before, event.report)
    border = reset.find_border(at, event.mode_after, event.input_after)
    assert not border.is_linear
    c, s = np.cos(SLOPE), np.sin(SLOPE)
    left = (s - FRICTION * c) / (s + FRICTION * c)
    # Upwards of the slope, per m/s by which the ball comes faster upwards.
    change = (border.positive.state - border.negative.state)[2:, 2:] @ [-c, s]
    np.testing.assert_allclose(change, [-left * c, left * s], atol=1e-9)
