"""What a quadruped costs that stands on four feet: one call, and a run under digital control."""

from __future__ import annotations

from functools import partial

import numpy as np
import pinocchio as pin
from hybridctl.robots import public
from rich.table import Table

from benchmarks.bare import term_derivatives, terms
from benchmarks.timing import COLUMNS, measure, row
from hybridctl.app.report import table
from hybridctl.hybrid.policy import SampledPolicy
from hybridctl.hybrid.simulate import simulate
from hybridctl.mechanics import Robot, contact_system
from hybridctl.mechanics.system import ContactSystem

NAME, STICK, OPEN = "solo12", ("stick",) * 4, ("open",) * 4
STIFFNESS, DAMPING = 13.0, 0.39  # N m/rad and N m s/rad, of PD control of each joint
PERIOD, END = 1e-3, 0.5  # s


class BareQuadruped:
    """The robot in Pinocchio itself, with its four feet held on the ground."""

    def __init__(self, system: ContactSystem) -> None:
        self.model = pin.buildModelFromXML(public.urdf(NAME), pin.JointModelFreeFlyer())
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
        """The same with their derivatives."""
        term_derivatives(self.model, self.data, q, v)

    def acceleration(self, q: np.ndarray, v: np.ndarray) -> np.ndarray:
        """That of feet which are held, by Pinocchio's compiled constraint dynamics."""
        pairs, nothing = (self.contacts, self.scratch), np.zeros(self.model.nv)
        return pin.constraintDynamics(self.model, self.data, q, v, nothing, *pairs, self.settings)

    def derivatives(self, q: np.ndarray, v: np.ndarray) -> None:
        """The same with its derivatives."""
        self.acceleration(q, v)
        pin.computeConstraintDynamicsDerivatives(
            self.model, self.data, self.contacts, self.scratch, self.settings
        )


def calls_table(effort: dict[str, float]) -> Table:
    """Acceleration, and it with its derivatives; feet are held."""
    system = _system()
    mode, bare = system.mode(STICK), BareQuadruped(system)
    x = mode.project(public.start(NAME, height=0.0))
    u, nq = np.zeros(system.robot.nu), system.robot.nq
    q, v = x[:nq], x[nq:]
    np.testing.assert_allclose(bare.acceleration(q, v), mode.field(0.0, x, u)[len(v) :], atol=1e-9)
    field, both = partial(mode.field, 0.0, x, u), partial(mode.jacobian, 0.0, x, u)
    compiled, terms = "beside constraint dynamics in C++", "beside the terms alone"
    cases = [
        (f"acceleration, {terms}", field, bare.terms),
        (f"acceleration, {compiled}", field, bare.acceleration),
        (f"with derivatives, {terms}", both, bare.term_derivatives),
        (f"with derivatives, {compiled}", both, bare.derivatives),
    ]
    rows = [
        row(name, measure(ours, **effort), measure(partial(theirs, q, v), **effort))
        for name, ours, theirs in cases
    ]
    return table(f"{NAME}, {len(v)} velocities, four feet stick, one call", COLUMNS, rows)


def runs_table(effort: dict[str, float]) -> Table:
    """A level landing, its joints held by PD control at 1 kHz and by the same without samples."""
    system, x0 = _system(), public.start(NAME)
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
    return table(title, ["control", "s", "of real time"], rows)


def _system() -> ContactSystem:
    robot = Robot.from_urdf(public.urdf(NAME), root="floating")
    return contact_system(robot, public.contacts(NAME))
