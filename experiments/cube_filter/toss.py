"""Tosses for the filter experiment: recorded or made up, and what their poses say about contact.

Recorded lengths are divided by a scale, which makes free flight fall with the acceleration of
gravity. A corner touches where its height is at most `tolerance`; heights are those above the
table's level, which is calibrated on cubes at rest. An impact is a corner that comes to touch after
having been twice as high; the toss as a whole is in contact where any corner touches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from hybridctl.experiments.contacts.recorded_tosses import CLEARANCE, read_tosses
from hybridctl.robots import cube
from scipy.spatial.transform import Rotation

from hybridctl.checks import Array
from hybridctl.errors import InputError
from hybridctl.hybrid.simulate import simulate

FLAT = 2e-3  # m, spread of the lowest four corners of a cube at rest
STILL = 2e-2  # m/s
RESTING = 5  # rows at the end, over which the cube must be still to count as at rest
FLIGHT = 8  # rows that a flight has at least, to measure its acceleration
PLAUSIBLE = 0.1  # by how much a flight's acceleration may differ from gravity, relative
PHASES = ("flight", "first impact", "later impacts", "touching", "in between")
IMPACT = 3  # rows of an impact: its own and those after it


@dataclass(frozen=True, eq=False)
class Toss:
    """Poses (n, 7), position in m and quaternion x, y, z, w, at a rate in 1/s."""

    number: int
    rate: float
    poses: Array
    model: cube.Parameters


@dataclass(frozen=True)
class Calibration:
    """Height of the table, and how far from it a corner still touches, in m; scale of lengths.

    The scale is recorded over true length; the other two are in true m.
    """

    level: float
    tolerance: float
    scale: float = 1.0


def recorded(path: str, numbers: Sequence[int], model: cube.Parameters) -> list[Toss]:
    """Tosses of the file; the cube is that of the model, with size, mass and inertia of the file.

    Raises `FileFormatError` for a file that holds something else, `InputError` for a toss that is
    not in it.
    """
    content = read_tosses(path)
    offset = content["offset"].astype(int)
    known = len(offset) - 1
    body = replace(
        model,
        half_width=float(content["half_width_m"]),
        mass=float(content["mass_kg"]),
        inertia=float(content["inertia_kgm2"]),
    )
    tosses = []
    for k in numbers:
        if k >= known:
            raise InputError(f"there are {known} tosses in {path}, numbered from 0; got {k}")
        rows = slice(offset[k], offset[k + 1])
        quaternion = np.roll(content["quat_wxyz"][rows], -1, axis=1)
        quaternion /= np.linalg.norm(quaternion, axis=1, keepdims=True)
        poses = np.hstack((content["position"][rows], quaternion))
        tosses.append(Toss(k, float(content["rate_hz"]), poses, body))
    return tosses


def synthetic(number: int, model: cube.Parameters, duration: float, rate: float) -> Toss:
    """A simulated toss from a random start, seen with noise of 0.5 mm and 5 mrad."""
    random = np.random.default_rng(number)
    attitude = Rotation.random(random_state=np.random.RandomState(number)).as_quat()
    velocity = random.normal(size=6) * [0.6, 0.6, 0.3, 3.0, 3.0, 3.0]
    start = np.concatenate([[0.0, 0.0, 0.16], attitude, velocity])
    system = cube.system(model)
    times = np.arange(int(duration * rate) + 1) / rate
    run = simulate(
        system, ("open",) * 8, start, (0.0, float(times[-1])), rtol=1e-7, atol=1e-7, on_zeno="rest"
    )
    noise = random.normal(size=(len(times), 6)) * np.repeat([5e-4, 5e-3], 3)
    robot = cube.robot(model)
    poses = [robot.integrate(run(t)[:7], e) for t, e in zip(times, noise, strict=True)]
    return Toss(number, rate, np.array(poses), model)


def corner_heights(toss: Toss) -> Array:
    """Heights (n, 8) of the corners above z = 0."""
    corners = np.array([c.offset for c in cube.contacts(toss.model)])
    turned = Rotation.from_quat(toss.poses[:, 3:]).as_matrix() @ corners.T
    return np.asarray(toss.poses[:, 2:3] + turned[:, 2, :])


def calibrate(tosses: Sequence[Toss], *, scaled: bool = True) -> Calibration:
    """From free flights, and from the last rows of the tosses that end at rest on a face.

    The scale is the median of flights' accelerations over gravity, 1 without flights or if it is
    not asked for. The level is the median height of the lowest four corners at rest; the tolerance
    twice the largest distance from it, but for one in a hundred; without rest, 0 and 2 mm.
    """
    falls = np.array([f for f in map(_fall, tosses) if abs(f - 1.0) < PLAUSIBLE])
    scale = float(np.median(falls)) if scaled and len(falls) else 1.0
    heights = [
        np.sort(corner_heights(_divided(toss, scale))[-1])[:4] for toss in tosses if _rests(toss)
    ]
    if not heights:
        return Calibration(0.0, 2e-3, scale)
    level = float(np.median(heights))
    spread = float(np.quantile(np.abs(np.concatenate(heights) - level), 0.99))
    return Calibration(level, 2.0 * spread, scale)


def _fall(toss: Toss) -> float:
    """Downward acceleration over gravity, before the table is near; nan for too short a flight."""
    near = np.flatnonzero(corner_heights(toss).min(axis=1) < CLEARANCE)
    n = int(near[0]) if len(near) else len(toss.poses)
    if n < FLIGHT:
        return float("nan")
    curve = np.polyfit(np.arange(n) / toss.rate, toss.poses[:n, 2], 2)
    return float(-2.0 * curve[0] / toss.model.gravity)


def _divided(toss: Toss, scale: float) -> Toss:
    return replace(toss, poses=toss.poses / np.where(np.arange(7) < 3, scale, 1.0))


def _rests(toss: Toss) -> bool:
    last = toss.poses[-RESTING - 1 :, :3]
    speed = np.linalg.norm(np.diff(last, axis=0), axis=1) * toss.rate
    lowest = np.sort(corner_heights(toss)[-1])[:4]
    return bool(len(speed) and speed.max() < STILL and np.ptp(lowest) < FLAT)


def levelled(toss: Toss, calibration: Calibration, after: float) -> Toss:
    """The toss in true m above a table at zero, up to `after` s from its first touch on."""
    poses = _divided(toss, calibration.scale).poses - np.eye(1, 7, 2) * calibration.level
    found = replace(toss, poses=poses)
    touching = np.flatnonzero(in_contact(found, calibration))
    end = len(poses) if not len(touching) else int(touching[0] + after * toss.rate) + 1
    return replace(found, poses=poses[:end])


def in_contact(toss: Toss, calibration: Calibration) -> Array:
    """At which rows (n,) of a levelled toss a corner touches."""
    return np.asarray(corner_heights(toss).min(axis=1) <= calibration.tolerance)


def impacts(toss: Toss, calibration: Calibration) -> Array:
    """The rows of a levelled toss at which a corner comes to touch."""
    rows = set()
    for height in corner_heights(toss).T:
        away = False
        for k, z in enumerate(height):
            if away and z <= calibration.tolerance:
                rows.add(k)
            away = z > calibration.tolerance and (away or z > 2.0 * calibration.tolerance)
    return np.array(sorted(rows), dtype=int)


def after_impacts(toss: Toss, calibration: Calibration, span: float) -> Array:
    """At which rows (n,) the last impact is at most `span` s ago."""
    near = np.zeros(len(toss.poses), dtype=bool)
    for k in impacts(toss, calibration):
        near[k : k + int(span * toss.rate) + 1] = True
    return near


def phases(toss: Toss, calibration: Calibration) -> tuple[str, ...]:
    """For each row one of `PHASES`: impacts last `IMPACT` rows, in between no corner touches."""
    hits = impacts(toss, calibration)
    result = []
    for k, touching in enumerate(in_contact(toss, calibration)):
        past = hits[hits <= k]
        if not len(past):
            result.append("touching" if touching else "flight")
        elif k - past[-1] < IMPACT:
            result.append("first impact" if len(past) == 1 else "later impacts")
        else:
            result.append("touching" if touching else "in between")
    return tuple(result)
