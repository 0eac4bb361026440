"""What a filter made of a record."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeVar

import numpy as np

from hybridctl.base.checks import Array, check_instance, check_member
from hybridctl.estimation.chances import ASTRIDE
from hybridctl.estimation.correct import Innovation
from hybridctl.estimation.estimate import Estimate, Mixture
from hybridctl.estimation.jumps import UNSURE
from hybridctl.estimation.record import ChannelRow, Record
from hybridctl.estimation.state import FilterState, Hypothesis
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.trajectory import Event


class Timed(Protocol):
    """A state of a filter."""

    @property
    def time(self) -> float:
        """Its time, s."""
        ...


Kept = TypeVar("Kept", bound=Timed)
Predict = Callable[[Kept, float, Array | None], Kept]
Update = Callable[[Kept, str, Array, Array | None], Kept]


@dataclass(frozen=True, eq=False)
class FilterResult:
    """The states of a run after each sample, with what is needed to judge them.

    Where hypotheses are several, `means`, `covariances`, `modes` and `probabilities` are those of
    all of them together (`mixtures`); `steps[k].estimate` is that of the likeliest alone.
    Innovations, NIS and notes are those of the likeliest after each value; log-likelihoods count
    all. `events` and `history`, and so the smoother, go along the one that was right in the end.

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

    @cached_property
    def mixtures(self) -> tuple[Mixture, ...]:
        """What is known after each sample, by all hypotheses together."""
        return tuple(step.mixture for step in self.steps)

    @property
    def means(self) -> tuple[Array, ...]:
        """Mean (nx,) of all hypotheses after each sample; its size is that of `modes`' states."""
        return tuple(mixture.mean for mixture in self.mixtures)

    @property
    def covariances(self) -> tuple[Array, ...]:
        """Covariance (ndx, ndx) of all hypotheses after each sample, their differences included."""
        return tuple(mixture.covariance for mixture in self.mixtures)

    @property
    def modes(self) -> tuple[ModeKey, ...]:
        """The most probable mode after each sample."""
        return tuple(mixture.mode for mixture in self.mixtures)

    @property
    def probabilities(self) -> tuple[Mapping[ModeKey, float], ...]:
        """The probabilities of modes after each sample, the most probable first."""
        return tuple(mixture.probabilities for mixture in self.mixtures)

    def probability(self, mode: ModeKey) -> Array:
        """How probable a mode is after each sample (n,)."""
        return np.array([mixture.probabilities.get(mode, 0.0) for mixture in self.mixtures])

    @property
    def doubtful(self) -> tuple[ModeKey, ...]:
        """Modes that were between 1 and 99 % probable after some sample, the longest so first."""
        between = Counter(
            mode for shares in self.probabilities for mode, p in shares.items() if 0.01 < p < 0.99
        )
        return tuple(mode for mode, _ in between.most_common())

    @cached_property
    def innovations(self) -> tuple[Innovation, ...]:
        """Innovations of all values that were there, rejected ones too; of the likeliest each."""
        return tuple(step.innovation for step in self.steps if step.innovation is not None)

    @cached_property
    def history(self) -> tuple[Hypothesis, ...]:
        """The hypothesis after each sample that was right in the end, or led to it."""
        return self.history_of(0)

    def history_of(self, k: int) -> tuple[Hypothesis, ...]:
        """The hypothesis after each sample that led to the k-th of those that are left."""
        chain = list[Hypothesis]()
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
        """The innovations that the gates rejected."""
        return tuple(i for i in self.innovations if not i.accepted)

    @property
    def notes(self) -> tuple[tuple[float, str], ...]:
        """Times and texts of all notes: where a less exact method replaced the usual one."""
        return tuple((step.time, note) for step in self.steps for note in step.notes)

    @property
    def unsure(self) -> int:
        """How many events came at a rate of their guard that is less certain than its sign."""
        return sum(UNSURE in note for _, note in self.notes)

    @property
    def astride(self) -> int:
        """How many events may lie on the other side of a sample, where one order is followed."""
        return sum(ASTRIDE in note for _, note in self.notes)

    @property
    def log_likelihood(self) -> float:
        """Sum over the values that were accepted; each counts all hypotheses by their weights."""
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
            "unsure": self.unsure,
            "astride": self.astride,
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


def over_sample(
    state: Kept, record: Record, sample: ChannelRow, predict: Predict[Kept], update: Update[Kept]
) -> Kept:
    """The state of a filter after a sample of a record, over changes of the input."""
    for t in (*record.input_changes(state.time, sample.time), sample.time):
        state = predict(state, t, record.input(state.time))
    return update(state, sample.channel, sample.value, record.input(sample.time))


def over_record(
    record: Record,
    start: Kept,
    channels: Collection[str],
    predict: Predict[Kept],
    update: Update[Kept],
    shown: Callable[[Kept], FilterState],
    progress: Callable[[float], None] | None,
    watch: Callable[[FilterState], None] | None = None,
) -> FilterResult:
    """Take the rows of a record from the time of a state on, one after the other.

    shown: what a state of the filter says. watch: called with that after each sample; what it
    raises ends the run. Raises `InputError` for a channel of the record that is
    none of `channels`.
    """
    for name in check_instance("record", record, Record).channels:
        check_member("channel", name, channels)
    begun, states, skipped = time.perf_counter(), list[FilterState](), 0
    state = start
    for sample in record.samples():
        if sample.time < start.time:
            skipped += 1
            continue
        state = over_sample(state, record, sample, predict, update)
        states.append(shown(state))
        if watch is not None:
            watch(states[-1])
        if progress is not None:
            progress(sample.time)
    seconds, first = time.perf_counter() - begun, shown(start).estimate
    return FilterResult(first, tuple(states), skipped, record.disorder, seconds)
