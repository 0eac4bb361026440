"""Files of named arrays: NPZ and HDF5."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from hybridctl.errors import FileFormatError
from hybridctl.logs.raw import MAX_BYTES, RawLog, RawTable, missing_extra, too_large

HEADER = "hybridctl_log"
PATIENCE = 20.0  # s
_DEFLATE = 1032  # the most that deflate can compress
_FILL = 2**20  # chunks that were never written may be declared up to this


def read_npz(path: Path) -> RawLog:
    """A zip of npy arrays; sizes are checked before anything is unpacked, nothing is unpickled."""
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
    """The array of one member, or None and the reason."""
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
    """An HDF5 file: every dataset of numbers or text, by its path.

    It is unpacked in another process, for `PATIENCE` seconds at most and a second more for each
    5 MB: on a damaged file the HDF5 library may not come back, or end the process (in h5py 3.16
    still). Links to other
    files are not followed. Needs h5py (the extra `hdf5`).
    """
    if find_spec("h5py") is None:
        raise missing_extra(path, "HDF5", "h5py", "hdf5")
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
