"""Run folders and configurations."""

import dataclasses
import errno
import json
import math
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import StringIO
from subprocess import PIPE, Popen
from typing import Literal

import numpy as np
import pytest
from hybridctl.experiments.linearization import validate
from hybridctl.experiments.tuning import tune
from rich.console import Console

from hybridctl.app.models import find_model
from hybridctl.app.report import make_record_table, show_progress
from hybridctl.base import plugins
from hybridctl.base.errors import FileFormatError, FileWriteError, InputError
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.run_marker import LOCK, MARKER
from hybridctl.base.settings import load_configuration, parse_settings


@dataclass(frozen=True)
class Inner:
    mass: float = 1.0


@dataclass(frozen=True)
class Outer:
    gains: tuple[float, ...] = (1.0, 2.0)
    name: str = "a"
    inner: Inner = field(default_factory=Inner)
    switch: bool = False
    count: int = 3
    size: float = 0.5
    kind: Literal["soft", "hard"] = "soft"
    pair: tuple[float, str] = (1.0, "m")
    file: str | None = None


def test_assignments_win_over_the_file(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"configuration": {"name": "b", "inner": {"mass": 2}}}))
    config = load_configuration(Outer, file, ["gains=[3, 4]", "name=c"])
    assert config == Outer((3, 4), "c", Inner(2))


@pytest.mark.parametrize(
    "content",
    ["", "{", "[1]", "3", "null", '{"configuration": 3}', "\xff", "[" * 100_000, "switch: no"],
    ids=range(9),
)
def test_broken_files_are_refused(tmp_path, content):
    file = tmp_path / "config.json"
    file.write_text(content, encoding="latin-1")
    with pytest.raises(FileFormatError, match="configuration"):
        load_configuration(Outer, file, [])


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(FileFormatError, match="cannot be read"):
        load_configuration(Outer, tmp_path / "none.json", [])


def test_a_folder_for_a_file_is_refused(tmp_path):
    with pytest.raises(FileFormatError, match="cannot be read"):
        load_configuration(Outer, tmp_path, [])


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("switch=no", "settings.switch must be true or false, got 'no'"),
        ("switch=0", "settings.switch must be true or false, got 0"),
        ("switch=null", "settings.switch must be true or false, got None"),
        ("count=2.0", "settings.count must be a whole number, got 2.0"),
        ("count=true", "settings.count must be a whole number, got True"),
        ("count=many", "settings.count must be a whole number, got 'many'"),
        ("size=large", "settings.size must be a number, got 'large'"),
        ("size=true", "settings.size must be a number, got True"),
        ("size=nan", "settings.size must be a number, got 'nan'"),
        ("size=NaN", "settings.size must be finite, got nan"),
        ("size=[1]", "settings.size must be a number, got"),
        ("name=3", "settings.name must be text, got 3"),
        ("name=null", "settings.name must be text, got None"),
        ("file=3", "settings.file must be text or nothing, got 3"),
        ("kind=sof", "settings.kind 'sof' is unknown.*did you mean 'soft'"),
        ("gains=1", "settings.gains must be a list, got 1"),
        ('gains=[1, "2"]', r"settings.gains\[1\] must be a number, got '2'"),
        ("pair=[1]", "settings.pair must be a list of length 2, got"),
        ("pair=[1, 2]", r"settings.pair\[1\] must be text, got 2"),
        ("inner=[1]", "settings.inner must be an object"),
        ('inner={"mass": "1"}', "settings.inner.mass must be a number"),
        ('inner={"maas": 1}', "key in settings.inner 'maas' is unknown.*did you mean 'mass'"),
        ("nmae=b", "key in settings 'nmae' is unknown, expected one of.*did you mean 'name'"),
        ("name", "must look like key=value"),
    ],
)
def test_a_setting_of_another_type_is_refused(assignment, message):
    with pytest.raises(InputError, match=message):
        load_configuration(Outer, None, [assignment])


def test_settings_have_the_types_of_their_fields():
    given = ["switch=true", "size=2", "kind=hard", 'pair=[2, "s"]', "file=a b", "gains=[]"]
    config = load_configuration(Outer, None, given)
    assert (config.switch, config.kind, config.pair) == (True, "hard", (2.0, "s"))
    assert (config.file, config.gains) == ("a b", ())
    assert isinstance(config.size, float)
    assert load_configuration(Outer, None, ["file=null"]).file is None


@pytest.mark.parametrize(
    "name",
    [*plugins.list_plugins("experiments"), "tune", "validate", *plugins.list_plugins("models")],
)
def test_every_experiment_reads_its_own_settings_back(name):
    others = {"tune": tune.Config, "validate": validate.Config}
    if name in plugins.list_plugins("models"):
        kind = find_model(name).settings
    else:
        kind = others[name] if name in others else plugins.load_plugin("experiments", name).Config
    stored = json.loads(json.dumps(dataclasses.asdict(kind())))
    assert parse_settings(kind, stored, "settings") == kind()


def test_nested_settings_must_be_objects():
    with pytest.raises(InputError, match=r"settings\.inner must be an object"):
        load_configuration(Outer, None, ["inner=3"])


def test_a_file_in_the_way_is_named(tmp_path):
    file = tmp_path / "out"
    file.write_text("x")
    with pytest.raises(InputError, match="is a file"):
        RunFolder("e", file)


def test_runs_that_begin_at_once_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda _: RunFolder("e").path, range(40)))
    assert len(set(paths)) == 40
    assert all(path.is_dir() and path.name.startswith("e-") for path in paths)


def visible(path):
    """Names in a folder without those of the marker and the lock."""
    return sorted(p.name for p in path.iterdir() if not p.name.startswith(".hybridctl"))


def earlier(path):
    """The folder of a run that has been."""
    folder = RunFolder("e", path)
    folder.write_configuration(Outer(), seed=None)
    folder.write_json("summary.json", {})
    folder.write_text("figures/old.txt", "old")
    return path


def test_a_folder_that_holds_a_run_is_refused_and_left_alone(tmp_path):
    path = earlier(tmp_path / "run")
    with pytest.raises(InputError, match=r"out must be a new or an empty folder.*config.json"):
        RunFolder("e", path)
    assert (path / "figures/old.txt").read_text() == "old"


def test_a_run_that_is_overwritten_leaves_nothing_behind(tmp_path):
    path = earlier(tmp_path / "run")
    with RunFolder("e", path, overwrite=True):
        assert visible(path) == []
    assert visible(path) == []
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_run_is_never_overwritten(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match="is no run"):
        RunFolder("e", tmp_path, overwrite=True)
    assert (tmp_path / "thesis.tex").exists()


def test_an_interrupted_run_is_resumed_and_another_is_not(tmp_path):
    path = earlier(tmp_path / "run")
    with pytest.raises(InputError, match="new or an empty folder"):
        RunFolder("e", path, resumes="runs.jsonl")
    RunFolder("e", path, overwrite=True, resumes="runs.jsonl").write_text("runs.jsonl", "{}\n")
    assert visible(path) == ["config.json", "figures", "summary.json"]  # that run has failed
    with RunFolder("e", path, overwrite=True, resumes="runs.jsonl") as folder:
        folder.write_text("runs.jsonl", "{}\n")
    RunFolder("e", path, resumes="runs.jsonl")
    assert visible(path) == ["runs.jsonl"]
    with pytest.raises(InputError, match=r"holds .runs.jsonl.; overwrite replaces"):
        RunFolder("e", path)


def test_a_run_that_has_failed_does_not_block_the_next(tmp_path):
    path = earlier(tmp_path / "run")
    (path / "summary.json").unlink()
    lines = (path / MARKER).read_text().splitlines(keepends=True)
    (path / MARKER).write_text("".join(line for line in lines if "finished" not in line))
    with RunFolder("e", path):
        assert visible(path) == []


RUNNER = """
import sys
from hybridctl.base.run_folder import RunFolder
folder = RunFolder("e", sys.argv[1])
folder.write_text("config.json", "{}")
print("begun", flush=True)
sys.stdin.read()
"""


def test_the_folder_of_a_run_that_goes_on_in_another_process_is_left_alone(tmp_path):
    path = tmp_path / "run"
    command = [sys.executable, "-c", RUNNER, str(path)]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdout.readline() == "begun\n"
        for options in ({}, {"overwrite": True}, {"resumes": "config.json"}):
            with pytest.raises(InputError, match=rf"process {process.pid} on .* is running into"):
                RunFolder("e", path, **options)
        assert (path / "config.json").read_text() == "{}"
        process.kill()
    assert RunFolder("e", path, resumes="config.json") / "config.json" in path.iterdir()
    with RunFolder("e", path):
        assert visible(path) == []


def test_a_run_that_is_done_is_refused_without_holding_its_folder(tmp_path):
    path = earlier(tmp_path / "run")
    with pytest.raises(InputError) as refused:
        RunFolder("e", path)
    assert refused.value.__traceback__ is not None
    assert not (path / LOCK).exists()


def test_a_file_system_without_locks_takes_runs(tmp_path, monkeypatch):
    def missing(*asked):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.lockf", missing)
    assert RunFolder("e", tmp_path / "run").path.is_dir()


def test_a_folder_that_cannot_be_made_is_named():
    with pytest.raises(FileWriteError, match="out: /dev/null/run: Not a directory"):
        RunFolder("e", "/dev/null/run")


def test_hidden_files_do_not_fill_a_folder(tmp_path):
    (tmp_path / ".DS_Store").write_text("x")
    assert RunFolder("e", tmp_path).path == tmp_path


def test_what_json_cannot_hold_becomes_null(tmp_path):
    folder = RunFolder("e", tmp_path)
    folder.write_json("a.json", {"x": float("inf"), "y": (1.0, float("nan"))})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": None, "y": [1.0, None]}


def test_cells_of_records_are_in_the_units_of_their_headers():
    records = [
        {"name": "one", "error": 0.0123, "turn": math.pi, "steps": [3, 4], "holds": True},
        {"name": "two", "error": None, "limits": {"up": 0.5, "down": 2.0}, "holds": False},
    ]
    columns = {
        "": "{name}",
        "error [mm]": "{error:.1f}",
        "turn [deg]": "{turn:.0f}",
        "turn [rad]": "{turn:.2f}",
        "steps": "{steps}",
        "limits [m]": "{limits:g}",
        "holds": "{holds}",
    }
    found = make_record_table("Both", records, columns)
    assert [list(column.cells) for column in found.columns] == [
        ["one", "two"],
        ["12.3", "-"],
        ["180", "-"],
        ["3.14", "-"],
        ["3, 4", "-"],
        ["-", "0.5, 2"],
        ["yes", "no"],
    ]


def test_a_key_that_no_record_has_is_an_error_that_names_it():
    records = [{"mean": 1.0, "of": None, "in": {"m": 1.0}}, {"mean": 2.0, "of": None, "in": {}}]
    for form in ("{maen:.1f}", "{mean:.1f} ± {eror:.1f}", "{in[mm]}"):
        key = re.findall(r"\{([\w\[\]]+)", form)[-1]
        with pytest.raises(KeyError, match=re.escape(f"column 'mean': no record has '{key}'")):
            make_record_table("Both", records, {"mean": form})
    (column,) = make_record_table("Both", records, {"": "{in[m]} {of[parts]}"}).columns
    assert list(column.cells) == ["1.0 -", "- -"]
    assert make_record_table("None", [], {"mean": "{maen}"}).row_count == 0


def test_whole_numbers_are_converted_as_others_are():
    (column,) = make_record_table(
        "Shares", [{"of": 1}, {"of": np.int64(0)}], {"[%]": "{of:.0f}"}
    ).columns
    assert list(column.cells) == ["100", "0"]


def test_a_text_of_one_dash_is_no_zero():
    """A number that rounds to zero loses its sign; text stays as it is."""
    (column,) = make_record_table("Names", [{"of": "-"}, {"of": -0.001}], {"": "{of}"}).columns
    assert list(column.cells) == ["-", "-0.001"]
    (column,) = make_record_table("Values", [{"of": -0.001}], {"": "{of:.1f}"}).columns
    assert list(column.cells) == ["0.0"]
    values = [{"of": -0.0}, {"of": -1e-9}, {"of": -1.5}]
    table = make_record_table("Values", values, {"e": "{of:.1e}", "%": "{of:.1%}"})
    cells = [list(column.cells) for column in table.columns]
    assert cells == [["0.0e+00", "-1.0e-09", "-1.5e+00"], ["0.0%", "0.0%", "-150.0%"]]


def test_progress_of_a_work_without_length_is_at_its_end(capsys):
    """As that of a log whose values have one stamp."""
    with show_progress(Console(file=StringIO()), 1.0, 1.0) as begin:
        begin("filtering")(1.0)
    assert capsys.readouterr().err == "filtering: 100 %\n"
