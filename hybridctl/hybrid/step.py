r"""One step along a mode: states, inputs and guards at its nodes, and a mode under an input law.

A step is a polynomial of degree at most 7, which its states at eight Chebyshev nodes fix exactly.
Inputs and guards are sampled at the same nodes. A guard whose Chebyshev series has

.. math:: b = c_0 - |c_1| - 2 \sum_{k \ge 2} |c_k| > 0

is positive on the whole step: the series alone is at least :math:`c_0 - \sum_{k \ge 1} |c_k|`, and
its bend counts twice for what eight samples do not show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import approx_fprime

from hybridctl.base.checks import Array, convert_to_floats, quote
from hybridctl.base.errors import IntegrationError, SystemDefinitionError
from hybridctl.base.spaces import VectorSpace, compute_tangent_map, invert_tangent_maps
from hybridctl.hybrid.laws import DifferentiableLaw, HeldInput, InputLaw, LinearFeedback
from hybridctl.hybrid.model import ModeModel, Point
from hybridctl.hybrid.series import FRACTIONS, NODES, TO_SERIES, basis

Rate = Callable[[float, Array], Array]
"""Rate (nx,) of the coordinates at time t, s, and coordinates (nx,)."""

_CUBIC_NODES = (0, 2, 5, 7)
"""Nodes at which a guard is sampled first on a short step, where it is nearly a cubic: both ends,
and the two others that spread its four samples best."""
_FROM_CUBIC: Array = basis(NODES)[:, :4] @ np.linalg.inv(basis(NODES[list(_CUBIC_NODES)])[:, :4])
"""Matrix (8, 4) from samples at these nodes to the values of their cubic at all nodes."""


class Step(NamedTuple):
    """One accepted step, by its values at the nodes of `series`.

    Attributes:
        start: Time at its start, s.
        end: Time at its end, s; earlier than the start backward in time.
        states: States (8, nx) in coordinates, which on a manifold need not be normalised.
        inputs: Inputs (8, nu).
        guards: Guards (8, n); None where they were not sampled.
        bounds: Bounds b (n,) of the guards; None where they were not sampled.
        changed: Whether another law acts from its start on than on the step before.
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
        times[-1] = self.end  # exactly
        return times

    def state(self, t: float) -> Array:
        """Return the state (nx,) on the polynomial of this step.

        Args:
            t: Time, s.
        """
        s = 2.0 * (t - self.start) / (self.end - self.start) - 1.0
        return np.asarray(basis(s) @ TO_SERIES @ self.states)


def compute_guard_bounds(values: Array) -> Array:
    """Return the bounds b (n,) of guards on a step; a guard that is not finite has none above zero.

    Args:
        values: Guards (8, n) at the nodes of the step.
    """
    with np.errstate(invalid="ignore"):
        c = TO_SERIES @ values
        size = np.abs(c[1:])
        return np.asarray(c[0] + size[0] - 2.0 * size.sum(axis=0))


class DrivenMode:
    """A mode under an input law, as integrators see it: rates of coordinates, inputs and guards.

    An integrator calls `compute_checked_rate` at the start, then `rate` at each stage, and
    `sample_step` for a step that it accepts. Event location then calls `evaluate_guard` for times
    within that step.

    Args:
        mode: The mode.
        law: The input law.
        watched: Whether guards are sampled on steps.
        point: A point at which the flow may start, so that it is not evaluated again.
        short: Whether steps are shorter than their error asks for, so that few samples show the
            guards.

    Attributes:
        rate: The rate (nx,) of the coordinates as a function of (t, x), unchecked.
        point: The point at which the rate was evaluated last, where the field is evaluated at
            points; else the one that was given, or that `compute_checked_rate` has made.
        by_points: Whether the field is evaluated at points. A mode that overrides
            `ModeModel.field` has a function for it that makes none.
        held_inputs: The held input at all nodes, (8, nu); None under another law.
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
        self.held_inputs: Array | None = None
        # The law in the form for which there are compiled steps; None for any other law.
        self._simple_law: InputLaw | None = None
        if isinstance(law, HeldInput):
            self.held_inputs, self._simple_law = law.at_nodes, law
        elif isinstance(mode.space, VectorSpace):
            source = law.function if isinstance(law, DifferentiableLaw) else law
            self._simple_law = source if isinstance(source, LinearFeedback) else None
        # The points of `evaluate_guard` on the step that it was asked for last, by their times.
        self._guard_step: Step | None = None
        self._guard_points: dict[float, Point] = {}

    @property
    def compiled_law(self) -> InputLaw | None:
        """The law of compiled steps: a held input or a linear feedback; None where there are none.

        A feedback is linear in coordinates, and so of a vector space.
        """
        return None if self.mode.compiled_steps is None else self._simple_law

    def compute_checked_rate(self, t: float, coordinates: Array) -> Array:
        """Return the rate (nx,) of the coordinates after checks, and update `point`.

        It is for the start of a flow, and for finding out why a stage has failed.

        Args:
            t: Time, s.
            coordinates: Coordinates (nx,) of the state.

        Raises:
            SystemDefinitionError: The field is no array of numbers, or of the wrong shape.
            IntegrationError: The field or the input is not finite.
        """
        mode, x, known = self.mode, self.mode.space.normalize(coordinates), self.point
        u = self.law(t, x)
        if known is None or known.t != t or not np.array_equal(known.x, x):
            known = self.point = mode.calc(t, x, u)
        given = known.field
        try:
            velocity = convert_to_floats(given)
        except (TypeError, ValueError) as error:
            raise self._wrong_field(quote(given), t) from error
        if velocity.shape != (mode.space.ndx,):
            raise self._wrong_field(velocity.shape, t)
        for what, value in (("input", u), ("vector field", velocity)):
            if not np.isfinite(value).all():
                not_finite = make_failure(f"the {what} {value} is not finite", mode, t, x)
                raise not_finite
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
        return point.field

    def _wrong_field(self, given: object, t: float) -> SystemDefinitionError:
        key, ndx = self.mode.key, self.mode.space.ndx
        return SystemDefinitionError(
            f"the field of mode {key!r} must return shape ({ndx},), got {given} at t = {t:.9g} s"
        )

    def find_known_point(self, t: float, x: Array) -> Point | None:
        """Return the point at which the rate was evaluated last, None if it was elsewhere.

        Args:
            t: Time, s.
            x: State (nx,), normalised.
        """
        point = self.point
        if not self.by_points or point is None or point.t != t:
            return None
        return point if np.array_equal(point.x, x) else None

    def differentiate_rate(self, t: float, coordinates: Array) -> tuple[Array, Array | None]:
        r"""Return the derivative of the field under the law, and the map to coordinates.

        Laws without a derivative (see `DifferentiableLaw`) are differenced, and the rate of modes
        without one. Methods that use it for iterations need it no more exactly.

        Args:
            t: Time, s.
            coordinates: Coordinates (nx,) of the state.

        Returns:
            D_x f + D_u f D_x u (ndx, ndx) in the tangent space, 1/s, and the map L (nx, ndx) from
            there to rates of coordinates. None instead of L in a vector space.
        """
        mode, law, space = self.mode, self.law, self.mode.space
        x = coordinates if isinstance(space, VectorSpace) else space.normalize(coordinates)
        map_ = None if isinstance(space, VectorSpace) else compute_tangent_map(space, x)
        if not mode.differentiable:
            of_rate = approx_fprime(x, lambda at: self.rate(t, at)).reshape(space.nx, space.nx)
            if map_ is None:
                return of_rate, None
            return invert_tangent_maps(map_) @ of_rate @ map_, map_
        d = (self.find_known_point(t, x) or mode.calc(t, x, law(t, x))).field_jacobian
        if isinstance(law, HeldInput):
            return d.state, map_
        if isinstance(law, DifferentiableLaw):
            return d.state + d.input @ law.jacobian(t, x), map_
        slopes = approx_fprime(np.zeros(space.ndx), lambda dx: law(t, space.integrate(x, dx)))
        return d.state + d.input @ np.reshape(slopes, (mode.nu, space.ndx)), map_

    def find_known_guards(self, t: float, coordinates: Array) -> Array | None:
        """Return the guards (n,) where the rate was evaluated last.

        Args:
            t: Time, s.
            coordinates: Coordinates (nx,) of the state.

        Returns:
            The guards. None if the rate was evaluated elsewhere, or guards are not watched.
        """
        if not self.watched:
            return None
        point = self.find_known_point(t, self.mode.space.normalize(coordinates))
        return None if point is None else point.guards

    def evaluate_guard(self, step: Step, i: int, t: float) -> float:
        """Return the value of guard i at time t on the polynomial of a step.

        Points are kept until another step is asked for, as several guards may be asked for at one.

        Args:
            step: Step of the integrator.
            i: Number of the guard in its mode.
            t: Time in s within the step.

        Raises:
            SystemDefinitionError: If the guard is no number.
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

    def sample_step(
        self,
        start: float,
        end: float,
        states: Array,
        before: Array | None = None,
        after: Array | None = None,
    ) -> Step:
        """Return the step with these states, with its inputs and guards sampled.

        Args:
            start: Time at its start, s.
            end: Time at its end, s.
            states: States (8, nx) at its nodes.
            before: Guards (n,) at its start, if they are known.
            after: Guards (n,) at its end, if they are known.

        Raises:
            IntegrationError: A state or an input is not finite.
            SystemDefinitionError: The guards are no numbers, or not as many as their names.
        """
        inputs = self._sample_inputs(start, end, states)
        if not (np.isfinite(states).all() and np.isfinite(inputs).all()):
            what = "the state or the input is not finite"
            not_finite = make_failure(what, self.mode, end, states[-1])
            raise not_finite
        step = Step(start, end, states, inputs)
        if not self.watched:
            return step
        known = {k: row for k, row in ((0, before), (len(states) - 1, after)) if row is not None}
        # Four samples show a guard on a short step, if by their cubic no guard comes
        # to zero or leaves it. A guard that is zero on the step is left to the usual way.
        if self.short:
            few = self._sample_guards(step, _CUBIC_NODES, known)
            guards = _FROM_CUBIC @ few
            guards[list(_CUBIC_NODES)] = few
            bounds = compute_guard_bounds(guards)
            zero = ~few.any(axis=0)
            if ((bounds > 0.0) | (compute_guard_bounds(-guards) > 0.0) | zero).all():
                return Step(start, end, states, inputs, guards, bounds)
        guards = self._sample_guards(step, range(len(states)), known)
        return Step(start, end, states, inputs, guards, compute_guard_bounds(guards))

    def cut_step(self, step: Step, t: float) -> Step:
        """Return the polynomial of a step up to time t, with inputs sampled there and no guards.

        Args:
            step: The step.
            t: Time in s within the step.
        """
        part = (t - step.start) / (step.end - step.start)
        states = basis(2.0 * part * FRACTIONS - 1.0) @ TO_SERIES @ step.states
        return Step(step.start, t, states, self._sample_inputs(step.start, t, states))

    def _sample_guards(self, step: Step, nodes: Sequence[int], known: dict[int, Array]) -> Array:
        """Return the guards (k, n) at some nodes of a step, and update `known`.

        Args:
            step: The step.
            nodes: Numbers (k,) of the nodes.
            known: Guards (n,) that are known already, by the number of their node.
        """
        mode, normalize, times = self.mode, self.mode.space.normalize, step.times.tolist()
        self._sample_guards_at_once(step, [k for k in nodes if k not in known], known)
        for k in nodes:
            if k not in known:
                known[k] = mode.guards(times[k], normalize(step.states[k]), step.inputs[k])
        try:
            values = np.array([known[k] for k in nodes])
        except ValueError:  # rows of several shapes
            values = np.array(None)
        if is_real_array(values, len(nodes), len(mode.guard_names)):
            return values
        # Something is wrong with a guard, or it returns numbers of another kind.
        each = ((times[k], normalize(step.states[k]), step.inputs[k]) for k in nodes)
        return np.array([mode.guard_set.checked_values(mode.key, *point) for point in each])

    def _sample_guards_at_once(self, step: Step, nodes: list[int], known: dict[int, Array]) -> None:
        """Update `known` by the guards at some nodes of a step, if one compiled call gives them.

        Args:
            step: The step.
            nodes: Numbers (k,) of the nodes.
            known: Guards (n,) by the number of their node.
        """
        steps, law = self.mode.compiled_steps, self.law
        if nodes and steps is not None and isinstance(law, HeldInput):
            values = steps.sample_guards(step.states[nodes], law)
            if values is not None:
                known.update(zip(nodes, values, strict=True))

    def _sample_inputs(self, start: float, end: float, states: Array) -> Array:
        """Return the inputs (8, nu) at the nodes of a step."""
        law, normalize = self.law, self.mode.space.normalize
        if self.held_inputs is not None:
            return self.held_inputs
        times = Step(start, end, states, states).times
        feedback = self._simple_law
        if isinstance(feedback, LinearFeedback):
            offsets, gains = feedback.find_offsets_and_gains(times)
            inputs, limits = offsets - (gains @ states[:, :, None])[:, :, 0], feedback.limits
            return inputs if limits is None else inputs.clip(*limits)
        each = zip(times.tolist(), states, strict=True)
        return np.array([law(t, normalize(x)) for t, x in each])


def is_real_array(value: object, *shape: int) -> bool:
    """Return whether a value is an array of real numbers.

    Args:
        value: The value.
        shape: The shape that it should have.
    """
    return type(value) is np.ndarray and value.shape == shape and value.dtype.kind in "iuf"


def make_failure(
    what: str,
    mode: ModeModel,
    t: float,
    x: Array,
    kind: type[IntegrationError] = IntegrationError,
) -> IntegrationError:
    """Return the error of a flow that cannot go on.

    Args:
        what: What is wrong.
        mode: The mode of the flow.
        t: Time at which it stops, s.
        x: State (nx,) there.
        kind: Class of the error.
    """
    where = f"in mode {mode.key!r} at t = {t:.9g} s, x = {np.array2string(x, precision=6)}"
    return kind(f"{what} {where}")
