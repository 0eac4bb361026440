"""Reference spreading on a ball that hits two floors at once: everything is in closed form."""

from dataclasses import replace

import numpy as np
import pytest
from control.samples import SPACE, G, ball_on_two_floors, bouncing_ball
from hybridctl.experiments.rrr_door.reference import Design, build
from hybridctl.robots import rrr_door

import hybridctl as hc
from hybridctl.base.errors import InputError, ReferenceRangeError
from hybridctl.control.feasibility import feasibility
from hybridctl.control.phase_reset import PhaseReset
from hybridctl.control.reference import list_firing_orders
from hybridctl.control.spreading import ClockTracking, get_nominal_arc, locate
from hybridctl.control.tracking_error import TrackingError, tracking_error
from hybridctl.hybrid.mode import GuardJacobian
from hybridctl.hybrid.policy import History


@pytest.fixture(scope="module")
def system():
    return ball_on_two_floors()


@pytest.fixture(scope="module")
def reference(system):
    nominal = hc.simulate(system, "00", [1.0, 0.0], (0.0, 0.8))
    return hc.extend(system, nominal, before=0.1, after=0.1)


def test_extended_arcs_follow_their_own_field(reference):
    """Free fall continues through the floor, and the slowed fall back to before it."""
    impact = np.sqrt(2.0 / G)
    ante, post = reference.arcs
    for t in (impact + 0.05, impact + 0.1):
        # The flow is a parabola, which the integrator and its polynomials carry exactly.
        np.testing.assert_allclose(ante(t), [1.0 - G * t**2 / 2, -G * t], atol=1e-12)
    v = 0.64 * -G * impact
    for dt in (-0.1, -0.02, 0.1):
        expected = [v * dt - G * dt**2 / 2, v - G * dt]
        np.testing.assert_allclose(post(impact + dt), expected, atol=1e-12)
    assert ante.start == 0.0
    assert post.start == pytest.approx(impact - 0.1, abs=1e-12)
    assert post.end == 0.8


def test_phantom_arcs_pass_through_the_nominal_event(reference):
    impact = np.sqrt(2.0 / G)
    assert set(reference.phantoms) == {(0, frozenset("a")), (0, frozenset("b"))}
    for phantom in reference.phantoms.values():
        np.testing.assert_allclose(phantom.arc(impact), [0.0, 0.8 * -G * impact], atol=1e-12)
        assert phantom.arc.start == pytest.approx(impact - 0.1)


def test_phantom_feedforward_pushes_or_withdraws(system):
    """The input of phantom arcs is that of the arc before the event, or of the one after it."""

    class Two:
        def law(self, history):
            level = 1.0 if history.events else 3.0
            return lambda t, x: np.array([level])

    nominal = hc.simulate(system, "00", [1.0, 0.0], (0.0, 1.0), Two())
    for phase, level in (("pushing", 3.0), ("withdrawing", 1.0)):
        reference = hc.extend(system, nominal, before=0.05, after=0.05, phantom=phase)
        for phantom in reference.phantoms.values():
            u = phantom.arc.input(phantom.arc.start + 0.02)
            np.testing.assert_allclose(u, [level], atol=1e-12)


def test_firings_are_all_orders(system, reference):
    event = reference.events[0]
    found = {one.order for one in list_firing_orders(system, event)}
    assert found == {("a",), ("b",), ("a", "b"), ("b", "a")}


def test_a_reference_tracked_from_its_start_is_reproduced(system, reference):
    """On the reference the error is zero, so the input is the feedforward and the run the same."""
    policy = hc.ReferenceSpreading(reference, [[[4.0, 2.0]], [[4.0, 2.0]]])
    run = hc.simulate(system, "00", reference.nominal(0.0), (0.0, 0.8), policy)
    error = tracking_error(reference, run, "spread")
    # Both runs hold the flow's tolerance of 1e-9, over less than ten steps each.
    assert error.peak <= 1e-8
    assert len(run.events) == 1


def test_the_feedback_drives_the_state_to_the_reference(system, reference):
    """u = mu + K (alpha - x): with the opposite sign the error would grow."""
    policy = hc.ReferenceSpreading(reference, [[[100.0, 20.0]], [[100.0, 20.0]]])
    run = hc.simulate(system, "00", [1.01, 0.0], (0.0, 0.4), policy)
    error = tracking_error(reference, run, "spread")
    # Critically damped with rate 10 1/s: (1 + 10 t) exp(-10 t) of the initial 0.01 m.
    expected = 0.01 * 5.0 * np.exp(-4.0)
    assert error.errors[-1, 0] == pytest.approx(expected, rel=1e-6)


def test_the_spread_error_does_not_peak_and_the_conventional_one_does(system, reference):
    """A ball released 10 mm higher lands late; on the clock its velocity is off by the jump."""
    run = hc.simulate(
        system,
        "00",
        [1.01, 0.0],
        (0.0, 0.8),
        hc.ReferenceSpreading(reference, [np.zeros((1, 2))] * 2),
    )
    spread = tracking_error(reference, run, "spread")
    clock = tracking_error(reference, run, "conventional")
    jump = (1.0 - 0.64) * np.sqrt(2.0 * G)
    assert clock.peak >= jump
    assert spread.peak <= 0.1
    assert spread.rms < 0.2 * clock.rms


def test_micro_and_macro_events_are_counted():
    """With the floors 5 mm apart the event splits; the phantom arc is followed in between."""
    plant = ball_on_two_floors()
    nominal = hc.simulate(plant, "00", [1.0, 0.0], (0.0, 0.8))
    reference = hc.extend(plant, nominal, before=0.1, after=0.1)
    policy = hc.ReferenceSpreading(reference, [np.zeros((1, 2))] * 2)
    split = hc.simulate(ball_on_two_floors(gap=0.005), "00", [1.0, 0.0], (0.0, 0.6), policy)
    assert [event.guards for event in split.events] == [("a",), ("b",)]
    stages = [locate(reference, split.events[:k]) for k in range(3)]
    assert [(s.macro, s.micro, s.fired) for s in stages] == [
        (0, 0, frozenset()),
        (0, 1, frozenset("a")),
        (1, 0, frozenset()),
    ]


def test_clock_tracking_switches_with_the_reference(system, reference):
    """Before the late impact the conventional error compares with the post-impact arc."""
    policy = ClockTracking(reference, [[[0.0, 0.0]], [[0.0, 5.0]]])
    impact = np.sqrt(2.0 / G)
    run = hc.simulate(system, "00", [1.1, 0.0], (0.0, 0.6), policy)
    before, after = run.input(impact - 1e-6), run.input(impact + 1e-6)
    assert before == pytest.approx(0.0, abs=1e-9)
    x = run(impact)
    # 1e-6 s beside the switch the velocities have changed by about 1e-5 m/s.
    assert after == pytest.approx(5.0 * (0.64 * -G * impact - x[1]), abs=1e-3)


def test_a_good_reference_is_feasible(system, reference):
    report = feasibility(system, reference)
    assert report.failures == ()
    event = report.events[0]
    impact = np.sqrt(2.0 / G)
    assert event.guard_rates == pytest.approx({"a": -G * impact, "b": -G * impact})
    assert event.associativity <= 1e-12
    assert event.growing


@pytest.mark.parametrize("period", [1e-2, 3e-2])
def test_guards_are_sampled_once_in_a_period(period):
    """The floor is nearest at the first sample inside an arc that rises: one interval after its
    start; at the last one where it falls."""
    plant = bouncing_ball()
    nominal = hc.simulate(plant, "air", [1.0, 0.0], (0.0, 0.7))
    found = feasibility(plant, hc.extend(plant, nominal, before=0.1, after=0.1), period=period)
    fall, rise = nominal.arcs
    for arc, margin in zip((fall, rise), found.margins, strict=True):
        interval = (arc.end - arc.start) / np.ceil((arc.end - arc.start) / period)
        nearest = arc.end - interval if arc is fall else arc.start + interval
        assert margin.time == pytest.approx(nearest, rel=1e-12)


def test_resets_whose_order_matters_are_reported():
    """Floor b adds 0.1 m/s: before or after the scaling by 0.8 this differs by 0.02 m/s."""

    def guard(name):
        row = GuardJacobian(np.zeros(()), np.array([1.0, 0.0]), np.zeros(0))
        return hc.Guard(name, lambda t, x, u: x[0], lambda t, x, u: row)

    a, b = guard("a"), guard("b")
    scale = hc.Reset(lambda t, x, u: np.array([x[0], 0.8 * x[1]]))
    shift = hc.Reset(lambda t, x, u: np.array([x[0], x[1] + 0.1]))
    both = hc.Reset(lambda t, x, u: np.array([x[0], 0.8 * x[1] + 0.1]))
    modes = [
        hc.Mode(key, SPACE, lambda t, x, u: np.array([x[1], -G]))
        for key in ("00", "01", "10", "11")
    ]
    plant = hc.HybridSystem(
        modes,
        [
            hc.Transition("00", a, scale, "01"),
            hc.Transition("00", b, shift, "10"),
            hc.Transition("00", [a, b], both, "11"),
            hc.Transition("01", b, shift, "11"),
            hc.Transition("10", a, scale, "11"),
        ],
    )
    nominal = hc.simulate(plant, "00", [1.0, 0.0], (0.0, 0.6))
    report = feasibility(plant, hc.extend(plant, nominal, before=0.1, after=0.1))
    assert report.events[0].associativity == pytest.approx(0.02, abs=1e-12)
    assert report.failures == ("event 0: the order of resets changes the state by 0.02",)


def test_a_pulling_contact_is_reported():
    """With the withdrawing feedforward the phantom arc of corner 1 begins with a pulling force."""
    plant = rrr_door.system()
    reference = build(plant, rrr_door.DoorParameters(), Design(), phantom="withdrawing")
    failures = feasibility(plant, reference).failures
    assert len(failures) >= 1
    assert all("phantom mode" in failure for failure in failures)


def test_wrong_arguments_are_named(system, reference):
    with pytest.raises(InputError, match=r"gains must have one matrix per arc \(2\), got 1"):
        hc.ReferenceSpreading(reference, [[[1.0, 1.0]]])
    with pytest.raises(InputError, match=r"gains\[1\] must have shape \(1, 2\), got \(2, 2\)"):
        hc.ReferenceSpreading(reference, [[[1.0, 1.0]], np.eye(2)])
    with pytest.raises(InputError, match="phantom 'pull' is unknown"):
        hc.extend(system, reference.nominal, before=0.1, after=0.1, phantom="pull")
    with pytest.raises(InputError, match="before must be at least 0"):
        hc.extend(system, reference.nominal, before=-0.1, after=0.1)
    with pytest.raises(InputError, match="one function per arc"):
        hc.extend(system, reference.nominal, before=0.1, after=0.1, feedforward=[])


def test_leaving_the_extension_is_an_error(system, reference):
    policy = hc.ReferenceSpreading(reference, [np.zeros((1, 2))] * 2)
    with pytest.raises(ReferenceRangeError, match="extend it further"):
        hc.simulate(system, "00", [0.3, 0.0], (0.0, 0.6), policy)


class Asked:
    """The laws of a policy as functions of which nothing more is known."""

    def __init__(self, policy):
        self.policy = policy

    def law(self, history):
        law = self.policy.law(history)
        return lambda t, x: law(t, x)

    def next_change(self, history):
        return self.policy.next_change(history)


@pytest.mark.slow
def test_tracking_laws_known_ahead_are_those_asked_at_every_stage():
    """A door pushed back, with torques cut to limits: the same runs, to the tolerance of steps.

    What 1e-10 of each of some thousand steps leaves is damped by the feedback.
    """
    plant = rrr_door.system()
    reference = build(plant, rrr_door.DoorParameters(), Design())
    gains = [np.hstack([400.0 * np.eye(3, 4), 40.0 * np.eye(3, 4)])] * len(reference.arcs)
    policy = hc.ReferenceSpreading(reference, gains, limits=[6.0, 4.0, 2.0])
    start = reference.nominal(0.0) + np.r_[0.05, -0.05, 0.1, np.zeros(5)]
    run, expected = (
        hc.simulate(plant, ("open", "open"), start, (0.0, 1.3), given)
        for given in (policy, Asked(policy))
    )
    assert [e.guards for e in run.events] == [e.guards for e in expected.events] != []
    for ours, theirs in zip(run.events, expected.events, strict=True):
        assert ours.time == pytest.approx(theirs.time, abs=1e-8)
    np.testing.assert_allclose(run.final_state, expected.final_state, atol=1e-7)
    cut = np.abs(run.arcs[0].input(np.linspace(0.0, 0.2, 50))) >= np.array([6.0, 4.0, 2.0]) - 1e-9
    assert cut.any()


def test_the_clock_knows_the_arc_of_every_time():
    """Three bounces: the arc after an event from its time on, and its count."""
    system = bouncing_ball()
    nominal = hc.simulate(system, "air", [0.2, 0.0], (0.0, 0.9))
    reference = hc.extend(system, nominal, before=0.05, after=0.05)
    assert len(nominal.arcs) == 4
    for k, arc in enumerate(nominal.arcs):
        for t in (arc.start, 0.5 * (arc.start + arc.end)):
            found, count = get_nominal_arc(reference, t)
            assert (found.index, count) == (k, k)


def test_the_conventional_error_of_a_late_ball_is_that_to_the_nominal_at_the_same_time():
    """Until its own bounce, last sample included, where the nominal has long been flying up."""
    system = bouncing_ball()
    nominal = hc.simulate(system, "air", [0.2, 0.0], (0.0, 0.9))
    reference = hc.extend(system, nominal, before=0.05, after=0.05)
    run = hc.simulate(system, "air", [0.23, 0.0], (0.0, 0.9))
    found = tracking_error(reference, run, "conventional")
    assert len(run.arcs) == 4
    for k, arc in enumerate(run.arcs):
        own = found.arcs == k
        times = found.times[own]
        np.testing.assert_allclose(
            found.errors[own], arc(times) - nominal(times),
            atol=1e-9,
        )  # fmt: skip


def test_a_law_on_the_clock_knows_all_arcs_to_come():
    """Asked once at the start, it changes with each bounce of the reference."""
    system = bouncing_ball()
    nominal = hc.simulate(system, "air", [0.2, 0.0], (0.0, 0.9))
    reference = hc.extend(system, nominal, before=0.05, after=0.05)
    gains = [[[1.0 + k, 0.5 * k]] for k in range(4)]
    policy = ClockTracking(reference, gains)
    law, off = policy.law(History("air", 0.0, nominal(0.0))), np.array([0.3, -0.2])
    for k, (arc, gain) in enumerate(zip(nominal.arcs, gains, strict=True)):
        t = 0.5 * (arc.start + arc.end)
        assert law(t, arc(t) + off) == pytest.approx(-np.array(gain) @ off)
        change = policy.next_change(History("air", t, arc(t)))
        assert change == (arc.end if k < 3 else np.inf)
    times = np.linspace(0.01, 0.89, 45)  # also across bounces, where a step would not ask
    for some in (times, times[::-1], times[:3]):
        offsets, slopes = law.function.find_offsets_and_gains(some)
        along = [b - k @ off for b, k in zip(offsets, slopes, strict=True)]
        np.testing.assert_allclose(along, [law(t, off) for t in some], rtol=0, atol=1e-13)


def test_the_rms_of_an_error_is_a_time_average():
    """Of samples 3 and 4, 5 and 12, 0 and 0, at times that are not even: trapezoids of squares."""
    errors = np.array([[3.0, 4.0], [5.0, 12.0], [0.0, 0.0]])
    found = TrackingError("spread", np.array([0.0, 0.1, 0.4]), errors, np.zeros(3, dtype=int))
    area = 0.1 * 0.5 * (25.0 + 169.0) + 0.3 * 0.5 * 169.0
    assert found.rms == pytest.approx(np.sqrt(area / 0.4))
    assert found.peak == 13.0


def test_phantom_modes_of_one_key_have_the_least_margin_of_all():
    """After floor a the guard c is at -0.5 m, after floor b at 1 m, in the same phantom mode."""

    def guard(name, row):
        return hc.Guard(
            name,
            lambda t, x, u: np.asarray(row) @ x,
            lambda t, x, u: GuardJacobian(np.zeros(()), np.asarray(row), np.zeros(0)),
        )

    a, b, c = (guard(n, row) for n, row in zip("abc", np.eye(4)[[0, 0, 2]], strict=True))

    def put(**values):
        changes = {int(name[1]): value for name, value in values.items()}
        return hc.Reset(lambda t, x, u: np.array([changes.get(i, x[i]) for i in range(4)]))

    field = lambda t, x, u: np.array([x[1], -G, 0.0, 0.0])  # noqa: E731
    modes = [hc.Mode(key, hc.VectorSpace(4), field) for key in ("before", "between", "after")]
    plant = hc.HybridSystem(
        modes,
        [
            hc.Transition("before", a, put(x2=-0.5, x3=1.0), "between"),
            hc.Transition("before", b, put(x3=1.0), "between"),
            hc.Transition("before", [a, b], put(x2=1.0, x3=1.0), "after"),
            hc.Transition("between", a, put(x2=1.0), "after"),
            hc.Transition("between", b, put(x2=1.0), "after"),
            hc.Transition("between", c, put(), "after"),
        ],
    )
    nominal = hc.simulate(plant, "before", [1.0, 0.0, 1.0, 0.0], (0.0, 0.6))
    report = feasibility(plant, hc.extend(plant, nominal, before=0.1, after=0.1))
    assert report.events[0].phantom_margin == pytest.approx({"between": -0.5})
    assert report.failures == ("event 0: a guard of phantom mode between starts at -0.5",)


def test_a_reference_without_events_is_reported_to_the_end(system):
    shares = []
    nominal = hc.simulate(system, "00", [1.0, 0.0], (0.0, 0.2))
    hc.extend(system, nominal, before=0.1, after=0.1, progress=shares.append)
    assert shares[-1] == 1.0


def test_an_event_that_does_not_come_is_passed_over_once():
    """0.1 s after the first bounce is due the next arc is tracked, and it is still 0.1 s after the
    second one is due: no second bounce is given up. A bounce that comes counts as the first one."""
    plant = bouncing_ball()
    nominal = hc.simulate(plant, "air", [1.0, 0.0], (0.0, 1.6))
    first, second = (event.time for event in nominal.events)
    reference = hc.extend(plant, nominal, before=0.1, after=0.1)
    gains = [[[float(k), 0.0]] for k in (1, 2, 3)]
    policy = hc.ReferenceSpreading(reference, gains, patience=0.1)
    state = np.zeros(2)
    touch = replace(nominal.events[0], time=first + 0.05)
    for time, events, arc in [
        (first + 0.09, (), 0),
        (first + 0.11, (), 1),
        (second + 0.09, (), 1),
        (second + 0.11, (), 1),
        (first + 0.06, (touch,), 1),
    ]:
        law = policy.law(History("air", time, state, events))
        np.testing.assert_array_equal(law.jacobian(time, state), -np.array(gains[arc]))
    assert policy.next_change(History("air", first, state)) == pytest.approx(first + 0.1)


def test_the_clock_begins_anew_at_a_late_event(reference):
    """After an impact that is late by 0.05 s the arc is tracked 0.05 s later, before it on time."""
    impact, gain = np.sqrt(2.0 / G), np.array([[3.0, 2.0]])
    policy = PhaseReset(reference, [gain, 2.0 * gain], patience=0.02)
    x, planned = np.array([0.3, -1.0]), reference.events[0]
    before = History("00", 0.2, x, ())
    u = policy.law(before)(0.2, x)
    np.testing.assert_allclose(
        u, reference.arcs[0].input(0.2) + gain @ (reference.arcs[0](0.2) - x), atol=1e-9
    )
    assert policy.next_change(before) == pytest.approx(impact + 0.02)
    late = replace(planned, time=planned.time + 0.05)
    after, t = History("11", late.time, x, (late,)), late.time + 0.1
    arc = reference.arcs[1]
    expected = arc.input(t - 0.05) + 2.0 * gain @ (arc(t - 0.05) - x)
    np.testing.assert_allclose(policy.law(after)(t, x), expected, atol=1e-9)
    assert policy.next_change(after) == np.inf
    overdue = History("00", impact + 0.021, x, ())
    assert policy.next_change(overdue) == np.inf
    t = overdue.time
    expected = arc.input(t) + 2.0 * gain @ (arc(t) - x)
    np.testing.assert_allclose(policy.law(overdue)(t, x), expected, atol=1e-9)
    with pytest.raises(InputError, match="patience"):
        PhaseReset(reference, [gain, gain], patience=-1.0)
