r"""Tuning of feedback gains: by the predicted cost and its gradient, then by simulated runs.

First each prediction is minimised over the parameters of the gains. Several of them, with
different weights of the input, give candidates from soft to stiff. An ensemble of perturbed runs
then chooses between these and searches around the best, for the least

.. math:: \text{mean error} + \text{95th percentile of the error}

with a peak input within a limit. All candidates meet the same perturbations (common random
numbers), so their differences are those of the gains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import Bounds, NonlinearConstraint, minimize

from hybridctl.base.checks import Array, check_count, check_interval, check_number, check_vector
from hybridctl.base.errors import InputError
from hybridctl.base.progress import Progress, WorkCount, report_share
from hybridctl.control.gains import GainSchedule
from hybridctl.control.tuning.ensemble import Ensemble, Statistics
from hybridctl.control.tuning.prediction import Prediction
from hybridctl.control.tuning.structure import DifferentiableStructure, GainStructure

_FAILING = 1e3  # N m, the peak that the search is told of where all runs fail


@dataclass(frozen=True, eq=False)
class Candidate:
    """Parameters (p,) that were tried, where they come from, and what the ensemble says of them."""

    origin: str
    parameters: Array
    statistics: Statistics | None = None

    @property
    def objective(self) -> float:
        """Mean plus 95th percentile of the error."""
        if self.statistics is None:
            return float("inf")
        return self.statistics.mean_error + self.statistics.p95_error


@dataclass(frozen=True, eq=False)
class Tuning:
    """The gains found, with the candidate they belong to and all that were tried, in order."""

    gains: GainSchedule
    best: Candidate
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, eq=False)
class Validation:
    """Runs that the search has not seen, as a search that tries much finds luck as well.

    Of the candidates within the limit of the search, at most `finalists` are run on `ensemble`,
    from the best on, until one has a peak of at most `peak_input`. If none has, the one of
    least peak is taken.
    """

    ensemble: Ensemble
    peak_input: float
    finalists: int = 5

    def __post_init__(self) -> None:
        check_number("peak_input", self.peak_input, above=0.0)
        check_count("finalists", self.finalists)

    def choose(self, search: _GainSearch) -> Candidate:
        """The candidate to take."""
        peaks: list[tuple[float, Candidate]] = []
        for candidate in search.ranked[: self.finalists]:
            gains = search.structure.schedule(candidate.parameters)
            peaks.append((self.ensemble(gains).peak_input, candidate))
            if peaks[-1][0] <= self.peak_input:
                return candidate
        return min(peaks, key=lambda pair: pair[0])[1]


def minimize_prediction(
    prediction: Prediction,
    structure: DifferentiableStructure,
    start: ArrayLike,
    *,
    bounds: tuple[float, float] | None = None,
    iterations: int = 100,
) -> Array:
    """The parameters (p,) of least predicted cost, by L-BFGS-B with the exact gradient.

    bounds: of every parameter, or None. The search is for the logarithm of the cost, so that its
    tolerances are relative. A start outside the bounds is moved onto them.
    """
    x0 = check_vector("start", start)
    limits = None if bounds is None else Bounds(*check_interval("bounds", bounds))
    if limits is not None:
        x0 = np.clip(x0, limits.lb, limits.ub)

    def cost(p: Array) -> tuple[float, Array]:
        predicted = prediction(structure.schedule(p))
        return float(np.log(predicted.cost)), structure.gradient(p, predicted) / predicted.cost

    options = {"maxiter": check_count("iterations", iterations)}
    found = minimize(cost, x0, jac=True, method="L-BFGS-B", bounds=limits, options=options)
    return np.asarray(found.x)


def tune(
    structure: GainStructure,
    start: ArrayLike,
    *,
    predictions: Sequence[Prediction] = (),
    ensemble: Ensemble | None = None,
    peak_input: float | None = None,
    evaluations: int = 40,
    step: float = 0.3,
    bounds: tuple[float, float] | None = None,
    iterations: int = 100,
    validation: Validation | None = None,
    progress: Progress = None,
) -> Tuning:
    """Tune the parameters of a structure of gains from `start` (p,) on.

    predictions: minimised one after the other, each from the parameters before it. ensemble:
    chooses between the start and the minima; None takes the last minimum. peak_input: limit
    of the ensemble's peak, or None. evaluations, step: of the search around the best candidate
    (linear models of objective and constraint on a shrinking region, COBYLA), which begins with
    changes of `step` of each parameter; p + 2 or more, or 0 to leave it out. bounds: of every
    parameter. iterations: of each minimisation. validation: has the last word on which of the
    best candidates is taken. progress: True prints the share of the work that is done on standard
    error; a function is called with it, from 0 to 1. Each minimisation and each evaluation of the
    ensemble counts as one piece of work; the search may end early.

    If no candidate keeps the limit, the best is the one of least peak. Raises `InputError` if a
    structure without gradient comes with predictions, or neither prediction nor ensemble is given.
    """
    if not predictions and ensemble is None:
        raise InputError("tune needs predictions, an ensemble, or both, but got neither")
    p: Array = check_vector("start", start)
    candidates = [Candidate("start", p)]
    simulated = 0 if ensemble is None else 1 + len(predictions) + evaluations
    work = WorkCount(len(predictions) + simulated, report_share(progress, "tune"))
    for k, prediction in enumerate(predictions):
        if not isinstance(structure, DifferentiableStructure):
            raise InputError(f"structure {structure!r} has no gradient, so it cannot be predicted")
        p = minimize_prediction(prediction, structure, p, bounds=bounds, iterations=iterations)
        candidates.append(Candidate(f"prediction {k}", p))
        work.end_piece()
    if ensemble is None:
        return Tuning(structure.schedule(p), candidates[-1], tuple(candidates))
    if 0 < check_count("evaluations", evaluations, at_least=0) < len(p) + 2:
        raise InputError(
            f"evaluations must be 0, or {len(p) + 2} or more for {len(p)} parameters, got "
            f"{evaluations}"
        )
    limit = np.inf if peak_input is None else check_number("peak_input", peak_input, above=0.0)
    search = _GainSearch(structure, ensemble, limit, [], work)
    for candidate in candidates:
        search.judge(candidate.origin, candidate.parameters)
    if evaluations:
        search.around(check_number("step", step, above=0.0), evaluations, bounds)
    best = search.ranked[0] if validation is None else validation.choose(search)
    return Tuning(structure.schedule(best.parameters), best, tuple(search.tried))


@dataclass(frozen=True)
class _GainSearch:
    """A search for gains: the candidates tried, and the ensemble that judges them."""

    structure: GainStructure
    ensemble: Ensemble
    limit: float
    tried: list[Candidate]
    work: WorkCount

    def judge(self, origin: str, parameters: Array) -> Candidate:
        """The candidate of these parameters, simulated if it is new."""
        for candidate in self.tried:
            if np.array_equal(candidate.parameters, parameters):
                return candidate
        statistics = self.ensemble(self.structure.schedule(parameters))
        self.tried.append(Candidate(origin, np.array(parameters), statistics))
        self.work.end_piece()
        return self.tried[-1]

    @property
    def ranked(self) -> list[Candidate]:
        """Candidates within the limit from the best on; without any, the one of least peak."""
        within = [c for c in self.tried if self.peak(c) <= self.limit]
        return sorted(within, key=lambda c: c.objective) or [min(self.tried, key=self.peak)]

    @staticmethod
    def peak(candidate: Candidate) -> float:
        """The peak input, finite."""
        statistics = candidate.statistics
        return _FAILING if statistics is None else min(statistics.peak_input, _FAILING)

    def around(self, step: float, evaluations: int, bounds: tuple[float, float] | None) -> None:
        """Search around the best candidate."""
        constraints = []
        if np.isfinite(self.limit):
            peak = lambda p: self.peak(self.judge("search", p)) / self.limit  # noqa: E731
            constraints.append(NonlinearConstraint(peak, -np.inf, 1.0))
        minimize(
            lambda p: np.log(self.judge("search", p).objective),
            self.ranked[0].parameters,
            method="COBYLA",
            bounds=None if bounds is None else Bounds(*check_interval("bounds", bounds)),
            constraints=constraints,
            options={"rhobeg": step, "maxiter": evaluations},
        )
