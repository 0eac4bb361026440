"""Predictive control across touchdowns: its programme, derivatives, plans, and walks under it."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hybridctl.experiments.walking import biped_walk, controllers, walk
from hybridctl.experiments.walking.gait import make_task
from hybridctl.robots import five_link

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.hybrid.policy import History
from hybridctl.planning import predictive_control
from hybridctl.planning.horizon import Horizon, HorizonPlan

WEIGHTS = controllers.Weights()
TORQUE = 100.0


@pytest.fixture(scope="module")
def lqr(gait):
    return controllers.design(gait, WEIGHTS)


@pytest.fixture(scope="module")
def fixed(gait, lqr):
    return controllers.Tracks.of(gait, lqr, 4, 0.2).policy("value", lqr, TORQUE)


@pytest.fixture
def make(gait, lqr, fixed):
    def made(**settings):
        return controllers.make_predictive(gait, lqr, WEIGHTS, fixed, TORQUE, Horizon(**settings))

    return made


def middle(gait, x=None):
    return History(("stick", "open"), 0.5 * gait.period, gait.middle if x is None else x)


def off_the_gait(gait, section):
    """How far states of a section are from those of the gait, the way apart, before its end."""
    on_it = gait.step.run(section.fractions[:-1] * gait.period)
    return float(np.abs((section.states[:-1] - on_it)[:, 1:]).max())


@pytest.mark.parametrize("early", [0.0, controllers.AHEAD.early])
@pytest.mark.parametrize("intervals", [(8, 4), (16, 8)])
def test_on_the_gait_the_programme_has_the_gait_for_its_solution(gait, make, early, intervals):
    """Whatever its intervals: steps on them miss the gait by 5e-3 and .1, which is taken off.

    What is left is the solver's. A residual of its accuracy, 1e-5, in the row of a correction is
    one of 1e-5 / (R h) N m, .02 on 43 ms, which moves joints of .83 kg m^2 by 1e-3 rad/s.
    Also where the foot is so high that its landing would slip, as the gait's does from 8.3 cm on.
    """
    policy = make(early=early, intervals=intervals)
    law = policy.law(middle(gait))
    for t in (0.5 * gait.period, 0.5 * gait.period + 0.015):
        np.testing.assert_allclose(law(t, gait.middle), gait.curve(0)(t), atol=0.02)
    first, second = policy.plan.sections
    assert first.duration == pytest.approx(0.5 * gait.period, abs=1e-5)
    assert second.duration == pytest.approx(gait.period, abs=1e-5)
    assert max(np.abs(s.corrections).max() for s in (first, second)) < 0.02
    assert max(off_the_gait(gait, s) for s in (first, second)) < 1e-3
    assert policy.failures == 0


def test_just_before_the_touchdown_the_plan_is_where_the_gait_is(gait, make):
    """7 ms before it. R h is 7e-5 there, so that the solver leaves up to .15 N m of a torque."""
    policy = make()
    policy.law(middle(gait))
    rest = 0.007
    now = gait.period - rest
    u = policy.law(History(five_link.LEFT_STANCE, now, gait.step.run(now)))(now, gait.middle)
    first = policy.plan.sections[0]
    assert first.fractions[0] == pytest.approx(now / gait.period, abs=1e-6)
    assert first.duration == pytest.approx(rest, abs=1e-5)
    np.testing.assert_allclose(u, gait.curve(0)(now), atol=0.15)


def test_what_steps_along_the_motion_miss_falls_with_the_fifth_power_of_their_length(gait, make):
    """By 32 from halved to halved intervals of steps of fourth order; so the motion is followed.

    Between its points the motion is known to 1e-5: coarse intervals are measured.
    """
    course = make()._motion
    missed = [course.sample_motion(0, np.linspace(0.0, 1.0, n + 1)).step_errors for n in (4, 8, 16)]
    sizes = [np.abs(each).max() for each in missed]
    assert 1e-4 < sizes[2] < 1e-3
    for coarse, fine in pairwise(sizes):
        assert np.log2(coarse / fine) == pytest.approx(5.0, abs=1.0)


def test_a_motion_that_is_over_misses_nothing(gait, make):
    """What is held past the end of a phase is no solution, and steps are believed there."""
    missed = make()._motion.sample_motion(0, np.array([0.9, 1.0, 1.1, 1.2])).step_errors
    assert np.abs(missed[0]).max() > 1e-6
    np.testing.assert_array_equal(missed[1:], 0.0)


def test_the_gait_is_inside_all_limits_of_what_is_planned(gait, make):
    """Also between the points of its collocation, or limits would push the plan off it."""
    course = make()._motion
    at = np.linspace(0.0, 1.0, 501)
    values = (
        course.models[0]
        .evaluate_path(course.evaluate_states(0, at), course.evaluate_inputs(0, at), at)
        .values
    )
    limits = course.models[0].path_limits
    least, most = (np.array([getattr(r, side) for r in limits]) for side in ("lower", "upper"))
    assert (values[:, : len(limits)] > least).all()
    assert (values[:, : len(limits)] < most).all()


@pytest.mark.parametrize("delay", [0.0, 0.02])
def test_it_stays_on_the_gait(gait, make, delay):
    """Within what other laws leave of it, simulated to 1e-7: as nothing in a plan is off it.

    With steps that miss the gait it was 2e-3 off, with knees at limits 2e-4, and with a plan that
    counts from .985 of the step in the last 10 ms 2e-3.
    """
    policy = make(early=controllers.AHEAD.early, delay=delay)
    found = walk.walk(gait, policy, gait.middle, 3)
    assert (found.steps, found.reason) == (3, "")
    assert found.compute_errors(gait).max() < 1e-5
    assert abs(policy.disturbance) < 1e-5


def test_steps_have_the_derivatives_of_differences_and_end_where_simulation_does(gait, make):
    """h = 1e-6: h^2 and 1e-16 / h leave 1e-9 of slopes up to 1e2; RK4 on 20 ms leaves some 1e-5."""
    model = make()._motion.models[0]
    t = 0.5 * gait.period + np.array([0.0, 0.02])
    u = tuple(gait.curve(0)(s)[None] for s in (t[0], t.mean(), t[1]))
    x, h, length = gait.middle[None], 1e-6, np.array([0.02])
    found = model.linearize_steps(x, u, length)
    np.testing.assert_allclose(found.states[0], gait.step.run(t[1]), atol=1e-4)

    def moved(dx, du, dd, dh):
        return model.linearize_steps(
            x + dx, tuple(part + du for part in u), length + dh, dd
        ).states[0]

    random = np.random.default_rng(0)
    changes = random.normal(size=14), random.normal(size=4), 0.7, 0.1
    ends = [moved(*(sign * h * change for change in changes)) for sign in (1.0, -1.0)]
    along = (ends[0] - ends[1]) / (2.0 * h)
    dx, du, dd, dh = changes
    exact = found.by_state[0] @ dx + found.by_input[0] @ du
    exact += found.by_disturbance[0] * dd + found.by_length[0] * dh
    np.testing.assert_allclose(along, exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "given"), [("evaluate_path", [np.array([0.5])]), ("evaluate_end", [np.ones(4)])]
)
def test_limits_have_the_derivatives_of_differences(gait, make, name, given):
    model = make()._motion.models[0]
    x, u, h = gait.middle[None], gait.curve(0)(0.5 * gait.period)[None], 1e-6
    rows = getattr(model, name)
    random = np.random.default_rng(1)
    dx, du = random.normal(size=(1, 14)), random.normal(size=(1, 4))
    ends = [rows(x + s * h * dx, u + s * h * du, *given).values[0] for s in (1.0, -1.0)]
    found = rows(x, u, *given)
    exact = found.by_state[0] @ dx[0] + found.by_input[0] @ du[0]
    np.testing.assert_allclose((ends[0] - ends[1]) / (2.0 * h), exact, rtol=1e-5, atol=1e-5)


def test_what_touches_down_goes_on_as_the_system_says(gait, make):
    """The jump of the course, through the exchange of legs, beside the reset of the walker."""
    course = make()._motion
    event = gait.orbit.events[0]
    j = course.junctions[0]
    after = j.matrix @ course.models[0].evaluate_jump(event.state_before)[0] + j.offset
    expected = gait.symmetry.matrix @ event.state_after
    np.testing.assert_allclose(after[1:], expected[1:], atol=1e-7)
    assert course.has_mode(event.mode_after, 1)
    assert not course.has_mode(event.mode_before, 1)
    np.testing.assert_allclose(
        course.map_state_to_phase(event.state_after, 1), expected, atol=1e-12
    )


def test_with_a_unit_of_the_disturbance_states_go_on_as_they_do_on_the_slope(gait, make):
    """A step of 20 ms of fourth order beside the simulation; without the slope 2 cm/s apart."""
    span = 0.5 * gait.period + np.array([0.0, 0.01, 0.02])
    u = tuple(gait.curve(0)(t)[None] for t in span.tolist())
    steps = make()._motion.models[0].linearize_steps
    found = [steps(gait.middle[None], u, np.array([0.02]), d).states[0] for d in (0.0, 1.0)]
    uphill = five_link.system(gait.friction, tilt=0.1)
    run = hc.simulate(
        uphill, five_link.LEFT_STANCE, gait.middle, span[[0, 2]], lambda t, x: gait.curve(0)(t)
    )
    np.testing.assert_allclose(found[1], run.final_state, atol=1e-4)
    assert np.abs(found[0] - run.final_state).max() > 0.01


def test_a_slope_is_learnt_from_what_states_are_off(gait, make):
    """5 %, half a unit; tangent for sine leaves 1e-3 of it, and a step of 20 ms some 1e-3 more."""
    policy = make()
    uphill = five_link.system(gait.friction, tilt=0.05)
    found = walk.walk(gait, policy, gait.middle, 2, uphill)
    assert (found.steps, found.reason) == (2, "")
    assert policy.disturbance == pytest.approx(0.5, abs=0.02)
    policy.reset()
    assert policy.disturbance == 0.0


def test_a_disturbance_that_changes_nothing_is_not_learnt(gait, fixed):
    """Of the very system that is planned for no number of units can be told."""
    planned = make_task(gait.walker, 0.7, torque=TORQUE, margins=controllers.ROOM)
    both = np.eye(14), np.eye(4)
    policy = hc.planning.HybridMpc(planned, gait.step, both, [np.eye(14)], fixed, disturbed=planned)
    policy.law(middle(gait))
    later = 0.5 * gait.period + 0.02
    policy.law(History(("stick", "open"), later, gait.step.run(later)))
    assert policy.disturbance == 0.0


@pytest.mark.parametrize(("impulse", "delay"), [(40.0, 0.0), (-60.0, 0.0), (35.0, 0.02)])
def test_it_recovers_from_pushes_that_the_fixed_law_falls_from(gait, make, fixed, impulse, delay):
    """In N s, forwards and backwards, with two touchdowns after them, also where plans come late.

    Programmes after a hard push end at limits of durations: gaps of duality stay at 1e-7 there.
    """
    start = walk.push_state(gait, impulse)
    policy = make(delay=delay)
    found = walk.walk(gait, policy, start, 2)
    assert (found.steps, found.reason) == (2, "")
    assert policy.failures == 0
    assert walk.walk(gait, fixed, start, 2).reason


@pytest.mark.slow
def test_an_early_landing_on_higher_ground_sticks():
    """A random start whose foot meets a step of 8 cm before the plan was to put it down.

    On a gait that would slip itself there; the one that ships does not.
    """
    unready_gait = replace(biped_walk.Config(), early=0.0, late=0.0)
    gait = biped_walk.find_gait(unready_gait, unready_gait.speed)
    lqr = controllers.design(gait, WEIGHTS)
    fixed = controllers.Tracks.of(gait, lqr, 4, 0.2).policy("value", lqr, TORQUE)
    start = walk.draw_start(gait, np.random.default_rng([0, 4]), (0.01, 0.05))
    unready, ready = (
        walk.walk_over_step(
            gait,
            controllers.make_predictive(gait, lqr, WEIGHTS, fixed, TORQUE, Horizon(early=early)),
            0.08,
            1,
            start,
        )
        for early in (0.0, controllers.AHEAD.early)
    )
    assert "right slip+" in unready.reason
    assert ready.reason == ""


def test_a_phase_ends_with_the_mode_of_the_next_one(gait, make):
    """Not with events of the policy, nor with a slip that ends again."""
    course, touchdown = make()._motion, gait.orbit.events[0]
    left, right = five_link.LEFT_STANCE, five_link.RIGHT_STANCE
    slip, again = ("slip+", "open"), ("open", "slip+")
    found = [
        replace(touchdown, time=t, guards=guards, mode_after=mode)
        for t, guards, mode in (
            (0.1, ("left slips+",), slip),
            (0.2, ("left sticks",), left),
            (0.3, (), left),
            (0.4, ("right closes",), right),
            (0.5, ("right slips+",), again),
            (0.6, ("right sticks",), right),
        )
    ]
    assert course.count_ended_phases(replace(middle(gait), events=tuple(found[:3]))) == (0, -np.inf)
    assert course.count_ended_phases(replace(middle(gait), events=tuple(found))) == (1, 0.4)


def test_durations_that_go_to_and_fro_change_less(gait, make, monkeypatch):
    """By half as much each time that they turn."""
    most, way = [], [1.0]

    class Swinging(predictive_control.HorizonProgramme):
        def __init__(self, models, sections, aims, *others):
            most.append(aims[1].greatest_change)
            super().__init__(models, sections, aims, *others)

        def solve(self):
            way[0] = -way[0]
            first, second = self._sections
            moved = {"states": second.states + 0.1, "duration": second.duration + way[0] * most[-1]}
            return [first, replace(second, **moved)]

    monkeypatch.setattr(predictive_control, "HorizonProgramme", Swinging)
    make(change=0.08).law(middle(gait))
    np.testing.assert_allclose(most, [0.08, 0.08, 0.04, 0.02])


def test_at_the_edge_of_an_interval_the_next_one_begins(gait, make):
    """Also where the time that was left to the edge ends before it by rounding."""
    course = make()._motion
    begin = 0.5 * gait.period
    plan = HorizonPlan(begin, 0, -np.inf, course.build_sections(0, 0.5))
    first = plan.find_place(begin, 0, -np.inf)
    edges = [np.nextafter(begin + first.interval_rest, way) for way in (-np.inf, np.inf)]
    places = [plan.find_place(edge, 0, -np.inf) for edge in edges]
    assert [place.interval for place in places] == [first.interval + 1] * 2
    assert places[0].rest == pytest.approx(0.5 * gait.period - first.interval_rest, abs=1e-9)


def test_a_plan_for_when_a_touchdown_is_about_to_come_is_the_old_one(gait, make):
    """Torques on its last interval, of 2 ms, would cost nothing."""
    policy = make(delay=0.02)
    policy.law(middle(gait))
    time = gait.period - 0.022
    at = predictive_control.Moment(time, gait.step.run(time), 0, -np.inf)
    assert policy._improve_plan(policy.plan, at) is policy.plan


def test_the_state_is_predicted_over_the_delay(gait, make):
    """Under the plan, through the touchdown: as the simulation goes on, up to the plan's own error.

    The guard's secant over 5 ms is off by 20 m/s^2 (5 ms)^2 / 8, some 0.1 ms at its rate.
    """
    policy = make(delay=0.02)
    policy.law(middle(gait))
    at = predictive_control.Moment(0.5 * gait.period, gait.middle, 0, -np.inf)
    ahead = policy._motion.predict(policy.plan, at, 0.3, 0.0)
    np.testing.assert_allclose(ahead.state, gait.step.run(at.time + 0.3), atol=1e-3)
    beyond = policy._motion.predict(policy.plan, at, 0.5 * gait.period + 0.01, 0.0)
    assert beyond.events == 1
    assert beyond.last_event == pytest.approx(gait.period, abs=1e-3)


def test_past_the_last_section_of_a_plan_its_phase_goes_on(gait, make):
    """What comes after the touchdown is not planned: there is no event to go through."""
    policy = make(delay=0.02)
    policy.law(middle(gait))
    plan = replace(policy.plan, sections=policy.plan.sections[:1])
    at = predictive_control.Moment(0.5 * gait.period, gait.middle, 0, -np.inf)
    beyond = policy._motion.predict(plan, at, 0.5 * gait.period + 0.01, 0.0)
    assert (beyond.events, beyond.last_event) == (0, -np.inf)
    assert beyond.time == pytest.approx(gait.period + 0.01)
    assert policy._motion.evaluate_heights(0, beyond.state[None])[0] < 0.0


def test_a_plan_that_comes_late_acts_late(gait, make):
    policy = make(delay=0.01)
    history = middle(gait, walk.push_state(gait, 10.0))
    u = policy.law(history)(history.time, history.state)
    np.testing.assert_allclose(u, gait.curve(0)(history.time), atol=1e-9)
    then = policy.next_change(history)
    assert then == pytest.approx(history.time + 0.01)
    late = replace(history, time=then)
    assert np.abs(policy.law(late)(then, late.state) - gait.curve(0)(then)).max() > 1.0


def test_where_the_programme_fails_the_fixed_law_acts(gait, make, fixed, monkeypatch):
    monkeypatch.setattr(predictive_control.HorizonProgramme, "solve", lambda self: None)
    policy = make()
    history = middle(gait, walk.push_state(gait, 10.0))
    u = policy.law(history)(history.time, history.state)
    assert policy.failures == 1
    np.testing.assert_array_equal(u, fixed.law(history)(history.time, history.state))
    found = walk.walk(gait, policy, history.state, 1)
    assert (found.steps, found.reason) == (1, "")


def test_in_a_mode_that_the_motion_has_not_the_fixed_law_acts(gait, make, fixed):
    policy, history = make(), replace(middle(gait), mode=("stick", "stick"))
    u = policy.law(history)(history.time, history.state)
    np.testing.assert_array_equal(u, fixed.law(history)(history.time, history.state))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": []}, "values must have 1 matrices, got 0"),
        ({"weights": (np.eye(3), np.eye(4))}, r"weights\[0\] must have shape"),
        ({"rise": np.ones(3)}, "rise must have shape"),
        ({"fixed": None}, "fixed must be"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(gait, fixed, change, message):
    given = {
        "weights": (np.eye(14), np.eye(4)),
        "values": [np.eye(14)],
        "fixed": fixed,
        **change,
    }
    planned = make_task(gait.walker, 0.7, torque=TORQUE, margins=controllers.ROOM)
    with pytest.raises(InputError, match=message):
        hc.planning.HybridMpc(planned, gait.step, **given)


@pytest.mark.parametrize("setting", [{"delay": 0.1}, {"intervals": (1, 8)}, {"longest": 0.5}])
def test_horizons_that_make_no_sense_are_refused(setting):
    with pytest.raises(InputError, match=next(iter(setting))):
        Horizon(**setting)
