"""Faults of the forces of feet: stuck, drifting, negative, or in another unit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.constants import g as STANDARD_GRAVITY

from hybridctl.base.checks import Array
from hybridctl.base.time_series import Series
from hybridctl.legged.wiring_fault import FORCES, WiringFault

NEGATIVE_CAUSE = "have the wrong sign"
"""Cause of a fault of forces that point down."""
_FORCE_UNITS = {
    "kgf (factor 9.81)": 1.0 / STANDARD_GRAVITY,
    "lbf (factor 4.45)": 1.0 / 4.448,
    "g (factor 9.81e-3)": 1e3 / STANDARD_GRAVITY,
    "mN (factor 1e-3)": 1e3,
    "kN (factor 1e3)": 1e-3,
}
"""Mean sum of the forces relative to the weight in N, in each unit, with the factor to N."""
_FORCE_UNIT_ERROR = 0.35
"""Relative deviation of the mean force from a unit's ratio at which it still counts as that. A
recorded humanoid bears 1.2 times the weight of its description, a payload adds as much. Other
ratios are not named: feet of cheap sensors read up to 7 times the weight, and only contact
counts."""
_DRIFT_RATIO = 0.3
"""Change of a force in flight over a log, relative to its range within a step, above which it
drifts. The value is a choice."""
_STEP_WINDOW = 1.0
"""Time in s that holds at least one step of a walking robot; of slow humanoids, 2 s a step, every
second window holds none and is left out."""
_STUCK_RATIO = 1e-6
"""Range of a force, relative to its size or to the weight, up to which it never changes."""
_FEWEST_WINDOWS = 4
"""Windows with steps from which on a drift is computed. The value is a choice."""
_FEWEST_ROWS = 5
"""Rows of a window from which on its percentiles are used. The value is a choice."""


def check_forces(
    loads: Mapping[str, Series], weight: float, *, all_feet: bool
) -> tuple[list[WiringFault], set[str]]:
    """Return faults of foot forces, and the feet whose forces cannot be used.

    Args:
        loads: Vertical forces (n, 1) of feet, without missing values.
        weight: Weight of the robot, N.
        all_feet: Whether these are all feet, which bear the weight together.

    Returns:
        The faults, and the frames of feet whose forces are stuck or drift.
    """
    values = {foot: load.values[:, 0] for foot, load in loads.items() if len(load)}
    faults, useless = list[WiringFault](), set[str]()
    ranges = {foot: float(np.ptp(v)) for foot, v in values.items()}
    largest = max(ranges.values(), default=0.0)
    for foot, force in values.items():
        size = max(float(np.abs(force).max()), weight)
        if ranges[foot] <= _STUCK_RATIO * size:
            useless.add(foot)
            if largest <= _STUCK_RATIO * size:
                continue  # no force changes: the robot may stand still
            faults.append(
                WiringFault(
                    f"force of {foot!r}",
                    "never changes",
                    "check its channel; without `force`, or with none of all, motion decides",
                    f"it is {force[0]:.4g} N at all {len(force)} rows",
                )
            )
            continue
        drift, span = _measure_drift(loads[foot])
        if drift > _DRIFT_RATIO * span:
            useless.add(foot)
            faults.append(
                WiringFault(
                    f"force of {foot!r}",
                    "drifts",
                    "take off its value in flight, step by step, before filtering",
                    f"in flight it changes by {drift:.3g} N, in a step by {span:.3g} N",
                )
            )
    unit = _check_weight(values, weight) if all_feet and not useless else None
    return faults + ([] if unit is None else [unit]), useless


def _measure_drift(load: Series) -> tuple[float, float]:
    """Return the change of a force in flight over a log, and its range in a step.

    Only windows in which the foot steps are used: there the force falls to its lowest.

    Args:
        load: Vertical force (n, 1) of a foot, N.

    Returns:
        Change and range in N; zero and infinity with too few windows.
    """
    begin, force = load.times[0], load.values[:, 0]
    number = ((load.times - begin) / _STEP_WINDOW).astype(int)
    ends = np.flatnonzero(np.diff(number)) + 1
    parts = [part for part in np.split(force, ends) if len(part) >= _FEWEST_ROWS]
    lows = np.array([np.percentile(part, 5.0) for part in parts])
    spans = np.array([np.percentile(part, 95.0) for part in parts]) - lows
    # Where the foot does not lift or does not touch, the range is smaller than half of the largest.
    steps = spans > 0.5 * spans.max() if len(spans) else np.zeros(0, bool)
    if steps.sum() < _FEWEST_WINDOWS:
        return 0.0, np.inf
    lows, span = lows[steps], float(np.median(spans[steps]))
    places = np.linspace(0.0, 1.0, len(lows))
    slope = float(np.polyfit(places, lows, 1)[0])
    return abs(slope), span


def _check_weight(values: Mapping[str, Array], weight: float) -> WiringFault | None:
    """Return the fault of forces whose mean sum is the weight in another unit; None without one.

    Over a walk the mean vertical force is the weight, because the body does not fly away.

    Args:
        values: Forces (n,) of all feet.
        weight: Weight of the robot, N.
    """
    # Switches, which have two values, are no forces.
    if any(len(np.unique(force)) <= 2 for force in values.values()):
        return None
    ratio = sum(float(force.mean()) for force in values.values()) / weight
    found = f"their mean sum is {ratio * weight:.3g} N, the weight {weight:.3g} N"
    if ratio < -_FORCE_UNIT_ERROR:
        return WiringFault(FORCES, NEGATIVE_CAUSE, "negate them", found)
    for unit, share in _FORCE_UNITS.items():
        if abs(ratio / share - 1.0) < _FORCE_UNIT_ERROR:
            return WiringFault(
                FORCES,
                f"look like {unit}",
                "multiply them by that factor, or name the unit in the mapping",
                f"{found}, then {ratio / share * weight:.3g} N",
            )
    return None
