"""The README's examples run, and its commands are those that are tested."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture
def printed(tmp_path, monkeypatch, capsys):
    """What an example prints; it runs in a namespace and a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(example):
        exec(compile(example, "README.md", "exec"), {"__name__": "__main__"})
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    "example", EXAMPLES[1:], ids=[f"example-{k}" for k in range(1, len(EXAMPLES))]
)
def test_examples_run(example, printed):
    assert printed(example).strip()


def test_the_ball_example_prints_the_closed_form(printed):
    """The first impact of a fall from 1 m is at sqrt(2 / g)."""
    first = f"{(2.0 / 9.81) ** 0.5:.6f} s  -4.429 -> 3.544 m/s"
    assert printed(EXAMPLES[0]).startswith(first)
