"""Systems from CasADi expressions: right numbers, exact Jacobians, errors that name the fault."""

import threading
from dataclasses import dataclass, replace

import casadi as ca
import numpy as np
import pytest
from hybrid.samples import ROUNDING, ball, impact_times

import hybridctl as hc
from hybridctl.base import errors
from hybridctl.hybrid.mode import GuardJacobian, GuardSet
from hybridctl.hybrid.model import Jump, JumpPoint, ResetModel, compute_jump_terms
from hybridctl.sensitivity.saltation import EventSide, linearize_crossing, linearize_guard
from hybridctl.symbolic import (
    Joint,
    SymbolicMode,
    SymbolicTransition,
    hybrid_system,
    parametric_system,
    variational,
)


def symbolic_ball(kind=ca.SX, restitution=0.9):
    x = kind.sym("x", 2)
    return hybrid_system(
        [SymbolicMode("air", state=x, field=[x[1], -9.81])],
        [SymbolicTransition("air", "floor", x[0], "air", [x[0], -restitution * x[1]])],
    )


def rich(kind):
    """A system that uses everything: input, time, outputs, two guards, change of dimension."""
    x, u, t = kind.sym("x", 3), kind.sym("u", 2), kind.sym("t")
    y = kind.sym("y", 2)
    fly = SymbolicMode(
        "fly",
        state=x,
        field=[ca.sin(x[1]) * u[0], x[0] * x[2] + t**2, ca.exp(-x[2]) * u[1] * u[0]],
        input=u,
        time=t,
        outputs={"power": u[0] * x[2], "state": x, "both": x @ u.T},
    )
    slide = SymbolicMode("slide", state=y, field=ca.vertcat(y[1], -y[0]))
    return hybrid_system(
        [fly, slide],
        [
            SymbolicTransition(
                "fly", "down", x[0] - ca.cos(t) * x[1] + u[1], "slide", [x[0] * t, x[1] * u[0]]
            ),
            SymbolicTransition("fly", "side", x[2] ** 2, "fly"),
            Joint("fly", ["side", "down"], "slide", x[:2]),
            SymbolicTransition("slide", "up", y[0], "fly", [y[0], y[1], y[0] * y[1]]),
        ],
    )


KINDS = pytest.mark.parametrize("kind", [ca.SX, ca.MX])
# Of sin, cos and exp numpy promises 4 units in the last place; two products and a sum round them.
ULPS = 8 * np.finfo(np.float64).eps
POINT = (0.7, np.array([0.3, -0.5, 0.9]), np.array([1.1, -0.4]))


def central(f, t, x, u):
    """Central differences of f(t, x, u) in t, x and u; error h^2 + eps / h = 1e-10 at 1e-5."""
    h = 1e-5
    time = (f(t + h, x, u) - f(t - h, x, u)) / (2 * h)
    state = [(f(t, x + d, u) - f(t, x - d, u)) / (2 * h) for d in h * np.eye(len(x))]
    control = [(f(t, x, u + d) - f(t, x, u - d)) / (2 * h) for d in h * np.eye(len(u))]
    return time, np.array(state).T, np.array(control).T


@KINDS
def test_a_compiled_jump_has_the_terms_of_fields_guards_and_resets(kind):
    """As of parts that are evaluated one by one; sums of ten products are rounded."""
    system, (t, x, u) = rich(kind), POINT
    down, du = EventSide(system.mode("fly").calc(*POINT), np.array([0.3, -0.8])), np.zeros(0)
    reset = system.outgoing("fly").edge(("down",)).reset
    after = EventSide(system.mode("slide").calc(t, reset(t, x, u).state, du), du)
    assert down.mode.find_compiled_reset(0, reset) is not None
    assert down.mode.find_compiled_reset(1, reset) is None
    assert after.mode.find_compiled_reset(0, reset) is None
    whole = linearize_guard(system, "down", down, after)
    parts = linearize_crossing(system, "down", down, after, reset.calc_diff(JumpPoint(t, x, u)))
    for name, value in vars(parts).items():
        np.testing.assert_allclose(getattr(whole, name), value, rtol=0, atol=40 * ULPS)
    on_side = down.mode.calc(t, np.array([1.0, 1.0, 0.0]), u)
    with pytest.raises(errors.GrazingError, match="'side' of mode 'fly' is not crossed"):
        linearize_guard(system, "side", replace(down, point=on_side), down)


def test_a_guard_that_was_replaced_has_its_own_derivative():
    """A floor that falls at 1 m/s: it is met at t* with D t* = -D_x g / (v + 1)."""
    fixed = symbolic_ball()

    def ways(key):
        moving = GuardSet(
            ("floor",),
            lambda t, x, u: np.array([x[0] + t]),
            lambda t, x, u: GuardJacobian(np.ones(1), np.array([[1.0, 0.0]]), np.zeros((1, 0))),
        )
        return replace(fixed.outgoing(key), guards=moving)

    system = hc.HybridSystem(fixed.mode, ways, ("floor",))
    event = hc.simulate(system, "air", [1.0, 0.0], (0.0, 0.7)).events[0]
    found = hc.jump_gains(system, event).time_state
    np.testing.assert_allclose(found, [-1.0 / (event.state_before[1] + 1.0), 0.0], rtol=1e-12)


@KINDS
def test_jacobians_are_the_central_differences(kind):
    system = rich(kind)
    mode, out = system.mode("fly"), system.outgoing("fly")
    close = {"rtol": 0, "atol": 1e-9}
    _, state, control = central(mode.field, *POINT)
    exact = mode.jacobian(*POINT)
    np.testing.assert_allclose(exact.state, state, **close)
    np.testing.assert_allclose(exact.input, control, **close)
    resets = [out.edge(fired).reset for fired in (("down",), ("side",), ("down", "side"))]
    pairs = [(out.guards.values, out.guards.jacobian)]
    pairs += [
        (
            lambda t, x, u, r=r: r(t, x, u).state,
            lambda t, x, u, r=r: r.calc_diff(JumpPoint(t, x, u)),
        )
        for r in resets
    ]
    for f, jacobian in pairs:
        time, state, control = central(f, *POINT)
        exact = jacobian(*POINT)
        np.testing.assert_allclose(exact.time, time, **close)
        np.testing.assert_allclose(exact.state, state, **close)
        np.testing.assert_allclose(exact.input, control, **close)


@KINDS
def test_values_and_shapes_are_those_of_the_expressions(kind):
    system = rich(kind)
    mode, out = system.mode("fly"), system.outgoing("fly")
    t, x, u = POINT
    field = [np.sin(x[1]) * u[0], x[0] * x[2] + t**2, np.exp(-x[2]) * u[1] * u[0]]
    np.testing.assert_allclose(mode.field(*POINT), field, rtol=ULPS)
    guards = [x[0] - np.cos(t) * x[1] + u[1], x[2] ** 2]
    np.testing.assert_allclose(out.guards.values(*POINT), guards, rtol=ULPS)
    assert out.guards.names == ("down", "side")
    jump = out.edge(("down",)).reset(*POINT)
    np.testing.assert_allclose(jump.state, [x[0] * t, x[1] * u[0]], rtol=ULPS)
    np.testing.assert_array_equal(out.edge(("side", "down")).reset(*POINT).state, x[:2])
    assert (mode.nu, mode.space.nx, system.mode("slide").space.nx) == (2, 3, 2)
    derivative = mode.jacobian(*POINT)
    assert (derivative.state.shape, derivative.input.shape) == ((3, 3), (3, 2))
    assert [a.shape for a in out.guards.jacobian(*POINT)] == [(2,), (2, 3), (2, 2)]
    jacobian = out.edge(("down",)).reset.calc_diff(JumpPoint(*POINT))
    assert [a.shape for a in jacobian] == [(2,), (2, 3), (2, 2)]
    outputs = mode.outputs(*POINT)
    np.testing.assert_allclose(outputs["power"], [u[0] * x[2]], rtol=ULPS)
    np.testing.assert_array_equal(outputs["state"], x)
    np.testing.assert_allclose(outputs["both"], np.outer(x, u), rtol=ULPS)


@KINDS
def test_the_trajectory_is_that_of_the_hand_written_system(kind):
    ours = hc.simulate(symbolic_ball(kind), "air", [1.0, 0.0], (0.0, 4.0))
    theirs = hc.simulate(ball(), "air", [1.0, 0.0], (0.0, 4.0))
    assert len(ours.events) == len(theirs.events) == 6
    times = [event.time for event in ours.events]
    np.testing.assert_allclose(times, [e.time for e in theirs.events], atol=1e-13)  # rounding
    np.testing.assert_allclose(times, impact_times(1.0, 0.9, len(times)), atol=1e-12)
    np.testing.assert_allclose(ours.final_state, theirs.final_state, atol=1e-12)


def test_a_state_may_be_a_list_of_symbols():
    y, v = ca.SX.sym("y"), ca.SX.sym("v")
    system = hybrid_system(
        [SymbolicMode("air", [y, v], [v, -9.81])],
        [SymbolicTransition("air", "hits", y, "air", [y, -v])],
    )
    np.testing.assert_array_equal(
        system.mode("air").field(0.0, np.array([1.0, 2.0]), np.zeros(0)), [2.0, -9.81]
    )


@KINDS
def test_results_are_new_arrays(kind):
    system = rich(kind)
    t, x, u = POINT
    mode, out = system.mode("fly"), system.outgoing("fly")
    calls = [
        mode.field,
        lambda *a: mode.jacobian(*a).state,
        out.guards.values,
        lambda *a: out.guards.jacobian(*a).state,
        lambda *a: out.edge(("down",)).reset(*a).state,
        lambda *a: mode.outputs(*a)["state"],
    ]
    for f in calls:
        first = f(t, x, u)
        kept = first.copy()
        f(2 * t, 3 * x, 4 * u)
        np.testing.assert_array_equal(first, kept)
        assert first.flags.writeable
        assert first.flags.owndata


def test_threads_do_not_disturb_each_other():
    x = ca.SX.sym("x", 50)
    system = hybrid_system([SymbolicMode("m", x, ca.sin(x))], [])
    field, wrong = system.mode("m").field, []

    def work(number):
        point = np.full(50, float(number))
        for _ in range(2000):
            if not np.allclose(field(0.0, point, np.zeros(0)), np.sin(number), atol=1e-15):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("sizes", [(2, 2), (3, 1), (1, 2), (3, 3)])
def test_arguments_of_the_wrong_size_are_errors_not_broadcast(sizes):
    field = rich(ca.SX).mode("fly").field
    with pytest.raises(errors.InputError, match="shapes"):
        field(0.0, np.ones(sizes[0]), np.ones(sizes[1]))


def test_a_mode_without_guards_flows_on():
    x = ca.SX.sym("x")
    traj = hc.simulate(hybrid_system([SymbolicMode("m", x, -x)], []), "m", [1.0], (0.0, 1.0))
    assert traj.final_state[0] == pytest.approx(np.exp(-1.0), abs=1e-8)  # tolerance 1e-9, 10 steps


def test_an_empty_input_is_none():
    x = ca.SX.sym("x")
    mode = hybrid_system([SymbolicMode("m", x, -x, input=ca.SX())], []).mode("m")
    assert mode.nu == 0
    np.testing.assert_array_equal(mode.field(0.0, np.ones(1), np.zeros(0)), [-1.0])
    assert mode.outputs(0.0, np.ones(1), np.zeros(0)) == {}


X, V, W = ca.SX.sym("x"), ca.SX.sym("v"), ca.SX.sym("wind")
M = ca.MX.sym("m", 2)
GOOD = SymbolicMode("m", [X, V], [V, -1.0])
HIT = SymbolicTransition("m", "hit", X, "m")


@pytest.mark.parametrize(
    ("modes", "transitions", "message"),
    [
        ([], [], "at least one mode"),
        ([GOOD, GOOD], [], "mode keys must differ"),
        ([SymbolicMode("m", [X, V], [V])], [], "field of mode 'm' must have size 2, got 1"),
        ([SymbolicMode("m", [X, V], [V, W])], [], "field of mode 'm' depends on wind"),
        (
            [SymbolicMode("m", [X, V], [V, X], outputs={"a": W})],
            [],
            "output of mode 'm' depends on wind",
        ),
        ([SymbolicMode("m", [X, 2 * V], [V, X])], [], "state of mode 'm' must be symbols"),
        ([SymbolicMode("m", [X, V], [V, X], input=W + 1)], [], "input of mode 'm' must be symbols"),
        ([SymbolicMode("m", X, X, time=[V, W])], [], "time of mode 'm' must be one symbol"),
        ([SymbolicMode("m", [X, V], [V, X], input=V)], [], "declares a symbol twice"),
        ([SymbolicMode("m", [X, X], [V, X])], [], "declares a symbol twice"),
        ([SymbolicMode("m", M, M, input=M)], [], "declares a symbol twice"),
        ([SymbolicMode("m", ca.SX.sym("S", 2, 2), [V, X])], [], "must be a column"),
        ([SymbolicMode("m", M, [V, X])], [], "no MX expression"),
        ([SymbolicMode("m", [X, V], ["fast", X])], [], "no SX expression"),
        ([SymbolicMode("m", [X, V], None)], [], "no SX expression"),
        (
            [GOOD],
            [SymbolicTransition("m", "hit", W - X, "m")],
            "guard 'hit' of mode 'm' depends on wind",
        ),
        (
            [GOOD],
            [SymbolicTransition("m", "hit", [X, V], "m")],
            "guard 'hit' of mode 'm' must have size 1",
        ),
        ([GOOD], [SymbolicTransition("m", "hit", X, "m", [X])], "reset of 'hit' .* size 2, got 1"),
        (
            [GOOD],
            [SymbolicTransition("m", "hit", X, "m", [X, W])],
            "reset of 'hit' .* depends on wind",
        ),
        ([GOOD], [SymbolicTransition("m", "hit", X, "sea")], "'sea'.*no mode"),
        ([GOOD], [SymbolicTransition("sea", "hit", X, "m")], "'sea'.*no mode"),
        ([GOOD], [HIT, HIT], "differ"),
        (
            [GOOD, SymbolicMode("n", X, 1)],
            [SymbolicTransition("m", "hit", X, "n")],
            "must have size 1, got 2",
        ),
    ],
)
def test_what_does_not_fit_is_named(modes, transitions, message):
    with pytest.raises(errors.SystemDefinitionError, match=message):
        hybrid_system(modes, transitions)


def test_a_joint_transition_of_an_unknown_guard_is_an_error():
    with pytest.raises(errors.UnknownNameError, match="did you mean 'hit'"):
        hybrid_system([GOOD], [HIT, Joint("m", ["hitt", "hit"], "m")])


def test_an_unknown_mode_is_an_error():
    with pytest.raises(errors.UnknownNameError, match="sea"):
        symbolic_ball().mode("sea")
    with pytest.raises(errors.UnknownNameError, match="sea"):
        symbolic_ball().outgoing("sea")


@KINDS
def test_a_joint_transition_is_taken_when_both_guards_fire(kind):
    x = kind.sym("x", 2)
    single = [SymbolicTransition("go", name, x[i], "stop") for i, name in enumerate("ab")]
    joint = Joint("go", ["b", "a"], "stop", [7.0, 8.0])
    system = hybrid_system(
        [SymbolicMode("go", x, [-1.0, -1.0]), SymbolicMode("stop", kind.sym("y", 2), [0, 0])],
        [*single, joint],
    )
    (event,) = hc.simulate(system, "go", [0.5, 0.5], (0.0, 1.0)).events
    np.testing.assert_array_equal(event.state_after, [7.0, 8.0])
    (event,) = hc.simulate(system, "go", [0.5, 0.6], (0.0, 1.0)).events
    np.testing.assert_allclose(event.state_after, [0.0, 0.1], atol=ROUNDING)


def test_systems_of_the_former_names_are_the_same():
    assert hc.symbolic.Mode is SymbolicMode
    assert hc.symbolic.Transition is SymbolicTransition


@dataclass
class Bounce(ResetModel):
    """A reset of a user, without a hash as it can be compared."""

    restitution: float

    def calc(self, t, x, u):
        return Jump(np.array([x[0], -self.restitution * x[1]]))

    def calc_diff(self, at):
        jacobian = np.diag([1.0, -self.restitution])
        return GuardJacobian(np.zeros(2), jacobian, np.zeros((2, 0)))


def test_a_reset_of_another_class_may_take_the_place_of_an_expression():
    """Its first-order terms are those of the expression to rounding, by the generic formulas."""
    system, at = symbolic_ball(restitution=0.7), JumpPoint(0.4, np.array([0.0, -4.0]), np.zeros(0))
    mode, reset = system.mode("air"), system.outgoing("air").edge(("floor",)).reset
    assert mode.find_compiled_reset(0, Bounce(0.7)) is None
    expected = compute_jump_terms(mode, 0, reset, at, np.zeros(0))
    found = compute_jump_terms(mode, 0, Bounce(0.7), at, np.zeros(0))
    for name, value in expected._asdict().items():
        np.testing.assert_allclose(getattr(found, name), value, rtol=0, atol=40 * ULPS)


def test_parts_that_do_not_fit_have_no_variational_system():
    x = ca.SX.sym("x", 2)
    air = SymbolicMode("air", state=x, field=[x[1], -9.81])
    for edge in (
        SymbolicTransition("air", "g", x[0], "nowhere"),
        SymbolicTransition("nowhere", "g", x[0], "air"),
    ):
        with pytest.raises(errors.SystemDefinitionError, match="'nowhere', an end of a transition"):
            variational([air], [edge])
    with pytest.raises(errors.SystemDefinitionError, match="must have one dimension"):
        variational([], [])


def test_outputs_and_names_of_another_kind_are_refused():
    x = ca.SX.sym("x", 2)
    air = SymbolicMode("air", state=x, field=[x[1], -9.81])
    with pytest.raises(errors.InputError, match="outputs of mode 'air' must be a mapping"):
        hybrid_system([replace(air, outputs=[x[0]])], [])
    for names in (None, "floor"):
        edges = [SymbolicTransition("air", "floor", x[0], "air"), Joint("air", names, "air")]
        with pytest.raises(errors.InputError, match="names of a joint must be a list"):
            hybrid_system([air], edges)


def test_parameters_and_modes_of_another_kind_are_refused():
    x, p = ca.SX.sym("x", 2), ca.SX.sym("p")
    air = SymbolicMode("air", state=x, field=[x[1], -p])
    with pytest.raises(errors.InputError, match=r"parameter .g. must be \(symbol, value\)"):
        parametric_system([air], [], {"g": 9.8})
    with pytest.raises(errors.SystemDefinitionError, match=r"modes\[0\] must be a SymbolicMode"):
        parametric_system([1], [], {"g": (p, 9.8)})
