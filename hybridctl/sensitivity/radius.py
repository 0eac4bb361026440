r"""The deviation up to which a linearization may be believed, along a direction.

With x(r) the end of the motion from :math:`x_0 + r d`, and Dx its exact first derivative there,

.. math:: x(r) - x(0) - r\, Dx(0)\, d = \int_0^r (Dx(\rho) - Dx(0))\, d\, d\rho
          \approx \tfrac12 r\, (Dx(r) - Dx(0))\, d,

from linearizations at both ends. Where the order of events changes on the way, the error is that of
the kink besides, known from the events that meet as one piecewise affine jump. What neither knows,
such as an impact that no longer lets a contact slide, or lifts it, shows in the motion itself from
a part of the size that was found.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike
from scipy.integrate import trapezoid
from scipy.optimize import brentq

from hybridctl.base.checks import Array, check_number, check_vector
from hybridctl.base.errors import HybridctlError, InputError
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.laws import HeldInput, InputLaw
from hybridctl.hybrid.policy import History, Policy
from hybridctl.hybrid.simulate import computed_starts, simulate
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.sensitivity.first_order import FirstOrderMap
from hybridctl.sensitivity.order import OrderChange
from hybridctl.sensitivity.piecewise import PiecewiseLinearJump

_FIRST = 1e-2  # of 1 + |x0|: the deviation that is tried first
_LARGEST = 100.0  # of the same: no larger one is tried
_INSIDE = 0.9  # of the deviation at which the order changes: a run that has it still
_STEPS = 24
_FARTHER = 30.0  # times the last deviation that is tried
_NEAR = 2.0  # a radius predicted from a deviation within this factor of it
_NODES = np.array([0.25, 0.5, 0.75, 1.0, 1.5, 2.0])  # of a first guess
_SCAN = 400
_TRIED = 0.7  # of a radius: the motion from there is to be as predicted
_HALVINGS = 8
_SEEN = 100.0  # times the tolerances: errors that two runs show
_ASIDE = 1e-6  # of a deviation: how far on an affine piece is asked again for its slope
_SCALES = np.logspace(-14.0, 4.0, 145)
_DIRECTIONS = 64
_LEAST = 1e-300  # s per unit: guards that stay together


@dataclass(frozen=True, eq=False)
class Radius:
    """Sizes of a deviation along a direction, in units of the direction, at which a map ends.

    size: where its error is the relative `error`. order: where the order of events changes first.
    curvature: where the error would be that without a change of the order. second (ndx+,): the
    second derivative of the end.
    """

    size: float
    order: OrderChange
    curvature: float
    second: Array
    error: float

    def __float__(self) -> float:
        return self.size


def radius_of(
    lin: FirstOrderMap,
    direction: ArrayLike,
    policy: Policy | InputLaw | None,
    event_window: float | None,
    error: float,
) -> Radius:
    """How far a linearization may be believed, see `Linearization.radius`."""
    run = lin.trajectory
    d = check_vector("direction", direction, run.arcs[0].space.ndx)
    error = check_number("error", error, above=0.0, at_most=1.0)
    slope = lin.derivative(d)
    if not d.any() or not slope.any():
        raise InputError("direction must change the end of the run to first order")
    if lin.gains is not None and policy is None:
        raise InputError("policy must be given: the one under whose feedback the map is")
    window, order = _window(lin, event_window), order_change(lin, d)
    if window > 0.0:
        order = min(order, spread_change(lin, d, window), key=lambda change: change.size)
    base, ends = lin, order
    while True:
        beyond = _Beyond(base, d, policy, window)
        second, curvature = beyond.curvature(ends.size, error)
        wider = None if lin.nearby or ends.size >= curvature else beyond.merged(ends)
        if wider is None:
            break
        base, ends = wider, order_change(wider, d)
    size = min(curvature, ends.size)
    if base is not lin:
        sizes = np.geomspace(order.size, size, _SCAN)[:, None]
        off = base.follow(sizes * d).state - sizes * slope + 0.5 * sizes**2 * second
        wrong = np.linalg.norm(off, axis=1) >= error * sizes[:, 0] * np.linalg.norm(slope)
        size = float(sizes[wrong.argmax(), 0]) if wrong.any() else size
    size = beyond.measured(size, error)
    return Radius(size, order, curvature, second, error)


def _window(lin: FirstOrderMap, window: float | None) -> float:
    """The event window of motions beside the run."""
    if lin.simultaneous == "in turn":
        if window is not None:
            raise InputError(
                "event_window is for maps with simultaneous='at once': in others contacts touch in "
                f"turn, got {window}"
            )
        return 0.0
    if window is None:
        raise InputError("event_window must be given: the one within which contacts are one impact")
    return check_number("event_window", window, above=0.0)


@dataclass(frozen=True, eq=False)
class _Beyond:
    """Motions from deviations along a direction, under an event window in s."""

    lin: FirstOrderMap
    direction: Array
    policy: Policy | InputLaw | None
    window: float

    @property
    def _scale(self) -> float:
        """The deviation that is as large as 1 + |x0|."""
        run = self.lin.trajectory
        size = 1.0 + float(np.abs(run.arcs[0](run.start)).max())
        return size / float(np.linalg.norm(self.direction))

    def curvature(self, ordered: float, error: float) -> tuple[Array, float]:
        """The second derivative of the end, and the deviation at which it makes the error.

        ordered: the deviation up to which the map may know what happens.
        """
        length = float(np.linalg.norm(self._slope(0.0)))
        most = min(_INSIDE * ordered, _LARGEST * self._scale)
        size = min(_FIRST * self._scale, most)
        for _ in range(_STEPS):
            change = self._change(size)
            if change is None:
                most = size = 0.25 * size
                continue
            ratio = float(np.linalg.norm(change)) / length
            found = size * 2.0 * error / ratio if ratio > 0.0 else np.inf
            following = min(found, _FARTHER * size, most)
            if following == size or size / _NEAR <= found <= _NEAR * size:
                return change / size, self._crossing(min(found, 2.0 * most), most, error)
            size = following
        raise InputError(
            f"no motion along direction has the events of the run: tried {size:.3g} of it"
        )

    def _crossing(self, guess: float, most: float, error: float) -> float:
        """The size at which the error is reached first, by derivatives up to twice a guess."""
        size, left, before, wrong = 0.0, np.zeros_like(self._slope(0.0)), 0.0, 0.0
        change = left
        for node in np.unique(np.minimum(_NODES * guess, most)).tolist():
            there = self._change(node)
            if there is None:
                break
            left = left + 0.5 * (node - size) * (change + there) - self._gap(size, node)
            predicted = np.linalg.norm(self.lin.follow(node * self.direction).state)
            wrong = float(np.linalg.norm(left) / predicted)
            if wrong >= error:
                return float(size + (node - size) * (error - before) / (wrong - before))
            size, change, before = node, there, wrong
        return size * error / wrong if wrong > 0.0 else np.inf

    def merged(self, order: OrderChange) -> FirstOrderMap | None:
        """The map with events that meet as one jump; None where they cannot be."""
        run, (first, last) = self.lin.trajectory, order.events or (-1, -1)
        if first < 0 or last == len(run.events):
            return None
        window = run.events[last].time - run.events[first].time
        try:
            found = self.lin.again(run, self.policy, window * (1.0 + 1e-9))
        except HybridctlError:
            return None
        together = any(g.first <= first and last <= g.last for g in found.nearby)
        return found if together else None

    def _gap(self, start: float, end: float) -> Array | float:
        """The leap of the prediction on the way: pieces of nearby events meet up to lag^2."""
        if not self.lin.nearby:
            return 0.0
        sizes = np.linspace(start, end, _SCAN)
        values, slopes = self._line(sizes)
        return np.asarray(values[-1] - values[0] - trapezoid(slopes, sizes, axis=0))

    def _slope(self, size: float) -> Array:
        """The derivative of the prediction by the size of the deviation."""
        if not self.lin.nearby:
            return self.lin.derivative(self.direction)
        return np.asarray(self._line(np.array([size]))[1][0])

    def _line(self, sizes: Array) -> tuple[Array, Array]:
        """Predictions (m, ndx+) at sizes (m,), and their derivatives."""
        aside = _ASIDE * np.where(sizes > 0.0, sizes, _ASIDE)
        rows = np.concatenate([sizes, sizes + aside])[:, None] * self.direction
        near, far = np.split(self.lin.follow(rows).state, 2)
        return near, (far - near) / aside[:, None]

    def _change(self, size: float) -> Array | None:
        """The change (Dx(size) - Dx(0)) d; None where the motion from there has other events."""
        try:
            moved = self._moved(size)
            if not _same_events(self.lin, moved):
                return None
            there = self.lin.again(moved, self.policy)
            return there.derivative(self.direction) - self._slope(size)
        except HybridctlError:
            return None

    def _moved(self, size: float) -> HybridTrajectory:
        """Return the motion from a perturbed start.

        Args:
            size: Size of the perturbation along the direction, in its unit.

        Raises:
            SimulationError: The run cannot go on, or events accumulate.
        """
        lin, run = self.lin, self.lin.trajectory
        arc = run.arcs[0]
        start = arc.space.integrate(arc(run.start), size * self.direction)
        with computed_starts():
            return simulate(
                lin.system,
                arc.mode,
                arc.space.normalize(start),
                (run.start, run.end),
                Replay(run) if self.policy is None else self.policy,
                on_zeno="raise",  # a run that comes to rest has no derivative
                event_window=self.window,
                rtol=lin.rtol,
                atol=lin.atol,
            )

    def measured(self, size: float, error: float) -> float:
        """The size, or a lesser one from which on motions are off by the error."""
        right, wrong = 0.0, _TRIED * size
        if wrong > _LARGEST * self._scale or not self._is_off(wrong, error):
            return size
        for _ in range(_HALVINGS):
            middle = 0.5 * (right + wrong)
            right, wrong = (right, middle) if self._is_off(middle, error) else (middle, wrong)
        return wrong

    def _is_off(self, size: float, error: float) -> bool:
        """Whether a motion is off by the error, by more than tolerances may make it."""
        lin, last = self.lin, self.lin.trajectory.arcs[-1]
        end, predicted = last(last.end), lin.follow(size * self.direction).state
        allowed = error * float(np.linalg.norm(predicted))
        if allowed <= _SEEN * (lin.atol + lin.rtol * (1.0 + float(np.abs(end).max()))):
            return False
        try:
            moved = self._moved(size)
        except HybridctlError:
            return True
        if moved.arcs[-1].space.ndx != last.space.ndx:
            return True
        off = last.space.difference(end, moved.final_state) - predicted
        return bool(np.linalg.norm(off) >= allowed)


@dataclass(frozen=True, eq=False)
class Replay:
    """The policy of a run's recorded input, on after the ends of its arcs as it goes there.

    It changes at the events of the run, once all guards of one have fired.
    """

    run: HybridTrajectory

    def law(self, history: History) -> InputLaw:
        """The input of the arc that the events so far lead to."""
        arc = self.run.arcs[self._arc(history)]
        if arc.has_held_input:
            return HeldInput(arc.piece(history.time).inputs[-1, 0])
        return partial(_recorded, arc)

    def next_change(self, history: History) -> float:
        """The time of the next held input, or of the next event if it is one without guards."""
        k = self._arc(history)
        later = [t for t in self.run.arcs[k].changes if t > history.time]
        if later:
            return later[0]
        following = self.run.events[k : k + 1]
        return following[0].time if following and not following[0].guards else np.inf

    def _arc(self, history: History) -> int:
        fired = sum(len(event.guards) for event in history.events)
        for k, event in enumerate(self.run.events):
            fired -= len(event.guards)
            if fired < 0 or (not event.guards and history.time < event.time):
                return k
        return len(self.run.events)


def _recorded(arc: Arc, t: float, x: Array) -> Array:
    at = min(max(t, arc.start), arc.end)
    return np.asarray(arc.input(at) + (t - at) * arc.input_rate(at))


def _same_events(lin: FirstOrderMap, moved: HybridTrajectory) -> bool:
    """Whether a run has the events of a map, in its order, those that are one jump in any."""
    run, names = lin.trajectory, [name for event in moved.guard_events for name in event.guards]
    last = {k: g.last for g in lin.nearby for k in range(g.first, g.last)}
    expected = list[str]()
    for k, event in enumerate(run.events):
        expected += event.guards
        if k not in last:
            count = len(expected)
            if sorted(names[:count]) != sorted(expected):
                return False
            names, expected = names[count:], []
    return not names and moved.final_mode == run.final_mode


def order_change(lin: FirstOrderMap, direction: ArrayLike) -> OrderChange:
    """The deviation along direction (ndx,) at which the order of events changes first.

    Of events that are one jump the order may change; where they meet others counts.
    """
    d, run = check_vector("direction", direction, lin.trajectory.arcs[0].space.ndx), lin.trajectory
    if not lin.nearby:
        return lin.follow(d).change(run)

    def closest(size: float) -> tuple[float, tuple[int, int] | None]:
        lags, changes, pairs = lin.follow(size * d).gaps(run)
        left = lags + changes[:, 0]
        return (float(left.min()), pairs[int(left.argmin())]) if len(lags) else (np.inf, None)

    below = 0.0
    for size in _SCALES.tolist():
        if closest(size)[0] <= 0.0:
            found = float(brentq(lambda s: closest(s)[0], below, size, rtol=1e-12, xtol=1e-300))
            return OrderChange(found, closest(size)[1])
        below = size
    return OrderChange(np.inf, None)


def spread_change(lin: FirstOrderMap, direction: Array, window: float) -> OrderChange:
    """The deviation along direction (ndx,) at which guards part by more than a window (s).

    Those of a jump that is one for all its guards: the first has it, when the others are as far
    from zero as to first order they are then.
    """
    found = OrderChange(np.inf, None)
    for k, (z, jump) in enumerate(zip(lin.along(direction), lin.jumps, strict=False)):
        if isinstance(jump, PiecewiseLinearJump):
            rows = [jump.jump(frozenset(), j).time_state for j in range(len(jump.guards))]
            size = window / max(float(np.ptp(np.array(rows) @ z.end[:, 0])), _LEAST)
            found = min(found, OrderChange(size, (k, k)), key=lambda change: change.size)
    return found


def least_radius(lin: FirstOrderMap) -> float | None:
    """The least |dx0| at which the order of events changes, about; None where it is not known.

    Exact for linear maps, and for piecewise linear ones the least of some directions.
    """
    run, ndx = lin.trajectory, lin.trajectory.arcs[0].space.ndx
    if lin.nearby:
        return None
    try:
        if lin.is_linear:
            lags, changes, _ = lin.follow(np.eye(ndx)).gaps(run)
            slopes = np.linalg.norm(changes, axis=1)
            with np.errstate(divide="ignore"):
                return float((lags / slopes).min(initial=np.inf))
        rows = np.random.default_rng(0).normal(size=(_DIRECTIONS, ndx))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return lin.follow(np.vstack([rows, np.eye(ndx), -np.eye(ndx)])).change(run).size
    except HybridctlError:
        return None
