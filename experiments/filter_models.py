"""Filter models of thrown objects: a ball, a block and a polygon in a plane, a cube in space.

No actuator drives them, so the input is noise alone: a force (and a torque) at the centre along the
motion, an impulse at impacts. Noise levels are square roots: of the spectral density for noise of
the flow (N sqrt(s)), of the covariance for impulses (N s).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from types import ModuleType
from typing import Annotated, Any, ClassVar

import numpy as np
from hybridctl.robots import ball, block, cube, polygon
from scipy.spatial.transform import Rotation

from hybridctl.base.checks import Array
from hybridctl.base.settings import Meta, NotNegative, Positive, UnitInterval
from hybridctl.estimation.filter_model import (
    FilterModel,
    FilterSettings,
    LogChannel,
    Scenario,
    Sensor,
    surface_noise,
)
from hybridctl.estimation.measurement import Measurement, configuration, coordinates
from hybridctl.estimation.noise import Disturbance, ImpactNoise, Noise
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.system import HybridSystem
from hybridctl.mechanics import closed_contacts
from hybridctl.mechanics.multibody.state import RobotStateSpace

TOSSES = {  # mapping of recorded tosses of cubes, one after the other in a file
    "time": {"rate": "rate_hz"},
    "segment": {"offsets": "offset", "index": 0},
    "channels": {
        "position": {"fields": "position", "unit": "m", "frame": "table", "labels": [*"xyz"]},
        "orientation": {"fields": "quat_wxyz", "rotation": "wxyz", "frame": "table"},
    },
}
_LARGE_KICK_SHARE, _LARGE_KICK_RATIO = 0.1, 5.0
"""Rate and size of the larger impulses that a model does not contain, relative to the smaller: two
sizes make tails heavy enough for a missed impact of a cube. A choice."""
_LEAST_IMPULSE = 1e-12
"""Standard deviation of an impulse, N s, up to which a reset has no noise. A choice."""


@dataclass(frozen=True)
class BodySettings(FilterSettings):
    """Settings of a filter on a thrown body.

    Fields that have the name of a parameter of the body, such as `mass`, are that parameter.

    Attributes:
        contact_time: Time that an impact takes, s. If it is positive, the noise of impacts follows
            from it, see `ImpactNoise`, and not from levels of impulses.
        body: Class of the parameters of the body.
    """

    body: ClassVar[type[Any]]
    contact_time: NotNegative = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.parameters()

    def parameters(self) -> Any:
        """Return the parameters of the body, with its own defaults for those that are no field."""
        names = {field.name for field in fields(self.body)}
        return self.body(**{name: value for name, value in vars(self).items() if name in names})


@dataclass(frozen=True)
class BallSettings(BodySettings):
    """A ball in a vertical plane, seen by a camera.

    Attributes:
        slope: Inclination of the surface, rad.
        position_noise: Of the camera, m.
        force_noise: Of the flow, N sqrt(s).
        reset_noise: Of impulses, N s.
        guard_noise: Of the height of the surface, m.
    """

    body = ball.BallParameters
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


def ball_model(settings: BallSettings) -> FilterModel:
    """Return the model of the ball: state (x, z) in m and their rates; the position is measured.

    Args:
        settings: Settings of the filter.
    """
    return _thrown_body(
        ball,
        ball.system(settings.parameters()),
        settings,
        Sensor(
            coordinates("position", [0, 1], settings.position_noise**2 * np.eye(2)),
            (LogChannel("position", ("x", "z"), "m", "world"),),
        ),
        np.full(2, settings.force_noise),
        np.full(2, settings.reset_noise),
        speeds=np.full(2, 10.0),
        states=("x", "z", "vx", "vz"),
        scenario=lambda: Scenario(np.array([0.0, 1.0, 0.5, 0.0]), np.array([0.02, 0.02, 0.1, 0.1])),
        shown_names=("x [m]", "z [m]", "vx [m/s]", "vz [m/s]"),
        pose=lambda x: np.array([x[0], 0.0, x[1], 0.0, 0.0, 0.0, 1.0]),
    )


@dataclass(frozen=True)
class BlockSettings(BodySettings):
    """A block in a vertical plane, seen by a camera.

    Attributes:
        position_noise: Of the camera, m.
        angle_noise: Of the camera, rad.
        force_noise: Of the flow, N sqrt(s).
        torque_noise: Of the flow, N m sqrt(s).
        reset_noise: Of impulses, N s.
        reset_torque: Of angular impulses, N m s.
        guard_noise: Of the height of the ground, m.
    """

    body = block.BlockParameters
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


def block_model(settings: BlockSettings) -> FilterModel:
    """Return the model of the block: state (x, z, pitch) in m and rad and their rates.

    Position and pitch are measured.

    Args:
        settings: Settings of the filter.
    """
    spread = np.array([0.01, 0.01, 0.01, 0.05, 0.05, 0.05])
    scenario = Scenario(np.array([0.0, 0.3, 0.2, 1.0, 0.0, 0.0]), spread)
    return _planar_body(block, settings, scenario)


@dataclass(frozen=True)
class PolygonSettings(BodySettings):
    """A regular polygon in a vertical plane, seen by a camera. Noise as for the block.

    Attributes:
        restitution_threshold: Normal speed, m/s, below which corners do not rebound.
    """

    body = polygon.PolygonParameters
    duration: float = 0.9
    particles: int = 300
    corners: Annotated[int, Meta(ge=3, le=12)] = 5
    radius: float = 0.1
    mass: float = 1.0
    friction: float = 0.5
    restitution: UnitInterval = 0.2
    restitution_threshold: NotNegative = 0.05
    position_noise: Positive = 1e-3
    angle_noise: Positive = 5e-3
    force_noise: NotNegative = 1e-2
    torque_noise: NotNegative = 1e-3
    reset_noise: NotNegative = 1e-2
    reset_torque: NotNegative = 1e-3
    guard_noise: NotNegative = 0.0


def polygon_model(settings: PolygonSettings) -> FilterModel:
    """Return the model of the polygon: state (x, z, pitch) in m and rad and their rates.

    Position and pitch are measured.

    Args:
        settings: Settings of the filter.
    """
    spread = np.array([0.01, 0.01, 0.05, 0.1, 0.1, 0.5])
    scenario = Scenario(np.array([0.0, 0.25, 0.2, 0.5, 0.0, 2.0]), spread)
    return _planar_body(polygon, settings, scenario)


def _planar_body(robot: ModuleType, settings: Any, scenario: Scenario) -> FilterModel:
    """Return the filter model of a body in a vertical plane, position and pitch measured.

    Args:
        robot: Module of the body.
        settings: Settings of the filter.
        scenario: Its typical motion.
    """
    parts = (
        LogChannel("position", ("x", "z"), "m", "world"),
        LogChannel("pitch", ("pitch",), "rad", "world"),
    )
    deviations = np.array([settings.position_noise] * 2 + [settings.angle_noise])
    return _thrown_body(
        robot,
        robot.system(settings.parameters(), actuated=True),
        settings,
        Sensor(coordinates("pose", [0, 1, 2], np.diag(deviations**2)), parts),
        np.array([settings.force_noise] * 2 + [settings.torque_noise]),
        np.array([settings.reset_noise] * 2 + [settings.reset_torque]),
        speeds=np.array([10.0, 10.0, 20.0]),
        states=("x", "z", "pitch", "vx", "vz", "spin"),
        scenario=lambda: scenario,
        shown_names=("x [m]", "z [m]", "pitch [rad]", "vx [m/s]", "vz [m/s]", "spin [rad/s]"),
        pose=lambda x: np.array(
            [x[0], 0.0, x[1], 0.0, np.sin(0.5 * x[2]), 0.0, np.cos(0.5 * x[2])]
        ),
    )


@dataclass(frozen=True)
class CubeSettings(BodySettings):
    """A cube in space, seen by a camera; the defaults suit the ContactNets recordings.

    Noise as for the block. Recorded corners are up to 5 mm below the table, hence its guard noise.

    Attributes:
        restitution_threshold: Normal speed, m/s, below which corners do not rebound.
        rounding: Radius of the corners, m.
        table: Height of the table, m, see `cube.CubeParameters`.
        guard_noise: Of the height of the table, m.
        flight_noise: Noise of force and torque in flight, relative to that in contact. Contacts are
            what the model does not know well.
        kick_rate: Mean number of impulses in contact that the model does not contain, 1/s; 0 for
            none. One in ten besides is five times as large. See `Disturbance`.
        kick: Standard deviation of such an impulse, N s; in N m s it is that times the half width.
        flight_kicks: Rate of these impulses in flight, relative to that in contact: contacts that
            the filter has missed.
    """

    body = cube.CubeParameters
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
    flight_noise: NotNegative = 1.0
    kick_rate: NotNegative = 0.0
    kick: NotNegative = 8e-3
    flight_kicks: NotNegative = 0.2


def cube_model(settings: CubeSettings) -> FilterModel:
    """Return the model of the cube: pose in m, velocities in its own frame; pose measured.

    Args:
        settings: Settings of the filter.
    """
    p = settings.parameters()
    space = RobotStateSpace(cube.robot(p, actuated=True))
    force = np.repeat([settings.force_noise, settings.torque_noise], 3)
    parts = (
        LogChannel("position", ("x", "y", "z"), "m", "table"),
        LogChannel("orientation", ("qx", "qy", "qz", "qw"), frame="table", quaternion=True),
    )
    deviations = np.repeat([settings.position_noise, settings.angle_noise], 3)
    camera: Measurement = configuration("pose", space, np.diag(deviations**2))
    attitude = Rotation.from_euler("xyz", (0.5, 0.3, 0.2)).as_quat()
    mean = np.concatenate([[0.0, 0.0, 0.2], attitude, [1.0, 0.2, 0.0], [2.0, 6.0, -1.0]])
    velocities = ("vx", "vy", "vz", "wx", "wy", "wz")
    return _thrown_body(
        cube,
        cube.system(p, actuated=True),
        settings,
        Sensor(camera, parts),
        force,
        np.repeat([settings.reset_noise, settings.reset_torque], 3),
        _cube_flow_noise(settings, force),
        speeds=np.repeat([10.0, 50.0], 3),
        states=("x", "y", "z", "qx", "qy", "qz", "qw", *velocities),
        scenario=lambda: Scenario(mean, np.repeat([0.01, 0.02, 0.05, 0.2], 3)),
        shown_names=(
            *(f"{axis} [m]" for axis in "xyz"),
            *(f"{name} [m/s]" for name in velocities[:3]),
            *(f"{name} [rad/s]" for name in velocities[3:]),
        ),
        shown=_show_in_world,
        pose=lambda x: x[:7],
        mapping=TOSSES,
    )


def _show_in_world(x: Array, p: Array) -> tuple[Array, Array]:
    """Return position (3,) along the axes of the world and velocities (6,), with deviations."""
    turn = Rotation.from_quat(x[3:7]).as_matrix()
    variances = np.concatenate([np.diag(turn @ p[:3, :3] @ turn.T), np.diag(p)[6:]])
    return np.concatenate([x[:3], x[7:]]), np.sqrt(np.maximum(variances, 0.0))


def impulse_noise(covariance: Array, compliance: float) -> Noise | None:
    """Return the noise of impulses, or None where there is none.

    Args:
        covariance: Covariance of impulses, (N s)^2 and (N m s)^2.
        compliance: Share of it by which closed contacts give way, see `Noise`.
    """
    if np.diag(covariance).max() <= _LEAST_IMPULSE**2:
        return None
    return Noise(covariance, True, "reset_noise", compliance)


def _cube_flow_noise(settings: CubeSettings, force: Array) -> Noise:
    """Return the noise of the flow of the cube: less of it in flight, and rare large changes.

    Args:
        settings: Settings of the filter.
        force: Roots (6,) of the spectral density of force and torque in contact.
    """
    contact = np.diag(force**2)
    flight = settings.flight_noise**2 * contact
    kick = settings.kick * np.repeat([1.0, settings.half_width], 3)

    def is_open(mode: ModeKey) -> bool:
        return not closed_contacts(mode)

    def rate_in(mode: ModeKey, share: float) -> float:
        return settings.kick_rate * share * (settings.flight_kicks if is_open(mode) else 1.0)

    sizes = ((1.0, 1.0), (_LARGE_KICK_SHARE, _LARGE_KICK_RATIO))
    kicks = [
        Disturbance(partial(rate_in, share=share), np.diag((ratio * kick) ** 2))
        for share, ratio in sizes
    ]
    return Noise(
        lambda mode, t, x, u: flight if is_open(mode) else contact,
        True,
        "force_noise",
        settings.compliance,
        of_input=True,
        disturbances=tuple(kicks) if settings.kick_rate else (),
    )


def _thrown_body(
    robot: ModuleType,
    system: HybridSystem,
    settings: Any,
    camera: Sensor,
    force: Array,
    impulse: Array,
    flow_noise: Noise | None = None,
    **shown: Any,
) -> FilterModel:
    """Return the filter model of a body whose input is a force and torque at its centre.

    Args:
        robot: Module of the body.
        system: Hybrid system of the body.
        settings: Settings of the filter.
        camera: The sensor.
        force: Roots (m,) of the spectral density of the input along the motion.
        impulse: Standard deviations (m,) of the impulse at an impact.
        flow_noise: Noise of the flow; None for white noise with `force` in all modes.
        shown: Further attributes of `FilterModel`.
    """
    contacts = robot.contacts(settings.parameters())
    white = Noise(np.diag(force**2), True, "force_noise", settings.compliance)
    return FilterModel(
        system=system,
        open=("open",) * len(contacts),
        sensors=(camera,),
        process_noise=white if flow_noise is None else flow_noise,
        reset_noise=(
            ImpactNoise(contact_time=settings.contact_time)
            if settings.contact_time
            else impulse_noise(np.diag(impulse**2), settings.compliance)
        ),
        guard_noise=surface_noise(contacts, settings.guard_noise),
        **shown,
    )
