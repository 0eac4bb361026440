r"""The equations of the closed contacts of one mode, solved at one point, and linearised there.

.. math::
    M a + h = S u + J^T E m, \qquad C a = \text{target},

with C the constrained rows of J, m their multipliers and E the mix that makes forces along all
rows of them: friction of a sliding contact is -mu s per normal force ([RS] (2.38)-(2.41)).

Redundant contacts share loads. Of all multipliers that G lambda = c allows (see `KKT`) those with
the least sum of :math:`\lambda_i^2 / w_i` are taken, twice: first with equal weights, then with
w = 1 for normals and, for the friction of a sticking contact, its normal force in the first solve.
On a common plane, where friction does not change the normal forces, contacts then reach their
friction limits together. A contact that pulls in the first solve has a small weight, about 1e-6 of
all normal forces; in between the weight is a smooth function of the normal force.

Where these forces leave the cones, those of the least such sum inside the cones are taken (see
`contact_law.redundancy`): a contact then stays at its border while others take up the load, and
the mode ends when no forces inside all cones are left. Forces that no mode of contacts could have
are those of the equations alone: they pull, or exceed friction, and say so to the guards.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.special import expit

from hybridctl.base.checks import Array, Indices
from hybridctl.base.errors import SimulationError
from hybridctl.mechanics.constrained.phase import ContactPhase, Friction, load_weights
from hybridctl.mechanics.constrained.tolerances import CONSISTENT, LEAST_WEIGHT, ON_CONE, STANDSTILL
from hybridctl.mechanics.contact_law.cone_programme import Cone
from hybridctl.mechanics.contact_law.law import STICK, CoulombProblem, force_scales
from hybridctl.mechanics.contact_law.linear_equations import KKT
from hybridctl.mechanics.contact_law.redundancy import (
    ForceCones,
    ForceDistribution,
    distribute_in_cones,
)

_SOFTPLUS = partial(np.logaddexp, 0.0)
_APART = 1e-6  # of the terms of C a: contacts that hold together are never apart by more


class ContactRows(NamedTuple):
    """Terms of the closed contacts of a phase, which has r rows.

    target (r,): the accelerations J a that keep contacts closed and sticking. compliance (r,): of
    soft rows, which obey J a + D f = target; None where no contact is pressed by a constant force.
    """

    mass: Array
    drive: Array
    jacobian: Array
    rates: Array
    target: Array
    compliance: Array | None = None

    def soft(self, rows: Indices) -> Array | None:
        """Return the compliance of some rows, None without one."""
        return None if self.compliance is None else self.compliance[rows]


class Solution(NamedTuple):
    """One solve: phase, rows, sliding directions, mix E, system, acceleration, multipliers.

    phase: of the mode, in which contacts that are to slide but are held where they stand stick.
    residual: what the constraints still want of C a, where they contradict each other. even: the
    solve of equal weights, whose normal forces are the weights of friction in this one. least: how
    the forces were found where those of least norm alone are not inside the cones. steered: closed
    contacts that all but stand still and slide the way they accelerate. inside: whether loads that
    are shared as `shared` says are inside the friction cones; None where they are not shared.
    """

    phase: ContactPhase
    rows: ContactRows
    directions: dict[int, Array]
    mix: Array
    kkt: KKT
    acceleration: Array
    multipliers: Array
    residual: Array
    even: Solution | None
    least: ForceDistribution | None
    steered: tuple[int, ...] = ()
    inside: bool | None = None

    @property
    def forces(self) -> Array:
        """Forces along all rows (r,)."""
        return self.multipliers if self.phase.identity else self.mix @ self.multipliers

    @property
    def pull(self) -> Array:
        """The motions M^-1 C^T (nv, m) of forces along the constrained rows."""
        kkt = self.kkt
        return kkt.solve_mass(kkt.constraint.T) if self.phase.sliding else kkt.push

    def turning(self, multipliers: Array) -> Array:
        """The matrix K (r, r) of `ContactPhase.turning`, of sliding where the velocity points."""
        rates = self.rows.rates.copy()
        for k in self.steered:
            rates[self.phase.tangents[k]] = 0.0
        return self.phase.turning(self.directions, rates, multipliers)


@dataclass(frozen=True)
class ContactAcceleration:
    """A point of a mode: acceleration (nv,), and forces in N, speeds in m/s, gaps in m of contacts.

    Of all contacts: `forces` (c,) are normal, `friction` (c, 2) tangential and `slip` (c, 2) v_t
    along the tangents of each surface (in a plane of motion the second is zero); zero where open.
    `gaps` (c,) are positive where open. `solution`: the equations behind it, None where all
    are open.
    """

    acceleration: Array
    forces: Array
    friction: Array
    slip: Array
    gaps: Array
    solution: Solution | None

    def holds(self, i: int) -> bool:
        """Whether contact i sticks, or is to slide but held where it stands."""
        return self.solution is not None and self.solution.phase.modes[i] == STICK


@dataclass(frozen=True)
class AccelerationDerivatives:
    """Derivatives by z = (q, v, u), n = 2 nv + nu columns, and the point itself.

    acceleration_z (nv, n), forces_z (c, n), friction_z (c, 2, n), slip_z (c, 2, n), gaps_z (c, n);
    slip and gaps of all contacts. rates_z (r, n): J v of all rows.
    """

    point: ContactAcceleration
    acceleration_z: Array
    forces_z: Array
    friction_z: Array
    slip_z: Array
    gaps_z: Array
    rates_z: Array


def solve(
    phase: ContactPhase,
    rows: ContactRows,
    directions: dict[int, Array],
    steered: tuple[int, ...] = (),
) -> Solution:
    """The equations of a phase for given directions of contacts that slide in surfaces.

    The acceleration is that of `shared`. Forces of redundant contacts are any that make it.
    """
    mix = phase.mix(directions)
    force = rows.jacobian.T @ mix if phase.sliding else None
    constraint, target = rows.jacobian, rows.target
    if not phase.identity:
        constraint, target = constraint[phase.constrained], target[phase.constrained]
    soft = rows.soft(phase.constrained)
    kkt = KKT(rows.mass, constraint, force, redundant=phase.redundant, compliance=soft)
    a, m = kkt.solve(rows.drive, target)
    left = target - constraint.dot(a)
    if soft is not None:
        left -= soft * m
    now = Solution(phase, rows, directions, mix, kkt, a, m, left, None, None, steered)
    return _weighed(now) if phase.sliding else now


def _weighed(now: Solution) -> Solution:
    """The solution whose redundant contacts share friction by their normal forces.

    Without sliding friction forces that are shared another way make the same acceleration.
    """
    phase = now.phase
    if not now.kkt.redundant or now.even is not None or not len(phase.sticking):
        return now
    kkt, a = now.kkt.with_weights(friction_weights(phase, now.multipliers)), now.acceleration
    m = kkt.distribution.project(now.multipliers)
    if phase.sliding:
        a = a + kkt.push @ (m - now.multipliers)
    return now._replace(kkt=kkt, acceleration=a, multipliers=m, even=now)


def shared(now: Solution, friction: Friction) -> Solution:
    """A solution whose redundant contacts share loads as this module says, inside their cones.

    Contacts whose constraints contradict each other cannot all hold, with no forces. States of a
    step that goes too far have no finite forces to share.
    """
    if now.inside is not None or not now.kkt.redundant:
        return now
    now = _weighed(now)
    if _inside_cones(now, friction):
        return now._replace(inside=True)
    if not np.isfinite(now.multipliers).all() or contradict(now):
        return now._replace(inside=False)
    return _drawn_inside(now, friction)


def _inside_cones(now: Solution, friction: Friction) -> bool:
    """Whether closed contacts push and sticking ones hold within static friction."""
    forces = now.multipliers.tolist()
    size = ON_CONE * max(map(abs, forces[: len(now.phase.closed)]))
    for (normal, tangents), limit in zip(now.phase.cones, friction.static.tolist(), strict=True):
        push, rub = forces[normal], [forces[k] for k in tangents]
        if not push >= -size or (rub and not limit * push - math.hypot(*rub) >= -size):
            return False
    return True


def _drawn_inside(now: Solution, friction: Friction) -> Solution:
    """The solution with the smallest forces inside the cones; as it is where there are none."""
    least = distribute_in_cones(now.kkt.distribution, now.multipliers, _loads(now, friction))
    if least is None:
        return now._replace(inside=False)
    moved = now.kkt.push @ (least.multipliers - now.multipliers)
    a = now.acceleration + moved
    return now._replace(acceleration=a, multipliers=least.multipliers, least=least, inside=True)


def _loads(now: Solution, friction: Friction) -> ForceCones:
    """The cones of the multipliers, in units of the law of the closed contacts."""
    phase, kkt = now.phase, now.kkt
    if phase.sliding:
        response = np.einsum("ij,ji->i", kkt.constraint, now.pull)
        soft = now.rows.soft(phase.constrained)
        response = response if soft is None else response + soft
    else:
        response = kkt.delassus.diagonal()
    owner = phase.owner[phase.constrained]
    largest = np.zeros(len(phase.closed))
    np.maximum.at(largest, owner, response)
    stretch, most = force_scales(largest.tolist())
    units = (magnitude(now) or 1.0) / most * np.array(stretch)[owner]
    limits = friction.static.tolist()
    cones = [Cone(*part, limit) for part, limit in zip(phase.cones, limits, strict=True)]
    return ForceCones(now.mix, cones, units)


def problem(phase: ContactPhase, rows: ContactRows, friction: Friction, kkt: KKT) -> CoulombProblem:
    """The law for the accelerations of the closed contacts. kkt: what has the mass factored."""
    free, jacobian = kkt.solve_mass(rows.drive), rows.jacobian
    size = np.abs(jacobian) @ np.abs(free) + np.abs(rows.target)
    delassus = (kkt.solve_mass(jacobian.T).T @ jacobian.T).T
    if rows.compliance is not None:
        np.einsum("ii->i", delassus)[:] += rows.compliance
    return CoulombProblem(
        delassus,
        jacobian @ free - rows.target,
        phase.tangents,
        friction.static,
        friction.kinetic,
        tuple(_sliding(rows.rates[tangents]) for tangents in phase.tangents),
        float(size.max()),
    )


def impact_problem(phase: ContactPhase, kkt: KKT, free: Array, v: Array) -> CoulombProblem:
    """The law for impulses of the closed contacts, by kinetic friction; none slides before.

    kkt: of all their rows, without friction. free (r,): what their velocities are without impulses,
    with those that restitution asks for. v (nv,): the velocity whose terms are in these.
    """
    size = float((np.abs(kkt.constraint) @ np.abs(v)).max())
    friction, unknown = phase.friction.kinetic, (None,) * len(phase.closed)
    return CoulombProblem(kkt.delassus, free, phase.tangents, friction, friction, unknown, size)


def _sliding(velocity: Array) -> Array | None:
    """The direction of a sliding velocity, None at a standstill."""
    speed = float(np.linalg.norm(velocity))
    return velocity / speed if speed > STANDSTILL else None


def linearised(
    now: Solution, wanted: Array, turned: Callable[[Array], Array], even_z: Array | None
) -> Array:
    """Derivatives (m, .) of the multipliers of a solution.

    wanted (m, .): those of the target - C a at fixed forces, and an acceleration that moves with
    S u - h - M a + J^T f at fixed a and m. turned(y): D(G^T) y (m, .), how the rows that share a
    load turn. even_z (m, .): derivatives of the multipliers of the solve of equal weights, None
    where there is none. Borders of friction cones that act go on acting, so that the derivative is
    one-sided where one is only just touched.

    With G^T y = W^-1 m and the residual r = c - G m redundant multipliers change by

        G^+ (c' - G' m) + P (W D(G^T) y + D(W) W^-1 m) + G^+ (G^+)^T D(G^T) r,

    P and the pseudo-inverse G^+ being those of the metric of the weights W.

    Raises `SimulationError` where contacts share friction but carry no load.
    """
    phase, kkt = now.phase, now.kkt
    if not kkt.redundant:
        return kkt.forces(wanted)
    weights_z = None
    if now.even is not None and even_z is not None:
        change = weights_derivative(phase, now.even.multipliers)
        weights_z = change @ even_z[: len(phase.closed)]
    if now.least is None:
        change = kkt.distribution.weights[:, None] * turned(
            kkt.distribution.adjoint(now.multipliers)
        )
        if weights_z is not None:
            change += (now.multipliers / kkt.distribution.weights)[:, None] * weights_z
        m_z = kkt.forces(wanted - kkt.delassus @ change) + change
        if contradict(now, CONSISTENT):
            m_z += kkt.distribution.residual_sensitivity(turned(now.residual))
        return np.asarray(m_z)
    if contradict(now, CONSISTENT):
        wanted = wanted + kkt.distribution.inverse.T @ turned(now.residual)
    return now.least.sensitivity(wanted, turned(now.least.adjoint), weights_z)


def contradict(now: Solution, tolerance: float = _APART) -> bool:
    """Whether redundant constraints miss by more than this share of the terms in them."""
    rows, missed = now.rows, float(np.abs(now.residual).max())
    if not now.kkt.redundant or missed <= tolerance * float(np.abs(rows.target).max()):
        return False
    return missed > tolerance * magnitude(now)


def magnitude(now: Solution) -> float:
    """The largest sum of the sizes of terms in accelerations of rows without contact forces."""
    free = np.abs(now.kkt.solve_mass(now.rows.drive))
    return float((np.abs(now.rows.jacobian) @ free + np.abs(now.rows.target)).max())


def balanced(now: Solution, y: Array) -> tuple[Array, Array]:
    """The vector y (m,) along all rows (r,), with z = M^-1 C^T y (nv,): D(G^T) y is D(F^T z)."""
    rows, kkt = now.phase.along_rows(y), now.kkt
    return rows, kkt.push @ y if not now.phase.sliding else kkt.solve_mass(kkt.constraint.T @ y)


def friction_weights(phase: ContactPhase, even: Array) -> Array:
    """The weights (m,) for multipliers (m,) of the solve with equal weights.

    See `load_weights`, with 1e-6 of the norm of all normal forces as the least. One where there are
    no normal forces at all.
    """
    weights, normal = np.empty(len(even)), even[: len(phase.closed)]
    weights.fill(1.0)
    least = _least(normal)
    if least > 0.0:
        weights[len(normal) :] = load_weights(normal, least, _SOFTPLUS)[phase.tied]
    return weights


def weights_derivative(phase: ContactPhase, even: Array) -> Array:
    """The derivatives (m, c) of `friction_weights` by the normal forces."""
    count = len(phase.closed)
    normal, change = even[:count], np.zeros((len(even), count))
    least = _least(normal)
    if least == 0.0:
        raise SimulationError(
            f"friction of redundant contacts in modes {phase.modes} has no derivative, as they "
            "carry no load by which it is shared"
        )
    x = normal / least
    slope = expit(x - 1.0)
    by_least = load_weights(x, 1.0, _SOFTPLUS) - slope * x
    each = np.diag(slope) + np.outer(by_least, (LEAST_WEIGHT**2 / least) * normal)
    change[count:] = each[phase.tied]
    return change


def _least(normal: Array) -> float:
    return LEAST_WEIGHT * math.sqrt(normal.dot(normal))
