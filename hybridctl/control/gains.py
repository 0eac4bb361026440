"""Feedback gains as functions of time: one for each arc, and one for each phantom arc.

The feedback is K (alpha - x), so that K is positive where it pulls towards the reference.
"""

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
from hybridctl.sensitivity.linearization import Linearization

Gain = Callable[[float], Array]
"""A gain K (nu, ndx) as a function of time in s."""

FORMAT = 1
"""Version of the files that `GainSchedule.save` writes."""


@dataclass(frozen=True, eq=False)
class GainCurve:
    """A gain K(t) that is interpolated between knots, and constant before and after them.

    Attributes:
        times: Times (n,) of the knots, s, increasing.
        values: Gains (n, nu, ndx) at the knots.
        slopes: Derivatives (n, nu, ndx) of the gains at the knots, 1/s, for interpolation by
            cubics. None interpolates linearly.

    Raises:
        InputError: The times do not increase, or a shape does not fit.
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
        """Return a curve of a single knot, with one gain (nu, ndx) at all times."""
        return GainCurve(np.zeros(1), check_array("gain", gain, (None, None))[None])

    @staticmethod
    def join(curves: Sequence[GainCurve]) -> GainCurve:
        """Return one curve of several that follow each other in time.

        The last knot of a curve is left out: the first one of the next curve stands at that time.
        The result has slopes if all curves have them; else it is linear between knots.

        Args:
            curves: The curves. Knots that do not increase raise an `InputError`.
        """

        def join_knots(parts: list[Array]) -> Array:
            return np.concatenate([*(part[:-1] for part in parts[:-1]), parts[-1]])

        slopes = [curve.slopes for curve in curves if curve.slopes is not None]
        return GainCurve(
            join_knots([curve.times for curve in curves]),
            join_knots([curve.values for curve in curves]),
            join_knots(slopes) if len(slopes) == len(curves) else None,
        )

    def __call__(self, t: ArrayLike) -> Array:
        """Return the gain (..., nu, ndx) at times t (...) in s."""
        if len(self.times) == 1:
            only = self.values[0]
            return only if np.ndim(t) == 0 else np.broadcast_to(only, (*np.shape(t), *only.shape))
        inside = np.minimum(np.maximum(t, self.times[0]), self.times[-1])
        return np.asarray(self._curve(inside))

    def rate(self, t: float) -> Array:
        """Return the derivative (nu, ndx) of the gain at time t in s, 1/s.

        At a knot it is that from the right; before the first knot, and from the last one on, zero.
        """
        if not self.times[0] <= t < self.times[-1]:
            return np.zeros_like(self.values[0])
        return np.asarray(self._curve(t, 1))

    @cached_property
    def _curve(self) -> PPoly:
        """The polynomials between the knots, of at least two knots."""
        if self.slopes is not None:
            return CubicHermiteSpline(self.times, self.values, self.slopes)
        slopes = np.diff(self.values, axis=0) / np.diff(self.times)[:, None, None]
        return PPoly(np.stack([slopes, self.values[:-1]]), self.times)


@dataclass(frozen=True, eq=False)
class GainSchedule:
    """The gains of a tracking policy.

    Attributes:
        arcs: Gain K(t) of each arc of the reference, in order.
        phantoms: Gains of phantom arcs, by the index of the event and the guards that have fired.
        linearization: First-order map for which the gains were designed. Policies use it to warn of
            runs that start far off (`tracking_law.list_far_starts`). None if they were designed
            without one, and for gains from a file.
    """

    arcs: tuple[GainCurve, ...]
    phantoms: Mapping[tuple[int, frozenset[str]], GainCurve] = field(default_factory=dict)
    linearization: Linearization | None = field(default=None, repr=False)

    @staticmethod
    def constant(
        gains: Sequence[ArrayLike],
        phantoms: Mapping[tuple[int, frozenset[str]], ArrayLike] | None = None,
    ) -> GainSchedule:
        """Return a schedule of constant gains.

        Args:
            gains: Gain (nu, ndx) of each arc.
            phantoms: Gain (nu, ndx) of phantom arcs, by event index and guards that have fired.
        """
        return GainSchedule(
            tuple(GainCurve.constant(gain) for gain in gains),
            {key: GainCurve.constant(gain) for key, gain in (phantoms or {}).items()},
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the gains to an .npz file, whole or not at all; the linearization is left out.

        Args:
            path: Path of the file.
        """
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
        """Return the gains that `save` wrote to a file.

        Args:
            path: Path of the file.

        Raises:
            FileFormatError: The file holds something else.
        """
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
