"""Which guards fire, and when: dips between samples, arming, and the ends of the time span."""

import numpy as np
import pytest
from hybrid.samples import ROUNDING, ball, impact_times, line

import hybridctl as hc
from hybridctl.base import errors
from hybridctl.hybrid.guard_series import FINE_GAPS, may_dip
from hybridctl.hybrid.series import FRACTIONS


def dip(centre, depth):
    """A guard (x - c)^2 - depth along x = t: positive but for 2 sqrt(depth) s around c."""
    return {"dip": lambda t, x, u: (x[0] - centre) ** 2 - depth}


@pytest.mark.parametrize("depth", [1e-2, 1e-4, 1e-8, 1e-12])
@pytest.mark.parametrize("span", [1.0, 100.0, 1e4])
def test_a_dip_between_samples_fires_at_its_first_crossing(depth, span):
    # a constant field lets the integrator take steps of any length: the dip is inside one
    for centre in span * np.linspace(0.113, 0.897, 25):
        half = np.sqrt(depth) * span
        traj = hc.simulate(line(dip(centre, half**2)), "go", [0.0], (0.0, span * 1.001))
        assert len(traj.events) == 1
        # the minimum is flat: time is resolved to rounding of g over its slope 2 half
        accuracy = 1e-15 * centre**2 / half + 1e-14 * centre
        assert abs(traj.events[0].time - (centre - half)) < 10 * accuracy


@pytest.mark.parametrize("number", range(40))
def test_the_first_of_several_crossings_in_a_step_fires(number):
    # a polynomial along x = t with three roots, the first two as close as 1e-5 of the span
    rng = np.random.default_rng(number)
    span = 10.0 ** rng.uniform(-4, 4)
    first = rng.uniform(0.1, 0.8)
    second = first + 10.0 ** rng.uniform(-5, -1)
    third = second + rng.uniform(0.04, 0.1)
    guard = lambda t, x, u: float(  # noqa: E731
        np.prod(np.array([first, second, third]) - x[0] / span)
    )
    (event,) = hc.simulate(line({"g": guard}), "go", [0.0], (0.0, span)).events
    # rounding 1e-16 of the guard over its slope, (2 - 1) (3 - 1)
    accuracy = 1e-13 + 1e-14 / ((second - first) * (third - first))
    assert abs(event.time / span - first) < accuracy


@pytest.mark.parametrize("centre", np.linspace(1e-4, 1.0, 20))
def test_a_dip_that_does_not_reach_zero_fires_nothing(centre):
    assert hc.simulate(line(dip(centre, -1e-9)), "go", [0.0], (0.0, 1.0)).events == ()


@pytest.mark.parametrize("max_step", [0.25, 0.1, 0.01])
@pytest.mark.parametrize("offset", [0.0, 1e-7, 1e-4, -1e-4, 1e-3])
def test_a_dip_across_a_step_boundary_fires(max_step, offset):
    centre = 0.5 + offset
    system = line(dip(centre, 1e-10))
    traj = hc.simulate(system, "go", [0.0], (0.0, 1.0), max_step=max_step)
    assert traj.events[0].time == pytest.approx(centre - 1e-5, abs=1e-10)  # 1e-16 / (2e-5), x10


def test_a_dip_right_after_the_start_fires():
    for centre in np.geomspace(2e-4, 1e-1, 20):
        traj = hc.simulate(line(dip(centre, 1e-8)), "go", [0.0], (0.0, 1e3))
        assert traj.events[0].time == pytest.approx(centre - 1e-4, abs=1e-11)


WIDEST_GAP = 0.2226  # of a step, between neighbours of its eight samples: cos(3 pi / 7)
WIDEST_OF_FOUR = 0.6235  # where four samples are all that is looked at: cos(2 pi / 7)


def test_the_widths_that_are_guaranteed_are_those_of_the_samples():
    assert np.diff(FRACTIONS).max() <= WIDEST_GAP <= np.diff(FRACTIONS).max() + 1e-4
    four = np.diff(FRACTIONS[[0, 2, 5, 7]]).max()
    assert four <= WIDEST_OF_FOUR <= four + 1e-4


@pytest.mark.parametrize(
    ("options", "part"),
    [({}, WIDEST_GAP), ({"method": "Radau"}, WIDEST_GAP), ({"held": True}, WIDEST_OF_FOUR)],
)
@pytest.mark.parametrize("number", range(12))
def test_a_dip_longer_than_the_samples_are_apart_is_found_wherever_it_is(options, part, number):
    """However sudden it is: nothing of it shows at any sample but those inside it."""
    rng = np.random.default_rng([13, number])
    max_step = 10.0 ** rng.uniform(-2.0, -0.5)
    width = part * max_step
    begin = rng.uniform(1e-4, 1.0 - width)
    guards = {"dip": lambda t, x, u: -1.0 if begin <= x[0] <= begin + width else 1.0}
    options = {"max_step": max_step, **options}
    # inputs held for a tenth of a step that accuracy would take are steps of four samples, too
    policy = hc.SampledPolicy(lambda t, x: np.zeros(0), max_step) if "held" in options else None
    options.pop("held", None)
    run = hc.simulate(line(guards), "go", [0.0], (0.0, 1.0), policy, **options)
    assert [event.time for event in run.guard_events] == [pytest.approx(begin, abs=1e-12)]


def test_a_fence_below_a_flight_of_one_step_is_seen_with_steps_that_show_it():
    """A fence 1e-2 s wide in a flight of 10 s: missed by one long step, found as limits.md says."""
    fence = {"fence": lambda t, x, u: 1.0 - 2.0 * float(abs(x[0] - 6.1803) < 5e-3)}
    assert not hc.simulate(
        line(fence), "go", [0.0], (0.0, 10.0), options=hc.SimulationOptions(first_step=10.0)
    ).events
    run = hc.simulate(line(fence), "go", [0.0], (0.0, 10.0), max_step=1e-2 / WIDEST_GAP)
    assert [event.time for event in run.events] == [pytest.approx(6.1753, abs=1e-12)]


@pytest.mark.parametrize("omega", [7.0, 50.0, 333.0])
def test_a_fast_wall_under_a_smooth_flow_is_resolved(omega):
    # the ball's parabola is one step of the integrator, the wall oscillates many times in it
    height = lambda t: 1.0 + 3.0 * t - 0.5 * 9.81 * t**2  # noqa: E731
    gap = lambda t: height(t) - 0.1 * np.sin(omega * t)  # noqa: E731
    air = hc.Mode("air", hc.VectorSpace(2), lambda t, x, u: np.array([x[1], -9.81]))
    end = hc.Mode("end", hc.VectorSpace(2), lambda t, x, u: np.zeros(2))
    wall = hc.Guard("wall", lambda t, x, u: x[0] - 0.1 * np.sin(omega * t))
    system = hc.HybridSystem([air, end], [hc.Transition("air", wall, hc.Reset.identity(), "end")])
    (event,) = hc.simulate(system, "air", [1.0, 3.0], (0.0, 2.0)).events
    before = np.linspace(0.0, event.time - 1e-9, 200_001)
    assert gap(before).min() > 0.0  # none was missed before it
    assert abs(gap(event.time)) < 1e-12


def test_a_guard_that_jumps_is_resolved_no_further_than_events_are_told_apart():
    """As forces of contacts do that all but stand still, at every sample for 1e-6 s."""
    calls = []

    def jagged(t, x, u):
        calls.append(t)
        return 0.1 + (1e12 * t) % 1.0

    run = hc.simulate(line({"jagged": jagged}), "go", [0.0], (0.0, 1e-6), event_window=1e-8)
    assert not run.events
    assert len(calls) < 3000  # 255 pieces with 8 samples: 128 of them are shorter than the window


def test_a_guard_that_is_rounding_everywhere_costs_little():
    """At any length: its steps would be halved twelve times, by some 60,000 samples each."""
    calls = []

    def rough(t, x, u):
        calls.append(t)
        return 1e-6 * (0.1 + (1e12 * t) % 1.0)

    run = hc.simulate(line({"rough": rough}), "go", [0.0], (0.0, 1.0))
    assert not run.events
    # of each step 8 samples, and 14 of each of 100 pieces; a step is ten times the one before
    assert len(calls) < 1500 * 8


@pytest.mark.parametrize("edge", np.linspace(0.1, 0.9, 9))
@pytest.mark.parametrize("low", [-1e-4, -1.0, -30.0])
def test_an_arc_ends_just_before_its_guard_jumps(edge, low):
    """The polynomial through samples of a jump is negative elsewhere than the guard."""
    guards = {"jump": lambda t, x, u: 1.0 if x[0] < edge else low}
    (event,) = hc.simulate(line(guards), "go", [0.0], (0.0, 1.0)).events
    assert event.time == pytest.approx(edge, abs=ROUNDING)
    assert event.state_before[0] < edge


@pytest.mark.parametrize("window", [0.0, 1e-8, 1e-3])
def test_a_guard_that_falls_after_an_event_is_not_refined(window):
    """Declared first, it falls on the same step 0.1 s after the guard that ends the arc."""
    calls = []

    def late(t, x, u):
        calls.append(t)
        return np.exp(0.6) - np.exp(x[0])

    guards = {"late": late, "early": lambda t, x, u: np.exp(0.5) - np.exp(x[0])}
    run = hc.simulate(line(guards), "go", [0.0], (0.0, 1.0), event_window=window)
    assert run.events[0].guards == ("early",)
    assert run.events[0].time == pytest.approx(0.5, abs=ROUNDING)
    assert max(calls) > 0.6  # the step goes on beyond its zero
    assert min(abs(t - 0.6) for t in calls) > 1e-6


@pytest.mark.parametrize("names", [("falls", "jumps"), ("jumps", "falls")])
@pytest.mark.parametrize(("delay", "together"), [(9e-4, True), (1.1e-3, False)])
def test_a_guard_that_jumps_within_the_window_of_another_fires_with_it(names, delay, together):
    """Its slopes before the jump lead nowhere near zero."""
    both = {
        "falls": lambda t, x, u: 0.5 - x[0],
        "jumps": lambda t, x, u: 1.0 if x[0] < 0.5 + delay else -1.0,
    }
    guards = {name: both[name] for name in names}
    event = hc.simulate(line(guards), "go", [0.0], (0.0, 1.0), event_window=1e-3).events[0]
    assert event.guards == (names if together else ("falls",))


@pytest.mark.parametrize("spacings", [20, 40, 100])
@pytest.mark.parametrize("number", range(5))
def test_a_step_of_few_floating_point_numbers_is_not_split(spacings, number):
    """The nodes of its parts would be the same numbers, and no window ends the splitting.

    The guard is noise until it jumps below zero. Time is resolved to 8 spacings and 1e-15 s; an
    arc of 20 numbers costs 600 evaluations if it is split, and some 20 if it is not.
    """
    spacing = np.spacing(8.0)
    values = np.random.default_rng([47, number]).uniform(1e-3, 1.0, spacings + 1)
    calls = []

    def jagged(t, x, u):
        calls.append(t)
        k = round((t - 8.0) / spacing)
        return float(values[k]) if k <= 0.7 * spacings else -1.0

    span = (8.0, 8.0 + spacings * spacing)
    (event,) = hc.simulate(line({"jagged": jagged}), "go", [0.0], span, event_window=0.0).events
    assert abs(event.time - 8.0 - 0.7 * spacings * spacing) <= 9.0 * spacing
    assert len(calls) < 100


def test_guards_on_both_sides_of_the_end_of_a_step_fire_together():
    """The second falls through zero 4e-9 s after the first, within the window, but a step later."""
    first = lambda t, x, u: 0.5 - 2e-9 - x[0]  # noqa: E731
    second = lambda t, x, u: 0.5 + 2e-9 - x[0]  # noqa: E731
    system = line({"a": first, "b": second})
    steps = {"options": hc.SimulationOptions(first_step=0.25), "max_step": 0.25}
    (event,) = hc.simulate(system, "go", [0.0], (0.0, 1.0), event_window=1e-8, **steps).events
    assert event.guards == ("a", "b")
    assert event.time == pytest.approx(0.5 - 2e-9, abs=ROUNDING)


@pytest.mark.parametrize("jump", np.linspace(0.455, 0.495, 9))
def test_a_guard_that_jumps_after_the_first_one_has_no_tangent(jump):
    """As the force of a contact that stops and slips back: it falls to a part, far above zero."""
    first = lambda t, x, u: 0.45 - x[0]  # noqa: E731
    force = lambda t, x, u: 400.0 if x[0] < jump else 0.4  # noqa: E731
    system = line({"stops": first, "opens": force})
    steps = {"options": hc.SimulationOptions(first_step=0.25), "max_step": 0.25}
    event = hc.simulate(system, "go", [0.0], (0.0, 1.0), event_window=0.4, **steps).events[0]
    assert event.guards == ("stops",)


@pytest.mark.parametrize("start", [0.0, 0.25, 0.3])
@pytest.mark.parametrize("end", np.linspace(0.35, 0.9, 6))
@pytest.mark.parametrize("jump", [0.0, -1e-4, -30.0])
def test_a_guard_that_is_held_at_zero_fires_where_it_leaves_zero(start, end, jump):
    """As the force of a contact at the border of its cone, until the cone holds it no longer.

    From inside, from where it comes to zero, or from zero: it falls on, or jumps.
    """

    def held(t, x, u):
        return jump + end - x[0] if x[0] > end else max(0.25 - x[0], 0.0)

    (event,) = hc.simulate(line({"held": held}), "go", [start], (0.0, 1.0)).events
    assert event.time == pytest.approx(end - start, abs=ROUNDING)
    assert event.state_before[0] <= end + ROUNDING


@pytest.mark.parametrize("bend", np.linspace(0.05, 0.95, 19))
def test_a_guard_that_comes_to_zero_and_is_held_there_does_not_fire(bend):
    """The polynomial through its samples swings below zero beside the bend."""
    guards = {"held": lambda t, x, u: max(bend - x[0], 0.0) ** 1.5}
    assert not hc.simulate(line(guards), "go", [0.0], (0.0, 1.0)).events
    guards = {"held": lambda t, x, u: max(bend - x[0], 0.0)}
    assert not hc.simulate(line(guards), "go", [0.0], (0.0, 1.0)).events


def test_a_guard_with_a_kink_fires_where_it_first_reaches_zero():
    guards = {"kink": lambda t, x, u: abs(x[0] - 0.7) - 1e-3}
    (event,) = hc.simulate(line(guards), "go", [0.0], (0.0, 1.0)).events
    assert event.time == pytest.approx(0.699, abs=ROUNDING)


@pytest.mark.parametrize("start", [0.0, 1e-17, -1e-17, 1e-9, -1e-9])
def test_start_on_the_surface_moving_inwards_does_not_fire(start):
    guards = {"wall": lambda t, x, u: x[0]}
    assert hc.simulate(line(guards), "go", [start], (0.0, 1.0)).events == ()


@pytest.mark.parametrize("start", [0.0, 1e-17, -1e-17, 1e-9, -1e-9])
def test_start_on_the_surface_moving_outwards_fires_at_once(start):
    guards = {"wall": lambda t, x, u: x[0]}
    traj = hc.simulate(line(guards, speed=-1.0), "go", [start], (0.0, 1.0))
    (event,) = traj.events
    assert event.time == pytest.approx(max(start, 0.0), abs=ROUNDING)
    assert traj.final_mode == "stop"


@pytest.mark.parametrize("max_step", [np.inf, 0.05, 0.02, 0.001])
def test_a_start_within_the_tolerance_fires_where_it_falls_through_zero(max_step):
    """So slowly that it is outside the tolerance, 1e-8, much later, in whatever step that is."""
    mode = hc.Mode("fall", hc.VectorSpace(1), lambda t, x, u: np.array([-1e-7]))
    up = hc.Reset(lambda t, x, u: np.ones(1))
    floor = hc.Guard("floor", lambda t, x, u: x[0])
    system = hc.HybridSystem([mode], [hc.Transition("fall", floor, up, "fall")])
    run = hc.simulate(system, "fall", [5e-9], (0.0, 1.0), max_step=max_step)
    # the state is 1e-16 of 1e-8 off, by rounding
    assert [event.time for event in run.events] == pytest.approx([0.05], abs=1e-12)


def test_reset_onto_the_surface_of_another_guard_moving_inwards_does_not_fire_it():
    space = hc.VectorSpace(1)
    modes = [
        hc.Mode("down", space, lambda t, x, u: -np.ones(1)),
        hc.Mode("up", space, lambda t, x, u: np.ones(1)),
    ]
    edges = [
        hc.Transition("down", hc.Guard("low", lambda t, x, u: x[0]), hc.Reset.identity(), "up"),
        hc.Transition("up", hc.Guard("lower", lambda t, x, u: x[0]), hc.Reset.identity(), "down"),
        hc.Transition(
            "up", hc.Guard("high", lambda t, x, u: 1 - x[0]), hc.Reset.identity(), "down"
        ),
    ]
    traj = hc.simulate(hc.HybridSystem(modes, edges), "down", [0.5], (0.0, 10.0))
    assert [e.guards[0] for e in traj.events] == ["low", "high"] * 5
    # unit speeds: events at 0.5, 1.5, ...; one rounding of 1e-15 per event
    np.testing.assert_allclose([e.time for e in traj.events], 0.5 + np.arange(10), atol=1e-13)


def test_reset_onto_a_surface_moving_outwards_fires_at_once():
    space = hc.VectorSpace(1)
    keys = ["a", "b", "c"]
    modes = [hc.Mode(key, space, lambda t, x, u: -np.ones(1)) for key in keys]
    guard = hc.Guard("low", lambda t, x, u: x[0])
    system = hc.HybridSystem(
        modes,
        [
            hc.Transition("a", guard, hc.Reset.identity(), "b"),
            hc.Transition("b", guard, hc.Reset.identity(), "c"),
        ],
    )
    traj = hc.simulate(system, "a", [0.5], (0.0, 1.0))
    assert [e.time for e in traj.events] == pytest.approx([0.5, 0.5], abs=ROUNDING)
    assert traj.arcs[1].start == traj.arcs[1].end
    np.testing.assert_array_equal(traj.arcs[1](traj.events[0].time), traj.events[0].state_after)
    time = traj.events[0].time
    assert (traj.arc(time, "left").mode, traj.arc(time).mode) == ("a", "c")


def test_a_bounce_lower_than_the_guard_tolerance_is_a_bounce():
    # peak 5e-10 m: the guard is never armed, and still fires where the parabola comes down
    speed = 1e-4
    traj = hc.simulate(ball(1.0), "air", [0.0, speed], (0.0, 1e-3))
    flight = 2.0 * speed / 9.81
    times = [e.time for e in traj.events[:40]]
    np.testing.assert_allclose(times, flight * np.arange(1, 41), rtol=1e-9)


@pytest.mark.parametrize("start", [0.0, 3.0, -7.0])
def test_an_event_just_inside_the_time_span_fires_and_one_just_outside_does_not(start):
    guards = {"wall": lambda t, x, u: 1.0 - x[0]}
    for margin, count in ((1e-12, 1), (-1e-12, 0)):
        traj = hc.simulate(line(guards), "go", [0.0], (start, start + 1.0 + margin))
        assert len(traj.events) == count


def test_a_guard_that_is_exactly_zero_at_the_end_may_only_fire_at_the_end():
    traj = hc.simulate(line({"wall": lambda t, x, u: 1.0 - x[0]}), "go", [0.0], (0.0, 1.0))
    assert [e.time for e in traj.events] in ([], [pytest.approx(1.0, abs=ROUNDING)])
    assert traj.end == 1.0
    assert traj.final_state[0] == pytest.approx(1.0, abs=ROUNDING)


def test_an_event_at_the_end_leaves_an_arc_of_length_zero():
    guards = {"wall": lambda t, x, u: np.nextafter(1.0, 0) - x[0]}
    traj = hc.simulate(line(guards), "go", [0.0], (0.0, 1.0))
    assert len(traj.arcs) == len(traj.events) + 1
    assert traj.arcs[-1].end == 1.0


def test_guards_that_see_the_input_fire_with_it():
    guards = {"force": lambda t, x, u: u[0]}
    traj = hc.simulate(
        line(guards, nu=1), "go", [0.0], (0.0, 2.0), lambda t, x: np.array([np.cos(x[0])])
    )
    assert traj.events[0].time == pytest.approx(np.pi / 2, abs=2 * ROUNDING)  # x up to 2
    assert abs(traj.events[0].input_before[0]) < 1e-9  # the record is a polynomial of degree 7


def test_state_dimension_may_change_with_the_mode():
    one, two = hc.VectorSpace(1), hc.VectorSpace(2)
    system = hc.HybridSystem(
        [
            hc.Mode("line", one, lambda t, x, u: np.ones(1)),
            hc.Mode("plane", two, lambda t, x, u: np.array([0.0, -1.0])),
        ],
        [
            hc.Transition(
                "line",
                hc.Guard("edge", lambda t, x, u: 1.0 - x[0]),
                hc.Reset(lambda t, x, u: np.array([x[0], 1.0])),
                "plane",
            ),
            hc.Transition(
                "plane",
                hc.Guard("ground", lambda t, x, u: x[1]),
                hc.Reset(lambda t, x, u: x[:1] - 1.0),
                "line",
            ),
        ],
    )
    traj = hc.simulate(system, "line", [0.0], (0.0, 4.5))
    assert [len(traj(t)) for t in (0.5, 1.5, 2.5, 3.5, 4.5)] == [1, 2, 1, 2, 1]
    np.testing.assert_allclose([e.time for e in traj.events], [1, 2, 3, 4], atol=1e-14)
    time = traj.events[0].time
    assert (traj(time, "left").shape, traj(time, "right").shape) == ((1,), (2,))


def test_zeno_of_two_modes_that_send_each_other_back_is_an_error():
    space = hc.VectorSpace(1)
    modes = [
        hc.Mode("left", space, lambda t, x, u: np.ones(1)),
        hc.Mode("right", space, lambda t, x, u: -np.ones(1)),
    ]
    edges = [
        hc.Transition("left", hc.Guard("to", lambda t, x, u: -x[0]), hc.Reset.identity(), "right"),
        hc.Transition("right", hc.Guard("fro", lambda t, x, u: x[0]), hc.Reset.identity(), "left"),
    ]
    with pytest.raises(errors.ZenoError):
        hc.simulate(hc.HybridSystem(modes, edges), "left", [-1.0], (0.0, 2.0))


@pytest.mark.parametrize(("moved", "each", "count"), [(0.0, 0, 3), (1.0, 1, 10)])
def test_arcs_that_end_where_they_begin_are_looked_at_closely_once(moved, each, count):
    """x' = -1 from x = 0, again and again: the first takes three steps, the same one again none.

    Three events tell that nothing will change, ten that what changes has no end.
    """
    fall = hc.Mode("fall", hc.VectorSpace(2), lambda t, x, u: np.array([-1.0, 0.0]))
    down = hc.Guard("down", lambda t, x, u: x[0])
    back = hc.Reset(lambda t, x, u: np.array([0.0, x[1] + moved]))
    system = hc.HybridSystem([fall], [hc.Transition("fall", down, back, "fall")])
    ends = []
    with pytest.raises(errors.ZenoError, match=f"{count} events") as raised:
        hc.simulate(system, "fall", [0.5, 0.0], (0.0, 1.0), progress=ends.append)
    # the step on which it falls through zero, and those of the arcs that end at once
    assert len([t for t in ends if t > 0.5]) == 1 + 3 + (count - 2) * each
    assert len(raised.value.trajectory.arcs) == count


def test_a_reset_out_of_the_next_mode_fires_there_at_once():
    space = hc.VectorSpace(1)
    modes = [hc.Mode(key, space, lambda t, x, u: np.ones(1)) for key in "abc"]
    edges = [
        hc.Transition(
            "a", hc.Guard("a", lambda t, x, u: 1.0 - x[0]), hc.Reset(lambda t, x, u: x - 2.0), "b"
        ),
        hc.Transition("b", hc.Guard("b", lambda t, x, u: x[0]), hc.Reset.identity(), "c"),
    ]
    traj = hc.simulate(hc.HybridSystem(modes, edges), "a", [0.0], (0.0, 5.0))
    assert [arc.mode for arc in traj.arcs] == ["a", "b", "c"]
    assert traj.events[1].time == traj.events[0].time


@pytest.mark.parametrize("tolerance", [1e-14, 1e-10, 1e-4])
def test_the_guard_tolerance_moves_no_event_of_a_ball(tolerance):
    traj = hc.simulate(
        ball(0.9),
        "air",
        [1.0, 0.0],
        (0.0, 4.0),
        options=hc.SimulationOptions(guard_tolerance=tolerance),
    )
    np.testing.assert_allclose(
        [e.time for e in traj.events], impact_times(1.0, 0.9, 6), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("lowest", np.random.default_rng(0).uniform(-0.99, 0.99, 20))
def test_a_dip_is_looked_for_where_a_parabola_has_it(lowest):
    """It is convex, so that no other gap between samples can hold a fall through zero."""
    nodes = np.insert(np.cumsum(FINE_GAPS), 0, 0.0) - 1.0
    found = may_dip((nodes - lowest) ** 2, 2.0 * (nodes - lowest), 1e-12)
    assert np.flatnonzero(found).tolist() == [int(np.searchsorted(nodes, lowest)) - 1]


@pytest.mark.parametrize("start", [3e-4, 1e-3 / 3.0, 1e-17])
def test_a_guard_that_is_known_to_rounding_is_searched_no_further(start):
    """Newton's steps stall where the guard is rounding, 5e-17 m or 5e-14 s, and that is the event.

    Eight samples, eight of them again at the end, and two or three steps; bisection takes more.
    """
    asked = []

    def wall(t, x, u):
        asked.append(t)
        return x[0] + 5e-17 * np.cos(1e17 * x[0] + 1e6 * t)

    run = hc.simulate(line({"wall": wall}, speed=-1e-3), "go", [start], (0.0, 1.0))
    assert run.events[0].time == pytest.approx(start / 1e-3, abs=3e-13)
    assert len(asked) <= 22
