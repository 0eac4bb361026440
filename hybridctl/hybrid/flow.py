r"""Flow along one mode: steps as long as the tolerance allows, by the method that suits them.

Explicit steps of length h and error e, in units of the tolerance, are accepted below 1 and
followed by one of length :math:`0.9\, e^{-1/(p+1)} h`, p being the order of the error estimate
(Hairer, Norsett, Wanner: Solving Ordinary Differential Equations I, II.4). Where a decay of the
field is faster than the steps that accuracy asks for, an implicit method goes on. The mode tells
its time constant by its pace, or the stages of steps do (II, IV.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy.integrate import BDF, Radau

from hybridctl.base.checks import Array
from hybridctl.base.errors import IntegrationError, StepSizeError
from hybridctl.hybrid.implicit import ImplicitStepper
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.model import ModeModel, Pace
from hybridctl.hybrid.projection import StepEnds, project_step_end
from hybridctl.hybrid.series import DEGREE, TO_SERIES
from hybridctl.hybrid.step import (
    CompiledFormula,
    DrivenMode,
    ExplicitFormula,
    Formula,
    Step,
    failure,
)
from hybridctl.hybrid.tableau import DOP853_TABLEAU, RK23_TABLEAU, RK45_TABLEAU, Tableau
from hybridctl.hybrid.tolerances import INPUT_RECORD_RTOL, MIN_RTOL, MIN_STEP_SPACINGS

Method: TypeAlias = Tableau | type[Radau] | type[BDF]
METHODS: dict[str, Method] = {
    "DOP853": DOP853_TABLEAU,
    "RK45": RK45_TABLEAU,
    "RK23": RK23_TABLEAU,
    "Radau": Radau,
    "BDF": BDF,
}

SAFETY, SHRINK, GROW = 0.9, 0.2, 10.0  # of the next step, its least and its largest factor
_IN_A_ROW = 5  # steps that the method does not suit, after which another one goes on
_STABLE = 4.5  # times the fastest decay: where the error of longer explicit steps grows, nearly
_STIFF = 2.0  # times the same: stability may keep steps this short, where it is off by two
_SMOOTH = 20.0  # times the same: where accuracy lets steps be this long, one has shown enough
_LIMITED = 5.0  # times the decay that a step has seen: stability ends at 6.1
_RELAXED = 1.0  # times an implicit step: with a decay as slow as this explicit ones are longer
_AT_ONCE = 5.0  # times the fastest decay: with a first step this long, an implicit method begins
_NEARLY = 0.99  # of the longest step allowed: one this long is limited by that


@dataclass(frozen=True)
class Integrator:
    """A method and its settings.

    rtol, atol: of each step, atol + rtol |x| for every coordinate. max_step: s. first_step: what it
    tries first, in s; None leaves that to the method.
    """

    method: Method
    rtol: float
    atol: float
    max_step: float
    first_step: float | None = None

    def steps(
        self, mode: ModeModel, law: InputLaw, t: float, x: Array, t_end: float
    ) -> Iterator[Step]:
        """Accepted steps from (t, x) until t_end, before or after t. Raises what `Flow` raises."""
        return Flow(self, DrivenMode(mode, law), t, x, t_end).steps()


class Flow:
    """The flow of a motion from (t, x) until t_end, step by step.

    first_step: what is tried first where the integrator does not say, such as the length of the
    last step in the same mode, s.

    Raises `SystemDefinitionError` if the field has the wrong shape, `IntegrationError` if it is
    not finite or the steps collapse.
    """

    def __init__(
        self,
        integrator: Integrator,
        motion: DrivenMode,
        t: float,
        x: Array,
        t_end: float,
        first_step: float | None = None,
    ) -> None:
        self._settings, self._motion, self._t_end, self.start = integrator, motion, t_end, t
        self._pace = self._paced(t, x)
        self._method = integrator.method
        self._stepper = self._started(t, x, first_step or integrator.first_step)
        self._unsuited, self._last, self._seen = 0, 0.0, math.inf
        explicit = isinstance(integrator.method, Tableau)
        if explicit and self._stepper.length > _AT_ONCE * self._pace.relaxation:
            self._change_method(t, x)

    @property
    def length(self) -> float:
        """What the next step would try, s."""
        return self._stepper.length

    @property
    def limit(self) -> str:
        """How long the last step was, and what kept it from being longer."""
        last, pace = self._last, self._pace.longest_step
        if last >= _NEARLY * min(self._settings.max_step, pace):
            why = "max_step" if self._settings.max_step <= pace else "the pace of the mode"
        else:
            why = f"rtol = {self._settings.rtol:.3g}, atol = {self._settings.atol:.3g}"
            if isinstance(self._method, Tableau):
                why += '; if the system is stiff, method="Radau" takes longer steps'
        return f"{last:.3g} s long, limited by {why}"

    def steps(self) -> Iterator[Step]:
        """Accepted steps until t_end; the caller stops early at an event.

        One on which eight samples do not resolve the input, as where the field does not feel it, is
        taken again once, shorter.
        """
        while True:
            longest = min(self._settings.max_step, self._pace.longest_step)
            if isinstance(self._method, Tableau):
                longest = min(longest, _STABLE * self._pace.relaxation)
            step = self._stepper.advance(longest)
            missed = self._input_error(step)
            if missed > 1.0:
                length = max(SHRINK, SAFETY * missed ** (-1.0 / DEGREE)) * (step.end - step.start)
                self._stepper = self._started(step.start, step.states[0], abs(length))
                step = self._stepper.advance(min(longest, abs(length)))
            self._last = abs(step.end - step.start)
            yield step
            # An event ends the step before its end. Only a state that the flow goes on from must
            # obey the constraint: beyond the event the mode may have none.
            self._put_back(step)
            if step.end == self._t_end:
                return
            self._go_on(step)

    def ended(self, step: Step, t: float) -> Step:
        """The step just taken, ended at t within it.

        It is taken again if that costs little; else its polynomial is cut off there, so that its
        record knows nothing of inputs beyond t.
        """
        ended = self._stepper.ended(step, t)
        return self._motion.cut(step, t) if ended is step else ended

    def guard(self, step: Step, i: int, t: float) -> float:
        """Guard i at t within the step just taken, as exactly as `ended` knows the state there."""
        ended = self._stepper.ended(step, t)
        if ended is step or ended.guards is None:
            return self._motion.guard(step, i, t)
        return float(ended.guards[-1, i])

    def _input_error(self, step: Step) -> float:
        """How well the record of a step knows its inputs: their last coefficients by tolerance.

        What the field feels of them is resolved by its own error already.
        """
        if self._motion.held is not None or not step.inputs.size:
            return 0.0
        tail = np.abs(TO_SERIES[-2:] @ step.inputs).sum(axis=0)
        size = np.abs(step.inputs).max(axis=0)
        return float((tail / (self._settings.atol + INPUT_RECORD_RTOL * size)).max())

    def _put_back(self, step: Step) -> None:
        """Project the end of a step onto what its mode holds; the next one begins there."""
        settings = self._settings
        ends = StepEnds(step.start, step.states[0], step.end, step.states[-1])
        x = project_step_end(self._motion.mode, ends, settings.rtol, settings.atol)
        if x is not None:
            step.states[-1] = x
            self._stepper.restart(x)

    def _go_on(self, step: Step) -> None:
        """Look at the pace after a step, and change the method where another one suits it."""
        x, length = step.states[-1], self._last
        self._pace = self._paced(step.end, self._motion.mode.space.normalize(x))
        if isinstance(self._stepper, ExplicitStepper):
            self._seen = self._stepper.decay
        evidence = self._evidence(length)
        self._unsuited = self._unsuited + evidence if evidence else 0
        if self._unsuited >= _IN_A_ROW:
            self._change_method(step.end, x)

    def _evidence(self, length: float) -> int:
        """How strongly a step of this length speaks against the present method, counted in steps.

        A decay limits it if it is explicit, or does not limit it if it is implicit: that of the
        mode's pace, or the one that the last explicit step has seen. One step counts as all where
        accuracy lets the next be far longer than a known decay.
        """
        relaxation = self._pace.relaxation
        if not isinstance(self._settings.method, Tableau):
            return 0
        if not isinstance(self._stepper, ExplicitStepper):
            return int(min(relaxation, self._seen) > _RELAXED * length)
        if self._stepper.length > _SMOOTH * relaxation:
            return _IN_A_ROW
        return int(length > _STIFF * relaxation or length > _LIMITED * self._seen)

    def _change_method(self, t: float, x: Array) -> None:
        chosen = self._settings.method
        self._method = Radau if self._method is chosen else chosen
        self._unsuited = 0
        self._stepper = self._started(t, x, None)

    def _started(
        self, t: float, x: Array, first: float | None
    ) -> ExplicitStepper | ImplicitStepper:
        settings, method = self._settings, self._method
        rtol = max(settings.rtol, MIN_RTOL)
        if isinstance(method, Tableau):
            formula = self._formula(method, rtol)
            formula.start(t, x)
            if first is None:
                rate, given, tolerances = self._motion.rate, formula.rate, (rtol, settings.atol)
                ahead = self._t_end, tolerances, formula.exponent
                first = float(first_length(rate, given, t, x, *ahead))
            return ExplicitStepper(formula, self._motion.mode, self._t_end, first)
        self._motion.checked_rate(t, x)
        return ImplicitStepper(method, self._motion, t, x, self._t_end, rtol, settings.atol, first)

    def _formula(self, tableau: Tableau, rtol: float) -> Formula:
        motion, atol = self._motion, self._settings.atol
        law = motion.whole_law if tableau is DOP853_TABLEAU else None
        if law is None:
            return ExplicitFormula(tableau, motion, rtol, atol)
        return CompiledFormula(motion, law, rtol, atol)

    def _paced(self, t: float, x: Array) -> Pace:
        mode = self._motion.mode
        if mode.steady_pace is not None:
            return mode.steady_pace
        return mode.pace_at(self._motion.known(t, x) or mode.calc(t, x, self._motion.law(t, x)))


class ExplicitStepper:
    """Steps of a formula with their lengths controlled by its error.

    length: what the next step will try, s. decay: the fastest that the last one has seen, s.
    """

    decay = math.inf

    def __init__(self, formula: Formula, mode: ModeModel, t_end: float, length: float) -> None:
        self._formula, self._mode, self._t_end, self.length = formula, mode, t_end, length

    def advance(self, longest: float) -> Step:
        """One accepted step, no longer than `longest`; `IntegrationError` where there is none."""
        formula, exponent, t_end = self._formula, self._formula.exponent, self._t_end
        t, tried = formula.time, self.length
        sign, shortest = (1.0 if t_end > t else -1.0), MIN_STEP_SPACINGS * math.ulp(t)
        h, most, end, error = min(max(tried, shortest), longest), GROW, t, 0.0
        while True:
            if h < shortest:
                if end != t:  # there was an attempt
                    formula.explain(end)
                raise _too_short(h, error, longest < shortest, self._mode, t, formula.state)
            end = t + sign * h
            if sign * (end - t_end) > 0.0:
                end = t_end
            error = formula.attempt(end)
            if error < 1.0:
                break
            h, most = abs(end - t) * max(SHRINK, SAFETY * error**exponent), 1.0
        grown = abs(end - t) * (min(most, SAFETY * error**exponent) if error > 0.0 else most)
        self.length = max(grown, tried) if end == t_end and most > 1.0 else grown
        self.decay = formula.decay
        return formula.accept()

    def restart(self, x: Array) -> None:
        """Go on from x instead."""
        self._formula.start(self._formula.time, x)

    def ended(self, step: Step, t: float) -> Step:
        """The step, ended at t within it, if that costs little; else as it is."""
        return self._formula.ended(step, t)


def _too_short(
    h: float, error: float, paced: bool, mode: ModeModel, t: float, x: Array
) -> IntegrationError:
    """The error of a flow whose steps have become too short."""
    if not math.isfinite(error):
        return failure("the vector field is not finite ahead", mode, t, x)
    limit = "the pace of the mode" if paced else "their error"
    what = f"steps of {h:.3g} s, limited by {limit}, no longer advance the time"
    return failure(what, mode, t, x, StepSizeError)


def first_length(
    rate: Callable[..., Array],
    given: Array,
    t: Array | float,
    x: Array,
    t_end: float,
    tolerances: tuple[float, float],
    exponent: float,
) -> Array:
    """The length of a first step from (t, x) towards t_end, for one point or m of them in rows.

    By the size of the rate, `given` there, and of its change, HNW I, II.4; what is not finite ahead
    does not count. tolerances: rtol and atol. exponent: of the error of the formula.
    """
    rtol, atol = tolerances
    scale = (atol + rtol * np.abs(x)) * math.sqrt(x.shape[-1])
    with np.errstate(all="ignore"):
        size, speed = _norms(x / scale), _norms(given / scale)
        probe = np.where((size >= 1e-5) & (speed >= 1e-5), 0.01 * size / speed, 1e-6)
        probe = np.minimum(probe, np.abs(t_end - t))
        ahead = np.copysign(probe, t_end - t)
        later = rate(t + ahead, x + ahead[..., None] * given)
        change = _norms((later - given) / scale) / probe
        still = (speed <= 1e-15) & (change <= 1e-15)
        longest = (0.01 / np.fmax(speed, change)) ** -exponent
        longest = np.where(still, np.maximum(1e-6, 1e-3 * probe), longest)
    return np.asarray(np.fmin(100.0 * probe, longest))


def _norms(rows: Array) -> Array:
    return np.asarray(np.sqrt((rows * rows).sum(axis=-1)))
