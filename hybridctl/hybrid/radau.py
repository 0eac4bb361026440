r"""Steps of Radau IIA of order 13 along one mode, for stretches that are stiff.

The seven stages Z_i of a step of length h from x solve

.. math:: Z_i = x + h \sum_j a_{ij} f(t + c_j h, Z_j)

(Hairer, Wanner: Solving Ordinary Differential Equations II, IV.5). x and the stages fix the
polynomial of degree 7 that a `Step` records.

Newton's method solves for all stages at once, each with a Jacobian of its own (`StageEquations`).
Where a contact begins to slide in a surface, or stops, friction turns its velocity v_t at a rate of
1 / |v_t|, while the velocity itself is a smooth function of time. With one Jacobian for all stages,
as methods of lower order have it, iterations converge only over steps that are shorter than the
time since the start or until the stop. A cube's corner that began to slide took 30 to 50 steps of
order 5, and takes two of these.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.polynomial.chebyshev import chebvander

from hybridctl.base.checks import Array
from hybridctl.base.errors import SimulationError, StepSizeError
from hybridctl.hybrid.series import DEGREE, NODES, SLOPES, TO_SERIES, TO_SLOPES, basis
from hybridctl.hybrid.stage_equations import FORMULA, StageEquations, solve_backward_euler
from hybridctl.hybrid.step import DrivenMode, Step, make_failure
from hybridctl.hybrid.tolerances import MIN_STEP_SPACINGS

ERROR_EXPONENT = -1.0 / (DEGREE + 1)
"""Exponent of the error in the factor by which the length of a step changes: what a polynomial of
degree 7 leaves out is of order 8."""
_TO_NODES: Array = basis(NODES) @ np.linalg.inv(
    basis(2.0 * np.concatenate(([0.0], FORMULA.points)) - 1.0)
)
"""Matrix (8, 8) from the start and the stages to values at the nodes of a step."""
_PENULTIMATE_WEIGHT = 0.1
"""Weight of the last but one coefficient in the error: the last one may be zero by chance."""
_SMALLEST = np.finfo(np.float64).tiny
"""Divisor that stands for zero: the least normal number."""
_SAFETY, _MIN_FACTOR, _MAX_FACTOR = 0.9, 0.2, 10.0
"""Step-size control as of explicit steps: the part taken of the length that the error allows, and
the least and greatest factor from one step to the next."""
_UNSOLVED_FACTOR = 0.25
"""Factor to the next attempt where iterations do not converge. The value is a choice."""

_NEWTON_TOLERANCE = 1e-3
"""Error that iterations may leave, relative to the tolerance of a step. With 1e-2, slides that
begin at 1e-8 m/s no longer have their direction as exactly as the step's error says."""
_NEWTON_ROUNDING = 10.0 * np.finfo(np.float64).eps
"""Error that iterations leave by rounding, relative to the state."""
_FINAL_CHANGE = 1e-3
"""Change in the first iteration, relative to what may be left, after which no second one is needed
to tell how fast they converge."""
_MAX_ITERATIONS = 10
"""Iterations of an attempt; two to six do."""
_SLOW_RATE = 0.1
"""Rate of convergence above which an iteration is taken with new Jacobians."""
_DIVERGENCE, _ROUGH_ITERATIONS = 2.0, 3
"""Growth of a change by which iterations diverge in spite of new Jacobians. After the first ones,
of which the guess may be rough, any growth counts."""

_PROBE, _LONGEST_PROBE = 1e-3, 1e-7
"""Length of a probe for the change of the rate, relative to a step, and at most in s: over 1e-6 s
a robot's foot at rest comes to 2e-8 m/s by the error of the probe, and seems to slide its way."""
_LONGEST_EXTENSION = 0.25
"""Length of an extension of the last polynomial, relative to its step. It amplifies the rounding
of a polynomial of degree 7 a thousandfold at most."""
_EXTENSION_TOLERANCE = 0.2
"""Error of the polynomial of a step beyond its end, relative to the tolerance, with which it counts
as the next step."""


class RadauStepper:
    """Accepted steps of Radau IIA, with the interface of `explicit.ExplicitStepper`.

    Args:
        motion: The mode under its law.
        t: Time at the start, s.
        x: Coordinates (nx,) there.
        t_end: Time at the end of the flow, s, before or after the start.
        rtol: Relative tolerance of each coordinate.
        atol: Absolute tolerance, in the unit of each coordinate.
        rate: Rate (nx,) of the coordinates at the start.
        length: Length of the first attempt, s.

    Attributes:
        length: Length that the next step will try, s.
    """

    def __init__(
        self,
        motion: DrivenMode,
        t: float,
        x: Array,
        t_end: float,
        rtol: float,
        atol: float,
        *,
        rate: Array,
        length: float,
    ) -> None:
        self.length = length
        self._motion, self._t_end, self._rtol, self._atol = motion, t_end, rtol, atol
        # Where it stands: time, coordinates, their rate, and guards (n,) if they are known.
        self._time, self._state, self._rate = t, x, rate
        self._guards: Array | None = None
        self._last: Step | None = None  # the step that ends there; None after a start or restart
        self._rate_slope: Array | None = None  # change (nx,) of the rate per s; None until needed
        self._newton_tolerance = max(_NEWTON_TOLERANCE, _NEWTON_ROUNDING / rtol)
        self._last_evaluated: tuple[float, Array] = (t, x)  # where the rate was asked for last

    def advance(self, longest: float) -> Step:
        """Return one accepted step, and update `length`.

        Args:
            longest: Greatest length of the step, s.

        Returns:
            The step, with an error below 1 in units of the tolerance. It ends at `t_end` at most.

        Raises:
            StepSizeError: Steps that are short enough no longer change the time.
            SimulationError: The field has no value ahead.
        """
        # Where the limits of steps (`Pace`) shorten them towards a stop, the last polynomial may
        # reach it.
        if self._motion.mode.steady_pace is None and longest < self.length:
            step = self._extend_last_step(longest)
            if step is not None:
                return step
        t, tried = self._time, self.length
        sign, shortest = (1.0 if self._t_end > t else -1.0), MIN_STEP_SPACINGS * math.ulp(t)
        length, most = min(max(tried, shortest), longest), _MAX_FACTOR
        failure: SimulationError | None = None
        while length >= shortest:
            end = t + sign * length
            if sign * (end - self._t_end) > 0.0:
                end = self._t_end
            length = abs(end - t)
            try:
                with np.errstate(over="ignore", invalid="ignore"):  # such an attempt is rejected
                    attempt = self._attempt(end)
            except SimulationError as raised:  # of a guess: it may be far from the solution
                attempt, failure = None, raised
            if attempt is None:
                length *= _UNSOLVED_FACTOR
                continue
            record, error = attempt
            factor = _SAFETY * error**ERROR_EXPONENT if error > 0.0 else _MAX_FACTOR
            if error < 1.0:
                grown = length * min(most, factor)
                # As of explicit steps: the end of the flow says nothing of the next flow's steps.
                was_cut = end == self._t_end and most > 1.0
                self.length = max(grown, tried) if was_cut else grown
                return self._accept(end, record)
            # After a rejected attempt the next step is no longer than the accepted one.
            length, most = length * max(_MIN_FACTOR, factor), 1.0
        self._motion.compute_checked_rate(*self._last_evaluated)
        what = "steps of a stiff flow no longer advance the time"
        raise failure or make_failure(what, self._motion.mode, t, self._state, StepSizeError)

    def _attempt(self, end: float) -> tuple[Array, float] | None:
        """Return a step and its error, None where no stages are found.

        Args:
            end: Time at the end of the step, s.

        Returns:
            Its states (8, nx) at the nodes, and its error in units of the tolerance.

        Raises:
            SimulationError: The field has no value at a stage.
        """
        found = self._solve_stages(end)
        if found is None:
            return None
        stages, equations = found
        record = np.asarray(_TO_NODES @ np.vstack((self._state, stages)))
        record[0], record[-1] = self._state, stages[-1]
        defect = 2.0 / (end - self._time) * (TO_SLOPES[0] @ record) - self._rate
        bound = equations.bound_error(defect)
        return None if bound is None else (record, self._estimate_error(record, bound))

    def _solve_stages(self, end: float) -> tuple[Array, StageEquations] | None:
        """Return the stages of a step, None where Newton's iterations do not converge.

        Args:
            end: Time at the end of the step, s.

        Returns:
            The stages (7, nx), and the equations that have been solved last.

        Raises:
            SimulationError: The field has no value at a stage.
        """
        motion, h, x = self._motion, end - self._time, self._state
        times = (self._time + h * FORMULA.points).tolist()
        times[-1] = end
        stages, scale = self._guess_stages(h), self._atol + self._rtol * np.abs(x)
        equations: StageEquations | None = None
        before, left = math.nan, self._newton_tolerance
        for k in range(_MAX_ITERATIONS):
            rates = [self._evaluate_rate(t, z) for t, z in zip(times, stages, strict=True)]
            missed = x + h * (FORMULA.matrix @ np.array(rates)) - stages
            if not np.isfinite(missed).all():
                return None
            is_fresh = equations is None
            if equations is not None:
                change = equations.solve(missed)
                size = _compute_norm(change / scale)
                is_fresh = not size < max(_SLOW_RATE * before, left)
            if is_fresh or equations is None:
                equations = StageEquations.linearize(motion, times, stages, h)
                if equations is None:
                    return None
                change = equations.solve(missed)
                size = _compute_norm(change / scale)
            stages, ratio = stages + change, size / before
            if size < _FINAL_CHANGE * left or (ratio < 1.0 and ratio / (1.0 - ratio) * size < left):
                return stages, equations
            most = _DIVERGENCE if k < _ROUGH_ITERATIONS else 1.0
            if not size < math.inf or (is_fresh and ratio >= most):
                return None
            before = size
        return None

    def _guess_stages(self, h: float) -> Array:
        """Return a first guess (7, nx) of the stages of a step, and update `_rate_slope`.

        It is the polynomial of the last step, or of second degree beyond the length of that. What
        begins to slide at the limit of friction has a direction by the second degree only.

        Args:
            h: Length of the step in s, with its sign.
        """
        times = h * FORMULA.points
        if self._last is not None and abs(h) <= abs(self._last.end - self._last.start):
            return _extrapolate(self._last, times)
        if self._rate_slope is None:
            self._rate_slope = self._find_rate_slope(h)
        changes = np.outer(times, self._rate) + np.outer(0.5 * times**2, self._rate_slope)
        return np.asarray(self._state + changes)

    def _find_rate_slope(self, h: float) -> Array:
        """Return the change (nx,) of the rate per s, by the last step or by a probe ahead.

        Args:
            h: Length of the step ahead in s, with its sign.
        """
        last = self._last
        if last is not None:
            series = SLOPES @ SLOPES @ TO_SERIES @ last.states  # of the second derivative by s
            # At the end, s = 1, all Chebyshev polynomials are 1.
            return np.asarray(series.sum(axis=0) * (2.0 / (last.end - last.start)) ** 2)
        probe = math.copysign(min(_PROBE * abs(h), _LONGEST_PROBE), h)
        ahead = self._evaluate_rate(self._time + probe, self._state + probe * self._rate)
        slope = (ahead - self._rate) / probe
        return slope if np.isfinite(slope).all() else np.zeros_like(slope)

    def _estimate_error(self, record: Array, bound: Array) -> float:
        """Return the error of a step in units of the tolerance, as a root mean square.

        It is the bound by the defect at the start, and what the polynomial leaves out further on,
        such as a kink: coefficients of the series of a smooth solution fall from one to the next,
        so that each coordinate lacks its last one times what it has fallen by, or the last one
        where they do not fall.

        Args:
            record: States (8, nx) at its nodes.
            bound: Bound (nx,) of the error by the defect, see `StageEquations.bound_error`.
        """
        allowed = self._atol + self._rtol * np.abs(record[[0, -1]]).max(axis=0)
        earlier, before, last = np.abs(TO_SERIES[-3:] @ record)
        last += _PENULTIMATE_WEIGHT * before
        fall = np.sqrt(np.minimum(last / np.maximum(earlier, _SMALLEST), 1.0))
        return _compute_norm((np.abs(bound) + fall * last) / allowed)

    def _extend_last_step(self, length: float) -> Step | None:
        """Return the polynomial of the last step beyond its end as the next step, and move there.

        What it misses of the field is turned into an error of the state by an implicit step of
        Euler's method from there, which divides by what is stiff.

        Args:
            length: Length of the extension, s.

        Returns:
            The step. None, with nothing changed, if there is no last step, if the extension is long
            beside that or goes beyond the flow, and if the polynomial does not solve the field or
            leads to where there is none.
        """
        last, start = self._last, self._time
        if last is None or length > _LONGEST_EXTENSION * abs(last.end - last.start):
            return None
        h = math.copysign(length, last.end - last.start)
        end = start + h
        if h * (self._t_end - end) < 0.0:
            return None  # the flow ends before
        record = _extrapolate(last, 0.5 * h * (NODES + 1.0))
        record[0], x = self._state, record[-1]
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # such an extension is not taken
                missed = self._evaluate_rate(end, x) - 2.0 / h * (TO_SLOPES[-1] @ record)
                if not np.isfinite(missed).all():
                    return None
                error = solve_backward_euler(*self._motion.differentiate_rate(end, x), h, missed)
        except SimulationError:  # of a guess, as in `advance`: the solution may be elsewhere
            return None
        allowed = self._atol + self._rtol * np.abs(x)
        if error is None or not _compute_norm(error / allowed) <= _EXTENSION_TOLERANCE:
            return None
        return self._accept(end, record)

    def _accept(self, end: float, record: Array) -> Step:
        """Move to the end of a step, and return it.

        Args:
            end: Time at its end, s.
            record: Its states (8, nx) at the nodes.

        Returns:
            The step, with its guards if they are watched.
        """
        motion, start, before = self._motion, self._time, self._guards
        self._time, self._state = end, record[-1]
        self._rate = self._evaluate_rate(end, record[-1])
        after = motion.find_known_guards(end, record[-1])
        step = motion.sample_step(start, end, record, before, after)
        self._guards = None if step.guards is None else step.guards[-1]
        self._last, self._rate_slope = step, None
        return step

    def _evaluate_rate(self, t: float, x: Array) -> Array:
        self._last_evaluated = t, x
        return self._motion.rate(t, x)

    def restart(self, x: Array) -> None:
        """Go on from another state at the same time.

        Args:
            x: Coordinates (nx,).
        """
        self._state, self._guards = x, None
        self._last = self._rate_slope = None
        self._rate = self._evaluate_rate(self._time, x)

    def end_step_at(self, step: Step, t: float) -> Step:
        """Return the step as it is, whose polynomial reaches beyond t.

        Args:
            step: The step.
            t: Time in s within the step.
        """
        return step


def _extrapolate(last: Step, times: Array) -> Array:
    """Return the states (k, nx) on the polynomial of a step at times (k,) in s after its end."""
    places = 1.0 + 2.0 * times / (last.end - last.start)
    return np.asarray(chebvander(places, DEGREE) @ TO_SERIES @ last.states)


def _compute_norm(values: Array) -> float:
    """Return the root mean square of an array."""
    return float(np.sqrt(np.mean(values * values)))
