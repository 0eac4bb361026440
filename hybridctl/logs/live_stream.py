"""Messages of a live stream of JSON lines or of MCAP, each as soon as it has arrived.

A stream that begins with the magic bytes of MCAP is read as MCAP. Its messages that are encoded as
JSON are samples, like lines. Messages of topics that the mapping names, in ROS's encodings, are
decoded by the schemas in the stream, as in a file (see `message_decoders`). All others are ignored.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.logs.mcap_files import MCAP_MAGIC
from hybridctl.logs.message_decoders import Decoder, make_mcap_decoder
from hybridctl.logs.read_errors import require_package

LONGEST_LINE = 2**20
"""Largest size in bytes of a line that comes whole: enough for hundreds of joints.

A longer line comes in pieces of at most this size, as messages of their own, so that a sender
without ends of lines does not fill the memory.
"""
_LARGEST_RECORD = 2**26
"""Largest size of a record of MCAP in bytes; recorders make chunks, which are records, of some MB.
"""
_SHOWN_TOPICS = 8
"""Topics that an error lists."""


class LiveMessage(NamedTuple):
    """A message with the text of a sample.

    Attributes:
        text: What was sent: the message of MCAP, the line with its end, or a piece of a line that
            is too long. Whether it is a JSON object is not checked here.
        time: Time in s at which it was logged; None for a line, which contains its time.
    """

    text: bytes
    time: float | None = None


class TopicMessage(NamedTuple):
    """An encoded message of a topic that the mapping names.

    Attributes:
        topic: The topic.
        kind: Name of the type of the message.
        stamp: Time in ns at which the message was logged.
        data: The encoded message.
        decode: Decoder of the topic.
    """

    topic: str
    kind: str
    stamp: int
    data: bytes
    decode: Decoder


def read_messages(
    stream: BinaryIO,
    topics: Collection[str] = (),
    warn: Callable[[str], None] = lambda text: None,
) -> Iterator[LiveMessage | TopicMessage]:
    """Yield the messages of a stream of JSON lines or of MCAP, each as soon as it has arrived.

    Args:
        stream: A stream that need not be seekable, such as a pipe or a socket.
        topics: Topics whose ROS messages are wanted.
        warn: Called with a warning where MCAP ends without its last records.

    Yields:
        Lines, or messages of MCAP that hold samples or are of a wanted topic.

    Raises:
        FileFormatError: MCAP is damaged, or after its first byte the stream is no MCAP.
        InputError: A package is missing, a wanted topic cannot be decoded, or MCAP has ended
            without any message that is wanted.
        OSError: The stream cannot be read.
    """
    first = stream.read(1)
    if first == MCAP_MAGIC[:1]:  # no line of JSON begins with this byte
        yield from _read_mcap_messages(stream, topics, warn)
        return
    line = first if first == b"\n" else first + stream.readline(LONGEST_LINE - 1)
    while line:
        yield LiveMessage(line)
        line = stream.readline(LONGEST_LINE)


class _DeclaredChannels:
    """The channels that a stream of MCAP has declared so far.

    Life cycle: `add_schema` and `add_channel` are called with records as they come, `read_message`
    with those of messages, which are of declared channels.
    """

    def __init__(self, topics: Collection[str]) -> None:
        """Begin without channels; `topics` are those whose ROS messages are wanted."""
        self._topics = topics
        self._schemas = dict[int, Any]()
        self._samples = set[int]()  # channels encoded as JSON
        self._decoders = dict[int, tuple[str, str, Decoder]]()  # topic and type, by channel
        self._others = dict[str, str]()  # encodings of topics that are ignored

    def add_channel(self, channel: Any) -> None:
        """Add a channel, with a decoder if its topic is wanted.

        Args:
            channel: Record of the channel, from the package `mcap`.

        Raises:
            InputError: The topic is wanted, and its messages cannot be decoded.
        """
        if channel.message_encoding == "json":
            self._samples.add(channel.id)
            return
        if channel.topic not in self._topics:
            self._others[channel.topic] = channel.message_encoding
            return
        schema = self._schemas.get(channel.schema_id)
        decode = make_mcap_decoder(Path("the stream"), channel, schema)
        if isinstance(decode, str):
            raise InputError(
                f"topic {channel.topic!r} cannot be read: {decode}; send it in ROS's encoding with "
                "the definition of its type, as recorders of ROS 2 do"
            )
        assert schema is not None  # without a schema there is no decoder
        self._decoders[channel.id] = channel.topic, schema.name, decode

    def add_schema(self, schema: Any) -> None:
        """Add a schema from its record."""
        self._schemas[schema.id] = schema

    def read_message(self, message: Any) -> LiveMessage | TopicMessage | None:
        """Return the message in a record; None for one that is not wanted."""
        if message.channel_id in self._samples:
            return LiveMessage(message.data, message.log_time / 10**9)
        found = self._decoders.get(message.channel_id)
        if found is None:
            return None
        topic, kind, decode = found
        return TopicMessage(topic, kind, message.log_time, message.data, decode)

    def describe_lack(self) -> str:
        """Return the text of the error for a stream that ended without any wanted message."""
        others = [f"{topic} ({encoding})" for topic, encoding in self._others.items()]
        shown = ", ".join(others[:_SHOWN_TOPICS]) or "none"
        if self._topics:
            return (
                f"the stream has no message of {', '.join(map(repr, self._topics))}, which the "
                f"mapping names; its topics are {shown}: name those in `mapping`"
            )
        return (
            f"the stream has no samples as JSON; its topics are {shown}: map those by `mapping` in "
            "the robot's file, or by --mapping FILE"
        )


def _read_mcap_messages(
    stream: BinaryIO, topics: Collection[str], warn: Callable[[str], None]
) -> Iterator[LiveMessage | TopicMessage]:
    """Yield messages of MCAP, up to the end of the file or of the sender.

    The messages of a chunk come when the whole chunk has arrived.

    Args:
        stream: The stream, after its first byte.
        topics: Topics whose ROS messages are wanted.
        warn: Called with a warning where the stream ends without its last records.

    Yields:
        Messages with samples, and messages of wanted topics.

    Raises:
        FileFormatError: The stream is no MCAP, or damaged.
        InputError: A package is missing, a wanted topic cannot be decoded, or there was no message
            that is wanted.
        OSError: The stream cannot be read.
    """
    with require_package(Path("the stream"), "MCAP", "mcap", "ros"):
        from mcap.exceptions import EndOfFile
        from mcap.records import Channel, Message, Schema
        from mcap.stream_reader import StreamReader
    if stream.read(len(MCAP_MAGIC) - 1) != MCAP_MAGIC[1:]:
        raise FileFormatError("the stream is neither lines of JSON nor MCAP")
    source: Any = stream
    reader = StreamReader(
        source, skip_magic=True, validate_crcs=True, record_size_limit=_LARGEST_RECORD
    )
    records = reader.records
    channels, count = _DeclaredChannels(topics), 0
    while True:
        try:
            record = next(records, None)
        except (EndOfFile, struct.error) as error:  # the latter within the length of a record
            if stream.read(1):  # there is more behind: it is not cut here
                raise FileFormatError(f"the stream of MCAP is damaged: {error}") from error
            warn(
                f"the stream of MCAP ends without its last records, after {count} messages: the "
                "file is cut, or its sender has gone"
            )
            break
        except OSError:
            raise  # the stream itself has failed, not its content
        except Exception as error:  # its decoders raise nearly anything on damaged bytes
            raise FileFormatError(f"the stream of MCAP is damaged: {error}") from error
        if record is None:
            break
        if isinstance(record, Message):
            found = channels.read_message(record)
            if found is not None:
                count += 1
                yield found
        elif isinstance(record, Schema):
            channels.add_schema(record)
        elif isinstance(record, Channel):
            channels.add_channel(record)
    if not count:
        raise InputError(channels.describe_lack())
