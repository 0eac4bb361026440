"""Tables in HTML, as notebooks show them, and mode keys as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def format_mode(mode: object) -> str:
    """Return a mode key as text: for a tuple its entries, one for each contact, else the key."""
    return " ".join(map(str, mode)) if isinstance(mode, tuple) else str(mode)


def render_html_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in HTML with a head row. Cells are shown as text, never read as markup.

    Args:
        columns: Names in the head row.
        rows: Cells of each further row.
    """
    lines = [_render_row("th", columns), *(_render_row("td", row) for row in rows)]
    return f"<table>{''.join(lines)}</table>"


def _render_row(tag: str, cells: Iterable[object]) -> str:
    """Return a row in HTML; `tag` is that of its cells, "th" or "td"."""
    return f"<tr>{''.join(f'<{tag}>{escape(str(cell))}</{tag}>' for cell in cells)}</tr>"
