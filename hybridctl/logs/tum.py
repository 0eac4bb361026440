"""Trajectories in TUM's format: `timestamp tx ty tz qx qy qz qw`, a pose a line, `#` for comments.

Stamps are in s, positions in m, quaternions have w last. Evaluation tools such as `evo` read it. A
stamp before 1e8 s (1973) counts from the start of a log, a later one from 1970.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from pathlib import Path

import numpy as np

from hybridctl.base import checks
from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.base.files import atomic, read_text
from hybridctl.estimation.pose_track import PoseTrack
from hybridctl.logs.stamps import EPOCH_STAMP

COLUMNS = ("timestamp", "tx", "ty", "tz", "qx", "qy", "qz", "qw")
"""Columns of a line: stamp in s, position in m, quaternion."""
MOST_BYTES = 2**28
"""Largest file in bytes that is read: some two million poses."""
_NANOSECONDS = Decimal(10) ** 9
"""Nanoseconds in a second; decimal numbers keep all digits of stamps of today."""


def write_tum(path: str | Path, track: PoseTrack, *, origin_ns: int = 0) -> None:
    """Write a track as a TUM trajectory; the file is written whole or not at all.

    Args:
        path: File to write.
        track: Poses, with orientations.
        origin_ns: Time of stamp 0 in ns since 1970, 0 where it is not known. Stamps in the file
            count from there, exact to 1 ns.

    Raises:
        InputError: `track` is no `PoseTrack`, or has no orientations.
    """
    turns = checks.check_instance("track", track, PoseTrack).orientations
    if turns is None:
        raise InputError("a TUM trajectory needs orientations, and the track has none")
    rows = np.hstack([track.positions, turns]).tolist()
    lines = [f"# {' '.join(COLUMNS)}"]
    for time, row in zip(track.times.tolist(), rows, strict=True):
        stamp = Decimal(origin_ns + round(time * 1e9)) / _NANOSECONDS
        lines.append(f"{stamp:.9f} {' '.join(map(repr, row))}")
    with atomic(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_tum(path: str | Path, *, origin_ns: int = 0) -> PoseTrack:
    """Return the track in a TUM trajectory, in order of time, each stamp once.

    Args:
        path: File to read. Cells may be separated by blanks or commas. Rows with NaN are left out.
        origin_ns: Time in ns since 1970 from which the stamps of the track count, such as the
            origin of a log. Stamps that do not count since 1970 stay as they are.

    Raises:
        InputError: The file does not exist.
        FileFormatError: A line has no eight numbers, a quaternion is not of unit length, there is
            no pose, or the file has more than `MOST_BYTES`.
    """
    path = checks.check_path("path", path)
    if not path.is_file():
        raise InputError(f"reference {checks.quote(str(path))} does not exist")
    stamps, rows = list[int](), list[list[float]]()
    for number, line in enumerate(read_text("reference", path, MOST_BYTES).splitlines(), 1):
        cells = line.partition("#")[0].replace(",", " ").split()
        if not cells:
            continue
        try:
            stamp, values = Decimal(cells[0]) * _NANOSECONDS, [float(cell) for cell in cells[1:]]
        except (InvalidOperation, ValueError) as error:
            raise FileFormatError(_describe_line(path, number, line)) from error
        if len(values) != len(COLUMNS) - 1 or not stamp.is_finite():
            raise FileFormatError(_describe_line(path, number, line))
        stamps.append(int(stamp.to_integral_value()))
        rows.append(values)
    poses = np.array(rows).reshape(-1, 7)
    known = np.isfinite(poses).all(axis=1)
    if not known.any():
        raise FileFormatError(f"{path}: no pose; a line is `{' '.join(COLUMNS)}`")
    origin = origin_ns if stamps[int(known.argmax())] >= EPOCH_STAMP * 1e9 else 0
    times = np.array([(stamp - origin) / 1e9 for stamp in stamps])[known]
    times, first = np.unique(times, return_index=True)
    poses = poses[known][first]
    try:
        return PoseTrack(times, poses[:, :3], poses[:, 3:])
    except InputError as error:
        raise FileFormatError(f"{path}: {error}") from error


def _describe_line(path: Path, number: int, line: str) -> str:
    """Return the text of the error for a line that is no pose."""
    return (
        f"{path}, line {number}: {checks.quote(line)} is no pose; a line is `{' '.join(COLUMNS)}`"
    )
