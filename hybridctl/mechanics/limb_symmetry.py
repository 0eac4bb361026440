r"""The mirror symmetry of a robot whose limbs can be exchanged, such as the legs of a walker.

Let X be the reflection of space at a plane through the origin with normal n. It takes a linear
velocity v to R v and an angular one to -R w, :math:`R = I - 2 n n^T`. A robot is symmetric if the
reflection of each of its motions is a motion of the robot with left and right joints exchanged. At
the neutral configuration the columns J of the joints' Jacobian then obey

.. math:: X J_i = J_{p(i)} B_i

with p(i) the partner of joint i, and B_i a sign where it has one degree of freedom. These B_i make
the map V of velocities, for which at mirrored states :math:`V^T M V = M` and :math:`V^T h = h`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import block_diag

from hybridctl.base.checks import Array, check_member, check_number, check_vector
from hybridctl.base.errors import InputError
from hybridctl.hybrid.mode import ModeKey
from hybridctl.mechanics.base_motion import BaseMotion, Way
from hybridctl.mechanics.contact_law.law import SLIP_MINUS, SLIP_PLUS
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.contacts.joint_contacts import JointStop, Side
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.system import ContactSystem
from hybridctl.sensitivity.symmetry import Symmetry

_TOLERANCE = 1e-6
"""Default deviation from symmetry that `limb_symmetry` accepts: a URDF writes six digits."""
_ROUNDING = 1e-9
"""Distance of an entry of V from -1, 0 or 1 below which it is set to that number.

It is far above the rounding of the decomposition (1e-15), and far below that of a URDF (1e-6),
which stays in V."""
_STATES, _SEED = 5, 0
"""Random states at which the symmetry is checked, and their seed."""
_DIFFERENT = 0.5
"""Deviation of actuation matrices that differ: their entries are 0 and 1, or -1 when mirrored."""
_LEAST_DIAGONAL = 1e-9
"""Smallest entry of the diagonal of M, relative to the largest, by which errors are scaled."""
_OPPOSITE = {SLIP_PLUS: SLIP_MINUS, SLIP_MINUS: SLIP_PLUS, "slips+": "slips-", "slips-": "slips+"}
"""Modes of a sliding contact, and last words of names of guards, by those of the other
direction."""
_LEAVES = " leaves its piece"
"""End of the name of a guard at which a contact leaves its tread of `Stairs`."""
_OTHER_SIDE: dict[Side, Side] = {"lower": "upper", "upper": "lower"}
"""The stop of a joint at the other end, onto which a mirror that reverses the joint takes one."""
_COEFFICIENTS = (
    "friction",
    "static_friction",
    "restitution",
    "tangential_restitution",
    "restitution_threshold",
    "load",
)
"""Attributes in which contacts that are exchanged must be equal."""


def limb_symmetry(
    system: ContactSystem,
    joints: Mapping[str, str],
    contacts: Mapping[str, str],
    *,
    free: Mapping[str, str | tuple[str, Way]] | None = None,
    normal: ArrayLike = (0.0, 1.0, 0.0),
    tolerance: float = _TOLERANCE,
) -> Symmetry:
    """Return the symmetry that mirrors motions and exchanges joints and contacts.

    Signs follow from the model: hip flexion stays, abduction changes its sign, and so do y, roll
    and yaw of a floating base. Mass matrix, bias forces, gaps and directions of sliding are checked
    at random states.

    Args:
        system: Robot and contacts.
        joints: Pairs of joints that are exchanged, each given once. Other joints stay: a floating
            or sagittal base, a waist.
        contacts: Pairs of contacts in space that are exchanged, each given once. Stops and dry
            friction of joints follow their joints.
        free: Joints of one degree of freedom along which motions may be moved, by a name that the
            caller gives to this direction, such as {"translation": "root_x"}. For a floating base
            the joint and "x", "y" or "yaw", such as {"translation": ("root_joint", "x")}.
        normal: Normal (3,) of the plane of symmetry, in world axes at the neutral configuration;
            the plane contains the origin of the world.
        tolerance: Largest deviation from symmetry that is accepted: of joint axes in m and without
            unit, of the mass matrix relative to its diagonal, of the bias relative to itself, of
            gaps in m.

    Raises:
        UnknownNameError: If the system lacks a name.
        InputError: If the mirror image of a joint with stops or dry friction has none, if the
            normal is zero, if a name is in several pairs, if joints or contacts of a pair are of
            different kinds, if contacts of a pair have different coefficients, if one joint of a
            pair has a motor and the other none, if joints mimic others, if a joint in `free` has
            several degrees of freedom, or if the robot is not symmetric within `tolerance`; the
            message has the deviations.
    """
    robot = system.robot
    if robot.mimics:
        raise InputError(
            f"system: robot must have no joints that mimic others, got {sorted(robot.mimics)}"
        )
    check_number("tolerance", tolerance, above=0.0)
    axis = check_vector("normal", normal, 3)
    if not axis.any():
        raise InputError("normal must not be zero, got (0, 0, 0)")
    names = [contact.name for contact in system.contacts]
    in_space = [contact.name for contact in system.contacts if isinstance(contact, Contact)]
    swapped = _check_pairs("contacts", contacts, in_space)
    partners = _check_pairs("joints", joints, robot.joint_names)
    mirror = _find_mirror(robot, partners, axis / np.linalg.norm(axis))
    swapped |= _pair_contacts_of_joints(system, partners, mirror)
    order = tuple(names.index(swapped.get(name, name)) for name in names)
    # Inputs are exchanged as the velocities are that they act on: S_u B = V S_u by least squares,
    # with the actuation S_u. What is left over are motors without a partner.
    inputs = np.linalg.pinv(robot.actuation) @ mirror.velocities @ robot.actuation
    unmatched = robot.actuation @ inputs - mirror.velocities @ robot.actuation
    if np.abs(unmatched).max(initial=0.0) > _DIFFERENT:
        raise InputError("joints: of each pair both or none must have a motor, which is not so")
    signs = _check_symmetry(system, mirror, order, tolerance)
    flipped = frozenset(name for name, sign in zip(names, signs, strict=True) if sign < 0.0)
    ways = find_free_motions(system, free or {}, tolerance)
    curved = robot.nq != robot.nv  # then maps of coordinates and of perturbations differ
    return Symmetry(
        state=np.kron(np.eye(2), mirror.velocities),
        input=inputs,
        mode=partial(_mirror_mode, order, tuple(name in flipped for name in names)),
        guard=partial(_mirror_guard, swapped, flipped),
        contacts=order,
        free=ways,
        coordinates=block_diag(mirror.coordinates, mirror.velocities) if curved else None,
    )


def motion_symmetry(
    system: ContactSystem,
    free: Mapping[str, str | tuple[str, Way]],
    *,
    tolerance: float = _TOLERANCE,
) -> Symmetry:
    """Return the symmetry of a robot that may be moved, without an exchange of limbs.

    Orbits close up to these motions: a gait in a circle, for instance, up to "x", "y" and "yaw".

    Args:
        system: Robot and contacts.
        free: Joints along which motions may be moved, see `limb_symmetry`.
        tolerance: Largest change of gaps by such a motion of 1 m or 1 rad, m.

    Raises:
        UnknownNameError: If the system lacks a name.
        InputError: If a joint in `free` does not fit, or gaps change.
    """
    nq, nv = system.robot.nq, system.robot.nv
    return Symmetry(
        np.eye(2 * nv),
        free=find_free_motions(system, free, check_number("tolerance", tolerance, above=0.0)),
        coordinates=np.eye(nq + nv) if nq != nv else None,
    )


def find_free_motions(
    system: ContactSystem, free: Mapping[str, str | tuple[str, Way]], tolerance: float
) -> dict[str, Array | BaseMotion]:
    """Return the free directions of a symmetry.

    Args:
        system: Robot and contacts.
        free: Joints along which motions may be moved, see `limb_symmetry`.
        tolerance: Largest change of gaps by a motion of a floating base of 1 m or 1 rad, m.

    Raises:
        UnknownNameError: If the system lacks a name.
        InputError: If a joint does not fit, or gaps change.
    """
    robot, rng = system.robot, np.random.default_rng(_SEED)
    ways: dict[str, Array | BaseMotion] = {}
    for name, joint in free.items():
        if isinstance(joint, str):
            ways[name] = np.eye(2 * robot.nv)[robot.velocity_index(joint)]
            continue
        motion = ways[name] = BaseMotion.of(robot, *joint)
        q = robot.integrate(robot.neutral(), rng.normal(size=robot.nv))
        change = system.dynamics.gaps(motion.move(q, 1.0)) - system.dynamics.gaps(q)
        if np.abs(change).max(initial=0.0) > tolerance:
            raise InputError(
                f"free: motions must not depend on {name!r}, but gaps change by "
                f"{np.abs(change).max():.3g} m with {joint}"
            )
    return ways


def _pair_contacts_of_joints(
    system: ContactSystem, partners: Mapping[str, str], mirror: _Mirror
) -> dict[str, str]:
    """Return the partner of each stop and each dry friction of a joint, by name.

    The lower stop of a joint is mirrored to the upper stop of its partner where the mirror reverses
    the coordinate, also where the joint is its own partner.

    Args:
        system: Robot and contacts.
        partners: Partner of each joint that is exchanged, in both directions.
        mirror: The map of velocities has the signs.

    Raises:
        InputError: The partner of a joint with a stop or friction has none.
    """
    robot = system.robot
    by_name = {contact.name: contact for contact in system.contacts}
    found = {}
    for name, contact in by_name.items():
        if isinstance(contact, Contact):
            continue
        joint = partners.get(contact.joint, contact.joint)
        if isinstance(contact, JointStop):
            own, other = robot.velocities(contact.joint)[0], robot.velocities(joint)[0]
            reverses = mirror.velocities[other, own] < 0.0
            side = _OTHER_SIDE[contact.side] if reverses else contact.side
            image = replace(contact, joint=joint, side=side).name
        else:
            image = replace(contact, joint=joint).name
        if image not in by_name:
            raise InputError(
                f"joints: {contact.joint!r} has a contact {name!r}, so that its mirror image must "
                f"have {image!r}, which the system does not have"
            )
        found[name] = image
    return found


class _Mirror(NamedTuple):
    """The maps of a motion onto its mirror image.

    Attributes:
        coordinates: Map S (nq, nq) of coordinates.
        velocities: Map V (nv, nv) of velocities.
        error: Largest entry of X J_i - J_p(i) B_i over all joints, in m and without unit.
    """

    coordinates: Array
    velocities: Array
    error: float


def _check_pairs(what: str, pairs: Mapping[str, str], known: Sequence[str]) -> dict[str, str]:
    """Return the partner of each name of some pairs, in both directions.

    Args:
        what: What the names are, for messages.
        pairs: The pairs.
        known: All names that exist.

    Raises:
        UnknownNameError: If a name does not exist.
        InputError: If a name is in two pairs.
    """
    found: dict[str, str] = {}
    for one, other in pairs.items():
        for name in (one, other):
            if check_member(f"name in {what}", name, known) in found:
                raise InputError(f"{what}: {name!r} must be in one pair only, got {dict(pairs)}")
        found |= {one: other, other: one}
    return found


def _find_mirror(robot: Robot, partners: Mapping[str, str], normal: Array) -> _Mirror:
    """Return the maps that follow from the joints' axes at the neutral configuration.

    Args:
        robot: The robot.
        partners: Partner of each joint that is exchanged, in both directions.
        normal: Unit normal (3,) of the plane of symmetry, in world axes.

    Returns:
        The maps of coordinates and velocities, and the deviation of the axes from them.

    Raises:
        InputError: Joints of a pair are of different kinds.
    """
    reflection = np.eye(3) - 2.0 * np.outer(normal, normal)
    # Columns (6, nv) of all joints, in the world; the pose of joint 1 is not used.
    columns = robot.motion(robot.neutral(), np.zeros(robot.nv), [1]).jacobian
    mirrored = block_diag(reflection, -reflection) @ columns
    bodies = dict(zip(robot.joint_names, robot.tree().bodies, strict=True))
    q_map, v_map, error = np.zeros((robot.nq, robot.nq)), np.zeros((robot.nv, robot.nv)), 0.0
    for name, body in bodies.items():
        partner = bodies[partners.get(name, name)]
        if partner.kind != body.kind or partner.twist.shape != body.twist.shape:
            raise InputError(
                f"joints: {name!r} and {partners[name]!r} must be of the same kind, got "
                f"{body.kind} and {partner.kind}"
            )
        size = body.twist.shape[1]
        own, other = slice(body.v, body.v + size), slice(partner.v, partner.v + size)
        fit = np.linalg.lstsq(columns[:, other], mirrored[:, own], rcond=None)[0]
        left, _, right = np.linalg.svd(fit)
        block = left @ right  # the nearest orthogonal matrix: a sign where there is one velocity
        rounded = np.round(block)
        block = np.where(np.abs(block - rounded) < _ROUNDING, rounded, block)
        error = max(error, float(np.abs(columns[:, other] @ block - mirrored[:, own]).max()))
        v_map[other, own] = block
        coordinates = _make_coordinate_block(body.kind, block)
        count = len(coordinates)
        q_map[partner.q : partner.q + count, body.q : body.q + count] = coordinates
    return _Mirror(q_map, v_map, error)


def _make_coordinate_block(kind: str, block: Array) -> Array:
    """Return the map of a joint's coordinates, given that of its velocities.

    A quaternion x, y, z, w turns with the rotation vector: its vector part is mapped as angular
    velocities are, and w stays. So do cosine and sine of an angle.
    """
    if kind == "circle":
        return np.asarray(block_diag(1.0, block))
    if kind in ("spherical", "floating"):
        return np.asarray(block_diag(block, 1.0))
    if kind == "planar":
        return np.asarray(block_diag(block[:2, :2], 1.0, block[2, 2]))
    return block


def _check_symmetry(
    system: ContactSystem, mirror: _Mirror, order: tuple[int, ...], tolerance: float
) -> list[float]:
    """Check the symmetry at random states, and return how signs of sliding change.

    Args:
        system: Robot and contacts.
        mirror: The maps of coordinates and velocities.
        order: For each contact, the index of the contact that it is exchanged with, or its own.
        tolerance: Largest deviation from symmetry that is accepted, see `limb_symmetry`.

    Returns:
        For each contact, the sign of sliding at its mirrored contact relative to its own. It is -1
        where the mirrored motion slides the other way along the one direction of a contact in the
        plane. A contact with two directions or none has 1: its modes have no direction.

    Raises:
        InputError: The robot and its contacts are not symmetric within the tolerance, or contacts
            that are exchanged have different coefficients or numbers of directions of sliding.
    """
    robot, contacts, rng = system.robot, system.contacts, np.random.default_rng(_SEED)
    v_map = mirror.velocities
    errors = {"joint axes": mirror.error, "mass matrix": 0.0, "bias forces": 0.0}
    errors |= {"gaps [m]": 0.0, "directions of sliding": 0.0}
    signs = [1.0] * len(contacts)
    for _ in range(_STATES):
        q = robot.integrate(robot.neutral(), rng.normal(size=robot.nv))
        v, image = rng.normal(size=robot.nv), mirror.coordinates @ q
        mass = robot.mass_matrix(q)
        scale = np.sqrt(np.maximum(mass.diagonal(), _LEAST_DIAGONAL * mass.diagonal().max()))
        off = (v_map.T @ robot.mass_matrix(image) @ v_map - mass) / np.outer(scale, scale)
        bias = robot.bias(q, v)
        bias_off = (v_map.T @ robot.bias(image, v_map @ v) - bias) / scale
        size = float(np.linalg.norm(bias / scale))
        _raise_to(errors, "mass matrix", np.abs(off).max())
        _raise_to(errors, "bias forces", np.linalg.norm(bias_off) / size if size else 0.0)
        if not contacts:
            continue
        gaps, image_gaps = system.dynamics.gaps(q), system.dynamics.gaps(image)
        _raise_to(errors, "gaps [m]", np.abs(image_gaps[list(order)] - gaps).max())
        rows, image_rows = (
            system.dynamics.contact_set.jacobian(q),
            system.dynamics.contact_set.jacobian(image),
        )
        for i, tangents in enumerate(system.dynamics.contact_set.tangents):
            images = system.dynamics.contact_set.tangents[order[i]]
            if not len(tangents) == len(images):
                raise InputError(_describe_difference(system, i, order[i], "directions of sliding"))
            if len(tangents):
                # By v, the sliding velocities of the image and of the motion: one is the other,
                # turned.
                mirrored, own = image_rows[images] @ v_map, rows[tangents]
                turn = mirrored @ np.linalg.pinv(own)
                _raise_to(errors, "directions of sliding", np.abs(mirrored - turn @ own).max())
                signs[i] = float(np.sign(turn[0, 0])) if len(tangents) == 1 else 1.0
    for i, j in enumerate(order):
        for what in _COEFFICIENTS:
            # Contacts in space have no constant load.
            if getattr(contacts[i], what, 0.0) != getattr(contacts[j], what, 0.0):
                raise InputError(_describe_difference(system, i, j, what))
    if not max(errors.values()) <= tolerance:
        listed = ", ".join(f"{what} {error:.2g}" for what, error in errors.items())
        raise InputError(
            f"system must be its own mirror image within tolerance={tolerance:g}, but deviates by: "
            f"{listed}\nright pairs, normal and placement of the plane, or allow more by tolerance"
        )
    return signs


def _raise_to(errors: dict[str, float], what: str, error: float) -> None:
    """Set `errors[what]` to `error` if that is larger, or not a number."""
    if not error <= errors[what]:
        errors[what] = float(error)


def _describe_difference(system: ContactSystem, i: int, j: int, what: str) -> str:
    one, other = system.contacts[i].name, system.contacts[j].name
    return f"contacts: {one!r} and {other!r} must have the same {what} to be exchanged"


def _mirror_mode(order: tuple[int, ...], flips: tuple[bool, ...], key: ModeKey) -> ModeKey:
    """Return the mode of the mirrored motion: contacts exchanged, signs of sliding changed.

    Args:
        order: For each contact, the one whose mode it has in the mirrored motion.
        flips: For each contact, whether its sign of sliding changes.
        key: Mode of the motion.
    """
    assert isinstance(key, tuple)
    return tuple(_OPPOSITE.get(key[i], key[i]) if flips[i] else key[i] for i in order)


def _mirror_guard(swapped: Mapping[str, str], flipped: frozenset[str], name: str) -> str:
    """Return the guard of the mirrored motion; names are "<contact> closes" and so on.

    Names of contacts without a partner, and "sliding jams", remain.
    """
    if name.endswith(_LEAVES):
        contact = name.removesuffix(_LEAVES)
        return swapped.get(contact, contact) + _LEAVES
    contact, space, what = name.rpartition(" ")
    mirrored = _OPPOSITE.get(what, what) if contact in flipped else what
    return swapped.get(contact, contact) + space + mirrored
