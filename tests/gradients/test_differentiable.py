"""Gradients of whole runs against central differences of the flow, and against closed forms."""

import math
import pickle
import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
from gradients.systems import (
    KINDS,
    QUADRUPEDS,
    dropped_quadruped,
    falling_ball,
    falling_cube,
    struck_door,
    swinging_chain,
    tumbling_cube,
)
from hybridctl.robots import ball, block, cube, public
from scipy.optimize import brentq
from scipy.spatial.transform import Rotation

import hybridctl as hc
from hybridctl.base.errors import HybridctlError, InputError, UnknownNameError
from hybridctl.mechanics import Contact, Plane, Robot, Wrench, contact_system
from hybridctl.mechanics.system import ContactSystem

SLOW_BOUNCES = pytest.mark.filterwarnings("ignore::hybridctl.base.errors.NearGrazingWarning")
"""A corner that hits at 1 mm/s has a time that is known to a millionth of a second."""


def along(flow, arguments, tape, seed):
    """The derivative of a random scalar along a random direction, and its differences.

    Returns the adjoint's, and differences for two steps.
    """
    rng = np.random.default_rng(seed)
    x0, u, p = arguments
    by_states = rng.normal(size=tape.states.shape)
    by_events = rng.normal(size=tape.event_times.shape) * tape.event_mask
    space = tape.trajectory.arcs[0].space
    dx, du = rng.normal(size=space.ndx), rng.normal(size=u.shape)
    dp = 0.1 * rng.normal(size=p.shape) * np.abs(p)
    found = tape.vjp(by_states, by_events)
    ours = found.state @ dx + (found.inputs * du).sum() + found.parameters @ dp

    def value(step):
        start = space.normalize(space.integrate(np.asarray(x0, float), step * dx))
        run = flow.run(start, u + step * du, p + step * dp)
        return (by_states * run.states).sum() + (by_events * run.event_times).sum()

    return ours, [(value(h) - value(-h)) / (2.0 * h) for h in (1e-5, 1e-6)]


def compare(kind, seed):
    """The error of a case in units of its scale, and what differences leave open; None if refused.

    Differences are off by the change between two steps: it is large where perturbed runs have
    other events, so that the case shows nothing. Every other case has no parameters.
    """
    options = {"parameters": ()} if seed % 2 else {}
    flow, x0, u, p = (KINDS | QUADRUPEDS)[kind](np.random.default_rng(seed), **options)
    arguments = x0, u, p if flow.parameter_names else np.zeros(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tape = flow.run(*arguments)
        try:
            ours, differences = along(flow, arguments, tape, seed)
        except HybridctlError as error:
            return None, str(error)
    scale = max(1.0, abs(ours))
    error = min(abs(ours - d) for d in differences) / scale
    return error, abs(differences[0] - differences[1]) / scale


COUNTS = {"ball": 18, "block": 18, "chain": 14, "door": 8, "cube": 4}
"""Number of cases that are tested by default: 62 in all."""


@pytest.mark.parametrize(
    ("kind", "seed"), [(kind, seed) for kind, count in COUNTS.items() for seed in range(count)]
)
def test_gradients_are_those_of_the_flow(kind, seed):
    """By state, inputs and parameters at once, through some events."""
    error, left = compare(kind, seed)
    if error is None:  # these events have no gradient
        assert re.match(r"event \d+ at t = ", left)
    elif left < 1e-5:
        assert error <= 1e-6 + left


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_many_runs_are_those_of_the_flow(kind):
    """Refused are kinks, and most differences are good enough to tell.

    Of 40 cubes 11 are refused: they come to rest on an edge, whose corners bounce in turn or touch
    at once. Of the other kinds fewer are.
    """
    found = [compare(kind, seed) for seed in range(100, 140)]
    refused = [why for error, why in found if error is None]
    told = [(error, left) for error, left in found if error is not None and left < 1e-5]
    assert all(error <= 1e-6 + left for error, left in told), told
    kinks = "fire together|accumulate|include one that"
    assert all(re.search(kinks, why) for why in refused), refused
    assert len(refused) <= 0.3 * len(found), refused
    assert len(told) >= 0.6 * len(found), found


@SLOW_BOUNCES
def test_a_start_in_space_is_perturbed_in_its_tangent_space():
    """Both forms of the gradient give the same along a direction of the manifold."""
    flow, *arguments = falling_cube(end=0.16)
    tape = flow.run(*arguments)
    found = tape.vjp(np.ones(tape.states.shape))
    space = tape.trajectory.arcs[0].space
    dx = np.random.default_rng(0).normal(size=space.ndx)
    assert (found.state.shape, found.coordinates.shape) == ((12,), (13,))
    rate = space.rate(arguments[0], dx)
    assert found.coordinates @ rate == pytest.approx(found.state @ dx, rel=1e-12)
    assert found.coordinates[3:7] @ arguments[0][3:7] == pytest.approx(0.0, abs=1e-12)


def test_the_adjoint_is_the_transpose_of_the_linearization():
    flow, x0, u, _ = struck_door()
    tape = flow.run(x0, u)
    matrix = hc.linearize(tape.system, tape.trajectory).state_transition
    rows = [tape.vjp(row[None]).state for row in np.eye(8)]
    np.testing.assert_allclose(rows, matrix, rtol=1e-6, atol=1e-6 * np.abs(matrix).max())


@pytest.mark.parametrize("kind", ["ball", "block"])
def test_modes_without_compiled_functions_give_the_same(kind):
    """Stages are solved for one costate there, by another formula."""
    flow, *arguments = KINDS[kind]()
    compiled = flow.parametric.source
    robot, contacts = compiled.robot, compiled.contacts
    system = contact_system(robot, contacts, terms="pinocchio")
    other = KINDS[kind](system=system)[0]
    by_states = np.random.default_rng(0).normal(size=flow.run(*arguments).states.shape)
    one, two = (each.run(*arguments).vjp(by_states) for each in (flow, other))
    np.testing.assert_allclose(one.state, two.state, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(one.inputs, two.inputs, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(one.parameters, two.parameters, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("kind", QUADRUPEDS)
def test_gradients_of_quadrupeds_are_those_of_the_flow_or_refused(kind):
    """Feet bounce in turn until they rest, or leave an impact at a border: all 16 are refused now.

    A change that gives some of them a gradient has to show that it is that of the flow.
    """
    found = [compare(kind, seed) for seed in range(100, 108)]
    told = [(error, left) for error, left in found if error is not None and left < 1e-5]
    assert all(error <= 1e-6 + left for error, left in told), told
    refused = [why for error, why in found if error is None]
    assert all(re.match(r"event \d+ at t = ", why) for why in refused), refused


SCATTER = 5e-9
"""Bound on the distance of values of perturbed runs to a smooth function, in units of the state.

Steps are right to 1e-9, and rounding decides how the least bounces end: measured 7e-10 at most."""


@pytest.mark.slow
@SLOW_BOUNCES
@pytest.mark.parametrize("seed", [5, 7])
def test_quick_bounces_of_feet_in_turn_end_by_impulses_of_all_of_them(seed):
    """Feet lift each other by less and less until all rest: perturbed bounces end in some order.

    A foot that leaves at 1e-8 m/s is above the ground by less than rounding, which decides whether
    it lands by an event of its own or rests at once. Values of both kinds of runs lie on one
    parabola but for their scatter, up to steps of 2e-5: at 3e-5 feet land in another order. Its
    slope is right to what the scatter can make of it, 4e-5 of itself.
    """
    flow, x0, _, _ = dropped_quadruped(np.random.default_rng(seed), parameters=(), kink="mean")
    tape = flow.run(x0)
    rng, space = np.random.default_rng(1), tape.trajectory.arcs[0].space
    weights, dx = rng.normal(size=tape.states.shape), rng.normal(size=space.ndx)
    steps = np.linspace(-2e-5, 2e-5, 10)
    values = [
        (weights * flow.run(space.normalize(space.integrate(x0, h * dx))).states).sum()
        for h in steps
    ]
    powers = np.vander(steps / steps[-1], 3)
    fit, changes = np.linalg.pinv(powers), np.array(values) - values[0]
    assert np.abs(changes - powers @ (fit @ changes)).max() <= SCATTER
    slope, room = (fit[1] @ changes, np.abs(fit[1]).sum() * SCATTER) / steps[-1]
    assert tape.vjp(weights).state @ dx == pytest.approx(slope, abs=room)
    assert tape.choices


@pytest.mark.slow
def test_how_many_of_the_least_bounces_there_are_changes_no_run():
    """Of starts on a line some have 28 events and some 31: rounding decides, and states go on.

    Final states lie on one line to what steps leave, some 1e-10 at a tolerance of 1e-9.
    """
    rng = np.random.default_rng(3)
    x0 = [public.start("solo12", 0.02, *rng.uniform(-0.25, 0.25, size=2)) for _ in range(3)][-1]
    system = public.system("solo12")
    space = system.mode(("open",) * 4).space
    direction = np.random.default_rng(0).normal(size=space.ndx)
    steps = np.linspace(0.0, 4e-7, 6)
    runs = [
        hc.simulate(
            system,
            ("open",) * 4,
            space.normalize(space.integrate(x0, h * direction)),
            (0.0, 0.2),
        )
        for h in steps
    ]
    ends = np.array([space.difference(runs[0].final_state, run.final_state) for run in runs])
    line = np.polynomial.Polynomial.fit
    rest = [np.abs(line(steps, x, 1)(steps) - x).max() for x in ends.T]
    assert max(rest) <= 1e-9
    assert all(event.bridged is None for run in runs for event in run.events)


@pytest.mark.slow
@SLOW_BOUNCES
def test_a_cube_that_lands_on_edges_and_rests_has_the_gradient_of_its_plane():
    """In the plane of the motion both corners of an edge stay together: there is no kink.

    The bounces that rest leaves out change the place by some 1e-7 m.
    """
    flow, x0 = tumbling_cube()
    tape = flow.run(x0)
    assert len(tape.trajectory.events) > 25
    assert any(event.rest for event in tape.trajectory.events)
    found = tape.vjp(np.eye(13)[1][None])
    space = tape.trajectory.arcs[0].space

    def place(dx, restitution=0.135):
        return flow.run(space.normalize(space.integrate(x0, dx)), None, [restitution]).states[0, 1]

    # By the speed at which it falls: the adjoint and differences of the published toss agree.
    down = Rotation.from_quat(x0[3:7]).inv().apply([0.0, 0.0, 1.0])
    assert found.state[6:9] @ down == pytest.approx(-0.001549, abs=1e-6)
    for k in (1, 2, 3, 7, 8, 9):  # along y and z, and about x
        step = 1e-5 * np.eye(12)[k]
        assert found.state[k] == pytest.approx((place(step) - place(-step)) / 2e-5, abs=1e-6)
    ends = [place(np.zeros(12), 0.135 + h) for h in (1e-5, -1e-5)]
    assert found.parameters[0] == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-6)


@pytest.mark.slow
@SLOW_BOUNCES
def test_directions_that_tilt_a_rocking_edge_are_refused_by_the_names_of_its_corners():
    """Of a level edge one corner would hit first: whose turn it is at rest has no derivative."""
    flow, x0 = tumbling_cube(kink="raise")
    tape = flow.run(x0)
    with pytest.raises(InputError, match=r"corner\d closes.* accumulate in turn"):
        tape.vjp(np.eye(13)[1][None])


@pytest.mark.slow
@SLOW_BOUNCES
def test_the_same_cube_on_a_tilted_edge_has_a_gradient_in_all_directions():
    """Tilted by 1 mrad it hits with single corners: nine events within 1 s, and no kink."""
    flow, x0 = tumbling_cube(kink="raise")
    turn = Rotation.from_euler("y", 1e-3) * Rotation.from_euler("x", 60.0, degrees=True)
    x0[3:7], x0[7:10] = turn.as_quat(), turn.inv().apply([0.0, -0.1, -2.0])
    tape = flow.run(x0)
    found = tape.vjp(np.eye(13)[1][None])
    space = tape.trajectory.arcs[0].space

    def place(dx, restitution=0.135):
        return flow.run(space.normalize(space.integrate(x0, dx)), None, [restitution]).states[0, 1]

    assert not tape.choices
    for k, step in enumerate(1e-6 * np.eye(12)):
        assert found.state[k] == pytest.approx((place(step) - place(-step)) / 2e-6, abs=1e-6)
    ends = [place(np.zeros(12), 0.135 + h) for h in (1e-6, -1e-6)]
    assert found.parameters[0] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-6)


def slide_to_rest(height, speed, restitution, friction, end):
    """Where a ball is that is thrown flat, bounces on a level floor and slides, in closed form."""
    g = 9.81
    fall = math.sqrt(2.0 * height / g)
    t, x, v, w = fall, speed * fall, speed, g * fall
    v, w = v - friction * (1.0 + restitution) * w, restitution * w
    for _ in range(200):
        flight = 2.0 * w / g
        t, x = t + flight, x + v * flight
        v, w = v - friction * (1.0 + restitution) * w, restitution * w
    left = end - t
    return x + v * left - 0.5 * friction * g * left**2


def test_through_rest_the_gradient_is_that_of_the_closed_form():
    """A bouncing ball comes to rest on the floor, and goes on sliding.

    The bounces that rest leaves out take 1e-5 s, in which the ball is off by about as much.
    """
    system = ball.system(ball.BallParameters(friction=0.2, restitution=0.5, slope=0.0))
    names = ("restitution:slope", "friction:slope")
    flow = hc.differentiable(system, ("open",), (0.0, 1.2), parameters=names)
    tape = flow.run([0.0, 0.3, 3.0, 0.0])
    assert any(event.rest for event in tape.trajectory.events)
    found = tape.vjp([[1.0, 0.0, 0.0, 0.0]])
    given = np.array([0.3, 3.0, 0.5, 0.2])

    def difference(k):
        step = 1e-6 * np.eye(4)[k]
        ends = (slide_to_rest(*values, 1.2) for values in (given + step, given - step))
        return (next(ends) - next(ends)) / 2e-6

    ours = [found.state[1], found.state[2], *found.parameters]
    np.testing.assert_allclose(ours, [difference(k) for k in range(4)], atol=2e-5)


def test_a_kink_is_refused_with_its_reason_or_taken_by_choice():
    """A level foot strikes a door: its corners touch together, in two orders that lead apart."""
    flow, x0, u = level_door(kink="raise")
    with pytest.raises(InputError, match="2 derivatives, one for each order"):
        flow.run(x0, u).vjp(np.ones((1, 8)))
    tapes = {kink: level_door(kink=kink)[0].run(x0, u) for kink in ("mean", "first")}
    by_state = np.random.default_rng(0).normal(size=(1, 8))
    found = {kink: tape.vjp(by_state).state for kink, tape in tapes.items()}
    assert "mean of 2 derivatives" in tapes["mean"].choices[0]
    lin = hc.linearize(tapes["mean"].system, tapes["mean"].trajectory)
    for direction in np.random.default_rng(1).normal(size=(8, 8)):
        one = by_state[0] @ lin.derivative(direction)
        other = -by_state[0] @ lin.derivative(-direction)
        low, high = sorted((one, other))
        room = 1e-6 * max(1.0, abs(one), abs(other))
        for gradient in found.values():
            assert low - room <= gradient @ direction <= high + room
        assert found["mean"] @ direction == pytest.approx(0.5 * (one + other), abs=room)


def level_door(kink):
    """A foot that is level to rounding: the flow, its start and inputs."""
    flow, x0, u, _ = struck_door(ahead=0.0, noise=0.0, kink=kink, event_window=1e-4)
    outputs = flow.parametric.source.mode(("open", "open")).outputs

    def gap_difference(turn):
        start = x0.copy()
        start[6] += turn
        run = flow.run(start, u).trajectory
        state = next(e for e in run.events if e.guards).state_before
        gaps = outputs(0.0, state, np.zeros(3))["gap"]
        return gaps[0] - gaps[1]

    start = x0.copy()
    start[6] += brentq(gap_difference, -0.3, 0.3, xtol=1e-15)
    return flow, start, u


def test_values_of_parameters_make_the_system_that_has_them():
    """By names, a run is that of a system which is built with the values."""
    flow, x0, u, p = falling_ball()
    e, mu, m = p
    built = ball.system(ball.BallParameters(restitution=e, friction=mu, mass=m))
    other = hc.differentiable(built, ("open",), (0.0, 1.2), times=flow.times, holds=12)
    np.testing.assert_allclose(flow.run(x0, u, p).states, other.run(x0, u).states, rtol=1e-12)
    np.testing.assert_array_equal(flow.nominal_parameters, [0.6, 0.2, 1.0])


@pytest.mark.parametrize("kind", ["block", "chain"])
def test_a_new_value_makes_no_new_function(kind, monkeypatch):
    """Functions have the numbers as an argument: a run with others reads and builds nothing."""
    flow, x0, u, p = KINDS[kind]()
    flow.run(x0, u, p).vjp(np.ones((len(flow.times), len(x0))))
    source = flow.parametric.source
    built = KINDS[kind](system=contact_system(source.robot, source.contacts))[0]
    wanted = built.run(x0, u, 1.001 * p).states

    def refuse(key, build):
        raise AssertionError("a function is asked for")

    monkeypatch.setattr("hybridctl.mechanics.modes.mode_functions.load_or_build", refuse)
    monkeypatch.setattr("hybridctl.mechanics.terms.expression_terms.load_or_build", refuse)
    tape = flow.run(x0, u, 1.001 * p)
    tape.vjp(np.ones(tape.states.shape))
    np.testing.assert_array_equal(tape.states, wanted)


@pytest.mark.parametrize(
    "change",
    [{"friction": 0.0, "static_friction": 0.4}, {"friction": 0.0}, {"restitution": 0.0}],
    ids=str,
)
def test_a_value_that_becomes_zero_has_functions_of_its_own(change):
    """What is zero is no number of the functions: a shared one would take the next number."""
    parameters = ball.BallParameters(friction=0.2, restitution=0.6)
    old = contact_system(ball.robot(parameters), ball.contacts(parameters))
    (contact,) = old.contacts
    both = {"static_friction": change.get("friction", 0.2), **change}
    changed = [replace(contact, **both)]
    made = ContactSystem(old.dynamics.with_values(old.robot, changed))
    start, span = [0.0, 0.5, 0.5, 0.0], (0.0, 1.2)
    hc.simulate(old, ("open",), start, span)
    wanted = hc.simulate(contact_system(old.robot, changed), ("open",), start, span)
    found = hc.simulate(made, ("open",), start, span)
    np.testing.assert_array_equal(found.final_state, wanted.final_state)


@SLOW_BOUNCES
def test_one_name_is_that_of_all_contacts():
    """The gradient by "friction" is the sum of those by the friction of each corner."""
    flow, x0, u, _ = falling_cube(end=0.16, parameters=("friction",))
    tape = flow.run(x0, u)
    total = tape.vjp(np.ones((1, 13))).parameters
    system = flow.parametric.source
    each = [f"{kind}:{c.name}" for c in system.contacts for kind in ("friction", "static_friction")]
    apart = falling_cube(end=0.16, parameters=each)[0].run(x0, u).vjp(np.ones((1, 13))).parameters
    assert total[0] == pytest.approx(apart.sum(), rel=1e-10)


def test_a_wrench_beside_the_inputs():
    """The derivatives are those of the pushed system; inputs are those of the motors."""
    push = Wrench("link2", (3.0, 0.0, 2.0), 0.1, 0.3)
    flow, x0, u, _ = swinging_chain(parameters=(), wrench=push)
    tape = flow.run(x0, u)
    assert tape.trajectory.guard_events
    ours, differences = along(flow, (x0, u, np.zeros(0)), tape, 0)
    assert ours == pytest.approx(differences[1], rel=1e-5)
    assert tape.vjp(np.ones(tape.states.shape)).inputs.shape == u.shape


def test_parameters_of_a_pushed_robot_are_refused():
    push = Wrench("link2", (3.0, 0.0, 2.0), 0.1, 0.3)
    with pytest.raises(InputError, match="wrench"):
        swinging_chain(wrench=push)
    pushed = swinging_chain()[0].parametric.source.pushed(push)
    with pytest.raises(InputError, match="wrench"):
        hc.differentiable(pushed, ("open",), (0.0, 0.5), parameters=["friction"])


def test_two_names_of_one_number_are_refused():
    """A gradient by both would count it twice, while a run has the value of the last."""
    with pytest.raises(InputError, match="no contact twice"):
        falling_ball(parameters=("friction", "friction:slope"))
    mass = '<inertial><mass value="{m}"/>{i}</inertial>'
    inertia = '<inertia ixx="0.1" iyy="0.1" izz="0.1" ixy="0" ixz="0" iyz="0"/>'
    links = [f'<link name="{k}">{mass.format(m=1, i=inertia)}</link>' for k in ("cup", "lid")]
    glued = '<joint name="glue" type="fixed"><parent link="cup"/><child link="lid"/></joint>'
    robot = Robot.from_urdf(f'<robot name="r">{"".join(links)}{glued}</robot>', root="floating")
    floor = Contact("c", "cup", Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0)))
    system = contact_system(robot, [floor])
    with pytest.raises(InputError, match="one link of a rigid body, got 'cup', 'lid'"):
        hc.differentiable(system, ("open",), (0.0, 1.0), parameters=["mass:cup", "mass:lid"])


def test_wrong_arguments_are_named():
    system = ball.system(ball.BallParameters())
    with pytest.raises(UnknownNameError, match="kink"):
        hc.differentiable(system, ("open",), (0.0, 1.0), kink="none")
    with pytest.raises(InputError, match="times must lie"):
        hc.differentiable(system, ("open",), (0.0, 1.0), times=[2.0])
    with pytest.raises(InputError, match="holds must cover"):
        hc.differentiable(system, ("open",), (0.0, 1.0), holds=[0.0, 0.5])
    with pytest.raises(UnknownNameError, match="KIND:OWNER"):
        hc.differentiable(system, ("open",), (0.0, 1.0), parameters=["mass"])
    flow = hc.differentiable(system, ("open",), (0.0, 1.0))
    with pytest.raises(InputError, match="holds"):
        flow.run(np.zeros(4), np.zeros((3, 2)))
    with pytest.raises(InputError, match="states"):
        flow.run([0.0, 0.5, 0.0, 0.0]).vjp(np.ones((2, 4)))


def test_a_run_is_recalled_by_values_and_shapes():
    flow, x0, u, p = falling_ball(events=0)
    tape = flow.recall(x0, u, p)
    assert flow.recall(x0.tolist(), u, p) is tape
    sent = pickle.loads(pickle.dumps(flow))  # without the run
    assert not sent._recent
    np.testing.assert_array_equal(sent.recall(x0, u, p).states, tape.states)
    with pytest.raises(InputError, match="inputs must have shape"):
        flow.recall(x0, u.ravel(), p)
    with pytest.raises(InputError, match="shape"):
        flow.recall(x0, u.reshape(3, 8), p)


def test_events_after_the_last_time_do_not_matter():
    """A level foot strikes a door: before that there is a gradient, although none after it."""
    flow, x0, u = level_door(kink="raise")
    early = hc.differentiable(
        flow.parametric.source, flow.mode, flow.span, times=[0.005], holds=5, event_window=1e-4
    )
    found = early.run(x0, u).vjp(np.ones((1, 8)))
    before = hc.differentiable(
        flow.parametric.source, flow.mode, (0.0, 0.005), holds=flow.hold_times
    )
    wanted = before.run(x0, u).vjp(np.ones((1, 8)))
    np.testing.assert_allclose(found.state, wanted.state, rtol=1e-9)


def drop_level_block(**options):
    """A level block that falls on both corners at once, slides and stops; its flow and start."""
    system = block.system(block.BlockParameters(friction=0.1))
    flow = hc.differentiable(system, ("open", "open"), (0.0, 1.2), **({"events": 1} | options))
    return flow, np.array([0.0, 0.05 + 0.1, 0.0, 1.0, 0.0, 0.0])


def test_the_time_of_the_first_of_two_corners_is_a_kink():
    """Its derivative by the pitch is half the width by the speed, up or down; the state has none.

    After 0.1 m it is sqrt(2 g 0.1 m). A start that is higher by dz lands later by dz / speed.
    """
    speed = math.sqrt(2.0 * 9.81 * 0.1)
    flow, x0 = drop_level_block(kink="raise")
    tape = flow.run(x0)
    assert tape.vjp(np.ones((1, 6))).state.all()  # states have a gradient
    with pytest.raises(InputError, match="time of the first"):
        tape.vjp(None, [1.0])
    expected = {"mean": 0.0, "first": -0.1 / speed}  # the left corner is raised by a positive pitch
    for kink, by_pitch in expected.items():
        tape = drop_level_block(kink=kink)[0].run(x0)
        found = tape.vjp(None, [1.0]).state
        assert found[1] == pytest.approx(1.0 / speed, rel=1e-8)
        assert abs(found[2]) == pytest.approx(abs(by_pitch), abs=1e-8)
        assert "time of the first" in tape.choices[0]


def test_events_after_two_at_once_have_other_numbers_on_perturbed_runs():
    """Of a block that lands level and stops, the second event is the stop, or the other corner."""
    flow, x0 = drop_level_block(events=2, kink="raise")
    tape = flow.run(x0)
    assert tape.event_mask.all()
    with pytest.raises(InputError, match="number"):
        tape.vjp(None, [0.0, 1.0])
    tape = drop_level_block(events=2, kink="mean")[0].run(x0)
    assert np.isfinite(tape.vjp(None, [0.0, 1.0]).state).all()
    assert any("number" in choice for choice in tape.choices)
    # As one impact it keeps its number, however it is perturbed.
    tape = drop_level_block(events=2, kink="mean", simultaneous="at once")[0].run(x0)
    assert np.isfinite(tape.vjp(None, [0.0, 1.0]).state).all()
    assert not any("number" in choice for choice in tape.choices)


def test_cotangents_of_events_that_did_not_happen_are_ignored():
    """The landing on two corners changes the number of later events, but there are none."""
    flow, x0 = drop_level_block(events=20, kink="raise")
    tape = flow.run(x0)
    missing = np.where(tape.event_mask, 0.0, 1.0)
    assert missing.any()
    found, wanted = tape.vjp(np.ones((1, 6)), missing), tape.vjp(np.ones((1, 6)))
    np.testing.assert_array_equal(found.state, wanted.state)


def test_the_time_of_an_impact_at_the_border_of_slip_is_that_of_its_guard():
    """An impact just stops a ball on a slope that it slides down: no side changes when it happens.

    With the normal n of the slope, the speed w along it at the impact, and g_n = g cos(slope), a
    perturbation (dp, dv) changes the time by n . dp / w + n . dv / g_n.
    """
    slope, friction, height = 0.5, 0.3, 0.1
    normal = np.array([math.sin(slope), math.cos(slope)])
    along = np.array([math.cos(slope), -math.sin(slope)])
    g_n, g_t = 9.81 * math.cos(slope), 9.81 * math.sin(slope)
    speed = math.sqrt(2.0 * g_n * height)
    x0 = np.r_[height * normal, (friction * speed - g_t * speed / g_n) * along]
    system = ball.system(ball.BallParameters(slope=slope, friction=friction))
    options = {"times": (0.2,), "events": 1}
    tape = hc.differentiable(system, ("open",), (0.0, 0.2), **options).run(x0)
    with pytest.raises(InputError, match="derivatives"):
        tape.vjp(np.ones((1, 4)), [1.0])
    for kink in ("mean", "first"):
        flow = hc.differentiable(system, ("open",), (0.0, 0.2), kink=kink, **options)
        found = flow.run(x0).vjp(None, [1.0]).state
        np.testing.assert_allclose(found, np.r_[normal / speed, normal / g_n], atol=1e-8)


def test_redundant_corners_have_a_gradient_by_the_restitution_of_all():
    """A level cube falls by h: at t, its height has risen by e w (t - T) since it hit at w.

    By that of one corner alone there is no derivative, as they would not bounce together.
    """
    height, g, end, e = 0.05, 9.81, 0.12, 0.4
    fall = math.sqrt(2.0 * height / g)
    made = cube.CubeParameters(restitution=e)
    flow = hc.differentiable(
        cube.system(made),
        ("open",) * 8,
        (0.0, end),
        parameters=("restitution",),
        kink="mean",
        simultaneous="at once",
    )
    x0 = np.zeros(13)
    x0[[2, 6]] = made.half_width + height, 1.0
    tape = flow.run(x0)
    z = e * g * fall * (end - fall) - 0.5 * g * (end - fall) ** 2
    assert tape.states[0, 2] == pytest.approx(made.half_width + z, abs=1e-9)
    found = tape.vjp(np.eye(13)[2][None])
    assert found.parameters[0] == pytest.approx(g * fall * (end - fall), rel=1e-8)
