"""Run folders and configurations."""

import json
from dataclasses import dataclass, field

import pytest

from hybridctl.errors import FileFormatError, InputError
from hybridctl.report import RunFolder, load_configuration


@dataclass(frozen=True)
class Inner:
    mass: float = 1.0


@dataclass(frozen=True)
class Outer:
    gains: tuple[float, ...] = (1.0, 2.0)
    name: str = "a"
    inner: Inner = field(default_factory=Inner)


def test_assignments_win_over_the_file(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"configuration": {"name": "b", "inner": {"mass": 2}}}))
    config = load_configuration(Outer, file, ["gains=[3, 4]", "name=c"])
    assert config == Outer((3, 4), "c", Inner(2))


@pytest.mark.parametrize("content", ["", "{", "[1]"])
def test_broken_files_are_refused(tmp_path, content):
    file = tmp_path / "config.json"
    file.write_text(content)
    with pytest.raises(FileFormatError, match="configuration"):
        load_configuration(Outer, file, [])


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(FileFormatError, match="cannot be read"):
        load_configuration(Outer, tmp_path / "none.json", [])


def test_nested_settings_must_be_objects():
    with pytest.raises(InputError, match="'inner' must be an object"):
        load_configuration(Outer, None, ["inner=3"])


def test_a_file_in_the_way_is_named(tmp_path):
    file = tmp_path / "out"
    file.write_text("x")
    with pytest.raises(InputError, match="is a file"):
        RunFolder("e", file)


def test_what_json_cannot_hold_becomes_null(tmp_path):
    folder = RunFolder("e", tmp_path)
    folder.write_json("a.json", {"x": float("inf"), "y": (1.0, float("nan"))})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": None, "y": [1.0, None]}
