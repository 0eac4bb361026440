r"""Radius of a linearization: the perturbation along a direction up to which it holds.

Let x(r) be the final state of the motion from :math:`x_0 + r d`, and Dx its exact first derivative
there. Then

.. math:: x(r) - x(0) - r\, Dx(0)\, d = \int_0^r (Dx(\rho) - Dx(0))\, d\, d\rho
          \approx \tfrac12 r\, (Dx(r) - Dx(0))\, d,

so the error of the linearization at 0 follows from a second linearization at r. `compute_radius`
takes three steps.

1. Order. The size at which the order of events changes first follows from the first-order shifts
   of event times (`event_order`).
2. Curvature. The error is found by linearizations at a few sizes below it. Where the order changes
   on the way, the error of the kink is added: the events that meet are merged into one piecewise
   affine jump, which is right on both sides.
3. Check. Motions from a part of the size that was found are simulated. They show what neither of
   these contains, such as an impact that no longer lets a contact slide, or lifts it.

`accurate_range` has a cheaper measure, for the direction that a map amplifies most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

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
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.sensitivity.event_order import OrderChange, RunPassage
from hybridctl.sensitivity.merged_events import MergedEvents
from hybridctl.sensitivity.piecewise import PiecewiseLinearJump
from hybridctl.sensitivity.propagation import Gain, PerturbationCurve
from hybridctl.sensitivity.saltation import JumpGains
from hybridctl.sensitivity.simultaneous import PhantomInput, Simultaneous

_FIRST_SIZE = 1e-2
"""First perturbation that is tried, relative to 1 + |x0|. The value is a choice."""
_LARGEST_SIZE = 100.0
"""Largest perturbation that is tried, relative to 1 + |x0|. The value is a choice."""
_ORDER_MARGIN = 0.9
"""Largest perturbation that is tried, relative to the size at which the order changes to first
order: runs just below that size may have another order already. A choice."""
_MAX_SIZES = 24
"""Number of sizes that are tried for the curvature. A choice."""
_MAX_SIZE_RATIO = 30.0
"""Largest ratio of a size that is tried to the one before. A choice."""
_NEAR_RATIO = 2.0
"""Largest ratio of the radius to the size from which it is predicted, and of the size to it: within
it the prediction is accepted. A choice."""
_NODES = np.array([0.25, 0.5, 0.75, 1.0, 1.5, 2.0])
"""Sizes between which the error is integrated, relative to the first estimate of the radius."""
_SCAN_POINTS = 400
"""Number of sizes at which a merged map is scanned for its error. A choice."""
_CHECKED_PART = 0.7
"""Part of a radius at which a simulated motion must be as predicted; else the radius is bisected.
The relative error of a map grows as the size, so at this part it should be 0.7 of the allowed
one. A choice."""
_HALVINGS = 8
"""Number of bisections of a radius that a motion contradicts: it is found to 1/256 of that part."""
_VISIBLE_ERROR = 100.0
"""Difference of the ends of two runs that tolerances may make, relative to these. A choice."""
_SLOPE_STEP = 1e-6
"""Step of a one-sided difference on an affine piece, relative to the size, or its square at size 0.
The map is affine there, so the step only has to stay on the piece."""
_SCALES = np.logspace(-14.0, 4.0, 145)
"""Sizes at which the order of merged events is tested: eight in each decade."""
_RANDOM_DIRECTIONS = 64
"""Random directions for the least change of the order."""
_LEAST_SPREAD = 1e-300
"""Least spread of event times in s per unit, and least error: it prevents a division by zero."""
_RANGE_ERROR = 0.1
"""Relative error of a map at the end of its `AccurateRange`, as of `Linearization.radius`."""
_MAX_RANGE_SIZES = 12
"""Sizes that are tried for an `AccurateRange`. A hopper needs four."""
_PAST_ORDER = 2.0
"""Size at which a motion shows whether another order of events makes a difference, relative to the
size at which it changes: half of the error of a kink is there. A choice."""
_LOWER_PART = 0.125
"""Part of a range at which the error must be less than half as large. It is an eighth where the
error of the map grows as the square, and the same where the map is no derivative."""


class RunMap(Protocol):
    """The part of a `Linearization` that the radius needs.

    The file of `Linearization` imports this one, so that this one cannot import that.
    """

    @property
    def system(self) -> HybridSystem:
        """The hybrid system."""

    @property
    def trajectory(self) -> HybridTrajectory:
        """The run."""

    @property
    def jumps(self) -> Sequence[JumpGains | PiecewiseLinearJump]:
        """The jump of each event."""

    @property
    def gains(self) -> tuple[Gain, ...] | None:
        """Gains of the feedback; None for open loop."""

    @property
    def merged_events(self) -> tuple[MergedEvents, ...]:
        """Events that are one jump."""

    @property
    def simultaneous(self) -> Simultaneous:
        """Whether simultaneous guards fire in turn."""

    @property
    def phantom_input(self) -> PhantomInput:
        """Input in phantom modes."""

    @property
    def rtol(self) -> float:
        """Relative tolerance."""

    @property
    def atol(self) -> float:
        """Absolute tolerance."""

    @property
    def is_linear(self) -> bool:
        """Whether the map is linear."""

    def follow(self, dx0: ArrayLike) -> RunPassage:
        """Return perturbations of the final state, and the shifts of events."""

    def derivative(self, direction: ArrayLike) -> Array:
        """Return the one-sided derivative of the final state."""

    def propagate(self, dx0: ArrayLike) -> list[PerturbationCurve]:
        """Return a perturbation on every arc."""

    def relinearize(
        self,
        trajectory: HybridTrajectory,
        policy: Policy | InputLaw | None = None,
        merge: float | None = None,
    ) -> RunMap:
        """Return the map of another run.

        Args:
            trajectory: The run.
            policy: See `linearize`.
            merge: See `linearize`.
        """


@dataclass(frozen=True, eq=False)
class Radius:
    """Sizes of a perturbation along a direction, in units of the direction, at which a map ends.

    Attributes:
        size: Size at which the error of the map is the relative `error`. `float(radius)` is it.
        order: Change of the order of events, with the size at which it comes first.
        curvature: Size at which the error would be `error` if the order did not change.
        second: Second derivative (ndx+,) of the final state along the direction, per unit of the
            direction squared. It is a difference of two first derivatives.
        error: Relative error of the map that is allowed.
    """

    size: float
    order: OrderChange
    curvature: float
    second: Array
    error: float

    def __float__(self) -> float:
        return self.size


def draw_directions(ndx: int) -> Array:
    """Return unit directions (m, ndx): random ones, the same each time, and all axes both ways."""
    rows = np.random.default_rng(0).normal(size=(_RANDOM_DIRECTIONS, ndx))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return np.vstack([rows, np.eye(ndx), -np.eye(ndx)])


def compute_radius(
    lin: RunMap,
    direction: ArrayLike,
    policy: Policy | InputLaw | None,
    event_window: float | None,
    error: float,
) -> Radius:
    """Return the perturbation along a direction up to which a linearization holds.

    Args:
        lin: The linearization.
        direction: See `Linearization.radius`.
        policy: See `Linearization.radius`.
        event_window: See `Linearization.radius`.
        error: See `Linearization.radius`.

    Returns:
        The radius.

    Raises:
        InputError: The direction has no effect, the map is under feedback and its policy is not
            given, or its event window is missing. Or no run nearby has the events of the run.
    """
    run = lin.trajectory
    d = check_vector("direction", direction, run.arcs[0].space.ndx)
    error = check_number("error", error, above=0.0, at_most=1.0)
    slope = lin.derivative(d)
    if not d.any() or not slope.any():
        raise InputError("direction must change the end of the run to first order")
    if lin.gains is not None and policy is None:
        raise InputError("policy must be given: the one under whose feedback the map is")
    window, order = _check_window(lin, event_window), find_order_change(lin, d)
    if window > 0.0:
        order = min(order, find_spread_change(lin, d, window), key=lambda change: change.size)
    base, ends = lin, order
    # The order of events changes before the error is reached: merge those that meet, and go on.
    while True:
        motions = PerturbedMotions(base, d, policy, window)
        second, curvature = motions.find_curvature(ends.size, error)
        is_final = bool(lin.merged_events) or ends.size >= curvature
        wider = None if is_final else motions.merge_meeting_events(ends)
        if wider is None:
            break
        base, ends = wider, find_order_change(wider, d)
    size = min(curvature, ends.size)
    if base is not lin:
        # The map itself has the kink of the first order change, which the merged one does not.
        sizes = np.geomspace(order.size, size, _SCAN_POINTS)[:, None]
        off = base.follow(sizes * d).state - sizes * slope + 0.5 * sizes**2 * second
        wrong = np.linalg.norm(off, axis=1) >= error * sizes[:, 0] * np.linalg.norm(slope)
        size = float(sizes[wrong.argmax(), 0]) if wrong.any() else size
    size = motions.measure_radius(size, error)
    return Radius(size, order, curvature, second, error)


def _check_window(lin: RunMap, window: float | None) -> float:
    """Return the event window in s of perturbed motions; 0 if their guards fire in turn.

    Raises:
        InputError: It is missing for a map "at once", or given for another one.
    """
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
class PerturbedMotions:
    """Motions from perturbations along a direction, and their linearizations.

    Attributes:
        lin: Linearization whose error is asked for.
        direction: Direction (ndx,) of the initial state.
        policy: Policy of the motions. None to replay the recorded input.
        window: Event window of the motions, s.
    """

    lin: RunMap
    direction: Array
    policy: Policy | InputLaw | None
    window: float

    @property
    def _scale(self) -> float:
        """The size of a perturbation that is as large as 1 + |x0|."""
        run = self.lin.trajectory
        size = 1.0 + float(np.abs(run.arcs[0](run.start)).max())
        return size / float(np.linalg.norm(self.direction))

    @property
    def _noise(self) -> float:
        """Difference of the final states of two motions that tolerances may make."""
        lin, last = self.lin, self.lin.trajectory.arcs[-1]
        return _VISIBLE_ERROR * (lin.atol + lin.rtol * (1.0 + float(np.abs(last(last.end)).max())))

    def find_curvature(self, order_size: float, error: float) -> tuple[Array, float]:
        """Return the second derivative of the final state, and the size at which it is the error.

        Args:
            order_size: Size at which the order of events changes: no larger one is tried.
            error: Relative error of the map.

        Returns:
            The second derivative (ndx+,), and the size; infinite where derivatives do not change.

        Raises:
            InputError: No motion that was tried has the events of the run, or the estimates of the
                size have not settled after the most sizes that are tried.
        """
        length = float(np.linalg.norm(self._compute_slope(0.0)))
        most = min(_ORDER_MARGIN * order_size, _LARGEST_SIZE * self._scale)
        size = min(_FIRST_SIZE * self._scale, most)
        for _ in range(_MAX_SIZES):
            change = self._compute_slope_change(size)
            if (
                change is None
            ):  # the motion has other events: smaller ones may have those of the run
                most = size = 0.25 * size
                continue
            ratio = float(np.linalg.norm(change)) / length
            found = size * 2.0 * error / ratio if ratio > 0.0 else np.inf
            following = min(found, _MAX_SIZE_RATIO * size, most)
            is_near = size / _NEAR_RATIO <= found <= _NEAR_RATIO * size
            if following == size or is_near:
                return change / size, self._find_error_size(min(found, 2.0 * most), most, error)
            size = following
        raise InputError(
            "no motion along direction has the events of the run, or the error of the map does not "
            f"settle: tried {size:.3g} of it at last"
        )

    def _find_error_size(self, guess: float, most: float, error: float) -> float:
        """Return the size at which the error is reached first, by the trapezoidal rule.

        Args:
            guess: First estimate of the size. Derivatives up to twice of it are used.
            most: Largest size that may be tried.
            error: Relative error of the map.

        Returns:
            The size, extrapolated if it is beyond what was tried. Infinite without an error.
        """
        size, total, before, relative = 0.0, np.zeros_like(self._compute_slope(0.0)), 0.0, 0.0
        change = total
        for node in np.unique(np.minimum(_NODES * guess, most)).tolist():
            there = self._compute_slope_change(node)
            if there is None:
                break
            leap = self._compute_prediction_leap(size, node)
            total = total + 0.5 * (node - size) * (change + there) - leap
            predicted = np.linalg.norm(self.lin.follow(node * self.direction).state)
            relative = float(np.linalg.norm(total) / predicted)
            if relative >= error:
                return float(size + (node - size) * (error - before) / (relative - before))
            size, change, before = node, there, relative
        return size * error / relative if relative > 0.0 else np.inf

    def merge_meeting_events(self, order: OrderChange) -> RunMap | None:
        """Return the map with the events that meet as one jump.

        Args:
            order: The change of the order, with the indices of these events.

        Returns:
            The map. None if they cannot be merged: one is the start or the end of the run, the jump
            of all does not exist, or one of them is the cause of another.
        """
        run, (first, last) = self.lin.trajectory, order.events or (-1, -1)
        if first < 0 or last == len(run.events):
            return None
        window = run.events[last].time - run.events[first].time
        try:
            found = self.lin.relinearize(run, self.policy, window * (1.0 + 1e-9))
        except HybridctlError:
            return None
        is_merged = any(g.first <= first and last <= g.last for g in found.merged_events)
        return found if is_merged else None

    def _compute_prediction_leap(self, start: float, end: float) -> Array | float:
        """Return the discontinuity of the prediction between two sizes.

        Pieces of merged events meet only up to the square of the lags
        (test_a_leap_of_the_prediction_is_no_error_of_the_motion).
        """
        if not self.lin.merged_events:
            return 0.0
        sizes = np.linspace(start, end, _SCAN_POINTS)
        values, slopes = self._predict(sizes)
        return np.asarray(values[-1] - values[0] - trapezoid(slopes, sizes, axis=0))

    def _compute_slope(self, size: float) -> Array:
        """Return the derivative (ndx+,) of the prediction by the size of the perturbation."""
        if not self.lin.merged_events:
            return self.lin.derivative(self.direction)
        return np.asarray(self._predict(np.array([size]))[1][0])

    def _predict(self, sizes: Array) -> tuple[Array, Array]:
        """Return predictions (m, ndx+) at sizes (m,), and their derivatives by the size."""
        step = _SLOPE_STEP * np.where(sizes > 0.0, sizes, _SLOPE_STEP)
        rows = np.concatenate([sizes, sizes + step])[:, None] * self.direction
        near, far = np.split(self.lin.follow(rows).state, 2)
        return near, (far - near) / step[:, None]

    def _compute_slope_change(self, size: float) -> Array | None:
        """Return (Dx(size) - Dx(0)) d; None if the motion from there has other events."""
        try:
            moved = self._simulate(size)
            if not _has_same_events(self.lin, moved):
                return None
            there = self.lin.relinearize(moved, self.policy)
            return there.derivative(self.direction) - self._compute_slope(size)
        except HybridctlError:
            return None

    def _simulate(self, size: float) -> HybridTrajectory:
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
                Replay(run, lin.phantom_input) if self.policy is None else self.policy,
                on_zeno="raise",  # a run that comes to rest has no derivative
                event_window=self.window,
                rtol=lin.rtol,
                atol=lin.atol,
            )

    def measure_radius(self, size: float, error: float) -> float:
        """Return a radius, reduced if a simulated motion contradicts it.

        Args:
            size: Radius that the linearizations predict.
            error: Relative error of the map.
        """
        right, wrong = 0.0, _CHECKED_PART * size
        if wrong > _LARGEST_SIZE * self._scale or not self._is_off(wrong, error):
            return size
        for _ in range(_HALVINGS):
            middle = 0.5 * (right + wrong)
            right, wrong = (right, middle) if self._is_off(middle, error) else (middle, wrong)
        return wrong

    def find_range(self) -> float | None:
        """Return the size at which a simulated motion is off by a tenth of its prediction.

        It is the size at which the order of events changes if that comes first and a motion at
        twice the size is off by a tenth or more.

        Returns:
            The size. Infinite if the largest size is off by less. None if no size settles it: the
            relative error does not fall with the size, such as that of a map with jumps of the
            user's own, or falls to a tenth only where tolerances hide it.
        """
        growth = float(np.linalg.norm(self.lin.derivative(self.direction)))
        # A fourth of a tenth is visible here: half of the least error that counts as near a tenth.
        least = _NEAR_RATIO**2 * self._noise / (_RANGE_ERROR * growth)
        order_size = find_order_change(self.lin, self.direction).size
        largest = _LARGEST_SIZE * self._scale
        most = min(_ORDER_MARGIN * order_size, largest)
        size, right, wrong = min(_FIRST_SIZE * self._scale, most), 0.0, np.inf
        for _ in range(_MAX_RANGE_SIZES):
            error = self.measure_error(size)
            found = size * _RANGE_ERROR / max(error, _LEAST_SPREAD)
            if size / _NEAR_RATIO <= found <= _NEAR_RATIO * size:
                if right > 0.0:  # a smaller motion has a smaller error
                    return found
                lower = _LOWER_PART * size
                is_falling = lower >= least and self.measure_error(lower) <= 0.5 * error
                return found if is_falling else None
            if found > size == most:
                if most == largest:
                    return np.inf
                # The order of events changes before. It is no end where that makes no difference,
                # such as that of two robots that do not touch each other.
                most, size = largest, min(max(_PAST_ORDER * order_size, least), largest)
                if self.measure_error(size) >= _RANGE_ERROR:
                    return order_size
                continue
            right, wrong = (size, wrong) if found > size else (right, size)
            size = min(max(found, size / _MAX_SIZE_RATIO), _MAX_SIZE_RATIO * size, most)
            if not right < size < wrong:  # the error jumps, such as where a contact slides instead
                size = float(np.sqrt(right * wrong))
                if wrong <= _NEAR_RATIO * right:
                    return size
            if size < least:  # the error is what tolerances leave visible, not that of the map
                return None
        return None

    def measure_error(self, size: float) -> float:
        """Return by how much a motion differs from its prediction, relative to the prediction.

        Args:
            size: Size of the perturbation along the direction, in its unit.

        Returns:
            The relative difference of the ends. Zero for one that tolerances may make. Infinite for
            a motion that cannot be simulated or ends in another dimension.
        """
        lin, last = self.lin, self.lin.trajectory.arcs[-1]
        end, predicted = last(last.end), lin.follow(size * self.direction).state
        try:
            moved = self._simulate(size)
        except HybridctlError:
            return np.inf
        if moved.arcs[-1].space.ndx != last.space.ndx:
            return np.inf
        off = np.linalg.norm(last.space.difference(end, moved.final_state) - predicted)
        return float(off / np.linalg.norm(predicted)) if off > self._noise else 0.0

    def _is_off(self, size: float, error: float) -> bool:
        """Return whether a motion differs from its prediction by the error.

        A difference that tolerances may make does not count. A motion that cannot be simulated, or
        ends in another dimension, does.

        Args:
            size: Size of the perturbation along the direction, in its unit.
            error: Relative error of the map that is allowed.
        """
        predicted = self.lin.follow(size * self.direction).state
        # An error that tolerances may make is not visible: the motion need not be simulated.
        is_visible = error * float(np.linalg.norm(predicted)) > self._noise
        return is_visible and self.measure_error(size) >= error


@dataclass(frozen=True, eq=False)
class Replay:
    """The policy that replays the recorded input of a run.

    The input changes to that of the next arc once guards of the event between them have fired.
    After the end of an arc it goes on with its rate there.

    Attributes:
        run: The run.
        phantom_input: "pushing": the input changes once all guards of an event have fired.
            "withdrawing": it changes with the first of them.
    """

    run: HybridTrajectory
    phantom_input: PhantomInput = "pushing"

    def law(self, history: History) -> InputLaw:
        """Return the input of the arc to which the events so far lead."""
        arc = self.run.arcs[self._find_arc(history)]
        if arc.has_held_input:
            return HeldInput(arc.piece(history.time).inputs[-1, 0])
        return partial(_extrapolate_input, arc)

    def next_change(self, history: History) -> float:
        """Return the time in s of the next constant input, or of the next event without guards.

        It is infinite if neither is to come on the arc to which the events so far lead.
        """
        k = self._find_arc(history)
        later = [t for t in self.run.arcs[k].changes if t > history.time]
        if later:
            return later[0]
        following = self.run.events[k : k + 1]
        return following[0].time if following and not following[0].guards else np.inf

    def _find_arc(self, history: History) -> int:
        """Return the index of the recorded arc whose input acts, by the number of fired guards.

        Guards are counted, not compared by name: a perturbed run fires them in another order.
        """
        fired = sum(len(event.guards) for event in history.events)
        for k, event in enumerate(self.run.events):
            needed = len(event.guards)
            if self.phantom_input == "withdrawing":
                needed = min(needed, 1)
            if fired < needed or (not event.guards and history.time < event.time):
                return k
            fired -= len(event.guards)
        return len(self.run.events)


def _extrapolate_input(arc: Arc, t: float, x: Array) -> Array:
    """Return the recorded input (nu,) at a time in s, continued linearly beyond the arc."""
    recorded = min(max(t, arc.start), arc.end)
    return np.asarray(arc.input(recorded) + (t - recorded) * arc.input_rate(recorded))


def _has_same_events(lin: RunMap, moved: HybridTrajectory) -> bool:
    """Return whether a run has the events of a map, in its order; merged ones in any order."""
    run, names = lin.trajectory, [name for event in moved.guard_events for name in event.guards]
    not_last = {k for g in lin.merged_events for k in range(g.first, g.last)}
    expected = list[str]()
    for k, event in enumerate(run.events):
        expected += event.guards
        if k not in not_last:
            count = len(expected)
            if sorted(names[:count]) != sorted(expected):
                return False
            names, expected = names[count:], []
    return not names and moved.final_mode == run.final_mode


def find_order_change(lin: RunMap, direction: ArrayLike) -> OrderChange:
    """Return the least perturbation along a direction that changes the order of events.

    Merged events may change their order; where they meet other events counts.

    Args:
        lin: The linearization.
        direction: Direction (ndx,) of the initial state.
    """
    d, run = check_vector("direction", direction, lin.trajectory.arcs[0].space.ndx), lin.trajectory
    if not lin.merged_events:
        return lin.follow(d).change(run)

    def find_least_gap(size: float) -> tuple[float, tuple[int, int] | None]:
        gaps, changes, pairs = lin.follow(size * d).gaps(run)
        left = gaps + changes[:, 0]
        return (float(left.min()), pairs[int(left.argmin())]) if len(gaps) else (np.inf, None)

    # Shifts of merged events are not proportional to the size: it is searched for.
    smaller = 0.0
    for size in _SCALES.tolist():
        if find_least_gap(size)[0] <= 0.0:
            found = brentq(lambda s: find_least_gap(s)[0], smaller, size, rtol=1e-12, xtol=1e-300)
            return OrderChange(float(found), find_least_gap(size)[1])
        smaller = size
    return OrderChange(np.inf, None)


def find_spread_change(lin: RunMap, direction: Array, window: float) -> OrderChange:
    """Return the least perturbation that spreads the guards of one impact beyond a window.

    On a perturbed trajectory the first guard to fire has the whole event. The others would reach
    zero later, by the differences of their first-order event times; they may do so within the
    window.

    Args:
        lin: The linearization, "at once".
        direction: Direction (ndx,) of the initial state.
        window: Event window, s.
    """
    found, events = OrderChange(np.inf, None), lin.trajectory.events
    # There is one curve more than jumps: that of the arc after the last event.
    for k, (z, jump) in enumerate(zip(lin.propagate(direction), lin.jumps, strict=False)):
        # A single guard has a piecewise linear jump at the border of its reset, which is no contact
        # (test_the_border_of_an_impact_is_no_contact_that_spreads).
        if isinstance(jump, PiecewiseLinearJump) and len(events[k].guards) > 1:
            rows = [jump.jump(frozenset(), j).time_state for j in range(len(jump.guards))]
            spread = float(np.ptp(np.array(rows) @ z.end[:, 0]))
            size = window / max(spread, _LEAST_SPREAD)
            found = min(found, OrderChange(size, (k, k)), key=lambda change: change.size)
    return found


def find_least_order_change(lin: RunMap) -> float | None:
    """Return the least |dx0| at which the order of events changes.

    Args:
        lin: The linearization.

    Returns:
        The size. It is exact for linear maps, and the least of some directions for piecewise linear
        ones. Infinite if the order never changes. None if it is not known: events are merged, or
        the flow cannot be linearized.
    """
    run, ndx = lin.trajectory, lin.trajectory.arcs[0].space.ndx
    if lin.merged_events:
        return None
    try:
        if lin.is_linear:
            gaps, changes, _ = lin.follow(np.eye(ndx)).gaps(run)
            slopes = np.linalg.norm(changes, axis=1)
            with np.errstate(divide="ignore"):
                return float((gaps / slopes).min(initial=np.inf))
        return lin.follow(draw_directions(ndx)).change(run).size
    except HybridctlError:
        return None
