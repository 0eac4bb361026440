"""Balls in closed form are those that are simulated; their noise is that of the generic path."""

import numpy as np
import pytest
from hybridctl.robots import ball
from hybridctl.robots.ball_particles import BallParticles, landing
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridctl as hc
from hybridctl.app.models import find_model
from hybridctl.errors import EventLimitError, InputError, UnknownNameError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.filter import SaltedKalmanFilter
from hybridctl.estimation.filters import make_filter
from hybridctl.estimation.measurement import coordinates
from hybridctl.estimation.noise import Noise
from hybridctl.estimation.particle import ParticleFilter
from hybridctl.estimation.record import Record, Series

OPEN = ("open",)
STILL = np.zeros(2)
SLOPE = 0.2
NORMAL = np.array([np.sin(SLOPE), np.cos(SLOPE)])
DOWN = np.array([np.cos(SLOPE), -np.sin(SLOPE)])


def thrown(n, seed=0):
    rng = np.random.default_rng(seed)
    return np.column_stack(
        [rng.normal(0, 0.1, n), rng.uniform(0.3, 1, n), rng.normal(0, 0.7, n), rng.normal(0, 1, n)]
    )


def moved(p, modes, states, duration, u=STILL, seed=0, **noise):
    states = np.atleast_2d(states)
    return BallParticles(p, **noise)(
        modes, states, 0.0, duration, np.asarray(u), np.random.default_rng(seed)
    )


def assert_simulated(p, modes, states, duration, u):
    found, ends, events = moved(p, modes, states, duration, u)
    system = ball.system(p)
    for k, (mode, x) in enumerate(zip(modes, states, strict=True)):
        run = hc.simulate(
            system, mode, x, (0.0, duration), lambda t, x: u, on_zeno="rest", zeno_horizon=1e-3
        )
        assert found[k] == run.final_mode
        # rounding, magnified by a few tens of impacts
        np.testing.assert_allclose(ends[k], run.final_state, atol=1e-11)
        own, right = events.get(k, ()), run.guard_events
        assert [e.guards for e in own] == [e.guards for e in right]
        assert [e.index for e in own] == list(range(len(own)))
        for a, b in zip(own, right, strict=True):
            assert a.time == pytest.approx(b.time, abs=1e-10)
            assert (a.mode_before, a.mode_after) == (b.mode_before, b.mode_after)
            np.testing.assert_allclose(a.state_after, b.state_after, atol=1e-10)
            np.testing.assert_allclose(a.state_before, b.state_before, atol=1e-10)
            np.testing.assert_allclose(a.impulses.sum(), np.sum(b.impulses), atol=1e-9)
    return found, events


@pytest.mark.parametrize("u", [(0.0, 0.0), (1.0, 2.0)])
@pytest.mark.parametrize(("restitution", "friction", "slope"), [
    (0.7, 0.0, 0.2), (0.0, 0.0, 0.3), (1.0, 0.2, 0.0), (0.5, 0.15, 0.2), (0.4, 0.5, 0.2),
])  # fmt: skip
def test_without_noise_they_are_the_simulated_balls(restitution, friction, slope, u):
    """Through all bounces to the rest, and through sliding to the stop."""
    p = ball.Parameters(1.3, slope, friction=friction, restitution=restitution)
    _, events = assert_simulated(p, [OPEN] * 4, thrown(4), 2.0, np.array(u))
    assert max(map(len, events.values())) > (1 if restitution else 0)


def test_balls_in_contact_slide_stop_slip_and_take_off_as_simulated():
    p = ball.Parameters(slope=SLOPE, friction=0.3)
    on = np.concatenate([0.3 * DOWN, STILL])
    cases = [
        ("slip+", on + np.concatenate([STILL, 0.4 * DOWN]), "stick"),
        ("slip-", on - np.concatenate([STILL, 0.4 * DOWN]), "stick"),
        ("stick", on, "stick"),
    ]
    modes, states = [(key,) for key, _, _ in cases], np.array([x for _, x, _ in cases])
    found, _ = assert_simulated(p, modes, states, 0.5, STILL)
    assert found == tuple((key,) for _, _, key in cases)
    found, _ = assert_simulated(p, modes[:2], states[:2], 0.5, 4.0 * DOWN)
    assert found == (("slip+",),) * 2


def test_what_a_new_input_lets_go_opens_or_slips_at_once():
    p = ball.Parameters(slope=SLOPE, friction=0.3)
    x = np.concatenate([0.3 * DOWN, STILL])
    (mode,), (end,), events = moved(p, [("stick",)], x, 0.1, 12.0 * NORMAL)
    assert (mode, events[0][0].guards, events[0][0].time) == (OPEN, ("slope opens",), 0.0)
    rate = 12.0 * NORMAL - [0.0, 9.81]
    np.testing.assert_allclose(end, x + np.concatenate([0.005 * rate, 0.1 * rate]), atol=1e-14)
    for sign, guard in ((1.0, "slope slips+"), (-1.0, "slope slips-")):
        *_, events = moved(p, [("stick",)], x, 0.1, 6.0 * sign * DOWN)
        assert events[0][0].guards == (guard,)


@settings(max_examples=50)
@given(
    x=st.tuples(*(st.floats(-1, 1) for _ in range(4))),
    part=st.floats(0.0, 1.0),
    friction=st.sampled_from([0.0, 0.2]),
)
def test_two_intervals_are_one(x, part, friction):
    """Between the bounces or at them; a few only, so that rounding stays small."""
    p = ball.Parameters(slope=SLOPE, restitution=0.8, friction=friction)
    start = np.array(x) + np.concatenate([1.5 * NORMAL, STILL])
    mode, whole, _ = moved(p, [OPEN], start, 1.0)
    middle, half, _ = moved(p, [OPEN], start, part)
    found, end, _ = moved(p, middle, half, 1.0 - part)
    assert found == mode
    np.testing.assert_allclose(end, whole, atol=1e-11)


def test_a_ball_below_the_slope_that_falls_has_hit_it_in_the_past():
    p = ball.Parameters(slope=SLOPE, restitution=0.7, friction=0.1)
    at = np.concatenate([0.2 * DOWN, 0.5 * DOWN - 2.0 * NORMAL])
    past = at + np.concatenate([0.01 * at[2:] - [0.0, 0.5e-4 * 9.81], [0.0, -9.81 * 0.01]])
    _, (end,), events = moved(p, [OPEN], past, 0.1)
    _, (right,), _ = moved(p, [OPEN], at, 0.11)
    np.testing.assert_allclose(end, right, atol=1e-13)
    assert events[0][0].time == pytest.approx(-0.01, abs=1e-12)


def test_a_ball_below_the_slope_that_rises_comes_out_or_comes_to_rest():
    p = ball.Parameters(slope=0.0, restitution=0.7)
    x = np.array([0.0, -0.01, 1.0, 2.0])
    (mode,), (end,), events = moved(p, [OPEN], x, 0.1)
    assert (mode, events) == (OPEN, {})
    np.testing.assert_allclose(end, [0.1, -0.01 + 0.2 - 0.005 * 9.81, 1.0, 2.0 - 0.981], atol=1e-14)
    (mode,), (end,), _ = moved(p, [OPEN], [0.0, -0.01, 1.0, 0.1], 1.0)
    assert mode == ("closed",)
    # of 1 cm below, what decays at 20 / s for 0.98 s leaves d (1 + 20 t) and, as speed, d 400 t
    left = 0.01 * 400.0 * np.exp(-20.0 * 0.98)
    np.testing.assert_allclose(end, [1.0, 0.0, 1.0, 0.0], atol=left)


def test_times_of_landing_are_roots():
    h, v = np.random.default_rng(0).normal(size=(2, 200))
    for a in (-2.0, 0.0, 2.0):
        t = landing(h, v, a)
        there = np.isfinite(t) & (v**2 >= 2.0 * a * h)
        t, h0, v0 = t[there], h[there], v[there]
        np.testing.assert_allclose(h0 + v0 * t + 0.5 * a * t**2, 0.0, atol=1e-12)
        assert (v0 + a * t <= 1e-12).all()
        never = ~np.isfinite(t)
        assert not never.any() or a >= 0.0


def spread(a, right):
    """Covariances agree within five of their own sampling errors."""
    d = np.sqrt(np.diag(right))
    rho = np.sqrt((np.outer(d, d) ** 2 + right**2) / len(a))
    assert (np.abs(np.cov(a.T) - right) <= 5.0 * rho + 1e-18).all()


@pytest.mark.parametrize(("modes", "friction", "x", "duration"), [
    (OPEN, 0.0, [0.0, 1.0, 0.5, 0.2], 0.3),
    (OPEN, 0.0, [0.0, 1.0, 0.5, 0.2], 0.6),
    (OPEN, 0.2, [0.0, 1.0, 0.5, 0.2], 0.6),
    (("slip+",), 0.3, [*(0.3 * DOWN), *(0.6 * DOWN)], 0.2),
    (("closed",), 0.0, [*(0.3 * DOWN), *(0.6 * DOWN)], 0.2),
])  # fmt: skip
def test_noise_of_flow_resets_and_guards_is_that_of_the_generic_path(modes, friction, x, duration):
    """The generic path draws from the covariance that `predict` gathers; so small a noise is of
    first order to a thousandth, and 20,000 balls tell a hundredth."""
    p = ball.Parameters(2.0, SLOPE, friction=friction, restitution=0.7)
    force, impulse = np.array([[4.0, 1.0], [1.0, 2.0]]) * 1e-6, np.diag([1e-6, 2e-6])
    guard = 1e-8
    n, x = 20_000, np.array(x)
    _, ends, _ = moved(
        p, [modes] * n, np.tile(x, (n, 1)), duration, STILL, 3,
        force_noise=force, reset_noise=impulse, guard_noise=guard,
    )  # fmt: skip
    right = SaltedKalmanFilter(
        ball.system(p),
        Noise(force, through_input=True, compliance=0.0),
        coordinates("position", [0, 1], np.eye(2)),
        Noise(impulse, through_input=True, compliance=0.0),
        {"slope closes": guard},
    ).predict(Estimate(modes, 0.0, x, np.zeros((4, 4))), duration)
    assert len(right.events) == (modes == OPEN and duration > 0.5)
    spread(ends, right.estimate.covariance)
    d = np.sqrt(np.diag(right.estimate.covariance))
    assert (np.abs(ends.mean(axis=0) - right.estimate.mean) <= 5.0 * d / np.sqrt(n) + 1e-9).all()


def test_noise_is_drawn_anew_in_each_interval():
    """Two intervals have the covariance of one, of the double integrator in closed form."""
    p, n = ball.Parameters(2.0, SLOPE), 20_000
    law, rng = BallParticles(p, 0.04 * np.eye(2)), np.random.default_rng(0)
    states = np.tile([0.0, 1.0, 0.0, 0.0], (n, 1))
    for start, end in ((0.0, 0.1), (0.1, 0.3)):
        _, states, _ = law([OPEN] * n, states, start, end, STILL, rng)
    t, w = 0.3, 0.04 / 4.0
    spread(states[:, [0, 2]], w * np.array([[t**3 / 3.0, t**2 / 2.0], [t**2 / 2.0, t]]))
    spread(states[:, [1, 3]], w * np.array([[t**3 / 3.0, t**2 / 2.0], [t**2 / 2.0, t]]))


def test_the_past_has_had_its_noise():
    """A ball that hit before the interval gathers noise in the interval alone."""
    p, n, duration = ball.Parameters(slope=0.0, restitution=0.7), 20_000, 0.05
    past = np.tile([0.0, -0.06, 0.0, -2.0], (n, 1))
    _, ends, events = moved(p, [OPEN] * n, past, duration, force_noise=0.01 * np.eye(2))
    assert events[0][0].time < -0.02
    t = duration
    right = 0.01 * np.array([[t**3 / 3.0, t**2 / 2.0], [t**2 / 2.0, t]])
    spread(ends[:, [0, 2]], right)
    spread(ends[:, [1, 3]], right)


def test_the_filter_is_the_same_with_it_and_without():
    """One bounce of uncertain balls: mean, covariance and the event."""
    p = ball.Parameters(slope=SLOPE, restitution=0.7)
    force, n = 1e-4 * np.eye(2), 200
    start = Estimate(OPEN, 0.0, np.array([0.0, 0.3, 0.5, -1.0]), 1e-4 * np.eye(4))
    record = Record({"position": Series([0.1, 0.3], [[0.05, 0.15], [np.nan, np.nan]])})
    found = []
    for hook, particles in ((None, n), (BallParticles(p, force), 10_000)):
        found.append(
            ParticleFilter(
                ball.system(p),
                Noise(force, through_input=True, compliance=0.0),
                coordinates("position", [0, 1], 1e-3 * np.eye(2)),
                particles=particles,
                propagate=hook,
            ).run(record, start)
        )
    one, all_ = found
    for a, b in zip(one.steps, all_.steps, strict=True):
        d = np.sqrt(np.diag(b.estimate.covariance))
        assert (np.abs(a.estimate.mean - b.estimate.mean) <= 5.0 / np.sqrt(n) * d).all()
        gap = np.abs(a.estimate.covariance - b.estimate.covariance)
        assert (gap <= 5.0 * np.sqrt(2.0 / n) * np.outer(d, d)).all()
    (first,), (second,) = one.events, all_.events
    assert first.guards == second.guards == ("slope closes",)
    # heights and speeds of 1 cm and cm/s move the impact by up to 1 cm / 2 m/s, 5 deviations
    assert first.time == pytest.approx(second.time, abs=0.03)


def test_one_seed_gives_one_result():
    p, x = ball.Parameters(restitution=0.6), thrown(50)
    options = {"force_noise": 1e-2 * np.eye(2), "reset_noise": 1e-3 * np.eye(2)}
    ends = [moved(p, [OPEN] * 50, x, 1.0, seed=s, **options)[1] for s in (0, 0, 1)]
    np.testing.assert_array_equal(ends[0], ends[1])
    assert (ends[0] != ends[2]).any(axis=1).all()
    np.testing.assert_array_equal(x, thrown(50))


def test_the_model_of_the_command_has_it():
    source = find_model("ball")
    settings = source.configured(None, ["guard_noise=1e-3", "force_noise=0"])
    model = source.make(settings)
    assert make_filter("particle", model, settings).propagate is model.propagate
    x = np.tile([0.0, 0.1, 0.5, -1.0], (2000, 1))
    *_, events = model.propagate([OPEN] * 2000, x, 0.0, 0.2, STILL, np.random.default_rng(0))
    heights = np.array([events[k][0].state_before[:2] @ NORMAL for k in range(2000)])
    assert heights.std() == pytest.approx(1e-3, rel=5.0 / np.sqrt(4000))


def test_bad_input_is_named():
    p = ball.Parameters(restitution=0.5)
    with pytest.raises(InputError, match="force_noise"):
        BallParticles(p, force_noise=-np.eye(2))
    with pytest.raises(InputError, match="reset_noise"):
        BallParticles(p, reset_noise=np.eye(3))
    with pytest.raises(InputError, match="guard_noise"):
        BallParticles(p, guard_noise=-1.0)
    with pytest.raises(InputError, match="rest"):
        BallParticles(p, rest=-1.0)
    with pytest.raises(InputError, match="restitution"):
        BallParticles(ball.Parameters(restitution=2.0))
    with pytest.raises(InputError, match=r"states must have shape \(1, 4\)"):
        moved(p, [OPEN], np.zeros((2, 4)), 0.1)
    with pytest.raises(UnknownNameError, match="stick"):
        moved(p, [("stick",)], np.zeros(4), 0.1)
    elastic = ball.Parameters(slope=0.0, restitution=1.0)
    with pytest.raises(EventLimitError, match="more than 1000 events"):
        moved(elastic, [OPEN], [0.0, 1e-9, 0.0, 0.0], 1.0)
