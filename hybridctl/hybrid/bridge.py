"""Bridges: how a run goes on past an instant whose events cannot be resolved.

Sliding contacts may jam, so that forces have a pole and steps collapse before it; events may crowd
without accumulating; no mode may be consistent with its own forces. A system that has a way past
such an instant says so (`Outgoing.bridge`): a mode in which the state flows on for a short time,
whatever guards say, and a reset after it. Both ends are events of their own, see `Event.bridged`.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

from hybridctl.base.checks import Array
from hybridctl.base.errors import (
    BridgeWarning,
    NoContactSolutionError,
    SeveralModesError,
    SimulationError,
    StepSizeError,
    ZenoError,
)
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.events import Crossing
from hybridctl.hybrid.flow import Flow
from hybridctl.hybrid.mode import Bridge
from hybridctl.hybrid.model import Jump, ModeKey
from hybridctl.hybrid.run import ArcStart, FlownArc, Run, SubstituteJump, fire_event, make_arc
from hybridctl.hybrid.step import DrivenMode, Step, failure
from hybridctl.hybrid.tolerances import BRIEF, POLE, SHRINKS, SHRUNK, UNSOUND
from hybridctl.hybrid.trajectory import Event

BRIDGED = (NoContactSolutionError, SeveralModesError, StepSizeError, ZenoError)
_AGAIN = 10_000  # bridges in a row, after which the run ends in the error


class BridgedArcs(NamedTuple):
    """What a run gets by a bridge: arcs, the first one until it, events, and how it goes on."""

    arcs: list[Arc]
    events: list[Event]
    point: ArcStart


def bridge(
    run: Run,
    point: ArcStart,
    flown: FlownArc,
    index: int,
    past: tuple[Event, ...],
    error: SimulationError,
) -> BridgedArcs | None:
    """The way past the end of arc `index`, where an error would end the run; None without one.

    Where the events at its end cannot be resolved either, the next one begins there.
    """
    if isinstance(error, ZenoError) and error.steady and not run.rests:
        return None
    arc = _sound(index, point, flown)
    x, u, _ = arc.left_limit()
    way = _way(run, arc.mode, arc.end, x, u)
    if way is None:
        return None
    _warn(run, arc.end, error)
    guards = _nearest(arc, point) if flown.crossing is None else flown.crossing.guards
    begin = SubstituteJump(way.mode, Jump(x), bridged=0.0)
    event, point = fire_event(run, arc, Crossing(arc.end, guards), past, begin)
    arcs, events = [arc], [event]
    for again in range(_AGAIN):
        arc = make_arc(index + len(arcs), point, _flight(run, point, way.length))
        arcs.append(arc)
        x, u, _ = arc.left_limit()
        key, jump = way.edge.jump(arc.end, x, u)
        over = SubstituteJump(key, jump, bridged=arc.end - arc.start)
        crossing, before = Crossing(arc.end, jump.guards or guards), (*past, *events)
        try:
            event, point = fire_event(run, arc, crossing, before, over)
            return BridgedArcs(arcs, [*events, event], point)
        except BRIDGED:
            way = _way(run, key, arc.end, jump.state, u)
            if way is None or again == _AGAIN - 1:
                raise
        event, point = fire_event(run, arc, crossing, before, over._replace(mode=way.mode))
        events.append(event)
    return None


def check_pole(run: Run, arc: Arc, fired: tuple[str, ...]) -> None:
    """Raise `StepSizeError` where an arc ends at a pole of its forces, as of contacts that jam.

    Before it steps have shrunk to next to nothing, and several guards fire together there; beyond
    it they are negative all at once.
    """
    outgoing = run.system.outgoing(arc.mode)
    if not run.bridges or outgoing.bridge is None:
        return
    x, u, _ = arc.left_limit()
    lengths = arc.pieces[-1].lengths[:-1]  # without the step that the event cut
    last = min(SHRUNK, SHRINKS * lengths.max(initial=0.0))
    shrunk = len(fired) > 1 and lengths.size > 0 and lengths[-1] < last
    values = outgoing.guards.values(arc.end, x, u) / outgoing.guards.sizes
    if shrunk or values.min() < -POLE:
        what = f"guard {outgoing.guards.names[int(values.argmin())]!r} has a pole"
        raise failure(what, run.system.mode(arc.mode), arc.end, x, StepSizeError)


def _way(run: Run, key: ModeKey, t: float, x: Array, u: Array) -> Bridge | None:
    """The bridge that begins in a mode at (t, x, u)."""
    bridge_of = run.system.outgoing(key).bridge
    return None if bridge_of is None or not run.bridges else bridge_of(t, x, u)


def _warn(run: Run, t: float, error: SimulationError) -> None:
    """Say once that a run has a bridge, and why."""
    if not run.memory.has_warned_of_bridge:
        run.memory.has_warned_of_bridge = True
        why = str(error).split(";")[0]
        text = f"the run is taken past t = {t:.9g} s by an impact, see on_jam: {why}"
        warnings.warn(text, BridgeWarning, stacklevel=5)


def _flight(run: Run, point: ArcStart, length: float) -> FlownArc:
    """The flow on a bridge, not beyond the next change of the policy."""
    end = min(point.time + length, point.next_change, run.t_end)
    steps: list[Step] = []
    if point.time < end:
        motion = DrivenMode(point.mode, point.law)
        steps = list(Flow(run.integrator, motion, point.time, point.state, end).steps())
    return FlownArc(steps, end)


def _sound(index: int, point: ArcStart, flown: FlownArc) -> Arc:
    """The arc that was flown without the last steps that are `BRIEF` or end outside their guards.

    So steps are that approach a pole of the forces, or go past it: beside a pole the rounding of a
    state decides, so that it is the arc's own that is asked.
    """
    end, guards = flown.end, point.mode.guard_set
    steps = [step for step in flown.steps if step.start < end]
    while steps:
        x, u, _ = make_arc(index, point, FlownArc(steps[-1:], end)).left_limit()
        relative = guards.values(end, x, u) / guards.sizes
        if end - steps[-1].start > BRIEF and (relative >= -UNSOUND).all():
            break
        end = steps.pop().start
    return make_arc(index, point, FlownArc(steps, end))


def _nearest(arc: Arc, point: ArcStart) -> tuple[str, ...]:
    """The guard that is nearest to zero where an arc ends, by its scale."""
    guards = point.mode.guard_set
    relative = guards.values(arc.end, *arc.left_limit()[:2]) / guards.sizes
    return (guards.names[int(relative.argmin())],)
