"""Input laws on an arc of a reference: u = mu(t) + K(t) (alpha(t) - x), checked and limited."""

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
from hybridctl.base.errors import EffortLimitWarning, InputError
from hybridctl.base.spaces import VectorSpace, compute_difference_jacobians, compute_tangent_map
from hybridctl.control.feedback_terms import FeedbackTerms
from hybridctl.control.gains import GainCurve, GainSchedule
from hybridctl.control.reference import Reference
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.efforts import MOTOR_ROUNDING, describe_excesses
from hybridctl.hybrid.laws import DifferentiableLaw, LinearFeedback
from hybridctl.hybrid.system import HybridSystem

_KEPT = 16  # times
_SAMPLES = 33
"""Times on each arc at which its feedforward is compared with limits."""


@dataclass(frozen=True, eq=False)
class ProjectedGain:
    r"""The gain K(t) P(t), P(t) = I - w(t) R taking a part of the error off in a window.

    R is `removed` (ndx, ndx). The weight is :math:`w = 1 - e^{-s / \tau}` at a time s from the
    nearer end of the window [start, end], with the time `blend` tau; without one it is 1.
    """

    gain: GainCurve
    removed: Array
    start: float
    end: float
    blend: float = 0.0

    def __call__(self, t: ArrayLike) -> Array:
        """The gain K P (..., nu, ndx) at times t (...)."""
        weight = np.asarray(self._weight(np.asarray(t)))[..., None, None]
        gain = self.gain(t)
        return np.asarray(gain - weight * (gain @ self.removed))

    def rate(self, t: float) -> Array:
        """The derivative by time (nu, ndx), 1/s."""
        weight = float(self._weight(np.asarray(t)))
        slope = (1.0 - weight) / self.blend if self.blend else 0.0
        if t - self.start > self.end - t:
            slope = -slope
        turning = self.gain.rate(t)
        return np.asarray(turning - (weight * turning + slope * self.gain(t)) @ self.removed)

    def _weight(self, t: Array) -> Array:
        if not self.blend:
            return np.ones(t.shape)
        inside = np.maximum(np.minimum(t - self.start, self.end - t), 0.0)
        return np.asarray(-np.expm1(-inside / self.blend))


@dataclass(frozen=True, eq=False)
class Tracking(LinearFeedback):
    """The law u = mu(t) + K(t) (alpha(t) - x) on an arc, the difference tangent at x.

    It is a linear feedback in a vector space. limits (2, nu): the least and the greatest input, to
    which u is cut; what is cut has derivative zero. often: whether it acts for so long, or so
    often, that a table of b(t) and K(t) is worth its time (some 3 ms). At the last times they are
    kept, as an implicit step asks for the same few times in each of its iterations.
    """

    arc: Arc
    gain: GainCurve | ProjectedGain
    limits: Array | None
    often: bool = False
    _kept: dict[float, tuple[Array, Array]] = field(default_factory=dict, init=False, repr=False)

    def __call__(self, t: float, x: Array) -> Array:
        """The input (nu,)."""
        return cut(self.demand(t, x), self.limits)

    def along(self, times: Array) -> tuple[Array, Array]:
        """The terms b (k, nu) and K (k, nu, nx) of u = b - K x."""
        if len(times) == 1:
            offset, gain = self.at(float(times[0]))
            return offset[None], gain[None]
        if self._terms is not None:
            return self._terms(times)
        alpha, u = self.arc.states_and_inputs(times)
        gain = self.gain(times)
        return u + (gain @ alpha[:, :, None])[:, :, 0], gain

    def jacobian(self, t: float, x: Array) -> Array:
        """The derivative (nu, ndx) by the state."""
        by_state, _ = compute_difference_jacobians(
            self.arc.space, x, self.arc.state_and_input(t)[0]
        )
        return self._where_free(t, x, self.gain(t) @ by_state)

    def rate(self, t: float, x: Array) -> Array:
        """The derivative (nu,) by time, at a fixed state, 1/s."""
        arc, space = self.arc, self.arc.space
        alpha, _ = arc.state_and_input(t)
        change = self.gain.rate(t) @ space.difference(x, alpha)
        if arc.start <= t <= arc.end:
            _, by_target = compute_difference_jacobians(space, x, alpha)
            velocity = np.linalg.lstsq(
                compute_tangent_map(space, alpha), arc.state_rate(t), rcond=None
            )[0]
            change += arc.input_rate(t) + self.gain(t) @ by_target @ velocity
        return self._where_free(t, x, change)

    def differentiable(self) -> DifferentiableLaw:
        """The law with its derivatives."""
        return DifferentiableLaw(self, self.jacobian, self.rate)

    @cached_property
    def _terms(self) -> FeedbackTerms | None:
        """The table of offsets and gains over time; None for laws that are not tabulated."""
        if self.often and isinstance(self.gain, GainCurve) and self._is_linear:
            return FeedbackTerms(self.arc, self.gain)
        return None

    @property
    def _is_linear(self) -> bool:
        return isinstance(self.arc.space, VectorSpace)

    def demand(self, t: float, x: Array) -> Array:
        """Return the input (nu,) before it is cut to the limits."""
        if self._is_linear:
            b, k = self.at(t)
            return b - k @ x
        alpha, u = self.arc.state_and_input(t)
        return u + self.gain(t) @ self.arc.space.difference(x, alpha)

    def at(self, t: float) -> tuple[Array, Array]:
        """The terms b (nu,) and K (nu, nx) at time t, in a vector space."""
        found = self._kept.get(t)
        if found is None:
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            found = self._kept[t] = self._made(t)
        return found

    def _made(self, t: float) -> tuple[Array, Array]:
        if self._terms is not None:
            (b,), (k,) = self._terms(np.array([t]))
            return b, k
        (alpha, u), k = self.arc.state_and_input(t), self.gain(t)
        return u + k @ alpha, k

    def _where_free(self, t: float, x: Array, change: Array) -> Array:
        """Changes of the input, without those of entries that are cut."""
        if self.limits is not None:
            u = self.demand(t, x)
            change[(u < self.limits[0]) | (u > self.limits[1])] = 0.0
        return change


@dataclass(frozen=True, eq=False)
class Shifted(LinearFeedback):
    """A tracking law in a vector space that is followed later by `late`, s, with an input added.

    Where the state says so, or when an event was, this has no derivatives, and claims none.
    limits: as of the law without them.
    """

    law: Tracking
    limits: Array | None
    late: float
    added: Array | None = None

    def __call__(self, t: float, x: Array) -> Array:
        """The input (nu,)."""
        offset, gain = self.law.at(t - self.late)
        u = offset - gain @ x
        return cut(u if self.added is None else u + self.added, self.limits)

    def along(self, times: Array) -> tuple[Array, Array]:
        """The terms b (k, nu) and K (k, nu, nx) of u = b - K x."""
        offsets, gains = self.law.along(times - self.late)
        return (offsets if self.added is None else offsets + self.added), gains


def cut(u: Array, limits: Array | None) -> Array:
    """The inputs (..., nu) nearest to u within limits (2, nu), if there are some."""
    return u if limits is None else np.minimum(np.maximum(u, limits[0]), limits[1])


def next_jump(arc: Arc, time: float) -> float:
    """When the input of an arc jumps next, one law giving way to another, s; infinite if never."""
    k = bisect_right(arc.changes, time)
    return arc.changes[k] if k < len(arc.changes) else math.inf


def checked_limits(reference: Reference, limits: ArrayLike | None) -> Array | None:
    """Return the limits (2, nu) of the inputs of a policy that tracks a reference.

    Without limits those of the robot's motors hold. Then an `EffortLimitWarning` names the inputs
    of a feedforward that is beyond them.

    Args:
        reference: The reference; its run may be one of a robot.
        limits: Least and greatest inputs (2, nu), or greatest absolute ones (nu,), which may be
            infinite; None for those of the motors.
    """
    nu = reference.arcs[0].inputs.shape[2]
    if limits is not None:
        return input_limits(limits, nu)
    found = motor_limits(reference.nominal.system, nu)
    if found is not None:
        _warn_of_feedforward(reference, found[1])
    return found


def motor_limits(system: HybridSystem | None, nu: int) -> Array | None:
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
        arc.states_and_inputs(np.linspace(arc.start, arc.end, _SAMPLES))[1]
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


def input_limits(limits: ArrayLike | None, nu: int) -> Array | None:
    """Return limits of nu inputs as (2, nu).

    Args:
        limits: Given so, or as (nu,) for the greatest absolute values; inf for none; or None.
        nu: Number of inputs.
    """
    if limits is None:
        return None
    try:
        infinite = np.isinf(convert_to_floats(limits))
    except (TypeError, ValueError, OverflowError):
        infinite = np.zeros(0, dtype=np.bool_)  # `array` says what is wrong
    finite = np.where(infinite, 0.0, limits) if infinite.any() else limits
    shape = (nu,) if check_array("limits", finite).ndim == 1 else (2, nu)
    values = np.array(check_array("limits", finite, shape))
    if infinite.any():
        values[infinite] = np.asarray(limits)[infinite]
    both = np.array([-values, values]) if values.ndim == 1 else values
    if not (both[0] <= both[1]).all():
        raise InputError(f"limits: the least input must not exceed the greatest, got {both}")
    return both


def scheduled(reference: Reference, gains: GainSchedule | Sequence[ArrayLike]) -> GainSchedule:
    """The gains of a reference as a schedule, checked: a `GainSchedule`, or K (nu, ndx) per arc."""
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
