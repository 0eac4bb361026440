"""A hopper in a vertical plane: a body on a leg that slides on a spring, with a motor at the hip.

State x = (q, v), q = (root_x, root_z, root_pitch, hip, leg); inputs are the torque of the hip, N m,
and the force along the leg, N.
"""

from __future__ import annotations

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.control.lqr.periodic import LaterPeriod
from hybridctl.hybrid.trajectory import Event, HybridTrajectory
from hybridctl.mechanics import Contact, Plane, Robot, contact_system
from hybridctl.planning.optimisation import OptimalTrajectory
from hybridctl.planning.phase_functions import build_jump
from hybridctl.planning.task import Condition, Margins, Phase, Task
from hybridctl.sensitivity.symmetry import Symmetry

STANCE, FLIGHT = ("stick",), ("open",)
SPEED = 0.5  # m/s
MARGINS = Margins(
    force=5.0, friction=0.6, unload=50.0, lift=2.0, approach=0.2, clearance=0.02, impulse=0.05
)
_LIMIT = '<limit lower="-1" upper="1" effort="100" velocity="50"/>'


def _link(name: str, mass: float, inertia: float) -> str:
    return (
        f'<link name="{name}"><inertial><mass value="{mass}"/><inertia ixx="{inertia}" '
        f'iyy="{inertia}" izz="{inertia}" ixy="0" ixz="0" iyz="0"/></inertial></link>'
    )


URDF = (
    f'<robot name="hopper">{_link("body", 5.0, 0.05)}{_link("thigh", 0.5, 0.005)}'
    f'{_link("foot", 0.2, 0.001)}<joint name="hip" type="revolute"><parent link="body"/>'
    f'<child link="thigh"/><axis xyz="0 1 0"/>{_LIMIT}</joint><joint name="leg" type="prismatic">'
    f'<parent link="thigh"/><child link="foot"/><origin xyz="0 0 -0.5"/><axis xyz="0 0 1"/>'
    f"{_LIMIT}</joint></robot>"
)


def task(torque: float, margins: Margins = MARGINS) -> Task:
    """Hops of a quarter of a second in the air, at a mean speed."""
    robot = Robot.from_urdf(URDF, root="sagittal", stiffness={"leg": 2000.0}, damping={"leg": 10.0})
    ground = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    plant = contact_system(robot, [Contact("toe", "foot", ground, friction=0.7)])
    return Task(
        plant,
        [
            Phase(STANCE, ("toe opens",), (0.1, 0.4), 8, 5),
            Phase(FLIGHT, ("toe closes",), (0.25, 0.4), 5, 5),
        ],
        symmetry=Symmetry(np.eye(10), free={"way": np.eye(10)[0]}),
        conditions=[
            Condition("speed times duration", lambda a, b, t: b[0] - a[0] - SPEED * t, unit="m")
        ],
        margins=margins,
        joint_limits={"root_pitch": (-0.5, 0.5)},
        torque=torque,
    )


def guess(k: int, s: float) -> Array:
    """Down and up on the leg, then up and down in the air."""
    high = (-0.08, 0.08)[k] * 4.0 * s * (1.0 - s)
    x = np.zeros(10)
    x[[0, 1, 4, 5, 6]] = 0.1 * (k + s), 0.5 + high, -min(high, 0.0), SPEED, (2 * s - 1) * 1.2
    if k:
        x[6] = (1.0 - 2.0 * s) * 1.2
    return x


def hops(planned: Task, motion: OptimalTrajectory, count: int) -> HybridTrajectory:
    """The plan so many times one after the other, as one trajectory that ends in the air."""
    plan, (first, last), symmetry = motion.plan, motion.plan.arcs, planned.symmetry
    assert symmetry is not None
    curves, jump, before = motion.feedforward, build_jump(planned, 1), last(plan.end)
    reached, impulses = (np.asarray(part).ravel() for part in jump(before)[:2])
    shift = symmetry.free_part(reached - first(0.0))
    down = Event(
        1,
        plan.end,
        FLIGHT,
        STANCE,
        planned.phases[1].ends,
        before,
        first(0.0) + shift,
        curves[1](plan.end),
        curves[0](0.0),
        curves[1].rate(plan.end),
        impulses[:1],
    )
    later = LaterPeriod(symmetry, plan.end - plan.start, shift)
    arcs, events = list(plan.arcs), [*plan.events, down]
    for _ in range(count - 1):
        arcs += [later.map_arc(arc, len(arcs) + i) for i, arc in enumerate(arcs[-2:])]
        events += [later.map_event(e, len(events) + i) for i, e in enumerate(events[-2:])]
    return HybridTrajectory(tuple(arcs), tuple(events[:-1]), planned.system)
