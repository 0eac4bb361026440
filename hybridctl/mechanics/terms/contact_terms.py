r"""The terms of contact dynamics at a point, for all contacts at once; a mode picks its rows.

Everything above needs of a robot with contacts only

.. math:: M(q), \quad S u - h(q, v), \quad J(q), \quad \dot J v, \quad \text{gaps}, \quad J v

and the derivatives of :math:`M a + h - J^T f` and :math:`J a + \dot J v` at fixed a and f. Rows of
J are the normals of all contacts, then the tangents of the rough ones, as `ContactSet` has them.
They are made by Pinocchio (`multibody_terms`, `flat_terms`) or by expressions (`generated`).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from hybridctl.base.checks import Array


class TermValues(NamedTuple):
    """Terms at (q, v, u): c contacts, r rows.

    mass (nv, nv); drive (nv,) = S u - h, with springs and dampers; jacobian (r, nv), drift (r,)
    = Jdot v, gaps (c,) in m, rates (r,) = J v in m/s.
    """

    mass: Array
    drive: Array
    jacobian: Array
    drift: Array
    gaps: Array
    rates: Array


class TermDerivatives(NamedTuple):
    """Derivatives by (q, v), at fixed acceleration a and row forces f; D_v of the rates is J.

    equations (nv, 2 nv) of M a + h - J' f; accelerations (r, 2 nv) of J a + Jdot v;
    rates (r, 2 nv) of J v.
    """

    equations: Array
    accelerations: Array
    rates: Array


class ImpulseDerivatives(NamedTuple):
    """The derivatives by q of M z - J' f (nv, nv) and of the rates J z (r, nv), z and f fixed."""

    momentum: Array
    rates: Array


class Terms(Protocol):
    """What gives the terms of a robot with contacts.

    Arrays may be views that hold until the same method is called again in the same thread.
    """

    def values(self, q: Array, v: Array, u: Array) -> TermValues:
        """All terms at a point."""
        ...

    def derivatives(self, q: Array, v: Array, a: Array, forces: Array) -> TermDerivatives:
        """Derivatives at given acceleration (nv,) and row forces (r,)."""
        ...

    def impulse_derivatives(self, q: Array, z: Array, forces: Array) -> ImpulseDerivatives:
        """Derivatives of momentum and rates at a given velocity z (nv,)."""
        ...

    def load_turns(self, q: Array, z: Array, closed: tuple[int, ...], rank: int) -> Array | None:
        """How rows of closed contacts turn on bodies that move by z (nv,): by q, (r, nv).

        Rows are J = X J_b, with J_b of the bodies and X of the points on each. Where loads without
        effect leave every body alone, so that X has the rank of J M^-1 J', the derivative of
        J M^-1 J' y at fixed y is D_q(X) J_b z, for z = M^-1 J' y, but for X times something, which
        such loads do not feel. rank: of J M^-1 J'. None where it is another one, or not known.
        """
        return None

    def impulse_gradient(
        self, q: Array, velocities: Array, forces: Array, moved: Array, along: Array
    ) -> Array:
        """The gradient (nv,) by q of a sum of y' (M z - J' f) - w' J z, all else fixed.

        Of k such: velocities z and moved y (k, nv), forces f and along w (k, r).
        """
        gradient = np.zeros(moved.shape[1])
        for z, f, y, w in zip(velocities, forces, moved, along, strict=True):
            d = self.impulse_derivatives(q, z, f)
            gradient += y @ d.momentum - w @ d.rates
        return gradient


class OtherTerms(Terms):
    """Terms made of others, `own`: all of these, but for what a subclass says."""

    def __init__(self, own: Terms) -> None:
        self.own = own

    def values(self, q: Array, v: Array, u: Array) -> TermValues:
        """All terms at a point."""
        return self.own.values(q, v, u)

    def derivatives(self, q: Array, v: Array, a: Array, forces: Array) -> TermDerivatives:
        """Derivatives at given acceleration and row forces."""
        return self.own.derivatives(q, v, a, forces)

    def impulse_derivatives(self, q: Array, z: Array, forces: Array) -> ImpulseDerivatives:
        """Derivatives of momentum and rates at a given velocity."""
        return self.own.impulse_derivatives(q, z, forces)

    def load_turns(self, q: Array, z: Array, closed: tuple[int, ...], rank: int) -> Array | None:
        """How rows of closed contacts turn on bodies that move."""
        return self.own.load_turns(q, z, closed, rank)

    def impulse_gradient(
        self, q: Array, velocities: Array, forces: Array, moved: Array, along: Array
    ) -> Array:
        """The gradient of a sum, all else fixed."""
        return self.own.impulse_gradient(q, velocities, forces, moved, along)
