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

from hybridctl.base.checks import Array, check_number, check_semidefinite
from hybridctl.base.errors import InputError, SystemDefinitionError
from hybridctl.control.gains import GainCurve, GainSchedule
from hybridctl.control.impacts import Impact
from hybridctl.control.laws import ProjectedGain, Tracking, checked_limits, next_jump, scheduled
from hybridctl.control.reference import Reference
from hybridctl.control.spreading import on_the_clock
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.policy import History
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event
from hybridctl.sensitivity.saltation import evaluate_event_sides, get_differentiable_reset

_RANK = 1e-9


@dataclass(frozen=True)
class _Windows:
    """Times around the events of a reference, that do not overlap: starts and ends, s."""

    starts: tuple[float, ...]
    ends: tuple[float, ...]

    @staticmethod
    def around(reference: Reference, window: float | Sequence[float]) -> _Windows:
        """Windows this long before and after each event, at most half of the way to the next."""
        pair = (window, window) if isinstance(window, float | int) else tuple(window)
        if len(pair) != 2:
            raise InputError(f"window must be one length, or one before and after, got {window}")
        early, late = (check_number("window", width, at_least=0.0) for width in pair)
        if not early + late > 0.0:
            raise InputError(f"window must be greater than 0, got {window}")
        times = [event.time for event in reference.events]
        middles = [0.5 * (a + b) for a, b in pairwise(times)]
        earliest, latest = (-math.inf, *middles), (*middles, math.inf)
        return _Windows(
            tuple(max(t - early, least) for t, least in zip(times, earliest, strict=False)),
            tuple(min(t + late, most) for t, most in zip(times, latest, strict=False)),
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

    Within `window` seconds of a nominal event (or so many before and after it, two numbers) the
    state is compared with the extended arcs before and after the event, and the one with the
    smaller error e is tracked: that of smaller e' W e, W being the `metric` (ndx, ndx), the
    identity by default. As that choice depends on the state, it is made where the state jumps and
    at samples at most `period` seconds apart, as a digital controller would; in between the law is
    smooth. gains, limits: see `ReferenceSpreading`.

    Raises `InputError` where the reference is extended less than the window.
    """

    def __init__(
        self,
        reference: Reference,
        gains: GainSchedule | Sequence[ArrayLike],
        *,
        window: float | Sequence[float],
        period: float = 1e-3,
        metric: ArrayLike | None = None,
        limits: ArrayLike | None = None,
    ) -> None:
        self.reference = reference
        self.gains = scheduled(reference, gains)
        self.period = check_number("period", period, above=0.0)
        self.limits = checked_limits(reference, limits)
        self._windows = _Windows.around(reference, window)
        ndx = reference.arcs[0].space.ndx
        weight = np.eye(ndx) if metric is None else check_semidefinite("metric", metric, ndx)
        self._metric = weight
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
        arc = self.reference.arcs[choice].piece(history.time)
        return Tracking(arc, self.gains.arcs[choice], self.limits)

    def next_change(self, history: History) -> float:
        """The time to choose again, or when the feedforward jumps, s."""
        time, choice = history.time, self._choice(history)
        end = next_jump(self.reference.arcs[choice], time)
        sample = time + self.period if self._windows.inside(time) is not None else math.inf
        return min(end, sample, self._windows.following(time))

    def _choice(self, history: History) -> int:
        """The arc of the reference to be tracked now."""
        event = self._windows.inside(history.time)
        if event is None:
            return on_the_clock(self.reference, history.time)[1]
        sizes = []
        for arc in self.reference.arcs[event : event + 2]:
            error = arc.space.difference(history.state, arc.state_and_input(history.time)[0])
            sizes.append(float(error @ self._metric @ error))
        return event + int(sizes[1] < sizes[0])


class ImpactInvariantTracking:
    r"""Tracking on the clock, of what impacts cannot change while one is expected.

    Within `window` seconds of a nominal event (or so many before and after it, two numbers) the
    velocity error is multiplied by the projector

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
        window: float | Sequence[float],
        blend: float = 0.0,
        velocities: Sequence[int] | None = None,
        limits: ArrayLike | None = None,
    ) -> None:
        self.reference = reference
        self.gains = scheduled(reference, gains)
        self.limits = checked_limits(reference, limits)
        self.blend = check_number("blend", blend, at_least=0.0)
        self.projectors = tuple(
            impact_projector(system, event)
            if velocities is None
            else _projector_of(impact, velocities, reference.arcs[k].space.ndx)
            for k, (event, impact) in enumerate(
                zip(reference.events, reference.impacts, strict=True)
            )
        )
        self._windows = _Windows.around(reference, window)

    def law(self, history: History) -> InputLaw:
        """The law of the arc on which the reference is now, with or without the projector."""
        arc, macro = on_the_clock(self.reference, history.time)
        event = self._windows.inside(history.time)
        gain: GainCurve | ProjectedGain = self.gains.arcs[macro]
        if event is not None:
            removed = np.eye(arc.space.ndx) - self.projectors[event]
            ends = self._windows.starts[event], self._windows.ends[event]
            gain = ProjectedGain(self.gains.arcs[macro], removed, *ends, self.blend)
        return Tracking(arc, gain, self.limits).differentiable()

    def next_change(self, history: History) -> float:
        """The time when the reference has an event, its feedforward jumps, or a window ends, s."""
        arc, _ = on_the_clock(self.reference, history.time)
        end = math.inf if arc is self.reference.nominal.arcs[-1] else arc.end
        return min(end, self._windows.following(history.time))


def _projector_of(impact: Impact | None, velocities: Sequence[int], ndx: int) -> Array:
    """The projector (ndx, ndx) off what the impulses of an impact do to some velocities."""
    projector = np.eye(ndx)
    if impact is None:
        return projector
    explanation = impact.explanation(velocities)
    kept = [ndx // 2 + i for i in explanation.velocities]
    projector[ndx // 2 :] = 0.0
    projector[np.ix_(kept, kept)] = explanation.projector
    return projector


def impact_projector(system: HybridSystem, event: Event) -> Array:
    """The projector (ndx, ndx) off what the guards of an event change, the identity on positions.

    See `ImpactInvariantTracking`.
    """
    mode = system.mode(event.mode_before)
    ndx = mode.space.ndx
    half = ndx // 2
    report = event.report if len(event.guards) == 1 else None  # of several it is that of all
    at = evaluate_event_sides(system, event)[0].jump_point(report)
    columns, rows = [np.zeros((ndx - half, 0))], [np.zeros((0, ndx - half))]
    for name in event.guards:
        reset = get_differentiable_reset(system, mode, name).calc_diff(at)
        change = reset.state[half:, half:] - np.eye(ndx - half)
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
