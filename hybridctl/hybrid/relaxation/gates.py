"""Guards and their images as affine pieces that are glued together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hybridctl.checks import Array
from hybridctl.errors import SystemDefinitionError
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.relaxation.chart import on_guard, passage, random_samples
from hybridctl.hybrid.system import HybridSystem

_AFFINE = 1e-10  # of the largest entry, or of 1: by how much an affine map may differ from its fit
_ROUNDING = 1e-15  # of the largest entry, or of 1


@dataclass(frozen=True, eq=False)
class Gate:
    """The part of a guard that is fallen through, and its image.

    Points are origin + basis s, those with slope . s <= level; their images are image + turn s.
    basis (n, n - 1), turn (n', n - 1), slope (n - 1,).
    """

    source: ModeKey
    target: ModeKey
    origin: Array
    basis: Array
    image: Array
    turn: Array
    slope: Array
    level: float

    def points(self, s: Array) -> tuple[Array, Array]:
        """The point s of the guard, and its image."""
        return self.origin + self.basis @ s, self.image + self.turn @ s

    def sides(self, backwards: bool) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """Offset and matrix of where a path arrives and of where it goes on."""
        here, there = (self.origin, self.basis), (self.image, self.turn)
        return (there, here) if backwards else (here, there)

    def fallen(self, s: Array) -> Array:
        """s, put back onto the part of the guard that is fallen through."""
        excess = float(self.slope @ s) - self.level
        if excess <= 0.0:
            return s
        return np.asarray(s - self.slope * (excess / float(self.slope @ self.slope)))


def gates_of(system: HybridSystem, key: ModeKey) -> Iterator[Gate]:
    """The glued guards of a mode."""
    mode = system.mode(key)
    for name in system.outgoing(key).guards.names:
        border, reset, target = passage(system, key, name)
        points = list(on_guard(border, random_samples(mode)))
        feet = np.array([x for _, x, _ in points])
        images = np.array([reset(t, x, u).state for t, x, u in points])
        rates = []
        for t, x, u in points:
            rate, slope = border.derivative(t, x, u)
            rates.append(rate + float(slope @ mode.field(t, x, u)))
        slope = border.derivative(*points[0])[1]
        basis = np.linalg.svd(slope[None])[2][1:].T
        origin = slope * (float(slope @ feet[0]) / float(slope @ slope))
        s = (feet - origin) @ basis
        flat = _fit(s, feet, f"guard {name!r} of mode {key!r}")
        image = _fit(s, images, f"the reset of guard {name!r} of mode {key!r}")
        speed = _fit(s, np.array(rates)[:, None], f"the rate of guard {name!r} of mode {key!r}")
        yield Gate(
            key, target.key, flat[0], flat[1:].T, image[0], image[1:].T, speed[1:, 0],
            -float(speed[0, 0]),
        )  # fmt: skip


def _fit(s: Array, values: Array, what: str) -> Array:
    """Offset and slopes (1 + n, m) of an affine map of s; `SystemDefinitionError` for another."""
    known = np.hstack([np.ones((len(s), 1)), s])
    found = np.linalg.lstsq(known, values, rcond=None)[0]
    if np.abs(known @ found - values).max() > _AFFINE * max(1.0, float(np.abs(values).max())):
        raise SystemDefinitionError(f"{what} is not affine, so that its distance is not known")
    found[np.abs(found) < _ROUNDING * np.abs(found).max(initial=1.0)] = 0.0
    return np.asarray(found)
