"""MCAP files with messages of ROS 1, ROS 2 or JSON, through the package `mcap`.

A file is read by its index. Where the index is missing or damaged, all records are read in their
order up to the first damage.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.logs.message_collector import MessageCollector, find_size_limit
from hybridctl.logs.message_decoders import Decoder, describe_decoding_error, make_mcap_decoder
from hybridctl.logs.raw import HEADER, RawLog
from hybridctl.logs.read_errors import MAX_BYTES, describe_excess, require_package

MCAP_MAGIC = b"\x89MCAP0\r\n"
"""First bytes of an MCAP file or stream."""


def read_mcap(path: Path, chosen: Collection[str] | None) -> RawLog:
    """Return the messages of an MCAP file, with notes of those that cannot be read.

    Checksums are verified where the file has them.

    Args:
        path: The file.
        chosen: Topics that are decoded; None for all.

    Raises:
        FileFormatError: Nothing can be read, or the content is too large.
        InputError: The package `mcap` or `rosbags` is missing, or a stamp is out of range.
    """
    log = MessageCollector(path, chosen, find_size_limit(path))
    collect_mcap_messages(log, path)
    return log.make_log("mcap")


def collect_mcap_messages(log: MessageCollector, path: Path) -> None:
    """Add the messages of one MCAP file to a collector.

    Args:
        log: Collector of the log to which the file belongs.
        path: The file.

    Raises:
        FileFormatError: The content is too large, or checksums of messages are wrong.
        InputError: The package `mcap` or `rosbags` is missing.
    """
    with require_package(log.path, "MCAP", "mcap", "ros"):
        import mcap.reader  # noqa: F401
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        part = log.start_part()
        try:
            _collect_records(part, _read_by_index(part, content))
        except (FileFormatError, InputError):
            raise
        except Exception:  # of any type; the scan finds out how far the file can be read
            part = log.start_part()
            content.seek(0)
            _collect_records(part, _scan_records(part, content, path))
    log.merge(part)


def _collect_records(log: MessageCollector, records: Iterable[Any]) -> None:
    """Add the messages and the header in records of MCAP to a collector.

    Args:
        log: The collector.
        records: Metadata records, and tuples of schema, channel and message.
    """
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


def _read_by_index(log: MessageCollector, content: mmap) -> Iterator[Any]:
    """Yield the records that the index of a file names.

    Args:
        log: Collector with path, chosen topics and budget; topics are added to it.
        content: The file, of which only the parts that the index names are read.

    Yields:
        A metadata record of the package `mcap`, or a tuple of schema, channel and message.

    Raises:
        FileFormatError: A chunk declares more bytes than may be read.
        LookupError: The file has no index of chunks.
        Exception: The mcap package raises errors of its own on a damaged index.
    """
    from mcap.reader import SeekingReader

    stream: Any = content  # a damaged record cannot make it allocate more than the file has
    reader = SeekingReader(stream, validate_crcs=True, record_size_limit=len(content))
    summary = reader.get_summary()
    if summary is None or not summary.chunk_indexes:
        raise LookupError("no index of chunks")
    declared = max(chunk.uncompressed_size for chunk in summary.chunk_indexes)
    if declared > min(log.budget, MAX_BYTES):
        raise FileFormatError(describe_excess(log.path, "a chunk", declared))
    for channel in summary.channels.values():
        schema = summary.schemas.get(channel.schema_id)
        log.add_topic(channel.topic, schema.name if schema else "")
    yield from reader.iter_metadata()
    yield from reader.iter_messages(log.chosen, log_time_order=False)


def _scan_records(log: MessageCollector, content: mmap, path: Path) -> Iterator[Any]:
    """Yield the records of a file in their order, up to the first damage outside of chunks.

    A chunk that is damaged within is left out.

    Args:
        log: Collector whose notes are extended by what is lost.
        content: The bytes of the file.
        path: The file, for errors and notes.

    Yields:
        A metadata record of the package `mcap`, or a tuple of schema, channel and message.

    Raises:
        FileFormatError: The checksum of messages outside of chunks is wrong.
    """
    from mcap.records import Channel, Chunk, Message, Metadata, Schema
    from mcap.stream_reader import CRCValidationError, StreamReader

    schemas: dict[int, Any] = {}
    channels: dict[int, Any] = {}
    lost_count, has_loose_messages = 0, False
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
            # It is of all bytes outside of chunks, which have checksums of their own. Messages
            # among those bytes may be the damaged ones, and have been yielded already.
            if has_loose_messages:
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
                has_loose_messages = has_loose_messages or part is record
                channel = channels.get(part.channel_id)
                if channel is None:
                    lost_count += 1
                elif log.chosen is None or channel.topic in log.chosen:
                    yield schemas.get(channel.schema_id), channel, part
    if lost_count:
        log.notes.append(f"{path.name}: {lost_count} messages belong to no channel that is known")


def _open_chunk(log: MessageCollector, chunk: Any) -> list[Any]:
    """Return the records of a chunk; none, with a note in the collector, if it is damaged.

    Args:
        log: Collector with the budget, whose notes are extended.
        chunk: Record of the chunk.

    Raises:
        FileFormatError: The chunk declares more bytes than may be read.
    """
    from mcap.stream_reader import breakup_chunk

    if chunk.uncompressed_size > min(log.budget, MAX_BYTES):
        raise FileFormatError(describe_excess(log.path, "a chunk", chunk.uncompressed_size))
    try:
        return list(breakup_chunk(chunk, validate_crc=True))
    except Exception as error:
        first, last = 1e-9 * chunk.message_start_time, 1e-9 * chunk.message_end_time
        log.notes.append(
            f"a damaged chunk, with messages from {first:.3f} to {last:.3f} s, is not read "
            f"({describe_decoding_error(error)})"
        )
        return []
