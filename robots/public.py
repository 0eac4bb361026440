"""Public robots that stand on a floor or swing against a wall, held by springs at their joints.

Descriptions are those of the package `example-robot-data` (`pip install example-robot-data`):
quadrupeds on four points, humanoids on the corners of two flat soles, arms with one point at
their tool. Joints that bear the weight have the stiffness given here, chosen so that the body
bounces at 5 Hz to 10 Hz; the others are held at 5 Hz by their own inertia.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from hybridctl.base.checks import Array, check_member
from hybridctl.base.files import find_packaged_file
from hybridctl.hybrid.system import HybridSystem
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.contacts.surfaces import Plane
from hybridctl.mechanics.multibody.robot import Robot, Root
from hybridctl.mechanics.system import contact_system

_PACKAGE = "example-robot-data"
_POINT = ((0.0, 0.0, 0.0),)
_FLOOR = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
_HOLD = 30.0  # rad/s
_DAMPING = 0.7  # of critical


@dataclass(frozen=True)
class PublicRobot:
    """The description of a robot's files, and how it stands.

    Attributes:
        file: The file, within the robots of the package.
        posture: Angles of joints that are not at zero, rad; springs pull to it.
        tips: Frames that touch.
        offsets: Points of each of them that touch (m).
        legs: Parts of the names of joints that have springs.
        bearing: Stiffness of these springs, N m/rad.
        lag: Damping of these joints relative to their stiffness, s.
        swing: For an arm on a fixed base, by how much joints are turned back at the start, rad.
        wall: Place along x of the wall that such an arm meets, m.
        friction: Coefficient of friction of the contacts.
    """

    file: str
    posture: Mapping[str, float]
    tips: tuple[str, ...]
    offsets: tuple[tuple[float, float, float], ...] = _POINT
    legs: tuple[str, ...] = ()
    bearing: float = 0.0
    lag: float = 0.03
    swing: Mapping[str, float] = field(default_factory=dict)
    wall: float = 0.0
    friction: float = 0.7

    @property
    def stands(self) -> bool:
        """Whether the robot has a floating base and stands on the floor."""
        return not self.swing


def _sole(front: float, back: float, side: float) -> tuple[tuple[float, float, float], ...]:
    """The corners of a sole in its frame, m."""
    return tuple((x, y, 0.0) for x, y in product((front, -back), (side, -side)))


def _legs(names: str, **angles: float) -> dict[str, float]:
    """Angles of the same joints in each of the legs."""
    return {joint.format(leg): a for leg in names.split() for joint, a in angles.items()}


def _unitree(name: str, bearing: float) -> PublicRobot:
    """A quadruped of one family."""
    return PublicRobot(
        f"{name}_description/urdf/{name}.urdf",
        _legs("FL FR RL RR", **{"{}_thigh_joint": 0.8, "{}_calf_joint": -1.6}),
        ("FL_foot", "FR_foot", "RL_foot", "RR_foot"),
        legs=("hip", "thigh", "calf"),
        bearing=bearing,
    )


MODELS = {
    "solo12": PublicRobot(
        "solo_description/robots/solo12.urdf",
        {
            **_legs("FL FR", **{"{}_HFE": 0.8, "{}_KFE": -1.6}),
            **_legs("HL HR", **{"{}_HFE": -0.8, "{}_KFE": 1.6}),
        },
        ("FL_FOOT", "FR_FOOT", "HL_FOOT", "HR_FOOT"),
        legs=("HAA", "HFE", "KFE"),
        bearing=13.0,
    ),
    "anymal": PublicRobot(
        "anymal_b_simple_description/robots/anymal.urdf",
        {
            **_legs("LF RF", **{"{}_HFE": 0.7, "{}_KFE": -1.4}),
            **_legs("LH RH", **{"{}_HFE": -0.7, "{}_KFE": 1.4}),
        },
        ("LF_FOOT", "RF_FOOT", "LH_FOOT", "RH_FOOT"),
        legs=("HAA", "HFE", "KFE"),
        bearing=500.0,
    ),
    "go1": _unitree("go1", 120.0),
    "go2": _unitree("go2", 120.0),
    "a1": _unitree("a1", 120.0),
    "b1": _unitree("b1", 900.0),
    "hyq": PublicRobot(
        "hyq_description/robots/hyq_no_sensors.urdf",
        {
            **_legs("lf rf", **{"{}_hfe_joint": 0.75, "{}_kfe_joint": -1.5}),
            **_legs("lh rh", **{"{}_hfe_joint": -0.75, "{}_kfe_joint": 1.5}),
        },
        ("lf_foot", "rf_foot", "lh_foot", "rh_foot"),
        legs=("haa", "hfe", "kfe"),
        bearing=1500.0,
    ),
    "bolt": PublicRobot(
        "bolt_description/robots/bolt.urdf",
        _legs("FL FR", **{"{}_HFE": 0.8, "{}_KFE": -1.6}),
        ("FL_FOOT", "FR_FOOT"),
        legs=("HAA", "HFE", "KFE"),
        bearing=13.0,
    ),
    "talos": PublicRobot(
        "talos_data/robots/talos_reduced.urdf",
        _legs(
            "left right",
            **{"leg_{}_3_joint": -0.4, "leg_{}_4_joint": 0.8, "leg_{}_5_joint": -0.4},
        ),
        ("left_sole_link", "right_sole_link"),
        _sole(0.1, 0.1, 0.06),
        legs=("leg_",),
        bearing=4000.0,
        lag=0.02,
    ),
    "icub": PublicRobot(
        "icub_description/robots/icub_reduced.urdf",
        _legs("l r", **{"{}_hip_pitch": 0.3, "{}_knee": -0.6, "{}_ankle_pitch": -0.3}),
        ("l_sole", "r_sole"),
        _sole(0.1, 0.05, 0.03),
        legs=("hip", "knee", "ankle"),
        bearing=800.0,
        lag=0.02,
    ),
    "ur5": PublicRobot(
        "ur_description/urdf/ur5_robot.urdf",
        {"shoulder_lift_joint": -1.2, "elbow_joint": 1.6, "wrist_1_joint": -0.4},
        ("tool0",),
        swing={"shoulder_lift_joint": -0.6, "elbow_joint": 0.3},
        wall=0.5,
        friction=0.3,
    ),
    "panda": PublicRobot(
        "panda_description/urdf/panda.urdf",
        {"panda_joint2": -0.3, "panda_joint4": -2.0, "panda_joint6": 1.8},
        ("panda_hand_tcp",),
        swing={"panda_joint2": -0.4},
        wall=0.47,
        friction=0.3,
    ),
}


def urdf(name: str) -> str:
    """The text of the description of a robot of `MODELS`.

    Raises `FileFormatError` where the package is not installed or does not have it.
    """
    file = MODELS[check_member("name", name, MODELS)].file
    return find_packaged_file(_PACKAGE, file).read_text(encoding="utf-8")


def limp(name: str) -> Robot:
    """A robot of `MODELS` as its description has it, without motors, springs and dry friction."""
    text = urdf(name)  # first: it checks the name
    root: Root = "floating" if MODELS[name].stands else "fixed"
    joints = Robot.from_urdf(text, root=root).joints
    none = {joint: 0.0 for joint, places in joints.items() if places is not None}
    return Robot.from_urdf(text, root=root, actuated=(), friction=none)


def robot(name: str) -> Robot:
    """A robot of `MODELS`, without motors, with springs that pull its joints to its posture.

    Springs and dampers stand for controlled motors, whose dry friction is left out.
    """
    text = urdf(name)
    model = MODELS[name]
    root: Root = "floating" if model.stands else "fixed"
    bare = Robot.from_urdf(text, root=root)
    inertia = bare.mass_matrix(bare.posture(model.posture)).diagonal()
    stiffness, damping = {}, {}
    for joint in (name for name, places in bare.joints.items() if places is not None):
        if any(part in joint for part in model.legs):
            stiffness[joint] = model.bearing
            damping[joint] = model.lag * model.bearing
        else:
            own = float(inertia[bare.velocity_index(joint)])
            stiffness[joint] = own * _HOLD**2
            damping[joint] = 2.0 * _DAMPING * own * _HOLD
    return Robot.from_urdf(
        text,
        root=root,
        actuated=(),
        stiffness=stiffness,
        rest=model.posture,
        damping=damping,
        friction=dict.fromkeys(stiffness, 0.0),
    )


def robot_with_motors(name: str) -> Robot:
    """Return a robot on a floating base with a motor at each joint, without joint friction.

    Args:
        name: A name of `MODELS` of a robot that stands.
    """
    text = urdf(name)
    joints = Robot.from_urdf(text, root="floating").joints
    none = {joint: 0.0 for joint, places in joints.items() if places is not None}
    return Robot.from_urdf(text, root="floating", friction=none)


def contacts(name: str) -> tuple[Contact, ...]:
    """The contacts with the floor z = 0 or the wall, named by frame and number of the corner."""
    model = MODELS[check_member("name", name, MODELS)]
    surface = _FLOOR if model.stands else Plane((model.wall, 0.0, 0.0), (-1.0, 0.0, 0.0))
    return tuple(
        Contact(f"{tip} {i}", tip, surface, offset=offset, friction=model.friction)
        for tip in model.tips
        for i, offset in enumerate(model.offsets)
    )


def system(name: str) -> HybridSystem:
    """The hybrid system."""
    return contact_system(robot(name), contacts(name))


def start(name: str, height: float = 0.01, roll: float = 0.0, pitch: float = 0.0) -> Array:
    """A state (q, v) at rest: in its posture, tilted by roll (rad) and then pitch, `height` (m).

    height: of the lowest contact above the floor. Arms start swung back.
    """
    model, machine = MODELS[check_member("name", name, MODELS)], robot(name)
    angles = dict(model.posture)
    for joint, angle in model.swing.items():
        angles[joint] = angles.get(joint, 0.0) + angle
    q = machine.posture(angles)
    x = np.concatenate([q, np.zeros(machine.nv)])
    if not model.stands:
        return x
    half = 0.5 * np.array([roll, pitch])
    (c_r, c_p), (s_r, s_p) = np.cos(half), np.sin(half)
    x[3:7] = s_r * c_p, c_r * s_p, -s_r * s_p, c_r * c_p
    flying = contact_system(machine, contacts(name)).mode(("open",) * len(contacts(name)))
    assert flying.outputs is not None
    x[2] = height - float(flying.outputs(0.0, x, np.zeros(0))["gap"].min())
    return x
