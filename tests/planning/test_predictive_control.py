"""Predictive control of motions that end: their last phase ends with no event."""

from dataclasses import replace

import numpy as np
import pytest
from planning import first_tasks, hopper

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.hybrid.policy import History
from hybridctl.planning.horizon import Horizon
from hybridctl.planning.horizon_functions import PhaseModel
from hybridctl.planning.optimisation import optimise
from hybridctl.planning.plan import Feedforwards
from hybridctl.planning.task import Margins

SLIDE, REST = ("slip+", "slip+"), ("stick", "stick")
WEIGHTS = np.diag([1e4] * 3 + [1e2] * 3), 0.01 * np.eye(3)


@pytest.fixture(scope="module")
def block():
    """A block that slides 0.3 m, and stops on both corners: its task, and the plan."""
    task, guess = first_tasks.sliding_block()
    return task, optimise(task, guess)


def predictive(block, **settings):
    """With more room than the plan takes."""
    task, motion = block
    room = replace(task, margins=Margins(force=0.2, sliding=0.0, approach=0.01))
    values, fixed = [WEIGHTS[0]] * 3, Feedforwards(motion.feedforward)
    return hc.planning.HybridMpc(room, motion, WEIGHTS, values, fixed, horizon=Horizon(**settings))


@pytest.mark.parametrize(("ahead", "faster"), [(0.0, 0.2), (0.0, -0.2), (0.05, 0.1), (-0.05, -0.1)])
def test_a_block_stops_where_it_is_to(block, ahead, faster):
    """From other places, m, and speeds, m/s: of 10 cm that its inputs alone are off, 1 % is left.

    The way of 2 mm that it takes in a sample near its stop is braked by what was planned before it.
    """
    task, motion = block
    start = task.start + np.array([ahead, 0.0, 0.0, faster, 0.0, 0.0])
    policy, span = predictive(block), (0.0, motion.plan.end + 0.05)
    found = hc.simulate(task.system, SLIDE, start, span, policy)
    alone = hc.simulate(task.system, SLIDE, start, span, Feedforwards(motion.feedforward))
    assert found.final_mode == alone.final_mode == REST
    assert abs(alone.final_state[0] - 0.3) > 0.09
    assert found.final_state[0] == pytest.approx(0.3, abs=1e-3)
    assert policy.failures == 0


def test_a_motion_that_ends_at_a_time_stays_as_it_ends(block):
    """The horizon goes on past its end, as far as it is to, with the state of the end."""
    _, motion = block
    policy, end = predictive(block, stay=0.3), motion.run.final_state
    policy.law(History(REST, 5.0, end, tuple(motion.run.events)))
    section = policy.plan.sections[0]
    assert len(policy.plan.sections) == 1
    assert section.duration == pytest.approx(0.3)
    np.testing.assert_allclose(section.states, np.tile(end, (len(section.states), 1)), atol=1e-6)


def test_arguments_that_do_not_fit_together_are_refused(block):
    task, motion = block
    fixed, values = Feedforwards(motion.feedforward), [WEIGHTS[0]] * 3
    first = replace(task, phases=task.phases[:1])
    for given, message in (
        ((task, motion, WEIGHTS[:1], values), "weights must have two matrices, Q and R, got 1"),
        ((task, motion, 1.0, values), "weights must be a list"),
        ((task, motion, WEIGHTS, 1.0), "values must be a list"),
        ((first, motion, WEIGHTS, values[:2]), "must have the 1 phase of the task, got 2"),
    ):
        with pytest.raises(InputError, match=message):
            hc.planning.HybridMpc(*given, fixed)
    with pytest.raises(InputError, match="disturbed must be a task with the phases"):
        hc.planning.HybridMpc(task, motion, WEIGHTS, values, fixed, disturbed=first)
    for intervals in (16, (16,), (16, 8, 4)):
        with pytest.raises(InputError, match="intervals must be"):
            Horizon(intervals=intervals)


def test_where_all_contacts_are_closed_there_are_no_gaps_to_keep():
    """Nor in the air, where the motors alone act, a force to limit."""
    task = hopper.task(60.0)
    found = [
        PhaseModel(task, k).evaluate_path(np.ones((1, 10)), np.ones((1, 2)), np.ones(1))
        for k in (0, 1)
    ]
    assert [rows.values.shape for rows in found] == [(1, 4), (1, 2)]


def test_limits_of_a_foot_that_lets_go_have_the_derivatives_of_differences():
    """Also those where the next phase begins, and of how its force falls as the input changes."""
    task, h = hopper.task(60.0), 1e-6
    stance, flight = (PhaseModel(task, k) for k in (0, 1))
    random = np.random.default_rng(0)
    x, u, dx, du = (random.normal(size=(1, n)) for n in (10, 2, 10, 2))
    rate = random.normal(size=2)
    for rows in (lambda *at: stance.evaluate_end(*at, rate), flight.evaluate_start):
        ends = [rows(x + s * h * dx, u + s * h * du).values[0] for s in (1.0, -1.0)]
        found = rows(x, u)
        exact = found.by_state[0] @ dx[0] + found.by_input[0] @ du[0]
        np.testing.assert_allclose((ends[0] - ends[1]) / (2.0 * h), exact, rtol=1e-5, atol=1e-3)
    slower = stance.evaluate_end(x, u, np.zeros(2)).values[0]
    assert stance.guards == [0]
    assert not stance.ends_with_landing
    assert flight.ends_with_landing
    fall = stance.end_limits.index(next(r for r in stance.end_limits if "fall" in r.name))
    changed = stance.evaluate_end(x, u, rate).values[0] - slower
    np.testing.assert_allclose(
        changed[fall], -stance.evaluate_end(x, u, rate).by_input[0, 0] @ rate
    )
