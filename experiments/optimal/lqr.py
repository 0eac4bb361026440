r"""Hybrid LQR without the saltation matrix costs more, on a paddle, a block, and the door.

Each reference has jumps that perturbations pass by the saltation matrix. Feedback is designed by
the same Riccati equation with

- the `saltation` matrix, the right one;
- the Jacobian of the `reset` alone, which omits that a perturbation changes the time of the jump;
- `no` jump at all: perturbations go on as if nothing had happened;

and tracks the same reference from the same random starts, with reference spreading. Compared are
the simulated costs, and that of the right design with its value function: these agree to second
order in the size of the perturbation, so that their relative difference falls with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from hybridctl.experiments.convergence import Convergence
from hybridctl.experiments.rrr_door.reference import Design, build
from hybridctl.experiments.runners import tabulate
from hybridctl.robots import block, paddle, rrr_door
from numpy.polynomial.legendre import leggauss
from rich.console import Console

from hybridctl import (
    HybridTrajectory,
    JumpGains,
    Reference,
    ReferenceSpreading,
    extend,
    hybrid_lqr,
    linearize,
    simulate,
)
from hybridctl.app.experiment import Check, Findings, experiment, study_cases
from hybridctl.app.plots import BASELINE, REFERENCE, make_figure, save_figure
from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError, SimulationError
from hybridctl.base.settings import Count, Natural, Positive, Settings
from hybridctl.control import periodic_lqr
from hybridctl.control.lqr.finite_horizon import LqrResult
from hybridctl.control.spreading import get_followed_arc, locate
from hybridctl.orbits import periodic_orbit
from hybridctl.sensitivity import Linearization
from hybridctl.sensitivity.piecewise import PiecewiseLinearJump

SUMMARY = "hybrid LQR against the same without saltation: a paddle, a block, the door"

DESIGNS = ("saltation", "reset", "no")
WRONG = {"reset": ("reset only", REFERENCE), "no": ("no jump", BASELINE)}
_NODES, _WEIGHTS = leggauss(8)  # of the quadrature of a cost, exact to degree 15 in each step
PERIODS = 4  # of the paddle
EARLY, LATE = 1e-2, 1e2  # factors of weights on errors before the impact, on inputs after it
BLOCK_START = (0.0, 0.3, 0.2, 1.0, 0.0, 0.0)  # tilted, thrown sideways
BLOCK_END = 0.3  # s


@dataclass(frozen=True)
class Config(Settings):
    """The random starts, and the sizes at which cost and value function are compared.

    Attributes:
        samples: Number of starts of each case.
        seed: Seed of their directions.
        size: Size of the perturbations, relative to those of the case.
        sizes: Sizes of one perturbation, likewise, at which cost and value are compared.
        tolerance: Tolerance of the simulations.
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
class LqrCase:
    """A reference with its map and the weights of the cost.

    Errors before the last impact count little.

    Attributes:
        map: Linearization of the nominal motion.
        reference: The motion with its extensions.
        state_weights: Weights (ndx, ndx) of the state on each arc.
        input_weights: Weights (nu, nu) of the input on each arc.
        final_weight: Weight (ndx, ndx) of the state at the end.
        deviation: Standard deviations (ndx,) of the start.
    """

    map: Linearization
    reference: Reference
    state_weights: tuple[Array, ...]
    input_weights: tuple[Array, ...]
    final_weight: Array
    deviation: Array


@dataclass(frozen=True, eq=False)
class DesignCosts:
    """Costs of tracking by each design.

    Attributes:
        costs: Simulated costs (samples,) of each design; inf where a run could not be finished.
        values: Predicted costs (samples,) of the right design.
        gaps: Difference (sizes,) of cost and value, relative to the value, for one perturbation of
            each size.
    """

    costs: Mapping[str, Array]
    values: Array
    gaps: Array

    def ratios(self, design: str) -> Array:
        """Return the costs (samples,) of a design, divided by those of the right design.

        Args:
            design: "reset" or "no".
        """
        return np.asarray(self.costs[design] / self.costs["saltation"])


def full(config: Config) -> Config:
    """Return the settings with more starts, for a picture of their costs."""
    return replace(config, samples=20)


def quick(config: Config) -> Config:
    """Return the settings with fewer starts."""
    return replace(config, samples=3, sizes=(0.4, 0.2))


@experiment
def run(config: Config, console: Console) -> Findings:
    """Return the findings of all designs on every case."""
    cases = {name: make(config.tolerance) for name, make in CASES.items()}
    results = study_cases(cases, partial(study, config), console)
    summary = {name: _record(config, result) for name, result in results.items()}
    checks = []
    for name, entry in summary.items():
        ratio = min(entry[design]["mean_ratio"] for design in WRONG)
        order = Convergence(entry["sizes"], entry["gaps"]).order
        worth = "mean cost of the best design without saltation / with saltation"
        shrinks = "order of the value function's error in the size of the deviation"
        checks += [
            Check(f"{name}: {worth}", ratio, least=1.0),
            Check(f"{name}: {shrinks}", order, least=0.5),
        ]
    columns = {
        "design": "{name}",
        "mean": "{mean_ratio:.2f}",
        "median": "{median_ratio:.2f}",
        "costlier starts [%]": "{worse:.0f}",
        "runs lost": "{lost}",
    }
    rows = {
        f"{name}, {label}": entry[design]
        for name, entry in summary.items()
        for design, (label, _) in WRONG.items()
    }

    title = "Simulated cost / simulated cost of the design with the saltation matrix"
    return Findings(
        summary,
        [tabulate(title, rows, columns)],
        checks,
        draw=lambda folder: _draw_costs(folder / "figures/costs.png", results),
    )


def study(config: Config, case: LqrCase, tick: Callable[[float], None]) -> DesignCosts:
    """Return the costs of all designs on one case.

    Args:
        config: Settings.
        case: The case.
        tick: Function that is called with the share that is done.
    """
    weights = case.state_weights, case.input_weights, case.final_weight
    designs = {d: hybrid_lqr(replace_jumps(case.map, d), *weights) for d in DESIGNS}
    random = np.random.default_rng(config.seed)
    drawn = random.normal(size=(config.samples, len(case.deviation)))
    deviations = config.size * case.deviation * drawn
    costs: dict[str, list[float]] = {design: [] for design in DESIGNS}
    for k, dx in enumerate(deviations):
        for design, result in designs.items():
            costs[design].append(_simulate_cost(config, case, result, dx))
        tick((k + 1) / (len(deviations) + 1))
    right, gaps = designs["saltation"], []
    for size in config.sizes:
        value = right.predicted_cost(size * deviations[0])
        gaps.append(abs(_simulate_cost(config, case, right, size * deviations[0]) / value - 1.0))
    return DesignCosts(
        {design: np.array(found) for design, found in costs.items()},
        np.array([right.predicted_cost(dx) for dx in deviations]),
        np.array(gaps),
    )


def replace_jumps(lin: Linearization, design: str) -> Linearization:
    """Return a linearization with the jumps of a design in place of the right ones.

    Args:
        lin: Linearization with saltation matrices.
        design: "saltation", "reset" or "no".
    """

    def change(jump: JumpGains | PiecewiseLinearJump) -> JumpGains | PiecewiseLinearJump:
        if isinstance(jump, PiecewiseLinearJump):
            return PiecewiseLinearJump(
                jump.guards, lambda fired, j: replace_jump(jump.jump(fired, j))
            )
        return replace_jump(jump)

    def replace_jump(jump: JumpGains) -> JumpGains:
        still = replace(jump, field_change=np.zeros_like(jump.field_change))
        if design == "reset":
            return still
        return replace(still, reset_state=None, reset_input=np.zeros_like(jump.reset_input))

    if design == "saltation":
        return lin
    return replace(lin, jumps=tuple(change(jump) for jump in lin.jumps))


def _simulate_cost(config: Config, case: LqrCase, result: LqrResult, dx: Array) -> float:
    """Return the cost of tracking from a perturbed start, inf where the run cannot be finished.

    Args:
        config: Settings.
        case: The case.
        result: Design whose gains are used.
        dx: Perturbation (ndx,) of the start.
    """
    nominal = case.reference.nominal
    first = nominal.arcs[0]
    try:
        tracking = simulate(
            case.map.system,
            first.mode,
            first.space.integrate(first(first.start), dx),
            (nominal.start, nominal.end),
            ReferenceSpreading(case.reference, result.gains),
            rtol=config.tolerance,
            atol=1e-2 * config.tolerance,
            method="Radau",  # gains designed without a jump at the door close in within 1e-8 s
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
    """Return the cost of the spread error and of the input that the feedback adds.

    Args:
        reference: Extended reference.
        tracking: Run that follows it.
        state_weights: Weights (ndx, ndx) of each arc of the reference; that before an event holds
            until the event is complete.
        input_weights: Weights (nu, nu) of each arc, likewise.
        final_weight: Weight (ndx, ndx) of the final error.
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


def _record(config: Config, result: DesignCosts) -> dict[str, Any]:
    """Return a case as it stands in summary.json; ratios are to the right design.

    Args:
        config: Settings.
        result: Costs of the case.
    """
    found: dict[str, Any] = {
        "mean_cost": float(result.costs["saltation"].mean()),
        "value_error": float(np.abs(result.costs["saltation"] / result.values - 1.0).max()),
        "sizes": config.sizes,
        "gaps": result.gaps,
    }
    for design in WRONG:
        ratios = result.ratios(design)
        ended = np.isfinite(ratios)
        found[design] = {
            "lost": int((~ended).sum()),
            "worse": float((ratios > 1.0).mean()),
            "mean_ratio": float(ratios[ended].mean()) if ended.any() else np.inf,
            "median_ratio": float(np.median(ratios)),
        }
    return found


def _draw_costs(path: Path, results: Mapping[str, DesignCosts]) -> None:
    """Save the ratios of the costs of all starts, sorted.

    Args:
        path: File of the figure.
        results: Costs by case.
    """
    figure = make_figure(5.4, 4.6)
    axes = figure.subplots()
    labels = {"reset": "reset's Jacobian only", "no": "no jump"}
    for column, result in enumerate(results.values()):
        for side, (design, (_, color)) in zip((-0.15, 0.15), WRONG.items(), strict=True):
            ratios = result.ratios(design)
            ratios = np.sort(ratios[np.isfinite(ratios)])
            places = column + side + np.linspace(-0.1, 0.1, len(ratios))
            label = labels[design] if column == 0 else None
            axes.plot(places, ratios, "o", color=color, ms=4, label=label)
    axes.axhline(1.0, color="black", lw=0.8)
    axes.set_yscale("log")
    axes.set_xticks(range(len(results)), list(results))
    axes.set_ylabel("simulated cost / cost with saltation")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.suptitle("Hybrid LQR without the saltation matrix, each start")
    save_figure(figure, path)


def make_paddle_case(tolerance: float) -> LqrCase:
    """Return a ball on a driven paddle, from apex to apex, where it would not stay by itself.

    Args:
        tolerance: Tolerance of the simulations.
    """
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


def make_block_case(tolerance: float) -> LqrCase:
    """Return a block that lands corner by corner and slides, pushed and turned at its centre.

    Args:
        tolerance: Tolerance of the simulations.
    """
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


def make_door_case(tolerance: float) -> LqrCase:
    """Return the reference of the thesis, which hits the door with both corners at once.

    Args:
        tolerance: Tolerance of the simulations.
    """
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
    "paddle": make_paddle_case,
    "block": make_block_case,
    "door": make_door_case,
}
