"""Contacts as hypotheses: odds, switches, merged moments, and a step that needs no thresholds."""

from dataclasses import replace

import numpy as np
import pytest
from differences import central
from legged.machine import URDF, machine, state
from legged.test_estimator import SETTINGS, standing
from scipy.linalg import expm
from scipy.stats import multivariate_normal

from hybridctl.base.errors import InputError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.record import Series
from hybridctl.estimation.result import filter_sample
from hybridctl.legged.creep import FootMotion
from hybridctl.legged.hypotheses import ContactEvidence, ContactHypotheses
from hybridctl.legged.readings import Readings, signal_name
from hybridctl.legged.rotation import matrix
from hybridctl.mechanics.multibody.robot import Robot

KEY = ("stick", "stick")
EVIDENCE = ContactEvidence()
ROBOT = Robot.from_urdf(URDF)
MOTION = FootMotion(angle_noise=1e-3, window=EVIDENCE.window)


def hypotheses(**changed):
    settings = replace(SETTINGS, evidence=replace(EVIDENCE, **changed))
    estimator = settings.build(ROBOT)
    evidence = estimator.settings.evidence
    return ContactHypotheses(estimator.base, estimator.filter, estimator.contact, evidence, MOTION)


def test_the_odds_are_those_of_two_normal_distributions():
    """With the derivative of the velocity by differences, and densities by scipy."""
    base, _ = machine()
    rng = np.random.default_rng(0)
    x, u = state(base, KEY, rng)
    x[7:10] *= 0.1
    u[base.moving_columns(1)] *= 0.1
    space, value = base.space(KEY), u[base.moving_columns(1)]
    root = 0.05 * rng.normal(size=(space.ndx, space.ndx))
    p = root @ root.T
    (seen,) = base.kinematics(base.angles(u), ["right sole"])

    def velocity(e):
        y = space.integrate(x, e)
        return matrix(y[:4]).T @ y[7:10] + np.cross(u[:3] - y[10:13], seen.position) + value

    h, at = central(velocity, space.ndx, 1e-6), np.zeros(space.ndx)
    angles = 2.0 * (MOTION.angle_noise / MOTION.window) ** 2 * seen.moving @ seen.moving.T
    unknown = h @ p @ h.T + angles
    stands, swings = (
        multivariate_normal(np.zeros(3), unknown + s**2 * np.eye(3)).logpdf(velocity(at))
        for s in (EVIDENCE.still, EVIDENCE.moving)
    )
    found = hypotheses().motion_odds(1, seen, Estimate(KEY, 0.0, x, p), u)
    assert found == pytest.approx(stands - swings, abs=1e-5)


def test_feet_change_as_chains_that_do_not_know_of_each_other():
    """Where both may swing as well, the product of two chains of two states; here without that."""
    own, h = hypotheses(switches=3.0), 0.2
    one = -np.expm1(-3.0 * h)
    both = np.kron(*[np.array([[1.0 - one, one], [one, 1.0 - one]])] * 2)[:3, :3]
    np.testing.assert_array_equal(own.standing, [[1, 1], [1, 0], [0, 1]])
    weights = np.array([0.7, 0.2, 0.1])
    expected = both @ weights
    moved = own.propagate_weights(weights, h)
    np.testing.assert_allclose(moved, expected / expected.sum(), atol=1e-15)
    rate = expm(3.0 * h * np.array([[-1.0, 1.0], [1.0, -1.0]]))  # with the way back as well
    assert one == pytest.approx(rate[0, 1], rel=0.5)


def test_a_foot_that_swings_is_noisier_by_so_much():
    own = hypotheses(swing=2.0)
    left, right = own.base.places(KEY)
    extra, noise, evidence = own.foot_noise, own.base.noise, own.evidence
    still = evidence.still**2 * evidence.window
    np.testing.assert_allclose(extra[0, right.dx], still)
    np.testing.assert_allclose(extra[2, right.dx], still)
    assert np.count_nonzero(extra[0]) == 3  # the sole has the noise of the base alone
    np.testing.assert_allclose(extra[1, right.dx], 4.0 - noise.creep(flat=False) ** 2)
    np.testing.assert_allclose(extra[2, left.turn_dx], 4.0 - noise.foot_turn**2)


def test_a_round_foot_stands_while_it_rolls():
    """Its centre goes along by w x r e_z, as far as the lowest point stands still."""
    own, rng = hypotheses(), np.random.default_rng(1)
    x, u = state(own.base, KEY, rng)
    e = Estimate(KEY, 0.0, x, np.zeros((own.base.space(KEY).ndx,) * 2))
    turn, radius = matrix(x[:4]), 0.05
    own.base.kinematics.radii["right sole"] = radius
    (seen,) = own.base.kinematics(own.base.angles(u), ["right sole"])
    spin = turn @ (u[:3] - x[10:13] + u[own.base.turning_columns(1)])
    rolls = np.cross(spin, [0.0, 0.0, radius])
    against = turn.T @ (rolls - x[7:10]) - np.cross(u[:3] - x[10:13], seen.position)
    u[own.base.moving_columns(1)] = against
    noise = 2.0 * (MOTION.angle_noise / MOTION.window) ** 2 * seen.moving @ seen.moving.T
    values = np.linalg.eigvalsh(noise)
    most = 0.5 * np.log((values + EVIDENCE.moving**2) / (values + EVIDENCE.still**2)).sum()
    assert own.motion_odds(1, seen, e, u) == pytest.approx(most, rel=1e-9)


def test_the_motion_of_a_foot_is_a_mean_over_the_time_of_the_evidence():
    """Also where samples are missing, over the gap."""
    settings = replace(SETTINGS, uniform_clock=False, evidence=replace(EVIDENCE, span=0.04))
    estimator = settings.build(ROBOT)
    times = np.array([0.0, 0.02, 0.04, 0.06, 0.3])
    angles = 0.1 + times[:, None] * np.linspace(-0.5, 0.5, 6)
    given = Readings(Series(times, np.ones((5, 6))), Series(times, angles), {})
    u = estimator.record(given).inputs.values
    places = [estimator.base.kinematics(a, ["left sole"])[0].position for a in angles]
    found = u[:, estimator.base.moving_columns(0)]
    np.testing.assert_allclose(found[3], (places[3] - places[1]) / 0.04, atol=1e-12)
    np.testing.assert_allclose(found[4], (places[4] - places[3]) / 0.24, atol=1e-12)


def lifted(loads):
    """A machine that stands still, lifts its left foot by its knee, and puts it down again.

    loads: the force of the left foot, that of the right one while it stands alone, or None.
    """
    readings = standing()
    times = readings.angles.times
    way = np.clip((times - 0.8) / 0.3, 0.0, 1.0) - np.clip((times - 1.3) / 0.3, 0.0, 1.0)
    angles = readings.angles.values.copy()
    names = SETTINGS.build(ROBOT).joints
    angles[:, names.index("left joint 1")] -= 0.8 * way
    angles[:, names.index("left joint 2")] += 1.2 * way
    forces = {}
    if loads is not None:
        swings = (times > 0.8) & (times < 1.6)
        forces = {
            f"{side} sole": Series(times, np.where(swings, force, 150.0))
            for side, force in zip(("left", "right"), loads, strict=True)
        }
    return Readings(readings.inertial, Series(times, angles), forces)


@pytest.mark.parametrize(
    "loads",
    [
        None,
        (10.0, 300.0),
        (80.0, 220.0),  # between the thresholds: hysteresis sees no step
    ],
)
def test_a_step_is_found_by_how_the_foot_moves(loads):
    """The foot moves at 1 m/s from 0.8 s to 1.1 s, and back from 1.3 s to 1.6 s.

    It is seen within the time of the mean; until then it takes the base along.
    """
    given = lifted(loads)
    estimator = replace(SETTINGS, evidence=EVIDENCE).build(ROBOT)
    first = estimator.start(given, position=(0.0, 0.0, 1.0))
    result = estimator.run(given, first)
    assert estimator.contact_changes(result)["right sole"] == (0, 0)
    open_ = [step.time for step in result.steps if step.estimate.mode[0] == "open"]
    assert 0.8 < open_[0] < 0.8 + EVIDENCE.window + 0.025
    assert abs(open_[-1] - 1.6) < 2.0 * EVIDENCE.window
    assert result.steps[-1].estimate.mode == KEY
    root = estimator.root(result.steps[-1].estimate)
    assert np.linalg.norm(root.position - [0.0, 0.0, 1.0]) < 0.01  # a sixth of 1 m/s in 60 ms


def test_without_forces_contacts_are_hypotheses_by_default():
    """As if the settings said so: a foot whose forces are all missing has none."""
    given = lifted((10.0, 300.0))
    silent = {foot: Series(load.times, np.nan * load.values) for foot, load in given.loads.items()}
    told = replace(SETTINGS, evidence=EVIDENCE).build(ROBOT)
    by_default = SETTINGS.build(ROBOT)
    for loads in ({}, silent, {**given.loads, "left sole": silent["left sole"]}):
        readings = by_default.readings(replace(given, loads=loads))
        found, expected = (
            estimator.find_evidence(readings.loads, readings.angles)
            for estimator in (by_default, told)
        )
        assert found == expected
        assert found is not None
    assert by_default.find_evidence(given.loads, given.angles) is None


def test_a_step_is_as_long_as_the_settings_forces_or_the_gait_say():
    """In this order; and 1 s where nothing repeats."""
    times = np.arange(0.0, 8.0, 0.01)
    angles = Series(times, 0.3 * np.sin(2.0 * np.pi * times / 0.8)[:, None] * np.ones(6))
    still = Series(times, np.zeros((len(times), 6)))
    load = Series(times, np.where(times % 1.2 < 0.6, 150.0, 0.0)[:, None])
    contact = SETTINGS.build(ROBOT).contact
    step = lambda evidence, loads, q: evidence.find_step(contact, loads, q).step  # noqa: E731
    assert step(ContactEvidence(step=0.2), [load], angles) == 0.2
    assert step(EVIDENCE, [load], angles) == pytest.approx(0.6, abs=0.011)
    assert step(EVIDENCE, [], angles) == pytest.approx(0.4, rel=0.01)
    assert step(EVIDENCE, [], still) == 1.0


def test_hypotheses_that_turn_the_base_apart_are_merged_in_one_tangent_space():
    """Corrected one by one, their means are turned by up to 1.3 rad: y_h = x_h - x sums to zero.

    Covariances go along by the derivative of that difference, by central differences of 1e-6, which
    leave 1e-10 or so of it. Taken as they are they would put entries off by 4 % of the largest.
    """
    own, rng = hypotheses(), np.random.default_rng(37)
    x, u = state(own.base, KEY, rng)
    space, angles = own.base.space(KEY), rng.normal(size=6)
    root = rng.normal(size=(space.ndx, space.ndx))
    before = Estimate(KEY, 1.0, x, 0.3 * root @ root.T / space.ndx)
    start = own.start(before, sure=False)._replace(weighed=0.0)
    after = own.update(start, "angles", angles, u)
    parts = [
        own.filter.update(
            own.filter.rules.start(replace(before, covariance=before.covariance + np.diag(swings))),
            "angles", angles, u,
        ).estimate
        for swings in own.foot_noise
    ]  # fmt: skip
    turns = [space.difference(parts[0].mean, part.mean)[:3] for part in parts]
    assert max(np.linalg.norm(turn) for turn in turns) > 1.2
    mean, expected = after.estimate.mean, np.zeros((space.ndx, space.ndx))
    middle = np.zeros(space.ndx)
    for w, part in zip(after.weights, parts, strict=True):
        way = space.difference(mean, part.mean)
        by = central(
            lambda e, x=part.mean: space.difference(mean, space.integrate(x, e)), space.ndx, 1e-6
        )
        middle += w * way
        expected += w * (by @ part.covariance @ by.T + np.outer(way, way))
    np.testing.assert_allclose(middle, 0.0, atol=1e-12)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(after.estimate.covariance, expected, atol=1e-9 * scale)


def test_one_hypothesis_is_the_filter_itself():
    """A machine at rest whose feet hardly ever change: others weigh too little to correct.

    Feet that stand have no noise besides.
    """
    given = standing(noise=0.01)
    one = SETTINGS
    other = replace(one, evidence=replace(EVIDENCE, switches=1e-3, still=1e-12))
    ends = []
    for settings in (one, other):
        estimator = settings.build(ROBOT)
        result = estimator.run(given, estimator.start(given))
        ends.append([s for s in result.steps if s.channel == "angles"][-1].estimate)
    np.testing.assert_allclose(ends[0].mean, ends[1].mean, atol=1e-12)
    np.testing.assert_allclose(ends[0].covariance, ends[1].covariance, atol=1e-15)


def test_rows_of_missing_angles_are_as_none():
    """The noise of feet that swing, and how they change, are those of the whole time between."""
    estimator = replace(SETTINGS, evidence=EVIDENCE).build(ROBOT)
    given = lifted(None)
    first, record = estimator.start(given), estimator.record(given)
    record = record.between(-np.inf, 1.0)
    angles = record.channels["angles"]
    gone = (angles.times > 0.83) & (angles.times < 0.9)
    missing = Series(angles.times, np.where(gone[:, None], np.nan, angles.values))
    fewer = Series(angles.times[~gone], angles.values[~gone])
    left, none = (
        estimator.run_record(replace(record, channels={**record.channels, "angles": series}), first)
        for series in (missing, fewer)
    )
    one, other = left.steps[-1].mixture, none.steps[-1].mixture
    assert one.probabilities == pytest.approx(other.probabilities, rel=1e-9)
    np.testing.assert_allclose(one.mean, other.mean, atol=1e-12)
    np.testing.assert_allclose(one.covariance, other.covariance, atol=1e-12)


def test_its_states_are_frozen():
    """A state that a sample has been taken from gives the same again, and nothing of it changes."""
    own = hypotheses()
    given = lifted(None)
    estimator = replace(SETTINGS, evidence=EVIDENCE).build(ROBOT)
    record = estimator.record(given).between(-np.inf, 0.9)
    state, middle = own.start(estimator.start(given)), None
    rows = list(record.samples())
    for sample in rows:
        state = filter_sample(state, record, sample, own.predict, own.update)
        if sample.time <= 0.5:
            middle = state
    for sample in rows:
        if sample.time > 0.5:
            middle = filter_sample(middle, record, sample, own.predict, own.update)
    np.testing.assert_array_equal(middle.weights, state.weights)
    np.testing.assert_array_equal(middle.estimate.mean, state.estimate.mean)


def test_what_does_not_fit_is_refused():
    with pytest.raises(InputError, match="moving must be greater than"):
        ContactEvidence(moving=0.04)
    with pytest.raises(InputError, match="ground is compared at touchdowns"):
        replace(SETTINGS, evidence=EVIDENCE, ground=0.0)
    blind = replace(SETTINGS, ground=0.0).build(ROBOT)
    with pytest.raises(InputError, match="but 'left sole' has no force: leave out ground"):
        blind.record(lifted(None))


def test_there_is_no_prediction_back_in_time():
    own = hypotheses()
    state = own.start(SETTINGS.build(ROBOT).start(standing()))
    assert own.predict(state, state.time) is state
    with pytest.raises(InputError, match="time must not be before"):
        own.predict(state, state.time - 0.1)
    with pytest.raises(InputError, match="time must be finite"):
        own.predict(state, np.nan)


def test_a_foot_that_is_in_the_air_at_first_may_stand_all_the_same():
    """Begun with a lifted foot, which is put down where its angles say, it is the same filter."""
    estimator = replace(SETTINGS, evidence=EVIDENCE).build(ROBOT)
    readings = standing()
    both, record = estimator.start(readings), estimator.record(readings)
    few, u = record.between(-np.inf, both.time + 0.2), record.input(both.time)
    air = estimator.filter.update(both, signal_name("left sole"), 0.0, u).estimate
    assert air.mode == ("open", "stick")
    right, found = (estimator.run_record(few, first) for first in (both, air))
    assert found.modes == right.modes
    np.testing.assert_allclose(found.means[-1], right.means[-1], atol=1e-9)
