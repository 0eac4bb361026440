"""Estimates written for other programs: as NPZ and CSV, on request as MCAP of JSON messages."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hybridctl.base import checks
from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.base.files import atomic
from hybridctl.logs.json_mcap import (
    JsonMcapWriter,
    convert_to_json,
    find_mcap_stamp,
    make_object_schema,
    make_pose_schema,
)
from hybridctl.logs.native import save_npz

_WRITTEN_KINDS = "biufU"
"""Kinds of numpy arrays that are written: numbers and text."""


@dataclass(frozen=True)
class PoseSeries:
    """Poses of a body over time.

    Attributes:
        frame: Frame in which poses are given.
        poses: Poses (n, 7): position in m, then quaternion (x, y, z, w).
    """

    frame: str
    poses: ArrayLike


def write_estimates(
    folder: str | Path,
    times: ArrayLike,
    series: Mapping[str, ArrayLike],
    *,
    columns: Mapping[str, Sequence[str]] | None = None,
    origin_ns: int = 0,
    name: str = "estimates",
    mcap: bool = False,
    poses: Mapping[str, PoseSeries] | None = None,
) -> list[Path]:
    """Write series over time as NPZ, CSV and, on request, MCAP.

    `NAME.npz` holds the arrays as they are, with `time`, `origin_ns` and `SERIES_columns`.
    `NAME.csv` has a column for each column of arrays (n,) and (n, m); arrays with more axes, such
    as covariances, are in the NPZ only. `NAME.mcap` has a topic of JSON messages for each series of
    the CSV, and one of `foxglove.PoseInFrame` for each of the poses.

    Args:
        folder: Folder of the files.
        times: Stamps (n,) in s, which do not decrease.
        series: Arrays (n, ...) of numbers or text, by name.
        columns: Names of the columns of arrays (n, m), by name; numbers without.
        origin_ns: Time of stamp 0 in ns since 1970.
        name: Name of the files, without suffix.
        mcap: Whether the MCAP file is written.
        poses: Poses for the MCAP file, by name; without `mcap` they are neither checked nor
            written. Quaternions are written with unit length.

    Returns:
        The paths of the files: NPZ, CSV, MCAP.

    Raises:
        InputError: A length, the name or type of a series, the name of a column, or the order of
            the stamps is wrong. For MCAP: poses have another shape or a quaternion that is zero,
            the format cannot hold a stamp, or the package `mcap` is missing; NPZ and CSV may be
            written then.
        UnknownNameError: Columns are named for a series that is not there.
    """
    t = checks.check_vector("times", times)
    if (np.diff(t) < 0).any():
        raise InputError("times must not decrease")
    arrays = {key: _check_series(key, value, len(t)) for key, value in series.items()}
    labels = {key: _find_labels(key, value, columns or {}) for key, value in arrays.items()}
    for key in columns or {}:
        checks.check_member("columns", key, arrays)
    folder = checks.check_path("folder", folder)
    paths = [folder / f"{name}.npz", folder / f"{name}.csv"]
    with atomic(paths[0]) as temporary:
        columned = {
            f"{key}_columns": np.array(names)
            for key, names in labels.items()
            if arrays[key].ndim == 2
        }
        known = {"time": t, "origin_ns": np.array(origin_ns)}
        save_npz(temporary, known | arrays | columned)
    with atomic(paths[1]) as temporary:
        _write_csv(temporary, t, arrays, labels)
    if mcap:
        paths.append(folder / f"{name}.mcap")
        tracks = {
            key: (p.frame, checks.check_array(f"poses of {key!r}", p.poses, (len(t), 7)))
            for key, p in (poses or {}).items()
        }
        with atomic(paths[2]) as temporary, JsonMcapWriter.open(temporary) as file:
            _write_messages(file, t, arrays, labels, origin_ns)
            for key, (frame, rows) in tracks.items():
                _write_poses(file, t, key, frame, rows, origin_ns)
    return paths


def _check_series(name: str, value: ArrayLike, count: int) -> NDArray[Any]:
    """Return a series as an array (count, ...).

    Args:
        name: Name of the series.
        value: Numbers or text.
        count: Number of stamps.

    Raises:
        InputError: The array has another type or length, or its name has another meaning.
    """
    a = np.asarray(value)
    reserved = name in ("time", "origin_ns") or name.endswith("_columns")
    if reserved or a.dtype.kind not in _WRITTEN_KINDS or a.ndim < 1 or len(a) != count:
        raise InputError(
            f"series {name!r} must be numbers or text with {count} rows, under a name other than "
            f"time, origin_ns and ..._columns; got {a.dtype} of shape {a.shape}"
        )
    return a


def _find_labels(name: str, value: NDArray[Any], given: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the CSV columns of a series; none for one with more than two axes.

    Args:
        name: Name of the series.
        value: The series.
        given: Names of columns by series.

    Raises:
        InputError: The names are not different ones, one for each column.
    """
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


def _write_csv(
    path: Path,
    times: Array,
    arrays: Mapping[str, NDArray[Any]],
    labels: Mapping[str, list[str]],
) -> None:
    """Write a table with a column for each label.

    Args:
        path: File to write.
        times: Stamps (n,) in s.
        arrays: Arrays (n, ...) by name.
        labels: Names of the columns of each array; none for an array that is left out.
    """
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


def _write_messages(
    file: JsonMcapWriter,
    times: Array,
    arrays: Mapping[str, NDArray[Any]],
    labels: Mapping[str, list[str]],
    origin_ns: int,
) -> None:
    """Write a topic of JSON messages for each array that has labels.

    Args:
        file: The file.
        times: Stamps (n,) in s.
        arrays: Arrays (n, ...) by name.
        labels: Names of the columns of each array; none for an array that is left out.
        origin_ns: Time of stamp 0 in ns since 1970.
    """
    for key, values in arrays.items():
        if not labels[key]:
            continue
        is_text = values.dtype.kind == "U"
        kind = {"type": "string"} if is_text else {"type": ["number", "null"]}
        schema = make_object_schema(dict.fromkeys(labels[key], kind))
        topic = file.add_topic(f"/{key}", f"hybridctl.{key}", schema)
        rows = values.reshape(len(times), -1)
        if not is_text:
            rows = rows.astype(np.float64)
        for time, row in zip(times.tolist(), rows.tolist(), strict=True):
            cells = row if is_text else map(convert_to_json, row)
            file.write_message(topic, origin_ns, time, dict(zip(labels[key], cells, strict=True)))


def _write_poses(
    file: JsonMcapWriter, times: Array, name: str, frame: str, rows: Array, origin_ns: int
) -> None:
    """Write a topic of poses, with quaternions of unit length.

    Args:
        file: The file.
        times: Stamps (n,) in s.
        name: Name of the body.
        frame: Frame in which poses are given.
        rows: Poses (n, 7): position in m, then quaternion (x, y, z, w).
        origin_ns: Time of stamp 0 in ns since 1970.

    Raises:
        InputError: A quaternion is zero, or MCAP cannot hold a stamp.
    """
    topic = file.add_topic(f"/{name}/pose", "foxglove.PoseInFrame", make_pose_schema())
    for time, row in zip(times.tolist(), rows.tolist(), strict=True):
        seconds, rest = divmod(find_mcap_stamp(origin_ns, time), 10**9)
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
        file.write_message(topic, origin_ns, time, message)
