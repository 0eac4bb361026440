"""MJCF files of public packages: as MuJoCo has them, or refused by the name of what is lost.

Gymnasium comes with the test tools. The other packages are large; their files are read where they
are installed (`pip install --no-deps dm-control robosuite brax gymnasium-robotics`).
"""

from importlib.metadata import PackageNotFoundError, files

import numpy as np
import pytest

from hybridctl.errors import InputError
from hybridctl.mechanics import Robot
from hybridctl.mechanics.multibody.mjcf import _configuration

mujoco = pytest.importorskip("mujoco")
pytestmark = pytest.mark.slow

# Files that MuJoCo compiles and that have a joint: at least so many, of which so many are read.
PACKAGES = {
    "gymnasium": (14, 11),
    "dm-control": (37, 19),
    "robosuite": (26, 13),
    "brax": (41, 32),
    "gymnasium-robotics": (30, 10),
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
    """The largest relative difference of M, forces and frames from MuJoCo's at five states."""
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
        mujoco.mj_forward(model, data)
        mass = np.zeros((model.nv, model.nv))
        mujoco.mj_fullM(model, data, mass)
        force = data.qfrc_bias - data.qfrc_passive
        q = _configuration(model, robot.model, data.qpos)
        turns = turns_to_bodies(model, data.qpos)
        v = turns @ data.qvel
        turning = np.zeros(model.nv)  # of the frame in which the velocity is: -w x v
        for d in free:
            turning[d : d + 3] = np.cross(v[d : d + 3], v[d + 3 : d + 6])
        own = robot.mass_matrix(q)
        ours = turns.T @ (own @ turning + robot.bias(q, v))
        found.append(np.abs(turns.T @ own @ turns - mass).max() / max(1.0, np.abs(mass).max()))
        found.append(np.abs(ours - force).max() / max(1.0, np.abs(force).max()))
        found += [body_error(robot, model, data, q, b) for b in range(1, model.nbody)]
    return max(found)


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
