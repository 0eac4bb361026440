r"""The Riccati equation along one arc, backwards, and the gain that belongs to its solution.

.. math:: -\dot V = Q + A^T V + V A - V B R^{-1} B^T V, \qquad K = R^{-1} B^T V .
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.polynomial.chebyshev import chebval

from hybridctl.checks import Array
from hybridctl.control.gains import GainCurve
from hybridctl.control.lqr.weights import WeightAt
from hybridctl.hybrid.flow import Integrator
from hybridctl.hybrid.laws import HeldInput
from hybridctl.hybrid.mode import FieldJacobian, Mode, Pace
from hybridctl.hybrid.series import TO_SERIES, TO_SLOPES
from hybridctl.hybrid.step import Step
from hybridctl.hybrid.trajectory import Arc, arc_from_steps
from hybridctl.sensitivity.linearize import Linearization
from hybridctl.spaces import VectorSpace

_MOST_KNOTS = 64  # in one step of the integrator


@dataclass(frozen=True, eq=False)
class ValueCurve:
    """V(t) (ndx, ndx) on one arc, dense in time; the least cost to go is dx . V(t) dx."""

    arc: Arc
    ndx: int

    def __call__(self, t: float) -> Array:
        """V at time t of the arc, symmetric."""
        return _symmetric(self.arc(float(t)).reshape(self.ndx, self.ndx))

    @property
    def start(self) -> Array:
        """V at the start of the arc: just after the event before it."""
        return self(self.arc.start)

    @property
    def end(self) -> Array:
        """V at the end of the arc: just before the event that ends it."""
        return self(self.arc.end)


@dataclass(frozen=True, eq=False)
class Instant:
    """The gain K (nu, ndx) at the end of an arc, gone over to from time `since` on."""

    gain: Array
    since: float


@dataclass(frozen=True, eq=False)
class Riccati:
    """The equation on the arcs of a linearization, with weights and settings.

    gain_tolerance: of the interpolated gain, of its largest entry.
    """

    lin: Linearization
    state_weight: WeightAt
    input_weight: WeightAt
    integrator: Integrator
    gain_tolerance: float

    def gain(self, k: int, t: float, value: Array) -> Array:
        """K (nu, ndx) at time t of arc k for V there."""
        b = self.lin.sampled[k](t).input
        return np.linalg.solve(self.input_weight(k, t), b.T @ value)

    def blended(self, k: int, t: float, value: Array, instant: Instant | None) -> Array:
        """The gain that is applied: `gain`, and near the end one that goes over to `instant`."""
        best = self.gain(k, t, value)
        end = self.lin.trajectory.arcs[k].end
        if instant is None or t <= instant.since:
            return best
        s = (t - instant.since) / (end - instant.since)
        return np.asarray(best + s**2 * (3.0 - 2.0 * s) * (instant.gain - best))

    def rate(self, k: int, t: float, value: Array, instant: Instant | None = None) -> Array:
        """dV/dt (ndx, ndx) at time t of arc k under the gain that is applied."""
        if instant is not None and t > instant.since:
            return self._rate_of_gain(k, t, value, self.blended(k, t, value, instant))
        c = self.lin.sampled[k](t)
        va, vb = value @ c.state, value @ c.input
        spared = vb @ np.linalg.solve(self.input_weight(k, t), vb.T)
        return np.asarray(_symmetric(spared - self.state_weight(k, t)) - va - va.T)

    def _rate_of_gain(self, k: int, t: float, value: Array, gain: Array) -> Array:
        """dV/dt (ndx, ndx) under any gain."""
        c = self.lin.sampled[k](t)
        growth = value @ (c.state - c.input @ gain)
        spent = self.state_weight(k, t) + gain.T @ self.input_weight(k, t) @ gain
        return np.asarray(-_symmetric(spent) - growth - growth.T)

    def backwards(
        self, k: int, end: Array, instant: Instant | None = None
    ) -> tuple[ValueCurve, GainCurve]:
        """V and K on arc k, for V at its end."""
        arc = self.lin.trajectory.arcs[k]
        n, v0 = len(end), end.ravel()
        steps: list[Step] = []
        cuts = [arc.end, *([instant.since] if instant else []), arc.start]
        for late, early in pairwise(cuts):
            if early < late:
                last = steps[0].states[0] if steps else v0
                steps = self._steps(k, n, late, last, early, instant) + steps
        dense = arc_from_steps(
            k, self._mode(k, n, instant), steps, arc.start, v0, np.zeros(0), arc.end
        )
        if not steps:
            return ValueCurve(dense, n), GainCurve.constant(self.gain(k, arc.end, end))
        return ValueCurve(dense, n), self._gains(k, steps, n, instant)

    def _steps(
        self, k: int, n: int, t: float, v: Array, t_end: float, instant: Instant | None
    ) -> list[Step]:
        """Steps from t back to t_end, in ascending order."""
        mode = self._mode(k, n, instant)
        found = self.integrator.steps(mode, HeldInput(np.zeros(0)), t, v, t_end)
        return [_reversed(step) for step in found][::-1]

    def _mode(self, k: int, n: int, instant: Instant | None) -> Mode:
        """The entries of V as a state, row by row."""
        arc = self.lin.trajectory.arcs[k]
        nominal = self.lin.system.mode(arc.mode)

        def field(t: float, v: Array, u: Array) -> Array:
            return self.rate(k, t, _symmetric(v.reshape(n, n)), instant).ravel()

        def jacobian(t: float, v: Array, u: Array) -> FieldJacobian:
            c = self.lin.sampled[k](t)
            gain = self.blended(k, t, _symmetric(v.reshape(n, n)), instant)
            closed = (c.state - c.input @ gain).T
            both = np.kron(closed, np.eye(n)) + np.kron(np.eye(n), closed)
            return FieldJacobian(-both, np.zeros((n * n, 0)))

        def pace(t: float, v: Array, u: Array) -> Pace:
            if nominal.pace is None:
                return Pace()
            return nominal.pace(t, *arc.state_and_input(t))

        return Mode(arc.mode, VectorSpace(n * n), field, jacobian=jacobian, pace=pace)

    def _gains(self, k: int, steps: list[Step], n: int, instant: Instant | None) -> GainCurve:
        """K between as many knots as its tolerance wants."""
        nodes = [
            np.array(
                [
                    self.blended(k, t, _symmetric(v.reshape(n, n)), instant)
                    for t, v in zip(step.times.tolist(), step.states, strict=True)
                ]
            )
            for step in steps
        ]
        allowed = self.gain_tolerance * max(float(np.abs(v).max(initial=0.0)) for v in nodes)
        curves = [_curve(step, v, allowed) for step, v in zip(steps, nodes, strict=True)]
        kept = [
            *((curve[0][:-1], curve[1][:-1], curve[2][:-1]) for curve in curves[:-1]),
            curves[-1],
        ]
        times, values, slopes = (np.concatenate(part) for part in zip(*kept, strict=True))
        return GainCurve(times, values, slopes)


def _curve(step: Step, at_nodes: Array, allowed: float) -> tuple[Array, Array, Array]:
    """Knots, values and slopes of the polynomial through the values at the nodes of a step."""
    series = np.tensordot(TO_SERIES, at_nodes, 1)
    rates = np.tensordot(TO_SERIES, np.tensordot(TO_SLOPES, at_nodes, 1), 1)
    length = step.end - step.start
    for count in _counts():
        s = np.linspace(-1.0, 1.0, count + 1)
        values, slopes = _at(series, s), _at(rates, s)
        middle = 0.5 * (values[1:] + values[:-1]) - 0.25 / count * (slopes[1:] - slopes[:-1])
        off = np.abs(middle - _at(series, 0.5 * (s[1:] + s[:-1]))).max(initial=0.0)
        if off <= allowed:
            break
    times = step.start + 0.5 * length * (s + 1.0)
    times[-1] = step.end
    return times, values, 2.0 / length * slopes


def _counts() -> Iterator[int]:
    count = 1
    while count <= _MOST_KNOTS:
        yield count
        count *= 2


def _at(series: Array, s: Array) -> Array:
    """A Chebyshev series (8, nu, ndx) at each s, on the first axis."""
    return np.asarray(np.moveaxis(np.asarray(chebval(s, series)), -1, 0), dtype=np.float64)


def _symmetric(v: Array) -> Array:
    return np.asarray(0.5 * (v + v.T))


def _reversed(step: Step) -> Step:
    return Step(step.end, step.start, step.states[::-1], step.inputs[::-1])
