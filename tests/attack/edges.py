"""Bodies that slide over edges of stairs and kinks of ground: `python -m attack.edges N`.

A point, a plank with two corners or a box with four slides at 0.5 to 3 m/s over stairs of the
world or of a cart, along or against x, with and without friction. Steps go down, up, or both. Of a
run that ends at its time these laws are asked for, at samples of all its arcs:

- closed contacts are on the ground under them, and open ones are not below it;
- normal forces push;
- the total energy never rises.

A run may end in a `RiserError` if a contact is then at an edge, before a higher tread. Ground that
is given in pieces must be refused where its slope or height jumps, and nowhere else.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter

import casadi as ca
import numpy as np
import pinocchio as pin

import hybridctl as hc
from attack.laws import Array
from hybridctl.base.errors import BridgeWarning, HybridctlError, IntegrationError, RiserError
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.mechanics import Contact, Robot, Stairs, Terrain, contact_system
from hybridctl.mechanics.system import ContactSystem

KINDS = ("point", "plank", "box", "plank on a cart", "pieces")
END = 0.6  # s
ON_GROUND = 1e-6
"""In m: largest gap of a closed contact. Steps put states back on their constraints to 1e-10 m;
between the ends of a step its polynomial is off by less than this."""
ENERGY_RISE = 1e-6
"""In J, relative to the kinetic energy at the start: what steps with tolerances of 1e-9 add."""
SAMPLES = 9  # of each arc


def judged(seed: int) -> tuple[str, str]:
    """Return the kind of case number `seed`, and what became of it, in words."""
    rng = np.random.default_rng([71, seed])
    kind = KINDS[seed % len(KINDS)]
    if kind == "pieces":
        return kind, _judge_pieces(rng)
    stairs = _stairs(rng)
    turned = rng.random() < 0.5  # slides against x, over the mirrored stairs
    if turned:
        stairs = Stairs(-stairs.edges[::-1], stairs.heights[::-1])
    system, x = _sliding(rng, kind, stairs, -1.0 if turned else 1.0)
    try:
        run = _simulated(system, x, END)
    except RiserError as error:
        return kind, _judge_riser(system, stairs, x, str(error))
    except HybridctlError as error:
        return kind, f"refused: {type(error).__name__}"
    return kind, _judge_run(system, stairs, run)


def _stairs(rng: np.random.Generator) -> Stairs:
    """Return stairs with one to three edges from x = 0.2 m on; the first tread is at z = 0."""
    count = int(rng.integers(1, 4))
    edges = 0.2 + np.cumsum(rng.uniform(0.03, 0.4, count)) - 0.03
    rises = rng.uniform(0.01, 0.15, count) * rng.choice([-1.0, -1.0, -1.0, 1.0], count)
    return Stairs(edges, np.append(0.0, np.cumsum(rises)))


def _sliding(
    rng: np.random.Generator, kind: str, stairs: Stairs, way: float
) -> tuple[ContactSystem, Array]:
    """Return a body on the first tread, and its state: it slides along x, to the side of `way`."""
    model, space = pin.Model(), kind == "box"
    carried = kind.endswith("cart")
    if carried:
        cart = model.addJoint(0, pin.JointModelPX(), pin.SE3.Identity(), "cart")
        _add_body(model, cart, "cart", rng.uniform(0.5, 5.0), np.full(3, 0.1))
    joints = {"point": "PX PZ", "box": "FreeFlyer"}.get(kind, "PX PZ RY").split()
    last = 0
    for name in joints:
        joint = getattr(pin, f"JointModel{name}")()
        last = model.addJoint(last, joint, pin.SE3.Identity(), f"body {name}")
    long, high = rng.uniform(0.05, 0.15), rng.uniform(0.02, 0.08)
    moments = rng.uniform(0.3, 1.0, 3) * 0.01
    _add_body(model, last, "body", rng.uniform(0.3, 3.0), np.full(3, moments.max() / 1.5))
    corners = {"point": [(0, 0)], "box": [(i, j) for i in (-1, 1) for j in (-1, 1)]}
    friction = float(rng.choice([0.0, rng.uniform(0.05, 0.4)]))
    contacts = [
        Contact(
            f"c{k}",
            "body",
            stairs,
            body="cart" if carried else "universe",
            offset=(i * long, j * long, -high) if kind != "point" else (0.0, 0.0, 0.0),
            friction=friction,
        )
        for k, (i, j) in enumerate(corners.get(kind, [(-1, 0), (1, 0)]))
    ]
    robot = Robot(model, actuated=())
    terms = "generated" if rng.random() < 0.2 and not space else "pinocchio"
    speed = way * rng.uniform(0.5, 3.0)
    q, v = robot.neutral(), np.zeros(robot.nv)
    if space:
        yaw = rng.uniform(-np.pi, np.pi)
        q[2], q[5:7], v[:2] = high, (np.sin(yaw / 2), np.cos(yaw / 2)), speed * _rotated(-yaw)
        v[5] = rng.normal()
    else:
        q[carried + 1], v[int(carried)] = high * (kind != "point"), speed
    return contact_system(robot, contacts, terms=terms), np.concatenate((q, v))


def _rotated(angle: float) -> Array:
    return np.array([np.cos(angle), np.sin(angle)])


def _add_body(model: pin.Model, joint: int, name: str, mass: float, moments: Array) -> None:
    inertia = pin.Inertia(mass, np.zeros(3), np.diag(moments))
    model.appendBodyToJoint(joint, inertia, pin.SE3.Identity())
    model.addFrame(pin.Frame(name, joint, pin.SE3.Identity(), pin.FrameType.BODY))


def _simulated(system: ContactSystem, x: Array, end: float) -> HybridTrajectory:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BridgeWarning)
        return hc.simulate(system, None, x, (0.0, end), on_zeno="rest", max_events=300)


def _local_points(system: ContactSystem, x: Array) -> Array:
    """Return the contact points (c, 3) in the frame of the ground, by Pinocchio alone."""
    model = system.robot.model
    data, contacts = model.createData(), system.contacts
    pin.framesForwardKinematics(model, data, x[: model.nq])
    found = []
    for c in contacts:
        point = data.oMf[model.getFrameId(c.frame)].act(np.asarray(c.offset))
        ground = pin.SE3.Identity() if c.body == "universe" else data.oMf[model.getFrameId(c.body)]
        found.append(ground.actInv(point))
    return np.array(found)


def _ground_height(stairs: Stairs, x: float, slack: float) -> tuple[float, float]:
    """Return the lowest and the highest tread within `slack` (m) of x."""
    first = int((stairs.edges < x - slack).sum())
    last = int((stairs.edges <= x + slack).sum())
    treads = stairs.heights[first : last + 1]
    return float(treads.min()), float(treads.max())


def _judge_run(system: ContactSystem, stairs: Stairs, run: HybridTrajectory) -> str:
    """Return what became of a run that reached its end."""
    energies = []
    for arc in run.arcs:
        mode = system.mode(arc.mode)
        for t in np.linspace(arc.start, arc.end, SAMPLES):
            x, u = arc.state_and_input(t)
            force = mode.outputs(t, x, u)["normal_force"]
            energies.append(sum(system.robot.energy(x[: system.robot.nq], x[system.robot.nq :])))
            for state, r, push in zip(arc.mode, _local_points(system, x), force, strict=True):
                low, high = _ground_height(stairs, r[0], 1e-9)
                if state == "open":
                    if r[2] < low - ON_GROUND:
                        return "wrong: an open contact is below the ground"
                elif push < -1e-6 * system.robot.weight:
                    return "wrong: a contact pulls"
                elif not low - ON_GROUND < r[2] < high + ON_GROUND:
                    return "wrong: a closed contact is in the air or in the ground"
                elif min(abs(r[2] - low), abs(r[2] - high)) > ON_GROUND:
                    return "wrong: a closed contact is between two treads"
    kinetic = float(system.robot.energy(*np.split(run(0.0), [system.robot.nq]))[0])
    if np.diff(energies).max() > ENERGY_RISE * kinetic:
        return "wrong: the energy rises"
    names = {name.split(" ", 1)[1] for event in run.events for name in event.guards}
    return "right: falls off an edge" if "leaves its piece" in names else "right: no edge"


def _judge_riser(system: ContactSystem, stairs: Stairs, x: Array, message: str) -> str:
    """Return whether a run that ended at a riser was there, 0.1 ms before its end."""
    end = float(message.split("t = ")[1].split(" ")[0])
    run = _simulated(system, x, max(end - 1e-4, 1e-6))
    state = run.final_state
    named = [i for i, c in enumerate(system.contacts) if repr(c.name) in message.split("run")[0]]
    for i in named:
        r = _local_points(system, state)[i]
        _, high = _ground_height(stairs, r[0], 2e-3)  # 20 m/s in 0.1 ms
        if high <= r[2]:
            return "wrong: no riser there"
    before = _judge_run(system, stairs, run)
    return before if before.startswith("wrong") else "right: ends at a riser"


def _judge_pieces(rng: np.random.Generator) -> str:
    """Judge a point that slides over ground z = h(x) in two pieces that meet at x = 0.3."""
    jump, size = ("height", "slope", "curvature")[rng.integers(3)], rng.choice([-1.0, 1.0])
    size *= 10.0 ** rng.uniform(-3.0, -0.7)
    power = ("height", "slope", "curvature").index(jump)
    flat = rng.uniform(-0.2, 0.2)
    ground = Terrain(
        lambda x, y: flat * x + ca.if_else(x >= 0.3, float(size) * (x - 0.3) ** power, 0.0)
    )
    model = pin.Model()
    last = model.addJoint(0, pin.JointModelPX(), pin.SE3.Identity(), "x")
    last = model.addJoint(last, pin.JointModelPZ(), pin.SE3.Identity(), "z")
    _add_body(model, last, "body", 1.0, np.full(3, 0.01))
    friction = float(rng.choice([0.0, 0.1]))
    contact = Contact("c", "body", ground, friction=friction)
    terms = "generated" if rng.random() < 0.2 else "pinocchio"
    system = contact_system(Robot(model, actuated=()), [contact], terms=terms)
    speed = rng.uniform(1.5, 3.0)
    x = np.array([0.0, 0.0, speed, flat * speed])
    try:
        _simulated(system, x, 0.3)
    except IntegrationError as error:
        named = "leaves what its mode holds" in str(error)
        if jump == "curvature" or not named:
            return f"wrong: refused, {jump} {str(error)[:60]}"
        return f"right: refused, {jump} jumps"
    except HybridctlError as error:
        return f"wrong: {jump} {type(error).__name__}"
    return "right: passes, curvature jumps" if jump == "curvature" else f"wrong: {jump} silently"


def main() -> None:
    """Print what became of so many cases, from a first seed on."""
    count, first = map(int, [*sys.argv[1:], *("200", "0")[len(sys.argv) - 1 :]])
    found = Counter(judged(seed) for seed in range(first, first + count))
    for (kind, verdict), times in sorted(found.items()):
        print(f"{kind:18} {verdict:60} {times}")


if __name__ == "__main__":
    main()
