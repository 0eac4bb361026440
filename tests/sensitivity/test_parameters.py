"""Sensitivity to parameters: states that stay as they are, by the same jump rule."""

import casadi as ca
import numpy as np
import pytest
from differences import central
from hybridctl.robots.bodies import free_body

import hybridctl as hc
from hybridctl.base.errors import InputError, SystemDefinitionError, UnknownNameError
from hybridctl.mechanics import Contact, Plane, Robot, contact_system
from hybridctl.sensitivity.parameter_models import ParameterDerivatives, fix_inputs_as_parameters
from hybridctl.sensitivity.parameters import augment_with_parameters, parameter_sensitivity

RUN = {"rtol": 1e-11, "atol": 1e-11}
E, G = 0.7, 9.81
START = [1.0, 0.2]


def ball_of_states():
    """Height, speed, and as states the restitution and the weight per mass."""
    x = ca.SX.sym("x", 4)
    y, v, e, g = ca.vertsplit(x)
    air = hc.symbolic.SymbolicMode("air", state=x, field=[v, -g, 0.0, 0.0])
    bounce = hc.symbolic.SymbolicTransition("air", "floor", y, "air", [y, -e * v, e, g])
    return hc.symbolic.hybrid_system([air], [bounce])


def ball(restitution=E, weight=G, floor=0.0):
    """The same with these as parameters, a push up as input, and the height of the floor."""
    y, v, u, e, g, h = (ca.SX.sym(name) for name in ("y", "v", "u", "e", "g", "h"))
    air = hc.symbolic.SymbolicMode("air", state=[y, v], field=[v, u - g], input=u)
    bounce = hc.symbolic.SymbolicTransition("air", "floor", y - h, "air", [y, -e * v])
    parameters = {"restitution": (e, restitution), "weight": (g, weight), "floor": (h, floor)}
    return hc.symbolic.parametric_system([air], [bounce], parameters)


def push(t, x):
    return np.array([0.5 * np.sin(3.0 * t) - 0.2 * x[1]])


def run_of(system, end=2.0, start=START, policy=push):
    return hc.simulate(system, "air", start, (0.0, end), policy, **RUN)


def test_the_apex_after_a_bounce_depends_on_restitution_as_its_square():
    """From 1 m the next apex is at e^2; its derivatives are 2 e by e, and 0 by g."""
    system, derivatives = ball()
    apex = np.sqrt(2.0 / G) * (1.0 + E)
    run = run_of(system, apex, [1.0, 0.0], None)
    sensitivity = parameter_sensitivity(system, run, derivatives, **RUN)
    assert run.final_state[0] == pytest.approx(E**2, abs=1e-9)
    # the time is fixed, but the height does not change in time at the apex; with a higher floor
    # the ball falls less far, by 1 - h, and rises above the floor by e^2 of it
    np.testing.assert_allclose(sensitivity.matrix[0], [2.0 * E, 0.0, 1.0 - E**2], atol=1e-8)


def test_parameters_are_states_that_stay():
    """The same numbers as with states of the system itself."""
    system, derivatives = ball()
    run = run_of(system, policy=None)
    beside = ball_of_states()
    long = hc.simulate(beside, "air", [*START, E, G], (0.0, 2.0), **RUN)
    assert len(run.events) == len(long.events) >= 3
    expected = hc.linearize(beside, long, **RUN).state_transition
    own = parameter_sensitivity(system, run, derivatives, **RUN)
    np.testing.assert_allclose(own.matrix[:, :2], expected[:2, 2:], atol=1e-8)
    transition = own.linearization.state_transition
    np.testing.assert_allclose(transition[:2, :2], expected[:2, :2], atol=1e-8)
    np.testing.assert_allclose(transition[2:], np.eye(5)[2:], atol=1e-12)


def test_parameters_start_and_input_together_under_feedback():
    """Central differences of systems that are made anew, over the bounces of two seconds."""
    system, derivatives = ball()
    run = run_of(system)
    assert len(run.events) >= 3
    loop = parameter_sensitivity(system, run, derivatives, **RUN)
    loop = loop.closed_loop([np.array([[0.0, 0.2]])] * len(run.arcs))
    dp, dx, du = 0.1 * np.array([0.03, -0.5, 0.02]), np.array([0.01, -0.02]), 0.03

    def end(h):
        changed, _ = ball(E + h * dp[0], G + h * dp[1], h * dp[2])
        start = START + h * dx
        return run_of(changed, 2.0, start, lambda t, x: push(t, x) + h * du).final_state

    expected = loop(dp, dx, lambda t: np.array([du]))
    errors = []
    for h in (1e-1, 1e-2, 1e-3):
        errors.append(np.abs((end(h) - end(-h)) / (2.0 * h) - expected).max())
    # h^2, then 1e-11 / h of the flow; relative to a change of order 0.1
    assert errors[1] < 0.02 * errors[0] + 1e-8
    assert min(errors) < 1e-7
    by_name = {"weight": dp[1], "restitution": dp[0], "floor": dp[2]}
    np.testing.assert_array_equal(loop(by_name, dx, lambda t: np.array([du])), expected)


def test_feedback_of_zero_is_none():
    system, derivatives = ball()
    run = run_of(system)
    own = parameter_sensitivity(system, run, derivatives, **RUN)
    none = [lambda t: np.zeros((1, 2))] * len(run.arcs)
    loop = own.closed_loop(none, lambda k, fired: np.zeros((1, 2)))
    np.testing.assert_allclose(loop.matrix, own.matrix, atol=1e-9)


def test_rows_are_directions_one_by_one():
    system, derivatives = ball()
    sensitivity = parameter_sensitivity(system, run_of(system), derivatives, **RUN)
    rng = np.random.default_rng(0)
    dp, dx = 1e-3 * rng.normal(size=(4, 3)), 1e-3 * rng.normal(size=(4, 2))
    both = sensitivity(dp, dx)
    for row, p, x in zip(both, dp, dx, strict=True):
        np.testing.assert_allclose(row, sensitivity(p, x), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(sensitivity(dp), dp @ sensitivity.matrix.T, atol=1e-12)
    np.testing.assert_allclose(sensitivity(dp[0], dx)[1], sensitivity(dp[0], dx[1]), atol=1e-12)


def test_moments_are_those_of_state_and_parameters_together():
    system, derivatives = ball()
    sensitivity = parameter_sensitivity(system, run_of(system), derivatives, **RUN)
    uncertain = np.diag([0.0, 0.0, 0.01, 0.04, 0.0])
    moments = hc.sensitivity.propagate_moments(sensitivity.linearization, uncertain)
    m = sensitivity.matrix
    np.testing.assert_allclose(moments.covariance[:2, :2], m @ uncertain[2:, 2:] @ m.T)
    np.testing.assert_allclose(moments.covariance[2:, :2], uncertain[2:, 2:] @ m.T, atol=1e-12)


def test_simultaneous_guards_of_parameters():
    """A point in a corner whose walls move with p: the order is that in which they are met."""
    x, p, q = ca.SX.sym("x", 2), ca.SX.sym("p"), ca.SX.sym("q")
    free = hc.symbolic.SymbolicMode("free", state=x, field=[1.0, 1.0])
    right = hc.symbolic.SymbolicMode("right", state=x, field=[0.0, 1.0])
    top = hc.symbolic.SymbolicMode("top", state=x, field=[1.0, 0.0])
    corner = hc.symbolic.SymbolicMode("corner", state=x, field=[0.0, 0.0])
    wall, ceiling = 1.0 + p - x[0], 1.0 + q - x[1]
    system, derivatives = hc.symbolic.parametric_system(
        [free, right, top, corner],
        [
            hc.symbolic.SymbolicTransition("free", "wall", wall, "right"),
            hc.symbolic.SymbolicTransition("free", "ceiling", ceiling, "top"),
            hc.symbolic.SymbolicTransition("right", "ceiling", ceiling, "corner"),
            hc.symbolic.SymbolicTransition("top", "wall", wall, "corner"),
        ],
        {"wall": (p, 0.0), "ceiling": (q, 0.0)},
    )
    run = hc.simulate(system, "free", [0.0, 0.0], (0.0, 2.0), **RUN)
    assert len(run.events[0].guards) == 2
    sensitivity = parameter_sensitivity(system, run, derivatives, **RUN)
    for change in ([0.3, -0.1], [-0.2, 0.5], [0.0, 0.0]):
        np.testing.assert_allclose(sensitivity(change, [0.7, -0.4]), change, atol=1e-9)
    np.testing.assert_allclose(sensitivity.matrix, np.eye(2), atol=1e-9)


def test_feedback_in_phantom_modes_is_that_of_the_system_alone():
    """Two balls that hit at once, thrown back by the input, with a gain of their own between.

    With and without parameters, perturbations of the start do the same."""
    x, u, p = ca.SX.sym("x", 4), ca.SX.sym("u"), ca.SX.sym("p")
    air = hc.symbolic.SymbolicMode("air", x, [x[2], x[3], -1.0 - p, -1.0], u)
    thrown = lambda v: -0.5 * v + 0.3 * u  # noqa: E731
    one = hc.symbolic.SymbolicTransition(
        "air", "one", x[0], "air", [x[0], x[1], thrown(x[2]), x[3]]
    )
    two = hc.symbolic.SymbolicTransition(
        "air", "two", x[1], "air", [x[0], x[1], x[2], thrown(x[3])]
    )
    system, by = hc.symbolic.parametric_system([air], [one, two], {"weight": (p, 0.0)})
    run = hc.simulate(system, "air", [1.0, 1.0, 0.0, 0.0], (0.0, 2.0), lambda t, x: [1.0], **RUN)
    gain = np.array([[0.3, -0.5, 0.2, 0.4]])
    gains, phantom = [gain] * len(run.arcs), lambda k, fired: 5.0 * gain
    alone = hc.linearize(system, run, **RUN)
    beside = parameter_sensitivity(system, run, by, **RUN).closed_loop(gains, phantom)
    for dx in np.random.default_rng(0).normal(size=(4, 4)):
        found = beside.derivative([0.0], dx)
        wanted = alone.closed_loop(gains, phantom).derivative(dx)
        np.testing.assert_allclose(found, wanted, atol=1e-9)
        assert np.abs(found - alone.closed_loop(gains).derivative(dx)).max() > 1e-3


def test_states_on_a_manifold_beside_parameters():
    """Rates and derivatives of differences, for a free body's pose, by differences."""
    robot = Robot.from_urdf(free_body("block", 1.0, (0.1, 0.2, 0.3)), root="floating")
    system, key = (
        contact_system(robot, [Contact("c", "block", Plane((0, 0, 0), (0, 0, 1)))]),
        ("open",),
    )
    nothing = lambda *at: np.zeros((12, 2))  # noqa: E731
    by = ParameterDerivatives(("a", "b"), nothing, lambda *at: np.zeros((1, 2)), nothing)
    fall = np.concatenate([[0.0, 0.0, 1.0], np.eye(4)[3], np.zeros(6)])
    run = hc.simulate(system, key, fall, (0.0, 1e-3))
    space, rng = augment_with_parameters(system, run, by)[1].arcs[0].space, np.random.default_rng(0)
    start = np.append(fall, [2.0, 3.0])
    x0, x1 = (space.integrate(start, rng.normal(size=14)) for _ in range(2))
    dx = rng.normal(size=14)
    rate = central(lambda h: space.integrate(x0, h[0] * dx), 1, 1e-6)[:, 0]
    np.testing.assert_allclose(space.rate(x0, dx), rate, atol=1e-8)
    first, second = space.difference_jacobians(x0, x1)
    moved = [
        central(lambda d: space.difference(space.integrate(x0, d), x1), 14, 1e-6),
        central(lambda d: space.difference(x0, space.integrate(x1, d)), 14, 1e-6),
    ]
    np.testing.assert_allclose(first, moved[0], atol=1e-7)
    np.testing.assert_allclose(second, moved[1], atol=1e-7)


def test_the_view_flows_as_the_system_does():
    system, derivatives = ball()
    run = run_of(system, policy=None)
    view, beside = augment_with_parameters(system, run, derivatives)
    again = hc.simulate(view, "air", [*START, 0.0, 0.0, 0.0], (0.0, 2.0), **RUN)
    np.testing.assert_allclose(again.final_state, beside.final_state, atol=1e-12)
    # the same 8 coefficients, summed in an order that depends on how many columns there are
    rounding = 8 * np.finfo(np.float64).eps * np.abs(run.arcs[-1].states[-1]).sum(axis=0)
    assert (np.abs(beside.final_state[:2] - run.final_state) <= rounding).all()
    for ours, own in zip(beside.events, run.events, strict=True):
        np.testing.assert_array_equal(ours.state_after[:2], own.state_after)
        assert not ours.state_after.flags.writeable


def test_what_does_not_fit():
    system, derivatives = ball()
    run = run_of(system)
    sensitivity = parameter_sensitivity(system, run, derivatives)
    with pytest.raises(UnknownNameError, match="did you mean 'weight'"):
        sensitivity({"wieght": 1.0})
    with pytest.raises(InputError, match=r"dp must have shape \(3,\)"):
        sensitivity([1.0, 2.0])
    with pytest.raises(InputError, match="dx0 must have shape"):
        sensitivity([1.0, 2.0, 3.0], [1.0])
    with pytest.raises(InputError, match="as many rows"):
        sensitivity(np.zeros((2, 3)), np.zeros((4, 2)))
    with pytest.raises(InputError, match="at least 5 inputs"):
        fix_inputs_as_parameters(system, dict.fromkeys("abcde", 0.0))[0].mode("air")
    with pytest.raises(InputError, match="one or more"):
        fix_inputs_as_parameters(system, {})
    wrong = ParameterDerivatives(
        ("a",), lambda *at: np.zeros(2), derivatives.guards, derivatives.reset
    )
    with pytest.raises(SystemDefinitionError, match=r"must have shape \(2, 1\)"):
        _ = parameter_sensitivity(system, run_of(system, 0.1), wrong).matrix


def test_a_symbol_that_is_no_parameter_is_named():
    y, v, e = ca.SX.sym("y"), ca.SX.sym("v"), ca.SX.sym("e")
    air = hc.symbolic.SymbolicMode("air", state=[y, v], field=[v, -e * y])
    with pytest.raises(SystemDefinitionError, match="depends on e"):
        hc.symbolic.parametric_system([air], [], {"g": (ca.SX.sym("g"), 1.0)})
