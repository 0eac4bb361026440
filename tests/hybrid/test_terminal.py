"""Events that end a run."""

import casadi as ca
import pytest

import hybridctl as hc
from hybridctl.base.errors import InputError


def ball():
    x = ca.SX.sym("x", 2)
    air = hc.symbolic.SymbolicMode("air", state=x, field=[x[1], -9.81])
    bounce = hc.symbolic.SymbolicTransition("air", "floor", x[0], "air", [x[0], -0.8 * x[1]])
    return hc.symbolic.hybrid_system([air], [bounce])


def test_the_run_ends_just_after_the_event():
    def slow(event):
        return abs(event.state_after[1]) < 2.5

    run = hc.simulate(ball(), "air", [1.0, 0.0], (0.0, 5.0), terminal=slow)
    speeds = [event.state_after[1] for event in run.events]
    assert len(speeds) == 3, "4.43 m/s times 0.8, 0.64, 0.512"
    assert run.end == run.events[-1].time
    assert run.final_state == pytest.approx(run.events[-1].state_after)
    assert run(run.end, side="left") == pytest.approx(run.events[-1].state_before)


def test_it_is_what_the_whole_run_does_until_then():
    whole = hc.simulate(ball(), "air", [1.0, 0.0], (0.0, 2.0))
    part = hc.simulate(ball(), "air", [1.0, 0.0], (0.0, 2.0), terminal=lambda e: e.index == 1)
    assert [e.time for e in part.events] == [e.time for e in whole.events[:2]]
    assert len(part.arcs) == 3


def test_such_a_run_is_linearized_and_saved_like_any(tmp_path):
    system = ball()
    run = hc.simulate(system, "air", [1.0, 0.0], (0.0, 2.0), terminal=lambda e: True)
    xi = hc.saltation_matrix(system, run.events[0])
    lin = hc.linearize(system, run)
    assert lin.state_transition == pytest.approx(xi @ lin.transitions[0], rel=1e-9)
    run.save(tmp_path / "run.npz")
    assert hc.HybridTrajectory.load(tmp_path / "run.npz", system).end == run.end


class Asking:
    """No input, under a law that is another one every 0.1 s."""

    def law(self, history):
        return lambda t, x: []

    def next_change(self, history):
        return history.time + 0.1


def test_changes_of_the_policy_do_not_count():
    policy = Asking()
    run = hc.simulate(ball(), "air", [1.0, 0.0], (0.0, 0.4), policy, terminal=lambda e: True)
    assert run.end == 0.4
    assert len(run.events) >= 3


def test_what_is_no_function_is_refused():
    with pytest.raises(InputError, match="terminal"):
        hc.simulate(ball(), "air", [1.0, 0.0], (0.0, 1.0), terminal=True)
