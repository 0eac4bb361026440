r"""References for tracking through events: extended arcs and phantom arcs.

Every arc of a nominal trajectory is continued past both of its ends by its own vector field,
so a state can be compared with the arc of the same event count although its events come early
or late ([RS] 3.1.2). Where guards fire together, nearby trajectories fire them one by one and
visit modes that the nominal one never enters; a phantom arc is the reference there ([RS] 4.1.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from hybridctl.base.checks import (
    Array,
    check_callable,
    check_instance,
    check_member,
    check_number,
    check_sequence,
    check_vector,
    format_count,
)
from hybridctl.base.errors import InputError
from hybridctl.base.progress import Progress, report_share
from hybridctl.control.impacts import Impact, find_impact
from hybridctl.hybrid.arc import Arc, join_arcs, make_arc_from_steps
from hybridctl.hybrid.flow import METHODS, Integrator
from hybridctl.hybrid.jump import FiringOrder, fire_in_all_orders
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.run_check import check_system
from hybridctl.hybrid.step import Step
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.tolerances import SAME_STATE_TOLERANCE
from hybridctl.hybrid.trajectory import Event, HybridTrajectory

Feedforward = Callable[[float], Array]
"""An input u (nu,) as a function of time in s."""
PhantomFeedforward = Literal["pushing", "withdrawing"]
PHANTOM_FEEDFORWARDS: tuple[PhantomFeedforward, ...] = ("pushing", "withdrawing")


@dataclass(frozen=True)
class PhantomArc:
    """The reference in an intermediate mode of a simultaneous event.

    Attributes:
        event: Index of the event of the reference.
        mode: Intermediate mode.
        fired: Guards that have fired already, in their order.
        impulses: Impulses (contacts,) of the last reset, N s; empty for systems without contacts.
        arc: Arc in the intermediate mode. At the nominal time of the event it passes through the
            state that the resets of `fired` give.
    """

    event: int
    mode: ModeKey
    fired: tuple[str, ...]
    impulses: Array
    arc: Arc


@dataclass(frozen=True)
class Reference:
    """A nominal trajectory with its extended arcs, and the phantom arcs of its events.

    Only events of guards are events of a reference. Where the nominal policy changed its law, the
    nominal trajectory has one arc more; the arc of the reference goes on (see `Arc.changes`).

    Attributes:
        nominal: The nominal trajectory.
        arcs: Extended arc before each event, and the one after the last. Arc i is defined from
            `before` seconds before event i - 1 to `after` seconds after event i. Its mode is the
            one in which it begins.
        phantoms: Phantom arcs, by the index of the event and the guards that have fired.
        impacts: Set of the velocity changes that each event can cause, see `impacts`. None where it
            changes no velocity or leads to a mode of another dimension. `extend` gives one for each
            event, and policies need them.
    """

    nominal: HybridTrajectory
    arcs: tuple[Arc, ...]
    phantoms: Mapping[tuple[int, frozenset[str]], PhantomArc]
    impacts: tuple[Impact | None, ...] = ()

    def __repr__(self) -> str:
        span = f"{self.nominal.start:.6g} to {self.nominal.end:.6g} s"
        parts = {"arc": self.arcs, "event": self.events, "phantom": self.phantoms}
        counts = ", ".join(format_count(len(some), what) for what, some in parts.items())
        return f"Reference({span}, {counts})"

    @property
    def events(self) -> tuple[Event, ...]:
        """The nominal events of guards."""
        return self.nominal.guard_events


def extend(
    system: HybridSystem,
    trajectory: HybridTrajectory,
    *,
    before: float | Sequence[float],
    after: float | Sequence[float],
    feedforward: Sequence[Feedforward] | None = None,
    phantom: PhantomFeedforward = "pushing",
    symmetry_tolerance: float = SAME_STATE_TOLERANCE,
    rtol: float = 1e-10,
    atol: float = 1e-10,
    progress: Progress = None,
) -> Reference:
    """Return a reference: a nominal trajectory whose arcs are extended around its events.

    The first arc is not extended to before the start, nor the last to after the end.

    Args:
        system: The system of the trajectory.
        trajectory: The nominal trajectory.
        before: Time in s by which the arc after an event is extended backwards, at least 0: one
            number, or a list with one for each event of guards.
        after: Time in s by which the arc before an event is extended forwards, likewise.
        feedforward: Input u(t) of each arc of the trajectory, valid on the extended interval. None
            holds the nominal input at both ends of each arc.
        phantom: Feedforward of phantom arcs. "pushing" is that of the arc before the event until
            the event is complete ([RS] (4.16)), "withdrawing" that of the arc after it (4.15).
        symmetry_tolerance: Largest distance of events of the trajectory from guards and resets of
            the system, of each coordinate or of 1. Where the trajectory goes on with images under a
            symmetry (`PeriodicLqr.repeated`) that the robot has only nearly, they are as far off as
            the robot is; the message of an error says how far.
        rtol: Relative tolerance of the integration.
        atol: Absolute tolerance of the integration.
        progress: True prints the share of the work that is done on standard error. A function is
            called with it, from 0 to 1.

    Returns:
        The reference. Phantom arcs are extended as far as the arcs on both sides of their event.

    Raises:
        InputError: An argument does not fit, or the trajectory is of another system.
        IntegrationError: A field cannot be continued past an event.
    """
    check_instance("system", system, HybridSystem)
    events = check_instance("trajectory", trajectory, HybridTrajectory).guard_events
    check_number("symmetry_tolerance", symmetry_tolerance, above=0.0)
    check_system(system, trajectory, symmetry_tolerance)
    early = check_durations("before", before, len(events))
    late = check_durations("after", after, len(events))
    check_member("phantom", phantom, PHANTOM_FEEDFORWARDS)
    rtol, atol = check_number("rtol", rtol, above=0.0), check_number("atol", atol, above=0.0)
    integrator = Integrator(METHODS["DOP853"], rtol, atol, np.inf)
    inputs = _check_feedforward(trajectory, feedforward)
    report = report_share(progress, "extend") or (lambda share: None)
    arcs, work = list[Arc](), 2 * len(events) + 1  # pieces of work: extended arcs, then events
    for group, length, past in zip(
        group_arcs(trajectory), (0.0, *early), (*late, 0.0), strict=True
    ):
        arcs.append(_extend_arcs(system, integrator, group, inputs, before=length, after=past))
        report(len(arcs) / work)
    phantoms, impacts = {}, []
    for k, event in enumerate(events):
        # k counts the events of guards alone, `event.index` all events: it is also the index of the
        # arc of the trajectory before the event.
        u = inputs[event.index if phantom == "pushing" else event.index + 1]
        orders = list_firing_orders(system, event)
        single_states = [one.jump.state for one in orders if len(one.order) == 1]
        impulses = [one.jump.impulses for one in orders]
        impacts.append(find_impact(system, event, impulses, single_states))
        for fired, one in select_intermediate(orders).items():
            flow = partial(_integrate, system, integrator, one.mode, u, event.time, one.jump.state)
            arc = join_arcs(0, [flow(-early[k]), flow(late[k])])
            phantoms[k, fired] = PhantomArc(k, one.mode, one.order, one.jump.impulses, arc)
        report((len(arcs) + k + 1) / work)
    return Reference(trajectory, tuple(arcs), phantoms, tuple(impacts))


def _check_feedforward(
    trajectory: HybridTrajectory, feedforward: Sequence[Feedforward] | None
) -> Sequence[Feedforward]:
    """Return the input of each arc, by default the nominal one, held beyond the arc's ends.

    Raises:
        InputError: The number of inputs or their sizes do not fit.
    """
    if feedforward is None:
        return [_hold_input(arc) for arc in trajectory.arcs]
    inputs = check_sequence("feedforward", feedforward)
    if len(inputs) != len(trajectory.arcs):
        raise InputError(
            f"feedforward must have one function per arc ({len(trajectory.arcs)}), "
            f"got {len(inputs)}"
        )
    for k, (u, arc) in enumerate(zip(inputs, trajectory.arcs, strict=True)):
        name = f"feedforward[{k}]"
        value = check_callable(name, u)(arc.start)
        check_vector(f"{name}({arc.start})", value, arc.inputs.shape[2])
    return inputs


def check_durations(name: str, value: float | Sequence[float], count: int) -> tuple[float, ...]:
    """Return one duration in s for each of several events.

    Args:
        name: Name of the argument, for messages.
        value: One duration for all events, or one for each.
        count: Number of events.

    Raises:
        InputError: The number of durations does not fit, or one is negative or no number.
    """
    if isinstance(value, Sequence):
        if len(value) != count:
            raise InputError(f"{name} must have one length per event ({count}), got {len(value)}")
        return tuple(check_number(f"{name}[{k}]", v, at_least=0.0) for k, v in enumerate(value))
    return (check_number(name, value, at_least=0.0),) * count


def group_arcs(trajectory: HybridTrajectory) -> list[list[Arc]]:
    """Return the arcs of a trajectory, one list for each stretch between two events of guards."""
    groups: list[list[Arc]] = [[]]
    for arc in trajectory.arcs:
        groups[-1].append(arc)
        if arc.index < len(trajectory.events) and trajectory.events[arc.index].guards:
            groups.append([])
    return groups


def list_firing_orders(system: HybridSystem, event: Event) -> list[FiringOrder]:
    """Return all orders in which one or more guards of a nominal event can fire.

    Args:
        system: The hybrid system.
        event: An event of a nominal trajectory, of one guard or of several at once.
    """
    at = event.time, event.state_before, event.input_before
    orders = fire_in_all_orders(system, event.mode_before, event.guards, *at)
    return [one for one in orders if one.order]


def extend_arcs(
    trajectory: HybridTrajectory,
    inputs: Sequence[Feedforward] | None = None,
    *,
    before: float = 0.0,
    after: float,
) -> tuple[Arc, ...]:
    """Return each arc of a trajectory, continued past its ends by its own field.

    Arcs stay apart, unlike in `extend`, also where only the input changes.

    Args:
        trajectory: The trajectory.
        inputs: Input u(t) of each arc, valid past its ends too. None holds the inputs at its ends.
        before: Duration of the continuation before the start, s.
        after: Duration of the continuation past the end, s.
    """
    inputs = [*map(_hold_input, trajectory.arcs)] if inputs is None else inputs
    system, integrator = trajectory.known_system, Integrator(METHODS["DOP853"], 1e-9, 1e-9, np.inf)
    return tuple(
        _extend_arcs(system, integrator, [arc], inputs, before=before, after=after)
        for arc in trajectory.arcs
    )


def select_intermediate(orders: Iterable[FiringOrder]) -> dict[frozenset[str], FiringOrder]:
    """Return one order of firing for each set of fired guards that leaves other guards waiting.

    Args:
        orders: Orders of an event. Of several orders of one set the first one is taken.

    Returns:
        The orders, by the names of the guards that have fired.
    """
    selected: dict[frozenset[str], FiringOrder] = {}
    for one in orders:
        if one.waiting:
            selected.setdefault(frozenset(one.order), one)
    return selected


def _hold_input(arc: Arc) -> Feedforward:
    """Return the input of an arc as a function that holds it beyond both ends."""
    return lambda t: arc.input(float(min(max(t, arc.start), arc.end)))


def _extend_arcs(
    system: HybridSystem,
    integrator: Integrator,
    group: Sequence[Arc],
    inputs: Sequence[Feedforward],
    *,
    before: float,
    after: float,
) -> Arc:
    """Return arcs without an event of guards between them as one arc, continued at both ends.

    Args:
        system: The system.
        integrator: Integrator of the continuations.
        group: The arcs, in order.
        inputs: Input u(t) of each arc of the whole trajectory.
        before: Duration of the continuation before the first arc, s.
        after: Duration of the continuation after the last arc, s.
    """
    first, last = group[0], group[-1]
    u, v = inputs[first.index], inputs[last.index]
    past = _integrate(system, integrator, first.mode, u, first.start, first(first.start), -before)
    future = _integrate(system, integrator, last.mode, v, last.end, last(last.end), after)
    nominal = [piece for arc in group for piece in arc.pieces]
    # Where a piece of the trajectory begins after another, the law changes. The continuations are
    # not marked: the input that is given for an arc is taken to go on smoothly past its ends.
    return join_arcs(first.index, [past, nominal[0], *map(_mark_law_change, nominal[1:]), future])


def _mark_law_change(arc: Arc) -> Arc:
    """Return the arc with the mark that its law differs from that of the arc before it.

    So the joined arc has its start among `Arc.changes`, and no table or integrator interpolates
    across the jump of the input there.
    """
    jumps = arc.jumps.copy()
    jumps[0] = True
    return replace(arc, jumps=jumps)


def _integrate(
    system: HybridSystem,
    integrator: Integrator,
    key: ModeKey,
    u: Feedforward,
    time: float,
    state: Array,
    duration: float,
) -> Arc:
    """Return the flow of one mode without regard to guards.

    Args:
        system: The system.
        integrator: The integrator.
        key: Mode.
        u: Input as a function of time.
        time: Start, s.
        state: State (nx,) there.
        duration: Duration, s; negative integrates backwards in time.
    """
    mode = system.mode(key)
    law: InputLaw = lambda t, x: u(t)  # noqa: E731
    end = time + duration
    steps = list(integrator.steps(mode, law, time, state, end)) if duration != 0.0 else []
    if duration < 0.0:  # an arc goes forwards in time, so its steps are reversed
        steps = [Step(s.end, s.start, s.states[::-1], s.inputs[::-1]) for s in reversed(steps)]
    start, stop = min(time, end), max(time, end)
    return make_arc_from_steps(0, mode, steps, start, state, u(time), stop)
