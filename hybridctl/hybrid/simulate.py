"""The event loop: flow until a guard fires, jump, select the next mode, flow on."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import Parameter, signature
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
)
from hybridctl.base.errors import EffortLimitWarning, EventLimitError, StepLimitError, ZenoError
from hybridctl.base.progress import Progress, report_time
from hybridctl.hybrid.arc import Arc, arc_from_steps
from hybridctl.hybrid.bridge import BRIDGED, bridge, check_pole
from hybridctl.hybrid.clock import ClockSystem, OwnClock, is_far_from_zero
from hybridctl.hybrid.flow import METHODS, Integrator
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.policy import (
    History,
    Policy,
    first_input,
    input_law,
    next_change,
)
from hybridctl.hybrid.rest import accumulating, states_rest, way_to_rest
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
from hybridctl.hybrid.zeno import INSTANT_EVENTS, OnZeno, as_zeno_policy, crowded

_WARNS = ContextVar("whether simulate warns of starts", default=True)
_RUNAWAY = 100.0  # times the largest coordinate in the first half of a run


def simulate(
    system: HybridSystem,
    mode: ModeKey | None,
    x0: ArrayLike,
    t_span: ArrayLike,
    policy: Policy | InputLaw | None = None,
    *,
    rtol: float = 1e-9,
    atol: float = 1e-9,
    max_events: int = 1000,
    max_steps: int = 100_000,
    on_zeno: OnZeno = "rest",
    on_jam: Literal["bridge", "raise"] = "bridge",
    zeno_horizon: float = 1e-5,
    method: str = "DOP853",
    max_step: float = math.inf,
    first_step: float | None = None,
    event_window: float = 1e-8,
    guard_tolerance: float = 1e-8,
    min_dwell: float = 1e-9,
    terminal: Callable[[Event], bool] | None = None,
    progress: Progress = None,
    wrench: object = None,
) -> HybridTrajectory:
    """Simulate a hybrid system from state x0 in `mode` over t_span = (start, end), in s.

    mode: its key; None for the one that is consistent with x0 and the policy's first input, where
    the system can tell: those of robots with contacts do (`consistent_mode`).

    `policy` is None (zero input), a function u(t, x), or a `Policy` that sees the events. Where
    it changes its law at a time of its own, an event without guards is recorded: the state goes
    on, the mode too if it is consistent with the new input (`Mode.select`). Such events count
    neither towards `max_events` nor as Zeno. Held inputs and linear feedbacks that follow each
    other in one mode, as those of a sampled controller, are part of one arc: see `Arc.changes`.

    rtol, atol, method: of the integrator (a scipy stepper); event times and states
    are as accurate as the flow is.
    max_step, s: of a step. A guard that is negative for longer than 0.2226 of a step (0.6235 where
    it has four samples: under "Radau", or inputs held for less than a step) is always found; a
    shorter dip is found where samples show it. So max_step = w / 0.6235 finds all longer than w.
    first_step: that the integrator tries first on every arc, in s; it takes a shorter one where
    that is not accurate. None leaves the choice to scipy, which begins carefully.
    max_steps: of the integrator in the whole run, besides the first step of each arc.
    event_window: guards that fall through zero within this time of the first, in s, are one
    event. Where their joint event has no edge of its own, the single edges are applied one
    after the other, and must give the same state in every order (see `jump`).
    guard_tolerance: a guard is armed once above this value, relative to its scale
    (`GuardSet.scales`, one in its own unit by default), which has to exceed the rounding of a
    guard on its surface; an arc may begin this far outside.
    min_dwell: ten events in a row closer than this, in s, count as Zeno; so do the last ten of more
    than `max_events` that are within `zeno_horizon`, where no rest is taken, and three at once of
    which two left mode and state as they were.
    on_zeno: "rest", "raise" or a `ZenoPolicy`. Under "rest", the default, robots whose bounces
    accumulate come to rest, and so does any system whose `Transition` states a `rest`; without one,
    events that accumulate are a `ZenoError`. Rest is taken where intervals between events and
    their jumps shrink by one ratio and are predicted to end within `zeno_horizon` (s), after jumps
    that add up to no more than the flow makes meanwhile. The state that they tend to is taken at
    once. So is it
    after ten events within that time between which the guards do not rise above their tolerance.
    What rest takes away from the rates of guards has to be what the flow makes of them in that
    time: a light ball that is squeezed by a falling mass has ever shorter intervals, too, and goes
    on. That rest was assumed is said by the event (`event.rest` in words, the predicted time as
    `event.accumulation`) and by one line of the log "hybridctl" per run, of level INFO;
    `linearize` refuses such a run. "raise" ends the run in a `ZenoError`. A policy may
    give rests to systems that state none: `hybridctl.relaxation.ZenoRelaxation()` takes what
    relaxations tend to, rest on the guard for as long as the fields hold it there.
    on_jam: "bridge", or "raise". Where contacts jam, where events crowd without accumulating, and
    where no mode is consistent or no step short enough, the run is taken past that instant, if the
    system has a way: contacts let go for up to 1e-4 s, and one impact of all that touch then gives
    the impulses that their forces would have (see `mechanics.impacts.resets`). Both ends are
    events, see `Event.bridged`; there is one `BridgeWarning` a run, and `linearize` refuses it.
    "raise" ends the run in the error.
    terminal: whether an event of guards ends the run, such as one that means a fall. Its last arc
    is then the state after this event.
    progress: True prints the share of the time span that is simulated on standard error; a function
    is called after each step, with the time reached.
    wrench: a `mechanics.Wrench`, or several, that push a robot with contacts for a while, beside
    the policy. The run then belongs to `system.pushed(wrench)`, where its size is an input.

    Gives a `JointLimitWarning` for a robot whose joints begin beyond the limits of its description,
    which are part of its dynamics only where a system has joint stops.

    Gives one `EffortLimitWarning` at the end where inputs exceed the limits of the motors
    (`Robot.effort`), or would do so if a law did not cut them.

    Raises `InputError` and its kin for bad arguments (`GuardViolatedError` if x0 lies outside
    its mode, `ConstraintViolatedError` if it is off what the mode holds), `IntegrationError`,
    `EventLimitError`, `StepLimitError`, `ZenoError`, `AmbiguousEventError` and
    `NoContactSolutionError` where the run cannot go on.
    """
    check_instance("system", system, HybridSystem)
    start, end = check_interval("t_span", t_span)
    if wrench is not None:
        system = system.pushed(wrench)
    on_zeno = as_zeno_policy(on_zeno)
    system = on_zeno.extend(system)
    settings = settings_among(locals())
    tick = report_time(progress, "simulate", start, end)
    if is_far_from_zero(start, end):
        clock = OwnClock(start)
        acting, span = clock.policy(as_policy(policy, system)), (0.0, end - start)
        settings |= {"terminal": clock.terminal(terminal), "progress": clock.progress(tick)}
        with clock.errors(system):
            found = simulate(clock.system(system), mode, x0, span, acting, **settings)
        return clock.trajectory(found, system)

    def find_mode() -> ModeKey:
        return select_start_mode(system, as_policy(policy, system), start, check_vector("x0", x0))

    mode = find_mode() if mode is None else system.complete_mode(mode, find_mode)
    first = system.mode(mode)
    state = check_vector("x0", x0, first.space.nx)
    first.space.check("x0", state)
    warn_of_start(system, state)
    run = new_run(system, policy, end, progress=tick, **settings)
    history = History(mode, start, state)
    law = input_law(run.policy, history, first.nu)
    u = first_input(law, start, state, first.nu)
    point = ArcStart(first, law, start, state, u, next_change(run.policy, history))
    check_start(run, point)
    ends = _never if terminal is None else check_callable("terminal", terminal)
    found = _event_loop(run, point, ends)
    warn_of_efforts(run)
    return found


def _never(event: Event) -> bool:
    return False


def warn_of_start(system: HybridSystem, x: Array) -> None:
    """Warn of what is doubtful about a start, naming the place that called the caller.

    Args:
        system: The system that is simulated.
        x: Initial state (nx,).
    """
    if not _WARNS.get():
        return
    for warning in system.start_warnings(x):
        # On a clock of its own the caller is `simulate`, which has called itself.
        warnings.warn(warning, stacklevel=4 if isinstance(system, ClockSystem) else 3)


def warn_of_efforts(run: Run) -> None:
    """Warn of inputs beyond the limits of motors, naming the place that called `simulate`."""
    report = run.memory.efforts.report() if _WARNS.get() else ""
    if report:
        # On a clock of its own the caller is `simulate`, which has called itself.
        level = 4 if isinstance(run.system, ClockSystem) else 3
        warnings.warn(f"the run {report}", EffortLimitWarning, stacklevel=level)


@contextmanager
def computed_starts() -> Iterator[None]:
    """Do not warn of the starts and inputs of runs in the block: nobody has chosen them.

    Filters and searches begin thousands of runs, each at another state.
    """
    token = _WARNS.set(False)
    try:
        yield
    finally:
        _WARNS.reset(token)


def new_run(
    system: HybridSystem,
    policy: Policy | InputLaw | None,
    end: float,
    *,
    rtol: float,
    atol: float,
    max_events: int,
    max_steps: int,
    on_zeno: OnZeno,
    on_jam: str,
    zeno_horizon: float,
    method: str,
    max_step: float,
    first_step: float | None,
    event_window: float,
    guard_tolerance: float,
    min_dwell: float,
    progress: Callable[[float], None] | None,
) -> Run:
    """The settings of `simulate`, checked: `InputError` and its kin for what does not serve."""
    check_member("on_jam", on_jam, ("bridge", "raise"))
    integrator = Integrator(
        METHODS[check_member("method", method, METHODS)],
        check_number("rtol", rtol, above=0.0),
        check_number("atol", atol, above=0.0),
        max_step if max_step == math.inf else check_number("max_step", max_step, above=0.0),
        None if first_step is None else check_number("first_step", first_step, above=0.0),
    )
    return Run(
        system,
        as_policy(policy, system),
        integrator,
        end,
        check_count("max_events", max_events, at_least=0),
        check_number("event_window", event_window, at_least=0.0),
        check_number("guard_tolerance", guard_tolerance, above=0.0),
        check_number("min_dwell", min_dwell, at_least=0.0),
        as_zeno_policy(on_zeno).takes_rest,
        on_jam == "bridge",
        check_number("zeno_horizon", zeno_horizon, at_least=0.0),
        progress,
        check_count("max_steps", max_steps, at_least=0),
        RunMemory(),
    )


_SETTINGS = tuple(
    name
    for name, parameter in signature(new_run).parameters.items()
    if parameter.kind is Parameter.KEYWORD_ONLY and name != "progress"
)
"""Names of the settings that `simulate` and `simulate_batch` pass on as they are."""


def settings_among(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of `new_run` among the arguments of a function, by name.

    Args:
        arguments: The values of the function's arguments, as `locals()` returns them.

    Returns:
        All settings but `progress`; those that the function does not have are missing.
    """
    return {name: arguments[name] for name in _SETTINGS if name in arguments}


def _event_loop(run: Run, start: ArcStart, terminal: Callable[[Event], bool]) -> HybridTrajectory:
    """Simulate a run from its first start and return its arcs and events.

    Each round integrates an arc, locates the event at its end, fires it and selects the next mode.
    Where an event cannot be resolved the round passes the jam instead. The stages are explained in
    `hybrid.run`.

    Args:
        run: Settings of the run.
        start: Start of the first arc.
        terminal: Returns whether an event of guards ends the run.

    Raises:
        StepLimitError: If the run takes more than `run.max_steps` steps.
        EventLimitError: If it has more than `run.max_events` events of guards.
        ZenoError: If events accumulate and the system has no rest for them, or may not take it.
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
        if flown.crossing is None and flown.failure is None:
            return record()
        if flown.crossing is None or flown.crossing.guards:  # changes of the law do not count
            fired += 1
            if fired > run.max_events:
                raise _make_event_limit_error(run, start.mode.key, flown, record())
        try:
            # Rest where events accumulate, else fire the guards; select the next mode.
            event, start = _pass_event(run, arc, flown, events)
        except BRIDGED as error:
            # Pass a jam. The first of its arcs replaces the one that ended in the error: steps
            # close to the jam are cut off.
            passage = bridge(run, start, flown, len(arcs) - 1, tuple(events), error)
            if passage is None:
                if isinstance(error, ZenoError):
                    error.trajectory = record()
                raise
            arcs[-1:] = passage.arcs
            events += passage.events[:-1]
            event, start = passage.events[-1], passage.point
        events.append(event)
        if event.guards and terminal(event):
            # An arc of no duration holds the state after the event.
            t, x, u = start.time, start.state, start.input
            arcs.append(arc_from_steps(len(arcs), start.mode, [], t, x, u, t))
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
    """
    guards = () if flown.crossing is None else flown.crossing.guards
    message = (
        f"more than max_events = {run.max_events} events by t = {flown.end:.9g} s "
        f"in mode {key!r}; the last guards were {guards}"
    )
    of_guards = [event for event in trajectory.events if event.guards]
    takes_rest = run.rests and states_rest(run, key, guards)
    if not takes_rest and crowded(of_guards, INSTANT_EVENTS, run.zeno_horizon):
        message += f", {INSTANT_EVENTS} within zeno_horizon = {run.zeno_horizon:.3g} s"
        return ZenoError(f"{message}{way_to_rest(run, key, guards)}", trajectory=trajectory)
    return EventLimitError(message, trajectory=trajectory)


def _describe_growth(system: HybridSystem, run: HybridTrajectory) -> str:
    """Return words on a state that has grown without bound, which explains short steps, or none."""
    x = run.final_state
    k = int(np.argmax(np.abs(x)))
    before = run(np.linspace(run.start, 0.5 * (run.start + run.end), 101))
    if abs(x[k]) < _RUNAWAY * max(1.0, np.abs(before).max()):
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
    """
    if flown.crossing is None:
        assert flown.failure is not None
        raise flown.failure
    if flown.crossing.guards and not flown.crossing.stayed_at_zero:
        check_pole(run, arc, flown.crossing.guards)
    rest = accumulating(run, arc, flown.crossing, events)
    return fire_event(run, arc, flown.crossing, tuple(events), rest, flown.next_law)
