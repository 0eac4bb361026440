"""`hybridctl simulate ROBOT.yaml`, and `view` and `plot` of what is stored."""

import json

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from hybridctl.robots import ball

import hybridctl as hc
from hybridctl.app.cli import cli
from hybridctl.app.commands import simulate_robot
from hybridctl.app.commands.stored_run import load_stored_runs
from hybridctl.app.page import shapes
from hybridctl.app.robot_run import (
    configure_motion,
    find_start,
    load_robot_file,
    prepare_robot_run,
)
from hybridctl.base.errors import HybridctlError, InputError, UnknownNameError

INERTIA = '<inertia ixx="0.02" iyy="0.02" izz="0.02" ixy="0" ixz="0" iyz="0"/>'
LEG = f"""<robot name="leg">
<link name="trunk"><inertial><mass value="4"/>{INERTIA}</inertial></link>
<joint name="hip" type="revolute"><parent link="trunk"/><child link="thigh"/>
  <axis xyz="0 1 0"/><limit lower="-1.5" upper="1.5" effort="60" velocity="20"/></joint>
<link name="thigh"><inertial><mass value="0.8"/>{INERTIA}</inertial></link>
<joint name="knee" type="revolute"><parent link="thigh"/><child link="shank"/>
  <origin xyz="0 0 -0.25"/><axis xyz="0 1 0"/>
  <limit lower="0.2" upper="2.4" effort="60" velocity="20"/></joint>
<link name="shank"><inertial><mass value="0.4"/>{INERTIA}</inertial></link>
</robot>"""
ROBOT = """
urdf: leg.urdf
root: sagittal
contacts:
  toe: {frame: shank, offset: [0, 0, -0.25], friction: 0.8}
motion:
  posture: {hip: -0.6, knee: 1.2}
  height: 0.02
  duration: 0.1
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "leg.urdf").write_text(LEG)
    (tmp_path / "leg.yaml").write_text(ROBOT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*arguments):
    done = CliRunner().invoke(cli, [*arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def stored(folder, undrawn):
    """The folder of a run with a push, without figures."""
    push = json.dumps({"body": "trunk", "force": [5, 0, 0], "start": 0.02, "duration": 0.05})
    call("simulate", "leg.yaml", "--out", "run", "--quick", "--set", f"push={push}")
    return folder / "run"


def test_a_robot_starts_at_its_height_and_posture(folder):
    file = load_robot_file("leg.yaml")
    ready = prepare_robot_run(file, configure_motion(file, None, ["height=0.3"]))
    q = ready.start[:5]
    assert ready.system.dynamics.gaps(q) == pytest.approx([0.3], abs=1e-11)
    assert q[3:] == pytest.approx([-0.6, 1.2])
    assert not ready.start[5:].any()
    # at 0.25 rad from the posture a motor is at its limit, and is cut beyond
    away = np.concatenate((q - [0.0, 0.0, 0.0, 0.25, 1.0], np.zeros(5)))
    assert ready.law(0.0, away) == pytest.approx([60.0, 60.0])
    assert ready.law.demand(0.0, away) == pytest.approx([60.0, 240.0])


def test_a_joint_that_is_not_named_starts_inside_its_range(folder):
    file = load_robot_file("leg.yaml")
    system = file.make_system()
    settings = configure_motion(file, None, ["posture={}", 'velocity={"hip": 0.5}'])
    start = find_start(system, settings)
    assert start[3:5] == pytest.approx([0.0, 1.3])
    assert start[8] == 0.5


def test_the_base_moves_on_a_slope(folder):
    (folder / "slope.yaml").write_text(ROBOT + "terrain: 0.5 * x\n")
    file = load_robot_file("slope.yaml")
    system = file.make_system()
    start = find_start(system, configure_motion(file))
    assert system.dynamics.gaps(start[:5]) == pytest.approx([0.02], abs=1e-11)


def test_a_run_leaves_all_by_which_it_is_rebuilt(stored):
    for name in ("config.json", "summary.json", "run.npz", "robot.urdf", "robot.yaml"):
        assert (stored / name).is_file(), name
    summary = json.loads((stored / "summary.json").read_text())
    assert summary["final_mode"] == ["stick"]
    (toe,) = summary["contacts"]
    assert toe["first_closed"] == pytest.approx(np.sqrt(2 * 0.02 / 9.81), rel=0.02)
    assert json.loads((stored / "config.json").read_text())["versions"]["hybridctl"]
    (loaded,) = load_stored_runs(stored)
    run = loaded.trajectory
    assert run.system.input_labels(run.final_mode)[:2] == ("hip torque [N m]", "knee torque [N m]")
    assert run.final_state == pytest.approx(list(summary["final_state"].values()), abs=1e-12)
    # and the stored robot runs again, to the same numbers
    again = prepare_robot_run(
        file := load_robot_file(str(stored / "robot.yaml")), configure_motion(file)
    ).simulate()
    np.testing.assert_array_equal(again.final_state, run.final_state)


def test_tables_fit_into_80_columns(folder, undrawn):
    lines = call("simulate", "leg.yaml", "--out", "run", "--quick").splitlines()
    assert any("toe" in line for line in lines)
    assert max(len(line.rstrip()) for line in lines if line.startswith(("┃", "│"))) <= 80


def test_settings_of_a_run_are_printed(folder):
    shown = json.loads(call("simulate", "leg.yaml", "--settings", "--set", "height=0.5"))
    assert (shown["height"], shown["posture"]["knee"]) == (0.5, 1.2)


def test_a_tolerance_that_is_set_wins_over_the_quick_one(folder):
    given = ("simulate", "leg.yaml", "--settings", "--quick", "--set", "rtol=1e-9")
    shown = json.loads(call(*given))
    assert (shown["rtol"], shown["atol"]) == (1e-9, 1e-6)


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ("hip: -0.6", "hipp: -0.6", UnknownNameError, "joint 'hipp' is unknown.*mean 'hip'"),
        ("height: 0.02", "hight: 0.02", UnknownNameError, "'hight' is unknown.*mean 'height'"),
        ("duration: 0.1", "duration: -1", InputError, "motion.duration must be greater than 0"),
        ("motion:", "motoin:", UnknownNameError, "'motoin' is unknown.*mean 'motion'"),
        ("frame: shank", "frame: foot", UnknownNameError, "frame 'foot' is unknown"),
        ("leg.urdf", "log.urdf", HybridctlError, "log.urdf"),
        ("height: 0.02", "mode: jump", UnknownNameError, "mode"),
        ("height: 0.02", "push: {body: torso, force: [1, 0, 0]}", UnknownNameError, "'torso'"),
        ("height: 0.02", "push: {force: [1, 0, 0]}", InputError, "push needs body"),
    ],
)
def test_typical_mistakes_are_named(folder, old, new, error, message):
    (folder / "leg.yaml").write_text(ROBOT.replace(old, new))

    def simulate():
        file = load_robot_file("leg.yaml")
        prepare_robot_run(file, configure_motion(file)).simulate()

    with pytest.raises(error, match=f"(?s).*{message}") as raised:
        simulate()
    assert len(str(raised.value)) < 500


def test_a_wrong_assignment_is_named(folder):
    file = load_robot_file("leg.yaml")
    with pytest.raises(InputError, match="duration must be greater than 0"):
        configure_motion(file, None, ["duration=0"])
    with pytest.raises(UnknownNameError, match="'kp' is unknown"):
        configure_motion(file, None, ["kp=30"])


def test_options_of_experiments_do_not_apply_to_robots(folder):
    done = CliRunner().invoke(cli, ["simulate", "leg.yaml", "--gains", "a.npz"])
    assert done.exit_code == 2
    assert "leg.yaml is a robot, to which --gains does not apply" in done.output
    with pytest.raises(InputError, match=r"'no\.yaml' does not exist"):
        call("simulate", "no.yaml")


def test_a_file_for_filters_is_dropped(folder):
    """Encoders and noise do not matter to a run; inputs are those of all joints."""
    (folder / "ball.urdf").write_text(ball.urdf())
    (folder / "ball.yaml").write_text(
        "urdf: ball.urdf\ncontacts: {foot: {frame: ball, restitution: 0.7}}\n"
        "encoders: {rails: {joints: [x, z], deviation: 1e-3, unit: m}}\n"
    )
    file = load_robot_file("ball.yaml")
    settings = configure_motion(file, None, ['posture={"z": 0.2}', "stiffness=0", "duration=0.25"])
    ready = prepare_robot_run(file, settings)
    run = ready.simulate()
    assert run.events[0].time == pytest.approx(np.sqrt(0.4 / 9.81), rel=1e-6)


def test_a_legged_robot_stands_in_its_posture():
    file = load_robot_file("go2")
    assert list(file.contacts) == ["FR", "FL", "RR", "RL"]
    ready = prepare_robot_run(file, configure_motion(file, None, ["duration=0.15"]))
    assert ready.system.robot.nu == 12
    assert ready.system.dynamics.gaps(ready.start[:19]).min() == pytest.approx(0.05, abs=1e-11)
    assert ready.simulate().final_mode == ("stick",) * 4


def test_without_what_reads_meshes_links_are_lines(tmp_path, monkeypatch):
    """As after the installation of the README, which has no extras."""

    def refuse(name):
        raise ImportError(name)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(simulate_robot, "draw_run", lambda run, folder: None)
    monkeypatch.setattr(shapes, "import_module", refuse)
    monkeypatch.setattr(shapes, "find_spec", lambda name: None)
    output = call("simulate", "go2", "--out", "run", "--set", "duration=0.01")
    assert "links are drawn as lines: meshes need `pip install" in " ".join(output.split())
    (scene,) = json.loads((tmp_path / "run/motion.json").read_text())["scenes"]
    assert scene["movers"]
    assert (tmp_path / "run/index.html").is_file()


def test_a_stored_run_is_drawn(stored):
    output = call("plot", str(stored))
    drawn = {"states", "inputs", "forces", "contacts", "energy"}
    assert {p.stem for p in (stored / "plots").glob("*.png")} == drawn
    assert {p.stem for p in (stored / "plots").glob("*.svg")} == drawn
    assert str(stored / "plots/forces.png") in output


def test_a_picture_of_somebody_is_not_replaced(stored, tmp_path):
    out = tmp_path / "mine"
    out.mkdir()
    (out / "states.png").write_bytes(b"mine")
    with pytest.raises(HybridctlError, match=r"states\.png is no figure that hybridctl"):
        call("plot", str(stored), "--out", str(out))
    assert (out / "states.png").read_bytes() == b"mine"
    assert [p.name for p in out.iterdir()] == ["states.png"]


def test_a_stored_run_is_shown(stored, tmp_path):
    assert call("view", str(stored), "--no-open").strip() == f"page: {stored / 'index.html'}"
    page = tmp_path / "motion.html"
    for _ in range(2):  # its own page is replaced
        call("view", str(stored / "run.npz"), "--no-open", "--out", str(page))
    assert 'id="motion"' in page.read_text()
    page.write_text("mine")
    with pytest.raises(HybridctlError, match="no page that hybridctl has written"):
        call("view", str(stored), "--no-open", "--out", str(page))
    assert page.read_text() == "mine"


def test_a_file_alone_has_its_states_and_says_what_is_missing(stored, tmp_path):
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "hop.npz").write_bytes((stored / "run.npz").read_bytes())
    output = call("plot", str(alone / "hop.npz"))
    assert "--robot ROBOT.yaml adds the motion, forces, contacts and energy" in output
    assert "drawn" not in output
    drawn = sorted(p.stem for p in (alone / "hop-plots").glob("*.png"))
    assert drawn == ["inputs", "states"]
    robot = str(stored / "robot.yaml")
    call("plot", str(alone / "hop.npz"), "--robot", robot, "--out", str(alone / "all"))
    assert len(list((alone / "all").glob("*.png"))) == 5
    (alone / "figures").mkdir()
    (alone / "figures/error.png").touch()
    output = call("view", str(alone), "--no-open")
    assert f"what the experiment has drawn is in {alone / 'figures'}" in " ".join(output.split())
    assert (
        "<svg" in (alone / "view.html").read_text() or "series" in (alone / "view.html").read_text()
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "does not exist; runs go to runs/NAME"),
        (lambda path: path.mkdir(), "holds no run.*it is empty"),
        (lambda path: (path / "a").mkdir(parents=True), "holds no run.*it has a"),
        (lambda path: path.write_text("a"), "is not a saved hybrid trajectory"),
    ],
)
def test_what_is_no_run_is_named(tmp_path, make, message):
    make(tmp_path / "wrong")
    for command in (["plot"], ["view", "--no-open"]):
        with pytest.raises(HybridctlError, match=f"(?s){message}"):
            call(*command, str(tmp_path / "wrong"))


def test_a_run_of_another_version_or_robot_is_named(stored, tmp_path):
    with np.load(stored / "run.npz") as data:
        arrays = dict(data)
    header = json.loads(str(arrays["header"]))
    header["format"] = 1
    np.savez(tmp_path / "old.npz", **{**arrays, "header": json.dumps(header)})
    with pytest.raises(HybridctlError, match=r"old\.npz has format 1, this version reads"):
        call("plot", str(tmp_path / "old.npz"))
    content = yaml.safe_load((stored / "robot.yaml").read_text())
    content["root"] = "fixed"
    del content["motion"]["push"]
    content["urdf"] = str(stored / "robot.urdf")
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(HybridctlError, match="states, but mode"):
        call("plot", str(stored / "run.npz"), "--robot", str(tmp_path / "other.yaml"))


def test_a_run_without_its_system_has_plain_states(tmp_path):
    system = ball.system()
    run = hc.simulate(system, ("open",), [0.0, 0.2, 0.0, 0.0], (0.0, 0.3))
    run.save(tmp_path / "run.npz")
    loaded = hc.HybridTrajectory.load(tmp_path / "run.npz")
    assert loaded.system is None
    np.testing.assert_allclose(loaded(0.25), run(0.25), atol=1e-12)
    assert [e.guards for e in loaded.events] == [e.guards for e in run.events]
