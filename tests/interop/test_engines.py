"""Both engines behind one interface: states, free motion, contacts, pushes, boxes and scenes."""

import sys
from importlib.metadata import files

import numpy as np
import pytest
from hybridctl.robots import block, cube
from interop.test_mujoco import CART, GROUND, ROBOTS, random_state

from hybridctl.base.errors import FileFormatError, InputError, UnknownNameError
from hybridctl.hybrid.plant import Plant
from hybridctl.interop.drake import DrakeModel, DrakePlant, HuntCrossley
from hybridctl.interop.engine import EnginePlant, Obstacle, make_ramp, make_steps
from hybridctl.interop.mujoco import Compliance, MujocoModel, MujocoPlant
from hybridctl.mechanics import Contact, Robot, Sphere

ENGINES = ("mujoco", "drake")
BALL = """<robot name="ball"><link name="ball"><inertial><mass value="2"/>
<inertia ixx="0.02" iyy="0.02" izz="0.02" ixy="0" ixz="0" iyz="0"/></inertial></link></robot>"""


def make_plant(engine, robot, contacts, scenery=(), period=1e-3):
    """A plant on nearly rigid contact."""
    pytest.importorskip("pydrake" if engine == "drake" else engine)
    if engine == "drake":
        stiff = HuntCrossley(2e5, 20.0)
        return DrakePlant(DrakeModel(robot, contacts, stiff, 1e-4, scenery=scenery), period)
    soft = Compliance.of(1e-3, 0.05)
    return MujocoPlant(MujocoModel(robot, contacts, soft, scenery=scenery), period)


def ball(radius=0.1, friction=1.0, **options):
    """A ball in space, and its contact with the ground."""
    robot = Robot.from_urdf(BALL, root="floating", actuated=(), **options)
    return robot, [Contact("sole", "ball", GROUND, radius=radius, friction=friction)]


def rest(x=0.0, z=0.1):
    state = np.zeros(13)
    state[0], state[2], state[6] = x, z, 1.0
    return state


def follow(plant, state, seconds, u=()):
    sample = plant.reset(0.0, state)
    for _ in range(round(seconds / plant.period)):
        sample = plant.step(u)
    return sample


@pytest.mark.parametrize("name", ROBOTS)
def test_states_and_free_motion_on_drake(name):
    """A third implementation of the dynamics, also of the forces that inputs are there."""
    pytest.importorskip("pydrake")
    from pydrake.multibody.tree import MultibodyForces

    robot, contacts = ROBOTS[name]
    made, rng = DrakeModel(robot, contacts), np.random.default_rng(1)
    plant = made.built.plant
    for _ in range(5):
        x, u = random_state(robot, rng), rng.normal(size=robot.nu)
        positions, velocities = made.to_engine(x)
        np.testing.assert_allclose(made.from_engine(positions, velocities), x, atol=1e-14)
        context = plant.CreateDefaultContext()
        plant.SetPositionsAndVelocities(context, np.concatenate([positions, velocities]))
        forces = MultibodyForces(plant)
        plant.CalcForceElementsContribution(context, forces)
        total = plant.CalcGeneralizedForces(context, forces) + made.to_forces(u, positions)
        bias = plant.CalcBiasTerm(context)
        rates = np.linalg.solve(plant.CalcMassMatrix(context), total - bias)
        found, (q, v) = made.from_engine(positions, rates)[robot.nq :], np.split(x, [robot.nq])
        if name == "cube":
            found[:3] -= np.cross(v[3:6], v[:3])
        expected = robot.free_acceleration(q, v, u)
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8 * np.abs(expected).max())


@pytest.mark.parametrize("engine", ENGINES)
def test_a_push_gives_its_impulse(engine):
    """On a body in free flight: m dv = F T and J dw = r x F T, also from and to within a step."""
    robot, contacts = ball(gravity=(0.0, 0.0, 0.0))
    plant = make_plant(engine, robot, contacts)
    assert isinstance(plant, EnginePlant)
    assert isinstance(plant, Plant)
    plant.push("ball", (3.0, 0.0, 1.0), 0.01004, 0.05007)
    found = follow(plant, rest(z=5.0), 0.1).state
    impulse = np.array([3.0, 0.0, 1.0]) * 0.04003
    np.testing.assert_allclose(found[7:10], impulse / 2.0, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(found[10:], 0.0, atol=1e-9)
    plant.clear_pushes()
    plant.push("ball", (0.0, 2.0, 0.0), 0.0, 1e-3, at=(0.0, 0.0, 0.3))
    plant.push("ball", (0.0, 0.0, 0.0), 0.0, 1e-3, moment=(0.0, 0.0, 0.7))
    found = follow(plant, rest(z=5.0), 1e-3).state
    np.testing.assert_allclose(found[10:] * 0.02, [-6e-4, 0.0, 7e-4], rtol=1e-3, atol=1e-8)
    with pytest.raises(UnknownNameError, match="head"):
        plant.push("head", (1.0, 0.0, 0.0), 0.0, 1.0)
    with pytest.raises(InputError, match="end must be greater"):
        plant.push("ball", (1.0, 0.0, 0.0), 1.0, 1.0)
    with pytest.raises(InputError, match="fixed to the world"):
        make_plant(engine, Robot.from_urdf(CART), [Contact("foot", "cart", GROUND)]).push(
            "rail" if engine == "none" else "base", (1.0, 0.0, 0.0), 0.0, 1.0
        )


@pytest.mark.parametrize("end", [None, 0.03, 9.0])
def test_drake_takes_the_steps_of_each_period_and_no_more(end):
    """A fall by the engine's steps h: after n of them g h^2 n (n + 1) / 2, with n = t / h.

    A push to the side is none, ends meanwhile, or comes later: it moves the fall at no sample.
    """
    robot, contacts = ball()
    plant = make_plant("drake", robot, contacts)
    if end is not None:
        plant.push("ball", (1.0, 0.0, 0.0), end - 0.02, end)
    plant.reset(2.0, rest(z=50.0))
    steps = 10.0 * np.arange(1, 301)
    heights = [plant.step(()).state[2] for _ in steps]
    # One step more is off by g h t, at least 1e-6 m.
    fallen = 9.81 * 1e-8 * steps * (steps + 1.0) / 2.0
    np.testing.assert_allclose(50.0 - np.array(heights), fallen, rtol=0.0, atol=1e-10)


@pytest.mark.parametrize("steps", [1, 10])
def test_drakes_forces_are_those_of_its_last_step(steps):
    """m dv = (f - m g) h over a step; after a reset f is that at the state, not zero."""
    robot, contacts = ball()
    step, state = 1e-4, rest(z=0.0999)
    plant = make_plant("drake", robot, contacts, period=step)
    samples = [plant.reset(0.0, state)]
    samples += [plant.step(()) for _ in range(steps)]
    forces = [sample.sensed["normal_force"][0] for sample in samples]
    assert forces[0] == forces[1] > 0.0
    speeds = np.diff([sample.state[9] for sample in samples])
    np.testing.assert_allclose(speeds, (np.array(forces[1:]) / 2.0 - 9.81) * step, rtol=1e-9)
    whole = make_plant("drake", robot, contacts, period=steps * step)
    found = follow(whole, state, steps * step)
    assert found.sensed["normal_force"][0] == forces[-1]
    np.testing.assert_array_equal(found.state, samples[-1].state)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_pushed_body_that_turns_is_pushed_along_world_axes(engine):
    """A force at the centre of a spinning body, whose own axes turn by a quarter meanwhile."""
    robot, contacts = ball(gravity=(0.0, 0.0, 0.0))
    plant = make_plant(engine, robot, contacts)
    plant.push("ball", (4.0, 0.0, 0.0), 0.0, 0.5)
    state = rest(z=5.0)
    state[12] = np.pi
    found = follow(plant, state, 0.5).state
    assert found[0] == pytest.approx(0.5 * 2.0 * 0.25, rel=1e-3)
    np.testing.assert_allclose(found[7:9], [0.0, -1.0], atol=5e-3)  # in its own axes


@pytest.mark.parametrize("engine", ENGINES)
def test_an_input_of_a_floating_base_is_in_its_own_axes(engine):
    robot = Robot.from_urdf(
        BALL, root="floating", actuated=("root_joint",), gravity=(0.0, 0.0, 0.0)
    )
    contact = [Contact("sole", "ball", GROUND, radius=0.1)]
    state = rest(z=5.0)
    state[5:7] = np.sqrt(0.5)  # a quarter about z
    found = follow(make_plant(engine, robot, contact), state, 0.1, [2.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    np.testing.assert_allclose(found.state[7:10], [0.1, 0.0, 0.0], atol=1e-9)
    np.testing.assert_allclose(found.state[:2], [0.0, 0.005], atol=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_ball_rests_on_the_ground_and_on_boxes(engine):
    """Its weight is in "normal_force", on the box through its top."""
    robot, contacts = ball()
    scenery = (Obstacle((1.0, 0.0, 0.1), (0.5, 0.5, 0.2)),)
    plant = make_plant(engine, robot, contacts, scenery)
    for x, height in ((0.0, 0.1), (1.0, 0.3)):
        found = follow(plant, rest(x, height + 1e-3), 0.4)
        assert found.state[2] == pytest.approx(height, abs=5e-4)
        assert found.sensed["normal_force"] == pytest.approx([2.0 * 9.81], rel=0.02)
        assert found.sensed["contact"].tolist() == [True]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_point_stands_on_steps_and_slides_down_a_ramp(engine):
    """A foot without radius; on the smooth ramp it goes by g sin(a) t^2 / 2."""
    robot, contacts = ball(radius=0.0, friction=0.0)
    steps = make_steps(0.5, rise=0.1, depth=0.3, count=2)
    plant = make_plant(engine, robot, contacts, steps)
    for x, height in ((0.3, 0.0), (0.65, 0.1), (1.0, 0.2)):
        assert follow(plant, rest(x, height + 1e-3), 0.3).state[2] == pytest.approx(
            height, abs=5e-4
        )
    slope = 0.2
    plant = make_plant(engine, robot, contacts, make_ramp(0.0, slope=slope, length=3.0))
    found = follow(plant, rest(2.0, 2.0 * np.tan(slope) + 1e-4), 0.5).state
    way = 0.5 * 9.81 * np.sin(slope) * 0.25
    assert found[0] == pytest.approx(2.0 - way * np.cos(slope), abs=5e-3)
    assert found[2] == pytest.approx(found[0] * np.tan(slope), abs=1e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_block_falls_as_on_the_other_engine(engine):
    """Without friction, on both corners one after the other, over 0.5 s, within 1 mm and mrad."""
    parameters = block.BlockParameters(friction=0.0)
    made = block.robot(parameters), block.contacts(parameters)
    found = follow(make_plant(engine, *made), [0.0, 0.075, 0.1, 0.2, 0.0, 0.0], 0.5)
    np.testing.assert_allclose(found.state[:3], [0.1, 0.05, 0.0], atol=1e-3)


def test_a_scene_of_ones_own_has_bodies_that_are_pushed_away(tmp_path):
    pytest.importorskip("mujoco")
    scene = """<mujoco><worldbody><geom name="shelf" type="box" size="0.5 0.5 0.1" pos="2 0 0.1"/>
      <body name="crate" pos="0.3 0 5"><freejoint/><geom type="box" size="0.1 0.1 0.1" mass="1"/>
      </body></worldbody></mujoco>"""
    robot, contacts = ball(gravity=(0.0, 0.0, 0.0))
    for given in (scene, tmp_path / "scene.xml"):
        (tmp_path / "scene.xml").write_text(scene)
        model = MujocoModel(robot, contacts, Compliance.of(2e-3, 0.5), scene=given)
        plant = MujocoPlant(model)
        state = rest(z=5.0)
        state[7] = 1.0
        found = follow(plant, state, 0.3)
        crate = plant.data.body("crate")
        assert found.state[7] < 0.6
        assert crate.xpos[0] > 0.31
        np.testing.assert_allclose(2.0 * found.state[7] + crate.cvel[3], 2.0, rtol=1e-6)
    standing = MujocoPlant(MujocoModel(*ball(), Compliance.of(1e-3, 0.05), scene=scene))
    assert follow(standing, rest(2.0, 0.301), 0.4).state[2] == pytest.approx(0.3, abs=5e-4)
    with pytest.raises(FileFormatError, match="scene is not read by MuJoCo"):
        _ = MujocoModel(robot, contacts, scene="<mujoco><bad/></mujoco>").model


def test_the_viewer_shows_the_data(monkeypatch):
    viewer = pytest.importorskip("mujoco.viewer")
    plant = make_plant("mujoco", *ball())
    monkeypatch.setattr(viewer, "launch_passive", lambda model, data: (model, data))
    assert plant.open_viewer() == (plant.model.model, plant.data)


def test_what_drake_does_not_have_is_named(monkeypatch):
    robot = Robot.from_urdf(CART)
    rubbing = Robot.from_urdf(CART, friction={"slide": 1.0})
    foot = [Contact("foot", "cart", GROUND)]
    with pytest.raises(InputError, match="no dry friction of joints"):
        DrakeModel(rubbing, foot)
    with pytest.raises(InputError, match="scenery must be a sequence of Obstacle"):
        DrakeModel(robot, foot, scenery=3)
    with pytest.raises(InputError, match="sides must be longer than 0"):
        Obstacle((0, 0, 0), (1, 0, 1))
    with pytest.raises(InputError, match="stiffness must be greater than 0"):
        HuntCrossley(0.0)
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "pydrake", None)
        patched.setitem(sys.modules, "pydrake.systems.analysis", None)
        with pytest.raises(InputError, match=r"pip install .hybridctl\[drake\]"):
            _ = DrakeModel(robot, foot).built
    pytest.importorskip("pydrake")
    bowl = Contact("foot", "cart", Sphere((0, 0, 0), 1.0, inside=True))
    with pytest.raises(InputError, match="a Sphere from outside"):
        _ = DrakeModel(robot, [bowl]).built
    with pytest.raises(InputError, match="period must be a multiple of the step"):
        DrakePlant(DrakeModel(robot, foot, timestep=3e-4), 1e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_quadruped_stands_on_springs(engine):
    legs, angles = ("FL", "FR", "RL", "RR"), {"hip": 0.0, "thigh": 0.8, "calf": -1.5}
    stance = {f"{leg}_{joint}_joint": angle for leg in legs for joint, angle in angles.items()}
    springs = {"stiffness": dict.fromkeys(stance, 60.0), "damping": dict.fromkeys(stance, 2.0)}
    urdf = next(f for f in files("example-robot-data") if f.name == "go2.urdf").locate()
    robot = Robot.from_urdf(
        urdf, root="floating", actuated=(), friction=dict.fromkeys(stance, 0.0), **springs,
        rest=stance,
    )  # fmt: skip
    feet = [Contact(f"{leg}_foot", f"{leg}_foot", GROUND, radius=0.022) for leg in legs]
    start = np.concatenate([robot.posture(stance), np.zeros(robot.nv)])
    start[2] = 0.33
    found = follow(make_plant(engine, robot, feet), start, 1.0)
    assert found.sensed["normal_force"].sum() == pytest.approx(robot.weight, rel=0.02)
    np.testing.assert_allclose(found.state[robot.nq :], 0.0, atol=0.05)


def test_cubes_land_alike():
    """From a flat fall both engines have the cube at rest on its face."""
    ends = [
        follow(make_plant(engine, cube.robot(), cube.contacts()), rest(z=0.1), 0.4).state
        for engine in ENGINES
    ]
    np.testing.assert_allclose(ends[0], ends[1], atol=2e-3)
