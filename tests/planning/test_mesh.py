"""Meshes that are fine enough: what intervals and limits miss between points of collocation."""

from dataclasses import replace

import numpy as np
import pytest
from planning.small_systems import MASS, TIME, WAY, pole, straight, to_the_wall
from scipy.integrate import solve_ivp

from hybridctl.planning.ipopt_search import find_optimum
from hybridctl.planning.mesh import (
    compute_dynamics_error,
    compute_limit_violation,
    refine_mesh,
    start_from_plan,
)
from hybridctl.planning.optimisation import optimise
from hybridctl.planning.phase_functions import Limit
from hybridctl.planning.plan import build_plan
from hybridctl.planning.task import Phase, Task
from hybridctl.planning.transcription import transcribe


def at(programme, coefficients):
    """A plan at constant speed, under these inputs in Chebyshev's basis."""
    column = np.zeros((programme.task.degree + 1, 1))
    column[: len(coefficients), 0] = coefficients
    return build_plan(programme, programme.compute_start(straight, [(column, TIME)]))


def test_an_interval_misses_by_what_its_inputs_move():
    """Under a force F the speed is off by F h / m after an interval h; x by half of that times h.

    Both relative to 1 + |x|: most for the speed, which is WAY / TIME.
    """
    programme = transcribe(to_the_wall())
    plan = at(programme, [3.0])
    h = TIME / 2
    missed = compute_dynamics_error(
        programme.functions[0].field, plan.motion.arcs[0], plan.curves[0], 2
    )
    assert missed == pytest.approx(3.0 * h / MASS / (1.0 + WAY / TIME), rel=1e-9)
    assert refine_mesh(programme, plan, 1.01 * missed) is None
    finer = refine_mesh(programme, plan, 0.99 * missed)
    assert [phase.intervals for phase in finer.phases] == [4]


def test_an_interval_misses_by_what_another_integration_finds():
    """A pole falls under inputs that change; rates of 6.3 / s.

    The method of order four errs by (6.3 h)^4 / 120 a step of h, relative to h: 1.7e-4 in all.
    """
    phase = Phase(("open",), (), (0.8, 0.8 + 1e-9), 2, 2)
    programme = transcribe(Task(pole(), [phase], [0.1, 0.0]))
    inputs = np.zeros((programme.task.degree + 1, 1))
    inputs[:2, 0] = 0.2, 0.5
    begin = programme.compute_start(lambda k, s: np.array([0.1 + 0.1 * k, 0.3]), [(inputs, 0.8)])
    plan, field = build_plan(programme, begin), programme.functions[0].field
    arc, curve = plan.motion.arcs[0], plan.curves[0]
    missed = []
    for start, end in ((0.0, 0.4), (0.4, 0.8)):
        ran = solve_ivp(
            lambda t, x: np.asarray(field(x, curve(t))).ravel(),
            (start, end), arc(start), rtol=1e-10, atol=1e-12,
        )  # fmt: skip
        missed.append((np.abs(ran.y[:, -1] - arc(end)) / (1.0 + np.abs(arc(end)))).max())
    assert missed[1] > 1.1 * missed[0]
    found = compute_dynamics_error(field, arc, curve, 2)
    assert found == pytest.approx(max(missed), rel=1e-3)


def test_half_of_a_margin_may_be_used_up_between_points():
    """A margin is a lower bound above zero; any other bound holds there as it is."""
    programme = transcribe(to_the_wall(torque=2.0))
    f, arc = programme.functions[0], at(programme, [0.9]).motion.arcs[0]

    def missed(lower):
        return compute_limit_violation(
            replace(f, path=f.path._replace(limits=[Limit("force", "N", lower)])), arc, 2
        )

    size = Limit("force", "N", 0.0).size
    assert missed(2.0) == pytest.approx((1.0 - 0.9) / size, rel=1e-9)
    assert missed(1.7) <= 0.0
    against = at(programme, [-1.2]).motion.arcs[0]
    limits = replace(f, path=f.path._replace(limits=[Limit("force", "N", -1.0)]))
    assert compute_limit_violation(limits, against, 2) == pytest.approx(
        (1.2 - 1.0) / size, rel=1e-9
    )


def test_a_limit_is_missed_between_points():
    """T_2 is -1 in the middle, twice as far as the limit; 100 N m are its size."""
    programme = transcribe(to_the_wall(torque=0.5))
    plan = at(programme, [0.0, 0.0, 1.0])
    missed = compute_limit_violation(programme.functions[0], plan.motion.arcs[0], 2)
    assert missed == pytest.approx(0.5 / 100.0, rel=1e-9)


def test_a_plan_begins_a_search_on_another_mesh():
    """The cubic of least effort is in the polynomials of any mesh: nothing is left to find."""
    coarse = transcribe(to_the_wall())
    finer = transcribe(
        to_the_wall(phases=[Phase(("open",), ("nose closes",), (TIME, TIME + 1e-9), 3)])
    )
    optimum = find_optimum(coarse, coarse.compute_start(straight), 50)
    plan = build_plan(coarse, optimum.variables)
    begin = start_from_plan(finer, plan.motion.arcs, plan.curves)
    values, (low, high) = (
        np.array(finer.jacobian()(begin, [])[0]).ravel(),
        finer.compute_constraint_bounds(),
    )
    assert np.maximum(low - values, values - high).max() < 1e-7
    again = find_optimum(finer, begin, 50, is_near_optimum=True)
    assert again.cost == pytest.approx(optimum.cost, rel=1e-7)


def falling(**options):
    """A pole that falls from one side to the other, on one interval of two points."""
    task = Task(pole(), [Phase(("open",), (), (0.8, 0.8 + 1e-9), 1, 2)], start=[0.1, 0.0])
    return optimise(task, lambda k, s: np.array([0.1, 0.0]), **options)


def test_intervals_are_divided_until_a_plan_closes():
    """Without effort: what falls by sin x is no polynomial."""
    coarse, fine = falling(), falling(refinements=4)
    assert coarse.open_loop.mismatch > 1e-3
    assert fine.open_loop.closes
    assert fine.mismatch < 1e-4
