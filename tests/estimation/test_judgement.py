"""What is said of a filter: whom its own innovations convict, and what the truth adds."""

from dataclasses import replace

import numpy as np
import pytest
from estimation.systems import GRAVITY, affine, bouncing_ball, height

import hybridctl as hc
from hybridctl.estimation.consistency import band, judge
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.measurement import linear
from hybridctl.estimation.record import Record, Series
from hybridctl.estimation.result import FilterResult
from hybridctl.estimation.salted_kalman_filter import FilterOptions, SaltedKalmanFilter

STILL = affine([[0.0]], [0.0])


def judged(deviation, assumed=1.0, wild=0, gate=None, given=400):
    """Values of a thing at rest, of this deviation; the first `wild` of them are far off."""
    values = deviation * np.random.default_rng(7).normal(size=400)
    values[:wild] += 100.0
    values[given:] = np.nan
    measured = linear("z", [[1.0]], [[assumed**2]], gate=gate)
    kf = SaltedKalmanFilter(STILL, np.zeros((1, 1)), measured, options=FilterOptions(patience=None))
    record = Record({"z": Series(np.arange(1, 401) / 100.0, values)})
    return judge(STILL, kf.run(record, Estimate("flow", 0.0, np.zeros(1), np.array([[1e-4]]))))


@pytest.mark.parametrize(
    ("deviation", "says", "trusted"),
    [(1.0, "consistent", True), (1.3, "too confident", False), (0.7, "too cautious", False)],
)
def test_the_size_of_innovations_says_what_a_filter_may_claim(deviation, says, trusted):
    """Their mean square is that of the deviation, with a band of 2.58 sqrt(2 / 400) about 1."""
    found = judged(deviation)
    assert found.verdict.startswith(says)
    assert found.trusted == found.record()["trusted"] == trusted
    assert found.cells()["mean NIS in its band"] == ("yes" if trusted else "no")
    assert found.nis.high - found.nis.low == pytest.approx(2.0 * 2.58 * np.sqrt(2 / 400), rel=0.01)


@pytest.mark.parametrize(("wild", "lost"), [(20, False), (21, True)])
def test_more_than_one_in_twenty_rejected_is_too_many(wild, lost):
    found = judged(1.0, wild=wild, gate=0.999999)
    assert found.record()["rejected"] == wild
    assert found.verdict.startswith(f"not to be trusted: {wild} of 400") == lost
    assert found.trusted != lost


def test_without_a_value_there_is_no_trust():
    found = judged(1.0, given=0)
    assert found.verdict == "not to be trusted: no value was accepted"
    assert not found.trusted
    assert found.cells()["mean NIS"] == "-"


def test_the_truth_adds_how_far_events_and_estimates_are_off():
    """A ball that is dropped 2 cm lower than thought, and that nobody looks at."""
    system, low, high = bouncing_ball(), 1.0, 1.02
    truth = hc.simulate(system, "air", [low, 0.0], (0.0, 0.6))
    record = Record({"height": Series([0.6], [np.nan])})
    kf = SaltedKalmanFilter(system, np.zeros((2, 2)), height())
    start = Estimate("air", 0.0, np.array([high, 0.0]), 1e-4 * np.eye(2))
    result = kf.run(record, start)
    late = np.sqrt(2.0 * high / GRAVITY) - np.sqrt(2.0 * low / GRAVITY)
    blind, found = judge(system, result), judge(system, result, truth)
    cells = found.cells()
    assert cells["event time error, rms"] == f"{1e3 * late:.3f} ms"
    assert cells["events missed"] == "0"
    assert cells["mode agreement (truth)"] == "100.0 %"
    error = result.means[0] - truth.final_state
    squares = error @ np.linalg.solve(result.covariances[0], error)
    assert found.nees == pytest.approx(squares / 2.0, rel=1e-6)
    assert cells["NEES per degree (truth)"] == f"{found.nees:.3f}"
    assert found.record()["event_time_error"] == pytest.approx(late, rel=1e-6)
    assert set(cells) - set(blind.cells()) == {
        "NEES per degree (truth)", "mode agreement (truth)", "event time error, rms",
        "events missed",
    }  # fmt: skip


def test_events_after_the_last_sample_are_not_missed():
    """The ball falls for 0.45 s; the last sample is at 0.3 s."""
    system, start = bouncing_ball(), Estimate("air", 0.0, np.array([1.0, 0.0]), 1e-4 * np.eye(2))
    truth = hc.simulate(system, "air", [1.0, 0.0], (0.0, 0.6))
    kf = SaltedKalmanFilter(system, np.zeros((2, 2)), height())
    found = judge(system, kf.run(Record({"height": Series([0.3], [np.nan])}), start), truth)
    assert len(truth.guard_events) == 1
    assert found.missed == 0
    assert found.event_errors == ()


def test_a_result_without_samples_is_judged_like_one_without_the_truth():
    system, start = bouncing_ball(), Estimate("air", 0.0, np.array([1.0, 0.0]), 1e-4 * np.eye(2))
    truth = hc.simulate(system, "air", [1.0, 0.0], (0.0, 0.6))
    result = FilterResult(start, (), skipped=0, disorder=0, seconds=1.0)
    found = judge(system, result, truth)
    assert found.verdict == "not to be trusted: no value was accepted"
    assert found.nees is found.agreement is found.event_errors is found.missed is None
    assert found.times_real == 0.0
    assert found.record()["nis_low"] is None
    assert found.cells()["events"] == "0"


def test_the_band_is_named_by_its_level():
    found = judged(1.0)
    wide = replace(found, nis=band([1.0] * 400, [1] * 400, level=0.9))
    assert "99 % band" in found.verdict
    assert "90 % band" in wide.verdict
    assert wide.cells()["band of mean NIS"].endswith("(90 %)")
