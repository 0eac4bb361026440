"""Runs that begin at Unix times are those that begin at zero, to the resolution of such times."""

import numpy as np
import pytest
from hybrid.samples import ball as light_ball
from hybridctl.robots import ball, block

import hybridctl as hc
from hybridctl.base.errors import StepLimitError, ZenoError
from hybridctl.hybrid.clock import OwnClock
from hybridctl.hybrid.laws import DifferentiableLaw, LinearFeedback
from hybridctl.hybrid.policy import History

NOW = 1.7e9
TICK = float(np.spacing(NOW))  # 2.4e-7 s


def both(system, mode, x0, span, policy=None, **options):
    """A run from zero, and the same one from now; of systems and policies without a clock."""
    early = hc.simulate(system, mode, x0, (0.0, span), policy, **options)
    late = hc.simulate(system, mode, x0, (NOW, NOW + span), policy, **options)
    return early, late


def agree(early, late, rounding=0.0):
    """Events, their times and states; times are those since the start, rounded to ticks."""
    assert [e.guards for e in late.events] == [e.guards for e in early.events]
    assert [e.mode_after for e in late.events] == [e.mode_after for e in early.events]
    for one, other in zip(early.events, late.events, strict=True):
        assert abs(other.time - NOW - one.time) <= 0.5 * TICK + rounding
        np.testing.assert_allclose(other.state_before, one.state_before, rtol=0, atol=rounding)
        np.testing.assert_allclose(other.state_after, one.state_after, rtol=0, atol=rounding)
        np.testing.assert_allclose(other.impulses, one.impulses, rtol=0, atol=rounding)


def test_a_ball_comes_to_rest_through_bounces_closer_than_a_tick(tmp_path):
    system = ball.system(ball.BallParameters(slope=0.0, restitution=0.8))
    early, late = both(system, ("open",), [0.0, 1.0, 0.3, 0.0], 6.0)
    assert len(late.events) > 50
    agree(early, late)
    assert late.final_mode == ("closed",)
    np.testing.assert_array_equal(late.final_state, early.final_state)
    assert (late.start, late.end) == (NOW, NOW + 6.0)
    assert late.system is late.source is system
    # each arc has the limits of its events at its ends, but for steps of less than a tick, which
    # have no duration left: at accelerations and speeds below 10, twice a tick
    for event, arc, after in zip(late.events, late.arcs, late.arcs[1:], strict=False):
        assert arc.end == after.start == event.time
        np.testing.assert_allclose(arc(arc.end), event.state_before, atol=20.0 * TICK)
        if after.end > after.start:
            np.testing.assert_allclose(after(after.start), event.state_after, atol=20.0 * TICK)
    late.save(tmp_path / "run.npz")
    again = hc.HybridTrajectory.load(tmp_path / "run.npz", system)
    assert [e.time for e in again.events] == [e.time for e in late.events]
    mid = NOW + 1.375  # a number of ticks, at which both runs are told exactly
    np.testing.assert_allclose(late(mid), early(1.375), atol=10.0 * TICK)  # speeds below 5 m/s


@pytest.mark.parametrize("number", range(5))
def test_a_block_lands_as_it_does_at_zero(number):
    rng = np.random.default_rng([17, number])
    system = block.system(block.BlockParameters(restitution=0.3))
    x0 = np.concatenate(([0.0, 1.0, rng.normal()], rng.normal(size=3)))
    x0[1] += 0.05 - system.dynamics.gaps(x0[:3]).min()
    early, late = both(system, ("open",) * len(system.contacts), x0, 0.5)
    assert late.events
    agree(early, late)


def driven(start):
    """A ball on a floor that moves, under a force of the clock that began at `start`."""
    field = lambda t, x, u: np.array([x[1], -9.81 + u[0] + 0.3 * np.sin(3.0 * (t - start))])  # noqa: E731
    air = hc.Mode("air", hc.VectorSpace(2), field, nu=1)
    floor = hc.Guard("floor", lambda t, x, u: x[0] - 0.05 * np.sin(7.0 * (t - start)))
    bounce = hc.Reset(lambda t, x, u: np.array([x[0], 0.2 - 0.8 * x[1] + 0.1 * (t - start)]))
    return hc.HybridSystem([air], [hc.Transition("air", floor, bounce, "air")])


class Feedback(LinearFeedback):
    """u = sin(5 (t - start)) - 0.1 v."""

    limits = None

    def __init__(self, start):
        self.start = start

    def __call__(self, t, x):
        return np.array([np.sin(5.0 * (t - self.start)) - 0.1 * x[1]])

    def find_offsets_and_gains(self, times):
        gains = np.tile([[0.0, 0.1]], (len(times), 1, 1))
        return np.sin(5.0 * (times - self.start))[:, None], gains


class Policy:
    def __init__(self, law):
        self.given = law

    def law(self, history):
        return self.given


POLICIES = {
    "sampled": lambda start: hc.SampledPolicy(
        lambda t, x: np.array([0.5 * np.cos(5.0 * (t - start)) - 0.1 * x[1]]), 2.0**-6, start=start
    ),
    "function": lambda start: lambda t, x: np.array([0.5 * np.cos(5.0 * (t - start))]),
    "feedback": lambda start: Policy(Feedback(start)),
}


@pytest.mark.parametrize("kind", POLICIES)
def test_fields_guards_resets_and_policies_see_absolute_times(kind):
    early, late = (
        hc.simulate(driven(start), "air", [1.0, 0.0], (start, start + 2.0), POLICIES[kind](start))
        for start in (0.0, NOW)
    )
    assert len(late.guard_events) == 3
    # What they see of the time is off by a tick, and steps that are accurate to 1e-9 see that as
    # noise; rates are below 10, and each bounce may multiply what came before.
    agree(early, late, rounding=100.0 * TICK)
    assert len(late.events) == len(early.events)


@pytest.mark.filterwarnings("ignore::hybridctl.base.errors.NearGrazingWarning")
def test_a_run_from_now_is_linearized_and_extended():
    system = ball.system(ball.BallParameters(slope=0.1, restitution=0.6))
    early, late = both(system, ("open",), [0.0, 1.0, 0.3, 0.0], 1.0)
    first, then = hc.linearize(system, early), hc.linearize(system, late)
    size = np.abs(first.state_transition).max()
    # times of flight off by a tick between events; entries change by at most 10 of themselves a s
    matrix = then.state_transition
    np.testing.assert_allclose(matrix, first.state_transition, atol=30.0 * TICK * size)
    one, other = (hc.extend(system, run, before=0.05, after=0.05) for run in (early, late))
    for a, b in zip(one.arcs, other.arcs, strict=True):
        assert b.start - NOW == pytest.approx(a.start, abs=2.0 * TICK)
        np.testing.assert_allclose(b(b.end), a(a.end), atol=10.0 * TICK)


def test_errors_say_which_clock_they_mean_and_have_absolute_times():
    with pytest.raises(
        ZenoError, match=r"times count from the start of the run, 1\.7e\+09"
    ) as fail:
        hc.simulate(light_ball(0.5), "air", [1.0, 0.0], (NOW, NOW + 10.0))
    found = fail.value.trajectory
    assert found.start == NOW
    # 3 falls of 0.45 s
    assert found.end == pytest.approx(NOW + 3.0 * np.sqrt(2.0 / 9.81), abs=2.0 * TICK)
    with pytest.raises(StepLimitError, match="times count from"):
        hc.simulate(
            light_ball(0.5),
            "air",
            [1.0, 0.0],
            (NOW, NOW + 1.0),
            options=hc.SimulationOptions(max_steps=1),
            max_step=0.1,
        )


def test_what_looks_at_events_and_progress_is_told_absolute_times():
    seen, told = [], []
    run = hc.simulate(
        light_ball(0.9),
        "air",
        [1.0, 0.0],
        (NOW, NOW + 2.0),
        terminal=lambda event: seen.append(event.time) or len(seen) == 2,
        progress=told.append,
    )
    assert seen == [event.time for event in run.events]
    assert all(NOW <= t <= NOW + 2.0 for t in told)
    batch = hc.simulate_batch(light_ball(0.9), "air", [[1.0, 0.0]], (NOW, NOW + 1.0))
    assert batch.events[0][0].time == run.events[0].time


def test_a_law_with_derivatives_has_them_on_the_clock_too():
    """Without them implicit steps differenced it, and its changes were no events as from zero."""
    rate = lambda t, x: np.array([5.0 * np.cos(5.0 * (t - NOW))])  # noqa: E731
    given = DifferentiableLaw(Feedback(NOW), lambda t, x: np.array([[0.0, -0.1]]), rate)
    law = OwnClock(NOW).wrap_policy(Policy(given)).law(History("air", 0.0, np.zeros(2)))
    assert isinstance(law, DifferentiableLaw)
    assert isinstance(law.function, LinearFeedback)
    x = np.array([0.0, 2.0])
    assert law(0.5, x) == given(NOW + 0.5, x)
    assert law.velocity(0.5, x, x) == given.velocity(NOW + 0.5, x, x)
