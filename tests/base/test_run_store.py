"""Files that are not of a run are never touched, whatever a folder, its marker or its links are."""

import json
import logging
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

import hybridctl as hc
from hybridctl import experiments
from hybridctl.app import cli
from hybridctl.base import run_marker
from hybridctl.base.errors import FileWriteError, InputError
from hybridctl.base.files import atomic
from hybridctl.base.journal import Journal
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.run_marker import EARLIER, LOCK, MARKER, Marker


@dataclass(frozen=True)
class Config:
    speed: float = 1.0
    workers: int = 1


def run(path, tag="old", **options):
    """A run that ends, with the tag in its files."""
    with RunFolder("e", path, **options) as folder:
        folder.write_text("config.json", tag)
        folder.write_text("figures/a.png", tag)
        folder.write_text("summary.json", tag)
    return path


def snapshot(path):
    """All that is in a folder."""
    return {p.relative_to(path): p.is_file() and p.read_bytes() for p in path.rglob("*")}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("names", [("config.json", ".git/HEAD"), ("summary.json", "config.json")])
def test_a_folder_without_a_marker_is_refused_and_not_touched(names, overwrite, tmp_path):
    """Also runs of earlier versions, which have no marker."""
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    before, changed = snapshot(tmp_path), tmp_path.stat().st_mtime_ns
    for start in (
        lambda: RunFolder("e", tmp_path, overwrite=overwrite, resumes="config.json"),
        lambda: hc.sweep(abs, [{"x": 1}], out=tmp_path, overwrite=overwrite),
    ):
        with pytest.raises(InputError, match=r"holds 'config.json' and no .hybridctl.jsonl"):
            start()
    assert snapshot(tmp_path) == before
    assert tmp_path.stat().st_mtime_ns == changed


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_run_of_another_kind_is_never_replaced(finished, overwrite, tmp_path):
    path = run(tmp_path / "run", kind="sweep")
    if not finished:
        drop_lines(path, "finished")
    before = snapshot(path)
    with pytest.raises(
        InputError, match=r"a run of `sweep` \(e\), which `filter` does not replace"
    ):
        RunFolder("e", path, kind="filter", overwrite=overwrite)
    assert snapshot(path) == before


def drop_lines(path, word):
    lines = (path / MARKER).read_text().splitlines(keepends=True)
    (path / MARKER).write_text("".join(line for line in lines if word not in line))


@pytest.mark.parametrize("finished", [False, True])
def test_foreign_files_stay_in_a_folder_that_is_replaced_and_are_named(finished, tmp_path, caplog):
    path = run(tmp_path / "run")
    if not finished:
        drop_lines(path, "finished")
    for name in ("figures/mine.png", ".git/HEAD", "notes.txt"):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text("mine")
    run(path, "new", overwrite=finished)
    assert "also holds .git, figures/mine.png, notes.txt, which stays" in caplog.text
    found = {p.relative_to(path).as_posix(): p.read_text() for p in path.rglob("*") if p.is_file()}
    del found[MARKER]
    assert found == {
        **dict.fromkeys(("config.json", "figures/a.png", "summary.json"), "new"),
        **dict.fromkeys(("figures/mine.png", ".git/HEAD", "notes.txt"), "mine"),
    }


def test_a_listed_file_that_somebody_has_changed_keeps_a_run_from_starting(tmp_path):
    path = run(tmp_path / "run")
    (path / "config.json").write_text("edited for hours")
    before = snapshot(path)
    with pytest.raises(InputError, match=r"holds config.json, changed since the run wrote it"):
        RunFolder("e", path, overwrite=True)
    assert snapshot(path) == before


def test_a_file_that_is_in_the_way_of_a_run_is_not_overwritten(tmp_path):
    """It comes while the run goes on."""
    with RunFolder("e", tmp_path / "run") as folder:
        (folder / "summary.json").write_text("mine")
        (folder / "runs.jsonl").write_text("mine")
        with pytest.raises(FileWriteError, match=r"summary.json was not written by this run"):
            folder.write_json("summary.json", {})
        with pytest.raises(FileWriteError, match=r"runs.jsonl was not written by this run"):
            Journal(folder / "runs.jsonl", {})
        with (
            pytest.raises(FileWriteError, match=r"late.txt was not written by this run"),
            atomic(folder / "late.txt"),
        ):
            (folder / "late.txt").write_text("appeared")
    names = ("late.txt", "runs.jsonl", "summary.json")
    assert [(folder / name).read_text() for name in names] == ["appeared", "mine", "mine"]


@pytest.mark.parametrize("place", ["figures", "config.json", "."])
def test_links_are_not_followed(place, tmp_path):
    """A folder or a file of a run that has become a link leads to what is not of the run."""
    path, outside = tmp_path / "run", tmp_path / "outside"
    run(path)
    if place == ".":  # that the folder itself is a link does not matter
        path.rename(outside)
        path.symlink_to(outside)
        run(path, "new", overwrite=True)
        assert path.is_symlink()
        assert (outside / "figures/a.png").read_text() == "new"
        return
    (path / place).rename(outside)
    (path / place).symlink_to(outside)
    before = snapshot(path), snapshot(tmp_path)
    with pytest.raises(InputError, match="changed since the run wrote it"):
        RunFolder("e", path, overwrite=True)
    assert (snapshot(path), snapshot(tmp_path)) == before


def test_a_run_does_not_write_through_a_link(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    with RunFolder("e", tmp_path / "run") as folder:
        (folder / "figures").symlink_to(outside)
        with pytest.raises(FileWriteError, match="was not written by this run"):
            folder.write_text("figures/a.png", "")
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("name", ["../thesis.tex", "/etc/hosts", "", ".", LOCK, f"{EARLIER}/a", 3])
def test_a_marker_that_leads_out_of_its_folder_is_refused(name, tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    path = run(tmp_path / "run")
    for entry in ({"temporary": name}, {"folder": name}):
        with (path / MARKER).open("a") as file:
            file.write(json.dumps(entry) + "\n")
        with pytest.raises(InputError, match="is no list of files of this version"):
            RunFolder("e", path, overwrite=True)
        drop_lines(path, json.dumps(entry))
    assert (tmp_path / "thesis.tex").exists()


@pytest.mark.parametrize("content", ["{}\n", "[]\n", "notes\n", '{"hybridctl run": 2}\n', "\xff\n"])
def test_a_file_by_the_name_of_the_marker_that_is_none_is_not_touched(content, tmp_path):
    (tmp_path / MARKER).write_text(content, encoding="latin1")
    with pytest.raises(InputError, match="is no list of files of this version"):
        RunFolder("e", tmp_path, overwrite=True)
    assert (tmp_path / MARKER).read_text(encoding="latin1") == content


def test_a_marker_that_was_cut_off_anywhere_loses_no_foreign_file(tmp_path):
    """A process is killed or a disk is full in the middle of a line."""
    whole = run(tmp_path / "whole")
    text = (whole / MARKER).read_bytes()
    for length in range(0, len(text), 31):
        path = tmp_path / str(length)
        shutil.copytree(whole, path)
        (path / "mine.txt").write_text("mine")
        (path / MARKER).write_bytes(text[:length])
        try:
            run(path, "new", overwrite=True)
        except (InputError, FileWriteError):  # what is not listed is foreign
            assert (path / "config.json").read_text() == "old"
        assert (path / "mine.txt").read_text() == "mine"


def fail(path, error, files, **options):
    """A run that writes files with the tag "new", also as a user does, and ends by an error."""
    with RunFolder("e", path, overwrite=True, **options) as folder:
        for name in files:
            folder.write_text(name, "new")
        assert not (folder / "summary.json").exists()
        if "resumes" in options:
            Journal(folder / options["resumes"], {"seed": 1}).put("0", (1.0,))
        elif not files:
            (folder / "config.json").write_text("mine")
        raise error


def test_a_marker_that_was_cut_off_while_another_run_is_aside_loses_nothing(tmp_path):
    """With the marker whole or before its first line is, what was replaced comes back."""
    path = run(tmp_path / "run")
    folder = RunFolder("e", path, overwrite=True)
    folder.write_text("config.json", "new")
    text = (path / MARKER).read_bytes()
    first = text.index(b"\n")
    for length in (0, 1, 14, first, first + 1, first + 20, len(text) - 5, len(text)):
        killed = tmp_path / str(length)
        shutil.copytree(path, killed)
        (killed / LOCK).unlink()
        (killed / MARKER).write_bytes(text[:length])
        if length <= first:  # nothing is written before the marker is
            (killed / "config.json").unlink()
        with pytest.raises(InputError) as refused:
            RunFolder("e", killed)
        back = "overwrite replaces" in str(refused.value)
        assert back or (killed / EARLIER / "config.json").read_text() == "old"
        assert (killed / "config.json").read_text() == ("old" if back else "new")
        assert back == (length in (0, 1, 14, first, len(text)))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_what_a_run_replaces_comes_back_if_the_run_fails(error, tmp_path, caplog):
    path = run(tmp_path / "run")
    before = snapshot(path)
    with pytest.raises(error):
        fail(path, error, ("config.json", "rows/1.csv"))
    assert snapshot(path) == before
    assert "the earlier run is back in" in caplog.text


def test_results_of_a_run_that_was_stopped_are_kept_beside_what_it_has_replaced(tmp_path, caplog):
    path = run(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        fail(path, KeyboardInterrupt, ("config.json",), resumes="runs.jsonl")
    assert (path / "config.json").read_text() == "old"
    (kept,) = path.glob("interrupted-*")
    assert kept.name in caplog.text
    with RunFolder("e", kept, resumes="runs.jsonl") as folder:
        assert Journal(folder / "runs.jsonl", {"seed": 1}).get("0") == (1.0,)


def test_a_foreign_file_in_the_way_of_what_comes_back_stays(tmp_path, caplog):
    path = run(tmp_path / "run")
    with pytest.raises(ZeroDivisionError):
        fail(path, ZeroDivisionError, ())
    assert "cannot go back, as config.json is in its way" in caplog.text
    with pytest.raises(InputError, match=r"config.json is in its way"):
        RunFolder("e", path)
    assert (path / "config.json").read_text() == "mine"
    (path / "config.json").rename(tmp_path / "mine")
    with pytest.raises(InputError, match="overwrite replaces the run"):
        RunFolder("e", path)
    assert (path / "config.json").read_text() == "old"
    assert not (path / EARLIER).exists()


def test_without_a_with_statement_a_run_has_ended_if_it_has_a_summary(tmp_path):
    path = run(tmp_path / "run")
    folder = RunFolder("e", path, overwrite=True)
    folder.write_text("config.json", "new")
    del folder
    assert (path / "config.json").read_text() == "old"
    folder = RunFolder("e", path, overwrite=True)
    folder.write_json("summary.json", {})
    del folder
    assert Marker.read(path).finished
    assert not (path / "config.json").exists()


def test_a_sweep_that_fails_leaves_the_sweep_that_it_replaces(tmp_path):
    out = tmp_path / "out"
    hc.sweep(abs_of, [{"x": -1.0}], out=out)
    before = (out / "table.csv").read_text()
    with pytest.raises(TypeError):
        hc.sweep(abs_of, [{"x": 2.0}, {"x": None}], out=out, overwrite=True)
    assert (out / "table.csv").read_text() == before
    assert hc.sweep(abs_of, [{"x": 2.0}], out=out, overwrite=True).rows[0]["result"] == 2.0
    assert (out / "table.csv").read_text() != before


def abs_of(x):
    return abs(x)


def test_a_sweep_into_the_folder_of_one_that_goes_on_is_refused(tmp_path):
    def again(x):
        hc.sweep(abs_of, [{"x": x}], out=tmp_path, overwrite=True)

    (row,) = hc.sweep(again, [{"x": 1.0}], out=tmp_path).rows
    assert row["status"] == "failed"
    assert "is running into" in row["message"]


@pytest.mark.parametrize("text", ["my lock", "x" * 300])
def test_a_file_by_the_name_of_the_lock_is_not_truncated(text, tmp_path):
    (tmp_path / LOCK).write_text(text)
    with pytest.raises(InputError, match="is no lock of hybridctl"):
        RunFolder("e", tmp_path)
    assert (tmp_path / LOCK).read_text() == text


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(tmp_path / "mine")
    with pytest.raises(InputError, match="is a link"):
        RunFolder("e", tmp_path / "run")
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize("place", ["config.json", "figures/a.png", "summary.json", MARKER])
def test_a_folder_that_cannot_be_set_aside_is_left_whole(place, tmp_path, monkeypatch):
    """A folder in it may be read only."""
    path, link = run(tmp_path / "run"), os.link
    before = snapshot(path)

    def refused(source, target, **options):
        if source == path / place:
            raise PermissionError(13, "Permission denied", str(target))
        link(source, target, **options)

    def refused_always(source, target):
        raise PermissionError(13, "Permission denied", str(target))

    monkeypatch.setattr(os, "link", refused)
    monkeypatch.setattr(os, "rename", refused_always)
    with pytest.raises(FileWriteError, match="Permission denied"):
        RunFolder("e", path, overwrite=True)
    assert snapshot(path) == before


def test_a_file_system_without_hard_links_takes_runs(tmp_path, monkeypatch):
    def missing(*arguments, **options):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", missing)
    path = run(tmp_path / "run")
    run(path, "new", overwrite=True)
    assert (path / "config.json").read_text() == "new"


def test_a_forked_process_does_not_end_the_run_of_its_parent(tmp_path):
    path = run(tmp_path / "run")
    with RunFolder("e", path, overwrite=True) as folder:
        store, store_process = folder._store, folder._store._process
        store._process += 1  # as in a process that was forked
        store.close(ended=False)
        store._process = store_process
        assert (path / LOCK).exists()
        assert (path / EARLIER).exists()
    assert not (path / EARLIER).exists()


def test_settings_of_a_resumed_run_are_not_replaced_by_others(tmp_path):
    with RunFolder("e", tmp_path, resumes="runs.jsonl") as folder:
        Journal(folder / "runs.jsonl", {})
        folder.write_configuration(Config(), seed=None)
    before = (tmp_path / "config.json").read_text()
    folder = RunFolder("e", tmp_path, resumes="runs.jsonl")
    with pytest.raises(InputError, match="holds a run with other settings"):
        folder.write_configuration(Config(speed=9.0, workers=2), seed=None)
    assert (tmp_path / "config.json").read_text() == before


def test_logging_names_no_folder_that_was_new(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        run(tmp_path / "run")
    assert caplog.text == ""


@pytest.mark.parametrize("options", [(), ("--overwrite",)])
def test_a_filter_into_the_folder_of_a_sweep_is_refused(options, tmp_path):
    hc.sweep(abs_of, [{"x": 1.0}], out=tmp_path)
    before = snapshot(tmp_path)
    arguments = ["filter", "--model", "ball", "--out", str(tmp_path), *options]
    with pytest.raises(InputError, match=r"`sweep` \(abs_of\), which `filter` does not replace"):
        cli.cli(arguments, standalone_mode=False)
    assert snapshot(tmp_path) == before


def test_a_run_does_not_replace_the_one_that_wrote_what_it_reads(tmp_path):
    path = run(tmp_path / "run")
    for name in ("config.json", "./figures/../config.json"):
        with pytest.raises(InputError, match=r"holds config.json, which this run reads"):
            RunFolder("e", path, overwrite=True, inputs=[path / name])
    run(path, "new", overwrite=True, inputs=[tmp_path / "config.json"])
    assert (path / "config.json").read_text() == "new"


def test_files_are_moved_and_removed_in_few_places():
    """What is removed elsewhere does not ask whose it is."""
    package = Path(hc.__file__).parent
    pattern = re.compile(r"rmtree|\.unlink\(|\.rename\(|os\.(replace|remove|rename|truncate)\(")
    found = {
        path.relative_to(package).as_posix()
        for path in [*package.rglob("*.py"), *Path(experiments.__file__).parent.rglob("*.py")]
        if pattern.search(path.read_text(encoding="utf-8"))
    }
    owners = {f"base/{name}.py" for name in ("files", "journal", "run_marker", "run_store")}
    # A page without a path is in a new temporary folder: nobody else's file can be there.
    assert found == owners | {"app/page/html_file.py"}


def move_aside(path, names):
    """Move files of a run as a process does that is killed before the marker has moved."""
    for name in names:
        (path / EARLIER / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).rename(path / EARLIER / name)


def test_a_foreign_file_in_the_way_of_a_killed_move_is_named_and_nothing_moves(tmp_path):
    path = run(tmp_path / "run")
    move_aside(path, ("config.json", "figures/a.png", "summary.json"))
    (path / "summary.json").write_text("mine")
    before = snapshot(path)
    with pytest.raises(InputError, match=r"summary.json is in its way; move that away"):
        RunFolder("e", path, overwrite=True)
    assert snapshot(path) == before
    (path / "summary.json").unlink()
    with pytest.raises(InputError, match="overwrite replaces the run"):
        RunFolder("e", path)
    assert (path / "figures/a.png").read_text() == "old"


def test_a_foreign_file_in_the_way_of_interrupted_results_is_named_and_nothing_moves(tmp_path):
    path = run(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        fail(path, KeyboardInterrupt, ("a.json", "config.json"), resumes="runs.jsonl")
    (kept,) = path.glob("interrupted-*")
    # As if that move had been killed after its first files.
    (path / EARLIER).mkdir()
    earlier = Marker.read(path)
    for name in (*earlier.files, MARKER):
        move_aside(path, [name])
    for name in ("config.json", MARKER):
        (kept / name).rename(path / name)
    (kept / "config.json").write_text("mine")
    before = snapshot(path)
    with pytest.raises(InputError, match=r"cannot move to .*interrupted-.*config.json is in its"):
        RunFolder("e", path, resumes="runs.jsonl")
    assert snapshot(path) == before


@pytest.mark.parametrize("in_block", [True, False])
def test_a_finished_run_that_is_resumed_and_fails_has_not_finished(in_block, tmp_path):
    def start():
        return RunFolder("e", tmp_path, resumes="runs.jsonl")

    with start() as folder:
        Journal(folder / "runs.jsonl", {}).put("0", (1.0,))
        folder.write_json("summary.json", {})
    assert Marker.read(tmp_path).finished
    if in_block:
        with pytest.raises(ZeroDivisionError), start():
            raise ZeroDivisionError
    else:
        start()
    assert not Marker.read(tmp_path).finished
    with start() as folder:
        folder.write_json("summary.json", {})
    assert Marker.read(tmp_path).finished


def test_an_end_that_cannot_be_noted_is_an_error(tmp_path, monkeypatch):
    def refuse(path, entry, flags):
        raise OSError(28, "No space left on device", str(path))

    folder = RunFolder("e", tmp_path)
    with (
        monkeypatch.context() as patch,
        pytest.raises(FileWriteError, match="No space left"),
        folder,
    ):
        patch.setattr(run_marker, "_append_line", refuse)
