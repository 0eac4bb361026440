"""Filter models of thrown objects: a ball, a block in a vertical plane, a cube in space.

Nothing drives them, so the input is the noise alone: a force (and a torque) at the centre while
they move, an impulse when they hit. The noise levels are square roots: of the spectral density for
what acts all the time (N sqrt(s)), of the covariance for impulses (N s).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np
from hybridctl.robots import ball, block, cube
from scipy.spatial.transform import Rotation

from hybridctl.base.checks import Array
from hybridctl.base.settings import NotNegative, Positive, UnitInterval
from hybridctl.estimation.filter_model import (
    FilterModel,
    FilterSettings,
    LogChannel,
    Scenario,
    Sensor,
    surface_noise,
)
from hybridctl.estimation.measurement import Measurement, configuration, coordinates
from hybridctl.estimation.noise import Noise
from hybridctl.mechanics.multibody.state import RobotStateSpace

TOSSES = {  # recordings of thrown cubes, one after the other in a file
    "time": {"rate": "rate_hz"},
    "segment": {"offsets": "offset", "index": 0},
    "channels": {
        "position": {"fields": "position", "unit": "m", "frame": "table", "labels": [*"xyz"]},
        "orientation": {"fields": "quat_wxyz", "rotation": "wxyz", "frame": "table"},
    },
}
P = TypeVar("P")
_LEAST_IMPULSE = 1e-12  # N s; below, a reset has no noise


@dataclass(frozen=True)
class BallSettings(FilterSettings):
    """A ball in a vertical plane, seen by a camera.

    slope in rad; position_noise in m; force_noise in N sqrt(s); reset_noise in N s; guard_noise:
    of the height of the slope, m.
    """

    duration: float = 1.2
    particles: int = 2000
    mass: float = 1.0
    slope: float = 0.2
    restitution: UnitInterval = 0.7
    friction: float = 0.0
    position_noise: Positive = 2e-3
    force_noise: NotNegative = 1e-2
    reset_noise: NotNegative = 0.0
    guard_noise: NotNegative = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.parameters()

    def parameters(self) -> ball.BallParameters:
        """The parameters of the body."""
        return _named(ball.BallParameters, self)


def ball_model(settings: BallSettings) -> FilterModel:
    """State (x, z) in m and their rates; measured: the position."""
    p = settings.parameters()
    part = LogChannel("position", ("x", "z"), "m", "world")
    camera = coordinates("position", [0, 1], settings.position_noise**2 * np.eye(2))
    force, impulse = settings.force_noise**2 * np.eye(2), settings.reset_noise**2 * np.eye(2)
    return FilterModel(
        system=ball.system(p),
        open=("open",),
        sensors=(Sensor(camera, (part,)),),
        process_noise=Noise(force, True, "force_noise", settings.compliance),
        reset_noise=impulse_noise(impulse, settings.compliance),
        guard_noise=surface_noise(ball.contacts(p), settings.guard_noise),
        speeds=np.full(2, 10.0),
        states=("x", "z", "vx", "vz"),
        scenario=lambda: Scenario(np.array([0.0, 1.0, 0.5, 0.0]), np.array([0.02, 0.02, 0.1, 0.1])),
        shown_names=("x [m]", "z [m]", "vx [m/s]", "vz [m/s]"),
        pose=lambda x: np.array([x[0], 0.0, x[1], 0.0, 0.0, 0.0, 1.0]),
    )


@dataclass(frozen=True)
class BlockSettings(FilterSettings):
    """A block in a vertical plane, seen by a camera.

    position_noise in m, angle_noise in rad; force_noise in N sqrt(s), torque_noise in N m sqrt(s);
    reset_noise in N s, reset_torque in N m s; guard_noise: of the height of the ground, m.
    """

    duration: float = 0.6
    particles: int = 100
    width: float = 0.2
    height: float = 0.1
    mass: float = 1.0
    friction: float = 0.3
    restitution: UnitInterval = 0.0
    position_noise: Positive = 1e-3
    angle_noise: Positive = 2e-3
    force_noise: NotNegative = 1e-3
    torque_noise: NotNegative = 1e-4
    reset_noise: NotNegative = 0.0
    reset_torque: NotNegative = 0.0
    guard_noise: NotNegative = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.parameters()

    def parameters(self) -> block.BlockParameters:
        """The parameters of the body."""
        return _named(block.BlockParameters, self)


def block_model(settings: BlockSettings) -> FilterModel:
    """State (x, z, pitch) in m and rad and their rates; measured: position and pitch."""
    p = settings.parameters()
    parts = (
        LogChannel("position", ("x", "z"), "m", "world"),
        LogChannel("pitch", ("pitch",), "rad", "world"),
    )
    deviations = np.array([settings.position_noise] * 2 + [settings.angle_noise])
    push = np.array([settings.force_noise] * 2 + [settings.torque_noise])
    kick = np.array([settings.reset_noise] * 2 + [settings.reset_torque])
    return FilterModel(
        system=block.system(p, actuated=True),
        open=("open", "open"),
        sensors=(Sensor(coordinates("pose", [0, 1, 2], np.diag(deviations**2)), parts),),
        process_noise=Noise(np.diag(push**2), True, "force_noise", settings.compliance),
        reset_noise=impulse_noise(np.diag(kick**2), settings.compliance),
        guard_noise=surface_noise(block.contacts(p), settings.guard_noise),
        speeds=np.array([10.0, 10.0, 20.0]),
        states=("x", "z", "pitch", "vx", "vz", "spin"),
        scenario=lambda: Scenario(
            np.array([0.0, 0.3, 0.2, 1.0, 0.0, 0.0]), np.array([0.01, 0.01, 0.01, 0.05, 0.05, 0.05])
        ),
        shown_names=("x [m]", "z [m]", "pitch [rad]", "vx [m/s]", "vz [m/s]", "spin [rad/s]"),
        pose=lambda x: np.array(
            [x[0], 0.0, x[1], 0.0, np.sin(0.5 * x[2]), 0.0, np.cos(0.5 * x[2])]
        ),
    )


@dataclass(frozen=True)
class CubeSettings(FilterSettings):
    """A cube in space, seen by a camera; the defaults suit the ContactNets recordings.

    Noise as for the block, with guard_noise that of the table's height: the recorded corners are
    up to 5 mm below it. Corners that hit more slowly than restitution_threshold, m/s, do not
    rebound. rounding: the radius of the corners, m; table: its height, m, see
    `cube.CubeParameters`.
    """

    duration: float = 0.5
    rate: float = 148.0
    particles: int = 30
    half_width: float = 0.0524
    mass: float = 0.37
    inertia: float = 0.00081
    friction: float = 0.18
    restitution: UnitInterval = 0.125
    restitution_threshold: float = 0.1
    rounding: float = 0.0
    table: float = 0.0
    position_noise: Positive = 7e-4
    angle_noise: Positive = 7e-3
    force_noise: NotNegative = 1e-2
    torque_noise: NotNegative = 1e-4
    reset_noise: NotNegative = 1e-2
    reset_torque: NotNegative = 5e-4
    guard_noise: NotNegative = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        self.parameters()

    def parameters(self) -> cube.CubeParameters:
        """The parameters of the body."""
        return _named(cube.CubeParameters, self)


def cube_model(settings: CubeSettings) -> FilterModel:
    """State: pose in m, and velocities in the frame of the cube; measured: the pose."""
    p = settings.parameters()
    space = RobotStateSpace(cube.robot(p, actuated=True))
    parts = (
        LogChannel("position", ("x", "y", "z"), "m", "table"),
        LogChannel("orientation", ("qx", "qy", "qz", "qw"), frame="table", quaternion=True),
    )
    deviations = np.repeat([settings.position_noise, settings.angle_noise], 3)
    push = np.repeat([settings.force_noise, settings.torque_noise], 3)
    kick = np.repeat([settings.reset_noise, settings.reset_torque], 3)
    camera: Measurement = configuration("pose", space, np.diag(deviations**2))
    attitude = Rotation.from_euler("xyz", (0.5, 0.3, 0.2)).as_quat()
    mean = np.concatenate([[0.0, 0.0, 0.2], attitude, [1.0, 0.2, 0.0], [2.0, 6.0, -1.0]])
    velocities = ("vx", "vy", "vz", "wx", "wy", "wz")
    return FilterModel(
        system=cube.system(p, actuated=True),
        open=("open",) * 8,
        sensors=(Sensor(camera, parts),),
        process_noise=Noise(np.diag(push**2), True, "force_noise", settings.compliance),
        reset_noise=impulse_noise(np.diag(kick**2), settings.compliance),
        guard_noise=surface_noise(cube.contacts(p), settings.guard_noise),
        speeds=np.repeat([10.0, 50.0], 3),
        states=("x", "y", "z", "qx", "qy", "qz", "qw", *velocities),
        scenario=lambda: Scenario(mean, np.repeat([0.01, 0.02, 0.05, 0.2], 3)),
        shown_names=(
            *(f"{axis} [m]" for axis in "xyz"),
            *(f"{name} [m/s]" for name in velocities[:3]),
            *(f"{name} [rad/s]" for name in velocities[3:]),
        ),
        shown=_in_the_world,
        pose=lambda x: x[:7],
        mapping=TOSSES,
    )


def _in_the_world(x: Array, p: Array) -> tuple[Array, Array]:
    """Position along the axes of the world, and velocities; with their deviations."""
    turn = Rotation.from_quat(x[3:7]).as_matrix()
    variances = np.concatenate([np.diag(turn @ p[:3, :3] @ turn.T), np.diag(p)[6:]])
    return np.concatenate([x[:3], x[7:]]), np.sqrt(np.maximum(variances, 0.0))


def impulse_noise(covariance: Array, compliance: float) -> Noise | None:
    """The noise of impulses with a covariance, (N s)^2 or (N m s)^2; None where there is none."""
    if np.diag(covariance).max() <= _LEAST_IMPULSE**2:
        return None
    return Noise(covariance, True, "reset_noise", compliance)


def _named(kind: type[P], settings: FilterSettings) -> P:
    """The parameters of a robot that settings have by the same names; the others are its own."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in vars(settings).items() if name in names})
