"""Reference poses that estimates are compared with: a TUM file, or channels of the log."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hybridctl.base.checks import quote, suggest_names
from hybridctl.base.errors import InputError, UnknownNameError
from hybridctl.base.time_series import Series
from hybridctl.estimation.pose_track import PoseTrack
from hybridctl.logs.log import Log
from hybridctl.logs.tum import read_tum

_SHOWN_CHANNELS = 12
"""Channels of the log that an error lists."""


def read_reference(text: str, log: Log) -> PoseTrack:
    """Return the reference that a text names, with stamps that count from the log's origin.

    Args:
        text: Path of a TUM trajectory; or POSITION,ORIENTATION, the names of two channels of the
            log, in m and as quaternions; or the name of one channel with seven columns, position
            and quaternion x, y, z, w, or with three columns, positions alone.
        log: The log.

    Returns:
        The poses at the stamps of the positions, without rows that have missing values. Where
        orientations have a channel of their own, they are interpolated, and positions outside of
        its first and last stamp are left out: maybe all.

    Raises:
        UnknownNameError: There is neither such a file nor such a channel.
        InputError: A channel has other columns or another unit, or no row without missing values.
        FileFormatError: The file is no TUM trajectory.
    """
    if Path(text).is_file():
        return read_tum(text, origin_ns=log.origin_ns)
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in log:
            raise UnknownNameError(
                f"reference {quote(name)} is neither a file (TUM) nor a channel of the log"
                f"{suggest_names(name, log.names)}; it has {list(log.names)[:_SHOWN_CHANNELS]}"
            )
    found = [_select_poses(log[name]) for name in names]
    widths = [series.values.shape[1] for series in found]
    if widths not in ([7], [3], [3, 4]):
        raise InputError(
            f"reference {quote(text)} must be POSITION,ORIENTATION with 3 and 4 columns, or one "
            f"channel with 7 or 3, got {widths} columns"
        )
    positions = found[0]
    if log[names[0]].unit not in ("m", "1"):
        raise InputError(f"reference {names[0]!r} must be in m, got {log[names[0]].unit}")
    if widths == [3]:
        return PoseTrack(positions.times, positions.values)
    if widths == [7]:
        return PoseTrack(positions.times, positions.values[:, :3], positions.values[:, 3:])
    # The positions of this track do not matter: it interpolates orientations.
    turns = PoseTrack(found[1].times, np.zeros((len(found[1]), 3)), found[1].values)
    inside = (positions.times >= turns.times[0]) & (positions.times <= turns.times[-1])
    positions = positions.select_rows(inside)
    return PoseTrack(
        positions.times, positions.values, turns.interpolate(positions.times).orientations
    )


def _select_poses(series: Series) -> Series:
    """Return the rows of a channel without missing values, in order of time, each stamp once.

    Args:
        series: The channel.

    Raises:
        InputError: All rows have missing values.
    """
    whole = series.complete_rows
    if not len(whole):
        raise InputError("reference has no row without missing values")
    return whole.select_rows(np.unique(whole.times, return_index=True)[1])
