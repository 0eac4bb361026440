"""What friction costs on a block and a cube, beside the bare Pinocchio calls, and in joints."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import pinocchio as pin
from hybridctl.robots import block, cube
from rich.table import Table

from benchmarks.bare import term_derivatives, terms
from benchmarks.timing import COLUMNS, measure, row
from hybridctl.app.report import make_table
from hybridctl.hybrid.simulate import simulate
from hybridctl.mechanics import Contact, Plane, Robot, contact_system, time_stepping
from hybridctl.mechanics.impacts.impact import impact
from hybridctl.mechanics.impacts.impact_derivatives import differentiate_impact
from hybridctl.mechanics.system import ContactSystem

NONE, STANDING = np.zeros(0), 2000.0


class BareFriction:
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
        terms(self.model, self.data, self.q, self.v)

    def derivatives(self):
        term_derivatives(self.model, self.data, self.q, self.v)


class Case(NamedTuple):
    """A body on the ground: its system, mode, state, and the velocity of an impact."""

    system: ContactSystem
    mode: tuple[str, ...]
    state: np.ndarray
    fall: np.ndarray


def cases() -> dict[str, Case]:
    """Bodies that lie on the ground and slide or stick, with all their corners."""
    plane, space = block.BlockParameters(), cube.CubeParameters(restitution=0.0)
    planar = contact_system(block.robot(plane), block.contacts(plane))
    spatial = contact_system(cube.robot(space), cube.contacts(space)[::2])
    flat, q = np.array([0.0, 0.5 * plane.height, 0.0]), spatial.robot.neutral()
    q[2] = space.half_width
    fast, sliding = np.array([0.5, 0.0, 0.0]), np.array([0.5, 0.2, 0.0, 0.0, 0.0, 0.0])
    drop, dive = np.array([0.5, -1.0, 0.3]), np.array([0.5, 0.2, -1.0, 0.0, 0.0, 0.3])
    still, down = np.zeros(6), np.array([0.0, 0.0, -1.0, 0.0, 0.0, 0.0])
    return {
        "block, both stick": Case(
            planar, ("stick",) * 2, np.append(flat, still[:3]), np.array([0.0, -1.0, 0.0])
        ),
        "block, both slip": Case(planar, ("slip+",) * 2, np.append(flat, fast), drop),
        "cube, four stick": Case(spatial, ("stick",) * 4, np.append(q, still), down),
        "cube, four slip": Case(spatial, ("slip",) * 4, np.append(q, sliding), dive),
    }


def calls_table(effort: dict[str, float]) -> Table:
    """Field, impact and their derivatives, as runs evaluate them."""
    rows = []
    for name, case in cases().items():
        mode, dynamics = case.system.mode(case.mode), case.system.dynamics
        q, at = case.state[: dynamics.robot.nq], tuple(range(len(case.mode)))
        bare, result = BareFriction(len(case.fall) == 3), impact(dynamics, q, case.fall, at)
        for what, ours, theirs in (
            ("field", partial(mode.field, 0.0, case.state, NONE), bare.contact),
            ("derivatives", partial(mode.jacobian, 0.0, case.state, NONE), bare.derivatives),
            ("impact", partial(impact, dynamics, q, case.fall, at), bare.contact),
            (
                "derivatives of the impact",
                partial(differentiate_impact, dynamics, q, case.fall, result),
                bare.derivatives,
            ),
        ):
            rows.append(row(f"{name}: {what}", measure(ours, **effort), measure(theirs, **effort)))
    return make_table("Friction, one call", COLUMNS, rows)


def simulators_table(effort: dict[str, float]) -> Table:
    """A cube thrown on the table, by events and by time stepping."""
    p = cube.CubeParameters()
    robot, contacts = cube.robot(p), cube.contacts(p)
    x0 = np.array([0, 0, 0.2, 0.22, 0.18, 0.05, 0.957, 1.0, 0.2, 0.0, 2.0, 6.0, -1.0])
    x0[3:7] /= np.linalg.norm(x0[3:7])
    system, free, span = contact_system(robot, contacts), ("open",) * 8, (0.0, 0.8)
    runs = [
        ("events", lambda: simulate(system, free, x0, span, on_zeno="rest")),
        ("time stepping, 1 ms", lambda: time_stepping(robot, contacts, x0, span)),
        ("time stepping, 0.1 ms", lambda: time_stepping(robot, contacts, x0, span, step=1e-4)),
    ]
    lying = cases()["cube, four stick"]
    rest = partial(simulate, lying.system, lying.mode, lying.state)
    runs.append((f"events, standing {STANDING:g} s", lambda: rest((0.0, STANDING))))
    rows = []
    for name, run in runs:
        timing = measure(run, **effort)
        ratio = timing.best / ((STANDING if "standing" in name else span[1]) * 1e6)
        rows.append((name, f"{timing.best / 1e3:.0f}", f"{ratio:.2g}", f"{timing.spread:.2f}"))
    columns = ["simulator", "ms", "of real time", "max/min"]
    return make_table("A cube that tumbles for 0.8 s, or stands", columns, rows)


ARM = """<robot name="arm"><link name="base"/>{link}<joint name="shoulder" type="revolute">
<parent link="base"/><child link="upper"/><axis xyz="0 1 0"/>
<limit lower="-9" upper="9" effort="9" velocity="9"/></joint><joint name="elbow" type="revolute">
<parent link="upper"/><child link="lower"/><origin xyz="0 0 -1"/><axis xyz="0 1 0"/>
<limit lower="-0.7" upper="0.4" effort="9" velocity="9"/></joint></robot>""".format(
    link="".join(
        f'''<link name="{name}"><inertial><origin xyz="0 0 -0.5"/><mass value="1"/>
<inertia ixx="0.1" iyy="0.1" izz="0.1" ixy="0" ixz="0" iyz="0"/></inertial></link>'''
        for name in ("upper", "lower")
    )
)
SWING = 1.5  # s


def joints_table(effort: dict[str, float]) -> Table:
    """An arm of two joints that swings, by compiled modes and by the terms of Pinocchio.

    Without contacts of joints its one contact is a floor that it does not reach.
    """
    floor = Contact("tip", "lower", Plane((0.0, 0.0, -9.0), (0.0, 0.0, 1.0)))
    both = Robot.from_urdf(ARM, friction={"shoulder": 0.4, "elbow": 0.25})
    cases = [
        ("neither", Robot.from_urdf(ARM), [floor], False),
        ("stops of the elbow", Robot.from_urdf(ARM), [], {"elbow": 0.3}),
        ("dry friction", both, [], False),
        ("both", both, [], {"elbow": 0.3}),
    ]
    rows = []
    for name, robot, contacts, stops in cases:
        timings = []
        for choice in ("auto", "pinocchio"):
            system = contact_system(robot, contacts, joint_stops=stops, terms=choice)
            run = partial(simulate, system, None, np.array([1.5, 0.2, 0.0, 1.0]), (0.0, SWING))
            events = len(run().events)
            timings.append(measure(run, **effort))
        ours, slow = timings
        spread = f"{ours.spread:.2f}, {slow.spread:.2f}"
        ratio = f"{slow.best / ours.best:.1f}"
        rows.append((name, str(events), f"{ours.best / 1e3:.1f}", ratio, spread))
    columns = ["contacts of joints", "events", "ms", "by Pinocchio, multiple", "max/min"]
    return make_table(f"An arm of two joints that swings for {SWING} s", columns, rows)
