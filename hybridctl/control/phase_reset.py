"""A law whose clock begins anew at each event: it spends no input on being early or late.

Reference spreading goes on by the clock on the arc of as many events as the state has had. Where
events come late throughout, as those of a walker under a push, its errors in time add up.
`PhaseReset` tracks the same arc at the time since the last event.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, check_instance, check_number
from hybridctl.base.errors import InputError
from hybridctl.base.spaces import VectorSpace
from hybridctl.control.gains import GainSchedule
from hybridctl.control.reference import Reference
from hybridctl.control.tracking_law import TrackingLaw, clip_input, make_schedule, resolve_limits
from hybridctl.hybrid.laws import InputLaw, LinearFeedback
from hybridctl.hybrid.policy import History
from hybridctl.hybrid.trajectory import Event


@dataclass(frozen=True, eq=False)
class ShiftedLaw(LinearFeedback):
    """A tracking law in a vector space that is shifted in time, with an input added.

    The shift depends on the state or on when an event was, so that the law has no derivatives.

    Attributes:
        law: The law without shift; its own limits are not used.
        limits: Least and greatest input (2, nu), or None.
        delay: Time by which it is later than planned, s.
        added: Input (nu,) that is added; None for none.
    """

    law: TrackingLaw
    limits: Array | None
    delay: float
    added: Array | None = None

    def __call__(self, t: float, x: Array) -> Array:
        """Return the input (nu,) at time t in s and state x (nx,)."""
        offset, gain = self.law.terms_at(t - self.delay)
        u = offset - gain @ x
        return clip_input(u if self.added is None else u + self.added, self.limits)

    def find_offsets_and_gains(self, times: Array) -> tuple[Array, Array]:
        """Return the terms b (k, nu) and K (k, nu, nx) of u = b - K x at times (k,), in s."""
        offsets, gains = self.law.find_offsets_and_gains(times - self.delay)
        return (offsets if self.added is None else offsets + self.added), gains


def make_tracking_laws(reference: Reference, gains: GainSchedule) -> list[TrackingLaw]:
    """Return the tabulated tracking law of each arc, without limits.

    Args:
        reference: The reference.
        gains: Gains of its arcs.
    """
    pairs = zip(reference.arcs, gains.arcs, strict=True)
    return [TrackingLaw(arc, gain, None, is_tabulated=True) for arc, gain in pairs]


class PhaseReset:
    """Tracking of the reference at the time since the last event, planned or overdue.

    After event k of the state the reference is tracked from its own event k on. If the next event
    is overdue by more than the patience, the arc after it is tracked, at the same delay.

    Args:
        reference: The reference, in a vector space.
        gains: A `GainSchedule`, or one gain K (nu, ndx) for each arc of the reference.
        limits: Limits of the inputs, see `ReferenceSpreading`.
        patience: Time for which an overdue event is waited for, s.

    Raises:
        InputError: An argument does not fit, or the reference is on another manifold.

    Attributes:
        reference: The reference.
        gains: Its gains.
        limits: Least and greatest input (2, nu), or None.
        patience: Time for which an overdue event is waited for, s.
    """

    follows = "phase"
    """The time along the reference depends on when events were, see `ReferenceSpreading.follows`.
    """

    def __init__(
        self,
        reference: Reference,
        gains: GainSchedule | Sequence[ArrayLike],
        *,
        limits: ArrayLike | None = None,
        patience: float = 0.02,
    ) -> None:
        self.reference = check_instance("reference", reference, Reference)
        space = reference.arcs[0].space
        if not isinstance(space, VectorSpace):
            raise InputError(f"reference must be in a vector space, got one in {space!r}")
        self.gains = make_schedule(reference, gains)
        self.limits = resolve_limits(reference, limits)
        self.patience = check_number("patience", patience, at_least=0.0)
        self._laws = make_tracking_laws(reference, self.gains)

    def law(self, history: History) -> InputLaw:
        """Return feedforward and feedback at the time since the event, without derivatives."""
        k, late, overdue = self._find_arc(history)
        if history.time >= overdue:
            k += 1
        return ShiftedLaw(self._laws[k], self.limits, late)

    def next_change(self, history: History) -> float:
        """Return the time at which an event is overdue, s; inf if it is already."""
        _, _, overdue = self._find_arc(history)
        return overdue if history.time < overdue else math.inf

    def _find_arc(self, history: History) -> tuple[int, float, float]:
        """Return the number of the arc, its delay (s) and the time its end is overdue (s)."""
        events: Sequence[Event] = [event for event in history.events if event.guards]
        planned = self.reference.events
        k = min(len(events), len(planned))
        late = events[k - 1].time - planned[k - 1].time if k else 0.0
        overdue = planned[k].time + late + self.patience if k < len(planned) else math.inf
        return k, late, overdue
