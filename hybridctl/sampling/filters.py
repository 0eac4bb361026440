"""Filters chosen by their names: salted, a baseline, unscented, or particles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from hybridctl.base.checks import check_member
from hybridctl.base.errors import HybridctlError, ImplausibleLogError, SimulationError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.filter_model import FilterModel, FilterSettings
from hybridctl.estimation.initial_estimate import (
    STRATEGY_BY_FILTER,
    build_kalman_filter,
    first_estimate,
)
from hybridctl.estimation.log_watch import (
    LogWatch,
    TooManyStepsError,
    describe_cause,
    explain_units,
)
from hybridctl.estimation.record import Record
from hybridctl.estimation.result import FilterResult
from hybridctl.estimation.salted_kalman_filter import SaltedKalmanFilter
from hybridctl.sampling.particle import ParticleFilter
from hybridctl.sampling.unscented import UnscentedFilter

FILTERS = (*STRATEGY_BY_FILTER, "unscented", "particle")
"""Names of all filters: "salted", the baselines "reset_jacobian" and "no_jump", and two more."""
_PARTICLE_TOLERANCE = 1e-6
"""Default tolerance of flows of single particles, relative and absolute: their noise is larger."""
_JUDGED_FILTERS = ("salted", "unscented")
"""Filters that have to explain a log. Baselines are wrong on purpose, and may fail to."""


def make_filter(
    name: str, model: FilterModel, settings: FilterSettings
) -> SaltedKalmanFilter | ParticleFilter:
    """Return a filter of a model.

    Args:
        name: One of `FILTERS`.
        model: The model.
        settings: Settings of the filter. Particles follow no hypotheses and know no compliance;
            without a tolerance they take 1e-6.

    Raises:
        UnknownNameError: If there is no filter of this name.
        InputError: If model or settings do not fit it.
    """
    check_member("filter", name, FILTERS)
    if name != "particle":
        kind = UnscentedFilter if name == "unscented" else SaltedKalmanFilter
        return build_kalman_filter(
            model, settings, STRATEGY_BY_FILTER.get(name, "saltation"), kind=kind
        )
    tolerance = settings.tolerance or _PARTICLE_TOLERANCE
    return ParticleFilter(
        model.system,
        model.process_noise,
        model.measurements(settings.gate),
        model.reset_noise,
        model.guard_noise,
        signals=tuple(model.signals.values()),
        rewind=settings.rewind,
        patience=settings.patience,
        beginning=model.beginning(),
        rtol=tolerance,
        atol=tolerance,
        particles=settings.particles,
        seed=settings.seed,
        smoothing=settings.smoothing,
    )


def run_filter(
    name: str,
    model: FilterModel,
    settings: FilterSettings,
    record: Record,
    start: Estimate,
    tick: Callable[[float], None] | None = None,
) -> FilterResult:
    """Return the result of a filter over a record.

    Args:
        name: One of `FILTERS`.
        model: The model.
        settings: Its settings.
        record: Rows to filter.
        start: The first estimate.
        tick: Called with the time after each sample, s.

    Raises:
        ImplausibleLogError: The model cannot explain the log at all; the message has the likely
            cause. Filters that are wrong on purpose, and particles, are not judged.
        SimulationError: Numbers break down.
        HybridctlError: Making or running the filter raises one: it is raised again, with the filter
            and the time it reached before its message.
    """
    reached, watch = start.time, LogWatch()

    def progress(t: float) -> None:
        nonlocal reached
        reached = t
        if tick is not None:
            tick(t)

    try:
        with np.errstate(all="ignore"):  # numbers that break down are reported below, once
            chosen = make_filter(name, model, settings)
            # `UnscentedFilter` is a `SaltedKalmanFilter`, too; `ParticleFilter` is none.
            if name not in _JUDGED_FILTERS or not isinstance(chosen, SaltedKalmanFilter):
                return chosen.run(record, start, progress=progress)
            counted = chosen.count_steps(watch.take_step)
            return counted.run(record, start, progress=progress, watch=watch.take_state)
    except (ImplausibleLogError, TooManyStepsError) as error:
        named = {sensor.name: sensor.parts[0].unit for sensor in model.sensors if sensor.parts}
        units = explain_units(record, partial(_try_units, model, settings), named)
        raise ImplausibleLogError(
            f"filter {name!r} ended at t = {reached:.6g} s: {error}\n"
            f"{describe_cause(units, watch.far_off)}"
        ) from error
    except HybridctlError as error:
        raise type(error)(f"filter {name!r} after t = {reached:.6g} s: {error}") from error
    except (ArithmeticError, ValueError, np.linalg.LinAlgError) as error:
        raise SimulationError(
            f"filter {name!r} broke down after t = {reached:.6g} s ({error}); are the noise levels "
            "and units right?"
        ) from error


def _try_units(
    model: FilterModel, settings: FilterSettings, record: Record, watch: LogWatch
) -> None:
    """Filter a record from a first estimate of its own, with one hypothesis, under a watch."""
    alone = replace(settings, hypotheses=1)
    with np.errstate(all="ignore"):
        start, rest = first_estimate(model, alone, record)
        counted = build_kalman_filter(model, alone).count_steps(watch.take_step)
        counted.run(rest, start, watch=watch.take_state)
