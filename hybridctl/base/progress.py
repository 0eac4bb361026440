"""Progress reports of calls that take long, by their keyword `progress`.

None and False report nothing, True prints lines on standard error, and a function is called with
the progress. A call makes its report function by `report_share` or `report_time` once, and calls it
as its work goes on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from hybridctl.base.checks import quote
from hybridctl.base.errors import InputError

T = TypeVar("T")
Report = Callable[[float], None]
"""Function of the share of the work that is done, from 0 to 1, unless stated otherwise.

`simulate` and others call the function of the user with the time of the run, s, instead."""
Progress = Report | bool | None
"""Type of the keyword `progress` of public calls."""

_SECONDS_BETWEEN_LINES = 2.0
"""Least time before the first line and between two, s. Quicker calls print nothing. A choice."""


def report_share(progress: Progress, title: str) -> Report | None:
    """Return the function to call with the share of the work that is done, None for no report.

    Args:
        progress: True for lines on standard error such as "hybrid_lqr: 40 %", at most one in 2 s; a
            function that is called with the share, from 0 to 1; None or False for nothing.
        title: Name of the call, for these lines.

    Returns:
        A function of the share, from 0 to 1, or None.

    Raises:
        InputError: `progress` is none of these.
    """
    if progress is None or progress is False:
        return None
    if progress is True:
        return _ShareLines(title)
    if not callable(progress):
        raise InputError(f"progress must be True or a function, got {quote(progress)}")
    return progress


def report_time(progress: Progress, title: str, start: float, end: float) -> Report | None:
    """Return the function to call with the time that a run has reached, None for no report.

    Args:
        progress: As for `report_share`, but a function of the user is called with the time, s.
        title: Name of the call.
        start: Time at which the run begins, s.
        end: Time at which it ends, s; later than `start`.

    Returns:
        A function of the time, s, or None.

    Raises:
        InputError: `progress` is none of these.
    """
    report = report_share(progress, title)
    if not isinstance(
        report, _ShareLines
    ):  # None, or the function of the user, which takes the time
        return report
    return lambda t: report((t - start) / (end - start))


def report_each(items: Iterable[T], total: int, report: Report | None) -> Iterator[T]:
    """Yield items, and report before each which share of them has then been yielded.

    Args:
        items: The items, which may be computed one by one.
        total: Number of items.
        report: Function of the share, as `report_share` returns it, or None.
    """
    for done, item in enumerate(items, start=1):
        if report is not None:
            report(done / total)
        yield item


class WorkCount:
    """Counts pieces of work, and reports their share.

    Args:
        pieces: Number of pieces. It may be an estimate: further pieces report a share of 1.
        report: Function of the share, as `report_share` returns it, or None.
    """

    def __init__(self, pieces: int, report: Report | None) -> None:
        self._pieces, self._report, self._completed = pieces, report, 0

    def end_piece(self) -> None:
        """Count one more piece as completed, and report the share."""
        self._completed += 1
        if self._report is not None:
            self._report(min(1.0, self._completed / self._pieces))


class _ShareLines:
    """Report function that prints the share, at most every `_SECONDS_BETWEEN_LINES`.

    Args:
        title: Name of the call, at the start of each line.
    """

    def __init__(self, title: str) -> None:
        self._title, self._last = title, time.monotonic()

    def __call__(self, share: float) -> None:
        """Print a line if the last one, or the start of the call, is long enough ago."""
        now = time.monotonic()
        if now - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = now
            print(f"{self._title}: {100.0 * share:.0f} %", file=sys.stderr, flush=True)
