"""Messages of a live stream, JSON lines or MCAP, each as soon as it is there.

A stream that begins with the magic bytes of MCAP is one. Its messages that are encoded as JSON are
samples, as lines are. Those of topics that the mapping names, in ROS's encodings, are decoded by
the schemas that the stream carries, as those of a file are (see `bag_files`). Others are passed
over.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.logs.bag_files import Decoder, make_mcap_decoder
from hybridctl.logs.raw import needing

LONGEST_LINE = 2**20
"""Bytes of a line: hundreds of joints.

A sender without ends of lines must not fill the memory.
"""
_LARGEST_RECORD = 2**26
"""Bytes of a record of MCAP; a chunk is one, and recorders make chunks of some megabytes."""
_MAGIC = b"\x89MCAP0\r\n"
"""First bytes of MCAP, of which no line of JSON begins with the first."""
_SHOWN_TOPICS = 8
"""Topics that an error lists."""


class LiveMessage(NamedTuple):
    """The text of a sample.

    Attributes:
        text: A JSON object.
        time: Time in s at which it was logged; None for a line, which has one of its own.
    """

    text: bytes
    time: float | None = None


class TopicMessage(NamedTuple):
    """A message of a topic that the mapping names.

    Attributes:
        topic: Its topic.
        kind: The name of its type.
        stamp: Time in ns at which it was logged.
        data: Its bytes.
        decode: Its decoder.
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
    """Yield the messages of a stream of JSON lines or of MCAP, each as soon as it is there.

    Args:
        stream: A stream that need not be seekable, such as a pipe or a socket.
        topics: Topics whose ROS messages are wanted.
        warn: Is called with what is lost of MCAP that is cut.

    Raises:
        FileFormatError: MCAP is damaged.
        InputError: A package is missing, a wanted topic cannot be decoded, or MCAP has ended
            without any message that is wanted.
    """
    first = stream.read(1)
    if first == _MAGIC[:1]:
        yield from _read_mcap_messages(stream, topics, warn)
        return
    line = first if first == b"\n" else first + stream.readline(LONGEST_LINE)
    while line:
        yield LiveMessage(line)
        line = stream.readline(LONGEST_LINE)


class _Channels:
    """The channels of a stream of MCAP, as far as they have been declared.

    Life cycle: `add` takes records of schemas and channels, `read` those of messages.
    """

    def __init__(self, topics: Collection[str]) -> None:
        self._topics = topics
        self._schemas = dict[int, Any]()
        self._samples = set[int]()  # channels encoded as JSON
        self._decoders = dict[int, tuple[str, str, Decoder]]()  # topic and type, by channel
        self._others = dict[str, str]()  # encoding by topic that is passed over

    def add_channel(self, channel: Any) -> None:
        """Take a record of a channel; raises `InputError` for one that cannot be decoded."""
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
        assert schema is not None  # or there is no decoder
        self._decoders[channel.id] = channel.topic, schema.name, decode

    def add_schema(self, schema: Any) -> None:
        """Take a record of a schema."""
        self._schemas[schema.id] = schema

    def read(self, message: Any) -> LiveMessage | TopicMessage | None:
        """Return the message in a record, None for one that is passed over."""
        if message.channel_id in self._samples:
            return LiveMessage(message.data, message.log_time / 10**9)
        found = self._decoders.get(message.channel_id)
        if found is None:
            return None
        topic, kind, decode = found
        return TopicMessage(topic, kind, message.log_time, message.data, decode)

    def describe_lack(self) -> str:
        """Return the error of a stream that ended without any message that is wanted."""
        shown = ", ".join(f"{t} ({encoding})" for t, encoding in self._others.items())
        shown = ", ".join(shown.split(", ")[:_SHOWN_TOPICS]) or "none"
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
    """Yield messages of MCAP after the first byte, up to the end of the file or of the sender.

    Those of a chunk come when it is there as a whole.

    Args:
        stream: The stream.
        topics: Topics whose ROS messages are wanted.
        warn: Is called with what is lost of a stream that is cut.
    """
    with needing(Path("the stream"), "MCAP", "mcap", "ros"):
        from mcap.exceptions import EndOfFile
        from mcap.records import Channel, Message, Schema
        from mcap.stream_reader import StreamReader
    if stream.read(len(_MAGIC) - 1) != _MAGIC[1:]:
        raise FileFormatError("the stream is neither lines of JSON nor MCAP")
    source: Any = stream
    reader = StreamReader(
        source, skip_magic=True, validate_crcs=True, record_size_limit=_LARGEST_RECORD
    )
    records = reader.records
    channels, count = _Channels(topics), 0
    while True:
        try:
            record = next(records, None)
        except (EndOfFile, struct.error) as error:  # the latter in the length of a record
            if stream.read(1):
                raise FileFormatError(f"the stream of MCAP is damaged: {error}") from error
            warn(
                f"the stream of MCAP ends without its last records, after {count} messages: the "
                "file is cut, or its sender has gone"
            )
            break
        except OSError:
            raise  # of the stream
        except Exception as error:  # its decoders raise nearly anything on damaged bytes
            raise FileFormatError(f"the stream of MCAP is damaged: {error}") from error
        if record is None:
            break
        if isinstance(record, Message):
            found = channels.read(record)
            if found is not None:
                count += 1
                yield found
        elif isinstance(record, Schema):
            channels.add_schema(record)
        elif isinstance(record, Channel):
            channels.add_channel(record)
    if not count:
        raise InputError(channels.describe_lack())
