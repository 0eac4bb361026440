r"""Correction of an estimate by a measurement, in Joseph's form.

.. math:: S = H P H^T + R, \quad K = P H^T S^{-1}, \quad \hat x^+ = \hat x \boxplus K r, \quad
          P^+ = (I - K H) P (I - K H)^T + K R K^T,

with r the residual, and the covariance taken along to the tangent space at the new mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.stats import chi2

from hybridctl.checks import Array, array
from hybridctl.errors import InputError
from hybridctl.estimation.estimate import Estimate, moved, tidied
from hybridctl.estimation.measurement import Measurement
from hybridctl.hybrid.mode import Mode, ModeKey


@dataclass(frozen=True, eq=False)
class Innovation:
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
        """k."""
        return len(self.residual)


def correct(
    measurement: Measurement, mode: Mode, estimate: Estimate, value: Array, u: Array
) -> tuple[Estimate, Innovation] | None:
    """The estimate after a measured value (m,), and the innovation; None where it is missing.

    Components that are NaN are left out; a point of a manifold of which any is NaN is missing.
    Raises `InputError` for a value, a Jacobian or a covariance of the wrong size.
    """
    given = np.isfinite(value)
    if not given.any() or (measurement.residual is not None and not given.all()):
        return None
    r, h, noise = _terms(measurement, mode, estimate, value, u)
    if measurement.residual is None and not given.all():
        r, h, noise = r[given], h[given], noise[np.ix_(given, given)]
    p = estimate.covariance
    s = h @ p @ h.T + noise
    factor = cho_factor(s, lower=True)
    nis = float(r @ cho_solve(factor, r))
    size = 2.0 * float(np.log(np.diag(factor[0])).sum()) + len(r) * np.log(2.0 * np.pi)
    limit = np.inf if measurement.gate is None else float(chi2.ppf(measurement.gate, len(r)))
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
    if not innovation.accepted:
        return estimate, innovation
    gain = cho_solve(factor, h @ p).T
    left = np.eye(len(p)) - gain @ h
    corrected = left @ p @ left.T + gain @ noise @ gain.T
    x, corrected = moved(mode.space, estimate.mean, corrected, gain @ r)
    return replace(estimate, mean=x, covariance=tidied(corrected)), innovation


def _terms(
    measurement: Measurement, mode: Mode, estimate: Estimate, value: Array, u: Array
) -> tuple[Array, Array, Array]:
    """Residual, Jacobian and covariance, of sizes that fit."""
    t, x = estimate.time, estimate.mean
    predicted = np.asarray(measurement.value(mode, t, x, u), dtype=np.float64)
    if predicted.shape != value.shape:
        raise InputError(
            f"a row of {measurement.name!r} must have shape {predicted.shape}, got {value.shape}"
        )
    h = array(f"Jacobian of {measurement.name!r}", measurement.jacobian(mode, t, x, u))
    k = measurement.dimension
    if h.shape != (k, mode.space.ndx):
        raise InputError(
            f"the Jacobian of {measurement.name!r} must have shape ({k}, {mode.space.ndx}), got "
            f"{h.shape}"
        )
    r = (
        value - predicted
        if measurement.residual is None
        else measurement.residual(predicted, value)
    )
    if r.shape != (k,):
        raise InputError(
            f"the residual of {measurement.name!r} must have shape ({k},), got {r.shape}"
        )
    return r, h, measurement.covariance
