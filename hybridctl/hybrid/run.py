"""A run of the event loop: its settings and memory, the flow of an arc, and what ends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from hybridctl.base.checks import Array, check_vector
from hybridctl.base.errors import GuardViolatedError, NoContactSolutionError, StepSizeError
from hybridctl.hybrid.arc import Arc, arc_from_steps, read_only
from hybridctl.hybrid.efforts import EffortWatch
from hybridctl.hybrid.events import Crossing, GuardWatch
from hybridctl.hybrid.flow import Flow, Integrator
from hybridctl.hybrid.jump import EventOutcome, consistent, outcome, selected
from hybridctl.hybrid.laws import HeldInput, InputLaw, LinearFeedback
from hybridctl.hybrid.model import Jump, ModeKey, ModeModel, Point
from hybridctl.hybrid.policy import (
    History,
    Policy,
    first_input,
    input_law,
    next_change,
    sees_samples,
)
from hybridctl.hybrid.step import DrivenMode, Step
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.tableau import DOP853_TABLEAU, RK45_TABLEAU
from hybridctl.hybrid.trajectory import Event
from hybridctl.hybrid.zeno import INSTANT_EVENTS, Accumulation

_LOOKS = 3  # at an arc that seems to end where it begins: within a long step guards are known less
_CLOSER = 8.0  # times shorter is the step of the next look
_AGAIN = 1.1  # times what a step of fifth order would take: what it is taken for later
_LASTING = HeldInput | LinearFeedback  # laws that follow each other within an arc
LONGER = 2.0  # times the last arc in a mode: a first step there is no longer


@dataclass
class Memory:
    """What a run keeps beside its record.

    steps: how many it has taken, without the first of each arc. lengths: what to try first in a
    mode, s, from its last arc. bridged: whether it has been warned of a bridge. rested: whether
    the log has a line for a rest. watches: of the guards of each mode. empty: the last arc in a
    mode that ended where it began. efforts: of the inputs, beside what motors can give.
    """

    steps: int = 0
    lengths: dict[ModeKey, float] = field(default_factory=dict)
    short: dict[ModeKey, float] = field(default_factory=dict)
    bridged: bool = False
    rested: bool = False
    watches: dict[ModeKey, GuardWatch] = field(default_factory=dict)
    empty: dict[ModeKey, EmptyArc] = field(default_factory=dict)
    efforts: EffortWatch = field(default_factory=EffortWatch)


@dataclass(frozen=True)
class Run:
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
    bridges: bool
    zeno_horizon: float
    progress: Callable[[float], None] | None
    max_steps: int
    memory: Memory

    @property
    def at_once(self) -> float:
        """How long ten events last, at most, that count as Zeno, s."""
        return (INSTANT_EVENTS - 1) * self.min_dwell


class ArcStart(NamedTuple):
    """The start of an arc, and when the policy wants it to end; here: the mode there, if known."""

    mode: ModeModel
    law: InputLaw
    time: float
    state: Array
    input: Array
    change: float
    here: Point | None = None


def check_start(run: Run, point: ArcStart) -> None:
    """Raise what is wrong with a start: off what its mode holds, or outside it."""
    if point.mode.held is not None:
        point.mode.held.check("x0", point.mode.key, point.state)
    guards = point.mode.guard_set
    values = guards.checked(point.mode.key, point.time, point.state, point.input)
    relative = values / guards.sizes
    if (relative < -run.guard_tolerance).any():
        i = int(relative.argmin())
        name, value = guards.names[i], float(values[i])
        raise GuardViolatedError(
            f"x0 lies outside mode {point.mode.key!r}: guard {name!r} is {value:.6g} and must not "
            f"be negative{run.system.describe_outside(name, value, point.state, point.input)}"
        )


def consistent_start(system: HybridSystem, policy: Policy, t: float, x: Array) -> ModeKey:
    """The mode in which a state flows on under the input that the policy gives it there.

    Raises what `consistent_mode` does, and `NoContactSolutionError` where the input changes with
    the mode, and the mode with the input.
    """
    tried: list[ModeKey] = []
    key = system.consistent_mode(x)
    while key not in tried:
        tried.append(key)
        law = input_law(policy, History(key, t, x), system.mode(key).nu)
        selected = system.consistent_mode(x, first_input(law, t, x, system.mode(key).nu))
        if selected == key:
            return key
        key = selected
    raise NoContactSolutionError(
        f"no mode is consistent with x0 under the input of the policy: tried {tried}, then {key!r}"
    )


class BriefEvent(NamedTuple):
    """An event of one among many runs: the first that an `Event` says, by the same names."""

    time: float
    guards: tuple[str, ...]
    mode_before: ModeKey
    mode_after: ModeKey
    state_before: Array
    state_after: Array
    accumulation: float | None = None
    bridged: float | None = None

    @classmethod
    def of(cls, event: Event) -> BriefEvent:
        """The event in brief."""
        return cls(*(getattr(event, name) for name in cls._fields))


class Instead(NamedTuple):
    """What happens at an event in place of its guards' jump: rest, or an end of a bridge.

    That is rest where events accumulate, with their `end`; or one of the two ends of a bridge, with
    how long that is in s, see `Event.bridged`.
    """

    mode: ModeKey
    jump: Jump
    end: Accumulation | None = None
    bridged: float | None = None


class FlownArc(NamedTuple):
    """The steps of an arc until `end`, what ends it, and where it is stuck, if it is.

    failed: that its steps became too short there. asked: the law that the policy has given there,
    with the history that it was asked with, if it was.
    """

    steps: list[Step]
    end: float
    crossing: Crossing | None = None
    stuck: str | None = None
    failed: StepSizeError | None = None
    asked: tuple[History, InputLaw] | None = None


class EmptyArc(NamedTuple):
    """An arc that ended where it began; length: of the step that showed it, s."""

    start: ArcStart
    flown: FlownArc
    length: float

    def repeats(self, point: ArcStart) -> bool:
        """Whether an arc from this point is the same one: the event before it changed nothing."""
        held = isinstance(point.law, HeldInput) and isinstance(self.start.law, HeldInput)
        same = np.array_equal(point.state, self.start.state)
        return held and same and np.array_equal(point.input, self.start.input)


def arc_of(index: int, point: ArcStart, flown: FlownArc) -> Arc:
    """The arc that begins at a point, of what was flown."""
    t, x, u = point.time, point.state, point.input
    return arc_from_steps(index, point.mode, flown.steps, t, x, u, flown.end)


def flow_on(run: Run, point: ArcStart, past: tuple[Event, ...] = ()) -> FlownArc:
    """Integrate from `point` to the first crossing, a change of the law, or the end of the span.

    A change is a crossing without guards. Where one held input or linear feedback gives way to
    another, and the mode goes on, there is none: the arc goes on, too. past: the events so far,
    which the policy sees.
    """
    mode, flown, law = point.mode, _under_law(run, point), point.law
    steps = flown.steps
    if sees_samples(run.policy):
        return flown
    while flown.crossing is not None and not flown.crossing.guards and isinstance(law, _LASTING):
        t, x = flown.end, mode.space.normalize(steps[-1].states[-1])
        history = History(mode.key, t, x, past)
        law = input_law(run.policy, history, mode.nu)
        here = mode.calc(t, x, first_input(law, t, x, mode.nu))
        if not isinstance(law, _LASTING) or selected(here, run.guard_tolerance) != mode.key:
            return flown._replace(steps=steps, asked=(history, law))
        change = next_change(run.policy, history)
        flown = _under_law(run, ArcStart(mode, law, t, x, here.u, change, here))
        if flown.steps:
            first, *rest = flown.steps
            steps += [first._replace(changed=True), *rest]
    return flown._replace(steps=steps)


def _under_law(run: Run, point: ArcStart) -> FlownArc:
    """The steps from a point under a given input law, and what ends them."""
    key, last, memory = point.mode.key, min(run.t_end, point.change), run.memory
    if not point.time < last:
        return FlownArc([], run.t_end)
    watch = memory.watches.get(key)
    if watch is None:
        watch = GuardWatch(
            point.mode.guard_set, key, tolerance=run.guard_tolerance, window=run.event_window
        )
        memory.watches[key] = watch
    if point.here is not None and (fired := watch.find_violated_guards(point.here.guards)):
        return FlownArc([], point.time, Crossing(point.time, fired))
    integrator, length = run.integrator, None
    if integrator.first_step is None:
        length = memory.lengths.get(key)
    short = _is_short(run, point, last, length)
    if short:
        integrator, length = replace(integrator, method=RK45_TABLEAU), last - point.time
    motion = DrivenMode(point.mode, point.law, True, point.here, short)
    looks, empty = _LOOKS, memory.empty.get(key)
    if empty is not None and empty.start.time == point.time:
        if empty.repeats(point):
            return empty.flown
        looks, length = 1, empty.length
    for _ in range(looks):
        watch.begin_arc()
        flow = Flow(integrator, motion, point.time, point.state, last, length)
        flown = _until_crossing(run, flow, watch, last)
        if flown.crossing is None or flown.end > point.time:
            break
        looked = flown.steps[-1].end - point.time
        memory.empty[key], length = EmptyArc(point, flown, looked), looked / _CLOSER
    memory.efforts.record(run.system, key, point.law, flown.steps, flown.end)
    if short:
        memory.short[key] = flow.length
    elif flown.end > point.time:
        memory.lengths[key] = min(flow.length, LONGER * (flown.end - point.time))
    return flown


def _is_short(run: Run, point: ArcStart, last: float, length: float | None) -> bool:
    """Whether an input is held for less than even a step of fifth order would take.

    Then that is enough, with a third of the stages. Where it was not, it is tried again later.
    """
    key, memory, duration = point.mode.key, run.memory, last - point.time
    held = isinstance(point.law, HeldInput) and last < run.t_end
    if run.integrator.method is not DOP853_TABLEAU or point.mode.compiled or not held:
        return False
    if length is None or length < duration:
        return False
    known = memory.short.get(key, duration)
    memory.short[key] = _AGAIN * known
    return known >= duration


def _until_crossing(run: Run, flow: Flow, watch: GuardWatch, last: float) -> FlownArc:
    """Steps of a flow until a guard fires, or `last`."""
    steps: list[Step] = []
    ahead = flow.steps()
    while True:
        try:
            step = next(ahead, None)
        except StepSizeError as error:
            if not run.bridges:
                raise
            return FlownArc(steps, steps[-1].end if steps else flow.start, failed=error)
        if step is None:
            break
        run.memory.steps += len(steps) > 0
        steps.append(step)
        if run.progress is not None:
            run.progress(step.end)
        crossing = watch.find_crossing(step, flow)
        if crossing is not None:
            if crossing.time > step.start:
                steps[-1] = flow.ended(step, crossing.time)
            return FlownArc(steps, crossing.time, crossing)
        if run.memory.steps > run.max_steps:
            return FlownArc(steps, step.end, stuck=f"the last {flow.limit}")
    if last < run.t_end:
        return FlownArc(steps, last, Crossing(last, watch.find_imminent_guards(steps[-1])))
    return FlownArc(steps, last)


def cross(
    run: Run,
    arc: Arc,
    crossing: Crossing,
    past: tuple[Event, ...],
    instead: Instead | None,
    known: tuple[History, InputLaw] | None = None,
) -> tuple[Event, ArcStart]:
    """Apply the resets of an event, or what there is instead, and select the mode that flows on.

    known: the law of the policy in the mode before a change, if it was asked for, see `FlownArc`.
    """
    t, end, bridged = crossing.time, None, None
    moves = instead is not None or bool(crossing.guards)
    before, u, rate = map(read_only, arc.left_limit())
    if instead is not None:
        key, jump, end, bridged = instead
        key, jump, guards = EventOutcome.of(key, jump, crossing.guards)
    elif not crossing.guards:
        key, jump, guards = EventOutcome(arc.mode, Jump(before), ())
    else:
        key, jump, guards = outcome(run.system, arc.mode, crossing.guards, t, before, u)
    name, space, after = f"state after the event at t = {t}", run.system.mode(key).space, before
    if moves:
        after = check_vector(name, jump.state, space.nx)
        space.check(name, after)
    impulses = read_only(np.array(jump.impulses, dtype=np.float64))

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
            u_after,
            rate,
            impulses,
            jump.report,
            None if end is None else end.time,
            (run.integrator.rtol, run.integrator.atol),
            getattr(jump.report, "uniqueness", None),
            bridged,
        )

    asked: dict[ModeKey, tuple[History, InputLaw]] = {}

    def at(mode: ModeModel) -> Point:
        if known is not None and mode.key == arc.mode:
            history, law = known
        else:
            provisional = event(mode.key, read_only(np.zeros(mode.nu)))
            history = History(mode.key, t, after, (*past, provisional))
            law = input_law(run.policy, history, mode.nu)
        asked[mode.key] = history, law
        return mode.calc(t, after, first_input(law, t, after, mode.nu))

    here = consistent(run.system, key, at, None if crossing.guards else run.guard_tolerance)
    mode, (history, law) = here.mode, asked[here.mode.key]
    if mode.held is not None and (moves or mode.key != arc.mode):
        mode.held.check(name, mode.key, after)
    start = ArcStart(mode, law, t, after, here.u, next_change(run.policy, history), here)
    return event(mode.key, here.u), start
