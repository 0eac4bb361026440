r"""The laws that are compared, each with gains and a window that are tuned.

Gains are those of a mass on a spring, see `door_optimal.comparison`: frequency and damping before
and after the impact. The window is what the law does around it: how long before and after the
planned time it compares arcs or projects errors, or how long before it and after the last touch the
interim mode lasts. The four gains and two lengths are sought for each law in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from hybridctl.experiments.door_optimal.comparison import SpringGains
from hybridctl.experiments.door_optimal.reference import published
from hybridctl.experiments.rrr_door.laws import law

from hybridctl.base.checks import Array
from hybridctl.control.detectors import Detector, Gate
from hybridctl.control.interim import Interim
from hybridctl.control.reference import Reference
from hybridctl.control.spreading import ReferenceSpreading
from hybridctl.control.tuning.structure import WindowedGains
from hybridctl.hybrid.policy import Policy

LAWS = ("conventional", "nearest arc", "spreading", "impact-invariant", "interim")
ARM = (0, 1, 2)  # the velocities that are fed back
EARLIEST = 0.15  # s before the planned time, from when on touches are believed
_MS = 1e-3
_BLEND = 3e-3  # s


scene = lru_cache(maxsize=1)(published)


@dataclass(frozen=True)
class WindowedSprings:
    """Gains and windows by logarithms of frequencies in rad/s, dampings, and lengths in ms."""

    springs: SpringGains

    def schedule(self, parameters: Array) -> WindowedGains:
        """The gains of four parameters and the windows of the other two."""
        gains = self.springs.schedule(parameters[:4])
        windows = tuple((np.exp(parameters[4:]) * _MS).tolist())
        return WindowedGains(gains.arcs, gains.phantoms, windows)


def structure() -> WindowedSprings:
    """The structure of gains that is sought."""
    return WindowedSprings(SpringGains.of(*scene()))


def policy(name: str, design: WindowedGains, timeout: float) -> Policy:
    """The law of this name, of `LAWS`. timeout: of its interim mode, s."""
    plant, reference = scene()
    before, after = design.windows
    if name == "interim":
        bridge = Interim(before, after, timeout, velocities=ARM)
        return ReferenceSpreading(reference, design, interim=bridge)
    return law(
        name, plant, reference, design, (before, after),
        metric=kinetic(reference), blend=_BLEND, velocities=ARM,
    )  # fmt: skip


def kinetic(reference: Reference) -> Array:
    """The metric of the nearest arc (8, 8): M for velocities, and M / s^2 for positions."""
    impact = reference.impacts[0]
    assert impact is not None
    return np.kron(np.eye(2), impact.mass).astype(np.float64)


def gated(name: str, detector: Detector, timeout: float) -> Gate:
    """The detector of a law; the interim mode's alone counts missing touches after `timeout`."""
    _, reference = scene()
    if name == "interim":
        return Gate(detector, reference, before=EARLIEST, timeout=timeout)
    return Gate(detector, reference, before=EARLIEST)
