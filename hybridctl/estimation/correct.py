r"""Correction of an estimate by a measurement, in Joseph's form.

.. math:: S = H P H^T + R, \quad K = P H^T S^{-1}, \quad \hat x^+ = \hat x \boxplus K r, \quad
          P^+ = (I - K H) P (I - K H)^T + K R K^T,

with r the residual, and the covariance taken along to the tangent space at the new mean. Products
are by `dot`, which takes a third of the time of `@` where matrices have a few rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotrs
from scipy.special import gammaincinv

from hybridctl.base.checks import Array, check_array, convert_to_floats, is_finite, quote
from hybridctl.base.errors import InputError, SimulationError
from hybridctl.estimation.estimate import Estimate, corrected, nearest_semidefinite
from hybridctl.estimation.measurement import (
    AnyMeasurement,
    ImplicitMeasurement,
    LinearizedResidual,
    Measurement,
)
from hybridctl.hybrid.mode import ModeKey, ModeModel


class Innovation(NamedTuple):
    """What a measurement said against its prediction.

    residual (k,) and its covariance S (k, k); nis: r S^{-1} r, of mean k where the filter is
    consistent; log_likelihood: of the measurement. limit: of the gate on nis; a measurement above
    it was rejected, and `accepted` is False.
    """

    time: float
    channel: str
    mode: ModeKey
    residual: Array
    covariance: Array
    nis: float
    log_likelihood: float
    limit: float
    accepted: bool

    @property
    def dimension(self) -> int:
        """The number k of components of the residual."""
        return len(self.residual)


def compared(
    measurement: AnyMeasurement,
    mode: ModeModel,
    estimate: Estimate,
    value: Array,
    u: Array,
) -> LinearizedResidual | None:
    """The residual of the measured components of a value (m,), linearised; None without any."""
    if isinstance(measurement, ImplicitMeasurement):
        return measurement.compare(mode, estimate.time, estimate.mean, u, value)
    given = present(measurement, value)
    if given is None:
        return None
    rows, noise = given
    predicted = observed(measurement, mode, estimate.time, estimate.mean, u)
    r = residual(measurement, predicted, value)
    return LinearizedResidual(r[rows], _jacobian(measurement, mode, estimate, u)[rows], noise)


Compared = Callable[[AnyMeasurement, ModeModel, Estimate, Array, Array], LinearizedResidual | None]


def correct(
    measurement: AnyMeasurement,
    mode: ModeModel,
    estimate: Estimate,
    value: Array,
    u: Array,
    compare: Compared = compared,
) -> tuple[Estimate, Innovation] | None:
    """The estimate after a measured value (m,), and the innovation; None where it is missing.

    compare: how a value is compared with the estimate. Components that are NaN are left out; a
    point of a manifold of which any is NaN is missing.
    Raises `InputError` for a value, a Jacobian or a covariance of the wrong size.
    """
    found = compare(measurement, mode, estimate, value, u)
    return None if found is None else correct_by_residual(measurement, mode, estimate, found)


def correct_by_residual(
    measurement: AnyMeasurement, mode: ModeModel, estimate: Estimate, found: LinearizedResidual
) -> tuple[Estimate, Innovation]:
    """Return the estimate after a value, and the innovation.

    An innovation that the gate rejects leaves the estimate as it is.

    Args:
        measurement: The measurement of which `found` is a residual.
        mode: Mode of the estimate.
        estimate: Estimate before the value.
        found: Residual of the value, its derivative by the state, and its noise.
    """
    r, h, noise = found
    p = estimate.covariance
    spread = h.dot(p)
    innovation, factor = judged(measurement, estimate, r, spread.dot(h.T) + noise)
    if not innovation.accepted:
        return estimate, innovation
    gain = solved(factor, spread).T
    left = gain.dot(-h)
    left.reshape(-1)[:: len(p) + 1] += 1.0
    p = left.dot(p).dot(left.T) + gain.dot(noise).dot(gain.T)
    x, p = corrected(mode, estimate.mean, p, gain.dot(r))
    after = Estimate(estimate.mode, estimate.time, x, nearest_semidefinite(p), estimate.since)
    return after, innovation


def present(
    measurement: Measurement, value: Array
) -> tuple[NDArray[np.bool_] | slice, Array] | None:
    """The residual's components that were measured, and their noise; None where there are none."""
    if is_finite(value):
        return _ALL, measurement.covariance
    given = np.isfinite(value)
    if measurement.residual is not None or not given.any():
        return None
    return given, measurement.covariance[np.ix_(given, given)]


def observed(measurement: Measurement, mode: ModeModel, t: float, x: Array, u: Array) -> Array:
    """What would be measured without noise (m,)."""
    value = measurement.value(mode, t, x, u)
    if type(value) is np.ndarray and value.dtype == np.float64:
        return value
    try:
        return convert_to_floats(value)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"value of measurement {measurement.name!r} must return numbers, got {quote(value)} "
            f"at t = {t} in mode {mode.key!r}"
        ) from error


def residual(measurement: Measurement, predicted: Array, value: Array) -> Array:
    """The way (k,) from what was predicted (m,) to a value (m,)."""
    if predicted.shape != value.shape:
        raise InputError(
            f"a row of {measurement.name!r} must have shape {predicted.shape}, got {value.shape}"
        )
    k = measurement.dimension
    if measurement.residual is None:
        r = value - predicted
    else:
        r = measurement.residual(predicted, value)
    if r.shape != (k,):
        raise InputError(
            f"the residual of {measurement.name!r} must have shape ({k},), got {r.shape}"
        )
    return r


def judged(
    measurement: AnyMeasurement, estimate: Estimate, r: Array, s: Array
) -> tuple[Innovation, Array]:
    """The innovation of a residual r (k,) with covariance s (k, k), and the factor of s.

    Raises `SimulationError` where s is not positive definite.
    """
    factor, failed = dpotrf(s, lower=1)
    if failed:
        raise SimulationError(
            f"the covariance of an innovation of {measurement.name!r} at t = {estimate.time:.9g} s "
            f"is not positive definite: {s.tolist()}"
        )
    nis = float(r.dot(solved(factor, r)))
    size = 2.0 * sum(map(math.log, factor.diagonal().tolist())) + len(r) * _LOG_TURN
    limit = np.inf if measurement.gate is None else _limit(measurement.gate, len(r))
    innovation = Innovation(
        estimate.time,
        measurement.name,
        estimate.mode,
        r,
        s,
        nis,
        -0.5 * (nis + size),
        limit,
        nis <= limit,
    )
    return innovation, factor


def solved(factor: Array, b: Array) -> Array:
    """The solution s^-1 b, by the factor of s."""
    return np.asarray(dpotrs(factor, b, lower=1)[0])


_ALL = slice(None)
_LOG_TURN = math.log(2.0 * math.pi)


@lru_cache
def _limit(gate: float, dimension: int) -> float:
    """The quantile of chi squared; `scipy.stats` costs as much to import as all else here."""
    return 2.0 * float(gammaincinv(0.5 * dimension, gate))


def _jacobian(measurement: Measurement, mode: ModeModel, estimate: Estimate, u: Array) -> Array:
    h, k = measurement.jacobian(mode, estimate.time, estimate.mean, u), measurement.dimension
    if type(h) is not np.ndarray or h.flags.writeable:
        h = check_array(f"Jacobian of {measurement.name!r}", h)
    if h.shape != (k, mode.space.ndx):
        raise InputError(
            f"the Jacobian of {measurement.name!r} must have shape ({k}, {mode.space.ndx}), got "
            f"{h.shape}"
        )
    return h
