"""Digital control: inputs sampled by a clock, and held."""

import numpy as np
import pytest
from scipy.linalg import expm

import hybridctl as hc
from hybridctl.errors import InputError

GAIN = np.array([3.0, 2.0])


def cart(restitution=0.7):
    """A pushed point (x, v) with a wall at 0."""
    free = hc.Mode("free", hc.VectorSpace(2), lambda t, x, u: np.array([x[1], u[0]]), 1)
    wall = hc.Guard("wall", lambda t, x, u: x[0])
    bounce = hc.Reset(lambda t, x, u: np.array([x[0], -restitution * x[1]]))
    return hc.HybridSystem([free], [hc.Transition("free", wall, bounce, "free")])


@pytest.mark.parametrize("period", [0.1, 1.0 / 3.0, 1e-3])
def test_the_motion_is_that_of_the_discrete_time_system(period):
    """Zero-order hold: z+ = e^{A h} z + int e^{A s} ds B u, the textbook's matrices."""
    both = expm(period * np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]))
    step = both[:2, :2] - np.outer(both[:2, 2], GAIN)
    law = lambda t, x: [-GAIN @ (x - [1.0, 0.0])]  # noqa: E731
    count = 30
    policy = hc.SampledPolicy(law, period)
    run = hc.simulate(cart(), "free", [1.5, 0.3], (0.0, count * period), policy)
    z = np.linalg.matrix_power(step, count) @ [0.5, 0.3]
    # polynomials of degree 2 are exact: rounding of 30 steps
    np.testing.assert_allclose(run.final_state - [1.0, 0.0], z, rtol=0.0, atol=1e-13)
    assert [e.time for e in run.events] == [k * period for k in range(1, count)]


def test_the_grid_does_not_drift_and_events_do_not_sample():
    seen = []

    def law(t, x):
        seen.append((t, x.copy()))
        return [-1.0 - 0.1 * t]

    run = hc.simulate(cart(), "free", [0.3, 0.0], (0.0, 3.0), hc.SampledPolicy(law, 0.1))
    times = [0.1 * k for k in range(30)]
    assert [t for t, _ in seen] == times
    hits = run.guard_events
    assert len(hits) >= 2
    for event in hits:
        np.testing.assert_allclose(event.input_after, event.input_before, rtol=1e-15)
    for t, x in seen[1:]:
        np.testing.assert_allclose(x, run(t, "right"), rtol=0.0, atol=1e-14)  # of two polynomials


def test_a_start_between_two_samples_is_one():
    policy = hc.SampledPolicy(lambda t, x: [t], 1.0, start=0.25)
    run = hc.simulate(cart(), "free", [1.0, 0.0], (0.0, 2.0), policy)
    assert [e.time for e in run.events] == [0.25, 1.25]
    assert [arc.input(arc.start)[0] for arc in run.arcs] == pytest.approx([0.0, 0.25, 1.25])


def test_a_clock_that_began_some_periods_ago_goes_on():
    policy = hc.SampledPolicy(lambda t, x: [t], 0.25, start=1.0)
    run = hc.simulate(cart(), "free", [1.0, 0.0], (1.5, 2.1), policy)
    assert [e.time for e in run.events] == [1.75, 2.0]


def test_a_policy_may_be_sampled():
    class Reached:
        def law(self, history):
            return lambda t, x: np.array([float(len(history.events))])

    run = hc.simulate(cart(), "free", [5.0, 0.0], (0.0, 1.0), hc.SampledPolicy(Reached(), 0.25))
    assert [arc.input(arc.start)[0] for arc in run.arcs] == pytest.approx([0.0, 1.0, 2.0, 3.0])


@pytest.mark.parametrize("period", [0.0, -1.0, np.nan, "often"])
def test_a_period_is_positive(period):
    with pytest.raises(InputError, match="period"):
        hc.SampledPolicy(lambda t, x: [0.0], period)


def test_an_input_of_the_wrong_size_is_named():
    with pytest.raises(InputError, match="input of the policy"):
        hc.simulate(
            cart(), "free", [1.0, 0.0], (0.0, 1.0), hc.SampledPolicy(lambda t, x: [1, 2], 0.1)
        )
