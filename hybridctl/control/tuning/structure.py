"""Structures of gains: gains as functions of a vector of parameters, which is tuned."""

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
    """Gains, with the widths of windows around events that are tuned with them.

    A `Trial` reads the widths and hands them to the policy that it makes.

    Attributes:
        windows: Widths of the windows, s.
    """

    windows: tuple[float, ...] = ()


class GainStructure(Protocol):
    """Gains as a function of parameters."""

    def schedule(self, parameters: Array) -> GainSchedule:
        """Return the gains of parameters (p,)."""
        ...


@runtime_checkable
class DifferentiableStructure(GainStructure, Protocol):
    """Gains as a differentiable function of parameters."""

    def gradient(self, parameters: Array, predicted: PredictedCost) -> Array:
        """Return the gradient (p,) of a predicted cost by the parameters.

        Args:
            parameters: Parameters (p,).
            predicted: Cost with its gradient by the gains.
        """
        ...


@dataclass(frozen=True)
class EntryGains:
    """Gains that are constant on each arc, with some free entries; the others are zero.

    The parameters are the free entries of set 0 in the order of `entries`, then those of set 1, and
    so on.

    Attributes:
        shape: Shape (nu, ndx) of a gain.
        entries: Pairs (row, column) of the free entries.
        arcs: Number of the set of gains of each arc, 0, 1, ...; arcs of the same number share it.
        phantoms: Number of the set of gains of each phantom arc, by the index of the event and the
            guards that have fired. The feedback is off on phantom arcs that are left out.
        positive: Whether parameters are logarithms of the entries, which so stay positive.

    Raises:
        InputError: An entry lies outside of the shape, or numbers of sets are left out.
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
        """Return a structure with one position and one velocity gain for each input.

        Input i acts on coordinate i, so that its gains are in columns i and ndx / 2 + i, as in
        [RS] (5.32)-(5.33).

        Args:
            shape: Shape (nu, ndx) of a gain.
            arcs: Number of the set of gains of each arc.
            phantoms: Number of the set of gains of phantom arcs; None for no feedback there.
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
        """Return a structure in which all entries are free, of either sign.

        Args:
            shape: Shape (nu, ndx) of a gain.
            arcs: Number of the set of gains of each arc.
            phantoms: Number of the set of gains of phantom arcs; None for no feedback there.
        """
        entries = tuple(np.ndindex(*shape))
        return EntryGains(shape, entries, tuple(arcs), phantoms or {}, positive=False)

    @property
    def sets(self) -> int:
        """Number of sets of gains."""
        return 1 + max(*self.arcs, *self.phantoms.values(), 0)

    def parameters(self, gains: Sequence[ArrayLike], *, least: float = 0.0) -> Array:
        """Return the parameters (p,) of given gains.

        Args:
            gains: Gain (nu, ndx) of each set.
            least: Value to which smaller entries of positive gains are raised.

        Raises:
            InputError: The number or shapes of gains do not fit, or an entry is not positive.
        """
        if len(gains) != self.sets:
            raise InputError(f"gains must have one matrix per set ({self.sets}), got {len(gains)}")
        entries = []
        for i, gain in enumerate(gains):
            k = check_array(f"gains[{i}]", gain, self.shape)
            entries += [float(k[entry]) for entry in self.entries]
        if not self.positive:
            return np.array(entries)
        values = np.maximum(entries, least)
        if not (values > 0.0).all():
            raise InputError(f"entries of positive gains must be positive, got {min(entries)}")
        return np.asarray(np.log(values))

    def matrices(self, parameters: ArrayLike) -> list[Array]:
        """Return the gain (nu, ndx) of each set.

        Args:
            parameters: Parameters (p,), p = sets times entries, or an `InputError` is raised.
        """
        p = check_vector("parameters", parameters, self.sets * len(self.entries))
        values = np.exp(p) if self.positive else p
        result = []
        for part in values.reshape(self.sets, -1):
            k = np.zeros(self.shape)
            k[tuple(np.array(self.entries).T)] = part
            result.append(k)
        return result

    def schedule(self, parameters: Array) -> GainSchedule:
        """Return the gains of parameters (p,)."""
        k = self.matrices(parameters)
        phantoms = {key: k[i] for key, i in self.phantoms.items()}
        return GainSchedule.constant([k[i] for i in self.arcs], phantoms)

    def gradient(self, parameters: Array, predicted: PredictedCost) -> Array:
        """Return the gradient (p,) of a predicted cost by the parameters.

        Arcs that the prediction leaves out add nothing.

        Args:
            parameters: Parameters (p,).
            predicted: Cost with its gradient by the gains.
        """
        by_set = [np.zeros(self.shape) for _ in range(self.sets)]
        for i, by_gain in zip(self.arcs, predicted.arcs, strict=False):
            by_set[i] += by_gain
        for key, by_gain in predicted.phantoms.items():
            if key in self.phantoms:
                by_set[self.phantoms[key]] += by_gain
        index = tuple(np.array(self.entries).T)
        by_entry = np.concatenate([g[index] for g in by_set])
        return by_entry * np.exp(parameters) if self.positive else by_entry
