"""simulate(on_zeno=ZenoRelaxation()): rest where events accumulate, until the fields let go."""

import pickle

import casadi as ca
import numpy as np
import pytest
from differences import central
from hybridctl.experiments.relaxation.double_pendulum import make_rest_state, pendulum
from relaxation.systems import accumulation, ball, bowl

import hybridctl as hc
from hybridctl.base.errors import InputError, SystemDefinitionError
from hybridctl.relaxation.relax import HELD_STRIP, STRIP, relax
from hybridctl.relaxation.sliding import SLIDING
from hybridctl.relaxation.zeno_rest import RESTING

RELAX = hc.relaxation.ZenoRelaxation()


def strips(system):
    return relax(system, 1e-3)


@pytest.mark.parametrize("c", [0.0, 0.3, 0.8])
def test_a_ball_comes_to_rest_at_the_predicted_time(c):
    end = accumulation(c) + 0.5
    run = hc.simulate(ball(c), "air", [1.0, 0.0], (0.0, end), on_zeno=RELAX)
    (rest,) = [event for event in run.events if event.accumulation is not None]
    assert rest.accumulation == pytest.approx(accumulation(c), abs=2e-5)
    assert run.final_mode == (RESTING, "air", "floor")
    assert run.outputs("force", end) == pytest.approx([1.0])  # the weight
    np.testing.assert_allclose(run.final_state, [0.0, 0.0], atol=1e-12)


@pytest.mark.parametrize("c", [0.0, 0.5])
def test_it_leaves_with_the_input_and_rests_again(c):
    """Pulled up with 0.5 g for 1 s, then falling: the second accumulation is that of the fall."""
    lift = 5.0
    level = lambda t: 1.5 if lift <= t < lift + 1.0 else 0.0  # noqa: E731
    law = hc.SampledPolicy(lambda t, x: np.array([level(t)]), 1.0)
    run = hc.simulate(ball(c), "air", [1.0, 0.0], (0.0, 12.0), law, on_zeno=RELAX)
    rests = [event.accumulation for event in run.events if event.accumulation is not None]
    # Up 0.25 m at 0.5 m/s: it lands after 0.5 + sqrt(0.75) s with sqrt(0.75) m/s.
    fall = lift + 1.0 + 0.5 + np.sqrt(0.75)
    again = fall + 2.0 * c / (1.0 - c) * np.sqrt(0.75)
    assert rests == pytest.approx([accumulation(c), again], abs=2e-5)
    np.testing.assert_allclose(run(lift + 1.0), [0.25, 0.5], atol=1e-8)


@pytest.mark.parametrize("c", [0.0, 0.5])
def test_a_link_on_its_stop_is_that_of_the_locked_mode(c):
    """No mode but the free one is known; the other is written by hand, with its force."""
    span, x0 = (0.0, 7.0), make_rest_state((25.0, 35.0))
    by_hand = hc.simulate(pendulum(c), "free", x0, span, on_zeno="rest")
    run = hc.simulate(pendulum(c), "free", x0, span, on_zeno=RELAX)
    key = (RESTING, "free", "stop")
    found = [(a.start, a.end) for a in run.arcs if a.mode == key and a.end - a.start > 0.1]
    wanted = [
        (a.start, a.end) for a in by_hand.arcs if a.mode == "locked" and a.end - a.start > 0.1
    ]
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    np.testing.assert_allclose(run.final_state, by_hand.final_state, atol=1e-6)


@pytest.mark.parametrize(
    ("system", "mode", "name", "x"),
    [
        (pendulum(0.0), "free", "stop", [0.3, 0.4, 0.0, 0.0]),
        (pendulum(0.5), "free", "stop", [-0.3, 0.4, 0.0, 0.0]),
        (bowl(0.6), "flight", "wall", [0.6, -0.8, 0.4, 0.2]),
        (bowl(0.0), "flight", "wall", [0.6, -0.8, 0.4, 0.2]),
    ],
)
def test_rest_stays_at_rest(system, mode, name, x):
    """The field keeps g = 0 and dg/dt = 0, and states off it are put there."""
    past = hc.relaxation.past_zeno(system)
    resting, u = past.mode((RESTING, mode, name)), np.zeros(0)
    on = resting.project(np.array(x) + 0.01)
    np.testing.assert_allclose(resting.held.residuals(on), [0.0, 0.0], atol=1e-12)
    moved = central(lambda dx: resting.held.residuals(on + dx), len(on), 1e-6)
    np.testing.assert_allclose(moved @ resting.field(0.0, on, u), [0.0, 0.0], atol=1e-8)
    wanted = central(lambda dx: resting.field(0.0, on + dx, u), len(on), 1e-6)
    np.testing.assert_allclose(resting.jacobian(0.0, on, u).state, wanted, atol=1e-7)
    guards = past.outgoing((RESTING, mode, name)).guards
    rows = central(lambda dx: guards.values(0.0, on + dx, u), len(on), 1e-6)
    np.testing.assert_allclose(guards.jacobian(0.0, on, u).state, rows, atol=1e-7)


def test_guards_that_meet_have_no_rest():
    x = ca.SX.sym("x", 3)
    mode = hc.symbolic.SymbolicMode("air", x, [x[1], -1.0, 0.0])
    edges = [
        hc.symbolic.SymbolicTransition("air", name, x[0], "air", [x[0], -0.5 * x[1], x[2]])
        for name in ("one", "two")
    ]
    joint = hc.symbolic.Joint("air", ("one", "two"), "air", [x[0], -0.5 * x[1], x[2]])
    system = hc.symbolic.hybrid_system([mode], [*edges, joint])
    with pytest.raises(SystemDefinitionError, match="these meet"):
        hc.simulate(system, "air", [1.0, 0.0, 0.0], (0.0, 6.0), on_zeno=RELAX)


def test_a_run_that_goes_on_from_rest_stays_there():
    """Its system has the rest already, and is not extended once more."""
    end = accumulation(0.5) + 0.5
    run = hc.simulate(ball(0.5), "air", [1.0, 0.0], (0.0, end), on_zeno=RELAX)
    onward = hc.simulate(
        run.system, run.final_mode, run.final_state, (end, end + 1.0), on_zeno=RELAX
    )
    assert onward.system is run.system
    assert (len(onward.arcs), onward.final_mode) == (1, run.final_mode)


def test_batches_go_past_zeno_too():
    end = accumulation(0.5) + 0.5
    batch = hc.simulate_batch(ball(0.5), "air", [[1.0, 0.0], [0.5, 0.0]], (0.0, end), on_zeno=RELAX)
    batch.check()
    assert batch.modes == ((RESTING, "air", "floor"),) * 2


def test_the_name_that_relaxation_had_says_what_to_write():
    with pytest.raises(InputError, match=r"on_zeno=hybridctl\.relaxation\.ZenoRelaxation\(\)"):
        hc.simulate(ball(0.5), "air", [1.0, 0.0], (0.0, 1.0), on_zeno="relax")


@pytest.mark.filterwarnings("ignore::hybridctl.base.errors.NearGrazingWarning")  # it is at rest
def test_derivatives_past_zeno_do_not_converge():
    """What bounces for ever passes perturbations on; the limit forgets them."""
    end = accumulation(0.5) + 0.5
    past = hc.relaxation.past_zeno(ball(0.5))
    run = hc.simulate(past, "air", [1.0, 0.0], (0.0, end), on_zeno="rest")
    with pytest.raises(InputError, match="has no derivative"):
        hc.linearize(past, run)
    for epsilon in (1e-3, 3e-4, 1e-4):
        relaxed = hc.relax(ball(0.5), epsilon)
        bouncing = hc.simulate(relaxed, "air", [1.0, 0.0], (0.0, end), rtol=1e-10, atol=1e-12)
        assert np.abs(hc.linearize(relaxed, bouncing).state_transition).max() > 1.0


@pytest.mark.parametrize("made", [hc.relaxation.past_zeno, hc.relaxation.filippov, strips])
def test_a_copy_in_another_process_moves_as_the_system(made):
    """What has been made of its modes by a run goes along."""
    system = made(ball(0.5))
    run = hc.simulate(system, "air", [1.0, 0.0], (0.0, 2.0))
    copy = pickle.loads(pickle.dumps(system))
    copied = hc.simulate(copy, "air", [1.0, 0.0], (0.0, 2.0))
    assert copied.final_mode == run.final_mode
    np.testing.assert_array_equal(copied.final_state, run.final_state)


@pytest.mark.parametrize("made", [hc.relaxation.past_zeno, hc.relaxation.filippov, strips])
def test_motions_on_guards_have_the_names_of_the_mode_they_are_in(made):
    """Of a ball that has names for nothing; guards of all modes are known by their names."""
    system = made(ball(0.5))
    kinds = {"PastZeno": [RESTING], "Filippov": [SLIDING], "Relaxed": [STRIP, HELD_STRIP]}
    for kind in kinds[type(system).__name__]:
        key = (kind, "air", "floor")
        mode = system.mode(key)
        assert set(mode.guard_names) <= set(system.guard_names)
        assert system.state_labels(key)[:2] == system.inner.state_labels("air")
        assert len(system.state_labels(key)) == mode.space.nx
        assert system.input_labels(key) == system.inner.input_labels("air")
