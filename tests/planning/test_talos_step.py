"""Talos steps in place on flat soles, a landing of one of which lifts the other."""

import numpy as np
import pytest
from hybridctl.experiments.walking.sole_landing import (
    SoleRows,
    find_largest_rise,
    find_sticking_margin,
)
from hybridctl.experiments.walking.talos_step import (
    CLEARANCE,
    CLOSING_TOLERANCE,
    LANDING_SPEED,
    LEFT_STANCE,
    RIGHT_STANCE,
    SOLES,
    StoredStep,
    follow_strides,
    make_exchange,
    make_half_task,
    make_stance,
    make_talos,
    make_talos_system,
    plan_half_step,
    plan_whole_step,
)
from hybridctl.robots import public
from scipy.linalg import null_space

import hybridctl as hc

CORNERS = np.array(public.MODELS["talos"].offsets)


@pytest.fixture(scope="module")
def step():
    """The step that was found before."""
    return StoredStep.load()


@pytest.fixture(scope="module")
def half():
    """The same step, by a search."""
    return plan_half_step()


def find_sole(x, sole):
    """The heights (4,) of the corners of a sole, and their velocities (4, 3)."""
    robot = make_talos()
    q, v = x[: robot.nq], x[robot.nq :]
    heights = [robot.point_position(q, sole, corner)[2] for corner in CORNERS]
    return np.array(heights), np.array([robot.point_jacobian(q, sole, c) @ v for c in CORNERS])


def check_landing(event, before, after):
    """The sole that lands is level, within its speed, and rests; the other one rises."""
    landing, standing = (1, 0) if before == LEFT_STANCE else (0, 1)
    assert (event.mode_before, event.mode_after) == (before, after)
    heights, speeds = find_sole(event.state_before, SOLES[landing])
    assert np.abs(heights).max() < 2e-5  # within the event window
    assert speeds[:, 2].max() < 0.0
    # Planned states are followed to 1e-2 of 1 + |x|.
    assert speeds[:, 2].min() > -LANDING_SPEED - 5e-2
    _, speeds = find_sole(event.state_after, SOLES[landing])
    np.testing.assert_allclose(speeds, 0.0, atol=1e-9)
    _, speeds = find_sole(event.state_after, SOLES[standing])
    assert speeds[:, 2].min() > 0.0


@pytest.mark.parametrize("bend", [0.1, 0.2, 0.4])
def test_no_landing_of_a_flat_sole_lets_the_other_one_stick_but_it_may_throw_it_up(bend):
    """At friction 0.7, knees bent by 0.2, 0.4 and 0.8 rad: ever less, the more they are bent."""
    rows = SoleRows.of(make_talos(), make_stance(bend), *SOLES)
    assert find_sticking_margin(rows, 0.7) < -1e-4
    rise = {0.1: 1.9, 0.2: 0.22, 0.4: 0.013}[bend]
    assert find_largest_rise(rows, 0.7) == pytest.approx(rise, rel=0.05)


@pytest.mark.parametrize(
    ("bend", "spread", "friction", "sticks"),
    [
        (0.1, 0.2, 0.7, False),
        (0.2, 0.2, 0.7, False),
        (0.4, 0.2, 0.7, False),
        (0.4, 0.4, 0.7, False),
        (0.1, 0.4, 0.7, True),
        (0.4, 0.0, 1.0, True),
    ],
)
def test_legs_that_are_wide_apart_press_as_an_arch(bend, spread, friction, sticks):
    """Turned by 0.4 rad, if they are not bent much; bent by 0.8 rad they press at friction 1."""
    rows = SoleRows.of(make_talos(), make_stance(bend, spread), *SOLES)
    if sticks:  # at this friction even if it is two per cent less
        assert find_sticking_margin(rows, 0.98 * friction) > 1e-4
    else:
        assert find_sticking_margin(rows, friction) < -1e-4


def test_a_simulation_of_the_inputs_alone_follows_the_step(step):
    """From one landing to the next; errors of the mesh grow by up to 4.5e7."""
    run = step.simulate(after=1e-3)
    (event,) = run.events
    assert event.time == pytest.approx(step.curve.end, abs=1e-4)
    check_landing(event, LEFT_STANCE, RIGHT_STANCE)
    exchange, space = make_exchange(), make_talos_system().space
    gap = exchange.gap(space, step.start, event.state_after)
    assert np.abs(gap).max() < CLOSING_TOLERANCE * (1.0 + np.abs(step.start).max())
    heights, _ = find_sole(run(0.5 * step.curve.end), SOLES[1])
    assert heights.min() > CLEARANCE
    for t in np.linspace(0.0, step.curve.end, 9):
        place, speeds = find_sole(run(t), SOLES[0])
        np.testing.assert_allclose(place, 0.0, atol=1e-7)
        np.testing.assert_allclose(speeds, 0.0, atol=1e-6)


def test_the_linearization_of_the_step_is_that_of_its_flow(step):
    """Through the landing of a sole, for perturbations that keep its corners one landing."""
    system = make_talos_system()
    space, mode = system.space, system.mode(LEFT_STANCE)
    run = step.simulate(after=1e-3)
    lin = hc.linearize(system, run, simultaneous="at once")
    kept = null_space(mode.held.jacobian(step.start))
    direction = kept @ np.random.default_rng(0).normal(size=kept.shape[1])
    ends = []
    for way in (1e-10, -1e-10):
        start = mode.project(space.integrate(step.start, way * direction))
        ends.append(space.difference(run.final_state, step.simulate(start, after=1e-3).final_state))
    found, wanted = 0.5e10 * (ends[0] - ends[1]), lin.derivative(direction)
    np.testing.assert_allclose(found, wanted, rtol=0.0, atol=1e-2 * np.abs(wanted).max())


@pytest.mark.slow
def test_the_step_is_found_from_a_sway_and_followed_open_loop(half):
    """Forces keep their margins at points of collocation; any optimum will do."""
    assert half.open_loop.closes, half.open_loop.problem
    task = make_half_task()
    check_landing(half.run.events[-1], LEFT_STANCE, RIGHT_STANCE)
    end = half.plan.end
    assert task.phases[0].duration[0] - 1e-6 < end < task.phases[0].duration[1] + 1e-6
    inputs = np.array([half.feedforward[0](t) for t in np.linspace(0.0, end, 99)])
    assert (np.abs(inputs) < 1.05 * make_talos().effort).all()


@pytest.mark.slow
def test_a_step_of_each_leg_closes_for_the_robot_of_the_file(half):
    """Its legs do not mirror each other; its LQR follows it, as errors grow by 1e14 without."""
    found = plan_whole_step(half)
    assert found.closing.closes, found.closing.problem
    first, last = found.run.guard_events
    check_landing(first, LEFT_STANCE, RIGHT_STANCE)
    check_landing(last, RIGHT_STANCE, LEFT_STANCE)
    start = found.plan(0.0)
    gap = make_talos_system().space.difference(start, last.state_after)
    allowed = CLOSING_TOLERANCE * (1.0 + np.abs(start).max())
    assert np.abs(gap).max() < allowed
    # Its LQR is for each arc by itself: errors of 1e-4 grow from stride to stride, some threefold.
    assert follow_strides(found, 2).max() < allowed
