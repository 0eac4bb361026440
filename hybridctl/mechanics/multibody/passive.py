"""What joints have besides motors: springs, dampers, and the rotors of geared motors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridctl.base.checks import Array, check_instance, check_mapping, check_member, check_number
from hybridctl.base.errors import InputError


class JointIndices(dict[str, tuple[int, int] | None]):
    """The indices in q and v of each joint, by name, that has one coordinate and one velocity.

    The value is None for joints of several coordinates, and for those that mimic others.

    Args:
        indices: Pairs of a joint's name and its indices.
        circles: Of continuous joints by name, the indices of the cosine of the angle, which the
            sine follows, and of the velocity.
        mimics: Of joints that mimic others by name, their coordinate as a formula, for errors.
    """

    def __init__(
        self,
        indices: Iterable[tuple[str, tuple[int, int] | None]] = (),
        circles: Mapping[str, tuple[int, int]] | None = None,
        mimics: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(indices)
        self.circles, self.mimics = dict(circles or {}), dict(mimics or {})

    def single(self, what: str, name: str) -> tuple[int, int]:
        """Return the indices of the coordinate and the velocity of a joint that has one of each.

        Args:
            what: Name of the argument, for errors.
            name: Of the joint.

        Raises:
            UnknownNameError: There is no such joint.
            InputError: It has several coordinates, or none of its own as it mimics another joint.
        """
        indices = self[check_member("joint", name, self)]
        if indices is not None:
            return indices
        if name in self.mimics:
            raise InputError(
                f"{what}: joint {name!r} must move on its own, but it mimics another: it is at "
                f"{self.mimics[name]}. Name the joint that it follows"
            )
        if name in self.circles:
            raise InputError(
                f"{what}: joint {name!r} must have one coordinate, but it is continuous: q has the "
                'cosine and sine of its angle. A joint of type "revolute" has the angle itself'
            )
        raise InputError(f"{what}: joint {name!r} must have one degree of freedom")

    def velocity(self, what: str, name: str) -> int:
        """Return the index of the velocity of a joint of one degree of freedom.

        Args:
            what: Name of the argument, for errors.
            name: Of the joint, which may be continuous.

        Raises:
            UnknownNameError: There is no such joint.
            InputError: It has several degrees of freedom, or mimics another joint.
        """
        return self.circles[name][1] if name in self.circles else self.single(what, name)[1]


def find_joint_indices(model: Any) -> JointIndices:
    """Return where the joints of one degree of freedom of a Pinocchio model are in q and v."""
    joints = list(zip(list(model.names)[1:], list(model.joints)[1:], strict=True))
    places = {n: (int(j.idx_q), int(j.idx_v)) for n, j in joints if j.nv == 1}
    circles = {n: places[n] for n, j in joints if j.nv == 1 and j.nq == 2}
    return JointIndices([(n, places[n] if j.nq == j.nv == 1 else None) for n, j in joints], circles)


class Passive(NamedTuple):
    r"""The torques :math:`k (q - q_{rest}) + d v` that resist motion, zero where there are none.

    At a continuous joint :math:`q - q_{rest}` is the angle from rest in :math:`(-\pi, \pi]`. The
    torque is periodic then; at the antipode of rest it jumps from :math:`k \pi` to :math:`-k \pi`
    and has no derivative.

    Attributes:
        coordinate: Index in q of the coordinate that each velocity (nv,) changes, of the cosine
            at continuous joints.
        circles: Indices of the velocities of continuous joints.
        stiffness: Of each velocity (nv,), N m/rad or N/m.
        rest: Of each velocity (nv,), rad or m.
        damping: Of each velocity (nv,), N m s/rad or N s/m.
    """

    coordinate: NDArray[np.intp]
    circles: NDArray[np.intp]
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
        for indices in (*filter(None, joints.values()), *joints.circles.values()):
            coordinate[indices[1]] = indices[0]
        circles = np.array([velocity for _, velocity in joints.circles.values()], dtype=np.intp)
        found = [np.zeros(len(default)), np.zeros(len(default)), default.copy()]
        given = {"stiffness": stiffness, "rest": rest, "damping": damping}
        for (what, values), where in zip(given.items(), found, strict=True):
            least = None if what == "rest" else 0.0
            for name, value in check_mapping(what, values, "names of joints to numbers").items():
                checked = check_number(f"{what}[{name!r}]", value, at_least=least)
                where[joints.velocity(what, name)] = checked
            where.flags.writeable = False
        return Passive(coordinate, circles, *found)

    def stretch(self, q: Array) -> Array:
        """Return the stretch q - q_rest (nv,), without meaning where there is no spring."""
        stretch = q[self.coordinate] - self.rest
        if self.circles.size:
            cosine, rest = self.coordinate[self.circles], self.rest[self.circles]
            c, s = q[cosine], q[cosine + 1]
            stretch[self.circles] = np.arctan2(
                s * np.cos(rest) - c * np.sin(rest), c * np.cos(rest) + s * np.sin(rest)
            )
        return np.asarray(stretch)

    def torque(self, q: Array, v: Array) -> Array:
        """Return k (q - q_rest) + d v (nv,), N m or N, which resists the motion as the bias h does.

        Args:
            q: Configuration (nq,).
            v: Velocity (nv,).
        """
        return np.asarray(self.stiffness * self.stretch(q) + self.damping * v)

    def energy(self, q: Array) -> float:
        """Return the potential energy of the springs at q (nq,), J."""
        return 0.5 * float(self.stiffness @ self.stretch(q) ** 2)


@dataclass(frozen=True)
class Rotor:
    r"""The rotor of a motor that turns `gear` times as fast as its joint.

    Its mass belongs to the link that carries it. The kinetic energy of its rotation,
    :math:`\tfrac12 I (n \dot q)^2`, adds :math:`n^2 I` to the diagonal of the mass matrix. The
    rotation of the link that carries it adds a term that is smaller by 1/n. It is left out, as in
    Pinocchio's `armature`.

    Attributes:
        inertia: Inertia I about its axis, kg m^2.
        gear: Gear n, without unit; in rad/m at a joint that slides.

    Raises:
        InputError: The inertia is negative, or the gear is not positive.
    """

    inertia: float
    gear: float = 1.0

    def __post_init__(self) -> None:
        check_number("inertia", self.inertia, at_least=0.0)
        check_number("gear", self.gear, above=0.0)

    @property
    def reflected(self) -> float:
        """Inertia n^2 I that the joint feels, kg m^2 or kg."""
        return self.gear**2 * self.inertia


def compute_armature(
    default: Array, joints: JointIndices, rotors: Mapping[str, Rotor] | None
) -> Array:
    """Return the inertia (nv,) that rotors add to the diagonal of M.

    Args:
        default: Inertia (nv,) at joints without a rotor, kg m^2 or kg.
        joints: Indices of the joints.
        rotors: Rotors by joint; None for none.

    Raises:
        InputError: Something is no rotor, or a joint has several velocities.
        UnknownNameError: A joint is named that does not exist.
    """
    result = np.array(default, dtype=np.float64)
    for name, rotor in check_mapping("rotors", rotors, "names of joints to a Rotor").items():
        velocity = joints.velocity("rotors", name)
        result[velocity] = check_instance(f"rotors[{name!r}]", rotor, Rotor).reflected
    result.flags.writeable = False
    return result
