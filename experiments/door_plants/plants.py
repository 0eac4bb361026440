"""Each member is run on a plant with its own contact, sensors, delay and model errors.

A run starts 0.2 s before the planned impact, beside the reference, with an error of the torques.
The motors give at most 30 N m, which the controller does not know. The peak is that of the torques
that it asks for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

import numpy as np
from hybridctl.experiments.door_plants.laws import get_scene, make_gate, make_policy
from hybridctl.experiments.door_plants.sensing import Kind, make_sensor
from hybridctl.experiments.plant_loop import Engine, driven, make_engine_plant
from hybridctl.experiments.rrr_door.reference import OPEN
from hybridctl.experiments.rrr_door.runner import Member, Perturbations, draw_member
from hybridctl.robots import rrr_door

from hybridctl.base.checks import Array
from hybridctl.control.controller import Controller
from hybridctl.control.detectors import Delayed, Detector, Guards, Reading, Threshold
from hybridctl.control.gains import GainSchedule
from hybridctl.control.spreading import START
from hybridctl.control.tuning.ensemble import Controller as Kept
from hybridctl.control.tuning.ensemble import Outcome
from hybridctl.control.tuning.structure import WindowedGains
from hybridctl.hybrid.plant import Sample
from hybridctl.interop.engine import EnginePlant

PERIOD = 1e-3  # s, of the controller
MOTOR_TORQUE = 30.0  # N m, the greatest
_START, _END = 0.8, 1.6  # s, of a run
_TOUCH_FORCE = 2.0  # N, from which on a contact is detected
_SETTLED = 10  # samples after both touches, from which on the first error counts
_SINCE_FIRST = 30  # samples after the first touch, from which on the second error counts
_BEFORE = 20  # samples before the first touch, from which on the peak counts


@dataclass(frozen=True)
class Setting:
    """A family of plants; where there are several values, members take turns.

    Attributes:
        name: Name of the family.
        time_constants: Time constants of the contacts, s.
        sensors: Kinds of sensors of the state.
        delay: Longest delay of touches, s, uniform over members.
        steady: Whether all members have the longest delay instead.
        door: Standard deviation of the place of the hinge, m.
        mass: Standard deviation of the masses of the links, relative.
        stiffness: Standard deviation of the stiffness of the hinge, relative.
        detects: Whether touches are detected at all.
        false_touch: Time before the planned touch at which corner 1 is reported falsely, s; None
            for no false report.
        engine: Engine of the plants.
    """

    name: str
    time_constants: tuple[float, ...]
    sensors: tuple[Kind, ...] = ("true",)
    delay: float = 0.0
    steady: bool = False
    door: float = 0.0
    mass: float = 0.0
    stiffness: float = 0.0
    detects: bool = True
    false_touch: float | None = None
    engine: Engine = "mujoco"

    def draw_member(self, seed: int, member: int) -> Member:
        """Return the perturbations of a member."""
        p = Perturbations(
            mass=self.mass, friction=0.0, door_position=self.door,
            door_stiffness=self.stiffness, delay=self.delay,
        )  # fmt: skip
        return draw_member(p, rrr_door.DoorParameters(), seed, member)

    def get_plant(self, drawn: Member, member: int) -> EnginePlant:
        """Return the plant of a member."""
        constant = self.time_constants[member % len(self.time_constants)]
        return _get_plant(self.engine, drawn.parameters, constant)

    def get_sensor_kind(self, member: int) -> Kind:
        """Return the kind of a member's sensors."""
        return self.sensors[member // len(self.time_constants) % len(self.sensors)]


@lru_cache(maxsize=600)
def _get_plant(engine: Engine, parameters: rrr_door.DoorParameters, constant: float) -> EnginePlant:
    """Return the plant, built once in each process."""
    robot, contacts = rrr_door.robot(parameters), rrr_door.contacts(parameters)
    hit = get_scene()[1].events[0].state_before[: robot.nq]
    return make_engine_plant(engine, robot, contacts, constant, PERIOD, hit)


class FalseTouch:
    """A detector that reports one guard falsely, besides the guards that another one detects.

    It is stepped once a sample, in order; `reset` begins a new run.
    """

    def __init__(self, detector: Detector, guard: str, time: float) -> None:
        self._detector, self._guard, self._time = detector, guard, time
        self._has_reported = False

    def step(self, reading: Reading) -> Guards:
        """Return the guards of the wrapped detector, and once the false one, from its time on."""
        names = self._detector.step(reading)
        if self._has_reported or reading.time < self._time:
            return names
        self._has_reported = True
        return (*names, self._guard)

    def reset(self) -> None:
        """Begin a new run, in which the false touch has not been reported."""
        self._detector.reset()
        self._has_reported = False


class Trace(NamedTuple):
    """A sampled run.

    Attributes:
        times: Times (n,), s.
        states: True states (n, 8), rad and rad/s.
        torques: Torques that the controller asks for (n, 3), N m.
        touches: Number of the sample of each corner's first touch; None for no touch.
    """

    times: Array
    states: Array
    torques: Array
    touches: tuple[int | None, int | None]


def make_detector(name: str, setting: Setting, delay: float, timeout: float) -> Detector:
    """Return the detector of touches of a law.

    Args:
        name: Name of the law.
        setting: Whether it detects touches, and whether there is a false one.
        delay: Delay of touches, s.
        timeout: Time that the interim mode waits for a touch, s.
    """
    reference = get_scene()[1]
    guards = reference.events[0].guards
    flags: Detector = Threshold("normal_force", guards, rises=_TOUCH_FORCE)
    if not setting.detects:
        flags = Delayed(flags, misses=1.0)
    elif delay > 0.0:
        flags = Delayed(flags, delay=delay)
    if setting.false_touch is not None:
        flags = FalseTouch(flags, guards[0], reference.events[0].time - setting.false_touch)
    return make_gate(name, flags, timeout)


def simulate_member(
    name: str, design: WindowedGains, setting: Setting, seed: int, member: int, timeout: float
) -> Trace:
    """Return the run of a member under a law.

    Args:
        name: Name of the law, of `laws.LAWS`.
        design: Its gains and window.
        setting: Family of the plant.
        seed: Seed of the members.
        member: Number of the member.
        timeout: Time that the interim mode waits for a touch, s.

    Raises:
        HybridctlError: The controller reports a fault.
    """
    system, reference = get_scene()
    drawn = setting.draw_member(seed, member)
    delay = setting.delay if setting.steady else drawn.delay
    detector = make_detector(name, setting, PERIOD * round(delay / PERIOD), timeout)
    policy = make_policy(name, design, timeout)
    loop = Controller(system, policy, PERIOD, detector, mode=OPEN, patience=1.0)
    plant = setting.get_plant(drawn, member)
    measure = make_sensor(setting.get_sensor_kind(member), member, PERIOD)
    count = round((_END - _START) / PERIOD)
    times: Array = _START + PERIOD * np.arange(count, dtype=np.float64)
    asked, detected, position = list[Array](), -np.inf, START

    def compute_torques(sample: Sample) -> Array:
        nonlocal detected, position
        last = np.clip(asked[-1], -MOTOR_TORQUE, MOTOR_TORQUE) if asked else np.zeros(3)
        x = measure(sample.state, last, sample.time - detected)
        command = loop.step(sample.time, x, sample.sensed)
        if command.status != "ok" and loop.fault is not None:
            raise loop.fault
        if command.position != position:
            detected, position = sample.time, command.position
        asked.append(command.u)
        return np.clip(command.u, -MOTOR_TORQUE, MOTOR_TORQUE) + drawn.bias

    start = reference.nominal(_START) + drawn.start
    samples = list(islice(driven(plant, _START, start, compute_torques), count + 1))
    states = np.array([sample.state for sample in samples[:-1]])
    touching = np.array([sample.sensed["contact"] for sample in samples[1:]], dtype=bool)
    first, second = (int(row.argmax()) + 1 if row.any() else None for row in touching.T)
    return Trace(times, states, np.array(asked), (first, second))


def judge_trace(found: Trace) -> tuple[float, float, float]:
    """Return two errors and the peak of a run.

    Returns:
        The error from 10 ms after both touches on, and the error from 30 ms after the first touch
        on: roots of the time average of the squared norm of the state minus the arc after the
        impact, rad and rad/s. They are infinite where a corner never touches, or only within 0.1 s
        before the end. Then the peak of the torques asked for, from 20 ms before the first touch
        on, N m.
    """
    first, second = found.touches
    if first is None or second is None or max(first, second) > len(found.times) - 100:
        return np.inf, np.inf, float(np.abs(found.torques).max())
    after = get_scene()[1].arcs[1]
    squares = ((found.states - after(found.times)) ** 2).sum(axis=1)
    done, begun = max(first, second), min(first, second)
    errors = [np.sqrt(squares[k:].mean()) for k in (done + _SETTLED, begun + _SINCE_FIRST)]
    peak = np.abs(found.torques[max(begun - _BEFORE, 0) :]).max()
    return float(errors[0]), float(errors[1]), float(peak)


@dataclass(frozen=True)
class PlantTrial:
    """A trial of one law on a family of plants.

    Attributes:
        name: Name of the law.
        setting: Family of the plants.
        seed: Seed of the members.
        timeout: Time that the interim mode waits for a touch, s.
        both: Whether the error is the mean of both errors of `judge_trace` instead of the first
            one, which flatters laws that keep the second corner off the door.
    """

    name: str
    setting: Setting
    seed: int
    timeout: float
    both: bool = False

    def __call__(self, controller: Kept, gains: GainSchedule, member: int) -> Outcome:
        """Return the outcome of a member; the trial's own law replaces `controller`."""
        assert isinstance(gains, WindowedGains)
        found = simulate_member(self.name, gains, self.setting, self.seed, member, self.timeout)
        error, since_first, peak = judge_trace(found)
        if not np.isfinite(error):
            return Outcome(float("nan"), float("nan"), "IncompleteEvent")
        return Outcome(0.5 * (error + since_first) if self.both else error, peak)
