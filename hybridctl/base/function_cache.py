"""CasADi functions that are called often, and kept on disk between runs.

They are kept in the user's cache directory, or in the directory that `HYBRIDCTL_CACHE` names;
`HYBRIDCTL_CACHE=off` keeps none.

A kept function is code. A file is used only if this user owns it, if nobody else can write it or
its folder, and if its content has the SHA-256 digest that was written with it: a library that was
cut short would kill the process. If a file is not used, or cannot be written, its function is built
again, and the log has one line for each cause.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import casadi as ca
import numpy as np
import platformdirs

from hybridctl.base.errors import InputError
from hybridctl.base.files import atomic, read_private, why_not_private

_LOG = logging.getLogger(__name__)
_SETTING = "HYBRIDCTL_CACHE"
_SHARED = 256  # functions that were read, in memory for the next who asks for them
_PRIVATE = 0o700  # mode of the folder: its owner reads, writes and searches it, nobody else
_REPORTED: set[str] = set()  # causes for which this process has written a line to the log


def kept(key: str, build: Callable[[], Any]) -> Any:
    """Return the function that is kept on disk under a key, or build it and keep it.

    Args:
        key: Name of the file, without its suffix. See `key_of`.
        build: Returns the `casadi.Function`. It is called if there is no file that can be trusted.

    Returns:
        The `casadi.Function`.
    """
    folder = _folder()
    if folder is None:
        return build()
    path = folder / f"{key}.casadi"
    try:
        status = path.stat()
        found = _read_function(path, (status.st_ino, status.st_mtime_ns, status.st_size))
    except FileNotFoundError:
        found = None
    except OSError as error:
        _report_unused(path, error)
        found = None
    if found is not None:
        return found
    function = build()
    text = function.serialize()
    _keep(path, f"{_digest(text.encode())}\n{text}".encode())
    return function


def compiler() -> str | None:
    """The C compiler of this machine, `cc` or the one that `CC` names; None where there is none."""
    return shutil.which(os.environ.get("CC", "cc"))


def needed_compiler() -> str:
    """The C compiler of this machine. Raises `InputError` where there is none."""
    command = compiler()
    if command is None:
        raise InputError("functions can be compiled where there is a C compiler, named cc or by CC")
    return command


class NativeFunction(ca.Function):
    """Machine code of a CasADi function, with the function that it was compiled from: its `source`.

    It is pickled as its source and compiled again where it is unpickled: a library is code of one
    machine, and its file may be gone.
    """

    def __init__(self, function: Any, source: Any) -> None:
        super().__init__(function)
        self.source = source

    def __reduce__(self) -> tuple[Callable[[Any], Any], tuple[Any]]:
        return _native_or_interpreted, (self.source,)


def native(function: Any) -> Any:
    """Return a function as machine code, by the C compiler of this machine: some 10 times as fast.

    The library is kept where functions are kept. Without a folder that can be trusted it is built
    in a temporary folder of its own, which is removed as soon as the library is loaded.

    Args:
        function: A `casadi.Function`.

    Returns:
        A `NativeFunction`. If the library cannot be written or cannot be loaded, as on a full disk
        or on one without the right to execute, the function itself, with a line in the log.

    Raises:
        InputError: There is no compiler (`cc`, or the one that `CC` names), or it fails.
    """
    command = needed_compiler()
    key, folder = key_of("native", platform.machine(), function.serialize()), _folder()
    if folder is not None:
        found = _kept_library(folder, key, function)
        if found is not None:
            return found
    try:
        # Once it is loaded, a library does not need its file. Windows refuses to remove the file:
        # that is no error.
        with tempfile.TemporaryDirectory(
            prefix="hybridctl-", ignore_cleanup_errors=True
        ) as building:
            library = _build_library(command, function, Path(building))
            content = library.read_bytes()
            digest = _digest(content)
            # The library is named after its content. Processes that build one function at the same
            # time get libraries of different bytes: whichever key is written last, its library is
            # there.
            if (
                folder is not None
                and _keep(folder / f"{digest}.so", content)
                and _keep(folder / f"{key}.native", digest.encode())
            ):
                library = folder / f"{digest}.so"
            return _load(function, library)
    except (OSError, RuntimeError) as error:
        _report("interpreted", f"functions are interpreted, not machine code: {_reason(error)}")
        return function


def _native_or_interpreted(function: Any) -> Any:
    """Return a function as machine code, or the function itself if it cannot be compiled.

    For unpickling, which may be on a machine without a compiler: there is a line in the log then.
    """
    try:
        return native(function)
    except InputError as error:
        _report("interpreted", f"functions are interpreted, not machine code: {error}")
        return function


def _build_library(command: str, function: Any, building: Path) -> Path:
    """Compile a function to a library in a folder, and return the path of the library.

    Args:
        command: The C compiler.
        function: A `casadi.Function`.
        building: An empty folder.

    Raises:
        InputError: The compiler fails for another reason than a full disk.
        OSError: The files cannot be written, or the disk is full for the compiler.
    """
    source, library = building / f"{function.name()}.c", building / "library.so"
    generator = ca.CodeGenerator(source.name)
    generator.add(function)
    source.write_text(generator.dump(), encoding="ascii")
    done = subprocess.run(
        [command, "-O1", "-fPIC", "-shared", str(source), "-o", str(library), "-lm"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},  # messages in English, see ENOSPC below
    )
    if done.returncode and os.strerror(errno.ENOSPC) in done.stderr:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(building))
    if done.returncode:
        raise InputError(f"{command} fails: {done.stderr[:500]}")
    return library


def _kept_library(folder: Path, key: str, function: Any) -> Any:
    """Return a function from the library that is kept under a key.

    The file `<key>.native` has the SHA-256 digest of the library, which is `<digest>.so`.

    Args:
        folder: Folder with the kept files.
        key: Name of the function's content, see `key_of`.
        function: The `casadi.Function` of which the library was made.

    Returns:
        The function, None if there is no library or if it cannot be used. Why it cannot be used is
        logged.
    """
    path = folder / f"{key}.native"
    try:
        digest = read_private(path).decode("ascii", "replace")
        path = folder / f"{digest}.so"
        if not _is_digest(digest) or _digest(read_private(path)) != digest:
            raise OSError("it is damaged")
        return _load(function, path)
    except FileNotFoundError:
        return None
    except (OSError, RuntimeError) as error:
        _report_unused(path, error)
        return None


def _load(function: Any, library: Path) -> NativeFunction:
    """Return a function from its library; CasADi raises `RuntimeError` if it cannot be loaded."""
    return NativeFunction(ca.external(function.name(), str(library)), function)


def key_of(*parts: Any) -> str:
    """A name for what is made from these strings, numbers, arrays, Nones, and tuples of them."""
    digest = hashlib.sha256()
    _feed(digest, (ca.CasadiMeta.version(), *parts))
    return digest.hexdigest()


def _feed(digest: Any, part: Any) -> None:
    if isinstance(part, tuple | list):
        digest.update(f"({len(part)}".encode())
        for one in part:
            _feed(digest, one)
    elif isinstance(part, np.ndarray):
        digest.update(f"{part.dtype}{part.shape}".encode())
        digest.update(np.ascontiguousarray(part).tobytes())
    else:
        digest.update(f"{type(part).__name__} {part!r};".encode())


def _folder() -> Path | None:
    """Return the absolute path of the folder of kept functions, or None if none is to be used.

    The folder is made if there is none. A folder that others can write, or that belongs to another
    user, could hold code of theirs. It is not used then, with a line in the log.
    """
    setting = os.environ.get(_SETTING)
    if setting == "off":
        return None
    folder = Path(setting) if setting else platformdirs.user_cache_path("hybridctl")
    folder = folder.absolute()  # the system loader looks up a name without "/" elsewhere
    try:
        folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        if not setting and why_not_private(folder.stat()):
            # Earlier versions made the default folder with the usual mode, by which the group may
            # write. Nobody else uses it. A folder that the user names may be shared on purpose.
            with suppress(OSError):
                folder.chmod(_PRIVATE)
        reason = why_not_private(folder.stat())
        if not reason and not os.access(folder, os.X_OK):
            reason = "cannot be searched"
    except OSError as error:
        reason = f"cannot be used: {_reason(error)}"
    if reason:
        _report(
            f"{folder} {reason}",
            f"functions are neither kept nor read: folder {folder} {reason}; "
            f"{_SETTING} names another, which only you can write (chmod go-w), or off",
        )
        return None
    return folder


def _keep(path: Path, content: bytes) -> bool:
    """Write a file that only this user can write, whole or not at all; return whether it is."""
    try:
        with atomic(path) as temporary:
            temporary.chmod(0o600)  # by the usual mode the group of some users may write
            temporary.write_bytes(content)
    except OSError as error:
        _report(f"{path.parent} unwritten", f"functions are not kept: {_reason(error)}")
        return False
    return True


def _report_unused(path: Path, error: Exception) -> None:
    """Log that a kept file is not used, once for each pair of folder and reason."""
    reason = _reason(error)
    _report(
        f"{path.parent} {reason}",
        f"kept function {path} is not used: {reason}; it and others like it are made anew",
    )


def _report(cause: str, message: str) -> None:
    """Log a message, unless this process has logged one for the same cause."""
    if cause not in _REPORTED:
        _REPORTED.add(cause)
        _LOG.warning("%s", message)


def _reason(error: Exception) -> str:
    """Return the message of an error in one line of at most 300 characters.

    Of an error of the system it is the reason without the path, which the log names anyway.
    """
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(reason.split())[-300:]


@lru_cache(maxsize=_SHARED)
def _read_function(path: Path, version: tuple[int, int, int]) -> Any:
    """Return the function that is kept in a file.

    Args:
        path: The file. Its first line is the digest of the rest, which is the function as CasADi
            serializes it.
        version: Inode, time of the last write in ns, and size in bytes of the file. The function
            in memory is returned again while they are the same.

    Raises:
        OSError: The file cannot be read, can be written by others, or is damaged.
    """
    digest, _, text = read_private(path).partition(b"\n")
    if digest.decode("ascii", "replace") != _digest(text):
        raise OSError("it is damaged")
    try:
        return ca.Function.deserialize(text.decode("ascii"))
    except (RuntimeError, UnicodeDecodeError) as error:
        raise OSError("it is damaged") from error


def _digest(content: bytes) -> str:
    """Return the SHA-256 digest of bytes, in 64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def _is_digest(text: str) -> bool:
    """Return whether a text has the form of a digest, so that it is no path to another folder."""
    return len(text) == 64 and set(text) <= set("0123456789abcdef")
