"""The time that is left for a sample, and how long pieces of its work usually take.

Work that can be left out begins only if there is time for as long as it usually takes. Once the
deadline is exceeded, it ends at its next step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Literal

from hybridctl.base.errors import SimulationError

NO_TIME_LEFT = "no time is left"
"""Reason in the notes on work that a deadline has cut. `FilterResult.cut` counts these."""
Piece = Literal[
    "simulation",
    "event",
    "linear step",
    "linear event",
    "overdue event",
    "early guard",
    "other order",
    "value",
    "correction",
    "disturbances",
]
"""Kind of work: a simulation of a prediction; the covariance along an arc of it and through its
event; a linearised step of a prediction that ends without time (`cut_prediction`), and its event;
an event before the present; a guard that may have fired early; another order of events; the
comparison of one of several hypotheses with a value, and its correction by that; the correction of
all kinds of motion of a hypothesis."""
CORRECTION: tuple[Piece, ...] = ("value", "correction")
"""The work of a value on one of several hypotheses."""
_TYPICAL_DURATIONS: dict[Piece, float] = {
    "simulation": 1.0,
    "event": 1.0,
    "linear step": 0.3,
    "linear event": 0.8,
    "overdue event": 2.0,
    "early guard": 1.5,
    "other order": 2.0,
    "value": 0.3,
    "correction": 0.5,
    "disturbances": 0.5,
}
"""Durations relative to an event, for pieces that were not measured yet: a cube's, rounded."""
_NEWEST_WEIGHT = 0.1
"""Weight of the newest duration in the running means. A choice."""
_FIRST_DEVIATION = 0.5
"""Mean deviation of a duration that was measured once, relative to it. A choice."""
_MAX_RATIO = 4.0
"""Largest duration, in its running mean, that enters the mean: a mode that is visited for the first
time takes twenty times as long as usual. A choice."""
_FORGETTING = 0.99
"""Factor of the expected duration of a piece each time that it is refused. A choice."""
_DEVIATIONS = 2.0
"""Mean deviations above the mean that a piece of work is expected to take. A choice."""


class DeadlineError(SimulationError):
    """Raised within a simulation whose deadline is exceeded. No user sees it."""


class Deadline:
    """The deadline of the present sample.

    Life cycle: `limit` is set at the beginning of each sample, and for each part of its work.

    Args:
        clock: Returns the time in s.

    Attributes:
        limit: Time of the clock at which work ends, s; inf for none.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self.clock = clock
        self.limit = math.inf
        self._durations: dict[Piece, tuple[float, float]] = {}
        self._event_duration = 0.0  # by the last measurement of any piece, s

    def is_exceeded(self) -> bool:
        """Return whether no time is left."""
        return self.clock() > self.limit

    def has_time_for(self, *pieces: Piece, beside: float = 0.0) -> bool:
        """Return whether there is time for pieces of work, as long as they usually take.

        Pieces that are refused before the deadline are expected to take a little less from then on:
        what is never begun is never measured, and one slow case would rule it out for ever.

        A piece of a kind that was never measured is expected to take as long as by the last kind
        that was, see `_TYPICAL_DURATIONS`; before the first measurement, no time.

        Args:
            *pieces: Kinds of work.
            beside: Time of other work that is to be done, s.
        """
        now = self.clock()
        if now + sum(map(self._expect, pieces)) + beside <= self.limit:
            return True
        if now <= self.limit:
            for piece in self._durations.keys() & set(pieces):
                mean, deviation = self._durations[piece]
                self._durations[piece] = _FORGETTING * mean, _FORGETTING * deviation
        return False

    @contextmanager
    def measure(self, piece: Piece) -> Iterator[None]:
        """Measure the duration of a piece of work in the block, whatever it raises.

        Args:
            piece: Kind of work.

        Raises:
            DeadlineError: That of the block.
        """
        begun, least = self.clock(), 0.0
        try:
            yield
        except DeadlineError:
            # Work that was broken off takes at least as long: what is shorter tells nothing.
            least = self._durations.get(piece, (0.0, 0.0))[0]
            raise
        finally:
            self._learn_duration(piece, max(self.clock() - begun, least))

    def _learn_duration(self, piece: Piece, taken: float) -> None:
        """Take a duration in s into the running mean of a kind of work."""
        mean, deviation = self._durations.get(piece, (taken, _FIRST_DEVIATION * taken))
        taken = min(taken, _MAX_RATIO * mean)
        deviation += _NEWEST_WEIGHT * (abs(taken - mean) - deviation)
        mean += _NEWEST_WEIGHT * (taken - mean)
        self._durations[piece] = mean, deviation
        self._event_duration = mean / _TYPICAL_DURATIONS[piece]

    def _expect(self, piece: Piece) -> float:
        """Return the duration of a piece of work that few exceed, s."""
        if piece not in self._durations:
            return self._event_duration * _TYPICAL_DURATIONS[piece]
        mean, deviation = self._durations[piece]
        return mean + _DEVIATIONS * deviation


class _NoDeadline(Deadline):
    """The deadline of filters without one, which measures nothing."""

    def is_exceeded(self) -> bool:
        return False

    def has_time_for(self, *pieces: Piece, beside: float = 0.0) -> bool:
        return True

    @contextmanager
    def measure(self, piece: Piece) -> Iterator[None]:
        yield


NO_DEADLINE: Deadline = _NoDeadline()
"""The deadline of filters without one."""
