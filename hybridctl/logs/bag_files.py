"""ROS 1 bags and ROS 2 bags, through the package `rosbags`; their MCAP files through `mcap_files`.

A bag is read as far as possible. Notes name the topics whose messages cannot be decoded, the parts
of a file that are damaged, and the files of a bag that are missing.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from hybridctl.base.errors import FileFormatError
from hybridctl.logs.mcap_files import collect_mcap_messages
from hybridctl.logs.message_collector import MessageCollector, find_size_limit
from hybridctl.logs.message_decoders import Decoder, describe_decoding_error, make_ros_decoder
from hybridctl.logs.raw import RawLog
from hybridctl.logs.read_errors import require_package


def read_bag(path: Path, chosen: Collection[str] | None, *, ros1: bool) -> RawLog:
    """Return the messages of a ROS 1 bag file, or of a ROS 2 bag folder or database.

    Messages are decoded by the type definitions that the bag carries; without a definition, by
    those of the latest ROS 2 distribution that `rosbags` contains. A folder without a usable
    metadata.yaml is read file by file.

    Args:
        path: The file or folder.
        chosen: Topics that are decoded; None for all.
        ros1: Whether it is a bag of ROS 1.

    Raises:
        FileFormatError: There are no messages that can be read, or the content is too large.
        InputError: The package `rosbags` or `mcap` is missing, or a stamp is out of range.
        Exception: A file cannot be opened, or not read up to the first message: any error of
            `rosbags`.
    """
    log = MessageCollector(path, chosen, find_size_limit(path))
    if ros1:
        with require_package(path, "a ROS bag", "rosbags", "ros"):
            from rosbags.rosbag1 import Reader
        _read_connections(log, Reader(path), "ros1")
        return log.make_log("rosbag1")
    if not path.is_dir():
        _read_database(log, path)
        return log.make_log("rosbag2")
    files, count = _find_bag_files(log)
    for file in files:
        if file.suffix == ".mcap":
            collect_mcap_messages(log, file)
        elif file.suffix == ".db3":
            _read_database(log, file)
        else:
            _read_compressed(log)  # all files at once
            break
    # The count is of all topics, so that it cannot be compared where some are left out.
    if count is not None and chosen is None and not log.unread and log.count != count:
        log.notes.append(f"{count} messages are declared, but {log.count} were found")
    return log.make_log("rosbag2")


def _find_bag_files(log: MessageCollector) -> tuple[list[Path], int | None]:
    """Return the files of a ROS 2 bag in their order, and the number of messages it declares.

    Args:
        log: Collector of the bag; notes of what is missing are added to it.

    Returns:
        The files and the number. Without a usable metadata.yaml: the files in the folder, in the
        order of the numbers in their names, and None.

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


def _read_compressed(log: MessageCollector) -> None:
    """Read a ROS 2 bag whose files are compressed as a whole; metadata.yaml says how."""
    with require_package(log.path, "a ROS bag", "rosbags", "ros"):
        from rosbags.rosbag2 import Reader
    _read_connections(log, Reader(log.path), "cdr")


def _read_database(log: MessageCollector, file: Path) -> None:
    """Read an SQLite file of a ROS 2 bag."""
    with require_package(log.path, "a ROS bag", "rosbags", "ros"):
        from rosbags.rosbag2 import Reader
    pending = file.with_name(f"{file.name}-wal")
    if pending.is_file() and pending.stat().st_size:
        log.notes.append(f"{pending.name} is not read: the recorder did not close {file.name}")
    with TemporaryDirectory() as folder:
        named = file
        if file.suffix != ".db3":  # rosbags chooses the reader by the suffix
            named = Path(folder) / "log.db3"
            named.symlink_to(file.resolve())
        _read_connections(log, Reader(named), "cdr")


def _read_connections(log: MessageCollector, reader: Any, encoding: str) -> None:
    """Add the messages of a reader of `rosbags` to a collector, up to the first damage.

    Args:
        log: Collector to which topics, messages and notes are added.
        reader: Reader of the package `rosbags` that is not open yet.
        encoding: Encoding of the messages: "ros1", or "cdr" for ROS 2.

    Raises:
        Exception: The reader fails before the first message, by any error of `rosbags`.
    """
    from rosbags.interfaces import MessageDefinitionFormat

    forms = {MessageDefinitionFormat.MSG: "ros2msg", MessageDefinitionFormat.IDL: "ros2idl"}
    decoders: dict[tuple[str, str], Decoder | str] = {}
    with reader:
        wanted = []
        for one in reader.connections:
            log.add_topic(one.topic, one.msgtype)  # the log lists topics that are not decoded
            if log.chosen is not None and one.topic not in log.chosen:
                continue
            wanted.append(one)
            if (one.topic, one.msgtype) not in decoders:
                form, text = forms.get(one.msgdef.format, ""), one.msgdef.data
                decoders[one.topic, one.msgtype] = make_ros_decoder(
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
                    raise  # nothing is left to be read
                log.notes.append(
                    f"damaged after {log.count} messages ({describe_decoding_error(error)})"
                )
                break
            decode = decoders[one.topic, one.msgtype]
            skipped += isinstance(decode, str)
            log.add_message(one.topic, stamp, data, decode)
        read = log.count - before + skipped
        if declared != read and not any(note.startswith("damaged") for note in log.notes):
            log.notes.append(f"{declared} messages are declared, but {read} were found")
