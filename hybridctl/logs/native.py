"""Logs as hybridctl writes them: a header in JSON says what the columns are."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridctl.base.checks import quote
from hybridctl.base.errors import FileFormatError
from hybridctl.base.time_series import Series
from hybridctl.logs.raw import RawLog, measured, reading
from hybridctl.logs.schema import Log

VERSION = 1


def header(log: Log) -> dict[str, Any]:
    """Return what a log holds besides stamps and values, for `json.dumps`."""
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


def native_log(raw: RawLog) -> Log:
    """Return the log that was written; FileFormatError if the header does not fit the content."""
    with reading(raw.path, "a log that hybridctl wrote"):
        given = raw.native
        if not isinstance(given, dict) or given.get("version") != VERSION:
            raise FileFormatError(f"{raw.path}: a log of version {VERSION} is expected")
        channels: dict[str, Series] = {}
        for entry in given["channels"]:
            times, values = _samples(raw, entry)
            rest = {**entry, "columns": tuple(entry["columns"])}
            name, count = rest.pop("name"), rest.pop("count")
            channels[name] = Series(times, measured(values), **rest)
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


def _samples(raw: RawLog, entry: dict[str, Any]) -> tuple[Any, Any]:
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
    there = ~np.logical_and.reduce([table.absent[field] for field in fields])
    return table["time"][there], np.stack([table[field] for field in fields], axis=1)[there]
