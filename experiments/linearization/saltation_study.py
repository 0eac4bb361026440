"""How well first-order maps through one event predict simulated deviations and ensembles."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridctl.checks import Array
from hybridctl.errors import EventLimitError, InputError
from hybridctl.hybrid.simulate import simulate
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event, HybridTrajectory
from hybridctl.sensitivity.linearize import linearize

if TYPE_CHECKING:
    from hybridctl.experiments.linearization.saltation import Config

Tick = Callable[[float], None]


@dataclass(frozen=True, eq=False)
class Example:
    """A run through one event, from `start` in `mode` over `duration` s; fields are affine.

    spread: standard deviations of the start (nx,). normal: of the surface, for the positions,
    which are the first two states. closed_form: the saltation matrix at an event.
    """

    system: HybridSystem
    mode: str
    start: Array
    duration: float
    spread: Array
    normal: Array
    closed_form: Callable[[Event], Array]


@dataclass(frozen=True, eq=False)
class Maps:
    """First-order maps along a nominal run: the flow before, the event in two ways, the flow after.

    saltation: the saltation matrix; reset: the Jacobian of the reset alone.
    """

    run: HybridTrajectory
    event: Event
    before: Array
    saltation: Array
    reset: Array
    after: Array

    @property
    def right(self) -> Array:
        """From the start to the end, with the saltation matrix."""
        return self.after @ self.saltation @ self.before

    @property
    def wrong(self) -> Array:
        """The same with the Jacobian of the reset in its place."""
        return self.after @ self.reset @ self.before


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Simulated runs, and covariances (nx, nx) at the end, about the mean.

    before: of the starts. right, wrong: predicted from it by the two maps.
    """

    scale: float
    runs: tuple[HybridTrajectory, ...]
    before: Array
    sampled: Array
    right: Array
    wrong: Array

    @property
    def ends(self) -> Array:
        """Final states (n, nx)."""
        return np.array([run.final_state for run in self.runs])

    def error(self, predicted: Array) -> float:
        """Of a predicted covariance, relative to the sampled one."""
        return float(np.linalg.norm(predicted - self.sampled) / np.linalg.norm(self.sampled))


@dataclass(frozen=True, eq=False)
class Pair:
    """Two balls that start apart on either side of the nominal one, at the same velocity.

    direction: unit vector along which they start apart, by twice `displacement`. gap: what is
    between them at the end, right and wrong: as the two maps predict it (2,), m.
    """

    direction: Array
    displacement: float
    runs: tuple[HybridTrajectory, HybridTrajectory]
    gap: Array
    right: Array
    wrong: Array


@dataclass(frozen=True, eq=False)
class Result:
    """Everything that was found of one example.

    errors: rows (deviation, largest error of the saltation matrix, of the Jacobian alone).
    pairs: along the direction of positions that the event makes equal, and along the surface.
    """

    example: Example
    maps: Maps
    errors: tuple[tuple[float, float, float], ...]
    ensembles: tuple[Ensemble, ...]
    pairs: tuple[Pair, ...]

    def normal_deviation(self, covariance: Array) -> float:
        """Standard deviation of the position along the normal of the surface, m."""
        n = self.example.normal
        return float(np.sqrt(max(float(n @ covariance[:2, :2] @ n), 0.0)))

    def record(self) -> dict[str, Any]:
        """The result as it stands in summary.json."""
        closed_form = self.example.closed_form(self.maps.event)
        return {
            "event_time": self.maps.event.time,
            "saltation_matrix": self.maps.saltation,
            "saltation_matrix_error": np.abs(self.maps.saltation - closed_form).max(),
            "reset_jacobian": self.maps.reset,
            "deviations": [
                {"deviation": deviation, "saltation_error": right, "reset_jacobian_error": wrong}
                for deviation, right, wrong in self.errors
            ],
            "covariances": [
                {
                    "scale": e.scale,
                    "saltation_error": e.error(e.right),
                    "reset_jacobian_error": e.error(e.wrong),
                    "normal_deviation_sampled": self.normal_deviation(e.sampled),
                    "normal_deviation_saltation": self.normal_deviation(e.right),
                    "normal_deviation_reset_jacobian": self.normal_deviation(e.wrong),
                }
                for e in self.ensembles
            ],
            "pairs": [
                {
                    "direction": pair.direction,
                    "displacement": pair.displacement,
                    "gap_at_start": 2.0 * pair.displacement,
                    "gap_at_end": np.linalg.norm(pair.gap),
                    "saltation_gap": np.linalg.norm(pair.right),
                    "reset_jacobian_gap": np.linalg.norm(pair.wrong),
                }
                for pair in self.pairs
            ],
        }


def study(example: Example, config: Config, rng: np.random.Generator, tick: Tick) -> Result:
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
    result = Result(example, maps, errors, tuple(ensembles), pairs(example, config, maps))
    tick(1.0)
    return result


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
    raise InputError(
        f"the run from {start.tolist()} must have one event within {example.duration:g} s: choose "
        "another duration, or a smaller spread or displacement"
    )


def maps_along(example: Example, run: HybridTrajectory, config: Config) -> Maps:
    """The first-order maps along a run."""
    lin = linearize(example.system, run, rtol=config.rtol, atol=config.atol)
    (event,), (before, after), jump = run.events, lin.transitions, lin.linear_jump(0)
    return Maps(run, event, before, jump.state, jump.reset_jacobian, after)


def sweep(
    example: Example, config: Config, maps: Maps, rng: np.random.Generator
) -> tuple[tuple[float, float, float], ...]:
    """Largest errors over random directions, for each length of the deviation."""
    directions = rng.normal(size=(config.directions, len(example.start)))
    directions *= example.spread / np.linalg.norm(directions, axis=1, keepdims=True)
    nominal = maps.run.final_state
    rows = []
    for length in config.deviations:
        starts = length * directions
        runs = [simulate_from(example, config, example.start + d) for d in starts]
        found = np.array([run.final_state for run in runs]) - nominal
        right, wrong = (np.abs(found - starts @ m.T).max() for m in (maps.right, maps.wrong))
        rows.append((length, float(right), float(wrong)))
    return tuple(rows)


def ensemble(example: Example, config: Config, maps: Maps, scale: float, sample: Array) -> Ensemble:
    """The runs of a sample of deviations (n, nx), all of them multiplied by `scale`.

    The sample is the same at every scale and symmetric about zero, which takes its odd moments
    out: errors of a predicted covariance fall as the square of the scale.
    """
    deviations = scale * sample
    runs = tuple(simulate_from(example, config, example.start + d) for d in deviations)
    before, after = covariance(deviations), covariance(np.array([r.final_state for r in runs]))
    right, wrong = (m @ before @ m.T for m in (maps.right, maps.wrong))
    return Ensemble(scale, runs, before, after, right, wrong)


def covariance(sample: Array) -> Array:
    """Covariance (nx, nx) of a sample (n, nx) about its mean."""
    centred = sample - sample.mean(axis=0)
    return np.asarray(centred.T @ centred / len(sample), dtype=np.float64)


def pairs(example: Example, config: Config, maps: Maps) -> tuple[Pair, ...]:
    """Pairs that start apart along the direction that the event takes out, and along the surface.

    The first is the null vector of the position block of the saltation matrix, where it has one.
    """
    block = maps.saltation[:2, :2]
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
    right, wrong = (2.0 * (m @ offset)[:2] for m in (maps.right, maps.wrong))
    return Pair(direction, config.displacement, (above, below), gap, right, wrong)
