"""A normal distribution on the state space of one mode, at one time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from itertools import zip_longest

import numpy as np
from scipy.linalg.lapack import dpotrf
from scipy.special import log_ndtr

from hybridctl.base.checks import Array
from hybridctl.base.errors import SimulationError
from hybridctl.base.spaces import Space, VectorSpace
from hybridctl.base.tables import render_html_table
from hybridctl.hybrid.mode import ModeKey, ModeModel
from hybridctl.hybrid.tolerances import MIN_PROJECTED_RESIDUAL

_TERMS = 30
_NEGLIGIBLE = 1e-17  # of the identity, a term of a series


@dataclass(frozen=True, eq=False)
class Estimate:
    """Mode, time in s, mean (nx,), and covariance (ndx, ndx) in the tangent space at the mean.

    `since`: the time of the last event, s.
    """

    mode: ModeKey
    time: float
    mean: Array
    covariance: Array
    since: float = -math.inf

    def __repr__(self) -> str:
        with np.printoptions(precision=4, suppress=True, threshold=16):
            mean = np.asarray(self.mean)
            spread = np.sqrt(np.maximum(np.diag(np.atleast_2d(self.covariance)), 0.0))
            return f"Estimate({self.mode}, {self.time:.6g} s, mean {mean}, deviations {spread})"

    def _repr_html_(self) -> str:
        """A table of mean and standard deviations, which are of the tangent space."""
        spread = np.sqrt(np.maximum(np.diag(self.covariance), 0.0)).tolist()
        rows = zip_longest(self.mean.tolist(), spread, fillvalue=math.nan)
        cells = [(k, f"{x:.6g}", f"{s:.3g}") for k, (x, s) in enumerate(rows)]
        title = f"<p>{escape(str(self.mode))} at {self.time:.6g} s</p>"
        return title + render_html_table(("", "mean", "deviation"), cells)


@dataclass(frozen=True, eq=False)
class Mixture:
    """What all hypotheses of a filter say together: their moments, and how probable modes are.

    mean (nx,), covariance (ndx, ndx) in the tangent space there: of the whole distribution, which
    may have several peaks, none of them at the mean. probabilities: of the modes, which sum to
    one; `mode` is the most probable. The mean obeys the constraints of no mode: a filter begins
    anew from the likeliest estimate, not from this.
    """

    mode: ModeKey
    time: float
    mean: Array
    covariance: Array
    probabilities: Mapping[ModeKey, float]

    @staticmethod
    def of(estimate: Estimate) -> Mixture:
        """A single hypothesis."""
        e = estimate
        return Mixture(e.mode, e.time, e.mean, e.covariance, {e.mode: 1.0})


def retracted(space: Space, x: Array, p: Array, dx: Array) -> tuple[Array, Array]:
    r"""Mean and covariance after a correction dx (ndx,) of the mean.

    The point is integrate(x, dx), and the covariance goes along to the tangent space there, see
    `right_jacobian`.
    """
    if isinstance(space, VectorSpace):
        return x + dx, p
    after, turn = space.normalize(space.integrate(x, dx)), right_jacobian(space, dx)
    return after, turn.dot(p).dot(turn.T)


def right_jacobian(space: Space, dx: Array) -> Array:
    r"""The matrix J: difference(integrate(x, dx), integrate(x, dx + e)) = J e, to first order.

    With T = transport(dx) it is :math:`\varphi_1(T) = \sum_k T^k / (k+1)!`; in a vector space the
    identity. By the space's own method of this name, if it has one.
    """
    own = getattr(space, "right_jacobian", None)
    if own is not None:
        return np.asarray(own(dx))
    step = space.transport(dx)
    total = 0.5 * step
    size = float(np.sqrt(np.vdot(step, step)))
    power, largest = step, size
    for k in range(2, _TERMS):
        largest *= size / (k + 1)
        if largest < _NEGLIGIBLE:
            break
        power = power @ step
        power *= 1.0 / k
        total += power * (1.0 / (k + 1))
    total.reshape(-1)[:: len(step) + 1] += 1.0
    return total


def corrected(mode: ModeModel, x: Array, p: Array, dx: Array) -> tuple[Array, Array]:
    """Mean and covariance after a correction dx (ndx,), with the mean on the mode's constraints.

    A correction that has moved what they hold, by noise of contacts that give way or to second
    order, would open them again.
    """
    after, p = retracted(mode.space, x, p, dx)
    return constrained(mode, after), p


def constrained(mode: ModeModel, x: Array) -> Array:
    """The state near x (nx,) that obeys the constraints of its mode; x where there is none."""
    if mode.project is None or (
        mode.held is not None and mode.held.excess(x) <= MIN_PROJECTED_RESIDUAL
    ):
        return x
    try:
        return mode.project(x)
    except SimulationError:
        return x


def nearest_semidefinite(p: Array) -> Array:
    """The symmetric part, with eigenvalues below zero, where rounding has put them, at zero."""
    p = 0.5 * (p + p.T)
    if not dpotrf(p)[1]:
        return p
    values, vectors = np.linalg.eigh(p)
    if values[0] >= 0.0:
        return p
    clipped = (vectors * np.maximum(values, 0.0)) @ vectors.T
    return np.asarray(0.5 * (clipped + clipped.T))


def cut_off(p: Array, gradient: Array, g: float, s: float) -> tuple[Array, Array]:
    """The step of the mean, and the covariance, of what is left where a guard is not negative.

    p (ndx, ndx): the covariance; g: the guard's value at the mean, gradient (ndx,), s: its
    deviation. The distribution is taken as if it were normal in the direction of the guard.
    """
    spread, (shift, shrink) = p @ gradient, truncated(g / s)
    return shift / s * spread, p - (1.0 - shrink) * np.outer(spread, spread) / s**2


def truncated(mean: float) -> tuple[float, float]:
    """The shift of the mean, and the variance, of N(mean, 1) cut off below zero."""
    ratio = float(np.exp(-0.5 * mean**2 - 0.5 * np.log(2.0 * np.pi) - log_ndtr(mean)))
    return ratio, max(1.0 - ratio * (ratio + mean), 0.0)
