r"""The terms of contact dynamics from generated CasADi functions.

.. math:: M a + h = S u + J^T f, \qquad \dot w = J a + \dot J v,

with w the rates of the rows of all contacts of a set: normals, then tangents (see `geometry`).
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import casadi as ca
import numpy as np

from hybridctl.checks import Array
from hybridctl.compiled import Compiled, kept, key_of, transposed
from hybridctl.mechanics import contact_expressions, expressions
from hybridctl.mechanics.contact_expressions import ContactPoints
from hybridctl.mechanics.expressions import Bodies, Expression
from hybridctl.mechanics.geometry import ContactSet, Place
from hybridctl.mechanics.passive import Passive
from hybridctl.mechanics.robot import Robot
from hybridctl.mechanics.terms import Derivatives, ImpulseDerivatives, Values
from hybridctl.mechanics.tree import Tree

_SOURCES = (expressions.__file__, contact_expressions.__file__, __file__)


class GeneratedTerms:
    """The terms of a robot and its contacts at a point, each set of them one function.

    Functions are made when they are first asked for, and kept on disk (see `compiled`). Methods
    return read-only views that hold until the same method is called again in the same thread.

    Raises `InputError` for a joint or surface for which no expression is known.
    """

    def __init__(self, robot: Robot, contacts: ContactSet) -> None:
        self._constants = Constants.of(robot, contacts)
        for place in self._constants.places:
            contact_expressions.known_surface(place.surface)

    def values(self, q: Array, v: Array, u: Array) -> Values:
        """All terms at the configuration q (nq,), velocity v (nv,) and input u (nu,)."""
        return Values(*self._values(q, v, u))

    def derivatives(self, q: Array, v: Array, a: Array, forces: Array) -> Derivatives:
        """Derivatives at given acceleration (nv,) and row forces (r,), by q in its tangent."""
        return Derivatives(*self._derivatives(q, v, a, forces))

    def impulse_derivatives(self, q: Array, z: Array, forces: Array) -> ImpulseDerivatives:
        """Derivatives of momentum and rates at a given velocity z (nv,)."""
        return ImpulseDerivatives(*self._impulse_derivatives(q, z, forces))

    @cached_property
    def _values(self) -> Compiled:
        c = self._constants
        nv, r, k = c.nv, c.rows, len(c.places)
        return c.compiled("values", [(nv, nv), (nv,), (r, nv), (r,), (k,), (r,)])

    @cached_property
    def _derivatives(self) -> Compiled:
        c = self._constants
        both = 2 * c.nv
        return c.compiled("derivatives", [(c.nv, both), (c.rows, both), (c.rows, both)])

    @cached_property
    def _impulse_derivatives(self) -> Compiled:
        c = self._constants
        return c.compiled("impulse_derivatives", [(c.nv, c.nv), (c.rows, c.nv)])


class Constants(NamedTuple):
    """All that the functions are made of: the robot's tree, springs and motors, and contacts."""

    tree: Tree
    nq: int
    passive: Passive
    actuation: Array
    places: tuple[Place, ...]

    @staticmethod
    def of(robot: Robot, contacts: ContactSet) -> Constants:
        """Those of a robot with a set of contacts."""
        return Constants(robot.tree(), robot.nq, robot.passive, robot.actuation, contacts.places())

    @property
    def nv(self) -> int:
        """Number of velocities."""
        return len(self.actuation)

    @property
    def rows(self) -> int:
        """Number of rows of the contacts."""
        return sum(1 + place.directions for place in self.places)

    def compiled(self, name: str, shapes: list[tuple[int, ...]]) -> Compiled:
        """One of the functions below, made or read from disk."""
        make = _MAKERS[name]
        return Compiled(kept(self.key(name), lambda: transposed(name, *make(self))), shapes)

    def key(self, *parts: Any) -> str:
        """A name for what is made from these constants and parts (see `compiled.key_of`)."""
        sources = [Path(source).read_text(encoding="utf-8") for source in _SOURCES]
        return key_of(sources, self._parts(), *parts)

    def _parts(self) -> tuple[Any, ...]:
        surfaces = [
            (type(place.surface).__name__, sorted(vars(place.surface).items()))
            for place in self.places
        ]
        springs = (self.passive.stiffness, self.passive.rest, self.passive.damping)
        places = [place._replace(surface=None) for place in self.places]  # type: ignore[arg-type]
        return (self.tree, *springs, self.passive.coordinate, self.actuation, places, surfaces)

    def resistance(self, q: Expression, v: Expression) -> Expression:
        """k (q - q_rest) + d v (nv, 1) of springs and dampers."""
        torque = ca.DM(self.passive.damping) * v
        for i in np.flatnonzero(self.passive.stiffness):
            stretch = q[int(self.passive.coordinate[i])] - self.passive.rest[i]
            torque[int(i)] += self.passive.stiffness[i] * stretch
        return torque


_Made = tuple[list[Expression], list[Expression]]


def _values(c: Constants) -> _Made:
    q, v, u = _symbols(q=c.nq, v=c.nv, u=c.actuation.shape[1])
    bodies = Bodies(c.tree, q)
    contacts = ContactPoints(bodies, c.places)
    motion = bodies.motion(v, ca.SX.zeros(c.nv, 1))
    bias = bodies.inverse_dynamics(motion, contacts.pushes(ca.SX.zeros(c.rows, 1)))
    drive = ca.DM(c.actuation) @ u - bias - c.resistance(q, v)
    rows = contacts.rows(motion)
    results = [bodies.mass(), drive, contacts.jacobian(), rows.accelerations, rows.gaps, rows.rates]
    return [q, v, u], results


def _derivatives(c: Constants) -> _Made:
    q, v, a, forces = _symbols(q=c.nq, v=c.nv, a=c.nv, forces=c.rows)
    bodies = Bodies(c.tree, q)
    contacts = ContactPoints(bodies, c.places)
    motion = bodies.motion(v, a)
    equations = bodies.inverse_dynamics(motion, contacts.pushes(forces)) + c.resistance(q, v)
    rows = contacts.rows(motion)
    what = ca.vertcat(equations, rows.accelerations, rows.rates)
    by_state = ca.horzcat(ca.jacobian(what, q) @ bodies.rate, ca.jacobian(what, v))
    return [q, v, a, forces], _split(by_state, c.nv, c.rows, c.rows)


def _impulse_derivatives(c: Constants) -> _Made:
    q, z, forces = _symbols(q=c.nq, z=c.nv, forces=c.rows)
    bodies = Bodies(c.tree, q)
    contacts = ContactPoints(bodies, c.places)
    kick = bodies.motion(ca.SX.zeros(c.nv, 1), z, weight=False)
    equations = bodies.inverse_dynamics(kick, contacts.pushes(forces))
    what = ca.vertcat(equations, contacts.rows(kick).accelerations)
    return [q, z, forces], _split(ca.jacobian(what, q) @ bodies.rate, c.nv, c.rows)


_MAKERS = {
    "values": _values,
    "derivatives": _derivatives,
    "impulse_derivatives": _impulse_derivatives,
}


def _symbols(**sizes: int) -> list[Expression]:
    return [ca.SX.sym(name, size) for name, size in sizes.items()]


def _split(matrix: Expression, *counts: int) -> list[Expression]:
    """Parts of so many rows each."""
    ends = np.cumsum([0, *counts]).tolist()
    return [matrix[i:j, :] for i, j in pairwise(ends)]
