"""Tasks that a user tries first come back with plans that are followed to their end."""

import numpy as np
import pytest
from planning.guesses import sought

CASES = [
    ("monoped_jump", 0),
    ("quadruped_jump", 0),
    pytest.param("quadruped_bound", 2, marks=pytest.mark.long),
    ("quadruped_bound", 1),
    ("sliding_block", 0),
    pytest.param("sliding_block", 1, marks=pytest.mark.long),
    ("stairs", 0),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), CASES)
def test_a_plan_is_followed_to_its_end(name, seed):
    """Conditions hold at the end of a simulation, which visits the modes of the task."""
    task, found = sought(name, seed)
    assert found.closing.closes, found.closing.problem
    visited = iter(arc.mode for arc in found.run.arcs)
    assert all(phase.mode in visited for phase in task.phases), "in this order"
    ends = found.run(0.0), found.run.final_state
    for condition in task.conditions:
        value = float(condition.value(*ends, found.run.end))
        assert condition.lower - 0.05 <= value <= condition.upper + 0.05, condition.name
    for arc in found.run.arcs:
        assert np.abs(arc.input(arc.times)).max() <= task.torque * (1.0 + 1e-2)
