"""Guards whose jumps move other guards of the same event: no order describes what happens."""

import casadi as ca
import numpy as np
import pytest

import hybridctl as hc
from hybridctl.base.errors import AmbiguousEventError
from hybridctl.hybrid.mode import Edge, GuardJacobian, GuardSet, Outgoing, ResetJacobian


def two_walls(factor):
    """x' = (1, 1); at x1 = 0 the other coordinate is multiplied by a factor, at x2 = 0 nothing."""
    modes, transitions = [], []
    for fired in ((), (0,), (1,), (0, 1)):
        x = ca.SX.sym("x", 2)
        modes.append(hc.symbolic.SymbolicMode(fired, state=x, field=[1.0, 1.0]))
        for j in {0, 1} - set(fired):
            after = tuple(sorted({*fired, j}))
            reset = [x[0], factor * x[1]] if j == 0 else None
            transitions.append(
                hc.symbolic.SymbolicTransition(fired, f"wall {j}", -x[j], after, reset)
            )
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


@pytest.mark.parametrize("n", [12, 13])
def test_the_phantom_modes_of_twelve_guards_are_compared_and_those_of_more_refused(n):
    """Walls at x = 0 that halve y: the jump has the slope 1/2^n."""
    names = [f"wall {k}" for k in range(n)]

    def mode(left):
        return hc.Mode(left, hc.VectorSpace(2), lambda t, x, u: np.array([-1.0, 0.0]))

    def outgoing(left):
        def edge(fired):
            halved = np.diag([1.0, 0.5 ** len(fired)])
            reset = hc.Reset(
                lambda t, x, u: halved @ x,
                lambda t, x, u: ResetJacobian(np.zeros(2), halved, np.zeros((2, 0))),
            )
            return Edge(reset, tuple(name for name in left if name not in fired))

        k = len(left)
        jacobian = GuardJacobian(np.zeros(k), np.tile([1.0, 0.0], (k, 1)), np.zeros((k, 0)))
        values = lambda t, x, u: np.full(k, x[0])  # noqa: E731
        return Outgoing(GuardSet(left, values, lambda t, x, u: jacobian), edge)

    system = hc.HybridSystem(mode, outgoing)
    (event,) = hc.simulate(system, tuple(names), [0.5, 1.0], (0.0, 1.0)).events
    if n > 12:
        with pytest.raises(AmbiguousEventError, match="13 guards fire together"):
            hc.jump_derivative(system, event)
        return
    jump = hc.jump_derivative(system, event)
    np.testing.assert_allclose(jump([0.0, 1.0]), [0.0, 0.5**n], rtol=1e-12)
