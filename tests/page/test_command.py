"""Commands leave a page in the run's folder, and show it when asked."""

import sys
import webbrowser
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from hybridctl.app import cli
from hybridctl.app.report import make_table
from hybridctl.base import plugins


@dataclass(frozen=True)
class Config:
    size: float = 1.0


def run(config, folder, console):
    folder.write_configuration(config, seed=None)
    console.print(make_table("Sizes", ["", "size"], [("it", config.size)]))


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Runs `simulate slope` with an experiment that only prints; what is opened is kept."""
    module = SimpleNamespace(Config=Config, quick=lambda c: c, run=run, __doc__="A claim.")
    monkeypatch.setattr(plugins, "load_plugin", lambda group, name: module)
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)

    def call(*options):
        out = ("--out", str(tmp_path / "run"))
        monkeypatch.setattr(sys, "argv", ["hybridctl", "simulate", "slope", *out, *options])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 0
        return tmp_path / "run/index.html", opened

    return call


def test_a_run_leaves_a_page(command, capsys):
    page, opened = command("--set", "size=2")
    assert "<caption>Sizes</caption>" in page.read_text()
    assert "A claim." in page.read_text()
    assert f"results in {page.parent}" in capsys.readouterr().out
    assert opened == []


def test_open_shows_it(command, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda uri: opened.append(uri) or True)
    page, _ = command("--open")
    assert opened == [page.as_uri()]
    assert f"\npage: {page}" in capsys.readouterr().out


def test_open_says_where_the_page_is_without_a_browser(command, capsys, monkeypatch):
    monkeypatch.setattr(webbrowser, "open", lambda uri: False)
    page, _ = command("--open")
    assert f"no browser was found to show the page: {page}" in capsys.readouterr().out
