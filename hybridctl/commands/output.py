"""Estimates and innovations of a filter as files for other programs."""

from __future__ import annotations

import numpy as np

from hybridctl.checks import Array
from hybridctl.estimation.filter_model import FilterModel
from hybridctl.estimation.judgement import Judgement
from hybridctl.estimation.result import FilterResult
from hybridctl.logs import Log, PoseSeries, write_estimates
from hybridctl.report import RunFolder

MAIN = "salted"


def write_results(
    folder: RunFolder, model: FilterModel, log: Log, judgement: Judgement, *, mcap: bool
) -> None:
    """Write estimates.npz and .csv, innovations.npz and .csv, and on request estimates.mcap.

    Those of another filter than the salted one have its name appended. Notes go to notes.json.
    """
    result = judgement.result
    ending = "" if judgement.name == MAIN else f"_{judgement.name}"
    covariances = np.array(result.covariances)
    tangent = tuple(str(k) for k in range(covariances.shape[1]))
    named = model.states if len(model.states) == len(tangent) else tangent
    poses = None
    if model.pose is not None:
        track = np.array([model.pose(x) for x in result.means])
        poses = {model.name: PoseSeries(model.sensors[0].parts[0].frame or "world", track)}
    write_estimates(
        folder.path,
        result.times,
        {
            "state": np.array(result.means),
            "deviation": np.sqrt(np.maximum(np.diagonal(covariances, axis1=1, axis2=2), 0.0)),
            "covariance": covariances,
            "mode": np.array([" ".join(map(str, mode)) for mode in result.modes]),  # type: ignore[call-overload]
        },
        columns={"state": model.states, "deviation": named},
        origin_ns=log.origin_ns,
        name=f"estimates{ending}",
        mcap=mcap,
        poses=poses,
    )
    _write_innovations(folder, result, log, f"innovations{ending}")
    if result.notes:
        notes = [{"time": time, "note": note} for time, note in result.notes]
        folder.write_json(f"notes{ending}.json", {"notes": notes})


def _write_innovations(folder: RunFolder, result: FilterResult, log: Log, name: str) -> None:
    rows = [(s.innovation, s.reopened) for s in result.steps if s.innovation is not None]
    if not rows:
        return
    found = [innovation for innovation, _ in rows]
    width = max(i.dimension for i in found)
    write_estimates(
        folder.path,
        [i.time for i in found],
        {
            "channel": np.array([i.channel for i in found]),
            "residual": np.array([_padded(i.residual, width) for i in found]),
            "nis": np.array([i.nis for i in found]),
            "accepted": np.array([i.accepted for i in found]),
            "reopened": np.array([reopened for _, reopened in rows]),
        },
        origin_ns=log.origin_ns,
        name=name,
    )


def _padded(row: Array, width: int) -> Array:
    return np.pad(row, (0, width - len(row)), constant_values=np.nan)
