"""Values of named parameters of a contact system: read from it, and put into a copy of it.

Parameters are those of `parameters`, such as "friction:slope" or "mass:ball". A kind of contact
parameters without an owner, such as "friction", is that of all contacts in space that have it.
Where kinetic and static friction of a contact are one and "static_friction" of it is not named,
"friction" is both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, check_instance, check_vector
from hybridctl.base.errors import InputError, UnknownNameError
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.inertial_parameters import INERTIAL_KINDS
from hybridctl.mechanics.multibody.passive import Passive
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.parameter_columns import (
    CONTACT_KINDS,
    JOINT_KINDS,
    LENGTH_KINDS,
    ParameterColumns,
)
from hybridctl.mechanics.parameters import differentiate_by_parameters
from hybridctl.mechanics.system import ContactSystem, PushedSystem
from hybridctl.sensitivity.parameter_models import SystemFamily, SystemParameters

_AXES = "xyz"


@dataclass(frozen=True, eq=False)
class NamedParameters(SystemFamily):
    """Named parameters of a contact system.

    Attributes:
        system: The system, with the values that it was made with.
        names: Names (np,) of the parameters.

    Raises:
        UnknownNameError: A name is no parameter of the system.
        InputError: There is no derivative by a parameter, see `parameter_derivatives`; a parameter
            has several names, as have links of one rigid body; or wrenches push the system.
    """

    system: ContactSystem
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        check_instance("system", self.system, ContactSystem)
        if len(set(self.names)) != len(self.names) or not self.names:
            raise InputError(f"parameters must be one or more different names, got {self.names}")
        if isinstance(self.system, PushedSystem):
            raise InputError("parameters must be of a system without wrenches, got a pushed one")
        _ = self.columns  # which refuse what has no derivative
        self._check_different()

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes alone, without what follows from them."""
        return {"system": self.system, "names": self.names}

    @cached_property
    def columns(self) -> ParameterColumns:
        """Derivatives of the model's data by the parameters, with the system's values."""
        return ParameterColumns(self.system.dynamics, self.members)

    def _check_different(self) -> None:
        """Check that no number of the system has two names.

        Raises:
            InputError: One has: a contact's, alone and with all others; a body's, by two links.
        """
        links: dict[int, str] = {}
        for name in self.single_names:
            kind, _, owner = name.partition(":")
            if kind in INERTIAL_KINDS:
                first = links.setdefault(self.system.robot.body(owner).joint, owner)
                if first != owner:
                    raise InputError(
                        f"parameters must name one link of a rigid body, got {first!r}, {owner!r}"
                    )
        if len(set(self.single_names)) != len(self.single_names):
            raise InputError(f"parameters must name no contact twice, got {self.names}")

    @cached_property
    def members(self) -> tuple[tuple[str, ...], ...]:
        """The parameters "KIND:OWNER" that have the value of each name, (np,).

        Raises:
            UnknownNameError: A name without an owner is no kind of contact parameters.
        """
        return tuple(self._list_members(name) for name in self.names)

    def _list_members(self, name: str) -> tuple[str, ...]:
        """Return the parameters that have the value of one name.

        Raises:
            UnknownNameError: A name without an owner is no kind of contact parameters.
        """
        kind, colon, owner = name.partition(":")
        if not colon and kind not in CONTACT_KINDS:
            raise UnknownNameError(
                f"parameter {name!r} is unknown, expected KIND:OWNER, or one of {CONTACT_KINDS} "
                "for all contacts"
            )
        if kind not in CONTACT_KINDS:
            return (name,)
        contacts = {c.name: c for c in self.system.contacts if isinstance(c, Contact)}
        owners = [owner]
        if not colon:
            owners = [c.name for c in contacts.values() if kind == "restitution" or c.rough]
        found = [f"{kind}:{one}" for one in owners]
        if kind == "friction" and "static_friction" not in self.names:
            for one in (contacts[each] for each in owners if each in contacts):
                static = f"static_friction:{one.name}"
                if one.static_friction == one.friction and static not in self.names:
                    found.append(static)
        return tuple(found)

    @cached_property
    def single_names(self) -> tuple[str, ...]:
        """All parameters "KIND:OWNER", name by name."""
        return tuple(one for single in self.members for one in single)

    @cached_property
    def values(self) -> Array:
        """Values (np,) in the system.

        Raises:
            InputError: A name is that of several values.
        """
        found = []
        for name, single in zip(self.names, self.members, strict=True):
            each = [_read_value(self.system, one) for one in single]
            if not each or max(each) != min(each):
                raise InputError(f"parameter {name!r} must have one value, got {sorted(set(each))}")
            found.append(each[0])
        return np.array(found)

    def make(self, values: Array) -> tuple[ContactSystem, SystemParameters]:
        """Return the system with other values, and its derivatives by them; see `SystemFamily`.

        Args:
            values: Values (np,).
        """
        made = self.make_system(values)
        return made, differentiate_by_parameters(made, self.names, self.columns)

    def make_system(self, values: ArrayLike) -> ContactSystem:
        """Return the system with other values; itself for those that it has.

        Args:
            values: Values (np,).

        Raises:
            InputError: A value is out of its range, or an inertia is not physical.
        """
        numbers = check_vector("parameters", values, len(self.names))
        if np.array_equal(numbers, self.values):
            return self.system
        # What keeps its value is left as it is, and shared.
        pairs = zip(self.members, numbers.tolist(), self.values.tolist(), strict=True)
        every = {one: value for single, value, own in pairs if value != own for one in single}
        by_owner: dict[str, dict[str, float]] = {}
        others = {}
        for name, value in every.items():
            kind, _, owner = name.partition(":")
            if kind in CONTACT_KINDS or kind in LENGTH_KINDS:
                by_owner.setdefault(owner, {})[kind] = value
            else:
                others[name] = value
        old = self.system.dynamics
        contacts = [c for c in old.contacts if isinstance(c, Contact)]
        changed = [
            _change_contact(c, by_owner[c.name]) if c.name in by_owner else c for c in contacts
        ]
        dynamics = old.with_values(_change_robot(old.robot, others), changed)
        return ContactSystem(dynamics, self.system if dynamics.has_guards_of(old) else None)


def _read_value(system: ContactSystem, name: str) -> float:
    """Return the value of a parameter "KIND:OWNER"."""
    kind, _, owner = name.partition(":")
    robot = system.robot
    if kind in CONTACT_KINDS:
        (contact,) = (c for c in system.contacts if c.name == owner)
        return float(getattr(contact, kind))
    if kind in LENGTH_KINDS:
        (contact,) = (c for c in system.contacts if c.name == owner)
        assert isinstance(contact, Contact)
        what, _, axis = kind.partition("_")
        return float(contact.offset[_AXES.index(axis)] if axis else contact.radius)
    if kind in JOINT_KINDS:
        return float(getattr(robot.passive, kind)[robot.joints.velocity(name, owner)])
    body = robot.body(owner)
    mass, center, inertia = robot.inertia(body.joint)
    what, _, axes = kind.partition("_")
    if what == "mass":
        return mass
    if what == "center":
        # From the origin of the joint, along an axis of the link's frame.
        return float(body.rotation[:, _AXES.index(axes)] @ center)
    a, b = (body.rotation[:, _AXES.index(axis)] for axis in axes)
    return float(a @ inertia @ b)


def _change_contact(contact: Contact, values: dict[str, float]) -> Contact:
    """Return a contact with other values of its parameters, by their kinds."""
    coefficients = {kind: value for kind, value in values.items() if kind in CONTACT_KINDS}
    changed = contact.with_coefficients(coefficients) if coefficients else contact
    lengths: dict[str, Any] = {}
    for kind in LENGTH_KINDS:
        if kind not in values:
            continue
        what, _, axis = kind.partition("_")
        if axis:
            lengths.setdefault("offset", np.array(contact.offset))[_AXES.index(axis)] = values[kind]
        else:
            lengths[what] = values[kind]
    return replace(changed, **lengths) if lengths else changed


def _change_robot(robot: Robot, values: dict[str, float]) -> Robot:
    """Return a robot with other values of parameters of joints and links; itself for none."""
    if not values:
        return robot
    passive = {kind: getattr(robot.passive, kind).copy() for kind in JOINT_KINDS}
    inertias: dict[int, tuple[float, Array, Array]] = {}
    for name, value in values.items():
        kind, _, owner = name.partition(":")
        if kind in JOINT_KINDS:
            passive[kind][robot.joints.velocity(name, owner)] = value
        else:
            body = robot.body(owner)
            mass, center, inertia = inertias.get(body.joint) or robot.inertia(body.joint)
            what, _, axes = kind.partition("_")
            units = [body.rotation[:, _AXES.index(axis)] for axis in axes]
            if what == "mass":
                mass = value
            elif what == "center":
                center = center + (value - units[0] @ center) * units[0]
            else:
                a, b = units
                change = value - float(a @ inertia @ b)
                along = np.outer(a, b)
                inertia = inertia + change * (along if axes[0] == axes[1] else along + along.T)
            inertias[body.joint] = mass, center, inertia
    return robot.replace(inertias, Passive(*robot.passive[:2], *_in_order(passive)))


def _in_order(passive: dict[str, Array]) -> tuple[Array, Array, Array]:
    """Return stiffness, rest and damping."""
    return passive["stiffness"], passive["rest"], passive["damping"]
