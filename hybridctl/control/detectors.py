r"""Detectors: events of touches that a controller in a loop finds in its sensors, by samples.

A *signal* makes numbers of a reading, one per contact: a channel as it is measured, the forces that
a momentum observer infers, or the contacts that are closed in the mode of a filter. `Threshold`
makes events of a signal: names of guards that fire. Other detectors take detectors: several at
once, only near the time at which the reference has its event, or late and incomplete.

.. math:: \dot r = L \, (J^\top \lambda - r)

is the momentum observer: r follows the joint torques of the contact forces with the rate L in 1/s.

Signals and detectors are called with readings in the order of time. `reset` begins anew.
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
from hybridctl.control.spreading import (
    START,
    Position,
    advance,
    get_due_time,
    list_missing_guards,
)
from hybridctl.hybrid.mode import ModeKey
from hybridctl.mechanics.modes.dynamics import ContactDynamics
from hybridctl.mechanics.system import closed_contacts

Guards = tuple[str, ...]
_DELAY_ROUNDING = 1e-9
"""Time in s by which a sample may miss the end of a delay by rounding."""
_FORCE_RANK_TOLERANCE = 1e-9
"""Singular value of J M^-1 J', relative to the largest, below which forces count as dependent."""


class Reading(NamedTuple):
    """A sample of a controller's loop.

    Attributes:
        time: Time, s.
        state: State (nx,).
        input: Input (nu,) since the sample before.
        sensed: Sensor signals, by channel.
    """

    time: float
    state: Array
    input: Array
    sensed: Mapping[str, Any]


@runtime_checkable
class Signal(Protocol):
    """Numbers per contact, reading by reading."""

    def __call__(self, reading: Reading) -> Sequence[float] | None:
        """Return the numbers of a reading; None where it has none."""
        ...

    def reset(self) -> None:
        """Forget all readings."""
        ...


@runtime_checkable
class Detector(Protocol):
    """Events, reading by reading."""

    def step(self, reading: Reading) -> Guards:
        """Return the names of the guards that fire, as far as this reading tells."""
        ...

    def reset(self) -> None:
        """Forget all readings."""
        ...


@dataclass(frozen=True)
class Channel:
    """The signal of a channel of the sensors: flags, or forces in N.

    Attributes:
        name: Name of the channel.
    """

    name: str

    def __call__(self, reading: Reading) -> Sequence[float] | None:
        """Return the numbers of the channel; None where the reading lacks it."""
        values = reading.sensed.get(self.name)
        if values is None:
            return None
        numbers: list[float] = np.asarray(values, dtype=np.float64).ravel().tolist()
        return numbers

    def reset(self) -> None:
        """Do nothing: this signal has no memory."""


@dataclass(frozen=True)
class ModeFlags:
    """The signal of the contacts that are closed in a mode, such as that of a filter's estimate.

    Attributes:
        channel: Channel that holds the mode of a contact system.
    """

    channel: str = "mode"

    def __call__(self, reading: Reading) -> Sequence[float] | None:
        """Return 1 for each closed contact and 0 for each open one; None without a mode."""
        mode: ModeKey | None = reading.sensed.get(self.channel)
        if not isinstance(mode, tuple):
            return None
        closed = closed_contacts(mode)
        return [float(i in closed) for i in range(len(mode))]

    def reset(self) -> None:
        """Do nothing: this signal has no memory."""


@dataclass(eq=False)
class MomentumForces:
    r"""The signal of normal forces in N that a momentum observer infers.

    Over a sample of length h the torques of contacts are M (v+ - v) / h - (S u - b), with all terms
    at the beginning of the sample. r follows them with the rate L. The normal forces of the
    contacts are :math:`(J M^{-1} J^\top)^+ J M^{-1} r`, with the Jacobian J of all gaps, open ones
    too; friction is not among them, so that its part along J counts as normal force. An impulse
    shows as a force of L times it, which decays at that rate. Forces that push are positive.

    Attributes:
        dynamics: Dynamics of the robot with its contacts.
        rate: Rate L of the observer, 1/s.
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
        """Return the normal forces of all contacts, N; None at the first reading.

        The residual r is updated. A reading that is not later than the one before it gives None and
        leaves r as it is.
        """
        last, self._last = self._last, reading
        if last is None or not reading.time > last.time:
            return None
        robot = self.dynamics.robot
        nq, h = robot.nq, reading.time - last.time
        q, v = last.state[:nq], last.state[nq:]
        mass, rows = robot.mass_matrix(q), self.dynamics.gap_jacobian(q)
        momentum_change = mass @ (reading.state[nq:] - v)
        driving = robot.actuation @ reading.input - robot.bias(q, v)
        share = -math.expm1(-self.rate * h)  # exact decay over a sample of any length
        self._residual += share * (momentum_change / h - driving - self._residual)
        responses = np.linalg.solve(mass, np.column_stack([rows.T, self._residual]))
        delassus, answer = rows @ responses[:, :-1], rows @ responses[:, -1]
        forces: list[float] = np.linalg.lstsq(delassus, answer, rcond=_FORCE_RANK_TOLERANCE)[
            0
        ].tolist()
        return forces

    def reset(self) -> None:
        """Forget all readings."""
        self._last, self._residual = None, np.zeros(self.dynamics.robot.nv)


class Threshold:
    """Events where entries of a signal rise to a level, or fall below another.

    An entry that is up counts as a closed contact. It goes down where the signal is below `falls`,
    and up again where it reaches `rises`.

    Args:
        signal: Signal, or the name of a channel.
        closes: Guard that fires where an entry rises; None for an entry without one.
        opens: Guard that fires where an entry falls, likewise; None for no such guards.
        rises: Level at which an entry goes up, in the unit of the signal.
        falls: Level below which it goes down; None for the same level.
        debounce: Time in s for which the signal must have been there.
        closed: Indices of the entries that are up to begin with.

    Entries of the signal beyond those of `closes` are ignored.

    Raises:
        InputError: `falls` is above `rises`, `opens` and `closes` differ in length, or another
            argument does not fit.
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
        self._closing_guards = check_sequence("closes", closes)
        self._opening_guards = check_sequence("opens", opens or [None] * len(self._closing_guards))
        if len(self._opening_guards) != len(self._closing_guards):
            raise InputError(
                f"opens must have an entry for each of closes ({len(self._closing_guards)}), "
                f"got {self._opening_guards}"
            )
        self._rise_level = check_number("rises", rises)
        self._fall_level = check_number(
            "falls", rises if falls is None else falls, at_most=self._rise_level
        )
        self._debounce = check_number("debounce", debounce, at_least=0.0)
        self._closed = frozenset(check_count("closed", i, at_least=0) for i in closed)
        self.reset()

    def step(self, reading: Reading) -> Guards:
        """Return the guards of entries that have risen or fallen, and update which are up."""
        values = self._signal(reading)
        if values is None:
            return ()
        fired: list[str] = []
        for i, value in enumerate(values[: len(self._is_up)]):
            is_up = self._is_up[i]
            has_turned = value < self._fall_level if is_up else value >= self._rise_level
            if not has_turned:
                self._turned_since[i] = None
                continue
            since = self._turned_since[i]
            if since is None or since > reading.time:  # the clock may have jumped back
                since = self._turned_since[i] = reading.time
            if reading.time - since >= self._debounce:
                self._is_up[i], self._turned_since[i] = not is_up, None
                name = (self._opening_guards if is_up else self._closing_guards)[i]
                fired += [] if name is None else [name]
        return tuple(fired)

    def reset(self) -> None:
        """Return to the entries that are up to begin with."""
        self._signal.reset()
        self._is_up = [i in self._closed for i in range(len(self._closing_guards))]
        # Time in s since which an entry has been on the other side; None where it is not.
        self._turned_since: list[float | None] = [None] * len(self._is_up)


@dataclass(frozen=True)
class AnyOf:
    """The events that any of several detectors reports; without detectors, none.

    Two detectors may report the same touch one after the other. `Gate` lets each guard through
    once.

    Attributes:
        detectors: The detectors.
    """

    detectors: tuple[Detector, ...] = ()

    def __post_init__(self) -> None:
        for i, each in enumerate(check_sequence("detectors", self.detectors)):
            check_instance(f"detectors[{i}]", each, Detector)  # type: ignore[type-abstract]

    def step(self, reading: Reading) -> Guards:
        """Return the guards that any of the detectors reports for this reading."""
        reports = [each.step(reading) for each in self.detectors]
        return tuple(dict.fromkeys(name for names in reports for name in names))

    def reset(self) -> None:
        """Reset all detectors."""
        for each in self.detectors:
            each.reset()


class Gate:
    """A detector that reports only guards of the reference's next event, each of them once.

    Other guards, and those that come too early, are dropped for good: if the signal stays up, no
    later reading brings them again.

    Args:
        detector: Detector whose events are let through or not.
        reference: The reference.
        before: Time in s before its nominal time from which on an event is believed.
        timeout: Time in s after the nominal time, or after the first touch if that is later, at
            which guards that are still missing are taken to have fired. inf waits for them.

    Raises:
        InputError: An argument does not fit.
    """

    _position: Position
    _first_touch: float  # of the event that has begun, s; -inf before its first touch

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
        self._lead, self._timeout = before, timeout
        self.reset()

    def step(self, reading: Reading) -> Guards:
        """Return the guards that count as fired, and update the position in the reference."""
        time, names = reading.time, self._detector.step(reading)
        reference, position = self._reference, self._position
        due = get_due_time(reference, position)
        if time >= max(due, self._first_touch) + self._timeout:
            fired = list_missing_guards(reference, position)
        elif names and time >= due - self._lead:
            fired = list_missing_guards(reference, position, names)
        else:
            return ()
        if fired:
            self._position = advance(reference, position, fired)
            if self._position.macro > position.macro:
                self._first_touch = -math.inf
            elif self._first_touch == -math.inf:
                self._first_touch = time
        return fired

    def reset(self) -> None:
        """Return to the beginning of the reference."""
        self._detector.reset()
        self._position, self._first_touch = START, -math.inf


class Delayed:
    """A detector that reports events late, and some of them never: for studies.

    Args:
        detector: Detector whose events are delayed.
        delay: Delay, s.
        misses: Probability that an event of a guard is never reported.
        seed: Seed of the random numbers.

    Raises:
        InputError: An argument does not fit.
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
        """Return the guards whose delay is over at this reading, after queueing those that fire."""
        time = reading.time
        for name in self._detector.step(reading):
            if self._random.random() >= self._misses:
                self._queue.append((time, name))
        fired: list[str] = []
        # A clock that jumps backwards reports what was waiting at once.
        while self._queue and not 0.0 <= time - self._queue[0][0] < self._delay - _DELAY_ROUNDING:
            fired.append(self._queue.popleft()[1])
        return tuple(fired)

    def reset(self) -> None:
        """Forget what is still to be reported, and begin the random numbers anew."""
        self._detector.reset()
        self._random = np.random.default_rng(self._seed)
        self._queue: deque[tuple[float, str]] = deque()
