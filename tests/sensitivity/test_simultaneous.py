"""One-sided derivatives of simultaneous events, against simulations that meet them one by one."""

import pickle
from itertools import product

import casadi as ca
import numpy as np
import pytest
from hybridctl.experiments.rrr_door.reference import OPEN
from hybridctl.robots import biped, block
from hybridctl.robots.bodies import free_body
from planning.plate import CLOSED, MASS, plate
from sensitivity import constant_pieces
from sensitivity.struck_door import struck_door

import hybridctl as hc
from hybridctl import symbolic
from hybridctl.base.errors import AmbiguousEventError, GrazingError, UnknownNameError
from hybridctl.hybrid.laws import DifferentiableLaw
from hybridctl.sensitivity.piecewise import PiecewiseLinearJump

TIGHT = {"rtol": 1e-11, "atol": 1e-11}
STEPS = np.array([1e-2, 1e-3, 1e-4])


def nominal(system, mode, x0, span, policy=None, **options):
    run = hc.simulate(system, mode, x0, span, policy, **TIGHT)
    return run, hc.linearize(system, run, **options, **TIGHT)


def one_sided_errors(system, mode, x0, span, policy, run, directions, predicted):
    """Relative errors (steps, directions) of (x(end; x0 + h dx) - x(end; x0)) / h.

    Perturbed runs take each guard on its own, however close they are (event_window=0).
    """
    errors = []
    for h in STEPS:
        ends = [
            hc.simulate(system, mode, x0 + h * dx, span, policy, event_window=0.0, **TIGHT)
            for dx in directions
        ]
        found = np.array([(end.final_state - run.final_state) / h for end in ends])
        errors.append(np.abs(found - predicted).max(axis=1) / np.abs(predicted).max(axis=1))
    return np.array(errors)


def assert_first_order(errors):
    """The error of a one-sided difference falls as h, down to the 1e-11 / h of the flow."""
    floor = 100.0 * TIGHT["rtol"] / STEPS[:, None]
    assert (errors[1:] <= 0.2 * errors[:-1] + floor[1:]).all(), errors
    assert errors[-1].max() < 1e-2 * max(1.0, errors[0].max()), errors


def directions(n, count=6, seed=0):
    return np.random.default_rng(seed).normal(size=(count, n))


# Constant fields


@pytest.mark.parametrize("field", sorted(constant_pieces.FIGURE_3))
@pytest.mark.parametrize("seed", range(3))
def test_constant_fields_have_no_error_at_all(field, seed):
    """There the flow itself is piecewise affine."""
    delta = constant_pieces.FIGURE_3[field].__getitem__
    system, x0 = constant_pieces.system(delta, 2), constant_pieces.before_corner(delta, 2)
    run, lin = nominal(system, (-1, -1), x0, (0.0, 1.5))
    assert len(run.events) == 1
    assert not lin.is_linear
    assert lin.jumps[0].is_linear() == (field == "linear")
    dx = directions(2, seed=seed)
    errors = one_sided_errors(system, (-1, -1), x0, (0.0, 1.5), None, run, dx, lin.derivative(dx))
    assert errors.max() < 1e-8


@pytest.mark.parametrize("n", [3, 4])
def test_constant_fields_of_more_surfaces(n):
    rng = np.random.default_rng(n)
    table = {signs: rng.uniform(-0.6, 0.6, n) for signs in product((-1, 1), repeat=n)}
    system, x0 = (
        constant_pieces.system(table.__getitem__, n),
        constant_pieces.before_corner(table.__getitem__, n),
    )
    run, lin = nominal(system, (-1,) * n, x0, (0.0, 2.0))
    assert len(run.events) == 1
    assert len(run.events[0].guards) == n
    dx = directions(n, seed=n)
    errors = one_sided_errors(system, (-1,) * n, x0, (0.0, 2.0), None, run, dx, lin.derivative(dx))
    assert errors.max() < 1e-8


# The biped


def soft(damping):
    p = biped.BipedParameters()
    return biped.soft(p, damping=damping), biped.start(p), (0.0, 0.6)


@pytest.mark.parametrize("damping", ["none", "linear", "by_feet"])
def test_a_biped_on_soft_ground(damping):
    system, x0, span = soft(damping)
    run, lin = nominal(system, biped.AIR, x0, span)
    assert run.events[0].guards == ("left closes", "right closes")
    dx = directions(6)
    orders = {lin.jumps[0].order(z) for z in dx @ lin.arcs[0].end.T}
    assert len(orders) == 2
    assert_first_order(
        one_sided_errors(system, biped.AIR, x0, span, None, run, dx, lin.derivative(dx))
    )


@pytest.mark.parametrize(("damping", "smooth"), [("none", True), ("by_feet", False)])
def test_whether_one_map_serves_both_orders(damping, smooth):
    """Without dampers the flow is C^1 over the landing, [Bder] 3.2.2; with beta / 2 it is not."""
    system, x0, span = soft(damping)
    _, lin = nominal(system, biped.AIR, x0, span)
    dx = directions(6)
    odd = np.abs(lin.derivative(dx) + lin.derivative(-dx)).max()
    assert (odd < 1e-9) == smooth
    assert lin.jumps[0].is_linear() == smooth


def test_a_biped_on_rigid_ground_whose_impacts_commute():
    """At length 1 no impact lifts the other foot: Da_l M^-1 Da_r^T < 0."""
    p = biped.BipedParameters(length=1.0)
    system, x0 = biped.rigid(p), biped.start(p)
    span = (0.0, biped.touchdown(p)[0] + 0.1)
    run, lin = nominal(system, biped.AIR, x0, span)
    assert isinstance(lin.jumps[0], PiecewiseLinearJump)
    dx = directions(6)
    assert_first_order(
        one_sided_errors(system, biped.AIR, x0, span, None, run, dx, lin.derivative(dx))
    )


def test_impacts_that_do_not_commute_are_refused_by_name():
    p = biped.BipedParameters()
    system = biped.rigid(p)
    run = hc.simulate(system, biped.AIR, biped.start(p), (0.0, 0.45), **TIGHT)
    with pytest.raises(
        AmbiguousEventError, match=r"'left closes', 'right closes'.*order\s+matters"
    ):
        hc.linearize(system, run)


def test_a_level_landing_on_four_feet_is_refused_in_two_lines():
    """The impact of one corner throws the others up, which then hit later and elsewhere.

    A landing that is not level has isolated events, and its derivative is that of differences.
    """
    robot = hc.mechanics.Robot.from_urdf(
        free_body("table", 5.0, (0.1, 0.2, 0.25)), root="floating", actuated=()
    )
    ground = hc.mechanics.Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    corners = [
        hc.mechanics.Contact(f"{x:+}{y:+}", "table", ground, offset=(0.3 * x, 0.2 * y, -0.3))
        for x, y in product((1, -1), repeat=2)
    ]
    system = hc.mechanics.contact_system(robot, corners)
    x0 = np.zeros(13)
    x0[2], x0[6] = 0.31, 1.0
    run = hc.simulate(system, ("open",) * 4, x0, (0.0, 0.1), **TIGHT)
    (event,) = run.events
    assert len(event.guards) == 4
    with pytest.raises(AmbiguousEventError, match="lift one foot a little") as caught:
        hc.linearize(system, run)
    error = caught.value
    assert str(error).count("\n") == 1
    assert len(str(error)) < 600
    first, second = error.orders
    assert sorted(first) == sorted(second)
    assert error.modes[0] != error.modes[1]
    assert np.abs(np.subtract(*error.states)).max() > 0.1
    again = pickle.loads(pickle.dumps(error))
    assert again.orders == error.orders

    space = system.mode(event.mode_before).space
    tilted = space.integrate(x0, np.concatenate(([0, 0, 0, 0.01, 0.02, 0], np.zeros(6))))
    run, lin = nominal(system, ("open",) * 4, tilted, (0.0, 0.03))
    assert [len(event.guards) for event in run.events[:1]] == [1]
    assert lin.is_linear
    h, dx = 1e-6, directions(12, count=3)
    for d, found in zip(dx, lin.derivative(dx), strict=True):
        ends = [
            hc.simulate(system, ("open",) * 4, space.integrate(tilted, s * d), (0.0, 0.03), **TIGHT)
            for s in (h, -h)
        ]
        last = space.difference(ends[1].final_state, ends[0].final_state) / (2.0 * h)
        np.testing.assert_allclose(found, last, rtol=0.0, atol=1e-5 * np.abs(last).max())


# The door


@pytest.fixture(scope="module")
def door():
    """Both corners hit the door at 0.05 s, under constant torques; found by flowing back."""
    return struck_door()


def test_both_corners_of_the_robot_hit_the_door(door):
    system, x0, u = door
    policy = lambda t, x: u  # noqa: E731
    run, lin = nominal(system, OPEN, x0, (0.0, 0.1), policy)
    assert len(run.events) == 1
    assert len(run.events[0].guards) == 2
    dx = directions(len(x0))
    assert len({lin.jumps[0].order(z) for z in dx @ lin.arcs[0].end.T}) == 2
    errors = one_sided_errors(system, OPEN, x0, (0.0, 0.1), policy, run, dx, lin.derivative(dx))
    assert_first_order(errors)


# Inputs in phantom modes


PUSH, RELEASE = 3.0, -1.0


def pushed(carts=2, wall=0.0):
    """Carts (y, v) that roll into springs, each with the input as its acceleration.

    Springs begin at zero, that of the last cart at `wall`. A cart that has closed feels twice the
    input, so the phantom modes see which input they get.
    """
    y, v, u = ca.SX.sym("y", carts), ca.SX.sym("v", carts), ca.SX.sym("u")
    modes, transitions = [], []
    depth = y - ca.DM([0.0] * (carts - 1) + [wall])
    for key in product((0, 1), repeat=carts):
        gain = ca.DM([1.0 + k for k in key])
        mixed = ca.DM([1.0 + 0.5 * sum(key)] * carts)
        field = ca.vertcat(v, gain * mixed * u - 5.0 * ca.DM(key) * depth)
        modes.append(symbolic.SymbolicMode(key, ca.vertcat(y, v), field, input=u))
        for j in range(carts):
            if not key[j]:
                target = tuple(1 if i == j else k for i, k in enumerate(key))
                reset = ca.vertcat(y, v * ca.DM([0.5 if i == j else 1.0 for i in range(carts)]))
                transitions.append(
                    symbolic.SymbolicTransition(key, f"cart {j} hits", depth[j], target, reset)
                )
    return symbolic.hybrid_system(modes, transitions)


class Switching:
    """PUSH until `count` carts have hit, RELEASE from then on."""

    def __init__(self, count):
        self.count = count

    def law(self, history):
        done = sum(len(event.guards) for event in history.events) >= self.count
        u = np.array([RELEASE if done else PUSH])
        return lambda t, x: u


@pytest.mark.parametrize(("phantom_input", "count"), [("pushing", 2), ("withdrawing", 1)])
def test_the_input_in_phantom_modes(phantom_input, count):
    """Pushing goes on until both have hit; withdrawing ends with the first: [RS] (4.15), (4.16)."""
    system, x0, span = pushed(), np.array([1.0, 1.0, -3.0, -3.0]), (0.0, 0.9)
    run, lin = nominal(system, (0, 0), x0, span, Switching(2), phantom_input=phantom_input)
    assert len(run.events) == 1
    assert len(run.events[0].guards) == 2
    dx = directions(4)
    policy = Switching(count)
    assert_first_order(
        one_sided_errors(system, (0, 0), x0, span, policy, run, dx, lin.derivative(dx))
    )


class SwitchingByLaw(Switching):
    """The same with laws of which `linearize` knows the derivative."""

    def law(self, history):
        u = super().law(history)(0.0, history.state)
        return DifferentiableLaw.held(u, np.zeros(1), len(history.state))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_law_of_how_many_have_hit_is_asked_with_all_of_them_in_phantom_modes(count):
    """Of three carts that hit at once the law sees one after the other, as beside the nominal."""
    system, x0, span = pushed(3), np.array([1.0] * 3 + [-3.0] * 3), (0.0, 0.9)
    policy = SwitchingByLaw(count)
    run = hc.simulate(system, (0, 0, 0), x0, span, policy, **TIGHT)
    lin = hc.linearize(system, run, policy=policy, **TIGHT)
    assert len(run.events) == 1
    assert len(run.events[0].guards) == 3
    dx = directions(6)
    assert_first_order(
        one_sided_errors(system, (0, 0, 0), x0, span, policy, run, dx, lin.derivative(dx))
    )


def test_pushing_and_withdrawing_differ():
    system, x0 = pushed(), np.array([1.0, 1.0, -3.0, -3.0])
    maps = [
        nominal(system, (0, 0), x0, (0.0, 0.9), Switching(2), phantom_input=way)[1]
        for way in ("pushing", "withdrawing")
    ]
    dx = directions(4)
    assert np.abs(maps[0].derivative(dx) - maps[1].derivative(dx)).max() > 0.1


def test_an_unknown_phantom_input_is_refused():
    system, x0, span = soft("none")
    run = hc.simulate(system, biped.AIR, x0, span, **TIGHT)
    with pytest.raises(UnknownNameError, match="phantom_input"):
        hc.linearize(system, run, phantom_input="pulling")


# Guards that others do


def sliding_block():
    """A block on both corners that slides to a stop: both of them stop at once, always."""
    system = block.system(block.BlockParameters())
    x0 = np.array([0.0, 0.05, 0.0, 0.6, 0.0, 0.0])
    return system, ("slip+", "slip+"), x0, (0.0, 0.4)


def test_a_guard_that_another_one_has_done_is_the_identity():
    system, mode, x0, span = sliding_block()
    run, lin = nominal(system, mode, x0, span)
    (event,) = run.events
    assert event.guards == ("left sticks", "right sticks")
    (jump,) = lin.jumps
    first, second = jump.matrix((0, 1)), jump.matrix((1, 0))
    for matrix in (first, second):
        assert np.linalg.matrix_rank(matrix - np.eye(6), tol=1e-9) == 1, "one jump, not two"
    dx = np.array([0.3, 0.0, 0.0, 0.7, 0.0, 0.0])
    np.testing.assert_allclose(first @ dx, second @ dx, atol=1e-9)
    h = 1e-4
    end = hc.simulate(system, mode, x0 + h * dx, span, **TIGHT)
    back = hc.simulate(system, mode, x0 - h * dx, span, **TIGHT)
    found = (end.final_state - back.final_state) / (2.0 * h)
    np.testing.assert_allclose(lin.derivative(dx), found, atol=1e-7)
    assert lin.derivative(dx)[0] == pytest.approx(0.3 + 0.7 * 0.6 / (0.3 * 9.81), abs=1e-7)
    np.testing.assert_allclose(lin.state_transition @ dx, lin.derivative(dx), atol=1e-12)


# A gap that closes


@pytest.mark.parametrize("side", [0, 1])
def test_the_derivative_is_continuous_as_the_gap_between_two_guards_closes(side):
    """With cart `side` ahead by a gap, both hit one after the other; as the gap closes, the
    linear map tends to the piece of the joint event in which that cart is first."""
    system, span = pushed(), (0.0, 0.9)
    x0 = np.array([1.0, 1.0, -3.0, -3.0])
    _, corner = nominal(system, (0, 0), x0, span, Switching(2))
    order = (side, 1 - side)
    limit = corner.arcs[1].end @ corner.jumps[0].matrix(order) @ corner.arcs[0].end
    gaps = 10.0 ** np.arange(-2.0, -13.0, -2.0)
    off = []
    for gap in gaps:
        x = x0.copy()
        x[side] -= gap
        _, lin = nominal(system, (0, 0), x, span, Switching(2))
        if lin.is_linear:
            found = lin.state_transition
        else:
            assert gap < 1e-6, "the event window of 1e-8 s joins only what is this close"
            found = lin.arcs[1].end @ lin.jumps[0].matrix(order) @ lin.arcs[0].end
        off.append(np.abs(found - limit).max())
    assert (np.array(off) <= 20.0 * gaps + 1e-7).all(), off


def test_a_phantom_mode_that_is_not_crossed_is_named():
    """After the first cart the second would not move any more."""
    y, v = ca.SX.sym("y", 2), ca.SX.sym("v", 2)
    state = ca.vertcat(y, v)
    stop = ca.vertcat(y, 0.0, 0.0)
    modes = [
        symbolic.SymbolicMode(k, state, ca.vertcat(v, 0.0, 0.0)) for k in ("ab", "a", "b", "none")
    ]
    system = symbolic.hybrid_system(
        modes,
        [
            symbolic.SymbolicTransition("ab", "a", y[0], "b", stop),
            symbolic.SymbolicTransition("ab", "b", y[1], "a", stop),
            symbolic.SymbolicTransition("a", "a", y[0], "none", stop),
            symbolic.SymbolicTransition("b", "b", y[1], "none", stop),
        ],
    )
    run = hc.simulate(system, "ab", [1.0, 1.0, -1.0, -1.0], (0.0, 1.5), **TIGHT)
    assert len(run.events[0].guards) == 2
    with pytest.raises(GrazingError, match=r"guard '[ab]' of mode '[ab]' is not crossed"):
        hc.linearize(system, run)([1.0, 0.0, 0.0, 0.0])


def test_contacts_that_an_input_releases_together_do_so_whatever_the_state():
    """A lift that grows with time: x is at rest, then z'' = F / m - g, so that dx flows freely.

    Half a part in 1e9 later than for the plate alone, as its rail has a mass of 1e-9 kg.
    """
    span, at = 1.0, 0.5

    def lift(t, x):
        return np.array([MASS * 9.81 * t / at, 0.0])

    run, flow = nominal(plate(), CLOSED, np.zeros(4), (0.0, span), lift)
    (event,) = run.events
    assert event.guards == ("left opens", "right opens")
    assert event.time == pytest.approx(at, rel=1e-9)
    free = np.kron([[1.0, span], [0.0, 1.0]], np.eye(2))
    np.testing.assert_allclose(flow(np.eye(4)).T, free, rtol=0, atol=1e-9)
