"""Writes index.html of a run folder: self-contained, for a browser without a network."""

from __future__ import annotations

import json
import webbrowser
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hybridctl.app.page.fragments import (
    links_html,
    picture_html,
    prose_html,
    settings_html,
    transcript_html,
)
from hybridctl.app.page.motion import MOTION
from hybridctl.app.page.transcript import Transcript
from hybridctl.app.report import say
from hybridctl.base.run_folder import CONFIGURATION, RunFolder

PAGE = "index.html"
_SCRIPTS = ("arrays.js", "charts.js", "player.js")
_HIDDEN = {PAGE, MOTION}


def write_page(
    folder: RunFolder, entries: Sequence[Table | str], *, summary: str = "", claim: str = ""
) -> Path:
    """Write index.html from what a run has left in its folder and printed; returns its path.

    `summary` says in a line what the run shows, `claim` is the docstring of its experiment. Series
    become charts that can be zoomed, motion.json a player, other figures pictures.
    """
    parts = [_head(folder.experiment, summary)]
    motion = folder / MOTION
    if motion.is_file():
        parts.append(_section("Motion", f'<div id="motion"></div>\n{_data("motion", motion)}'))
    if claim:
        parts.append(_section("Claim", prose_html(claim)))
    if entries:
        parts.append(_section("Results", transcript_html(entries)))
    figures = [_figure(path) for path in sorted((folder / "figures").glob("*.png"))]
    if figures:
        parts.append(_section("Figures", "\n".join(figures)))
    parts += [*_settings(folder / CONFIGURATION), _section("Files", links_html(_files(folder)))]
    parts.append(f"<script>{_scripts()}</script>\n</body>\n</html>\n")
    folder.write_text(PAGE, "\n".join(parts))
    return folder / PAGE


def finish(
    folder: RunFolder,
    console: Console,
    summary: str,
    claim: str | None = None,
    *,
    look: bool = False,
) -> None:
    """Leave the page of a run, say where its results are, and show the page if `look` asks."""
    entries = console.entries if isinstance(console, Transcript) else ()
    page = write_page(folder, entries, summary=summary, claim=claim or "")
    say(console, f"results in {folder.path}")
    if look:
        shown = webbrowser.open(page.resolve().as_uri())
        say(console, f"{'page' if shown else 'no browser was found to show the page'}: {page}")


def _head(title: str, summary: str) -> str:
    name, style = escape(title), _asset("style.css")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(style, _scripts())}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{name}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{name}</h1><p>{escape(summary)}</p></header>"
    )


def _policy(style: str, script: str) -> str:
    """Return the content policy of a page: its own style, script and pictures, and nothing else.

    Names come from other people's files. They are put in as text, and were one not, it could
    neither run nor load anything. Formulas carry their place in the line as a style of their own.
    """
    allowed = {
        "default-src": "'none'",
        "img-src": "data:",
        "style-src": _hash(style),
        "style-src-attr": "'unsafe-inline'",
        "script-src": _hash(script),
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in allowed.items())


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode('ascii')}'"


def _section(title: str, body: str) -> str:
    return f"<section>\n<h2>{title}</h2>\n{body}\n</section>"


def _figure(path: Path) -> str:
    """Return a figure as a chart where its series are beside it, else as a picture."""
    beside = path.with_suffix(".json")
    if beside.is_file():
        return f'<div class="chart">{_data("series", beside)}</div>'
    return picture_html(path)


def _data(kind: str, path: Path) -> str:
    """JSON that the scripts read; a "<" in it cannot end the element."""
    text = json.dumps(json.loads(path.read_text()), separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" class="{kind}">{text}</script>'


def _settings(path: Path) -> list[str]:
    """Sections of the configuration, its seed and the versions, where they were written."""
    if not path.is_file():
        return []
    content: dict[str, Any] = json.loads(path.read_text())
    seed = {} if content["seed"] is None else {"seed": content["seed"]}
    return [
        _section("Configuration", settings_html(seed | content["configuration"])),
        _section("Versions", settings_html(content["versions"])),
    ]


def _files(folder: RunFolder) -> list[str]:
    found = (path.relative_to(folder.path) for path in sorted(folder.path.rglob("*")))
    # what is hidden is no result, such as an earlier run that this one replaces
    shown = (path for path in found if not any(part.startswith(".") for part in path.parts))
    names = [path.as_posix() for path in shown]
    return [name for name in names if name not in _HIDDEN and (folder / name).is_file()]


def _scripts() -> str:
    return "\n".join(['"use strict";', *map(_asset, _SCRIPTS)])


def _asset(name: str) -> str:
    return (files("hybridctl.app.page") / name).read_text(encoding="utf-8")
