"""End a filter on a log that its model cannot explain, and name the unit that is likely wrong.

A log in m that is read as mm does not fail: the filter loses the estimate again and again, and
every loss costs many events. So innovations and integrator steps are counted while the filter runs.
Counts do not depend on the machine, as times would.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import numpy as np

from hybridctl.base.errors import ImplausibleLogError
from hybridctl.estimation.filter_state import FilterState
from hybridctl.estimation.record import Record

_FAR_OFF = 10.0
"""Standard deviations: no innovation of a consistent filter is so large. Mean NIS of 20 to 50,
which noise levels that are too small give on real impacts, is 4 to 7."""
_JUDGED = (40, 200)
"""Numbers of values, from the start of a run, of one channel or of all, at which they are judged
first and last. A wrong unit shows at once; a run that loses the estimate later goes on."""
_FAR_OFF_SHARE = 0.25
"""Share of values, of one channel or of all, that are far off, above which a run ends. With a wrong
unit it is 0.4 to 0.6, in sound logs zero."""
_MOST_STEPS = 5_000
"""Integrator steps between two samples, of all hypotheses: usual are 1 to 30, and each takes 0.1 to
10 ms. Logs with rare samples may take more, see `_TIMES_MEDIAN`."""
_TIMES_MEDIAN = 100
"""Times the median of steps between samples, where that is more."""

_TRIAL_ROWS = 40  # values in a trial, times the number of channels
_TRIAL_STEPS = 1_000  # integrator steps in all of a trial, some seconds
_TRIAL_FAR_OFF = 2  # values that may be far off in a trial whose unit is right
_DEGREES = 180.0 / np.pi  # in a radian
# By which values are multiplied in trials: of kilo, milli, hecto, centi, and of angles.
_FACTORS = (1e3, 1e-3, 1e2, 1e-2, _DEGREES, 1.0 / _DEGREES)


class TooManyStepsError(Exception):
    """Raised by `LogWatch.take_step` and caught by `run_filter`.

    It is no `SimulationError`, because that would end one hypothesis of the filter, not the run.
    """


class LogWatch:
    """Counts integrator steps and innovations of one run of a filter, and ends a hopeless run.

    `take_step` is called after each integrator step and `take_state` after each sample, in that
    order. Both raise an error that ends the run.

    Args:
        trial: Whether the run is a short trial, which ends at its third value that is far off, or
            after 1,000 integrator steps.

    Attributes:
        far_off: Number of values by channel, of which the innovation is above 10 deviations.
        values: Number of values by channel, rejected ones included.
    """

    def __init__(self, *, trial: bool = False) -> None:
        self.far_off = Counter[str]()
        self.values = Counter[str]()
        self._trial = trial
        self._steps, self._all, self._before = 0, 0, list[int]()

    def take_step(self, time: float) -> None:
        """Count one integrator step.

        Args:
            time: Where the step ends, s. It is not used: this is what a filter calls its function
                with.

        Raises:
            TooManyStepsError: If a trial, or one sample, takes too many steps.
        """
        self._steps += 1
        self._all += 1
        if self._trial and self._all > _TRIAL_STEPS:
            raise TooManyStepsError(f"more than {_TRIAL_STEPS} integrator steps")
        if self._steps > _MOST_STEPS:
            usual = median(self._before) if self._before else 0
            if self._steps > _TIMES_MEDIAN * usual:
                raise TooManyStepsError(
                    f"one sample takes more than {self._steps - 1} integrator steps, the usual one "
                    f"{usual:g}"
                )

    def take_state(self, state: FilterState) -> None:
        """Count the innovation of a sample, and judge the run by all of them.

        The count of integrator steps of the next sample begins at zero.

        Args:
            state: State of the filter after the sample. Without an innovation no value is counted.

        Raises:
            ImplausibleLogError: If too many of the values so far, or of this channel, are far off.
        """
        self._before.append(self._steps)
        self._steps = 0
        innovation = state.innovation
        if innovation is None:
            return
        channel = innovation.channel
        self.values[channel] += 1
        if innovation.nis <= _FAR_OFF**2 * innovation.dimension:
            return  # more values can be too many only after one that is far off
        self.far_off[channel] += 1
        # Few channels of many may be wrong, such as a leg's, which is near zero most of the time.
        self._judge(self.far_off.total(), self.values.total(), "values")
        self._judge(self.far_off[channel], self.values[channel], f"values of {channel!r}")

    def _judge(self, off: int, values: int, what: str) -> None:
        """Raise an error if too many of these values are far off.

        Args:
            off: Number of values that are far off.
            values: Number of all of them.
            what: What they are, for the message.

        Raises:
            ImplausibleLogError: Too many are far off.
        """
        first, last = _JUDGED
        judged = first <= values <= last and off > _FAR_OFF_SHARE * values
        if judged or (self._trial and off > _TRIAL_FAR_OFF):
            raise ImplausibleLogError(
                f"{off} of {values} {what} are more than {_FAR_OFF:g} standard deviations from "
                "what the model predicts"
            )


class ScaledChannel(NamedTuple):
    """A channel whose values the model explains if they are multiplied by a factor.

    Attributes:
        channel: Name of the channel.
        unit: SI unit in which the record has it, "1" if it is not known.
        factor: The factor, one of `_FACTORS`.
    """

    channel: str
    unit: str
    factor: float

    def __str__(self) -> str:
        times = self.factor if self.factor > 1.0 else 1.0 / self.factor
        way = "small" if self.factor > 1.0 else "large"
        found = f"the values of {self.channel!r} are {times:.4g} times too {way}"
        unit = self._likely_unit()
        return f"{found}: is the unit of {self.channel!r} {unit}?" if unit else found

    def _likely_unit(self) -> str:
        """Return the unit that a mapping should have named, "" if none is likely.

        Values of a record are in SI units. Those that are too small have been converted from a
        smaller unit than theirs: they were in the SI unit itself. Those that are too large have
        been taken for SI units.
        """
        if self.unit in ("", "1"):
            return ""
        if self.unit.startswith("rad"):  # rates too: rad/s and rad/s^2
            if self.factor > 1.0:
                return self.unit
            # A hundredth and a 57th are too near to each other for a trial: centiradians are rare.
            return self.unit.replace("rad", "mrad" if self.factor == 1e-3 else "deg")
        if self.factor in (_DEGREES, 1.0 / _DEGREES):
            return ""  # no unit of any other quantity
        if self.factor > 1.0:
            return self.unit
        return {1e-3: "m", 1e-2: "c"}.get(self.factor, "") + self.unit


def explain_units(
    record: Record, run: Callable[[Record, LogWatch], None], units: Mapping[str, str]
) -> tuple[ScaledChannel, ...]:
    """Return the channels and factors with which the model explains the beginning of a record.

    Args:
        record: The whole record.
        run: Filters a record from a first estimate of its own, under a watch. An error that it
            raises means that the model does not explain the record.
        units: SI units of channels, where they are known.
    """
    times = np.sort(np.concatenate([series.times for series in record.channels.values()]))
    until = float(times[min(_TRIAL_ROWS * max(len(record.channels), 1), len(times)) - 1])
    beginning = record.between(-np.inf, until)
    found = list[ScaledChannel]()
    for name, series in beginning.channels.items():
        for factor in () if series.quaternion else _FACTORS:
            scaled = replace(series, values=factor * np.array(series.values))
            watch = LogWatch(trial=True)
            try:
                run(replace(beginning, channels={**beginning.channels, name: scaled}), watch)
            except (ArithmeticError, ValueError, RuntimeError, TooManyStepsError):
                continue
            if watch.values:
                found.append(ScaledChannel(name, units.get(name, "1"), factor))
    return tuple(found)


def describe_cause(found: tuple[ScaledChannel, ...], far_off: Counter[str]) -> str:
    """Return the likely cause of an implausible log, in one sentence.

    Args:
        found: Channels and factors that `explain_units` has found, of which three are named.
        far_off: Number of values far off by channel; the worst is named if no factor was found.
    """
    if found:
        return "likely " + " or ".join(map(str, found[:3]))
    most = far_off.most_common(1)
    worst = f", of {most[0][0]!r} first," if most else ""
    return f"are the units{worst} the noise levels and the model right?"
