"""Springs and dampers at joints of one degree of freedom."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hybridctl.checks import Array, member, number
from hybridctl.errors import InputError

JointIndices = Mapping[str, tuple[int, int] | None]


class Passive:
    r"""The torques :math:`k (q - q_{rest}) + d v` that resist motion, zero at other velocities.

    joints: for each joint the indices of its coordinate and velocity, or None where it has
    several degrees of freedom. stiffness, rest and damping (nv,) are what was given by name, in
    N m/rad, rad and N m s/rad or their linear counterparts; damping left out is `default`.

    Raises `UnknownNameError` for a joint, `InputError` for one of several degrees of freedom
    and for negative stiffness or damping.
    """

    def __init__(
        self,
        joints: JointIndices,
        default: Array,
        stiffness: Mapping[str, float],
        rest: Mapping[str, float],
        damping: Mapping[str, float],
    ) -> None:
        nv = len(default)
        self._joints = joints
        self.coordinate = np.zeros(nv, dtype=np.intp)
        for indices in joints.values():
            if indices is not None:
                self.coordinate[indices[1]] = indices[0]
        self.stiffness, self.rest, self.damping = np.zeros(nv), np.zeros(nv), default.copy()
        for what, values, where in (
            ("stiffness", stiffness, self.stiffness),
            ("rest", rest, self.rest),
            ("damping", damping, self.damping),
        ):
            for name, value in values.items():
                least = None if what == "rest" else 0.0
                where[self.velocity(what, name)] = number(
                    f"{what}[{name!r}]", value, at_least=least
                )
        for a in (self.stiffness, self.rest, self.damping):
            a.flags.writeable = False
        self.any = bool(self.stiffness.any() or self.damping.any())

    def velocity(self, what: str, name: str) -> int:
        """The index of the velocity of a joint; `what` names the argument in errors."""
        indices = self._joints[member("joint", name, self._joints)]
        if indices is None:
            raise InputError(f"{what}: joint {name!r} must have one degree of freedom")
        return indices[1]

    def stretch(self, q: Array) -> Array:
        """q - q_rest (nv,), without meaning where there is no spring."""
        return np.asarray(q[self.coordinate] - self.rest)

    def torque(self, q: Array, v: Array) -> Array:
        """k (q - q_rest) + d v (nv,)."""
        return np.asarray(self.stiffness * self.stretch(q) + self.damping * v)

    def energy(self, q: Array) -> float:
        """The potential of the springs in J."""
        return 0.5 * float(self.stiffness @ self.stretch(q) ** 2)
