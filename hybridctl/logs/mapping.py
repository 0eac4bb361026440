"""The mapping file: which fields of a recording make up which channel, and what their units are.

    time: {field: t_ms, unit: ms}          # or {rate: 148}; left out: the recording's own stamps
    segment: {offsets: offset, index: 3}   # rows offset[3] to offset[4] of concatenated recordings
    channels:
      position: {fields: [x, y, z], unit: mm, frame: table}
      orientation: {fields: quat_wxyz, rotation: wxyz, frame: table}
      joints: {topic: /joint_states, fields: position, columns: [l_knee, r_knee], unit: rad}
    inputs:
      torque: {topic: /torque, fields: data, unit: Nm}
    truth: {}

A field is a column of a table, an array of an archive (with its path in HDF5), or a dotted path
into the messages of a topic.
"""

from __future__ import annotations

from collections.abc import Mapping as Dictionary
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from hybridctl import checks
from hybridctl.errors import InputError
from hybridctl.files import read_yaml
from hybridctl.logs.units import NANOSECONDS, UNITS

ROTATIONS = ("wxyz", "xyzw", "rpy")
_SECTIONS = {"channels": "measurement", "inputs": "input", "truth": "truth"}
_CHANNEL = (
    "topic",
    "fields",
    "columns",
    "labels",
    "unit",
    "scale",
    "frame",
    "rotation",
    "time",
)


@dataclass(frozen=True)
class TimeSource:
    """Stamps: a field in a unit, or a rate [Hz] (a number, or the field that holds it).

    With neither, the stamps of the recording, or the field whose name says that it is the time.
    """

    field: str = ""
    unit: str = ""
    rate: float | str = 0.0


@dataclass(frozen=True)
class Segment:
    """One of several recordings in a row: rows `offsets[index]` up to `offsets[index + 1]`."""

    offsets: str
    index: int = 0


@dataclass(frozen=True)
class ChannelSource:
    """Where a channel comes from.

    `columns` keeps some columns, by label or number; `labels` names them (a list, or the field
    that holds the names). Values are converted from `unit` to SI, then multiplied by `scale`.
    With `rotation` they become quaternions (x, y, z, w): from that order, from w first, or from
    roll, pitch and yaw about fixed axes, Rz(yaw) Ry(pitch) Rx(roll).
    """

    name: str
    fields: tuple[str, ...]
    topic: str = ""
    columns: tuple[str, ...] = ()
    labels: tuple[str, ...] | str = ()
    unit: str = ""
    scale: float = 1.0
    frame: str = ""
    rotation: str = ""
    role: str = "measurement"
    time: TimeSource | None = None


@dataclass(frozen=True)
class Mapping:
    """From the fields of a recording to the channels of a log."""

    channels: tuple[ChannelSource, ...]
    time: TimeSource = TimeSource()
    segment: Segment | None = None

    @classmethod
    def load(cls, path: str | Path) -> Mapping:
        """The mapping in a YAML file; an error names the file and the key at fault."""
        content = read_yaml(path, "mapping")
        try:
            return cls.parse(content)
        except InputError as error:
            raise type(error)(f"{path}: {error}") from error

    def text(self) -> str:
        """This mapping as YAML, to be edited; `load` reads it back."""
        content: dict[str, Any] = {"time": _given(self.time)}
        content["segment"] = None if self.segment is None else _given(self.segment)
        for section, role in _SECTIONS.items():
            content[section] = {
                c.name: {k: v for k, v in _given(c).items() if k not in ("name", "role")}
                for c in self.channels
                if c.role == role
            }
        kept = {key: value for key, value in content.items() if value}
        body = yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, default_flow_style=None)
        return f"# channels are read as SI after `unit`, one of {', '.join(UNITS)}\n{body}"

    @classmethod
    def parse(cls, content: Any) -> Mapping:
        """The mapping in nested dictionaries, as YAML gives them."""
        given = _dictionary("mapping", content, ("time", "segment", *_SECTIONS))
        time = _time("time", given.get("time") or {})
        segment = _segment(given["segment"]) if given.get("segment") is not None else None
        channels = []
        for section, role in _SECTIONS.items():
            entries = given.get(section) or {}
            if not isinstance(entries, Dictionary):
                raise InputError(f"{section} must be names with fields, got {entries!r}")
            channels += [_channel(f"{section}.{n}", str(n), v, role) for n, v in entries.items()]
        if not channels:
            raise InputError("mapping needs at least one entry in channels, inputs or truth")
        names = [channel.name for channel in channels]
        if len(set(names)) != len(names):
            raise InputError(f"channels, inputs and truth need different names, got {names}")
        return cls(tuple(channels), time, segment)


def _given(entry: TimeSource | Segment | ChannelSource) -> dict[str, Any]:
    """What of an entry is not its default, in lists and dictionaries."""
    given = {}
    for f in fields(entry):
        value = getattr(entry, f.name)
        if value != f.default:
            plain = list(value) if isinstance(value, tuple) else value
            given[f.name] = _given(value) if isinstance(value, TimeSource) else plain
    return given


def _dictionary(name: str, value: Any, known: tuple[str, ...]) -> Dictionary[str, Any]:
    if not isinstance(value, Dictionary):
        raise InputError(f"{name} must have keys among {list(known)}, got {value!r}")
    for key in value:
        checks.member(f"key in {name}", key, known)
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InputError(f"{name} must be text, got {value!r}")
    return value


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """A name or a list of names; numbers count as names, for columns that have no other."""
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(v, str | int) and not isinstance(v, bool) for v in values):
        raise InputError(f"{name} must be a name or a list of names, got {value!r}")
    return tuple(str(v) for v in values)


def _time(name: str, value: Any) -> TimeSource:
    given = _dictionary(name, value, ("field", "unit", "rate"))
    if "field" in given and "rate" in given:
        raise InputError(f"{name} takes a field or a rate, not both")
    rate = given.get("rate", 0.0)
    if "rate" in given and not isinstance(rate, str):
        rate = checks.number(f"{name}.rate", rate, above=0)
    if "unit" in given:
        checks.member(f"{name}.unit", given["unit"], NANOSECONDS)
    return TimeSource(_text(f"{name}.field", given.get("field", "")), given.get("unit", ""), rate)


def _segment(value: Any) -> Segment:
    given = _dictionary("segment", value, ("offsets", "index"))
    if "offsets" not in given:
        raise InputError("segment needs offsets, the field with the first row of each segment")
    index = checks.count("segment.index", given.get("index", 0), at_least=0)
    return Segment(_text("segment.offsets", given["offsets"]), index)


def _channel(path: str, name: str, value: Any, role: str) -> ChannelSource:
    given = _dictionary(path, value, _CHANNEL)
    if "fields" not in given:
        raise InputError(
            f"{path} needs fields: the columns, arrays or message fields it is made of"
        )
    unit = given.get("unit", "")
    if "unit" in given:
        unit = checks.member(f"{path}.unit", "1" if unit == 1 else unit, UNITS)
    if "rotation" in given:
        checks.member(f"{path}.rotation", given["rotation"], ROTATIONS)
    labels = given.get("labels", ())
    return ChannelSource(
        name,
        _texts(f"{path}.fields", given["fields"]),
        topic=_text(f"{path}.topic", given.get("topic", "")),
        columns=_texts(f"{path}.columns", given["columns"]) if "columns" in given else (),
        labels=labels if isinstance(labels, str | tuple) else _texts(f"{path}.labels", labels),
        unit=unit,
        scale=checks.number(f"{path}.scale", given.get("scale", 1.0)),
        frame=_text(f"{path}.frame", given.get("frame", "")),
        rotation=given.get("rotation", ""),
        role=role,
        time=_time(f"{path}.time", given["time"]) if "time" in given else None,
    )
