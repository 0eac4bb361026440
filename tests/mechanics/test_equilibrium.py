"""Standing and stance: forces by hand, and the simulation stays where it is."""

import numpy as np
import pytest
from hybridctl.robots import five_link

import hybridctl as hc
from hybridctl.errors import InputError
from hybridctl.mechanics import equilibrium

BOTH = ("stick", "stick")
APART = np.array([0.0, 0.75, 0.05, 0.25, 0.1, -0.35, 0.1])
ONE = np.array([0.0, 0.78, 0.0, 0.0, 0.1, -0.3, 0.7])


@pytest.fixture(scope="module")
def walker():
    return five_link.system()


@pytest.fixture(scope="module", params=[BOTH, five_link.LEFT_STANCE])
def standing(request, walker):
    return request.param, equilibrium(
        walker, request.param, APART if request.param == BOTH else ONE
    )


def test_the_ground_carries_the_weight(walker, standing):
    """Normal forces add up to the weight, and friction to nothing."""
    mode, found = standing
    assert found.normal.sum() == pytest.approx(walker.robot.weight, rel=1e-8)
    assert found.friction.sum() == pytest.approx(0.0, abs=1e-6)
    closed = [m == "stick" for m in mode]
    assert (found.normal[closed] > 0.0).all()
    assert (np.abs(found.friction).max(axis=1) <= 0.9 * 0.7 * found.normal + 1e-6).all()


def test_a_single_foot_is_below_the_centre_of_mass(walker):
    found = equilibrium(walker, five_link.LEFT_STANCE, ONE)
    pitch, hips, knees = found.state[2], found.state[[3, 5]], found.state[[4, 6]]
    femur, tibia = pitch + hips, pitch + hips + knees
    knee = found.state[0] - 0.4 * np.sin(femur)
    moments = 12.0 * (found.state[0] + 0.24 * np.sin(pitch))
    moments += 6.8 * (found.state[0] - 0.11 * np.sin(femur)).sum()
    moments += 3.2 * (knee - 0.24 * np.sin(tibia)).sum()
    foot = knee[0] - 0.4 * np.sin(tibia[0])
    assert moments / 32.0 == pytest.approx(foot, abs=1e-8)


def test_it_stays_there(walker, standing):
    """No acceleration, and after 0.05 s no motion beyond rounding times the unstable growth."""
    mode, found = standing
    field = walker.mode(mode).field(0.0, found.state, found.input)
    assert np.abs(field).max() < 1e-6
    run = hc.simulate(walker, mode, found.state, (0.0, 0.05), lambda t, x: found.input)
    np.testing.assert_allclose(run.final_state, found.state, atol=1e-7)


def test_limits_of_torques_are_kept(walker):
    loose = equilibrium(walker, BOTH, APART)
    largest = np.abs(loose.input).max()
    tight = equilibrium(walker, BOTH, APART, torque=0.8 * largest)
    assert np.abs(tight.input).max() <= 0.8 * largest + 1e-9


def test_what_cannot_stand_is_refused(walker):
    with pytest.raises(InputError, match="no equilibrium"):
        equilibrium(walker, BOTH, APART, force=500.0)
    with pytest.raises(InputError, match="slides"):
        equilibrium(walker, ("slip+", "open"), APART)
