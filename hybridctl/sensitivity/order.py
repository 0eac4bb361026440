"""The times of events of a deviated run, and how large it may be until their order changes."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import OrderChangeWarning
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.sensitivity.gains import JumpGains
from hybridctl.sensitivity.nearby import NearbyEvents, PiecewiseAffineJump
from hybridctl.sensitivity.piecewise import Passage, PiecewiseLinearJump

_TOGETHER = 1e-9  # of the shifts of two events: what rounding leaves of events that stay together


class EventShifts(NamedTuple):
    """Delays against the run of events `first` to `last`, for m deviations, in s.

    earliest, latest (m,): the guard that fires first, after the time of event `first`, and the one
    that fires last, after that of event `last`.
    """

    first: int
    last: int
    earliest: Array
    latest: Array


class OrderChange(NamedTuple):
    """The deviation at which the order of events changes first, along a direction.

    size: in units of the direction, infinite where it never does. events: indices of the two that
    meet; -1 is the start of the run, and the number of its events is its end. Twice the same one
    where contacts of one impact touch too far apart to be one.
    """

    size: float
    events: tuple[int, int] | None


@dataclass(frozen=True, eq=False)
class RunPassage:
    """What becomes of deviations (ndx,), or (m, ndx), over a run: at its end, and at its events."""

    state: Array
    shifts: tuple[EventShifts, ...]

    def gaps(self, run: HybridTrajectory) -> tuple[Array, Array, list[tuple[int, int]]]:
        """Times between events that follow each other: lags (g,) in the run, changes (g, m).

        Besides, which events those are, with the start and the end of the run. Events that are at
        the same time and not one event cause each other.
        """
        ends = len(run.events)
        none = np.zeros_like(self.shifts[0].earliest) if self.shifts else np.zeros(1)
        found = list[tuple[float, Array, tuple[int, int]]]()
        before, time, late = -1, run.start, none
        for first, last, earliest, latest in (*self.shifts, EventShifts(ends, ends, none, none)):
            lag = (run.end if first == ends else run.events[first].time) - time
            change = earliest - late
            change[np.abs(change) <= _TOGETHER * np.maximum(np.abs(earliest), np.abs(late))] = 0.0
            if lag > 0.0:
                found.append((lag, change, (before, first)))
            before, late = last, latest
            time = run.end if last == ends else run.events[last].time
        lags, changes, pairs = zip(*found, strict=True) if found else ((), (), ())
        return np.array(lags), np.array(changes).reshape(len(lags), len(none)), list(pairs)

    def change(self, run: HybridTrajectory) -> OrderChange:
        """The first change of the order, in units of these deviations, if shifts grow with them."""
        lags, changes, pairs = self.gaps(run)
        with np.errstate(divide="ignore"):
            sizes = np.where(changes < 0.0, lags[:, None] / -changes, np.inf)
        if not np.isfinite(sizes).any():
            return OrderChange(np.inf, None)
        k = int(sizes.min(axis=1).argmin())
        return OrderChange(float(sizes[k].min()), pairs[k])

    def warn(self, run: HybridTrajectory) -> None:
        """Warn with `OrderChangeWarning` where the order of events has changed."""
        found = self.change(run)
        if found.events is not None and found.size < 1.0:
            warnings.warn(
                f"a deviation changes the order of events: {_told(run, found.events)} meet at "
                f"{found.size:.3g} of it, beyond which the linearization is that of another "
                "order. linearize(..., merge=WINDOW) takes events within WINDOW s as one jump",
                OrderChangeWarning,
                stacklevel=3,
            )


def through_event(
    jump: JumpGains | PiecewiseLinearJump, k: int, guards: int, z: Array, du: Array | None
) -> tuple[Array, EventShifts]:
    """Deviations (..., ndx+) after event k of so many guards, and its shifts."""
    if isinstance(jump, JumpGains):
        shift = np.atleast_1d(z @ jump.time_state + (0.0 if du is None else jump.time_input @ du))
        return jump(z, du), EventShifts(k, k, shift, shift)
    passage = jump.follow(z, du)
    return passage.state, EventShifts(k, k, *_extremes(passage, guards))


def through_events(
    jump: PiecewiseAffineJump, group: NearbyEvents, z: Array
) -> tuple[Array, EventShifts]:
    """Deviations (..., ndx+) after events that are one jump, and their shifts."""
    passage = jump.follow(z)
    earliest, latest = _extremes(passage, len(jump.guards))
    shifts = EventShifts(group.first, group.last, earliest, latest - group.phantoms.window)
    return passage.state, shifts


def _extremes(passage: Passage, guards: int) -> tuple[Array, Array]:
    """The first and the last time (m,) of guards that fire; those that others do have none."""
    times, orders = np.atleast_2d(passage.times), np.atleast_2d(passage.orders)
    own = (times != 0.0) & (orders < guards)
    none = ~own.any(axis=1)
    first = np.where(own, times, np.inf).min(axis=1)
    last = np.where(own, times, -np.inf).max(axis=1)
    return np.where(none, 0.0, first), np.where(none, 0.0, last)


def _told(run: HybridTrajectory, pair: tuple[int, int]) -> str:
    """The names of two events, in words."""
    return " and ".join(_named(run, k) for k in pair)


def _named(run: HybridTrajectory, k: int) -> str:
    if k < 0:
        return "the start of the run"
    if k == len(run.events):
        return "the end of the run"
    event = run.events[k]
    return f"event {k} ({', '.join(event.guards) or 'the input changes'}, t = {event.time:.9g} s)"
