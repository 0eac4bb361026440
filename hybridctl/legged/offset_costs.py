r"""Residuals of standing feet against inertial samples that are taken earlier or later.

Standing feet predict what the inertial sensor measures. With the position s of a foot in the
inertial frame, the difference d of two of them, and a window T,

.. math:: \dot d - \rho + \omega \times d = 0, \qquad
          n^T \frac{y(t + T) - 2 y(t) + y(t - T)}{T^2} = -n^T \bar f + \text{const}, \quad y = R s,

where :math:`\rho` is the speed with which the feet roll apart, n points up, and the mean
:math:`\bar f` of the specific force in axes of the world has triangular weights over the time from
t - T to t + T, so that both sides are exact. The first equation is about the gyroscope, the second
about the accelerometer. Only its vertical part is used: horizontally feet roll and slip, and
gravity leaks in with any error of tilt. The constant, of half a second each, holds gravity and
bias.

Sums of squares of these residuals are minimal where inertial samples are taken at t + offset. All
offsets are compared on the same rows: those that have inertial samples at every offset tried.
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PPoly
from scipy.spatial.transform import Rotation, Slerp

from hybridctl.base.checks import Array
from hybridctl.base.time_series import Series
from hybridctl.legged.readings import stretches
from hybridctl.legged.stance import EARLY, GRID, LATE, FootPaths, is_sampled

LARGEST_OFFSET, OFFSET_STEP = 0.06, 5e-3
"""Range and step of offsets that are tried, s: a trot of 0.4 s looks alike after half of that."""
STRIDE_ROWS = 50
"""Grid rows of a block, half a second: a stride and more, so that blocks are independent."""
FEWEST_BLOCKS = 6
"""Blocks from which on their jackknife is meaningful: 3 s of walking."""
_LEAST_COST = 1e-300
"""Cost in place of zero in a denominator, where residuals vanish exactly."""


def list_offsets() -> Array:
    """Return the offsets (m,) in s that are tried."""
    count = round(LARGEST_OFFSET / OFFSET_STEP)
    return np.asarray(OFFSET_STEP * np.arange(-count, count + 1.0))


class OffsetCost(NamedTuple):
    """Sums of squared residuals at the offsets that are tried.

    Attributes:
        blocks: Sums (m, k) for m offsets over k blocks of time.
        without_sensor: The sum with a sensor whose samples are constant.
    """

    blocks: Array
    without_sensor: float

    @property
    def share(self) -> float:
        """The least sum relative to that without the sensor: 0 where the sensor explains all."""
        return float(self.blocks.sum(axis=1).min() / max(self.without_sensor, _LEAST_COST))


class StanceResiduals:
    """Residuals of standing feet against the inertial sensor, at all offsets that are tried.

    Args:
        paths: Paths of k feet at n times.
        standing: Whether each foot stands (n, k).
        radii: Radii (k,) with which feet roll, m.
        inertial: Inertial samples, in order, without missing values.
    """

    def __init__(
        self, paths: FootPaths, standing: NDArray[np.bool_], radii: Array, inertial: Series
    ) -> None:
        self._paths, self._standing = paths, standing
        times, margin = paths.times, LARGEST_OFFSET + GRID
        near = (inertial.times >= times[0] - margin) & (inertial.times <= times[-1] + margin)
        sensor = inertial.select_rows(near)
        # Of rows with the same stamp the last one: integrals need stamps that increase.
        self._sensor = sensor.select_rows(np.append(np.diff(sensor.times) > 0.0, True))
        self._blocks = np.arange(len(times)) // STRIDE_ROWS
        self._rolled = _roll_feet(paths, radii, self._sensor.values[:, 3:].mean(axis=0))
        t, rates = self._sensor.times, self._sensor.values[:, :3]
        self._integrated_rates = _interpolate_linearly(t, rates).antiderivative()
        self._axes = _integrate_rates(t, rates)

    def compute_rate_cost(self, window: int) -> OffsetCost | None:
        """Return the cost of gyroscope offsets, by feet that do not move against each other.

        A constant bias of the gyroscope is removed by least squares.

        Args:
            window: Grid steps over which rates are averaged.

        Returns:
            The cost; None where too few feet stand.
        """
        a, b, begin = self._stack_pairs(window)
        if not _has_enough_blocks(self._blocks[begin]):
            return None
        # The relative limit leaves out axes of the bias that no pair of feet shows.
        inverse = np.linalg.pinv(np.einsum("nij,nik->jk", a, a), rcond=1e-6)

        def sum_squares(mean: Array | None) -> Array:
            r = b if mean is None else np.einsum("nij,nj->ni", a, mean[begin]) + b
            r = r - a @ (inverse @ np.einsum("nij,ni->j", a, r))
            return self._sum_blocks(self._blocks[begin], (r**2).sum(axis=1))

        costs = []
        for late in list_offsets().tolist():
            integral = self._integrated_rates(self._clip_times(self._paths.times + late))
            costs.append(sum_squares((integral[window:] - integral[:-window]) / (window * GRID)))
        return OffsetCost(np.array(costs), float(sum_squares(None).sum()))

    def _stack_pairs(self, window: int) -> tuple[Array, Array, NDArray[np.intp]]:
        """Return rows A w + b = 0 of the mean rate w, and the grid rows at which they begin.

        Pairs of feet that stand through the window do not move against each other; a flat foot does
        not turn, and counts as a point at the mean distance of the feet.

        Args:
            window: Grid steps over which rates are averaged.

        Returns:
            A (n, 3, 3) in m, b (n, 3) in m/s, and the grid rows (n,).
        """
        p, c = self._paths.positions, self._paths.rotations
        inner = self._find_stances(window)
        span, arms = window * GRID, list[float]()
        a, b = [np.zeros((0, 3, 3))], [np.zeros((0, 3))]
        begins = [np.zeros(0, int)]
        for i, j in combinations(range(p.shape[1]), 2):
            d, rolled = p[:, i] - p[:, j], self._rolled[:, i] - self._rolled[:, j]
            k = np.flatnonzero(inner[:, i] & inner[:, j])
            total = np.cumsum(np.vstack([np.zeros(3), 0.5 * (d[1:] + d[:-1])]), axis=0)
            a.append(-_skew((total[k + window] - total[k]) / window))
            b.append((d - rolled)[k + window] / span - (d - rolled)[k] / span)
            begins.append(k)
            arms.append(float(np.linalg.norm(d, axis=1).mean()))
        # A single foot has no distance to others: any scale has the same minimum.
        arm = float(np.mean(arms)) if arms else 1.0
        for i in np.flatnonzero(self._paths.flat).tolist():
            k = np.flatnonzero(inner[:, i])
            if len(k):
                turn = c[k, i] @ np.swapaxes(c[k + window, i], 1, 2)
                a.append(np.tile(arm * np.eye(3), (len(k), 1, 1)))
                b.append(-arm / span * Rotation.from_matrix(turn).as_rotvec())
                begins.append(k)
        return np.concatenate(a), np.concatenate(b), np.concatenate(begins)

    def _find_stances(self, window: int) -> NDArray[np.bool_]:
        """Return whether feet (m, k) stand through the window from each of m grid rows on.

        Windows without inertial samples at some of the offsets tried are left out. Otherwise the
        last sample would stand for all later ones, and make residuals of 100 m/s^2 at offsets of
        one sign alone.

        Args:
            window: Grid steps of the window.
        """
        times = self._paths.times
        first, last = times[: len(times) - window] - LARGEST_OFFSET, times[window:] + LARGEST_OFFSET
        sampled = is_sampled(self._sensor.times, first, last)
        return (
            _select_window_begins(self._standing, window)[: len(times) - window] & sampled[:, None]
        )

    def compute_force_cost(self, window: int, late: float) -> OffsetCost | None:
        """Return the cost of accelerometer offsets, by the vertical motion over standing feet.

        Args:
            window: Grid steps T of the second differences.
            late: Offset of the gyroscope, s.

        Returns:
            The cost; None where too few feet stand.
        """
        times, span = self._paths.times, window * GRID
        t, forces = self._sensor.times, self._sensor.values[:, 3:]
        world = np.einsum("nij,nj->ni", self._axes, forces)
        integrated_twice = _interpolate_linearly(t, world).antiderivative(2)
        ups = self._find_up(t, world)
        axes = Slerp(t, Rotation.from_matrix(self._axes))(self._clip_times(times + late))
        feet = np.einsum("nij,nkj->nki", axes.as_matrix(), self._paths.positions)
        inner = self._find_stances(2 * window)
        count = inner.sum(axis=1)
        k = np.flatnonzero(count)
        blocks, weights = self._blocks[k + window], count[k].astype(float)
        if not _has_enough_blocks(blocks):
            return None
        each = -_second_differences(feet, window) / span**2
        mean = np.where(inner[..., None], each, 0.0).sum(axis=1)[k] / weights[:, None]
        predicted = (mean * ups[blocks]).sum(axis=1)
        sizes = np.maximum(self._sum_blocks(blocks, weights), 1.0)

        def sum_squares(e: Array) -> Array:
            e = e - (self._sum_blocks(blocks, weights * e) / sizes)[blocks]
            return self._sum_blocks(blocks, weights * e**2)

        costs = []
        for offset in list_offsets().tolist():
            integral = integrated_twice(self._clip_times(times + offset))
            measured = _second_differences(integral, window)[k] / span**2
            costs.append(sum_squares((measured * ups[blocks]).sum(axis=1) - predicted))
        return OffsetCost(np.array(costs), float(sum_squares(-predicted).sum()))

    def _find_up(self, times: Array, world: Array) -> Array:
        """Return the direction (b, 3) up in each block: that of the mean force (n, 3) in it."""
        grid = np.clip(self._paths.times.searchsorted(times) - 1, 0, len(self._blocks) - 1)
        blocks = self._blocks[grid]
        sums = np.column_stack([self._sum_blocks(blocks, column) for column in world.T])
        sizes = np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
        return np.asarray(sums / sizes)

    def _clip_times(self, times: Array) -> Array:
        """Return times (n,) in s, moved to the first or last sample where they lie outside."""
        return np.clip(times, self._sensor.times[0], self._sensor.times[-1])

    def _sum_blocks(self, blocks: NDArray[np.intp], values: Array) -> Array:
        """Return the sums of values over blocks."""
        sums: Array = np.bincount(blocks, values, int(self._blocks[-1]) + 1).astype(float)
        return sums


def _has_enough_blocks(blocks: NDArray[np.intp]) -> bool:
    """Return whether rows lie in enough blocks, by the block of each row."""
    return len(np.unique(blocks)) >= FEWEST_BLOCKS


def _select_window_begins(standing: NDArray[np.bool_], window: int) -> NDArray[np.bool_]:
    """Return whether feet (n, k) stand from each row on for a window.

    The first and last rows of a contact are left out (see `EARLY`), those of the log are not: there
    the foot has neither come down nor lifted off.

    Args:
        standing: Whether each foot stands (n, k).
        window: Grid steps of the window.
    """
    found = np.zeros_like(standing)
    for foot in range(standing.shape[1]):
        for first, last in stretches(standing[:, foot]):
            begin = first + EARLY if first else first
            end = last - LATE if last < len(standing) - 1 else last
            found[begin : max(end - window + 1, begin), foot] = True
    return found


def _roll_feet(paths: FootPaths, radii: Array, up: Array) -> Array:
    """Return how far legs roll their feet (n, k, 3) along the ground, m, in the inertial frame.

    Args:
        paths: Paths of the feet.
        radii: Radii (k,), m.
        up: Any vector (3,) upwards.
    """
    c = paths.rotations
    turns = (c[1:] @ np.swapaxes(c[:-1], 2, 3)).reshape(-1, 3, 3)
    steps = Rotation.from_matrix(turns).as_rotvec().reshape(len(c) - 1, -1, 3)
    rolls = radii[:, None] * np.cross(steps, up / np.linalg.norm(up))
    return np.concatenate([np.zeros((1, len(radii), 3)), np.cumsum(rolls, axis=0)])


def _integrate_rates(times: Array, rates: Array) -> Array:
    """Return the axes (n, 3, 3) of a frame that turns at rates (n, 3), the first the identity."""
    steps = np.diff(times)[:, None] * 0.5 * (rates[1:] + rates[:-1])
    axes = [np.eye(3)]
    for turn in Rotation.from_rotvec(steps).as_matrix():
        axes.append(axes[-1] @ turn)
    return np.array(axes)


def _interpolate_linearly(times: Array, values: Array) -> PPoly:
    """Return the piecewise linear function through values (n, m) at times (n,)."""
    slopes = np.diff(values, axis=0) / np.diff(times)[:, None]
    return PPoly(np.array([slopes, values[:-1]]), times)


def _second_differences(values: Array, window: int) -> Array:
    """Return x(k + 2 w) - 2 x(k + w) + x(k) of values (n, ...)."""
    return np.asarray(values[2 * window :] - 2.0 * values[window:-window] + values[: -2 * window])


def _skew(vectors: Array) -> Array:
    """Return the cross-product matrices (n, 3, 3) of vectors (n, 3)."""
    return np.asarray(np.cross(vectors[:, None, :], np.eye(3)).transpose(0, 2, 1))
