"""The levels that make a filter most likely on training tosses, see `estimation.likelihood`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from hybridctl.experiments.cube_filter.score import filtered
from hybridctl.robots.filter_models import CubeSettings, cube_model

from hybridctl.checks import Array
from hybridctl.errors import InputError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.likelihood import fit_noise
from hybridctl.estimation.record import Record
from hybridctl.estimation.result import FilterResult
from hybridctl.estimation.start import first_estimate

LEVELS = (
    "position_noise",
    "angle_noise",
    "force_noise",
    "reset_noise",
    "guard_noise",
    "friction",
    "restitution",
    "rounding",
)
TOLERANCE = 0.05  # of the logarithm of a level
FACTOR = 100.0  # by which noise may end above or below where it starts
LIMITS = {"friction": (0.01, 2.0), "restitution": (1e-3, 1.0), "rounding": (1e-4, 1e-2)}


@dataclass(frozen=True)
class Fit:
    """Where a search ended; log_likelihood: per row."""

    settings: CubeSettings
    log_likelihood: float
    evaluations: int
    converged: bool

    def record(self) -> dict[str, Any]:
        """As it stands in summary.json, beside the levels."""
        return {name: value for name, value in vars(self).items() if name != "settings"}


def levels_of(settings: CubeSettings) -> dict[str, float]:
    """The levels by name; torques about the centre are forces times the half width."""
    return {name: float(getattr(settings, name)) for name in LEVELS}


def at_levels(settings: CubeSettings, names: Sequence[str], values: Array) -> CubeSettings:
    """Settings with other levels, torques along with their forces."""
    found = replace(settings, **dict(zip(names, values.tolist(), strict=True)))
    return replace(
        found,
        torque_noise=found.half_width * found.force_noise,
        reset_torque=found.half_width * found.reset_noise,
    )


@dataclass(frozen=True, eq=False)
class Tossed:
    """A filter that starts from the first poses of a toss, whatever the estimate it is given."""

    name: str
    settings: CubeSettings

    def run(self, record: Record, initial: Estimate) -> FilterResult:
        """Filter a toss."""
        result: FilterResult = filtered(self.name, self.settings, record)[0]
        return result


def search(
    name: str,
    settings: CubeSettings,
    tosses: Sequence[Record],
    free: Sequence[str],
    evaluations: int,
    executor: Executor | None,
    told: Callable[[float, CubeSettings], None],
) -> Fit:
    """The most likely levels found, by so many evaluations for each that is free.

    told(log-likelihood per row, settings): after each evaluation.
    """
    start = np.array([getattr(settings, level) for level in free])
    if not (start > 0.0).all():
        raise InputError(f"levels must be positive where they are free, got {settings}")
    rows = sum(len(toss.channels["pose"]) - settings.warm_up for toss in tosses)
    limits = [LIMITS.get(n, (v / FACTOR, v * FACTOR)) for n, v in zip(free, start, strict=True)]
    found = fit_noise(
        partial(_tossed, name, settings, tuple(free)),
        tosses,
        [first_estimate(cube_model(settings), settings, tosses[0])[0]],
        start,
        bounds=limits,
        tolerance=TOLERANCE,
        max_evaluations=evaluations * len(free),
        executor=executor,
        progress=lambda values, total: told(total / rows, at_levels(settings, free, values)),
    )
    best = at_levels(settings, free, found.levels)
    return Fit(best, found.log_likelihood / rows, found.evaluations, found.converged)


def _tossed(name: str, settings: CubeSettings, free: Sequence[str], values: Array) -> Tossed:
    return Tossed(name, at_levels(settings, free, values))
