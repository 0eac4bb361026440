"""Tuning and ensembles on a ball that is pushed against the floor."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from control.pushed_ball import P0, Trial, scene
from scipy.optimize import minimize

import hybridctl as hc
from hybridctl.base.errors import (
    ConstraintViolatedError,
    FileFormatError,
    GuardViolatedError,
    InputError,
)
from hybridctl.base.journal import Journal, compute_all, compute_trials
from hybridctl.base.workers import Crew, InProcessExecutor, crew
from hybridctl.control.gains import GainCurve, GainSchedule
from hybridctl.control.spreading import ReferenceSpreading
from hybridctl.control.tuning.ensemble import Ensemble, Outcome, compute_digest, outcome
from hybridctl.control.tuning.prediction import PredictedCost, Prediction
from hybridctl.control.tuning.search import Validation, minimize_prediction, tune
from hybridctl.control.tuning.structure import EntryGains

STRUCTURE = EntryGains.diagonal((1, 2), (0, 1))
START = STRUCTURE.parameters([[[1.0, 1.0]], [[1.0, 1.0]]])


def prediction(input_weight=1e-2):
    system, reference = scene()
    lin = hc.linearize(system, reference.nominal)
    return Prediction(
        lin, [np.zeros((2, 2)), np.eye(2)], [[input_weight]], P0, intervals=24, points=64
    )


def test_the_minimum_of_the_prediction_is_that_of_a_search_without_gradients():
    p = prediction()
    found = minimize_prediction(p, STRUCTURE, START, bounds=(-7.0, 7.0), iterations=300)
    cost = lambda x: np.log(p(STRUCTURE.schedule(np.clip(x, -7.0, 7.0))).cost)  # noqa: E731
    other = minimize(cost, found, method="Nelder-Mead", options={"maxfev": 120})
    # L-BFGS-B ends in a flat valley, where steps change the logarithm by less than 1e-8
    assert cost(found) <= other.fun + 1e-3
    assert cost(found) < cost(START) - 0.1


def test_full_gains_predict_no_more_than_diagonal_ones():
    p = prediction()
    full = EntryGains.full((1, 2), (0, 1))
    diagonal = STRUCTURE.matrices(minimize_prediction(p, STRUCTURE, START))
    start = full.parameters(diagonal)
    free = full.schedule(minimize_prediction(p, full, start))
    assert p(free).cost <= p(GainSchedule.constant(diagonal)).cost * (1 + 1e-9)


def test_the_ensemble_agrees_with_the_prediction_for_small_perturbations():
    """Mean square error: the prediction to first order, the runs to what 64 samples tell."""
    gains = STRUCTURE.schedule(START)
    system, reference = scene()
    lin = hc.linearize(system, reference.nominal)
    last = lin.trajectory.arcs[-1]
    p = Prediction(lin, [np.zeros((2, 2)), np.eye(2) / (last.end - last.start)], [[0.0]], P0)
    measured = np.mean(Ensemble(Trial(), range(64))(gains).errors ** 2)
    # a chi-square mean of 64 errs by sqrt(2 / 64) = 18 % per standard deviation
    assert measured == pytest.approx(p(gains).cost, rel=0.4)


def tuned(executor=None, record=None, advance=None):
    ensemble = Ensemble(Trial(), range(6), executor, record, advance)
    limit = ensemble(STRUCTURE.schedule(START)).peak_input
    unseen = Ensemble(Trial(), range(6, 12), executor, record, advance)
    return tune(
        STRUCTURE, START, predictions=[prediction(1e-1)], ensemble=ensemble,
        peak_input=1.5 * limit, evaluations=8, bounds=(-3.0, 4.0),
        validation=Validation(unseen, 2.0 * limit, 2),
    )  # fmt: skip


@pytest.fixture(scope="module")
def reference_tuning():
    return tuned()


def test_tuning_reduces_the_error_within_the_limit(reference_tuning):
    start, best = reference_tuning.candidates[0], reference_tuning.best
    assert best.objective < start.objective
    assert best.statistics.peak_input <= 1.5 * start.statistics.peak_input
    within = [
        c
        for c in reference_tuning.candidates
        if c.statistics.peak_input <= 1.5 * start.statistics.peak_input
    ]
    assert best.objective <= sorted(c.objective for c in within)[1]


def test_two_processes_and_threads_give_the_same_answer(processes, reference_tuning):
    with ThreadPoolExecutor(3) as threads:
        gains = reference_tuning.gains
        here = Ensemble(Trial(), range(5))(gains)
        for executor in (processes, threads):
            there = Ensemble(Trial(), range(5), executor)(gains)
            np.testing.assert_array_equal(here.errors, there.errors)
            np.testing.assert_array_equal(here.peaks, there.peaks)


def test_an_interrupted_tuning_ends_with_the_same_answer(reference_tuning, tmp_path):
    class KilledError(Exception):
        pass

    left = [50]

    def advance():
        left[0] -= 1
        if not left[0]:
            raise KilledError

    path = tmp_path / "runs.jsonl"
    with pytest.raises(KilledError):
        tuned(None, Journal(path, {"seed": 3}), advance)
    with open(path, "a") as file:
        file.write('["spreading:half a li')
    record = Journal(path, {"seed": 3})
    assert 30 < len(record) <= 50
    again = tuned(None, record)
    np.testing.assert_array_equal(again.best.parameters, reference_tuning.best.parameters)
    assert compute_digest(again.gains) == compute_digest(reference_tuning.gains)
    assert len(again.candidates) == len(reference_tuning.candidates)


def _of_case(trial):
    return trial


def test_results_come_in_their_order_and_kept_ones_are_not_computed_again(tmp_path):
    path, shares = tmp_path / "results.jsonl", []
    with crew(2) as workers:
        first = compute_all(math.frexp, [3, 1, 2], workers, None, Journal(path, {}))
    assert first == [(0.75, 2), (0.5, 1), (0.5, 2)]
    kept = Journal(path, {})
    again = compute_all(None, [2, 3], Crew(InProcessExecutor()), shares.append, kept)
    assert again == [(0.5, 2), (0.75, 2)]
    assert shares == [0.5, 1.0]
    found = compute_trials(_of_case, ["a", "b"], [1, 2], Crew(InProcessExecutor()))
    assert found == {"a": [("a", 1), ("a", 2)], "b": [("b", 1), ("b", 2)]}


def test_failures_are_counted_and_cost_the_penalty():
    gains = STRUCTURE.schedule(START)
    statistics = Ensemble(Trial(failing=(1, 3)), range(4), penalty=7.0)(gains)
    assert statistics.failures == {"ReferenceRangeError": 2}
    np.testing.assert_array_equal(statistics.errors[[1, 3]], 7.0)
    assert np.isfinite(statistics.peak_input)
    assert Ensemble(Trial(failing=(0,)), range(1))(gains).peak_input == np.inf


@pytest.mark.parametrize("error", [GuardViolatedError, ConstraintViolatedError])
def test_a_motion_that_drifts_off_its_mode_is_a_failure_of_its_member(error):
    def trial(controller, gains, member):
        if member == 1:
            raise error("off its mode")
        return Outcome(1.0, 2.0)

    gains = STRUCTURE.schedule(START)
    assert Ensemble(trial, range(3))(gains).failures == {error.__name__: 1}


def test_a_record_keeps_failures_and_refuses_other_settings(tmp_path):
    path, gains = tmp_path / "runs.jsonl", STRUCTURE.schedule(START)
    first = Ensemble(Trial(failing=(1,)), range(3), record=Journal(path, {"seed": 1}))(gains)
    stored = Journal(path, {"seed": 1})
    again = Ensemble(Trial(failing=(0, 1, 2)), range(3), record=stored)(gains)
    np.testing.assert_array_equal(first.errors, again.errors)
    assert again.failures == {"ReferenceRangeError": 1}
    with pytest.raises(InputError, match="other settings"):
        Journal(path, {"seed": 2})
    path.write_text("something else\n")
    with pytest.raises(FileFormatError, match="not a record"):
        Journal(path, {"seed": 1})


def test_the_error_is_that_after_the_impact_alone():
    """A run on the reference before the impact, and off it by a constant after."""
    system, reference = scene()
    gains = GainSchedule.constant([[[0.0, 0.0]]] * 2)
    policy = ReferenceSpreading(reference, gains)
    exact = hc.simulate(system, "air", reference.nominal(0.0), (0.0, 0.7), policy)
    assert outcome(reference, exact).error < 1e-7
    assert outcome(reference, exact).peak_input == pytest.approx(1.0)
    short = hc.simulate(system, "air", reference.nominal(0.0), (0.0, 0.2), policy)
    assert outcome(reference, short).failure == "IncompleteEvent"


def test_digests_tell_gains_apart():
    a = GainSchedule.constant([[[1.0, 2.0]]])
    b = GainSchedule.constant([[[1.0, np.nextafter(2.0, 3.0)]]])
    c = GainSchedule((GainCurve(np.zeros(1), np.array([[[1.0], [2.0]]])),))
    d = GainSchedule.constant([[[1.0, 2.0]]], {(0, frozenset("x")): [[1.0, 2.0]]})
    assert len({compute_digest(gains) for gains in (a, b, c, d)}) == 4
    assert compute_digest(a) == compute_digest(GainSchedule.constant([[[1.0, 2.0]]]))


def test_structures_give_back_their_parameters():
    rng = np.random.default_rng(0)
    structure = EntryGains.diagonal((2, 6), (0, 1, 0), {(0, frozenset("x")): 1})
    p = rng.normal(size=8)
    np.testing.assert_allclose(structure.parameters(structure.matrices(p)), p)
    gains = structure.schedule(p)
    assert gains.arcs[0](0.0)[1, 4] == pytest.approx(np.exp(p[3]))
    np.testing.assert_array_equal(gains.arcs[0].values, gains.arcs[2].values)
    np.testing.assert_array_equal(gains.phantoms[0, frozenset("x")].values, gains.arcs[1].values)
    assert structure.parameters([np.zeros((2, 6))] * 2, least=0.5).min() == np.log(0.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tune(STRUCTURE, START), "needs predictions, an ensemble, or both"),
        (
            lambda: tune(STRUCTURE, START, ensemble=Ensemble(Trial(), [0]), evaluations=3),
            "evaluations must be 0, or 6 or more",
        ),
        (lambda: EntryGains((1, 2), ((1, 0),), (0,)), "entries must lie inside"),
        (lambda: EntryGains.diagonal((1, 2), (0, 2)), "must be numbered"),
        (lambda: STRUCTURE.parameters([[[1.0, 0.0]]] * 2), "must be positive"),
        (lambda: Ensemble(Trial(), []), "members must have one number"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_a_record_that_was_cut_off_is_taken_up_again(tmp_path):
    """What a process that was killed has half written is run again, and spoils nothing after it."""
    path, gains = tmp_path / "runs.jsonl", STRUCTURE.schedule(START)
    first = Ensemble(Trial(), range(2), record=Journal(path, {"seed": 1}))(gains)
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    more = Ensemble(Trial(), range(3), record=Journal(path, {"seed": 1}))(gains)
    np.testing.assert_array_equal(more.errors[:2], first.errors)
    failing = Trial(failing=(0, 1, 2))
    again = Ensemble(failing, range(3), record=Journal(path, {"seed": 1}))(gains)
    np.testing.assert_array_equal(again.errors, more.errors)
    assert not again.failures


def test_the_gradient_by_parameters_counts_each_arc_and_phantom_that_shares_a_gain():
    """Of a cost that is linear in all gains; a phantom without a set of its own adds nothing."""
    rng, known, other = np.random.default_rng(2), (0, frozenset("a")), (0, frozenset("b"))
    structure = EntryGains.diagonal((1, 2), (0, 1, 0), {known: 2})
    weights = rng.normal(size=(3, 1, 2))
    by_phantom = {known: rng.normal(size=(1, 2)), other: rng.normal(size=(1, 2))}

    def cost(p):
        schedule = structure.schedule(p)
        arcs = sum((w * k(0.0)).sum() for w, k in zip(weights, schedule.arcs, strict=True))
        return arcs + (by_phantom[known] * schedule.phantoms[known](0.0)).sum()

    p = 0.3 * rng.normal(size=6)
    found = structure.gradient(p, PredictedCost(cost(p), tuple(weights), by_phantom))
    h = 1e-5  # rounding over h, and h^2
    for i, e in enumerate(np.eye(6)):
        rate = (cost(p + h * e) - cost(p - h * e)) / (2 * h)
        assert found[i] == pytest.approx(rate, abs=1e-8)


def test_a_limit_above_that_of_failed_runs_still_holds():
    """Peaks of 5000 N are not within 1500 N, nor are runs that all failed."""

    def trial(controller, gains, member):
        gain = gains.arcs[0](0.0)[0, 0]
        if gain > 15.0:
            return Outcome(float("nan"), float("nan"), "GuardViolatedError")
        return Outcome(1.0 / gain, 5000.0 if gain > 5.0 else 1000.0)

    ensemble, structure = (
        Ensemble(trial, range(2), penalty=0.0),
        EntryGains((1, 2), ((0, 0),), (0,)),
    )
    found = tune(structure, [0.0], ensemble=ensemble, peak_input=1500.0, step=2.0, evaluations=12)
    peaks = [c.statistics.peak_input for c in found.candidates]
    assert max(peaks) > 1500.0  # the search has tried some that are not within the limit
    assert found.best.statistics.peak_input <= 1500.0
