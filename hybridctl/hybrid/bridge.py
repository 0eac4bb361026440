"""Impacts at jamming (Painleve): how a run goes on past an instant that its mode cannot resolve.

Sliding contacts may jam: their forces have a pole, before which steps collapse. Events may crowd
without accumulating. No mode may be consistent with its own forces. A system with a way past such
an instant gives it as a `Bridge` (`Outgoing.bridge`): a mode in which the state flows on for a
short time, whatever its guards say, and an edge out of it. A robot with contacts lets its contacts
go, and one impact of all that touch gives the impulses that their forces would have.

`pass_jam` makes the arcs and events of this passage. It begins and ends with an event
(`Event.bridged`), neither of which is an event of the mode's own guards.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np

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
from hybridctl.hybrid.step import DrivenMode, Step, make_failure
from hybridctl.hybrid.tolerances import (
    EVENT_RESOLUTION,
    MAX_GUARD_FALL,
    MAX_STEP_VIOLATION,
    POLE_STEP_LENGTH,
    POLE_STEP_RATIO,
)
from hybridctl.hybrid.trajectory import Event

JAM_ERRORS = (NoContactSolutionError, SeveralModesError, StepSizeError, ZenoError)
"""Errors at the end of an arc that `pass_jam` may pass."""
_MAX_BRIDGES = 10_000
"""Number of bridges that follow each other at once, after which the run ends in the error.

At 1e-4 s each they last 1 s. The value is a choice."""


class JamPassage(NamedTuple):
    """The part of a run that passes a jam.

    Attributes:
        arcs: Its arcs. The first one is the arc that ended in the error, without its last steps
            where these are close to the jam.
        events: The event at the end of each of these arcs.
        point: The start of the arc after the last event.
    """

    arcs: list[Arc]
    events: list[Event]
    point: ArcStart


def pass_jam(
    run: Run,
    start: ArcStart,
    flown: FlownArc,
    index: int,
    past: tuple[Event, ...],
    error: SimulationError,
) -> JamPassage | None:
    """Return the way past the end of an arc, where an error would end the run; None without one.

    The run takes the bridge that the system gives at the end of the arc. If no mode is consistent
    after that bridge either, the next bridge begins there.

    Args:
        run: Settings of the run; its memory notes that it has warned.
        start: Start of the arc.
        flown: Steps of the arc, and what has ended it.
        index: Number of the arc in the trajectory.
        past: Events before the arc, for the policy.
        error: The error, one of `JAM_ERRORS`.

    Raises:
        SimulationError: If a bridge ends where the system gives no other, or after 10,000 of them:
            the error of that end, one of `JAM_ERRORS`.
    """
    # The user has asked that accumulating events end the run
    # (test_events_that_accumulate_end_a_run_that_takes_no_rest). Events that crowd without a ratio
    # may be those of a jam.
    if isinstance(error, ZenoError) and error.steady and not run.zeno.takes_rest:
        return None
    arc = _cut_off_jam(index, start, flown)
    x, u, _ = arc.left_limit()
    way = _find_bridge(run, arc.mode, arc.end, x, u)
    if way is None:
        return None
    _warn_of_bridge(run, arc.end, error)
    # Steps that collapse end at no event: the guard that is nearest to zero names the jam.
    guards = _find_nearest_guard(arc, start) if flown.crossing is None else flown.crossing.guards
    begin = SubstituteJump(way.mode, Jump(x), bridged=0.0)
    event, point = fire_event(run, arc, Crossing(arc.end, guards), past, begin)
    arcs, events = [arc], [event]
    while True:
        arc = make_arc(index + len(arcs), point, _integrate_bridge(run, point, way.length))
        arcs.append(arc)
        x, u, _ = arc.left_limit()
        key, jump = way.edge.jump(arc.end, x, u)
        end = SubstituteJump(key, jump, bridged=arc.end - arc.start)
        crossing, before = Crossing(arc.end, guards), (*past, *events)
        try:
            event, point = fire_event(run, arc, crossing, before, end)
            return JamPassage(arcs, [*events, event], point)
        except JAM_ERRORS:
            way = _find_bridge(run, key, arc.end, jump.state, u)
            if way is None or len(events) == _MAX_BRIDGES:
                raise
        # The end of this bridge is the beginning of the next one.
        event, point = fire_event(run, arc, crossing, before, end._replace(mode=way.mode))
        events.append(event)


def check_pole(run: Run, arc: Arc, fired: tuple[str, ...]) -> None:
    """Raise an error if an arc ends at a pole of its forces, as of contacts that jam.

    Before a pole steps shrink to next to nothing, and several guards fire together at it. Beyond it
    guards are far below zero all at once. Such an event has no meaning: its state is beyond the
    pole. tests/mechanics/test_bridge.py tells poles from events.

    Args:
        run: Settings of the run.
        arc: The arc.
        fired: Names of the guards that fire at its end.

    Raises:
        StepSizeError: If it is a pole, and the system and the user let a run pass jams.
    """
    outgoing = run.system.outgoing(arc.mode)
    if not run.bridges or outgoing.bridge is None:
        return
    x, u, _ = arc.left_limit()
    # One guard alone may fall so quickly that its own fall shortens the steps.
    has_shrunk = len(fired) > 1 and _has_shrunk(_list_lengths_towards_end(arc))
    values = outgoing.guards.values(arc.end, x, u) / outgoing.guards.sizes
    if has_shrunk or values.min() < -MAX_GUARD_FALL:
        what = f"guard {outgoing.guards.names[int(values.argmin())]!r} has a pole"
        error = make_failure(what, run.system.mode(arc.mode), arc.end, x, StepSizeError)
        raise error


def _has_shrunk(lengths: Array) -> bool:
    """Return whether steps, of these lengths (n,) in s, become as short as those before a pole."""
    # On arcs without a step of 1e-9 s all are short: so a foot of 4e-8 m/s stops within 1e-10 s.
    is_long = lengths.max(initial=0.0) * POLE_STEP_RATIO >= POLE_STEP_LENGTH
    return bool(is_long and lengths[-1] < POLE_STEP_LENGTH)


def _list_lengths_towards_end(arc: Arc) -> Array:
    """Return the lengths, s, of the steps that lead to the end of an arc.

    These are the steps under the last law, and those under the laws before it as long as steps had
    become short before the law changed: a pole just after a change of law shortens steps before it.
    Steps that are cut by an event or by a change of law are left out.

    Args:
        arc: The arc.
    """
    *earlier, last = arc.pieces
    lengths = last.lengths[:-1]
    for piece in reversed(earlier):
        uncut = piece.lengths[:-1]
        # A law may change just before a foot stops, where steps are short too: but only after it.
        if not len(uncut) or uncut[-1] * POLE_STEP_RATIO >= POLE_STEP_LENGTH:
            break
        lengths = np.concatenate([uncut, lengths])
    return lengths


def _find_bridge(run: Run, key: ModeKey, t: float, x: Array, u: Array) -> Bridge | None:
    """Return the bridge that begins in a mode; None without one, or if the run may take none.

    Args:
        run: Settings of the run.
        key: Key of the mode.
        t: Time, s.
        x: State (nx,).
        u: Input (nu,).
    """
    bridge_of = run.system.outgoing(key).bridge
    return None if bridge_of is None or not run.bridges else bridge_of(t, x, u)


def _warn_of_bridge(run: Run, t: float, error: SimulationError) -> None:
    """Warn of the first bridge of a run and of its reason, and note it in the run's memory."""
    if not run.memory.has_warned_of_bridge:
        run.memory.has_warned_of_bridge = True
        why = str(error).split(";")[0]  # without the state, and advice for a run that ends here
        text = f"the run is taken past t = {t:.9g} s by an impact, see on_jam: {why}"
        warnings.warn(text, BridgeWarning, stacklevel=6)


def _integrate_bridge(run: Run, start: ArcStart, length: float) -> FlownArc:
    """Return the flow on a bridge, whatever guards say.

    It ends at the next change of the policy, so that no sample of a controller is missed
    (test_a_bridge_ends_where_the_policy_changes).

    Args:
        run: Settings of the run.
        start: Start of the bridge.
        length: Its duration if nothing else ends it, s.
    """
    end = min(start.time + length, start.next_change, run.t_end)
    steps: list[Step] = []
    if start.time < end:  # a jam at the end of the time span leaves none
        motion = DrivenMode(start.mode, start.law)
        steps = list(Flow(run.integrator, motion, start.time, start.state, end).steps())
    return FlownArc(steps, end)


def _cut_off_jam(index: int, start: ArcStart, flown: FlownArc) -> Arc:
    """Return an arc without its last steps that approach a pole of the forces, or go past it.

    These are steps no longer than `EVENT_RESOLUTION`, and steps that end outside their guards.
    Guards are evaluated at the state of the arc that would end there, not taken from the samples
    of the step: beside a pole the rounding of the state decides their value.

    Args:
        index: Number of the arc in the trajectory.
        start: Start of the arc.
        flown: Its steps and its end.
    """
    end, guards = flown.end, start.mode.guard_set
    # An unarmed guard may have left zero before the last step.
    steps = [step for step in flown.steps if step.start < end]
    while steps:
        x, u, _ = make_arc(index, start, FlownArc(steps[-1:], end)).left_limit()
        relative = guards.values(end, x, u) / guards.sizes
        if end - steps[-1].start > EVENT_RESOLUTION and (relative >= -MAX_STEP_VIOLATION).all():
            break
        end = steps.pop().start
    return make_arc(index, start, FlownArc(steps, end))


def _find_nearest_guard(arc: Arc, start: ArcStart) -> tuple[str, ...]:
    """Return the guard that is lowest at the end of an arc, relative to its scale, as a tuple."""
    guards = start.mode.guard_set
    relative = guards.values(arc.end, *arc.left_limit()[:2]) / guards.sizes
    return (guards.names[int(relative.argmin())],)
