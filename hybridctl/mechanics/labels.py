"""Names of the coordinates and velocities of a robot, with their units, by its joints."""

from __future__ import annotations

from typing import Any, NamedTuple

_TURNS = ("R", "Revolute")
_SPINS = tuple(f"w{axis} [rad/s]" for axis in "xyz")
_QUATERNION = tuple(f"q{part} [1]" for part in "xyzw")
_OF_SEVERAL = {
    "JointModelFreeFlyer": (
        (*(f"{axis} [m]" for axis in "xyz"), *_QUATERNION),
        (*(f"v{axis} [m/s]" for axis in "xyz"), *_SPINS),
    ),
    "JointModelSpherical": (_QUATERNION, _SPINS),
    "JointModelPlanar": (
        ("x [m]", "y [m]", "cos [1]", "sin [1]"),
        ("vx [m/s]", "vy [m/s]", "wz [rad/s]"),
    ),
}


class CoordinateLabels(NamedTuple):
    """Labels of q (nq,), such as "knee [rad]", of v (nv,), and of forces along v (nv,)."""

    positions: tuple[str, ...]
    velocities: tuple[str, ...]
    forces: tuple[str, ...]


def coordinate_labels(model: Any) -> CoordinateLabels:
    """The labels of a Pinocchio model; velocities of a joint of one are named "knee rate"."""
    positions, velocities, forces = [], [], []
    for name, joint in list(zip(model.names, model.joints, strict=True))[1:]:
        q, v = _of_joint(joint)
        positions += [f"{name} {label}" if joint.nq > 1 else f"{name} [{label}]" for label in q]
        velocities += [f"{name} {label}" for label in v]
        forces += [f"{name} {_force(label, joint.nv > 1)}" for label in v]
    return CoordinateLabels(tuple(positions), tuple(velocities), tuple(forces))


def _force(velocity: str, named: bool) -> str:
    """The label of what acts along a velocity; `named` after it, where a joint has several."""
    symbol, unit = velocity.split(maxsplit=1)
    kind, unit = ("force", "[N]") if unit == "[m/s]" else ("torque", "[N m]")
    return f"{kind} along {symbol} {unit}" if named else f"{kind} {unit}"


def _of_joint(joint: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    kind = joint.shortname()
    if kind in _OF_SEVERAL:
        return _OF_SEVERAL[kind]
    if joint.nq == 2:
        return ("cos [1]", "sin [1]"), ("rate [rad/s]",)
    if kind.removeprefix("JointModel").startswith(_TURNS):
        return ("rad",), ("rate [rad/s]",)
    return ("m",), ("rate [m/s]",)
