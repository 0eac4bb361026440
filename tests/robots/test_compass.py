"""Passive gaits of the compass against what was published, and against equations of their own.

The independent computation integrates the equations as Goswami prints them by Runge and Kutta's
fourth order in complex numbers, and differentiates the return map by a step of 1e-30 along the
imaginary axis, which has no cancellation. Its 3000 steps leave some 1e-12 of error.
"""

import numpy as np
import pytest
from hybridctl.robots import compass

import hybridctl as hc

TIGHT = {"rtol": 1e-13, "atol": 1e-13, "tolerance": 1e-12}
GOSWAMI = compass.CompassParameters()
GARCIA = compass.CompassParameters(slope=0.009, leg=0.0, hip=1.0, lower=0.0, upper=1.0, gravity=1.0)
GUESSES = {
    "goswami": (GOSWAMI, 0.2187, -1.0918, -0.3772, 1.2),
    "long": (GARCIA, 0.2003 - 0.009, -0.1998, -0.1840, 6.0),
    "short": (GARCIA, 0.1939 - 0.009, -0.2039, -0.1887, 6.0),
}


def gait(name: str, **options):
    p, stance, rate, swing_rate, horizon = GUESSES[name]
    horizon *= options.get("crossings", 1)
    x0 = np.array([stance, -stance - 2.0 * p.slope, rate, swing_rate])
    options = {"symmetry": compass.exchange()} | TIGHT | options
    return hc.orbits.periodic_orbit(
        compass.system(p), compass.START, x0, "touches", horizon=horizon, **options
    )


@pytest.fixture(scope="module", params=list(GUESSES))
def found(request):
    return request.param, gait(request.param)


PRINTED = {  # stance angle, swing angle, their rates; period; multipliers
    "goswami": ([0.2187, -0.3234, -1.0918, -0.3772], 0.734, None),
    "long": ([0.200310900544287 - 0.009, None, -0.199832473004977, None], 3.8825, (0.59, 0.59)),
    "short": ([0.193937369810184 - 0.009, None, -0.203866927442010, None], 3.0961, (4.0, 0.459)),
}


def test_states_are_those_printed(found):
    """Goswami to his four decimals, Garcia to 9 of the digits; multipliers to two decimals."""
    name, orbit = found
    state, period, multipliers = PRINTED[name]
    decimals = 5e-5 if name == "goswami" else 5e-10
    for value, printed in zip(orbit.state, state, strict=True):
        if printed is not None:
            assert value == pytest.approx(printed, abs=decimals)
    assert orbit.period == pytest.approx(period, abs=1e-3)
    if multipliers is not None:
        largest = np.sort(np.abs(orbit.multipliers.others))[:0:-1]
        assert largest == pytest.approx(multipliers, abs=6e-3)


def test_states_and_multipliers_are_those_of_equations_of_their_own(found):
    """A state that is off by d leaves (P' - 1) d, which is no less than 0.5 d here."""
    name, orbit = found
    others = orbit.multipliers.others
    image, slopes = _return_map(GUESSES[name][0], orbit.state, orbit.period)
    np.testing.assert_allclose(image, orbit.state, atol=1e-10)
    expected = np.linalg.eigvals(slopes)
    expected = np.delete(expected, np.argmin(np.abs(expected)))  # along the flow
    np.testing.assert_allclose(np.sort_complex(others), np.sort_complex(expected), atol=1e-8)


def test_the_long_gait_is_stable_and_the_short_one_is_not(found):
    name, orbit = found
    assert orbit.multipliers.is_stable == (name != "short")
    assert list(orbit.multipliers.trivial.values()) == ["flow"]


def test_two_steps_without_the_symmetry_are_the_square_of_one():
    one, two = gait("goswami"), gait("goswami", symmetry=None, crossings=2)
    assert two.period == pytest.approx(2.0 * one.period, abs=1e-11)
    squares = one.multipliers.others**2
    np.testing.assert_allclose(
        np.sort_complex(two.multipliers.others), np.sort_complex(squares), atol=1e-9
    )


def test_passing_and_touching_take_turns():
    orbit = gait("goswami")
    assert [event.guards for event in orbit.trajectory.events] == [("passes",), ("touches",)]
    assert orbit.trajectory.final_mode == ("right", "before")


def test_it_walks_on_to_the_orbit():
    """From 1e-3 off, each step shrinks by the largest multiplier: 0.58^20 = 2e-5 after 20."""
    orbit = gait("goswami")
    x0 = orbit.state + 1e-3 * np.array([1.0, -1.0, 0.5, -0.5])
    run = hc.simulate(compass.system(), compass.START, x0, (0.0, 20.5 * orbit.period))
    touched = [event.time for event in run.events if event.guards == ("touches",)]
    assert len(touched) == 20
    assert touched[-1] - touched[-2] == pytest.approx(orbit.period, abs=1e-6)


def _return_map(p: compass.CompassParameters, start, period):
    """The state after touchdown, seen by the new standing leg (4,), and its derivative (4, 4)."""
    x = np.repeat(start[:, None], 4, axis=1) + 1e-30j * np.eye(4)
    steps = 3000
    h = period / steps
    for _ in range(steps):
        x = _runge_kutta(p, x, h)
    h = np.zeros(4, dtype=complex)
    for _ in range(4):  # Newton's method for the time of touchdown
        there = _runge_kutta(p, x, h)
        h = h - (there[0] + there[1] + 2.0 * p.slope) / (there[2] + there[3])
    landed = _landed(p, _runge_kutta(p, x, h))
    return landed[:, 0].real, landed.imag / 1e-30


def _runge_kutta(p, x, h):
    a = _field(p, x)
    b = _field(p, x + 0.5 * h * a)
    c = _field(p, x + 0.5 * h * b)
    d = _field(p, x + h * c)
    return x + h / 6.0 * (a + 2.0 * b + 2.0 * c + d)


def _field(p, x):
    """Stance leg first; M, N and g of Goswami, the row of the swinging leg divided by m."""
    s, n, vs, vn = x
    length = p.length
    cosine, sine = length * p.upper * np.cos(s - n), length * p.upper * np.sin(s - n)
    a = p.hip * length**2 + p.leg * (p.lower**2 + length**2)
    pull = (p.hip * length + p.leg * (p.lower + length)) * p.gravity * np.sin(s)
    first = pull + p.leg * sine * vn**2
    second = -p.gravity * p.upper * np.sin(n) - sine * vs**2
    determinant = a * p.upper**2 - p.leg * cosine**2
    acceleration_s = (p.upper**2 * first + p.leg * cosine * second) / determinant
    acceleration_n = (cosine * first + a * second) / determinant
    return np.array([vs, vn, acceleration_s, acceleration_n])


def _landed(p, x):
    """Goswami's conservation of angular momentum, the second row divided by m."""
    s, n, vs, vn = x
    length, c = p.length, np.cos(s - n)
    about_foot = (p.hip * length**2 + 2.0 * p.leg * p.lower * length) * c * vs
    about_foot = about_foot - p.leg * p.lower * p.upper * (vs + vn)
    about_hip = -p.lower * p.upper * vs
    # new stance leg is the old swing leg: Q+ (new stance rate, new swing rate)
    a = p.hip * length**2 + p.leg * (p.lower**2 + length**2) - p.leg * p.upper * length * c
    b = p.leg * p.upper * (p.upper - length * c)
    e, f = -length * p.upper * c, p.upper**2
    determinant = a * f - b * e
    new_stance = (f * about_foot - b * about_hip) / determinant
    new_swing = (a * about_hip - e * about_foot) / determinant
    return np.array([n, s, new_stance, new_swing])
