"""Pages of runs: one HTML file each, for a browser without a network."""

from __future__ import annotations

import json
import re
import webbrowser
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hybridctl.app.page.fragments import (
    render_links,
    render_picture,
    render_prose,
    render_settings,
    render_transcript,
)
from hybridctl.app.page.html_file import GENERATOR
from hybridctl.app.page.motion import MOTION, Scene, encode_motion
from hybridctl.app.page.transcript import Transcript
from hybridctl.app.report import VERDICT, say
from hybridctl.base.run_folder import CONFIGURATION, RunFolder

PAGE = "index.html"
_SCRIPTS = ("arrays.js", "charts.js", "solids.js", "timeline.js", "player.js")
_HEADING = re.compile(r"<h2[^>]*>(.*?)</h2>")
_LONG_PAGE = 4
"""Sections from which on a page has a list of them. A choice."""
_UNLISTED = {PAGE, MOTION}  # files of a run that the page shows itself


def write_page(
    folder: RunFolder, entries: Sequence[Table | str], *, summary: str = "", claim: str = ""
) -> Path:
    """Write index.html from the files of a run.

    Series become charts that can be zoomed, motion.json a player, other figures pictures.

    Args:
        folder: Folder of the run.
        entries: Tables and lines that the run has printed.
        summary: What the run shows, in a line.
        claim: Docstring of its experiment.

    Returns:
        Path of the page.
    """
    verdicts, entries = _part_verdicts(entries)
    sections = []
    if verdicts:
        sections.append(_render_section("Verdict", render_transcript(verdicts)))
    motion = folder / MOTION
    if motion.is_file():
        sections.append(_render_motion(json.loads(motion.read_text())))
    if claim:
        sections.append(_render_section("Claim", render_prose(claim)))
    if entries:
        sections.append(_render_section("Results", render_transcript(entries)))
    figures = [_render_figure(path) for path in sorted((folder / "figures").glob("*.png"))]
    if figures:
        sections.append(_render_section("Figures", "\n".join(figures)))
    sections += _render_configuration(folder / CONFIGURATION)
    sections.append(_render_section("Files", render_links(_list_files(folder))))
    folder.write_text(PAGE, _render_page(folder.experiment, summary, sections))
    return folder / PAGE


def _part_verdicts(
    entries: Sequence[Table | str],
) -> tuple[list[Table | str], list[Table | str]]:
    """Part what says whether a result can be trusted, which readers want first, from the rest.

    Args:
        entries: Tables and lines, as they were printed.

    Returns:
        Tables of trust with the lines directly before each, which hold the verdict and what speaks
        against the result; and all others. Both in the order in which they were printed.
    """
    verdicts, others, lines = list[Table | str](), list[Table | str](), list[Table | str]()
    for entry in entries:
        if isinstance(entry, str):
            lines.append(entry)
            continue
        is_verdict = str(entry.title) == VERDICT
        (verdicts if is_verdict else others).extend([*lines, entry])
        lines = []
    return verdicts, [*others, *lines]


def render_motion_page(title: str, scenes: Sequence[Scene]) -> str:
    """Return a page of a motion alone.

    Args:
        title: Title of the page.
        scenes: Scenes, one below the other.

    Raises:
        InputError: A scene has no movers, or has shapes in a plane.
        UnknownNameError: The axes of a scene are not drawn.
    """
    return render_motion(title, encode_motion(scenes))


def render_motion(title: str, motion: Mapping[str, Any]) -> str:
    """Return a page of a motion alone, as `encode_motion` returns it and motion.json holds it.

    Args:
        title: Title of the page.
        motion: The motion.
    """
    return _render_page(title, "", [_render_motion(motion)])


def render_run_page(
    title: str,
    summary: str,
    scenes: Sequence[Scene],
    entries: Sequence[Table | str],
    figures: Sequence[Path],
) -> str:
    """Return a page of one run.

    Args:
        title: Title of the page.
        summary: Line below it.
        scenes: Scenes of the motion; none for no motion.
        entries: Tables and lines.
        figures: Files with the series of charts (.json), or figures (.png) beside them.

    Raises:
        InputError: A scene has no movers, or has shapes in a plane.
        UnknownNameError: The axes of a scene are not drawn.
    """
    sections = [_render_motion(encode_motion(scenes))] if scenes else []
    sections.append(_render_section("Events", render_transcript(entries)))
    charts = "\n".join(_render_figure(path) for path in figures)
    sections.append(_render_section("Charts", charts))
    return _render_page(title, summary, sections)


def publish_page(
    folder: RunFolder,
    console: Console,
    summary: str,
    claim: str | None = None,
    *,
    look: bool = False,
) -> None:
    """Write the page of a run and print where its results are.

    Args:
        folder: Folder of the run.
        console: Console of the run. The page has its entries if it is a `Transcript`.
        summary: What the run shows, in a line.
        claim: Docstring of its experiment.
        look: Whether to show the page in a browser. If none is found, its path is printed.
    """
    entries = console.entries if isinstance(console, Transcript) else ()
    page = write_page(folder, entries, summary=summary, claim=claim or "")
    say(console, f"results in {folder.path}")
    if look:
        shown = webbrowser.open(page.resolve().as_uri())
        say(console, f"{'page' if shown else 'no browser was found to show the page'}: {page}")


def _render_page(title: str, summary: str, sections: Sequence[str]) -> str:
    """Return a whole page.

    Args:
        title: Title, as text.
        summary: Line below the title, as text.
        sections: HTML of the sections.
    """
    name, style = escape(title), _read_asset("style.css")
    script = "\n".join(['"use strict";', *map(_read_asset, _SCRIPTS)])
    head = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"{GENERATOR}\n"
        f'<meta http-equiv="Content-Security-Policy" content="{_make_policy(style, script)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{name}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{name}</h1><p>{escape(summary)}</p></header>"
    )
    contents = _render_contents(sections)
    return "\n".join([head, contents, *sections, f"<script>{script}</script>\n</body>\n</html>\n"])


def _make_policy(style: str, script: str) -> str:
    """Return the content security policy of a page: its own style, script and pictures alone.

    Names come from other people's files. They are put in as text. Were one not, it could neither
    run nor load anything. Formulas carry their place in the line as a style of their own.
    """
    allowed = {
        "default-src": "'none'",
        "img-src": "data:",
        "style-src": _hash_source(style),
        "style-src-attr": "'unsafe-inline'",
        "script-src": _hash_source(script),
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in allowed.items())


def _hash_source(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode('ascii')}'"


def _make_anchor(title: str) -> str:
    """Return the anchor of a section; "motion" alone is the element in which scripts draw."""
    return f"section-{title.lower().replace(' ', '-')}"


def _render_contents(sections: Sequence[str]) -> str:
    """Return links to the sections of a page that has many; nothing for a short one."""
    titles = [match[1] for text in sections if (match := _HEADING.search(text))]
    if len(titles) < _LONG_PAGE:
        return ""
    links = "\n".join(f'<a href="#{_make_anchor(title)}">{title}</a>' for title in titles)
    return f'<nav aria-label="Contents">\n{links}\n</nav>'


def _render_section(title: str, body: str) -> str:
    return f'<section>\n<h2 id="{_make_anchor(title)}">{title}</h2>\n{body}\n</section>'


def _render_motion(motion: Mapping[str, Any]) -> str:
    return _render_section("Motion", f'<div id="motion"></div>\n{_embed_json("motion", motion)}')


def _render_figure(path: Path) -> str:
    """Return a figure as a chart where its series are beside it, else as a picture."""
    beside = path.with_suffix(".json")
    if beside.is_file():
        return f'<div class="chart">{_embed_json("series", json.loads(beside.read_text()))}</div>'
    return render_picture(path)


def _embed_json(kind: str, content: Mapping[str, Any]) -> str:
    """Return data for the scripts; a "<" in it cannot end the element."""
    text = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" class="{kind}">{text}</script>'


def _render_configuration(path: Path) -> list[str]:
    """Return the sections of the configuration, with its seed, and of the versions."""
    if not path.is_file():
        return []  # sweeps of other tools, and tests, have pages without one
    content: dict[str, Any] = json.loads(path.read_text())
    seed = {} if content["seed"] is None else {"seed": content["seed"]}
    return [
        _render_section("Configuration", render_settings(seed | content["configuration"])),
        _render_section("Versions", render_settings(content["versions"])),
    ]


def _list_files(folder: RunFolder) -> list[str]:
    """Return the paths, below the folder, of the files that the page links to."""
    found = (path.relative_to(folder.path) for path in sorted(folder.path.rglob("*")))
    # Hidden files are no results: an earlier run, for example, that this one replaces.
    shown = (path for path in found if not any(part.startswith(".") for part in path.parts))
    names = [path.as_posix() for path in shown]
    return [name for name in names if name not in _UNLISTED and (folder / name).is_file()]


def _read_asset(name: str) -> str:
    return (files("hybridctl.app.page") / name).read_text(encoding="utf-8")
