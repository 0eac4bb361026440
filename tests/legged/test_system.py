"""Touchdown and lift-off: where they put a foot, their derivatives, their noise."""

import numpy as np
import pytest
from differences import assert_derivative
from legged.machine import URDF, machine, state

from hybridctl.base.errors import InputError, UnknownNameError
from hybridctl.hybrid.model import JumpPoint
from hybridctl.legged.kinematics import Foot, LegKinematics
from hybridctl.legged.measurements import angles_measurement, ground_measurement
from hybridctl.legged.system import Touch, lifts, touches
from hybridctl.mechanics.multibody.robot import Robot

BEFORE, AFTER = ("open", "stick"), ("stick", "stick")
LEFT, RIGHT = "left sole", "right sole"


def edge(system, key, guard):
    return system.outgoing(key).edge((guard,))


def test_touchdown_starts_a_foot_with_exact_derivatives():
    base, system = machine()
    x, u = state(base, BEFORE, np.random.default_rng(0))
    way = edge(system, BEFORE, touches(LEFT))
    before, after = base.space(BEFORE), base.space(AFTER)
    end, found = way.reset(0.0, x, u).state, way.reset.calc_diff(JumpPoint(0.0, x, u))
    assert way.target == AFTER
    assert_derivative(
        lambda e: after.difference(end, way.reset(0.0, before.integrate(x, e), u).state),
        found.state,
    )
    assert_derivative(lambda e: after.difference(end, way.reset(0.0, x, u + e).state), found.input)


def test_lift_off_drops_what_touchdown_has_started():
    base, system = machine()
    x, u = state(base, BEFORE, np.random.default_rng(1))
    end = edge(system, BEFORE, touches(LEFT)).reset(0.0, x, u).state
    lift = edge(system, AFTER, lifts(LEFT))
    np.testing.assert_array_equal(lift.reset(0.0, end, u).state, x)
    both = lift.reset.calc_diff(JumpPoint(0.0, end, u)).state
    first = edge(system, BEFORE, touches(LEFT)).reset.calc_diff(JumpPoint(0.0, x, u)).state
    np.testing.assert_allclose(both @ first, np.eye(len(both)), atol=1e-15)
    assert lift.target == BEFORE


def test_the_noise_of_touchdown_is_that_of_the_angles_and_of_the_pose():
    base, system = machine()
    x, u = state(base, BEFORE, np.random.default_rng(2))
    way = edge(system, BEFORE, touches(LEFT))
    by_input = way.reset.calc_diff(JumpPoint(0.0, x, u)).input
    angles = by_input[:, base.angle_columns]
    pose = np.zeros(base.space(AFTER).ndx)
    place = base.places(AFTER)[0]
    pose[place.dx], pose[place.turn_dx] = base.noise.measured**2, base.noise.measured_turn**2
    expected = base.noise.encoder**2 * angles @ angles.T + np.diag(pose)
    found = Touch(base, BEFORE, AFTER, LEFT).noise(u)
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-14 * np.abs(expected).max())


@pytest.mark.parametrize("make", [angles_measurement, ground_measurement])
def test_measurements_have_exact_derivatives_where_they_fit(make):
    """At the state that the angles lead to, the residual is zero and its derivative -H."""
    base, system = machine()
    x, u = state(base, BEFORE, np.random.default_rng(3))
    open_ = edge(system, BEFORE, lifts(RIGHT)).reset(0.0, x, u).state
    x = edge(system, ("open", "open"), touches(RIGHT)).reset(0.0, open_, u).state
    x = edge(system, BEFORE, touches(LEFT)).reset(0.0, x, u).state
    mode, space = system.mode(AFTER), base.space(AFTER)
    z = base.angles(u) if make is angles_measurement else np.zeros(1)
    compare = make(base).compare
    found = compare(mode, 0.0, x, u, z)
    assert_derivative(
        lambda e: -compare(mode, 0.0, space.integrate(x, e), u, z).residual, found.jacobian
    )
    if make is angles_measurement:
        np.testing.assert_allclose(found.residual, 0.0, atol=1e-14)
        assert found.covariance.shape == (9, 9)  # one flat foot, and one that is a point
    else:
        heights = [x[place.x][2] for place in base.places(AFTER)]
        np.testing.assert_allclose(found.residual, -np.array(heights), atol=1e-15)


def test_the_noise_of_the_angles_is_what_their_errors_do():
    base, system = machine()
    x, u = state(base, AFTER, np.random.default_rng(4))
    mode, compare = system.mode(AFTER), angles_measurement(base).compare
    z = base.angles(u)
    feet = base.kinematics(z, [LEFT])[0]
    assert_derivative(lambda e: base.kinematics(z + e, [LEFT])[0].position, feet.moving)
    turned = lambda e: base.kinematics(z + e, [LEFT])[0].rotation @ feet.rotation.T  # noqa: E731
    assert_derivative(
        lambda e: 0.5 * np.array([1, -1, 1]) * (turned(e) - turned(e).T)[[2, 2, 1], [1, 0, 0]],
        feet.turning,
    )
    both = np.vstack([feet.moving, feet.turning])
    found = compare(mode, 0.0, x, u, z).covariance[:6, :6]
    own = np.repeat([base.noise.measured, base.noise.measured_turn], 3) ** 2
    expected = base.noise.encoder**2 * both @ both.T + np.diag(own)
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-16)


def test_a_sensor_on_a_leg_sees_the_feet_from_there():
    base, _ = machine(inertial="left1")
    rng = np.random.default_rng(5)
    names = {f"{side} joint {k}" for side in ("left", "right") for k in range(3)}
    assert set(base.kinematics.joints) == names
    z = rng.normal(size=len(base.kinematics.joints))
    for foot in (LEFT, RIGHT):
        seen = base.kinematics(z, [foot])[0]
        assert_derivative(lambda e, f=foot: base.kinematics(z + e, [f])[0].position, seen.moving)
    with pytest.raises(InputError, match="must be fixed to the root"):
        base.kinematics.base  # noqa: B018


def test_feet_that_are_remembered_are_those_of_their_angles():
    """Angles asked for in any order, and feet that their caller has changed meanwhile."""
    base, _ = machine()
    kinematics, rng = base.kinematics, np.random.default_rng(5)
    many = rng.normal(size=(6, 6))
    expected = [
        LegKinematics(Robot.from_urdf(URDF), "imu", list(kinematics.feet.values())).find_feet(row)
        for row in many
    ]
    for k in rng.integers(6, size=60).tolist():
        for foot, seen in enumerate(kinematics(many[k], base.feet)):
            np.testing.assert_array_equal(seen.position, expected[k].positions[foot])
            np.testing.assert_array_equal(seen.rotation, expected[k].rotations[foot])
            np.testing.assert_array_equal(seen.twist, expected[k].twists[foot])
            seen.position[:] = seen.twist[:] = np.nan


def test_the_root_is_where_the_frame_says():
    base, _ = machine()
    turn, place = base.kinematics.base
    np.testing.assert_allclose(place, [0.05, -0.02, 0.1], atol=1e-15)
    np.testing.assert_allclose(turn @ turn.T, np.eye(3), atol=1e-15)


def test_what_does_not_fit_is_refused():
    base, system = machine()
    with pytest.raises(UnknownNameError, match="expected 'open' or 'stick' for each of"):
        system.mode(("stick", "slip"))
    with pytest.raises(UnknownNameError, match="did you mean 'left sole'"):
        LegKinematics(Robot.from_urdf(URDF), "imu", [Foot("left soles")])
    with pytest.raises(InputError, match="feet must have different frames"):
        LegKinematics(Robot.from_urdf(URDF), "imu", [Foot(LEFT), Foot(LEFT, True)])
    with pytest.raises(InputError, match="flat of foot 'a' must be True or False"):
        Foot("a", 1)
    key = ("stick", "open")
    x, u = state(base, key, np.random.default_rng(6))
    with pytest.raises(InputError, match="must have the angles of"):
        angles_measurement(base).compare(system.mode(key), 0.0, x, u, np.zeros(5))
