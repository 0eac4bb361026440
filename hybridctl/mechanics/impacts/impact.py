r"""Impacts with Newton restitution and Coulomb friction, and their derivatives.

.. math:: M (v^+ - v^-) = J_n^T \Lambda_n + J_t^T \Lambda_t, \qquad
          0 \le \xi_n \perp \Lambda_n \ge 0, \qquad |\Lambda_t| \le \mu \Lambda_n,

with :math:`\xi = J v^+ + E J v^-`, E diagonal with e of normals and the tangential restitution of
tangents, 0 by default, and friction against :math:`\xi_t`: [RS] (2.25)-(2.28), and J. J. Moreau,
*Unilateral contact and dry friction in finite freedom dynamics* (1988). What sticks leaves with
:math:`v_t^+ = -e_t v_t^-`. The kinetic coefficient is used. With :math:`G = J M^{-1} J^T` and
:math:`D = (1 + E)^{-1} (1 - E)` the impact loses

.. math:: \tfrac12 \Lambda^T D G \Lambda
          + \sum_i \frac{\mu_i \Lambda_{n i} |\xi_{t i}|}{1 + e_{t i}},

which is not negative where all coefficients are equal, or D G + G D is semidefinite, as for a
single ball. Otherwise, as by Newton's rule with friction, it can gain energy; `energy_loss` tells.

Strong friction, and redundant contacts that slide, leave several velocities that obey the law.
Every result says whether that is excluded. Where it is not, `on_several` of the dynamics chooses:
"raise" is an error that has all of them, "dissipation" takes that of the greatest energy loss. Of
a continuum the one whose impulses have the least norm is taken either way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import hypot
from typing import NamedTuple

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError, SeveralContactSolutionsError
from hybridctl.mechanics.constrained.equations import impact_problem
from hybridctl.mechanics.constrained.phase import ContactPhase, default_slip
from hybridctl.mechanics.constrained.tolerances import NO_DIRECTION, STANDSTILL
from hybridctl.mechanics.contact_law import CoulombProblem, CoulombSolution, Uniqueness, solve
from hybridctl.mechanics.contact_law.law import CLOSED, OPEN, SLIPS, STICK, Modes
from hybridctl.mechanics.contact_law.linear_equations import KKT
from hybridctl.mechanics.modes.dynamics import ContactDynamics, OnSeveral
from hybridctl.mechanics.terms.contact_terms import TermValues

SEPARATION_SPEED = 1e-9
"""In m/s: after an impact a contact that parts faster is open; impulses count by it, too, of the
largest or of 1 N s."""
_FIXED_VELOCITY = 1e-8
"""Of the impulses' effect: what indeterminate impulses may change and still fix the velocity."""


@dataclass(frozen=True)
class ImpactResult:
    """An impact: velocity after it (nv,), impulses of all contacts in N s.

    impulses (c,): normal; friction_impulses (c, 2): tangential, along the tangents of each
    surface. states: what each contact did during the impact ("open" without an impulse),
    modes: what it does after it, by its velocity. border: contacts at the border of another
    state, where the derivative is piecewise linear. energy_loss: kinetic energy lost in J.
    uniqueness: whether it is proven or disproven that no other velocity obeys the law, or not
    established; up to 64 sets of contact states it is one of the first two. Impulses of redundant
    contacts need not be unique for that. restitution: E (r,) of all rows. terms: those of the
    equations of motion at (q, v-), from which derivatives go on.
    """

    velocity_after: Array
    impulses: Array
    friction_impulses: Array
    states: Modes
    modes: Modes
    border: tuple[int, ...]
    energy_loss: float
    uniqueness: Uniqueness
    restitution: Array = field(repr=False)
    terms: TermValues = field(repr=False)

    @property
    def law_rates(self) -> Array:
        """The rates xi = J v+ + E J v- (r,), of which the law speaks."""
        terms = self.terms
        return np.asarray(terms.jacobian @ self.velocity_after + self.restitution * terms.rates)


@dataclass(frozen=True)
class ImpactDerivatives:
    """Derivatives by z = (q, v-) of the velocity after an impact (nv, 2 nv) and of all impulses.

    impulses_z (c, 2 nv), friction_impulses_z (c, 2, 2 nv); each contact does what `states` say.
    """

    states: Modes
    velocity_z: Array
    impulses_z: Array
    friction_impulses_z: Array


def impact(
    dynamics: ContactDynamics, q: Array, v: Array, at: tuple[int, ...], *, plastic: bool = False
) -> ImpactResult:
    """The impact of the contacts `at` zero gap, those that were closed before included.

    Which of them act, and whether they stick or slip, is part of the result. `plastic`: without
    restitution.

    Raises `NoContactSolutionError` or, unless `on_several` chooses, `SeveralContactSolutionsError`,
    with the data.
    """
    return impact_of(dynamics, v, at, dynamics.kept_values(q, v), plastic=plastic)


def impact_of(
    dynamics: ContactDynamics,
    v: Array,
    at: tuple[int, ...],
    terms: TermValues,
    *,
    plastic: bool | frozenset[int] = False,
    on_several: OnSeveral | None = None,
) -> ImpactResult:
    """Return the result of `impact` where the terms at (q, v) are known.

    A contact that a constant force presses has no impulse: it sticks or slips afterwards as its
    velocity says.

    Args:
        dynamics: Of the robot with its contacts.
        v: Velocity (nv,) before the impact.
        at: Contacts that take part; those with a constant force are left out.
        terms: At (q, v), in arrays that last.
        plastic: Whether contacts do not rebound, or which of them.
        on_several: What becomes of several solutions; None for what the dynamics says.
    """
    count, each = len(dynamics.contacts), enumerate(dynamics.contacts)
    at = tuple(i for i in at if i not in dynamics.pressed)
    touching = tuple(OPEN if i not in at else STICK if c.rough else CLOSED for i, c in each)
    phase = dynamics.phase(touching)
    mass, rows, closed = terms.mass, terms.jacobian[phase.all_rows], phase.places
    restitution = dynamics.restitution_at(terms.rates)
    if plastic:
        restitution[[plastic is True or i in plastic for i in dynamics.all.owner]] = 0.0
    rebound = -(restitution * terms.rates)[phase.all_rows]
    system = KKT(mass, rows)
    problem = impact_problem(phase, system, terms.rates[phase.all_rows] - rebound, v)
    expected = {tuple(modes[i] for i in closed) for modes in dynamics.expected}
    solution = _solution(on_several or dynamics.on_several, problem, rows @ v, expected)
    after = v + system.push @ solution.forces
    impulses, friction_impulses = np.zeros(count), np.zeros((count, 2))
    impulses[closed], friction_impulses[closed] = phase.spread(solution.forces)
    states: list[str] = [OPEN] * count
    modes = states.copy()
    rates, bounces = (rows @ after).tolist(), rebound.tolist()
    for j, (i, state) in enumerate(zip(closed, solution.modes, strict=True)):
        states[i] = state
        slip = [(bounces if state == STICK else rates)[r] for r in phase.tangents[j].tolist()]
        modes[i] = mode_by_velocity(rates[j] if state == OPEN else bounces[j], slip)
    for i in dynamics.pressed:
        modes[i] = mode_by_velocity(
            0.0, (terms.jacobian[dynamics.all.tangents[i]] @ after).tolist()
        )
    result = ImpactResult(
        after,
        impulses,
        friction_impulses,
        tuple(states),
        tuple(modes),
        tuple(closed[j] for j in solution.border),
        float(-0.5 * (after - v) @ mass @ (after + v)),
        solution.uniqueness,
        restitution,
        terms,
    )
    unsure = solution.uniqueness == "not established" and not solution.border
    if unsure and set(SLIPS).intersection(states) and _undetermined(dynamics, result):
        return replace(result, uniqueness="disproven")
    return result


def _solution(
    several: OnSeveral, problem: CoulombProblem, before: Array, expected: set[Modes]
) -> CoulombSolution:
    """The solution, or of several the expected one, or that of greatest energy loss.

    before (r,): rates. expected: states of the contacts.
    """
    try:
        return solve(problem)
    except SeveralContactSolutionsError as error:
        for solution in error.solutions:
            if tuple(solution.modes) in expected:
                return solution  # type: ignore[no-any-return]
        if several == "raise":
            raise

        def loss(solution: CoulombSolution) -> float:
            f = solution.forces
            return float(-f @ (before + 0.5 * problem.delassus @ f))

        solutions: tuple[CoulombSolution, ...] = error.solutions
        return max(solutions, key=loss)


def settle(
    dynamics: ContactDynamics, v: Array, at: tuple[int, ...], terms: TermValues
) -> ImpactResult:
    """The limit of impacts of the contacts `at` that accumulate: all of them stay closed.

    A plastic impact with friction, and what it leaves of normal velocities, and of sliding
    velocities of contacts that stick, taken off: as little as the bouncing that is left out. terms:
    those at (q, v), in arrays that last.

    Raises what `impact` raises.
    """
    first = impact_of(dynamics, v, at, terms, plastic=True)
    mass, rows = terms.mass, terms.jacobian
    states = [OPEN] * len(dynamics.contacts)
    for i in at:
        if i not in dynamics.pressed:
            states[i] = STICK if first.modes[i] == STICK else CLOSED
    phase = dynamics.phase(tuple(states))
    held = rows[phase.all_rows[phase.constrained]]
    after, rest = KKT(mass, held).solve(mass @ first.velocity_after, np.zeros(len(held)))
    normal, tangential = phase.spread(phase.along_rows(rest))
    impulses, friction = first.impulses.copy(), first.friction_impulses.copy()
    impulses[phase.places] += normal
    friction[phase.places] += tangential
    modes = [
        mode_by_velocity(0.0, (rows[dynamics.all.tangents[i]] @ after).tolist())
        if i in at
        else OPEN
        for i in range(len(impulses))
    ]
    return replace(
        first,
        velocity_after=after,
        impulses=impulses,
        friction_impulses=friction,
        modes=tuple(modes),
    )


def mode_by_velocity(separation: float, slip: list[float]) -> str:
    """The mode of a touching contact by its velocity, normal and along its tangents."""
    if separation > SEPARATION_SPEED:
        return OPEN
    if len(slip) == 0:
        return CLOSED
    return STICK if hypot(*slip) <= STANDSTILL else default_slip(len(slip), slip)


def impact_derivatives(
    dynamics: ContactDynamics, q: Array, v: Array, result: ImpactResult, states: Modes | None = None
) -> ImpactDerivatives:
    """Derivatives of `impact` at its `result`, while every contact does what `states` say.

    states: by default those of the result; at a border (see `impact_pieces`) there are others.
    The equations of these states are differentiated. Friction of a contact that slides in a
    surface turns with xi_t, which adds mu Lambda_n / |xi_t| J_t' (I - s s') J_t to the mass matrix;
    at xi_t = 0 that holds its perpendicular part at zero.
    """
    nv, count = dynamics.robot.nv, len(dynamics.contacts)
    states = result.states if states is None else states
    velocity_z = np.hstack([np.zeros((nv, nv)), np.eye(nv)])
    impulses_z, friction_z = np.zeros((count, 2 * nv)), np.zeros((count, 2, 2 * nv))
    phase = dynamics.phase(states)
    if phase.closed:
        closed, size = list(phase.closed), len(dynamics.all.owner)
        mass, rows = result.terms.mass, result.terms.jacobian[phase.all_rows]
        forces, e = row_values(phase, result), result.restitution[phase.all_rows, None]
        eq = states_linearised(phase, result)
        change = result.velocity_after - v
        d = dynamics.terms.impulse_derivatives(q, change, phase.scattered(forces, size))
        change_q, momentum_q = d.rates[phase.all_rows], d.momentum.copy()
        before_q = dynamics.terms.impulse_derivatives(q, v, np.zeros(size)).rates[phase.all_rows]
        xi_z = np.hstack([change_q + before_q + e * before_q, e * rows])  # at fixed v+

        def turned(z: Array, bend: Array) -> tuple[Array, Array]:
            d = dynamics.terms.impulse_derivatives(q, z, phase.scattered(bend, size))
            by_q = d.rates[phase.all_rows]
            bent, still = d.momentum + rows.T @ eq.turning @ by_q, np.zeros((nv, nv))
            tilted = eq.mix.T @ by_q
            return np.hstack([bent, still]), np.hstack([tilted, np.zeros_like(tilted)])

        upper = np.hstack([-momentum_q, mass])
        velocity_z, m_z, xi_z = impact_changes(phase, result, eq, upper, xi_z, turned)
        rows_z = eq.mix @ m_z - eq.turning @ xi_z
        impulses_z[closed], friction_z[closed] = phase.spread(rows_z)
    return ImpactDerivatives(states, velocity_z, impulses_z, friction_z)


Turned = Callable[[Array, Array], tuple[Array, Array]]


class Linearised(NamedTuple):
    """The equations of given states: sliding directions, E, K, selection of rows, factors.

    Changes dv of velocity and dm of multipliers obey M dv - J^T (E dm - K J dv) = upper and
    select J dv = lower; rows of `select` are normals of the closed contacts first.
    """

    directions: dict[int, Array]
    mix: Array
    turning: Array
    select: Array
    system: KKT


def states_linearised(phase: ContactPhase, result: ImpactResult) -> Linearised:
    """The equations, linear in changes of velocity and impulses, at an impact's result."""
    mass, rows = result.terms.mass, result.terms.jacobian[phase.all_rows]
    rates, forces = result.law_rates[phase.all_rows], row_values(phase, result)
    directions = _directions(phase, rates, forces)
    mix = phase.mix(directions)
    turning = phase.turning(directions, rates, forces)
    select = np.eye(len(rows))[phase.constrained]
    mix, select = _standing(phase, directions, rates, mix, select)
    system = KKT(
        mass + rows.T @ turning @ rows, select @ rows, rows.T @ mix, 1.0 / (mix**2).sum(axis=0)
    )
    return Linearised(directions, mix, turning, select, system)


def _undetermined(dynamics: ContactDynamics, result: ImpactResult) -> bool:
    """Whether impulses of redundant contacts that slide can change together with the velocity."""
    phase = dynamics.phase(result.states)
    equations = states_linearised(phase, result)
    if not equations.system.redundant:
        return False
    push = result.terms.jacobian[phase.all_rows].T @ equations.mix
    change = push @ equations.system.distribution.null_projector()
    return bool(np.abs(change).max() > _FIXED_VELOCITY * np.abs(push).max())


def impact_changes(
    phase: ContactPhase,
    result: ImpactResult,
    eq: Linearised,
    upper: Array,
    xi: Array,
    turned: Turned,
) -> tuple[Array, Array, Array]:
    """Changes of velocity (nv, .), multipliers (k, .) and what the law is about, xi (r, .).

    upper (nv, .): those of M (v+ - v-) at fixed velocities and impulses, on the right-hand side;
    xi (r, .): at fixed v+. turned: see `_open_change`.
    """
    rows = result.terms.jacobian[phase.all_rows]
    dv, dm = eq.system.solve(upper - rows.T @ eq.turning @ xi, -eq.select @ xi)
    xi = xi + rows @ dv
    if not eq.system.redundant:
        return dv, dm, xi
    more, further = _open_change(phase, result, eq, xi, dm, turned)
    return dv + more, dm + further, xi + rows @ more


def _open_change(
    phase: ContactPhase, result: ImpactResult, eq: Linearised, xi: Array, m: Array, explicit: Turned
) -> tuple[Array, Array]:
    """How velocity and impulses of least norm move within what the equations leave open.

    With the multipliers m = W E' f, G' y = W^-1 m and z = A^-1 C' y, impulses are of least norm
    where W^-1 m - E' J z is zero along N, G N = 0. What the equations leave open, N alpha, moves
    velocities by V alpha, V = A^-1 J' E N, so that

        N' (W^-1 dm - D(E' J) z) + V' (D(A) z - D(C') y) = 0.

    xi (r, .), m (k, .): changes of what the law is about, and of m, without alpha. explicit: of z
    and the forces S' y - K J z (r,), where S selects C from J, the changes of A z - C' y (nv, .)
    and E' J z - W^-1 m (k, .) at the same xi, m, z and y.
    """
    rows, forces = result.terms.jacobian[phase.all_rows], row_values(phase, result)
    shares = eq.system.distribution
    pull = eq.select.T @ shares.adjoint(shares.weights * (eq.mix.T @ forces))
    z = eq.system.solve_mass(rows.T @ pull)
    open_m = shares.null
    open_v = eq.system.push @ open_m

    def left(xi: Array, m: Array) -> Array:
        """The equation's change (n, .) by changes of xi and m."""
        bent, tilted = _bending(phase, result, eq, rows @ z, xi, m)
        change = m / shares.weights[:, None] - tilted
        return np.asarray(open_m.T @ change + open_v.T @ rows.T @ bent)

    bent, tilted = explicit(z, pull - eq.turning @ rows @ z)
    wanted = left(xi, m) + open_v.T @ bent - open_m.T @ tilted
    alpha = -np.linalg.solve(left(rows @ open_v, open_m), wanted)
    return open_v @ alpha, open_m @ alpha


def _bending(
    phase: ContactPhase, result: ImpactResult, eq: Linearised, w: Array, xi: Array, m: Array
) -> tuple[Array, Array]:
    """How K w (r, .) and E' w (k, .) change where changes xi turn and m load sliding contacts."""
    bent, tilted = np.zeros_like(xi), np.zeros_like(m)
    rates = result.law_rates[phase.all_rows]
    for slide in phase.spatial:
        at, k, mu = slide.rows, slide.contact, slide.friction
        speed = float(np.linalg.norm(rates[at]))
        if speed <= NO_DIRECTION:
            continue
        s, load = eq.directions[k], mu * result.impulses[phase.closed[k]] / speed
        across = np.eye(2) - np.outer(s, s)
        turn = across @ xi[at] / speed
        tilted[k] = -mu * w[at] @ turn
        bent[at] = (
            np.outer(across @ w[at], mu * m[k] / speed - load * (s @ xi[at]) / speed)
            - load * (s @ w[at]) * turn
            - load * np.outer(s, w[at] @ turn)
        )
    return bent, tilted


def row_values(phase: ContactPhase, result: ImpactResult) -> Array:
    """Impulses along the rows of a phase (r,)."""
    values = np.zeros(len(phase.owner))
    for k, (i, tangents) in enumerate(zip(phase.closed, phase.tangents, strict=True)):
        values[k] = result.impulses[i]
        values[tangents] = result.friction_impulses[i, : len(tangents)]
    return values


def _directions(phase: ContactPhase, rates: Array, forces: Array) -> dict[int, Array]:
    """Sliding directions in surfaces: of the velocity or, at a standstill, against friction."""
    found = {}
    for slide in phase.spatial:
        along = rates[slide.rows]
        if np.linalg.norm(along) <= STANDSTILL:
            along = -forces[slide.rows]
        length = float(np.linalg.norm(along))
        if length == 0.0:
            raise InputError(
                "states must not have a contact slip in a surface where it has neither velocity "
                "nor friction: its direction is not determined"
            )
        found[slide.contact] = along / length
    return found


def _standing(
    phase: ContactPhase, directions: dict[int, Array], rates: Array, mix: Array, select: Array
) -> tuple[Array, Array]:
    """Constraints of contacts that begin to slide at xi_t = 0: none of it across s."""
    for slide in phase.spatial:
        if np.linalg.norm(rates[slide.rows]) <= STANDSTILL:
            s = directions[slide.contact]
            across = np.zeros(len(rates))
            across[slide.rows] = -s[1], s[0]
            mix, select = np.column_stack((mix, across)), np.vstack((select, across))
    return mix, select
