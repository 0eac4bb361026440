"""How likely recorded tosses are at points of friction, restitution and rounding: a table.

Every toss has a filter with one hypothesis (`hc.SaltedKalmanFilter`) go along its first poses. What
has been found is appended to a file row by row, so that a run that was stopped goes on.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hybridctl.robots.filter_models import CubeSettings, cube_model
from scipy.spatial.transform import Rotation

from hybridctl.checks import Array
from hybridctl.errors import ConstraintViolatedError, SimulationError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.filter_model import FilterModel
from hybridctl.estimation.filters import kalman
from hybridctl.estimation.likelihood import log_likelihoods
from hybridctl.estimation.record import Record
from hybridctl.estimation.start import first_estimate
from hybridctl.hybrid.simulate import simulate
from hybridctl.logs import Mapping, read_log

NAMES = ("friction", "restitution", "rounding")
SCALE = 1.0225  # true over recorded lengths, by the acceleration of free flights
MAPPING: dict[str, Any] = {
    "time": {"rate": "rate_hz"},
    "segment": {"offsets": "offset", "index": 0},
    "channels": {
        "position": {
            "fields": "position",
            "unit": "m",
            "scale": SCALE,
            "frame": "table",
            "labels": ["x", "y", "z"],
        },
        "orientation": {"fields": "quat_wxyz", "rotation": "wxyz", "frame": "table"},
    },
}


def model_at(settings: CubeSettings, point: Array) -> tuple[CubeSettings, FilterModel]:
    """Settings and model at a point (3,)."""
    chosen = replace(settings, **dict(zip(NAMES, point.tolist(), strict=True)))
    return chosen, cube_model(chosen)


def tosses(path: str, numbers: Sequence[int], model: FilterModel) -> dict[int, Record]:
    """Recorded tosses by their number, in true lengths."""
    mapping = Mapping.parse(MAPPING)
    return {k: read_log(path, mapping, segment=k).record(model) for k in numbers}


def shortened(record: Record, until: float) -> Record:
    """The rows of the first `until` s."""
    return record.between(-np.inf, float(record.channels["pose"].times.min()) + until)


class Row(NamedTuple):
    """A toss at a point: the log-likelihood, and how many poses the gate rejected.

    log_likelihood: -inf where the filter could not go on.
    """

    friction: float
    restitution: float
    rounding: float
    toss: int
    log_likelihood: float
    rejected: int

    @property
    def key(self) -> tuple[float, ...]:
        """Point and toss."""
        return self[:4]


def _row(*cells: str) -> Row:
    return Row(*_three(cells[:3]), int(cells[3]), float(cells[4]), int(cells[5]))


def _three(values: Sequence[Any] | Array) -> tuple[float, float, float]:
    friction, restitution, rounding = values
    return float(friction), float(restitution), float(rounding)


@dataclass(frozen=True, eq=False)
class Table:
    """Log-likelihoods by point and toss, in a file."""

    path: Path
    settings: CubeSettings
    records: dict[int, Record]
    rows: dict[tuple[float, ...], Row]

    @staticmethod
    def of(path: Path, settings: CubeSettings, records: dict[int, Record]) -> Table:
        """The table with what a file holds already."""
        known = []
        if path.is_file():
            with path.open(newline="") as file:
                known = [_row(*r) for r in list(csv.reader(file))[1:]]
        return Table(path, settings, records, {row.key: row for row in known})

    def fill(
        self, points: Array, numbers: Sequence[int], tick: Callable[[int], None] = lambda done: None
    ) -> Array:
        """Log-likelihoods (m, n) of tosses `numbers` at points (m, 3)."""
        for k, point in enumerate(points):
            missing = [n for n in numbers if (*point.tolist(), n) not in self.rows]
            if missing:
                self._add(point, missing)
            tick(k + 1)
        keys = [[(*point.tolist(), n) for n in numbers] for point in points]
        return np.array([[self.rows[key].log_likelihood for key in row] for row in keys])

    def rejected(self, point: Array, numbers: Sequence[int]) -> int:
        """How many poses of these tosses the gate rejected at a point of the table."""
        keys = [(*point.tolist(), n) for n in numbers]
        return sum(self.rows[key].rejected for key in keys)

    def _add(self, point: Array, numbers: Sequence[int]) -> None:
        settings, model = model_at(self.settings, point)
        filter = kalman(model, replace(settings, hypotheses=1))
        new, where = not self.path.is_file(), _three(point)
        with self.path.open("a", newline="") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow(Row._fields)
            for n in numbers:
                total, rejected = -np.inf, 0
                try:
                    start, rest = first_estimate(model, settings, self.records[n])
                    result = filter.run(rest, start)
                    total = float(log_likelihoods(result, rest).sum())
                    rejected = len(result.rejected)
                except (SimulationError, ConstraintViolatedError, np.linalg.LinAlgError):
                    pass
                row = Row(*where, n, total, rejected)
                self.rows[row.key] = row
                writer.writerow(row)
                file.flush()


def flight(model: FilterModel, settings: CubeSettings, record: Record) -> Estimate:
    """The last estimate of a toss before the first event of its filter."""
    found, rest = first_estimate(model, settings, record)
    for step in kalman(model, replace(settings, hypotheses=1)).run(rest, found).steps:
        if step.events or step.estimate.mode != model.open:
            break
        found = step.estimate
    return found


def prediction_errors(
    model: FilterModel, record: Record, start: Estimate, ahead: float
) -> tuple[float, float] | None:
    """How far the motion from a start is from the pose `ahead` s later, in m and in rad.

    None where the record has no row then, or the motion cannot be simulated.
    """
    poses = record.channels["pose"]
    row = int(np.abs(poses.times - start.time - ahead).argmin())
    end = float(poses.times[row])
    if abs(end - start.time - ahead) > np.diff(poses.times).max():
        return None
    try:
        run = simulate(
            model.system, start.mode, start.mean, (start.time, end), rtol=1e-7, atol=1e-7,
            on_zeno="rest",
        )  # fmt: skip
    except (SimulationError, ConstraintViolatedError):
        return None
    found, seen = run.final_state, poses.values[row]
    turn = Rotation.from_quat(found[3:7]).inv() * Rotation.from_quat(seen[3:7])
    return float(np.linalg.norm(found[:3] - seen[:3])), float(turn.magnitude())
