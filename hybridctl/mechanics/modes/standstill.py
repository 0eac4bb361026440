"""Sliding contacts with near-zero velocity: they stop, start to slide, or stick.

Velocities in a surface below `STANDSTILL` have no direction that could be trusted, unless another
contact of the same two bodies is fast. A contact without one is called slow
(`find_slip_directions`). Each slow contact gets one of three roles in the solution:

- starting: friction lets it accelerate from a standstill, and it slides that way. Where the law
  that gives this way is not solved, it is guessed from the friction that would hold the contact;
- continuing: it goes on sliding the way it goes, until it stops;
- sticking: all others.

The roles follow from the friction that would hold the contact, from the accelerations that friction
leaves, and from what is left of a motion. Besides, a slow contact is called holding if kinetic
friction could hold it. It may start all the same: when others start, or under another distribution
of redundant forces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import NoContactSolutionError
from hybridctl.mechanics.contact_law.law import CERTIFIED, STICK, Modes
from hybridctl.mechanics.contact_law.linear_equations import KKT, RANK
from hybridctl.mechanics.contact_law.solver import solve_in_states
from hybridctl.mechanics.modes.constraint_equations import (
    ContactRows,
    Solution,
    build_acceleration_problem,
)
from hybridctl.mechanics.modes.force_distribution import distribute_forces, solve_with_directions
from hybridctl.mechanics.modes.phase import ContactPhase, Friction
from hybridctl.mechanics.modes.slip_directions import (
    compute_slip_accelerations,
    turn_starting_contacts,
)
from hybridctl.mechanics.modes.tolerances import (
    LIMIT_MARGIN,
    MIN_SLIDING_SPEED,
    SAME_MOTION_COSINE,
)

_MIN_CERTAIN_SPEED = 9e-9
"""Sliding speed, m/s, at and below which a velocity may be what integration leaves of the start of
a motion: not quite `STOPPED`."""
_MIN_FORCE = 1e-10
"""Friction, N, at and below which it has no direction."""

PhaseOf = Callable[[Modes], ContactPhase]
"""Returns the phase of any modes of all contacts."""


def solve_slow_contacts(
    phase_of: PhaseOf,
    phase: ContactPhase,
    rows: ContactRows,
    directions: dict[int, Array],
    slow: list[int],
) -> Solution:
    """Return the solution in which slow contacts stop, start to slide, or stick.

    Args:
        phase_of: Phases of all modes.
        phase: Phase of the mode.
        rows: Its terms.
        directions: Directions of `find_slip_directions`.
        slow: The slow contacts, at least one.
    """
    friction = phase.friction
    moving = {k: s for k, s in directions.items() if k not in slow}
    stuck = solve_with_directions(_make_sticking_phase(phase_of, phase, slow), rows, moving)
    stuck = distribute_forces(stuck, _lower_limits(friction, slow))
    holding = _select_holding(stuck, slow, friction)
    starting, certain = _find_starting_directions(phase, stuck, slow, holding, friction)
    # What certainly slides elsewhere than it would start is in motion already.
    continuing = [
        k for k in slow if k in starting and _moves_elsewhere(phase, rows, k, starting[k])
    ]
    others = [k for k in slow if k not in starting]
    continuing += _select_continuing(phase, rows, directions, others, certain)
    if starting and continuing:
        # Contacts that go on by themselves do not start, which changes the law for the others.
        remaining = [k for k in slow if k not in continuing]
        starting, certain = _find_starting_directions(phase, stuck, remaining, holding, friction)
    starting = {k: s for k, s in starting.items() if k not in continuing}
    still = [k for k in slow if k not in continuing and k not in starting]
    still_phase = _make_sticking_phase(phase_of, phase, still)
    return _solve_starting(still_phase, rows, directions, starting, certain)


def _make_sticking_phase(
    phase_of: PhaseOf, phase: ContactPhase, contacts: Sequence[int]
) -> ContactPhase:
    """Return the phase in which some more of the closed contacts stick."""
    modes = list(phase.modes)
    for k in contacts:
        modes[phase.closed[k]] = STICK
    return phase_of(tuple(modes))


def _lower_limits(friction: Friction, slow: list[int]) -> Friction:
    """Return cones in which slow contacts certainly hold: of kinetic friction, less a margin."""
    static = friction.static.copy()
    static[slow] = (1.0 - LIMIT_MARGIN) * friction.kinetic[slow]
    return Friction(static, friction.kinetic)


def _select_holding(stuck: Solution, slow: list[int], friction: Friction) -> list[int]:
    """Return the slow contacts that kinetic friction could hold.

    stuck: the solution in which they stick, with forces inside `_lower_limits` if there are any.
    """
    tangents, normal = stuck.phase.tangents, stuck.forces[: len(stuck.phase.closed)]
    # Half the margin: forces inside the lower limits are below this one in spite of rounding.
    limit = (1.0 - 0.5 * LIMIT_MARGIN) * friction.kinetic * normal
    return [k for k in slow if np.linalg.norm(stuck.forces[tangents[k]]) < limit[k]]


def _find_starting_directions(
    phase: ContactPhase,
    stuck: Solution,
    candidates: list[int],
    holding: list[int],
    friction: Friction,
) -> tuple[dict[int, Array], bool]:
    """Return directions in which friction lets contacts accelerate from a standstill.

    The first guess is against the friction that would hold a contact: at the limit of breaking away
    it is the direction itself.

    Args:
        phase: Phase of the mode.
        stuck: The solution in which slow contacts stick, others slide along their velocities.
        candidates: The contacts that may start.
        holding: Contacts that friction could hold.
        friction: Coefficients of the closed contacts.

    Returns:
        Directions (2,) by closed contact, and whether the law was solved. If it was, they are
        directions of accelerations, without contacts that others hold. If not, they are the
        guesses, without contacts that friction could hold.
    """
    if set(holding) >= set(candidates):  # sticking together obeys the law: none starts
        return {}, True
    rows, forces = stuck.rows, stuck.forces
    guesses = [
        _find_direction(-forces[tangents]) if k in candidates else None
        for k, tangents in enumerate(phase.tangents)
    ]
    modes = tuple(phase.modes[i] for i in phase.closed)
    law = build_acceleration_problem(phase, rows, friction, stuck.kkt)
    sliding = tuple(stuck.directions.get(k, given) for k, given in enumerate(law.sliding))
    law = replace(law, sliding=sliding)
    found = solve_in_states(law, modes, guesses)
    if found is None:
        unheld = {k: s for k, s in enumerate(guesses) if s is not None and k not in holding}
        return unheld, False
    least, starting = CERTIFIED * law.magnitude, dict[int, Array]()
    for k, (s, tangents) in enumerate(zip(found.directions, phase.tangents, strict=True)):
        if s is None or k not in candidates:
            continue
        # A contact without acceleration at the solution may be held by others.
        if s @ found.rates[tangents] > least or _is_free_to_move(phase, rows, k, s):
            starting[k] = s
    return starting, True


def _find_direction(force: Array) -> Array | None:
    length = float(np.linalg.norm(force))
    return force / length if length > _MIN_FORCE else None


def _is_free_to_move(phase: ContactPhase, rows: ContactRows, k: int, along: Array) -> bool:
    """Return whether surfaces and sticking contacts let the k-th closed contact move `along`."""
    force = rows.jacobian[phase.tangents[k]].T @ along
    constraint = rows.jacobian[phase.constrained]
    compliance = rows.take_compliance(phase.constrained)
    system = KKT(rows.mass, constraint, redundant=phase.redundant, compliance=compliance)
    moved, _ = system.solve(force, np.zeros(len(constraint)))
    return bool(force @ moved > RANK * (force @ system.solve_mass(force)))


def _moves_elsewhere(phase: ContactPhase, rows: ContactRows, k: int, start: Array) -> bool:
    """Return whether the k-th closed contact certainly slides in another direction than `start`."""
    speed = _compute_speed(phase, rows, k)
    along = float(rows.rates[phase.tangents[k]] @ start)
    return speed > _MIN_CERTAIN_SPEED and along < SAME_MOTION_COSINE * speed


def _select_continuing(
    phase: ContactPhase,
    rows: ContactRows,
    directions: dict[int, Array],
    contacts: list[int],
    certain: bool,
) -> list[int]:
    """Return the slow contacts that go on sliding the way they go, without starting anew.

    If the law was solved, a contact that does not start goes on until it stops, if it slows down.
    Otherwise it is held. If the law was not solved, every contact that moves goes on.

    Args:
        phase: Phase of the mode.
        rows: Its terms.
        directions: Directions of all sliding contacts.
        contacts: Slow contacts that do not start.
        certain: Whether the law was solved, so that `contacts` are known not to start.
    """
    moving = [k for k in contacts if _compute_speed(phase, rows, k) > MIN_SLIDING_SPEED]
    if not moving or not certain:
        return moving
    change = (
        rows.jacobian @ solve_with_directions(phase, rows, directions).acceleration - rows.target
    )

    def slows_down(k: int) -> bool:
        velocity, a = rows.rates[phase.tangents[k]], change[phase.tangents[k]]
        size = np.linalg.norm(velocity) * np.linalg.norm(a)
        return bool(velocity @ a < -SAME_MOTION_COSINE * size)

    return [k for k in moving if slows_down(k)]


def _compute_speed(phase: ContactPhase, rows: ContactRows, k: int) -> float:
    return float(np.linalg.norm(rows.rates[phase.tangents[k]]))


def _solve_starting(
    phase: ContactPhase,
    rows: ContactRows,
    directions: dict[int, Array],
    starting: dict[int, Array],
    certain: bool,
) -> Solution:
    """Return the solution in which some contacts start, the way they accelerate if that is found.

    If it is not found, no contact counts as starting: those that move go on by their velocities,
    others slide along the guesses.

    Args:
        phase: Phase in which slow contacts that neither start nor continue stick.
        rows: Its terms.
        directions: Directions of all sliding contacts by their velocities.
        starting: Directions of the contacts that start.
        certain: Whether these are directions of accelerations, be it under forces that are
            distributed otherwise.
    """
    solution = solve_with_directions(phase, rows, directions | starting, tuple(starting))
    if certain:
        return solution
    # Guesses of redundant contacts may fail for their distribution of forces only: one inside the
    # cones is tried, from which they are turned into directions of accelerations.
    if solution.kkt.redundant and starting:
        solution = distribute_forces(solution, phase.friction)
        with suppress(NoContactSolutionError):
            found = turn_starting_contacts(solution, phase.friction)
            if found.inside_cones and (compute_slip_accelerations(found, along=True) >= 0.0).all():
                return found
    # No direction of an acceleration is found: what moves goes on the way it goes.
    moving = {
        k: directions[k] for k in starting if _compute_speed(phase, rows, k) > MIN_SLIDING_SPEED
    }
    if moving:  # the last entry counts: velocities before guesses
        return solve_with_directions(phase, rows, directions | starting | moving)
    return solution._replace(starting_contacts=())
