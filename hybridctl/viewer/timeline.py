"""The modes of a run as a strip of HTML over time."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.page.motion import mode_text

TONES = ("#dddddd", "#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#0072b2", "#d55e00")


def timeline_html(run: HybridTrajectory, t: float, contacts: Sequence[str] = ()) -> str:
    """The modes of a run over time, a row for each contact (named below it), and a mark at t."""
    sizes = {len(_words(arc.mode)) for arc in run.arcs}
    keys = [_words(arc.mode) if len(sizes) == 1 else (mode_text(arc.mode),) for arc in run.arcs]
    known = dict.fromkeys(word for key in keys for word in key)
    tones = {word: TONES[k % len(TONES)] for k, word in enumerate(known)}
    span = run.end - run.start or 1.0
    parts = [(arc.end - arc.start) / span for arc in run.arcs]
    rows = "".join(_strip(parts, words, tones) for words in zip(*keys, strict=True))
    legend = " ".join(
        f'<span style="background:{tone};padding:0 4px">{escape(word)}</span>'
        for word, tone in tones.items()
    )
    left = f"left:{100.0 * (t - run.start) / span:.2f}%"
    mark = f'<div style="position:absolute;{left};top:0;bottom:0;border-left:2px solid"></div>'
    rows_are = f"<div>rows: {escape(', '.join(contacts))}</div>" if contacts else ""
    now = f"<div>t = {t:.4f} s: {escape(mode_text(run.arc(t).mode))}</div>"
    strips = f'<div style="position:relative">{rows}{mark}</div>'
    return (
        f'<div style="margin:0 1em;font-size:85%">{strips}<div>{legend}</div>{rows_are}{now}</div>'
    )


def _words(mode: ModeKey) -> tuple[str, ...]:
    return tuple(map(str, mode)) if isinstance(mode, tuple) else (str(mode),)


def _strip(parts: list[float], words: tuple[str, ...], tones: dict[str, str]) -> str:
    """A row of one contact: a piece for each arc, as long as its part of the run."""
    pieces = "".join(
        f'<div title="{escape(word)}" style="flex:{part:.6f};background:{tones[word]}"></div>'
        for part, word in zip(parts, words, strict=True)
    )
    return f'<div style="display:flex;height:10px;margin:2px 0">{pieces}</div>'
