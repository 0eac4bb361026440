"""Formulas on pages are drawings: in lines, aligned over lines, or as written if unreadable."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hybridctl.app.page.fragments import render_formula, render_prose

ROOT = Path(__file__).parent.parent.parent
MATH = re.compile(r"\$\$(.+?)\$\$|(?<!\$)\$([^$`|]+)\$(?!\$)", flags=re.DOTALL)


def size(drawn):
    """Width and height of the drawing, pixels; the markup is well-formed."""
    picture = ElementTree.fromstring(drawn)[0]
    return float(picture.get("width")), float(picture.get("height"))


def test_a_fraction_is_higher_than_a_letter_and_hangs_below_the_line():
    letter, fraction = render_formula("x"), render_formula(r"\frac{\dot g}{x}")
    assert size(fraction)[1] > 1.5 * size(letter)[1]
    assert float(re.search(r"vertical-align:(.*?)px", fraction)[1]) < -2.0
    assert "currentColor" in letter  # whatever the colour of text is
    assert 'aria-label="x"' in letter


def test_lines_of_a_block_stand_below_each_other():
    one, two = (render_formula(f"a &= b{more}", block=True) for more in (r" \\ ", r" \\ c &= d"))
    assert size(two)[1] > 1.3 * size(one)[1]


def test_claims_have_formulas_and_what_cannot_be_read_is_shown_as_written():
    page = render_prose("Where :math:`x < 1`:\n\n.. math:: y = x^2\n\n:math:`x^a^b` and `code`")
    assert page.count("<svg") == 2
    assert 'aria-label="x &lt; 1"' in page
    assert "<code>x^a^b</code> and <code>code</code>" in page


@pytest.mark.parametrize("name", ["mathematics.md", "states.md"])
def test_formulas_of_the_documentation_can_be_read(name):
    text = re.sub(r"```.*?```", "", (ROOT / "docs" / name).read_text(), flags=re.DOTALL)
    for block, inline in MATH.findall(text):
        assert size(render_formula(block or inline, block=bool(block)))[0] > 1.0
