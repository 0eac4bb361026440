r"""The variational flow along an arc: how perturbations of state and input travel with it.

.. math:: \dot z = A(t) z + B(t)\, \delta u(t), \qquad A = D_x f + T(f), \quad B = D_u f,

with T the transport of the state space (zero in a vector space), in the tangent space of the
nominal state. The nominal trajectory is taken from its record, which is as accurate as the flow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hybridctl.checks import Array
from hybridctl.errors import SystemDefinitionError
from hybridctl.hybrid.flow import Integrator, Step
from hybridctl.hybrid.mode import Mode, Pace
from hybridctl.hybrid.trajectory import Arc, arc_from_steps
from hybridctl.sensitivity.collocation import FIRST_POINT, collocated
from hybridctl.spaces import VectorSpace

InputChange = Callable[[float], Array]
Gain = Callable[[float], Array]

_STIFF = 1e-2  # of the duration of an arc: a decay this fast is integrated implicitly
_AT_ONCE = 1e-6  # of it: what decays this fast at its start is not followed
_LEAP, _FARTHEST = 1e-2, 5e-2
_SLOWER = 10.0


@dataclass(frozen=True)
class Coefficients:
    """A (ndx, ndx) and B (ndx, nu) of the variational equation."""

    state: Array
    input: Array


def coefficients(mode: Mode, t: float, x: Array, u: Array) -> Coefficients:
    """A and B at a point. Raises `SystemDefinitionError` if the field has no Jacobian."""
    if mode.jacobian is None:
        raise SystemDefinitionError(f"the vector field of mode {mode.key!r} has no Jacobian")
    d = mode.jacobian(t, x, u)
    return Coefficients(d.state + mode.space.transport(mode.field(t, x, u)), d.input)


@dataclass(frozen=True)
class Variation:
    """k perturbations along an arc, dense in time."""

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
    mode: Mode,
    arc: Arc,
    start: Array,
    integrator: Integrator,
    input_change: InputChange | None = None,
    gain: Gain | None = None,
) -> Variation:
    """The perturbations that begin as the columns of start (ndx, k), under one change of input.

    gain: K(t) (nu, ndx) of a feedback that changes the input by -K z besides.

    Raises `SystemDefinitionError` if the field has no Jacobian, and what the integrator raises.
    """
    ndx, k = start.shape

    def equation(t: float) -> tuple[Array, Array | None]:
        c = coefficients(mode, t, *arc.state_and_input(t))
        matrix = c.state if gain is None else c.state - c.input @ gain(t)
        return matrix, None if input_change is None else c.input @ input_change(t)

    def field(t: float, z: Array, u: Array) -> Array:
        matrix, force = equation(t)
        rate = matrix @ z.reshape(ndx, k)
        return np.asarray((rate if force is None else rate + force[:, None]).ravel())

    def pace(t: float, z: Array, u: Array) -> Pace:
        x, nominal = arc.state_and_input(t)
        return Pace() if mode.pace is None else mode.pace(t, x, nominal)

    beside = Mode(mode.key, VectorSpace(start.size), field, pace=pace)
    z0, steps = start.ravel(), list[Step]()
    if arc.end > arc.start and _is_stiff(mode, arc):
        steps = list(
            collocated(
                equation,
                start,
                arc.start,
                arc.end,
                rtol=integrator.rtol,
                atol=integrator.atol,
                leap=_leap(mode, arc),
            )
        )
    elif arc.end > arc.start:
        steps = list(integrator.steps(beside, _no_input, arc.start, z0, arc.end))
    dense = arc_from_steps(arc.index, beside, steps, arc.start, z0, np.zeros(0), arc.end)
    return Variation(dense, ndx)


def _is_stiff(mode: Mode, arc: Arc) -> bool:
    """Whether something decays much faster than the arc lasts, somewhere along it."""
    if mode.pace is None:
        return False
    shortest = min(mode.pace(t, *arc.state_and_input(t)).relaxation for t in arc.times.tolist())
    return shortest < _STIFF * (arc.end - arc.start)


def _leap(mode: Mode, arc: Arc) -> float:
    """The length of a first step across what decays at once, 0 where nothing does.

    As long as puts its first point where that decays clearly slower than at the start, at which
    the trajectory is known too roughly for its direction, but a small part of the arc.
    """

    def relaxation(t: float) -> float:
        return np.inf if mode.pace is None else mode.pace(t, *arc.state_and_input(t)).relaxation

    duration, first = arc.end - arc.start, relaxation(arc.start)
    if first > _AT_ONCE * duration:
        return 0.0
    leap = _LEAP * duration
    while leap < _FARTHEST * duration:
        if relaxation(arc.start + FIRST_POINT * leap) > _SLOWER * first:
            break
        leap *= 1.5
    return leap


def _no_input(t: float, z: Array) -> Array:
    return np.zeros(0)
