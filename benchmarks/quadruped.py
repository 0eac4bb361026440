"""What robots cost that stand on their feet: one call, and a run under digital control."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pinocchio as pin
from hybridctl.robots import public
from rich.table import Table

from benchmarks.bare import term_derivatives, terms
from benchmarks.timing import COLUMNS, measure, row
from hybridctl.app.report import make_table
from hybridctl.hybrid.model import Point
from hybridctl.hybrid.policy import SampledPolicy
from hybridctl.hybrid.simulate import simulate
from hybridctl.mechanics import Robot, contact_system
from hybridctl.mechanics.system import ContactSystem

NAME, HUMANOID, OPEN = "solo12", "talos", ("open",) * 4
STIFFNESS, DAMPING = 13.0, 0.39  # N m/rad and N m s/rad, of PD control of each joint
PERIOD, END = 1e-3, 0.5  # s


class BareRobot:
    """A robot in Pinocchio itself, with its feet held on the ground."""

    def __init__(self, name: str, system: ContactSystem) -> None:
        self.model = pin.buildModelFromXML(public.urdf(name), pin.JointModelFreeFlyer())
        self.data, world = self.model.createData(), pin.ReferenceFrame.LOCAL_WORLD_ALIGNED
        self.contacts = pin.StdVec_RigidConstraintModel()
        for contact in system.contacts:
            frame = self.model.frames[self.model.getFrameId(contact.frame)]
            at = frame.parentJoint, frame.placement, world
            self.contacts.append(
                pin.RigidConstraintModel(pin.ContactType.CONTACT_3D, self.model, *at)
            )
        self.scratch = pin.StdVec_RigidConstraintData()
        for contact in self.contacts:
            self.scratch.append(contact.createData())
        pin.initConstraintDynamics(self.model, self.data, self.contacts, self.scratch)
        self.settings = pin.ProximalSettings(1e-12, 0.0, 1)

    def terms(self, q: np.ndarray, v: np.ndarray) -> None:
        """The calls that deliver mass, bias and the motion of the feet."""
        terms(self.model, self.data, q, v)

    def term_derivatives(self, q: np.ndarray, v: np.ndarray) -> None:
        """The calls that deliver mass, bias and the motion of the feet, with their derivatives."""
        term_derivatives(self.model, self.data, q, v)

    def acceleration(self, q: np.ndarray, v: np.ndarray) -> np.ndarray:
        """The acceleration with feet held, by Pinocchio's compiled constraint dynamics."""
        pairs, nothing = (self.contacts, self.scratch), np.zeros(self.model.nv)
        return pin.constraintDynamics(self.model, self.data, q, v, nothing, *pairs, self.settings)

    def derivatives(self, q: np.ndarray, v: np.ndarray) -> None:
        """The acceleration with feet held, with its derivatives, by Pinocchio."""
        self.acceleration(q, v)
        pin.computeConstraintDynamicsDerivatives(
            self.model, self.data, self.contacts, self.scratch, self.settings
        )


class Standing:
    """A robot in one mode of its contacts, at a state with velocities, and its bare twin."""

    def __init__(self, name: str, modes: tuple[str, ...]) -> None:
        system = _system(name)
        nq, nv = system.robot.nq, system.robot.nv
        x, self.mode = public.start(name, height=0.0), system.mode(modes)
        x[nq:] += np.random.default_rng(0).normal(scale=0.05, size=nv)
        self.x, self.u = self.mode.project(x), np.zeros(system.robot.nu)
        self.q, self.v = self.x[:nq], self.x[nq:]
        self.name, self.bare = name, BareRobot(name, system)

    def values(self) -> Point:
        """The field and the guards."""
        point = self.mode.calc(0.0, self.x, self.u)
        _ = point.field, point.guards
        return point

    def slopes_at(self) -> Point:
        """A point whose field and guards are known, with their derivatives."""
        point = self.values()
        self.mode.calc_diff(point)
        return point

    def beside(self, call: Callable[[np.ndarray, np.ndarray], object]) -> Callable[[], object]:
        """A bare call at the same configuration and velocity."""
        return partial(call, self.q, self.v)


def calls_table(effort: dict[str, float]) -> Table:
    """Field and guards, and these with their derivatives; feet stick, some points slide."""
    feet, soles = Standing(NAME, ("stick",) * 4), Standing(HUMANOID, ("stick",) * 8)
    corners = Standing(HUMANOID, ("slip",) * 4 + ("stick",) * 4)
    expected = feet.bare.acceleration(feet.q, feet.v)
    np.testing.assert_allclose(expected, feet.values().field[len(feet.v) :], atol=1e-9)
    point = corners.slopes_at()
    jams = corners.mode.guard_names.index("sliding jams")
    alone = partial(point.guard_row, jams)
    both, more, compiled = "field and guards", "with derivatives", "constraint dynamics in C++"
    cases = [
        (feet, f"{both}, beside the terms alone", feet.values, feet.bare.terms),
        (feet, f"{both}, beside {compiled}", feet.values, feet.bare.acceleration),
        (feet, f"{more}, beside the terms alone", feet.slopes_at, feet.bare.term_derivatives),
        (feet, f"{more}, beside {compiled}", feet.slopes_at, feet.bare.derivatives),
        (soles, both, soles.values, soles.bare.terms),
        (soles, more, soles.slopes_at, soles.bare.term_derivatives),
        (corners, f"{both}, four points slide", corners.values, corners.bare.terms),
        (corners, "derivative of one guard, jamming", alone, corners.bare.term_derivatives),
    ]
    rows = [
        row(f"{at.name}: {what}", measure(ours, **effort), measure(at.beside(theirs), **effort))
        for at, what, ours, theirs in cases
    ]
    return make_table("Robots on their feet, one call", COLUMNS, rows)


def runs_table(effort: dict[str, float]) -> Table:
    """A level landing, its joints held by PD control at 1 kHz and by the same without samples."""
    system, x0 = _system(NAME), public.start(NAME)
    nq, nv = system.robot.nq, system.robot.nv
    posture = x0[7:nq].copy()

    def law(t, x):
        return STIFFNESS * (posture - x[7:nq]) - DAMPING * x[nq + 6 :]

    digital = SampledPolicy(law, PERIOD)
    rows = []
    for name, policy in ((f"{1 / PERIOD:g} Hz", digital), ("continuous", law)):
        run = partial(simulate, system, OPEN, x0, (0.0, END), policy, on_zeno="rest")
        timing = measure(run, **{**effort, "rounds": 1})
        rows.append((name, f"{timing.best / 1e6:.2f}", f"{timing.best / END / 1e6:.2f}"))
    title = f"{NAME}, {nv} velocities: level landing of {END} s under PD control"
    return make_table(title, ["control", "s", "of real time"], rows)


def _system(name: str) -> ContactSystem:
    robot = Robot.from_urdf(public.urdf(name), root="floating")
    # The libraries that are compared with have no dry friction of joints.
    return contact_system(robot, public.contacts(name), joint_friction=False)
