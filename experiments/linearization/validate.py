r"""The linearization of a trajectory is right to first order: simulations near it show it.

A nominal trajectory :math:`\alpha` with its policy is simulated again from
:math:`\alpha(0) + \varepsilon z_0`, with :math:`\varepsilon v(t)` added to the input. If z, the
perturbation that the linearization predicts under the feedback, is right to first order, then

.. math:: |x(t) - \alpha(t) - \varepsilon z(t)| = O(\varepsilon^2)

at all times at which both trajectories have the same events behind them. The slope of the remainder
over :math:`\varepsilon` is then 2, with simultaneous events too, where z is only piecewise linear;
it would be 1 for any other z. [RS] proposes these linearizations (LTTHS 3.2, PTTHS 4.3).

The same simulations give difference quotients of the final state: central ones where all events are
isolated, else one-sided ones of second order, as the derivative has a kink. They are compared with
the map, and with the map that has the Jacobians of the resets in place of the saltation matrices.

The prediction of the first order for a large perturbation is drawn for the first case: a run from
half of the radius at which it is off by a tenth, [RS] Fig. 3.5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from hybridctl.experiments.convergence import Convergence, measure_errors
from hybridctl.experiments.linearization.validate_cases import ValidationCase
from hybridctl.experiments.runners import tabulate
from rich.console import Console

from hybridctl import HybridTrajectory, simulate
from hybridctl.app.experiment import Check, Findings, experiment, study_cases
from hybridctl.app.plots import CURVES, Line, Panel, draw_series, make_power_line, prediction
from hybridctl.base import plugins
from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import Count, Natural, NotNegative, Positive, Settings
from hybridctl.hybrid import DisturbedPolicy
from hybridctl.hybrid.arc import Arc
from hybridctl.sensitivity.propagation import InputChange, PerturbationCurve
from hybridctl.sensitivity.radius import Radius

CLEARANCE = 1e-3  # s, least distance of samples from the ends of arcs; a choice
SHOWN = 0.5  # of the radius: the perturbation that is drawn
_STYLES = ("o-", "s--", "^-", "v:", "D:")  # of the curves of each case


@dataclass(frozen=True)
class Config(Settings):
    """Perturbations, and their sizes.

    Attributes:
        seed: Seed of the perturbations.
        directions: Number of perturbations (z0, v), |z0| = 1 in rad, m and s.
        difference_directions: Number of the first of them in which differences are taken.
        input_size: Largest value of the sine that is added to each input, N m.
        sizes: Sizes epsilon of perturbations whose remainders are found.
        steps: Steps of the differences.
        samples: Number of times in each arc at which remainders are found.
        tolerance: Relative and absolute tolerance of all simulations.
    """

    seed: Natural = 1
    directions: Count = 3
    difference_directions: Count = 1
    input_size: NotNegative = 1.0
    sizes: tuple[Positive, ...] = (2e-3, 6e-4, 2e-4, 6e-5, 2e-5)
    steps: tuple[Positive, ...] = (2e-3, 2e-4, 2e-5, 2e-6)
    samples: Count = 5
    tolerance: Positive = 1e-11

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.difference_directions > self.directions:
            raise InputError(
                f"difference_directions must be at most directions ({self.directions}), got "
                f"{self.difference_directions}"
            )
        if len(set(self.sizes)) < 2:
            raise InputError(f"sizes must have two or more different numbers, got {self.sizes}")
        if not self.steps:
            raise InputError("steps must have at least one number, got none")


@dataclass(frozen=True, eq=False)
class Direction:
    """A perturbation of a run.

    Attributes:
        state: Perturbation (ndx,) of the initial state.
        input: Change of the input; None for none.
    """

    state: Array
    input: InputChange | None


@dataclass(frozen=True, eq=False)
class ValidationResult:
    """Simulations of one case beside its maps.

    Attributes:
        case: The case.
        remainders: Remainders in each direction, the largest over all samples, by size.
        derivative_errors: Largest errors (steps,) of the map against differences, relative to the
            differences.
        reset_errors: The same of the map with the Jacobians of the resets alone.
        radii: Largest perturbations of the state, in the directions of the differences.
        perturbed: Run from `SHOWN` of the first of them, without a change of the input.
    """

    case: ValidationCase
    remainders: tuple[Convergence, ...]
    derivative_errors: Array
    reset_errors: Array
    radii: tuple[Radius, ...]
    perturbed: HybridTrajectory


def quick(config: Config) -> Config:
    """Return the settings with one direction, fewer sizes, looser tolerances."""
    return replace(
        config,
        directions=1,
        difference_directions=1,
        sizes=(6e-4, 2e-4, 6e-5),
        steps=(2e-4,),
        tolerance=1e-10,
    )


def run(validated: str, config: Config, folder: RunFolder, console: Console) -> dict[str, Any]:
    """Validate the cases of an experiment.

    Args:
        validated: Name of the experiment.
        config: Settings.
        folder: Folder of the results.
        console: Where tables and progress are shown.

    Returns:
        The content of summary.json.
    """

    @experiment
    def validate_cases(config: Config, console: Console) -> Findings:
        cases = plugins.load_plugin("validations", validated)(config.tolerance)
        results = study_cases(
            cases, lambda build, tick: _study_case(config, build(), tick), console
        )
        summary = _summarize(config, results)
        right, wrong = summary["best_derivative_error"], summary["reset_only_error"]
        said = "relative error of the derivative with the resets' Jacobians alone / with saltation"
        rows = {
            name: {
                "times": [f"{e['time']:.3f}" + "*" * (len(e["guards"]) > 1) for e in r["events"]],
                **r,
            }
            for name, r in summary["cases"].items()
        }
        title = f"First-order validation of {validated} (* simultaneous guards)"
        return Findings(
            summary,
            [
                tabulate(title, rows, COLUMNS),
                f"slope farthest from 2: {summary['worst_slope']:.4f}; relative errors of the "
                f"final state's derivative: {right:.1e} with saltation, {wrong:.1e} with the "
                "resets' Jacobians only",
            ],
            [
                Check("slope of the remainder farthest from 2", summary["worst_slope"], 2.1, 1.9),
                Check("relative error of the derivative with saltation", right, 1e-4),
                Check(said, wrong / right, least=100.0),
            ],
            draw=lambda to: _draw_all(to / "figures", validated, config, results),
        )

    return validate_cases(config, folder, console)


COLUMNS = {
    "case": "{name}",
    "events [s]": "{times}",
    "slopes of the remainder": "{slopes:.3f}",
    "derivative error": "{best_derivative_error:.1e}",
    "error, resets only": "{reset_only_error:.1e}",
    "size of 10 % error": "{radii:.2g}",
    "size where the order changes": "{order_changes:.2g}",
}


def _study_case(
    config: Config, case: ValidationCase, tick: Callable[[float], None]
) -> ValidationResult:
    """Return the perturbations of one nominal trajectory in all directions.

    Args:
        config: Settings.
        case: The case.
        tick: Function that is called with the share that is done.
    """
    rng = np.random.default_rng(config.seed)
    remainders, correct, reset, radii = [], [], [], list[Radius]()
    perturbed, reset_only = case.nominal, case.reset_only()
    for k in range(config.directions):
        direction = draw_direction(rng, case, config.input_size)
        runs = PerturbedRuns(config, case, direction)
        predicted = case.map.propagate(direction.state, direction.input)
        remainders.append(compute_remainders(runs, predicted))
        if k < config.difference_directions:
            false = reset_only.propagate(direction.state, direction.input)[-1].end[:, 0]
            differences = [runs.differentiate(step) for step in config.steps]
            correct.append([_relative_error(predicted[-1].end[:, 0], d) for d in differences])
            reset.append([_relative_error(false, d) for d in differences])
            radii.append(case.map.radius(direction.state, policy=case.policy))
            if k == 0:
                alone = PerturbedRuns(config, case, Direction(direction.state, None))
                perturbed = alone[SHOWN * radii[0].size]
        tick((k + 1) / config.directions)
    return ValidationResult(
        case,
        tuple(remainders),
        np.array(correct).max(axis=0),
        np.array(reset).max(axis=0),
        tuple(radii),
        perturbed,
    )


def draw_direction(rng: np.random.Generator, case: ValidationCase, input_size: float) -> Direction:
    """Return a random direction of unit length, with a sine of random phase for each input.

    Args:
        rng: Source of random numbers.
        case: The case.
        input_size: Largest amplitude of an input, N m.
    """
    arc = case.nominal.arcs[0]
    state = rng.normal(size=arc.space.ndx)
    state /= np.linalg.norm(state)
    nu = case.system.mode(arc.mode).nu
    if nu == 0:
        return Direction(state, None)
    heights = input_size * rng.uniform(0.5, 1.0, nu)
    rates, phases = rng.uniform(2.0, 8.0, nu), rng.uniform(0.0, 2.0 * np.pi, nu)
    return Direction(state, lambda t: heights * np.sin(rates * t + phases))


@dataclass(eq=False)
class PerturbedRuns:
    """Simulations in one direction, by their size epsilon; each is simulated once.

    Attributes:
        config: Settings.
        case: The case.
        direction: The direction.
    """

    config: Config
    case: ValidationCase
    direction: Direction
    _runs: dict[float, HybridTrajectory] = field(default_factory=dict)

    def __getitem__(self, size: float) -> HybridTrajectory:
        """Return the run of a size, in which guards that fire apart are events of their own."""
        if size not in self._runs:
            case, direction, first = self.case, self.direction, self.case.nominal.arcs[0]
            policy, change = case.policy, direction.input
            if policy is not None and change is not None:
                policy = DisturbedPolicy(policy, lambda t, x: size * change(t))
            self._runs[size] = simulate(
                case.system,
                first.mode,
                first.space.integrate(first(first.start), size * direction.state),
                (case.nominal.start, case.nominal.end),
                policy,
                rtol=self.config.tolerance,
                atol=self.config.tolerance,
                event_window=0.0,
            )
        return self._runs[size]

    def match_arcs(self, size: float) -> list[Arc]:
        """Return the arcs of a run by the arcs of the nominal one, phantom arcs left out.

        Args:
            size: Size of the perturbation.

        Raises:
            InputError: The run has other events.
        """
        run = self[size]
        arcs, position = [run.arcs[0]], 0
        for event in self.case.nominal.events:
            fired: set[str] = set()
            while position < len(run.events) and run.arcs[position].mode != event.mode_after:
                fired |= set(run.events[position].guards)
                position += 1
            if run.arcs[position].mode != event.mode_after or not fired <= set(event.guards):
                raise InputError(
                    f"sizes and steps must be smaller: with {size:g} the event {event.guards} at "
                    f"t = {event.time:.6g} s of the nominal trajectory has become {sorted(fired)}"
                )
            arcs.append(run.arcs[position])
        if position != len(run.events):
            raise InputError(
                f"sizes and steps must be smaller: with {size:g} there is another event at "
                f"t = {run.events[position].time:.6g} s"
            )
        return arcs

    def differentiate(self, step: float) -> Array:
        """Return a second-order difference quotient (ndx,) of the final state.

        It is one-sided at kinks, from the run of size 0: the nominal trajectory, planned arc by
        arc, is off that by the tolerance, which would be divided by the step.

        Args:
            step: Size of the perturbation.
        """
        nominal = self.case.nominal

        def end(size: float) -> Array:
            self.match_arcs(size)
            return nominal.arcs[-1].space.difference(nominal.final_state, self[size].final_state)

        if self.case.map.is_linear:
            return (end(step) - end(-step)) / (2.0 * step)
        return (4.0 * end(0.5 * step) - end(step) - 3.0 * end(0.0)) / step


def compute_remainders(runs: PerturbedRuns, predicted: list[PerturbationCurve]) -> Convergence:
    """Return the largest remainders, over times at which all runs have the same events behind them.

    Args:
        runs: Simulations in one direction.
        predicted: Perturbation along each arc that the map predicts for the size 1.

    Raises:
        InputError: An arc has no time in common with all runs.
    """
    config, nominal = runs.config, runs.case.nominal
    found = {size: runs.match_arcs(size) for size in config.sizes}
    places: list[tuple[int, float]] = []
    for k, arc in enumerate(nominal.arcs):
        together = [arc, *(arcs[k] for arcs in found.values())]
        start = max(a.start for a in together) + CLEARANCE
        end = min(a.end for a in together) - CLEARANCE
        if not start < end:
            raise InputError(
                f"sizes must be smaller: with up to {max(config.sizes)} the arc from "
                f"{arc.start:.6g} to {arc.end:.6g} s has no time in common with all runs"
            )
        places += [(k, t) for t in np.linspace(start, end, config.samples).tolist()]

    def flow(size: float) -> list[Array]:
        pairs = [(nominal.arcs[k], found[size][k], t) for k, t in places]
        return [arc.space.difference(arc(t), own(t)) for arc, own, t in pairs]

    return measure_errors(flow, [predicted[k](t)[:, 0] for k, t in places], config.sizes, norm=2)


def _relative_error(value: Array, reference: Array) -> float:
    return float(np.linalg.norm(value - reference) / np.linalg.norm(reference))


def _summarize(config: Config, results: Mapping[str, ValidationResult]) -> dict[str, Any]:
    """Return all slopes, the one farthest from 2, and the worst case of either derivative.

    best_derivative_error is that of the best step, and the largest of all cases; reset_only_error
    is that of the same map without the saltation, at its best step too, and the smallest of all.
    """
    cases = {name: _record(config, result) for name, result in results.items()}
    slopes = [s for r in cases.values() for s in r["slopes"]]
    return {
        "slopes": slopes,
        "worst_slope": _select_farthest(slopes),
        "best_derivative_error": max(r["best_derivative_error"] for r in cases.values()),
        "reset_only_error": min(r["reset_only_error"] for r in cases.values()),
        "cases": cases,
    }


def _record(config: Config, result: ValidationResult) -> dict[str, Any]:
    """Return a case as it stands in summary.json.

    Args:
        config: Settings.
        result: Simulations of the case.
    """
    slopes = [found.order for found in result.remainders]
    return {
        "events": [{"time": e.time, "guards": e.guards} for e in result.case.nominal.events],
        "simultaneous": not result.case.map.is_linear,
        "slopes": slopes,
        "worst_slope": _select_farthest(slopes),
        "sizes": config.sizes,
        "remainders": [found.errors for found in result.remainders],
        "steps": config.steps,
        "derivative_errors": result.derivative_errors,
        "reset_only_errors": result.reset_errors,
        "radii": [radius.size for radius in result.radii],
        "order_changes": [radius.order.size for radius in result.radii],
        "error_at_radius": result.radii[0].error,
        "best_derivative_error": float(result.derivative_errors.min()),
        "reset_only_error": float(result.reset_errors.min()),
    }


def _select_farthest(slopes: list[float]) -> float:
    """Return the slope farthest from 2."""
    return max(slopes, key=lambda slope: abs(slope - 2.0))


def _draw_all(
    folder: Path, validated: str, config: Config, results: Mapping[str, ValidationResult]
) -> None:
    """Save remainders and derivative errors, and the first order of a large perturbation.

    Args:
        folder: Folder of the figures.
        validated: Name of the experiment.
        config: Settings.
        results: Simulations by case.
    """
    sizes, steps = np.array(config.sizes), np.array(config.steps)
    remainders, right, alone = list[Line](), list[Line](), list[Line]()
    for (name, found), color, style in zip(results.items(), CURVES, _STYLES, strict=False):
        largest = np.max([one.errors for one in found.remainders], axis=0)
        remainders.append(Line(sizes, largest, name, color, style))
        right.append(Line(steps, found.derivative_errors, name, color, style))
        alone.append(Line(steps, found.reset_errors, name, color, style))
    lowest = min((line.values for line in remainders), key=lambda values: float(values[0]))
    remainders.append(make_power_line(sizes, 0.5 * lowest, 2.0))
    derivative = "error of the final state's derivative"
    panels = [
        Panel("largest |x - alpha - epsilon z|", remainders, log=True),
        Panel(derivative, right, log=True),
        Panel(f"{derivative},\nJacobians of the resets only", alone, log=True),
    ]
    draw_series(
        folder / "validation.png",
        [panels],
        title=f"First-order validation: {validated}",
        xlabel="epsilon, and step of the difference",
        xlog=True,
    )
    name, result = next(iter(results.items()))
    title = f"{validated}, {name}: first-order prediction at half the size of 10 % error"
    prediction(result.case.map, result.perturbed, folder / "prediction.png", title=title)
