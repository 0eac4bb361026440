"""Compiled steps against the generic stepper, an independent integrator, and differences."""

import pickle
import threading
from dataclasses import replace

import casadi as ca
import numpy as np
import pytest
from hybrid.samples import impact_times
from scipy.integrate import DOP853
from scipy.linalg import expm

import hybridctl as hc
from hybridctl import symbolic
from hybridctl.hybrid.explicit import CompiledKernel, StageKernel
from hybridctl.hybrid.flow import METHODS, Flow, Integrator
from hybridctl.hybrid.laws import HeldInput, LinearFeedback
from hybridctl.hybrid.mapped import Change
from hybridctl.hybrid.model import Diffusion, StepRequest
from hybridctl.hybrid.series import NODES
from hybridctl.hybrid.step import DrivenMode
from hybridctl.hybrid.system import MappedSystem
from hybridctl.symbolic.compiled_function import CompiledFunction
from hybridctl.symbolic.compiled_step import build_function

KINDS = pytest.mark.parametrize("kind", [ca.SX, ca.MX])
U = np.array([0.3])


def pendulum(kind=ca.SX):
    """A driven pendulum (angle, rate) between a wall that moves and a stop of its rate."""
    t, x, u = kind.sym("t"), kind.sym("x", 2), kind.sym("u")
    swing = symbolic.SymbolicMode(
        "swing",
        x,
        [x[1], -9.81 * ca.sin(x[0]) - 0.1 * x[1] + u + ca.cos(2.0 * t)],
        input=u,
        time=t,
    )
    wall = symbolic.SymbolicTransition(
        "swing", "wall", ca.sin(x[0]) + 0.4 - 0.1 * ca.sin(t), "swing", [x[0], -0.8 * x[1]]
    )
    fast = symbolic.SymbolicTransition(
        "swing", "fast", 9.0 - x[1] ** 2 - u, "swing", [x[0], 0.5 * x[1]]
    )
    return symbolic.hybrid_system([swing], [wall, fast])


def generic(system):
    """The same system without its compiled steps."""

    return MappedSystem(system, lambda key: Change())


class Feedback(LinearFeedback):
    """u = sin(3 t) - (2 + t) x_0 - 0.5 x_1, which limits cut in a part of the plane."""

    limits = np.array([[-1.0], [0.8]])

    def __call__(self, t, x):
        offsets, gains = self.find_offsets_and_gains(np.array([t]))
        return np.clip(offsets[0] - gains[0] @ x, *self.limits)

    def find_offsets_and_gains(self, times):
        gains = np.stack([2.0 + times, np.full_like(times, 0.5)], axis=1)
        return np.sin(3.0 * times)[:, None], gains[:, None]


HELD = HeldInput(U)
LAWS = pytest.mark.parametrize("law", [HELD, Feedback()], ids=["held", "feedback"])


def formulas(system, key="swing", rtol=1e-6, atol=1e-8, law=HELD):
    motion = DrivenMode(system.mode(key), law, watched=True)
    return (
        CompiledKernel(motion, motion.compiled_law, rtol, atol),
        StageKernel(METHODS["DOP853"], motion, rtol, atol),
    )


@LAWS
@KINDS
def test_a_compiled_step_is_the_generic_one(kind, law):
    compiled, plain = formulas(pendulum(kind), law=law)
    rng = np.random.default_rng(0)
    for _ in range(20):
        t, x = rng.uniform(0.0, 9.0), rng.normal(size=2)
        end = t + rng.choice([-1.0, 1.0]) * 10.0 ** rng.uniform(-3, 0)
        errors = []
        for formula in (compiled, plain):
            formula.start(t, x)
            errors.append(formula.attempt(end))
        # both sum the same products; the estimate itself is a difference of sums of size 1 / rtol
        assert errors[0] == pytest.approx(errors[1], rel=1e-6, abs=1e-6)
        one, other = compiled.accept(), plain.accept()
        assert (one.start, one.end) == (other.start, other.end) == (t, end)
        for name in ("states", "inputs", "guards", "bounds"):
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-12)


def test_the_generic_step_is_scipys():
    """End state, error control and dense output of DOP853, step by step."""
    mode = pendulum().mode("swing")
    rate = lambda t, x: mode.field(t, x, U)  # noqa: E731

    settings = Integrator(METHODS["DOP853"], 1e-8, 1e-10, np.inf)
    for law in (HeldInput(U), lambda t, x: U):
        theirs = DOP853(rate, 0.0, np.array([1.0, 0.5]), 20.0, rtol=1e-8, atol=1e-10)
        flow = Flow(settings, DrivenMode(mode, law), 0.0, np.array([1.0, 0.5]), 20.0)
        for step in flow.steps():
            theirs.step()
            # step lengths are a root of the error, which is known to 1e-6 of itself
            assert step.end == pytest.approx(theirs.t, rel=1e-5)
            np.testing.assert_allclose(step.states[-1], theirs.y, rtol=0.0, atol=1e-4)
        assert step.end == theirs.t == 20.0
        np.testing.assert_allclose(step.states[-1], theirs.y, rtol=0.0, atol=1e-7)


def test_a_bound_is_below_its_guard():
    compiled, _ = formulas(pendulum(), rtol=1e-9, atol=1e-9)
    guards = pendulum().outgoing("swing").guards
    rng = np.random.default_rng(1)
    told = 0
    for _ in range(50):
        t, x = rng.uniform(0.0, 9.0), rng.normal(size=2)
        compiled.start(t, x)
        if compiled.attempt(t + 10.0 ** rng.uniform(-3, -0.5)) >= 1.0:
            continue
        step = compiled.accept()
        times = np.linspace(step.start, step.end, 200)
        lowest = np.min([guards.values(s, step.state(s), U) for s in times], axis=0)
        assert (step.bounds <= lowest + 1e-9).all()
        told += int((step.bounds > 0.0).sum())
    assert told > 20  # and not so far below that it says nothing


@KINDS
def test_both_steppers_find_the_same_run(kind):
    system = pendulum(kind)
    law = hc.SampledPolicy(lambda t, x: [1.5 * x[1] - 2.0], 0.37)
    runs = [
        hc.simulate(s, "swing", [1.2, 0.0], (0.0, 6.0), law, rtol=1e-10, atol=1e-10)
        for s in (system, generic(system))
    ]
    one, other = runs
    assert len(one.guard_events) >= 4
    assert {name for e in one.guard_events for name in e.guards} == {"wall", "fast"}
    assert [e.guards for e in one.events] == [e.guards for e in other.events]
    # local errors of 1e-10, grown by the pendulum over six seconds
    times = [[e.time for e in run.events] for run in runs]
    np.testing.assert_allclose(times[0], times[1], rtol=0.0, atol=1e-7)
    np.testing.assert_allclose(one.final_state, other.final_state, rtol=0.0, atol=1e-6)


def test_a_step_that_an_event_cuts_ends_on_it():
    run = hc.simulate(pendulum(), "swing", [1.2, 0.0], (0.0, 3.0))
    guards = pendulum().outgoing("swing").guards
    for event, arc in zip(run.events, run.arcs, strict=False):
        assert arc.breaks[-1] + arc.lengths[-1] == pytest.approx(arc.end, abs=1e-15)
        (name,) = event.guards
        values = guards.values(event.time, event.state_before, event.input_before)
        # rounding of a guard of size 9 whose rate is some 50 per second, times 1e-15 s
        assert abs(values[guards.names.index(name)]) < 1e-13


def test_transition_matrices_are_central_differences_of_the_step():
    mode = pendulum().mode("swing")
    t, x, h, eps = 0.4, np.array([0.7, -0.3]), 0.2, 1e-5
    moved = mode.transition(StepRequest(t, x, h, 1e-9, 1e-9), U)

    def end(x):
        return mode.step(StepRequest(t, x, h, 1e-9, 1e-9), HeldInput(U)).states[-1]

    columns = [(end(x + d) - end(x - d)) / (2.0 * eps) for d in eps * np.eye(2)]
    # truncation eps^2, rounding 1e-16 / eps
    np.testing.assert_allclose(moved.matrix, np.array(columns).T, rtol=0.0, atol=1e-9)
    np.testing.assert_allclose(moved.state, end(x), atol=1e-14)


def test_a_linear_flow_has_the_matrix_exponential():
    """Also where the steps of the state, which does not move, are far too long for the matrix."""
    a = np.array([[0.0, 1.0], [-100.0, -0.2]])
    x = ca.SX.sym("x", 2)
    system = symbolic.hybrid_system([symbolic.SymbolicMode("m", x, ca.mtimes(ca.DM(a), x))], [])
    run = hc.simulate(system, "m", [0.0, 0.0], (0.0, 3.0))
    assert len(run.arcs[0].breaks) < 12
    matrix = hc.linearize(system, run).state_transition
    # 1e-9 for each of some 40 steps; the norm of the exponential is at most 10
    np.testing.assert_allclose(matrix, expm(3.0 * a), rtol=0.0, atol=1e-6)


def test_linearizations_of_both_steppers_agree():
    system = pendulum()
    run = hc.simulate(system, "swing", [1.2, 0.0], (0.0, 3.0), rtol=1e-11, atol=1e-11)
    one = hc.linearize(system, run, rtol=1e-11, atol=1e-11)
    other = hc.linearize(generic(system), run, rtol=1e-11, atol=1e-11)
    scale = np.abs(one.state_transition).max()
    # 1e-11 per step, over three arcs
    assert np.abs(one.state_transition - other.state_transition).max() < 1e-8 * scale
    dx = np.array([0.2, -0.1])
    np.testing.assert_allclose(one(dx), other(dx), rtol=0.0, atol=1e-8 * scale)


def test_what_needs_more_than_a_held_input_takes_the_generic_step():
    system = pendulum()
    mode, ways = system.mode("swing"), system.outgoing("swing")
    held, fed = HeldInput(U), Feedback()
    assert DrivenMode(mode, held).compiled_law is held
    assert DrivenMode(mode, fed).compiled_law is fed
    assert DrivenMode(mode, lambda t, x: U).compiled_law is None
    guards = ways.guards
    moved = type(guards)(guards.names, lambda t, x, u: guards.values(t, x, u) + 1.0)
    other = hc.HybridSystem(system.mode, lambda key: replace(ways, guards=moved)).mode("swing")
    assert DrivenMode(other, held).compiled_law is None
    at = 0.2, np.array([0.3, 0.1])
    assert other.compiled_steps is None
    np.testing.assert_array_equal(other.guards(*at, U), mode.guards(*at, U) + 1.0)


def test_what_is_too_large_has_no_compiled_step():
    x = ca.SX.sym("x", 2)
    for count, compiled in ((5000, False), (5, True)):
        field = ca.vertcat(x[1], sum(ca.sin(k * x[0]) for k in range(count)))
        mode = symbolic.hybrid_system([symbolic.SymbolicMode("m", x, field)], []).mode("m")
        assert (mode.compiled_steps is not None) == compiled
        if compiled:
            ahead = StepRequest(0.0, np.zeros(2), 1e-3, 1e-9, 1e-9)
            assert mode.compiled_steps.step(ahead, HeldInput(np.zeros(0))) is not None


def test_without_noise_and_absolute_tolerance_the_error_is_a_number():
    """The covariance stays zero, so that its error is 0 / 0: it counts as none."""
    x = ca.SX.sym("x")
    mode = symbolic.hybrid_system([symbolic.SymbolicMode("m", x, -x)], []).mode("m")
    nothing = Diffusion(np.zeros((1, 1)), np.zeros((0, 0)))
    found = mode.transition(StepRequest(0.0, np.ones(1), 0.1, 1e-9, 0.0), np.zeros(0), nothing)
    plain = mode.transition(StepRequest(0.0, np.ones(1), 0.1, 1e-9, 0.0), np.zeros(0))
    assert found.error == pytest.approx(plain.error, rel=1e-6)  # a difference of rounded sums
    np.testing.assert_array_equal(found.noise, [[0.0]])


def test_results_of_a_compiled_function_are_read_only_until_the_next_call():
    x = ca.SX.sym("x", 3)
    squares = CompiledFunction(ca.Function("squares", [x], [x * x]), [(3,)])
    (first,) = squares([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0.0
    squares([2.0, 2.0, 2.0])
    np.testing.assert_array_equal(first, [4.0, 4.0, 4.0])


def test_a_field_without_a_scalar_form_has_no_compiled_step():
    """The field -log(exp(x) + exp(x)), whose flow is x(t) + log 2 = exp(-t) (x(0) + log 2)."""
    x = ca.MX.sym("x")
    falling = symbolic.SymbolicMode("m", x, -ca.logsumexp(ca.vertcat(x, x)))
    half = symbolic.SymbolicTransition("m", "half", x - 0.5, "m", 1.0)
    system = symbolic.hybrid_system([falling], [half])
    mode, reset = system.mode("m"), system.outgoing("m").edge(("half",)).reset
    assert mode.compiled_steps is None
    assert mode.find_compiled_reset(0, reset) is None
    run = hc.simulate(system, "m", [1.0], (0.0, 1.0))
    shift = np.log(2.0)
    first = np.log((1.0 + shift) / (0.5 + shift))
    # each arc is integrated to 1e-9 in a few steps, and contracts
    assert [e.time for e in run.events] == pytest.approx([first, 2.0 * first], abs=1e-7)
    final = np.exp(2.0 * first - 1.0) * (1.0 + shift) - shift
    assert run.final_state[0] == pytest.approx(final, abs=1e-7)


def test_systems_of_expressions_pickle():
    system = pendulum()
    before = hc.simulate(system, "swing", [1.2, 0.0], (0.0, 3.0))
    read = pickle.loads(pickle.dumps(system))
    after = hc.simulate(read, "swing", [1.2, 0.0], (0.0, 3.0))
    assert [e.time for e in after.events] == [e.time for e in before.events]
    np.testing.assert_array_equal(after.final_state, before.final_state)
    mode = read.mode("swing")
    assert mode.step(StepRequest(0.0, np.zeros(2), 1e-3, 1e-9, 1e-9), HeldInput(U)) is not None
    matrices = [hc.linearize(s, before).state_transition for s in (system, read)]
    np.testing.assert_array_equal(*matrices)


def test_threads_do_not_disturb_each_others_steps():
    x = ca.SX.sym("x", 2)
    air = symbolic.SymbolicMode("air", x, [x[1], -9.81])
    hit = symbolic.SymbolicTransition("air", "floor", x[0], "air", [x[0], -0.9 * x[1]])
    system = symbolic.hybrid_system([air], [hit])
    wrong = []

    def work(number):
        height = 1.0 + number
        for _ in range(30):
            run = hc.simulate(system, "air", [height, 0.0], (0.0, 4.0))
            times = [e.time for e in run.events]
            if not np.allclose(times, impact_times(height, 0.9, len(times)), rtol=0.0, atol=1e-12):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_law_may_simulate_the_system_it_drives():
    """What a step needs is handed to it: another run in between changes nothing."""
    system = pendulum()

    def looking_ahead(t, x):
        return [0.1 * hc.simulate(system, "swing", x, (t, t + 0.2)).final_state[1]]

    plain = hc.simulate(
        generic(system), "swing", [1.2, 0.0], (0.0, 1.0), hc.SampledPolicy(looking_ahead, 0.1)
    )
    run = hc.simulate(system, "swing", [1.2, 0.0], (0.0, 1.0), hc.SampledPolicy(looking_ahead, 0.1))
    np.testing.assert_allclose(run.final_state, plain.final_state, rtol=0.0, atol=1e-7)


def test_the_nodes_are_those_of_the_record():
    mode = pendulum().mode("swing")
    taken = mode.step(StepRequest(0.0, np.array([1.0, 0.0]), 0.1, 1e-9, 1e-9), HeldInput(U))
    assert taken.states.shape == (len(NODES), 2)
    assert taken.guards.shape == (len(NODES), 2)
    assert taken.bounds.shape == (2,)


@pytest.mark.parametrize("build", ["step", "differentiated_step"])
@pytest.mark.parametrize("soundness", [lambda t: ca.sqrt(0.5 - t), lambda t: 0.5 - t])
def test_a_step_on_which_one_evaluation_is_not_sound_is_not(build, soundness):
    """The motion is sound up to t = 0.5, after which its soundness is negative or NaN."""
    t, x, u = ca.SX.sym("t"), ca.SX.sym("x"), ca.SX.sym("u")
    motion = ca.Function("motion", [t, x, u], [-x, x - 2.0, soundness(t)])
    step = build_function(build, motion, None)
    for h, is_sound in ((0.4, True), (1.0, False)):
        found = float(step([0.0, h, 1e-6, 1e-6], [1.0], [0.0])[0])
        assert (found > 0.0) is is_sound
