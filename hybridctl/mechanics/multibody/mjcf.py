r"""Robots from MJCF, by way of the model that MuJoCo compiles from the file.

Defaults, classes, includes, frames, masses that follow from shapes, `settotalmass` and the like
are MuJoCo's to resolve: what it compiles is what arrives here. What the compiled model has and a
`Robot` cannot hold, such as tendons, is refused by its name.

Coordinates of hinges and slides are MuJoCo's `qpos`, its reference position `ref` included. A free
joint has Pinocchio's coordinates: the pose of its body in the world with the quaternion as
(x, y, z, w), and the linear and angular velocity in the frame of the body. MuJoCo has the
quaternion as (w, x, y, z) and the linear velocity in the world.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import pinocchio as pin

from hybridctl.checks import Array
from hybridctl.errors import FileFormatError, InputError
from hybridctl.files import file_or_text
from hybridctl.mechanics.multibody.links import CollisionModel, CollisionShape, Kind

# mjtJoint, in the order of MuJoCo's enumeration.
_FREE, _BALL, _SLIDE, _HINGE = range(4)
_SIZES: dict[str, Kind] = {"SPHERE": "sphere", "BOX": "box", "CAPSULE": "capsule"}


class CompiledRobot(NamedTuple):
    """A robot as MuJoCo compiled it.

    Attributes:
        model: The `pinocchio.Model`, with gravity, armature, damping and limits.
        actuated: The joints with an actuator, in the order of the file; None without actuators.
        stiffness: Spring stiffness by joint name, N m/rad or N/m.
        rest: Rest position of each spring by joint name, rad or m.
        keyframes: Configurations (nq,) by name; "qpos0" is the one of the file itself.
        collision: The links and the shapes that collide.
    """

    model: Any
    actuated: tuple[str, ...] | None
    stiffness: dict[str, float]
    rest: dict[str, float]
    keyframes: dict[str, Array]
    collision: CollisionModel


class _Place(NamedTuple):
    """Where a body is fixed: the Pinocchio joint, and the pose of the body in its frame."""

    joint: int
    pose: Any


def load_mujoco() -> Any:
    """Import MuJoCo.

    Raises:
        InputError: It is not installed.
    """
    try:
        return import_module("mujoco")
    except ImportError as error:
        raise InputError('MuJoCo needs `pip install "hybridctl[mujoco]"`') from error


def read_mjcf(mjcf: str | os.PathLike[str], ignore: Collection[str] = ()) -> CompiledRobot:
    """Read a robot from an MJCF file.

    Args:
        mjcf: Path of the file, or its text; a text cannot include other files.
        ignore: What of the file may be left out, by kind ("tendon") or by the name of an element.

    Returns:
        The robot; it equals MuJoCo's compiled model.

    Raises:
        FileFormatError: The file is no MJCF that MuJoCo compiles.
        InputError: The file has something that would be lost and is not in `ignore`, it has no
            joint, or MuJoCo is not installed.
    """
    compiled = _compile(mjcf)
    if compiled.nv == 0:
        raise InputError("mjcf has no joint that moves")
    for kind, name, reason in _losses(compiled):
        if kind not in ignore and name not in ignore:
            raise InputError(
                f"mjcf has {reason}, which would be lost; ignore=[{kind!r}] leaves out all of its "
                f"kind, ignore=[{name!r}] this one"
            )
    model, places = _tree(compiled)
    _set_joint_parameters(compiled, model)
    springs = [k for k in range(compiled.njnt) if compiled.jnt_stiffness[k] > 0.0]
    if _is_disabled(compiled, "SPRING"):
        springs = []
    springs = [k for k in springs if compiled.jnt_type[k] in (_SLIDE, _HINGE)]
    return CompiledRobot(
        model,
        _actuated(compiled),
        {_joint_name(compiled, k): float(compiled.jnt_stiffness[k]) for k in springs},
        {
            _joint_name(compiled, k): float(compiled.qpos_spring[compiled.jnt_qposadr[k]])
            for k in springs
        },
        _keyframes(compiled, model),
        CollisionModel(_parents(compiled), tuple(_shapes(compiled, places))),
    )


def _compile(mjcf: str | os.PathLike[str]) -> Any:
    """Compile an MJCF file or text to a `mujoco.MjModel`; `FileFormatError` where that fails."""
    text = file_or_text("mjcf", mjcf)
    try:
        tag = ElementTree.fromstring(text).tag
    except ElementTree.ParseError as error:
        raise FileFormatError(f"mjcf is not XML: {error}") from error
    # MuJoCo would compile a URDF, too, but by rules of its own for names and inertias.
    if tag != "mujoco":
        other = "; use Robot.from_urdf" if tag == "robot" else ""
        raise FileFormatError(f"mjcf must be a <mujoco> model, got <{tag}>{other}")
    kind = load_mujoco().MjModel
    try:
        if text is mjcf:
            return kind.from_xml_string(text)
        return kind.from_xml_path(os.fspath(mjcf))
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise FileFormatError(f"mjcf is not compiled by MuJoCo: {reason}") from error


def _is_disabled(m: Any, part: str) -> bool:
    """Whether the file's <flag> switches a part of the dynamics off."""
    return bool(m.opt.disableflags & getattr(load_mujoco().mjtDisableBit, f"mjDSBL_{part}"))


# Names


def _body_name(m: Any, b: int) -> str:
    return m.body(b).name or f"body {b}"


def _joint_name(m: Any, k: int) -> str:
    """Return the name of joint k, made of its body's where the file gives none."""
    if m.joint(k).name:
        return str(m.joint(k).name)
    body = int(m.jnt_bodyid[k])
    name = f"{_body_name(m, body)} joint"
    return name if m.body_jntnum[body] == 1 else f"{name} {k - m.body_jntadr[body] + 1}"


# What would be lost


class _Loss(NamedTuple):
    """A part of a model that a robot cannot hold: its kind, its name, and both in a sentence."""

    kind: str
    name: str
    text: str


def _losses(m: Any) -> Iterator[_Loss]:
    """Find all parts of a compiled model that a `Robot` cannot hold."""
    yield from _lost_elements(m)
    yield from _lost_joint_forces(m)
    yield from _lost_actuators(m)
    if m.opt.density > 0.0 or m.opt.viscosity > 0.0:
        yield _Loss(
            "fluid",
            "fluid",
            f"forces of a fluid (density {m.opt.density:.6g}, viscosity {m.opt.viscosity:.6g})",
        )
    if _gravity_share(m) is None:
        yield _Loss("gravcomp", "gravcomp", "bodies with different gravcomp")


def _lost_elements(m: Any) -> Iterator[_Loss]:
    """Find equality constraints, tendons, soft bodies and plugins."""
    equalities = load_mujoco().mjtEq
    if not _is_disabled(m, "EQUALITY"):
        for i in range(m.neq):
            # An inactive constraint has no force until a simulation switches it on.
            if m.eq_active0[i]:
                kind = equalities(int(m.eq_type[i])).name.removeprefix("mjEQ_").lower()
                name = m.equality(i).name or f"equality {i}"
                yield _Loss("equality", name, f"the equality constraint {name!r} ({kind})")
    for i in range(m.ntendon):
        name = m.tendon(i).name or f"tendon {i}"
        yield _Loss("tendon", name, f"the tendon {name!r}")
    for i in range(m.nflex):
        yield _Loss("flex", f"flex {i}", f"the soft body {i} (flex)")
    if m.nplugin:
        yield _Loss("plugin", "plugin", f"{m.nplugin} plugins")


def _lost_joint_forces(m: Any) -> Iterator[_Loss]:
    """Find forces of joints that are neither linear nor viscous."""
    for k in range(m.njnt):
        name, d = _joint_name(m, k), int(m.jnt_dofadr[k])
        whole = slice(d, d + {_FREE: 6, _BALL: 3}.get(int(m.jnt_type[k]), 1))
        if m.dof_frictionloss[whole].any() and not _is_disabled(m, "FRICTIONLOSS"):
            loss = float(m.dof_frictionloss[whole].max())
            yield _Loss("frictionloss", name, f"a frictionloss of {loss:.6g} at joint {name!r}")
        several = m.jnt_type[k] in (_FREE, _BALL)
        if m.jnt_stiffness[k] > 0.0 and several and not _is_disabled(m, "SPRING"):
            yield _Loss("stiffness", name, f"a spring at joint {name!r}, which is free or a ball")
        poly = np.any(_array(m, "jnt_stiffnesspoly")[k : k + 1]) or np.any(
            _array(m, "dof_dampingpoly")[whole]
        )
        if poly or np.any(_array(m, "jnt_springyield")[k : k + 1]):
            yield _Loss("nonlinear", name, f"a nonlinear spring or damper at joint {name!r}")
        # The armature of a free joint acts along the world's axes: in the frame of the body, which
        # Pinocchio uses, it would need a Coriolis term of its own.
        if m.jnt_type[k] == _FREE and m.dof_armature[whole].any():
            yield _Loss("armature", name, f"an armature at the free joint {name!r}")


def _lost_actuators(m: Any) -> Iterator[_Loss]:
    """Find actuators that are no force or torque along a joint."""
    mujoco = load_mujoco()
    for i in range(m.nactuator if hasattr(m, "nactuator") else m.nu):
        name = m.actuator(i).name or f"actuator {i}"
        muscle = mujoco.mjtGain.mjGAIN_MUSCLE, mujoco.mjtDyn.mjDYN_MUSCLE
        if m.actuator_gaintype[i] == muscle[0] or m.actuator_dyntype[i] == muscle[1]:
            yield _Loss("muscle", name, f"the muscle {name!r}")
        elif not _drives_joint(m, i):
            kind = mujoco.mjtTrn(int(m.actuator_trntype[i])).name.removeprefix("mjTRN_").lower()
            yield _Loss("actuator", name, f"the actuator {name!r}, which acts on a {kind}")


def _array(m: Any, name: str) -> Array:
    """Return an array of the model, empty where this version of MuJoCo does not have it."""
    return np.asarray(getattr(m, name, np.zeros(0)))


def _drives_joint(m: Any, i: int) -> bool:
    """Whether actuator i acts along a joint."""
    kinds = load_mujoco().mjtTrn
    return int(m.actuator_trntype[i]) in (kinds.mjTRN_JOINT, kinds.mjTRN_JOINTINPARENT)


def _gravity_share(m: Any) -> float | None:
    """Return the share of gravity that all bodies feel, or None where `gravcomp` differs."""
    heavy = [b for b in range(1, m.nbody) if m.body_mass[b] > 0.0 and m.body_weldid[b] > 0]
    shares = {1.0 - float(m.body_gravcomp[b]) for b in heavy}
    return shares.pop() if len(shares) == 1 else 1.0 if not shares else None


# The tree


def _rotation(quaternion: Array) -> Array:
    """Return the rotation matrix (3, 3) of a quaternion (w, x, y, z)."""
    return np.asarray(pin.Quaternion(*quaternion.tolist()).toRotationMatrix())


def _pose(position: Array, quaternion: Array) -> Any:
    """Return the `pin.SE3` of a position (3,) and a quaternion (w, x, y, z)."""
    return pin.SE3(_rotation(quaternion), np.array(position, dtype=np.float64))


def _tree(m: Any) -> tuple[Any, list[_Place]]:
    """Build the Pinocchio model, with a frame for each body and site.

    Returns:
        The model, and where each MuJoCo body is fixed.
    """
    model = pin.Model()
    share = 0.0 if _is_disabled(m, "GRAVITY") else _gravity_share(m)
    model.gravity.linear = (1.0 if share is None else share) * np.array(m.opt.gravity)
    places = [_Place(0, pin.SE3.Identity())]
    for b in range(1, m.nbody):
        place = _add_joints(m, model, b, places[m.body_parentid[b]])
        places.append(place)
        if m.body_mass[b] > 0.0 and place.joint > 0:
            principal = pin.Inertia(
                float(m.body_mass[b]), np.zeros(3), np.diag(np.array(m.body_inertia[b]))
            )
            at = place.pose * _pose(m.body_ipos[b], m.body_iquat[b])
            model.appendBodyToJoint(place.joint, principal, at)
        _add_frame(model, _body_name(m, b), place, pin.FrameType.BODY)
    for s in range(m.nsite):
        if m.site(s).name:
            place = places[m.site_bodyid[s]]
            at = place.pose * _pose(m.site_pos[s], m.site_quat[s])
            _add_frame(model, m.site(s).name, _Place(place.joint, at), pin.FrameType.OP_FRAME)
    return model, places


def _add_frame(model: Any, name: str, place: _Place, kind: Any) -> None:
    model.addFrame(pin.Frame(name, place.joint, 0, place.pose, kind))


def _add_joints(m: Any, model: Any, b: int, parent: _Place) -> _Place:
    """Add the joints of a body, which move it one after the other, each about its own anchor.

    Args:
        m: The `mujoco.MjModel`.
        model: The `pinocchio.Model`; joints and their frames are added to it.
        b: Index of the body.
        parent: Where the body that carries it is fixed.

    Returns:
        Where the body is fixed: at its last joint, or with its parent where it has none.
    """
    joint, pose = parent.joint, parent.pose * _pose(m.body_pos[b], m.body_quat[b])
    for k in range(m.body_jntadr[b], m.body_jntadr[b] + m.body_jntnum[b]):
        kind, axis = int(m.jnt_type[k]), np.array(m.jnt_axis[k])
        reference = float(m.qpos0[m.jnt_qposadr[k]])
        anchor = pin.SE3(np.eye(3), np.array(m.jnt_pos[k]))
        if kind == _FREE:
            # Its coordinates are the pose in the world, whatever `pos` the file gives the body.
            moves, before, after = pin.JointModelFreeFlyer(), pin.SE3.Identity(), pin.SE3.Identity()
        elif kind == _BALL:
            moves, before, after = pin.JointModelSpherical(), pose * anchor, anchor.inverse()
        elif kind == _SLIDE:
            at_zero = pin.SE3(np.eye(3), -reference * axis)
            moves = pin.JointModelPrismaticUnaligned(axis)
            before, after = pose * at_zero, pin.SE3.Identity()
        else:
            at_zero = pin.SE3(pin.exp3(-reference * axis), np.zeros(3))
            moves = pin.JointModelRevoluteUnaligned(axis)
            before, after = pose * anchor * at_zero, anchor.inverse()
        joint, pose = model.addJoint(joint, moves, before, _joint_name(m, k)), after
        model.addJointFrame(joint)
    return _Place(joint, pose)


def _set_joint_parameters(m: Any, model: Any) -> None:
    """Set armature, damping and the limits of positions and efforts of a Pinocchio model.

    MuJoCo 4 keeps armature and damping of an actuator apart; along a joint they count with the
    square of the gear.
    """
    armature, damping = np.array(m.dof_armature), np.array(m.dof_damping)
    effort = np.full(m.nv, np.inf)
    for i, k in _joint_actuators(m):
        d, gear = int(m.jnt_dofadr[k]), float(m.actuator_gear[i][0])
        for values, name in ((armature, "actuator_armature"), (damping, "actuator_damping")):
            own = _array(m, name)
            values[d] += gear**2 * float(own[i].flat[0]) if own.size else 0.0
        if m.actuator_forcelimited[i] and m.jnt_type[k] in (_SLIDE, _HINGE):
            most = abs(gear) * float(np.abs(m.actuator_forcerange[i]).max())
            effort[d] = most if np.isinf(effort[d]) else effort[d] + most
    if _is_disabled(m, "DAMPER"):
        damping[:] = 0.0
    for k in range(m.njnt):
        i, v = model.idx_qs[k + 1], model.idx_vs[k + 1]
        d, count = int(m.jnt_dofadr[k]), model.nvs[k + 1]
        model.armature[v : v + count] = armature[d : d + count]
        model.damping[v : v + count] = damping[d : d + count]
        if m.jnt_type[k] in (_SLIDE, _HINGE):
            bounds = m.jnt_range[k] if m.jnt_limited[k] else (-np.inf, np.inf)
            model.lowerPositionLimit[i], model.upperPositionLimit[i] = bounds
            if m.jnt_actfrclimited[k]:
                effort[d] = min(effort[d], float(np.abs(m.jnt_actfrcrange[k]).max()))
            model.upperEffortLimit[v], model.lowerEffortLimit[v] = effort[d], -effort[d]


def _joint_actuators(m: Any) -> list[tuple[int, int]]:
    """Return the actuators that act along joints, with the joint of each."""
    count = m.nactuator if hasattr(m, "nactuator") else m.nu
    return [(i, int(m.actuator_trnid[i][0])) for i in range(count) if _drives_joint(m, i)]


def _actuated(m: Any) -> tuple[str, ...] | None:
    """Return the joints with an actuator, in the order of the file; None without actuators."""
    names = dict.fromkeys(_joint_name(m, k) for _, k in _joint_actuators(m))
    return tuple(names) or None


def _keyframes(m: Any, model: Any) -> dict[str, Array]:
    """Return the configurations (nq,) of the file's keyframes, and its own as "qpos0"."""
    given = {m.key(i).name or f"key {i}": m.key_qpos[i] for i in range(m.nkey)}
    return {name: _configuration(m, model, q) for name, q in {"qpos0": m.qpos0, **given}.items()}


def _configuration(m: Any, model: Any, qpos: Array) -> Array:
    """Return Pinocchio's configuration (nq,) for MuJoCo's `qpos` (nq,)."""
    q = np.array(pin.neutral(model))
    for k in range(m.njnt):
        a, i, kind = int(m.jnt_qposadr[k]), model.idx_qs[k + 1], int(m.jnt_type[k])
        if kind == _FREE:
            q[i : i + 3], a, i = qpos[a : a + 3], a + 3, i + 3
        if kind in (_FREE, _BALL):
            w, x, y, z = qpos[a : a + 4] / np.linalg.norm(qpos[a : a + 4])
            q[i : i + 4] = x, y, z, w
        else:
            q[i] = qpos[a]
    return q


# Shapes that collide


def _parents(m: Any) -> Mapping[str, str | None]:
    """Return the body that carries each body, None for those that the world carries."""
    carriers = {b: int(m.body_parentid[b]) for b in range(1, m.nbody)}
    return {_body_name(m, b): _body_name(m, p) if p else None for b, p in carriers.items()}


def _shapes(m: Any, places: list[_Place]) -> Iterator[CollisionShape]:
    """Find the spheres, boxes, capsules and planes that collide, each in the frame of its joint."""
    names = {int(value): kind.removeprefix("mjGEOM_") for kind, value in _geometries()}
    for g in range(m.ngeom):
        kind = names[int(m.geom_type[g])]
        if not (m.geom_contype[g] or m.geom_conaffinity[g]):
            continue
        b = int(m.geom_bodyid[g])
        place = places[b]
        at = place.pose * _pose(m.geom_pos[g], m.geom_quat[g])
        link = _body_name(m, b) if b else "world"
        rotation, position = np.array(at.rotation), np.array(at.translation)
        if kind in _SIZES:
            size = tuple(m.geom_size[g].tolist())
            shape = _SIZES[kind]
            yield CollisionShape(link, place.joint, shape, size, rotation, position)
        elif kind == "PLANE" and place.joint == 0:
            yield CollisionShape(link, 0, "plane", (), rotation, position)


def _geometries() -> list[tuple[str, Any]]:
    return list(load_mujoco().mjtGeom.__members__.items())
