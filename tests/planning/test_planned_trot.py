"""Half a stride of solo12's trot: planned with its floating base as it is published."""

import numpy as np
import pytest
from hybridctl.experiments.walking.planned_trot import LANDING_SPEED, plan_trot

import hybridctl as hc


@pytest.fixture(scope="module")
def in_place():
    """The trot in place."""
    return plan_trot(0.0)


@pytest.mark.slow
def test_solo12_trots_in_place_by_a_plan_that_takes_less_than_two_hundred_iterations(in_place):
    """157 iterations; 300 did not suffice with an edge of the cones at their axes.

    Each takes 0.17 s of a processor.
    """
    planned = in_place
    assert planned.optimum.open_loop.closes, planned.optimum.open_loop.problem
    assert planned.optimum.iterations < 200


@pytest.mark.slow
def test_the_trot_has_multipliers_beyond_one_and_its_lqr_has_none(in_place):
    """The map has two pieces, as either of two feet may let go first."""
    planned = in_place
    assert planned.closing < 1e-7
    first, second = planned.compute_multipliers(planned.map)
    # One foot lets go first in each piece. As torques jump by little there, pieces differ little.
    np.testing.assert_allclose(np.abs(first[:3]), np.abs(second[:3]), rtol=1e-2)
    assert np.abs(first[0]) == pytest.approx(9.1, rel=0.05)
    feedback = planned.design_feedback()
    closed = planned.compute_multipliers(planned.close_loop(feedback), holds_place=True)
    assert max(np.abs(values).max() for values in closed) < 1.0


@pytest.mark.slow
def test_solo12_trots_as_planned_open_loop_and_lands_softly(in_place):
    """Half a stride at 0.3 m/s, begun in place, is followed by a simulation of its inputs alone.

    67 iterations; from the guess of a hop 300 did not suffice.
    """
    planned = plan_trot(0.3, in_place)
    task, found = planned.task, planned.optimum
    assert found.iterations < 100
    assert found.open_loop.closes, found.open_loop.problem
    run = found.run
    # Feet that the plan lets go or touch down together do so within 1 ms (`_SIMULTANEITY`).
    assert [name for event in run.events for name in event.guards if "slips" not in name] == [
        name for phase in task.phases for name in phase.ends
    ]
    start, end = run(0.0), run.final_state
    gap = task.symmetry.gap(task.system.space, start, end)
    assert np.abs(gap).max() < 1e-2 * (1.0 + np.abs(start).max())
    assert end[0] - start[0] == pytest.approx(0.3 * run.end, abs=1e-3)
    # Torques jump as the feet let go: there is one derivative for each foot that may be the last.
    # Feet that land together are one impact: one after the other ends 2e-5 apart from it.
    first_order = hc.linearize(task.system, run, simultaneous="at once")
    assert len(first_order.jumps[0].pieces(accuracy=1e-9)) == 2
    landing = next(event for event in run.events if "FR_FOOT 0 closes" in event.guards).state_before
    robot = task.system.robot
    for foot in ("FR_FOOT", "HL_FOOT"):
        rows = robot.point_jacobian(landing[: robot.nq], foot, np.zeros(3))
        assert -LANDING_SPEED - 5e-2 < rows[2] @ landing[robot.nq :] < 0.0
