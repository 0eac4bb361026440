r"""Events that follow each other closely, as one piecewise affine jump.

Guards of a run fire at lags that a perturbation can undo. The recursion of simultaneous guards
(`piecewise`) then starts with lags instead of zeros: with S the guards that have fired on a
perturbed trajectory, guard j fires at

.. math:: t_{S,j} + a_{S,j}\, \delta x + b_{S,j}\, \delta u,

where :math:`t_{S,j}` is the time after the first event of the run at which the nominal motion of
the phantom mode S meets the guard (`phantom_modes`). This is linear in :math:`(\delta x, 1)`, so
the jump is a `PiecewiseLinearJump` in one more dimension.

In the order of the run it is the product of saltation matrices and transition matrices, exactly.
Another order occurs only for perturbations as large as the lags that it undoes. So the error is of
second order in the perturbation, whatever the lags are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, check_array
from hybridctl.base.errors import InputError
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event, HybridTrajectory
from hybridctl.sensitivity.phantom_modes import PhantomMotions
from hybridctl.sensitivity.piecewise import Passage, PiecewiseLinearJump
from hybridctl.sensitivity.saltation import EventSide, JumpGains, evaluate_event_sides

PhantomGain = Callable[[frozenset[int]], Array]
"""Gain K (nu, ndx) of a feedback du = -K dx, given the guards that have fired."""


class PiecewiseAffineJump:
    """The jump of merged events, from before the first to after the last.

    Perturbations before it are differences from the arc before the first event, at its time;
    perturbations after it are differences from the arc after the last event, at its time.

    Args:
        homogeneous: The piecewise linear jump of (dx, 1).
    """

    def __init__(self, homogeneous: PiecewiseLinearJump) -> None:
        self.homogeneous = homogeneous

    @property
    def guards(self) -> tuple[str, ...]:
        """The names of the guards, in the order of the run."""
        return self.homogeneous.guards

    @property
    def dimension(self) -> int:
        """The dimension d of the perturbations before the events."""
        return self.homogeneous.dimension - 1

    def __call__(self, dx: ArrayLike) -> Array:
        """Return the perturbation after the events.

        Args:
            dx: Perturbation (d,) before the events, or m of them in rows (m, d).

        Returns:
            The perturbation (d+,), or (m, d+).

        Raises:
            InputError: The perturbation has a wrong shape.
        """
        return self.follow(dx).state

    def follow(self, dx: ArrayLike) -> Passage:
        """Return perturbations after the events, with the order and the times of the guards.

        Args:
            dx: Perturbation (d,) before the events, or m of them in rows (m, d).

        Returns:
            The passage, with times in s after the first event of the run.

        Raises:
            InputError: dx has the wrong shape.
        """
        z = check_array("dx", dx)
        if z.ndim not in (1, 2) or z.shape[-1] != self.dimension:
            raise InputError(f"dx must have shape ({self.dimension},) or (m, ...), got {z.shape}")
        one = np.ones((*z.shape[:-1], 1))
        passage = self.homogeneous.follow(np.concatenate((z, one), axis=-1))
        return passage._replace(state=passage.state[..., :-1])


@dataclass(frozen=True, eq=False)
class InputResponse:
    """What a change of the input does between merged events.

    Attributes:
        change: Change du (nu,) of the input at a time in s.
        responses: Perturbation (ndx,) that the change of the input makes on each arc between the
            events, at the end of the arc, if there is none at its start.
    """

    change: Callable[[float], Array]
    responses: Sequence[Array]


@dataclass(frozen=True, eq=False)
class MergedEvents:
    """Consecutive events of a run that are one jump.

    Attributes:
        first: Index of the first event.
        motions: Nominal motions of their guards.
        feedback: Gains of further feedback du = -gain(fired) dx, in addition to that of the input
            law of the motions. The gains add up.
    """

    first: int
    motions: PhantomMotions
    feedback: tuple[PhantomGain, ...] = ()

    @property
    def last(self) -> int:
        """Index of the last event."""
        return self.first + len(self.motions.events) - 1

    def with_feedback(self, gain: PhantomGain) -> MergedEvents:
        """Return the events under the further feedback du = -gain(fired) dx."""
        return replace(self, feedback=(*self.feedback, gain))

    def jump(
        self, transitions: Sequence[Array], response: InputResponse | None = None
    ) -> PiecewiseAffineJump:
        """Return the jump, under the feedback of the motions and of `feedback`.

        Args:
            transitions: Transition matrices (ndx, ndx) of the arcs between the events, in order:
                one less than there are events.
            response: Effect of a change of the input. None for no change.
        """
        micro = partial(_linearize_micro_event, self, tuple(transitions), response)
        return PiecewiseAffineJump(PiecewiseLinearJump(self.motions.guards, micro))


def find_close_events(
    system: HybridSystem, trajectory: HybridTrajectory, window: float
) -> Iterator[tuple[int, tuple[Event, ...]]]:
    """Yield the groups of events that follow each other within a window.

    A group has at least two events. Their guards are different ones of the mode before the first
    event, and fall there. A guard of a later mode, or one that does not fall there, fires because
    of an event before it: it cannot come first, and its event ends the group. So does an event
    without guards or at which events accumulate.

    Args:
        system: The hybrid system of the run.
        trajectory: The run.
        window: Longest time from one event of a group to the next, s. A group may last longer.

    Yields:
        The index of the first event of a group, and all its events.
    """
    group: tuple[Event, ...] = ()
    before: EventSide | None = None
    for k, event in enumerate(trajectory.events):
        if (
            before is not None
            and event.time - group[-1].time <= window
            and _is_independent(before, group, event)
        ):
            group = (*group, event)
            continue
        if len(group) > 1:
            yield k - len(group), group
        begins = event.guards and event.accumulation is None
        group, before = ((event,), evaluate_event_sides(system, event)[0]) if begins else ((), None)
    if len(group) > 1:
        yield len(trajectory.events) - len(group), group


def _is_independent(before: EventSide, group: tuple[Event, ...], event: Event) -> bool:
    """Return whether an event may come before those of a group.

    Args:
        before: Side before the first event of the group.
        group: The events.
        event: The next event. Its guards must be others of the mode before the group, and fall
            there.
    """
    known = {name for one in group for name in one.guards}
    if not event.guards or event.accumulation is not None or known & set(event.guards):
        return False
    names = before.mode.guard_names
    return all(name in names and before.guard_rate(name) < 0.0 for name in event.guards)


def _linearize_micro_event(
    merged: MergedEvents,
    transitions: tuple[Array, ...],
    response: InputResponse | None,
    fired: frozenset[int],
    j: int,
) -> JumpGains:
    """Return the jump of a guard as a linear one of (dx, 1).

    With the first-order jump (a, R, c) of the guard beside its nominal motion (`time_state`, reset
    Jacobian, field change), the lag t of this motion and its offset o from the next one, it is

        time = a dx + t,    dx+ = R dx - c (a dx) + o = R dx - c time + (o + c t).

    If an arc of the run follows, dx+ is also taken along it, to the event at its end. All other
    motions are straight (`phantom_modes`), so that perturbations do not change on them.

    Args:
        merged: The events.
        transitions: Transition matrices of the arcs between the events.
        response: Effect of a change of the input. None for no change.
        fired: Guards that have fired.
        j: The guard that fires next.

    Returns:
        The jump, without an input: that is part of the last column.
    """
    motions = merged.motions
    nominal, after = motions.nominal_jump(fired, j), fired | {j}
    gains = nominal.gains
    for gain in merged.feedback:
        gains = gains.with_feedback(gain(fired))
    lag, time_by_input = nominal.time - motions.events[0].time, 0.0
    offset = nominal.offset
    if response is not None:
        du = response.change(nominal.time)
        time_by_input, offset = float(gains.time_input @ du), offset + gains.reset_input @ du
    # field_change meets the whole time, of which the lag is no perturbation: it is put back here.
    offset = offset + gains.field_change * lag
    field, reset = gains.field_change, gains.reset_jacobian
    if after in motions.nominal[1:-1]:  # an arc of the run follows: on to the event at its end
        k = motions.nominal.index(after) - 1
        transition = transitions[k]
        field, reset, offset = transition @ field, transition @ reset, transition @ offset
        if response is not None:
            offset = offset + response.responses[k]
    augmented = np.zeros((len(offset) + 1, len(gains.time_state) + 1))
    augmented[:-1, :-1], augmented[:-1, -1], augmented[-1, -1] = reset, offset, 1.0
    return JumpGains(
        time_state=np.append(gains.time_state, lag + time_by_input),
        time_input=np.zeros(0),
        reset_state=augmented,
        reset_input=np.zeros((len(augmented), 0)),
        field_change=np.append(field, 0.0),
        reset_rate=np.zeros(len(augmented)),
    )
