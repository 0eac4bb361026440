"""With damaged readings the filter's error stays within its covariance, or the run is flagged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from hybridctl.experiments.legged.recording import LeggedLog
from hybridctl.experiments.legged.score import run_filter, summarize_errors
from scipy.stats import chi2

from hybridctl import Series
from hybridctl.legged import BaseSettings, Readings

Damage: TypeAlias = Callable[[Readings], Readings]
STEP = 7.0  # s, when biases step
LOST = ((6.2, 6.4), (8.0, 8.2), (9.7, 9.9))  # s, without any sample
LEVEL = 0.999  # probability of the region that counts as within the covariance
SEED = 0


def judge_damages(
    recording: LeggedLog, settings: BaseSettings, walk: float
) -> list[dict[str, Any]]:
    """Return a row for each of `DAMAGES`, see `judge_damage`.

    Args:
        recording: The recording.
        settings: Settings of the filter, which gets the weight of the robot besides.
        walk: Time at which the robot begins to walk, s.
    """
    known = replace(settings, weight=recording.compute_weight(settings))
    return [{"name": name, **judge_damage(recording, known, name, walk)} for name in DAMAGES]


def judge_damage(
    recording: LeggedLog, settings: BaseSettings, damage: str, walk: float
) -> dict[str, Any]:
    """Return errors, share of rows within the covariance, and flags of a damaged recording.

    Args:
        recording: The recording.
        settings: Settings of the filter.
        damage: Name of the damage, of `DAMAGES`.
        walk: Time at which the robot begins to walk, s.
    """
    estimator = settings.build(recording.robot)
    readings = DAMAGES[damage](recording.get_readings(estimator))
    outcome = run_filter(damage, settings, recording, readings=readings)
    found = outcome.errors
    assert found.nees is not None
    assert found.spread is not None
    assert outcome.result is not None
    yaw = np.abs(found.angles[:, 2]) / found.spread[:, 3]
    inside = (found.nees <= chi2.ppf(LEVEL, 3)) & (yaw**2 <= chi2.ppf(LEVEL, 1))
    flags = list(estimator.flags(readings, outcome.result))
    return {**summarize_errors(found, walk), "within": float(inside.mean()), "flags": flags}


def _step_bias(column: int, size: float) -> Damage:
    """Return the damage of a bias that steps, in one column of the inertial sensor."""

    def damage(readings: Readings) -> Readings:
        series = readings.inertial
        values = series.values.copy()
        values[series.times - series.times.min() >= STEP, column] += size
        return Readings(Series(series.times, values), readings.angles, readings.loads)

    return damage


def remove_force(readings: Readings) -> Readings:
    """Return the readings without the left foot's force from 5 s on, just before the walk."""
    loads = dict(readings.loads)
    foot, series = next(iter(loads.items()))
    values = np.where((series.times >= 5.0)[:, None], np.nan, series.values)
    return Readings(
        readings.inertial, readings.angles, loads | {foot: Series(series.times, values)}
    )


def drop_samples(series: Series) -> Series:
    """Return the series without any sample for 200 ms, three times."""
    keep = np.ones(len(series.times), dtype=bool)
    for start, end in LOST:
        keep &= (series.times < start) | (series.times > end)
    return series.select_rows(keep)


def _shuffle_rows(late: float, *, stamps: bool) -> Damage:
    """Return the damage of rows that come late, by up to `late` rows.

    Args:
        late: Greatest delay, in rows.
        stamps: Whether the stamps alone are in another order.
    """

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
    "gyroscope x steps by 1 deg/s": _step_bias(0, float(np.radians(1.0))),
    "gyroscope z steps by 1 deg/s": _step_bias(2, float(np.radians(1.0))),
    "accelerometer x steps by 0.3 m/s^2": _step_bias(3, 0.3),
    "one foot without force": remove_force,
    "200 ms lost, three times": lambda readings: readings.each(drop_samples),
    "rows out of order": _shuffle_rows(8.0, stamps=False),
    "stamps up to 4 rows off": _shuffle_rows(4.0, stamps=True),
}
