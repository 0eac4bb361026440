"""Robots in MuJoCo: the same states, the same free motion, and contacts that rebound as stated."""

import sys
from importlib.metadata import files

import numpy as np
import pytest
from hybridctl.robots import block, cube, five_link, rrr_door

import hybridctl as hc
from hybridctl.base.errors import InputError, SimulationError
from hybridctl.hybrid.plant import Plant, SimulatedPlant
from hybridctl.interop.mujoco import Compliance, MujocoModel, MujocoPlant
from hybridctl.mechanics import Contact, Plane, Robot, Sphere
from hybridctl.mechanics.contacts.surfaces import Terrain

mujoco = pytest.importorskip("mujoco", reason="mujoco is not installed")

GROUND = Plane(point=(0, 0, 0), normal=(0, 0, 1))
CART = """<robot name="rail"><link name="base"/><link name="cart"><inertial>
<mass value="2"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="slide" type="prismatic"><parent link="base"/><child link="cart"/>
<axis xyz="0 0 1"/><limit lower="-9" upper="9" effort="9" velocity="9"/></joint></robot>"""
ROBOTS = {
    "door": (rrr_door.robot(), rrr_door.contacts()),
    "walker": (five_link.system(0.6).robot, five_link.system(0.6).contacts),
    "cube": (cube.system().robot, cube.system().contacts),
    "block": (block.robot(actuated=True), block.contacts()),
}


def random_state(robot, rng):
    q = robot.integrate(robot.neutral(), 0.5 * rng.normal(size=robot.nv))
    return np.concatenate([q, rng.normal(size=robot.nv)])


@pytest.mark.parametrize("name", ROBOTS)
def test_states_go_there_and_back(name):
    robot, contacts = ROBOTS[name]
    model, rng = MujocoModel(robot, contacts), np.random.default_rng(0)
    for _ in range(5):
        x = random_state(robot, rng)
        np.testing.assert_allclose(model.from_engine(*model.to_engine(x)), x, atol=1e-14)


@pytest.mark.parametrize("name", ROBOTS)
def test_free_motion_has_the_same_accelerations(name):
    """A second implementation of the dynamics: springs, dampers, gravity and inputs with it.

    Of a floating base the engine has the acceleration of the world's velocity, ours is that of the
    body's: R' a - w x v. Inertias differ by the 1e-12 that flat bodies are given.
    """
    robot, contacts = ROBOTS[name]
    made, rng = MujocoModel(robot, contacts), np.random.default_rng(1)
    data = mujoco.MjData(made.model)
    made.model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT
    for _ in range(5):
        x, u = random_state(robot, rng), rng.normal(size=robot.nu)
        data.qpos[:], data.qvel[:] = made.to_engine(x)
        data.qfrc_applied[:] = made.actuation @ u
        mujoco.mj_forward(made.model, data)
        q, v = x[: robot.nq], x[robot.nq :]
        found = made.from_engine(data.qpos, data.qacc)[robot.nq :]
        if name == "cube":
            found[:3] -= np.cross(v[3:6], v[:3])
        expected = robot.free_acceleration(q, v, u)
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8 * np.abs(expected).max())


@pytest.mark.parametrize("name", ROBOTS)
def test_gaps_are_those_of_the_contacts(name):
    """Where the engine sees a contact, its distance is our gap; points are small spheres there."""
    robot, contacts = ROBOTS[name]
    made = MujocoModel(robot, contacts)
    system = hc.mechanics.contact_system(robot, contacts)
    data, rng, seen = mujoco.MjData(made.model), np.random.default_rng(2), 0
    for _ in range(200):
        x = random_state(robot, rng)
        gaps = system.dynamics.gaps(x[: robot.nq])
        data.qpos[:], data.qvel[:] = made.to_engine(x)
        mujoco.mj_forward(made.model, data)
        for pair, distance in zip(data.contact.geom, data.contact.dist, strict=True):
            point = made.model.geom(int(pair.min())).name, made.model.geom(int(pair.max())).name
            i = next(int(n.split()[1]) for n in point if n.startswith("point"))
            if abs(gaps[i]) < 0.09:  # the slab that stands for the door is 0.2 m thick
                assert distance == pytest.approx(gaps[i], abs=1e-9)
                seen += 1
    assert seen > 3


@pytest.mark.parametrize(
    "give", [Compliance(5e-3, 1.0), Compliance(5e-3, 0.3), Compliance.of(0.02, 0.05)]
)
def test_an_impact_lasts_and_rebounds_as_stated(give):
    """A cart without gravity. The engine's impedance of 0.95 to 0.99 leaves a part of 1 to 5 %."""
    robot = Robot.from_urdf(CART, gravity=(0.0, 0.0, 0.0))
    model = MujocoModel(robot, [Contact("foot", "cart", GROUND)], give, timestep=2e-5)
    plant = MujocoPlant(model, 1e-4)
    sample = plant.reset(0.0, [1e-9, -1.0])
    touching = []
    for _ in range(1000):
        sample = plant.step([0.0])
        touching.append(bool(sample.sensed["contact"][0]))
    assert 1e-4 * sum(touching) == pytest.approx(give.duration, rel=0.06)
    assert sample.state[1] == pytest.approx(give.restitution, abs=0.02)
    assert not touching[-1]


def test_compliances_are_found_from_what_they_do():
    assert Compliance(0.01, 1.0).restitution == pytest.approx(np.exp(-2.0))
    assert Compliance(0.01, 1.0).duration == pytest.approx(0.02)
    for duration, restitution in ((1e-3, 0.01), (0.02, np.exp(-2.0)), (5e-3, 0.9)):
        found = Compliance.of(duration, restitution)
        assert found.duration == pytest.approx(duration, rel=1e-9)
        assert found.restitution == pytest.approx(restitution, rel=1e-9)
    near = [Compliance(1.0, 1.0 + d) for d in (-1e-5, 0.0, 1e-5)]
    np.testing.assert_allclose([c.duration for c in near], 2.0, atol=1e-4)
    np.testing.assert_allclose([c.restitution for c in near], np.exp(-2.0), atol=1e-4)


def test_a_block_falls_as_on_the_rigid_simulator():
    """Without friction, on both corners one after the other, over 0.5 s.

    Contacts rebound with less than 1 % and give way by v T = 0.05 mm at 0.5 m/s.
    """
    parameters = block.BlockParameters(friction=0.0)
    give = Compliance.of(2e-4, 0.005)
    model = MujocoModel(block.robot(parameters), block.contacts(parameters), give)
    start = [0.0, 0.075, 0.1, 0.2, 0.0, 0.0]
    plant, rigid = MujocoPlant(model, 1e-3), block.system(parameters)
    sample = plant.reset(0.0, start)
    for _ in range(500):
        sample = plant.step([])
    run = hc.simulate(rigid, ("open", "open"), start, (0.0, 0.5), on_zeno="rest")
    np.testing.assert_allclose(sample.state[:3], run.final_state[:3], atol=3e-4)


def test_a_quadruped_lands_as_on_the_rigid_simulator():
    """A public one on springs, tilted, without friction: its feet hit one by one and slide apart.

    Over 0.5 s, at every millisecond: the base within 0.3 mm, joints within 0.3 mrad, which are
    0.13 mm at the end of a leg. Contacts give way by v T = 0.16 mm at 0.8 m/s, for an instant.
    """
    legs, angles = ("FL", "FR", "RL", "RR"), {"hip": 0.0, "thigh": 0.8, "calf": -1.5}
    stance = {f"{leg}_{joint}_joint": angle for leg in legs for joint, angle in angles.items()}
    springs = {"stiffness": dict.fromkeys(stance, 60.0), "damping": dict.fromkeys(stance, 2.0)}
    urdf = next(f for f in files("example-robot-data") if f.name == "go2.urdf").locate()
    robot = Robot.from_urdf(urdf, root="floating", actuated=(), **springs, rest=stance)
    sole = {"offset": (0.0, 0.0, -0.022), "friction": 0.0}
    contacts = [Contact(f"{leg}_foot", f"{leg}_foot", GROUND, **sole) for leg in legs]
    start = np.concatenate([robot.posture(stance), np.zeros(robot.nv)])
    start[2], start[3:5] = 0.37, (0.01, 0.015)
    start[6] = np.sqrt(1.0 - start[3:6] @ start[3:6])
    rigid = hc.mechanics.contact_system(robot, contacts)
    run = hc.simulate(rigid, ("open",) * 4, start, (0.0, 0.5), on_zeno="rest", rtol=1e-8, atol=1e-8)
    assert {guard for event in run.events for guard in event.guards} >= {
        f"{leg}_foot closes" for leg in legs
    }
    plant = MujocoPlant(MujocoModel(robot, contacts, Compliance.of(2e-4, 0.005)), 1e-3)
    plant.reset(0.0, start)
    for _ in range(500):
        sample = plant.step([])
        off = sample.state - run(min(sample.time, 0.5))
        np.testing.assert_allclose(off[: robot.nq], 0.0, atol=3e-4)


def test_it_is_a_plant_as_the_simulator_is_one():
    robot, contacts = Robot.from_urdf(CART), [Contact("foot", "cart", GROUND)]
    rigid = SimulatedPlant(hc.mechanics.contact_system(robot, contacts), ("open",), 1e-3)
    soft = MujocoPlant(MujocoModel(robot, contacts, Compliance(2e-4, 3.0)), 1e-3)
    ends = []
    for plant in (rigid, soft):
        assert isinstance(plant, Plant)
        sample = plant.reset(0.5, [0.01, 0.0])
        for _ in range(200):
            sample = plant.step([5.0])
        ends.append(sample)
        assert sample.time == pytest.approx(0.7)
        assert sample.sensed["normal_force"] == pytest.approx([2.0 * 9.81 - 5.0], rel=1e-3)
    np.testing.assert_allclose(ends[0].state, ends[1].state, atol=1e-4)


def test_plants_of_one_model_keep_their_own_steps():
    """Free fall ends at the same height, also where a plant of another period is made."""
    robot, contacts = ROBOTS["cube"]
    model, heights = MujocoModel(robot, contacts), []
    state = np.zeros(robot.nq + robot.nv)
    state[2], state[6] = 10.0, 1.0
    for other in (None, 7e-4):  # has six steps of 0.117 ms; 1 ms has eight of 0.125 ms
        plant = MujocoPlant(model, 1e-3)
        if other is not None:
            MujocoPlant(model, other)
        plant.reset(0.0, state)
        for _ in range(100):
            sample = plant.step(np.zeros(robot.nu))
        heights.append(sample.state[2])
    assert heights[1] == heights[0]


def test_forces_of_a_sample_are_those_of_the_last_step_of_the_engine():
    """The state is that of the end of the period; the force has led to it."""
    robot, contacts = ROBOTS["cube"]
    plant = MujocoPlant(MujocoModel(robot, contacts), 1.25e-4)  # one step of the engine
    state = np.zeros(robot.nq + robot.nv)
    state[2], state[6], state[robot.nq + 2] = 0.0495, 1.0, -0.5
    plant.reset(0.0, state)
    forces = []
    for _ in range(10):
        before = mujoco.MjData(plant.model.model)
        before.qpos[:], before.qvel[:] = plant.data.qpos, plant.data.qvel
        before.qacc_warmstart[:] = plant.data.qacc_warmstart
        mujoco.mj_forward(plant.model.model, before)
        rows = before.contact.efc_address
        pressing = before.efc_force[rows[rows >= 0]].sum()
        force = plant.step(np.zeros(robot.nu)).sensed["normal_force"].sum()
        assert force == pytest.approx(pressing, rel=1e-6, abs=1e-6)  # an iterative solver's
        forces.append(force)
    assert max(forces) > 0.0


def test_what_the_engine_does_not_have_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where the engine leaves its log
    robot = Robot.from_urdf(CART)
    hills = Contact("foot", "cart", Terrain(lambda x, y: 0.1 * x * y))
    with pytest.raises(InputError, match=r"surface of contact 'foot' must be a Plane"):
        _ = MujocoModel(robot, [hills]).model
    bowl = Contact("foot", "cart", Sphere((0, 0, 0), 1.0, inside=True))
    with pytest.raises(InputError, match=r"a Sphere from outside"):
        _ = MujocoModel(robot, [bowl]).model
    wheel = CART.replace('type="prismatic"', 'type="continuous"')
    with pytest.raises(InputError, match="joint 'slide' has no counterpart in MuJoCo"):
        _ = MujocoModel(Robot.from_urdf(wheel), [Contact("foot", "cart", GROUND)]).model
    with pytest.raises(InputError, match=r"restitution must be at most 0\.99"):
        Compliance.of(1e-3, 1.0)
    with pytest.raises(InputError, match="time_constant must be greater than 0"):
        Compliance(0.0)
    plant = MujocoPlant(MujocoModel(robot, [Contact("foot", "cart", GROUND)]))
    with pytest.raises(InputError, match="state must have shape"):
        plant.reset(0.0, [1.0])
    plant.reset(0.0, [1.0, 0.0])
    with pytest.raises(SimulationError, match="MuJoCo diverges"):
        plant.step([1e300])


def test_without_the_engine_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    robot = Robot.from_urdf(CART)
    with pytest.raises(InputError, match=r"pip install .hybridctl\[mujoco\]"):
        _ = MujocoModel(robot, [Contact("foot", "cart", GROUND)]).model


def test_a_robot_that_the_engine_refuses_is_named():
    """A link of mass without inertia about an axis, as some public robots have."""
    inertial = '<inertial><mass value="1"/><inertia {} ixy="0" ixz="0" iyz="0"/></inertial>'
    body = inertial.format('ixx="1" iyy="1" izz="1"')
    rod = inertial.format('ixx="-2e-22" iyy="8e-23" izz="3e-6"')
    text = (
        f'<robot name="thin"><link name="body">{body}</link>'
        '<joint name="hip" type="revolute"><parent link="body"/><child link="rod"/>'
        '<axis xyz="0 0 1"/><limit lower="-1" upper="1" effort="1" velocity="1"/></joint>'
        f'<link name="rod">{rod}</link></robot>'
    )
    touching = Contact("tip", "rod", Plane((0, 0, 0), (0, 0, 1)))
    made = MujocoModel(Robot.from_urdf(text, root="floating"), [touching])
    with pytest.raises(InputError, match="MuJoCo refuses the robot"):
        made.model  # noqa: B018
