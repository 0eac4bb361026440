"""Policies: asked once per arc, with the history; what they return becomes the input."""

import numpy as np
import pytest
from hybrid.samples import ROUNDING, impact_times

import hybridctl as hc
from hybridctl.hybrid.laws import DifferentiableLaw


def pushed_ball():
    """A ball in free fall or in lift, with an input acceleration that shows on bounces."""
    air = hc.Mode("air", hc.VectorSpace(2), lambda t, x, u: np.array([x[1], -9.81 + u[0]]), nu=1)
    floor = hc.Guard("floor", lambda t, x, u: x[0])
    bounce = hc.Reset(lambda t, x, u: np.array([x[0], -0.8 * x[1]]))
    return hc.HybridSystem([air], [hc.Transition("air", floor, bounce, "air")])


def test_no_policy_is_zero_input():
    traj = hc.simulate(pushed_ball(), "air", [1.0, 0.0], (0.0, 1.0))
    assert traj.events[0].time == pytest.approx(impact_times(1.0, 0.8, 1)[0], abs=1e-13)
    np.testing.assert_array_equal(traj.input(0.7), [0.0])


def test_no_policy_is_zero_input_of_the_size_of_each_mode():
    space = hc.VectorSpace(1)
    modes = [
        hc.Mode("one", space, lambda t, x, u: np.ones(1) + u[:1], nu=1),
        hc.Mode("three", space, lambda t, x, u: np.ones(1) + u[2:], nu=3),
    ]
    edge = hc.Transition(
        "one", hc.Guard("g", lambda t, x, u: 1.0 - x[0]), hc.Reset.identity(), "three"
    )
    traj = hc.simulate(hc.HybridSystem(modes, [edge]), "one", [0.0], (0.0, 2.0))
    assert (traj.input(0.5).shape, traj.input(1.5).shape) == ((1,), (3,))
    assert traj.final_state[0] == pytest.approx(2.0, abs=4 * ROUNDING)  # two arcs, x up to 2


def test_a_function_is_the_law_of_every_arc():
    traj = hc.simulate(
        pushed_ball(), "air", [1.0, 0.0], (0.0, 1.5), lambda t, x: np.array([9.81 - 2.0])
    )
    assert traj.events[0].time == pytest.approx(1.0, abs=1e-13)  # h = 1 = a t^2 / 2 with a = 2
    np.testing.assert_allclose(traj.input(1.2), [7.81], atol=1e-14)


def test_a_law_may_return_a_list():
    traj = hc.simulate(pushed_ball(), "air", [1.0, 0.0], (0.0, 1.5), lambda t, x: [7.81])
    assert traj.events[0].time == pytest.approx(1.0, abs=1e-13)


def test_a_law_may_reuse_its_memory():
    memory = np.zeros(1)

    def law(t, x):
        memory[0] = t
        return memory

    traj = hc.simulate(pushed_ball(), "air", [1.0, 0.0], (0.0, 0.3), law)
    np.testing.assert_allclose(traj.input(0.2), [0.2], atol=1e-15)


class Counting:
    """Asks for as much acceleration as there have been events, and keeps what it was asked."""

    def __init__(self):
        self.asked = []

    def law(self, history):
        self.asked.append(history)
        count = float(len(history.events))
        return lambda t, x: np.array([count])


def test_a_policy_is_asked_once_per_arc_and_sees_the_events():
    policy = Counting()
    traj = hc.simulate(pushed_ball(), "air", [1.0, 0.0], (0.0, 2.0), policy)
    assert len(policy.asked) == len(traj.arcs) == len(traj.events) + 1
    assert [len(h.events) for h in policy.asked] == list(range(len(traj.arcs)))
    for history, arc in zip(policy.asked, traj.arcs, strict=True):
        assert (history.mode, history.time) == (arc.mode, arc.start)
        np.testing.assert_allclose(arc(arc.start), history.state, atol=ROUNDING)
        np.testing.assert_allclose(arc.input(arc.start), [arc.index], rtol=ROUNDING)
    for j, event in enumerate(traj.events):
        assert event.input_before[0] == pytest.approx(j, rel=ROUNDING)  # from the polynomial
        assert event.input_after[0] == j + 1
        assert policy.asked[-1].events[j].time == event.time


def test_progress_is_told_the_time_after_each_step():
    told = []
    hc.simulate(pushed_ball(), "air", [1.0, 0.0], (0.0, 0.3), progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 0.3


def test_the_velocity_of_a_law_is_that_of_its_input_along_a_motion():
    """u = sin t + x y along x = t^2, y = cos t, against its differences."""
    law = DifferentiableLaw(
        lambda t, x: np.array([np.sin(t) + x[0] * x[1]]),
        lambda t, x: np.array([[x[1], x[0]]]),
        lambda t, x: np.array([np.cos(t)]),
    )
    t, h = 0.7, 1e-5
    along = [law(s, np.array([s**2, np.cos(s)])) for s in (t - h, t + h)]
    found = law.velocity(t, np.array([t**2, np.cos(t)]), np.array([2.0 * t, -np.sin(t)]))
    np.testing.assert_allclose(found, (along[1] - along[0]) / (2.0 * h), rtol=1e-9)
