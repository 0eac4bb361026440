"""A normal distribution on the state space of one mode, at one time, and how its mean is moved."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from html import escape
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
from scipy.linalg.lapack import dpotrf
from scipy.special import log_ndtr

from hybridctl.base.checks import (
    Array,
    check_instance,
    check_number,
    check_semidefinite,
    check_vector,
)
from hybridctl.base.errors import SimulationError
from hybridctl.base.spaces import Space, VectorSpace
from hybridctl.base.tables import render_html_table
from hybridctl.hybrid.mode import ModeKey, ModeModel
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.tolerances import MIN_PROJECTED_RESIDUAL

_MAX_SERIES_TERMS = 30
"""Terms of the series of `right_jacobian`: enough for a transport of norm pi."""
_NEGLIGIBLE_TERM = 1e-17
"""Norm of a term of that series, relative to the identity, from which on terms are left out."""


class SlowImpact(NamedTuple):
    r"""An impact that takes time, of which an estimate has the state after it.

    The change of the state is spread evenly over the impact: at a time t within it the share
    :math:`(t_1 - t) / (t_1 - t_0)` of the change is still to come.

    Attributes:
        begin: Time :math:`t_0` at which the contact begins to push, s.
        end: Time :math:`t_1` at which it ends, s.
        change: Change (ndx,) of the state by all of it.
    """

    begin: float
    end: float
    change: Array


def keep_open_impacts(impacts: tuple[SlowImpact, ...], time: float) -> tuple[SlowImpact, ...]:
    """Return those of some impacts that are not over.

    Args:
        impacts: The impacts.
        time: Time, s.
    """
    return tuple([impact for impact in impacts if time < impact.end]) if impacts else impacts


def sum_open_changes(impacts: tuple[SlowImpact, ...], time: float) -> Array:
    """Return the second moment (ndx, ndx) of what impacts have still to change.

    Args:
        impacts: At least one impact.
        time: Time, s.
    """
    left = [np.clip((i.end - time) / (i.end - i.begin), 0.0, 1.0) * i.change for i in impacts]
    changes = np.array(left)
    return np.asarray(changes.T @ changes)


@dataclass(frozen=True, eq=False)
class Estimate:
    """A normal distribution of the state in one mode.

    Attributes:
        mode: Key of the mode.
        time: Time, s.
        mean: Mean (nx,).
        covariance: Covariance (ndx, ndx) in the tangent space at the mean.
        since: Time of the last event, s; -inf where none is known.
        impacts: Impacts that take time and may not be over; mean and covariance are those after
            them, as if they had taken none.
    """

    mode: ModeKey
    time: float
    mean: Array
    covariance: Array
    since: float = -math.inf
    impacts: tuple[SlowImpact, ...] = ()

    @property
    def full_covariance(self) -> Array:
        """Covariance (ndx, ndx) of the state itself, with what impacts have still to change."""
        if not self.impacts:
            return self.covariance
        return self.covariance + sum_open_changes(self.impacts, self.time)

    def __repr__(self) -> str:
        with np.printoptions(precision=4, suppress=True, threshold=16):
            mean = np.asarray(self.mean)
            spread = np.sqrt(np.maximum(np.diag(np.atleast_2d(self.covariance)), 0.0))
            return f"Estimate({self.mode}, {self.time:.6g} s, mean {mean}, deviations {spread})"

    def _repr_html_(self) -> str:
        """Return a table of the mean and of the standard deviations in the tangent space."""
        spread = np.sqrt(np.maximum(np.diag(self.covariance), 0.0)).tolist()
        rows = zip_longest(self.mean.tolist(), spread, fillvalue=math.nan)
        cells = [(k, f"{x:.6g}", f"{s:.3g}") for k, (x, s) in enumerate(rows)]
        title = f"<p>{escape(str(self.mode))} at {self.time:.6g} s</p>"
        return title + render_html_table(("", "mean", "deviation"), cells)


@dataclass(frozen=True, eq=False)
class Mixture:
    """Moments of all hypotheses of a filter together, and the probabilities of modes.

    The distribution may have several peaks, none of them at the mean. The mean obeys the
    constraints of no mode, so a filter restarts from its likeliest estimate, not from a mixture.

    Attributes:
        mode: The most probable mode.
        time: Time, s.
        mean: Mean (nx,) of the whole distribution.
        covariance: Covariance (ndx, ndx) of the whole distribution, in the tangent space there.
        probabilities: Probabilities of the modes, the most probable first. They sum to one.
    """

    mode: ModeKey
    time: float
    mean: Array
    covariance: Array
    probabilities: Mapping[ModeKey, float]

    @staticmethod
    def of(estimate: Estimate) -> Mixture:
        """Return the mixture of a single hypothesis.

        Args:
            estimate: The estimate of that hypothesis.
        """
        e = estimate
        return Mixture(e.mode, e.time, e.mean, e.full_covariance, {e.mode: 1.0})


def check_estimate(system: HybridSystem, estimate: Estimate) -> Estimate:
    """Return a user's estimate with read-only arrays and an exactly semidefinite covariance.

    Args:
        system: The hybrid system.
        estimate: The estimate. Its covariance is symmetric and positive semidefinite up to
            rounding.

    Raises:
        InputError: The mean, covariance or time does not fit the mode. A mode that the system
            does not have is an `UnknownNameError`, which is one too.
    """
    mode = system.mode(check_instance("estimate", estimate, Estimate).mode)
    mean = check_vector("mean", estimate.mean, mode.space.nx)
    mode.space.check("mean", mean)
    p = nearest_semidefinite(check_semidefinite("covariance", estimate.covariance, mode.space.ndx))
    p.setflags(write=False)
    return replace(estimate, time=check_number("time", estimate.time), mean=mean, covariance=p)


def retract(space: Space, x: Array, p: Array, dx: Array) -> tuple[Array, Array]:
    r"""Return mean and covariance after the mean was moved: :math:`x \boxplus dx`, :math:`J P J^T`.

    Args:
        space: Space of the states.
        x: Mean (nx,).
        p: Covariance (ndx, ndx) in the tangent space at x.
        dx: Step (ndx,) of the mean in that tangent space.

    Returns:
        The new mean, and the covariance in the tangent space there, with J from `right_jacobian`.
    """
    if isinstance(space, VectorSpace):
        return x + dx, p
    after, turn = space.normalize(space.integrate(x, dx)), right_jacobian(space, dx)
    return after, turn.dot(p).dot(turn.T)


def right_jacobian(space: Space, dx: Array) -> Array:
    r"""Return J (ndx, ndx) with :math:`(x \boxplus (dx + e)) \boxminus (x \boxplus dx) = J e`.

    The equation holds to first order in e. With T = transport(dx), J is
    :math:`\varphi_1(T) = \sum_k T^k / (k+1)!`; in a vector space it is the identity.

    Args:
        space: Space of the states. Its own method of this name is used if it has one.
        dx: Step (ndx,) in the tangent space.
    """
    own = getattr(space, "right_jacobian", None)
    if own is not None:
        return np.asarray(own(dx))
    step = space.transport(dx)
    total = 0.5 * step
    size = float(np.sqrt(np.vdot(step, step)))
    power, largest = step, size
    for k in range(2, _MAX_SERIES_TERMS):
        largest *= size / (k + 1)
        if largest < _NEGLIGIBLE_TERM:
            break
        power = power @ step
        power *= 1.0 / k
        total += power * (1.0 / (k + 1))
    total.reshape(-1)[:: len(step) + 1] += 1.0
    return total


def move_mean(mode: ModeModel, x: Array, p: Array, dx: Array) -> tuple[Array, Array]:
    """Return mean and covariance after a correction, with the mean on the constraints of its mode.

    A correction moves constrained directions by the compliance of contacts, or to second order.
    Without the projection it would open the contacts.

    Args:
        mode: Mode of the estimate.
        x: Mean (nx,).
        p: Covariance (ndx, ndx) in the tangent space at x.
        dx: Correction (ndx,) of the mean in that tangent space.
    """
    after, p = retract(mode.space, x, p, dx)
    return project_onto_constraints(mode, after), p


def project_onto_constraints(mode: ModeModel, x: Array) -> Array:
    """Return the state near x (nx,) that obeys the constraints of its mode.

    Args:
        mode: The mode.
        x: State (nx,). It is returned itself if the mode has no constraints, if it obeys them to
            their tolerance, or if the projection does not converge.
    """
    if mode.project is None or (
        mode.held is not None and mode.held.excess(x) <= MIN_PROJECTED_RESIDUAL
    ):
        return x
    try:
        return mode.project(x)
    except SimulationError:
        return x


def nearest_semidefinite(p: Array) -> Array:
    """Return the symmetric part of p with negative eigenvalues, which are rounding, set to zero.

    Args:
        p: Covariance (n, n), up to rounding.
    """
    p = 0.5 * (p + p.T)
    if not dpotrf(p)[1]:
        return p
    values, vectors = np.linalg.eigh(p)
    if values[0] >= 0.0:
        return p
    clipped = (vectors * np.maximum(values, 0.0)) @ vectors.T
    return np.asarray(0.5 * (clipped + clipped.T))


def truncate_at_guard(p: Array, gradient: Array, g: float, s: float) -> tuple[Array, Array]:
    r"""Return the moments of the part of a normal distribution where a guard is positive.

    .. math:: \delta x = P g_x^T \frac{r}{s}, \quad
              P' = P - P g_x^T g_x P \frac{r (r + g / s)}{s^2}, \quad
              r = \frac{\varphi(g / s)}{\Phi(g / s)}.

    Args:
        p: Covariance (ndx, ndx).
        gradient: Derivative (ndx,) of the guard at the mean.
        g: The guard at the mean, in its unit.
        s: Standard deviation of the guard, in its unit, above zero.

    Returns:
        The step (ndx,) of the mean, and the covariance (ndx, ndx) of that part.
    """
    spread, (shift, variance) = p @ gradient, truncate_standard_normal(g / s)
    return shift / s * spread, p - (1.0 - variance) * np.outer(spread, spread) / s**2


def truncate_standard_normal(mean: float) -> tuple[float, float]:
    """Return shift of the mean, and variance, of N(mean, 1) truncated to positive values.

    Args:
        mean: Mean before the truncation.
    """
    ratio = float(np.exp(-0.5 * mean**2 - 0.5 * np.log(2.0 * np.pi) - log_ndtr(mean)))
    return ratio, max(1.0 - ratio * (ratio + mean), 0.0)
