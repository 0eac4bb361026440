"""Files that are read where text is not given, and written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from hybridctl.errors import FileFormatError


def file_or_text(name: str, given: str | os.PathLike[str]) -> str:
    """XML that is given, or that of the file of this path; `name` is that of the argument.

    Raises `FileFormatError` for a file that cannot be read as text.
    """
    if isinstance(given, str) and "<" in given:
        return given
    try:
        return Path(given).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{name} {os.fspath(given)} cannot be read: {error}") from error


@contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary file beside `path` that replaces it when the block ends without an error.

    The temporary file keeps the suffix of `path`, for writers that choose a format by it.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.stem}-{uuid4().hex}{target.suffix}")
    try:
        temporary.touch(exist_ok=False)  # with the permissions of an ordinary new file
        yield temporary
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
