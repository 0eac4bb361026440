"""Logs written as CSV, NPZ, HDF5 or MCAP, so that reading them gives the same log back."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hybridctl import checks
from hybridctl.errors import InputError
from hybridctl.files import atomic
from hybridctl.logs.arrays import HEADER
from hybridctl.logs.mcap_writer import McapFile, json_number, object_schema
from hybridctl.logs.native import header
from hybridctl.logs.raw import missing_extra
from hybridctl.logs.schema import Log
from hybridctl.logs.text import MARK


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
    checks.instance("log", log, Log)
    write = writers[checks.member("suffix of the log", path.suffix, writers)]
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
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def _write_hdf5(path: Path, log: Log) -> None:
    try:
        import h5py
    except ImportError as error:
        raise missing_extra(path, "HDF5", "h5py", "hdf5") from error
    with h5py.File(path, "w") as file:
        file.attrs[HEADER] = json.dumps(header(log))
        for name, channel in log.channels.items():
            group = file.create_group(name)
            group.create_dataset("times", data=channel.times, fletcher32=len(channel) > 0)
            group.create_dataset("values", data=channel.values, fletcher32=channel.values.size > 0)
            group["times"].attrs["unit"] = "s"
            group["values"].attrs["unit"] = channel.unit


def _write_mcap(path: Path, log: Log) -> None:
    with McapFile(path, json.dumps(header(log))) as file:
        for name, channel in log.channels.items():
            values = {column: {"type": ["number", "null"]} for column in channel.columns}
            schema = object_schema({"time": {"type": "number"}, "values": object_schema(values)})
            topic = file.topic(f"/{name}", f"hybridctl.{name}", schema)
            for time, row in zip(channel.times.tolist(), channel.values.tolist(), strict=True):
                named = dict(zip(channel.columns, map(json_number, row), strict=True))
                file.write(topic, log.origin_ns, time, {"time": time, "values": named})
