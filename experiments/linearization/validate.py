r"""First-order validation: the linearization of a trajectory against simulations near it.

A nominal trajectory :math:`\alpha` with its policy is simulated again from
:math:`\alpha(0) + \varepsilon z_0`, with :math:`\varepsilon v(t)` added to the input. If z, the
deviation that the linearization predicts under the feedback, is right to first order, then

.. math:: |x(t) - \alpha(t) - \varepsilon z(t)| = O(\varepsilon^2)

at all times at which both trajectories have the same events behind them. The slope of the remainder
over :math:`\varepsilon` is then 2, with simultaneous events too, where z is only piecewise linear;
it would be 1 for any other z. [RS] proposes these linearizations (LTTHS 3.2, PTTHS 4.3).

The same simulations give difference quotients of the final state: central ones where all events are
isolated, else one-sided ones of second order, as the derivative has a kink. Beside them stands the
map with the Jacobians of the resets in place of the saltation matrices.

How large deviations may be, and what the first order then makes of them, is drawn for the first
case: a run from half of the radius at which it is off by a tenth, [RS] Fig. 3.5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from hybridctl.experiments.convergence import (
    Convergence,
    convergence,
    convergence_panel,
    curves,
    draw_convergence,
)
from hybridctl.experiments.linearization.validate_cases import ValidationCase
from rich.console import Console
from rich.table import Table

from hybridctl import HybridTrajectory, simulate
from hybridctl.app.experiment import Check, Findings, experiment, study_cases
from hybridctl.app.plots import Panel, prediction
from hybridctl.app.report import record_table
from hybridctl.base import plugins
from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import Count, Natural, NotNegative, Positive, Settings
from hybridctl.hybrid import DisturbedPolicy
from hybridctl.hybrid.arc import Arc
from hybridctl.sensitivity.propagation import InputChange, PerturbationCurve
from hybridctl.sensitivity.radius import Radius

CLEARANCE = 1e-3  # s, of samples from the ends of arcs
SHOWN = 0.5  # of the radius: the deviation that is drawn


@dataclass(frozen=True)
class Config(Settings):
    """What is perturbed, and by how much.

    seed, directions: of the perturbations (z0, v), |z0| = 1 (rad, m, s), each input a sine of at
    most `input_size` N m. sizes: epsilon of the remainders. steps: of the differences, in
    `difference_directions` of the directions. samples: times in each arc. tolerance: of all
    simulations.
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
class ValidationResult:
    """What the simulations of one case gave.

    remainders: in each direction, the largest over all samples. derivative_errors, reset_errors
    (steps,): the largest errors of either map against differences, relative to the differences.
    radii: how large the deviations of the state may be, in the directions of the differences.
    perturbed: the run from half of the first of them, without a change of the input.
    """

    case: ValidationCase
    remainders: tuple[Convergence, ...]
    derivative_errors: Array
    reset_errors: Array
    radii: tuple[Radius, ...]
    perturbed: HybridTrajectory


@dataclass(frozen=True, eq=False)
class Direction:
    """A deviation (ndx,) of the initial state, with a change of the input."""

    state: Array
    input: InputChange | None


def quick(config: Config) -> Config:
    """One direction, fewer sizes, looser tolerances."""
    return replace(
        config,
        directions=1,
        difference_directions=1,
        sizes=(6e-4, 2e-4, 6e-5),
        steps=(2e-4,),
        tolerance=1e-10,
    )


def run(validated: str, config: Config, folder: RunFolder, console: Console) -> dict[str, Any]:
    """Validate the cases of an experiment; returns what it writes to summary.json."""

    @experiment
    def of_cases(config: Config, console: Console) -> Findings:
        cases = plugins.load_plugin("validations", validated)(config.tolerance)
        results = study_cases(cases, lambda build, tick: study(config, build(), tick), console)
        summary = summarize(config, results)
        return Findings(
            summary,
            printed(validated, summary),
            checks(summary),
            draw=lambda to: draw_all(to / "figures", validated, config, results),
        )

    return of_cases(config, folder, console)


def checks(summary: Mapping[str, Any]) -> list[Check]:
    """The remainder is of second order, and resets' Jacobians alone are far off."""
    right, wrong = summary["best_derivative_error"], summary["reset_only_error"]
    return [
        Check("slope of the remainder farthest from 2", summary["worst_slope"], 2.1, 1.9),
        Check("relative error of the derivative with saltation", right, 1e-4),
        Check(
            "relative error of the derivative with the resets' Jacobians alone / with saltation",
            wrong / right,
            least=100.0,
        ),
    ]


def study(config: Config, case: ValidationCase, tick: Callable[[float], None]) -> ValidationResult:
    """Perturb one nominal trajectory in all directions."""
    rng = np.random.default_rng(config.seed)
    remainders, correct, reset, radii = [], [], [], list[Radius]()
    perturbed, reset_only = case.nominal, case.reset_only()
    for k in range(config.directions):
        direction = draw_direction(rng, case, config.input_size)
        runs = _DirectionRuns(config, case, direction)
        predicted = case.map.propagate(direction.state, direction.input)
        remainders.append(remainder(config, case.nominal, runs, predicted))
        if k < config.difference_directions:
            false = reset_only.propagate(direction.state, direction.input)[-1].end[:, 0]
            differences = [runs.difference(step) for step in config.steps]
            correct.append([_relative(predicted[-1].end[:, 0], d) for d in differences])
            reset.append([_relative(false, d) for d in differences])
            radii.append(case.map.radius(direction.state, policy=case.policy))
            if k == 0:
                alone = _DirectionRuns(config, case, Direction(direction.state, None))
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
    """A random direction of unit length, with a sine of random phase for each input."""
    arc = case.nominal.arcs[0]
    state = rng.normal(size=arc.space.ndx)
    state /= np.linalg.norm(state)
    nu = case.system.mode(arc.mode).nu
    if nu == 0:
        return Direction(state, None)
    heights = input_size * rng.uniform(0.5, 1.0, nu)
    rates, phases = rng.uniform(2.0, 8.0, nu), rng.uniform(0.0, 2.0 * np.pi, nu)
    return Direction(state, lambda t: heights * np.sin(rates * t + phases))


class _DirectionRuns:
    """Simulations in one direction, by their epsilon."""

    def __init__(self, config: Config, case: ValidationCase, direction: Direction) -> None:
        self._config, self._case, self._direction = config, case, direction
        self._known: dict[float, HybridTrajectory] = {}

    def __getitem__(self, size: float) -> HybridTrajectory:
        if size not in self._known:
            self._known[size] = self._simulate(size)
        return self._known[size]

    def _simulate(self, size: float) -> HybridTrajectory:
        """The run from a start moved by `size`; guards that fire apart are events of their own."""
        case, direction, first = self._case, self._direction, self._case.nominal.arcs[0]
        policy, change = case.policy, direction.input
        if policy is not None and change is not None:
            policy = DisturbedPolicy(policy, lambda t, x: size * change(t))
        return simulate(
            case.system,
            first.mode,
            first.space.integrate(first(first.start), size * direction.state),
            (case.nominal.start, case.nominal.end),
            policy,
            rtol=self._config.tolerance,
            atol=self._config.tolerance,
            event_window=0.0,
        )

    def difference(self, step: float) -> Array:
        """A second-order difference quotient of the final state; one-sided at kinks.

        One-sided ones start from the run of size 0: the nominal trajectory, planned arc by arc, is
        off it by the tolerance, which they would divide by the step.
        """
        if self._case.map.is_linear:
            return (self._final(step) - self._final(-step)) / (2.0 * step)
        return (4.0 * self._final(0.5 * step) - self._final(step) - 3.0 * self._final(0.0)) / step

    def _final(self, size: float) -> Array:
        """The deviation (ndx,) at the end."""
        nominal, run = self._case.nominal, self[size]
        matched(nominal, run, size)
        return nominal.arcs[-1].space.difference(nominal.final_state, run.final_state)


def remainder(
    config: Config,
    nominal: HybridTrajectory,
    runs: _DirectionRuns,
    predicted: list[PerturbationCurve],
) -> Convergence:
    """The largest remainders, over times at which all runs have the same event count."""
    found = {size: matched(nominal, runs[size], size) for size in config.sizes}
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

    return convergence(flow, [predicted[k](t)[:, 0] for k, t in places], config.sizes, norm=2)


def matched(nominal: HybridTrajectory, run: HybridTrajectory, size: float) -> list[Arc]:
    """The arcs of a run that have the event counts of the nominal ones, phantom arcs left out.

    Raises `InputError` where the run goes another way.
    """
    arcs, position = [run.arcs[0]], 0
    for event in nominal.events:
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


def _relative(value: Array, reference: Array) -> float:
    return float(np.linalg.norm(value - reference) / np.linalg.norm(reference))


def summarize(config: Config, results: Mapping[str, ValidationResult]) -> dict[str, Any]:
    """All slopes, the one farthest from 2, and the worst case of either derivative.

    best_derivative_error is that of the best step, and the largest of all cases; reset_only_error
    is that of the same map without the saltation, at its best step too, and the smallest of all.
    """
    records = {name: record(config, result) for name, result in results.items()}
    slopes = [s for r in records.values() for s in r["slopes"]]
    return {
        "slopes": slopes,
        "worst_slope": _farthest(slopes),
        "best_derivative_error": max(r["best_derivative_error"] for r in records.values()),
        "reset_only_error": min(r["reset_only_error"] for r in records.values()),
        "cases": records,
    }


def record(config: Config, result: ValidationResult) -> dict[str, Any]:
    """A case as it stands in summary.json."""
    slopes = [found.order for found in result.remainders]
    return {
        "events": [{"time": e.time, "guards": e.guards} for e in result.case.nominal.events],
        "simultaneous": not result.case.map.is_linear,
        "slopes": slopes,
        "worst_slope": _farthest(slopes),
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


def _farthest(slopes: list[float]) -> float:
    return max(slopes, key=lambda slope: abs(slope - 2.0))


def printed(validated: str, summary: Mapping[str, Any]) -> list[Table | str]:
    """Slopes and errors of all cases."""
    rows = [
        {
            "name": name,
            "times": [f"{e['time']:.3f}" + "*" * (len(e["guards"]) > 1) for e in r["events"]],
            **r,
        }
        for name, r in summary["cases"].items()
    ]
    columns = {
        "case": "{name}",
        "events [s]": "{times}",
        "slopes of the remainder": "{slopes:.3f}",
        "derivative error": "{best_derivative_error:.1e}",
        "error, resets only": "{reset_only_error:.1e}",
        "size of 10 % error": "{radii:.2g}",
        "size where the order changes": "{order_changes:.2g}",
    }
    title = f"First-order validation of {validated} (* simultaneous guards)"
    return [
        record_table(title, rows, columns),
        f"slope farthest from 2: {summary['worst_slope']:.4f}; relative errors of the final "
        f"state's derivative: {summary['best_derivative_error']:.1e} with saltation, "
        f"{summary['reset_only_error']:.1e} with the resets' Jacobians only",
    ]


def draw_all(
    folder: Path, experiment: str, config: Config, results: Mapping[str, ValidationResult]
) -> None:
    """Remainders and errors, and what the first order makes of a large deviation."""
    draw(folder / "validation.png", experiment, config, results)
    name, result = next(iter(results.items()))
    title = f"{experiment}, {name}: first-order prediction at half the size of 10 % error"
    prediction(result.case.map, result.perturbed, folder / "prediction.png", title=title)


def draw(
    path: Path, experiment: str, config: Config, results: Mapping[str, ValidationResult]
) -> None:
    """Largest remainders, and derivative errors with and without saltation."""
    sizes, steps = np.array(config.sizes), np.array(config.steps)
    remainders = {
        name: Convergence(sizes, np.max([one.errors for one in result.remainders], axis=0))
        for name, result in results.items()
    }
    errors = {name: Convergence(steps, r.derivative_errors) for name, r in results.items()}
    alone = {name: Convergence(steps, r.reset_errors) for name, r in results.items()}
    lowest = min(remainders.values(), key=lambda found: found.errors[0])
    derivative = "error of the final state's derivative"
    panels = [
        convergence_panel("largest |x - alpha - epsilon z|", remainders, lowest, 2.0),
        Panel(derivative, curves(errors), log=True),
        Panel(f"{derivative},\nJacobians of the resets only", curves(alone), log=True),
    ]
    title, along = f"First-order validation: {experiment}", "epsilon, and step of the difference"
    draw_convergence(path, panels, title, along)
