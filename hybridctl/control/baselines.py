r"""Other ways to handle the tracking error near an event, to compare reference spreading with.

Away from events both policies follow the clock, as `ClockTracking` does. In a window around each
nominal event time they do something else: `NearestTracking` takes the smaller of the errors against
the arcs before and after the event, and `ImpactInvariantTracking` leaves out of the error what an
impact can change. Neither uses the events of the state.
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
from hybridctl.base.errors import HybridctlWarning, InputError, SystemDefinitionError
from hybridctl.control.gains import GainCurve, GainSchedule
from hybridctl.control.impacts import Impact
from hybridctl.control.reference import Reference
from hybridctl.control.spreading import get_nominal_arc
from hybridctl.control.tracking_law import (
    ProjectedGain,
    TrackingLaw,
    find_next_input_jump,
    list_far_starts,
    make_schedule,
    resolve_limits,
)
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.policy import History
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event
from hybridctl.sensitivity.saltation import evaluate_event_sides, get_differentiable_reset

_RESET_RANK_TOLERANCE = 1e-9
"""Singular value up to which D_v R - I changes no velocity. It has no unit: velocities go to
velocities. It is also the relative one below which C B and B are singular."""
_PROJECTOR_TOLERANCE = 1e-6
"""Largest entry of P P - P of a matrix that counts as a projector."""


@dataclass(frozen=True)
class _Windows:
    """Windows of time around the events of a reference, which do not overlap.

    Attributes:
        starts: Start of each window, s. A window contains its start.
        ends: End of each window, s. A window does not contain its end.
    """

    starts: tuple[float, ...]
    ends: tuple[float, ...]

    @staticmethod
    def make_around_events(reference: Reference, window: float | Sequence[float]) -> _Windows:
        """Return windows that reach at most half of the way to the next event.

        Args:
            reference: The reference.
            window: Duration in s before and after each event: one number, or two.

        Raises:
            InputError: The durations are negative, both zero, or not one or two.
        """
        pair = (window, window) if isinstance(window, float | int) else tuple(window)
        if len(pair) != 2:
            raise InputError(f"window must be one length, or one before and after, got {window}")
        before, after = (check_number("window", width, at_least=0.0) for width in pair)
        if not before + after > 0.0:
            raise InputError(f"window must be greater than 0, got {window}")
        times = [event.time for event in reference.events]
        middles = [0.5 * (a + b) for a, b in pairwise(times)]
        earliest, latest = (-math.inf, *middles), (*middles, math.inf)
        return _Windows(
            # Both tuples of bounds have one entry also where there are no events.
            tuple(max(t - before, least) for t, least in zip(times, earliest, strict=False)),
            tuple(min(t + after, most) for t, most in zip(times, latest, strict=False)),
        )

    def find_event(self, time: float) -> int | None:
        """Return the index of the event in whose window a time lies; None outside of all."""
        k = bisect_right(self.starts, time) - 1
        return k if k >= 0 and time < self.ends[k] else None

    def find_next_border(self, time: float) -> float:
        """Return the next start or end of a window after a time, s; infinite after the last."""
        return min((t for t in (*self.starts, *self.ends) if t > time), default=math.inf)


class NearestTracking:
    """Tracking of the nearer arc near an event, before it or after it, by the clock.

    In the window of a nominal event the state is compared with the extended arcs before and after
    the event, and the one with the smaller error e' W e is tracked. That choice depends on the
    state. It is made where the state jumps and at samples, as a digital controller would; in
    between, the law is smooth. Its laws have no derivative: another state would have another arc.

    Args:
        reference: The reference, extended at least as far as the windows reach.
        gains: A `GainSchedule`, or one gain K (nu, ndx) for each arc of the reference.
        window: Duration in s before and after each event: one number, or two.
        period: Greatest distance of samples inside a window, s.
        metric: Weight W (ndx, ndx) of the error, positive semidefinite; None for the identity.
        limits: See `ReferenceSpreading`.

    Raises:
        InputError: An argument does not fit, or the reference is extended less than the window.

    Attributes:
        reference: The reference.
        gains: Its gains.
        limits: Least and greatest input (2, nu), or None.
        period: Greatest distance of samples inside a window, s.
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
        self.gains = make_schedule(reference, gains)
        self.period = check_number("period", period, above=0.0)
        self.limits = resolve_limits(reference, limits)
        self._windows = _Windows.make_around_events(reference, window)
        ndx = reference.arcs[0].space.ndx
        self._metric = np.eye(ndx) if metric is None else check_semidefinite("metric", metric, ndx)
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
        """Return the law of the tracked arc: inside a window that which is nearer to the state."""
        chosen = self._choose_arc(history)
        arc = self.reference.arcs[chosen].piece(history.time)
        return TrackingLaw(arc, self.gains.arcs[chosen], self.limits)

    def start_warnings(self, history: History) -> list[HybridctlWarning]:
        """Return a warning if a run starts far beyond first order, see `list_far_starts`."""
        return list_far_starts(self.reference, self.gains, history)

    def next_change(self, history: History) -> float:
        """Return when the arc is chosen again, or the feedforward jumps, s."""
        time, chosen = history.time, self._choose_arc(history)
        jump = find_next_input_jump(self.reference.arcs[chosen], time)
        sample = time + self.period if self._windows.find_event(time) is not None else math.inf
        return min(jump, sample, self._windows.find_next_border(time))

    def _choose_arc(self, history: History) -> int:
        """Return the index of the tracked arc: of two that are equally near the earlier one."""
        event = self._windows.find_event(history.time)
        if event is None:
            return get_nominal_arc(self.reference, history.time)[1]
        sizes = []
        for arc in self.reference.arcs[event : event + 2]:
            error = arc.space.difference(history.state, arc.state_and_input(history.time)[0])
            sizes.append(float(error @ self._metric @ error))
        return event + 1 if sizes[1] < sizes[0] else event


class ImpactInvariantTracking:
    r"""Tracking by the clock that leaves out what an impact can change, while one is expected.

    In the window of a nominal event the velocity error is multiplied by the projector

    .. math:: P = I - B (C B)^+ C, \qquad B C = D_{\dot q} R_{\dot q} - I.

    The columns of B are what the resets of the event's guards can change, and the rows of C are
    what that depends on. For impacts without friction, whatever their restitution,
    :math:`P = I - M^{-1} J^\top (J M^{-1} J^\top)^+ J`. The jump of the velocity lies in the kernel
    of P, so that the projected error does not peak. P is taken at the nominal event. The second
    half of the tangent space is the velocity.

    Args:
        system: System of the reference.
        reference: The reference.
        gains: A `GainSchedule`, or one gain K (nu, ndx) for each arc of the reference.
        window: Duration in s before and after each event: one number, or two.
        blend: Time constant of the projector at both ends of a window, s. Zero switches it.
        velocities: Indices of the velocities that are fed back in a window, less what the
            impulses of the impact do to them; the others are not fed back. None takes the
            projector P above.
        limits: See `ReferenceSpreading`.

    Raises:
        InputError: An argument does not fit the reference.
        SystemDefinitionError: A reset has no Jacobian, or P does not exist because an impact
            changes what it depends on to second order only.

    Attributes:
        reference: The reference.
        gains: Its gains.
        limits: Least and greatest input (2, nu), or None.
        blend: Time constant in s with which P sets in and ends, see `ProjectedGain`.
        projectors: Projector (ndx, ndx) of each event, the identity on positions.
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
        self.gains = make_schedule(reference, gains)
        self.limits = resolve_limits(reference, limits)
        self.blend = check_number("blend", blend, at_least=0.0)
        self.projectors = tuple(
            compute_impact_projector(system, event)
            if velocities is None
            else _project_velocities(impact, velocities, reference.arcs[k].space.ndx)
            for k, (event, impact) in enumerate(
                zip(reference.events, reference.impacts, strict=True)
            )
        )
        self._windows = _Windows.make_around_events(reference, window)

    def law(self, history: History) -> InputLaw:
        """Return the law of the nominal arc at this time, with the projector inside a window."""
        arc, macro = get_nominal_arc(self.reference, history.time)
        event = self._windows.find_event(history.time)
        gain: GainCurve | ProjectedGain = self.gains.arcs[macro]
        if event is not None:
            removed = np.eye(arc.space.ndx) - self.projectors[event]
            ends = self._windows.starts[event], self._windows.ends[event]
            gain = ProjectedGain(self.gains.arcs[macro], removed, *ends, self.blend)
        # The law acts up to the next jump of the feedforward, where `next_change` ends it.
        return TrackingLaw(arc.piece(history.time), gain, self.limits).differentiable()

    def start_warnings(self, history: History) -> list[HybridctlWarning]:
        """Return a warning if a run starts far beyond first order, see `list_far_starts`."""
        return list_far_starts(self.reference, self.gains, history)

    def next_change(self, history: History) -> float:
        """Return when the reference has an event, its feedforward jumps, or a window ends, s."""
        arc, _ = get_nominal_arc(self.reference, history.time)
        end = math.inf if arc is self.reference.nominal.arcs[-1] else arc.end
        jump = find_next_input_jump(arc, history.time)
        return min(end, jump, self._windows.find_next_border(history.time))


def _project_velocities(impact: Impact | None, velocities: Sequence[int], ndx: int) -> Array:
    """Return the projector (ndx, ndx) off what an impact's impulses do to some velocities.

    Velocities that are not chosen are projected to zero. Without an impact it is the identity.
    """
    projector = np.eye(ndx)
    if impact is None:
        return projector
    explanation = impact.explanation(velocities)
    chosen = [ndx // 2 + i for i in explanation.velocities]
    projector[ndx // 2 :] = 0.0
    projector[np.ix_(chosen, chosen)] = explanation.projector
    return projector


def compute_impact_projector(system: HybridSystem, event: Event) -> Array:
    """Return the projector (ndx, ndx) off what an event changes, see `ImpactInvariantTracking`.

    Args:
        system: System of the event.
        event: Nominal event.

    Raises:
        SystemDefinitionError: A reset has no Jacobian, or the projector does not exist.
    """
    mode = system.mode(event.mode_before)
    ndx = mode.space.ndx
    half = ndx // 2
    # The report of an event of several guards is that of all of them together.
    report = event.report if len(event.guards) == 1 else None
    point = evaluate_event_sides(system, event)[0].jump_point(report)
    columns, rows = [np.zeros((ndx - half, 0))], [np.zeros((0, ndx - half))]
    for name in event.guards:
        reset = get_differentiable_reset(system, mode, name).calc_diff(point)
        change = reset.state[half:, half:] - np.eye(ndx - half)
        u, sizes, v = np.linalg.svd(change)
        rank = int((sizes > _RESET_RANK_TOLERANCE).sum())
        columns.append(u[:, :rank] * sizes[:rank])
        rows.append(v[:rank])
    b, c = np.hstack(columns), np.vstack(rows)
    projector = np.eye(ndx)
    projector[half:, half:] -= b @ np.linalg.pinv(c @ b, rcond=_RESET_RANK_TOLERANCE) @ c
    is_projector = np.abs(projector @ projector - projector).max() <= _PROJECTOR_TOLERANCE
    rank = np.linalg.matrix_rank(c @ b, tol=_RESET_RANK_TOLERANCE)
    if not is_projector or rank < np.linalg.matrix_rank(b, tol=_RESET_RANK_TOLERANCE):
        raise SystemDefinitionError(
            f"the resets of {event.guards} have no projector off what they change"
        )
    return projector
