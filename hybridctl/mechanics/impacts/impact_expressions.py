r"""Impacts of a contact system as CasADi expressions, for given modes after them.

.. math:: M (v^+ - v^-) = J^T E \Lambda, \qquad C v^+ = -e\, C v^-,

with the rows C and the mix E of what contacts do in the impact, as of modes in `mode_expressions`,
and coefficients e of normals and of tangents that stick. That these are what the impact law finds
is for others to see to: impulses inside their cones, and contacts that let go with a rate that is
not negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import casadi as ca

from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.contacts.contact_kinematics import ContactSet
from hybridctl.mechanics.coulomb.contact_states import Modes
from hybridctl.mechanics.modes.mode_expressions import (
    PhaseExpressions,
    cholesky,
    gauss,
)
from hybridctl.mechanics.multibody.expressions import Bodies, Expression
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.terms.contact_expressions import ContactPoints
from hybridctl.mechanics.terms.generated import Constants


class ImpactMap(NamedTuple):
    """The state x+ (nq + nv, 1) by x, impulses (r, 1) on all rows in N s, and rates (r, 1) then."""

    x: Expression
    after: Expression
    impulses: Expression
    rates: Expression


def impact_map(robot: Robot, contacts: Sequence[Contact], modes: Modes) -> ImpactMap:
    """The impact in which the contacts are in `modes`: those that are closed rebound or rest.

    Contacts must not be redundant. Thresholds of restitution are not looked at.
    """
    members = ContactSet(robot, contacts)
    c = Constants.of(robot, members)
    x = ca.SX.sym("x", c.nq + c.nv)
    q, v = x[: c.nq], x[c.nq :]
    bodies = Bodies(c.tree, q)
    jacobian = ContactPoints(bodies, c.places).jacobian()
    part = PhaseExpressions.of(members, contacts, modes)
    mix = part.mix(jacobian @ v)
    by_mass, _ = cholesky(bodies.mass())
    push = by_mass(jacobian.T @ mix)
    held = jacobian[part.rows, :]
    divide = gauss if part.slides.any() else cholesky
    owners = [contacts[i] for i in members.owner[part.rows]]
    rebound = [1.0 + contact.restitution for contact in owners[: len(part.closed)]]
    rebound += [1.0 + contact.tangential_restitution for contact in owners[len(part.closed) :]]
    impulses = -divide(held @ push)[0](ca.DM(rebound) * (held @ v))
    after = v + push @ impulses
    return ImpactMap(x, ca.vertcat(q, after), mix @ impulses, jacobian @ after)


def held_rows(robot: Robot, contacts: Sequence[Contact], modes: Modes, x: Expression) -> Expression:
    """Gaps (k, 1) and rates (m, 1) at x that modes hold at zero, as `ContactMode.held`."""
    members = ContactSet(robot, contacts)
    c = Constants.of(robot, members)
    points = ContactPoints(Bodies(c.tree, x[: c.nq]), c.places)
    part = PhaseExpressions.of(members, contacts, modes)
    rates = points.jacobian() @ x[c.nq :]
    return ca.vertcat(points.gaps()[part.places], rates[part.rows])
