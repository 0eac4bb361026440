"""Directions of contacts that slide in a surface: found, turned by forces, and lost at a stop."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.linalg import pinv

from hybridctl.base.checks import Array
from hybridctl.base.errors import NoContactSolutionError
from hybridctl.mechanics.contact_law.law import CERTIFIED
from hybridctl.mechanics.contact_law.linear_equations import RANK
from hybridctl.mechanics.modes.constraint_equations import (
    ContactRows,
    Solution,
    compute_magnitude,
)
from hybridctl.mechanics.modes.force_distribution import (
    differentiate_multipliers,
    distribute_forces,
    scatter_adjoint,
    solve_with_directions,
)
from hybridctl.mechanics.modes.phase import ContactPhase, Friction
from hybridctl.mechanics.modes.tolerances import CONSISTENT, STANDSTILL, STOPPED

_LEAST_RESPONSE_ACROSS = 1e-4
"""Response across a sliding velocity, relative to that of each force alone, that counts as motion.

Less is that of a direction known to rounding over `STOPPED`, where other contacts leave no motion
across."""
_LEAST_SPEED_RATIO = 0.1
"""Speed relative to the fastest contact of the same two bodies, above which a contact has a
direction although it is slower than `STANDSTILL`: the error of a step is far below that."""

_MAX_NEWTON_STEPS = 10
"""Newton steps for the directions of starting contacts, of which three or four do."""
_FIRST_TURNS = (0.0, 1.0, 0.5)
"""First guesses, as parts of the way from a direction to that of its acceleration."""


def find_slip_directions(
    phase: ContactPhase, rows: ContactRows
) -> tuple[dict[int, Array], list[int]]:
    """Return directions of contacts that slide in a surface, and which of them stand still.

    A contact slower than `STANDSTILL` stands still, unless another contact of the same two bodies
    is fast and this one is not much slower.

    Args:
        phase: Phase of a mode.
        rows: Its terms.

    Returns:
        Unit sliding velocities (2,) of all contacts that slide in a surface, by their place among
        the closed ones, and the places of those that stand still: their direction is only a guess,
        (1, 0) at zero velocity.
    """
    found: dict[int, Array] = {}
    speeds: dict[int, float] = {}
    fastest: dict[tuple[int, int], float] = {}
    for slide in phase.spatial:
        k, velocity = slide.contact, rows.rates[slide.rows]
        speed = speeds[k] = math.sqrt(velocity.dot(velocity))
        found[k] = velocity / speed if speed > 0.0 else np.array([1.0, 0.0])
        pair = phase.pairs[k]
        fastest[pair] = max(fastest.get(pair, 0.0), speed)
    slow = [k for k, speed in speeds.items() if speed <= STANDSTILL]
    most = [fastest[phase.pairs[k]] for k in slow]
    has_direction = [
        m > STANDSTILL and speeds[k] > _LEAST_SPEED_RATIO * m
        for k, m in zip(slow, most, strict=True)
    ]
    return found, [k for k, known in zip(slow, has_direction, strict=True) if not known]


class _Turn(NamedTuple):
    """What changes with the angles (n,) of n sliding directions.

    Attributes:
        acceleration: Acceleration (nv, n) per angle.
        multipliers: Multipliers (m, n).
        forces: Forces along the rows at fixed multipliers (r, n).
        across: The rows across the directions (r, n).
        slope: Accelerations across (n, n) per angle.
    """

    acceleration: Array
    multipliers: Array
    forces: Array
    across: Array
    slope: Array

    def find_angles(self, accelerations: Array) -> Array:
        """Return the least angles that make these accelerations (n, ...) across.

        Contacts that others hold accelerate in no direction; their angle is zero.
        """
        return np.asarray(np.linalg.lstsq(self.slope, accelerations, rcond=RANK)[0])


def _differentiate_by_angles(solution: Solution, contacts: tuple[int, ...]) -> _Turn:
    """Return what changes with the sliding directions of some contacts.

    Args:
        solution: A solution.
        contacts: The n closed contacts, which slide in a surface.
    """
    phase, jacobian, count = solution.phase, solution.rows.jacobian, len(contacts)
    along, across = np.zeros((len(jacobian), count)), np.zeros((len(jacobian), count))
    friction = {slide.contact: slide.friction for slide in phase.spatial}
    kinetic = np.array([friction[k] for k in contacts])
    for j, k in enumerate(contacts):
        s = solution.directions[k]
        along[phase.tangents[k], j], across[phase.tangents[k], j] = s, (-s[1], s[0])
    forces = -across * kinetic * solution.forces[list(contacts)]

    def turn_rows(y: Array) -> Array:
        _, z = scatter_adjoint(solution, y)
        change = np.zeros((len(y), count))
        change[list(contacts), np.arange(count)] = -kinetic * (across.T @ jacobian @ z)
        return change

    even = solution.even_solution
    even_s = None if even is None else _differentiate_by_angles(even, contacts).multipliers
    free = solution.kkt.solve_mass(jacobian.T @ forces)
    m_s = differentiate_multipliers(solution, -solution.kkt.constraint @ free, turn_rows, even_s)
    a_s = free + solution.kkt.push @ m_s
    slowing = -along.T @ (jacobian @ solution.acceleration - solution.rows.target)
    slope = across.T @ jacobian @ a_s + np.diag(slowing)
    return _Turn(a_s, m_s, forces, across, slope)


def differentiate_starting_contacts(
    solution: Solution, a_z: Array, m_z: Array, forces_z: Array, change_z: Array
) -> tuple[Array, Array, Array]:
    r"""Return derivatives of a solution in which contacts start the way they accelerate.

    Accelerations across the directions stay zero, :math:`t \cdot (J_t a - \text{target}) = 0`,
    which determines how the directions turn.

    Args:
        solution: A solution with `starting_contacts`.
        a_z: Derivatives (nv, z) of the acceleration at fixed directions.
        m_z: Derivatives (m, z) of the multipliers at fixed directions.
        forces_z: Derivatives (r, z) of the forces at fixed directions and multipliers.
        change_z: Derivatives (r, z) of J a - target at fixed acceleration.

    Returns:
        The first three, with the turn of the directions.
    """
    turn = _differentiate_by_angles(solution, solution.starting_contacts)
    across_z = turn.across.T @ (solution.rows.jacobian @ a_z + change_z)
    angles_z = -turn.find_angles(across_z)
    return (
        a_z + turn.acceleration @ angles_z,
        m_z + turn.multipliers @ angles_z,
        forces_z + turn.forces @ angles_z,
    )


def turn_starting_contacts(solution: Solution, friction: Friction) -> Solution:
    """Return the solution in which contacts start the way they accelerate under their own forces.

    Directions were found for any distribution of forces of redundant contacts. Where these slide,
    the forces change the directions. A solution in which contacts slow down is returned only where
    no other is found. Where no forces are inside the cones the contacts are not in these modes,
    and the solution is returned as far as it is found.

    Args:
        solution: A solution with distributed forces.
        friction: Coefficients of the closed contacts.

    Raises:
        NoContactSolutionError: If no such directions are found.
    """
    if not solution.starting_contacts or not solution.kkt.redundant:
        return solution
    scale, slowing_down = compute_magnitude(solution), None
    for share in _FIRST_TURNS:
        start = solution
        if share:
            along, across = (compute_slip_accelerations(solution, along) for along in (True, False))
            start = _turn_directions(solution, share * np.arctan2(across, along), friction)
        found, missed = _align_with_accelerations(start, friction, scale)
        if not found.inside_cones:
            return found
        if missed <= CERTIFIED * scale:
            if (compute_slip_accelerations(found, along=True) >= -CERTIFIED * scale).all():
                return found
            slowing_down = slowing_down or found
    if slowing_down is not None:
        return slowing_down
    raise NoContactSolutionError(
        "numerical failure: no directions were found in which contacts that share loads may begin "
        f"to slide, accelerations of {missed:.2g} m/s^2 are left across them",
        numerical=True,
    )


def _align_with_accelerations(
    solution: Solution, friction: Friction, scale: float
) -> tuple[Solution, float]:
    """Return the solution with directions along accelerations, and the largest one left across.

    It ends early where no forces are inside the cones. scale: of accelerations, m/s^2.
    """
    missed = compute_slip_accelerations(solution, along=False)
    for _ in range(_MAX_NEWTON_STEPS):
        # "not >" also ends where an acceleration is no number.
        if not solution.inside_cones or not np.abs(missed).max() > CONSISTENT * scale:
            break
        turn = _differentiate_by_angles(solution, solution.starting_contacts)
        solution = _turn_directions(solution, -turn.find_angles(missed), friction)
        missed = compute_slip_accelerations(solution, along=False)
    return solution, float(np.abs(missed).max())


def _turn_directions(solution: Solution, angles: Array, friction: Friction) -> Solution:
    """Return the solution, forces distributed, with directions of starting contacts turned."""
    directions = dict(solution.directions)
    for k, angle in zip(solution.starting_contacts, angles.tolist(), strict=True):
        x, y = directions[k]
        c, s = math.cos(angle), math.sin(angle)
        directions[k] = np.array([c * x - s * y, s * x + c * y])
    turned = solve_with_directions(
        solution.phase, solution.rows, directions, solution.starting_contacts
    )
    return distribute_forces(turned, friction)


def compute_slip_accelerations(solution: Solution, along: bool) -> Array:
    """Return the accelerations (n,) of starting contacts relative to their surfaces.

    Args:
        solution: A solution.
        along: Whether along the directions they slide in, or across these.
    """
    change = solution.rows.jacobian @ solution.acceleration - solution.rows.target
    each = [
        (solution.directions[k], change[solution.phase.tangents[k]])
        for k in solution.starting_contacts
    ]
    return np.array([s @ a if along else s[0] * a[1] - s[1] * a[0] for s, a in each])


def compute_stop_response(solution: Solution, contacts: tuple[int, ...]) -> tuple[Array, Array]:
    r"""Return what friction does to perturbations across the directions of contacts that stop.

    It turns them away the faster the slower a contact is, by accelerations B (nv, n) at a rate
    without bound, so that none is left at the stop: perturbations of the rates r' of all rows
    change velocities by :math:`-P C^T r'`, with C (r, n) the rows across and
    :math:`P = B (C^T J B)^{-1}`. Where other constraints leave no motion across there is nothing
    to turn away.

    Args:
        solution: The solution at the stop.
        contacts: The n closed contacts that stop, in a surface.

    Returns:
        P (nv, n) and C (r, n).
    """
    turn = _differentiate_by_angles(solution, contacts)
    rows = solution.rows.jacobian
    jacobian = turn.across.T @ rows
    response = jacobian @ turn.acceleration
    alone = np.abs(jacobian @ solution.kkt.solve_mass(rows.T @ turn.forces)).max()
    least = _LEAST_RESPONSE_ACROSS * alone
    return turn.acceleration @ pinv(response, atol=least, rtol=0.0), turn.across


def compute_sliding_times(solution: Solution) -> tuple[float, float]:
    r"""Return two times in s of contacts that slide in a surface; inf where there is none.

    Returns:
        The time in which the first one stops if it goes on slowing down so,
        :math:`|v_t| / (-d|v_t|/dt)`; and that in which friction turns a sliding velocity into its
        own direction, :math:`1 / |K J M^{-1} J^T|` with K of `ContactPhase.compute_turning`, from
        a standstill as at `STANDSTILL`.
    """
    rows, phase = solution.rows, solution.phase
    change = rows.jacobian @ solution.acceleration - rows.target
    stops, rates = [np.inf], rows.rates.copy()
    for slide in phase.spatial:
        direction = solution.directions[slide.contact]
        speed = float(np.linalg.norm(rows.rates[slide.rows]))
        if speed < STANDSTILL:
            rates[slide.rows] = STANDSTILL * direction
        slowing = -float(direction @ change[slide.rows])
        if slowing > 0.0:
            stops.append(max(speed, STOPPED) / slowing)
    turning = phase.compute_turning(solution.directions, rates, solution.multipliers)
    fastest = np.abs(turning @ rows.jacobian @ solution.kkt.solve_mass(rows.jacobian.T)).max()
    return min(stops), 1.0 / float(fastest) if fastest > 0.0 else np.inf
