"""Piecewise constant fields that cross all coordinate planes, [Bder] 3.1."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.checks import Array, count, vector
from hybridctl.errors import InputError, UnknownNameError
from hybridctl.hybrid.mode import (
    Edge,
    FieldJacobian,
    GuardJacobian,
    GuardSet,
    Mode,
    ModeKey,
    Outgoing,
    Reset,
)
from hybridctl.hybrid.system import HybridSystem
from hybridctl.spaces import VectorSpace

Signs = tuple[int, ...]

FIGURE_3: dict[str, dict[Signs, tuple[float, float]]] = {
    "linear": {(-1, -1): (0, 0), (1, -1): (-0.5, 0), (-1, 1): (0, -0.5), (1, 1): (-0.5, -0.5)},
    "piecewise": {(-1, -1): (0, 0), (1, -1): (-0.5, 0), (-1, 1): (0, -0.25), (1, 1): (0, -0.5)},
}
"""Delta of the two fields of [Bder] Fig. 3, whose derivatives are linear and only piecewise so."""


def system(delta: Callable[[Signs], ArrayLike], n: int) -> HybridSystem:
    r"""The field :math:`\dot x = 1 + \Delta(sign\, x)` on R^n, [Bder] (11).

    A mode is the tuple of signs, -1 or 1; guard "x1 rises" fires in modes with the first sign -1,
    and so on. Every component rises, so none ever falls again. Raises `InputError` where a
    component of Delta is not above -1.
    """
    size = count("n", n)
    space = VectorSpace(size)

    def mode(key: ModeKey) -> Mode:
        velocity = _velocity(delta, _signs(key, size), size)
        derivative = FieldJacobian(np.zeros((size, size)), np.zeros((size, 0)))
        return Mode(key, space, lambda t, x, u: velocity, jacobian=lambda t, x, u: derivative)

    def outgoing(key: ModeKey) -> Outgoing:
        signs = _signs(key, size)
        low = [j for j in range(size) if signs[j] < 0]
        names = {f"x{j + 1} rises": j for j in low}
        slopes = GuardJacobian(np.zeros(len(low)), -np.eye(size)[low], np.zeros((len(low), 0)))

        def edge(fired: tuple[str, ...]) -> Edge | None:
            flipped = {names[name] for name in fired if name in names}
            target = tuple(1 if j in flipped else sign for j, sign in enumerate(signs))
            return Edge(Reset.identity(), target) if flipped else None

        guards = GuardSet(tuple(names), lambda t, x, u: -x[low], lambda t, x, u: slopes)
        return Outgoing(guards, edge)

    return HybridSystem(mode, outgoing, [f"x{j + 1} rises" for j in range(size)])


def before_corner(delta: Callable[[Signs], ArrayLike], n: int) -> Array:
    """Half a second before the origin, where all guards fire at once, [Bder] 3.1."""
    size = count("n", n)
    return -0.5 * _velocity(delta, (-1,) * size, size)


def _signs(key: ModeKey, n: int) -> Signs:
    if isinstance(key, tuple) and len(key) == n and all(sign in (-1, 1) for sign in key):
        return key
    raise UnknownNameError(f"mode {key!r} is unknown, expected {n} signs, each -1 or 1")


def _velocity(delta: Callable[[Signs], ArrayLike], signs: Signs, n: int) -> Array:
    velocity = 1.0 + vector(f"Delta({signs})", delta(signs), n)
    if not (velocity > 0.0).all():
        raise InputError(f"Delta({signs}) must be above -1, got {velocity - 1.0}")
    return velocity
