r"""The distance on the glued space: shortest paths that may jump, [Relax] (2).

Every guard is glued to its image under the reset, so that trajectories are continuous. A path goes
straight within modes, and jumps at guards, forwards or backwards, at no cost. The distance of two
states is the length of the shortest path between them. It is a metric on classes of glued states: a
plastic reset glues all states before impacts that end alike, and their distance is zero.

For affine guards and resets a path with a given sequence of jumps is a convex programme: the sum of
the Euclidean lengths of its legs, over the points of its jumps, each on the part of its guard that
is crossed downwards. Resets that stretch a guard into itself collapse the distance along it.
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
from hybridctl.relaxation.gluing import find_transition

_MAX_IDLE_JUMPS = 2
"""Numbers of jumps in a row that have brought no shorter path, after which no larger one is tried.

The value is a choice. For a ball two jumps always suffice, and win for some 10 % of pairs."""
_AFFINE_TOLERANCE = 1e-10  # misfit of an affine map, relative to the largest value or to 1
_ZERO_COEFFICIENT = 1e-15
"""Coefficients below this are zero, relative to the largest or to 1: a guard that is crossed at one
rate everywhere has no limit, and not one that rounding makes (test_several_modes)."""
_PROGRAMME_ACCURACY = 1e-12  # gaps and infeasibility of cone programmes, relative and absolute


@dataclass(frozen=True, eq=False)
class GluedGuard:
    """The part of an affine guard that is crossed downwards, and its image under the reset.

    In coordinates s (n - 1,) its points are origin + basis s, and their images are image_origin +
    image_basis s. The part that is crossed is slope . s <= level.

    Attributes:
        source: Mode of the guard.
        target: Mode of the image.
        origin: Point (n,) of the guard.
        basis: Directions (n, n - 1) within it.
        image_origin: Image (n',) of the origin.
        image_basis: Images (n', n - 1) of the directions.
        slope: Gradient (n - 1,) of the guard's rate by s.
        level: Minus the rate at s = 0.
    """

    source: ModeKey
    target: ModeKey
    origin: Array
    basis: Array
    image_origin: Array
    image_basis: Array
    slope: Array
    level: float

    def evaluate(self, s: Array) -> tuple[Array, Array]:
        """Return the point of the guard with coordinates s (n - 1,), and its image."""
        return self.origin + self.basis @ s, self.image_origin + self.image_basis @ s

    def get_ends(self, is_backwards: bool) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """Return (origin, basis) of where a jump starts and of where it ends.

        Args:
            is_backwards: Whether the jump leads from the image to the guard.
        """
        guard, image = (self.origin, self.basis), (self.image_origin, self.image_basis)
        return (image, guard) if is_backwards else (guard, image)

    def clip(self, s: Array) -> Array:
        """Return the nearest coordinates (n - 1,) on the part of the guard that is crossed.

        The solution of a programme may be outside by its accuracy.
        """
        excess = float(self.slope @ s) - self.level
        if excess <= 0.0:
            return s
        return np.asarray(s - self.slope * (excess / float(self.slope @ self.slope)))


class GuardPassage(NamedTuple):
    """A jump of a path.

    Attributes:
        guard: Index of the guard among `GluedSpace.guards`.
        is_backwards: Whether the jump leads from the image to the guard.
    """

    guard: int
    is_backwards: bool


@dataclass(frozen=True, eq=False)
class GluedPath:
    """A path between two states.

    Attributes:
        length: Its length. All jumps are feasible, so it is an upper bound of the distance.
        jumps: Its jumps, in order.
        points: The states before and after each jump.
    """

    length: float
    jumps: tuple[GuardPassage, ...]
    points: tuple[tuple[Array, Array], ...]


class GluedSpace:
    """The states of a system, glued along its guards; see the module.

    The space consists of the given modes and of all that can be reached from them. Their guards and
    resets have to be affine, and so have the rates at which guards are crossed.

    Attributes:
        system: The system.
        guards: All guards of these modes.
        modes: Keys of these modes.

    Args:
        system: The system.
        modes: Keys of the first modes.

    Raises:
        InputError: If `system` is no system.
        UnknownNameError: If a mode is none of the system.
        SystemDefinitionError: If guards, resets or rates are not affine.
    """

    def __init__(self, system: HybridSystem, modes: Sequence[ModeKey]) -> None:
        self.system = check_instance("system", system, HybridSystem)
        self.guards: list[GluedGuard] = []
        pending, known = list(modes), set(modes)
        while pending:
            key = pending.pop()
            for guard in _fit_guards(system, key):
                self.guards.append(guard)
                if guard.target not in known:
                    known.add(guard.target)
                    pending.append(guard.target)
        self.modes = frozenset(known)

    def distance(
        self, mode: ModeKey, x: ArrayLike, other_mode: ModeKey, y: ArrayLike, max_jumps: int = 6
    ) -> float:
        """Return the length of the shortest path found between two states; infinite without one.

        It is an upper bound of the distance, see `find_shortest_path`.

        Args:
            mode: Mode of the first state.
            x: First state (nx,).
            other_mode: Mode of the second state.
            y: Second state.
            max_jumps: Largest number of jumps of a path.

        Raises:
            InputError: If a state has a wrong size, or a mode is not in this space.
        """
        path = self.find_shortest_path(mode, x, other_mode, y, max_jumps)
        return math.inf if path is None else path.length

    def find_shortest_path(
        self, mode: ModeKey, x: ArrayLike, other_mode: ModeKey, y: ArrayLike, max_jumps: int = 6
    ) -> GluedPath | None:
        """Return the shortest path found between two states; None where none is found.

        Sequences of jumps are tried in the order of their number, up to `max_jumps`, until two
        further jumps have brought no shorter path. So the path need not be the shortest of all.

        Args:
            mode: Mode of the first state.
            x: First state (nx,).
            other_mode: Mode of the second state.
            y: Second state.
            max_jumps: Largest number of jumps of a path.

        Raises:
            InputError: If a state has a wrong size, or a mode is not in this space.
        """
        for key in (mode, other_mode):
            if key not in self.modes:
                raise InputError(f"mode {key!r} is not in this space, it has {set(self.modes)}")
        start = check_vector("x", x, self.system.mode(mode).space.nx)
        end = check_vector("y", y, self.system.mode(other_mode).space.nx)
        best: GluedPath | None = None
        idle = 0
        for count in range(check_count("max_jumps", max_jumps, at_least=0) + 1):
            before = best
            for jumps in self._list_jumps(mode, other_mode, count):
                if best is None or self._bound_length(jumps, start, end) < best.length:
                    path = self._find_path(jumps, start, end)
                    best = path if best is None or path.length < best.length else best
            idle = idle + 1 if best is not None and best is before else 0
            if idle == _MAX_IDLE_JUMPS:
                break
        return best

    def compare_runs(
        self, one: HybridTrajectory, other: HybridTrajectory, period: float, max_jumps: int = 2
    ) -> tuple[Array, Array]:
        """Return times (m,) and the distances (m,) of two trajectories at them.

        The times are equidistant on the span that both have, with the events of both besides. The
        supremum of the distances is the distance of the trajectories, whose events need not
        coincide; the largest of those at these times is a lower bound of it.

        Args:
            one: A trajectory of the system.
            other: Another one.
            period: Largest interval between the times, s.
            max_jumps: Largest number of jumps of a path.

        Returns:
            The times, s, and the distances; infinite where no path joins the states. At an event it
            is the state after it that counts.

        Raises:
            InputError: If the trajectories have no time in common, an argument is not valid, or a
                mode is not in this space.
        """
        for name, run in (("one", one), ("other", other)):
            check_instance(name, run, HybridTrajectory)
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
        return times, self.compare_samples(times, modes, states, other, max_jumps)

    def compare_samples(
        self,
        times: ArrayLike,
        modes: Sequence[ModeKey],
        states: Sequence[ArrayLike],
        run: HybridTrajectory,
        max_jumps: int = 2,
    ) -> Array:
        """Return the distances (m,) of samples, such as those of a log, to a trajectory.

        Args:
            times: Times (m,) of the samples within the trajectory, s.
            modes: Mode of each sample.
            states: State of each sample.
            run: The trajectory.
            max_jumps: Largest number of jumps of a path.

        Raises:
            InputError: If a time, mode or state is not valid, or their numbers differ.
        """
        t = check_vector("times", times)
        if not len(t) == len(modes) == len(states):
            raise InputError(
                f"times, modes and states must be as many, got {len(t)}, {len(modes)} and "
                f"{len(states)}"
            )
        rows = zip(t.tolist(), modes, states, strict=True)
        return np.array(
            [self.distance(key, x, run.arc(t).mode, run(t), max_jumps) for t, key, x in rows]
        )

    def _list_jumps(
        self, mode: ModeKey, end: ModeKey, count: int
    ) -> Iterator[tuple[GuardPassage, ...]]:
        """Yield the sequences of `count` jumps that lead from one mode to another."""
        if count == 0:
            if mode == end:
                yield ()
            return
        for k, guard in enumerate(self.guards):
            for is_backwards, (here, there) in (
                (False, (guard.source, guard.target)),
                (True, (guard.target, guard.source)),
            ):
                if here == mode:
                    for rest in self._list_jumps(there, end, count - 1):
                        yield (GuardPassage(k, is_backwards), *rest)

    def _bound_length(self, jumps: tuple[GuardPassage, ...], x: Array, y: Array) -> float:
        """Return a lower bound of the length of a path with these jumps, by its two end legs."""
        if not jumps:
            return 0.0
        first = self.guards[jumps[0].guard].get_ends(jumps[0].is_backwards)[0]
        last = self.guards[jumps[-1].guard].get_ends(jumps[-1].is_backwards)[1]
        return _measure_gap(*first, x) + _measure_gap(*last, y)

    def _find_path(self, jumps: tuple[GuardPassage, ...], x: Array, y: Array) -> GluedPath:
        """Return the shortest path from x to y with these jumps."""
        guards = [self.guards[jump.guard] for jump in jumps]
        directions = [jump.is_backwards for jump in jumps]
        if not jumps:
            return GluedPath(float(np.linalg.norm(y - x)), (), ())
        points, length, position = [], 0.0, x
        coordinates = _solve_path_programme(guards, directions, x, y)
        for guard, is_backwards, s in zip(guards, directions, coordinates, strict=True):
            on_guard, image = guard.evaluate(s)
            before, after = (image, on_guard) if is_backwards else (on_guard, image)
            points.append((before, after))
            length += float(np.linalg.norm(before - position))
            position = after
        return GluedPath(length + float(np.linalg.norm(y - position)), jumps, tuple(points))


def _measure_gap(origin: Array, basis: Array, point: Array) -> float:
    """Return the distance of a point from the affine space origin + basis s."""
    away = point - origin
    nearest = basis @ np.linalg.lstsq(basis, away, rcond=None)[0]
    return float(np.linalg.norm(away - nearest))


def _solve_path_programme(
    guards: Sequence[GluedGuard], directions: Sequence[bool], x: Array, y: Array
) -> list[Array]:
    """Return the coordinates (n - 1,) of the jumps of the shortest path with these jumps.

    The cone programme minimises the sum of the lengths l_k of the legs. Its unknowns are these
    lengths and the coordinates s of all jumps. Each leg is a second-order cone, |leg| <= l_k, and
    each jump has the linear constraint slope . s <= level.

    Args:
        guards: Guard of each jump.
        directions: Whether each jump is backwards.
        x: Start (nx,) of the path.
        y: End of the path.
    """
    sizes = [guard.basis.shape[1] for guard in guards]
    starts = np.cumsum([0, *sizes])
    legs, unknowns = len(guards) + 1, int(starts[-1])
    rows, right, cones = [], [], []
    # A leg starts at origin + matrix s.
    origin, matrix = x, np.zeros((len(x), unknowns))
    for k in range(legs):
        if k < len(guards):
            (end, end_basis), (next_origin, next_basis) = guards[k].get_ends(directions[k])
            end_matrix = np.zeros((len(end), unknowns))
            end_matrix[:, starts[k] : starts[k + 1]] = end_basis
        else:
            end, end_matrix = y, np.zeros((len(y), unknowns))
        lengths = np.zeros((1 + len(end), legs))
        lengths[0, k] = -1.0
        rows.append(np.hstack([lengths, np.vstack([np.zeros(unknowns), matrix - end_matrix])]))
        right.append(np.append(0.0, end - origin))
        cones.append(clarabel.SecondOrderConeT(1 + len(end)))
        if k < len(guards):
            origin, matrix = next_origin, np.zeros((len(next_origin), unknowns))
            matrix[:, starts[k] : starts[k + 1]] = next_basis
    limits = np.zeros((len(guards), legs + unknowns))
    for k, guard in enumerate(guards):
        limits[k, legs + starts[k] : legs + starts[k + 1]] = guard.slope
    rows.append(limits)
    right.append(np.array([guard.level for guard in guards]))
    cones.append(clarabel.NonnegativeConeT(len(guards)))
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = _PROGRAMME_ACCURACY
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
    return [guard.clip(s[starts[k] : starts[k + 1]]) for k, guard in enumerate(guards)]


def _fit_guards(system: HybridSystem, key: ModeKey) -> Iterator[GluedGuard]:
    """Yield the glued guards of a mode, fitted to points on each guard and their images.

    Args:
        system: The system.
        key: Key of the mode.

    Raises:
        SystemDefinitionError: If a guard, its reset or its rate is not affine.
    """
    mode = system.mode(key)
    for name in system.outgoing(key).guards.names:
        surface, reset, target = find_transition(system, key, name)
        points = surface.sample_points
        feet = np.array([x for _, x, _ in points])
        images = np.array([reset(t, x, u).state for t, x, u in points])
        rates = []
        for t, x, u in points:
            rate, gradient = surface.differentiate(t, x, u)
            rates.append(rate + float(gradient @ mode.field(t, x, u)))
        gradient = surface.differentiate(*points[0])[1]
        basis = np.linalg.svd(gradient[None])[2][1:].T
        origin = gradient * (float(gradient @ feet[0]) / float(gradient @ gradient))
        s = (feet - origin) @ basis
        flat = _fit_affine_map(s, feet, f"guard {name!r} of mode {key!r}")
        image = _fit_affine_map(s, images, f"the reset of guard {name!r} of mode {key!r}")
        values = np.array(rates)[:, None]
        rate_map = _fit_affine_map(s, values, f"the rate of guard {name!r} of mode {key!r}")
        yield GluedGuard(
            source=key,
            target=target.key,
            origin=flat[0],
            basis=flat[1:].T,
            image_origin=image[0],
            image_basis=image[1:].T,
            slope=rate_map[1:, 0],
            level=-float(rate_map[0, 0]),
        )


def _fit_affine_map(s: Array, values: Array, what: str) -> Array:
    """Return the offset and the slopes (1 + k, m) of an affine map.

    Args:
        s: Coordinates (count, k).
        values: Values (count, m) of the map there.
        what: What the values are, for the message.

    Raises:
        SystemDefinitionError: If the map is not affine.
    """
    known = np.hstack([np.ones((len(s), 1)), s])
    found = np.linalg.lstsq(known, values, rcond=None)[0]
    if np.abs(known @ found - values).max() > _AFFINE_TOLERANCE * max(
        1.0, float(np.abs(values).max())
    ):
        raise SystemDefinitionError(f"{what} is not affine, so that its distance is not known")
    found[np.abs(found) < _ZERO_COEFFICIENT * np.abs(found).max(initial=1.0)] = 0.0
    return np.asarray(found)
