"""Filters on recorded tosses of a cube: which is honest about impacts, with noise or without?

All filters have the same noise of impacts (impulses, and the height of the table), so that the
three strategies differ by their matrix alone. With `evaluations` some tosses serve to choose the
noise of each, by its likelihood, and with `event_noise` of (true, false) also without noise of
impacts; others, held out, judge it. Only the pose is measured. "several" is the salted filter with
several hypotheses; it, the unscented and the particle filter run at the levels of the salted one.
Without recordings simulated tosses take their place, on which the model is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from hybridctl.experiments.cube_filter import figures
from hybridctl.experiments.cube_filter.fit import (
    BORROWED,
    NAMES,
    SLOW,
    Case,
    Fit,
    Stages,
    Trace,
    earlier_levels,
    search,
)
from hybridctl.experiments.cube_filter.score import (
    EVENTS,
    FILTERS,
    SEVERAL,
    STRATEGIES,
    Levels,
    Score,
    Setting,
    rounded,
    score,
)
from hybridctl.experiments.cube_filter.tables import (
    comparisons,
    print_tables,
    record,
    rows_text,
    share_in_contact,
    toss_record,
)
from hybridctl.experiments.cube_filter.toss import (
    Calibration,
    Toss,
    calibrate,
    levelled,
    recorded,
    synthetic,
)
from hybridctl.robots import cube
from rich.console import Console

from hybridctl.checks import count, member, number
from hybridctl.errors import InputError
from hybridctl.report import RunFolder, Tick, progress
from hybridctl.workers import crew

SUMMARY = "Kalman filters on recorded tosses of a cube, with and without noise of impacts"

TRAINING, HELD_OUT = range(100), range(100, 200)
ORIGIN = "DAIRLab/contact-nets on GitHub, data/tosses_processed"
RATE = 148.0  # 1/s, of simulated tosses
# What a search of the salted filter on 30 of the tosses 0 to 99 ended at.
RECORDED = Levels(7.3e-5, 2.7e-3, 3.3e-2, 1.9e-2, 3.1e-3, 0.16, 0.24, 5.4e-3)


@dataclass(frozen=True)
class Config:
    """What is run on which tosses.

    data: file of recorded tosses; without, tosses are simulated for `duration` s. rescale: whether
    their lengths are scaled so that they fall with g. fitted, judged: how many tosses, evenly from
    numbers 0 to 99 and 100 to 199; fitted_first: those of the first stage of a search. judged_slow:
    how many for the slow filters, "unscented" and "particle", the latter of so many `particles`.
    after: s from the first touch on, the rest of a toss is left out. span: s after an impact in
    which innovations are compared. evaluations_first, evaluations: of the likelihood in the two
    stages of a search, for each free level; evaluations 0 for no search. levels: of all filters, or
    where searches start; left as they are, `RECORDED` for recordings. free: which of them change.
    levels_from: summary.json of an earlier run, also of one that was stopped: its levels are taken
    as they are, without a search. hypotheses: how many the filter "several" follows. event_noise:
    whether filters have it, one case for each. gate: probability with which a right pose passes,
    None takes all; patience: how many it rejects in a row until the poses are believed. workers:
    processes; dask: the scheduler of a cluster instead.
    """

    data: str | None = None
    rescale: bool = True
    fitted: int = 40
    fitted_first: int = 10
    judged: int = 100
    judged_slow: int = 10
    after: float = 0.25
    span: float = 0.05
    filters: tuple[str, ...] = (*STRATEGIES, SEVERAL)
    event_noise: tuple[bool, ...] = (True,)
    evaluations_first: int = 12
    evaluations: int = 0
    levels: Levels = field(default_factory=Levels)
    free: tuple[str, ...] = NAMES
    levels_from: str | None = None
    hypotheses: int = 4
    duration: float = 0.4
    rtol: float = 1e-6
    particles: int = 200
    gate: float | None = 0.9999
    patience: int | None = 3
    workers: int = 2
    dask: str | None = None

    def __post_init__(self) -> None:
        for name in ("data", "levels_from"):
            if not isinstance(getattr(self, name), str | None):
                raise InputError(f"{name} must be the path of a file, got {getattr(self, name)!r}")
        for name, tosses in (
            ("fitted", TRAINING),
            ("fitted_first", TRAINING),
            ("judged", HELD_OUT),
            ("judged_slow", HELD_OUT),
        ):
            if count(name, getattr(self, name)) > len(tosses):
                raise InputError(f"{name} must be at most {len(tosses)}")
        for name in ("after", "duration", "rtol"):
            number(name, getattr(self, name), above=0.0)
        number("span", self.span, at_least=0.0)
        count("hypotheses", self.hypotheses)
        for name, known in (("filters", FILTERS), ("free", NAMES)):
            if not getattr(self, name):
                raise InputError(f"{name} must name one at least, of {list(known)}")
            for value in getattr(self, name):
                member(name, value, known)
        count("evaluations_first", self.evaluations_first)
        count("evaluations", self.evaluations, at_least=0)
        count("particles", self.particles, at_least=2)
        if self.gate is not None:
            number("gate", self.gate, above=0.0, at_most=1.0 - 1e-15)
        if self.patience is not None:
            count("patience", self.patience)
        count("workers", self.workers)


class Outcome(NamedTuple):
    """A case: its levels, how the search for them went, if there was one, and its tosses."""

    levels: Levels
    fit: Fit | None
    scores: list[Score]


def quick(config: Config) -> Config:
    """One short toss, no search, fast filters only."""
    fast = tuple(name for name in config.filters if name not in SLOW) or config.filters
    return replace(
        config,
        fitted=1,
        judged=1,
        judged_slow=1,
        filters=fast,
        evaluations=0,
        after=0.05,
        duration=0.25,
        particles=20,
        workers=1,
    )


def run(config: Config, folder: RunFolder, console: Console) -> dict[str, Any]:
    """Run the experiment; returns what it writes to summary.json, anew after each case."""
    folder.write_configuration(config, seed=None)
    earlier = {} if config.levels_from is None else earlier_levels(config.levels_from)
    if config.data is None:
        console.print(f"no recordings given (data=FILE; they are from {ORIGIN}): tosses simulated")
    training, held, calibration = prepare(config)
    trace, outcomes, summary = Trace(folder), dict[Case, Outcome](), dict[str, Any]()
    with progress(console, 0.0, 1.0) as begin, crew(config.workers, config.dask) as workers:
        executor = workers.others
        for case in cases(config):
            levels, fit = start(config, case, outcomes), None
            if case in earlier:
                levels = earlier[case]
            elif config.evaluations and case.name not in BORROWED:
                watched = watch(config, case, trace, console, begin(f"{case.label}: levels"))
                fit = fitted(config, case, levels, training, executor, watched)
                levels = fit.levels
            some = held if case.name not in SLOW else thinned(held, config.judged_slow)
            tick = begin(f"{case.label}: {len(some)} tosses")
            found = judged(config, setting(config, case, levels), some, calibration, executor, tick)
            outcomes[case] = Outcome(levels, fit, found)
            folder.write_text(
                f"rows/{case.label.replace(', ', '-').replace(' ', '-')}.csv", rows_text(found)
            )
            summary = summarized(config, training, calibration, outcomes)
            folder.write_json("summary.json", summary)
    print_tables(console, summary)
    with console.status("drawing the figure"):
        shown = {case.label: found.scores for case, found in outcomes.items()}
        figures.draw(folder / "figures/cube_filter.png", shown)
    return summary


def prepare(config: Config) -> tuple[list[Toss], list[Toss], Calibration]:
    """Tosses to fit and to judge, and the calibration, from the recordings 0 to 99 only."""
    body = cube.Parameters()
    fitted, judged = evenly(TRAINING, config.fitted), evenly(HELD_OUT, config.judged)
    if config.data is None:
        training, held = ([simulated(config, k) for k in numbers] for numbers in (fitted, judged))
        calibration = Calibration(0.0, 2e-3)
    else:
        everything = recorded(config.data, TRAINING, body)
        calibration = calibrate(everything, scaled=config.rescale)
        training, held = [everything[k] for k in fitted], recorded(config.data, judged, body)
    cut = [[levelled(t, calibration, config.after) for t in some] for some in (training, held)]
    return cut[0], cut[1], calibration


def simulated(config: Config, number: int) -> Toss:
    """A toss by the model of the filters."""
    body, radius = cube.Parameters(), config.levels.rounding
    toss = synthetic(number, rounded(body, config.levels), config.duration, RATE)
    return replace(toss, model=body, poses=toss.poses + radius * np.eye(1, 7, 2))


def evenly(numbers: range, some: int) -> list[int]:
    """So many numbers, with equal steps, from the first on."""
    return [numbers[k * len(numbers) // some] for k in range(some)]


def cases(config: Config) -> list[Case]:
    """The salted filter comes before the slow ones, which take its levels."""
    order = sorted(config.filters, key=FILTERS.index)
    fast, slow = ([n for n in order if (n in SLOW) is choice] for choice in (False, True))
    return [
        *(
            Case(name, noisy)
            for noisy in config.event_noise
            for name in fast
            if noisy or name not in BORROWED
        ),
        *(Case(name, True) for name in slow),
    ]


def start(config: Config, case: Case, outcomes: Mapping[Case, Outcome]) -> Levels:
    """The levels of a case before a search."""
    salted = outcomes.get(Case("salted", True))
    given = RECORDED if config.data is not None and config.levels == Levels() else config.levels
    levels = salted.levels if case.name in BORROWED and salted is not None else given
    return levels if case.noisy else replace(levels, **dict.fromkeys(EVENTS, 0.0))


def setting(config: Config, case: Case, levels: Levels) -> Setting:
    """The filter of a case."""
    return Setting(
        case.name,
        levels,
        config.hypotheses,
        config.rtol,
        config.particles,
        config.gate,
        config.patience,
    )


def fitted(
    config: Config,
    case: Case,
    levels: Levels,
    training: Sequence[Toss],
    executor: Executor | None,
    evaluated: Callable[[int, int, float, Levels], None],
) -> Fit:
    """The search of a case."""
    stages = Stages(config.fitted_first, config.evaluations_first, config.evaluations)
    free = case.searched(config.free)
    return search(setting(config, case, levels), training, free, stages, executor, evaluated)


def watch(
    config: Config, case: Case, trace: Trace, console: Console, tick: Tick
) -> Callable[[int, int, float, Levels], None]:
    """A function that keeps each evaluation of a search, and prints it where it is the best yet."""
    free = case.searched(config.free)
    total = len(free) * (config.evaluations_first + config.evaluations)
    best: dict[int, float] = {}

    def evaluated(tosses: int, number: int, value: float, levels: Levels) -> None:
        trace.add(case, tosses, number, value, levels)
        tick(number / total)
        if value > best.get(tosses, -float("inf")):
            best[tosses] = value
            values = " ".join(f"{name} {getattr(levels, name):.3g}" for name in free)
            console.print(f"{case.label}: {tosses} tosses, {number}: {value:.3f} at {values}")

    return evaluated


def judged(
    config: Config,
    setting: Setting,
    tosses: Sequence[Toss],
    calibration: Calibration,
    executor: Executor | None,
    tick: Tick,
) -> list[Score]:
    """A filter on held-out tosses."""
    n = len(tosses)
    columns = [setting] * n, tosses, [calibration] * n, [config.span] * n
    results = []
    for found in map(score, *columns) if executor is None else executor.map(score, *columns):
        results.append(found)
        tick(len(results) / n)
    return results


def thinned(tosses: Sequence[Toss], some: int) -> list[Toss]:
    """At most so many of them, evenly."""
    return [tosses[k] for k in evenly(range(len(tosses)), min(some, len(tosses)))]


def summarized(
    config: Config,
    training: Sequence[Toss],
    calibration: Calibration,
    outcomes: Mapping[Case, Outcome],
) -> dict[str, Any]:
    """What is known of the cases so far."""
    scores = {case: found.scores for case, found in outcomes.items()}
    return {
        "data": "recorded" if config.data is not None else "simulated",
        "calibration": asdict(calibration),
        "fitted": [toss.number for toss in training],
        "judged": [s.toss for s in next(iter(scores.values()))],
        "filters": [
            {
                **record(case, found.scores),
                "levels": asdict(found.levels),
                "fit": None if found.fit is None else asdict(found.fit),
            }
            for case, found in outcomes.items()
        ],
        "against": comparisons(scores),
        "share_in_contact": share_in_contact(scores),
        "tosses": {case.label: [toss_record(s) for s in found] for case, found in scores.items()},
    }
