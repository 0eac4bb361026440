"""What friction costs on a block and a cube, as multiples of the bare Pinocchio calls."""

from __future__ import annotations

from functools import partial

import numpy as np
import pinocchio as pin
from hybridctl.robots import block, cube
from rich.table import Table

from benchmarks.timing import Timing, measure
from hybridctl.hybrid.simulate import simulate
from hybridctl.mechanics import ContactDynamics, contact_system, time_stepping
from hybridctl.mechanics.impact import impact, impact_derivatives
from hybridctl.report import table

NONE = np.zeros(0)
COLUMNS = ["what", "us", "Pinocchio us", "multiple", "max/min"]


class Bare:
    """The Pinocchio calls that contact dynamics need, on a body of their own."""

    def __init__(self, planar: bool) -> None:
        self.model = pin.Model()
        joints = [pin.JointModelPX(), pin.JointModelPZ(), pin.JointModelRY()]
        parent = 0
        for joint in joints if planar else [pin.JointModelFreeFlyer()]:
            parent = self.model.addJoint(parent, joint, pin.SE3.Identity(), f"root {parent}")
        self.model.appendBodyToJoint(parent, pin.Inertia.Random(), pin.SE3.Identity())
        self.data = self.model.createData()
        self.q, self.v = pin.neutral(self.model), np.ones(self.model.nv)

    def contact(self):
        pin.crba(self.model, self.data, self.q)
        pin.nonLinearEffects(self.model, self.data, self.q, self.v)
        pin.computeJointJacobiansTimeVariation(self.model, self.data, self.q, self.v)

    def derivatives(self):
        self.contact()
        pin.computeRNEADerivatives(self.model, self.data, self.q, self.v, self.v)
        pin.computeForwardKinematicsDerivatives(self.model, self.data, self.q, self.v, self.v)


def cases() -> list[tuple[str, ContactDynamics, np.ndarray, np.ndarray, tuple[str, ...]]]:
    """Bodies that lie on the ground and slide or stick, with all their corners."""
    plane, space = block.Parameters(), cube.Parameters(restitution=0.0)
    planar = ContactDynamics(block.robot(plane), block.contacts(plane))
    spatial = ContactDynamics(cube.robot(space), cube.contacts(space)[::2])
    flat, q = np.array([0.0, 0.5 * plane.height, 0.0]), spatial.robot.neutral()
    q[2] = space.half_width
    still, fast = np.zeros(3), np.array([0.5, 0.0, 0.0])
    sliding = np.array([0.5, 0.2, 0.0, 0.0, 0.0, 0.0])
    return [
        ("block, both stick", planar, flat, still, ("stick",) * 2),
        ("block, both slip", planar, flat, fast, ("slip+",) * 2),
        ("cube, four stick", spatial, q, np.zeros(6), ("stick",) * 4),
        ("cube, four slip", spatial, q, sliding, ("slip",) * 4),
    ]


def calls_table(effort: dict[str, float]) -> Table:
    """Accelerations, impacts and their derivatives."""
    rows = []
    for name, dynamics, q, v, modes in cases():
        planar = len(v) == 3
        bare, at, fall = Bare(planar), tuple(range(len(modes))), v.copy()
        fall[1 if planar else 2], fall[-1] = -1.0, 0.3 * bool(v.any())
        result = impact(dynamics, q, fall, at)
        for what, ours, theirs in (
            ("acceleration", partial(dynamics.acceleration, q, v, NONE, modes), bare.contact),
            (
                "derivatives",
                partial(dynamics.acceleration_derivatives, q, v, NONE, modes),
                bare.derivatives,
            ),
            ("impact", partial(impact, dynamics, q, fall, at), bare.contact),
            (
                "derivatives of the impact",
                partial(impact_derivatives, dynamics, q, fall, result),
                bare.derivatives,
            ),
        ):
            rows.append(_row(f"{name}: {what}", measure(ours, **effort), measure(theirs, **effort)))
    return table("Friction, one call", COLUMNS, rows)


def simulators_table(effort: dict[str, float]) -> Table:
    """A cube thrown on the table, by events and by time stepping."""
    p = cube.Parameters()
    robot, contacts = cube.robot(p), cube.contacts(p)
    x0 = np.array([0, 0, 0.2, 0.22, 0.18, 0.05, 0.957, 1.0, 0.2, 0.0, 2.0, 6.0, -1.0])
    x0[3:7] /= np.linalg.norm(x0[3:7])
    system, free, span = contact_system(robot, contacts), ("open",) * 8, (0.0, 0.8)
    runs = [
        ("events", lambda: simulate(system, free, x0, span, on_zeno="rest")),
        ("time stepping, 1 ms", lambda: time_stepping(robot, contacts, x0, span)),
        ("time stepping, 0.1 ms", lambda: time_stepping(robot, contacts, x0, span, step=1e-4)),
    ]
    rows = []
    for name, run in runs:
        timing = measure(run, **effort)
        ratio = timing.best / (span[1] * 1e6)
        rows.append((name, f"{timing.best / 1e3:.0f}", f"{ratio:.2f}", f"{timing.spread:.2f}"))
    columns = ["simulator", "ms", "of real time", "max/min"]
    return table("A cube that tumbles for 0.8 s", columns, rows)


def _row(name: str, ours: Timing, bare: Timing) -> tuple[str, ...]:
    return (
        name,
        f"{ours.best:.0f}",
        f"{bare.best:.2f}",
        f"{ours.best / bare.best:.0f}",
        f"{ours.spread:.2f}, {bare.spread:.2f}",
    )
