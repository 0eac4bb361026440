"""A console that keeps what it prints, for the page."""

from __future__ import annotations

import os
import sys
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_UNBOUNDED = 1000  # characters; no table of ours is as wide


class Transcript(Console):
    """A console whose `entries` are the tables and the lines (plain text) printed so far.

    In a terminal it is as wide as that; elsewhere, as in a pipe or a file, as wide as its tables,
    unless COLUMNS says otherwise.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
        super().__init__(width=_UNBOUNDED if piped else None, quiet=quiet)
        self.entries: list[Table | str] = []

    def print(self, *objects: Any, markup: bool | None = None, **options: Any) -> None:
        """Print as `rich.console.Console.print` does, and keep what was printed."""
        for entry in objects:
            if isinstance(entry, Table):
                self.entries.append(entry)
            elif isinstance(entry, str):
                self.entries.append(entry if markup is False else Text.from_markup(entry).plain)
        super().print(*objects, markup=markup, **options)
