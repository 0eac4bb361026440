r"""Impacts that leave contacts at the border of stick and slip, the brief slip after them included.

The impact only just stops a contact from sliding. A perturbation towards slip leaves it the speed
sigma, of first order. If it bounces, that is all. If it stays closed, friction takes sigma away in
a time of first order. Meanwhile velocities differ from those of the flow that follows by

.. math:: \nu(\tau) = \sigma D_\sigma v^+ + \tau (a_{slip} - a_{after}),

until J_t v = 0. Where the contact then sticks, and all others that took part in the impact stayed
closed, nothing is left: these impulses act on the constraints alone that \nu obeys in the end, so
that the whole is linear. So it is for any number of contacts at the border, whichever of them slip
and in whatever order they stop. Otherwise it is piecewise linear.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.hybrid.mode import GuardJacobian, ResetBorder, ResetJacobian
from hybridctl.mechanics.constrained.tolerances import STANDSTILL
from hybridctl.mechanics.coulomb.contact_states import CLOSED, OPEN, SLIP, STICK, Modes
from hybridctl.mechanics.impacts.impact import ImpactResult
from hybridctl.mechanics.impacts.impact_pieces import ImpactPiece, impact_pieces
from hybridctl.mechanics.modes.dynamics import ContactDynamics
from hybridctl.mechanics.modes.selection import consistent
from hybridctl.sensitivity.piecewise import find_interior_point

_PROBE_SPEED = 1e-6
"""In m/s: at which it is looked whether a contact at the border of slip goes on slipping."""
_AT_LIMIT = 1e-8  # of the friction limit, or of 1 N: a contact this near to it only just sticks
_SAME_PIECE = 1e-8  # of the size of a matrix, or of 1: pieces of a derivative that agree
_DECELERATES = 1e-9  # of the size of the accelerations: a deceleration that stops a brief slip


def impact_border(
    dynamics: ContactDynamics, q: Array, v: Array, result: ImpactResult, modes: Modes, u: Array
) -> ResetBorder | None:
    """The border of stick and slip that an impact leads to; None where it has one derivative.

    modes, u: after the impact. Raises `InputError`, naming the contacts, at borders that are not
    of this kind: where a contact only just touches, where several contacts slip independently,
    where others do not go on as after the impact while these slip, and where a slip in a surface
    does not end in a stop, or ends in one while other contacts bounce.
    """
    if not result.border:
        return None
    every = impact_pieces(dynamics, q, v, result)
    # those of more than a thin wedge: contacts that hold each other cannot slip apart
    pieces = [p for p in every if not len(p.slack) or find_interior_point(p.slack) is not None]
    groups = _distinct(pieces)
    if len(groups) == 1:
        return None
    names = ", ".join(repr(dynamics.contacts[i].name) for i in result.border)
    again = _held_again(dynamics, q, result, modes, u, pieces)
    if again is not None and all(result.states[i] == STICK for i in result.border):
        return None
    if again is not None:
        nowhere = GuardJacobian(np.zeros(()), np.zeros(2 * len(v)), np.zeros(len(u)))
        return ResetBorder(f"{names} slips", nowhere, _reset(again, u), _reset(again, u))
    stick, slip = _stick_and_slip(groups, result, names)
    distance, held = slip.slack[0], _velocity(stick)
    change = _velocity(slip) - held
    push = change @ distance / (distance @ distance)
    size = np.abs(change).max()
    along = slip.slack @ distance / (distance @ distance)
    apart = (
        np.abs(slip.slack - np.outer(along, distance)).max() > _SAME_PIECE * np.abs(distance).max()
    )
    if apart or np.abs(change - np.outer(push, distance)).max() > _SAME_PIECE * size:
        raise InputError(_independent(names))
    states = slip.derivatives.states
    rates = result.terms.jacobian @ result.velocity_after
    moving = [
        i
        for i in result.border
        if modes[i] != OPEN and np.linalg.norm(rates[dynamics.all.tangents[i]]) <= STANDSTILL
    ]
    brief = tuple(states[i] if i in moving else mode for i, mode in enumerate(modes))
    if brief != modes:
        push = _left(dynamics, q, result, u, brief, modes, push)
    elif SLIP in (modes[i] for i in moving):
        raise InputError(_unstopped(names))
    slack = GuardJacobian(np.zeros(()), distance, np.zeros(len(u)))
    slipped = held + np.outer(push, distance)
    return ResetBorder(f"{names} slips", slack, _reset(slipped, u), _reset(held, u))


def clearly_held(dynamics: ContactDynamics, q: Array, v: Array, u: Array, modes: Modes) -> None:
    """Raise `InputError` where a contact only just sticks and would slip with less friction.

    Where static friction exceeds kinetic friction, motions on the two sides of that part.
    """
    firmer = dynamics.static_friction > dynamics.friction
    holding = [i for i, mode in enumerate(modes) if mode == STICK and firmer[i]]
    if not holding:
        return
    now = dynamics.acceleration(q, v, u, modes)
    for i in holding:
        limit = dynamics.static_friction[i] * now.forces[i]
        if limit - np.linalg.norm(now.friction[i]) <= _AT_LIMIT * max(1.0, limit):
            raise InputError(
                f"contact {dynamics.contacts[i].name!r} only just sticks after the event, by "
                "static friction above kinetic friction: there is no derivative there"
            )


def _held_again(
    dynamics: ContactDynamics,
    q: Array,
    result: ImpactResult,
    modes: Modes,
    u: Array,
    pieces: Sequence[ImpactPiece],
) -> Array | None:
    """The derivative (nv, 2 nv) of velocities where all contacts at the border stick in the end.

    If no other contact has parted, it does not matter which of them slip briefly and how long. None
    where contacts go on otherwise. Raises `InputError` where others do not go on as after the
    event while these slip.
    """
    border = result.border
    parted = any(s != OPEN and m == OPEN for s, m in zip(result.states, modes, strict=True))
    found = {tuple(piece.derivatives.states[i] for i in border): piece for piece in pieces}
    stick = found.pop((STICK,) * len(border), None)
    loose = parted or any(modes[i] != STICK for i in border)
    if loose or stick is None or any({OPEN, CLOSED} & set(states) for states in found):
        return None
    for states, piece in found.items():
        z = find_interior_point(piece.slack)
        assert z is not None
        push = (_velocity(piece) - _velocity(stick)) @ z / float((piece.slack @ z).max())
        changed = dict(zip(border, states, strict=True))
        brief = tuple(changed.get(i, mode) for i, mode in enumerate(modes))
        after = result.velocity_after + _PROBE_SPEED * push
        if np.abs(push).max() > _SAME_PIECE and not consistent(dynamics, q, after, u, brief):
            names = ", ".join(repr(dynamics.contacts[i].name) for i in border)
            raise InputError(_others(names, brief))
    return _velocity(stick)


def _distinct(pieces: Sequence[ImpactPiece]) -> list[list[ImpactPiece]]:
    """The pieces in groups that leave the same velocity."""
    groups: list[list[ImpactPiece]] = []
    for piece in pieces:
        for group in groups:
            first, other = _velocity(group[0]), _velocity(piece)
            if np.abs(first - other).max() <= _SAME_PIECE * max(1.0, np.abs(first).max()):
                group.append(piece)
                break
        else:
            groups.append([piece])
    return groups


def _stick_and_slip(
    groups: list[list[ImpactPiece]], result: ImpactResult, names: str
) -> tuple[ImpactPiece, ImpactPiece]:
    """The two groups of pieces: in one all contacts at the border stick, in the other they slip."""
    found: dict[str, ImpactPiece] = {}
    for group in groups:
        for piece in group:
            states = {piece.derivatives.states[i] for i in result.border}
            if states & {OPEN, CLOSED}:
                raise InputError(
                    f"contacts {names} include one that only just takes part in the impact: "
                    "perturbed motions may leave it at once, and have no linear pieces here"
                )
            if states == {STICK}:
                found["stick"] = piece
            elif STICK not in states:
                found["slip"] = piece
    if len(groups) != 2 or len(found) != 2:
        raise InputError(_independent(names))
    return found["stick"], found["slip"]


def _left(
    dynamics: ContactDynamics,
    q: Array,
    result: ImpactResult,
    u: Array,
    brief: Modes,
    after: Modes,
    push: Array,
) -> Array:
    """What is left (nv,) of a change `push` of the velocity after the slip in `brief`."""
    v, moving = result.velocity_after, [i for i in result.border if after[i] != OPEN]
    names = ", ".join(repr(dynamics.contacts[i].name) for i in moving)
    if not consistent(dynamics, q, v + _PROBE_SPEED * push, u, brief):
        raise InputError(_others(names, brief))
    if SLIP in (brief[i] for i in moving):
        raise InputError(_unstopped(names))
    phase = dynamics.phase(brief)
    rows = dynamics.rows(phase, q, v, u)
    tangents = np.array([phase.tangents[phase.closed.index(i)][0] for i in moving])
    jacobian, target = rows.jacobian[tangents], rows.target[tangents]
    acceleration = dynamics.acceleration(q, v, u, brief).acceleration
    later = dynamics.acceleration(q, v, u, after).acceleration
    slip, slowing = jacobian @ push, jacobian @ acceleration - target
    size = np.abs(jacobian) @ np.abs(acceleration) + np.abs(target)
    if not slowing @ slip < -_DECELERATES * np.abs(slip) @ size:
        raise InputError(_unstopped(names))
    duration = -float(slip @ slip) / float(slowing @ slip)
    if np.abs(slip + duration * slowing).max() > _SAME_PIECE * np.abs(slip).max():
        raise InputError(_independent(names))
    return np.asarray(push + duration * (acceleration - later))


def _velocity(piece: ImpactPiece) -> Array:
    return piece.derivatives.velocity_z


def _reset(velocity: Array, u: Array) -> ResetJacobian:
    nv, n = velocity.shape
    return ResetJacobian(np.zeros(n), np.vstack([np.eye(nv, n), velocity]), np.zeros((n, len(u))))


def _others(names: str, brief: Modes) -> str:
    return (
        f"while contacts {names} slip from the border of stick and slip, others do not go on as "
        f"after the event: {brief} is not consistent"
    )


def _independent(names: str) -> str:
    return (
        f"contacts {names} are at the border of stick and slip and slip independently: only the "
        "border of contacts that slip together is served"
    )


def _unstopped(names: str) -> str:
    return (
        f"contacts {names} slip from the border of stick and slip, and friction does not simply "
        "stop them: there are no two linear pieces, or none that are known"
    )
