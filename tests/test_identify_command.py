"""`identify` through the command line: what it writes, how it goes on, and what it refuses."""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from hybridctl.robots import ball
from user_models import COLUMNS, ROBOT, write_csv

import hybridctl as hc
from hybridctl.app.cli import cli
from hybridctl.app.commands.identify import IdentifyRequest, _digest_code, prepare_run
from hybridctl.base.errors import FileFormatError, HybridctlError, InputError

CALL = ("--parameters", "restitution", "--set", "restitution=0.65", "--set", "warm_up=3")


@pytest.fixture
def logs(tmp_path, monkeypatch):
    """Two drops of a ball of restitution 0.7, in a robot's YAML, with a mapping."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "robot.yaml").write_text(ROBOT)
    (tmp_path / "ball.urdf").write_text(ball.urdf())
    (tmp_path / "map.yaml").write_text(COLUMNS.format(name="rails", fields="[across, up]"))
    system = ball.system(ball.BallParameters(slope=0.0, restitution=0.7))
    for name, height in (("a.csv", 0.3), ("b.csv", 0.4)):
        run = hc.simulate(system, ("open",), [0.0, height, 0.4, 0.0], (0.0, 0.45))
        write_csv(tmp_path / name, ["across", "up"], run, [0, 1])
    return tmp_path


def identify(*more):
    call = ["identify", "a.csv", "--model", "robot.yaml", "--mapping", "map.yaml", *CALL, *more]
    done = CliRunner().invoke(cli, call, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_parameter_is_found_judged_and_kept(logs):
    text = identify("--held-out", "b.csv", "--out", "out", "--profile", "restitution")
    summary = json.loads((logs / "out/summary.json").read_text())
    found = summary["parameters"]["restitution"]
    assert abs(found["value"] - 0.7) < 3.0 * found["standard_error"]
    # speeds of 2.4 and 1.7 m/s, each known to some centimetres a second
    assert 1e-3 < found["standard_error"] < 0.05
    assert summary["converged"]
    assert np.isfinite(summary["held_out_log_likelihood"])
    low, high = (summary["profiles"]["restitution"][k] for k in ("low", "high"))
    assert low < found["value"] < high
    assert "restitution" in text
    assert "<caption>Parameters</caption>" in (logs / "out/index.html").read_text()
    again = identify("--held-out", "b.csv", "--out", "out", "--profile", "restitution")
    assert "log-likelihood" in again
    assert not again.startswith("1: ")  # nothing was evaluated anew
    assert json.loads((logs / "out/summary.json").read_text())["parameters"] == {
        "restitution": found
    }
    with pytest.raises(InputError, match="other settings"):
        identify("--out", "out", "--until", "0.4")


def test_evaluations_of_other_settings_are_not_taken(logs):
    """What a file of settings says may have changed since, and a record may be damaged."""
    (logs / "settings.json").write_text('{"longest_gap": 2.0}')
    more = ("--config", "settings.json", "--max-evaluations", "1", "--out", "out")
    identify(*more)
    kept = (logs / "out/config.json").read_text()
    (logs / "settings.json").write_text('{"longest_gap": 1.0}')
    with pytest.raises(InputError, match="other settings"):
        identify(*more)
    assert (logs / "out/config.json").read_text() == kept
    (logs / "settings.json").write_text('{"longest_gap": 2.0}')
    header, line, *_ = (logs / "out/evaluations.jsonl").read_text().splitlines()
    code = json.loads(line)[2]  # of the same code: others are not read
    empty, wrong = json.dumps(["0", [], code]), json.dumps(["0", [1], code])
    for damaged in (line.replace("accepted", "acepted"), empty, wrong):
        (logs / "out/evaluations.jsonl").write_text(f"{header}\n{damaged}\n")
        with pytest.raises(FileFormatError, match=r"jsonl is no record of evaluations"):
            identify(*more)


MODEL = """
from dataclasses import dataclass

from hybridctl.experiments.filter_models import BallSettings, ball_model

@dataclass(frozen=True)
class Settings(BallSettings):
    slope: float = 0.0
    restitution: float = 0.65
    warm_up: int = 3

def make(settings: Settings):
    return ball_model(settings)
"""


def test_a_model_in_a_python_file_is_fitted_as_well(logs):
    """The same drops as in the robot's YAML, by the names of that model's channel."""
    (logs / "my_ball.py").write_text(MODEL)
    mapping = (logs / "map.yaml").read_text().replace("rails", "position")
    (logs / "ball.yaml").write_text(mapping)
    call = ["identify", "a.csv", "--model", "my_ball.py:make", "--mapping", "ball.yaml"]
    done = CliRunner().invoke(
        cli, [*call, "--parameters", "restitution", "--out", "out"], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    found = json.loads((logs / "out/summary.json").read_text())["parameters"]["restitution"]
    assert abs(found["value"] - 0.7) < 3.0 * found["standard_error"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--parameters", "frction"], "parameter 'frction' is unknown.*did you mean 'friction'"),
        (["--parameters", "friction"], "friction' has no value; `--set friction=VALUE`"),
        (["--bounds", "restitution=1"], "NAME=LOW:HIGH, got 'restitution=1'"),
        (["--bounds", "restitution=0.9:0.8"], "must increase, got 0.9 to 0.8"),
        (["--bounds", "restitution=0.7:0.8"], "start must lie within the bounds"),
        (["--segments", "a-b"], "segments must look like"),
    ],
)
def test_what_makes_no_sense_is_named(logs, more, message):
    with pytest.raises(HybridctlError, match=message):
        identify("--out", "out", *more)


def test_the_longest_gap_is_that_of_the_settings(logs):
    """A log that is silent for 3 s is refused by default, and taken where the settings allow it."""
    lines = (logs / "a.csv").read_text().splitlines()
    stamped = [line.split(",", 1) for line in lines[1:]]  # in ms
    rows = [f"{float(t) + (3e3 if float(t) > 200.0 else 0.0)},{rest}" for t, rest in stamped]
    (logs / "gap.csv").write_text("\n".join([lines[0], *rows]) + "\n")
    request = IdentifyRequest(
        (logs / "gap.csv",),
        "robot.yaml",
        ("restitution",),
        mapping=logs / "map.yaml",
        assignments=("restitution=0.65",),
    )
    with pytest.raises(InputError, match="longest_gap = 2 s"):
        prepare_run(request)
    prepare_run(replace(request, assignments=(*request.assignments, "longest_gap=4")))


def test_evaluations_depend_on_a_urdf_in_a_package(logs, monkeypatch):
    urdf = logs / "packages/ball.urdf"
    urdf.parent.mkdir()
    (logs / "ball.urdf").rename(urdf)
    monkeypatch.setattr("hybridctl.logs.base_file.find_packaged_file", lambda package, file: urdf)
    text = (logs / "robot.yaml").read_text()
    (logs / "robot.yaml").write_text(text.replace("ball.urdf", "package://balls/ball.urdf"))
    request = IdentifyRequest((logs / "a.csv",), "robot.yaml", ("restitution",))
    before = _digest_code(request, ())["files"]
    urdf.write_text(ball.urdf() + "<!-- changed -->")
    assert _digest_code(request, ())["files"] != before
