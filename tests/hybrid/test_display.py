"""What a run, its events and its parts show of themselves, and states at many times."""

from dataclasses import replace

import numpy as np
import pytest
from hybridctl.robots import ball

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.hybrid.model import FieldJacobian

SYSTEM = ball.system(ball.BallParameters(slope=0.0, restitution=0.5))
RUN = hc.simulate(SYSTEM, ("open",), [0.0, 0.5, 0.3, 0.0], (0.0, 0.5))


STEERED = hc.HybridSystem(
    [
        hc.Mode(
            "cart",
            hc.VectorSpace(2),
            lambda t, x, u: np.array([x[1], u[0]]),
            nu=1,
            jacobian=lambda t, x, u: FieldJacobian(np.eye(2, k=1), np.array([[0.0], [1.0]])),
        )
    ],
    [],
)
HELD = hc.simulate(STEERED, "cart", [0.0, 0.0], (0.0, 0.1))


def test_what_is_shown_is_short():
    (event,) = RUN.events
    estimate = hc.estimation.Estimate(("open",), 0.0, np.zeros(4), np.eye(4))
    for one in (RUN, event, SYSTEM, SYSTEM.robot, estimate):
        assert len(repr(one)) < 200
    assert repr(RUN).startswith("HybridTrajectory(0 to 0.5 s, 2 arcs, 1 event")
    assert "slope closes" in repr(event)
    assert repr(SYSTEM.robot) == "Robot(nq=2, nv=2, joints x, z)"
    assert repr(estimate).endswith("mean [0. 0. 0. 0.], deviations [1. 1. 1. 1.])")


def test_what_is_made_of_a_run_is_short_too():
    reference = hc.extend(SYSTEM, RUN, before=0.01, after=0.01)
    assert repr(reference) == "Reference(0 to 0.5 s, 2 arcs, 1 event, 0 phantoms)"
    linear = repr(hc.linearize(SYSTEM, RUN))
    assert linear.startswith("Linearization(0 to 0.5 s, 1 jump, linear, off by 10 % at |dx0| = ")
    rest = hc.mechanics.equilibrium(SYSTEM, ("closed",), [0.0, 0.0])
    assert repr(rest).startswith("Equilibrium(normal forces [")
    assert repr(SYSTEM.mode(("open",))) == "GeneratedContactMode(('open',))"
    lqr = hc.hybrid_lqr(hc.linearize(STEERED, HELD), np.eye(2), np.eye(1), np.eye(2))
    assert repr(lqr) == "LqrResult(0 to 0.1 s, 1 arc, gains (1, 2))"
    assert repr(lqr.gains.arcs[0]).startswith("GainCurve((1, 2), ")


def test_a_notebook_has_a_row_for_each_arc():
    assert RUN._repr_html_().count("<tr>") == 3


def test_a_notebook_names_guards_of_events_and_systems():
    (event,) = RUN.events
    assert "slope closes" in event._repr_html_()
    assert "none: the input changes" in replace(event, guards=())._repr_html_()
    walls = hc.HybridSystem(
        [hc.Mode("m", hc.VectorSpace(1), lambda t, x, u: -x)],
        [hc.Transition("m", hc.Guard("wall", lambda t, x, u: x[0]), hc.Reset.identity(), "m")],
    )
    assert "wall" in walls._repr_html_()
    assert "by mode" in hc.HybridSystem(walls.mode, walls.outgoing)._repr_html_()


def test_states_at_many_times_are_those_at_each():
    times = [0.0, 0.1, RUN.events[0].time, 0.5]
    np.testing.assert_array_equal(RUN(times), [RUN(t) for t in times])
    np.testing.assert_array_equal(RUN(times[2:3], "left")[0], RUN(times[2], "left"))
    assert RUN([]).shape[0] == 0
    with pytest.raises(InputError, match="t must lie in"):
        RUN([0.1, 0.6])
