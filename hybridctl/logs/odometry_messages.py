r"""Odometry of a legged base as `nav_msgs/Odometry` in MCAP, written as it comes.

Pose in the odometry frame, twist in the child frame, as ROS has it: the covariance of the pose is
of x, y, z and turns about the fixed axes x, y, z of the odometry frame, that of the twist of
linear, then angular velocity along the axes of the child frame. With the orientation R and the
velocity v of the root in the world

.. math:: v_b = R^T v, \quad \delta v_b = R^T (\delta v + [v]_\times \delta\theta), \quad
          \omega_b = R_i (\omega_m - b),

where \delta\theta is the turn in the world, R_i the axes of the inertial sensor in the root, and b
the bias of the gyroscope. The covariance of the angular velocity is that of the bias and of the
noise of the gyroscope over a period. Covariances between linear and angular velocity are not
computed: those entries are zero.

Messages are not in chunks, so that each can be read at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.legged.rotation import matrix, skew
from hybridctl.legged.space import GYROSCOPE
from hybridctl.logs.base_model import OdometryFrames
from hybridctl.logs.live_odometry import Odometry
from hybridctl.logs.read_errors import require_package

MESSAGE_TYPE = "nav_msgs/msg/Odometry"
"""Type of the messages."""
_BIAS = slice(10, 13)
"""Bias of the gyroscope in the mean of an estimate."""
_POSE_ROWS = [3, 4, 5, 0, 1, 2]
"""Position, then turn, in the covariance of a root."""
_UNKNOWN_RATE = 1e6
"""Variance in (rad/s)^2 of an angular velocity that was not measured; ROS has no mark for that."""
_LAST_STAMP = 2**31 * 10**9
"""Stamp in ns from which on seconds do not fit into the 32 bits that ROS has for them."""


class RateSensor(NamedTuple):
    """The gyroscope, as far as the twist depends on it.

    Attributes:
        turn: Axes (3, 3) of the sensor in the root: rates of the root are `turn @ rates`.
        noise: Density of its noise in rad/s/sqrt(Hz).
    """

    turn: Array
    noise: float


class OdometryTwist(NamedTuple):
    """Velocities of the root in its own axes.

    Attributes:
        linear: Velocity (3,) of the root's origin, m/s.
        angular: Angular velocity (3,), rad/s.
        covariance: Covariance (6, 6), linear before angular.
    """

    linear: Array
    angular: Array
    covariance: Array


def find_twist(found: Odometry, sensor: RateSensor) -> OdometryTwist:
    """Return the twist of the root in its own axes, by the equations of this module.

    Args:
        found: Odometry. Without estimate or measured rate its angular velocity is zero, with the
            variance `_UNKNOWN_RATE`.
        sensor: The gyroscope.
    """
    root = found.root
    axes = matrix(root.orientation)
    covariance = np.zeros((6, 6))
    jacobian = np.hstack([axes.T @ skew(root.velocity), np.zeros((3, 3)), axes.T])
    covariance[:3, :3] = jacobian @ root.covariance @ jacobian.T
    rate, covariance[3:, 3:] = np.zeros(3), _UNKNOWN_RATE * np.eye(3)
    if found.estimate is not None and found.rate is not None:
        rate = sensor.turn @ (found.rate - found.estimate.mean[_BIAS])
        bias = found.estimate.covariance[GYROSCOPE, GYROSCOPE]
        white = sensor.noise**2 / found.period if found.period else 0.0
        covariance[3:, 3:] = sensor.turn @ (bias + white * np.eye(3)) @ sensor.turn.T
    return OdometryTwist(axes.T @ root.velocity, rate, covariance)


class _CountingStream:
    """A stream that counts the bytes written to it, because pipes and sockets have no `tell`."""

    def __init__(self, stream: BinaryIO) -> None:
        """Begin at zero; `stream` gets the bytes."""
        self._stream, self._count = stream, 0

    def write(self, data: bytes) -> int:
        """Write bytes.

        Args:
            data: The bytes.

        Returns:
            Their number.
        """
        self._stream.write(data)
        self._count += len(data)
        return len(data)

    def tell(self) -> int:
        """Return the number of bytes so far."""
        return self._count

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()


class OdometryWriter:
    """Writes odometry as `nav_msgs/Odometry` into a stream of MCAP.

    Life cycle: `write` for each odometry, `finish` once at the end.

    Args:
        stream: Stream that gets the bytes; it need not be seekable.
        frames: Topic and names of the frames.
        sensor: The gyroscope.

    Raises:
        InputError: The packages `mcap` and `rosbags` are missing.
    """

    def __init__(self, stream: BinaryIO, frames: OdometryFrames, sensor: RateSensor) -> None:
        with require_package(Path("the output"), "MCAP", "mcap", "ros"):
            from mcap.writer import Writer
        with require_package(Path("the output"), "ROS messages", "rosbags", "ros"):
            from rosbags.typesys import Stores, get_typestore
        self._stream, self._frames, self._sensor = _CountingStream(stream), frames, sensor
        self._store = get_typestore(Stores.LATEST)
        out: Any = self._stream
        self._writer: Any = Writer(out, use_chunking=False)
        self._writer.start(profile="ros2", library="hybridctl")
        text, _ = self._store.generate_msgdef(MESSAGE_TYPE, ros_version=2)
        schema = self._writer.register_schema(MESSAGE_TYPE, "ros2msg", text.encode())
        self._channel = self._writer.register_channel(frames.topic, "cdr", schema)
        self._sequence = 0

    def write(self, found: Odometry) -> None:
        """Write a message, stamped and logged at the time of the sample.

        Args:
            found: The odometry.

        Raises:
            InputError: A message of ROS cannot hold the stamp.
        """
        if not 0 <= found.stamp < _LAST_STAMP:
            raise InputError(
                f"a stamp in ROS must be from 0 to {_LAST_STAMP / 1e9:.0f} s, got "
                f"{1e-9 * found.stamp:.6g} s"
            )
        data = self._store.serialize_cdr(self._make_message(found), MESSAGE_TYPE)
        self._writer.add_message(
            self._channel, found.stamp, bytes(data), found.stamp, self._sequence
        )
        self._sequence += 1
        self._stream.flush()

    def _make_message(self, found: Odometry) -> Any:
        """Return the message of an odometry."""
        types, root = self._store.types, found.root
        vector = types["geometry_msgs/msg/Vector3"]
        time = types["builtin_interfaces/msg/Time"](*divmod(found.stamp, 10**9))
        header = types["std_msgs/msg/Header"](time, self._frames.frame)
        pose = types["geometry_msgs/msg/Pose"](
            types["geometry_msgs/msg/Point"](*root.position.tolist()),
            types["geometry_msgs/msg/Quaternion"](*root.orientation.tolist()),
        )
        rows = root.covariance[np.ix_(_POSE_ROWS, _POSE_ROWS)]
        twist = find_twist(found, self._sensor)
        return types[MESSAGE_TYPE](
            header,
            self._frames.child_frame,
            types["geometry_msgs/msg/PoseWithCovariance"](pose, rows.ravel()),
            types["geometry_msgs/msg/TwistWithCovariance"](
                types["geometry_msgs/msg/Twist"](
                    vector(*twist.linear.tolist()), vector(*twist.angular.tolist())
                ),
                twist.covariance.ravel(),
            ),
        )

    def finish(self) -> None:
        """Write the end of the file."""
        self._writer.finish()
        self._stream.flush()
