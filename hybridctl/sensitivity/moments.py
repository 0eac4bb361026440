r"""Mean and covariance of deviations carried along a trajectory.

On arcs and through isolated events the map is linear and both are exact,
:math:`m^+ = G m, \; P^+ = G P G^T`, [Salt] (39). Through simultaneous events it is piecewise
linear: a normal distribution goes in, and what comes out has the mean and covariance of its image,
summed over low-discrepancy points. That image is no longer normal; from there on only its first two
moments are followed. So it is through nearly simultaneous events that are one jump.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigh
from scipy.special import ndtri

from hybridctl.base.checks import Array, check_array, check_count, check_semidefinite
from hybridctl.base.errors import InputError
from hybridctl.sensitivity.gains import JumpGains
from hybridctl.sensitivity.linearize import Linearization
from hybridctl.sensitivity.nearby import PiecewiseAffineJump
from hybridctl.sensitivity.piecewise import PiecewiseLinearJump


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean (ndx,) and covariance (ndx, ndx) of a deviation, in the tangent space."""

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
    """Mean and covariance of the deviation at the end, for those of the deviation at the start.

    covariance (ndx, ndx): symmetric, positive semidefinite; mean (ndx,) or None for zero.
    points: of the sum at simultaneous events, a power of two; half of them mirror the others,
    so that a linear map keeps its mean exactly. Raises `InputError`.
    """
    ndx = linearization.trajectory.arcs[0].space.ndx
    m = np.zeros(ndx) if mean is None else check_array("mean", mean, (ndx,))
    p = check_semidefinite("covariance", covariance, ndx)
    _check_points(points)
    merged = {group.first: group for group in linearization.nearby}
    k, flows = 0, linearization.transitions
    m, p = flows[0] @ m, flows[0] @ p @ flows[0].T
    while k < len(linearization.jumps):
        jump: JumpGains | PiecewiseLinearJump | PiecewiseAffineJump = linearization.jumps[k]
        if k in merged:
            jump, k = linearization.nearby_jump(merged[k]), merged[k].last
        m, p = through_jump(jump, m, p, points, seed + k)
        k += 1
        m, p = flows[k] @ m, flows[k] @ p @ flows[k].T
    return Moments(m, p)


def through_jump(
    jump: JumpGains | PiecewiseLinearJump | PiecewiseAffineJump,
    m: Array,
    p: Array,
    points: int,
    seed: int,
) -> tuple[Array, Array]:
    """Mean (d+,) and covariance (d+, d+) after one event, for m (d,) and p (d, d) before it.

    points: of the sum where it is piecewise linear, a power of two.
    """
    if isinstance(jump, JumpGains):
        return jump.state @ m, jump.state @ p @ jump.state.T
    after = jump(m + normal_points(p, points, seed))
    center = after.mean(axis=0)
    spread = after - center
    return center, spread.T @ spread / len(after)


def normal_points(covariance: Array, points: int, seed: int) -> Array:
    """Low-discrepancy points (points, ndx) of a normal distribution of mean zero.

    Half of them mirror the others. Their own covariance is the given one (ndx, ndx). Raises
    `InputError` where their number is no power of two.
    """
    _check_points(points)
    values, vectors = eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    from scipy.stats import qmc  # costs as much to import as all else, and is rarely wanted

    uniform = qmc.Sobol(len(covariance), seed=seed).random(points // 2)
    normal = ndtri(np.clip(uniform, 1e-15, 1.0 - 1e-15))
    normal = np.concatenate((normal, -normal))
    own = np.linalg.cholesky(normal.T @ normal / len(normal))
    return np.asarray(np.linalg.solve(own, normal.T).T @ root.T)


def _check_points(points: int) -> None:
    if check_count("points", points, at_least=2) & (points - 1):
        raise InputError(f"points must be a power of two, got {points}")
