r"""Coulomb's law for a set of contacts: the problem, its solution, and the certificate.

With f the impulses (or forces) and w = G f + b the velocities (or accelerations) of the rows of
the contacts, each contact is in one of these states:

.. math::
    \text{open: } & f = 0,\ w_n \ge 0; \qquad
    \text{closed: } w_n = 0,\ f_n \ge 0, \text{ and} \\
    \text{stick: } & w_t = 0,\ |f_t| \le \mu_s f_n; \qquad
    \text{slip: } f_t = -\mu f_n s,\ w_t = |w_t| s.

A contact that slides already has its direction s given; then w_t is free. Restitution is part of
b. [RS] (2.25)-(2.28), (2.53)-(2.59).

Errors are in units of the data, never of the answer: velocities in units of V, the size of the
terms whose sum is b, and forces of contact i in units of F_i = V / g_i, g_i the largest entry of
the diagonal of its block of G. Forces that are large therefore excuse nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import hypot, sqrt
from typing import Literal, TypeAlias

import numpy as np

from hybridctl.base.checks import Array, Indices, is_finite
from hybridctl.mechanics.coulomb.contact_states import (
    CLOSED,
    OPEN,
    SLIP,
    SLIP_MINUS,
    SLIP_PLUS,
    SLIPS,
    STICK,
    Modes,
)

Uniqueness: TypeAlias = Literal["proven", "disproven", "not established"]
"""Whether the rates of a solution are the only ones that obey the law; forces need not be."""

CERTIFIED = 1e-9
BORDER = 1e-9
_LIGHTEST = 1e-6


@dataclass(frozen=True)
class CoulombProblem:
    """The law w = G f + b of k contacts: rows 0..k-1 are normals, `tangents` those of each.

    delassus G (r, r), free b (r,); `static` and `kinetic` friction (k,); `sliding` the unit
    directions of contacts that slide already, in the coordinates of their tangents, or None.
    `magnitude`: size of the terms whose sum is b, to which rounding and tolerances are relative.
    """

    delassus: Array
    free: Array
    tangents: tuple[Indices, ...]
    static: Array
    kinetic: Array
    sliding: tuple[Array | None, ...]
    magnitude: float = 0.0

    def choices(self, i: int) -> Modes:
        """The states contact i can be in."""
        rows, direction = self.tangents[i], self.sliding[i]
        if len(rows) == 0:
            return (OPEN, CLOSED)
        if len(rows) == 2:
            return (OPEN, SLIP) if direction is not None else (OPEN, STICK, SLIP)
        if direction is not None:
            return (OPEN, SLIP_PLUS if direction[0] > 0.0 else SLIP_MINUS)
        return (OPEN, STICK, SLIP_PLUS, SLIP_MINUS)

    def turns(self, i: int, mode: str) -> bool:
        """Whether the direction in which contact i slides is part of the solution."""
        return mode == SLIP and self.sliding[i] is None

    def part(self, kept: Sequence[int]) -> CoulombProblem:
        """The problem of some contacts, while the others are open."""
        sizes = [len(self.tangents[i]) for i in kept]
        rows = np.concatenate((np.array(kept, dtype=np.intp), *(self.tangents[i] for i in kept)))
        places = np.split(np.arange(len(kept), len(rows)), np.cumsum(sizes[:-1], dtype=np.intp))
        return CoulombProblem(
            self.delassus[np.ix_(rows, rows)],
            self.free[rows],
            tuple(places[: len(kept)]),
            self.static[kept],
            self.kinetic[kept],
            tuple(self.sliding[i] for i in kept),
            self.magnitude,
        )

    @cached_property
    def contacts(self) -> list[tuple[int, list[int], float, float, list[float] | None]]:
        """Each contact's number, tangent rows, static and kinetic friction, given direction."""
        columns = zip(
            self.tangents, self.static.tolist(), self.kinetic.tolist(), self.sliding, strict=True
        )
        return [
            (i, rows.tolist(), static, kinetic, None if given is None else given.tolist())
            for i, (rows, static, kinetic, given) in enumerate(columns)
        ]


@dataclass(frozen=True)
class CoulombSolution:
    """Impulses or forces (r,), velocities or accelerations of the rows (r,), and the states.

    `directions`: in which each contact slides, None if it does not. `border`: contacts whose
    state may change under the least perturbation. `residual`: the largest violation of the
    law, in units of the data, and `astray` that by rates alone. `uniqueness`: whether other rates
    obey the law too.
    """

    forces: Array
    rates: Array
    modes: Modes
    directions: tuple[Array | None, ...]
    border: tuple[int, ...]
    residual: float
    astray: float
    uniqueness: Uniqueness = "not established"


@dataclass(frozen=True)
class Units:
    """Units of the forces (r,) and rates (r,) of a problem: f and w are these times f' and w'."""

    forces: Array
    rates: Array

    def of(self, solution: CoulombSolution) -> CoulombSolution:
        """A solution of the problem without units, with units."""
        forces, rates = self.forces * solution.forces, self.rates * solution.rates
        return replace(solution, forces=forces, rates=rates)


def scaled(problem: CoulombProblem) -> tuple[CoulombProblem, Units]:
    r"""The problem without units, in which G is symmetric still and has diagonal blocks of one.

    With :math:`d_i = \sqrt{g / g_i}`, g the largest g_i: f_i = (V / g) d_i f'_i and
    w_i = V w'_i / d_i, so that an error in f' or w' is no smaller in the units of the data
    (d_i >= 1). Contacts lighter than 1e-6 of the heaviest count as that.
    """
    diagonal = problem.delassus.diagonal().tolist()
    lengths = [
        max([diagonal[i], *[diagonal[row] for row in rows]]) for i, rows, *_ in problem.contacts
    ]
    each, largest = stretches(lengths)
    d = np.empty(len(diagonal))
    for (i, rows, *_), stretch in zip(problem.contacts, each, strict=True):
        d[i] = d[rows] = stretch
    speed = max([problem.magnitude, *map(abs, problem.free.tolist())]) or 1.0
    units = Units((speed / largest) * d, speed / d)
    plain = CoulombProblem(
        problem.delassus * (d[:, None] * (d / largest)),
        problem.free / units.rates,
        problem.tangents,
        problem.static,
        problem.kinetic,
        problem.sliding,
        1.0,
    )
    return plain, units


def stretches(responses: list[float]) -> tuple[list[float], float]:
    """The units d_i of forces of contacts that respond by g_i, see `scaled`, and the largest g."""
    largest = max(responses, default=0.0) or 1.0
    return [sqrt(largest / max(g, _LIGHTEST * largest)) for g in responses], largest


def judged(problem: CoulombProblem, forces: Array, modes: Modes | None = None) -> CoulombSolution:
    """The miss of forces, without units, by the law, in given states or those shown.

    A contact is shown closed, and sticking, if it may be by 1e-9. Before, forces of open contacts
    and normal ones that pull by that little are put to zero, and friction of sliding ones on its
    ray.
    """
    forces = forces.copy()
    rates = problem.delassus @ forces + problem.free
    shown: list[str] = []
    directions: list[Array | None] = []
    for i, rows, _, kinetic, given in problem.contacts:
        push, rate = forces[[i, *rows]].tolist(), rates[[i, *rows]].tolist()
        mode = _shown(push, rate, given) if modes is None else modes[i]
        direction = None
        if -BORDER <= push[0] < 0.0:
            push[0] = forces[i] = 0.0
        if mode == OPEN:
            forces[[i, *rows]] = 0.0
        elif mode != STICK and rows:
            direction = _direction(mode, push[1:], rate[1:], given)
            forces[rows] = -kinetic * push[0] * direction
        shown.append(mode)
        directions.append(direction)
    rates = problem.delassus @ forces + problem.free
    pulls, misses, border = [0.0], [0.0], []
    for (i, rows, static, _, given), mode, s in zip(
        problem.contacts, shown, directions, strict=True
    ):
        push, rate = forces[[i, *rows]].tolist(), rates[[i, *rows]].tolist()
        slack, moves = push[0], np.inf
        if mode == OPEN:
            slack, moves = np.inf, rate[0]
        else:
            misses.append(abs(rate[0]))
        if mode == STICK:
            misses.append(hypot(*rate[1:]))
            slack = min(slack, static * push[0] - hypot(*push[1:]))
        elif s is not None and given is None:
            moves = float(s @ rate[1:])
            misses.append(hypot(*(rate[1:] - moves * s)))
        pulls.append(-slack)
        misses.append(-moves)
        if min(slack, moves) <= BORDER:
            border.append(i)
    astray = max(misses) if is_finite(forces) else np.inf
    residual = max(astray, *pulls)
    return CoulombSolution(
        forces, rates, tuple(shown), tuple(directions), tuple(border), residual, astray
    )


def _shown(push: list[float], rate: list[float], given: list[float] | None) -> str:
    """The state of a contact by its forces and rates, the normal ones first."""
    if rate[0] - push[0] > BORDER:
        return OPEN
    if len(rate) == 1:
        return CLOSED
    if given is None and hypot(*rate[1:]) <= BORDER:
        return STICK
    if len(rate) == 3:
        return SLIP
    return SLIP_PLUS if (rate[1] if given is None else given[0]) > 0.0 else SLIP_MINUS


def _direction(
    mode: str, friction: list[float], slip: list[float], given: list[float] | None
) -> Array:
    """The direction in which a contact slides: that of w_t - f_t, which is never zero alone."""
    if given is not None:
        return np.array(given)
    if mode != SLIP:
        return np.array([SLIPS[mode]])
    along = [w - f for w, f in zip(slip, friction, strict=True)]
    length = hypot(*along)
    return np.array(along) / length if length > 0.0 else np.array([1.0, 0.0])
