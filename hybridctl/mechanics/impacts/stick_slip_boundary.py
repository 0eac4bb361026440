r"""Impacts on the stick-slip boundary, with the brief slip after them: their derivatives.

Such an impact only just stops a contact from sliding. A perturbation towards slip leaves the
contact a sliding speed sigma, of first order. If the contact bounces, that is all. If it stays
closed, friction stops it within a time of first order. Meanwhile the velocity differs from that of
the flow in the mode after the event by

.. math:: \nu(\tau) = \sigma D_\sigma v^+ + \tau (a_{slip} - a_{after}),

until J_t v = 0. Suppose that the contact then sticks, and that all others that took part in the
impact stayed closed. Then nothing is left of the perturbation. For impulses and friction change nu
by :math:`M^{-1} J^T` of these contacts only, and in the end :math:`J \nu = 0` for the same
contacts: so nu is zero. Then the derivative is linear, for any number of contacts on the boundary,
whichever of them slip and in whatever order they stop. Otherwise it is piecewise linear, and it is
given for contacts that slip together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.hybrid.mode import GuardJacobian, ResetBorder, ResetJacobian
from hybridctl.mechanics.contact_law.law import CLOSED, OPEN, SLIP, STICK, Modes
from hybridctl.mechanics.impacts.impact import ImpactResult
from hybridctl.mechanics.impacts.impact_derivatives import ImpactPiece, find_linear_pieces
from hybridctl.mechanics.modes.dynamics import ContactDynamics
from hybridctl.mechanics.modes.selection import is_consistent_at
from hybridctl.mechanics.modes.tolerances import STANDSTILL
from hybridctl.sensitivity.piecewise import find_interior_point

_PROBE_SPEED = 1e-6
"""Sliding speed in m/s with which modes of a brief slip are tested for consistency.

The velocity after the impact is perturbed by the change that leaves this speed. It is well above
`STANDSTILL` (2e-8), below which a contact does not slide, and small enough to be of first order. A
choice."""
_AT_LIMIT = 1e-8
"""Distance of friction from its limit up to which a contact only just sticks, relative to the limit
or to 1 N. A choice, above rounding."""
_SAME_PIECE = 1e-8
"""Difference of matrices that counts as none, relative to their size or to 1. A choice."""
_MIN_DECELERATION = 1e-9
"""Deceleration that stops a brief slip, relative to the terms of its accelerations. A choice."""


def find_stick_slip_boundary(
    dynamics: ContactDynamics, q: Array, v: Array, result: ImpactResult, modes: Modes, u: Array
) -> ResetBorder | None:
    """Return the two derivatives of an impact on the stick-slip boundary, None if it has one.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        q: Configuration (nq,).
        v: Velocity (nv,) before the impact.
        result: The impact.
        modes: Modes after it.
        u: Input (nu,) after it.

    Returns:
        Derivatives of the reset (q, v-) -> (q, v+) on both sides: `positive` where the contacts on
        the boundary slip, `negative` where they stick. The distance is the sliding speed, m/s, that
        a perturbation leaves; it is zero on the boundary. None if no contact is on the boundary, or
        if the derivative of the reset's own `calc_diff` holds on both sides.

    Raises:
        InputError: On a boundary of another kind, with the names of the contacts: where a contact
            only just touches, where several contacts slip independently, where others do not go on
            as after the impact while these slip, and where a slip in a surface does not end in a
            stop, or ends in one while other contacts bounce.
    """
    if not result.border:
        return None
    every = find_linear_pieces(dynamics, q, v, result)
    # A piece whose conditions have no common interior holds for no perturbation but exceptional
    # ones. Such thin wedges arise where contacts are redundant and cannot slip apart.
    pieces = [p for p in every if not len(p.slack) or find_interior_point(p.slack) is not None]
    groups = _group_by_velocity(pieces)
    if len(groups) == 1:  # all pieces have the same derivative
        return None
    names = ", ".join(repr(dynamics.contacts[i].name) for i in result.border)
    sticking = _differentiate_sticking(dynamics, q, result, modes, u, pieces)
    # All stick in the end, so one derivative holds on both sides: that in which they stick.
    # `calc_diff` differentiates the impact in the states that it reports.
    if sticking is not None and all(result.states[i] == STICK for i in result.border):
        return None
    if sticking is not None:
        # The impact reports a sliding state, so that `calc_diff` would not be this derivative. A
        # boundary whose distance never changes has it on both sides.
        nowhere = GuardJacobian(np.zeros(()), np.zeros(2 * len(v)), np.zeros(len(u)))
        reset = _make_reset_jacobian(sticking, u)
        return ResetBorder(f"{names} slips", nowhere, reset, reset)
    stick, slip = _select_stick_and_slip(groups, result, names)
    distance, held = slip.slack[0], _get_velocity_derivative(stick)
    change = _get_velocity_derivative(slip) - held
    push = change @ distance / (distance @ distance)
    # One number, the distance, must tell both sides apart and measure their difference. So all
    # conditions of the slip have to be multiples of it (`along`), and the difference of the two
    # derivatives the product of a column and it (`push`). `deviation` and `rest` are what is left.
    along = slip.slack @ distance / (distance @ distance)
    deviation = np.abs(slip.slack - np.outer(along, distance)).max()
    independent = deviation > _SAME_PIECE * np.abs(distance).max()
    rest = np.abs(change - np.outer(push, distance)).max()
    if independent or rest > _SAME_PIECE * np.abs(change).max():
        raise InputError(_describe_independent_slips(names))
    # `stopping` contacts stay closed and have no sliding speed after the impact: they slip only if
    # perturbed, and briefly. `brief` are the modes while they do.
    states = slip.derivatives.states
    rates = result.terms.jacobian @ result.velocity_after
    stopping = [
        i
        for i in result.border
        if modes[i] != OPEN
        and np.linalg.norm(rates[dynamics.contact_set.tangents[i]]) <= STANDSTILL
    ]
    brief = tuple(states[i] if i in stopping else mode for i, mode in enumerate(modes))
    if brief != modes:
        push = _compute_change_after_slip(dynamics, q, result, u, brief, modes, push)
    elif SLIP in (modes[i] for i in stopping):
        # SLIP is sliding in a surface. As `brief` equals `modes`, the mode after the impact already
        # is this slip: it goes on from rest and does not stop.
        raise InputError(_describe_unstopped_slip(names))
    slack = GuardJacobian(np.zeros(()), distance, np.zeros(len(u)))
    slipped = held + np.outer(push, distance)
    return ResetBorder(
        f"{names} slips", slack, _make_reset_jacobian(slipped, u), _make_reset_jacobian(held, u)
    )


def check_sticking(dynamics: ContactDynamics, q: Array, v: Array, u: Array, modes: Modes) -> None:
    """Check that contacts with static friction above kinetic friction do not only just stick.

    With a little less friction such a contact would slip with the lower kinetic friction: motions
    on the two sides part, and there is no derivative.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        q: Configuration (nq,).
        v: Velocity (nv,) after the event.
        u: Input (nu,) after the event.
        modes: Modes after the event.

    Raises:
        InputError: If a contact only just sticks.
    """
    holding = list_holding_contacts(dynamics, modes)
    if not holding:
        return
    point = dynamics.acceleration(q, v, u, modes)
    for i in holding:
        limit = dynamics.static_friction[i] * point.forces[i]
        if limit - np.linalg.norm(point.friction[i]) <= _AT_LIMIT * max(1.0, limit):
            raise InputError(
                f"contact {dynamics.contacts[i].name!r} only just sticks after the event, by "
                "static friction above kinetic friction: there is no derivative there"
            )


def list_holding_contacts(dynamics: ContactDynamics, modes: Modes) -> list[int]:
    """Return the contacts that stick by static friction above kinetic friction.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        modes: Modes of all contacts.
    """
    if STICK not in modes:
        return []
    firmer = dynamics.static_friction > dynamics.friction
    return [i for i, mode in enumerate(modes) if mode == STICK and firmer[i]]


def _differentiate_sticking(
    dynamics: ContactDynamics,
    q: Array,
    result: ImpactResult,
    modes: Modes,
    u: Array,
    pieces: Sequence[ImpactPiece],
) -> Array | None:
    """Return the derivative of velocities if all contacts on the boundary stick in the end.

    If no other contact has parted, it does not matter which of them slip briefly and for how long:
    nothing is left of the slip, and the derivative is that of the piece in which all stick.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        q: Configuration (nq,).
        result: The impact.
        modes: Modes after it.
        u: Input (nu,) after it.
        pieces: Linear pieces of its derivative.

    Returns:
        The derivative (nv, 2 nv) of v+ by (q, v-). None if a contact of the boundary does not stick
        after the impact, if one only just takes part, or if another contact of the impact bounces.

    Raises:
        InputError: If others do not go on as after the event while these slip.
    """
    border = result.border
    parted = any(s != OPEN and m == OPEN for s, m in zip(result.states, modes, strict=True))
    found = {tuple(piece.derivatives.states[i] for i in border): piece for piece in pieces}
    stick = found.pop((STICK,) * len(border), None)
    ends_otherwise = parted or any(modes[i] != STICK for i in border)
    if ends_otherwise or stick is None or any({OPEN, CLOSED} & set(states) for states in found):
        return None
    for states, piece in found.items():
        z = find_interior_point(piece.slack)
        assert z is not None
        # Along z, well inside the piece, by how much the velocity changes per unit of slack.
        change = _get_velocity_derivative(piece) - _get_velocity_derivative(stick)
        push = change @ z / float((piece.slack @ z).max())
        slipping = dict(zip(border, states, strict=True))
        brief = tuple(slipping.get(i, mode) for i, mode in enumerate(modes))
        after = result.velocity_after + _PROBE_SPEED * push
        if np.abs(push).max() > _SAME_PIECE and not is_consistent_at(dynamics, q, after, u, brief):
            names = ", ".join(repr(dynamics.contacts[i].name) for i in border)
            raise InputError(_describe_inconsistent_slip(names, brief))
    return _get_velocity_derivative(stick)


def _group_by_velocity(pieces: Sequence[ImpactPiece]) -> list[list[ImpactPiece]]:
    """Return the pieces in groups with the same derivative of the velocity."""
    groups: list[list[ImpactPiece]] = []
    for piece in pieces:
        for group in groups:
            first, other = _get_velocity_derivative(group[0]), _get_velocity_derivative(piece)
            if np.abs(first - other).max() <= _SAME_PIECE * max(1.0, np.abs(first).max()):
                group.append(piece)
                break
        else:
            groups.append([piece])
    return groups


def _select_stick_and_slip(
    groups: list[list[ImpactPiece]], result: ImpactResult, names: str
) -> tuple[ImpactPiece, ImpactPiece]:
    """Return the piece in which all contacts on the boundary stick, and one in which all slip.

    Args:
        groups: Pieces by their derivative of the velocity.
        result: The impact.
        names: Names of the contacts on the boundary, for messages.

    Raises:
        InputError: If there are not just these two groups, or if a contact only just takes part.
    """
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
        raise InputError(_describe_independent_slips(names))
    return found["stick"], found["slip"]


def _compute_change_after_slip(
    dynamics: ContactDynamics,
    q: Array,
    result: ImpactResult,
    u: Array,
    brief: Modes,
    after: Modes,
    push: Array,
) -> Array:
    """Return what is left of a change of velocity when the brief slip has stopped.

    The change is sigma D v+ + tau (a_slip - a_after), see the top of this file, after the time tau
    in which friction stops the slip. All is per unit of distance sigma from the boundary.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        q: Configuration (nq,).
        result: The impact.
        u: Input (nu,) after it.
        brief: Modes during the slip.
        after: Modes after the slip.
        push: Change of the velocity (nv,) at the impact, per unit of distance from the boundary.

    Returns:
        The change (nv,) relative to the flow in `after`, per the same unit.

    Raises:
        InputError: If the slip is not consistent, is in a surface, does not stop, or if contacts
            stop at different times.
    """
    v, slipping = result.velocity_after, [i for i in result.border if after[i] != OPEN]
    names = ", ".join(repr(dynamics.contacts[i].name) for i in slipping)
    if not is_consistent_at(dynamics, q, v + _PROBE_SPEED * push, u, brief):
        raise InputError(_describe_inconsistent_slip(names, brief))
    if SLIP in (brief[i] for i in slipping):
        raise InputError(_describe_unstopped_slip(names))
    phase = dynamics.phase(brief)
    rows = dynamics.make_rows(phase, q, v, u)
    tangents = np.array([phase.tangents[phase.closed.index(i)][0] for i in slipping])
    jacobian, target = rows.jacobian[tangents], rows.target[tangents]
    acceleration = dynamics.acceleration(q, v, u, brief).acceleration
    later = dynamics.acceleration(q, v, u, after).acceleration
    slip, slip_rate = jacobian @ push, jacobian @ acceleration - target
    size = np.abs(jacobian) @ np.abs(acceleration) + np.abs(target)
    if not slip_rate @ slip < -_MIN_DECELERATION * np.abs(slip) @ size:
        raise InputError(_describe_unstopped_slip(names))
    # The slip rate opposes the slip, as just checked, so this time is positive, in s per m/s. For
    # several contacts it is that of least squares, and all have to stop at it.
    duration = -float(slip @ slip) / float(slip_rate @ slip)
    if np.abs(slip + duration * slip_rate).max() > _SAME_PIECE * np.abs(slip).max():
        raise InputError(_describe_independent_slips(names))
    return np.asarray(push + duration * (acceleration - later))


def _get_velocity_derivative(piece: ImpactPiece) -> Array:
    """Return the derivative (nv, 2 nv) of v+ by (q, v-)."""
    return piece.derivatives.velocity_z


def _make_reset_jacobian(velocity: Array, u: Array) -> ResetJacobian:
    """Return the derivatives of a reset that keeps q, by those (nv, 2 nv) of the velocity."""
    nv, n = velocity.shape
    return ResetJacobian(np.zeros(n), np.vstack([np.eye(nv, n), velocity]), np.zeros((n, len(u))))


def _describe_inconsistent_slip(names: str, brief: Modes) -> str:
    return (
        f"while contacts {names} slip from the border of stick and slip, others do not go on as "
        f"after the event: {brief} is not consistent"
    )


def _describe_independent_slips(names: str) -> str:
    return (
        f"contacts {names} are at the border of stick and slip and slip independently: only the "
        "border of contacts that slip together is served"
    )


def _describe_unstopped_slip(names: str) -> str:
    return (
        f"contacts {names} slip from the border of stick and slip, and friction does not simply "
        "stop them: there are no two linear pieces, or none that are known"
    )
