r"""What a controller in a loop knows of touches, from what its sensors say at each of its samples.

A *signal* makes numbers of a reading, one per contact: a channel as it is measured, the forces that
a momentum observer infers, or the contacts that are closed in the mode of a filter. `Threshold`
makes events of a signal: guards that fire, by their names. Other detectors take detectors: several
at once, only near the time at which the reference has its event, or late and incomplete.

.. math:: \dot r = L \, (J^\top \lambda - r)

is the momentum observer: r follows the joint torques of what touches with the rate L in 1/s.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from hybridctl.base.checks import Array, check_count, check_instance, check_number, check_sequence
from hybridctl.base.errors import InputError
from hybridctl.control.reference import Reference
from hybridctl.control.spreading import START, Position, advance, due, missing
from hybridctl.hybrid.mode import ModeKey
from hybridctl.mechanics.modes.dynamics import ContactDynamics
from hybridctl.mechanics.system import closed_contacts

Guards = tuple[str, ...]
_ROUNDING = 1e-9  # s


class Reading(NamedTuple):
    """A sample: time in s, state (nx,), the input (nu,) since the sample before, and sensors.

    sensed: what sensors say, by channel.
    """

    time: float
    state: Array
    input: Array
    sensed: Mapping[str, Any]


@runtime_checkable
class Signal(Protocol):
    """Numbers per contact, from reading after reading."""

    def __call__(self, reading: Reading) -> Sequence[float] | None:
        """The numbers, None where this reading has none."""
        ...

    def reset(self) -> None:
        """Forget all readings."""
        ...


@runtime_checkable
class Detector(Protocol):
    """Events from reading after reading."""

    def step(self, reading: Reading) -> Guards:
        """Names of the guards that fire, as far as this reading tells."""
        ...

    def reset(self) -> None:
        """Forget all readings."""
        ...


@dataclass(frozen=True)
class Channel:
    """The signal of a channel of the sensors: flags, or forces in N."""

    name: str

    def __call__(self, reading: Reading) -> Sequence[float] | None:
        """The numbers of the channel."""
        values = reading.sensed.get(self.name)
        if values is None:
            return None
        found: list[float] = np.asarray(values, dtype=np.float64).ravel().tolist()
        return found

    def reset(self) -> None:
        """This detector remembers nothing, so it forgets nothing."""


@dataclass(frozen=True)
class ModeFlags:
    """The signal of the contacts that are closed in a mode, such as that of a filter's estimate.

    channel: where the mode of a contact system is among what is sensed.
    """

    channel: str = "mode"

    def __call__(self, reading: Reading) -> Sequence[float] | None:
        """The flags of all contacts: 1 for a closed contact, 0 for an open one."""
        mode: ModeKey | None = reading.sensed.get(self.channel)
        if not isinstance(mode, tuple):
            return None
        closed = closed_contacts(mode)
        return [float(i in closed) for i in range(len(mode))]

    def reset(self) -> None:
        """This detector remembers nothing, so it forgets nothing."""


@dataclass(eq=False)
class MomentumForces:
    r"""The signal of normal forces in N that a momentum observer infers.

    Over a sample of length h it takes M (v+ - v) / h - (S u - b) for the torques of contacts, with
    all terms at the beginning, follows them with the rate L, and returns the forces
    :math:`(J M^{-1} J^\top)^+ J M^{-1} r` of the contacts, J being the Jacobian of their gaps. An
    impulse shows as a force of L times it, which decays at that rate. dynamics: of the robot.
    rate: L, 1/s.
    """

    dynamics: ContactDynamics
    rate: float = 200.0
    _last: Reading | None = field(default=None, init=False, repr=False)
    _residual: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_instance("dynamics", self.dynamics, ContactDynamics)
        check_number("rate", self.rate, above=0.0)
        self.reset()

    def __call__(self, reading: Reading) -> Sequence[float] | None:
        """The normal forces of all contacts as the momentum observer infers them, N."""
        last, self._last = self._last, reading
        if last is None or not reading.time > last.time:
            return None
        robot = self.dynamics.robot
        nq, h = robot.nq, reading.time - last.time
        q, v = last.state[:nq], last.state[nq:]
        mass, rows = robot.mass_matrix(q), self.dynamics.gap_jacobian(q)
        gained = mass @ (reading.state[nq:] - v)
        driven = robot.actuation @ reading.input - robot.bias(q, v)
        share = -math.expm1(-self.rate * h)
        self._residual += share * (gained / h - driven - self._residual)
        responses = np.linalg.solve(mass, np.column_stack([rows.T, self._residual]))
        delassus, answer = rows @ responses[:, :-1], rows @ responses[:, -1]
        forces: list[float] = np.linalg.lstsq(delassus, answer, rcond=1e-9)[0].tolist()
        return forces

    def reset(self) -> None:
        """Forget all readings."""
        self._last, self._residual = None, np.zeros(self.dynamics.robot.nv)


class Threshold:
    """Events where entries of a signal rise to a level or fall below another.

    signal: one, or the name of a channel. closes: the guard that fires where an entry rises to
    `rises`; None for an entry without one. opens: the guard where it then falls below `falls`, by
    default as high; without `opens` an entry that has fallen can rise again. debounce: for how long
    it must have been there, s. closed: indices of entries that are up to begin with.

    Raises `InputError` for a level `falls` above `rises`.
    """

    def __init__(
        self,
        signal: Signal | str,
        closes: Sequence[str | None],
        opens: Sequence[str | None] | None = None,
        *,
        rises: float = 0.5,
        falls: float | None = None,
        debounce: float = 0.0,
        closed: Sequence[int] = (),
    ) -> None:
        self._signal = Channel(signal) if isinstance(signal, str) else signal
        check_instance("signal", self._signal, Signal)  # type: ignore[type-abstract]
        self._closes = check_sequence("closes", closes)
        self._opens = check_sequence("opens", opens or [None] * len(self._closes))
        if len(self._opens) != len(self._closes):
            raise InputError(
                f"opens must have an entry for each of closes ({len(self._closes)}), "
                f"got {self._opens}"
            )
        self._rises = check_number("rises", rises)
        self._falls = check_number("falls", rises if falls is None else falls, at_most=self._rises)
        self._debounce = check_number("debounce", debounce, at_least=0.0)
        self._closed = frozenset(check_count("closed", i, at_least=0) for i in closed)
        self.reset()

    def step(self, reading: Reading) -> Guards:
        """The guards of entries that have risen or fallen."""
        values = self._signal(reading)
        if values is None:
            return ()
        fired: list[str] = []
        for i, value in enumerate(values[: len(self._up)]):
            up = self._up[i]
            turned = value < self._falls if up else value >= self._rises
            if not turned:
                self._since[i] = None
                continue
            since = self._since[i]
            if since is None or since > reading.time:  # the clock may have jumped back
                since = self._since[i] = reading.time
            if reading.time - since >= self._debounce:
                self._up[i], self._since[i] = not up, None
                name = (self._opens if up else self._closes)[i]
                fired += [] if name is None else [name]
        return tuple(fired)

    def reset(self) -> None:
        """Return to the entries that are up to begin with."""
        self._signal.reset()
        self._up = [i in self._closed for i in range(len(self._closes))]
        self._since: list[float | None] = [None] * len(self._up)


@dataclass(frozen=True)
class AnyOf:
    """What any of several detectors sees, nothing without any; `Gate` lets a guard through once."""

    detectors: tuple[Detector, ...] = ()

    def __post_init__(self) -> None:
        for i, each in enumerate(check_sequence("detectors", self.detectors)):
            check_instance(f"detectors[{i}]", each, Detector)  # type: ignore[type-abstract]

    def step(self, reading: Reading) -> Guards:
        """The guards that any of the detectors reports for this reading."""
        found = [each.step(reading) for each in self.detectors]
        return tuple(dict.fromkeys(name for names in found for name in names))

    def reset(self) -> None:
        """Reset all detectors."""
        for each in self.detectors:
            each.reset()


class Gate:
    """A detector of only the guards of the reference's next event, each of them once.

    before: how long before its nominal time an event is believed, s. timeout: how long after it, or
    after its first touch if that is later, the guards that are still missing are taken to have
    fired, s; without one they are waited for.
    """

    _position: Position
    _touched: float  # when the event under way began

    def __init__(
        self,
        detector: Detector,
        reference: Reference,
        *,
        before: float = math.inf,
        timeout: float = math.inf,
    ) -> None:
        self._detector = check_instance("detector", detector, Detector)  # type: ignore[type-abstract]
        self._reference = check_instance("reference", reference, Reference)
        for name, length in (("before", before), ("timeout", timeout)):
            if length != math.inf:
                check_number(name, length, at_least=0.0)
        self._before, self._timeout = before, timeout
        self.reset()

    def step(self, reading: Reading) -> Guards:
        """The guards that are believed, and those that are taken to have fired."""
        time, names = reading.time, self._detector.step(reading)
        reference, position = self._reference, self._position
        nominal = due(reference, position)
        if time >= max(nominal, self._touched) + self._timeout:
            fired = missing(reference, position)
        elif names and time >= nominal - self._before:
            fired = missing(reference, position, names)
        else:
            return ()
        if fired:
            self._position = advance(reference, position, fired)
            if self._position.macro > position.macro:
                self._touched = -math.inf
            elif self._touched == -math.inf:
                self._touched = time
        return fired

    def reset(self) -> None:
        """Return to the beginning of the reference."""
        self._detector.reset()
        self._position, self._touched = START, -math.inf


class Delayed:
    """A detector that is late, and blind to some events: for studies.

    delay: s. misses: the probability that a guard is not seen at all. seed: of these chances.
    """

    def __init__(
        self, detector: Detector, *, delay: float = 0.0, misses: float = 0.0, seed: int = 0
    ) -> None:
        self._detector = check_instance("detector", detector, Detector)  # type: ignore[type-abstract]
        self._delay = check_number("delay", delay, at_least=0.0)
        self._misses = check_number("misses", misses, at_least=0.0, at_most=1.0)
        self._seed = check_count("seed", seed, at_least=0)
        self.reset()

    def step(self, reading: Reading) -> Guards:
        """The guards that were seen at least the delay ago, and are reported now."""
        time = reading.time
        for name in self._detector.step(reading):
            if self._random.random() >= self._misses:
                self._waiting.append((time, name))
        fired: list[str] = []
        while self._waiting and not 0.0 <= time - self._waiting[0][0] < self._delay - _ROUNDING:
            fired.append(self._waiting.popleft()[1])
        return tuple(fired)

    def reset(self) -> None:
        """Forget what is still to come."""
        self._detector.reset()
        self._random = np.random.default_rng(self._seed)
        self._waiting: deque[tuple[float, str]] = deque()
