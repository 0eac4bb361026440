"""Systems for tests of gradients: each returns a flow, an initial state, inputs and parameters."""

from itertools import product

import numpy as np
from hybridctl.robots import ball, block, cube, public, rrr_door
from scipy.optimize import fsolve
from scipy.spatial.transform import Rotation

import hybridctl as hc
from hybridctl.gradients import RunLoss
from hybridctl.mechanics import Contact, Plane, Robot, contact_system


def falling_ball(rng=None, system=None, **options):
    """A ball that bounces on a slope with friction, pushed by forces that are held."""
    rng = np.random.default_rng(0) if rng is None else rng
    system = system or ball.system(ball.BallParameters(friction=0.2, restitution=0.6))
    names = ("restitution:slope", "friction:slope", "mass:ball")
    given = {"times": (0.15, 0.4, 0.9), "events": 3, "holds": 12, "parameters": names}
    flow = hc.differentiable(system, ("open",), (0.0, 1.2), **(given | options))
    x0 = np.array([0.0, 0.5, 0.5, 0.0]) + 0.2 * rng.normal(size=4) * [1.0, 0.3, 1.0, 1.0]
    p = np.array([rng.uniform(0.3, 0.8), rng.uniform(0.05, 0.5), rng.uniform(0.5, 2.0)])
    return flow, x0, rng.normal(size=(12, 2)), p


def landing_block(rng=None, system=None, **options):
    """A block that lands on a corner, slides, and lands on the other one."""
    rng = np.random.default_rng(1) if rng is None else rng
    system = system or block.system(block.BlockParameters(), actuated=True)
    names = ("friction", "mass:block", "inertia_yy:block")
    given = {"times": (0.2, 0.4), "holds": 10, "parameters": names}
    flow = hc.differentiable(system, ("open", "open"), (0.0, 0.5), **(given | options))
    x0 = np.array([0.0, 0.05 + 0.1 * np.sin(0.25) + 0.08, 0.25, 1.0, 0.0, 0.0])
    x0 = x0 + rng.normal(size=6) * [0.1, 0.02, 0.1, 0.5, 0.3, 0.5]
    p = flow.nominal_parameters * rng.uniform(0.7, 1.3, size=len(flow.parameter_names))
    return flow, x0, 0.3 * rng.normal(size=(10, 3)), p


def falling_cube(rng=None, end=0.22, **options):
    """A turning cube that hits a table with its corners."""
    rng = np.random.default_rng(2) if rng is None else rng
    parameters = cube.CubeParameters(restitution_threshold=1e-3)
    system = contact_system(cube.robot(parameters, actuated=True), cube.contacts(parameters))
    given = {"holds": 6, "parameters": ("friction", "mass:cube")}
    flow = hc.differentiable(system, ("open",) * 8, (0.0, end), **(given | options))
    x0 = np.zeros(13)
    x0[2] = 0.15
    x0[3:7] = Rotation.from_euler("xyz", rng.uniform(-0.6, 0.6, size=3)).as_quat()
    x0[7:] = rng.normal(size=6) * [0.3, 0.3, 0.3, 2.0, 2.0, 2.0]
    return flow, x0, 0.05 * rng.normal(size=(6, 6)), flow.nominal_parameters


def struck_door(rng=None, ahead=0.002, noise=0.003, **options):
    """An arm whose foot strikes a door with one corner, which is ahead (m), after the other."""
    rng = np.random.default_rng(3) if rng is None else rng
    system = rrr_door.system()
    flow = hc.differentiable(system, ("open", "open"), (0.0, 0.25), **({"holds": 5} | options))
    outputs = system.mode(("open", "open")).outputs
    q = np.array([1.2, -1.2, 0.2, 0.0])

    def gaps(q):
        return outputs(0.0, np.r_[q, np.zeros(4)], np.zeros(3))["gap"]

    def miss(z):
        return gaps(np.r_[q[0], z, 0.0]) - [0.01, 0.01 + ahead]

    q[1:3] = fsolve(miss, q[1:3], xtol=1e-12)
    jacobian = np.array([gaps(q + 1e-6 * e) - gaps(q - 1e-6 * e) for e in np.eye(4)]).T / 2e-6
    v = np.linalg.lstsq(jacobian[:, :3], np.array([-0.5, -0.5]), rcond=None)[0]
    x0 = np.r_[q, v, 0.0] + noise * rng.normal(size=8)
    return flow, x0, 0.5 * rng.normal(size=(5, 3)), np.zeros(0)


def swinging_chain(rng=None, system=None, **options):
    """A chain of three links that swings down and hits the floor with its tip."""
    rng = np.random.default_rng(4) if rng is None else rng
    floor = Plane(point=(0.0, 0.0, -0.75), normal=(0.0, 0.0, 1.0))
    tip = Contact("tip", "link3", floor, offset=(0.0, 0.0, -0.3), friction=0.4, restitution=0.5)
    system = system or contact_system(Robot.from_urdf(CHAIN), [tip])
    names = ("restitution:tip", "friction:tip", "mass:link2", "center_z:link3")
    given = {"holds": 6, "parameters": names, "times": (0.2, 0.5), "events": 1}
    flow = hc.differentiable(system, ("open",), (0.0, 0.5), **(given | options))
    x0 = np.r_[rng.uniform(0.6, 1.0), rng.uniform(0.2, 0.6, size=2), 0.3 * rng.normal(size=3)]
    return flow, x0, 0.2 * rng.normal(size=(6, 3)), flow.nominal_parameters


def dropped_quadruped(rng=None, tilt=0.25, end=0.2, **options):
    """A quadruped of 18 velocities that falls from 2 cm on its feet, turned by up to tilt (rad)."""
    rng = np.random.default_rng(5) if rng is None else rng
    given = {"parameters": ("friction",), "holds": 1}
    system = public.system("solo12")
    flow = hc.differentiable(system, ("open",) * 4, (0.0, end), **(given | options))
    x0 = public.start("solo12", 0.02, *rng.uniform(-tilt, tilt, size=2))
    x0[19:] += 0.1 * rng.normal(size=18)
    return flow, x0, np.zeros((1, 0)), flow.nominal_parameters


def level_quadruped(rng=None, **options):
    """The same quadruped, which is turned by up to 1 mrad: its feet land within milliseconds."""
    return dropped_quadruped(rng, tilt=1e-3, **options)


def tumbling_cube(**options):
    """The cube of a published toss at 2 m/s under a gravity of 2 m/s2, on an edge that is level.

    It lands on two edges in turn, which bounce 30 times, and comes to rest on a face.
    """
    inertia = 0.1 * 0.1**2 / 6.0
    moments = f'ixx="{inertia}" iyy="{inertia}" izz="{inertia}" ixy="0" ixz="0" iyz="0"'
    body = f'<inertial><mass value="0.1"/><inertia {moments}/></inertial>'
    robot = Robot.from_urdf(
        f'<robot name="cube"><link name="cube">{body}</link></robot>',
        root="floating",
        gravity=(0.0, 0.0, -2.0),
    )
    table = Plane(point=(0.0, 0.0, 0.0), normal=(0.0, 0.0, 1.0))
    corners = [
        Contact(
            f"corner{k}",
            "cube",
            table,
            offset=tuple(0.05 * np.array(signs)),
            friction=1.0,
            restitution=0.135,
            restitution_threshold=1e-3,
        )
        for k, signs in enumerate(product((1, -1), repeat=3))
    ]
    given = {"parameters": ("restitution",), "kink": "mean", "event_window": 1e-6}
    flow = hc.differentiable(
        contact_system(robot, corners),
        ("open",) * 8,
        (0.0, 1.0),
        **(given | {"simultaneous": "at once"} | options),
    )
    turn = Rotation.from_euler("x", 60.0, degrees=True)
    x0 = np.zeros(13)
    x0[2], x0[3:7], x0[7:10] = 0.2, turn.as_quat(), turn.inv().apply([0.0, -0.1, -2.0])
    return flow, x0


def _link(k):
    inertia = '<inertia ixx="2e-3" iyy="2e-3" izz="1e-3" ixy="0" ixz="0" iyz="0"/>'
    body = f'<inertial><origin xyz="0 0 -0.15"/><mass value="0.5"/>{inertia}</inertial>'
    origin = f'<origin xyz="0 0 {0.0 if k == 1 else -0.3}"/>'
    limit = '<limit lower="-9" upper="9" effort="99" velocity="99"/>'
    return f"""<link name="link{k}">{body}</link>
  <joint name="joint{k}" type="revolute"><parent link="link{k - 1}"/><child link="link{k}"/>
    {origin}<axis xyz="0 1 0"/>{limit}</joint>"""


CHAIN = f'<robot name="chain"><link name="link0"/>{"".join(map(_link, (1, 2, 3)))}</robot>'
KINDS = {
    "ball": falling_ball,
    "block": landing_block,
    "cube": falling_cube,
    "door": struck_door,
    "chain": swinging_chain,
}
QUADRUPEDS = {"tilted": dropped_quadruped, "level": level_quadruped}


def loss(tape):
    """The squares of states and of times of events; in this file, which processes can import."""
    return RunLoss(
        (tape.states**2).sum() + (tape.event_times**2).sum(),
        2.0 * tape.states,
        2.0 * tape.event_times,
    )
