"""The first-order map of whole trajectories, against differences of the event-located flow."""

import casadi as ca
import numpy as np
import pytest
from hybridctl.experiments.rrr_door_reference import OPEN, Design, build
from hybridctl.robots import ball, biped, block, cube, rrr_door
from mechanics.flows import differences, transition
from scipy.integrate import solve_ivp

import hybridctl as hc
from hybridctl import symbolic
from hybridctl.errors import InputError, SystemDefinitionError
from hybridctl.hybrid.mode import FieldJacobian, GuardJacobian, ResetJacobian
from hybridctl.sensitivity.gains import JumpGains

G = 9.81
TIGHT = {"rtol": 1e-12, "atol": 1e-12}
STEPS = 10.0 ** np.arange(-2.0, -7.0, -1.0)


def linearized(system, mode, x0, span, policy=None, **options):
    options = {**TIGHT, **options}
    run = hc.simulate(system, mode, x0, span, policy, **options)
    return hc.linearize(system, run, **options)


def v_curve(central, predicted, steps=STEPS):
    """Errors of central differences over the steps, relative to the largest derivative."""
    scale = max(1.0, float(np.abs(predicted).max()))
    return np.array([np.abs(central(h) - predicted).max() / scale for h in steps])


def assert_v(errors, bottom):
    """It falls as h^2 until rounding takes over, at no more than `bottom`."""
    assert errors.min() <= bottom, errors
    if errors[0] > 1e-6:
        assert errors[1] < 0.05 * errors[0] or errors[2] < 5e-3 * errors[0], errors


def flow_errors(lin, policy=None, *, steps=STEPS, along=None, **options):
    """The V-curve of a linearization against differences of its own simulation."""
    run, first = lin.trajectory, lin.trajectory.arcs[0]
    n = first.space.ndx
    along = np.random.default_rng(n).normal(size=(3, n)) if along is None else along
    options = {**TIGHT, **options} if policy is None else {**TIGHT, **options, "policy": policy}
    x0, span = first(first.start), (run.start, run.end)
    return v_curve(
        lambda h: differences(lin.system, first.mode, x0, span, h, along.T, **options).T,
        lin(along),
        steps,
    )


# Whole runs


@pytest.mark.parametrize("end", [0.5, 1.1, 1.75, 2.0])
def test_a_ball_that_bounces(end):
    system = ball.system(ball.Parameters(slope=0.0, restitution=0.8))
    lin = linearized(system, ("open",), [0.0, 1.0, 0.3, 0.0], (0.0, end))
    assert_v(flow_errors(lin), 1e-9)


def test_the_map_of_a_bouncing_ball_by_hand():
    """Between impacts a unit shear; at an impact -e on height and speed, and 2 a with G = 9.81
    added to the speed: (D_x R) and (f+ - D_x R f-) / v-, [Salt] (2)."""
    e, height = 0.8, 1.0
    fall = np.sqrt(2.0 * height / G)
    lin = linearized(
        ball.system(ball.Parameters(slope=0.0, restitution=e)), ("open",), [0, 1.0, 0, 0], (0, 1.0)
    )
    v = -G * fall

    def shear(t):
        return np.array([[1.0, t], [0.0, 1.0]])

    jump = np.array([[-e, 0.0], [-G * (1.0 + e) / v, -e]])
    expected = shear(1.0 - fall) @ jump @ shear(fall)
    found = lin.state_transition[np.ix_([1, 3], [1, 3])]
    np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize(("friction", "mode"), [(0.1, "slip+"), (0.9, "stick")])
def test_a_ball_that_lands_on_a_slope(friction, mode):
    system = ball.system(ball.Parameters(slope=0.3, friction=friction))
    lin = linearized(system, ("open",), [0.0, 1.0, 0.3, 0.0], (0.0, 1.0))
    assert lin.trajectory.final_mode == (mode,)
    assert_v(flow_errors(lin), 1e-9)


def paddle():
    """A ball (y, v) on a paddle at height 0.1 sin 5 t, restitution 0.8."""
    y, v, t = ca.SX.sym("y"), ca.SX.sym("v"), ca.SX.sym("t")
    height, rate = 0.1 * ca.sin(5.0 * t), 0.5 * ca.cos(5.0 * t)
    return symbolic.hybrid_system(
        [symbolic.Mode("air", state=[y, v], field=[v, -G - 0.1 * v], time=t)],
        [symbolic.Transition("air", "hits", y - height, "air", [y, 1.8 * rate - 0.8 * v])],
    )


def test_a_ball_on_a_moving_paddle():
    lin = linearized(paddle(), "air", [1.0, 0.2], (0.0, 1.4))
    assert len(lin.jumps) >= 2
    assert_v(flow_errors(lin), 1e-8)


BLOCKS = {
    "falls and stops": ([0, 0.3, 0.2, 1.0, 0, 0], 0.3, (0.25, 0.225, 0.3, 0.35)),
    "lands sliding": ([0, 0.055, 0.02, 1.0, -0.2, 0.4], 0.3, (0.015, 0.1, 0.35)),
    "takes turns": ([0, 0.3, -0.2, 0.3, 0, 1.0], 0.3, (0.2255, 0.25, 0.3)),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_with_friction(name):
    """After every impact and every change of friction; both corners stop at once at the end."""
    x0, friction, ends = BLOCKS[name]
    system = block.system(block.Parameters(friction=friction))
    for end in ends:
        lin = linearized(system, ("open", "open"), x0, (0.0, end))
        # the corners hit within 0.2 ms of each other, so that only small steps keep their order
        assert_v(flow_errors(lin, steps=10.0 ** np.arange(-4.0, -8.0, -1.0)), 1e-7)
    assert lin.trajectory.events[-1].guards == ("left sticks", "right sticks")
    assert not lin.is_linear


@pytest.fixture(scope="module")
def door():
    """Before an impact of both corners with the door at 0.05 s, turned so that one is first."""
    system = rrr_door.system()
    event = build(system, rrr_door.Parameters(), Design()).events[0]
    u, mode = event.input_before, system.mode(OPEN)
    back = solve_ivp(
        lambda t, x: mode.field(t, x, u),
        (0.05, 0.0),
        event.state_before,
        rtol=1e-12,
        atol=1e-13,
        method="DOP853",
    )
    x0 = back.y[:, -1]
    x0[2] += 0.02
    return system, x0, u


def test_the_corners_of_a_robot_hit_a_door_one_by_one(door):
    system, x0, u = door
    law = lambda t, x: u  # noqa: E731
    lin = linearized(system, OPEN, x0, (0.0, 0.12), law)
    assert lin.is_linear
    assert len(lin.jumps) >= 2
    assert_v(flow_errors(lin, law, steps=10.0 ** np.arange(-3.0, -8.0, -1.0)), 1e-7)


def test_a_cube_lands_on_a_corner_that_sticks_and_then_slips():
    """The field of a contact that begins to slide is stiff, as 1 / speed, and has no derivative
    at the instant itself, where the run keeps about the root of its tolerance."""
    x0 = np.array([0, 0, 0.12, 0.22, 0.18, 0.05, 0.957, 0.5, 0.1, 0, 1, 3, -1.0])
    x0[3:7] /= np.linalg.norm(x0[3:7])
    system = cube.system(cube.Parameters(restitution=0.0))
    run = hc.simulate(system, ("open",) * 8, x0, (0.0, 0.11))
    assert [e.guards for e in run.events] == [("+-- closes",), ("+-- slips",)]
    lin = hc.linearize(system, run, rtol=1e-7, atol=1e-7)
    along = np.random.default_rng(1).normal(size=(1, 12))
    errors = flow_errors(lin, steps=(1e-3, 1e-4), along=along, rtol=1e-9, atol=1e-9)
    assert errors[1] < min(1e-5, 0.1 * errors[0]), errors


def test_a_cube_on_its_corner_that_sticks():
    x0 = np.array([0, 0, 0.12, 0.22, 0.18, 0.05, 0.957, 0.5, 0.1, 0, 1, 3, -1.0])
    x0[3:7] /= np.linalg.norm(x0[3:7])
    system = cube.system(cube.Parameters(restitution=0.0))
    lin = linearized(system, ("open",) * 8, x0, (0.0, 0.09))
    assert lin.trajectory.final_mode[4] == "stick"
    assert_v(flow_errors(lin, steps=STEPS[1:]), 1e-8)
    np.testing.assert_allclose(lin.state_transition, transition(system, lin.trajectory), atol=1e-6)


# Laws of the map


def test_the_jacobian_of_the_reset_alone_is_visibly_wrong():
    lin = linearized(paddle(), "air", [1.0, 0.2], (0.0, 1.4))
    naive = np.eye(2)
    for k, arc in enumerate(lin.arcs):
        naive = arc.end @ naive
        if k < len(lin.jumps):
            naive = lin.jumps[k].reset_jacobian @ naive
    right = lin.state_transition
    assert np.abs(naive - right).max() > 0.1 * np.abs(right).max()


def test_the_adjoint_is_the_transpose():
    lin = linearized(paddle(), "air", [1.0, 0.2], (0.0, 1.4))
    rng = np.random.default_rng(0)
    for p, z in rng.normal(size=(10, 2, 2)):
        assert p @ lin(z) == pytest.approx(lin.adjoint(p) @ z, rel=1e-12)


def test_directions_in_rows_are_those_taken_one_by_one():
    lin = linearized(paddle(), "air", [1.0, 0.2], (0.0, 1.4))
    rows = np.random.default_rng(0).normal(size=(5, 2))
    np.testing.assert_allclose(lin(rows), [lin(z) for z in rows], rtol=1e-12)
    np.testing.assert_allclose(lin(rows), rows @ lin.state_transition.T, rtol=1e-12)


@pytest.mark.parametrize("cut", [0.2, 0.6, 1.1])
def test_two_halves_make_the_whole(cut):
    """Phi(end, cut) Phi(cut, 0) = Phi(end, 0)."""
    system, x0 = paddle(), [1.0, 0.2]
    whole = linearized(system, "air", x0, (0.0, 1.4))
    first = linearized(system, "air", x0, (0.0, cut))
    second = linearized(system, "air", first.trajectory.final_state, (cut, 1.4))
    product = second.state_transition @ first.state_transition
    np.testing.assert_allclose(product, whole.state_transition, rtol=1e-8, atol=1e-9)


# Inputs and feedback


def driven():
    """A mass (y, v) with three inputs: of its field, of its reset and of its guard."""
    y, v, t, u = ca.SX.sym("y"), ca.SX.sym("v"), ca.SX.sym("t"), ca.SX.sym("u", 3)
    field = [v, -G + u[0] - 0.3 * v + ca.sin(3.0 * t)]
    reset = [y, -0.8 * v + u[1]]
    return symbolic.hybrid_system(
        [symbolic.Mode("air", [y, v], field, input=u, time=t)],
        [symbolic.Transition("air", "hits", y - 0.05 * u[2], "air", reset)],
    )


def nominal_input(t):
    return np.array([0.5 * np.sin(2.0 * t), 0.3 * np.cos(4.0 * t), np.sin(4.0 * t)])


def change(t):
    return np.array([np.cos(3.0 * t), 0.5 + np.sin(5.0 * t), 0.7 - np.sin(t)])


START, SPAN = np.array([0.7, 0.1]), (0.0, 1.3)


def extended(arc, margin=0.3):
    """The flow of an arc past both of its ends."""
    field = driven().mode("air").field

    def side(end):
        solution = solve_ivp(
            lambda t, x: field(t, x, nominal_input(t)),
            (arc.start, end),
            arc(arc.start),
            method="DOP853",
            rtol=1e-13,
            atol=1e-14,
            dense_output=True,
        )
        return solution.sol

    before, after = side(arc.start - margin), side(arc.end + margin)
    return lambda t: before(t) if t < arc.start else after(t)


def driven_end(h, dx=(0.0, 0.0), gain=None):
    """The end of the run with the input changed by h du(t) and the start by h dx."""
    nominal = hc.simulate(driven(), "air", START, SPAN, lambda t, x: nominal_input(t), **TIGHT)
    arcs = [extended(arc) for arc in nominal.arcs]

    class Feedback:
        def law(self, history):
            reference = arcs[len(history.events)]
            return lambda t, x: (
                nominal_input(t)
                + h * change(t)
                - (0.0 if gain is None else gain @ (x - reference(t)))
            )

    run = hc.simulate(driven(), "air", START + h * np.array(dx), SPAN, Feedback(), **TIGHT)
    assert len(run.events) == len(nominal.events)
    return run.final_state


def driven_linearization():
    return linearized(driven(), "air", START, SPAN, lambda t, x: nominal_input(t))


def test_a_change_of_the_input():
    lin = driven_linearization()
    assert len(lin.jumps) == 2
    dx = np.array([0.4, -0.7])
    errors = v_curve(
        lambda h: (driven_end(h, dx) - driven_end(-h, dx=dx)) / (2.0 * h), lin(dx, change)
    )
    assert_v(errors, 1e-8)


def test_the_map_is_linear_in_state_and_input():
    lin = driven_linearization()
    dx = np.array([0.4, -0.7])
    alone = lin(np.zeros(2), change)
    np.testing.assert_allclose(lin(dx, change), lin(dx) + alone, atol=1e-8)
    np.testing.assert_allclose(
        lin(np.zeros(2), lambda t: -2.0 * change(t)), -2.0 * alone, atol=1e-8
    )
    rows = lin(np.array([dx, -dx]), change)
    np.testing.assert_allclose(rows, [lin(dx) + alone, -lin(dx) + alone], atol=1e-8)


def test_a_closed_loop_is_that_of_a_simulation_with_feedback():
    """u = mu - K (x - x_nominal), with the nominal arc continued past its events.

    A perturbed run follows the nominal arc of its own event count; field and reset see the
    feedback. (A guard that saw it too would jump with it at the event, and fire twice.)"""
    gain = np.array([[3.0, 1.0], [0.2, -0.1], [0.0, 0.0]])
    open_loop = driven_linearization()
    closed = open_loop.closed_loop([gain] * 3)
    dx = np.array([0.4, -0.7])
    steps = 10.0 ** np.arange(-3.0, -7.0, -1.0)

    def central(h):
        return (driven_end(h, dx, gain) - driven_end(-h, dx, gain)) / (2.0 * h)

    assert_v(v_curve(central, closed(dx, change), steps), 2e-8)
    assert np.abs(closed(dx) - open_loop(dx)).max() > 0.05


def test_a_closed_loop_without_gain_is_the_open_loop():
    lin = driven_linearization()
    closed = lin.closed_loop([np.zeros((3, 2))] * 2 + [lambda t: np.zeros((3, 2))])
    np.testing.assert_allclose(closed.state_transition, lin.state_transition, atol=1e-10)


def test_coefficients_are_the_derivatives_of_the_field():
    lin = driven_linearization()
    c = lin.coefficients(lin.trajectory.arcs[1], lin.trajectory.arcs[1].start)
    np.testing.assert_allclose(c.state, [[0.0, 1.0], [0.0, -0.3]])
    np.testing.assert_allclose(c.input, [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])


# Errors


@pytest.mark.parametrize("dx", [[1.0], np.zeros((0, 3)), np.zeros((1, 1, 2)), [np.nan, 0.0], 1.0])
def test_directions_that_do_not_fit_are_refused(dx):
    lin = linearized(paddle(), "air", [1.0, 0.2], (0.0, 1.0))
    with pytest.raises(InputError, match="dx0 must be finite, of shape"):
        lin(dx)


def test_gains_that_do_not_fit_are_refused():
    lin = driven_linearization()
    with pytest.raises(InputError, match=r"gains must have one entry per arc \(3\), got 1"):
        lin.closed_loop([np.zeros((3, 2))])
    with pytest.raises(InputError, match=r"gains\[1\] must have shape \(3, 2\)"):
        lin.closed_loop([np.zeros((3, 2)), np.zeros(2), np.zeros((3, 2))])


def test_what_is_piecewise_linear_has_no_matrix():
    p = biped.Parameters()
    lin = linearized(biped.soft(p), biped.AIR, biped.start(p), (0.0, 0.5))
    assert not lin.is_linear
    for ask in (lambda: lin.state_transition, lambda: lin.adjoint(np.ones(6))):
        with pytest.raises(InputError, match=r"event 0 .* piecewise linear.*'left closes'"):
            ask()


def test_bad_options_are_refused():
    run = hc.simulate(paddle(), "air", [1.0, 0.2], (0.0, 1.0))
    with pytest.raises(InputError, match="method"):
        hc.linearize(paddle(), run, method="Euler")
    with pytest.raises(InputError, match="rtol must be greater than 0"):
        hc.linearize(paddle(), run, rtol=0.0)


def no_jacobian(missing):
    """A ball on a floor without the Jacobian of one part."""
    jacobians = {
        "field": lambda t, x, u: FieldJacobian(np.eye(2, k=1), np.zeros((2, 0))),
        "guard": lambda t, x, u: GuardJacobian(np.zeros(()), np.array([1.0, 0.0]), np.zeros(0)),
        "reset": lambda t, x, u: ResetJacobian(np.zeros(2), np.diag([1.0, -0.8]), np.zeros((2, 0))),
    }
    jacobians[missing] = None
    field = lambda t, x, u: np.array([x[1], -G])  # noqa: E731
    bounce = hc.Reset(lambda t, x, u: np.array([x[0], -0.8 * x[1]]), jacobians["reset"])
    floor = hc.Guard("floor", lambda t, x, u: x[0], jacobians["guard"])
    return hc.HybridSystem(
        [hc.Mode("air", hc.VectorSpace(2), field, jacobian=jacobians["field"])],
        [hc.Transition("air", floor, bounce, "air")],
    )


@pytest.mark.parametrize("missing", ["field", "guard", "reset"])
def test_a_missing_jacobian_is_named(missing):
    system = no_jacobian(missing)
    run = hc.simulate(system, "air", [1.0, 0.0], (0.0, 0.5))
    assert len(run.events) == 1
    with pytest.raises(SystemDefinitionError, match=f"{missing}.*ha(s|ve) no Jacobian"):
        hc.linearize(system, run).state_transition  # noqa: B018


def test_an_event_that_ends_infinitely_many_is_refused():
    system = ball.system(ball.Parameters(slope=0.0, restitution=0.5))
    run = hc.simulate(system, ("open",), [0.0, 0.5, 0.0, 0.0], (0.0, 2.0), on_zeno="rest")
    assert run.events[-1].accumulation is not None
    with pytest.raises(InputError, match="ends infinitely many"):
        hc.linearize(system, run)


def test_isolated_events_have_linear_jumps():
    lin = linearized(paddle(), "air", [1.0, 0.2], (0.0, 1.4))
    assert lin.is_linear
    assert all(isinstance(lin.linear_jump(k), JumpGains) for k in range(len(lin.jumps)))
