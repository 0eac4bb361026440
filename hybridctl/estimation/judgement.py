"""Whether a filter deserves the covariance it claims, in numbers and in one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridctl.estimation.consistency import (
    Consistency,
    event_time_errors,
    mode_agreement,
    nees,
    nis_band,
)
from hybridctl.estimation.result import FilterResult
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import HybridTrajectory

MANY = 0.05  # share of rejected values above which a filter has lost the motion


@dataclass(frozen=True, eq=False)
class Judgement:
    """A filter's result, and what speaks for and against it.

    nis: the mean normalized innovation and its band, None without any accepted value. nees: the
    mean over all samples of the normalized error, divided by its degrees of freedom; 1 is right.
    That and what follows is None without the truth. Samples of one run are not independent, so
    there is no band for it here. times_real: seconds of the log filtered in one second.
    """

    name: str
    result: FilterResult
    nis: Consistency | None
    nees: float | None
    agreement: float | None
    event_errors: tuple[float, ...] | None
    missed: int | None
    times_real: float

    @property
    def verdict(self) -> str:
        """One sentence."""
        rejected, values = len(self.result.rejected), len(self.result.innovations)
        if self.nis is None:
            return "not to be trusted: no value was accepted"
        if rejected > MANY * values:
            lost = self.result.summary()["reopened"]
            found = f", and the estimate was lost and found {lost} times" if lost else ""
            return f"not to be trusted: {rejected} of {values} values were rejected{found}"
        band = f"mean NIS {self.nis.mean:.2f}, 99 % band {self.nis.low:.2f} to {self.nis.high:.2f}"
        if self.nis.mean > self.nis.high:
            return f"too confident ({band}): the noise is larger than assumed, or the model is off"
        if self.nis.mean < self.nis.low:
            return f"too cautious ({band}): the noise is smaller than assumed"
        return f"consistent with its innovations ({band})"

    @property
    def trusted(self) -> bool:
        """Whether few values were rejected and the mean NIS is in its band."""
        few = len(self.result.rejected) <= MANY * len(self.result.innovations)
        return few and self.nis is not None and self.nis.inside

    def record(self) -> dict[str, Any]:
        """As it stands in summary.json."""
        errors = self.event_errors
        return {
            "name": self.name,
            **self.result.summary(),
            "trusted": self.trusted,
            "nis_low": None if self.nis is None else self.nis.low,
            "nis_high": None if self.nis is None else self.nis.high,
            "nees_per_degree": self.nees,
            "mode_agreement": self.agreement,
            "event_time_error": _rms(errors) if errors else None,
            "events_missed": self.missed,
            "times_real_time": self.times_real,
            "event_times": [event.time for event in self.result.events],
        }

    def cells(self) -> dict[str, str]:
        """As it stands in the table."""
        nis, r = self.nis, self.result.summary()
        cells = {
            "mean NIS": "-" if nis is None else f"{nis.mean:.3f}",
            "its 99 % band": "-" if nis is None else f"{nis.low:.2f} {nis.high:.2f}",
            "inside": "-" if nis is None else ("yes" if nis.inside else "no"),
            "log-likelihood": f"{self.result.log_likelihood:.1f}",
            "rejected, reopened": f"{r['rejected']}, {r['reopened']} of "
            f"{len(self.result.innovations)}",
            "events, undone": f"{r['events']}, {r['undone']}",
        }
        if self.nees is not None and self.agreement is not None:
            errors = self.event_errors or ()
            cells["NEES per degree (truth)"] = f"{self.nees:.3f}"
            cells["mode agreement (truth)"] = f"{100.0 * self.agreement:.1f} %"
            cells["event time error, rms"] = f"{1e3 * _rms(errors):.3f} ms" if errors else "-"
            cells["events missed"] = str(self.missed)
        step = r["seconds_per_step"]
        cells["per step"] = "-" if step is None else f"{1e3 * step:.2f} ms"
        cells["times real time"] = f"{self.times_real:.2g}"
        return cells


def judge(
    system: HybridSystem,
    result: FilterResult,
    truth: HybridTrajectory | None = None,
    *,
    name: str = "salted",
) -> Judgement:
    """A result against its own claims, and against the truth where that is known.

    The truth counts where it holds the whole run, and there for every sample at which its state
    has the size of the estimate's.
    """
    accepted = any(i.accepted for i in result.innovations)
    nis = nis_band([result]) if accepted else None
    span = result.steps[-1].time - result.initial.time
    speed = span / result.seconds if result.seconds > 0.0 else float("inf")
    known = truth is not None and all(truth.start <= t <= truth.end for t in result.times)
    if truth is None or not known:
        return Judgement(name, result, nis, None, None, None, None, speed)
    happened = [e for e in truth.guard_events if e.time >= result.initial.time]
    errors = event_time_errors(result.events, happened)
    both = [(s.estimate, truth(s.time)) for s in result.steps]
    spaces = [system.mode(e.mode).space for e, _ in both]
    pairs = [nees(s, e, x) for s, (e, x) in zip(spaces, both, strict=True) if s.nx == len(x)]
    squares, degrees = np.array(pairs).reshape(-1, 2).sum(axis=0)
    return Judgement(
        name,
        result,
        nis,
        float(squares / degrees) if degrees else None,
        mode_agreement(result, truth),
        errors,
        len(happened) - len(errors),
        speed,
    )


def _rms(values: tuple[float, ...]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
