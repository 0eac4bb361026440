"""On an optimised reference of the door, equally tuned, spreading beats clock and nearest arc.

The claims: a reference like the published one, but found by optimisation, presses several times as
hard whichever corner touches first, and closes on simulation to 1e-6. From perturbed starts, with
gains tuned by the same means, budget and limit of the peak input, reference spreading has less mean
error than tracking on the clock and tracking of the nearest arc. Impact-invariant tracking, which
needs no events but the time of the planned impact, comes close to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from hybridctl.experiments.door_optimal import figures
from hybridctl.experiments.door_optimal.figures import TunedLaw
from hybridctl.experiments.door_optimal.reference import (
    VARIANTS,
    ExpectedTracking,
    VariantOptimum,
    Wanted,
    build_published,
    find_optimum,
)
from hybridctl.experiments.rrr_door.runner import (
    LawSearch,
    LawTrial,
    Perturbations,
    SpringGains,
    Stage,
    draw_member,
    make_statistics_table,
)
from hybridctl.robots import rrr_door
from rich.console import Console
from rich.table import Table

from hybridctl import Reference, feasibility
from hybridctl.app.experiment import Check, Findings, experiment
from hybridctl.app.report import make_record_table, report_alive, show_progress
from hybridctl.base.checks import check_member
from hybridctl.base.errors import HybridctlError
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import Count, Natural, Positive, Settings
from hybridctl.base.workers import crew
from hybridctl.control import Ensemble

SUMMARY = "the door by trajectory optimisation; controllers compared with equal tuning"
LAWS = ("spreading", "spreading, late", "conventional", "nearest arc", "impact-invariant")

_STEP = 0.5  # first changes of the logarithms of frequencies and damping ratios
_STARTS_AND_TORQUES = Perturbations(
    mass=0.0, friction=0.0, door_position=0.0, door_stiffness=0.0, delay=0.0
)


@dataclass(frozen=True)
class Config(Settings):
    """The settings of the experiment.

    Attributes:
        variants: Variants of references to look for; the first is tracked.
        references: References that are tracked, of "optimal" and "published".
        seed: Seed of the members.
        training: Members of the ensemble that tunes.
        judged: Members of the ensemble that judges.
        evaluations: Evaluations of each search.
        peak_input: Limit of the peak input in the searches, N m.
        start: Frequency (rad/s) and damping ratio to begin with, before the impact, then after it.
            With these and the perturbations the plain variant expects a spread of event times,
            over which its arcs are to stay feasible.
        delay: Delay of late detection, s.
        window: Window of the baselines, s.
        extension: Extension of the references before and after events, s.
        wanted: Limits and margins of the references.
        perturbations: Perturbations of the members.
        workers: Number of processes; 0 for one on each processor.
        dask: Address of the scheduler of a cluster that computes instead.
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
    """Return the settings with both references, searches that settle, and a large ensemble."""
    both = ("optimal", "published")
    return replace(config, references=both, training=24, judged=60, evaluations=40)


def quick(config: Config) -> Config:
    """Return the settings with one variant, one reference, and no search."""
    return replace(
        config, variants=config.variants[:1], references=config.references[:1],
        training=2, judged=3, evaluations=0,
    )  # fmt: skip


@experiment
def run(config: Config, console: Console) -> Findings:
    """Return the findings: references, and laws that are tuned on them and judged."""
    plant, known = build_published()
    with report_alive(console, "looking for references"):
        found, failures = find_references(config, known)
    references = {"published": (plant, known)}
    if found and found[0].variant == "plain":
        references["optimal"] = found[0].plant, found[0].extend_reference(config.extension)
    summary: dict[str, Any] = {
        "references": {each.variant: each.record() for each in found},
        "not_found": failures,
        "orders": {name: asdict(feasibility(*pair).events[0]) for name, pair in references.items()},
    }
    tables = make_reference_tables(summary)
    stages = {
        name: Stage(*references[name], config.window, config.delay)
        for name in config.references
        if name in references
    }
    results = compare_laws(config, stages, console)
    summary["controllers"] = {
        name: {each.name: each.record() for each in row} for name, row in results.items()
    }
    tables += [
        make_statistics_table(f"Unseen runs on the {name} reference, all tuned alike", row)
        for name, row in summary["controllers"].items()
    ]
    differs = "difference between simulation and optimum"
    ahead = "mean error of spreading / lesser one of conventional and nearest arc"

    def draw(folder: RunFolder) -> None:
        path = folder / "figures/comparison.png"
        spreading = next(each for each in next(iter(results.values())) if each.name == "spreading")
        typical = int(np.argsort(spreading.statistics.errors)[config.judged // 2])
        nominal = rrr_door.DoorParameters()
        drawn = draw_member(config.perturbations, nominal, config.seed, typical)
        figures.draw_comparison(path, stages, results, drawn, config.peak_input)

    return Findings(
        summary,
        tables,
        [
            *(Check(f"{each.variant}: {differs}", each.optimum.mismatch, 1e-6) for each in found),
            *(Check(f"{name}: {ahead}", divide_errors(row), 1.0) for name, row in results.items()),
        ],
        {each.variant: each.optimum.run for each in found},
        draw=draw,
    )


def divide_errors(row: Sequence[TunedLaw]) -> float:
    """Return the mean error of spreading over the lesser one of conventional and nearest arc."""
    errors = {each.name: each.statistics.mean_error for each in row}
    return errors["spreading"] / min(errors["conventional"], errors["nearest arc"])


def find_references(
    config: Config, known: Reference
) -> tuple[list[VariantOptimum], dict[str, str]]:
    """Return the variants that are found, and the reason by name for each of the others."""
    found, failures = [], {}
    expected = ExpectedTracking(config.perturbations, config.start)
    for variant in config.variants:
        tracked = expected if variant == "plain" else None
        try:
            found.append(find_optimum(variant, config.wanted, known, expected=tracked))
        except HybridctlError as error:
            failures[variant] = str(error)
    return found, failures


def compare_laws(
    config: Config, stages: Mapping[str, Stage], console: Console
) -> dict[str, list[TunedLaw]]:
    """Return all laws on all stages, each with the best gains that were found for any law.

    Args:
        config: Settings of ensembles and searches.
        stages: Plant and reference by name.
        console: Where progress is printed.
    """
    judged = range(config.judged)
    seen = range(config.judged, config.judged + config.training)
    results: dict[str, list[TunedLaw]] = {name: [] for name in stages}
    with show_progress(console, 0.0, 1.0) as begin, crew(config.workers, config.dask) as workers:
        for name, stage in stages.items():

            def make_ensemble(law: str, members: Sequence[int], stage: Stage = stage) -> Ensemble:
                trial = LawTrial(stage, law, config.perturbations, config.seed)
                return Ensemble(trial, members, workers.parallel_executor)

            search = LawSearch(
                SpringGains.build(stage.plant, stage.reference),
                make_ensemble,
                seen,
                config.peak_input,
                config.evaluations,
                lambda found: found.mean_error + found.p95_error,
            )
            tick = begin(f"searches on the {name} reference")
            pool = search.search(LAWS, [np.log(config.start)], [_STEP], tick)
            tick = begin(f"laws on the {name} reference")
            for k, law in enumerate(LAWS, start=1):
                best = search.choose(law, pool, seen)
                gains = search.structure.schedule(best)
                found = make_ensemble(law, judged)(gains)
                results[name].append(TunedLaw(law, np.exp(best), gains, found))
                tick(k / len(LAWS))
    return results


def make_reference_tables(summary: Mapping[str, Any]) -> list[Table | str]:
    """Return the tables of the margins of optima, and of both orders of touch."""
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
        make_record_table("Optima", optima, margins),
        make_record_table("If one corner touches first", orders, touches),
    ]
