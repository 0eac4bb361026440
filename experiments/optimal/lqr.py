r"""Hybrid LQR against the same without saltation, on a paddle, a block, and the door.

Each reference has jumps that deviations go through with the saltation matrix. Feedback is designed
by the same Riccati equation with

- the `saltation` matrix, the right one;
- the Jacobian of the `reset` alone, which leaves out that a deviation changes the time of the jump;
- `no` jump at all: deviations go on as if nothing had happened;

and tracks the same reference from the same random starts, with reference spreading. What it then
costs in simulation is compared, and that of the right one with what its value function says: they
agree to second order in the size of the deviation, so that their relative difference falls with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from hybridctl.experiments.convergence import Convergence, convergence_panel, draw_convergence
from hybridctl.experiments.rrr_door.reference import Design, build
from hybridctl.robots import block, paddle, rrr_door
from numpy.polynomial.legendre import leggauss
from rich.console import Console
from rich.table import Table

from hybridctl.app.experiment import Check, Findings, experiment, study_cases
from hybridctl.app.plots import BASELINE, REFERENCE, canvas, save_figure
from hybridctl.app.report import record_table
from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError, SimulationError
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import Count, Natural, Positive, Settings
from hybridctl.control.lqr.finite_horizon import LqrResult, hybrid_lqr
from hybridctl.control.lqr.periodic import periodic_lqr
from hybridctl.control.reference import Reference, extend
from hybridctl.control.spreading import ReferenceSpreading, get_followed_arc, locate
from hybridctl.hybrid.simulate import simulate
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.orbits.return_map import periodic_orbit
from hybridctl.sensitivity.linearization import Linearization, linearize
from hybridctl.sensitivity.piecewise import PiecewiseLinearJump
from hybridctl.sensitivity.saltation import JumpGains

SUMMARY = "hybrid LQR against the same without saltation: a paddle, a block, the door"

DESIGNS = ("saltation", "reset", "no")
_NODES, _WEIGHTS = leggauss(8)


@dataclass(frozen=True)
class Config(Settings):
    """The random starts, and the sizes at which cost and value function are compared.

    samples: starts of each case. seed: of their directions. size: of the deviations, relative to
    those of the case. sizes: of one deviation, likewise. tolerance: of the simulations.
    """

    samples: Count = 8
    seed: Natural = 0
    size: Positive = 1.0
    sizes: tuple[Positive, ...] = (0.4, 0.2, 0.1, 0.05)
    tolerance: Positive = 1e-9

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.sizes)) < 2:
            raise InputError(f"sizes must have two or more different numbers, got {self.sizes}")


@dataclass(frozen=True, eq=False)
class DesignCosts:
    """Costs (samples,) of each design by simulation, inf where a run could not go on.

    values (samples,): predicted costs of the right design. gaps (sizes,): the
    difference of cost and value, relative to the value, for one deviation of each size.
    """

    costs: Mapping[str, Array]
    values: Array
    gaps: Array

    def ratios(self, design: str) -> Array:
        """Costs (samples,) of a design, divided by those of the design with saltation."""
        return np.asarray(self.costs[design] / self.costs["saltation"])


def full(config: Config) -> Config:
    """The settings with more starts, for a picture of their costs."""
    return replace(config, samples=20)


def quick(config: Config) -> Config:
    """The settings with fewer starts."""
    return replace(config, samples=3, sizes=(0.4, 0.2))


@experiment
def run(config: Config, console: Console) -> Findings:
    """Design, track and compare on every case."""
    cases = {name: build(config.tolerance) for name, build in CASES.items()}
    results = study_cases(cases, partial(study, config), console)
    summary = {name: record(config, result) for name, result in results.items()}

    def draw(folder: RunFolder) -> None:
        draw_costs(folder / "figures/costs.png", results)
        draw_values(folder / "figures/value.png", config, results)

    return Findings(
        summary,
        [cost_table(summary)],
        [check for name, entry in summary.items() for check in checks(name, entry)],
        draw=draw,
    )


def study(config: Config, case: LqrCase, tick: Any) -> DesignCosts:
    """All runs of one case."""
    weights = case.state_weights, case.input_weights, case.final_weight
    designs = {d: hybrid_lqr(with_jumps(case.map, d), *weights) for d in DESIGNS}
    random = np.random.default_rng(config.seed)
    drawn = random.normal(size=(config.samples, len(case.deviation)))
    deviations = config.size * case.deviation * drawn
    costs: dict[str, list[float]] = {design: [] for design in DESIGNS}
    for k, dx in enumerate(deviations):
        for design, result in designs.items():
            costs[design].append(cost_of(config, case, result, dx))
        tick((k + 1) / (len(deviations) + 1))
    right = designs["saltation"]
    gaps = []
    for size in config.sizes:
        value = right.predicted_cost(size * deviations[0])
        gaps.append(abs(cost_of(config, case, right, size * deviations[0]) / value - 1.0))
    return DesignCosts(
        {design: np.array(found) for design, found in costs.items()},
        np.array([right.predicted_cost(dx) for dx in deviations]),
        np.array(gaps),
    )


def with_jumps(lin: Linearization, design: str) -> Linearization:
    """The linearization with the jumps that a design believes in."""

    def believed(jump: JumpGains) -> JumpGains:
        still = replace(jump, field_change=np.zeros_like(jump.field_change))
        if design == "reset":
            return still
        return replace(still, reset_state=None, reset_input=np.zeros_like(jump.reset_input))

    def wrong(jump: JumpGains | PiecewiseLinearJump) -> JumpGains | PiecewiseLinearJump:
        if isinstance(jump, JumpGains):
            return believed(jump)
        return PiecewiseLinearJump(jump.guards, lambda fired, j: believed(jump.jump(fired, j)))

    if design == "saltation":
        return lin
    return replace(lin, jumps=tuple(wrong(jump) for jump in lin.jumps))


def cost_of(config: Config, case: LqrCase, result: LqrResult, dx: Array) -> float:
    """The cost of tracking from a deviation dx, infinite where the run cannot go on."""
    nominal = case.reference.nominal
    first = nominal.arcs[0]
    start = first.space.integrate(first(first.start), dx)
    policy = ReferenceSpreading(case.reference, result.gains)
    span = (nominal.start, nominal.end)
    try:
        tracking = simulate(
            case.map.system,
            first.mode,
            start,
            span,
            policy,
            rtol=config.tolerance,
            atol=1e-2 * config.tolerance,
            method="Radau",  # gains that believe in no jump at the door close in within 1e-8 s
        )
    except SimulationError:
        return np.inf
    weights = case.state_weights, case.input_weights, case.final_weight
    return simulated_cost(case.reference, tracking, *weights)


def simulated_cost(
    reference: Reference,
    tracking: HybridTrajectory,
    state_weights: Sequence[Array],
    input_weights: Sequence[Array],
    final_weight: Array,
) -> float:
    """The cost of the spread error and of what the feedback adds to the input.

    Weights are those of each arc of the reference; that before an event until it is complete.
    """
    total = 0.0
    for arc in tracking.arcs:
        position = locate(reference, tracking.events[: arc.index])
        target = get_followed_arc(reference, position)
        q, r = state_weights[position.macro], input_weights[position.macro]
        ends = np.minimum(arc.breaks + arc.lengths, arc.end)
        for start, end in zip(arc.breaks, ends, strict=True):
            half = 0.5 * (end - start)
            for node, weight in zip(_NODES, _WEIGHTS, strict=True):
                t = float(start + half * (node + 1.0))
                x, u = arc.state_and_input(t)
                alpha, mu = target.state_and_input(t)
                e, du = arc.space.difference(alpha, x), u - mu
                total += half * weight * float(e @ q @ e + du @ r @ du)
        if arc is tracking.arcs[-1]:
            e = arc.space.difference(target(arc.end), arc(arc.end))
            total += float(e @ final_weight @ e)
    return total


def record(config: Config, result: DesignCosts) -> dict[str, Any]:
    """A case as it stands in summary.json; ratios are to the design with the saltation matrix."""
    found: dict[str, Any] = {
        "mean_cost": float(result.costs["saltation"].mean()),
        "value_error": float(np.abs(result.costs["saltation"] / result.values - 1.0).max()),
        "sizes": config.sizes,
        "gaps": result.gaps,
    }
    for design in DESIGNS[1:]:
        ratios = result.ratios(design)
        ended = np.isfinite(ratios)
        found[design] = {
            "lost": int((~ended).sum()),
            "worse": float((ratios > 1.0).mean()),
            "mean_ratio": float(ratios[ended].mean()) if ended.any() else np.inf,
            "median_ratio": float(np.median(ratios)),
        }
    return found


def checks(name: str, entry: Mapping[str, Any]) -> list[Check]:
    """What saltation is worth in a case, and that its value function is right to second order."""
    ratio = min(entry[design]["mean_ratio"] for design in DESIGNS[1:])
    order = Convergence(entry["sizes"], entry["gaps"]).order
    worth = "mean cost of the best design without saltation / with saltation"
    shrinks = "order of the value function's error in the size of the deviation"
    return [
        Check(f"{name}: {worth}", ratio, least=1.0),
        Check(f"{name}: {shrinks}", order, least=0.5),
    ]


def cost_table(summary: Mapping[str, Any]) -> Table:
    """Costs of the designs without saltation."""
    designs = {"reset": "reset only", "no": "no jump"}
    rows = [
        {"name": f"{name}, {label}", **s[design]}
        for name, s in summary.items()
        for design, label in designs.items()
    ]
    columns = {
        "design": "{name}",
        "mean": "{mean_ratio:.2f}",
        "median": "{median_ratio:.2f}",
        "costlier starts [%]": "{worse:.0f}",
        "runs lost": "{lost}",
    }
    title = "Simulated cost / simulated cost of the design with the saltation matrix"
    return record_table(title, rows, columns)


WRONG = (("reset", "reset's Jacobian only", REFERENCE), ("no", "no jump", BASELINE))


def draw_costs(path: Path, results: Mapping[str, DesignCosts]) -> None:
    """Ratios of the costs of all starts, sorted."""
    figure = canvas(5.4, 4.6)
    axes = figure.subplots()
    for column, result in enumerate(results.values()):
        for side, (design, label, color) in zip((-0.15, 0.15), WRONG, strict=True):
            ratios = result.ratios(design)
            ratios = np.sort(ratios[np.isfinite(ratios)])
            places = column + side + np.linspace(-0.1, 0.1, len(ratios))
            axes.plot(places, ratios, "o", color=color, ms=4, label=label if column == 0 else None)
    axes.axhline(1.0, color="black", lw=0.8)
    axes.set_yscale("log")
    axes.set_xticks(range(len(results)), list(results))
    axes.set_ylabel("simulated cost / cost with saltation")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.suptitle("Hybrid LQR without the saltation matrix, each start")
    save_figure(figure, path)


def draw_values(path: Path, config: Config, results: Mapping[str, DesignCosts]) -> None:
    """The value function against simulation, over the size of the deviation."""
    sizes = np.array(config.sizes)
    gaps = {name: Convergence(sizes, result.gaps) for name, result in results.items()}
    lowest = min(gaps.values(), key=lambda found: found.errors[0])
    panel = convergence_panel("|simulated cost / value function - 1|", gaps, lowest, 1.0)
    title = "Value functions against simulation"
    draw_convergence(path, [panel], title, "size of the deviation")


PERIODS = 4
EARLY, LATE = 1e-2, 1e2  # weights on errors before the impact, on inputs after it
BLOCK_START = (0.0, 0.3, 0.2, 1.0, 0.0, 0.0)  # tilted, thrown sideways
BLOCK_END = 0.3


@dataclass(frozen=True, eq=False)
class LqrCase:
    """A reference with its map and the weights of the cost.

    state_weights, input_weights: of each arc. The error before the last impact counts little.
    deviation (ndx,): the standard deviations of the start.
    """

    map: Linearization
    reference: Reference
    state_weights: tuple[Array, ...]
    input_weights: tuple[Array, ...]
    final_weight: Array
    deviation: Array


def on_the_paddle(tolerance: float) -> LqrCase:
    """A ball that bounces on a driven paddle, from apex to apex, where it would not stay."""
    plant, p = paddle.system(), paddle.PaddleParameters()
    orbit = periodic_orbit(plant, paddle.AIR, paddle.apex(), p.period, input=paddle.drive)
    q, r = np.diag([100.0, 10.0, 1.0, 0.1]), 1e-3 * np.eye(1)
    nominal, _ = periodic_lqr(orbit.linearization, q, r).repeated(PERIODS)
    return LqrCase(
        linearize(plant, nominal, rtol=tolerance, atol=tolerance),
        extend(plant, nominal, before=0.5 * p.period, after=0.5 * p.period),
        (q,) * (PERIODS + 1),
        (r,) * (PERIODS + 1),
        q,
        np.array([5e-3, 5e-3, 2e-2, 2e-2]),
    )


def of_the_block(tolerance: float) -> LqrCase:
    """A block that lands corner by corner and slides, pushed and turned at its centre."""
    plant = block.system(actuated=True)
    nominal = simulate(
        plant, ("open", "open"), BLOCK_START, (0.0, BLOCK_END), rtol=tolerance, atol=tolerance
    )
    q, r = np.diag([100.0, 100.0, 10.0, 1.0, 1.0, 0.1]), np.diag([1e-2, 1e-2, 1.0])
    return LqrCase(
        linearize(plant, nominal, rtol=tolerance, atol=tolerance),
        extend(plant, nominal, before=0.02, after=0.02),
        (EARLY * q, EARLY * q, EARLY * q, q),
        (r, r, r, LATE * r),
        q,
        np.array([5e-3, 1e-3, 5e-3, 1e-2, 1e-2, 2e-2]),
    )


def at_the_door(tolerance: float) -> LqrCase:
    """The reference of the thesis, which hits the door with both corners at once."""
    parameters = rrr_door.DoorParameters()
    plant = rrr_door.system(parameters)
    reference = build(plant, parameters, Design(), rtol=tolerance, atol=tolerance)
    q, r = np.diag([100.0] * 4 + [1.0] * 4), 0.01 * np.eye(3)
    return LqrCase(
        linearize(plant, reference.nominal, rtol=tolerance, atol=tolerance),
        reference,
        (EARLY * q, q),
        (r, LATE * r),
        q,
        np.array([0.02, 0.02, 0.02, 0.01, 0.02, 0.02, 0.02, 0.0]),
    )


CASES: Mapping[str, Callable[[float], LqrCase]] = {
    "paddle": on_the_paddle,
    "block": of_the_block,
    "door": at_the_door,
}
