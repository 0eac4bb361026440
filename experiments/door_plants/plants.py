"""Plants of the door, and runs of a controller on them.

A run starts 0.2 s before the planned impact, off the reference, with an error of the torques. The
motors give at most 30 N m, which the controller does not know; what it asks for is measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

import numpy as np
from hybridctl.experiments.door_plants.laws import gated, policy, scene
from hybridctl.experiments.door_plants.sensing import Kind, sensor
from hybridctl.experiments.plant_loop import driven
from hybridctl.experiments.rrr_door.reference import OPEN
from hybridctl.experiments.tuning.door import Draw, Perturbations, draw
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
from hybridctl.interop.mujoco import Compliance, MujocoModel, MujocoPlant

PERIOD = 1e-3  # s, of the controller
MOST = 30.0  # N m, of the motors
_START, _END = 0.8, 1.6  # s
_TOUCH = 2.0  # N, from which on a contact is seen
_SETTLED, _SINCE_FIRST, _BEFORE = 10, 30, 20  # samples: of the errors, and of the peak


@dataclass(frozen=True)
class Setting:
    """A family of plants; where there are several values, members take turns.

    time_constants: of the contacts, s. sensors: what is known of the state. delay: the longest of
    touches, s, evenly spread over members, or the same for all if `steady`. door: standard
    deviation of the place of the hinge, m. mass: of the
    links, relative. stiffness: of the hinge, relative. detects: whether touches are seen at all.
    false_touch: how long before the planned time corner 1 is reported falsely, s, or None.
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

    def drawn(self, seed: int, member: int) -> Draw:
        """The perturbations of a member."""
        p = Perturbations(
            mass=self.mass,
            friction=0.0,
            door_position=self.door,
            door_stiffness=self.stiffness,
            delay=self.delay,
        )
        return draw(p, rrr_door.DoorParameters(), seed, member)

    def plant(self, drawn: Draw, member: int) -> MujocoPlant:
        """The plant of a member."""
        constant = self.time_constants[member % len(self.time_constants)]
        return _plant(drawn.parameters, constant)

    def kind(self, member: int) -> Kind:
        """The kind of sensors by which a member's state is known."""
        return self.sensors[member // len(self.time_constants) % len(self.sensors)]


@lru_cache(maxsize=600)
def _plant(parameters: rrr_door.DoorParameters, constant: float) -> MujocoPlant:
    """The plant, built once in each process."""
    robot, contacts = rrr_door.robot(parameters), rrr_door.contacts(parameters)
    return MujocoPlant(MujocoModel(robot, contacts, Compliance(constant)), PERIOD)


class FalseTouch:
    """A detector that reports a guard once, at a time in s, besides what another one sees."""

    def __init__(self, detector: Detector, guard: str, time: float) -> None:
        self._detector, self._guard, self._time = detector, guard, time
        self._told = False

    def step(self, reading: Reading) -> Guards:
        """The guards that the wrapped detector sees, and once the false touch."""
        names = self._detector.step(reading)
        if self._told or reading.time < self._time:
            return names
        self._told = True
        return (*names, self._guard)

    def reset(self) -> None:
        """Begin anew: the false touch has not been told yet."""
        self._detector.reset()
        self._told = False


class Trace(NamedTuple):
    """A run: times (n,), true states (n, 8), torques asked for (n, 3), first touches in samples."""

    times: Array
    states: Array
    torques: Array
    touches: tuple[int | None, int | None]


def detector(name: str, setting: Setting, delay: float, timeout: float) -> Detector:
    """What a law is told of touches."""
    reference = scene()[1]
    guards = reference.events[0].guards
    flags: Detector = Threshold("normal_force", guards, rises=_TOUCH)
    if not setting.detects:
        flags = Delayed(flags, misses=1.0)
    elif delay > 0.0:
        flags = Delayed(flags, delay=delay)
    if setting.false_touch is not None:
        flags = FalseTouch(flags, guards[0], reference.events[0].time - setting.false_touch)
    return gated(name, flags, timeout)


def trace(
    name: str, design: WindowedGains, setting: Setting, seed: int, member: int, timeout: float
) -> Trace:
    """Run one member."""
    system, reference = scene()
    drawn = setting.drawn(seed, member)
    delay = setting.delay if setting.steady else drawn.delay
    loop = Controller(
        system,
        policy(name, design, timeout),
        PERIOD,
        detector(name, setting, PERIOD * round(delay / PERIOD), timeout),
        mode=OPEN,
        patience=1.0,
    )
    plant = setting.plant(drawn, member)
    sensed = sensor(setting.kind(member), member, PERIOD)
    count = round((_END - _START) / PERIOD)
    times: Array = _START + PERIOD * np.arange(count, dtype=np.float64)
    asked, known, position = list[Array](), -np.inf, START

    def control(sample: Sample) -> Array:
        nonlocal known, position
        held = np.clip(asked[-1], -MOST, MOST) if asked else np.zeros(3)
        x = sensed(sample.state, held, sample.time - known)
        command = loop.step(sample.time, x, sample.sensed)
        if command.status != "ok" and loop.fault is not None:
            raise loop.fault
        if command.position != position:
            known, position = sample.time, command.position
        asked.append(command.u)
        return np.clip(command.u, -MOST, MOST) + drawn.bias

    start = reference.nominal(_START) + drawn.start
    samples = list(islice(driven(plant, _START, start, control), count + 1))
    states = np.array([sample.state for sample in samples[:-1]])
    touching = np.array([sample.sensed["contact"] for sample in samples[1:]], dtype=bool)
    first, second = (int(row.argmax()) + 1 if row.any() else None for row in touching.T)
    return Trace(times, states, np.array(asked), (first, second))


def judged(found: Trace) -> tuple[float, float, float]:
    """The error from 10 ms after both touches, that from 30 ms after the first one, and the peak.

    Errors are roots of the mean square of all components against the arc after the impact, in rad
    and rad/s, and infinite where a corner never touches, or 0.1 s before the end. The peak is that
    of the torques asked for, from 20 ms before the first touch, in N m.
    """
    first, second = found.touches
    if first is None or second is None or max(first, second) > len(found.times) - 100:
        return np.inf, np.inf, float(np.abs(found.torques).max())
    after = scene()[1].arcs[1]
    squares = ((found.states - after(found.times)) ** 2).sum(axis=1)
    done, begun = max(first, second), min(first, second)
    errors = [np.sqrt(squares[k:].mean()) for k in (done + _SETTLED, begun + _SINCE_FIRST)]
    peak = np.abs(found.torques[max(begun - _BEFORE, 0) :]).max()
    return float(errors[0]), float(errors[1]), float(peak)


@dataclass(frozen=True)
class PlantTrial:
    """Member after member of a setting, under one law.

    Its error is that after both touches, or with `both` the mean of the two that are `judged`: the
    first one alone flatters laws that keep the second corner off the door.
    """

    name: str
    setting: Setting
    seed: int
    timeout: float
    both: bool = False

    def __call__(self, controller: Kept, gains: GainSchedule, member: int) -> Outcome:
        """Run a member; which controller is used is the trial's own choice."""
        assert isinstance(gains, WindowedGains)
        found = trace(self.name, gains, self.setting, self.seed, member, self.timeout)
        error, since_first, peak = judged(found)
        if not np.isfinite(error):
            return Outcome(float("nan"), float("nan"), "IncompleteEvent")
        return Outcome(0.5 * (error + since_first) if self.both else error, peak)
