"""Logs as hybridctl writes them, in CSV, NPZ, HDF5 or MCAP, and reads them back unchanged.

A header in JSON, which each format holds in its own way, describes the channels.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hybridctl.base import checks
from hybridctl.base.checks import quote
from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.base.files import atomic
from hybridctl.base.time_series import Series
from hybridctl.logs.json_mcap import JsonMcapWriter, convert_to_json, make_object_schema
from hybridctl.logs.log import Log
from hybridctl.logs.raw import HEADER, RawLog, convert_to_measured
from hybridctl.logs.read_errors import name_file_in_errors, require_package
from hybridctl.logs.text_table import HEADER_MARK

VERSION = 1
"""Version of the header and of the names of fields; no other one is read."""


def make_header(log: Log) -> dict[str, Any]:
    """Return the content of a log besides stamps and values, for `json.dumps`."""
    return {
        "version": VERSION,
        "origin_ns": log.origin_ns,
        "metadata": dict(log.metadata),
        "channels": [
            {
                "name": name,
                "count": len(series),
                "columns": list(series.columns),
                "unit": series.unit,
                "frame": series.frame,
                "role": series.role,
                "quaternion": series.quaternion,
            }
            for name, series in log.channels.items()
        ],
    }


def make_native_log(raw: RawLog) -> Log:
    """Return the log that `write_log` wrote.

    Args:
        raw: Tables of the file, with its header.

    Raises:
        FileFormatError: The header has another version, or does not fit the tables.
    """
    with name_file_in_errors(raw.path, "a log that hybridctl wrote"):
        given = raw.native
        if not isinstance(given, dict) or given.get("version") != VERSION:
            raise FileFormatError(f"{raw.path}: a log of version {VERSION} is expected")
        channels: dict[str, Series] = {}
        for entry in given["channels"]:
            times, values = _find_samples(raw, entry)
            rest = {**entry, "columns": tuple(entry["columns"])}
            name, count = rest.pop("name"), rest.pop("count")
            channels[name] = Series(times, convert_to_measured(values), **rest)
            if len(times) != count:
                raise FileFormatError(
                    f"{raw.path}: channel {name!r} has {len(times)} samples where {count} were "
                    "written; the file was cut or changed"
                )
        origin = given["origin_ns"]
        if not isinstance(origin, int):
            raise FileFormatError(
                f"{raw.path}: origin_ns must be a whole number, got {quote(origin)}"
            )
        metadata = {str(k): str(v) for k, v in given["metadata"].items()}
        return Log(channels, origin, str(raw.path), raw.format, metadata, tuple(raw.notes))


def _find_samples(raw: RawLog, entry: dict[str, Any]) -> tuple[Any, Any]:
    """Return stamps (n,) in s and values (n, m) of a channel.

    Args:
        raw: Tables of the file.
        entry: The channel's part of the header.

    Raises:
        Exception: Header and tables do not fit together, as a `KeyError` or another error. The
            caller makes a `FileFormatError` of it.
    """
    name, columns = entry["name"], entry["columns"]
    if raw.format == "mcap":
        table = raw.tables[f"/{name}"]
        if not table.fields:  # no samples, so no messages
            return np.zeros(0), np.zeros((0, len(columns)))
        return table["time"], np.stack([table[f"values.{c}"] for c in columns], axis=1)
    table = raw.tables[""]
    if raw.format != "csv":
        return table[f"{name}/times"], table[f"{name}/values"]
    fields = [f"{name}.{column}" for column in columns]
    # A row of a table is one of this channel if any of its cells is filled.
    has_row = ~np.logical_and.reduce([table.absent[field] for field in fields])
    return table["time"][has_row], np.stack([table[field] for field in fields], axis=1)[has_row]


def write_log(path: str | Path, log: Log) -> None:
    """Write a log, so that `read_log` returns the same channels.

    Stamps, values, units, frames, roles, origin and metadata are kept; notes are not, and infinite
    values are read as NaN. The file is written whole or not at all.

    Args:
        path: File to write. Its suffix chooses the format: .csv, .npz, .h5, .hdf5 or .mcap.
        log: The log.

    Raises:
        UnknownNameError: The suffix is unknown.
        InputError: The format cannot hold the log, or a package that writes it is missing. CSV
            needs plain, different names and MCAP stamps that are not negative; both need a sample.
    """
    writers: dict[str, Callable[[Path, Log], None]] = {
        ".csv": _write_csv,
        ".npz": _write_npz,
        ".h5": _write_hdf5,
        ".hdf5": _write_hdf5,
        ".mcap": _write_mcap,
    }
    path = checks.check_path("path", path)
    checks.check_instance("log", log, Log)
    write = writers[checks.check_member("suffix of the log", path.suffix, writers)]
    if path.suffix in (".csv", ".mcap") and not any(map(len, log.channels.values())):
        # A table without rows, and MCAP without messages, are taken for damaged files.
        raise InputError(f"a {path.suffix} file needs at least one sample; write .npz or .h5")
    with atomic(path) as temporary:
        write(temporary, log)


def _write_csv(path: Path, log: Log) -> None:
    """Write a log as a text table.

    Channels with the same stamps share rows; others leave each other's cells empty.

    Args:
        path: File to write.
        log: The log.

    Raises:
        InputError: The names of the columns are not plain, or not different.
    """
    names = [
        f"{name}.{column}" for name, series in log.channels.items() for column in series.columns
    ]
    is_plain = all(name == name.strip() and name.isprintable() for name in names)
    if not is_plain or len({"time", *names}) != len(names) + 1:
        raise InputError(f"a CSV file needs plain column names, all different, got {names}")
    rows: dict[tuple[int, int], list[str]] = {}  # cells by number of the clock and of its stamp
    order: dict[tuple[int, int], float] = {}  # by which rows are sorted
    clocks: dict[bytes, int] = {}  # numbers of different sequences of stamps
    start = 0
    for channel in log.channels.values():
        width = len(channel.columns)
        clock = clocks.setdefault(channel.times.tobytes(), len(clocks))
        # The latest stamp so far, so that rows of a channel keep their order where stamps go back.
        reached = np.maximum.accumulate(channel.times).tolist()
        for k, values in enumerate(channel.values.tolist()):
            if (clock, k) not in rows:
                rows[clock, k] = [repr(float(channel.times[k]))] + [""] * len(names)
            row = rows[clock, k]
            row[1 + start : 1 + start + width] = map(repr, values)
            order[clock, k] = reached[k]
        start += width
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(HEADER_MARK + json.dumps(make_header(log)) + "\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["time", *names])
        writer.writerows(rows[key] for key in sorted(rows, key=order.__getitem__))


def _write_npz(path: Path, log: Log) -> None:
    arrays = {HEADER: np.array(json.dumps(make_header(log)))}
    for name, channel in log.channels.items():
        arrays[f"{name}/times"] = channel.times
        arrays[f"{name}/values"] = channel.values
    save_npz(path, arrays)


def _write_hdf5(path: Path, log: Log) -> None:
    with require_package(path, "HDF5", "h5py", "hdf5"):
        import h5py
    with h5py.File(path, "w") as file:
        file.attrs[HEADER] = json.dumps(make_header(log))
        for name, channel in log.channels.items():
            group = file.create_group(name)
            # HDF5 checks sums of chunks, of which an empty dataset has none.
            group.create_dataset("times", data=channel.times, fletcher32=len(channel) > 0)
            group.create_dataset("values", data=channel.values, fletcher32=channel.values.size > 0)
            group["times"].attrs["unit"] = "s"
            group["values"].attrs["unit"] = channel.unit


def _write_mcap(path: Path, log: Log) -> None:
    with JsonMcapWriter.open(path, json.dumps(make_header(log))) as file:
        for name, channel in log.channels.items():
            values = {column: {"type": ["number", "null"]} for column in channel.columns}
            schema = make_object_schema(
                {"time": {"type": "number"}, "values": make_object_schema(values)}
            )
            topic = file.add_topic(f"/{name}", f"hybridctl.{name}", schema)
            for time, row in zip(channel.times.tolist(), channel.values.tolist(), strict=True):
                named = dict(zip(channel.columns, map(convert_to_json, row), strict=True))
                file.write_message(topic, log.origin_ns, time, {"time": time, "values": named})


def save_npz(path: Path, arrays: dict[str, Any]) -> None:
    """Write arrays by name as a compressed NPZ file, without pickled objects.

    The file is written in place; `atomic` gives callers one that replaces theirs.

    Args:
        path: File to write.
        arrays: The arrays.

    Raises:
        ValueError: An array has objects as entries.
    """
    for name, array in arrays.items():
        # numpy before 2.2 has no argument for this, and would take it for another array.
        if np.asarray(array).dtype.hasobject:
            raise ValueError(f"array {name!r} has objects as entries, which are not written")
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)
