"""The filters by name, on a model with its settings, and the estimate that they start from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.linalg import block_diag

from hybridctl.checks import Array, member
from hybridctl.errors import HybridctlError, InputError, SimulationError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.filter import SaltedKalmanFilter
from hybridctl.estimation.filter_model import FilterModel, FilterSettings
from hybridctl.estimation.jumps import Strategy
from hybridctl.estimation.particle import ParticleFilter
from hybridctl.estimation.reconcile import reconcile
from hybridctl.estimation.record import Record
from hybridctl.estimation.result import FilterResult
from hybridctl.estimation.unscented import UnscentedFilter
from hybridctl.mechanics.system import ContactSystem

STRATEGIES: dict[str, Strategy] = {
    "salted": "saltation",
    "reset_jacobian": "reset_jacobian",
    "no_jump": "no_jump",
}
PARTICLES = 1e-6  # tolerance of flows of single particles, unless told
FILTERS = (*STRATEGIES, "unscented", "particle")


def make_filter(
    name: str, model: FilterModel, settings: FilterSettings
) -> SaltedKalmanFilter | ParticleFilter:
    """One of `FILTERS`: salted, a baseline that takes events otherwise, unscented, or particles."""
    member("filter", name, FILTERS)
    if name != "particle":
        kind = UnscentedFilter if name == "unscented" else SaltedKalmanFilter
        return kalman(model, settings, STRATEGIES.get(name, "saltation"), kind=kind)
    return ParticleFilter(
        model.system,
        model.process_noise,
        model.measurements(settings.gate),
        model.reset_noise,
        model.guard_noise or None,
        signals=tuple(model.signals.values()),
        rewind=settings.rewind,
        patience=settings.patience,
        beginning=model.beginning(),
        rtol=settings.tolerance or PARTICLES,
        atol=settings.tolerance or PARTICLES,
        particles=settings.particles,
        seed=settings.seed,
        smoothing=settings.smoothing,
    )


def kalman(
    model: FilterModel,
    settings: FilterSettings,
    strategy: Strategy = "saltation",
    *,
    gated: bool = True,
    kind: type[SaltedKalmanFilter] = SaltedKalmanFilter,
) -> SaltedKalmanFilter:
    """The Kalman filter of a model; gated: whether by the gate of the settings."""
    return kind(
        model.system,
        model.process_noise,
        model.measurements(settings.gate if gated else None),
        model.reset_noise,
        model.guard_noise or None,
        signals=tuple(model.signals.values()),
        strategy=strategy,
        rewind=settings.rewind,
        hypotheses=settings.hypotheses,
        patience=settings.patience,
        beginning=model.beginning(),
        rtol=settings.tolerance,
        atol=settings.tolerance,
    )


def run_filter(
    name: str,
    model: FilterModel,
    settings: FilterSettings,
    record: Record,
    start: Estimate,
    tick: Callable[[float], None] | None = None,
) -> FilterResult:
    """One filter over a record. Raises `SimulationError` where its numbers break down."""
    reached = start.time

    def progress(t: float) -> None:
        nonlocal reached
        reached = t
        if tick is not None:
            tick(t)

    try:
        with np.errstate(all="ignore"):
            return make_filter(name, model, settings).run(record, start, progress=progress)
    except HybridctlError as error:
        raise type(error)(f"filter {name!r} after t = {reached:.6g} s: {error}") from error
    except (ArithmeticError, ValueError, np.linalg.LinAlgError) as error:
        raise SimulationError(
            f"filter {name!r} broke down after t = {reached:.6g} s ({error}); are the noise levels "
            "and units right?"
        ) from error


def first_estimate(
    model: FilterModel, settings: FilterSettings, record: Record
) -> tuple[Estimate, Record]:
    """The estimate at the start of a record, and the rows that are still to be filtered.

    That of the model, taken to be just before the first row. Where it has none, that after the
    first `warm_up` complete rows of its first sensor: the first row gives the configuration, with
    the covariance of its sensor. Velocities begin at the difference over these rows with the
    model's wide deviations; the filter, with no gate, goes over the rows that follow. It begins in
    the open mode; where the log begins in contact, guards that the state is past close at once.
    Raises `InputError` for fewer rows than that.
    """
    if model.start is not None:
        begin = min(float(s.times.min()) for s in record.channels.values() if len(s.times))
        return replace(model.start, time=begin), record
    sensor = model.sensors[0]
    series = record.channels[sensor.name].sorted()
    complete = np.flatnonzero(np.isfinite(series.values).all(axis=1))[: settings.warm_up]
    times = series.times[complete]
    if len(complete) < settings.warm_up or not times[0] < times[-1]:
        raise InputError(
            f"the first estimate needs {settings.warm_up} complete rows of {sensor.name!r} at "
            f"different times, and there are {len(complete)}; `warm_up` may be as small as 2"
        )
    start = _prior(model, series.values[complete[[0, -1]]], times)
    loose = kalman(model, settings, gated=False)

    def inside(e: Estimate) -> Estimate:
        law = loose.model.law(e.mode, record.input(e.time))
        return reconcile(loose.model, e, law).estimate

    first = record.between(times[0], times[-1])
    last = loose.run(first, inside(start)).steps[-1].estimate
    return inside(last), record.between(times[-1], np.inf)


def _prior(model: FilterModel, ends: Array, times: Array) -> Estimate:
    assert isinstance(model.system, ContactSystem)
    assert model.speeds is not None
    robot = model.system.robot
    if ends.shape[1] != robot.nq:
        raise InputError(
            f"the model must give `start`, because its first sensor {model.sensors[0].name!r} "
            f"measures {ends.shape[1]} of {robot.nq} coordinates of the configuration"
        )
    q, last = (robot.normalize(row) for row in ends)
    v = robot.difference(q, last) / (times[-1] - times[0])
    p = block_diag(model.sensors[0].measurement.covariance, np.diag(model.speeds**2))
    return Estimate(model.open, float(times[0]), np.concatenate([q, v]), p)
