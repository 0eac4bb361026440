"""What detectors make of readings, in closed form."""

from itertools import product

import casadi as ca
import numpy as np
import pytest
from control.samples import G, ball_on_two_floors, bouncing_ball

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.control.detectors import (
    AnyOf,
    Channel,
    Delayed,
    Gate,
    ModeFlags,
    MomentumForces,
    Reading,
    Threshold,
)
from hybridctl.mechanics import Contact, Plane, Robot
from hybridctl.mechanics.modes.dynamics import ContactDynamics
from hybridctl.symbolic import SymbolicMode, SymbolicTransition, hybrid_system

PERIOD = 1e-3


def readings(values, start=0.0, channel="force"):
    """One reading a millisecond with these values of a channel."""
    for k, value in enumerate(values):
        yield Reading(start + k * PERIOD, np.zeros(2), np.zeros(1), {channel: value})


def events(detector, given):
    """The times in ms and names of all events."""
    return [
        (round(1e3 * reading.time), name) for reading in given for name in detector.step(reading)
    ]


def test_a_threshold_fires_once_between_its_two_levels():
    """It rises to 5 N at 2 ms, flickers above 2 N, falls below that at 6 ms, and rises again."""
    values = [0.0, 4.9, 5.0, 3.0, 6.0, 2.0, 1.9, 4.0, 7.0]
    detector = Threshold("force", ["closes"], ["opens"], rises=5.0, falls=2.0)
    assert events(detector, readings(values)) == [(2, "closes"), (6, "opens"), (8, "closes")]
    silent = Threshold("force", ["closes"], rises=5.0, falls=2.0)
    assert events(silent, readings(values)) == [(2, "closes"), (8, "closes")]
    one_level = Threshold("force", ["closes"], rises=5.0)
    assert events(one_level, readings(values)) == [(2, "closes"), (4, "closes"), (8, "closes")]


def test_debounce_waits_for_a_level_that_lasts():
    values = [0, 1, 0, 1, 1, 1, 0, 1, 0, 0, 0, 0]
    detector = Threshold("force", ["closes"], ["opens"], debounce=2e-3 - 1e-9)
    assert events(detector, readings(values)) == [(5, "closes"), (10, "opens")]


def test_what_is_up_to_begin_with_does_not_close():
    detector = Threshold("force", ["a", "b"], ["a up", "b up"], closed=[1])
    assert events(detector, readings([[0, 1], [1, 1], [1, 0]])) == [(1, "a"), (2, "b up")]
    detector.reset()
    assert events(detector, readings([[0, 1], [1, 1]])) == [(1, "a")]


def test_nothing_follows_from_nothing():
    detector = Threshold("force", ["closes"])
    assert events(detector, readings([1.0], channel="other")) == []
    assert events(detector, readings([np.nan, np.nan, 1.0])) == [(2, "closes")]
    assert events(Threshold(ModeFlags(), ["closes"]), readings([None, 3], channel="mode")) == []


def test_the_mode_of_an_estimate_is_a_signal():
    modes = [("open", "open"), ("open", "stick"), ("slip+", "closed"), ("slip+", "open")]
    detector = Threshold(ModeFlags(), ["a", "b"], ["a up", "b up"])
    found = events(detector, readings(modes, channel="mode"))
    assert found == [(1, "b"), (2, "a"), (3, "b up")]


@pytest.fixture(scope="module")
def reference():
    """Both floors at once, at 0.4515 s."""
    plant = ball_on_two_floors()
    nominal = hc.simulate(plant, "00", [1.0, 0.0], (0.0, 0.8))
    return hc.extend(plant, nominal, before=0.1, after=0.1)


def gate(reference, **options):
    return Gate(Threshold("force", ["a", "b"]), reference, **options)


def test_a_gate_lets_an_event_through_near_its_time_and_once(reference):
    """The nominal event is at 451.5 ms."""
    wide, near = gate(reference), gate(reference, before=0.05)
    touches = [[0, 0], [1, 0], [0, 0], [1, 0], [1, 1], [0, 0], [1, 1]]
    assert events(wide, readings(touches, 0.3)) == [(301, "a"), (304, "b")]
    assert events(near, readings(touches, 0.3)) == []
    assert events(near, readings(touches, 0.41)) == [(411, "a"), (414, "b")]
    near.reset()
    assert events(near, readings(touches, 0.41)) == [(411, "a"), (414, "b")]


def test_what_is_missing_is_assumed_after_the_timeout(reference):
    nothing = [[0, 0]] * 60
    assert events(gate(reference), readings(nothing, 0.45)) == []
    both = [(477, "a"), (477, "b")]  # the first sample 25 ms after 451.5 ms
    assert events(gate(reference, timeout=0.025), readings(nothing, 0.45)) == both
    late = [[0, 0]] * 10 + [[0, 1]] * 50  # from 460 ms on
    one = [(460, "b"), (485, "a")]
    assert events(gate(reference, timeout=0.025 - 1e-9), readings(late, 0.45)) == one


def test_the_timeout_runs_from_the_first_touch_of_an_event():
    """Of three lights that go out together, at 1 s, one is seen 5 ms late, one 25 ms, one never."""
    x = ca.SX.sym("x")
    lights = list(product("01", repeat=3))
    transitions = [
        SymbolicTransition(key, name, 1.0 - x, (*key[:i], "1", *key[i + 1 :]), x)
        for key in lights
        for i, name in enumerate("abc")
        if key[i] == "0"
    ]
    modes = [SymbolicMode(key, x, ca.SX(1.0)) for key in lights]
    plant = hybrid_system(modes, transitions)
    nominal = hc.simulate(plant, lights[0], [0.0], (0.0, 2.0))
    reference = hc.extend(plant, nominal, before=0.1, after=0.1)
    detector = Gate(Threshold("seen", ["a", "b", "c"]), reference, timeout=0.03 - 1e-9)
    seen = [[k >= 5, k >= 25, 0] for k in range(60)]
    found = events(detector, readings(seen, 1.0, "seen"))
    assert found == [(1005, "a"), (1025, "b"), (1035, "c")]


def test_several_detectors_and_those_that_are_late(reference):
    both = AnyOf((Threshold("force", ["a", "b"]), Threshold(Channel("flag"), ["a", "b"])))
    given = [
        Reading(
            0.4 + k * PERIOD, np.zeros(2), np.zeros(1), {"force": [k >= 3, 0], "flag": [k >= 1, 0]}
        )
        for k in range(6)
    ]
    assert events(both, given) == [(401, "a"), (403, "a")]
    both.reset()
    assert events(Gate(both, reference), given) == [(401, "a")]
    late = Delayed(Threshold("force", ["a", "b"]), delay=2e-3)
    assert events(late, given) == [(405, "a")]


def test_a_clock_that_jumps_back_keeps_no_event_waiting():
    late = Delayed(Threshold("force", ["a"], debounce=2e-3 - 1e-9), delay=5e-3)
    first, again = list(readings([0, 1, 1, 1], 9.0)), list(readings([1, 1, 1], 0.1))
    assert events(late, [*first, *again]) == [(100, "a")]
    late.reset()
    assert events(late, [*first[:3], *again, *readings([1] * 6, 0.103)]) == [(107, "a")]


def test_misses_have_their_probability():
    """Of 4000 touches 30 % are missed, within four standard errors of 0.7 %."""
    detector = Delayed(Threshold("force", ["a"]), misses=0.3, seed=1)
    seen = len(events(detector, readings([0, 1] * 4000)))
    assert abs(seen / 4000 - 0.7) < 0.03
    detector.reset()
    assert len(events(detector, readings([0, 1] * 4000))) == seen
    assert events(Delayed(Threshold("force", ["a"]), misses=1.0), readings([0, 1])) == []


def test_the_momentum_observer_follows_a_force_with_its_rate():
    """A mass of 2 kg on a rail, pressed with 5 N by a motor and pushed back by a force f.

    Accelerations are constant, so that f (1 - exp(-L t)) is exact; after the force is gone it
    decays by exp(-L t).
    """
    urdf = """<robot name="rail"><link name="base"/><link name="cart"><inertial>
    <mass value="2"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>
    <joint name="slide" type="prismatic"><parent link="base"/><child link="cart"/>
    <axis xyz="0 0 1"/><limit lower="-9" upper="9" effort="9" velocity="9"/></joint></robot>"""
    robot = Robot.from_urdf(urdf)
    floor = Plane(point=(0, 0, 0), normal=(0, 0, 1))
    dynamics = ContactDynamics(robot, [Contact("foot", "cart", floor)])
    force, rate, u = 30.0, 150.0, np.array([-5.0])
    v, found = 0.0, []
    signal = MomentumForces(dynamics, rate)
    for k in range(41):
        reading = Reading(k * PERIOD, np.array([0.1, v]), u, {})
        found.append(signal(reading))
        v += PERIOD * ((force if k < 20 else 0.0) + u[0] - 2.0 * 9.81) / 2.0
    t = PERIOD * np.arange(1, 21)
    rising = force * (1.0 - np.exp(-rate * t))
    expected = [*rising, *(rising[-1] * np.exp(-rate * t))]
    assert found[0] is None
    # Differences of velocities of 0.1 m/s over 1 ms have rounding of 2 * 1e-16 * 0.1 / 1e-3 N.
    np.testing.assert_allclose(np.ravel(found[1:]), expected, atol=1e-11)
    signal.reset()
    assert signal(reading) is None


def test_wrong_arguments_are_named(reference):
    with pytest.raises(InputError, match="falls must be at most 1"):
        Threshold("force", ["a"], rises=1.0, falls=2.0)
    with pytest.raises(InputError, match=r"opens must have an entry for each of closes \(2\)"):
        Threshold("force", ["a", "b"], ["a"])
    with pytest.raises(InputError, match="signal must be a Signal"):
        Threshold(3, ["a"])
    with pytest.raises(InputError, match="detector must be a Detector"):
        Gate("force", reference)
    with pytest.raises(InputError, match="timeout must be at least 0"):
        gate(reference, timeout=-1.0)
    with pytest.raises(InputError, match="misses must be at most 1"):
        Delayed(Threshold("force", ["a"]), misses=2.0)
    with pytest.raises(InputError, match=r"detectors\[0\] must be a Detector"):
        AnyOf(("force",))


def test_after_an_event_that_was_seen_the_next_is_assumed_all_the_same():
    """A ball bounces at 201.9 and 525.0 ms; the first is felt, the second never."""
    system = bouncing_ball(0.8)
    nominal = hc.simulate(system, "air", [0.2, 0.0], (0.0, 0.7))
    reference = hc.extend(system, nominal, before=0.05, after=0.05)
    first = np.sqrt(0.4 / G)
    detector = Gate(Threshold("force", ["floor"]), reference, timeout=0.02)
    felt = [[1] if k == 205 else [0] for k in range(600)]
    late = int(np.ceil(1e3 * (2.6 * first + 0.02)))
    assert events(detector, readings(felt)) == [(205, "floor"), (late, "floor")]
