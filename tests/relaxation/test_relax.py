"""Relaxed systems: they tend to executions, rest past Zeno, and say what they cannot relax."""

from types import SimpleNamespace

import casadi as ca
import numpy as np
import pytest
from differences import central
from relaxation.systems import accumulation, ball, bowl, carrier, order, slimmed

import hybridctl as hc
from hybridctl.base.errors import InputError, OverlappingStripsError, SystemDefinitionError
from hybridctl.estimation.measurement import coordinates
from hybridctl.relaxation.gluing import _have_same_derivatives
from hybridctl.relaxation.relax import HELD_STRIP, STRIP

SIZES = [4e-4, 2e-4, 1e-4, 5e-5]
MANY = {"max_events": 100_000, "options": hc.SimulationOptions(max_steps=10**7)}


@pytest.mark.parametrize("c", [0.1, 0.5, 0.95])
def test_executions_and_their_derivatives_are_the_limit_of_first_order(c):
    """Where events are transversal: the state at the end, and the product of saltations."""
    system, x0 = carrier(c), [1.0, 0.2, 0.3]
    end = 2.2 if c > 0.3 else 1.9  # one impact for c = 0.1, whose next ones are soon slow
    exact = hc.simulate(system, "air", x0, (0.0, end))
    product = hc.linearize(system, exact).state_transition
    states, matrices = [], []
    for epsilon in SIZES:
        relaxed = hc.relax(system, epsilon)
        run = hc.simulate(relaxed, "air", x0, (0.0, end), rtol=1e-10, atol=1e-11)
        assert len(run.events) == 2 * len(exact.events)
        states.append(np.abs(run.final_state - exact.final_state).max())
        matrices.append(np.abs(hc.linearize(relaxed, run).state_transition - product).max())
    assert order(states, SIZES) == pytest.approx(1.0, abs=0.1)
    assert order(matrices, SIZES) == pytest.approx(1.0, abs=0.1)


def test_curved_guards_and_bent_resets():
    """Tolerances far below epsilon: derivatives look at how deep in the strip a state is."""
    system, x0 = bowl(0.8), [0.1, 0.0, 0.7, 0.2]
    exact = hc.simulate(system, "flight", x0, (0.0, 2.5))
    product = hc.linearize(system, exact).state_transition
    errors = []
    for epsilon in SIZES:
        relaxed = hc.relax(system, epsilon)
        run = hc.simulate(relaxed, "flight", x0, (0.0, 2.5), rtol=1e-12, atol=1e-12)
        matrix = hc.linearize(relaxed, run).state_transition
        errors.append(
            [np.abs(run.final_state - exact.final_state).max(), np.abs(matrix - product).max()]
        )
    assert len(exact.events) >= 2
    for column in np.transpose(errors):
        assert order(column, SIZES) == pytest.approx(1.0, abs=0.1)


def test_a_state_dimension_that_changes():
    system, x0 = slimmed(0.7), [1.0, 0.0, 0.4]
    exact = hc.simulate(system, "heavy", x0, (0.0, 4.0))
    assert [event.mode_after for event in exact.events[:2]] == ["light", "heavy"]
    errors = []
    for epsilon in SIZES:
        run = hc.simulate(hc.relax(system, epsilon), "heavy", x0, (0.0, 4.0))
        assert run.final_mode == exact.final_mode
        errors.append(np.abs(run.final_state - exact.final_state).max())
    assert order(errors, SIZES) == pytest.approx(1.0, abs=0.1)


def test_a_reset_into_the_inside_of_a_mode():
    """A walker's step: the image of the guard is no border, the strip is just crossed."""
    x = ca.SX.sym("x", 2)
    mode = hc.symbolic.SymbolicMode("swing", x, [x[1], 0.3 * x[0]])
    step = hc.symbolic.SymbolicTransition(
        "swing", "step", 0.5 - x[0], "swing", [x[0] - 1.0, 0.9 * x[1]]
    )
    system = hc.symbolic.hybrid_system([mode], [step])
    exact = hc.simulate(system, "swing", [-0.5, 0.8], (0.0, 5.0))
    errors = [
        np.abs(
            hc.simulate(hc.relax(system, e), "swing", [-0.5, 0.8], (0.0, 5.0)).final_state
            - exact.final_state
        ).max()
        for e in SIZES
    ]
    assert len(exact.events) == 3
    assert order(errors, SIZES) == pytest.approx(1.0, abs=0.1)


def resting_error(c, epsilon):
    """The largest coordinate of a ball in the 2 s after its accumulation time."""
    start = accumulation(c)
    relaxed = hc.relax(ball(c), epsilon)
    run = hc.simulate(relaxed, "air", [1.0, 0.0], (0.0, start + 2.0), **MANY)
    largest = 0.0
    for arc in run.arcs:
        if arc.end >= start:
            states = arc(np.linspace(max(arc.start, start), arc.end, 9))
            entered = [relaxed.map_to_system(arc.mode, 0.0, y)[1] for y in states]
            largest = max(largest, np.abs(entered).max())
    return largest


@pytest.mark.slow
def test_past_zeno_the_error_is_of_order_one_half():
    """The strip is conservative: it bounces for ever with speeds between c v and v.

    Which of these is a matter of chance, so that the slope scatters by the logarithm of 1 / c over
    that of the range: log 2 / log 300 / sqrt(8) = 0.04.
    """
    sizes = np.geomspace(1e-2, 3e-5, 8)
    errors = [resting_error(0.5, epsilon) for epsilon in sizes]
    assert (np.array(errors) <= 1.5 * np.sqrt(sizes)).all()  # K(0.5) = 1.46
    assert order(errors, sizes) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("c", [0.0, pytest.param(0.5, marks=pytest.mark.slow)])
def test_a_ball_at_rest_is_lifted_off_by_an_input(c):
    """After 2 s of rest: behind u = 1.5 g the height is that of the closed form."""
    lift = np.ceil(accumulation(c)) + 2.0
    law = hc.SampledPolicy(lambda t, x: np.array([1.5 if t >= lift else 0.0]), lift)
    relaxed = hc.relax(ball(c), 1e-5)
    run = hc.simulate(relaxed, "air", [1.0, 0.0], (0.0, lift + 1.0), law, **MANY)
    _, x = relaxed.map_to_system(run.final_mode, lift + 1.0, run.final_state)
    # A delay of 1 ms costs 0.5 mm/s; what is left of bounces, 1.46 sqrt(epsilon), is more.
    assert x[1] == pytest.approx(0.5, abs=5e-4 + (4.7e-3 if c else 0.0))


def test_what_a_plastic_reset_forgets_is_held_until_it_is_pulled():
    relaxed = hc.relax(ball(0.0), 1e-4)
    run = hc.simulate(relaxed, "air", [1.0, 0.0], (0.0, 3.0))
    assert [arc.mode for arc in run.arcs] == ["air", (HELD_STRIP, "air", "floor")]
    key, state = relaxed.map_to_system(run.final_mode, 3.0, run.final_state)
    assert key == "air"
    assert -1e-4 <= state[0] <= 0.0
    assert state[1] == 0.0


@pytest.mark.parametrize(
    ("system", "key", "name", "y"),
    [
        (carrier(0.5), "air", "floor", [-4e-3, -0.7, 0.2]),
        (ball(0.0), "air", "floor", [-3e-3, -0.4, 0.1]),
        (bowl(0.7), "flight", "wall", [0.8, 0.6024, 0.3, 0.5]),
        (slimmed(0.7), "light", "loads", [-6e-3, -0.7, 0.1]),
        (slimmed(0.7), "heavy", "sheds", [-6e-3, -0.7, 0.1]),
    ],
)
@pytest.mark.parametrize("kind", [STRIP, HELD_STRIP])
def test_jacobians_of_strips_are_their_differences(system, key, name, y, kind):
    """To 1e-7: the field bends over 1e-2 in the strip, so that steps of 1e-6 err by 1e-8."""
    relaxed = hc.relax(system, 1e-2)
    strip = relaxed.get_strip(key, name)
    if kind == HELD_STRIP and not strip.can_hold_auxiliary:
        return
    y, u = np.array(y), np.zeros(strip.source.nu)
    mode, guards = relaxed.mode((kind, key, name)), relaxed.outgoing((kind, key, name)).guards
    found = mode.jacobian(0.0, y, u).state
    wanted = central(lambda dx: mode.field(0.0, y + dx, u), len(y), 1e-6)
    np.testing.assert_allclose(found, wanted, atol=1e-7 * max(1.0, np.abs(wanted).max()))
    rows = central(lambda dx: guards.values(0.0, y + dx, u), len(y), 1e-6)
    np.testing.assert_allclose(guards.jacobian(0.0, y, u).state, rows, atol=1e-7)


def test_a_filter_runs_on_a_relaxed_system():
    """Through strips of 1e-4 it estimates as on the system itself, to that order."""
    system, times = ball(0.5), np.linspace(0.1, 2.6, 26)
    truth = hc.simulate(system, "air", [1.0, 0.0], (0.0, 3.0))
    noise = np.random.default_rng(0).normal(scale=0.01, size=len(times))
    seen = hc.estimation.Record({"height": hc.Series(times, [truth(t)[0] for t in times] + noise)})
    height = coordinates("height", [0], 1e-4 * np.eye(1))
    start = hc.estimation.Estimate("air", 0.0, np.array([1.02, 0.05]), 0.01 * np.eye(2))
    means = [
        hc.SaltedKalmanFilter(made, 1e-6 * np.eye(2), height).run(seen, start).means[-1]
        for made in (system, hc.relax(system, 1e-4))
    ]
    np.testing.assert_allclose(*means, atol=1e-2)


def corner():
    """A point between two walls that meet."""
    x = ca.SX.sym("x", 4)
    air = hc.symbolic.SymbolicMode("air", x, [x[2], x[3], 0.0, 0.0])
    walls = [
        hc.symbolic.SymbolicTransition("air", "left", x[0], "air", [x[0], x[1], -0.5 * x[2], x[3]]),
        hc.symbolic.SymbolicTransition(
            "air", "right", x[1], "air", [x[0], x[1], x[2], -0.5 * x[3]]
        ),
    ]
    return hc.symbolic.hybrid_system([air], walls)


def test_overlapping_strips_are_named():
    relaxed = hc.relax(corner(), 1e-2)
    with pytest.raises(OverlappingStripsError, match=r"'right' .* strip of guard 'left'"):
        hc.simulate(relaxed, "air", [1.0, 1.005, -1.0, -1.0], (0.0, 2.0))
    apart = hc.simulate(relaxed, "air", [1.0, 1.5, -1.0, -1.0], (0.0, 1.8))
    assert len(apart.events) == 4


def refused(guard, reset):
    """The relaxation of a mode with this transition into itself."""
    x = ca.SX.sym("x", 3)
    mode = hc.symbolic.SymbolicMode("a", x, [x[1], -1.0, x[1]])
    edge = hc.symbolic.SymbolicTransition("a", "g", guard(x), "a", reset(x))
    return hc.relax(hc.symbolic.hybrid_system([mode], [edge]), 0.1)


def test_what_cannot_be_relaxed_is_refused():
    cases = {
        "is no projection": refused(lambda x: x[0], lambda x: [x[0], 0.0, -x[2]]),
        "its rank changes": refused(lambda x: x[0], lambda x: [x[0], -x[1], x[2] * (x[2] > 0)]),
        "no point on guard": refused(lambda x: 1.0 + x[0] ** 2, lambda x: x),
        "a strip leads to one": hc.relax(corner_twice(), 0.1),
    }
    for message, relaxed in cases.items():
        with pytest.raises(SystemDefinitionError, match=message):
            relaxed.mode("a")
    for epsilon in (0.0, -1.0, "a"):
        with pytest.raises(InputError, match="epsilon"):
            hc.relax(ball(0.5), epsilon)
    with pytest.raises(InputError, match="system must be a HybridSystem"):
        hc.relax(None, 0.1)


def corner_twice():
    x = ca.SX.sym("x", 2)
    mode = hc.symbolic.SymbolicMode("a", x, [x[1], -1.0])
    edges = [
        hc.symbolic.SymbolicTransition("a", name, k * x[0], "a", [x[0], -x[1]])
        for k, name in ((1.0, "one"), (2.0, "two"))
    ]
    return hc.symbolic.hybrid_system([mode], edges)


def test_a_reset_must_not_see_the_input():
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u")
    mode = hc.symbolic.SymbolicMode("a", x, [x[1], u], u)
    edge = hc.symbolic.SymbolicTransition("a", "g", x[0], "a", [x[0], u - x[1]])
    relaxed = hc.relax(hc.symbolic.hybrid_system([mode], [edge]), 0.1)
    with pytest.raises(SystemDefinitionError, match=r"reset of guard 'g' .* depends on the input"):
        relaxed.mode("a")


def test_the_target_must_be_named_and_the_guard_blind_to_the_input():
    space = hc.VectorSpace(1)
    mode = hc.Mode("a", space, lambda t, x, u: np.ones(1), 1)
    blind = hc.Guard(
        "g",
        lambda t, x, u: x[0] + u[0],
        lambda t, x, u: hc.hybrid.guards.GuardJacobian(np.zeros(()), np.ones(1), np.ones(1)),
    )
    given = hc.HybridSystem([mode], [hc.Transition("a", blind, hc.Reset.identity(), "a")])
    with pytest.raises(SystemDefinitionError, match="depends on the input"):
        hc.relax(given, 0.1).mode("a")
    open_end = hc.HybridSystem([mode], [hc.Transition("a", blind, hc.Reset.identity())])
    with pytest.raises(SystemDefinitionError, match="leaves its target to the reset"):
        hc.relax(open_end, 0.1).mode("a")


def test_the_state_behind_a_curved_guard_needs_no_input():
    """Within a disc the state is mirrored: R = (q, -v), and the depth is pushed out along q."""
    q, v, u = ca.SX.sym("q", 2), ca.SX.sym("v", 2), ca.SX.sym("u")
    outside = hc.symbolic.SymbolicMode("outside", ca.vertcat(q, v), ca.vertcat(v, u * q), input=u)
    meets = hc.symbolic.SymbolicTransition(
        "outside", "disc", ca.sumsqr(q) - 1.0, "outside", ca.vertcat(q, -v)
    )
    relaxed = hc.relax(hc.symbolic.hybrid_system([outside], [meets]), 1e-2)
    place = ("strip", "outside", "disc"), 0.0, [0.999, 0.0, -1.0, 0.0]
    key, state = relaxed.map_to_system(*place)
    assert key == "outside"
    # From the circle inwards by half of epsilon less the depth, 1 - 0.999^2: |grad h| is 2.
    assert state == pytest.approx([1.0 - 0.5 * (1e-2 - 0.001999), 0.0, 1.0, 0.0])
    np.testing.assert_array_equal(relaxed.map_to_system(*place, [3.0])[1], state)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e6])
def test_an_affine_gluing_has_the_same_derivatives_to_rounding(size):
    """Sums of some products have a relative rounding of 1e-15; a curved map differs by more."""
    names = (
        "guard_rate", "guard_gradient", "image_normal", "jacobian", "time_derivative",
        "reset_jacobian",
    )  # fmt: skip
    one, rounded, curved = (
        SimpleNamespace(**dict.fromkeys(names, np.full(2, size * factor)))
        for factor in (1.0, 1.0 + 1e-15, 1.0 + 1e-8)
    )
    assert _have_same_derivatives(one, rounded)
    assert not _have_same_derivatives(one, curved)
