r"""One set of six parameters decides each law on plants with lasting contact: gains and a window.

Gains are those of a mass on a spring, see `rrr_door.runner`: frequency and damping before and after
the impact. The window is two lengths of time: before and after the planned time, in which the law
compares arcs or projects errors, or before it and after the last touch, in which the interim mode
lasts. The six are sought for each law in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from hybridctl.experiments.door_optimal.reference import build_published
from hybridctl.experiments.rrr_door.laws import make_law
from hybridctl.experiments.rrr_door.runner import SpringGains

from hybridctl.base.checks import Array
from hybridctl.control.detectors import Detector, Gate
from hybridctl.control.interim import Interim
from hybridctl.control.reference import Reference
from hybridctl.control.spreading import ReferenceSpreading
from hybridctl.control.tuning.structure import WindowedGains
from hybridctl.hybrid.policy import Policy

LAWS = ("conventional", "nearest arc", "spreading", "impact-invariant", "interim")
ARM = (0, 1, 2)
"""Indices of the velocities that are fed back."""
EARLIEST = 0.15
"""Time before the planned touch from which on a detector is believed, s."""
_MS = 1e-3
_BLEND_TIME = 3e-3
"""Time over which impact-invariant tracking begins and ends its projection, s."""


get_scene = lru_cache(maxsize=1)(build_published)  # built once in each process


@dataclass(frozen=True)
class WindowedSprings:
    """Gains and windows by logarithms of frequencies (rad/s), dampings, and lengths (ms).

    Attributes:
        springs: Gains by the first four parameters.
    """

    springs: SpringGains

    def schedule(self, parameters: Array) -> WindowedGains:
        """Return the gains of four parameters with the window of the other two."""
        gains = self.springs.schedule(parameters[:4])
        windows = tuple((np.exp(parameters[4:]) * _MS).tolist())
        return WindowedGains(gains.arcs, gains.phantoms, windows=windows)


def make_structure() -> WindowedSprings:
    """Return the structure of the gains that are sought."""
    return WindowedSprings(SpringGains.build(*get_scene()))


def make_policy(name: str, design: WindowedGains, timeout: float) -> Policy:
    """Return the law of a name of `LAWS`.

    Args:
        name: Name of the law.
        design: Its gains and window.
        timeout: Time that the interim mode waits for a touch, s.
    """
    plant, reference = get_scene()
    before, after = design.windows
    if name == "interim":
        interim = Interim(before, after, timeout, velocities=ARM)
        return ReferenceSpreading(reference, design, interim=interim)
    return make_law(
        name, plant, reference, design, (before, after),
        metric=compute_kinetic_metric(reference), blend=_BLEND_TIME, velocities=ARM,
    )  # fmt: skip


def compute_kinetic_metric(reference: Reference) -> Array:
    """Return the metric (8, 8) of the nearest arc: M for velocities, M / s^2 for positions."""
    impact = reference.impacts[0]
    assert impact is not None
    return np.kron(np.eye(2), impact.mass).astype(np.float64)


def make_gate(name: str, detector: Detector, timeout: float) -> Gate:
    """Return the gated detector of a law.

    Args:
        name: Name of the law.
        detector: Detector of touches.
        timeout: Time after which the gate of the interim mode, and of no other law, reports a
            missing touch, s.
    """
    waits = {"timeout": timeout} if name == "interim" else {}
    return Gate(detector, get_scene()[1], before=EARLIEST, **waits)
