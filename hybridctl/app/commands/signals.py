"""Signals that stop the command line: an orderly end, and one line on how to go on."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SECONDS_OF_REPEATS = 2.0
"""Time after the first signal in which others are ignored, s. A choice: `timeout` and terminals may
send one signal twice."""


class Stopped(BaseException):
    """Raised in the main thread when a signal asks the command line to stop.

    It is no `KeyboardInterrupt`, for which click has its own words and exit code. It is no
    `Exception`, so that code which handles errors does not handle it.

    Attributes:
        number: Number of the signal.
        advice: What the user can do to go on; printed after the name of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.advice = "run the command again"

    @property
    def exit_code(self) -> int:
        """The exit code by the convention of shells: 130 for SIGINT, 143 for SIGTERM."""
        return 128 + self.number

    def __str__(self) -> str:
        return f"stopped by {signal.Signals(self.number).name}; {self.advice}"


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """End the process in an orderly way if SIGINT, SIGTERM or SIGHUP arrives during the block.

    `Stopped` is raised in the block. When it has left the block, its line is printed to standard
    error, and the process exits with its code. Signals that come within `_SECONDS_OF_REPEATS` of
    the first are ignored; a later one kills the process, also if `Stopped` was caught in the block.
    Signals that are ignored before the block, as below `nohup`, stay so.

    Raises:
        SystemExit: A signal has arrived, and `Stopped` was not caught in the block. Its exit code
            is that of `Stopped`.
    """
    # Python lets only the main thread set handlers: elsewhere signals keep their handlers.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    first: list[float] = []  # time of the first signal, s; empty before it

    def stop(number: int, frame: FrameType | None) -> None:
        """Handle a signal: raise `Stopped` at the first, ignore repeats, and let a later one kill.

        Args:
            number: Number of the signal.
            frame: Where the process was interrupted. It is not used: Python calls a handler with
                it.

        Raises:
            Stopped: The signal is the first one.
        """
        if not first:
            first.append(time.monotonic())
            raise Stopped(number)
        if time.monotonic() - first[0] > _SECONDS_OF_REPEATS:
            # The end takes too long for the user: now the signal kills, as without a handler.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    before = {n: signal.getsignal(n) for n in _STOPPING}
    handled = [n for n, handler in before.items() if handler is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, stop)
    try:
        yield
    except Stopped as stopped:
        print(stopped, file=sys.stderr, flush=True)
        sys.exit(stopped.exit_code)
    finally:
        if not first:  # else the handlers stay, so that repeats are ignored while the process ends
            for number in handled:
                signal.signal(number, before[number])


@contextmanager
def advise_resuming(folder: Path, record: str | None) -> Iterator[None]:
    """Add to a `Stopped` that the block raises the advice by which its run can be resumed.

    Args:
        folder: Folder of the run.
        record: Name of the journal in it from which the run can be resumed. If it is None, or the
            file is not there, the advice stays "run the command again".

    Raises:
        Stopped: A signal has arrived.
    """
    try:
        yield
    except Stopped as stopped:
        if record is not None and (folder / record).is_file():
            stopped.advice = (
                f"results so far are kept: resume with the same command and --out {folder}"
            )
        raise
