"""Faults of the stamps of a channel: clocks that go back or stand still, repeats, delays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hybridctl.base.checks import Array
from hybridctl.base.time_series import Series
from hybridctl.logs.raw import RawTable
from hybridctl.logs.stamps import HEADER_STAMP

LARGEST_OVERLAP = 1.0
"""Longest time in s by which stretches of rows may overlap after the clock went back.

Transport delays stay below it. A longer overlap means that a clock was set back, or that one file
holds two recordings. The value is a choice."""
_OVERLAP_SHARE = 0.2
"""Longest overlap of a short log, relative to its length. The value is a choice."""
_OVERLAP_PERIODS = 20.0
"""Overlap that is always allowed, in median periods of the samples. The value is a choice."""
_MOST_LATE_ROWS = 2
"""Rows that may come arbitrarily late after one step back; more belong to another recording."""
_MOST_STEPS_BACK = 100
"""Steps back that are examined, the largest first; each costs one pass over the stamps."""
_NOTED_DELAY = 0.1
"""Delay in s of the recorder behind `header.stamp` that is worth a note. The value is a choice."""
_NOTED_SPREAD = 0.5
"""Spread of that delay (5 % to 95 %) that is worth a note, in periods of the samples.

Above it, rows of a channel can be nearer to a neighbour's time than to their own."""


def describe_stamp_fault(series: Series) -> str:
    """Return why the rows of a channel cannot be put in order; empty if they can.

    Rows that come late are put in order, as are files that follow each other in the wrong order,
    and rows that repeat an earlier one do not count. Rows of two recordings with the same stamps
    cannot be told apart.

    Args:
        series: Rows of the channel in the order of the file.
    """
    times = series.times
    if len(times) > 2 and np.ptp(times) == 0.0:
        return f"all {len(times)} stamps are {times[0]:.9g} s, the clock stands still"
    times = times[find_first_rows(series)]
    steps = np.diff(times)
    starts = np.flatnonzero(steps < 0.0) + 1
    if not len(starts):
        return ""
    periods = steps[steps > 0.0]
    least = _OVERLAP_PERIODS * float(np.median(periods)) if len(periods) else 0.0
    limit = min(LARGEST_OVERLAP, max(_OVERLAP_SHARE * float(np.ptp(times)), least))
    largest = _find_overlap(times, starts, steps, limit)
    if largest <= limit:
        return ""
    return (
        f"stamps go back {len(starts)} times, and rows of {largest:.3g} s lie among others with "
        "the same stamps: a clock that was set back, or two recordings in one"
    )


def _find_overlap(times: Array, starts: NDArray[np.intp], steps: Array, limit: float) -> float:
    """Return the longest time in s in which rows lie among rows before a step back.

    Args:
        times: Stamps (n,).
        starts: Rows whose stamp is earlier than the one before.
        steps: Differences (n - 1,) of the stamps.
        limit: Time in s that is too long; the search ends where it is exceeded.
    """
    first, last = np.minimum.accumulate(times), np.maximum.accumulate(times)
    earliest_later = np.minimum.accumulate(times[::-1])[::-1]
    suspects = starts[last[starts - 1] - earliest_later[starts] > limit]
    largest = 0.0
    for k in suspects[np.argsort(steps[suspects - 1])][:_MOST_STEPS_BACK]:
        later = times[k:]
        among = later[(later >= first[k - 1]) & (later < last[k - 1])]
        if len(among) > _MOST_LATE_ROWS:
            begin = np.partition(among, _MOST_LATE_ROWS)[_MOST_LATE_ROWS]
            largest = max(largest, float(last[k - 1] - begin))
        if largest > limit:
            break
    return largest


def find_first_rows(series: Series) -> NDArray[np.intp]:
    """Return the indices of rows (k,) that do not repeat stamp and values of an earlier row."""
    count = len(series)
    if len(np.unique(series.times)) == count:
        return np.arange(count)  # no stamp is repeated: saves the comparison of values
    table = np.column_stack([series.times, series.values])
    # Compared by their bytes, so that missing values are equal to each other.
    whole_row = np.dtype((np.void, table.dtype.itemsize * table.shape[1]))
    rows = np.ascontiguousarray(table).view(whole_row)[:, 0]
    return np.sort(np.unique(rows, return_index=True)[1])


def note_delay(table: RawTable) -> str:
    """Return a note if the recorder's stamps of a topic are late, early or uneven, else no text.

    They are compared with `header.stamp`, the time at which the sender measured.

    Args:
        table: Messages of the topic, with or without stamps of both kinds.
    """
    sent = table.fields.get(HEADER_STAMP)
    if table.stamps is None or sent is None or sent.dtype.kind not in "iu" or not len(sent):
        return ""
    is_set = sent != 0
    if not is_set.any():
        return ""
    unset = "" if is_set.all() else f"; {int((~is_set).sum())} are not set"
    late = (table.stamps[is_set] - sent[is_set]) * 1e-9
    low, middle, high = np.percentile(late, [5.0, 50.0, 95.0])
    periods = np.diff(np.sort(sent)) * 1e-9
    period = float(np.median(periods)) if len(periods) else np.inf
    if abs(middle) <= _NOTED_DELAY and high - low <= _NOTED_SPREAD * period:
        return ""
    return (
        f"{table.name}: stamps are the recorder's, {low:.3g} to {high:.3g} s after `header.stamp`"
        f"{unset}; `time: {{field: header.stamp}}` in the mapping takes those"
    )
