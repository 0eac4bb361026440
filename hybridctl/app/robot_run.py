"""A run of a robot from a YAML file: where it starts, what its motors hold, what pushes it.

The section `motion` of the file, and `--set KEY=VALUE` of `hybridctl simulate`, give
`MotionSettings`, such as::

    motion:
      posture: {hip: -0.6, knee: 1.2}    # rad or m; other joints are at 0, or mid-range
      height: 0.1                        # m between the lowest contact and its surface
      duration: 2                        # s
      stiffness: 80                      # of the motors around the posture, N m/rad
      damping: 2                         # N m s/rad
      push: {body: trunk, force: [50, 0, 0], start: 1, duration: 0.1}    # N, s

The file of a legged base, which has `imu`, is taken as a robot that floats, with a contact for each
foot, or for each corner of a flat one whose shape the URDF has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hybridctl.app.robot_file import RobotFile, load_robot
from hybridctl.app.robot_list import list_robot_files
from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.base.progress import Progress
from hybridctl.base.settings import (
    NotNegative,
    Positive,
    Settings,
    UnitInterval,
    load_configuration,
)
from hybridctl.base.yaml_files import read_yaml
from hybridctl.hybrid.laws import LimitedLaw
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.policy import SameLaw
from hybridctl.hybrid.simulate import simulate
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.logs.base_file import BaseFile, load_base
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.contacts.found_contacts import contacts_from, find_spheres
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.push import Wrench
from hybridctl.mechanics.system import ContactSystem

_FRICTION_OF_FEET = 0.7
"""Friction of the feet of a legged base, whose file has none: rubber on a dry floor. A choice."""
_SAG = 0.25
"""Displacement, rad or m, at which a motor with the default stiffness is at its limit. A choice:
the joint gains of common quadrupeds are of this size."""
_LEVER = 0.2
"""Lever, m, at which a motor without a limit is to carry the weight of the robot. A choice."""
_DAMPING_TIME = 0.03
"""Default damping relative to the stiffness, s. A choice: four legs of 0.3 m land without a
rebound."""
_HEIGHT_TOLERANCE = 1e-12
"""Error of the height at the start, m: rounding of places of some metres."""
_HEIGHT_STEPS = 200
"""Largest number of moves of the base to its height: on a slope of 60 degrees each halves the
error, and 50 take it below the tolerance."""


@dataclass(frozen=True)
class Push(Settings):
    """A force on a body for a while.

    Attributes:
        body: Name of the frame that is pushed, at its origin.
        force: Force in N, in world axes.
        start: Time at which it begins, s.
        duration: How long it acts, s.
    """

    body: str
    force: tuple[float, float, float]
    start: NotNegative = 0.5
    duration: Positive = 0.1


@dataclass(frozen=True)
class MotionSettings(Settings):
    """Where a robot starts, what its motors hold, and what pushes it.

    Attributes:
        duration: Duration of the run, s.
        posture: Positions of joints at the start, rad or m. Others are at 0, or in the middle of
            their range where 0 is outside of it.
        target: Positions that the motors hold, by joint, where they are not those of the posture.
        velocity: Rates of joints at the start, rad/s or m/s; others are 0.
        base_velocity: Velocity of a base that moves at the start, m/s along the world's x, y, z.
            Parts along which the base does not move, such as all of a fixed one, are ignored.
        height: Least distance between a contact and its surface at the start, m, of a robot whose
            base moves along z; of others it is ignored. None for 0.05 m.
        mode: Words of the contacts at the start, separated by blanks, such as "open open". None
            for the mode that is consistent with the start.
        stiffness: Stiffness of the motors around their targets, N m/rad or N/m. None for one by
            which a motor reaches its limit at 0.25 rad or m; of a motor without a limit, as if
            that were 0.2 m times the weight of the robot. 0 for none.
        damping: Damping of the motors, N m s/rad or N s/m. None for 0.03 s times the stiffness.
        push: A force on a body; None for none.
        friction: Friction of all contacts, static too; None for that of the file.
        restitution: Restitution of all contacts; None for that of the file.
        joint_friction: Whether joints have the dry friction of the URDF, by which they stick and
            slip as contacts do. With many such joints a run takes long.
        rtol: Relative tolerance of the run.
        atol: Absolute tolerance of the run.
    """

    duration: Positive = 1.0
    posture: dict[str, float] = field(default_factory=dict)
    target: dict[str, float] = field(default_factory=dict)
    velocity: dict[str, float] = field(default_factory=dict)
    base_velocity: tuple[float, float, float] = (0.0, 0.0, 0.0)
    height: NotNegative | None = None
    mode: str | None = None
    stiffness: NotNegative | None = None
    damping: NotNegative | None = None
    push: Push | None = None
    friction: NotNegative | None = None
    restitution: UnitInterval | None = None
    joint_friction: bool = False
    rtol: Positive = 1e-8
    atol: Positive = 1e-8

    @property
    def contact_law(self) -> dict[str, float]:
        """Friction and restitution that are given, by the names of `Contact`'s arguments."""
        given = {"friction": self.friction, "static_friction": self.friction}
        given["restitution"] = self.restitution
        return {name: value for name, value in given.items() if value is not None}


def quick(settings: MotionSettings) -> MotionSettings:
    """Return the settings with tolerances of at least 1e-6."""
    return replace(settings, rtol=max(settings.rtol, 1e-6), atol=max(settings.atol, 1e-6))


def load_robot_file(text: str) -> RobotFile:
    """Return a robot by the path of its YAML file, or by the name of one that comes with hybridctl.

    Args:
        text: The path, or a name such as "go2" or "go2.yaml" that `list_robot_files` has.

    Raises:
        InputError: There is no such file, or its content is wrong; the message names the key.
    """
    path = Path(text)
    if not path.exists():
        path = list_robot_files().get(path.stem if path.parent == Path() else text, path)
    content = read_yaml(path, "robot")
    if isinstance(content, Mapping) and "imu" in content:
        base = load_base(path, content)
        try:
            content = _convert_base(base)
        except InputError as error:
            raise type(error)(f"{path}: {error}") from error
    return load_robot(path, content)


def configure_motion(
    file: RobotFile, config: Path | None = None, assignments: Sequence[str] = ()
) -> MotionSettings:
    """Return the settings of a run: of the robot's file, then a JSON file, then assignments.

    Args:
        file: The robot.
        config: JSON file with settings, None without one.
        assignments: Texts `key=value`.

    Raises:
        InputError: A value is wrong; the message names the key and what is right.
        UnknownNameError: A key is no setting.
    """
    try:
        motion: MotionSettings = load_configuration(MotionSettings, None, (), file.robot.motion)
    except InputError as error:
        text = str(error).replace("settings", "motion", 1)
        raise type(error)(f"{file.path}: {text}") from error
    if config is None and not assignments:
        return motion
    settings: MotionSettings = load_configuration(
        MotionSettings, config, assignments, file.robot.motion
    )
    return settings


@dataclass(frozen=True, eq=False)
class RobotRun:
    """A robot that is ready to be simulated.

    Attributes:
        system: The robot with its contacts.
        settings: Settings of the run.
        start: State (nx,) at the start.
        law: Torques of the motors.
    """

    system: ContactSystem
    settings: MotionSettings
    start: Array
    law: PostureHold

    @property
    def wrench(self) -> Wrench | None:
        """The push of the settings; None for none."""
        return make_wrench(self.settings)

    def simulate(self, progress: Progress = None) -> HybridTrajectory:
        """Return the run.

        Args:
            progress: See `hybridctl.simulate`.

        Raises:
            InputError: The start does not fit the mode, or a name is wrong.
            SimulationError: The run cannot go on.
        """
        settings = self.settings
        return simulate(
            self.system,
            self.start_mode,
            self.start,
            (0.0, settings.duration),
            SameLaw(self.law),
            rtol=settings.rtol,
            atol=settings.atol,
            progress=progress,
            wrench=self.wrench,
        )

    @property
    def start_mode(self) -> ModeKey | None:
        """The mode that the settings name; None where it is found from the start."""
        return None if self.settings.mode is None else tuple(self.settings.mode.split())


def prepare_robot_run(file: RobotFile, settings: MotionSettings) -> RobotRun:
    """Return the run of a robot by its settings.

    Args:
        file: The robot.
        settings: The settings.

    Raises:
        InputError: A setting does not fit the robot, such as the name of a joint; the message names
            the file.
    """
    system = _make_system(file, settings)
    try:
        start = find_start(system, settings)
        law = make_hold(system.robot, settings, start)
        if settings.push is not None:
            system.robot.body(settings.push.body)
    except InputError as error:
        raise type(error)(f"{file.path}: {error}") from error
    return RobotRun(system, settings, start, law)


def make_wrench(settings: MotionSettings) -> Wrench | None:
    """Return the push of settings; None for none."""
    push = settings.push
    if push is None:
        return None
    return Wrench(push.body, push.force, push.start, push.start + push.duration)


def rebuild_system(file: RobotFile, settings: MotionSettings) -> HybridSystem:
    """Return the system of a run that was simulated: that of the robot, or with its push.

    Args:
        file: The robot.
        settings: Settings of the run.

    Raises:
        InputError: The file does not fit the robot.
    """
    system, wrench = _make_system(file, settings), make_wrench(settings)
    return system if wrench is None else system.pushed(wrench)


def _make_system(file: RobotFile, settings: MotionSettings) -> ContactSystem:
    """Return the system of a robot with the contact law and joint friction of settings."""
    return file.make_system(settings.contact_law, joint_friction=settings.joint_friction)


def describe_stored_robot(file: RobotFile, settings: MotionSettings, urdf: str) -> dict[str, Any]:
    """Return the content of a YAML file by which a stored run is rebuilt, and run again.

    Args:
        file: The robot.
        settings: Settings of the run.
        urdf: Name of the URDF beside the YAML file.
    """
    content: dict[str, Any] = msgspec.to_builtins(file.robot)
    motion: dict[str, Any] = msgspec.to_builtins(asdict(settings))
    given = {"urdf": urdf, "motion": {k: v for k, v in motion.items() if v not in (None, {})}}
    return {k: v for k, v in {**content, **given}.items() if v not in (None, {})}


def find_start(system: ContactSystem, settings: MotionSettings) -> Array:
    """Return the state (nx,) in which a run starts.

    Args:
        system: The robot with its contacts.
        settings: Settings of the run.

    Raises:
        UnknownNameError: A joint is named that the robot does not have.
        InputError: A named joint has several degrees of freedom.
    """
    robot = system.robot
    q = robot.posture(_fill_posture(robot, settings.posture))
    v = np.zeros(robot.nv)
    for name, rate in settings.velocity.items():
        v[robot.velocity_index(name)] = rate
    base = _find_base_columns(robot)
    for axis, column in base.items():
        v[column] += settings.base_velocity["xyz".index(axis)]
    if "z" in base:
        q = _raise_base(system, q, base["z"], 0.05 if settings.height is None else settings.height)
    return np.concatenate((q, v))


def _fill_posture(robot: Robot, posture: Mapping[str, float]) -> dict[str, float]:
    """Return positions of joints: those given, and mid-range where zero is beyond limits."""
    filled = {
        name: 0.5 * (limit.lower + limit.upper)
        for name, limit in robot.limits.items()
        if not limit.lower <= 0.0 <= limit.upper and np.isfinite([limit.lower, limit.upper]).all()
    }
    return {**filled, **posture}


def _find_base_columns(robot: Robot) -> dict[str, int]:
    """Return the index in v of the motion of a base along each of x, y, z along which it moves.

    Those of a planar base are its joints root_x and root_z; a fixed base has none.
    """
    first = robot.joint_names[0]
    if len(robot.velocities(first)) == 6:  # floating, not turned at the start
        return {axis: robot.velocities(first)[k] for k, axis in enumerate("xyz")}
    names = {"x": "root_x", "z": "root_z"}
    return {
        axis: robot.velocity_index(name)
        for axis, name in names.items()
        if name in robot.joint_names
    }


def _raise_base(system: ContactSystem, q: Array, column: int, height: float) -> Array:
    """Return a configuration (nq,) with the base moved along z to a height of the contacts.

    Args:
        system: The robot with its contacts.
        q: Configuration (nq,).
        column: Place in v of the base's motion along z.
        height: Least gap of the contacts that rise with the base, m.

    Returns:
        The configuration; q itself if no contact rises with the base.
    """
    # Not in one move: on a slope, and for a round contact, the gap changes by less than the height.
    dynamics, up = system.dynamics, np.zeros(system.robot.nv)
    up[column] = 1.0
    space = [k for k, contact in enumerate(system.contacts) if isinstance(contact, Contact)]
    rates = (dynamics.gap_jacobian(q) @ up)[space]
    # Contacts with walls, whose gaps hardly change with the height, would send the base away.
    rising = [k for k, rate in zip(space, rates, strict=True) if rate > 1e-3]
    if not rising:
        return q
    for _ in range(_HEIGHT_STEPS):
        missing = height - float(dynamics.gaps(q)[rising].min())
        if abs(missing) < _HEIGHT_TOLERANCE:
            break
        q = system.robot.integrate(q, missing * up)
    return q


class PostureHold(LimitedLaw):
    r"""Torques that hold a posture, cut to the limits of the motors.

    .. math:: u = K S^T (q^* \ominus q) - D S^T v,

    with :math:`S` (nv, nu) the actuation of the robot, each of whose columns selects one velocity.

    Args:
        robot: The robot.
        target: The posture :math:`q^*` (nq,).
        stiffness: Diagonal (nu,) of K, N m/rad or N/m.
        damping: Diagonal (nu,) of D, N m s/rad or N s/m.

    Attributes:
        target: See above.
        stiffness: See above.
        damping: See above.
        limits: Lower and upper limits (2, nu) of the torques, N m or N; None if no motor has any.
    """

    def __init__(self, robot: Robot, target: Array, stiffness: Array, damping: Array) -> None:
        self._robot, self.target = robot, target
        self.stiffness, self.damping = stiffness, damping
        limited = np.isfinite(robot.effort).any()
        self.limits = np.array([-robot.effort, robot.effort]) if limited else None
        self._columns = robot.actuation.argmax(axis=0)

    def __call__(self, t: float, x: Array) -> Array:
        """Return the torques (nu,) at a state x (nx,), cut to the limits."""
        u = self.demand(t, x)
        return u if self.limits is None else np.clip(u, *self.limits)

    def demand(self, t: float, x: Array) -> Array:
        """Return the torques (nu,) at a state x (nx,) before they are cut."""
        nq = self._robot.nq
        error = self._robot.difference(x[:nq], self.target)[self._columns]
        return np.asarray(self.stiffness * error - self.damping * x[nq:][self._columns])


def make_hold(robot: Robot, settings: MotionSettings, start: Array) -> PostureHold:
    """Return the law of the motors in a run.

    Args:
        robot: The robot.
        settings: Settings of the run.
        start: State (nx,) at its start.

    Raises:
        UnknownNameError: A target names a joint that the robot does not have.
    """
    q = start[: robot.nq]
    target = q
    if settings.target:
        target = robot.posture({**_fill_posture(robot, settings.posture), **settings.target})
    reach = np.where(np.isfinite(robot.effort), robot.effort, _LEVER * robot.weight)
    stiffness = reach / _SAG
    if settings.stiffness is not None:
        stiffness = np.full(robot.nu, settings.stiffness)
    damping = _DAMPING_TIME * stiffness
    if settings.damping is not None:
        damping = np.full(robot.nu, settings.damping)
    return PostureHold(robot, target, stiffness, damping)


def _convert_base(base: BaseFile) -> dict[str, Any]:
    """Return the file of a legged base as that of a robot that floats, with contacts.

    Args:
        base: The legged base.

    Raises:
        FileFormatError: The URDF cannot be read, or its package is not installed.
        UnknownNameError: The robot does not have the frame of a foot.
    """
    entry, model = base.entry, base.model(base.settings)
    robot = Robot.from_urdf(model.urdf, root="floating")
    try:
        guessed: Sequence[Contact] = contacts_from(robot)
    except InputError:
        guessed = ()  # a robot without shapes: its feet are points, or have the radius of the file
    contacts: dict[str, Any] = {}
    for name, foot in entry.contacts.items():
        joint = robot.frame(foot.frame, f"contact {name!r}: frame").joint
        corners = [c for c in guessed if robot.frame(c.frame).joint == joint]
        if foot.flat and len(corners) > 1:
            for k, corner in enumerate(corners, start=1):
                offset = np.asarray(corner.offset).tolist()
                contacts[f"{name} {k}"] = {"frame": corner.frame, "offset": offset}
            continue
        contacts[name] = {"frame": foot.frame}
        if not foot.flat and foot.radius is None and (balls := find_spheres(robot, foot.frame)):
            centre, radius = balls[0]
            contacts[name] |= {"offset": centre.tolist(), "radius": radius}
        elif foot.radius:
            contacts[name] |= {"radius": foot.radius}
    for contact in contacts.values():
        contact["friction"] = _FRICTION_OF_FEET
    return {
        "urdf": entry.urdf,
        "root": "floating",
        "contacts": contacts,
        "motion": entry.motion,
    }
