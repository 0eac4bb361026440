"""The saltation matrix matters to filters on tossed cubes where the camera is coarse.

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
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import numpy as np
from hybridctl.experiments.cube_filter import score
from hybridctl.experiments.cube_filter.score import FILTERS, SLOW, CubeCase, Score
from hybridctl.experiments.cube_filter.tosses import (
    ORIGIN,
    Calibration,
    Camera,
    calibrate,
    level_toss,
    read_tosses,
    simulate_toss,
)
from hybridctl.experiments.filter_models import CubeSettings, cube_model
from rich.console import Console

from hybridctl.app.experiment import Check, Findings, experiment
from hybridctl.app.report import show_progress
from hybridctl.base.checks import Array, check_member
from hybridctl.base.errors import InputError
from hybridctl.base.journal import compute_all
from hybridctl.base.settings import Count, Meta, Natural, NotNegative, Positive, Settings
from hybridctl.base.workers import crew
from hybridctl.estimation import Estimate, Record, first_estimate, fit_noise
from hybridctl.estimation.initial_estimate import STRATEGY_BY_FILTER
from hybridctl.estimation.result import FilterResult

SUMMARY = "Kalman filters on recorded tosses of a cube, by cameras fine and coarse"

T = TypeVar("T")
LEVELS = (
    "position_noise", "angle_noise", "force_noise", "reset_noise", "guard_noise",
    "friction", "restitution", "rounding", "compliance", "flight_noise", "kick_rate", "kick",
)  # fmt: skip
FACTOR = 100.0  # largest ratio of a level to its start, or of the start to it, in a search
LIMITS = {"friction": (0.01, 2.0), "restitution": (1e-3, 1.0), "rounding": (1e-4, 1e-2)}
TRAINING, HELD_OUT = range(0, 200, 2), range(1, 200, 2)
Some = Annotated[int, Meta(ge=1, le=100)]
Trace = Callable[[float, CubeSettings], None]


def _settings() -> CubeSettings:
    """Return settings that searches of the salted filter on some of the training tosses found."""
    half_width, force, impulse = 0.0524, 5e-2, 8e-3
    return CubeSettings(
        half_width=half_width,
        friction=0.16,
        restitution=0.24,
        rounding=5.4e-3,
        position_noise=2.5e-5,
        angle_noise=2.5e-4,
        force_noise=force,
        torque_noise=half_width * force,
        reset_noise=impulse,
        reset_torque=half_width * impulse,
        guard_noise=5e-4,
        flight_noise=0.15,
        kick_rate=30.0,
        duration=0.4,
        gate=0.9999,
        patience=3,
        particles=200,
        warm_up=2,
        tolerance=1e-6,
    )


@dataclass(frozen=True)
class Config(Settings):
    """Filters, and the tosses that they run on.

    data: file of recorded tosses; without, tosses are simulated. fitted, judged: how many tosses,
    evenly from the even and the odd numbers below 200; judged_slow: how many for the slow filters,
    "unscented" and "particle". after: s from the first touch on, the rest of a toss is left out.
    span: s after an impact in which innovations are compared. hypotheses: how many a filter
    follows, one case for each; every: a camera takes every n-th pose; blur: noise that it adds,
    m, and ten times that in rad. evaluations: of the likelihood, for each free
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
    hypotheses: tuple[Count | Literal["auto"], ...] = (1, "auto")
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


class Fit(NamedTuple):
    """The end of a search; log_likelihood: per row."""

    settings: CubeSettings
    log_likelihood: float
    evaluations: int
    converged: bool


class CaseOutcome(NamedTuple):
    """A case: its settings, the search for them, if there was one, and its tosses."""

    settings: CubeSettings
    fit: Fit | None
    scores: list[Score]


class Data(NamedTuple):
    """Tosses to fit and to judge, by number, and the calibration of lengths."""

    training: dict[int, Record]
    held: dict[int, Record]
    calibration: Calibration


def full(config: Config) -> Config:
    """Return the settings with all held-out tosses, and cameras of three rates and two noises."""
    return replace(config, judged=100, judged_slow=10, every=(1, 2, 4), blur=(0.0, 1e-3))


def quick(config: Config) -> Config:
    """Return the settings with one short toss, no search, fast filters only."""
    fast = tuple(name for name in config.filters if name not in SLOW) or config.filters
    short = replace(config.settings, duration=0.25, particles=20)
    few = replace(config, fitted=1, judged=1, judged_slow=1, filters=fast, evaluations=0)
    return replace(few, after=0.05, settings=short, workers=1)


@experiment
def run(config: Config, console: Console) -> Findings:
    """Return the findings of every case on the tosses that are held out."""
    if config.data is None:
        console.print(f"no recordings given (data=FILE; they are from {ORIGIN}): tosses simulated")
    data, outcomes = _prepare_data(config), dict[CubeCase, CaseOutcome]()
    rate = float(next(iter(data.held.values())).channels["pose"].rate)
    with show_progress(console, 0.0, 1.0) as begin, crew(config.workers, config.dask) as workers:
        for case in _define_cases(config):
            settings, fit = _choose_start(config, case, outcomes), None
            named = f"{case.camera.label(rate)}, {case.label}"
            if config.evaluations and case.name not in SLOW:
                watch = _watch_search(config, case, console, begin(f"{named}: levels"))
                tosses = [case.camera.record_toss(toss, k) for k, toss in data.training.items()]
                budget = config.evaluations, workers.parallel_executor
                fit = search(case, settings, tosses, config.free, *budget, watch)
                settings = fit.settings
            some = len(data.held) if case.name not in SLOW else config.judged_slow
            tick = begin(f"{named}: {some} tosses")
            work = partial(_score, case, settings, data.calibration.tolerance, config.span)
            found = compute_all(work, _select_evenly(list(data.held.items()), some), workers, tick)
            outcomes[case] = CaseOutcome(settings, fit, found)
    scores = {case: found.scores for case, found in outcomes.items()}
    summary: dict[str, Any] = {
        "data": "recorded" if config.data is not None else "simulated",
        "rate": rate,
        "calibration": asdict(data.calibration),
        "fitted": list(data.training),
        "judged": [s.toss for s in next(iter(scores.values()))],
        "filters": [_record(case, found) for case, found in outcomes.items()],
        "against": score.compare_filters(scores),
    }
    lost = sum(f["lost"] for f in summary["filters"])
    return Findings(
        summary,
        score.tabulate_filters(summary),
        [Check("tosses that a filter could not finish", lost, most=0)],
        texts={f"rows/{k.file}.csv": score.write_rows(found) for k, found in scores.items()},
        draw=lambda folder: score.draw_shares(folder / "figures/cube_filter.png", scores, rate),
    )


def _record(case: CubeCase, outcome: CaseOutcome) -> dict[str, Any]:
    """Return a case as it stands in summary.json."""
    fit = None if outcome.fit is None else outcome.fit._asdict()
    if fit is not None:
        del fit["settings"]  # they stand in the levels
    levels = _get_levels(outcome.settings)
    return {**score.summarize_filter(case, outcome.scores), "levels": levels, "fit": fit}


def _prepare_data(config: Config) -> Data:
    """Return tosses to fit and to judge, and the calibration by the recordings of `TRAINING`."""
    s, p = config.settings, config.settings.parameters()
    fitted = _select_evenly(TRAINING, config.fitted) if config.evaluations else []
    judged = _select_evenly(HELD_OUT, config.judged)
    if config.data is None:
        everything = {k: simulate_toss(k, s) for k in (*fitted, *judged)}
        calibration = Calibration()
    else:
        everything = read_tosses(config.data, (*TRAINING, *judged), s)  # all calibrate
        calibration = calibrate([everything[k] for k in TRAINING], p)
    training, held = (
        {k: level_toss(everything[k], p, calibration, config.after) for k in numbers}
        for numbers in (fitted, judged)
    )
    return Data(training, held, calibration)


def _select_evenly(numbers: Sequence[T], some: int) -> list[T]:
    """Return a number of items at equal steps, from the first on; all of fewer."""
    some = min(some, len(numbers))
    return [numbers[k * len(numbers) // some] for k in range(some)]


def _define_cases(config: Config) -> list[CubeCase]:
    """Return the cases: fast filters camera by camera, then slow ones with the first camera.

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


def _choose_start(
    config: Config, case: CubeCase, outcomes: Mapping[CubeCase, CaseOutcome]
) -> CubeSettings:
    """Return the settings of a case before a search; slow filters have those of the salted one."""
    lender = outcomes.get(case._replace(name="salted")) if case.name in SLOW else None
    return case.camera.add_noise(config.settings) if lender is None else lender.settings


def _score(
    case: CubeCase, settings: CubeSettings, tolerance: float, span: float, toss: tuple[int, Record]
) -> Score:
    """Return the score of a filter on a toss, which workers compute.

    Args:
        case: The filter and its camera.
        settings: Its settings.
        tolerance: Largest height of a corner that touches, m.
        span: Time after an impact that counts as just after it, s.
        toss: Number and record of the toss.
    """
    return score.score_toss(case, settings, *toss, tolerance, span)


def _get_levels(settings: CubeSettings) -> dict[str, float]:
    """Return the levels by name; torques about the centre are forces times the half width."""
    return {name: float(getattr(settings, name)) for name in LEVELS}


def replace_levels(settings: CubeSettings, names: Sequence[str], values: Array) -> CubeSettings:
    """Return settings with other levels, torques along with their forces.

    Args:
        settings: The settings.
        names: Names (k,) of the levels.
        values: Their values (k,).
    """
    found = replace(settings, **dict(zip(names, values.tolist(), strict=True)))
    return replace(
        found,
        torque_noise=found.half_width * found.force_noise,
        reset_torque=found.half_width * found.reset_noise,
    )


@dataclass(frozen=True, eq=False)
class TossFilter:
    """A filter that starts from the first poses of a toss, whatever estimate it is given."""

    case: CubeCase
    settings: CubeSettings

    def run(self, record: Record, initial: Estimate) -> FilterResult:
        """Return the result on a toss; `initial` is not used.

        Args:
            record: The toss.
            initial: Not used.
        """
        name, hypotheses, _ = self.case
        return score.run_cube_filter(name, self.settings, record, hypotheses)[0]


def search(
    case: CubeCase,
    settings: CubeSettings,
    tosses: Sequence[Record],
    free: Sequence[str],
    evaluations: int,
    executor: Executor | None,
    trace: Trace,
) -> Fit:
    """Return the most likely levels.

    Args:
        case: The filter.
        settings: Settings at the start of the search.
        tosses: Tosses as the camera records them.
        free: Names of the levels that change.
        evaluations: Number of evaluations of the likelihood for each free level.
        executor: Executor that runs filters, or None.
        trace: Function of log-likelihood per row and settings, called after each evaluation.

    Raises:
        InputError: A free level is not positive.
    """
    start = np.array([getattr(settings, level) for level in free])
    if not (start > 0.0).all():
        raise InputError(f"levels must be positive where they are free, got {settings}")
    rows = sum(len(toss.channels["pose"]) - settings.warm_up for toss in tosses)
    limits = [LIMITS.get(n, (v / FACTOR, v * FACTOR)) for n, v in zip(free, start, strict=True)]
    found = fit_noise(
        partial(_make_filter, case, settings, tuple(free)),
        tosses,
        [first_estimate(cube_model(settings), settings, tosses[0])[0]],
        start,
        bounds=limits,
        max_evaluations=evaluations * len(free),
        executor=executor,
        progress=lambda values, total: trace(total / rows, replace_levels(settings, free, values)),
    )
    best = replace_levels(settings, free, found.levels)
    return Fit(best, found.log_likelihood / rows, found.evaluations, found.converged)


def _make_filter(
    case: CubeCase, settings: CubeSettings, free: Sequence[str], values: Array
) -> TossFilter:
    return TossFilter(case, replace_levels(settings, free, values))


def _watch_search(
    config: Config, case: CubeCase, console: Console, tick: Callable[[float], None]
) -> Trace:
    """Return a function that counts evaluations of a search, and prints the best so far.

    Args:
        config: Settings.
        case: The case.
        console: Where the best is printed.
        tick: Function that is called with the share of the evaluations that is done.
    """
    values: list[float] = []

    def report_evaluation(value: float, settings: CubeSettings) -> None:
        """Print an evaluation if it is the best so far, and tell the share that is done.

        Args:
            value: Log-likelihood per pose.
            settings: Settings with which it was found.
        """
        if value > max(values, default=-float("inf")):
            at = " ".join(f"{name} {getattr(settings, name):.3g}" for name in config.free)
            console.print(f"{case.label}: {value:.3f} at {at}")
        values.append(value)
        tick(len(values) / (len(config.free) * config.evaluations))

    return report_evaluation
