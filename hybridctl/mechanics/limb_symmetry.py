"""The symmetry of a robot whose limbs can be exchanged, such as the legs of a walker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from hybridctl.checks import member
from hybridctl.errors import InputError
from hybridctl.hybrid.mode import ModeKey
from hybridctl.mechanics.system import ContactSystem
from hybridctl.sensitivity.symmetry import Symmetry


def limb_symmetry(
    system: ContactSystem,
    joints: Mapping[str, str],
    contacts: Mapping[str, str],
    *,
    free: Mapping[str, str] | None = None,
) -> Symmetry:
    """The symmetry that exchanges joints of one degree of freedom, and contacts.

    joints, contacts: pairs of names, each pair given once; what is in none stays. free: the joint
    along which motions may be moved, by the name of that direction, such as {"translation":
    "root_x"}. That the robot is symmetric so is not checked.

    Raises `UnknownNameError` for names the system lacks, and `InputError` where a name is in
    several pairs or a joint has several degrees of freedom.
    """
    robot = system.robot
    names = [contact.name for contact in system.contacts]
    swapped = _pairs("contacts", contacts, names)
    order = tuple(names.index(swapped.get(name, name)) for name in names)
    other = _pairs("joints", joints, robot.joint_names)
    index = {name: robot.velocity_index(name) for name in (*other, *(free or {}).values())}
    n = robot.nv
    place = np.arange(n)
    for name, partner in other.items():
        place[index[name]] = index[partner]
    matrix = np.kron(np.eye(2), np.eye(n)[place])
    ways = {way: np.eye(2 * n)[index[joint]] for way, joint in (free or {}).items()}
    inputs = np.linalg.pinv(robot.actuation) @ np.eye(n)[place] @ robot.actuation
    of_mode, of_guard = partial(_reordered, order), partial(_renamed, swapped)
    return Symmetry(matrix, inputs, of_mode, of_guard, order, ways)


def _pairs(what: str, pairs: Mapping[str, str], known: Sequence[str]) -> dict[str, str]:
    """Pairs of limbs, each in both orders."""
    found: dict[str, str] = {}
    for one, other in pairs.items():
        for name in (one, other):
            if member(f"name in {what}", name, known) in found:
                raise InputError(f"{what}: {name!r} must be in one pair only, got {dict(pairs)}")
        found |= {one: other, other: one}
    return found


def _reordered(order: tuple[int, ...], key: ModeKey) -> ModeKey:
    assert isinstance(key, tuple)
    return tuple(key[i] for i in order)


def _renamed(swapped: Mapping[str, str], name: str) -> str:
    """The name of a guard after its contact is swapped; names are "<contact> closes" and so on."""
    contact, space, what = name.rpartition(" ")
    return swapped.get(contact, contact) + space + what
