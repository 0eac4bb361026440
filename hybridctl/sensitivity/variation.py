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
from hybridctl.hybrid.mode import FieldJacobian, Mode, Pace
from hybridctl.hybrid.trajectory import Arc, arc_from_steps
from hybridctl.spaces import VectorSpace

InputChange = Callable[[float], Array]
Gain = Callable[[float], Array]


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

    def at(t: float) -> Coefficients:
        c = coefficients(mode, t, *arc.state_and_input(t))
        return c if gain is None else Coefficients(c.state - c.input @ gain(t), c.input)

    def field(t: float, z: Array, u: Array) -> Array:
        c = at(t)
        rate = c.state @ z.reshape(ndx, k)
        if input_change is not None:
            rate = rate + (c.input @ input_change(t))[:, None]
        return np.asarray(rate.ravel())

    def jacobian(t: float, z: Array, u: Array) -> FieldJacobian:
        state = np.asarray(np.kron(at(t).state, np.eye(k)), dtype=np.float64)
        return FieldJacobian(state, np.zeros((z.size, 0)))

    def pace(t: float, z: Array, u: Array) -> Pace:
        x, nominal = arc.state_and_input(t)
        return Pace() if mode.pace is None else mode.pace(t, x, nominal)

    beside = Mode(mode.key, VectorSpace(start.size), field, jacobian=jacobian, pace=pace)
    z0, steps = start.ravel(), list[Step]()
    if arc.end > arc.start:
        steps = list(integrator.steps(beside, _no_input, arc.start, z0, arc.end, open_loop=True))
    dense = arc_from_steps(arc.index, beside, steps, arc.start, z0, np.zeros(0), arc.end)
    return Variation(dense, ndx)


def _no_input(t: float, z: Array) -> Array:
    return np.zeros(0)
