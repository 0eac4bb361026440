"""Parts of the page as HTML: tables, claims, settings, pictures, formulas."""

from __future__ import annotations

import re
import warnings
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich.table import Table
from rich.text import Text

_KINDS = {".svg": "image/svg+xml", ".png": "image/png"}
_SIZE = 17.0  # pixels of the em of formulas, for text of 15
_LARGE = 400_000  # bytes; a vector graphic that is larger is shown as pixels


def render_table(table: Table) -> str:
    """Return a table of the console as HTML."""
    heads = "".join(f"<th>{_strip_markup(column.header)}</th>" for column in table.columns)
    columns = [list(column.cells) for column in table.columns]
    rows = [
        "<tr>" + "".join(f"<td>{_strip_markup(cell)}</td>" for cell in row) + "</tr>"
        for row in zip(*columns, strict=True)
    ]
    caption = f"<caption>{_strip_markup(table.title)}</caption>" if table.title else ""
    return (
        f'<div class="wide"><table>{caption}<thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def render_transcript(entries: Iterable[Table | str]) -> str:
    """Return what a run has printed: its tables, and lines between them."""
    parts = [
        render_table(entry) if isinstance(entry, Table) else f"<p>{escape(entry)}</p>"
        for entry in entries
    ]
    return "\n".join(parts)


def render_prose(text: str) -> str:
    """Return the docstring of an experiment: paragraphs, lists of lines with "- ", and formulas."""
    return "\n".join(_render_paragraph(part) for part in re.split(r"\n\s*\n", text.strip()))


def render_settings(settings: Mapping[str, Any]) -> str:
    """Return nested settings as a table of dotted names and values."""
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>"
        for name, value in _flatten_settings(settings)
    )
    return f'<div class="wide"><table class="settings"><tbody>{rows}</tbody></table></div>'


def render_picture(path: Path) -> str:
    """Return a figure that is a picture; the vector graphic beside it, unless that is large."""
    vector = path.with_suffix(".svg")
    small = vector.is_file() and vector.stat().st_size <= _LARGE
    shown = vector if small else path
    data = b64encode(shown.read_bytes()).decode("ascii")
    name = escape(path.stem.replace("_", " "))
    return (
        f'<figure><img alt="{name}" src="data:{_KINDS[shown.suffix]};base64,{data}">'
        f"<figcaption>{name}</figcaption></figure>"
    )


def render_formula(tex: str, *, block: bool = False) -> str:
    """Return a formula as a drawing, which needs neither a script, nor a font, nor a network.

    Args:
        tex: TeX. The reader raises errors of any type for what it cannot read.
        block: Whether it is a block of its own, whose lines may be aligned at "&", or stands in a
            line of text.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of how it finds its font
        from ziamath.zmath import Latex
    source = " ".join(tex.split())
    if block and "\\\\" in source and "\\begin" not in source:
        source = f"\\begin{{split}} {source} \\end{{split}}"
    drawn = Latex(source, size=_SIZE, inline=not block, color="currentColor")
    style = "" if block else f' style="vertical-align:{drawn.getyofst():.1f}px"'
    kind = "formula block" if block else "formula"
    label = escape(" ".join(tex.split()), quote=True)
    return f'<span class="{kind}" role="img" aria-label="{label}"{style}>{drawn.svg()}</span>'


def render_links(paths: Sequence[str]) -> str:
    """Return links to files beside the page."""
    places = [quote(path, errors="surrogateescape") for path in paths]
    both = zip(places, paths, strict=True)
    items = "".join(f'<li><a href="{place}">{escape(path)}</a></li>' for place, path in both)
    return f'<ul class="files">{items}</ul>'


def _strip_markup(content: object) -> str:
    """Return content with markup of the console as text in HTML."""
    return escape(Text.from_markup(str(content)).plain)


def _render_paragraph(part: str) -> str:
    if part.startswith(".. math::"):
        return f"<div>{_try_formula(part.removeprefix('.. math::'), block=True)}</div>"
    head, *items = re.split(r"(?:^|\n)- ", part)
    body = f"<p>{_render_inline(head)}</p>" if head.strip() else ""
    if items:
        body += "<ul>" + "".join(f"<li>{_render_inline(item)}</li>" for item in items) + "</ul>"
    return body


def _try_formula(tex: str, *, block: bool = False) -> str:
    """Return a formula as a drawing, or as it was written if it cannot be read."""
    try:
        return render_formula(tex, block=block)
    except Exception:  # the reader of TeX raises all kinds, and a page is to be had all the same
        return f"<code>{escape(' '.join(tex.split()))}</code>"


def _render_inline(text: str) -> str:
    """Return text with `code`, and formulas, which are :math:`x`."""
    found = re.split(r"((?::\w+:)?`+[^`]+`+)", " ".join(text.split()))
    return "".join(_render_marked(part) if "`" in part else escape(part) for part in found)


def _render_marked(part: str) -> str:
    """Return a piece between backquotes."""
    role, _, content = part.partition("`")
    content = content.strip("`")
    return _try_formula(content) if role == ":math:" else f"<code>{escape(content)}</code>"


def _flatten_settings(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows = []
    for key, value in settings.items():
        if isinstance(value, Mapping):
            rows += _flatten_settings(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            rows.append((f"{prefix}{key}", "[" + ", ".join(map(str, value)) + "]"))
        else:
            rows.append((f"{prefix}{key}", str(value)))
    return rows
