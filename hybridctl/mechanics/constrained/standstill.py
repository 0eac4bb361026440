"""Contacts that slide in a surface and all but stand still: they stop, begin to slide, or are held.

Their velocities have no direction that could be trusted. What they do is told by the friction that
would hold them, by the accelerations that friction leaves, and by what is left of a motion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import NoContactSolutionError
from hybridctl.mechanics.constrained.equations import ContactRows, Solution, problem, shared, solve
from hybridctl.mechanics.constrained.phase import ContactPhase, Friction
from hybridctl.mechanics.constrained.sliding import (
    change_of_steered,
    sliding_directions,
    turned_by_loads,
)
from hybridctl.mechanics.contact_law.law import CERTIFIED, STICK, Modes
from hybridctl.mechanics.contact_law.linear_equations import KKT, RANK
from hybridctl.mechanics.contact_law.solver import solve_in_states

_MOVES = 1e-9  # m/s: a slow contact that slides no faster stands; a tenth of `STOPPED`, as rounding
_CLEARLY_MOVES = 9e-9
"""More m/s than integration leaves of the beginning of a motion: not quite `STOPPED`."""
_AT_BORDER = 1e-6  # of the friction limit: a slow contact nearer to it is not sure to hold
_NO_FORCE = 1e-10  # N: friction this small has no direction
_ALONG = 0.5  # cosine: directions of slow contacts that are nearer than this are of one motion

Phases = Callable[[Modes], ContactPhase]


def settled(phases: Phases, phase: ContactPhase, rows: ContactRows) -> Solution:
    """The solution of the contact law; slow contacts stop, begin to slide, or are held.

    Slow contacts all but stand still: they slide on the way they go until they stop, begin to slide
    the way friction lets them accelerate, or stick. Others slide along their velocities. phases: of
    all modes.
    """
    if not phase.spatial:
        return solve(phase, rows, {})
    directions, slow = sliding_directions(phase, rows)
    if not slow:
        return solve(phase, rows, directions)
    friction = phase.friction
    moving = {k: s for k, s in directions.items() if k not in slow}
    held = shared(solve(_holding(phases, phase, slow), rows, moving), _surely(friction, slow))
    stays = _staying(held, slow, friction)
    begun, sure = _beginnings(phase, held, slow, stays, friction)
    going = [k for k in slow if k in begun and _moves_elsewhere(phase, rows, k, begun[k])]
    going += _going_on(phase, rows, directions, [k for k in slow if k not in begun], sure)
    if begun and going:
        starting = [k for k in slow if k not in going]
        begun, sure = _beginnings(phase, held, starting, stays, friction)
    begun = {k: s for k, s in begun.items() if k not in going}
    still = _holding(phases, phase, [k for k in slow if k not in going and k not in begun])
    return _from_rest(still, rows, directions, begun, sure)


def _holding(phases: Phases, phase: ContactPhase, contacts: Sequence[int]) -> ContactPhase:
    """The phase in which some more of the closed contacts stick."""
    modes = list(phase.modes)
    for k in contacts:
        modes[phase.closed[k]] = STICK
    return phases(tuple(modes))


def _surely(friction: Friction, slow: list[int]) -> Friction:
    """Cones in which slow contacts have to hold to be sure of it, by kinetic friction."""
    static = friction.static.copy()
    static[slow] = (1.0 - _AT_BORDER) * friction.kinetic[slow]
    return Friction(static, friction.kinetic)


def _staying(now: Solution, slow: list[int], friction: Friction) -> list[int]:
    """The slow contacts that kinetic friction could hold.

    now: the solution in which they stick, with forces inside the cones of `surely` if there are.
    """
    tangents, normal = now.phase.tangents, now.forces[: len(now.phase.closed)]
    limit = (1.0 - 0.5 * _AT_BORDER) * friction.kinetic * normal
    return [k for k in slow if np.linalg.norm(now.forces[tangents[k]]) < limit[k]]


def _beginnings(
    phase: ContactPhase, held: Solution, starting: list[int], stays: list[int], friction: Friction
) -> tuple[dict[int, Array], bool]:
    """Directions in which friction lets contacts accelerate from a standstill, if it does.

    held: the solution in which they stick, in the directions of those that move; those that stay in
    it are left out, unless others carry them along. The first guess is against the friction that
    would hold them: at the border of breaking away it is the direction itself. Those that others
    hold do not begin. Besides, whether these are directions of accelerations: where other contacts
    do not hold, guesses are returned.
    """
    if set(stays) >= set(starting):
        return {}, True
    rows, forces = held.rows, held.forces
    guesses = [
        _direction(-forces[tangents]) if k in starting else None
        for k, tangents in enumerate(phase.tangents)
    ]
    modes = tuple(phase.modes[i] for i in phase.closed)
    law = problem(phase, rows, friction, held.kkt)
    sliding = tuple(held.directions.get(k, given) for k, given in enumerate(law.sliding))
    law = replace(law, sliding=sliding)
    solution = solve_in_states(law, modes, guesses)
    if solution is not None:
        least = CERTIFIED * law.magnitude
        guesses = list(solution.directions)
        for k, (s, tangents) in enumerate(zip(solution.directions, phase.tangents, strict=True)):
            if s is not None and s @ solution.rates[tangents] <= least:
                guesses[k] = s if _moves(phase, rows, k, s) else None
    else:
        guesses = [None if k in stays else guess for k, guess in enumerate(guesses)]
    found = {k: s for k, s in enumerate(guesses) if k in starting and s is not None}
    return found, solution is not None


def _direction(w: Array) -> Array | None:
    length = float(np.linalg.norm(w))
    return w / length if length > _NO_FORCE else None


def _moves(phase: ContactPhase, rows: ContactRows, k: int, along: Array) -> bool:
    """Whether the surfaces and what sticks let the k-th closed contact move, at no force now."""
    force, held = rows.jacobian[phase.tangents[k]].T @ along, rows.jacobian[phase.constrained]
    soft = rows.soft(phase.constrained)
    system = KKT(rows.mass, held, redundant=phase.redundant, compliance=soft)
    moved, _ = system.solve(force, np.zeros(len(held)))
    return bool(force @ moved > RANK * (force @ system.solve_mass(force)))


def _moves_elsewhere(phase: ContactPhase, rows: ContactRows, k: int, onwards: Array) -> bool:
    """Whether the k-th closed contact slides in another direction than it would begin to.

    Its velocity has to be more than what integration leaves of a beginning.
    """
    speed = _speed(phase, rows, k)
    return (
        speed > _CLEARLY_MOVES and float(rows.rates[phase.tangents[k]] @ onwards) < _ALONG * speed
    )


def _going_on(
    phase: ContactPhase,
    rows: ContactRows,
    directions: dict[int, Array],
    contacts: list[int],
    sure: bool,
) -> list[int]:
    """The slow contacts that go on sliding the way they go, without beginning to slide anew.

    Where friction could hold a contact it goes on until it stops, if it slows down: otherwise it is
    held. sure: whether that is known.
    """
    moving = [k for k in contacts if _speed(phase, rows, k) > _MOVES]
    if not moving or not sure:
        return moving
    change = rows.jacobian @ solve(phase, rows, directions).acceleration - rows.target

    def slows_down(k: int) -> bool:
        velocity, a = rows.rates[phase.tangents[k]], change[phase.tangents[k]]
        return bool(velocity @ a < -_ALONG * np.linalg.norm(velocity) * np.linalg.norm(a))

    return [k for k in moving if slows_down(k)]


def _speed(phase: ContactPhase, rows: ContactRows, k: int) -> float:
    return float(np.linalg.norm(rows.rates[phase.tangents[k]]))


def _from_rest(
    phase: ContactPhase,
    rows: ContactRows,
    directions: dict[int, Array],
    begun: dict[int, Array],
    sure: bool,
) -> Solution:
    """The solution in which some contacts `begun` to slide, the way they accelerate if it is found.

    sure: whether they do in these directions, be it under loads that are shared otherwise. If not,
    and none are found with loads shared anew, what moves goes on the way it goes.
    """
    now = solve(phase, rows, directions | begun, tuple(begun))
    if sure:
        return now
    if now.kkt.redundant and begun:
        now = shared(now, phase.friction)
        with suppress(NoContactSolutionError):
            found = turned_by_loads(now, phase.friction)
            if found.inside and (change_of_steered(found, along=True) >= 0.0).all():
                return found
    told = {k: directions[k] for k in begun if _speed(phase, rows, k) > _MOVES}
    return solve(phase, rows, directions | begun | told) if told else now._replace(steered=())
