"""What a run is made of, and what comes of it, can be sent to another process and back."""

import pickle

import casadi as ca
import numpy as np
import pytest

import hybridctl as hc
from hybridctl.estimation.measurement import coordinates, linear
from hybridctl.hybrid.laws import HeldInput
from hybridctl.hybrid.model import JumpPoint
from hybridctl.hybrid.policy import DisturbedPolicy

TIMES = (0.0, 0.8)
START = [1.0, 0.0]
Q, R = np.eye(2), 0.1 * np.eye(1)


def ball():
    """A ball with an input and outputs, bouncing."""
    x, u, t = ca.SX.sym("x", 2), ca.SX.sym("u"), ca.SX.sym("t")
    air = hc.symbolic.SymbolicMode(
        "air", x, [x[1], u - 9.81 + 0.1 * ca.sin(t)], u, t, {"energy": 9.81 * x[0] + x[1] ** 2 / 2}
    )
    bounce = hc.symbolic.SymbolicTransition("air", "floor", x[0], "air", [x[0], -0.8 * x[1]])
    roof = hc.symbolic.SymbolicTransition("air", "roof", 3.0 - x[0], "air")
    both = hc.symbolic.Joint("air", ["floor", "roof"], "air")
    return hc.symbolic.hybrid_system([air], [bounce, roof, both])


def parametric_ball():
    x, e = ca.SX.sym("x", 2), ca.SX.sym("e")
    air = hc.symbolic.SymbolicMode("air", x, [x[1], -9.81])
    bounce = hc.symbolic.SymbolicTransition("air", "floor", x[0], "air", [x[0], -e * x[1]])
    return hc.symbolic.parametric_system([air], [bounce], {"restitution": (e, 0.8)})


def fall(t, x, u):
    return np.array([x[1], -9.81])


def height(t, x, u):
    return x[0]


def bounce(t, x, u):
    return np.array([x[0], -0.8 * x[1]])


def listed_ball():
    return hc.HybridSystem(
        [hc.Mode("air", hc.VectorSpace(2), fall)],
        [hc.Transition("air", hc.Guard("floor", height), hc.Reset(bounce), "air")],
    )


def run(system):
    return hc.simulate(system, "air", START, TIMES)


def through(value):
    return pickle.loads(pickle.dumps(value))


def assert_same_run(one, other):
    assert [arc.mode for arc in one.arcs] == [arc.mode for arc in other.arcs]
    assert [e.guards for e in one.events] == [e.guards for e in other.events]
    for a, b in zip(one.arcs, other.arcs, strict=True):
        np.testing.assert_array_equal(a.states, b.states)
        np.testing.assert_array_equal(a.inputs, b.inputs)


@pytest.fixture(scope="module")
def system():
    return ball()


@pytest.fixture(scope="module")
def nominal(system):
    return run(system)


@pytest.fixture(scope="module")
def linearized(system, nominal):
    return hc.linearize(system, nominal)


@pytest.fixture(scope="module")
def reference(system, nominal):
    return hc.extend(system, nominal, before=0.1, after=0.1)


@pytest.fixture(scope="module")
def lqr(linearized):
    return hc.hybrid_lqr(linearized, Q, R, Q)


def test_systems_simulate_alike_in_fresh_processes(processes, system, nominal):
    futures = [processes.submit(hc.simulate, system, "air", START, TIMES) for _ in range(2)]
    for future in futures:
        assert_same_run(future.result(), nominal)


def test_errors_of_a_run_come_back_from_other_processes(processes, system):
    future = processes.submit(hc.simulate, system, "air", START, (0.0, 5.0), max_events=1)
    with pytest.raises(hc.errors.EventLimitError, match="max_events = 1"):
        future.result()


@pytest.mark.parametrize("make", [ball, listed_ball, lambda: parametric_ball()[0]])
@pytest.mark.parametrize("used", [False, True])
def test_a_system_is_the_same_in_its_copy(make, used):
    system = make()
    if used:
        run(system)
    assert_same_run(run(through(system)), run(system))


def test_outputs_and_derivatives_are_the_same_in_the_copy(system):
    copy, at = through(system), (0.3, np.array([1.0, 2.0]), np.array([3.0]))
    mode, again = system.mode("air"), copy.mode("air")
    np.testing.assert_array_equal(again.outputs(*at)["energy"], mode.outputs(*at)["energy"])
    for function in ("jacobian", "outgoing"):
        pair = [
            s.mode("air").jacobian(*at)[:2]
            if function == "jacobian"
            else s.outgoing("air").guards.jacobian(*at)
            for s in (system, copy)
        ]
        for one, other in zip(*pair, strict=True):
            np.testing.assert_array_equal(one, other)
    resets = [s.outgoing("air").edge(("roof", "floor")).reset for s in (system, copy)]
    for one, other in zip(*(reset.calc_diff(JumpPoint(*at)) for reset in resets), strict=True):
        np.testing.assert_array_equal(one, other)


def test_derivatives_by_parameters_survive(nominal):
    system, derivatives = parametric_ball()
    sensitivity = hc.sensitivity.parameter_sensitivity(system, run(system), derivatives)
    change = {"restitution": 0.01}
    np.testing.assert_array_equal(through(sensitivity)(change), sensitivity(change))


def test_a_linearization_survives(linearized):
    dx = [0.01, 0.0]
    np.testing.assert_array_equal(through(linearized)(dx), linearized(dx))
    used = through(linearized)  # with what it has cached
    np.testing.assert_array_equal(used.state_transition, linearized.state_transition)


def test_a_closed_loop_survives(linearized):
    closed = linearized.closed_loop([np.array([[1.0, 0.5]])] * 2)
    np.testing.assert_array_equal(through(closed).state_transition, closed.state_transition)


def soft_feet():
    """Two feet that land at once, each on ground that pushes back."""
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u")
    fields = {
        "air": [-1.0 + u, -1.0],
        "left": [-0.5 + u, -0.7 - x[0]],
        "right": [-0.6, -0.5 + u],
        "both": [-0.3 + u, -0.2 + x[1]],
    }
    modes = [hc.symbolic.SymbolicMode(name, x, field, u) for name, field in fields.items()]
    left, right = ("left lands", x[0]), ("right lands", x[1])
    transitions = [
        hc.symbolic.SymbolicTransition("air", *left, "left"),
        hc.symbolic.SymbolicTransition("air", *right, "right"),
        hc.symbolic.SymbolicTransition("left", *right, "both"),
        hc.symbolic.SymbolicTransition("right", *left, "both"),
    ]
    return hc.symbolic.hybrid_system(modes, transitions)


def spring(t, x):
    return 0.1 * x[:1]


def spring_by_state(t, x):
    return np.array([[0.1, 0.0]])


def no_rate(t, x):
    return np.zeros(1)


def phantom_gain(k, fired):
    return [[0.2 * len(fired), 0.1]]


def test_linearizations_through_simultaneous_guards_survive():
    system, start, span = soft_feet(), [0.5, 0.5], (0.0, 0.8)
    law = hc.hybrid.DifferentiableLaw(spring, spring_by_state, no_rate)
    run = hc.simulate(system, "air", start, span)
    lin = hc.linearize(system, run)
    assert len(run.events[0].guards) == 2
    held = hc.linearize(system, run, policy=HeldInput(np.zeros(1)))
    closed = lin.closed_loop([[[1.0, 0.5]]] * 2, phantom_gain)
    pushed = hc.simulate(system, "air", start, span, law)
    fed_back = hc.linearize(system, pushed, policy=law)
    directions = np.random.default_rng(0).normal(size=(6, 2))
    for made in (lin, held, closed, closed.closed_loop([[[0.1, 0.0]]] * 2), fed_back):
        np.testing.assert_array_equal(
            through(made).derivative(directions), made.derivative(directions)
        )
        np.testing.assert_array_equal(
            through(made).derivative(directions), made.derivative(directions)
        )  # what it kept


DIFFERENTIABLE = {
    "spreading": lambda ref, gains: hc.ReferenceSpreading(ref, gains, limits=[50.0]),
    "clock": lambda ref, gains: hc.control.ClockTracking(ref, gains),
    "disturbed": lambda ref, gains: DisturbedPolicy(
        hc.ReferenceSpreading(ref, gains), hc.hybrid.DifferentiableLaw(push, no_slope, push_rate)
    ),
}


@pytest.mark.parametrize("kind", DIFFERENTIABLE)
def test_a_linearization_with_its_policy_survives(kind, system, reference, lqr):
    policy = DIFFERENTIABLE[kind](reference, lqr.gains)
    run = hc.simulate(system, "air", [1.02, 0.0], TIMES, policy)
    lin = hc.linearize(system, run, policy=policy)
    again = through(lin)
    np.testing.assert_array_equal(again.state_transition, lin.state_transition)
    more = [np.array([[1.0, 0.5]])] * len(run.arcs)
    closed = lin.closed_loop(more)
    np.testing.assert_array_equal(through(closed).state_transition, closed.state_transition)


def test_what_lqr_returns_survives(lqr):
    again = through(lqr)
    assert again.cost([0.05, 0.0]) == lqr.cost([0.05, 0.0])
    np.testing.assert_array_equal(again.gains.arcs[0](0.1), lqr.gains.arcs[0](0.1))


POLICIES = {
    "spreading": lambda ref, gains: hc.ReferenceSpreading(ref, gains, limits=[50.0]),
    "late": lambda ref, gains: hc.control.DetectedPolicy(
        hc.ReferenceSpreading(ref, gains), hc.control.Detection(0.001)
    ),
    "clock": lambda ref, gains: hc.control.ClockTracking(ref, gains),
    "nearest": lambda ref, gains: hc.control.NearestTracking(ref, gains, window=0.05),
    "disturbed": lambda ref, gains: DisturbedPolicy(hc.ReferenceSpreading(ref, gains), push),
}


def push(t, x):
    return np.array([0.1 * np.sin(t)])


def push_rate(t, x):
    return np.array([0.1 * np.cos(t)])


def no_slope(t, x):
    return np.zeros((1, 2))


@pytest.mark.parametrize("kind", POLICIES)
def test_a_policy_acts_alike_in_its_copy(kind, system, reference, lqr):
    policy = POLICIES[kind](reference, lqr.gains)
    start = [1.02, 0.0]
    found = [
        hc.simulate(system, "air", start, TIMES, p, rtol=1e-6, atol=1e-6)
        for p in (policy, through(policy))
    ]
    assert_same_run(*found)


def test_references_and_their_extensions_survive(linearized, reference):
    extension = hc.control.extend_by_rule(linearized, 1e-4 * np.eye(2), rule="extrapolate")
    for made in (reference, extension.reference):
        again = through(made)
        for one, other in zip(again.arcs, made.arcs, strict=True):
            np.testing.assert_array_equal(one.states, other.states)


FILTERS = {
    "salted": hc.SaltedKalmanFilter,
    "unscented": hc.UnscentedFilter,
    "particle": lambda *args: hc.ParticleFilter(*args, particles=20, seed=1),
}


@pytest.mark.parametrize("kind", FILTERS)
@pytest.mark.parametrize(
    "measurement",
    [
        coordinates("height", [0], 1e-4 * np.eye(1)),
        linear("height", [[1.0, 0.0]], 1e-4 * np.eye(1)),
    ],
    ids=["coordinates", "linear"],
)
def test_a_filter_estimates_alike_in_its_copy(kind, measurement, system, nominal):
    times = np.linspace(0.05, 0.6, 12)
    seen = hc.estimation.Record({"height": hc.Series(times, [nominal(t)[0] for t in times])})
    start = hc.estimation.Estimate("air", 0.0, np.array([1.01, 0.0]), 0.01 * np.eye(2))
    filters = FILTERS[kind](system, 1e-6 * np.eye(2), measurement)
    found = [f.run(seen, start) for f in (through(filters), filters)]
    np.testing.assert_array_equal(*(result.means for result in found))
    np.testing.assert_array_equal(through(found[0]).means, found[0].means)


def test_a_cost_survives():
    cost = hc.control.QuadraticCost(hc.VectorSpace(2), [0.0, 0.0], input=R, final=Q)
    x, u = np.array([1.0, 2.0]), np.array([3.0])
    assert through(cost).running(0.0, x, u).value == cost.running(0.0, x, u).value


def test_an_error_with_a_trajectory_survives(system):
    with pytest.raises(hc.errors.EventLimitError) as caught:
        hc.simulate(system, "air", START, (0.0, 5.0), max_events=1)
    again = through(caught.value)
    assert_same_run(again.trajectory, caught.value.trajectory)
