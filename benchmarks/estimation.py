"""What one sample costs a filter: prediction and correction, beside the particle filter.

Synthetic logs at 148 Hz, the rate of the recorded cubes. Each body starts in the air and hits, so
samples with impacts and in contact are among those averaged. All in one run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from rich.table import Table

from benchmarks.timing import Timing, measure
from hybridctl.app.models import find_model
from hybridctl.app.report import make_table
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.filter_model import FilterModel, FilterSettings
from hybridctl.estimation.initial_estimate import first_estimate
from hybridctl.estimation.record import Record
from hybridctl.estimation.synthetic import simulate_record
from hybridctl.sampling.filters import make_filter

RATE, PARTICLES, MANY = 148.0, 20, 1000
DURATIONS = {"ball": 0.6, "block": 0.4, "cube": 0.35}  # s
COLUMNS = [
    "what",
    "salted ms",
    "times real time",
    "unscented",
    f"{PARTICLES} particles",
    f"{MANY} particles",
    "max/min",
]


class FilterLog(NamedTuple):
    """A log and what filters it."""

    model: FilterModel
    settings: FilterSettings
    record: Record
    start: Estimate
    samples: int


def table_of_filters(effort: dict[str, float]) -> Table:
    """Milliseconds of the salted filter per sample; the others as multiples of it."""
    quick = effort["rounds"] == 1
    rows = []
    for name, duration in DURATIONS.items():
        log = prepared(name, 0.1 if quick else duration)
        salted = per_sample("salted", log, effort)
        rows.append(
            (
                f"{name}, {log.samples} samples",
                f"{salted.best / 1e3:.2f}",
                f"{1e6 / RATE / salted.best:.2f}",
                *(f"{cost / salted.best:.1f}" for cost in others(log)),
                f"{salted.spread:.2f}",
            )
        )
    title = f"One sample at {RATE:g} Hz; multiples for unscented and particle filters"
    return make_table(title, COLUMNS, rows)


def prepared(name: str, duration: float) -> FilterLog:
    """A synthetic log of a body, and the first estimate from it."""
    chosen = [f"rate={RATE}", f"duration={duration}", f"particles={PARTICLES}"]
    source = find_model(name)
    settings = source.configure(None, chosen)
    model = source.make(settings)
    start, record = first_estimate(model, settings, simulate_record(model, settings)[0])
    samples = sum(len(series.times) for series in record.channels.values())
    return FilterLog(model, settings, record, start, samples)


def per_sample(name: str, log: FilterLog, effort: dict[str, float]) -> Timing:
    """Microseconds per sample of runs over the whole log."""
    kept = make_filter(name, log.model, log.settings)
    timing = measure(lambda: kept.run(log.record, log.start), **effort)
    return Timing(timing.best / log.samples, timing.spread)


def others(log: FilterLog) -> list[float]:
    """Microseconds per sample: unscented, few particles and many."""
    many = log._replace(settings=replace(log.settings, particles=MANY))
    return [once("unscented", log), once("particle", log), once("particle", many)]


def once(name: str, log: FilterLog) -> float:
    """Microseconds per sample of one run over the whole log."""
    result = make_filter(name, log.model, log.settings).run(log.record, log.start)
    return 1e6 * result.seconds / log.samples
