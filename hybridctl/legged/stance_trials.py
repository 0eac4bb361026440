"""Trials of a log: how well loaded feet stand if one of its channels is read in another way.

A `StanceTrial` is one way to read a log: the paths of the feet, which of them stand, the axes of
the gyroscope, and its delay. `find_better_trial` compares trials by the residual of `stance`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridctl.base.checks import Array
from hybridctl.base.time_series import Series
from hybridctl.legged.stance import (
    WINDOW,
    FootPaths,
    StanceRows,
    average_rates,
    measure_speed,
    stack_rows,
)

BETTER_RATIO = 0.93
"""Ratio of residuals, after to before, below which a remedy counts. Of sound logs no other reading
had less than .99; with the axis negated about which a recorded trot turns least it is .87."""
SIGNIFICANT_ERRORS = 3.0
"""Standard errors, over blocks of time, by which residuals must fall. `BETTER_RATIO` decides for
long logs, this one for a few steps."""
HALF_STRIDE_ROWS = 25
"""Grid rows of a block, 0.25 s, about half a stride."""
FEWEST_BLOCKS = 6
"""Blocks with standing feet from which on a residual is computed. The value is a choice."""
_SIMPLER_RATIO = 1.03
"""Residual, relative to the least one, up to which a simpler reading is preferred. A choice."""


@dataclass(frozen=True, eq=False)
class StanceTrial:
    """One way to read a log, with the last change to it.

    Attributes:
        paths: Paths of the feet by joint angles.
        standing: Whether each foot stands (n, k) by its force.
        axes: Matrix (3, 3) by which rates of the gyroscope are multiplied.
        late: Time in s by which stamps of the inertial sensor are too late, to be subtracted.
        channel: Channel that was changed last; empty for the log as it is.
        cause: What is wrong with the channel, as the end of a sentence.
        remedy: What to change.
        rank: Complexity of the change, 0 for none; of trials that are as good, the simplest is
            preferred.
    """

    paths: FootPaths
    standing: NDArray[np.bool_]
    axes: Array
    late: float = 0.0
    channel: str = ""
    cause: str = ""
    remedy: str = ""
    rank: int = 0


class Residual(NamedTuple):
    """Motion of the loaded feet of a trial, which is zero for feet that stand.

    Attributes:
        speed: Root mean square speed of loaded feet against each other, m/s.
        share: The same, relative to the speed of all feet.
        blocks: Squared relative speed (k,) of each block of time, divided by the number of all
            rows: the sum is the square of `share`.
    """

    speed: float
    share: float
    blocks: Array


class StanceTrials:
    """Computes residuals of trials of one log.

    Rows and speeds of the last trial are kept, and rates for each delay, because most trials change
    one of them.

    Args:
        inertial: Inertial samples, in order, without missing values.
    """

    def __init__(self, inertial: Series) -> None:
        self._inertial = inertial
        self._rows: tuple[FootPaths, NDArray[np.bool_], bool, StanceRows, float] | None = None
        self._rates: dict[float, Array] = {}

    def compute_residual(self, trial: StanceTrial, *, whole: bool = False) -> Residual | None:
        """Return the residual of a trial.

        A constant bias of the gyroscope is subtracted, by least squares.

        Args:
            trial: The trial.
            whole: Whether contacts count from their first row to their last.

        Returns:
            The residual; None where feet stand in too few blocks of time, or never move.
        """
        if len(trial.paths.times) <= WINDOW:
            return None
        rows, speed = self._stack_rows(trial, whole)
        count = len(trial.paths.times) // HALF_STRIDE_ROWS + 1
        blocks = rows.begin // HALF_STRIDE_ROWS
        if len(np.unique(blocks)) < FEWEST_BLOCKS or not speed > 0.0:
            return None
        if trial.late not in self._rates:
            self._rates[trial.late] = average_rates(self._inertial, trial.paths.times, trial.late)
        r = rows.residuals(self._rates[trial.late] @ trial.axes.T)
        by_bias = np.einsum("nij,nik->jk", rows.A, rows.A)
        gradient = np.einsum("nij,ni->j", rows.A, r)
        bias = -np.linalg.lstsq(by_bias, gradient, rcond=1e-6)[0]
        squares = ((r + rows.A @ bias) ** 2).sum(axis=1)
        sums = np.bincount(blocks, squares, count) / speed**2
        rms = float(np.sqrt(squares.mean()))
        return Residual(rms, rms / speed, sums / len(squares))

    def _stack_rows(self, trial: StanceTrial, whole: bool) -> tuple[StanceRows, float]:
        """Return the rows and the speed of feet of a trial, and keep them for the next call.

        Args:
            trial: The trial.
            whole: Whether contacts count from their first row to their last.
        """
        kept = self._rows
        if (
            kept is None
            or kept[0] is not trial.paths
            or kept[1] is not trial.standing
            or kept[2] != whole
        ):
            rows = stack_rows(trial.paths, trial.standing, whole=whole)
            kept = (trial.paths, trial.standing, whole, rows, measure_speed(trial.paths))
            self._rows = kept
        return kept[3], kept[4]


def is_better(before: Residual, after: Residual) -> bool:
    """Return whether a residual is smaller by more than `BETTER_RATIO`, and significantly so.

    It has to fall both in m/s and relative to the speed of feet, because wrong angles can make feet
    faster or slower. The mean gain of blocks of time must be significant, or their mean relative
    gain, which lies between -1 and 1: blocks differ in how much the robot turns.

    Args:
        before: Residual of the present reading.
        after: Residual of a trial.
    """
    if not max(after.share / before.share, after.speed / before.speed) < BETTER_RATIO:
        return False
    known = (before.blocks > 0.0) & (after.blocks > 0.0)
    one, other = np.sqrt(before.blocks[known]), np.sqrt(after.blocks[known])
    gains = one - other, (one - other) / (one + other)
    return len(one) >= FEWEST_BLOCKS and max(map(_score_mean, gains)) > SIGNIFICANT_ERRORS


def _score_mean(values: Array) -> float:
    """Return the mean of independent values (n,) in units of its standard error."""
    error = float(values.std(ddof=1)) / np.sqrt(len(values))
    least = max(
        1e-12 * float(np.abs(values).max()), 1e-300
    )  # values that are all the same have no error
    return float(values.mean() / max(error, least))


def find_better_trial(
    trials: StanceTrials, present: StanceTrial, changes: Iterable[StanceTrial]
) -> tuple[StanceTrial, Residual] | None:
    """Return the trial with the smallest residual, if it is better than the present reading.

    Among trials that are about as good, the simplest is returned.

    Args:
        trials: Residuals of the log.
        present: The present reading.
        changes: Other readings.

    Returns:
        Trial and residual; None if no trial is better, or too few feet stand.
    """
    before = trials.compute_residual(present)
    if before is None:
        return None
    found = list[tuple[StanceTrial, Residual]]()
    for trial in changes:
        after = trials.compute_residual(trial)
        if after is not None and is_better(before, after):
            found.append((trial, after))
    if not found:
        return None
    best = min(after.share for _, after in found)
    near = [pair for pair in found if pair[1].share <= _SIMPLER_RATIO * best]
    return min(near, key=lambda pair: (pair[0].rank, pair[1].share))
