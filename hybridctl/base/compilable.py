"""Functions that are interpreted until they have been called often, then machine code.

A C compiler takes some 0.2 s for a function that CasADi interprets in some 20 us. Who calls it a
few times does not want to wait; who calls it ten thousand times does not want to know of it. So the
function is compiled by another process, at low priority, while it is called, and whoever calls it
takes the machine code as soon as it is there. It is kept (see `function_cache`), so that later
processes have it after a few calls.

The results do not change by it: machine code does the same operations in the same order, without
those that contract two of them (see `function_cache`), and is tested to give the same bits.

`HYBRIDCTL_COMPILE=off` compiles nothing unasked; kept machine code is used all the same. With
`HYBRIDCTL_COMPILE=all` functions are compiled where they are first called.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
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
_running: list[subprocess.Popen[bytes]] = []
"""The process that compiles for this one, or the last that did; at most one."""
_pauses: list[None] = []
"""One entry for each `pause_compilation` that is active."""


@contextmanager
def pause_compilation() -> Iterator[None]:
    """Begin no compilation beside while the body runs: to start its process takes 1 to 3 ms."""
    _pauses.append(None)
    try:
        yield
    finally:
        _pauses.pop()


def compiles_at_once() -> bool:
    """Return whether functions are to be compiled where they are first called, if possible."""
    return os.environ.get(_SWITCH) == "all" and find_compiler() is not None


def list_settings() -> tuple[str | None, ...]:
    """Return the settings of the environment that decide where functions are read and compiled."""
    return tuple(map(os.environ.get, (FOLDER_VARIABLE, _SWITCH, "CC")))


class CompilableFunction(ca.Function):
    """A function that is interpreted, and knows how to become machine code.

    Args:
        function: The `casadi.Function`.
        width: Number of points at which it is evaluated at once. None for one, without an axis.
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
        """The least time in s that the C compiler takes."""
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
        # Within another program there may be no Python; of a frozen one it is the program itself.
        if not sys.executable or getattr(sys, "frozen", False):
            return
        if _pauses or _is_busy() or not _mark(kept):
            return
        _LOG.info("compiling %s in another process", self._source.name())  # nobody waits for it
        # Modules are found where this process finds them, and not in the working directory before.
        program = (
            f"import sys; sys.path[:] = {sys.path!r}; "
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
            _LOG.warning("a function stays interpreted: %s", error)
            return
        _running.append(process)


def _is_busy() -> bool:
    """Return whether a process compiles for this one. Of one that has failed the log has a line."""
    if not _running:
        return False
    code = _running[0].poll()
    if code is None:
        return True
    if code:
        _LOG.warning("a function stays interpreted: its compilation ended with exit code %d", code)
    _running.clear()
    return False


def compile_kept(path: str) -> None:
    """Compile a kept function and keep its machine code. The process that does it ends thereafter.

    Args:
        path: File of the function, `<key>.casadi`.
    """
    with suppress(AttributeError, OSError):  # Windows has no niceness
        os.nice(_NICENESS)
    compile_function(load_kept_function(Path(path)))


def _mark(kept: Path) -> bool:
    """Return whether this process may have a function compiled, and mark that it does.

    Processes that run the same system call the same functions: one of them compiles. The mark is a
    file beside that of the function, which stays: where a compiler fails, none is asked again at
    once.
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
