"""Journals: results are found again by settings, code and version, and by nothing less."""

import json
import math
import sys
from dataclasses import dataclass, field

import numpy as np
import pytest
from control.pushed_ball import Trial

from hybridctl.app.experiment import open_journal
from hybridctl.base import journal as journals
from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.base.journal import Journal, compute_all
from hybridctl.base.workers import Crew, InProcessExecutor
from hybridctl.control.gains import GainSchedule
from hybridctl.control.tuning.ensemble import Ensemble, Outcome


@dataclass(frozen=True)
class Config:
    rate: float = 1.0
    data: str = ""
    inner: dict = field(default_factory=lambda: {"bound": math.inf, "off": math.nan})
    workers: int = 1


def test_settings_that_differ_are_named_with_both_values(tmp_path):
    path = tmp_path / "runs.jsonl"
    open_journal(path, Config())
    open_journal(path, Config(workers=4))
    for other, said in (
        (Config(rate=2.0), r"settings\.rate \(before 1\.0, now 2\.0\)"),
        (
            Config(inner={"bound": -math.inf, "off": math.nan}),
            r"settings: settings\.inner\.bound\.",
        ),
    ):
        with pytest.raises(InputError, match=said):
            open_journal(path, other)
    with pytest.raises(InputError, match="other settings"):
        Journal(path, {"rate": 1})
    (tmp_path / "list").write_text("[1, 2]\n")
    with pytest.raises(FileFormatError):
        Journal(tmp_path / "list", {})


def test_results_of_other_code_and_versions_stay_but_are_not_found(tmp_path, monkeypatch):
    path = tmp_path / "runs.jsonl"
    codes = [{"f": lambda x: x}, {"f": lambda x: x + 1}]
    for k, code in enumerate(codes):
        Journal(path, {"a": math.nan}, code).put("x", (k, math.inf))
    for k, code in enumerate(codes):
        stored = Journal(path, {"a": math.nan}, code)
        assert (stored.get("x"), len(stored), stored.unused_results) == ((k, math.inf), 1, 1)
    monkeypatch.setattr(journals, "__version__", "99")
    assert Journal(path, {"a": math.nan}, codes[0]).get("x") is None


def test_items_that_are_equal_to_python_are_computed_each(tmp_path):
    items = [1, 1.0, True, math.nan, math.nan, -0.0, 0.0, (1,), "1"]
    shares, crew = [], Crew(InProcessExecutor())
    record = Journal(tmp_path / "r.jsonl", {})
    found = compute_all(lambda item: (repr(item),), items, crew, shares.append, record)
    assert [each[0] for each in found] == [repr(item) for item in items]
    assert shares[-1] == 1.0
    again = compute_all(None, items, crew, None, Journal(tmp_path / "r.jsonl", {}))
    assert [each[0] for each in again] == [repr(item) for item in items]


def test_a_file_that_settings_name_counts_with_what_it_holds(tmp_path):
    data, path = tmp_path / "data.csv", tmp_path / "runs.jsonl"
    data.write_text("1")
    config = Config(data=str(data))
    open_journal(path, config).put("x", (1,))
    assert open_journal(path, config).get("x") == (1,)
    data.write_text("2")
    assert open_journal(path, config).get("x") is None


def test_the_text_of_an_experiment_counts(tmp_path):
    text = "from dataclasses import dataclass\n@dataclass\nclass Config:\n    rate: float = 1.0\n"
    path = tmp_path / "own_experiment.py"
    found = []
    for more in ("", "FACTOR = 2\n", ""):
        path.write_text(text + more)
        module = type(sys)("own_experiment")
        module.__file__ = str(path)
        sys.modules["own_experiment"] = module
        exec(compile(text, path, "exec"), vars(module))
        record = open_journal(tmp_path / "runs.jsonl", module.Config())
        found.append(record.get("x"))
        record.put("x", (more,))
    del sys.modules["own_experiment"]
    assert found == [None, None, ("",)]


def test_numbers_of_numpy_are_kept_and_what_json_does_not_hold_is_refused(tmp_path):
    record = Journal(tmp_path / "r.jsonl", {})
    record.put("x", (np.bool_(True), np.int64(3), np.float32(0.5), np.array([math.inf])))
    assert Journal(record.path, {}).get("x") == (True, 3, 0.5, [math.inf])
    with pytest.raises(InputError, match="got 1j"):
        record.put("y", (1j,))
    assert len(Journal(record.path, {})) == 1


@dataclass(frozen=True)
class Doubled(Trial):
    """The same trial, edited."""

    def __call__(self, controller, gains, member):
        found = super().__call__(controller, gains, member)
        return found._replace(error=2.0 * found.error)


def test_an_edited_trial_is_run_again(tmp_path):
    gains = GainSchedule.constant([[[1.0, 1.0]]] * 2)
    record = Journal(tmp_path / "runs.jsonl", {"seed": 1})
    first = Ensemble(Trial(), range(2), record=record)(gains)
    edited = Ensemble(Doubled(), range(2), record=record)(gains)
    np.testing.assert_array_equal(edited.errors, 2.0 * first.errors)
    lines = (tmp_path / "runs.jsonl").read_text().splitlines()
    assert len({json.loads(line)[0] for line in lines[1:]}) == 4
    for k in (3.0, 4.0):  # functions go by their code and what they enclose

        def trial(controller, gains, member, k=k):
            return Outcome(k, 0.0)

        assert Ensemble(trial, [0], record=record)(gains).errors.tolist() == [k]


@pytest.mark.parametrize("value", [{(1, 2): 3}, object()])
def test_a_result_that_json_does_not_hold_is_refused_and_nothing_is_stored(tmp_path, value):
    journal = Journal(tmp_path / "journal.jsonl", {})
    before = journal.path.read_bytes()
    with pytest.raises(InputError, match="results that are kept must be"):
        journal.put("key", (value,))
    assert journal.get("key") is None
    assert journal.path.read_bytes() == before


def test_a_result_that_contains_itself_is_refused(tmp_path):
    own: list = []
    own.append(own)
    with pytest.raises(InputError, match="results that are kept must be"):
        Journal(tmp_path / "journal.jsonl", {}).put("key", (own,))
