"""What the documentation shows runs: the blocks of each page in one go, and the notebooks."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hybridctl.app import plugins

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
PAGES = {path: BLOCK.findall(path.read_text()) for path in sorted(DOCS.rglob("*.md"))}
WITH_BLOCKS = [path for path, blocks in PAGES.items() if blocks]
pytestmark = pytest.mark.slow


def called(code):
    """A block of a page in the present folder, as a reader would run it."""
    environment = os.environ | {"MPLBACKEND": "agg"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    done = subprocess.run(
        code, env=environment, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, f"{' '.join(code)}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=lambda path: path.stem)
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    """Blocks of Python are one script up to the next command, whose files the later ones use."""
    monkeypatch.chdir(tmp_path)
    script = []
    for kind, code in PAGES[page]:
        if kind == "python":
            script.append(code)
        elif not code.startswith("pip install"):  # the environment of the tests has these
            if script:
                called([sys.executable, "-c", "\n".join(script)])
            called(["bash", "-ec", code.replace(" --open", "")])
    if script:
        called([sys.executable, "-c", "\n".join(script)])


@pytest.mark.parametrize("name", sorted(path.stem for path in (DOCS / "notebooks").glob("*.ipynb")))
def test_notebooks_execute(name, tmp_path):
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    notebook = nbformat.read(DOCS / f"notebooks/{name}.ipynb", as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=where).execute()
    printed = [cell.outputs for cell in notebook.cells if cell.cell_type == "code" and cell.outputs]
    assert len(printed) >= 3


def test_the_gallery_has_every_experiment(monkeypatch):
    """Its page is the one that is made of them, and all but those of recordings have figures."""
    monkeypatch.syspath_prepend(str(DOCS))
    gallery = importlib.import_module("gallery")
    assert gallery.PAGE.read_text() == gallery.page()
    assert set(gallery.FIGURES) == set(plugins.names("experiments")) - {"cube-identify"}
