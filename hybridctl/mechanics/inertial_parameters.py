"""Inertial parameters pi of a rigid body: mass, moments, and inertia about its frame's origin."""

from __future__ import annotations

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.mechanics.multibody.bodies import Body

_AXES = "xyz"
_ORDER = ("xx", "xy", "yy", "xz", "yz", "zz")
INERTIAL_KINDS = ("mass", *(f"center_{k}" for k in _AXES), *(f"inertia_{both}" for both in _ORDER))
"""Kinds of inertial parameters of a link, see `mechanics.parameters`."""


def differentiate_inertia(body: Body, kind: str) -> Array:
    """Return the derivative of pi (10,) by mass, by the center of mass, or by the inertia about it.

    Args:
        body: The body; the axes are those of the frame by which it was asked for.
        kind: One of `INERTIAL_KINDS`.
    """
    c, m = body.center, body.mass
    mass, moment, inertia = 0.0, np.zeros(3), np.zeros((3, 3))
    what, _, axes = kind.partition("_")
    if what == "mass":
        mass, moment, inertia = 1.0, c, (c @ c) * np.eye(3) - np.outer(c, c)
    elif what == "center":
        e = body.rotation[:, _AXES.index(axes)]
        moment = m * e
        inertia = m * (2.0 * (c @ e) * np.eye(3) - np.outer(e, c) - np.outer(c, e))
    else:
        a, b = (body.rotation[:, _AXES.index(axis)] for axis in axes)
        inertia = np.outer(a, b) if axes[0] == axes[1] else np.outer(a, b) + np.outer(b, a)
    entries = [inertia[_AXES.index(pair[0]), _AXES.index(pair[1])] for pair in _ORDER]
    return np.concatenate(([mass], moment, entries))


def make_inertia_matrix(entries: Array) -> Array:
    """Return the symmetric matrix (3, 3) of its entries.

    Args:
        entries: xx, xy, yy, xz, yz, zz (6,), kg m^2.
    """
    matrix = np.zeros((3, 3))
    for value, pair in zip(entries, _ORDER, strict=True):
        i, j = _AXES.index(pair[0]), _AXES.index(pair[1])
        matrix[i, j] = matrix[j, i] = value
    return matrix
