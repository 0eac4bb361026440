"""A trotting quadruped and a walker with truth: the filter is consistent, over many runs."""

from dataclasses import replace

import numpy as np
import pytest
from oracles import walking_robots as synthetic
from scipy.spatial.transform import Rotation

from hybridctl.estimation.consistency import band, nees
from hybridctl.estimation.record import Series
from hybridctl.legged.hypotheses import ContactEvidence
from hybridctl.legged.measurements import ANGLES
from hybridctl.legged.readings import step_time
from hybridctl.legged.rotation import matrix
from hybridctl.legged.start import WALKING

RATE = 200.0
GAIT = synthetic.Gait()


def squares(name, seeds, duration):
    """NEES at the end of each run, with its degrees of freedom."""
    estimator, found = synthetic.estimator_of(name), []
    for seed in seeds:
        log = synthetic.log(estimator, name, GAIT, duration, RATE, seed)
        result = estimator.run(log.readings, synthetic.start(estimator, log, 10_000 + seed))
        last, row = result.steps[-1].estimate, len(log.times) - 1
        assert last.mode == log.mode(row)
        found.append(synthetic.squared_error(estimator, last, log))
    return found


def test_sensors_and_feet_follow_from_the_motion():
    """Rates and forces against differences of the pose, angles against the feet."""
    estimator = synthetic.estimator_of("solo12")
    motion = synthetic.Motion.of(estimator, "solo12", GAIT)
    t, h = 0.37, 1e-4
    rate, force = np.split(motion.inertial(t), 2)
    turned = motion.turn(t + h).as_matrix() - motion.turn(t - h).as_matrix()
    spin = motion.turn(t).as_matrix().T @ turned / (2.0 * h)
    np.testing.assert_allclose(spin[[2, 0, 1], [1, 2, 0]], rate, atol=1e-6)
    fall = (motion.velocity(t + h) - motion.velocity(t - h)) / (2.0 * h) - synthetic.GRAVITY
    np.testing.assert_allclose(motion.turn(t).as_matrix() @ force, fall, atol=1e-4)
    log = synthetic.log(estimator, "solo12", GAIT, 0.1, RATE, 0)
    k = 7
    seen = estimator.base.kinematics(log.readings.angles.values[k], list(estimator.base.feet))
    turn = Rotation.from_quat(log.state(k)[:4]).as_matrix()
    np.testing.assert_allclose(turn, matrix(log.state(k)[:4]), atol=1e-12)
    for place, foot in zip(seen, log.feet[k], strict=True):
        found = log.state(k)[4:7] + turn @ place.position
        np.testing.assert_allclose(found, foot, atol=10.0 * estimator.settings.noise.encoder)


def test_a_quadruped_knows_how_wrong_it_is():
    """18 joints with those of the base; feet touch down eight times in each run."""
    found = squares("solo12", range(4), 1.0)
    consistency = band(*zip(*found, strict=True))
    assert consistency.inside, consistency


def test_a_walker_knows_how_wrong_it_is_in_its_plane():
    """Pitch, two directions of everything else, and biases: 8 and 2 for each foot that stands."""
    found = squares("five_link", range(4), 1.0)
    assert {degrees for _, degrees in found} <= {8 + 2, 8 + 4}
    consistency = band(*zip(*found, strict=True))
    assert consistency.inside, consistency


def test_the_whole_error_of_a_quadruped_counts():
    estimator = synthetic.estimator_of("solo12")
    log = synthetic.log(estimator, "solo12", GAIT, 0.1, RATE, 0)
    last = estimator.run(log.readings, synthetic.start(estimator, log, 1)).steps[-1].estimate
    expected = nees(estimator.base.space(last.mode), last, log.state(len(log.times) - 1))
    np.testing.assert_allclose(synthetic.squared_error(estimator, last, log), expected, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["five_link", "solo12", *(pytest.param(n, marks=pytest.mark.long) for n in ("go1", "anymal"))],
)
def test_they_know_how_wrong_they_are_over_forty_runs(name):
    consistency = band(*zip(*squares(name, range(40), 2.0), strict=True))
    assert consistency.inside, consistency


@pytest.mark.parametrize("evidence", [None, ContactEvidence()])
def test_a_robot_that_walks_already_needs_no_standing_and_no_thresholds(evidence):
    """Defaults but for the sensors' noise and biases: thresholds by weight, steps by forces.

    Its velocity, unknown at first, is known to 3 cm/s after 0.2 s: that is what 1 mrad of the
    encoders make of 0.3 m in so many samples, and of biases that nobody knows.
    """
    made = synthetic.settings("solo12")
    settings = replace(made, touch_force=None, lift_force=None, standing=0.0)
    begin = replace(WALKING, gyroscope=0.02, accelerometer=0.1)
    settings = replace(settings, uniform_clock=False, evidence=evidence, start=begin)
    estimator = settings.build(synthetic.robot("solo12"))
    log = synthetic.log(estimator, "solo12", GAIT, 2.0, RATE, 3)
    half = 0.5 * 9.81 * synthetic.robot("solo12").mass  # two feet bear the robot at a time
    loads = {
        foot: Series(log.times, half * log.standing[:, k : k + 1])
        for k, foot in enumerate(estimator.base.feet)
    }
    readings = replace(log.readings, loads=loads)
    begin = {"heading": log.motion.heading(0.0), "position": log.motion.position(0.0)}
    result = estimator.run(readings, estimator.start(readings, **begin))
    assert estimator.flags(readings, result) == ()
    roots = [estimator.root(s.estimate) for s in result.steps if s.channel == ANGLES]
    off = np.array([r.velocity - log.motion.velocity(r.time) for r in roots if r.time > 0.2])
    assert np.sqrt((off**2).sum(axis=1).mean()) < 0.03
    away = np.array([r.position - log.motion.position(r.time) for r in roots])
    assert np.linalg.norm(away, axis=1).max() < 0.02
    last = result.steps[-1].estimate
    assert last.mode == log.mode(len(log.times) - 1)
    square, degrees = synthetic.squared_error(estimator, last, log)
    assert 0.3 * degrees < square < 2.0 * degrees


def test_steps_are_as_long_as_forces_say():
    """A trot of 0.5 s: feet stand 0.3 s and swing 0.2 s, known to a sample at either end."""
    estimator = synthetic.estimator_of("solo12")
    log = synthetic.log(estimator, "solo12", GAIT, 2.0, RATE, 0)
    found = step_time(estimator.contact, log.readings.loads.values())
    assert 0.2 - 2.0 / RATE <= found <= 0.3 + 2.0 / RATE
    assert step_time(estimator.contact, []) is None
    evidence = ContactEvidence(step=found)
    assert (evidence.window, evidence.rate) == (found / 20.0, 1.0 / found)
