r"""The salted filter is consistent over many synthetic runs: of a ball, a block, and the door.

Every run has its own start, process noise and sensor noise, with the covariances that the filters
assume, so that the normalized estimation error squared (NEES) must have the mean and the
spread of chi-square, at any time: below, at several times, each averaged over all runs, with the
99 % band of the average. All filters have the same logs and begin with the same estimate.

A filter that is in another mode than the truth at that time, an impact a moment early or late, is
counted and left out of the average: its covariance may have another rank than the error.

First order is right while the remaining perturbations are small where the system bends: the stated
noise is small in that sense. `scales` multiplies it, for sensors and starts at once, to find where
the salted filter leaves its band.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Annotated, Any, NamedTuple

import numpy as np
from hybridctl.experiments.runners import tabulate
from rich.console import Console
from rich.table import Table

from hybridctl.app.experiment import Check, Findings, experiment, open_journal
from hybridctl.app.models import find_model
from hybridctl.app.plots import CURVES, Line, Panel, draw_series
from hybridctl.app.report import make_table, show_progress
from hybridctl.base.checks import check_member
from hybridctl.base.errors import HybridctlError
from hybridctl.base.journal import Journal, compute_all
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import Meta, Natural, Positive, Settings
from hybridctl.base.workers import crew
from hybridctl.estimation.consistency import band, event_time_errors, mode_agreement, nees
from hybridctl.estimation.filter_model import FilterModel, FilterSettings
from hybridctl.estimation.initial_estimate import first_estimate
from hybridctl.estimation.result import FilterResult
from hybridctl.estimation.synthetic import simulate_record
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.sampling.filters import FILTERS, run_filter

RECORD = "runs.jsonl"
SUMMARY = "whether Kalman and particle filters are consistent: a ball, a block, the door, many runs"

DIVERGED = 10.0  # NEES per degree of freedom at the end above which a filter is lost; a choice
INDEFINITE = 1e-12  # of the largest eigenvalue, up to which a negative one is rounding
LEVEL = 0.99
LOST = "patience=null"  # a filter that has lost the motion stays lost
NAMES = {
    "salted": "salted",
    "reset_jacobian": "reset's Jacobian",
    "no_jump": "no jump",
    "unscented": "unscented",
    "particle": "particles",
}
RUNS = {
    "filter": "{name}",
    "diverged": "{diverged}",
    "failed": "{failed}",
    "indefinite": "{indefinite}",
    "mode agreement [%]": "{mode_agreement:.1f}",
    "per step [ms]": "{seconds_per_step:.2f}",
}


class Setup(NamedTuple):
    """What is particular to a model in this study.

    Attributes:
        assignments: Settings of the model, as `--set` takes them.
        times: Times at which NEES is averaged, s.
    """

    assignments: tuple[str, ...]
    times: tuple[float, ...]


SETUPS = {  # sensors so slow that the covariance after the event matters for long
    "ball": Setup(("rate=25", "duration=1.2", LOST), (0.4, 0.52, 0.6, 1.2)),
    "block": Setup(("rate=50", "duration=0.4", "tolerance=1e-7", LOST), (0.16, 0.26, 0.3, 0.4)),
    "door": Setup(
        ("begin=0.85", "duration=0.3", "angle_noise=1e-3", "tolerance=1e-7", LOST),
        (0.92, 1.02, 1.06, 1.15),
    ),
}


Several = Annotated[int, Meta(ge=2)]


@dataclass(frozen=True)
class Config(Settings):
    """Numbers of runs of each model, and factors of the noise.

    Attributes:
        runs: Runs at the stated noise.
        sweep: Runs at each of the larger `scales`.
        particle_runs: Number of the first runs in which the particle filter takes part, too.
        scales: Factors of the noise beside 1.
        models: Names of the models.
        seed: Seed of the runs.
        workers: Number of processes; 0 for one on each processor.
        dask: Address of the scheduler of a cluster that computes instead.
    """

    runs: Several = 30
    sweep: Several = 10
    particle_runs: Natural = 3
    scales: tuple[Positive, ...] = (2.0, 4.0, 8.0, 16.0)
    models: tuple[str, ...] = tuple(SETUPS)
    seed: Natural = 0
    workers: Natural = 0
    dask: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for model in self.models:
            check_member("model", model, SETUPS)


class StudyRun(NamedTuple):
    """One run to make.

    Attributes:
        model: Name of the model.
        scale: Factor of the noise.
        seed: Seed of the run.
        filters: Names of its filters: all at the stated noise, the salted one at other scales.
    """

    model: str
    scale: float
    seed: int
    filters: tuple[str, ...]


class FilterOutcome(NamedTuple):
    """A filter on one run.

    Attributes:
        nees: Normalized squared errors of the estimates at the times of the setup.
        degrees: Their degrees of freedom.
        same_mode: Whether the likeliest mode was the true one then.
        diverged: Whether the last of these errors is beyond `DIVERGED` times its degrees.
        indefinite: Whether a covariance had a negative eigenvalue beyond rounding.
        agreement: Share of samples at which the most probable mode was the true one.
        event_errors: Errors of the times of events, s.
        nis: Sum of the normalized squared innovations that were accepted, and of their dimensions.
        rejected: Number of rejected values.
        seconds_per_step: Time of computing of a sample, s.
        failed: Message of the error that ended the filter, which then has no values; None without.
    """

    nees: tuple[float, ...] = ()
    degrees: tuple[int, ...] = ()
    same_mode: tuple[bool, ...] = ()
    diverged: bool = False
    indefinite: bool = False
    agreement: float = 0.0
    event_errors: tuple[float, ...] = ()
    nis: tuple[float, int] = (0.0, 0)
    rejected: int = 0
    seconds_per_step: float = 0.0
    failed: str | None = None


def full(config: Config) -> Config:
    """Return the settings with ten times as many runs."""
    return replace(config, runs=300, sweep=100, particle_runs=30)


def quick(config: Config) -> Config:
    """Return the settings with a few runs of each model."""
    return replace(config, runs=3, sweep=2, particle_runs=1, scales=(8.0,))


def run(config: Config, folder: RunFolder, console: Console) -> dict[str, Any]:
    """Run the study; every trial is kept in `RECORD`, from which an interrupted one goes on.

    Args:
        config: Settings.
        folder: Folder of the results.
        console: Where tables and progress are shown.

    Returns:
        The content of summary.json.
    """
    record = open_journal(folder / RECORD, config)
    return experiment(partial(_study, record))(config, folder, console)


def _study(record: Journal, config: Config, console: Console) -> Findings:
    """Return the findings of all trials of all models.

    Args:
        record: Journal of trials.
        config: Settings.
        console: Where progress is shown.
    """
    trials = [
        StudyRun(model, scale, config.seed + k, select_filters(config, scale, k))
        for model in config.models
        for scale in (1.0, *config.scales)
        for k in range(config.runs if scale == 1.0 else config.sweep)
    ]
    with crew(config.workers, config.dask) as workers, show_progress(console, 0.0, 1.0) as begin:
        made = compute_all(attempt, trials, workers, begin("runs"), record)
    results: dict[tuple[str, float, str], list[FilterOutcome]] = {}
    for trial, outcomes in zip(trials, made, strict=True):
        for name, each in zip(trial.filters, outcomes, strict=True):
            results.setdefault((trial.model, trial.scale, name), []).append(FilterOutcome(*each))
    models = {model: _summarize_model(config, model, results) for model in config.models}
    checks = []
    for model, found in models.items():
        said = "runs in which the salted filter fails, diverges or has an indefinite covariance"
        lost = sum(found["filters"]["salted"][n] for n in ("failed", "diverged", "indefinite"))
        checks.append(Check(f"{model}: {said}", lost, most=0))

    def draw(folder: RunFolder) -> None:
        for model, found in models.items():
            _draw_nees(folder, model, found["filters"])

    summary = {"runs": config.runs, "sweep_runs": config.sweep, "models": models}
    return Findings(summary, _tabulate(models), checks, draw=draw)


def _summarize_model(
    config: Config,
    model: str,
    results: Mapping[tuple[str, float, str], Sequence[FilterOutcome]],
) -> dict[str, Any]:
    """Return a model as it stands in summary.json.

    Args:
        config: Settings.
        model: Name of the model.
        results: Outcomes by model, scale and filter.
    """
    filters = [name for (m, scale, name) in results if (m, scale) == (model, 1.0)]
    sweep = {s: average_outcomes(model, results[model, s, "salted"]) for s in config.scales}
    noise = vars(_settings(model, 1.0))
    return {
        "stated_noise": {k: v for k, v in noise.items() if k.endswith("_noise") and v},
        "filters": {name: average_outcomes(model, results[model, 1.0, name]) for name in filters},
        "sweep": [{"scale": scale, **values} for scale, values in sweep.items()],
        "out_of_band_from": next((s for s, v in sweep.items() if not v["inside"]), None),
    }


def select_filters(config: Config, scale: float, k: int) -> tuple[str, ...]:
    """Return the filters of a run: at larger noise the salted one alone.

    Args:
        config: Settings.
        scale: Factor of the noise.
        k: Number of the run.
    """
    if scale != 1.0:
        return FILTERS[:1]
    return FILTERS if k < config.particle_runs else FILTERS[:-1]


def attempt(trial: StudyRun) -> tuple[FilterOutcome, ...]:
    """Return the outcome of each filter on one run.

    Args:
        trial: The run.
    """
    settings = replace(_settings(trial.model, trial.scale), seed=trial.seed)
    model = _model(trial.model, trial.scale)
    record, truth = simulate_record(model, settings)
    results = []
    try:
        start, rest = first_estimate(model, settings, record)
    except HybridctlError as error:
        return tuple(FilterOutcome(failed=str(error)) for _ in trial.filters)
    for name in trial.filters:
        try:
            result = run_filter(name, model, settings, rest, start)
            results.append(_compare(model, SETUPS[trial.model].times, result, truth.run))
        except HybridctlError as error:
            results.append(FilterOutcome(failed=str(error)))
    return tuple(results)


def _compare(
    model: FilterModel, times: Sequence[float], result: FilterResult, truth: HybridTrajectory
) -> FilterOutcome:
    """Return one result beside the truth, at the samples nearest to some times.

    Args:
        model: Model of the filter.
        times: Times, s.
        result: Result of the filter.
        truth: True motion.
    """
    found = [result.mixtures[int(np.abs(result.times - t).argmin())] for t in times]
    pairs = [nees(model.space, mixture, truth(mixture.time)) for mixture in found]
    last, degrees = pairs[-1]
    spectra = [np.linalg.eigvalsh(p) for p in result.covariances]
    taken = [i for i in result.innovations if i.accepted]
    return FilterOutcome(
        tuple(square for square, _ in pairs),
        tuple(k for _, k in pairs),
        tuple(mixture.mode == truth.arc(mixture.time).mode for mixture in found),
        last > DIVERGED * max(degrees, 1),
        any(w[0] < -INDEFINITE * w[-1] for w in spectra),
        mode_agreement(result, truth),
        event_time_errors(result.events, truth.guard_events),
        (float(sum(i.nis for i in taken)), sum(i.dimension for i in taken)),
        len(result.rejected),
        result.seconds / len(result.steps),
    )


def average_outcomes(model: str, results: Sequence[FilterOutcome]) -> dict[str, Any]:
    """Return averages over runs, as they stand in summary.json.

    Args:
        model: Name of the model.
        results: Outcomes of one filter.
    """
    whole = [o for o in results if o.failed is None]
    rows = []
    for k, time in enumerate(SETUPS[model].times):
        free = [(o.nees[k], o.degrees[k]) for o in whole if o.degrees[k] and o.same_mode[k]]
        if not free:
            continue
        c = band(*zip(*free, strict=True), level=LEVEL)
        size = c.degrees / c.count
        rows.append(
            {
                "time": time,
                "nees_per_degree": c.mean / size,
                "low": c.low / size,
                "high": c.high / size,
                "degrees": size,
                "inside": c.inside,
                "other_mode": sum(not o.same_mode[k] for o in whole),
            }
        )
    errors = np.array([e for o in whole for e in o.event_errors])
    squares, dimensions = (sum(o.nis[k] for o in whole) for k in range(2))
    return {
        "runs": len(results),
        "failed": len(results) - len(whole),
        "first_failure": next((o.failed for o in results if o.failed is not None), None),
        "diverged": sum(o.diverged for o in whole),
        "indefinite": sum(o.indefinite for o in whole),
        "nees": rows,
        "inside": bool(rows) and all(row["inside"] for row in rows),
        "nis_per_degree": squares / dimensions if dimensions else None,
        "mode_agreement": float(np.mean([o.agreement for o in whole])) if whole else None,
        "event_time_error": float(np.sqrt((errors**2).mean())) if errors.size else None,
        "rejected": sum(o.rejected for o in whole),
        "seconds_per_step": float(np.mean([o.seconds_per_step for o in whole])) if whole else None,
    }


def _tabulate(models: Mapping[str, Any]) -> list[Table | str]:
    """Return NEES per degree of freedom at each time, for each filter; then over the noise.

    Args:
        models: Summaries by model.
    """
    parts: list[Table | str] = []
    for model, found in models.items():
        rows = {**found["filters"]}
        rows |= {f"salted, noise times {v['scale']:g}": v for v in found["sweep"]}
        title = (
            f"{model}: NEES per degree of freedom (* outside the 99 % band; in brackets: runs in a "
            "wrong mode)"
        )
        columns = ["filter", "runs", *(f"{t:g} s" for t in SETUPS[model].times)]
        squares = [(n, row["runs"], *map(_format_square, row["nees"])) for n, row in rows.items()]
        parts += [make_table(title, columns, squares), tabulate(f"{model}: runs", rows, RUNS)]
        first = found["out_of_band_from"]
        where = "stays in its band at all noises tried"
        if first is not None:
            where = f"leaves its band at {first:g} times the stated noise"
        parts.append(f"{model}: the NEES of the salted filter {where}")
    return parts


def _format_square(row: Mapping[str, Any]) -> str:
    square = row["nees_per_degree"]
    digits = f"{square:.3g}" if square < 1e3 else f"{square:.0f}"
    return f"{digits}{'' if row['inside'] else '*'} ({row['other_mode']})"


@cache
def _settings(model: str, scale: float) -> FilterSettings:
    """Return the settings of a model at a scale of the noise."""
    settings: FilterSettings = find_model(model).configure(None, SETUPS[model].assignments)
    sensors = {
        k: scale * getattr(settings, k)
        for k in ("position_noise", "angle_noise")
        if hasattr(settings, k)
    }
    return replace(settings, spread=scale, compliance=0.0, **sensors)  # as rigid as the truth


@cache
def _model(model: str, scale: float) -> FilterModel:
    return find_model(model).make(_settings(model, scale))


def _draw_nees(folder: RunFolder, model: str, filters: Mapping[str, Any]) -> None:
    """Save NEES per degree of freedom of every filter, beside the band; the salted one below."""

    def curve(name: str, key: str, *look: Any) -> Line:
        times, points = (np.array([row[k] for row in filters[name]["nees"]]) for k in ("time", key))
        return Line(times, points, *look)

    lines = [
        curve(name, "nees_per_degree", NAMES[name], color, ".-", 3.5 if name == "salted" else 1.2)
        for name, color in zip(filters, CURVES, strict=False)
    ]
    lines.append(curve("salted", "low", "99 % band", "black", "--", 1.2))
    lines.append(curve("salted", "high", None, "black", "--", 1.2))
    times = lines[-1].times
    lines.append(Line(times, np.ones(len(times)), "expected: 1", "black", "-", 0.8))
    panel = Panel("NEES / degree", lines, log=True)
    title = f"{model}, {filters['salted']['runs']} runs at the stated noise; 1 is expected"
    draw_series(folder / f"figures/nees_{model}.png", [[panel]], title=title)
