"""What the documentation shows runs: the blocks of each page in one go, and the notebooks."""

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import hybridctl as hc
from hybridctl.base import plugins

DOCS = Path(__file__).parent.parent / "docs"
sys.path.insert(0, str(DOCS))
follow = importlib.import_module("follow")
WITH_BLOCKS = [path for path in sorted(DOCS.rglob("*.md")) if follow.blocks(path)]
# CI follows these pages with the wheel, outside the checkout, and executes the notebooks where it
# builds the site.
FOLLOWED_ELSEWHERE = {"arm", "legged_log"}


def mark_page(path):
    """The parameter of a page: long where CI follows the page anyway."""
    is_followed = path.stem in FOLLOWED_ELSEWHERE
    return pytest.param(path, id=path.stem, marks=[pytest.mark.long] * is_followed)


@pytest.mark.slow
@pytest.mark.parametrize("page", [mark_page(path) for path in WITH_BLOCKS])
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    follow.follow(page)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", sorted(path.stem for path in (DOCS / "notebooks").glob("*.ipynb")))
def test_notebooks_execute(name, tmp_path):
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    notebook = nbformat.read(DOCS / f"notebooks/{name}.ipynb", as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=where).execute()
    printed = [cell.outputs for cell in notebook.cells if cell.cell_type == "code" and cell.outputs]
    assert len(printed) >= 3


def test_ci_follows_what_is_left_out_of_its_tests():
    """Pages that are long here stand in the script of CI."""
    script = (DOCS.parent / ".ci/run").read_text()
    for name in FOLLOWED_ELSEWHERE:
        assert f"docs/start/{name}.md" in script
    assert "sphinx-build" in script


def test_names_that_the_documentation_states_are_there():
    """Also those that no block of a page uses, such as `hc.planning.optimise`."""
    pages = [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]
    told = {n for page in pages for n in re.findall(r"`hc((?:\.[A-Za-z_]\w*)+)", page.read_text())}
    assert ".planning.optimise" in told
    for name in sorted(told - {".NAME"}):
        found = hc
        for part in name[1:].split("."):
            found = getattr(found, part)
        assert callable(found) or isinstance(found, ModuleType), name


def test_the_gallery_has_every_experiment():
    """Its page is the one that is made of them, and all but those of recordings have figures."""
    gallery = importlib.import_module("gallery")
    assert gallery.PAGE.read_text() == gallery.page()
    recorded = {"cube-identify"}
    assert set(gallery.FIGURES) == set(plugins.list_plugins("experiments")) - recorded
