r"""The Riccati equation along one arc, backwards, and the gain that belongs to its solution.

.. math:: -\dot V = Q + A^T V + V A - V B R^{-1} B^T V, \qquad K = R^{-1} B^T V .

Where the gain is blended into another one, :math:`(1 - s) K + s \bar K` with a share s, the cost
obeys the same equation with :math:`A - s^2 B \bar K`, :math:`Q + s^2 \bar K^T R \bar K` and
:math:`(1 - s^2) B R^{-1} B^T` in place of :math:`A`, :math:`Q` and :math:`B R^{-1} B^T`. So V goes
back over any interval of time by its `Propagation`.
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
from hybridctl.control.lqr.weights import WeightFunction
from hybridctl.hybrid.series import FRACTIONS, TO_SERIES, TO_SLOPES
from hybridctl.hybrid.tableau import radau
from hybridctl.sensitivity.collocation import LinearStep, Propagation, symmetric_part
from hybridctl.sensitivity.linearization import Linearization

_PANEL_FORMULA = radau(4)
"""Implicit Runge-Kutta formula between the nodes of a panel, where a closed loop may be stiff."""
_NEXT_TO_LAST_WEIGHT = 0.1
"""Weight of the last coefficient but one in the estimate of what a series leaves out: the last one
alone may vanish by chance. A choice."""
_VALUE_ROUNDING = 1e-14
"""Error of V by rounding, relative to its largest entry. It is no sign of an unresolved panel."""
_SHORTEST_ARC = 1e-11
"""Duration of an arc, relative to its time, up to which rounding of times is not small beside it.
Its value is that of its end."""
_SHORTEST_PANEL = 1e-9
"""Duration of a panel, relative to that of its arc, up to which it is accepted as it is. If it is
not resolved, a weight jumps in it, and halving does not resolve a jump."""
_CUBIC_COUNTS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of cubics that are tried for the gain on one panel, in this order."""
_MOST_PANELS = 2_000
"""Panels between two breaks of an arc, beyond which the feedback is too fast. A choice."""
_GAIN_TOLERANCE = 1e-8
"""Error of a gain, relative to the largest entry: of its polynomial to the largest on the panel, of
the cubics in its place to the largest on the arc. A choice."""

PropagateBetween = Callable[[Array], Propagation]
"""Propagations (m, ...) of V between times (m + 1,) in s."""


@dataclass(frozen=True, eq=False)
class ValueCurve:
    """The value V(t) on one arc; the least cost to go is dx . V(t) dx.

    Attributes:
        times: Times (n,) of knots, s.
        values: Values (n, ndx, ndx) at the knots.
        propagate_between: Function from times on the arc to the propagations between them. Where
            the law of the input changes there has to be one of the times, as there is a knot.
    """

    times: Array
    values: Array
    propagate_between: PropagateBetween

    def __call__(self, t: float) -> Array:
        """Return V (ndx, ndx) at time t in s: that of the next knot, propagated back to t.

        After the last knot it is that of the last knot.
        """
        k = min(int(self.times.searchsorted(t)), len(self.times) - 1)
        if t >= self.times[k]:
            return np.asarray(self.values[k])
        (back,) = self.propagate_between(np.array([t, self.times[k]]))
        return back.value(self.values[k])

    @property
    def start(self) -> Array:
        """Value (ndx, ndx) at the start of the arc, just after the event before it."""
        return np.asarray(self.values[0])

    @property
    def end(self) -> Array:
        """Value (ndx, ndx) at the end of the arc, just before the event that ends it."""
        return np.asarray(self.values[-1])

    @property
    def propagation(self) -> Propagation:
        """Propagation over the whole arc; the identity on an arc of a single knot."""
        if len(self.times) == 1:
            return Propagation.jump(np.eye(len(self.end)))
        return reduce(Propagation.compose, self.propagate_between(self.times))


@dataclass(frozen=True, eq=False)
class EndGain:
    """A gain for the end of an arc, into which the arc's own gain is blended.

    The gain that is applied is (1 - s) K + s K_end, with s by `share`.

    Attributes:
        gain: Gain K (nu, ndx).
        since: Time at which the blending begins, s.
        end: Time at which the gain is reached, s.
    """

    gain: Array
    since: float
    end: float

    def share(self, t: float) -> float:
        """Return the weight s of this gain at time t in s: 0 up to `since`, 1 from `end` on.

        Between them it is the smooth step 3 c^2 - 2 c^3 of the fraction c of the way.
        """
        c = min(max((t - self.since) / (self.end - self.since), 0.0), 1.0)
        return c**2 * (3.0 - 2.0 * c)


class _Panel(NamedTuple):
    """An interval of time on which V and K are polynomials.

    Attributes:
        times: Times (8,) of its Chebyshev nodes, s.
        values: Values V (8, ndx, ndx) there.
        gains: Gains (8, nu, ndx) that are applied there.
    """

    times: Array
    values: Array
    gains: Array


@dataclass(frozen=True, eq=False)
class RiccatiEquation:
    """The Riccati equation on the arcs of a linearization.

    Propagations do not depend on the final value. Those between the nodes of a panel are cached, if
    no end gain acts, so that solutions for other final values cost little.

    Attributes:
        lin: First-order map of the trajectory.
        state_weight: Weight Q by arc and time.
        input_weight: Weight R by arc and time.
        rtol: Relative tolerance of V.
        atol: Absolute tolerance of V.
        on_progress: Called with the time in s down to which the equation is solved; None for
            nothing.
    """

    lin: Linearization
    state_weight: WeightFunction
    input_weight: WeightFunction
    rtol: float
    atol: float
    on_progress: Callable[[float], None] | None = None
    _cache: dict[tuple[int, float, float], Propagation] = field(default_factory=dict, repr=False)

    def gain(self, k: int, t: float | Array, value: Array) -> Array:
        """Return the gain K = R^-1 B' V (..., nu, ndx).

        Args:
            k: Index of the arc.
            t: Time on it in s, or times (m,).
            value: Value V (ndx, ndx), or values (m, ndx, ndx).
        """
        arc = self.lin.trajectory.arcs[k].piece(float(np.mean(t)))
        b = self.lin.coefficients(arc, t).input
        weights = [self.input_weight(k, one) for one in np.ravel(t).tolist()]
        weight = np.reshape(weights, (*np.shape(t), *weights[0].shape))
        return np.asarray(np.linalg.solve(weight, np.swapaxes(b, -1, -2) @ value))

    def solve_arc(
        self, k: int, end: Array, end_gain: EndGain | None = None
    ) -> tuple[ValueCurve, GainCurve]:
        """Return value and gain on an arc.

        The gain is the one that is applied: K = R^-1 B' V, blended into the end gain. On an arc of
        almost no duration there is nothing to be blended: the gain is constant, R^-1 B' V of the
        value at the end, whatever the end gain is, and the value has one knot.

        Args:
            k: Index of the arc.
            end: Value V (ndx, ndx) at its end.
            end_gain: Gain into which that of the arc is blended at its end, or None.

        Raises:
            InputError: The feedback acts too fast to be followed along the arc: it takes too many
                panels, or numbers overflow.
        """
        arc, propagate_between = self.lin.trajectory.arcs[k], partial(self._propagate, k, end_gain)
        if arc.end - arc.start <= _SHORTEST_ARC * max(abs(arc.start), abs(arc.end)):
            constant = GainCurve.constant(self.gain(k, arc.end, end))
            return ValueCurve(np.array([arc.end]), end[None], propagate_between), constant
        cuts = {arc.start, arc.end, *(t for t in arc.breaks.tolist() if t < arc.end)}
        if end_gain is not None:
            cuts.add(end_gain.since)
        panels, value = list[_Panel](), end
        for a, b in reversed(list(pairwise(sorted(cuts)))):
            panels = self._solve_panels(k, end_gain, a, b, value) + panels
            value = panels[0].values[0]
        times = np.concatenate([p.times[:-1] for p in panels] + [[arc.end]])
        values = np.concatenate([p.values[:-1] for p in panels] + [end[None]])
        return ValueCurve(times, values, propagate_between), self._fit_gains(panels)

    def _solve_panels(
        self, k: int, end_gain: EndGain | None, a: float, b: float, value: Array
    ) -> list[_Panel]:
        """Return panels from a to b, halved until each resolves V and K.

        Args:
            k: Index of the arc.
            end_gain: Gain into which that of the arc is blended, or None.
            a: Start, s.
            b: End, s.
            value: Value V (ndx, ndx) at the end.

        Raises:
            InputError: The feedback acts too fast to be followed.
        """
        arc, panels, pending = self.lin.trajectory.arcs[k], list[_Panel](), [(a, b)]
        while pending:
            a, b = pending.pop()
            try:
                with np.errstate(over="ignore", invalid="ignore"):  # refused below
                    panel = self._solve_panel(k, end_gain, a, b, value)
            except np.linalg.LinAlgError:
                self._raise_too_fast(k, b, value)
            if b - a > _SHORTEST_PANEL * (arc.end - arc.start) and not self._is_resolved(panel):
                middle = 0.5 * (a + b)
                pending += [(a, middle), (middle, b)]
                continue
            panels.append(panel)
            if len(panels) > _MOST_PANELS or not np.isfinite(panel.gains).all():
                self._raise_too_fast(k, b, value)
            value = panel.values[0]
            if self.on_progress is not None:
                self.on_progress(a)
        return panels[::-1]

    def _raise_too_fast(self, k: int, t: float, value: Array) -> NoReturn:
        """Refuse a feedback that acts too fast to be integrated.

        Args:
            k: Index of the arc.
            t: Time, s.
            value: Value V (ndx, ndx) there.

        Raises:
            InputError: Always.
        """
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

    def _solve_panel(
        self, k: int, end_gain: EndGain | None, a: float, b: float, value: Array
    ) -> _Panel:
        """Return one panel from a to b, whether or not it is resolved.

        Args:
            k: Index of the arc.
            end_gain: Gain into which that of the arc is blended, or None.
            a: Start, s.
            b: End, s.
            value: Value V (ndx, ndx) at the end.
        """
        times = a + (b - a) * FRACTIONS
        times[-1] = b
        # With an end gain the propagations depend on it as well, and the key has no gain.
        key = (k, a, b)
        stretches = None if end_gain is not None else self._cache.get(key)
        if stretches is None:
            stretches = self._propagate(k, end_gain, times)
        if end_gain is None:
            self._cache[key] = stretches
        values = [value]
        for stretch in reversed(list(stretches)):
            values.append(stretch.value(values[-1]))
        values.reverse()
        at_nodes = np.array(values)
        gains = self.gain(k, times, at_nodes)
        if end_gain is not None:
            share = np.array([end_gain.share(t) for t in times.tolist()])[:, None, None]
            gains = gains + share * (end_gain.gain - gains)
        return _Panel(times, at_nodes, gains)

    def _is_resolved(self, panel: _Panel) -> bool:
        """Return whether polynomials through V and K on a panel are as accurate as asked for.

        The error of V is compared with `atol` and `rtol`, entry by entry. That of K is compared
        with 1e-8 of the largest gain on the panel.
        """
        error, size = _estimate_truncation(panel.values), np.abs(panel.values).max(axis=0)
        allowed = self.atol + self.rtol * size + _VALUE_ROUNDING * size.max(initial=0.0)
        largest = float(np.abs(panel.gains).max(initial=0.0))
        return bool(
            (error <= allowed).all()
            and (_estimate_truncation(panel.gains) <= _GAIN_TOLERANCE * largest).all()
        )

    def _propagate(self, k: int, end_gain: EndGain | None, times: Array) -> Propagation:
        """Return the propagations (m, ...) of V on an arc, under the gain that is applied.

        With an end gain of weight s, A, Q and B R^-1 B' are those of the blended feedback, see the
        top of this file; `squared` is s^2.

        Args:
            k: Index of the arc.
            end_gain: Gain into which that of the arc is blended, or None.
            times: Times (m + 1,) in s, ascending. The law of the input changes at them alone.
        """
        arc, lengths = self.lin.trajectory.arcs[k], np.diff(times)
        stages = np.asarray(times[:-1, None] + lengths[:, None] * _PANEL_FORMULA.points)
        # Each piece of the arc has its own input, as between the samples of a held one.
        places = np.searchsorted(arc.changes, times[:-1] + 0.5 * lengths, "right")
        found = [
            self.lin.coefficients(arc.pieces[i], stages[places == i]) for i in np.unique(places)
        ]
        a, b = (np.concatenate(parts) for parts in zip(*found, strict=True))
        rows = stages.tolist()
        r = np.array([[self.input_weight(k, t) for t in row] for row in rows])
        q = np.array([[self.state_weight(k, t) for t in row] for row in rows])
        reach = symmetric_part(b @ np.linalg.solve(r, np.swapaxes(b, -1, -2)))
        if end_gain is not None:
            squared = np.array([[[[end_gain.share(t) ** 2]] for t in row] for row in rows])
            a = a - squared * (b @ end_gain.gain)
            q = q + squared * symmetric_part(end_gain.gain.T @ r @ end_gain.gain)
            reach = (1.0 - squared) * reach
        return LinearStep(a, lengths, _PANEL_FORMULA).propagation(reach, q)

    def _fit_gains(self, panels: list[_Panel]) -> GainCurve:
        """Return the gain on all panels, as cubics to its tolerance."""
        largest = max(float(np.abs(panel.gains).max(initial=0.0)) for panel in panels)
        return GainCurve.join(
            [_fit_cubics(p.times, p.gains, _GAIN_TOLERANCE * largest) for p in panels]
        )


def _estimate_truncation(values: Array) -> Array:
    """Return the error (...) of the Chebyshev series through values (8, ...) at the nodes.

    It is estimated from the last coefficients c_6, c_7 of c_0 to c_7, as |c_7| + 0.1 |c_6|.
    """
    last, next_to_last = np.abs(np.tensordot(TO_SERIES[[-1, -2]], values, axes=1))
    return np.asarray(last + _NEXT_TO_LAST_WEIGHT * next_to_last)


def _fit_cubics(times: Array, at_nodes: Array, allowed: float) -> GainCurve:
    """Return the polynomial through the nodes of a panel as piecewise cubics.

    The least number of `_CUBIC_COUNTS` is taken with which the cubics, at quarters of the way from
    knot to knot, differ from the polynomial by at most `allowed`. With the most cubics a larger
    difference is accepted.

    Args:
        times: Times (8,) of the nodes, s.
        at_nodes: Gains (8, nu, ndx) there.
        allowed: Greatest error of an entry.
    """
    series = np.tensordot(TO_SERIES, at_nodes, 1)
    rates = np.tensordot(TO_SERIES, np.tensordot(TO_SLOPES, at_nodes, 1), 1)
    for count in _CUBIC_COUNTS:
        s, fine = (np.linspace(-1.0, 1.0, n + 1) for n in (count, 4 * count))
        values, slopes = _evaluate_series(series, s), _evaluate_series(rates, s)
        cubics = CubicHermiteSpline(s, values, slopes)(fine)
        if np.abs(cubics - _evaluate_series(series, fine)).max(initial=0.0) <= allowed:
            break
    # The series is in s from -1 to 1: `half` s of time are one unit of s.
    half = 0.5 * (times[-1] - times[0])
    knots = times[0] + half * (s + 1.0)
    knots[-1] = times[-1]
    return GainCurve(knots, values, slopes / half)


def _evaluate_series(series: Array, s: Array) -> Array:
    """Return the values (n, nu, ndx) of a Chebyshev series (8, nu, ndx) at points s (n,)."""
    return np.asarray(np.moveaxis(np.asarray(chebval(s, series)), -1, 0), dtype=np.float64)
