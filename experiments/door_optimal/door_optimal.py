"""The door by trajectory optimisation, and its controllers compared with equal tuning.

The claims: a reference like the published one, but found by optimisation, presses several times as
hard whichever corner touches first; it closes on simulation to 1e-6. Tracked on it from perturbed
starts, with gains tuned by the same means, budget and limit of the peak input, reference spreading
has less mean error than tracking on the clock and of the nearest arc. Impact-invariant tracking,
which needs no events but the time of the planned impact, comes close to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from hybridctl.experiments.door_optimal import figures
from hybridctl.experiments.door_optimal.comparison import (
    CONTROLLERS,
    Expected,
    LawSearch,
    SpringGains,
    Stage,
    StageTrial,
    Tuned,
)
from hybridctl.experiments.door_optimal.reference import (
    VARIANTS,
    VariantOptimum,
    Wanted,
    find,
    published,
)
from hybridctl.experiments.tuning.door import Perturbations, statistics_table
from hybridctl.experiments.tuning.door import draw as perturbed
from hybridctl.robots import rrr_door
from rich.console import Console
from rich.table import Table

from hybridctl.app.experiment import Check, Findings, experiment
from hybridctl.app.report import progress, record_table, report_alive
from hybridctl.base.checks import check_member
from hybridctl.base.errors import HybridctlError
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import Count, Natural, Positive, Settings
from hybridctl.base.workers import crew
from hybridctl.control.feasibility import feasibility
from hybridctl.control.reference import Reference
from hybridctl.control.tuning.ensemble import Ensemble

SUMMARY = "the door by trajectory optimisation; controllers compared with equal tuning"

_BOUNDS = (np.log(0.05), np.log(60.0))  # of frequencies in rad/s and damping ratios
_STEP = 0.5  # of their logarithms, first
_STARTS_AND_TORQUES = Perturbations(
    mass=0.0, friction=0.0, door_position=0.0, door_stiffness=0.0, delay=0.0
)


@dataclass(frozen=True)
class Config(Settings):
    """The settings of the experiment.

    variants: of references to look for; the first is tracked.
    references: which are tracked, "optimal" and "published". seed, training, judged: of the
    ensembles that tune and judge. evaluations: of each search. peak_input: its limit, N m. start:
    frequency in rad/s and damping ratio to begin with, before and after the impact; with these and
    the perturbations, event times of the plain variant are expected to spread by as much as its
    arcs are to stay feasible past its events. delay: of late detection; window: of the baselines;
    extension: of the references, s. workers: processes, 0 for one on each processor; dask: the
    scheduler of a cluster instead.
    """

    variants: tuple[str, ...] = VARIANTS
    references: tuple[str, ...] = ("optimal",)
    seed: Natural = 1
    training: Count = 8
    judged: Count = 20
    evaluations: Natural = 8
    peak_input: Positive = 30.0
    start: tuple[Positive, Positive, Positive, Positive] = (10.0, 1.0, 10.0, 1.0)
    delay: Positive = 0.001
    window: Positive = 0.04
    extension: Positive = 0.15
    wanted: Wanted = field(default_factory=Wanted)
    perturbations: Perturbations = _STARTS_AND_TORQUES
    workers: Natural = 1
    dask: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for variant in self.variants:
            check_member("variant", variant, VARIANTS)
        for name in self.references:
            check_member("reference", name, ("optimal", "published"))


def full(config: Config) -> Config:
    """The settings with both references, searches that settle, and a large ensemble."""
    return replace(
        config, references=("optimal", "published"), training=24, judged=60, evaluations=40
    )


def quick(config: Config) -> Config:
    """One variant, one reference, no search."""
    return replace(
        config,
        variants=config.variants[:1],
        references=config.references[:1],
        training=2,
        judged=3,
        evaluations=0,
    )


@experiment
def run(config: Config, console: Console) -> Findings:
    """Find the references, tune all controllers on them, and judge them."""
    plant, known = published()
    with report_alive(console, "looking for references"):
        found, failures = references_found(config, known)
    references = {"published": (plant, known)}
    if found and found[0].variant == "plain":
        references["optimal"] = found[0].plant, found[0].extended(config.extension)
    summary: dict[str, Any] = {
        "references": {each.variant: each.record() for each in found},
        "not_found": failures,
        "orders": {name: asdict(feasibility(*pair).events[0]) for name, pair in references.items()},
    }
    printed = reference_tables(summary)
    stages = {
        name: Stage(*references[name], config.window, config.delay)
        for name in config.references
        if name in references
    }
    results = compared(config, stages, console)
    summary["controllers"] = {
        name: {each.name: each.record() for each in row} for name, row in results.items()
    }

    differs = "difference between simulation and optimum"
    ahead = "mean error of spreading / lesser one of conventional and nearest arc"

    def draw(folder: RunFolder) -> None:
        path = folder / "figures/comparison.png"
        spreading = next(each for each in next(iter(results.values())) if each.name == "spreading")
        typical = int(np.argsort(spreading.statistics.errors)[config.judged // 2])
        drawn = perturbed(config.perturbations, rrr_door.DoorParameters(), config.seed, typical)
        figures.draw_comparison(path, stages, results, drawn, config.peak_input)

    return Findings(
        summary,
        printed
        + [
            statistics_table(f"Unseen runs on the {name} reference, all tuned alike", row)
            for name, row in summary["controllers"].items()
        ],
        [
            *(Check(f"{each.variant}: {differs}", each.optimum.mismatch, 1e-6) for each in found),
            *(Check(f"{name}: {ahead}", share(row), 1.0) for name, row in results.items()),
        ],
        {each.variant: each.optimum.run for each in found},
        draw=draw,
    )


def share(row: Sequence[Tuned]) -> float:
    """The mean error of spreading by the lesser one of conventional and nearest-arc tracking."""
    errors = {each.name: each.statistics.mean_error for each in row}
    return errors["spreading"] / min(errors["conventional"], errors["nearest arc"])


def references_found(
    config: Config, known: Reference
) -> tuple[list[VariantOptimum], dict[str, str]]:
    """The variants that were found, and why others were not."""
    found, failures = [], {}
    expected = Expected(config.perturbations, config.start)
    for variant in config.variants:
        tracked = expected if variant == "plain" else None
        try:
            found.append(find(variant, config.wanted, known, expected=tracked))
        except HybridctlError as error:
            failures[variant] = str(error)
    return found, failures


def compared(
    config: Config, stages: Mapping[str, Stage], console: Console
) -> dict[str, list[Tuned]]:
    """All controllers on all references."""
    judged = range(config.judged)
    seen = range(config.judged, config.judged + config.training)
    results: dict[str, list[Tuned]] = {name: [] for name in stages}
    with progress(console, 0.0, 1.0) as begin, crew(config.workers, config.dask) as workers:
        for name, stage in stages.items():

            def ensemble(law: str, members: Sequence[int], stage: Stage = stage) -> Ensemble:
                trial = StageTrial(stage, law, config.perturbations, config.seed)
                return Ensemble(trial, members, workers.parallel_executor)

            tick = begin(f"controllers on the {name} reference")
            search = LawSearch(
                SpringGains.of(stage.plant, stage.reference),
                ensemble,
                seen,
                config.peak_input,
                config.evaluations,
                _BOUNDS,
                lambda found: found.mean_error + found.p95_error,
            )
            start = np.log(config.start)
            pool = []
            for k, law in enumerate(CONTROLLERS, start=1):
                pool.append(search.searched(law, [start], _STEP))
                tick(0.7 * k / len(CONTROLLERS))
            for k, law in enumerate(CONTROLLERS, start=1):
                best = search.best(law, pool, seen)
                gains = search.structure.schedule(best)
                found = search.ensemble(law, judged)(gains)
                results[name].append(Tuned(law, np.exp(best), gains, found))
                tick(0.7 + 0.3 * k / len(CONTROLLERS))
    return results


def reference_tables(summary: Mapping[str, Any]) -> list[Table | str]:
    """Margins of the optima, and of both orders beside the published reference."""
    optima = [{"name": name, **r, "why": None} for name, r in summary["references"].items()]
    optima += [{"name": name, "why": text[:60]} for name, text in summary["not_found"].items()]
    margins = {
        "variant": "{name}",
        "margin factor": "{margin:.2f}",
        "feasible past its events [ms]": "{spread:.0f}",
        "difference in simulation": "{mismatch:.1e}",
        "not found": "{why}",
    }
    orders = [{"name": name, **r} for name, r in summary["orders"].items()]
    touches = {
        "reference": "{name}",
        "least impulse [N s]": "{least_impulse:.3f}",
        "forces between touches [N]": "{phantom_margin:.2f}",
        "rates of gaps [m/s]": "{guard_rates:.2f}",
    }
    return [
        record_table("Optima", optima, margins),
        record_table("If one corner touches first", orders, touches),
    ]
