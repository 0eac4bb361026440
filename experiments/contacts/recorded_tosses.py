"""Recorded tosses of a cube, from the .npz file that the readme of the recordings describes.

The measured poses are good to a few mm: the lowest corner is up to 5 mm below the table. The
recorded velocity of row k is a difference of the positions of rows k and k - 1, so it is the
velocity half a sample earlier.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from hybridctl.robots import cube
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from hybridctl.checks import Array, array, count, number
from hybridctl.errors import FileFormatError, InputError
from hybridctl.logs import read_raw
from hybridctl.logs.raw import RawTable
from hybridctl.mechanics import ContactDynamics

CLEARANCE = 5e-3  # m, above which the lowest corner is clearly in the air
COLUMNS = {"position": 3, "quat_wxyz": 4, "velocity": 3, "omega_body": 3}
SCALARS = ("rate_hz", "half_width_m", "mass_kg", "inertia_kgm2")
UNIT = 1e-3  # how far from one the norm of a recorded quaternion may be


@dataclass(frozen=True)
class Toss:
    """A recording from the last row before the first bounce on.

    times (n,) from 0, in s; poses (n, 7): position in m and quaternion x, y, z, w; velocity (6,)
    at its start, in the frame of the cube. half_width, mass, inertia: of the cube, in SI units.
    """

    times: Array
    poses: Array
    velocity: Array
    half_width: float
    mass: float
    inertia: float


def load_toss(path: str, index: int) -> Toss:
    """Read one toss.

    Raises `FileFormatError` for a file that is damaged or holds something else, and `InputError`
    for one that is not there, and for a toss that is not in it or has no flight before its first
    bounce.
    """
    content = read_tosses(path)
    tosses = len(content["offset"]) - 1
    if count("toss", index, at_least=0) >= tosses:
        raise InputError(f"toss must be less than {tosses}, the tosses in {path}, got {index}")
    rows = slice(*content["offset"][index : index + 2].astype(int))
    position, quaternion, velocity, omega = (content[name][rows] for name in COLUMNS)
    poses = np.hstack((position, np.roll(quaternion, -1, axis=1)))
    poses[:, 3:] /= np.linalg.norm(poses[:, 3:], axis=1, keepdims=True)
    rate, half_width, mass, inertia = (float(content[name]) for name in SCALARS)
    first = last_row_in_the_air(poses, half_width, index)
    turn = Rotation.from_quat(poses[first, 3:])
    return Toss(
        np.arange(len(poses) - first) / rate,
        poses[first:],
        np.concatenate((turn.inv().apply(velocity[first].copy()), omega[first])),
        half_width,
        mass,
        inertia,
    )


def last_row_in_the_air(poses: Array, half_width: float, index: int) -> int:
    """The row before the lowest corner first comes nearer to the table than `CLEARANCE`."""
    model = cube.Parameters(half_width=half_width)
    dynamics = ContactDynamics(cube.robot(model), cube.contacts(model))
    low = np.flatnonzero([dynamics.gaps(pose).min() < CLEARANCE for pose in poses])
    if not len(low):
        raise InputError(f"toss {index} never comes down to the table: choose another one")
    if low[0] == 0:
        raise InputError(f"toss {index} begins on the table: choose another one")
    return int(low[0]) - 1


def read_tosses(path: str) -> dict[str, Array]:
    """All arrays of the file, of the right shapes; `FileFormatError` if they are not there."""
    shapes = {"offset": (None,), **{n: (None, k) for n, k in COLUMNS.items()}}
    fields = read_raw(path).tables.get("", RawTable("", {})).fields
    try:
        numbers = {name: _numbers(fields, name) for name in (*shapes, *SCALARS)}
        content = {name: array(name, numbers[name], shape) for name, shape in shapes.items()}
        for name in SCALARS:
            content[name] = np.array(number(name, numbers[name], above=0.0))
        _check_rows(content)
    except InputError as error:
        raise FileFormatError(f"{path} does not hold recorded tosses: {error}") from error
    return content


def _numbers(fields: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any]:
    """An array of the file; `InputError` if it is not there or holds something else."""
    if name not in fields:
        raise InputError(f"it has no array {name!r}")
    if fields[name].dtype.kind not in "iuf":
        raise InputError(f"{name} must hold real numbers, got {fields[name].dtype}")
    return fields[name]


def _check_rows(content: Mapping[str, Array]) -> None:
    """Raise `InputError` for arrays that do not fit together."""
    offset, rows = content["offset"], len(content["position"])
    whole = len(offset) >= 2 and not (offset % 1.0).any()
    if not whole or (np.diff(offset) < 1).any() or (offset[0], offset[-1]) != (0, rows):
        raise InputError(f"offset must increase from 0 to {rows}, the rows there are")
    for name, width in COLUMNS.items():
        array(name, content[name], (rows, width))
    if np.abs(np.linalg.norm(content["quat_wxyz"], axis=1) - 1.0).max() > UNIT:
        raise InputError("quat_wxyz must have norm 1")
