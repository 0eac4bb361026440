"""How far linearizations hold: the radius against the errors of simulations beside the run."""

from dataclasses import replace

import casadi as ca
import numpy as np
import pytest
from hybridctl.robots import ball
from sensitivity.close_guards import BEFORE, CloseGuards
from sensitivity.test_boundary import ball_on_the_cone
from sensitivity.test_merged_events import spread
from sensitivity.test_simultaneous import Switching, pushed

import hybridctl as hc
from hybridctl.base.errors import GuardViolatedError, InputError
from hybridctl.hybrid.laws import DifferentiableLaw, HeldInput
from hybridctl.hybrid.mode import FieldJacobian
from hybridctl.sensitivity.radius import find_spread_change

TIGHT = {"rtol": 1e-10, "atol": 1e-11}
X = ca.SX.sym("x", 2)
SPAN = (0.0, 3.0 * BEFORE)
STEP = 1.15
FINE = STEP ** (np.arange(-15, 15) + 0.5)


def measure_radius(system, mode, x0, run, lin, direction, radius, span, policy=None, error=0.1):
    """Where the measured error is that of the radius: between two sizes of a fine series."""
    for size in radius * FINE:
        try:
            moved = hc.simulate(
                system, mode, x0 + size * direction, span, policy, event_window=0.0, **TIGHT
            )
        except GuardViolatedError:  # the start is behind a guard, after its event
            return size / np.sqrt(STEP)
        predicted = lin.follow(size * direction).state
        off = np.linalg.norm(moved.final_state - run.final_state - predicted)
        if off >= error * np.linalg.norm(predicted):
            return size / np.sqrt(STEP)
    return np.inf


def check_radius(seeds, lags):
    """Within a factor of two for all of them, merged or not; by how many the order ends it."""
    ordered = 0
    for seed in seeds:
        n = 2 + seed % 2
        case, rng = CloseGuards(seed, n, seed // 2 % 2 == 1), np.random.default_rng(seed)
        shares = spread(rng, n)
        for lag in lags:
            x0 = case.start(lag * shares)
            run = hc.simulate(case.system, case.first, x0, SPAN, event_window=0.0, **TIGHT)
            d = rng.normal(size=2 * n)
            d /= np.linalg.norm(d)
            for merge in (None, 0.05):
                lin = hc.linearize(case.system, run, merge=merge, **TIGHT)
                radius = lin.radius(d)
                found = measure_radius(case.system, case.first, x0, run, lin, d, radius.size, SPAN)
                assert 0.5 <= radius.size / found <= 2.0, (seed, lag, merge, radius, found)
                ordered += radius.order.size < radius.size < 0.1 * radius.curvature
    return ordered


def test_the_radius_is_where_the_error_is_a_tenth():
    assert check_radius(range(2), (1e-9, 1e-4)) >= 2


def test_a_leap_of_the_prediction_is_no_error_of_the_motion():
    """Events 0.01 s apart: where another piece of the merged map begins, it leaps by some lag^2."""
    check_radius([28], (1e-2,))


@pytest.mark.slow
@pytest.mark.parametrize(
    "part", [0, *(pytest.param(k, marks=pytest.mark.long) for k in range(1, 5))]
)
def test_the_radius_of_fifty_systems(part):
    """Ten in a part: two and three guards in turn, with and without resets."""
    assert check_radius(range(10 * part, 10 * part + 10), (1e-9, 1e-6, 1e-4, 1e-2)) >= 10


def test_a_falling_ball_by_hand():
    """Dropped from h, it hits at sqrt(2 h / g) with speed sqrt(2 g h), and rebounds with e of it.

    At a fixed time its height afterwards is that of the time since: curved by the square roots.
    """
    e, g, height, end = 0.8, 9.81, 1.0, 0.6
    parameters = ball.BallParameters(restitution=e, friction=0.0, slope=0.0, gravity=g)
    system = ball.system(parameters)
    x0 = np.array([0.0, height, 0.0, 0.0])

    def last(h):
        hit = np.sqrt(2.0 * h / g)
        up, t = e * g * hit, end - hit
        return np.array([0.0, up * t - 0.5 * g * t**2, 0.0, up - g * t])

    run = hc.simulate(system, ("open",), x0, (0.0, end), **TIGHT)
    lin = hc.linearize(system, run, **TIGHT)
    up = np.array([0.0, 1.0, 0.0, 0.0])
    radius = lin.radius(up)
    step = 1e-4
    second = (last(height + step) - 2.0 * last(height) + last(height - step)) / step**2
    np.testing.assert_allclose(radius.second, second, atol=0.3 * np.abs(second).max())
    slope = lin.derivative(up)
    sizes = np.linspace(1e-3, 1.0, 1000)
    off = [np.linalg.norm(last(height + r) - last(height) - r * slope) / r for r in sizes]
    found = sizes[np.argmax(np.array(off) >= 0.1 * np.linalg.norm(slope))]
    assert 0.7 <= radius.size / found <= 1.4
    assert radius.size == radius.curvature < radius.order.size
    assert float(lin.radius(up, error=0.01)) < 0.2 * float(radius)
    np.testing.assert_allclose(lin.radius(2.0 * up).size, 0.5 * radius.size, rtol=1e-6)


@pytest.mark.parametrize("bend", [2.5, 0.5])
def test_a_kink_and_a_curvature_add_up(bend):
    """Guards p and q are met `lag` apart; between them w' is 0.1, whichever comes first.

    With q by r nearer, w = bend (r - lag)^2 + 0.1 |r - lag| in the end. So the order changes at
    r = lag, and w is off by bend r^2 + 0.2 (r - lag) from then on.
    """
    lag, rise, end = 0.01, 0.1, 2.0
    x = ca.SX.sym("x", 3)
    modes, edges = [], []
    for key in ("", "p", "q", "pq"):
        curved = bend / end * (x[1] - x[0]) ** 2
        modes.append(hc.symbolic.SymbolicMode(key, x, [1.0, 1.0, curved + rise * (len(key) == 1)]))
        for k, name in enumerate("pq"):
            if name not in key:
                after = "".join(sorted(key + name))
                edges.append(hc.symbolic.SymbolicTransition(key, name, -x[k], after))
    system = hc.symbolic.hybrid_system(modes, edges)
    run = hc.simulate(system, "", [-1.0, -1.0 - lag, 0.0], (0.0, end), **TIGHT)
    radius = hc.linearize(system, run, **TIGHT).radius([0.0, 1.0, 0.0])
    slope = np.hypot(1.0, rise + 2.0 * bend * lag)
    roots = np.roots([bend, 2.0 * rise - 0.1 * slope, -2.0 * rise * lag])
    assert radius.order.size == pytest.approx(lag, rel=1e-6)
    assert radius.curvature == pytest.approx(0.1 * slope / bend, rel=0.02)
    assert radius.size == pytest.approx(roots.max(), rel=0.02)  # 400 sizes are tried


def bowl():
    """x'' = -sin x + u: one mode, no events."""
    mode = hc.Mode(
        "go",
        hc.VectorSpace(2),
        lambda t, x, u: np.array([x[1], -np.sin(x[0]) + u[0]]),
        1,
        lambda t, x, u: FieldJacobian(
            np.array([[0.0, 1.0], [-np.cos(x[0]), 0.0]]), np.array([[0.0], [1.0]])
        ),
    )
    return hc.HybridSystem([mode], [])


@pytest.mark.parametrize("fed_back", [False, True])
def test_inputs_are_replayed_or_made_by_the_policy(fed_back):
    """Under feedback of 3 x the bowl is nearly linear, so that the radius is larger."""
    system, x0, d = bowl(), np.array([1.0, 0.0]), np.array([1.0, 0.0])
    law = None
    if fed_back:
        gain = np.array([[-3.0, -1.0]])
        law = DifferentiableLaw(lambda t, x: gain @ x, lambda t, x: gain, lambda t, x: np.zeros(1))
    push = (lambda t, x: np.array([0.3 * np.cos(t)])) if law is None else law
    run = hc.simulate(system, "go", x0, (0.0, 2.0), push, **TIGHT)
    lin = hc.linearize(system, run, policy=law, **TIGHT)
    radius = lin.radius(d, policy=law)
    found = measure_radius(system, "go", x0, run, lin, d, radius.size, (0.0, 2.0), push)
    assert 0.5 <= radius.size / found <= 2.0
    assert radius.order == (np.inf, None)


def test_the_range_is_the_radius_of_the_direction_that_grows_most():
    """Of the bowl, and of a ball that bounces straight, whose flow along the ground is linear."""
    run = hc.simulate(bowl(), "go", [1.0, 0.0], (0.0, 2.0), **TIGHT)
    parameters = ball.BallParameters(restitution=0.8, friction=0.0, slope=0.0, gravity=9.81)
    bouncing = ball.system(parameters)
    fallen = hc.simulate(bouncing, ("open",), [0.0, 1.0, 0.0, 0.0], (0.0, 0.6), **TIGHT)
    for lin in (hc.linearize(bowl(), run), hc.linearize(bouncing, fallen)):
        known = lin.accurate_range
        growths = np.linalg.svd(lin.state_transition, compute_uv=False)
        assert known.growth == pytest.approx(growths[0], rel=1e-9)
        assert np.linalg.norm(lin.derivative(known.direction)) == pytest.approx(known.growth)
        assert 0.5 <= known.size / lin.radius(known.direction).size <= 2.0
        assert f"off by 10 % at |dx0| = {known.size:.2g}" in repr(lin)


def test_the_range_ends_where_the_order_of_events_changes():
    """Guards 0 and 1 are met 1e-9 s apart, while the flow between events is linear."""
    case, shares = CloseGuards(2, 2, False), spread(np.random.default_rng(0), 2)
    run = hc.simulate(
        case.system, case.first, case.start(1e-9 * shares), SPAN, event_window=0.0, **TIGHT
    )
    lin = hc.linearize(case.system, run, **TIGHT)
    known = lin.accurate_range
    assert known.size == lin.follow(known.direction).change(run).size < 1e-8


def test_a_linear_flow_has_no_end_of_its_range():
    mode = hc.Mode(
        "go",
        hc.VectorSpace(1),
        lambda t, x, u: -x,
        0,
        lambda t, x, u: FieldJacobian(-np.eye(1), np.zeros((1, 0))),
    )
    system = hc.HybridSystem([mode], [])
    lin = hc.linearize(system, hc.simulate(system, "go", [1.0], (0.0, 1.0), **TIGHT))
    assert lin.accurate_range.size == np.inf
    assert "10 %" not in repr(lin)


def test_ranges_that_are_not_measured():
    """Under feedback, whose policy is not kept, and where contacts touch at once."""
    run = hc.simulate(bowl(), "go", [1.0, 0.0], (0.0, 2.0), **TIGHT)
    lin = hc.linearize(bowl(), run)
    assert lin.closed_loop([np.ones((1, 2))]).accurate_range is None
    assert hc.linearize(bowl(), run, simultaneous="at once").accurate_range is None


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.9])
def test_a_map_with_jumps_that_are_not_those_of_the_run_has_no_range(share):
    """Of a ball whose time of impact has only a share of its effect.

    The relative error of such a map is the same at every size: from 2.0 at a share of 0.3, which
    falls to a tenth only where tolerances hide it, to 0.12 at 0.9, near a tenth everywhere.
    """
    parameters = ball.BallParameters(restitution=0.8, friction=0.0, slope=0.0, gravity=9.81)
    bouncing = ball.system(parameters)
    run = hc.simulate(bouncing, ("open",), [0.0, 1.0, 0.0, 0.0], (0.0, 0.6), **TIGHT)
    lin = hc.linearize(bouncing, run, **TIGHT)
    jumps = tuple(replace(jump, field_change=share * jump.field_change) for jump in lin.jumps)
    assert replace(lin, jumps=jumps).accurate_range is None


class Once:
    """A push that begins with the first hit."""

    def law(self, history):
        return HeldInput([8.0 if history.events else 0.0])

    def next_change(self, history):
        return np.inf


def test_an_input_that_changes_at_a_hit_is_replayed_with_it():
    """x'' = u - g over a floor: a motion that hits later is pushed later."""
    u = ca.SX.sym("u")
    air = hc.symbolic.SymbolicMode("air", X, ca.vertcat(X[1], u - 9.81), u)
    bounce = hc.symbolic.SymbolicTransition("air", "floor", X[0], "air", ca.vertcat(X[0], -X[1]))
    system, x0, d = hc.symbolic.hybrid_system([air], [bounce]), np.array([1.0, 0.0]), [1.0, 0.0]
    span, policy = (0.0, 0.8), Once()
    run = hc.simulate(system, "air", x0, span, policy, **TIGHT)
    lin = hc.linearize(system, run, **TIGHT)
    radius = lin.radius(d)
    found = measure_radius(system, "air", x0, run, lin, np.array(d), radius.size, span, policy)
    assert 0.5 <= radius.size / found <= 2.0


def test_a_linear_flow_has_a_radius_beyond_all_that_is_tried():
    system = hc.symbolic.hybrid_system(
        [hc.symbolic.SymbolicMode("go", X, ca.vertcat(X[1], -X[0]))], []
    )
    run = hc.simulate(system, "go", [1.0, 0.0], (0.0, 2.0), **TIGHT)
    radius = hc.linearize(system, run, **TIGHT).radius([0.6, 0.8])
    assert radius.size > 1e4
    np.testing.assert_allclose(radius.second, 0.0, atol=1e-7)


def test_what_has_no_radius_is_refused():
    system = bowl()
    run = hc.simulate(system, "go", [1.0, 0.0], (0.0, 1.0), **TIGHT)
    lin = hc.linearize(system, run, **TIGHT)
    with pytest.raises(InputError, match="direction must change"):
        lin.radius([0.0, 0.0])
    with pytest.raises(InputError, match="error must be"):
        lin.radius([1.0, 0.0], error=0.0)
    with pytest.raises(InputError, match="policy must be given"):
        lin.closed_loop([[[1.0, 0.0]]]).radius([1.0, 0.0])


@pytest.mark.parametrize(("phantom_input", "count"), [("pushing", 2), ("withdrawing", 1)])
def test_motions_have_the_input_of_the_map_in_phantom_modes(phantom_input, count):
    """Two carts hit at once; beside it the input is released with the second hit, or the first."""
    system, x0, span = pushed(), np.array([1.0, 1.0, -3.0, -3.0]), (0.0, 0.9)
    run = hc.simulate(system, (0, 0), x0, span, Switching(2), **TIGHT)
    lin = hc.linearize(system, run, phantom_input=phantom_input, **TIGHT)
    direction = np.array([0.3, -0.4, 0.2, -0.1])
    radius = float(lin.radius(direction))
    measured = measure_radius(
        system, (0, 0), x0, run, lin, direction, radius, span, Switching(count)
    )
    assert measured == pytest.approx(radius, rel=0.5)


def test_the_border_of_an_impact_is_no_contact_that_spreads():
    """One ball that an impact only just stops along the slope: its event cannot come apart."""
    system, x0 = ball_on_the_cone(0.5, 1.0, restitution=0.5)
    run = hc.simulate(system, ("open",), x0, (0.0, 0.2), **TIGHT)
    lin = hc.linearize(system, run, simultaneous="at once", **TIGHT)
    assert len(lin.jumps[0].guards) == 2
    assert find_spread_change(lin, np.array([0.0, 0.0, 1.0, 0.0]), 1e-8) == (np.inf, None)
