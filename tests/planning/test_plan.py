"""Plans that are kept: what follows them, and what they may be over."""

from types import SimpleNamespace

import casadi as ca
import numpy as np
import pytest
from mechanics.test_several import several_velocities
from planning.first_tasks import sliding_block
from planning.plate import CLOSED, OPEN, TIME, landing
from planning.plate import guess as landing_guess
from planning.small_systems import MASS, WAY, ball, pole, straight, to_the_wall
from planning.small_systems import TIME as WAY_TIME

from hybridctl.base.errors import InputError, RedundantConditionWarning, SimulationError
from hybridctl.hybrid.policy import History
from hybridctl.mechanics import Contact, Plane, Stairs, contact_system
from hybridctl.mechanics.impacts.impact import impact
from hybridctl.planning.optimisation import optimise
from hybridctl.planning.phase_functions import build_phase_functions
from hybridctl.planning.plan import (
    Feedforwards,
    InputCurve,
    PhaseSequence,
    _EventMonitor,
    build_plan,
)
from hybridctl.planning.task import Condition, Margins, Phase, Task
from hybridctl.planning.task_checks import find_implied_guards
from hybridctl.planning.transcription import transcribe

GRAVITY = 9.81


def test_a_plan_has_the_closed_form_of_its_motion():
    """x = d (3 s^2 - s^3) / 2 of s = t / T, a cubic, as it is in the programme; and its event."""
    found = optimise(
        to_the_wall(
            phases=[
                Phase(("open",), ("nose closes",), (0.8, 0.8 + 1e-9)),
                Phase(("closed",), (), (0.2, 0.2 + 1e-9)),
            ]
        ),
        straight,
    )
    times = np.linspace(0.0, 0.8, 7)
    s = times / 0.8
    np.testing.assert_allclose(
        found.plan.arcs[0](times)[:, 0], 0.5 * WAY * (3.0 * s**2 - s**3), atol=1e-6
    )
    (event,), (run,) = found.plan.events, found.run.events
    assert (event.guards, event.mode_after) == (run.guards, run.mode_after)
    np.testing.assert_allclose(event.impulses, run.impulses, rtol=1e-6)
    np.testing.assert_allclose(event.state_after, run.state_after, atol=1e-6)
    assert found.tracked is None, "open loop closes"


def test_a_motion_that_grows_is_closed_by_feedback():
    """Rounding grows by exp(6.3 / s * 10 s), beyond the tolerance; under LQR nothing does."""
    task = Task(
        pole(),
        [Phase(("open",), (), (10.0, 10.0 + 1e-9), 20)],
        start=[0.1, 0.0],
        conditions=[Condition("tilt", lambda a, b, t: b[0], -0.1, -0.1, "rad")],
    )
    found = optimise(task, lambda k, s: np.array([0.1 - 0.2 * s, 0.0]))
    assert not found.open_loop.closes
    with pytest.raises(SimulationError, match="simulat"):
        found.open_loop.require_run()
    assert found.tracked.closes
    assert found.run.final_state[0] == pytest.approx(-0.1, abs=1e-4)
    assert found.mismatch < 1e-4


def test_a_plan_that_nothing_follows_comes_back_with_the_reason():
    found = optimise(to_the_wall(), straight, tolerance=1e-30)
    assert not found.closing.closes
    assert found.plan.arcs[0](TIME)[0] > 0.0
    with pytest.raises(SimulationError, match="differ from planned ones"):
        _ = found.run


def test_conditions_that_the_last_mode_implies_are_named_and_left_out():
    """Two corners hold both velocities of a plate, and its height: rest is no condition more."""
    rest = [
        Condition("lift at rest", lambda a, b, t: b[2], unit="m/s"),
        Condition("tilt at rest", lambda a, b, t: b[3], unit="rad/s"),
        Condition("down", lambda a, b, t: b[0] * 2.0, unit="m"),
        Condition("below", lambda a, b, t: b[0], upper=1.0, unit="m"),
    ]
    with pytest.warns(RedundantConditionWarning, match="lift at rest.*tilt at rest.*down"):
        found = optimise(landing(conditions=rest), landing_guess)
    assert found.redundant == ("lift at rest", "tilt at rest", "down")
    assert found.cost == pytest.approx(optimise(landing(), landing_guess).cost, rel=1e-6)
    assert found.run.final_mode == CLOSED


def test_corners_that_stop_together_are_one_equation():
    """A block slides level: where one corner stands the other does, found from a rough guess."""
    task, guess = sliding_block()
    assert find_implied_guards(task, guess) == {(0, "right sticks")}
    noise = 0.1 * np.random.default_rng(0).normal(size=6)
    found = optimise(task, lambda k, s: guess(k, s) + noise)
    assert found.open_loop.closes
    assert found.run.events[0].guards == ("left sticks", "right sticks")


def test_conditions_that_contradict_each_other_are_not_taken_for_redundant():
    task = landing(conditions=[Condition("up", lambda a, b, t: b[0], 0.1, 0.1, "m")])
    with pytest.raises(InputError, match="cannot be done"):
        optimise(task, landing_guess)


STAIRS = Stairs([0.5], [0.0, 0.1])
LOWER, UPPER = (Plane((0.0, 0.0, z), (0.0, 0.0, 1.0)) for z in STAIRS.heights)


def step_up(**options):
    """A mass on two rails goes from the lower tread to the upper one."""
    off = {"foot": (LOWER, UPPER)}
    plant = ball()
    plant = contact_system(plant.robot, [Contact("foot", "ball", STAIRS)])
    given = {
        "phases": [
            Phase(("closed",), ("foot opens",), (0.2, 0.4), 2, ground={"foot": LOWER}),
            Phase(("open",), ("foot closes",), (0.3, 0.6), 4, ground=off),
            Phase(("closed",), (), (0.1, 0.2), 2, ground={"foot": UPPER}),
        ],
        "start": np.zeros(4),
        "conditions": [Condition("way", lambda a, b, t: b[0], 1.0, 1.0, "m")],
        "margins": Margins(force=1.0, clearance=0.1),
    }
    return Task(plant, **(given | options))


def test_a_foot_goes_from_one_piece_of_the_ground_to_another():
    """The programme has a plane for each phase, the simulation the stairs: they agree."""
    found = optimise(step_up(), lambda k, s: np.array([(k + s) / 3.0, 0.05 * k, 1.0, 0.0]))
    assert found.open_loop.closes
    assert [event.guards for event in found.run.events] == [("foot opens",), ("foot closes",)]
    assert found.run.events[1].state_before[1] == pytest.approx(0.1, abs=1e-9)
    assert found.run.final_state[:2] == pytest.approx([1.0, 0.1], abs=1e-6)


def test_gaps_are_counted_from_the_piece_that_is_left_to_the_one_ahead():
    gaps = build_phase_functions(step_up(), 1).gaps
    x = [0.3, 0.2, 0.0, 0.0]
    found = [float(gaps(x, share)) for share in (0.0, 0.25, 1.0)]
    assert found == pytest.approx([0.2, 0.175, 0.1], abs=1e-15)


def test_ground_that_makes_no_sense_is_refused():
    two = (LOWER, UPPER)
    stands = Phase(("closed",), (), (0.1, 0.2), ground={"foot": two})
    with pytest.raises(InputError, match="one surface for 'foot'"):
        step_up(phases=[stands])
    with pytest.raises(InputError, match="'toe'"):
        step_up(phases=[Phase(("closed",), (), (0.1, 0.2), ground={"toe": two[0]})])


def bounce(restitution, after=("open",)):
    """A mass falls from 0.3 m for as long as it takes, and goes on for 0.2 s."""
    floor = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    foot = Contact("foot", "ball", floor, restitution=restitution)
    phases = [
        Phase(("open",), ("foot closes",), (0.1, 0.5), 3),
        Phase(after, (), (0.2, 0.2 + 1e-9), 3),
    ]
    start = [0.0, 0.3, 0.0, 0.0]
    return Task(contact_system(ball().robot, [foot]), phases, start=start)


def test_a_contact_with_restitution_rebounds():
    """Without effort it hits at sqrt(2 g h), and leaves with e of that."""
    found = optimise(bounce(0.6), lambda k, s: np.array([0.0, 0.3 * (1.0 - s), 0.0, -1.0 + 2 * k]))
    speed = np.sqrt(2.0 * GRAVITY * 0.3)
    assert found.cost == pytest.approx(0.0, abs=1e-9)
    (event,) = found.run.events
    assert event.state_before[3] == pytest.approx(-speed, rel=1e-6)
    assert event.state_after[3] == pytest.approx(0.6 * speed, rel=1e-6)
    np.testing.assert_allclose(found.plan.events[0].impulses, event.impulses, rtol=1e-6)
    height = 0.6 * speed * 0.2 - 0.5 * GRAVITY * 0.2**2
    assert found.run.final_state[1] == pytest.approx(height, abs=1e-6)


def test_what_rebounds_cannot_stay():
    with pytest.raises(InputError, match="rebounds where phases"):
        bounce(0.6, ("closed",))
    bounce(0.0, ("closed",))


def test_of_several_velocities_the_planned_one_is_taken():
    """Each solution that the error names is found where its states are those that are expected."""
    for _, (dynamics, q, v, error) in zip(range(3), several_velocities(), strict=False):
        mass, rows = dynamics.robot.mass_matrix(q), dynamics.contact_set.jacobian(q)
        for solution in error.solutions:
            modes = tuple(solution.modes)
            after = v + np.linalg.solve(mass, rows.T @ solution.forces)
            found = impact(dynamics.expect_modes(frozenset({modes})), q, v, (0, 1, 2))
            np.testing.assert_allclose(found.velocity_after, after, atol=1e-9)


def test_a_search_tells_how_far_it_is():
    told = []
    found = optimise(to_the_wall(), straight, progress=told.append)
    assert [each.iteration for each in told] == list(range(found.iterations + 1))
    assert {each.sought for each in told} == {"optimum"}
    assert told[-1].cost == pytest.approx(found.cost)
    assert told[-1].missed < 1e-8 < told[0].missed


def test_stairs_are_level_treads():
    """phi, its normal and curvature by the definition, as numbers and as expressions.

    An edge belongs to the lower tread, to 1e-9 m.
    """
    stairs = Stairs([0.0, 1.0], [0.0, 0.2, 0.1])
    points = np.array([[0.0, 5.0, 0.3], [2e-9, 0.0, 0.3], [0.9, 0.0, 0.3], [1.5, 0.0, 0.3]])
    expected = [0.3, 0.1, 0.1, 0.2]
    np.testing.assert_allclose(stairs.distance(points), expected, atol=1e-15)
    r = ca.SX.sym("r", 3)
    phi = ca.Function("phi", [r], [stairs.expression(r), ca.gradient(stairs.expression(r), r)])
    for point, value in zip(points, expected, strict=True):
        found, slope = phi(point)
        assert float(found) == pytest.approx(value, abs=1e-15)
        np.testing.assert_array_equal(np.array(slope).ravel(), [0.0, 0.0, 1.0])
    assert not stairs.curvature(points).any()
    assert stairs == Stairs([0.0, 1.0], [0.0, 0.2, 0.1])
    with pytest.raises(InputError, match="edges must increase"):
        Stairs([1.0, 0.0], [0.0, 0.1, 0.2])


def test_a_run_that_leaves_its_plan_is_stopped_there():
    """Pushed on from its speed d / T by F = 4 m d / T^2, the mass hits the wall in half of T."""
    programme = transcribe(to_the_wall())
    plan = build_plan(programme, programme.compute_start(straight))
    force = 4.0 * MASS * WAY / WAY_TIME**2
    options = {"rtol": 1e-9, "atol": 1e-9}
    closing = plan.simulate_closing(lambda: lambda t, x: np.array([force]), 1e-4, options)
    assert not closing.closes
    assert "leaves the plan at 0.4 s, where ('nose closes',) lead to" in closing.problem
    assert "phase 0 is to end with ('nose closes',) at 0.8 s" in closing.problem
    assert closing.run.end == pytest.approx(0.5 * WAY_TIME)
    waits = plan.simulate_closing(lambda: lambda t, x: np.array([-0.25 * force]), 1e-4, options)
    assert "has no such event where phase 0 is to end" in waits.problem


def event_at(time, name, mode, before=OPEN, after=0.0):
    return SimpleNamespace(
        time=time,
        guards=(name,),
        mode_before=before,
        mode_after=mode,
        state_before=np.zeros(4),
        state_after=np.full(4, after),
    )


@pytest.mark.parametrize(("late", "stops"), [(5e-4, False), (5e-3, True)])
def test_events_just_after_a_planned_one_are_part_of_it(late, stops):
    """Both corners land within 1 ms, one after the other; what comes later is no part of that."""
    curves = [
        InputCurve(0.0, TIME, np.zeros((1, 2))),
        InputCurve(TIME, 0.5 * TIME, np.zeros((1, 2))),
    ]
    monitor = _EventMonitor(landing(), curves)
    first = event_at(TIME, "left closes", ("closed", "open"))
    assert not monitor.process_event(first)
    assert monitor.describe_deviation(), "the right corner has not landed yet"
    assert not monitor.process_event(event_at(TIME + 4e-4, "right closes", CLOSED))
    assert monitor.matched_events == [first]
    after = event_at(TIME + 4e-4 + late, "left opens", ("open", "closed"))
    assert monitor.process_event(after) == stops
    assert bool(monitor.describe_deviation()) == stops


@pytest.mark.parametrize("jump", [0.0, 0.1])
def test_an_event_that_leaves_mode_and_state_is_no_other_motion(jump):
    """Corners that share forces may fire guards, and go on as they were; a bounce does not."""
    curves = [InputCurve(0.0, TIME, np.zeros((1, 2))), InputCurve(TIME, TIME, np.zeros((1, 2)))]
    monitor = _EventMonitor(landing(), curves)
    for time in (0.5 * TIME, 0.5 * TIME + 0.01):
        stops = monitor.process_event(event_at(time, "left slips", OPEN, after=jump))
    assert stops == bool(jump)
    if not jump:
        assert not monitor.process_event(event_at(TIME, "left closes", CLOSED))
    assert bool(monitor.describe_deviation()) == bool(jump)


def test_a_plan_without_inputs_is_tracked():
    """Inputs then have the unit as their size."""
    programme = transcribe(to_the_wall())
    inputs = np.zeros((programme.task.degree + 1, 1)), WAY_TIME
    tracking = build_plan(programme, programme.compute_start(straight, [inputs])).build_tracking()
    gain = tracking.gains[0](0.0)
    assert np.isfinite(gain).all()
    assert (gain > 0.0).all()


def test_inputs_go_on_to_the_next_phase_when_its_mode_begins():
    """A foot that slips as its force vanishes is no phase of the plan."""
    curves = tuple(InputCurve(0.0, 1.0, np.array([[float(k)]])) for k in range(3))
    policy = Feedforwards(curves, PhaseSequence((("stick",), ("open",), ("stick",))))
    run = [
        SimpleNamespace(time=0.1, guards=("g",), mode_after=(mode,)) for mode in ("slip+", "open")
    ]
    seen = [
        policy.law(History((), 0.0, np.zeros(2), tuple(run[:n])))(0.3, np.zeros(2)).item()
        for n in range(3)
    ]
    assert seen == [0.0, 0.0, 1.0]


def test_inputs_have_a_zero_gain_for_perturbations_of_a_floating_base():
    """Its 13 coordinates have 12 perturbations."""
    policy = Feedforwards((InputCurve(0.0, 1.0, np.zeros((2, 3))),), ndx=12)
    x = np.array([*np.zeros(6), 1.0, *np.zeros(6)])
    gain = policy.law(History((), 0.0, x, ())).jacobian(0.3, x)
    assert gain.shape == (3, 12)
    assert not gain.any()
