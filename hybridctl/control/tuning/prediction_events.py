r"""An event of the predicted cost: points carried through it with feedback, and the gradient.

A point is (z, w), deviation and error of the input. The points at a simultaneous event take the
jumps of their own order of guards, each

.. math:: z \leftarrow (G_i - J_i K_i)\, z + J_i w ,

with K_i the gain of the arc before the event at the first guard and that of the phantom arc, or
none, at the following ones ([RS] (4.33)). An isolated event is the case of one guard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hybridctl.checks import Array, Indices
from hybridctl.control.gains import GainSchedule
from hybridctl.errors import InputError
from hybridctl.sensitivity.gains import JumpGains
from hybridctl.sensitivity.piecewise import PiecewiseLinearJump

PhantomKey = tuple[int, frozenset[str]]
Gain = Callable[[frozenset[int]], Array]


@dataclass(frozen=True, eq=False)
class _Chain:
    """Points with one order of guards: their columns, and the points before each guard."""

    columns: Indices
    order: tuple[int, ...]
    before: tuple[Array, ...]


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """Points `after` (d+ + nu, m) an event, and what the gradient needs."""

    after: Array
    chains: tuple[_Chain, ...]
    gains: dict[frozenset[int], Array]


@dataclass(frozen=True, eq=False)
class PredictedEvent:
    """An event of a linearization; `piecewise` has the jumps of its guards."""

    index: int
    piecewise: PiecewiseLinearJump

    def cross(self, points: Array, schedule: GainSchedule, time: float) -> ForwardPass:
        """Carry points (d + nu, m) through the event, each in its own order."""
        gains = {frozenset[int](): schedule.arcs[self.index](time)}

        def gain(fired: frozenset[int]) -> Array:
            if fired not in gains:
                gains[fired] = self._phantom_gain(fired, schedule, time)
            return gains[fired]

        nu = self.piecewise.input_dimension
        fed_back = self.piecewise.fed_back(gain)
        passage = fed_back.follow(points[:-nu].T, points[-nu:].T)
        after = np.vstack([passage.state.T, points[-nu:]])
        orders, members = np.unique(passage.orders, axis=0, return_inverse=True)
        chains = []
        for i, order in enumerate(orders):
            columns: Indices = np.flatnonzero(members.ravel() == i)
            before = self._before(order, points[:, columns], gain)
            chains.append(_Chain(columns, tuple(map(int, order)), before))
        return ForwardPass(after, tuple(chains), gains)

    def pullback(
        self, crossing: ForwardPass, after: Array
    ) -> tuple[Array, Array, dict[PhantomKey, Array]]:
        """Gradients by the points before the event, by K of the arc before it, and by phantom K.

        after (d+ + nu, m): the gradient by the points after it.
        """
        gains = {fired: np.zeros_like(gain) for fired, gain in crossing.gains.items()}
        first = crossing.chains[0].before[0]
        result = np.empty((len(first), after.shape[1]))
        for chain in crossing.chains:
            gradient = after[:, chain.columns]
            for i in reversed(range(len(chain.order))):
                fired = frozenset(chain.order[:i])
                jump, gain = self.piecewise.jump(fired, chain.order[i]), crossing.gains[fired]
                nu, by_z = gain.shape[0], gradient[: -gain.shape[0]]
                by_input = jump.input.T @ by_z
                gains[fired] -= by_input @ chain.before[i][:-nu].T
                gradient = np.vstack(
                    [jump.state.T @ by_z - gain.T @ by_input, gradient[-nu:] + by_input]
                )
            result[:, chain.columns] = gradient
        between = {
            (self.index, frozenset(self.piecewise.guards[j] for j in fired)): gain
            for fired, gain in gains.items()
            if fired
        }
        return result, gains[frozenset()], between

    def _before(self, order: Sequence[int], points: Array, gain: Gain) -> tuple[Array, ...]:
        """The points before each guard of an order."""
        found = [points]
        for i, j in enumerate(order[:-1]):
            fired = frozenset(map(int, order[:i]))
            jump, k = self.piecewise.jump(fired, int(j)), gain(fired)
            z, w = np.split(found[-1], [-len(k)])
            found.append(np.vstack([jump.state @ z + jump.input @ (w - k @ z), w]))
        return tuple(found)

    def _phantom_gain(self, fired: frozenset[int], schedule: GainSchedule, time: float) -> Array:
        names = frozenset(self.piecewise.guards[j] for j in fired)
        curve = schedule.phantoms.get((self.index, names))
        left = next(j for j in range(len(self.piecewise.guards)) if j not in fired)
        jump = self.piecewise.jump(fired, left)
        shape = (len(jump.time_input), len(jump.time_state))
        gain = np.zeros(shape) if curve is None else curve(time)
        if gain.shape != shape:
            raise InputError(
                f"gains of the phantom arc after {sorted(names)} of event {self.index} must be "
                f"{shape}, got {gain.shape}"
            )
        return gain


def predicted_event(index: int, jump: JumpGains | PiecewiseLinearJump) -> PredictedEvent:
    """Event `index` of a linearization."""
    if isinstance(jump, PiecewiseLinearJump):
        return PredictedEvent(index, jump)
    return PredictedEvent(index, PiecewiseLinearJump(("isolated",), lambda fired, j: jump))
