"""Formulas of TeX as drawings, which need neither a script, nor a font, nor a network."""

from __future__ import annotations

import warnings
from html import escape

_SIZE = 17.0  # pixels of the em, for text of 15


def formula_html(tex: str, *, block: bool = False) -> str:
    """A formula within a line, or as a block of its own; lines of a block may be aligned at "&".

    Raises what ziamath raises for TeX that it cannot read.
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
