"""Ensembles of perturbed runs: in parallel, resumable, the same for any number of workers.

A trial simulates one member of an ensemble. Its outcome depends on the controller, the gains and
the number of the member alone, so that outcomes can be taken in any order and from any process,
and be read back from the record of a run that was interrupted.

Members are simulated one by one, in processes: each has a plant of its own. `simulate_batch` would
not save time either: a sample under a held input takes 22 us a member there, without the law, so
that the 2 s of the door at 1 kHz cost 44 ms, where a run under the law itself takes 69 ms in all.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import GuardViolatedError, InputError, SimulationError
from hybridctl.base.fingerprint import compute_fingerprint
from hybridctl.base.journal import Journal, compute_all
from hybridctl.base.workers import Crew, InProcessExecutor
from hybridctl.control.gains import GainCurve, GainSchedule
from hybridctl.control.reference import Reference
from hybridctl.control.spreading import locate
from hybridctl.control.tracking import tracking_error
from hybridctl.control.tuning.structure import WindowedGains
from hybridctl.hybrid.trajectory import HybridTrajectory

Controller = Literal["spreading", "conventional"]


class Outcome(NamedTuple):
    """A run's error, its largest input, and the name of the failure that ended it."""

    error: float
    peak_input: float
    failure: str | None = None


class Trial(Protocol):
    """Simulates member `member` (0, 1, ...) of an ensemble; picklable if run in processes."""

    def __call__(self, controller: Controller, gains: GainSchedule, member: int) -> Outcome:
        """The outcome; raises `SimulationError` or `GuardViolatedError` where a run fails."""
        ...


def standard_error(values: Array) -> float:
    """The standard error of the mean of values (n,), nan for one alone."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


@dataclass(frozen=True, eq=False)
class Statistics:
    """Outcomes of an ensemble: errors, peaks (n,), and how often each failure happened.

    A run that failed has the penalty as its error, and no peak (nan).
    """

    errors: Array
    peaks: Array
    failures: dict[str, int]

    @property
    def mean_error(self) -> float:
        """Mean of the errors."""
        return float(self.errors.mean())

    @property
    def p95_error(self) -> float:
        """95th percentile of the errors."""
        return float(np.percentile(self.errors, 95.0))

    @property
    def peak_input(self) -> float:
        """The largest input of all runs, infinite where all failed."""
        known = self.peaks[np.isfinite(self.peaks)]
        return float(known.max()) if known.size else float("inf")

    def record(self) -> dict[str, Any]:
        """The statistics by name, for summaries; runs that failed count with the penalty."""
        ended = self.errors[np.isfinite(self.peaks)]
        return {
            "mean_error": self.mean_error,
            "standard_error": standard_error(self.errors),
            "quartiles": np.percentile(self.errors, (25.0, 50.0, 75.0)).tolist(),
            "p95_error": self.p95_error,
            "peak_input": self.peak_input,
            "failures": self.failures,
            "failed": sum(self.failures.values()),
            "mean_error_of_completed": float(ended.mean()) if len(ended) else None,
            "p95_error_of_completed": float(np.percentile(ended, 95)) if len(ended) else None,
        }


@dataclass(frozen=True)
class Ensemble:
    """Members `members` of a trial; called with gains and a controller.

    executor: any of concurrent.futures, or None to run here. record: where outcomes are kept and
    looked up, by controller, gains, member and the code of the trial's class; what the trial is
    made of belongs to the configuration of the record. advance: called once for each outcome.
    penalty: the error of a run that fails.
    """

    trial: Trial
    members: Sequence[int]
    executor: Executor | None = None
    record: Journal | None = None
    advance: Callable[[], None] | None = None
    penalty: float = 10.0

    def __post_init__(self) -> None:
        if not len(self.members):
            raise InputError("members must have one number at least, got none")

    def __call__(self, gains: GainSchedule, controller: Controller = "spreading") -> Statistics:
        """The statistics of these gains over all members."""
        crew = (
            Crew(InProcessExecutor())
            if self.executor is None
            else Crew(self.executor, len(self.members))
        )
        label = f"{controller}:{digest(gains)}"
        if self.record is not None:
            is_function = isinstance(self.trial, FunctionType | MethodType | partial)
            code = self.trial if is_function else type(self.trial)
            label += f":{compute_fingerprint(code, 'trial')[:16]}"
        found = compute_all(
            partial(_attempt, self.trial, controller, gains),
            self.members,
            crew,
            lambda share: self.advance() if self.advance is not None else None,
            self.record,
            lambda member: f"{label}:{member}",
        )
        outcomes = [Outcome(*each) for each in found]
        failures = Counter(o.failure for o in outcomes if o.failure is not None)
        failed = [o.failure is not None for o in outcomes]
        return Statistics(
            np.where(failed, self.penalty, [o.error for o in outcomes]),
            np.where(failed, np.nan, [o.peak_input for o in outcomes]),
            dict(sorted(failures.items())),
        )


def outcome(reference: Reference, run: HybridTrajectory, *, period: float = 2e-3) -> Outcome:
    """What a tracked run gave: its post-impact error and its largest input.

    The error is the root of the time average of the squared norm of the spread error (the state
    minus the arc of its own event count, all components, rad or m and rad/s or m/s taken as equal
    units) from the event that completes the first event of the reference to the end. The input is
    the largest component in absolute value. Both are sampled at most `period` s apart. A run that
    does not complete that event fails.
    """
    done = next(
        (k for k in range(len(run.events)) if locate(reference, run.events[: k + 1]).macro > 0),
        None,
    )
    if done is None:
        return Outcome(float("nan"), float("nan"), "IncompleteEvent")
    spread = tracking_error(reference, run, "spread", period)
    peak = max(float(np.abs(arc.input(t)).max()) for arc, t in run.sampled(period))
    return Outcome(spread.since(done + 1).rms, peak)


def digest(gains: GainSchedule) -> str:
    """A name for gains that are the same to the last bit."""
    keys = sorted(gains.phantoms, key=lambda key: (key[0], sorted(key[1])))
    total = hashlib.sha256(repr([(event, sorted(fired)) for event, fired in keys]).encode())
    if isinstance(gains, WindowedGains):
        total.update(repr(gains.windows).encode())
    curves: list[GainCurve] = [*gains.arcs, *(gains.phantoms[key] for key in keys)]
    for curve in curves:
        total.update(repr(curve.values.shape).encode())
        slopes = b"" if curve.slopes is None else curve.slopes.tobytes()
        total.update(curve.times.tobytes() + curve.values.tobytes() + slopes)
    return total.hexdigest()[:32]


def _attempt(trial: Trial, controller: Controller, gains: GainSchedule, member: int) -> Outcome:
    try:
        return trial(controller, gains, member)
    except (SimulationError, GuardViolatedError) as error:
        return Outcome(float("nan"), float("nan"), type(error).__name__)
