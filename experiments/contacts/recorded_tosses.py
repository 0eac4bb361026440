"""Recorded tosses of a cube, from the .npz file that the readme of the recordings describes.

The measured poses are good to a few mm: the lowest corner is up to 5 mm below the table. The
recorded velocity of row k is a difference of the positions of rows k and k - 1, so it is the
velocity half a sample earlier.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hybridctl.experiments.cube_filter.tosses import rows_in_flight, toss_log
from hybridctl.experiments.filter_models import TOSSES, CubeSettings, cube_model
from hybridctl.robots import cube
from scipy.spatial.transform import Rotation

from hybridctl.base.checks import Array, check_number, check_vector
from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.logs import Mapping, read_raw

SIZES = ("half_width_m", "mass_kg", "inertia_kgm2")
VELOCITIES = {
    "velocity": {"fields": "velocity", "unit": "m/s", "frame": "table", "labels": [*"xyz"]},
    "spin": {"fields": "omega_body", "unit": "rad/s", "frame": "cube", "labels": [*"xyz"]},
}


@dataclass(frozen=True)
class Toss:
    """A recording from the last row before the first bounce on.

    times (n,) from 0, in s; poses (n, 7): position in m and quaternion x, y, z, w; velocity (6,)
    at its start, in the frame of the cube. cube: its size, mass and inertia.
    """

    times: Array
    poses: Array
    velocity: Array
    cube: cube.CubeParameters


def load_toss(path: str, index: int) -> Toss:
    """Read one toss.

    Raises `FileFormatError` for a file that is damaged or holds something else, and `InputError`
    for one that is not there, and for a toss that is not in it or has no flight before its first
    bounce.
    """
    raw, mapping = read_raw(path), Mapping.parse({**TOSSES, "truth": VELOCITIES})
    log = toss_log(raw, mapping, index)
    fields = raw.tables[""].fields
    try:
        sizes = (check_number(name, fields[name], above=0.0) for name in SIZES)
        model = cube.CubeParameters(
            **dict(zip(("half_width", "mass", "inertia"), sizes, strict=True))
        )
    except (KeyError, InputError) as error:
        raise FileFormatError(f"{path} does not hold recorded tosses: {error}") from error
    toss = log.record(cube_model(CubeSettings()))
    poses, first = toss.channels["pose"], rows_in_flight(toss, model) - 1
    if first < 0:
        raise InputError(f"toss {index} begins on the table: choose another one")
    if first + 1 == len(poses):
        raise InputError(f"toss {index} never comes down to the table: choose another one")
    turn = Rotation.from_quat(poses.values[first, 3:])
    velocity, spin = (log[name].values[first].copy() for name in VELOCITIES)
    times = poses.times[first:]
    return Toss(
        times - times[0],
        poses.values[first:],
        check_vector("velocity", np.concatenate((turn.inv().apply(velocity), spin)), 6),
        model,
    )
