"""Linearization with the policy that made the run, against differences of the whole closed loop."""

import casadi as ca
import numpy as np
import pytest
from hybridctl.experiments.rrr_door import tracking as rrr_door
from hybridctl.experiments.rrr_door.reference import FINAL_TIME, OPEN, Design, build
from hybridctl.robots import cube
from hybridctl.robots.rrr_door import DoorParameters
from hybridctl.robots.rrr_door import system as door

import hybridctl as hc
from hybridctl.base.errors import InputError, SystemDefinitionError
from hybridctl.control.detection import DetectedPolicy, Detection
from hybridctl.control.gains import GainCurve
from hybridctl.control.reference import extend
from hybridctl.control.spreading import ClockTracking, ReferenceSpreading
from hybridctl.control.tracking_law import ProjectedGain, TrackingLaw
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.laws import DifferentiableLaw, HeldInput
from hybridctl.hybrid.policy import DisturbedPolicy, SampledPolicy

SPAN, START = (0.0, 0.7), np.array([1.0, 0.3])
FINE = {"rtol": 1e-12, "atol": 1e-13}


def push(t):
    return np.array([0.4 * np.sin(4.0 * t)])


def throw_ball(seen=1.0):
    """A pushed ball that bounces once; guard and reset see this much of the push."""
    x, u, t = ca.SX.sym("x", 2), ca.SX.sym("u"), ca.SX.sym("t")
    field = [x[1], -9.81 - 0.3 * x[1] * ca.sqrt(0.1 + x[1] ** 2) + u]
    modes = [
        hc.symbolic.SymbolicMode(k, state=x, field=field, input=u, time=t) for k in ("air", "up")
    ]
    reset = [x[0], -0.7 * x[1] + 0.05 * seen * u * (1.0 - x[1])]
    edge = hc.symbolic.SymbolicTransition(
        "air", "floor", x[0] - 0.03 * seen * u - 0.1 * t, "up", reset
    )
    system = hc.symbolic.hybrid_system(modes, [edge])
    run = hc.simulate(system, "air", START, SPAN, lambda t, x: push(t), **FINE)
    return system, run, extend(system, run, before=0.15, after=0.15, feedforward=[push, push])


GAINS = (np.array([[4.0, 1.5]]), np.array([[2.0, 0.5]]))


def central_difference(system, mode, start, span, policy, dx, h, **settings):
    """The central difference of the end along dx."""
    forth, back = (
        hc.simulate(system, mode, start + s * dx, span, policy, **FINE, **settings).final_state
        for s in (h, -h)
    )
    return (forth - back) / (2.0 * h)


def extrapolate_slope(difference, h):
    """Differences over h, 2h and 4h from which terms of first and second order are eliminated.

    Gains are held outside of their knots, which makes the second order differ from side to side.
    """
    near, mid, far = (difference(k * h) for k in (1.0, 2.0, 4.0))
    return (4.0 * (2.0 * near - mid) - (2.0 * mid - far)) / 3.0


def measure_transition(system, policy, start=START, **settings):
    def column(dx):
        return extrapolate_slope(
            lambda h: central_difference(system, "air", start, SPAN, policy, dx, h, **settings),
            5e-5,
        )

    return np.array([column(dx) for dx in np.eye(2)]).T


def compare_with_differences(policy, system, **settings):
    run = hc.simulate(system, "air", START, SPAN, policy, **FINE)
    lin = hc.linearize(system, run, policy=policy, rtol=1e-11, atol=1e-12)
    found = measure_transition(system, policy, **settings)
    scale = np.abs(found).max()
    np.testing.assert_allclose(lin.state_transition, found, atol=1e-7 * scale)
    return run, lin


def test_spreading_of_a_ball_off_its_reference():
    system = throw_ball()[0]
    beside = START + np.array([0.02, -0.1])
    other = hc.simulate(system, "air", beside, SPAN, lambda t, x: push(t), **FINE)
    reference = extend(system, other, before=0.15, after=0.15, feedforward=[push, push])
    policy = ReferenceSpreading(reference, GAINS)
    run, lin = compare_with_differences(policy, system)
    by_gains = hc.linearize(system, run, rtol=1e-11, atol=1e-12).closed_loop(GAINS)
    np.testing.assert_allclose(lin.state_transition, by_gains.state_transition, rtol=1e-9)
    open_loop = hc.linearize(system, run).state_transition
    assert np.abs(open_loop - lin.state_transition).max() > 0.05


def test_a_hybrid_lqr_schedule_of_a_ball():
    system, run, reference = throw_ball(seen=0.0)
    lin = hc.linearize(system, run, rtol=1e-11, atol=1e-12)
    result = hc.hybrid_lqr(lin, np.diag([20.0, 1.0]), np.eye(1), np.diag([5.0, 1.0]))
    policy = ReferenceSpreading(reference, result.gains)
    # states at events are those of the dense output, which is not as good across knots of the gains
    _, closed = compare_with_differences(policy, system, max_step=1e-3)
    np.testing.assert_allclose(
        closed.state_transition, result.closed_loop.state_transition, rtol=1e-5, atol=1e-7
    )


def test_gains_add_up():
    system, run, reference = throw_ball()
    policy = ReferenceSpreading(reference, GAINS)
    lin = hc.linearize(system, run, policy=policy)
    twice = lin.closed_loop(GAINS).state_transition
    doubled = hc.linearize(system, run).closed_loop([2.0 * gain for gain in GAINS])
    np.testing.assert_allclose(twice, doubled.state_transition, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("limited", [True, False])
def test_an_input_at_its_limits_and_one_on_the_clock(limited):
    system, _, reference = throw_ball(seen=0.0)
    moved = START + np.array([0.05, -0.2])
    policy = ClockTracking(reference, GAINS)
    if limited:
        policy = ReferenceSpreading(reference, GAINS, limits=[0.3])
    run = hc.simulate(system, "air", moved, SPAN, policy, **FINE)
    lin = hc.linearize(system, run, policy=policy)
    found = measure_transition(system, policy, moved)
    np.testing.assert_allclose(lin.state_transition, found, atol=1e-6 * np.abs(found).max())


def spread_door(phantom="pushing", **settings):
    """The plant, reference and spreading of the door experiment."""
    config = rrr_door.Config()
    plant = door(DoorParameters())
    reference = build(plant, DoorParameters(), Design(), phantom=phantom, rtol=1e-11, atol=1e-11)
    gains = rrr_door.schedule(config, reference)
    return plant, reference, ReferenceSpreading(reference, gains, **settings), config


@pytest.mark.slow
def test_the_split_impact_of_the_door():
    plant, reference, policy, config = spread_door()
    start, span = reference.nominal(0.0) + np.array(config.perturbation), (0.0, FINAL_TIME)
    run = hc.simulate(plant, OPEN, start, span, policy, **FINE)
    assert [len(event.guards) for event in run.events] == [1, 1]
    lin = hc.linearize(plant, run, policy=policy, rtol=1e-10, atol=1e-11)
    dx = np.random.default_rng(1).normal(size=8)
    found = extrapolate_slope(
        lambda h: central_difference(plant, OPEN, start, span, policy, dx, h), 1e-5
    )
    assert np.abs(lin.derivative(dx) - found).max() < 1e-6 * np.abs(found).max()


def test_a_law_of_ones_own():
    system, _, _ = throw_ball()
    law = DifferentiableLaw(
        lambda t, x: push(t) - 0.3 * np.sin(x[:1]) * x[1:],
        lambda t, x: -0.3 * np.array([[np.cos(x[0]) * x[1], np.sin(x[0])]]),
        lambda t, x: np.array([1.6 * np.cos(4.0 * t)]),
    )
    compare_with_differences(law, system)
    shaken = DifferentiableLaw(
        lambda t, x: 0.1 * np.sin(t) * x[:1],
        lambda t, x: np.array([[0.1 * np.sin(t), 0.0]]),
        lambda t, x: 0.1 * np.cos(t) * x[:1],
    )

    class Own:
        def law(self, history):
            return law

    compare_with_differences(DisturbedPolicy(Own(), shaken), system)
    compare_with_differences(HeldInput(np.array([0.7])), system)


def test_a_law_without_a_derivative_is_refused_by_name():
    system, _, reference = throw_ball()

    def pushed(t, x):
        return push(t)

    late = DetectedPolicy(ReferenceSpreading(reference, GAINS), Detection(delay=0.01))
    for policy, what in (
        (pushed, "pushed"),
        (SampledPolicy(pushed, 0.01), "HeldInput"),
        (late, "Tracking"),
        (DisturbedPolicy(ReferenceSpreading(reference, GAINS), pushed), "DisturbedPolicy"),
    ):
        made = hc.simulate(system, "air", START, SPAN, policy)
        with pytest.raises(SystemDefinitionError, match=rf"'air' at t = 0 s.*{what}") as caught:
            hc.linearize(system, made, policy=policy)
        assert str(caught.value).count("\n") == 1
    other = ReferenceSpreading(reference, GAINS)
    strange = hc.simulate(system, "air", START, SPAN, lambda t, x: 1.0 + push(t))
    with pytest.raises(InputError, match=r"policy must be the one of the run: at t = 0 s"):
        hc.linearize(system, strange, policy=other)


def test_tracking_laws_have_the_derivatives_of_their_values():
    """On a manifold: a floating body off its target, gains that change, some inputs at limits."""
    system = cube.system()
    rng, turned = np.random.default_rng(5), np.random.default_rng(6)
    space = system.space
    above = np.concatenate([cube.robot().neutral(), np.zeros(6)])
    above[2] = 20.0
    start = space.integrate(above, rng.normal(size=12))
    run = hc.simulate(system, ("open",) * 8, start, (0.0, 0.4), **FINE)
    arc = with_inputs(run.arcs[0], rng)
    knots, values = np.array([0.0, 0.15, 0.4]), rng.normal(size=(3, 4, 12))
    limits = np.array([-np.ones(4), np.ones(4)]) * 1.0
    for slopes in (None, rng.normal(size=(3, 4, 12))):
        gain = ProjectedGain(
            GainCurve(knots, values, slopes), turned.normal(size=(12, 12)), 0.1, 0.5, 0.2
        )
        law = TrackingLaw(arc, gain, limits).differentiable()
        t, h = 0.27, 1e-6
        x = space.integrate(arc(t), 0.3 * rng.normal(size=12))
        by_state = np.array([
            (law(t, space.integrate(x, h * e)) - law(t, space.integrate(x, -h * e))) / (2.0 * h)
            for e in np.eye(12)
        ]).T  # fmt: skip
        np.testing.assert_allclose(law.jacobian(t, x), by_state, atol=1e-7)
        by_time = (law(t + h, x) - law(t - h, x)) / (2.0 * h)
        np.testing.assert_allclose(law.rate(t, x), by_time, atol=1e-6)
        cut = np.abs(law(t, x)) == 1.0
        assert cut.any()
        assert not cut.all()


def with_inputs(arc, rng):
    """The same arc with four inputs that change."""
    inputs = rng.normal(size=(len(arc.breaks), 8, 4)) * 0.5 ** np.arange(8)[None, :, None]
    return Arc(arc.index, arc.mode, arc.space, arc.start, arc.end, arc.breaks, arc.lengths,
               arc.states, inputs)  # fmt: skip
