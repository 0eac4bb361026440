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

_FAILED_PEAK, _FAILED_PEAK_RATIO = 1e3, 2.0
"""Largest peak input, N or N m, that COBYLA is shown, and its least ratio to the limit.

Where all runs fail the peak is infinite, and COBYLA needs a finite one that is above the limit. The
values are choices."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """Parameters that were tried.

    Attributes:
        origin: Where they come from: "start", "prediction k" or "search".
        parameters: Parameters (p,).
        statistics: Statistics of the ensemble; None where none was run.
    """

    origin: str
    parameters: Array
    statistics: Statistics | None = None

    @property
    def objective(self) -> float:
        """Mean plus 95th percentile of the error; infinite without statistics."""
        if self.statistics is None:
            return float("inf")
        return self.statistics.mean_error + self.statistics.p95_error


@dataclass(frozen=True, eq=False)
class Tuning:
    """The result of tuning.

    Attributes:
        gains: Gains of the best candidate.
        best: The best candidate.
        candidates: All candidates that were tried, in order.
    """

    gains: GainSchedule
    best: Candidate
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, eq=False)
class Validation:
    """Validation of candidates by runs that the search has not used.

    A search that tries many candidates also finds lucky ones. Of the candidates within the limit of
    the search, some are run on another ensemble, from the best on, until one keeps the peak input.
    If none does, the one of least peak is taken.

    Attributes:
        ensemble: The other ensemble.
        peak_input: Greatest absolute input, N or N m.
        finalists: Greatest number of candidates that are run.

    Raises:
        InputError: A number is not positive.
    """

    ensemble: Ensemble
    peak_input: float
    finalists: int = 5

    def __post_init__(self) -> None:
        check_number("peak_input", self.peak_input, above=0.0)
        check_count("finalists", self.finalists)

    def choose(self, search: _GainSearch) -> Candidate:
        """Return the candidate to take, after runs of the other ensemble.

        Args:
            search: The search, with at least one candidate.
        """
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
    """Return the parameters (p,) of least predicted cost, by L-BFGS-B with the exact gradient.

    The logarithm of the cost is minimised, so that tolerances are relative.

    Args:
        prediction: Predicts the cost of gains.
        structure: Structure of the gains.
        start: Parameters (p,) to begin with; outside of the bounds they are moved onto them.
        bounds: Least and greatest value of every parameter; None for none.
        iterations: Greatest number of iterations.
    """
    x0 = check_vector("start", start)
    limits = None if bounds is None else Bounds(*check_interval("bounds", bounds))
    if limits is not None:
        x0 = np.clip(x0, limits.lb, limits.ub)

    def cost(p: Array) -> tuple[float, Array]:
        predicted = prediction(structure.schedule(p))
        return float(np.log(predicted.cost)), structure.gradient(p, predicted) / predicted.cost

    options = {"maxiter": check_count("iterations", iterations)}
    result = minimize(cost, x0, jac=True, method="L-BFGS-B", bounds=limits, options=options)
    return np.asarray(result.x)


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
    """Return tuned gains: predictions are minimised, then simulated runs choose and search.

    If no candidate keeps the limit, the one of least peak is taken.

    Args:
        structure: Structure of the gains.
        start: Parameters (p,) to begin with.
        predictions: Predictions that are minimised one after the other, each from the parameters
            before it.
        ensemble: Ensemble of runs that chooses between the start and the minima, and that the
            search uses. None takes the last minimum.
        peak_input: Greatest peak input of the ensemble, N or N m; None for no limit.
        evaluations: Runs of the ensemble in a search around the best candidate (COBYLA: linear
            models of objective and constraint on a shrinking region). At least p + 2, or 0 for no
            search.
        step: Change of each parameter with which that search begins.
        bounds: Least and greatest value of every parameter; None for none.
        iterations: Greatest number of iterations of each minimisation.
        validation: Chooses between the best candidates by runs that the search has not used; None
            takes the best. Without an ensemble there is no search, and it is not used.
        progress: True prints the share of the work that is done on standard error. A function is
            called with it, from 0 to 1. Each minimisation and each evaluation of the ensemble
            counts as one piece of work; the search may end early.

    Raises:
        InputError: There is neither prediction nor ensemble, a structure without gradient comes
            with predictions, or another argument does not fit.
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
        search.search_around_best(check_number("step", step, above=0.0), evaluations, bounds)
    best = search.ranked[0] if validation is None else validation.choose(search)
    return Tuning(structure.schedule(best.parameters), best, tuple(search.tried))


@dataclass(frozen=True)
class _GainSearch:
    """A search for gains.

    Attributes:
        structure: Structure of the gains.
        ensemble: Ensemble that judges candidates.
        limit: Greatest peak input, N or N m; infinite without one.
        tried: Candidates so far, in order; grows with each evaluation.
        work: Counts evaluations.
    """

    structure: GainStructure
    ensemble: Ensemble
    limit: float
    tried: list[Candidate]
    work: WorkCount

    def judge(self, origin: str, parameters: Array) -> Candidate:
        """Return the candidate of parameters (p,), and run the ensemble if they are new."""
        for candidate in self.tried:
            if np.array_equal(candidate.parameters, parameters):
                return candidate
        statistics = self.ensemble(self.structure.schedule(parameters))
        self.tried.append(Candidate(origin, np.array(parameters), statistics))
        self.work.end_piece()
        return self.tried[-1]

    @property
    def ranked(self) -> list[Candidate]:
        """Candidates within the limit, from the best on; without any, the one of least peak."""
        within = [c for c in self.tried if _get_peak(c) <= self.limit]
        return sorted(within, key=lambda c: c.objective) or [min(self.tried, key=_get_peak)]

    def compute_constraint(self, parameters: Array) -> float:
        """Return the peak input of parameters (p,) relative to the limit: at most 1 is within it.

        The peak is cut to a finite number that is above the limit.
        """
        most = max(_FAILED_PEAK, _FAILED_PEAK_RATIO * self.limit)
        return min(_get_peak(self.judge("search", parameters)), most) / self.limit

    def search_around_best(
        self, step: float, evaluations: int, bounds: tuple[float, float] | None
    ) -> None:
        """Search around the best candidate, and append what is tried.

        Args:
            step: Change of each parameter with which the search begins.
            evaluations: Greatest number of evaluations.
            bounds: Least and greatest value of every parameter; None for none.
        """
        constraints = []
        if np.isfinite(self.limit):
            constraints.append(NonlinearConstraint(self.compute_constraint, -np.inf, 1.0))
        minimize(
            lambda p: np.log(self.judge("search", p).objective),
            self.ranked[0].parameters,
            method="COBYLA",
            bounds=None if bounds is None else Bounds(*check_interval("bounds", bounds)),
            constraints=constraints,
            options={"rhobeg": step, "maxiter": evaluations},
        )


def _get_peak(candidate: Candidate) -> float:
    """Return the peak input of a candidate, N or N m; infinite where no run ended, or none was."""
    statistics = candidate.statistics
    return np.inf if statistics is None else statistics.peak_input
