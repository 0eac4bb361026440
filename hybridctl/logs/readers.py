"""The reader of a file, chosen by what is in it and not by its name."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from hybridctl.errors import FileFormatError, InputError
from hybridctl.logs.arrays import read_hdf5, read_npz
from hybridctl.logs.bags import read_bag, read_mcap
from hybridctl.logs.raw import RawLog, reading
from hybridctl.logs.text import read_csv

FORMATS = {
    "csv": "a table in text",
    "npz": "an NPZ archive",
    "hdf5": "an HDF5 file",
    "rosbag1": "a ROS 1 bag",
    "rosbag2": "a ROS 2 bag",
    "mcap": "an MCAP file",
}
_MAGIC = {
    b"PK\x03\x04": "npz",
    b"PK\x05\x06": "npz",
    b"\x89HDF\r\n\x1a\n": "hdf5",
    b"#ROSBAG V2.0\n": "rosbag1",
    b"SQLite format 3\0": "rosbag2",
    b"\x89MCAP0\r\n": "mcap",
}
_REFUSED = {
    b"version https://git-lfs.github.com/spec/": (
        "a Git LFS pointer, not the file itself; fetch it with `git lfs pull`"
    ),
    b"\x93NUMPY": "a single array (npy) without names; save it with its stamps by numpy.savez",
    b"\x1f\x8b": "compressed with gzip; unpack it first",
    b"BZh": "compressed with bzip2; unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed with zstd; unpack it first",
    b"\xfd7zXZ\0": "compressed with xz; unpack it first",
    b"#ROSBAG V1": "a ROS bag of version 1, which is not read; convert it to version 2.0",
}
_ANNEX = "a git-annex link whose content is not here; fetch it with `git annex get`"
_HEAD = 65536


def read_raw(path: str | Path, topics: Collection[str] | None = None) -> RawLog:
    """The tables of a log file or a ROS 2 bag folder, as recorded.

    Of bags, only the messages of `topics` are decoded, all without it.

    Raises FileFormatError for a file that is empty, damaged, a pointer to another, or of no known
    format, and InputError for one that is not there or needs a package that is not installed.
    """
    path = Path(path)
    kind = detect(path)
    with reading(path, FORMATS[kind]):
        if kind == "csv":
            return read_csv(path)
        if kind == "npz":
            return read_npz(path)
        if kind == "hdf5":
            return read_hdf5(path)
        if kind == "mcap":
            return read_mcap(path, topics)
        return read_bag(path, topics, ros1=kind == "rosbag1")


def detect(path: Path) -> str:
    """The format of a file, a key of `FORMATS`, by its first bytes."""
    if path.is_symlink() and not path.exists():
        annexed = "annex" in str(path.readlink())
        raise FileFormatError(f"{path}: {_ANNEX if annexed else 'a link to nothing'}")
    if not path.exists():
        raise InputError(f"log {str(path)!r} does not exist")
    if path.is_dir():
        if (path / "metadata.yaml").is_file():
            return "rosbag2"
        raise FileFormatError(f"{path}: a folder without metadata.yaml, so not a ROS 2 bag")
    if not path.is_file():
        raise FileFormatError(f"{path}: neither a file nor a folder")
    with path.open("rb") as file:
        head = file.read(_HEAD)
    return _by_content(path, head)


def _by_content(path: Path, head: bytes) -> str:
    if not head.strip(b" \t\r\n\0"):
        raise FileFormatError(f"{path}: {'empty' if not head else 'nothing but blanks or zeros'}")
    for magic, reason in _REFUSED.items():
        if head.startswith(magic):
            raise FileFormatError(f"{path}: {reason}")
    if head.startswith(b"/annex/objects/"):
        raise FileFormatError(f"{path}: {_ANNEX}")
    for magic, kind in _MAGIC.items():
        if head.startswith(magic):
            return kind
    try:
        head[: _HEAD - 4].decode("utf-8")  # the last character may be cut
    except UnicodeDecodeError as error:
        if len(head) - error.start > 4 or error.reason != "unexpected end of data":
            raise _unknown(path, head) from error
    if b"\0" in head:
        raise _unknown(path, head)
    return "csv"


def _unknown(path: Path, head: bytes) -> FileFormatError:
    return FileFormatError(
        f"{path}: not {', '.join(FORMATS.values())}; it begins with {head[:8]!r}"
    )
