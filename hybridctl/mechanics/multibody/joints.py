"""Types of joints: their coordinates and labels, and the types that are refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError

SAGITTAL_JOINTS = ("root_x", "root_z", "root_pitch")

_LEVI_CIVITA = np.zeros((3, 3, 3))
for _i, _k, _j in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
    _LEVI_CIVITA[_k, _i, _j], _LEVI_CIVITA[_j, _i, _k] = 1.0, -1.0
_SKEW: Array = _LEVI_CIVITA.reshape(3, 9)


def skew(w: Array) -> Array:
    """Return the matrix (3, 3) of the cross product with w (3,), or n of them for w (n, 3)."""
    return w.dot(_SKEW).reshape(*w.shape, 3)  # type: ignore[no-any-return]


class JointKind(NamedTuple):
    """A kind of joint, with labels of its coordinates and velocities.

    Attributes:
        name: Name of the kind, see `bodies.MovingBody`.
        positions: Label of each coordinate.
        velocities: Label of each velocity.
        unit: Which coordinates are a quaternion or a unit circle; None without one.
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
_SLIDES = JointKind("screw", ("[m]",), ("rate [m/s]",))


def kind_of(joint: Any) -> JointKind:
    """Return the kind of a joint of a `pinocchio.Model`."""
    name = joint.shortname()
    if name in _KINDS_OF_SEVERAL:
        return _KINDS_OF_SEVERAL[name]
    if joint.nq == 2:
        return _CIRCLE
    turns = name.removeprefix("JointModel").startswith(("R", "Revolute"))
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


def coordinate_labels(model: Any) -> CoordinateLabels:
    """Return the labels of a `pinocchio.Model`; the velocity of a simple joint is "knee rate"."""
    positions, velocities, forces = [], [], []
    for name, joint in list(zip(model.names, model.joints, strict=True))[1:]:
        kind = kind_of(joint)
        positions += [f"{name} {label}" for label in kind.positions]
        velocities += [f"{name} {label}" for label in kind.velocities]
        forces += [
            f"{name} {_label_force(label, is_named=joint.nv > 1)}" for label in kind.velocities
        ]
    return CoordinateLabels(tuple(positions), tuple(velocities), tuple(forces))


def _label_force(velocity: str, *, is_named: bool) -> str:
    """Return the label of the force along a velocity, with its name where a joint has several."""
    symbol, unit = velocity.split(maxsplit=1)
    kind, unit = ("force", "[N]") if unit == "[m/s]" else ("torque", "[N m]")
    return f"{kind} along {symbol} {unit}" if is_named else f"{kind} {unit}"


_UNSUPPORTED_TYPES = tuple(
    f"JointModel{name}" for name in ("Composite", "Ellipsoid", "Mimic", "SphericalZYX", "Universal")
)


def check_joints(model: Any) -> None:
    """Check that Pinocchio's results are right for the joints of a `pinocchio.Model`.

    Jacobian rates and derivatives are wrong for joints whose axes turn with their own coordinates;
    a chain of simple joints does the same. The mass matrix is wrong where joints are not numbered
    depth first.

    Raises:
        InputError: A joint is of such a type, or joints are not numbered depth first.
    """
    for i in range(1, model.njoints):
        name, shortname = model.names[i], model.joints[i].shortname()
        if shortname in _UNSUPPORTED_TYPES:
            raise InputError(f"joint {name!r} has type {shortname}, which is not supported")
        if model.parents[i] not in list(model.supports[i - 1]):
            raise InputError(
                f"joints must be numbered depth first, but {name!r} comes after "
                f"{model.names[i - 1]!r} and moves with {model.names[model.parents[i]]!r}"
            )


def motors(model: Any) -> list[str]:
    """Return the joints that may have a motor: all but those of a floating or sagittal base."""
    joints = list(zip(model.names, model.joints, strict=True))[1:]
    return [
        name
        for name, joint in joints
        if joint.shortname() != "JointModelFreeFlyer" and name not in SAGITTAL_JOINTS
    ]


def describe_range(places: Sequence[int]) -> str:
    """Return "3" for one index, "3:7" for several that follow each other, "" for none."""
    if len(places) < 2:
        return "".join(map(str, places))
    return f"{places[0]}:{places[-1] + 1}"


def describe_joints(
    places: Mapping[str, tuple[Sequence[int], Sequence[int]]], followed: Mapping[str, str]
) -> Iterator[str]:
    """Yield the name of each joint, with what it follows, and its places unless all have one.

    Args:
        places: Indices in q and in v of each joint, by name.
        followed: What a joint that mimics follows, in words, by name.
    """
    own = {name: place for name, place in places.items() if name not in followed}
    alone = all(len(q) == len(v) == 1 for q, v in own.values())
    for name, (q, v) in places.items():
        if name in followed:
            yield f"{name} = {followed[name]}"
        else:
            yield name if alone else f"{name} q[{describe_range(q)}] v[{describe_range(v)}]"
