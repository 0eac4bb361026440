"""The relaxation experiments show what their docstrings claim."""

import json

import pytest
from hybridctl.experiments.relaxation import double_pendulum, relay, zeno_ball
from rich.console import Console

from hybridctl.base.run_folder import RunFolder


def result(module, tmp_path):
    folder = RunFolder(module.__name__.split(".")[-1], tmp_path, draws=False)
    summary = module.run(module.quick(module.Config()), folder, Console(quiet=True))
    assert json.loads((folder / "summary.json").read_text()).keys() == summary.keys()
    return summary


@pytest.mark.slow
def test_zeno_ball(tmp_path):
    """Nine steps scatter more than the 25 of the whole run, whose slope is 0.79."""
    summary = result(zeno_ball, tmp_path)
    assert summary["stop_time"] == pytest.approx(summary["stop_time_exact"], abs=1e-9)
    for c, found, exact in summary["stop_times"]:
        assert found == pytest.approx(exact, abs=2e-8), c
    assert 0.65 <= summary["error_slope"] <= 0.95
    assert summary["flow_slope"] == pytest.approx(0.5, abs=0.1)
    assert max(summary["lift_off"].values()) < 1e-2  # at epsilon = 1e-5; 1e-3 at 1e-7


def test_relay(tmp_path):
    summary = result(relay, tmp_path)
    assert summary["order"] == pytest.approx(1.0, abs=0.1)
    assert summary["friction_order"] == pytest.approx(1.0, abs=0.1)
    assert len(summary["sliding"]) >= 3
    # Both are integrated to 1e-9 for 15 s, over which a body under friction forgets nothing.
    assert summary["difference_to_mechanics"] < 1e-7
    pairs = zip(summary["sticking"], summary["sticking_by_mechanics"], strict=True)
    for found, wanted in pairs:
        assert found == pytest.approx(wanted, abs=1e-7)


def test_double_pendulum(tmp_path):
    """Up to 6.5 s and at epsilon = 1e-4: one lock each."""
    summary = result(double_pendulum, tmp_path)
    for kind in ("", "_plastic"):
        (found,), (wanted,) = summary[f"locked{kind}"], summary[f"locked_by_events{kind}"]
        assert found[0] == pytest.approx(wanted[0], abs=20.0 * 1e-2)  # 20 sqrt(epsilon)
        assert found[1] == pytest.approx(wanted[1], abs=1e-4)
    assert summary["locked_by_events_plastic"][0] == pytest.approx([2.4667, 5.6210], abs=1e-4)
    assert summary["locked_by_events"][0][1] == pytest.approx(5.6104, abs=1e-4)
    assert summary["variation_slope"] == pytest.approx(2.0, abs=0.1)
