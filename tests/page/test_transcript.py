"""What is printed is kept, and not cut where there is no terminal."""

import pytest
from rich.table import Table

from hybridctl.app.page.transcript import Transcript
from hybridctl.app.report import make_table

LONG = "x" * 150


def test_tables_and_lines_are_kept_in_order():
    console = Transcript()
    first = make_table("t", ["a"], [("1",)])
    console.print("[bold]one[/bold]", first)
    console.print("[s]", markup=False)
    assert console.entries == ["one", first, "[s]"]
    assert isinstance(console.entries[1], Table)


def test_wide_tables_are_whole_when_piped(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    Transcript().print(make_table("wide", ["a", "b"], [(LONG, LONG)]), LONG + " " + LONG)
    out = capsys.readouterr().out
    assert out.count(LONG) == 4
    assert "…" not in out
    assert f"{LONG} {LONG}" in out


def test_columns_says_how_wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert Transcript().width == 60


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_keeps_its_width(monkeypatch, terminal):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal, raising=False)
    assert (Transcript().width == 1000) is not terminal
