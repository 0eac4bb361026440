"""Delays of the inertial sensor or of the forces against the joint angles, by standing feet."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hybridctl.legged.stance import GRID, find_parabola_minimum
from hybridctl.legged.stance_trials import Residual, StanceTrial, StanceTrials, is_better
from hybridctl.legged.wiring_fault import FORCES, INERTIAL

LARGEST_DELAY, DELAY_STEP = 0.1, 5e-3
"""Range and step of delays that are tried, s: a trot of 0.4 s repeats itself after half of that."""
DELAY_ERRORS = 4.0
"""Standard errors from which on a delay is named; they are up to 2 ms on logs of 7 to 25 s."""
LEAST_DELAY = 6e-3
"""Delay from which on it is named, s. Sound logs show up to 3 ms, by ground that gives way."""
LEAST_FORCE_DELAY = 0.03
"""Delay of forces from which on it is named, s. Sound logs show up to 10 ms, by thresholds and
ground that gives way."""
_FORCE_ROWS = 12
"""Grid steps up to which delays of forces are tried, 0.12 s. The value is a choice."""


def find_inertial_delay(
    trials: StanceTrials, present: StanceTrial
) -> tuple[StanceTrial, Residual] | None:
    """Return the trial with the delay of the inertial sensor, if it is late or early.

    The delay minimises the squared residual. Its standard error is that of the jackknife: how the
    minimum moves when blocks of time are left out, one by one.

    Args:
        trials: Residuals of the log.
        present: The present reading.

    Returns:
        Trial and residual; None without a significant delay, or where too few feet stand.
    """
    before = trials.compute_residual(present)
    if before is None:
        return None
    delays = present.late + np.arange(-LARGEST_DELAY, LARGEST_DELAY + 0.5 * DELAY_STEP, DELAY_STEP)
    found = [trials.compute_residual(replace(present, late=late)) for late in delays.tolist()]
    # A delay that leaves too few rows is taken to be no better than the present one.
    costs = np.array([before.blocks if r is None else r.blocks for r in found])
    total = costs.sum(axis=1)
    step = float(delays[1] - delays[0])
    late = find_parabola_minimum(delays, total, step)
    used = np.flatnonzero(before.blocks > 0.0)
    without = np.array([find_parabola_minimum(delays, total - costs[:, b], step) for b in used])
    n = len(used)
    error = float(np.sqrt((n - 1) / n * np.square(without - without.mean()).sum()))
    delay = late - present.late
    # At the edge of the range there is no minimum: another fault than a delay.
    is_at_edge = abs(delay) > LARGEST_DELAY - DELAY_STEP
    if is_at_edge or not abs(delay) > max(LEAST_DELAY, DELAY_ERRORS * error):
        return None
    side, sign = ("late", "take off") if delay > 0.0 else ("early", "add")
    length = f"{1e3 * abs(delay):.0f} ms"
    changed = replace(
        present,
        late=late,
        channel=INERTIAL,
        cause=f"is {length} {side} against the joint angles, +-{max(1e3 * error, 1.0):.0f} ms",
        remedy=f"{sign} {length} at the stamps of gyroscope and accelerometer",
        rank=1,
    )
    after = trials.compute_residual(changed)
    return None if after is None else (changed, after)


def find_force_delay(
    trials: StanceTrials, present: StanceTrial
) -> tuple[StanceTrial, Residual] | None:
    """Return the trial with the delay of the forces, if they are late or early.

    Contacts count whole here: with their first and last rows left out, delays up to those would
    change nothing.

    Args:
        trials: Residuals of the log.
        present: The present reading.

    Returns:
        Trial and residual; None without a delay that makes feet stand better.
    """
    before = trials.compute_residual(present, whole=True)
    if before is None:
        return None
    found, best = None, before
    for rows in range(-_FORCE_ROWS, _FORCE_ROWS + 1):
        # Beyond the log the first and last contacts last.
        standing = np.roll(present.standing, -rows, axis=0)
        if rows > 0:
            standing[-rows:] = present.standing[-1]
        elif rows < 0:
            standing[:-rows] = present.standing[0]
        trial = replace(present, standing=standing)
        after = trials.compute_residual(trial, whole=True)
        if after is not None and after.share < best.share:
            found, best = (rows, trial), after
    if found is None or abs(found[0]) * GRID < LEAST_FORCE_DELAY:
        return None
    if not is_better(before, best):
        return None
    delay_ms = 1e3 * abs(found[0]) * GRID
    side, sign = ("late", "take off") if found[0] > 0 else ("early", "add")
    changed = replace(
        found[1],
        channel=FORCES,
        cause=f"are some {delay_ms:.0f} ms {side} against the joint angles",
        remedy=f"{sign} {delay_ms:.0f} ms at the stamps of the forces",
        rank=3,
    )
    return changed, best
