"""Hybrid systems of affine flows and resets, whose first-order maps are exact."""

import numpy as np

import hybridctl as hc
from hybridctl.base.spaces import VectorSpace
from hybridctl.hybrid.mode import (
    FieldJacobian,
    Guard,
    GuardJacobian,
    Mode,
    Reset,
    ResetJacobian,
    Transition,
)


def affine_mode(key, a, c):
    """xdot = A x + c."""
    a, c = np.array(a, dtype=float), np.array(c, dtype=float)
    jacobian = FieldJacobian(a, np.zeros((len(c), 0)))
    return Mode(key, VectorSpace(len(c)), lambda t, x, u: a @ x + c, 0, lambda t, x, u: jacobian)


def affine_guard(name, normal, offset):
    """n x + o >= 0 inside."""
    n = np.array(normal, dtype=float)
    jacobian = GuardJacobian(0.0, n, np.zeros(0))
    return Guard(name, lambda t, x, u: float(n @ x + offset), lambda t, x, u: jacobian)


def affine_reset(matrix, offset):
    """x+ = R x + r."""
    r, o = np.array(matrix, dtype=float), np.array(offset, dtype=float)
    jacobian = ResetJacobian(np.zeros(len(o)), r, np.zeros((len(o), 0)))
    return Reset(lambda t, x, u: r @ x + o, lambda t, x, u: jacobian)


def staircase(places, fields):
    """Constant flows; mode k goes on to mode k + 1 where the first state passes its place."""
    n = len(fields[0])
    normal, none = -np.eye(n)[0], np.zeros((n, n))
    modes = [affine_mode(k, none, field) for k, field in enumerate(fields)]
    return hc.HybridSystem(
        modes,
        [
            Transition(k, affine_guard(f"place {k}", normal, place), Reset.identity(n), k + 1)
            for k, place in enumerate(places)
        ],
    )
