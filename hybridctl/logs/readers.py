"""The format of a log file, by its first bytes and not by its name, and the reader for it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from hybridctl.base.checks import check_path
from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.logs.array_files import read_hdf5, read_npz
from hybridctl.logs.bag_files import read_bag
from hybridctl.logs.mcap_files import MCAP_MAGIC, read_mcap
from hybridctl.logs.raw import RawLog
from hybridctl.logs.read_errors import name_file_in_errors
from hybridctl.logs.text_encoding import find_encoding
from hybridctl.logs.text_table import read_table

FORMATS = {
    "csv": "a text table (CSV)",
    "npz": "an NPZ archive",
    "hdf5": "an HDF5 file",
    "rosbag1": "a ROS 1 bag",
    "rosbag2": "a ROS 2 bag",
    "mcap": "an MCAP file",
}
"""Names of the formats in words."""
_FORMAT_OF_MAGIC = {
    b"PK\x03\x04": "npz",
    b"PK\x05\x06": "npz",
    b"\x89HDF\r\n\x1a\n": "hdf5",
    b"MATLAB 7.3 MAT-file": "hdf5",
    b"#ROSBAG V2.0\n": "rosbag1",
    b"SQLite format 3\0": "rosbag2",
    MCAP_MAGIC: "mcap",
}
"""Format by the first bytes of a file; text tables have none."""
_REASON_OF_MAGIC = {
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
"""Reason why a file that begins with these bytes cannot be read, with the remedy."""
_ANNEX = "a git-annex link whose content is not here; fetch it with `git annex get`"
_HEAD_BYTES = 65536
"""Bytes by which the format is found: enough lines of text to know its encoding by."""


def read_raw(path: str | Path, topics: Collection[str] | None = None) -> RawLog:
    """Return the tables of a log file or a ROS 2 bag folder, as recorded.

    Args:
        path: The file or folder.
        topics: Topics whose messages are decoded, of bags and MCAP files; None for all.

    Raises:
        FileFormatError: The file is empty, damaged, a pointer to another, or of no known format.
        InputError: The file does not exist, or a package that reads its format is missing.
    """
    path = check_path("path", path)
    kind = detect_format(path)
    with name_file_in_errors(path, FORMATS[kind]):
        if kind == "csv":
            return read_table(path)
        if kind == "npz":
            return read_npz(path)
        if kind == "hdf5":
            return read_hdf5(path)
        if kind == "mcap":
            return read_mcap(path, topics)
        return read_bag(path, topics, ros1=kind == "rosbag1")


def detect_format(path: Path) -> str:
    """Return the format of a file, a key of `FORMATS`, by its first bytes.

    Args:
        path: A file, or the folder of a ROS 2 bag.

    Raises:
        FileFormatError: The file is empty, a link to nothing, or of no format that can be read.
        InputError: The file does not exist.
    """
    if path.is_symlink() and not path.exists():
        annexed = "annex" in str(path.readlink())
        raise FileFormatError(f"{path}: {_ANNEX if annexed else 'a link to nothing'}")
    if not path.exists():
        raise InputError(f"log {str(path)!r} does not exist")
    if path.is_dir():
        names = [file.name for file in path.iterdir()]
        if "metadata.yaml" in names or any(name.endswith((".mcap", ".db3")) for name in names):
            return "rosbag2"
        raise FileFormatError(
            f"{path}: a folder without metadata.yaml, .mcap or .db3, so not a ROS 2 bag"
        )
    if not path.is_file():
        raise FileFormatError(f"{path}: neither a file nor a folder")
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    return _detect_by_content(path, head)


def _detect_by_content(path: Path, head: bytes) -> str:
    """Return the format of a file.

    Args:
        path: The file, for errors.
        head: Its first bytes.

    Raises:
        FileFormatError: The bytes are those of no format that can be read.
    """
    if not head.strip(b" \t\r\n\0"):
        raise FileFormatError(f"{path}: {'empty' if not head else 'nothing but blanks or zeros'}")
    for magic, reason in _REASON_OF_MAGIC.items():
        if head.startswith(magic):
            raise FileFormatError(f"{path}: {reason}")
    if head.startswith(b"/annex/objects/"):
        raise FileFormatError(f"{path}: {_ANNEX}")
    for magic, kind in _FORMAT_OF_MAGIC.items():
        if head.startswith(magic):
            return kind
    if find_encoding(head) is None:
        raise FileFormatError(
            f"{path}: not {', '.join(FORMATS.values())}; it begins with {head[:8]!r}"
        )
    return "csv"
