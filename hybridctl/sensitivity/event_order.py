"""Order of events: event times of a perturbed run, and perturbations that change their order.

A linearization holds while the events of a perturbed run keep their order. To first order, the
event times shift by `EventShifts`; the order changes where two shifted times meet, an
`OrderChange`.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import OrderChangeWarning
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.sensitivity.merged_events import MergedEvents, PiecewiseAffineJump
from hybridctl.sensitivity.piecewise import Passage, PiecewiseLinearJump
from hybridctl.sensitivity.saltation import JumpGains

_SHIFT_ROUNDING = 1e-9
"""Difference of the shifts of two events that is rounding, relative to the larger one: events that
stay together, such as those of one contact."""


class EventShifts(NamedTuple):
    """Shifts of the times of one event, or of merged events, for m perturbations.

    Attributes:
        first: Index of the event, or of the first of merged events.
        last: Index of the event, or of the last of merged events.
        earliest: Time (m,) in s at which the first of their guards fires, after event `first`.
        latest: Time (m,) in s at which the last of their guards fires, after event `last`.
    """

    first: int
    last: int
    earliest: Array
    latest: Array


class OrderChange(NamedTuple):
    """The least perturbation along a direction at which the order of events changes.

    Attributes:
        size: Size of the perturbation in units of the direction. Infinite if the order never
            changes.
        events: Indices of the two events that meet; -1 is the start of the run, and the number of
            its events is its end. Twice the same index where the contacts of one impact "at once"
            touch so far apart that they are several events (`radius.find_spread_change`). None if
            the order never changes.
    """

    size: float
    events: tuple[int, int] | None


@dataclass(frozen=True, eq=False)
class RunPassage:
    """Perturbations at the end of a run, and the shifts of its events.

    Attributes:
        state: Perturbation (ndx+,) at the end, or m of them in rows.
        shifts: Shifts of the events in the order of the run, merged ones as one entry.
    """

    state: Array
    shifts: tuple[EventShifts, ...]

    def gaps(self, run: HybridTrajectory) -> tuple[Array, Array, list[tuple[int, int]]]:
        """Return the times between consecutive events of the run and their first-order changes.

        Events at the same time that are not one event cause each other, and have no gap.

        Args:
            run: The nominal run.

        Returns:
            Gaps (g,) in the run, s. Their changes (g, m) by the perturbations, s. The indices of
            the events on both sides, with -1 for the start and the number of events for the end.
        """
        ends = len(run.events)
        none = np.zeros_like(self.shifts[0].earliest) if self.shifts else np.zeros(1)
        found = list[tuple[float, Array, tuple[int, int]]]()
        before, time, latest_before = -1, run.start, none
        for first, last, earliest, latest in (*self.shifts, EventShifts(ends, ends, none, none)):
            gap = (run.end if first == ends else run.events[first].time) - time
            change = earliest - latest_before
            size = np.maximum(np.abs(earliest), np.abs(latest_before))
            change[np.abs(change) <= _SHIFT_ROUNDING * size] = 0.0
            if gap > 0.0:
                found.append((gap, change, (before, first)))
            before, latest_before = last, latest
            time = run.end if last == ends else run.events[last].time
        gaps, changes, pairs = zip(*found, strict=True) if found else ((), (), ())
        return np.array(gaps), np.array(changes).reshape(len(gaps), len(none)), list(pairs)

    def change(self, run: HybridTrajectory) -> OrderChange:
        """Return the change of the order at the least multiple of these perturbations.

        Args:
            run: The nominal run.

        Returns:
            The change of least size over all m perturbations. Its size is exact to first order if
            shifts are proportional to the perturbation, that is, if no events are merged. With
            merged events it only tells whether the order has changed: it is below 1 if so.
        """
        gaps, changes, pairs = self.gaps(run)
        with np.errstate(divide="ignore"):
            sizes = np.where(changes < 0.0, gaps[:, None] / -changes, np.inf)
        if not np.isfinite(sizes).any():
            return OrderChange(np.inf, None)
        k = int(sizes.min(axis=1).argmin())
        return OrderChange(float(sizes[k].min()), pairs[k])

    def warn(self, run: HybridTrajectory) -> None:
        """Warn with `OrderChangeWarning` if the order of the events of the run has changed."""
        found = self.change(run)
        if found.events is not None and found.size < 1.0:
            meeting = " and ".join(_describe_event(run, k) for k in found.events)
            warnings.warn(
                f"a perturbation changes the order of events: {meeting} meet at {found.size:.3g} "
                "of it, beyond which the linearization is that of another order. "
                "linearize(..., merge=WINDOW) takes events within WINDOW s as one jump",
                OrderChangeWarning,
                stacklevel=3,
            )


def follow_event(
    jump: JumpGains | PiecewiseLinearJump, k: int, guards: int, z: Array, du: Array | None
) -> tuple[Array, EventShifts]:
    """Return perturbations after an event, and its shifts.

    Args:
        jump: The jump of the event.
        k: Index of the event.
        guards: Number of its guards. A piecewise linear jump may have the border of a reset besides
            (`simultaneous.linearize_at_border`), whose time is not that of a guard.
        z: Perturbation (ndx,) before it, or m of them in rows.
        du: Change (nu,) of the input at the event. None for no change.

    Returns:
        Perturbation (ndx+,) or (m, ndx+), and the shifts.
    """
    if isinstance(jump, JumpGains):
        shift = np.atleast_1d(z @ jump.time_state + (0.0 if du is None else jump.time_input @ du))
        return jump(z, du), EventShifts(k, k, shift, shift)
    passage = jump.follow(z, du)
    return passage.state, EventShifts(k, k, *_find_extreme_times(passage, guards))


def follow_merged_events(
    jump: PiecewiseAffineJump, merged: MergedEvents, z: Array
) -> tuple[Array, EventShifts]:
    """Return perturbations after merged events, and their shifts.

    Args:
        jump: The jump of the events.
        merged: The events.
        z: Perturbation (ndx,) before them, or m of them in rows.

    Returns:
        Perturbation (ndx+,) or (m, ndx+), and the shifts: of the first guard relative to the first
        event, of the last guard relative to the last event.
    """
    passage = jump.follow(z)
    earliest, latest = _find_extreme_times(passage, len(jump.guards))
    shifts = EventShifts(merged.first, merged.last, earliest, latest - merged.motions.window)
    return passage.state, shifts


def _find_extreme_times(passage: Passage, guards: int) -> tuple[Array, Array]:
    """Return the first and the last time (m,), s, at which guards of an event fire.

    A guard whose work another one has done has no time: its jump is the identity with the time
    zero, exactly. Times are 0 if no guard has one.

    Args:
        passage: Passage of m perturbations.
        guards: Number of guards. Indices from there on are borders of resets.
    """
    times, orders = np.atleast_2d(passage.times), np.atleast_2d(passage.orders)
    has_time = (times != 0.0) & (orders < guards)
    none = ~has_time.any(axis=1)
    first = np.where(has_time, times, np.inf).min(axis=1)
    last = np.where(has_time, times, -np.inf).max(axis=1)
    return np.where(none, 0.0, first), np.where(none, 0.0, last)


def _describe_event(run: HybridTrajectory, k: int) -> str:
    """Return an event in words, for messages; -1 is the start of the run."""
    if k < 0:
        return "the start of the run"
    if k == len(run.events):
        return "the end of the run"
    event = run.events[k]
    return f"event {k} ({', '.join(event.guards) or 'the input changes'}, t = {event.time:.9g} s)"
