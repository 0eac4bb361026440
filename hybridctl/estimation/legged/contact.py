r"""Which feet are in contact, by the forces that they bear.

A threshold with hysteresis says it at once: in contact from `on` newtons upwards until there are no
more than `off`. A probability says how surely,

.. math:: p(f) = \frac{1}{1 + e^{-(f - f_0) / w}}, \quad f_0 = \tfrac12 (on + off), \quad
          w = \tfrac14 (on - off),

as evidence beside how the foot moves, see `hypotheses`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridctl.checks import Array, number
from hybridctl.errors import InputError

_LARGEST = np.log(1e6)  # of log odds, because forces have outliers


@dataclass(frozen=True)
class Hysteresis:
    """Vertical forces in N from which on a foot is in contact, and down to which it stays so."""

    on: float
    off: float

    def __post_init__(self) -> None:
        if not number("off", self.off) < number("on", self.on):
            raise InputError(f"off must be below on, got off = {self.off} N, on = {self.on} N")

    def states(self, forces: Array) -> NDArray[np.bool_]:
        """Whether a foot is in contact at each of its forces (n,); NaN says nothing.

        Before the first force that says something it is what that is not.
        """
        said = np.where(forces >= self.on, 1, np.where(forces <= self.off, 0, -1))
        telling = np.flatnonzero(said >= 0)
        if not len(telling):
            middle = np.nanmean(forces) if np.isfinite(forces).any() else -np.inf
            return np.full(len(forces), bool(middle > 0.5 * (self.on + self.off)))
        last = np.maximum.accumulate(np.where(said >= 0, np.arange(len(forces)), -1))
        return np.asarray(np.where(last >= 0, said[last], said[telling[0]]) == 1)

    def log_odds(self, force: float) -> float:
        """The logarithm of p / (1 - p) of a force."""
        middle, width = 0.5 * (self.on + self.off), 0.25 * (self.on - self.off)
        return float(np.clip((force - middle) / width, -_LARGEST, _LARGEST))


def completed(forces: Array, weight: float) -> Array:
    """Forces (n, k) of k feet with one that is missing replaced by what the others leave.

    weight: that all feet bear together in N, exactly only while they stand still. Rows with more
    than one missing stay as they are.
    """
    missing = ~np.isfinite(forces)
    result: Array = forces.copy()
    alone = missing.sum(axis=1) == 1
    rest = weight - np.nansum(forces[alone], axis=1)
    result[alone] = np.where(missing[alone], rest[:, None], forces[alone])
    return result
