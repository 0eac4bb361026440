"""Half a stride of solo12's trot: planned with its floating base as it is published.

Searches end in one of several optima, on each processor in its own way: what is tested holds for
any of them.
"""

import numpy as np
import pytest
from hybridctl.experiments.walking.planned_trot import (
    LANDING_SPEED,
    TrotTrials,
    load_trot_guess,
    make_trial_records,
    plan_trot,
)

import hybridctl as hc

STANCE, FEET = ("stick", "open", "open", "stick"), ("FL_FOOT", "HR_FOOT")


@pytest.fixture(scope="module")
def in_place():
    """The trot in place, by a search that begins at one that was found before."""
    return plan_trot(0.0, load_trot_guess())


@pytest.fixture(scope="module")
def feedback(in_place):
    """Its LQR."""
    return in_place.design_feedback()


@pytest.mark.slow
def test_solo12_trots_in_place_with_feet_that_press_until_the_clock_lifts_them(in_place):
    """Simulation follows the inputs alone, and forces end away from the apex of their cones."""
    task, found = in_place.task, in_place.optimum
    assert found.open_loop.closes, found.open_loop.problem
    release = found.run.events[0]
    assert release.guards == ()
    assert (release.mode_before, release.mode_after) == (STANCE, ("open",) * 4)
    mode = in_place.system.mode(STANCE)
    guards = mode.calc(release.time, release.state_before, release.input_before).guards
    forces = [guards[mode.guard_names.index(f"{foot} 0 opens")] for foot in FEET]
    # States before the event are those of the plan to 1e-2: forces of 12 N to as much.
    assert min(forces) > 0.8 * task.margins.force
    slips = [guards[mode.guard_names.index(f"{foot} 0 slips")] for foot in FEET]
    assert min(slips) > 0.0
    robot, x, u = task.system.robot, release.state_after, release.input_after
    field = in_place.system.mode(release.mode_after).calc(release.time, x, u).field
    for foot in FEET:
        rise = robot.point_jacobian(x[: robot.nq], foot, np.zeros(3))[2] @ field[robot.nv :]
        assert rise > 0.8 * task.margins.lift


@pytest.mark.slow
@pytest.mark.long
def test_the_trot_in_place_is_found_from_a_hop(in_place):
    """Its search ends in some optimum: of the two that recur the dearer one costs 0.186."""
    found = plan_trot(0.0).optimum
    assert in_place.optimum.cost * (1.0 - 1e-4) < found.cost < 0.25


@pytest.mark.slow
def test_the_map_of_the_trot_is_that_of_its_flow(in_place):
    """Along a random direction either way: feet land in turn, in whichever order.

    Plans let them land together to the accuracy of their mesh, so that the map merges two landings.
    """
    system, middle, apart = in_place.system, in_place.middle, 1e-12
    orbit = in_place.simulate_from(middle, apart)
    flow = hc.linearize(system, orbit, merge=1e-4)
    direction = in_place.find_start_directions()
    direction = direction @ np.random.default_rng(0).normal(size=direction.shape[1])
    for way in (1e-6, -1e-6):
        start = system.mode(STANCE).project(system.space.integrate(middle, way * direction))
        moved = system.space.difference(middle, start)
        run = in_place.simulate_from(start, apart)
        found = system.space.difference(orbit.final_state, run.final_state)
        # Second order: 1e-6 times curvatures of up to 1e4, by accelerations of feet at touches.
        np.testing.assert_allclose(found, flow(moved), rtol=0, atol=1e-2 * np.abs(found).max())


@pytest.mark.slow
def test_the_trot_has_multipliers_beyond_one_and_its_lqr_has_none(in_place, feedback):
    """In all pieces of the map: either of two feet may land first."""
    assert in_place.closing < 1e-7
    pieces = in_place.compute_multipliers(in_place.map)
    assert min(np.abs(values[0]) for values in pieces) > 1.0
    closed = in_place.compute_multipliers(in_place.close_loop(feedback), holds_place=True)
    assert max(np.abs(values[0]) for values in closed) < 1.0


@pytest.mark.slow
def test_the_lqr_holds_the_trot_in_simulation(in_place, feedback):
    """From 1e-3 rad off: where feet let go by their forces it was lost from 1e-7 on.

    Corrections of the LQR at 50 Hz go through touchdowns and releases by the clock.
    """
    trials = TrotTrials(strides=1, starts=1, angles=(1e-3,))
    for record in make_trial_records(in_place, feedback, trials):
        assert record["held"] == 1, record["problems"]
        # Legs of the model mirror each other to 1e-3, so that strides differ from the half stride.
        assert record["last"] < max(record["first"], 1e-3)


@pytest.mark.slow
@pytest.mark.long
def test_solo12_trots_forwards_as_planned_open_loop_and_lands_softly(in_place):
    """Half a stride at 0.3 m/s, begun in place, is followed by a simulation of its inputs alone."""
    planned = plan_trot(0.3, in_place)
    task, found = planned.task, planned.optimum
    assert found.open_loop.closes, found.open_loop.problem
    run = found.run
    # Feet that the plan lets touch down together do so within 1 ms (`_SIMULTANEITY`), either first.
    assert sorted(name for event in run.events for name in event.guards) == sorted(
        name for phase in task.phases for name in phase.ends
    )
    start, end = run(0.0), run.final_state
    gap = task.symmetry.gap(task.system.space, start, end)
    assert np.abs(gap).max() < 1e-2 * (1.0 + np.abs(start).max())
    # States of simulations are those of the plan to 1e-2 of 1 + |x|.
    assert end[0] - start[0] == pytest.approx(0.3 * run.end, abs=1e-2)
    landing = run.guard_events[0].state_before
    robot = task.system.robot
    for foot in ("FR_FOOT", "HL_FOOT"):
        rows = robot.point_jacobian(landing[: robot.nq], foot, np.zeros(3))
        assert -LANDING_SPEED - 5e-2 < rows[2] @ landing[robot.nq :] < 0.0
