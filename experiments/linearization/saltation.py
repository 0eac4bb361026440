r"""The saltation matrix maps perturbations and covariances through an event; the Jacobian does not.

The claim of the saltation tutorial, in its own examples: to first order an event maps perturbations
by the saltation matrix, and covariances by :math:`\Xi P \Xi^T`; the Jacobian of the reset alone
omits that neighbours have their event at another time, and is wrong by as much as the perturbation
itself. [Salt] Fig. 1 (balls dropped on a slope), 5 (perturbations through a change of a constant
flow), 6 (covariances through it), 7 (positions that an impact makes equal). The figure is that of
5 and 6.

- `flow`: a constant flow that changes at a line. The flow is linear, so the map is exact.
- `slides`: a plastic impact without friction. It takes g along the slope as free fall does, so
  the tangential motion does not depend on the time of the impact, and the map is exact again.
- `sticks`, `bounces`: the time of the impact enters with its square. Errors fall as the square
  of the perturbation, those of the Jacobian alone as the perturbation.

Perturbations and ensembles are compared at the end, at the same time, across the flow before the
event, the event and the flow after it: [Salt] (35), (40).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeAlias

import numpy as np
from hybridctl.experiments.convergence import Convergence, measure_errors
from hybridctl.experiments.linearization.saltation_examples import Config as Config
from hybridctl.experiments.linearization.saltation_examples import Example, examples
from hybridctl.experiments.runners import tabulate
from rich.console import Console

from hybridctl import HybridTrajectory, linearize, simulate, simulate_batch
from hybridctl.app.experiment import Check, Findings, experiment, study_cases
from hybridctl.app.plots import BASELINE, REFERENCE, TRACKING, Line, Panel, save_plane_pictures
from hybridctl.app.report import Tick
from hybridctl.base.checks import Array
from hybridctl.base.errors import EventLimitError, InputError
from hybridctl.base.run_folder import RunFolder

SUMMARY = "perturbations and covariances of a ball through an impact, by the saltation matrix"

_ONE_EVENT = (
    "the run from {} must have one event within {:g} s: choose another duration, or a smaller "
    "spread or displacement"
)

MAPS = {
    "saltation": (TRACKING, "saltation matrix"),
    "reset_jacobian": (REFERENCE, "reset's Jacobian"),
}
ARROWS = 4  # perturbations that are drawn of the constant flow
SIGMAS = 2.0  # standard deviations of an ellipse
PERIOD = 4e-3  # s, between drawn points

Maps: TypeAlias = Mapping[str, Array]
"""First-order maps (nx, nx): "saltation" with the saltation matrix, "reset_jacobian" without."""


@dataclass(frozen=True, eq=False)
class SampledCovariance:
    """An ensemble before and after an event.

    Attributes:
        scale: Factor of its spread.
        starts: Starts (n, nx).
        ends: Simulated ends (n, nx).
        before: Covariance (nx, nx) of the starts about their mean.
        ended: Covariances (nx, nx) of the ends about their mean, as "sampled" and as each map
            predicts it.
    """

    scale: float
    starts: Array
    ends: Array
    before: Array
    ended: Mapping[str, Array]


@dataclass(frozen=True, eq=False)
class ExampleResult:
    """Simulations of one example beside its maps.

    Attributes:
        example: The example.
        run: The nominal run.
        jumps: Maps of the event by name.
        maps: Maps from the start to the end of the nominal run by name.
        errors: Errors of perturbations as the maps predict them, by the name of the map.
        ensembles: Ensembles, one for each scale.
        pairs: Records of pairs of starts along the direction of positions that the event makes
            equal, and along the surface; empty where there are none.
    """

    example: Example
    run: HybridTrajectory
    jumps: Mapping[str, Array]
    maps: Mapping[str, Array]
    errors: Mapping[str, Convergence]
    ensembles: tuple[SampledCovariance, ...]
    pairs: list[dict[str, Any]]


def quick(config: Config) -> Config:
    """Return the settings with fewer samples, directions and lengths."""
    return replace(
        config, deviations=config.deviations[::2], directions=3, samples=min(config.samples, 60)
    )


@experiment
def run(config: Config, console: Console) -> Findings:
    """Return the findings of perturbations and ensembles beside both maps."""
    streams = (np.random.default_rng([config.seed, k]) for k in count())

    def study(example: Example, tick: Tick) -> ExampleResult:
        return _study_example(example, config, next(streams), tick)

    results = study_cases(examples(config), study, console)
    summary = {name: _record(result) for name, result in results.items()}
    checks = []
    for name, result in results.items():
        right, wrong = (found.errors[-1] for found in result.errors.values())
        said = "error of the reset's Jacobian, as a multiple of the saltation matrix's"
        matrix_error = summary[name]["saltation_matrix_error"]
        checks += [
            Check(f"{name}: error of the saltation matrix", matrix_error, 1e-12),
            Check(f"{name}: {said}", wrong / right, least=10.0),
        ]
    errors = {"saltation": "{saltation_error:.1e}", "Jacobian": "{reset_jacobian_error:.1e}"}
    deviations = {"example": "{name}", "deviation [spreads]": "{deviation:g}", **errors}
    normal = {
        f"{label} [mm]": f"{{normal_deviation_{name}:.3f}}"
        for name, label in (
            ("sampled", "sampled"),
            ("saltation", "saltation"),
            ("reset_jacobian", "Jacobian"),
        )
    }
    return Findings(
        summary,
        [
            tabulate(
                "Largest error of a predicted deviation at the end [m, m/s]",
                {name: entry["deviations"] for name, entry in summary.items()},
                deviations,
            ),
            tabulate(
                "Covariance at the end: relative error, and deviation normal to the surface",
                {name: entry["covariances"] for name, entry in summary.items()},
                {"example": "{name}", "spread": "{scale:g}", **errors, **normal},
            ),
        ],
        checks,
        {name: result.run for name, result in results.items()},
        draw=lambda folder: _draw_flow(config, results["flow"], folder),
    )


def _study_example(
    example: Example, config: Config, rng: np.random.Generator, tick: Tick
) -> ExampleResult:
    """Return the maps of one example beside simulated perturbations, ensembles and pairs.

    Args:
        example: The example.
        config: Settings.
        rng: Source of directions and samples.
        tick: Function that is called with the share that is done.
    """
    run = simulate_from(example, config, example.start)
    lin = linearize(example.system, run, rtol=config.rtol, atol=config.atol)
    (before, after), jump = lin.transitions, lin.linear_jump(0)
    jumps = {"saltation": jump.state, "reset_jacobian": jump.reset_jacobian}
    maps = {name: after @ each @ before for name, each in jumps.items()}
    errors = _sweep_lengths(example, config, run, maps, rng)
    tick(0.3)
    half = example.spread * rng.normal(size=((config.samples + 1) // 2, len(example.start)))
    sample = np.concatenate([half, -half])
    ensembles = []
    for k, scale in enumerate(config.scales, 1):
        ensembles.append(_simulate_ensemble(example, config, maps, scale, sample))
        tick(0.3 + 0.6 * k / len(config.scales))
    pairs = _simulate_pairs(example, config, jumps["saltation"], maps)
    tick(1.0)
    return ExampleResult(example, run, jumps, maps, errors, tuple(ensembles), pairs)


def simulate_from(example: Example, config: Config, start: Array) -> HybridTrajectory:
    """Return the run from one start.

    Args:
        example: The example.
        config: Settings.
        start: Initial state (nx,).

    Raises:
        InputError: The run has no event, or more than one.
    """
    with suppress(EventLimitError):
        run = simulate(
            example.system,
            example.mode,
            start,
            (0.0, example.duration),
            max_events=1,
            rtol=config.rtol,
            atol=config.atol,
        )
        if run.events:
            return run
    raise InputError(_ONE_EVENT.format(start.tolist(), example.duration))


def _simulate_ends(example: Example, config: Config, starts: Array) -> Array:
    """Return the ends (n, nx) of runs from starts (n, nx).

    Raises:
        InputError: A run has no event, or more than one.
    """
    system, span = example.system, (0.0, example.duration)
    batch = simulate_batch(system, example.mode, starts, span, rtol=config.rtol, atol=config.atol)
    batch.check()
    for start, events in zip(starts, batch.events, strict=True):
        if len(events) != 1:
            raise InputError(_ONE_EVENT.format(start.tolist(), example.duration))
    return batch.states


def _sweep_lengths(
    example: Example, config: Config, run: HybridTrajectory, maps: Maps, rng: np.random.Generator
) -> dict[str, Convergence]:
    """Return the largest errors of both maps over random directions, by length.

    Args:
        example: The example.
        config: Settings.
        run: Nominal run.
        maps: Maps from the start to the end.
        rng: Source of directions.
    """
    directions = rng.normal(size=(config.directions, len(example.start)))
    directions *= example.spread / np.linalg.norm(directions, axis=1, keepdims=True)
    nominal, lengths = run.final_state, config.deviations
    found = {
        length: _simulate_ends(example, config, example.start + length * directions) - nominal
        for length in lengths
    }
    return {
        name: measure_errors(found.__getitem__, directions @ m.T, lengths)
        for name, m in maps.items()
    }


def _simulate_ensemble(
    example: Example, config: Config, maps: Maps, scale: float, sample: Array
) -> SampledCovariance:
    """Return the ends of a sample of perturbations (n, nx), all of them multiplied by `scale`.

    The sample is the same at every scale and symmetric about zero, which removes its odd moments:
    errors of a predicted covariance fall as the square of the scale.

    Args:
        example: The example.
        config: Settings.
        maps: Maps from the start to the end.
        scale: Factor of the perturbations.
        sample: Perturbations (n, nx).
    """
    starts = example.start + scale * sample
    ends = _simulate_ends(example, config, starts)
    before, after = (np.cov(states.T, bias=True) for states in (scale * sample, ends))
    ended = {"sampled": after}
    ended |= {name: m @ before @ m.T for name, m in maps.items()}
    return SampledCovariance(scale, starts, ends, before, ended)


def _simulate_pairs(
    example: Example, config: Config, matrix: Array, maps: Maps
) -> list[dict[str, Any]]:
    """Return pairs that start apart along the direction that the event removes, and the surface.

    The first direction is the null vector of the position block of the saltation matrix. Where the
    block is regular, there are no pairs.

    Args:
        example: The example.
        config: Settings.
        matrix: Saltation matrix.
        maps: Maps from the start to the end.
    """
    _, sizes, rows = np.linalg.svd(matrix[:2, :2])
    if sizes[-1] > 1e-9 * sizes[0]:
        return []
    pairs: list[dict[str, Any]] = []
    for direction in (rows[-1], np.array([example.normal[1], -example.normal[0]])):
        offset = np.zeros(len(example.start))
        offset[:2] = config.displacement * direction
        one, other = (simulate_from(example, config, example.start + s * offset) for s in (1, -1))
        gap = (one.final_state - other.final_state)[:2]
        record = {
            "direction": direction,
            "displacement": config.displacement,
            "gap_at_start": 2.0 * config.displacement,
            "gap_at_end": np.linalg.norm(gap),
        }
        for name, m in maps.items():
            record[f"{name}_gap"] = np.linalg.norm(2.0 * (m @ offset)[:2])
        pairs.append(record)
    return pairs


def _record(result: ExampleResult) -> dict[str, Any]:
    """Return an example as it stands in summary.json."""
    event, matrix = result.run.events[0], result.jumps["saltation"]
    sizes = result.errors["saltation"].sizes
    return {
        "event_time": event.time,
        "saltation_matrix": matrix,
        "saltation_matrix_error": float(np.abs(matrix - result.example.closed_form(event)).max()),
        "reset_jacobian": result.jumps["reset_jacobian"],
        "deviations": [
            {"deviation": size}
            | {f"{name}_error": found.errors[k] for name, found in result.errors.items()}
            for k, size in enumerate(sizes)
        ],
        "covariances": [_record_ensemble(e, result.example.normal) for e in result.ensembles],
        "pairs": result.pairs,
    }


def _record_ensemble(ensemble: SampledCovariance, normal: Array) -> dict[str, Any]:
    """Return errors relative to the sampled covariance, and deviations along a normal (2,), m."""
    sampled = ensemble.ended["sampled"]
    found: dict[str, Any] = {"scale": ensemble.scale}
    for name, covariance in ensemble.ended.items():
        along = float(normal @ covariance[:2, :2] @ normal)
        found[f"normal_deviation_{name}"] = np.sqrt(max(along, 0.0))
        if name != "sampled":
            off = np.linalg.norm(covariance - sampled) / np.linalg.norm(sampled)
            found[f"{name}_error"] = off
    return found


def _draw_flow(config: Config, result: ExampleResult, folder: RunFolder) -> None:
    """Save perturbations (left) and a covariance (right) through a change of a constant flow."""
    run, e = result.run, result.ensembles[0]
    nominal, (start, end) = _path(run, "nominal"), (run(0.0), run.final_state)
    arrows, far = [], np.argsort(-np.linalg.norm(e.starts - start, axis=1))
    for k, first in enumerate(e.starts[far[:ARROWS]]):
        shown, offset = simulate_from(result.example, config, first), first - start
        arrows.append(_path(shown, None if k else "simulated", BASELINE, 1.0))
        for name, (color, label) in MAPS.items():
            tip = np.array([end, end + result.maps[name] @ offset])
            arrows.append(Line.from_points(tip[:, :2], None if k else label, color, ".-"))
    clouds = [Line.from_points(cloud[:, :2], None, BASELINE, ".") for cloud in (e.starts, e.ends)]
    caption = f"covariance, ellipses of {SIGMAS:g} standard deviations"
    row = [
        Panel("deviations", [*arrows, nominal]),
        Panel(caption, [*clouds, *_ellipses(result), nominal]),
    ]
    normal = result.example.normal
    save_plane_pictures(
        folder / "figures/flow.png",
        [row],
        title="A constant flow that changes at a line",
        labels=("q1, horizontal [m]", "q2, vertical [m]"),
        surfaces=[np.array([normal[1], -normal[0]])],
    )


def _path(
    run: HybridTrajectory, label: str | None, color: str = "black", width: float = 1.4
) -> Line:
    """Return the curve of positions over a whole run."""
    points = np.concatenate([arc(times)[:, :2] for arc, times in run.sampled(PERIOD)])
    return Line.from_points(points, label, color, "-", width)


def _ellipses(result: ExampleResult) -> list[Line]:
    """Return ellipses of positions about the nominal ones, at both ends, the end as predicted."""
    e, run = result.ensembles[0], result.run
    drawn = [
        (run(run.start), e.before, BASELINE, "start", 1.6),
        (run.final_state, e.ended["reset_jacobian"], *MAPS["reset_jacobian"], 1.6),
        (run.final_state, e.ended["saltation"], *MAPS["saltation"], 2.4),
    ]
    return [
        Line.from_points(centre[:2] + _ellipse(p[:2, :2]), label, color, "-", width)
        for centre, p, color, label, width in drawn
    ]


def _ellipse(covariance: Array) -> Array:
    """Return points (n, 2) of the ellipse of `SIGMAS` standard deviations about 0."""
    sizes, vectors = np.linalg.eigh(covariance)
    turn = np.linspace(0.0, 2.0 * np.pi, 181)
    radii = SIGMAS * np.sqrt(np.maximum(sizes, 0.0))
    return np.asarray((np.stack([np.cos(turn), np.sin(turn)], 1) * radii) @ vectors.T)
