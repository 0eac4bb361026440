"""A walk with damaged readings: is the error still what is stated, or is it flagged?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from hybridctl.experiments.legged.recording import LeggedLog
from hybridctl.experiments.legged.score import filtered, judged
from scipy.stats import chi2

from hybridctl.estimation.record import Series
from hybridctl.legged.estimator import BaseSettings
from hybridctl.legged.readings import Readings

Damage = Callable[[Readings], Readings]
STEP = 7.0  # s, when biases step
LOST = ((6.2, 6.4), (8.0, 8.2), (9.7, 9.9))  # s, without any sample
LEVEL = 0.999
SEED = 0


def rows(recording: LeggedLog, settings: BaseSettings, walk: float) -> list[dict[str, Any]]:
    """One row for each damage: errors, the share of rows within what is stated, and flags."""
    known = replace(settings, weight=recording.weight(settings))
    return [{"name": name, **judge(recording, known, name, walk)} for name in DAMAGES]


def judge(recording: LeggedLog, settings: BaseSettings, damage: str, walk: float) -> dict[str, Any]:
    """The filter on the readings of a recording with one of `DAMAGES`."""
    estimator = settings.build(recording.robot)
    readings = DAMAGES[damage](recording.readings(estimator))
    outcome = filtered(damage, settings, recording, readings=readings)
    found = outcome.errors
    assert found.nees is not None
    assert found.spread is not None
    assert outcome.result is not None
    yaw = np.abs(found.angles[:, 2]) / found.spread[:, 3]
    inside = (found.nees <= chi2.ppf(LEVEL, 3)) & (yaw**2 <= chi2.ppf(LEVEL, 1))
    flags = list(estimator.flags(readings, outcome.result))
    return {**judged(found, walk), "within": float(inside.mean()), "flags": flags}


def _stepped(column: int, size: float) -> Damage:
    """A bias of one column of the inertial sensor that steps."""

    def damage(readings: Readings) -> Readings:
        series = readings.inertial
        values = series.values.copy()
        values[series.times - series.times.min() >= STEP, column] += size
        return Readings(Series(series.times, values), readings.angles, readings.loads)

    return damage


def without_force(readings: Readings) -> Readings:
    """The left foot's force missing from the start of the walk on."""
    loads = dict(readings.loads)
    foot, series = next(iter(loads.items()))
    values = np.where((series.times >= 5.0)[:, None], np.nan, series.values)
    return Readings(
        readings.inertial, readings.angles, loads | {foot: Series(series.times, values)}
    )


def dropped(series: Series) -> Series:
    """The readings without any sample for 200 ms, three times."""
    keep = np.ones(len(series.times), dtype=bool)
    for start, end in LOST:
        keep &= (series.times < start) | (series.times > end)
    return series.select_rows(keep)


def _shuffled(late: float, *, stamps: bool) -> Damage:
    """Rows that come up to some rows late, each with its stamp; or the stamps alone."""

    def damage(readings: Readings) -> Readings:
        rng = np.random.default_rng(SEED)

        def change(series: Series) -> Series:
            n = len(series.times)
            order = np.argsort(np.arange(n) + rng.uniform(0.0, late, n))
            values = series.values if stamps else series.values[order]
            return Series(series.times[order], values)

        return readings.each(change)

    return damage


DAMAGES: dict[str, Damage] = {
    "none": lambda readings: readings,
    "gyroscope x steps by 1 deg/s": _stepped(0, float(np.radians(1.0))),
    "gyroscope z steps by 1 deg/s": _stepped(2, float(np.radians(1.0))),
    "accelerometer x steps by 0.3 m/s^2": _stepped(3, 0.3),
    "one foot without force": without_force,
    "200 ms lost, three times": lambda readings: readings.each(dropped),
    "rows out of order": _shuffled(8.0, stamps=False),
    "stamps up to 4 rows off": _shuffled(4.0, stamps=True),
}
