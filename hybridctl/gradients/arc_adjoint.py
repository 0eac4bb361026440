r"""The adjoint equation along a recorded arc.

With A and B of the variational equation (`sensitivity.propagation`), the costate
:math:`\lambda`, the gradient of a scalar by the state, obeys

.. math:: -\dot\lambda = A(t)^T \lambda, \qquad
    \frac{\partial}{\partial u} = \int B^T \lambda\, dt, \qquad
    \frac{\partial}{\partial p} = \int (D_p f)^T \lambda\, dt .

An arc is cut into intervals: the steps of its record, cut once more where a state is asked for. On
each of them the equation is collocated by Radau IIA in reversed time. An interval is a linear map
of the costate at its end, so the maps of all intervals are made together, and a sweep multiplies
them. Where the estimated error of a map is above the tolerance, its interval is halved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.polynomial.chebyshev import chebvander

from hybridctl.base.checks import Array, Indices
from hybridctl.base.errors import IntegrationError
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.mode import ModeModel
from hybridctl.hybrid.model import Point
from hybridctl.sensitivity.collocation import LinearStep, radau
from hybridctl.sensitivity.parameter_models import ParameterModel
from hybridctl.sensitivity.propagation import choose_first_leap, linearize_field_at

_FORMULA = radau(4)
"""Radau IIA of order 7, whose stages in reversed time include the start of an interval."""
_LAST_COEFFICIENTS: Array = np.asarray(
    np.linalg.inv(chebvander(2.0 * _FORMULA.points - 1.0, 3))[-2:], dtype=np.float64
)
"""Maps (2, 4) from values at the stages to their last two series coefficients."""
_PENULTIMATE_WEIGHT = 0.1
"""Weight of the last but one coefficient in error estimates: the last one may be zero by chance."""
_SUM_POWER = 7.0 / 3.0
"""Power of the last coefficient, of order h^3, that estimates the error of a sum of order h^7."""
_ERROR_RATIO = 50.0
"""Least ratio of that power to the error of a sum, as in `sensitivity.collocation`."""
_MAX_HALVINGS = 40
"""Halvings of an interval after which the equation counts as unresolved. A choice."""


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


@dataclass(frozen=True, eq=False)
class ArcAdjoint:
    """The maps of the costate over the m intervals of an arc, in order of time.

    Attributes:
        starts: Starts (m,) of the intervals, s.
        ends: Ends (m,) of the intervals, s.
        transitions: Maps (m, ndx, ndx) from the costate at the end to that at the start.
        by_input: Maps (m, nu, ndx) from the costate at the end to the gradient by the input, which
            is constant on the interval.
        by_parameters: Maps (m, np, ndx) from the costate at the end to the gradient by parameters.
    """

    starts: Array
    ends: Array
    transitions: Array
    by_input: Array
    by_parameters: Array


def linearize_arc_adjoint(
    mode: ModeModel,
    arc: Arc,
    cuts: Sequence[float],
    parameters: ParameterModel | None,
    has_input: bool,
    rtol: float,
) -> ArcAdjoint:
    """Return the maps of the costate over the intervals of an arc.

    Args:
        mode: Mode of the arc.
        arc: The arc.
        cuts: Times in s at which an interval has to end, beside the ends of the arc's steps. Those
            outside the arc are ignored.
        parameters: Derivatives of the field by np parameters. None for none.
        has_input: Whether the gradient by the input is wanted.
        rtol: Tolerance of each map, relative to its largest entry or 1.

    Returns:
        The maps.

    Raises:
        IntegrationError: The field changes faster than intervals resolve.
    """
    inside = [float(t) for t in (*arc.breaks, *cuts) if arc.start < t < arc.end]
    times = np.array(sorted({arc.start, *inside, arc.end}))
    starts, ends = times[:-1], times[1:]
    # The interval of an initial layer, in which A is not accurate, is accepted as it is.
    leap_end = arc.start + (choose_first_leap(mode, arc) if len(starts) else 0.0)
    if leap_end > arc.start:
        wanted = [t for t in cuts if arc.start < t < leap_end]
        leap_end = min([leap_end, *wanted])
        kept = times[times > leap_end]
        times = np.concatenate(([arc.start, leap_end], kept))
        starts, ends = times[:-1], times[1:]
    found: list[ArcAdjoint] = []
    for _ in range(_MAX_HALVINGS):
        if not len(starts):
            break
        maps, errors = _collocate(mode, arc, starts, ends, parameters, has_input)
        accepted = (errors <= rtol) | (ends <= leap_end)
        found.append(_select_intervals(maps, np.flatnonzero(accepted)))
        left, right = starts[~accepted], ends[~accepted]
        middle = 0.5 * (left + right)
        starts, ends = np.append(left, middle), np.append(middle, right)
    if len(starts):
        raise IntegrationError(
            f"the adjoint changes faster than intervals of {(ends - starts).min():.3g} s resolve "
            f"in mode {arc.mode!r} at t = {starts.min():.9g} s"
        )
    return _join_intervals(found, arc, 0 if parameters is None else len(parameters.names))


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
    each = (
        parameters.calc(points.get(k) or mode.calc(float(times[k]), states[k], inputs[k])).field
        for k in range(len(times))
    )
    return ArcSlopes(by_state, by_input, np.array(list(each)))


def _collocate(
    mode: ModeModel,
    arc: Arc,
    starts: Array,
    ends: Array,
    parameters: ParameterModel | None,
    has_input: bool,
) -> tuple[ArcAdjoint, Array]:
    """Return the maps of m intervals, each by one step in reversed time, and their errors.

    Args:
        mode: Mode of the arc.
        arc: The arc.
        starts: Starts (m,) of the intervals, s.
        ends: Ends (m,) of the intervals, s.
        parameters: Derivatives by parameters. None for none.
        has_input: Whether the gradient by the input is wanted.

    Returns:
        The maps, and the largest error (m,) of each, relative to its largest entry or 1.
    """
    m, s, lengths = len(starts), len(_FORMULA.points), ends - starts
    times = ends[:, None] - np.multiply.outer(lengths, _FORMULA.points)
    times[:, -1] = starts  # exactly, as the input may jump there
    slopes = evaluate_slopes(mode, arc, times.ravel(), parameters)
    adjoints = slopes.state.reshape(m, s, *slopes.state.shape[1:]).swapaxes(-1, -2)
    stages = LinearStep(adjoints, lengths, _FORMULA).stage_maps
    densities = [adjoints @ stages]
    for wanted, by in ((has_input, slopes.input), (parameters is not None, slopes.parameters)):
        turned = by.reshape(m, s, *by.shape[1:]).swapaxes(-1, -2)
        densities.append((turned if wanted else turned[..., :0, :]) @ stages)
    weights = np.multiply.outer(lengths, _FORMULA.weights)
    by_input, by_parameters = (np.einsum("ms,msij->mij", weights, d) for d in densities[1:])
    maps = ArcAdjoint(starts, ends, stages[:, -1], by_input, by_parameters)
    errors = [_estimate_errors(lengths, d) for d in densities]
    sizes = [np.abs(a).max(axis=(1, 2), initial=1.0) for a in (maps.transitions, by_input)]
    sizes.append(np.abs(by_parameters).max(axis=(1, 2), initial=1.0))
    return maps, np.max([e / size for e, size in zip(errors, sizes, strict=True)], axis=0)


def _estimate_errors(lengths: Array, densities: Array) -> Array:
    """Return the errors (m,) of the integrals over intervals of densities (m, s, i, j)."""
    m, s = densities.shape[:2]
    if not densities.size:
        return np.zeros(m)
    flat = densities.reshape(m, s, -1)
    size = np.abs(flat).max(axis=(1, 2))
    before, last = np.abs(_LAST_COEFFICIENTS @ flat).max(axis=2).T
    part = (last + _PENULTIMATE_WEIGHT * before) / np.where(size > 0.0, size, 1.0)
    return np.asarray(lengths * size * part**_SUM_POWER / _ERROR_RATIO)


def _select_intervals(maps: ArcAdjoint, chosen: Indices) -> ArcAdjoint:
    """Return some intervals of an arc."""
    return ArcAdjoint(*(getattr(maps, name)[chosen] for name in ArcAdjoint.__dataclass_fields__))


def _join_intervals(parts: Sequence[ArcAdjoint], arc: Arc, count: int) -> ArcAdjoint:
    """Return the intervals of all parts in order of time.

    Args:
        parts: The parts; none for an arc of no duration.
        arc: The arc.
        count: Number np of parameters.
    """
    if not parts:
        n, nu, none = arc.space.ndx, arc.inputs.shape[2], np.zeros(0)
        shapes = (n, n), (nu, n), (count, n)
        return ArcAdjoint(none, none, *(np.zeros((0, *shape)) for shape in shapes))
    names = ArcAdjoint.__dataclass_fields__
    joined = [np.concatenate([getattr(part, name) for part in parts]) for name in names]
    order = np.argsort(joined[0])
    return ArcAdjoint(*(array[order] for array in joined))
