"""Models of users: a function in a file, a robot in YAML; each filters a CSV of its own making."""

import json
import pickle
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from hybridctl.robots import ball
from user_models import COLUMNS, ROBOT, write_csv

import hybridctl as hc
from hybridctl.app.cli import cli, main
from hybridctl.app.models import find_model
from hybridctl.app.python_files import load_experiment
from hybridctl.base.errors import FileFormatError, InputError, UnknownNameError
from hybridctl.logs import Mapping

FILE = """
from dataclasses import dataclass

import casadi as ca
import numpy as np

import hybridctl as hc
from hybridctl.estimation.filter_model import FilterModel, FilterSettings, LogChannel, Sensor
from hybridctl.estimation.measurement import coordinates


@dataclass(frozen=True)
class Settings(FilterSettings):
    restitution: float = 0.7


def make(settings: Settings) -> FilterModel:
    x = ca.SX.sym("x", 2)
    air = hc.symbolic.SymbolicMode("air", state=x, field=[x[1], -9.81])
    up = [x[0], -settings.restitution * x[1]]
    floor = hc.symbolic.SymbolicTransition("air", "floor", guard=x[0], target="air", reset=up)
    height = coordinates("height", [0], 4e-6 * np.eye(1))
    return FilterModel(
        system=hc.symbolic.hybrid_system([air], [floor]),
        open="air",
        sensors=(Sensor(height, (LogChannel("height", unit="m"),)),),
        process_noise=hc.Noise(1e-6 * np.eye(2)),
        start=hc.estimation.Estimate("air", 0.0, np.array([1.0, 0.0]), 0.01 * np.eye(2)),
    )


def two(a, b):
    return a
"""


def filtered(folder, model, name, fields, *more):
    """The summary and the estimates of `hybridctl filter`."""
    (folder / "map.yaml").write_text(COLUMNS.format(name=name, fields=fields))
    call = ["filter", "log.csv", "--model", model, "--mapping", "map.yaml", "--out", "out", *more]
    done = CliRunner().invoke(cli, call, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    summary = json.loads((folder / "out/summary.json").read_text())
    with np.load(folder / "out/estimates.npz") as estimates:
        return summary, np.array(estimates["state"])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "bouncer.py").write_text(FILE)
    (tmp_path / "robot.yaml").write_text(ROBOT)
    (tmp_path / "ball.urdf").write_text(ball.urdf())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_log_is_filtered_by_a_function_in_a_file(folder):
    source = find_model("bouncer.py:make")
    system = source.make(source.configure(None, ["restitution=0.6"])).system
    run = hc.simulate(system, "air", [1.05, 0.1], (0.0, 0.9))
    write_csv(folder / "log.csv", ["h"], run, [0])
    summary, states = filtered(folder, "bouncer.py:make", "height", "h", "--set", "restitution=0.6")
    assert (summary["events"], summary["rejected"]) == (len(run.events), 0)
    assert summary["nis_low"] < summary["mean_nis"] < summary["nis_high"]
    # 54 rows of 2 mm: the last error is below that of a single one
    assert (np.abs(states[-1] - run(53 / 60)) < [3e-3, 3e-2]).all()


def test_a_log_is_filtered_by_a_robot_in_yaml(folder):
    system = ball.system(ball.BallParameters(slope=0.0, restitution=0.7))
    run = hc.simulate(system, ("open",), [0.0, 0.5, 0.4, 0.0], (0.0, 0.6))
    write_csv(folder / "log.csv", ["across", "up"], run, [0, 1])
    summary, states = filtered(folder, "robot.yaml", "rails", "[across, up]")
    assert (summary["events"], summary["rejected"]) == (1, 0)
    assert summary["nis_low"] < summary["mean_nis"] < summary["nis_high"]
    assert (np.abs(states[-1] - run(35 / 60)) < [4e-3, 4e-3, 4e-2, 4e-2]).all()


PLANE = "plane: {normal: [0, 0, 1]}"


def dropped(folder, old, new):
    """The ball falls from 0.2 m to the right and 0.5 m up; the first event of the run."""
    (folder / "robot.yaml").write_text(ROBOT.replace(old, new))
    system = find_model("robot.yaml").make().system
    key = ("open",) * len(system.contacts)
    run = hc.simulate(system, key, [0.2, 0.5, 0.0, 0.0], (0.0, 0.35), rtol=1e-11, atol=1e-11)
    return system, run.events[0]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (PLANE, "terrain: 0.1 * sin(4 * x) - y**2"),
        (PLANE + ", restitution: 0.7}", "restitution: 0.7}\nterrain: 0.1*sin(4*x)"),
    ],
)
def test_a_robot_in_yaml_bounces_on_terrain(folder, old, new):
    """At h = 0.1 sin(4 x), across the ground of slope h' = 0.4 cos(4 x)."""
    _, event = dropped(folder, old, new)
    height, slope = 0.1 * np.sin(0.8), 0.4 * np.cos(0.8)
    fall = np.sqrt(2.0 * (0.5 - height) / 9.81)
    assert event.time == pytest.approx(fall, abs=1e-9)
    n, v = np.array([-slope, 1.0]) / np.hypot(slope, 1.0), np.array([0.0, -9.81 * fall])
    np.testing.assert_allclose(event.state_after[2:], v - 1.7 * (n @ v) * n, atol=1e-8)


def test_a_robot_in_yaml_has_a_contact_for_each_of_several_planes(folder):
    """A valley of sides at 45 degrees: the right one is met where z = x."""
    planes = "planes: [{normal: [1, 0, 1]}, {normal: [-1, 0, 1]}]"
    system, event = dropped(folder, PLANE, planes)
    assert [contact.name for contact in system.contacts] == ["foot 1", "foot 2"]
    assert event.guards == ("foot 2 closes",)
    fall = np.sqrt(2.0 * 0.3 / 9.81)
    assert event.time == pytest.approx(fall, abs=1e-9)
    np.testing.assert_allclose(
        event.state_after[2:], [-0.85 * 9.81 * fall, -0.15 * 9.81 * fall], atol=1e-8
    )


def test_a_robot_in_yaml_has_one_motor_for_joints_that_mimic(folder):
    text, limit = ball.urdf(), 'velocity="1000"/>'
    (folder / "ball.urdf").write_text(text.replace(limit, f'{limit}<mimic joint="z"/>', 1))
    (folder / "robot.yaml").write_text(ROBOT.replace("[x, z]", "[z]"))
    robot = find_model("robot.yaml").make().system.robot
    assert list(robot.mimics) == ["x"]
    assert robot.actuation.tolist() == [[1.0]]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (PLANE, f"{PLANE}, terrain: x", r"contacts.foot takes one of .*\['plane', 'terrain'\]"),
        (PLANE, "planes: []", "contacts.foot.planes must be a list of length >= 1"),
        (PLANE, "terrain: 0.1 * z", "contacts.foot.terrain must be a formula of x, y.*what is 'z'"),
        (PLANE, "terrain: x +", "contacts.foot.terrain must be a formula, got 'x \\+'"),
        (PLANE, "terrain: __import__('os')", "contacts.foot.terrain must be a formula"),
        (PLANE, "terrain: 1 / x", "contacts.foot.terrain = '1 / x': height must be finite"),
        (PLANE, "terrain: [1]", "contacts.foot.terrain must be a number or text|text or a number"),
        (PLANE, "terrain: x, radius: 0.1", "radius of contact 'foot' must be 0 on Terrain"),
        (
            "restitution: 0.7",
            "restitution: high",
            "contacts.foot.restitution must be a number, got",
        ),
        (
            "restitution: 0.7",
            "restitution: 1.5",
            "contacts.foot.restitution must be at most 1.0",
        ),
        ("restitution: 0.7", "frction: 0.7", "key in contacts.foot 'frction' is unknown.*friction"),
        ("frame: ball, ", "", "contacts.foot needs frame"),
        ("frame: ball", "frame: bal", "frame 'bal' is unknown.*did you mean 'ball'"),
        (
            "deviation: 2e-3",
            "deviation: 0",
            "encoders.rails.deviation must be greater than 0.0, got 0",
        ),
        ("joints: [x, z]", "joints: [x, y]", "joint 'y' is unknown"),
        ("unit: m}", "unit: mm}", "encoders.rails.unit 'mm' is unknown, expected one of .*'rad'"),
        ("force: 1e-2", "force: -1", "robot.noise.force must be at least 0.0, got -1"),
        ("urdf: ball.urdf", "urdf: 3", "robot.urdf must be text, got 3"),
        ("urdf: ball.urdf", "", "robot needs urdf"),
    ],
)
def test_what_is_wrong_in_a_robot_is_named(folder, old, new, message):
    (folder / "robot.yaml").write_text(ROBOT.replace(old, new))
    with pytest.raises(InputError, match=f"(?s)robot.yaml: .*({message})"):
        find_model("robot.yaml").make()


def test_a_robot_needs_a_start_where_its_sensors_do_not_see_all(folder):
    (folder / "robot.yaml").write_text(ROBOT.replace("[x, z]", "[z]"))
    run = hc.simulate(find_model("robot.yaml").make().system, ("open",), [0, 0.5, 0, 0], (0, 0.3))
    write_csv(folder / "log.csv", ["up"], run, [1])
    (folder / "map.yaml").write_text(COLUMNS.format(name="rails", fields="up"))
    call = ["filter", "log.csv", "--model", "robot.yaml", "--mapping", "map.yaml"]
    with pytest.raises(InputError, match=r"must give `start`.*1 of 2 directions"):
        CliRunner().invoke(cli, call, catch_exceptions=False)
    start = "start: {configuration: [0, 0.5], deviations: {configuration: 0.01, velocity: 0.1}}\n"
    (folder / "robot.yaml").write_text(ROBOT.replace("[x, z]", "[z]") + start)
    summary, _ = filtered(folder, "robot.yaml", "rails", "up")
    assert summary["rejected"] == 0


def test_a_start_below_the_ground_ends_a_filter_with_a_message(folder, capsys, monkeypatch):
    run = hc.simulate(find_model("robot.yaml").make().system, ("open",), [0, 0.5, 0, 0], (0, 0.3))
    write_csv(folder / "log.csv", ["x", "z"], run, [0, 1])
    (folder / "map.yaml").write_text(COLUMNS.format(name="rails", fields="[x, z]"))
    below = "start: {configuration: [0, -1], deviations: {configuration: 0.01, velocity: 0.1}}\n"
    (folder / "robot.yaml").write_text(ROBOT + below)
    call = ["hybridctl", "filter", "log.csv", "--model", "robot.yaml", "--mapping", "map.yaml"]
    monkeypatch.setattr("sys.argv", call)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    message = capsys.readouterr().err
    assert "lies outside mode ('open',)" in message
    assert "guard 'foot closes' is -1 and must not be negative" in message


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("boll", UnknownNameError, "model 'boll' is unknown.*did you mean .*'ball'"),
        ("bouncer.py", InputError, "must name a function"),
        ("bouncer.py:mak", UnknownNameError, "function in bouncer.py 'mak'.*'make'"),
        ("bouncer.py:two", InputError, "'two' must be a function of one argument.*two\\(a, b\\)"),
        ("none.py:make", InputError, "'none.py' does not exist"),
        ("none.yaml", InputError, "'none.yaml' does not exist"),
        ("broken.py:make", FileFormatError, "broken.py cannot be run: SyntaxError"),
        ("script.py:make", FileFormatError, "script.py cannot be run: SystemExit: 3"),
    ],
)
def test_what_is_no_model_is_named(folder, text, error, message):
    (folder / "broken.py").write_text("def make(")
    (folder / "script.py").write_text("def make():\n    pass\n\nraise SystemExit(3)")
    with pytest.raises(error, match=message):
        find_model(text)
    assert not [name for name in sys.modules if "model_broken" in name or "model_script" in name]


def test_two_files_of_one_stem_are_two_modules(folder):
    """Settings of the first are pickled, as for a worker, after the second is found."""
    (folder / "d").mkdir()
    (folder / "d/bouncer.py").write_text(FILE)
    first, second = find_model("bouncer.py:make"), find_model("d/bouncer.py:make")
    assert first.settings.__module__ != second.settings.__module__
    settings = first.configure(None, ["restitution=0.5"])
    assert pickle.loads(pickle.dumps(settings)) == settings
    again = find_model(str(folder / "bouncer.py:make"))
    assert again.settings.__module__ == first.settings.__module__


def test_an_experiment_that_does_not_exist_is_named():
    with pytest.raises(InputError, match=r"experiment 'none\.py' does not exist"):
        load_experiment("experiments", "none.py")


def test_a_function_that_returns_something_else_is_named(folder):
    (folder / "other.py").write_text("def make():\n    return 3\n")
    with pytest.raises(InputError, match="'make' returns must be a FilterModel, got 3"):
        find_model("other.py:make").make()


def test_a_file_is_an_experiment(folder):
    (folder / "mine.py").write_text("""
from dataclasses import dataclass

@dataclass(frozen=True)
class Config:
    size: int = 3

def quick(config):
    return config

def run(config, folder, console):
    folder.write_configuration(config, seed=None)
""")
    call = ["simulate", "mine.py", "--set", "size=4", "--out", "run"]
    assert CliRunner().invoke(cli, call, catch_exceptions=False).exit_code == 0
    stored = json.loads((folder / "run/config.json").read_text())
    assert (stored["experiment"], stored["configuration"]) == ("mine", {"size": 4})


@pytest.mark.parametrize("options", [["--full"], ["--quick"], ["--full", "--quick"]])
def test_settings_that_are_assigned_win_over_quick_and_full_ones(folder, options):
    """Those of a file do not: the settings of an earlier run are all of them."""
    (folder / "mine.py").write_text("""
from dataclasses import dataclass, replace

@dataclass(frozen=True)
class Config:
    size: int = 3
    runs: int = 2
    workers: int = 1

def quick(config):
    return replace(config, size=1, runs=1, workers=0)

def full(config):
    return replace(config, size=9, runs=9, workers=9)

def run(config, folder, console):
    pass
""")
    (folder / "given.json").write_text('{"size": 5, "runs": 5}')
    call = ["simulate", "mine.py", "--config", "given.json", "--set", "size=4", "--workers", "2"]
    shown = CliRunner().invoke(cli, [*call, *options, "--settings"], catch_exceptions=False)
    runs = 1 if "--quick" in options else 9
    assert json.loads(shown.output) == {"size": 4, "runs": runs, "workers": 2}


@pytest.mark.parametrize("header", ["t,a,b", "a,b,c"])
def test_a_mapping_to_edit_is_written_and_read_back(folder, header):
    (folder / "log.csv").write_text(f"{header}\n0,1,2\n0.1,2,3\n")
    call = ["info", "log.csv", "--write-mapping", "map.yaml"]
    assert CliRunner().invoke(cli, call, catch_exceptions=False).exit_code == 0
    log = hc.read_log("log.csv", "map.yaml")
    assert log.names == (("a", "b") if header[0] == "t" else ("a", "b", "c"))
    np.testing.assert_array_equal(log["b"].values[:, 0], [2, 3] if header[0] == "t" else [1, 2])
    mapping = Mapping.load("map.yaml")
    (folder / "again.yaml").write_text(mapping.format_yaml())
    assert Mapping.load("again.yaml") == mapping
    with pytest.raises(InputError, match="is there already"):
        CliRunner().invoke(cli, call, catch_exceptions=False)
