"""The gait of the five-link walker: it closes, keeps its limits, and has the right derivative."""

from dataclasses import replace
from functools import partial

import casadi as ca
import numpy as np
import pytest
from hybridctl.experiments.walking import biped_walk
from hybridctl.experiments.walking import gait as gaits
from hybridctl.robots import five_link

import hybridctl as hc
from hybridctl.control.lqr.periodic import periodic_lqr
from hybridctl.planning.optimisation import optimise
from hybridctl.planning.plan import Feedforwards
from hybridctl.planning.transcription import transcribe


def test_it_closes_on_simulation(gait):
    assert gait.closing < 1e-8
    assert gait.step.mismatch < 1e-8
    run = gait.step.run
    assert run.final_state[0] - run(0.0)[0] == pytest.approx(0.7 * gait.period, abs=1e-8)


def test_it_stays_inside_its_margins(gait):
    """Between points of collocation as well, up to 2 % of the cone, 2 N m and 1 mm."""
    walker, arc, margins = gait.walker, gait.step.run.arcs[0], gaits.MARGINS
    mode = walker.mode(arc.mode)
    for t in np.linspace(0.0, arc.end, 101):
        x, u = arc.state_and_input(float(t))
        out = mode.outputs(t, x, u)
        s = t / arc.end
        assert out["normal_force"][0] >= margins.force - 1e-6
        used = np.abs(out["friction_force"][0]).max() / out["normal_force"][0] / 0.7
        assert used <= margins.friction + 0.02
        assert out["gap"][1] >= 4.0 * margins.clearance * s * (1.0 - s) - 1e-3
        assert np.abs(u).max() <= 102.0
        assert gaits.BEND[0] - 1e-2 <= x[[4, 6]].min()
    event = gait.step.run.events[0]
    rate = walker.dynamics.gap_rates(event.state_after[:7], event.state_after[7:])[0]
    assert rate >= margins.release - 1e-7
    assert event.impulses[0] == 0.0


@pytest.mark.parametrize("s", [0.885, 0.92, 0.96])
def test_it_lands_early_inside_the_cone(gait, s):
    """On ground that is met there, of 2 % more friction than it may use: a simulation sticks."""
    share = gaits.MARGINS.friction + 0.02
    x = gait.step.run(s * gait.period)
    height = gait.walker.mode(five_link.LEFT_STANCE).outputs(0.0, x, np.zeros(4))["gap"][1]
    raised = five_link.system(0.7 * share, step=height - 1e-6)
    span = (s * gait.period, s * gait.period + 1e-3)
    policy = Feedforwards((gait.curve(0), gait.curve(1)))
    run = hc.simulate(raised, five_link.LEFT_STANCE, x, span, policy)
    assert [event.mode_after for event in run.guard_events] == [five_link.RIGHT_STANCE]


def test_it_goes_on_inside_the_cone_where_the_ground_is_lower(gait):
    """For 0.04 s, of 2 % more friction than it may use: a simulation has no event."""
    lowered = five_link.system(0.7 * (gaits.MARGINS.friction + 0.02), step=-0.2)
    span = (0.01 * gait.period, gait.period + 0.04)
    x = gait.step.run(span[0])
    run = hc.simulate(lowered, five_link.LEFT_STANCE, x, span, Feedforwards((gait.curve(0),)))
    assert not run.events


def test_without_feedback_it_is_unstable_and_trivial_multipliers_are_named(gait):
    found = gait.map.floquet_multipliers(symmetry=gait.symmetry)
    assert sorted(found.trivial.values()) == ["held", "held", "held", "translation"]
    assert len(found.others) == 10
    assert np.abs(found.others).max() > 5.0
    assert not found.is_stable


def test_the_monodromy_matrix_is_that_of_differences(gait):
    """To 1e-6 of entries up to 282, as feedforward goes on smoothly past touchdown.

    h = 1.5e-6: truncation (0.7e5 h^2) leaves 2e-7, rounding 1e-13 / h some 1e-7.
    """
    mode, x0 = gait.walker.mode(five_link.LEFT_STANCE), gait.middle
    span = (gait.orbit.start, gait.orbit.end)
    policy = Feedforwards((gait.curve(0), gait.curve(1)))

    def end(x):
        options = {"rtol": gaits.TIGHT, "atol": gaits.TIGHT}
        return hc.simulate(gait.walker, mode.key, x, span, policy, **options).final_state

    exact = gait.map.state_transition
    held = mode.held.jacobian(x0)
    allowed = np.linalg.svd(held)[2][len(held) :]  # directions that keep the foot where it is
    h = 1.5e-6
    for way in allowed:
        ends = [end(mode.project(x0 + s * h * way)) for s in (1.0, -1.0)]
        along = (ends[0] - ends[1]) / (2.0 * h)
        np.testing.assert_allclose(along, exact @ way, rtol=0.0, atol=1e-6)


def test_feedback_across_the_touchdown_makes_it_stable(gait):
    weights = np.diag([0.0, *[100.0] * 6, 0.0, *[10.0] * 6])
    lqr = periodic_lqr(gait.map, weights, 0.01 * np.eye(4), symmetry=gait.symmetry)
    assert lqr.multipliers.is_stable
    assert np.abs(lqr.multipliers.others).max() < 0.3

    orbit, _ = lqr.repeated(2)
    assert [arc.mode for arc in orbit.arcs] == [
        five_link.LEFT_STANCE,
        five_link.RIGHT_STANCE,
        five_link.LEFT_STANCE,
    ]
    assert [event.guards for event in orbit.events] == [("right closes",), ("left closes",)]
    after = orbit(gait.orbit.end + 0.1)
    before = gait.orbit(gait.orbit.start + 0.1)
    expected = gait.symmetry.matrix @ before
    expected[0] += 0.7 * gait.period
    np.testing.assert_allclose(after, expected, atol=1e-7)


def test_every_constraint_has_its_derivative(gait):
    """Along random directions near the optimum: h = 1e-6, so h^2 and 1e-16 / h leave 1e-9."""
    task = gaits.make_task(gait.walker, 0.7, torque=100.0, margins=gaits.MARGINS)
    programme = transcribe(task)
    w = programme.column
    both = ca.vertcat(programme.constraints, programme.cost)
    values, slopes = ca.Function("g", [w], [both]), ca.Function("d", [w], [ca.jacobian(both, w)])
    random, h = np.random.default_rng(0), 1e-6
    begin = gaits.make_straight_guess(0.05 * random.normal(size=(2, 14)))
    point = programme.compute_start(begin)
    exact = slopes(point).sparse()
    for direction in random.normal(size=(2, w.numel())):
        ends = [np.array(values(point + s * h * direction)).ravel() for s in (1.0, -1.0)]
        scale = np.maximum(np.abs(exact) @ np.abs(direction), 1.0)
        off = (ends[0] - ends[1]) / (2.0 * h) - exact @ direction
        assert np.abs(off / scale).max() < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("speed", [0.5, 0.9])
def test_gaits_at_other_speeds_close_on_simulation(speed):
    margins = replace(gaits.MARGINS, clearance=0.05)
    assert gaits.optimise_gait(speed, margins=margins).closing < 1e-8


@pytest.mark.slow
def test_a_slow_gait_closes_as_well_as_its_collocation():
    """Gauss's 4 points leave an error of h^8 at the ends of intervals: 2^8 less with half the h.

    The optimum itself moves a little with the points at which its limits hold, so 2^7 is asked.
    """
    walker, zero = five_link.system(0.7), np.zeros((2, 14))
    margins = replace(gaits.MARGINS, clearance=0.05)
    planned = gaits.make_task(walker, 0.5, torque=100.0, margins=margins)

    def closing(intervals):
        phase = replace(planned.phases[0], intervals=intervals, points=4)
        found = optimise(replace(planned, phases=[phase]), gaits.make_straight_guess(zero))
        return gaits.Gait(walker, 0.7, 0.5, found).closing

    assert closing(10) > 2.0**7 * closing(20)


@pytest.mark.slow
def test_five_random_guesses_reach_one_optimum(gait):
    """Postures and speeds moved by noise of standard deviation 0.1 rad, m, rad/s or m/s."""
    noises, config = 0.1 * np.random.default_rng(1).normal(size=(5, 2, 14)), biped_walk.Config()
    margins = replace(gaits.MARGINS, clearance=config.clearance, early=config.early)
    find = partial(gaits.optimise_gait, config.speed, margins=margins, late=config.late)
    steps = [find(noise=noise).step for noise in noises]
    np.testing.assert_allclose([step.cost for step in steps], gait.step.cost, rtol=1e-8)
