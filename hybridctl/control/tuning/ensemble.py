"""Ensembles of perturbed runs: in parallel, resumable, the same for any number of workers.

A trial simulates one member of an ensemble. Its outcome depends on the controller, the gains and
the number of the member alone. So outcomes may come in any order and from any process, and may be
read back from the record of a run that was interrupted.

Members are simulated one by one, in processes, because each has a plant of its own. A batch
(`simulate_batch`) would not be much faster either. For 2 s of the door at 1 kHz a member of a batch
takes 44 ms without the input law, and a run of its own 69 ms with the law.
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
from hybridctl.base.errors import (
    ConstraintViolatedError,
    GuardViolatedError,
    InputError,
    SimulationError,
)
from hybridctl.base.fingerprint import compute_fingerprint
from hybridctl.base.journal import Journal, compute_all
from hybridctl.base.workers import Crew, InProcessExecutor
from hybridctl.control.gains import GainCurve, GainSchedule
from hybridctl.control.reference import Reference
from hybridctl.control.spreading import locate
from hybridctl.control.tracking_error import tracking_error
from hybridctl.control.tuning.structure import WindowedGains
from hybridctl.hybrid.trajectory import HybridTrajectory

Controller = Literal["spreading", "conventional"]


class Outcome(NamedTuple):
    """The outcome of a run.

    Attributes:
        error: Tracking error, see `outcome`; NaN for a run that failed.
        peak_input: Largest absolute input; NaN for a run that failed.
        failure: Name of the failure that ended the run; None without one.
    """

    error: float
    peak_input: float
    failure: str | None = None


class Trial(Protocol):
    """Simulates one member of an ensemble; picklable if it runs in processes."""

    def __call__(self, controller: Controller, gains: GainSchedule, member: int) -> Outcome:
        """Return the outcome of a member; a run that fails may raise.

        Args:
            controller: Kind of controller.
            gains: Its gains.
            member: Number of the member, from 0.
        """
        ...


def standard_error(values: Array) -> float:
    """Return the standard error of the mean of values (n,); NaN for a single value."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


@dataclass(frozen=True, eq=False)
class Statistics:
    """The outcomes of an ensemble.

    Attributes:
        errors: Errors (n,); a run that failed has the penalty.
        peaks: Largest absolute inputs (n,); NaN for a run that failed.
        failures: Number of runs for each name of a failure.
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
        """95th percentile of the errors; runs that failed count with the penalty."""
        return float(np.percentile(self.errors, 95.0))

    @property
    def peak_input(self) -> float:
        """Largest absolute input of all runs; infinite where all failed."""
        peaks = self.peaks[np.isfinite(self.peaks)]
        return float(peaks.max()) if peaks.size else float("inf")

    def record(self) -> dict[str, Any]:
        """Return the statistics by name; runs that failed count with the penalty."""
        completed = self.errors[np.isfinite(self.peaks)]
        p95 = float(np.percentile(completed, 95)) if len(completed) else None
        return {
            "mean_error": self.mean_error,
            "standard_error": standard_error(self.errors),
            "quartiles": np.percentile(self.errors, (25.0, 50.0, 75.0)).tolist(),
            "p95_error": self.p95_error,
            "peak_input": self.peak_input,
            "failures": self.failures,
            "failed": sum(self.failures.values()),
            "mean_error_of_completed": float(completed.mean()) if len(completed) else None,
            "p95_error_of_completed": p95,
        }


@dataclass(frozen=True)
class Ensemble:
    """An ensemble of runs; called with gains and a controller.

    Attributes:
        trial: Simulates one member.
        members: Numbers of the members.
        executor: Any executor of concurrent.futures; None runs members in this process.
        record: Journal in which outcomes are looked up and kept, by controller, gains, member and
            the code of the trial's class. The data of the trial belong to the journal's
            configuration. None keeps nothing.
        advance: Called once for each outcome; None for nothing.
        penalty: Error of a run that fails.

    Raises:
        InputError: There are no members.
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
        """Return the statistics of gains over all members.

        Args:
            gains: Gains of the controller.
            controller: Kind of controller.
        """
        crew = (
            Crew(InProcessExecutor())
            if self.executor is None
            else Crew(self.executor, len(self.members))
        )
        label = f"{controller}:{compute_digest(gains)}"
        if self.record is not None:
            is_function = isinstance(self.trial, FunctionType | MethodType | partial)
            code = self.trial if is_function else type(self.trial)
            label += f":{compute_fingerprint(code, 'trial')[:16]}"
        rows = compute_all(
            partial(_run_trial, self.trial, controller, gains),
            self.members,
            crew,
            lambda share: self.advance() if self.advance is not None else None,
            self.record,
            lambda member: f"{label}:{member}",
        )
        outcomes = [Outcome(*row) for row in rows]
        failures = Counter(o.failure for o in outcomes if o.failure is not None)
        has_failed = [o.failure is not None for o in outcomes]
        return Statistics(
            np.where(has_failed, self.penalty, [o.error for o in outcomes]),
            np.where(has_failed, np.nan, [o.peak_input for o in outcomes]),
            dict(sorted(failures.items())),
        )


def outcome(reference: Reference, run: HybridTrajectory, *, period: float = 2e-3) -> Outcome:
    """Return the outcome of a run that tracks a reference.

    The error is the root mean square of the "spread" tracking error (see `tracking_error`) from the
    event that completes the first event of the reference to the end. rad, m, rad/s and m/s count as
    equal units. The peak is the largest component of the input in absolute value. A run that does
    not complete the first event has failed.

    Args:
        reference: The reference.
        run: The run.
        period: Greatest distance of samples, s.
    """
    completing = next(
        (k for k in range(len(run.events)) if locate(reference, run.events[: k + 1]).macro > 0),
        None,
    )
    if completing is None:
        return Outcome(float("nan"), float("nan"), "IncompleteEvent")
    spread = tracking_error(reference, run, "spread", period)
    peak = max(float(np.abs(arc.input(t)).max()) for arc, t in run.sampled(period))
    return Outcome(spread.select_from(completing + 1).rms, peak)


def compute_digest(gains: GainSchedule) -> str:
    """Return a digest of gains, which is equal for gains that are equal to the last bit."""
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


def _run_trial(trial: Trial, controller: Controller, gains: GainSchedule, member: int) -> Outcome:
    """Return the outcome of a member, that of a failure where the run raises."""
    # A motion may drift off what its mode holds, or through a guard, by more than the tolerance of
    # the trial. That is an `InputError` of the state where an arc begins, and a failure of the run.
    failures = (SimulationError, GuardViolatedError, ConstraintViolatedError)
    try:
        return trial(controller, gains, member)
    except failures as error:
        return Outcome(float("nan"), float("nan"), type(error).__name__)
