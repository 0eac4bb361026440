"""URDF files of public packages: as a second reader has them, or refused by name.

MuJoCo is the second reader of those that it compiles, on a fixed base. All are read by
`urdf_reader`, too, on a base that floats. `example-robot-data` comes with the test tools. The other
packages are large; their files are read where they are installed, as by
`pip install --no-deps pybullet icub-models`.
"""

import logging
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from hybridctl.base.errors import InputError
from hybridctl.mechanics import Robot
from hybridctl.mechanics.multibody.mjcf import log_mujoco_warnings
from mechanics.urdf_reader import (
    STATES,
    UrdfReader,
    difference_from_reader,
    elements_of,
    moved_coordinates,
    relative_difference,
)

# Of each package at least so many files, of which so many are read. Most of PyBullet's are bodies
# without joints and moments of inertia.
PACKAGES = {
    "example-robot-data": (69, 65),
    "airo-models": (16, 7),
    "armar": (8, 4),
    "dexmate-urdf": (26, 26),
    "hello-robot-stretch-urdf": (13, 13),
    "hello-robot-stretch4-urdf": (6, 6),
    "icub-models": (16, 16),
    "jvrc-description": (1, 1),
    "orca-arm": (1, 1),
    "pybullet": (1095, 76),
    "robosuite": (5, 5),
    "robot-properties-fingers": (14, 11),
    "rtb-data": (9, 3),
    "synriard": (9, 9),
    "upkie-description": (2, 2),
    "urdfenvs": (3, 1),
}


FEW = ("solo.urdf", "double_pendulum_continuous.urdf")


def urdf_files(package):
    """The URDF files of a package."""
    return sorted(str(f.locate()) for f in files(package) if f.suffix == ".urdf")


def compiled_by_mujoco(root):
    """The `mujoco.MjModel` of a URDF without its shapes; None if it is not compiled.

    MuJoCo has its joints of several velocities in coordinates of its own.
    """
    mujoco = pytest.importorskip("mujoco")
    if any(joint.get("type") in ("planar", "floating") for joint in root.findall("joint")):
        return None
    bare = ElementTree.Element("robot", root.attrib)
    options = {"balanceinertia": "false", "fusestatic": "false", "inertiafromgeom": "false"}
    ElementTree.SubElement(ElementTree.SubElement(bare, "mujoco"), "compiler", options)
    for element in root:
        if element.tag in ("link", "joint"):
            copy = ElementTree.SubElement(bare, element.tag, element.attrib)
            copy.extend(part for part in element if part.tag not in ("visual", "collision"))
    text = ElementTree.tostring(bare, encoding="unicode")
    try:
        with log_mujoco_warnings():
            return mujoco.MjModel.from_xml_string(text)
    except ValueError:  # it refuses inertias of no rigid body, and links without mass
        return None


def difference_from_mujoco(robot, root, model, rng):
    """The largest difference from a `mujoco.MjModel` at five states."""
    mujoco = pytest.importorskip("mujoco")
    disable, data, found = mujoco.mjtDisableBit, mujoco.MjData(model), []
    for part in (disable.mjDSBL_CONTACT, disable.mjDSBL_CONSTRAINT, disable.mjDSBL_ACTUATION):
        model.opt.disableflags |= int(part)
    reader = UrdfReader(root, False)
    follow, shift = moved_coordinates(robot, reader)
    joints = [joint for joint in reader.joints if joint.columns]
    order = [model.joint(joint.name).dofadr[0] for joint in joints]
    for _ in range(STATES):
        dq, v = 0.6 * rng.normal(size=robot.nv), rng.normal(size=robot.nv)
        q, forces = robot.integrate(robot.neutral(), dq), []
        for speed in (v, 0.0 * v):
            data.qpos[order] = follow @ dq + shift
            data.qvel[order] = follow @ speed
            mujoco.mj_forward(model, data)
            forces.append(follow.T @ (data.qfrc_bias - data.qfrc_passive)[order])
        mass, places = np.zeros((model.nv, model.nv)), {}
        mujoco.mj_fullM(model, data, mass)
        for joint in reader.joints[1:]:
            body = model.body(joint.link).id
            places[joint.link] = np.eye(4)
            places[joint.link][:3, :3] = data.xmat[body].reshape(3, 3)
            places[joint.link][:3, 3] = data.xpos[body]
        mass = follow.T @ mass[np.ix_(order, order)] @ follow
        found.append(relative_difference(robot, q, v, (mass, *forces, places)))
    return max(found)


def judge(path, rng):
    """How a file is read, on a base that floats and on one that is fixed.

    Returns:
        "read" if it is on one of them, else "refused"; the largest relative difference from the
        second readers; and whether MuJoCo was one of them.
    """
    differences, compiled, refusals = [], None, []
    for base in ("floating", "fixed"):
        try:
            robot = Robot.from_urdf(path, root=base)
        except InputError as refusal:
            refusals.append(str(refusal))
            continue
        root = elements_of(Path(path).read_text(encoding="utf-8-sig"))
        if base == "fixed":
            compiled = compiled_by_mujoco(root)
        if compiled is None:
            differences.append(difference_from_reader(robot, root, base == "floating", rng))
        else:
            differences.append(difference_from_mujoco(robot, root, compiled, rng))
    if differences:
        return "read", max(differences), compiled is not None
    named = all(any(word in text for word in ("line", "joint")) for text in refusals)
    return "refused" if named else "refused without a name", 0.0, False


def count(paths):
    """Judge files, and return how many are read, and compared with MuJoCo; the others are refused.

    To 1e-8 relative: rounding of chains of some fifty links.
    """
    rng, read, by_mujoco, wrong = np.random.default_rng(12), 0, 0, []
    for path in paths:
        verdict, difference, compiled = judge(path, rng)
        read += verdict == "read"
        by_mujoco += compiled
        if not difference < 1e-8 or verdict not in ("read", "refused"):
            wrong.append((path, verdict, difference))
    assert wrong == []
    return read, by_mujoco


@pytest.fixture(autouse=True)
def no_log(caplog):
    """The log names impossible inertias and mimics of these files."""
    caplog.set_level(logging.CRITICAL)


ALL_FILES = [
    pytest.param(name, marks=[pytest.mark.long] * (name == "example-robot-data"))
    for name in PACKAGES
]


@pytest.mark.slow
def test_every_fourth_file_of_one_package_is_as_a_second_reader_has_it():
    """Without those that are read by default; 21 s for all."""
    paths = [path for path in urdf_files("example-robot-data") if Path(path).name not in FEW]
    read, by_mujoco = count(paths[::4])
    assert read >= 0.9 * len(paths[::4])
    assert 0 < by_mujoco < read


@pytest.mark.slow
@pytest.mark.parametrize("package", ALL_FILES)
def test_files_are_as_a_second_reader_has_them_or_refused(package):
    try:
        paths = urdf_files(package)
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    read, by_mujoco = count(paths)
    least, least_read = PACKAGES[package]
    assert len(paths) >= least
    assert read >= least_read
    print(f"{package}: {len(paths)} files, {read} read, of which {by_mujoco} as MuJoCo")


def test_a_few_public_files_are_as_a_second_reader_has_them():
    paths = [path for path in urdf_files("example-robot-data") if Path(path).name in FEW]
    assert count(paths)[0] == len(FEW)
