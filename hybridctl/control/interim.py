r"""An interim mode for reference spreading, from before the planned impact until it is over.

An impact that takes time, or that happens in parts, leaves the velocity between those of the arcs
before and after it. A controller that learns of touches late then compares with the wrong arc. In a
window around the impact the velocity v is therefore compared with the nearest one that a part of
the planned impulses makes of the velocity before it (see `impacts`),

.. math:: u = \mu + K \begin{pmatrix} q_\alpha - q \\
    v^-(t) + M^{-1} J^\top \Lambda^* - v \end{pmatrix},
   \qquad \Lambda^* = \arg\min_{l \le \Lambda \le b} | v^-(t) + M^{-1} J^\top \Lambda - v |_M .

Feedforward, positions and gains are those of the arc before the impact until the impact begins, by
a touch or by the clock, and those of the arc after it from then on. When all touches are known the
window closes by degrees: a share of the velocity error that grows from 0 to 1 is that to the arc
after the impact, so that the input does not jump. Outside of the window the law is that of
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
from hybridctl.control.impacts import VelocityResidual
from hybridctl.control.tracking_law import clip_input
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.laws import LimitedLaw


@dataclass(frozen=True)
class Interim(Settings):
    """The windows of the interim mode, and which velocities it compares.

    With `before`, `dwell` and `timeout` at zero the interim mode never holds.

    Attributes:
        before: Time in s by which the window opens before the planned time of an impact, unless a
            touch is known earlier.
        dwell: Time in s that the window takes to close after the last touch.
        timeout: Time in s for which missing touches are waited for, after the planned time or the
            first touch, whichever is later. Zero does not wait.
        velocities: Indices of the velocities that are fed back in the window, such as those of the
            joints with motors. None for all. The others are not fed back there.
        excess: Part of its planned size by which an impulse may exceed it and still count as real.
            Beyond that, the velocity is taken to be measured wrongly: estimates overshoot after
            impacts.
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


class WindowMoment(NamedTuple):
    """The place of a time with respect to the windows of impacts.

    Attributes:
        event: Index of the event in whose window the time lies. None outside of all windows.
        has_begun: Whether the impact has begun, by a touch or by the clock.
        until: Time in s until which this place holds; infinite where nothing is to come.
        closing: Time in s since which the window closes; it is closed at `until`. Infinite while
            touches are missing.
    """

    event: int | None
    has_begun: bool
    until: float
    closing: float = math.inf

    @property
    def arc(self) -> int:
        """Index of the reference's arc that is followed inside of the window."""
        assert self.event is not None
        return self.event + 1 if self.has_begun else self.event


def find_closing_window(
    interim: Interim, event: int, done: float, time: float
) -> WindowMoment | None:
    """Return the place of a time in the window of an impact whose touches are all known.

    Args:
        interim: Widths of windows.
        event: Index of the event.
        done: Time of its last touch, s.
        time: Time, s.

    Returns:
        The place; None where the window is closed.
    """
    end = done + interim.dwell
    return WindowMoment(event, True, end, done) if done <= time < end else None


def find_opening_window(
    interim: Interim, event: int, due: float, touched: float, time: float
) -> WindowMoment:
    """Return the place of a time in the window of the next impact.

    Args:
        interim: Widths of windows.
        event: Index of the event.
        due: Its planned time, s.
        touched: Time of its first touch, s; infinite before it.
        time: Time, s.

    Returns:
        The place. Its `closing` is infinite: the window closes when all touches are known, by
        `find_closing_window`, or at `until`, without blending.
    """
    is_touched = touched < math.inf
    opens = min(due - interim.before, touched)
    end = (max(due, touched) if is_touched else due) + interim.timeout
    # After a touch the window stays open for missing touches alone, as long as they are waited for.
    if (is_touched and not interim.timeout) or not time < end or not opens < end:
        return WindowMoment(None, False, math.inf)
    if time < opens:
        return WindowMoment(None, False, opens)
    has_begun = time >= min(due, touched)
    return WindowMoment(event, has_begun, end if has_begun else min(due, end))


@dataclass(frozen=True, eq=False)
class InterimLaw(LimitedLaw):
    """The input law inside the window of an impact. It has no derivatives.

    Attributes:
        arc: Arc that gives mu and positions: before the impact until it begins, after it then.
        arc_before: Arc before the impact, from which changes of velocity count.
        gain: Gain K(t) on `arc`.
        residual: The part of a change of velocity that is fed back.
        limits: Least and greatest input (2, nu), or None.
        closing: Times in s from which and until which the window closes.
    """

    arc: Arc
    arc_before: Arc
    gain: GainCurve
    residual: VelocityResidual
    limits: Array | None
    closing: tuple[float, float]

    def __call__(self, t: float, x: Array) -> Array:
        """Return the input (nu,) at time t in s and state x (nx,)."""
        return clip_input(self.demand(t, x), self.limits)

    def demand(self, t: float, x: Array) -> Array:
        """Return the input (nu,) before it is cut to the limits.

        Args:
            t: Time in s.
            x: State (nx,).
        """
        space = self.arc.space
        alpha, mu = self.arc.state_and_input(t)
        before, _ = self.arc_before.state_and_input(t)
        error = space.difference(x, alpha)
        nv = space.ndx // 2
        compared = list(self.residual.velocities)
        change = (x[-nv:] - before[-nv:])[compared]
        start, end = self.closing
        share = min((t - start) / (end - start), 1.0) if t > start else 0.0
        velocity_error = share * error[nv:][compared] - (1.0 - share) * self.residual(change)
        error[nv:] = 0.0  # velocities that are not compared are not fed back
        error[[nv + i for i in compared]] = velocity_error
        return np.asarray(mu + self.gain(t) @ error)
