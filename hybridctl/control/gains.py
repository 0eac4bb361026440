"""Feedback gains as functions of time: one for each arc, and one for each phantom arc."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.interpolate import CubicHermiteSpline, PPoly

from hybridctl.base.checks import Array, check_array
from hybridctl.base.errors import InputError
from hybridctl.base.files import open_arrays, save_arrays

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
        times = check_array("times", self.times, (None,))
        values = check_array("values", self.values, (len(times), None, None))
        if not len(times) or not (np.diff(times) > 0.0).all():
            raise InputError(f"times must increase and have one entry at least, got {times}")
        object.__setattr__(self, "times", times)
        object.__setattr__(self, "values", values)
        if self.slopes is not None:
            object.__setattr__(self, "slopes", check_array("slopes", self.slopes, values.shape))

    def __repr__(self) -> str:
        shape = self.values.shape[1:]
        return f"GainCurve({shape}, {len(self.times)} knots)"

    @staticmethod
    def constant(gain: ArrayLike) -> GainCurve:
        """A curve with one K (nu, ndx) at all times."""
        return GainCurve(np.zeros(1), check_array("gain", gain, (None, None))[None])

    @staticmethod
    def joined(curves: Sequence[GainCurve]) -> GainCurve:
        """The curve of several that follow each other; a knot where two meet is the later one's."""

        def parts(of: list[Array]) -> Array:
            return np.concatenate([*(part[:-1] for part in of[:-1]), of[-1]])

        slopes = [curve.slopes for curve in curves if curve.slopes is not None]
        return GainCurve(
            parts([curve.times for curve in curves]),
            parts([curve.values for curve in curves]),
            parts(slopes) if len(slopes) == len(curves) else None,
        )

    def __call__(self, t: ArrayLike) -> Array:
        """The gain K (..., nu, ndx) at times t (...), or at one."""
        if len(self.times) == 1:
            only = self.values[0]
            return only if np.ndim(t) == 0 else np.broadcast_to(only, (*np.shape(t), *only.shape))
        inside = np.minimum(np.maximum(t, self.times[0]), self.times[-1])
        return np.asarray(self._curve(inside))

    def rate(self, t: float) -> Array:
        """The derivative of K (nu, ndx) at time t, 1/s; zero outside of the knots."""
        if not self.times[0] <= t < self.times[-1]:
            return np.zeros_like(self.values[0])
        return np.asarray(self._curve(t, 1))

    @cached_property
    def _curve(self) -> PPoly:
        """The polynomials between the knots."""
        if self.slopes is not None:
            return CubicHermiteSpline(self.times, self.values, self.slopes)
        slopes = np.diff(self.values, axis=0) / np.diff(self.times)[:, None, None]
        return PPoly(np.stack([slopes, self.values[:-1]]), self.times)


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
        with open_arrays(path, "gain schedule", FORMAT) as (header, data):

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
