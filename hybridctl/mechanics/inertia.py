r"""How the inertia of a body about its joint changes with named parameters, and what it can be.

The equations of motion are linear in pi = (m, m c, I_o), with the inertia about the origin
:math:`I_o = I_c + m (c^T c\, 1 - c\, c^T)` written as xx, xy, yy, xz, yz, zz.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridctl.checks import Array
from hybridctl.errors import InputError
from hybridctl.mechanics.motion import Body
from hybridctl.mechanics.tolerances import INDEFINITE

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


def check_inertias(model: Any) -> None:
    """Raise `InputError` for a negative mass in a Pinocchio model, or joints that move no body.

    Inertias are judged as the motion sees them, links that are fixed to each other together.
    """
    for frame in model.frames:
        if not frame.inertia.mass >= 0.0:
            raise InputError(
                f"the mass at {frame.name!r} must not be negative, got {frame.inertia.mass} kg"
            )
    moved = [np.linalg.eigvalsh(inertia.inertia) for inertia in model.inertias]
    largest = max(float(np.abs(moments).max()) for moments in moved)
    for name, inertia, moments in zip(model.names, model.inertias, moved, strict=True):
        if not inertia.mass >= 0.0:
            raise InputError(
                f"the mass that joint {name!r} moves must not be negative, got {inertia.mass} kg"
            )
        if not moments[0] >= -INDEFINITE * largest:
            raise InputError(
                f"the inertia that joint {name!r} moves must be positive semidefinite, but about "
                f"its center it has the principal moments {moments.tolist()} kg m^2"
            )
