"""Parameters by likelihood: the truth within its errors, what is not determined."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pytest

from hybridctl.app.models import find_model
from hybridctl.base.errors import InputError, SimulationError
from hybridctl.estimation.filter_model import FilterModel, FilterSettings
from hybridctl.estimation.identification import LikelihoodPoint, Problem, identify, profile
from hybridctl.estimation.record import Record
from hybridctl.estimation.salted_kalman_filter import SaltedKalmanFilter
from hybridctl.estimation.synthetic import simulate_record

PLAIN = ("gate=null", "patience=null", "tolerance=1e-9", "warm_up=3")
BALL = ("friction=0.1", "duration=0.6", "rate=25", *PLAIN)
TRUTH = np.array([0.7, 0.1])
BOUNDS = np.array([[0.3, 0.95], [0.01, 0.5]])


@dataclass(frozen=True)
class At:
    """A model at values of some of its settings."""

    name: str
    settings: FilterSettings
    names: tuple[str, ...]

    def __call__(self, values) -> FilterModel:
        given = dict(zip(self.names, map(float, values), strict=True))
        return find_model(self.name).make(replace(self.settings, **given))


def model_at(name, names, *assignments):
    return At(name, find_model(name).configure(None, assignments), names)


def records(at, seeds) -> tuple[Record, ...]:
    model = find_model(at.name).make(at.settings)
    return tuple(simulate_record(model, replace(at.settings, seed=seed))[0] for seed in seeds)


def identified(seed):
    at = model_at("ball", ("restitution", "friction"), *BALL)
    problem = Problem(at, at.names, BOUNDS, records(at, [seed]), at.settings)
    return problem, identify(problem, TRUTH * [0.98, 1.1])


def within(found):
    """How many parameters are within two of their errors."""
    errors = np.array([one.standard_error for one in found.parameters])
    return np.abs(found.values - TRUTH) <= 2.0 * errors


@pytest.fixture(scope="module")
def case():
    return identified(1)


def test_the_truth_is_found_within_its_errors(case):
    """Each within two errors in 95 % of cases; fewer than 2 of 4 have a chance of 4e-4."""
    hits = 0
    for _, found in (case, identified(2)):
        assert found.converged
        hits += within(found).sum()
    assert hits >= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cases", "least"), [(12, 9), pytest.param(100, 90, marks=pytest.mark.long)]
)
def test_the_truth_of_many_cases_is_found_within_two_errors(cases, least):
    """Each parameter in 95.4 %; fewer than these have a chance of 0.2 % (0.6 % of 100)."""
    hits = sum(within(identified(seed)[1]).astype(int) for seed in range(cases))
    assert (hits >= least).all()


def test_threads_give_the_same(case):
    problem, found = case
    more = replace(problem, records=problem.records * 2, known={})
    one = more.evaluate(found.values)
    with ThreadPoolExecutor(2) as pool:
        other = replace(more, executor=pool, known={}).evaluate(found.values)
    assert one.log_likelihood == other.log_likelihood == 2.0 * found.best.log_likelihood
    np.testing.assert_array_equal(one.log_likelihoods, other.log_likelihoods)


def test_an_earlier_state_is_gone_on_from(case):
    problem, found = case
    stored = [json.loads(json.dumps(one.as_dict())) for one in problem.known.values()]
    known = {tuple(one["values"]): LikelihoodPoint.from_dict(one) for one in stored}
    told = []
    again = replace(problem, known=known, told=told.append)
    np.testing.assert_array_equal(identify(again, TRUTH * [0.98, 1.1]).values, found.values)
    assert not told


def test_held_out_records_judge(case):
    problem, found = case
    other = records(problem.make, [7])
    judged = identify(problem, found.values, held_out=other).held_out
    wrong = replace(problem, records=other, known={}).evaluate(TRUTH * [0.9, 1.0])
    assert judged.log_likelihood > wrong.log_likelihood


def test_a_profile_has_the_range(case):
    """Near its top the likelihood is a parabola: the range is 1.96 errors either way."""
    problem, found = case
    friction = profile(problem, found, "friction", deviations=(-2.2, 2.2))
    half = 0.5 * (friction.high - friction.low)
    assert half == pytest.approx(1.96 * found.parameters[1].standard_error, rel=0.03)


def test_what_no_record_tells_has_no_error():
    """In free flight nothing depends on restitution."""
    names = ("restitution", "position_noise")
    at = model_at("ball", names, "duration=0.3", "rate=30", *PLAIN)
    bounds = np.array([[0.1, 0.9], [2e-4, 2e-2]])
    problem = Problem(at, at.names, bounds, records(at, [0]), at.settings)
    found = identify(problem, [0.7, 2e-3])
    restitution, noise = found.parameters
    assert (restitution.value, restitution.standard_error) == (0.7, None)
    # 6 rows of 2 values, 4 of which the start takes: an error of some sqrt(1 / 2 / 8)
    assert 0.1 < noise.standard_error / noise.value < 0.6
    flat = profile(problem, found, "restitution", deviations=(-1.0,))
    assert (flat.low, flat.high) == (None, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"names": ()}, "names must be one or more"),
        ({"bounds": BOUNDS[::-1, ::-1]}, "lower one below an upper"),
        ({"bounds": BOUNDS[:1]}, "bounds must have shape"),
        ({"records": ()}, "records must have at least one"),
    ],
)
def test_bad_problems_are_refused(change, message):
    at = model_at("ball", ("restitution", "friction"), *BALL)
    given = {"names": at.names, "bounds": BOUNDS, "records": records(at, [0])} | change
    with pytest.raises(InputError, match=message):
        Problem(at, settings=at.settings, **given)


def test_a_start_outside_its_bounds_is_refused():
    at = model_at("ball", ("restitution", "friction"), *BALL)
    problem = Problem(at, at.names, BOUNDS, records(at, [0]), at.settings)
    with pytest.raises(InputError, match="start must lie within the bounds"):
        identify(problem, [0.99, 0.1])


def test_a_lost_filter_begins_anew_and_says_so():
    """A jump of half a metre in the middle: what the gate rejects counts, the rest is filtered."""
    at = model_at("ball", ("mass",), "duration=0.4", "rate=60", "gate=0.9999", "patience=3")
    (record,) = records(at, [0])
    series = record.channels["position"]
    moved = series.values + 0.5 * (series.times[:, None] > 0.2)
    jumped = Record({"position": replace(series, values=moved)})
    found = Problem(at, at.names, [[0.5, 2.0]], (jumped,), at.settings).evaluate(np.array([1.0]))
    assert (found.lost, found.rejected) == (1, 3)
    assert found.accepted == len(series.times) - at.settings.warm_up - 3


def test_a_search_goes_on_where_no_record_can_be_filtered(monkeypatch, case):
    """Such parameters are as unlikely as those that the model refuses."""
    problem, _ = case
    run = SaltedKalmanFilter.run

    def fail_above(self, record, initial):
        if self.model.process_noise.name == "far":
            raise SimulationError("the filter cannot go on")
        return run(self, record, initial)

    def make(values):
        model = problem.make(values)
        far = values[0] > 0.72
        return replace(model, process_noise=replace(model.process_noise, name="far" if far else ""))

    monkeypatch.setattr(SaltedKalmanFilter, "run", fail_above)
    limited = replace(problem, make=make, known={}, executor=None)
    again = identify(limited, TRUTH * [0.98, 1.1], max_evaluations=30)
    assert again.values[0] <= 0.72
    assert again.evaluations == 30 or again.converged
    with pytest.raises(SimulationError, match="no record could be filtered"):
        identify(limited, [0.8, 0.1])
