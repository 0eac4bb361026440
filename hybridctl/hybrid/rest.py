"""Rest: the state that a run goes on from where its events accumulate (Zeno)."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import ZenoError
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.event import Event
from hybridctl.hybrid.events import Crossing
from hybridctl.hybrid.jump import same_state
from hybridctl.hybrid.model import ModeKey
from hybridctl.hybrid.run import BriefEvent, Run, SubstituteJump
from hybridctl.hybrid.series import FRACTIONS, TO_SLOPES
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.tolerances import FORCED, SHRUNK
from hybridctl.hybrid.zeno import Accumulation, Fired, crowding, endings, predict

_LOG = logging.getLogger(__name__)
_RECENT = 16
"""Number of events before the last one that are considered: enough for three windows of five."""


def accumulating(
    run: Run, arc: Arc, crossing: Crossing, events: Sequence[Event | BriefEvent]
) -> SubstituteJump | None:
    """Return the rest where accumulating events end; None if they do not, or the run may go on.

    Events before the last rest or bridge do not count, nor changes of the policy.

    Args:
        run: Settings of the run; its memory notes the first rest.
        arc: The arc that has just ended.
        crossing: The event at its end, which has not been applied yet.
        events: Earlier events of the run, in order of time.

    Raises:
        ZenoError: If events crowd and the system has no rest for them, or may not take it.
    """
    if not crossing.guards:  # a change of the policy
        return None
    recent = [Fired(crossing.time, crossing.guards)]
    for e in reversed(events):
        if e.accumulation is not None or e.bridged is not None or len(recent) > _RECENT:
            break
        if e.guards:
            size = _distance(e.state_before, e.state_after)
            at_once = crossing.time - e.time <= SHRUNK
            recent.append(Fired(e.time, e.guards, size, at_once and _is_idle(run.system, e)))
    recent.reverse()
    resting = _at_rest(run, arc, recent) if run.rests else None
    if resting is not None:
        _log_rest(run, arc.end, resting)
        return resting
    crowd = crowding(recent, run.crowding_span)
    if crowd:
        before = (e.mode_before for e in events[-len(crowd) :])
        modes = list(dict.fromkeys([*before, arc.mode]))
        between = f", alternating between modes {modes}" if len(modes) > 1 else ""
        raise ZenoError(
            f"{len(crowd)} events closer than min_dwell = {run.min_dwell:.3g} s by t = "
            f"{crossing.time:.12g} s, the last of guards {crossing.guards} in mode {arc.mode!r}: "
            f"events accumulate there{between}{way_to_rest(run, arc.mode, crossing.guards)}",
            steady=predict(recent) is not None,
        )
    return None


def _log_rest(run: Run, t: float, resting: SubstituteJump) -> None:
    """Write one line of the log for the first rest of a run."""
    if resting.accumulation is not None and not run.memory.has_logged_rest:
        run.memory.has_logged_rest = True
        _LOG.info(
            "rest is assumed at t = %.9g s: events of %s accumulate at %.9g s (on_zeno)",
            t,
            ", ".join(resting.accumulation.guards),
            resting.accumulation.time,
        )


def _is_idle(system: HybridSystem, event: Event | BriefEvent) -> bool:
    """Return whether the same mode flows on after an event, in one state to `SAME_STATE`."""
    key = event.mode_before
    return event.mode_after == key and same_state(
        system, key, event.state_before, event.state_after
    )


def states_rest(run: Run, key: ModeKey, guards: tuple[str, ...]) -> bool:
    """Return whether the system states a rest where events of some guards of a mode accumulate.

    Args:
        run: Settings of the run, with its system.
        key: Mode before the events.
        guards: Names of the guards that fire.
    """
    return run.system.outgoing(key).rest(guards) is not None


def way_to_rest(run: Run, key: ModeKey, guards: tuple[str, ...]) -> str:
    """Return what to do about events of these guards that accumulate, as the end of a message."""
    if not states_rest(run, key, guards):
        return (
            "; give their Transition a rest, or go on by relaxation: "
            "on_zeno=hybridctl.relaxation.ZenoRelaxation()"
        )
    return "" if run.rests else '; with on_zeno="rest" they may come to rest'


def _at_rest(run: Run, arc: Arc, recent: Sequence[Fired]) -> SubstituteJump | None:
    """Return the rest at the end of an arc if events end there, or None."""

    def speed() -> float:
        """Return the norm of the flow at the end of the arc."""
        x, u, _ = arc.left_limit()
        return float(np.linalg.norm(run.system.mode(arc.mode).field(arc.end, x, u)))

    for end in endings(recent, max(run.zeno_horizon, run.crowding_span), speed):
        resting = _near_rest(run, arc, end, speed())
        if resting is not None:
            return resting
    return None


def _near_rest(run: Run, arc: Arc, end: Accumulation, speed: float) -> SubstituteJump | None:
    """Return the rest at the end of an arc, None if the system has none that is near enough.

    Resets and flow would take the state there. So it is no farther than the sum of the resets to
    come, plus the speed of the flow times the time until then. Twice that is allowed, because both
    change a little on the way. Events that only crowd may do so for the whole horizon.

    Args:
        run: Settings of the run.
        arc: The arc that has just ended.
        end: The predicted end of its events.
        speed: Norm of the flow at the end of the arc, in units of the state per s.
    """
    edge = run.system.outgoing(arc.mode).rest(end.guards)
    if edge is None or not _settles(run, arc, end):
        return None
    x, u, _ = arc.left_limit()
    key, jump = edge.jump(arc.end, x, u)
    ahead = run.crowding_span if end.left is not None else max(run.zeno_horizon, run.crowding_span)
    flow = speed * (end.time - end.since + ahead)
    near = _distance(x, jump.state) <= 2.0 * (flow + (end.left or 0.0))
    return SubstituteJump(key, jump, end) if near else None


def _settles(run: Run, arc: Arc, end: Accumulation) -> bool:
    """Return whether it is the flow that brings the guards back to zero, not resets of others.

    Rest takes away the rates at which guards fall at the end of the arc. Where the flow has made
    these, they are no larger than the change of the rate in the time from the last window's start
    to the predicted end, at the second derivative that the guards have on the arc: `FORCED` times
    that is allowed. Where events only crowd, guards moreover have to be zero on the whole arc, to
    the guard tolerance.

    Args:
        run: Settings of the run.
        arc: The arc that has just ended.
        end: The predicted end of its events.
    """
    length, guards = arc.end - arc.start, run.system.outgoing(arc.mode).guards
    crowd = end.left is None
    if end.left == 0.0:  # resets do not change the state, and rest takes nothing away
        return True
    # The arc's mode has none of the guards where what ends the arc is an event in between.
    rows = [guards.names.index(name) for name in end.guards if name in guards.names]
    if not length > 0.0 or not rows:  # no rates can be compared: only events that crowd pass
        return crowd
    times = (arc.start + length * FRACTIONS).tolist()
    sampled = np.array([guards.values(t, *arc.state_and_input(t)) for t in times])
    values = (sampled / guards.sizes)[:, rows]
    if crowd and values.max() > run.guard_tolerance:
        return False
    first, last = TO_SLOPES[[0, -1]] @ values  # rates at both ends, in units of half the arc
    made = np.abs(last - first).max() * (end.time - end.since) / length
    return bool(np.abs(last).max() <= FORCED * made)


def _distance(before: Array, after: Array) -> float:
    """Return the norm of a change of the state; zero where its dimension changes.

    States of different modes cannot be compared, and count as no jump.
    """
    if before.shape != after.shape:
        return 0.0
    change = after - before
    return math.sqrt(change.dot(change))
