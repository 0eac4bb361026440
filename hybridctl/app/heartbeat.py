"""A line now and then while a command says nothing, whatever it does: imports, reads, writes.

Imports nothing that computes, so that it is there before these imports begin.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

HEARTBEAT = 4.0
"""Most seconds between two lines of progress: nothing is silent for more than 5 s. A choice."""
_POLL = 0.1  # s between looks at the clock


class Heartbeat:
    """Prints how long a command has been at work when nothing else has shown it for `HEARTBEAT`.

    Life cycle: `run` watches for the duration of a block. Reports of progress that have lines or
    bars of their own stand in `pause`, during which this one prints nothing.

    Attributes:
        reports: Number of reports that show progress now.
        last: Time at which progress was shown last, s of `time.monotonic`.
    """

    def __init__(self) -> None:
        self.reports = 0
        self.last = time.monotonic()

    @contextmanager
    def run(self, title: str) -> Iterator[None]:
        """Watch over a block, and print lines on standard error.

        Args:
            title: What is done.
        """
        begun, done = time.monotonic(), threading.Event()
        self.last = begun

        def watch() -> None:
            while not done.wait(_POLL):
                now = time.monotonic()
                if not self.reports and now - self.last >= HEARTBEAT:
                    self.last = now
                    print(f"{title}: {now - begun:.0f} s", file=sys.stderr, flush=True)

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Print nothing during the block, whose report shows that work goes on."""
        self.reports += 1
        try:
            yield
        finally:
            self.reports -= 1
            self.last = time.monotonic()


heartbeat = Heartbeat()
"""The heartbeat of the command that runs in this process."""
