"""Files of named arrays: NPZ archives and HDF5 files, those of MATLAB 7.3 included.

Declared sizes are checked before anything is unpacked, and nothing is unpickled.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.logs.raw import HEADER, RawLog, RawTable
from hybridctl.logs.read_errors import MAX_BYTES, describe_excess, describe_missing_package

HDF5_TIMEOUT = 20.0
"""Time in s that the HDF5 library has for a small file. The value is a choice."""
_HDF5_SPEED = 5e6
"""Bytes per second for which a larger file gets more time: a slow disk. The value is a choice."""
_DEFLATE_RATIO = 1032
"""Largest size of data relative to their size compressed by deflate, by its format."""
_UNWRITTEN_BYTES = 2**20
"""Size in bytes that any file may declare: chunks of HDF5 that were never written take no space."""


def read_npz(path: Path) -> RawLog:
    """Return the arrays of an NPZ file.

    Args:
        path: The file.

    Raises:
        FileFormatError: The archive has no arrays, or declares more bytes than may be read.
        Exception: The archive is damaged: any error of `zipfile`, `numpy` or `json`.
    """
    table = RawTable("")
    native = None
    with zipfile.ZipFile(path) as archive:
        members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        if not members:
            raise FileFormatError(f"{path}: a zip archive without arrays (.npy)")
        declared = sum(info.file_size for info in members)
        if declared > min(MAX_BYTES, _DEFLATE_RATIO * path.stat().st_size + _UNWRITTEN_BYTES):
            raise FileFormatError(describe_excess(path, "the content", declared))
        for info in members:
            name = info.filename.removesuffix(".npy")
            with archive.open(info) as member:
                value, problem = _read_npy(path, name, member, info.file_size)
            if name == HEADER and value is not None:
                native = json.loads(str(value))
            elif value is None:
                table.unusable[name] = problem
            else:
                table.fields[name] = value
    return RawLog(path, "npz", {"": table}, native)


def _read_npy(path: Path, name: str, member: Any, size: int) -> tuple[Any, str]:
    """Return the array of one member of an NPZ file.

    Args:
        path: The file, for the error.
        name: Name of the array.
        member: Stream of the member.
        size: Size of the member in bytes, unpacked.

    Returns:
        The array and an empty text, or None and the reason why it cannot be used.

    Raises:
        FileFormatError: The array declares more bytes than the member has.
    """
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
    count = prod(shape)
    if count < 0 or count * dtype.itemsize > size:
        raise FileFormatError(describe_excess(path, f"array {name!r}", count * dtype.itemsize))
    if dtype.kind not in "biufU":
        return None, f"its type is {dtype}"
    member.seek(0)
    return np.lib.format.read_array(member, allow_pickle=False), ""


def read_hdf5(path: Path) -> RawLog:
    """Return every dataset of numbers or text of an HDF5 file, by its path.

    The file is unpacked in another process with a time limit, see `hdf5_unpack`. Links to other
    files are not followed.

    Args:
        path: The file.

    Raises:
        FileFormatError: The file is damaged, too large, or has no datasets of numbers.
        InputError: The package h5py is missing.
    """
    if find_spec("h5py") is None:  # it is imported in the other process alone
        raise InputError(describe_missing_package(path, "HDF5", "h5py", "hdf5"))
    size = path.stat().st_size
    # Twice, because HDF5 has other filters than deflate. The factor is a choice.
    limit = min(MAX_BYTES, 2 * _DEFLATE_RATIO * size + _UNWRITTEN_BYTES)
    with TemporaryDirectory() as folder:
        unpacked = Path(folder) / "unpacked.npz"
        program = Path(__file__).with_name("hdf5_unpack.py")
        command = [sys.executable, str(program), str(path), str(unpacked), str(limit), HEADER]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=HDF5_TIMEOUT + size / _HDF5_SPEED,
                check=False,
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
