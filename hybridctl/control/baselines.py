r"""Other ways to handle the error near an event, to compare reference spreading with.

Both follow the clock away from events, as `ClockTracking` does, and do something else in a window
around each nominal event time: take the smaller of the errors against the arcs before and after
it, or leave out of the error what an impact can change. Neither knows of the state's own events.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.checks import Array, number
from hybridctl.control.gains import GainSchedule
from hybridctl.control.laws import checked_limits, piece, scheduled, tracking_law
from hybridctl.control.reference import Reference
from hybridctl.control.spreading import on_the_clock
from hybridctl.errors import InputError, SystemDefinitionError
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.policy import History
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event
from hybridctl.sensitivity.gains import reset_derivative

_RANK = 1e-9


@dataclass(frozen=True)
class _Windows:
    """Times around the events of a reference, that do not overlap: starts and ends, s."""

    starts: tuple[float, ...]
    ends: tuple[float, ...]

    @staticmethod
    def around(reference: Reference, width: float) -> _Windows:
        """`width` seconds before and after each event, at most half of the way to the next."""
        times = [event.time for event in reference.events]
        middles = [0.5 * (a + b) for a, b in pairwise(times)]
        earliest, latest = (-math.inf, *middles), (*middles, math.inf)
        return _Windows(
            tuple(max(t - width, least) for t, least in zip(times, earliest, strict=False)),
            tuple(min(t + width, most) for t, most in zip(times, latest, strict=False)),
        )

    def inside(self, time: float) -> int | None:
        """The event in whose window a time is; a window has its start, not its end."""
        k = bisect_right(self.starts, time) - 1
        return k if k >= 0 and time < self.ends[k] else None

    def following(self, time: float) -> float:
        """The next start or end of a window, s; infinite after the last."""
        return min((t for t in (*self.starts, *self.ends) if t > time), default=math.inf)


class NearestTracking:
    """Tracking of whichever arc is nearer near an event: before it or after it, on the clock.

    Within `window` seconds of a nominal event, the state is compared with the extended arcs
    before and after the event, and the one with the smaller Euclidean norm of the error is
    tracked. As that choice depends on the state, it is made where the state jumps and at samples
    at most `period` seconds apart, as a digital controller would; in between the law is smooth.
    gains, limits: see
    `ReferenceSpreading`. Raises `InputError` where the reference is extended less than the window.
    """

    def __init__(
        self,
        reference: Reference,
        gains: GainSchedule | Sequence[ArrayLike],
        *,
        window: float,
        period: float = 1e-3,
        limits: ArrayLike | None = None,
    ) -> None:
        self.reference = reference
        self.gains = scheduled(reference, gains)
        self.period = number("period", period, above=0.0)
        self.limits = checked_limits(reference, limits)
        self._windows = _Windows.around(reference, number("window", window, above=0.0))
        for k in range(len(reference.events)):
            before, after = reference.arcs[k : k + 2]
            start, end = self._windows.starts[k], self._windows.ends[k]
            if max(start, reference.nominal.start) < after.start or before.end < min(
                end, reference.nominal.end
            ):
                raise InputError(
                    f"window must be at most the extension of the reference, got {window} s: at "
                    f"event {k} the arcs are extended over [{after.start:.6g}, {before.end:.6g}] s"
                )

    def law(self, history: History) -> InputLaw:
        """The law of the arc that is chosen now."""
        choice = self._choice(history)
        arc, _ = piece(self.reference.arcs[choice], self.reference.changes[choice], history.time)
        return tracking_law(arc, self.gains.arcs[choice], self.limits).function

    def next_change(self, history: History) -> float:
        """When to choose again, or the feedforward jumps, s."""
        time, choice = history.time, self._choice(history)
        _, end = piece(self.reference.arcs[choice], self.reference.changes[choice], time)
        sample = time + self.period if self._windows.inside(time) is not None else math.inf
        return min(end, sample, self._windows.following(time))

    def _choice(self, history: History) -> int:
        """The arc of the reference to be tracked now."""
        event = self._windows.inside(history.time)
        if event is None:
            return on_the_clock(self.reference, history.time)[1]
        errors = [
            float(np.linalg.norm(arc.space.difference(history.state, arc(history.time))))
            for arc in self.reference.arcs[event : event + 2]
        ]
        return event + int(errors[1] < errors[0])


class ImpactInvariantTracking:
    r"""Tracking on the clock, of what impacts cannot change while one is expected.

    Within `window` seconds of a nominal event the velocity error is multiplied by the projector

    .. math:: P = I - B (C B)^+ C, \qquad B C = D_{\dot q} R_{\dot q} - I,

    with the columns of B what the resets of the event's guards can change, and the rows of C what
    they depend on: :math:`P = I - M^{-1} J^\top (J M^{-1} J^\top)^+ J` for impacts without
    friction, whatever their restitution. It has the jump of the velocity in its kernel, so that
    the projected error does not peak. Taken at the nominal event; the second half of the tangent
    space is the velocity. gains, limits: see `ReferenceSpreading`.

    Raises `SystemDefinitionError` where a reset has no Jacobian, or P does not exist because an
    impact changes what it depends on to second order only.
    """

    def __init__(
        self,
        system: HybridSystem,
        reference: Reference,
        gains: GainSchedule | Sequence[ArrayLike],
        *,
        window: float,
        limits: ArrayLike | None = None,
    ) -> None:
        self.reference = reference
        self.gains = scheduled(reference, gains)
        self.limits = checked_limits(reference, limits)
        self.projectors = tuple(impact_projector(system, event) for event in reference.events)
        self._windows = _Windows.around(reference, number("window", window, above=0.0))

    def law(self, history: History) -> InputLaw:
        """The law of the arc on which the reference is now, with or without the projector."""
        arc, macro = on_the_clock(self.reference, history.time)
        event = self._windows.inside(history.time)
        projector = None if event is None else self.projectors[event]
        return tracking_law(arc, self.gains.arcs[macro], self.limits, projector)

    def next_change(self, history: History) -> float:
        """When the reference has an event or its feedforward jumps, or a window ends, s."""
        arc, _ = on_the_clock(self.reference, history.time)
        end = math.inf if arc is self.reference.nominal.arcs[-1] else arc.end
        return min(end, self._windows.following(history.time))


def impact_projector(system: HybridSystem, event: Event) -> Array:
    """The projector (ndx, ndx) off what the guards of an event change, the identity on positions.

    See `ImpactInvariantTracking`.
    """
    mode = system.mode(event.mode_before)
    ndx = mode.space.ndx
    half = ndx // 2
    columns, rows = [np.zeros((ndx - half, 0))], [np.zeros((0, ndx - half))]
    for name in event.guards:
        at = (event.time, event.state_before, event.input_before)
        change = reset_derivative(system, mode, name, *at).state[half:, half:] - np.eye(ndx - half)
        u, sizes, v = np.linalg.svd(change)
        rank = int((sizes > _RANK).sum())
        columns.append(u[:, :rank] * sizes[:rank])
        rows.append(v[:rank])
    b, c = np.hstack(columns), np.vstack(rows)
    projector = np.eye(ndx)
    projector[half:, half:] -= b @ np.linalg.pinv(c @ b, rcond=_RANK) @ c
    if np.abs(projector @ projector - projector).max() > 1e-6 or (
        np.linalg.matrix_rank(c @ b, tol=_RANK) < np.linalg.matrix_rank(b, tol=_RANK)
    ):
        raise SystemDefinitionError(
            f"the resets of {event.guards} have no projector off what they change"
        )
    return projector
