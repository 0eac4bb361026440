r"""Impacts with Newton restitution and Coulomb friction, and their equations in given states.

.. math:: M (v^+ - v^-) = J_n^T \Lambda_n + J_t^T \Lambda_t, \qquad
          0 \le \xi_n \perp \Lambda_n \ge 0, \qquad |\Lambda_t| \le \mu \Lambda_n,

with :math:`\xi = J v^+ + E J v^-`. E is diagonal and has the restitution e of the normals and the
tangential restitution of the tangents, which is 0 by default. Friction opposes :math:`\xi_t`:
[RS] (2.25)-(2.28), and J. J. Moreau, *Unilateral contact and dry friction in finite freedom
dynamics* (1988). A contact that sticks leaves with :math:`v_t^+ = -e_t v_t^-`. The kinetic
coefficient is used. With :math:`G = J M^{-1} J^T` and :math:`D = (1 + E)^{-1} (1 - E)` the impact
loses the energy

.. math:: \tfrac12 \Lambda^T D G \Lambda
          + \sum_i \frac{\mu_i \Lambda_{n i} |\xi_{t i}|}{1 + e_{t i}}.

It is not negative if all coefficients are equal, or if D G + G D is semidefinite, as for a single
ball. Otherwise an impact by Newton's rule with friction may gain energy; see
`ImpactResult.energy_loss`.

Several solutions. Strong friction, and redundant contacts that slide, leave several velocities that
obey the law. Every result says whether that is excluded (`uniqueness`). Where several are found,
`on_several` of the dynamics chooses: "raise" is an error that has all of them, "dissipation" takes
the one of the greatest energy loss. Of a continuum the one whose impulses have the least norm is
taken either way.

Linearisation. `linearise_impact` gives the equations of an impact, linear in changes of velocity
and impulses, while each contact keeps its state. Friction of a contact that slides in a surface
turns with :math:`\xi_t`: this adds :math:`K = \mu \Lambda_n / |\xi_t| (I - s s^T)` along its
tangents.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import hypot
from typing import Any, NamedTuple

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError, SeveralContactSolutionsError
from hybridctl.mechanics.contact_law import CoulombProblem, CoulombSolution, Uniqueness, solve
from hybridctl.mechanics.contact_law.compiled import ImpactSolution, solve_impact_compiled
from hybridctl.mechanics.contact_law.law import CLOSED, OPEN, SLIPS, STICK, Modes
from hybridctl.mechanics.contact_law.linear_equations import KKT
from hybridctl.mechanics.contact_law.solver import MAX_ENUMERATED_SETS
from hybridctl.mechanics.modes.constraint_equations import build_impact_problem
from hybridctl.mechanics.modes.dynamics import ContactDynamics, OnSeveral
from hybridctl.mechanics.modes.phase import ContactPhase, select_slip_mode
from hybridctl.mechanics.modes.tolerances import STANDSTILL
from hybridctl.mechanics.terms.contact_terms import TermValues

SEPARATION_SPEED = 1e-9
"""Normal speed after an impact above which a contact is open, m/s.

Impulses count as zero by the same number, relative to the largest or to 1 N s."""
_SAME_VELOCITY = 1e-8
"""Change of momentum by an undetermined multiplier up to which the velocity counts as determined.

Redundant contacts leave combinations m of multipliers that no equation determines. The bound is on
the momentum J^T E m of such combinations of size 1, relative to the largest entry of J^T E. Above
it they change the velocity, so that a continuum of velocities obeys the law. A choice, above
rounding."""


@dataclass(frozen=True)
class ImpactResult:
    """An impact of contacts.

    Attributes:
        velocity_after: Velocity v+ (nv,).
        impulses: Normal impulses (c,) of all contacts in N s, zero where they take no part.
        friction_impulses: Tangential impulses (c, 2) in N s along the tangents of each surface.
        states: State of each contact during the impact; "open" where it has no impulse, unless it
            only just touches (`border`).
        modes: Mode of each contact after the impact, by its velocity. A contact that sticks or
            slips during the impact is open afterwards if it bounces.
        border: Contacts on the boundary of another state, where the derivative is piecewise linear.
        energy_loss: Kinetic energy lost from v- to v+, J; negative if it is gained.
        uniqueness: Whether it is proven or disproven that no other velocity obeys the law, or not
            established. Up to 64 sets of contact states it is one of the first two. Impulses of
            redundant contacts need not be unique for that.
        restitution: Diagonal of E (r,) for the rows of all contacts.
        terms: Terms of the equations of motion at (q, v-), which derivatives reuse.
        is_rest: Whether it is the limit of impacts that accumulate.
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
    is_rest: bool = field(default=False, repr=False)
    _linearised: dict[ContactPhase, LinearisedImpact] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the linearised equations, which are made again."""
        return {**self.__dict__, "_linearised": {}}

    def linearise(self, phase: ContactPhase) -> LinearisedImpact:
        """Return the equations in some states, linear in changes; see `linearise_impact`.

        They are made once: derivatives by the state and by parameters share them.

        Args:
            phase: The states in which they are linearised.
        """
        if phase not in self._linearised:
            self._linearised[phase] = linearise_impact(phase, self)
        return self._linearised[phase]

    @property
    def perturbed_states(self) -> Modes:
        """States of the contacts in the derivative off all boundaries: those of the impact.

        Where impacts accumulate, perturbed ones end by impulses of all contacts that are closed
        after them, also of those that have none here. Impulses of contacts that stick or have no
        friction make the same velocity in whichever order they act: the one at which their rates
        are zero. So do those of contacts that slide along lines. A sliding velocity in a surface
        turns between impulses, which this one plastic impact leaves out, as its own result does.
        """
        if not self.is_rest:
            return self.states
        pairs = zip(self.states, self.modes, strict=True)
        return tuple(mode if state == OPEN else state for state, mode in pairs)

    @property
    def law_rates(self) -> Array:
        """The rates xi = J v+ + E J v- (R,) of all rows, m/s, for which the law holds.

        Of impacts that accumulate it holds for the plastic part alone: further impulses may pull.
        """
        terms = self.terms
        return np.asarray(terms.jacobian @ self.velocity_after + self.restitution * terms.rates)

    def impulses_along_rows(self, phase: ContactPhase) -> Array:
        """Return the impulses (r,) along the rows of a phase, N s."""
        values = np.zeros(len(phase.owner))
        for k, (i, tangents) in enumerate(zip(phase.closed, phase.tangents, strict=True)):
            values[k] = self.impulses[i]
            values[tangents] = self.friction_impulses[i, : len(tangents)]
        return values


def impact(
    dynamics: ContactDynamics, q: Array, v: Array, at: tuple[int, ...], *, plastic: bool = False
) -> ImpactResult:
    """Return the impact of contacts whose gap is zero: velocity after it, impulses and modes.

    Which of them act, and whether they stick or slip, is part of the result.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        q: Configuration (nq,).
        v: Velocity (nv,) before the impact.
        at: Contacts at zero gap, those that were closed before included.
        plastic: Whether restitution is left out.

    Raises:
        NoContactSolutionError: If no velocity obeys the law; the error has the data.
        SeveralContactSolutionsError: If several do, none is planned (`expected_modes`), and
            `on_several` is "raise".
    """
    return solve_impact(dynamics, v, at, dynamics.copy_terms(q, v), plastic=plastic)


def solve_impact(
    dynamics: ContactDynamics,
    v: Array,
    at: tuple[int, ...],
    terms: TermValues,
    *,
    plastic: bool | frozenset[int] = False,
    on_several: OnSeveral | None = None,
) -> ImpactResult:
    """Return the result of `impact` where the terms at (q, v) are known.

    Dry friction of joints is a contact that a constant force presses (`pressed_contacts`). Such a
    contact has no impulse: its velocity after the impact decides whether it sticks or slips.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        v: Velocity (nv,) before the impact.
        at: Contacts that take part; those with a constant force are left out.
        terms: Terms at (q, v), in arrays that no later call overwrites.
        plastic: True if no contact rebounds, or the indices of the contacts that do not. Their
            restitution counts as zero.
        on_several: What becomes of several solutions; None for the setting of the dynamics.

    Raises:
        NoContactSolutionError: If no velocity obeys the law; the error has the data.
        SeveralContactSolutionsError: If several do, none is planned (`expected_modes`), and
            `on_several` is "raise".
    """
    if dynamics.pressed_contacts:
        at = tuple(i for i in at if i not in dynamics.pressed_contacts)
    phase = dynamics.phase(_list_touching_states(dynamics, at))
    restitution = dynamics.row_restitution
    if plastic:
        owner = dynamics.contact_set.owner
        restitution = restitution.copy()
        restitution[[plastic is True or i in plastic for i in owner.tolist()]] = 0.0
    found = solve_impact_compiled(
        (terms.mass, terms.jacobian, terms.rates, v),
        (restitution, dynamics.row_threshold, phase.friction.kinetic),
        len(dynamics.contacts),
        dynamics.contact_set.owner,
        phase.all_rows,
        phase.tangents,
        MAX_ENUMERATED_SETS,
    )
    if found is None:
        found = _solve_in_python(dynamics, phase, v, terms, restitution, on_several)
    states, modes = _list_states_and_modes(dynamics, phase, terms, found)
    border = tuple([phase.closed[j] for j in found.border])
    result = ImpactResult(
        found.velocity_after,
        found.impulses,
        found.friction_impulses,
        states,
        modes,
        border,
        found.energy_loss,
        found.uniqueness,
        found.restitution,
        terms,
    )
    # With many contacts the solver does not establish uniqueness. Redundant contacts that slide may
    # leave a continuum of velocities, which the equations in these states show. On a boundary other
    # states hold as well, which these equations leave out.
    unsettled = found.uniqueness == "not established" and not border
    if unsettled and set(SLIPS).intersection(states) and _has_open_velocity(dynamics, result):
        return replace(result, uniqueness="disproven")
    return result


def _solve_in_python(
    dynamics: ContactDynamics,
    phase: ContactPhase,
    v: Array,
    terms: TermValues,
    restitution: Array,
    on_several: OnSeveral | None,
) -> ImpactSolution:
    """Return what `solve_impact_compiled` returns, for all impacts: its reference.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        phase: Phase in which the contacts of the impact are closed.
        v: Velocity (nv,) before the impact.
        terms: Terms at (q, v).
        restitution: Coefficients (R,) of rows that rebound.
        on_several: What becomes of several solutions, as in `solve_impact`.

    Raises:
        NoContactSolutionError: If there is no solution.
        SeveralContactSolutionsError: If there are several and none is chosen.
    """
    mass, rows, closed = terms.mass, terms.jacobian[phase.all_rows], phase.places
    restitution = restitution * dynamics.is_rebounding(terms.rates)
    rebound = -(restitution * terms.rates)[phase.all_rows]
    system = KKT(mass, rows)
    problem = build_impact_problem(phase, system, terms.rates[phase.all_rows] - rebound, v)
    expected = {tuple(modes[i] for i in closed) for modes in dynamics.expected_modes}
    solution = _choose_solution(on_several or dynamics.on_several, problem, rows @ v, expected)
    after = v + system.push @ solution.forces
    count = len(dynamics.contacts)
    impulses, friction_impulses = np.zeros(count), np.zeros((count, 2))
    impulses[closed], friction_impulses[closed] = phase.split_rows(solution.forces)
    return ImpactSolution(
        restitution,
        after,
        impulses,
        friction_impulses,
        (rows @ after).tolist(),
        float(-0.5 * (after - v) @ mass @ (after + v)),
        solution.modes,
        solution.border,
        solution.uniqueness,
    )


def _list_states_and_modes(
    dynamics: ContactDynamics, phase: ContactPhase, terms: TermValues, found: ImpactSolution
) -> tuple[Modes, Modes]:
    """Return the state of each contact in an impact, and its mode after it.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        phase: Phase in which the contacts of the impact are closed.
        terms: Terms before the impact.
        found: The impact.
    """
    states: list[str] = [OPEN] * len(dynamics.contacts)
    modes, rates, all_rows = states.copy(), found.rates_after, phase.all_rows.tolist()
    restitution, before = found.restitution.tolist(), terms.rates.tolist()
    bounces = [-(restitution[row] * before[row]) for row in all_rows]
    for j, (i, state) in enumerate(zip(phase.closed, found.states, strict=True)):
        states[i] = state
        # Where the law determines a rate it is the rebound -e v-: the normal rate of a contact that
        # is not open, and the slip of one that sticks. This value decides, as the computed J v+ has
        # rounding. The law leaves the other rates free: J v+ decides.
        slip = [(bounces if state == STICK else rates)[r] for r in phase.tangents[j].tolist()]
        modes[i] = mode_by_velocity(rates[j] if state == OPEN else bounces[j], slip)
    for i in dynamics.pressed_contacts:
        # They stay closed, and slip as the impulses of others make them.
        along = terms.jacobian[dynamics.contact_set.tangents[i]]
        modes[i] = mode_by_velocity(0.0, (along @ found.velocity_after).tolist())
    return tuple(states), tuple(modes)


def _list_touching_states(dynamics: ContactDynamics, at: tuple[int, ...]) -> Modes:
    """Return states that select all rows of just the contacts `at` for the law of impact.

    A rough contact never slips, so it sticks; the others are closed, and the law decides.
    """
    each = enumerate(dynamics.contacts)
    return tuple(OPEN if i not in at else STICK if c.rough else CLOSED for i, c in each)


def _choose_solution(
    on_several: OnSeveral, problem: CoulombProblem, before: Array, expected: set[Modes]
) -> CoulombSolution:
    """Return the solution of the law; of several the expected one, or that of most energy loss.

    A solution that a plan expects comes first, whatever `on_several` is: a planned motion is to be
    simulated as it was planned.

    Args:
        on_several: What becomes of several solutions of which none is expected: "raise", or
            "dissipation" for that of the greatest energy loss.
        problem: The law of the impact.
        before: Rates J v- (r,).
        expected: States of the contacts of the problem that a plan expects.

    Raises:
        NoContactSolutionError: If there is no solution.
        SeveralContactSolutionsError: If there are several and none is chosen.
    """
    try:
        return solve(problem)
    except SeveralContactSolutionsError as error:
        for solution in error.solutions:
            if tuple(solution.modes) in expected:
                return solution  # type: ignore[no-any-return]
        if on_several == "raise":
            raise

        def energy_loss(solution: CoulombSolution) -> float:
            """Return -f.(J v- + G f / 2), the kinetic energy lost by impulses f, J."""
            f = solution.forces
            return float(-f @ (before + 0.5 * problem.delassus @ f))

        solutions: tuple[CoulombSolution, ...] = error.solutions
        return max(solutions, key=energy_loss)


def solve_accumulated_impacts(
    dynamics: ContactDynamics, v: Array, at: tuple[int, ...], terms: TermValues
) -> ImpactResult:
    """Return the limit of impacts that accumulate (Zeno): all these contacts stay closed.

    It is a plastic impact with friction. A contact that would part after it is closed by further
    impulses, and one that sticks after it keeps no sliding velocity. Where the impacts accumulate,
    these impulses are as small as the bounces that are left out. Elsewhere they may be large, and
    pull (test_impulses_that_close_a_contact_which_would_part_count_in_the_energy).

    A contact that leaves at the speed w is pulled back by the impulse that cancels w: its bounces
    push by so much less than the contact force does meanwhile. This impulse has the friction of a
    contact that slides, as the force has: the rest then differs from the bounces by terms of second
    order in w.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        v: Velocity (nv,) before the impact.
        at: Contacts that take part.
        terms: Terms at (q, v), in arrays that no later call overwrites.

    Returns:
        The result with all impulses. Contacts on the boundary and uniqueness are those of the
        plastic impact.

    Raises:
        NoContactSolutionError: If no velocity obeys the law; the error has the data.
        SeveralContactSolutionsError: If several do, none is planned (`expected_modes`), and
            `on_several` is "raise".
    """
    first = solve_impact(dynamics, v, at, terms, plastic=True)
    mass, rows = terms.mass, terms.jacobian
    phase = dynamics.phase(_list_resting_states(dynamics, at, first))
    closed = rows[phase.all_rows]
    rates = closed @ first.velocity_after
    mix = phase.compute_mix(_find_sliding_directions(phase, rates, np.zeros(len(rates))))
    constrained, weights = closed[phase.constrained], 1.0 / (mix**2).sum(axis=0)
    after, further = KKT(mass, constrained, closed.T @ mix, weights).solve(
        mass @ first.velocity_after, np.zeros(len(constrained))
    )
    normal, tangential = phase.split_rows(mix @ further)
    impulses, friction = first.impulses.copy(), first.friction_impulses.copy()
    impulses[phase.places] += normal
    friction[phase.places] += tangential
    modes = [
        mode_by_velocity(0.0, (rows[dynamics.contact_set.tangents[i]] @ after).tolist())
        if i in at
        else OPEN
        for i in range(len(impulses))
    ]
    least = SEPARATION_SPEED * max(1.0, float(np.abs(impulses).max(initial=0.0)))
    return replace(
        first,
        velocity_after=after,
        impulses=impulses,
        friction_impulses=friction,
        # A contact that only a further impulse closes has no state of the plastic impact.
        states=tuple(
            mode if state == OPEN and abs(impulse) > least else state
            for state, mode, impulse in zip(first.states, modes, impulses.tolist(), strict=True)
        ),
        modes=tuple(modes),
        energy_loss=float(-0.5 * (after - v) @ mass @ (after + v)),
        is_rest=True,
    )


def _list_resting_states(
    dynamics: ContactDynamics, at: tuple[int, ...], first: ImpactResult
) -> Modes:
    """Return the states in which further impulses close the contacts of an accumulation.

    A contact sticks if it does so after the plastic impact. Another one slides as it does then; it
    is only held at its surface if it has no sliding velocity, which would direct its friction.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        at: Contacts that take part.
        first: The plastic impact.
    """
    states: list[str] = [OPEN] * len(dynamics.contacts)
    for i in set(at).difference(dynamics.pressed_contacts):
        rows = first.terms.jacobian[dynamics.contact_set.tangents[i]]
        slip = (rows @ first.velocity_after).tolist()
        states[i] = STICK if first.modes[i] == STICK else CLOSED
        if states[i] == CLOSED and hypot(*slip) > STANDSTILL:
            states[i] = select_slip_mode(len(slip), slip)
    return tuple(states)


def mode_by_velocity(separation: float, slip: list[float]) -> str:
    """Return the mode of a touching contact by its velocity.

    Args:
        separation: Normal speed, m/s, positive where the contact opens.
        slip: Velocity along its tangents, m/s.
    """
    if separation > SEPARATION_SPEED:
        return OPEN
    if len(slip) == 0:
        return CLOSED
    return STICK if hypot(*slip) <= STANDSTILL else select_slip_mode(len(slip), slip)


class LinearisedImpact(NamedTuple):
    """The equations of an impact in given states, linear in changes dv and dm.

    Changes dv of the velocity and dm of the multipliers obey M dv - J^T (E dm - K J dv) = upper and
    C J dv = lower. The caller gives the right sides `upper` (nv,) and `lower` (k,) to
    `system.solve`; they are what other changes of the impact add. C selects the rates that the
    states of the contacts determine.

    Attributes:
        rates: The rates xi (r,) after the impact, m/s.
        impulses: Impulses (r,) along the rows, N s.
        directions: Sliding direction of each contact that slides in a surface, by its place among
            the closed ones.
        mix: E (r, k), which makes impulses along all rows of multipliers.
        turning: K (r, r), by which friction turns with the sliding velocity, kg.
        select: C (k, r): normals of the closed contacts, then tangents of sticking ones. Then
            one row for each contact that begins to slide in a surface from rest, the direction
            across its sliding direction s: its rate is held at zero.
        system: The factorised equations, with mass M + J^T K J.
    """

    rates: Array
    impulses: Array
    directions: dict[int, Array]
    mix: Array
    turning: Array
    select: Array
    system: KKT


def linearise_impact(phase: ContactPhase, result: ImpactResult) -> LinearisedImpact:
    """Return the equations of an impact, linear in changes of velocity and impulses.

    Args:
        phase: The states in which they are linearised.
        result: The impact.

    Raises:
        InputError: If a contact slides in a surface with neither velocity nor friction, so that its
            direction is not determined.
    """
    mass, rows = result.terms.mass, result.terms.jacobian[phase.all_rows]
    rates, impulses = result.law_rates[phase.all_rows], result.impulses_along_rows(phase)
    directions = _find_sliding_directions(phase, rates, impulses)
    mix = phase.compute_mix(directions)
    turning = phase.compute_turning(directions, rates, impulses)
    select = np.eye(len(rows))[phase.constrained]
    for slide, along in zip(phase.spatial, rates[phase.spatial_rows].tolist(), strict=True):
        # At xi_t = 0, K would be infinite. In the limit the velocity across s is held at zero: one
        # more row of C, and in E one more multiplier, the impulse across s.
        if hypot(*along) <= STANDSTILL:
            s = directions[slide.contact]
            across = np.zeros(len(rates))
            across[slide.rows] = -s[1], s[0]
            mix, select = np.column_stack((mix, across)), np.vstack((select, across))
    stiffened = mass + rows.T @ turning @ rows if phase.spatial else mass
    system = KKT(stiffened, select @ rows, rows.T @ mix, 1.0 / (mix**2).sum(axis=0))
    return LinearisedImpact(rates, impulses, directions, mix, turning, select, system)


def _find_sliding_directions(
    phase: ContactPhase, rates: Array, impulses: Array
) -> dict[int, Array]:
    """Return the sliding direction (2,) of each contact that slides in a surface, by its place.

    It is that of the velocity. Where a contact begins to slide from rest, friction, which opposes
    the slip to come, tells the direction.

    Args:
        phase: The states of the contacts.
        rates: xi (r,) along the rows of the phase.
        impulses: Impulses (r,) along the same rows.

    Raises:
        InputError: If a contact has neither velocity nor friction.
    """
    found = {}
    rows = phase.spatial_rows
    friction = (-impulses[rows]).tolist()
    for place, along, force in zip(
        phase.spatial_contacts, rates[rows].tolist(), friction, strict=True
    ):
        way = force if hypot(*along) <= STANDSTILL else along
        length = hypot(*way)
        if length == 0.0:
            raise InputError(
                "states must not have a contact slip in a surface where it has neither velocity "
                "nor friction: its direction is not determined"
            )
        found[place] = np.array([way[0] / length, way[1] / length])
    return found


def _has_open_velocity(dynamics: ContactDynamics, result: ImpactResult) -> bool:
    """Return whether a continuum of velocities obeys the equations in the states of a result.

    Sliding redundant contacts leave combinations of impulses that no rate determines. In most cases
    these do not change the momentum J^T E m. Where they do, the velocity is open.
    """
    phase = dynamics.phase(result.states)
    equations = linearise_impact(phase, result)
    if not equations.system.redundant:
        return False
    force = result.terms.jacobian[phase.all_rows].T @ equations.mix
    change = force @ equations.system.distribution.null_projector()
    return bool(np.abs(change).max() > _SAME_VELOCITY * np.abs(force).max())
