"""Estimates written for other programs: NPZ and CSV always, MCAP on request."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping as Dictionary
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hybridctl import checks
from hybridctl.checks import Array
from hybridctl.errors import InputError
from hybridctl.files import atomic
from hybridctl.logs.mcap_writer import (
    McapFile,
    json_number,
    nanoseconds,
    object_schema,
    pose_schema,
)

_KINDS = "biufU"


@dataclass(frozen=True)
class PoseSeries:
    """Poses (n, 7) of a body in `frame`: position [m], then quaternion (x, y, z, w)."""

    frame: str
    poses: ArrayLike


def write_estimates(
    folder: str | Path,
    times: ArrayLike,
    series: Dictionary[str, ArrayLike],
    *,
    columns: Dictionary[str, Sequence[str]] | None = None,
    origin_ns: int = 0,
    name: str = "estimates",
    mcap: bool = False,
    poses: Dictionary[str, PoseSeries] | None = None,
) -> list[Path]:
    """Write `series` over `times` [s after `origin_ns`] and return the paths of the files.

    Each series is an array (n, ...) of numbers or text; `columns` names the columns of those that
    are (n, m). `NAME.npz` holds them as they are, with `time`, `origin_ns` and `SERIES_columns`.
    `NAME.csv` has a column for each of (n,) and (n, m); arrays of more axes, such as covariances,
    are in the NPZ only. With `mcap`, `NAME.mcap` has a topic of JSON messages for each series of
    numbers of the CSV, and one of `foxglove.PoseInFrame` for each of `poses`.

    Raises InputError where a length, a column name or the order of the stamps is wrong.
    """
    t = checks.vector("times", times)
    if (np.diff(t) < 0).any():
        raise InputError("times must not decrease")
    arrays = {key: _series(key, value, len(t)) for key, value in series.items()}
    labels = {key: _labels(key, value, columns or {}) for key, value in arrays.items()}
    for key in columns or {}:
        checks.member("columns", key, arrays)
    paths = [Path(folder) / f"{name}.npz", Path(folder) / f"{name}.csv"]
    with atomic(paths[0]) as temporary:
        _npz(temporary, t, arrays, labels, origin_ns)
    with atomic(paths[1]) as temporary:
        _csv(temporary, t, arrays, labels)
    if mcap:
        paths.append(Path(folder) / f"{name}.mcap")
        tracks = {key: (p.frame, _poses(key, p, len(t))) for key, p in (poses or {}).items()}
        with atomic(paths[2]) as temporary, McapFile(temporary) as file:
            _messages(file, t, arrays, labels, origin_ns)
            for key, (frame, rows) in tracks.items():
                _pose_messages(file, t, key, frame, rows, origin_ns)
    return paths


def _series(name: str, value: ArrayLike, count: int) -> NDArray[Any]:
    a = np.asarray(value)
    reserved = name in ("time", "origin_ns") or name.endswith("_columns")
    if reserved or a.dtype.kind not in _KINDS or a.ndim < 1 or len(a) != count:
        raise InputError(
            f"series {name!r} must be numbers or text with {count} rows, under a name other than "
            f"time, origin_ns and ..._columns; got {a.dtype} of shape {a.shape}"
        )
    return a


def _labels(name: str, value: NDArray[Any], given: Dictionary[str, Sequence[str]]) -> list[str]:
    """The CSV columns of a series; none for one with more than two axes."""
    if value.ndim > 2:
        return []
    if value.ndim == 1:
        return [name]
    labels = [str(label) for label in given.get(name, range(value.shape[1]))]
    if len(labels) != value.shape[1] or len(set(labels)) != len(labels):
        raise InputError(
            f"columns of series {name!r} must be {value.shape[1]} different names, got {labels}"
        )
    return labels


def _poses(name: str, series: PoseSeries, count: int) -> Array:
    return checks.array(f"poses of {name!r}", series.poses, (count, 7))


def _npz(
    path: Path,
    times: Array,
    arrays: Dictionary[str, NDArray[Any]],
    labels: Dictionary[str, list[str]],
    origin_ns: int,
) -> None:
    named = {
        f"{key}_columns": np.array(label) for key, label in labels.items() if arrays[key].ndim == 2
    }
    content: dict[str, Any] = {"time": times, "origin_ns": np.array(origin_ns), **arrays, **named}
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **content)


def _csv(
    path: Path,
    times: Array,
    arrays: Dictionary[str, NDArray[Any]],
    labels: Dictionary[str, list[str]],
) -> None:
    flat = {key: a.reshape(len(times), -1).tolist() for key, a in arrays.items() if labels[key]}
    names = [
        label if arrays[key].ndim == 1 else f"{key}.{label}"
        for key in flat
        for label in labels[key]
    ]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["time [s]", *names])
        for k, time in enumerate(times.tolist()):
            writer.writerow([time, *(cell for rows in flat.values() for cell in rows[k])])


def _messages(
    file: McapFile,
    times: Array,
    arrays: Dictionary[str, NDArray[Any]],
    labels: Dictionary[str, list[str]],
    origin_ns: int,
) -> None:
    for key, values in arrays.items():
        if not labels[key]:
            continue
        text = values.dtype.kind == "U"
        kind = {"type": "string"} if text else {"type": ["number", "null"]}
        schema = object_schema(dict.fromkeys(labels[key], kind))
        topic = file.topic(f"/{key}", f"hybridctl.{key}", schema)
        rows = values.reshape(len(times), -1)
        if not text:
            rows = rows.astype(np.float64)
        for time, row in zip(times.tolist(), rows.tolist(), strict=True):
            cells = row if text else map(json_number, row)
            file.write(topic, origin_ns, time, dict(zip(labels[key], cells, strict=True)))


def _pose_messages(
    file: McapFile, times: Array, name: str, frame: str, rows: Array, origin_ns: int
) -> None:
    topic = file.topic(f"/{name}/pose", "foxglove.PoseInFrame", pose_schema())
    for time, row in zip(times.tolist(), rows.tolist(), strict=True):
        seconds, rest = divmod(nanoseconds(origin_ns, time), 10**9)
        length = math.hypot(*row[3:])
        if not length:
            raise InputError(f"poses of {name!r}: the quaternion at {time} s is zero")
        message = {
            "timestamp": {"sec": seconds, "nsec": rest},
            "frame_id": frame,
            "pose": {
                "position": dict(zip("xyz", row[:3], strict=True)),
                "orientation": dict(zip("xyzw", (q / length for q in row[3:]), strict=True)),
            },
        }
        file.write(topic, origin_ns, time, message)
