"""The filter of point feet that is written out, against the general one."""

from dataclasses import replace

import casadi as ca
import numpy as np
import pytest
from hybridctl.robots import public
from legged.machine import URDF, machine, state
from oracles.walking_robots import WALKER, Gait, estimator_of, log, robot

from hybridctl.estimation.estimate import Estimate, right_jacobian
from hybridctl.legged import compiled_formulas, rotation
from hybridctl.legged.creep import FootMotion
from hybridctl.legged.creep_filter import CreepFilter
from hybridctl.legged.estimator import BaseSettings
from hybridctl.legged.kinematics import Foot
from hybridctl.legged.live import LiveSample, make_readings
from hybridctl.legged.system import BaseNoise
from hybridctl.mechanics.multibody.robot import Robot

AGREEMENT = 1e-9
"""Of means in their units, of covariances relative to the deviations of row and column.

The correction takes W^T W from the covariance where the general one has Joseph's form. On a
recorded trot of 25 s both differ by 1.2e-10.
"""


class GeneralFilter(CreepFilter):
    """The filter of the base by `SaltedKalmanFilter` alone."""

    written_out = None


def run_both(estimator, readings):
    """Results of both filters on the same readings."""
    record, first = estimator.record(readings), estimator.start(readings)
    motion = estimator.foot_motion(record)
    own = estimator.raise_noise(record, motion)
    filters = (kind(own.base, own.filter, motion) for kind in (CreepFilter, GeneralFilter))
    return [each.run(record, first) for each in filters]


def compare(found, expected):
    """Compare two results step by step; how often values were rejected."""
    rejected = 0
    for one, other in zip(found.steps, expected.steps, strict=True):
        e, right = one.estimate, other.estimate
        assert (e.mode, e.time, e.since) == (right.mode, right.time, right.since)
        np.testing.assert_allclose(e.mean, right.mean, rtol=0.0, atol=AGREEMENT)
        spread = np.sqrt(np.diag(right.covariance))
        scaled = (e.covariance - right.covariance) / np.outer(spread, spread)
        assert np.abs(scaled).max() < AGREEMENT
        np.testing.assert_allclose(one.transition, other.transition, rtol=0.0, atol=AGREEMENT)
        assert one.notes == other.notes
        assert [event.guards for event in one.events] == [event.guards for event in other.events]
        if other.innovation is None:
            assert one.innovation is None
            continue
        assert one.innovation.accepted == other.innovation.accepted
        rejected += not one.innovation.accepted
        assert one.innovation.limit == pytest.approx(other.innovation.limit)
        assert one.innovation.nis == pytest.approx(other.innovation.nis, rel=AGREEMENT)
        weights = [step.hypotheses[0].log_weight for step in (one, other)]
        assert weights[0] == pytest.approx(weights[1], rel=AGREEMENT)
        jump = one.hypotheses[0].reconciliation, other.hypotheses[0].reconciliation
        assert (jump[0] is None) == (jump[1] is None)
    assert len(found.events) == len(expected.events) > 3  # feet have come and gone
    return rejected


@pytest.mark.parametrize(
    "settings",
    [
        {"gate": 0.9},
        {"ground": 0.0, "noise": BaseNoise(foot=2e-3)},
        pytest.param({"noise": BaseNoise(foot=2e-3, slip_time=0.0)}, marks=pytest.mark.slow),
    ],
    ids=["gate", "ground, noise of feet given", "no slip"],
)
def test_a_walk_has_the_estimates_of_the_general_filter(settings):
    """With a third of the angles missing, and a gap, during which noise grows."""
    estimator = replace(estimator_of(WALKER).settings, opening=0.7, **settings)
    estimator = estimator.build(robot(WALKER))
    readings = log(estimator, WALKER, Gait(), 1.5, 100.0, seed=4).readings
    there = np.random.default_rng(0).random(len(readings.angles)) > 0.3
    whole = np.abs(readings.inertial.times - 1.1) > 0.03
    given = replace(
        readings,
        angles=readings.angles.select_rows(there),
        inertial=readings.inertial.select_rows(whole),
    )
    rejected = compare(*run_both(estimator, given))
    assert (rejected > 0) == ("gate" in settings)


@pytest.mark.parametrize("name", ["go1", pytest.param("solo12", marks=pytest.mark.slow)])
def test_a_trot_has_the_estimates_of_the_general_filter(name):
    """Four feet that lift in pairs: those of the Go1 roll, and no foot stands at times.

    None rises, as feet do not in the general filter; see `test_ground_rise`.
    """
    quadruped, tips = Robot.from_urdf(public.urdf(name)), public.MODELS[name].tips
    settings = BaseSettings(
        quadruped.link_names[0],
        tuple(map(Foot, tips)),
        opening=0.5,
        time_offset=0.0,
        noise=BaseNoise(foot_rise=0.0),
    )
    estimator = settings.build(quadruped)
    assert (max(estimator.base.kinematics.radii.values()) > 0.0) == (name == "go1")
    rng, posture = np.random.default_rng(0), public.MODELS[name].posture
    middle = np.array([posture.get(joint, 0.0) for joint in estimator.joints])
    samples = []
    for time in np.arange(0.0, 1.0, 0.005):
        swing = 0.05 * np.sin(10.0 * max(time - 0.5, 0.0))
        pair = int(max(time - 0.4, -0.1) // 0.1)
        loads = {
            foot: 60.0 if pair < 0 or (k in (0, 3)) == pair % 2 or time > 0.9 else 0.0
            for k, foot in enumerate(tips)
        }
        rate, force = 0.1 * rng.normal(size=3), np.array([0.0, 0.0, 9.81]) + rng.normal(size=3)
        joints = middle + swing + 1e-3 * rng.normal(size=len(middle))
        samples.append(LiveSample(float(time), rate, force, joints, loads))
    readings = make_readings(samples, estimator.base.feet)
    compare(*run_both(estimator, readings))


@pytest.mark.parametrize("rate", [1e-9, 1e-2, 1.0, 300.0])
def test_a_prediction_by_any_rate_is_the_general_one(rate):
    """Turns in a step of 10 ms from rounding to 3 rad, where series and closed forms part."""
    base, _ = machine(flat=(False, False), noise=BaseNoise(foot=1e-3))
    base.kinematics.radii.update({foot: 0.05 for foot in base.feet})
    key = ("stick", "stick")
    x, u = state(base, key, np.random.default_rng(1))
    u[:3], u[base.creep_columns] = x[10:13] + rate * np.array([0.6, -0.48, 0.64]), 0.0
    root = 1e-3 * np.random.default_rng(2).normal(size=(21, 21))
    estimate = Estimate(key, 0.0, x, root @ root.T)
    settings = BaseSettings("imu", tuple(base.kinematics.feet.values()), noise=base.noise)
    made = settings.build(Robot.from_urdf(URDF))
    made.base.kinematics.radii.update(base.kinematics.radii)
    motion = FootMotion(angle_noise=1e-4, window=0.01)
    found, expected = (
        kind(made.base, made.filter, motion).predict(
            kind(made.base, made.filter, motion).start(estimate), 0.01, u
        )
        for kind in (CreepFilter, GeneralFilter)
    )
    np.testing.assert_allclose(found.estimate.mean, expected.estimate.mean, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(
        found.estimate.covariance, expected.estimate.covariance, rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("angle", [0.0, 1e-8, 0.3, 0.999, 1.001, 3.0])
def test_a_correction_by_any_turn_is_that_of_the_space(angle):
    base, _ = machine(flat=(False, False))
    space, rng = base.space(("stick", "stick")), np.random.default_rng(3)
    x, _ = state(base, ("stick", "stick"), rng)
    dx = rng.normal(size=space.ndx)
    dx[:3] *= angle / np.linalg.norm(dx[:3])
    after, own, by_turn = compiled_formulas.build_formulas(2).retract(x, dx)
    np.testing.assert_allclose(after, space.normalize(space.integrate(x, dx)), atol=1e-13)
    jacobian = right_jacobian(space, dx)
    for k, first in enumerate((0, 3, 6, 15, 18)):
        rows = slice(first, first + 3)
        np.testing.assert_allclose(jacobian[rows, rows], own, atol=1e-13)
        if k:
            np.testing.assert_allclose(jacobian[rows, :3], by_turn[k - 1], atol=1e-12)


@pytest.mark.parametrize("angle", [0.0, 1e-9, 0.5, 2.0, 3.1])
def test_expressions_of_rotations_are_the_numbers(angle):
    w, q, p = ca.SX.sym("w", 3), ca.SX.sym("q", 4), ca.SX.sym("p", 4)
    rng = np.random.default_rng(4)
    value = angle * np.array([0.6, 0.0, -0.8])
    one, other = (v / np.linalg.norm(v) for v in rng.normal(size=(2, 4)))
    cases = [
        (compiled_formulas.quaternion_of(w), rotation.turned_by(value)),
        (compiled_formulas.left_jacobian(w), rotation.left_jacobian(value)),
        (compiled_formulas.rotation_vector_matrix(w), rotation.turn_of(value)),
        (compiled_formulas.rotation_of(q), rotation.matrix(one)),
        (compiled_formulas.quaternion_product(q, p), rotation.product(one, other)),
    ]
    for expression, expected in cases:
        found = ca.Function("f", [w, q, p], [expression])(value, one, other)
        np.testing.assert_allclose(found.full().squeeze(), expected, atol=1e-14)


def test_a_covariance_that_is_not_positive_is_told_by_the_general_filter():
    """What the general filter says of an innovation without a factor stays."""
    estimator = estimator_of(WALKER)
    key = ("stick", "stick")
    x, _ = state(estimator.base, key, np.random.default_rng(5))
    kept = CreepFilter(estimator.base, estimator.filter, FootMotion(1e-4, 0.01))
    started = kept.start(Estimate(key, 0.0, x, np.eye(21)))
    hypothesis = started.filter.hypotheses[0]
    broken = replace(hypothesis.estimate, covariance=-np.eye(21))
    wrong = started.filter._replace(hypotheses=(hypothesis._replace(estimate=broken),))
    with pytest.raises(Exception, match="is not positive definite"):
        kept.update(started._replace(filter=wrong), "angles", np.zeros(len(estimator.joints)))
