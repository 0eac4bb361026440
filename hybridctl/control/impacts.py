r"""What the impact of a reference's event does to velocities, whole or in part.

While an impact lasts, or some of its contacts have not touched yet, the velocity is somewhere in

.. math:: \{ v^- + M^{-1} J^\top \Lambda, \; l \le \Lambda \le b \},

with the mass matrix M, the rows J of what can be hit, and impulses :math:`\Lambda` between none and
all that is planned. A velocity is compared there with the nearest point of this set, in the metric
of the kinetic energy; what is left over is an error that no impulse explains.

Impulses that would have to exceed their bounds by far are not believed. An estimate that learns of
an impact late catches up by overshooting, and stiff gains would answer that with torque.
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

_SWEEPS = 200
_SETTLED = 1e-12  # relative change of impulses
_RANK = 1e-9


@dataclass(frozen=True, eq=False)
class Impact:
    r"""The impact of an event: M (nv, nv), J (m, nv), and bounds of the impulses (m,).

    Of a robot, the rows are the normals of all contacts that take part in any order of its
    touches, then the tangents of those with friction. A normal impulse goes up to the largest of
    all orders, a tangential one up to the coefficient of friction times that. Of other systems, M
    is the identity, the rows are the changes of velocity by each guard's own reset, and impulses
    go from 0 to 1.
    """

    mass: Array
    jacobian: Array
    least: Array
    greatest: Array

    @cached_property
    def response(self) -> Array:
        """The response M^-1 J', (nv, m): velocities by unit impulses."""
        return np.asarray(np.linalg.solve(self.mass, self.jacobian.T))

    def explanation(self, velocities: Sequence[int] | None = None) -> Explanation:
        """The part of a change of some velocities, or of all, that this impact can explain.

        Raises `InputError` for velocities that there are not.
        """
        nv = len(self.mass)
        kept = list(range(nv)) if velocities is None else check_sequence("velocities", velocities)
        for i in kept:
            if check_count("velocities", i, at_least=0) >= nv:
                raise InputError(f"velocities must be below {nv}, got {i}")
        response, metric = self.response[kept], self.mass[np.ix_(kept, kept)]
        return Explanation(tuple(kept), response, metric, self.least, self.greatest)


@dataclass(frozen=True, eq=False)
class Explanation:
    """The part of a change of some velocities (k,) that impulses within bounds explain.

    response B (k, m): of these velocities to impulses; metric W (k, k), positive definite.
    """

    velocities: tuple[int, ...]
    response: Array
    metric: Array
    least: Array
    greatest: Array

    @cached_property
    def projector(self) -> Array:
        """The projector I - B (B' W B)^+ B' W, (k, k): what impulses of any size do not explain."""
        return np.asarray(np.eye(len(self.response)) - self.response @ self._free)

    def impulses(self, change: Array) -> list[float]:
        """The impulses (m,) within their bounds that come nearest to a change (k,)."""
        free = self._free @ change
        if (free >= self.least).all() and (free <= self.greatest).all():
            return list(free.tolist())
        rows, least, greatest, weighted = self._problem
        wanted: list[float] = (weighted @ change).tolist()
        found = [0.0] * len(wanted)
        for _ in range(_SWEEPS):
            moved = size = 0.0
            for i, row in enumerate(rows):
                now = found[i]
                rest = wanted[i] - sum(g * x for g, x in zip(row, found, strict=True))
                new = min(max(now + rest / row[i], least[i]), greatest[i])
                found[i] = new
                moved, size = max(moved, abs(new - now)), max(size, abs(new))
            if moved <= _SETTLED * size:
                break
        return found

    def explained(self, change: Array) -> Array:
        """The nearest change (k,) of the velocities that impulses within their bounds make."""
        return np.asarray(self.response @ self.impulses(change))

    def scaled(self, factor: float) -> Explanation:
        """The explanation with its impulse bounds multiplied by a factor; bounds of zero stay."""
        least, greatest = (
            np.multiply(bounds, factor, out=np.zeros_like(bounds), where=bounds != 0.0)
            for bounds in (self.least, self.greatest)
        )
        return replace(self, least=least, greatest=greatest)

    @cached_property
    def _free(self) -> Array:
        """The impulses (m, k) of changes where none of them is bounded."""
        weighted = self.response.T @ self.metric
        return np.asarray(np.linalg.pinv(weighted @ self.response, rcond=_RANK) @ weighted)

    @cached_property
    def _problem(self) -> tuple[list[list[float]], list[float], list[float], Array]:
        """The problem's B' W B, both bounds, and B' W; impulses that move nothing stay at zero."""
        weighted = self.response.T @ self.metric
        gram = weighted @ self.response
        idle = np.diag(gram) <= _RANK**2 * max(np.diag(gram).max(), np.finfo(float).tiny)
        gram[idle, idle] = 1.0
        least, greatest = (np.where(idle, 0.0, b).tolist() for b in (self.least, self.greatest))
        return gram.tolist(), least, greatest, weighted


class Unexplained:
    """What impulses within their bounds leave of a change of velocities, as far as it is believed.

    excess: by what part of its bounds an impulse may exceed them; what is beyond that is left out.
    """

    def __init__(self, explanation: Explanation, excess: float) -> None:
        self.velocities = explanation.velocities
        self._planned = explanation
        self._possible = explanation.scaled(1.0 + excess)
        self._any = explanation.scaled(math.inf)

    def __call__(self, change: Array) -> Array:
        """What is left of a change (k,)."""
        left = change - self._planned.explained(change)
        incredible = self._any.explained(change) - self._possible.explained(change)
        return np.asarray(left - incredible)


def impact_of(
    system: HybridSystem, event: Event, impulses: Sequence[Array], singles: Sequence[Array]
) -> Impact | None:
    """The impact of an event, None where it changes no velocity.

    impulses: those of the resets of all orders of its guards, in N s per contact. singles: the
    states after the reset of each guard alone.
    """
    if system.mechanism is not None:
        return _of_contacts(system.mechanism, event, impulses)
    before = event.state_before
    if any(state.shape != before.shape for state in singles):
        return None
    nv = system.mode(event.mode_before).space.ndx // 2
    rows = [(state - before)[len(before) - nv :] for state in singles]
    rows = [row for row in rows if np.abs(row).max(initial=0.0) > 0.0]
    if not rows:
        return None
    return Impact(np.eye(nv), check_array("rows", rows), np.zeros(len(rows)), np.ones(len(rows)))


def _of_contacts(system: ContactSystem, event: Event, impulses: Sequence[Array]) -> Impact | None:
    """The impact of contacts that take part in any order."""
    found = [p for p in (*impulses, event.impulses) if p.size]
    if not found:
        return None
    greatest = np.max(found, axis=0)
    hit = np.flatnonzero(greatest > 0.0)
    if not hit.size:
        return None
    dynamics, q = system.dynamics, event.state_before[: system.robot.nq]
    rows, bounds = [dynamics.gap_jacobian(q)[hit]], [greatest[hit]]
    tangents = dynamics.tangent_jacobian(q)
    for i in hit:
        friction = system.contacts[i].friction
        if friction > 0.0:
            moving = tangents[i][tangents[i].any(axis=1)]  # a contact in a plane has one tangent
            rows.append(moving)
            bounds.append(np.full(len(moving), friction * greatest[i]))
    most = np.concatenate(bounds)
    least = np.where(np.arange(len(most)) < len(hit), 0.0, -most)
    return Impact(system.robot.mass_matrix(q), np.vstack(rows), least, most)
