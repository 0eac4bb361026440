"""Feedback gains as functions of time: one for each arc, and one for each phantom arc."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.checks import Array, array
from hybridctl.errors import InputError
from hybridctl.files import save_arrays, saved_arrays

Gain = Callable[[float], Array]

FORMAT = 1


@dataclass(frozen=True, eq=False)
class GainCurve:
    """The gain K(t) between the knots `times` (n,), `values` (n, nu, ndx), held outside of them.

    Linear without `slopes`; with them (n, nu, ndx), in 1/s, the cubics that have these values and
    slopes. The feedback is K (alpha - x), so that K is positive where it pulls towards the
    reference.
    """

    times: Array
    values: Array
    slopes: Array | None = None

    def __post_init__(self) -> None:
        times = array("times", self.times, (None,))
        values = array("values", self.values, (len(times), None, None))
        if not len(times) or not (np.diff(times) > 0.0).all():
            raise InputError(f"times must increase and have one entry at least, got {times}")
        object.__setattr__(self, "times", times)
        object.__setattr__(self, "values", values)
        if self.slopes is not None:
            object.__setattr__(self, "slopes", array("slopes", self.slopes, values.shape))

    def __repr__(self) -> str:
        shape = self.values.shape[1:]
        return f"GainCurve({shape}, {len(self.times)} knots)"

    @staticmethod
    def constant(gain: ArrayLike) -> GainCurve:
        """A curve with one K (nu, ndx) at all times."""
        return GainCurve(np.zeros(1), array("gain", gain, (None, None))[None])

    def __call__(self, t: ArrayLike) -> Array:
        """The gain K (..., nu, ndx) at times t (...), or at one."""
        knots, values = self.times, self.values
        if len(knots) == 1 and np.ndim(t) == 0:
            return np.asarray(values[0])
        if len(knots) == 1:
            return np.asarray(np.broadcast_to(values[0], (*np.shape(t), *values.shape[1:])))
        k = np.minimum(np.maximum(knots.searchsorted(t, "right"), 1), len(knots) - 1)
        w = np.minimum(np.maximum((t - knots[k - 1]) / (knots[k] - knots[k - 1]), 0.0), 1.0)
        curves = self._polynomials[k - 1]
        powers = np.ones((*np.shape(t), 1, curves.shape[-2]))
        for j in range(1, curves.shape[-2]):
            powers[..., 0, j] = powers[..., 0, j - 1] * w
        return np.asarray(powers @ curves).reshape(*np.shape(t), *values.shape[1:])

    @cached_property
    def _polynomials(self) -> Array:
        """Coefficients (n - 1, 2 or 4, nu ndx) of the share of the time from knot to knot."""
        values = np.ascontiguousarray(self.values).reshape(len(self.values), -1)
        rise = np.diff(values, axis=0)
        if self.slopes is None:
            return np.stack([values[:-1], rise], axis=1)
        lengths, slopes = (
            np.diff(self.times)[:, None],
            np.ascontiguousarray(self.slopes).reshape(values.shape),
        )
        left, right = lengths * slopes[:-1], lengths * slopes[1:]
        turns = 3.0 * rise - 2.0 * left - right, left + right - 2.0 * rise
        return np.stack([values[:-1], left, *turns], axis=1)

    def rate(self, t: float) -> Array:
        """The derivative of K (nu, ndx) at time t, 1/s; zero outside of the knots."""
        k = int(self.times.searchsorted(t, "right"))
        if k in (0, len(self.times)):
            return np.zeros_like(self.values[0])
        start, end = self.times[k - 1 : k + 1]
        rising = self._polynomials[k - 1, 1:]
        w, j = (t - start) / (end - start), np.arange(len(rising))
        slope = ((j + 1) * w**j) @ rising / (end - start)
        return np.asarray(slope.reshape(self.values.shape[1:]))


@dataclass(frozen=True, eq=False)
class GainSchedule:
    """Gains of a tracking policy: `arcs` has K(t) of each arc of the reference, in order.

    `phantoms` has those of phantom arcs, by the index of the event and the guards that have fired.
    """

    arcs: tuple[GainCurve, ...]
    phantoms: Mapping[tuple[int, frozenset[str]], GainCurve] = field(default_factory=dict)

    @staticmethod
    def constant(
        gains: Sequence[ArrayLike],
        phantoms: Mapping[tuple[int, frozenset[str]], ArrayLike] | None = None,
    ) -> GainSchedule:
        """The schedule of one constant K (nu, ndx) for each arc, and for phantom arcs."""
        return GainSchedule(
            tuple(GainCurve.constant(gain) for gain in gains),
            {key: GainCurve.constant(gain) for key, gain in (phantoms or {}).items()},
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the gains to an .npz file, atomically."""
        keys = list(self.phantoms)
        header = {
            "format": FORMAT,
            "arcs": len(self.arcs),
            "phantoms": [[event, sorted(fired)] for event, fired in keys],
        }
        arrays: dict[str, Any] = {}
        for kind, curves in (("arc", self.arcs), ("phantom", [self.phantoms[k] for k in keys])):
            for i, curve in enumerate(curves):
                arrays[f"{kind}{i}.times"] = curve.times
                arrays[f"{kind}{i}.values"] = curve.values
                if curve.slopes is not None:
                    arrays[f"{kind}{i}.slopes"] = curve.slopes
        save_arrays(path, header, arrays)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> GainSchedule:
        """Read what `save` wrote. Raises `FileFormatError` for anything else."""
        with saved_arrays(path, "gain schedule", FORMAT) as (header, data):

            def curve(name: str) -> GainCurve:
                slopes = data.get(f"{name}.slopes")
                return GainCurve(data[f"{name}.times"], data[f"{name}.values"], slopes)

            return GainSchedule(
                tuple(curve(f"arc{i}") for i in range(header["arcs"])),
                {
                    (event, frozenset(fired)): curve(f"phantom{i}")
                    for i, (event, fired) in enumerate(header["phantoms"])
                },
            )
