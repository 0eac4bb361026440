"""A tracking law that is followed later or earlier than planned, with an input added."""

from __future__ import annotations

from dataclasses import dataclass

from hybridctl.base.checks import Array
from hybridctl.control.tracking_law import TrackingLaw, clip_input
from hybridctl.hybrid.laws import LinearFeedback


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

    def along(self, times: Array) -> tuple[Array, Array]:
        """Return the terms b (k, nu) and K (k, nu, nx) of u = b - K x at times (k,), in s."""
        offsets, gains = self.law.along(times - self.delay)
        return (offsets if self.added is None else offsets + self.added), gains
