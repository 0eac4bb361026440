"""Every wrapper of a mode on every kind of mode: each attribute and derivative is the inner one's.

Or what the wrapper says that differs. What is forwarded is compared to the last digit; derivatives
are those of values of the same mode by central differences, to which steps of 1e-5 leave 1e-10 of
curvature and 1e-8 of rounding where entries are of size 1e3.
"""

from dataclasses import dataclass, field
from typing import Any

import casadi as ca
import numpy as np
import pytest
from differences import central
from estimation.legged.machine import machine, state
from hybridctl.robots import block, cube, rrr_door

import hybridctl as hc
from hybridctl.estimation.model import Model
from hybridctl.hybrid.guards import GuardJacobian, GuardSet
from hybridctl.hybrid.laws import HeldInput
from hybridctl.hybrid.mapped import Change
from hybridctl.hybrid.mode import FieldJacobian, Held, JumpPoint, Pace, ResetJacobian
from hybridctl.hybrid.model import StepAhead
from hybridctl.hybrid.relaxation.sliding import Filippov
from hybridctl.hybrid.relaxation.strip import Strips
from hybridctl.hybrid.system import MappedSystem
from hybridctl.mechanics import contact_system
from hybridctl.sensitivity.augmentation import (
    ParameterDerivatives,
    inputs_as_parameters,
    with_guard_offsets,
    with_parameters,
)

H, CLOSE = 1e-5, 1e-7
T, ON_CUBE = 0.3, np.r_[0.0, 0.0, 0.0524, 0.0, 0.0, 0.0, 1.0, np.zeros(6)]


def functions():
    """A mass on a spring under a force, which holds its third state, with two guards."""
    space = hc.VectorSpace(3)
    slopes = np.array([[0.0, 1.0, 0.0], [-4.0, -0.3, 0.0], [0.0, 0.0, 0.0]])
    mode = hc.Mode(
        "m",
        space,
        lambda t, x, u: slopes @ x + np.array([0.0, u[0] * u[1], 0.0]),
        2,
        lambda t, x, u: FieldJacobian(slopes, np.array([[0.0, 0.0], [u[1], u[0]], [0.0, 0.0]])),
        lambda t, x, u: {"force": u * x[0]},
        lambda t, x, u: "m" if x[0] < 5.0 else "other",
        lambda t, x, u: Pace(0.1 + x[0] ** 2, 2.0),
        lambda x: np.array([x[0], x[1], 1.0]),
        Held(
            ("z",),
            lambda x: x[2:] - 1.0,
            np.array([1e-5]),
            ("",),
            jacobian=lambda x: np.array([[0.0, 0.0, 1.0]]),
        ),
    )
    wall = hc.Guard(
        "wall",
        lambda t, x, u: x[0] + np.sin(t),
        lambda t, x, u: GuardJacobian(np.cos(t), np.array([1.0, 0.0, 0.0]), np.zeros(2)),
    )
    fast = hc.Guard(
        "fast",
        lambda t, x, u: 9.0 - x[1] ** 2 - u[1],
        lambda t, x, u: GuardJacobian(
            0.0, np.array([0.0, -2.0 * x[1], 0.0]), np.array([0.0, -1.0])
        ),
    )
    turn = np.diag([1.0, -0.8, 1.0])
    back = hc.Reset(
        lambda t, x, u: turn @ x, lambda t, x, u: ResetJacobian(0.0 * x, turn, np.zeros((3, 2)))
    )
    edges = [hc.Transition("m", guard, back, "m") for guard in (wall, fast)]
    return hc.HybridSystem([mode], edges), "m", np.array([0.4, -0.7, 1.0]), np.array([0.3, 2.0])


def expressions():
    """A driven pendulum of a damping that is an input, between a wall that moves and a stop."""
    t, x, u = ca.SX.sym("t"), ca.SX.sym("x", 2), ca.SX.sym("u", 2)
    swing = hc.symbolic.SymbolicMode(
        "m",
        x,
        [x[1], -9.81 * ca.sin(x[0]) - u[1] * x[1] + u[0] + ca.cos(2.0 * t)],
        u,
        t,
        {"power": u[0] * x[1]},
    )
    wall = hc.symbolic.SymbolicTransition(
        "m", "wall", x[0] + 0.4 - 0.1 * ca.sin(t), "m", [x[0], -x[1]]
    )
    fast = hc.symbolic.SymbolicTransition(
        "m", "fast", 9.0 - x[1] ** 2 - u[0], "m", [x[0], 0.5 * x[1]]
    )
    system = hc.symbolic.hybrid_system([swing], [wall, fast])
    return system, "m", np.array([0.7, -0.3]), np.array([0.3, 0.2])


def generated():
    """A cube that stands on a face, pushed: redundant contacts, compiled, on a manifold."""
    system, key = cube.system(actuated=True), ("stick", "open") * 4
    x = system.mode(key).project(system.space.integrate(ON_CUBE, 0.01 * np.arange(12.0)))
    return system, key, x, 0.002 * np.arange(1.0, 7.0)


def dynamics():
    """A block that slides on a corner, by Pinocchio's terms."""
    made = block.system(actuated=True)
    system = contact_system(made.robot, made.contacts, terms="pinocchio")
    key = ("slip+", "open")
    x = system.mode(key).project(np.array([0.1, 0.06, 0.2, 1.0, 0.0, 0.3]))
    return system, key, x, np.array([0.3, 0.1, -0.2])


def flying():
    """The door with its arm, no contact closed."""
    x = np.array([-0.13, 1.37, -0.67, 0.35, 0.1, 0.3, 0.0, -0.6])
    return rrr_door.system(), ("open", "open"), x, np.array([0.2, -0.1, 0.3])


def legged():
    """The base of a legged robot, with a flow in closed form."""
    base, system = machine()
    key = ("stick", "stick")
    x, u = state(base, key, np.random.default_rng(0))
    return system, key, x, u


KINDS = [functions, expressions, generated, dynamics, flying, legged]


@dataclass
class Wrapped:
    """A wrapped system and a point of it, and what it does otherwise than the inner mode.

    p: how many states are beside the inner ones. v: how many inputs are held.
    """

    system: Any
    x: Any
    u: Any
    p: int = 0
    v: int = 0
    kept: slice = field(default_factory=lambda: slice(None))
    sign: float = 1.0
    t: float = T
    steps: bool = True
    paced: bool = True
    scale: float = np.inf


def plainly(system, key, x, u):
    return Wrapped(MappedSystem(system, lambda key: Change()), x, u, steps=False)


def without_a_guard(system, key, x, u):
    names = system.mode(key).guard_names
    if not names:
        pytest.skip("it has no guards")
    reduced = Model(system, None).without(key, names[:1])
    return Wrapped(reduced, x, u, kept=slice(1, None))


def with_other_guards(system, key, x, u):
    """The same ones, given again."""
    own = system.outgoing(key).guards
    given = GuardSet(own.names, own.values, own.jacobian, own.scales)

    def ways(k):
        return type(system.outgoing(k))(given, system.outgoing(k).edge)

    return Wrapped(hc.HybridSystem(system.mode, ways), x, u, steps=False)


def with_held_inputs(system, key, x, u):
    held, _ = inputs_as_parameters(system, {"last": u[-1]})
    return Wrapped(held, x, u[:-1], v=1)


def run_of(system, key, x, u):
    return hc.HybridTrajectory((), (), system)


def as_states(system, key, x, u):
    """The last input as a parameter beside the state; its derivatives are those by this input."""
    held, by = inputs_as_parameters(system, {"last": u[-1]})
    wrapped, _ = with_parameters(held, run_of(system, key, x, u), by)
    return Wrapped(wrapped, np.append(x, 0.0), u[:-1], p=1, v=1, steps=False)


def without_effect(system, key, x, u):
    """Two parameters that change nothing."""
    mode = system.mode(key)
    nothing = ParameterDerivatives(
        ("a", "b"),
        lambda key, t, x, u: np.zeros((mode.space.ndx, 2)),
        lambda key, t, x, u: np.zeros((len(mode.guard_names), 2)),
        None,
        moves_borders=False,
    )
    wrapped, _ = with_parameters(system, run_of(system, key, x, u), nothing)
    return Wrapped(wrapped, np.append(x, [0.0, 0.0]), u, p=2, steps=False)


def backwards(system, key, x, u):
    model = Model(system, None)
    mode, _ = model.backwards(key, x, 2.0 * T, 1e-4, HeldInput(u))
    made = hc.HybridSystem([mode], [])
    return Wrapped(made, x, u, kept=slice(0, 0), sign=-1.0, steps=False, paced=False)


def with_starts_refused(system, key, x, u):
    if not isinstance(system.mode(key).space, hc.VectorSpace):
        pytest.skip("guards are glued in vector spaces")
    glued = Filippov(Strips(system, 0.0))
    glued.strip = lambda key, name: None  # no guard of these has two sides
    glued.finest = 0.5
    return Wrapped(glued, x, u, scale=0.5)


WRAPPERS = [
    plainly, without_a_guard, with_other_guards, with_held_inputs, as_states, without_effect,
    backwards, with_starts_refused,
]  # fmt: skip


@pytest.mark.parametrize("wrap", WRAPPERS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", KINDS, ids=lambda f: f.__name__)
def test_a_wrapped_mode_is_the_inner_one_but_for_what_differs(kind, wrap):
    system, key, x, u = kind()
    inner, w = system.mode(key), wrap(system, key, x, u)
    mode, n = w.system.mode(key), inner.space.nx
    at, its = inner.calc(T, x, u), mode.calc(w.t, w.x, w.u)

    assert (mode.key, mode.nu) == (key, inner.nu - w.v)
    assert (mode.space.nx, mode.space.ndx) == (n + w.p, inner.space.ndx + w.p)
    assert mode.guard_names == inner.guard_names[w.kept]
    np.testing.assert_array_equal(
        mode.guard_scales, np.minimum(inner.guard_scales, w.scale)[w.kept]
    )
    np.testing.assert_array_equal(its.field, np.append(w.sign * at.field, np.zeros(w.p)))
    np.testing.assert_array_equal(its.guards, at.guards[w.kept])
    for i, value in enumerate(its.guards):
        assert mode.guard(i, w.t, w.x, w.u) == value
    assert mode.selects == inner.selects
    assert mode.select_at(its) == inner.select_at(at)
    if w.paced:
        assert mode.paced == inner.paced
        assert mode.pace_at(its) == inner.pace_at(at)
    outputs = inner.outputs_at(at)
    assert mode.outputs_at(its).keys() == outputs.keys()
    for name, value in mode.outputs_at(its).items():
        np.testing.assert_array_equal(value, outputs[name])
    check_held(inner, mode, w, x)


def check_held(inner, mode, w, x):
    assert (mode.project is None) == (inner.project is None)
    if inner.held is not None:
        off = inner.space.integrate(x, 1e-3 * np.ones(inner.space.ndx))
        beside = np.concatenate((off, w.x[len(x) :]))
        np.testing.assert_array_equal(mode.held.residuals(beside), inner.held.residuals(off))
        assert mode.held.names == inner.held.names
        expected = inner.held.jacobian(off)
        found = mode.held.jacobian(beside)
        np.testing.assert_array_equal(found[:, : expected.shape[1]], expected)
        assert not found[:, expected.shape[1] :].any()
        projected = mode.project(beside)
        np.testing.assert_array_equal(projected[: len(x)], inner.project(off))
        np.testing.assert_array_equal(projected[len(x) :], w.x[len(x) :])


def assert_close(found, expected, what):
    scale = max(1.0, np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(found, expected, rtol=0, atol=CLOSE * scale, err_msg=what)


@pytest.mark.parametrize("wrap", WRAPPERS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", KINDS, ids=lambda f: f.__name__)
def test_its_derivatives_are_those_of_its_values(kind, wrap):
    """By parameters that stand in for an input, those by this input."""
    system, key, x, u = kind()
    inner, w = system.mode(key), wrap(system, key, x, u)
    mode, ndx = w.system.mode(key), inner.space.ndx
    assert mode.differentiable == inner.differentiable
    assert mode.guards_differentiable == inner.guards_differentiable
    slopes = mode.calc_diff(mode.calc(w.t, w.x, w.u))
    by_last = {
        "field": inner.jacobian(T, x, u).input,
        "guards": inner.guard_jacobian(T, x, u).input,
    }
    for name in ("field", "guards"):
        d, value = getattr(slopes, name), getattr(mode, name)
        moved = lambda dx, f=value: f(w.t, mode.space.integrate(w.x, dx), w.u)  # noqa: E731
        by_state = central(moved, mode.space.ndx, H).reshape(d.state.shape)
        if w.p and w.v:
            by_state[: len(by_last[name]), ndx:] = by_last[name][w.kept, -1:]
        assert_close(d.state, by_state, name)
        driven = lambda du, f=value: f(w.t, w.x, w.u + du)  # noqa: E731
        by_input = central(driven, mode.nu, H).reshape(d.input.shape)
        assert_close(d.input, by_input, name)
    free = inner.free_input_at(inner.calc(T, x, u))[:, : mode.nu]
    found = mode.free_input_at(mode.calc(w.t, w.x, w.u))
    np.testing.assert_array_equal(found, np.vstack((w.sign * free, np.zeros((w.p, mode.nu)))))
    for i, row in enumerate(zip(*slopes.guards, strict=True)):
        for part, whole in zip(mode.guard_row_at(i, mode.calc(w.t, w.x, w.u)), row, strict=True):
            np.testing.assert_array_equal(part, whole)
    later, earlier = (mode.guards(w.t + s, w.x, w.u) for s in (H, -H))
    assert_close(slopes.guards.time, (later - earlier) / (2.0 * H), "time")


@pytest.mark.parametrize("wrap", WRAPPERS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", KINDS, ids=lambda f: f.__name__)
def test_whole_steps_are_those_of_the_inner_mode_or_none(kind, wrap):
    system, key, x, u = kind()
    inner, w = system.mode(key), wrap(system, key, x, u)
    mode, more = w.system.mode(key), (1e-3, 1e-9, 1e-9)
    assert mode.compiled == (inner.compiled and w.steps)
    found, expected = (
        m.step(StepAhead(t, y, *more), HeldInput(v))
        for m, t, y, v in ((mode, w.t, w.x, w.u), (inner, T, x, u))
    )
    moved = mode.transition(StepAhead(w.t, w.x, *more), w.u)
    if not mode.compiled:
        assert found is None
        assert moved is None
        return
    np.testing.assert_array_equal(moved.matrix, inner.transition(StepAhead(T, x, *more), u).matrix)
    if expected is None:  # of a flow in closed form
        assert found is None
        return
    np.testing.assert_array_equal(found.states, expected.states)
    np.testing.assert_array_equal(found.inputs, np.tile(w.u, (8, 1)))
    np.testing.assert_array_equal(found.guards, expected.guards[:, w.kept])
    np.testing.assert_array_equal(found.bounds, expected.bounds[w.kept])


@pytest.mark.parametrize("wrap", WRAPPERS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", KINDS, ids=lambda f: f.__name__)
def test_resets_are_the_inner_ones_beside_the_parameters(kind, wrap):
    system, key, x, u = kind()
    if wrap in (backwards, with_starts_refused):
        pytest.skip("it has other edges")
    w, ndx = wrap(system, key, x, u), system.mode(key).space.ndx
    for name in w.system.mode(key).guard_names:
        if name.endswith(("jams", "closes")):  # not from here
            continue
        edge, own = (s.outgoing(key).edge((name,)) for s in (w.system, system))
        assert edge.target == own.target
        assert edge.reset.differentiable == own.reset.differentiable
        jump, expected = edge.reset(w.t, w.x, w.u), own.reset(T, x, u)
        assert jump.mode == expected.mode
        np.testing.assert_array_equal(jump.state, np.append(expected.state, w.x[len(x) :]))
        d = edge.reset.calc_diff(JumpPoint(w.t, w.x, w.u, jump.report))
        own_d = own.reset.calc_diff(JumpPoint(T, x, u, expected.report))
        rows = len(own_d.time)
        np.testing.assert_array_equal(d.state[:rows, :ndx], own_d.state)
        np.testing.assert_array_equal(d.state[rows:, ndx:], np.eye(w.p))
        np.testing.assert_array_equal(d.input[:rows], own_d.input[:, : len(w.u)])
        if w.p and w.v:
            np.testing.assert_array_equal(d.state[:rows, ndx:], own_d.input[:, -1:])


def test_an_offset_of_a_guard_moves_it_alone():
    system, key, *_ = expressions()
    run = hc.simulate(system, key, [1.2, 0.0], (0.0, 3.0), lambda t, x: np.array([0.1, 0.2]))
    event = run.guard_events[0]
    offset, moved = with_guard_offsets(system, event)
    d = offset.mode(key).guard_jacobian(event.time, moved.state_before, event.input_before)
    (fired,) = event.guards
    expected = [[float(name == fired)] for name in system.mode(key).guard_names]
    np.testing.assert_array_equal(d.state[:, 2:], expected)


@pytest.mark.parametrize("kind", [generated, dynamics, flying], ids=lambda f: f.__name__)
def test_a_pushed_mode_is_the_inner_one_under_a_wrench_of_size_zero(kind):
    """But for rounding, as generalized forces enter other functions; then there is a size, too."""
    system, key, x, u = kind()
    wrench = hc.mechanics.Wrench(system.contacts[0].frame, (0.6, 0.0, 0.8), 0.0, 1.0)
    pushed = system.pushed(wrench)
    inner, mode, none = system.mode(key), pushed.mode(key), np.append(u, 0.0)
    at, its = inner.calc(T, x, u), mode.calc(T, x, none)
    assert (mode.key, mode.nu, mode.guard_names) == (key, inner.nu + 1, inner.guard_names)
    np.testing.assert_array_equal(mode.guard_scales, inner.guard_scales)
    assert_close(its.field, at.field, "field")
    assert_close(its.guards, at.guards, "guards")
    assert (mode.selects, mode.paced) == (inner.selects, inner.paced)
    assert mode.select_at(its) == inner.select_at(at)
    np.testing.assert_allclose(mode.pace_at(its), inner.pace_at(at))
    outputs = mode.outputs_at(its)
    for name, value in inner.outputs_at(at).items():
        assert_close(outputs[name], value, name)
    check_held(inner, mode, Wrapped(pushed, x, none), x)

    acting = np.append(u, 0.05)
    slopes = mode.calc_diff(mode.calc(T, x, acting))
    for name in ("field", "guards"):
        d, value = getattr(slopes, name), getattr(mode, name)
        moved = lambda dx, f=value: f(T, mode.space.integrate(x, dx), acting)  # noqa: E731
        assert_close(d.state, central(moved, mode.space.ndx, H).reshape(d.state.shape), name)
        driven = lambda du, f=value: f(T, x, acting + du)  # noqa: E731
        assert_close(d.input, central(driven, mode.nu, H).reshape(d.input.shape), name)
    free = mode.free_input_at(its)
    assert_close(free[:, :-1], inner.free_input_at(at), "free input")
    for name in mode.guard_names:
        if name.endswith(("jams", "closes")):  # not from here
            continue
        edge, own = (s.outgoing(key).edge((name,)) for s in (pushed, system))
        assert edge.target == own.target
        jump, expected = edge.reset(T, x, none), own.reset(T, x, u)
        assert_close(jump.state, expected.state, name)
        d = edge.reset.calc_diff(JumpPoint(T, x, none, jump.report))
        own_d = own.reset.calc_diff(JumpPoint(T, x, u, expected.report))
        assert_close(d.state, own_d.state, name)
        assert_close(d.input[:, :-1], own_d.input, name)
