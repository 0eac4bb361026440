"""The inputs that keep contacts standing and landings from slipping, on the walker."""

import numpy as np
import pytest
from hybridctl.experiments.walking import cone_filter, controllers

import hybridctl as hc
from hybridctl.base.errors import InputError


def test_torques_are_moved_into_cone_and_limits_no_further_than_needed():
    """Against the optimality conditions: u - wanted is a sum of rows that act, with signs."""
    random = np.random.default_rng(0)
    for _ in range(50):
        a, b = random.normal(size=(3, 4)), 20.0 * random.uniform(size=3)
        wanted, limits = 20.0 * random.normal(size=4), 25.0 * np.array([-np.ones(4), np.ones(4)])
        u = cone_filter.find_nearest_input(wanted, a, b, limits)
        assert (a @ u + b >= -1e-5).all()
        assert (np.abs(u) <= 25.0 + 1e-9).all()
        rows = np.vstack([a, np.eye(4), -np.eye(4)])
        slack = rows @ u + np.concatenate((b, np.full(8, 25.0)))
        acting = rows[slack < 1e-4]
        if len(acting) == 0:
            np.testing.assert_array_equal(u, wanted)
            continue
        forces, *_ = np.linalg.lstsq(acting.T, u - wanted, rcond=None)
        np.testing.assert_allclose(acting.T @ forces, u - wanted, atol=1e-4)


def test_cone_rows_are_the_forces_of_the_dynamics(gait):
    x, u = gait.middle, np.array([20.0, -10.0, 5.0, 8.0])
    a, b = controllers.make_cone_filter(gait, 100.0).compute_rows(("stick", "open"), x, u)
    out = gait.walker.mode(("stick", "open")).outputs(0.0, x, u)
    normal, friction = out["normal_force"][0], out["friction_force"][0][0]
    least, used = controllers.PRESSED, controllers.USED * 0.7
    expected = [normal - least, used * normal - friction, used * normal + friction]
    np.testing.assert_allclose(a @ u + b, expected, rtol=1e-8, atol=1e-8)


def test_cone_rows_before_a_landing_foretell_its_impulse(gait):
    """5 ms ahead, under held torques: accelerations that change by 1e3 rad/s^3 add 1e-2 to rates.

    The impulse itself is 22 N s, for some 1 m/s.
    """
    touchdown = gait.orbit.events[0]
    walker, before = gait.walker, touchdown.time - 0.005
    x, u = gait.orbit(before), gait.curve(0)(before)
    a, b = controllers.make_cone_filter(gait, 100.0).compute_rows(touchdown.mode_before, x, u)
    foretold = (a @ u + b)[3:]
    run = hc.simulate(walker, touchdown.mode_before, x, (before, before + 0.01), lambda t, x: u)
    landed = run.events[0]
    gained = landed.state_after[7:] - landed.state_before[7:]
    q = landed.state_before[:7]
    rows = walker.dynamics.contact_set.jacobian(q)[[1, 3]]
    normal, along = np.linalg.lstsq(rows.T, walker.robot.mass_matrix(q) @ gained, rcond=None)[0]
    assert normal == pytest.approx(landed.impulses[1])
    limit = controllers.USED * gait.friction * normal
    np.testing.assert_allclose(foretold, [limit - along, limit + along], atol=0.02 * normal)
    farther = gait.orbit(touchdown.time - 0.1)
    assert (
        len(
            controllers.make_cone_filter(gait, 100.0).compute_rows(
                touchdown.mode_before, farther, u
            )[0]
        )
        == 3
    )


def test_where_a_contact_slides_the_wanted_inputs_are_left_alone(gait):
    wanted = np.full(4, 1000.0)
    filtered = controllers.make_cone_filter(gait, 100.0)
    assert filtered(("slip+", "open"), gait.middle, wanted) is wanted
    assert filtered(("open", "open"), gait.middle, wanted) is wanted
    stands = filtered(("stick", "open"), gait.middle, wanted)
    assert np.abs(stands).max() <= 100.0


@pytest.mark.parametrize(
    "setting", [{"share": 0.0}, {"share": 1.1}, {"least": -1.0}, {"ahead": -0.1}]
)
def test_settings_that_make_no_sense_are_refused(gait, setting):
    with pytest.raises(InputError, match=next(iter(setting))):
        cone_filter.ConeFilter(gait.walker, np.full(4, 100.0), **setting)
