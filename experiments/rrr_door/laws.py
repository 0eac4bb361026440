"""One tracking law of each name follows the same reference of the door, with the same gains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from hybridctl.experiments.rrr_door.reference import OPEN

from hybridctl import (
    GainSchedule,
    HybridSystem,
    HybridTrajectory,
    Reference,
    ReferenceSpreading,
    simulate,
)
from hybridctl.base.checks import Array
from hybridctl.control import (
    ClockTracking,
    DetectedPolicy,
    Detection,
    ImpactInvariantTracking,
    NearestTracking,
)
from hybridctl.control.tracking_error import TrackingError
from hybridctl.hybrid import Policy


@dataclass(frozen=True)
class DoorRuns:
    """The reference and two runs beside it, with their errors.

    Attributes:
        plant: System that was simulated.
        reference: Reference that is tracked.
        tracking: Run under reference spreading.
        conventional: Run under tracking on the clock.
        spread_error: Error of `tracking` against the arc of its event count, which it feeds back.
        clock_error: Error of `tracking` on the clock.
        conventional_error: Error of `conventional` on the clock, which it feeds back.
    """

    plant: HybridSystem
    reference: Reference
    tracking: HybridTrajectory
    conventional: HybridTrajectory
    spread_error: TrackingError
    clock_error: TrackingError
    conventional_error: TrackingError


def make_law(
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
    """Return the tracking law of a name.

    Args:
        name: "conventional", "nearest arc", "impact-invariant" or "spreading".
        plant: System whose impacts the impact-invariant law projects by.
        reference: Reference that is tracked.
        gains: Feedback gains of its arcs.
        window: Time before and after the planned impact in which the laws that do not count
            events compare arcs or project errors, s; one number for both.
        delay: Time after an event at which spreading detects it, s.
        metric: Weights (8, 8) by which the nearest arc is found; None for all equal.
        blend: Time over which impact-invariant tracking begins and ends its projection, s.
        velocities: Indices of the velocities that impact-invariant tracking projects; None for all.

    Returns:
        The law. Its error is reference minus state.
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
    """Return the run of a policy from a start beside the reference.

    Args:
        system: Arm and door.
        reference: Reference that is tracked.
        policy: Law that tracks it.
        deviation: Start minus start of the reference (8,), rad and rad/s.
        tolerances: Relative and absolute tolerance of the integration.
        method: Method of the integration.
        progress: Called with the time that is reached, s.
        end: End of the run, s; None for the end of the reference.
        max_events: Number of events at which the run is given up.

    Returns:
        The run, which begins with both corners open.
    """
    start, span = reference.nominal(0.0) + deviation, (0.0, end or reference.nominal.end)
    rtol, atol = tolerances
    return simulate(
        system, OPEN, start, span, policy, method=method, rtol=rtol, atol=atol,
        max_events=max_events, on_zeno="rest", progress=progress,
    )  # fmt: skip


def make_joint_gain(springs: Array, dampers: Array) -> Array:
    """Return the gain K (3, 8) from state errors to torques of the arm.

    Args:
        springs: Position gains (3,), N m/rad.
        dampers: Velocity gains (3,), N m s/rad.
    """
    idle = np.zeros((3, 1))
    return np.hstack([np.diag(springs), idle, np.diag(dampers), idle])
