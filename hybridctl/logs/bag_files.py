"""ROS 1 bags, ROS 2 bags and MCAP files, through the packages `rosbags` and `mcap`.

What can be read is read, and the rest is named: topics whose messages cannot be decoded, damaged
parts of a file, files that a bag has lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from mmap import ACCESS_READ, mmap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import yaml

from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.logs.bags import Topic
from hybridctl.logs.raw import HEADER, MAX_BYTES, RawLog, needing, too_large

Decoder = Callable[[bytes], Any]
"""Returns the message in these bytes."""
_TIMES_FILE = 1000
"""Size of the content over the size of the file that is read; messages compress less than that."""
_SHOWN_REASON = 120
"""Characters of a decoder's message that a note quotes."""


@dataclass
class _Collector:
    """Collects the messages of the files of one log.

    Attributes:
        path: The log.
        chosen: Topics that are decoded; None for all.
        topics: Messages by topic.
        unread: Topics of which nothing is decoded, with the reason.
        failures: Reasons why single messages are not decoded, by topic.
        notes: What else is not read.
        native: Header of a log that hybridctl wrote.
        budget: Bytes of content that may still come.
    """

    path: Path
    chosen: Collection[str] | None
    topics: dict[str, Topic] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    failures: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    native: dict[str, Any] | None = None
    budget: int = 0

    def add_topic(self, name: str, kind: str) -> None:
        """Add a topic that has no messages yet, or set the type of one that has none.

        Args:
            name: Its name.
            kind: The type of its messages; empty if it is not known.
        """
        topic = self.topics.setdefault(name, Topic(name, kind))
        topic.kind = topic.kind or kind

    def add_message(self, name: str, stamp: int, data: bytes, decode: Decoder | str) -> None:
        """Add a message of a topic, recorded at `stamp` nanoseconds.

        Args:
            name: Its topic.
            stamp: When it was recorded.
            data: Its bytes.
            decode: Its decoder, or the reason why there is none.

        Raises:
            FileFormatError: The content is too large for this file.
        """
        self.spend(len(data) + 1)
        if isinstance(decode, str):
            self.unread[name] = decode
            return
        try:
            message = decode(data)
        except Exception as error:  # decoders raise nearly anything on damaged bytes
            self.failures.setdefault(name, []).append(_describe(error))
            return
        self.topics[name].add(stamp, message)

    def spend(self, size: int) -> None:
        """Take bytes off the budget; raises `FileFormatError` when it is used up."""
        self.budget -= size
        if self.budget < 0:
            whole = _find_budget(self.path)
            raise too_large(self.path, "the content", whole - self.budget)

    def take(self, part: _Collector) -> None:
        """Add what another collector has of one file of this log."""
        for name, topic in part.topics.items():
            self.add_topic(name, topic.kind)
            self.topics[name].stamps += topic.stamps
            self.topics[name].rows += topic.rows
        for name, reasons in part.failures.items():
            self.failures.setdefault(name, []).extend(reasons)
        self.unread |= part.unread
        self.notes += part.notes
        self.native = part.native or self.native
        self.budget = part.budget

    @property
    def count(self) -> int:
        """Number of messages that are decoded, or were tried."""
        tried = sum(len(reasons) for reasons in self.failures.values())
        return sum(len(topic.rows) for topic in self.topics.values()) + tried

    def make_log(self, kind: str) -> RawLog:
        """Return the tables of all topics.

        Args:
            kind: Format of the file, such as "rosbag2".

        Raises:
            FileFormatError: There is no message that can be read.
            InputError: A stamp is out of range.
        """
        for name, reasons in self.failures.items():
            if self.topics[name].rows:
                whole = len(reasons) + len(self.topics[name].rows)
                self.notes.append(
                    f"{name}: {len(reasons)} of {whole} messages cannot be decoded ({reasons[0]})"
                )
            else:
                self.unread[name] = f"its messages cannot be decoded ({reasons[0]})"
        self.notes += [f"topic {name} is not read: {why}" for name, why in self.unread.items()]
        read = {name: topic for name, topic in self.topics.items() if name not in self.unread}
        is_there = self.chosen is None or set(self.chosen) <= set(self.topics)
        if is_there and not any(topic.rows for topic in read.values()):
            because = f": {'; '.join(self.notes)}" if self.notes else ""
            raise FileFormatError(f"{self.path}: no messages that can be read{because}")
        limit = np.iinfo(np.int64).max
        for topic in read.values():
            if any(not 0 <= stamp <= limit for stamp in topic.stamps):
                raise InputError(f"{self.path}: a stamp of topic {topic.name} is out of range")
        tables = {name: topic.table() for name, topic in read.items()}
        return RawLog(self.path, kind, tables, self.native, self.notes, self.unread)


def _describe(error: Exception) -> str:
    """Return the type and the first line of an error, or the type of message that is missing."""
    if isinstance(error, KeyError) and "/msg/" in str(error):
        return f"{error} is not defined in the file"
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:_SHOWN_REASON]}" if lines else type(error).__name__


def _find_budget(path: Path) -> int:
    files = path.iterdir() if path.is_dir() else [path]
    return _TIMES_FILE * sum(f.stat().st_size for f in files if f.is_file())


def read_bag(path: Path, chosen: Collection[str] | None, *, ros1: bool) -> RawLog:
    """Read a ROS 1 bag file, or a ROS 2 bag folder or database, by the types it carries.

    Messages without a definition are read with those of the latest ROS 2 distribution known. A
    folder without a usable metadata.yaml is read file by file.

    Args:
        path: The file or folder.
        chosen: Topics that are decoded; None for all.
        ros1: Whether it is a bag of ROS 1.

    Raises:
        FileFormatError: Nothing can be read.
    """
    log = _Collector(path, chosen, budget=_find_budget(path))
    if ros1:
        with needing(path, "a ROS bag", "rosbags", "ros"):
            from rosbags.rosbag1 import Reader
        _read_connections(log, Reader(path), "ros1")
        return log.make_log("rosbag1")
    if not path.is_dir():
        _read_database(log, path)
        return log.make_log("rosbag2")
    files, count = _find_bag_files(log)
    for file in files:
        if file.suffix == ".mcap":
            _read_mcap_file(log, file)
        elif file.suffix == ".db3":
            _read_database(log, file)
        else:
            _read_compressed(log)
            break
    if count is not None and chosen is None and not log.unread and log.count != count:
        log.notes.append(f"{count} messages are declared, but {log.count} were found")
    return log.make_log("rosbag2")


def _find_bag_files(log: _Collector) -> tuple[list[Path], int | None]:
    """Return the files of a ROS 2 bag in their order, and how many messages they should have.

    Without a usable metadata.yaml: those in the folder, in the order of their numbers, and None.

    Args:
        log: Collector of the bag; notes of what is missing are added to it.

    Raises:
        FileFormatError: There is no metadata.yaml that can be used, and no file of messages.
    """
    count = None
    try:
        content = yaml.safe_load((log.path / "metadata.yaml").read_text(encoding="utf-8"))
        metadata = content["rosbag2_bagfile_information"]
        listed = [log.path / Path(name).name for name in metadata["relative_file_paths"]]
        count = int(metadata["message_count"])
        reason = "" if listed else "it lists no files"
    except OSError:
        reason = "it is missing"
    except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError):
        reason = "it is damaged"
    if not reason:
        lost = [file.name for file in listed if not file.is_file()]
        if lost:
            log.notes.append(f"files of the bag are missing: {', '.join(lost)}")
        if files := [file for file in listed if file.is_file()]:
            return files, count
        reason = "none of its files is there"
    files = sorted(
        (file for file in log.path.iterdir() if file.suffix in (".mcap", ".db3")),
        key=lambda file: [int(n) for n in re.findall(r"\d+", file.name)],
    )
    if not files:
        raise FileFormatError(
            f"{log.path}: metadata.yaml cannot be used ({reason}), and there is no .mcap or .db3"
        )
    log.notes.append(f"metadata.yaml cannot be used ({reason}); the files are read without it")
    return files, None


def _read_compressed(log: _Collector) -> None:
    """Read a ROS 2 bag whose files are compressed as a whole; metadata.yaml says how."""
    with needing(log.path, "a ROS bag", "rosbags", "ros"):
        from rosbags.rosbag2 import Reader
    _read_connections(log, Reader(log.path), "cdr")


def _read_database(log: _Collector, file: Path) -> None:
    """Read an SQLite file of a ROS 2 bag."""
    with needing(log.path, "a ROS bag", "rosbags", "ros"):
        from rosbags.rosbag2 import Reader
    pending = file.with_name(f"{file.name}-wal")
    if pending.is_file() and pending.stat().st_size:
        log.notes.append(f"{pending.name} is not read: the recorder did not close {file.name}")
    with TemporaryDirectory() as folder:
        named = file
        if file.suffix != ".db3":  # by which rosbags chooses
            named = Path(folder) / "log.db3"
            named.symlink_to(file.resolve())
        _read_connections(log, Reader(named), "cdr")


def _read_connections(log: _Collector, reader: Any, encoding: str) -> None:
    """Read the messages of a reader of rosbags, up to the first damage.

    Args:
        log: Gets topics, messages and notes.
        reader: A reader that is not open yet.
        encoding: "ros1" or "cdr".
    """
    from rosbags.interfaces import MessageDefinitionFormat

    forms = {MessageDefinitionFormat.MSG: "ros2msg", MessageDefinitionFormat.IDL: "ros2idl"}
    decoders: dict[tuple[str, str], Decoder | str] = {}
    with reader:
        wanted = []
        for one in reader.connections:
            log.add_topic(one.topic, one.msgtype)
            if log.chosen is not None and one.topic not in log.chosen:
                continue
            wanted.append(one)
            if (one.topic, one.msgtype) not in decoders:
                form, text = forms.get(one.msgdef.format, ""), one.msgdef.data
                decoders[one.topic, one.msgtype] = _make_decoder(
                    encoding, form, text, one.msgtype, one.digest
                )
        declared, before = sum(one.msgcount for one in wanted), log.count
        stream = iter(reader.messages(connections=wanted) if wanted else ())
        skipped = 0
        while True:
            try:
                one, stamp, data = next(stream)
            except StopIteration:
                break
            except Exception as error:
                if log.count == before:
                    raise
                log.notes.append(f"damaged after {log.count} messages ({_describe(error)})")
                break
            decode = decoders[one.topic, one.msgtype]
            skipped += isinstance(decode, str)
            log.add_message(one.topic, stamp, data, decode)
        read = log.count - before + skipped
        if declared != read and not any(note.startswith("damaged") for note in log.notes):
            log.notes.append(f"{declared} messages are declared, but {read} were found")


def read_mcap(path: Path, chosen: Collection[str] | None) -> RawLog:
    """Read an MCAP file with messages of ROS 1, ROS 2 (`cdr`) or JSON; others are in the notes.

    Checksums are verified where the file has them. A file that is cut, or has no index, is read
    from its beginning up to the damage.

    Args:
        path: The file.
        chosen: Topics that are decoded; None for all.

    Raises:
        FileFormatError: Nothing can be read.
    """
    log = _Collector(path, chosen, budget=_find_budget(path))
    _read_mcap_file(log, path)
    return log.make_log("mcap")


def _read_mcap_file(log: _Collector, path: Path) -> None:
    """Read one MCAP file by its index, or in order where the index is missing or damaged."""
    with needing(log.path, "MCAP", "mcap", "ros"):
        import mcap.reader  # noqa: F401
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        part = _Collector(log.path, log.chosen, budget=log.budget)
        try:
            _collect_records(part, _find_records(part, content))
        except (FileFormatError, InputError):
            raise
        except Exception:  # whatever is wrong, the scan says how far the file can be read
            part = _Collector(log.path, log.chosen, budget=log.budget)
            content.seek(0)
            _collect_records(part, _scan_records(part, content, path))
    log.take(part)


def _collect_records(log: _Collector, records: Iterable[Any]) -> None:
    """Add messages, each with its schema and channel, and the header of a log of hybridctl."""
    decoders: dict[tuple[int, str], Decoder | str] = {}
    for record in records:
        if not isinstance(record, tuple):
            if record.name == HEADER:
                log.native = json.loads(record.metadata["header"])
            continue
        schema, channel, message = record
        key = (channel.id, channel.topic)
        if key not in decoders:
            log.add_topic(channel.topic, schema.name if schema else "")
            decoders[key] = make_mcap_decoder(log.path, channel, schema)
        log.add_message(channel.topic, message.log_time, message.data, decoders[key])


def _find_records(log: _Collector, content: mmap) -> Iterator[Any]:
    """Yield metadata, and messages with schema and channel, of chunks that the index names.

    Args:
        log: Collector that has path, chosen topics and budget; topics are added to it.
        content: The file, of which only the parts that the index names are read.

    Raises:
        FileFormatError: A chunk declares more bytes than may be read.
        LookupError: The file has no index of chunks.
        Exception: The mcap package raises errors of its own on a damaged index.
    """
    from mcap.reader import SeekingReader

    stream: Any = content  # reads what is there, whatever length a damaged record declares
    reader = SeekingReader(stream, validate_crcs=True, record_size_limit=len(content))
    summary = reader.get_summary()
    if summary is None or not summary.chunk_indexes:
        raise LookupError("no index of chunks")
    declared = max(chunk.uncompressed_size for chunk in summary.chunk_indexes)
    if declared > min(log.budget, MAX_BYTES):
        raise too_large(log.path, "a chunk", declared)
    for channel in summary.channels.values():
        schema = summary.schemas.get(channel.schema_id)
        log.add_topic(channel.topic, schema.name if schema else "")
    yield from reader.iter_metadata()
    yield from reader.iter_messages(log.chosen, log_time_order=False)


def _scan_records(log: _Collector, content: mmap, path: Path) -> Iterator[Any]:
    """Yield metadata, and messages with schema and channel, in order up to the first damage.

    A chunk that is damaged in itself is passed over.

    Args:
        log: Its notes are extended by what is lost.
        content: The bytes of the file.
        path: The file, for errors and notes.

    Yields:
        A `mcap` metadata record, or a tuple of schema, channel and message.

    Raises:
        FileFormatError: The checksum of messages outside of chunks is wrong.
    """
    from mcap.records import Channel, Chunk, Message, Metadata, Schema
    from mcap.stream_reader import CRCValidationError, StreamReader

    schemas: dict[int, Any] = {}
    channels: dict[int, Any] = {}
    lost, is_loose = 0, False
    stream: Any = content
    reader = StreamReader(
        stream, emit_chunks=True, validate_crcs=True, record_size_limit=len(content)
    )
    records = reader.records
    while True:
        try:
            record = next(records)
        except StopIteration:
            break
        except CRCValidationError as error:
            if is_loose:
                raise FileFormatError(
                    f"{path}: damaged; the checksum of its messages is wrong"
                ) from error
            log.notes.append(f"{path.name}: the checksum of the file is wrong")
            break
        except Exception:
            log.notes.append(
                f"{path.name} is cut or damaged: read up to byte {content.tell()} of {len(content)}"
            )
            break
        parts = _open_chunk(log, record) if isinstance(record, Chunk) else [record]
        for part in parts:
            if isinstance(part, Schema):
                schemas[part.id] = part
            elif isinstance(part, Channel):
                channels[part.id] = part
                schema = schemas.get(part.schema_id)
                log.add_topic(part.topic, schema.name if schema else "")
            elif isinstance(part, Metadata):
                yield part
            elif isinstance(part, Message):
                is_loose = is_loose or part is record
                channel = channels.get(part.channel_id)
                if channel is None:
                    lost += 1
                elif log.chosen is None or channel.topic in log.chosen:
                    yield schemas.get(channel.schema_id), channel, part
    if lost:
        log.notes.append(f"{path.name}: {lost} messages belong to no channel that is known")


def _open_chunk(log: _Collector, chunk: Any) -> list[Any]:
    """Return the records of a chunk, or none and a note if it is damaged."""
    from mcap.stream_reader import breakup_chunk

    if chunk.uncompressed_size > min(log.budget, MAX_BYTES):
        raise too_large(log.path, "a chunk", chunk.uncompressed_size)
    try:
        return list(breakup_chunk(chunk, validate_crc=True))
    except Exception as error:
        first, last = 1e-9 * chunk.message_start_time, 1e-9 * chunk.message_end_time
        log.notes.append(
            f"a damaged chunk, with messages from {first:.3f} to {last:.3f} s, is not read "
            f"({_describe(error)})"
        )
        return []


def make_mcap_decoder(path: Path, channel: Any, schema: Any) -> Decoder | str:
    """Return the decoder for the messages of a channel, or the reason why there is none.

    Args:
        path: The file, for errors.
        channel: Record of the channel.
        schema: Record of its schema, None where it has none.

    Raises:
        InputError: The package `rosbags` is missing.
    """
    encoding = channel.message_encoding
    if encoding == "json":
        return json.loads
    if encoding not in ("cdr", "ros1"):
        return f"messages encoded as {encoding!r} are not read"
    if schema is None:
        return f"its messages, encoded as {encoding!r}, have no schema that says their type"
    with needing(path, "ROS messages", "rosbags", "ros"):
        import rosbags.typesys  # noqa: F401
    form = "ros2idl" if schema.encoding == "ros2idl" else "ros2msg" if schema.data else ""
    return _make_decoder(encoding, form, schema.data.decode(errors="replace"), schema.name)


def _make_decoder(
    encoding: str, form: str, definition: str, name: str, digest: str = ""
) -> Decoder | str:
    """Return the decoder of a type of message, or the reason why there is none.

    Args:
        encoding: "ros1" or "cdr".
        form: "ros2msg", "ros2idl", or "" without a definition.
        definition: Text of the definition, of ROS 1 or 2.
        name: Of the type.
        digest: Hash of the definition, "" if it is not known.
    """
    from rosbags.typesys import Stores, get_types_from_idl, get_types_from_msg, get_typestore

    if name.count("/") == 1:
        name = name.replace("/", "/msg/")
    store = get_typestore(Stores.EMPTY if form else Stores.LATEST)
    try:
        if form == "ros2idl":
            for part in definition.split("=" * 80 + "\n"):
                text = part.partition("\n")[2] if part.startswith("IDL: ") else part
                if text.strip():
                    store.register(get_types_from_idl(text))
        elif form:
            store.register(get_types_from_msg(definition, name))
        if name not in store.fielddefs:
            return f"its type {name} has no definition in the file, and is not known"
        if form and digest:
            known = (
                store.generate_msgdef(name)[1] if encoding == "ros1" else store.hash_rihs01(name)
            )
            if known != digest:
                return f"the definition of its type {name} is damaged"
    except Exception as error:  # parsers of definitions raise nearly anything
        return f"the definition of its type {name} cannot be used ({_describe(error)})"
    read = store.deserialize_cdr if encoding == "cdr" else store.deserialize_ros1
    return lambda data: read(data, name)
