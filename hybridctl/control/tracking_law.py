r"""The input law of tracking, u = mu(t) + K(t) (alpha(t) - x), its limits and its gains.

alpha(t) and mu(t) are the states and inputs of an arc of a reference, and K(t) is the gain on it.
The difference is taken in the tangent space at x. In a vector space the law is linear feedback,
u = b(t) - K(t) x with :math:`b = \mu + K \alpha`.
"""

from __future__ import annotations

import math
import warnings
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import (
    Array,
    check_array,
    check_instance,
    check_sequence,
    convert_to_floats,
)
from hybridctl.base.errors import (
    EffortLimitWarning,
    HybridctlWarning,
    InputError,
    LinearRangeWarning,
)
from hybridctl.base.spaces import VectorSpace, compute_difference_jacobians, compute_tangent_map
from hybridctl.control.gains import GainCurve, GainSchedule
from hybridctl.control.reference import Reference
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.efforts import MOTOR_ROUNDING, describe_excesses
from hybridctl.hybrid.laws import DifferentiableLaw, LinearFeedback
from hybridctl.hybrid.policy import History
from hybridctl.hybrid.system import HybridSystem
from hybridctl.sensitivity.accurate_range import measure_end_error

_CACHED_TIMES = 16
"""Number of times whose terms a law keeps: an implicit step asks for the same few stages in each of
its iterations. A choice."""
_LIMIT_SAMPLES = 33
"""Number of times on each arc at which the feedforward is compared with the limits of motors."""
_SAME_START = 1e-9
"""Distance of a start from the reference that is rounding, relative to 1 + |x0|."""
_NOTHING_PREDICTED = 10.0
"""Size, relative to that at which a map is off by a tenth, at which it is off by all of it: its
relative error grows as the size. On the hopper of docs/start/plan.md hybrid LQR is still 10 times
better than open loop at 6, on a leg with a stiff PD as feedforward it is worse than that at 300."""
_LEAST_SHOWN_ERROR = 0.3
"""Error of a map for a start beyond that size, relative to what it predicts, that makes a warning.
Errors saturate: it is 0.5 at 15 in test_a_hopper_of_two_links, 0.9 at 360 on the leg with a PD."""
_BREAK_TOLERANCE = 1e-12
"""Distance in s at which a knot of a gain counts as the break of an arc, where mu may jump."""

# b = mu + K alpha has degree 10 between breaks and knots: alpha and mu have 7, and K has 3 at most.
_DEGREES = np.arange(11)
_ANGLES = np.pi * (_DEGREES + 0.5) / len(_DEGREES)
_CHEBYSHEV_ROOTS = np.cos(_ANGLES)
_VALUES_TO_SERIES: Array = np.linalg.inv(np.cos(np.outer(_ANGLES, _DEGREES)))


class FeedbackTable:
    """Table of the terms b(t) and K(t) of linear feedback along an arc, as Chebyshev series.

    A table gives both terms by one product, where mu, alpha and K take three and their sum. It
    takes some 3 ms to make. Before and after the arc, mu and alpha have their end values; beyond
    the knots of the gain, so has K.

    Args:
        arc: Arc in a vector space, with states alpha(t) and inputs mu(t).
        gain: Gain K(t) on it.
    """

    def __init__(self, arc: Arc, gain: GainCurve) -> None:
        breaks = np.append(arc.breaks, arc.breaks[-1] + arc.lengths[-1])
        knots = gain.times if len(gain.times) > 1 else breaks
        distances = np.abs(knots[:, None] - breaks).min(axis=1)
        ends = np.union1d(breaks, knots[distances > _BREAK_TOLERANCE])
        self._starts, self._scales = ends[:-1], 2.0 / np.diff(ends)
        times = (self._starts[:, None] + (1.0 + _CHEBYSHEV_ROOTS) / self._scales[:, None]).ravel()
        alpha, mu = arc.states_and_inputs(times)
        gains = gain(times)
        offsets = mu + (gains @ alpha[:, :, None])[:, :, 0]
        values = np.concatenate((offsets, gains.reshape(len(times), -1)), axis=1)
        self._series = _VALUES_TO_SERIES @ values.reshape(len(self._starts), len(_DEGREES), -1)
        self._shape = gains.shape[1:]

    def __call__(self, times: Array) -> tuple[Array, Array]:
        """Return b (k, nu) and K (k, nu, nx) at times (k,) in s."""
        k = np.maximum(self._starts.searchsorted(times, "right") - 1, 0)
        s = (times - self._starts[k]) * self._scales[k] - 1.0
        angles = np.arccos(np.minimum(np.maximum(s, -1.0), 1.0))
        both = (np.cos(angles[:, None, None] * _DEGREES) @ self._series[k])[:, 0]
        nu = self._shape[0]
        return both[:, :nu], both[:, nu:].reshape(-1, *self._shape)


@dataclass(frozen=True, eq=False)
class ProjectedGain:
    r"""A gain K(t) (I - w(t) R), which leaves a part R of the error out inside a window.

    The weight is :math:`w = 1 - e^{-s / \tau}` at a time s from the nearer end of the window, so
    that the gain sets in without a jump, and 1 everywhere if tau is zero. Outside of the window the
    gain is not used.

    Attributes:
        gain: Gain K(t).
        removed: Part R (ndx, ndx) of the error that is left out.
        start: Start of the window, s.
        end: End of the window, s.
        blend: Time constant tau of the weight at both ends, s.
    """

    gain: GainCurve
    removed: Array
    start: float
    end: float
    blend: float = 0.0

    def __call__(self, t: ArrayLike) -> Array:
        """Return the gain (..., nu, ndx) at times t (...) in s."""
        weight = np.asarray(self._weight(np.asarray(t)))[..., None, None]
        gain = self.gain(t)
        return np.asarray(gain - weight * (gain @ self.removed))

    def rate(self, t: float) -> Array:
        """Return the derivative of the gain (nu, ndx) by time, 1/s."""
        weight = float(self._weight(np.asarray(t)))
        weight_rate = (1.0 - weight) / self.blend if self.blend else 0.0
        # dw/ds = (1 - w) / tau. If the end is nearer, s and with it the weight fall.
        if t - self.start > self.end - t:
            weight_rate = -weight_rate
        gain_rate = self.gain.rate(t)
        change = weight * gain_rate + weight_rate * self.gain(t)
        return np.asarray(gain_rate - change @ self.removed)

    def _weight(self, t: Array) -> Array:
        """Return the weight w (...) of the part that is left out at times t (...) in s."""
        if not self.blend:
            return np.ones(t.shape)
        distance = np.maximum(np.minimum(t - self.start, self.end - t), 0.0)
        return np.asarray(-np.expm1(-distance / self.blend))


@dataclass(frozen=True, eq=False)
class TrackingLaw(LinearFeedback):
    """The law u = mu(t) + K(t) (alpha(t) - x) along an arc, cut to limits.

    Attributes:
        arc: Arc of the reference, with states alpha(t) and inputs mu(t).
        gain: Gain K(t).
        limits: Least and greatest input (2, nu), or None. The derivatives of an input that is cut
            are zero.
        is_tabulated: Whether b(t) and K(t) are put into a `FeedbackTable` at first use. That pays
            for laws that act for long. It needs a vector space and a `GainCurve`.
    """

    arc: Arc
    gain: GainCurve | ProjectedGain
    limits: Array | None
    is_tabulated: bool = False
    _cache: dict[float, tuple[Array, Array]] = field(default_factory=dict, init=False, repr=False)

    def __call__(self, t: float, x: Array) -> Array:
        """Return the input (nu,) at time t in s and state x (nx,)."""
        return clip_input(self.demand(t, x), self.limits)

    def demand(self, t: float, x: Array) -> Array:
        """Return the input (nu,) before it is cut to the limits."""
        if self._is_linear:
            b, k = self.terms_at(t)
            return b - k @ x
        alpha, mu = self.arc.state_and_input(t)
        return mu + self.gain(t) @ self.arc.space.difference(x, alpha)

    def find_offsets_and_gains(self, times: Array) -> tuple[Array, Array]:
        """Return the terms b (k, nu) and K (k, nu, nx) of u = b - K x at times (k,), in s.

        Only laws on a vector space have them.
        """
        if len(times) == 1:
            offset, gain = self.terms_at(float(times[0]))
            return offset[None], gain[None]
        if self._table is not None:
            return self._table(times)
        alpha, mu = self.arc.states_and_inputs(times)
        gain = self.gain(times)
        return mu + (gain @ alpha[:, :, None])[:, :, 0], gain

    def terms_at(self, t: float) -> tuple[Array, Array]:
        """Return the terms b (nu,) and K (nu, nx) of u = b - K x at time t, in s.

        Only laws on a vector space have them. The last terms are kept in a cache.
        """
        terms = self._cache.get(t)
        if terms is None:
            if len(self._cache) >= _CACHED_TIMES:
                self._cache.clear()
            terms = self._cache[t] = self._compute_terms(t)
        return terms

    def jacobian(self, t: float, x: Array) -> Array:
        """Return the derivative D_x u (nu, ndx), in the tangent space at x.

        In a vector space it is -K(t). Rows of inputs that are cut to a limit are zero.

        Args:
            t: Time, s.
            x: State (nx,).
        """
        alpha, _ = self.arc.state_and_input(t)
        by_state, _ = compute_difference_jacobians(self.arc.space, x, alpha)
        return self._zero_where_cut(t, x, self.gain(t) @ by_state)

    def rate(self, t: float, x: Array) -> Array:
        """Return the derivative (nu,) of the input by time at a fixed state, 1/s.

        Entries of inputs that are cut to a limit are zero.

        Args:
            t: Time, s.
            x: State (nx,).
        """
        arc, space = self.arc, self.arc.space
        alpha, _ = arc.state_and_input(t)
        rate = self.gain.rate(t) @ space.difference(x, alpha)
        if arc.start <= t <= arc.end:  # beyond the arc, alpha and mu stand still
            _, by_target = compute_difference_jacobians(space, x, alpha)
            # The velocity of alpha in the tangent space, of the rates of its coordinates.
            velocity = np.linalg.lstsq(
                compute_tangent_map(space, alpha), arc.state_rate(t), rcond=None
            )[0]
            rate += arc.input_rate(t) + self.gain(t) @ by_target @ velocity
        return self._zero_where_cut(t, x, rate)

    def differentiable(self) -> DifferentiableLaw:
        """Return the law with its derivatives."""
        return DifferentiableLaw(self, self.jacobian, self.rate)

    @cached_property
    def _table(self) -> FeedbackTable | None:
        """The table of both terms; None where they are computed at each time."""
        if self.is_tabulated and isinstance(self.gain, GainCurve) and self._is_linear:
            return FeedbackTable(self.arc, self.gain)
        return None

    @property
    def _is_linear(self) -> bool:
        return isinstance(self.arc.space, VectorSpace)

    def _compute_terms(self, t: float) -> tuple[Array, Array]:
        if self._table is not None:
            (b,), (k,) = self._table(np.array([t]))
            return b, k
        (alpha, mu), k = self.arc.state_and_input(t), self.gain(t)
        return mu + k @ alpha, k

    def _zero_where_cut(self, t: float, x: Array, derivative: Array) -> Array:
        """Return a derivative (nu, ...) after setting rows to zero whose input is cut.

        Args:
            t: Time, s.
            x: State (nx,).
            derivative: The derivative, which is changed in place.
        """
        if self.limits is not None:
            u = self.demand(t, x)
            derivative[(u < self.limits[0]) | (u > self.limits[1])] = 0.0
        return derivative


def clip_input(u: Array, limits: Array | None) -> Array:
    """Return the inputs (..., nu) nearest to u within the limits.

    Args:
        u: Inputs (..., nu).
        limits: Least and greatest input (2, nu), or None for none.
    """
    return u if limits is None else np.minimum(np.maximum(u, limits[0]), limits[1])


def find_next_input_jump(arc: Arc, time: float) -> float:
    """Return when the input of an arc jumps next, s; infinite where it does not.

    Args:
        arc: The arc.
        time: Time, s; only later jumps count.
    """
    k = bisect_right(arc.changes, time)
    return arc.changes[k] if k < len(arc.changes) else math.inf


def resolve_limits(reference: Reference, limits: ArrayLike | None) -> Array | None:
    """Return the limits (2, nu) of the inputs of a policy that tracks a reference.

    Without limits those of the robot's motors hold. Then an `EffortLimitWarning` names the inputs
    of a feedforward that is beyond them.

    Args:
        reference: The reference; its run may be one of a robot.
        limits: Least and greatest inputs (2, nu), or greatest absolute ones (nu,), which may be
            infinite; None for those of the motors.

    Raises:
        InputError: The limits do not fit the inputs, or the least exceeds the greatest.
    """
    nu = reference.arcs[0].inputs.shape[2]
    if limits is not None:
        return parse_limits(limits, nu)
    motor_limits = get_motor_limits(reference.nominal.system, nu)
    if motor_limits is not None:
        _warn_of_feedforward(reference, motor_limits[1])
    return motor_limits


def get_motor_limits(system: HybridSystem | None, nu: int) -> Array | None:
    """Return the limits (2, nu) of the motors of a robot, None where none is known.

    Args:
        system: A system that is or is made of a robot with contacts, or any other.
        nu: Number of inputs. A system with further inputs has none of its own.
    """
    mechanism = None if system is None else system.mechanism
    effort = None if mechanism is None else np.asarray(mechanism.robot.effort)
    if effort is None or len(effort) != nu or not np.isfinite(effort).any():
        return None
    return np.array([-effort, effort])


def _warn_of_feedforward(reference: Reference, effort: Array) -> None:
    """Warn of inputs of the nominal run that are beyond the motors' limits.

    Args:
        reference: Reference whose nominal inputs are sampled.
        effort: Largest torques in N m or forces in N (nu,), inf without a limit.
    """
    sampled = [
        arc.states_and_inputs(np.linspace(arc.start, arc.end, _LIMIT_SAMPLES))[1]
        for arc in reference.nominal.arcs
    ]
    most = np.abs(np.concatenate(sampled)).max(axis=0)
    beyond = np.flatnonzero(most > effort * (1.0 + MOTOR_ROUNDING)).tolist()
    if beyond:
        system, key = reference.nominal.system, reference.nominal.arcs[0].mode
        assert system is not None
        labels = system.input_labels(key)
        listed = [f"{labels[i]}: {most[i]:.6g} of {effort[i]:.6g}" for i in beyond]
        warnings.warn(
            "the reference needs more than the motors have (Robot.effort) and is cut: "
            f"{describe_excesses(listed)}",
            EffortLimitWarning,
            stacklevel=4,
        )


def list_far_starts(
    reference: Reference, gains: GainSchedule, history: History
) -> list[HybridctlWarning]:
    """Return a list with a warning if a run starts so far off that first order predicts nothing.

    Otherwise the list is empty.

    Gains of `hybrid_lqr` are optimal to first order. The error of the first-order map grows with
    the size of a perturbation; the warning comes where it should be as large as what the map
    predicts. The range is that of one direction, in which an error may be greater than in that of
    the start. So one motion from the start itself must show an error, too.

    Args:
        reference: The reference that is tracked.
        gains: Its gains. Without a linearization, or where that is too long to measure its range,
            there is no warning.
        history: The start of the run. No warning is given if the reference starts at another time
            or in another mode.
    """
    lin, arc = gains.linearization, reference.nominal.arcs[0]
    if lin is None or history.time != arc.start or history.mode != arc.mode:
        return []
    off = arc.space.difference(arc(arc.start), history.state)
    size = float(np.linalg.norm(off))
    if size <= _SAME_START * (1.0 + float(np.abs(history.state).max(initial=0.0))):
        return []
    known = lin.quick_range
    if known is None or not np.isfinite(known.size):
        return []
    # Sizes along different directions are compared by what they become at the end of the run.
    times_beyond = float(np.linalg.norm(lin.derivative(off))) / (known.growth * known.size)
    if times_beyond <= _NOTHING_PREDICTED or measure_end_error(lin, off) < _LEAST_SHOWN_ERROR:
        return []
    return [
        LinearRangeWarning(
            f"the start is {size:.2g} off the reference (|dx0|), {times_beyond:.0f} times as far "
            "as the linearization holds to 10 % on which the gains rest "
            f"({known.size:.2g} in the direction that grows most, see "
            "Linearization.accurate_range): compare with a simple law in simulated runs"
        )
    ]


def parse_limits(limits: ArrayLike | None, nu: int) -> Array | None:
    """Return limits of inputs as the least and the greatest of each.

    Args:
        limits: Least and greatest inputs (2, nu), or greatest absolute ones (nu,); infinite where
            there is none. None for no limits at all.
        nu: Number of inputs.

    Returns:
        Limits (2, nu), or None.

    Raises:
        InputError: The shape does not fit, an entry is not a number, or the least exceeds the
            greatest.
    """
    if limits is None:
        return None
    try:
        infinite = np.isinf(convert_to_floats(limits))
    except (TypeError, ValueError, OverflowError):
        infinite = np.zeros(0, dtype=np.bool_)  # `check_array` names what is wrong
    # `check_array` takes finite numbers alone, so it sees zeros in the place of infinities.
    finite = np.where(infinite, 0.0, limits) if infinite.any() else limits
    shape = (nu,) if check_array("limits", finite).ndim == 1 else (2, nu)
    values = np.array(check_array("limits", finite, shape))
    if infinite.any():
        values[infinite] = np.asarray(limits)[infinite]
    both = np.array([-values, values]) if values.ndim == 1 else values
    if not (both[0] <= both[1]).all():
        raise InputError(f"limits: the least input must not exceed the greatest, got {both}")
    return both


def make_schedule(reference: Reference, gains: GainSchedule | Sequence[ArrayLike]) -> GainSchedule:
    """Return the gains of a reference as a schedule that fits it.

    Args:
        reference: The reference.
        gains: A schedule, or one constant gain (nu, ndx) for each arc of the reference.

    Raises:
        InputError: The number or shapes of gains do not fit, or a gain is of no phantom arc.
    """
    check_instance("reference", reference, Reference)
    if not isinstance(gains, GainSchedule):
        given = enumerate(check_sequence("gains", gains))
        gains = GainSchedule.constant(
            [check_array(f"gains[{i}]", k, (None, None)) for i, k in given]
        )
    if len(gains.arcs) != len(reference.arcs):
        raise InputError(
            f"gains must have one matrix per arc ({len(reference.arcs)}), got {len(gains.arcs)}"
        )
    pairs = enumerate(zip(gains.arcs, reference.arcs, strict=True))
    curves = [(f"gains[{i}]", curve, arc) for i, (curve, arc) in pairs]
    for (event, fired), curve in gains.phantoms.items():
        name = f"phantom gain of event {event} after {sorted(fired)}"
        if (event, fired) not in reference.phantoms:
            known = [(k, sorted(names)) for k, names in reference.phantoms]
            raise InputError(f"{name}: there is no such phantom arc, only {known}")
        curves.append((name, curve, reference.phantoms[event, fired].arc))
    for name, curve, arc in curves:
        shape = (arc.inputs.shape[2], arc.space.ndx)
        if curve.values.shape[1:] != shape:
            raise InputError(f"{name} must have shape {shape}, got {curve.values.shape[1:]}")
    return gains
