r"""Flow along one mode: accepted steps, by the method that suits them.

Explicit steps are as long as the tolerance allows (see `explicit`). Where a decay of the field is
faster than the steps that accuracy asks for, an implicit method goes on (see `radau`), until it
no longer is. The time constant of the decay is part of the mode's pace, or the stages of explicit
steps show it (Hairer, Wanner: Solving Ordinary Differential Equations II, IV.2).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy.integrate import BDF

from hybridctl.base.checks import Array
from hybridctl.hybrid.bdf import BdfStepper
from hybridctl.hybrid.explicit import (
    SAFETY,
    SHRINK,
    CompiledKernel,
    ExplicitStepper,
    Kernel,
    StageKernel,
    choose_first_length,
)
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.model import ModeModel, Pace
from hybridctl.hybrid.projection import StepEnds, project_step_end
from hybridctl.hybrid.radau import ERROR_EXPONENT, RadauStepper
from hybridctl.hybrid.series import DEGREE, TO_SERIES
from hybridctl.hybrid.stage_equations import FORMULA
from hybridctl.hybrid.step import DrivenMode, Step
from hybridctl.hybrid.tableau import DOP853_TABLEAU, RK23_TABLEAU, RK45_TABLEAU, Radau, Tableau
from hybridctl.hybrid.tolerances import INPUT_RECORD_RTOL, MIN_RTOL

Method: TypeAlias = Tableau | Radau | type[BDF]
METHODS: dict[str, Method] = {
    "DOP853": DOP853_TABLEAU,
    "RK45": RK45_TABLEAU,
    "RK23": RK23_TABLEAU,
    "Radau": FORMULA,
    "BDF": BDF,
}
"""Methods by the names that `simulate` takes."""

# Lengths of steps relative to the time constant of the fastest decay. That of the mode's pace is
# exact; one that a step has seen is a lower bound of the rate.
_LONGEST_EXPLICIT = 4.5
"""Greatest length of an explicit step: beyond it, its error grows as stability ends, at 6.1."""
_STIFF_LENGTH = 2.0
"""Length from which on a step may be limited by stability: the error may keep explicit steps at
half of what stability allows."""
_STIFF_LENGTH_SEEN = 5.0
"""The same relative to a decay that the step has seen."""
_CLEARLY_STIFF_LENGTH = 20.0
"""Length of the next step by its error with which one step is evidence enough."""
_STIFF_FIRST_LENGTH = 100.0
"""Length of a first explicit step with which the flow begins by the implicit method.

That of a contact which begins to slide is above 1e4. Below, an explicit step finds out: where a
velocity has yet to turn, accuracy asks for steps as short as stability does, and an implicit step
costs ten of them. Drops of solo12 took the same time with 100 as with 1e4."""
_NOT_STIFF_RATIO = 1.0
"""Time constant of the fastest decay, relative to an implicit step, above which explicit steps
would be as long."""
_STEPS_TO_CHANGE = 5
"""Number of steps in a row, which the method does not suit, after which the other one goes on."""
_NEARLY_LONGEST = 0.99
"""Length of a step, relative to the longest allowed, from which on that limits it, for messages."""


@dataclass(frozen=True)
class Integrator:
    """A method and its settings.

    Attributes:
        method: One of the values of `METHODS`.
        rtol: Relative tolerance of each coordinate x: a step's error is at most atol + rtol |x|.
            One below 100 spacings of floats, 2e-14, counts as that.
        atol: Absolute tolerance, in the unit of each coordinate.
        max_step: Greatest length of a step, s.
        first_step: Length of the first attempt, s. None leaves it to the method.
    """

    method: Method
    rtol: float
    atol: float
    max_step: float
    first_step: float | None = None

    def steps(
        self, mode: ModeModel, law: InputLaw, t: float, x: Array, t_end: float
    ) -> Iterator[Step]:
        """Return accepted steps of a mode under an input law.

        Args:
            mode: The mode.
            law: The input law.
            t: Time at the start, s.
            x: State (nx,) there.
            t_end: Time at the end, s, before or after the start.

        Raises:
            SystemDefinitionError: The field is no array of numbers, or of the wrong shape.
            IntegrationError: The field is not finite, or steps collapse.
        """
        return Flow(self, DrivenMode(mode, law), t, x, t_end).steps()


class Flow:
    """The flow of a mode under its law, step by step.

    The caller takes accepted steps from `steps`. Between two of them it may ask for guards within
    the last one by `evaluate_guard`, and for the step up to a time in it by `end_step_at`.

    Args:
        integrator: The method and its settings.
        motion: The mode under its law.
        t: Time at the start, s.
        x: State (nx,) there.
        t_end: Time at the end, s, before or after the start.
        first_step: Length of the first attempt, s, such as that of the last step in the same mode.
            If None, the integrator's, or else the method's own.

    Attributes:
        start: Time at the start, s.

    Raises:
        SystemDefinitionError: The field is no array of numbers, or of the wrong shape.
        IntegrationError: The field is not finite at the start.
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
        self._pace = self._find_pace(t, x)
        self._method = integrator.method  # that of the next step
        self._stepper = self._make_stepper(t, x, first_step or integrator.first_step)
        self._unsuited_steps = 0  # in a row, which the method has not suited
        self._last_length = 0.0  # of the last step, s
        self._decay_seen = math.inf  # by the last explicit step, s
        explicit = isinstance(integrator.method, Tableau)
        if explicit and self._stepper.length > _STIFF_FIRST_LENGTH * self._pace.relaxation:
            self._change_method(t, x)

    @property
    def length(self) -> float:
        """Length that the next step would try, s."""
        return self._stepper.length

    @property
    def limit(self) -> str:
        """How long the last step was, and what kept it from being longer, in words."""
        last, pace = self._last_length, self._pace.longest_step
        if last >= _NEARLY_LONGEST * min(self._settings.max_step, pace):
            why = "max_step" if self._settings.max_step <= pace else "the pace of the mode"
        else:
            why = f"rtol = {self._settings.rtol:.3g}, atol = {self._settings.atol:.3g}"
            if isinstance(self._method, Tableau):
                why += '; if the system is stiff, method="Radau" takes longer steps'
        return f"{last:.3g} s long, limited by {why}"

    def steps(self) -> Iterator[Step]:
        """Yield accepted steps until the end of the flow; the caller stops early at an event.

        Raises:
            SystemDefinitionError: The field is no array of numbers, or of the wrong shape.
            IntegrationError: The field is not finite, or steps collapse.
        """
        while True:
            longest = min(self._settings.max_step, self._pace.longest_step)
            if isinstance(self._method, Tableau):
                longest = min(longest, _LONGEST_EXPLICIT * self._pace.relaxation)
            step = self._stepper.advance(longest)
            missed = self._input_error(step)
            if missed > 1.0:
                # Eight samples do not resolve the input, as where the field does not feel it: the
                # step is taken again once, shorter.
                length = max(SHRINK, SAFETY * missed ** (-1.0 / DEGREE)) * (step.end - step.start)
                self._stepper = self._make_stepper(step.start, step.states[0], abs(length))
                step = self._stepper.advance(min(longest, abs(length)))
            self._last_length = abs(step.end - step.start)
            yield step
            # An event ends the step before its end. Only a state that the flow goes on from must
            # obey the constraint: beyond the event the mode may have none.
            self._project_end(step)
            if step.end == self._t_end:
                return
            self._prepare_next_step(step)

    def end_step_at(self, step: Step, t: float) -> Step:
        """Return the step just taken, ended at a time within it.

        It is taken again if that costs little. Else its polynomial is cut off there, so that its
        record has no inputs beyond that time.

        Args:
            step: The step.
            t: Time in s within the step.
        """
        ended = self._stepper.end_step_at(step, t)
        return self._motion.cut_step(step, t) if ended is step else ended

    def evaluate_guard(self, step: Step, i: int, t: float) -> float:
        """Return a guard within the step just taken, at the state that `end_step_at` ends in.

        Args:
            step: The step.
            i: Index of the guard.
            t: Time in s within the step.

        Raises:
            SystemDefinitionError: The guard is no number.
        """
        ended = self._stepper.end_step_at(step, t)
        if ended is step or ended.guards is None:
            return self._motion.evaluate_guard(step, i, t)
        return float(ended.guards[-1, i])

    def _input_error(self, step: Step) -> float:
        """Return the last coefficients of the inputs' series on a step, relative to a tolerance.

        The tolerance is rough: what the field feels of inputs is resolved by its own error.
        """
        if self._motion.held_inputs is not None or not step.inputs.size:
            return 0.0
        tail = np.abs(TO_SERIES[-2:] @ step.inputs).sum(axis=0)
        size = np.abs(step.inputs).max(axis=0)
        return float((tail / (self._settings.atol + INPUT_RECORD_RTOL * size)).max())

    def _project_end(self, step: Step) -> None:
        """Project the end of a step onto the mode's constraint; the next one begins there."""
        settings = self._settings
        ends = StepEnds(step.start, step.states[0], step.end, step.states[-1])
        x = project_step_end(self._motion.mode, ends, settings.rtol, settings.atol)
        if x is not None:
            step.states[-1] = x
            self._stepper.restart(x)

    def _prepare_next_step(self, step: Step) -> None:
        """Update the pace after a step, and change the method where the other one suits it."""
        x, length = step.states[-1], self._last_length
        self._pace = self._find_pace(step.end, self._motion.mode.space.normalize(x))
        if isinstance(self._stepper, ExplicitStepper):
            self._decay_seen = self._stepper.fastest_decay
        evidence = self._count_unsuited(length)
        self._unsuited_steps = self._unsuited_steps + evidence if evidence else 0
        if self._unsuited_steps >= _STEPS_TO_CHANGE:
            self._change_method(step.end, x)

    def _count_unsuited(self, length: float) -> int:
        """Return how strongly a step speaks against the present method, counted in steps.

        A decay speaks against an explicit method where it limits its steps, and against an implicit
        one where it would not limit explicit steps. A method that was chosen as implicit stays.

        Args:
            length: Length of the step, s.
        """
        relaxation = self._pace.relaxation
        if not isinstance(self._settings.method, Tableau):
            return 0
        if not isinstance(self._stepper, ExplicitStepper):
            return int(min(relaxation, self._decay_seen) > _NOT_STIFF_RATIO * length)
        if self._stepper.length > _CLEARLY_STIFF_LENGTH * relaxation:
            return _STEPS_TO_CHANGE  # accuracy lets the next step be far longer than stability
        is_stiff = length > _STIFF_LENGTH * relaxation
        return int(is_stiff or length > _STIFF_LENGTH_SEEN * self._decay_seen)

    def _change_method(self, t: float, x: Array) -> None:
        """Go on from a point by Radau, or by the explicit method that was chosen."""
        chosen = self._settings.method
        self._method = FORMULA if self._method is chosen else chosen
        self._unsuited_steps = 0
        self._stepper = self._make_stepper(t, x, None)

    def _make_stepper(
        self, t: float, x: Array, first: float | None
    ) -> ExplicitStepper | RadauStepper | BdfStepper:
        """Return a stepper of the present method.

        Args:
            t: Time at its start, s.
            x: State (nx,) there.
            first: Length of its first attempt, s. None leaves it to the method.
        """
        settings, method, motion = self._settings, self._method, self._motion
        rtol = max(settings.rtol, MIN_RTOL)
        if isinstance(method, Tableau):
            kernel = self._make_kernel(method, rtol)
            kernel.start(t, x)
            if first is None:
                first = self._choose_first_length(kernel.rate, t, x, kernel.exponent)
            return ExplicitStepper(kernel, motion.mode, self._t_end, first)
        rate = motion.compute_checked_rate(t, x)
        if isinstance(method, Radau):
            if first is None:
                first = self._choose_first_length(rate, t, x, ERROR_EXPONENT)
            return RadauStepper(
                motion, t, x, self._t_end, rtol, settings.atol, rate=rate, length=first
            )
        return BdfStepper(motion, t, x, self._t_end, rtol, settings.atol, first)

    def _choose_first_length(self, rate: Array, t: float, x: Array, exponent: float) -> float:
        """Return the length of a first step, s, see `choose_first_length`."""
        tolerances = max(self._settings.rtol, MIN_RTOL), self._settings.atol
        ahead = self._t_end, tolerances, exponent
        return float(choose_first_length(self._motion.rate, rate, t, x, *ahead))

    def _make_kernel(self, tableau: Tableau, rtol: float) -> Kernel:
        """Return the kernel of a formula; compiled steps are those of DOP853."""
        motion, atol = self._motion, self._settings.atol
        law = motion.compiled_law if tableau is DOP853_TABLEAU else None
        if law is None:
            return StageKernel(tableau, motion, rtol, atol)
        return CompiledKernel(motion, law, rtol, atol)

    def _find_pace(self, t: float, x: Array) -> Pace:
        """Return the mode's limits of steps from a point on."""
        mode, motion = self._motion.mode, self._motion
        if mode.steady_pace is not None:
            return mode.steady_pace
        return (motion.find_known_point(t, x) or mode.calc(t, x, motion.law(t, x))).pace
