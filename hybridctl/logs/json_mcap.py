"""MCAP files of JSON messages, which common viewers open, and the schemas of their messages."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hybridctl.base.errors import InputError
from hybridctl.logs.raw import HEADER
from hybridctl.logs.read_errors import require_package

_NUMBER = {"type": "number"}
_TIME = {"sec": {"type": "integer"}, "nsec": {"type": "integer"}}


class JsonMcapWriter:
    """Writes topics with JSON messages into an MCAP file.

    Life cycle: inside of `with JsonMcapWriter.open(path) as writer`, `add_topic` is called for each
    topic before `write_message` with its number.
    """

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    @staticmethod
    @contextmanager
    def open(path: Path, header: str | None = None) -> Iterator[JsonMcapWriter]:
        """Open a file, and finish it at the end of the context.

        Args:
            path: File to write.
            header: Header of a log of hybridctl for the metadata; None without one.

        Yields:
            The writer.

        Raises:
            InputError: The package `mcap` is missing.
        """
        with require_package(path, "MCAP", "mcap", "ros"):
            from mcap.writer import Writer
        with path.open("wb") as stream:
            writer: Any = Writer(stream)
            writer.start(profile="", library="hybridctl")
            if header is not None:
                writer.add_metadata(HEADER, {"header": header})
            yield JsonMcapWriter(writer)
            writer.finish()

    def add_topic(self, name: str, schema_name: str, schema: Mapping[str, Any]) -> int:
        """Add a topic to the file.

        Args:
            name: The topic.
            schema_name: Name of the type of its messages.
            schema: JSON schema of its messages.

        Returns:
            The number of the topic, for `write_message`.
        """
        data = json.dumps(schema).encode()
        number = self._writer.register_schema(schema_name, "jsonschema", data)
        return int(self._writer.register_channel(name, "json", number))

    def write_message(
        self, topic: int, origin_ns: int, time: float, message: Mapping[str, Any]
    ) -> None:
        """Write a message.

        Args:
            topic: Number of the topic, as of `add_topic`.
            origin_ns: Time of stamp 0 in ns since 1970.
            time: Stamp of the message in s.
            message: Content that JSON can hold.

        Raises:
            InputError: MCAP cannot hold the stamp.
        """
        stamp = find_mcap_stamp(origin_ns, time)
        data = json.dumps(message, allow_nan=False).encode()
        self._writer.add_message(topic, log_time=stamp, data=data, publish_time=stamp)


def find_mcap_stamp(origin_ns: int, time: float) -> int:
    """Return a stamp of MCAP in ns, which has 64 bits and no sign.

    Args:
        origin_ns: Time of stamp 0 in ns since 1970.
        time: Stamp in s.

    Raises:
        InputError: MCAP cannot hold the stamp.
    """
    stamp = origin_ns + round(time * 1e9)
    if not 0 <= stamp < 2**63:
        raise InputError(f"MCAP cannot hold the stamp {time} s after {origin_ns} ns")
    return stamp


def convert_to_json(value: float) -> float | None:
    """Return a number, None (null) if it is not finite, as JSON has no such numbers."""
    return value if math.isfinite(value) else None


def make_object_schema(properties: Mapping[str, Any], title: str = "") -> dict[str, Any]:
    """Return the JSON schema of an object all of whose properties are required.

    Args:
        properties: Schemas of the properties by name.
        title: Title of the schema; empty for none.
    """
    schema = {"type": "object", "properties": dict(properties), "required": list(properties)}
    return {"title": title, **schema} if title else schema


def make_pose_schema() -> dict[str, Any]:
    """Return the schema `foxglove.PoseInFrame`, which viewers draw in space."""
    pose = {
        "position": make_object_schema(dict.fromkeys("xyz", _NUMBER)),
        "orientation": make_object_schema(dict.fromkeys("xyzw", _NUMBER)),
    }
    properties = {
        "timestamp": make_object_schema(_TIME),
        "frame_id": {"type": "string"},
        "pose": make_object_schema(pose),
    }
    return make_object_schema(properties, "foxglove.PoseInFrame")
