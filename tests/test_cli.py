"""The command line ends with one line and an exit code, whatever goes wrong."""

import errno
import io
import json
import logging
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import hybridctl
from hybridctl.app import cli, report
from hybridctl.app.report import show_progress
from hybridctl.base import plugins
from hybridctl.base.errors import InputError


def ended(monkeypatch, capsys, *arguments):
    """Exit code and what is on stderr of a call."""
    monkeypatch.setattr(sys, "argv", ["hybridctl", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return caught.value.code, capsys.readouterr().err


def left(folder):
    """Files but the lock, which is there while the traceback of an error holds its run."""
    files = (p.name for p in Path(folder).rglob("*") if p.is_file())
    return sorted(name for name in files if not name.startswith(".hybridctl"))


FULL = OSError(errno.ENOSPC, "No space left on device")
SLOPE = ("simulate", "slope", "--quick", "--out")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (FULL, "No space left on device"),
        (OSError(errno.ENOSPC, "No space left on device", "a.npz"), "No space left on device"),
        (OSError("the device is gone"), "the device is gone"),
        (OSError(), "OSError"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_a_file_that_cannot_be_written_ends_with_its_reason(
    error, reason, tmp_path, monkeypatch, capsys
):
    def full(*arguments, **options):
        raise error

    monkeypatch.setattr(Path, "write_text", full)
    code, said = ended(monkeypatch, capsys, *SLOPE, tmp_path / "run")
    assert code == 1
    assert said == f"error: {tmp_path / 'run/config.json'} cannot be written: {reason}\n"
    assert left(tmp_path) == []


@pytest.mark.parametrize("name", ["savez_compressed"])
def test_a_disk_that_fills_up_leaves_no_part_of_a_file(name, tmp_path, monkeypatch, capsys):
    def full(file, **arrays):
        file.write(b"part of it")
        raise FULL

    monkeypatch.setattr(np, name, full)
    code, said = ended(monkeypatch, capsys, *SLOPE, tmp_path / "run")
    assert code == 1
    assert said.endswith(".npz cannot be written: No space left on device\n")
    assert left(tmp_path) == ["config.json"]


def test_a_trajectory_that_cannot_be_written_leaves_the_one_before(
    undrawn, tmp_path, monkeypatch, capsys
):
    path = tmp_path / "run"
    code, _ = ended(monkeypatch, capsys, *SLOPE, path)
    assert code == 0
    before = {name: (path / name).read_bytes() for name in ("summary.json", "config.json")}
    code, said = ended(monkeypatch, capsys, *SLOPE, path)
    assert code == 1
    assert "new or an empty folder" in said
    assert {name: (path / name).read_bytes() for name in before} == before
    code, _ = ended(monkeypatch, capsys, *SLOPE, path, "--overwrite", "--set", "speed=0.6")
    assert code == 0
    assert '"speed": 0.6' in (path / "config.json").read_text()


def test_a_log_is_overwritten_on_request_only(tmp_path, monkeypatch, capsys):
    call = ("record", "ball", "--set", "duration=0.3", "--out", tmp_path / "a.npz")
    assert ended(monkeypatch, capsys, *call)[0] == 0
    code, said = ended(monkeypatch, capsys, *call)
    assert code == 1
    assert "a.npz is there already; overwrite replaces it" in said
    assert ended(monkeypatch, capsys, *call, "--overwrite")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("simulate", "rrr-door", "--set", "friction=no"),
            "settings.friction must be true or false",
        ),
        (("simulate", "slope", "--config", "nowhere.json"), "nowhere.json cannot be read"),
        (("simulate", "slope", "--config", "."), "cannot be read"),
        (("simulate", "slope", "--set", "speed"), "must look like key=value"),
        (("simulate", "slope", "--set", "sped=1"), "did you mean 'speed'"),
        (("simulate", "cube-drop", "--set", "data=none.csv"), "none.csv"),
        (("simulate", "rrr-door", "--gains", "none.npz"), "none.npz"),
        (("filter", "none.npz", "--model", "ball"), "none.npz"),
        (("info", "none.csv"), "none.csv"),
        (("info", "."), "."),
    ],
)
def test_bad_arguments_end_with_one_line(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, said = ended(monkeypatch, capsys, *arguments)
    assert code == 1
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert words in said


def test_the_version_comes_with_those_of_the_libraries(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["hybridctl", "--version"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    lines = capsys.readouterr().out.splitlines()
    assert caught.value.code == 0
    assert lines[0] == f"hybridctl {hybridctl.__version__}"
    assert f"  numpy {np.__version__}" in lines
    assert {line.split()[0] for line in lines} >= {"python", "pin", "casadi", "scipy"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_after_the_line_that_the_documentation_gives(shell, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["hybridctl"])
    monkeypatch.setenv("_HYBRIDCTL_COMPLETE", f"{shell}_source")
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 0
    assert "_hybridctl_completion" in capsys.readouterr().out
    page = Path(__file__).parent.parent / "docs/command_line.md"
    assert f"_HYBRIDCTL_COMPLETE={shell}_source" in page.read_text()


def test_warnings_of_the_library_are_told_and_lower_levels_on_request(monkeypatch, caplog, capsys):
    logger = logging.getLogger("hybridctl.mechanics.multibody.urdf")
    for level, told in ((("--log-level", "info"), True), ((), False)):
        caplog.clear()
        assert ended(monkeypatch, capsys, *level, "list")[0] == 0
        logger.info("a mesh is read")
        assert ("a mesh is read" in caplog.text) is told
        logger.warning("a mesh is not found")
        assert "a mesh is not found" in caplog.text


def heard(capsys, pattern):
    """What lines say until they end with a pattern, which is waited for."""
    told, end = "", time.monotonic() + 20.0
    while not re.search(pattern + r"\Z", told) and time.monotonic() < end:
        time.sleep(0.01)
        told += capsys.readouterr().err
    return told


@pytest.mark.parametrize("dumb", [False, True])
def test_a_work_that_stands_still_at_a_share_says_that_it_goes_on(dumb, monkeypatch, capsys):
    """Also in a terminal whose cursor does not move, where a bar would not be drawn."""
    monkeypatch.setattr(report, "HEARTBEAT", 0.01)
    environment = {"TERM": "dumb"} if dumb else {}
    console = Console(file=io.StringIO(), force_terminal=dumb, _environ=environment)
    with show_progress(console, 0.0, 1.0) as begin:
        begin("runs")(0.31)
        assert re.match(r"runs: 30 %\n(runs: \d+ s\n)+", heard(capsys, r"\d s\n"))


def test_work_without_a_share_says_that_it_goes_on(monkeypatch, capsys):
    """As a line now and then where there is no terminal, and not after it has ended."""
    monkeypatch.setattr(report, "HEARTBEAT", 0.01)
    with report.report_alive(Console(file=io.StringIO()), "looking"):
        assert re.match(r"looking: \d+ s\n", heard(capsys, r" s\n"))
    with report.report_alive(Console(quiet=True), "looking"):
        time.sleep(0.03)
    assert capsys.readouterr().err == ""


def test_progress_is_a_line_for_each_tenth_where_there_is_no_terminal(capsys):
    with show_progress(Console(file=io.StringIO()), 1.0, 3.0) as begin:
        tick = begin("runs")
        for t in (1.0, 1.2, 1.3, 2.0, 3.0):
            tick(t)
    assert capsys.readouterr().err == "runs: 10 %\nruns: 50 %\nruns: 100 %\n"
    with show_progress(Console(file=io.StringIO()), 0.0, 1.0) as begin:
        begin("search")(0.7)  # its last word is not its end
    assert capsys.readouterr().err == "search: 70 %\nsearch: 100 %\n"
    with show_progress(Console(file=io.StringIO()), 0.0, 1.0) as begin:
        begin("first")(0.3)
        begin("second")(0.5)
    said = "first: 30 %\nfirst: 100 %\nsecond: 50 %\nsecond: 100 %\n"
    assert capsys.readouterr().err == said
    with show_progress(Console(quiet=True), 0.0, 1.0) as begin:
        begin("quiet")(1.0)
    assert capsys.readouterr().err == ""


def test_workers_are_refused_where_there_is_nothing_to_share(monkeypatch, capsys, tmp_path):
    code, said = ended(monkeypatch, capsys, "simulate", "slope", "--workers", "2")
    assert code == 2
    assert "slope has no workers, so --workers does not apply" in said
    options = ("--settings", "--workers", "2", "--dask", "tcp://here")
    monkeypatch.setattr(sys, "argv", ["hybridctl", "simulate", "filter-study", *options])
    with pytest.raises(SystemExit):
        cli.main()
    settings = json.loads(capsys.readouterr().out)
    assert (settings["workers"], settings["dask"]) == (2, "tcp://here")


def test_a_checkout_whose_experiments_are_not_installed_is_named(monkeypatch):
    """`python -m hybridctl` in a checkout imports a package that lacks what stands beside it."""

    class Announced:
        value = "hybridctl.experiments.contacts.slope"

        def load(self):
            raise ModuleNotFoundError("No module named 'x'", name="hybridctl.experiments")

    monkeypatch.setattr(plugins, "_find_entry_points", lambda group: {"slope": Announced()})
    with pytest.raises(InputError, match=r"'slope'.*checkout.*pip install -e \."):
        plugins.load_plugin("experiments", "slope")
