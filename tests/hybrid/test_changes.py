"""Policies that change their law at a time of their own: an event without guards."""

import numpy as np
import pytest
from hybrid.samples import impact_times
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridctl as hc
from hybridctl.base.errors import EventLimitError, InputError
from hybridctl.hybrid.mode import FieldJacobian, GuardJacobian, ResetJacobian
from hybridctl.hybrid.policy import DisturbedPolicy
from hybridctl.hybrid.trajectory import HybridTrajectory


class Levels:
    """Plays one input after the other, each from its time on; keeps the histories."""

    def __init__(self, times, levels):
        self.times, self.levels, self.asked = times, levels, []

    def law(self, history):
        self.asked.append(history)
        u = np.array([self.levels[np.searchsorted(self.times, history.time, "right")]])
        return lambda t, x: u

    def next_change(self, history):
        return min((t for t in self.times if t > history.time), default=np.inf)


def pushed_ball(restitution=0.8, gravity=9.81):
    """A ball over a floor, with an acceleration as input, and all derivatives."""
    field = lambda t, x, u: np.array([x[1], u[0] - gravity])  # noqa: E731
    jacobian = FieldJacobian(np.array([[0.0, 1.0], [0.0, 0.0]]), np.array([[0.0], [1.0]]))
    air = hc.Mode("air", hc.VectorSpace(2), field, 1, lambda t, x, u: jacobian)
    row = GuardJacobian(np.zeros(()), np.array([1.0, 0.0]), np.zeros(1))
    floor = hc.Guard("floor", lambda t, x, u: x[0], lambda t, x, u: row)
    bounce = np.diag([1.0, -restitution])
    reset = hc.Reset(
        lambda t, x, u: bounce @ x,
        lambda t, x, u: ResetJacobian(np.zeros(2), bounce, np.zeros((2, 1))),
    )
    rest = hc.hybrid.mode.Edge(hc.Reset(lambda t, x, u: np.zeros(2)), "ground")
    ground = hc.Mode("ground", hc.VectorSpace(2), lambda t, x, u: np.zeros(2), 1)
    return hc.HybridSystem([air, ground], [hc.Transition("air", floor, reset, "air", rest)])


def test_the_law_changes_exactly_when_the_policy_says():
    """Bang-bang on a double integrator: up with 2, from 0.3 s down with -1, in closed form."""
    policy = Levels([0.3], [9.81 + 2.0, 9.81 - 1.0])
    run = hc.simulate(pushed_ball(), "air", [1.0, 0.0], (0.0, 0.7), policy)
    (event,) = run.events
    assert (event.time, event.guards, event.mode_after) == (0.3, (), "air")
    np.testing.assert_array_equal(event.state_before, event.state_after)
    # The records are polynomials of the laws, which are constant.
    np.testing.assert_allclose(run.input(0.3, "left"), [11.81], rtol=1e-14)
    np.testing.assert_allclose(run.input(0.3), [8.81], rtol=1e-14)
    np.testing.assert_allclose(event.input_rate, [0.0], atol=1e-12)
    v, h = 0.6, 1.0 + 0.09
    np.testing.assert_allclose(run.final_state, [h + v * 0.4 - 0.08, v - 0.4], rtol=1e-13)


def test_a_change_costs_no_small_steps():
    """The same law with the jump inside an arc makes the integrator search for it."""
    policy = Levels([0.3], [9.81 + 2.0, 9.81 - 1.0])
    run = hc.simulate(pushed_ball(), "air", [1.0, 0.0], (0.0, 0.7), policy)
    hidden = hc.simulate(
        pushed_ball(),
        "air",
        [1.0, 0.0],
        (0.0, 0.7),
        lambda t, x: np.array([9.81 + (2.0 if t < 0.3 else -1.0)]),
    )
    steps = [sum(len(arc.breaks) for arc in r.arcs) for r in (run, hidden)]
    assert 2 * steps[0] < steps[1]


def test_the_policy_sees_its_changes_and_the_end_of_the_span_has_none():
    policy = Levels([0.1, 0.2, 0.4], [0.0, 1.0, 2.0, 3.0])
    run = hc.simulate(pushed_ball(), "air", [1.0, 0.0], (0.0, 0.4), policy)
    assert [e.time for e in run.events] == [0.1, 0.2]
    assert [h.time for h in policy.asked] == [0.0, 0.1, 0.2]
    assert [len(h.events) for h in policy.asked] == [0, 1, 2]
    assert run.guard_events == ()


@pytest.mark.parametrize("offset", [-5e-9, 0.0, 5e-9])
def test_a_guard_within_the_window_of_a_change_comes_first(offset):
    """The floor is hit at t1; a change is due a little before it, with it, or after it."""
    t1 = float(impact_times(1.0, 0.8, 1)[0])
    policy = Levels([t1 + offset], [0.0, 1.0])
    run = hc.simulate(pushed_ball(), "air", [1.0, 0.0], (0.0, 0.6), policy)
    first = run.events[0]
    assert first.guards == ("floor",)
    assert first.time == pytest.approx(min(t1, t1 + offset), abs=1e-12)
    np.testing.assert_array_equal(first.input_before, [0.0])
    assert first.state_after[1] == pytest.approx(0.8 * 9.81 * t1, abs=1e-7)
    later = run.events[1:]
    if offset > 0.0:
        assert [(e.time, e.guards) for e in later] == [(t1 + offset, ())]
    else:
        assert first.input_after[0] == 1.0 or [e.guards for e in later] == [()]
    np.testing.assert_allclose(run.input(0.6), [1.0])


def test_a_change_clearly_before_a_guard_comes_first():
    t1 = float(impact_times(1.0, 0.8, 1)[0])
    policy = Levels([t1 - 1e-6], [0.0, 1.0])
    run = hc.simulate(pushed_ball(), "air", [1.0, 0.0], (0.0, 0.6), policy)
    assert [e.guards for e in run.events] == [(), ("floor",)]


def test_changes_count_neither_as_events_nor_as_zeno():
    crowd = (0.1 + 1e-11 * np.arange(30)).tolist()
    policy = Levels(crowd, np.linspace(0.0, 1.0, 31).tolist())
    run = hc.simulate(pushed_ball(), "air", [1.0, 0.0], (0.0, 0.5), policy, max_events=1)
    assert [len(e.guards) for e in run.events].count(0) == 30
    assert len(run.guard_events) == 1
    with pytest.raises(EventLimitError, match="max_events = 0"):
        hc.simulate(pushed_ball(), "air", [1.0, 0.0], (0.0, 0.5), policy, max_events=0)


def test_bounces_accumulate_at_the_same_time_with_changes_in_between():
    """With the same input on all pieces: t_inf = t1 (1 + e) / (1 - e)."""
    times = np.linspace(0.05, 1.45, 29).tolist()
    policy = Levels(times, [0.0] * 30)
    system = pushed_ball(restitution=0.5)
    run = hc.simulate(system, "air", [1.0, 0.0], (0.0, 2.0), policy, on_zeno="rest")
    plain = hc.simulate(system, "air", [1.0, 0.0], (0.0, 2.0), on_zeno="rest")
    ends = [e.accumulation for e in run.events if e.accumulation is not None]
    expected = [e.accumulation for e in plain.events if e.accumulation is not None]
    np.testing.assert_allclose(ends, expected, rtol=1e-9)
    assert run.final_mode == "ground"


def stuck_block(limit=1.0):
    """A block (position, velocity) pushed by u: sticks up to the limit, then slides frictionless.

    Sticking is left through a force guard, and at once by `select` where the input jumps.
    """
    space = hc.VectorSpace(2)
    choose = lambda t, x, u: "slip" if u[0] > limit else "stick"  # noqa: E731
    stick = hc.Mode("stick", space, lambda t, x, u: np.zeros(2), 1, select=choose)
    slip = hc.Mode("slip", space, lambda t, x, u: np.array([x[1], u[0]]), 1)
    guard = hc.Guard("slips", lambda t, x, u: limit - u[0])
    return hc.HybridSystem(
        [stick, slip], [hc.Transition("stick", guard, hc.Reset.identity(), "slip")]
    )


def test_the_mode_is_selected_anew_where_the_input_jumps():
    policy = Levels([0.5], [0.4, 3.0])
    run = hc.simulate(stuck_block(), "stick", [0.0, 0.0], (0.0, 1.0), policy)
    (event,) = run.events
    assert (event.time, event.guards) == (0.5, ())
    assert (event.mode_before, event.mode_after) == ("stick", "slip")
    np.testing.assert_allclose(run.final_state, [3.0 * 0.125, 1.5], rtol=1e-13)
    below = Levels([0.5], [0.4, 0.9])
    run = hc.simulate(stuck_block(), "stick", [0.0, 0.0], (0.0, 1.0), below)
    assert run.final_mode == "stick"


def test_without_selection_the_guard_fires_right_after_the_jump_of_the_input():
    system = stuck_block()
    free = hc.Mode("stick", hc.VectorSpace(2), lambda t, x, u: np.zeros(2), 1)
    guards = system.outgoing("stick")
    plain = hc.HybridSystem(
        lambda key: free if key == "stick" else system.mode(key),
        lambda key: guards if key == "stick" else system.outgoing(key),
    )
    run = hc.simulate(plain, "stick", [0.0, 0.0], (0.0, 1.0), Levels([0.5], [0.4, 3.0]))
    assert [(e.time, e.guards) for e in run.events] == [(0.5, ()), (0.5, ("slips",))]
    np.testing.assert_allclose(run.final_state, [3.0 * 0.125, 1.5], rtol=1e-12)


def test_a_change_is_saved_and_loaded(tmp_path):
    policy = Levels([0.3], [0.4, 3.0])
    system = stuck_block()
    run = hc.simulate(system, "stick", [0.0, 0.0], (0.0, 1.0), policy)
    run.save(tmp_path / "run.npz")
    back = HybridTrajectory.load(tmp_path / "run.npz", system)
    assert back.events[0].guards == ()
    assert back.events[0].mode_after == "slip"
    np.testing.assert_array_equal(back.final_state, run.final_state)


def test_deviations_pass_a_change_as_they_are():
    """Its time is fixed; the whole map agrees with differences of the flow over both events."""
    system = pushed_ball()
    policy = Levels([0.3, 0.6], [1.0, 4.0, -2.0])

    def final(dx):
        x0 = np.array([1.0, 0.0]) + dx
        return hc.simulate(system, "air", x0, (0.0, 0.8), policy, rtol=1e-12, atol=1e-12)

    run = final(np.zeros(2))
    assert [e.guards for e in run.events] == [(), ("floor",), ()]
    lin = hc.linearize(system, run)
    for k in (0, 2):
        jump = lin.linear_jump(k)
        np.testing.assert_array_equal(jump.state, np.eye(2))
        np.testing.assert_array_equal(jump.input, np.zeros((2, 1)))
    h = 1e-5
    columns = [
        (final(h * e).final_state - final(-h * e).final_state) / (2.0 * h) for e in np.eye(2)
    ]
    # Central differences err by h^2 and by the tolerance over h.
    np.testing.assert_allclose(lin.state_transition, np.array(columns).T, atol=1e-6)


@pytest.mark.parametrize("time", [0.0, -1.0, float("nan")])
def test_a_change_must_be_in_the_future(time):
    class Stuck:
        def law(self, history):
            return lambda t, x: np.zeros(1)

        def next_change(self, history):
            return time

    with pytest.raises(InputError, match="next_change of the policy must be after"):
        hc.simulate(pushed_ball(), "air", [1.0, 0.0], (0.0, 0.5), Stuck())


def test_a_disturbance_keeps_the_changes_of_its_policy():
    policy = DisturbedPolicy(Levels([0.3], [0.0, 1.0]), lambda t, x: np.array([0.5]))
    run = hc.simulate(pushed_ball(), "air", [1.0, 0.0], (0.0, 0.4), policy)
    assert [e.time for e in run.events] == [0.3]
    np.testing.assert_allclose([run.input(0.1)[0], run.input(0.35)[0]], [0.5, 1.5], rtol=1e-14)


@settings(max_examples=25)
@given(
    st.lists(st.integers(1, 99), max_size=6, unique=True),
    st.lists(st.floats(-5.0, 5.0), min_size=7, max_size=7),
)
def test_any_sequence_of_levels_is_played_exactly(percents, levels):
    """Far above the floor: piecewise constant acceleration in closed form."""
    times = [p / 100.0 for p in sorted(percents)]
    system = pushed_ball(gravity=0.0)
    run = hc.simulate(system, "air", [50.0, 0.0], (0.0, 1.0), Levels(times, levels))
    assert [e.time for e in run.events] == times
    h, v = 50.0, 0.0
    for start, end, a in zip([0.0, *times], [*times, 1.0], levels, strict=False):
        h, v = h + v * (end - start) + 0.5 * a * (end - start) ** 2, v + a * (end - start)
    # Polynomials of degree two, at a height of 50 m: rounding only.
    np.testing.assert_allclose(run.final_state, [h, v], atol=1e-12)
