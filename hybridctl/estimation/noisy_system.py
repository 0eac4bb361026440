"""A hybrid system with noise and integrator settings: flows, events and extensions of arcs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hybridctl.base.checks import Array, check_vector
from hybridctl.base.errors import (
    ConstraintViolatedError,
    GuardViolatedError,
    IntegrationError,
    SimulationError,
)
from hybridctl.estimation.deadline import NO_DEADLINE, NO_TIME_LEFT, Deadline, DeadlineError, Piece
from hybridctl.estimation.estimate import Estimate, project_onto_constraints
from hybridctl.estimation.noise import EXACT_GUARDS, EventNoise, GuardNoise, Noise
from hybridctl.estimation.salted_jump import EventPoints, Strategy
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.jump import execute_event
from hybridctl.hybrid.laws import HeldInput, InputLaw, make_zero_input
from hybridctl.hybrid.mapped import ModeWithoutGuards, PointWithoutGuards, WithoutGuards
from hybridctl.hybrid.mode import Edge, Outgoing, Reset
from hybridctl.hybrid.model import (
    FREE_PACE,
    Diffusion,
    FieldJacobian,
    ModeKey,
    ModeModel,
    Pace,
    Point,
    PointProperty,
    StepRequest,
)
from hybridctl.hybrid.simulate import SimulationOptions, computed_starts, simulate
from hybridctl.hybrid.system import HybridSystem, MappedSystem
from hybridctl.hybrid.trajectory import Event, HybridTrajectory
from hybridctl.hybrid.zeno import ZenoPolicy

GUARD_TOLERANCE = 1e-8
"""How far below zero a guard may be inside its mode, relative to its scale, as in `simulate`."""
_MAX_UNLIKELY_EVENTS = 4
"""Events between two values after which a less likely hypothesis is given up. A choice: where it
rattles its prediction costs as much as all others."""
_MAX_COMPILED_DIMENSION = 8
"""Largest dimension at which compiled noise of a constrained mode is quicker than collocation.

For a block (6) it takes 40 us against 250; for a cube (12) it takes longer."""
_MAX_EXTENSION_STEPS = 100
"""Integrator steps past the guards of a mode: see `NoisySystem.flow_past_guards`."""
_REMEMBERED_POINTS = 64
"""Points that are kept, see `RecentPoints`. A choice: more than those of all hypotheses of a value,
of which a cube had up to 22."""


class RecentPoints:
    """The last points at which modes were evaluated, so that each quantity is computed once.

    The guards of one estimate are asked for by several steps of a correction, and by each order of
    events that leaves it. What a point has computed, it keeps.
    """

    def __init__(self) -> None:
        # The mode is kept with its point, so that no other object has its number.
        self._known: dict[tuple[int, float, bytes, bytes], tuple[ModeModel, Point]] = {}

    def __reduce__(self) -> tuple[type[RecentPoints], tuple[()]]:
        return RecentPoints, ()  # other processes compute their own points

    def evaluate(self, mode: ModeModel, t: float, x: Array, u: Array) -> Point:
        """Return the point of a mode, the one that is known if there is one.

        Args:
            mode: The mode.
            t: Time, s.
            x: State (nx,), which does not change in place.
            u: Input (nu,).
        """
        key = id(mode), t, x.tobytes(), u.tobytes()
        if key in self._known:
            return self._known[key][1]
        # A law may write its next input into the same array.
        point = mode.calc(t, x, u.copy() if u.flags.writeable else u)
        if len(self._known) >= _REMEMBERED_POINTS:
            del self._known[next(iter(self._known))]
        self._known[key] = mode, point
        return point


@dataclass(frozen=True, eq=False)
class NoisySystem:
    """A hybrid system with the noise of its flow, its resets and its guards.

    Attributes:
        system: The hybrid system.
        process_noise: Noise of the flow; None for no noise.
        reset_noise: Noise that is added after a reset; None for no noise.
        guard_noise: Variances of the guards' offsets.
        strategy: How covariances pass events, see `salted_jump`.
        rewind: Longest time in s by which an event is taken to be late or overdue, see
            `mode_consistency`.
        rtol: Relative tolerance of the integrator.
        atol: Absolute tolerance of the integrator.
        max_events: Largest number of events of one prediction, see `simulate`.
        zeno_horizon: Time in s within which events accumulate, see `simulate`.
        deadline: Deadline of the present sample, by which work is cut.
        is_optional: Whether predictions are given up where the mode would have to be frozen,
            because their user drops them then.
        stepped: Function that is called with the time in s after each step of the integrator, or
            None.
        points: The last points that were evaluated, which systems made of this one share.
    """

    system: HybridSystem
    process_noise: Noise | None
    reset_noise: Noise | EventNoise | None = None
    guard_noise: GuardNoise = EXACT_GUARDS
    strategy: Strategy = "saltation"
    rewind: float = 0.05
    rtol: float = 1e-9
    atol: float = 1e-9
    max_events: int = 1000
    zeno_horizon: float = 1e-3
    deadline: Deadline = NO_DEADLINE
    is_optional: bool = False
    stepped: Callable[[float], None] | None = None
    points: RecentPoints = field(default_factory=RecentPoints, repr=False)

    def late(self) -> bool:
        """Return whether the deadline of the sample is exceeded: no further event is followed."""
        return self.deadline.is_exceeded()

    @property
    def closing_work(self) -> tuple[Piece, ...]:
        """The work by which a prediction is ended without time; none for an optional one."""
        return () if self.is_optional else ("linear step", "linear event")

    def evaluate_at(self, e: Estimate, law: InputLaw) -> Point:
        """Return the point of the estimate's mode at the mean.

        Args:
            e: The estimate.
            law: Input law, which is evaluated there.
        """
        return self.points.evaluate(self.system.mode(e.mode), e.time, e.mean, law(e.time, e.mean))

    def evaluate_event(self, event: Event) -> EventPoints:
        """Return the points before and after an event.

        Args:
            event: The event.
        """
        return EventPoints.of(self.system, event, self.points.evaluate)

    def is_within_step_limit(self, mode: ModeModel, ahead: StepRequest, u: Array) -> bool:
        """Return whether a step is no longer than the step-size limit of the mode.

        Args:
            mode: The mode.
            ahead: The step request.
            u: The input (nu,).
        """
        pace = mode.steady_pace or self.points.evaluate(mode, ahead.t, ahead.x, u).pace
        return abs(ahead.h) <= min(pace.longest_step, pace.relaxation)

    def is_mean_moved_by(self, event: Event) -> bool:
        """Return whether the mean after an event is not the state after it, as far as is known.

        The jump of several guards is piecewise linear, and so has a mean that is not zero. Other
        events may move the mean, too.

        Args:
            event: The event.
        """
        several = len(event.guards) > 1 and event.accumulation is None
        return several and self.strategy == "saltation"

    def guard_tolerances(self, key: ModeKey) -> Array:
        """Return how far below zero the guards (n,) of a mode may be inside it.

        Args:
            key: Key of the mode.
        """
        return GUARD_TOLERANCE * self.system.outgoing(key).guards.sizes

    def without_guards(self, key: ModeKey, names: Sequence[str]) -> HybridSystem:
        """Return the system with one mode that lacks some of its guards.

        Args:
            key: Key of the mode.
            names: The guards that are left out.
        """
        mode = self.system.mode(key)
        kept = [i for i, name in enumerate(mode.guard_names) if name not in names]
        return MappedSystem(self.system, lambda k: WithoutGuards(kept) if k == key else None)

    def flow_past_guards(
        self, key: ModeKey, x: Array, start: float, end: float, law: InputLaw
    ) -> Arc:
        """Return the extension of an arc: the flow of one mode past its guards.

        Past the standstill of a sliding contact, friction changes its sign at every step of the
        integrator. The number of steps is limited for this case.

        Args:
            key: Key of the mode.
            x: State (nx,) at the start.
            start: Time of the start, s.
            end: Time of the end, s.
            law: Input law.

        Raises:
            IntegrationError: More than 100 steps are needed.
        """
        return self._flow(self.unguarded_system, key, x, (start, end), law)

    def flow_to_first_guard(
        self, key: ModeKey, x: Array, start: float, end: float, law: InputLaw, beside: Sequence[str]
    ) -> Array:
        """Return the state (nx,) where the first guard of a mode fires, or at the end.

        Args:
            key: Key of the mode.
            x: State (nx,) at the start.
            start: Time of the start, s.
            end: Time of the end, s.
            law: Input law.
            beside: Guards that are left out.

        Raises:
            IntegrationError: More than 100 steps are needed.
        """
        mode = self.build_fixed_mode(key, beside)
        stay = Edge(Reset.identity(mode.space.ndx), key)
        system = HybridSystem(
            lambda key: mode, lambda key: Outgoing(mode.guard_set, lambda fired: stay)
        )
        span, limit = (start, end), _limit_steps(key)
        run = self.simulate(system, key, x, span, law, progress=limit, terminal=lambda event: True)
        return run.final_state

    def build_fixed_mode(self, key: ModeKey, beside: Sequence[str]) -> ModeModel:
        """Return a mode without some of its guards, which does not select another by its forces.

        Args:
            key: Key of the mode.
            beside: Guards that are left out.
        """
        own = self.system.mode(key)
        kept = [i for i, name in enumerate(own.guard_names) if name not in beside]
        return _FixMode(kept).map_mode(own)

    def flow_backwards(
        self, key: ModeKey, x: Array, time: float, length: float, law: InputLaw
    ) -> tuple[ModeModel, Arc]:
        """Return the flow of one mode back in time, past its guards.

        Args:
            key: Key of the mode.
            x: State (nx,) at `time`.
            time: Time, s, from which the flow goes back.
            length: Length of the flow, s.
            law: Input law.

        Returns:
            The mode in reversed time, and its arc over times 0 to `length`, counted backwards.
        """
        mode = _ReverseTime([], time).map_mode(self.system.mode(key))
        system = HybridSystem(lambda key: mode, lambda key: Outgoing(mode.guard_set, _find_no_edge))
        return mode, self._flow(system, key, x, (0.0, length), lambda s, x: law(time - s, x))

    def fire_guards(
        self, key: ModeKey, guards: Sequence[str], t: float, x: Array, law: InputLaw
    ) -> Event:
        """Return the event of some guards at a state, whatever the values of the guards.

        A state beyond its guard may violate the constraints of the mode after the event. It is
        projected onto them.

        Args:
            key: Key of the mode before the event.
            guards: Names of the guards that fire.
            t: Time, s.
            x: State (nx,) before the event.
            law: Input law.

        Returns:
            The event. Its guards are those that take part.
        """
        u = law(t, x)
        after, made, took_part = execute_event(self.system, key, tuple(guards), t, x, u)
        state = project_onto_constraints(self.system.mode(after), made.state)
        rate = np.zeros_like(u)
        return Event(
            index=0,
            time=t,
            mode_before=key,
            mode_after=after,
            guards=took_part,
            state_before=x,
            state_after=state,
            input_before=u,
            input_after=u,
            input_rate=rate,
            impulses=made.impulses,
            report=made.report,
        )

    def law(self, key: ModeKey, given: ArrayLike | InputLaw | None) -> InputLaw:
        """Return the input of a mode as a function u(t, x).

        Args:
            key: Key of the mode.
            given: A constant (nu,), a function u(t, x), or None for zero.

        Raises:
            InputError: A constant does not have nu finite numbers.
        """
        if callable(given):
            return given
        nu = self.system.mode(key).nu
        return make_zero_input(nu) if given is None else HeldInput(check_vector("input", given, nu))

    def diffusion(self, mode: ModeModel, ahead: StepRequest, u: Array) -> Diffusion | None:
        """Return the noise that a compiled step of a mode can integrate beside the state.

        Args:
            mode: The mode.
            ahead: The step request.
            u: The held input (nu,).

        Returns:
            The noise. None if the mode takes no compiled steps, if its noise is not constant under
            a held input, or if the step exceeds the step-size limit of the mode, such as that of
            stiff friction. None too for a constrained mode that is so large that collocation takes
            less time.
        """
        large = mode.held is not None and mode.space.ndx > _MAX_COMPILED_DIMENSION
        if not mode.compiled_steps or large or not self.is_within_step_limit(mode, ahead, u):
            return None
        if self.process_noise is None:
            return Diffusion(np.zeros((mode.space.ndx,) * 2), np.zeros((mode.nu, mode.nu)))
        return self.process_noise.constant_diffusion(mode, ahead.t, ahead.x, u)

    @cached_property
    def with_few_events(self) -> NoisySystem:
        """The same for less likely hypotheses, which are given up where they rattle."""
        return replace(self, max_events=_MAX_UNLIKELY_EVENTS, is_optional=True)

    @cached_property
    def without_process_noise(self) -> NoisySystem:
        """The same without process noise, for times whose noise has been added already."""
        return replace(self, process_noise=None)

    @cached_property
    def signal_model(self) -> NoisySystem:
        """The same for events of contact signals, whose times do not depend on the state."""
        strategy: Strategy = "no_jump" if self.strategy == "no_jump" else "reset_jacobian"
        return replace(self, guard_noise=EXACT_GUARDS, strategy=strategy)

    @cached_property
    def unguarded_system(self) -> HybridSystem:
        """The system whose modes have no guards."""
        return MappedSystem(self.system, lambda key: WithoutGuards([]))

    @property
    def settings(self) -> dict[str, Any]:
        """Keywords of `simulate` and of batched simulations."""
        return {
            "rtol": self.rtol,
            "atol": self.atol,
            "max_events": self.max_events,
            "on_zeno": ZenoPolicy(horizon=self.zeno_horizon),
            "on_jam": "raise",
        }

    def simulate(
        self,
        system: HybridSystem,
        key: ModeKey,
        x: Array,
        span: tuple[float, float],
        law: InputLaw,
        *,
        first_step: float | None = None,
        progress: Callable[[float], None] | None = None,
        terminal: Callable[[Event], bool] | None = None,
        then: Sequence[Piece] = (),
    ) -> HybridTrajectory:
        """Return a simulation that starts from the mean of an estimate, which may have diverged.

        Args:
            system: This system or one derived from it.
            key: Key of the initial mode.
            x: Initial state (nx,).
            span: Times of start and end, s.
            law: Input law.
            first_step: First step of the integrator, s; None for its own choice.
            progress: Called with the time in s after each step; None for `stepped`.
            terminal: Returns whether an event ends the simulation; None for no event.
            then: Work that follows a simulation that the deadline has ended.

        Raises:
            SimulationError: The simulation cannot go on. A mean that violates the constraints or
                guards of its mode is one of these cases, no error of the user.
            DeadlineError: At a step of the integrator no time was left but for `then`.
        """
        report = progress or self.stepped
        if self.deadline is not NO_DEADLINE:
            report = self._end_when_late(report, then)
        try:
            with computed_starts():
                return simulate(
                    system, key, x, span, law, progress=report, terminal=terminal,
                    options=SimulationOptions(first_step=first_step), **self.settings,
                )  # fmt: skip
        except (ConstraintViolatedError, GuardViolatedError) as error:
            raise SimulationError(str(error)) from error

    def _end_when_late(
        self, report: Callable[[float], None] | None, then: Sequence[Piece]
    ) -> Callable[[float], None]:
        """Return a progress function that raises `DeadlineError` without time for further steps."""

        def report_in_time(t: float) -> None:
            if not self.deadline.has_time_for(*then):
                raise DeadlineError(f"{NO_TIME_LEFT} at t = {t:.9g} s")
            if report is not None:
                report(t)

        return report_in_time

    def _flow(
        self, system: HybridSystem, key: ModeKey, x: Array, span: tuple[float, float], law: InputLaw
    ) -> Arc:
        """Return the only arc of a simulation of a system without guards."""
        return self.simulate(system, key, x, span, law, progress=_limit_steps(key)).arcs[0]


def compute_guard_rates(point: Point) -> Array:
    """Return the rates dg/dt (n,) of the guards at constant input, in their unit per s.

    Args:
        point: A mode at a state and an input.
    """
    d = point.guard_jacobian
    return np.asarray(d.time + d.state @ point.field)


def find_falling_guards(model: NoisySystem, e: Estimate, law: InputLaw) -> list[str]:
    """Return the guards that fall and are at most one guard tolerance above zero at the mean.

    Args:
        model: The system and its noise.
        e: The estimate.
        law: Input law, which is evaluated at the mean.
    """
    point = model.evaluate_at(e, law)
    falling = point.guards <= model.guard_tolerances(e.mode)
    if not falling.any():
        return []
    falling &= compute_guard_rates(point) < 0.0
    return [name for name, falls in zip(point.mode.guard_names, falling, strict=True) if falls]


def find_input_guards(point: Point) -> NDArray[np.bool_]:
    """Return flags (n,) of the guards that depend on the input, such as contact forces.

    Args:
        point: A mode at a state and an input.
    """
    return np.asarray(point.guard_jacobian.input.any(axis=1))


def _limit_steps(key: ModeKey) -> Callable[[float], None]:
    """Return a progress function that raises `IntegrationError` after `_MAX_EXTENSION_STEPS`."""
    steps = count(1)

    def tick(t: float) -> None:
        if next(steps) > _MAX_EXTENSION_STEPS:
            raise IntegrationError(
                f"mode {key!r} past its guards takes more than {_MAX_EXTENSION_STEPS} steps by "
                f"t = {t:.9g} s"
            )

    return tick


def _find_no_edge(fired: tuple[str, ...]) -> None:
    """Return None: a mode in reversed time has no guards, and so no edges."""
    return None


class _FixedPoint(PointWithoutGuards):
    """A point of a mode that does not select another one by its forces."""

    @PointProperty
    def selected_mode(self) -> ModeKey:
        return self.mode.key


class _FixedMode(ModeWithoutGuards):
    """A mode that does not select another one by its forces."""

    point = _FixedPoint

    def __init__(self, inner: ModeModel, change: WithoutGuards) -> None:
        super().__init__(inner, change)
        self.selects = False


class _FixMode(WithoutGuards):
    """The change to a mode without some guards that does not select another one."""

    mode_class = _FixedMode


class _ReversedPoint(PointWithoutGuards):
    """A point of a mode in reversed time."""

    @PointProperty
    def field(self) -> Array:
        return -np.asarray(self.inner.field)

    @PointProperty
    def field_jacobian(self) -> FieldJacobian:
        d = self.inner.field_jacobian
        return FieldJacobian(-d.state, -d.input)

    @PointProperty
    def free_input(self) -> Array:
        return -self.inner.free_input

    @PointProperty
    def pace(self) -> Pace:
        return FREE_PACE


class _ReversedMode(ModeWithoutGuards):
    """A mode in reversed time, without guards."""

    point = _ReversedPoint

    def __init__(self, inner: ModeModel, change: WithoutGuards) -> None:
        super().__init__(inner, change)
        # Step-size limits are for stiff decay, as of friction: it grows backwards in time.
        self.steady_pace = FREE_PACE

    @property
    def compiled_steps(self) -> None:
        """None: the compiled steps of the inner mode go forwards."""
        return None


@dataclass(frozen=True, eq=False)
class _ReverseTime(WithoutGuards):
    """The change to reversed time, without guards.

    Attributes:
        end: Time in s at which the reversed time is zero.
    """

    end: float
    mode_class = _ReversedMode

    def to_inner(self, t: float, x: Array, u: Array) -> tuple[float, Array, Array]:
        return self.end - t, x, u
