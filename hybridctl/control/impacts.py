r"""The change of velocity that the impact of a reference's event can cause, whole or in part.

While an impact lasts, or some of its contacts have not touched yet, the velocity lies in the set

.. math:: \{ v^- + M^{-1} J^\top \Lambda, \; l \le \Lambda \le b \},

with the mass matrix M, the rows J of all contacts that can be hit, and impulses :math:`\Lambda`
between none and all that is planned. A velocity is compared there with the nearest point of this
set, in the metric of the kinetic energy. The rest is an error that no impulse explains.

Impulses far beyond their bounds are not believed. An estimator that learns of an impact late
overshoots when it catches up, and stiff gains would answer that with torque.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hybridctl.base.checks import Array, check_array, check_count, check_sequence
from hybridctl.base.errors import InputError
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event
from hybridctl.mechanics.system import ContactSystem

_MAX_IMPULSE_SWEEPS = 200
"""Greatest number of sweeps of the projected Gauss-Seidel iteration over all impulses. A choice."""
_IMPULSE_TOLERANCE = 1e-12
"""Change of an impulse in a sweep, relative to the largest one, at which the iteration ends."""
_IMPULSE_RANK_TOLERANCE = 1e-9
"""Singular value, relative to the largest, below which impulses count as dependent."""


@dataclass(frozen=True, eq=False)
class Impact:
    r"""The impact of an event: what impulses within bounds do to the velocity.

    Of a robot, the rows J are the normals of all contacts that take part in any order of the
    event's touches, then the tangents of those with friction. A normal impulse is at most the
    largest of all orders, a tangential one the coefficient of friction times that. Of other
    systems, M is the identity, the rows are the changes of velocity by each guard's own reset, and
    impulses go from 0 to 1.

    Attributes:
        mass: Mass matrix M (nv, nv).
        jacobian: Rows J (m, nv).
        least: Least impulses l (m,), N s.
        greatest: Greatest impulses b (m,), N s.
    """

    mass: Array
    jacobian: Array
    least: Array
    greatest: Array

    @cached_property
    def response(self) -> Array:
        """The response M^-1 J' (nv, m): velocities by unit impulses."""
        return np.asarray(np.linalg.solve(self.mass, self.jacobian.T))

    def explanation(self, velocities: Sequence[int] | None = None) -> Explanation:
        """Return what the impact can do to some of the velocities.

        Args:
            velocities: Indices of the velocities; None for all.

        Raises:
            InputError: There is no velocity of such an index.
        """
        nv = len(self.mass)
        chosen = list(range(nv)) if velocities is None else check_sequence("velocities", velocities)
        for i in chosen:
            if check_count("velocities", i, at_least=0) >= nv:
                raise InputError(f"velocities must be below {nv}, got {i}")
        response, metric = self.response[chosen], self.mass[np.ix_(chosen, chosen)]
        return Explanation(tuple(chosen), response, metric, self.least, self.greatest)


@dataclass(frozen=True, eq=False)
class Explanation:
    """The changes B Lambda of some velocities by impulses within bounds.

    Attributes:
        velocities: Indices (k,) of the velocities.
        response: Response B (k, m) of these velocities to impulses.
        metric: Metric W (k, k) in which changes are compared, positive definite.
        least: Least impulses (m,), N s.
        greatest: Greatest impulses (m,), N s.
    """

    velocities: tuple[int, ...]
    response: Array
    metric: Array
    least: Array
    greatest: Array

    @cached_property
    def projector(self) -> Array:
        """The projector I - B (B' W B)^+ B' W (k, k) off what impulses of any size can do."""
        return np.asarray(np.eye(len(self.response)) - self.response @ self._unbounded_map)

    def fit_impulses(self, change: Array) -> list[float]:
        """Return the impulses (m,) within bounds whose change of velocity is nearest.

        They minimise |B Lambda - change| in the metric W. If the impulses of least norm without
        bounds are within the bounds, they are these; else projected Gauss-Seidel sweeps find them,
        to 1e-12 of the largest or as far as 200 sweeps come.

        Args:
            change: Change (k,) of the velocities.
        """
        unbounded = self._unbounded_map @ change
        if (unbounded >= self.least).all() and (unbounded <= self.greatest).all():
            return list(unbounded.tolist())
        gram, least, greatest, weighted = self._normal_equations
        target: list[float] = (weighted @ change).tolist()
        impulses = [0.0] * len(target)
        for _ in range(_MAX_IMPULSE_SWEEPS):
            step = size = 0.0
            for i, row in enumerate(gram):
                old = impulses[i]
                residual = target[i] - sum(g * x for g, x in zip(row, impulses, strict=True))
                new = min(max(old + residual / row[i], least[i]), greatest[i])
                impulses[i] = new
                step, size = max(step, abs(new - old)), max(size, abs(new))
            if step <= _IMPULSE_TOLERANCE * size:
                break
        return impulses

    def explain(self, change: Array) -> Array:
        """Return the change (k,) by impulses within bounds that is nearest to a given one (k,)."""
        return np.asarray(self.response @ self.fit_impulses(change))

    def scale_bounds(self, factor: float) -> Explanation:
        """Return a copy with its bounds times a factor, which may be infinite; zeros stay zero."""
        least, greatest = (
            np.multiply(bounds, factor, out=np.zeros_like(bounds), where=bounds != 0.0)
            for bounds in (self.least, self.greatest)
        )
        return replace(self, least=least, greatest=greatest)

    @cached_property
    def _unbounded_map(self) -> Array:
        """The map (m, k) from a change to its impulses without bounds."""
        weighted = self.response.T @ self.metric
        return np.asarray(
            np.linalg.pinv(weighted @ self.response, rcond=_IMPULSE_RANK_TOLERANCE) @ weighted
        )

    @cached_property
    def _normal_equations(self) -> tuple[list[list[float]], list[float], list[float], Array]:
        """The matrix B' W B, both bounds, and B' W.

        Impulses that move none of the velocities are fixed at 0 by bounds of 0, and have 1 on the
        diagonal, by which sweeps divide.
        """
        weighted = self.response.T @ self.metric
        gram = weighted @ self.response
        smallest = _IMPULSE_RANK_TOLERANCE**2 * max(np.diag(gram).max(), np.finfo(float).tiny)
        without_effect = np.diag(gram) <= smallest
        gram[without_effect, without_effect] = 1.0
        least, greatest = (
            np.where(without_effect, 0.0, bounds).tolist() for bounds in (self.least, self.greatest)
        )
        return gram.tolist(), least, greatest, weighted


class VelocityResidual:
    """The part of a change of velocity that no planned impulse explains.

    A change that would need impulses beyond (1 + excess) times the planned bounds is taken for an
    error of the measurement: what lies beyond is left out of the residual too. With the nearest
    points p, c and a of the change in the sets of planned, credible and unlimited impulses, the
    residual is (change - p) - (a - c).

    Args:
        explanation: What the planned impulses can do.
        excess: Part of its bounds by which an impulse may exceed them and be believed.
    """

    def __init__(self, explanation: Explanation, excess: float) -> None:
        self.velocities = explanation.velocities
        self._planned_set = explanation
        self._credible_set = explanation.scale_bounds(1.0 + excess)
        self._unlimited_set = explanation.scale_bounds(math.inf)

    def __call__(self, change: Array) -> Array:
        """Return the residual (k,) of a change (k,) of the velocities."""
        residual = change - self._planned_set.explain(change)
        incredible = self._unlimited_set.explain(change) - self._credible_set.explain(change)
        return np.asarray(residual - incredible)


def find_impact(
    system: HybridSystem, event: Event, impulses: Sequence[Array], single_states: Sequence[Array]
) -> Impact | None:
    """Return the impact of an event.

    Args:
        system: The system.
        event: The event.
        impulses: Impulses (contacts,) in N s of the resets of all orders of the event's guards.
        single_states: State (nx,) after the reset of each guard alone.

    Returns:
        The impact. None where no order has an impulse or changes a velocity, and where a reset of a
        system without contacts leads to a state of another size.
    """
    if system.mechanism is not None:
        return _find_contact_impact(system.mechanism, event, impulses)
    before = event.state_before
    if any(state.shape != before.shape for state in single_states):
        return None  # modes of different dimension have no velocities in common
    nv = system.mode(event.mode_before).space.ndx // 2
    rows = [(state - before)[len(before) - nv :] for state in single_states]
    rows = [row for row in rows if np.abs(row).max(initial=0.0) > 0.0]
    if not rows:
        return None
    return Impact(np.eye(nv), check_array("rows", rows), np.zeros(len(rows)), np.ones(len(rows)))


def _find_contact_impact(
    system: ContactSystem, event: Event, impulses: Sequence[Array]
) -> Impact | None:
    """Return the impact of all contacts that have an impulse in any order of the touches."""
    candidates = [p for p in (*impulses, event.impulses) if p.size]
    if not candidates:
        return None
    greatest = np.max(candidates, axis=0)
    hit = np.flatnonzero(greatest > 0.0)
    if not hit.size:
        return None
    dynamics, q = system.dynamics, event.state_before[: system.robot.nq]
    rows, bounds = [dynamics.gap_jacobian(q)[hit]], [greatest[hit]]
    tangents = dynamics.tangent_jacobian(q)
    for i in hit:
        friction = system.contacts[i].friction
        if friction > 0.0:
            own = tangents[i][tangents[i].any(axis=1)]  # a contact in a plane has one tangent
            rows.append(own)
            bounds.append(np.full(len(own), friction * greatest[i]))
    most = np.concatenate(bounds)
    # A surface pushes only, so normal impulses begin at zero; friction acts in both directions.
    least = np.where(np.arange(len(most)) < len(hit), 0.0, -most)
    return Impact(system.robot.mass_matrix(q), np.vstack(rows), least, most)
