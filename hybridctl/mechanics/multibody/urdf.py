"""Models of Pinocchio from URDF: the tree of bodies on its base, and the shapes of its links.

`urdf_document` checks a file, Pinocchio's parser (urdfdom) makes the model, and `urdf_arrival`
compares both.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import IO, Any, Literal, NoReturn
from xml.etree import ElementTree

import coal
import numpy as np
import pinocchio as pin

from hybridctl.base.checks import Array
from hybridctl.base.errors import FileFormatError
from hybridctl.base.files import read_file_or_text
from hybridctl.mechanics.multibody.joints import EULER_JOINTS, SAGITTAL_JOINTS
from hybridctl.mechanics.multibody.links import CollisionMesh
from hybridctl.mechanics.multibody.mimic import read_mimics
from hybridctl.mechanics.multibody.urdf_arrival import check_arrival
from hybridctl.mechanics.multibody.urdf_document import (
    Element,
    UrdfDocument,
    check_description,
    describe_impossible_inertias,
    numbers_of,
    parse_urdf,
    text_for_model,
)

Root = Literal["fixed", "floating", "sagittal", "euler"]
"""Base of the root link: fixed to the world, floating with six degrees of freedom, sagittal, which
slides along x and z and turns about y, or floating by Euler angles: it slides along x, y and z and
turns about z, y and x. At a pitch of a right angle its mass matrix is singular."""
Kind = Literal["box", "cylinder", "sphere", "mesh"]
KINDS: tuple[Kind, ...] = ("box", "cylinder", "sphere", "mesh")
_PURPOSES = {"visual": pin.GeometryType.VISUAL, "collision": pin.GeometryType.COLLISION}
_BASE_JOINTS: dict[Root, tuple[str, ...]] = {
    "fixed": ("universe",),
    "floating": ("universe", "root_joint"),
    "sagittal": ("universe", *SAGITTAL_JOINTS),
    "euler": ("universe", *EULER_JOINTS),
}
"""Names that Pinocchio gives to the joints of each base, and to the world."""
_CHAINS: dict[Root, dict[str, type[Any]]] = {
    "sagittal": dict(
        zip(SAGITTAL_JOINTS, (pin.JointModelPX, pin.JointModelPZ, pin.JointModelRY), strict=True)
    ),
    "euler": dict(
        zip(
            EULER_JOINTS,
            (
                pin.JointModelPX,
                pin.JointModelPY,
                pin.JointModelPZ,
                pin.JointModelRZ,
                pin.JointModelRY,
                pin.JointModelRX,
            ),
            strict=True,
        )
    ),
}
"""Names and types of the joints of bases that are a chain of joints, from the world on."""
_LOG = logging.getLogger(__name__)
_UP_AXIS = re.compile(rb"<up_axis>\s*(\w+)\s*</up_axis>")
_HEADER = 65536
"""Bytes at the start of a COLLADA file among which its up axis is sought."""


def model_of(document: UrdfDocument, root: Root) -> Any:
    """Return the `pinocchio.Model` of a URDF on its base.

    A warning in the log names the first three links of impossible inertia and counts the others.
    Joints with <mimic> are ordinary joints of the model, without their coupling.

    Continuous joints have cosine and sine as coordinates in Pinocchio, which do not determine how
    often they have turned. A coupling by a factor that is not whole depends on that: those that
    mimic or are mimicked have their angle in rad as coordinate instead.

    Args:
        document: The URDF.
        root: Base of the root link.

    Raises:
        FileFormatError: The description makes no sense, Pinocchio refuses it, a moving joint has
            the name of one of the base, or the model differs from the description.
    """
    check_description(document)
    for joint in document.joints:
        # Fixed joints make no joint of the model, so that their names cannot collide.
        if joint.get("type") != "fixed" and joint.get("name") in _BASE_JOINTS[root]:
            raise document.error(
                joint, f"must have another name for joint {joint.get('name')!r}: the base has it"
            )
    impossible = describe_impossible_inertias(document)
    if impossible:
        _LOG.warning("no rigid body has such inertias as these in the URDF: %s", impossible)
    mimics = read_mimics(document.root)  # refuses by name what urdfdom refuses without one
    coupled = {*mimics, *(mimic.joint for mimic in mimics.values())}
    kinds = {joint.get("name", ""): joint.get("type") for joint in document.joints}
    by_angle = [name for name in coupled if kinds[name] == "continuous"]
    text, messages = text_for_model(document, by_angle), _ErrorStream()
    try:
        with messages:
            if root == "floating":
                model = pin.buildModelFromXML(text, pin.JointModelFreeFlyer())
            else:
                model = pin.buildModelFromXML(text)
    except (ValueError, RuntimeError) as error:
        reason = messages.text or str(error)
        raise FileFormatError(f"urdf is not a robot description: {reason}") from error
    for joint in document.joints:
        if joint.get("type") == "planar":
            _turn_planar_joint(model, joint)
    check_arrival(document, model)
    return _add_chain_base(model, root) if root in _CHAINS else model


def refuse_massless_joint(document: UrdfDocument, name: str) -> NoReturn:
    """Raise the error about a joint that moves no mass.

    Args:
        document: The URDF.
        name: The joint, of the file or of the base.

    Raises:
        FileFormatError: Always.
    """
    joint = next((j for j in document.joints if j.get("name") == name), document.root)
    raise document.error(
        joint,
        f"must have mass or moments of inertia where joint {name!r} moves its links, else the mass "
        "matrix is singular: give them an <inertial>, or the joint a rotor (rotors=)",
    )


class _ErrorStream:
    """Collects what a block writes on the error stream of the process.

    urdfdom, in C++, reports there, past Python's `sys.stderr`: only the file descriptor 2 catches
    its messages. What was written is printed again if the block succeeds. If it raises, only `text`
    has it, for the error of the caller.

    Attributes:
        text: After the block, the messages in one line: without urdfdom's mark "Error:" and the
            lines "at line ...", and the first 400 characters only. Empty before, and where the
            stream could not be redirected.
    """

    _alone = threading.Lock()
    """The error stream belongs to the process: one thread redirects it at a time."""

    def __init__(self) -> None:
        self.text = ""
        self._file: IO[bytes] | None = None
        self._saved = -1  # file descriptor of the stream outside the block

    def __enter__(self) -> _ErrorStream:
        self._alone.acquire()
        try:
            self._file = tempfile.TemporaryFile()
            self._saved = os.dup(2)
            os.dup2(self._file.fileno(), 2)
        except OSError:
            # The process has no error stream, or there is no folder for the file. The block runs
            # with nothing redirected; callers report its exception where `text` is empty.
            self._close()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if self._file is not None:
                os.dup2(self._saved, 2)
                self._file.seek(0)
                written = self._file.read()
                lines = [line.strip() for line in written.decode(errors="replace").splitlines()]
                # The place in urdfdom's own source follows each message.
                texts = [line for line in lines if not line.startswith("at line")]
                self.text = "; ".join(line.removeprefix("Error:").strip() for line in texts)[:400]
                if kind is None and written:
                    os.write(2, written)
        finally:
            self._close()
            self._alone.release()

    def _close(self) -> None:
        """Close the file and the copy of the stream."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._saved >= 0:
            os.close(self._saved)
            self._saved = -1


def _turn_planar_joint(model: Any, joint: Element) -> None:
    """Turn a planar joint so that its plane is perpendicular to the axis of the URDF.

    Pinocchio moves it in the xy-plane of the joint's frame whatever the axis is. The placement of
    the joint is turned by R with R e_z = axis. What it carries is turned back, so that it stays
    where the URDF puts it: the inertia, the child joints and the frames.

    Args:
        model: The `pinocchio.Model`. Changed.
        joint: The element <joint>.
    """
    axis = numbers_of(joint.find("axis"), "xyz", (1.0, 0.0, 0.0))  # the default of URDF
    up, normal = np.array([0.0, 0.0, 1.0]), axis / np.linalg.norm(axis)
    rotation = pin.Quaternion.FromTwoVectors(up, normal).toRotationMatrix()
    turn = pin.SE3(rotation, np.zeros(3))
    back, j = turn.inverse(), model.getJointId(joint.get("name"))
    model.jointPlacements[j] = model.jointPlacements[j] * turn
    model.inertias[j] = back.act(model.inertias[j])
    for child in range(j + 1, model.njoints):
        if model.parents[child] == j:
            model.jointPlacements[child] = back * model.jointPlacements[child]
    for frame in model.frames:
        if frame.parentJoint == j:
            frame.placement = back * frame.placement


def _add_chain_base(model: Any, root: Root) -> Any:
    """Return a model on a base of `_CHAINS`.

    The base is a chain of joints, because Pinocchio's derivatives are wrong for a composite joint.
    """
    base, parent = pin.Model(), 0
    for name, kind in _CHAINS[root].items():
        parent = base.addJoint(parent, kind(), pin.SE3.Identity(), name)
        base.addJointFrame(parent)
    frame = base.getFrameId(base.names[parent])
    return pin.appendModel(base, model, frame, pin.SE3.Identity())


def shapes_of(
    model: Any,
    urdf: str | os.PathLike[str],
    packages: Sequence[str | os.PathLike[str]] = (),
    *,
    purpose: Literal["visual", "collision"] = "visual",
    kinds: Collection[Kind] = KINDS,
    links: Collection[str] | None = None,
) -> Any:
    """Return the `pinocchio.GeometryModel` of the shapes on the links of a model.

    Left out with a warning in the log: a wanted mesh that is not found, and a shape that is none of
    `KINDS`, such as a capsule. Left out without one: shapes of links that the model does not have,
    of kinds that are not wanted, and of the other purpose, and elements without a geometry.

    Args:
        model: The `pinocchio.Model`.
        urdf: Path of the URDF, or its text.
        packages: Folders that hold what `package://` names. All folders above the file are tried,
            too, see `_find_file`.
        purpose: Whether shapes are those that are drawn or those that collide.
        kinds: Kinds of shapes that are wanted.
        links: Names of the links whose shapes are wanted; None for all.

    Raises:
        FileFormatError: The file is no URDF, or a wanted shape cannot be read, such as a damaged
            mesh.
    """
    text = read_file_or_text("urdf", urdf)
    # A text has no folder in which meshes could be.
    above = [] if isinstance(urdf, str) and "<" in urdf else Path(urdf).resolve().parents
    known = {frame.name for frame in model.frames if frame.type == pin.FrameType.BODY}
    known = known if links is None else known.intersection(links)
    root, messages = parse_urdf(text).root, _ErrorStream()
    try:
        wanted = _remove_unwanted_shapes(
            root, known, purpose, kinds, [*map(Path, packages), *above]
        )
        text = ElementTree.tostring(root, encoding="unicode")
        # The tree over a mesh that is built fastest: nobody asks it for collisions.
        loader = coal.CachedMeshLoader(coal.NODE_TYPE.BV_AABB)
        with messages:
            shapes = pin.buildGeomFromUrdfString(
                model, text, _PURPOSES[purpose], mesh_loader=loader
            )
            _check_complete(shapes, wanted)
    except (KeyError, RuntimeError, ValueError) as error:  # KeyError: an attribute is missing
        reason = messages.text or repr(error)
        raise FileFormatError(f"urdf has {purpose} shapes that cannot be read: {reason}") from error
    return shapes


def _check_complete(shapes: Any, wanted: int) -> None:
    """Check that Pinocchio has not left out shapes that it cannot read.

    Raises:
        ValueError: There are fewer shapes than wanted.
    """
    if shapes.ngeoms < wanted:
        raise ValueError(f"{wanted - shapes.ngeoms} of {wanted} are left out")


def _remove_unwanted_shapes(
    root: ElementTree.Element,
    links: Collection[str],
    purpose: str,
    kinds: Collection[str],
    places: Sequence[Path],
) -> int:
    """Return the number of wanted shapes in a URDF, after removing all others.

    Those of the other purpose are removed, too: one that urdfdom does not know, such as a capsule,
    would make it refuse the file.

    Args:
        root: Root of the URDF, which is changed; meshes get the paths of their files.
        links: Names of the links whose shapes are wanted.
        purpose: "visual" or "collision".
        kinds: Kinds of shapes that are wanted.
        places: Folders in which meshes are sought.
    """
    count = 0
    for link in root.findall("link"):
        for part in [part for other in _PURPOSES for part in link.findall(other)]:
            shape = part.find("geometry/*")
            if (
                part.tag == purpose
                and link.attrib["name"] in links
                and shape is not None
                and _is_wanted(shape, link.attrib["name"], kinds, places)
            ):
                count += 1
            else:
                link.remove(part)
    return count


def _is_wanted(
    shape: ElementTree.Element, link: str, kinds: Collection[str], places: Sequence[Path]
) -> bool:
    """Return whether a shape is wanted and can be read.

    A warning in the log names a shape of no known kind, and a wanted mesh whose file is not found.

    Args:
        shape: Element in <geometry>. A wanted mesh gets the absolute path of its file.
        link: Name of the link, for warnings.
        kinds: Kinds of shapes that are wanted.
        places: Folders in which meshes are sought.
    """
    if shape.tag not in KINDS:
        _LOG.warning("link %s has a shape %r that is left out", link, shape.tag)
    elif shape.tag == "mesh" and "mesh" in kinds:
        name = shape.attrib["filename"]
        file = _find_file(name, places)
        if file is None:
            _LOG.warning("mesh %s of link %s is not found", name, link)
            return False
        shape.set("filename", str(file.resolve()))
    return shape.tag in kinds


def _find_file(name: str, places: Sequence[Path]) -> Path | None:
    """Return the first file that a URDF may mean by a name, or None if there is none.

    The name, without file:// or package://, is a path from the current folder, or else from one of
    the places. After package://, last, the name of the package is left out: places may be inside.
    """
    plain = name.removeprefix("file://").removeprefix("package://")
    candidates = [Path(plain), *(place / plain for place in places)]
    if name.startswith("package://"):
        inside = Path(*Path(plain).parts[1:])
        candidates += [place / inside for place in places]
    return next((path for path in candidates if path.is_file()), None)


def read_meshes(
    model: Any, urdf: str | os.PathLike[str], links: Collection[str]
) -> list[CollisionMesh]:
    """Return the collision meshes of some links of a URDF, in the order of the file.

    A mesh that is not found is left out, with a warning in the log.

    Args:
        model: The `pinocchio.Model`.
        urdf: Path of the URDF, or its text.
        links: Names of the links.

    Raises:
        FileFormatError: The file is no URDF, or a mesh is damaged.
    """
    kinds: tuple[Kind, ...] = ("mesh",)
    read = shapes_of(model, urdf, purpose="collision", kinds=kinds, links=links)
    loader = coal.MeshLoader(coal.NODE_TYPE.BV_OBBRSS)  # the class whose vertices Python can read
    found = list[CollisionMesh]()
    for shape in read.geometryObjects:
        mesh = loader.load(shape.meshPath, np.array(shape.meshScale)).vertices()
        vertices = np.array(mesh) @ _read_axes(Path(shape.meshPath)).T
        rotation, position = np.array(shape.placement.rotation), shape.placement.translation
        link = model.frames[shape.parentFrame].name
        placed = vertices @ rotation.T + np.array(position)
        found.append(CollisionMesh(link, int(shape.parentJoint), placed))
    return found


def _read_axes(path: Path) -> Array:
    """Return the rotation (3, 3) from the axes of a mesh file to those of a URDF, with z up.

    COLLADA files may have y up, which Pinocchio's loader does not turn. The feet of icub would
    point sideways (test_a_sole_that_is_a_mesh_has_corners).
    """
    if path.suffix.lower() == ".dae":
        with path.open("rb") as file:
            axis = _UP_AXIS.search(file.read(_HEADER))
        if axis is not None and axis.group(1) == b"Y_UP":
            return np.array([[1.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]])
    return np.eye(3)


def rank_frame(frame: Any) -> int:
    """Return the place of a frame among those of one name, of which the lowest is meant.

    It is 0 for a link, 1 for a joint that moves, 2 for a fixed joint, and 3 for all others (sensors
    and operational frames).

    Args:
        frame: The `pinocchio.Frame`.
    """
    order = (pin.FrameType.BODY, pin.FrameType.JOINT, pin.FrameType.FIXED_JOINT)
    return order.index(frame.type) if frame.type in order else len(order)
