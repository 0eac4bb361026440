r"""How the inertia of a body about the origin of its joint changes with named parameters.

The equations of motion are linear in pi = (m, m c, I_o), with the inertia about the origin
:math:`I_o = I_c + m (c^T c\, 1 - c\, c^T)` written as xx, xy, yy, xz, yz, zz.
"""

from __future__ import annotations

import numpy as np

from hybridctl.checks import Array
from hybridctl.mechanics.motion import Body

_AXES = "xyz"
_ORDER = ("xx", "xy", "yy", "xz", "yz", "zz")
INERTIAL = ("mass", *(f"center_{k}" for k in _AXES), *(f"inertia_{both}" for both in _ORDER))


def inertial_derivative(body: Body, kind: str) -> Array:
    """D pi (10,) by mass, by the center of mass, or by the inertia about it, one of `INERTIAL`.

    Axes are those of the frame by which the body was asked for.
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
