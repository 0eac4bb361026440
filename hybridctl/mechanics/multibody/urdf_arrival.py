"""The comparison of a Pinocchio model with the URDF that it was built from."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pinocchio as pin

from hybridctl.base.checks import Array
from hybridctl.mechanics.multibody.urdf_document import (
    SINGLE_AXIS_TYPES,
    Element,
    UrdfDocument,
    link_of,
    numbers_of,
    parent_joints,
)

_RTOL = 1e-9
"""Difference between file and model that is rounding, relative to the largest number of its kind:
chains of a hundred links turn 1e-16 into 1e-13, and no file has ten digits to lose."""


class _LinkPlace(NamedTuple):
    """Where a link is with all joints at zero.

    Attributes:
        pose: The `pin.SE3` of the link in the frame of the root link.
        carrier: The joint that moves the link, None for the base.
    """

    pose: Any
    carrier: Element | None


def check_arrival(document: UrdfDocument, model: Any) -> None:
    """Compare names, frames, axes and inertias of a model with its URDF, all joints at zero.

    Args:
        document: The URDF, checked.
        model: The `pinocchio.Model`, on a base that is fixed or floats.

    Raises:
        FileFormatError: The model differs from the file.
    """
    places, data = _find_link_places(document), model.createData()
    pin.framesForwardKinematics(model, data, pin.neutral(model))
    size = max(1.0, *(float(np.abs(place.pose.translation).max()) for place in places.values()))
    for link in document.links:
        name = link.get("name", "")
        pose, carrier = places[name]
        frame = model.getFrameId(name, pin.FrameType.BODY)
        if frame >= model.nframes:
            raise document.error(link, f"has link {name!r}, but the model of Pinocchio has not")
        joint = model.frames[frame].parentJoint
        apart = np.abs(data.oMf[frame].homogeneous - pose.homogeneous).max()
        moved = carrier is None or model.names[joint] == carrier.get("name")
        if not (apart <= _RTOL * size and moved):
            raise document.error(
                link, f"places link {name!r} otherwise than the model of Pinocchio ({apart:.3g} m)"
            )
    for joint in document.joints:
        if joint.get("type") != "fixed":
            _check_joint_motion(document, joint, places, model, data)
    _check_inertias(document, places, model, data)


def _find_link_places(document: UrdfDocument) -> dict[str, _LinkPlace]:
    """Return where each link is, by name."""
    carried, places = parent_joints(document), dict[str, _LinkPlace]()
    for link in document.links:
        path, name = list[str](), link.get("name", "")
        while name not in places and name in carried:
            path.append(name)
            name = link_of(carried[name], "parent")
        place = places.setdefault(name, _LinkPlace(pin.SE3.Identity(), None))
        for child in reversed(path):
            joint = carried[child]
            pose = place.pose * _read_origin(joint)
            place = _LinkPlace(pose, place.carrier if joint.get("type") == "fixed" else joint)
            places[child] = place
    return places


def _read_origin(element: Element) -> Any:
    """Return the `pin.SE3` of the <origin> in an element."""
    origin = element.find("origin")
    position = numbers_of(origin, "xyz", (0.0, 0.0, 0.0))
    roll, pitch, yaw = numbers_of(origin, "rpy", (0.0, 0.0, 0.0)).tolist()
    return pin.SE3(pin.rpy.rpyToMatrix(roll, pitch, yaw), position)


def _check_joint_motion(
    document: UrdfDocument, joint: Element, places: dict[str, _LinkPlace], model: Any, data: Any
) -> None:
    """Raise `FileFormatError` for a joint that moves otherwise than its element says.

    Args:
        document: The URDF.
        joint: The element of a joint that is not fixed.
        places: Of the links.
        model: The `pinocchio.Model`.
        data: Its data, after the forward kinematics.
    """
    name, kind = joint.get("name", ""), joint.get("type", "")
    j = model.getJointId(name)
    moves = model.joints[j].createData()
    model.joints[j].calc(moves, pin.neutral(model))
    subspace = data.oMi[j].action @ np.array(moves.S).reshape(6, -1)
    axis = numbers_of(joint.find("axis"), "xyz", (1.0, 0.0, 0.0))
    pose = places[link_of(joint, "child")].pose
    along, about = pose.rotation @ axis / max(float(np.linalg.norm(axis)), 1e-300), np.zeros(3)
    if kind in SINGLE_AXIS_TYPES:
        if kind != "prismatic":  # the velocity of the point at the origin, and the turn
            along, about = pin.skew(pose.translation) @ along, along
        expected = np.concatenate((along, about))[:, None]
        same = subspace.shape == expected.shape and bool(
            np.abs(subspace - expected).max() <= _RTOL * max(1.0, float(np.abs(expected).max()))
        )
    elif kind == "planar":  # two translations perpendicular to the axis, and a rotation about it
        same = subspace.shape == (6, 3) and bool(
            np.abs(along @ subspace[:3, :2]).max() <= _RTOL
            and np.abs(subspace[3:, 2] - along).max() <= _RTOL
        )
    else:
        same = subspace.shape == (6, 6)
    if not same:
        raise document.error(joint, f"has joint {name!r}, which moves otherwise in Pinocchio")


def _check_inertias(
    document: UrdfDocument, places: dict[str, _LinkPlace], model: Any, data: Any
) -> None:
    """Raise `FileFormatError` if a joint of the model carries other inertias than in the file.

    Args:
        document: The URDF.
        places: Of the links.
        model: The `pinocchio.Model`.
        data: Its data, after the forward kinematics.
    """
    wanted = dict[int, Array]()
    scale = dict[int, float]()
    for link in document.links:
        pose = places[link.get("name", "")].pose
        frame = model.getFrameId(link.get("name", ""), pin.FrameType.BODY)
        j = int(model.frames[frame].parentJoint)
        spatial = _compute_spatial_inertia(link, pose)
        wanted[j] = wanted.get(j, np.zeros((6, 6))) + spatial
        scale[j] = max(scale.get(j, 0.0), float(np.abs(spatial).max()))
    for j, expected in wanted.items():
        arrived = data.oMi[j].act(model.inertias[j])
        if not np.abs(arrived.matrix() - expected).max() <= _RTOL * scale[j]:
            raise document.error(
                document.root,
                f"has links of {expected[0, 0]:.9g} kg at joint {model.names[j]!r}, but Pinocchio "
                f"has {float(arrived.mass):.9g} kg there, or other moments of inertia",
            )


def _compute_spatial_inertia(link: Element, pose: Any) -> Array:
    """Return the spatial inertia (6, 6) of a link about the origin of the root link.

    Args:
        link: The element; without <inertial> it has no mass.
        pose: The `pin.SE3` of the link in the frame of the root link.
    """
    inertial = link.find("inertial")
    if inertial is None:
        return np.zeros((6, 6))
    mass = float(numbers_of(inertial.find("mass"), "value", (0.0,))[0])
    moments = inertial.find("inertia")
    xx, xy, xz, yy, yz, zz = (
        float(numbers_of(moments, name, (0.0,))[0])
        for name in ("ixx", "ixy", "ixz", "iyy", "iyz", "izz")
    )
    centre = pose * _read_origin(inertial)
    arm = pin.skew(centre.translation)
    turned = centre.rotation @ [[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]] @ centre.rotation.T
    return np.block([[mass * np.eye(3), -mass * arm], [mass * arm, turned - mass * arm @ arm]])
