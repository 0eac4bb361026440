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
"""How long a second signal is ignored, s: `timeout` and terminals may send each of them twice."""


class Stopped(BaseException):
    """Raised where a signal has asked the command line to stop.

    It is no `KeyboardInterrupt`, for which click has its own words and exit code.

    Attributes:
        number: Number of the signal.
        advice: How to go on.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.advice = "run the command again"

    @property
    def exit_code(self) -> int:
        """Exit code by the convention of shells: 130 for SIGINT, 143 for SIGTERM."""
        return 128 + self.number

    def __str__(self) -> str:
        return f"stopped by {signal.Signals(self.number).name}; {self.advice}"


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Raise `Stopped` in the block where a signal arrives; print it, and exit with its code.

    A signal that comes again while the program ends is ignored at first, and later ends it at once.
    Signals that are ignored, as below `nohup`, stay so. Outside the main thread nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    first: list[float] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if not first:
            first.append(time.monotonic())
            raise Stopped(number)
        if time.monotonic() - first[0] > _SECONDS_OF_REPEATS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    before = {n: signal.getsignal(n) for n in _STOPPING}
    own = [n for n, handler in before.items() if handler is not signal.SIG_IGN]
    for number in own:
        signal.signal(number, stop)
    try:
        yield
    except Stopped as stopped:
        print(stopped, file=sys.stderr, flush=True)
        sys.exit(stopped.exit_code)
    finally:
        if not first:  # else repeats are ignored until the process has ended
            for number in own:
                signal.signal(number, before[number])


@contextmanager
def resumed_in(folder: Path, record: str | None) -> Iterator[None]:
    """Add to `Stopped`, if it is raised in the block, how a run goes on.

    Args:
        folder: Folder of the run.
        record: Name of the file in it from which the run goes on, None if it begins again.
    """
    try:
        yield
    except Stopped as stopped:
        if record is not None and (folder / record).is_file():
            stopped.advice = (
                f"results so far are kept: resume with the same command and --out {folder}"
            )
        raise
