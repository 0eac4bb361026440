r"""The equations of the closed contacts of one mode, solved at one point, and linearised there.

.. math::
    M a + h = S u + J^T E m, \qquad C a = \text{target},

with C the constrained rows of J, m their multipliers and E the mix that makes forces along all
rows of them: friction of a sliding contact is -mu s per normal force ([RS] (2.38)-(2.41)).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hybridctl.checks import Array
from hybridctl.mechanics.coulomb.law import CoulombProblem
from hybridctl.mechanics.kkt import KKT
from hybridctl.mechanics.phase import STANDSTILL, Phase
from hybridctl.mechanics.sharing import friction_weights, weights_derivative
from hybridctl.mechanics.terms import Values

_CONSISTENT = 1e-12


class Rows(NamedTuple):
    """Terms of the closed contacts of a phase: k gaps in m, r rows.

    target (r,): the accelerations J a that keep contacts closed and sticking.
    """

    mass: Array
    drive: Array
    jacobian: Array
    rates: Array
    target: Array
    gaps: Array


@dataclass(frozen=True)
class Solution:
    """One solve: rows, sliding directions, mix E, system, acceleration, multipliers.

    residual: what the constraints still want of C a, where they contradict each other. even: the
    solve of equal weights, whose normal forces are the weights of friction in this one.
    """

    rows: Rows
    directions: dict[int, Array]
    mix: Array
    kkt: KKT
    acceleration: Array
    multipliers: Array
    residual: Array
    even: Solution | None

    @property
    def forces(self) -> Array:
        """Forces along all rows (r,)."""
        return np.asarray(self.mix @ self.multipliers)


def closed_rows(phase: Phase, values: Values, stabilization: float) -> Rows:
    r"""The rows of a phase; residuals decay as -2 s rate - s^2 gap, s = `stabilization` in 1/s."""
    rates, gaps = values.rates[phase.all_rows], values.gaps[list(phase.closed)]
    target = -values.drift[phase.all_rows]
    if stabilization:
        target -= 2.0 * stabilization * rates
        target[: len(gaps)] -= stabilization**2 * gaps
    jacobian = values.jacobian[phase.all_rows]
    return Rows(values.mass.copy(), values.drive.copy(), jacobian, rates, target, gaps)


def solve(phase: Phase, rows: Rows, directions: dict[int, Array]) -> Solution:
    """The equations of a phase for given directions of contacts that slide in surfaces.

    Redundant contacts share loads as `sharing` says.
    """
    mix = phase.mix(directions)
    force = rows.jacobian.T if phase.identity else rows.jacobian.T @ mix
    constraint, target = rows.jacobian, rows.target
    if not phase.identity:
        constraint, target = constraint[phase.constrained], target[phase.constrained]

    def solved(kkt: KKT, even: Solution | None) -> Solution:
        a, m = kkt.solve(rows.drive, target)
        return Solution(rows, directions, mix, kkt, a, m, target - constraint @ a, even)

    now = solved(KKT(rows.mass, force, constraint), None)
    if not (now.kkt.redundant and len(phase.sticking)):
        return now
    return solved(now.kkt.weighted(friction_weights(phase, now.multipliers)), now)


def problem(phase: Phase, rows: Rows, static: Array, kinetic: Array) -> CoulombProblem:
    """Coulomb's law for the accelerations of the closed contacts; coefficients (k,) are theirs."""
    kkt = KKT(rows.mass, rows.jacobian.T, rows.jacobian)
    free = kkt.by_mass(rows.drive)
    size = np.abs(rows.jacobian) @ np.abs(free) + np.abs(rows.target)
    return CoulombProblem(
        kkt.response,
        rows.jacobian @ free - rows.target,
        phase.tangents,
        static,
        kinetic,
        tuple(_sliding(rows.rates[tangents]) for tangents in phase.tangents),
        float(size.max()),
    )


def _sliding(velocity: Array) -> Array | None:
    """The direction of a sliding velocity, None at a standstill."""
    speed = float(np.linalg.norm(velocity))
    return velocity / speed if speed > STANDSTILL else None


def moved_multipliers(
    phase: Phase, now: Solution, turned: Callable[[Array], Array], even_z: Array | None
) -> Array:
    """What derivatives (m, .) of multipliers have beyond those of the equations themselves.

    With G^T y = W^-1 lambda and the residual r = c - G lambda,

        P (W D(G^T) y + D(W) W^-1 lambda) + G^+ (G^+)^T D(G^T) r,

    P and the pseudo-inverse G^+ being those of the metric of the weights. turned(y): D(G^T) y
    (m, .). even_z (m, .): derivatives of the multipliers of the solve of equal weights, None where
    `now` is one. Raises `SimulationError` where contacts share friction but carry no load.
    """
    kkt = now.kkt
    change = kkt.weights[:, None] * turned(kkt.adjoint(now.multipliers))
    if now.even is not None and even_z is not None:
        share = now.multipliers / kkt.weights
        change += share[:, None] * weights_derivative(phase, now.even.multipliers, even_z)
    moved = kkt.indeterminate() @ change
    wanted = now.rows.jacobian[phase.constrained] @ now.acceleration
    scale = np.abs(wanted).max() + np.abs(now.rows.jacobian).max() * np.abs(now.acceleration).max()
    if np.abs(now.residual).max() > _CONSISTENT * scale:
        moved += kkt.least_squares(turned(now.residual))
    return np.asarray(moved)


def along_rows(phase: Phase, now: Solution, y: Array) -> tuple[Array, Array]:
    """y (m,) along all rows (r,), and z = M^-1 C^T y (nv,): D(G^T) y is D(F^T z) at fixed y."""
    rows = np.zeros(len(phase.owner))
    rows[phase.constrained] = y
    return rows, now.kkt.by_mass(now.rows.jacobian.T @ rows)
