r"""A puck that flies into the corner of two walls, and is caught and thrown again.

State (x, y, vx, vy); walls x = 0 and y = 0, smooth, with restitution e. A mode is the tuple of
walls that have been touched, each with a thrust of its own (an acceleration). Once both have been
touched, a hand waits at x + y = distance; it throws the puck anew,

.. math:: x^+ = x_{throw} + M\, (x - x_{catch}),

a little off where it was caught a little off. The throw is such that the puck meets both walls at
once, at the corner, and is caught at :math:`x_{catch}`. The walls' resets commute, but each order
of touching them leaves the puck under another thrust for a moment: the return map has a kink.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

import casadi as ca
import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array
from hybridctl.base.settings import Positive, Settings, UnitInterval
from hybridctl.hybrid.system import HybridSystem
from hybridctl.symbolic import Joint, SymbolicMode, SymbolicTransition, hybrid_system

Touched = tuple[int, ...]
FREE: Touched = (0, 0)
WALLS = ("left wall", "lower wall")
CATCH = "catch"


@dataclass(frozen=True)
class PuckParameters(Settings):
    """The velocity (2,) at the corner in m/s, restitution, distance of the hand in m.

    thrust: the acceleration (2,) for each tuple of walls touched, m/s^2. throw: M (4, 4).
    flight: how long it flies to the corner, s.
    """

    velocity: ArrayLike = (-1.0, -1.3)
    restitution: UnitInterval = 0.8
    distance: Positive = 0.5
    flight: Positive = 0.4
    thrust: dict[Touched, ArrayLike] = field(
        default_factory=lambda: {key: (0.0, 0.0) for key in product((0, 1), repeat=2)}
    )
    throw: ArrayLike = ((0.0,) * 4,) * 4

    @property
    def thrown(self) -> Array:
        """The state (4,) that is thrown: `flight` before the corner."""
        v, a = np.asarray(self.velocity), np.asarray(self.thrust[FREE])
        return np.concatenate([-v * self.flight + 0.5 * a * self.flight**2, v - a * self.flight])

    @property
    def caught(self) -> tuple[float, Array]:
        """When the puck is caught after the corner, s, and its state (4,) there."""
        v, a = -self.restitution * np.asarray(self.velocity), np.asarray(self.thrust[1, 1])
        ways = np.roots([0.5 * a.sum(), v.sum(), -self.distance])
        times = ways.real[(ways.imag == 0.0) & (ways.real > 0.0)]
        t = float(times.min())
        return t, np.concatenate([v * t + 0.5 * a * t**2, v + a * t])


def system(parameters: PuckParameters | None = None) -> HybridSystem:
    """The hybrid system, with guards `WALLS` and `CATCH`."""
    p = parameters or PuckParameters()
    x = ca.SX.sym("x", 4)
    modes = [
        SymbolicMode(key, x, [x[2], x[3], *np.asarray(thrust, dtype=np.float64)])
        for key, thrust in p.thrust.items()
    ]
    bounce = [ca.vertcat(x[:2], -p.restitution * x[2], x[3]),
              ca.vertcat(x[:3], -p.restitution * x[3])]  # fmt: skip
    ways: list[SymbolicTransition | Joint] = []
    for key in product((0, 1), repeat=2):
        for wall in (j for j in range(2) if not key[j]):
            after = tuple(1 if j == wall else touched for j, touched in enumerate(key))
            ways.append(SymbolicTransition(key, WALLS[wall], x[wall], after, bounce[wall]))
    ways.append(Joint(FREE, list(WALLS), (1, 1), ca.vertcat(x[:2], -p.restitution * x[2:])))
    again = ca.DM(p.thrown) + ca.DM(np.asarray(p.throw)) @ (x - ca.DM(p.caught[1]))
    ways.append(SymbolicTransition((1, 1), CATCH, p.distance - x[0] - x[1], FREE, again))
    return hybrid_system(modes, ways)
