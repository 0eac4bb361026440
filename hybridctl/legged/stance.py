r"""Residual of standing feet: how well gyroscope and joint angles agree that loaded feet stand.

Points that stand do not move against each other. With :math:`d = s_i - s_j` between two loaded
feet, seen from the inertial frame, and the rate :math:`\omega` of that frame,

.. math:: \dot d + \omega \times d = 0 .

A flat foot that stands does not turn: its angular velocity against the inertial frame, in the axes
of that, is :math:`-\omega`. It counts as a point at the mean distance l of the feet. Both are

.. math:: r = A \omega + b, \qquad (A, b) = (-[d]_\times, \dot d) \ \text{or} \ (l I, l \omega_f),

as means over a window of time. No other quantity of a log is needed, so that a mistake in one
channel shows as a large residual, and its remedy can be tried: the residual is then small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from hybridctl.base.checks import Array
from hybridctl.base.time_series import Series
from hybridctl.legged.kinematics import LegKinematics
from hybridctl.legged.readings import stretches

GRID = 0.01
"""Spacing of the times at which feet are computed, s: 40 in a step of a quick trot."""
WINDOW = 4
"""Grid steps of a window, over which means are taken: 40 ms. A change of position by encoder noise
of 1 mrad, some 0.5 mm, is then 15 mm/s; the rates of a body that trots, up to 5 Hz, are still
resolved."""
EARLY, LATE = 3, 2
"""Grid steps that are left out after a foot has come down (30 ms) and before it lifts off (20 ms):
there the ground gives way, and a force threshold is off by 10 to 20 ms."""
MOST_ROWS = 1_000
"""Times of the grid at most, 10 s, so that feet are computed in some 0.2 s."""
_GAP_PERIODS = 3.0
"""Time between two samples, in median periods, up to which values between them are interpolated."""
_GAP_TIME = 0.02
"""The same in s, for quick samples: half of the shortest window. The path of a foot in so short a
time is taken to be straight."""
_LOW, _HIGH = 0.25, 0.4
"""Thresholds of contact, as shares of the range of a foot's own force: a foot is loaded from 0.4 on
and unloaded down to 0.25, and stays as it was between them. A biped that stands on both feet has
half of the largest force on each, so that the middle of the range is no threshold. A choice."""
_RANGE = 2.0, 98.0
"""Percentiles of a force at which its range begins and ends: least and largest value would be those
of single samples that are wrong."""
_LEAST_RANGE = 0.5
"""Least range of the force of a foot that lifts, relative to the largest force. A choice."""


@dataclass(frozen=True, eq=False)
class FootPaths:
    """Positions and rotations of feet in the inertial frame, at times of an even grid.

    Attributes:
        times: Times (n,), s.
        positions: Positions (n, k, 3) of the k feet, m.
        rotations: Rotations (n, k, 3, 3) of the feet.
        flat: Whether each foot (k,) is flat.
    """

    times: Array
    positions: Array
    rotations: Array
    flat: NDArray[np.bool_]

    def replace_feet(self, feet: NDArray[np.bool_], other: FootPaths) -> FootPaths:
        """Return these paths with some feet from other paths at the same times.

        Args:
            feet: Whether each foot (k,) is replaced.
            other: Paths of the same feet.
        """
        mask = feet[None, :, None]
        return FootPaths(
            self.times,
            np.where(mask, other.positions, self.positions),
            np.where(mask[..., None], other.rotations, self.rotations),
            self.flat,
        )


def choose_times(angles: Series, begin: float, inertial: Series) -> Array:
    """Return the grid (n,) in s on which feet are computed: 10 s every 0.01 s, or less.

    Args:
        angles: Joint angles, in order.
        begin: Time from which on the robot walks, s.
        inertial: Inertial samples, in order; the grid lies where both have samples.
    """
    first = max(begin, angles.times[0], inertial.times[0])
    last = min(angles.times[-1], inertial.times[-1])
    return np.asarray(first + GRID * np.arange(min(max(int((last - first) / GRID), 0), MOST_ROWS)))


def compute_paths(kinematics: LegKinematics, times: Array, angles: Array) -> FootPaths:
    """Return the paths of all feet by joint angles.

    Args:
        kinematics: The feet.
        times: Times (n,), s.
        angles: Joint angles (n, m) at these times, rad.
    """
    names = list(kinematics.feet)
    found = [kinematics(row, names) for row in angles]
    return FootPaths(
        times,
        np.array([[foot.position for foot in feet] for feet in found]).reshape(-1, len(names), 3),
        np.array([[foot.rotation for foot in feet] for feet in found]).reshape(
            -1, len(names), 3, 3
        ),
        np.array([foot.flat for foot in kinematics.feet.values()]),
    )


def interpolate(series: Series, times: Array) -> Array:
    """Return the values (n, m) of a series without missing values, linear between its rows."""
    return np.column_stack([np.interp(times, series.times, c) for c in series.values.T])


def is_sampled(times: Array, first: Array, last: Array) -> NDArray[np.bool_]:
    """Return whether samples cover spans of time without a gap.

    A gap is longer than 20 ms and than three median periods. The times before the first sample and
    after the last one are gaps.

    Args:
        times: Times (n,) of the samples in s, in order.
        first: Begins (m,) of the spans, s.
        last: Ends (m,) of the spans, s.

    Returns:
        Whether each span (m,) is covered; its ends may lie on those of a gap.
    """
    steps = np.diff(times)
    usual = float(np.median(steps)) if len(steps) else 0.0
    late = np.flatnonzero(steps > max(_GAP_PERIODS * usual, _GAP_TIME))
    begins = np.concatenate([[-np.inf], times[late], times[-1:]])
    ends = np.concatenate([times[:1], times[late + 1], [np.inf]])
    # A span meets no gap if all gaps that begin before its end have ended by its beginning. As gaps
    # are in order, it is enough to compare their numbers.
    return np.asarray(ends.searchsorted(first, "right") == begins.searchsorted(last, "left"))


def find_contacts(force: Array) -> NDArray[np.bool_] | None:
    """Return whether a foot is loaded at each of its forces (n,), by the range of these.

    The thresholds are shares of the range, so the unit of the force does not matter. Where a force
    is NaN or between the thresholds, the contact stays as it was. Before the first force that
    decides, the foot is loaded if its force is above the lower threshold; NaN is not.

    Args:
        force: Forces (n,), in any unit.

    Returns:
        Whether the foot is loaded (n,). None if the range is at most half of the largest force: the
        foot never lifts, and the force says nothing about when it stands.
    """
    low, high = np.nanpercentile(force, _RANGE)
    if not high - low > _LEAST_RANGE * abs(high):
        return None
    share = (force - low) / (high - low)
    # 1 loaded, 0 unloaded, -1 undecided; then the last row that decided, for each row.
    said = np.where(share >= _HIGH, 1, np.where(share <= _LOW, 0, -1))
    rows = np.where(said >= 0, np.arange(len(said)), -1)
    last = np.maximum.accumulate(rows)
    return np.asarray(np.where(last >= 0, said[last] == 1, share > _LOW))


@dataclass(frozen=True, eq=False)
class StanceRows:
    """Rows r = A w + b of feet that stand, each a mean over a window of time.

    The residual r is the velocity in m/s, in the axes of the inertial frame, by which feet that are
    taken to stand move against each other; w is the rate of that frame in rad/s. It is zero if the
    feet stand and gyroscope and joint angles are right.

    Attributes:
        A: Matrices (n, 3, 3), m.
        b: Velocities (n, 3), m/s.
        begin: Index (n,) of the grid time at which the window begins.
        feet: Indices (n, 2) of the two feet of each row; the same twice for a flat foot alone.
    """

    A: Array
    b: Array
    begin: NDArray[np.intp]
    feet: NDArray[np.intp]

    def residuals(self, rate: Array) -> Array:
        """Return the residuals (n, 3) in m/s.

        Args:
            rate: Mean rate (m, 3) of the inertial frame over the window from each of the m grid
                times on, rad/s, see `average_rates`.
        """
        return np.asarray(np.einsum("nij,nj->ni", self.A, rate[self.begin]) + self.b)


def stack_rows(paths: FootPaths, standing: NDArray[np.bool_], *, whole: bool = False) -> StanceRows:
    """Return the rows of all pairs of feet, and of flat feet, that stand through a window.

    Args:
        paths: Paths of k feet at n times.
        standing: Whether each foot stands (n, k).
        whole: Whether the first and last rows of a contact count as well, see `EARLY`.
    """
    margins = (0, 0) if whole else (EARLY, LATE)
    settled = np.column_stack([_find_windows(column, *margins) for column in standing.T])
    p, c = paths.positions, paths.rotations
    span = WINDOW * GRID
    # A flat foot's row is an angular velocity: times the mean distance of feet, 1 m for a single
    # foot, it is a speed of the size of the other rows.
    spread = [np.linalg.norm(p[:, i] - p[:, j], axis=1).mean() for i, j in _pairs(p)]
    arm = float(np.mean(spread)) if spread else 1.0
    parts = []
    for i, j in _pairs(p):
        begin = np.flatnonzero(settled[:, i] & settled[:, j])
        d = p[:, i] - p[:, j]
        middle = _window_means(d)
        parts.append((-_skews(middle[begin]), (d[begin + WINDOW] - d[begin]) / span, begin, i, j))
    for i in np.flatnonzero(paths.flat).tolist():
        begin = np.flatnonzero(settled[:, i])
        if len(begin):
            turn = c[begin, i] @ np.swapaxes(c[begin + WINDOW, i], 1, 2)
            rate = -Rotation.from_matrix(turn).as_rotvec() / span
            parts.append((np.tile(arm * np.eye(3), (len(begin), 1, 1)), arm * rate, begin, i, i))
    return StanceRows(
        np.concatenate([a for a, *_ in parts]) if parts else np.zeros((0, 3, 3)),
        np.concatenate([b for _, b, *_ in parts]) if parts else np.zeros((0, 3)),
        np.concatenate([begin for *_, begin, _, _ in parts]) if parts else np.zeros(0, int),
        np.concatenate([np.tile([i, j], (len(begin), 1)) for *_, begin, i, j in parts])
        if parts
        else np.zeros((0, 2), int),
    )


def measure_speed(paths: FootPaths) -> float:
    """Return the root mean square speed in m/s of feet against each other, standing or not.

    Of a single foot it is that against the inertial frame. It is zero for paths shorter than a
    window.
    """
    p = paths.positions
    if len(p) <= WINDOW:
        return 0.0
    moved = [
        (p[WINDOW:, i] - p[WINDOW:, j]) - (p[:-WINDOW, i] - p[:-WINDOW, j]) for i, j in _pairs(p)
    ]
    if not moved:
        moved = [p[WINDOW:, 0] - p[:-WINDOW, 0]]
    return float(np.sqrt(np.mean([(m**2).sum(axis=1).mean() for m in moved])) / (WINDOW * GRID))


def average_rates(inertial: Series, times: Array, late: float = 0.0) -> Array:
    """Return the mean rate (n, 3) in rad/s over the window from each time of the grid on.

    The integral of the rate, by trapezoids, is interpolated at both ends of the window.

    Args:
        inertial: Inertial samples, in order; the first three columns are rates in rad/s.
        times: The grid (n,), s.
        late: Time in s by which stamps of the inertial samples are taken to be too late: the mean
            at t is that of samples with stamps from t + late on.
    """
    t, w = inertial.times, inertial.values[:, :3]
    steps = np.diff(t)[:, None] * 0.5 * (w[1:] + w[:-1])
    turned = Series(t, np.vstack([np.zeros(3), np.cumsum(steps, axis=0)]))
    ends = [interpolate(turned, times + late + shift) for shift in (0.0, WINDOW * GRID)]
    return np.asarray((ends[1] - ends[0]) / (WINDOW * GRID))


def _pairs(positions: Array) -> Sequence[tuple[int, int]]:
    """Return the indices of all pairs of feet, by positions (n, k, 3) of k feet."""
    return list(combinations(range(positions.shape[1]), 2))


def _window_means(values: Array) -> Array:
    """Return the mean (n, 3) by trapezoids over the window that begins at each row.

    The last `WINDOW` rows are NaN, as their window ends after the grid; `_find_windows` selects
    none of them.
    """
    total = np.cumsum(np.vstack([np.zeros(values.shape[1]), values]), axis=0)
    found = np.full(values.shape, np.nan)
    ends = 0.5 * (values[:-WINDOW] + values[WINDOW:])
    found[:-WINDOW] = (total[WINDOW + 1 :] - total[: -WINDOW - 1] - ends) / WINDOW
    return found


def _find_windows(standing: NDArray[np.bool_], early: int, late: int) -> NDArray[np.bool_]:
    """Return the rows (n,) from which on a foot stands for a window.

    Args:
        standing: Whether the foot stands (n,).
        early: Rows that are left out after it has come down.
        late: Rows that are left out before it lifts off.
    """
    found = np.zeros(len(standing), dtype=bool)
    for first, last in stretches(standing):
        # A contact that lasts at the first or last row has not come down, or lifted, there.
        begin = first + early if first else first
        end = last - late if last < len(standing) - 1 else last
        # `end` is the last row of the foot's stand. A window has rows r to r + WINDOW. The maximum
        # keeps the slice empty where the stand is too short for one.
        found[begin : max(end - WINDOW + 1, begin)] = True
    return found


def _skews(vectors: Array) -> Array:
    """Return the cross-product matrices (n, 3, 3) of vectors (n, 3)."""
    x, y, z = vectors.T
    zero = np.zeros(len(vectors))
    skews: Array = np.array([[zero, -z, y], [z, zero, -x], [-y, x, zero]]).transpose(2, 0, 1)
    return skews


def find_standing(
    kinematics: LegKinematics, loads: Mapping[str, Series], times: Array
) -> NDArray[np.bool_]:
    """Return whether each foot stands, by its force.

    A foot whose force shows no contacts never counts as standing. If no foot's force shows any, the
    robot stands, and all feet with forces do.

    Args:
        kinematics: Kinematics of the k feet.
        loads: Vertical forces (m, 1) in N by foot, complete.
        times: Times (n,) of the grid, s.

    Returns:
        Whether each foot stands at each time, (n, k).
    """
    found = {
        foot: contacts
        for foot, load in loads.items()
        if len(load) and (contacts := find_contacts(load.values[:, 0])) is not None
    }
    columns = []
    for foot in kinematics.feet:
        if foot in found:
            states = Series(loads[foot].times, found[foot].astype(float))
            columns.append(states.hold_last(times)[:, 0] > 0.5)
        else:
            columns.append(np.full(len(times), not found and foot in loads))
    return np.column_stack(columns)


def find_parabola_minimum(places: Array, costs: Array, step: float) -> float:
    """Return the minimum of costs, of the parabola through the lowest one and its neighbours.

    Args:
        places: Places (n,) at which the costs are known, evenly spaced, three or more.
        costs: Costs (n,).
        step: Distance of the places.

    Returns:
        The place of the minimum, at most one step from the middle of the three. If the lowest cost
        is the first or last, it is that of the parabola beside it; if the three costs do not bend
        upwards, it is the middle place.
    """
    k = int(np.clip(np.argmin(costs), 1, len(costs) - 2))
    low, least, high = costs[k - 1 : k + 2]
    bend = low - 2.0 * least + high
    shift = 0.5 * (low - high) / bend if bend > 0.0 else 0.0
    return float(places[k] + step * np.clip(shift, -1.0, 1.0))
