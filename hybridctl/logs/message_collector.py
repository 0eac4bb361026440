"""The messages of one bag or MCAP file, collected topic by topic within a limit of size.

Topics, channels, messages and files that cannot be read are named in notes; everything else is
kept.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.logs.message_decoders import Decoder, describe_decoding_error
from hybridctl.logs.raw import RawLog
from hybridctl.logs.topic_table import CollectedTopic

_LARGEST_COMPRESSION = 1000
"""Largest size of the content relative to that of the file: messages compress less than that."""


def find_size_limit(path: Path) -> int:
    """Return the largest size in bytes that the content of a file or folder may have."""
    files = path.iterdir() if path.is_dir() else [path]
    return _LARGEST_COMPRESSION * sum(f.stat().st_size for f in files if f.is_file())


@dataclass
class MessageCollector:
    """Collects the messages of the files of one log.

    Life cycle: readers call `add_topic` and `add_message`, or merge the collector of one file by
    `merge`; then `make_log` is called once.

    Attributes:
        path: The log.
        chosen: Topics that are decoded; None for all.
        budget: Number of bytes of content that may still be added.
        topics: Messages by topic.
        unread: Reasons why messages of a topic have no decoder, by topic. Its other messages, of
            another channel or file, may have one.
        failures: Reasons why single messages are not decoded, by topic.
        notes: What else is not read, one sentence each.
        native: Header of a log that hybridctl wrote; None for any other.
    """

    path: Path
    chosen: Collection[str] | None
    budget: int
    topics: dict[str, CollectedTopic] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    failures: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    native: dict[str, Any] | None = None

    def add_topic(self, name: str, kind: str) -> None:
        """Add a topic that has no messages yet, or set the type of one that has none.

        Args:
            name: The topic.
            kind: The type of its messages; empty if it is not known.
        """
        topic = self.topics.setdefault(name, CollectedTopic(name, kind))
        topic.kind = topic.kind or kind

    def add_message(self, name: str, stamp: int, data: bytes, decode: Decoder | str) -> None:
        """Decode and add a message of a topic, or the reason why it cannot be decoded.

        Args:
            name: Its topic, which has been added.
            stamp: Time in ns at which it was recorded.
            data: Its bytes.
            decode: Its decoder, or the reason why there is none.

        Raises:
            FileFormatError: The content is too large for this file.
        """
        self._reduce_budget(len(data) + 1)  # so that empty messages are limited, too
        if isinstance(decode, str):
            self.unread[name] = decode
            return
        try:
            message = decode(data)
        except Exception as error:  # decoders raise nearly anything on damaged bytes
            self.failures.setdefault(name, []).append(describe_decoding_error(error))
            return
        self.topics[name].add(stamp, message)

    def _reduce_budget(self, size: int) -> None:
        """Subtract bytes from the budget.

        Args:
            size: Number of bytes.

        Raises:
            FileFormatError: The budget is exceeded.
        """
        self.budget -= size
        if self.budget < 0:
            raise FileFormatError(
                f"{self.path}: the content is more than {find_size_limit(self.path)} bytes, the "
                f"limit of {_LARGEST_COMPRESSION} times the size of the file"
            )

    def start_part(self) -> MessageCollector:
        """Return an empty collector for one file of this log, with the same choice and budget."""
        return MessageCollector(self.path, self.chosen, self.budget)

    def merge(self, part: MessageCollector) -> None:
        """Add the messages, reasons and notes of one file, and take over its budget.

        Args:
            part: Collector that `start_part` made.
        """
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
        """Number of messages that have a decoder, whether they could be decoded or not."""
        failed = sum(len(reasons) for reasons in self.failures.values())
        return sum(len(topic.rows) for topic in self.topics.values()) + failed

    def make_log(self, kind: str) -> RawLog:
        """Return the tables of all topics, with notes of what is left out.

        Args:
            kind: Format of the file, a key of `hybridctl.logs.readers.FORMATS`.

        Raises:
            FileFormatError: There is no message that can be read, and no chosen topic is missing.
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
        unread = {name: why for name, why in self.unread.items() if not self.topics[name].rows}
        for name, why in self.unread.items():
            what = f"topic {name} is" if name in unread else f"some messages of topic {name} are"
            self.notes.append(f"{what} not read: {why}")
        read = {name: topic for name, topic in self.topics.items() if name not in unread}
        # Where a chosen topic is missing, the mapping's error names it, with the topics of the log.
        has_chosen = self.chosen is None or set(self.chosen) <= set(self.topics)
        if has_chosen and not any(topic.rows for topic in read.values()):
            because = f": {'; '.join(self.notes)}" if self.notes else ""
            raise FileFormatError(f"{self.path}: no messages that can be read{because}")
        last = np.iinfo(np.int64).max
        for topic in read.values():
            if any(not 0 <= stamp <= last for stamp in topic.stamps):
                raise InputError(f"{self.path}: a stamp of topic {topic.name} is out of range")
        tables = {name: topic.make_table() for name, topic in read.items()}
        return RawLog(self.path, kind, tables, self.native, self.notes, unread)
