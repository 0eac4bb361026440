"""The parts of the event loop: integrate an arc, fire the event at its end, select the next mode.

`simulate` repeats these stages until the time span ends:

1. Integrate: `integrate_arc` takes steps in one mode, from an `ArcStart`.
2. Locate: `events.GuardWatch` searches each step for the first event, a `Crossing`.
3. Rest, or pass a jam: where events accumulate, or forces have a pole, `rest` and `bridge` give a
   `SubstituteJump`, which takes the place of the guards' resets.
4. Fire: `fire_event` applies the resets of the guards, or the substitute.
5. Select: within `fire_event`, the mode that is consistent with the state after the event, under
   the input that the policy gives in that mode, becomes the next `ArcStart`.

A `Run` holds the settings. Its `RunMemory` holds what earlier arcs tell about later ones: lengths
of steps to try first, which save evaluations, and what has been reported already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from hybridctl.base.checks import Array, check_vector
from hybridctl.base.errors import GuardViolatedError, NoContactSolutionError, StepSizeError
from hybridctl.hybrid.arc import Arc, freeze_array, make_arc_from_steps
from hybridctl.hybrid.efforts import EffortWatch
from hybridctl.hybrid.events import Crossing, GuardWatch
from hybridctl.hybrid.flow import Flow, Integrator
from hybridctl.hybrid.jump import (
    EventOutcome,
    compute_outcome,
    find_consistent_mode,
    select_mode,
    select_releasing_guards,
)
from hybridctl.hybrid.laws import HeldInput, InputLaw, LinearFeedback
from hybridctl.hybrid.model import Jump, JumpPoint, ModeKey, ModeModel, Point
from hybridctl.hybrid.policy import (
    History,
    Policy,
    ask_input_law,
    ask_next_change,
    compute_first_input,
    keeps_law,
    sees_samples,
)
from hybridctl.hybrid.step import DrivenMode, Step
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.tableau import DOP853_TABLEAU, RK45_TABLEAU
from hybridctl.hybrid.trajectory import Event
from hybridctl.hybrid.zeno import Accumulation, ZenoPolicy

_MAX_ATTEMPTS = 3
"""Integrations of an arc that seems to end where it begins, each with a shorter first step.

On a long step guards are known less well, so that one that rises from zero may seem to fall."""
_ATTEMPT_RATIO = 8.0
"""First step of an attempt over that of the next. The value is a choice."""
_RK45_LIMIT_GROWTH = 1.1
"""Growth of `ModeMemory.rk45_limit` each time that it is read. The value is a choice.

A limit that is too low for the present motion is exceeded again after a few dozen samples."""
MAX_STEP_GROWTH = 2.0
"""Longest first step of an arc, relative to the duration of the last arc in the same mode.

Where bounces become shorter, steps that the integrator allows reach far beyond the next event."""
_CONTINUING_LAWS = HeldInput | LinearFeedback
"""Input laws that may follow each other within one arc, as those of a sampled controller do."""


@dataclass
class ModeMemory:
    """What earlier arcs in a mode tell about the next one there.

    Attributes:
        watch: Watch of the guards of the mode; made once, and begun anew with each arc.
        first_step: Step to try first on the next arc, s; None before the first arc.
        rk45_limit: Duration up to which a held input is integrated in one step of RK45, s; None
            before the first such input. See `_is_rk45_enough`.
        empty_arc: The last arc that ended where it began, if there was one.
    """

    watch: GuardWatch
    first_step: float | None = None
    rk45_limit: float | None = None
    empty_arc: EmptyArc | None = None


@dataclass
class RunMemory:
    """What changes during a run, beside its arcs and events.

    Attributes:
        steps: Number of steps taken, without the first one under each input law.
        modes: Memory of each mode in which an arc has begun.
        has_warned_of_bridge: Whether a `BridgeWarning` was given; there is one in a run.
        has_logged_rest: Whether the log has a line of a rest; there is one in a run.
        efforts: Record of inputs beyond the limits of motors.
    """

    steps: int = 0
    modes: dict[ModeKey, ModeMemory] = field(default_factory=dict)
    has_warned_of_bridge: bool = False
    has_logged_rest: bool = False
    efforts: EffortWatch = field(default_factory=EffortWatch)


@dataclass(frozen=True)
class Run:
    """The settings of a simulation, which are fixed, and its memory.

    Attributes:
        system: The hybrid system.
        policy: Gives the input law at the start of each arc.
        integrator: Method, tolerances and limits of steps.
        t_end: End of the time span, s.
        max_events: Number of events after which the run ends in an error.
        event_window: Guards that fall through zero within this time are one event, s.
        guard_tolerance: Value of a guard that counts as zero, relative to its scale.
        max_steps: Number of steps after which the run ends in an error, see `RunMemory.steps`.
        zeno: What the run does where events accumulate.
        bridges: Whether a jam may be passed by an impact (`on_jam="bridge"`).
        progress: Called with the time in s after each step; None if nobody asks.
        memory: What changes during the run.
    """

    system: HybridSystem
    policy: Policy
    integrator: Integrator
    t_end: float
    max_events: int
    event_window: float
    guard_tolerance: float
    max_steps: int
    zeno: ZenoPolicy
    bridges: bool
    progress: Callable[[float], None] | None
    memory: RunMemory

    def recall_mode(self, mode: ModeModel) -> ModeMemory:
        """Return the memory of a mode, and make it where an arc begins there for the first time."""
        memory = self.memory.modes.get(mode.key)
        if memory is None:
            watch = GuardWatch(
                mode.guard_set,
                mode.key,
                tolerance=self.guard_tolerance,
                window=self.event_window,
            )
            memory = self.memory.modes[mode.key] = ModeMemory(watch)
        return memory


class ArcStart(NamedTuple):
    """The start of an arc.

    Attributes:
        mode: Mode of the arc.
        law: Input law in that mode.
        time: Start time, s.
        state: State (nx,) at the start.
        input: Input (nu,) at the start.
        next_change: Time at which the policy wants to give another law, s; infinite for none.
        point: The mode's quantities at the start, if they have been computed; None if not.
    """

    mode: ModeModel
    law: InputLaw
    time: float
    state: Array
    input: Array
    next_change: float
    point: Point | None = None


class BriefEvent(NamedTuple):
    """An event of a run that is one of many: those fields of `Event` that cost little memory.

    They have the names, and the meaning, that they have there.
    """

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
        """Return the brief form of an event."""
        return cls(*(getattr(event, name) for name in cls._fields))


class SubstituteJump(NamedTuple):
    """A jump in place of the resets of the guards that fire: to rest, or into or out of a bridge.

    Attributes:
        mode: Mode after the jump; the mode that is consistent is selected from there.
        jump: State after the jump, and its impulses.
        accumulation: Where it is rest: the end of the accumulating events. None for a bridge.
        bridged: Where a bridge begins: zero. Where it ends: its duration, s. None for rest.
    """

    mode: ModeKey
    jump: Jump
    accumulation: Accumulation | None = None
    bridged: float | None = None


class FlownArc(NamedTuple):
    """The steps of an arc, and what has ended it.

    Without crossing and failure the arc ends at the end of the time span, or by `step_limit`.

    Attributes:
        steps: Accepted steps. The last one may reach beyond the end.
        end: End of the arc, s.
        crossing: The event at the end, which has no guards where only the input law changes.
        step_limit: If the run has no steps left: how long the last step was, and why, in words.
        failure: Error of steps that became too short at the end, where a bridge may pass it.
        next_law: The law that the policy has given at a change of the law, and the history that it
            was given; None if it was not asked.
    """

    steps: list[Step]
    end: float
    crossing: Crossing | None = None
    step_limit: str | None = None
    failure: StepSizeError | None = None
    next_law: tuple[History, InputLaw] | None = None


class EmptyArc(NamedTuple):
    """An arc that has ended where it began.

    Attributes:
        start: Its start.
        flown: Its steps and its event.
        step_length: Length of the step on which the event was found, s.
    """

    start: ArcStart
    flown: FlownArc
    step_length: float

    def has_same_start(self, start: ArcStart) -> bool:
        """Return whether an arc at this time starts alike: the event between changed nothing.

        Only held inputs are compared. Other laws may be equal at the start and differ later.
        """
        is_held = isinstance(start.law, HeldInput) and isinstance(self.start.law, HeldInput)
        same_state = np.array_equal(start.state, self.start.state)
        return is_held and same_state and np.array_equal(start.input, self.start.input)


def check_start(run: Run, start: ArcStart) -> None:
    """Raise an error if the start of a run violates a constraint of its mode, or a guard.

    Args:
        run: Settings of the run.
        start: The first start.

    Raises:
        GuardViolatedError: If a guard is below minus its tolerance.
        ConstraintViolatedError: If the state is off the constraint of the mode.
        EscapingError: If the constraint refuses the state, see `Held.refuse`.
        SystemDefinitionError: If the guards are no numbers, or not as many as their names.
    """
    if start.mode.held is not None:
        start.mode.held.check("x0", start.mode.key, start.state)
    guards = start.mode.guard_set
    values = guards.checked_values(start.mode.key, start.time, start.state, start.input)
    relative = values / guards.sizes
    if (relative < -run.guard_tolerance).any():
        i = int(relative.argmin())
        name, value = guards.names[i], float(values[i])
        raise GuardViolatedError(
            f"x0 lies outside mode {start.mode.key!r}: guard {name!r} is {value:.6g} and must not "
            f"be negative{run.system.describe_outside(name, value, start.state, start.input)}"
        )


def select_start_mode(system: HybridSystem, policy: Policy, t: float, x: Array) -> ModeKey:
    """Return the mode that is consistent with a state under the input of the policy there.

    The input may depend on the mode, and the mode on the input. So modes are tried until one is
    consistent under its own input; the first is consistent under no input.

    Args:
        system: The hybrid system.
        policy: Gives the input law.
        t: Start time, s.
        x: State (nx,) at the start.

    Raises:
        NoContactSolutionError: If a mode is reached twice.
    """
    tried: list[ModeKey] = []
    key = system.consistent_mode(x)
    while key not in tried:
        tried.append(key)
        law = ask_input_law(policy, History(key, t, x), system.mode(key).nu)
        following = system.consistent_mode(x, compute_first_input(law, t, x, system.mode(key).nu))
        if following == key:
            return key
        key = following
    raise NoContactSolutionError(
        f"no mode is consistent with x0 under the input of the policy: tried {tried}, then {key!r}"
    )


def make_arc(index: int, start: ArcStart, flown: FlownArc) -> Arc:
    """Return the arc with given steps.

    Args:
        index: Number of the arc in its trajectory.
        start: Its start.
        flown: Its steps and its end.
    """
    t, x, u = start.time, start.state, start.input
    return make_arc_from_steps(index, start.mode, flown.steps, t, x, u, flown.end)


def integrate_arc(run: Run, start: ArcStart, past: tuple[Event, ...] = ()) -> FlownArc:
    """Integrate in one mode until the first event, a change of the law, or the end of the span.

    A change of the law ends the arc as a crossing without guards. The arc goes on over a change
    from one held input or linear feedback to another in which the same mode is consistent.

    Args:
        run: Settings of the run; its memory is updated.
        start: The start of the arc.
        past: The events so far, for the policy.

    Returns:
        The steps, and what has ended them.

    Raises:
        IntegrationError: If the field, a guard or the input is not finite, or the flow leaves the
            constraint of its mode.
        StepSizeError: If steps become too short and the run may not pass jams.
    """
    mode, flown, law = start.mode, _integrate_under_law(run, start), start.law
    steps = flown.steps
    if sees_samples(run.policy):
        # Such a policy wants each of its samples as an event of the history.
        return flown
    while (
        flown.crossing is not None
        and not flown.crossing.guards
        and isinstance(law, _CONTINUING_LAWS)
    ):
        t, x = flown.end, mode.space.normalize(steps[-1].states[-1])
        history = History(mode.key, t, x, past)
        law = ask_input_law(run.policy, history, mode.nu)
        point = mode.calc(t, x, compute_first_input(law, t, x, mode.nu))
        if (
            not isinstance(law, _CONTINUING_LAWS)
            or select_mode(point, run.guard_tolerance) != mode.key
        ):
            return flown._replace(steps=steps, next_law=(history, law))
        change = ask_next_change(run.policy, history)
        flown = _integrate_under_law(run, ArcStart(mode, law, t, x, point.u, change, point))
        if flown.steps:
            first, *rest = flown.steps
            steps += [first._replace(changed=True), *rest]
    return flown._replace(steps=steps)


def _integrate_under_law(run: Run, start: ArcStart) -> FlownArc:
    """Integrate under one input law until an event, the next change of the law, or the span's end.

    Args:
        run: Settings of the run; its memory is updated.
        start: Mode, law, time and state to start from.

    Returns:
        The steps, and what has ended them.
    """
    end = min(run.t_end, start.next_change)
    if not start.time < end:  # changes are later than the start, so the span has ended
        return FlownArc([], run.t_end)
    memory = run.recall_mode(start.mode)
    if start.point is not None:
        fired = memory.watch.find_violated_guards(start.point.guards)
        if fired:
            return FlownArc([], start.time, Crossing(start.time, fired))
    integrator = run.integrator
    # A first step that the user has set goes before the memory.
    first_step = memory.first_step if integrator.first_step is None else None
    use_rk45 = _is_rk45_enough(run, memory, start, end, first_step)
    if use_rk45:
        integrator, first_step = replace(integrator, method=RK45_TABLEAU), end - start.time
    motion = DrivenMode(start.mode, start.law, True, start.point, use_rk45)
    attempts, empty_arc = _MAX_ATTEMPTS, memory.empty_arc
    if empty_arc is not None and empty_arc.start.time == start.time:
        # The last arc in this mode was empty, too, and no time has passed since.
        if empty_arc.has_same_start(start):
            return empty_arc.flown
        attempts, first_step = 1, empty_arc.step_length
    for _ in range(attempts):
        memory.watch.begin_arc()
        flow = Flow(integrator, motion, start.time, start.state, end, first_step)
        flown = _integrate_until_event(run, flow, memory.watch, end)
        if flown.crossing is None or flown.end > start.time:
            break
        step_length = flown.steps[-1].end - start.time
        memory.empty_arc = EmptyArc(start, flown, step_length)
        first_step = step_length / _ATTEMPT_RATIO
    run.memory.efforts.record(run.system, start.mode.key, start.law, flown.steps, flown.end)
    if use_rk45:
        memory.rk45_limit = flow.length
    elif flown.end > start.time:
        memory.first_step = min(flow.length, MAX_STEP_GROWTH * (flown.end - start.time))
    return flown


def _is_rk45_enough(
    run: Run, memory: ModeMemory, start: ArcStart, end: float, first_step: float | None
) -> bool:
    """Return whether one step of RK45 is enough for a held input, and update its limit in memory.

    A step of DOP853 has three times the stages of one of RK45. It is wasted where an input is held
    for less than even RK45 needs for the tolerance, as under a fast sampled controller.

    Args:
        run: Settings of the run.
        memory: Memory of the mode; its `rk45_limit` is read, and then raised a little, so that
            RK45 is tried again where it has been too short.
        start: Start of the held input.
        end: Its end, s.
        first_step: Step of DOP853 that would be tried first, s; None if unknown.
    """
    duration = end - start.time
    # The end of the time span cuts an input that is not short by itself.
    is_held = isinstance(start.law, HeldInput) and end < run.t_end
    # Of these methods only DOP853 has compiled steps.
    if run.integrator.method is not DOP853_TABLEAU or start.mode.compiled_steps or not is_held:
        return False
    if first_step is None or first_step < duration:
        return False
    limit = duration if memory.rk45_limit is None else memory.rk45_limit
    memory.rk45_limit = _RK45_LIMIT_GROWTH * limit
    return limit >= duration


def _integrate_until_event(run: Run, flow: Flow, watch: GuardWatch, end: float) -> FlownArc:
    """Take steps of a flow until a guard fires, or until a time.

    Args:
        run: Settings of the run; steps are counted in its memory.
        flow: The flow.
        watch: Watch of the guards of the mode, at the start of an arc.
        end: The time, s: the end of the span, or a change of the law.

    Returns:
        The steps, and what has ended them.

    Raises:
        StepSizeError: If steps become too short and the run may not pass jams.
    """
    steps: list[Step] = []
    accepted = flow.steps()
    while True:
        try:
            step = next(accepted, None)
        except StepSizeError as error:
            if not run.bridges:
                raise
            return FlownArc(steps, steps[-1].end if steps else flow.start, failure=error)
        if step is None:
            break
        # Without the first step under each law: `max_events` limits the number of arcs, and the
        # time span that of held inputs (test_the_first_step_under_each_law_is_free).
        if steps:
            run.memory.steps += 1
        steps.append(step)
        if run.progress is not None:
            run.progress(step.end)
        crossing = watch.find_crossing(step, flow)
        if crossing is not None:
            # An unarmed guard may have left zero before this step: then the arc ends there.
            if crossing.time > step.start:
                steps[-1] = flow.end_step_at(step, crossing.time)
            return FlownArc(steps, crossing.time, crossing)
        if run.memory.steps > run.max_steps:
            return FlownArc(steps, step.end, step_limit=f"the last {flow.limit}")
    if end < run.t_end:
        return FlownArc(steps, end, Crossing(end, watch.find_imminent_guards(steps[-1])))
    return FlownArc(steps, end)


def _apply_resets(
    run: Run,
    crossing: Crossing,
    substitute: SubstituteJump | None,
    mode: ModeKey,
    x: Array,
    u: Array,
    rate: Array,
) -> EventOutcome:
    """Return the mode and the jump of an event, and the guards that take part in it.

    Args:
        run: Settings of the run.
        crossing: Time and guards of the event.
        substitute: The jump in place of the resets; None to apply these.
        mode: Mode before the event.
        x: State (nx,) before the event.
        u: Input (nu,) before the event.
        rate: Rate (nu,) of the input before the event, 1/s.
    """
    if substitute is not None:
        return EventOutcome.from_jump(substitute.mode, substitute.jump, crossing.guards)
    if not crossing.guards:  # only the input law changes, and the state goes on
        return EventOutcome(mode, Jump(x), ())
    outcome = compute_outcome(run.system, mode, crossing.guards, crossing.time, x, u)
    if not keeps_law(run.policy):
        # Another law may follow, such as one that draws all feet back, so that the rate of the
        # input before the event does not tell which guards go on to fall.
        return outcome
    at = JumpPoint(crossing.time, x, u)
    releasing = select_releasing_guards(run.system, mode, outcome.guards, at, rate)
    if releasing == outcome.guards:
        return outcome
    return compute_outcome(run.system, mode, releasing, crossing.time, x, u)


def fire_event(
    run: Run,
    arc: Arc,
    crossing: Crossing,
    past: tuple[Event, ...],
    substitute: SubstituteJump | None,
    next_law: tuple[History, InputLaw] | None = None,
) -> tuple[Event, ArcStart]:
    """Apply the resets of an event and select the mode that is consistent after it.

    Args:
        run: Settings of the run.
        arc: The arc that ends in the event.
        crossing: Its time and its guards, none where only the input law changes.
        past: Earlier events, for the policy.
        substitute: The jump in place of the resets; None to apply these.
        next_law: The law of the policy in the mode of the arc, with its history, if the policy has
            been asked already (`FlownArc.next_law`): it is asked once.

    Returns:
        The event, and the start of the next arc.

    Raises:
        InputError: If the state after the event is none of its mode, or is off the constraint of
            the mode that goes on.
        AmbiguousEventError: If the order of simultaneous guards matters.
        NoContactSolutionError: If no mode is consistent after the event.
    """
    t = crossing.time
    has_jump = substitute is not None or bool(crossing.guards)
    before, u, rate = arc.left_limit()
    key, jump, guards = _apply_resets(run, crossing, substitute, arc.mode, before, u, rate)
    accumulation = None if substitute is None else substitute.accumulation
    bridged = None if substitute is None else substitute.bridged
    name, space, after = f"state after the event at t = {t}", run.system.mode(key).space, before
    if has_jump:
        after = check_vector(name, jump.state, space.nx)
        space.check(name, after)
    impulses = freeze_array(np.array(jump.impulses, dtype=np.float64))

    def make_event(mode: ModeKey, u_after: Array) -> Event:
        """Return the event, given the mode after it and the input (nu,) there."""
        return Event(
            arc.index,
            t,
            arc.mode,
            mode,
            guards if accumulation is None else accumulation.guards,
            before,
            after,
            u,
            u_after,
            rate,
            impulses,
            jump.report,
            None if accumulation is None else accumulation.time,
            (run.integrator.rtol, run.integrator.atol),
            getattr(jump.report, "uniqueness", None),
            bridged,
        )

    laws: dict[ModeKey, tuple[History, InputLaw]] = {}

    def calc_point(mode: ModeModel) -> Point:
        """Return a candidate mode's quantities after the event, under its own input."""
        if next_law is not None and mode.key == arc.mode:
            history, law = next_law
        else:
            # The policy sees this event, too, with a zero input: the input after it is asked for.
            provisional = make_event(mode.key, freeze_array(np.zeros(mode.nu)))
            history = History(mode.key, t, after, (*past, provisional))
            law = ask_input_law(run.policy, history, mode.nu)
        laws[mode.key] = history, law
        return mode.calc(t, after, compute_first_input(law, t, after, mode.nu))

    # Where only the law changes, the mode goes on unless one of its guards is close to zero.
    tolerance = None if crossing.guards else run.guard_tolerance
    point = find_consistent_mode(run.system, key, calc_point, tolerance)
    mode, (history, law) = point.mode, laws[point.mode.key]
    if mode.held is not None and (has_jump or mode.key != arc.mode):
        mode.held.check(name, mode.key, after)
    change = ask_next_change(run.policy, history)
    start = ArcStart(mode, law, t, after, point.u, change, point)
    return make_event(mode.key, point.u), start
