"""Layouts beside random trees: chains in space, loops, stacks, balls; light, elastic, rough or not.

A chain falls onto a floor with its ends; a loop is closed by two surfaces; a stack slides on rails,
each body on the one below; balls roll on planes, bumps, bowls and waves, and on each other. Masses
spread over one or four decades, restitution is 0, up to 0.8, from 0.9 to 1 or 1, friction 0, up to
1.2, 10 or any of these.
"""

from __future__ import annotations

from typing import NamedTuple

import casadi as ca
import numpy as np
import pinocchio as pin

from attack.laws import Array
from attack.machines import Machine
from hybridctl.mechanics import Contact, Plane, Robot, Sphere, Terrain
from hybridctl.mechanics.contacts.surfaces import Surface

MOST_CONTACTS = 4
UP = np.array([0.0, 0.0, 1.0])


class Waves(Terrain):
    """Ground z = sum of a sin(k . (x, y) + c), with its derivatives written apart.

    amplitudes a (n,), m; waves k (n, 2), 1/m; phases c (n,).
    """

    def __init__(self, amplitudes: Array, waves: Array, phases: Array) -> None:
        super().__init__(
            lambda x, y: sum(
                float(a) * ca.sin(float(k[0]) * x + float(k[1]) * y + float(c))
                for a, k, c in zip(amplitudes, waves, phases, strict=True)
            )
        )
        object.__setattr__(self, "terms", (amplitudes, waves, phases))

    def jet(self, x: float, y: float) -> tuple[float, Array, Array]:
        """Height, its gradient (2,) and its Hessian (2, 2)."""
        a, k, c = self.terms
        angle = k @ [x, y] + c
        return (
            float(a @ np.sin(angle)),
            np.asarray((a * np.cos(angle)) @ k),
            np.asarray(-(k.T * (a * np.sin(angle))) @ k),
        )


class Matter(NamedTuple):
    """What a system is made of: decades of its masses, restitution and friction from .. to."""

    decades: float
    restitution: tuple[float, float]
    friction: tuple[float, ...]

    @property
    def words(self) -> tuple[str, str, str]:
        """The same, in words."""
        least, most = self.restitution
        e = f"e {most:g}" if least == most else f"e {least:g} to {most:g}"
        mu = ", ".join(f"{mu:g}" for mu in self.friction)
        return f"masses 1e{self.decades:g}", e, f"friction {mu}"

    def masses(self, rng: np.random.Generator, count: int) -> Array:
        """In kg, in any order; the whole spread where there are two or more."""
        ends = self.decades * np.array([-0.5, 0.5])
        powers = np.append(ends, rng.uniform(*ends, max(count - 2, 0)))[:count]
        return np.asarray(10.0 ** rng.permutation(powers))

    def contact(self, rng: np.random.Generator, *fields: object, **more: object) -> Contact:
        """A contact with a restitution and friction of these."""
        most = self.friction[rng.integers(len(self.friction))]
        mu = float(rng.uniform(0.0, most)) if most < 10.0 else most
        e = float(rng.uniform(*self.restitution))
        return Contact(*fields, restitution=e, friction=mu, **more)  # type: ignore[arg-type]


def matter(rng: np.random.Generator) -> Matter:
    """Drawn anew for each system."""
    restitutions = ((0.0, 0.0), (0.0, 0.8), (0.9, 1.0), (1.0, 1.0))
    frictions = ((0.0,), (1.2,), (10.0,), (0.0, 1.2, 10.0))
    return Matter(
        float(rng.choice([1.0, 4.0])),
        restitutions[rng.integers(4)],
        frictions[rng.integers(4)],
    )


class Tree:
    """Bodies, joints and frames as they are added, and the springs of single joints."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.model, self.single = rng, pin.Model(), dict[str, float]()

    def add(self, parent: int, kind: object, place: Array, mass: float, box: Array) -> int:
        """The joint of a new body, at `place` (3,) of its parent; the box is centred on it."""
        name = f"b{self.model.njoints}"
        joint = self.model.addJoint(parent, kind, pin.SE3(np.eye(3), place), f"j{name}")
        if mass > 0.0:
            x, y, z = mass / 12.0 * box**2
            off = 0.1 * box * self.rng.uniform(-1.0, 1.0, 3)
            inertia = pin.Inertia(mass, off, np.diag([y + z, x + z, x + y]))
            self.model.appendBodyToJoint(joint, inertia, pin.SE3.Identity())
        self.model.addFrame(pin.Frame(name, joint, 0, pin.SE3.Identity(), pin.FrameType.BODY))
        if self.model.joints[joint].nv == 1 and mass > 0.0:
            self.single[f"j{name}"] = mass * float(box.max()) ** 2
        return int(joint)

    def name(self, joint: int) -> str:
        """The frame of the body of a joint."""
        return f"b{joint}"

    def placed(self, q: Array, joint: int) -> pin.SE3:
        data = self.model.createData()
        pin.forwardKinematics(self.model, data, q)
        return data.oMi[joint]

    def drawn(self, spread: float) -> Array:
        """A configuration."""
        step = self.rng.uniform(-spread, spread, self.model.nv)
        return np.array(pin.integrate(self.model, pin.neutral(self.model), step))

    def machine(self, q: Array, contacts: list[Contact]) -> Machine:
        """With springs of up to 10 rad/s and dampers of up to 2 / s, in half of the systems."""
        model, joints = self.model, tuple(self.single)
        columns = [model.joints[model.getJointId(name)].idx_v for name in joints]
        stiffness, damping = np.zeros((2, model.nv))
        if self.rng.random() < 0.5:
            inertia = np.array(list(self.single.values()))
            stiffness[columns] = inertia * self.rng.uniform(0.0, 100.0, len(joints))
            damping[columns] = inertia * self.rng.uniform(0.0, 2.0, len(joints))
        robot = Robot(
            model,
            actuated=joints,
            stiffness=dict(zip(joints, stiffness[columns].tolist(), strict=True)),
            rest={j: float(q[model.joints[model.getJointId(j)].idx_q]) for j in joints},
            damping=dict(zip(joints, damping[columns].tolist(), strict=True)),
        )
        return Machine(robot, model, q, tuple(contacts), stiffness, damping)


def chains(rng: np.random.Generator, of: Matter, apart: float) -> Machine:
    """Links in space that turn about any axis, free or held at one end; their ends meet a floor."""
    tree, count = Tree(rng), int(rng.integers(2, 5))
    root = (pin.JointModelFreeFlyer, pin.JointModelSpherical)[rng.integers(2)]
    lengths, masses = rng.uniform(0.15, 0.35, count), of.masses(rng, count)
    joints, parent, place = [], 0, np.zeros(3)
    for i, (length, mass) in enumerate(zip(lengths, masses, strict=True)):
        axis = rng.normal(size=3)
        kind = root() if i == 0 else pin.JointModelRevoluteUnaligned(axis / np.linalg.norm(axis))
        parent = tree.add(parent, kind, place, mass, np.array([length, 0.06, 0.04]))
        place = np.array([length, 0.0, 0.0])
        joints.append(parent)
    q = tree.drawn(1.0)
    ends = [(j, np.array([s, 0.0, 0.0])) for j, s in zip(joints, lengths, strict=True)]
    normal = _unit(UP + 0.1 * rng.normal(size=3))
    ends.sort(key=lambda end: float(normal @ tree.placed(q, end[0]).act(end[1])))
    radius = float(rng.choice([0.0, 0.03]))
    low = tree.placed(q, ends[0][0]).act(ends[0][1]) - (radius + apart) * normal
    contacts = [
        of.contact(rng, f"c{i}", tree.name(j), Plane(low, normal), offset=end, radius=radius)
        for i, (j, end) in enumerate(ends[:MOST_CONTACTS])
    ]
    return tree.machine(q, contacts)


def loops(rng: np.random.Generator, of: Matter, apart: float) -> Machine:
    """A body or chain between two surfaces that both of its ends may touch."""
    tree, count = Tree(rng), int(rng.integers(1, 4))
    masses, flat = of.masses(rng, count), rng.random() < 0.6
    box, joints, parent, place = np.array([0.3, 0.1, 0.06]), [], 0, np.zeros(3)
    if flat:
        for rail in (pin.JointModelPX(), pin.JointModelPZ()):
            parent = tree.add(parent, rail, place, 0.0, box)
    for i, mass in enumerate(masses):
        free = pin.JointModelRY() if flat else pin.JointModelFreeFlyer()
        axis = rng.normal(size=3)
        bend = pin.JointModelRevoluteUnaligned(axis / np.linalg.norm(axis))
        kind = free if i == 0 else pin.JointModelRY() if flat else bend
        parent = tree.add(parent, kind, place, mass, box)
        place = np.array([box[0], 0.0, 0.0])
        joints.append(parent)
    q = tree.drawn(0.7)
    ends = [(joints[0], np.array([-0.15, 0.0, 0.0])), (joints[-1], np.array([0.15, 0.0, 0.0]))]
    points = [tree.placed(q, joint).act(end) for joint, end in ends]
    groove, contacts = rng.random() < 0.5, []
    for side, (at, other) in enumerate((points, points[::-1])):
        normal = _unit(other - at) + (UP if groove else 0.0) + 0.2 * rng.normal(size=3)
        normal = _unit(normal * [1.0, 0.0, 1.0] if flat else normal)
        surface = _ground(rng, at - rng.uniform(0.2, 1.0) * apart * normal, normal)
        for i, (joint, end) in enumerate(ends):
            if surface.distance(points[i][None])[0] >= -1e-12:
                name = f"s{side}p{i}"
                contacts.append(of.contact(rng, name, tree.name(joint), surface, offset=end))
    return tree.machine(q, contacts)


def stacks(rng: np.random.Generator, of: Matter, apart: float) -> Machine:
    """Bodies on rails, one above the other: upright or leaning, each free across them or not."""
    tree, count = Tree(rng), int(rng.integers(2, 5))
    wide, chained, box = rng.random() < 0.5, rng.random() < 0.5, np.full(3, 0.2)
    rail = _unit(UP + rng.choice([0.0, 0.3]) * rng.normal(size=3) * [1.0, 0.0, 1.0])
    height, below, parent = 0.0, None, 0
    contacts, feet = [], [0.0] if rng.random() < 0.5 else [-0.1, 0.1]
    for i, mass in enumerate(of.masses(rng, count)):
        rise = (0.1 if below is None else 0.2) + rng.uniform(0.2, 1.0) * apart
        height += rise
        joint = tree.add(
            parent if chained else 0,
            pin.JointModelPrismaticUnaligned(rail),
            (rise if chained else height) * UP,
            0.0 if wide else mass,
            box,
        )
        if wide:
            joint = tree.add(joint, pin.JointModelPX(), np.zeros(3), mass, box)
        body, top = ("universe", 0.0) if below is None else (tree.name(below), 0.1)
        for k, x in enumerate(feet[: 1 if count > 2 else 2]):
            foot, ground = np.array([x, 0.0, -0.1]), Plane((0.0, 0.0, top), UP)
            name = f"c{i}{k}"
            contacts.append(of.contact(rng, name, tree.name(joint), ground, body=body, offset=foot))
        below = parent = joint
    return tree.machine(np.array(pin.neutral(tree.model)), contacts)


def balls(rng: np.random.Generator, of: Matter, apart: float) -> Machine:
    """Free bodies that touch the ground with a sphere, or a point, and each other."""
    tree, count = Tree(rng), int(rng.integers(1, 4))
    radii = rng.uniform(0.05, 0.2, count)
    joints = [
        tree.add(0, pin.JointModelFreeFlyer(), np.zeros(3), mass, np.full(3, 1.2 * radius))
        for mass, radius in zip(of.masses(rng, count), radii, strict=True)
    ]
    q, contacts, centre = tree.drawn(0.5), [], np.zeros(3)
    waves = _waves(rng) if rng.random() < 0.3 else None
    ground = waves or _ground(rng, centre, _unit(UP + 0.4 * rng.normal(size=3)))
    for i, (joint, radius) in enumerate(zip(joints, radii, strict=True)):
        touch = 0.0 if waves else float(radius)  # a distance on the waves alone: points only
        gap = rng.uniform(0.2, 1.0) * apart
        if i == 0:
            centre = (waves.jet(0.0, 0.0)[0] + gap) * UP if waves else centre
            centre = centre + (0.0 if waves else touch + gap) * ground.normal(centre[None])[0]
        else:
            below, normal = tree.name(joints[i - 1]), _unit(UP + 0.4 * rng.normal(size=3))
            ball = Sphere(np.zeros(3), float(radii[i - 1]))
            centre = centre + (radius + radii[i - 1] + gap) * normal
            fields = f"b{i}", tree.name(joint), ball
            contacts.append(of.contact(rng, *fields, body=below, radius=float(radius)))
        if ground.distance(centre[None])[0] >= touch - 1e-12:
            contacts.append(of.contact(rng, f"g{i}", tree.name(joint), ground, radius=touch))
        q[7 * i : 7 * i + 3] = centre
    return tree.machine(q, contacts)


KINDS = {"chains": chains, "loops": loops, "stacks": stacks, "balls": balls}


def _ground(rng: np.random.Generator, point: Array, normal: Array) -> Surface:
    """A plane, bump or bowl through a point."""
    kind, radius = rng.random(), float(rng.uniform(0.5, 2.0))
    if kind < 0.6:
        return Plane(point, normal)
    inside = bool(kind > 0.8)
    return Sphere(point + (radius if inside else -radius) * normal, radius, inside)


def _waves(rng: np.random.Generator) -> Waves:
    return Waves(rng.uniform(0.0, 0.05, 3), rng.uniform(-4.0, 4.0, (3, 2)), rng.uniform(0, 6, 3))


def _unit(vector: Array) -> Array:
    return np.asarray(vector / np.linalg.norm(vector))
