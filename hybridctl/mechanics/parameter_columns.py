"""Derivatives of a model's data by named parameters, one column for each; see `parameters`."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property

import numpy as np

from hybridctl.base.checks import Array, check_member
from hybridctl.base.errors import InputError, UnknownNameError
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.contacts.stairs import PiecewiseSurface
from hybridctl.mechanics.contacts.surfaces import ExpressedSurface
from hybridctl.mechanics.inertial_parameters import (
    INERTIAL_KINDS,
    differentiate_inertia,
    make_inertia_matrix,
)
from hybridctl.mechanics.modes.dynamics import ContactDynamics
from hybridctl.mechanics.modes.phase import ContactPhase
from hybridctl.mechanics.multibody.passive import Passive
from hybridctl.mechanics.terms.contact_terms import LengthDerivatives
from hybridctl.mechanics.terms.expression_terms import ExpressionTerms

CONTACT_KINDS = ("restitution", "tangential_restitution", "friction", "static_friction")
LENGTH_KINDS = ("offset_x", "offset_y", "offset_z", "radius")
JOINT_KINDS = ("stiffness", "damping", "rest")
KINDS = (*CONTACT_KINDS, *LENGTH_KINDS, *JOINT_KINDS, *INERTIAL_KINDS)
_KINDS_OF_CONTACTS = frozenset((*CONTACT_KINDS, *LENGTH_KINDS))


class ParameterColumns:
    """Derivatives of the model's data by the parameters, one column for each.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        members: For each of the np parameters those "KIND:OWNER" that have its value. Together they
            may have a derivative that each alone has not, such as the restitution of redundant
            contacts.

    Attributes:
        count: Number np of parameters.
        friction: Derivatives (c, np) of the kinetic coefficients.
        static_friction: Derivatives (c, np) of the static coefficients.
        restitution: Derivatives (r, np) of the restitution of all rows.
        row_count: Number r of rows of all contacts.
        stabilization: Rate at which residuals of closed contacts decay, 1/s.
        has_lengths: Whether some are lengths of contacts: offsets or radii.
    """

    def __init__(self, dynamics: ContactDynamics, members: Sequence[Sequence[str]]) -> None:
        self._robot, self.count, self._dynamics = dynamics.robot, len(members), dynamics
        self.row_count, self.stabilization = len(dynamics.contact_set.owner), dynamics.stabilization
        nv, c = dynamics.robot.nv, len(dynamics.contacts)
        self._members = tuple(map(tuple, members))
        self._joints = {kind: np.zeros((nv, self.count)) for kind in JOINT_KINDS}
        self._contacts = {kind: np.zeros((c, self.count)) for kind in CONTACT_KINDS}
        self._lengths = np.zeros((len(dynamics.contact_set.places()), 4, self.count))
        for column, names in enumerate(members):
            for name in names:
                self._add(dynamics, column, name)
        normal, tangential, self.friction, self.static_friction = self._contacts.values()
        self.restitution = np.vstack([normal, tangential[dynamics.contact_set.owner[c:]]])
        self.has_lengths = bool(self._lengths.any())

    def with_values(self, dynamics: ContactDynamics) -> ParameterColumns:
        """Return the columns of dynamics with other values of the parameters.

        Args:
            dynamics: Dynamics that differ in numbers alone, see `ContactDynamics.with_values`.

        Raises:
            InputError: If there is no derivative by a parameter with these values.
        """
        if dynamics is self._dynamics:
            return self
        other = copy(self)
        other.__dict__.pop("number_changes", None)
        other.__dict__.pop("_terms", None)
        other.__dict__.pop("_bodies", None)
        other._robot, other._dynamics = dynamics.robot, dynamics
        contacts = {contact.name: contact for contact in dynamics.contacts}
        for names in self._members:
            for name in names:
                kind, _, owner = name.partition(":")
                contact = contacts.get(owner)
                if kind in _KINDS_OF_CONTACTS and isinstance(contact, Contact):
                    _check_contact(name, kind, contact)
        return other

    @cached_property
    def _bodies(self) -> Array:
        """Derivatives (10 n, np) of the inertial parameters of all n bodies."""
        found = np.zeros((10 * len(self._robot.joint_names), self.count))
        for column, names in enumerate(self._members):
            for name in names:
                kind, _, link = name.partition(":")
                if kind in INERTIAL_KINDS:
                    body = self._robot.body(link)
                    rows = slice(10 * (body.joint - 1), 10 * body.joint)
                    found[rows, column] += differentiate_inertia(body, kind)
        return found

    def _add(self, dynamics: ContactDynamics, column: int, name: str) -> None:
        """Add a parameter to a column.

        Args:
            dynamics: Dynamics of the robot with its contacts.
            column: Number of the column.
            name: The parameter.

        Raises:
            UnknownNameError: If the name is no parameter.
            InputError: If there is no derivative by it.
        """
        kind, colon, owner = str(name).partition(":")
        if not colon:
            raise UnknownNameError(f"parameter {name!r} is unknown, expected KIND:OWNER")
        check_member("kind of parameter", kind, KINDS)
        if kind in _KINDS_OF_CONTACTS:
            owners = [contact.name for contact in dynamics.contacts]
            i = owners.index(check_member(f"contact of parameter {name!r}:", owner, owners))
            contact = dynamics.contacts[i]
            if not isinstance(contact, Contact):
                raise InputError(
                    f"parameter {name!r} must be of a contact in space, not of a joint"
                )
            _check_contact(name, kind, contact)
            if kind in CONTACT_KINDS:
                self._contacts[kind][i, column] += 1.0
            else:
                turn = self._robot.frame(contact.frame).rotation
                axis = LENGTH_KINDS.index(kind)
                change = np.eye(4)[3] if axis == 3 else np.append(turn[:, axis], 0.0)
                self._lengths[i, :, column] += change
        elif kind in JOINT_KINDS:
            velocity = self._robot.joints.velocity(name, owner)
            # The springs of joints that mimic this one are in the same sum with rests of their own.
            if kind != "damping" and owner in {m.joint for m in self._robot.mimics.values()}:
                raise InputError(
                    f"parameter {name!r}: joint {owner!r} must not be mimicked by others for this"
                )
            self._joints[kind][velocity, column] += 1.0
        else:
            check_member(f"link of parameter {name!r}:", owner, self._robot.link_names)
            self._robot.body(owner)  # which refuses links of the world

    @cached_property
    def number_changes(self) -> Array | None:
        """Derivatives of the numbers of generated functions by the np parameters.

        None where a parameter changes a number that is zero: these functions lack it. They are kept
        for dynamics with other values: few of them depend on these.
        """
        data = self._bodies, self._lengths, *self._joints.values(), *self._contacts.values()
        key = tuple(array.tobytes() for array in data)
        last_key, changes = self._dynamics.structure.number_changes
        if key != last_key:
            changes = self._compute_number_changes()
            self._dynamics.structure.number_changes = key, changes
        return changes

    def _compute_number_changes(self) -> Array | None:
        """Return `number_changes`."""
        constants = self._dynamics.mode_constants
        zero = constants.make_zero()
        found = []
        for j in range(self.count):
            bodies = tuple(
                body._replace(
                    mass=float(pi[0]), moment=pi[1:4], inertia=make_inertia_matrix(pi[4:])
                )
                for body, pi in zip(
                    zero.tree.bodies, self._bodies[:, j].reshape(-1, 10), strict=True
                )
            )
            friction = np.column_stack((self.friction[:, j], self.static_friction[:, j]))
            stiffness, damping, rest = (self._joints[kind][:, j] for kind in JOINT_KINDS)
            changed = zero._replace(
                tree=zero.tree._replace(bodies=bodies),
                springs=Passive(*zero.springs[:2], stiffness, rest, damping),
                places=tuple(
                    place._replace(point=own[:3], radius=own[3])
                    for place, own in zip(zero.places, self._lengths[:, :, j], strict=True)
                ),
                friction=friction,
            )
            found.append(constants.collect_changes(changed))
        known = [one for one in found if one is not None]
        return np.column_stack(known) if len(known) == self.count else None

    def torque(self, q: Array, v: Array, a: Array) -> Array:
        """Return the derivative D_p (M a + h), (nv, np).

        Args:
            q: Configuration (nq,).
            v: Velocity (nv,).
            a: Acceleration (nv,).
        """
        springs, joints = self._robot.passive, self._joints
        total: Array = springs.stretch(q)[:, None] * joints["stiffness"]
        total += v[:, None] * joints["damping"] - springs.stiffness[:, None] * joints["rest"]
        if self._bodies.any():
            total += self._robot.regressor(q, v, a) @ self._bodies
        return total

    def momentum(self, q: Array, dv: Array) -> Array:
        """Return the derivative D_p (M dv), (nv, np).

        Args:
            q: Configuration (nq,).
            dv: Change (nv,) of the velocity.
        """
        if not self._bodies.any():
            return np.zeros((len(dv), self.count))
        return np.asarray(self._robot.impulse_regressor(q, dv) @ self._bodies)

    def differentiate_terms(self, q: Array, v: Array, a: Array, forces: Array) -> LengthDerivatives:
        """Return the derivatives of terms by the np parameters, at fixed a and forces.

        Args:
            q: Configuration (nq,).
            v: Velocity (nv,).
            a: Acceleration (nv,).
            forces: Forces (r,) along the rows of all contacts.
        """
        if not self.has_lengths:
            sizes = len(v), len(forces), len(forces), len(self.friction)
            return LengthDerivatives(*(np.zeros((size, self.count)) for size in sizes))
        by_lengths = self._terms.length_derivatives(q, v, a, forces)
        lengths = self._lengths.reshape(-1, self.count)
        return LengthDerivatives(*(each @ lengths for each in by_lengths))

    @cached_property
    def _terms(self) -> ExpressionTerms:
        """Expressions of the terms, which have derivatives by lengths."""
        for known in (self._dynamics.terms, self._dynamics.kernel_terms):
            if isinstance(known, ExpressionTerms):
                return known
        return ExpressionTerms(self._robot, self._dynamics.contact_set)

    def friction_per_normal(self, phase: ContactPhase, directions: dict[int, Array]) -> list[Array]:
        """Return the derivative (t, np) of friction per normal force, for each sliding contact.

        Args:
            phase: The states of the contacts.
            directions: Directions of those that slide in a surface, by their number.
        """
        result = []
        for slide in phase.sliding:
            s = directions.get(slide.contact, np.array([slide.sign]))
            result.append(np.outer(-s, self.friction[phase.closed[slide.contact]]))
        return result


def _check_contact(name: str, kind: str, contact: Contact) -> None:
    """Check that there is a derivative by a parameter of a contact.

    Args:
        name: The parameter, for messages.
        kind: One of `CONTACT_KINDS` or `LENGTH_KINDS`.
        contact: The contact.

    Raises:
        InputError: If there is none.
    """
    if kind in LENGTH_KINDS:
        surface = contact.surface
        if not isinstance(surface, ExpressedSurface) or isinstance(surface, PiecewiseSurface):
            raise InputError(
                f"parameter {name!r}: the surface of contact {contact.name!r} must be of one "
                f"piece, with a method `expression`, as a Plane has, got {type(surface).__name__}"
            )
        if kind == "radius" and contact.radius == 0.0:
            raise InputError(f"parameter {name!r}: contact {contact.name!r} must have a radius")
        return
    if kind == "restitution" and contact.restitution == 0.0:
        raise InputError(
            f"parameter {name!r}: contact {contact.name!r} must have a restitution above 0, as "
            "with the least bounce it would not stay closed"
        )
    if kind != "restitution" and not contact.rough:
        raise InputError(f"parameter {name!r}: contact {contact.name!r} must have friction above 0")
