"""Changes of a log under which loaded feet stand better: each a wiring mistake and its remedy.

A `StanceTrial` is one way to read a log: where feet are, which of them stand, how the axes of the
gyroscope lie, how late it is. `list_axes`, `list_forces` and `JointTrials` change one of these at a
time; `find_better_trial` returns the change that makes the feet stand markedly better, if there is
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridctl.base.checks import Array
from hybridctl.base.time_series import Series
from hybridctl.legged.kinematics import LegKinematics
from hybridctl.legged.stance import (
    GRID,
    WINDOW,
    FootPaths,
    StanceRows,
    average_rates,
    compute_paths,
    measure_speed,
    stack_rows,
)
from hybridctl.legged.wiring_signals import (
    ANGLES,
    FORCES,
    GYROSCOPE,
    INERTIAL,
    describe_map,
    list_signed_permutations,
)

BETTER = 0.93
"""Ratio of residuals, after to before, below which a remedy counts. Of sound logs no other reading
had less than .99; with the axis negated about which a recorded trot turns least it is .87."""
SIGNIFICANT = 3.0
"""Standard errors, over blocks of time, by which residuals must fall. `BETTER` decides for long
logs, this one for a few steps."""
BLOCK, FEWEST_BLOCKS = 25, 6
"""Grid rows of a block, 0.25 s, about half a stride, and how many of them say something."""
SUSPICIOUS = 0.15
"""Residual, relative to the speed of feet, from which on legs and forces are exchanged and joints
negated, which takes time. Sound simulated logs have .02 to .04, a recorded humanoid .09, a recorded
trot .13."""
LATEST, LATE_STEP = 0.1, 5e-3
"""Range and step of delays that are tried, s: a trot of 0.4 s repeats itself after half of that."""
LATE_ERRORS = 4.0
"""Standard errors from which on a delay is named; they are up to 2 ms on logs of 7 to 25 s."""
LEAST_LATE = 6e-3
"""Delay from which on it is named, s. Sound logs show up to 3 ms, by ground that gives way."""
LEAST_FORCE_LATE, _FORCE_ROWS = 0.03, 12
"""Delay of forces from which on it is named, s, and grid steps that are tried. Sound logs show up
to 10 ms, by thresholds and ground that gives way."""
_SIMPLER = 1.03
"""A reading that is simpler is preferred while its residual is larger by no more than this."""
_DEGREES = 180.0 / np.pi


@dataclass(frozen=True, eq=False)
class StanceTrial:
    """One way to read a log, with what was changed.

    Attributes:
        paths: Paths of the feet by joint angles.
        standing: Whether each foot stands (n, k) by its force.
        axes: Matrix (3, 3) by which rates of the gyroscope are multiplied.
        late: Time in s by which stamps of the inertial sensor are too late.
        channel: Channel that was changed last, "" for the log as it is.
        cause: What is wrong with it, as the end of a sentence.
        remedy: What to change.
        rank: How unlikely the change is beforehand, 0 for none; the smaller is preferred.
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
    """How badly the feet of a trial stand.

    Attributes:
        speed: Root mean square speed of loaded feet against each other, m/s.
        share: The same, relative to the speed of all feet.
        blocks: Sums of squares (k,) of the relative speed, over blocks of time.
    """

    speed: float
    share: float
    blocks: Array


class StanceTrials:
    """Computes residuals of trials of one log.

    Rows, speeds and rates of the last trial are kept, because most trials change one of them.

    Args:
        inertial: Inertial samples, in order, without missing values.
    """

    def __init__(self, inertial: Series) -> None:
        self._inertial = inertial
        self._rows: tuple[FootPaths, NDArray[np.bool_], bool, StanceRows, float] | None = None
        self._rates: dict[float, Array] = {}

    def residual(self, trial: StanceTrial, *, whole: bool = False) -> Residual | None:
        """Return the residual of a trial; None where too few feet stand to say anything.

        A constant bias of the gyroscope is taken off, by least squares.

        Args:
            trial: The trial.
            whole: Whether contacts count from their first row to their last.
        """
        if len(trial.paths.times) <= WINDOW:
            return None
        rows, speed = self._stack(trial, whole)
        count = len(trial.paths.times) // BLOCK + 1
        blocks = rows.begin // BLOCK
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

    def _stack(self, trial: StanceTrial, whole: bool) -> tuple[StanceRows, float]:
        """Return the rows and the speed of feet of a trial, and keep them."""
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
    """Return whether a residual is smaller by more than `BETTER`, and significantly so.

    It has to fall both in m/s and relative to the speed of feet: angles that make feet faster, or
    slower, are no better for that. Significant is the mean gain of blocks of time or their mean
    relative gain, which lies between -1 and 1: blocks differ in how much the robot turns.

    Args:
        before: Residual that is compared with.
        after: Residual that may be better.
    """
    if not max(after.share / before.share, after.speed / before.speed) < BETTER:
        return False
    known = (before.blocks > 0.0) & (after.blocks > 0.0)
    one, other = np.sqrt(before.blocks[known]), np.sqrt(after.blocks[known])
    gains = one - other, (one - other) / (one + other)
    return len(one) >= FEWEST_BLOCKS and max(map(_score_mean, gains)) > SIGNIFICANT


def _score_mean(values: Array) -> float:
    """Return the mean of independent values (n,) in units of its standard error."""
    error = float(values.std(ddof=1)) / np.sqrt(len(values))
    least = max(1e-12 * float(np.abs(values).max()), 1e-300)  # of values that are all the same
    return float(values.mean() / max(error, least))


def find_better_trial(
    trials: StanceTrials, now: StanceTrial, changes: Iterable[StanceTrial]
) -> tuple[StanceTrial, Residual] | None:
    """Return the trial with the smallest residual if it is better than the present one.

    Among those that are about as good the simplest is returned.

    Args:
        trials: Residuals of the log.
        now: The present reading.
        changes: Other readings.
    """
    before = trials.residual(now)
    if before is None:
        return None
    found = list[tuple[StanceTrial, Residual]]()
    for trial in changes:
        after = trials.residual(trial)
        if after is not None and is_better(before, after):
            found.append((trial, after))
    if not found:
        return None
    best = min(after.share for _, after in found)
    near = [pair for pair in found if pair[1].share <= _SIMPLER * best]
    return min(near, key=lambda pair: (pair[0].rank, pair[1].share))


def list_axes(now: StanceTrial) -> Iterator[StanceTrial]:
    """Yield trials with other units, signs and axes of the gyroscope."""
    for factor, unit in ((1.0, ""), (1.0 / _DEGREES, "deg/s"), (_DEGREES, "rad/s")):
        for turn in list_signed_permutations():
            if factor == 1.0 and np.array_equal(turn, np.eye(3)):
                continue
            cause, remedy, rank = _describe_axes(turn, factor, unit)
            yield replace(
                now,
                axes=factor * turn @ now.axes,
                channel=GYROSCOPE,
                cause=cause,
                remedy=remedy,
                rank=rank,
            )


def _describe_axes(turn: Array, factor: float, unit: str) -> tuple[str, str, int]:
    """Return cause, remedy and rank of rates that are multiplied by a matrix and a factor."""
    axes = describe_map(turn)
    rank = 1
    if np.array_equal(turn, -np.eye(3)):
        cause, remedy = "has the wrong sign", "negate it"
    elif np.linalg.det(turn) > 0.0:
        cause, remedy = f"has turned axes, {axes}", f"map {axes}"
        rank = 2
    elif np.array_equal(np.abs(turn), np.eye(3)):
        cause, remedy = "has an axis of the wrong sign", f"map {axes}"
        rank = 3
    else:
        cause, remedy = "has axes in another order", f"map {axes}"
        rank = 3
    if factor == 1.0:
        return cause, remedy, rank
    looks = f"looks like {'deg/s' if factor < 1.0 else 'rad/s that were converted from deg/s'}"
    scaled = f"multiply it by {factor:.4g}, by unit {unit} in the mapping"
    if np.array_equal(turn, np.eye(3)):
        return looks, scaled, 1
    return f"{looks} and {cause}", f"{scaled}, and {remedy}", 4 + rank


def find_delay(trials: StanceTrials, now: StanceTrial) -> tuple[StanceTrial, Residual] | None:
    """Return the trial with the delay of the inertial sensor, if it is late or early.

    The delay minimises the squared residual. Its standard error is that of the jackknife: how the
    minimum moves when blocks of time are left out, one by one.

    Args:
        trials: The trials that can be made with the log.
        now: Trial with what has been remedied so far.
    """
    before = trials.residual(now)
    if before is None:
        return None
    delays = now.late + np.arange(-LATEST, LATEST + 0.5 * LATE_STEP, LATE_STEP)
    found = [trials.residual(replace(now, late=late)) for late in delays.tolist()]
    costs = np.array([before.blocks if r is None else r.blocks for r in found])
    total = costs.sum(axis=1)
    late = _find_minimum(delays, total)
    used = np.flatnonzero(before.blocks > 0.0)
    without = np.array([_find_minimum(delays, total - costs[:, b]) for b in used])
    n = len(used)
    error = float(np.sqrt((n - 1) / n * np.square(without - without.mean()).sum()))
    off = late - now.late
    edge = abs(off) > LATEST - LATE_STEP  # no minimum: what is wrong is no delay
    if edge or not abs(off) > max(LEAST_LATE, LATE_ERRORS * error):
        return None
    side, sign = ("late", "take off") if off > 0.0 else ("early", "add")
    took = f"{1e3 * abs(off):.0f} ms"
    changed = replace(
        now,
        late=late,
        channel=INERTIAL,
        cause=f"is {took} {side} against the joint angles, +-{max(1e3 * error, 1.0):.0f} ms",
        remedy=f"{sign} {took} at the stamps of gyroscope and accelerometer",
        rank=1,
    )
    after = trials.residual(changed)
    return None if after is None else (changed, after)


def _find_minimum(places: Array, costs: Array) -> float:
    """Return the minimum of costs (n,) at even places (n,), of the parabola through the lowest."""
    k = int(np.clip(np.argmin(costs), 1, len(costs) - 2))
    low, least, high = costs[k - 1 : k + 2]
    bend = low - 2.0 * least + high
    shift = 0.5 * (low - high) / bend if bend > 0.0 else 0.0
    return float(places[k] + np.clip(shift, -1.0, 1.0) * (places[1] - places[0]))


def list_forces(now: StanceTrial, feet: Sequence[str]) -> Iterator[StanceTrial]:
    """Yield trials with the forces of feet exchanged, and later or earlier."""
    count = len(feet)
    for order in permutations(range(count)) if count <= 4 else ():
        if order == tuple(range(count)):
            continue
        moved = [f"{feet[i]!r}: that of {feet[j]!r}" for i, j in enumerate(order) if i != j]
        yield replace(
            now,
            standing=now.standing[:, list(order)],
            channel=FORCES,
            cause="are exchanged between feet",
            remedy=f"take for {', '.join(moved)}",
            rank=len(moved),
        )


def find_force_delay(trials: StanceTrials, now: StanceTrial) -> tuple[StanceTrial, Residual] | None:
    """Return the trial with the delay of the forces, if they are late or early.

    Contacts count whole here: with their first and last rows left out, delays up to those would
    change nothing.

    Args:
        trials: The trials that can be made with the log.
        now: Trial with what has been remedied so far.
    """
    before = trials.residual(now, whole=True)
    if before is None:
        return None
    found, best = None, before
    for rows in range(-_FORCE_ROWS, _FORCE_ROWS + 1):
        standing = np.roll(now.standing, -rows, axis=0)
        if rows > 0:
            standing[-rows:] = now.standing[-1]
        elif rows < 0:
            standing[:-rows] = now.standing[0]
        trial = replace(now, standing=standing)
        after = trials.residual(trial, whole=True)
        if after is not None and after.share < best.share:
            found, best = (rows, trial), after
    if found is None or abs(found[0]) * GRID < LEAST_FORCE_LATE:
        return None
    if not is_better(before, best):
        return None
    off = 1e3 * abs(found[0]) * GRID
    side, sign = ("late", "take off") if found[0] > 0 else ("early", "add")
    changed = replace(
        found[1],
        channel=FORCES,
        cause=f"are some {off:.0f} ms {side} against the joint angles",
        remedy=f"{sign} {off:.0f} ms at the stamps of the forces",
        rank=3,
    )
    return changed, best


class JointTrials:
    """Yields trials with joint angles in another order, of other legs, or of another sign.

    Args:
        kinematics: Kinematics of the legs.
        times: The grid (n,), s.
        angles: Joint angles (n, m) at these times, rad.
    """

    def __init__(self, kinematics: LegKinematics, times: Array, angles: Array) -> None:
        self._kinematics, self._times, self._angles = kinematics, times, angles
        self.names, self.feet = kinematics.joints, tuple(kinematics.feet)
        self.legs = find_legs(kinematics)
        self._kept: dict[str, FootPaths] = {}

    def list_legs_and_signs(self, now: StanceTrial) -> Iterator[StanceTrial]:
        """Yield trials with legs exchanged and joints negated, with kinematics on demand."""
        sizes = {len(leg) for leg in self.legs}
        shared = sum(map(len, self.legs)) == self._angles.shape[1]
        if len(sizes) == 1 and shared and 2 <= len(self.legs) <= 4:
            yield from self._list_legs(now)
        yield from self._list_signs(now)

    def _compute_paths(self, name: str, angles: Array) -> FootPaths:
        """Return the paths of changed angles (n, m), and keep them by the name of the change."""
        if name not in self._kept:
            self._kept[name] = compute_paths(self._kinematics, self._times, angles)
        return self._kept[name]

    def list_orders(self, now: StanceTrial) -> Iterator[StanceTrial]:
        """Yield trials with columns in another order."""
        names = self._kinematics.joints
        orders = {"alphabetical order": sorted(range(len(names)), key=lambda j: names[j])}
        if len({len(leg) for leg in self.legs}) == 1:
            by_kind = [j for group in zip(*self.legs, strict=True) for j in group]
            if sorted(by_kind) == list(range(len(names))):
                orders["order of kinds, all first joints of legs first"] = by_kind
                orders["order from foot to hip"] = [j for leg in self.legs for j in leg[::-1]]
        for name, order in orders.items():
            if order == list(range(len(names))):
                continue
            angles = np.empty_like(self._angles)
            angles[:, order] = self._angles
            yield replace(
                now,
                paths=self._compute_paths(name, angles),
                channel=ANGLES,
                cause=f"look like columns in {name}",
                remedy=f"name the columns {_shorten([names[j] for j in order])}",
                rank=2,
            )

    def _list_legs(self, now: StanceTrial) -> Iterator[StanceTrial]:
        count, feet = len(self.legs), list(self._kinematics.feet)
        turned = [now.paths]
        for shift in range(1, count):
            angles = np.empty_like(self._angles)
            for i, leg in enumerate(self.legs):
                angles[:, leg] = self._angles[:, self.legs[(i + shift) % count]]
            turned.append(self._compute_paths(f"legs {shift} further", angles))
        for order in permutations(range(count)):
            if order == tuple(range(count)):
                continue
            paths = now.paths
            for shift in range(1, count):
                mask = np.array([(j - i) % count == shift for i, j in enumerate(order)])
                paths = paths.replace_feet(mask, turned[shift])
            moved = [f"{feet[i]!r}: those of {feet[j]!r}" for i, j in enumerate(order) if i != j]
            yield replace(
                now,
                paths=paths,
                channel=ANGLES,
                cause="are exchanged between legs",
                remedy=f"take for {', '.join(moved)}",
                rank=len(moved),
            )

    def _list_signs(self, now: StanceTrial) -> Iterator[StanceTrial]:
        names = self._kinematics.joints
        yield replace(
            now,
            paths=self._compute_paths("all negated", -self._angles),
            channel=ANGLES,
            cause="have the wrong sign",
            remedy="negate them",
            rank=1,
        )
        for place in range(max(map(len, self.legs))):
            angles = self._angles.copy()
            turned = sorted({leg[place] for leg in self.legs if place < len(leg)})
            angles[:, turned] *= -1.0
            paths = self._compute_paths(f"joints {place} negated", angles)
            for i, leg in enumerate(self.legs):
                if place < len(leg):
                    mask = np.arange(len(self.legs)) == i
                    yield replace(
                        now,
                        paths=now.paths.replace_feet(mask, paths),
                        channel=ANGLES,
                        cause=f"have the wrong sign at {names[leg[place]]!r}",
                        remedy=f"negate {names[leg[place]]!r}",
                        rank=3,
                    )
            yield replace(
                now,
                paths=paths,
                channel=ANGLES,
                cause=f"have the wrong sign at {_shorten([names[j] for j in turned])}",
                remedy="negate these",
                rank=3,
            )


def find_legs(kinematics: LegKinematics) -> list[list[int]]:
    """Return the numbers of the joints that move each foot, from the base on."""
    angles = np.full(len(kinematics.joints), 0.1)  # at zero a joint may be singular
    feet = kinematics(angles, list(kinematics.feet))
    return [np.flatnonzero(foot.twist.any(axis=0)).tolist() for foot in feet]


def _shorten(names: Sequence[str]) -> str:
    """Return names in brackets, six of them at most."""
    more = ", ..." if len(names) > 6 else ""
    return f"[{', '.join(names[:6])}{more}]"
