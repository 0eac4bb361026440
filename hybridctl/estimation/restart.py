"""An estimate made anew from the last values of a channel, where its mode was wrong.

When that is done, and what it begins with, is said in `recovery`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from hybridctl.checks import Array
from hybridctl.errors import SimulationError
from hybridctl.estimation.admit import admit
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.model import Model
from hybridctl.estimation.predict import extend
from hybridctl.estimation.record import Record, Sample
from hybridctl.estimation.recovery import Beginning
from hybridctl.estimation.result import Step
from hybridctl.estimation.update import Innovation
from hybridctl.hybrid.laws import InputLaw

Row = tuple[Estimate, Sample]  # a value that was there, and the estimate after it


class Steps(Protocol):
    """What a restart needs of a filter, see `SaltedKalmanFilter`."""

    model: Model

    def advance(self, record: Record, estimate: Estimate, sample: Sample) -> Step:
        """One step of a run."""
        ...

    def believe(
        self, estimate: Estimate, channel: str, value: Array, law: InputLaw
    ) -> tuple[Estimate, Estimate, Innovation] | None:
        """The estimate before and after a value that must be taken."""
        ...


def restarted(
    kalman: Steps, record: Record, beginning: Beginning, rows: Sequence[Row], step: Step
) -> Step | None:
    """The last step of an estimate made anew from some of the last rows of its channel.

    step: the one that is replaced. None where there is no such estimate.
    """
    for k in range(len(rows) - 1):
        try:
            steps = _anew(kalman, record, beginning, list(rows)[k:])
        except (SimulationError, np.linalg.LinAlgError):
            continue
        taken = sum(s.innovation is not None and s.innovation.accepted for s in steps)
        if not steps or 2 * (1 + taken) <= len(rows):
            continue
        left = step.estimate.mode
        note = f"{step.channel!r} is believed, and mode {left!r} is not: begun anew"
        return replace(
            steps[-1],
            predicted=replace(steps[-1].predicted, alternative=None),
            innovation=step.innovation,
            events=tuple(event for s in steps for event in s.events),
            undone=rows[k][1].time,
            notes=(note, *(note for s in steps for note in s.notes)),
            transition=None,
            admission=None,
            reopened=True,
        )
    return None


def _anew(kalman: Steps, record: Record, beginning: Beginning, rows: Sequence[Row]) -> list[Step]:
    """Steps from the second of these rows to the last, made from the first two.

    Empty where they do not tell the state, or it has another size in the mode of the beginning.
    """
    (earlier, first), (_, second), *others = rows
    model = kalman.model
    sizes = [model.system.mode(e.mode).space.nx for e in (earlier, beginning)]
    if sizes[0] != sizes[1]:
        return []
    now = Estimate(beginning.mode, first.time, earlier.mean, beginning.covariance)
    for sample in (first, second):
        onward = _past_guards(model, record, now, sample.time)
        if onward is None:
            return []
        law = model.law(onward.mode, record.input(sample.time))
        taken = kalman.believe(onward, sample.channel, sample.value, law)
        if taken is None:
            return []
        predicted, now, innovation = taken
    found = admit(model, now, law)
    given = second.time, second.channel, predicted, found.estimate, innovation
    steps = [Step(*given, found.events, None, found.notes, None)]
    for _, sample in others:
        steps.append(kalman.advance(record, steps[-1].estimate, sample))
    return steps


def _past_guards(model: Model, record: Record, estimate: Estimate, end: float) -> Estimate | None:
    """The estimate at a later time in the same mode; None where there is no way."""
    for t in (*record.input_changes(estimate.time, end).tolist(), end):
        if t > estimate.time:
            law = model.law(estimate.mode, record.input(estimate.time))
            onward = extend(model, estimate, t, law, None)
            if onward is None:
                return None
            estimate = onward.estimate
    return estimate
