r"""The terms of contact dynamics by expressions, as generated CasADi functions.

.. math:: M a + h = S u + J^T f, \qquad \dot w = J a + \dot J v,

with w the rates of the rows of all contacts of a set: normals, then tangents.

Functions are made for a structure: which joints there are, where they turn, what is zero. Masses,
inertias, lengths, springs and friction are their last argument, so that robots which differ in
these alone share them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import casadi as ca
import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.compilable import CompilableFunction, compiles_at_once
from hybridctl.base.digests import hash_bytes
from hybridctl.base.function_cache import (
    compile_function,
    compile_if_possible,
    find_compiler,
    load_or_build,
    make_key,
    require_compiler,
)
from hybridctl.mechanics.contacts import stairs, surfaces
from hybridctl.mechanics.contacts.contact import ContactPlace
from hybridctl.mechanics.contacts.contact_kinematics import ContactSet
from hybridctl.mechanics.contacts.joint_contacts import JointPlace
from hybridctl.mechanics.contacts.surfaces import Plane
from hybridctl.mechanics.multibody import expressions
from hybridctl.mechanics.multibody.bodies import Tree
from hybridctl.mechanics.multibody.expressions import Bodies, Expression
from hybridctl.mechanics.multibody.passive import Passive
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.terms import contact_expressions
from hybridctl.mechanics.terms.contact_expressions import ContactPoints, RowExpressions
from hybridctl.mechanics.terms.contact_terms import (
    ImpulseDerivatives,
    LengthDerivatives,
    TermDerivatives,
    Terms,
    TermValues,
)
from hybridctl.symbolic.compiled_function import (
    BatchedFunction,
    CompiledFunction,
    build_transposed_function,
)

_SOURCES = (
    expressions.__file__,
    contact_expressions.__file__,
    surfaces.__file__,
    stairs.__file__,
    __file__,
)
"""Files that functions are made by: their digest is a part of the keys of these functions."""

_MAX_MODE_TERMS = 64
"""Most functions `mode_terms` that a process keeps for robots of their structures. A choice."""
_MODE_TERMS: OrderedDict[str, Any] = OrderedDict()
"""These functions by the keys of structures, the one that was used last at the end."""

MachineCode = Literal["none", "often called", "all if possible", "all"]
"""Which functions are machine code: "all", or "all if possible", which are compiled where they are
first called, without a compiler none; or those that have been "often called"."""


class ExpressionTerms(Terms):
    """The terms of a robot and its contacts at a point, each set of them one function.

    Functions are made when they are first asked for, and kept on disk (see `function_cache`).
    Methods return read-only views that hold until the same method is called again in the same
    thread, of these terms or of others that share their functions.

    Args:
        robot: Robot.
        contacts: Kinematics of its contacts.
        machine_code: Which functions are made machine code by the C compiler of the machine, see
            `MachineCode`.

    Raises:
        InputError: If no expression is known for a joint or surface, or machine code is asked for
            without a compiler.
    """

    def __init__(
        self, robot: Robot, contacts: ContactSet, *, machine_code: MachineCode = "none"
    ) -> None:
        if machine_code == "all":
            require_compiler()
        self.machine_code: MachineCode = machine_code
        self._constants = RobotConstants.of(robot, contacts)
        self._made: dict[str, tuple[Any, list[tuple[int, ...]]]] = {}
        for place in self._constants.places:
            contact_expressions.check_expressed(place.surface)

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the functions, which every process reads from disk."""
        return {"machine_code": self.machine_code, "_constants": self._constants, "_made": {}}

    def values(self, q: Array, v: Array, u: Array) -> TermValues:
        """Return all terms at a point.

        Args:
            q: Configuration (nq,).
            v: Velocity (nv,).
            u: Input (nu,).
        """
        return TermValues(*self._values(q, v, u))

    def derivatives(self, q: Array, v: Array, a: Array, forces: Array) -> TermDerivatives:
        """Return the derivatives by (q, v), at fixed acceleration and row forces.

        Args:
            q: Configuration (nq,).
            v: Velocity (nv,).
            a: Acceleration (nv,).
            forces: Forces (r,) along the rows.
        """
        return TermDerivatives(*self._derivatives(q, v, a, forces))

    def impulse_derivatives(self, q: Array, z: Array, forces: Array) -> ImpulseDerivatives:
        """Return the derivatives by q of momentum and rates.

        Args:
            q: Configuration (nq,).
            z: Velocity (nv,).
            forces: Impulses (r,) along the rows.
        """
        return ImpulseDerivatives(*self._impulse_derivatives(q, z, forces))

    def impulse_derivatives_at(self, q: Array, z: Array, forces: Array) -> ImpulseDerivatives:
        """Return `impulse_derivatives` at m points, by one call for up to 64 of them.

        Args:
            q: Configurations (m, nq).
            z: Velocities (m, nv).
            forces: Impulses (m, r) along the rows.
        """
        return ImpulseDerivatives(*self._batched_impulse_derivatives(q, z, forces))

    def length_derivatives(self, q: Array, v: Array, a: Array, forces: Array) -> LengthDerivatives:
        """Return the derivatives by the lengths of contacts in space.

        Args:
            q: Configuration (nq,).
            v: Velocity (nv,).
            a: Acceleration (nv,).
            forces: Forces (r,) along the rows.
        """
        return LengthDerivatives(*self._length_derivatives(q, v, a, forces))

    def with_constants(self, constants: RobotConstants, is_alike: bool) -> ExpressionTerms:
        """Return the terms of a robot with its contacts that differ in numbers alone.

        Args:
            constants: Robot and contacts.
            is_alike: Whether the same numbers are zero, so that functions are the same.
        """
        other = object.__new__(type(self))
        other.machine_code, other._constants = self.machine_code, constants
        other._made = self._made if is_alike else {}
        if is_alike and "mode_terms" in self.__dict__:
            other.mode_terms = self.mode_terms
        return other

    def finish_function(self, made: Any) -> Any:
        """Return a generated function as it is called: as machine code, if that is asked for.

        Args:
            made: The `casadi.Function`.
        """
        if self.machine_code == "all":
            return compile_function(made)
        if self.machine_code == "none":
            return made
        if self.machine_code == "often called" and not compiles_at_once():
            return CompilableFunction(made)
        return made if find_compiler() is None else compile_if_possible(made)

    @cached_property
    def mode_terms(self) -> Any:
        """The function (x, u, numbers) that gives a compiled mode all it needs of the robot.

        x are coordinates (q, v) of any norm. Results are T(q) v (nq,), the rate of q, and those of
        `values`, of which the Jacobian is transposed.

        The process keeps it for robots of the same structure. Each change of a parameter makes a
        new robot, which asks for it again; where nothing is kept on disk, it takes 0.6 s for a
        biped.
        """
        key = self._constants.make_key("mode_terms", self.machine_code, find_compiler())
        made = _MODE_TERMS.pop(key, None)
        if made is None:
            made = self.finish_function(self._constants.load_function("mode_terms"))
        _MODE_TERMS[key] = made
        while len(_MODE_TERMS) > _MAX_MODE_TERMS:
            with suppress(KeyError):  # another thread has removed it
                _MODE_TERMS.popitem(last=False)
        return made

    @cached_property
    def numbers(self) -> Array:
        """The numbers of `constants`, the last argument of all functions."""
        return self._constants.numbers

    @property
    def constants(self) -> RobotConstants:
        """Robot and contacts, of which the functions are made."""
        return self._constants

    @cached_property
    def _values(self) -> CompiledFunction:
        c = self._constants
        nv, r, k = c.nv, c.rows, c.contact_count
        return self._build_function("values", [(nv, nv), (nv,), (r, nv), (r,), (k,), (r,)])

    @cached_property
    def _derivatives(self) -> CompiledFunction:
        c = self._constants
        both = 2 * c.nv
        return self._build_function("derivatives", [(c.nv, both), (c.rows, both), (c.rows, both)])

    @cached_property
    def _impulse_derivatives(self) -> CompiledFunction:
        c = self._constants
        return self._build_function("impulse_derivatives", [(c.nv, c.nv), (c.rows, c.nv)])

    @cached_property
    def _batched_impulse_derivatives(self) -> BatchedFunction:
        return self._impulse_derivatives.build_batched()

    @cached_property
    def _length_derivatives(self) -> CompiledFunction:
        c = self._constants
        count = 4 * len(c.places)
        shapes: list[tuple[int, ...]] = [
            (rows, count) for rows in (c.nv, c.rows, c.rows, c.contact_count)
        ]
        return self._build_function("length_derivatives", shapes)

    def _build_function(self, name: str, shapes: list[tuple[int, ...]]) -> CompiledFunction:
        """Return the function of this name, whose results have these shapes."""
        made = self._made.get(name)
        if made is None:
            function = self.finish_function(self._constants.load_function(name))
            made = self._made.setdefault(name, (function, shapes))
        return CompiledFunction(*made, self.numbers)


class TermExpressions(NamedTuple):
    """Expressions of the terms.

    Attributes:
        bodies: The bodies.
        drive: S u - h (nv, 1).
        jacobian: J (r, nv).
        rows: Gaps and rates of the rows, and their drift Jdot v as `accelerations`.
    """

    bodies: Bodies
    drive: Expression
    jacobian: Expression
    rows: RowExpressions


class RobotConstants(NamedTuple):
    """All that the functions are made of: the robot's tree, springs and motors, and contacts.

    Numbers that robots of one structure differ in are arrays, or expressions in their place (see
    `make_symbolic`).

    Attributes:
        tree: Bodies and joints.
        nq: Number of coordinates.
        springs: Springs and dampers.
        actuation: S (nv, nu).
        places: Contacts in space.
        joints: Contacts of joints, which follow them.
        friction: Kinetic and static coefficients (c, 2) of all contacts; (0, 2) for functions that
            do not depend on them.
    """

    tree: Tree
    nq: int
    springs: Passive
    actuation: Array
    places: tuple[ContactPlace, ...]
    joints: tuple[JointPlace, ...]
    friction: Array

    @staticmethod
    def of(robot: Robot, contacts: ContactSet, friction: Array | None = None) -> RobotConstants:
        """Return the constants of a robot with its contacts.

        Args:
            robot: Robot.
            contacts: Kinematics of its contacts.
            friction: Kinetic and static coefficients (c, 2), where functions need them.
        """
        friction = np.zeros((0, 2)) if friction is None else friction
        places = _known_places.get(contacts)
        if places is None:
            places = _known_places[contacts] = tuple(map(_move_to_plane, contacts.places()))
        joints, of_robot = contacts.joint_places(), (robot.tree(), robot.nq, robot.passive)
        return RobotConstants(*of_robot, robot.actuation, places, joints, friction)

    @property
    def nv(self) -> int:
        """Number of velocities."""
        return len(self.actuation)

    @property
    def rows(self) -> int:
        """Number of rows of the contacts."""
        in_space = sum(1 + place.directions for place in self.places)
        return in_space + sum(1 + joint.rubs for joint in self.joints)

    @property
    def contact_count(self) -> int:
        """Number c of contacts, in space and of joints."""
        return len(self.places) + len(self.joints)

    @property
    def loads(self) -> list[Expression]:
        """Constant forces that press each of the c contacts, (1, 1) in N m or N."""
        return [*(ca.SX(0.0) for _ in self.places), *(ca.SX(joint.load) for joint in self.joints)]

    def contact_points(self, bodies: Bodies) -> ContactPoints:
        """Return the expressions of all contacts at the configuration of the bodies."""
        return ContactPoints(bodies, self.places, self.joints)

    def load_function(self, name: str) -> Any:
        """Return the function of this name, generated or read from disk.

        Args:
            name: "values", "mode_terms", "derivatives", "impulse_derivatives" or
                "length_derivatives".
        """
        return load_or_build(
            self.make_key(name), lambda: build_transposed_function(name, *self._express(name))
        )

    def _express(self, name: str) -> _Expressed:
        """Return arguments and results of the function of this name."""
        symbolic, numbers = self.make_symbolic()
        arguments, results = _MAKERS[name](symbolic)
        return [*arguments, numbers], results

    @property
    def numbers(self) -> Array:
        """The numbers (np,) that robots of one structure differ in, without those that are zero.

        A number that becomes zero, or stops being so, makes another structure.
        """
        every = self.list_all_numbers()
        return np.asarray(every[every != 0.0])

    def list_all_numbers(self) -> Array:
        """Return `numbers` with those that are zero, in the same order for each robot."""
        return np.concatenate([numbers.ravel() for numbers in self._list_numbers()])

    def collect_changes(self, changes: RobotConstants) -> Array | None:
        """Return derivatives (np,) of the `numbers`.

        Args:
            changes: Constants of the same robot, with derivatives in place of their numbers.

        Returns:
            The derivatives. None if a number that is zero, which is none of `numbers`, changes.
        """
        is_number, derivatives = self.list_all_numbers() != 0.0, changes.list_all_numbers()
        return None if derivatives[~is_number].any() else np.asarray(derivatives[is_number])

    def make_zero(self) -> RobotConstants:
        """Return the constants with zeros in place of all numbers."""
        return self._replace_numbers(np.zeros_like)

    def make_symbolic(self) -> tuple[RobotConstants, Expression]:
        """Return the constants with symbols for the `numbers`, and these symbols (np, 1)."""
        symbols = ca.SX.sym("numbers", len(self.numbers))
        left = iter(ca.vertsplit(symbols))

        def name_numbers(numbers: Array) -> Expression:
            columns = numbers if numbers.ndim == 2 else numbers.reshape(-1, 1)
            result = ca.SX.zeros(*columns.shape)
            for i, j in np.argwhere(columns).tolist():
                result[i, j] = next(left)
            return result

        return self._replace_numbers(name_numbers), symbols

    def make_key(self, *parts: Any) -> str:
        """Return a name for what is made for this structure and from parts (see `function_cache`).

        Args:
            *parts: What else it is made from.
        """
        zeros = self._replace_numbers(lambda numbers: numbers == 0.0)
        kinds = [contact_expressions.serialize_surface(place.surface) for place in self.places]
        places = tuple(p._replace(surface=None) for p in zeros.places)  # type: ignore[arg-type]
        structure = zeros._replace(places=places)
        return make_key(hash_sources(*_SOURCES), structure, kinds, *parts)

    def _list_numbers(self) -> list[Array]:
        """Return all arrays of numbers that robots of one structure differ in, in one order."""
        found: list[Any] = []
        for body in self.tree.bodies:
            found += body.position, body.mass, body.moment, body.inertia
        found += self.tree.gravity, self.tree.armature, *self.springs[2:]
        for place in self.places:
            found += place.point, place.radius, place.position
        for joint in self.joints:
            found += joint.limit, joint.load
        return [*map(np.asarray, found), self.friction]

    def _replace_numbers(self, change: Callable[[Array], Any]) -> RobotConstants:
        """Return the constants with other values of all that robots of one structure differ in.

        Args:
            change: Takes each array of `_list_numbers`, in this order, and returns what replaces
                it.
        """
        new = map(change, self._list_numbers())
        bodies = tuple(
            body._replace(position=next(new), mass=next(new), moment=next(new), inertia=next(new))
            for body in self.tree.bodies
        )
        tree = Tree(bodies, next(new), next(new))
        springs = Passive(*self.springs[:2], next(new), next(new), next(new))
        places = tuple(
            place._replace(point=next(new), radius=next(new), position=next(new))
            for place in self.places
        )
        joints = tuple(joint._replace(limit=next(new), load=next(new)) for joint in self.joints)
        changed = self._replace(tree=tree, springs=springs, places=places, joints=joints)
        return changed._replace(friction=next(new))

    def make_terms(self, q: Expression, v: Expression, u: Expression) -> TermExpressions:
        """Return the terms at a point.

        Args:
            q: Configuration (nq, 1).
            v: Velocity (nv, 1).
            u: Input (nu, 1).
        """
        bodies = Bodies(self.tree, q)
        points, still = self.contact_points(bodies), ca.SX.zeros(self.nv, 1)
        motion = bodies.motion(v, still)
        bias = bodies.inverse_dynamics(motion, points.pushes(ca.SX.zeros(self.rows, 1)))
        drive = ca.DM(self.actuation) @ u - bias - self.resistance(q, v)
        return TermExpressions(bodies, drive, points.jacobian(), points.rows(motion, v, still))

    def resistance(self, q: Expression, v: Expression) -> Expression:
        """Return the torques k (q - q_rest) + d v (nv, 1) of springs and dampers; see `Passive`.

        On circles q - q_rest is the shortest signed angle.

        Args:
            q: Configuration (nq, 1).
            v: Velocity (nv, 1).
        """
        coordinate, circles, stiffness, rest, damping = self.springs
        angle = ca.SX(rest)
        stretch = q[coordinate.tolist()] - angle
        for j in circles.tolist():
            c, s = q[int(coordinate[j])], q[int(coordinate[j]) + 1]
            rest_c, rest_s = ca.cos(angle[j]), ca.sin(angle[j])
            stretch[j] = ca.atan2(s * rest_c - c * rest_s, c * rest_c + s * rest_s)
        return ca.SX(stiffness) * stretch + ca.SX(damping) * v


_known_places: WeakKeyDictionary[ContactSet, tuple[ContactPlace, ...]] = WeakKeyDictionary()
"""Places of `RobotConstants.of` by their contacts, which other values of parameters share."""


def _move_to_plane(place: ContactPlace) -> ContactPlace:
    """Return the place with the origin of its frame on the plane, if its surface is one.

    Where the plane is then is in `position`, which is among the `numbers`: robots on planes at
    other places share functions. The direction of the plane stays a part of the structure.
    """
    plane = place.surface
    if not isinstance(plane, Plane):
        return place
    origin = (plane.unit_normal @ plane.point) * plane.unit_normal
    through = Plane(np.zeros(3), plane.unit_normal)
    return place._replace(position=place.position + place.rotation @ origin, surface=through)


@cache
def hash_sources(*files: str) -> str:
    """Return a digest of the files that functions are made by, as part of their keys."""
    return hash_bytes(b"".join(Path(file).read_bytes() for file in files))


_Expressed = tuple[list[Expression], list[Expression]]
"""Arguments and results of a function."""


def _express_values(c: RobotConstants) -> _Expressed:
    """Return the fields of `TermValues` by q, v and u."""
    q, v, u = _make_symbols(q=c.nq, v=c.nv, u=c.actuation.shape[1])
    bodies, drive, jacobian, rows = c.make_terms(q, v, u)
    results = [bodies.mass(), drive, jacobian, rows.accelerations, rows.gaps, rows.rates]
    return [q, v, u], results


def _express_mode_terms(c: RobotConstants) -> _Expressed:
    """Return dq/dt, then the fields of `TermValues`, by x of any norm and u."""
    x, u = _make_symbols(x=c.nq + c.nv, u=c.actuation.shape[1])
    q, v = expressions.normalize_configuration(c.tree, x[: c.nq]), x[c.nq :]
    bodies, drive, jacobian, rows = c.make_terms(q, v, u)
    values = [bodies.mass(), drive, jacobian, rows.accelerations, rows.gaps, rows.rates]
    return [x, u], [bodies.rate @ v, *values]


def _express_derivatives(c: RobotConstants) -> _Expressed:
    """Return the fields of `TermDerivatives` by q, v, a and forces along the rows."""
    q, v, a, forces = _make_symbols(q=c.nq, v=c.nv, a=c.nv, forces=c.rows)
    bodies = Bodies(c.tree, q)
    contacts = c.contact_points(bodies)
    motion = bodies.motion(v, a)
    equations = bodies.inverse_dynamics(motion, contacts.pushes(forces)) + c.resistance(q, v)
    rows = contacts.rows(motion, v, a)
    what = ca.vertcat(equations, rows.accelerations, rows.rates)
    by_state = ca.horzcat(ca.jacobian(what, q) @ bodies.rate, ca.jacobian(what, v))
    return [q, v, a, forces], _split(by_state, c.nv, c.rows, c.rows)


def _express_impulse_derivatives(c: RobotConstants) -> _Expressed:
    """Return the fields of `ImpulseDerivatives` by q, z and impulses along the rows.

    M z and J z are the inverse dynamics and the accelerations at rest without gravity, with z in
    place of the acceleration.
    """
    q, z, forces = _make_symbols(q=c.nq, z=c.nv, forces=c.rows)
    bodies = Bodies(c.tree, q)
    contacts, still = c.contact_points(bodies), ca.SX.zeros(c.nv, 1)
    kick = bodies.motion(still, z, weight=False)
    equations = bodies.inverse_dynamics(kick, contacts.pushes(forces))
    what = ca.vertcat(equations, contacts.rows(kick, still, z).accelerations)
    return [q, z, forces], _split(ca.jacobian(what, q) @ bodies.rate, c.nv, c.rows)


def _express_length_derivatives(c: RobotConstants) -> _Expressed:
    """Return the fields of `LengthDerivatives` by q, v, a and forces along the rows."""
    q, v, a, forces = _make_symbols(q=c.nq, v=c.nv, a=c.nv, forces=c.rows)
    lengths = ca.SX.sym("lengths", 4 * len(c.places))
    places, values = [], []
    for place, own in zip(c.places, ca.vertsplit(lengths, 4), strict=True):
        radius = ca.SX(place.radius)
        # A point is no sphere: by a radius of zero there is no derivative.
        symbols: dict[str, Any] = {"point": own[:3], "radius": 0.0 if radius.is_zero() else own[3]}
        places.append(place._replace(**symbols))
        values += [ca.SX(place.point), radius]
    bodies = Bodies(c.tree, q)
    points = c._replace(places=tuple(places)).contact_points(bodies)
    rows = points.rows(bodies.motion(v, a), v, a)
    pushed = points.jacobian().T @ forces
    what = ca.vertcat(pushed, rows.accelerations, rows.rates, rows.gaps)
    by_lengths = ca.jacobian(what, lengths)
    result = ca.substitute(by_lengths, lengths, ca.vertcat(*values))
    return [q, v, a, forces], _split(result, c.nv, c.rows, c.rows, c.contact_count)


_MAKERS = {
    "length_derivatives": _express_length_derivatives,
    "values": _express_values,
    "mode_terms": _express_mode_terms,
    "derivatives": _express_derivatives,
    "impulse_derivatives": _express_impulse_derivatives,
}


def _make_symbols(**sizes: int) -> list[Expression]:
    return [ca.SX.sym(name, size) for name, size in sizes.items()]


def _split(matrix: Expression, *counts: int) -> list[Expression]:
    """Return parts of so many rows each."""
    ends = np.cumsum([0, *counts]).tolist()
    return [matrix[i:j, :] for i, j in pairwise(ends)]
