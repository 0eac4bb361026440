"""Models of legged bases for logs: the robot, the channels of its sensors, and where it begins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridctl.base.checks import check_number, check_vector
from hybridctl.base.errors import InputError
from hybridctl.base.files import read_file_or_text
from hybridctl.legged.estimator import BaseSettings
from hybridctl.mechanics.multibody.robot import Robot


@dataclass(frozen=True)
class BaseChannels:
    """Names of the channels of a log that a legged base is estimated from.

    Attributes:
        gyroscope: Angular velocity of the inertial sensor.
        accelerometer: Specific force of the inertial sensor.
        joints: Joint angles.
        loads: Forces of the feet in their order, whose last column is the vertical force; None for
            a foot without a sensor.
        torques: Motor torques along the joints, from which the forces of feet without a sensor are
            computed; None where the log has none, or all feet have sensors.
    """

    gyroscope: str
    accelerometer: str
    joints: str
    loads: tuple[str | None, ...]
    torques: str | None = None


@dataclass(frozen=True)
class OdometryFrames:
    """Names of odometry in ROS.

    Attributes:
        topic: Topic of the messages `nav_msgs/Odometry`.
        frame: Frame in which poses are given.
        child_frame: Frame of the root, in which twists are given; empty for the root link of the
            URDF.

    Raises:
        InputError: Topic or frame is empty.
    """

    topic: str = "/odom"
    frame: str = "odom"
    child_frame: str = ""

    def __post_init__(self) -> None:
        for name in ("topic", "frame"):
            if not getattr(self, name):
                raise InputError(f"{name} of odometry must be a name, got ''")


@dataclass(frozen=True)
class BaseModel:
    """A legged robot whose base is estimated from logs.

    Attributes:
        urdf: Path of its description, a URDF or an MJCF file.
        channels: Channels of its sensors.
        settings: Settings of the filter.
        heading: Heading of the root at the start of a log in rad, which no sensor measures.
        position: Position of the root at the start of a log in m, in the world.
        mapping: Mapping of logs to these channels, as YAML gives it; None for logs that have them.
        name: Name of the model; empty for none.
        odometry: Names of its odometry in ROS.

    Raises:
        InputError: The channels of loads are not as many as feet, or heading or position is no
            finite number.
    """

    urdf: str
    channels: BaseChannels
    settings: BaseSettings
    heading: float = 0.0
    position: tuple[float, float, float] = (0.0, 0.0, 0.0)
    mapping: dict[str, Any] | None = None
    name: str = ""
    odometry: OdometryFrames = OdometryFrames()

    def build_robot(self) -> Robot:
        """Return the robot with its root fixed.

        Raises:
            FileFormatError: The file is neither a URDF nor an MJCF file.
            InputError: The MJCF file has what a robot cannot hold, or MuJoCo is not installed.
        """
        path = Path(self.urdf)
        text = read_file_or_text("urdf", path)
        # The root element decides: MJCF files are called .xml, but so are some URDFs.
        if "<mujoco" in text and "<robot" not in text:
            return Robot.from_mjcf(path, fixed_base=True)
        return Robot.from_urdf(path)

    def __post_init__(self) -> None:
        feet, loads = self.settings.feet, self.channels.loads
        if len(loads) != len(feet):
            raise InputError(
                f"loads must have one channel, or None, for each of {len(feet)} feet, got {loads}"
            )
        check_number("heading", self.heading)
        check_vector("position", self.position, 3)
