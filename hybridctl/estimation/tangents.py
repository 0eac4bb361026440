"""Tangents: derivatives of estimates by parameters, and how functions of estimates carry them on.

What is exact in them and what a difference is said in `scores`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from hybridctl.checks import Array
from hybridctl.errors import InputError
from hybridctl.estimation.estimate import Estimate, constrained
from hybridctl.estimation.filter import SaltedKalmanFilter
from hybridctl.estimation.filter_model import FilterModel, FilterSettings
from hybridctl.estimation.noise import Noise
from hybridctl.estimation.predict import Prediction
from hybridctl.estimation.state import FilterState
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.system import HybridSystem
from hybridctl.sensitivity.augmentation import ParameterDerivatives
from hybridctl.spaces import Space


class Branch(NamedTuple):
    """An estimate, and the guards of the events on the way to it."""

    estimate: Estimate
    guards: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def of(cls, prediction: Prediction | FilterState) -> Branch:
        """The end of a prediction, with its events."""
        return cls(prediction.estimate, tuple(event.guards for event in prediction.events))

    def same_sequence(self, other: Branch) -> bool:
        """Whether another has come by the same events to the same mode."""
        return (self.estimate.mode, self.guards) == (other.estimate.mode, other.guards)


class Tangent(NamedTuple):
    """Derivatives of an estimate by parameters: mean (ndx, np), covariance (np, ndx, ndx)."""

    mean: Array
    covariance: Array


@dataclass(frozen=True, eq=False)
class Filters:
    """A model and its filter, and both with each parameter a step down and up."""

    models: tuple[FilterModel, ...]
    middle: SaltedKalmanFilter
    sides: tuple[tuple[SaltedKalmanFilter, SaltedKalmanFilter], ...]
    steps: Array
    derivatives: ParameterDerivatives
    settings: FilterSettings
    patience: int | None

    def space(self, key: ModeKey) -> Space:
        """The state space of a mode."""
        return self.middle.model.system.mode(key).space

    def idle(self, estimate: Estimate, tangent: Tangent) -> bool:
        """Whether an estimate that no parameter has touched is in a mode that none touches."""
        noises = [one.model.process_noise for pair in self.sides for one in pair]
        if tangent.mean.any() or tangent.covariance.any() or not _alike(noises):
            return False
        u = np.zeros(self.middle.model.system.mode(estimate.mode).nu)
        return not self.derivatives.field(estimate.mode, estimate.time, estimate.mean, u).any()

    def differences(
        self,
        function: Callable[[SaltedKalmanFilter, Estimate], Branch],
        estimate: Estimate,
        tangent: Tangent,
        after: Branch,
    ) -> Tangent:
        """The tangent of a function of filter and estimate, whose value is `after`."""
        space = self.space(estimate.mode)
        means, covariances = [], []
        for i, (h, pair) in enumerate(zip(self.steps.tolist(), self.sides, strict=True)):
            ends = []
            for sign, one in zip((-h, h), pair, strict=True):
                x = space.integrate(estimate.mean, sign * tangent.mean[:, i])
                x = constrained(one.model.system.mode(estimate.mode), x)
                p = estimate.covariance + sign * tangent.covariance[i]
                ends.append(function(one, replace(estimate, mean=x, covariance=p)))
            mean, covariance = difference(self.space(after.estimate.mode), ends, after, h)
            means.append(mean)
            covariances.append(covariance)
        return Tangent(np.array(means).T, np.array(covariances))


def _alike(noises: Sequence[Noise | None]) -> bool:
    """Whether noises are constant and equal."""
    values: list[Any] = [None if noise is None else noise.value for noise in noises]
    if any(callable(value) or isinstance(value, Mapping) for value in values):
        return False
    return all(np.array_equal(value, values[0]) for value in values)


def difference(
    space: Space, ends: Sequence[Branch], after: Branch, h: float
) -> tuple[Array, Array]:
    """From the ends a step down and up, those that have come by the events of the middle."""
    down, up = (end if end.same_sequence(after) else after for end in ends)
    width = h * ((down is not after) + (up is not after)) or np.inf
    mean = after.estimate.mean
    first, last = (space.difference(mean, end.estimate.mean) for end in (down, up))
    rise = up.estimate.covariance - down.estimate.covariance
    return (last - first) / width, rise / width


def differences_at_a_point(
    system: HybridSystem,
    sides: Sequence[tuple[HybridSystem, HybridSystem]],
    names: Sequence[str],
    steps: Array,
) -> ParameterDerivatives:
    """Derivatives of field, guards and resets at fixed state and input, from systems on both sides.

    sides: for each parameter, those at a step (np,) down and up. Functions that are linear or
    quadratic in a parameter have no error but rounding.
    """

    def each(values: Callable[[HybridSystem], Array]) -> Array:
        pairs = [(values(a), values(b)) for a, b in sides]
        slopes = [(b - a) / (2.0 * h) for (a, b), h in zip(pairs, steps, strict=True)]
        return np.column_stack(slopes)

    def field(key: ModeKey, t: float, x: Array, u: Array) -> Array:
        return each(lambda s: np.asarray(s.mode(key).field(t, x, u), dtype=np.float64))

    def guards(key: ModeKey, t: float, x: Array, u: Array) -> Array:
        return each(lambda s: np.asarray(s.outgoing(key).guards.values(t, x, u), dtype=np.float64))

    def reset(key: ModeKey, fired: tuple[str, ...], t: float, x: Array, u: Array) -> Array:
        edge = system.outgoing(key).edge(fired)
        if edge is None:
            raise InputError(f"mode {key!r} has no edge for guards {fired}")
        jump = edge.reset(t, x, u)
        after = edge.target if jump.mode is None else jump.mode
        space: Space = system.mode(after).space

        def state(side: HybridSystem) -> Array:
            own = side.outgoing(key).edge(fired)
            assert own is not None
            moved: Array = space.difference(jump.state, own.reset(t, x, u).state)
            return moved

        return each(state)

    return ParameterDerivatives(tuple(names), field, guards, reset)
