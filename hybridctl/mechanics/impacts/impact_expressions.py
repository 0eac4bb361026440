r"""Impacts of a contact system as CasADi expressions, for given modes after them.

.. math:: M (v^+ - v^-) = J^T E \Lambda, \qquad C v^+ = -e\, C v^-,

with the constrained rows C and the mix E of these modes, as in `mode_expressions`, and coefficients
e of normals and of tangents that stick. Friction of contacts that slide along one direction has the
sign of their mode. In a surface its direction is that of the velocity after the impact, for which
there is no expression. It is not checked that the impact law leads to these modes: the caller has
to see that impulses are inside their cones, and that contacts which let go have a rate that is not
negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import casadi as ca

from hybridctl.base.errors import InputError
from hybridctl.mechanics.contact_law.law import SLIP, Modes
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.contacts.contact_kinematics import ContactSet
from hybridctl.mechanics.modes.mode_expressions import (
    PhaseExpressions,
    cholesky,
    gauss,
)
from hybridctl.mechanics.multibody.expressions import Bodies, Expression
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.terms.contact_expressions import ContactPoints
from hybridctl.mechanics.terms.expression_terms import RobotConstants


class ImpactMap(NamedTuple):
    """An impact as a function of the state before it.

    Attributes:
        x: Symbol (nq + nv, 1) of the state before.
        after: State (nq + nv, 1) after it.
        impulses: Impulses (r, 1) along all rows, N s.
        rates: Rates J v+ (r, 1) of all rows after it, m/s.
    """

    x: Expression
    after: Expression
    impulses: Expression
    rates: Expression


def build_impact_map(robot: Robot, contacts: Sequence[Contact], modes: Modes) -> ImpactMap:
    """Return the impact in which closed contacts rebound or rest in given modes.

    Contacts must not be redundant, which is not checked. Restitution has no threshold here.

    Args:
        robot: The robot.
        contacts: Its contacts.
        modes: Mode of each contact.

    Raises:
        InputError: If a contact slides in a surface with friction, or no expression is known for a
            surface.
    """
    for contact, mode in zip(contacts, modes, strict=True):
        if mode == SLIP and contact.friction > 0.0:
            raise InputError(
                f"modes must not have contact {contact.name!r} slide in a surface after an impact, "
                f"got {modes}: friction opposes the velocity after it, and its direction is not "
                "known before. Let it stick or open, or leave the impact out"
            )
    members = ContactSet(robot, contacts)
    c = RobotConstants.of(robot, members)
    x = ca.SX.sym("x", c.nq + c.nv)
    q, v = x[: c.nq], x[c.nq :]
    bodies = Bodies(c.tree, q)
    jacobian = ContactPoints(bodies, c.places).jacobian()
    part = PhaseExpressions.of(members, contacts, modes)
    mix = part.make_mix(jacobian @ v)
    by_mass, _ = cholesky(bodies.mass())
    push = by_mass(jacobian.T @ mix)
    held = jacobian[part.rows, :]
    divide = gauss if part.is_sliding.any() else cholesky
    owners = [contacts[i] for i in members.owner[part.rows]]
    rebound = [1.0 + contact.restitution for contact in owners[: len(part.closed)]]
    rebound += [1.0 + contact.tangential_restitution for contact in owners[len(part.closed) :]]
    impulses = -divide(held @ push)[0](ca.DM(rebound) * (held @ v))
    after = v + push @ impulses
    return ImpactMap(x, ca.vertcat(q, after), mix @ impulses, jacobian @ after)


def build_constraints(
    robot: Robot, contacts: Sequence[Contact], modes: Modes, x: Expression
) -> Expression:
    """Return the gaps and rates that modes hold at zero, as `ContactMode.held`.

    On a surface of several pieces, gaps beyond the border of a piece are those of the next piece,
    where `ContactMode.held` keeps to the piece that the contact is on.

    Args:
        robot: The robot.
        contacts: Its contacts.
        modes: Mode of each contact.
        x: State (nq + nv, 1).

    Returns:
        Gaps (k, 1) of closed contacts, then rates (m, 1) of constrained rows.
    """
    members = ContactSet(robot, contacts)
    c = RobotConstants.of(robot, members)
    points = ContactPoints(Bodies(c.tree, x[: c.nq]), c.places)
    part = PhaseExpressions.of(members, contacts, modes)
    rates = points.jacobian() @ x[c.nq :]
    return ca.vertcat(points.gaps()[part.places], rates[part.rows])
