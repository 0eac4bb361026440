"""Systems with closed forms, and filters on them, for the tests of estimation."""

import casadi as ca
import numpy as np

from hybridctl import symbolic
from hybridctl.estimation.measurement import linear

GRAVITY = 9.81


def affine(a, c, nu=0, b=None):
    """One mode, xdot = A x + B u + c."""
    a = np.asarray(a, dtype=float)
    x, u = ca.SX.sym("x", len(a)), ca.SX.sym("u", nu)
    field = ca.DM(a) @ x + ca.DM(np.asarray(c, dtype=float))
    if nu:
        field = field + ca.DM(np.asarray(b, dtype=float)) @ u
    mode = symbolic.SymbolicMode("flow", state=x, field=field, input=u if nu else None)
    return symbolic.hybrid_system([mode], [])


def bouncing_ball(restitution=0.8, floor_speed=0.0):
    """Height and velocity above a floor at height floor_speed * t."""
    x, t = ca.SX.sym("x", 2), ca.SX.sym("t")
    air = symbolic.SymbolicMode("air", state=x, field=[x[1], -GRAVITY], time=t)
    relative = x[1] - floor_speed
    bounce = symbolic.SymbolicTransition(
        "air",
        "floor",
        guard=x[0] - floor_speed * t,
        target="air",
        reset=[x[0], floor_speed - restitution * relative],
    )
    return symbolic.hybrid_system([air], [bounce])


def bounced(x, duration, restitution=0.8, floor_speed=0.0):
    """States (n, 2) of balls that bounce once or not at all, after `duration`, in closed form."""
    y, v = x[:, 0], x[:, 1]
    w = v - floor_speed
    hit = (w + np.sqrt(w**2 + 2.0 * GRAVITY * y)) / GRAVITY
    after = duration - hit
    up = floor_speed + restitution * (GRAVITY * hit - w)
    free = np.column_stack([y + v * duration - 0.5 * GRAVITY * duration**2, v - GRAVITY * duration])
    height = floor_speed * hit + up * after - 0.5 * GRAVITY * after**2
    back = np.column_stack([height, up - GRAVITY * after])
    return np.where((after > 0.0)[:, None], back, free)


def two_flows(before=(1.0, 0.3), after=(0.5, 1.2), normal=(1.0, 0.4)):
    """A constant flow that changes at a line through the origin, [Salt] Fig. 5, 6."""
    n = np.array(normal) / np.linalg.norm(normal)
    x = ca.SX.sym("x", 2)
    system = symbolic.hybrid_system(
        [
            symbolic.SymbolicMode("I", state=x, field=np.array(before)),
            symbolic.SymbolicMode("J", state=x, field=np.array(after)),
        ],
        [symbolic.SymbolicTransition("I", "line", guard=-ca.dot(ca.DM(n), x), target="J")],
    )
    matrix = np.eye(2) + np.outer(np.subtract(after, before), n) / (n @ np.array(before))
    return system, matrix, n


def height(variance=1e-6):
    """A measurement of the first state of two."""
    return linear("height", [[1.0, 0.0]], [[variance]])
