r"""Explicit Runge-Kutta steps along one mode: one driver with two kernels.

`ExplicitStepper` controls the length of steps. A step of length h and error e, in units of the
tolerance, is accepted below e = 1 and followed by one of length :math:`0.9\, e^{-1/(p+1)} h`, p
being the order of the error estimate (Hairer, Norsett, Wanner: Solving Ordinary Differential
Equations I, II.4; HNW below). A kernel attempts the steps: `StageKernel` stage by stage for any
field and formula, `CompiledKernel` by the compiled steps of a mode, which are those of DOP853.

`scale_accepted_step`, `scale_rejected_step` and `choose_first_length` serve one point and many
alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.exceptions import ComplexWarning

from hybridctl.base.checks import Array
from hybridctl.base.errors import IntegrationError, StepSizeError
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.model import ModeModel, Point, StepRequest
from hybridctl.hybrid.step import DrivenMode, Rate, Step, is_real_array, make_failure
from hybridctl.hybrid.tableau import DOP853_TABLEAU, Tableau
from hybridctl.hybrid.tolerances import MIN_STEP_SPACINGS

Number = TypeVar("Number", float, Array)

SAFETY = 0.9
"""Factor of the step length that the error alone allows, so that few steps are rejected: HNW."""
SHRINK = 0.2
"""Least factor from a rejected step to the next attempt. HNW advise 0.2 to 0.5."""
GROW = 10.0
"""Greatest factor from one step to the next; scipy's."""
_NOTICEABLE_CHANGE = 0.1
"""Difference of rates times h, in units of the tolerance, from which on it shows a decay. Below, it
may be rounding."""


def scale_rejected_step(error: Number, exponent: float) -> Number:
    """Return the factor from the length of a rejected step to that of the next attempt.

    Args:
        error: Error of the step in units of the tolerance, for one point or many.
        exponent: Exponent of the formula, `Tableau.exponent`.

    Returns:
        0.9 error^exponent, at least 0.2; that also for an error that is NaN or infinite.
    """
    if isinstance(error, float):
        factor: float = SAFETY * error**exponent
        return max(SHRINK, factor)
    with np.errstate(all="ignore"):
        return np.asarray(np.fmax(SHRINK, SAFETY * error**exponent))


def scale_accepted_step(error: Number, exponent: float, most: Number) -> Number:
    """Return the factor from the length of an accepted step to that of the next one.

    Args:
        error: Error of the step in units of the tolerance, for one point or many.
        exponent: Exponent of the formula, `Tableau.exponent`.
        most: Greatest factor: `GROW`, and 1 after a rejected attempt.

    Returns:
        0.9 error^exponent, at most `most`; that also for an error of zero.
    """
    if isinstance(error, float):
        return min(most, SAFETY * error**exponent) if error > 0.0 else most
    with np.errstate(all="ignore"):
        return np.asarray(np.fmin(most, SAFETY * error**exponent))


class StageKernel:
    """Steps of an explicit formula, stage by stage, for a field that is any function.

    `start` puts it at a point; `attempt` makes a step from there, `accept` moves to the end of the
    last attempt.

    Args:
        tableau: The formula.
        motion: The mode under its law.
        rtol: Relative tolerance of each coordinate.
        atol: Absolute tolerance, in the unit of each coordinate.

    Attributes:
        exponent: Exponent of the formula for the length of steps.
        time: Time at which it stands, s.
        state: Coordinates (nx,) at which it stands.
    """

    def __init__(self, tableau: Tableau, motion: DrivenMode, rtol: float, atol: float) -> None:
        n = motion.mode.space.nx
        self.exponent = tableau.exponent
        self._tableau, self._motion, self._rtol, self._atol = tableau, motion, rtol, atol
        self._rates = np.empty((len(tableau.rows) + 1, n))  # row i: that of stage i
        self._earlier_rates = [self._rates[: len(row)] for row in tableau.rows]
        self._guards: Array | None = None  # (n,) at `time`, if they are known

    def start(self, t: float, x: Array) -> None:
        """Put the kernel at a point.

        Args:
            t: Time, s.
            x: Coordinates (nx,).

        Raises:
            SystemDefinitionError: The field is no array of numbers, or of the wrong shape.
            IntegrationError: The field or the input is not finite.
        """
        self.time, self.state, self._guards = t, x, None
        self._rates[0] = self._motion.compute_checked_rate(t, x)
        self._start_point = self._motion.point

    @property
    def rate(self) -> Array:
        """The rate (nx,) of the coordinates at which it stands."""
        return np.asarray(self._rates[0])

    def attempt(self, end: float) -> float:
        """Return the error of a step to time `end`, in units of the tolerance, and keep the step.

        Args:
            end: Time at the end of the step, s.
        """
        tableau, s, h, motion = self._tableau, self._tableau.stages, end - self.time, self._motion
        with np.errstate(over="ignore", invalid="ignore"):  # such an attempt is rejected
            self._compute_stages(h, range(s), motion.rate)
            self._end, self._end_state, self._end_rate = end, self._stage, self._stage_rate
            self._end_point = motion.point if motion.by_points else None
            largest = np.maximum(np.abs(self.state), np.abs(self._end_state))
            return tableau.error(h, self._rates[: s + 1], self._atol + self._rtol * largest)

    def _compute_stages(self, h: float, numbers: range, rate: Rate) -> None:
        """Update the rates of some stages, and the state and the rate of the last of them.

        Row k of `_rates` is the rate at stage k. Stage 0 is the start of the step.

        Args:
            h: Length of the step, s.
            numbers: Numbers i of the tableau's rows; row i gives stage i + 1.
            rate: The rate, checked or not.

        Raises:
            SystemDefinitionError: A rate is no array of numbers, or of the wrong shape.
            IntegrationError: A rate or an input is not finite, where rates are checked.
            TypeError: numpy cannot store a rate and the checks find nothing wrong with it.
            ValueError: As `TypeError`.
            OverflowError: As `TypeError`.
            ComplexWarning: As `TypeError`, where warnings are errors, as in tests.
        """
        t, x, rates = self.time, self.state, self._rates
        rows, nodes, earlier = self._tableau.rows, self._tableau.nodes, self._earlier_rates
        for i in numbers:
            self._stage = x + h * (rows[i] @ earlier[i])
            self._stage_rate = rate(t + nodes[i] * h, self._stage)
            try:
                rates[i + 1] = self._stage_rate
            except (TypeError, ValueError, OverflowError, ComplexWarning):
                # The field has the wrong shape or no numbers: the same point with checks, whose
                # error names mode, time and state.
                self._motion.compute_checked_rate(t + nodes[i] * h, self._stage)
                raise

    def raise_field_error(self, end: float) -> None:
        """Raise what is wrong with the field on a step to time `end`, if anything is.

        Args:
            end: Time at the end of the step, s.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            stages = range(self._tableau.stages)
            self._compute_stages(end - self.time, stages, self._motion.compute_checked_rate)

    def accept(self) -> Step:
        """Return the last attempt as a step, and move to its end."""
        tableau, motion, h = self._tableau, self._motion, self._end - self.time
        if not is_real_array(self._end_rate, len(self.state)):
            motion.compute_checked_rate(self._end, self._end_state)
        self._compute_stages(h, range(tableau.stages, len(tableau.rows)), motion.rate)
        states = self.state + h * (tableau.dense @ self._rates)
        states[-1] = self._end_state
        before, after = self._guards, self._find_guards(self._end_point)
        if before is None:
            before = self._find_guards(self._start_point)
        step = motion.sample_step(self.time, self._end, states, before, after)
        self.time, self.state, self._start_point = self._end, self._end_state, self._end_point
        motion.point = self._end_point  # stages of the dense output have moved it
        self._guards = None if step.guards is None else step.guards[-1]
        self._rates[0] = self._rates[tableau.stages]
        return step

    def _find_guards(self, point: Point | None) -> Array | None:
        """Return the guards of a point, if there is one and guards are watched."""
        return None if point is None or not self._motion.watched else point.guards

    @property
    def fastest_decay(self) -> float:
        """The time constant of the fastest decay that the last attempt has seen, s.

        Its last stage Y and its end y are both at t + h, and f changes between them by its fastest
        eigenvalue, HNW II, IV.2 (2.8): |y - Y| / |f(y) - f(Y)|. Infinite where the error of the
        step did not feel that change: h |f(y) - f(Y)| is at most `_NOTICEABLE_CHANGE`, a tenth of
        the tolerance, as a root mean square. Infinite also for formulas whose last stage is
        elsewhere.
        """
        tableau, s, h = self._tableau, self._tableau.stages, self._end - self.time
        if tableau.nodes[s - 2] != 1.0:  # RK23
            return math.inf
        with np.errstate(over="ignore", invalid="ignore"):
            stage = self.state + h * (tableau.rows[s - 2] @ self._earlier_rates[s - 2])
            distance, change = self._end_state - stage, self._rates[s] - self._rates[s - 1]
            scaled = h * change / (self._atol + self._rtol * np.abs(self._end_state))
            size, squares = float(scaled @ scaled), float(change @ change)
            if not len(scaled) * _NOTICEABLE_CHANGE**2 < size < math.inf or squares == math.inf:
                return math.inf
            return math.sqrt(float(distance @ distance) / squares)

    def end_step_at(self, step: Step, t: float) -> Step:
        """Return the step as it is: to take it again until t would cost all its stages.

        Args:
            step: The step.
            t: Time in s within the step.
        """
        return step


class CompiledKernel:
    """The compiled steps of a mode under a law; where there is none, a `StageKernel` goes on.

    Life cycle and attributes are those of `StageKernel`.

    Args:
        motion: The mode under its law. The mode has compiled steps.
        law: The law that these are asked for, `DrivenMode.compiled_law`.
        rtol: Relative tolerance of each coordinate.
        atol: Absolute tolerance, in the unit of each coordinate.
    """

    exponent = DOP853_TABLEAU.exponent

    def __init__(self, motion: DrivenMode, law: InputLaw, rtol: float, atol: float) -> None:
        assert motion.mode.compiled_steps is not None
        self._steps = motion.mode.compiled_steps
        self._motion, self._law, self._rtol, self._atol = motion, law, rtol, atol
        self._last: Step | None = None  # the last attempt; None if the stage kernel has made it
        self._decay = math.inf  # the fastest decay that it has seen, s
        # The last attempt, taken again by `end_step_at` until other times, by these, s.
        self._ended: dict[float, Step | None] = {}

    @cached_property
    def _stages(self) -> StageKernel:
        """The stage kernel that makes the steps for which there is no compiled one."""
        return StageKernel(DOP853_TABLEAU, self._motion, self._rtol, self._atol)

    def start(self, t: float, x: Array) -> None:
        """Put the kernel at a point.

        Args:
            t: Time, s.
            x: Coordinates (nx,).
        """
        self.time, self.state = t, x

    @property
    def rate(self) -> Array:
        """The rate (nx,) of the coordinates at which it stands, after checks."""
        return self._motion.compute_checked_rate(self.time, self.state)

    def attempt(self, end: float) -> float:
        """Return the error of a step to time `end`, in units of the tolerance, and keep the step.

        Args:
            end: Time at the end of the step, s.
        """
        error, self._last, self._decay = self._take_step(self.time, self.state, end)
        self._ended = {}
        if self._last is not None:
            return error
        # There is no sound compiled step here: stage by stage the field is evaluated in full.
        self._stages.start(self.time, self.state)
        return self._stages.attempt(end)

    @property
    def fastest_decay(self) -> float:
        """The time constant of the fastest decay that the last attempt has seen, s.

        Infinite for compiled steps that do not show it.
        """
        return self._stages.fastest_decay if self._last is None else self._decay

    def raise_field_error(self, end: float) -> None:
        """Raise what is wrong with the field on a step to time `end`, if anything is.

        Args:
            end: Time at the end of the step, s.
        """
        self._stages.start(self.time, self.state)
        self._stages.raise_field_error(end)

    def accept(self) -> Step:
        """Return the last attempt as a step, and move to its end."""
        step = self._stages.accept() if self._last is None else self._last
        self.time, self.state = step.end, step.states[-1]
        return step

    def end_step_at(self, step: Step, t: float) -> Step:
        """Return a step taken again until t; one of the stage kernel as it is.

        Args:
            step: The step.
            t: Time in s within the step.
        """
        if step is not self._last or not self._steps.retakes_steps:  # or the stage kernel took it
            return step
        # Event location asks for several guards at one time, and then for the step itself.
        if t not in self._ended:
            _, self._ended[t], _ = self._take_step(step.start, step.states[0], t)
        return self._ended[t] or step

    def _take_step(self, start: float, x: Array, end: float) -> tuple[float, Step | None, float]:
        """Return the error of a compiled step, the step, and the fastest decay that it has seen.

        Args:
            start: Time at its start, s.
            x: Coordinates (nx,) there.
            end: Time at its end, s.

        Returns:
            The error in units of the tolerance, the step, and the time constant of the decay in s.
            Infinity, None and infinity where there is no sound step.
        """
        ahead = StepRequest(start, x, end - start, self._rtol, self._atol)
        taken = self._steps.step(ahead, self._law)
        if taken is None:
            return math.inf, None, math.inf
        step = Step(start, end, taken.states, taken.inputs, taken.guards, taken.bounds)
        return taken.error, step, taken.fastest_decay


Kernel: TypeAlias = StageKernel | CompiledKernel


class ExplicitStepper:
    """Accepted steps of a kernel, with their lengths controlled by its error.

    Args:
        kernel: The kernel, which stands at the start.
        mode: The mode, for messages.
        t_end: Time at the end of the flow, s, before or after the start.
        length: Length of the first attempt, s.

    Attributes:
        length: Length that the next step will try, s.
        fastest_decay: Time constant of the fastest decay that the last step has seen, s. Infinite
            where it has seen none.
    """

    fastest_decay = math.inf

    def __init__(self, kernel: Kernel, mode: ModeModel, t_end: float, length: float) -> None:
        self._kernel, self._mode, self._t_end, self.length = kernel, mode, t_end, length

    def advance(self, longest: float) -> Step:
        """Return one accepted step, and update `length` and `fastest_decay`.

        Args:
            longest: Greatest length of the step, s.

        Returns:
            The step, with an error below 1 in units of the tolerance. It ends at `t_end` at most.

        Raises:
            StepSizeError: Steps that are short enough no longer change the time.
            IntegrationError: The field is not finite ahead.
        """
        kernel, exponent, t_end = self._kernel, self._kernel.exponent, self._t_end
        t, tried = kernel.time, self.length
        sign, shortest = (1.0 if t_end > t else -1.0), MIN_STEP_SPACINGS * math.ulp(t)
        h, most, end, error = min(max(tried, shortest), longest), GROW, t, 0.0
        while True:
            if h < shortest:
                if end != t:  # there was an attempt: an error of the field goes before one of h
                    kernel.raise_field_error(end)
                is_limited = longest < shortest
                too_short = _make_length_error(h, error, is_limited, self._mode, t, kernel.state)
                raise too_short
            end = t + sign * h
            if sign * (end - t_end) > 0.0:
                end = t_end
            error = kernel.attempt(end)
            if error < 1.0:
                break
            # After a rejected attempt the next step is no longer than the accepted one (HNW).
            h, most = abs(end - t) * scale_rejected_step(error, exponent), 1.0
        grown = abs(end - t) * scale_accepted_step(error, exponent, most)
        # A step that the end of the flow has cut says nothing of how long the next flow's steps may
        # be. So the next attempt is no shorter than the one that this step was to be (`tried`),
        # unless a longer attempt was rejected (`most` is 1).
        self.length = max(grown, tried) if end == t_end and most > 1.0 else grown
        self.fastest_decay = kernel.fastest_decay
        return kernel.accept()

    def restart(self, x: Array) -> None:
        """Go on from another state at the same time.

        Args:
            x: Coordinates (nx,).
        """
        self._kernel.start(self._kernel.time, x)

    def end_step_at(self, step: Step, t: float) -> Step:
        """Return the step just taken, taken again until t if that costs little; else as it is.

        Args:
            step: The step.
            t: Time in s within the step.
        """
        return self._kernel.end_step_at(step, t)


def _make_length_error(
    h: float, error: float, is_limited: bool, mode: ModeModel, t: float, x: Array
) -> IntegrationError:
    """Return the error of a flow whose steps have become too short.

    Args:
        h: Length of the next attempt, s.
        error: Error of the last attempt.
        is_limited: Whether the greatest length that was asked for is itself too short. That is
            `max_step`, or what the mode allows (`StepRequest`), whichever is less.
        mode: The mode.
        t: Time, s.
        x: State (nx,).
    """
    if not math.isfinite(error):
        return make_failure("the vector field is not finite ahead", mode, t, x)
    limit = "the pace of the mode or max_step" if is_limited else "their error"
    what = f"steps of {h:.3g} s, limited by {limit}, no longer advance the time"
    return make_failure(what, mode, t, x, StepSizeError)


def choose_first_length(
    rate: Callable[..., Array],
    given: Array,
    t: Array | float,
    x: Array,
    t_end: float,
    tolerances: tuple[float, float],
    exponent: float,
) -> Array:
    """Return the length of a first step, s, for one point or for m of them.

    It follows from the size of the rate and of its change over a short probe, HNW I, II.4. If the
    rate at the end of the probe is NaN, only the size at the start counts. If it is infinite the
    length is 0: the stepper then begins with its shortest step.

    Args:
        rate: The rate as a function of (t, x).
        given: Its value (nx,) or (m, nx) at the start.
        t: Time at the start, s; (m,) for m points.
        x: Coordinates (nx,) or (m, nx) at the start.
        t_end: Time at the end of the flow, s.
        tolerances: Relative and absolute tolerance.
        exponent: Exponent of the formula, `Tableau.exponent`.

    Returns:
        The length, positive or zero, () or (m,); at most 100 times that of the probe.
    """
    rtol, atol = tolerances
    scale = (atol + rtol * np.abs(x)) * math.sqrt(x.shape[-1])
    with np.errstate(all="ignore"):
        # State and rate in units of the tolerance. The probe is an Euler step that changes the
        # state by a hundredth of its size, or takes 1e-6 s where state or rate are too small.
        size, speed = _norms(x / scale), _norms(given / scale)
        probe = np.where((size >= 1e-5) & (speed >= 1e-5), 0.01 * size / speed, 1e-6)
        probe = np.minimum(probe, np.abs(t_end - t))
        ahead = np.copysign(probe, t_end - t)
        rate_ahead = rate(t + ahead, x + ahead[..., None] * given)
        change = _norms((rate_ahead - given) / scale) / probe
        # HNW: the length h has h^(p+1) max(speed, change) = 0.01.
        is_at_rest = (speed <= 1e-15) & (change <= 1e-15)
        longest = (0.01 / np.fmax(speed, change)) ** -exponent
        longest = np.where(is_at_rest, np.maximum(1e-6, 1e-3 * probe), longest)
    return np.asarray(np.fmin(100.0 * probe, longest))


def _norms(rows: Array) -> Array:
    """Return the Euclidean norm of each row (..., n)."""
    return np.asarray(np.sqrt((rows * rows).sum(axis=-1)))
