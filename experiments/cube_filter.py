"""Filters on recorded tosses of a cube: which is honest about impacts, with noise or without?

Some tosses serve to choose the noise of each filter, by its likelihood; others, held out, to judge
it. Only the pose is measured. Every filter runs with noise of impacts (impulses, and the height of
the table) and without, its other noise chosen anew. Without recordings simulated tosses take their
place, on which the model is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
from hybridctl.experiments import cube_filter_figures as figures
from hybridctl.experiments.cube_filter_score import (
    EVENTS,
    FILTERS,
    STRATEGIES,
    Levels,
    Score,
    Setting,
    fit,
    score,
)
from hybridctl.experiments.cube_filter_toss import (
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
from hybridctl.report import RunFolder, progress, table

TRAINING, HELD_OUT = range(100), range(100, 200)
ORIGIN = "DAIRLab/contact-nets on GitHub, data/tosses_processed"
DIMENSION = 6
FREE = ("rotation", "impulse", "position", "guard", "force")
RATE = 148.0  # 1/s, of simulated tosses


@dataclass(frozen=True)
class Config:
    """What is run on which tosses.

    data: file of recorded tosses; without, tosses are simulated for `duration` s. fitted, judged:
    how many tosses, evenly from numbers 0 to 99 and 100 to 199. after: s from the first touch on,
    the rest of a toss is left out. span: s after an impact in which innovations are compared.
    filters: of "salted", "reset_jacobian", "no_jump", and, slower by far, "unscented" and
    "particle", of so many `particles`. evaluations: of the
    likelihood in each search, 1 for none. window: s in which the filters consider that an event is
    still to come. workers: processes. levels: of noise, where the searches start.
    """

    data: str | None = None
    fitted: int = 3
    judged: int = 10
    after: float = 0.25
    span: float = 0.05
    filters: tuple[str, ...] = STRATEGIES
    evaluations: int = 7
    window: float = 0.0
    friction: float = 0.18
    restitution: float = 0.125
    duration: float = 0.4
    rtol: float = 1e-6
    particles: int = 50
    workers: int = 2
    levels: Levels = field(default_factory=Levels)

    def __post_init__(self) -> None:
        if self.data is not None and not isinstance(self.data, str):
            raise InputError(f"data must be the path of a file, got {self.data!r}")
        for name, tosses in (("fitted", TRAINING), ("judged", HELD_OUT)):
            if count(name, getattr(self, name)) > len(tosses):
                raise InputError(f"{name} must be at most {len(tosses)}")
        for name in ("after", "duration", "rtol"):
            number(name, getattr(self, name), above=0.0)
        for name in ("span", "window", "friction"):
            number(name, getattr(self, name), at_least=0.0)
        number("restitution", self.restitution, at_least=0.0, at_most=1.0)
        if not self.filters:
            raise InputError("filters must name one filter at least")
        for name in self.filters:
            member("filters", name, FILTERS)
        count("evaluations", self.evaluations)
        count("particles", self.particles, at_least=2)
        count("workers", self.workers)


class Case(NamedTuple):
    """A filter with noise of events or without."""

    name: str
    noisy: bool

    @property
    def label(self) -> str:
        """As it stands in tables."""
        return f"{self.name}, {'with' if self.noisy else 'without'} event noise"


def quick(config: Config) -> Config:
    """One short toss, no search."""
    return replace(config, fitted=1, judged=1, evaluations=1, after=0.05, duration=0.25, workers=1)


def run(config: Config, folder: RunFolder, console: Console) -> dict[str, Any]:
    """Run the experiment; returns what it writes to summary.json."""
    folder.write_configuration(config, seed=None)
    if config.data is None:
        console.print(f"no recordings given (data=FILE; they are from {ORIGIN}): tosses simulated")
    training, held, calibration = prepare(config)
    cases = [Case(name, noisy) for noisy in (True, False) for name in config.filters]
    with progress(console, 0.0, 1.0) as begin:
        starts = [start(config, case) for case in cases]
        jobs = [
            (s, training, calibration, free(case), config.evaluations)
            for s, case in zip(starts, cases, strict=True)
        ]
        levels = in_parallel(_fit, jobs, config.workers, begin("noise levels"))
        settings = [replace(s, levels=found) for s, found in zip(starts, levels, strict=True)]
        runs = [(s, toss, calibration, config.span) for s in settings for toss in held]
        flat = in_parallel(_score, runs, config.workers, begin("held-out tosses"))
    scores = {c: flat[k * len(held) : (k + 1) * len(held)] for k, c in enumerate(cases)}
    summary = {
        "data": "recorded" if config.data is not None else "simulated",
        "calibration": asdict(calibration),
        "fitted": [toss.number for toss in training],
        "judged": [toss.number for toss in held],
        "filters": [
            {**record(case, scores[case]), "levels": asdict(setting.levels)}
            for case, setting in zip(cases, settings, strict=True)
        ],
        "against": comparisons(scores),
        "share_in_contact": share_in_contact(scores),
        "tosses": {case.label: [toss_record(s) for s in found] for case, found in scores.items()},
    }
    folder.write_json("summary.json", summary)
    print_tables(console, summary)
    with console.status("drawing the figure"):
        figures.draw(folder / "figures/cube_filter.png", {c.label: s for c, s in scores.items()})
    return summary


def prepare(config: Config) -> tuple[list[Toss], list[Toss], Calibration]:
    """Tosses to fit and to judge, and the calibration, from the recordings 0 to 99 only."""
    model = cube.Parameters(friction=config.friction, restitution=config.restitution)
    fitted, judged = evenly(TRAINING, config.fitted), evenly(HELD_OUT, config.judged)
    if config.data is None:
        training, held = (
            [synthetic(k, model, config.duration, RATE) for k in numbers]
            for numbers in (fitted, judged)
        )
        calibration = Calibration(0.0, 2e-3)
    else:
        everything = recorded(config.data, TRAINING, model)
        calibration = calibrate(everything)
        training, held = [everything[k] for k in fitted], recorded(config.data, judged, model)
    cut = [[levelled(t, calibration, config.after) for t in some] for some in (training, held)]
    return cut[0], cut[1], calibration


def evenly(numbers: range, some: int) -> list[int]:
    """So many numbers, with equal steps, from the first on."""
    return [numbers[k * len(numbers) // some] for k in range(some)]


def start(config: Config, case: Case) -> Setting:
    """Where the search for the noise of a case starts."""
    none = {} if case.noisy else dict.fromkeys(EVENTS, 0.0)
    levels = replace(config.levels, **none)
    return Setting(case.name, levels, config.window, config.rtol, config.particles)


def free(case: Case) -> tuple[str, ...]:
    """The levels that are searched for, the most telling first."""
    return tuple(name for name in FREE if case.noisy or name not in EVENTS)


def _fit(job: tuple[Any, ...]) -> Levels:
    return fit(*job)


def _score(job: tuple[Any, ...]) -> Score:
    return score(*job)


def in_parallel(
    task: Callable[[Any], Any], jobs: Sequence[Any], workers: int, tick: Callable[[float], None]
) -> list[Any]:
    """The results of all jobs in their order, whatever the number of processes."""
    results = []
    if workers == 1:
        for k, job in enumerate(jobs):
            results.append(task(job))
            tick((k + 1) / len(jobs))
        return results
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for k, result in enumerate(pool.map(task, jobs)):
            results.append(result)
            tick((k + 1) / len(jobs))
    return results


def record(case: Case, scores: Sequence[Score]) -> dict[str, Any]:
    """A filter as it stands in summary.json, over all rows of the tosses it could finish."""
    done = [s for s in scores if s.failure is None]
    head = {"name": case.name, "event_noise": case.noisy, "lost": len(scores) - len(done)}
    if not done:
        return head
    rows, near = sum(len(s.nis) for s in done), np.concatenate([s.near for s in done])
    residual = np.concatenate([s.residual for s in done])[near]
    nis = np.concatenate([s.nis for s in done])
    per_toss = np.array([s.nis.mean() for s in done])
    same = np.concatenate([s.touches == s.recorded for s in done])
    return {
        **head,
        "steps": rows,
        "mean_nis": float(nis.mean()),
        "nis_error": _error(per_toss),
        "median_nis": float(np.median(nis)),
        "mean_nis_after_impacts": float(nis[near].mean()) if near.any() else None,
        "nis_dim": DIMENSION,
        "log_likelihood": float(sum(s.log_likelihood.sum() for s in done)),
        "log_likelihood_per_row": float(sum(s.log_likelihood.sum() for s in done) / rows),
        "rows_after_impacts": int(near.sum()),
        "position_rms_mm": _rms(1e3 * residual[:, :3]),
        "rotation_rms_mrad": _rms(1e3 * residual[:, 3:]),
        "mode_agreement": float(same.mean()),
        "notes": sum(s.notes for s in done),
        "seconds_per_step": sum(s.seconds for s in done) / rows,
    }


def _rms(rows: Any) -> float | None:
    return float(np.sqrt((rows**2).sum(axis=1).mean())) if len(rows) else None


def _error(values: Any) -> float | None:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None


def comparisons(scores: Mapping[Case, Sequence[Score]]) -> list[dict[str, Any]]:
    """Log-likelihood per row of the first filter with event noise, minus that of each other one.

    Toss by toss, so that it has a mean and a standard error.
    """
    first, *others = scores
    result = []
    for other in others:
        pairs = [
            (a.log_likelihood.mean() - b.log_likelihood.mean())
            for a, b in zip(scores[first], scores[other], strict=True)
            if a.failure is None and b.failure is None
        ]
        if pairs:
            gain = np.array(pairs)
            result.append(
                {
                    "of": first.label,
                    "over": other.label,
                    "mean": float(gain.mean()),
                    "error": _error(gain),
                    "tosses_won": int((gain > 0.0).sum()),
                    "tosses": len(gain),
                }
            )
    return result


def share_in_contact(scores: Mapping[Case, Sequence[Score]]) -> float:
    """By the recorded poses: the mode agreement of a filter that always says contact."""
    done = next((found for found in scores.values() if not any(s.failure for s in found)), ())
    return float(np.concatenate([s.recorded for s in done]).mean()) if done else float("nan")


def toss_record(found: Score) -> dict[str, Any]:
    """One run as it stands in summary.json."""
    if found.failure is not None:
        return {"toss": found.toss, "failure": found.failure}
    return {
        "toss": found.toss,
        "mean_nis": float(found.nis.mean()),
        "log_likelihood_per_row": float(found.log_likelihood.mean()),
    }


def print_tables(console: Console, summary: Mapping[str, Any]) -> None:
    """What was found, and how sure that is."""
    rows = [_row(f) for f in summary["filters"]]
    columns = [
        "filter",
        "event noise",
        "NIS",
        "+-",
        "median",
        "log L",
        "mm",
        "mrad",
        "contact",
        "lost",
    ]
    title = f"Held-out {summary['data']} tosses; NIS should be {DIMENSION}"
    console.print(table(title, columns, rows))
    console.print(
        "noise: of events. log L: per row. mm, mrad: rms innovation after impacts. contact: "
        "agreement with the recorded pose, which is in contact at "
        f"{summary['share_in_contact']:.2f} of the rows"
    )
    for c in summary["against"]:
        error = "?" if c["error"] is None else f"{c['error']:.2f}"
        console.print(
            f"{c['of']}, over {c['over']}: {c['mean']:+.2f} +- {error} per row, "
            f"better in {c['tosses_won']} of {c['tosses']} tosses"
        )


def _row(f: Mapping[str, Any]) -> tuple[str, ...]:
    noise = "on" if f["event_noise"] else "off"
    if "steps" not in f:
        return (f["name"], noise, *["-"] * 6, str(f["lost"]))

    def shown(name: str, digits: int = 2) -> str:
        return "-" if f[name] is None else f"{f[name]:.{digits}f}"

    return (
        f["name"],
        noise,
        f"{shown('mean_nis', 1)} +- {shown('nis_error', 1)}",
        shown("median_nis", 1),
        shown("log_likelihood_per_row"),
        shown("position_rms_mm"),
        shown("rotation_rms_mrad", 1),
        shown("mode_agreement"),
        str(f["lost"]),
    )
