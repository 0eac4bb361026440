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

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml

from hybridctl.base import checks
from hybridctl.base.errors import InputError
from hybridctl.base.settings import Meta, Natural, Positive, parse_settings
from hybridctl.base.yaml_files import read_yaml
from hybridctl.logs.units import NANOSECONDS as NANOSECONDS
from hybridctl.logs.units import UNITS as UNITS
from hybridctl.logs.units import si as si

STEPS = ("previous", "next")
ROTATIONS = ("wxyz", "xyzw", "rpy")
ROLES = {"channels": "measurement", "inputs": "input", "truth": "truth"}  # by section

Names = Annotated[tuple[str, ...], Meta(min_length=1)]


class TimeSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Stamps: a field in a unit, or a rate [Hz] (a number, or the field that holds it).

    With neither, the stamps of the recording, or the field whose name says that it is the time.
    With `steps` the field holds the time since the row before ("previous") or until the row after
    ("next"), and stamps are its sums.
    """

    field: str = ""
    unit: str = ""
    rate: Positive | str = 0.0
    steps: str = ""

    def __post_init__(self) -> None:
        if self.field and self.rate:
            raise InputError("rate must be left out: stamps have a field or a rate, not both")
        if self.unit:
            checks.check_member("unit", self.unit, NANOSECONDS)
        if self.steps:
            checks.check_member("steps", self.steps, STEPS)
            if not self.field:
                raise InputError("steps need the field that holds them, got none")


class Segment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One of several recordings in a row: rows `offsets[index]` up to `offsets[index + 1]`."""

    offsets: str
    index: Natural = 0


class ChannelSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The place that a channel comes from.

    `columns` keeps some columns, by label or number; `labels` names them (a list, or the field
    that holds the names). Values are converted from `unit` to SI, then multiplied by `scale`.
    With `rotation` they become quaternions (x, y, z, w): from that order, from w first, or from
    roll, pitch and yaw about fixed axes, Rz(yaw) Ry(pitch) Rx(roll).
    """

    fields: Names
    topic: str = ""
    columns: Names = ()
    labels: str | Names = ()
    unit: str = ""
    scale: float = 1.0
    frame: str = ""
    rotation: str = ""
    time: TimeSource | None = None

    def __post_init__(self) -> None:
        checks.check_number("scale", self.scale)
        if self.unit:
            checks.check_member("unit", self.unit, UNITS)
        if self.rotation:
            checks.check_member("rotation", self.rotation, ROTATIONS)


class Mapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How fields of a recording become the channels of a log, by name and in their roles."""

    channels: dict[str, ChannelSource] = {}
    inputs: dict[str, ChannelSource] = {}
    truth: dict[str, ChannelSource] = {}
    time: TimeSource = TimeSource()
    segment: Segment | None = None

    def __post_init__(self) -> None:
        names = Counter(name for section in ROLES for name in getattr(self, section))
        if not names:
            raise InputError("mapping needs at least one entry in channels, inputs or truth")
        if max(names.values()) > 1:
            raise InputError(f"channels, inputs and truth need different names, got {list(names)}")

    @classmethod
    def load(cls, path: str | Path) -> Mapping:
        """Return the mapping in a YAML file; an error names the file and the key at fault."""
        content = read_yaml(path, "mapping")
        try:
            return cls.parse(content)
        except InputError as error:
            raise type(error)(f"{path}: {error}") from error

    @classmethod
    def parse(cls, content: Any) -> Mapping:
        """Return the mapping in nested dictionaries, as YAML gives them."""
        given = parse_settings(dict[str, Any], content, "mapping")
        for key in given:
            checks.check_member("key in mapping", key, cls.__struct_fields__)
        parts: dict[str, Any] = {
            section: {
                str(name): parse_settings(ChannelSource, _spelled(source), f"{section}.{name}")
                for name, source in parse_settings(
                    dict[Any, Any], given.get(section) or {}, section
                ).items()
            }
            for section in ROLES
        }
        if given.get("time"):
            parts["time"] = parse_settings(TimeSource, given["time"], "time")
        if given.get("segment"):
            parts["segment"] = parse_settings(Segment, given["segment"], "segment")
        return cls(**parts)

    def text(self) -> str:
        """This mapping as YAML, to be edited; `load` reads it back."""
        content = msgspec.to_builtins(self)
        body = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, default_flow_style=None)
        return f"# channels are read as SI after `unit`, one of {', '.join(UNITS)}\n{body}"

    def sources(self) -> list[tuple[str, str, ChannelSource]]:
        """Name, role and source of every channel."""
        return [
            (name, role, source)
            for section, role in ROLES.items()
            for name, source in getattr(self, section).items()
        ]


def _spelled(source: Any) -> Any:
    """Return a source in full: a single name counts as a list of it, and a number as a name."""
    if not isinstance(source, dict):
        return source
    full = dict(source)
    for key in ("fields", "columns", "labels", "unit"):
        value = full.get(key)
        many = value if isinstance(value, list) else [value]
        names = [str(v) if type(v) is int else v for v in many]
        if key in full:
            single = not isinstance(value, list) and key in ("labels", "unit")
            full[key] = names[0] if single else names
    return full
