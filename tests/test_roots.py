"""Every command that takes a robot, with each kind of root: fixed, sagittal, floating, legged."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.spatial.transform import Rotation

from hybridctl.app.cli import cli
from hybridctl.app.models import find_model

INERTIA = '<inertia ixx="0.01" iyy="0.02" izz="0.03" ixy="0" ixz="0" iyz="0"/>'
LINK = f'<link name="{{}}"><inertial><mass value="{{}}"/>{INERTIA}</inertial></link>'
JOINT = (
    '<joint name="{0}" type="{1}"><parent link="{2}"/><child link="{3}"/><axis xyz="{4}"/>'
    '<origin xyz="{5}"/><limit effort="1" velocity="1"/></joint>'
)
BOX = f'<robot name="box">{LINK.format("box", 2.0)}</robot>'
LEGGED = (
    f'<robot name="hopper">{LINK.format("box", 2.0)}{LINK.format("leg", 0.3)}'
    f"{JOINT.format('hip', 'revolute', 'box', 'leg', '0 1 0', '0.1 0 0')}</robot>"
)
SLIDER = (
    f'<robot name="slider"><link name="rail"/>{LINK.format("box", 2.0)}'
    f"{JOINT.format('lift', 'prismatic', 'rail', 'box', '0 0 1', '0 0 0')}</robot>"
)
COMMON = """
urdf: robot.urdf
noise: {{force: 1e-2, torque: 1e-3, impulse: 1e-2, angular_impulse: 1e-3, surface: 1e-4}}
contacts: {{corner: {{frame: box, offset: [0.05, 0.05, -0.05], restitution: 0.3, friction: 0.4}}}}
start: {{configuration: {}, deviations: {{configuration: 5e-3, velocity: 0.02}}}}
"""
TURNED = Rotation.from_euler("xyz", [0.1, 0.2, 0.3]).as_quat().round(12).tolist()
LIFTED = [0.0, 0.0, 0.15, *TURNED]
ROBOTS = {
    "fixed": (SLIDER, [0.15], "encoders: {rail: {joints: [lift], deviation: 1e-3, unit: m}}\n"),
    "sagittal": (
        BOX,
        [0.0, 0.15, 0.1],
        "encoders: {place: {joints: [root_x, root_z], deviation: 1e-3, unit: m},"
        " pitch: {joints: [root_pitch], deviation: 3e-3}}\n",
    ),
    "floating": (BOX, LIFTED, "pose: {position: 1e-3, rotation: 3e-3}\n"),
    "legged": (
        LEGGED,
        [*LIFTED, 0.2],
        "pose: {position: 1e-3, rotation: 3e-3}\n"
        "encoders: {leg: {joints: [hip], deviation: 1e-3}}\n",
    ),
}
SHORT = ("--set", "duration=0.2", "--set", "rate=60", "--set", "warm_up=3")


def call(*arguments):
    done = CliRunner().invoke(cli, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(params=ROBOTS)
def root(request, tmp_path, monkeypatch):
    """A box falls on its corner 0.15 m below; on a rail, in a plane, free, and with a leg."""
    urdf, start, sensors = ROBOTS[request.param]
    monkeypatch.chdir(tmp_path)
    kind = "floating" if request.param == "legged" else request.param
    (tmp_path / "robot.urdf").write_text(urdf)
    (tmp_path / "robot.yaml").write_text(f"root: {kind}\n{COMMON.format(start)}{sensors}")
    return request.param


@pytest.mark.slow
def test_what_is_recorded_is_filtered_and_identified(root, tmp_path):
    call("record", "robot.yaml", "--out", "log.npz", *SHORT)
    assert "channels" in call("info", "log.npz")
    call("filter", "log.npz", "--model", "robot.yaml", "--out", "out", "--mcap")
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert (summary["events"], summary["rejected"]) == (1, 0)
    assert (tmp_path / "out/figures/states.png").is_file()
    system = find_model("robot.yaml").make().system
    with np.load("out/estimates.npz") as found:
        nx = system.mode(("open",)).space.nx
        assert found["state"].shape[1] == len(found["state_columns"]) == nx
        assert found["covariance"].shape[1:] == (len(found["deviation_columns"]),) * 2
    text = call(
        *("identify", "log.npz", "--model", "robot.yaml", "--parameters", "restitution"),
        *("--set", "restitution=0.35", "--bounds", "restitution=0.1:0.6", "--out", "identified"),
        *("--max-evaluations", "3", *SHORT[-2:]),
    )
    assert "restitution" in text


def test_shown_deviations_are_those_of_the_coordinates(root):
    r"""Of samples :math:`x \boxplus e`, e ~ N(0, P), small: the derivative is exact to e^2."""
    model = find_model("robot.yaml").make()
    space, x = model.space, model.start.mean
    rng = np.random.default_rng(3)
    root_of = 1e-4 * rng.normal(size=(space.ndx, space.ndx))
    values, deviations = model.display(x, root_of @ root_of.T)
    np.testing.assert_array_equal(values, x)
    assert len(deviations) == len(model.display_names) == space.nx
    step = 1e-6  # differences are off by its square, 1e-12 of each column
    columns = [
        (space.integrate(x, step * e) - space.integrate(x, -step * e)) / (2.0 * step)
        for e in np.eye(space.ndx)
    ]
    expected = np.linalg.norm(np.column_stack(columns) @ root_of, axis=1)
    np.testing.assert_allclose(deviations, expected, rtol=1e-8, atol=1e-13)
