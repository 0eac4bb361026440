"""Files read, or written whole or not at all; arrays in JSON."""

from __future__ import annotations

import json
import os
import stat
import zipfile
import zlib
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.errors import FileFormatError, FileWriteError, InputError
from hybridctl.base.run_store import store_of

MOST_TEXT = 16 * 2**20  # bytes of a URDF or of JSON
_CUT_OFF = (EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error)
_GARBLED = (*_CUT_OFF, IndexError, KeyError, TypeError, ValueError)  # raised by what reads it
MOST_BYTES = 4 * 2**30  # of arrays that were packed


def file_or_text(name: str, given: str | os.PathLike[str]) -> str:
    """XML that is given, or that of the file of this path; `name` is that of the argument.

    Raises `FileFormatError` for a file that cannot be read as text, `InputError` for neither.
    """
    if not isinstance(given, str | os.PathLike):  # a number would be read as an open file
        raise InputError(f"{name} must be a path, or the text of a file, got {given!r:.100}")
    text = given if isinstance(given, str) and "<" in given else read_text(name, given)
    if "<!ENTITY" in text:
        raise FileFormatError(f"{name} must not define entities, which can be of any size")
    return text


def packaged_file(package: str, file: str) -> Path:
    """Return the path of a file that an installed package has brought.

    Args:
        package: Name of the package, as `pip install` takes it.
        file: End of the file's path, with `/` between its parts.

    Raises:
        FileFormatError: The package is not installed, or does not have such a file.
    """
    try:
        files = distribution(package).files or ()
    except PackageNotFoundError as error:
        raise FileFormatError(
            f"{file} is in the package {package}, which is not installed: pip install {package}"
        ) from error
    for path in files:
        if str(path).endswith(f"/{file}"):
            return Path(str(path.locate()))
    raise FileFormatError(f"the package {package} has no file {file}")


def read_text(name: str, path: str | os.PathLike[str], most: int = MOST_TEXT) -> str:
    """The text of a regular file of at most so many bytes; `name` is that of the argument.

    Raises `FileFormatError` for what cannot be read, for a device or a pipe, which may not end, for
    a file that is larger, and for what is no UTF-8.
    """
    try:
        if not Path(path).is_file():
            os.stat(path)  # says why there is none
            raise FileFormatError(f"{name} {os.fspath(path)} cannot be read: it is no regular file")
        with open(path, "rb") as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise FileFormatError(f"{name} {os.fspath(path)} has more than {most} bytes")
        return content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{name} {os.fspath(path)} cannot be read: {error}") from error


def why_not_private(status: os.stat_result) -> str:
    """Return why others than this user could change a file or a folder.

    Windows has no such owners and modes: there it is "" always. Root can change everything, and
    whoever can write a folder above this one can put another in its place: neither is looked at.

    Args:
        status: Status of the file or folder, as `os.stat` returns it.

    Returns:
        The reason as the end of a sentence, "" if others cannot.
    """
    if os.name != "posix":
        return ""
    if status.st_uid != os.geteuid():
        return "belongs to another user"
    # Access lists that let others write show as the right of the group.
    return "can be written by others" if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


def read_private(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a regular file that only this user can write.

    The file is opened once, so that what is looked at is what is read.

    Args:
        path: The file.

    Raises:
        OSError: The file cannot be read, is a link or no regular file, belongs to another user, or
            can be written by others.
    """
    # Not to wait for who writes to a pipe. Windows has neither of the last two.
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0)
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with open(os.open(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is no regular file")
        reason = why_not_private(status)
        if reason:
            raise OSError(f"it {reason}")
        return file.read()


def save_arrays(
    path: str | os.PathLike[str], header: Mapping[str, Any], arrays: Mapping[str, Any]
) -> None:
    """Write a header, which JSON can hold, and arrays to an NPZ file, atomically."""
    with atomic(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, header=json.dumps(header), **arrays)


@contextmanager
def saved_arrays(path: str | os.PathLike[str], what: str, version: int) -> Iterator[Any]:
    """The header and the arrays that `save_arrays` wrote; nothing is unpickled.

    Raises `FileFormatError` for what cannot be opened, for contents of more than `MOST_BYTES`, for
    another version of the header's "format", and where what is read of it in the block is not
    there: it is no saved `what`.
    """
    try:
        if not Path(path).is_file():
            os.stat(path)  # says why there is none
            raise FileFormatError(f"{path} is no regular file")
        with zipfile.ZipFile(path) as archive:
            size = sum(info.file_size for info in archive.infolist())
        if size > MOST_BYTES:
            raise FileFormatError(f"{path} would unpack to {size} bytes, the limit is {MOST_BYTES}")
        with np.load(path, allow_pickle=False) as data:
            header = json.loads(str(data["header"]))
            if header["format"] != version:
                raise FileFormatError(
                    f"{path} has format {header['format']!r}, this version reads {version}"
                )
            yield header, data
    except InputError:
        raise
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error}") from error
    except _GARBLED as error:
        raise FileFormatError(f"{path} is not a saved {what}: {error}") from error


@contextmanager
def atomic(path: str | os.PathLike[str], *, grows: bool = False) -> Iterator[Path]:
    """Yield a temporary file beside `path` that replaces it when the block ends without an error.

    The temporary file keeps the suffix of `path`, for writers that choose a format by it. In the
    folder of an open run the file is listed as one of that run before it appears.

    Args:
        path: File to write; folders on the way to it are made.
        grows: Whether lines are going to be appended to the file later.

    Raises:
        FileWriteError: The system does not write it, or `path` lies in the folder of an open run
            and is a file that this run has not written.
    """
    target = Path(path)
    if not target.name or target.is_dir():
        raise FileWriteError(f"{target} cannot be written: it is a folder")
    temporary = target.with_name(f".{target.stem}-{uuid4().hex}{target.suffix}")
    store = store_of(target)
    try:
        if store is not None:
            store.announce(target, temporary)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.touch(exist_ok=False)  # with the permissions of an ordinary new file
            yield temporary
            if store is not None:
                store.list_file(target, temporary, grows)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    except FileWriteError:
        raise
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise FileWriteError(f"{target} cannot be written: {reason}") from error


def packed(values: ArrayLike) -> dict[str, Any]:
    """An array for JSON that is drawn: its shape, and 32-bit numbers, little-endian, in base64."""
    array = np.asarray(values, dtype="<f4")
    return {"shape": list(array.shape), "float32": b64encode(array.tobytes()).decode("ascii")}
