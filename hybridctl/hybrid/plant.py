"""Plants: what is driven input by input, and `simulate` as one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, check_instance, check_number, check_vector
from hybridctl.base.errors import InputError
from hybridctl.hybrid.arc import Arc, join_arcs
from hybridctl.hybrid.jump import find_consistent_mode
from hybridctl.hybrid.laws import HeldInput
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.simulate import computed_starts, simulate, warn_of_start
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event, HybridTrajectory

_GUARD_TOLERANCE = 1e-8
"""Guard below which a new input may take the mode away, relative to the guard's scale.

It is the default guard tolerance of `simulate`."""


class Sample(NamedTuple):
    """What a plant shows at one time.

    Attributes:
        time: Time, s.
        state: State (nx,).
        sensed: Values of its sensors, by channel.
    """

    time: float
    state: Array
    sensed: Mapping[str, Any]


@runtime_checkable
class Plant(Protocol):
    """A robot or a simulator that is stepped from outside.

    Call `reset`, then `step` for each period. Samples are `period` seconds apart; inputs are held
    in between.
    """

    @property
    def period(self) -> float:
        """The time between two samples, s."""
        ...

    def reset(self, time: float, state: ArrayLike) -> Sample:
        """Begin at a time in s and a state (nx,), and return the first sample."""
        ...

    def step(self, u: ArrayLike) -> Sample:
        """Go on for one period under the input u (nu,), and return the sample after it."""
        ...


class SimulatedPlant:
    """A hybrid system as a plant: rigid impacts at their exact times.

    Call `reset`, then `step` for each period. `run` returns all that has happened since the reset.
    Channels of its samples are "mode" and all outputs of the mode, such as "normal_force".

    Attributes:
        system: The hybrid system.

    Args:
        system: The hybrid system.
        mode: Key of the mode in which it begins at each reset.
        period: Time between two samples, s; positive.
        **options: Keyword arguments of `simulate`, such as `rtol`.

    Raises:
        InputError: If `system` is no hybrid system, or the period is not positive.
        UnknownNameError: If the system has no such mode.
    """

    def __init__(
        self, system: HybridSystem, mode: ModeKey, period: float = 1e-3, **options: Any
    ) -> None:
        self.system = check_instance("system", system, HybridSystem)
        self._period = check_number("period", period, above=0.0)
        self._first = system.mode(mode)
        self._options = options
        self._mode = mode
        self._state: Array | None = None  # None before the first reset

    @property
    def period(self) -> float:
        """The time between two samples, s."""
        return self._period

    def reset(self, time: float, state: ArrayLike) -> Sample:
        """Begin anew, and return the first sample.

        Args:
            time: Time, s.
            state: State (nx,) of the first mode.

        Returns:
            The sample, with the outputs of the mode under zero input.

        Raises:
            InputError: If the time is not finite, or the state is none of the first mode.
        """
        self._start, self._count = check_number("time", time), 0
        self._mode = self._first.key
        self._state = check_vector("state", state, self._first.space.nx)
        self._first.space.check("state", self._state)
        warn_of_start(self.system, self._state, stacklevel=3)
        self._rows: list[list[Arc]] = []  # each of consecutive arcs of one mode
        self._events: list[Event] = []
        return self._make_sample(self._state, np.zeros(self._first.nu))

    def step(self, u: ArrayLike) -> Sample:
        """Go on for one period under a held input, and return the sample after it.

        The mode that is consistent with the new input is selected first, if a guard is at zero.

        Args:
            u: Input (nu,).

        Returns:
            The sample.

        Raises:
            InputError: If the input has another size, or there was no reset.
            SimulationError: If `simulate` cannot go on. The plant has to be reset then.
        """
        if self._state is None:
            raise InputError("a plant must be reset to a state before its first step")
        u_held = check_vector("u", u, self.system.mode(self._mode).nu)
        x, start = self._state, self._compute_time()
        self._count += 1
        point = find_consistent_mode(
            self.system, self._mode, lambda mode: mode.calc(start, x, u_held), _GUARD_TOLERANCE
        )
        span, law = (start, self._compute_time()), HeldInput(u_held)
        with computed_starts():
            run = simulate(self.system, point.mode.key, x, span, law, **self._options)
        self._append(run)
        self._mode, self._state = run.final_mode, run.final_state
        return self._make_sample(self._state, u_held)

    def run(self) -> HybridTrajectory:
        """Return all that has happened since the reset; held inputs follow each other on an arc.

        Raises:
            InputError: If there was no step since the reset.
        """
        if self._state is None or not self._rows:
            raise InputError("a plant has a run after its first step; reset it, and step it")
        arcs = tuple(join_arcs(k, row) for k, row in enumerate(self._rows))
        return HybridTrajectory(arcs, tuple(self._events), self.system)

    def _compute_time(self) -> float:
        """Return the present time, s. It is a product, so that rounding does not add up."""
        return self._start + self._count * self._period

    def _make_sample(self, x: Array, u: Array) -> Sample:
        time = self._compute_time()
        outputs = self.system.mode(self._mode).outputs(time, x, u)
        return Sample(time, x, {"mode": self._mode, **outputs})

    def _append(self, run: HybridTrajectory) -> None:
        """Append the run of one period to the arcs and events since the reset.

        Where its first mode is another one than the last mode before, an event without guards
        stands between: the input has changed the mode.

        Args:
            run: The run.
        """
        first, *later = run.arcs
        if not self._rows or self._rows[-1][-1].mode != first.mode:
            if self._rows:
                before, t = self._rows[-1][-1], first.start
                x, u, rate = before.left_limit()
                index, keys = len(self._events), (before.mode, first.mode)
                self._events.append(
                    Event(index, t, *keys, (), x, x, u, first.input(t), rate, np.zeros(0))
                )
            self._rows.append([])
        self._rows[-1].append(first)
        self._rows += [[arc] for arc in later]
        count = len(self._events)
        self._events += [replace(event, index=count + event.index) for event in run.events]
