"""A second reader of URDF: the tree from `xml.etree`, its dynamics from sums over the links.

It shares no code with the library and with Pinocchio. Spatial vectors are (linear, angular), in the
frame of the link and about its origin.
"""

import re
from dataclasses import dataclass
from xml.etree import ElementTree

import numpy as np
from scipy.linalg import expm

STATES = 5
GRAVITY = np.array([0.0, 0.0, -9.81])


def elements_of(text):
    """The root of a URDF without comments, and without namespaces, which may be undeclared."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL).lstrip()
    text = re.sub(r'\sxmlns(:\w+)?\s*=\s*"[^"]*"', "", text)
    return ElementTree.fromstring(re.sub(r"(</?|\s)\w+:(?=\w+[\s=/>])", r"\1", text))


def numbers(element, name, default):
    value = None if element is None else element.get(name)
    return np.array([float(x) for x in (default if value is None else value).split()])


def cross(a):
    return np.array([[0.0, -a[2], a[1]], [a[2], 0.0, -a[0]], [-a[1], a[0], 0.0]])


def pose_of(origin):
    """The pose (4, 4) of an <origin>: turned about the fixed axes x, y, z in this order."""
    roll, pitch, yaw = numbers(origin, "rpy", "0 0 0")
    pose = np.eye(4)
    pose[:3, 3] = numbers(origin, "xyz", "0 0 0")
    turns = (cross([0, 0, yaw]), cross([0, pitch, 0]), cross([roll, 0, 0]))
    pose[:3, :3] = np.linalg.multi_dot([expm(turn) for turn in turns])
    return pose


def inertia_of(link):
    """The spatial inertia (6, 6) of a link in its own frame."""
    inertial = link.find("inertial")
    if inertial is None:
        return np.zeros((6, 6))
    mass, moments = numbers(inertial.find("mass"), "value", "")[0], inertial.find("inertia")
    xx, xy, xz, yy, yz, zz = (
        float(moments.get(name)) for name in ("ixx", "ixy", "ixz", "iyy", "iyz", "izz")
    )
    pose = pose_of(inertial.find("origin"))
    turn, arm = pose[:3, :3], cross(pose[:3, 3])
    at_centre = turn @ [[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]] @ turn.T
    return np.block([[mass * np.eye(3), -mass * arm], [mass * arm, at_centre - mass * arm @ arm]])


def subspace_of(joint):
    """What the velocities of a joint do to its child: (6, n), constant in the child's frame."""
    kind = joint.get("type")
    if kind == "fixed":
        return np.zeros((6, 0))
    if kind == "floating":
        return np.eye(6)
    axis = numbers(joint.find("axis"), "xyz", "1 0 0")
    axis /= np.linalg.norm(axis)
    zero = np.zeros(3)
    if kind == "prismatic":
        return np.concatenate((axis, zero))[:, None]
    about = np.concatenate((zero, axis))[:, None]
    if kind != "planar":
        return about
    # The shortest turn from z to the axis, by Rodrigues' formula; about x where they are opposed.
    turn = np.diag([1.0, -1.0, -1.0])
    if axis[2] > -1.0 + 1e-12:
        k = cross(np.cross([0.0, 0.0, 1.0], axis))
        turn = np.eye(3) + k + k @ k / (1.0 + axis[2])
    return np.hstack((np.vstack((turn[:, :2], np.zeros((3, 2)))), about))


@dataclass
class Joint:
    """A joint: its element, its parent's index, its place there, subspace and velocities."""

    name: str
    link: str
    parent: int
    place: np.ndarray
    subspace: np.ndarray
    columns: list
    mimic: ElementTree.Element | None
    damping: float


class UrdfReader:
    """The links in an order from the root to the ends; joints with <mimic> move on their own."""

    def __init__(self, root, floating):
        links = {link.get("name"): link for link in root.findall("link")}
        joints = root.findall("joint")
        children = {joint.find("child").get("link") for joint in joints}
        (first,) = [name for name in links if name not in children]
        base = np.eye(6) if floating else np.zeros((6, 0))
        columns = list(range(base.shape[1]))
        self.joints = [Joint("root_joint", first, -1, np.eye(4), base, columns, None, 0.0)]
        self.nv = len(columns)
        for k in range(len(links)):
            for joint in joints:
                if joint.find("parent").get("link") == self.joints[k].link:
                    subspace = subspace_of(joint)
                    columns = list(range(self.nv, self.nv + subspace.shape[1]))
                    self.nv += len(columns)
                    damping = numbers(joint.find("dynamics"), "damping", "0")[0]
                    child, place = joint.find("child").get("link"), pose_of(joint.find("origin"))
                    found = (child, k, place, subspace, columns, joint.find("mimic"), damping)
                    self.joints.append(Joint(joint.get("name"), *found))
        self.inertias = [inertia_of(links[joint.link]) for joint in self.joints]

    def poses(self, dq):
        """The poses of the links, moved by dq (nv,) from where all joints are at zero."""
        poses = []
        for joint in self.joints:
            twist = joint.subspace @ dq[joint.columns]
            screw = np.zeros((4, 4))
            screw[:3, :3], screw[:3, 3] = cross(twist[3:]), twist[:3]
            moved = joint.place @ expm(screw) if twist.any() else joint.place
            poses.append(moved if joint.parent < 0 else poses[joint.parent] @ moved)
        return poses

    def dynamics(self, dq, v):
        """M (nv, nv), the bias M dv/dt + bias = tau with damping, and the poses of the links."""
        poses = self.poses(dq)
        mass, bias = np.zeros((self.nv, self.nv)), np.zeros(self.nv)
        jacobians, rates = [], []  # of the links, and their accelerations at constant v
        for joint, pose, inertia in zip(self.joints, poses, self.inertias, strict=True):
            if joint.parent < 0:
                # Gravity is an acceleration of the base, here in the frame of the root link.
                rate = np.concatenate((-pose[:3, :3].T @ GRAVITY, np.zeros(3)))
                jacobian = np.zeros((6, self.nv))
            else:
                relative = np.linalg.inv(poses[joint.parent]) @ pose
                turn, place = relative[:3, :3].T, relative[:3, 3]
                step = np.block([[turn, -turn @ cross(place)], [np.zeros((3, 3)), turn]])
                jacobian, rate = step @ jacobians[joint.parent], step @ rates[joint.parent]
            jacobian[:, joint.columns] += joint.subspace
            linear, angular = np.split(jacobian @ v, 2)
            zero = np.zeros((3, 3))
            turning = np.block([[cross(angular), cross(linear)], [zero, cross(angular)]])
            rate = rate + turning @ joint.subspace @ v[joint.columns]
            force = inertia @ rate - turning.T @ inertia @ jacobian @ v
            mass += jacobian.T @ inertia @ jacobian
            bias += jacobian.T @ force
            bias[joint.columns] += joint.damping * v[joint.columns]
            jacobians.append(jacobian)
            rates.append(rate)
        return mass, bias, poses


def moved_coordinates(robot, reader):
    """How all joints of a file follow those of the robot: G (reader.nv, nv) and c with G dq + c.

    Where the robot has fewer velocities, its joints with <mimic> follow the ones that they name.
    """
    by_name = {joint.name: joint for joint in reader.joints}

    def rows(joint):
        result = np.zeros((len(joint.columns), robot.nv + 1))  # the last column is c
        if joint.mimic is None or robot.nv == reader.nv:
            result[:, robot.velocities(joint.name)] = np.eye(len(joint.columns))
            return result
        result += float(joint.mimic.get("multiplier", "1")) * rows(
            by_name[joint.mimic.get("joint")]
        )
        result[:, -1] += float(joint.mimic.get("offset", "0"))
        return result

    moving = [joint for joint in reader.joints if joint.columns]
    full = np.vstack([np.zeros((0, robot.nv + 1)), *map(rows, moving)])
    return full[:, :-1], full[:, -1]


def relative_difference(robot, q, v, reference):
    """The largest relative difference of M, bias, gravity forces and frames from a reference.

    reference: M (nv, nv), bias, gravity forces (nv,), and poses (4, 4) of the links by name.
    """
    mass, bias, gravity, poses = reference
    scale = np.sqrt(np.outer(np.diag(mass), np.diag(mass)))
    forces = ((robot.bias(q, v), bias), (robot.bias(q, np.zeros(robot.nv)), gravity))
    found = [float((np.abs(robot.mass_matrix(q) - mass) / scale).max())]
    for ours, theirs in forces:
        found.append(float(np.abs(ours - theirs).max() / max(np.abs(theirs).max(), mass.max())))
    size = max(1.0, *(np.abs(pose[:3, 3]).max() for pose in poses.values()))
    for link, pose in poses.items():
        frame = robot.frame(link)
        ours = robot.poses(q, [frame.joint])[0] if frame.joint else np.eye(4)
        place = np.eye(4)
        place[:3, :3], place[:3, 3] = frame.rotation, frame.position
        found.append(float(np.abs(ours @ place - pose).max()) / size)
    return max(found)


def difference_from_reader(robot, root, floating, rng):
    """The largest difference from `UrdfReader` at five states."""
    reader, found = UrdfReader(root, floating), []
    follow, shift = moved_coordinates(robot, reader)
    for _ in range(STATES):
        dq, v = 0.6 * rng.normal(size=robot.nv), rng.normal(size=robot.nv)
        q = robot.integrate(robot.neutral(), dq)
        mass, bias, poses = reader.dynamics(follow @ dq + shift, follow @ v)
        gravity = reader.dynamics(follow @ dq + shift, 0.0 * follow @ v)[1]
        places = {joint.link: pose for joint, pose in zip(reader.joints, poses, strict=True)}
        reference = follow.T @ mass @ follow, follow.T @ bias, follow.T @ gravity, places
        found.append(relative_difference(robot, q, v, reference))
    return max(found)
