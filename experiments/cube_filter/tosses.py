"""Tosses of a cube, recorded or made up, and what their poses say about contact.

A toss is a record whose channel "pose" has position in m and quaternion x, y, z, w. Recorded
lengths are divided by a scale, which makes free flight fall with the acceleration of gravity. A
corner touches where its height is at most `tolerance`; heights are those above the table's level,
which is calibrated on cubes at rest. An impact is a corner that comes to touch after having been
twice as high; the toss as a whole is in contact where any corner touches.
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

from hybridctl.base.checks import Array
from hybridctl.estimation.filter_model import Scenario
from hybridctl.estimation.record import Record
from hybridctl.estimation.synthetic import simulate_record
from hybridctl.logs import Log, Mapping, read_raw
from hybridctl.logs.build import build_log
from hybridctl.logs.mapping import Segment
from hybridctl.logs.raw import RawLog

ORIGIN = "DAIRLab/contact-nets on GitHub, data/tosses_processed"
CLEARANCE = 5e-3  # m, above which the lowest corner is clearly in the air
FLAT = 2e-3  # m, spread of the lowest four corners of a cube at rest
STILL = 2e-2  # m/s
RESTING = 5  # rows at the end, over which the cube must be still to count as at rest
FLIGHT = 8  # rows that a flight has at least, to measure its acceleration
PLAUSIBLE = 0.1  # by how much a flight's acceleration may differ from gravity, relative
PHASES = ("flight", "first impact", "later impacts", "touching", "in between")
ANGLE = 10.0  # rad of noise in a pose for each m
IMPACT = 3  # rows of an impact: its own and those after it


@dataclass(frozen=True)
class Calibration:
    """Height of the table, and how far from it a corner still touches, in m; scale of lengths.

    The scale is recorded over true length; the other two are in true m.
    """

    level: float = 0.0
    tolerance: float = 2e-3
    scale: float = 1.0


def recorded(path: str, numbers: Sequence[int], settings: CubeSettings) -> dict[int, Record]:
    """Tosses of a file by their number.

    Raises `FileFormatError` for a file that holds something else, `InputError` for a toss that is
    not in it.
    """
    model, mapping, content = cube_model(settings), Mapping.parse(TOSSES), read_raw(path)
    return {k: toss_log(content, mapping, k).record(model) for k in numbers}


def toss_log(content: RawLog, mapping: Mapping, number: int) -> Log:
    """One toss of what a file of recordings holds."""
    own = msgspec.structs.replace(mapping, segment=Segment("offset", number))
    return build_log(content, own)


def simulated(number: int, settings: CubeSettings) -> Record:
    """A toss by the model of the filters, from a random start above the table."""
    rng, model = np.random.default_rng(number), cube_model(settings)
    attitude = Rotation.random(random_state=np.random.RandomState(number)).as_quat()
    velocity = rng.normal(size=6) * [0.6, 0.6, 0.3, 3.0, 3.0, 3.0]
    scenario = Scenario(np.concatenate([[0.0, 0.0, 0.16], attitude, velocity]), np.zeros(12))
    thrown = replace(model, scenario=lambda: scenario)
    return simulate_record(thrown, replace(settings, seed=number))[0]


def corner_heights(toss: Record, p: cube.CubeParameters) -> Array:
    """Heights (n, 8) of the sharp corners above z = 0."""
    poses = toss.channels["pose"].values
    corners = p.half_width * np.array(cube.SIGNS)
    turned = Rotation.from_quat(poses[:, 3:]).as_matrix() @ corners.T
    return np.asarray(poses[:, 2:3] + turned[:, 2, :])


def rows_in_flight(toss: Record, p: cube.CubeParameters) -> int:
    """How many rows come before the table is near, from the first on."""
    near = np.flatnonzero(corner_heights(toss, p).min(axis=1) < CLEARANCE)
    return int(near[0]) if len(near) else len(toss.channels["pose"])


def calibrate(tosses: Sequence[Record], p: cube.CubeParameters) -> Calibration:
    """The scale of lengths by free flights, and the table's height by tosses that end at rest.

    The scale is the median of flights' accelerations over gravity, 1 without flights. The level is
    the median height of the lowest four corners at rest; the tolerance twice the largest distance
    from it, but for one in a hundred; without rest, 0 and 2 mm.
    """
    falls = np.array([f for f in (_fall(t, p) for t in tosses) if abs(f - 1.0) < PLAUSIBLE])
    scale = float(np.median(falls)) if len(falls) else 1.0
    heights = [
        np.sort(corner_heights(moved(toss, 1.0 / scale), p)[-1])[:4]
        for toss in tosses
        if _rests(toss, p)
    ]
    if not heights:
        return Calibration(scale=scale)
    level = float(np.median(heights))
    spread = float(np.quantile(np.abs(np.concatenate(heights) - level), 0.99))
    return Calibration(level, 2.0 * spread, scale)


def _fall(toss: Record, p: cube.CubeParameters) -> float:
    """Downward acceleration over gravity, before the table is near; nan for too short a flight."""
    poses, n = toss.channels["pose"], rows_in_flight(toss, p)
    if n < FLIGHT:
        return float("nan")
    curve = np.polyfit(poses.times[:n] - poses.times[0], poses.values[:n, 2], 2)
    return float(-2.0 * curve[0] / p.gravity)


def _rests(toss: Record, p: cube.CubeParameters) -> bool:
    poses = toss.channels["pose"]
    speed = np.linalg.norm(np.diff(poses.values[-RESTING - 1 :, :3], axis=0), axis=1) * poses.rate
    lowest = np.sort(corner_heights(toss, p)[-1])[:4]
    return bool(len(speed) and speed.max() < STILL and np.ptp(lowest) < FLAT)


def moved(toss: Record, factor: float, rise: float = 0.0) -> Record:
    """A toss with its lengths times a factor, and higher by `rise` in m then."""
    poses = toss.channels["pose"]
    values = poses.values * np.where(np.arange(7) < 3, factor, 1.0) + rise * np.eye(1, 7, 2)
    return Record({"pose": replace(poses, values=values)})


def levelled(
    toss: Record, p: cube.CubeParameters, calibration: Calibration, after: float
) -> Record:
    """The toss in true m above a table at zero, up to `after` s from its first touch on."""
    found = moved(toss, 1.0 / calibration.scale, -calibration.level)
    touching = np.flatnonzero(in_contact(corner_heights(found, p), calibration.tolerance))
    if not len(touching):
        return found
    poses = found.channels["pose"]
    end = int(touching[0] + after * poses.rate) + 1
    return Record({"pose": poses.select_rows(np.arange(min(end, len(poses))))})


class Camera(NamedTuple):
    """The camera that a filter sees a toss by: it takes every n-th pose and adds noise.

    blur: its deviation in m; in rad it is ten times that.
    """

    every: int = 1
    blur: float = 0.0

    def label(self, rate: float) -> str:
        """The camera in tables."""
        return f"{rate / self.every:.0f} Hz" + (f", {1e3 * self.blur:g} mm" if self.blur else "")

    def thinned(self, toss: Record) -> Record:
        """The poses of a toss that the camera takes, as they were recorded."""
        poses = toss.channels["pose"]
        return Record({"pose": poses.select_rows(np.arange(0, len(poses), self.every))})

    def seen(self, toss: Record, seed: int) -> Record:
        """The poses of a toss that the camera takes, with its noise."""
        found = self.thinned(toss)
        if not self.blur:
            return found
        poses, rng = found.channels["pose"], np.random.default_rng(seed)
        moves = self.blur * rng.normal(size=(len(poses), 6)) * np.repeat([1.0, ANGLE], 3)
        turned = Rotation.from_quat(poses.values[:, 3:]) * Rotation.from_rotvec(moves[:, 3:])
        values = np.hstack((poses.values[:, :3] + moves[:, :3], turned.as_quat()))
        return Record({"pose": replace(poses, values=values)})

    def levels(self, settings: CubeSettings) -> CubeSettings:
        """Settings whose camera has this noise besides."""
        return replace(
            settings,
            position_noise=float(np.hypot(settings.position_noise, self.blur)),
            angle_noise=float(np.hypot(settings.angle_noise, ANGLE * self.blur)),
        )


def in_contact(heights: Array, tolerance: float) -> Array:
    """Whether a corner touches, for each row (n,) of heights (n, 8)."""
    return np.asarray(heights.min(axis=1) <= tolerance)


def impacts(heights: Array, tolerance: float) -> list[int]:
    """The rows at which a corner comes to touch."""
    rows = set()
    for height in heights.T:
        away = False
        for k, z in enumerate(height):
            if away and z <= tolerance:
                rows.add(k)
            away = z > tolerance and (away or z > 2.0 * tolerance)
    return sorted(rows)


def after_impacts(heights: Array, tolerance: float, rows: int) -> Array:
    """The rows (n,) of an impact or of the `rows` after it, as flags."""
    near = np.zeros(len(heights), dtype=bool)
    for k in impacts(heights, tolerance):
        near[k : k + rows + 1] = True
    return near


def phases(heights: Array, tolerance: float) -> tuple[str, ...]:
    """One of `PHASES` for each row: impacts last `IMPACT` rows, in between no corner touches."""
    hits = np.array(impacts(heights, tolerance))
    result = []
    for k, touching in enumerate(in_contact(heights, tolerance)):
        past = hits[hits <= k]
        if not len(past):
            result.append("touching" if touching else "flight")
        elif k - past[-1] < IMPACT:
            result.append("first impact" if len(past) == 1 else "later impacts")
        else:
            result.append("touching" if touching else "in between")
    return tuple(result)
