"""Installations with and without a C compiler: the compiled extensions are optional."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
COMPILERS = {"without": "/bin/false", "with": "cc"}


@pytest.mark.slow
@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_wheel_is_built_with_and_without_a_compiler(compiler, tmp_path):
    setuptools = pytest.importorskip("setuptools")
    if int(setuptools.__version__.split(".")[0]) < 77:
        pytest.skip("the build needs a newer setuptools")
    if compiler == "with" and not shutil.which("cc"):
        pytest.skip("there is no C compiler")
    for part in ("hybridctl", "experiments", "robots"):
        leave = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / part, tmp_path / part, ignore=leave)
    for file in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / file, tmp_path)
    subprocess.run(
        [sys.executable, "-c", "from setuptools import build_meta as b; b.build_wheel('made')"],
        cwd=tmp_path,
        env={**os.environ, "CC": COMPILERS[compiler]},
        check=True,
        capture_output=True,
    )
    (wheel,) = (tmp_path / "made").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    libraries = [name for name in names if name.endswith(".so")]
    assert len(libraries) == (2 if compiler == "with" else 0), libraries
    assert not [name for name in names if name.endswith((".c", ".h"))]
    assert "hybridctl/mechanics/kernel/extension.py" in names
