r"""The Riccati equation along one arc, backwards, and the gain that belongs to its solution.

.. math:: -\dot V = Q + A^T V + V A - V B R^{-1} B^T V, \qquad K = R^{-1} B^T V .

Where the gain that is applied goes over to another one, :math:`(1 - s) K + s \bar K`, the cost
obeys the same equation with :math:`A - s^2 B \bar K`, :math:`Q + s^2 \bar K^T R \bar K` and
:math:`(1 - s^2) B R^{-1} B^T` in place of :math:`A`, :math:`Q` and :math:`B R^{-1} B^T`. So V goes
back over any stretch of time by its propagation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import pairwise
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.polynomial.chebyshev import chebval
from scipy.interpolate import CubicHermiteSpline

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.control.gains import GainCurve
from hybridctl.control.lqr.weights import WeightAt
from hybridctl.hybrid.series import FRACTIONS, TO_SERIES, TO_SLOPES
from hybridctl.sensitivity.collocation import LinearStep, Propagation, radau, symmetric_part
from hybridctl.sensitivity.linearization import Linearization

_FORMULA = radau(4)  # between the nodes of a panel, where a loop may be stiff
_BEFORE_LAST = 0.1  # weight of the coefficient before the last
_ROUNDING = 1e-14  # of the largest entry of V
_INSTANT = (
    1e-11  # of the time: on a shorter arc knots cannot be told apart, and V is that of its end
)
_SHORTEST = 1e-9  # of an arc: where a weight jumps, panels are no shorter
_COUNTS = (1, 2, 4, 8, 16, 32, 64)  # of cubics in one panel
_MOST_PANELS = 2_000  # between two breaks of an arc
_GAINS = 1e-8  # of the largest entry of a gain: how accurate its curve is

Between = Callable[[Array], Propagation]


@dataclass(frozen=True, eq=False)
class ValueCurve:
    """The value V(t) (ndx, ndx) on one arc; the least cost to go is dx . V(t) dx.

    times (n,), values (n, ndx, ndx): at knots. between(times): the propagations between times.
    """

    times: Array
    values: Array
    between: Between

    def __call__(self, t: float) -> Array:
        """The symmetric V at time t of the arc: that of the next knot, taken back to t."""
        k = min(int(self.times.searchsorted(t)), len(self.times) - 1)
        if t >= self.times[k]:
            return np.asarray(self.values[k])
        (back,) = self.between(np.array([t, self.times[k]]))
        return back.value(self.values[k])

    @property
    def start(self) -> Array:
        """The value V at the start of the arc: just after the event before it."""
        return np.asarray(self.values[0])

    @property
    def end(self) -> Array:
        """The value V at the end of the arc: just before the event that ends it."""
        return np.asarray(self.values[-1])

    @property
    def propagation(self) -> Propagation:
        """The propagation of the whole arc; the identity for one of a single time."""
        if len(self.times) == 1:
            return Propagation.jump(np.eye(len(self.end)))
        return reduce(Propagation.compose, self.between(self.times))


@dataclass(frozen=True, eq=False)
class Instant:
    """A gain K (nu, ndx) for the end of an arc, blended in from time `since` to `end`."""

    gain: Array
    since: float
    end: float

    def share(self, t: float) -> float:
        """The weight of this gain at time t, from 0 at `since` to 1 at `end`."""
        s = min(max((t - self.since) / (self.end - self.since), 0.0), 1.0)
        return s**2 * (3.0 - 2.0 * s)


class _RiccatiStretch(NamedTuple):
    """The value V (8, ndx, ndx) and the gain applied (8, nu, ndx) at the nodes of a stretch."""

    times: Array
    values: Array
    gains: Array


@dataclass(frozen=True, eq=False)
class Riccati:
    """The equation on the arcs of a linearization, with weights and settings.

    rtol, atol: of V. reached: called with the time down to which the equation is integrated, None
    for nothing. Propagations are kept, so that other final values cost little.
    """

    lin: Linearization
    state_weight: WeightAt
    input_weight: WeightAt
    rtol: float
    atol: float
    reached: Callable[[float], None] | None = None
    _kept: dict[tuple[int, float, float], Propagation] = field(default_factory=dict, repr=False)

    def gain(self, k: int, t: float | Array, value: Array) -> Array:
        """The gain K (..., nu, ndx) at a time or times t (m,) of arc k for V (..., ndx, ndx)."""
        arc = self.lin.trajectory.arcs[k].piece(float(np.mean(t)))
        b = self.lin.coefficients(arc, t).input
        weights = [self.input_weight(k, one) for one in np.ravel(t).tolist()]
        weight = np.reshape(weights, (*np.shape(t), *weights[0].shape))
        return np.asarray(np.linalg.solve(weight, np.swapaxes(b, -1, -2) @ value))

    def backwards(
        self, k: int, end: Array, instant: Instant | None = None
    ) -> tuple[ValueCurve, GainCurve]:
        """The value V and gain K on arc k, for V at its end."""
        arc, between = self.lin.trajectory.arcs[k], partial(self._between, k, instant)
        if arc.end - arc.start <= _INSTANT * max(abs(arc.start), abs(arc.end)):
            constant = GainCurve.constant(self.gain(k, arc.end, end))
            return ValueCurve(np.array([arc.end]), end[None], between), constant
        cuts = {arc.start, arc.end, *(t for t in arc.breaks.tolist() if t < arc.end)}
        if instant is not None:
            cuts.add(instant.since)
        panels, value = list[_RiccatiStretch](), end
        for a, b in reversed(list(pairwise(sorted(cuts)))):
            panels = self._panels(k, instant, a, b, value) + panels
            value = panels[0].values[0]
        times = np.concatenate([p.times[:-1] for p in panels] + [[arc.end]])
        values = np.concatenate([p.values[:-1] for p in panels] + [end[None]])
        return ValueCurve(times, values, between), self._curve(panels)

    def _panels(
        self, k: int, instant: Instant | None, a: float, b: float, value: Array
    ) -> list[_RiccatiStretch]:
        """Panels from a to b for V at b, halved until each resolves what is in it."""
        arc, panels, ahead = self.lin.trajectory.arcs[k], list[_RiccatiStretch](), [(a, b)]
        while ahead:
            a, b = ahead.pop()
            try:
                with np.errstate(over="ignore", invalid="ignore"):  # told below
                    panel = self._panel(k, instant, a, b, value)
            except np.linalg.LinAlgError:
                self._refuse(k, b, value)
            if b - a > _SHORTEST * (arc.end - arc.start) and not self._resolves(panel):
                middle = 0.5 * (a + b)
                ahead += [(a, middle), (middle, b)]
                continue
            panels.append(panel)
            if len(panels) > _MOST_PANELS or not np.isfinite(panel.gains).all():
                self._refuse(k, b, value)
            value = panel.values[0]
            if self.reached is not None:
                self.reached(a)
        return panels[::-1]

    def _refuse(self, k: int, t: float, value: Array) -> NoReturn:
        """Raise `InputError` for a feedback at time t that acts too fast to be integrated."""
        arc = self.lin.trajectory.arcs[k]
        c = self.lin.coefficients(arc, t)
        with np.errstate(over="ignore", invalid="ignore"):
            closed = np.abs(c.state - c.input @ self.gain(k, t, value)).max()
        rate = np.nan_to_num(closed, nan=np.inf)
        raise InputError(
            f"input_weight must be larger beside state_weight and final_weight: the feedback at "
            f"t = {t:g} acts within {1.0 / rate:.1e} s, too short to be followed along an arc of "
            f"{arc.end - arc.start:g} s"
        )

    def _panel(
        self, k: int, instant: Instant | None, a: float, b: float, value: Array
    ) -> _RiccatiStretch:
        """The stretch from a to b in one, for V at b."""
        times = a + (b - a) * FRACTIONS
        times[-1] = b
        key = (k, a, b)
        between = None if instant is not None else self._kept.get(key)
        if between is None:
            between = self._between(k, instant, times)
        if instant is None:
            self._kept[key] = between
        values = [value]
        for stretch in reversed(list(between)):
            values.append(stretch.value(values[-1]))
        values.reverse()
        at_nodes = np.array(values)
        gains = self.gain(k, times, at_nodes)
        if instant is not None:  # the best gain goes over to that
            share = np.array([instant.share(t) for t in times.tolist()])[:, None, None]
            gains = gains + share * (instant.gain - gains)
        return _RiccatiStretch(times, at_nodes, gains)

    def _resolves(self, panel: _RiccatiStretch) -> bool:
        """Whether polynomials through V and K on a panel are as accurate as asked for."""
        off, size = _tail(panel.values), np.abs(panel.values).max(axis=0)
        allowed = self.atol + self.rtol * size + _ROUNDING * size.max(initial=0.0)
        largest = float(np.abs(panel.gains).max(initial=0.0))
        return bool((off <= allowed).all() and (_tail(panel.gains) <= _GAINS * largest).all())

    def _between(self, k: int, instant: Instant | None, times: Array) -> Propagation:
        """The propagations (m, ...) of arc k between times (m + 1,), with the gain applied."""
        lengths = np.diff(times)
        stages = np.asarray(times[:-1, None] + lengths[:, None] * _FORMULA.points)
        arc = self.lin.trajectory.arcs[k].piece(float(0.5 * (times[0] + times[-1])))
        c, rows = self.lin.coefficients(arc, stages), stages.tolist()
        a, b = c.state, c.input
        r = np.array([[self.input_weight(k, t) for t in row] for row in rows])
        q = np.array([[self.state_weight(k, t) for t in row] for row in rows])
        reach = symmetric_part(b @ np.linalg.solve(r, np.swapaxes(b, -1, -2)))
        if instant is not None:
            share = np.array([[[[instant.share(t) ** 2]] for t in row] for row in rows])
            a = a - share * (b @ instant.gain)
            q = q + share * symmetric_part(instant.gain.T @ r @ instant.gain)
            reach = (1.0 - share) * reach
        return LinearStep(a, lengths, _FORMULA).propagation(reach, q)

    def _curve(self, panels: list[_RiccatiStretch]) -> GainCurve:
        """The gain K between as many knots as its tolerance wants."""
        largest = max(float(np.abs(panel.gains).max(initial=0.0)) for panel in panels)
        return GainCurve.joined([_curve(p.times, p.gains, _GAINS * largest) for p in panels])


def _tail(values: Array) -> Array:
    """What a series through values (8, ...) at the nodes leaves out, by its last coefficients."""
    last, before = np.abs(np.tensordot(TO_SERIES[[-1, -2]], values, axes=1))
    return np.asarray(last + _BEFORE_LAST * before)


def _curve(times: Array, at_nodes: Array, allowed: float) -> GainCurve:
    """The polynomial through values (8, nu, ndx) at the nodes, as cubics that are off by so much.

    They are compared with it in between at quarters of the way from knot to knot.
    """
    series = np.tensordot(TO_SERIES, at_nodes, 1)
    rates = np.tensordot(TO_SERIES, np.tensordot(TO_SLOPES, at_nodes, 1), 1)
    for count in _COUNTS:
        s, fine = (np.linspace(-1.0, 1.0, n + 1) for n in (count, 4 * count))
        values, slopes = _at(series, s), _at(rates, s)
        cubics = CubicHermiteSpline(s, values, slopes)(fine)
        if np.abs(cubics - _at(series, fine)).max(initial=0.0) <= allowed:
            break
    half = 0.5 * (times[-1] - times[0])
    knots = times[0] + half * (s + 1.0)
    knots[-1] = times[-1]
    return GainCurve(knots, values, slopes / half)


def _at(series: Array, s: Array) -> Array:
    """The values of a Chebyshev series (8, nu, ndx) at each s, on the first axis."""
    return np.asarray(np.moveaxis(np.asarray(chebval(s, series)), -1, 0), dtype=np.float64)
