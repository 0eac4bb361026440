"""Tasks that a user tries first: jumps, a block that slides and stops, stairs."""

import casadi as ca
import numpy as np
from hybridctl.robots import block, five_link
from planning import jumper

from hybridctl.mechanics import Contact, Plane, Stairs, contact_system
from hybridctl.mechanics.limb_symmetry import limb_symmetry
from hybridctl.planning.task import Condition, Margins, Phase, Task

JUMP = Margins(force=10.0, clearance=0.03, approach=0.1, friction=0.8, unload=50.0, lift=5.0)


def at_rest(names, count):
    """The velocity of each joint vanishes at the end."""
    return [
        Condition(f"{name} speed at the end", lambda a, b, t, i=count + i: b[i], unit="rad/s")
        for i, name in enumerate(names)
    ]


DITCH = Stairs([0.05, 0.2], [0.0, -1.0, 0.0])  # 0.05 m from where a foot at 0 stands


def jump(legs, phases, *, way=0.25, torque=60.0, ground=jumper.GROUND):
    """From rest over a distance to rest."""
    plant = jumper.system(legs, ground=ground)
    joints = plant.robot.joint_names
    return Task(
        plant,
        phases,
        start=jumper.standing(legs),
        conditions=[
            Condition("way", lambda a, b, t: b[0] - a[0], way, way, "m"),
            *at_rest(joints, len(joints)),
        ],
        margins=JUMP,
        joint_limits={f"{leg}_knee": (-2.6, -0.3) for leg in legs},
        torque=torque,
    )


def monoped_jump():
    """Over a ditch of 0.15 m."""
    on, off = ("stick",), ("open",)
    near = far = jumper.GROUND
    task = jump(
        jumper.MONOPED,
        [
            Phase(on, ("foot opens",), (0.15, 0.6), 12, 5, ground={"foot": near}),
            Phase(off, ("foot closes",), (0.1, 0.5), 6, 5, ground={"foot": (near, far)}),
            Phase(on, (), (0.2, 0.8), 12, 5, ground={"foot": far}),
        ],
        ground=DITCH,
    )
    return task, risen(jumper.MONOPED, 0.0, 0.03, 0.03, 0.0)


def quadruped_jump():
    on, off = ("stick", "stick"), ("open", "open")
    task = jump(
        jumper.QUADRUPED,
        [
            Phase(on, ("hind opens", "fore opens"), (0.15, 0.6), 8, 5),
            Phase(off, ("hind closes", "fore closes"), (0.1, 0.5), 4, 5),
            Phase(on, (), (0.2, 0.8), 8, 5),
        ],
    )
    return task, risen(jumper.QUADRUPED, 0.0, 0.03, 0.03, 0.0)


def quadruped_bound():
    on, off, hind, fore = ("stick", "stick"), ("open", "open"), ("stick", "open"), ("open", "stick")
    task = jump(
        jumper.QUADRUPED,
        [
            Phase(on, ("fore opens",), (0.1, 0.5), 8, 5),
            Phase(hind, ("hind opens",), (0.05, 0.4), 6, 5),
            Phase(off, ("fore closes",), (0.08, 0.4), 3, 5),
            Phase(fore, ("hind closes",), (0.03, 0.4), 3, 5),
            Phase(on, (), (0.2, 0.8), 8, 5),
        ],
    )
    return task, risen(jumper.QUADRUPED, 0.0, 0.02, 0.03, 0.03, 0.02, 0.0)


def sliding_block():
    """Both corners slide 0.3 m from 1 m/s, braked by a motor, and rest."""
    slide, rest = ("slip+", "slip+"), ("stick", "stick")
    plant = block.system(actuated=True)
    task = Task(
        plant,
        [
            Phase(slide, ("left sticks", "right sticks"), (0.1, 1.5), 4),
            Phase(rest, (), (0.2, 0.2 + 1e-9), 2),
        ],
        start=[0.0, 0.05, 0.0, 1.0, 0.0, 0.0],
        conditions=[Condition("way", lambda a, b, t: b[0] - a[0], 0.3, 0.3, "m")],
        margins=Margins(force=0.5, sliding=0.0, approach=0.05),
        torque=20.0,
    )
    first, rest = [0.0, 0.05, 0.0, 1.0, 0.0, 0.0], [0.3, 0.05, 0.0, 0.0, 0.0, 0.0]
    return task, ways(first, rest, rest)


DEPTH, RISE, FOOT = 0.35, 0.05, 0.15  # of treads, m, and where the first foot stands
STAIRS = Stairs(FOOT + DEPTH * np.array([-0.5, 0.5]), RISE * np.array([-1.0, 0.0, 1.0]))


def stairs():
    """A step of the five-link walker up stairs of 5 cm, which closes up to the next tread.

    From tread to tread but one: the left foot stands on the middle one of three.
    """
    feet = [Contact(name, f"{name}_foot", STAIRS, friction=0.7) for name in five_link.CONTACTS]
    walker = contact_system(five_link.robot(), feet)
    joints = {"left_hip": "right_hip", "left_knee": "right_knee"}
    free = {"way": "root_x", "height": "root_z"}
    below, here, above = (Plane((0.0, 0.0, z), (0.0, 0.0, 1.0)) for z in STAIRS.heights)
    ground = {"left": here, "right": (below, above)}
    task = Task(
        walker,
        [Phase(five_link.LEFT_STANCE, ("right closes",), (0.3, 1.2), points=5, ground=ground)],
        symmetry=limb_symmetry(walker, joints, {"left": "right"}, free=free),
        conditions=[
            Condition("depth of treads", lambda a, b, t: b[0] - a[0], DEPTH, DEPTH, "m"),
            Condition("place of the left foot", lambda a, b, t: left_foot(a), FOOT, FOOT, "m"),
        ],
        margins=Margins(clearance=0.06, friction=0.7, release=0.05),
        joint_limits={"left_knee": (0.05, 1.5), "right_knee": (0.05, 1.5)},
        torque=100.0,
    )
    first, last = np.zeros((2, 14))
    first[:7] = [0.0, 0.7, 0.05, -0.35, 0.3, 0.05, 0.35]
    last[:7] = [DEPTH, 0.7 + RISE, 0.05, 0.05, 0.35, -0.35, 0.3]
    first[7] = last[7] = 0.5
    return task, ways(first, last)


def left_foot(state):
    """Where the left foot is along the ground, m; both links of a leg are 0.4 m long."""
    femur = state[2] + state[3]
    return state[0] - 0.4 * (ca.sin(femur) + ca.sin(femur + state[4]))


def ways(*ends):
    """A guess of straight ways between states at the ends of phases."""

    def guess(k, s):
        return (1.0 - s) * np.asarray(ends[k]) + s * np.asarray(ends[k + 1])

    return guess


def risen(legs, *heights, way=0.25):
    """A guess that goes forwards from the end of the first phase to the start of the last."""
    shares = [0.0, *np.linspace(0.0, 1.0, len(heights) - 2), 1.0]
    each = zip(shares, heights, strict=True)
    return ways(*(jumper.standing(legs, x=way * s, lifted=h) for s, h in each))
