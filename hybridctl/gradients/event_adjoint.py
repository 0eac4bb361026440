r"""The adjoint across an event: the transpose of its first-order jump.

With the gains G and J of an event and the row of its time, :math:`\delta t = a\,\delta x + b\,
\delta u` (`sensitivity.saltation`), a costate after it and a gradient :math:`\gamma` by its time
give, before it,

.. math:: \lambda^- = G^T \lambda^+ + a^T \gamma, \qquad
    \frac{\partial}{\partial u^-} = J^T \lambda^+ + b^T \gamma .

**Kinks.** Where guards fire together in orders that lead apart, and on the border between stick and
slip, a run has a derivative along each direction but no gradient. `Kink` says what is taken there.

**Times.** The time of guards that fire together is that of the first of them. It has a derivative
for each guard that may be the first, also where the state has only one. Unless the guards stay one
event (`simultaneous="at once"`), perturbed runs have several events in its place, so that those
after it have other numbers: their times have no derivative either.

**Rest.** Where events accumulate a run goes on from one plastic impact (`simulate`). Its derivative
is that impact's, at the time of its guard. What is left out is as small as the velocity of the last
bounces: one of the impulses is taken at once instead of over the rest of the accumulation, with the
same sum. All contacts that are closed after it take part in it, see
`ImpactResult.perturbed_states`. Contacts that bounce in turn, such as both ends of a rocking edge,
have no derivative by perturbations that change whose turn it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import (
    AmbiguousEventError,
    GrazingError,
    HybridctlError,
    InputError,
    SystemDefinitionError,
)
from hybridctl.hybrid.event import Event
from hybridctl.hybrid.model import ResetJacobian, ResetModel
from hybridctl.hybrid.system import HybridSystem
from hybridctl.sensitivity.jump_batches import find_jump_batches
from hybridctl.sensitivity.parameter_models import ParameterModel
from hybridctl.sensitivity.parameters import linearize_guard_with_parameters
from hybridctl.sensitivity.piecewise import EVENT_ACCURACY, PiecewiseLinearJump, are_equal_maps
from hybridctl.sensitivity.saltation import (
    EventSide,
    JumpGains,
    evaluate_event_sides,
    find_guard_index,
    linearize_crossing,
    make_identity_jump,
)
from hybridctl.sensitivity.simultaneous import Simultaneous, has_joint_event, jump_derivative

Kink = Literal["raise", "mean", "first"]
"""What is taken where a run has no gradient: an error, the mean of its pieces, or the first one.

The mean weights the linear pieces of an event by the volumes of their cones, in the coordinates of
the tangent space: it is the gradient of the event smoothed by an isotropic normal distribution.
Of several such events in a run each is averaged for itself, although their pieces belong together.
"first" is the first piece whose cone is not empty, by orders of guards as these are declared. At a
border between stick and slip the border counts as a second guard (`linearize_at_border`). Where an
event is refused so that its pieces are not known, both take the derivative of the reset in the
contact states that it reports, at the time of the guard that is first; at a fixed time, if that is
not crossed. Both are the same there, where pieces agree, and where events accumulate."""
_DIRECTIONS = 4096
"""Pairs of opposite random directions by which the volumes of cones are measured. A choice.

A volume of 1/2 is exact, as one of two opposite directions is in either cone; others are right to
about 1 %."""
_AT_ZERO = 1e-6
"""Guard value up to which a guard takes part in an accumulation's last event, in its unit."""


@dataclass(frozen=True, eq=False)
class EventAdjoint:
    """The first-order jump of an event, as one matrix.

    Attributes:
        state: G (d+, d) for the state, with parameters where there are any.
        input: J (d+, nu) for the input before the event.
        time_state: Derivative (d,) of the event time by the state, s per unit.
        time_input: Derivative (nu,) of the event time by the input, s per unit.
        choice: What was taken in place of a gradient, in words. None where there is one.
        time_kink: Why the time has no gradient, in words. None where it has one.
        is_split: Whether perturbed runs have several events in its place.
    """

    state: Array
    input: Array
    time_state: Array
    time_input: Array
    choice: str | None = None
    time_kink: str | None = None
    is_split: bool = False

    def describe_time_kink(self, by_time: bool, by_later_times: bool) -> str | None:
        """Return in words why a scalar of event times has no gradient here; None if it has one.

        Args:
            by_time: Whether the scalar depends on the time of this event.
            by_later_times: Whether it depends on times of later events.
        """
        if by_time and self.time_kink is not None:
            return self.time_kink
        if by_later_times and self.is_split:
            return (
                f"{self.time_kink}; perturbed runs have several events in its place, so that "
                "later ones have other numbers"
            )
        return None


def linearize_event(
    system: HybridSystem, event: Event, kink: Kink, simultaneous: Simultaneous
) -> EventAdjoint:
    """Return the first-order jump of an event as one matrix.

    Where the guards have no edge together, an event that is refused is an error with any `kink`.

    Args:
        system: The hybrid system of the run, or the one in (x, p).
        event: An event of the run.
        kink: What is taken where there is no gradient.
        simultaneous: See `jump_derivative`.

    Returns:
        The jump.

    Raises:
        InputError: There is no gradient and `kink` is "raise": several pieces, a border, or
            contacts whose bounces accumulate in turn. Or the run passed a jam, whatever the kink.
        AmbiguousEventError: Orders of the guards lead apart, and `kink` is "raise".
        GrazingError: The guard rate is not significant, and `kink` is "raise".
        SystemDefinitionError: A guard or a reset has no Jacobian.
    """
    if event.accumulation is not None:
        return _linearize_rest(system, event, kink)
    try:
        jump = jump_derivative(system, event, simultaneous=simultaneous)
    except SystemDefinitionError:
        raise
    except (InputError, AmbiguousEventError, GrazingError) as error:
        if kink == "raise" or event.bridge is not None:
            raise
        return _take_reported_states(system, event, error)
    if isinstance(jump, JumpGains):
        return _as_matrix(jump)
    found = _choose_piece(jump, event, kink)
    is_split = found.time_kink is not None and not has_joint_event(system, event, simultaneous)
    return replace(found, is_split=is_split)


def linearize_single_event(
    system: HybridSystem, event: Event, parameters: ParameterModel
) -> EventAdjoint | None:
    """Return the jump of an event of one guard in (x, p), by its terms in x: nearly all are such.

    Args:
        system: The hybrid system of the run.
        event: An event of the run.
        parameters: Derivatives by the parameters.

    Returns:
        The jump; None for other events, and for those without a gradient: `linearize_event` of the
        system in (x, p) serves them.
    """
    if len(event.guards) != 1 or event.accumulation is not None or event.bridge is not None:
        return None
    try:
        jump = linearize_guard_with_parameters(system, event, parameters)
    except (InputError, AmbiguousEventError, GrazingError):
        return None
    return None if jump is None else _as_matrix(jump)


def linearize_events_together(
    system: HybridSystem, events: Sequence[Event], parameters: ParameterModel | None
) -> dict[int, EventAdjoint]:
    """Return the jumps of those events that `jump_batches` linearises together, by their number.

    Args:
        system: The hybrid system of the runs.
        events: Events of the runs.
        parameters: Derivatives by the parameters: jumps are then in (x, p). None for none.
    """
    found = {}
    for numbers, gains in find_jump_batches(system, events, parameters):
        jumps = gains.state, gains.input, gains.time_state, gains.time_input
        found.update({k: EventAdjoint(*each) for k, *each in zip(numbers, *jumps, strict=True)})
    return found


def _as_matrix(jump: JumpGains, choice: str | None = None) -> EventAdjoint:
    """Return a linear jump as matrices."""
    return EventAdjoint(
        state=jump.state,
        input=jump.input,
        time_state=jump.time_state,
        time_input=jump.time_input,
        choice=choice,
    )


def _choose_piece(jump: PiecewiseLinearJump, event: Event, kink: Kink) -> EventAdjoint:
    """Return one matrix of a piecewise linear jump.

    Args:
        jump: The jump.
        event: The event, for messages.
        kink: What is taken where pieces differ.

    Raises:
        InputError: They differ, and `kink` is "raise".
    """
    pieces = jump.pieces(accuracy=EVENT_ACCURACY)
    maps = [np.hstack([piece.matrix, piece.input]) for piece in pieces]
    choice, weights = None, np.eye(len(pieces))[0]  # all weight on the first piece
    if not are_equal_maps(maps, EVENT_ACCURACY):
        what = f"{len(pieces)} derivatives, one for each order of {jump.guards}"
        if kink == "raise":
            raise InputError(
                f"a run with these events together has {what}, and no gradient: kink='mean' takes "
                "their mean, weighted by how many directions have each, kink='first' that of the "
                "order in which they are declared"
            )
        choice = f"{kink} of {what}"
        if kink == "mean":
            weights = _measure_cones(jump, [piece.order for piece in pieces])
    state, by_input = (
        np.tensordot(weights, np.array(part), axes=1)
        for part in ([p.matrix for p in pieces], [p.input for p in pieces])
    )
    time, time_kink = _differentiate_first_time(jump, event, kink, pieces[0].order)
    time_state, time_input = np.split(time, [jump.dimension])
    return EventAdjoint(
        state=state,
        input=by_input,
        time_state=time_state,
        time_input=time_input,
        choice=choice,
        time_kink=time_kink,
    )


def _differentiate_first_time(
    jump: PiecewiseLinearJump, event: Event, kink: Kink, order: Sequence[int]
) -> tuple[Array, str | None]:
    """Return the derivative (d + nu,) of the time of the first guard, and why it is no gradient.

    Args:
        jump: The jump. Of its guards those count that the event has: the border of a reset is none.
        event: The event.
        kink: What is taken where the guards have different times.
        order: The first order in which the guards fire, in the order of their declaration.
    """
    guards = [j for j, name in enumerate(jump.guards) if name in event.guards]
    jumps = [jump.jump(frozenset(), j) for j in guards]
    rows = np.array([np.append(each.time_state, each.time_input) for each in jumps])
    declared_first = next(guards.index(j) for j in order if j in guards)
    if are_equal_maps(list(rows), EVENT_ACCURACY):
        return rows[declared_first], None
    why = f"the time of the first of {event.guards} has a derivative for each that may be the first"
    if kink != "mean":
        return rows[declared_first], why
    directions = np.random.default_rng(0).normal(size=(_DIRECTIONS, jump.dimension))
    times = np.vstack([directions, -directions]) @ rows[:, : jump.dimension].T
    counts = np.bincount(times.argmin(axis=1), minlength=len(rows))
    return np.asarray(counts @ rows / counts.sum(), dtype=np.float64), why


def _measure_cones(jump: PiecewiseLinearJump, orders: Sequence[tuple[int, ...]]) -> Array:
    """Return the part (k,) of all directions that is in the cone of each of k orders."""
    directions = np.random.default_rng(0).normal(size=(_DIRECTIONS, jump.dimension))
    found = jump.follow(np.vstack([directions, -directions])).orders
    counts = np.array([(found == np.array(order)).all(axis=1).sum() for order in orders])
    return np.asarray(counts / max(counts.sum(), 1), dtype=np.float64)


def _take_reported_states(
    system: HybridSystem, event: Event, error: HybridctlError
) -> EventAdjoint:
    """Return the derivative of a refused event's reset in the states that the reset reports.

    Args:
        system: The hybrid system.
        event: The event.
        error: Why it was refused; raised again if there is no edge for its guards together.
    """
    edge = system.outgoing(event.mode_before).edge(event.guards)
    if edge is None:
        raise error
    before, after = evaluate_event_sides(system, event)
    derivative = edge.reset.calc_diff(before.jump_point(event.report))
    jump = _linearize_reset(system, event, (before, after), derivative, event.guards)
    return _as_matrix(jump, f"the states that the reset reports: {error}")


def _linearize_reset(
    system: HybridSystem,
    event: Event,
    sides: tuple[EventSide, EventSide],
    derivative: ResetJacobian,
    guards: Sequence[str],
) -> JumpGains:
    """Return the jump of one derivative of a reset, at the time of the first of some guards.

    Args:
        system: The hybrid system.
        event: The event.
        sides: Its sides, before and after.
        derivative: The derivative of its reset.
        guards: The guards. If the first one is met without a significant rate, the event stays
            where it is: it has no derivative of its time.
    """
    before, after = sides
    try:
        guard = _find_first_guard(before, guards)
        return linearize_crossing(system, guard, before, after, derivative, event.report)
    except GrazingError:
        # At a fixed time: no derivative of the time, so that fields and rates do not enter.
        none = make_identity_jump(before.mode.space.ndx, len(before.input))
        at_rest = np.zeros(len(after.field))
        return replace(
            none,
            reset_state=derivative.state,
            reset_input=derivative.input,
            field_change=at_rest,
            reset_rate=at_rest,
        )


def _find_first_guard(before: EventSide, guards: Sequence[str]) -> str:
    """Return the guard that reaches zero first, of those that fall; the first one if none falls."""
    times = []
    for guard in guards:
        rate = before.guard_rate(guard)
        value = float(before.point.guards[find_guard_index(before.mode, guard)])
        times.append(value / -rate if rate < 0.0 else np.inf)
    return guards[int(np.argmin(times))]


def _linearize_rest(system: HybridSystem, event: Event, kink: Kink) -> EventAdjoint:
    """Return the jump of the end of an accumulation: that of its plastic impact.

    Args:
        system: The hybrid system.
        event: The event, with the guards that accumulate.
        kink: What is taken where contacts bounce in turn, or the impact is at a border.

    Raises:
        InputError: There is no gradient and `kink` is "raise".
        SystemDefinitionError: The rest has no derivative.
    """
    edge = system.outgoing(event.mode_before).rest(event.guards)
    if edge is None or not edge.reset.differentiable:
        raise SystemDefinitionError(
            f"events of {event.guards} accumulate at {event.accumulation:.9g} s, and the rest "
            "that the system states there has no Jacobian: linearize a run that ends before it"
        )
    # Without accuracy there is no NearGrazingWarning: of a last bounce without velocity the time,
    # which is known ever less there, does not matter.
    before, after = evaluate_event_sides(system, replace(event, accuracy=None))
    # Contacts that bounce in turn are not all at zero when the last one is.
    at_zero = [g for g in event.guards if _is_at_zero(before, g)]
    choice = None
    if len(at_zero) < len(event.guards):
        choice = f"one plastic impact of {event.guards}, which bounce in turn"
        if kink == "raise":
            raise InputError(
                f"the bounces of {event.guards} accumulate in turn at {event.accumulation:.9g} s: "
                "perturbations that change whose turn it is have no derivative there; "
                "kink='mean' takes one plastic impact of all"
            )
    derivative, border = _differentiate_rest(edge.reset, before, after, event)
    if border is not None:
        if kink == "raise":
            raise InputError(f"rest after {event.guards} has no gradient: {border}")
        choice = f"the states that rest reports: {border}"
    guards = at_zero or _list_known(before, event.guards)
    jump = _linearize_reset(system, event, (before, after), derivative, guards)
    return _as_matrix(jump, choice)


def _differentiate_rest(
    reset: ResetModel, before: EventSide, after: EventSide, event: Event
) -> tuple[ResetJacobian, str | None]:
    """Return the derivative of a rest, and in words the border that it is at; None for no border.

    At a border it is that of the contact states that the rest reports, or of the side where the
    distance to the border is negative.

    Args:
        reset: The rest.
        before: Side before it.
        after: Side after it.
        event: The event, with the report of the plastic impact.
    """
    at = before.jump_point(event.report)
    try:
        border = reset.find_border(at, after.mode.key, after.input)
    except InputError as error:
        return reset.calc_diff(at), str(error)
    if border is None:
        return reset.calc_diff(at), None
    return border.negative, None if border.is_linear else f"it is at the border of {border.name!r}"


def _list_known(before: EventSide, guards: Sequence[str]) -> list[str]:
    """Return those guards that the mode before the event has."""
    return [guard for guard in guards if guard in before.mode.guard_names]


def _is_at_zero(before: EventSide, guard: str) -> bool:
    """Return whether the mode before an event has a guard, and it is zero there."""
    if guard not in before.mode.guard_names:
        return False
    value = before.point.guards[find_guard_index(before.mode, guard)]
    return bool(abs(value) <= _AT_ZERO)
