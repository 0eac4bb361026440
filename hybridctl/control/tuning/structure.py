"""What is tuned: gains as functions of a vector of parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, check_array, check_vector
from hybridctl.base.errors import InputError
from hybridctl.control.gains import GainSchedule
from hybridctl.control.tuning.prediction import PhantomKey, PredictedCost


@dataclass(frozen=True, eq=False)
class WindowedGains(GainSchedule):
    """Gains, and the lengths of windows around events that are tuned with them, s."""

    windows: tuple[float, ...] = ()


class GainStructure(Protocol):
    """Gains as a function of parameters (p,)."""

    def schedule(self, parameters: Array) -> GainSchedule:
        """The gains."""
        ...


@runtime_checkable
class DifferentiableStructure(GainStructure, Protocol):
    """Gains with the gradient of what depends on them."""

    def gradient(self, parameters: Array, predicted: PredictedCost) -> Array:
        """The gradient (p,) of a cost by the parameters, from that by the gains."""
        ...


@dataclass(frozen=True)
class EntryGains:
    """Gains constant per arc, with some entries free and the others zero.

    shape: (nu, ndx) of K. entries: (row, column) of the free ones. arcs: for each arc of the
    reference the set of gains that it has, 0, 1, ...; arcs with the same number share their
    gains. phantoms: the same for phantom arcs; one left out holds its feedback off.
    positive: the parameters are the logarithms of the entries, which so stay positive.

    The parameters are those of set 0 in the order of `entries`, then those of set 1, and so on.
    """

    shape: tuple[int, int]
    entries: tuple[tuple[int, int], ...]
    arcs: tuple[int, ...]
    phantoms: Mapping[PhantomKey, int] = field(default_factory=dict)
    positive: bool = True

    def __post_init__(self) -> None:
        rows, columns = self.shape
        for row, column in self.entries:
            if not (0 <= row < rows and 0 <= column < columns):
                raise InputError(f"entries must lie inside {self.shape}, got {(row, column)}")
        used = set(self.arcs) | set(self.phantoms.values())
        if used != set(range(len(used))):
            raise InputError(f"sets of gains must be numbered 0, 1, ..., got {sorted(used)}")

    @staticmethod
    def diagonal(
        shape: tuple[int, int],
        arcs: Sequence[int],
        phantoms: Mapping[PhantomKey, int] | None = None,
    ) -> EntryGains:
        """One position and one velocity gain for each input, as [RS] (5.32)-(5.33).

        Input i acts on coordinate i, so that its gains are at columns i and ndx / 2 + i.
        """
        nu, half = shape[0], shape[1] // 2
        entries = tuple((i, i + side) for side in (0, half) for i in range(nu))
        return EntryGains(shape, entries, tuple(arcs), phantoms or {})

    @staticmethod
    def full(
        shape: tuple[int, int],
        arcs: Sequence[int],
        phantoms: Mapping[PhantomKey, int] | None = None,
    ) -> EntryGains:
        """All entries, of either sign."""
        entries = tuple(np.ndindex(*shape))
        return EntryGains(shape, entries, tuple(arcs), phantoms or {}, positive=False)

    @property
    def sets(self) -> int:
        """The number of different gains."""
        return 1 + max(*self.arcs, *self.phantoms.values(), 0)

    def parameters(self, gains: Sequence[ArrayLike], *, least: float = 0.0) -> Array:
        """The parameters of given gains, one K for each set; entries below `least` are raised."""
        if len(gains) != self.sets:
            raise InputError(f"gains must have one matrix per set ({self.sets}), got {len(gains)}")
        found = []
        for i, gain in enumerate(gains):
            k = check_array(f"gains[{i}]", gain, self.shape)
            found += [float(k[entry]) for entry in self.entries]
        if not self.positive:
            return np.array(found)
        values = np.maximum(found, least)
        if not (values > 0.0).all():
            raise InputError(f"entries of positive gains must be positive, got {min(found)}")
        return np.asarray(np.log(values))

    def matrices(self, parameters: ArrayLike) -> list[Array]:
        """The gain K of each set."""
        p = check_vector("parameters", parameters, self.sets * len(self.entries))
        values = np.exp(p) if self.positive else p
        result = []
        for part in values.reshape(self.sets, -1):
            k = np.zeros(self.shape)
            k[tuple(np.array(self.entries).T)] = part
            result.append(k)
        return result

    def schedule(self, parameters: Array) -> GainSchedule:
        """The gains."""
        k = self.matrices(parameters)
        phantoms = {key: k[i] for key, i in self.phantoms.items()}
        return GainSchedule.constant([k[i] for i in self.arcs], phantoms)

    def gradient(self, parameters: Array, predicted: PredictedCost) -> Array:
        """The gradient by the parameters; arcs that the prediction leaves out add nothing."""
        by_set = [np.zeros(self.shape) for _ in range(self.sets)]
        for i, by_gain in zip(self.arcs, predicted.arcs, strict=False):
            by_set[i] += by_gain
        for key, by_gain in predicted.phantoms.items():
            if key in self.phantoms:
                by_set[self.phantoms[key]] += by_gain
        index = tuple(np.array(self.entries).T)
        by_entry = np.concatenate([g[index] for g in by_set])
        return by_entry * np.exp(parameters) if self.positive else by_entry
