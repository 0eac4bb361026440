"""SHA-256 digests of bytes and of files, by which contents are recognised."""

from __future__ import annotations

import hashlib
import os
import sys

SHORT_DIGITS = 32
"""Hexadecimal digits of a digest in a journal: 128 bits, which two contents do not share by chance.
A choice."""
_CHUNK_BYTES = 2**20
"""Bytes of a file that are in memory at a time while it is hashed. A choice."""


def hash_bytes(content: bytes | bytearray) -> str:
    """Return the SHA-256 of bytes, in 64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def hash_file(path: str | os.PathLike[str], size: int | None = None) -> str:
    """Return the SHA-256 of a file or of its start, in 64 hexadecimal digits.

    Args:
        path: The file.
        size: Number of bytes that are hashed, from the start of the file. All bytes if None, or if
            the file is shorter.

    Raises:
        OSError: The file cannot be read.
    """
    digest, remaining = hashlib.sha256(), sys.maxsize if size is None else size
    with open(path, "rb") as file:
        while remaining > 0 and (chunk := file.read(min(remaining, _CHUNK_BYTES))):
            digest.update(chunk)
            remaining -= len(chunk)
    return digest.hexdigest()
