"""What a task asks at its ends is in the modes there, and what it is given fits."""

import casadi as ca
import numpy as np
import pytest
from planning.small_systems import TIME, WAY, ball, cart, straight, to_the_wall

from hybridctl.base.errors import (
    ConstraintViolatedError,
    GuardViolatedError,
    InfeasibleReferenceError,
    InputError,
)
from hybridctl.planning.optimisation import optimise
from hybridctl.planning.task import Condition, Phase, Task
from hybridctl.planning.task_checks import drop_implied_conditions

OPEN = Phase(("open",), (), (TIME, TIME + 1e-9), 2)


def height(value, *, upper=None):
    return Condition("height", lambda a, b, t: b[1], value, value if upper is None else upper, "m")


def hover(start, end=0.1, **options):
    """A ball on two rails flies from a height to rest, of its motors."""
    given = {"start": [0.0, start, 0.0, 0.0], "conditions": [height(end)]}
    return Task(ball(), [OPEN], **(given | options))


def level(k, s):
    return np.array([0.0, 0.3, 0.0, 0.0])


def test_a_start_below_the_ground_is_refused_with_contact_and_gap():
    with pytest.raises(GuardViolatedError, match=r"start .*'foot' is open, but its gap is -0.5 m"):
        optimise(hover(-0.5), level)


def test_a_start_as_far_below_the_ground_as_simulated_states_are_is_on_it():
    assert optimise(hover(-1e-9), level).closing.closes


def test_an_end_below_the_ground_is_refused_with_contact_and_gap():
    with pytest.raises(GuardViolatedError, match=r"end .*'foot' is open, .* its gap -0.5 m"):
        optimise(hover(0.3, -0.5), level)


def test_an_end_that_conditions_leave_open_stays_above_the_ground():
    """The least effort of a free fall under motors would end where gravity leads: below."""
    heights = [height(-0.5, upper=0.4)]
    found = optimise(hover(0.3, conditions=heights), level)
    assert found.plan.final_state[1] >= -1e-9
    with pytest.raises(InfeasibleReferenceError, match=r"at the end.* is missed|height is missed"):
        optimise(hover(0.3, conditions=[height(-0.5, upper=-0.4)]), level)


def test_an_end_on_the_ground_is_an_equation_and_no_inequality():
    """The gap at the end is what the condition says; as an inequality it has no interior."""
    found = optimise(hover(0.3, 0.0), level)
    assert abs(found.plan.final_state[1]) < 1e-9
    assert found.iterations < 30


def test_a_closed_start_that_is_off_its_wall_is_refused():
    closed = Phase(("closed",), (), (TIME, TIME + 1e-9), 2)
    for start, what in [([0.5, 0.0], "gap"), ([WAY, 0.2], "normal speed")]:
        with pytest.raises(ConstraintViolatedError, match=f"start is off .*{what} of contact"):
            optimise(Task(cart(), [closed], start=start), lambda k, s: np.array([WAY, 0.0]))


def test_a_start_outside_the_limits_of_a_joint_is_refused():
    with pytest.raises(InputError, match=r"start must be within joint_limits, but joint 'x' is at"):
        optimise(to_the_wall(joint_limits={"x": (0.1, 2.0)}), straight)
    with pytest.raises(InputError, match=r"start must be within rate_limits, but joint 'x' is at"):
        optimise(to_the_wall(start=[0.0, 5.0], rate_limits={"x": (-4.0, 4.0)}), straight)


def test_a_start_on_the_limit_of_a_joint_is_inside():
    """The inequality at the start has no interior, and its multiplier no bound."""
    free = optimise(to_the_wall(), straight)
    found = optimise(to_the_wall(joint_limits={"x": (0.0, 2.0)}), straight)
    assert found.cost == pytest.approx(free.cost, rel=1e-6)


@pytest.mark.parametrize("torque", [-1.0, 0.0, np.nan])
def test_a_torque_that_is_not_positive_is_refused(torque):
    with pytest.raises(InputError, match="torque must be"):
        to_the_wall(torque=torque)


@pytest.mark.parametrize("limits", [(1.0, -1.0), (np.nan, 1.0), (0.0,), 3.0])
def test_limits_of_joints_are_pairs_that_increase(limits):
    with pytest.raises(InputError, match=r"joint_limits\['x'\] must"):
        to_the_wall(joint_limits={"x": limits})


def test_a_guess_of_another_size_is_refused_with_its_phase():
    with pytest.raises(InputError, match=r"guess\(0, 0\), .* must have shape \(2\), got \(3,\)"):
        optimise(to_the_wall(), lambda k, s: np.zeros(3))
    with pytest.raises(InputError, match=r"guess\(0, .*\), .* must be finite"):
        optimise(to_the_wall(), lambda k, s: np.array([s, np.nan if s > 0.6 else 1.0]))


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"running_cost": lambda x, u: x}, "running_cost"),
        ({"running_cost": lambda x, u: x[7]}, "running_cost"),
        ({"running_cost": lambda x, u: x[0] * (1 / 0)}, "running_cost"),
        ({"running_cost": lambda x, u: {}["weight"] * x[0]}, "running_cost"),
        ({"final_cost": lambda a, b, t: ca.vertcat(a, b)}, "final_cost"),
        ({"conditions": [Condition("both", lambda a, b, t: b)]}, "condition 'both'"),
        ({"conditions": [Condition("none", lambda a, b, t: b.q)]}, "condition 'none'"),
    ],
)
def test_a_cost_or_a_condition_that_is_no_number_is_refused_by_name(wrong, name):
    with pytest.raises(InputError, match=name):
        optimise(to_the_wall(**wrong), straight)


def test_a_condition_that_is_not_finite_at_the_guess_is_not_taken_for_redundant():
    """log(0) has no gradient to compare: the search has to find its way."""
    log = Condition("log", lambda a, b, t: ca.log(b[0]))
    task = to_the_wall(conditions=[log])
    kept, implied = drop_implied_conditions(task, lambda k, s: np.array([0.0, 1.0]))
    assert (list(kept.conditions), implied) == ([log], ())
