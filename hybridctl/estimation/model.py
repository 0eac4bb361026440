"""What a filter knows of the system: its flow, its noise, and the ways to leave or undo a mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from hybridctl.estimation.estimate import Estimate, constrained
from hybridctl.estimation.jumps import Strategy
from hybridctl.estimation.noise import EXACT_GUARDS, EventNoise, GuardNoise, Noise
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.jump import execute_event
from hybridctl.hybrid.laws import HeldInput, InputLaw, make_zero_input
from hybridctl.hybrid.mapped import MappedPoint, ModeWithoutGuards, WithoutGuards
from hybridctl.hybrid.mode import Edge, Outgoing, Reset
from hybridctl.hybrid.model import (
    FREE_PACE,
    Diffusion,
    FieldJacobian,
    ModeKey,
    ModeModel,
    Pace,
    Point,
    StepRequest,
)
from hybridctl.hybrid.simulate import SimulationOptions, computed_starts, simulate
from hybridctl.hybrid.system import HybridSystem, MappedSystem
from hybridctl.hybrid.trajectory import Event, HybridTrajectory
from hybridctl.hybrid.zeno import ZenoPolicy

GUARD_TOLERANCE = 1e-8  # of its scale: how far below zero a guard may be, as in `simulate`
_FEW = 4  # events of a hypothesis between two values
_SMALL = 8  # dimensions: of a block (6) compiled noise takes 40 us, points 250; of a cube (12) more
_STEPS = 100  # of the integrator past the guards of a mode


def _never() -> bool:
    return False


@dataclass(frozen=True, eq=False)
class Model:
    """A hybrid system with the noise on its flow, its resets and its guards.

    strategy: how covariances pass events, see `jumps`. rtol, atol: of the integrator. rewind: the
    longest time in s by which an event is taken to be late or overdue, see `reconcile`. max_events
    and zeno_horizon: of one prediction, see `simulate`. late: whether there is no time left for its
    further events. stepped: called with the time after each step of the integrator.
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
    late: Callable[[], bool] = _never
    stepped: Callable[[float], None] | None = None

    def at(self, e: Estimate, law: InputLaw) -> Point:
        """The mode of an estimate at its mean."""
        return self.system.mode(e.mode).calc(e.time, e.mean, law(e.time, e.mean))

    def tolerances(self, key: ModeKey) -> Array:
        """How far below zero the guards of a mode (n,) may be at a state inside it."""
        return GUARD_TOLERANCE * self.system.outgoing(key).guards.sizes

    def without(self, key: ModeKey, names: Sequence[str]) -> HybridSystem:
        """The system, with one mode that lacks some of its guards."""
        mode = self.system.mode(key)
        kept = [i for i, name in enumerate(mode.guard_names) if name not in names]
        return MappedSystem(self.system, lambda k: WithoutGuards(kept) if k == key else None)

    def extended(self, key: ModeKey, x: Array, start: float, end: float, law: InputLaw) -> Arc:
        """The flow of one mode past its guards: the extension of its arc.

        Past the standstill of a sliding contact its friction turns about at every step. Raises
        `IntegrationError` where that takes more than a hundred steps.
        """
        return self._flow(self.unguarded, key, x, (start, end), law)

    def stopped(
        self, key: ModeKey, x: Array, start: float, end: float, law: InputLaw, beside: Sequence[str]
    ) -> Array:
        """The state (nx,) at the end of the flow of one mode, or where its first guard falls.

        beside: guards that do not count. Raises as `extended` does.
        """
        mode = self.staying(key, beside)
        stay = Edge(Reset.identity(mode.space.ndx), key)
        system = HybridSystem(
            lambda key: mode, lambda key: Outgoing(mode.guard_set, lambda fired: stay)
        )
        span, limit = (start, end), _limit(key)
        run = self.run(system, key, x, span, law, progress=limit, terminal=lambda event: True)
        return run.final_state

    def staying(self, key: ModeKey, beside: Sequence[str]) -> ModeModel:
        """The mode without the guards `beside`, which stays whatever its forces say."""
        own = self.system.mode(key)
        kept = [i for i, name in enumerate(own.guard_names) if name not in beside]
        return _Staying(kept).map_mode(own)

    def backwards(
        self, key: ModeKey, x: Array, time: float, length: float, law: InputLaw
    ) -> tuple[ModeModel, Arc]:
        """The flow of one mode back from `time`, over times 0 to `length` counted backwards."""
        mode = _Reversed([], time).map_mode(self.system.mode(key))
        system = HybridSystem(lambda key: mode, lambda key: Outgoing(mode.guard_set, _no_edge))
        return mode, self._flow(system, key, x, (0.0, length), lambda s, x: law(time - s, x))

    def fire(self, key: ModeKey, guards: Sequence[str], t: float, x: Array, law: InputLaw) -> Event:
        """The event of these guards at a state, whatever the values of the guards.

        It is named after those that take part. What the mode after it holds is put right, where a
        state beyond the guard is off it.
        """
        u = law(t, x)
        after, made, took_part = execute_event(self.system, key, tuple(guards), t, x, u)
        state = constrained(self.system.mode(after), made.state)
        rate = np.zeros_like(u)
        return Event(0, t, key, after, took_part, x, state, u, u, rate, made.impulses, made.report)

    def law(self, key: ModeKey, given: ArrayLike | InputLaw | None) -> InputLaw:
        """The input of a mode as u(t, x): from a constant (nu,), a function, or None, zero."""
        if callable(given):
            return given
        nu = self.system.mode(key).nu
        return make_zero_input(nu) if given is None else HeldInput(check_vector("input", given, nu))

    def diffusion(self, mode: ModeModel, ahead: StepRequest, u: Array) -> Diffusion | None:
        """The noise of a mode that takes whole steps, where it is constant under a held input.

        None where a step ahead leaves the pace of the mode, such as that of friction that is stiff,
        and in modes that hold something and are so large that collocated points take less time.
        """
        large = mode.held is not None and mode.space.ndx > _SMALL
        if mode.compiled_steps is None or large or not in_pace(mode, ahead, u):
            return None
        if self.process_noise is None:
            return Diffusion(np.zeros((mode.space.ndx,) * 2), np.zeros((mode.nu, mode.nu)))
        return self.process_noise.held(mode, ahead.t, ahead.x, u)

    @cached_property
    def impatient(self) -> Model:
        """The model for less likely hypotheses, which are given up where they rattle."""
        return replace(self, max_events=_FEW)

    @cached_property
    def quiet(self) -> Model:
        """The model without process noise, for times whose noise has been counted already."""
        return replace(self, process_noise=None)

    @cached_property
    def signal_model(self) -> Model:
        """The model for events of contact signals, whose times do not depend on the state."""
        strategy: Strategy = "no_jump" if self.strategy == "no_jump" else "reset_jacobian"
        return replace(self, guard_noise=EXACT_GUARDS, strategy=strategy)

    @cached_property
    def unguarded(self) -> HybridSystem:
        """The system whose modes have no guards."""
        return MappedSystem(self.system, lambda key: WithoutGuards([]))

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of simulations, alone or in a batch."""
        return {
            "rtol": self.rtol,
            "atol": self.atol,
            "max_events": self.max_events,
            "on_zeno": ZenoPolicy(horizon=self.zeno_horizon),
            "on_jam": "raise",
        }

    def run(
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
    ) -> HybridTrajectory:
        """A simulation that starts from an estimate, which may have run away.

        Where its mean is off what its mode holds, or outside of it, there is no way on: the error
        of the start becomes a `SimulationError`.
        """
        try:
            with computed_starts():
                return simulate(
                    system, key, x, span, law,
                    progress=progress or self.stepped, terminal=terminal,
                    options=SimulationOptions(first_step=first_step), **self.settings,
                )  # fmt: skip
        except (ConstraintViolatedError, GuardViolatedError) as error:
            raise SimulationError(str(error)) from error

    def _flow(
        self, system: HybridSystem, key: ModeKey, x: Array, span: tuple[float, float], law: InputLaw
    ) -> Arc:
        return self.run(system, key, x, span, law, progress=_limit(key)).arcs[0]


def in_pace(mode: ModeModel, ahead: StepRequest, u: Array) -> bool:
    """Whether a step is no longer than the pace of the mode allows."""
    pace = mode.steady_pace or mode.calc(ahead.t, ahead.x, u).pace
    return abs(ahead.h) <= min(pace.longest_step, pace.relaxation)


def guard_rates(point: Point) -> Array:
    """The rates dg/dt (n,) of the guards at constant input."""
    d = point.guard_jacobian
    return np.asarray(d.time + d.state @ point.field)


def sees_input(point: Point) -> NDArray[np.bool_]:
    """The guards that depend on the input, as flags (n,)."""
    return np.asarray(point.guard_jacobian.input.any(axis=1))


def _limit(key: ModeKey) -> Callable[[float], None]:
    """Raises `IntegrationError` when it is called too often."""
    steps = count(1)

    def tick(t: float) -> None:
        if next(steps) > _STEPS:
            raise IntegrationError(
                f"mode {key!r} past its guards takes more than {_STEPS} steps by t = {t:.9g} s"
            )

    return tick


def _no_edge(fired: tuple[str, ...]) -> None:
    return None


class _StayingMode(ModeWithoutGuards):
    """A mode that stays, whatever its forces say."""

    def __init__(self, inner: ModeModel, change: WithoutGuards) -> None:
        super().__init__(inner, change)
        self.selects = False

    def select_at(self, point: MappedPoint) -> ModeKey:
        return self.key


class _Staying(WithoutGuards):
    """A mode that stays, whatever its forces say."""

    mode_class = _StayingMode


class _ReversedMode(ModeWithoutGuards):
    """A mode that flows backwards."""

    def __init__(self, inner: ModeModel, change: WithoutGuards) -> None:
        super().__init__(inner, change)
        self.steady_pace = FREE_PACE  # what decays forwards grows backwards

    @property
    def compiled_steps(self) -> None:
        """It has none: those of the inner mode go forwards."""
        return None

    def field_at(self, point: MappedPoint) -> Array:
        return -np.asarray(point.inner.field)

    def field_jacobian_at(self, point: MappedPoint) -> FieldJacobian:
        d = point.inner.field_jacobian
        return FieldJacobian(-d.state, -d.input)

    def free_input_at(self, point: MappedPoint) -> Array:
        return -point.inner.free_input

    def pace_at(self, point: MappedPoint) -> Pace:
        return FREE_PACE


@dataclass(frozen=True, eq=False)
class _Reversed(WithoutGuards):
    """A mode that flows backwards from `end`, past its guards."""

    end: float
    mode_class = _ReversedMode

    def to_inner(self, t: float, x: Array, u: Array) -> tuple[float, Array, Array]:
        return self.end - t, x, u
