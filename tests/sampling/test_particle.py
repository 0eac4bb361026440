"""The particle filter: the Kalman filter within its sampling error, and the same for one seed."""

import numpy as np
import pytest
from estimation.systems import GRAVITY, affine, bounced, bouncing_ball, height, two_flows
from hybridctl.robots import ball, cube

import hybridctl as hc
from hybridctl.base.errors import InputError, UnknownNameError
from hybridctl.estimation.contact_signal import ContactSignal
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.measurement import configuration, linear
from hybridctl.estimation.noise import Noise
from hybridctl.estimation.record import Record, Series
from hybridctl.estimation.salted_kalman_filter import SaltedKalmanFilter
from hybridctl.hybrid.run import BriefEvent
from hybridctl.mechanics.multibody.state import RobotStateSpace
from hybridctl.sampling.particle import ParticleFilter, ParticleSet

A = np.array([[0.0, 1.0], [-4.0, -0.3]])
C = np.array([0.3, -9.81])
Q = np.diag([1e-3, 0.2])
R = np.array([[0.04]])
P0 = np.array([[0.04, 0.01], [0.01, 0.1]])
X0 = np.array([0.5, -0.2])
TIMES = np.array([0.1, 0.2, 0.3, 0.5])
VALUES = np.array([0.5, 0.3, np.nan, 0.1])


def ball_record(n, sigma=0.005, seed=1, x0=(1.0, 0.3), step=0.01):
    times = step * np.arange(1, n + 1)
    truth = np.array([bounced(np.array([x0]), t)[0] for t in times])
    noise = sigma * np.random.default_rng(seed).normal(size=n)
    return Record({"height": Series(times, truth[:, 0] + noise)}), truth


def left(step):
    """Which part of the particles a value leaves: E[w]^2 / E[w^2] of its weights w."""
    if step.innovation is None:
        return 1.0
    p, r = step.predicted.covariance[0, 0], R[0, 0]
    square = step.innovation.nis * (p + r)
    return np.sqrt(r * (r + 2.0 * p)) / (r + p) * np.exp(square / (r + 2.0 * p) - square / (r + p))


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_on_a_linear_flow_it_is_the_kalman_filter_within_its_sampling_error(smoothing):
    arguments = affine(A, C), Q, linear("z", [[1.0, 0.0]], R)
    record = Record({"z": Series(TIMES, VALUES)})
    start = Estimate("flow", 0.0, X0, P0)
    right = SaltedKalmanFilter(*arguments).run(record, start)
    found = ParticleFilter(*arguments, particles=8000, smoothing=smoothing).run(record, start)
    for a, b in zip(found.steps, right.steps, strict=True):
        error = 5.0 / np.sqrt(8000 * left(b) / 2.0)  # half of them once more where drawn anew
        d = np.sqrt(np.diag(b.estimate.covariance))
        assert (np.abs(a.estimate.mean - b.estimate.mean) <= error * d).all()
        gap = np.abs(a.estimate.covariance - b.estimate.covariance)
        assert (gap <= np.sqrt(2.0) * error * np.outer(d, d)).all()
        if b.innovation is not None:
            assert a.innovation.log_likelihood == pytest.approx(
                b.innovation.log_likelihood, abs=error
            )
            assert a.innovation.nis == pytest.approx(b.innovation.nis, abs=2.0 * error)


def test_one_seed_gives_one_result_and_another_another():
    record, _ = ball_record(20)
    start = Estimate("air", 0.0, np.array([1.0, 0.3]), np.diag([1e-4, 1e-2]))
    arguments = bouncing_ball(), np.diag([0.0, 1e-3]), height(25e-6)
    runs = [
        ParticleFilter(*arguments, particles=50, seed=seed).run(record, start) for seed in (0, 0, 1)
    ]
    last = [run.means[-1] for run in runs]
    np.testing.assert_array_equal(last[0], last[1])
    assert runs[0].log_likelihood == runs[1].log_likelihood != runs[2].log_likelihood
    assert (last[0] != last[2]).all()


def test_a_bounce_is_that_of_the_exact_ensemble():
    x0, p0 = np.array([1.0, 0.2]), np.diag([0.01, 0.02]) ** 2
    sample = bounced(np.random.default_rng(2).multivariate_normal(x0, p0, 20_000), 0.8)
    record = Record({"height": Series([0.8], [np.nan])})
    n = 8000
    pf = ParticleFilter(bouncing_ball(), np.zeros((2, 2)), height(), particles=n)
    (step,) = pf.run(record, Estimate("air", 0.0, x0, p0)).steps
    d = np.sqrt(np.diag(np.cov(sample.T)))
    limit = 5.0 * np.sqrt(1.0 / n + 1.0 / len(sample)) * np.outer(d, d)
    gap = step.estimate.covariance - np.cov(sample.T)
    assert (np.abs(gap) <= np.sqrt(2.0) * limit).all()
    assert len(step.events) == 1


def test_it_follows_a_ball_through_its_bounce_and_counts_the_event_once():
    record, truth = ball_record(30, step=0.02)
    start = Estimate("air", 0.0, np.array([1.0, 0.3]), np.diag([1e-4, 1e-2]))
    pf = ParticleFilter(bouncing_ball(), np.diag([0.0, 1e-3]), height(25e-6), particles=150)
    found = pf.run(record, start)
    (event,) = found.events
    exact = (0.3 + np.sqrt(0.09 + 2.0 * GRAVITY)) / GRAVITY
    last = found.steps[-1].estimate
    # some deviations of 150 particles: those of the filter, and a tenth of them from sampling
    assert abs(event.time - exact) < 2e-3
    assert (np.abs(last.mean - truth[-1]) < 4.0 * np.sqrt(np.diag(last.covariance))).all()
    assert 0.5 < found.summary()["mean_nis"] < 1.8


def hit(time):
    none = np.zeros(0)
    return BriefEvent(time, ("floor",), "air", "air", none, none)


def test_the_last_event_counts_at_the_median_time_of_the_weight():
    """One of five particles has had none, and one carries half of what the others weigh."""
    events = ((), (hit(4.0),), (hit(1.0),), (hit(3.0),), (hit(2.0),))
    weights = np.array([0.1, 0.1, 0.2, 0.45, 0.15])
    cloud = ParticleSet(5.0, ("air",) * 5, (np.zeros(2),) * 5, np.log(weights), events)
    assert [event.time for event in cloud.typical_events] == [3.0]
    before = np.array([0.6, 0.1, 0.1, 0.1, 0.1])
    assert ParticleSet(5.0, cloud.modes, cloud.states, np.log(before), events).typical_events == ()


def test_noise_of_resets_and_guards_is_drawn():
    x0 = np.array([1.0, 0.2])
    start = Estimate("air", 0.0, x0, np.zeros((2, 2)))
    options = {"reset_noise": np.diag([0.0, 0.01]), "guard_noise": 1e-4}
    arguments = bouncing_ball(), np.diag([0.0, 1e-2]), height()
    right = SaltedKalmanFilter(*arguments, **options).predict(start, 0.8).estimate
    pf = ParticleFilter(*arguments, **options, particles=600, rtol=1e-3, atol=1e-3)
    (step,) = pf.run(Record({"height": Series([0.8], [np.nan])}), start).steps
    d = np.sqrt(np.diag(right.covariance))
    limit = 5.0 * np.sqrt(2.0 / 600) * np.outer(d, d)
    assert (np.abs(step.estimate.covariance - right.covariance) <= limit).all()


def test_cubes_turn_on_their_manifold():
    p = cube.CubeParameters()
    space = RobotStateSpace(cube.robot(p, actuated=True))
    x0 = np.concatenate([[0.0, 0.0, 0.5], [0.0, 0.0, 0.0, 1.0], np.zeros(3), [1.0, 2.0, -1.0]])
    measured = configuration("pose", space, 1e-4 * np.eye(6))
    arguments = cube.system(p, actuated=True), Noise(1e-8 * np.eye(6), through_input=True), measured
    start = Estimate(("open",) * 8, 0.0, x0, 1e-4 * np.eye(12))
    truth = hc.simulate(arguments[0], ("open",) * 8, x0, (0.0, 0.1)).final_state
    record = Record({"pose": Series([0.1], [truth[:7]])})
    found = ParticleFilter(*arguments, particles=300).run(record, start).steps[0].estimate
    right = SaltedKalmanFilter(*arguments).run(record, start).steps[0].estimate
    d = np.sqrt(np.diag(right.covariance))
    assert abs(np.linalg.norm(found.mean[3:7]) - 1.0) < 1e-12
    # six coordinates halve in variance, so weights leave some 30 of 300
    assert (np.abs(space.difference(right.mean, found.mean)) <= 5.0 / np.sqrt(30) * d).all()


def test_a_contact_signal_takes_the_weight_of_particles_that_contradict_it():
    parameters = ball.BallParameters(slope=0.0)
    signal = ContactSignal("force", 2.0, 0.5, "slope closes", "slope opens")
    system = ball.system(parameters)
    names = system.outgoing(("open",)).guards.names
    assert "slope closes" in names
    x0 = np.array([0.0, 0.05, 0.0, -1.0])
    start = Estimate(("open",), 0.0, x0, np.diag([1e-8, 1e-4, 1e-8, 1e-8]))
    measured = linear("q", np.eye(2, 4), np.eye(2))
    pf = ParticleFilter(
        system, np.zeros((4, 4)), measured, signals=[signal], particles=200, smoothing=0.0
    )
    for force, mode in ((5.0, ("closed",)), (0.0, ("open",))):
        record = Record({"force": Series([0.0415], [force])})
        (step,) = pf.run(record, start).steps
        assert step.estimate.mode == mode
        assert step.innovation is None


def test_a_gate_leaves_the_weights_alone():
    pf = ParticleFilter(affine(A, C), Q, linear("z", [[1.0, 0.0]], R, gate=0.99), particles=500)
    start = Estimate("flow", 0.0, X0, P0)
    (far,) = pf.run(Record({"z": Series([0.1], [9.0])}), start).steps
    assert not far.innovation.accepted
    np.testing.assert_array_equal(far.estimate.mean, far.predicted.mean)


def test_bad_input_is_named():
    arguments = affine(A, C), Q, linear("z", [[1.0, 0.0]], R)
    with pytest.raises(InputError, match="smoothing must be below 1"):
        ParticleFilter(*arguments, smoothing=1.0)
    with pytest.raises(InputError, match="particles must be a whole number"):
        ParticleFilter(*arguments, particles=0)


def across(states, duration):
    """States (n, 2) of `two_flows` from before its line, and which of them have crossed it."""
    before, after = np.array([1.0, 0.3]), np.array([0.5, 1.2])
    _, _, normal = two_flows(before, after)
    left = np.maximum(duration + states @ normal / (normal @ before), 0.0)[:, None]
    return states + (duration - left) * before + left * after, left[:, 0] > 0.0


def test_the_most_probable_mode_has_the_moments_of_its_own_particles():
    """A third of a cloud is still before a line; what has crossed it is no longer normal."""
    system, _, normal = two_flows()
    x0, p0, time = -0.05 * normal, 1e-4 * np.eye(2), 0.054 / (normal @ [1.0, 0.3])
    n = 4000
    pf = ParticleFilter(
        system, np.zeros((2, 2)), linear("z", np.eye(2), np.eye(2)),
        particles=n, smoothing=0.0,
    )  # fmt: skip
    (step,) = pf.run(
        Record({"z": Series([time], [[np.nan, np.nan]])}), Estimate("I", 0.0, x0, p0)
    ).steps
    moved, crossed = across(np.random.default_rng(3).multivariate_normal(x0, p0, 100_000), time)
    right, share = np.cov(moved[crossed].T), crossed.mean()
    assert step.estimate.mode == "J"
    d = np.sqrt(np.diag(right))
    error = 5.0 / np.sqrt(share * n)
    assert (np.abs(step.estimate.mean - moved[crossed].mean(axis=0)) <= error * d).all()
    gap = np.abs(step.estimate.covariance - right)
    assert (gap <= np.sqrt(2.0) * error * np.outer(d, d)).all()


def test_steps_that_do_not_fit_are_refused():
    particles = ParticleFilter(affine(A, C), Q, linear("z", [[1.0, 0.0]], R), particles=20)
    state = particles.predict(particles.start(Estimate("flow", 0.0, X0, P0)), 0.1)
    with pytest.raises(UnknownNameError, match=r"channel 'nope' is unknown"):
        particles.update(state, "nope", np.array([1.0]))
    for time in (0.05, np.nan):
        with pytest.raises(InputError, match="time must"):
            particles.predict(state, time)
