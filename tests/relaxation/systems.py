"""Systems with known executions, for the tests of relaxation."""

import casadi as ca
import numpy as np

import hybridctl as hc

GRAVITY = 1.0


def ball(c, gravity=GRAVITY):
    """A ball (height, velocity) with an upward input, on a floor."""
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u")
    air = hc.symbolic.SymbolicMode("air", x, [x[1], u - gravity], u)
    floor = hc.symbolic.SymbolicTransition("air", "floor", x[0], "air", [x[0], -c * x[1]])
    return hc.symbolic.hybrid_system([air], [floor])


def accumulation(c, height=1.0, gravity=GRAVITY):
    """When a ball dropped from rest has bounced for the last time."""
    return (1.0 + c) / (1.0 - c) * np.sqrt(2.0 * height / gravity)


def carrier(c):
    """A ball (height, velocity, load) whose impacts kick what it carries."""
    x = ca.SX.sym("x", 3)
    air = hc.symbolic.SymbolicMode("air", x, [x[1], -1.0 - 0.2 * x[2], -0.5 * x[2] + 0.3 * x[0]])
    reset = [x[0], -c * x[1] + 0.05 * x[2], x[2] - 0.4 * x[1] + 0.1]
    return hc.symbolic.hybrid_system(
        [air], [hc.symbolic.SymbolicTransition("air", "floor", x[0], "air", reset)]
    )


def bowl(c):
    """A point (x, y, vx, vy) that bounces in a circle of radius 1: curved guard, bent reset."""
    s = ca.SX.sym("s", 4)
    p, v = s[:2], s[2:]
    normal = p / ca.norm_2(p)
    flight = hc.symbolic.SymbolicMode("flight", s, ca.vertcat(v, 0.1, -1.0))
    after = v - (1.0 + c) * normal * ca.dot(normal, v)
    wall = hc.symbolic.SymbolicTransition(
        "flight", "wall", 1.0 - ca.sumsqr(p), "flight", ca.vertcat(p, after)
    )
    return hc.symbolic.hybrid_system([flight], [wall])


def slimmed(c):
    """A ball that loses its third state in its first impact, and gains another in the second."""
    x, y = ca.SX.sym("x", 3), ca.SX.sym("y", 2)
    heavy = hc.symbolic.SymbolicMode("heavy", x, [x[1], -1.0, -x[2]])
    light = hc.symbolic.SymbolicMode("light", y, [y[1], -1.5])
    return hc.symbolic.hybrid_system(
        [heavy, light],
        [
            hc.symbolic.SymbolicTransition(
                "heavy", "sheds", x[0], "light", [x[0], -c * x[1] + 0.3 * x[2]]
            ),
            hc.symbolic.SymbolicTransition(
                "light", "loads", y[0], "heavy", [y[0], -c * y[1], 0.5 * y[1]]
            ),
        ],
    )


def order(errors, sizes):
    """The slope of log(errors) over log(sizes)."""
    return np.polyfit(np.log(sizes), np.log(errors), 1)[0]
