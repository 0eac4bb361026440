"""Tasks that a user tries first come back with plans that are followed to their end."""

import warnings

import numpy as np
import pytest
from control import planned

from hybridctl.control.trajectory.optimise import optimise
from hybridctl.errors import RedundantConditionWarning

TASKS = ("monoped_jump", "quadruped_jump", "quadruped_bound", "sliding_block", "stairs")
TOLERANCE = 5e-2  # of 1 + |x|: what coarse collocation leaves of velocities where feet let go


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_a_plan_is_followed_to_its_end(name):
    """Conditions hold at the end of a simulation, which visits the modes of the task."""
    task, guess = getattr(planned, name)()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RedundantConditionWarning)
        found = optimise(task, guess, max_iterations=1000, tolerance=TOLERANCE)
    assert found.closing.closes, found.closing.problem
    visited = iter(arc.mode for arc in found.run.arcs)
    assert all(phase.mode in visited for phase in task.phases), "in this order"
    ends = found.run(0.0), found.run.final_state
    for condition in task.conditions:
        value = float(condition.value(*ends, found.run.end))
        assert condition.lower - 0.05 <= value <= condition.upper + 0.05, condition.name
    for arc in found.run.arcs:
        assert np.abs(arc.input(arc.times)).max() <= task.torque * (1.0 + 1e-2)
