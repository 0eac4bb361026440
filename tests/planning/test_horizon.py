"""What a predictive controller follows: a walker's step up stairs, which repeats a tread higher."""

from dataclasses import replace

import numpy as np
import pytest
from planning import first_tasks

from hybridctl.planning.horizon import Horizon, HorizonPlan, Moment, ReferenceMotion
from hybridctl.planning.optimisation import optimise


@pytest.fixture(scope="module")
def reference():
    task, guess = first_tasks.stairs()
    return ReferenceMotion(task, optimise(task, guess), Horizon(intervals=(16, 8), phases=2))


@pytest.fixture(scope="module")
def plan(reference):
    """From the middle of the first step on, as the motion itself."""
    middle = 0.5 * reference.get_duration(0)
    return HorizonPlan(
        middle, 0, 0.0, reference.build_sections(0, reference.compute_entry_fraction(0, middle))
    )


def test_inputs_and_states_are_those_of_the_motion_at_that_share_of_it(reference):
    shares, curve, arc = (
        np.array([0.0, 0.3, 1.0]),
        reference.motion.feedforward[0],
        reference.motion.plan,
    )
    times = shares * reference.get_duration(0)
    np.testing.assert_allclose(
        reference.evaluate_inputs(0, shares), curve(curve.start + times).T, atol=1e-12
    )
    np.testing.assert_allclose(
        reference.evaluate_states(0, shares), [arc(t) for t in times], atol=1e-12
    )


def test_after_a_step_the_motion_begins_again_where_it_began(reference):
    """The tread up is along free directions, so the offset takes it back, to the plan's 1e-6."""
    j = reference.junctions[0]
    after, _ = reference.models[0].evaluate_jump(reference.evaluate_states(0, np.ones(1))[0])
    begin = reference.evaluate_states(0, np.zeros(1))[0]
    np.testing.assert_allclose(j.matrix @ after + j.offset, begin, atol=1e-6)
    tread = [-first_tasks.DEPTH, -first_tasks.RISE]
    np.testing.assert_allclose(j.offset[:2], tread, atol=1e-6)
    np.testing.assert_array_equal(j.offset[2:], 0.0)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_under_a_plan_that_is_the_motion_states_go_on_along_it(reference, plan, steps):
    """Past touchdowns. Steps of 5 ms err by some 1e-6, which grows as the walker falls by itself.

    Over a step of 1.2 s that is by a factor of 700 at most, with 0.4 m legs, exp(1.2 s * 5.5 / s).
    """
    middle = Moment(plan.time, plan.sections[0].states[0], 0, 0.0)
    then = reference.predict(plan, middle, steps * reference.get_duration(0), 0.0)
    assert then.events == steps
    assert then.time == pytest.approx((steps + 0.5) * reference.get_duration(0))
    assert then.last_event == pytest.approx(steps * reference.get_duration(0), abs=1e-5)
    np.testing.assert_allclose(then.state, middle.state, atol=2e-3)


def test_a_plan_says_where_a_time_is_in_it(reference, plan):
    length = reference.get_duration(0)
    place = plan.find_place(plan.time + 0.25 * length, 0, 0.0)
    assert place.section == 0
    assert place.fraction == pytest.approx(0.75)
    assert place.rest == pytest.approx(0.25 * length)
    late = plan.find_place(1.3 * length, 1, 1.1 * length)  # a touchdown that came late
    assert late.section == 1
    assert late.fraction == pytest.approx(0.2)
    assert late.interval == 1  # of eight
    assert late.interval_rest == pytest.approx(0.05 * length)


def test_the_rest_of_a_step_may_be_short_and_whole_steps_less_so(reference, plan):
    """Of the rest next to nothing may be left, of a whole step two fifths."""
    rest, whole = (reference.build_target(plan.sections[k], k > 0, np.inf) for k in (0, 1))
    length, longest = reference.get_duration(0), reference.horizon.longest
    assert rest.least_change == pytest.approx(-0.5 * length, abs=1e-5)
    assert rest.greatest_change == pytest.approx((longest - 1.0) * 0.5 * length + 0.03)
    assert whole.least_change == pytest.approx(-0.6 * length)
    assert whole.greatest_change == pytest.approx(0.8 * length + 0.03)
    few = reference.build_target(plan.sections[1], True, 1e-3)
    assert (few.least_change, few.greatest_change) == (-1e-3, 1e-3)


def test_a_plan_that_is_carried_on_keeps_what_it_corrects(reference, plan):
    """From a later moment on: its state first, the same inputs, and the phases that follow."""
    section = plan.sections[0]
    nu = section.corrections.shape[1]
    corrected = replace(
        section, corrections=np.arange(len(section.corrections) * nu * 1.0).reshape(-1, nu)
    )
    known = HorizonPlan(plan.time, 0, 0.0, (corrected, *plan.sections[1:]))
    at = Moment(0.7 * reference.get_duration(0), section.states[0] + 1.0, 0, 0.0)
    carried = reference.continue_plan(known, at)
    place = known.find_place(at.time, 0, 0.0)
    first = carried.sections[0]
    np.testing.assert_array_equal(first.states[0], at.state)
    np.testing.assert_array_equal(first.states[1:], section.states[place.interval + 1 :])
    np.testing.assert_array_equal(first.corrections, corrected.corrections[place.interval :])
    assert first.duration == pytest.approx(0.3 * reference.get_duration(0))
    assert len(carried.sections) == 3


def test_a_phase_that_has_lasted_too_long_is_entered_before_its_end(reference):
    """A tenth of it is left to plan; before, it is entered where its time is."""
    length = reference.get_duration(0)
    assert reference.compute_entry_fraction(0, 0.4 * length) == pytest.approx(0.4)
    assert reference.compute_entry_fraction(0, 2.0 * length) == pytest.approx(0.9)


def test_a_phase_that_becomes_the_present_one_is_planned_finely(reference, plan):
    """It had 8 intervals as a later phase, and gets those that are left of 16."""
    length = reference.get_duration(0)
    assert len(plan.sections[1].corrections) == 8
    at = Moment(1.25 * length, plan.sections[1].states[2], 1, length)
    present = reference.continue_plan(plan, at).sections[0]
    assert len(present.corrections) == 12
    np.testing.assert_array_equal(present.states[0], at.state)
