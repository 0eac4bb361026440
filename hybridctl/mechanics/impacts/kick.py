r"""A blow on a body, and the mode in which a state of a contact system goes on.

An impulse P in N s at the point p of a body changes the velocity at once. Closed contacts act
against it, by the law of an impact without restitution:

.. math:: M (v^+ - v^-) = J_p^T P + J_n^T \Lambda_n + J_t^T \Lambda_t, \qquad
          0 \le v_n^+ \perp \Lambda_n \ge 0, \qquad |\Lambda_t| \le \mu \Lambda_n.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import GuardViolatedError
from hybridctl.mechanics.contact_law.law import OPEN, Modes
from hybridctl.mechanics.contacts.joint_contacts import gap_unit
from hybridctl.mechanics.impacts.impact import mode_by_velocity, solve_impact
from hybridctl.mechanics.modes.contact_mode import OFF_MODE
from hybridctl.mechanics.modes.dynamics import ContactDynamics
from hybridctl.mechanics.modes.selection import select_modes
from hybridctl.mechanics.terms.contact_terms import TermValues

TOUCHING_GAP = 1e-7
"""Gap in m or rad up to which a contact that does not leave its surface is taken for closed.

Impacts that are one event leave gaps of 1e-8 m at 1 m/s (the event window of 1e-8 s), and solved
postures 1e-9 m. A gap of a row of balls that is wider is crossed in an event of its own: at 1e-5 m
balls 1e-6 m apart were struck all at once, which gives other velocities."""


@dataclass(frozen=True, eq=False)
class Kick:
    """The mode and the state just after a blow.

    Attributes:
        mode: Mode of each contact.
        state: State (nx,).
        impulses: Normal impulses (c,) of all contacts against the blow, N s; zero where open.
    """

    mode: Modes
    state: Array
    impulses: Array


def apply_kick(
    dynamics: ContactDynamics, x: Array, body: str, impulse: Array, at: Array, u: Array
) -> Kick:
    """Return the mode and state just after a blow on a body; see `ContactSystem.kick`.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        x: State (q, v) before it.
        body: Name of the body.
        impulse: Impulse (3,) in N s, in world axes.
        at: Point (3,) where it acts, m, in the frame of the body.
        u: Input (nu,).

    Raises:
        GuardViolatedError: If x is inside a surface, see `_propose_modes`.
        NoContactSolutionError: If no velocity or no acceleration obeys Coulomb's law.
        SeveralContactSolutionsError: If several velocities do, and `on_several` does not choose; or
            several accelerations (a `SeveralModesError`), which it does not concern.
    """
    q, v = x[: dynamics.robot.nq], x[dynamics.robot.nq :]
    terms = dynamics.copy_terms(q, v)
    proposed = enumerate(_propose_modes(dynamics, terms))
    touching = tuple(
        i for i, mode in proposed if mode != OPEN and i not in dynamics.pressed_contacts
    )
    push = dynamics.robot.point_jacobian(q, body, at).T @ impulse
    free = v + np.linalg.solve(terms.mass, push)
    struck = terms._replace(rates=terms.jacobian @ free)
    if not touching:
        slipping = [
            mode_by_velocity(0.0, struck.rates[dynamics.contact_set.tangents[i]].tolist())
            if i in dynamics.pressed_contacts
            else OPEN
            for i in range(len(dynamics.contacts))
        ]
        modes = select_modes(dynamics, q, free, u, tuple(slipping))
        return Kick(modes, np.concatenate((q, free)), np.zeros(len(modes)))
    hit = solve_impact(dynamics, free, touching, struck, plastic=True)
    modes = select_modes(dynamics, q, hit.velocity_after, u, hit.modes)
    return Kick(modes, np.concatenate((q, hit.velocity_after)), hit.impulses)


def find_consistent_modes(dynamics: ContactDynamics, x: Array, u: Array) -> Modes:
    """Return the mode in which a state goes on; see `ContactSystem.consistent_mode`.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        x: State (q, v).
        u: Input (nu,).

    Raises:
        GuardViolatedError: If x is inside a surface, see `_propose_modes`.
        NoContactSolutionError: If no acceleration obeys Coulomb's law.
        SeveralModesError: If several do, see `select_modes`.
    """
    q, v = x[: dynamics.robot.nq], x[dynamics.robot.nq :]
    return select_modes(dynamics, q, v, u, _propose_modes(dynamics, dynamics.copy_terms(q, v)))


def _propose_modes(dynamics: ContactDynamics, terms: TermValues) -> Modes:
    """Return the modes of all contacts by gaps and velocities alone.

    A contact is closed where its gap is at least `-OFF_MODE`, which a closed mode tolerates, and at
    most `TOUCHING_GAP`, and its normal speed, either way, is at most `OFF_MODE`. It is open where
    the gap is wider, or where it leaves its surface faster. One that approaches its surface faster
    is open too, and lands at once, unless its gap is below zero: then no mode has the state.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        terms: Terms at the state.

    Raises:
        GuardViolatedError: If a contact is deeper inside its surface than `OFF_MODE`, or approaches
            it faster than that with a gap below zero.
    """
    modes: list[str] = []
    for i, contact in enumerate(dynamics.contacts):
        gap, rate, unit = float(terms.gaps[i]), float(terms.rates[i]), gap_unit(contact)
        if gap > TOUCHING_GAP or (gap >= 0.0 and abs(rate) > OFF_MODE):
            modes.append(OPEN)
        elif gap < -OFF_MODE:
            raise GuardViolatedError(
                f"x is inside the surface of contact {contact.name!r}: its gap is {gap:.6g} "
                f"{unit} and must not be negative"
            )
        elif rate < -OFF_MODE:
            raise GuardViolatedError(
                f"x is just before an impact: the gap of contact {contact.name!r} is {gap:.6g} "
                f"{unit}, its rate {rate:.6g} {unit}/s; begin above the surface, in a mode where "
                "it is open"
            )
        else:
            slip = terms.rates[dynamics.contact_set.tangents[i]].tolist()
            modes.append(mode_by_velocity(rate if rate > OFF_MODE else 0.0, slip))
    return tuple(modes)
