"""The first hour with three robots that the documentation does not have, as their owners write it.

Each goes from its file to a run, a push, figures and a page. The hopper is tracked by hybrid LQR,
the log of the quadruped filtered. Tests fail where a step needs more than the documentation says.
"""

import subprocess
import sys
from importlib.metadata import files
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import hybridctl as hc
from hybridctl.errors import LinearRangeWarning
from hybridctl.mechanics import (
    Contact,
    Plane,
    Robot,
    Wrench,
    contact_system,
    contacts_from,
    equilibrium,
)

pytestmark = pytest.mark.slow


def make_figures(run, folder, force):
    """Draw a run, write its page, and look whether they have content."""
    run.plot(folder / "states.png")
    hc.plots.forces(run, folder / "forces.png")
    hc.page(run, path=folder / "page.html")
    assert (folder / "states.png").stat().st_size > 10_000
    assert (folder / "forces.png").stat().st_size > 10_000
    page = (folder / "page.html").read_text()
    assert f"{force} closes" in page
    assert "https://" not in page.split("</head>")[0]  # it loads nothing


# A hopper of two links from a URDF of one's own


def link(name, mass, inertia, lowered=0.0):
    return f"""<link name="{name}"><inertial><origin xyz="0 0 {-lowered}"/><mass value="{mass}"/>
<inertia ixx="{inertia}" iyy="{inertia}" izz="{inertia}" ixy="0" ixz="0" iyz="0"/></inertial></link>
"""


HOPPER = f"""<robot name="hopper">
{link("trunk", 5.0, 0.05)}{link("thigh", 0.6, 0.004, 0.125)}{link("shank", 0.3, 0.002, 0.125)}
<joint name="hip" type="revolute"><parent link="trunk"/><child link="thigh"/><axis xyz="0 1 0"/>
<limit lower="-1.6" upper="1.6" effort="60" velocity="30"/></joint>
<joint name="knee" type="revolute"><parent link="thigh"/><child link="shank"/>
<origin xyz="0 0 -0.25"/><axis xyz="0 1 0"/>
<limit lower="0" upper="2.6" effort="60" velocity="30"/></joint></robot>"""


class Landing:
    """Holds the hopper's posture, and the weight once the toe is on the ground."""

    def __init__(self, stand):
        self.stand = stand

    def law(self, history):
        weight = np.zeros(2) if history.mode == ("open",) else self.stand.input
        return lambda t, x: weight + 60 * (self.stand.state[3:5] - x[3:5]) - 2 * x[8:10]


def simulate_from(system, start, height, policy, **options):
    """Return a run of 0.3 s of the hopper from a start that is higher by some metres."""
    x = start.copy()
    x[1] += height
    return hc.simulate(system, ("open",), x, (0.0, 0.3), policy, **options)


def test_a_hopper_of_two_links(tmp_path):
    (tmp_path / "hopper.urdf").write_text(HOPPER)
    robot = Robot.from_urdf(tmp_path / "hopper.urdf", root="sagittal")
    ground = Plane((0, 0, 0), (0, 0, 1))
    toe = Contact("toe", "shank", ground, offset=(0, 0, -0.25), friction=0.8)
    system = contact_system(robot, [toe])

    q = robot.posture({"hip": -0.6, "knee": 1.2})
    q[1] -= robot.point_position(q, "shank", (0, 0, -0.25))[2]
    stand = equilibrium(system, ("stick",), q)
    assert stand.normal == pytest.approx([robot.weight], rel=1e-9)

    start = stand.state.copy()
    start[1] += 0.05
    nominal = hc.simulate(system, ("open",), start, (0.0, 0.3), Landing(stand))
    push = Wrench("trunk", force=(15, 0, 0), start=0.15, end=0.2)
    pushed = hc.simulate(system, ("open",), start, (0.0, 0.3), Landing(stand), wrench=push)
    assert [event.guards for event in pushed.guard_events] == [("toe closes",)]
    assert pushed.final_state[5] > nominal.final_state[5]  # it is moved forwards
    make_figures(pushed, tmp_path, "toe")
    track_landing(system, nominal, start)


def track_landing(system, nominal, start):
    """Feed back along a motion of the hopper, and look how far that holds.

    The linearization says how far it holds, the result how far the motors reach, and a spread of
    starts which weights are good.
    """
    lin = hc.linearize(system, nominal)
    assert "off by 10 % at |dx0| = " in repr(lin)
    reference = hc.extend(system, nominal, before=0.03, after=0.03)
    state_weight = np.diag([10.0, 100.0, 100.0, 50.0, 50.0, 1.0, 5.0, 5.0, 1.0, 1.0])
    heights = np.array([-2.0, 2.0]) * lin.accurate_range.size
    errors = {}
    for share in (1.0, 0.03):  # of the limit: torque that costs 1
        lqr = hc.hybrid_lqr(lin, state_weight, np.eye(2) / (share * 60) ** 2, state_weight)
        policy = hc.ReferenceSpreading(reference, lqr.gains)
        runs = [simulate_from(system, start, height, policy) for height in heights]
        errors[share] = max(np.abs(run.final_state - nominal.final_state).max() for run in runs)
    unaided = hc.ReferenceSpreading(reference, hc.GainSchedule.constant([np.zeros((2, 10))] * 2))
    run = simulate_from(system, start, heights[1], unaided)
    alone = np.abs(run.final_state - nominal.final_state).max()
    assert min(errors.values()) < 0.1 * alone
    with pytest.warns(LinearRangeWarning):
        simulate_from(system, start, 15 * lin.accurate_range.size, policy, on_zeno="rest")


# A panda that pushes a wall


def test_a_panda_pushes_a_wall(tmp_path):
    urdf = next(f for f in files("example-robot-data") if f.name == "panda.urdf").locate()
    joints = [f"panda_joint{k}" for k in range(1, 8)]
    robot = Robot.from_urdf(urdf, damping=dict.fromkeys(joints, 1.0))
    angles = [0.0, -0.4, 0.0, -2.2, 0.0, 1.9, 0.8]
    q = robot.posture({**dict(zip(joints, angles, strict=True)), "panda_finger_joint1": 0.02})
    tip = "panda_hand_tcp"
    wall = Plane((robot.point_position(q, tip)[0] + 0.03, 0, 0), (-1, 0, 0))
    system = contact_system(robot, [Contact("tip", tip, wall, friction=0.6)])
    hold = equilibrium(system, ("open",), q)

    stiffness = np.array([400, 400, 400, 400, 100, 100, 50, 100])
    damping = np.array([40, 40, 40, 40, 5, 5, 3, 10])
    way = np.linalg.pinv(robot.point_jacobian(q, tip, np.zeros(3))) @ [1, 0, 0]

    class Push:
        """Forwards at 0.2 m/s, and after the touch towards a place 1 cm behind the wall."""

        def law(self, history):
            touched = any(event.guards for event in history.events)

            def u(t, x):
                ahead, speed = (0.04, 0.0) if touched else (0.2 * t, 0.2)
                error = q + ahead * way - x[:8]
                return hold.input + stiffness * error + damping * (speed * way - x[8:])

            return u

    push = Wrench("panda_link4", force=(0, 20, 0), start=0.25, end=0.35)
    run = hc.simulate(system, None, hold.state, (0.0, 0.4), Push(), wrench=push, on_zeno="rest")
    assert run.guard_events[0].guards == ("tip closes",)
    presses = run.outputs("normal_force", 0.24)[0]
    assert 5.0 < presses < 100.0
    aside = [robot.point_position(run(t)[:8], "panda_link4")[1] for t in (0.25, 0.35)]
    assert aside[1] > aside[0] + 1e-4  # the elbow, for the tip sticks to the wall
    make_figures(run, tmp_path, "tip")

    free = hc.simulate(system, None, hold.state, (0.0, 0.24), Push(), on_zeno="rest")
    ahead = hc.linearize(system, free)
    nearer = np.zeros(16)
    nearer[:8] = 1e-5 * way
    assert np.isfinite(ahead(nearer)).all()


# A quadruped from an MJCF file of one's own, and its log

LEGS = {"FL": (0.2, 0.12), "FR": (0.2, -0.12), "RL": (-0.2, 0.12), "RR": (-0.2, -0.12)}
JOINTS = [f"{leg}_{joint}" for leg in LEGS for joint in ("hip", "knee")]
PERIOD = 4e-3


def write_quadruped(path):
    """Write a trunk of 6 kg on four legs of two joints each, with round feet and motors."""
    drawn = 'contype="0" conaffinity="0"'
    legs = "".join(
        f"""<body name="{leg}_thigh" pos="{x} {y} 0">
<joint name="{leg}_hip" axis="0 1 0" range="-90 90" damping="0.1" armature="0.01"/>
<geom type="capsule" size="0.015" fromto="0 0 0 0 0 -0.2" mass="0.5" {drawn}/>
<body name="{leg}_foot" pos="0 0 -0.2">
<joint name="{leg}_knee" axis="0 1 0" range="-150 0" damping="0.1" armature="0.01"/>
<geom type="capsule" size="0.01" fromto="0 0 0 0 0 -0.2" mass="0.2" {drawn}/>
<geom type="sphere" size="0.02" pos="0 0 -0.2" mass="0.05"/></body></body>"""
        for leg, (x, y) in LEGS.items()
    )
    motors = "".join(f'<motor joint="{name}" ctrlrange="-25 25"/>' for name in JOINTS)
    path.write_text(f"""<mujoco><worldbody><geom type="plane" size="5 5 1"/>
<body name="trunk" pos="0 0 0.4"><freejoint name="base"/>
<geom type="box" size="0.25 0.1 0.05" mass="6" {drawn}/>{legs}</body></worldbody>
<actuator>{motors}</actuator></mujoco>""")


def write_log(path, run, angles):
    """Write what its sensors say: an inertial one in the trunk, encoders and foot forces."""
    rng, times = np.random.default_rng(0), np.arange(0.0, run.end - 0.01, PERIOD)
    imu = []
    for t in times.tolist():
        before, after = run(t), run(t + PERIOD)
        turns = Rotation.from_quat([before[3:7], after[3:7]])
        gained = np.diff(turns.apply([before[15:18], after[15:18]]), axis=0)[0]
        gained += [0.0, 0.0, 9.81 * PERIOD]
        turned = (turns[0].inv() * turns[1]).as_rotvec()
        imu.append([*turned / PERIOD, *turns[0].inv().apply(gained) / PERIOD])
    imu += rng.normal(scale=[0.005] * 3 + [0.05] * 3, size=(len(times), 6))
    encoders = run(times)[:, angles] + rng.normal(scale=1e-3, size=(len(times), 8))
    loads = run.outputs("normal_force", times) + rng.normal(size=(len(times), 4))
    names = ["t", "gx", "gy", "gz", "ax", "ay", "az", *JOINTS, *(f"load_{leg}" for leg in LEGS)]
    table = np.column_stack([times, imu, encoders, loads])
    np.savetxt(path, table, delimiter=",", header=",".join(names), comments="")
    return times


def write_settings(path, place):
    """Write the file of the robot, its sensors and its log, for a base that begins at a place."""
    contacts = "".join(f"  {leg}: {{frame: {leg}_foot, force: {leg}}}\n" for leg in LEGS)
    forces = "".join(f"    {leg}: {{fields: [load_{leg}]}}\n" for leg in LEGS)
    path.write_text(f"""
urdf: quadruped.xml
imu: {{frame: trunk}}
encoders: {{joints: {{deviation: 1.0e-3}}}}
contacts:
{contacts}
start: {{position: {place.tolist()}}}
mapping:
  time: {{field: t, unit: s}}
  channels:
    gyroscope: {{fields: [gx, gy, gz]}}
    accelerometer: {{fields: [ax, ay, az]}}
    joints: {{fields: [{", ".join(JOINTS)}], unit: rad}}
{forces}""")


def test_a_quadruped_from_an_mjcf_and_its_log(tmp_path):
    pytest.importorskip("mujoco")
    write_quadruped(tmp_path / "quadruped.xml")
    robot = Robot.from_mjcf(tmp_path / "quadruped.xml")
    feet = contacts_from(robot, friction=0.8)
    assert [(foot.name, foot.radius) for foot in feet] == [(f"{leg}_foot", 0.02) for leg in LEGS]
    system = contact_system(robot, feet)

    q = robot.posture({name: 0.7 if name.endswith("hip") else -1.4 for name in JOINTS})
    q[2] = 0.33
    stand = equilibrium(system, ("stick",) * 4, q)
    angles = [robot.joints.single("joint", name)[0] for name in JOINTS]
    rates = [robot.nq + robot.joints.single("joint", name)[1] for name in JOINTS]

    def make_law(stretched):
        def law(t, x):
            aim = stand.state[angles] - (stretched if 0.6 <= t < 0.7 else 0.0)
            return stand.input + 60 * (aim - x[angles]) - 2 * x[rates]

        return hc.SampledPolicy(law, 2e-3)

    # It drops and is pushed.
    start = stand.state.copy()
    start[2] += 0.05
    push = Wrench("trunk", force=(30, 0, 0), start=0.25, end=0.35)
    dropped = hc.simulate(
        system, None, start, (0.0, 0.5), make_law(0.0), wrench=push, on_zeno="rest"
    )
    assert dropped.final_mode == ("stick",) * 4
    make_figures(dropped, tmp_path, "FL_foot")

    # It rears on its legs by 4 cm; the log of that is filtered.
    law, span = make_law(np.tile([0.15, -0.3], 4)), (0.0, 1.2)
    options = {"on_zeno": "rest", "rtol": 1e-6, "atol": 1e-6}
    run = hc.simulate(system, ("stick",) * 4, stand.state, span, law, **options)
    times = write_log(tmp_path / "log.csv", run, angles)
    write_settings(tmp_path / "quadruped.yaml", stand.state[:3])
    command = ["filter", "log.csv", "--model", "quadruped.yaml", "--out", "filtered"]
    hybridctl = Path(sys.executable).with_name("hybridctl")
    done = subprocess.run(
        [hybridctl, *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    estimates = np.load(tmp_path / "filtered/estimates.npz")
    true = run(estimates["time"] - estimates["time"][0] + times[1])[:, :3]
    off = np.abs(estimates["position"] - true).max()
    moved = np.ptp(true[:, 2])
    assert off < 0.025 < moved  # it is off by less than it moves
    assert (tmp_path / "filtered/index.html").exists()
