"""The encoding of text files: UTF-8, UTF-16, or Latin-1."""

from __future__ import annotations

import codecs
import re
from pathlib import Path

from hybridctl.base.errors import FileFormatError

_HEAD_BYTES = 65536
"""Bytes of a file by which its encoding is found."""
_UTF16_BYTES = 64
"""First bytes by which UTF-16 without a mark is known: names and numbers are plain characters."""
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f]")
"""Bytes that no text has: control characters other than ends of lines, tabs and form feeds."""
_BOMS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16", codecs.BOM_UTF8: "utf-8-sig"}
"""Encoding by the mark at the beginning of a file."""


def find_encoding(head: bytes) -> str | None:
    """Return the encoding of text by its first bytes; None if they are no text.

    UTF-16 without a mark is known by the zero bytes of its first, plain characters. Text that is
    not UTF-8 is taken as Latin-1, in which every byte is a character. UTF-32 is not read.

    Args:
        head: First bytes of a file, which may end within a character.
    """
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return None
    for bom, encoding in _BOMS.items():
        if head.startswith(bom):
            return encoding
    start = head[:_UTF16_BYTES]
    if len(start) >= 8 and b"\0" in start:
        for first, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
            zeros, plain = start[first::2], start[1 - first :: 2]
            if not zeros.strip(b"\0") and b"\0" not in plain and not _CONTROL.search(plain):
                return encoding
    if _CONTROL.search(head):
        return None
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # its last character may be cut
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8"


def decode_text(path: Path) -> tuple[str, list[str]]:
    """Return the text of a file, and notes about its encoding.

    Args:
        path: The file.

    Raises:
        FileFormatError: The first bytes have control characters, or the text has zero bytes.
    """
    content = path.read_bytes()
    encoding = find_encoding(content[:_HEAD_BYTES])
    text: str | None = None
    if encoding == "utf-8":
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError:
            encoding = "latin-1"  # bytes behind the first ones are not UTF-8
    if encoding is None:
        raise FileFormatError(f"{path}: a text file with control characters in it, so damaged")
    is_latin = encoding == "latin-1"
    notes = ["the text is not UTF-8 and is read as Latin-1"] if is_latin else []
    text = content.decode(encoding) if text is None else text
    if "\0" in text:
        raise FileFormatError(f"{path}: a text file with zero bytes in it, so damaged")
    return text, notes
