"""Tolerances of guards and of states that are put back, each at its border."""

import math

import numpy as np
import pytest
from numpy.polynomial.chebyshev import chebval

import hybridctl as hc
from hybridctl.base.errors import IntegrationError
from hybridctl.hybrid.model import Held
from hybridctl.hybrid.projection import StepEnds, project_step_end
from hybridctl.hybrid.series import FRACTIONS
from hybridctl.hybrid.tolerances import (
    INPUT_RECORD_RTOL,
    MAX_ERROR_RATIO,
    MAX_PROJECTION_RATIO,
    MAX_SERIES_TAIL,
    MAX_START_VIOLATION,
    MAX_VIOLATION_GROWTH,
    MIN_PROJECTED_RESIDUAL,
    MIN_RISE,
    MIN_SAMPLED_SPACINGS,
)

TOLERANCE = 1e-8  # of guards of scale 1


def fired(g, **settings):
    """When the guard g(s) of a mode fires, s after it is entered; None if it does not in 1 s."""
    clock = lambda t, x, u: np.ones(1)  # noqa: E731
    modes = [hc.Mode(key, hc.VectorSpace(1), clock) for key in ("waits", "inside", "left")]
    edges = [
        hc.Transition(
            "waits",
            hc.Guard("enters", lambda t, x, u: 0.5 - x[0]),
            hc.Reset(lambda t, x, u: np.zeros(1)),
            "inside",
        ),
        hc.Transition(
            "inside",
            hc.Guard("leaves", lambda t, x, u: g(x[0])),
            hc.Reset(lambda t, x, u: x),
            "left",
        ),
    ]
    run = hc.simulate(hc.HybridSystem(modes, edges), "waits", [0.0], (0.0, 1.5), **settings)
    events = run.events[1:]
    return events[0].time - 0.5 if events else None


@pytest.mark.parametrize(
    ("outside", "at"), [(0.99 * MAX_START_VIOLATION, None), (1.01 * MAX_START_VIOLATION, 0.0)]
)
def test_an_arc_begins_as_far_outside_as_ten_times_what_a_guard_tolerates(outside, at):
    """Bounces that stay below the tolerance leave some of it; nothing leaves ten times as much."""
    time = fired(lambda s: -outside * TOLERANCE)
    assert time == (at if at is None else pytest.approx(at, abs=1e-12))


@pytest.mark.parametrize(
    ("creep", "fires"), [(0.9 * MAX_VIOLATION_GROWTH, False), (1.1 * MAX_VIOLATION_GROWTH, True)]
)
def test_a_violation_may_grow_by_what_rounding_makes_of_it(creep, fires):
    """From 5 tolerances outside, which is 5e-8: rounding of a guard of order 1 is 1e-16."""
    assert (fired(lambda s: -5.0 * TOLERANCE * (1.0 + creep * s)) is not None) == fires


@pytest.mark.parametrize(("hop", "at"), [(0.5 * MIN_RISE, 0.0), (2.0 * MIN_RISE, 6e-4)])
def test_a_rise_between_samples_counts_from_a_thousandth_of_the_tolerance(hop, at):
    """g rises by hop and is back at 6e-4 s, before the second sample of the last look of three.

    That is a step of 1/64 s, whose samples are 8e-4 s apart at its start.

    A guard that has not risen has left its mode at the start; one that has, where it falls below
    where it began.
    """
    time = fired(
        lambda s: TOLERANCE * (-5.0 + hop * s * (6e-4 - s) / 3e-4**2),
        options=hc.SimulationOptions(first_step=1.0),
    )
    assert time == pytest.approx(at, abs=1e-5)


@pytest.mark.parametrize(("depth", "fires"), [(1e-12, True), (-1e-12, False)])
def test_the_bottom_of_a_dip_is_found_to_rounding_of_the_guard(depth, fires):
    """A dip of 1e-12 in a guard of order one is 1e-6 s wide; its rounding is 1e-16."""
    time = fired(lambda s: np.exp(2.0 * (s - 0.3)) - 1.0 - 2.0 * (s - 0.3) - 2.0 * depth)
    assert (time is not None) == fires
    if fires:
        assert time == pytest.approx(0.3 - 1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("tail", "halved"), [(0.9 * MAX_SERIES_TAIL, False), (1.1 * MAX_SERIES_TAIL, True)]
)
def test_samples_resolve_a_guard_to_a_ten_thousandth_of_it(tail, halved):
    """g = 1 - T1 + tail T7 on a step of 1 s, whose eight samples know these numbers exactly."""
    asked = set()

    def guard(s):
        asked.add(round(float(s), 12))
        return chebval(2.0 * s - 1.0, [1.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0, tail])

    assert fired(guard, options=hc.SimulationOptions(first_step=1.0)) is None
    assert (len(asked) > len(FRACTIONS)) == halved


def test_eight_samples_of_a_short_interval_are_at_different_times():
    """Where they are not, guards have no slopes: at 1e9 s numbers are 1.2e-7 s apart."""
    t = 1e9
    times = t + MIN_SAMPLED_SPACINGS * math.ulp(t) * FRACTIONS
    assert (np.diff(times) >= 2.0 * math.ulp(t)).all()
    jump = lambda s: 1.0 if s < 3e-5 else -1.0  # noqa: E731
    mode = hc.Mode("m", hc.VectorSpace(1), lambda t, x, u: np.ones(1))
    ended = hc.Mode("n", hc.VectorSpace(1), lambda t, x, u: np.ones(1))
    edge = hc.Transition(
        "m", hc.Guard("jumps", lambda t, x, u: jump(x[0])), hc.Reset(lambda t, x, u: x), "n"
    )
    run = hc.simulate(hc.HybridSystem([mode, ended], [edge]), "m", [0.0], (t, t + 1e-4))
    assert run.events[0].time - t == pytest.approx(3e-5, abs=8.0 * math.ulp(t))


def held(project, decay=0.0):
    """A mode that holds x at zero to 1e-3."""
    residual = Held(("x",), lambda x: x[:1], np.array([1e-3]), ("m",), decay=decay)
    field = lambda t, x, u: np.zeros(1)  # noqa: E731
    return hc.Mode("m", hc.VectorSpace(1), field, project=project, held=residual)


def ended(mode, start, end, length=0.1, tolerance=1e-9):
    """What becomes of the end of a step, from x = start to x = end."""
    ends = StepEnds(0.0, np.array([start]), length, np.array([end]))
    return project_step_end(mode, ends, tolerance, tolerance)


@pytest.mark.parametrize(
    ("off", "moved"), [(0.9 * MIN_PROJECTED_RESIDUAL, False), (1.1 * MIN_PROJECTED_RESIDUAL, True)]
)
def test_states_are_put_back_from_a_hundred_thousandth_of_what_is_tolerated(off, moved):
    """Contacts tolerate 1e-5 m, and Newton's method leaves 1e-11 m: ten times less than this."""
    end = off * 1e-3
    assert (ended(held(np.zeros_like), 0.0, end, tolerance=1e-2 * end) is not None) == moved


@pytest.mark.parametrize(("times", "far"), [(0.9, False), (1.1, True)])
@pytest.mark.parametrize("tolerance", [1e-6, 1e-7])
def test_a_state_is_put_back_from_no_farther_than_its_step_explains(tolerance, times, far):
    """A residual x of which a step with an error of a (1 + |x|) explains 100 times that."""
    x = times * MAX_ERROR_RATIO * tolerance
    mode = held(np.zeros_like)
    if far:
        with pytest.raises(IntegrationError, match=r"x is .* m, of which .* explain"):
            ended(mode, 0.0, x, tolerance=tolerance)
    else:
        assert ended(mode, 0.0, x, tolerance=tolerance) == pytest.approx(0.0)


@pytest.mark.parametrize(("times", "far"), [(0.9, False), (1.1, True)])
@pytest.mark.parametrize(("length", "decay"), [(0.1, 0.0), (2.0, 0.0), (0.1, 3.0)])
def test_what_a_step_began_with_is_explained_and_may_grow_as_a_gap_with_its_rate(
    length, decay, times, far
):
    """A start that is off by a explains a (1 + h + s), a gap of a m and its rate of a m/s.

    In a step of h the gap grows by a h, and by a decay of s the rate becomes up to a s.
    """
    start = 0.2e-3
    x = times * start * (1.0 + length + decay) + MAX_ERROR_RATIO * 1e-9
    mode = held(np.zeros_like, decay)
    if far:
        with pytest.raises(IntegrationError, match="leaves what its mode holds"):
            ended(mode, start, x, length)
    else:
        assert ended(mode, start, x, length) == pytest.approx(0.0)


@pytest.mark.parametrize(("times", "far"), [(0.9, False), (1.1, True)])
def test_a_projection_moves_an_explained_state_no_farther_than_weak_constraints_do(times, far):
    """Off by 1e-3 as its start, with tolerances of 1e-9: it moves by 1e4 times their sum."""
    x = 1e-3
    moved = times * MAX_PROJECTION_RATIO * (1e-9 + 1e-9 * x + x)
    mode = held(lambda x: x + moved)
    if far:
        with pytest.raises(IntegrationError, match="back there its state moves"):
            ended(mode, x, x)
    else:
        assert ended(mode, x, x) == pytest.approx(x + moved)


@pytest.mark.parametrize(("error", "shorter"), [(0.95, False), (1.05, True)])
def test_a_step_is_taken_where_its_error_is_within_the_tolerance(error, shorter):
    """x' = t^2 from 0: formulas of RK23 (Bogacki and Shampine 1989) are h^3 / 24 apart."""
    mode = hc.Mode("m", hc.VectorSpace(1), lambda t, x, u: np.array([t**2]))
    atol = 1e-4
    h = (24.0 * error * atol) ** (1.0 / 3.0)
    options = {
        "method": "RK23",
        "options": hc.SimulationOptions(first_step=h),
        "rtol": 1e-12,
        "atol": atol,
    }
    run = hc.simulate(hc.HybridSystem([mode], []), "m", [0.0], (0.0, h), **options)
    assert (len(run.arcs[0].breaks) > 1) == shorter


@pytest.mark.parametrize(("error", "shorter"), [(0.95, False), (1.05, True)])
def test_the_record_of_an_input_that_nothing_feels_is_as_exact_as_the_state(error, shorter):
    """u = error T7 in a step of 1 s, beside the 1e-6 of its own size that a record may miss."""
    mode = hc.Mode("m", hc.VectorSpace(1), lambda t, x, u: np.ones(1), 1)
    allowed = 1e-4 / (1.0 - error * INPUT_RECORD_RTOL)
    law = lambda t, x: np.array([chebval(2.0 * t - 1.0, [0.0] * 7 + [error * allowed])])  # noqa: E731
    options = {"options": hc.SimulationOptions(first_step=1.0), "atol": 1e-4}
    run = hc.simulate(hc.HybridSystem([mode], []), "m", [0.0], (0.0, 1.0), law, **options)
    assert (len(run.arcs[0].breaks) > 1) == shorter
