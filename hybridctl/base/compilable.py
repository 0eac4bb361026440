"""Functions that are interpreted until they have been called often, then machine code.

A C compiler takes some 0.2 s for a function that CasADi interprets in some 20 us. Who calls it a
few times does not want to wait; who calls it ten thousand times should not have to ask. So callers
(see `symbolic.compiled_function`) have a function that is called often compiled by another process,
at low priority, and take the machine code as soon as it is there. The machine code is kept (see
`function_cache`), so that later processes have it after a few calls.

The results do not change by it: machine code does the same operations in the same order, and
products and sums are not contracted to fused ones. It is tested to give the same bits.

`HYBRIDCTL_COMPILE=off` compiles nothing unasked; kept machine code is used all the same. With
`HYBRIDCTL_COMPILE=all` functions are compiled where they are first called.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import casadi as ca

from hybridctl.base.function_cache import (
    FOLDER_VARIABLE,
    compile_function,
    estimate_compilation,
    find_compiler,
    find_kept_file,
    find_machine_code,
    load_kept_function,
)

_LOG = logging.getLogger(__name__)
_SWITCH = "HYBRIDCTL_COMPILE"
"""Name of the environment variable that says what is compiled unasked: "off" or "all"."""
_MARK_AGE = 600.0
"""Age in s of a mark that a function is being compiled, after which it may be tried anew."""
_NICENESS = 5
"""Added to the niceness of the process that compiles: what calls the function comes first. With 15
a compilation takes minutes where all cores are busy."""
_running: list[tuple[str, subprocess.Popen[bytes]]] = []
"""Name of a function and the process that compiles it, or the last that did; at most one."""
_lock = threading.Lock()
"""Held where `_running` is read or changed: functions are called by several threads."""
_pauses: list[None] = []
"""One entry for each `pause_compilation` that is active."""


@contextmanager
def pause_compilation() -> Iterator[None]:
    """Start no process that compiles while the body runs, in any thread: that takes 1 to 3 ms.

    One that runs already goes on.
    """
    _pauses.append(None)
    try:
        yield
    finally:
        _pauses.pop()


def compiles_at_once() -> bool:
    """Return whether functions are to be compiled where they are first called, if possible."""
    return os.environ.get(_SWITCH) == "all" and find_compiler() is not None


def list_settings() -> tuple[str | None, ...]:
    """Return the environment's settings by which functions are read from disk and compiled."""
    return tuple(map(os.environ.get, (FOLDER_VARIABLE, _SWITCH, "CC")))


class CompilableFunction(ca.Function):
    """A function that is interpreted, and knows how to become machine code.

    Args:
        function: The `casadi.Function`.
        width: Number of points, side by side as columns, at which it is evaluated at once. None for
            the function itself.
    """

    def __init__(self, function: Any, width: int | None = None) -> None:
        super().__init__(function if width is None else function.map(width))
        self._source, self._width = function, width

    def __reduce__(self) -> tuple[type[CompilableFunction], tuple[Any, int | None]]:
        return CompilableFunction, (self._source, self._width)

    @property
    def points(self) -> int:
        """Number of points at which one call evaluates the function."""
        return self._width or 1

    def widen(self, width: int) -> CompilableFunction:
        """Return the function at a number of points.

        Args:
            width: The number.
        """
        return CompilableFunction(self._source, width)

    @property
    def compilation_time(self) -> float:
        """Estimate of the least time in s that the C compiler takes, whatever the width."""
        return estimate_compilation(self._source)

    def find_machine_code(self) -> Any | None:
        """Return the function as machine code, if that is kept; None if it is not."""
        found = find_machine_code(self._source)
        return found if found is None or self._width is None else found.map(self._width)

    def compile_in_background(self) -> None:
        """Have the function compiled by another process, if none is at work for this one.

        Nothing happens where that is switched off or paused, where there is no compiler, where
        functions are not kept, or where no Python is known that could be started.
        """
        kept = find_kept_file(self._source)
        if kept is None or os.environ.get(_SWITCH) == "off" or find_compiler() is None:
            return
        # Within another program, or frozen, this may be the program itself, or nothing.
        name = Path(sys.executable or "").name.lower()
        if getattr(sys, "frozen", False) or not name.startswith(("python", "pypy")):
            return
        with _lock:
            if not _pauses and not _is_busy() and _mark(kept):
                _start(self._source.name(), kept)


def _start(name: str, kept: Path) -> None:
    """Start the process that compiles a function of this name, which is kept in a file."""
    _LOG.info("compiling %s in another process", name)  # nobody waits for it
    # With -c the working directory would come first: modules are found where this process does.
    program = (
        f"import sys; sys.path[:] = {list(map(str, sys.path))!r}; "
        f"from {__name__} import compile_kept; compile_kept({str(kept)!r})"
    )
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt from the keyboard is not for it
        )
    except OSError as error:
        _LOG.warning("%s is not compiled for now: %s", name, error)
        return
    _running.append((name, process))


def _is_busy() -> bool:
    """Return whether a process compiles for this one; log a warning if the last one failed.

    The lock is held.
    """
    if not _running:
        return False
    name, process = _running[0]
    code = process.poll()
    if code is None:
        return True
    if code:
        _LOG.warning("%s is not compiled for now: its compiler ended with code %d", name, code)
    _running.clear()
    return False


def compile_kept(path: str) -> None:
    """Compile a kept function and keep its machine code.

    It is called in a process of its own, whose priority stays lower.

    Args:
        path: File of the function, `<key>.casadi`.
    """
    with suppress(AttributeError, OSError):  # Windows has no niceness
        os.nice(_NICENESS)
    compile_function(load_kept_function(Path(path)))


def _mark(kept: Path) -> bool:
    """Return whether this process may have a function compiled, and mark that it does.

    Processes that run the same system call the same functions: one of them compiles; two at worst,
    where both find an old mark at once. The mark is a file beside that of the function. It is never
    removed: where a compiler fails, none is asked again for `_MARK_AGE`.
    """
    mark = kept.with_suffix(".compiling")
    try:
        if time.time() - mark.stat().st_mtime < _MARK_AGE:
            return False
        os.utime(mark)
    except FileNotFoundError:
        with suppress(OSError):  # another process has it, or the folder cannot be written
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            return True
        return False
    except OSError:
        return False
    return True
