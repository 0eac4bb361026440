r"""Events that follow each other closely, as one piecewise affine jump.

Guards of a run fire at lags :math:`\tau` that a deviation can undo. With S the guards that have
fired on a perturbed motion, guard j fires at

.. math:: t_{S,j} + a_{S,j}\, \delta x + b_{S,j}\, \delta u,

with :math:`t_{S,j}` the time at which the nominal motion after S meets it: the recursion of
simultaneous guards, begun with lags instead of zeros. It is linear in :math:`(\delta x, 1)`.

In the order of the run this is the product of saltation matrices and flows, exactly. Another order
occurs for deviations as large as the lags it undoes only, and then the error is of second order in
the deviation, whatever the lags.
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
from hybridctl.sensitivity.gains import JumpGains, Side, event_sides
from hybridctl.sensitivity.phantoms import Phantoms
from hybridctl.sensitivity.piecewise import Passage, PiecewiseLinearJump

PhantomGain = Callable[[frozenset[int]], Array]


class PiecewiseAffineJump:
    """The jump of events in a window: of deviations before the first, to those after the last.

    Deviations are those from the arc before the first event at its time, and from the arc after
    the last at its time. `homogeneous` is the same as a piecewise linear jump of (dx, 1).
    """

    def __init__(self, homogeneous: PiecewiseLinearJump) -> None:
        self.homogeneous = homogeneous

    @property
    def guards(self) -> tuple[str, ...]:
        """The names of the guards, in the order of the run."""
        return self.homogeneous.guards

    @property
    def dimension(self) -> int:
        """The dimension d of the deviations before the events."""
        return self.homogeneous.dimension - 1

    def __call__(self, dx: ArrayLike) -> Array:
        """The deviation (d+,) after the events for dx (d,), or (m, d+) for m of them in rows."""
        return self.follow(dx).state

    def follow(self, dx: ArrayLike) -> Passage:
        """Deviation, order, and times of guards in s after the first event of the run."""
        z = check_array("dx", dx)
        if z.ndim not in (1, 2) or z.shape[-1] != self.dimension:
            raise InputError(f"dx must have shape ({self.dimension},) or (m, ...), got {z.shape}")
        one = np.ones((*z.shape[:-1], 1))
        passage = self.homogeneous.follow(np.concatenate((z, one), axis=-1))
        return passage._replace(state=passage.state[..., :-1])


@dataclass(frozen=True, eq=False)
class InputResponse:
    """What a change of the input does: du(t) (nu,), and what is left of it on arcs (ndx,)."""

    change: Callable[[float], Array]
    left: Sequence[Array]


@dataclass(frozen=True, eq=False)
class NearbyEvents:
    """Events of a run, from the one of index `first` on, that are one jump.

    feedback: gains K(fired) (nu, ndx) of laws that are closed over it besides.
    """

    first: int
    phantoms: Phantoms
    feedback: tuple[PhantomGain, ...] = ()

    @property
    def last(self) -> int:
        """The index of the last event."""
        return self.first + len(self.phantoms.events) - 1

    def fed_back(self, gain: PhantomGain) -> NearbyEvents:
        """The neighbourhood under a further feedback."""
        return replace(self, feedback=(*self.feedback, gain))

    def jump(
        self, flows: Sequence[Array], response: InputResponse | None = None
    ) -> PiecewiseAffineJump:
        """The jump, with the transition matrices of the arcs between the events."""
        micro = partial(_micro, self, tuple(flows), response)
        return PiecewiseAffineJump(PiecewiseLinearJump(self.phantoms.guards, micro))


def nearby_events(
    system: HybridSystem, trajectory: HybridTrajectory, window: float
) -> Iterator[tuple[int, tuple[Event, ...]]]:
    """Index of the first and all events of each group in which none is `window` (s) after another.

    Of a group are events of guards that the mode before the first one has, different ones, which
    fall there: others are caused by the first, and keep their place.
    """
    group: tuple[Event, ...] = ()
    before: Side | None = None
    for k, event in enumerate(trajectory.events):
        if (
            before is not None
            and event.time - group[-1].time <= window
            and _joins(before, group, event)
        ):
            group = (*group, event)
            continue
        if len(group) > 1:
            yield k - len(group), group
        begins = event.guards and event.accumulation is None
        group, before = ((event,), event_sides(system, event)[0]) if begins else ((), None)
    if len(group) > 1:
        yield len(trajectory.events) - len(group), group


def _joins(before: Side, group: tuple[Event, ...], event: Event) -> bool:
    known = {name for one in group for name in one.guards}
    if not event.guards or event.accumulation is not None or known & set(event.guards):
        return False
    names = before.mode.guard_names
    return all(name in names and before.guard_rate(name) < 0.0 for name in event.guards)


def _micro(
    nearby: NearbyEvents,
    flows: tuple[Array, ...],
    response: InputResponse | None,
    fired: frozenset[int],
    j: int,
) -> JumpGains:
    """The jump of guard j as one of (dx, 1), with the flow to the next event of the run."""
    phantoms = nearby.phantoms
    leap, after = phantoms.leap(fired, j), fired | {j}
    gains = leap.gains
    for gain in nearby.feedback:
        gains = gains.fed_back(gain(fired))
    lag, offset, still = leap.time - phantoms.events[0].time, leap.offset, 0.0
    if response is not None:
        du = response.change(leap.time)
        still, offset = float(gains.time_input @ du), offset + gains.reset_input @ du
    offset = offset + gains.field_change * lag
    field, reset = gains.field_change, gains.reset_jacobian
    if after in phantoms.nominal[1:-1]:
        k = phantoms.nominal.index(after) - 1
        field, reset, offset = flows[k] @ field, flows[k] @ reset, flows[k] @ offset
        if response is not None:
            offset = offset + response.left[k]
    wide = np.zeros((len(offset) + 1, len(gains.time_state) + 1))
    wide[:-1, :-1], wide[:-1, -1], wide[-1, -1] = reset, offset, 1.0
    none = np.zeros(0)
    return JumpGains(
        np.append(gains.time_state, lag + still),
        none,
        wide,
        np.zeros((len(wide), 0)),
        np.append(field, 0.0),
        np.zeros(len(wide)),
    )
