"""Derivatives of an impact go on from what its jump found."""

import numpy as np
from hybridctl.robots import block

import hybridctl as hc
from hybridctl.hybrid.model import JumpPoint
from hybridctl.mechanics.impacts import resets


def test_the_derivative_of_an_event_does_not_solve_its_impact_again(monkeypatch):
    """And is the same, to the last digit, as that of an event of which nothing is known."""
    system = block.system()
    run = hc.simulate(system, ("open", "open"), [0.0, 0.3, 0.2, 1.0, 0.0, 0.0], (0.0, 0.25))
    event = next(e for e in run.events if len(e.guards) == 1 and e.report is not None)
    solved = []
    monkeypatch.setattr(resets, "solve_impact", lambda *a: solved.append(a) or IMPACT(*a))
    known = hc.saltation_matrix(system, event)
    assert not solved
    reset = system.outgoing(event.mode_before).edge(event.guards).reset
    at = JumpPoint(event.time, event.state_before, event.input_before)
    found = [reset.calc_diff(at._replace(report=known)) for known in (None, event.report)]
    assert len(solved) == 1
    np.testing.assert_array_equal(*(d.state for d in found))
    assert known.shape == found[0].state.shape


IMPACT = resets.solve_impact
