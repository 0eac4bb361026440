"""Tosses of a cube, recorded or simulated, and contact according to their poses.

A toss is a record whose channel "pose" has position in m and quaternion x, y, z, w. Recorded
lengths are divided by a scale, which makes free flight fall with the acceleration of gravity. A
corner touches where its height is at most `tolerance`; heights are above the table's level, which
is calibrated on cubes at rest. An impact is a corner that comes to touch after having been twice as
high; the toss as a whole is in contact where any corner touches.

Measured poses are good to a few mm: the lowest corner is up to 5 mm below the table. The recorded
velocity of row k is a difference of the positions of rows k and k - 1, so it is the velocity half a
sample earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec
import numpy as np
from hybridctl.experiments.filter_models import TOSSES, CubeSettings, cube_model
from hybridctl.robots import cube
from scipy.spatial.transform import Rotation

from hybridctl.base.checks import Array, check_number, check_vector
from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.estimation.filter_model import Scenario
from hybridctl.estimation.record import Record
from hybridctl.estimation.synthetic import simulate_record
from hybridctl.logs import Log, Mapping, read_raw
from hybridctl.logs.build import build_log
from hybridctl.logs.mapping import Segment
from hybridctl.logs.raw import RawLog

ORIGIN = "DAIRLab/contact-nets on GitHub, data/tosses_processed"
CLEARANCE = 5e-3  # m, height of the lowest corner above which the cube is clearly in the air
FLAT = 2e-3  # m, largest spread of the lowest four corners of a cube at rest; a choice
STILL = 2e-2  # m/s, largest speed of a cube at rest; a choice
RESTING = 5  # rows at the end, over which the cube must be still to count as at rest; a choice
FLIGHT = 8  # least rows of a flight whose acceleration is measured; a choice
PLAUSIBLE = 0.1  # largest difference of a flight's acceleration from gravity, relative; a choice
PHASES = ("flight", "first impact", "later impacts", "touching", "in between")
ANGLE = 10.0  # rad of noise in a pose for each m
IMPACT = 3  # rows of an impact: its own and those after it; a choice
SIZES = ("half_width_m", "mass_kg", "inertia_kgm2")
VELOCITIES = {
    "velocity": {"fields": "velocity", "unit": "m/s", "frame": "table", "labels": [*"xyz"]},
    "spin": {"fields": "omega_body", "unit": "rad/s", "frame": "cube", "labels": [*"xyz"]},
}


@dataclass(frozen=True)
class Calibration:
    """Height of the table, and how far from it a corner still touches, in m; scale of lengths.

    The scale is recorded over true length; the other two are in true m.
    """

    level: float = 0.0
    tolerance: float = 2e-3
    scale: float = 1.0


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


def read_tosses(path: str, numbers: Sequence[int], settings: CubeSettings) -> dict[int, Record]:
    """Return tosses of a file by their number.

    Args:
        path: File of recordings.
        numbers: Numbers of the tosses.
        settings: Settings of the filter model whose channels are read.

    Raises:
        InputError: A toss is not in the file, or the file holds something else (`FileFormatError`).
    """
    model, mapping, content = cube_model(settings), Mapping.parse(TOSSES), read_raw(path)
    return {k: _build_log(content, mapping, k).record(model) for k in numbers}


def load_toss(path: str, index: int) -> Toss:
    """Return one toss, with the size of its cube.

    Args:
        path: File of recordings.
        index: Number of the toss.

    Raises:
        FileFormatError: The file is damaged or holds something else.
        InputError: The file or the toss is not there, or the toss has no flight before its first
            bounce.
    """
    raw, mapping = read_raw(path), Mapping.parse({**TOSSES, "truth": VELOCITIES})
    log = _build_log(raw, mapping, index)
    fields = raw.tables[""].fields
    try:
        half_width, mass, inertia = (check_number(n, fields[n], above=0.0) for n in SIZES)
        model = cube.CubeParameters(half_width=half_width, mass=mass, inertia=inertia)
    except (KeyError, InputError) as error:
        raise FileFormatError(f"{path} does not hold recorded tosses: {error}") from error
    toss = log.record(cube_model(CubeSettings()))
    poses, first = toss.channels["pose"], count_flight_rows(toss, model) - 1
    if first < 0:
        raise InputError(f"toss {index} begins on the table: choose another one")
    if first + 1 == len(poses):
        raise InputError(f"toss {index} never comes down to the table: choose another one")
    turn = Rotation.from_quat(poses.values[first, 3:])
    velocity, spin = (log[name].values[first].copy() for name in VELOCITIES)
    velocity = check_vector("velocity", np.concatenate((turn.inv().apply(velocity), spin)), 6)
    return Toss(poses.times[first:] - poses.times[first], poses.values[first:], velocity, model)


def _build_log(content: RawLog, mapping: Mapping, number: int) -> Log:
    """Return one toss of the content of a file of recordings."""
    return build_log(content, msgspec.structs.replace(mapping, segment=Segment("offset", number)))


def simulate_toss(number: int, settings: CubeSettings) -> Record:
    """Return a toss by the model of the filters, from a random start above the table.

    Args:
        number: Number of the toss, the seed of its start and noise.
        settings: Settings of the filter.
    """
    rng, model = np.random.default_rng(number), cube_model(settings)
    attitude = Rotation.random(random_state=np.random.RandomState(number)).as_quat()
    velocity = rng.normal(size=6) * [0.6, 0.6, 0.3, 3.0, 3.0, 3.0]
    scenario = Scenario(np.concatenate([[0.0, 0.0, 0.16], attitude, velocity]), np.zeros(12))
    thrown = replace(model, scenario=lambda: scenario)
    return simulate_record(thrown, replace(settings, seed=number))[0]


def corner_heights(toss: Record, p: cube.CubeParameters) -> Array:
    """Return heights (n, 8) of the sharp corners above z = 0, m.

    Args:
        toss: The toss.
        p: Parameters of the cube.
    """
    poses = toss.channels["pose"].values
    corners = p.half_width * np.array(cube.SIGNS)
    turned = Rotation.from_quat(poses[:, 3:]).as_matrix() @ corners.T
    return np.asarray(poses[:, 2:3] + turned[:, 2, :])


def count_flight_rows(toss: Record, p: cube.CubeParameters) -> int:
    """Return the number of rows before the table is near, from the first on.

    Args:
        toss: The toss.
        p: Parameters of the cube.
    """
    near = np.flatnonzero(corner_heights(toss, p).min(axis=1) < CLEARANCE)
    return int(near[0]) if len(near) else len(toss.channels["pose"])


def calibrate(tosses: Sequence[Record], p: cube.CubeParameters) -> Calibration:
    """Return the scale of lengths by free flights, and the table's height by cubes at rest.

    The scale is the median of flights' accelerations over gravity, 1 without flights. The level is
    the median height of the lowest four corners at rest; the tolerance is twice the distance from
    it that one in a hundred exceeds; without rest, 0 and 2 mm.

    Args:
        tosses: Tosses in recorded lengths.
        p: Parameters of the cube.
    """
    measured = (_measure_fall(t, p) for t in tosses)
    falls = np.array([f for f in measured if abs(f - 1.0) < PLAUSIBLE])
    scale = float(np.median(falls)) if len(falls) else 1.0
    heights = [
        np.sort(corner_heights(scale_toss(toss, 1.0 / scale), p)[-1])[:4]
        for toss in tosses
        if _is_at_rest(toss, p)
    ]
    if not heights:
        return Calibration(scale=scale)
    level = float(np.median(heights))
    spread = float(np.quantile(np.abs(np.concatenate(heights) - level), 0.99))
    return Calibration(level, 2.0 * spread, scale)


def _measure_fall(toss: Record, p: cube.CubeParameters) -> float:
    """Return the downward acceleration of the flight over gravity; nan for too short a flight."""
    poses, n = toss.channels["pose"], count_flight_rows(toss, p)
    if n < FLIGHT:
        return float("nan")
    curve = np.polyfit(poses.times[:n] - poses.times[0], poses.values[:n, 2], 2)
    return float(-2.0 * curve[0] / p.gravity)


def _is_at_rest(toss: Record, p: cube.CubeParameters) -> bool:
    """Return whether the cube lies still on a face at the end."""
    poses = toss.channels["pose"]
    speed = np.linalg.norm(np.diff(poses.values[-RESTING - 1 :, :3], axis=0), axis=1) * poses.rate
    lowest = np.sort(corner_heights(toss, p)[-1])[:4]
    return bool(len(speed) and speed.max() < STILL and np.ptp(lowest) < FLAT)


def scale_toss(toss: Record, factor: float, rise: float = 0.0) -> Record:
    """Return a toss whose lengths are multiplied, and which is then lifted.

    Args:
        toss: The toss.
        factor: Factor of its lengths.
        rise: Height that is added, m.
    """
    poses = toss.channels["pose"]
    values = poses.values * np.where(np.arange(7) < 3, factor, 1.0) + rise * np.eye(1, 7, 2)
    return Record({"pose": replace(poses, values=values)})


def level_toss(
    toss: Record, p: cube.CubeParameters, calibration: Calibration, after: float
) -> Record:
    """Return a toss in true m above a table at zero.

    Args:
        toss: Toss in recorded lengths.
        p: Parameters of the cube.
        calibration: Scale of lengths and level of the table.
        after: Time from the first touch on after which rows are left out, s.
    """
    found = scale_toss(toss, 1.0 / calibration.scale, -calibration.level)
    touching = np.flatnonzero(find_contact(corner_heights(found, p), calibration.tolerance))
    if not len(touching):
        return found
    poses = found.channels["pose"]
    end = int(touching[0] + after * poses.rate) + 1
    return Record({"pose": poses.select_rows(np.arange(min(end, len(poses))))})


class Camera(NamedTuple):
    """The camera of a filter, which takes every n-th pose and adds noise.

    blur: standard deviation of the noise in m; in rad it is `ANGLE` times that.
    """

    every: int = 1
    blur: float = 0.0

    def label(self, rate: float) -> str:
        """Return the name of the camera in tables.

        Args:
            rate: Rate of the recording, Hz.
        """
        return f"{rate / self.every:.0f} Hz" + (f", {1e3 * self.blur:g} mm" if self.blur else "")

    def select_poses(self, toss: Record) -> Record:
        """Return the poses of a toss that the camera takes, as they were recorded.

        Args:
            toss: The toss.
        """
        poses = toss.channels["pose"]
        return Record({"pose": poses.select_rows(np.arange(0, len(poses), self.every))})

    def record_toss(self, toss: Record, seed: int) -> Record:
        """Return the poses of a toss that the camera takes, with its noise by a seed.

        Args:
            toss: The toss.
            seed: Seed of the noise.
        """
        found = self.select_poses(toss)
        if not self.blur:
            return found
        poses, rng = found.channels["pose"], np.random.default_rng(seed)
        moves = self.blur * rng.normal(size=(len(poses), 6)) * np.repeat([1.0, ANGLE], 3)
        turned = Rotation.from_quat(poses.values[:, 3:]) * Rotation.from_rotvec(moves[:, 3:])
        values = np.hstack((poses.values[:, :3] + moves[:, :3], turned.as_quat()))
        return Record({"pose": replace(poses, values=values)})

    def add_noise(self, settings: CubeSettings) -> CubeSettings:
        """Return settings whose camera has this noise besides.

        Args:
            settings: Settings of the filter.
        """
        return replace(
            settings,
            position_noise=float(np.hypot(settings.position_noise, self.blur)),
            angle_noise=float(np.hypot(settings.angle_noise, ANGLE * self.blur)),
        )


def find_contact(heights: Array, tolerance: float) -> Array:
    """Return whether (n,) a corner touches in each row.

    Args:
        heights: Heights (n, 8) of the corners, m.
        tolerance: Largest height of a corner that touches, m.
    """
    return np.asarray(heights.min(axis=1) <= tolerance)


def find_impacts(heights: Array, tolerance: float) -> list[int]:
    """Return the rows at which a corner comes to touch.

    Args:
        heights: Heights (n, 8) of the corners, m.
        tolerance: Largest height of a corner that touches, m.
    """
    rows = set()
    for height in heights.T:
        away = False
        for k, z in enumerate(height):
            if away and z <= tolerance:
                rows.add(k)
            away = z > tolerance and (away or z > 2.0 * tolerance)
    return sorted(rows)


def find_rows_after_impacts(heights: Array, tolerance: float, rows: int) -> Array:
    """Return whether (n,) each row is that of an impact or one of the `rows` after it.

    Args:
        heights: Heights (n, 8) of the corners, m.
        tolerance: Largest height of a corner that touches, m.
        rows: Number of rows.
    """
    near = np.zeros(len(heights), dtype=bool)
    for k in find_impacts(heights, tolerance):
        near[k : k + rows + 1] = True
    return near


def name_phases(heights: Array, tolerance: float) -> tuple[str, ...]:
    """Return one of `PHASES` by row: impacts last `IMPACT` rows, in between no corner touches.

    Args:
        heights: Heights (n, 8) of the corners, m.
        tolerance: Largest height of a corner that touches, m.
    """
    hits = np.array(find_impacts(heights, tolerance))
    result = []
    for k, touching in enumerate(find_contact(heights, tolerance)):
        past = hits[hits <= k]
        if not len(past):
            result.append("touching" if touching else "flight")
        elif k - past[-1] < IMPACT:
            result.append("first impact" if len(past) == 1 else "later impacts")
        else:
            result.append("touching" if touching else "in between")
    return tuple(result)
