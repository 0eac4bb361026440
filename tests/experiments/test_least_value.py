"""Tracking at the phase of least value: the phase, the law at it, and events that are overdue."""

import numpy as np
import pytest
from control.test_lqr import bouncing, extended, push
from hybridctl.experiments.walking.phase_laws import LeastValueTracking
from hybridctl.robots import cube

from hybridctl.base.errors import InputError, SystemDefinitionError
from hybridctl.control.gains import GainCurve, GainSchedule
from hybridctl.control.reference import extend
from hybridctl.hybrid.policy import History
from hybridctl.hybrid.simulate import simulate
from hybridctl.sensitivity.linearization import linearize

GAIN = np.array([[3.0, 0.7]])
RISING = GainCurve(np.array([0.0, 1.0]), np.array([GAIN, 2.0 * GAIN]))
VALUE = np.array([[4.0, 0.5], [0.5, 1.0]])


@pytest.fixture(scope="module")
def reference():
    system, run, _ = bouncing()
    return extended(system, run)


def tracking(reference, **options):
    gains = GainSchedule((RISING, RISING))
    return LeastValueTracking(reference, gains, lambda k, t: (1.0 + t) * VALUE, **options)


@pytest.mark.parametrize("k", [0, 1])
def test_the_phase_is_the_foot_of_the_normal(reference, k):
    """x = alpha(tau) + s n with n^T V alpha' = 0: nearest, for s below the radius of curvature.

    There V grows by time, for which the search has no derivative: 1e-4 s n is off by 1e-8 of it.
    """
    policy, arc = tracking(reference), reference.arcs[k]
    for share in (0.01, 0.3, 0.77, 0.99):
        tau = arc.start + share * (arc.end - arc.start)
        along = VALUE @ arc.state_rate(tau)
        normal = np.array([-along[1], along[0]]) / np.linalg.norm(along)
        assert policy.find_phase(k, arc(tau) + 1e-4 * normal) == pytest.approx(tau, abs=1e-7)
    outside = arc(arc.end) + 0.01 * arc.state_rate(arc.end)
    assert policy.find_phase(k, outside) == arc.end


def test_being_late_costs_nothing(reference):
    """On the reference, 0.3 s late, the input is its own and goes on as it does; off it K pulls."""
    policy, tau, late, off = tracking(reference), 0.2, 0.3, np.array([0.01, -0.02])
    state = reference.arcs[0](tau)
    law = policy.law(History("air", tau + late, state))
    for since in (0.0, 0.01):
        there = reference.arcs[0](tau + since)
        u = law(tau + late + since, there)
        np.testing.assert_allclose(u, push(tau + since), atol=1e-7)
        pulled = law(tau + late + since, there + off)
        np.testing.assert_allclose(pulled, u - RISING(tau + since) @ off, atol=1e-9)
    assert policy.next_change(History("air", 0.5, state)) == pytest.approx(0.52)
    cut = tracking(reference, limits=[0.1]).law(History("air", tau + late, state))
    np.testing.assert_allclose(cut(tau + late, state), [0.1])


@pytest.mark.parametrize(
    ("options", "late", "arc"),
    [({"patience": 0.06}, 0.05, 0), ({"patience": 0.04}, 0.05, 1), ({}, 0.019, 0), ({}, 0.021, 1)],
)
def test_an_overdue_event_is_waited_for_as_long_as_its_patience(reference, options, late, arc):
    """A ball that has not bounced so long after it should have; by default it may be 0.02 s."""
    time = reference.events[0].time + late
    state = reference.arcs[0](time)
    policy = tracking(reference, **options)
    law = policy.law(History("air", time, state))
    tau = policy.find_phase(0, state)
    assert tau == pytest.approx(time, abs=1e-7)
    followed = reference.arcs[arc]
    wanted = followed.input(tau) + RISING(tau) @ (followed(tau) - state)
    np.testing.assert_allclose(law(time, state), wanted, atol=1e-9)


def test_a_corrected_input_is_off_by_the_same_until_the_next_sample(reference):
    """What is not allowed is taken off; an input that is allowed is left as it is."""
    free, state = tracking(reference), reference.arcs[0](0.2)

    def less(mode, x, u):
        return u - 0.25 if mode == "air" else u

    policy = tracking(reference, correction=less)
    for mode, change in (("air", 0.25), ("up", 0.0)):
        history = History(mode, 0.2, state)
        for t in (0.2, 0.213):
            wanted = free.law(history)(t, state) - change
            np.testing.assert_allclose(policy.law(history)(t, state), wanted, atol=1e-12)


def test_a_law_chosen_by_the_state_has_no_derivatives(reference):
    """Held fixed, its phase would give 0.65 for the change of speed by speed; the flow has 0.95."""
    system, _, _ = bouncing()
    policy = tracking(reference, sample=0.05)
    start = reference.arcs[0](0.1) + np.array([0.01, 0.02])
    tracked = simulate(system, "air", start, (0.1, 0.35), policy)
    with pytest.raises(SystemDefinitionError, match="chosen by the state"):
        linearize(system, tracked, policy=policy)


@pytest.mark.parametrize("k", [0, 1])
def test_the_phase_of_a_state_far_off_is_near_the_nearest_of_those_compared(reference, k):
    """Where the reference is curved, steps of Gauss and Newton from far off lead astray."""
    policy, arc = tracking(reference), reference.arcs[k]
    times = np.linspace(arc.start, arc.end, 96)
    random, reached = np.random.default_rng(0), []
    for x in random.normal(scale=3.0, size=(50, 2)):
        costs = [(x - arc(t)) @ ((1.0 + t) * VALUE) @ (x - arc(t)) for t in times.tolist()]
        nearest = times[np.argmin(costs)]
        reached.append(abs(policy.find_phase(k, x) - nearest) / (times[1] - times[0]))
    assert max(reached) <= 1.0 + 1e-9
    assert max(reached) > 0.9


def test_a_reference_on_another_manifold_is_refused():
    system, flying = cube.system(actuated=True), ("open",) * 8
    start = np.concatenate((system.robot.neutral(), np.zeros(6)))
    start[2] = 1.0
    nominal = simulate(system, flying, start, (0.0, 0.1))
    reference = extend(system, nominal, before=0.01, after=0.01)
    with pytest.raises(InputError, match="reference must be in a vector space, got one in"):
        LeastValueTracking(reference, [np.zeros((6, 12))], lambda k, t: np.eye(12))
