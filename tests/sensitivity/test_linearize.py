"""The first-order map of whole trajectories, against differences of the event-located flow."""

import casadi as ca
import numpy as np
import pytest
from hybridctl.experiments.rrr_door.reference import OPEN
from hybridctl.robots import ball, biped, block, cube
from mechanics.flows import differences, transition
from sensitivity.struck_door import struck_door

import hybridctl as hc
from hybridctl import symbolic
from hybridctl.base.errors import InputError, NearGrazingWarning, SystemDefinitionError
from hybridctl.hybrid.mode import FieldJacobian, GuardJacobian, ResetJacobian
from hybridctl.sensitivity.saltation import JumpGains

G = 9.81
TIGHT = {"rtol": 1e-12, "atol": 1e-12}
STEPS = 10.0 ** np.arange(-2.0, -7.0, -1.0)
BOTTOM = 1e-8  # of a V: h^2 and the 1e-12 / h of the flow, where they are least together


def linearized(system, mode, x0, span, policy=None, **options):
    options = {**TIGHT, **options}
    run = hc.simulate(system, mode, x0, span, policy, **options)
    return hc.linearize(system, run, **options)


def v_curve(central, predicted, steps=STEPS):
    """Errors of central differences over the steps, relative to the largest derivative."""
    scale = max(1.0, float(np.abs(predicted).max()))
    return np.array([np.abs(central(h) - predicted).max() / scale for h in steps])


def assert_v(errors, bottom=BOTTOM):
    """It falls as h^2 until rounding takes over, at no more than `bottom`."""
    assert errors.min() <= bottom, errors
    if errors[0] > 1e-6:
        assert errors[1] < 0.05 * errors[0] or (errors[2:3] < 5e-3 * errors[0]).any(), errors


def flow_errors(lin, policy=None, *, steps=STEPS, along=None, fourth=False, **options):
    """The V-curve of a linearization against differences of its own simulation.

    fourth: differences of fourth order, where steps that are small enough for the second drown
    in rounding.
    """
    run, first = lin.trajectory, lin.trajectory.arcs[0]
    n = first.space.ndx
    along = np.random.default_rng(n).normal(size=(2, n)) if along is None else along
    options = {**TIGHT, **options} if policy is None else {**TIGHT, **options, "policy": policy}
    x0, span = first(first.start), (run.start, run.end)

    def central(h):
        return differences(lin.system, first.mode, x0, span, h, along.T, **options).T

    def extrapolated(h):
        return (4.0 * central(h) - central(2.0 * h)) / 3.0

    return v_curve(extrapolated if fourth else central, lin.derivative(along), steps)


# Whole runs


@pytest.mark.parametrize("end", [0.5, 1.1, 1.75, 2.0])
def test_a_ball_that_bounces(end):
    system = ball.system(ball.BallParameters(slope=0.0, restitution=0.8))
    lin = linearized(system, ("open",), [0.0, 1.0, 0.3, 0.0], (0.0, end))
    assert_v(flow_errors(lin))


def test_the_map_of_a_bouncing_ball_by_hand():
    """Between impacts a unit shear; at an impact -e on height and speed, and 2 a with G = 9.81
    added to the speed: (D_x R) and (f+ - D_x R f-) / v-, [Salt] (2)."""
    e, height = 0.8, 1.0
    fall = np.sqrt(2.0 * height / G)
    lin = linearized(
        ball.system(ball.BallParameters(slope=0.0, restitution=e)),
        ("open",),
        [0, 1.0, 0, 0],
        (0, 1.0),
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
    system = ball.system(ball.BallParameters(slope=0.3, friction=friction))
    lin = linearized(system, ("open",), [0.0, 1.0, 0.3, 0.0], (0.0, 1.0))
    assert lin.trajectory.final_mode == (mode,)
    assert_v(flow_errors(lin))


def paddle():
    """A ball (y, v) on a paddle at height 0.1 sin 5 t, restitution 0.8."""
    y, v, t = ca.SX.sym("y"), ca.SX.sym("v"), ca.SX.sym("t")
    height, rate = 0.1 * ca.sin(5.0 * t), 0.5 * ca.cos(5.0 * t)
    return symbolic.hybrid_system(
        [symbolic.SymbolicMode("air", state=[y, v], field=[v, -G - 0.1 * v], time=t)],
        [symbolic.SymbolicTransition("air", "hits", y - height, "air", [y, 1.8 * rate - 0.8 * v])],
    )


def test_a_ball_on_a_moving_paddle():
    lin = linearized(paddle(), "air", [1.0, 0.2], (0.0, 1.4))
    assert len(lin.jumps) >= 2
    assert_v(flow_errors(lin))


BLOCKS = {
    "falls and stops": ([0, 0.3, 0.2, 1.0, 0, 0], 0.3, (0.25, 0.225, 0.3, 0.35)),
    "lands sliding": ([0, 0.055, 0.02, 1.0, -0.2, 0.4], 0.3, (0.015, 0.1, 0.35)),
    "takes turns": ([0, 0.3, -0.2, 0.3, 0, 1.0], 0.3, (0.2255, 0.25, 0.3)),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_with_friction(name):
    """After every impact and every change of friction; both corners stop at once at the end."""
    x0, friction, ends = BLOCKS[name]
    system = block.system(block.BlockParameters(friction=friction))
    for end in ends:
        lin = linearized(system, ("open", "open"), x0, (0.0, end))
        # the corners hit within 0.2 ms of each other, so that only small steps keep their order
        assert_v(flow_errors(lin, steps=(1e-4, 1e-5), fourth=True))
    assert lin.trajectory.events[-1].guards == ("left sticks", "right sticks")
    assert not lin.is_linear


@pytest.fixture(scope="module")
def door():
    """Before an impact of both corners with the door at 0.05 s, turned so that one is first."""
    system, x0, u = struck_door()
    x0[2] += 0.02
    return system, x0, u


def test_the_corners_of_a_robot_hit_a_door_one_by_one(door):
    system, x0, u = door
    law = lambda t, x: u  # noqa: E731
    lin = linearized(system, OPEN, x0, (0.0, 0.12), law)
    assert lin.is_linear
    assert len(lin.jumps) >= 2
    assert_v(flow_errors(lin, law, steps=(1e-3, 5e-4, 2e-4), fourth=True), 1e-9)


@pytest.mark.slow
def test_a_cube_lands_on_a_corner_that_sticks_and_then_slips():
    """The field of a contact that begins to slide is stiff, as 1 / speed, and has no derivative
    at the instant itself, where the run keeps about the root of its tolerance."""
    x0 = np.array([0, 0, 0.12, 0.22, 0.18, 0.05, 0.957, 0.5, 0.1, 0, 1, 3, -1.0])
    x0[3:7] /= np.linalg.norm(x0[3:7])
    system = cube.system(cube.CubeParameters(restitution=0.0))
    run = hc.simulate(system, ("open",) * 8, x0, (0.0, 0.11), rtol=1e-11, atol=1e-11)
    assert [e.guards for e in run.events] == [
        ("front-right-bottom closes",),
        ("front-right-bottom slips",),
    ]
    lin = hc.linearize(system, run, rtol=1e-7, atol=1e-7)
    along = np.random.default_rng(1).normal(size=(1, 12))
    errors = flow_errors(lin, steps=(1e-3, 1e-4), along=along, rtol=1e-11, atol=1e-11)
    assert errors[1] < min(1e-5, 0.1 * errors[0]), errors


def test_a_cube_on_its_corner_that_sticks():
    x0 = np.array([0, 0, 0.12, 0.22, 0.18, 0.05, 0.957, 0.5, 0.1, 0, 1, 3, -1.0])
    x0[3:7] /= np.linalg.norm(x0[3:7])
    system = cube.system(cube.CubeParameters(restitution=0.0))
    lin = linearized(system, ("open",) * 8, x0, (0.0, 0.09))
    assert lin.trajectory.final_mode[4] == "stick"
    assert_v(flow_errors(lin, steps=STEPS[1:]))
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


def test_directions_in_rows_are_those_taken_one_by_one():
    lin = linearized(paddle(), "air", [1.0, 0.2], (0.0, 1.4))
    rows = np.random.default_rng(0).normal(size=(5, 2))
    np.testing.assert_allclose(lin.derivative(rows), [lin.derivative(z) for z in rows], rtol=1e-12)
    np.testing.assert_allclose(lin.derivative(rows), rows @ lin.state_transition.T, rtol=1e-12)


@pytest.mark.parametrize("cut", [0.2, 0.6, 1.1])
def test_two_halves_make_the_whole(cut):
    """Phi(end, cut) Phi(cut, 0) = Phi(end, 0)."""
    system, x0 = paddle(), [1.0, 0.2]
    whole = linearized(system, "air", x0, (0.0, 1.4))
    first = linearized(system, "air", x0, (0.0, cut))
    second = linearized(system, "air", first.trajectory.final_state, (cut, 1.4))
    product = second.state_transition @ first.state_transition
    np.testing.assert_allclose(product, whole.state_transition, rtol=1e-8, atol=1e-9)


# Errors


@pytest.mark.parametrize("dx", [[1.0], np.zeros((0, 3)), np.zeros((1, 1, 2)), [np.nan, 0.0], 1.0])
def test_directions_that_do_not_fit_are_refused(dx):
    lin = linearized(paddle(), "air", [1.0, 0.2], (0.0, 1.0))
    with pytest.raises(InputError, match=r"dx0 must be (finite|of shape|an array)"):
        lin.derivative(dx)


def test_what_is_piecewise_linear_has_no_matrix():
    p = biped.BipedParameters()
    ground = biped.soft(p, damping="by_feet")
    lin = linearized(ground, biped.AIR, biped.start(p), (0.0, 0.5))
    assert not lin.is_linear
    with pytest.raises(InputError, match=r"event 0 .* piecewise linear.*'left closes'"):
        _ = lin.state_transition


def test_bad_options_are_refused():
    run = hc.simulate(paddle(), "air", [1.0, 0.2], (0.0, 1.0))
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
    system = ball.system(ball.BallParameters(slope=0.0, restitution=0.5))
    run = hc.simulate(system, ("open",), [0.0, 0.5, 0.0, 0.0], (0.0, 2.0), on_zeno="rest")
    assert run.events[-1].accumulation is not None
    message = r"event \d+ at t = [\d.]+ s \(slope closes\): .*ends infinitely many"
    # the last bounces before are so slow that they hardly have a derivative
    with pytest.raises(InputError, match=message), pytest.warns(NearGrazingWarning):
        hc.linearize(system, run)


def test_isolated_events_have_linear_jumps():
    lin = linearized(paddle(), "air", [1.0, 0.2], (0.0, 1.4))
    assert lin.is_linear
    assert all(isinstance(lin.linear_jump(k), JumpGains) for k in range(len(lin.jumps)))
