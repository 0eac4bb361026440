r"""How redundant contacts share forces, and the first order of all multipliers.

Of all multipliers that G m = c allows (see `constraint_equations`) those with the least sum of
:math:`m_i^2 / w_i` are taken, twice: first with equal weights, then with w = 1 for normals and, for
the friction of a sticking contact, its normal force in the first solve. On a common plane, where
friction does not change the normal forces, contacts then reach their friction limits together. A
contact that pulls in the first solve has a small weight, about 1e-6 of all normal forces; in
between the weight is a smooth function of the normal force.

Where these forces leave the cones, those of the least such sum inside the cones are taken (see
`contact_law.redundancy`): a contact then stays at its boundary while others take up the load, and
the mode ends when no forces inside all cones are left. Forces that no mode of contacts could have
are those of the equations alone: they pull, or exceed friction, so that a guard is negative.

Weights move no acceleration unless contacts slide: friction of a sliding contact depends on its
normal force. So `solve_with_directions` is enough for the acceleration of contacts that all stick,
and `distribute_forces` is called where forces are asked for, or where redundant contacts slide.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from scipy.special import expit

from hybridctl.base.checks import Array
from hybridctl.base.errors import SimulationError
from hybridctl.mechanics.contact_law.cone_programme import Cone
from hybridctl.mechanics.contact_law.law import compute_force_scales
from hybridctl.mechanics.contact_law.redundancy import ForceCones, distribute_in_cones
from hybridctl.mechanics.modes.constraint_equations import (
    ContactRows,
    Solution,
    compute_magnitude,
    is_contradictory,
    solve_equal_weights,
)
from hybridctl.mechanics.modes.phase import ContactPhase, Friction, compute_load_weights
from hybridctl.mechanics.modes.tolerances import CONSISTENT, LEAST_WEIGHT, ON_CONE

_softplus = partial(np.logaddexp, 0.0)


def solve_with_directions(
    phase: ContactPhase,
    rows: ContactRows,
    directions: dict[int, Array],
    starting_contacts: tuple[int, ...] = (),
) -> Solution:
    """Return the solution for given sliding directions, with the acceleration of the mode.

    The acceleration is right unless redundant contacts slide and their forces leave the cones.
    Forces of redundant contacts that all stick are any that make it: see `distribute_forces`.

    Args:
        phase: Phase of a mode.
        rows: Its terms.
        directions: Unit sliding velocities (2,), as in `Solution`.
        starting_contacts: As in `Solution`.
    """
    solution = solve_equal_weights(phase, rows, directions, starting_contacts)
    return _weigh_by_loads(solution) if phase.sliding else solution


def _weigh_by_loads(solution: Solution) -> Solution:
    """Return the solution whose redundant contacts share friction by their normal forces."""
    phase = solution.phase
    # Normals have weight one, so that without sticking friction weights change nothing.
    if not solution.kkt.redundant or solution.even_solution is not None or not len(phase.sticking):
        return solution
    weights = compute_friction_weights(phase, solution.multipliers)
    kkt, a = solution.kkt.with_weights(weights), solution.acceleration
    m = kkt.distribution.project(solution.multipliers)
    # Without sliding, friction that is shared another way makes the same acceleration.
    if phase.sliding:
        a = a + kkt.push @ (m - solution.multipliers)
    return solution._replace(kkt=kkt, acceleration=a, multipliers=m, even_solution=solution)


def distribute_forces(solution: Solution, friction: Friction) -> Solution:
    """Return the solution whose redundant contacts share forces inside their cones.

    The solution is returned as it is if contacts are not redundant, or share forces already.

    Args:
        solution: A solution of `solve_with_directions`.
        friction: Coefficients of the closed contacts, whose static ones bound the cones.
    """
    if solution.inside_cones is not None or not solution.kkt.redundant:
        return solution
    solution = _weigh_by_loads(solution)
    if _is_inside_cones(solution, friction):
        return solution._replace(inside_cones=True)
    # Contacts whose constraints contradict each other cannot all hold, with no forces. States of
    # a step that goes too far have no finite forces to share.
    if not np.isfinite(solution.multipliers).all() or is_contradictory(solution):
        return solution._replace(inside_cones=False)
    return _move_inside_cones(solution, friction)


def _is_inside_cones(solution: Solution, friction: Friction) -> bool:
    """Return whether closed contacts push and sticking ones hold within static friction."""
    forces = solution.multipliers.tolist()
    size = ON_CONE * max(map(abs, forces[: len(solution.phase.closed)]))
    limits = friction.static.tolist()
    for (normal, tangents), limit in zip(solution.phase.cones, limits, strict=True):
        push, rub = forces[normal], [forces[k] for k in tangents]
        if not push >= -size or (rub and not limit * push - math.hypot(*rub) >= -size):
            return False
    return True


def _move_inside_cones(solution: Solution, friction: Friction) -> Solution:
    """Return the solution with the least forces inside the cones; with its own if none are."""
    equations = solution.kkt.distribution
    cones = _make_force_cones(solution, friction)
    found = distribute_in_cones(equations, solution.multipliers, cones)
    if found is None:
        return solution._replace(inside_cones=False)
    moved = solution.kkt.push @ (found.multipliers - solution.multipliers)
    return solution._replace(
        acceleration=solution.acceleration + moved,
        multipliers=found.multipliers,
        cone_forces=found,
        inside_cones=True,
    )


def _make_force_cones(solution: Solution, friction: Friction) -> ForceCones:
    """Return the cones of the multipliers, in units of the law of the closed contacts."""
    phase, kkt = solution.phase, solution.kkt
    if phase.sliding:
        response = np.einsum("ij,ji->i", kkt.constraint, solution.constraint_response)
        compliance = solution.rows.take_compliance(phase.constrained)
        response = response if compliance is None else response + compliance
    else:
        response = kkt.delassus.diagonal()
    owner = phase.owner[phase.constrained]
    largest = np.zeros(len(phase.closed))
    np.maximum.at(largest, owner, response)
    stretch, most = compute_force_scales(largest.tolist())
    units = (compute_magnitude(solution) or 1.0) / most * np.array(stretch)[owner]
    limits = friction.static.tolist()
    cones = [Cone(*part, limit) for part, limit in zip(phase.cones, limits, strict=True)]
    return ForceCones(solution.mix, cones, units)


def compute_friction_weights(phase: ContactPhase, even: Array) -> Array:
    """Return the weights (m,) of the multipliers, see `compute_load_weights`.

    The least weight is `LEAST_WEIGHT` of the norm of all normal forces. All are one where there are
    no normal forces at all.

    Args:
        phase: Phase of a mode.
        even: Multipliers (m,) of equal weights.
    """
    weights, normal = np.empty(len(even)), even[: len(phase.closed)]
    weights.fill(1.0)
    least = _compute_least_weight(normal)
    if least > 0.0:
        by_load = compute_load_weights(normal, least, _softplus)
        weights[len(normal) :] = by_load[phase.sticking_owner]
    return weights


def _differentiate_friction_weights(phase: ContactPhase, even: Array) -> Array:
    """Return the derivatives (m, k) of `compute_friction_weights` by the normal forces.

    Args:
        phase: Phase of a mode.
        even: Multipliers (m,) of equal weights.

    Raises:
        SimulationError: If contacts carry no load.
    """
    count = len(phase.closed)
    normal, change = even[:count], np.zeros((len(even), count))
    least = _compute_least_weight(normal)
    if least == 0.0:
        raise SimulationError(
            f"friction of redundant contacts in modes {phase.modes} has no derivative, as they "
            "carry no load by which it is shared"
        )
    x = normal / least
    slope = expit(x - 1.0)
    by_least = compute_load_weights(x, 1.0, _softplus) - slope * x
    each = np.diag(slope) + np.outer(by_least, (LEAST_WEIGHT**2 / least) * normal)
    change[count:] = each[phase.sticking_owner]
    return change


def _compute_least_weight(normal: Array) -> float:
    return LEAST_WEIGHT * math.sqrt(normal.dot(normal))


def differentiate_multipliers(
    solution: Solution,
    wanted: Array,
    turn_rows: Callable[[Array], Array],
    even_z: Array | None,
) -> Array:
    """Return the derivatives (m, z) of the multipliers of a solution by z parameters.

    With G^T y = W^-1 m and the residual r = c - G m redundant multipliers change by

        G^+ (c' - G' m) + P (W D(G^T) y + D(W) W^-1 m) + G^+ (G^+)^T D(G^T) r,

    P and the pseudo-inverse G^+ being those of the metric of the weights W. Boundaries of friction
    cones that are active stay active, so that the derivative is one-sided where one is only just
    touched.

    Args:
        solution: The solution.
        wanted: Derivatives (m, z) of target - C a at fixed multipliers, where a moves with
            M^-1 (S u - h + J^T f) at fixed m.
        turn_rows: Returns D(G^T) y (m, z) for y (m,): how rows that share a load turn.
        even_z: Derivatives (m, z) of the multipliers of equal weights; None without an
            `even_solution`.

    Raises:
        SimulationError: If contacts share friction but carry no load.
    """
    phase, kkt = solution.phase, solution.kkt
    if not kkt.redundant:
        return kkt.forces(wanted)
    equations, weights_z = kkt.distribution, None
    if solution.even_solution is not None and even_z is not None:
        change = _differentiate_friction_weights(phase, solution.even_solution.multipliers)
        weights_z = change @ even_z[: len(phase.closed)]
    if solution.cone_forces is None:
        change = equations.weights[:, None] * turn_rows(equations.adjoint(solution.multipliers))
        if weights_z is not None:
            change += (solution.multipliers / equations.weights)[:, None] * weights_z
        m_z = kkt.forces(wanted - kkt.delassus @ change) + change
        if is_contradictory(solution, CONSISTENT):
            m_z += equations.residual_sensitivity(turn_rows(solution.residual))
        return np.asarray(m_z)
    if is_contradictory(solution, CONSISTENT):
        wanted = wanted + equations.inverse.T @ turn_rows(solution.residual)
    return solution.cone_forces.sensitivity(
        wanted, turn_rows(solution.cone_forces.adjoint), weights_z
    )


def scatter_adjoint(solution: Solution, y: Array) -> tuple[Array, Array]:
    """Return y along all rows (r,) and z = M^-1 C^T y (nv,), by which D(G^T) y is D(F^T z).

    Args:
        solution: A solution.
        y: Values (m,) of the constrained rows.
    """
    rows, kkt = solution.phase.scatter_multipliers(y), solution.kkt
    if solution.phase.sliding:
        return rows, kkt.solve_mass(kkt.constraint.T @ y)
    return rows, kkt.push @ y
