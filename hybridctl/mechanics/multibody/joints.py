"""Types of joints: their coordinates and labels, and the types that are refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError

SAGITTAL_JOINTS = ("root_x", "root_z", "root_pitch")
"""Names of the joints of a sagittal base: slides along x and z, then a turn about y."""
EULER_JOINTS = ("root_x", "root_y", "root_z", "root_yaw", "root_pitch", "root_roll")
"""Names of the joints of a base by Euler angles: slides along x, y and z, then turns about z, the
turned y and the turned x."""

_SKEW: Array = np.array(
    [
        [[0.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]],
        [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [-1.0, 0.0, 0.0]],
        [[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
    ]
).reshape(3, 9)
"""Cross-product matrices of the unit vectors x, y and z, each as a row: w times these is w's."""


def skew(w: Array) -> Array:
    """Return the matrix (3, 3) of the cross product with w (3,), or n of them for w (n, 3)."""
    return w.dot(_SKEW).reshape(*w.shape, 3)  # type: ignore[no-any-return]


class JointKind(NamedTuple):
    """A kind of joint, with labels of its coordinates and velocities.

    Attributes:
        name: Name of the kind, see `bodies.MovingBody`. Joints with one coordinate, which slide or
            turn or both, are "screw".
        positions: Label of each coordinate, with its unit, without the name of the joint.
        velocities: Label of each velocity, likewise.
        unit: Which of the joint's own coordinates are a quaternion x, y, z, w, or the cosine and
            sine of an angle; None without such.
    """

    name: str
    positions: tuple[str, ...]
    velocities: tuple[str, ...]
    unit: slice | None = None


_PLACE = tuple(f"{axis} [m]" for axis in "xyz")
_SPEEDS = tuple(f"v{axis} [m/s]" for axis in "xyz")
_QUATERNION = tuple(f"q{part} [1]" for part in "xyzw")
_SPINS = tuple(f"w{axis} [rad/s]" for axis in "xyz")
_KINDS_OF_SEVERAL = {
    "JointModelFreeFlyer": JointKind(
        "floating", (*_PLACE, *_QUATERNION), (*_SPEEDS, *_SPINS), slice(3, 7)
    ),
    "JointModelSpherical": JointKind("spherical", _QUATERNION, _SPINS, slice(0, 4)),
    "JointModelPlanar": JointKind(
        "planar",
        (*_PLACE[:2], "cos [1]", "sin [1]"),
        (*_SPEEDS[:2], _SPINS[2]),
        slice(2, 4),
    ),
    "JointModelTranslation": JointKind("translation", _PLACE, _SPEEDS),
}
_CIRCLE = JointKind("circle", ("cos [1]", "sin [1]"), ("rate [rad/s]",), slice(0, 2))
_TURNS = JointKind("screw", ("[rad]",), ("rate [rad/s]",))
"""Revolute joints, and helical ones, whose coordinate is the angle too."""
_SLIDES = JointKind("screw", ("[m]",), ("rate [m/s]",))
"""Prismatic joints."""


def find_joint_kind(joint: Any) -> JointKind:
    """Return the kind of a joint of a `pinocchio.Model`, one that `check_joints` admits."""
    name = joint.shortname()
    if name in _KINDS_OF_SEVERAL:
        return _KINDS_OF_SEVERAL[name]
    if joint.nq == 2:  # a continuous joint
        return _CIRCLE
    # Names with one coordinate go on with RX, RevoluteUnaligned, HX, HelicalUnaligned, PX, ...
    turns = name.removeprefix("JointModel").startswith(("R", "H"))
    return _TURNS if turns else _SLIDES


class CoordinateLabels(NamedTuple):
    """Labels of the coordinates of a robot, such as "knee [rad]".

    Attributes:
        positions: Label of each entry of q.
        velocities: Label of each entry of v.
        forces: Label of the force or torque along each entry of v.
    """

    positions: tuple[str, ...]
    velocities: tuple[str, ...]
    forces: tuple[str, ...]


def make_coordinate_labels(model: Any) -> CoordinateLabels:
    """Return the labels of a `pinocchio.Model`, such as "knee [rad]" and "knee rate [rad/s]"."""
    positions, velocities, forces = [], [], []
    for name, joint in list(zip(model.names, model.joints, strict=True))[1:]:
        kind = find_joint_kind(joint)
        positions += [f"{name} {label}" for label in kind.positions]
        velocities += [f"{name} {label}" for label in kind.velocities]
        forces += [
            f"{name} {_label_force(label, is_named=joint.nv > 1)}" for label in kind.velocities
        ]
    return CoordinateLabels(tuple(positions), tuple(velocities), tuple(forces))


def _label_force(velocity: str, *, is_named: bool) -> str:
    """Return the label of the force along a velocity, such as "torque along wx [N m]".

    Args:
        velocity: Label of the velocity with its unit, without the name of the joint.
        is_named: Whether the label says along what, as for joints of several velocities; otherwise
            it is "torque [N m]" or "force [N]".
    """
    symbol, unit = velocity.split(maxsplit=1)
    kind, unit = ("force", "[N]") if unit == "[m/s]" else ("torque", "[N m]")
    return f"{kind} along {symbol} {unit}" if is_named else f"{kind} {unit}"


_UNSUPPORTED_TYPES = tuple(
    f"JointModel{name}" for name in ("Composite", "Ellipsoid", "Mimic", "SphericalZYX", "Universal")
)
"""Short names of joint types that are refused, see `check_joints`."""


def check_joints(model: Any) -> None:
    """Check that Pinocchio's results are right for the joints of a `pinocchio.Model`.

    Jacobian rates and derivatives are wrong for joints whose axes turn with their own coordinates
    (composite, ellipsoid, ZYX angles, universal); a chain of simple joints does the same. Forward
    dynamics and derivatives do not take Pinocchio's mimicking joints; `Robot(mimics=)` couples
    ordinary ones. The mass matrix is wrong where joints are not numbered depth first.

    Raises:
        InputError: A joint is of such a type, or joints are not numbered depth first.
    """
    for i in range(1, model.njoints):  # joint 0 is the world
        name, shortname = model.names[i], model.joints[i].shortname()
        if shortname in _UNSUPPORTED_TYPES:
            raise InputError(f"joint {name!r} has type {shortname}, which is not supported")
        # Depth first: the parent is the joint before, or one that carries it (the world does).
        if model.parents[i] not in list(model.supports[i - 1]):
            raise InputError(
                f"joints must be numbered depth first, but {name!r} comes after "
                f"{model.names[i - 1]!r} and moves with {model.names[model.parents[i]]!r}"
            )


def list_motor_joints(model: Any) -> list[str]:
    """Return the joints that have a motor by default: all but those of a base that moves.

    A floating base is found by the type of its joint, a free flyer. Bases of several joints, of
    `SAGITTAL_JOINTS` and `EULER_JOINTS`, are found by the names of these. Joints of this type and
    of these names are left out wherever they are in the robot.
    """
    joints = list(zip(model.names, model.joints, strict=True))[1:]
    chains = {*SAGITTAL_JOINTS, *EULER_JOINTS}
    return [
        name
        for name, joint in joints
        if joint.shortname() != "JointModelFreeFlyer" and name not in chains
    ]


def describe_range(places: Sequence[int]) -> str:
    """Return "3" for the index 3, "3:7" for 3 to 6, which follow each other, "" for none."""
    if len(places) < 2:
        return "".join(map(str, places))
    return f"{places[0]}:{places[-1] + 1}"


def describe_joints(
    places: Mapping[str, tuple[Sequence[int], Sequence[int]]], followed: Mapping[str, str]
) -> Iterator[str]:
    """Yield a description of each joint: its name, and what it follows or where it is in q and v.

    Indices are left out of all descriptions where every joint that does not mimic has one
    coordinate and one velocity.

    Args:
        places: Indices in q and in v of each joint, by name.
        followed: Coordinate of each joint that mimics as a formula (`Mimic.describe`), by name.
    """
    own = {name: place for name, place in places.items() if name not in followed}
    alone = all(len(q) == len(v) == 1 for q, v in own.values())
    for name, (q, v) in places.items():
        if name in followed:
            yield f"{name} = {followed[name]}"
        else:
            yield name if alone else f"{name} q[{describe_range(q)}] v[{describe_range(v)}]"
