r"""Deviations and covariances through an event: the saltation matrix against simulated ensembles.

The claim of the saltation tutorial, in its own examples: to first order an event maps deviations
by the saltation matrix, and covariances by :math:`\Xi P \Xi^T`; the Jacobian of the reset alone
leaves out that neighbours have their event at another time, and is wrong by as much as the
deviation itself. [Salt] Fig. 1 (balls dropped on a slope), 5 (deviations through a change of a
constant flow), 6 (covariances through it), 7 (the positions that an impact makes equal).

- `flow`: a constant flow that changes at a line. Everything is linear, so the map is exact.
- `slides`: a plastic impact without friction. It takes g along the slope as free fall does, so
  the tangential motion does not feel the impact, and the map is exact again.
- `sticks`, `bounces`: the time of the impact enters with its square. Errors fall as the square
  of the deviation, those of the Jacobian alone as the deviation.

Deviations and ensembles are compared at the end, at the same time, across the flow before the
event, the event and the flow after it: [Salt] (35), (40).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
from hybridctl.experiments.convergence import Convergence, convergence
from hybridctl.experiments.linearization.saltation_examples import Config as Config
from hybridctl.experiments.linearization.saltation_examples import Example, examples
from hybridctl.experiments.linearization.saltation_figures import draw_all
from hybridctl.experiments.linearization.saltation_results import (
    ExampleResult,
    Maps,
    Pair,
    SampledCovariance,
)
from rich.console import Console
from rich.table import Table

from hybridctl import HybridTrajectory, linearize, simulate, simulate_batch
from hybridctl.app.experiment import Check, Findings, experiment, study_cases
from hybridctl.app.report import Tick, record_table
from hybridctl.base.checks import Array
from hybridctl.base.errors import EventLimitError, InputError


def study(example: Example, config: Config, rng: np.random.Generator, tick: Tick) -> ExampleResult:
    """Maps of one example, and simulations beside them."""
    run = simulate_from(example, config, example.start)
    maps = maps_along(example, run, config)
    errors = sweep(example, config, maps, rng)
    tick(0.3)
    half = example.spread * rng.normal(size=((config.samples + 1) // 2, len(example.start)))
    sample = np.concatenate([half, -half])
    ensembles = []
    for k, scale in enumerate(config.scales, 1):
        ensembles.append(ensemble(example, config, maps, scale, sample))
        tick(0.3 + 0.6 * k / len(config.scales))
    starts = ensembles[0].starts
    far = np.argsort(-np.linalg.norm(starts - example.start, axis=1))[:PATHS]
    paths = tuple(simulate_from(example, config, starts[k]) for k in far)
    tick(1.0)
    return ExampleResult(
        example, maps, errors, tuple(ensembles), pairs(example, config, maps), paths
    )


def simulate_from(example: Example, config: Config, start: Array) -> HybridTrajectory:
    """The run from one start; raises `InputError` if it has not exactly one event."""
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
    raise _not_one(example, start)


def ends_from(example: Example, config: Config, starts: Array) -> Array:
    """The ends (n, nx) of runs from starts (n, nx); raises as `simulate_from` does."""
    batch = simulate_batch(
        example.system,
        example.mode,
        starts,
        (0.0, example.duration),
        rtol=config.rtol,
        atol=config.atol,
    )
    batch.check()
    for start, events in zip(starts, batch.events, strict=True):
        if len(events) != 1:
            raise _not_one(example, start)
    return batch.states


def _not_one(example: Example, start: Array) -> InputError:
    return InputError(
        f"the run from {start.tolist()} must have one event within {example.duration:g} s: choose "
        "another duration, or a smaller spread or displacement"
    )


def maps_along(example: Example, run: HybridTrajectory, config: Config) -> Maps:
    """The first-order maps along a run."""
    lin = linearize(example.system, run, rtol=config.rtol, atol=config.atol)
    (before, after), jump = lin.transitions, lin.linear_jump(0)
    jumps = {"saltation": jump.state, "reset_jacobian": jump.reset_jacobian}
    return Maps(run, before, jumps, after)


def sweep(
    example: Example, config: Config, maps: Maps, rng: np.random.Generator
) -> dict[str, Convergence]:
    """Largest errors of both maps over random directions, for each length of the deviation."""
    directions = rng.normal(size=(config.directions, len(example.start)))
    directions *= example.spread / np.linalg.norm(directions, axis=1, keepdims=True)
    nominal, lengths = maps.run.final_state, config.deviations
    found = {
        length: ends_from(example, config, example.start + length * directions) - nominal
        for length in lengths
    }
    return {
        name: convergence(found.__getitem__, directions @ m.T, lengths)
        for name, m in maps.whole.items()
    }


def ensemble(
    example: Example, config: Config, maps: Maps, scale: float, sample: Array
) -> SampledCovariance:
    """The runs of a sample of deviations (n, nx), all of them multiplied by `scale`.

    The sample is the same at every scale and symmetric about zero, which takes its odd moments
    out: errors of a predicted covariance fall as the square of the scale.
    """
    starts = example.start + scale * sample
    ends = ends_from(example, config, starts)
    before, after = (np.cov(states.T, bias=True) for states in (scale * sample, ends))
    ended = {"sampled": after}
    ended |= {name: m @ before @ m.T for name, m in maps.whole.items()}
    return SampledCovariance(scale, starts, ends, before, ended)


def pairs(example: Example, config: Config, maps: Maps) -> tuple[Pair, ...]:
    """Pairs that start apart along the direction that the event takes out, and along the surface.

    The first is the null vector of the position block of the saltation matrix, where it has one.
    """
    block = maps.jumps["saltation"][:2, :2]
    _, sizes, rows = np.linalg.svd(block)
    if sizes[-1] > 1e-9 * sizes[0]:
        return ()
    along = np.array([example.normal[1], -example.normal[0]])
    return tuple(_pair(example, config, maps, d) for d in (rows[-1], along))


def _pair(example: Example, config: Config, maps: Maps, direction: Array) -> Pair:
    offset = np.zeros(len(example.start))
    offset[:2] = config.displacement * direction
    above, below = (simulate_from(example, config, example.start + s * offset) for s in (1, -1))
    gap = (above.final_state - below.final_state)[:2]
    predicted = {name: 2.0 * (m @ offset)[:2] for name, m in maps.whole.items()}
    return Pair(direction, config.displacement, (above, below), gap, predicted)


SUMMARY = "perturbations and covariances of a ball through an impact, by the saltation matrix"

PATHS = 40  # simulated paths that are drawn of an ensemble


def quick(config: Config) -> Config:
    """The settings with fewer samples, directions and lengths."""
    return replace(
        config, deviations=config.deviations[::2], directions=3, samples=min(config.samples, 60)
    )


@experiment
def run(config: Config, console: Console) -> Findings:
    """Simulate deviations and ensembles beside both maps."""
    streams = (np.random.default_rng([config.seed, k]) for k in count())

    def drawn(example: Example, tick: Tick) -> ExampleResult:
        return study(example, config, next(streams), tick)

    results = study_cases(examples(config), drawn, console)
    summary = {name: result.record() for name, result in results.items()}
    return Findings(
        summary,
        tables(summary),
        [check for name, result in results.items() for check in checks(name, result)],
        {name: result.maps.run for name, result in results.items()},
        draw=lambda folder: draw_all(results, folder),
    )


def checks(name: str, result: ExampleResult) -> list[Check]:
    """The matrix is its closed form; the smallest deviation is predicted by it alone."""
    right, wrong = (found.errors[-1] for found in result.errors.values())
    return [
        Check(f"{name}: error of the saltation matrix", result.matrix_error, 1e-12),
        Check(
            f"{name}: error of the reset's Jacobian, as a multiple of the saltation matrix's",
            wrong / right,
            least=10.0,
        ),
    ]


def tables(summary: Mapping[str, Any]) -> list[Table]:
    """Errors of predicted deviations, and of predicted covariances."""
    deviations, covariances = (
        [{"example": name, **row} for name, entry in summary.items() for row in entry[what]]
        for what in ("deviations", "covariances")
    )
    errors = {"saltation": "{saltation_error:.1e}", "Jacobian": "{reset_jacobian_error:.1e}"}
    return [
        record_table(
            "Largest error of a predicted deviation at the end [m, m/s]",
            deviations,
            {"example": "{example}", "deviation [spreads]": "{deviation:g}", **errors},
        ),
        record_table(
            "Covariance at the end: relative error, and deviation normal to the surface",
            covariances,
            {
                "example": "{example}",
                "spread": "{scale:g}",
                **errors,
                "sampled [mm]": "{normal_deviation_sampled:.3f}",
                "saltation [mm]": "{normal_deviation_saltation:.3f}",
                "Jacobian [mm]": "{normal_deviation_reset_jacobian:.3f}",
            },
        ),
    ]
