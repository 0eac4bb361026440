"""The event loop: flow until a guard fires, jump, select the next mode, flow on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.checks import Array, count, function, instance, interval, member, number, vector
from hybridctl.errors import (
    EventLimitError,
    GuardViolatedError,
    NoContactSolutionError,
    StepLimitError,
    ZenoError,
)
from hybridctl.hybrid.events import Crossing, GuardWatch
from hybridctl.hybrid.flow import METHODS, Flow, Integrator
from hybridctl.hybrid.jump import jump as jump_of
from hybridctl.hybrid.jump import landing
from hybridctl.hybrid.mode import InputLaw, Jump, Mode, ModeKey
from hybridctl.hybrid.policy import (
    History,
    Policy,
    as_policy,
    first_input,
    input_law,
    next_change,
)
from hybridctl.hybrid.relaxation.past import past_zeno
from hybridctl.hybrid.step import Motion, Step
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Arc, Event, HybridTrajectory, arc_from_steps
from hybridctl.hybrid.zeno import INSTANT_EVENTS, Accumulation, crowded, endings

_SELECTIONS = 8
_LOOKS = 3  # at an arc that seems to end where it begins: within a long step guards are known less
_CLOSER = 8.0  # times shorter is the step of the next look
_RECENT = 16
_LONGER = 2.0  # times the last arc in a mode: a first step there is no longer


@dataclass
class _Memory:
    """What a run keeps beside its record.

    steps: how many it has taken, without the first of each arc. lengths: what to try first in a
    mode, s, from its last arc. watches: of the guards of each mode.
    """

    steps: int = 0
    lengths: dict[ModeKey, float] = field(default_factory=dict)
    watches: dict[ModeKey, GuardWatch] = field(default_factory=dict)


@dataclass(frozen=True)
class _Run:
    """A simulation's fixed settings, and its memory."""

    system: HybridSystem
    policy: Policy
    integrator: Integrator
    t_end: float
    max_events: int
    event_window: float
    guard_tolerance: float
    min_dwell: float
    rests: bool
    zeno_horizon: float
    progress: Callable[[float], None] | None
    max_steps: int
    memory: _Memory


@dataclass(frozen=True)
class _Point:
    """Where an arc begins, and when the policy wants it to end."""

    mode: Mode
    law: InputLaw
    time: float
    state: Array
    input: Array
    change: float


def simulate(
    system: HybridSystem,
    mode: ModeKey,
    x0: ArrayLike,
    t_span: ArrayLike,
    policy: Policy | InputLaw | None = None,
    *,
    rtol: float = 1e-9,
    atol: float = 1e-9,
    max_events: int = 1000,
    max_steps: int = 100_000,
    on_zeno: Literal["raise", "rest", "relax"] = "raise",
    zeno_horizon: float = 1e-5,
    method: str = "DOP853",
    max_step: float = math.inf,
    first_step: float | None = None,
    event_window: float = 1e-8,
    guard_tolerance: float = 1e-8,
    min_dwell: float = 1e-9,
    progress: Callable[[float], None] | None = None,
) -> HybridTrajectory:
    """Simulate a hybrid system from state x0 in `mode` over t_span = (start, end), in s.

    `policy` is None (zero input), a function u(t, x), or a `Policy` that sees the events. Where
    it changes its law at a time of its own, an event without guards is recorded: the state goes
    on, the mode too if it is consistent with the new input (`Mode.select`). Such events count
    neither towards `max_events` nor as Zeno.

    rtol, atol, method, max_step: of the integrator (a scipy stepper); event times and states
    are as accurate as the flow is.
    first_step: that the integrator tries first on every arc, in s; it takes a shorter one where
    that is not accurate. None leaves the choice to scipy, which begins carefully.
    max_steps: of the integrator in the whole run, besides the first step of each arc.
    event_window: guards that fall through zero within this time of the first, in s, are one
    event. Where their joint event has no edge of its own, the single edges are applied one
    after the other, and must give the same state in every order (see `jump`).
    guard_tolerance: a guard is armed once above this value, relative to its scale
    (`GuardSet.scales`, one in its own unit by default), which has to exceed the rounding of a
    guard on its surface; an arc may begin this far outside.
    min_dwell: ten events in a row closer than this, in s, count as Zeno.
    on_zeno: "raise", or "rest": where a repeating sequence of events shrinks geometrically and
    is predicted to end within `zeno_horizon` (s), or ten events fall within that time, the
    state they tend to is taken at once, if the system knows it (contacts close; a `Transition`
    says it with `rest`). The predicted time is the event's `accumulation`. "relax" takes what
    relaxations tend to instead, rest on the guard for as long as the fields hold it there, which no
    one has to name: see `past_zeno`.
    progress: called with the time reached after each step.

    Raises `InputError` and its kin for bad arguments (`GuardViolatedError` if x0 lies outside
    its mode, `ConstraintViolatedError` if it is off what the mode holds), `IntegrationError`,
    `EventLimitError`, `StepLimitError`, `ZenoError`, `AmbiguousEventError` and
    `NoContactSolutionError` where the run cannot go on.
    """
    instance("system", system, HybridSystem)
    if progress is not None:
        function("progress", progress)
    start, end = interval("t_span", t_span)
    if member("on_zeno", on_zeno, ("raise", "rest", "relax")) == "relax":
        system = past_zeno(system)
    first = system.mode(mode)
    state = vector("x0", x0, first.space.nx)
    first.space.check("x0", state)
    run = _Run(
        system,
        as_policy(policy, system),
        Integrator(
            METHODS[member("method", method, METHODS)],
            number("rtol", rtol, above=0.0),
            number("atol", atol, above=0.0),
            max_step if max_step == math.inf else number("max_step", max_step, above=0.0),
            None if first_step is None else number("first_step", first_step, above=0.0),
        ),
        end,
        count("max_events", max_events, at_least=0),
        number("event_window", event_window, at_least=0.0),
        number("guard_tolerance", guard_tolerance, above=0.0),
        number("min_dwell", min_dwell, at_least=0.0),
        on_zeno != "raise",
        number("zeno_horizon", zeno_horizon, at_least=0.0),
        progress,
        count("max_steps", max_steps, at_least=0),
        _Memory(),
    )
    history = History(mode, start, state)
    law = input_law(run.policy, history, first.nu)
    u = first_input(law, start, state, first.nu)
    point = _Point(first, law, start, state, u, next_change(run.policy, history))
    _check_start(run, point)
    return _event_loop(run, point)


def _event_loop(run: _Run, point: _Point) -> HybridTrajectory:
    arcs: list[Arc] = []
    events: list[Event] = []
    fired = 0
    while True:
        flown = _flow(run, point)
        crossing = flown.crossing
        arc = arc_from_steps(
            len(arcs), point.mode, flown.steps, point.time, point.state, point.input, flown.end
        )
        arcs.append(arc)
        if flown.stuck is not None:
            raise StepLimitError(
                f"more than max_steps = {run.max_steps} steps by t = {flown.end:.9g} s in mode "
                f"{point.mode.key!r}, {flown.stuck}",
                trajectory=HybridTrajectory(tuple(arcs), tuple(events)),
            )
        if crossing is None:
            return HybridTrajectory(tuple(arcs), tuple(events))
        if crossing.guards and fired == run.max_events:
            raise EventLimitError(
                f"more than max_events = {run.max_events} events by t = {crossing.time:.9g} s "
                f"in mode {point.mode.key!r}; the last guards were {crossing.guards}",
                trajectory=HybridTrajectory(tuple(arcs), tuple(events)),
            )
        fired += len(crossing.guards) > 0
        limit = _accumulation(run, arc.mode, crossing, events)
        event, point = _jump(run, arc, crossing, tuple(events), limit)
        events.append(event)


def _check_start(run: _Run, point: _Point) -> None:
    if point.mode.held is not None:
        point.mode.held.check("x0", point.mode.key, point.state)
    watch = _watch(run, point.mode.key)
    relative = watch.start(point.time, point.state, point.input)
    if (relative < -1.0).any():
        i = int(relative.argmin())
        guards = run.system.outgoing(point.mode.key).guards
        value = guards.value(i, point.time, point.state, point.input)
        raise GuardViolatedError(
            f"x0 lies outside mode {point.mode.key!r}: guard {guards.names[i]!r} is "
            f"{value:.6g} and must not be negative"
        )


def _watch(run: _Run, key: ModeKey) -> GuardWatch:
    guards = run.system.outgoing(key).guards
    return GuardWatch(guards, key, tolerance=run.guard_tolerance, window=run.event_window)


class _Flown(NamedTuple):
    """The steps of an arc until `end`, what ends it, and where it is stuck, if it is."""

    steps: list[Step]
    end: float
    crossing: Crossing | None = None
    stuck: str | None = None


def _flow(run: _Run, point: _Point) -> _Flown:
    """Integrate from `point` to the first crossing, a change of the law, or the end of the span.

    A change is a crossing without guards.
    """
    key, last, memory = point.mode.key, min(run.t_end, point.change), run.memory
    if not point.time < last:
        return _Flown([], run.t_end)
    watch = memory.watches.get(key)
    if watch is None:
        watch = memory.watches[key] = _watch(run, key)
    motion = Motion(point.mode, point.law, run.system.outgoing(key).guards)
    length = memory.lengths.get(key) if run.integrator.first_step is None else None
    for _ in range(_LOOKS):
        watch.start(point.time, point.state, point.input)
        flow = Flow(run.integrator, motion, point.time, point.state, last, length)
        flown = _until_crossing(run, flow, watch, last)
        if flown.crossing is None or flown.end > point.time:
            break
        length = (flown.steps[-1].end - point.time) / _CLOSER
    if flown.end > point.time:
        memory.lengths[key] = min(flow.length, _LONGER * (flown.end - point.time))
    return flown


def _until_crossing(run: _Run, flow: Flow, watch: GuardWatch, last: float) -> _Flown:
    """Steps of a flow until a guard fires, or `last`."""
    steps: list[Step] = []
    for step in flow.steps():
        run.memory.steps += len(steps) > 0
        steps.append(step)
        if run.progress is not None:
            run.progress(step.end)
        crossing = watch.scan(step, flow)
        if crossing is not None:
            if crossing.time > step.start:
                steps[-1] = flow.ended(step, crossing.time)
            return _Flown(steps, crossing.time, crossing)
        if run.memory.steps > run.max_steps:
            return _Flown(steps, step.end, stuck=f"the last {flow.limit}")
    if last < run.t_end:
        return _Flown(steps, last, Crossing(last, watch.imminent(steps[-1])))
    return _Flown(steps, last)


def _jump(
    run: _Run,
    arc: Arc,
    crossing: Crossing,
    past: tuple[Event, ...],
    end: Accumulation | None,
) -> tuple[Event, _Point]:
    """Apply the resets of an event, or come to rest, and select the mode that flows on."""
    t = crossing.time
    before, u, rate = map(_frozen, arc.left_limit())
    resting = None if end is None else run.system.outgoing(arc.mode).rest(end.guards)
    if not crossing.guards:
        key, jump = arc.mode, Jump(before)
    elif resting is not None:
        key, jump = landing(resting.target, resting.reset(t, before, u))
    else:
        key, jump = jump_of(run.system, arc.mode, crossing.guards, t, before, u)
    name, space = f"state after the event at t = {t}", run.system.mode(key).space
    after = vector(name, jump.state, space.nx)
    space.check(name, after)

    impulses = _frozen(jump.impulses)
    guards = crossing.guards if jump.guards is None else jump.guards

    def event(mode: ModeKey, u_after: Array) -> Event:
        return Event(
            arc.index,
            t,
            arc.mode,
            mode,
            guards if end is None else end.guards,
            before,
            after,
            u,
            _frozen(u_after),
            rate,
            impulses,
            jump.report,
            None if end is None else end.time,
        )

    tried = []
    for _ in range(_SELECTIONS):
        mode = run.system.mode(key)
        provisional = event(key, np.zeros(mode.nu))
        history = History(key, t, after, (*past, provisional))
        law = input_law(run.policy, history, mode.nu)
        u_after = first_input(law, t, after, mode.nu)
        kept = not crossing.guards and _goes_on(run, key, t, after, u_after)
        selected = key if kept or mode.select is None else mode.select(t, after, u_after)
        if selected == key:
            if mode.held is not None:
                mode.held.check(name, key, after)
            change = next_change(run.policy, history)
            return event(key, u_after), _Point(mode, law, t, after, u_after, change)
        tried.append(key)
        key = selected
    raise NoContactSolutionError(
        f"no post-event mode is consistent at t = {t:.9g} s: tried {tried}, then {key!r}; "
        f"x+ = {after.tolist()}"
    )


def _goes_on(run: _Run, key: ModeKey, t: float, x: Array, u: Array) -> bool:
    """Whether a mode that flowed up to here clearly allows the input u: all its guards do.

    What flows on is then the same solution, and no other is looked for.
    """
    guards = run.system.outgoing(key).guards
    scales = 1.0 if guards.scales is None else guards.scales
    return bool((guards.values(t, x, u) > run.guard_tolerance * scales).all())


def _accumulation(
    run: _Run, mode: ModeKey, crossing: Crossing, events: Sequence[Event]
) -> Accumulation | None:
    """Where events end that accumulate right now, if the system can come to rest there.

    Events before the last rest do not count, nor changes of the policy.
    """
    if not crossing.guards:
        return None
    recent = [(crossing.time, crossing.guards)]
    for e in reversed(events):
        if e.accumulation is not None or len(recent) > _RECENT:
            break
        if e.guards:
            recent.append((e.time, e.guards))
    recent.reverse()
    rest = run.system.outgoing(mode).rest
    ends = endings(recent, run.zeno_horizon, run.min_dwell) if run.rests else ()
    for end in ends:
        if rest(end.guards) is not None:
            return end
    if crowded(recent, INSTANT_EVENTS, (INSTANT_EVENTS - 1) * run.min_dwell) is not None:
        modes = list(dict.fromkeys([*(e.mode_before for e in events[-INSTANT_EVENTS:]), mode]))
        between = f", alternating between modes {modes}" if len(modes) > 1 else ""
        raise ZenoError(
            f"{INSTANT_EVENTS} events closer than min_dwell = {run.min_dwell:.3g} s by t = "
            f"{crossing.time:.12g} s, the last of guards {crossing.guards} in mode {mode!r}: "
            f"events accumulate there{between}"
        )
    return None


def _frozen(a: Array) -> Array:
    copy = np.array(a, dtype=np.float64)
    copy.flags.writeable = False
    return copy
