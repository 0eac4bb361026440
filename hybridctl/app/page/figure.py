"""The parts of a robot at a state: bones, points and how well those are known, contact forces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.hybrid.arc import Arc, compute_outputs
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event
from hybridctl.mechanics.contacts.contact import WORLD, Contact
from hybridctl.mechanics.contacts.joint_contacts import AnyContact
from hybridctl.mechanics.impacts.impact import ImpactResult
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.system import ContactSystem

_DEVIATIONS = 3.0  # standard deviations from the centre of an ellipsoid to its surface
_MIN_HALF_AXIS = 1e-5  # m; an ellipsoid without volume has no triangles to draw


@dataclass(frozen=True, eq=False)
class Ellipsoid:
    """An ellipsoid in the world.

    Attributes:
        centre: Centre (3,), m.
        half_axes: Lengths (3,) from the centre to the surface, m.
        axes: Directions of the half axes as columns (3, 3), a rotation.
    """

    centre: Array
    half_axes: Array
    axes: Array


class Figure:
    """A robot as lines between its joints, and points: those of contacts or of all joints.

    Args:
        robot: The robot.
        contacts: Its contacts. Those of its bodies become the points; if there are none, the
            origins of all joints do.
    """

    def __init__(self, robot: Robot, contacts: Sequence[AnyContact] = ()) -> None:
        self.robot = robot
        self._joints = range(len(robot.joint_names) + 1)  # the first is the world
        self._parents = [0, *(body.parent + 1 for body in robot.tree().bodies)]
        self._points = [
            (frame.joint, frame.position + frame.rotation @ np.asarray(contact.offset))
            for contact in contacts
            if isinstance(contact, Contact) and (frame := robot.frame(contact.frame)).joint
        ] or [(joint, np.zeros(3)) for joint in self._joints[1:]]

    def find_bones(self, x: Array) -> list[Array]:
        """Return lines (2, 3) in m between neighbouring joints, and from joints to points.

        Args:
            x: State, which begins with the configuration (nq,).
        """
        poses = self.robot.poses(x[: self.robot.nq], self._joints)
        places = poses[:, :3, 3]
        between = [(places[p], places[j]) for j, p in enumerate(self._parents) if p]
        ends = [(places[j], (poses[j] @ np.append(p, 1.0))[:3]) for j, p in self._points]
        return [np.array(bone) for bone in (*between, *ends)]

    def find_ellipsoids(self, x: Array, covariance: Array) -> list[Ellipsoid]:
        r"""Return ellipsoids of three standard deviations around the points.

        To first order the covariance of a point is :math:`J P_{qq} J^T`, with J its Jacobian.

        Args:
            x: State, which begins with the configuration (nq,).
            covariance: Covariance of the state in its tangent space; its first nv rows and columns
                are those of the configuration.
        """
        nq, nv = self.robot.nq, self.robot.nv
        motion = self.robot.motion(x[:nq], np.zeros(nv), self._joints)
        found = []
        for joint, place in self._points:
            point = (motion.poses[joint] @ np.append(place, 1.0))[:3]
            columns = motion.jacobian * self.robot.supporting(joint)
            columns = self.robot.reduce_columns(columns)
            jacobian = columns[:3] + np.cross(columns[3:].T, point).T
            variances, axes = np.linalg.eigh(jacobian @ covariance[:nv, :nv] @ jacobian.T)
            # Rounding can make a variance of zero negative.
            half_axes = _DEVIATIONS * np.sqrt(np.maximum(variances, 0.0))
            axes[:, 0] *= np.sign(np.linalg.det(axes))
            found.append(Ellipsoid(point, np.maximum(half_axes, _MIN_HALF_AXIS), axes))
        return found


def list_world_surfaces(contacts: Sequence[AnyContact]) -> list[object]:
    """Return the surfaces that are fixed in the world, each once."""
    found: list[object] = []
    for contact in contacts:
        if not isinstance(contact, Contact):
            continue  # of a joint
        if contact.body == WORLD and contact.surface not in found:
            found.append(contact.surface)
    return found


def compute_contact_forces(system: HybridSystem, arc: Arc, t: float) -> tuple[Array, Array]:
    """Return the points of all contacts and the forces there.

    Args:
        system: A system with a `mechanism`, whose contacts these are.
        arc: An arc of a run of this system.
        t: Time in the arc, s.

    Returns:
        Points (c, 3) in m and forces (c, 3) in N on the robot, in the world. Forces that the mode
        has no outputs of are zero, as where all contacts are open.
    """
    x, mechanism = arc(t), system.mechanism
    c = len(mechanism.contacts)
    found = {"normal_force": np.zeros(c), "friction_force": np.zeros((c, 2))}
    found |= compute_outputs(system.mode(arc.mode), arc, t)
    places, forces = mechanism.dynamics.contact_set.express_in_world(
        x[: mechanism.robot.nq], found["normal_force"], found["friction_force"]
    )
    return places, forces


def compute_impulses(system: ContactSystem, event: Event) -> list[dict[str, Any]]:
    """Return the impulses of an event, with friction where its reset reports that.

    Args:
        system: The system of the robot.
        event: An event of a run of this system.

    Returns:
        For each contact that takes part: "time" in s, "contact" (its name), "place" (3,) in m,
        "value" (3,) in N s on the robot, in the world, and "size", its norm.
    """
    if not np.any(event.impulses):
        return []
    impact = event.report
    friction = np.zeros((len(event.impulses), 2))
    if isinstance(impact, ImpactResult):
        friction = impact.friction_impulses
    q = event.state_before[: system.robot.nq]
    places, values = system.dynamics.contact_set.express_in_world(q, event.impulses, friction)
    return [
        {
            "time": event.time,
            "contact": system.contacts[i].name,
            "place": places[i],
            "value": values[i],
            "size": float(np.linalg.norm(values[i])),
        }
        for i in np.flatnonzero(event.impulses).tolist()
    ]
