"""Iterative LQR through events: exact gradients, minima of the simulated cost, other sequences."""

from dataclasses import replace

import casadi as ca
import numpy as np
import pytest
from hybridctl.experiments.optimal.ilqr import reset_only
from hybridctl.robots import block, cube

import hybridctl as hc
from hybridctl.base.errors import (
    ConstraintViolatedError,
    EscapingError,
    GuardViolatedError,
    InputError,
    ZenoError,
)
from hybridctl.base.spaces import compute_difference_jacobians
from hybridctl.control.ilqr.backward import (
    compute_cost,
    compute_interval_map,
    compute_trapezoid_weights,
    estimate_curvature,
    expand_motion,
    sweep_backwards,
)
from hybridctl.control.ilqr.cost import QuadraticCost
from hybridctl.control.ilqr.rollout import ShootingProblem, simulate_closed_loop, simulate_open_loop
from hybridctl.control.ilqr.search import ilqr
from hybridctl.sensitivity.linearization import linearize

G, E = 9.8, 0.75
X0 = np.array([4.0, 0.0])


def ball(drag=0.0):
    """A ball with a force on a floor, with quadratic drag (1/m)."""
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u")
    air = hc.symbolic.SymbolicMode(
        "air", state=x, field=[x[1], u - G - drag * x[1] * ca.fabs(x[1])], input=u
    )
    bounce = hc.symbolic.SymbolicTransition(
        "air", "floor", guard=x[0], target="air", reset=[x[0], -E * x[1]]
    )
    return hc.symbolic.hybrid_system([air], [bounce])


def cost_of(target, weight=40.0, **options):
    return QuadraticCost(
        hc.VectorSpace(2), [target, 0.0], input=[[0.25]], final=weight * np.eye(2), **options
    )


def plant_of(system, n=10, end=1.0):
    return ShootingProblem(system, "air", X0, np.linspace(0.0, end, n + 1), 1e-11, 1e-11)


def search(system, force, target, n=20, **options):
    times = np.linspace(0.0, 1.0, n + 1)
    guess = np.full((n + 1, 1), force)
    return ilqr(system, "air", X0, times, guess, cost_of(target), **options)


def hover_cost(target, n):
    """The minimum without a bounce, in closed form: least squares in the inputs.

    x_N is linear in the inputs, which are linear between grid times.
    """
    h, times = 1.0 / n, np.linspace(0.0, 1.0, n + 1)
    hats = np.zeros((2, n + 1))  # integrals of (1 - t) phi_k and of phi_k, by Simpson: exact
    for k in range(n):
        left, right, middle = times[k], times[k + 1], times[k] + 0.5 * h
        for node, (a, b) in ((k, (1.0, 0.0)), (k + 1, (0.0, 1.0))):
            hats[1, node] += 0.5 * h
            hats[0, node] += h / 6.0 * (a * (1 - left) + 4.0 * 0.5 * (1 - middle) + b * (1 - right))
    weights = 0.25 * compute_trapezoid_weights(times)
    miss = np.array([4.0 - 0.5 * G - target, -G])
    hessian = np.diag(weights) + 40.0 * hats.T @ hats
    u = np.linalg.solve(hessian, -40.0 * hats.T @ miss)
    d = miss + hats @ u
    return float(0.5 * weights @ u**2 + 20.0 * d @ d), u


def test_the_map_of_an_interval_is_that_of_the_linearization():
    """Against the integrated variational flow, whose tolerance is 1e-11; through a bounce."""
    system = ball(drag=0.1)
    lin = linearize(
        system,
        hc.simulate(system, "air", X0, (0.0, 1.2), lambda t, x: np.array([2.0 - t])),
        rtol=1e-11,
        atol=1e-11,
    )
    assert len(lin.trajectory.events) == 1
    m = compute_interval_map(lin)
    np.testing.assert_allclose(m.state, lin.state_transition, rtol=0, atol=1e-9)
    for column, change in (
        (m.start_input, lambda t: 1 - t / 1.2),
        (m.end_input, lambda t: t / 1.2),
    ):
        expected = lin([0.0, 0.0], lambda t, f=change: np.array([f(t)]))
        np.testing.assert_allclose(column[:, 0], expected, rtol=0, atol=1e-9)


def test_the_gradient_is_that_of_the_simulated_cost():
    """Through a bounce and with drag: a V of errors over the step, with its bottom below 1e-8."""
    plant, cost = plant_of(ball(drag=0.1)), cost_of(1.0, state=np.diag([1.0, 0.0]))
    rng = np.random.default_rng(1)
    u, du = rng.normal(size=(11, 1)), rng.normal(size=(11, 1))
    now = expand_motion(plant, simulate_open_loop(plant, u), cost, linearize)
    assert len(now.rollout.events) == 1
    slope = float((now.gradient() * du).sum())
    wrong = expand_motion(plant, now.rollout, cost, reset_only)
    errors = []
    for h in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5):
        up, down = (
            compute_cost(plant, simulate_open_loop(plant, u + s * h * du), cost) for s in (1, -1)
        )
        errors.append(abs((up - down) / (2.0 * h) - slope) / abs(slope))
    assert errors[1] / errors[2] == pytest.approx(100.0, rel=0.1)
    assert min(errors) < 1e-8
    assert abs(float((wrong.gradient() * du).sum()) - slope) > 0.1 * abs(slope)


def test_the_gradient_is_exact_through_landing_sliding_and_sticking():
    """The block: the gradient is that of the simulated cost, to h^2 and 1e-9 of simulation / h."""
    system, modes = block.system(actuated=True), ("open", "open")
    start, times = np.array([0.0, 0.12, 0.2, 0.5, 0.0, 0.0]), np.linspace(0.0, 0.4, 5)
    plant = ShootingProblem(system, modes, start, times, 1e-9, 1e-9)
    target = [0.4, 0.05, 0.0, 0.0, 0.0, 0.0]
    space = system.mode(modes).space
    cost = QuadraticCost(space, target, input=0.01 * np.eye(3), final=np.eye(6))
    rng = np.random.default_rng(4)
    u, du = rng.normal(size=(5, 3)) * [1.0, 1.0, 0.01], rng.normal(size=(5, 3)) * [1.0, 1.0, 0.01]
    now = expand_motion(plant, simulate_open_loop(plant, u), cost, linearize)
    guards = [event.guards[0] for event in now.rollout.events]
    assert guards[:2] == ["right closes", "left closes"]
    assert "sticks" in guards[2]
    h, slope = 1e-3, float((now.gradient() * du).sum())
    up, down = (
        compute_cost(plant, simulate_open_loop(plant, u + s * h * du), cost) for s in (1, -1)
    )
    assert (up - down) / (2.0 * h) == pytest.approx(slope, rel=1e-5)


def test_the_gains_are_those_of_the_sampled_problem():
    """One sweep solves the linear-quadratic problem of a flight without a bounce."""
    plant, cost = plant_of(ball(), n=20), cost_of(3.0)
    now = expand_motion(plant, simulate_open_loop(plant, np.full((21, 1), G)), cost, linearize)
    back = sweep_backwards(now, 0.0)
    best, u = hover_cost(3.0, 20)
    assert back.predict_decrease(1.0) == pytest.approx(now.cost - best, rel=1e-9)
    np.testing.assert_allclose(G + back.offsets[0], u[:1], atol=1e-7)
    found = simulate_closed_loop(plant, now.rollout, back.offsets, back.gains)
    np.testing.assert_allclose(found.inputs[:, 0], u, atol=1e-7)


@pytest.mark.parametrize("target", [3.0, 1.0])
def test_a_start_without_a_bounce_ends_at_the_closed_form(target):
    found = search(ball(), G, target)
    assert found.converged
    assert found.rollout.events == ()
    assert found.cost == pytest.approx(hover_cost(target, 20)[0], rel=1e-9)
    assert len(found.iterations) == 1


def test_a_start_with_a_bounce_ends_with_one():
    """For the near target that is worse than hovering, for the far one better."""
    for target, better in ((3.0, False), (1.0, True)):
        found = search(ball(), 0.0, target)
        assert found.converged, found.message
        assert len(found.rollout.events) == 1
        assert (found.cost < hover_cost(target, 20)[0]) == better
        costs = [entry.cost for entry in found.iterations] + [found.cost]
        assert (np.diff(costs) <= 0.0).all()


def test_what_is_found_is_a_minimum_of_the_simulated_cost():
    """No random change of the inputs lowers the cost, and it grows with its square."""
    plant, cost, system = plant_of(ball(), n=20), cost_of(3.0), ball()
    found = search(system, 0.0, 3.0, tolerance=1e-9, rtol=1e-11, atol=1e-11)
    rng = np.random.default_rng(2)
    for _ in range(10):
        du = rng.normal(size=found.inputs.shape)
        rise = [
            compute_cost(plant, simulate_open_loop(plant, found.inputs + h * du), cost) - found.cost
            for h in (1e-3, 2e-3)
        ]
        assert rise[0] > 0.0
        # The gradient left is 1e-9, so the square leads; its cube is h times as large.
        assert rise[1] / rise[0] == pytest.approx(4.0, rel=2e-2)


def test_bounces_are_lost_on_the_way():
    found = search(ball(), -100.0, 3.0, curvature=False)
    assert found.converged, found.message
    counts = [len(entry.events) for entry in found.iterations]
    assert counts[0] == 3
    assert len(found.rollout.events) < 3


def test_curvature_at_events_makes_convergence_superlinear():
    """Without it the slope falls by a constant factor, and more than twice the sweeps are spent."""
    fast = search(ball(), 0.0, 1.0, tolerance=1e-8)
    assert fast.converged
    slopes = [entry.slope for entry in fast.iterations[-2:]] + [fast.slope]
    assert slopes[2] < 0.3 * slopes[1]
    limit = 2 * len(fast.iterations)
    plain = search(ball(), 0.0, 1.0, tolerance=1e-8, curvature=False, max_iterations=limit)
    assert plain.message == "the iterations are used up"
    assert len(plain.iterations) == limit
    assert plain.slope > 100.0 * fast.slope


def test_the_jacobian_of_the_reset_is_not_enough():
    """Its gradient flees from the bounce that pays off."""
    right, wrong = (search(ball(), 0.0, 1.0, linearizer=lin) for lin in (linearize, reset_only))
    assert right.converged
    assert wrong.cost > 2.0 * right.cost


def test_feedback_follows_the_arc_of_the_same_count():
    """Thrown a little higher, the ball bounces after the rollout does; offsets are zero."""
    plant, cost = plant_of(ball(), n=20), cost_of(1.0)
    found = search(ball(), 0.0, 1.0)
    now = expand_motion(plant, simulate_open_loop(plant, found.inputs), cost, linearize)
    back = sweep_backwards(now, 0.0)
    feedback = now.rollout, np.zeros_like(back.offsets), back.gains
    moved = replace(plant, x0=np.array([4.1, 0.0]))
    closed = compute_cost(moved, simulate_closed_loop(moved, *feedback), cost)
    opened = compute_cost(moved, simulate_open_loop(moved, found.inputs), cost)
    assert closed < 0.5 * (opened + now.cost)
    same = simulate_closed_loop(plant, *feedback)
    np.testing.assert_array_equal(same.inputs, now.rollout.inputs)


def test_the_trajectory_is_one_that_linearizes():
    found = search(ball(), 0.0, 3.0)
    run = found.trajectory
    assert run.start == 0.0
    assert run.end == 1.0
    assert [event.index for event in run.events] == list(range(len(run.events)))
    for t, x, u in zip(found.times, found.states, found.inputs, strict=True):
        np.testing.assert_allclose(run(float(t)), x, atol=1e-9)
        np.testing.assert_allclose(run.input(float(t)), u, atol=1e-9)
    total = np.eye(2)
    for piece in found.rollout.pieces:
        total = linearize(ball(), piece).state_transition @ total
    np.testing.assert_allclose(linearize(ball(), run).state_transition, total, atol=1e-7)


def test_the_distance_on_a_manifold_has_its_exact_gradient():
    space = cube.system().mode(("open",) * 8).space
    rng = np.random.default_rng(3)
    target = np.concatenate([[0, 0, 0.2, 0, 0, 0, 1], np.zeros(6)]).astype(float)
    x = space.integrate(target, rng.normal(size=space.ndx))
    jacobian = compute_difference_jacobians(space, target, x)[1]
    h = 1e-5
    for i, e in enumerate(np.eye(space.ndx)):
        ends = [space.difference(target, space.integrate(x, s * h * e)) for s in (1.0, -1.0)]
        # Central differences: h^2 of third derivatives of order one, and rounding over h.
        np.testing.assert_allclose((ends[0] - ends[1]) / (2 * h), jacobian[:, i], atol=1e-9)


def test_a_first_guess_that_cannot_be_simulated_is_an_error():
    with pytest.raises(ZenoError):
        search(ball(), -1000.0, 1.0, n=4)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"times": [0.0, 0.0]}, "times"),
        ({"inputs": np.zeros((2, 1))}, "inputs"),
        ({"x0": [1.0]}, "x0"),
        ({"tolerance": 0.0}, "tolerance"),
    ],
)
def test_bad_arguments_are_named(change, word):
    good = {"x0": X0, "times": [0.0, 0.1, 0.2], "inputs": np.zeros((3, 1)), "cost": cost_of(1.0)}
    with pytest.raises(InputError, match=word):
        ilqr(ball(), "air", **(good | change))


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"input": [[0.0]], "final": np.eye(2)}, "input"),
        ({"input": [[1.0]], "final": -np.eye(2)}, "final"),
        ({"input": [[1.0]], "final": [[1.0, 1.0], [0.0, 1.0]]}, "final"),
        ({"input": [[1.0]], "final": np.eye(2), "state": np.eye(3)}, "state"),
    ],
)
def test_bad_weights_are_named(options, word):
    with pytest.raises(InputError, match=word):
        QuadraticCost(hc.VectorSpace(2), [0.0, 0.0], **options)


def test_the_gradient_of_a_cost_on_a_manifold_is_exact():
    """In the state, and in the input from its feedforward; and a Gauss-Newton Hessian."""
    space, rng, h = cube.system().mode(("open",) * 8).space, np.random.default_rng(5), 1e-5
    target = np.concatenate([[0, 0, 0.2, 0, 0, 0, 1], np.zeros(6)]).astype(float)
    root = rng.normal(size=(2, 12, 12))
    weights = {"state": root[0] @ root[0].T, "final": root[1] @ root[1].T}
    cost = QuadraticCost(
        space, target, input=[[2.0, 0.5], [0.5, 1.0]], feedforward=lambda t: np.array([t, -2.0]),
        **weights,
    )  # fmt: skip
    x, u, t = space.integrate(target, 0.5 * rng.normal(size=12)), rng.normal(size=2), 0.7
    here, last = cost.running(t, x, u), cost.final(x)
    scale = np.abs(here.gradient[:12]).max()
    turns = np.zeros((12, 12))
    for i, e in enumerate(np.eye(12)):
        ends = [space.integrate(x, s * h * e) for s in (1.0, -1.0)]
        turns[:, i] = (
            (space.difference(target, ends[0]) - space.difference(target, ends[1])) / 2 / h
        )
        # Central differences: h^2 of third derivatives, rounding over h.
        for value, slope in ((lambda y: cost.running(t, y, u).value, here.gradient[i]),
                             (lambda y: cost.final(y).value, last.gradient[i])):  # fmt: skip
            assert (value(ends[0]) - value(ends[1])) / (2 * h) == pytest.approx(
                slope, abs=1e-7 * scale
            )
    for found, weight in (
        (here.hessian[:12, :12], weights["state"]),
        (last.hessian, weights["final"]),
    ):
        np.testing.assert_allclose(found, turns.T @ weight @ turns, atol=1e-7 * scale)
    for i, e in enumerate(np.eye(2)):
        ends = [cost.running(t, x, u + s * h * e).value for s in (1.0, -1.0)]
        assert (ends[0] - ends[1]) / (2 * h) == pytest.approx(
            here.gradient[12 + i], abs=1e-7 * scale
        )
    assert cost.running(t, target, np.array([t, -2.0])).value == 0.0


def test_where_the_run_is_late_feedback_is_on_the_arc_flown_on():
    """The rollout has bounced, the run has not: it is compared with the fall continued.

    Thrust grows until the bounce and is held from there on, so the fall is a parabola.
    """
    plant = plant_of(ball(), n=24, end=1.2)
    nominal = simulate_open_loop(plant, np.linspace(-2.0, 2.0, 25)[:, None])
    (event,) = nominal.events
    bounce = int(np.searchsorted(plant.times, event.time))
    gains = tuple(np.array([[0.03 + 0.01 * k, 0.02, 0.05]]) for k in range(24))
    late = replace(plant, x0=X0 + np.array([1.2, 0.0]))
    found = simulate_closed_loop(late, nominal, np.zeros((25, 1)), gains)
    assert found.events[0].time > plant.times[bounce + 1]
    for k in (bounce, bounce + 1):
        s, force = plant.times[k] - event.time, event.input_before[0]
        y, v = event.state_before
        fallen = np.array([y + v * s + 0.5 * (force - G) * s**2, v + (force - G) * s])
        off = np.append(fallen - found.states[k], nominal.inputs[k] - found.inputs[k])
        # the gain of the last grid time before the bounce
        push = gains[bounce - 1] @ off
        np.testing.assert_allclose(found.inputs[k + 1], nominal.inputs[k + 1] + push, atol=1e-7)


def test_only_intervals_with_the_same_events_show_a_curvature():
    """A push down moves the bounce to an earlier interval; without one there is no curvature."""
    plant, cost = plant_of(ball(), n=10), cost_of(1.0)
    old, near, far = (
        expand_motion(plant, simulate_open_loop(plant, np.full((11, 1), force)), cost, linearize)
        for force in (0.0, 0.05, -1.0)
    )
    place = lambda motion: [len(p.events) for p in motion.rollout.pieces].index(1)  # noqa: E731
    assert place(old) == place(near) != place(far)
    same, other = estimate_curvature(near, old), estimate_curvature(far, old)
    assert [bool(s.any()) for s in same.curvature] == [k == place(old) for k in range(10)]
    assert not any(s.any() for s in other.curvature)


@pytest.mark.parametrize("kind", [ConstraintViolatedError, EscapingError, GuardViolatedError])
def test_a_step_to_a_motion_that_cannot_be_begun_anew_is_refused(kind):
    """Each interval begins where the one before ended: such errors are of the trial alone."""
    calls = []

    def linearizer(system, piece):
        calls.append(piece)
        if len(calls) == 5:  # the first interval of the first trial, after four of the guess
            raise kind("the state has drifted")
        return linearize(system, piece)

    found = search(ball(), 5.0, 1.0, n=4, linearizer=linearizer, max_iterations=3)
    assert "the state has drifted" in found.iterations[0].refused[0]
    assert found.cost < found.iterations[0].cost
