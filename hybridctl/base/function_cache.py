"""Functions of CasADi that are kept on disk between runs, as serialized or as compiled code.

They are kept in the user's cache directory, or in the directory that `HYBRIDCTL_CACHE` names;
`HYBRIDCTL_CACHE=off` keeps none. There is one file `<key>.casadi` for each serialized function, and
for machine code a file `<key>.native` that names the library `<digest>.so`. A file
`<key>.compiling` marks when that was begun (see `compilable`). Nothing removes files.

A kept function is code. A file is used only if this user owns it, if nobody else can write it or
its folder, and if its content has the SHA-256 digest that was written with it: a library that was
cut short would kill the process. If a file is not used, or cannot be written, its function is built
again, and the log has one line for each cause. A serialized function that this process has read is
returned again, without another check, as long as its file has the same inode, time and size.
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

from hybridctl.base.digests import hash_bytes
from hybridctl.base.errors import InputError
from hybridctl.base.files import atomic, find_privacy_fault, read_private

_LOG = logging.getLogger(__name__)
FOLDER_VARIABLE = "HYBRIDCTL_CACHE"
"""Name of the environment variable with the folder, or "off"."""
_MAX_FUNCTIONS_IN_MEMORY = 256
"""Most functions, and as many libraries, that are held for the next caller. A choice."""
_FLAGS = "-O1", "-ffp-contract=off"
"""Flags of the C compiler. With them machine code gives the same bits as CasADi's interpreter:
where a processor multiplies and adds in one operation, compilers would use it unasked."""
_OWNER_ONLY = 0o700
"""Mode of the folder: its owner reads, writes and searches it, nobody else."""
_SECONDS_OF_ANY, _SECONDS_OF_INSTRUCTION = 0.15, 1.5e-4
"""Compilation of a function, and of each of its instructions, s. Measured: 328 take 0.2 s, 5,167
take 0.9 s of one core, 15,816 take 5.4 s."""
_LONG_COMPILATION = 1.0
"""Time in s above which a compilation is announced."""
_REPORTED: set[str] = set()
"""Causes for which this process has written a line to the log."""


def load_or_build(key: str, build: Callable[[], Any]) -> Any:
    """Return the function that is kept on disk under a key, or build it and keep it.

    Args:
        key: Name of the file, without its suffix. See `make_key`.
        build: Returns the `casadi.Function`. It is called if there is no file that can be trusted.

    Returns:
        The `casadi.Function`.
    """
    folder = _open_cache_folder()
    if folder is None:
        return build()
    path = folder / f"{key}.casadi"
    try:
        status = path.stat()
        found = _read_function(path, (status.st_ino, status.st_mtime_ns, status.st_size))
    except FileNotFoundError:
        found = None
    except OSError as error:
        _warn_of_unused_file(path, error)
        found = None
    if found is None:
        found = build()
        text = found.serialize()
        _write_private_file(path, f"{hash_bytes(text.encode())}\n{text}".encode())
    found.kept_as = key  # by which its machine code is found
    return found


def load_kept_function(path: Path) -> Any:
    """Return a function that is kept.

    Args:
        path: Its file, see `find_kept_file`.

    Raises:
        OSError: The file cannot be read, can be written by others, or is damaged.
    """
    status = path.stat()
    found = _read_function(path, (status.st_ino, status.st_mtime_ns, status.st_size))
    found.kept_as = path.stem
    return found


def find_kept_file(function: Any) -> Path | None:
    """Return the file that a function of `load_or_build` is kept in; None if there is none.

    Args:
        function: The `casadi.Function`.
    """
    key, folder = _find_key(function), _open_cache_folder()
    if key is None or folder is None:
        return None
    path = folder / f"{key}.casadi"
    return path if path.exists() else None


def _find_key(function: Any) -> str | None:
    """Return the key that `load_or_build` has noted at a function; None for others."""
    return getattr(function, "kept_as", None)


def find_compiler() -> str | None:
    """Return the path of the C compiler, `cc` or the one that `CC` names; None if there is none.

    `CC` is one name or path: with options in it, or empty, no compiler is found.
    """
    return shutil.which(os.environ.get("CC", "cc"))


def require_compiler() -> str:
    """Return the path of the C compiler.

    Raises:
        InputError: There is none, see `find_compiler`.
    """
    command = find_compiler()
    if command is None:
        raise InputError("functions can be compiled where there is a C compiler, named cc or by CC")
    return command


class NativeFunction(ca.Function):
    """Machine code of a CasADi function.

    It is pickled as its source and compiled again where it is unpickled: a library is code of one
    machine, and its file may be gone.

    Args:
        function: The function in a library.
        source: The interpreted `casadi.Function` that it was compiled from.

    Attributes:
        source: See the argument.
    """

    def __init__(self, function: Any, source: Any) -> None:
        super().__init__(function)
        self.source = source

    def __reduce__(self) -> tuple[Callable[[Any], Any], tuple[Any]]:
        return compile_if_possible, (self.source,)


def compile_function(function: Any) -> Any:
    """Return a function as machine code, by the C compiler of this machine: some 10 times as fast.

    The library is kept where functions are kept. Without a folder that can be trusted it is built
    in a temporary folder of its own, which is removed as soon as the library is loaded.

    Args:
        function: A `casadi.Function`.

    Returns:
        A `NativeFunction`. If the library cannot be written or cannot be loaded, as on a full disk
        or on one without the right to execute, the function itself, with a line in the log.

    Raises:
        InputError: There is no compiler (`cc`, or the one that `CC` names), even if the library is
            kept; or it fails.
    """
    command = require_compiler()
    key, folder = _make_native_key(function), _open_cache_folder()
    if folder is not None:
        found = _load_library_from_cache(folder, key, function)
        if found is not None:
            return found
    _announce_compilation(function)
    try:
        # Once it is loaded, a library does not need its file. Windows refuses to remove the file:
        # that is no error.
        with tempfile.TemporaryDirectory(
            prefix="hybridctl-", ignore_cleanup_errors=True
        ) as building:
            library = _build_library(command, function, Path(building))
            content = library.read_bytes()
            digest = hash_bytes(content)
            # The library is named after its content. Processes that build one function at the same
            # time get libraries of different bytes: whichever key is written last, its library is
            # there.
            if (
                folder is not None
                and _write_private_file(folder / f"{digest}.so", content)
                and _write_private_file(folder / f"{key}.native", digest.encode())
            ):
                library = folder / f"{digest}.so"
            return _load_library(function, library)
    except (OSError, RuntimeError) as error:
        _warn_once(
            "interpreted", f"functions are interpreted, not machine code: {_describe_error(error)}"
        )
        return function


def find_machine_code(function: Any) -> Any | None:
    """Return the machine code of a function of `load_or_build`, None if none is kept.

    Unlike `compile_function`, it needs no compiler.

    Args:
        function: The `casadi.Function`.

    Returns:
        The `NativeFunction`, or None.
    """
    folder = _open_cache_folder()
    if folder is None or _find_key(function) is None:
        return None
    return _load_library_from_cache(folder, _make_native_key(function), function)


def _make_native_key(function: Any) -> str:
    """Return the key of a function's machine code: of its own key, or else of its content."""
    known = _find_key(function) or function.serialize()
    return make_key("native", platform.machine(), _FLAGS, known)


def _announce_compilation(function: Any) -> None:
    """Log that a compiler is about to run, if that takes longer than about a second.

    Args:
        function: A `casadi.Function`.
    """
    seconds = estimate_compilation(function)
    if seconds > _LONG_COMPILATION:
        _LOG.warning(
            "compiling %s of %d instructions: some %.0f s or more, once for this structure",
            function.name(),
            function.n_instructions(),
            seconds,
        )


def estimate_compilation(function: Any) -> float:
    """Return the least time in s that the C compiler takes for a function.

    Args:
        function: A `casadi.Function`.
    """
    return float(_SECONDS_OF_ANY + function.n_instructions() * _SECONDS_OF_INSTRUCTION)


def compile_if_possible(function: Any) -> Any:
    """Return a function as machine code, or the function itself if it cannot be compiled.

    As where it is unpickled, on a machine without a compiler: there is a line in the log then.

    Args:
        function: A `casadi.Function`.
    """
    try:
        return compile_function(function)
    except InputError as error:
        _warn_once("interpreted", f"functions are interpreted, not machine code: {error}")
        return function


def _build_library(command: str, function: Any, building: Path) -> Path:
    """Return the path of a library into which a function is compiled.

    Args:
        command: The C compiler.
        function: A `casadi.Function`.
        building: An empty folder, in which the source and the library are written.

    Raises:
        InputError: The compiler fails for another reason than a full disk.
        OSError: The files cannot be written, or the disk is full for the compiler.
    """
    source, library = building / f"{function.name()}.c", building / "library.so"
    generator = ca.CodeGenerator(source.name)
    generator.add(function)
    source.write_text(generator.dump(), encoding="ascii")
    done = subprocess.run(
        [command, *_FLAGS, "-fPIC", "-shared", str(source), "-o", str(library), "-lm"],
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


def _load_library_from_cache(folder: Path, key: str, function: Any) -> Any:
    """Return a function from the library that is kept under a key.

    The file `<key>.native` has the SHA-256 digest of the library, which is `<digest>.so`.

    Args:
        folder: Folder with the kept files.
        key: Name of the function's content, see `make_key`.
        function: The `casadi.Function` of which the library was made.

    Returns:
        The function, None if there is no library or if it cannot be used. Why it cannot be used is
        logged.
    """
    path = folder / f"{key}.native"
    try:
        path = _find_library(path)
        status = path.stat()
        version = status.st_ino, status.st_mtime_ns, status.st_size
        return _load_checked_library(function, path, version)
    except FileNotFoundError:
        return None
    except (OSError, RuntimeError) as error:
        _warn_of_unused_file(path, error)
        return None


def _find_library(path: Path) -> Path:
    """Return the path of the library that a file names.

    Raises:
        OSError: The file cannot be read or trusted, or names none.
    """
    digest = read_private(path).decode("ascii", "replace")
    if not _is_digest(digest):
        raise OSError("it is damaged")
    return path.with_name(f"{digest}.so")


@lru_cache(maxsize=_MAX_FUNCTIONS_IN_MEMORY)
def _load_checked_library(
    function: Any, path: Path, version: tuple[int, int, int]
) -> NativeFunction:
    """Return a function from its library, which is named after the digest of its content.

    Args:
        function: The `casadi.Function` of which the library was made.
        path: The library.
        version: Inode, time of the last write in ns, and size in bytes of the file. The function
            in memory is returned again while they are the same.

    Raises:
        OSError: The library has another digest, or it cannot be read or trusted.
        RuntimeError: It cannot be loaded.
    """
    if hash_bytes(read_private(path)) != path.stem:
        raise OSError("it is damaged")
    return _load_library(function, path)


def _load_library(function: Any, library: Path) -> NativeFunction:
    """Return a function from its library; CasADi raises `RuntimeError` if it cannot be loaded."""
    return NativeFunction(ca.external(function.name(), str(library)), function)


def make_key(*parts: Any) -> str:
    """Return the name under which a function is kept: a digest of all that it is made from.

    Args:
        *parts: Text, numbers, arrays, None, and tuples and lists of these. Of other objects their
            `repr` counts, which must then determine them.

    Returns:
        64 hexadecimal digits. They depend on the version of CasADi, too, as another version may not
        read a serialized function.
    """
    digest = hashlib.sha256()
    _update_digest(digest, (ca.CasadiMeta.version(), *parts))
    return digest.hexdigest()


def _update_digest(digest: Any, part: Any) -> None:
    """Add a part of a key to a digest of hashlib, with its type and its size or end."""
    if isinstance(part, tuple | list):
        digest.update(f"{type(part).__name__}({len(part)}".encode())
        for one in part:
            _update_digest(digest, one)
    elif isinstance(part, np.ndarray):
        digest.update(f"{part.dtype}{part.shape}".encode())
        if part.dtype.hasobject:  # its bytes are addresses, which differ for equal objects
            _update_digest(digest, part.tolist())
        else:
            digest.update(np.ascontiguousarray(part).tobytes())
    else:
        digest.update(f"{type(part).__name__} {part!r};".encode())


def _open_cache_folder() -> Path | None:
    """Return the absolute path of the folder of kept functions, or None if none is to be used.

    The folder is made if there is none. A folder that others can write, or that belongs to another
    user, could hold code of theirs. It is not used then, with a line in the log.
    """
    setting = os.environ.get(FOLDER_VARIABLE)
    if setting == "off":
        return None
    folder = Path(setting) if setting else platformdirs.user_cache_path("hybridctl")
    folder = folder.absolute()  # the system loader looks up a name without "/" elsewhere
    try:
        folder.mkdir(mode=_OWNER_ONLY, parents=True, exist_ok=True)
        if not setting and find_privacy_fault(folder.stat()):
            # Earlier versions made the default folder with the usual mode, by which the group may
            # write. Nobody else uses it. A folder that the user names may be shared on purpose.
            with suppress(OSError):
                folder.chmod(_OWNER_ONLY)
        reason = find_privacy_fault(folder.stat())
        if not reason and not os.access(folder, os.X_OK):
            reason = "cannot be searched"
    except OSError as error:
        reason = f"cannot be used: {_describe_error(error)}"
    if reason:
        _warn_once(
            f"{folder} {reason}",
            f"functions are neither kept nor read: folder {folder} {reason}; "
            f"{FOLDER_VARIABLE} names another, which only you can write (chmod go-w), or off",
        )
        return None
    return folder


def _write_private_file(path: Path, content: bytes) -> bool:
    """Return whether a file could be written, which is then whole and writable by this user only.

    Why it could not is logged.
    """
    try:
        with atomic(path) as temporary:
            temporary.chmod(0o600)  # by the usual mode the group of some users may write
            temporary.write_bytes(content)
    except OSError as error:
        _warn_once(f"{path.parent} unwritten", f"functions are not kept: {_describe_error(error)}")
        return False
    return True


def _warn_of_unused_file(path: Path, error: Exception) -> None:
    """Log that a kept file is not used, once for each pair of folder and reason."""
    reason = _describe_error(error)
    _warn_once(
        f"{path.parent} {reason}",
        f"kept function {path} is not used: {reason}; it and others like it are made anew",
    )


def _warn_once(cause: str, message: str) -> None:
    """Log a message, unless this process has logged one for the same cause."""
    if cause not in _REPORTED:
        _REPORTED.add(cause)
        _LOG.warning("%s", message)


def _describe_error(error: Exception) -> str:
    """Return the message of an error in one line of at most 300 characters.

    Of an error of the system it is the reason without the path, which the log names anyway.
    """
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(reason.split())[-300:]


@lru_cache(maxsize=_MAX_FUNCTIONS_IN_MEMORY)
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
    if digest.decode("ascii", "replace") != hash_bytes(text):
        raise OSError("it is damaged")
    try:
        return ca.Function.deserialize(text.decode("ascii"))
    except (RuntimeError, UnicodeDecodeError) as error:
        raise OSError("it is damaged") from error


def _is_digest(text: str) -> bool:
    """Return whether a text has the form of a digest, so that it is no path to another folder."""
    return len(text) == 64 and set(text) <= set("0123456789abcdef")
