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

_SIGMAS = 3.0
_THINNEST = 1e-5  # m, of an ellipsoid that is drawn


@dataclass(frozen=True, eq=False)
class Ellipsoid:
    """Centre (3,) in m, half axes (3,) in m, and their directions as columns (3, 3)."""

    centre: Array
    half_axes: Array
    axes: Array


class Figure:
    """A robot as lines between its joints, and points: those of contacts or of all joints."""

    def __init__(self, robot: Robot, contacts: Sequence[AnyContact] = ()) -> None:
        self.robot = robot
        self._joints = range(len(robot.joint_names) + 1)
        self._parents = [0, *(body.parent + 1 for body in robot.tree().bodies)]
        self._points = [
            (frame.joint, frame.position + frame.rotation @ np.asarray(contact.offset))
            for contact in contacts
            if isinstance(contact, Contact) and (frame := robot.frame(contact.frame)).joint
        ] or [(joint, np.zeros(3)) for joint in self._joints[1:]]

    def bones(self, x: Array) -> Array:
        """Return lines (n, 2, 3) between neighbouring joints, and from joints to points."""
        poses = self.robot.poses(x[: self.robot.nq], self._joints)
        places = poses[:, :3, 3]
        between = [(places[p], places[j]) for j, p in enumerate(self._parents) if p]
        ends = [(places[j], (poses[j] @ np.append(p, 1.0))[:3]) for j, p in self._points]
        return np.array([*between, *ends])

    def ellipsoids(self, x: Array, covariance: Array) -> list[Ellipsoid]:
        r"""Return three standard deviations of the points, for a state x and its covariance.

        To first order: :math:`J P_{qq} J^T` with J the Jacobian of a point.
        """
        nq, nv = self.robot.nq, self.robot.nv
        motion = self.robot.motion(x[:nq], np.zeros(nv), self._joints)
        found = []
        for joint, place in self._points:
            point = (motion.poses[joint] @ np.append(place, 1.0))[:3]
            columns = motion.jacobian * self.robot.supporting(joint)
            columns = self.robot.reduce_columns(columns)
            jacobian = columns[:3] + np.cross(columns[3:].T, point).T
            spread, axes = np.linalg.eigh(jacobian @ covariance[:nv, :nv] @ jacobian.T)
            half_axes = np.maximum(_SIGMAS * np.sqrt(np.maximum(spread, 0.0)), _THINNEST)
            axes[:, 0] *= np.sign(np.linalg.det(axes))
            found.append(Ellipsoid(point, half_axes, axes))
        return found


def world_surfaces(contacts: Sequence[AnyContact]) -> list[object]:
    """Return the surfaces that are fixed in the world, each once."""
    found: list[object] = []
    for contact in contacts:
        if not isinstance(contact, Contact):
            continue  # of a joint
        if contact.body == WORLD and contact.surface not in found:
            found.append(contact.surface)
    return found


def contact_forces(system: HybridSystem, arc: Arc, t: float) -> tuple[Array, Array]:
    """Points of all contacts (c, 3) in m and the forces there (c, 3) in N, at time t of an arc.

    system: one with a `mechanism`. Forces are zero where its mode does not tell them.
    """
    x, mechanism = arc(t), system.mechanism
    c = len(mechanism.contacts)
    found = {"normal_force": np.zeros(c), "friction_force": np.zeros((c, 2))}
    found |= compute_outputs(system.mode(arc.mode), arc, t)
    places, forces = mechanism.dynamics.contact_set.in_world(
        x[: mechanism.robot.nq], found["normal_force"], found["friction_force"]
    )
    return places, forces


def event_impulses(system: ContactSystem, event: Event) -> list[dict[str, Any]]:
    """Return the impulses of an event, with friction where its reset reports that.

    For each contact that takes part: time in s, contact, place (3,) in m, value (3,) in N s, and
    its size.
    """
    if not np.any(event.impulses):
        return []
    impact = event.report
    friction = np.zeros((len(event.impulses), 2))
    if isinstance(impact, ImpactResult):
        friction = impact.friction_impulses
    q = event.state_before[: system.robot.nq]
    places, values = system.dynamics.contact_set.in_world(q, event.impulses, friction)
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
