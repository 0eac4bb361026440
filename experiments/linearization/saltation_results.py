"""What the saltation experiment finds of each example: maps, ensembles, pairs and errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hybridctl.experiments.convergence import Convergence
from hybridctl.experiments.linearization.saltation_examples import Example

from hybridctl.checks import Array
from hybridctl.hybrid.trajectory import Event, HybridTrajectory


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
        """The map from the start to the end with the saltation matrix, which is the correct one."""
        return self.after @ self.saltation @ self.before

    @property
    def wrong(self) -> Array:
        """The map with the Jacobian of the reset in place of the saltation matrix."""
        return self.after @ self.reset @ self.before


@dataclass(frozen=True, eq=False)
class SampledCovariance:
    """Starts and simulated ends (n, nx), and covariances (nx, nx) at the end, about the mean.

    before: of the starts. right, wrong: predicted from it by the two maps.
    """

    scale: float
    starts: Array
    ends: Array
    before: Array
    sampled: Array
    right: Array
    wrong: Array

    def error(self, predicted: Array) -> float:
        """The error of a predicted covariance, relative to the sampled one."""
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
class ExampleResult:
    """What was found of one example.

    errors: of deviations as the saltation matrix and as the Jacobian alone predict them.
    pairs: along the direction of positions that the event makes equal, and along the surface.
    paths: some runs of the first ensemble, those from farthest off first.
    """

    example: Example
    maps: Maps
    errors: tuple[Convergence, Convergence]
    ensembles: tuple[SampledCovariance, ...]
    pairs: tuple[Pair, ...]
    paths: tuple[HybridTrajectory, ...]

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
                for deviation, right, wrong in zip(
                    self.errors[0].sizes, *(found.errors for found in self.errors), strict=True
                )
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
