"""Plants: what is driven input by input, and `simulate` as one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, check_instance, check_number, check_vector
from hybridctl.base.errors import InputError
from hybridctl.hybrid.arc import Arc, joined
from hybridctl.hybrid.jump import consistent
from hybridctl.hybrid.laws import HeldInput
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.simulate import computed_starts, simulate, warn_of_start
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event, HybridTrajectory

_AT_REST = 1e-8  # of a guard's scale: below it an input may take the mode away


class Sample(NamedTuple):
    """What a plant shows: time in s, state (nx,), and what its sensors say, by channel."""

    time: float
    state: Array
    sensed: Mapping[str, Any]


@runtime_checkable
class Plant(Protocol):
    """A robot or a simulator that is stepped from outside.

    Its samples are `period` seconds apart; inputs are held in between.
    """

    @property
    def period(self) -> float:
        """The time between two samples, s."""
        ...

    def reset(self, time: float, state: ArrayLike) -> Sample:
        """Begin at a time in s and a state (nx,)."""
        ...

    def step(self, u: ArrayLike) -> Sample:
        """Go on for one period under the input u (nu,)."""
        ...


class SimulatedPlant:
    """A hybrid system as a plant: rigid impacts at their exact times.

    Channels of its samples are "mode" and all outputs of the mode, such as "normal_force". mode:
    in which it starts. options: of `simulate`, such as `rtol`.
    """

    def __init__(
        self, system: HybridSystem, mode: ModeKey, period: float = 1e-3, **options: Any
    ) -> None:
        self.system = check_instance("system", system, HybridSystem)
        self._period = check_number("period", period, above=0.0)
        self._first = system.mode(mode)
        self._options = options
        self._mode = mode
        self._state: Array | None = None

    @property
    def period(self) -> float:
        """The time between two samples, s."""
        return self._period

    def reset(self, time: float, state: ArrayLike) -> Sample:
        """Begin at a time in s and a state (nx,) of the first mode."""
        self._begun, self._count = check_number("time", time), 0
        self._mode = self._first.key
        self._state = check_vector("state", state, self._first.space.nx)
        self._first.space.check("state", self._state)
        warn_of_start(self.system, self._state)
        self._rows: list[list[Arc]] = []  # consecutive arcs of one mode
        self._events: list[Event] = []
        return self._sample(self._state, np.zeros(self._first.nu))

    def step(self, u: ArrayLike) -> Sample:
        """Go on for one period under the input u (nu,).

        Raises `InputError` for another input or before the first `reset`, and what `simulate`
        raises where it cannot go on.
        """
        if self._state is None:
            raise InputError("a plant must be reset to a state before its first step")
        held = check_vector("u", u, self.system.mode(self._mode).nu)
        start, self._count = self._now, self._count + 1
        x = self._state
        here = consistent(self.system, self._mode, lambda mode: mode.calc(start, x, held), _AT_REST)
        self._mode = here.mode.key
        with computed_starts():
            run = simulate(
                self.system,
                self._mode,
                self._state,
                (start, self._now),
                HeldInput(held),
                **self._options,
            )
        self._keep(run)
        self._mode, self._state = run.final_mode, run.final_state
        return self._sample(self._state, held)

    def run(self) -> HybridTrajectory:
        """All that has happened since the reset; held inputs follow each other on an arc."""
        arcs = tuple(joined(k, row) for k, row in enumerate(self._rows))
        return HybridTrajectory(arcs, tuple(self._events), self.system)

    @property
    def _now(self) -> float:
        """The present time, a product, so that rounding does not add up."""
        return self._begun + self._count * self._period

    def _sample(self, x: Array, u: Array) -> Sample:
        found = dict(self.system.mode(self._mode).outputs(self._now, x, u))
        return Sample(self._now, x, {"mode": self._mode, **found})

    def _keep(self, run: HybridTrajectory) -> None:
        """Append a run to what has happened, behind an event without guards if the mode changes."""
        first, *later = run.arcs
        if not self._rows or self._rows[-1][-1].mode != first.mode:
            if self._rows:
                before, t = self._rows[-1][-1], first.start
                x, u, rate = before.left_limit()
                at, keys = len(self._events), (before.mode, first.mode)
                self._events.append(
                    Event(at, t, *keys, (), x, x, u, first.input(t), rate, np.zeros(0))
                )
            self._rows.append([])
        self._rows[-1].append(first)
        self._rows += [[arc] for arc in later]
        count = len(self._events)
        self._events += [replace(event, index=count + event.index) for event in run.events]
