"""The result of a filter on a record, and the loop over its rows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeVar

import numpy as np

from hybridctl.base.checks import Array, check_instance, check_member
from hybridctl.estimation.deadline import NO_TIME_LEFT
from hybridctl.estimation.estimate import Estimate, Mixture
from hybridctl.estimation.filter_state import FilterState, Hypothesis
from hybridctl.estimation.guard_probabilities import AMBIGUOUS_SAMPLE
from hybridctl.estimation.kalman_equations import Innovation
from hybridctl.estimation.record import ChannelRow, Record
from hybridctl.estimation.salted_jump import RATE_NOT_SIGNIFICANT
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.trajectory import Event


class Timed(Protocol):
    """A state of a filter, with its time."""

    @property
    def time(self) -> float:
        """The time, s."""
        ...


Kept = TypeVar("Kept", bound=Timed)
Predict = Callable[[Kept, float, Array | None], Kept]
"""Function of state, time in s and held input."""
Update = Callable[[Kept, str, Array, Array | None], Kept]
"""Function of state, channel, value and held input."""


@dataclass(frozen=True, eq=False)
class FilterResult:
    """The states of a filter after each row of a record.

    With several hypotheses, `means`, `covariances`, `modes` and `probabilities` are those of all of
    them together (`mixtures`); `steps[k].estimate` is that of the likeliest. Innovations, NIS and
    notes are those of the likeliest after each value; log-likelihoods are those of all. `events`
    and `history`, and so the smoother, follow the hypothesis that was likeliest in the end.

    Attributes:
        initial: The initial estimate.
        steps: States after each row.
        skipped: Number of rows before the initial estimate.
        disorder: Number of stamps of the record that were out of order; they were sorted.
        seconds: Time of computation, s.
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
        """Moments of all hypotheses together after each sample."""
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
        """Return the probability (n,) of a mode after each sample.

        Args:
            mode: Key of the mode.
        """
        return np.array([mixture.probabilities.get(mode, 0.0) for mixture in self.mixtures])

    @property
    def doubtful(self) -> tuple[ModeKey, ...]:
        """Modes that were between 1 and 99 % probable after a sample, the most frequent first."""
        between = Counter(
            mode for shares in self.probabilities for mode, p in shares.items() if 0.01 < p < 0.99
        )
        return tuple(mode for mode, _ in between.most_common())

    @cached_property
    def innovations(self) -> tuple[Innovation, ...]:
        """Innovations of all values that were not missing, rejected ones included."""
        return tuple(step.innovation for step in self.steps if step.innovation is not None)

    @cached_property
    def history(self) -> tuple[Hypothesis, ...]:
        """The hypothesis after each sample that led to the likeliest one at the end."""
        return self.history_of(0)

    def history_of(self, k: int) -> tuple[Hypothesis, ...]:
        """Return the hypothesis after each sample that led to one of those at the end.

        Args:
            k: Index of the hypothesis at the end, 0 for the likeliest.
        """
        chain = list[Hypothesis]()
        for step in reversed(self.steps):
            chain.append(step.hypotheses[k])
            k = chain[-1].parent
        return tuple(reversed(chain))

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """The events of the likeliest history in order of time, without those that were undone."""
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
        """Times in s and texts of all notes: where a less exact method replaced the usual one."""
        return tuple((step.time, note) for step in self.steps for note in step.notes)

    @property
    def unsure(self) -> int:
        """Number of events at which the rate of the guard was not significant."""
        return sum(RATE_NOT_SIGNIFICANT in note for _, note in self.notes)

    @property
    def astride(self) -> int:
        """Number of events that may lie on the other side of a sample, if one order is followed."""
        return sum(AMBIGUOUS_SAMPLE in note for _, note in self.notes)

    @property
    def cut(self) -> int:
        """Number of samples at which work was cut because their deadline was exceeded."""
        return sum(any(NO_TIME_LEFT in note for note in step.notes) for step in self.steps)

    @property
    def log_likelihood(self) -> float:
        """Sum of the log-likelihoods of the accepted values; each is that of all hypotheses."""
        return float(sum(i.log_likelihood for i in self.innovations if i.accepted))

    @property
    def nis(self) -> Array:
        """Normalized innovations squared (k,) of the accepted values."""
        return np.array([i.nis for i in self.innovations if i.accepted])

    def summary(self) -> dict[str, float | int | None]:
        """Return counts and means for `summary.json`.

        "nis_dim" is the mean dimension of an accepted value. "missing" counts steps without an
        innovation: values that are missing or contain nothing about the mode, and contact signals.
        "replaced" counts notes. Means are None without an accepted value.
        """
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
            "cut": self.cut,
            "mean_nis": float(self.nis.mean()) if taken else None,
            "nis_dim": float(np.mean(dimensions)) if taken else None,
            "log_likelihood": self.log_likelihood,
            "seconds_per_step": self.seconds / count if count else None,
        }


def filter_sample(
    state: Kept, record: Record, sample: ChannelRow, predict: Predict[Kept], update: Update[Kept]
) -> Kept:
    """Return the state of a filter after a row of a record, over changes of the input.

    Args:
        state: State of the filter.
        record: The record, which has the inputs.
        sample: The row.
        predict: Returns the state at a later time.
        update: Returns the state after a value.
    """
    for t in (*record.input_changes(state.time, sample.time), sample.time):
        state = predict(state, t, record.input(state.time))
    return update(state, sample.channel, sample.value, record.input(sample.time))


def filter_record(
    record: Record,
    start: Kept,
    channels: Collection[str],
    predict: Predict[Kept],
    update: Update[Kept],
    get_state: Callable[[Kept], FilterState],
    progress: Callable[[float], None] | None,
    watch: Callable[[FilterState], None] | None = None,
) -> FilterResult:
    """Return the result of a filter on the rows of a record, in order of time.

    Args:
        record: The record. Rows before the time of `start` are left out.
        start: State of the filter at the start.
        channels: Channels that the filter has.
        predict: Returns the state at a later time.
        update: Returns the state after a value.
        get_state: Returns the `FilterState` of a state of the filter.
        progress: Called with the time in s after each row, or None.
        watch: Called with the `FilterState` after each row, or None. What it raises ends the run.

    Raises:
        InputError: `record` is no `Record`. A channel that the filter does not have is an
            `UnknownNameError`, which is one too.
    """
    for name in check_instance("record", record, Record).channels:
        check_member("channel", name, channels)
    begin, states, skipped = time.perf_counter(), list[FilterState](), 0
    state = start
    for sample in record.samples():
        if sample.time < start.time:
            skipped += 1
            continue
        state = filter_sample(state, record, sample, predict, update)
        states.append(get_state(state))
        if watch is not None:
            watch(states[-1])
        if progress is not None:
            progress(sample.time)
    seconds, first = time.perf_counter() - begin, get_state(start).estimate
    return FilterResult(first, tuple(states), skipped, record.disorder, seconds)
