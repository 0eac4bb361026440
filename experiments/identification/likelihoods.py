"""How likely recorded tosses are at points of friction, restitution and rounding: a table.

Every toss has a filter with one hypothesis (`hc.SaltedKalmanFilter`) go along its first poses. What
has been found is kept in a journal, so that a run that was stopped goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from hybridctl.experiments.cube_filter.score import filtered
from hybridctl.robots.filter_models import CubeSettings
from scipy.spatial.transform import Rotation

from hybridctl.checks import Array
from hybridctl.control.tuning.journal import Journal
from hybridctl.errors import ConstraintViolatedError, SimulationError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.filter_model import FilterModel
from hybridctl.estimation.likelihood import log_likelihoods
from hybridctl.estimation.record import Record
from hybridctl.hybrid.simulate import simulate

NAMES = ("friction", "restitution", "rounding")


def at_point(settings: CubeSettings, point: Array) -> CubeSettings:
    """Settings at a point (3,)."""
    return replace(settings, **dict(zip(NAMES, point.tolist(), strict=True)))


def shortened(record: Record, until: float) -> Record:
    """The rows of the first `until` s."""
    return record.between(-np.inf, float(record.channels["pose"].times.min()) + until)


@dataclass(frozen=True, eq=False)
class Table:
    """Log-likelihoods by point and toss, and how many poses the gate rejected, in a journal."""

    journal: Journal
    settings: CubeSettings
    records: Mapping[int, Record]

    def fill(
        self, points: Array, numbers: Sequence[int], tick: Callable[[int], None] = lambda done: None
    ) -> Array:
        """Log-likelihoods (m, n) of tosses at points (m, 3); -inf where a filter fails."""
        rows = []
        for k, point in enumerate(points):
            rows.append([self._entry(point, n)[0] for n in numbers])
            tick(k + 1)
        return np.array(rows)

    def rejected(self, point: Array, numbers: Sequence[int]) -> int:
        """How many poses of these tosses the gate rejected at a point."""
        return sum(self._entry(point, n)[1] for n in numbers)

    def _entry(self, point: Array, number: int) -> tuple[float, int]:
        key = json.dumps([*point.tolist(), number])
        found = self.journal.get(key)
        if found is None:
            found = self._found(point, number)
            self.journal.put(key, found)
        total, rejected = found
        return float(total), int(rejected)

    def _found(self, point: Array, number: int) -> tuple[float, int]:
        settings = at_point(self.settings, point)
        try:
            result, rows = filtered("salted", settings, self.records[number])
        except (SimulationError, ConstraintViolatedError):
            return -np.inf, 0
        return float(log_likelihoods(result, rows).sum()), len(result.rejected)


def flight(model: FilterModel, settings: CubeSettings, record: Record) -> Estimate:
    """The last estimate of a toss before the first event of its filter."""
    result, _ = filtered("salted", settings, record)
    found: Estimate = result.initial
    for step in result.steps:
        if step.events or step.estimate.mode != model.open:
            break
        found = step.estimate
    return found


def prediction_errors(
    model: FilterModel, record: Record, start: Estimate, ahead: float
) -> tuple[float, float]:
    """How far the motion from a start is from the pose `ahead` s later, in m and in rad.

    nan where the record has no row then, or the motion cannot be simulated.
    """
    poses = record.channels["pose"]
    row = int(np.abs(poses.times - start.time - ahead).argmin())
    end = float(poses.times[row])
    if abs(end - start.time - ahead) > np.diff(poses.times).max():
        return np.nan, np.nan
    at = model.system, start.mode, start.mean, (start.time, end)
    try:
        run = simulate(*at, rtol=1e-7, atol=1e-7, on_zeno="rest")
    except (SimulationError, ConstraintViolatedError):
        return np.nan, np.nan
    found, seen = run.final_state, poses.values[row]
    turn = Rotation.from_quat(found[3:7]).inv() * Rotation.from_quat(seen[3:7])
    return float(np.linalg.norm(found[:3] - seen[:3])), float(turn.magnitude())
