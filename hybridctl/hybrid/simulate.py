"""The event loop: flow until a guard fires, jump, select the next mode, flow on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.checks import Array, count, function, instance, interval, member, number, vector
from hybridctl.errors import (
    AmbiguousEventError,
    EventLimitError,
    GuardViolatedError,
    NoContactSolutionError,
    SystemDefinitionError,
    ZenoError,
)
from hybridctl.hybrid.events import Crossing, GuardWatch
from hybridctl.hybrid.flow import METHODS, Integrator, Step
from hybridctl.hybrid.mode import InputLaw, Jump, Mode, ModeKey
from hybridctl.hybrid.policy import (
    History,
    Policy,
    as_policy,
    first_input,
    input_law,
    next_change,
)
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Arc, Event, HybridTrajectory, arc_from_steps
from hybridctl.hybrid.zeno import Accumulation, crowded, predict

_ALL_ORDERS = 4
_SELECTIONS = 8
_INSTANT_EVENTS = 10
_REPEATED = 3
_RECENT = 16


@dataclass(frozen=True)
class _Run:
    """A simulation's fixed settings."""

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
    on_zeno: Literal["raise", "rest"] = "raise",
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
    event_window: guards that fall through zero within this time of the first, in s, are one
    event. Where their joint event has no edge of its own, the single edges are applied one
    after the other, and must give the same state in every order.
    guard_tolerance: a guard is armed once above this value (in the guard's own unit), which
    has to exceed the rounding of a guard on its surface; an arc may begin this far outside.
    min_dwell: ten events in a row closer than this, in s, count as Zeno.
    on_zeno: "raise", or "rest": where a repeating sequence of events shrinks geometrically and
    is predicted to end within `zeno_horizon` (s), or ten events fall within that time, the
    state they tend to is taken at once, if the system knows it (contacts close; a `Transition`
    says it with `rest`). The predicted time is the event's `accumulation`.
    progress: called with the time reached after each step.

    Raises `InputError` and its kin for bad arguments (`GuardViolatedError` if x0 lies outside
    its mode), `IntegrationError`, `EventLimitError`, `ZenoError`, `AmbiguousEventError` and
    `NoContactSolutionError` where the run cannot go on.
    """
    instance("system", system, HybridSystem)
    if progress is not None:
        function("progress", progress)
    start, end = interval("t_span", t_span)
    member("on_zeno", on_zeno, ("raise", "rest"))
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
        on_zeno == "rest",
        number("zeno_horizon", zeno_horizon, at_least=0.0),
        progress,
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
    while True:
        arc, crossing = _flow(run, point, len(arcs))
        arcs.append(arc)
        if crossing is None:
            return HybridTrajectory(tuple(arcs), tuple(events))
        if crossing.guards and sum(bool(e.guards) for e in events) == run.max_events:
            raise EventLimitError(
                f"more than max_events = {run.max_events} events by t = {crossing.time:.9g} s "
                f"in mode {point.mode.key!r}; the last guards were {crossing.guards}",
                trajectory=HybridTrajectory(tuple(arcs), tuple(events)),
            )
        end = _accumulation(run, arc.mode, crossing, events)
        event, point = _jump(run, arc, crossing, tuple(events), end)
        events.append(event)


def _check_start(run: _Run, point: _Point) -> None:
    guards = run.system.outgoing(point.mode.key).guards
    values = _watch(run, point).start(point.time, point.state, point.input)
    bad = values < -run.guard_tolerance
    if bad.any():
        i = int(bad.argmax())
        raise GuardViolatedError(
            f"x0 lies outside mode {point.mode.key!r}: guard {guards.names[i]!r} is "
            f"{values[i]:.6g} and must not be negative"
        )


def _watch(run: _Run, point: _Point) -> GuardWatch:
    return GuardWatch(
        run.system.outgoing(point.mode.key).guards,
        point.mode,
        point.law,
        tolerance=run.guard_tolerance,
        window=run.event_window,
    )


def _flow(run: _Run, point: _Point, index: int) -> tuple[Arc, Crossing | None]:
    """Integrate from `point` to the first crossing, a change of the law, or the end of the span.

    A change is a crossing without guards.
    """
    watch = _watch(run, point)
    watch.start(point.time, point.state, point.input)
    steps: list[Step] = []
    crossing = None
    last = min(run.t_end, point.change)
    if point.time < last:
        for step in run.integrator.steps(point.mode, point.law, point.time, point.state, last):
            steps.append(step)
            if run.progress is not None:
                run.progress(step.end)
            crossing = watch.scan(step)
            if crossing is not None:
                break
        if crossing is None and point.change < run.t_end:
            crossing = Crossing(last, watch.imminent(steps[-1]))
    end = run.t_end if crossing is None else crossing.time
    arc = arc_from_steps(index, point.mode, steps, point.time, point.state, point.input, end)
    return arc, crossing


def _jump(
    run: _Run,
    arc: Arc,
    crossing: Crossing,
    past: tuple[Event, ...],
    end: Accumulation | None,
) -> tuple[Event, _Point]:
    """Apply the resets of an event, or come to rest, and select the mode that flows on."""
    t = crossing.time
    before, u = arc(t), arc.input(t)
    resting = None if end is None else run.system.outgoing(arc.mode).rest(end.guards)
    if not crossing.guards:
        key, jump = arc.mode, Jump(before)
    elif resting is not None:
        key, jump = _landing(resting.target, resting.reset(t, before, u))
    else:
        key, jump = _reset(run, arc.mode, crossing, before, u)
    name, space = f"state after the event at t = {t}", run.system.mode(key).space
    after = vector(name, jump.state, space.nx)
    space.check(name, after)

    def event(mode: ModeKey, u_after: Array) -> Event:
        return Event(
            arc.index,
            t,
            arc.mode,
            mode,
            crossing.guards,
            _frozen(before),
            after,
            _frozen(u),
            _frozen(u_after),
            _frozen(arc.input_rate(t)),
            _frozen(jump.impulses),
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
        selected = key if mode.select is None else mode.select(t, after, u_after)
        if selected == key:
            change = next_change(run.policy, history)
            return event(key, u_after), _Point(mode, law, t, after, u_after, change)
        tried.append(key)
        key = selected
    raise NoContactSolutionError(
        f"no post-event mode is consistent at t = {t:.9g} s: tried {tried}, then {key!r}; "
        f"x+ = {after.tolist()}"
    )


def _reset(
    run: _Run, source: ModeKey, crossing: Crossing, x: Array, u: Array
) -> tuple[ModeKey, Jump]:
    """The jump of all fired guards: their joint edge, or the single edges in sequence."""
    edge = run.system.outgoing(source).edge(crossing.guards)
    if edge is not None:
        return _landing(edge.target, edge.reset(crossing.time, x, u))
    sequence = crossing.guards
    result = _sequence(run, source, sequence, crossing.time, x, u)
    for other in _other_orders(sequence):
        key, jump = _sequence(run, source, other, crossing.time, x, u)
        if key != result[0] or not np.allclose(jump.state, result[1].state, rtol=1e-6, atol=1e-6):
            raise AmbiguousEventError(
                f"guards {sequence} of mode {source!r} fired together at t = "
                f"{crossing.time:.9g} s, and their order matters: {sequence} leads to "
                f"{result[0]!r}, x+ = {result[1].state.tolist()}, {other} to {key!r}, "
                f"x+ = {jump.state.tolist()}; give this event a transition of its own"
            )
    return result


def _other_orders(guards: tuple[str, ...]) -> list[tuple[str, ...]]:
    """All other orders of few guards; of many, the rotations in both directions."""
    n = len(guards)
    if n <= _ALL_ORDERS:
        return list(permutations(guards))[1:]
    return [(*row[k:], *row[:k]) for row in (guards, guards[::-1]) for k in range(n)][1:]


def _sequence(
    run: _Run, source: ModeKey, guards: tuple[str, ...], t: float, x: Array, u: Array
) -> tuple[ModeKey, Jump]:
    """Apply single edges in the given order; a guard that the new mode lacks is done with.

    The impulses add up.
    """
    key, jump = source, Jump(x)
    for name in guards:
        edge = run.system.outgoing(key).edge((name,))
        if edge is not None:
            earlier = jump.impulses
            key, jump = _landing(edge.target, edge.reset(t, jump.state, u))
            if len(earlier) == len(jump.impulses):
                jump = replace(jump, impulses=earlier + jump.impulses)
    return key, jump


def _landing(target: ModeKey | None, jump: Jump) -> tuple[ModeKey, Jump]:
    key = target if jump.mode is None else jump.mode
    if key is None:
        raise SystemDefinitionError("a reset without a target mode must return one in its Jump")
    return key, jump


def _accumulation(
    run: _Run, mode: ModeKey, crossing: Crossing, events: Sequence[Event]
) -> Accumulation | None:
    """Where events end that accumulate right now, if the system can come to rest there.

    Events before the last rest do not count, nor changes of the policy.
    """
    if not crossing.guards:
        return None
    last = max((i for i, e in enumerate(events) if e.accumulation is not None), default=-1)
    recent = [(e.time, e.guards) for e in events[last + 1 :] if e.guards][-_RECENT:]
    recent.append((crossing.time, crossing.guards))
    rest = run.system.outgoing(mode).rest
    for end in _endings(run, recent) if run.rests else ():
        if rest(end.guards) is not None:
            return end
    if crowded(recent, _INSTANT_EVENTS, (_INSTANT_EVENTS - 1) * run.min_dwell) is not None:
        raise ZenoError(
            f"{_INSTANT_EVENTS} events closer than min_dwell = {run.min_dwell:.3g} s by t = "
            f"{crossing.time:.12g} s, the last of guards {crossing.guards} in mode {mode!r}: "
            "events accumulate there"
        )
    return None


def _endings(run: _Run, recent: list[tuple[float, tuple[str, ...]]]) -> Iterator[Accumulation]:
    """Where events end that shrink steadily, repeat at once, or crowd within the horizon."""
    steady = predict(recent)
    if steady is not None and steady.time - recent[-1][0] <= run.zeno_horizon:
        yield steady
    if len({fired for _, fired in recent[-_REPEATED:]}) == 1:
        again = crowded(recent, _REPEATED, run.min_dwell)
        if again is not None:
            yield again
    many = crowded(recent, _INSTANT_EVENTS, run.zeno_horizon)
    if many is not None:
        yield many


def _frozen(a: Array) -> Array:
    copy = np.array(a, dtype=np.float64)
    copy.flags.writeable = False
    return copy
