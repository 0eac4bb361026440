"""Impacts of robots whose branches touch each other: `python -m attack.branches N`.

A robot is a forest of one to three random trees on a fixed, planar or floating base. Its contacts
are planes of one link against points of another, or of the world, all with zero gap. One contact
hits; the others are closed before, so that the velocity leaves their gaps alone. Some contacts come
in opposed pairs, which close a loop. The reset of the event is compared with the impact in which
all contacts take part: their velocities must agree, whatever the reset leaves out.
"""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np
import pinocchio as pin
from scipy.linalg import null_space

from hybridctl.base.errors import HybridctlError
from hybridctl.mechanics import Contact, Plane, Robot, contact_system
from hybridctl.mechanics.impacts.impact import impact
from hybridctl.mechanics.system import ContactSystem

KINDS = ("fixed", "forest", "planar", "floating")
AGREED = 1e-10
"""Largest difference of velocities after an impact, relative to the largest velocity.

Two solutions of one well-conditioned linear problem differ by rounding: joints of links of 0.5 to
2 kg have mass matrices with condition numbers below 1e4."""


def judged(seed: int) -> tuple[str, str]:
    """Return the kind of robot number `seed`, and what became of its impact, in words."""
    rng = np.random.default_rng([61, seed])
    kind = KINDS[seed % len(KINDS)]
    system, q, v = _approaching(rng, kind)
    dynamics, count = system.dynamics, len(system.contacts)
    mode = ("open", *("stick" if c.rough else "closed" for c in system.contacts[1:]))
    edge = system.outgoing(mode).edge((f"{system.contacts[0].name} closes",))
    assert edge is not None
    results = []
    for of in (
        lambda: impact(dynamics, q, v, tuple(range(count))),
        lambda: edge.jump(0.0, np.concatenate((q, v)), np.zeros(system.robot.nu))[1].report,
    ):
        try:
            results.append(of())
        except HybridctlError as error:
            results.append(type(error).__name__)
    whole, part = results
    if isinstance(whole, str) or isinstance(part, str):
        return kind, f"refused: {whole}" if whole == part else f"wrong: {whole!s:.40}, {part!s:.40}"
    scale = max(1.0, float(np.abs(v).max()))
    if np.abs(part.velocity_after - whole.velocity_after).max() > AGREED * scale:
        return kind, "wrong: another velocity"
    if (dynamics.gap_rates(q, part.velocity_after)).min() < -1e-9 * scale:
        return kind, "wrong: contacts penetrate"
    return kind, "right"


def _approaching(
    rng: np.random.Generator, kind: str
) -> tuple[ContactSystem, np.ndarray, np.ndarray]:
    """Return a system, q and v: the first contact hits, and the others stay closed at rest."""
    while True:
        system, q = _touching(rng, kind)
        jacobian = system.dynamics.contact_set.jacobian(q)
        free = null_space(jacobian[system.dynamics.contact_set.owner != 0], rcond=1e-9)
        v = free @ rng.normal(size=free.shape[1])
        approach = float(jacobian[0] @ v)
        if abs(approach) > 1e-2:  # m/s; else the closed contacts hold the first one
            return system, q, -np.sign(approach) * v


def _touching(rng: np.random.Generator, kind: str) -> tuple[ContactSystem, np.ndarray]:
    """Return a random robot with contacts, and a configuration at which all gaps are zero."""
    model, bodies = _forest(rng, kind)
    robot = Robot(model, actuated=(), gravity=(0.0, 0.0, 0.0))
    q = robot.integrate(robot.neutral(), rng.uniform(-1.0, 1.0, robot.nv))
    data = model.createData()
    pin.forwardKinematics(model, data, q)
    contacts: list[Contact] = []
    for _ in range(int(rng.integers(2, 5))):
        contact = _between(rng, f"c{len(contacts)}", model, data, bodies, kind == "planar")
        contacts.append(contact)
        if rng.random() < 0.25 and len(contacts) > 1:
            contacts.append(_opposed(contact, f"c{len(contacts)}"))
    return contact_system(robot, contacts, terms="pinocchio"), q


def _forest(rng: np.random.Generator, kind: str) -> tuple[pin.Model, list[str]]:
    """Return a model of three to seven bodies, each with a frame of its joint's name."""
    model = pin.Model()
    roots: list[int] = [0]
    if kind == "floating":
        roots = [_joined(rng, model, 0, pin.JointModelFreeFlyer(), False)]
    elif kind == "planar":
        for joint in (pin.JointModelPX(), pin.JointModelPZ(), pin.JointModelRY()):
            roots = [_joined(rng, model, roots[0], joint, True, mass=joint.shortname()[-1] == "Y")]
    for _ in range(3 if kind == "forest" else 1):
        path = roots[:]
        for _ in range(int(rng.integers(1, 3)) if kind == "forest" else int(rng.integers(3, 7))):
            path = path[: 1 + rng.integers(len(path))]  # joints must be numbered depth first
            path.append(_joined(rng, model, path[-1], _joint(rng, kind), kind == "planar"))
    bodies = [model.names[j] for j in range(1, model.njoints) if model.inertias[j].mass > 0.0]
    return model, bodies


def _joint(rng: np.random.Generator, kind: str) -> object:
    """Return a joint that slides or turns, in the xz-plane for a planar robot."""
    axis = rng.normal(size=3) * ([1.0, 0.0, 1.0] if kind == "planar" else 1.0)
    axis /= np.linalg.norm(axis)
    if rng.random() < 0.5:
        return pin.JointModelPrismaticUnaligned(axis)
    return pin.JointModelRY() if kind == "planar" else pin.JointModelRevoluteUnaligned(axis)


def _joined(
    rng: np.random.Generator,
    model: pin.Model,
    parent: int,
    joint: object,
    planar: bool,
    mass: bool = True,
) -> int:
    """Add a joint with a body of 0.5 to 2 kg, and return its number."""
    place = rng.uniform(-0.3, 0.3, 3) * ([1.0, 0.0, 1.0] if planar else 1.0)
    name = f"b{model.njoints}"
    number = model.addJoint(parent, joint, pin.SE3(np.eye(3), place if parent else 0 * place), name)
    model.addFrame(pin.Frame(name, number, pin.SE3.Identity(), pin.FrameType.BODY))
    if mass:
        inertia = np.diag(rng.uniform(0.01, 0.02, 3))
        centre = rng.uniform(-0.1, 0.1, 3)
        model.appendBodyToJoint(
            number, pin.Inertia(rng.uniform(0.5, 2.0), centre, inertia), pin.SE3.Identity()
        )
    return number


def _between(
    rng: np.random.Generator,
    name: str,
    model: pin.Model,
    data: pin.Data,
    bodies: list[str],
    planar: bool,
) -> Contact:
    """Return a contact of two bodies, in one of four cases of a body with the world, zero gap."""
    a, b = rng.choice(bodies, 2, replace=False)
    if rng.random() < 0.25:
        b = "universe"
    point = rng.uniform(-0.2, 0.2, 3)
    normal = rng.normal(size=3) * ([1.0, 0.0, 1.0] if planar else 1.0)
    world = data.oMi[model.getJointId(str(a))].act(point)
    place = pin.SE3.Identity() if b == "universe" else data.oMi[model.getJointId(str(b))]
    surface = Plane(place.actInv(world), place.rotation.T @ normal)
    friction = float(rng.uniform(0.1, 0.8)) if rng.random() < 0.3 else 0.0
    return Contact(name, str(a), surface, body=str(b), offset=point, friction=friction)


def _opposed(contact: Contact, name: str) -> Contact:
    """Return the contact of the same point with the other side of the same plane."""
    plane = contact.surface
    assert isinstance(plane, Plane)
    other = Plane(plane.point, -plane.unit_normal)
    return Contact(name, contact.frame, other, body=contact.body, offset=contact.offset)


def main() -> None:
    """Print what became of so many impacts, from a first seed on."""
    count, first = map(int, [*sys.argv[1:], *("300", "0")[len(sys.argv) - 1 :]])
    found = Counter(judged(seed) for seed in range(first, first + count))
    for (kind, verdict), times in sorted(found.items()):
        print(f"{kind:10} {verdict:60} {times}")


if __name__ == "__main__":
    main()
