"""Feet that roll: flow, derivatives and noise, a wheel in closed form, and the sphere of a URDF."""

import numpy as np
import pytest
from differences import assert_derivative
from legged.machine import (
    GRAVITY,
    URDF,
    check_field_jacobian,
    check_transition_derivative,
    state,
)

from hybridctl.base.errors import InputError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.noise import Noise
from hybridctl.estimation.noisy_system import NoisySystem
from hybridctl.estimation.prediction import predict
from hybridctl.hybrid.laws import HeldInput
from hybridctl.hybrid.mapped import Change
from hybridctl.hybrid.model import StepRequest
from hybridctl.hybrid.system import MappedSystem
from hybridctl.legged.kinematics import Foot, LegKinematics
from hybridctl.legged.measurements import ground_measurement
from hybridctl.legged.rotation import left_jacobian, left_jacobian_slope
from hybridctl.legged.system import BaseNoise, LeggedBase, base_system
from hybridctl.mechanics.multibody.robot import Robot

KEY = ("stick", "stick")
RADIUS = 0.3  # m, so large that every term counts


def rolling_machine(**noise):
    """A base whose left foot rolls, and its hybrid system."""
    feet = [Foot("left sole", radius=RADIUS), Foot("right sole")]
    kinematics = LegKinematics(Robot.from_urdf(URDF), "imu", feet)
    base = LeggedBase(kinematics, GRAVITY, BaseNoise(**noise))
    return base, base_system(base)


@pytest.mark.parametrize("size", [1e-8, 1e-3, 0.3, 0.99, 1.01, 3.0])
def test_the_slope_of_the_left_jacobian_is_its_derivative(size):
    """On both sides of 1 rad, where the series ends, and at angles that are almost zero."""
    rng = np.random.default_rng(0)
    w, c = rng.normal(size=(2, 3))
    w *= size / np.linalg.norm(w)
    assert_derivative(lambda e: left_jacobian(w + e) @ c, left_jacobian_slope(w, c))


def test_a_step_is_what_the_integrator_finds():
    """Mean and transition, by DOP853 and collocation at 1e-12, over a turn of half a radian."""
    base, system = rolling_machine()
    rng = np.random.default_rng(1)
    x, u = state(base, KEY, rng)
    estimate = Estimate(KEY, 0.0, x, np.eye(base.space(KEY).ndx))
    law, noise = HeldInput(u), Noise(base.density, of_input=True)
    plain = MappedSystem(system, lambda k: Change())
    closed = predict(NoisySystem(system, noise), estimate, 0.3, law)
    found = predict(NoisySystem(plain, noise, rtol=1e-12, atol=1e-12), estimate, 0.3, law)
    np.testing.assert_allclose(closed.estimate.mean, found.estimate.mean, atol=1e-10)
    np.testing.assert_allclose(closed.transition, found.transition, atol=1e-9)


def test_noise_of_a_step_is_that_of_the_integrator_to_first_order_of_the_step():
    """What is left out is noise of the base that reaches a rolling foot within the same step.

    That is of the second order of the step: an eighth of the step has about a 64th of the error.
    """
    base, system = rolling_machine()
    x, u = state(base, KEY, np.random.default_rng(2))
    space = base.space(KEY)
    estimate = Estimate(KEY, 0.0, x, np.zeros((space.ndx, space.ndx)))
    plain = MappedSystem(system, lambda k: Change())
    noise, law = Noise(base.density, of_input=True), HeldInput(u)
    errors = []
    for h in (0.08, 0.01):
        closed = predict(NoisySystem(system, noise), estimate, h, law).estimate.covariance
        exact = predict(
            NoisySystem(plain, noise, rtol=1e-11, atol=1e-13), estimate, h, law
        ).estimate
        errors.append(np.abs(closed - exact.covariance).max())
    assert 40.0 < errors[0] / errors[1] < 90.0


@pytest.mark.parametrize("h", [1e-3, 0.05, 0.7])
def test_the_transition_is_the_derivative_of_the_step(h):
    check_transition_derivative(rolling_machine(), KEY, h, seed=3)


def test_the_field_has_exact_derivatives():
    check_field_jacobian(rolling_machine(), KEY, seed=4)


def test_a_sphere_that_turns_about_y_rolls_along_x():
    """By its radius times the angle, whether base or joint turns; the point foot stays."""
    base, system = rolling_machine()
    space, mode = base.space(KEY), system.mode(KEY)
    x = np.zeros(space.nx)
    x[3] = 1.0  # upright, at rest
    u = np.zeros(base.nu)
    u[3:6] = -GRAVITY
    u[1] = 0.5  # rad/s, of the base
    u[base.turning_columns(0)] = [0.0, 1.5, 0.0]  # of the foot against the base, in its axes
    places = base.places(KEY)
    for _ in range(10):
        x = mode.transition(StepRequest(0.0, x, 0.01, 1e-9, 1e-9), u).state
    np.testing.assert_allclose(x[places[0].x], [RADIUS * 2.0 * 0.1, 0.0, 0.0], atol=1e-12)
    np.testing.assert_array_equal(x[places[1].x], np.zeros(3))


def test_the_centre_of_a_foot_that_rolls_is_a_radius_above_the_ground():
    base, system = rolling_machine()
    x, u = state(base, KEY, np.random.default_rng(5))
    places = base.places(KEY)
    x[places[0].x.stop - 1], x[places[1].x.stop - 1] = 0.7 + RADIUS, 0.7
    found = ground_measurement(base).compare(system.mode(KEY), 0.0, x, u, np.array([0.7]))
    np.testing.assert_allclose(found.residual, [0.0, 0.0], atol=1e-15)


BALL = '<collision><origin xyz="0 0 {z}"/><geometry><sphere radius="0.02"/></geometry></collision>'


@pytest.mark.parametrize(
    ("shape", "given", "expected"),
    [
        (BALL.format(z=0), None, 0.02),
        (BALL.format(z=0.015), None, 0.0),  # it is beside the frame, whose origin does not roll
        ("", None, 0.0),
        (BALL.format(z=0), 0.0, 0.0),
        (BALL.format(z=0), 0.03, 0.03),
    ],
)
def test_the_radius_is_that_of_the_file_unless_it_is_told(shape, given, expected):
    text = URDF.replace('<link name="left sole"/>', f'<link name="left sole">{shape}</link>')
    feet = [Foot("left sole", radius=given), Foot("right sole", flat=True)]
    kinematics = LegKinematics(Robot.from_urdf(text), "imu", feet)
    assert kinematics.radii == {"left sole": expected, "right sole": 0.0}


def test_a_sole_that_rolls_is_refused():
    with pytest.raises(InputError, match="radius of foot 'left' must be 0, because a flat foot"):
        Foot("left", flat=True, radius=0.02)
    with pytest.raises(InputError, match="radius of foot 'left' must be at least 0"):
        Foot("left", radius=-1.0)
