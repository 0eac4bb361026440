"""Inputs of a run beside what motors can give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.hybrid.laws import DifferentiableLaw, HeldInput, InputLaw, LimitedLaw
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.step import Step
from hybridctl.hybrid.system import HybridSystem

MOTOR_ROUNDING = 1e-9
"""Relative excess of an input over a limit that counts as rounding."""
_LISTED = 4
"""Number of inputs that a warning lists; the others are counted."""


class _Excess(NamedTuple):
    """The largest absolute input beyond a limit, in the unit of the input, and its time in s."""

    size: float
    limit: float
    time: float
    is_cut: bool


def describe_excesses(excesses: Sequence[str]) -> str:
    """Return a list of excesses, shortened after the first four."""
    more = len(excesses) - _LISTED
    return ", ".join(excesses[:_LISTED]) + (f", and {more} more" if more > 0 else "")


class EffortWatch:
    """The largest inputs of a run that exceed the limits of motors.

    `record` is called with the steps under each law, as they are made; `report` at the end.
    """

    def __init__(self) -> None:
        self._greatest: dict[ModeKey, Array | None] = {}
        self._excesses: dict[str, _Excess] = {}

    def record(
        self, system: HybridSystem, key: ModeKey, law: InputLaw, steps: Sequence[Step], end: float
    ) -> None:
        """Record excesses of the inputs on steps under one law.

        Inputs that the law cuts to limits count with the size that they had before.

        Args:
            system: The system, which knows its motors.
            key: Mode of the steps.
            law: Law that gives the inputs.
            steps: The steps, in order.
            end: Time at which the last step is cut, s.
        """
        if key not in self._greatest:
            self._greatest[key] = system.greatest_inputs(key)
        greatest = self._greatest[key]
        if greatest is None or not steps:
            return
        if isinstance(law, HeldInput):
            times, inputs = np.array([steps[0].start]), law.value[None]
            demands = inputs if law.demand is None else law.demand[None]
        else:
            times = np.concatenate([step.times for step in steps])
            inside = times <= end
            times, inputs = times[inside], np.concatenate([s.inputs for s in steps])[inside]
            states = np.concatenate([s.states for s in steps])[inside]
            demands = _demanded_inputs(law, times, states, inputs)
        sizes, allowed = np.abs(demands), greatest * (1.0 + MOTOR_ROUNDING)
        for i in np.flatnonzero((sizes > allowed).any(axis=0)).tolist():
            k = int(sizes[:, i].argmax())
            is_cut = bool(abs(inputs[k, i]) <= allowed[i])
            excess = _Excess(float(sizes[k, i]), float(greatest[i]), float(times[k]), is_cut)
            label = system.input_labels(key)[i]
            known = self._excesses.get(label)
            if known is None or known.size < excess.size:
                self._excesses[label] = excess

    def report(self) -> str:
        """Return which inputs exceeded which limits, empty if none did."""
        if not self._excesses:
            return ""
        listed = [
            f"{label}: {excess.size:.6g} of {excess.limit:.6g} at t = {excess.time:.6g} s"
            + (" (cut)" if excess.is_cut else "")
            for label, excess in self._excesses.items()
        ]
        return f"needs more than the motors have (Robot.effort): {describe_excesses(listed)}"


def _demanded_inputs(law: InputLaw, times: Array, states: Array, inputs: Array) -> Array:
    """Return the inputs (n, nu) at times (n,) and states (n, nx) before the law cuts them."""
    source = law.function if isinstance(law, DifferentiableLaw) else law
    if not isinstance(source, LimitedLaw) or source.limits is None:
        return inputs
    is_cut = ((inputs <= source.limits[0]) | (inputs >= source.limits[1])).any(axis=1)
    demands: Array = inputs.copy()
    for k in np.flatnonzero(is_cut).tolist():
        demands[k] = source.demand(float(times[k]), states[k])
    return demands
