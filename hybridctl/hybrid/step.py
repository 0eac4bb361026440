r"""One step along a mode: end state, error, record at the nodes, and what the guards do on it.

A formula stands at a point (t, x), attempts steps from there, each with its error in units of the
tolerance, and moves on by the last attempt where that is accepted. A step is a polynomial: its
states at eight Chebyshev nodes fix it exactly (degree at most 7). Inputs and guards are sampled at
the same nodes, and a guard whose Chebyshev series has

.. math:: b = c_0 - |c_1| - 2 \sum_{k \ge 2} |c_k| > 0

is positive on the whole step: the series alone is at least :math:`c_0 - \sum_{k \ge 1} |c_k|`, and
its bend counts twice for what eight samples do not show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.exceptions import ComplexWarning

from hybridctl.base.checks import Array, convert_to_floats, quote
from hybridctl.base.errors import IntegrationError, SystemDefinitionError
from hybridctl.base.spaces import VectorSpace
from hybridctl.hybrid.laws import DifferentiableLaw, HeldInput, InputLaw, LinearFeedback
from hybridctl.hybrid.model import ModeModel, Point, StepAhead
from hybridctl.hybrid.series import FRACTIONS, NODES, TO_SERIES, basis
from hybridctl.hybrid.tableau import DOP853_TABLEAU, Tableau

Rate = Callable[[float, Array], Array]
_FEW = (0, 2, 5, 7)  # nodes of a cubic
_FELT = 0.1  # times the tolerance of a step: what stages differ by, where they tell of a decay
_FROM_FEW: Array = basis(NODES)[:, :4] @ np.linalg.inv(basis(NODES[list(_FEW)])[:, :4])


class Step(NamedTuple):
    """One accepted step from `start` to `end` (s), by its values at the nodes of `series`.

    states (8, nx), inputs (8, nu); guards: (8, n), and their bounds b (n,), where guards were
    sampled. changed: whether another law acts from its start on than on the step before.
    """

    start: float
    end: float
    states: Array
    inputs: Array
    guards: Array | None = None
    bounds: Array | None = None
    changed: bool = False

    @property
    def times(self) -> Array:
        """Times (8,) of the nodes, s."""
        times = self.start + (self.end - self.start) * FRACTIONS
        times[-1] = self.end
        return times

    def state(self, t: float) -> Array:
        """The state on this step's polynomial."""
        s = 2.0 * (t - self.start) / (self.end - self.start) - 1.0
        return np.asarray(basis(s) @ TO_SERIES @ self.states)


def guard_bounds(values: Array) -> Array:
    """The bounds b (n,) of guards with values (8, n) at the nodes of a step.

    That of a guard that is not finite is not positive.
    """
    with np.errstate(invalid="ignore"):
        c = TO_SERIES @ values
        size = np.abs(c[1:])
        return np.asarray(c[0] + size[0] - 2.0 * size.sum(axis=0))


class DrivenMode:
    """A mode under an input law.

    watched: whether its guards are sampled along it. short: that steps are shorter than their error
    asks for, so that few samples show the guards. point: the last at which the rate was asked for.
    """

    def __init__(
        self,
        mode: ModeModel,
        law: InputLaw,
        watched: bool = False,
        point: Point | None = None,
        short: bool = False,
    ) -> None:
        self.mode, self.law, self.point, self.short = mode, law, point, short
        self.watched = watched and len(mode.guard_names) > 0
        self.by_points = type(mode).field is ModeModel.field
        self.rate = self._make_rate()
        self._guard_step: Step | None = None
        self._guard_points: dict[float, Point] = {}
        self.held: Array | None = None
        self.whole: InputLaw | None = None
        if isinstance(law, HeldInput):
            self.held, self.whole = law.at_nodes, law
        elif isinstance(mode.space, VectorSpace):
            source = law.function if isinstance(law, DifferentiableLaw) else law
            self.whole = source if isinstance(source, LinearFeedback) else None

    @property
    def whole_law(self) -> InputLaw | None:
        """The law of whole steps, if the mode takes them under it: a held input, or a feedback."""
        return None if self.mode.compiled_steps is None else self.whole

    def checked_rate(self, t: float, coordinates: Array) -> Array:
        """The rate (nx,) of the coordinates: at the start of a flow, and where one fails.

        Raises `SystemDefinitionError` for a field that is no numbers or of the wrong shape,
        `IntegrationError` for one that is not finite.
        """
        mode, x, known = self.mode, self.mode.space.normalize(coordinates), self.point
        u = self.law(t, x)
        if known is None or known.t != t or not np.array_equal(known.x, x):
            known = self.point = mode.calc(t, x, u)
        given = known.field
        try:
            velocity = convert_to_floats(given)
        except (TypeError, ValueError) as error:
            raise self._no_velocity(quote(given), t) from error
        if velocity.shape != (mode.space.ndx,):
            raise self._no_velocity(velocity.shape, t)
        if not np.isfinite(u).all():
            raise failure(f"the input {u} is not finite", mode, t, x)
        if not np.isfinite(velocity).all():
            raise failure(f"the vector field {velocity} is not finite", mode, t, x)
        return np.asarray(mode.space.rate(x, velocity))

    def _make_rate(self) -> Rate:
        """Return the function of (t, x) for the rate (nx,) of the coordinates.

        It is called more often than any other function of a simulation, so that there is one for
        each kind of space and law. It updates `point` where the field is evaluated at points.
        """
        law, space = self.law, self.mode.space
        field = self._field_at_points if self.by_points else self.mode.field
        if not isinstance(space, VectorSpace):
            normalize, rate = space.normalize, space.rate

            def rate_on_manifold(t: float, coordinates: Array) -> Array:
                x = normalize(coordinates)
                return rate(x, field(t, x, law(t, x)))

            return rate_on_manifold
        if isinstance(law, HeldInput):
            u = law.value
            return lambda t, x: field(t, x, u)
        return lambda t, x: field(t, x, law(t, x))

    def _field_at_points(self, t: float, x: Array, u: Array) -> Array:
        """Return the field (ndx,), and keep its point in `point`."""
        self.point = point = self.mode.calc(t, x, u)
        return self.mode.field_at(point)

    def _no_velocity(self, got: object, t: float) -> SystemDefinitionError:
        key, ndx = self.mode.key, self.mode.space.ndx
        return SystemDefinitionError(
            f"the field of mode {key!r} must return shape ({ndx},), got {got} at t = {t:.9g} s"
        )

    def guard(self, step: Step, i: int, t: float) -> float:
        """Return the value of guard i at time t on the polynomial of a step.

        Points are kept until another step is asked for, as several guards may be asked for at one.

        Args:
            step: Step of the integrator.
            i: Number of the guard in its mode.
            t: Time in s within the step.

        Raises:
            SystemDefinitionError: If the guards are no numbers, or not as many as their names.
        """
        mode = self.mode
        if not self.by_points:
            x = mode.space.normalize(step.state(t))
            return mode.guard_set.value(i, t, x, self.law(t, x))
        if step is not self._guard_step:
            self._guard_step, self._guard_points = step, {}
        point = self._guard_points.get(t)
        if point is None:
            x = mode.space.normalize(step.state(t))
            point = self._guard_points[t] = mode.calc(t, x, self.law(t, x))
        return point.guard(i)

    def guards_at(self, t: float, coordinates: Array) -> Array | None:
        """The guards (n,) where the rate was asked for last, if it was here."""
        point = self.known(t, self.mode.space.normalize(coordinates)) if self.watched else None
        return None if point is None else point.guards

    def known(self, t: float, x: Array) -> Point | None:
        """The point at (t, x), if the rate was asked for there last."""
        point = self.point
        if not self.by_points or point is None or point.t != t:
            return None
        return point if np.array_equal(point.x, x) else None

    def sampled(
        self,
        start: float,
        end: float,
        states: Array,
        before: Array | None = None,
        after: Array | None = None,
        cubic: bool = False,
    ) -> Step:
        """The step with these states (8, nx); before, after (n,): guards at its ends, if known.

        cubic: whether the states are a polynomial of third degree. Four samples do then, and on
        short steps, if by them no guard comes to zero or leaves it.
        """
        inputs = self._inputs(start, end, states)
        if not (np.isfinite(states).all() and np.isfinite(inputs).all()):
            what = "the state or the input is not finite"
            raise failure(what, self.mode, end, states[-1])
        step = Step(start, end, states, inputs)
        if not self.watched:
            return step
        known = {k: row for k, row in ((0, before), (len(states) - 1, after)) if row is not None}
        if self.short or cubic:
            few = self._along(step, _FEW, known)
            guards = _FROM_FEW @ few
            guards[list(_FEW)] = few
            bounds = guard_bounds(guards)
            zero = ~few.any(axis=0)
            if ((bounds > 0.0) | (guard_bounds(-guards) > 0.0) | zero).all():
                return Step(start, end, states, inputs, guards, bounds)
        guards = self._along(step, range(len(states)), known)
        return Step(start, end, states, inputs, guards, guard_bounds(guards))

    def cut(self, step: Step, t: float) -> Step:
        """The polynomial of a step until t within it, with inputs sampled there, without guards."""
        part = (t - step.start) / (step.end - step.start)
        states = basis(2.0 * part * FRACTIONS - 1.0) @ TO_SERIES @ step.states
        return Step(step.start, t, states, self._inputs(step.start, t, states))

    def _along(self, step: Step, nodes: Sequence[int], known: dict[int, Array]) -> Array:
        """Guards (k, n) at k nodes of a step; known: those of some nodes, and now of these."""
        mode, normalize, times = self.mode, self.mode.space.normalize, step.times.tolist()
        for k in nodes:
            if k not in known:
                known[k] = mode.guards(times[k], normalize(step.states[k]), step.inputs[k])
        try:
            values = np.array([known[k] for k in nodes])
        except ValueError:  # of rows of several shapes
            values = np.array(None)
        if _is_plain(values, len(nodes), len(mode.guard_names)):
            return values
        each = ((times[k], normalize(step.states[k]), step.inputs[k]) for k in nodes)
        return np.array([mode.guard_set.checked(mode.key, *point) for point in each])

    def _inputs(self, start: float, end: float, states: Array) -> Array:
        law, normalize = self.law, self.mode.space.normalize
        if self.held is not None:
            return self.held
        times = Step(start, end, states, states).times
        if isinstance(self.whole, LinearFeedback):
            offsets, gains = self.whole.along(times)
            inputs, limits = offsets - (gains @ states[:, :, None])[:, :, 0], self.whole.limits
            return inputs if limits is None else inputs.clip(*limits)
        each = zip(times.tolist(), states, strict=True)
        return np.array([law(t, normalize(x)) for t, x in each])


def _is_plain(value: object, *shape: int) -> bool:
    """Whether this is an array of real numbers, of this shape."""
    return type(value) is np.ndarray and value.shape == shape and value.dtype.kind in "iuf"


class ExplicitFormula:
    """An explicit Runge-Kutta formula for fields that are any callables."""

    def __init__(self, tableau: Tableau, motion: DrivenMode, rtol: float, atol: float) -> None:
        n = motion.mode.space.nx
        self.exponent = tableau.exponent
        self._tableau, self._motion, self._rtol, self._atol = tableau, motion, rtol, atol
        self._rates = np.empty((len(tableau.rows) + 1, n))
        self._before = [self._rates[: len(row)] for row in tableau.rows]
        self._guards: Array | None = None

    def start(self, t: float, x: Array) -> None:
        """Stand at (t, x)."""
        self.time, self.state, self._guards = t, x, None
        self._rates[0] = self._motion.checked_rate(t, x)
        self._here = self._motion.point

    @property
    def rate(self) -> Array:
        """The rate (nx,) of the coordinates where it stands."""
        return np.asarray(self._rates[0])

    def attempt(self, end: float) -> float:
        """The error of a step to time `end`."""
        tableau, s, h = self._tableau, self._tableau.stages, end - self.time
        with np.errstate(over="ignore", invalid="ignore"):  # such an attempt is rejected
            self._stages(h, range(s), self._motion.rate)
            self._end, self._reached, self._rate_there = end, self._stage, self._given
            self._there = self._motion.point if self._motion.by_points else None
            largest = np.maximum(np.abs(self.state), np.abs(self._reached))
            return tableau.error(h, self._rates[: s + 1], self._atol + self._rtol * largest)

    def _stages(self, h: float, wanted: range, rate: Rate) -> None:
        t, x, rates = self.time, self.state, self._rates
        rows, nodes, before = self._tableau.rows, self._tableau.nodes, self._before
        for i in wanted:
            self._stage = x + h * (rows[i] @ before[i])
            self._given = rate(t + nodes[i] * h, self._stage)
            try:
                rates[i + 1] = self._given
            except (TypeError, ValueError, OverflowError, ComplexWarning):
                self._motion.checked_rate(t + nodes[i] * h, self._stage)
                raise

    def explain(self, end: float) -> None:
        """Raise what is wrong with the field on a step to time `end`, if anything is."""
        with np.errstate(over="ignore", invalid="ignore"):
            self._stages(end - self.time, range(self._tableau.stages), self._motion.checked_rate)

    def accept(self) -> Step:
        """The last attempt as a step; stand at its end."""
        tableau, h = self._tableau, self._end - self.time
        if not _is_plain(self._rate_there, len(self.state)):
            self._motion.checked_rate(self._end, self._reached)
        self._stages(h, range(tableau.stages, len(tableau.rows)), self._motion.rate)
        states = self.state + h * (tableau.dense @ self._rates)
        states[-1] = self._reached
        before, after = self._guards, self._guards_of(self._there)
        if before is None:
            before = self._guards_of(self._here)
        step = self._motion.sampled(self.time, self._end, states, before, after)
        self.time, self.state, self._here = self._end, self._reached, self._there
        self._motion.point = self._there
        self._guards = None if step.guards is None else step.guards[-1]
        self._rates[0] = self._rates[tableau.stages]
        return step

    @property
    def decay(self) -> float:
        """The time constant of the fastest decay that the last attempt has seen, s.

        Its last stage Y and its end y are both at t + h, and f changes between them by its fastest
        eigenvalue, HNW II, IV.2 (2.8): |y - Y| / |f(y) - f(Y)|. Infinite where the error of the
        step did not feel that change, and for formulas whose last stage is elsewhere.
        """
        tableau, s, h = self._tableau, self._tableau.stages, self._end - self.time
        if tableau.nodes[s - 2] != 1.0:
            return math.inf
        with np.errstate(over="ignore", invalid="ignore"):
            stage = self.state + h * (tableau.rows[s - 2] @ self._before[s - 2])
            moved, change = self._reached - stage, self._rates[s] - self._rates[s - 1]
            felt = h * change / (self._atol + self._rtol * np.abs(self._reached))
            size, squares = float(felt @ felt), float(change @ change)
            if not len(felt) * _FELT**2 < size < math.inf or squares == math.inf:
                return math.inf
            return math.sqrt(float(moved @ moved) / squares)

    def _guards_of(self, point: Point | None) -> Array | None:
        """The guards of a point, where there is one and they are watched."""
        return None if point is None or not self._motion.watched else point.guards

    def ended(self, step: Step, t: float) -> Step:
        """The step as it is."""
        return step


class CompiledFormula:
    """The whole steps of a mode under a law, of which one can be taken again to any time in it.

    Where there is none the formula itself goes on, `general`.
    """

    exponent = DOP853_TABLEAU.exponent

    def __init__(self, motion: DrivenMode, law: InputLaw, rtol: float, atol: float) -> None:
        self._motion, self._law, self._rtol, self._atol = motion, law, rtol, atol
        assert motion.mode.compiled_steps is not None
        self._steps = motion.mode.compiled_steps
        self._last: Step | None = None  # attempted, and None for one of the general formula
        self._ended: Step | None = None

    @cached_property
    def _general(self) -> ExplicitFormula:
        return ExplicitFormula(DOP853_TABLEAU, self._motion, self._rtol, self._atol)

    def start(self, t: float, x: Array) -> None:
        """Stand at (t, x)."""
        self.time, self.state = t, x

    @property
    def rate(self) -> Array:
        """The rate (nx,) of the coordinates where it stands."""
        return self._motion.checked_rate(self.time, self.state)

    def attempt(self, end: float) -> float:
        """The error of a step to time `end`."""
        error, self._last = self._to(self.time, self.state, end)
        if self._last is not None:
            return error
        self._general.start(self.time, self.state)
        return self._general.attempt(end)

    @property
    def decay(self) -> float:
        """The time constant of the fastest decay that the last attempt has seen, s, if it tells."""
        return self._general.decay if self._last is None else math.inf

    def explain(self, end: float) -> None:
        """Raise what is wrong with the field on a step to time `end`, if anything is."""
        self._general.start(self.time, self.state)
        self._general.explain(end)

    def accept(self) -> Step:
        """The last attempt as a step; stand at its end."""
        step = self._general.accept() if self._last is None else self._last
        self.time, self.state = step.end, step.states[-1]
        return step

    def ended(self, step: Step, t: float) -> Step:
        """The step, taken again until t; a general one as it is."""
        if step is not self._last:
            return step
        if self._ended is None or self._ended.start != step.start or self._ended.end != t:
            _, self._ended = self._to(step.start, step.states[0], t)
        return self._ended or step

    def _to(self, start: float, x: Array, end: float) -> tuple[float, Step | None]:
        """The error of a step from (start, x), and the step; None where it does not hold."""
        ahead = StepAhead(start, x, end - start, self._rtol, self._atol)
        found = self._steps.step(ahead, self._law)
        if found is None:
            return math.inf, None
        return found.error, Step(start, end, found.states, found.inputs, found.guards, found.bounds)


Formula: TypeAlias = ExplicitFormula | CompiledFormula


def failure(
    what: str,
    mode: ModeModel,
    t: float,
    x: Array,
    kind: type[IntegrationError] = IntegrationError,
) -> IntegrationError:
    """The error of a flow that cannot go on from (t, x)."""
    where = f"in mode {mode.key!r} at t = {t:.9g} s, x = {np.array2string(x, precision=6)}"
    return kind(f"{what} {where}")
