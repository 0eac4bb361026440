"""A folder with URDF and recording is read as a log with motion capture as truth.

The recording is an NPZ file or a ROS 2 bag (a folder with metadata.yaml, or an MCAP file). Both are
read by `hybridctl.logs`, with the mappings below. The recorded poses of the feet are made from the
motion capture of the base, so they are not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from hybridctl.base.checks import Array, check_member
from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.legged.estimator import BaseEstimator, BaseSettings
from hybridctl.legged.readings import Readings, uniform_stamps
from hybridctl.logs import Log, Mapping, read_log
from hybridctl.logs.base_model import BaseChannels
from hybridctl.logs.legged import make_base_readings
from hybridctl.mechanics.multibody.robot import Robot

ORIGIN = "ami-iit/paper_ramadoss_2021_icra_proprioceptive-base-estimator on GitHub"
INERTIAL = "root_link_imu_frame"
FEET = ("l_sole", "r_sole")
CHANNELS = BaseChannels("gyroscope", "accelerometer", "joints", ("left", "right"))
ARCHIVE: dict[str, Any] = {
    "time": {"field": "t_unix", "unit": "s"},
    "channels": {
        "gyroscope": {"fields": "imu_gyro", "unit": "rad/s"},
        "accelerometer": {"fields": "imu_acc", "unit": "m/s^2"},
        "joints": {"fields": "q", "labels": "joint_names", "unit": "rad"},
        "left": {"fields": "fz_left", "unit": "N"},
        "right": {"fields": "fz_right", "unit": "N"},
    },
    "truth": {
        "position": {"fields": "base_pos", "unit": "m"},
        "orientation": {"fields": "base_rpy", "unit": "rad", "rotation": "rpy"},
    },
}


def _map_vector(topic: str, field: str, axes: str = "xyz", **more: Any) -> dict[str, Any]:
    """Return the mapping of the components of a vector in the messages of a topic."""
    return {"topic": topic, "fields": [f"{field}.{axis}" for axis in axes], **more}


BAG: dict[str, Any] = {
    "channels": {
        "gyroscope": _map_vector("/imu", "angular_velocity"),
        "accelerometer": _map_vector("/imu", "linear_acceleration"),
        "joints": {"topic": "/joint_states", "fields": "position", "unit": "rad"},
        "left": _map_vector("/left_foot/wrench", "wrench.force", "z"),
        "right": _map_vector("/right_foot/wrench", "wrench.force", "z"),
    },
    "truth": {
        "position": _map_vector("/ground_truth/base", "pose.position", unit="m"),
        "orientation": _map_vector(
            "/ground_truth/base", "pose.orientation", "xyzw", rotation="xyzw"
        ),
    },
}
Source = Literal["any", "archive", "bag"]


@dataclass(frozen=True, eq=False)
class MotionCapture:
    """Motion capture of the root.

    Attributes:
        times: Times (n,), s.
        position: Positions in the world (n, 3), m.
        angles: Roll, pitch and yaw (n, 3) of Rz Ry Rx, rad, the yaw without jumps.
        good: Whether motion capture has not lost the robot (n,).
    """

    times: Array
    position: Array
    angles: Array
    good: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class LeggedLog:
    """A log with its robot and its truth.

    Attributes:
        log: The log.
        robot: Robot of the URDF.
        truth: Motion capture of its root.
    """

    log: Log
    robot: Robot
    truth: MotionCapture

    def get_readings(self, estimator: BaseEstimator) -> Readings:
        """Return the readings of the sensors, for an estimator."""
        return make_base_readings(self.log, CHANNELS, estimator)

    def compute_weight(self, settings: BaseSettings) -> float:
        """Return the sum of the median forces of both feet while the robot stands, N."""
        estimator = settings.build(self.robot)
        readings = self.get_readings(estimator)
        standing = estimator.stood(estimator.record(readings))
        loads = readings.loads.values()
        still = [load.values[load.times <= load.times[0] + standing] for load in loads]
        return float(sum(np.median(values) for values in still))


def load(folder: str | None, source: Source = "any", *, jump: float, lost: float) -> LeggedLog:
    """Return the recording in a folder.

    Args:
        folder: The folder; None raises.
        source: Format of the recording; "any" takes the first that is there.
        jump: Speed of the true position that no walk has, m/s. There the truth counts as lost.
        lost: Time for which it counts as lost, s.

    Raises:
        InputError: There is no folder.
        FileFormatError: URDF or recording is missing, or there are several.
    """
    if folder is None:
        raise InputError(
            "icub-base needs data=FOLDER, with the recording and the URDF of the humanoid; "
            f"they are from {ORIGIN}"
        )
    place = Path(folder)
    if not place.is_dir():
        raise InputError(f"data must be a folder with the recording and the URDF, got {folder!r}")
    robot = Robot.from_urdf(_find_only(place, ["*.urdf"], "URDF"))
    kinds = {"archive": (["*.npz"], ARCHIVE), "bag": (["*/metadata.yaml", "*.mcap"], BAG)}
    check_member("source", source, ("any", *kinds))
    chosen = [source] if source != "any" else list(kinds)
    found = next((k for k in chosen if any(list(place.glob(p)) for p in kinds[k][0])), chosen[0])
    patterns, mapping = kinds[found]
    path = _find_only(place, patterns, "recording")
    log = read_log(path.parent if path.name == "metadata.yaml" else path, Mapping.parse(mapping))
    return LeggedLog(log, robot, _get_truth(log, jump, lost))


def _find_only(place: Path, patterns: list[str], what: str) -> Path:
    """Return the only file of the first pattern that fits.

    Raises:
        FileFormatError: No file fits, or several do.
    """
    for pattern in patterns:
        files = sorted(place.glob(pattern))
        if len(files) > 1:
            raise FileFormatError(f"{place} holds several files {pattern}, so which is the {what}?")
        if files:
            return files[0]
    raise FileFormatError(f"{place} holds no {what} ({' or '.join(patterns)}); see {ORIGIN}")


def convert_to_euler(quaternions: Array) -> Array:
    """Return roll, pitch and yaw (n, 3) of quaternions (n, 4), rad, the yaw without jumps."""
    angles = Rotation.from_quat(quaternions).as_euler("ZYX")[:, ::-1].copy()
    angles[:, 2] = np.unwrap(angles[:, 2])
    return np.asarray(angles)


def _get_truth(log: Log, jump: float, lost: float) -> MotionCapture:
    position, orientation = log["position"], log["orientation"]
    times = uniform_stamps(position.times)
    angles = convert_to_euler(orientation.values)
    speed = np.linalg.norm(np.diff(position.values, axis=0), axis=1) / np.diff(times)
    good = np.ones(len(times), dtype=bool)
    for k in np.flatnonzero(speed > jump):
        good[k + 1 :][times[k + 1 :] <= times[k + 1] + lost] = False
    return MotionCapture(times, position.values, angles, good)
