"""Noise of impacts that take time, against contacts with a closed form."""

import numpy as np
import pytest
from estimation.systems import bouncing_ball
from hybridctl.robots import ball

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.estimation import ImpactNoise
from hybridctl.estimation.noise import reset_covariance

CONTACT_TIME, PERIOD = 5e-3, 0.01  # s


def first_impact(system, mode, x0):
    return hc.simulate(system, mode, np.array(x0), (0.0, 2.0), max_events=9).guard_events[0]


def test_it_covers_an_elastic_contact_that_takes_time():
    """The contact is half a period of a spring: x = -v sin(w s) / w until s = T = pi / w.

    At the samples a rigid model is off by x - v s and v_soft - v, with v the speed afterwards.
    Samples begin at any time after the touch. A right covariance has a squared error of two, one
    for each coordinate. The bounds are a factor of ten below and of two above: uniform delays are
    wider than those of this contact, and samples within it are off by more than a deviation.
    """
    run = hc.simulate(bouncing_ball(), "air", np.array([1.0, 0.0]), (0.0, 0.6))
    event = run.guard_events[0]
    noise = ImpactNoise(contact_time=CONTACT_TIME, spread=0.0, period=PERIOD)
    p = reset_covariance(bouncing_ball(), noise, event)
    v, w = event.state_after[1], np.pi / CONTACT_TIME
    s = (np.arange(1000) + 0.5) / 1000 * PERIOD  # age of the impact at the first sample after it
    inside = s < CONTACT_TIME
    soft = np.where(inside, -v * np.sin(w * s) / w, v * (s - CONTACT_TIME))
    speed = np.where(inside, -v * np.cos(w * s), v)
    error = np.column_stack([soft - v * s, speed - v])
    carried = np.array([np.array([[1.0, t], [0.0, 1.0]]) @ p @ [[1.0, 0.0], [t, 1.0]] for t in s])
    camera = 1e-9 * np.eye(2)  # far below the squared lag, (1e-2 m)^2: only makes P invertible
    nis = np.einsum("ni,nij,nj->n", error, np.linalg.inv(carried + camera), error)
    assert 0.2 < nis.mean() < 4.0


def test_its_covariance_is_the_stated_one():
    system = bouncing_ball()
    event = hc.simulate(system, "air", np.array([1.0, 0.0]), (0.0, 0.6)).guard_events[0]
    delta = event.state_after - event.state_before
    k = np.array([delta[1], 0.0])  # gravity is the same before and after
    noise = ImpactNoise(contact_time=CONTACT_TIME, spread=0.3, period=PERIOD)
    expected = CONTACT_TIME**2 / 3 * np.outer(k, k) + (0.5 / 3 + 0.09) * np.outer(delta, delta)
    np.testing.assert_allclose(reset_covariance(system, noise, event), expected, rtol=1e-12)


def test_an_instant_without_spread_has_no_noise():
    system = bouncing_ball()
    event = hc.simulate(system, "air", np.array([1.0, 0.0]), (0.0, 0.6)).guard_events[0]
    found = reset_covariance(system, ImpactNoise(contact_time=0.0, spread=0.0), event)
    assert not found.any()


def test_the_spread_of_a_mechanism_is_equal_by_its_mass_matrix():
    """The kinetic energy of a drawn change is rho^2 times that of the impact, on average."""
    system = ball.system(ball.BallParameters(mass=2.5))
    event = hc.simulate(system, ("open",), np.array([0.0, 1.0, 0.5, 0.0]), (0.0, 0.6)).guard_events[
        0
    ]
    noise = ImpactNoise(contact_time=0.0, spread=0.1)
    p = reset_covariance(system, noise, event)[2:, 2:]
    change = (event.state_after - event.state_before)[2:]
    np.testing.assert_allclose(np.trace(p), 0.01 * change @ change, rtol=1e-12)
    np.testing.assert_allclose(p, p[0, 0] * np.eye(2), atol=1e-15)


@pytest.mark.parametrize(
    "given", [{"contact_time": -1e-3}, {"contact_time": 1e-3, "period": 0.0},
              {"contact_time": 1e-3, "spread": np.nan}],
)  # fmt: skip
def test_bad_values_are_refused(given):
    with pytest.raises(InputError):
        ImpactNoise(**given)
