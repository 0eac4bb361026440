"""A robot as it is published, with a floating base, as a task of the optimiser."""

from dataclasses import replace

import numpy as np
import pytest
from hybridctl.robots import public

from hybridctl.base.errors import InputError
from hybridctl.mechanics import Robot, contact_system
from hybridctl.planning.implicit_phases import uses_implicit_phases
from hybridctl.planning.optimisation import optimise
from hybridctl.planning.task import Condition, Margins, Phase, Task

STANCE = ("stick",) * 4


@pytest.mark.slow
def test_a_quadruped_of_eighteen_velocities_rises_by_its_feet():
    """solo12 lifts its base by 3 cm in 0.3 s, to rest, on an open loop that Pinocchio simulates."""
    robot = Robot.from_urdf(public.urdf("solo12"), root="floating")
    plant = contact_system(robot, public.contacts("solo12"), terms="pinocchio")
    assert robot.nv == 18
    crouched = public.start("solo12", 0.0, 0.0, 0.0)
    crouched[robot.nq :] = 0.0
    rest = [
        Condition(f"velocity {i} of the base", lambda a, b, t, i=robot.nq + i: b[i])
        for i in range(6)
    ]
    task = Task(
        plant,
        [Phase(STANCE, (), (0.3, 0.3 + 1e-9), 5, 4)],
        start=crouched,
        conditions=[Condition("rise", lambda a, b, t: b[2] - a[2], 0.03, 0.03, "m"), *rest],
        margins=Margins(force=0.1, friction=0.9),
        torque=5.0,
        degree=5,
    )
    found = optimise(task, lambda k, s: crouched, max_iterations=100, tolerance=1e-3)
    assert found.open_loop.closes, found.open_loop.problem
    end = found.run.final_state
    assert end[2] - crouched[2] == pytest.approx(0.03, abs=1e-4)
    np.testing.assert_allclose(end[robot.nq : robot.nq + 6], 0.0, atol=1e-2)
    assert [arc.mode for arc in found.run.arcs] == [STANCE]


def test_a_robot_of_more_velocities_is_refused_where_its_dynamics_had_to_be_solved():
    """talos has 38. With equations of motion as constraints it is a task."""
    plant = public.system("talos")
    phase = Phase(("stick",) * len(plant.contacts), (), (0.3, 0.4), 3, 4)
    assert uses_implicit_phases(Task(plant, [phase]))
    for refused in ({"implicit": False}, {"margins": Margins(early=0.1)}, {"spread": 0.01}):
        with pytest.raises(InputError, match=r"more than 24 velocities \(it has 38\)"):
            Task(plant, [replace(phase, ends=("left_sole_link 0 opens",)), phase], **refused)
