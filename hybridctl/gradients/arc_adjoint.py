r"""The adjoint equation along a recorded arc.

With A and B of the variational equation (`sensitivity.propagation`), the costate
:math:`\lambda`, the gradient of a scalar by the state, obeys

.. math:: -\dot\lambda = A(t)^T \lambda, \qquad
    \frac{\partial}{\partial u} = \int B^T \lambda\, dt, \qquad
    \frac{\partial}{\partial p} = \int (D_p f)^T \lambda\, dt .

An arc is cut into intervals: the steps of its record, cut once more where a state is asked for. On
each of them the equation is collocated by Radau IIA in reversed time. Where the estimated error is
above the tolerance, an interval is halved. There are two ways to do so:

- `ArcMaps`: each interval is a linear map of the costate at its end. The maps of all intervals of
  all arcs are made together from A and B at all stages, by one compiled call for each mode. This is
  for modes that have one.
- `ArcStages`: stages are solved for one costate. This is for modes whose A and B are evaluated
  point by point: with a single right-hand side fixed-point iteration costs less than a
  factorisation. And it is for stiff arcs, such as of a contact that begins to slide: maps of all
  costates have to resolve the decay of each on every interval, where the one costate that comes
  has long decayed and is smooth. Arcs with an initial layer are stiff from the first, others where
  many halves are left.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.polynomial.chebyshev import chebvander

from hybridctl.base.checks import Array, Indices
from hybridctl.base.errors import IntegrationError
from hybridctl.hybrid.arc import Arc, evaluate_arcs
from hybridctl.hybrid.mode import ModeModel
from hybridctl.hybrid.model import Point
from hybridctl.hybrid.tableau import Radau, radau
from hybridctl.sensitivity.collocation import LinearStep
from hybridctl.sensitivity.parameter_models import ParameterModel
from hybridctl.sensitivity.propagation import choose_first_leap, linearize_field_at

_SHORT_FORMULA, _FORMULA, _LONG_FORMULA = radau(3), radau(4), radau(7)
"""Radau IIA, whose stages in reversed time include the start of an interval.

The short one is tried first on arcs of many intervals, the long one where points cost much."""
_MANY_INTERVALS = 20
"""Number of intervals of an arc from which on they are likely to be short. A choice."""
_PENULTIMATE_WEIGHT = 0.1
"""Weight of the last but one coefficient in error estimates: the last one may be zero by chance."""
_ERROR_RATIO = 50.0
"""Least ratio of that power to the error of a sum, as in `sensitivity.collocation`."""
_MAX_PORTION = 2**20
"""Number of entries up to which the equations of intervals are solved together. A choice: 8 MB."""
_MAX_HALVINGS = 40
"""Halvings of an interval after which the equation counts as unresolved. A choice."""
_MANY_HALVES = 64
"""Halves of intervals that are left of one arc, from which on it counts as stiff.

A toss of the cube that begins to slide at the last corner took 5,826 intervals (0.77 s) for maps.
Arcs that are not stiff leave at most a dozen. A choice."""
_MAX_ITERATIONS = 40
"""Fixed-point iterations after which the stages are solved for by a factorisation. A choice."""
_STAGE_ROUNDING = 1e-14
"""Last change of the stages in an iteration that ends it, relative to the largest stage."""


class ArcSlopes(NamedTuple):
    """Derivatives of the field of an arc's mode at k points.

    Attributes:
        state: A (k, ndx, ndx) of the variational equation, 1/s.
        input: B (k, ndx, nu).
        parameters: D_p f (k, ndx, np).
    """

    state: Array
    input: Array
    parameters: Array


class ArcAdjoint(ABC):
    """The costate over the m intervals of an arc, in order of time.

    Attributes:
        starts: Starts (m,) of the intervals, s.
        ends: Ends (m,) of the intervals, s.
    """

    starts: Array
    ends: Array

    @abstractmethod
    def pass_intervals(self, first: int, last: int, costate: Array) -> tuple[Array, Array, Array]:
        """Return the costate at the start of an interval, and what it and later ones add.

        Args:
            first: Number of the interval.
            last: Number of the last one that is passed.
            costate: Costate (ndx,) at the end of the last one.

        Returns:
            The costate (ndx,), and the gradients by the input (last - first + 1, nu), which is
            constant on each interval, and by parameters (np,).
        """


@dataclass(frozen=True, eq=False)
class ArcMaps(ArcAdjoint):
    """Intervals as linear maps of the costate at their ends.

    Attributes:
        starts: Starts (m,) of the intervals, s.
        ends: Ends (m,) of the intervals, s.
        transitions: Maps (m, ndx, ndx) to the costate at the start.
        by_input: Maps (m, nu, ndx) to the gradient by the input.
        by_parameters: Maps (m, np, ndx) to the gradient by parameters.
    """

    starts: Array
    ends: Array
    transitions: Array
    by_input: Array
    by_parameters: Array

    def pass_intervals(self, first: int, last: int, costate: Array) -> tuple[Array, Array, Array]:
        """Return the products with the maps of intervals, see `ArcAdjoint`.

        Args:
            first: Number of the first interval.
            last: Number of the last one.
            costate: Costate (ndx,) at its end.
        """
        costates = np.empty((last - first + 1, len(costate)))
        for i in range(last, first - 1, -1):
            costates[i - first] = costate
            costate = self.transitions[i] @ costate
        passed = slice(first, last + 1)
        by_input = (self.by_input[passed] @ costates[..., None])[..., 0]
        by_parameters = (self.by_parameters[passed] @ costates[..., None])[..., 0].sum(axis=0)
        return costate, by_input, by_parameters


@dataclass(frozen=True, eq=False)
class ArcStages(ArcAdjoint):
    """Intervals by A and B at their stages, which are solved for one costate.

    Life cycle: an interval that is not accurate is halved when a costate passes it; its halves are
    kept in `halves` for further passes.

    Attributes:
        source: What evaluates the stages.
        starts: Starts (m,) of the intervals, s.
        ends: Ends (m,) of the intervals, s.
        slopes: Derivatives at the stages (m, s, ...).
        depth: Number of halvings that led to these intervals.
        halves: Two halves of intervals, by their number.
    """

    source: _SlopeSource
    starts: Array
    ends: Array
    slopes: ArcSlopes
    depth: int = 0
    halves: dict[int, ArcStages] = field(default_factory=dict)

    def pass_intervals(self, first: int, last: int, costate: Array) -> tuple[Array, Array, Array]:
        """Return the costate before intervals, passed one by one, see `ArcAdjoint`.

        Args:
            first: Number of the first interval.
            last: Number of the last one.
            costate: Costate (ndx,) at its end.

        Raises:
            IntegrationError: The field changes faster than intervals resolve.
        """
        by_input = np.empty((last - first + 1, self.slopes.input.shape[-1]))
        by_parameters = np.zeros(self.slopes.parameters.shape[-1])
        for i in range(last, first - 1, -1):
            costate, by_input[i - first], added = self._pass_interval(i, costate)
            by_parameters += added
        return costate, by_input, by_parameters

    def _pass_interval(self, i: int, costate: Array) -> tuple[Array, Array, Array]:
        """Return the costate at the start of interval i by collocation, and what it adds."""
        if i in self.halves:
            return self._pass_halves(i, costate)
        h = float(self.ends[i] - self.starts[i])
        adjoints = self.slopes.state[i].swapaxes(-1, -2)
        stages = _solve_stages(adjoints, h, costate)
        density = (adjoints @ stages[..., None])[None]
        error = _estimate_errors(np.array([h]), density)[0]
        largest = np.abs(stages).max(initial=0.0)
        if error > self.source.rtol * largest and self.ends[i] > self.source.leap_end:
            self.halves[i] = self._halve(i)
            return self._pass_halves(i, costate)
        weighted = (h * _LONG_FORMULA.weights)[:, None] * stages
        by_input = np.einsum("snj,sn->j", self.slopes.input[i], weighted)
        by_parameters = np.einsum("snj,sn->j", self.slopes.parameters[i], weighted)
        return stages[-1], by_input, by_parameters

    def _pass_halves(self, i: int, costate: Array) -> tuple[Array, Array, Array]:
        """Return what both halves of interval i give, the later one first."""
        costate, by_input, by_parameters = self.halves[i].pass_intervals(0, 1, costate)
        return costate, by_input.sum(axis=0), by_parameters

    def _halve(self, i: int) -> ArcStages:
        """Return the halves of interval i.

        Raises:
            IntegrationError: It has been halved too often.
        """
        start, end = float(self.starts[i]), float(self.ends[i])
        if self.depth >= _MAX_HALVINGS:
            raise self.source.make_error(start, end - start)
        times = np.array([start, 0.5 * (start + end), end])
        slopes = self.source.evaluate_stages(times[:-1], times[1:])
        return ArcStages(self.source, times[:-1], times[1:], slopes, self.depth + 1)


@dataclass(frozen=True, eq=False)
class _SlopeSource:
    """What the stages of an arc's intervals are evaluated from.

    Attributes:
        mode: Mode of the arc.
        arc: The arc.
        parameters: Derivatives by parameters. None for none.
        has_input: Whether the gradient by the input is wanted.
        rtol: Tolerance of each interval, relative to the largest entry.
        leap_end: Time until which intervals are accepted as they are: the end of an initial layer,
            in which A is not accurate, s.
    """

    mode: ModeModel
    arc: Arc
    parameters: ParameterModel | None
    has_input: bool
    rtol: float
    leap_end: float

    @property
    def is_compiled(self) -> bool:
        """Whether one compiled call gives the derivatives of the field at many points."""
        compiled = self.mode.compiled_steps
        return compiled is not None and compiled.batched_slopes is not None

    def evaluate_stages(self, starts: Array, ends: Array) -> ArcSlopes:
        """Return the derivatives (m, s, ...) at the stages of m intervals, by the long formula.

        Args:
            starts: Starts (m,) of the intervals, s.
            ends: Ends (m,) of the intervals, s.
        """
        intervals = _Intervals(np.zeros(len(starts), dtype=np.intp), starts, ends)
        return _evaluate_stages([self], intervals, _LONG_FORMULA)

    def make_error(self, t: float, length: float) -> IntegrationError:
        """Return the error of intervals that do not resolve the field.

        Args:
            t: Where they do not, s.
            length: Length of the shortest interval that was tried, s.
        """
        return IntegrationError(
            f"the adjoint changes faster than intervals of {length:.3g} s resolve in mode "
            f"{self.arc.mode!r} at t = {t:.9g} s"
        )


class _Intervals(NamedTuple):
    """Intervals of some arcs.

    Attributes:
        owners: Numbers (m,) of their arcs.
        starts: Starts (m,), s.
        ends: Ends (m,), s.
    """

    owners: Indices
    starts: Array
    ends: Array

    def select(self, rows: Indices) -> _Intervals:
        """Return some of them."""
        return _Intervals(self.owners[rows], self.starts[rows], self.ends[rows])

    def halve(self) -> _Intervals:
        """Return the halves of all: the first halves, then the second ones."""
        middles = 0.5 * (self.starts + self.ends)
        return _Intervals(
            np.tile(self.owners, 2),
            np.append(self.starts, middles),
            np.append(middles, self.ends),
        )

    def append(self, others: _Intervals) -> _Intervals:
        """Return these intervals and others."""
        return _Intervals(*(np.append(a, b) for a, b in zip(self, others, strict=True)))


def linearize_arc_adjoints(
    modes: Sequence[ModeModel],
    arcs: Sequence[Arc],
    cuts: Sequence[float],
    parameters: ParameterModel | None,
    has_input: bool,
    rtol: float,
) -> list[ArcAdjoint]:
    """Return the costates over the intervals of arcs, ready for any costate at their ends.

    The intervals of all arcs are collocated together, and all points of a mode are one compiled
    call: a run with many impacts has many short arcs, each of which would cost as much by itself.

    Args:
        modes: Modes (k,) of the arcs.
        arcs: The arcs.
        cuts: Times in s at which an interval has to end, beside the ends of the arcs' steps. Those
            outside an arc are ignored.
        parameters: Derivatives of the field by np parameters. None for none.
        has_input: Whether the gradient by the input is wanted.
        rtol: Tolerance of each interval, relative to the largest entry.

    Returns:
        The intervals of each arc.

    Raises:
        IntegrationError: The field changes faster than intervals resolve. Stiff arcs, and those of
            modes without compiled functions, raise it when a costate passes them.
    """
    found: dict[int, ArcAdjoint] = {}
    # Arcs are collocated together where their matrices have the same shape.
    together: dict[tuple[int, int], list[tuple[int, _SlopeSource, Array]]] = {}
    for k, (mode, arc) in enumerate(zip(modes, arcs, strict=True)):
        times, leap_end = _cut_arc(mode, arc, cuts)
        source = _SlopeSource(mode, arc, parameters, has_input, rtol, leap_end)
        # After an initial layer an arc is stiff: maps would be halved in vain.
        has_maps = source.is_compiled and leap_end == arc.start
        if has_maps or len(times) == 1:
            shape = arc.space.ndx, arc.inputs.shape[2]
            together.setdefault(shape, []).append((k, source, times))
        else:
            found[k] = _make_stages(source, times)
    for members in together.values():
        numbers, sources, borders = zip(*members, strict=True)
        found.update(zip(numbers, _make_maps(sources, borders), strict=True))
    return [found[k] for k in range(len(arcs))]


def _cut_arc(mode: ModeModel, arc: Arc, cuts: Sequence[float]) -> tuple[Array, float]:
    """Return the borders (m + 1,) of an arc's intervals in s, and the end of its initial layer.

    Args:
        mode: Mode of the arc.
        arc: The arc.
        cuts: See `linearize_arc_adjoints`.
    """
    wanted = [t for t in cuts if arc.start < t < arc.end]
    inside = [t for t in arc.breaks.tolist() if arc.start < t < arc.end]
    times = np.array(sorted({arc.start, *inside, *wanted, arc.end}))
    leap_end = arc.start
    if len(times) > 1:
        leap_end = min([arc.start + choose_first_leap(mode, arc), *wanted])
    if leap_end > arc.start:
        times = np.concatenate(([arc.start, leap_end], times[times > leap_end]))
    return times, leap_end


def _make_maps(sources: Sequence[_SlopeSource], borders: Sequence[Array]) -> list[ArcAdjoint]:
    """Return the maps of the intervals of arcs, halved until each is accurate; stages if stiff.

    Args:
        sources: What evaluates the stages of each arc. Arcs have matrices of the same shape.
        borders: Borders (m + 1,) of the intervals of each arc, s.

    Raises:
        IntegrationError: The field changes faster than intervals resolve.
    """
    counts = [len(times) - 1 for times in borders]
    every = _Intervals(
        np.repeat(np.arange(len(sources)), counts),
        np.concatenate([times[:-1] for times in borders]),
        np.concatenate([times[1:] for times in borders]),
    )
    leap_ends = np.array([source.leap_end for source in sources])
    done, parts = every.select(np.zeros(0, dtype=np.intp)), [_make_no_maps(sources[0])]
    is_short = np.array(counts)[every.owners] > _MANY_INTERVALS
    todo, short = every.select(np.flatnonzero(~is_short)), every.select(np.flatnonzero(is_short))
    most_halves, is_stiff = (
        np.maximum(_MANY_HALVES, 2 * np.array(counts)),
        np.zeros(len(counts), bool),
    )
    for _ in range(_MAX_HALVINGS):
        if not len(todo.starts) and not len(short.starts):
            made: list[ArcAdjoint] = [*_split_by_arc(done, parts, len(sources))]
            for k in np.flatnonzero(is_stiff).tolist():
                made[k] = _make_stages(sources[k], borders[k])
            return made
        refused: list[_Intervals] = []
        for formula, intervals in ((_SHORT_FORMULA, short), (_FORMULA, todo)):
            for some in _cut_into_portions(intervals, formula, sources[0].arc.space.ndx):
                maps, errors = _collocate(sources, some, formula)
                accepted = (errors <= sources[0].rtol) | (some.ends <= leap_ends[some.owners])
                rows = np.flatnonzero(accepted)
                done = done.append(some.select(rows))
                parts.append([array[rows] for array in maps])
                left = some.select(np.flatnonzero(~accepted))
                # An interval that the short formula refuses is tried by more stages first.
                refused.append(left.halve() if formula is _FORMULA else left)
        short, todo = every.select(np.zeros(0, dtype=np.intp)), reduce(_Intervals.append, refused)
        is_stiff |= np.bincount(todo.owners, minlength=len(counts)) > most_halves
        todo = todo.select(np.flatnonzero(~is_stiff[todo.owners]))
    first = int(todo.starts.argmin())
    shortest = float((todo.ends - todo.starts).min())
    raise sources[todo.owners[first]].make_error(float(todo.starts[first]), shortest)


def _make_stages(source: _SlopeSource, borders: Array) -> ArcStages:
    """Return the stages of an arc's intervals, given the borders (m + 1,) of these, s."""
    starts, ends = borders[:-1], borders[1:]
    return ArcStages(source, starts, ends, source.evaluate_stages(starts, ends))


def _make_no_maps(source: _SlopeSource) -> list[Array]:
    """Return the maps of no interval, of the shapes that an arc has."""
    ndx, nu = source.arc.space.ndx, source.arc.inputs.shape[2] if source.has_input else 0
    count = 0 if source.parameters is None else len(source.parameters.names)
    return [np.zeros((0, rows, ndx)) for rows in (ndx, nu, count)]


def _cut_into_portions(intervals: _Intervals, formula: Radau, ndx: int) -> list[_Intervals]:
    """Return intervals in portions whose equations fit into a processor's cache."""
    size = (len(formula.points) * ndx) ** 2
    count = max(_MAX_PORTION // size, 1)
    rows = np.arange(len(intervals.starts))
    return [intervals.select(rows[k : k + count]) for k in range(0, len(rows), count)]


def _split_by_arc(done: _Intervals, parts: Sequence[list[Array]], count: int) -> list[ArcMaps]:
    """Return the maps of each arc, in order of time.

    Args:
        done: All intervals.
        parts: Their maps, in portions.
        count: Number of arcs.
    """
    order = np.lexsort((done.starts, done.owners))
    maps = [np.concatenate(arrays)[order] for arrays in zip(*parts, strict=True)]
    owners, starts, ends = done.select(order)
    firsts = np.searchsorted(owners, np.arange(count + 1))
    return [ArcMaps(*(array[a:b] for array in (starts, ends, *maps))) for a, b in pairwise(firsts)]


def evaluate_slopes(
    mode: ModeModel, times: Array, states: Array, inputs: Array, parameters: ParameterModel | None
) -> ArcSlopes:
    """Return the derivatives of a field at points, by one compiled call where there is one.

    Args:
        mode: The mode.
        times: Times (k,), s.
        states: States (k, nx).
        inputs: Inputs (k, nu).
        parameters: Derivatives by parameters. None for none.
    """
    compiled = mode.compiled_steps
    batched = None if compiled is None else compiled.batched_slopes
    by_state, by_input, todo = None, None, list(range(len(times)))
    points = dict[int, Point]()
    if batched is not None:
        sound, by_state, by_input = batched(times[:, None], states, inputs)
        todo = np.flatnonzero(~(sound[:, 0] > 0.0)).tolist()
    for k in todo:
        points[k] = mode.calc(float(times[k]), states[k], inputs[k])
        slopes = linearize_field_at(points[k])
        if by_state is None or by_input is None:
            by_state = np.empty((len(times), *slopes.state.shape))
            by_input = np.empty((len(times), *slopes.input.shape))
        by_state[k], by_input[k] = slopes
    assert by_state is not None
    assert by_input is not None
    if parameters is None:
        return ArcSlopes(by_state, by_input, np.empty((*by_state.shape[:2], 0)))
    together = parameters.evaluate_fields(mode, times, states, inputs)
    if together is None:
        by_parameters = np.empty((*by_state.shape[:2], len(parameters.names)))
        left = list(range(len(times)))
    else:
        sound, by_parameters = together
        left = np.flatnonzero(~(sound > 0.0)).tolist()
    for k in left:
        point = points.get(k) or mode.calc(float(times[k]), states[k], inputs[k])
        by_parameters[k] = parameters.calc(point).field
    return ArcSlopes(by_state, by_input, by_parameters)


def _evaluate_stages(
    sources: Sequence[_SlopeSource], intervals: _Intervals, formula: Radau
) -> ArcSlopes:
    """Return the derivatives (m, s, ...) at the stages of m intervals, in reversed time.

    Args:
        sources: What evaluates the stages of each arc.
        intervals: The intervals, by the numbers of their arcs.
        formula: The formula, with s stages.
    """
    owners, starts, ends = intervals
    times = ends[:, None] - np.multiply.outer(ends - starts, formula.points)
    times[:, -1] = starts  # exactly, as the input may jump there
    rows_by_mode: dict[int, list[tuple[_SlopeSource, Indices]]] = {}
    for k in np.unique(owners).tolist():
        rows = np.flatnonzero(owners == k)
        rows_by_mode.setdefault(id(sources[k].mode), []).append((sources[k], rows))
    order: list[Indices] = []
    evaluated: list[ArcSlopes] = []
    for members in rows_by_mode.values():
        order += [rows for _, rows in members]
        times_of_arcs = [times[rows].ravel() for _, rows in members]
        states, inputs = evaluate_arcs([source.arc for source, _ in members], times_of_arcs)
        flat, source = np.concatenate(times_of_arcs), members[0][0]
        evaluated.append(evaluate_slopes(source.mode, flat, states, inputs, source.parameters))
    back = np.argsort(np.concatenate(order))
    by_state, by_input, by_parameters = (
        np.concatenate(each).reshape(*times.shape, *each[0].shape[1:])[back]
        for each in zip(*evaluated, strict=True)
    )
    kept_input = by_input if sources[0].has_input else by_input[..., :0]
    return ArcSlopes(by_state, kept_input, by_parameters)


def _collocate(
    sources: Sequence[_SlopeSource], intervals: _Intervals, formula: Radau
) -> tuple[tuple[Array, Array, Array], Array]:
    """Return the maps of m intervals, each by one step in reversed time, and their errors.

    Args:
        sources: What evaluates the stages of each arc.
        intervals: The intervals, by the numbers of their arcs.
        formula: The formula.

    Returns:
        The maps of `ArcMaps`: transitions, by the input and by parameters. And the largest error
        (m,) of each interval, relative to its largest entry or 1.
    """
    lengths = intervals.ends - intervals.starts
    slopes = _evaluate_stages(sources, intervals, formula)
    by_state, *others = (a.swapaxes(-1, -2) for a in slopes)
    stages = LinearStep(by_state, lengths, formula).stage_maps
    densities = [a @ stages for a in (by_state, *others)]
    weights = np.multiply.outer(lengths, formula.weights)
    by_input, by_parameters = (np.einsum("ms,msij->mij", weights, d) for d in densities[1:])
    maps = stages[:, -1], by_input, by_parameters
    errors = [_estimate_errors(lengths, d) for d in densities]
    sizes = [np.abs(a).max(axis=(1, 2), initial=1.0) for a in maps]
    return maps, np.max([e / size for e, size in zip(errors, sizes, strict=True)], axis=0)


def _solve_stages(adjoints: Array, h: float, costate: Array) -> Array:
    """Return the stages (s, n) of one interval of length h (s) in reversed time.

    Args:
        adjoints: A^T at the stages (s, n, n), 1/s.
        h: Length of the interval, s.
        costate: Costate (n,) at its end.
    """
    matrix = h * _LONG_FORMULA.matrix
    stages = np.broadcast_to(costate, (len(matrix), len(costate)))
    last = np.inf
    for _ in range(_MAX_ITERATIONS):
        following = costate + matrix @ (adjoints @ stages[..., None])[..., 0]
        change = np.abs(following - stages).max(initial=0.0)
        stages = following
        if change <= _STAGE_ROUNDING * np.abs(stages).max(initial=0.0):
            return stages
        if change > last:  # a fast decay, by which the iteration grows
            break
        last = change
    step = LinearStep(adjoints, h, _LONG_FORMULA)
    return step.solve_stages(costate[:, None])[..., 0]


def _estimate_errors(lengths: Array, densities: Array) -> Array:
    """Return the errors (m,) of the integrals over intervals of densities (m, s, i, j)."""
    m, s = densities.shape[:2]
    if not densities.size:
        return np.zeros(m)
    flat = densities.reshape(m, s, -1)
    size = np.abs(flat).max(axis=(1, 2))
    before, last = np.abs(_last_coefficients(s) @ flat).max(axis=2).T
    part = (last + _PENULTIMATE_WEIGHT * before) / np.where(size > 0.0, size, 1.0)
    # The last coefficient is of order h^(s - 1), and the error of a sum of order h^(2 s - 1).
    power = (2 * s - 1) / (s - 1)
    return np.asarray(lengths * size * part**power / _ERROR_RATIO)


@lru_cache
def _last_coefficients(stages: int) -> Array:
    """Return the maps (2, s) from values at the stages to the last two series coefficients."""
    points = 2.0 * radau(stages).points - 1.0
    return np.asarray(np.linalg.inv(chebvander(points, stages - 1))[-2:], dtype=np.float64)
