"""Single cases that have been wrong, each with its right answer."""

import numpy as np
import pinocchio as pin
import pytest
from hybridctl.robots import block, cube
from hybridctl.robots.bodies import free_body

import hybridctl as hc
from attack import api
from attack.laws import violation
from attack.machines import Machine
from attack.rigid import Judge, impact_law, row_forces
from attack.runs import faults
from attack.systems import StepLimit
from hybridctl.base.errors import HybridctlError, InputError, NoContactSolutionError
from hybridctl.mechanics import Contact, Plane, Robot, Sphere, contact_system, time_stepping

G = 9.81
FLOOR = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))


def machine_of(robot, urdf, contacts, root="fixed"):
    """A robot for the judge."""
    model = pin_model(urdf, root)
    none = np.zeros(model.nv)
    return Machine(robot, model, np.zeros(model.nq), tuple(contacts), none, none)


def pin_model(urdf, root):
    if root == "floating":
        return pin.buildModelFromXML(urdf, pin.JointModelFreeFlyer())
    return pin.buildModelFromXML(urdf)


# A mass on a rail


def rail(axis):
    """1 kg that slides along `axis`."""
    x, y, z = axis
    return f"""<robot name="rail"><link name="base"/>
    <link name="mass"><inertial><mass value="1"/>
      <inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>
    <joint name="rail" type="prismatic"><parent link="base"/><child link="mass"/>
      <axis xyz="{x!r} {y!r} {z!r}"/><limit lower="-9" upper="9" effort="9" velocity="9"/></joint>
    </robot>"""


AXIS = (0.9, 0.0, -0.436)


def wedged(restitutions):
    """The mass between a floor and a slope that it meets at the same point."""
    normals = ((0.0, 0.0, 1.0), (-0.6, 0.0, 0.8))
    contacts = [
        Contact(name, "mass", Plane((0.0, 0.0, 0.0), n), friction=1.0, restitution=e)
        for name, n, e in zip(("floor", "slope"), normals, restitutions, strict=True)
    ]
    return machine_of(Robot.from_urdf(rail(AXIS)), rail(AXIS), contacts)


def test_a_mass_on_a_rail_cannot_rebound_from_two_planes_at_once():
    """v+ <= -0.5 by the floor, <= -0.2 by the slope; so only the floor could act, but with friction

    1 it pushes along the rail by -0.436 + 0.9 > 0 per normal impulse when the mass moves back.
    """
    with pytest.raises(NoContactSolutionError):
        api.strike(wedged((0.5, 0.2)), np.array([1.0]), (0, 1))


def test_a_mass_on_a_rail_stops_at_two_planes_without_restitution():
    each = wedged((0.0, 0.0))
    v, judge = np.array([1.0]), each.judge()
    struck = api.strike(each, v, (0, 1))
    assert abs(struck.velocity[0]) <= 1e-12
    law, _ = impact_law(judge, each.q, v, (0, 1))
    forces = row_forces(judge.rows(each.q, v), struck.impulses, struck.friction)
    assert violation(law, forces).worst <= 1e-10
    # what stops 1 N s along the rail is of the size of 1 N s over the least slope of the rail
    assert np.abs(forces).max() <= 1.0 / 0.436


@pytest.mark.parametrize("mu", [0.1, 0.5])
@pytest.mark.parametrize("axis", [AXIS, (0.1, 0.0, -1.0), (0.99, 0.0, -0.1)])
def test_a_mass_on_a_rail_rests_on_the_floor_within_its_cone(axis, mu):
    """Normal and friction force act along one direction: only their sum is determined."""
    a = np.array(axis) / np.linalg.norm(axis)
    tip = Contact("tip", "mass", FLOOR, offset=(0.0, 0.0, -0.1 * a[2]), friction=mu)
    robot = Robot.from_urdf(rail(axis), actuated=())
    system = contact_system(robot, [tip])
    run = hc.simulate(system, ("open",), [0.0, 0.0], (0.0, 1.0), progress=StepLimit(200))
    assert [e.mode_after for e in run.events] == [("stick",)]
    # down the rail 0.1 m with g times its slope
    assert run.events[0].time == pytest.approx(np.sqrt(0.2 / (G * -a[2])), rel=1e-9)
    assert run.final_state == pytest.approx([0.1, 0.0], abs=1e-9)
    each = machine_of(robot, rail(axis), [tip])
    assert not faults(each, system, run).wrong()


# A box on two spheres


@pytest.mark.parametrize("mu", [0.1, 0.3, 0.8])
@pytest.mark.parametrize("apart", [0.1, 0.2, 0.3])
@pytest.mark.parametrize("root", ["sagittal", "floating"])
def test_a_box_that_falls_on_two_spheres_rests_on_both(root, apart, mu):
    """Symmetric: the normals alone can carry it, so friction need not do more than it can."""
    half, radius, urdf = 0.15, 0.2, free_body("box", 1.0, (0.01, 0.01, 0.01))
    top = -0.1 - np.sqrt(radius**2 - (apart - half) ** 2)
    contacts = [
        Contact(
            name,
            "box",
            Sphere((side * apart, 0.0, top), radius),
            offset=(side * half, 0.0, -0.1),
            friction=mu,
        )
        for name, side in (("left", -1.0), ("right", 1.0))
    ]
    robot = Robot.from_urdf(urdf, root=root, actuated=())
    system = contact_system(robot, contacts)
    start = np.zeros(robot.nq + robot.nv)
    start[: robot.nq] = robot.neutral()
    start[1 if root == "sagittal" else 2] = 0.02
    run = hc.simulate(system, ("open", "open"), start, (0.0, 0.5), progress=StepLimit(500))
    assert [e.guards for e in run.events] == [("left closes", "right closes")]
    assert run.final_mode == ("stick", "stick")
    np.testing.assert_allclose(run.final_state[: robot.nq], robot.neutral(), atol=1e-9)
    np.testing.assert_allclose(run.final_state[robot.nq :], 0.0, atol=1e-9)
    outputs = system.mode(run.final_mode).outputs(0.5, run.final_state, np.zeros(0))
    normal, friction = outputs["normal_force"], outputs["friction_force"]
    assert (np.linalg.norm(friction, axis=1) <= mu * normal + 1e-7 * G).all()
    if root == "floating":
        judge = Judge(pin_model(urdf, root), contacts)
        rows = judge.rows(run.final_state[:7], run.final_state[7:])
        jacobian = np.concatenate([row.rows() for row in rows])
        weight = np.zeros(6)
        weight[2] = G
        carried = jacobian.T @ row_forces(rows, normal, friction)
        np.testing.assert_allclose(carried, weight, atol=1e-7 * G)


# Starts that their mode does not hold


@pytest.mark.parametrize("height", [0.005, 0.01, 0.02])
def test_a_block_above_the_floor_cannot_start_closed(height):
    p = block.BlockParameters()
    start = [0.0, 0.5 * p.height + height, 0.0, 0.0, 0.0, 0.0]
    with pytest.raises(InputError, match="project"):
        hc.simulate(block.system(p), ("stick", "stick"), start, (0.0, 0.1))


@pytest.mark.parametrize(
    ("mode", "velocity"),
    [
        (("stick", "stick"), [0.1, 0.0, 0.0]),
        (("stick", "stick"), [0.0, -0.1, 0.0]),
        (("slip+", "slip+"), [0.1, -0.1, 0.0]),
        (("slip+", "slip+"), [0.1, 0.0, 0.1]),
    ],
)
def test_closed_contacts_cannot_start_with_a_velocity_that_their_mode_forbids(mode, velocity):
    p = block.BlockParameters()
    start = [0.0, 0.5 * p.height, 0.0, *velocity]
    with pytest.raises(InputError, match="project"):
        hc.simulate(block.system(p), mode, start, (0.0, 0.1))


def test_a_cube_above_the_table_cannot_start_closed_and_its_projection_can():
    p = cube.CubeParameters()
    system, mode = cube.system(p), ("stick", "open") * 4
    start = np.zeros(13)
    start[2], start[6] = p.half_width + 0.01, 1.0
    with pytest.raises(InputError, match="project"):
        hc.simulate(system, mode, start, (0.0, 0.1))
    projected = system.mode(mode).project(start)
    run = hc.simulate(system, mode, projected, (0.0, 0.1))
    assert run.final_state[2] == pytest.approx(p.half_width, abs=1e-9)


# Policies with a clock, in both simulators

PERIOD = 0.02


class Sampled:
    """u = -k x - d v of the last sample, held for a period."""

    def law(self, history):
        u = np.array([-40.0 * history.state[0] - 8.0 * history.state[1]])
        return lambda t, x: u

    def next_change(self, history):
        return PERIOD * (np.floor(history.time / PERIOD + 1e-9) + 1.0)


def test_time_stepping_asks_a_sampled_policy_at_its_times():
    """Between samples the force is constant and the mass a double integrator, without a rail's end.

    Steps are a whole part of the period, and the midpoint rule is exact for a constant force.
    """
    far = Contact("far", "mass", Plane((9.0, 0.0, 0.0), (-1.0, 0.0, 0.0)))
    robot = Robot.from_urdf(rail((1.0, 0.0, 0.0)))
    run = time_stepping(robot, [far], [0.3, 0.0], (0.0, 1.0), Sampled(), step=PERIOD / 4)
    x, v = 0.3, 0.0
    for _ in range(50):
        u = -40.0 * x - 8.0 * v
        x, v = x + PERIOD * v + 0.5 * PERIOD**2 * u, v + PERIOD * u
    np.testing.assert_allclose(run.final_state, [x, v], atol=1e-9)
    system = contact_system(robot, [far])
    exact = hc.simulate(system, ("open",), [0.3, 0.0], (0.0, 1.0), Sampled())
    np.testing.assert_allclose(exact.final_state, [x, v], atol=1e-8)


class Detecting:
    """Pushes on with 1 N until an impact has been known for `DELAY`, then pulls back with 3 N."""

    DELAY = 0.05

    def law(self, history):
        known = [e.time + self.DELAY for e in history.events if e.guards]
        u = np.array([-3.0 if known and history.time >= known[0] - 1e-12 else 1.0])
        return lambda t, x: u

    def next_change(self, history):
        known = [e.time + self.DELAY for e in history.events if e.guards]
        return known[0] if known and known[0] > history.time else np.inf


def test_time_stepping_asks_a_policy_that_detects_impacts_late():
    """1 N, 1 kg, a wall at 0.5 m: it is hit at 1 s, and let go of 0.05 s later."""
    wall = Contact("wall", "mass", Plane((0.5, 0.0, 0.0), (-1.0, 0.0, 0.0)))
    robot = Robot.from_urdf(rail((1.0, 0.0, 0.0)))
    system = contact_system(robot, [wall])
    after = 0.5 - Detecting.DELAY
    expected = [0.5 - 1.5 * after**2, -3.0 * after]
    exact = hc.simulate(system, ("open",), [0.0, 0.0], (0.0, 1.5), Detecting())
    np.testing.assert_allclose(exact.final_state, expected, atol=1e-8)
    for step in (1e-2, 1e-3):
        run = time_stepping(robot, [wall], [0.0, 0.0], (0.0, 1.5), Detecting(), step=step)
        # impact and change are seen within a step each, at 1 m/s, 1 N and 3 N
        assert np.abs(run.final_state - expected).max() <= 8.0 * step


# Friction that presses a sliding point down (Painleve)

BELT = """<robot name="belt"><link name="base"/>
  <link name="belt"><inertial><mass value="1e6"/>{inertia}</inertial></link>
  <link name="head"><inertial><mass value="1"/>{inertia}</inertial></link>
  <link name="rod"><inertial><mass value="0.5"/>{inertia}</inertial></link>
  <joint name="drive" type="prismatic"><parent link="base"/><child link="belt"/>
    <axis xyz="1 0 0"/>{limit}</joint>
  <joint name="lift" type="prismatic"><parent link="base"/><child link="head"/>
    <axis xyz="0 0 1"/>{limit}</joint>
  <joint name="hinge" type="revolute"><parent link="head"/><child link="rod"/>
    <axis xyz="0 1 0"/>{limit}</joint></robot>""".format(
    inertia='<inertia ixx="0.005" iyy="0.005" izz="0.005" ixy="0" ixz="0" iyz="0"/>',
    limit='<limit lower="-9" upper="9" effort="9" velocity="9"/>',
)
ROD = 0.5


def rod_on_belt(mu, lean, stiffness, rest, pressed):
    """A rod whose lower end stands on a belt that comes towards it; its head moves up and down.

    lean (rad): of the lower end against the belt. Springs hold the hinge (stiffness, at a lean of
    `rest`) and the head, `pressed` (m) below its height. Returns system, judge, start.
    """
    tip = Contact("tip", "rod", FLOOR, body="belt", offset=(0.0, 0.0, -ROD), friction=mu)
    robot = Robot.from_urdf(
        BELT,
        actuated=(),
        stiffness={"hinge": stiffness, "lift": 300.0},
        rest={"hinge": -rest, "lift": ROD * np.cos(lean) - pressed},
        damping={"hinge": 0.1, "lift": 2.0},
    )
    start = np.array([0.0, ROD * np.cos(lean), -lean, -1.0, 0.0, 0.0])
    return contact_system(robot, [tip]), Judge(pin_model(BELT, "fixed"), [tip]), start


def response(judge, x):
    """Normal acceleration per normal force of the sliding tip: n' M^-1 (n - mu d)."""
    (row,) = judge.rows(x[: judge.nq], x[judge.nq :])
    normal, tangent = row.rows()
    push = normal - judge.friction[0] * np.sign(row.rates()[1]) * tangent
    return float(normal @ np.linalg.solve(judge.mass_matrix(x[: judge.nq]), push))


@pytest.mark.parametrize("spring", [(5.0, 1.2, 0.1), (20.0, 0.6, 0.02), (50.0, 1.2, 0.3)])
@pytest.mark.parametrize("lean", [0.0, 0.2, 0.35, 0.6])
@pytest.mark.parametrize("mu", [0.8, 1.5])
def test_a_rod_does_not_slide_on_where_friction_presses_it_down(mu, lean, spring):
    """There the law has no or several accelerations: an error says so, or an impact ends it."""
    system, judge, start = rod_on_belt(mu, lean, *spring)
    try:
        run = hc.simulate(system, ("slip+",), start, (0.0, 1.0), progress=StepLimit(3000))
    except HybridctlError:
        return
    for arc in run.arcs:
        inside = np.linspace(arc.start, arc.end, 52)[1:-1]
        for x in [arc(float(t)) for t in inside] if arc.mode[0].startswith("slip") else []:
            assert response(judge, x) > 0.0
    for event in run.events:
        if event.guards == ("tip sticks",):
            (row,) = judge.rows(event.state_before[:3], event.state_before[3:])
            assert abs(row.rates()[1]) <= 1e-7
            assert event.mode_after == ("stick",)


def test_the_response_of_a_rod_changes_sign_as_it_leans():
    """What the test above is about is met: positive, negative and positive again."""
    signs = []
    for lean in (-0.1, 0.2, 1.2):
        _, judge, start = rod_on_belt(0.8, lean, 5.0, 1.2, 0.1)
        signs.append(np.sign(response(judge, start)))
    assert signs == [1.0, -1.0, 1.0]


# Sliding after breakaway


@pytest.mark.parametrize("turn", [0.0, 3.0, 30.0])
def test_a_cube_that_breaks_away_slides_with_few_steps(turn):
    """A force that grows through mu m g while its direction turns."""
    p = cube.CubeParameters(restitution=0.0, friction=0.3)
    system, mode = cube.system(p, actuated=True), ("stick", "open") * 4

    def push(t, x):
        # at the height of the table: the force is taken down by a moment
        force = 2.0 * t * p.mass * G * np.array([np.cos(turn * t), np.sin(turn * t), 0.0])
        moment = np.cross([0.0, 0.0, -p.half_width], force)
        return np.concatenate([force, moment])

    start = np.zeros(13)
    start[2], start[6] = p.half_width, 1.0
    run = hc.simulate(system, mode, start, (0.0, 0.3), push, progress=StepLimit(2000))
    assert run.end == 0.3
    # the force reaches mu m g at t = mu / 2
    assert run.events[0].time == pytest.approx(0.15, abs=1e-6)
    assert set(run.final_mode) == {"slip", "open"}
    if turn == 0.0:
        # v' = 2 g t - mu g from 0.15 s on
        assert run.final_state[7] == pytest.approx(G * 0.15**2, rel=1e-5)
