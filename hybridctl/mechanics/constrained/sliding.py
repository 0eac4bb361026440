"""Contacts that slide in a surface: in which direction, and how long until they stop or turn."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.linalg import pinv

from hybridctl.base.checks import Array
from hybridctl.base.errors import NoContactSolutionError
from hybridctl.mechanics.constrained.equations import (
    ContactRows,
    Solution,
    balanced,
    linearised,
    magnitude,
    shared,
    solve,
)
from hybridctl.mechanics.constrained.phase import ContactPhase, Friction
from hybridctl.mechanics.constrained.tolerances import CONSISTENT, STANDSTILL, STOPPED
from hybridctl.mechanics.contact_law.law import CERTIFIED
from hybridctl.mechanics.contact_law.linear_equations import RANK

_TURNS = 1e-4
"""Of the response to forces across a sliding velocity: less is that of a direction known to
rounding over `STOPPED`, where other contacts leave no motion across."""
_SLOWER = 0.1
"""Of the speed of another contact of the same two bodies: so far below `STANDSTILL` the error of a
step leaves a velocity its direction."""

_TURNED = 10  # of Newton's steps, of which three or four do
_STARTS = (0.0, 1.0, 0.5)  # of the way to where contacts accelerate: from there it is tried again


def sliding_directions(
    phase: ContactPhase, rows: ContactRows
) -> tuple[dict[int, Array], list[int]]:
    """Unit sliding velocities of contacts that slide in a surface, by closed contact.

    Besides, which of them stand still: what is found for those is a guess. Where two bodies slide
    on each other, as one of their contacts tells, only those much slower than it stand still.
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
    told = [m > STANDSTILL and speeds[k] > _SLOWER * m for k, m in zip(slow, most, strict=True)]
    return found, [k for k, is_told in zip(slow, told, strict=True) if not is_told]


class _Turn(NamedTuple):
    """What changes with the angles (n,) of sliding directions.

    Acceleration (nv, n), multipliers (m, n), and forces along the rows at fixed multipliers (r, n).
    across (r, n) are the rows across the directions, slope (n, n) says how the accelerations across
    change.
    """

    acceleration: Array
    multipliers: Array
    forces: Array
    across: Array
    slope: Array

    def making(self, accelerations: Array) -> Array:
        """The least angles that make these accelerations (n, ...) across.

        Contacts that others hold have none in any direction, and theirs stays.
        """
        return np.asarray(np.linalg.lstsq(self.slope, accelerations, rcond=RANK)[0])


def _turn(now: Solution, contacts: tuple[int, ...]) -> _Turn:
    phase, jacobian, count = now.phase, now.rows.jacobian, len(contacts)
    along, across = np.zeros((len(jacobian), count)), np.zeros((len(jacobian), count))
    friction = {slide.contact: slide.friction for slide in phase.spatial}
    kinetic = np.array([friction[k] for k in contacts])
    for j, k in enumerate(contacts):
        s = now.directions[k]
        along[phase.tangents[k], j], across[phase.tangents[k], j] = s, (-s[1], s[0])
    forces = -across * kinetic * now.forces[list(contacts)]

    def turned(y: Array) -> Array:
        _, z = balanced(now, y)
        change = np.zeros((len(y), count))
        change[list(contacts), np.arange(count)] = -kinetic * (across.T @ jacobian @ z)
        return change

    even = None if now.even is None else _turn(now.even, contacts).multipliers
    free = now.kkt.solve_mass(jacobian.T @ forces)
    m_s = linearised(now, -now.kkt.constraint @ free, turned, even)
    a_s = free + now.kkt.push @ m_s
    slowing = -along.T @ (jacobian @ now.acceleration - now.rows.target)
    slope = across.T @ jacobian @ a_s + np.diag(slowing)
    return _Turn(a_s, m_s, forces, across, slope)


def steered_derivatives(
    now: Solution, a_z: Array, m_z: Array, forces_z: Array, change_z: Array
) -> tuple[Array, Array, Array]:
    r"""Derivatives of a solution whose `steered` contacts slide the way they accelerate.

    Given are those at fixed directions: of acceleration (nv, .), multipliers (m, .), and, at fixed
    multipliers and acceleration, of forces (r, .) and J a - target (r, .). Accelerations across
    the directions stay zero, :math:`t \cdot (J_t a - \text{target}) = 0`, which says how they turn.
    """
    turn = _turn(now, now.steered)
    across_z = turn.across.T @ (now.rows.jacobian @ a_z + change_z)
    angles_z = -turn.making(across_z)
    return (
        a_z + turn.acceleration @ angles_z,
        m_z + turn.multipliers @ angles_z,
        forces_z + turn.forces @ angles_z,
    )


def turned_by_loads(now: Solution, friction: Friction) -> Solution:
    """A solution whose steered contacts slide the way they accelerate under the loads they carry.

    Directions are found with any loads that redundant contacts may share, and where these slide,
    the motion depends on them. Newton's method on the angles, with loads shared anew, from these
    directions, or else from between them and those of accelerations; one in which contacts slow
    down only where no other is found. As it is where no loads are inside the friction cones:
    contacts are not in these modes then.

    Raises `NoContactSolutionError` where it finds no such directions.
    """
    if not now.steered or not now.kkt.redundant:
        return now
    scale, against = magnitude(now), None
    for share in _STARTS:
        start = now
        if share:
            along, across = (change_of_steered(now, along) for along in (True, False))
            start = _turned(now, share * np.arctan2(across, along), friction)
        found, missed = _along_accelerations(start, friction, scale)
        if not found.inside:
            return found
        if missed <= CERTIFIED * scale:
            if (change_of_steered(found, along=True) >= -CERTIFIED * scale).all():
                return found
            against = against or found
    if against is not None:
        return against
    raise NoContactSolutionError(
        "numerical failure: no directions were found in which contacts that share loads may begin "
        f"to slide, accelerations of {missed:.2g} m/s^2 are left across them",
        numerical=True,
    )


def _along_accelerations(now: Solution, friction: Friction, scale: float) -> tuple[Solution, float]:
    """The solution with sliding directions along their accelerations, and what is left across."""
    missed = change_of_steered(now, along=False)
    for _ in range(_TURNED):
        if not now.inside or not np.abs(missed).max() > CONSISTENT * scale:  # or is no number
            break
        turn = _turn(now, now.steered)
        now = _turned(now, -turn.making(missed), friction)
        missed = change_of_steered(now, along=False)
    return now, float(np.abs(missed).max())


def _turned(now: Solution, angles: Array, friction: Friction) -> Solution:
    """The solution, loads shared, with the directions of steered contacts turned by angles."""
    directions = dict(now.directions)
    for k, angle in zip(now.steered, angles.tolist(), strict=True):
        x, y = directions[k]
        c, s = math.cos(angle), math.sin(angle)
        directions[k] = np.array([c * x - s * y, s * x + c * y])
    return shared(solve(now.phase, now.rows, directions, now.steered), friction)


def change_of_steered(now: Solution, along: bool) -> Array:
    """Accelerations (n,) of steered contacts along, or across, the directions they slide in."""
    change = now.rows.jacobian @ now.acceleration - now.rows.target
    each = [(now.directions[k], change[now.phase.tangents[k]]) for k in now.steered]
    return np.array([s @ a if along else s[0] * a[1] - s[1] * a[0] for s, a in each])


def stop_of(now: Solution, contacts: tuple[int, ...]) -> tuple[Array, Array]:
    r"""What friction does to perturbations across the directions of contacts that stop.

    It turns them away the faster the slower a contact is, by accelerations B (nv, n) at a rate
    without bound, so that none is left at the stop: perturbations of the rates r' of all rows
    change velocities by :math:`-P C^T r'`, with C (r, n) the rows across and
    :math:`P = B (C^T J B)^{-1}` (nv, n), which are returned. Where other constraints leave no
    motion across there is nothing to turn away.
    """
    turn = _turn(now, contacts)
    jacobian = turn.across.T @ now.rows.jacobian
    response = jacobian @ turn.acceleration
    alone = np.abs(jacobian @ now.kkt.solve_mass(now.rows.jacobian.T @ turn.forces)).max()
    return turn.acceleration @ pinv(response, atol=_TURNS * alone, rtol=0.0), turn.across


def sliding_times(now: Solution) -> tuple[float, float]:
    r"""Least times in s of contacts that slide in a surface.

    When the first one stops if it goes on slowing down so, :math:`|v_t| / (-d|v_t|/dt)`;
    and the time in which friction turns a sliding velocity into its own direction,
    :math:`1 / |K J M^{-1} J^T|` with K of `ContactPhase.turning`, from a standstill as at
    `STANDSTILL`.
    """
    rows, phase = now.rows, now.phase
    change = rows.jacobian @ now.acceleration - rows.target
    stops, rates = [np.inf], rows.rates.copy()
    for slide in phase.spatial:
        speed = float(np.linalg.norm(rows.rates[slide.rows]))
        if speed < STANDSTILL:
            rates[slide.rows] = STANDSTILL * now.directions[slide.contact]
        slowing = -float(now.directions[slide.contact] @ change[slide.rows])
        if slowing > 0.0:
            stops.append(max(speed, STOPPED) / slowing)
    turning = phase.turning(now.directions, rates, now.multipliers)
    fastest = np.abs(turning @ rows.jacobian @ now.kkt.solve_mass(rows.jacobian.T)).max()
    return min(stops), 1.0 / float(fastest) if fastest > 0.0 else np.inf
