"""Trajectories in TUM's format: `timestamp tx ty tz qx qy qz qw`, a pose a line, `#` for comments.

Stamps are seconds, positions metres, quaternions have w last. Evaluation tools such as `evo` read
it. A stamp before 1e8 s (1973) counts from the start of a log, a later one since 1970.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from pathlib import Path

import numpy as np

from hybridctl.base import checks
from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.base.files import atomic, read_text
from hybridctl.estimation.pose_track import PoseTrack

COLUMNS = ("timestamp", "tx", "ty", "tz", "qx", "qy", "qz", "qw")
EPOCH_STAMP = 1e8
"""Stamp in s from which on stamps count since 1970: no log lasts three years, and no robot logged
in 1973."""
MOST_BYTES = 2**28
"""Largest file in bytes that is read: some two million poses."""
_NANO = Decimal(10) ** 9


def write_tum(path: str | Path, track: PoseTrack, *, origin_ns: int = 0) -> None:
    """Write a track as a TUM trajectory; the file is written whole or not at all.

    Args:
        path: File to write.
        track: Poses, with orientations.
        origin_ns: Time of stamp 0 in ns since 1970, 0 where it is not known. Stamps in the file
            count from there, exact to 1 ns.

    Raises:
        InputError: The track has no orientations.
    """
    turns = checks.check_instance("track", track, PoseTrack).orientations
    if turns is None:
        raise InputError("a TUM trajectory needs orientations, and the track has none")
    rows = np.hstack([track.positions, turns]).tolist()
    lines = [f"# {' '.join(COLUMNS)}"]
    for time, row in zip(track.times.tolist(), rows, strict=True):
        stamp = Decimal(origin_ns + round(time * 1e9)) / _NANO
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
        FileFormatError: A line has no eight numbers, a quaternion is none, or there is no pose.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"reference {checks.quote(str(path))} does not exist")
    stamps, rows = list[int](), list[list[float]]()
    for number, line in enumerate(read_text("reference", path, MOST_BYTES).splitlines(), 1):
        cells = line.partition("#")[0].replace(",", " ").split()
        if not cells:
            continue
        try:
            stamp, values = Decimal(cells[0]) * _NANO, [float(cell) for cell in cells[1:]]
        except (InvalidOperation, ValueError) as error:
            raise _refuse(path, number, line) from error
        if len(values) != 7 or not stamp.is_finite():
            raise _refuse(path, number, line)
        stamps.append(int(stamp.to_integral_value()))
        rows.append(values)
    poses = np.array(rows).reshape(-1, 7)
    known = np.isfinite(poses).all(axis=1)
    if not known.any():
        raise FileFormatError(f"{path}: no pose; a line is `{' '.join(COLUMNS)}`")
    begins = origin_ns if stamps[int(known.argmax())] >= EPOCH_STAMP * 1e9 else 0
    times = np.array([(stamp - begins) / 1e9 for stamp in stamps])[known]
    times, first = np.unique(times, return_index=True)
    poses = poses[known][first]
    try:
        return PoseTrack(times, poses[:, :3], poses[:, 3:])
    except InputError as error:
        raise FileFormatError(f"{path}: {error}") from error


def _refuse(path: Path, number: int, line: str) -> FileFormatError:
    """Return the error for a line that is no pose."""
    return FileFormatError(
        f"{path}, line {number}: {checks.quote(line)} is no pose; a line is `{' '.join(COLUMNS)}`"
    )
