r"""Mean and covariance of a perturbation, propagated along a run.

On arcs and through linear jumps the map is linear, and both are exact: :math:`m^+ = G m` and
:math:`P^+ = G P G^T`, [Salt] (39). Through piecewise linear jumps and merged events the map is
piecewise linear or affine. There a normal distribution goes in, and mean and covariance of its
image are summed over low-discrepancy points. The image is not normal; from there on only its first
two moments are propagated.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigh
from scipy.special import ndtri

from hybridctl.base.checks import Array, check_array, check_count, check_semidefinite
from hybridctl.base.errors import InputError
from hybridctl.sensitivity.linearization import Linearization
from hybridctl.sensitivity.merged_events import PiecewiseAffineJump
from hybridctl.sensitivity.piecewise import PiecewiseLinearJump
from hybridctl.sensitivity.saltation import JumpGains


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean and covariance of a perturbation in the tangent space.

    Attributes:
        mean: Mean (ndx,).
        covariance: Covariance (ndx, ndx).
    """

    mean: Array
    covariance: Array


def propagate_moments(
    linearization: Linearization,
    covariance: ArrayLike,
    mean: ArrayLike | None = None,
    *,
    points: int = 2**14,
    seed: int = 0,
) -> Moments:
    """Return the moments of the perturbation of the final state.

    Args:
        linearization: Linearization of the run.
        covariance: Covariance (ndx, ndx) of the perturbation of the initial state, symmetric and
            positive semidefinite.
        mean: Its mean (ndx,). None for zero.
        points: Number of points of the sum at piecewise linear jumps, a power of two that is at
            least twice the dimension there. Half of them mirror the others, so that a linear map
            keeps its mean exactly.
        seed: Seed of the points; that of event k is seed + k.

    Returns:
        Mean (ndx+,) and covariance (ndx+, ndx+) at the end.

    Raises:
        InputError: An argument has a wrong shape, the covariance is not symmetric and positive
            semidefinite, or `points` is no power of two or too small.
    """
    ndx = linearization.trajectory.arcs[0].space.ndx
    m = np.zeros(ndx) if mean is None else check_array("mean", mean, (ndx,))
    p = check_semidefinite("covariance", covariance, ndx)
    _check_points(points)
    merged = {group.first: group for group in linearization.merged_events}
    k, transitions = 0, linearization.transitions
    m, p = transitions[0] @ m, transitions[0] @ p @ transitions[0].T
    while k < len(linearization.jumps):
        jump: JumpGains | PiecewiseLinearJump | PiecewiseAffineJump = linearization.jumps[k]
        if k in merged:
            jump, k = linearization.merged_jump(merged[k]), merged[k].last
        m, p = propagate_moments_through_jump(jump, m, p, points, seed + k)
        k += 1
        m, p = transitions[k] @ m, transitions[k] @ p @ transitions[k].T
    return Moments(m, p)


def propagate_moments_through_jump(
    jump: JumpGains | PiecewiseLinearJump | PiecewiseAffineJump,
    m: Array,
    p: Array,
    points: int,
    seed: int,
) -> tuple[Array, Array]:
    """Return the moments after one event.

    Args:
        jump: Jump of the event.
        m: Mean (d,) before it.
        p: Covariance (d, d) before it.
        points: Number of points of the sum if the jump is not linear; see
            `sample_normal_points`.
        seed: Seed of the points.

    Returns:
        Mean (d+,) and covariance (d+, d+) after it.
    """
    if isinstance(jump, JumpGains):
        return jump.state @ m, jump.state @ p @ jump.state.T
    after = jump(m + sample_normal_points(p, points, seed))
    center = after.mean(axis=0)
    spread = after - center
    return center, spread.T @ spread / len(after)


def sample_normal_points(covariance: Array, points: int, seed: int) -> Array:
    """Return low-discrepancy points of a normal distribution of mean zero.

    Args:
        covariance: Covariance (ndx, ndx), positive semidefinite. That of the points is equal to
            it, to rounding.
        points: Number of points, a power of two of at least 2 ndx. Half of them mirror the others.
        seed: Seed of the points.

    Returns:
        The points (points, ndx), in rows.

    Raises:
        InputError: The number of points is no power of two, or too small: the half that is drawn
            spans all dimensions only if it has one point for each.
    """
    _check_points(points)
    n = len(covariance)
    if points < 2 * n:
        raise InputError(f"points must be at least {2 * n} in {n} dimensions, got {points}")
    values, vectors = eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    return np.asarray(_draw_standard_points(n, points, seed) @ root.T)


@lru_cache(maxsize=8)
def _draw_standard_points(n: int, points: int, seed: int) -> Array:
    """Return low-discrepancy points (points, n) of the standard normal distribution, read-only.

    They are kept: filters ask for the same ones at every event of several guards.

    Args:
        n: Dimension.
        points: Number of points. Half of them mirror the others.
        seed: Seed of the points.
    """
    from scipy.stats import qmc  # costs as much to import as all else, and is rarely wanted

    uniform = qmc.Sobol(n, seed=seed).random(points // 2)
    # At 0 and 1 the normal quantiles are infinite.
    normal = ndtri(np.clip(uniform, 1e-15, 1.0 - 1e-15))
    normal = np.concatenate((normal, -normal))
    # Sampling leaves a covariance that is only near 1: its Cholesky factor is divided out.
    own = np.linalg.cholesky(normal.T @ normal / len(normal))
    standard = np.asarray(np.linalg.solve(own, normal.T).T)
    standard.setflags(write=False)
    return standard


def _check_points(points: int) -> None:
    """Check that a number of points is a power of two, 2 at least.

    Raises:
        InputError: It is not.
    """
    # A power of two shares no binary digit with the number below it.
    if check_count("points", points, at_least=2) & (points - 1):
        raise InputError(f"points must be a power of two, got {points}")
