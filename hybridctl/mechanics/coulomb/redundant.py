r"""Sets of contact states that hold rows which depend on each other: forces are not unique there.

With :math:`G = L L^T` rates are :math:`w = b + L y`, where :math:`y = L^T f` is what forces do to
the motion. Rows that are held at zero leave :math:`y = y_0 + Z \alpha`; with the directions of
sliding contacts known, :math:`f = E m` and

.. math:: L^T E m - Z \alpha = y_0, \qquad m \text{ in the cones}, \qquad
          w_n \ge 0 \text{ where open}, \qquad s \cdot w_t \ge 0 \text{ where it slides}

is a convex set of (m, :math:`\alpha`): a cone programme finds a point of it, or that there is none,
and others show how far :math:`\alpha`, and with it w, is open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import clarabel
import numpy as np

from hybridctl.base.checks import Array
from hybridctl.mechanics.coulomb.cones import ConeProgramme, cone_rows, multipliers
from hybridctl.mechanics.coulomb.contact_states import OPEN, SLIPS, STICK, Modes
from hybridctl.mechanics.coulomb.law import CoulombProblem
from hybridctl.mechanics.coulomb.newton import newton

_NO_RATE = 1e-11  # of the largest eigenvalue of G
_RANK_TOLERANCE = 1e-7
"""Singular values below it count as zero.

Relative to the largest norm of a row of L for the rows that are held, and to the largest singular
value for the equations of the multipliers."""
_LEAST_CHANGE = 1e-7
"""Size below which an alpha does not change along the free coordinates of m and alpha.

Absolute, as these coordinates are along unit vectors."""
_CONSISTENT = 1e-8  # of the data's scale
_STILL = 1e-7  # of the same: a sliding velocity without a direction
_MARGINS = (1e-5, -1e-9)  # of the largest multiplier: inside the cones, or on them
_PULL = 1e3  # weight of alpha beside the norm of multipliers
_SAMPLES = 12


class Motions(NamedTuple):
    """What held rows leave: y = start + null alpha, w = rates + change alpha."""

    independent: bool
    consistent: bool
    start: Array
    null: Array
    rates: Array
    change: Array


class Redundancy:
    """The rows of a problem without units by their reach L (r, d), set up once for all sets."""

    def __init__(self, problem: CoulombProblem) -> None:
        self._problem = problem
        values, vectors = np.linalg.eigh(problem.delassus)
        kept = values > _NO_RATE * values[-1]
        self._reach: Array = vectors[:, kept] * np.sqrt(values[kept])
        self._scale = float(np.linalg.norm(self._reach, axis=1).max(initial=0.0))
        self._known: dict[tuple[int, ...], Motions] = {}

    def split(self, sets: Sequence[Modes]) -> tuple[list[Modes], list[Modes]]:
        """Sets of states that hold independent rows, and the others."""
        if self._reach.shape[1] == len(self._reach):
            return list(sets), []
        regular: list[Modes] = []
        redundant: list[Modes] = []
        for modes in sets:
            (regular if self._motions(modes).independent else redundant).append(modes)
        return regular, redundant

    def forces(self, modes: Modes) -> Iterator[Array]:
        """Yield candidates of forces (r,) in these states, of which the rates may differ.

        Rows that are held have no rate. Where equations and directions leave one solution, it is
        yielded without a look at the cones (`_point`), so it may pull, or leave its friction cone.
        Callers judge each candidate by its residual, as `solve` does.
        """
        motions = self._motions(modes)
        if motions.consistent:
            for directions in self._directions(modes, motions):
                yield from self._in_cones(modes, directions, motions)

    def _motions(self, modes: Modes) -> Motions:
        held = _held(self._problem, modes)
        if held not in self._known:
            self._known[held] = self._free_of(list(held))
        return self._known[held]

    def _free_of(self, held: list[int]) -> Motions:
        free, rows = self._problem.free, self._reach[held]
        u, values, v = np.linalg.svd(rows)
        rank = int((values > _RANK_TOLERANCE * self._scale).sum())
        start = -v[:rank].T @ ((u[:, :rank].T @ free[held]) / values[:rank])
        missed = np.abs(rows @ start + free[held]).max(initial=0.0)
        null = v[rank:].T
        rates = free + self._reach @ start
        return Motions(
            rank == len(held), missed <= _CONSISTENT, start, null, rates, self._reach @ null
        )

    def _directions(self, modes: Modes, motions: Motions) -> Iterator[Array]:
        """Directions (r,) of what slides, of unit length for each contact.

        They follow from the states, from rates that are known, or from the only motion that is
        left, one way or the other; else those of Newton's method from several starts stand for
        all.
        """
        problem, known = self._problem, np.zeros(len(self._problem.free))
        ways: list[Array] = []
        turning: list[list[int]] = []
        for i, rows, _, _, given in problem.contacts:
            if modes[i] not in SLIPS or not rows:
                continue
            moves = np.abs(motions.change[rows]).max(initial=0.0) > _STILL
            if given is not None:
                known[rows] = given
            elif not moves and np.linalg.norm(motions.rates[rows]) <= _STILL:
                return  # it stands, which is among the sets in which it sticks
            elif len(rows) == 1:
                known[rows] = SLIPS[modes[i]]
            elif not moves:
                known[rows] = _unit(motions.rates[rows])
            else:
                turning.append(rows)
        if not turning:
            ways = [known]
        elif motions.change.shape[1] == 1 and all(
            np.linalg.norm(motions.rates[rows]) <= _STILL for rows in turning
        ):
            ways = [_along(known, turning, sign * motions.change[:, 0]) for sign in (1.0, -1.0)]
        else:
            ways = [_along(known, turning, w) for w in self._sampled(modes)]
        yield from ways

    def _sampled(self, modes: Modes) -> Iterator[Array]:
        """Rates (r,) that Newton's method meets in these states, from seeded starts."""
        problem, draw = self._problem, np.random.default_rng(0)
        for _ in range(_SAMPLES):
            start = 10.0 ** draw.uniform(-1.0, 1.0) * draw.normal(size=len(problem.free))
            start[: len(modes)] = np.abs(start[: len(modes)])
            forces = newton(problem, start, modes)
            yield problem.delassus @ forces + problem.free

    def _in_cones(self, modes: Modes, directions: Array, motions: Motions) -> Iterator[Array]:
        """Forces with these directions: of least multipliers, and those of most different rates."""
        each = zip(modes, self._problem.contacts, strict=True)
        slides = [directions[rows] if mode in SLIPS else None for mode, (_, rows, *_) in each]
        mix, cones = multipliers(self._problem, modes, slides)
        n = mix.shape[1]
        equations = np.hstack((self._reach.T @ mix, -motions.null))
        u, values, v = np.linalg.svd(equations)
        rank = int((values > _RANK_TOLERANCE * values.max(initial=0.0)).sum())
        z = v[:rank].T @ ((u[:, :rank].T @ motions.start) / values[:rank])
        if np.abs(equations @ z - motions.start).max(initial=0.0) > _CONSISTENT:
            return
        null = v[rank:].T
        limits, least = self._limits(modes, directions, motions, n)
        rows, kinds = cone_rows(cones, [], n + motions.null.shape[1])
        rows = np.vstack((limits, rows))
        offset = rows @ z
        offset[: len(least)] += least
        kinds = [clarabel.NonnegativeConeT(len(least))] * (len(least) > 0) + kinds
        size = max(1.0, float(np.abs(z[:n]).max(initial=0.0)))
        inner = _scalars(rows, kinds)
        for margin in _MARGINS:
            inside = offset - margin * size * inner
            found = _point(np.zeros(null.shape[1]), rows @ null, inside, kinds)
            if found is None:
                continue
            yield mix @ (z + null @ found)[:n]
            for pull in null[n:]:
                if np.abs(pull).max(initial=0.0) > _LEAST_CHANGE:
                    for sign in (_PULL * size, -_PULL * size):
                        other = _point(sign * pull, rows @ null, inside, kinds)
                        if other is not None:
                            yield mix @ (z + null @ other)[:n]
            return

    def _limits(
        self, modes: Modes, directions: Array, motions: Motions, n: int
    ) -> tuple[Array, Array]:
        """Rows (p, n + q) and constants (p,) of rates that are not negative."""
        rows, least = [], []
        for i, tangents, _, _, given in self._problem.contacts:
            if modes[i] == OPEN:
                rows.append(motions.change[i])
                least.append(motions.rates[i])
            elif modes[i] in SLIPS and given is None:
                s = directions[tangents]
                rows.append(s @ motions.change[tangents])
                least.append(s @ motions.rates[tangents])
        change = np.array(rows).reshape(len(rows), motions.null.shape[1])
        return np.hstack((np.zeros((len(rows), n)), change)), np.array(least)


def _held(problem: CoulombProblem, modes: Modes) -> tuple[int, ...]:
    """Rows whose rates are zero: normals of closed contacts, then tangents of sticking ones."""
    closed = [i for i, mode in enumerate(modes) if mode != OPEN]
    stuck = [row for i in closed if modes[i] == STICK for row in problem.contacts[i][1]]
    return (*closed, *stuck)


def _unit(w: Array) -> Array:
    return np.asarray(w / (float(np.linalg.norm(w)) or 1.0))


def _along(known: Array, turning: Sequence[list[int]], rates: Array) -> Array:
    """Directions with those of turning contacts along these rates."""
    directions: Array = known.copy()
    for rows in turning:
        directions[rows] = _unit(rates[rows])
    return directions


def _scalars(rows: Array, kinds: Sequence[object]) -> Array:
    """A vector inside the cones of these rows: 1 on scalar rows and axes, 0 across."""
    inner = np.ones(len(rows))
    circular = 3 * sum(isinstance(kind, clarabel.SecondOrderConeT) for kind in kinds)
    across = np.arange(len(rows) - circular, len(rows)).reshape(-1, 3)[:, 1:]
    inner[across.ravel()] = 0.0
    return inner


def _point(gradient: Array, rows: Array, offset: Array, kinds: list[object]) -> Array | None:
    """Return the point t (n,) of least |t|^2 / 2 + gradient . t, of those in the cones.

    Args:
        gradient: Gradient (n,) at t = 0.
        rows: Rows (p, n) of what has to be in the cones, rows t + offset.
        offset: Its value (p,) at t = 0.
        kinds: The cones.

    Returns:
        The point, None if the cone programme finds none. Without coordinates (n = 0) the empty
        point, whether or not the offset is in the cones.
    """
    if not len(gradient):
        return gradient  # there is nothing to choose, and the forces are judged by the caller
    found = ConeProgramme(np.eye(len(gradient)), gradient, rows, offset, kinds).solve()
    return found.point if found.solved else None
