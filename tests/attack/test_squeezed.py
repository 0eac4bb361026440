"""A light ball squeezed between a wall and a heavy mass, against the closed forms of `squeezed`."""

import numpy as np
import pytest

from attack.squeezed import (
    HORIZONS,
    START,
    Collisions,
    G,
    judged,
    rounding,
    simulated,
    unfolded,
)
from hybridctl.base.errors import ZenoError


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.mark.parametrize(("ratio", "count"), [(1e2, 31), (1e4, 314), (1e6, 3141)])
def test_elastic_collisions_count_the_digits_of_pi(ratio, count):
    assert unfolded(ratio, 1e6)[1] == count


@pytest.mark.parametrize("horizon", HORIZONS)
@pytest.mark.parametrize("ratio", [1e2, 1e3, slow(1e4), slow(1e5)])
def test_an_elastic_ball_turns_the_mass_round(ratio, horizon):
    for end in (1.0, 3.0) if ratio < 1e4 else (3.0,):
        run = simulated(ratio, 1.0, end, horizon)
        state, count = unfolded(ratio, end)
        assert len(run.events) == count
        np.testing.assert_allclose(run.final_state, state, atol=rounding(ratio, count))


TURNING = [(1e2, 0.99), (1e2, 0.9), (1e3, 0.99), slow(1e3, 0.95), slow(1e4, 0.99), slow(1e5, 0.999)]


@pytest.mark.parametrize(("ratio", "e"), TURNING)
def test_a_ball_that_loses_speed_turns_the_mass_round_as_the_recurrence_says(ratio, e):
    mu = 1.0 / ratio
    a = (1.0 + e) / (1.0 + mu)
    cycle = np.array([[-e * (1.0 - a), -e * a], [mu * a, 1.0 - mu * a]])
    assert abs(np.trace(cycle)) < 2.0 * e  # complex eigenvalues
    exact = Collisions(ratio, e, 0.0)
    passed = exact.run(6.0)
    run = simulated(ratio, e, 6.0)
    assert [event.guards for event in run.events] == [
        (f"{'pair' if k % 2 == 0 else 'wall'} closes",) for k in range(len(passed))
    ]
    u = START[2:]
    tolerance = rounding(ratio, len(passed))
    for event in run.events[1::2]:
        u = cycle @ u
        np.testing.assert_allclose(event.state_after[2:], u, atol=tolerance)
    np.testing.assert_allclose(run.final_state, exact.state, atol=10.0 * tolerance)


@pytest.mark.parametrize("horizon", HORIZONS)
@pytest.mark.parametrize(("ratio", "e"), [(30.0, 0.05), (1e3, 0.9), slow(1e4, 0.95)])
def test_a_mass_that_is_stopped_in_no_time_is_refused_not_put_to_rest(ratio, e, horizon):
    """Infinitely many collisions within a few 1e-9 s take all speed away; no force does that."""
    with pytest.raises(ZenoError, match="events accumulate"):
        simulated(ratio, e, 3.0, horizon)
    exact = Collisions(ratio, e, 0.0)
    passed = exact.run(3.0, least=1e-9)
    assert passed[-1][1][3] < -0.1  # where they are as close as that, the mass still moves


# Upright, with weight: the mass falls on the ball, is thrown back, and comes to rest on it.


@pytest.mark.parametrize(
    ("ratio", "e", "end"),
    [
        (1e2, 1.0, 0.4),
        (1e2, 0.9, 0.5),
        (1e3, 0.99, 0.4),
        slow(1e4, 1.0, 0.4),
        slow(1e5, 0.999, 0.4),
    ],
)
def test_a_falling_mass_is_thrown_back_by_the_ball(ratio, e, end):
    """The flow is exact to 1e-9; what it is off by then is squeezed as the height of the ball is.

    Its speed is inverse to that, and grows by sqrt(ratio).
    """
    exact = Collisions(ratio, e, G)
    passed = exact.run(end)
    run = simulated(ratio, e, end, 1e-3, upright=True)
    assert len(run.events) == len(passed)
    np.testing.assert_allclose(run.final_state, exact.state, atol=1e-8 * np.sqrt(ratio))


@pytest.mark.parametrize("horizon", HORIZONS)
@pytest.mark.parametrize(("ratio", "e"), [(1.0, 0.5), (10.0, 0.7), slow(1e2, 0.9)])
def test_a_mass_rests_on_the_ball_only_when_it_has_come_to_rest(ratio, e, horizon):
    """Where rest begins, nothing closes faster than ten times what weight makes of it until then.

    A window may take as long as the horizon times (1 - r) / r, here at most three times that.
    """
    run = simulated(ratio, e, 1.0, horizon, upright=True)
    rests = [event for event in run.events if event.accumulation is not None]
    assert rests
    assert run.final_mode == ("closed", "closed")
    np.testing.assert_allclose(run.final_state, 0.0, atol=1e-8)
    before = run.events[: run.events.index(rests[0])]
    exact = Collisions(ratio, e, G)
    passed = exact.run(rests[0].time, least=10.0 * horizon)
    for event, (t, state) in zip(before, passed, strict=False):
        assert event.time == pytest.approx(t, abs=1e-8)
        np.testing.assert_allclose(event.state_after, state, atol=1e-6)
    for event in rests:
        v, w = event.state_before[2:]
        closing = [-v] * ("wall closes" in event.guards) + [v - w] * ("pair closes" in event.guards)
        assert max(closing) <= 10.0 * G * 4.0 * horizon


def test_random_chains_end_as_in_closed_form_or_are_refused_where_collisions_accumulate():
    answers = [judged(seed)[1] for seed in range(6)]
    assert {"right", "ZenoError where they accumulate"} >= set(answers)
    assert answers.count("right") >= 3
