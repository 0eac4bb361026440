"""The filters by name, on a model with its settings, behind one call."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hybridctl.checks import member
from hybridctl.errors import HybridctlError, SimulationError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.filter import SaltedKalmanFilter
from hybridctl.estimation.filter_model import FilterModel, FilterSettings
from hybridctl.estimation.jumps import Strategy
from hybridctl.estimation.particle import ParticleFilter
from hybridctl.estimation.record import Record
from hybridctl.estimation.result import FilterResult
from hybridctl.estimation.unscented import UnscentedFilter

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
    """One of `FILTERS`: salted, a baseline that takes events otherwise, unscented, or particles.

    The particle filter takes all particles at once where the model knows how.
    """
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
        propagate=model.propagate,
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
