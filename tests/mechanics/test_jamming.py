"""How far sliding contacts are from jamming, and its derivative: by factors, by determinants."""

import numpy as np
import pytest
from hybridctl.robots import public
from scipy.linalg import null_space

from hybridctl.mechanics import Robot, contact_system, jamming

MODES = [
    ("slip", "stick", "stick", "stick"),
    ("slip", "slip", "stick", "open"),
    ("slip", "slip", "slip", "slip"),
]
# Both ways are exact and work on numbers of unit size; G of four feet has a regularity near 1e-4.
AGREE = 1e-10


@pytest.fixture(scope="module")
def quadruped():
    return contact_system(
        Robot.from_urdf(public.urdf("solo12"), root="floating"), public.contacts("solo12")
    )


@pytest.mark.parametrize("modes", MODES, ids=" ".join)
def test_regular_contacts_have_the_ratio_of_determinants(quadruped, modes):
    rng, robot, mode = np.random.default_rng(0), quadruped.robot, quadruped.mode(modes)
    q = quadruped.mode(("stick",) * 4).project(public.start("solo12", height=0.0))[: robot.nq]
    held = null_space(quadruped.dynamics.all.jacobian(q)[mode.phase.held_rows])
    v = held @ rng.normal(size=held.shape[1])
    point = mode.calc(0.0, np.concatenate((q, v)), np.zeros(robot.nu))
    now, rates_z = point.contact.solution, point.derivatives.rates_z[:, : 2 * robot.nv]
    expected = jamming._ratio(now.kkt, jamming._without_friction(now))
    assert abs(expected - 1.0) > 0.1
    assert jamming.response_ratio(now) == pytest.approx(expected, rel=AGREE)
    terms = quadruped.dynamics.terms
    found = jamming.response_ratio_derivative(terms, q, now, rates_z)
    general = jamming._ratio_derivative(terms, q, now, rates_z)
    np.testing.assert_allclose(found, general, rtol=0.0, atol=AGREE * np.abs(general).max())
