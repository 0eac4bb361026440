"""The door by trajectory optimisation, and its controllers compared with equal tuning.

The claims: a reference like the published one, but found by optimisation, presses several times as
hard whichever corner touches first; it closes on simulation to 1e-6. Tracked on it from perturbed
starts, with gains tuned by the same means, budget and limit of the peak input, reference spreading
has a smaller error than controllers that go by the clock, or where not, the table says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from hybridctl.experiments.door_optimal import figures
from hybridctl.experiments.door_optimal.comparison import CONTROLLERS, Budget, Stage, Tuned, tuned
from hybridctl.experiments.door_optimal.reference import VARIANTS, Found, Wanted, find, published
from hybridctl.experiments.rrr_door.tracking import PERTURBATION
from hybridctl.experiments.tuning.door import Perturbations
from rich.console import Console

from hybridctl.checks import count, member, number, vector
from hybridctl.control.feasibility import EventFeasibility, feasibility
from hybridctl.control.reference import Reference
from hybridctl.errors import HybridctlError
from hybridctl.hybrid.system import HybridSystem
from hybridctl.report import RunFolder, progress, table

SUMMARY = "the door by trajectory optimisation; controllers compared with equal tuning"

_STARTS_AND_TORQUES = Perturbations(
    mass=0.0, friction=0.0, door_position=0.0, door_stiffness=0.0, delay=0.0
)


@dataclass(frozen=True)
class Config:
    """Settings.

    variants: of references to look for; the first is tracked. guesses: how many random guesses the
    first variant is looked for from, with noise of standard deviation `scatter` in rad and rad/s.
    references: which are tracked, "optimal" and "published". seed, training, judged: of the
    ensembles that tune and judge. evaluations: of each search. peak_input: its limit, N m. start:
    frequency in rad/s and damping ratio to begin with, before and after the impact. delay: of late
    detection; window: of the baselines; extension: of the references, s.
    """

    variants: tuple[str, ...] = VARIANTS
    guesses: int = 0
    scatter: float = 0.1
    references: tuple[str, ...] = ("optimal", "published")
    seed: int = 1
    training: int = 12
    judged: int = 60
    evaluations: int = 20
    peak_input: float = 30.0
    start: tuple[float, float, float, float] = (5.0, 1.0, 5.0, 1.0)
    delay: float = 0.001
    window: float = 0.04
    extension: float = 0.15
    wanted: Wanted = field(default_factory=Wanted)
    perturbations: Perturbations = _STARTS_AND_TORQUES

    def __post_init__(self) -> None:
        for variant in self.variants:
            member("variant", variant, VARIANTS)
        for name in self.references:
            member("reference", name, ("optimal", "published"))
        for name in ("training", "judged"):
            count(name, getattr(self, name))
        for name in ("guesses", "seed", "evaluations"):
            count(name, getattr(self, name), at_least=0)
        for k, value in enumerate(vector("start", self.start, 4)):
            number(f"start[{k}]", value, above=0.0)
        for name in ("scatter", "peak_input", "delay", "window", "extension"):
            number(name, getattr(self, name), above=0.0)


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


def run(config: Config, folder: RunFolder, console: Console) -> dict[str, Any]:
    """Run the experiment; returns what it writes to summary.json."""
    folder.write_configuration(config, seed=config.seed)
    plant, known = published()
    with console.status("looking for references"):
        found, failures = searched(config, known)
    references = {"published": (plant, known)}
    if found and found[0].variant == "plain":
        references["optimal"] = found[0].plant, found[0].extended(config.extension)
    summary: dict[str, Any] = {
        "references": {each.variant: found_record(each) for each in found},
        "not_found": failures,
        "orders": {
            name: orders_record(feasibility(*pair).events[0]) for name, pair in references.items()
        },
    }
    if config.guesses:
        with console.status("looking from random guesses"):
            summary["guesses"] = guessed(config, known)
    print_references(console, summary)
    results = compared(config, references, console)
    summary["controllers"] = {
        name: {each.name: tuned_record(each) for each in row} for name, row in results.items()
    }
    for name, row in results.items():
        print_controllers(console, name, row)
    folder.write_json("summary.json", summary)
    for each in found:
        each.optimum.run.save(folder / f"{each.variant}.npz")
    if folder.draws:
        draw(config, folder, references, results)
    return summary


def searched(config: Config, known: Reference) -> tuple[list[Found], dict[str, str]]:
    """The variants that were found, and why others were not."""
    found, failures = [], {}
    for variant in config.variants:
        try:
            found.append(find(variant, config.wanted, known))
        except HybridctlError as error:
            failures[variant] = str(error)
    return found, failures


def guessed(config: Config, known: Reference) -> dict[str, Any]:
    """Costs and seconds from random guesses; None where the search failed."""
    random = np.random.default_rng(config.seed)
    costs: list[float | None] = []
    for _ in range(config.guesses):
        noise = config.scatter * random.normal(size=(4, 8))
        try:
            optimum = find(config.variants[0], config.wanted, known, noise).optimum
            costs.append(optimum.cost)
        except HybridctlError:
            costs.append(None)
    reached = [cost for cost in costs if cost is not None]
    best = min(reached, default=np.nan)
    same = sum(abs(cost - best) <= 1e-6 * abs(best) for cost in reached)
    return {"costs": costs, "reach_the_best": same}


def compared(
    config: Config, references: Mapping[str, tuple[HybridSystem, Reference]], console: Console
) -> dict[str, list[Tuned]]:
    """All controllers on the references that are asked for."""
    budget = Budget(
        config.training, config.evaluations, config.judged, config.peak_input, config.start
    )
    names = [name for name in config.references if name in references]
    results: dict[str, list[Tuned]] = {}
    with progress(console, 0.0, float(len(names) * len(CONTROLLERS))) as begin:
        tick, done = begin("controllers"), 0
        for name in names:
            stage = Stage(*references[name], config.window, config.delay)
            results[name] = []
            for controller in CONTROLLERS:
                results[name].append(
                    tuned(stage, controller, config.perturbations, config.seed, budget)
                )
                done += 1
                tick(float(done))
    return results


def found_record(found: Found) -> dict[str, Any]:
    """An optimum as it stands in summary.json."""
    optimum = found.optimum
    return {
        "margin": 1.0 + optimum.margin,
        "cost": optimum.cost,
        "mismatch": optimum.mismatch,
        "iterations": optimum.iterations,
        "seconds": optimum.seconds,
        "events": [
            {"time": e.time, "guards": e.guards, "impulses": e.impulses} for e in optimum.run.events
        ],
    }


def orders_record(event: EventFeasibility) -> dict[str, Any]:
    """What both orders of touch leave, of a reference."""
    return {key: value for key, value in asdict(event).items() if key != "index"}


def tuned_record(each: Tuned) -> dict[str, Any]:
    """A controller as it stands in summary.json."""
    s = each.statistics
    return {
        "frequencies_and_dampings": each.parameters,
        "mean_error": s.mean_error,
        "p95_error": s.p95_error,
        "peak_input": s.peak_input,
        "failures": s.failures,
    }


def print_references(console: Console, summary: Mapping[str, Any]) -> None:
    """Margins of the optima, and of both orders beside the published reference."""
    rows = [
        (name, f"{r['margin']:.2f}", f"{r['mismatch']:.1e}", str(r["iterations"]))
        for name, r in summary["references"].items()
    ]
    rows += [(name, "none found", text[:60], "") for name, text in summary["not_found"].items()]
    console.print(
        table(
            "Optima", ["variant", "times the margins", "simulation differs by", "iterations"], rows
        )
    )
    rows = [
        (
            name,
            f"{r['least_impulse']:.3f}",
            ", ".join(f"{value:.2f}" for value in r["phantom_margin"].values()),
            ", ".join(f"{-rate:.2f}" for rate in r["guard_rates"].values()),
        )
        for name, r in summary["orders"].items()
    ]
    columns = ["reference", "least impulse [N s]", "forces between [N]", "approach [m/s]"]
    console.print(table("Either corner first", columns, rows))
    if "guesses" in summary:
        g = summary["guesses"]
        console.print(f"{g['reach_the_best']} of {len(g['costs'])} guesses reach the best optimum")


def print_controllers(console: Console, name: str, row: Sequence[Tuned]) -> None:
    """Errors of unseen runs."""
    rows = [
        (
            each.name,
            f"{each.statistics.mean_error:.4f}",
            f"{each.statistics.p95_error:.4f}",
            f"{each.statistics.peak_input:.1f}",
            str(sum(each.statistics.failures.values())),
        )
        for each in row
    ]
    columns = ["controller", "mean error", "95 %", "peak input [N m]", "failed"]
    console.print(table(f"Tuned alike on the {name} reference, unseen runs", columns, rows))


def draw(
    config: Config,
    folder: RunFolder,
    references: Mapping[str, tuple[HybridSystem, Reference]],
    results: Mapping[str, Sequence[Tuned]],
) -> None:
    """The comparison, with one run of the first and of the conventional controller beside it."""
    for name, row in results.items():
        stage = Stage(*references[name], config.window, config.delay)
        start = np.array(PERTURBATION)
        runs = {
            each.name: stage.run(each.name, each.gains, start, np.zeros(3))
            for each in row
            if each.name in ("spreading", "conventional")
        }
        figures.draw_comparison(
            folder / f"figures/{name}.png", stage.reference, row, runs, config.peak_input
        )
