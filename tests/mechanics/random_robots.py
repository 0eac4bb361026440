"""Random robots with contacts: chains and trees of all joint kinds, planes and spheres."""

import numpy as np
import pinocchio as pin

from hybridctl.mechanics import Contact, Plane, Robot, Sphere
from hybridctl.mechanics.multibody.mimic import Mimic

_ONE = ("RX", "RY", "RZ", "PX", "PY", "PZ", "RUBX", "RUBY", "RUBZ", "HX")
_ALONG = ("RevoluteUnaligned", "PrismaticUnaligned", "RevoluteUnboundedUnaligned")
_SEVERAL = ("Spherical", "Planar", "Translation")
_BASES = ((), ("FreeFlyer",), ("PX", "PZ", "RY"))


def random_robot(rng, most_joints: int = 6) -> tuple[Robot, list[Contact]]:
    """A robot on a fixed, floating or sagittal base, with one to four contacts."""
    model = pin.Model()
    path = [0]
    base = _BASES[rng.integers(len(_BASES))]
    for name in base:
        path = [_add(model, rng, path[-1], _joint(rng, name), pin.SE3.Identity())]
    serial = rng.random() < 0.5
    for _ in range(rng.integers(1 if not base else 0, most_joints)):
        if not serial:  # Pinocchio numbers joints depth first
            path = path[: 1 + rng.integers(len(path))]
        joint = _joint(rng, str(rng.choice(_ONE + _ALONG + _SEVERAL)))
        path.append(_add(model, rng, path[-1], joint, pin.SE3.Random()))
    model.armature = np.where(rng.random(model.nv) < 0.3, rng.random(model.nv), 0.0)
    springs = [
        name
        for name, joint in zip(list(model.names)[1:], list(model.joints)[1:], strict=True)
        if (joint.nq, joint.nv) == (1, 1) and rng.random() < 0.5
    ]
    robot = Robot(
        model,
        actuated=[name for name in list(model.names)[1:] if rng.random() < 0.7],
        stiffness={name: 10.0 * rng.random() for name in springs},
        rest={name: rng.normal() for name in springs},
        damping={name: rng.random() for name in springs},
        gravity=rng.normal(size=3),
    )
    return robot, [_contact(robot, rng, i) for i in range(rng.integers(1, 5))]


def robot_of_all_kinds(rng) -> tuple[Robot, list[Contact]]:
    """A chain of joints of all kinds whose axes are fixed in a body, with a point on a plane."""
    model, last = pin.Model(), 0
    for name in ("FreeFlyer", *_ALONG, *_SEVERAL):
        last = _add(model, rng, last, _joint(rng, name), pin.SE3.Random())
    robot = Robot(model, actuated=[], gravity=rng.normal(size=3))
    ground = Plane(rng.normal(size=3), _direction(rng))
    return robot, [Contact("tip", robot.link_names[-1], ground, offset=rng.normal(size=3))]


def with_mimics(rng, tree: Robot) -> Robot:
    """A copy of a robot in which some joints mimic others: earlier and later ones, in chains."""
    singles = rng.permutation([name for name, places in tree.joints.items() if places]).tolist()
    mimics = {}
    for k, name in enumerate(singles[1:], start=1):
        if rng.random() < 0.6:
            multiplier = 0.0 if rng.random() < 0.1 else 1.5 * rng.normal()
            mimics[name] = Mimic(singles[rng.integers(k)], multiplier, 0.5 * rng.normal())
    springs = {name: tree.velocity_index(name) for name in singles}
    driven = [
        name
        for name in tree.joint_names
        if name not in mimics and tree.actuation[tree.velocities(name)].any()
    ]
    passive = tree.passive
    return Robot(
        tree.model,
        actuated=driven,
        stiffness={name: passive.stiffness[v] for name, v in springs.items()},
        rest={name: passive.rest[v] for name, v in springs.items()},
        damping={name: passive.damping[v] for name, v in springs.items()},
        gravity=tree.model.gravity.linear,
        mimics=mimics,
    )


def _joint(rng, name: str):
    kind = getattr(pin, f"JointModel{name}")
    axis = _direction(rng)
    if name == "RevoluteUnboundedUnaligned":
        joint = kind()
        joint.axis = axis
        return joint
    if name in _ALONG:
        return kind(axis)
    if name == "HX":
        return kind(0.3)
    return kind()


def _add(model, rng, parent: int, joint, placement) -> int:
    number = model.addJoint(parent, joint, placement, f"joint{model.njoints}")
    root = rng.normal(size=(3, 3))
    inertia = pin.Inertia(0.5 + rng.random(), 0.3 * rng.normal(size=3), root @ root.T + np.eye(3))
    model.appendBodyToJoint(number, inertia, pin.SE3.Identity())
    name, place = f"body{number}", pin.SE3.Random()
    model.addFrame(pin.Frame(name, number, 0, place, pin.FrameType.BODY))
    return number


def _contact(robot: Robot, rng, i: int) -> Contact:
    frame, *others = rng.permutation(robot.link_names).tolist()
    on_world = not others or rng.random() < 0.5
    if rng.random() < 0.5:
        surface = Plane(rng.normal(size=3), _direction(rng))
    else:
        surface = Sphere(3.0 * _direction(rng), 1.0 + rng.random(), inside=rng.random() < 0.5)
    return Contact(
        f"contact{i}",
        frame,
        surface,
        body="universe" if on_world else others[0],
        offset=rng.normal(size=3),
        friction=0.5 if rng.random() < 0.7 else 0.0,
    )


def _direction(rng):
    vector = rng.normal(size=3)
    return vector / np.linalg.norm(vector)
