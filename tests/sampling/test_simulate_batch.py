"""A batch against its members, simulated and linearized one by one, and against closed forms."""

from concurrent.futures import ThreadPoolExecutor

import casadi as ca
import numpy as np
import pytest
from hybrid.samples import ball as ball_of_functions
from hybrid.samples import impact_times
from hybridctl.robots import ball as robot_ball
from hybridctl.robots import block, rrr_door

import hybridctl as hc
from hybridctl import symbolic
from hybridctl.base.errors import (
    EscapingError,
    EventLimitError,
    GrazingError,
    GuardViolatedError,
    InputError,
    IntegrationError,
    SimulationError,
    StepLimitError,
    UnknownNameError,
    ZenoError,
)
from hybridctl.hybrid.laws import HeldInput
from hybridctl.sampling import lockstep

# The same steps from the same states; roundings grow as perturbations do.
SAME = 1e-9
GRAVITY = 9.81


def ball(restitution=0.8, drag=0.0):
    """A ball (height, velocity) with drag -d v."""
    x = ca.SX.sym("x", 2)
    air = symbolic.SymbolicMode("air", x, [x[1], -GRAVITY - drag * x[1]])
    floor = symbolic.SymbolicTransition("air", "floor", x[0], "air", [x[0], -restitution * x[1]])
    return symbolic.hybrid_system([air], [floor])


def pendulum():
    """A driven pendulum between a wall that moves and a stop of its rate."""
    t, x, u = ca.SX.sym("t"), ca.SX.sym("x", 2), ca.SX.sym("u")
    rate = [x[1], -GRAVITY * ca.sin(x[0]) - 0.1 * x[1] + u + ca.cos(2.0 * t)]
    swing = symbolic.SymbolicMode("swing", x, rate, input=u, time=t)
    wall = ca.sin(x[0]) + 0.4 - 0.1 * ca.sin(t)
    fast = 9.0 - x[1] ** 2 - u
    return symbolic.hybrid_system(
        [swing],
        [
            symbolic.SymbolicTransition("swing", "wall", wall, "swing", [x[0], -0.8 * x[1]]),
            symbolic.SymbolicTransition("swing", "fast", fast, "swing", [x[0], 0.5 * x[1]]),
        ],
    )


def sticky():
    """A ball that sticks to the floor, as a state of size 1 that decays, and is thrown again."""
    x, z = ca.SX.sym("x", 2), ca.SX.sym("z")
    return symbolic.hybrid_system(
        [
            symbolic.SymbolicMode("air", x, [x[1], -GRAVITY]),
            symbolic.SymbolicMode("floor", z, [-z]),
        ],
        [
            symbolic.SymbolicTransition("air", "lands", x[0], "floor", x[1] ** 2),
            symbolic.SymbolicTransition("floor", "throws", z - 1.0, "air", [0.0, 2.0 + z]),
        ],
    )


def box():
    """A ball (x, y, vx, vy) in a corner."""
    x = ca.SX.sym("x", 4)
    air = symbolic.SymbolicMode("air", x, [x[2], x[3], 0.0, -GRAVITY])
    return symbolic.hybrid_system(
        [air],
        [
            symbolic.SymbolicTransition(
                "air", "left", x[0], "air", [x[0], x[1], -0.7 * x[2], x[3]]
            ),
            symbolic.SymbolicTransition(
                "air", "floor", x[1], "air", [x[0], x[1], x[2], -0.7 * x[3]]
            ),
        ],
    )


def agreeing(system, mode, x0, span, policy=None, tolerance=SAME, **settings):
    """The batch, after a comparison with each of its members simulated and linearized alone."""
    batch = hc.simulate_batch(system, mode, x0, span, policy, sensitivities=True, **settings)
    modes = mode if isinstance(mode, list) else [mode] * len(x0)
    for i, (key, x) in enumerate(zip(modes, x0, strict=True)):
        compare(batch, i, tolerance, lambda k=key, s=x: one(system, k, s, span, policy, settings))
    assert set(batch.errors) <= set(range(len(x0)))
    return batch


def one(system, mode, x, span, policy, settings):
    run = hc.simulate(system, mode, x, span, policy, **settings)
    try:
        return run, hc.linearize(system, run).state_transition
    except hc.errors.HybridctlError as error:
        return run, error


def compare(batch, i, tolerance, alone):
    try:
        run, matrix = alone()
    except hc.errors.HybridctlError as error:
        failed(batch, i, error)
        return
    assert batch.modes[i] == run.final_mode
    events = batch.events[i]
    for of_batch, event in zip(events, run.events, strict=True):
        assert of_batch.guards == event.guards
        assert of_batch.mode_before == event.mode_before
        assert of_batch.mode_after == event.mode_after
        assert of_batch.time == pytest.approx(event.time, rel=0.0, abs=tolerance)
    nx = len(run.final_state)
    assert batch.states[i, :nx] == pytest.approx(run.final_state, rel=tolerance, abs=tolerance)
    assert np.isnan(batch.states[i, nx:]).all()
    if isinstance(matrix, Exception):
        assert type(batch.errors[i]) is type(matrix)
        assert np.isnan(batch.matrices[i]).all()
        return
    assert i not in batch.errors
    scale = np.abs(matrix).max()
    part = tuple(map(slice, matrix.shape))
    np.testing.assert_allclose(batch.matrices[i][part], matrix, rtol=0, atol=tolerance * scale)


def failed(batch, i, error):
    assert type(batch.errors[i]) is type(error)
    assert str(batch.errors[i]) == f"member {i}: {error}"
    assert np.isnan(batch.states[i]).all()
    assert np.isnan(batch.matrices[i]).all()
    assert batch.modes[i] is None


def heights(n, seed=0):
    """Starts from which balls still bounce after 4 s."""
    rng = np.random.default_rng(seed)
    return np.column_stack((rng.uniform(5.0, 10.0, n), rng.normal(size=n)))


def test_balls_meet_the_floor_when_they_should():
    """Height and velocity at the end by hand, and the derivative by the height."""
    e, end, h = 0.8, 3.0, np.linspace(1.0, 10.0, 20)
    x0 = np.column_stack((h, np.zeros_like(h)))
    batch = hc.simulate_batch(ball(e), "air", x0, (0.0, end))
    for i in range(len(h)):
        times = impact_times(h[i], e, 20)
        times = times[times < end]
        k, since = len(times), end - times[-1]
        speed = e**k * np.sqrt(2.0 * GRAVITY * h[i])
        state = [speed * since - 0.5 * GRAVITY * since**2, speed - GRAVITY * since]
        assert [event.time for event in batch.events[i]] == pytest.approx(times, abs=1e-9)
        assert batch.states[i] == pytest.approx(state, abs=1e-8)
    assert batch.matrices is None


@pytest.mark.parametrize("drag", [0.0, 0.05])
def test_balls_are_those_of_single_runs(drag):
    agreeing(ball(drag=drag), "air", heights(40), (0.0, 4.0))


def test_balls_never_fly_alone(monkeypatch):
    def refused(*arguments):
        raise AssertionError("a ball flew alone")

    monkeypatch.setattr(lockstep, "integrate_arc", refused)
    monkeypatch.setattr(lockstep, "fire_event", refused)
    batch = hc.simulate_batch(ball(drag=0.05), "air", heights(40), (0.0, 4.0), sensitivities=True)
    assert not batch.errors
    assert min(len(events) for events in batch.events) >= 2


def test_balls_whose_parameter_is_held_fly_together_too(monkeypatch):
    """Held at the drag that the other balls have as a number."""
    x, e, d = ca.SX.sym("x", 2), ca.SX.sym("e"), ca.SX.sym("d")
    air = symbolic.SymbolicMode("air", x, [x[1], -GRAVITY - d * x[1]])
    floor = symbolic.SymbolicTransition("air", "floor", x[0], "air", [x[0], -e * x[1]])
    values = {"restitution": (e, 0.8), "drag": (d, 0.05)}
    held, _ = symbolic.parametric_system([air], [floor], values)
    agreeing(held, "air", heights(5), (0.0, 4.0))

    def refused(*arguments):
        raise AssertionError("a ball flew alone")

    monkeypatch.setattr(lockstep, "integrate_arc", refused)
    monkeypatch.setattr(lockstep, "fire_event", refused)
    found = hc.simulate_batch(held, "air", heights(40), (0.0, 4.0), sensitivities=True)
    batch = hc.simulate_batch(ball(drag=0.05), "air", heights(40), (0.0, 4.0), sensitivities=True)
    assert not found.errors
    np.testing.assert_allclose(found.states, batch.states, rtol=0.0, atol=SAME)
    np.testing.assert_allclose(found.matrices, batch.matrices, rtol=SAME, atol=SAME)


def test_starts_from_which_no_solution_is_unique_fail_as_in_single_runs():
    """On x = 0 both fields of a relay lead away; off it they do not."""
    x = ca.SX.sym("x")
    modes = [symbolic.SymbolicMode(name, x, [sign]) for name, sign in (("plus", 1), ("minus", -1))]
    ways = [
        symbolic.SymbolicTransition("plus", "down", x, "minus"),
        symbolic.SymbolicTransition("minus", "up", -x, "plus"),
    ]
    system = hc.relaxation.filippov(symbolic.hybrid_system(modes, ways))
    batch = hc.simulate_batch(system, "plus", [[0.0], [0.1]], (0.0, 1.0))
    assert isinstance(batch.errors[0], EscapingError)
    np.testing.assert_allclose(batch.states[1], [1.1], rtol=0.0, atol=SAME)


def test_pendulums_with_time_and_input_are_those_of_single_runs():
    rng = np.random.default_rng(1)
    x0 = np.column_stack((rng.uniform(0.0, 1.0, 30), rng.normal(size=30)))
    batch = agreeing(pendulum(), "swing", x0, (0.0, 4.0), HeldInput(np.array([0.3])))
    assert {event.guards for events in batch.events for event in events} >= {("wall",)}


def test_members_start_in_modes_of_several_sizes():
    modes = ["air", "floor"] * 6
    x0 = [[1.0 + i, 0.3] if key == "air" else [2.0 + i] for i, key in enumerate(modes)]
    batch = agreeing(sticky(), modes, x0, (0.0, 3.0))
    assert batch.matrices.shape == (12, 2, 2)
    assert set(batch.modes) == {"air", "floor"}


def test_guards_that_fire_together_have_no_matrix_where_single_runs_have_none():
    """Some members meet the corner exactly, others one wall before the other."""
    fall = np.sqrt(2.0 / GRAVITY)
    x0 = [[fall * (1.0 + d), 1.0, -1.0, 0.0] for d in (0.0, 1e-3, -1e-3, 0.0, 0.2)]
    batch = agreeing(box(), "air", x0, (0.0, 0.8))
    assert batch.events[0][0].guards == ("left", "floor")
    assert len(batch.events[4]) == 2


@pytest.mark.filterwarnings("ignore::hybridctl.base.errors.NearGrazingWarning")  # the last bounces
@pytest.mark.parametrize("on_zeno", ["raise", "rest"])
def test_events_that_accumulate_end_as_in_single_runs(on_zeno):
    x0 = [[1.0, 0.0], [0.5, 0.0], [50.0, 0.0]]
    batch = agreeing(ball(0.5), "air", x0, (0.0, 2.0), on_zeno=on_zeno)
    assert [type(batch.errors.get(i)) for i in range(3)] == [ZenoError, ZenoError, type(None)]


def test_robots_drop_as_in_single_runs():
    """A block lands on its corners: impacts, sticking and sliding, with contact laws of Python."""
    plant = block.system()
    rng = np.random.default_rng(2)
    x0 = np.zeros((6, 6))
    x0[:, 1] = rng.uniform(0.3, 0.5, 6)
    x0[:, 2] = rng.uniform(-0.4, 0.4, 6)
    x0[:, 3] = rng.normal(size=6)
    key = ("open",) * len(plant.contacts)
    batch = agreeing(plant, key, x0, (0.0, 0.5), on_zeno="rest")
    assert all(len(events) > 1 for events in batch.events)


def test_robots_in_contact_slide_and_let_go_as_in_single_runs():
    plant = robot_ball.system(robot_ball.BallParameters(friction=0.4))
    rng = np.random.default_rng(3)
    nx = plant.space.nx
    x0 = np.zeros((5, nx))
    x0[:, 0] = rng.normal(size=5)
    x0[:, 1] = plant.mode(("open",)).space.normalize(np.ones(nx))[1]
    agreeing(plant, ("open",), x0, (0.0, 0.8), on_zeno="rest")


def test_doors_close_as_in_single_runs():
    plant = rrr_door.system()
    rng = np.random.default_rng(4)
    nominal = np.r_[-0.13, 1.37, -0.67, 0.35, 0.0, 0.0, 0.0, -0.6]
    x0 = nominal + 0.01 * rng.normal(size=(4, 8))
    agreeing(plant, ("open", "open"), x0, (0.0, 0.6), on_zeno="rest")


def test_members_that_fail_do_not_lose_the_others():
    x = ca.SX.sym("x", 2)
    burst = symbolic.SymbolicMode("burst", x, [x[0] ** 2, 1.0])
    hits = symbolic.SymbolicTransition("burst", "top", 1.5 - x[1], "burst", [0.1, 0.0])
    system = symbolic.hybrid_system([burst], [hits])
    batch = agreeing(system, "burst", [[0.1, 0.0], [1.0, 0.0], [0.2, 2.0]], (0.0, 4.0))
    assert set(batch.errors) == {1, 2}
    assert isinstance(batch.errors[1], IntegrationError)
    assert type(batch.errors[2]) is GuardViolatedError
    with pytest.raises(SimulationError, match="2 of 3 members failed: member 1: "):
        batch.check()


def test_an_input_that_does_not_fit_a_later_mode_fails_those_who_enter_it():
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u")
    driven = symbolic.SymbolicMode("driven", x, [x[1], u], input=u)
    free = symbolic.SymbolicMode("free", x, [x[1], 0.0])
    lets_go = symbolic.SymbolicTransition("driven", "lets go", 1.0 - x[0], "free")
    system = symbolic.hybrid_system([driven, free], [lets_go])
    law = HeldInput(np.array([0.1]))
    batch = agreeing(system, "driven", [[0.0, 1.0], [0.0, -1.0]], (0.0, 2.0), law)
    assert set(batch.errors) == {0}
    with pytest.raises(SimulationError, match="member 0: input of the policy"):
        hc.simulate_batch(system, "free", [[0.0, 1.0]], (0.0, 2.0), law).check()


def test_members_may_begin_in_contact_and_off_it():
    """A block that slides on one corner, once with the corner 1 mm above its surface."""
    plant = block.system()
    key = ("slip+", *("open",) * (len(plant.contacts) - 1))
    mode = plant.mode(key)
    x0 = np.array([[0.0, 0.3, 0.3, 1.0, 0.0, 0.0]] * 2)
    x0[:] = mode.project(x0[0])
    x0[1, 1] += 1e-3
    batch = agreeing(plant, key, x0, (0.0, 0.1))
    assert set(batch.errors) == {1}


def test_limits_are_those_of_each_member():
    batch = agreeing(ball(), "air", [[10.0, 0.0], [0.5, 0.0]], (0.0, 3.0), max_events=2)
    assert set(batch.errors) == {1}
    assert type(batch.errors[1]) is EventLimitError
    assert batch.errors[1].trajectory.end < 3.0
    batch = agreeing(
        pendulum(), "swing", [[0.5, 0.0]], (0.0, 20.0), options=hc.SimulationOptions(max_steps=3)
    )
    assert type(batch.errors[0]) is StepLimitError


def test_a_member_that_grazes_has_a_state_but_no_matrix():
    """Of g = x + y, g' = -3 (1 - t)^2 stops where the first member has g = (1 - t)^3 = 0."""
    t, x = ca.SX.sym("t"), ca.SX.sym("x", 2)
    slide = symbolic.SymbolicMode("slide", x, [1.0, -1.0 - 3.0 * (1.0 - t) ** 2], time=t)
    rest = symbolic.SymbolicMode("rest", x, [0.0, 0.0])
    edge = symbolic.SymbolicTransition("slide", "edge", x[0] + x[1], "rest")
    system = symbolic.hybrid_system([slide, rest], [edge])
    batch = agreeing(system, "slide", [[0.0, 1.0], [0.0, 0.5]], (0.0, 2.0), tolerance=1e-5)
    assert {i: type(e) for i, e in batch.errors.items()} == {0: GrazingError}
    assert batch.modes == ("rest", "rest")


@pytest.fixture
def threads():
    with ThreadPoolExecutor(2) as executor:
        yield executor


@pytest.mark.parametrize("kind", ["here", "threads", "processes"])
def test_systems_of_functions_are_simulated_member_by_member(kind, request):
    system = ball() if kind == "processes" else ball_of_functions()
    x0, options, method = heights(4), {}, "DOP853"
    if kind != "here":
        method, options = "RK45", {"executor": request.getfixturevalue(kind), "method": "RK45"}
    batch = hc.simulate_batch(system, "air", x0, (0.0, 2.0), **options)
    for state, x in zip(batch.states, x0, strict=True):
        run = hc.simulate(system, "air", x, (0.0, 2.0), method=method)
        assert state == pytest.approx(run.final_state, rel=1e-12)


WRONG = [
    (lambda s: hc.simulate_batch(None, "air", [[1.0, 0.0]], (0, 1)), "system must be a Hybrid"),
    (lambda s: hc.simulate_batch(s, "sea", [[1.0, 0.0]], (0, 1)), "mode 'sea' is unknown"),
    (lambda s: hc.simulate_batch(s, ["air"], [[1.0, 0.0]] * 2, (0, 1)), "one entry per state"),
    (lambda s: hc.simulate_batch(s, "air", [[1.0, 0.0], [1.0]], (0, 1)), r"x0\[1\] must have"),
    (lambda s: hc.simulate_batch(s, "air", [[1.0, 0.0], [1.0, np.nan]], (0, 1)), r"x0\[1\]"),
    (lambda s: hc.simulate_batch(s, "air", 3.0, (0, 1)), "x0 must be a list"),
    (lambda s: hc.simulate_batch(s, "air", [1.0, 2.0], (0, 1)), r"x0\[0\] must have shape \(2\)"),
    (lambda s: hc.simulate_batch(s, "air", [[1.0, 0.0]], (1, 0)), "t_span"),
    (lambda s: hc.simulate_batch(s, "air", [[1.0, 0.0]], (0, 1), rtol=0.0), "rtol must be"),
    (lambda s: hc.simulate_batch(s, "air", [[1.0, 0.0]], (0, 1), executor=2), "executor must be"),
    (lambda s: hc.simulate_batch(s, "air", [[1.0, 0.0]], (0, 1), sensitivities=2), "sensitivit"),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_what_serves_no_member_is_refused(call, message):
    with pytest.raises(InputError, match=message) as caught:
        call(ball())
    assert isinstance(caught.value, InputError | UnknownNameError)


def test_no_members_are_an_empty_batch():
    batch = hc.simulate_batch(ball(), "air", np.zeros((0, 2)), (0.0, 1.0), sensitivities=True)
    assert len(batch.states) == len(batch.modes) == len(batch.events) == 0
    batch.check()


@pytest.mark.parametrize("below", [2e-7, 1e-3])
def test_a_reset_out_of_the_next_mode_fires_there_at_once(below):
    """A slight one, 2e-7 for a tolerance of 1e-8, is left again before the next sample.

    The second coordinate is constant; its size makes first steps long enough for that.
    """
    x = ca.SX.sym("x", 2)
    modes = [symbolic.SymbolicMode(key, x, [1.0, 0.0]) for key in "abc"]
    edges = [
        symbolic.SymbolicTransition("a", "edge", 1.0 - x[0], "b", [x[0] - (1.0 + below), x[1]]),
        symbolic.SymbolicTransition("b", "wall", x[0], "c", [x[0], x[1]]),
    ]
    batch = hc.simulate_batch(
        symbolic.hybrid_system(modes, edges), "a", [[0.0, 1.0], [0.25, 1.0]], (0.0, 3.0)
    )
    assert batch.modes == ("c", "c")
    for (edge, wall), time in zip(batch.events, (1.0, 0.75), strict=True):
        assert edge.time == wall.time == pytest.approx(time, abs=1e-14)


@pytest.mark.parametrize("members", [0, 3])
def test_a_batch_without_ends_has_the_sizes_of_the_mode_that_was_given(members):
    """Members that begin below the floor all fail."""
    below = np.tile([-1.0, 0.0], (members, 1))
    batch = hc.simulate_batch(ball(), "air", below, (0.0, 1.0), sensitivities=True)
    assert sorted(batch.errors) == list(range(members))
    assert batch.states.shape == (members, 2)
    assert batch.matrices.shape == (members, 2, 2)
    assert np.isnan(batch.states).all()
    assert np.isnan(batch.matrices).all()


def test_a_key_that_is_no_key_is_refused():
    with pytest.raises(InputError, match="key of a mode must be hashable"):
        hc.simulate_batch(ball(), {"air": 1}, [[1.0, 0.0]], (0.0, 1.0))
