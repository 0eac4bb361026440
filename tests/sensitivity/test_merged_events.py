"""Events that follow each other closely: the piecewise affine map against perturbed runs."""

import pickle
from itertools import product

import casadi as ca
import numpy as np
import pytest
from sensitivity.close_guards import BEFORE, CloseGuards
from sensitivity.test_simultaneous import PUSH, SwitchingByLaw, pushed

import hybridctl as hc
from hybridctl.base.errors import InputError, OrderChangeWarning
from hybridctl.sensitivity import (
    ParameterDerivatives,
    parameter_sensitivity,
    propagate_moments,
)
from hybridctl.sensitivity.moments import sample_normal_points

TIGHT = {"rtol": 1e-12, "atol": 1e-13}
END = 3.0 * BEFORE
FLOOR = 1e-11  # a difference of two runs
LAGS = (0.0, 1e-9, 1e-7, 1e-5, 1e-3, 1e-2)
SIZES = (1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)


def simulate(case, x0, span=(0.0, END)):
    return hc.simulate(case.system, case.first, x0, span, event_window=0.0, **TIGHT)


def spread(rng, n):
    """Lags (n,) of guards between 0 and 1, the first 0 and the last 1."""
    return np.concatenate([[0.0], np.sort(rng.uniform(size=n - 2)), [1.0]])


def find_error_constant(case, x0, directions):
    """max |error of lin(delta d)| / delta^2, and in which orders the perturbed runs met guards.

    Without an event window, in which a run leaves lags out: of 1e-9 s they make 5e-9 of the state.
    """
    run = simulate(case, x0)
    lin = hc.linearize(case.system, run, merge=0.05, **TIGHT)
    worst, orders = 0.0, set()
    for d in directions:
        for size in SIZES:
            moved = simulate(case, x0 + size * d)
            error = np.abs(moved.final_state - run.final_state - lin(size * d)).max()
            worst = max(worst, (error - FLOOR) / size**2)
            orders.add(tuple(event.guards for event in moved.events))
    return worst, orders


def check_error_constant(seeds):
    """The constant of the joint event, within a factor, is that of all lags."""
    swapped = 0
    for seed in seeds:
        n = 2 + seed % 2
        case = CloseGuards(seed, n, resets=seed // 2 % 2 == 1)
        d = case.rng.normal(size=(4, 2 * n))
        d /= np.linalg.norm(d, axis=1, keepdims=True)
        shares = spread(case.rng, n)
        found = [find_error_constant(case, case.start(lag * shares), d) for lag in LAGS]
        constants = [worst for worst, _ in found]
        assert max(constants) < 25.0, (seed, constants)
        swapped += sum(len(orders) > 1 for _, orders in found)
    return swapped


def test_one_constant_for_all_lags():
    """|x(delta d) - x(0) - lin(delta d)| <= C delta^2 on both sides of every switch."""
    assert check_error_constant(range(4)) > 12


@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds", [range(4, 16), pytest.param(range(16, 50), marks=pytest.mark.long)], ids=len
)
def test_one_constant_for_all_lags_of_fifty_systems(seeds):
    assert check_error_constant(seeds) > 3 * len(seeds)


def simulate_close_guards(lag=1e-6, seed=2):
    case = CloseGuards(seed, 2, resets=True)
    x0 = case.start(np.array([0.0, lag]))
    run = simulate(case, x0)
    return case, x0, run


def test_a_perturbation_that_changes_the_order_is_warned_of():
    """Without merging the product of saltation matrices is off by the perturbation itself."""
    case, x0, run = simulate_close_guards()
    lin = hc.linearize(case.system, run, **TIGHT)
    assert "in this order for |dx0| below" in repr(lin)
    gap = np.array([lin.follow(d).gaps(run)[1][1] for d in np.eye(4)])[:, 0]
    d = -gap / np.linalg.norm(gap)  # the second guard comes earlier
    radius = lin.follow(d).change(run)
    assert radius.events == (0, 1)
    lag = run.events[1].time - run.events[0].time
    np.testing.assert_allclose(radius.size, lag / np.linalg.norm(gap), rtol=1e-9)
    assert f"{radius.size:.3g}" in repr(lin)
    lin(0.99 * radius.size * d)
    assert simulate(case, x0 + 0.99 * radius.size * d).events[0].guards == ("guard 0",)
    assert simulate(case, x0 + 1.01 * radius.size * d).events[0].guards == ("guard 1",)
    size = 1e-3
    with pytest.warns(OrderChangeWarning, match=r"event 0 .guard 0.*and event 1 .guard 1"):
        alone = lin(size * d)
    truth = simulate(case, x0 + size * d).final_state - run.final_state
    merged = hc.linearize(case.system, run, merge=1e-4, **TIGHT)
    assert "0 to 1 merged" in repr(merged)
    assert np.abs(alone - truth).max() > 0.05 * size
    assert np.abs(merged(size * d) - truth).max() < 10.0 * size**2


def test_small_perturbations_have_the_product_of_saltation_matrices():
    case, _, run = simulate_close_guards()
    lin, merged = (hc.linearize(case.system, run, merge=window, **TIGHT) for window in (None, 1e-4))
    assert lin.is_linear
    assert not merged.is_linear
    rows = np.random.default_rng(0).normal(size=(5, 4))
    np.testing.assert_allclose(merged.derivative(rows), lin.derivative(rows), rtol=1e-12)
    np.testing.assert_allclose(merged(1e-9 * rows), lin(1e-9 * rows), rtol=1e-7, atol=1e-22)
    np.testing.assert_allclose(merged.state_transition, lin.state_transition, rtol=1e-12)


def test_pieces_are_those_of_the_orders():
    case, _, run = simulate_close_guards()
    merged = hc.linearize(case.system, run, merge=1e-4, **TIGHT)
    (group,) = merged.merged_events
    jump = merged.merged_jump(group)
    pieces = {piece.order: piece for piece in jump.homogeneous.pieces()}
    assert set(pieces) == {(0, 1), (1, 0)}
    for dx in 1e-5 * np.random.default_rng(1).normal(size=(20, 4)):
        piece, one = pieces[tuple(jump.follow(dx).orders)], np.append(dx, 1.0)
        assert (piece.cone @ one >= 0.0).all()
        start = np.linalg.solve(merged.transitions[0], dx)
        last = merged.propagate(start)[-1].end[:, 0]
        np.testing.assert_allclose(last, merged(start), rtol=1e-8, atol=1e-13)
        np.testing.assert_allclose(piece.matrix @ one, np.append(jump(dx), 1.0), atol=1e-15)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(jump))(dx), jump(dx))


def test_an_order_that_no_perturbation_changes_is_the_only_one():
    """Two walls in one direction: the farther one is met last, from wherever it starts."""
    x, lag = ca.SX.sym("x", 2), 1e-4
    modes = [
        hc.symbolic.SymbolicMode((i, j), x, [-1.0 - 0.2 * i - 0.1 * j, 0.1 * x[0] + i - 0.5 * j])
        for i, j in product((0, 1), repeat=2)
    ]
    walls = [hc.symbolic.SymbolicTransition((0, j), "near", x[0], (1, j)) for j in (0, 1)]
    walls += [hc.symbolic.SymbolicTransition((i, 0), "far", x[0] + lag, (i, 1)) for i in (0, 1)]
    system = hc.symbolic.hybrid_system(modes, walls)
    run = hc.simulate(system, (0, 0), [0.1, 0.0], (0.0, 0.3), **TIGHT)
    merged = hc.linearize(system, run, merge=1e-2, **TIGHT)
    jump = merged.merged_jump(merged.merged_events[0])
    dx = np.random.default_rng(2).normal(size=(50, 2))
    assert (jump.follow(dx).orders == [0, 1]).all()
    with pytest.raises(InputError, match=r"dx must have shape \(2,\)"):
        jump.follow(np.zeros(3))


def test_only_events_within_the_window_are_merged():
    case, _, run = simulate_close_guards(lag=1e-3)
    assert hc.linearize(case.system, run, merge=1e-4).merged_events == ()
    (group,) = hc.linearize(case.system, run, merge=1e-2).merged_events
    assert (group.first, group.last) == (0, 1)
    with pytest.raises(InputError, match="merge"):
        hc.linearize(case.system, run, merge=0.0)


# Inputs, feedback, parameters


CARTS = (0, 0)
SPAN = (0.0, 0.9)


def carts(lag=1e-4):
    """Two carts that hit `lag` s one after the other, each twice as hard to push afterwards."""
    return pushed(), np.array([1.0, 1.0 + 3.0 * lag, -3.0, -3.0])


def assert_second_order(errors, sizes):
    """At most C size^2, with one C of order 10 before and after the order has changed."""
    assert (np.array(errors) <= 30.0 * np.array(sizes) ** 2 + 10.0 * FLOOR).all(), errors


def push(t, x):
    return np.array([PUSH + 0.5 * np.sin(9.0 * t)])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_changes_of_the_input_change_the_order(sign):
    """The input pushes a cart that has hit twice, and both by the number that have hit."""
    system, x0 = carts()
    run = hc.simulate(system, CARTS, x0, SPAN, push, **TIGHT)
    lin = hc.linearize(system, run, merge=1e-2, **TIGHT)
    assert len(lin.merged_events) == 1
    dx = sign * np.array([0.3, -0.4, 0.2, -0.1])
    errors, orders, sizes = [], set(), (1e-5, 1e-4, 1e-3, 1e-2)
    for h in sizes:

        def change(t, h=h):
            return sign * h * np.array([np.cos(5.0 * t)])

        moved = hc.simulate(
            system, CARTS, x0 + h * dx, SPAN, lambda t, x: push(t, x) + change(t), **TIGHT
        )
        orders.add(moved.events[0].guards)
        found = moved.final_state - run.final_state
        errors.append(np.abs(found - lin(h * dx, change)).max())
    assert_second_order(errors, sizes)
    assert len(orders) == (2 if sign > 0.0 else 1)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_laws_that_change_with_each_hit(count, sign):
    system, x0 = carts()
    policy = SwitchingByLaw(count)
    run = hc.simulate(system, CARTS, x0, SPAN, policy, **TIGHT)
    lin = hc.linearize(system, run, policy=policy, merge=1e-2, **TIGHT)
    dx, sizes = sign * np.array([0.3, -0.4, 0.2, -0.1]), (1e-5, 1e-4, 1e-3, 1e-2)
    errors = []
    for h in sizes:
        moved = hc.simulate(system, CARTS, x0 + h * dx, SPAN, policy, **TIGHT)
        errors.append(np.abs(moved.final_state - run.final_state - lin(h * dx)).max())
    assert_second_order(errors, sizes)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_feedback_closed_over_merged_events_is_that_of_a_simulation(sign):
    system, x0 = carts()
    run = hc.simulate(system, CARTS, x0, SPAN, push, **TIGHT)
    gain = np.array([[0.5, 0.3, 0.0, 0.0]])  # of positions, which do not jump
    lin = hc.linearize(system, run, merge=1e-2, **TIGHT).closed_loop([gain] * len(run.arcs))
    dx, sizes = sign * np.array([0.3, -0.4, 0.2, -0.1]), (1e-5, 1e-4, 1e-3, 1e-2)
    errors = []
    for h in sizes:

        def law(t, x):
            return push(t, x) - gain @ (x - run(t))

        moved = hc.simulate(system, CARTS, x0 + h * dx, SPAN, law, **TIGHT)
        errors.append(np.abs(moved.final_state - run.final_state - lin(h * dx)).max())
    assert_second_order(errors, sizes)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_parameters_change_the_order(sign):
    """The wall of the second cart moves, and with it the spring behind it."""
    system, x0 = carts()
    run = hc.simulate(system, CARTS, x0, SPAN, push, **TIGHT)
    derivatives = ParameterDerivatives(
        ("wall",),
        lambda key, t, x, u: np.array([[0.0], [0.0], [0.0], [5.0 * key[1]]]),
        lambda key, t, x, u: np.array([[-float(j)] for j in (0, 1) if not key[j]]),
        lambda key, fired, t, x, u: np.zeros((4, 1)),
    )
    found = parameter_sensitivity(system, run, derivatives, merge=1e-2, **TIGHT)
    errors, sizes = [], (1e-5, 1e-4, 1e-3, 1e-2)
    for h in sizes:
        moved = hc.simulate(pushed(wall=sign * h), CARTS, x0, SPAN, push, **TIGHT)
        errors.append(np.abs(moved.final_state - run.final_state - found([sign * h])).max())
    assert_second_order(errors, sizes)


def test_moments_are_those_of_the_merged_map():
    """A spread as large as the lags sees both orders."""
    case, _, run = simulate_close_guards(lag=1e-4)
    merged = hc.linearize(case.system, run, merge=1e-2, **TIGHT)
    p = 1e-8 * np.eye(4)
    moments = propagate_moments(merged, p, points=2**12)
    image = merged.follow(sample_normal_points(p, 2**12, seed=0)).state
    np.testing.assert_allclose(moments.mean, image.mean(axis=0), atol=3e-6)
    np.testing.assert_allclose(moments.covariance, np.cov(image.T), atol=3e-10)
    alone = propagate_moments(hc.linearize(case.system, run, **TIGHT), p)
    assert np.abs(moments.covariance - alone.covariance).max() > 6e-10
