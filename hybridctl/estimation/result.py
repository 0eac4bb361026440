"""What a filter made of a record."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hybridctl.checks import Array, instance, member
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.record import Record, Sample
from hybridctl.estimation.update import Innovation
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.trajectory import Event


@dataclass(frozen=True, eq=False)
class Admission:
    """A corrected estimate that was taken through events, at the same time, see `admit`.

    mean, covariance: before that. matrix (ndx+, ndx): the first-order map, or None.
    """

    mean: Array
    covariance: Array
    matrix: Array | None


@dataclass(frozen=True, eq=False)
class Correction:
    """An estimate after a measurement, and what it took.

    innovation: None where the value was missing, or a contact signal. events: those that the
    correction has brought about, at or before the time of the estimate. undone: the time from which
    on events were taken back, because the measurements say that they are still to come, or None.
    admission: how the events of the correction were passed, None without any. inflated: the
    estimate before, with the covariance that a rejected value was taken with, None otherwise.
    """

    estimate: Estimate
    innovation: Innovation | None = None
    events: tuple[Event, ...] = ()
    undone: float | None = None
    notes: tuple[str, ...] = ()
    admission: Admission | None = None
    inflated: Estimate | None = None


@dataclass(frozen=True, eq=False)
class Step:
    """One sample: prediction to it, and correction by it.

    predicted, estimate: before and after the correction. innovation: None where the value was
    missing or a contact signal. events: since the sample before. undone: the time from which on
    the correction took events back, or None. transition: the first-order map of the prediction,
    None where it was piecewise linear. admission: None where the correction caused no event.
    reopened: whether a value that the gate rejected was taken, with `predicted` made less certain,
    see `recovery`; its innovation is that before, and counts as rejected.
    """

    time: float
    channel: str
    predicted: Estimate
    estimate: Estimate
    innovation: Innovation | None
    events: tuple[Event, ...]
    undone: float | None
    notes: tuple[str, ...]
    transition: Array | None
    admission: Admission | None = None
    reopened: bool = False


@dataclass(frozen=True, eq=False)
class FilterResult:
    """The estimates of a run, one for each sample, with what is needed to judge them.

    skipped: rows before the initial estimate. disorder: stamps of the record that were out of
    order (they were sorted). seconds: of computation.
    """

    initial: Estimate
    steps: tuple[Step, ...]
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
    def events(self) -> tuple[Event, ...]:
        """The events that count in the end, in order of time; those undone are left out."""
        kept: list[Event] = []
        for step in self.steps:
            since = np.inf if step.undone is None else step.undone
            kept = [event for event in kept if event.time < since] + list(step.events)
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
            "undone": sum(step.undone is not None for step in self.steps),
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
    initial: Estimate,
    channels: Collection[str],
    take: Callable[[Sample], Step],
    progress: Callable[[float], None] | None = None,
) -> FilterResult:
    """Take the rows of a record from the time of `initial` on, one after the other.

    Raises `InputError` for a channel of the record that is none of `channels`.
    """
    for name in instance("record", record, Record).channels:
        member("channel", name, channels)
    begun, steps, skipped = time.perf_counter(), list[Step](), 0
    for sample in record.samples():
        if sample.time < initial.time:
            skipped += 1
            continue
        steps.append(take(sample))
        if progress is not None:
            progress(sample.time)
    seconds = time.perf_counter() - begun
    return FilterResult(initial, tuple(steps), skipped, record.disorder, seconds)
