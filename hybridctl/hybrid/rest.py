"""Rest: the state that a run goes on from where its events accumulate (Zeno).

`find_rest` is called at the end of each arc. It compares the last events with a geometric sequence
(`zeno`), and asks the system for the rest of the guards that accumulate. Three conditions keep a
run from resting where it would go on:

1. The end is near, and the jumps that are yet to come are no more than the flow makes meanwhile
   (`zeno.find_accumulations`).
2. The state at rest is no farther than resets and flow would take the state (`_rest_if_near`).
3. It is the flow that brings the guards back to zero, not resets of others (`_is_due_to_flow`).
"""

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
from hybridctl.hybrid.jump import is_same_state
from hybridctl.hybrid.model import ModeKey
from hybridctl.hybrid.run import BriefEvent, Run, SubstituteJump
from hybridctl.hybrid.series import FRACTIONS, TO_SLOPES
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.tolerances import MAX_REST_RATE_RATIO, SAME_INSTANT
from hybridctl.hybrid.zeno import (
    Accumulation,
    SequenceEvent,
    find_accumulations,
    is_far_from_end,
    predict_accumulation,
    select_crowd,
)

_LOG = logging.getLogger(__name__)
_MAX_EVENTS = 17
"""Number of the last events that are compared: three windows of five need 16."""


def find_rest(
    run: Run, arc: Arc, crossing: Crossing, events: Sequence[Event | BriefEvent]
) -> SubstituteJump | None:
    """Return the rest where accumulating events end; None if they do not end there.

    Events before the last rest or impact at jamming do not count, nor changes of the policy.

    Args:
        run: Settings of the run; its memory notes the first rest.
        arc: The arc that has just ended.
        crossing: The event at its end, which has not been applied yet.
        events: Earlier events of the run, in order of time.

    Raises:
        ZenoError: If events crowd and the system has no rest for them, or may not take it.
    """
    if not crossing.guards or not events:  # only the input law changes, or it is the first event
        return None
    horizon = max(run.zeno.horizon, run.zeno.crowding_span)
    # After a long window nothing ends soon, whatever the states are: most events go no further.
    if is_far_from_end(events[0].time, events[-1].time, crossing.time, horizon):
        return None
    recent = [SequenceEvent(crossing.time, crossing.guards)]
    for e in reversed(events):
        # A bridge lasts as little as 1e-7 s: ten in a row would crowd within the horizon.
        if e.accumulation is not None or e.bridged is not None or len(recent) == _MAX_EVENTS:
            break
        if e.guards:
            size = _compute_jump_size(e.state_before, e.state_after)
            is_idle = crossing.time - e.time <= SAME_INSTANT and _is_idle(run.system, e)
            recent.append(SequenceEvent(e.time, e.guards, size, is_idle))
    recent.reverse()
    rest = _find_near_rest(run, arc, recent) if run.zeno.takes_rest else None
    if rest is not None:
        _log_rest(run, arc.end, rest)
        return rest
    crowd = select_crowd(recent, run.zeno.crowding_span)
    if crowd:
        before = (e.mode_before for e in events[-len(crowd) :])
        modes = list(dict.fromkeys([*before, arc.mode]))
        between = f", alternating between modes {modes}" if len(modes) > 1 else ""
        raise ZenoError(
            f"{len(crowd)} events closer than min_dwell = {run.zeno.min_dwell:.3g} s by t = "
            f"{crossing.time:.12g} s, the last of guards {crossing.guards} in mode {arc.mode!r}: "
            f"events accumulate there{between}{advise_on_rest(run, arc.mode, crossing.guards)}",
            steady=predict_accumulation(recent) is not None,
        )
    return None


def _log_rest(run: Run, t: float, rest: SubstituteJump) -> None:
    """Write one line of the log at the first rest of a run, and note it in the run's memory."""
    if rest.accumulation is not None and not run.memory.has_logged_rest:
        run.memory.has_logged_rest = True
        _LOG.info(
            "rest is assumed at t = %.9g s: events of %s accumulate at %.9g s (on_zeno)",
            t,
            ", ".join(rest.accumulation.guards),
            rest.accumulation.time,
        )


def _is_idle(system: HybridSystem, event: Event | BriefEvent) -> bool:
    """Return whether the same mode flows on after an event, in the same state."""
    key = event.mode_before
    return event.mode_after == key and is_same_state(
        system, key, event.state_before, event.state_after
    )


def has_rest(run: Run, key: ModeKey, guards: tuple[str, ...]) -> bool:
    """Return whether the system states a rest where events of some guards of a mode accumulate.

    Args:
        run: Settings of the run, with its system.
        key: Mode before the events.
        guards: Names of the guards that fire.
    """
    return run.system.outgoing(key).rest(guards) is not None


def advise_on_rest(run: Run, key: ModeKey, guards: tuple[str, ...]) -> str:
    """Return the end of a message on accumulating events: what to do about them.

    Args:
        run: Settings of the run, with its system.
        key: Mode before the events.
        guards: Names of the guards that fire.
    """
    if not has_rest(run, key, guards):
        return (
            "; give their Transition a rest, or go on by relaxation: "
            "on_zeno=hybridctl.relaxation.ZenoRelaxation()"
        )
    return "" if run.zeno.takes_rest else '; with on_zeno="rest" they may come to rest'


def _find_near_rest(run: Run, arc: Arc, recent: Sequence[SequenceEvent]) -> SubstituteJump | None:
    """Return the rest at the end of an arc if the last events end there, or None."""

    def compute_speed() -> float:
        """Return the norm of the flow at the end of the arc, in units of the state per s."""
        x, u, _ = arc.left_limit()
        return float(np.linalg.norm(run.system.mode(arc.mode).field(arc.end, x, u)))

    horizon = max(run.zeno.horizon, run.zeno.crowding_span)
    for end in find_accumulations(recent, horizon, compute_speed):
        rest = _rest_if_near(run, arc, end, compute_speed())
        if rest is not None:
            return rest
    return None


def _rest_if_near(run: Run, arc: Arc, end: Accumulation, speed: float) -> SubstituteJump | None:
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
    if edge is None or not _is_due_to_flow(run, arc, end):
        return None
    x, u, _ = arc.left_limit()
    key, jump = edge.jump(arc.end, x, u)
    onward = run.zeno.crowding_span
    if end.remaining_jumps is None:
        onward = max(run.zeno.horizon, onward)
    flow = speed * (end.time - end.window_start + onward)
    is_near = _compute_jump_size(x, jump.state) <= 2.0 * (flow + (end.remaining_jumps or 0.0))
    return SubstituteJump(key, jump, end) if is_near else None


def _is_due_to_flow(run: Run, arc: Arc, end: Accumulation) -> bool:
    """Return whether it is the flow that brings the guards back to zero, not resets of others.

    Rest takes away the rates at which guards fall at the end of the arc. Where the flow has made
    these, they are no larger than the change of the rate in the time from the last window's start
    to the predicted end, at the second derivative that the guards have on the arc. Ten times that
    is allowed (`MAX_REST_RATE_RATIO`). A light ball that is squeezed by a falling mass has much
    larger rates (tests/attack/squeezed.py).

    Args:
        run: Settings of the run.
        arc: The arc that has just ended.
        end: The predicted end of its events.
    """
    length, guards = arc.end - arc.start, run.system.outgoing(arc.mode).guards
    is_crowd = end.remaining_jumps is None
    if end.remaining_jumps == 0.0:  # resets do not change the state, and rest takes nothing away
        return True
    # The arc's mode has none of the guards where what ends the arc is an event in between.
    rows = [guards.names.index(name) for name in end.guards if name in guards.names]
    if not length > 0.0 or not rows:  # no rates can be compared: only events that crowd pass
        return is_crowd
    times = (arc.start + length * FRACTIONS).tolist()
    sampled = np.array([guards.values(t, *arc.state_and_input(t)) for t in times])
    values = (sampled / guards.sizes)[:, rows]
    # Events that only crowd end in rest if the guards are zero on the whole arc, to the tolerance.
    if is_crowd and values.max() > run.guard_tolerance:
        return False
    # Rates at both ends of the arc. Their unit, half the arc's length, cancels in the comparison.
    first, last = TO_SLOPES[[0, -1]] @ values
    made = np.abs(last - first).max() * (end.time - end.window_start) / length
    return bool(np.abs(last).max() <= MAX_REST_RATE_RATIO * made)


def _compute_jump_size(before: Array, after: Array) -> float:
    """Return the norm of a change of the state; zero where its dimension changes.

    States of different modes cannot be compared, and count as no jump.
    """
    if before.shape != after.shape:
        return 0.0
    change = after - before
    return math.sqrt(change.dot(change))
