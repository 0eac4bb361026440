"""A humanoid on flat soles, whose corners share forces, comes to rest on one of them."""

import numpy as np
import pytest
from planning import humanoid

from hybridctl.planning.optimisation import optimise


@pytest.mark.slow
def test_talos_shifts_its_weight_and_lifts_a_sole_and_a_simulation_follows():
    """The result is any optimum: its four corners open, the other sole stays, and it comes to rest.

    Tolerances are those of the mesh of five intervals for each phase.
    """
    motion = humanoid.LiftOff()
    found = optimise(motion.task, motion.guess, tolerance=2e-2, rtol=1e-8, atol=1e-8)
    run = found.run  # raises with the reason if no simulation closes
    opened = [name for event in run.events for name in event.guards if name.endswith(" opens")]
    assert sorted(opened) == sorted(motion.task.phases[0].ends)
    robot, nq = motion.robot, motion.robot.nq
    left, right = humanoid.SOLES
    end = run.final_state
    assert robot.point_position(end[:nq], left)[2] > 0.5 * humanoid.LIFT
    for time in np.linspace(0.0, run.end, 9):
        at, standing = (robot.point_position(q, right) for q in (run(time)[:nq], motion.stand))
        np.testing.assert_allclose(at, standing, atol=1e-3)
    np.testing.assert_allclose(end[nq:], 0.0, atol=5e-2)
