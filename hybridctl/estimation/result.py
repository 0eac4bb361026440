"""What a filter made of a record."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hybridctl.checks import Array, instance, member
from hybridctl.estimation.correct import Innovation
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.record import Record, Sample
from hybridctl.estimation.state import FilterState, Hypothesis
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.trajectory import Event


@dataclass(frozen=True, eq=False)
class FilterResult:
    """The states of a run after each sample, with what is needed to judge them.

    skipped: rows before the initial estimate. disorder: stamps of the record that were out of
    order (they were sorted). seconds: of computation.
    """

    initial: Estimate
    steps: tuple[FilterState, ...]
    skipped: int
    disorder: int
    seconds: float

    @cached_property
    def times(self) -> Array:
        """Times (n,) of the samples, s."""
        return np.array([step.time for step in self.steps])

    @property
    def means(self) -> tuple[Array, ...]:
        """Mean (nx,) after each sample; the size is that of its mode's state."""
        return tuple(step.estimate.mean for step in self.steps)

    @property
    def covariances(self) -> tuple[Array, ...]:
        """Covariance (ndx, ndx) after each sample."""
        return tuple(step.estimate.covariance for step in self.steps)

    @property
    def modes(self) -> tuple[ModeKey, ...]:
        """Mode after each sample."""
        return tuple(step.estimate.mode for step in self.steps)

    @cached_property
    def innovations(self) -> tuple[Innovation, ...]:
        """Of all values that were there, also those that were rejected."""
        return tuple(step.innovation for step in self.steps if step.innovation is not None)

    @cached_property
    def history(self) -> tuple[Hypothesis, ...]:
        """After each sample, the hypothesis that was right in the end, or led to it."""
        chain, k = list[Hypothesis](), 0
        for step in reversed(self.steps):
            chain.append(step.hypotheses[k])
            k = chain[-1].parent
        return tuple(reversed(chain))

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """The events that count in the end, in order of time; those undone are left out."""
        kept: list[Event] = []
        for h in self.history:
            since = np.inf if h.undone is None else h.undone
            kept = [event for event in kept if event.time < since] + list(h.events)
        return tuple(sorted(kept, key=lambda event: event.time))

    @property
    def rejected(self) -> tuple[Innovation, ...]:
        """What the gates rejected."""
        return tuple(i for i in self.innovations if not i.accepted)

    @property
    def notes(self) -> tuple[tuple[float, str], ...]:
        """Where something less exact stood in: time of the sample, and what."""
        return tuple((step.time, note) for step in self.steps for note in step.notes)

    @property
    def log_likelihood(self) -> float:
        """Sum over the values that were accepted."""
        return float(sum(i.log_likelihood for i in self.innovations if i.accepted))

    @property
    def nis(self) -> Array:
        """Normalized innovation squared of the values that were accepted (k,)."""
        return np.array([i.nis for i in self.innovations if i.accepted])

    def summary(self) -> dict[str, float | int | None]:
        """Counts and means for `summary.json`; nis_dim is the mean dimension of a value."""
        taken = [i for i in self.innovations if i.accepted]
        dimensions = [i.dimension for i in taken]
        count = len(self.steps)
        return {
            "steps": count,
            "events": len(self.events),
            "undone": sum(step.undone for step in self.steps),
            "rejected": len(self.rejected),
            "reopened": sum(step.reopened for step in self.steps),
            "missing": count - len(self.innovations),
            "skipped": self.skipped,
            "replaced": len(self.notes),
            "mean_nis": float(self.nis.mean()) if taken else None,
            "nis_dim": float(np.mean(dimensions)) if taken else None,
            "log_likelihood": self.log_likelihood,
            "seconds_per_step": self.seconds / count if count else None,
        }


def over_record(
    record: Record,
    start: FilterState,
    channels: Collection[str],
    advance: Callable[[FilterState, Record, Sample], FilterState],
    progress: Callable[[float], None] | None,
) -> FilterResult:
    """Take the rows of a record from the time of a state on, one after the other.

    Raises `InputError` for a channel of the record that is none of `channels`.
    """
    for name in instance("record", record, Record).channels:
        member("channel", name, channels)
    begun, states, skipped = time.perf_counter(), list[FilterState](), 0
    state = start
    for sample in record.samples():
        if sample.time < start.time:
            skipped += 1
            continue
        state = advance(state, record, sample)
        states.append(state)
        if progress is not None:
            progress(sample.time)
    seconds = time.perf_counter() - begun
    return FilterResult(start.estimate, tuple(states), skipped, record.disorder, seconds)
