r"""The variational flow along an arc: how perturbations of state and input travel with it.

.. math:: \dot z = A(t) z + B(t)\, \delta u(t), \qquad A = D_x f + T(f), \quad B = D_u f,

with T the transport of the state space (zero in a vector space), in the tangent space of the
nominal state. The nominal trajectory is taken from its record, which is as accurate as the flow.
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
from hybridctl.hybrid.model import Diffusion, FieldJacobian, Point, StepAhead
from hybridctl.hybrid.series import basis
from hybridctl.hybrid.step import Step
from hybridctl.hybrid.tableau import DOP853_TABLEAU
from hybridctl.sensitivity.collocation import FIRST_POINT, collocated
from hybridctl.sensitivity.propagation import Propagation

InputChange = Callable[[float], Array]
Gain = Callable[[float], Array]
HeldNoise = Callable[[StepAhead, Array], Diffusion | None]

_AT_ONCE = 1e-6  # of the duration of an arc: what decays this fast at its start is not followed
_LEAP, _FARTHEST = 1e-2, 5e-2
_SLOWER = 100.0  # times: nearer to the start runs know directions too roughly, however tight
_SAFETY, _SHRINK = 0.9, 0.2
_STIFF = 1e-2  # of a step of the arc: where the perturbations need shorter ones, others follow them
_AT_START = basis(-1.0)
_NO_INPUT: Array = np.zeros(0)


def coefficients(mode: ModeModel, t: float, x: Array, u: Array) -> FieldJacobian:
    """A and B at (t, x, u). Raises `SystemDefinitionError` if the field has no Jacobian."""
    return coefficients_at(mode.calc(t, x, u))


def coefficients_at(point: Point) -> FieldJacobian:
    """A and B at a point. Raises `SystemDefinitionError` if the field has no Jacobian."""
    mode, d = point.mode, point.field_jacobian
    if isinstance(mode.space, VectorSpace):  # where perturbations do not turn
        return d
    return FieldJacobian(d.state + mode.space.transport(point.field), d.input)


@dataclass(frozen=True)
class Variation:
    """The course of k perturbations along an arc, dense in time."""

    arc: Arc
    ndx: int

    def __call__(self, t: float) -> Array:
        """The perturbations (ndx, k) at time t."""
        return np.asarray(self.arc(float(t)).reshape(self.ndx, -1))

    @property
    def end(self) -> Array:
        """The perturbations (ndx, k) at the end of the arc."""
        return self(self.arc.end)


def along(
    mode: ModeModel,
    arc: Arc,
    start: Array,
    input_change: InputChange | None = None,
    gain: Gain | None = None,
    *,
    rtol: float,
    atol: float,
) -> Variation:
    """The perturbations that begin as the columns of start (ndx, k), under one change of input.

    gain: K(t) (nu, ndx) of a feedback that changes the input by -K z besides. rtol, atol: of
    every entry, see `collocated`.

    Raises `SystemDefinitionError` if the field has no Jacobian, `IntegrationError` where it
    changes faster than steps resolve.
    """

    def equation(piece: Arc, t: float) -> tuple[Array, Array | None]:
        c = coefficients(mode, t, *piece.state_and_input(t))
        matrix = c.state if gain is None else c.state - c.input @ gain(t)
        return matrix, None if input_change is None else c.input @ input_change(t)

    steps, z = list[Step](), start
    for piece in arc.pieces:
        steps += collocated(
            partial(equation, piece), z, piece.start, piece.end, rtol=rtol, atol=atol,
            first=float(piece.breaks[0] + piece.lengths[0]) - piece.start,
            leap=first_leap(mode, piece),
        )  # fmt: skip
        z = steps[-1].states[-1].reshape(start.shape) if steps else start
    beside = Mode(mode.key, VectorSpace(start.size), lambda t, z, u: _NO_INPUT)
    dense = make_arc_from_steps(
        arc.index, beside, steps, arc.start, start.ravel(), _NO_INPUT, arc.end
    )
    return Variation(dense, len(start))


def transition(mode: ModeModel, arc: Arc, *, rtol: float, atol: float) -> Array | None:
    """The transition matrix (ndx, ndx) of an arc from the compiled steps of its mode.

    rtol, atol: of the entries of the matrix of each step. From where compiled steps do not hold
    later, or would have to be much shorter than those of the arc, the equation is collocated. None
    where the mode has none of its field, or its input is not held.
    """
    t, total = by_steps(mode, arc, rtol=rtol, atol=atol)
    if t == arc.end:
        return total.state
    if t == arc.start:
        return None
    return along(mode, replace(arc, start=t), total.state, rtol=rtol, atol=atol).end


def by_steps(
    mode: ModeModel,
    arc: Arc,
    noise: HeldNoise | None = None,
    *,
    rtol: float,
    atol: float,
) -> tuple[float, Propagation]:
    """The time until which compiled steps carry deviations along an arc, and how they do.

    noise: (ahead, u) -> what a step gathers while the input u is held, or None where that is not
    known; carried no further there.
    """
    total = Propagation.of_no_time(arc.space.ndx)
    if not mode.compiled or not arc.has_held_input:
        return arc.start, total
    ends = (*arc.breaks[1:].tolist(), arc.end)
    for t, end, states, inputs in zip(
        arc.breaks.tolist(), ends, arc.states, arc.inputs, strict=True
    ):
        x, u, h = _AT_START @ states, inputs[0], end - t
        density = None if noise is None else noise(StepAhead(t, x, h, rtol, atol), u)
        if noise is not None and density is None:
            return t, total
        shortest = _STIFF * h
        while t < end:
            moved = mode.transition(StepAhead(t, x, min(h, end - t), rtol, atol), u, density)
            if moved is None or h < shortest:
                return t, total
            if moved.error < 1.0:
                t, x = t + min(h, end - t), moved.state
                total = total.onward(moved.matrix, moved.noise)
            else:
                h *= max(_SHRINK, _SAFETY * moved.error**DOP853_TABLEAU.exponent)
    return arc.end, total


def arc_transition(mode: ModeModel, arc: Arc, rtol: float, atol: float) -> Array:
    """The transition matrix (ndx, ndx) of an arc, by compiled steps where there are any.

    Raises what `along` raises.
    """
    found = transition(mode, arc, rtol=rtol, atol=atol)
    if found is None:
        found = along(mode, arc, np.eye(arc.space.ndx), rtol=rtol, atol=atol).end
    return found


def first_leap(mode: ModeModel, arc: Arc) -> float:
    """The length of a first step across what decays at once, 0 where nothing does.

    As long as puts its first point where that decays clearly slower than at the start, at which
    the trajectory is known too roughly for its direction, but a small part of the arc.
    """

    def relaxation(t: float) -> float:
        return mode.pace(t, *arc.state_and_input(t)).relaxation

    if mode.steady_pace is not None:
        return 0.0
    duration, first = arc.end - arc.start, relaxation(arc.start)
    if first > _AT_ONCE * duration:
        return 0.0
    leap = _LEAP * duration
    while leap < _FARTHEST * duration:
        if relaxation(arc.start + FIRST_POINT * leap) > _SLOWER * first:
            break
        leap *= 1.5
    return leap
