"""Events next to grazing: what is wrong by a thousandth or more says so, what is right is quiet."""

import warnings
from dataclasses import replace
from decimal import Decimal, localcontext

import casadi as ca
import numpy as np
import pytest

import hybridctl as hc
from hybridctl import symbolic
from hybridctl.base.errors import GrazingError, NearGrazingWarning
from hybridctl.hybrid.trajectory import Event

GRAVITY, RESTITUTION = 9.81, 0.8
SIGNIFICANT = 1e-3  # of the derivative: what is off by more has to say so


def system(acceleration, wall):
    """A point that meets a wall above it, and is thrown back."""
    x = ca.SX.sym("x", 2)
    return symbolic.hybrid_system(
        [symbolic.SymbolicMode("below", state=x, field=[x[1], acceleration(x[0])])],
        [
            symbolic.SymbolicTransition(
                "below", "wall", wall - x[0], "below", [x[0], -RESTITUTION * x[1]]
            )
        ],
    )


def compare_gain(hybrid, start, end, tolerance, speed, acceleration):
    """Relative error of D v+ / D height, -(1 + e) a / v, and whether there was a warning."""
    run = hc.simulate(hybrid, "below", start, (0.0, end), rtol=tolerance, atol=tolerance)
    assert run.events[0].accuracy == (tolerance, tolerance)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", NearGrazingWarning)
        gain = hc.saltation_matrix(hybrid, run.events[0])[1, 0]
    right = (1.0 + RESTITUTION) * acceleration / speed
    return abs(gain / right - 1.0), bool(found)


@pytest.mark.parametrize("tolerance", [1e-6, 1e-9, 1e-12, 1e-14])
@pytest.mark.parametrize("speed", [1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 3e-6, 1e-6])
def test_a_ball_that_just_reaches_a_ceiling(speed, tolerance):
    """Its speed there is (v0^2 - 2 g h)^1/2, to 40 digits; the flow is exact but for rounding."""
    start = np.sqrt(speed**2 + 2.0 * GRAVITY)
    with localcontext() as digits:
        digits.prec = 40
        exact = float((Decimal(float(start)) ** 2 - 2 * Decimal(GRAVITY)).sqrt())
    hybrid = system(lambda x: -GRAVITY, 1.0)
    error, is_warned = compare_gain(hybrid, [0.0, start], 0.47, tolerance, exact, -GRAVITY)
    assert is_warned or error <= SIGNIFICANT
    # a height off by d moves the rate by g d / v^2 of itself: quiet where that is small
    if GRAVITY * 2.0 * tolerance / speed**2 <= 0.5 * SIGNIFICANT:
        assert not is_warned


@pytest.mark.parametrize("tolerance", [1e-5, 1e-7, 1e-9, 1e-11])
@pytest.mark.parametrize("speed", [1e-1, 1e-2, 1e-3, 1e-4])
def test_a_pendulum_whose_flow_has_errors(speed, tolerance):
    """Released from -1 rad at a wall near +1 rad, where its energy gives its speed."""
    wall = np.arccos(np.cos(1.0) + 0.5 * speed**2 / GRAVITY)
    exact = np.sqrt(2.0 * GRAVITY * (np.cos(wall) - np.cos(1.0)))
    hybrid = system(lambda x: -GRAVITY * ca.sin(x), float(wall))
    run = hc.simulate(hybrid, "below", [-1.0, 0.0], (0.0, 1.2), rtol=tolerance, atol=tolerance)
    if not run.events:  # passed below the wall, within the tolerance
        assert GRAVITY * tolerance / speed**2 > SIGNIFICANT
        return
    steep = -GRAVITY * np.sin(wall)
    error, is_warned = compare_gain(hybrid, [-1.0, 0.0], 1.2, tolerance, exact, steep)
    assert is_warned or error <= SIGNIFICANT


def test_the_warning_names_guard_time_and_what_is_known():
    hybrid = system(lambda x: -GRAVITY, 1.0)
    run = hc.simulate(hybrid, "below", [0.0, np.sqrt(1e-8 + 2.0 * GRAVITY)], (0.0, 0.47))
    with pytest.warns(NearGrazingWarning, match=r"'wall' of mode 'below' .* at t = 0\.4515"):
        hc.linearize(hybrid, run)


def test_parameters_that_are_large_numbers_do_not_blur_a_guard():
    """A state of 1e6 that the guard does not see: its tolerance is no uncertainty of the event."""
    x = ca.SX.sym("x", 3)
    hybrid = symbolic.hybrid_system(
        [symbolic.SymbolicMode("air", state=x, field=[x[1], -GRAVITY, 0.0])],
        [symbolic.SymbolicTransition("air", "floor", x[0], "air", [x[0], -x[1], x[2]])],
    )
    run = hc.simulate(hybrid, "air", [1e-2, 0.0, 1e6], (0.0, 0.1))
    hc.linearize(hybrid, run)  # warnings are errors


@pytest.mark.parametrize(("rate", "grazes"), [(-1e-4, True), (-1.0, False)])
def test_a_rate_that_its_terms_leave_as_rounding_is_grazing(rate, grazes):
    """x falls at 1e6 under a guard x + u, and u rises as fast: 1e-9 of both is no rate."""
    x, u = ca.SX.sym("x"), ca.SX.sym("u")
    modes = [symbolic.SymbolicMode(key, x, [-1e6], u) for key in ("above", "below")]
    system = symbolic.hybrid_system(
        modes, [symbolic.SymbolicTransition("above", "g", x + u, "below")]
    )
    zero = np.zeros(1)
    event = Event(0, 0.0, "above", "below", ("g",), zero, zero, zero, zero, zero + 1e6 + rate, zero)
    event = replace(event, accuracy=None)
    if grazes:
        with pytest.raises(GrazingError, match="of the size of its terms"):
            hc.jump_gains(system, event)
    else:
        assert hc.jump_gains(system, event).time_state == pytest.approx(1.0)
