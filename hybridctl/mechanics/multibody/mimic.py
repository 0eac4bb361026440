r"""Joints that mimic others: a linear coupling of coordinates, held exactly.

With q and v of the independent joints, all joints have

.. math:: q_{all} = A q + b, \qquad v_{all} = S v,

so that the equations of motion of the tree, :math:`M_{all} \dot v_{all} + h_{all} = \tau_{all}`,
become :math:`S^T M_{all} S\, \dot v + S^T h_{all} = S^T \tau_{all}` (R. Featherstone, *Rigid Body
Dynamics Algorithms*, 2008, section 3.3, with a constant S). Pinocchio 4.1 has joints that mimic,
but neither its forward dynamics nor its derivatives, energies and regressors take them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from hybridctl.base.checks import (
    Array,
    Indices,
    check_instance,
    check_mapping,
    check_member,
    check_number,
)
from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.mechanics.multibody.bodies import MovingBody, Tree
from hybridctl.mechanics.multibody.joints import CoordinateLabels
from hybridctl.mechanics.multibody.passive import JointIndices, Passive

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Mimic:
    r"""How a joint follows another: its coordinate is :math:`m\, q + o`, with q of the other.

    Attributes:
        joint: Name of the joint that is followed.
        multiplier: m, in the unit of the one joint per that of the other (rad, m).
        offset: o, in rad or m.

    Raises:
        InputError: A number is not finite.
    """

    joint: str
    multiplier: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        check_instance("joint", self.joint, str)
        check_number("multiplier", self.multiplier)
        check_number("offset", self.offset)

    def describe(self) -> str:
        """Return the coordinate as a formula, such as "-1 left + 0.2"."""
        offset = f" + {self.offset:.6g}" if self.offset else ""
        return f"{self.multiplier:.6g} {self.joint}{offset}"


def read_mimics(element: ElementTree.Element) -> dict[str, Mimic]:
    """Return the joints with `<mimic>` of a URDF, by name, except for fixed ones.

    Args:
        element: The root of the file.

    Raises:
        FileFormatError: A `<mimic>` cannot be read, or names a joint that is unknown or fixed.
    """
    joints = element.findall("joint")
    kinds = {joint.get("name", ""): joint.get("type", "") for joint in joints}
    found = {}
    for name, mimic in ((j.get("name", ""), j.find("mimic")) for j in joints):
        if mimic is None or kinds[name] == "fixed":
            continue
        driver = mimic.get("joint", "")
        if kinds.get(driver, "fixed") == "fixed":
            what = "is fixed" if driver in kinds else "does not exist"
            raise FileFormatError(
                f"urdf has a joint {name!r} that mimics joint {driver!r}, which {what}: correct or "
                "remove its <mimic>"
            )
        found[name] = Mimic(
            driver,
            _read_number(name, "multiplier", mimic.get("multiplier", "1")),
            _read_number(name, "offset", mimic.get("offset", "0")),
        )
    return found


def _read_number(joint: str, what: str, text: str) -> float:
    """Return a finite number of a `<mimic>`.

    Raises:
        FileFormatError: The text is something else.
    """
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise FileFormatError(
            f"urdf must have a number as {what} of the <mimic> of joint {joint!r}, got {text!r}"
        )
    return value


def follow_chains(mimics: Mapping[str, Mimic], joints: JointIndices) -> dict[str, Mimic]:
    """Return what joints mimic with chains followed to the end: to joints that mimic none.

    Args:
        mimics: By name of the joint that follows; a joint that is followed may itself follow.
        joints: All joints of the robot.

    Raises:
        UnknownNameError: A name is no joint.
        InputError: A joint follows itself, or does not have one coordinate, as a joint on a unit
            circle.
    """
    found = {}
    for name, mimic in mimics.items():
        passed, end, multiplier, offset = [name], mimic.joint, mimic.multiplier, mimic.offset
        joints.single("mimics", name)
        while end in mimics and end not in passed:
            passed.append(end)
            onward = mimics[end]
            offset += multiplier * onward.offset
            multiplier *= onward.multiplier
            end = onward.joint
        if end in passed:
            raise InputError(f"mimics: joint {name!r} must not mimic itself, got {passed}")
        joints.single(f"mimics[{name!r}]", check_member("joint", end, joints))
        found[name] = Mimic(end, multiplier, offset)
    return found


@dataclass(frozen=True, eq=False)
class Coupling:
    """Coordinates and velocities of all joints of a tree, from those of the independent joints.

    Attributes:
        mimics: What each joint that mimics follows, by name, without chains.
        q_source: Of each coordinate of the tree (nq_all,), the index of the independent one.
        v_source: Of each velocity of the tree (nv_all,), the index of the independent one.
        q_own: Of each independent coordinate (nq,), its index in the tree.
        v_own: Of each independent velocity (nv,), its index in the tree.
        coordinate_map: A (nq_all, nq).
        offsets: b (nq_all,), rad or m.
        velocity_map: S (nv_all, nv). It has one entry in each row, or none for a multiplier of 0.
    """

    mimics: Mapping[str, Mimic]
    q_source: Indices
    v_source: Indices
    q_own: Indices
    v_own: Indices
    coordinate_map: Array
    offsets: Array
    velocity_map: Array

    @staticmethod
    def couple_joints(
        mimics: Mapping[str, Mimic], joints: JointIndices, nq: int, nv: int
    ) -> Coupling:
        """Return the coupling of a tree.

        Args:
            mimics: What joints follow, by name, without chains (see `follow_chains`).
            joints: All joints of the tree.
            nq: Number of coordinates of the tree.
            nv: Number of velocities of the tree.
        """
        q_driver, v_driver = np.arange(nq), np.arange(nv)
        q_ratio, v_ratio, offsets = np.ones(nq), np.ones(nv), np.zeros(nq)
        for name, mimic in mimics.items():
            (q, v), driver = joints.single("mimics", name), joints.single("mimics", mimic.joint)
            q_driver[q], v_driver[v] = driver
            q_ratio[q] = v_ratio[v] = mimic.multiplier
            offsets[q] = mimic.offset
        q_own, q_source = np.unique(q_driver, return_inverse=True)
        v_own, v_source = np.unique(v_driver, return_inverse=True)
        return Coupling(
            mimics=mimics,
            q_source=q_source,
            v_source=v_source,
            q_own=q_own,
            v_own=v_own,
            coordinate_map=q_ratio[:, None] * np.eye(len(q_own))[q_source],
            offsets=offsets,
            velocity_map=v_ratio[:, None] * np.eye(len(v_own))[v_source],
        )

    def expand(self, q: Array) -> Array:
        """Return the coordinates A q + b (nq_all,) of all joints.

        Args:
            q: Independent coordinates (nq,).

        Raises:
            InputError: q has another size, such as the number of coordinates of all joints.
        """
        if len(q) != len(self.q_own):
            raise self._make_size_error("q", "coordinate", len(q), len(self.q_own))
        return np.asarray(self.coordinate_map @ q + self.offsets)

    def expand_velocity(self, v: Array) -> Array:
        """Return the velocities S v of all joints, (nv_all,) or (nv_all, k).

        Args:
            v: Independent velocities (nv,), or (nv, k).

        Raises:
            InputError: v has another number of rows, such as that of velocities of all joints.
        """
        if len(v) != len(self.v_own):
            raise self._make_size_error("v", "velocity", len(v), len(self.v_own))
        return np.asarray(self.velocity_map @ v)

    def _make_size_error(self, name: str, what: str, given: int, right: int) -> InputError:
        """Return the error for a vector of the wrong size, which names the joints that mimic."""
        return InputError(
            f"{name} must have {right} entries for this robot, got {given}: joints that mimic "
            f"others have no {what} of their own ({', '.join(self.mimics)})"
        )

    def reduce_columns(self, columns: Array) -> Array:
        """Return columns (..., nv_all) of all joints, such as a Jacobian, times S, (..., nv)."""
        return np.asarray(columns @ self.velocity_map)

    def reduce_flags(self, flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which independent velocities (..., nv) move a joint that is flagged."""
        return np.asarray(flags @ (self.velocity_map != 0.0))

    def reduce_indices(self, joints: JointIndices) -> JointIndices:
        """Return the indices among independent coordinates and velocities, None where mimicking."""

        def reduce(places: tuple[int, int]) -> tuple[int, int]:
            return int(self.q_source[places[0]]), int(self.v_source[places[1]])

        own = {name: places for name, places in joints.items() if name not in self.mimics}
        return JointIndices(
            [(name, reduce(own[name]) if own.get(name) else None) for name in joints],  # type: ignore[arg-type]
            {name: reduce(places) for name, places in joints.circles.items()},
            {name: mimic.describe() for name, mimic in self.mimics.items()},
        )

    def reduce_labels(self, labels: CoordinateLabels) -> CoordinateLabels:
        """Return the labels of independent coordinates, velocities and forces."""
        positions, velocities, forces = labels
        return CoordinateLabels(
            tuple(positions[i] for i in self.q_own),
            tuple(velocities[i] for i in self.v_own),
            tuple(forces[i] for i in self.v_own),
        )

    def reduce_passive(self, passive: Passive) -> Passive:
        """Return the springs and dampers of all joints as those of the independent joints.

        A spring k (m q + o - r) at a joint that mimics acts on q as m^2 k (q - (r - o) / m). All
        springs that act on one q are one, k_sum (q - r_sum); its energy differs from the sum of
        theirs by a constant.

        Args:
            passive: Of all joints.
        """
        s = self.velocity_map
        k = passive.stiffness
        stiffness = s.T**2 @ k
        offset = self.offsets[passive.coordinate]
        pull = s.T @ (k * (passive.rest - offset))
        rest = passive.rest[self.v_own]
        # Independent joints without a follower keep their rest to the last digit.
        mixed = (s.T**2 @ (k > 0.0)) - (k[self.v_own] > 0.0) > 0.0
        rest[mixed] = pull[mixed] / stiffness[mixed]
        circles = self.v_source[passive.circles]
        coordinate = self.q_source[passive.coordinate[self.v_own]]
        return Passive(coordinate, circles, stiffness, rest, s.T**2 @ passive.damping)

    def reduce_friction(self, friction: Array) -> Array:
        """Return the dry friction (nv,) of the independent joints, read-only, from that of all.

        Joints that move together stop together. At a multiplier m a friction of f takes the power
        f |m v| from the joint with velocity v, so it acts there with |m| f.

        Args:
            friction: Of all joints (nv_all,), N m or N.
        """
        reduced = np.abs(self.velocity_map).T @ friction
        reduced.flags.writeable = False
        return np.asarray(reduced)

    def reduce_tree(self, tree: Tree) -> Tree:
        """Return a tree whose bodies are moved by the independent coordinates."""
        bodies = tuple(self._reduce_body(body) for body in tree.bodies)
        return Tree(bodies, tree.gravity, self.velocity_map.T**2 @ tree.armature)

    def _reduce_body(self, body: MovingBody) -> MovingBody:
        q, v = int(self.q_source[body.q]), int(self.v_source[body.v])
        unit, shift = body.unit, q - body.q
        return body._replace(
            q=q,
            v=v,
            unit=None if unit is None else slice(unit.start + shift, unit.stop + shift),
            mimics=bool(self.v_own[v] != body.v),
            ratio=float(self.velocity_map[body.v, v]),
            offset=float(self.offsets[body.q]),
        )


def find_coupling(
    mimics: Mapping[str, Mimic] | None, joints: JointIndices, nq: int, nv: int
) -> Coupling | None:
    """Return the coupling of joints that mimic others, None where none does, and log it.

    Args:
        mimics: What joints follow, by name; None for none.
        joints: All joints of the tree.
        nq: Number of coordinates of the tree.
        nv: Number of velocities of the tree.

    Raises:
        UnknownNameError: A name is no joint.
        InputError: A joint cannot follow or be followed (see `follow_chains`), or what is given is
            no mapping to a `Mimic`.
    """
    given = check_mapping("mimics", mimics, "names of joints to a Mimic")
    for name, mimic in given.items():
        check_instance(f"mimics[{name!r}]", mimic, Mimic)
    if not given:
        return None
    ends = follow_chains(given, joints)
    _LOG.info(
        "joints that mimic others have no coordinate or motor of their own: %s",
        ", ".join(f"{name} = {mimic.describe()}" for name, mimic in ends.items()),
    )
    return Coupling.couple_joints(ends, joints, nq, nv)
