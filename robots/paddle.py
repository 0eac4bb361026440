r"""A ball that bounces on a paddle, which is driven along the same vertical.

State (z, s, v, w): heights of ball and paddle in m, from where the paddle rests, and their
velocities. The paddle hangs on a spring and does not feel the ball; the input u is an acceleration
in m/s^2:

.. math:: \dot v = -g, \qquad \dot w = u - k s - c w, \qquad
          v^+ = (1 + e)\, w - e\, v \quad \text{where } z = s .

Driven by A cos(theta(t)) around its rest the paddle meets the ball once in each period, and the
ball returns to the same apex where the paddle rises with (1 - e) / (1 + e) of the speed g T / 2 at
which the ball leaves. It does so at two phases. In the later one, past the middle and slowing
down, the bouncing is stable for small accelerations; the earlier one, below the middle and speeding
up, is taken here: an early ball is hit less hard and comes earlier still, so that feedback has to
hold it.
"""

from __future__ import annotations

from dataclasses import dataclass

import casadi as ca
import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.base.settings import NotNegative, Positive, Settings, UnitInterval
from hybridctl.hybrid.system import HybridSystem
from hybridctl.symbolic import SymbolicMode, SymbolicTransition, hybrid_system

AIR = "air"
BOUNCE = "bounce"


@dataclass(frozen=True)
class PaddleParameters(Settings):
    """A ball on a paddle that hangs on a spring with a damper.

    Attributes:
        restitution: Restitution e.
        stiffness: Stiffness k of the spring, 1/s^2.
        damping: Damping c, 1/s.
        period: Period of the drive, and of the motion, s.
        amplitude: Amplitude A of the driven paddle, m.
        gravity: Acceleration of free fall, m/s^2.
    """

    restitution: UnitInterval = 0.8
    stiffness: NotNegative = 40.0
    damping: NotNegative = 2.0
    period: Positive = 0.5
    amplitude: Positive = 0.03
    gravity: Positive = 9.81

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.hit < self.amplitude * self.frequency:
            raise InputError(
                f"amplitude must exceed {self.hit / self.frequency:.4g} m for a paddle that "
                f"rises with {self.hit:.4g} m/s, got {self.amplitude}"
            )

    @property
    def frequency(self) -> float:
        """The frequency of the drive, rad/s."""
        return float(2.0 * np.pi / self.period)

    @property
    def rise(self) -> float:
        """The speed with which the ball leaves the paddle, m/s."""
        return 0.5 * self.gravity * self.period

    @property
    def hit(self) -> float:
        """The speed of the paddle when the ball meets it, m/s."""
        return self.rise * (1.0 - self.restitution) / (1.0 + self.restitution)

    @property
    def phase(self) -> float:
        """The phase theta in [-pi/2, 0] rad at which the ball meets the paddle, s = A sin theta."""
        return float(-np.arccos(self.hit / (self.amplitude * self.frequency)))


def system(parameters: PaddleParameters | None = None) -> HybridSystem:
    """The hybrid system, of the one mode `AIR` and the guard `BOUNCE`."""
    p = parameters or PaddleParameters()
    x, u = ca.SX.sym("x", 4), ca.SX.sym("u")
    z, s, v, w = ca.vertsplit(x)
    field = [v, w, -p.gravity, u - p.stiffness * s - p.damping * w]
    e = p.restitution
    hit = SymbolicTransition(AIR, BOUNCE, z - s, AIR, [z, s, (1.0 + e) * w - e * v, w])
    return hybrid_system([SymbolicMode(AIR, state=x, field=field, input=u)], [hit])


def drive(t: float, parameters: PaddleParameters | None = None) -> Array:
    """The input (1,) that keeps the paddle at A sin(theta); the ball is at its apex at t = 0."""
    p = parameters or PaddleParameters()
    a, f = p.amplitude, p.frequency
    theta = p.phase + f * (t - 0.5 * p.period)
    return np.array([a * (p.stiffness - f**2) * np.sin(theta) + a * p.damping * f * np.cos(theta)])


def apex(parameters: PaddleParameters | None = None) -> Array:
    """The state (4,) of the orbit at t = 0, half a period before the ball meets the paddle."""
    p = parameters or PaddleParameters()
    a, f = p.amplitude, p.frequency
    theta = p.phase - np.pi
    height = a * np.sin(p.phase) + 0.5 * p.rise**2 / p.gravity
    return np.array([height, a * np.sin(theta), 0.0, a * f * np.cos(theta)])
