"""Logs written as CSV, NPZ, HDF5 or MCAP, so that reading them gives the same log back.

And estimates written for other programs: NPZ and CSV always, on request MCAP of JSON messages,
which common viewers open.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Mapping as Dictionary
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hybridctl.base import checks
from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.base.files import atomic
from hybridctl.logs.native import header
from hybridctl.logs.raw import HEADER, needing
from hybridctl.logs.schema import Log
from hybridctl.logs.text_table import MARK

_NUMBER = {"type": "number"}
_TIME = {"sec": {"type": "integer"}, "nsec": {"type": "integer"}}


class McapFile:
    """An MCAP file being written, of topics with JSON messages."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    @staticmethod
    @contextmanager
    def at(path: Path, header: str | None = None) -> Iterator[McapFile]:
        """Yield the file of a path; `header` goes into its metadata."""
        with needing(path, "MCAP", "mcap", "ros"):
            from mcap.writer import Writer
        with path.open("wb") as stream:
            writer: Any = Writer(stream)
            writer.start(profile="", library="hybridctl")
            if header is not None:
                writer.add_metadata(HEADER, {"header": header})
            yield McapFile(writer)
            writer.finish()

    def topic(self, name: str, schema_name: str, schema: Dictionary[str, Any]) -> int:
        """Return a topic of JSON messages; its number."""
        data = json.dumps(schema).encode()
        number = self._writer.register_schema(schema_name, "jsonschema", data)
        return int(self._writer.register_channel(name, "json", number))

    def write(self, topic: int, origin_ns: int, time: float, message: Dictionary[str, Any]) -> None:
        """A message at `time` seconds after `origin_ns`."""
        stamp = nanoseconds(origin_ns, time)
        data = json.dumps(message, allow_nan=False).encode()
        self._writer.add_message(topic, log_time=stamp, data=data, publish_time=stamp)


def nanoseconds(origin_ns: int, time: float) -> int:
    """Return the stamp `time` seconds after `origin_ns`; MCAP has none before 0."""
    stamp = origin_ns + round(time * 1e9)
    if not 0 <= stamp < 2**63:
        raise InputError(f"MCAP cannot hold the stamp {time} s after {origin_ns} ns")
    return stamp


def json_number(value: float) -> float | None:
    """Return the number, or null for what JSON has no number for."""
    return value if math.isfinite(value) else None


def object_schema(properties: Dictionary[str, Any], title: str = "") -> dict[str, Any]:
    """Return the JSON schema of an object with these properties."""
    schema = {"type": "object", "properties": dict(properties), "required": list(properties)}
    return {"title": title, **schema} if title else schema


def pose_schema() -> dict[str, Any]:
    """Return the schema `foxglove.PoseInFrame`, which viewers draw in space."""
    pose = {
        "position": object_schema(dict.fromkeys("xyz", _NUMBER)),
        "orientation": object_schema(dict.fromkeys("xyzw", _NUMBER)),
    }
    properties = {
        "timestamp": object_schema(_TIME),
        "frame_id": {"type": "string"},
        "pose": object_schema(pose),
    }
    return object_schema(properties, "foxglove.PoseInFrame")


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
    t = checks.check_vector("times", times)
    if (np.diff(t) < 0).any():
        raise InputError("times must not decrease")
    arrays = {key: _series(key, value, len(t)) for key, value in series.items()}
    labels = {key: _labels(key, value, columns or {}) for key, value in arrays.items()}
    for key in columns or {}:
        checks.check_member("columns", key, arrays)
    paths = [Path(folder) / f"{name}.npz", Path(folder) / f"{name}.csv"]
    with atomic(paths[0]) as temporary:
        columned = {
            f"{key}_columns": np.array(names)
            for key, names in labels.items()
            if arrays[key].ndim == 2
        }
        known = {"time": t, "origin_ns": np.array(origin_ns)}
        _save(temporary, known | arrays | columned)
    with atomic(paths[1]) as temporary:
        _csv(temporary, t, arrays, labels)
    if mcap:
        paths.append(Path(folder) / f"{name}.mcap")
        tracks = {key: (p.frame, _poses(key, p, len(t))) for key, p in (poses or {}).items()}
        with atomic(paths[2]) as temporary, McapFile.at(temporary) as file:
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
    """Return the CSV columns of a series; none for one with more than two axes."""
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
    return checks.check_array(f"poses of {name!r}", series.poses, (count, 7))


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


def write_log(path: str | Path, log: Log) -> None:
    """Write a log in the format that the suffix names: .csv, .npz, .h5, .hdf5 or .mcap.

    `read_log` returns the same channels: stamps, values, units, frames and roles. The file is
    written whole or not at all.
    """
    writers: dict[str, Callable[[Path, Log], None]] = {
        ".csv": _write_csv,
        ".npz": _write_npz,
        ".h5": _write_hdf5,
        ".hdf5": _write_hdf5,
        ".mcap": _write_mcap,
    }
    path = Path(path)
    checks.check_instance("log", log, Log)
    write = writers[checks.check_member("suffix of the log", path.suffix, writers)]
    with atomic(path) as temporary:
        write(temporary, log)


def _write_csv(path: Path, log: Log) -> None:
    """Channels with the same stamps share rows; the others leave each other's cells empty."""
    names = [
        f"{name}.{column}" for name, series in log.channels.items() for column in series.columns
    ]
    plain = all(name == name.strip() and name.isprintable() for name in names)
    if not plain or len({"time", *names}) != len(names) + 1:
        raise InputError(f"a CSV file needs plain column names, all different, got {names}")
    rows: dict[tuple[int, int], list[str]] = {}
    order: dict[tuple[int, int], float] = {}
    clocks: dict[bytes, int] = {}
    start = 0
    for channel in log.channels.values():
        width = len(channel.columns)
        clock = clocks.setdefault(channel.times.tobytes(), len(clocks))
        reached = np.maximum.accumulate(channel.times).tolist()
        for k, values in enumerate(channel.values.tolist()):
            if (clock, k) not in rows:
                rows[clock, k] = [repr(float(channel.times[k]))] + [""] * len(names)
            row = rows[clock, k]
            row[1 + start : 1 + start + width] = map(repr, values)
            order[clock, k] = reached[k]
        start += width
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(MARK + json.dumps(header(log)) + "\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["time", *names])
        writer.writerows(rows[key] for key in sorted(rows, key=order.__getitem__))


def _write_npz(path: Path, log: Log) -> None:
    arrays = {HEADER: np.array(json.dumps(header(log)))}
    for name, channel in log.channels.items():
        arrays[f"{name}/times"] = channel.times
        arrays[f"{name}/values"] = channel.values
    _save(path, arrays)


def _save(path: Path, arrays: dict[str, Any]) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def _write_hdf5(path: Path, log: Log) -> None:
    with needing(path, "HDF5", "h5py", "hdf5"):
        import h5py
    with h5py.File(path, "w") as file:
        file.attrs[HEADER] = json.dumps(header(log))
        for name, channel in log.channels.items():
            group = file.create_group(name)
            group.create_dataset("times", data=channel.times, fletcher32=len(channel) > 0)
            group.create_dataset("values", data=channel.values, fletcher32=channel.values.size > 0)
            group["times"].attrs["unit"] = "s"
            group["values"].attrs["unit"] = channel.unit


def _write_mcap(path: Path, log: Log) -> None:
    with McapFile.at(path, json.dumps(header(log))) as file:
        for name, channel in log.channels.items():
            values = {column: {"type": ["number", "null"]} for column in channel.columns}
            schema = object_schema({"time": {"type": "number"}, "values": object_schema(values)})
            topic = file.topic(f"/{name}", f"hybridctl.{name}", schema)
            for time, row in zip(channel.times.tolist(), channel.values.tolist(), strict=True):
                named = dict(zip(channel.columns, map(json_number, row), strict=True))
                file.write(topic, log.origin_ns, time, {"time": time, "values": named})
