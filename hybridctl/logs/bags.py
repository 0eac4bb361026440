"""ROS 1 bags, ROS 2 bags and MCAP files, through the packages `rosbags` and `mcap`."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from mmap import ACCESS_READ, mmap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from hybridctl.errors import FileFormatError, InputError
from hybridctl.logs.messages import Topic
from hybridctl.logs.raw import MAX_BYTES, RawLog, missing_extra, too_large

METADATA = "hybridctl_log"
_TIMES_FILE = 1000  # messages compress well, but not more than this


def read_bag(path: Path, chosen: Collection[str] | None, *, ros1: bool) -> RawLog:
    """A ROS 1 bag file, or a ROS 2 bag folder or database, by the types it carries.

    ROS 2 bags without message definitions are read with those of the latest distribution known.
    """
    try:
        from rosbags.highlevel import AnyReader
        from rosbags.typesys import Stores, get_typestore
    except ImportError as error:
        raise missing_extra(path, "a ROS bag", "rosbags", "ros") from error
    topics: dict[str, Topic] = {}
    notes: dict[str, None] = {}
    with TemporaryDirectory() as folder:
        store = get_typestore(Stores.LATEST)
        with AnyReader([_named(path, ros1, Path(folder))], default_typestore=store) as reader:
            budget = _budget(path)
            for connection in reader.connections:
                topics.setdefault(connection.topic, Topic(connection.topic, connection.msgtype))
            wanted = [c for c in reader.connections if chosen is None or c.topic in chosen]
            for connection, stamp, data in reader.messages(wanted) if wanted else ():
                budget -= len(data) + 1
                if budget < 0:
                    raise too_large(path, "the content", _budget(path) - budget)
                topics[connection.topic].add(stamp, reader.deserialize(data, connection.msgtype))
            read = sum(len(topic.rows) for topic in topics.values())
            if chosen is None and read != reader.message_count:
                notes[f"{reader.message_count} messages are declared, but {read} were found"] = None
    return _log(path, "rosbag1" if ros1 else "rosbag2", topics, chosen, list(notes))


def _named(path: Path, ros1: bool, folder: Path) -> Path:
    """The path under a name with the suffix by which rosbags chooses."""
    suffix = ".bag" if ros1 else ".db3"
    if path.is_dir() or path.suffix == suffix:
        return path
    link = folder / f"log{suffix}"
    link.symlink_to(path.resolve())
    return link


def _budget(path: Path) -> int:
    files = path.iterdir() if path.is_dir() else [path]
    return _TIMES_FILE * sum(f.stat().st_size for f in files if f.is_file())


def read_mcap(path: Path, chosen: Collection[str] | None) -> RawLog:
    """An MCAP file with messages of ROS 1, ROS 2 (`cdr`) or JSON; others are named in the notes.

    Checksums are verified where the file has them.
    """
    try:
        from mcap.reader import SeekingReader
    except ImportError as error:
        raise missing_extra(path, "MCAP", "mcap", "ros") from error
    size = path.stat().st_size
    topics: dict[str, Topic] = {}
    decoders: dict[int, Callable[[bytes], Any] | None] = {}
    notes: dict[str, None] = {}
    budget = _budget(path)
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        stream: Any = content  # reads what is there, whatever length a damaged record declares
        reader = SeekingReader(stream, validate_crcs=True, record_size_limit=size)
        summary = reader.get_summary()
        if summary is not None:
            topics = {c.topic: Topic(c.topic, "") for c in summary.channels.values()}
            declared = max((chunk.uncompressed_size for chunk in summary.chunk_indexes), default=0)
            if declared > min(budget, MAX_BYTES):
                raise too_large(path, "a chunk", declared)
        native = None
        for record in reader.iter_metadata():
            if record.name == METADATA:
                native = json.loads(record.metadata["header"])
        for schema, channel, message in reader.iter_messages(chosen, log_time_order=False):
            budget -= len(message.data) + 1
            if budget < 0:
                raise too_large(path, "the content", _budget(path) - budget)
            if channel.id not in decoders:
                decoders[channel.id] = _decoder(path, channel, schema)
            decode = decoders[channel.id]
            if decode is None:
                encoding = channel.message_encoding
                notes[f"{channel.topic}: messages encoded as {encoding!r} are not read"] = None
                continue
            topic = topics.setdefault(channel.topic, Topic(channel.topic, ""))
            topic.kind = schema.name if schema else ""
            topic.add(message.log_time, decode(message.data))
    return _log(path, "mcap", topics, chosen, list(notes), native)


def _decoder(path: Path, channel: Any, schema: Any) -> Callable[[bytes], Any] | None:
    """How the messages of a channel are decoded, None if that is not known."""
    if channel.message_encoding == "json":
        return json.loads
    if channel.message_encoding not in ("cdr", "ros1") or schema is None:
        return None
    try:
        from rosbags.typesys import Stores, get_types_from_idl, get_types_from_msg, get_typestore
    except ImportError as error:
        raise missing_extra(path, "ROS messages", "rosbags", "ros") from error
    store = get_typestore(Stores.EMPTY)
    definition = schema.data.decode()
    if schema.encoding == "ros2idl":
        for part in definition.split("=" * 80 + "\n"):
            store.register(
                get_types_from_idl(part.partition("\n")[2] if part.startswith("IDL: ") else part)
            )
        name = schema.name
    else:
        name = schema.name if schema.name.count("/") == 2 else schema.name.replace("/", "/msg/")
        store.register(get_types_from_msg(definition, name))
    read = store.deserialize_cdr if channel.message_encoding == "cdr" else store.deserialize_ros1
    return lambda data: read(data, name)


def _log(
    path: Path,
    kind: str,
    topics: dict[str, Topic],
    chosen: Collection[str] | None,
    notes: list[str],
    native: dict[str, Any] | None = None,
) -> RawLog:
    there = chosen is None or set(chosen) <= set(topics)
    if there and not any(topic.rows for topic in topics.values()):
        because = f": {'; '.join(notes)}" if notes else ""
        raise FileFormatError(f"{path}: no messages that can be read{because}")
    limit = np.iinfo(np.int64).max
    for topic in topics.values():
        if any(not 0 <= stamp <= limit for stamp in topic.stamps):
            raise InputError(f"{path}: a stamp of topic {topic.name} is out of range")
    return RawLog(path, kind, {t.name: t.table() for t in topics.values()}, native, notes)
