"""The page is one valid HTML file that holds everything it shows."""

import json
import re
from html.parser import HTMLParser

from hybridctl.app.page.build import write_page
from hybridctl.base.run_folder import RunFolder

NAMESPACE = "http://www.w3.org/2000/svg"  # a name, which no browser loads
EMPTY = {"meta", "img", "input", "br", "link"}


class Reader(HTMLParser):
    """Checks that elements nest, and collects text, attributes and scripts."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.labels, self.links = [], {}, [], []

    def handle_starttag(self, tag, attributes):
        self.links += [(tag, v) for name, v in attributes if name in ("src", "href", "xlink:href")]
        self.labels += [(tag, v) for name, v in attributes if name == "aria-label"]
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.text.setdefault(self.open[-1], []).append(data)


def read(page):
    reader = Reader()
    reader.feed(page.read_text(encoding="utf-8"))
    reader.close()
    assert reader.open == []
    return reader


def test_the_elements_nest_and_the_page_says_what_the_run_was(page):
    text = read(page).text
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert text["h1"] == ["fall <of> a ball"]
    assert "a ball & a slope" in text["p"]
    assert text["h2"] == [
        "Motion",
        "Claim",
        "Results",
        "Figures",
        "Configuration",
        "Versions",
        "Files",
    ]
    assert text["code"] == ["code"]
    assert "one & a half, " in text["li"]
    labels = [v for tag, v in read(page).labels if tag == "span"]
    assert labels == ["x^2", "a < b"]


def test_tables_and_lines_stand_there_as_the_console_shows_them(page):
    text = read(page).text
    assert text["caption"] == ["Impacts [1]"]
    assert text["th"] == ["quantity [s]", "<value>"]
    assert {"first [s]", "0.25", "slope", "<b>&", "seed", "3", "numpy"} <= set(text["td"])
    assert "no more than that" in text["p"]


def test_nothing_is_loaded_from_elsewhere(page, folder):
    links = read(page).links
    assert links
    for tag, target in links:
        if target.startswith("#"):
            assert f'id="{target[1:]}"' in page.read_text()
        elif tag == "a":
            assert (folder / target).is_file()
        elif tag == "use":
            assert target.startswith("#")
        else:
            assert tag == "img"
            assert target.startswith("data:image/")
    style = "".join(read(page).text["style"])
    assert "url(" not in style
    assert "@import" not in style
    code = "".join(read(page).text["script"]).replace(NAMESPACE, "")
    assert not re.search(r"https?://|fetch\(|XMLHttpRequest|import\(", code)


def test_data_cannot_end_its_element(page):
    data = [json.loads(text) for text in read(page).text["script"] if text.startswith("{")]
    assert len(data) == 2
    lines = data[1]["rows"][0][0]["lines"]
    assert lines[0]["label"] == 'height of "</script>"'


def test_a_run_without_motion_and_figures_has_a_page(tmp_path):
    folder = RunFolder("bare", tmp_path)
    text = read(write_page(folder, ["done"])).text
    assert text["h2"] == ["Results", "Files"]
