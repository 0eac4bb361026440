"""Filters on recorded tosses of a cube: when does it matter by which matrix they pass impacts?

All filters have the same noise of impacts, so that the three strategies differ by their matrix
alone. Each follows one order of impacts, or several, through cameras of several rates and noises.
With `evaluations` some tosses serve to choose levels for each, by its likelihood, by default that
of the table's height alone; others, held out, judge it. Only the pose is measured. The unscented
and the particle filter run at the levels of the salted one. Without recordings simulated tosses
take their place, on which the model is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
from hybridctl.experiments.cube_filter.score import (
    FILTERS,
    SLOW,
    CubeCase,
    Score,
    comparisons,
    draw_shares,
    filtered,
    printed,
    record,
    rows_text,
    score,
)
from hybridctl.experiments.cube_filter.tosses import (
    ORIGIN,
    Calibration,
    Camera,
    calibrate,
    levelled,
    recorded,
    simulated,
)
from hybridctl.experiments.filter_models import CubeSettings, cube_model
from rich.console import Console

from hybridctl.app.experiment import Check, Findings, experiment
from hybridctl.app.report import Tick, progress
from hybridctl.base.checks import Array, check_member
from hybridctl.base.errors import InputError
from hybridctl.base.journal import compute_all
from hybridctl.base.settings import Count, Meta, Natural, NotNegative, Positive, Settings
from hybridctl.base.workers import Crew, crew
from hybridctl.estimation import Estimate, Record, first_estimate, fit_noise
from hybridctl.estimation.initial_estimate import STRATEGY_BY_FILTER
from hybridctl.estimation.result import FilterResult

T = TypeVar("T")
LEVELS = (
    "position_noise",
    "angle_noise",
    "force_noise",
    "reset_noise",
    "guard_noise",
    "friction",
    "restitution",
    "rounding",
    "compliance",
)
FACTOR = 100.0  # by which noise may end above or below where it starts
LIMITS = {"friction": (0.01, 2.0), "restitution": (1e-3, 1.0), "rounding": (1e-4, 1e-2)}


@dataclass(frozen=True)
class Fit:
    """The end of a search; log_likelihood: per row."""

    settings: CubeSettings
    log_likelihood: float
    evaluations: int
    converged: bool

    def record(self) -> dict[str, Any]:
        """The fit as it stands in summary.json, beside the levels."""
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

    case: CubeCase
    settings: CubeSettings

    def run(self, record: Record, initial: Estimate) -> FilterResult:
        """Filter a toss."""
        result: FilterResult = filtered(
            self.case.name, self.settings, record, self.case.hypotheses
        )[0]
        return result


def search(
    case: CubeCase,
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
        partial(_tossed, case, settings, tuple(free)),
        tosses,
        [first_estimate(cube_model(settings), settings, tosses[0])[0]],
        start,
        bounds=limits,
        max_evaluations=evaluations * len(free),
        executor=executor,
        progress=lambda values, total: told(total / rows, at_levels(settings, free, values)),
    )
    best = at_levels(settings, free, found.levels)
    return Fit(best, found.log_likelihood / rows, found.evaluations, found.converged)


def _tossed(case: CubeCase, settings: CubeSettings, free: Sequence[str], values: Array) -> Tossed:
    return Tossed(case, at_levels(settings, free, values))


SUMMARY = "Kalman filters on recorded tosses of a cube, by cameras fine and coarse"

TRAINING, HELD_OUT = range(100), range(100, 200)
TRACE = ",".join(("case", "log_likelihood_per_row", *LEVELS))
Some = Annotated[int, Meta(ge=1, le=100)]


def _settings() -> CubeSettings:
    """The settings that searches of the salted filter on some of the tosses 0 to 99 ended at."""
    half_width, force, impulse = 0.0524, 3.3e-2, 1.9e-2
    return CubeSettings(
        half_width=half_width,
        friction=0.16,
        restitution=0.24,
        rounding=5.4e-3,
        position_noise=7.3e-5,
        angle_noise=2.7e-3,
        force_noise=force,
        torque_noise=half_width * force,
        reset_noise=impulse,
        reset_torque=half_width * impulse,
        guard_noise=5e-4,
        duration=0.4,
        gate=0.9999,
        patience=3,
        particles=200,
        warm_up=2,
        tolerance=1e-6,
    )


@dataclass(frozen=True)
class Config(Settings):
    """The settings: which filters run on which tosses.

    data: file of recorded tosses; without, tosses are simulated. fitted, judged: how many tosses,
    evenly from numbers 0 to 99 and 100 to 199; judged_slow: how many for the slow filters,
    "unscented" and "particle". after: s from the first touch on, the rest of a toss is left out.
    span: s after an impact in which innovations are compared. hypotheses: how many a filter
    follows, one case for each; every: which poses a camera takes, each or each so manieth; blur:
    noise that it adds, m, and ten times that in rad. evaluations: of the likelihood, for each free
    level, in a search for each case; 0 for no search. free: which levels change. settings: of all
    filters, or where searches start. workers: processes; dask: the scheduler of a cluster instead.
    """

    data: str | None = None
    fitted: Some = 20
    judged: Some = 20
    judged_slow: Some = 5
    after: Positive = 0.25
    span: NotNegative = 0.05
    filters: tuple[str, ...] = tuple(STRATEGY_BY_FILTER)
    hypotheses: tuple[Count, ...] = (1, 4)
    every: tuple[Count, ...] = (1,)
    blur: tuple[NotNegative, ...] = (0.0,)
    evaluations: Natural = 0
    free: tuple[str, ...] = ("guard_noise",)
    settings: CubeSettings = field(default_factory=_settings)
    workers: Count = 2
    dask: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("filters", "free", "hypotheses", "every", "blur"):
            if not getattr(self, name):
                raise InputError(f"{name} must have one entry at least, got none")
        for name, known in (("filters", FILTERS), ("free", LEVELS)):
            for value in getattr(self, name):
                check_member(name, value, known)


class CaseOutcome(NamedTuple):
    """A case: its settings, how the search for them went, if there was one, and its tosses."""

    settings: CubeSettings
    fit: Fit | None
    scores: list[Score]


class Data(NamedTuple):
    """Tosses to fit and to judge, by number, and how far from the table a corner touches, m."""

    training: dict[int, Record]
    held: dict[int, Record]
    calibration: Calibration


def full(config: Config) -> Config:
    """All tosses that are held out, and cameras of three rates and two noises."""
    return replace(config, judged=100, judged_slow=10, every=(1, 2, 4), blur=(0.0, 1e-3))


def quick(config: Config) -> Config:
    """One short toss, no search, fast filters only."""
    fast = tuple(name for name in config.filters if name not in SLOW) or config.filters
    short = replace(config.settings, duration=0.25, particles=20)
    return replace(
        config,
        fitted=1,
        judged=1,
        judged_slow=1,
        filters=fast,
        evaluations=0,
        after=0.05,
        settings=short,
        workers=1,
    )


@experiment
def run(config: Config, console: Console) -> Findings:
    """Score every case on the tosses that are held out."""
    if config.data is None:
        console.print(f"no recordings given (data=FILE; they are from {ORIGIN}): tosses simulated")
    data, outcomes, trace = prepare(config), dict[CubeCase, CaseOutcome](), [TRACE]
    rate = float(next(iter(data.held.values())).channels["pose"].rate)
    with progress(console, 0.0, 1.0) as begin, crew(config.workers, config.dask) as workers:
        for case in cases(config):
            settings, fit = start(config, case, outcomes), None
            named = f"{case.camera.label(rate)}, {case.label}"
            if config.evaluations and case.name not in SLOW:
                watched = watch(config, case, trace, console, begin(f"{named}: levels"))
                tosses = [case.camera.seen(toss, k) for k, toss in data.training.items()]
                budget = config.evaluations, workers.parallel_executor
                fit = search(case, settings, tosses, config.free, *budget, watched)
                settings = fit.settings
            some = len(data.held) if case.name not in SLOW else config.judged_slow
            tick = begin(f"{named}: {some} tosses")
            found = judged(config, case, settings, data, some, workers, tick)
            outcomes[case] = CaseOutcome(settings, fit, found)
    scores = {case: found.scores for case, found in outcomes.items()}
    summary = summarized(config, data, outcomes, rate)
    files = {f"rows/{case.file}.csv": rows_text(found) for case, found in scores.items()}
    if config.evaluations:
        files["search.csv"] = "\n".join(trace) + "\n"
    return Findings(
        summary,
        printed(summary),
        [
            Check(
                "tosses that a filter could not finish",
                sum(f["lost"] for f in summary["filters"]),
                most=0,
            )
        ],
        texts=files,
        draw=lambda folder: draw_shares(folder / "figures/cube_filter.png", scores, rate),
    )


def prepare(config: Config) -> Data:
    """Tosses to fit and to judge, and the calibration, from the recordings 0 to 99 only."""
    s, p = config.settings, config.settings.parameters()
    fitted = evenly(TRAINING, config.fitted) if config.evaluations else []
    judged = evenly(HELD_OUT, config.judged)
    if config.data is None:
        everything = {k: simulated(k, s) for k in (*fitted, *judged)}
        calibration = Calibration()
    else:
        everything = recorded(config.data, (*TRAINING, *judged), s)  # all calibrate
        calibration = calibrate([everything[k] for k in TRAINING], p)
    cut = [
        {k: levelled(everything[k], p, calibration, config.after) for k in numbers}
        for numbers in (fitted, judged)
    ]
    return Data(cut[0], cut[1], calibration)


def evenly(numbers: Sequence[T], some: int) -> list[T]:
    """A number of items at equal steps, from the first on; all of fewer."""
    some = min(some, len(numbers))
    return [numbers[k * len(numbers) // some] for k in range(some)]


def cases(config: Config) -> list[CubeCase]:
    """The cases in order: fast filters camera by camera, then slow ones with the first camera.

    The salted filter that lends levels to the slow ones comes before them.
    """
    order = sorted(config.filters, key=FILTERS.index)
    cameras = [Camera(every, blur) for blur in config.blur for every in config.every]
    fast = [
        CubeCase(name, bound, camera)
        for camera in cameras
        for bound in config.hypotheses
        for name in order
        if name not in SLOW
    ]
    return [*fast, *(CubeCase(name, 1, cameras[0]) for name in order if name in SLOW)]


def start(config: Config, case: CubeCase, outcomes: Mapping[CubeCase, CaseOutcome]) -> CubeSettings:
    """The settings of a case before a search."""
    lender = outcomes.get(case._replace(name="salted")) if case.name in SLOW else None
    return case.camera.levels(config.settings) if lender is None else lender.settings


def watch(
    config: Config, case: CubeCase, trace: list[str], console: Console, tick: Tick
) -> Callable[[float, CubeSettings], None]:
    """A function that keeps each evaluation of a search, and prints it where it is the best yet."""
    values: list[float] = []

    def evaluated(value: float, settings: CubeSettings) -> None:
        levels = levels_of(settings)
        trace.append(",".join((case.file, *(f"{v:.6g}" for v in (value, *levels.values())))))
        if value > max(values, default=-float("inf")):
            at = " ".join(f"{name} {levels[name]:.3g}" for name in config.free)
            console.print(f"{case.label}: {value:.3f} at {at}")
        values.append(value)
        tick(len(values) / (len(config.free) * config.evaluations))

    return evaluated


def judged(
    config: Config,
    case: CubeCase,
    settings: CubeSettings,
    data: Data,
    some: int,
    workers: Crew,
    tick: Tick,
) -> list[Score]:
    """A filter on some of the held-out tosses."""
    work = partial(_scored, case, settings, data.calibration.tolerance, config.span)
    return compute_all(work, evenly(list(data.held.items()), some), workers, tick)


def _scored(
    case: CubeCase, settings: CubeSettings, tolerance: float, span: float, toss: tuple[int, Record]
) -> Score:
    return score(case, settings, *toss, tolerance, span)


def summarized(
    config: Config, data: Data, outcomes: Mapping[CubeCase, CaseOutcome], rate: float
) -> dict[str, Any]:
    """What is known of the cases."""
    scores = {case: found.scores for case, found in outcomes.items()}
    return {
        "data": "recorded" if config.data is not None else "simulated",
        "rate": rate,
        "calibration": asdict(data.calibration),
        "fitted": list(data.training),
        "judged": [s.toss for s in next(iter(scores.values()))],
        "filters": [
            {
                **record(case, found.scores),
                "levels": levels_of(found.settings),
                "fit": None if found.fit is None else found.fit.record(),
            }
            for case, found in outcomes.items()
        ],
        "against": comparisons(scores),
    }
