"""Rotors of geared motors, as the joints feel them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hybridctl.checks import Array, instance, member, number
from hybridctl.errors import InputError


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


def armature(
    default: Array, joints: Mapping[str, tuple[int, int] | None], rotors: Mapping[str, Rotor]
) -> Array:
    """What the rotors add to the diagonal of M (nv,); `default` at joints without one.

    joints: indices of coordinate and velocity, None where a joint has several degrees of freedom.
    """
    result = np.array(default, dtype=np.float64)
    for name, rotor in rotors.items():
        indices = joints[member("joint of a rotor", name, joints)]
        if indices is None:
            raise InputError(f"rotors: joint {name!r} must have one degree of freedom")
        result[indices[1]] = instance(f"rotors[{name!r}]", rotor, Rotor).reflected
    result.flags.writeable = False
    return result
