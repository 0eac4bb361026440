"""How long calls say how far they are: the keyword `progress` of all of them.

`progress=None` reports nothing, `True` prints lines on standard error, and a function is called.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from hybridctl.checks import quoted
from hybridctl.errors import InputError

Report = Callable[[float], None]
"""Called with the share of the work that is done, from 0 to 1."""
Progress = Report | bool | None

_QUIET = 2.0
"""s: time before the first line and between two. Calls that are quicker print nothing."""


def report_share(progress: Progress, title: str) -> Report | None:
    """Return a function of the share of the work that is done, None where nothing is reported.

    Args:
        progress: True for lines on standard error such as "hybrid_lqr: 40 %", at most one in 2 s; a
            function that is called with the share, from 0 to 1; None or False for nothing.
        title: What is done, for these lines.

    Raises:
        InputError: `progress` is neither.
    """
    if progress is None or progress is False:
        return None
    if progress is True:
        return _Lines(title)
    if not callable(progress):
        raise InputError(f"progress must be True or a function, got {quoted(progress)}")
    return progress


def report_time(progress: Progress, title: str, start: float, end: float) -> Report | None:
    """Return a function of the time that a run has reached, None where nothing is reported.

    Args:
        progress: As for `report_share`, but a function is called with the time itself, s.
        title: What is done.
        start: Time at which the run begins, s.
        end: Time at which it ends, s.
    """
    report = report_share(progress, title)
    if not isinstance(report, _Lines):
        return report
    return lambda t: report((t - start) / (end - start))


class _Lines:
    """Prints the share that is done, at most every `_QUIET` seconds."""

    def __init__(self, title: str) -> None:
        self._title, self._last = title, time.monotonic()

    def __call__(self, share: float) -> None:
        """Print a line if the last one is long enough ago."""
        now = time.monotonic()
        if now - self._last >= _QUIET:
            self._last = now
            print(f"{self._title}: {100.0 * share:.0f} %", file=sys.stderr, flush=True)
