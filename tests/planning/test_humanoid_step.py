"""A step in place of a humanoid on flat soles, whose corners share forces."""

import numpy as np
import pytest
from planning import humanoid

from hybridctl.planning.optimisation import optimise


@pytest.mark.slow
def test_talos_steps_in_place_on_soles_that_share_forces_and_a_simulation_follows():
    """Weight shift, single stance, landing, and rest where it began; the result is any optimum.

    Tolerances are those of the mesh of five intervals: corners of soles that stick drift by less
    than a millimetre in the simulation, which has the contact law instead of the plan's forces.
    """
    step = humanoid.StepInPlace()
    found = optimise(
        step.task, step.guess, max_iterations=200, tolerance=2e-2, rtol=1e-8, atol=1e-8
    )
    run = found.run  # raises with the reason if no simulation closes
    changes = [
        name for event in run.events for name in event.guards if name.endswith(("opens", "closes"))
    ]
    assert changes[:4] == list(step.task.phases[0].ends)
    assert changes[-4:] == list(step.task.phases[1].ends)
    robot, nq = step.robot, step.robot.nq
    lift, landing = (run.events[i].time for i in (0, -1))
    middle = run(0.5 * (lift + landing))
    sole = robot.point_position(middle[:nq], humanoid.SOLES[0])
    assert sole[2] > 0.5 * humanoid.CLEARANCE
    for time in np.linspace(lift, landing, 9):
        right = robot.point_position(run(time)[:nq], humanoid.SOLES[1])
        standing = robot.point_position(step.stand, humanoid.SOLES[1])
        np.testing.assert_allclose(right, standing, atol=1e-3)
    np.testing.assert_allclose(run.final_state, step.start, atol=5e-2)
