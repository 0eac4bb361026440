"""Mappings: which fields of a recording make up which channel of a log, and in which units.

A mapping file is YAML::

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
from hybridctl.logs.units import NANOSECONDS, UNITS

STEPS = ("previous", "next")
"""Neighbour of a row to which the time in a field of steps is counted."""
ROTATIONS = ("wxyz", "xyzw", "rpy")
"""Columns that can be made into quaternions, see `ChannelSource`."""
ROLES = {"channels": "measurement", "inputs": "input", "truth": "truth"}
"""Role of the channels in each section of a mapping."""

Names = Annotated[tuple[str, ...], Meta(min_length=1)]


class TimeSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The origin of the stamps of a channel: a field, a rate, or by default the recording.

    With neither field nor rate, stamps are those of the recorder, or of the field that is named
    like a time.

    Attributes:
        field: Field of the stamps, or of the steps between them.
        unit: Unit of the field; empty for the unit that the file or the field's name has, or s.
        rate: Samples per second, Hz: a number, or the field that holds it; 0 for none.
        steps: "previous" if the field holds the time since the row before, "next" if it holds the
            time until the row after, so that stamps are its sums; empty if it holds stamps.

    Raises:
        InputError: There are field and rate, or steps without a field.
        UnknownNameError: The unit is none of time, or `steps` is another word.
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
    """One of several recordings in one table: rows `offsets[index]` up to `offsets[index + 1]`.

    Attributes:
        offsets: Field with the first row of each recording, and the number of rows at the end.
        index: Number of the recording, from 0.
    """

    offsets: str
    index: Natural = 0


class ChannelSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The fields of a recording that a channel is made of.

    Attributes:
        fields: Names of the fields, whose columns stand side by side.
        topic: Topic of the fields; empty for tables and archives.
        columns: Columns that are kept, by label or number; empty for all.
        labels: Names of the columns: a list, or the field that holds them.
        unit: Unit from which values are converted to SI; empty for the unit that the file names
            for the first of the fields.
        scale: Factor by which values are multiplied after the conversion.
        frame: Frame in which values are given.
        rotation: One of `ROTATIONS` for columns that become quaternions (x, y, z, w): quaternions
            with w first or last, or roll, pitch and yaw in rad about fixed axes,
            Rz(yaw) Ry(pitch) Rx(roll). Empty for values that are no rotations.
        time: Stamps of this channel; None for those of the mapping.

    Raises:
        InputError: The scale is not finite.
        UnknownNameError: The unit or the rotation is unknown.
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
    """The fields of a recording that become the channels of a log, by name.

    Attributes:
        channels: Measured channels.
        inputs: Channels of inputs, such as motor torques.
        truth: Channels that estimates are compared with.
        time: Stamps of all channels that have none of their own.
        segment: The recording that is read of a file that holds several; None for all rows.

    Raises:
        InputError: There is no channel, or two sections have one of the same name.
    """

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
        """Return the mapping in a YAML file.

        Args:
            path: The file.

        Raises:
            InputError: The file does not exist, or is no mapping; the message names the file and
                the key.
            FileFormatError: The file is no YAML.
        """
        content = read_yaml(path, "mapping")
        try:
            return cls.parse(content)
        except InputError as error:
            raise type(error)(f"{path}: {error}") from error

    @classmethod
    def parse(cls, content: Any) -> Mapping:
        """Return the mapping that nested dictionaries describe.

        Args:
            content: Sections and their entries, as YAML gives them.

        Raises:
            InputError: A key or value has no place in a mapping; the message names it.
        """
        given = parse_settings(dict[str, Any], content, "mapping")
        for key in given:
            checks.check_member("key in mapping", key, cls.__struct_fields__)
        parts: dict[str, Any] = {
            section: {
                str(name): parse_settings(
                    ChannelSource, _expand_shorthand(source), f"{section}.{name}"
                )
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

    def format_yaml(self) -> str:
        """Return this mapping as YAML, to be edited; `load` reads it back."""
        content = msgspec.to_builtins(self)
        body = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, default_flow_style=None)
        return f"# channels are read as SI after `unit`, one of {', '.join(UNITS)}\n{body}"

    def list_sources(self) -> list[tuple[str, str, ChannelSource]]:
        """Return name, role and source of every channel."""
        return [
            (name, role, source)
            for section, role in ROLES.items()
            for name, source in getattr(self, section).items()
        ]


def _expand_shorthand(source: Any) -> Any:
    """Return a source in full: a single name counts as a list of it, and a number as a name."""
    if not isinstance(source, dict):
        return source  # the check of its type reports it
    full = dict(source)
    for key in ("fields", "columns", "labels", "unit"):
        value = full.get(key)
        many = value if isinstance(value, list) else [value]
        names = [str(v) if type(v) is int else v for v in many]
        if key in full:
            single = not isinstance(value, list) and key in ("labels", "unit")
            full[key] = names[0] if single else names
    return full
