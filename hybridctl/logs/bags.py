"""ROS 1 bags, ROS 2 bags and MCAP files, through the packages `rosbags` and `mcap`.

Messages, as the objects or dictionaries that decoders give, are made into a table of fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from mmap import ACCESS_READ, mmap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from hybridctl.errors import FileFormatError, InputError
from hybridctl.logs.raw import HEADER, MAX_BYTES, RawLog, RawTable, needing, too_large

TEXT = "it is text"
_DEPTH = 12
_LONGEST = 4096  # numbers; images and clouds of points are not kept
_SI_PACKAGES = ("geometry_msgs", "nav_msgs", "sensor_msgs")
_SI = {
    "position": "m",
    "translation": "m",
    "linear": "m/s",
    "angular": "rad/s",
    "angular_velocity": "rad/s",
    "linear_acceleration": "m/s^2",
    "force": "N",
    "torque": "Nm",
}


@dataclass
class Topic:
    """Collects the messages of one topic."""

    name: str
    kind: str
    stamps: list[int] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, stamp: int, message: Any) -> None:
        """One message, recorded at `stamp` nanoseconds."""
        self.stamps.append(stamp)
        self.rows.append(dict(_flat(message, "", _DEPTH)))

    def table(self) -> RawTable:
        """Fields by dotted path; a field that is not in every message is NaN where it is missing.

        Arrays beside a list `name`, as in sensor_msgs/JointState, get that list as labels, and
        are sorted by it where its order or its length changes from one message to the next.
        The vectors of the usual ROS packages are in SI units, by convention.
        """
        stamps = np.array(self.stamps, dtype=np.int64)
        table = RawTable(self.name, stamps=stamps, kind=self.kind)
        for path in dict.fromkeys(key for row in self.rows for key in row):
            cells = [row.get(path) for row in self.rows]
            parent, dot, _ = path.rpartition(".")
            names = [row.get(f"{parent}{dot}name") for row in self.rows]
            self._column(table, path, cells, names)
        return table

    def _column(self, table: RawTable, path: str, cells: list[Any], names: list[Any]) -> None:
        if any(isinstance(cell, str) for cell in cells) or any(_is_text(cell) for cell in cells):
            table.unusable[path] = TEXT
            return
        for cell in cells:
            if isinstance(cell, _Unfit):
                table.unusable[path] = cell.reason
                return
        arrays = [np.nan if cell is None else np.asarray(cell) for cell in cells]
        shapes = {np.shape(array) for array in arrays}
        labelled = [
            _is_text(n) and np.shape(a) == (len(n),) for n, a in zip(names, arrays, strict=True)
        ]
        if all(labelled):
            labels = list(dict.fromkeys(label for n in names for label in n))
            table.labels[path] = tuple(labels)
            if any(list(n) != labels for n in names):
                table.fields[path] = _by_label(arrays, names, labels)
                return
        elif any(labelled) and len(shapes) > 1:
            table.unusable[path] = "it is not in every message, or not as long as `name`"
            return
        if len(shapes) > 1 or len(next(iter(shapes))) > 1:
            table.unusable[path] = "its size changes" if len(shapes) > 1 else "it has many axes"
            return
        values = np.array(arrays)
        if path.rpartition(".")[2] in ("stamp", "timestamp") and values.dtype.kind == "i":
            table.units[path] = "ns"
        vector = path.split(".")[-2:-1]
        if vector and self.kind.partition("/")[0] in _SI_PACKAGES and vector[0] in _SI:
            table.units[path] = _SI[vector[0]]
        table.fields[path] = values


@dataclass(frozen=True)
class _Unfit:
    """A mark for what has no place in a table."""

    reason: str


def _flat(message: Any, prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    """The pairs (path, scalar or array) of all leaves; stamps in two parts become one whole."""
    for name, value in _parts(message):
        path = f"{prefix}{name}"
        if value is None or isinstance(value, bool | int | float | str):
            yield path, value
            continue
        parts = dict(_parts(value))
        if set(parts) in ({"sec", "nanosec"}, {"sec", "nsec"}):
            rest = parts["nanosec"] if "nanosec" in parts else parts["nsec"]
            yield path, int(parts["sec"]) * 10**9 + int(rest)
        elif parts and depth:
            yield from _flat(value, f"{path}.", depth - 1)
        elif isinstance(value, list | tuple) and any(_parts(item) for item in value):
            yield path, _Unfit("it is a list of messages")
        elif isinstance(value, np.ndarray | list | tuple) and np.size(value) > _LONGEST:
            yield path, _Unfit(f"it has {np.size(value)} numbers in one message")
        elif isinstance(value, np.ndarray | np.generic):
            yield path, value
        elif isinstance(value, list | tuple):
            yield path, list(value)


def _parts(value: Any) -> Sequence[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(str(name), part) for name, part in value.items()]
    names = getattr(value, "__dataclass_fields__", ())
    return [(name, getattr(value, name)) for name in names if not name.startswith("__")]


def _is_text(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, str) for v in value)


def _by_label(arrays: list[Any], names: list[Any], labels: list[str]) -> Any:
    place = {label: i for i, label in enumerate(labels)}
    out = np.full((len(arrays), len(labels)), np.nan)
    for row, array, own in zip(out, arrays, names, strict=True):
        row[[place[label] for label in own]] = array
    return out


_TIMES_FILE = 1000  # messages compress well, but not more than this


def read_bag(path: Path, chosen: Collection[str] | None, *, ros1: bool) -> RawLog:
    """A ROS 1 bag file, or a ROS 2 bag folder or database, by the types it carries.

    ROS 2 bags without message definitions are read with those of the latest distribution known.
    """
    with needing(path, "a ROS bag", "rosbags", "ros"):
        from rosbags.highlevel import AnyReader
        from rosbags.typesys import Stores, get_typestore
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
    with needing(path, "MCAP", "mcap", "ros"):
        from mcap.reader import SeekingReader
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
            if record.name == HEADER:
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
    with needing(path, "ROS messages", "rosbags", "ros"):
        from rosbags.typesys import Stores, get_types_from_idl, get_types_from_msg, get_typestore
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
