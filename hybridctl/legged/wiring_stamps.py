"""Faults of stamps: a clock that stands still, a jump, a wrong unit, clocks that differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

import numpy as np

from hybridctl.base.time_series import Series
from hybridctl.legged.readings import Readings
from hybridctl.legged.wiring_fault import ANGLES, INERTIAL, WiringFault

_LONGEST_PERIOD, _SHORTEST_PERIOD = 0.4, 5e-5
"""Periods in s outside of which stamps are not in s: no robot balances by sensors of 2.5 Hz, and
none has 20 kHz. Stamps in ms are above that range for sensors of up to 2.5 kHz."""
_USUAL_PERIODS = 2e-4, 0.05
"""Range in s in which the period must lie in a unit of the stamps that is proposed."""
_TIME_UNITS = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9}
"""Other units of stamps, in s."""
_MOST_EQUAL_SHARE = 0.5
"""Share of steps between stamps that are zero, above which the clock stands still. Half of them are
zero where each row was written twice, which `Log` mends."""
_JUMP_RATIO = 1e3
"""Step between two stamps, relative to the time that all others take together, above which it is a
jump of the clock and no gap."""
_LEAST_SHARED = 0.5
"""Time that two channels share, relative to the shorter one, below which their clocks differ."""


def check_stamps(readings: Readings) -> tuple[WiringFault, ...]:
    """Return faults of the stamps of all channels.

    Channels with fewer than two rows are left out. Clocks are compared only if each of them is
    right by itself. A fault that all channels have is returned once.
    """
    channels = {INERTIAL: readings.inertial, ANGLES: readings.angles}
    channels |= {f"force of {foot!r}": load for foot, load in readings.loads.items()}
    channels = {name: series for name, series in channels.items() if len(series) > 1}
    found = [fault for name, series in channels.items() for fault in _check_clock(name, series)]
    if len(found) == len(channels) and len({fault.cause for fault in found}) == 1:
        return (replace(found[0], channel="stamps of all channels"),)
    return tuple(found) or _check_clocks_apart(channels)


def _check_clock(name: str, series: Series) -> list[WiringFault]:
    """Return the first fault of the stamps of one channel, if there is one.

    Args:
        name: Name of the channel.
        series: Its rows, at least two.
    """
    times = np.sort(series.times)
    steps = np.diff(times)
    equal = float((steps == 0.0).mean())
    if equal > _MOST_EQUAL_SHARE:
        return [
            WiringFault(
                f"stamps of {name}",
                "do not advance",
                "take another field as `time`, or `time: {rate: ...}` in the mapping",
                f"{100.0 * equal:.0f} % of them equal the one before, the first is {times[0]:g} s",
            )
        ]
    rest = float(steps.sum() - steps.max())
    if steps.max() > _JUMP_RATIO * max(rest, float(np.median(steps))):
        k = int(steps.argmax())
        return [
            WiringFault(
                f"stamps of {name}",
                f"jump by {steps.max():.3g} s",
                f"leave out the {min(k + 1, len(steps) - k)} rows that were not stamped",
                f"{times[k]:g} s is followed by {times[k + 1]:.9g} s",
            )
        ]
    period = float(np.median(steps[steps > 0.0]))
    factors = _TIME_UNITS if period > _LONGEST_PERIOD else {}
    if period < _SHORTEST_PERIOD:  # a conversion to s was applied to stamps in s
        factors = {
            f"{unit} that were taken for s twice": 1.0 / f for unit, f in _TIME_UNITS.items()
        }
    low, high = _USUAL_PERIODS
    for unit, factor in factors.items():
        if low <= factor * period <= high:
            return [
                WiringFault(
                    f"stamps of {name}",
                    f"look like {unit}",
                    f"multiply them by {factor:g}, by `time: {{unit: {unit.split()[0]}}}`",
                    f"samples are {period:.3g} s apart, then {1e3 * factor * period:.3g} ms",
                )
            ]
    return []


def _check_clocks_apart(channels: Mapping[str, Series]) -> tuple[WiringFault, ...]:
    """Return the fault of the first two channels that share little time."""
    for (one, a), (other, b) in combinations(channels.items(), 2):
        a0, a1, b0, b1 = a.times.min(), a.times.max(), b.times.min(), b.times.max()
        shared, shorter = min(a1, b1) - max(a0, b0), min(a1 - a0, b1 - b0)
        if shared < _LEAST_SHARED * shorter:
            return (
                WiringFault(
                    f"stamps of {other}",
                    f"are of another clock than those of {one}",
                    f"subtract about {b0 - a0:.6g} s from them, or stamp both by one clock",
                    f"{b0:.6g} to {b1:.6g} s against {a0:.6g} to {a1:.6g} s",
                ),
            )
    return ()
