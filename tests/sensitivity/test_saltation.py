"""Saltation matrices and jump gains: closed forms, identities, and differences of the flow."""

import casadi as ca
import numpy as np
import pytest
from differences import central
from hybridctl.robots import ball, block, cube
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

import hybridctl as hc
from hybridctl import symbolic
from hybridctl.base.errors import GrazingError, InputError, SystemDefinitionError
from hybridctl.hybrid.mode import GuardJacobian, ResetJacobian
from hybridctl.hybrid.trajectory import Event
from hybridctl.mechanics.contacts.contact_kinematics import ContactSet
from hybridctl.sensitivity.saltation import jump_gains, saltation_matrix

GRAVITY = 9.81
STEPS = (1e-3, 1e-4, 1e-5)
OPTIONS = {"rtol": 1e-12, "atol": 1e-13}

seeds = st.integers(0, 2**32 - 1)


def make_event(system, mode, guard, x, *, t=0.0, u=(), rate=None):
    """The event that `guard` makes of a state, without a simulation."""
    x, u = np.array(x, dtype=float), np.array(u, dtype=float)
    edge = system.outgoing(mode).edge((guard,))
    after = edge.reset(t, x, u).state
    rate = np.zeros_like(u) if rate is None else np.array(rate, dtype=float)
    return Event(0, t, mode, edge.target, (guard,), x, after, u, u, rate, np.zeros(0))


def simulate_only_event(system, mode, x0, span, law=None):
    (event,) = hc.simulate(system, mode, x0, span, law, **OPTIONS).events
    return event


def integrate_mode(mode, x, start, end, law):
    """The state at `end` of the flow of one mode, forwards or backwards, past its guards."""
    inputs = (lambda t, x: np.zeros(mode.nu)) if law is None else law

    def rate(t, x):
        x = mode.space.normalize(x)
        return mode.space.rate(x, mode.field(t, x, inputs(t, x)))

    solution = solve_ivp(rate, (start, end), x, method="DOP853", rtol=1e-13, atol=1e-14)
    assert solution.success
    return mode.space.normalize(solution.y[:, -1])


def simulate_perturbed(system, event, dx, law, window):
    """The run that has the perturbation dx at the time of `event`, from `window` before it on."""
    before = system.mode(event.mode_before)
    x = before.space.integrate(event.state_before, dx)
    start = integrate_mode(before, x, event.time, event.time - window, law)
    span = (event.time - window, event.time + window)
    run = hc.simulate(system, before.key, start, span, law, **OPTIONS)
    assert [e.mode_after for e in run.events] == [event.mode_after]
    return run


def measure_at_fixed_time(system, event, dx, law=None, window=0.02):
    """dx+ at the time of the nominal event: there, back, through the event, and back again."""
    run = simulate_perturbed(system, event, dx, law, window)
    after = system.mode(event.mode_after)
    end = integrate_mode(after, run.final_state, run.end, event.time, law)
    return after.space.difference(event.state_after, end)


def measure_at_own_event(system, event, dx, law=None, window=0.02):
    """How the state in which the run leaves its own event differs from the nominal one."""
    (own,) = simulate_perturbed(system, event, dx, law, window).events
    space = system.mode(event.mode_after).space
    return space.difference(event.state_after, own.state_after)


def assert_differences(function, jacobian, tolerance=1e-7):
    """Central differences come down to `tolerance` of the largest entry, as h^2 until there.

    The flow is integrated to 1e-12, so rounding is 1e-8 at a step of 1e-4.
    """
    scale = max(1.0, np.abs(jacobian).max())
    errors = [
        np.abs(central(function, jacobian.shape[1], h) - jacobian).max() / scale for h in STEPS
    ]
    assert min(errors) <= tolerance, errors
    assert errors[0] <= tolerance or errors[1] <= 0.02 * errors[0] or errors[2] <= tolerance, errors


def actuated_ball(angle, mass, sticks):
    """[Salt] IV: a ball on a slope, actuated along both coordinates."""
    c, s = np.cos(angle), np.sin(angle)
    n, down = np.array([s, c]), np.array([c, -s])
    q, v, u = ca.SX.sym("q", 2), ca.SX.sym("v", 2), ca.SX.sym("u", 2)
    free = u / mass + np.array([0.0, -GRAVITY])
    held = [0.0, 0.0] if sticks else down * ca.dot(down, free)
    return symbolic.hybrid_system(
        [
            symbolic.SymbolicMode("U", state=[q, v], field=ca.vertcat(v, free), input=u),
            symbolic.SymbolicMode(
                "S", state=[q, v], field=ca.vertcat(v, *ca.vertsplit(ca.SX(held))), input=u
            ),
        ],
        [
            symbolic.SymbolicTransition(
                "U",
                "lands",
                guard=ca.dot(n, q),
                target="S",
                reset=ca.vertcat(q, ca.SX.zeros(2) if sticks else down * ca.dot(down, v)),
            )
        ],
    )


angles = st.floats(-1.3, 1.3)
speeds = st.floats(-3.0, 3.0)


@given(angles, st.floats(0.1, 10.0), speeds, st.floats(0.1, 5.0), speeds, speeds)
@settings(max_examples=30)
def test_a_ball_that_slides_has_the_matrix_of_the_tutorial(angle, mass, tangential, fall, u1, u2):
    """[Salt] (76)-(79): diag(W, W), whatever the input."""
    c, s = np.cos(angle), np.sin(angle)
    v = tangential * np.array([c, -s]) - fall * np.array([s, c])
    system = actuated_ball(angle, mass, sticks=False)
    event = make_event(system, "U", "lands", [0.7 * c, -0.7 * s, *v], u=[u1, u2])
    w = np.array([[c * c, -c * s], [-c * s, s * s]])
    expected = np.kron(np.eye(2), w)
    # Its entries are quotients of sums of accelerations and velocities by the speed of the fall.
    size = (GRAVITY + np.hypot(u1, u2) / mass + np.abs(v).max()) / fall
    np.testing.assert_allclose(saltation_matrix(system, event), expected, atol=1e-14 * size)
    assert not jump_gains(system, event).input.any()


@given(angles, speeds, st.floats(0.1, 5.0))
@settings(max_examples=30)
def test_a_ball_that_sticks_has_the_matrix_of_the_tutorial(angle, tangential, fall):
    """[Salt] (89)-(92): diag(W', 0); W' takes out positions along the velocity before."""
    c, s = np.cos(angle), np.sin(angle)
    v1, v2 = tangential * np.array([c, -s]) - fall * np.array([s, c])
    system = actuated_ball(angle, 1.0, sticks=True)
    event = make_event(system, "U", "lands", [0.0, 0.0, v1, v2], u=[0.0, 0.0])
    w = np.array([[v2 * c, -v1 * c], [-v2 * s, v1 * s]]) / (v2 * c + v1 * s)
    expected = np.block([[w, np.zeros((2, 2))], [np.zeros((2, 4))]])
    found = saltation_matrix(system, event)
    size = 1.0 + np.hypot(v1, v2) / fall
    np.testing.assert_allclose(found, expected, atol=1e-14 * size)
    np.testing.assert_allclose(found[:2, :2] @ [v1, v2], 0.0, atol=1e-14 * size * np.hypot(v1, v2))


@given(seeds, st.integers(1, 4))
@settings(max_examples=20)
def test_the_map_through_a_change_of_a_constant_flow_is_exact(seed, n):
    """[Salt] Fig. 5: all of it is linear, so no perturbation is too large."""
    rng = np.random.default_rng(seed)
    normal = rng.normal(size=n)
    normal /= np.linalg.norm(normal)
    before, after = (
        f + (1.0 - normal @ f) * normal for f in (rng.normal(size=n), rng.normal(size=n))
    )
    x = ca.SX.sym("x", n)
    system = symbolic.hybrid_system(
        [
            symbolic.SymbolicMode("I", state=x, field=before),
            symbolic.SymbolicMode("J", state=x, field=after),
        ],
        [symbolic.SymbolicTransition("I", "line", guard=-ca.dot(normal, x), target="J")],
    )
    run = hc.simulate(system, "I", -before, (0.0, 2.0))
    matrix = saltation_matrix(system, run.events[0])
    np.testing.assert_allclose(matrix, np.eye(n) + np.outer(after - before, normal), atol=1e-13)
    dx = rng.uniform(-0.5, 0.5, size=n) / n
    end = hc.simulate(system, "I", dx - before, (0.0, 2.0)).final_state
    np.testing.assert_allclose(end - run.final_state, matrix @ dx, atol=1e-12)


PADDLE = {"amplitude": 0.05, "rate": 7.0, "restitution": 0.7}


def paddle(t):
    """Height, velocity and acceleration of a paddle."""
    a, w = PADDLE["amplitude"], PADDLE["rate"]
    return a * np.sin(w * t), a * w * np.cos(w * t), -a * w * w * np.sin(w * t)


def juggler():
    """A ball on a paddle that moves in time."""
    t, y, v = ca.SX.sym("t"), ca.SX.sym("y"), ca.SX.sym("v")
    height = PADDLE["amplitude"] * ca.sin(PADDLE["rate"] * t)
    e = PADDLE["restitution"]
    reset = [y, (1.0 + e) * ca.jacobian(height, t) - e * v]
    return symbolic.hybrid_system(
        [symbolic.SymbolicMode("air", state=[y, v], field=[v, -GRAVITY], time=t)],
        [symbolic.SymbolicTransition("air", "paddle", guard=y - height, target="air", reset=reset)],
    )


def test_a_guard_and_a_reset_that_depend_on_time():
    r"""A ball on a paddle p(t): :math:`-e` on the diagonal, and what the paddle's motion adds.

    With v and v+ before and after, :math:`G_{21} = -(1 + e)(g + \ddot p)/(v - \dot p)`.
    """
    system = juggler()
    event = simulate_only_event(system, "air", [0.3, 0.4], (0.0, 0.4))
    e, v = PADDLE["restitution"], event.state_before[1]
    _, speed, acceleration = paddle(event.time)
    late = -(1.0 + e) * (GRAVITY + acceleration) / (v - speed)
    gains = jump_gains(system, event)
    np.testing.assert_allclose(gains.state, [[-e, 0.0], [late, -e]], atol=1e-11)
    np.testing.assert_allclose(gains.time_state, [-1.0 / (v - speed), 0.0], atol=1e-11)
    assert_differences(lambda dx: measure_at_fixed_time(system, event, dx), gains.state)
    assert_differences(lambda dx: measure_at_own_event(system, event, dx), gains.state_at_events)


def driven():
    """The same ball on a paddle whose height is the input; the reset sees it too."""
    y, v, u = ca.SX.sym("y"), ca.SX.sym("v"), ca.SX.sym("u")
    reset = [y + 0.3 * u, -PADDLE["restitution"] * v + 2.0 * u]
    return symbolic.hybrid_system(
        [symbolic.SymbolicMode("air", state=[y, v], field=[v, -GRAVITY], input=u)],
        [symbolic.SymbolicTransition("air", "paddle", guard=y - u, target="air", reset=reset)],
    )


def height_law(shift=0.0):
    return lambda t, x: np.array([paddle(t)[0] + shift])


def test_a_guard_and_a_reset_that_depend_on_an_input():
    """The rate of the input counts; a shift of the whole input maps by J."""
    system, law = driven(), height_law()
    event = simulate_only_event(system, "air", [0.3, 0.4], (0.0, 0.35), law)
    # The input is stored as polynomials of degree 7 on steps chosen for the state.
    np.testing.assert_allclose(event.input_rate, [paddle(event.time)[1]], rtol=1e-6)
    gains = jump_gains(system, event)
    assert_differences(lambda dx: measure_at_fixed_time(system, event, dx, law), gains.state)
    assert_differences(
        lambda dx: measure_at_own_event(system, event, dx, law), gains.state_at_events
    )

    still = np.zeros(2)
    assert_differences(
        lambda du: measure_at_fixed_time(system, event, still, height_law(du[0])), gains.input
    )

    def delay(du):
        (own,) = simulate_perturbed(system, event, still, height_law(du[0]), 0.02).events
        return np.array([own.time - event.time])

    assert_differences(delay, gains.time_input[None])


def test_without_the_rate_of_the_input_the_gains_would_be_wrong():
    system = driven()
    event = simulate_only_event(system, "air", [0.3, 0.4], (0.0, 0.35), height_law())
    state = event.state_before
    still = make_event(system, "air", "paddle", state, t=event.time, u=event.input_before)
    wrong = jump_gains(system, still)
    right = jump_gains(system, event)
    for name in ("state", "input", "time_state"):
        assert np.abs(getattr(wrong, name) - getattr(right, name)).max() > 0.01


def test_gains_map_one_perturbation_or_many():
    system = driven()
    event = simulate_only_event(system, "air", [0.3, 0.4], (0.0, 0.35), height_law())
    gains, rng = jump_gains(system, event), np.random.default_rng(0)
    dx, du = rng.normal(size=(5, 2)), rng.normal(size=(5, 1))
    expected = np.array([gains.state @ x + gains.input @ u for x, u in zip(dx, du, strict=True)])
    np.testing.assert_allclose(gains(dx, du), expected, atol=1e-13)
    np.testing.assert_allclose(gains(dx[0], du[0]), expected[0], atol=1e-13)
    np.testing.assert_allclose(gains(dx), dx @ gains.state.T, atol=1e-13)


def coupling():
    """Two carts that couple when they meet, and are one from then on: 4 states, then 2."""
    x, v = ca.SX.sym("x", 2), ca.SX.sym("v", 2)
    y, w = ca.SX.sym("y"), ca.SX.sym("w")
    masses = np.array([2.0, 0.5])
    return symbolic.hybrid_system(
        [
            symbolic.SymbolicMode("two", state=[x, v], field=[v, -3.0 * x[0], -1.0]),
            symbolic.SymbolicMode("one", state=[y, w], field=[w, -2.0 * y - w]),
        ],
        [
            symbolic.SymbolicTransition(
                "two",
                "meet",
                guard=x[1] - x[0],
                target="one",
                reset=[x[0], ca.dot(masses / masses.sum(), v)],
            ),
            symbolic.SymbolicTransition(
                "one", "part", guard=0.2 - y, target="two", reset=[y, y + 0.1, w, 2.0 * w + y]
            ),
        ],
    )


def test_modes_of_different_dimension():
    system = coupling()
    run = hc.simulate(system, "two", [0.0, 0.3, 1.0, -1.0], (0.0, 1.2), **OPTIONS)
    assert [e.guards for e in run.events][:2] == [("meet",), ("part",)]
    for event, shape in zip(run.events, ((2, 4), (4, 2)), strict=False):
        matrix = saltation_matrix(system, event)
        assert matrix.shape == shape
        assert_differences(lambda dx, event=event: measure_at_fixed_time(system, event, dx), matrix)


@pytest.mark.parametrize("friction", [0.0, 0.18])
def test_a_corner_of_a_cube_hits_a_table(friction):
    """A state on a manifold: its 13 coordinates have 12 perturbations."""
    system = cube.system(cube.CubeParameters(friction=friction, restitution=0.5))
    turn = np.array([0.21, 0.34, 0.11])
    half = 0.5 * np.linalg.norm(turn)
    quaternion = [*(np.sin(half) * turn / np.linalg.norm(turn)), np.cos(half)]
    x0 = np.array([0.0, 0.0, 0.1, *quaternion, 0.4, -0.2, -0.8, 1.0, -2.0, 1.5])
    event = simulate_only_event(system, ("open",) * 8, x0, (0.0, 0.05))
    assert event.mode_after == ("open",) * 8
    gains = jump_gains(system, event)
    assert gains.state.shape == (12, 12)
    assert_differences(
        lambda dx: measure_at_fixed_time(system, event, dx, window=0.01), gains.state
    )


def hopping_mass(stiffness=200.0):
    """A mass on a spring that does not pull, with the apex of its flight as an event."""
    y, v = ca.SX.sym("y"), ca.SX.sym("v")
    flight = [v, -GRAVITY]
    return symbolic.hybrid_system(
        [
            symbolic.SymbolicMode("stance", state=[y, v], field=[v, -GRAVITY - stiffness * y]),
            symbolic.SymbolicMode("rise", state=[y, v], field=flight),
            symbolic.SymbolicMode("fall", state=[y, v], field=flight),
        ],
        [
            symbolic.SymbolicTransition("stance", "lifts", guard=-stiffness * y, target="rise"),
            symbolic.SymbolicTransition("rise", "apex", guard=v, target="fall"),
            symbolic.SymbolicTransition("fall", "lands", guard=y, target="stance"),
        ],
    )


def test_events_that_change_neither_state_nor_field_are_the_identity():
    """[Salt] (14), (124), (127): exactly at an apex, to the accuracy of the event at a liftoff."""
    system = hopping_mass()
    run = hc.simulate(system, "stance", [-0.3, 0.0], (0.0, 1.5), **OPTIONS)
    lift, apex, landing = run.events[:3]
    assert (lift.guards, apex.guards, landing.guards) == (("lifts",), ("apex",), ("lands",))
    np.testing.assert_array_equal(saltation_matrix(system, apex), np.eye(2))
    for event in (lift, landing):
        np.testing.assert_allclose(saltation_matrix(system, event), np.eye(2), atol=1e-10)
    at_rest_length = make_event(system, "stance", "lifts", [0.0, 1.7])
    np.testing.assert_array_equal(saltation_matrix(system, at_rest_length), np.eye(2))


def random_system(rng, d, d_after, rate, slope):
    """Affine guard and reset that depend on everything, and a guard that falls at `slope`."""
    nu = len(rate)
    across, along = rng.normal(size=d), rng.normal(size=nu)
    reset = ResetJacobian(
        rng.normal(size=d_after), rng.normal(size=(d_after, d)), rng.normal(size=(d_after, nu))
    )
    fields = {"I": rng.normal(size=d), "J": rng.normal(size=d_after)}
    guard = GuardJacobian(slope - across @ fields["I"] - along @ rate, across, along)
    modes = [
        hc.Mode(key, hc.VectorSpace(len(f)), lambda t, x, u, f=f: f, nu)
        for key, f in fields.items()
    ]
    system = hc.HybridSystem(
        modes,
        [
            hc.Transition(
                "I",
                hc.Guard(
                    "g",
                    lambda t, x, u: guard.time * t + guard.state @ x + guard.input @ u,
                    lambda t, x, u: guard,
                ),
                hc.Reset(
                    lambda t, x, u: reset.time * t + reset.state @ x + reset.input @ u,
                    lambda t, x, u: reset,
                ),
                "J",
            )
        ],
    )
    return system, guard, reset, fields


@given(seeds, st.integers(1, 5), st.integers(1, 5), st.integers(0, 3))
@settings(max_examples=60)
def test_gains_are_a_change_of_rank_one_of_the_reset(seed, d, d_after, nu):
    """Against (2) of the tutorial and (3.34) of the thesis, written out by hand."""
    rng = np.random.default_rng(seed)
    u, rate, slope = rng.normal(size=nu), rng.normal(size=nu), -rng.uniform(0.3, 3.0)
    system, guard, reset, fields = random_system(rng, d, d_after, rate, slope)
    event = make_event(system, "I", "g", rng.normal(size=d), t=0.3, u=u, rate=rate)
    gains = jump_gains(system, event)
    kick = fields["J"] - reset.time - reset.state @ fields["I"] - reset.input @ rate
    options = {"atol": 1e-12, "rtol": 1e-12}
    state = reset.state + np.outer(kick, guard.state) / slope
    np.testing.assert_allclose(gains.state, state, **options)
    np.testing.assert_allclose(
        gains.input, reset.input + np.outer(kick, guard.input) / slope, **options
    )
    np.testing.assert_allclose(gains.state, saltation_matrix(system, event), **options)
    assert np.linalg.matrix_rank(gains.state - reset.state, tol=1e-9) <= 1
    # Deviations that do not shift the event are mapped by the reset alone.
    kept = np.eye(d) - np.outer(guard.state, guard.state) / (guard.state @ guard.state)
    np.testing.assert_allclose(gains.state @ kept, reset.state @ kept, **options)


@given(seeds)
@settings(max_examples=20)
def test_in_an_autonomous_system_the_velocity_maps_to_the_velocity(seed):
    """G f- = f+: neighbours on the same trajectory stay on it; at their events they agree."""
    rng = np.random.default_rng(seed)
    angle, v = rng.uniform(-1.0, 1.0), rng.normal(size=2)
    n = np.array([np.sin(angle), np.cos(angle)])
    v -= (v @ n + rng.uniform(0.5, 2.0)) * n
    system = actuated_ball(angle, 1.0, sticks=False)
    u = rng.normal(size=2)
    event = make_event(system, "U", "lands", [0.0, 0.0, *v], u=u)
    f_before = system.mode("U").field(0.0, event.state_before, u)
    f_after = system.mode("S").field(0.0, event.state_after, u)
    gains = jump_gains(system, event)
    np.testing.assert_allclose(gains.state @ f_before, f_after, atol=1e-12)
    np.testing.assert_allclose(gains.state_at_events @ f_before, 0.0, atol=1e-12)


def daggers(robot, contacts, q):
    """M^+ and J^+ of one contact's normal, from the inverse of the KKT matrix, [Salt] (112)."""
    j = ContactSet(robot, contacts).jacobian(q)[:1]
    n = robot.nv
    inverse = np.linalg.inv(np.block([[robot.mass_matrix(q), j.T], [j, np.zeros((1, 1))]]))
    return inverse[:n, :n], inverse[n:, :n], j


BODIES = {
    "ball": (ball, ball.BallParameters, ["open"], [0.0, 0.3]),
    "block": (block, block.BlockParameters, ["open"] * 2, [0.0, 0.2, -0.4]),
}
FALL = {"ball": [0.5, -1.0], "block": [0.1, -0.5, 0.2]}


def landing(name, **parameters):
    """An impact of one contact of a ball or a tilted block, and the parts it takes place in."""
    module, kind, mode, q = BODIES[name]
    p = kind(**parameters)
    robot, contact = module.robot(p), module.contacts(p)
    system, mode = module.system(p), tuple(mode)
    run = hc.simulate(system, mode, [*q, *FALL[name]], (0.0, 0.2), **OPTIONS)
    event = run.events[0]
    hit = [c for c in contact if event.guards[0].startswith(c.name)]
    assert len(hit) == 1
    return system, event, daggers(robot, hit, event.state_before[: robot.nq]), robot


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("restitution", [0.0, 0.4, 1.0])
def test_impacts_without_friction_have_equal_diagonal_blocks(name, restitution):
    """[Salt] Table II, (148), (165): M^+ M - e J^+^T J twice, and zero in the upper right."""
    system, event, (m_plus, j_plus, j), robot = landing(name, friction=0.0, restitution=restitution)
    n = robot.nv
    found = saltation_matrix(system, event)
    block_ = m_plus @ robot.mass_matrix(event.state_before[:n]) - restitution * j_plus.T @ j
    # The event is located to 1e-12 m and s, and divided by a speed of about 1 m/s.
    np.testing.assert_allclose(found[:n, :n], block_, atol=1e-9)
    np.testing.assert_allclose(found[n:, n:], block_, atol=1e-9)
    np.testing.assert_allclose(found[:n, n:], 0.0, atol=1e-13)


@pytest.mark.parametrize("name", BODIES)
def test_an_impact_that_sticks_has_unequal_diagonal_blocks(name):
    """[Salt] (152) for the positions: I + (v+ - v-) J_n / (J_n v-)."""
    system, event, (_, _, j), robot = landing(name, friction=3.0)
    assert "stick" in event.mode_after
    n = robot.nv
    found, v = saltation_matrix(system, event), event.state_before[n:]
    block_ = np.eye(n) + np.outer(event.state_after[n:] - v, j) / (j @ v)
    np.testing.assert_allclose(found[:n, :n], block_, atol=1e-9)
    np.testing.assert_allclose(found[:n, n:], 0.0, atol=1e-13)
    assert np.abs(found[:n, :n] - found[n:, n:]).max() > 0.1


def test_an_event_that_grazes_is_refused_with_its_ratio():
    """A velocity along the slope: what is left across it is far below its terms."""
    c, s = np.cos(0.3), np.sin(0.3)
    system = actuated_ball(0.3, 1.0, sticks=False)
    for across, ratio in ((1e-11, "-"), (-1e-3, "")):
        v = np.array([c, -s]) - across * np.array([s, c])
        event = make_event(system, "U", "lands", [0.0, 0.0, *v], u=[0.0, 0.0])
        with pytest.raises(
            GrazingError, match=rf"'lands' of mode 'U'.* is {ratio}\d.* of the size"
        ):
            jump_gains(system, event)


def test_events_of_several_guards_are_refused():
    system = hopping_mass()
    event = make_event(system, "fall", "lands", [0.0, -1.0])
    several = Event(**{**vars(event), "guards": ("lands", "apex")})
    with pytest.raises(InputError, match="must have one guard, got"):
        jump_gains(system, several)


@pytest.mark.parametrize("missing", ["guard", "reset"])
def test_a_missing_jacobian_is_named(missing):
    guard = hc.Guard(
        "floor",
        lambda t, x, u: x[0],
        None
        if missing == "guard"
        else lambda t, x, u: GuardJacobian(0.0, np.array([1.0, 0.0]), np.zeros(0)),
    )
    bounce = np.diag([1.0, -0.5])
    reset = hc.Reset(
        lambda t, x, u: bounce @ x,
        None
        if missing == "reset"
        else lambda t, x, u: ResetJacobian(np.zeros(2), bounce, np.zeros((2, 0))),
    )
    fall = hc.Mode("air", hc.VectorSpace(2), lambda t, x, u: np.array([x[1], -GRAVITY]))
    system = hc.HybridSystem([fall], [hc.Transition("air", guard, reset, "air")])
    event = simulate_only_event(system, "air", [0.2, 0.0], (0.0, 0.3))
    with pytest.raises(SystemDefinitionError, match=rf"{missing}.* of mode 'air' .*no Jacobian"):
        saltation_matrix(system, event)


def test_an_event_of_another_system_is_refused():
    event = make_event(hopping_mass(), "fall", "lands", [0.0, -1.0])
    renamed = Event(**{**vars(event), "guards": ("touches",)})
    with pytest.raises(InputError, match="no guard 'touches', it has"):
        jump_gains(hopping_mass(), renamed)
