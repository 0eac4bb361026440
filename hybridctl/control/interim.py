r"""An interim mode for reference spreading, from before the planned impact until it is over.

An impact that splits or takes time leaves the velocity between those of the arcs before and after
it, and a controller that knows of touches late compares with the wrong one of them. In a window
around the impact the velocity v is therefore compared with the nearest one that a part of the
planned impulses makes of the velocity before it (see `impacts`),

.. math:: u = \mu + K \begin{pmatrix} q_\alpha - q \\
    v^-(t) + M^{-1} J^\top \Lambda^* - v \end{pmatrix},
   \qquad \Lambda^* = \arg\min_{l \le \Lambda \le b} | v^-(t) + M^{-1} J^\top \Lambda - v |_M ,

with feedforward, positions and gains of the arc before the impact until that is under way, by a
touch or by the clock, and of the arc after it from then on. Velocities beyond all that is planned
are an error only as far as contacts can cause them (see `Interim`). When all touches are known the
window closes by degrees: a share of the velocity error, from none to all, is that to the arc after
the impact, so that the input does not jump. Free motion before and after the window is that of
reference spreading.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hybridctl.base.checks import Array, check_sequence
from hybridctl.base.settings import NotNegative, Settings
from hybridctl.control.gains import GainCurve
from hybridctl.control.impacts import Unexplained
from hybridctl.control.laws import cut
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.laws import LimitedLaw


@dataclass(frozen=True)
class Interim(Settings):
    """The windows in which the interim mode holds, and what it compares.

    before: how long before the planned time of an impact it begins, s, if no touch is known
    earlier. dwell: how long after the last touch it takes to close, s. timeout: how long after the
    planned time, or the first touch if that is later, it waits for touches that are missing, s;
    with none it does not wait. velocities: which of them are compared, such as those of the joints
    with motors; the others are not fed back meanwhile. All by default. excess: how far an impulse
    may exceed what is planned, as a part of that, before it is taken for an error of the measured
    velocity: estimates of velocities overshoot after impacts, and gains need not answer that.

    Of no width, before, dwell and timeout being zero, it never holds.
    """

    before: NotNegative = 0.0
    dwell: NotNegative = 0.0
    timeout: NotNegative = 0.0
    velocities: Sequence[int] | None = None
    excess: NotNegative = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.velocities is not None:
            object.__setattr__(
                self, "velocities", tuple(check_sequence("velocities", self.velocities))
            )


class InterimMoment(NamedTuple):
    """The place of a time in the window of an impact, and until when that holds.

    event: its number in the reference, None outside of all windows. under_way: whether it has been
    touched or is due. closing: since when the window closes, s; it is closed at `until`.
    """

    event: int | None
    under_way: bool
    until: float
    closing: float = math.inf


def settling(interim: Interim, event: int, done: float, time: float) -> InterimMoment | None:
    """The window of an event that was complete at `done`, None where it is over."""
    end = done + interim.dwell
    return InterimMoment(event, True, end, done) if done <= time < end else None


def expecting(
    interim: Interim, event: int, due: float, touched: float, time: float
) -> InterimMoment:
    """The window of the next event, due at a time and first touched at another, s.

    Without a touch that is infinite.
    """
    known = touched < math.inf
    opens = min(due - interim.before, touched)
    end = (max(due, touched) if known else due) + interim.timeout
    if (known and not interim.timeout) or not time < end or not opens < end:
        return InterimMoment(None, False, math.inf)
    if time < opens:
        return InterimMoment(None, False, opens)
    under_way = time >= min(due, touched)
    return InterimMoment(event, under_way, end if under_way else min(due, end))


@dataclass(frozen=True, eq=False)
class InterimLaw(LimitedLaw):
    """The law within the window: mu, q and K along `arc`, velocities compared from `ante` on.

    closing: from when until when the window closes, s.
    """

    arc: Arc
    ante: Arc
    gain: GainCurve
    unexplained: Unexplained
    limits: Array | None
    closing: tuple[float, float]

    def __call__(self, t: float, x: Array) -> Array:
        """The input (nu,)."""
        return cut(self.demand(t, x), self.limits)

    def demand(self, t: float, x: Array) -> Array:
        """Return the input (nu,) before it is cut to the limits.

        Fed back is the part of the velocity's change from the arc before the impact that no part
        of the planned impulses explains. While the window closes, a share of the velocity error
        that grows from 0 to 1 is that to the arc after the impact.

        Args:
            t: Time in s.
            x: State (nx,).
        """
        space = self.arc.space
        alpha, mu = self.arc.state_and_input(t)
        before, _ = self.ante.state_and_input(t)
        error = space.difference(x, alpha)
        nv = space.ndx // 2
        kept = list(self.unexplained.velocities)
        change = (x[-nv:] - before[-nv:])[kept]
        start, end = self.closing
        share = min((t - start) / (end - start), 1.0) if t > start else 0.0  # of the window
        compared = share * error[nv:][kept] - (1.0 - share) * self.unexplained(change)
        error[nv:] = 0.0
        error[[nv + i for i in kept]] = compared
        return np.asarray(mu + self.gain(t) @ error)
