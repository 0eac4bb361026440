"""The reader of a file, chosen by what is in it and not by its name.

Here are those of named arrays (NPZ, HDF5); those of tables in text are in `text_table`, those of
messages in `bag_files`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.logs.bag_files import read_bag, read_mcap
from hybridctl.logs.raw import (
    HEADER,
    MAX_BYTES,
    RawLog,
    RawTable,
    needing,
    reading,
    too_large,
)
from hybridctl.logs.text_table import find_encoding, read_table

PATIENCE = 20.0  # s
_DEFLATE = 1032  # the most that deflate can compress
_FILL = 2**20  # chunks that were never written may be declared up to this


def read_npz(path: Path) -> RawLog:
    """Return the arrays of an NPZ file. Sizes are checked first, and nothing is unpickled."""
    table = RawTable("")
    native = None
    with zipfile.ZipFile(path) as archive:
        members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        if not members:
            raise FileFormatError(f"{path}: a zip archive without arrays (.npy)")
        declared = sum(info.file_size for info in members)
        if declared > min(MAX_BYTES, _DEFLATE * path.stat().st_size + _FILL):
            raise too_large(path, "the content", declared)
        for info in members:
            name = info.filename.removesuffix(".npy")
            with archive.open(info) as member:
                value, problem = _npy(path, name, member, info.file_size)
            if name == HEADER and value is not None:
                native = json.loads(str(value))
            elif value is None:
                table.unusable[name] = problem
            else:
                table.fields[name] = value
    return RawLog(path, "npz", {"": table}, native)


def _npy(path: Path, name: str, member: Any, size: int) -> tuple[Any, str]:
    """Return the array of one member, or None and the reason."""
    version = np.lib.format.read_magic(member)
    header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if header is None:
        return None, f"npy version {version} is not known"
    shape, _, dtype = header(member)
    if dtype.hasobject:
        return None, "it holds pickled objects, which are not read"
    count = 1
    for n in shape:
        count *= n
    if count < 0 or count * dtype.itemsize > size:
        raise too_large(path, f"array {name!r}", count * dtype.itemsize)
    if dtype.kind not in "biufU":
        return None, f"its type is {dtype}"
    member.seek(0)
    return np.lib.format.read_array(member, allow_pickle=False), ""


def read_hdf5(path: Path) -> RawLog:
    """Return an HDF5 file: every dataset of numbers or text, by its path; those of MATLAB 7.3, too.

    It is unpacked in another process, for `PATIENCE` seconds at most and a second more for each
    5 MB: on a damaged file the HDF5 library may not come back, or end the process (in h5py 3.16
    still). Links to other
    files are not followed. Needs h5py (the extra `hdf5`).
    """
    with needing(path, "HDF5", "h5py", "hdf5"):
        if find_spec("h5py") is None:  # not imported here, see above
            raise ImportError
    size = path.stat().st_size
    limit = min(MAX_BYTES, 2 * _DEFLATE * size + _FILL)
    with TemporaryDirectory() as folder:
        unpacked = Path(folder) / "unpacked.npz"
        program = Path(__file__).with_name("hdf5_unpack.py")
        command = [sys.executable, str(program), str(path), str(unpacked), str(limit), HEADER]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=PATIENCE + size / 5e6, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise FileFormatError(f"{path}: damaged; reading it as HDF5 does not end") from error
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["the HDF5 library crashed"])[-1]
            raise FileFormatError(f"{path}: a damaged HDF5 file ({reason})")
        with np.load(unpacked, allow_pickle=False) as archive:
            meta = json.loads(str(archive["meta"]))
            fields = {name: archive[f"a{k}"] for k, name in enumerate(meta["names"])}
    if not fields:
        raise FileFormatError(f"{path}: an HDF5 file without datasets of numbers")
    table = RawTable("", fields, units=meta["units"], unusable=meta["unusable"])
    native = meta["native"]
    return RawLog(path, "hdf5", {"": table}, None if native is None else json.loads(native))


FORMATS = {
    "csv": "a text table (CSV)",
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
    b"MATLAB 7.3 MAT-file": "hdf5",
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
    """Return the tables of a log file or a ROS 2 bag folder, as recorded.

    Of bags, only the messages of `topics` are decoded, all without it.

    Raises FileFormatError for a file that is empty, damaged, a pointer to another, or of no known
    format, and InputError for one that is not there or needs a package that is not installed.
    """
    path = Path(path)
    kind = detect(path)
    with reading(path, FORMATS[kind]):
        if kind == "csv":
            return read_table(path)
        if kind == "npz":
            return read_npz(path)
        if kind == "hdf5":
            return read_hdf5(path)
        if kind == "mcap":
            return read_mcap(path, topics)
        return read_bag(path, topics, ros1=kind == "rosbag1")


def detect(path: Path) -> str:
    """Return the format of a file, a key of `FORMATS`, by its first bytes."""
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
    if find_encoding(head) is None:
        raise _unknown(path, head)
    return "csv"


def _unknown(path: Path, head: bytes) -> FileFormatError:
    return FileFormatError(
        f"{path}: not {', '.join(FORMATS.values())}; it begins with {head[:8]!r}"
    )
