"""Tables in HTML, as notebooks show them, and mode keys as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def mode_text(mode: object) -> str:
    """A mode key as it is shown: a word for each contact, or the key itself."""
    return " ".join(map(str, mode)) if isinstance(mode, tuple) else str(mode)


def html_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with a row of names; what is in the cells is text, not markup."""
    lines = [_row("th", columns), *(_row("td", row) for row in rows)]
    return f"<table>{''.join(lines)}</table>"


def _row(kind: str, cells: Iterable[object]) -> str:
    return f"<tr>{''.join(f'<{kind}>{escape(str(cell))}</{kind}>' for cell in cells)}</tr>"
