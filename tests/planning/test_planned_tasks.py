"""Tasks that a user tries first come back with plans that are followed to their end."""

from dataclasses import replace

import numpy as np
import pytest
from planning import plate
from planning.guesses import sought

import hybridctl as hc
from hybridctl.planning.optimisation import optimise

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


def check_lqr(task, found, size, **options):
    """The cost of a small deviation under the gains is that of the value function, or less.

    By the linearization, without what happens beyond first order.
    """
    lin = hc.linearize(task.system, replace(found.plan, system=task.system))
    n = task.system.space.ndx
    q, r = np.diag(np.repeat([100.0, 5.0], n // 2)), 0.2 * np.eye(task.system.robot.nu)
    lqr = hc.hybrid_lqr(lin, q, r, q, rtol=1e-3, lead=0.02, **options)
    value = lqr.values[0].start
    assert np.isfinite(value).all()
    assert np.linalg.eigvalsh(value)[0] > -1e-6 * np.linalg.eigvalsh(value)[-1]
    open_loop = hc.linearize(task.system, replace(found.plan, system=task.system))
    way = np.random.default_rng(0).normal(size=n) * size
    closed = lqr.closed_loop.derivative(way)
    assert closed @ q @ closed < way @ value @ way * (1.0 + 1e-6)
    assert closed @ q @ closed < open_loop.derivative(way) @ q @ open_loop.derivative(way)


def test_a_planned_lift_off_of_two_corners_has_an_lqr():
    task = plate.lifting()
    check_lqr(task, optimise(task, plate.guess), 1e-3)


@pytest.mark.slow
@pytest.mark.long
def test_a_planned_hop_of_two_feet_has_an_lqr():
    """Two feet that stick let go together, under inputs that jump, and land together."""
    check_lqr(*sought("quadruped_jump", 0), 1e-4)
