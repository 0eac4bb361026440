"""Reading of files that may be anything, and writing of files whole or not at all.

Errors of the system become `FileFormatError` when a file is read and `FileWriteError` when one is
written, so that a caller has one class to catch. `read_private` alone raises `OSError`.
"""

from __future__ import annotations

import json
import os
import stat
import zipfile
import zlib
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path, PurePath
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import check_path
from hybridctl.base.errors import FileFormatError, FileWriteError, InputError
from hybridctl.base.run_store import find_store

MAX_TEXT_BYTES = 16 * 2**20
"""Most bytes of a text file, such as a URDF or JSON. Large ones have 1 MiB. A choice."""
MAX_ARRAY_BYTES = 4 * 2**30
"""Most bytes to which a file of arrays may unpack: a small file may claim any size. A choice."""
_MALFORMED = (
    *(EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error),
    *(IndexError, KeyError, TypeError, ValueError),
)
"""Errors for a file that is no whole archive, and for one that does not hold what is asked for."""


def read_file_or_text(name: str, given: str | os.PathLike[str]) -> str:
    """Return XML that is given itself, or as the path of a file.

    Args:
        name: Name of the argument, for errors.
        given: Text that contains "<", or a path.

    Raises:
        FileFormatError: The file cannot be read as text, or the XML defines entities.
        InputError: The argument is neither a text nor a path.
    """
    if not isinstance(given, str | os.PathLike):  # `open` would take a number as an open file
        raise InputError(f"{name} must be a path, or the text of a file, got {given!r:.100}")
    text = given if isinstance(given, str) and "<" in given else read_text(name, given)
    if "<!ENTITY" in text:
        raise FileFormatError(f"{name} must not define entities, which can be of any size")
    return text


def find_packaged_file(package: str, file: str) -> Path:
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


def find_named_files(settings: Any) -> dict[str, Path]:
    """Return the files that settings name, by the text that names each.

    Args:
        settings: Text, a path, or mappings, lists and tuples of them. Text that is the path of a
            regular file, from the working directory on, names it. Keys of mappings do not, and
            fields of other objects are not looked at.
    """
    if isinstance(settings, str | PurePath):
        # A text may be no path: too long, or with a zero byte in it.
        with suppress(OSError, ValueError):
            if str(settings) and Path(settings).is_file():
                return {str(settings): Path(settings)}
        return {}
    if not isinstance(settings, Mapping | list | tuple):
        return {}
    entries = settings.values() if isinstance(settings, Mapping) else settings
    return {text: path for entry in entries for text, path in find_named_files(entry).items()}


def read_text(name: str, path: str | os.PathLike[str], max_bytes: int = MAX_TEXT_BYTES) -> str:
    """Return the text of a file in UTF-8, without a byte order mark.

    Args:
        name: Name of the argument that gave the path, for errors.
        path: The file.
        max_bytes: Most bytes that the file may have.

    Raises:
        FileFormatError: The file cannot be read, is no regular file (a device or a pipe may not
            end), is larger than `max_bytes`, or is no UTF-8.
        InputError: The argument is no path.
    """
    check_path(name, path)
    try:
        if not Path(path).is_file():
            os.stat(path)  # its error says why there is none
            raise FileFormatError(f"{name} {os.fspath(path)} cannot be read: it is no regular file")
        with open(path, "rb") as file:
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise FileFormatError(f"{name} {os.fspath(path)} has more than {max_bytes} bytes")
        return content.decode("utf-8-sig")
    except FileFormatError:  # it is a ValueError, too
        raise
    except (OSError, ValueError) as error:  # a ValueError: no UTF-8, or a zero byte in the path
        raise FileFormatError(f"{name} {os.fspath(path)} cannot be read: {error}") from error


def find_privacy_fault(status: os.stat_result) -> str:
    """Return why users other than this one could change a file or a folder.

    Root can change everything, and whoever can write a folder above this one can put another in
    its place. Neither is looked at. On Windows, without such owners and modes, the answer is "".

    Args:
        status: Status of the file or folder, as `os.stat` returns it.

    Returns:
        The reason as the end of a sentence, such as "belongs to another user"; "" if others cannot.
    """
    if os.name != "posix":
        return ""
    if status.st_uid != os.geteuid():
        return "belongs to another user"
    # Access lists that let others write show as the right of the group.
    return "can be written by others" if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


def read_private(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a regular file that only this user can write.

    The file is opened once, so that its owner and mode are those of the content that is read.

    Args:
        path: The file.

    Raises:
        OSError: The file cannot be read, is a link or no regular file, belongs to another user, or
            can be written by others.
    """
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0)
    # Opening a pipe would wait for a writer without O_NONBLOCK. Windows has neither of these.
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with open(os.open(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is no regular file")
        if reason := find_privacy_fault(status):
            raise OSError(f"it {reason}")
        return file.read()


def save_arrays(
    path: str | os.PathLike[str], header: Mapping[str, Any], arrays: Mapping[str, Any]
) -> None:
    """Write a header and arrays to an NPZ file, whole or not at all.

    Args:
        path: The file.
        header: Content for JSON, with the version of the format under "format".
        arrays: Arrays by name, other than "header".

    Raises:
        FileWriteError: The file cannot be written, see `atomic`.
    """
    with atomic(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, header=json.dumps(header), **arrays)


@contextmanager
def open_arrays(path: str | os.PathLike[str], what: str, version: int) -> Iterator[Any]:
    """Yield the header and the arrays that `save_arrays` wrote. Nothing is unpickled.

    What is wrong with the content shows only when it is read. Therefore errors such as a `KeyError`
    that the `with` block raises become `FileFormatError`, too.

    Args:
        path: The file.
        what: What the file should hold, for errors, such as "run".
        version: The one version of the header's "format" that is accepted.

    Yields:
        The header, and a mapping of names to arrays, which are read when they are asked for.

    Raises:
        FileFormatError: The file cannot be read, would unpack to more than `MAX_ARRAY_BYTES`, has
            another version, or does not hold what the block asks for.
        InputError: The argument is no path; or the block raises one, for content that it checks
            itself.
    """
    check_path("path", path)
    try:
        if not Path(path).is_file():
            os.stat(path)  # its error says why there is none
            raise FileFormatError(f"{path} is no regular file")
        with zipfile.ZipFile(path) as archive:
            size = sum(info.file_size for info in archive.infolist())
        if size > MAX_ARRAY_BYTES:
            raise FileFormatError(
                f"{path} would unpack to {size} bytes, the limit is {MAX_ARRAY_BYTES}"
            )
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
    except _MALFORMED as error:
        raise FileFormatError(f"{path} is not a saved {what}: {error}") from error


@contextmanager
def atomic(path: str | os.PathLike[str], *, grows: bool = False) -> Iterator[Path]:
    """Yield a temporary file beside `path` that replaces it when the block ends without an error.

    The temporary file keeps the suffix of `path`, for writers that choose a format by it. In the
    folder of an open run the file is listed as one of that run before it appears.

    Args:
        path: File to write; folders on the way to it are made.
        grows: Whether lines are going to be appended to the file later.

    Yields:
        The path of the temporary file, which is empty. It is removed if the block fails.

    Raises:
        FileWriteError: The system does not write it, the block raises an `OSError`, or `path` lies
            in the folder of an open run and is a file that this run has not written.
        InputError: The argument is no path.
    """
    target = check_path("path", path)
    if not target.name or target.is_dir():
        raise FileWriteError(f"{target} cannot be written: it is a folder")
    temporary = target.with_name(f".{target.stem}-{uuid4().hex}{target.suffix}")
    store = find_store(target)
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


def encode_array(values: ArrayLike) -> dict[str, Any]:
    """Return an array for JSON in single precision, as the page of a run draws it.

    Args:
        values: Numbers of any shape.

    Returns:
        "shape", and under "float32" the entries in the order of C, little-endian, in base64.
    """
    array = np.asarray(values, dtype="<f4")
    return {"shape": list(array.shape), "float32": b64encode(array.tobytes()).decode("ascii")}
