"""The levels that make a filter most likely on training tosses, in two stages.

The search is that of `hybridctl.estimation.likelihood`: first on a few tosses, then from what it
found there on all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from hybridctl.experiments.cube_filter.score import (
    EVENTS,
    SEVERAL,
    Levels,
    Setting,
    StartedFilter,
    started,
    to_filter,
)
from hybridctl.experiments.cube_filter.toss import Toss
from hybridctl.robots import cube

from hybridctl.checks import Array
from hybridctl.errors import FileFormatError, InputError
from hybridctl.estimation.likelihood import fit_noise
from hybridctl.report import RunFolder, build_configuration

NAMES = tuple(field.name for field in fields(Levels))
TOLERANCE = 0.05  # of the logarithm of a level
SLOW = ("unscented", "particle")  # judged on few tosses
BORROWED = (SEVERAL, *SLOW)  # not searched: they run at the levels of the salted filter
FACTOR = 100.0  # by which noise may end above or below where it starts
LIMITS = {"friction": (0.01, 2.0), "restitution": (1e-3, 1.0), "rounding": (1e-4, 1e-2)}


class Case(NamedTuple):
    """A filter with noise of events or without."""

    name: str
    noisy: bool

    @property
    def label(self) -> str:
        """As it stands in tables."""
        return f"{self.name}, {'with' if self.noisy else 'without'} event noise"

    @property
    def file(self) -> str:
        """As it stands in names of files."""
        return f"{self.name}-{'with' if self.noisy else 'without'}-event-noise"

    def searched(self, names: Sequence[str]) -> tuple[str, ...]:
        """Those of the levels that this filter depends on."""
        idle = set() if self.noisy else set(EVENTS)
        return tuple(name for name in names if name not in idle)


@dataclass(frozen=True)
class Stages:
    """How much a search may cost: so many evaluations for each free level, on so many tosses."""

    fitted_first: int
    evaluations_first: int
    evaluations: int


@dataclass(frozen=True)
class Fit:
    """Where a search ended; log_likelihood: per row of all tosses. converged: its last stage."""

    levels: Levels
    log_likelihood: float
    evaluations: int
    converged: bool


class Trace:
    """Every evaluation of every search, in a table that is written anew after each."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.lines = [",".join(("case", "tosses", "evaluation", "log_likelihood_per_row", *NAMES))]

    def add(self, case: Case, tosses: int, evaluation: int, value: float, levels: Levels) -> None:
        """One line."""
        numbers = [f"{v:.6g}" for v in (value, *asdict(levels).values())]
        self.lines.append(",".join((case.file, str(tosses), str(evaluation), *numbers)))
        self.folder.write_text("search.csv", "\n".join(self.lines) + "\n")


Evaluated = Callable[[int, int, float, Levels], None]


def search(
    setting: Setting,
    tosses: Sequence[Toss],
    free: Sequence[str],
    stages: Stages,
    executor: Executor | None,
    evaluated: Evaluated,
) -> Fit:
    """The most likely levels found; evaluated(tosses, number, log-likelihood per row, levels)."""
    some = min(stages.fitted_first, len(tosses))
    few = [tosses[k * len(tosses) // some] for k in range(some)]
    if some < len(tosses):
        plan = [(few, stages.evaluations_first), (list(tosses), stages.evaluations)]
    else:
        plan = [(few, stages.evaluations_first + stages.evaluations)]
    done = 0
    for part, each in plan:
        fit = _stage(setting, part, free, each * len(free), executor, evaluated, done)
        done, setting = fit.evaluations, replace(setting, levels=fit.levels)
    return fit


def _stage(
    setting: Setting,
    tosses: Sequence[Toss],
    free: Sequence[str],
    most: int,
    executor: Executor | None,
    evaluated: Evaluated,
    done: int,
) -> Fit:
    records, initials = zip(*(to_filter(toss, setting.levels) for toss in tosses), strict=True)
    rows = sum(len(record.channels["pose"].times) for record in records)
    start = np.array([getattr(setting.levels, name) for name in free])
    if not (start > 0.0).all():
        raise InputError(f"levels must be positive where they are free, got {setting.levels}")
    limits = [LIMITS.get(n, (v / FACTOR, v * FACTOR)) for n, v in zip(free, start, strict=True)]
    number = done

    def told(values: Array, total: float) -> None:
        nonlocal number
        number += 1
        evaluated(len(tosses), number, total / rows, changed(setting.levels, free, values))

    body, rate = tosses[0].model, tosses[0].rate
    found = fit_noise(
        partial(at_levels, setting, body, rate, tuple(free)),
        records,
        initials,
        start,
        bounds=limits,
        tolerance=TOLERANCE,
        max_evaluations=most,
        executor=executor,
        progress=told,
    )
    levels = changed(setting.levels, free, found.levels)
    return Fit(levels, found.log_likelihood / rows, number, found.converged)


def at_levels(
    setting: Setting, body: cube.Parameters, rate: float, free: Sequence[str], values: Array
) -> StartedFilter:
    """The filter with other values of its free levels."""
    return started(replace(setting, levels=changed(setting.levels, free, values)), body, rate)


def changed(levels: Levels, free: Sequence[str], values: Array) -> Levels:
    """Levels with other values of the free ones."""
    return replace(levels, **dict(zip(free, values.tolist(), strict=True)))


def earlier_levels(path: str) -> dict[Case, Levels]:
    """The levels in the summary.json of an earlier run, also of one that was stopped.

    Raises `FileFormatError` for a file that is none.
    """
    try:
        filters = json.loads(Path(path).read_text())["filters"]
        return {
            Case(str(f["name"]), bool(f["event_noise"])): build_configuration(Levels, f["levels"])
            for f in filters
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileFormatError(
            f"levels_from {path} is no summary of this experiment: {error}"
        ) from error
