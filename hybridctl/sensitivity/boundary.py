r"""The first-order jump of an event whose reset is at the border between two cases.

Only one guard fires, and still the jump is piecewise linear: on either side of the border the
reset has another derivative. With d the distance from the border, reached at the event's own time,

.. math:: \delta d = D_x d\, \delta x + D_u d\, \delta u + \dot d\, \delta t,

the case "positive" holds where it is not negative. Those are two guards that fire together, the
event's and the border, which changes nothing itself: it comes after the event by d where it is
entered, and before it where it is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from hybridctl.hybrid.mode import ResetBorder
from hybridctl.hybrid.system import HybridSystem
from hybridctl.sensitivity.gains import JumpGains, Side, crossing, unchanged
from hybridctl.sensitivity.piecewise import PiecewiseLinearJump


def boundary_jump(
    system: HybridSystem, guard: str, before: Side, after: Side, border: ResetBorder
) -> PiecewiseLinearJump:
    """The jump of `guard` at a border, as guards (guard, border.name).

    The order (0, 1) is the positive case and (1, 0) the negative one; the time of the border is
    that of the event plus the distance, and zero where it comes last. A feedback gain for the
    guards {1} is that before the event.
    """
    positive = crossing(system, guard, before, after, border.positive)
    negative = crossing(system, guard, before, after, border.negative)
    rate = border.distance.time + border.distance.state @ before.field
    rate += border.distance.input @ before.input_rate
    nothing = unchanged(before.mode.space.ndx, len(before.input))
    entered = replace(
        nothing,
        time_state=(1.0 + rate) * positive.time_state + border.distance.state,
        time_input=(1.0 + rate) * positive.time_input + border.distance.input,
    )
    done = unchanged(len(positive.field_change), len(before.input))
    jumps = {
        (frozenset[int](), 0): positive,
        (frozenset[int](), 1): entered,
        (frozenset({0}), 1): done,
        (frozenset({1}), 0): negative,
    }
    return PiecewiseLinearJump((guard, border.name), partial(_known, jumps))


def _known(
    jumps: Mapping[tuple[frozenset[int], int], JumpGains], fired: frozenset[int], j: int
) -> JumpGains:
    return jumps[fired, j]
