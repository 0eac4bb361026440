"""The event loop: flow until a guard fires, jump, select the next mode, flow on."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import (
    Array,
    check_callable,
    check_count,
    check_instance,
    check_interval,
    check_member,
    check_number,
    check_vector,
    join_names,
)
from hybridctl.base.errors import (
    EffortLimitWarning,
    EventLimitError,
    InputError,
    StepLimitError,
    ZenoError,
)
from hybridctl.base.progress import Progress, report_time
from hybridctl.hybrid.arc import Arc, make_arc_from_steps
from hybridctl.hybrid.bridge import JAM_ERRORS, check_pole, pass_jam
from hybridctl.hybrid.clock import OwnClock, is_far_from_zero
from hybridctl.hybrid.flow import METHODS, Integrator
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.policy import (
    History,
    Policy,
    ask_input_law,
    ask_next_change,
    compute_first_input,
    list_start_warnings,
)
from hybridctl.hybrid.rest import advise_on_rest, find_rest, has_rest
from hybridctl.hybrid.run import (
    ArcStart,
    FlownArc,
    Run,
    RunMemory,
    check_start,
    fire_event,
    integrate_arc,
    make_arc,
    select_start_mode,
)
from hybridctl.hybrid.system import HybridSystem, as_policy
from hybridctl.hybrid.trajectory import Event, HybridTrajectory
from hybridctl.hybrid.zeno import CROWD_SIZE, OnZeno, are_within, as_zeno_policy

OnJam = Literal["bridge", "raise"]
"""What `simulate` takes as `on_jam`."""
_MAX_LISTED_LABELS = 14
"""Most entries of a state that a message names, so that it has three lines. A choice."""
_GIVES_WARNINGS = ContextVar("whether simulate warns of starts and inputs", default=True)
_USER_LEVEL = 4
"""Stack level of the user's code in a helper of `_simulate`: helper 1, `_simulate` 2, `simulate` 3.
"""
_UNBOUNDED_GROWTH = 100.0
"""Growth of a coordinate that an error mentions as unbounded.

Its value at the end is relative to the largest coordinate in the first half of the run, or to 1.
The value is a choice."""


@dataclass(frozen=True)
class SimulationOptions:
    """Settings of `simulate` that few runs change.

    Attributes:
        first_step: Step that the integrator tries first on every arc, s; it takes a shorter one
            where that is not accurate. If None, it tries the last step in the same mode, and a
            short one in a mode where there was none.
        max_steps: Number of steps of the whole run after which it ends in a `StepLimitError`. The
            first step under each input law does not count: each arc has one, and an arc on which
            inputs are held has one for each of them.
        guard_tolerance: Value above which a guard is armed, relative to its scale
            (`GuardSet.scales`, one in its own unit by default). It has to exceed the rounding of a
            guard on its surface, 1e-16 of its terms. A run may begin this far outside its mode,
            a later arc ten times as far; farther outside an event ends the arc at once.

    Raises:
        InputError: If a value is not positive and finite, or `max_steps` is negative.
    """

    first_step: float | None = None
    max_steps: int = 100_000
    guard_tolerance: float = 1e-8

    def __post_init__(self) -> None:
        if self.first_step is not None:
            check_number("first_step", self.first_step, above=0.0)
        check_count("max_steps", self.max_steps, at_least=0)
        check_number("guard_tolerance", self.guard_tolerance, above=0.0)


DEFAULT_OPTIONS = SimulationOptions()
"""The options of runs that state none."""


def simulate(
    system: HybridSystem,
    mode: ModeKey | None,
    x0: ArrayLike,
    t_span: ArrayLike,
    policy: Policy | InputLaw | None = None,
    *,
    rtol: float = 1e-9,
    atol: float = 1e-9,
    method: str = "DOP853",
    max_step: float = math.inf,
    max_events: int = 1000,
    event_window: float = 1e-8,
    on_zeno: OnZeno = "rest",
    on_jam: OnJam = "bridge",
    terminal: Callable[[Event], bool] | None = None,
    progress: Progress = None,
    wrench: object = None,
    options: SimulationOptions = DEFAULT_OPTIONS,
) -> HybridTrajectory:
    """Simulate a hybrid system over a time span.

    Where the policy changes its law at a time of its own, an event without guards is recorded: the
    state goes on, the mode too if it is consistent with the new input (`Mode.select`). Such events
    count neither towards `max_events` nor as Zeno. Held inputs and linear feedbacks that follow
    each other in one mode, as those of a sampled controller, are part of one arc: see
    `Arc.changes`.

    **Accumulating events** (Zeno). By default robots whose bounces accumulate come to rest, and so
    does any system whose `Transition` states a `rest`; without one they are a `ZenoError`. The run
    goes on at once from the state that the events tend to, in either of two cases:

    - The intervals between events shrink by one ratio, and so do their jumps. By that ratio the
      events end within the horizon (`ZenoPolicy.horizon`), and their further jumps add up to no
      more than the flow makes meanwhile.
    - Ten events are within the horizon, and the guards have not risen above their tolerance between
      the last two of them.

    In both cases rest may take from the rates of guards only about what the flow makes of them from
    the last interval, or the first of the ten events, to the end: a light ball that is squeezed by
    a falling mass has ever shorter intervals, too, and goes on. Ten events in a row within nine
    times `ZenoPolicy.min_dwell` without rest are an error, and so are three at once of which the
    first two left mode and state as they were. Bounces may end before, in a contact that the mode
    selects. That rest was assumed is said by the event
    (`event.rest` in words, the predicted time as `event.accumulation`) and by one line of the log
    "hybridctl" per run, of level INFO; `linearize` refuses such a run.

    **Jamming.** Where contacts jam, where events crowd without accumulating, and where no mode is
    consistent or no step short enough, the run is taken past that instant, if the system has a way:
    contacts let go for up to 1e-4 s, and one impact of all that touch then gives the impulses that
    their forces would have (see `mechanics.impacts.resets`). Both ends are events, see
    `Event.bridged`. Such a run gives one `BridgeWarning`, however often it jams, and `linearize`
    refuses it.

    Args:
        system: The hybrid system.
        mode: Key of the initial mode. If None, the mode that is consistent with x0 and the policy's
            first input, which robots with contacts can tell (`consistent_mode`).
        x0: Initial state (nx,).
        t_span: Start and end of the span, s.
        policy: A function u(t, x) that returns the input (nu,), or a `Policy`, which is asked at
            each event. If None, the input is zero.
        rtol: Relative tolerance of steps: each coordinate may be wrong by atol + rtol |x|. Event
            times and states are as accurate as the flow is.
        atol: Absolute tolerance of steps, in the unit of each coordinate.
        method: Integration method: "DOP853", "RK45", "RK23", or for stiff fields "Radau" or "BDF".
        max_step: Longest step, s. A guard that is negative for longer than 0.2226 of a step (0.6235
            where it has four samples: under inputs held for less than a step) is always found; a
            shorter dip is found where samples show it. So max_step = w / 0.6235 finds all longer
            than w.
        max_events: Number of events of guards, after which the run ends in an `EventLimitError`, or
            in a `ZenoError` if the last ten of them are within the horizon and no rest is taken.
        event_window: Guards that fall through zero within this time of the first, s, are one event.
            Where their joint event has no edge of its own, the single edges are applied one after
            the other, and must lead to the same mode and state in every order (see `jump`), else
            it is an `AmbiguousEventError`.
        on_zeno: "rest" takes the rest that the system states. "raise" takes none: the run goes on
            through accumulating events, and ends in a `ZenoError` where they crowd, see above. A
            `ZenoPolicy` has their settings too, and may give rests to systems that
            state none: `hybridctl.relaxation.ZenoRelaxation()` takes what relaxations tend to.
        on_jam: "bridge" takes the run past a jam, "raise" ends it in the error.
        terminal: Returns whether an event of guards ends the run, such as one that means a fall.
            The last arc is then the state after this event. If None, none does.
        progress: True prints the share of the time span that is simulated on standard error. A
            function is called after each step, with the time reached in s.
        wrench: A `mechanics.Wrench`, or several, that push a robot with contacts for a while,
            beside the policy. The run then belongs to `system.pushed(wrench)`, where its size is an
            input.
        options: Further settings.

    Returns:
        The arcs, and the events between them.

    Raises:
        InputError: If an argument is wrong, with its kin: `GuardViolatedError` if x0 lies outside
            its mode, `ConstraintViolatedError` if it is off what the mode holds, and
            `UnknownNameError` if `method`, `on_zeno` or `on_jam` is none of its names.
        SimulationError: If the run cannot go on, by its kin: `IntegrationError`, `EventLimitError`,
            `StepLimitError`, `ZenoError`, `AmbiguousEventError`, `NoContactSolutionError`.

    Warns:
        JointLimitWarning: The joints of a robot begin beyond the limits of its description, which
            are part of its dynamics only where a system has joint stops.
        LinearRangeWarning: A tracking policy with gains of `hybrid_lqr` starts so far off its
            reference that the first order predicts nothing there.
        EffortLimitWarning: Inputs exceed the limits of the motors (`Robot.effort`), or would do so
            if a law did not cut them. It comes once, at the end.
        BridgeWarning: The run was taken past a jam.
    """
    check_instance("system", system, HybridSystem)
    start, end = check_interval("t_span", t_span)
    if wrench is not None:
        system = system.pushed(wrench)
    zeno = as_zeno_policy(on_zeno)
    system = zeno.extend(system)
    acting, report = as_policy(policy, system), report_time(progress, "simulate", start, end)
    ends_run = _never_ends if terminal is None else check_callable("terminal", terminal)
    settings: dict[str, Any] = {
        "rtol": rtol,
        "atol": atol,
        "method": method,
        "max_step": max_step,
        "max_events": max_events,
        "event_window": event_window,
        "on_zeno": zeno,
        "on_jam": on_jam,
        "options": options,
    }
    # Far from zero adjacent floating-point times are farther apart than the event window, or than
    # events that accumulate. Such a run is simulated on a clock of its own, which begins at zero.
    if not is_far_from_zero(start, end):
        run = new_run(system, acting, end, report, **settings)
        return _simulate(run, mode, x0, start, ends_run)
    clock = OwnClock(start)
    run = new_run(
        clock.wrap_system(system),
        clock.wrap_policy(acting),
        end - start,
        clock.wrap_progress(report),
        **settings,
    )
    with clock.translate_errors(system):
        found = _simulate(run, mode, x0, 0.0, clock.wrap_condition(ends_run))
    return clock.make_absolute_run(found, system)


def _never_ends(event: Event) -> bool:
    """Return that an event does not end the run."""
    return False


def _simulate(
    run: Run,
    mode: ModeKey | None,
    x0: ArrayLike,
    start: float,
    ends_run: Callable[[Event], bool],
) -> HybridTrajectory:
    """Return the trajectory of a run, after the warnings of its start and of its inputs.

    Args:
        run: Settings of the run.
        mode: Key of the initial mode; if None, the consistent one.
        x0: Initial state (nx,).
        start: Start time, s.
        ends_run: Returns whether an event of guards ends the run.

    Returns:
        The trajectory, on the clock of the run. An error of the start or of the run is raised.

    Raises:
        InputError: The state does not have the size of the mode's.
    """
    system = run.system

    def find_mode() -> ModeKey:
        """Return the mode that is consistent with x0 and the policy's first input."""
        return select_start_mode(system, run.policy, start, check_vector("x0", x0))

    mode = find_mode() if mode is None else system.complete_mode(mode, find_mode)
    first = system.mode(mode)
    try:
        state = check_vector("x0", x0, first.space.nx)
    except InputError as error:
        # Most often the velocities are missing, or a quaternion was left out.
        labels = join_names(system.state_labels(first.key), _MAX_LISTED_LABELS)
        raise InputError(f"{error}; its entries are {labels}") from error
    first.space.check("x0", state)
    warn_of_start(system, state, _USER_LEVEL)
    history = History(mode, start, state)
    law = ask_input_law(run.policy, history, first.nu)
    u = compute_first_input(law, start, state, first.nu)
    point = ArcStart(first, law, start, state, u, ask_next_change(run.policy, history))
    check_start(run, point)
    if _GIVES_WARNINGS.get():
        for warning in list_start_warnings(run.policy, history):
            warnings.warn(warning, stacklevel=_USER_LEVEL - 1)
    found = _event_loop(run, point, ends_run)
    excess = run.memory.efforts.report() if _GIVES_WARNINGS.get() else ""
    if excess:
        warnings.warn(f"the run {excess}", EffortLimitWarning, stacklevel=_USER_LEVEL - 1)
    return found


def warn_of_start(system: HybridSystem, x: Array, stacklevel: int) -> None:
    """Warn of what is doubtful about a start, unless it is computed (`computed_starts`).

    Args:
        system: The system that is simulated.
        x: Initial state (nx,).
        stacklevel: Which call the warnings name, as in `warnings.warn`: 1 for the line in this
            function, 2 for its caller, 3 for the caller of the caller. It is to be the user's code.
    """
    if not _GIVES_WARNINGS.get():
        return
    for warning in system.start_warnings(x):
        warnings.warn(warning, stacklevel=stacklevel)


@contextmanager
def computed_starts() -> Iterator[None]:
    """Give no warnings of the starts and inputs of runs in the block: nobody has chosen them.

    Filters and searches begin thousands of runs, each at another state.
    """
    token = _GIVES_WARNINGS.set(False)
    try:
        yield
    finally:
        _GIVES_WARNINGS.reset(token)


def new_run(
    system: HybridSystem,
    policy: Policy,
    end: float,
    report: Callable[[float], None] | None,
    *,
    rtol: float,
    atol: float,
    method: str,
    max_step: float,
    max_events: int,
    event_window: float,
    on_zeno: OnZeno,
    on_jam: str,
    options: SimulationOptions,
) -> Run:
    """Return a run with settings of `simulate`, after a check of each.

    Args:
        system: The system, with the rests of the Zeno policy (`ZenoPolicy.extend`).
        policy: The policy.
        end: End of the time span, s.
        report: Called with the time in s after each step; None for no report.
        rtol: As in `simulate`, like all further arguments.
        atol: Absolute tolerance of steps.
        method: Integration method.
        max_step: Longest step, s.
        max_events: Number of events after which the run ends in an error.
        event_window: Event window, s.
        on_zeno: What the run does where events accumulate.
        on_jam: "bridge" or "raise".
        options: Further settings.

    Raises:
        InputError: If a setting is wrong.
        UnknownNameError: If a setting is none of the names that it may be.
    """
    check_member("on_jam", on_jam, ("bridge", "raise"))
    check_instance("options", options, SimulationOptions)
    integrator = Integrator(
        METHODS[check_member("method", method, METHODS)],
        check_number("rtol", rtol, above=0.0),
        check_number("atol", atol, above=0.0),
        max_step if max_step == math.inf else check_number("max_step", max_step, above=0.0),
        options.first_step,
    )
    return Run(
        system,
        policy,
        integrator,
        end,
        check_count("max_events", max_events, at_least=0),
        check_number("event_window", event_window, at_least=0.0),
        options.guard_tolerance,
        options.max_steps,
        as_zeno_policy(on_zeno),
        on_jam == "bridge",
        report,
        RunMemory(),
    )


def _event_loop(run: Run, start: ArcStart, ends_run: Callable[[Event], bool]) -> HybridTrajectory:
    """Return the trajectory of a run from the start of its first arc.

    Each round integrates an arc, locates the event at its end, fires it and selects the next mode.
    Where an event cannot be resolved the round passes the jam instead. The stages are explained in
    `hybrid.run`.

    Args:
        run: Settings of the run.
        start: Start of the first arc.
        ends_run: Returns whether an event of guards ends the run.

    Returns:
        The trajectory up to the end of the time span, or to the event that ends the run.

    Raises:
        StepLimitError: If the run takes more than `run.max_steps` steps.
        EventLimitError: If it has more than `run.max_events` events of guards.
        ZenoError: If events accumulate and the system has no rest for them, or may not take it.
        JAM_ERRORS: If events cannot be resolved, and there is no way past.
    """
    arcs: list[Arc] = []
    events: list[Event] = []
    fired = 0

    def record() -> HybridTrajectory:
        """Return the trajectory so far."""
        return HybridTrajectory(tuple(arcs), tuple(events), run.system, run.system)

    while True:
        # Integrate, and locate the event.
        flown = integrate_arc(run, start, tuple(events))
        arc = make_arc(len(arcs), start, flown)
        arcs.append(arc)
        if flown.step_limit is not None:
            raise StepLimitError(
                f"more than max_steps = {run.max_steps} steps by t = {flown.end:.9g} s in mode "
                f"{start.mode.key!r}, {flown.step_limit}{_describe_growth(run.system, record())}",
                trajectory=record(),
            )
        if flown.crossing is None and flown.failure is None:  # the end of the time span
            return record()
        if flown.crossing is None or flown.crossing.guards:  # changes of the law do not count
            fired += 1
            if fired > run.max_events:  # this event is not applied any more
                limit_error = _make_event_limit_error(run, start.mode.key, flown, record())
                raise limit_error
        try:
            # Rest where events accumulate, else fire the guards; select the next mode.
            event, start = _pass_event(run, arc, flown, events)
        except JAM_ERRORS as error:
            # Pass a jam. The first of its arcs replaces the one that ended in the error: steps
            # close to the jam are cut off.
            passage = pass_jam(run, start, flown, len(arcs) - 1, tuple(events), error)
            if passage is None:
                # A `ZenoError` promises the run so far.
                if isinstance(error, ZenoError):
                    error.trajectory = record()
                raise
            arcs[-1:] = passage.arcs
            events += passage.events[:-1]
            event, start = passage.events[-1], passage.point
        events.append(event)
        if event.guards and ends_run(event):
            # An arc of no duration holds the state after the event.
            t, x, u = start.time, start.state, start.input
            arcs.append(make_arc_from_steps(len(arcs), start.mode, [], t, x, u, t))
            return record()


def _make_event_limit_error(
    run: Run, key: ModeKey, flown: FlownArc, trajectory: HybridTrajectory
) -> EventLimitError | ZenoError:
    """Return the error of a run with more events than it may have.

    Where the last events crowd, and no rest is taken, it is a `ZenoError` with a remedy.

    Args:
        run: Settings of the run.
        key: Mode of the last arc.
        flown: The last arc, which ends in the event that is one too many.
        trajectory: The run so far.

    Returns:
        The error, which is not raised here.
    """
    guards = () if flown.crossing is None else flown.crossing.guards
    message = (
        f"more than max_events = {run.max_events} events by t = {flown.end:.9g} s "
        f"in mode {key!r}; the last guards were {guards}"
    )
    of_guards = [event for event in trajectory.events if event.guards]
    takes_rest = run.zeno.takes_rest and has_rest(run, key, guards)
    if not takes_rest and are_within(of_guards, CROWD_SIZE, run.zeno.horizon):
        message += f", {CROWD_SIZE} within the Zeno horizon = {run.zeno.horizon:.3g} s"
        return ZenoError(f"{message}{advise_on_rest(run, key, guards)}", trajectory=trajectory)
    return EventLimitError(message, trajectory=trajectory)


def _describe_growth(system: HybridSystem, run: HybridTrajectory) -> str:
    """Return words on a state that has grown without bound, which explains short steps, or none.

    Args:
        system: The system.
        run: The run so far.

    Returns:
        The end of a message, with the largest coordinate of the final state. It is "" if this
        coordinate is below `_UNBOUNDED_GROWTH` times the largest of any mode in the first half of
        the run, or times 1.
    """
    x = run.final_state
    if not x.size:
        return ""
    k = int(np.argmax(np.abs(x)))
    # One by one, as modes may have states of different size.
    times = np.linspace(run.start, 0.5 * (run.start + run.end), 101).tolist()
    largest = max(float(np.abs(run(t)).max(initial=0.0)) for t in times)
    if abs(x[k]) < _UNBOUNDED_GROWTH * max(1.0, largest):
        return ""
    name = system.state_labels(run.final_mode)[k]
    return (
        f"; {name} has grown to {x[k]:.3g}: feedback that does so is unstable, or sampled too "
        "seldom for its gains"
    )


def _pass_event(
    run: Run, arc: Arc, flown: FlownArc, events: Sequence[Event]
) -> tuple[Event, ArcStart]:
    """Return the event at the end of an arc, and the start of the next arc.

    Args:
        run: Settings of the run.
        arc: The arc that has just ended.
        flown: Its steps, with the crossing or the failure at its end.
        events: Earlier events.

    Raises:
        JAM_ERRORS: The steps had become too short, the forces have a pole, or the event cannot be
            resolved.
    """
    if flown.crossing is None:  # steps had become too short, which `_event_loop` may pass as a jam
        assert flown.failure is not None
        raise flown.failure
    # A guard that stayed at zero may jump at its event: that looks like a pole and is none.
    if flown.crossing.guards and not flown.crossing.stayed_at_zero:
        check_pole(run, arc, flown.crossing.guards)
    rest = find_rest(run, arc, flown.crossing, events)
    return fire_event(run, arc, flown.crossing, tuple(events), rest, flown.next_law)
