"""Robots with contacts: blocks that land corner by corner and stop, balls that come to rest."""

import casadi as ca
import numpy as np
import pytest
from hybridctl.robots import ball, block
from scipy.integrate import solve_ivp

import hybridctl as hc
from hybridctl.estimation.consistency import mode_agreement, nees, nis_band
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.measurement import coordinates
from hybridctl.estimation.mode_consistency import reconcile
from hybridctl.estimation.noise import Noise, reset_covariance
from hybridctl.estimation.noisy_system import NoisySystem
from hybridctl.estimation.record import Record, Series
from hybridctl.estimation.salted_jump import JumpMoments
from hybridctl.estimation.salted_kalman_filter import FilterOptions, SaltedKalmanFilter


def test_blocks_that_land_and_stop_are_followed_through_rank_deficient_modes():
    system = block.system(actuated=True)
    start = np.array([0.0, 0.3, 0.2, 1.0, 0.0, 0.0])
    p0 = np.diag([0.01, 0.01, 0.01, 0.05, 0.05, 0.05]) ** 2
    kf = SaltedKalmanFilter(
        system,
        Noise(1e-6 * np.eye(3), through_input=True, compliance=0.0),
        coordinates("pose", [0, 1, 2], 1e-6 * np.eye(3)),
    )
    times = np.arange(1, 50) / 100.0
    results = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        truth = hc.simulate(system, ("open",) * 2, rng.multivariate_normal(start, p0), (0.0, 0.5))
        values = [truth(t)[:3] + 1e-3 * rng.normal(size=3) for t in times]
        record = Record({"pose": Series(times, np.array(values))})
        result = kf.run(record, Estimate(("open",) * 2, 0.0, start, p0))
        # at most a sample or two around each of four events are in another mode
        assert mode_agreement(result, truth) >= 0.9
        for p in result.covariances:
            values = np.linalg.eigvalsh(p)
            assert values[0] >= -1e-15 * values[-1]
        # at rest the block is held: height, pitch and all velocities are known
        assert result.modes[-1] == ("stick", "stick")
        assert np.sqrt(np.diag(result.covariances[-1])[[1, 2, 3, 4, 5]]).max() < 1e-4
        results.append(result)
    assert nis_band(results).inside


def test_a_ball_that_comes_to_rest_has_no_gap_and_no_speed_across():
    p = ball.BallParameters(slope=0.0, restitution=0.3)
    kf = SaltedKalmanFilter(
        ball.system(p), np.zeros((4, 4)), coordinates("position", [0, 1], np.eye(2))
    )
    start = Estimate(("open",), 0.0, np.array([0.0, 0.05, 0.3, 0.0]), 1e-6 * np.eye(4))
    found = kf.predict(start, 0.5)
    assert found.estimate.mode == ("closed",)
    assert found.events[-1].accumulation is not None
    assert any("accumulate" in note for note in found.notes)
    assert not found.notes[1:]
    across = found.estimate.covariance[[1, 3]]
    assert np.abs(across).max() < 1e-15


def expressed_ball(restitution):
    """The same ball of expressions, without an edge of rest."""
    x = ca.SX.sym("x", 4)
    return hc.symbolic.hybrid_system(
        [hc.symbolic.SymbolicMode("open", state=x, field=[x[2], x[3], 0.0, -9.81])],
        [
            hc.symbolic.SymbolicTransition(
                "open", "floor", x[1], "open", [x[0], x[1], x[2], -restitution * x[3]]
            )
        ],
    )


@pytest.mark.parametrize("knows_rest", [True, False])
def test_rest_tells_nothing_of_what_bounces_do_not_move(knows_rest):
    """Place and speed along a floor without friction, known together with height and fall.

    They were taken to be those of balls that are at rest without bounces: up to half of a variance
    was gone. What is left is that of free flight, F P F^T with F = (1, t; 0, 1), to the rounding of
    the variance of the height, which bounces make larger by 1e4 before rest takes it away.
    """
    key, e, end = ("open",), 0.7, 5.0
    system = ball.system(ball.BallParameters(slope=0.0, restitution=e))
    if not knows_rest:
        key, system = "open", expressed_ball(e)
    kf = SaltedKalmanFilter(
        system, np.zeros((4, 4)), coordinates("position", [0, 1], 1e-4 * np.eye(2))
    )
    root = 0.01 * np.random.default_rng(3).normal(size=(4, 4))
    start = Estimate(key, 0.0, np.array([0.0, 0.5, 0.3, 0.0]), root @ root.T)
    found = kf.predict(start, end)
    assert any("accumulate" in note for note in found.notes)
    flight = np.array([[1.0, end], [0.0, 1.0]])
    along = np.ix_([0, 2], [0, 2])
    free = flight @ start.covariance[along] @ flight.T
    left = found.estimate.covariance[along]
    if not knows_rest:  # how far it goes on is not known then, and said to be so
        assert left[0, 0] > free[0, 0]
        left, free = left[1:, 1:], free[1:, 1:]
    np.testing.assert_allclose(left, free, rtol=1e-7)
    np.testing.assert_allclose(found.estimate.covariance[[1, 3]], 0.0, atol=1e-12)


@pytest.mark.parametrize(("restitution", "pitch"), [(0.05, 0.01), (0.3, 0.01), (0.5, -0.05)])
def test_a_block_whose_corners_bounce_in_turn_has_no_gap_at_either(restitution, pitch):
    """Its corners come to rest at once, or one after the other.

    The rows of the gaps and of their rates are those of the level block.
    """
    p = block.BlockParameters(restitution=restitution, friction=0.0)
    kf = SaltedKalmanFilter(
        block.system(p), np.zeros((6, 6)), coordinates("pose", [0, 1, 2], np.eye(3))
    )
    start = np.array([0.0, 0.5 * p.height + 0.02, pitch, 0.0, 0.0, 0.0])
    found = kf.predict(Estimate(("open",) * 2, 0.0, start, 1e-8 * np.eye(6)), 0.8)
    rests = [event for event in found.events if event.accumulation is not None]
    assert rests[0].mode_before == ("open", "open")
    assert "open" not in rests[-1].mode_after
    assert {name for rest in rests for name in rest.guards} == {"left closes", "right closes"}
    half = 0.5 * p.width
    gaps = np.array([[0.0, 1.0, half], [0.0, 1.0, -half]])
    rows = np.block([[gaps, np.zeros((2, 3))], [np.zeros((2, 3)), gaps]])
    # the pitch at rest is that of the last bounces, some 1e-5 rad within the horizon
    np.testing.assert_allclose(rows @ found.estimate.covariance @ rows.T, 0.0, atol=1e-15)


def test_a_contact_that_would_pull_and_cannot_be_corrected_lets_go():
    """Held means: the covariance is zero, so only the event is left."""
    kf = SaltedKalmanFilter(
        ball.system(ball.BallParameters(slope=0.0)),
        np.zeros((4, 4)),
        coordinates("position", [0, 1], np.eye(2)),
    )
    e = Estimate(("closed",), 0.0, np.zeros(4), np.zeros((4, 4)))
    lifting = np.array([0.0, 20.0])  # more than the weight of 9.81 N
    found = reconcile(kf.model, e, lambda t, x: lifting)
    assert found.estimate.mode == ("open",)
    assert [event.guards for event in found.events] == [(f"{ball.CONTACT} opens",)]


def test_a_certain_mean_below_the_ground_lands_on_it():
    """Too far below to be overdue, and sure of its height: it lands, and its gap is closed."""
    system = ball.system(ball.BallParameters(slope=0.0, restitution=0.0))
    kf = SaltedKalmanFilter(
        system,
        np.zeros((4, 4)),
        coordinates("position", [0, 1], np.eye(2)),
        options=FilterOptions(rewind=1e-3),
    )
    below = Estimate(("open",), 0.0, np.array([0.0, -3e-4, 0.3, -0.01]), np.zeros((4, 4)))
    landed = reconcile(kf.model, below, lambda t, x: np.zeros(2)).estimate
    assert landed.mode == ("closed",)
    np.testing.assert_allclose(landed.mean, [0.0, 0.0, 0.3, 0.0], atol=1e-11)


@pytest.mark.parametrize("compliance", [0.0, 0.5, 1.0])
def test_a_closed_contact_moves_within_noise_of_its_velocity(compliance):
    """A ball on the level: forces of density W move it along, and across as far as it gives way."""
    system, density, mass, length = ball.system(ball.BallParameters(slope=0.0)), 0.04, 1.0, 0.3
    noise = Noise(density * np.eye(2), through_input=True, compliance=compliance)
    kf = SaltedKalmanFilter(system, noise, coordinates("position", [0, 1], np.eye(2)))
    start = Estimate(("closed",), 0.0, np.zeros(4), np.zeros((4, 4)))
    p = kf.predict(start, length).estimate.covariance
    white = density / mass**2 * np.array([[length**3 / 3, length**2 / 2], [length**2 / 2, length]])
    along, across = p[np.ix_([0, 2], [0, 2])], p[np.ix_([1, 3], [1, 3])]
    np.testing.assert_allclose(along, white, rtol=1e-12)
    np.testing.assert_allclose(across, compliance**2 * white, rtol=1e-12, atol=1e-16)


def test_what_gives_way_moves_as_in_the_air():
    system, u = block.system(actuated=True), np.array([0.3, -0.2, 0.1])
    x = np.array([0.1, 0.05, 0.0, 0.2, 0.0, 0.0])
    free = system.mode(("open",) * 2).jacobian(0.0, x, u).input
    for key in (("stick", "stick"), ("slip+", "slip+"), ("open", "stick"), ("open", "open")):
        mode = system.mode(key)
        np.testing.assert_allclose(mode.calc(0.0, x, u).free_input, free, rtol=1e-12)


@pytest.mark.parametrize("compliance", [0.0, 0.5, 1.0])
def test_an_impulse_moves_what_it_closes_as_far_as_that_gives_way(compliance):
    p = ball.BallParameters(slope=0.0, restitution=0.0)
    kick = Noise(0.09 * np.eye(2), through_input=True, compliance=compliance)
    measured = coordinates("position", [0, 1], np.eye(2))
    kf = SaltedKalmanFilter(ball.system(p), np.zeros((4, 4)), measured, kick)
    start = Estimate(("open",), 0.0, np.array([0.0, 0.1, 0.4, 0.0]), np.zeros((4, 4)))
    event = hc.simulate(kf.model.system, ("open",), start.mean, (0.0, 0.2)).events[0]
    added = reset_covariance(kf.model.system, kick, event)
    np.testing.assert_allclose(added, np.diag([0.0, 0.0, 0.09, 0.09 * compliance**2]), atol=1e-15)


def test_a_correction_reaches_what_a_contact_holds_and_the_mean_stays_on_it():
    """A soft floor: the ball is seen 3 mm below, which a rigid contact calls impossible."""
    system = ball.system(ball.BallParameters(slope=0.0))
    seen = coordinates("position", [0, 1], 1e-6 * np.eye(2))
    sizes = []
    for compliance in (0.0, 1.0):
        noise = Noise(np.eye(2), through_input=True, compliance=compliance)
        kf = SaltedKalmanFilter(system, noise, seen)
        start = Estimate(("closed",), 0.0, np.zeros(4), np.zeros((4, 4)))
        after = kf.update(kf.predict(start, 0.02), "position", [0.0, -3e-3])
        assert after.estimate.mode == ("closed",)
        np.testing.assert_allclose(after.estimate.mean[[1, 3]], 0.0, atol=1e-12)
        sizes.append(after.innovation.nis)
    assert sizes[0] == pytest.approx(9.0)
    assert sizes[1] == pytest.approx(9e-6 / (1e-6 + 0.02**3 / 3.0))


def test_a_mean_that_an_event_moves_stays_on_what_its_mode_holds(monkeypatch):
    """Moments of a map of pieces may lie off the mode: it was no state that a flow begins at."""
    system = block.system(block.BlockParameters(restitution=0.0), actuated=True)
    kf = SaltedKalmanFilter(
        system, np.zeros((6, 6)), coordinates("pose", [0, 1, 2], 1e-6 * np.eye(3))
    )
    start = Estimate(("open", "open"), 0.0, np.array([0.0, 0.07, 0.1, 0.5, -1.0, 0.0]), np.eye(6))
    shift = np.array([0.01, 2e-3, 1e-3, 0.1, 0.5, 0.3])
    moved = lambda system, event, p, *noise: JumpMoments(shift, p, None)  # noqa: E731
    monkeypatch.setattr("hybridctl.estimation.kalman_equations.jump_moments", moved)
    found = kf.predict(start, 0.03)
    assert found.events
    mode = system.mode(found.estimate.mode)
    assert mode.held.excess(found.estimate.mean) <= 1.0


def on_a_soft_floor(duration, height, times):
    """Heights and speeds (n, 2) of a ball of 1 kg on a spring with a damper, half a period long."""
    stiffness = (np.pi / duration) ** 2
    damping = 1.6 * np.sqrt(stiffness)

    def rate(t, y):
        push = max(-stiffness * y[0] - damping * y[1], 0.0) if y[0] < 0.0 else 0.0
        return [y[1], push - 9.81]

    span, start = (0.0, times[-1]), [height, 0.0]
    return solve_ivp(rate, span, start, t_eval=times, max_step=duration / 20, rtol=1e-9).y.T


@pytest.mark.parametrize("duration", [2e-3, 10e-3])
def test_on_a_soft_floor_a_filter_of_rigid_contacts_knows_how_wrong_it_is(duration):
    """To a factor of two, with noise of 0.3 N sqrt(s) and 0.03 N s that contacts give way to.

    The height of the floor is known to 1 mm, as much as the ball sinks in.
    """
    times, rng, mode = np.arange(1, 75) / 148.0, np.random.default_rng(0), ("open",)
    system = ball.system(ball.BallParameters(slope=0.0, restitution=0.0))
    force, kick = (Noise(level**2 * np.eye(2), through_input=True) for level in (0.3, 0.03))
    camera = coordinates("position", [0, 1], 1e-6 * np.eye(2))
    kf, found = SaltedKalmanFilter(system, force, camera, kick, 1e-6), []
    for _ in range(4):
        height = 0.05 + 0.05 * rng.random()
        truth = np.zeros((len(times), 4))
        truth[:, 1::2] = on_a_soft_floor(duration, height, times)
        seen = truth[:, :2] + 1e-3 * rng.normal(size=(len(times), 2))
        x, spread = np.array([0.0, height, 0.0, 0.0]), np.array([1e-3, 1e-3, 1e-2, 1e-2])
        start = Estimate(mode, 0.0, x, np.diag(spread**2))
        result = kf.run(Record({"position": Series(times, seen)}), start)
        space = system.mode(mode).space
        known = [step.estimate for step in result.steps]
        found += [nees(space, e, x) for e, x in zip(known, truth, strict=True)]
        assert ("closed",) in result.modes
    squares, degrees = np.array(found).sum(axis=0)
    assert 0.5 < squares / degrees < 2.0


def test_a_simulation_ends_at_an_event_that_moves_the_mean_off_it(monkeypatch):
    """Two corners land at once: the flow after that starts at the moved mean, not on its arc."""
    system = block.system(block.BlockParameters(restitution=0.0), actuated=True)
    kf = SaltedKalmanFilter(
        system, np.zeros((6, 6)), coordinates("pose", [0, 1, 2], 1e-6 * np.eye(3))
    )
    runs, simulate = [], NoisySystem.simulate

    def keep(*args, **settings):
        runs.append(simulate(*args, **settings))
        return runs[-1]

    monkeypatch.setattr(NoisySystem, "simulate", keep)
    flat = np.array([0.0, 0.07, 0.0, 0.5, -1.0, 0.0])
    found = kf.predict(Estimate(("open", "open"), 0.0, flat, 1e-4 * np.eye(6)), 0.03)
    first, after = runs[0], runs[0].arcs[-1]
    assert len(first.events[-1].guards) == 2
    assert after.start == after.end == first.events[-1].time < 0.03
    assert found.estimate.time == 0.03
