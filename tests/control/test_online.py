"""Controllers in a loop: what simulations with the same policy do, and what no sample can break."""

import numpy as np
import pytest
from control.samples import ball_on_two_floors, bouncing_ball, landing_ball

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.control.baselines import NearestTracking
from hybridctl.control.controller import Controller
from hybridctl.control.detection import DetectedPolicy, Detection
from hybridctl.control.detectors import Gate, Threshold
from hybridctl.control.spreading import START, ClockTracking, Position
from hybridctl.control.tracking_error import tracking_error
from hybridctl.hybrid.laws import HeldInput
from hybridctl.hybrid.plant import SimulatedPlant
from hybridctl.hybrid.system import as_policy

GAIN = [[40.0, 12.0]]
PERIOD = 4e-3


@pytest.fixture(scope="module")
def landing():
    """A ball that lands at 0.4515 s, and is held down there."""
    system = landing_ball()
    nominal = hc.simulate(system, "air", [1.0, 0.0], (0.0, 0.8))
    return system, hc.extend(system, nominal, before=0.1, after=0.1)


def controller(landing, **options):
    system, reference = landing
    policy = hc.ReferenceSpreading(reference, [GAIN, [[0.0, 0.0]]])
    detector = Threshold("normal_force", ["floor"], rises=1.0)
    return Controller(system, policy, PERIOD, detector, mode="air", **options)


def looped(plant, controller, start, samples):
    """Commands of a loop."""
    sample, commands = plant.reset(0.0, start), []
    for _ in range(samples):
        commands.append(controller.step(*sample))
        sample = plant.step(commands[-1].u)
    return commands


def test_a_loop_is_a_simulation_with_sampled_control(landing):
    system, reference = landing
    loop = controller(landing)
    plant = SimulatedPlant(system, "air", PERIOD)
    commands = looped(plant, loop, [1.02, 0.0], 150)
    policy = hc.SampledPolicy(hc.ReferenceSpreading(reference, [GAIN, [[0.0, 0.0]]]), PERIOD)
    run = hc.simulate(system, "air", [1.02, 0.0], (0.0, 150 * PERIOD), policy)
    assert {command.status for command in commands} == {"ok"}
    times = PERIOD * np.arange(1, 150)
    np.testing.assert_allclose(plant.run()(times), run(times), atol=1e-8)
    np.testing.assert_allclose(
        [c.u for c in commands[1:]], [run.input(t) for t in times], atol=1e-6
    )
    (touch,) = plant.run().guard_events
    assert touch.time == pytest.approx(run.guard_events[0].time, abs=1e-9)
    # The touch is known at the sample after it.
    known = int(np.ceil(touch.time / PERIOD))
    assert [c.position.macro for c in commands] == [0] * known + [1] * (150 - known)
    assert [c.mode for c in commands] == ["air"] * known + ["ground"] * (150 - known)


def test_what_a_loop_saw_reads_as_any_other_run(landing):
    system, reference = landing
    loop, plant = controller(landing), SimulatedPlant(system, "air", PERIOD)
    commands = looped(plant, loop, [1.02, 0.0], 150)
    seen, real = loop.run(), plant.run()
    times = PERIOD * np.arange(150)
    np.testing.assert_allclose(seen(times), real(times), atol=1e-12)
    np.testing.assert_array_equal([seen.input(t) for t in times], [c.u for c in commands])
    (event,) = seen.events
    assert event.guards == ("floor",)
    assert (event.mode_before, event.mode_after) == ("air", "ground")
    assert event.time == next(t for t in times if t >= real.guard_events[0].time)
    np.testing.assert_array_equal(event.input_after, seen.input(event.time))
    known = tracking_error(reference, seen, "spread", PERIOD)
    before = known.times < event.time - PERIOD
    expected = seen(known.times[before]) - reference.arcs[0](known.times[before])
    np.testing.assert_allclose(known.errors[before], expected, atol=1e-12)
    assert known.errors[-1] == pytest.approx([0.0, 0.0], abs=1e-9)
    assert "1 event," in repr(seen)
    assert seen.to_dataframe([0.1, 0.59])["mode"].tolist() == ["air", "ground"]


def test_samples_that_cannot_be_used_hold_the_last_input(landing):
    loop = controller(landing, patience=3.5 * PERIOD, fallback=[2.0])
    first = loop.step(0.0, [1.1, 0.0])
    assert first.status == "ok"
    bad = [[np.nan, 0.0], [1.0], "state", None]
    for k, x in enumerate(bad, start=1):
        command = loop.step(k * PERIOD, x)
        lost = k * PERIOD > 3.5 * PERIOD
        assert command.status == ("lost" if lost else "held")
        np.testing.assert_array_equal(command.u, [2.0] if lost else first.u)
    assert loop.fault is not None
    again = loop.step(5 * PERIOD, [1.1, 0.0])
    assert again.status == "ok"
    assert (again.u != 2.0).all()


def test_times_that_jump_are_believed_when_the_next_sample_goes_on(landing):
    x = [1.0, 0.0]
    loop = controller(landing, patience=0.02)

    def statuses(*times):
        return [loop.step(t, x).status for t in times]

    assert statuses(0.100, 0.104, 0.104, 0.103) == ["ok", "ok", "held", "held"]
    assert statuses(0.108) == ["ok"]
    assert statuses(0.120) == ["late"]  # two samples never came
    assert statuses(9.0, 0.124) == ["held", "ok"]  # a wrong time, once
    assert statuses(0.300, 0.304, 0.308) == ["held", "late", "ok"]
    assert statuses(0.010, 0.014, 0.018) == ["held", "late", "ok"]
    assert statuses(np.nan, np.inf, -np.inf, 0.022) == ["held", "held", "held", "ok"]
    assert loop.run().start == 0.014


def test_a_time_after_a_jump_is_believed_only_a_sample_later(landing):
    """Not five samples later: that is a jump of its own."""
    loop = controller(landing, patience=0.01)
    found = [loop.step(t, [1.0, 0.0]).status for t in (0.1, 0.3, 0.32, 0.324, 0.328)]
    assert found == ["ok", "held", "held", "late", "ok"]


def test_where_the_reference_ends_its_end_is_held(landing):
    _, reference = landing
    loop = controller(landing)
    for t in np.arange(0.0, 0.448, PERIOD):
        loop.step(t, reference.arcs[0](t))
    far = [loop.step(t, [0.0, 0.0]) for t in np.arange(0.448, 0.7, PERIOD)]
    end = reference.arcs[0].end
    for t, command in zip(np.arange(0.448, 0.7, PERIOD), far, strict=True):
        assert command.status == ("ok" if t <= end + PERIOD else "held")
    np.testing.assert_allclose(far[-1].u, np.array(GAIN) @ reference.arcs[0](end), atol=1e-9)
    # A touch so late that the arc after it has ended is no error either.
    late = loop.step(0.9, [0.0, 0.0], {"normal_force": [9.81]})
    assert late.status == "held"


CLOCKED = [
    lambda reference, gains: ClockTracking(reference, gains),
    lambda reference, gains: NearestTracking(reference, gains, window=0.05),
    lambda reference, gains: DetectedPolicy(ClockTracking(reference, gains), Detection()),
]


@pytest.mark.parametrize("make", CLOCKED)
@pytest.mark.parametrize("detects", [False, True])
def test_a_policy_by_the_clock_holds_nothing_until_the_whole_reference_ends(landing, make, detects):
    """Its law is that of the present arc, 0.35 s after the touch too, detected or not.

    Each input is u = mu(t) + K (alpha(t) - x) of the nominal run, whose arc after the touch has no
    gain; it is held from 0.8 s on, but for a period of grace.
    """
    system, reference = landing
    policy = make(reference, [GAIN, [[0.0, 0.0]]])
    detector = Threshold("normal_force", ["floor"], rises=1.0) if detects else None
    loop = Controller(system, policy, PERIOD, detector, mode="air")
    x = np.array([0.6, 0.1])
    for t in PERIOD * np.arange(210):
        command = loop.step(t, x, {"normal_force": [9.81 if t > 0.4515 else 0.0]})
        assert command.status == ("ok" if t <= 0.8 + PERIOD else "held")
        arc = reference.nominal.arcs[int(t > reference.events[0].time)]
        alpha, mu = arc.state_and_input(min(t, arc.end))
        expected = mu + np.array(GAIN) @ (alpha - x) if arc.index == 0 else mu
        if not isinstance(policy, NearestTracking) or abs(t - 0.4515) > 0.05:
            np.testing.assert_allclose(command.u, expected, atol=1e-9)
    assert command.position == (Position(1, 0, frozenset()) if detects else START)


def test_a_touch_outside_the_extension_holds_the_end_of_the_arc(landing):
    """The simulation of such a run ends with a ReferenceRangeError."""
    system, reference = landing
    loop = controller(landing)
    loop.step(0.2, [0.5, 0.0])
    early = loop.step(0.2 + PERIOD, [0.5, 0.0], {"normal_force": [9.81]})
    assert early.status == "held"
    assert early.position == Position(1, 0, frozenset())
    _, mu = reference.arcs[1].state_and_input(reference.arcs[1].start)
    np.testing.assert_array_equal(early.u, mu)  # its gain is zero
    with pytest.raises(hc.errors.ReferenceRangeError, match="extend it further") as caught:
        hc.simulate(system, "air", [0.05, -3.0], (0.2, 0.4), loop.policy)
    assert caught.value.interval == (reference.arcs[1].start, reference.arcs[1].end)


def test_limits_cut_whatever_the_policy_asks_for(landing):
    loop = controller(landing, limits=[0.5], fallback=[3.0])
    assert loop.step(0.0, [2.0, 0.0]).u == pytest.approx([-0.5])
    assert loop.step(PERIOD, [0.0, 0.0]).u == pytest.approx([0.5])
    for k in range(2, 40):
        command = loop.step(k * PERIOD, None)
    assert (command.status, *command.u) == ("lost", 0.5)


def test_a_policy_that_fails_does_not_stop_the_loop(landing):
    system, _ = landing

    class Failing:
        def law(self, history):
            raise ZeroDivisionError

    loop = Controller(system, Failing(), PERIOD, mode="air")
    command = loop.step(0.0, [1.0, 0.0])
    assert (command.status, *command.u) == ("held", 0.0)
    assert isinstance(loop.fault, ZeroDivisionError)
    loop = Controller(system, Failing(), PERIOD, mode="air")
    with pytest.raises(InputError, match="nothing was recorded"):
        loop.run()


def test_laws_that_change_on_the_clock_do(landing):
    """The conventional law asks for the time of the nominal event, not for touches."""
    system, reference = landing
    loop = Controller(system, ClockTracking(reference, [GAIN, GAIN]), PERIOD, mode="air")
    for t in PERIOD * np.arange(200):
        x = [0.1, -1.0]
        arc = reference.nominal.arcs[int(t >= reference.events[0].time)]
        alpha, mu = arc.state_and_input(t)
        expected = mu + np.array(GAIN) @ (alpha - x)
        np.testing.assert_allclose(loop.step(t, x).u, expected, atol=1e-9)


def test_guards_that_fire_twice_or_unplanned_are_one_event():
    system = ball_on_two_floors()
    nominal = hc.simulate(system, "00", [1.0, 0.0], (0.0, 0.8))
    reference = hc.extend(system, nominal, before=0.1, after=0.1)
    policy = hc.ReferenceSpreading(reference, [GAIN, GAIN])
    flags = Threshold("flag", ["a", "b", "c"])
    loop = Controller(system, policy, PERIOD, flags, mode="00")
    touches = [[0, 0, 0], [1, 0, 0], [0, 0, 1], [1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 0, 0]]
    found = [loop.step(0.44 + k * PERIOD, [0.0, -4.0], {"flag": f}) for k, f in enumerate(touches)]
    between = Position(0, 1, frozenset("a"))
    after = Position(1, 0, frozenset())
    assert [c.position for c in found] == [START, between, between, between, after, after, after]
    assert [c.mode for c in found] == ["00", "01", "01", "01", "11", "11", "11"]
    assert [event.guards for event in loop.run().events] == [("a",), ("b",)]


def test_without_a_reference_the_reset_says_where_a_touch_leads():
    system = bouncing_ball()
    law = hc.SampledPolicy(lambda t, x: -x[:1], 10.0)
    loop = Controller(system, law, PERIOD, Threshold("flag", ["floor"]), mode="air")
    loop.step(0.0, [1.0, 0.0])
    assert loop.step(PERIOD, [0.0, -1.0], {"flag": [1]}).mode == "air"
    assert [e.guards for e in loop.run().events] == [("floor",)]
    landing = Controller(landing_ball(), law, PERIOD, Threshold("flag", ["floor"]), mode="air")
    assert landing.step(0.0, [0.0, -1.0], {"flag": [1]}).mode == "ground"
    landing.reset()
    assert landing.step(0.0, [0.1, 0.0]).mode == "air"


@pytest.mark.parametrize("push", [0.0, 5.0])
def test_without_a_reference_the_mode_after_a_touch_is_the_one_that_goes_on(push):
    """The mode on the floor selects another, by whether the input pushes the ball off it."""

    def thrust(key, select=None):
        space = hc.VectorSpace(2)
        return hc.Mode(key, space, lambda t, x, u: np.array([x[1], u[0]]), 1, select=select)

    touched = thrust("floor", lambda t, x, u: "away" if u[0] > 1.0 else "rest")
    guard = hc.Guard("touch", lambda t, x, u: x[0])
    stop = hc.Reset(lambda t, x, u: np.array([x[0], 0.0]))
    system = hc.HybridSystem(
        [thrust("air"), touched, thrust("away"), thrust("rest")],
        [hc.Transition("air", guard, stop, "floor")],
    )
    law = HeldInput(np.array([push]))
    run = hc.simulate(system, "air", [0.01, -1.0], (0.0, 0.1), law)
    policy, touch = as_policy(law, system), Threshold("flag", ["touch"])
    loop = Controller(system, policy, PERIOD, touch, mode="air")
    loop.step(0.0, [0.0, -1.0])
    found = loop.step(PERIOD, [0.0, -1.0], {"flag": [1]})
    assert run.guard_events[0].mode_after == found.mode == ("away" if push else "rest")


def restless(loop, nx, samples, seed):
    """Random touches, states that are not numbers, and times that jump; statuses that came."""
    rng = np.random.default_rng(seed)
    t, blind, found = 0.0, 0, set()
    for _ in range(samples):
        t += PERIOD if rng.random() < 0.98 else rng.normal(scale=0.3)
        t %= 0.8
        x = rng.normal(size=nx)
        blind = 20 if rng.random() < 2e-3 else blind - 1
        if blind > 0 or rng.random() < 0.02:
            x[rng.integers(nx)] = rng.choice([np.nan, np.inf] if blind > 0 else [np.nan, 1e300])
        given = t if rng.random() < 0.999 else np.nan
        command = loop.step(given, x, {"flag": rng.integers(2, size=2)})
        assert np.isfinite(command.u).all()
        assert (np.abs(command.u) <= 5.0).all()
        found.add(command.status)
        if rng.random() < 1e-3:
            loop.reset()
    return found


def test_nothing_gets_out_of_a_loop():
    system = ball_on_two_floors()
    nominal = hc.simulate(system, "00", [1.0, 0.0], (0.0, 0.8))
    reference = hc.extend(system, nominal, before=0.1, after=0.1)
    policy = hc.ReferenceSpreading(reference, [GAIN, GAIN])
    gate = Gate(Threshold("flag", ["a", "b"]), reference, before=0.1, timeout=0.02)
    loop = Controller(system, policy, PERIOD, gate, mode="00", limits=[5.0])
    assert restless(loop, 2, 10_000, 0) == {"ok", "held", "late", "lost"}


def test_wrong_arguments_are_named(landing):
    with pytest.raises(InputError, match="patience must be at least 0"):
        controller(landing, patience=-1.0)
    with pytest.raises(InputError, match="fallback must have shape"):
        controller(landing, fallback=[0.0, 0.0])
    with pytest.raises(InputError, match="limits must have shape"):
        controller(landing, limits=[1.0, 2.0])
    with pytest.raises(InputError, match="mode 'sea' is unknown"):
        Controller(landing[0], controller(landing).policy, PERIOD, mode="sea")
    with pytest.raises(InputError, match="period must be greater than 0"):
        Controller(landing[0], controller(landing).policy, 0.0, mode="air")
    with pytest.raises(InputError, match="detector must be a Detector"):
        Controller(landing[0], controller(landing).policy, PERIOD, "flags", mode="air")


def test_a_policy_is_asked_at_the_sample_that_it_named_to_rounding(landing):
    """0.1 + 0.2 is 6e-17 more than 0.3."""
    asked = []

    class Policy:
        def law(self, history):
            asked.append(history.time)
            return HeldInput(np.zeros(1))

        def next_change(self, history):
            return history.time + 0.2

    loop = Controller(landing[0], Policy(), 0.1, mode="air")
    for t in (0.1, 0.2, 0.3, 0.4):
        loop.step(t, [1.0, 0.0])
    assert asked == [0.1, 0.3]
