"""The README's examples run, and its commands are those that are tested."""

import re
from pathlib import Path

import numpy as np
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


@pytest.mark.parametrize("example", EXAMPLES, ids=[f"example-{k}" for k in range(len(EXAMPLES))])
def test_examples_run(example, printed):
    assert printed(example).strip()


def test_the_ball_example_prints_the_closed_form(printed):
    """The first impact of a fall from 1 m is at sqrt(2 / g)."""
    first = f"{(2.0 / 9.81) ** 0.5:.6f} s  -4.429 -> 3.544 m/s"
    (ball,) = [example for example in EXAMPLES if "saltation_matrix(ball" in example]
    assert printed(ball).startswith(first)


def test_the_first_example_moves_on_as_it_says():
    """A box that is dropped from 1 cm higher comes to rest 3 mm further on, by difference too."""
    scope = {}
    exec(compile(EXAMPLES[0], "README.md", "exec"), scope)
    higher = np.add(scope["start"], [0.0, 0.001, 0.0, 0.0, 0.0, 0.0])
    other = scope["hc"].simulate(scope["system"], ("open", "open"), higher, (0.0, 0.35))
    moved = other.final_state - scope["run"].final_state
    # Differences over 1 mm leave a second order of some hundredths.
    np.testing.assert_allclose(10.0 * moved, scope["change"], atol=1e-3)
    assert scope["change"][0] == pytest.approx(3e-3, rel=0.01)
