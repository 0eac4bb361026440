"""MJCF files of public packages: as MuJoCo has them, or refused by the name of what is lost.

Gymnasium comes with the test tools. The other packages are large; their files are read where they
are installed (`pip install --no-deps dm-control robosuite brax gymnasium-robotics`).
"""

from importlib.metadata import PackageNotFoundError, files

import numpy as np
import pytest

from hybridctl.base.errors import InputError
from hybridctl.mechanics import Robot
from hybridctl.mechanics.multibody.mjcf import _convert_configuration

mujoco = pytest.importorskip("mujoco")
pytestmark = pytest.mark.slow

# Files that MuJoCo compiles and that have a joint: at least so many, of which so many are read.
PACKAGES = {
    "gymnasium": (14, 11),
    "dm-control": (37, 24),
    "robosuite": (26, 23),
    "brax": (41, 32),
    "gymnasium-robotics": (30, 11),
}


def compiled_models(package):
    """The MJCF files of a package that MuJoCo compiles to a model with joints."""
    for file in files(package):
        if file.suffix != ".xml":
            continue
        path = str(file.locate())
        try:
            model = mujoco.MjModel.from_xml_path(path)
        except ValueError:  # a part of another file, or one whose meshes are not shipped
            continue
        if model.nv:
            yield path, model


def turns_to_bodies(model, qpos):
    """The matrix that turns MuJoCo's velocities to Pinocchio's: those of free joints differ."""
    turns, turn = np.eye(model.nv), np.zeros(9)
    for k in np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE):
        a, d = model.jnt_qposadr[k], model.jnt_dofadr[k]
        mujoco.mju_quat2Mat(turn, qpos[a + 3 : a + 7])
        turns[d : d + 3, d : d + 3] = turn.reshape(3, 3).T
    return turns


def largest_difference(path, model, rng):
    """The largest relative difference of M, forces and frames from MuJoCo's at five states.

    Where joints mimic others, S' M S and S' f of MuJoCo's M and f are compared: S is constant, and
    has all velocities from those of the joints that follow none.
    """
    robot, data = Robot.from_mjcf(path), mujoco.MjData(model)
    disable = mujoco.mjtDisableBit
    for part in (disable.mjDSBL_CONTACT, disable.mjDSBL_CONSTRAINT, disable.mjDSBL_ACTUATION):
        model.opt.disableflags |= int(part)
    free = model.jnt_dofadr[model.jnt_type == mujoco.mjtJoint.mjJNT_FREE]
    found = [0.0]
    for _ in range(5):
        data.qpos[:] = model.qpos0
        mujoco.mj_integratePos(model, data.qpos, 0.6 * rng.normal(size=model.nv), 1.0)
        data.qvel[:] = rng.normal(size=model.nv)
        follow(robot, model, data)
        mujoco.mj_forward(model, data)
        mass = np.zeros((model.nv, model.nv))
        mujoco.mj_fullM(model, data, mass)
        force = data.qfrc_bias - data.qfrc_passive
        q_all = _convert_configuration(model, robot.model, data.qpos)
        q, own = robot._reduce_q(q_all), independent(robot, model)
        turns = turns_to_bodies(model, data.qpos)
        v = turns @ data.qvel
        turning = np.zeros(model.nv)  # of the frame in which the velocity is: -w x v
        for d in free:
            turning[d : d + 3] = np.cross(v[d : d + 3], v[d + 3 : d + 6])
        m, h = robot.mass_matrix(q), robot.bias(q, v[own])
        s, turns = robot.all_velocities(np.eye(robot.nv)), turns[np.ix_(own, own)]
        ours = turns.T @ (m @ turning[own] + h)
        mass, force = s.T @ mass @ s, s.T @ force
        found.append(np.abs(turns.T @ m @ turns - mass).max() / max(1.0, np.abs(mass).max()))
        found.append(np.abs(ours - force).max() / max(1.0, np.abs(force).max()))
        found += [body_error(robot, model, data, q, b) for b in range(1, model.nbody)]
    return max(found)


def follow(robot, model, data):
    """Let the joints of MuJoCo's state that mimic others follow them."""
    for _ in robot.mimics:  # chains from their beginnings on
        for name, mimic in robot.mimics.items():
            (a, d), (b, e) = (
                (int(model.jnt_qposadr[k]), int(model.jnt_dofadr[k]))
                for k in (model.joint(name).id, model.joint(mimic.joint).id)
            )
            data.qpos[a] = mimic.multiplier * data.qpos[b] + mimic.offset
            data.qvel[d] = mimic.multiplier * data.qvel[e]


def independent(robot, model):
    """The indices of MuJoCo's velocities that are the robot's own."""
    following = {int(model.jnt_dofadr[model.joint(name).id]) for name in robot.mimics}
    return [d for d in range(model.nv) if d not in following]


def body_error(robot, model, data, q, b):
    """How far the frame of body b is from MuJoCo's, in m and as a rotation matrix."""
    frame = robot.frame(model.body(b).name or f"body {b}")
    pose = robot.poses(q, [frame.joint])[0] if frame.joint else np.eye(4)
    place = pose[:3, :3] @ frame.position + pose[:3, 3]
    rotation = pose[:3, :3] @ frame.rotation - data.xmat[b].reshape(3, 3)
    return max(np.abs(place - data.xpos[b]).max(), np.abs(rotation).max())


@pytest.mark.parametrize("package", PACKAGES)
def test_files_are_as_mujoco_has_them_or_refused(package):
    """To 1e-8 relative: rounding of chains of some ten bodies, whose quaternions have 16 digits."""
    try:
        models = list(compiled_models(package))
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    rng, read, unnamed, wrong = np.random.default_rng(11), 0, 0, []
    for path, model in models:
        try:
            difference = largest_difference(path, model, rng)
        except InputError as refusal:
            unnamed += "would be lost" not in str(refusal)
            continue
        read += 1
        if not difference < 1e-8:
            wrong.append((path, difference))
    assert wrong == []
    assert unnamed == 0
    least, least_read = PACKAGES[package]
    assert len(models) >= least
    assert read >= least_read
    print(f"{package}: {len(models)} files, {read} read, {len(models) - read} refused")
