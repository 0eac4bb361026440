r"""Modes and impacts as equations of accelerations and forces, which are not solved for.

.. math:: M a + h - S u - J^T E m = 0, \qquad C a - c = 0,

with the terms of `mode_expressions`. Accelerations a and multipliers m are further inputs here. An
optimiser finds them with the motion. Such expressions are short, and so are their second
derivatives: without a factorisation of M they are those of recursive inverse dynamics (Featherstone
2008, table 5.1). For a quadruped of 18 velocities on two feet the Hessian has a tenth of the
operations.

Rows C of redundant contacts depend on each other, as those of the corners of a sole do. Then only
independent ones are among the equations, and m has a part that changes no acceleration: a contact
holds where any m is inside the cones, as the contact law has it. Where redundant contacts slide,
accelerations depend on that part (`has_unique_accelerations`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import casadi as ca

from hybridctl.mechanics.contact_law.law import OPEN, SLIPS, Modes
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.contacts.contact_kinematics import ContactSet
from hybridctl.mechanics.modes.mode_expressions import (
    ModeEquations,
    PhaseExpressions,
    list_friction,
)
from hybridctl.mechanics.multibody.expressions import Bodies, Expression
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.terms.contact_expressions import ContactPoints
from hybridctl.mechanics.terms.expression_terms import RobotConstants

SCALE = 1e3
"""Accelerations, forces, velocities after impacts and impulses in these symbols, relative to SI.

Solvers regularise Hessians by a multiple of the identity. In units of 1 m/s^2 and 1 N that would
hold accelerations and forces fast, which are large and only follow the motion: solo12 rose by its
feet in more than 60 iterations, instead of 15."""


class ImplicitMode(NamedTuple):
    """Field and guards of a mode, with accelerations and multipliers among the inputs.

    Attributes:
        x: Symbols (q, v), (nq + nv, 1).
        u: Symbols (input, a / SCALE, m / SCALE), (nu + nv + m, 1).
        field: The rate dx/dt (nq + nv, 1), which is the derivative of v only by the symbols a.
        forces: Forces (r, 1) along all rows of all contacts, N, zero where open.
        guards: Guards (n, 1), in the order of `ModeField.guards`.
        residual: What vanishes, (nv + r, 1): forces in N m or N, then accelerations of the r
            independent rows of the m constrained ones in m/s^2.
        is_redundant: Whether contacts may share forces in many ways, r < m.
    """

    x: Expression
    u: Expression
    field: Expression
    forces: Expression
    guards: Expression
    residual: Expression
    is_redundant: bool


class ImplicitImpact(NamedTuple):
    """An impact with its result as unknowns.

    Attributes:
        x: Symbols (q, v) before the impact, (nq + nv, 1).
        unknowns: Symbols (v+, multipliers) / SCALE, (nv + m, 1).
        after: State (nq + nv, 1) after the impact.
        impulses: Impulses (r, 1) along all rows, N s.
        rates: Rates J v+ (r, 1) of all rows after it, m/s.
        residual: What vanishes, (nv + r, 1): impulses in N m s or N s, then velocities of the r
            independent rows of the m constrained ones in m/s.
        is_redundant: Whether contacts may share impulses in many ways, r < m.
    """

    x: Expression
    unknowns: Expression
    after: Expression
    impulses: Expression
    rates: Expression
    residual: Expression
    is_redundant: bool


def has_unique_accelerations(
    robot: Robot, contacts: Sequence[Contact], modes: Modes, *, in_impact: bool = False
) -> bool:
    """Return whether all multipliers that solve the equations of a mode give the same motion.

    They do where the constrained rows are independent at sampled configurations, and where no
    closed contact slides: friction of sliding ones depends on how they share the load.

    Args:
        robot: The robot.
        contacts: Its contacts.
        modes: Mode of each contact.
        in_impact: Whether velocities after an impact are meant, and their restitution. Redundant
            contacts that rebound may contradict each other.
    """
    closed = [i for i, mode in enumerate(modes) if mode != OPEN]
    rigid = not in_impact or not any(
        contacts[i].restitution or contacts[i].tangential_restitution for i in closed
    )
    if rigid and not any(modes[i] in SLIPS for i in closed):
        return True
    return not has_dependent_rows(robot, contacts, modes)


def has_dependent_rows(robot: Robot, contacts: Sequence[Contact], modes: Modes) -> bool:
    """Return whether constrained rows of a mode depend on others at sampled configurations.

    Args:
        robot: The robot.
        contacts: Its contacts.
        modes: Mode of each contact.
    """
    members = ContactSet(robot, contacts)
    part = PhaseExpressions.of(members, contacts, modes)
    return len(_find_independent_rows(robot, members, contacts, modes)) < len(part.rows)


def _find_independent_rows(
    robot: Robot, members: ContactSet, contacts: Sequence[Contact], modes: Modes
) -> list[int]:
    """Return the constrained rows of a mode, among all rows, that span the others.

    Args:
        robot: The robot.
        members: Kinematics of its contacts.
        contacts: The contacts.
        modes: Mode of each contact.
    """
    equations = ModeEquations.of(robot, members, contacts, modes, 0.0)
    rows = equations.phase.rows
    return [rows[i] for i in equations.independent.rows]


def build_implicit_mode(
    robot: Robot, contacts: Sequence[Contact], modes: Modes, *, stabilization: float = 0.0
) -> ImplicitMode:
    """Return the equations of a mode of contacts in space.

    Guards at which sliding friction jams a contact are not supported: their place has a one.

    Args:
        robot: The robot.
        contacts: Its contacts.
        modes: Mode of each contact.
        stabilization: Rate at which residuals decay, 1/s.
    """
    members = ContactSet(robot, contacts)
    c = RobotConstants.of(robot, members, list_friction(contacts))
    part = PhaseExpressions.of(members, contacts, modes)
    x, u = ca.SX.sym("x", c.nq + c.nv), ca.SX.sym("u", c.actuation.shape[1])
    z = ca.SX.sym("z", c.nv + len(part.rows))
    a, m = SCALE * z[: c.nv], SCALE * z[c.nv :]
    q, v = x[: c.nq], x[c.nq :]
    bodies = Bodies(c.tree, q)
    points = ContactPoints(bodies, c.places)
    motion = bodies.motion(v, a)
    rows = points.rows(motion, v, a)
    forces = part.make_mix(rows.rates) @ m
    balance = bodies.inverse_dynamics(motion, points.pushes(forces))
    balance += ca.SX(c.tree.armature) * a + c.resistance(q, v) - ca.DM(c.actuation) @ u
    gaps = ca.vertcat(rows.piece_gaps, ca.SX.zeros(rows.rates.numel() - c.contact_count, 1))
    s = stabilization
    independent = _find_independent_rows(robot, members, contacts, modes)
    held = (rows.accelerations + 2.0 * s * rows.rates + s * s * gaps)[independent]
    return ImplicitMode(
        x,
        ca.vertcat(u, z),
        ca.vertcat(bodies.rate @ v, a),
        forces,
        part.make_guards(rows, forces, ca.SX(1.0)),
        ca.vertcat(balance, held),
        len(independent) < len(part.rows),
    )


def build_implicit_impact(
    robot: Robot, contacts: Sequence[Contact], modes: Modes
) -> ImplicitImpact:
    """Return the equations of the impact of `impact_expressions.build_impact_map`.

    Args:
        robot: The robot.
        contacts: Its contacts.
        modes: Mode of each contact in the impact.
    """
    members = ContactSet(robot, contacts)
    c = RobotConstants.of(robot, members)
    part = PhaseExpressions.of(members, contacts, modes)
    x = ca.SX.sym("x", c.nq + c.nv)
    z = ca.SX.sym("z", c.nv + len(part.rows))
    after, m = SCALE * z[: c.nv], SCALE * z[c.nv :]
    q, v = x[: c.nq], x[c.nq :]
    bodies = Bodies(c.tree, q)
    points = ContactPoints(bodies, c.places)
    jacobian = points.jacobian()
    impulses = part.make_mix(jacobian @ v) @ m
    motion = bodies.motion(ca.SX.zeros(c.nv, 1), after - v, weight=False)
    balance = bodies.inverse_dynamics(motion, points.pushes(impulses))
    balance += ca.SX(c.tree.armature) * (after - v)
    independent = _find_independent_rows(robot, members, contacts, modes)
    rebound = [
        contact.restitution if row < len(contacts) else contact.tangential_restitution
        for row in independent
        for contact in [contacts[members.owner[row]]]
    ]
    rates = jacobian @ after
    held = rates[independent] + ca.DM(rebound) * (jacobian @ v)[independent]
    return ImplicitImpact(
        x,
        z,
        ca.vertcat(q, after),
        impulses,
        rates,
        ca.vertcat(balance, held),
        len(independent) < len(part.rows),
    )
