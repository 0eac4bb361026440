"""Small hybrid systems with closed forms, used by the tests of the core."""

from __future__ import annotations

import numpy as np

import hybridctl as hc
from hybridctl.hybrid.mode import Edge, GuardSet, Outgoing

GRAVITY = 9.81

# Of a state of size 1 between the ends of a step: a series of 8 Chebyshev coefficients, each a
# weighted mean of 8 samples, whose sums round in an order that is the processor's: 8 x 8 roundings.
ROUNDING = 64 * np.finfo(np.float64).eps


def ball(restitution=0.9, gravity=GRAVITY):
    """A ball (height, velocity) on a floor at height 0."""
    return hc.HybridSystem(
        [hc.Mode("air", hc.VectorSpace(2), lambda t, x, u: np.array([x[1], -gravity]))],
        [
            hc.Transition(
                "air",
                hc.Guard("floor", lambda t, x, u: x[0]),
                hc.Reset(lambda t, x, u: np.array([x[0], -restitution * x[1]])),
                "air",
            )
        ],
    )


def impact_times(height, restitution, count, gravity=GRAVITY):
    """Impact times of a ball dropped from rest: t_1 = sqrt(2h/g), t_k+1 = t_k + 2 e^k t_1."""
    first = np.sqrt(2.0 * height / gravity)
    k = np.arange(1, count)
    return first * np.append(1.0, 1.0 + 2.0 * np.cumsum(restitution**k))


def box(width, height, restitution, gravity=GRAVITY):
    """A ball (x, y, vx, vy) between four walls."""

    def bounce(velocity):
        sign = np.ones(4)
        sign[velocity] = -restitution
        return hc.Reset(lambda t, x, u: sign * x)

    guards = {
        "left": (lambda t, x, u: x[0], 2),
        "right": (lambda t, x, u: width - x[0], 2),
        "floor": (lambda t, x, u: x[1], 3),
        "roof": (lambda t, x, u: height - x[1], 3),
    }
    field = lambda t, x, u: np.array([x[2], x[3], 0.0, -gravity])  # noqa: E731
    return hc.HybridSystem(
        [hc.Mode("air", hc.VectorSpace(4), field)],
        [
            hc.Transition("air", hc.Guard(name, g), bounce(v), "air")
            for name, (g, v) in guards.items()
        ],
    )


def feet(heights, damping=0.5, gravity=GRAVITY):
    """A body (height, velocity) on feet at `heights` above it; modes are enumerated lazily.

    A mode is the tuple of feet that have not touched yet. A touch multiplies the velocity by
    `damping` and the body falls on, so each foot touches exactly once, in any order the same.
    """

    def mode(key):
        return hc.Mode(key, hc.VectorSpace(2), lambda t, x, u: np.array([x[1], -gravity]))

    def outgoing(key):
        offsets = np.array([heights[int(name)] for name in key])

        def edge(fired):
            if len(fired) != 1 or fired[0] not in key:
                return None
            left = tuple(name for name in key if name != fired[0])
            return Edge(hc.Reset(lambda t, x, u: np.array([x[0], damping * x[1]])), left)

        return Outgoing(GuardSet(key, lambda t, x, u: x[0] + offsets), edge)

    return hc.HybridSystem(mode, outgoing)


def line(guards, speed=1.0, reset=None, nu=0):
    """A point that moves at constant speed, x = x0 + speed t, and stops at the first guard."""
    space = hc.VectorSpace(1)
    go = hc.Mode("go", space, lambda t, x, u: np.array([speed]), nu)
    stop = hc.Mode("stop", space, lambda t, x, u: np.zeros(1), nu)
    return hc.HybridSystem(
        [go, stop],
        [
            hc.Transition("go", hc.Guard(name, g), reset or hc.Reset.identity(), "stop")
            for name, g in guards.items()
        ],
    )
