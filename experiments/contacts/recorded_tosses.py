"""Recorded tosses of a cube, from the .npz file that the readme of the recordings describes.

The measured poses are good to a few mm: the lowest corner is up to 5 mm below the table. The
recorded velocity of row k is a difference of the positions of rows k and k - 1, so it is the
velocity half a sample earlier.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
from hybridctl.robots import cube
from hybridctl.robots.filter_models import TOSSES
from scipy.spatial.transform import Rotation

from hybridctl.checks import Array, number, vector
from hybridctl.errors import FileFormatError, InputError
from hybridctl.logs import Mapping, read_raw
from hybridctl.logs.build import build
from hybridctl.logs.mapping import Segment
from hybridctl.mechanics import ContactDynamics

SIZES = ("half_width_m", "mass_kg", "inertia_kgm2")
CLEARANCE = 5e-3  # m, above which the lowest corner is clearly in the air
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
    log = build(raw, msgspec.structs.replace(mapping, segment=Segment("offset", index)))
    fields = raw.tables[""].fields
    try:
        sizes = (number(name, fields[name], above=0.0) for name in SIZES)
        model = cube.CubeParameters(
            **dict(zip(("half_width", "mass", "inertia"), sizes, strict=True))
        )
    except (KeyError, InputError) as error:
        raise FileFormatError(f"{path} does not hold recorded tosses: {error}") from error
    poses = np.hstack((log["position"].values, log["orientation"].values))
    first = last_row_in_the_air(poses, model, index)
    turn = Rotation.from_quat(poses[first, 3:])
    velocity, spin = (log[name].values[first].copy() for name in VELOCITIES)
    times = log["position"].times[first:]
    return Toss(
        times - times[0],
        poses[first:],
        vector("velocity", np.concatenate((turn.inv().apply(velocity), spin)), 6),
        model,
    )


def last_row_in_the_air(poses: Array, model: cube.CubeParameters, index: int) -> int:
    """The row before the lowest corner first comes nearer to the table than `CLEARANCE`."""
    dynamics = ContactDynamics(cube.robot(model), cube.contacts(model))
    low = np.flatnonzero([dynamics.gaps(pose).min() < CLEARANCE for pose in poses])
    if not len(low):
        raise InputError(f"toss {index} never comes down to the table: choose another one")
    if low[0] == 0:
        raise InputError(f"toss {index} begins on the table: choose another one")
    return int(low[0]) - 1
