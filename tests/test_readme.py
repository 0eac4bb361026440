"""The README's examples run, and its commands are those that are tested."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=[f"example-{k}" for k in range(len(EXAMPLES))])
def test_examples_run(example, tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


def test_the_ball_example_prints_the_closed_form(tmp_path):
    """The first impact of a fall from 1 m is at sqrt(2 / g)."""
    result = subprocess.run(
        [sys.executable, "-c", EXAMPLES[0]], cwd=tmp_path, capture_output=True, text=True
    )
    assert result.stdout.startswith(f"{(2.0 / 9.81) ** 0.5:.6f} s  -4.429 -> 3.544 m/s")
