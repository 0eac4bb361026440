"""How much feet creep by the distances between them, which standing feet keep."""

import numpy as np
import pytest
from legged.machine import URDF, machine
from scipy.spatial.transform import Rotation

from hybridctl.estimation.estimate import Estimate
from hybridctl.legged.creep import FootMotion
from hybridctl.legged.creep_filter import CreepFilter
from hybridctl.legged.estimator import BaseSettings
from hybridctl.legged.foot_distances import (
    LEVELS,
    FeetAtOnce,
    begin_distances,
    choose_creep,
    roll_foot,
    weigh_pair,
)
from hybridctl.legged.kinematics import Foot
from hybridctl.legged.system import BaseNoise
from hybridctl.mechanics.multibody.robot import Robot

BOTH, ONE = ("stick", "stick"), ("stick", "open")
TIME = 0.2  # s that both feet stand
EXACT = np.zeros((3, 3))  # covariance of the turn of the base


def bend_legs(base, angles, turns, wanted):
    """Find angles (6,) after which the feet are apart by another vector (3,) in the world.

    Args:
        base: The machine.
        angles: Angles (6,) at first, rad.
        turns: Rotations of the base at first and at last.
        wanted: By how much the vector from right to left foot changes, m.
    """
    before = base.kinematics.find_feet(angles).positions
    goal = turns[0].apply(before[0] - before[1]) + wanted
    bent = angles.copy()
    for _ in range(5):
        feet = base.kinematics.find_feet(bent)
        error = goal - turns[1].apply(feet.positions[0] - feet.positions[1])
        jacobian = turns[1].as_matrix() @ (feet.twists[0, :3] - feet.twists[1, :3])
        bent = bent + np.linalg.pinv(jacobian) @ error
    assert np.linalg.norm(error) < 1e-6
    return bent


def take_steps(base, distances, creep, rng, steps, *, span=TIME, turn=0.1, seen=0.0, settling=0.0):
    """Return what distances say after steps in which both feet stand and creep by random walks.

    Args:
        base: The machine.
        distances: What they have said until now.
        creep: Standard deviation of the creep of a foot, m/s/sqrt(Hz).
        rng: Of creep, and of how the base turns.
        steps: Number of steps.
        span: For how long both feet stand, s.
        turn: By what angle the base turns about each axis, rad.
        seen: Variance in m^2 that the velocity of each foot has told.
        settling: By what the turn of the base is corrected while both stand, rad.
    """
    still = np.array([0.1, -0.2, 0.4, -0.1, -0.1, 0.3])
    for step in range(steps):
        turns = Rotation.from_rotvec(turn * rng.normal(size=(2, 3)))
        moved = np.sqrt(2.0 * span) * creep * rng.normal(size=3)
        angles = [still, bend_legs(base, still, turns, moved), still]
        times = np.array([0.0, span, span + 0.1]) + step
        turns = [*turns, turns[1]]
        corrected = Rotation.from_rotvec(settling * rng.normal(size=3))
        for mode, time, own, turned in zip((BOTH, BOTH, ONE), times, angles, turns, strict=True):
            x = np.zeros(base.space(mode).nx)
            x[:4] = (corrected * turned if time == times[0] else turned).as_quat()
            u = np.zeros(base.nu)
            u[base.angle_columns] = own
            uncertain = 0.0 if time > times[0] else settling**2
            distances = distances.follow(base, Estimate(mode, time, x, uncertain * np.eye(3)), u)
            if time == times[0]:
                distances = distances.add_motion(np.full(2, seen))
    return distances


@pytest.mark.parametrize("creep", [1e-3, 3e-3, 1e-2])
def test_creep_is_what_moves_feet_apart(creep):
    """Within 36 % after 100 pairs of feet, and the vertical within 48 %.

    Of pairs that fade over m = 33 some 2 m count, with two directions along the ground. Their mean
    square has the relative deviation sqrt(2 / (4 m)) = 0.12, its root 0.06, of which four may come,
    and 0.09 of the vertical; the rest is the distance between levels. Encoders add 0.1 mm here,
    against 0.6 mm at least.
    """
    base, _ = machine(flat=(False, False), noise=BaseNoise(encoder=1e-4))
    rng = np.random.default_rng(round(1e4 * creep))
    found = take_steps(base, begin_distances(base.noise), creep, rng, 100)
    assert np.sqrt(found.creep[0]) == pytest.approx(
        base.noise.foot_alike * creep, rel=4 * 0.06 + 0.12
    )
    assert np.sqrt(found.creep[1]) == pytest.approx(
        base.noise.foot_alike * creep, rel=4 * 0.09 + 0.12
    )
    assert not found.pairs


def test_creep_follows_the_ground():
    """From hard to slippery ground within three times `foot_memory`, and back."""
    base, _ = machine(flat=(False, False), noise=BaseNoise(encoder=1e-4, foot_memory=10.0))
    rng, found = np.random.default_rng(0), begin_distances(base.noise)
    for creep in (1e-3, 8e-3, 1e-3):
        found = take_steps(base, found, creep, rng, 60)
        assert np.sqrt(found.creep[0]) == pytest.approx(
            base.noise.foot_alike * creep, rel=4 * 0.11 + 0.12
        )


def test_encoders_and_what_velocities_have_seen_are_no_creep():
    """Feet that move by 1.3 mm, of which encoders or velocities explain all, creep as little.

    The levels that are left are those whose motion over a pair is below what is explained.
    """
    rng = np.random.default_rng(0)
    exact, _ = machine(flat=(False, False), noise=BaseNoise(encoder=1e-4))
    begun = begin_distances(exact.noise)
    unexplained = take_steps(exact, begun, 2e-3, rng, 60).creep
    explained = take_steps(exact, begun, 2e-3, rng, 60, seen=(2e-3) ** 2 * TIME).creep
    coarse, _ = machine(flat=(False, False), noise=BaseNoise(encoder=5e-3))
    by_encoders = take_steps(coarse, begun, 2e-3, rng, 60).creep
    whole = exact.noise.foot_alike * 2e-3
    assert (np.sqrt(unexplained) > 0.75 * whole).all()
    assert (np.sqrt(explained) < 0.45 * whole).all()
    assert (np.sqrt(by_encoders) < 0.45 * whole).all()


def test_what_velocities_have_seen_before_both_stood_explains_nothing():
    """A metre of motion in the air, between two steps: the same creep as without."""
    base, _ = machine(flat=(False, False), noise=BaseNoise(encoder=1e-4))
    begun = take_steps(base, begin_distances(base.noise), 3e-3, np.random.default_rng(0), 5)
    moved = begun.add_motion(np.ones(2))
    found = [take_steps(base, one, 3e-3, np.random.default_rng(1), 5) for one in (begun, moved)]
    np.testing.assert_allclose(found[1].log_weights, found[0].log_weights, rtol=1e-9)


def test_a_turn_that_settles_is_no_creep():
    """A base that does not know its tilt to 0.05 rad at first moves its feet apart by 10 mm."""
    base, _ = machine(flat=(False, False), noise=BaseNoise(encoder=1e-4))
    rng, begun = np.random.default_rng(3), begin_distances(base.noise)
    found = take_steps(base, begun, 1e-3, rng, 30, settling=0.05)
    assert (np.sqrt(found.creep) < 1.5 * base.noise.foot_alike * 1e-3).all()


@pytest.mark.parametrize("span", [0.03, 1.5])
def test_feet_that_hardly_stand_together_or_rest_say_nothing(span):
    base, _ = machine(flat=(False, False))
    begun = begin_distances(base.noise)
    found = take_steps(base, begun, 1e-2, np.random.default_rng(0), 5, span=span)
    np.testing.assert_array_equal(found.creep, begun.creep)
    np.testing.assert_array_equal(found.log_weights, begun.log_weights)


def test_soles_and_given_noise_have_no_distances():
    base, _ = machine(flat=(True, False))
    begun = begin_distances(base.noise)
    found = take_steps(base, begun, 1e-2, np.random.default_rng(0), 5)
    np.testing.assert_array_equal(found.log_weights, begun.log_weights)
    feet = tuple(Foot(f"{side} sole") for side in ("left", "right"))
    for foot in (None, 5e-3):
        estimator = BaseSettings("imu", feet, noise=BaseNoise(foot=foot)).build(
            Robot.from_urdf(URDF)
        )
        motion = FootMotion(angle_noise=1e-4, window=0.01)
        kept = CreepFilter(estimator.base, estimator.filter, motion)
        x = np.zeros(estimator.base.space(BOTH).nx)
        x[3] = 1.0
        start = kept.start(Estimate(BOTH, 0.0, x, 1e-4 * np.eye(21)))
        assert (start.distances is None) == (foot is not None)


def test_the_covariance_of_a_foot_grows_by_its_creep():
    """In the time of a step, by the creep that the distances have told, in axes of the base."""
    feet = tuple(Foot(f"{side} sole") for side in ("left", "right"))
    estimator = BaseSettings("imu", feet).build(Robot.from_urdf(URDF))
    base = estimator.base
    kept = CreepFilter(base, estimator.filter, FootMotion(angle_noise=1e-4, window=0.01))
    x, turn = np.zeros(base.space(BOTH).nx), Rotation.from_rotvec([0.3, -0.5, 0.8])
    x[:4] = turn.as_quat()
    start = kept.start(Estimate(BOTH, 0.0, x, 1e-2 * np.eye(21)))
    assert start.distances is not None
    place, h, u = base.places(BOTH)[0].dx, 0.01, np.zeros(base.nu)
    grown = []
    for creep in (np.zeros(2), np.array([4e-3, 7e-3])):
        told = start._replace(distances=start.distances._replace(creep=creep**2))
        grown.append(kept.predict(told, h, u).estimate.covariance[place, place])
    expected = turn.as_matrix().T @ np.diag([4e-3, 4e-3, 7e-3]) ** 2 @ turn.as_matrix()
    np.testing.assert_allclose(grown[1] - grown[0], h * expected, atol=1e-12)


@pytest.mark.parametrize("axis", [(0.0, 1.0, 0.0), (0.6, -0.8, 0.0), (0.0, 0.0, 1.0)])
def test_a_round_foot_rolls_by_its_angle_times_its_radius(axis):
    """About a level axis by radius times angle, across it; about the vertical it stays."""
    turn, radius = 0.5, 0.02
    start = Rotation.from_rotvec([0.3, -0.2, 0.9])
    end = Rotation.from_rotvec(turn * np.array(axis)) * start
    at = [
        FeetAtOnce(t, np.zeros((1, 3)), r.as_matrix()[None], np.zeros((1, 3)), np.zeros(1), EXACT)
        for t, r in ((0.0, start), (1.0, end))
    ]
    expected = turn * radius * np.cross(axis, [0.0, 0.0, 1.0])
    np.testing.assert_allclose(roll_foot(*at, 0, radius), expected, atol=1e-12)
    assert not roll_foot(*at, 0, 0.0).any()


def test_feet_that_roll_keep_the_distance_of_their_lowest_points():
    """Two feet that roll by different angles say that nothing creeps."""
    turns = Rotation.from_rotvec([[0.0, 0.5, 0.0], [0.3, 0.0, 0.0]])
    nothing = np.zeros((2, 3))
    start = FeetAtOnce(
        0.0, nothing, np.tile(np.eye(3), (2, 1, 1)), nothing + 1e-8, np.zeros(2), EXACT
    )
    rolled = np.array([[0.01, 0.0, 0.0], [0.0, -0.006, 0.0]])
    end = start._replace(time=TIME, centres=rolled, rotations=turns.as_matrix())
    still = start._replace(time=TIME)
    noise, begun = BaseNoise(), begin_distances(BaseNoise()).log_weights
    found = weigh_pair(noise, begun, (0, 1), start, end, [0.02, 0.02])
    expected = weigh_pair(noise, begun, (0, 1), start, still, [0.02, 0.02])
    # By rolling they are 8 mm further apart, over which the gyroscope's noise moves them.
    np.testing.assert_allclose(found, expected, atol=1e-3)
    slipped = weigh_pair(noise, begun, (0, 1), start, end, [0.0, 0.0])
    # The vertical does not slip.
    assert choose_creep(noise, slipped)[0] > 50.0 * choose_creep(noise, found)[0]
    assert choose_creep(noise, slipped)[1] == choose_creep(noise, found)[1]


def test_creep_begins_as_the_settings_say():
    """The likeliest level is the start's, but for what feet do alike."""
    noise = BaseNoise()
    begun = begin_distances(noise)
    np.testing.assert_array_equal(begun.creep, noise.creep(flat=False) ** 2)
    likeliest = LEVELS[begun.log_weights.argmax(axis=1)]
    own = noise.creep(flat=False) / noise.foot_alike
    np.testing.assert_allclose(np.sqrt(likeliest), own, rtol=0.05)
