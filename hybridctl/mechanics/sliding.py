"""Contacts that slide in a surface: in which direction, and how long until they stop or turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hybridctl.checks import Array
from hybridctl.mechanics.coulomb.law import STICK, Modes, unit
from hybridctl.mechanics.coulomb.solve import polish
from hybridctl.mechanics.geometry import RowMotion
from hybridctl.mechanics.phase import STANDSTILL, STOPPED, Phase

if TYPE_CHECKING:
    from hybridctl.mechanics.dynamics import ContactDynamics

_BORDER = 1e-6


def sliding_directions(
    dynamics: ContactDynamics, phase: Phase, q: Array, v: Array, u: Array, rows: RowMotion
) -> dict[int, Array]:
    """Unit sliding velocities of contacts that slide in a surface, by closed contact."""
    found: dict[int, Array] = {}
    starting = []
    for slide in phase.spatial:
        velocity = rows.rate[slide.rows]
        speed = float(np.linalg.norm(velocity))
        if speed <= STANDSTILL:
            starting.append(slide.contact)
        found[slide.contact] = velocity / speed if speed > 0.0 else np.array([1.0, 0.0])
    if starting:
        found.update(_beginnings(dynamics, phase, q, v, u, starting))
    return found


def _beginnings(
    dynamics: ContactDynamics, phase: Phase, q: Array, v: Array, u: Array, starting: list[int]
) -> dict[int, Array]:
    """Directions in which friction lets contacts accelerate from a standstill, if it does.

    The first guess is against the friction that would hold them: at the border of breaking
    away it is the direction itself. Where less than kinetic friction holds all, none moves.
    """
    modes = [phase.modes[i] for i in phase.closed]
    held = list(phase.modes)
    for k in starting:
        held[phase.closed[k]] = STICK
    sticking = dynamics.solve(dynamics.phase(tuple(held)), q, v, u)
    forces = sticking.mix @ sticking.multipliers
    tangents, closed = phase.contacts.tangents, list(phase.closed)
    limit = (1.0 - _BORDER) * dynamics.friction[closed] * forces[: len(modes)]
    stays = [k for k in starting if np.linalg.norm(forces[tangents[k]]) < limit[k]]
    if len(stays) == len(starting):
        return {}
    guesses = [
        unit(-forces[rows], None) if k in starting else None for k, rows in enumerate(tangents)
    ]
    mass = dynamics.robot.mass_matrix(q)
    drive = dynamics.robot.actuation @ u - dynamics.robot.bias(q, v)
    problem = dynamics.problem(phase, sticking.rows, mass, drive, dynamics.targets(sticking.rows))
    solution = polish(problem, tuple(modes), guesses)
    if solution is not None:
        guesses = list(solution.directions)
    else:
        guesses = [None if k in stays else guess for k, guess in enumerate(guesses)]
    return {k: s for k, s in enumerate(guesses) if k in starting and s is not None}


def sliding_times(
    dynamics: ContactDynamics, q: Array, v: Array, u: Array, modes: Modes
) -> tuple[float, float]:
    r"""Least times in s of contacts that slide in a surface, infinity where there are none.

    When the first one stops if it goes on slowing down so, :math:`|v_t| / (-d|v_t|/dt)`;
    and the time in which friction turns a sliding velocity into its own direction,
    :math:`1 / |K J M^{-1} J^T|` with K of `Phase.turning`, from a standstill as at `STANDSTILL`.
    """
    phase = dynamics.phase(modes)
    if not phase.spatial:
        return np.inf, np.inf
    now = dynamics.solve(phase, q, v, u)
    change = now.rows.jacobian @ now.acceleration + now.rows.drift
    stops, rates = [np.inf], now.rows.rate.copy()
    for slide in phase.spatial:
        speed = float(np.linalg.norm(now.rows.rate[slide.rows]))
        if speed < STANDSTILL:
            rates[slide.rows] = STANDSTILL * now.directions[slide.contact]
        slowing = -float(now.directions[slide.contact] @ change[slide.rows])
        if slowing > 0.0:
            stops.append(max(speed, STOPPED) / slowing)
    turning = phase.turning(now.directions, rates, now.multipliers)
    fastest = np.abs(turning @ now.rows.jacobian @ now.kkt.by_mass(now.rows.jacobian.T)).max()
    return min(stops), 1.0 / float(fastest) if fastest > 0.0 else np.inf
