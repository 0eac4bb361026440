"""Sliding on guards: Filippov's field as a mode, its exits, its derivative, what it refuses."""

from collections import Counter
from dataclasses import replace

import casadi as ca
import numpy as np
import pytest
from differences import central
from relaxation.systems import accumulation, ball, order

import hybridctl as hc
from hybridctl.base.errors import ConstraintViolatedError, EscapingError, IntersectionError
from hybridctl.hybrid.mode import NO_GUARDS, Edge, FieldJacobian, GuardJacobian, Outgoing
from hybridctl.relaxation.guard_motion import Region, evaluate_side_fields
from hybridctl.relaxation.sliding import SLIDING
from hybridctl.relaxation.strip import Strips


def switched(fields, value, x):
    """A field for value > 0 and one for value < 0, as modes plus and minus."""
    modes = [
        hc.symbolic.SymbolicMode(name, x, field)
        for name, field in zip(("plus", "minus"), fields, strict=True)
    ]
    down = hc.symbolic.SymbolicTransition("plus", "down", value, "minus")
    return hc.symbolic.hybrid_system(
        modes, [down, hc.symbolic.SymbolicTransition("minus", "up", -value, "plus")]
    )


def fold():
    """Sliding on x2 = 0 with speed 1, until the upper field lets go at x1 = 1."""
    x = ca.SX.sym("x", 2)
    return switched([[1.0, x[0] - 1.0], [1.0, 2.0]], x[1], x)


def test_regions_and_filippovs_field():
    strip = hc.relaxation.filippov(fold()).get_strip("plus", "down")
    for x1, region in ((0.0, Region.SLIDING), (2.0, Region.CROSSING)):
        found = evaluate_side_fields(strip, 0.0, np.array([x1, 0.0]), np.zeros(0))
        assert found.region is region
    found = evaluate_side_fields(strip, 0.0, np.zeros(2), np.zeros(0))
    assert found.guard_rates == (-1.0, 2.0)
    assert found.weight == pytest.approx(1.0 / 3.0)
    np.testing.assert_allclose(found.sliding_field, [1.0, 0.0], atol=1e-15)


def test_it_slides_until_a_field_lets_go():
    """x1 = t - 1/2, from (-1/2, 1): met where (x1 - 1)^2 = 1/4, left at x1 = 1 along a parabola."""
    run = hc.simulate(hc.relaxation.filippov(fold()), "plus", [-0.5, 1.0], (0.0, 3.0))
    assert [arc.mode for arc in run.arcs] == ["plus", (SLIDING, "plus", "down"), "plus"]
    meets = 1.5 - np.sqrt(1.5**2 - 2.0)
    np.testing.assert_allclose([e.time for e in run.events], [meets, 1.5], atol=1e-8)
    np.testing.assert_allclose(run.final_state, [2.5, 1.5**2 / 2.0], atol=1e-8)


def around(radius):
    """Two fields that push onto a circle, and carry along it with different speeds."""
    x = ca.SX.sym("x", 3)
    along, out = ca.vertcat(-x[1], x[0]), x[:2]
    fields = [
        ca.vertcat((1.0 + x[2]) * along - 0.5 * out, -x[2]),
        ca.vertcat(0.3 * along + 0.8 * out, 0.2 + x[0]),
    ]
    return switched(fields, ca.sumsqr(x[:2]) - radius**2, x)


def test_derivatives_on_a_guard_that_turns():
    """The guard's rate by time, dg/dt = x0 / 2 + x1 / 5, depends on the state, too."""
    x, t = ca.SX.sym("x", 2), ca.SX.sym("t")
    value = x[0] * (1.0 + 0.5 * t) + 0.2 * x[1] * t
    modes = [
        hc.symbolic.SymbolicMode(name, x, field, time=t)
        for name, field in (("plus", [-1.0 + 0.1 * x[1], x[0]]), ("minus", [2.0, 1.0 + x[1]]))
    ]
    down = hc.symbolic.SymbolicTransition("plus", "down", value, "minus")
    up = hc.symbolic.SymbolicTransition("minus", "up", -value, "plus")
    system = hc.relaxation.filippov(hc.symbolic.hybrid_system(modes, [down, up]))
    mode, u = system.mode((SLIDING, "plus", "down")), np.zeros(0)
    at = np.array([-0.3 * 0.2 * 0.4 / 1.2, 0.3])  # on the guard at t = 0.4
    wanted = central(lambda dx: mode.field(0.4, at + dx, u), 2, 1e-6)
    np.testing.assert_allclose(mode.jacobian(0.4, at, u).state, wanted, atol=1e-8)


def test_derivatives_of_sliding_motions():
    """The run is projected onto the circle, the derivative follows its tangent."""
    system = hc.relaxation.filippov(around(1.0))
    key = (SLIDING, "plus", "down")
    x, u = np.array([0.6, 0.8, 0.4]), np.zeros(0)
    mode, guards = system.mode(key), system.outgoing(key).guards
    wanted = central(lambda dx: mode.field(0.0, x + dx, u), 3, 1e-6)
    np.testing.assert_allclose(mode.jacobian(0.0, x, u).state, wanted, atol=1e-8)
    rows = central(lambda dx: guards.values(0.0, x + dx, u), 3, 1e-6)
    np.testing.assert_allclose(guards.jacobian(0.0, x, u).state, rows, atol=1e-8)

    def flow(dx):
        start = np.array([1.2, 0.3, 0.4]) + dx
        run = hc.simulate(system, "plus", start, (0.0, 2.0), rtol=1e-12, atol=1e-12)
        assert run.final_mode == key
        return run.final_state

    run = hc.simulate(system, "plus", [1.2, 0.3, 0.4], (0.0, 2.0), rtol=1e-12, atol=1e-12)
    matrix = hc.linearize(system, run).state_transition
    np.testing.assert_allclose(matrix, central(flow, 3, 1e-5), atol=1e-6)


@pytest.mark.slow
def test_relaxed_derivatives_tend_to_those_of_the_sliding_mode():
    system, x0, sizes = around(1.0), [1.2, 0.3, 0.4], [1e-2, 5e-3]
    exact = hc.relaxation.filippov(system)
    run = hc.simulate(exact, "plus", x0, (0.0, 2.0))
    wanted = hc.linearize(exact, run).state_transition
    errors = []
    for epsilon in sizes:
        relaxed = hc.relax(system, epsilon)
        again = hc.simulate(relaxed, "plus", x0, (0.0, 2.0), rtol=1e-9, atol=1e-9)
        matrix = hc.linearize(relaxed, again).state_transition
        strip = relaxed.get_strip("plus", "down")
        reading = strip.differentiate_map_to_target(2.0, again.final_state, np.zeros(0)).state
        errors.append(np.abs(reading @ matrix - wanted).max())
    assert order(errors, sizes) == pytest.approx(1.0, abs=0.1)


def test_starts_on_the_guard():
    x = ca.SX.sym("x", 2)
    away = switched([[1.0, 1.0], [0.5, -2.0]], x[1], x)
    for system in (hc.relaxation.filippov(away), hc.relax(away, 0.1)):
        with pytest.raises(EscapingError, match=r"\[1.0, 1.0\] .* \[0.5, -2.0\]") as caught:
            hc.simulate(system, "plus", [0.0, 0.0], (0.0, 1.0))
        np.testing.assert_array_equal(caught.value.fields, [[1.0, 1.0], [0.5, -2.0]])
    with pytest.raises(EscapingError):
        hc.simulate(hc.relaxation.filippov(away), (SLIDING, "plus", "down"), [0.0, 0.0], (0.0, 1.0))
    system, key = hc.relaxation.filippov(fold()), (SLIDING, "plus", "down")
    with pytest.raises(ConstraintViolatedError, match=r"down is 0\.1"):
        hc.simulate(system, key, [0.0, 0.1], (0.0, 1.0))
    on = system.mode(key).project(np.array([0.0, 0.1]))
    assert hc.simulate(system, key, on, (0.0, 0.5)).final_mode == key


def quadrants(fields):
    """Four fields around the origin, by the signs of x1 and x2, in modes of these signs."""
    x = ca.SX.sym("x", 2)
    modes, edges = [], []
    for signs, f in fields.items():
        modes.append(hc.symbolic.SymbolicMode(signs, x, f))
        for i in range(2):
            other = "".join(
                ("-" if s == "+" else "+") if k == i else s for k, s in enumerate(signs)
            )
            value = x[i] if signs[i] == "+" else -x[i]
            edges.append(hc.symbolic.SymbolicTransition(signs, f"x{i + 1}", value, other))
    return hc.symbolic.hybrid_system(modes, edges)


def test_sliding_goes_on_across_a_guard_that_all_fields_cross():
    fields = {"++": [-1, -1], "+-": [-1, 2], "-+": [-2, -1], "--": [-2, 1]}
    run = hc.simulate(hc.relaxation.filippov(quadrants(fields)), "++", [1.0, 0.3], (0.0, 2.0))
    modes = [arc.mode for arc in run.arcs]
    assert modes == ["++", (SLIDING, "++", "x2"), (SLIDING, "-+", "x2")]
    np.testing.assert_allclose(run.final_state, [-2.0, 0.0], atol=1e-8)


def test_sliding_on_two_guards_at_once():
    """Bilinear weights (1/3, 1/4) of fields that differ by sign only: they sum to nothing."""
    fields = {"++": [-1, -1], "+-": [-1, 3], "-+": [2, -1], "--": [2, 3]}
    run = hc.simulate(hc.relaxation.filippov(quadrants(fields)), "++", [1.0, 0.3], (0.0, 2.0))
    modes = [arc.mode for arc in run.arcs]
    assert modes == ["++", (SLIDING, "++", "x2"), (SLIDING, "++", "x2", "x1")]
    np.testing.assert_allclose(run.final_state, [0.0, 0.0], atol=1e-8)


def test_the_weights_of_two_guards_that_depend_on_each_other():
    """Shares 0.45, 0.3, 0.15 and 0.1, of a = 0.4 and b = 1/4, leave nothing of these fields."""
    fields = {"++": [-1.0, -1.0], "+-": [-1.4, 1.0], "-+": [2.0, -1.5], "--": [5.7, 3.75]}
    system = hc.relaxation.filippov(quadrants(fields))
    corner = system.mode((SLIDING, "++", "x2", "x1")).calc(0.0, np.zeros(2), np.zeros(0))
    assert min(np.abs(np.array(corner.convex_weights) - [0.4, 0.25]).max(axis=1)) < 1e-12


def test_weights_beside_an_intersection_are_bounded():
    """Here a = b = 9.5 or -10.5: a step that is tried there meets no field ten times as large."""
    fields = {"++": [-1.0, -1.0], "+-": [-1.0, -0.99], "-+": [-0.99, -1.0], "--": [-0.98, -0.98]}
    system = hc.relaxation.filippov(quadrants(fields))
    corner = system.mode((SLIDING, "++", "x2", "x1")).calc(0.0, np.zeros(2), np.zeros(0))
    assert corner.convex_weights == []
    assert max(map(max, corner.weights)) > 9.0
    assert corner.nearest_weights == (2.0, 2.0)


@pytest.mark.parametrize("kept", ["inside", "nothing", "speed"])
def test_a_guard_with_one_side_is_crossed(kept):
    """Its reset leads inside the mode, forgets, or leaves a coordinate out: nothing pushes back."""
    x = ca.SX.sym("x", 2)
    air = hc.symbolic.SymbolicMode("air", x, [x[1], -1.0])
    if kept == "speed":
        v = ca.SX.sym("v")
        after, reset = hc.symbolic.SymbolicMode("up", v, [1.0 + v]), [-x[1]]
    else:
        after = hc.symbolic.SymbolicMode("up", x, [1.0 + x[0], 0.5])
        reset = [x[0] + 0.2, -x[1]] if kept == "inside" else [x[0], 0.0]
    floor = hc.symbolic.SymbolicTransition("air", "floor", x[0], "up", reset)
    system = hc.symbolic.hybrid_system([air, after], [floor])
    plain = hc.simulate(system, "air", [0.5, 0.0], (0.0, 2.0))
    found = hc.simulate(hc.relaxation.filippov(system), "air", [0.5, 0.0], (0.0, 2.0))
    assert [arc.mode for arc in found.arcs] == ["air", "up"]
    np.testing.assert_allclose(found.final_state, plain.final_state, atol=1e-9)


@pytest.mark.parametrize(("restitution", "two"), [(0.8, True), (0.0, False)])
def test_only_a_jump_that_can_be_undone_has_two_sides(restitution, two):
    """A ball that bounces comes from one state; one that stops has forgotten its velocity."""
    strip = Strips(ball(restitution), 0.1).get_strip("air", "floor")
    assert strip.image_guard is not None
    assert strip.has_two_sides == two


def test_bounces_that_accumulate_come_to_rest_as_without_sliding():
    """Within the horizon of 1e-3 s of the last bounce of all: the rest edge is the system's."""
    bouncing, ground = ball(0.5), hc.Mode("ground", hc.VectorSpace(2), lambda t, x, u: 0.0 * x, 1)
    still = Edge(hc.Reset(lambda t, x, u: 0.0 * x), "ground")

    def ways(key):
        out = bouncing.outgoing("air")
        return (
            replace(out, rest=lambda fired: still)
            if key == "air"
            else Outgoing(NO_GUARDS, lambda fired: None)
        )

    def mode(key):
        return bouncing.mode(key) if key == "air" else ground

    system = hc.HybridSystem(mode, ways)
    end = accumulation(0.5)
    run = hc.simulate(
        hc.relaxation.filippov(system), "air", [1.0, 0.0], (0.0, end + 1.0), on_zeno="rest"
    )
    assert run.final_mode == "ground"
    assert end - 1e-3 <= run.events[-1].time <= end


def leaving():
    """Four fields in space that attract to the axis, until x3 = 1, where x2 lets go downwards."""
    x = ca.SX.sym("x", 3)
    modes, edges = [], []
    for signs in ("++", "+-", "-+", "--"):
        down = -1.0 if signs[1] == "+" else 1.0 - x[2]
        across = -1.0 if signs[0] == "+" else 1.0
        modes.append(hc.symbolic.SymbolicMode(signs, x, [across, down, 1.0]))
        for i in range(2):
            turned = "-" if signs[i] == "+" else "+"
            other = signs[:i] + turned + signs[i + 1 :]
            value = x[i] if signs[i] == "+" else -x[i]
            edges.append(hc.symbolic.SymbolicTransition(signs, f"x{i + 1}", value, other))
    return hc.symbolic.hybrid_system(modes, edges)


def test_one_of_two_guards_lets_go():
    """Behind x2 = 0 the field is 1 - x3: from there on x2 = -(t - 1)^2 / 2, still on x1 = 0."""
    run = hc.simulate(hc.relaxation.filippov(leaving()), "++", [0.3, 0.1, 0.0], (0.0, 2.0))
    assert [arc.mode for arc in run.arcs][-2:] == [
        (SLIDING, "++", "x2", "x1"),
        (SLIDING, "+-", "x1"),
    ]
    assert run.events[-1].time == pytest.approx(1.0, abs=1e-8)
    np.testing.assert_allclose(run.final_state, [0.0, -0.5, 2.0], atol=1e-7)


@pytest.mark.parametrize(
    ("others", "found"), [([[-1, -1], [0.1, -2]], 0), ([[-1, 1.88], [1, -1.52]], 2)]
)
def test_an_intersection_without_one_combination_is_refused_with_its_fields(others, found):
    """With a b = 1 / 1.1 and 3 a - 4 a b = 1: no; with a b = 1/2: a is 0.6 or 0.8."""
    fields = dict(zip(("++", "+-", "-+", "--"), [[-1, -1], [-1, 2], *others], strict=True))
    with pytest.raises(IntersectionError, match=rf"meets guard 'x1'.* {found} convex") as caught:
        hc.simulate(hc.relaxation.filippov(quadrants(fields)), "++", [1.0, 0.3], (0.0, 2.0))
    np.testing.assert_allclose(caught.value.fields, list(fields.values()), atol=1e-12)


def test_a_sliding_motion_asks_both_fields_once_at_a_point():
    """Its field, its guards and the derivatives of both come of the same two fields there."""
    counts = Counter()

    def counted(name, value):
        def function(t, x, u):
            counts[name] += 1
            return value

        return function

    still = FieldJacobian(np.zeros((2, 2)), np.zeros((2, 0)))
    modes = [
        hc.Mode(
            key,
            hc.VectorSpace(2),
            counted(f"field {key}", np.array([1.0, speed])),
            jacobian=counted(f"slopes {key}", still),
        )
        for key, speed in (("above", -1.0), ("below", 2.0))
    ]
    edges = [
        hc.Transition(
            key,
            hc.Guard("y", lambda t, x, u, way=way: way * x[1], side(way)),
            hc.Reset.identity(),
            other,
        )
        for key, other, way in (("above", "below", 1.0), ("below", "above", -1.0))
    ]
    mode = hc.relaxation.filippov(hc.HybridSystem(modes, edges)).mode((SLIDING, "above", "y"))
    point = mode.calc(0.0, np.zeros(2), np.zeros(0))
    counts.clear()
    np.testing.assert_allclose(point.field, [1.0, 0.0], atol=1e-15)
    np.testing.assert_array_equal(point.guards, [1.0, 2.0])
    mode.calc_diff(point)
    each = ("field above", "field below", "slopes above", "slopes below")
    assert counts == dict.fromkeys(each, 1)


def side(way):
    """The derivative of a guard that is way times the second coordinate."""
    d = GuardJacobian(0.0, np.array([0.0, way]), np.zeros(0))
    return lambda t, x, u: d
