"""Decoders of the messages in bags and MCAP files, by the type definitions that files carry."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hybridctl.logs.read_errors import require_package

Decoder = Callable[[bytes], Any]
"""Function that returns the message in its bytes; it raises nearly anything on damaged bytes."""
_SHOWN_REASON = 120
"""Characters of a decoder's error that a note quotes."""


def describe_decoding_error(error: Exception) -> str:
    """Return the type and the first line of an error, or the type of message that is missing."""
    # The package rosbags raises a KeyError with the name of a type without a definition.
    if isinstance(error, KeyError) and "/msg/" in str(error):
        return f"{error} is not defined in the file"
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:_SHOWN_REASON]}" if lines else type(error).__name__


def make_mcap_decoder(path: Path, channel: Any, schema: Any) -> Decoder | str:
    """Return the decoder for the messages of a channel of MCAP.

    Args:
        path: The file, for errors.
        channel: Record of the channel, from the package `mcap`.
        schema: Record of its schema; None where it has none.

    Returns:
        The decoder, or the reason why there is none.

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
    with require_package(path, "ROS messages", "rosbags", "ros"):
        import rosbags.typesys  # noqa: F401
    form = "ros2idl" if schema.encoding == "ros2idl" else "ros2msg" if schema.data else ""
    return make_ros_decoder(encoding, form, schema.data.decode(errors="replace"), schema.name)


def make_ros_decoder(
    encoding: str, form: str, definition: str, name: str, digest: str = ""
) -> Decoder | str:
    """Return the decoder for a type of ROS messages.

    Types without a definition are those of the latest ROS 2 distribution that `rosbags` contains.

    Args:
        encoding: Encoding of the messages: "ros1", or "cdr" for ROS 2.
        form: Language of the definition: "ros2msg", "ros2idl", or empty without a definition.
        definition: Text of the definition.
        name: Name of the type.
        digest: Hash of the definition, which is checked; empty if it is not known.

    Returns:
        The decoder, or the reason why there is none.
    """
    from rosbags.typesys import Stores, get_types_from_idl, get_types_from_msg, get_typestore

    if name.count("/") == 1:  # as ROS 1 names types
        name = name.replace("/", "/msg/")
    store = get_typestore(Stores.EMPTY if form else Stores.LATEST)
    try:
        if form == "ros2idl":
            # Definitions of several types stand in one text, each under a line "IDL: name".
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
        return (
            f"the definition of its type {name} cannot be used ({describe_decoding_error(error)})"
        )
    read = store.deserialize_cdr if encoding == "cdr" else store.deserialize_ros1
    return lambda data: read(data, name)
