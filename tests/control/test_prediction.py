"""The predicted cost of gains: closed forms, sampled flows, and its gradient by differences."""

import casadi as ca
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.control.gains import GainCurve, GainSchedule
from hybridctl.control.tuning.prediction import Prediction

P0 = np.array([[2e-2, 5e-3], [5e-3, 1e-2]])
Q, R = np.diag([3.0, 1.0]), np.array([[0.2]])


def driven(events):
    """A driven point (place, speed); it passes guards that see its input, each kicks it."""
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u", 1)
    field = [x[1], u[0] - 0.3 * x[1]]
    passed = list(range(events + 1))
    modes = [
        hc.symbolic.SymbolicMode(str(k), state=x, input=u, field=[field[0], field[1] + 0.5 * k])
        for k in passed
    ]
    transitions = [
        hc.symbolic.SymbolicTransition(
            str(k), "wall", guard=1.0 - x[0] - 0.1 * u[0] + k, target=str(k + 1),
            reset=[x[0] + 0.05 * u[0], 0.6 * x[1]],
        )
        for k in passed[:-1]
    ]  # fmt: skip
    system = hc.symbolic.hybrid_system(modes, transitions)
    run = hc.simulate(system, "0", [0.0, 1.0], (0.0, 1.2 + events), lambda t, x: [0.3 - 0.2 * x[1]])
    assert len(run.events) == events
    return hc.linearize(system, run)


def paired(weight=0.4):
    """A driven point (x, y, speeds) that meets two walls at once; each damps and kicks it."""
    x, u = ca.SX.sym("x", 4), ca.SX.sym("u", 2)

    def mode(name, a, b):
        return hc.symbolic.SymbolicMode(
            name, state=x, input=u, field=[x[2], x[3], u[0] - a + 0.2 * (x[1] - x[0]), u[1] - b]
        )

    x_wall, y_wall = 1.0 - x[0] - 0.05 * u[0], 1.0 - x[1] - 0.05 * u[1]
    hit_x, hit_y = [x[0], x[1], 0.5 * x[2], x[3]], [x[0], x[1], x[2], 0.5 * x[3]]
    modes = [mode("00", 0, 0), mode("10", weight, 0), mode("01", 0, 0.3), mode("11", weight, 0.3)]
    transition = hc.symbolic.SymbolicTransition
    system = hc.symbolic.hybrid_system(
        modes,
        [
            transition("00", "x", guard=x_wall, target="10", reset=hit_x),
            transition("00", "y", guard=y_wall, target="01", reset=hit_y),
            transition("10", "y", guard=y_wall, target="11", reset=hit_y),
            transition("01", "x", guard=x_wall, target="11", reset=hit_x),
        ],
    )
    return system


def paired_linearization():
    system = paired()
    run = hc.simulate(system, "00", [0.0, 0.0, 1.0, 1.0], (0.0, 1.6))
    assert [event.guards for event in run.events] == [("x", "y")]
    return hc.linearize(system, run)


def phantoms(gain):
    return {(0, frozenset("x")): gain, (0, frozenset("y")): 0.5 * gain}


def differences(cost, gains, keys):
    """Central differences of the cost by every entry of every gain."""
    found = {}
    for key in keys:
        found[key] = np.zeros_like(gains[key])
        for index in np.ndindex(gains[key].shape):
            h = 1e-4 * max(1.0, abs(gains[key][index]))
            ends = []
            for step in (h, -h):
                moved = {k: v.copy() for k, v in gains.items()}
                moved[key][index] += step
                ends.append(cost(moved))
            found[key][index] = (ends[0] - ends[1]) / (2.0 * h)
    return found


def schedule_of(gains):
    count = sum(isinstance(key, int) for key in gains)
    between = {key: gain for key, gain in gains.items() if not isinstance(key, int)}
    return GainSchedule.constant([gains[k] for k in range(count)], between)


def check_gradient(prediction, gains):
    predicted = prediction(schedule_of(gains))
    expected = differences(lambda g: prediction(schedule_of(g)).cost, gains, list(gains))
    size = max(np.abs(e).max() for e in expected.values())
    for key, gradient in expected.items():
        exact = predicted.arcs[key] if isinstance(key, int) else predicted.phantoms[key]
        # differences of h = 1e-4 err by h^2 = 1e-8 and by rounding / h of the size
        np.testing.assert_allclose(exact, gradient, atol=1e-7 * size)


def test_the_gradient_is_that_of_differences_through_isolated_events():
    lin, rng = driven(2), np.random.default_rng(0)
    prediction = Prediction(
        lin, [Q, 2 * Q, Q], R, P0, input_covariance=[[0.1]], final_weight=np.eye(2), intervals=12
    )
    gains = {k: rng.uniform(0.5, 2.0, (1, 2)) for k in range(3)}
    check_gradient(prediction, gains)


def test_the_gradient_is_that_of_differences_through_simultaneous_events():
    rng = np.random.default_rng(1)
    prediction = Prediction(
        paired_linearization(), np.eye(4), np.eye(2), np.diag([1.0, 2.0, 1.0, 0.5]),
        input_covariance=np.eye(2), intervals=8, points=64,
    )  # fmt: skip
    gains = {k: rng.uniform(0.5, 2.0, (2, 4)) for k in range(2)}
    gains |= phantoms(rng.uniform(0.2, 1.0, (2, 4)))
    check_gradient(prediction, gains)


def test_the_gradient_holds_where_the_loop_is_stiff():
    prediction = Prediction(driven(1), Q, R, P0, intervals=6)
    check_gradient(prediction, {0: np.array([[20.0, 300.0]]), 1: np.array([[5.0, 100.0]])})


def test_the_cost_is_that_of_a_fine_integration_and_converges_with_order_five():
    """The second moment by scipy's integrator, jumps by the closed-loop linearization."""
    lin = driven(1)
    gains = GainSchedule.constant([[[2.0, 1.0]], [[4.0, 3.0]]])
    closed = lin.closed_loop([curve.values[0] for curve in gains.arcs])
    total, p = 0.0, P0
    for k, arc in enumerate(lin.trajectory.arcs):
        gain = gains.arcs[k].values[0]

        def rate(t, y, arc=arc, gain=gain):
            c, p = lin.coefficients(arc, t), y[:4].reshape(2, 2)
            m = c.state - c.input @ gain
            change = m @ p + p @ m.T
            return np.append(change.ravel(), np.sum((Q + gain.T @ R @ gain) * p))

        y0 = np.append(p.ravel(), 0.0)
        y = solve_ivp(rate, (arc.start, arc.end), y0, rtol=1e-11, atol=1e-13).y[:, -1]
        total, p = total + y[4], y[:4].reshape(2, 2)
        if k == 0:
            g = closed.linear_jump(0).state
            p = g @ p @ g.T
    errors = [abs(Prediction(lin, Q, R, P0, intervals=n)(gains).cost - total) for n in (3, 6, 24)]
    assert errors[0] > 1e-8 * total  # above the errors of the integration
    assert np.log2(errors[0] / errors[1]) > 4.0
    assert errors[2] < 1e-7 * total


def test_points_have_the_given_covariance_and_do_not_matter_through_isolated_events():
    lin, gains = driven(1), GainSchedule.constant([[[2.0, 1.0]], [[4.0, 3.0]]])
    costs = [Prediction(lin, Q, R, P0, points=n, seed=s)(gains).cost for n, s in ((16, 0), (64, 5))]
    assert costs[0] == pytest.approx(costs[1], rel=1e-12)


def test_through_simultaneous_events_it_is_the_mean_over_runs_of_the_linearization():
    """Each point alone, through the piecewise-linear map of the closed loop."""
    lin, gain = paired_linearization(), np.array([[1.0, 0.2, 0.5, 0.0], [0.0, 2.0, 0.1, 1.0]])
    p0, between = np.diag([1.0, 2.0, 1.0, 0.5]), phantoms(gain)
    prediction = Prediction(
        lin,
        np.zeros((4, 4)),
        np.zeros((2, 2)),
        p0,
        final_weight=np.eye(4),
        intervals=48,
        points=64,
    )
    predicted = prediction(GainSchedule.constant([gain, 2 * gain], between)).cost
    names = lin.trajectory.events[0].guards
    closed = lin.closed_loop(
        [gain, 2 * gain], lambda k, fired: between[k, frozenset(names[j] for j in fired)]
    )
    ends = closed.derivative(prediction._points[:4].T)
    assert predicted == pytest.approx(np.mean(np.sum(ends**2, axis=1)), rel=1e-7)
    linear = closed.jumps[0].matrix((0, 1)) @ closed.arcs[0].end
    other = (closed.arcs[1].end @ linear @ prediction._points[:4]).T
    assert abs(np.mean(np.sum(other**2, axis=1)) / predicted - 1.0) > 5e-3


def test_curves_that_are_constant_cost_what_constants_do():
    lin = driven(1)
    curve = GainCurve(np.array([0.0, 5.0]), np.array([[[2.0, 1.0]]] * 2))
    prediction = Prediction(lin, Q, R, P0)
    constant = GainSchedule.constant([[[2.0, 1.0]]] * 2)
    assert prediction(GainSchedule((curve, curve))).cost == pytest.approx(
        prediction(constant).cost, rel=1e-13
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state_weight": [Q]}, "one matrix per arc"),
        ({"state_weight": -Q}, "state_weight must be positive semidefinite"),
        ({"covariance": [[1.0, 1.0], [0.0, 1.0]]}, "covariance must be symmetric"),
        ({"input_weight": np.eye(2)}, "input_weight must have shape"),
        ({"points": 20}, "points must be a power of two"),
        ({"points": 4}, "points must be 12 or more"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    arguments = {"state_weight": Q, "input_weight": R, "covariance": P0} | change
    with pytest.raises(InputError, match=message):
        Prediction(driven(1), **arguments)


def test_gains_that_do_not_fit_are_named():
    prediction = Prediction(driven(1), Q, R, P0)
    with pytest.raises(InputError, match="one curve per arc"):
        prediction(GainSchedule.constant([[[1.0, 1.0]]]))
    with pytest.raises(InputError, match=r"gains of arc 1 must be \(1, 2\)"):
        prediction(GainSchedule.constant([[[1.0, 1.0]], [[1.0]]]))
