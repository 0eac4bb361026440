"""The same walk with damaged readings: is the error still what is stated, or is it flagged?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from hybridctl.experiments.legged.recording import Recording
from hybridctl.experiments.legged.score import Track, errors, judged
from scipy.stats import chi2

from hybridctl.estimation.legged.estimator import BaseEstimator, BaseSettings
from hybridctl.estimation.legged.measurements import ANGLES
from hybridctl.estimation.legged.readings import Readings
from hybridctl.estimation.record import Series

Damage = Callable[[Readings], Readings]
STEP = 7.0  # s, when biases step
LOST = ((6.2, 6.4), (8.0, 8.2), (9.7, 9.9))  # s, without any sample
LEVEL = 0.999
SEED = 0


def rows(recording: Recording, settings: BaseSettings, walk: float) -> list[dict[str, Any]]:
    """One row for each damage: errors, the share of rows within what is stated, and flags."""
    weight = _weight(recording, settings)
    found = []
    for name, damage in DAMAGES.items():
        estimator = replace(settings, weight=weight).build(recording.robot)
        given = recording.readings(estimator)
        found.append({"name": name, **judge(recording, estimator, damage(given), walk)})
    return found


def judge(
    recording: Recording, estimator: BaseEstimator, readings: Readings, walk: float
) -> dict[str, Any]:
    """The filter on some readings of a recording."""
    truth = recording.truth
    first = estimator.start(readings, heading=float(truth.angles[0, 2]), position=truth.position[0])
    result = estimator.run(readings, first)
    roots = [estimator.root(s.estimate) for s in result.steps if s.channel == ANGLES]
    scored = errors(Track.of(roots), truth)
    assert scored.nees is not None
    assert scored.spread is not None
    yaw = np.abs(scored.angles[:, 2]) / scored.spread[:, 3]
    inside = (scored.nees <= chi2.ppf(LEVEL, 3)) & (yaw**2 <= chi2.ppf(LEVEL, 1))
    flags = list(estimator.flags(readings, result))
    return {**judged(scored, walk), "within": float(inside.mean()), "flags": flags}


def _weight(recording: Recording, settings: BaseSettings) -> float:
    """What both feet bear while the robot stands, N."""
    readings = recording.readings(settings.build(recording.robot))
    return sum(
        float(np.median(load.values[load.times <= load.times[0] + settings.standing]))
        for load in readings.loads.values()
    )


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


def dropped(readings: Readings) -> Readings:
    """No sample at all for 200 ms, three times."""

    def cut(series: Series) -> Series:
        keep = np.ones(len(series.times), dtype=bool)
        for start, end in LOST:
            keep &= (series.times < start) | (series.times > end)
        return Series(series.times[keep], series.values[keep])

    loads = {foot: cut(load) for foot, load in readings.loads.items()}
    return Readings(cut(readings.inertial), cut(readings.angles), loads)


def shuffled(readings: Readings) -> Readings:
    """Rows that come out of order, each with its stamp."""
    rng = np.random.default_rng(SEED)

    def mixed(series: Series) -> Series:
        order = np.argsort(np.arange(len(series.times)) + rng.uniform(0.0, 8.0, len(series.times)))
        return Series(series.times[order], series.values[order])

    loads = {foot: mixed(load) for foot, load in readings.loads.items()}
    return Readings(mixed(readings.inertial), mixed(readings.angles), loads)


def misstamped(readings: Readings) -> Readings:
    """Stamps that are up to four rows off, the rows in their right order."""
    rng = np.random.default_rng(SEED)

    def mixed(series: Series) -> Series:
        order = np.argsort(np.arange(len(series.times)) + rng.uniform(0.0, 4.0, len(series.times)))
        return Series(series.times[order], series.values)

    loads = {foot: mixed(load) for foot, load in readings.loads.items()}
    return Readings(mixed(readings.inertial), mixed(readings.angles), loads)


DAMAGES: dict[str, Damage] = {
    "none": lambda readings: readings,
    "gyroscope x steps by 1 deg/s": _stepped(0, float(np.radians(1.0))),
    "gyroscope z steps by 1 deg/s": _stepped(2, float(np.radians(1.0))),
    "accelerometer x steps by 0.3 m/s^2": _stepped(3, 0.3),
    "one foot without force": without_force,
    "200 ms lost, three times": dropped,
    "rows out of order": shuffled,
    "stamps up to 4 rows off": misstamped,
}
