"""What joints have besides motors: springs, dampers, and the rotors of geared motors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridctl.checks import Array, instance, mapping, member, number
from hybridctl.errors import InputError


class JointIndices(dict[str, tuple[int, int] | None]):
    """The indices of each joint's coordinate and velocity; None for several of them."""

    def single(self, what: str, name: str) -> tuple[int, int]:
        """The indices of a joint of one degree of freedom; `what` names the argument in errors.

        Raises `UnknownNameError` for what is no joint, `InputError` for one of several.
        """
        indices = self[member("joint", name, self)]
        if indices is None:
            raise InputError(f"{what}: joint {name!r} must have one degree of freedom")
        return indices


class Passive(NamedTuple):
    r"""The torques :math:`k (q - q_{rest}) + d v` that resist motion, zero where there are none.

    Of each velocity (nv,): the coordinate that it changes, stiffness, rest and damping in N m/rad,
    rad and N m s/rad, or their linear counterparts.
    """

    coordinate: NDArray[np.intp]
    stiffness: Array
    rest: Array
    damping: Array

    @staticmethod
    def of(
        joints: JointIndices,
        default: Array,
        stiffness: Mapping[str, float] | None,
        rest: Mapping[str, float] | None,
        damping: Mapping[str, float] | None,
    ) -> Passive:
        """Return springs and dampers that are given by names of joints.

        Args:
            joints: Of the robot.
            default: Damping (nv,) where none is given.
            stiffness: In N m/rad or N/m, at least 0; None for no springs.
            rest: Positions without torque, in rad or m, 0 if left out.
            damping: In N m s/rad or N s/m, at least 0.

        Raises:
            UnknownNameError: A name is no joint.
            InputError: A joint has several degrees of freedom, a value is out of range, or what
                is given is no mapping.
        """
        coordinate = np.zeros(len(default), dtype=np.intp)
        for indices in filter(None, joints.values()):
            coordinate[indices[1]] = indices[0]
        found = [np.zeros(len(default)), np.zeros(len(default)), default.copy()]
        given = {"stiffness": stiffness, "rest": rest, "damping": damping}
        for (what, values), where in zip(given.items(), found, strict=True):
            least = None if what == "rest" else 0.0
            for name, value in mapping(what, values, "names of joints to numbers").items():
                checked = number(f"{what}[{name!r}]", value, at_least=least)
                where[joints.single(what, name)[1]] = checked
            where.flags.writeable = False
        return Passive(coordinate, *found)

    def stretch(self, q: Array) -> Array:
        """The stretch q - q_rest (nv,), without meaning where there is no spring."""
        return np.asarray(q[self.coordinate] - self.rest)

    def torque(self, q: Array, v: Array) -> Array:
        """The torques k (q - q_rest) + d v (nv,)."""
        return np.asarray(self.stiffness * self.stretch(q) + self.damping * v)

    def energy(self, q: Array) -> float:
        """The potential of the springs in J."""
        return 0.5 * float(self.stiffness @ self.stretch(q) ** 2)


@dataclass(frozen=True)
class Rotor:
    r"""The rotor of a motor that turns `gear` times as fast as its joint.

    inertia: I about its axis, kg m^2. gear: n, without unit, or in rad/m at a joint that slides.
    Its mass belongs to the link that carries it. The kinetic energy of the turning,
    :math:`\tfrac12 I (n \dot q)^2`, adds :math:`n^2 I` to the diagonal of the mass matrix; what
    the rotor feels of the turning of its carrier, smaller by 1/n, is left out, as Pinocchio's
    `armature` does.

    Raises `InputError` for a negative inertia or a gear that is not positive.
    """

    inertia: float
    gear: float = 1.0

    def __post_init__(self) -> None:
        number("inertia", self.inertia, at_least=0.0)
        number("gear", self.gear, above=0.0)

    @property
    def reflected(self) -> float:
        """The inertia n^2 I that the joint feels."""
        return self.gear**2 * self.inertia


def armature(default: Array, joints: JointIndices, rotors: Mapping[str, Rotor] | None) -> Array:
    """What the rotors add to the diagonal of M (nv,); `default` at joints without one."""
    result = np.array(default, dtype=np.float64)
    for name, rotor in mapping("rotors", rotors, "names of joints to a Rotor").items():
        _, velocity = joints.single("rotors", name)
        result[velocity] = instance(f"rotors[{name!r}]", rotor, Rotor).reflected
    result.flags.writeable = False
    return result
