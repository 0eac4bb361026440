"""Limits that are not active at the optimum do not decide whether it is found."""

import numpy as np
import pytest

from hybridctl.mechanics import Contact, Plane, Robot, contact_system
from hybridctl.planning import Condition, Margins, Phase, Task, optimise
from hybridctl.planning.task_checks import find_implied_lifts

OPTIMUM = 5.9678  # its largest input is 6.22 N
LIMIT = '<limit lower="-9" upper="9" effort="99" velocity="9"/>'
INERTIA = '<inertia ixx="{0}" iyy="{0}" izz="{0}" ixy="0" ixz="0" iyz="0"/>'
CART_POLE = f"""<robot name="cart_pole"><link name="world"/>
<link name="cart"><inertial><mass value="1"/>{INERTIA.format(1e-3)}</inertial></link>
<link name="pole"><inertial><origin xyz="0 0 0.6"/><mass value="0.411"/>{INERTIA.format(0)}
</inertial></link>
<joint name="x" type="prismatic"><parent link="world"/><child link="cart"/><axis xyz="1 0 0"/>
{LIMIT}</joint>
<joint name="tilt" type="revolute"><parent link="cart"/><child link="pole"/><axis xyz="0 1 0"/>
{LIMIT}</joint></robot>"""
FALLING = [0.0, 0.3, 0.0, 2.5]


def caught(**limits):
    """A cart-pole falls against a wall, is held there until it is upright, and comes to rest."""
    wall = Contact("wall", "pole", Plane((0.35, 0, 0), (-1, 0, 0)), offset=(0, 0, 0.6))
    phases = [
        Phase(("open",), ("wall closes",), (0.02, 0.6), 6),
        Phase(("closed",), ("wall opens",), (0.05, 1.5), 8),
        Phase(("open",), (), (0.3, 3.0), 12),
    ]
    return Task(
        contact_system(Robot.from_urdf(CART_POLE, actuated=["x"]), [wall]),
        phases,
        start=FALLING,
        conditions=[Condition(f"end {i}", lambda s, f, t, i=i: f[i]) for i in range(4)],
        margins=Margins(force=0.1, impulse=0.01, unload=0.1, approach=0.05),
        **({"joint_limits": {"x": (-1.5, 1.5)}} | limits),
    )


def guess(k, s):
    return np.array(
        [
            [0.0, 0.3 + 0.3 * s, 0.0, 2.5],
            [0.1 * s, 0.6 - 0.3 * s, 0.3, -0.5],
            [0.1 * (1.0 - s), 0.3 * (1.0 - s), 0.0, -0.3],
        ][k]
    )


def test_a_release_that_no_input_can_lift_is_an_equation():
    """A massless pole with a tip mass pulls along itself: upright, it does not move the tip."""
    assert find_implied_lifts(caught(), guess) == {
        (2, "normal acceleration of 'wall' after its release")
    }


RATES = [{"rate_limits": {"x": (-v, v), "tilt": (-v, v)}} for v in (4.0, 6.0, 10.0, 30.0)]
PLACES = [{"joint_limits": {"x": (-x, x)}} for x in (0.6, 0.8, 1.0, 3.0, 10.0)]
TORQUES = [{"torque": u} for u in (6.5, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 30.0, 100.0)]
ALL_LIMITS = [*TORQUES, *RATES, *PLACES, {"joint_limits": {}}]
FEW = [*TORQUES[::3], *RATES[::3], *PLACES[::4], {"joint_limits": {}}]
LIMITS = [*FEW, *(pytest.param(x, marks=pytest.mark.long) for x in ALL_LIMITS if x not in FEW)]


@pytest.mark.slow
@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_the_optimum_does_not_depend_on_limits_that_are_not_active(limits):
    """Before, of nine torque limits two ended without a plan, and two at another cost."""
    found = optimise(caught(**limits), guess, max_iterations=600, refinements=1)
    assert found.cost == pytest.approx(OPTIMUM, abs=5e-5)
    assert found.closing.closes


@pytest.mark.slow
def test_an_active_limit_costs_more_the_tighter_it_is():
    costs = [optimise(caught(torque=u), guess, max_iterations=600).cost for u in (4.0, 5.0, 6.0)]
    assert costs[0] > costs[1] > costs[2] > OPTIMUM
