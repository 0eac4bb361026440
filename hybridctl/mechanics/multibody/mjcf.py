r"""Robots from MJCF, by way of the model that MuJoCo compiles from the file.

MuJoCo itself resolves defaults, classes, includes, frames, masses that follow from shapes,
`settotalmass` and the like. What acts on the motion of the compiled model and a `Robot` cannot
hold, such as a tendon, is refused by its name. A linear equality of two joints makes the first one
mimic the second, exactly where MuJoCo's constraint is soft.

Of the shapes that collide, spheres, boxes, capsules and planes of the world are read. All others,
such as meshes and cylinders, are left out unasked.

Coordinates of hinges and slides are MuJoCo's `qpos`, its reference position `ref` included. A free
joint has Pinocchio's coordinates: the pose of its body in the world with the quaternion as
(x, y, z, w), and the linear and angular velocity in the frame of the body. MuJoCo has the
quaternion as (w, x, y, z) and the linear velocity in the world.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import pinocchio as pin

from hybridctl.base.checks import Array
from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.base.files import read_file_or_text
from hybridctl.mechanics.multibody.links import CollisionMesh, CollisionModel, CollisionShape, Kind
from hybridctl.mechanics.multibody.mimic import Mimic

_LOG = logging.getLogger(__name__)
_FREE, _BALL, _SLIDE, _HINGE = range(4)
"""Values of MuJoCo's enumeration `mjtJoint`."""
_SHAPE_KINDS: dict[str, Kind] = {"SPHERE": "sphere", "BOX": "box", "CAPSULE": "capsule"}
"""Kinds of shapes by their names in MuJoCo's enumeration `mjtGeom`."""


class CompiledRobot(NamedTuple):
    """A robot as MuJoCo compiled it.

    Attributes:
        model: The `pinocchio.Model`, with gravity, armature, damping, and limits of positions and
            efforts.
        actuated: Names of the joints with an actuator, in the order of the actuators in the file;
            None without actuators.
        stiffness: Spring stiffness by joint name, N m/rad or N/m.
        rest: Rest position of each spring by joint name, rad or m.
        keyframes: Pinocchio's configurations (nq,) by name. "qpos0" is the reference configuration
            of the file, unless a keyframe of the file has that name.
        collision: The links and the shapes that collide.
        mimics: Joints that linear equality constraints of the file tie to another joint.
    """

    model: Any
    actuated: tuple[str, ...] | None
    stiffness: dict[str, float]
    rest: dict[str, float]
    keyframes: dict[str, Array]
    collision: CollisionModel
    mimics: dict[str, Mimic]


class _Place(NamedTuple):
    """Where a body is fixed: the Pinocchio joint, and the pose of the body in its frame."""

    joint: int
    pose: Any


def load_mujoco() -> Any:
    """Return the module of MuJoCo, which is an optional dependency.

    Raises:
        InputError: MuJoCo is not installed.
    """
    try:
        return import_module("mujoco")
    except ImportError as error:
        raise InputError('MuJoCo needs `pip install "hybridctl[mujoco]"`') from error


def load_viewer() -> Any:
    """Return the module of MuJoCo's viewer, which needs a display when it is used."""
    load_mujoco()
    return import_module("mujoco.viewer")


@contextmanager
def log_mujoco_warnings() -> Iterator[None]:
    """Send MuJoCo's warnings in the block to the log "hybridctl".

    By default MuJoCo writes them to the file MUJOCO_LOG.TXT in the working folder, which is the
    user's. A handler of the user's own stays.
    """
    mujoco = load_mujoco()
    if mujoco.get_mju_user_warning() is not None:
        yield
        return
    mujoco.set_mju_user_warning(lambda text: _LOG.warning("MuJoCo: %s", text))
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(None)


def compile_spec(spec: Any) -> Any:
    """Return the model of an `MjSpec` that was made of a robot.

    Raises:
        InputError: The compiler refuses it, as where a link has no inertia about an axis.
    """
    try:
        with log_mujoco_warnings():
            return spec.compile()
    except ValueError as error:
        raise InputError(f"MuJoCo refuses the robot: {error}") from error


def read_mjcf(
    mjcf: str | os.PathLike[str], ignore: Collection[str] = (), *, is_fixed: bool = False
) -> CompiledRobot:
    """Read a robot from an MJCF file.

    Args:
        mjcf: Path of the file, or its text; a text cannot include other files.
        ignore: What of the file may be left out, by kind ("tendon") or by the name of an element.
            The kinds are "actuator", "armature", "equality", "flex", "fluid", "frictionloss",
            "gravcomp", "muscle", "nonlinear", "plugin", "stiffness" and "tendon"; the message of
            each refusal names its kind. The name of a joint leaves out all that would be lost of
            it, and its dry friction too. Of a nonlinear spring or damper ("nonlinear") only the
            nonlinear part is left out, by either name: its linear part stays.
        is_fixed: Whether free joints and keyframes are left out, so that their bodies are fixed to
            the world.

    Returns:
        The robot. Without contacts it moves as MuJoCo's compiled model does, except for what is
        ignored.

    Raises:
        FileFormatError: The file cannot be read, or is no MJCF that MuJoCo compiles.
        InputError: The file has something that would be lost and is not in `ignore`, it has no
            joint that moves, `mjcf` is neither a path nor a text, or MuJoCo is not installed.
    """
    compiled = _compile(mjcf, is_fixed)
    if compiled.nv == 0:
        raise InputError("mjcf has no joint that moves")
    for kind, name, reason in _list_losses(compiled):
        if kind not in ignore and name not in ignore:
            raise InputError(
                f"mjcf has {reason}, which would be lost; ignore=[{kind!r}] leaves out all of its "
                f"kind, ignore=[{name!r}] this one"
            )
    model, places = _build_tree(compiled)
    _set_joint_parameters(compiled, model)
    _set_dry_friction(compiled, model, ignore)
    springs = [k for k in range(compiled.njnt) if compiled.jnt_stiffness[k] > 0.0]
    if _is_disabled(compiled, "SPRING"):
        springs = []
    # A robot has springs of hinges and slides only. Those of balls and free joints are left out:
    # unless `ignore` names them, the loop above has refused the file (`_list_lost_joint_forces`).
    springs = [k for k in springs if compiled.jnt_type[k] in (_SLIDE, _HINGE)]
    return CompiledRobot(
        model=model,
        actuated=_list_actuated_joints(compiled),
        stiffness={_name_joint(compiled, k): float(compiled.jnt_stiffness[k]) for k in springs},
        rest={
            _name_joint(compiled, k): float(compiled.qpos_spring[compiled.jnt_qposadr[k]])
            for k in springs
        },
        keyframes=_convert_keyframes(compiled, model),
        collision=CollisionModel(
            _list_parents(compiled),
            tuple(_list_shapes(compiled, places)),
            tuple(_list_meshes(compiled, places)),
        ),
        mimics={
            name: mimic
            for i, (name, mimic) in _find_joint_equalities(compiled).items()
            if not {"equality", _name_equality(compiled, i)} & set(ignore)
        },
    )


def _compile(mjcf: str | os.PathLike[str], is_fixed: bool = False) -> Any:
    """Compile an MJCF file or text with MuJoCo.

    Args:
        mjcf: Path of the file, or its text.
        is_fixed: Whether free joints are left out, and keyframes, which have coordinates for them.

    Returns:
        The `mujoco.MjModel`.

    Raises:
        FileFormatError: The file cannot be read, is no XML, has another root than <mujoco>, or is
            not compiled by MuJoCo.
        InputError: `mjcf` is neither a path nor a text, or MuJoCo is not installed.
    """
    text = read_file_or_text("mjcf", mjcf)
    try:
        tag = ElementTree.fromstring(text).tag
    except ElementTree.ParseError as error:
        raise FileFormatError(f"mjcf is not XML: {error}") from error
    # MuJoCo would compile a URDF, too, but by rules of its own for names and inertias.
    if tag != "mujoco":
        other = "; use Robot.from_urdf" if tag == "robot" else ""
        raise FileFormatError(f"mjcf must be a <mujoco> model, got <{tag}>{other}")
    mujoco, is_text = load_mujoco(), text is mjcf  # the argument is the text itself, not a path
    try:
        with log_mujoco_warnings():
            if is_fixed:
                kind = mujoco.MjSpec
                spec = kind.from_string(text) if is_text else kind.from_file(os.fspath(mjcf))
                free = [joint for joint in spec.joints if int(joint.type) == _FREE]
                for unwanted in (*free, *spec.keys):
                    spec.delete(unwanted)
                return spec.compile()
            if is_text:
                return mujoco.MjModel.from_xml_string(text)
            return mujoco.MjModel.from_xml_path(os.fspath(mjcf))
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise FileFormatError(f"mjcf is not compiled by MuJoCo: {reason}") from error


def _is_disabled(m: Any, part: str) -> bool:
    """Return whether the file's <flag> switches off a part of the dynamics, such as "SPRING"."""
    return bool(m.opt.disableflags & getattr(load_mujoco().mjtDisableBit, f"mjDSBL_{part}"))


# Names


def _name_body(m: Any, b: int) -> str:
    """Return the name of body b, made of its index if the file gives none."""
    return m.body(b).name or f"body {b}"


def _name_joint(m: Any, k: int) -> str:
    """Return the name of joint k, made of its body's if the file gives none.

    If the body has several joints, the name ends with the place of the joint among them, from 1.
    """
    if m.joint(k).name:
        return str(m.joint(k).name)
    body = int(m.jnt_bodyid[k])
    name = f"{_name_body(m, body)} joint"
    return name if m.body_jntnum[body] == 1 else f"{name} {k - m.body_jntadr[body] + 1}"


# What would be lost


class _Loss(NamedTuple):
    """A part of a model that a robot cannot hold.

    Attributes:
        kind: Kind by which `ignore` names it, one of those that `read_mjcf` lists.
        name: Name of the element in the file, made of its index if the file gives none.
        text: What the error says that the file has.
    """

    kind: str
    name: str
    text: str


def _list_losses(m: Any) -> Iterator[_Loss]:
    """Yield all parts of a compiled model that act on its motion and that a `Robot` cannot hold."""
    yield from _list_lost_elements(m)
    yield from _list_lost_joint_forces(m)
    yield from _list_lost_actuators(m)
    if m.opt.density > 0.0 or m.opt.viscosity > 0.0:
        yield _Loss(
            "fluid",
            "fluid",
            f"forces of a fluid (density {m.opt.density:.6g}, viscosity {m.opt.viscosity:.6g})",
        )
    if _compute_gravity_share(m) is None:
        yield _Loss("gravcomp", "gravcomp", "bodies with different gravcomp")


def _list_lost_elements(m: Any) -> Iterator[_Loss]:
    """Yield the losses of equality constraints, tendons, soft bodies and plugins.

    Args:
        m: The `mujoco.MjModel`.

    Yields:
        One loss for each element, and one for all plugins. Equality constraints that are inactive
        at first, that are switched off by a flag, or that a mimic joint holds, are no loss.
    """
    equalities, held = load_mujoco().mjtEq, _find_joint_equalities(m)
    if not _is_disabled(m, "EQUALITY"):
        for i in range(m.neq):
            # An inactive constraint has no force until a simulation switches it on.
            if m.eq_active0[i] and i not in held:
                kind = equalities(int(m.eq_type[i])).name.removeprefix("mjEQ_").lower()
                name = _name_equality(m, i)
                yield _Loss("equality", name, f"the equality constraint {name!r} ({kind})")
    for i in range(m.ntendon):
        name = m.tendon(i).name or f"tendon {i}"
        yield _Loss("tendon", name, f"the tendon {name!r}")
    for i in range(m.nflex):
        yield _Loss("flex", f"flex {i}", f"the soft body {i} (flex)")
    if m.nplugin:
        yield _Loss("plugin", "plugin", f"{m.nplugin} plugins")


def _name_equality(m: Any, i: int) -> str:
    """Return the name of equality constraint i, made of its index if the file gives none."""
    return m.equality(i).name or f"equality {i}"


def _find_joint_equalities(m: Any) -> dict[int, tuple[str, Mimic]]:
    """Return the equality constraints that make a joint mimic another, by index, with the joint.

    MuJoCo has q1 - q1(qpos0) = a0 + a1 (q2 - q2(qpos0)) + ..., as a soft constraint. An active
    constraint is left out, and so refused as a loss, if it is not of joints, if it is of a higher
    degree or of one joint, if the joint that would follow has an actuator, or if a joint would
    follow two others, or itself. An inactive one is left out and is no loss.

    Args:
        m: The `mujoco.MjModel` of the file.
    """
    found: dict[int, tuple[str, Mimic]] = {}
    if _is_disabled(m, "EQUALITY"):
        return found
    driven = {k for _, k in _list_joint_actuators(m)}
    follows: dict[int, int] = {}
    for i in range(m.neq):
        k, driver = int(m.eq_obj1id[i]), int(m.eq_obj2id[i])
        linear = m.eq_type[i] == load_mujoco().mjtEq.mjEQ_JOINT and not m.eq_data[i, 2:5].any()
        if not m.eq_active0[i] or not linear or driver < 0 or k in driven or k in follows:
            continue
        # The joint at the end of the chain of joints that the driver follows. If it is the joint k,
        # that would follow itself, in a circle.
        end = driver
        while end in follows:
            end = follows[end]
        if end == k:
            continue
        follows[k] = driver
        reference, driver_reference = (float(m.qpos0[m.jnt_qposadr[j]]) for j in (k, driver))
        constant, slope = (float(a) for a in m.eq_data[i, :2])
        offset = reference + constant - slope * driver_reference
        mimic = Mimic(_name_joint(m, driver), slope, offset)
        found[i] = _name_joint(m, k), mimic
    return found


def _list_lost_joint_forces(m: Any) -> Iterator[_Loss]:
    """Yield the losses of joint forces that a `Robot` does not have, and of free joints' armature.

    The forces are dry friction and springs of free and ball joints, and of nonlinear springs and
    dampers the nonlinear part: their linear part stays if the loss is ignored.

    Args:
        m: The `mujoco.MjModel`.

    Yields:
        One loss for each joint and kind of force. A force that the file switches off by a flag is
        no loss, except for nonlinear springs and dampers.
    """
    for k in range(m.njnt):
        name, d = _name_joint(m, k), int(m.jnt_dofadr[k])
        dofs = slice(d, d + {_FREE: 6, _BALL: 3}.get(int(m.jnt_type[k]), 1))
        several = m.jnt_type[k] in (_FREE, _BALL)
        loss = float(m.dof_frictionloss[dofs].max())
        if loss > 0.0 and several and not _is_disabled(m, "FRICTIONLOSS"):
            reason = f"a frictionloss of {loss:.6g} at joint {name!r}, which is free or a ball"
            yield _Loss("frictionloss", name, reason)
        if m.jnt_stiffness[k] > 0.0 and several and not _is_disabled(m, "SPRING"):
            yield _Loss("stiffness", name, f"a spring at joint {name!r}, which is free or a ball")
        # A slice of an empty array is empty: a version without the array has no such force.
        poly = np.any(_get_array(m, "jnt_stiffnesspoly")[k : k + 1]) or np.any(
            _get_array(m, "dof_dampingpoly")[dofs]
        )
        if poly or np.any(_get_array(m, "jnt_springyield")[k : k + 1]):
            yield _Loss("nonlinear", name, f"a nonlinear spring or damper at joint {name!r}")
        # The armature of a free joint acts along the world's axes: in the frame of the body, which
        # Pinocchio uses, it would need a Coriolis term of its own.
        if m.jnt_type[k] == _FREE and m.dof_armature[dofs].any():
            yield _Loss("armature", name, f"an armature at the free joint {name!r}")


def _list_lost_actuators(m: Any) -> Iterator[_Loss]:
    """Yield muscles, and actuators that act on anything but a joint."""
    mujoco = load_mujoco()
    for i in range(m.nactuator if hasattr(m, "nactuator") else m.nu):
        name = m.actuator(i).name or f"actuator {i}"
        muscle = mujoco.mjtGain.mjGAIN_MUSCLE, mujoco.mjtDyn.mjDYN_MUSCLE
        if m.actuator_gaintype[i] == muscle[0] or m.actuator_dyntype[i] == muscle[1]:
            yield _Loss("muscle", name, f"the muscle {name!r}")
        elif not _drives_joint(m, i):
            kind = mujoco.mjtTrn(int(m.actuator_trntype[i])).name.removeprefix("mjTRN_").lower()
            yield _Loss("actuator", name, f"the actuator {name!r}, which acts on a {kind}")


def _get_array(m: Any, name: str) -> Array:
    """Return an array of the model, an empty one if this version of MuJoCo does not have it."""
    return np.asarray(getattr(m, name, np.zeros(0)))


def _drives_joint(m: Any, i: int) -> bool:
    """Return whether actuator i acts along a joint."""
    kinds = load_mujoco().mjtTrn
    return int(m.actuator_trntype[i]) in (kinds.mjTRN_JOINT, kinds.mjTRN_JOINTINPARENT)


def _compute_gravity_share(m: Any) -> float | None:
    """Return the share 1 - `gravcomp` of gravity that acts, None if it differs among the bodies.

    Bodies without mass, and bodies that are fixed to the world, do not count: gravity does not move
    them. Without any other body the share is 1.
    """
    heavy = [b for b in range(1, m.nbody) if m.body_mass[b] > 0.0 and m.body_weldid[b] > 0]
    shares = {1.0 - float(m.body_gravcomp[b]) for b in heavy}
    return shares.pop() if len(shares) == 1 else 1.0 if not shares else None


# The tree


def _convert_rotation(quaternion: Array) -> Array:
    """Return the rotation matrix (3, 3) of a quaternion (w, x, y, z)."""
    return np.asarray(pin.Quaternion(*quaternion.tolist()).toRotationMatrix())


def _convert_pose(position: Array, quaternion: Array) -> Any:
    """Return the `pin.SE3` of a position (3,) and a quaternion (w, x, y, z)."""
    return pin.SE3(_convert_rotation(quaternion), np.array(position, dtype=np.float64))


def _build_tree(m: Any) -> tuple[Any, list[_Place]]:
    """Build the Pinocchio model, with a frame for each body and for each site that has a name.

    Args:
        m: The `mujoco.MjModel`.

    Returns:
        The model, and where each MuJoCo body is fixed, by index; body 0 is the world.
    """
    model = pin.Model()
    # None as the share comes here only with "gravcomp" ignored: then the whole of gravity acts.
    share = 0.0 if _is_disabled(m, "GRAVITY") else _compute_gravity_share(m)
    model.gravity.linear = (1.0 if share is None else share) * np.array(m.opt.gravity)
    places = [_Place(0, pin.SE3.Identity())]
    for b in range(1, m.nbody):
        place = _add_joints(m, model, b, places[m.body_parentid[b]])
        places.append(place)
        # Mass that is fixed to the world has no effect.
        if m.body_mass[b] > 0.0 and place.joint > 0:
            principal = pin.Inertia(
                float(m.body_mass[b]), np.zeros(3), np.diag(np.array(m.body_inertia[b]))
            )
            # MuJoCo gives the inertia about the centre of mass, along the principal axes.
            principal_pose = place.pose * _convert_pose(m.body_ipos[b], m.body_iquat[b])
            model.appendBodyToJoint(place.joint, principal, principal_pose)
        _add_frame(model, _name_body(m, b), place, pin.FrameType.BODY)
    for s in range(m.nsite):
        if m.site(s).name:
            place = places[m.site_bodyid[s]]
            pose = place.pose * _convert_pose(m.site_pos[s], m.site_quat[s])
            _add_frame(model, m.site(s).name, _Place(place.joint, pose), pin.FrameType.OP_FRAME)
    return model, places


def _add_frame(model: Any, name: str, place: _Place, kind: Any) -> None:
    """Add a frame of a `pin.FrameType` to the model."""
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
    joint, pose = parent.joint, parent.pose * _convert_pose(m.body_pos[b], m.body_quat[b])
    for k in range(m.body_jntadr[b], m.body_jntadr[b] + m.body_jntnum[b]):
        # `before` is the pose of this joint in the frame of the joint that carries it, `after` the
        # pose of the body in the frame of this joint. The file gives the pose of the body at the
        # coordinate `reference`; Pinocchio needs it at 0. `at_zero` is the joint's motion from
        # `reference` to 0.
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
        joint, pose = model.addJoint(joint, moves, before, _name_joint(m, k)), after
        model.addJointFrame(joint)
    return _Place(joint, pose)


def _set_joint_parameters(m: Any, model: Any) -> None:
    """Set armature, damping and the limits of positions and efforts of a Pinocchio model.

    MuJoCo 4 keeps armature and damping of an actuator apart from those of its joint; along the
    joint they count with the square of the gear.

    The limit of effort of a hinge or slide, N m or N, is one number for both directions. It is the
    sum of the force limits of its actuators (`_compute_largest_force`), each times its gear, and at
    most the joint's own (`actuatorfrcrange`). Of a range with two different bounds the larger one
    counts.

    Args:
        m: The `mujoco.MjModel`.
        model: The `pinocchio.Model` of `_build_tree`, whose joint k + 1 is MuJoCo's joint k.
            Changed.
    """
    armature, damping = np.array(m.dof_armature), np.array(m.dof_damping)
    effort = np.full(m.nv, np.inf)
    force_sums: dict[int, float] = {}  # of the actuators of a degree of freedom
    for i, k in _list_joint_actuators(m):
        d, gear = int(m.jnt_dofadr[k]), float(m.actuator_gear[i][0])
        for values, name in ((armature, "actuator_armature"), (damping, "actuator_damping")):
            own = _get_array(m, name)
            values[d] += gear**2 * float(own[i].flat[0]) if own.size else 0.0
        # One actuator without a limit leaves the sum without one.
        force_sums[d] = force_sums.get(d, 0.0) + abs(gear) * _compute_largest_force(m, i)
    effort[list(force_sums)] = list(force_sums.values())
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


def _compute_largest_force(m: Any, i: int) -> float:
    """Return the largest force of actuator i before its gear, inf without a limit.

    The force of a motor, which is its control times a fixed gain, is limited by `ctrlrange` too.
    """
    mujoco, limits = load_mujoco(), [np.inf]
    if m.actuator_forcelimited[i]:
        limits.append(float(np.abs(m.actuator_forcerange[i]).max()))
    is_motor = (
        m.actuator_gaintype[i] == int(mujoco.mjtGain.mjGAIN_FIXED)
        and m.actuator_biastype[i] == int(mujoco.mjtBias.mjBIAS_NONE)
        and m.actuator_dyntype[i] == int(mujoco.mjtDyn.mjDYN_NONE)
    )
    if is_motor and m.actuator_ctrllimited[i]:
        gain = abs(float(m.actuator_gainprm[i][0]))
        limits.append(gain * float(np.abs(m.actuator_ctrlrange[i]).max()))
    return min(limits)


def _set_dry_friction(m: Any, model: Any, ignore: Collection[str]) -> None:
    """Set the dry friction of hinges and slides of a Pinocchio model, N m or N.

    Args:
        m: The `mujoco.MjModel`.
        model: The `pinocchio.Model` of `_build_tree`. Changed.
        ignore: May name "frictionloss", or joints that are to have none. A joint that is named for
            another loss, such as a nonlinear spring, has none either.
    """
    if "frictionloss" in ignore or _is_disabled(m, "FRICTIONLOSS"):
        return
    for k in range(m.njnt):
        if m.jnt_type[k] in (_SLIDE, _HINGE) and _name_joint(m, k) not in ignore:
            loss, v = float(m.dof_frictionloss[int(m.jnt_dofadr[k])]), model.idx_vs[k + 1]
            model.upperDryFrictionLimit[v], model.lowerDryFrictionLimit[v] = loss, -loss


def _list_joint_actuators(m: Any) -> list[tuple[int, int]]:
    """Return the indices of the actuators that act along joints, with the joint of each."""
    count = m.nactuator if hasattr(m, "nactuator") else m.nu
    return [(i, int(m.actuator_trnid[i][0])) for i in range(count) if _drives_joint(m, i)]


def _list_actuated_joints(m: Any) -> tuple[str, ...] | None:
    """Return the names of the joints with an actuator, ordered by actuator; None without."""
    names = dict.fromkeys(_name_joint(m, k) for _, k in _list_joint_actuators(m))
    return tuple(names) or None


def _convert_keyframes(m: Any, model: Any) -> dict[str, Array]:
    """Return Pinocchio's configurations (nq,) of the keyframes, and of "qpos0".

    A keyframe with the name "qpos0" replaces the reference configuration of the file.
    """
    given = {m.key(i).name or f"key {i}": m.key_qpos[i] for i in range(m.nkey)}
    return {
        name: _convert_configuration(m, model, q) for name, q in {"qpos0": m.qpos0, **given}.items()
    }


def _convert_configuration(m: Any, model: Any, qpos: Array) -> Array:
    """Return Pinocchio's configuration (nq,) for MuJoCo's `qpos` (nq,)."""
    q = np.array(pin.neutral(model))
    for k in range(m.njnt):
        a, i, kind = int(m.jnt_qposadr[k]), model.idx_qs[k + 1], int(m.jnt_type[k])
        if kind == _FREE:
            q[i : i + 3], a, i = qpos[a : a + 3], a + 3, i + 3  # its quaternion comes next
        if kind in (_FREE, _BALL):
            w, x, y, z = qpos[a : a + 4] / np.linalg.norm(qpos[a : a + 4])
            q[i : i + 4] = x, y, z, w
        else:
            q[i] = qpos[a]
    return q


# Shapes that collide


def _list_parents(m: Any) -> Mapping[str, str | None]:
    """Return the body that carries each body, None for those that the world carries."""
    carriers = {b: int(m.body_parentid[b]) for b in range(1, m.nbody)}
    return {_name_body(m, b): _name_body(m, p) if p else None for b, p in carriers.items()}


def _list_shapes(m: Any, places: list[_Place]) -> Iterator[CollisionShape]:
    """Yield the spheres, boxes, capsules and planes that collide, each in the frame of its joint.

    Other shapes are left out, as `CollisionShape` has no kind for a cylinder or an ellipsoid; for
    meshes see `_list_meshes`. A plane is always fixed to the world: MuJoCo compiles none on a body
    that moves (test_a_plane_on_a_body_that_moves_is_not_compiled).

    Args:
        m: The `mujoco.MjModel`.
        places: Where each body is fixed, from `_build_tree`.
    """
    names = {int(value): kind.removeprefix("mjGEOM_") for kind, value in _list_geometries()}
    for g in range(m.ngeom):
        kind = names[int(m.geom_type[g])]
        if not (m.geom_contype[g] or m.geom_conaffinity[g]):  # only drawn, it collides with nothing
            continue
        b = int(m.geom_bodyid[g])
        place = places[b]
        pose = place.pose * _convert_pose(m.geom_pos[g], m.geom_quat[g])
        link = _name_body(m, b) if b else "world"
        rotation, position = np.array(pose.rotation), np.array(pose.translation)
        if kind in _SHAPE_KINDS:
            size = tuple(m.geom_size[g].tolist())
            shape = _SHAPE_KINDS[kind]
            yield CollisionShape(link, place.joint, shape, size, rotation, position)
        elif kind == "PLANE":
            yield CollisionShape(link, 0, "plane", (), rotation, position)


def _list_meshes(m: Any, places: list[_Place]) -> Iterator[CollisionMesh]:
    """Yield the meshes that collide, with their vertices in the frame of their joint.

    Args:
        m: The `mujoco.MjModel`.
        places: Where each body is fixed, from `_build_tree`.
    """
    for g in range(m.ngeom):
        b, k = int(m.geom_bodyid[g]), int(m.geom_dataid[g])
        is_mesh = int(m.geom_type[g]) == int(load_mujoco().mjtGeom.mjGEOM_MESH)
        if not b or not is_mesh or not (m.geom_contype[g] or m.geom_conaffinity[g]):
            continue
        pose = places[b].pose * _convert_pose(m.geom_pos[g], m.geom_quat[g])
        first, count = int(m.mesh_vertadr[k]), int(m.mesh_vertnum[k])
        vertices = np.array(m.mesh_vert[first : first + count], dtype=np.float64)
        placed = vertices @ np.array(pose.rotation).T + np.array(pose.translation)
        yield CollisionMesh(_name_body(m, b), places[b].joint, placed)


def _list_geometries() -> list[tuple[str, Any]]:
    """Return the names and values of MuJoCo's enumeration `mjtGeom`."""
    return list(load_mujoco().mjtGeom.__members__.items())
