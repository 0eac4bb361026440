r"""The adjoint equation along a recorded arc.

With A and B of the variational equation (`sensitivity.propagation`), the costate
:math:`\lambda`, the gradient of a scalar by the state, obeys

.. math:: -\dot\lambda = A(t)^T \lambda, \qquad
    \frac{\partial}{\partial u} = \int B^T \lambda\, dt, \qquad
    \frac{\partial}{\partial p} = \int (D_p f)^T \lambda\, dt .

An arc is cut into intervals: the steps of its record, cut once more where a state is asked for. On
each of them the equation is collocated by Radau IIA in reversed time. Where the estimated error is
above the tolerance, an interval is halved. There are two ways to do so:

- `ArcMaps`: each interval is a linear map of the costate at its end. The maps of all intervals are
  made together from A and B at all stages, by one compiled call. This is for modes that have one.
- `ArcStages`: A and B are evaluated point by point, and stages are solved for one costate. With a
  single right-hand side fixed-point iteration costs less than a factorisation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.polynomial.chebyshev import chebvander

from hybridctl.base.checks import Array, Indices
from hybridctl.base.errors import IntegrationError
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.mode import ModeModel
from hybridctl.hybrid.model import Point
from hybridctl.sensitivity.collocation import LinearStep, Radau, radau
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
_MAX_HALVINGS = 40
"""Halvings of an interval after which the equation counts as unresolved. A choice."""
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
    def pass_interval(self, i: int, costate: Array) -> tuple[Array, Array, Array]:
        """Return the costate at the start of an interval, and what the interval adds.

        Args:
            i: Number of the interval.
            costate: Costate (ndx,) at its end.

        Returns:
            The costate (ndx,), and the gradients by the input (nu,), which is constant on the
            interval, and by parameters (np,).
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

    def pass_interval(self, i: int, costate: Array) -> tuple[Array, Array, Array]:
        """Return the products with the maps of an interval, see `ArcAdjoint`.

        Args:
            i: Number of the interval.
            costate: Costate (ndx,) at its end.
        """
        return (
            self.transitions[i] @ costate,
            self.by_input[i] @ costate,
            self.by_parameters[i] @ costate,
        )


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

    def pass_interval(self, i: int, costate: Array) -> tuple[Array, Array, Array]:
        """Return the costate at the start of an interval by collocation, see `ArcAdjoint`.

        Args:
            i: Number of the interval.
            costate: Costate (ndx,) at its end.

        Raises:
            IntegrationError: The field changes faster than intervals resolve.
        """
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
        halves = self.halves[i]
        costate, later_input, later_parameters = halves.pass_interval(1, costate)
        costate, by_input, by_parameters = halves.pass_interval(0, costate)
        return costate, by_input + later_input, by_parameters + later_parameters

    def _halve(self, i: int) -> ArcStages:
        """Return the halves of interval i.

        Raises:
            IntegrationError: It has been halved too often.
        """
        start, end = float(self.starts[i]), float(self.ends[i])
        if self.depth >= _MAX_HALVINGS:
            raise self.source.make_error(start, end - start)
        times = np.array([start, 0.5 * (start + end), end])
        slopes = self.source.evaluate_stages(times[:-1], times[1:], _LONG_FORMULA)
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

    def evaluate_stages(self, starts: Array, ends: Array, formula: Radau) -> ArcSlopes:
        """Return the derivatives (m, s, ...) at the stages of m intervals, in reversed time.

        Args:
            starts: Starts (m,) of the intervals, s.
            ends: Ends (m,) of the intervals, s.
            formula: The formula, with s stages.
        """
        times = ends[:, None] - np.multiply.outer(ends - starts, formula.points)
        times[:, -1] = starts  # exactly, as the input may jump there
        slopes = evaluate_slopes(self.mode, self.arc, times.ravel(), self.parameters)
        shaped = (a.reshape(*times.shape, *a.shape[1:]) for a in slopes)
        by_state, by_input, by_parameters = shaped
        return ArcSlopes(by_state, by_input if self.has_input else by_input[..., :0], by_parameters)

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


def linearize_arc_adjoint(
    mode: ModeModel,
    arc: Arc,
    cuts: Sequence[float],
    parameters: ParameterModel | None,
    has_input: bool,
    rtol: float,
) -> ArcAdjoint:
    """Return the costate over the intervals of an arc, ready for any costate at its end.

    Args:
        mode: Mode of the arc.
        arc: The arc.
        cuts: Times in s at which an interval has to end, beside the ends of the arc's steps. Those
            outside the arc are ignored.
        parameters: Derivatives of the field by np parameters. None for none.
        has_input: Whether the gradient by the input is wanted.
        rtol: Tolerance of each interval, relative to the largest entry.

    Returns:
        The intervals. Where they do not resolve the field they raise an `IntegrationError`.
    """
    inside = [float(t) for t in (*arc.breaks, *cuts) if arc.start < t < arc.end]
    times = np.array(sorted({arc.start, *inside, arc.end}))
    leap_end = arc.start
    if len(times) > 1:
        wanted = [t for t in cuts if arc.start < t < arc.end]
        leap_end = min([arc.start + choose_first_leap(mode, arc), *wanted])
    if leap_end > arc.start:
        times = np.concatenate(([arc.start, leap_end], times[times > leap_end]))
    source = _SlopeSource(mode, arc, parameters, has_input, rtol, leap_end)
    compiled = mode.compiled_steps
    if compiled is not None and compiled.batched_slopes is not None:
        return _make_maps(source, times[:-1], times[1:])
    if len(times) == 1:
        return _join_intervals([], source)
    slopes = source.evaluate_stages(times[:-1], times[1:], _LONG_FORMULA)
    return ArcStages(source, times[:-1], times[1:], slopes)


def _make_maps(source: _SlopeSource, starts: Array, ends: Array) -> ArcMaps:
    """Return the maps of intervals, halved until each is accurate.

    Args:
        source: What evaluates the stages.
        starts: Starts (m,) of the intervals, s.
        ends: Ends (m,) of the intervals, s.

    Raises:
        IntegrationError: The field changes faster than intervals resolve.
    """
    found: list[ArcMaps] = []
    formula = _SHORT_FORMULA if len(starts) > _MANY_INTERVALS else _FORMULA
    for _ in range(_MAX_HALVINGS):
        if not len(starts):
            return _join_intervals(found, source)
        maps, errors = _collocate(source, starts, ends, formula)
        accepted = (errors <= source.rtol) | (ends <= source.leap_end)
        found.append(_select_intervals(maps, np.flatnonzero(accepted)))
        starts, ends = starts[~accepted], ends[~accepted]
        if formula is _FORMULA:  # an interval that is refused once is tried by more stages first
            middle = 0.5 * (starts + ends)
            starts, ends = np.append(starts, middle), np.append(middle, ends)
        formula = _FORMULA
    raise source.make_error(float(starts.min()), float((ends - starts).min()))


def evaluate_slopes(
    mode: ModeModel, arc: Arc, times: Array, parameters: ParameterModel | None
) -> ArcSlopes:
    """Return the derivatives of the field along an arc, by one compiled call where there is one.

    Args:
        mode: Mode of the arc.
        arc: The arc.
        times: Times (k,) in s. Where the input changes, that of the step which begins there counts.
        parameters: Derivatives by parameters. None for none.
    """
    states, inputs = arc.states_and_inputs(times)
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


def _collocate(
    source: _SlopeSource, starts: Array, ends: Array, formula: Radau
) -> tuple[ArcMaps, Array]:
    """Return the maps of m intervals, each by one step in reversed time, and their errors.

    Args:
        source: What evaluates the stages.
        starts: Starts (m,) of the intervals, s.
        ends: Ends (m,) of the intervals, s.
        formula: The formula.

    Returns:
        The maps, and the largest error (m,) of each, relative to its largest entry or 1.
    """
    lengths = ends - starts
    by_state, *others = (a.swapaxes(-1, -2) for a in source.evaluate_stages(starts, ends, formula))
    stages = LinearStep(by_state, lengths, formula).stage_maps
    densities = [a @ stages for a in (by_state, *others)]
    weights = np.multiply.outer(lengths, formula.weights)
    by_input, by_parameters = (np.einsum("ms,msij->mij", weights, d) for d in densities[1:])
    maps = ArcMaps(starts, ends, stages[:, -1], by_input, by_parameters)
    errors = [_estimate_errors(lengths, d) for d in densities]
    sizes = [
        np.abs(a).max(axis=(1, 2), initial=1.0) for a in (maps.transitions, by_input, by_parameters)
    ]
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


def _select_intervals(maps: ArcMaps, chosen: Indices) -> ArcMaps:
    """Return some intervals of an arc."""
    return ArcMaps(*(getattr(maps, name)[chosen] for name in _MAP_ARRAYS))


def _join_intervals(parts: Sequence[ArcMaps], source: _SlopeSource) -> ArcMaps:
    """Return the intervals of all parts in order of time; none for an arc of no duration."""
    if not parts:
        arc, none = source.arc, np.zeros(0)
        count = 0 if source.parameters is None else len(source.parameters.names)
        nu = arc.inputs.shape[2] if source.has_input else 0
        shapes = (arc.space.ndx, arc.space.ndx), (nu, arc.space.ndx), (count, arc.space.ndx)
        return ArcMaps(none, none, *(np.zeros((0, *shape)) for shape in shapes))
    joined = [np.concatenate([getattr(part, name) for part in parts]) for name in _MAP_ARRAYS]
    order = np.argsort(joined[0])
    return ArcMaps(*(array[order] for array in joined))


_MAP_ARRAYS = ("starts", "ends", "transitions", "by_input", "by_parameters")
"""Names of the arrays of `ArcMaps`, each of which has one row for each interval."""
