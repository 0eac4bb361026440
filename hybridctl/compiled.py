"""CasADi functions that are called often, and kept on disk between runs.

They are kept in the user's cache directory, or in the directory that `HYBRIDCTL_CACHE` names;
`HYBRIDCTL_CACHE=off` keeps none.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import casadi as ca
import numpy as np
import platformdirs
from numpy.typing import ArrayLike

from hybridctl.checks import Array
from hybridctl.errors import InputError
from hybridctl.files import atomic

_SETTING = "HYBRIDCTL_CACHE"
_SHARED = 256  # functions that were read, in memory for the next who asks for them
_WIDTHS = (64, 16, 8, 4, 2, 1)  # points in a map: of wider ones a point costs no less


class Compiled(threading.local):
    """A CasADi function of columns, on memory of its own in each thread.

    Its results are dense matrices, written in the transposed form that `transposed` gives them,
    so that they are arrays of `shapes` in the order of C. A call returns read-only views of them,
    which hold until the next call in the same thread. numbers (n,): its last argument, where that
    is held.
    """

    def __init__(
        self, function: Any, shapes: Sequence[tuple[int, ...]], numbers: Array | None = None
    ) -> None:
        self._made = function, tuple(shapes), numbers
        self._buffer, evaluate = function.buffer()
        sizes = [function.numel_in(i) for i in range(function.n_in())]
        self._all = tuple(map(np.zeros, sizes))
        arguments: tuple[Array, ...] = self._all
        results = tuple(np.zeros(shape) for shape in shapes)
        for i, a in enumerate(arguments):
            if a.size:
                self._buffer.set_arg(i, a.data)
        for i, a in enumerate(results):
            if a.size:
                self._buffer.set_res(i, a.reshape(-1).data)
            a.flags.writeable = False
        if numbers is not None:
            arguments[-1][:] = numbers
            arguments = arguments[:-1]
        self._call = arguments, evaluate, results  # one look at what is of this thread

    def __reduce__(self) -> tuple[type[Compiled], tuple[Any, ...]]:
        return Compiled, self._made

    def __call__(self, *columns: ArrayLike) -> tuple[Array, ...]:
        """All results; numpy raises `ValueError` for a column of the wrong size."""
        arguments, evaluate, results = self._call
        for own, column in zip(arguments, columns, strict=True):
            own[:] = column
        evaluate()
        return results

    def mapped(self) -> MappedFunction:
        """The same function at many points."""
        function, shapes, numbers = self._made
        return MappedFunction(function if numbers is None else held(function, numbers), shapes)


class MappedFunction(threading.local):
    """A CasADi function of columns at many points, on memory of its own in each thread.

    As `Compiled`, but arguments (m, size) have one point in each row, and results are new arrays
    (m, ...) of them. Points are passed through maps over so many that call overhead is small.
    """

    def __init__(self, function: Any, shapes: Sequence[tuple[int, ...]]) -> None:
        self._function, self._shapes = function, tuple(shapes)
        self._maps: dict[int, Compiled] = {}

    def __reduce__(self) -> tuple[type[MappedFunction], tuple[Any, ...]]:
        return MappedFunction, (self._function, self._shapes)

    def __call__(self, *columns: Array) -> list[Array]:
        """All results; numpy raises `ValueError` for arguments of the wrong size."""
        m, first = len(columns[0]), 0
        results = [np.empty((m, *shape)) for shape in self._shapes]
        for width in _WIDTHS:
            while m - first >= width:
                part = slice(first, first + width)
                found = self._map(width)(*(column[part].ravel() for column in columns))
                for result, values in zip(results, found, strict=True):
                    result[part] = values
                first += width
        return results

    def _map(self, width: int) -> Compiled:
        if width not in self._maps:
            shapes = [(width, *shape) for shape in self._shapes]
            self._maps[width] = Compiled(self._function.map(width), shapes)
        return self._maps[width]


def transposed(name: str, arguments: Sequence[Any], results: Sequence[Any]) -> Any:
    """The function of these symbols for `Compiled`; what results have in common is made once."""
    return ca.Function(name, arguments, ca.cse([ca.densify(result.T) for result in results]))


def held(function: Any, numbers: Array) -> Any:
    """The function with its last argument fixed at these numbers (n,)."""
    symbols = function.mx_in()[:-1]
    return ca.Function(function.name(), symbols, function.call([*symbols, ca.DM(numbers)]))


def kept(key: str, build: Callable[[], Any]) -> Any:
    """The function that `build` makes, from disk if it was kept there under this key.

    A file that was damaged is made anew; where none can be written the function is not kept.
    """
    place = _directory()
    if place is None:
        return build()
    path = place / f"{key}.casadi"
    found = _read(path, path.stat().st_mtime_ns) if path.exists() else None
    if found is not None:
        return found
    function = build()
    text = function.serialize()
    try:
        with atomic(path) as temporary:
            temporary.write_text(f"{_digest(text)}\n{text}", encoding="ascii")
    except OSError:
        pass
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


def native(function: Any) -> Any:
    """The function as machine code, by the C compiler of this machine, some 10 times as fast.

    It is kept where functions are kept. Raises `InputError` where there is no compiler, `cc` or the
    one that `CC` names, or where it fails.
    """
    command = needed_compiler()
    name, text = function.name(), function.serialize()
    place = _directory() or Path(tempfile.mkdtemp(prefix="hybridctl-"))
    place.mkdir(parents=True, exist_ok=True)
    library = place / f"{key_of('native', platform.machine(), text)}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=place) as folder:
            source, made = Path(folder, f"{name}.c"), Path(folder, library.name)
            generator = ca.CodeGenerator(source.name)
            generator.add(function)
            generator.generate(f"{folder}{os.sep}")
            arguments = ["-O1", "-fPIC", "-shared", str(source), "-o", str(made), "-lm"]
            done = subprocess.run(
                [command, *arguments], capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise InputError(f"{command} fails: {done.stderr[:500]}")
            made.replace(library)
    return ca.external(name, str(library))


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


def _directory() -> Path | None:
    setting = os.environ.get(_SETTING)
    if setting == "off":
        return None
    return Path(setting) if setting else platformdirs.user_cache_path("hybridctl")


@lru_cache(maxsize=_SHARED)
def _read(path: Path, written: int) -> Any:
    """The function of a file that was written then (ns), None where it is not as it was written."""
    try:
        digest, _, text = path.read_text(encoding="ascii").partition("\n")
    except (OSError, UnicodeDecodeError):
        return None
    return ca.Function.deserialize(text) if digest == _digest(text) else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
