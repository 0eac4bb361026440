"""Guards whose jumps move other guards of the same event: no order describes what happens."""

import casadi as ca
import numpy as np
import pytest

import hybridctl as hc
from hybridctl.errors import AmbiguousEventError


def two_walls(factor):
    """x' = (1, 1); at x1 = 0 the other coordinate is multiplied by a factor, at x2 = 0 nothing."""
    modes, transitions = [], []
    for fired in ((), (0,), (1,), (0, 1)):
        x = ca.SX.sym("x", 2)
        modes.append(hc.symbolic.Mode(fired, state=x, field=[1.0, 1.0]))
        for j in {0, 1} - set(fired):
            after = tuple(sorted({*fired, j}))
            reset = [x[0], factor * x[1]] if j == 0 else None
            transitions.append(hc.symbolic.Transition(fired, f"wall {j}", -x[j], after, reset))
    return hc.symbolic.hybrid_system(modes, transitions)


@pytest.mark.parametrize("factor", [1.0, 0.5, 3.0])
def test_a_jump_that_keeps_the_side_of_other_guards_is_fine(factor):
    system = two_walls(factor)
    run = hc.simulate(system, (), [-1.0, -1.0], (0.0, 2.0))
    jump = hc.jump_derivative(system, run.events[0])
    # wall 0 first (x1 ahead): the gap x2 - x1 left is multiplied; else wall 1 is passed before
    # the factor applies to how far x2 is beyond it, in either case about x1's own time
    np.testing.assert_allclose(jump([1.0, 0.5]), [1.0, 1.0 + factor * (0.5 - 1.0)], atol=1e-12)
    np.testing.assert_allclose(jump([0.5, 1.0]), [0.5, 0.5 + factor * (1.0 - 0.5)], atol=1e-12)


def test_a_jump_that_takes_another_guard_to_its_other_side_is_refused():
    system = two_walls(-1.0)
    run = hc.simulate(system, (), [-1.0, -1.0], (0.0, 2.0))
    with pytest.raises(AmbiguousEventError, match="'wall 1' would fire before"):
        hc.jump_derivative(system, run.events[0])
