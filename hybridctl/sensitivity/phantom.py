"""The modes between simultaneous guards, and the first-order jumps that lead from one to the next.

A *phantom* mode is the set of guards that have fired. The jumps are evaluated at the nominal event,
where no trajectory stays in such a mode, when they are needed, and are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from hybridctl.checks import Array
from hybridctl.errors import InputError, SystemDefinitionError
from hybridctl.sensitivity.gains import JumpGains

_KEPT = 8192  # all phantom modes of up to 13 guards

Micro = Callable[[frozenset[int], int], JumpGains]
Times = Callable[[frozenset[int]], tuple[Array, Array]]


class PhantomMode(NamedTuple):
    """The guards that are left, k of them in ascending order, and when each would fire.

    time_state (k, d), time_input (k, nu): derivatives of the event times, s per unit. state_size
    and input_size: their largest entries.
    """

    left: tuple[int, ...]
    time_state: Array
    time_input: Array
    state_size: float
    input_size: float


class PhantomModes:
    """The phantom modes of n guards; see `PiecewiseLinearJump` for the arguments."""

    def __init__(self, guards: Sequence[str], micro: Micro, times: Times | None = None) -> None:
        self.guards = tuple(guards)
        if not self.guards or len(set(self.guards)) != len(self.guards):
            raise InputError(f"guards must be one or more different names, got {self.guards}")
        self._micro, self._times = micro, times
        self.jump = lru_cache(_KEPT)(self._jump)
        self.mode = lru_cache(_KEPT)(self._mode)

    def __reduce__(self) -> tuple[Any, ...]:
        return PhantomModes, (self.guards, self._micro, self._times)

    def __len__(self) -> int:
        return len(self.guards)

    def _jump(self, fired: frozenset[int], j: int) -> JumpGains:
        """The jump of guard j after those that have fired."""
        jump = self._micro(fired, j)
        before, after, inputs = len(jump.time_state), len(jump.field_change), len(jump.time_input)
        reset = (after, before) if jump.reset_state is None else jump.reset_state.shape
        fits = reset == (after, before) and jump.reset_input.shape == (after, inputs)
        if not fits or (jump.reset_state is None and after != before):
            raise SystemDefinitionError(
                f"the gains of {self._name(fired, j)} must fit together, but time_state has size "
                f"{before}, time_input {inputs}, field_change {after}, reset_state {reset} and "
                f"reset_input {jump.reset_input.shape}"
            )
        return jump

    def _mode(self, fired: frozenset[int]) -> PhantomMode:
        """The phantom mode after the guards that have fired."""
        left = tuple(j for j in range(len(self.guards)) if j not in fired)
        if self._times is not None:
            state, inputs = self._times(fired)
        else:
            jumps = [self.jump(fired, j) for j in left]
            for j, jump in zip(left, jumps, strict=True):
                size, first = ((len(g.time_state), len(g.time_input)) for g in (jump, jumps[0]))
                if size != first:
                    raise SystemDefinitionError(
                        f"the gains of {self._name(fired, j)} act on {size} states and inputs, but "
                        f"those of guard {self.guards[left[0]]!r} there on {first}"
                    )
            state = np.stack([jump.time_state for jump in jumps])
            inputs = np.stack([jump.time_input for jump in jumps])
        sizes = (float(np.abs(gain).max(initial=0.0)) for gain in (state, inputs))
        return PhantomMode(left, state, inputs, *sizes)

    def _name(self, fired: frozenset[int], j: int) -> str:
        return f"guard {self.guards[j]!r} after {[self.guards[i] for i in sorted(fired)]}"


def through(jump: JumpGains, columns: Array) -> Array:
    """G @ columns, in O(d) for each column where the reset is the identity."""
    after = columns if jump.reset_state is None else jump.reset_state @ columns
    return after - np.outer(jump.field_change, jump.time_state @ columns)
