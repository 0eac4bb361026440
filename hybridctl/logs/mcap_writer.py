"""MCAP files of JSON messages, which common viewers open."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping as Dictionary
from pathlib import Path
from types import TracebackType
from typing import Any

from hybridctl.errors import InputError
from hybridctl.logs.bags import METADATA
from hybridctl.logs.raw import missing_extra

_NUMBER = {"type": "number"}
_TIME = {"sec": {"type": "integer"}, "nsec": {"type": "integer"}}


class McapFile:
    """An MCAP file being written; `header` goes into its metadata."""

    def __init__(self, path: Path, header: str | None = None) -> None:
        try:
            from mcap.writer import Writer
        except ImportError as error:
            raise missing_extra(path, "MCAP", "mcap", "ros") from error
        self._stream = path.open("wb")
        self._writer = Writer(self._stream)
        self._writer.start(profile="", library="hybridctl")
        if header is not None:
            self._writer.add_metadata(METADATA, {"header": header})

    def __enter__(self) -> McapFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._writer.finish()  # type: ignore[no-untyped-call]
        finally:
            self._stream.close()

    def topic(self, name: str, schema_name: str, schema: Dictionary[str, Any]) -> int:
        """A topic of JSON messages; its number."""
        data = json.dumps(schema).encode()
        number = self._writer.register_schema(schema_name, "jsonschema", data)
        return self._writer.register_channel(name, "json", number)

    def write(self, topic: int, origin_ns: int, time: float, message: Dictionary[str, Any]) -> None:
        """A message at `time` seconds after `origin_ns`."""
        stamp = nanoseconds(origin_ns, time)
        data = json.dumps(message, allow_nan=False).encode()
        self._writer.add_message(topic, log_time=stamp, data=data, publish_time=stamp)


def nanoseconds(origin_ns: int, time: float) -> int:
    """The stamp `time` seconds after `origin_ns`; MCAP has none before 0."""
    stamp = origin_ns + round(time * 1e9)
    if not 0 <= stamp < 2**63:
        raise InputError(f"MCAP cannot hold the stamp {time} s after {origin_ns} ns")
    return stamp


def json_number(value: float) -> float | None:
    """The number, or null for what JSON has no number for."""
    return value if math.isfinite(value) else None


def object_schema(properties: Dictionary[str, Any], title: str = "") -> dict[str, Any]:
    """The JSON schema of an object with these properties."""
    schema = {"type": "object", "properties": dict(properties), "required": list(properties)}
    return {"title": title, **schema} if title else schema


def pose_schema() -> dict[str, Any]:
    """The schema `foxglove.PoseInFrame`, which viewers draw in space."""
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
