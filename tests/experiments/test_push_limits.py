"""Limits of pushes: the bisection, the record, and pairs of laws."""

import pytest
from hybridctl.experiments.walking import push_limits


def test_a_limit_is_survived_and_one_step_more_is_not():
    for largest in range(16):
        assert push_limits.find_limit(lambda steps, k=largest: steps <= k, 16) == largest
    tried = []
    push_limits.find_limit(lambda steps: tried.append(steps) or steps != 12, 16)
    assert tried == [8, 12, 10, 11], "not monotone: a survived 13 is not looked for"


def test_laws_are_compared_with_the_clock_push_by_push():
    limits = {"clock": [1.0, 2.0, 3.0], "touch": [1.5, 3.5, 2.5], "sure": [1.0, 2.0, 3.0]}
    records = [
        {"robot": robot, "trigger": law, **push_limits.make_limit_record(found)}
        for robot in ("one", "other")
        for law, found in limits.items()
        if (robot, law) != ("other", "clock")
    ]
    more = push_limits.compare_limits(records, "robot", "trigger")
    clock, touch, sure, *without = more
    assert clock is None
    assert without == [None, None]
    # Differences 0.5, 1.5 and -0.5: their deviation is 1, of the mean 1 / sqrt(3).
    assert touch == {"mean": 0.5, "error": pytest.approx(3**-0.5), "better": 2, "worse": 1}
    assert sure == {"mean": 0.0, "error": 0.0, "better": 0, "worse": 0}
    assert push_limits.format_difference(touch) == "+0.50 ± 0.58, 2 better, 1 worse"
    assert push_limits.format_limit(records[0]) == "2.00 ± 0.58 (1)"


def test_without_pushes_or_with_one_there_is_no_error():
    none, one = push_limits.make_limit_record([]), push_limits.make_limit_record([0.15])
    assert (none["push_mean"], none["push_error"], one["push_error"]) == (None, None, None)
    assert push_limits.format_limit(none) == ""
    assert push_limits.format_limit(one) == "0.15 (0.15)"
    rows = [{"robot": "one", "trigger": law, **none} for law in ("clock", "touch")]
    assert push_limits.compare_limits(rows, "robot", "trigger") == [None, None]


def test_limits_of_two_robots_have_a_figure(tmp_path):
    records = [
        {"robot": robot, "trigger": law, **push_limits.make_limit_record(found)}
        for robot, found in (("small", [1.0, 2.0]), ("large", [20.0]))
        for law in ("clock", "touch")
    ]
    push_limits.draw_limits(tmp_path / "pushes.png", records, "robot", "trigger")
    assert (tmp_path / "pushes.png").stat().st_size > 5000
