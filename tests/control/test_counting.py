"""Events are counted where one guard does what another does, and where there are none."""

from dataclasses import replace

import numpy as np
import pytest
from control.samples import SPACE, bouncing_ball

import hybridctl as hc
from hybridctl.control.feasibility import feasibility
from hybridctl.control.spreading import Position, PositionTracker, locate
from hybridctl.hybrid.mode import FieldJacobian, GuardJacobian, ResetJacobian
from hybridctl.sensitivity.simultaneous import jump_derivative

FORCE, LIMIT = -2.0, 1.0


def sliding_foot(skew=0.0):
    """A foot (position, velocity) pushed by u, whose corners a and b stop sliding together.

    Either one makes the whole foot stick. It cannot stick under more than LIMIT, and would slide
    back; there the guards rise. Corner b stops at velocity -skew.
    """
    moving = FieldJacobian(np.array([[0.0, 1.0], [0.0, 0.0]]), np.array([[0.0], [1.0]]))
    still = FieldJacobian(np.zeros((2, 2)), np.zeros((2, 1)))
    push = lambda t, x, u: np.array([x[1], u[0]])  # noqa: E731
    choose = lambda t, x, u: "stick" if abs(u[0]) <= LIMIT else "back"  # noqa: E731

    def guard(name, offset, sign):
        row = GuardJacobian(np.zeros(()), np.array([0.0, sign]), np.zeros(1))
        return hc.Guard(name, lambda t, x, u: sign * x[1] + offset, lambda t, x, u: row)

    stop = np.diag([1.0, 0.0])
    halt = hc.Reset(
        lambda t, x, u: stop @ x, lambda t, x, u: ResetJacobian(np.zeros(2), stop, np.zeros((2, 1)))
    )
    return hc.HybridSystem(
        [
            hc.Mode("slide", SPACE, push, 1, lambda t, x, u: moving),
            hc.Mode(
                "stick", SPACE, lambda t, x, u: np.zeros(2), 1, lambda t, x, u: still, select=choose
            ),
            hc.Mode("back", SPACE, push, 1, lambda t, x, u: moving),
        ],
        [
            hc.Transition(source, guard(name, offset, sign), halt, "stick")
            for source, sign in (("slide", 1.0), ("back", -1.0))
            for name, offset in (("a", 0.0), ("b", skew))
        ],
    )


class Brake:
    """Brakes until the foot has stopped, then leaves it alone."""

    def law(self, history):
        u = np.array([0.0 if history.events else FORCE])
        return lambda t, x: u


@pytest.fixture(scope="module")
def braked():
    system = sliding_foot()
    return system, hc.simulate(system, "slide", [0.0, 1.0], (0.0, 1.0), Brake())


def test_an_event_is_over_when_no_guard_is_left(braked):
    system, nominal = braked
    (event,) = nominal.events
    assert (event.guards, event.mode_after) == (("a", "b"), "stick")
    reference = hc.extend(system, nominal, before=0.1, after=0.1)
    assert reference.phantoms == {}
    policy = hc.ReferenceSpreading(reference, [np.zeros((1, 2))] * 2)
    run = hc.simulate(sliding_foot(skew=0.1), "slide", [0.0, 1.0], (0.0, 1.0), policy)
    assert [e.guards for e in run.events] == [("a",)]
    assert locate(reference, run.events).macro == 1
    assert run.final_mode == "stick"
    report = feasibility(system, reference)
    assert report.events[0].growing
    assert report.failures == ()


def test_the_input_of_such_an_event_is_there_after_its_first_guard(braked):
    """Under the input before the event the foot would slide back, and there is no derivative."""
    system, nominal = braked
    jump = jump_derivative(system, nominal.events[0])
    directions = np.random.default_rng(0).normal(size=(20, 2))
    # Braking to a stop takes dv away: x is left with what it had, v is zero.
    np.testing.assert_allclose(jump(directions), directions * [1.0, 0.0], atol=1e-14)


def test_events_without_guards_do_not_count(braked):
    system, nominal = braked
    reference = hc.extend(system, nominal, before=0.1, after=0.1)

    class Watched(hc.ReferenceSpreading):
        def next_change(self, history):
            return min(super().next_change(history), history.time + 0.07)

    policy = Watched(reference, [np.zeros((1, 2))] * 2)
    run = hc.simulate(system, "slide", [0.0, 1.0], (0.0, 1.0), policy)
    assert len(run.events) > 10
    for k in range(len(run.events) + 1):
        position = locate(reference, run.events[:k])
        fired = [e for e in run.events[:k] if e.guards]
        assert (position.macro, position.micro) == (len(fired), 0)
    np.testing.assert_allclose(run.final_state, nominal.final_state, atol=1e-9)


def test_a_history_is_followed_as_if_it_were_read_anew():
    """As it grows, event by event, whose last one may be another the next time; and another run's.

    A reference of two bounces, whose guards are told among changes of the input.
    """
    ball = hc.simulate(bouncing_ball(), "air", [1.0, 0.0], (0.0, 1.5))
    bounces, _ = ball.guard_events
    reference = hc.extend(bouncing_ball(), ball, before=0.1, after=0.1)
    silent = replace(bounces, guards=())
    tracker = PositionTracker(reference)
    runs = ([silent, bounces, silent, bounces, silent], [silent, silent, bounces])
    for events in (*runs, runs[0][:2], [], runs[1]):
        distinct = [replace(event) for event in events]
        for k in range(len(distinct) + 1):
            provisional = [*distinct[: k - 1], replace(silent)] if k else []
            for history in (provisional, distinct[:k]):
                fired = sum(bool(event.guards) for event in history)
                assert tracker.locate(history) == Position(fired, 0, frozenset())
                assert locate(reference, history) == tracker.locate(history)
