"""Parameters by likelihood: its gradient, the truth within its errors, what is not determined."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import casadi as ca
import numpy as np
import pytest

import hybridctl as hc
from hybridctl.app.models import find_model
from hybridctl.errors import InputError
from hybridctl.estimation.filter_model import FilterModel, FilterSettings, Sensor
from hybridctl.estimation.filters import first_estimate, kalman
from hybridctl.estimation.identify import LikelihoodPoint, Problem, identify, profile
from hybridctl.estimation.measurement import coordinates
from hybridctl.estimation.record import Record, Series
from hybridctl.estimation.scores import scores
from hybridctl.estimation.synthetic import synthetic

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
    make: Callable | None = None

    def __call__(self, values) -> FilterModel:
        if self.make is not None:
            return self.make(values)
        given = dict(zip(self.names, map(float, values), strict=True))
        return find_model(self.name).make(replace(self.settings, **given))


def model_at(name, names, *assignments):
    return At(name, find_model(name).configured(None, assignments), names)


def records(at, seeds) -> tuple[Record, ...]:
    model = find_model(at.name).make(at.settings)
    return tuple(synthetic(model, replace(at.settings, seed=seed))[0] for seed in seeds)


def likelihood(at, values, record):
    """That of the Kalman filter itself, which knows of no derivatives."""
    model, settings = at(values), replace(at.settings, hypotheses=1)
    start, rest = first_estimate(model, settings, record)
    return kalman(model, settings).run(rest, start).log_likelihood


def slopes(at, values, record, h=2e-4):
    """Differences of fourth order over h of each value."""
    found = []
    for i, v in enumerate(values):
        e = h * abs(v) * np.eye(len(values))[i]
        one, two = (
            likelihood(at, values + k * e, record) - likelihood(at, values - k * e, record)
            for k in (1, 2)
        )
        found.append((8.0 * one - two) / (12.0 * h * abs(v)))
    return np.array(found)


@pytest.mark.parametrize(
    ("name", "names", "assignments"),
    [
        ("ball", ("restitution", "friction"), ("friction=0.1", "duration=0.6", "rate=50")),
        ("ball", ("slope", "mass", "position_noise"), ("duration=0.6", "rate=25")),
        pytest.param(
            "block",
            ("friction", "height"),
            ("duration=0.35", "rate=50"),
            marks=pytest.mark.slow,
        ),
        ("cube", ("friction", "restitution"), ("duration=0.2", "rate=100")),
    ],
    ids=["bounce", "slope and noise", "landing", "cube"],
)
def test_the_gradient_is_that_of_the_filter_s_likelihood(name, names, assignments):
    at = model_at(name, names, *PLAIN, *assignments)
    (record,) = records(at, [1])
    values = np.array([getattr(at.settings, one) for one in names]) * 0.995
    (found,) = scores(at, values, names, at.settings, [record])
    assert found.log_likelihood == pytest.approx(likelihood(at, values, record), rel=1e-9)
    assert found.rejected == 0
    expected = slopes(at, values, record)
    # in units of what one standard error changes, so that flat directions do not count as wrong
    size = np.maximum(np.abs(expected), np.sqrt(np.diag(found.information)))
    np.testing.assert_allclose((found.gradient - expected) / size, 0.0, atol=1e-6)


def falling(values):
    """A ball of uncertain gravity and noise that starts where it is told to."""
    gravity, noise = values
    x = ca.SX.sym("x", 2)
    air = hc.symbolic.Mode("air", state=x, field=[x[1], -gravity])
    floor = hc.symbolic.Transition("air", "floor", x[0], target="air", reset=[x[0], -0.7 * x[1]])
    return FilterModel(
        system=hc.symbolic.hybrid_system([air], [floor]),
        open="air",
        sensors=(Sensor(coordinates("height", [0], 1e-4 * np.eye(1))),),
        process_noise=hc.Noise(noise * np.eye(2)),
        start=hc.estimation.Estimate("air", 0.0, np.array([1.0, 0.0]), 0.01 * np.eye(2)),
    )


def test_noise_counts_where_no_parameter_moves_the_mean():
    """The start is given, so that nothing but the noise of the flow depends on its level."""
    times = np.arange(0.1, 0.7, 0.05)
    heights = np.abs(1.0 - 4.9 * times**2) + 0.02 * np.sin(37.0 * times)
    record = Record({"height": Series(times, heights)})
    at = At("", FilterSettings(gate=None, patience=None, tolerance=1e-9), ("gravity", "noise"))
    values = np.array([9.7, 0.02])
    (found,) = scores(falling, values, at.names, at.settings, [record])
    at = replace(at, make=falling)
    np.testing.assert_allclose(found.gradient, slopes(at, values, record), rtol=1e-6)


def test_the_information_is_the_spread_of_the_gradient():
    """At the truth gradients have mean zero and covariance F, over noise and starts."""
    at = model_at("ball", ("restitution", "friction"), *BALL)
    found = scores(at, TRUTH, at.names, at.settings, records(at, range(8)))
    gradients = np.array([one.gradient for one in found])
    mean = np.mean([one.information for one in found], axis=0)
    whitened = np.linalg.solve(np.linalg.cholesky(mean), gradients.T)
    # 16 normal values: their mean square has a deviation of sqrt(2 / 16), their mean of a quarter
    assert (whitened**2).mean() == pytest.approx(1.0, abs=4 * 0.35)
    assert abs(whitened.mean()) < 4 * 0.25


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
def test_the_truth_of_a_hundred_cases_is_found_within_two_errors():
    """Each parameter in 95.4 of 100 cases; fewer than 90 have a chance of 0.5 %."""
    hits = sum(within(identified(seed)[1]).astype(int) for seed in range(100))
    assert (hits >= 90).all()


def test_threads_give_the_same(case):
    problem, found = case
    more = replace(problem, records=problem.records * 2, known=None)
    one = more.evaluate(found.values)
    with ThreadPoolExecutor(2) as pool:
        other = replace(more, executor=pool, known=None).evaluate(found.values)
    assert one.log_likelihood == other.log_likelihood == 2.0 * found.best.log_likelihood
    np.testing.assert_array_equal(one.records, other.records)


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
    wrong = replace(problem, records=other, known=None).evaluate(TRUTH * [0.9, 1.0])
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
    (found,) = scores(at, np.array([1.0]), at.names, at.settings, [jumped])
    assert (found.lost, found.rejected) == (1, 3)
    assert found.accepted == len(series.times) - 2 * at.settings.warm_up - 3


def test_noise_alone_counts_too():
    """Neither the flow nor the start depends on its level."""
    times = np.arange(0.1, 0.4, 0.05)
    record = Record({"height": Series(times, 1.0 - 4.9 * times**2 + 0.02 * np.sin(37.0 * times))})
    at = At("", FilterSettings(gate=None, patience=None, tolerance=1e-9), ("noise",))
    noisy = lambda values: falling([9.7, *values])  # noqa: E731
    (found,) = scores(noisy, np.array([0.02]), at.names, at.settings, [record])
    expected = slopes(replace(at, make=noisy), np.array([0.02]), record)
    assert abs(expected[0]) > 1.0
    np.testing.assert_allclose(found.gradient, expected, rtol=1e-6)


def test_a_lost_filter_whose_start_is_given_does_not_begin_anew():
    """The start was where it was told to be, once."""
    times = np.arange(0.01, 0.4, 0.01)
    heights = 1.0 - 4.905 * times**2 + np.where(times > 0.2, 0.5, 0.0)
    settings = FilterSettings(gate=0.9999, patience=3, tolerance=1e-9)
    record = Record({"height": Series(times, heights)})
    (found,) = scores(falling, np.array([9.81, 1e-3]), ("gravity", "noise"), settings, [record])
    jumped = int((times > 0.2).sum())
    assert (found.lost, found.rejected, found.accepted) == (1, jumped, len(times) - jumped)
