"""Random robots, and contacts that they touch with at a given configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pinocchio as pin

from attack.laws import Array
from attack.rigid import Judge
from hybridctl.mechanics import Contact, Plane, Robot, Sphere

Base = Literal["fixed", "planar", "floating"]
BASES: tuple[Base, ...] = ("fixed", "planar", "floating")


@dataclass(frozen=True)
class Machine:
    """A robot, a configuration of it, and contacts whose gaps there are `gaps`.

    model is a model of the same robot for the judge; stiffness (N m/rad or N/m) about q and
    damping are those of its joints (nv,).
    """

    robot: Robot
    model: pin.Model
    q: Array
    contacts: tuple[Contact, ...]
    stiffness: Array
    damping: Array

    def judge(self) -> Judge:
        return Judge(self.model, self.contacts)

    def passive_torque(self, q: Array, v: Array) -> Array:
        """Of springs and dampers, against the motion (nv,)."""
        stretch = np.zeros(self.model.nv)
        for joint in list(self.model.joints)[1:]:
            if joint.nv == 1:
                stretch[joint.idx_v] = q[joint.idx_q] - self.q[joint.idx_q]
        return self.stiffness * stretch + self.damping * v


def machine(
    rng: np.random.Generator,
    base: Base,
    dof: int,
    count: int,
    *,
    friction: float = 2.0,
    restitution: float = 1.0,
    apart: float = 0.0,
    passive: bool = False,
) -> Machine:
    """A tree of `dof` joints with `count` contacts, each up to `apart` (m) from its surface.

    A planar base moves in the xz-plane, and all that follows it; a floating one takes six of the
    degrees of freedom. friction, restitution: the largest. passive: with springs and dampers.
    """
    urdf, links = _urdf(rng, base, dof)
    root = pin.JointModelFreeFlyer() if base == "floating" else None
    model = pin.buildModelFromXML(urdf, root) if root else pin.buildModelFromXML(urdf)
    q = pin.integrate(model, pin.neutral(model), rng.uniform(-1.0, 1.0, model.nv))
    data = model.createData()
    pin.framesForwardKinematics(model, data, q)
    floor = rng.random() < 0.5
    contacts = tuple(
        _contact(rng, f"c{i}", model, data, links, base, floor, friction, restitution, apart)
        for i in range(count)
    )
    joints = [name for name in model.names if name.startswith("j")]
    columns = [model.joints[model.getJointId(name)].idx_v for name in joints]
    stiffness, damping = np.zeros((2, model.nv))
    if passive:
        stiffness[columns] = rng.uniform(0.0, 30.0, len(joints))
        damping[columns] = rng.uniform(0.0, 2.0, len(joints))
    rest = {name: float(q[model.joints[model.getJointId(name)].idx_q]) for name in joints}
    robot = Robot.from_urdf(
        urdf,
        root="floating" if root else "fixed",
        actuated=joints,
        stiffness=dict(zip(joints, stiffness[columns].tolist(), strict=True)),
        rest=rest,
        damping=dict(zip(joints, damping[columns].tolist(), strict=True)),
    )
    return Machine(robot, model, np.array(q), contacts, stiffness, damping)


def _urdf(rng: np.random.Generator, base: Base, dof: int) -> tuple[str, list[str]]:
    """The text, and the links that move."""
    bodies, joints = [_link(rng, "l0", massless=base == "fixed")], []
    links = [] if base == "fixed" else ["l0"]
    first = {"fixed": 0, "planar": min(dof, 3), "floating": 6}[base]
    if base == "planar":
        bodies, joints = _planar_root(rng, first)
        links = [f"l{first}"]
    for i in range(first + 1, dof + 1):
        candidates = links[-3:] or ["l0"]
        parent = candidates[rng.integers(len(candidates))]
        bodies.append(_link(rng, f"l{i}"))
        joints.append(_joint(rng, i, parent, planar=base == "planar"))
        links.append(f"l{i}")
    text = "".join(bodies + joints)
    return f'<robot name="random">{text}</robot>', links


def _planar_root(rng: np.random.Generator, joints: int) -> tuple[list[str], list[str]]:
    """A base that slides along x and z and turns about y, by the first so many of these."""
    kinds = [("prismatic", "1 0 0"), ("prismatic", "0 0 1"), ("revolute", "0 1 0")][:joints]
    bodies = [_link(rng, f"l{i}", massless=i < joints) for i in range(joints + 1)]
    text = [
        f'<joint name="root{i}" type="{kind}"><parent link="l{i}"/><child link="l{i + 1}"/>'
        f'<axis xyz="{axis}"/><limit lower="-9" upper="9" effort="9" velocity="9"/></joint>'
        for i, (kind, axis) in enumerate(kinds)
    ]
    return bodies, text


def _link(rng: np.random.Generator, name: str, massless: bool = False) -> str:
    """A box with its mass, up to 30 times another's, anywhere near the origin."""
    if massless:
        return f'<link name="{name}"/>'
    mass = 10.0 ** rng.uniform(-0.75, 0.75)
    x, y, z = mass / 12.0 * rng.uniform(0.05, 0.4, 3) ** 2
    place, turn = rng.uniform(-0.1, 0.1, 3), rng.uniform(-3.0, 3.0, 3)
    return (
        f'<link name="{name}"><inertial><origin xyz="{_text(place)}" rpy="{_text(turn)}"/>'
        f'<mass value="{mass!r}"/><inertia ixx="{float(y + z)!r}" iyy="{float(x + z)!r}" '
        f'izz="{float(x + y)!r}" ixy="0" ixz="0" iyz="0"/></inertial></link>'
    )


def _joint(rng: np.random.Generator, i: int, parent: str, planar: bool) -> str:
    """Three of four turn, the others slide; in the plane about y or along a line in xz."""
    turns = rng.random() < 0.75
    axis = rng.normal(size=3)
    place, rpy = rng.uniform(-0.3, 0.3, 3), rng.uniform(-3.0, 3.0, 3)
    if planar:
        axis = np.array([0.0, 1.0, 0.0]) if turns else axis * [1.0, 0.0, 1.0]
        rpy *= [0.0, 1.0, 0.0]
    axis /= np.linalg.norm(axis)
    return (
        f'<joint name="j{i}" type="{"revolute" if turns else "prismatic"}">'
        f'<parent link="{parent}"/><child link="l{i}"/><origin xyz="{_text(place)}" '
        f'rpy="{_text(rpy)}"/><axis xyz="{_text(axis)}"/>'
        '<limit lower="-9" upper="9" effort="9" velocity="9"/></joint>'
    )


def _text(vector: Array) -> str:
    return " ".join(repr(float(x)) for x in vector)


def _contact(
    rng, name, model, data, links, base, floor, friction, restitution, apart
) -> Contact:  # the one place that draws everything a contact has
    """A point of a random link against a plane or sphere, of the world or of another link."""
    frame = links[rng.integers(len(links))]
    offset = rng.uniform(-0.2, 0.2, 3)
    point = data.oMf[model.getFrameId(frame)].act(offset)
    normal = rng.normal(size=3) if not floor else rng.normal(size=3) * 0.1 + [0.0, 0.0, 1.0]
    if base == "planar":
        normal *= [1.0, 0.0, 1.0]
    normal /= np.linalg.norm(normal)
    joint = model.frames[model.getFrameId(frame)].parentJoint
    others = [link for link in links if model.frames[model.getFrameId(link)].parentJoint != joint]
    body = others[rng.integers(len(others))] if others and rng.random() < 0.15 else "universe"
    place = data.oMf[model.getFrameId(body)]
    at = place.actInv(point - rng.uniform(0.2, 1.0) * apart * normal)
    n = place.rotation.T @ normal
    kind = rng.random()
    if kind < 0.7:
        surface: Plane | Sphere = Plane(at, n)
    else:
        radius = float(rng.uniform(0.3, 2.0))
        inside = kind > 0.85
        surface = Sphere(at + (radius if inside else -radius) * n, radius, inside)
    return Contact(
        name,
        frame,
        surface,
        body=body,
        offset=offset,
        friction=float(rng.uniform(0.0, friction)) if rng.random() < 0.85 else 0.0,
        restitution=float(rng.uniform(0.0, restitution)) if rng.random() < 0.5 else 0.0,
    )
