"""A robot with contacts, encoders and noise in a YAML file, as a model for filters and for runs.

Such as::

    urdf: leg.urdf                # beside this file, an absolute path, or package://PACKAGE/PATH
    root: sagittal                # fixed (default), floating, sagittal or euler
    gravity: [0, 0, -9.81]        # m/s^2
    joints:                       # springs and dampers that hold a posture; by joint
      knee: {stiffness: 40, damping: 1, rest: 0.3}
    terrain: 0.02 * sin(3 * x)    # ground z, m, of contacts that name no surface; 0 by default
    contacts:                     # points of frames against surfaces; by contact
      foot: {frame: foot, offset: [0, 0, 0], friction: 0.6, restitution: 0.1}
      knee: {frame: knee, plane: {point: [0.5, 0, 0], normal: [-1, 0, 0]}}
    encoders:                     # channels of the log, their columns named like the joints
      joints: {joints: [hip, knee], deviation: 1e-3}
    pose: {position: 1e-3, rotation: 5e-3}    # of a floating base: position and orientation
    motors: {channel: torque, joints: [hip, knee]}
    noise: {force: 0.01, torque: 0.01, impulse: 0.01, angular_impulse: 0.01, surface: 1e-3}
    start: {configuration: [0, 1, 0, 0.3], velocity: [0, 0, 0, 0],
            deviations: {configuration: 0.1, velocity: 1}}
    motion: {posture: {knee: 0.3}, height: 0.1, duration: 2}    # of `hybridctl simulate`

The surface of a contact is one of `plane`, `planes`, `sphere: {center, radius, inside}` and
`terrain`. A terrain is a smooth height z of x and y in m, a number or a formula (see
`parse_formula`) whose places are those of the body it belongs to; points touch it from above, and
a `radius` of the contact must be 0. `planes` is a list, all of which the point stays above, as in a
valley: contacts of the names "foot 1", "foot 2" and so on. A ridge is a terrain.

Units are SI, deviations standard ones: of encoders rad, or m where `unit: m` says so; of the pose
m and rad. `force` and `torque` (N sqrt(s), N m sqrt(s)) act on the base and on every joint all the
time, `impulse` and `angular_impulse` (N s, N m s) when it hits, on the motors alone where there
are any; `surface` (m) is how well the places of surfaces are known. `start` may be left out where
encoders and pose together measure the whole configuration; with it, `hybridctl record` makes
up a motion without torques. `motion` is for `hybridctl simulate`, see `robot_run.MotionSettings`;
filters ignore it. That command ignores `encoders`, `pose`, `noise` and `start`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np

from hybridctl.base.checks import Array, quote
from hybridctl.base.errors import InputError
from hybridctl.base.settings import Meta, NotNegative, Positive, UnitInterval, parse_settings
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.filter_model import (
    FilterModel,
    FilterSettings,
    LogChannel,
    Scenario,
    Sensor,
    surface_noise,
)
from hybridctl.estimation.measurement import base_pose, encoders
from hybridctl.estimation.noise import Noise
from hybridctl.hybrid.mode import ModeKey
from hybridctl.logs.base_file import find_urdf
from hybridctl.mechanics.contact_law.law import OPEN
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.contacts.surfaces import Plane, Sphere, Surface, Terrain
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.multibody.state import RobotStateSpace
from hybridctl.mechanics.system import ContactSystem, contact_system
from hybridctl.symbolic.formula import parse_formula

_LOG = logging.getLogger(__name__)

T = TypeVar("T")
Point = tuple[float, float, float]
Height = float | str
SURFACES = ("plane", "planes", "sphere", "terrain")  # of which a contact takes one


class PlaneEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A plane; its normal points to the free side."""

    point: Point = (0.0, 0.0, 0.0)
    normal: Point = (0.0, 0.0, 1.0)


class SphereEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A ball, or with `inside` a bowl."""

    center: Point
    radius: Positive
    inside: bool = False


class ContactEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A contact, see `mechanics.Contact`; against the terrain of the file without a surface."""

    frame: str
    offset: Point = (0.0, 0.0, 0.0)
    plane: PlaneEntry | None = None
    planes: Annotated[tuple[PlaneEntry, ...], Meta(min_length=1)] | None = None
    sphere: SphereEntry | None = None
    terrain: Height | None = None
    body: str = "universe"
    friction: NotNegative = 0.0
    static_friction: NotNegative | None = None
    restitution: UnitInterval = 0.0
    restitution_threshold: NotNegative = 0.0
    radius: NotNegative = 0.0
    tangential_restitution: UnitInterval = 0.0


class JointEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A spring and a damper at a joint; damping left out is that of the URDF."""

    stiffness: NotNegative = 0.0
    rest: float = 0.0
    damping: NotNegative | None = None


class EncoderEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Joints measured by one channel."""

    joints: tuple[str, ...]
    deviation: Positive
    unit: Literal["rad", "m"] = "rad"


class PoseEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Deviations of the measured pose of the base."""

    position: Positive
    rotation: Positive
    frame: str = ""


class MotorEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The channel of applied torques."""

    joints: tuple[str, ...]
    channel: str = "torque"


class NoiseEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Square roots of densities and covariances."""

    force: NotNegative = 0.0
    torque: NotNegative = 0.0
    impulse: NotNegative = 0.0
    angular_impulse: NotNegative = 0.0
    surface: NotNegative = 0.0


class DeviationEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The deviation of a start."""

    configuration: Positive = 0.1
    velocity: Positive = 1.0


class StartEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Configuration and velocity before the first row of a log."""

    configuration: tuple[float, ...]
    velocity: tuple[float, ...] = ()
    deviations: DeviationEntry = DeviationEntry()


class RobotEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a YAML file that describes a robot with contacts."""

    urdf: str
    contacts: dict[str, Any]
    root: Literal["fixed", "floating", "sagittal", "euler"] = "fixed"
    gravity: Point = (0.0, 0.0, -9.81)
    terrain: Height = 0.0
    joints: dict[str, Any] = {}
    encoders: dict[str, Any] = {}
    pose: PoseEntry | None = None
    motors: MotorEntry | None = None
    noise: NoiseEntry = NoiseEntry()
    start: StartEntry | None = None
    motion: dict[str, Any] = {}


@dataclass(frozen=True)
class RobotSettings(FilterSettings):
    """Settings of a robot's filter.

    Attributes:
        friction: Friction of all contacts, static too; None for that of the file.
        restitution: Restitution of all contacts; None for that of the file.
    """

    friction: NotNegative | None = None
    restitution: NotNegative | None = None

    def contact_law(self) -> dict[str, Any]:
        """Return friction and restitution that are given, by the names of `Contact`'s arguments."""
        given = {"friction": self.friction, "static_friction": self.friction}
        given["restitution"] = self.restitution
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class RobotFile:
    """What a file says of a robot, checked as far as it goes without the robot.

    Attributes:
        path: The file.
        robot: Its content.
        contacts: Its contacts by name.
        joints: Springs and dampers by joint.
        encoders: Encoders by channel.
    """

    path: Path
    robot: RobotEntry
    contacts: dict[str, ContactEntry]
    joints: dict[str, JointEntry]
    encoders: dict[str, EncoderEntry]

    def filter_model(self, settings: RobotSettings) -> FilterModel:
        """Return the filter model of the robot.

        Args:
            settings: Settings of the filter.

        Raises:
            InputError: The file does not fit the robot; the message names the file.
        """
        try:
            return self._make_filter_model(settings)
        except InputError as error:
            raise type(error)(f"{self.path}: {error}") from error

    def _make_filter_model(self, settings: RobotSettings) -> FilterModel:
        motors = self.robot.motors
        robot = self._build_robot(self._list_own_joints() if motors is None else motors.joints)
        contacts = self._list_contacts(settings.contact_law())
        # Logs start in any state, where the modes of dry friction are not known.
        if robot.friction.any():
            _LOG.warning("%s: the dry friction of joints is left out of the filter", self.path)
        system, noise = contact_system(robot, contacts, joint_friction=False), self.robot.noise
        space, key = RobotStateSpace(robot), (OPEN,) * len(contacts)
        kick = self._make_covariance(robot, noise.impulse, noise.angular_impulse)
        start = self._make_start(space, key)
        return FilterModel(
            system=system,
            open=key,
            sensors=self._make_sensors(space),
            process_noise=Noise(
                self._make_covariance(robot, noise.force, noise.torque),
                True,
                "noise",
                settings.compliance,
            ),
            reset_noise=Noise(kick, True, "impulse", settings.compliance) if kick.any() else None,
            guard_noise=surface_noise(contacts, noise.surface),
            start=start,
            scenario=None if start is None else partial(_make_scenario, start),
            inputs=None if motors is None else LogChannel(motors.channel, motors.joints, unit="Nm"),
        )

    def make_system(
        self, law: Mapping[str, Any] = MappingProxyType({}), *, joint_friction: bool = False
    ) -> ContactSystem:
        """Return the system of the robot with its contacts, for a run.

        Its inputs are those of `motors`, or without these of all joints but those of the base,
        which for filters is one of the places where noise acts.

        Args:
            law: Values for all contacts in place of those of the file, by the names of `Contact`.
            joint_friction: Whether joints have the dry friction of the URDF.

        Raises:
            InputError: The file does not fit the robot; the message names the file.
        """
        try:
            motors = self.robot.motors
            robot = self._build_robot(None if motors is None else motors.joints)
            contacts = self._list_contacts(law)
            system: ContactSystem = contact_system(robot, contacts, joint_friction=joint_friction)
        except InputError as error:
            raise type(error)(f"{self.path}: {error}") from error
        return system

    @property
    def urdf(self) -> Path:
        """Path of the URDF.

        Raises:
            FileFormatError: It is in a package that is not installed, or lacks the file.
        """
        return find_urdf(self.robot.urdf, self.path.parent)

    def _list_contacts(self, law: Mapping[str, Any]) -> list[Contact]:
        """Return all contacts, with some values of `Contact` replaced."""
        return [
            replace(each, **law) for name in self.contacts for each in self._make_contacts(name)
        ]

    def _list_own_joints(self) -> list[str]:
        """Return all joints, with those of the base, but for those that mimic others."""
        given = Robot.from_urdf(self.urdf, root=self.robot.root)
        return [name for name in given.joint_names if name not in given.mimics]

    def _build_robot(self, actuated: Sequence[str] | None) -> Robot:
        """Return the robot with inputs at some joints; None for all but those of the base."""
        springs = self.joints
        return Robot.from_urdf(
            self.urdf,
            root=self.robot.root,
            actuated=actuated,
            stiffness={name: joint.stiffness for name, joint in springs.items()},
            rest={name: joint.rest for name, joint in springs.items()},
            damping={k: j.damping for k, j in springs.items() if j.damping is not None},
            gravity=self.robot.gravity,
        )

    def _make_contacts(self, name: str) -> list[Contact]:
        """Return the contacts of one entry, one for each of its surfaces."""
        entry, surfaces = self.contacts[name], self._make_surfaces(name)
        names = (
            [name] if entry.planes is None else [f"{name} {k + 1}" for k in range(len(surfaces))]
        )
        given = msgspec.structs.asdict(entry)
        rest = {name: value for name, value in given.items() if name not in SURFACES}
        return [
            Contact(name=each, surface=surface, **rest)
            for each, surface in zip(names, surfaces, strict=True)
        ]

    def _make_surfaces(self, name: str) -> list[Surface]:
        """Return the surfaces of a contact.

        Raises:
            InputError: The contact has several kinds of surfaces.
        """
        entry = self.contacts[name]
        given = [kind for kind in SURFACES if getattr(entry, kind) is not None]
        if len(given) > 1:
            raise InputError(f"contacts.{name} takes one of {', '.join(SURFACES)}, got {given}")
        if entry.sphere is not None:
            ball = entry.sphere
            return [Sphere(np.array(ball.center), ball.radius, ball.inside)]
        if entry.terrain is not None:
            return [_make_ground(f"contacts.{name}.terrain", entry.terrain)]
        planes = entry.planes or () if entry.plane is None else (entry.plane,)
        if planes:
            return [Plane(plane.point, plane.normal) for plane in planes]
        return [_make_ground("terrain", self.robot.terrain)]

    def _make_sensors(self, space: RobotStateSpace) -> tuple[Sensor, ...]:
        """Return the sensors: the pose of the base, and encoders.

        Raises:
            InputError: There are none, or the pose is that of a base that does not float.
        """
        sensors = []
        if self.robot.pose is not None:
            if self.robot.root != "floating":
                raise InputError(f"pose needs `root: floating`, got root: {self.robot.root}")
            pose = self.robot.pose
            r = np.diag(np.repeat([pose.position, pose.rotation], 3) ** 2)
            parts = (
                LogChannel("position", tuple("xyz"), "m", pose.frame),
                LogChannel("orientation", ("qx", "qy", "qz", "qw"), "1", pose.frame, True),
            )
            sensors.append(Sensor(base_pose("pose", space, r), parts))
        for name, entry in self.encoders.items():
            r = entry.deviation**2 * np.eye(len(entry.joints))
            found = encoders(name, space, entry.joints, r)
            sensors.append(Sensor(found, (LogChannel(name, entry.joints, entry.unit),)))
        if not sensors:
            raise InputError("encoders or pose must say what is measured, and there is neither")
        return tuple(sensors)

    def _make_covariance(self, robot: Robot, linear: float, angular: float) -> Array:
        """Return a covariance in the space of the input, diagonal.

        Args:
            robot: The robot, whose actuation says along which joints inputs act.
            linear: Standard deviation of inputs along axes.
            angular: Standard deviation of inputs about axes.
        """
        units = [label.endswith("[N m]") for label in robot.labels.forces]
        turns = np.array(units) @ robot.actuation > 0.0
        return np.diag(np.where(turns, angular, linear) ** 2)

    def _make_start(self, space: RobotStateSpace, key: ModeKey) -> Estimate | None:
        """Return the estimate before the first row of a log; None if the file has no start.

        Args:
            space: State space of the robot.
            key: Mode of the estimate.

        Raises:
            InputError: Configuration or velocity do not have the size of the robot's.
        """
        start = self.robot.start
        if start is None:
            return None
        nq, nv = space.robot.nq, space.robot.nv
        for name, given, size in (
            ("configuration", start.configuration, nq),
            ("velocity", start.velocity or (0.0,) * nv, nv),
        ):
            if len(given) != size:
                raise InputError(f"start.{name} must have {size} numbers, got {list(given)}")
        x = np.array([*start.configuration, *(start.velocity or (0.0,) * nv)])
        deviations = start.deviations.configuration, start.deviations.velocity
        return Estimate(key, 0.0, x, np.diag(np.repeat(deviations, nv) ** 2))


def load_robot(path: str | Path, content: Any) -> RobotFile:
    """Return the robot that a YAML file describes.

    Args:
        path: The file.
        content: Its content.

    Raises:
        InputError: The content is wrong; the message names file, key, value, and what is right.
    """
    try:
        robot = parse_settings(RobotEntry, content, "robot")
        return RobotFile(
            Path(path),
            robot,
            _parse_entries(ContactEntry, "contacts", robot.contacts),
            _parse_entries(JointEntry, "joints", robot.joints),
            _parse_entries(EncoderEntry, "encoders", robot.encoders),
        )
    except InputError as error:
        raise type(error)(f"{path}: {error}") from error


def _make_scenario(start: Estimate) -> Scenario:
    """Return the scenario that starts at an estimate's mean, with the spread of its covariance."""
    return Scenario(start.mean, np.sqrt(np.diag(start.covariance)))


def _parse_entries(kind: type[T], section: str, given: dict[str, Any]) -> dict[str, T]:
    return {name: parse_settings(kind, value, f"{section}.{name}") for name, value in given.items()}


def _make_ground(where: str, height: Height) -> Surface:
    """Return ground of a height; a plane if it is the same everywhere.

    Args:
        where: Key of the height in the file, for errors.
        height: Number, or formula of x and y, m.

    Raises:
        InputError: The formula is no smooth height.
    """
    if isinstance(height, float):
        return Plane((0.0, 0.0, height), (0.0, 0.0, 1.0))
    found = parse_formula(where, height, ("x", "y"))
    try:
        return Terrain(found)
    except InputError as error:
        raise InputError(f"{where} = {quote(height)}: {error}") from error
