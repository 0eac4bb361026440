"""Contact by how feet move: the ratio of likelihoods, and a step that needs no forces."""

from dataclasses import replace

import numpy as np
import pytest
from differences import central
from estimation.legged.machine import URDF, machine, state
from estimation.legged.test_estimator import SETTINGS, standing
from scipy.stats import multivariate_normal

from hybridctl.errors import InputError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.legged.readings import Readings
from hybridctl.estimation.legged.rotation import matrix
from hybridctl.estimation.legged.space import ERRORS
from hybridctl.estimation.legged.stillness import MotionEvidence, Stillness, foot_motion
from hybridctl.estimation.record import Series
from hybridctl.mechanics.robot import Robot

KEY = ("stick", "open")
EVIDENCE = MotionEvidence()


@pytest.mark.parametrize("error", ERRORS)
def test_the_odds_are_those_of_two_normal_distributions(error):
    """With the derivative of the velocity by differences, and densities by scipy."""
    base, _ = machine(error)
    rng = np.random.default_rng(0)
    x, u = state(base, KEY, rng)
    x[7:10] *= 0.1
    space, value = base.space(KEY), 0.1 * rng.normal(size=3)
    root = 0.05 * rng.normal(size=(space.ndx, space.ndx))
    p = root @ root.T
    (seen,) = base.kinematics(base.angles(u), ["right sole"])

    def velocity(e):
        y = space.integrate(x, e)
        return matrix(y[:4]).T @ y[7:10] + np.cross(u[:3] - y[10:13], seen.position) + value

    h, at = central(velocity, space.ndx, 1e-6), np.zeros(space.ndx)
    angles = 2.0 * (base.noise.encoder / EVIDENCE.span) ** 2 * seen.moving @ seen.moving.T
    unknown = h @ p @ h.T + angles
    stands, swings = (
        multivariate_normal(np.zeros(3), unknown + s**2 * np.eye(3)).logpdf(velocity(at))
        for s in (EVIDENCE.still, EVIDENCE.moving)
    )
    found = Stillness(base, "right sole", EVIDENCE).log_odds(Estimate(KEY, 0.0, x, p), value, u)
    assert found == pytest.approx(stands - swings, abs=1e-5)


def test_the_motion_of_a_foot_is_its_mean_velocity():
    base, _ = machine()
    times = np.array([0.0, 0.02, 0.04, 0.06, 0.08])
    rates = np.linspace(-0.5, 0.5, 6)
    angles = Series(times, 0.1 + times[:, None] * rates)
    found = foot_motion(base.kinematics, "left sole", angles, 0.04)
    np.testing.assert_allclose(found.times, times[2:])
    places = [base.kinematics(a, ["left sole"])[0].position for a in angles.values]
    np.testing.assert_allclose(found.values[1], (places[3] - places[1]) / 0.04, atol=1e-12)


def lifted():
    """A machine that stands still, lifts its left foot by its knee, and puts it down again."""
    readings = standing()
    times = readings.angles.times
    way = np.clip((times - 0.8) / 0.3, 0.0, 1.0) - np.clip((times - 1.3) / 0.3, 0.0, 1.0)
    angles = readings.angles.values.copy()
    names = SETTINGS.build(Robot.from_urdf(URDF)).joints
    angles[:, names.index("left joint 1")] -= 0.8 * way
    angles[:, names.index("left joint 2")] += 1.2 * way
    return Readings(readings.inertial, Series(times, angles), {})


def test_a_step_is_found_without_forces():
    """The foot moves at 1 m/s from 0.8 s to 1.1 s, and back from 1.3 s to 1.6 s.

    It is seen after the time of the mean, and a sample or two; until then it takes the base along.
    """
    estimator = replace(SETTINGS, motion=EVIDENCE).build(Robot.from_urdf(URDF))
    first = estimator.start(lifted(), position=(0.0, 0.0, 1.0))
    result = estimator.run(lifted(), first)
    events = result.events
    assert events[0].guards == ("left sole lifts",)
    assert 0.8 < events[0].time < 0.8 + EVIDENCE.span + 0.025
    assert events[-1].guards == ("left sole touches",)
    assert abs(events[-1].time - 1.6) < EVIDENCE.span + 0.025
    root = estimator.root(result.steps[-1].estimate)
    assert np.linalg.norm(root.position - [0.0, 0.0, 1.0]) < 0.01  # a sixth of 1 m/s in 60 ms


def test_what_does_not_fit_is_refused():
    with pytest.raises(InputError, match="moving must be greater than"):
        MotionEvidence(moving=0.04)
    base, system = machine()
    x, _ = state(base, KEY, np.random.default_rng(1))
    one = Stillness(base, "left sole", EVIDENCE)
    with pytest.raises(InputError, match="'motion left sole' must have 3 values"):
        one.applied(system, Estimate(KEY, 0.0, x, np.eye(21)), np.zeros(2), None)
