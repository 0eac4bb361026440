r"""The distance on the glued space: shortest paths that may jump, [Relax] (2).

Every guard is glued to its image under the reset, so that trajectories are continuous. The distance
of two states is the length of the shortest path between them that goes straight within modes and
jumps at guards for nothing, forwards or backwards. It is a metric on classes of glued states only:
a plastic reset glues all states before impacts that end alike, which then have no distance.

A path with a given sequence of jumps is a convex programme, for affine guards and resets: a sum of
Euclidean norms over the points of the jumps, on the part of each guard that is fallen through.
Resets that stretch a guard into itself collapse the distance along it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import clarabel
import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from hybridctl.base.checks import Array, check_count, check_instance, check_number, check_vector
from hybridctl.base.errors import InputError, SystemDefinitionError
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.relaxation.chart import passage

_IDLE = 2  # further jumps without a shorter path, after which no more are tried
_AFFINE = 1e-10  # of the largest entry, or of 1: by how much an affine map may differ from its fit
_ROUNDING = 1e-15  # of the largest entry, or of 1


@dataclass(frozen=True, eq=False)
class GluedGuard:
    """The part of a guard that is fallen through, and its image.

    Points are origin + basis s, those with slope . s <= level; their images are image + turn s.
    basis (n, n - 1), turn (n', n - 1), slope (n - 1,).
    """

    source: ModeKey
    target: ModeKey
    origin: Array
    basis: Array
    image: Array
    turn: Array
    slope: Array
    level: float

    def points(self, s: Array) -> tuple[Array, Array]:
        """The point s of the guard, and its image."""
        return self.origin + self.basis @ s, self.image + self.turn @ s

    def sides(self, backwards: bool) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """Offset and matrix of where a path arrives and of where it goes on."""
        here, there = (self.origin, self.basis), (self.image, self.turn)
        return (there, here) if backwards else (here, there)

    def fallen(self, s: Array) -> Array:
        """The point s, put back onto the part of the guard that is fallen through."""
        excess = float(self.slope @ s) - self.level
        if excess <= 0.0:
            return s
        return np.asarray(s - self.slope * (excess / float(self.slope @ self.slope)))


class GuardPassage(NamedTuple):
    """A jump of a path: the index of a gate, and whether it is gone through backwards."""

    gate: int
    backwards: bool


@dataclass(frozen=True, eq=False)
class GluedPath:
    """A path: its length, its jumps, and the points (arrival, departure) of each of them.

    The length is that of these points, which are feasible: an upper bound of the distance, whatever
    found them.
    """

    length: float
    jumps: tuple[GuardPassage, ...]
    points: tuple[tuple[Array, Array], ...]


class GluedSpace:
    """The states of a system, glued along its guards; see the module.

    The guards and resets of the given modes (by default those that can be reached from them) have
    to be affine, as has the rate at which a guard is fallen through. Raises
    `SystemDefinitionError` where they are not.
    """

    def __init__(self, system: HybridSystem, modes: Sequence[ModeKey]) -> None:
        self.system = check_instance("system", system, HybridSystem)
        self.gates: list[GluedGuard] = []
        pending, known = list(modes), set(modes)
        while pending:
            key = pending.pop()
            for gate in gates_of(system, key):
                self.gates.append(gate)
                if gate.target not in known:
                    known.add(gate.target)
                    pending.append(gate.target)
        self.modes = frozenset(known)

    def distance(
        self, mode: ModeKey, x: ArrayLike, other_mode: ModeKey, y: ArrayLike, max_jumps: int = 6
    ) -> float:
        """The length of `shortest`; infinite where no path joins the modes."""
        path = self.shortest(mode, x, other_mode, y, max_jumps)
        return math.inf if path is None else path.length

    def shortest(
        self, mode: ModeKey, x: ArrayLike, other_mode: ModeKey, y: ArrayLike, max_jumps: int = 6
    ) -> GluedPath | None:
        """The shortest path found from state x of `mode` to y of `other_mode`.

        Sequences of jumps are tried by their number, until two further jumps have brought nothing,
        or max_jumps. Raises `InputError` for states of the wrong size and modes not in this space.
        """
        for key in (mode, other_mode):
            if key not in self.modes:
                raise InputError(f"mode {key!r} is not in this space, it has {set(self.modes)}")
        start = check_vector("x", x, self.system.mode(mode).space.nx)
        end = check_vector("y", y, self.system.mode(other_mode).space.nx)
        best: GluedPath | None = None
        idle = 0
        for number_of in range(check_count("max_jumps", max_jumps, at_least=0) + 1):
            before = best
            for jumps in self._walks(mode, other_mode, number_of):
                if best is None or self._least(jumps, start, end) < best.length:
                    path = self._path(jumps, start, end)
                    best = path if best is None or path.length < best.length else best
            idle = idle + 1 if best is not None and best is before else 0
            if idle == _IDLE:
                break
        return best

    def between(
        self, one: HybridTrajectory, other: HybridTrajectory, period: float, max_jumps: int = 2
    ) -> tuple[Array, Array]:
        """Times (m,) and distances (m,) of two trajectories, at all steps of `period` and events.

        Their supremum is the distance of the trajectories, whose events need not coincide. Raises
        `InputError` where they have no time in common.
        """
        start, end = max(one.start, other.start), min(one.end, other.end)
        if not start < end:
            raise InputError(
                f"trajectories on [{one.start}, {one.end}] and [{other.start}, {other.end}] s have "
                "no time in common"
            )
        steps = math.ceil((end - start) / check_number("period", period, above=0.0))
        events = [e.time for run in (one, other) for e in run.events if start <= e.time <= end]
        times = np.unique(np.concatenate([np.linspace(start, end, steps + 1), events]))
        modes = [one.arc(t).mode for t in times.tolist()]
        states = [one(t) for t in times.tolist()]
        return times, self.beside(times, modes, states, other, max_jumps)

    def beside(
        self,
        times: ArrayLike,
        modes: Sequence[ModeKey],
        states: Sequence[ArrayLike],
        run: HybridTrajectory,
        max_jumps: int = 2,
    ) -> Array:
        """Distances (m,) of samples, such as those of a log, to a trajectory at their times."""
        rows = zip(check_vector("times", times).tolist(), modes, states, strict=True)
        return np.array(
            [self.distance(key, x, run.arc(t).mode, run(t), max_jumps) for t, key, x in rows]
        )

    def _walks(self, mode: ModeKey, end: ModeKey, jumps: int) -> Iterator[tuple[GuardPassage, ...]]:
        """Sequences of so many jumps that lead from one mode to the other."""
        if jumps == 0:
            if mode == end:
                yield ()
            return
        for k, gate in enumerate(self.gates):
            for backwards, (here, there) in (
                (False, (gate.source, gate.target)),
                (True, (gate.target, gate.source)),
            ):
                if here == mode:
                    for rest in self._walks(there, end, jumps - 1):
                        yield (GuardPassage(k, backwards), *rest)

    def _least(self, jumps: tuple[GuardPassage, ...], x: Array, y: Array) -> float:
        """A lower bound of a path with these jumps: its first and its last leg."""
        if not jumps:
            return 0.0
        first = self.gates[jumps[0].gate].sides(jumps[0].backwards)[0]
        last = self.gates[jumps[-1].gate].sides(jumps[-1].backwards)[1]
        return _apart(*first, x) + _apart(*last, y)

    def _path(self, jumps: tuple[GuardPassage, ...], x: Array, y: Array) -> GluedPath:
        gates = [self.gates[jump.gate] for jump in jumps]
        backwards = [jump.backwards for jump in jumps]
        if not jumps:
            return GluedPath(float(np.linalg.norm(y - x)), (), ())
        points, length, at = [], 0.0, x
        for gate, back, s in zip(gates, backwards, _programme(gates, backwards, x, y), strict=True):
            here, there = gate.points(s)
            arrival, departure = (there, here) if back else (here, there)
            points.append((arrival, departure))
            length, at = length + float(np.linalg.norm(arrival - at)), departure
        return GluedPath(length + float(np.linalg.norm(y - at)), jumps, tuple(points))


def _apart(offset: Array, directions: Array, point: Array) -> float:
    """The distance of a point from the affine space offset + directions s."""
    away = point - offset
    nearest = directions @ np.linalg.lstsq(directions, away, rcond=None)[0]
    return float(np.linalg.norm(away - nearest))


def _programme(
    gates: Sequence[GluedGuard], backwards: Sequence[bool], x: Array, y: Array
) -> list[Array]:
    """The points of a path with these jumps, by a cone programme: the sum of its legs' lengths."""
    sizes = [gate.basis.shape[1] for gate in gates]
    starts = np.cumsum([0, *sizes])
    legs, unknowns = len(gates) + 1, int(starts[-1])
    rows, right, cones = [], [], []
    offset, matrix = x, np.zeros((len(x), unknowns))
    for k in range(legs):
        if k < len(gates):
            (here, turn), (there, on) = gates[k].sides(backwards[k])
            arrival = np.zeros((len(here), unknowns))
            arrival[:, starts[k] : starts[k + 1]] = turn
        else:
            here, arrival = y, np.zeros((len(y), unknowns))
        lengths = np.zeros((1 + len(here), legs))
        lengths[0, k] = -1.0
        rows.append(np.hstack([lengths, np.vstack([np.zeros(unknowns), matrix - arrival])]))
        right.append(np.append(0.0, here - offset))
        cones.append(clarabel.SecondOrderConeT(1 + len(here)))
        if k < len(gates):
            offset, matrix = there, np.zeros((len(there), unknowns))
            matrix[:, starts[k] : starts[k + 1]] = on
    limits = np.zeros((len(gates), legs + unknowns))
    for k, gate in enumerate(gates):
        limits[k, legs + starts[k] : legs + starts[k + 1]] = gate.slope
    rows.append(limits)
    right.append(np.array([gate.level for gate in gates]))
    cones.append(clarabel.NonnegativeConeT(len(gates)))
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
    size = legs + unknowns
    cost = np.append(np.ones(legs), np.zeros(unknowns))
    solver = clarabel.DefaultSolver(
        sparse.csc_matrix((size, size)),
        cost,
        sparse.csc_matrix(np.vstack(rows)),
        np.concatenate(right),
        cones,
        settings,
    )
    s = np.array(solver.solve().x)[legs:]
    return [gate.fallen(s[starts[k] : starts[k + 1]]) for k, gate in enumerate(gates)]


def gates_of(system: HybridSystem, key: ModeKey) -> Iterator[GluedGuard]:
    """The glued guards of a mode."""
    mode = system.mode(key)
    for name in system.outgoing(key).guards.names:
        border, reset, target = passage(system, key, name)
        points = border.points
        feet = np.array([x for _, x, _ in points])
        images = np.array([reset(t, x, u).state for t, x, u in points])
        rates = []
        for t, x, u in points:
            rate, slope = border.derivative(t, x, u)
            rates.append(rate + float(slope @ mode.field(t, x, u)))
        slope = border.derivative(*points[0])[1]
        basis = np.linalg.svd(slope[None])[2][1:].T
        origin = slope * (float(slope @ feet[0]) / float(slope @ slope))
        s = (feet - origin) @ basis
        flat = _fit(s, feet, f"guard {name!r} of mode {key!r}")
        image = _fit(s, images, f"the reset of guard {name!r} of mode {key!r}")
        speed = _fit(s, np.array(rates)[:, None], f"the rate of guard {name!r} of mode {key!r}")
        yield GluedGuard(
            key, target.key, flat[0], flat[1:].T, image[0], image[1:].T, speed[1:, 0],
            -float(speed[0, 0]),
        )  # fmt: skip


def _fit(s: Array, values: Array, what: str) -> Array:
    """Offset and slopes (1 + n, m) of an affine map of s; `SystemDefinitionError` for another."""
    known = np.hstack([np.ones((len(s), 1)), s])
    found = np.linalg.lstsq(known, values, rcond=None)[0]
    if np.abs(known @ found - values).max() > _AFFINE * max(1.0, float(np.abs(values).max())):
        raise SystemDefinitionError(f"{what} is not affine, so that its distance is not known")
    found[np.abs(found) < _ROUNDING * np.abs(found).max(initial=1.0)] = 0.0
    return np.asarray(found)
