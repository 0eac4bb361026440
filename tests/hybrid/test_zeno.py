"""Events that accumulate: predicted, and come to rest at."""

import logging

import numpy as np
import pytest
from hybridctl.robots import ball, block
from hypothesis import given
from hypothesis import strategies as st

import hybridctl as hc
from hybridctl.base.errors import InputError, NearGrazingWarning, ZenoError
from hybridctl.hybrid.mode import Edge, GuardSet, Outgoing
from hybridctl.hybrid.zeno import (
    SequenceEvent,
    are_within,
    find_accumulations,
    is_far_from_end,
    predict_accumulation,
    select_crowd,
)

G = 9.81


@given(
    ratio=st.floats(0.05, 0.95), first=st.floats(1e-3, 10.0), period=st.integers(1, 4),
    start=st.floats(-5.0, 5.0),
)  # fmt: skip
def test_a_geometric_sequence_ends_at_its_limit(ratio, first, period, start):
    """Windows shrink by ratio^period; the limit is t_0 + D / (1 - r)."""
    names = [f"guard {i}" for i in range(period)]
    times = start + first * np.concatenate([[0.0], np.cumsum(ratio ** np.arange(3 * period))])
    events = [
        SequenceEvent(t, (names[k % period],), ratio**k) for k, t in enumerate(times.tolist())
    ]
    end = predict_accumulation(events)
    assert end is not None
    jumps_left = ratio ** (3 * period) / (1.0 - ratio)
    assert end.remaining_jumps == pytest.approx(jumps_left, rel=1e-9)
    # Differences of times lose eps |t| / D of their digits, which the ratio passes on.
    last = first * ratio ** (3 * period - 1)
    tolerance = 1e-13 * (abs(start) + first) / (1.0 - ratio) ** 2 * max(1.0, first / last * 1e-2)
    assert end.time == pytest.approx(start + first / (1.0 - ratio), abs=max(tolerance, 1e-9))
    assert set(end.guards) == set(names)


def test_events_that_change_nothing_in_between_are_not_what_accumulates():
    """Between bounces a joint with friction turns round, which sets a speed of zero to zero."""
    times = np.cumsum([0.0, *(0.5 ** np.arange(11))]).tolist()
    events = [
        SequenceEvent(t, ("turns",) if k % 2 else ("closes",), 1e-17 if k % 2 else 0.5**k)
        for k, t in enumerate(times)
    ]
    end = predict_accumulation(events)
    assert end is not None
    assert end.guards == ("closes",)
    assert end.time == pytest.approx(2.0)


def test_a_last_event_that_comes_for_the_first_time_takes_part():
    """Its jump is to come, so that none is known of it; the arc before it has its guard alone."""
    events = [SequenceEvent(1e-12 * k, (f"contact {k}",), 1.0) for k in range(9)]
    (end,) = find_accumulations([*events, SequenceEvent(1e-11, ("late",))], 1e-3, lambda: 1.0)
    assert "late" in end.guards
    turned = SequenceEvent(5e-13, ("turns",), 0.0)
    known = [events[0], turned, *events[1:], SequenceEvent(1e-11, ("turns",))]
    (end,) = find_accumulations(known, 1e-3, lambda: 1.0)
    assert "turns" not in end.guards


def test_growing_or_irregular_sequences_have_no_end():
    same = [SequenceEvent(t, ("a",)) for t in (0.0, 1.0, 2.0, 3.0)]
    growing = [SequenceEvent(t, ("a",)) for t in (0.0, 1.0, 3.0, 7.0)]
    irregular = [SequenceEvent(t, ("a",)) for t in (0.0, 1.0, 1.9, 2.0)]
    mixed = [SequenceEvent(t, (g,)) for t, g in zip((0.0, 1.0, 1.5, 1.75), "abca", strict=True)]
    assert all(
        predict_accumulation(events) is None
        for events in (same, growing, irregular, mixed, same[:3])
    )
    assert not are_within(same, 3, 1.0)
    assert are_within(same, 3, 2.0)


@pytest.mark.parametrize(("changes", "apart", "ends"), [
    ((), 0.0, True), ((), 1e-12, True), ((), 1e-10, False), ((0,), 0.0, True), ((1,), 0.0, False),
    ((2,), 0.0, False), ((3,), 0.0, True),
])  # fmt: skip
def test_three_events_at_once_end_where_the_first_two_change_nothing(changes, apart, ends):
    """Of four, at the times of three; what the last one does is not known yet."""
    events = [SequenceEvent(1.0 + k * apart, ("a",), 0.0, k not in changes) for k in range(4)]
    found = list(find_accumulations(events, 1e-13, lambda: 1.0))
    assert len(select_crowd(events, 1e-13)) == (3 if ends else 0)
    assert [end.time for end in found] == ([events[-1].time] if ends else [])
    assert all(end.remaining_jumps is None and end.window_start == events[1].time for end in found)


def halved(jumps, guards="aaaa"):
    """Events whose intervals halve, with these jumps; that of the last one is yet to come."""
    each = zip((0.0, 1.0, 1.5, 1.75), guards, (*jumps, 0.0), strict=True)
    return [SequenceEvent(t, (name,), jump) for t, name, jump in each]


def test_intervals_that_shrink_are_no_evidence_without_jumps_that_do():
    assert predict_accumulation(halved((1.0, 0.5, 0.25))).remaining_jumps == pytest.approx(0.25)
    assert predict_accumulation(halved((0.0, 0.0, 0.0))).remaining_jumps == 0.0
    for jumps in [(1.0, 1.0, 1.0), (1.0, 2.0, 4.0), (1.0, 0.9, 0.81), (0.0, 0.5, 0.25)]:
        assert predict_accumulation(halved(jumps)) is None


def test_rest_waits_until_jumps_to_come_are_what_the_flow_makes_meanwhile():
    """Windows end 0.25 s from now, 0.5 s after the last began; jumps to come add up to 0.25.

    A flow of 1/4 makes them in twice the window and the rest, one of 0.1 in a horizon of 2.5 s.
    """
    events = halved((1.0, 0.5, 0.25))
    (end,) = find_accumulations(events, horizon=0.25, compute_speed=lambda: 0.25)
    assert end == predict_accumulation(events)
    assert list(find_accumulations(events, horizon=2.5, compute_speed=lambda: 0.1)) == [end]
    assert not list(find_accumulations(events, horizon=0.25, compute_speed=lambda: 0.2499))
    assert not list(find_accumulations(events, horizon=2.5, compute_speed=lambda: 0.0999))
    assert not list(find_accumulations(events, horizon=0.2499, compute_speed=lambda: 10.0))


def test_a_ball_rests_as_soon_as_its_bounces_end_within_the_horizon():
    """Speeds v e^k: jumps to come are what gravity makes from the last window's begin on."""
    for e in (0.1, 0.5, 0.9):
        after = e ** np.arange(1, 6)  # m/s
        times = np.concatenate(([0.0], np.cumsum(2.0 * after[:-1] / G)))
        jumps = after * (1.0 + 1.0 / e)
        events = [SequenceEvent(*event) for event in zip(times, [("a",)] * 5, jumps, strict=True)]
        ahead = 2.0 * after[-1] / e * e / (1.0 - e) / G
        assert (
            len(list(find_accumulations(events, horizon=1.01 * ahead, compute_speed=lambda: G)))
            == 1
        )


def test_events_that_crowd_while_they_shrink_do_not_rest_sooner():
    """Sixteen of one ratio within the horizon, the last one's jump to come: their limit counts."""
    times = 0.58 ** np.arange(16)
    events = [SequenceEvent(1.0 - t, ("a",), t) for t in times.tolist()]
    left = predict_accumulation(events).remaining_jumps
    assert left == pytest.approx(0.58**15 / 0.42, rel=1e-9)
    assert not list(find_accumulations(events, horizon=1.0, compute_speed=lambda: 0.99 * left))
    assert (
        next(
            find_accumulations(events, horizon=1.0, compute_speed=lambda: 1.01 * left)
        ).remaining_jumps
        == left
    )


@given(st.lists(st.floats(1e-6, 1.0), min_size=4, max_size=16), st.floats(1e-9, 0.1))
def test_no_event_that_is_far_from_the_end_by_times_alone_rests(windows, horizon):
    """Whatever the windows are: that of the last event bounds how soon they end."""
    times = np.cumsum(sorted(windows, reverse=True))
    events = [SequenceEvent(t, ("a",), 2.0 - t) for t in times.tolist()]
    if is_far_from_end(times[0], times[-2], times[-1], horizon):
        assert not list(find_accumulations(events, horizon, lambda: np.inf))
        assert not select_crowd(events, horizon)


def test_guards_that_do_not_repeat_shrink_by_the_five():
    """As of several contacts that bounce at once."""
    rng = np.random.default_rng(3)
    times = 2.0 - 0.9 ** np.arange(16)
    events = [SequenceEvent(t, (str(rng.integers(9)),), 2.0 - t) for t in times.tolist()]
    assert predict_accumulation(events).time == pytest.approx(2.0, rel=1e-9)
    assert predict_accumulation(events[:15]) is None


def test_water_that_is_poured_into_two_tanks_in_turn_rests_when_both_are_empty():
    """Each loses 1, and one of them gains 1.5: both are empty after (1 + 1) / (1 + 1 - 1.5) s.

    Nothing jumps, and levels fall with the same rates until the end.
    """
    space, other = hc.VectorSpace(2), {"left": "right", "right": "left"}
    rates = {"left": np.array([0.5, -1.0]), "right": np.array([-1.0, 0.5]), "dry": np.zeros(2)}
    levels = {"left": 1, "right": 0}  # of the tank that is not filled
    dry = Edge(hc.Reset(lambda t, x, u: np.zeros(2)), "dry")

    def outgoing(key):
        if key == "dry":
            return Outgoing(GuardSet.of([]), lambda fired: None)
        guard = hc.Guard(f"{other[key]} is empty", lambda t, x, u: x[levels[key]])
        turn = Edge(hc.Reset.identity(), other[key])
        return Outgoing(GuardSet.of([guard]), lambda fired: turn, lambda fired: dry)

    def mode(key):
        return hc.Mode(key, space, lambda t, x, u: rates[key])

    system = hc.HybridSystem(mode, outgoing)
    run = hc.simulate(system, "left", [1.0, 1.0], (0.0, 5.0), on_zeno="rest")
    (rest,) = [event for event in run.events if event.accumulation is not None]
    assert rest.accumulation == pytest.approx(4.0, abs=1e-9)
    assert run.final_mode == "dry"


@pytest.mark.parametrize("e", [0.95, pytest.param(0.99, marks=pytest.mark.slow)])
def test_a_ball_of_hardly_any_loss_comes_to_rest_too(e):
    """Bounces lower than 1e-8 m, the tolerance of guards, are hardly told from rest.

    They take 2 sqrt(2e-8 m / g) / (1 - e). Of e = 0.99 no single interval shrinks enough, but five
    together do.
    """
    p = ball.BallParameters(slope=0.0, restitution=e)
    fall, start = 0.01, [0.0, 0.5 * G * 0.01**2, 0.0, 0.0]
    end = fall * (1.0 + 2.0 * e / (1.0 - e))
    run = hc.simulate(
        ball.system(p), ("open",), start, (0.0, 1.1 * end), on_zeno="rest", max_events=2000
    )
    (rest,) = [event for event in run.events if event.accumulation is not None]
    assert rest.accumulation == pytest.approx(end, abs=2.0 * np.sqrt(2e-8 / G) / (1.0 - e))
    assert run.final_mode == ("closed",)


@pytest.mark.parametrize("e", [0.1, 0.5, 0.8])
def test_a_ball_comes_to_rest_at_the_predicted_time(e):
    """t = v/g (1 + 2 e / (1 - e)) after a fall of v/g; flight is exact, so rounding is left."""
    p = ball.BallParameters(slope=0.0, restitution=e)
    run = hc.simulate(ball.system(p), ("open",), [0, 1.0, 0, 0], (0.0, 6.0), on_zeno="rest")
    fall = np.sqrt(2.0 / G)
    (rest,) = [event for event in run.events if event.accumulation is not None]
    assert rest.accumulation == pytest.approx(fall * (1.0 + 2.0 * e / (1.0 - e)), abs=1e-8)
    assert abs(rest.time - rest.accumulation) <= 1e-5
    assert run.final_mode == ("closed",)
    np.testing.assert_allclose(run.final_state, np.zeros(4), atol=1e-8)


def test_bounces_that_accumulate_are_an_error_unless_told_to_rest():
    """At e = 0.8 ten bounces in a row are closer than 1e-9 s while they still part at 5e-9 m/s."""
    p = ball.BallParameters(slope=0.0, restitution=0.8)
    with pytest.raises(ZenoError, match='accumulate there; with on_zeno="rest" they may come'):
        hc.simulate(ball.system(p), ("open",), [0, 1.0, 0, 0], (0.0, 6.0), on_zeno="raise")


def test_a_robot_comes_to_rest_by_default_and_says_what_was_assumed(caplog):
    system = ball.system(ball.BallParameters(slope=0.0, restitution=0.8))
    with caplog.at_level(logging.INFO, logger="hybridctl"):
        run = hc.simulate(system, ("open",), [0, 1.0, 0, 0], (0.0, 6.0))
    assert run.final_mode == ("closed",)
    (rest,) = [event for event in run.events if event.accumulation is not None]
    fall = np.sqrt(2.0 / G)
    assert rest.accumulation == pytest.approx(9.0 * fall, abs=1e-8)  # (1 + e) / (1 - e) of it
    assert rest.rest == f"assumed to rest: events accumulate at {rest.accumulation:.9g} s"
    assert rest.rest in repr(rest)
    assert rest.rest in rest._repr_html_()
    assert all(event.rest is None for event in run.events if event is not rest)
    (line,) = caplog.records
    assert line.levelno == logging.INFO
    assert f"rest is assumed at t = {rest.time:.9g} s" in line.message
    message = "rest is assumed there, and has no derivative"
    # the last bounces before are so slow that they hardly have a derivative
    with pytest.raises(InputError, match=message), pytest.warns(NearGrazingWarning):
        hc.linearize(system, run)


def test_without_a_rest_that_it_states_a_system_raises_by_default():
    air = hc.Mode("air", hc.VectorSpace(2), lambda t, x, u: np.array([x[1], -G]))
    floor = hc.Guard("floor", lambda t, x, u: x[0])
    bounce = hc.Reset(lambda t, x, u: np.array([x[0], -0.5 * x[1]]))
    system = hc.HybridSystem([air], [hc.Transition("air", floor, bounce, "air")])
    with pytest.raises(ZenoError, match=r"give their Transition a rest, or .*ZenoRelaxation"):
        hc.simulate(system, "air", [1.0, 0.0], (0.0, 3.0))


def test_a_rocking_block_comes_to_rest_on_both_corners():
    """Alternating impacts of period two; their times are those of Housner's ratio."""
    p = block.ROCKING
    x0 = [0.0, 0.0, 0.03, 0.0, 0.0, 0.0]
    corner = np.array([0.5 * p.width, -0.5 * p.height])
    c, s = np.cos(x0[2]), np.sin(x0[2])
    x0[1] = -(-s * corner[0] + c * corner[1])
    x0[0] = -(c * corner[0] + s * corner[1])
    run = hc.simulate(
        block.system(p), ("open", "stick"), x0, (0.0, 6.0), on_zeno=hc.ZenoPolicy(horizon=1e-4)
    )
    assert run.final_mode == ("stick", "stick")
    assert abs(run.final_state[2]) < 1e-7
    np.testing.assert_allclose(run.final_state[3:], np.zeros(3), atol=1e-6)


def test_a_listed_system_says_where_it_rests():
    space = hc.VectorSpace(2)
    air = hc.Mode("air", space, lambda t, x, u: np.array([x[1], -G]))
    ground = hc.Mode("ground", space, lambda t, x, u: np.zeros(2))
    floor = hc.Guard("floor", lambda t, x, u: x[0])
    bounce = hc.Reset(lambda t, x, u: np.array([x[0], -0.5 * x[1]]))
    stay = Edge(hc.Reset(lambda t, x, u: np.zeros(2)), "ground")
    system = hc.HybridSystem([air, ground], [hc.Transition("air", floor, bounce, "air", rest=stay)])
    run = hc.simulate(system, "air", [1.0, 0.0], (0.0, 3.0), on_zeno="rest")
    assert run.final_mode == "ground"
    assert run.events[-1].accumulation == pytest.approx(3.0 * np.sqrt(2.0 / G), abs=1e-8)
    without = hc.HybridSystem([air, ground], [hc.Transition("air", floor, bounce, "air")])
    with pytest.raises(ZenoError):
        hc.simulate(without, "air", [1.0, 0.0], (0.0, 3.0), on_zeno="rest")
    with pytest.raises(InputError, match="on_zeno 'stop' is unknown"):
        hc.simulate(system, "air", [1.0, 0.0], (0.0, 3.0), on_zeno="stop")


@pytest.mark.parametrize("c", [0.5, 0.9, 0.95])
def test_the_last_bounce_is_that_of_the_series_when_the_horizon_is_short(c):
    """At (1 + c) / (1 - c) of the first fall. Ten bounces fit into the horizon before it ends."""
    system, first = ball.system(ball.BallParameters(slope=0.0, restitution=c)), np.sqrt(2.0 / G)
    last = (1.0 + c) / (1.0 - c) * first
    options = {"on_zeno": hc.ZenoPolicy(horizon=1e-7)}
    run = hc.simulate(system, ("open",), [0, 1.0, 0, 0], (0.0, last + 0.1), **options)
    (rest,) = [event for event in run.events if event.accumulation is not None]
    # Integration to 1e-9 of heights up to 1 m, over falls of some 0.4 s each at the start.
    assert rest.accumulation == pytest.approx(last, abs=1e-8)


def test_the_accumulation_survives_saving(tmp_path):
    p = ball.BallParameters(slope=0.0, restitution=0.3)
    system = ball.system(p)
    run = hc.simulate(system, ("open",), [0, 1.0, 0, 0], (0.0, 2.0), on_zeno="rest")
    run.save(tmp_path / "run.npz")
    again = hc.HybridTrajectory.load(tmp_path / "run.npz", system)
    assert [e.accumulation for e in again.events] == [e.accumulation for e in run.events]
