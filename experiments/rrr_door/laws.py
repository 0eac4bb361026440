"""How the door is tracked: the laws by name, and their runs off a reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from hybridctl.experiments.rrr_door.reference import OPEN

from hybridctl.base.checks import Array
from hybridctl.control.baselines import ImpactInvariantTracking, NearestTracking
from hybridctl.control.detection import DetectedPolicy, Detection
from hybridctl.control.gains import GainSchedule
from hybridctl.control.reference import Reference
from hybridctl.control.spreading import ClockTracking, ReferenceSpreading
from hybridctl.control.tracking_error import TrackingError
from hybridctl.hybrid.policy import Policy
from hybridctl.hybrid.simulate import simulate
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import HybridTrajectory


@dataclass(frozen=True)
class DoorRuns:
    """The reference and the two tracked runs, with their errors."""

    plant: HybridSystem
    reference: Reference
    tracking: HybridTrajectory
    conventional: HybridTrajectory
    spread_error: TrackingError
    clock_error: TrackingError
    conventional_error: TrackingError


def law(
    name: str,
    plant: HybridSystem,
    reference: Reference,
    gains: GainSchedule,
    window: float | tuple[float, float] = 0.0,
    *,
    delay: float = 0.0,
    metric: Array | None = None,
    blend: float = 0.0,
    velocities: Sequence[int] | None = None,
) -> Policy:
    """The tracking law of this name.

    Names are "conventional", "nearest arc", "impact-invariant" and "spreading". window: of those
    that do not count events, s. delay: with which spreading detects them, s. metric: of the nearest
    arc. blend, velocities: of impact-invariant tracking.
    """
    if name == "conventional":
        return ClockTracking(reference, gains)
    if name == "nearest arc":
        return NearestTracking(reference, gains, window=window, metric=metric)
    if name == "impact-invariant":
        return ImpactInvariantTracking(
            plant, reference, gains, window=window, blend=blend, velocities=velocities
        )
    spreading = ReferenceSpreading(reference, gains)
    return DetectedPolicy(spreading, Detection(delay)) if delay > 0.0 else spreading


def run_beside(
    system: HybridSystem,
    reference: Reference,
    policy: Policy,
    deviation: Array,
    tolerances: tuple[float, float],
    method: str = "DOP853",
    progress: Callable[[float], None] | None = None,
    *,
    end: float | None = None,
    max_events: int = 1000,
) -> HybridTrajectory:
    """The run of a policy from a start that is off the reference by a deviation (8,).

    end: in s, by default that of the reference.
    """
    start, span = reference.nominal(0.0) + deviation, (0.0, end or reference.nominal.end)
    rtol, atol = tolerances
    return simulate(
        system, OPEN, start, span, policy, method=method, rtol=rtol, atol=atol,
        max_events=max_events, on_zeno="rest", progress=progress,
    )  # fmt: skip


def joint_gains(springs: Array, dampers: Array) -> Array:
    """The gain K (3, 8): torques of the arm from errors of its joints, springs and dampers (3,)."""
    idle = np.zeros((3, 1))
    return np.hstack([np.diag(springs), idle, np.diag(dampers), idle])
