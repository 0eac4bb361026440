r"""Propagation of perturbations along a recorded arc: the variational equation.

Perturbations z of the state and :math:`\delta u` of the input travel along an arc by

.. math:: \dot z = A(t) z + B(t)\, \delta u(t), \qquad A = D_x f + T(f), \quad B = D_u f,

in the tangent space of the nominal state, where T is the transport of the state space (zero in a
vector space). The nominal trajectory is read from its record, which is as accurate as its
simulation. Two ways lead to the same numbers:

- `propagate_perturbations` collocates the equation (`collocation`) for any mode, change of the
  input and feedback.
- `propagate_by_steps` multiplies the transition matrices of compiled steps, for modes that have
  them and inputs that are constant on each step. It is faster.

All functions go forward in time, from the start of an arc. At an event `saltation` and
`simultaneous` continue, and `linearization` chains both over a whole run. The adjoint equation,
:math:`-\dot\lambda = A^T \lambda`, needs the same A on the same record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.spaces import VectorSpace
from hybridctl.hybrid.arc import Arc, make_arc_from_steps
from hybridctl.hybrid.mode import Mode, ModeModel
from hybridctl.hybrid.model import Diffusion, FieldJacobian, Point, StepRequest
from hybridctl.hybrid.series import basis
from hybridctl.hybrid.step import Step
from hybridctl.hybrid.tableau import DOP853_TABLEAU
from hybridctl.sensitivity.collocation import (
    FIRST_POINT,
    Propagation,
    integrate_linear_equation,
)

InputChange = Callable[[float], Array]
"""Change du (nu,) of the input at a time in s."""
Gain = Callable[[float], Array]
"""Gain K (nu, ndx) of a feedback du = -K z at a time in s."""
StepNoise = Callable[[StepRequest, Array], Diffusion | None]
"""Density of white noise on a step under a constant input (nu,), unit^2 / s; None if it is not
constant on the step."""

_INITIAL_LAYER = 1e-5
"""Relaxation time of the field at the start of an arc, relative to the duration of the arc, up to
which the first step crosses the initial layer instead of following it
(test_the_derivative_across_breakaway_is_that_of_the_flow).

A cube's corner that begins to slide is as good as at rest for 2e-5 s, with a relaxation time of
4e-9 s. Where its arc ends 2 ms after the start, finding the end of that by halving intervals took
130 points of the gradient whose derivatives had to be solved for. A leap changes it by 1e-12."""
_SHORTEST_LEAP, _LONGEST_LEAP, _LEAP_GROWTH = 1e-2, 5e-2, 1.5
"""Least length of a first step across an initial layer, relative to the duration, the length from
which it grows no further, and the ratio of one that is tried to the one before. The values are
choices."""
_LAYER_END = 100.0
"""Relaxation time relative to that at the start, from which a point is outside the layer.

Nearer to the start the recorded state is not accurate enough for the directions of slip, however
tight the tolerances of the run are."""
_STEP_SAFETY, _MIN_STEP_SHRINK = 0.9, 0.2
"""Step-size control of compiled steps: part of the optimal length, and least change of length."""
_SHORTEST_COMPILED_STEP = 1e-2
"""Length of a compiled step, relative to the step of the arc, below which the equation is
collocated: an implicit method takes longer steps where perturbations are stiff. A choice."""
_SERIES_AT_START = basis(-1.0)
"""Values of the Chebyshev polynomials at the start of a step, where the coordinate is -1."""
_NO_INPUT: Array = np.zeros(0)


def linearize_field(mode: ModeModel, t: float, x: Array, u: Array) -> FieldJacobian:
    """Return A and B of the variational equation.

    Args:
        mode: The mode.
        t: Time, s.
        x: State (nx,).
        u: Input (nu,).

    Returns:
        A (ndx, ndx) as `state` and B (ndx, nu) as `input`.

    Raises:
        SystemDefinitionError: The field of the mode has no Jacobian.
    """
    return linearize_field_at(mode.calc(t, x, u))


def linearize_field_at(point: Point) -> FieldJacobian:
    """Return A (ndx, ndx) and B (ndx, nu) of the variational equation at a point of a mode."""
    mode, d = point.mode, point.field_jacobian
    if isinstance(mode.space, VectorSpace):  # its tangent spaces are one: T(f) = 0
        return d
    return FieldJacobian(d.state + mode.space.transport(point.field), d.input)


@dataclass(frozen=True)
class PerturbationCurve:
    """Perturbations along an arc, dense in time.

    Attributes:
        arc: Record of the ndx k entries of the perturbations.
        ndx: Dimension of a perturbation.
    """

    arc: Arc
    ndx: int

    def __call__(self, t: float) -> Array:
        """Return the k perturbations (ndx, k) at a time in s."""
        return np.asarray(self.arc(float(t)).reshape(self.ndx, -1))

    @property
    def end(self) -> Array:
        """The perturbations (ndx, k) at the end of the arc."""
        return self(self.arc.end)


def propagate_perturbations(
    mode: ModeModel,
    arc: Arc,
    start: Array,
    input_change: InputChange | None = None,
    gain: Gain | None = None,
    *,
    rtol: float,
    atol: float,
) -> PerturbationCurve:
    """Return perturbations along an arc, by collocation of the variational equation.

    Args:
        mode: Mode of the arc.
        arc: Nominal arc.
        start: Perturbations (ndx, k) at the start of the arc, in columns.
        input_change: Change of the input, the same for all columns. None for no change.
        gain: Gain K of a feedback that changes the input by -K z in addition. None for none.
        rtol: Relative tolerance of every entry; see `integrate_linear_equation`.
        atol: Absolute tolerance of every entry.

    Returns:
        The perturbations (ndx, k). A mode whose field has no Jacobian raises a
        `SystemDefinitionError`, and an equation that changes faster than steps resolve an
        `IntegrationError`.
    """

    def equation(piece: Arc, t: float) -> tuple[Array, Array | None]:
        """Return the matrix A - B K and the force B du of the variational equation on a piece."""
        c = linearize_field(mode, t, *piece.state_and_input(t))
        matrix = c.state if gain is None else c.state - c.input @ gain(t)
        return matrix, None if input_change is None else c.input @ input_change(t)

    steps, z = list[Step](), start
    # The input may jump between the pieces of an arc: no step crosses such a time.
    for piece in arc.pieces:
        steps += integrate_linear_equation(
            partial(equation, piece), z, piece.start, piece.end, rtol=rtol, atol=atol,
            # Not positive where the arc begins after its first step, as the rest of an arc does
            # that is compiled up to there: the method's own first step is taken then.
            first_step=float(piece.breaks[0] + piece.lengths[0]) - piece.start,
            leap=choose_first_leap(mode, piece),
        )  # fmt: skip
        z = steps[-1].states[-1].reshape(start.shape) if steps else start
    entries = Mode(mode.key, VectorSpace(start.size), lambda t, z, u: _NO_INPUT)
    dense = make_arc_from_steps(
        arc.index, entries, steps, arc.start, start.ravel(), _NO_INPUT, arc.end
    )
    return PerturbationCurve(dense, len(start))


def compute_arc_transition(mode: ModeModel, arc: Arc, rtol: float, atol: float) -> Array:
    """Return the transition matrix of an arc, by compiled steps if there are any.

    Args:
        mode: Mode of the arc.
        arc: Nominal arc.
        rtol: Relative tolerance of every entry.
        atol: Absolute tolerance of every entry.

    Returns:
        The matrix (ndx, ndx). It raises the errors of `propagate_perturbations`.
    """
    found = compute_transition_by_steps(mode, arc, rtol=rtol, atol=atol)
    if found is None:
        units = np.eye(arc.space.ndx)
        found = propagate_perturbations(mode, arc, units, rtol=rtol, atol=atol).end
    return found


def compute_transition_by_steps(
    mode: ModeModel, arc: Arc, *, rtol: float, atol: float
) -> Array | None:
    """Return the transition matrix of an arc, from the compiled steps of its mode.

    From the time at which compiled steps no longer hold, or would be much shorter than those of the
    arc, the equation is collocated.

    Args:
        mode: Mode of the arc.
        arc: Nominal arc.
        rtol: Relative tolerance of the entries of the matrix of each step.
        atol: Absolute tolerance of these entries.

    Returns:
        The matrix (ndx, ndx). None if not even the first step is a compiled one: the mode has
        none, or the input is not constant on the steps of the arc.
    """
    t, total = propagate_by_steps(mode, arc, rtol=rtol, atol=atol)
    if t == arc.end:
        return total.state
    if t == arc.start:
        return None
    rest = replace(arc, start=t)
    return propagate_perturbations(mode, rest, total.state, rtol=rtol, atol=atol).end


def propagate_by_steps(
    mode: ModeModel,
    arc: Arc,
    noise: StepNoise | None = None,
    *,
    rtol: float,
    atol: float,
) -> tuple[float, Propagation]:
    """Propagate along an arc by compiled steps, as far as they hold.

    Args:
        mode: Mode of the arc.
        arc: Nominal arc.
        noise: White noise of a step, given the step and its constant input. None for no noise.
        rtol: Relative tolerance of the entries of the matrix of each step.
        atol: Absolute tolerance of these entries.

    Returns:
        The time in s until which compiled steps hold, and the propagation until then: transition,
        gathered noise, no cost. They end where the mode has no such step, where it would be much
        shorter than that of the arc, and where `noise` returns None; at the start if the mode has
        no compiled steps or the input is not constant on the steps of the arc.
    """
    total = Propagation.identity(arc.space.ndx)
    compiled = mode.compiled_steps
    if compiled is None or not arc.has_held_input:
        return arc.start, total
    ends = (*arc.breaks[1:].tolist(), arc.end)
    for t, end, states, inputs in zip(
        arc.breaks.tolist(), ends, arc.states, arc.inputs, strict=True
    ):
        x, u, h = _SERIES_AT_START @ states, inputs[0], end - t
        density = None if noise is None else noise(StepRequest(t, x, h, rtol, atol), u)
        if noise is not None and density is None:
            return t, total
        shortest = _SHORTEST_COMPILED_STEP * h
        while t < end:
            # Compared is h itself: a short rest of the arc's step is no sign of a stiff equation.
            if h < shortest:
                return t, total
            step = compiled.transition(StepRequest(t, x, min(h, end - t), rtol, atol), u, density)
            if step is None:
                return t, total
            if step.error < 1.0:
                t, x = t + min(h, end - t), step.state
                total = total.advance(step.matrix, step.noise)
            else:  # again from the same time with a shorter step
                change = _STEP_SAFETY * step.error**DOP853_TABLEAU.exponent
                h *= max(_MIN_STEP_SHRINK, change)
    return arc.end, total


def choose_first_leap(mode: ModeModel, arc: Arc) -> float:
    """Return the length in s of a first step across an initial layer, 0 if there is none.

    In the layer, directions decay at once, as those across a contact that begins to slip do. The
    step is a small part of the arc, but so long that its first stage is outside the layer: the
    first of the lengths that are tried. If none of them is, it is one growth longer than the last
    that was tried. Modes
    whose relaxation time is the same everywhere (`ModeModel.steady_pace`) have no layer.

    Args:
        mode: Mode of the arc.
        arc: Nominal arc.
    """

    def relaxation_time(t: float) -> float:
        return mode.calc(t, *arc.state_and_input(t)).pace.relaxation

    if mode.steady_pace is not None:
        return 0.0
    duration, first = arc.end - arc.start, relaxation_time(arc.start)
    if first > _INITIAL_LAYER * duration:
        return 0.0
    leap = _SHORTEST_LEAP * duration
    while leap < _LONGEST_LEAP * duration:
        if relaxation_time(arc.start + FIRST_POINT * leap) > _LAYER_END * first:
            break
        leap *= _LEAP_GROWTH
    return leap
