"""No file that a user opens runs code, exhausts the machine, or is quoted at length in an error."""

import os
import zipfile

import numpy as np
import pinocchio
import pytest
from hybridctl.experiments.contacts import slope

import hybridctl as hc
from hybridctl.app.models import find_model
from hybridctl.app.sweep import parse_axis, plan_units
from hybridctl.base.checks import make_printable, quote
from hybridctl.base.errors import FileFormatError, FileWriteError, HybridctlError, InputError
from hybridctl.base.files import atomic
from hybridctl.base.settings import load_configuration
from hybridctl.base.yaml_files import read_yaml
from hybridctl.control.gains import GainSchedule
from hybridctl.logs import read_log
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.multibody.urdf import shapes_of
from hybridctl.symbolic.formula import parse_formula

LONGEST = 2000  # characters of a message, which fits on a screen
NINE = range(1, 9)
ALIASES = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    + [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]" for k in NINE]
    + ["urdf: *a8", "contacts: {}"]
)
MERGED = "\n".join(
    ["a0: &a0 {k: 1}"] + [f"a{k}: &a{k} {{<<: [{', '.join([f'*a{k - 1}'] * 9)}]}}" for k in NINE]
)
ENTITIES = (
    '<!DOCTYPE r [<!ENTITY a "aaaaaaaaaa">'
    + "".join(
        f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    + ']><robot name="&i;"><link name="a"/></robot>'
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ALIASES, "at most 100000 entries"),
        (MERGED, "at most 100000 entries"),
        ("urdf: &a [*a]", "at most 30 levels"),
        ("urdf: " + "[" * 60 + "]" * 60, "at most 30 levels"),
        ("urdf: " + "[" * 5000, "not YAML"),
        ("urdf: 2001-99-99", "not YAML"),
        ("urdf: " + "1" * 6000, "not YAML"),
        ("!!python/object/apply:os.system [exit]", "not YAML"),
        ("? [a]\n: 1", "not YAML"),
        ("k: 1\nk: 2", "key 'k' occurs twice"),
        ("#" * 2**20 + "\nurdf: x", "has more than 1048576 bytes"),
        (f"urdf: x\ncontacts: {'y' * 100_000}", "robot.contacts must be an object, got 'yyy"),
        ("urdf: x\ncontacts: {foot: {frame: [" + "1, " * 1000 + "1]}}", "frame must be text, got"),
    ],
)
def test_yaml_is_bounded_and_quoted_shortly(text, message, tmp_path):
    (tmp_path / "robot.yaml").write_text(text)
    with pytest.raises(InputError) as caught:
        find_model(str(tmp_path / "robot.yaml"))
    assert message in str(caught.value)
    assert len(str(caught.value)) < LONGEST


READERS = {
    "yaml": lambda path: read_yaml(path, "model"),
    "urdf": Robot.from_urdf,
    "shapes": lambda path: shapes_of(pinocchio.Model(), path),
    "configuration": lambda path: load_configuration(object, path, ()),
    "log": read_log,
    "run": lambda path: hc.HybridTrajectory.load(path, None),
    "gains": GainSchedule.load,
}


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("given", ["/dev/zero", "pipe", "folder", "nowhere", "alike"])
def test_what_is_no_regular_file_is_refused(kind, given, tmp_path, monkeypatch):
    """None of them is read: /dev/zero and a pipe would not end."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    os.mkdir("folder")
    os.symlink("/dev/zero", "alike")
    with pytest.raises(InputError, match=given):
        READERS[kind](given)


@pytest.mark.parametrize("kind", ["run", "gains", "log"])
def test_packed_arrays_are_not_unpacked_when_they_are_huge(kind, tmp_path, monkeypatch):
    """A zip that says that it holds 5 GB: zeros, in the file some megabytes, here none at all."""
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("header.npy", b"")
    true = zipfile.ZipFile.infolist

    def claimed(self):
        for info in true(self):
            info.file_size = 5 * 2**30
        return true(self)

    monkeypatch.setattr(zipfile.ZipFile, "infolist", claimed)
    with pytest.raises(FileFormatError, match="5368709120 bytes"):
        READERS[kind](tmp_path / "a.npz")


@pytest.mark.parametrize("kind", ["run", "gains"])
def test_saved_objects_are_not_unpickled(kind, tmp_path):
    class Harmful:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    np.savez(tmp_path / "a.npz", header=np.array([Harmful()], dtype=object))
    with pytest.raises(FileFormatError):
        READERS[kind](tmp_path / "a.npz")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("read", [READERS["urdf"], READERS["shapes"]])
def test_entities_are_not_expanded(read, tmp_path):
    (tmp_path / "a.urdf").write_text(ENTITIES)
    for given in (ENTITIES, tmp_path / "a.urdf"):
        with pytest.raises(FileFormatError, match="must not define entities"):
            read(given)


def test_what_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder/inner").mkdir(parents=True)
    for path in (tmp_path / "file/a.npz", tmp_path / "folder"):
        with (
            pytest.raises(FileWriteError, match=f"{path} cannot be written") as caught,
            atomic(path),
        ):
            pass
        assert isinstance(caught.value, HybridctlError)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["file", "folder", "inner"]


@pytest.mark.parametrize(
    "text", ["-" * 5000 + "1", "(" * 250 + "x" + ")" * 250, "+".join("x" * 2500), "x" * 20_000]
)
def test_formulas_are_bounded(text):
    with pytest.raises(InputError, match="f must") as caught:
        parse_formula("f", text, ["x"])
    assert len(str(caught.value)) < LONGEST


def test_a_formula_of_many_terms_is_one():
    terms = 150
    assert parse_formula("f", "+".join(["x"] * terms), ["x"])(2.0) == 2.0 * terms


def test_sweeps_are_bounded():
    with pytest.raises(InputError, match="at most 1000000 units, got 1000000000"):
        parse_axis("k=0:1:1000000000")
    with pytest.raises(InputError, match="at most 1000000 units"):
        plan_units("slope", slope.Config(), ["speed=0:1:2000", "slope=0.1:1:2000"], None)


def test_values_are_quoted_shortly_whatever_they_are():
    nested = []
    for _ in range(50):
        nested = [nested] * 9
    for value in (
        nested,
        "x" * 10**6,
        10**4000,
        np.zeros((1000, 1000)),
        {k: nested for k in "abc"},
    ):
        assert len(quote(value)) < LONGEST
    assert quote([1.5, "a", None]) == "[1.5, 'a', None]"
    assert quote(np.array([1.0, 2.0])) == "array([1., 2.])"


def test_what_is_printed_leaves_the_terminal_alone():
    assert make_printable("a \x1b]0;title\x07 b\n") == "a \\x1b]0;title\\x07 b\n"
