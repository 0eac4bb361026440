"""Noise of impacts that take time, against contacts with a closed form."""

import numpy as np
import pytest
from estimation.systems import bouncing_ball
from hybridctl.robots import ball
from hybridctl.robots.bodies import free_body

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.estimation import Estimate, FilterOptions, ImpactNoise, Noise, Record
from hybridctl.estimation.consistency import nees
from hybridctl.estimation.estimate import sum_open_changes
from hybridctl.estimation.measurement import linear
from hybridctl.estimation.noise import begin_impact, reset_covariance
from hybridctl.estimation.record import Series
from hybridctl.estimation.salted_kalman_filter import SaltedKalmanFilter
from hybridctl.interop.mujoco import Compliance, MujocoModel, MujocoPlant
from hybridctl.mechanics import Contact, Plane, Robot, contact_system

CONTACT_TIME, PERIOD = 5e-3, 0.01  # s


def first_impact(system, mode, x0):
    return hc.simulate(system, mode, np.array(x0), (0.0, 0.6)).guard_events[0]


def test_it_covers_an_elastic_contact_that_takes_time():
    """The contact is half a period of a spring: x = -v sin(w s) / w until s = T = pi / w.

    At the samples a rigid model is off by x - v s and v_soft - v, with v the speed afterwards.
    Samples begin at any time after the touch. A right covariance has a squared error of two, one
    for each coordinate. The bounds are a factor of ten below and of two above: uniform delays are
    wider than those of this contact, and samples within it are off by more than a deviation.
    """
    run = hc.simulate(bouncing_ball(), "air", np.array([1.0, 0.0]), (0.0, 0.6))
    event = run.guard_events[0]
    noise = ImpactNoise(contact_time=CONTACT_TIME, spread=0.0)
    p = reset_covariance(bouncing_ball(), noise, event)
    impacts = begin_impact(bouncing_ball(), noise, event, ())
    v, w = event.state_after[1], np.pi / CONTACT_TIME
    s = (np.arange(1000) + 0.5) / 1000 * PERIOD  # age of the impact at the first sample after it
    inside = s < CONTACT_TIME
    soft = np.where(inside, -v * np.sin(w * s) / w, v * (s - CONTACT_TIME))
    speed = np.where(inside, -v * np.cos(w * s), v)
    error = np.column_stack([soft - v * s, speed - v])
    flow = [np.array([[1.0, t], [0.0, 1.0]]) for t in s]
    carried = np.array(
        [
            f @ p @ f.T + sum_open_changes(impacts, event.time + t)
            for f, t in zip(flow, s, strict=True)
        ]
    )
    camera = 1e-9 * np.eye(2)  # far below the squared lag, (1e-2 m)^2: only makes P invertible
    nis = np.einsum("ni,nij,nj->n", error, np.linalg.inv(carried + camera), error)
    assert 0.2 < nis.mean() < 4.0


def test_its_covariance_is_the_stated_one():
    system = bouncing_ball()
    event = hc.simulate(system, "air", np.array([1.0, 0.0]), (0.0, 0.6)).guard_events[0]
    delta = event.state_after - event.state_before
    k = np.array([delta[1], 0.0])  # gravity is the same before and after
    noise = ImpactNoise(contact_time=CONTACT_TIME, spread=0.3)
    expected = CONTACT_TIME**2 / 3 * np.outer(k, k) + 0.09 * np.outer(delta, delta)
    np.testing.assert_allclose(reset_covariance(system, noise, event), expected, rtol=1e-12)


def test_an_instant_without_spread_has_no_noise():
    system = bouncing_ball()
    event = hc.simulate(system, "air", np.array([1.0, 0.0]), (0.0, 0.6)).guard_events[0]
    found = reset_covariance(system, ImpactNoise(contact_time=0.0, spread=0.0), event)
    assert not found.any()


def test_the_spread_of_a_mechanism_is_equal_by_its_mass_matrix():
    """The kinetic energy of a drawn change is rho^2 times that of the impact, on average."""
    system = ball.system(ball.BallParameters(mass=2.5))
    event = hc.simulate(system, ("open",), np.array([0.0, 1.0, 0.5, 0.0]), (0.0, 0.6)).guard_events[
        0
    ]
    noise = ImpactNoise(contact_time=0.0, spread=0.1)
    p = reset_covariance(system, noise, event)[2:, 2:]
    change = (event.state_after - event.state_before)[2:]
    np.testing.assert_allclose(np.trace(p), 0.01 * change @ change, rtol=1e-12)
    np.testing.assert_allclose(p, p[0, 0] * np.eye(2), atol=1e-15)


def soft_ball(measurement):
    """Return a filter of a bouncing ball without noise but that of impacts that take time."""
    noise = ImpactNoise(contact_time=CONTACT_TIME, spread=0.0)
    return SaltedKalmanFilter(bouncing_ball(), np.zeros((2, 2)), measurement, noise)


def follow(kf, times):
    """Return the steps of a filter of a ball that falls from 1 m, at times of the camera, s.

    The camera sees where a ball with impacts in an instant is.
    """
    run = hc.simulate(bouncing_ball(), "air", np.array([1.0, 0.0]), (0.0, 1.0))
    seen = np.array([run(t)[:1] for t in times])
    initial = Estimate("air", 0.0, np.array([1.0, 0.0]), np.diag([1e-8, 1e-8]))
    return kf.run(Record({"camera": Series(np.array(times), seen)}), initial)


CAMERA_OF_HEIGHT = linear("camera", np.eye(1, 2), [[1e-6]], gate=None)


def test_what_an_impact_has_still_to_change_is_uncertain_until_it_is_over():
    """At the share s / T of the contact the speed is off by up to 1 - s / T of its change.

    What the impact leaves, a delay of at most T, moves the speed by gravity alone: less than
    g T = 0.05 m/s, where the change is 8 m/s.
    """
    event = first_impact(bouncing_ball(), "air", [1.0, 0.0])
    change = abs(event.state_after[1] - event.state_before[1])
    for share in (0.2, 0.6, 1.2):
        time = event.time + share * CONTACT_TIME
        deviation = np.sqrt(follow(soft_ball(CAMERA_OF_HEIGHT), [time]).covariances[0][1, 1])
        assert deviation == pytest.approx(max(1.0 - share, 0.0) * change, abs=0.05)


def test_an_impact_that_goes_on_is_no_noise_of_the_motion_after_it():
    """Values during the impact leave the prediction as certain as without them, or more.

    A camera of the height sees nothing of the change of speed, so after the impact the filter is
    as one that has had no value during it.
    """
    event = first_impact(bouncing_ball(), "air", [1.0, 0.0])
    inside, later = event.time + 0.3 * CONTACT_TIME, event.time + 4.0 * CONTACT_TIME
    deviations = [
        np.sqrt(follow(soft_ball(CAMERA_OF_HEIGHT), times).covariances[-1][1, 1])
        for times in ([later], [inside, later])
    ]
    assert deviations[1] <= deviations[0]


def test_a_value_of_the_speed_is_that_during_the_impact():
    """A speedometer during the impact is allowed all of the change that is still to come."""
    event = first_impact(bouncing_ball(), "air", [1.0, 0.0])
    time = event.time + 0.5 * CONTACT_TIME
    middle = 0.5 * (event.state_before[1] + event.state_after[1])
    meter = linear("camera", [[0.0, 1.0]], [[1e-6]], gate=None)
    initial = Estimate("air", 0.0, np.array([1.0, 0.0]), np.diag([1e-8, 1e-8]))
    record = Record({"camera": Series(np.array([time]), np.array([[middle]]))})
    (step,) = soft_ball(meter).run(record, initial).steps
    assert step.innovation.nis == pytest.approx(1.0, abs=0.1)
    # It says next to nothing of the speed after the impact.
    assert step.estimate.mean[1] == pytest.approx(event.state_after[1], abs=0.1)


def test_a_contact_that_takes_time_does_not_hit_twice():
    """A corner leaves a soft contact slowly; the belief has one impact, not a second at once.

    Restitution 0.2, impact of 10 ms, a sample 3 ms after the touch. With the open change of 1.2 v
    in the covariance, two deviations of it, 0.84 v each, are a fall after a rebound of 0.2 v: the
    next prediction then has an event at once.
    """
    soft = bouncing_ball(restitution=0.2)
    event = first_impact(soft, "air", [1.0, 0.0])
    kf = SaltedKalmanFilter(
        soft, np.zeros((2, 2)), CAMERA_OF_HEIGHT, ImpactNoise(contact_time=1e-2), hypotheses="auto"
    )
    initial = Estimate("air", 0.0, np.array([1.0, 0.0]), np.diag([1e-8, 1e-8]))
    depth = -0.4 * abs(event.state_before[1]) * 3e-3  # m: it still moves down
    times = event.time + np.array([3e-3, 8e-3])
    record = Record({"camera": Series(times, np.array([[depth], [depth]]))})
    result = kf.run(record, initial)
    assert [len(step.events) for step in result.steps] == [1, 0]


@pytest.mark.parametrize(
    "given", [{"contact_time": -1e-3}, {"contact_time": np.inf},
              {"contact_time": 1e-3, "spread": np.nan}],
)  # fmt: skip
def test_bad_values_are_refused(given):
    with pytest.raises(InputError):
        ImpactNoise(**given)


RADIUS, CORNERS, FRICTION, RESTITUTION = 0.1, 5, 0.5, 0.2  # m, -, -, -
CAMERA = np.array([1e-3, 1e-3, 5e-3])  # m, m, rad: deviations of x, z and pitch
FORCE = np.array([1e-2, 1e-2, 1e-3])  # N sqrt(s), N sqrt(s), N m sqrt(s)


def polygon():
    """Return a pentagon of 1 kg with a force on its centre as input, and its corners' contacts."""
    inertia = RADIUS**2 / 6.0 * (2.0 + np.cos(2.0 * np.pi / CORNERS))  # kg m^2, solid
    links = free_body("polygon", 1.0, (0.01, inertia, 0.01))
    robot = Robot.from_urdf(links, root="sagittal", actuated=("root_x", "root_z", "root_pitch"))
    ground = Plane(point=(0.0, 0.0, 0.0), normal=(0.0, 0.0, 1.0))
    angles = 2.0 * np.pi * (np.arange(CORNERS) + 0.3) / CORNERS
    return robot, tuple(
        Contact(
            f"corner {k}", "polygon", ground, offset=(RADIUS * np.cos(a), 0.0, RADIUS * np.sin(a)),
            friction=FRICTION, restitution=RESTITUTION, restitution_threshold=0.05,
        )
        for k, a in enumerate(angles)
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "contact_time",
    [2e-3, *(pytest.param(t, marks=pytest.mark.long) for t in (3e-3, 5e-3, 7e-3, 1e-2))],
)
def test_a_polygon_on_soft_contact_is_where_the_filter_says(contact_time):
    """On MuJoCo, 100 Hz: NEES of 6 within three times that; in thousands without such noise."""
    pytest.importorskip("mujoco")
    robot, contacts = polygon()
    system = contact_system(robot, contacts)
    plant = MujocoPlant(MujocoModel(robot, contacts, Compliance.of(contact_time, RESTITUTION)))
    kf = SaltedKalmanFilter(
        system,
        Noise(np.diag(FORCE**2), through_input=True),
        linear("camera", np.eye(3, 6), np.diag(CAMERA**2), gate=None),
        ImpactNoise(contact_time=contact_time),
        hypotheses="auto",
        options=FilterOptions(patience=None),
    )
    squares = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        pitch, speed, spin = rng.uniform([-np.pi, -1.0, -4.0], [np.pi, 1.0, 4.0])
        states = [plant.reset(0.0, np.array([0.0, 0.25, pitch, speed, 0.0, spin])).state]
        states += [plant.step(np.zeros(3)).state for _ in range(800)]
        truth = np.array(states)[::10]
        times = 0.01 * np.arange(len(truth))
        values = truth[:, :3] + CAMERA * rng.normal(size=(len(truth), 3))
        deviations = np.concatenate([CAMERA, [0.1, 0.1, 0.5]])
        start = truth[0] + deviations * rng.normal(size=6)
        initial = Estimate(("open",) * CORNERS, 0.0, start, np.diag(deviations**2))
        result = kf.run(Record({"camera": Series(times[1:], values[1:])}), initial)
        squares += [
            nees(system.space, mixture, x)[0]
            for mixture, x in zip(result.mixtures, truth[1:], strict=True)
        ]
    assert 3.0 < np.mean(squares) < 18.0
