"""What the saltation experiment finds of each example: maps, ensembles, pairs and errors.

What two maps predict goes by their names: "saltation" with the saltation matrix, which is right,
and "reset_jacobian" with the Jacobian of the reset alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from hybridctl.experiments.convergence import Convergence
from hybridctl.experiments.linearization.saltation_examples import Example

from hybridctl.base.checks import Array
from hybridctl.hybrid.trajectory import Event, HybridTrajectory


@dataclass(frozen=True, eq=False)
class Maps:
    """First-order maps along a nominal run: the flow before, the event by name, the flow after."""

    run: HybridTrajectory
    before: Array
    jumps: Mapping[str, Array]
    after: Array

    @property
    def event(self) -> Event:
        """The event of the run."""
        return self.run.events[0]

    @cached_property
    def whole(self) -> dict[str, Array]:
        """The maps from the start to the end, by name."""
        return {name: self.after @ jump @ self.before for name, jump in self.jumps.items()}


@dataclass(frozen=True, eq=False)
class SampledCovariance:
    """Starts and simulated ends (n, nx), and covariances (nx, nx) about the mean.

    before: of the starts. ended: of the ends, as "sampled" and as the maps predict it.
    """

    scale: float
    starts: Array
    ends: Array
    before: Array
    ended: Mapping[str, Array]

    def record(self, normal: Array) -> dict[str, Any]:
        """Errors relative to the sampled covariance, and deviations along a normal (2,), m."""
        sampled = self.ended["sampled"]
        found: dict[str, Any] = {"scale": self.scale}
        for name, covariance in self.ended.items():
            along = float(normal @ covariance[:2, :2] @ normal)
            found[f"normal_deviation_{name}"] = np.sqrt(max(along, 0.0))
            off = np.linalg.norm(covariance - sampled) / np.linalg.norm(sampled)
            found |= {} if name == "sampled" else {f"{name}_error": off}
        return found


@dataclass(frozen=True, eq=False)
class Pair:
    """Two balls that start apart on either side of the nominal one, at the same velocity.

    direction: unit vector along which they start apart, by twice `displacement`. gap: what is
    between them at the end (2,), predicted: as the maps predict it; m.
    """

    direction: Array
    displacement: float
    runs: tuple[HybridTrajectory, HybridTrajectory]
    gap: Array
    predicted: Mapping[str, Array]

    def record(self) -> dict[str, Any]:
        """The pair as it stands in summary.json."""
        return {
            "direction": self.direction,
            "displacement": self.displacement,
            "gap_at_start": 2.0 * self.displacement,
            "gap_at_end": np.linalg.norm(self.gap),
            **{f"{name}_gap": np.linalg.norm(gap) for name, gap in self.predicted.items()},
        }


@dataclass(frozen=True, eq=False)
class ExampleResult:
    """What was found of one example.

    errors: of deviations as the maps predict them. pairs: along the direction of positions that the
    event makes equal, and along the surface. paths: some runs of the first ensemble, those from
    farthest off first.
    """

    example: Example
    maps: Maps
    errors: Mapping[str, Convergence]
    ensembles: tuple[SampledCovariance, ...]
    pairs: tuple[Pair, ...]
    paths: tuple[HybridTrajectory, ...]

    @property
    def matrix_error(self) -> float:
        """The largest error of the saltation matrix against its closed form."""
        expected = self.example.closed_form(self.maps.event)
        return float(np.abs(self.maps.jumps["saltation"] - expected).max())

    def record(self) -> dict[str, Any]:
        """The result as it stands in summary.json."""
        return {
            "event_time": self.maps.event.time,
            "saltation_matrix": self.maps.jumps["saltation"],
            "saltation_matrix_error": self.matrix_error,
            "reset_jacobian": self.maps.jumps["reset_jacobian"],
            "deviations": [
                {"deviation": size}
                | {f"{name}_error": found.errors[k] for name, found in self.errors.items()}
                for k, size in enumerate(self.errors["saltation"].sizes)
            ],
            "covariances": [each.record(self.example.normal) for each in self.ensembles],
            "pairs": [pair.record() for pair in self.pairs],
        }
