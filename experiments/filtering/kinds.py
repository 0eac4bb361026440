"""The filters that `hybridctl filter` knows, by name, behind one call."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hybridctl.experiments.filtering.model import FilterModel, Settings, measurements, salted

from hybridctl.errors import HybridctlError, SimulationError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.filter import SaltedKalmanFilter
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
COMPARED = (*STRATEGIES, "unscented", "particle")


def make_filter(
    name: str, model: FilterModel, settings: Settings
) -> SaltedKalmanFilter | ParticleFilter:
    """A filter by name; the particle filter has the particles, seed and smoothing of the settings.

    It takes all particles at once where the model knows how.
    """
    if name == "unscented":
        return salted(model, settings, kind=UnscentedFilter)
    if name in STRATEGIES:
        return salted(model, settings, STRATEGIES[name])
    return ParticleFilter(
        model.system,
        model.process_noise,
        measurements(model, settings),
        model.reset_noise,
        model.guard_noise or None,
        signals=tuple(model.signals.values()),
        rewind=settings.rewind,
        rtol=settings.tolerance,
        atol=settings.tolerance,
        particles=settings.particles,
        seed=settings.seed,
        smoothing=settings.smoothing,
        propagate=model.propagate,
    )


def run_filter(
    name: str,
    model: FilterModel,
    settings: Settings,
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
