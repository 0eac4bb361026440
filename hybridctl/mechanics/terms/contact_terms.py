r"""The terms of contact dynamics at a point, for all contacts at once; a mode picks its rows.

Everything above needs of a robot with contacts only

.. math:: M(q), \quad S u - h(q, v), \quad J(q), \quad \dot J v, \quad \text{gaps}, \quad J v

and the derivatives of :math:`M a + h - J^T f` and :math:`J a + \dot J v` at fixed a and f. Rows of
J are the normals of all contacts, then the tangents of the rough ones, as `ContactSet` has them.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.mechanics.contacts.joint_rows import JointContactSet


class TermValues(NamedTuple):
    """Terms at (q, v, u): c contacts, r rows.

    Attributes:
        mass: M (nv, nv).
        drive: S u - h (nv,), with springs and dampers in h.
        jacobian: J (r, nv).
        drift: Jdot v (r,).
        gaps: Gaps (c,), m or rad.
        rates: J v (r,), m/s or rad/s.
    """

    mass: Array
    drive: Array
    jacobian: Array
    drift: Array
    gaps: Array
    rates: Array


class TermDerivatives(NamedTuple):
    """Derivatives by (q, v), at fixed acceleration a and row forces f.

    Attributes:
        equations: Of M a + h - J' f, (nv, 2 nv).
        accelerations: Of J a + Jdot v, (r, 2 nv).
        rates: Of J v, (r, 2 nv); those by v are J.
    """

    equations: Array
    accelerations: Array
    rates: Array


class ImpulseDerivatives(NamedTuple):
    """Derivatives by q, at fixed velocity z and row impulses f.

    Attributes:
        momentum: Of M z - J' f, (nv, nv).
        rates: Of J z, (r, nv).
    """

    momentum: Array
    rates: Array


class LengthDerivatives(NamedTuple):
    """Derivatives by 4 lengths of each of k contacts in space, at fixed q, v, a and row forces f.

    The lengths are the position of the contact's point (3,) in the frame of its joint, and the
    radius of the sphere around it. By the radius of a point derivatives are zero.

    Attributes:
        pushes: Of J' f, (nv, 4 k).
        accelerations: Of J a + Jdot v, (r, 4 k).
        rates: Of J v, (r, 4 k).
        gaps: Of the gaps, (c, 4 k).
    """

    pushes: Array
    accelerations: Array
    rates: Array
    gaps: Array


class Terms(Protocol):
    """A source of the terms of a robot with contacts.

    Arrays may be views that hold until the same method is called again in the same thread.
    """

    def values(self, q: Array, v: Array, u: Array) -> TermValues:
        """Return all terms at a point.

        Args:
            q: Configuration (nq,).
            v: Velocity (nv,).
            u: Input (nu,).
        """
        ...

    def derivatives(self, q: Array, v: Array, a: Array, forces: Array) -> TermDerivatives:
        """Return the derivatives by (q, v), at fixed acceleration and row forces.

        Args:
            q: Configuration (nq,).
            v: Velocity (nv,).
            a: Acceleration (nv,).
            forces: Forces (r,) along the rows.
        """
        ...

    def impulse_derivatives(self, q: Array, z: Array, forces: Array) -> ImpulseDerivatives:
        """Return the derivatives by q of momentum and rates.

        Args:
            q: Configuration (nq,).
            z: Velocity (nv,).
            forces: Impulses (r,) along the rows.
        """
        ...

    def impulse_derivatives_at(self, q: Array, z: Array, forces: Array) -> ImpulseDerivatives:
        """Return `impulse_derivatives` at m points, in new arrays with the point as first axis.

        Args:
            q: Configurations (m, nq).
            z: Velocities (m, nv).
            forces: Impulses (m, r) along the rows.
        """
        momentum = np.empty((*z.shape, z.shape[1]))
        rates = np.empty((*forces.shape, z.shape[1]))
        for i, point in enumerate(zip(q, z, forces, strict=True)):
            momentum[i], rates[i] = self.impulse_derivatives(*point)
        return ImpulseDerivatives(momentum, rates)

    def load_turns(self, q: Array, z: Array, closed: tuple[int, ...], rank: int) -> Array | None:
        """Return how rows of closed contacts turn on bodies that move by z: by q, (r, nv).

        Rows are J = X J_b, with J_b of the bodies and X of the points on each. Where loads without
        effect leave every body alone, so that X has the rank of J M^-1 J', the derivative of
        J M^-1 J' y at fixed y is D_q(X) J_b z, for z = M^-1 J' y, but for X times something, which
        such loads do not feel.

        Args:
            q: Configuration (nq,).
            z: Velocity (nv,).
            closed: Closed contacts.
            rank: Rank of J M^-1 J' for their rows.

        Returns:
            The turns, or None where X has another rank, or this source cannot tell.
        """
        return None

    def impulse_gradient(
        self, q: Array, velocities: Array, forces: Array, moved: Array, along: Array
    ) -> Array:
        """Return the gradient (nv,) by q of a sum over k of y' (M z - J' f) - w' J z.

        Args:
            q: Configuration (nq,).
            velocities: z (k, nv).
            forces: f (k, r).
            moved: y (k, nv).
            along: w (k, r).
        """
        gradient = np.zeros(moved.shape[1])
        for z, f, y, w in zip(velocities, forces, moved, along, strict=True):
            d = self.impulse_derivatives(q, z, f)
            gradient += y @ d.momentum - w @ d.rates
        return gradient


class WrappedTerms(Terms):
    """Terms made of others: all of these, but for the methods that a subclass overrides.

    Args:
        own: The terms that are wrapped.
    """

    def __init__(self, own: Terms) -> None:
        self.own = own

    def values(self, q: Array, v: Array, u: Array) -> TermValues:
        """Return all terms at a point.

        Args:
            q: Configuration (nq,).
            v: Velocity (nv,).
            u: Input (nu,).
        """
        return self.own.values(q, v, u)

    def derivatives(self, q: Array, v: Array, a: Array, forces: Array) -> TermDerivatives:
        """Return the derivatives by (q, v), at fixed acceleration and row forces.

        Args:
            q: Configuration (nq,).
            v: Velocity (nv,).
            a: Acceleration (nv,).
            forces: Forces (r,) along the rows.
        """
        return self.own.derivatives(q, v, a, forces)

    def impulse_derivatives(self, q: Array, z: Array, forces: Array) -> ImpulseDerivatives:
        """Return the derivatives by q of momentum and rates.

        Args:
            q: Configuration (nq,).
            z: Velocity (nv,).
            forces: Impulses (r,) along the rows.
        """
        return self.own.impulse_derivatives(q, z, forces)

    def load_turns(self, q: Array, z: Array, closed: tuple[int, ...], rank: int) -> Array | None:
        """Return how rows of closed contacts turn on bodies that move, see `Terms`.

        Args:
            q: Configuration (nq,).
            z: Velocity (nv,).
            closed: Closed contacts.
            rank: Rank of J M^-1 J' for their rows.
        """
        return self.own.load_turns(q, z, closed, rank)

    def impulse_gradient(
        self, q: Array, velocities: Array, forces: Array, moved: Array, along: Array
    ) -> Array:
        """Return the gradient of a sum, see `Terms`.

        Args:
            q: Configuration (nq,).
            velocities: z (k, nv).
            forces: f (k, r).
            moved: y (k, nv).
            along: w (k, r).
        """
        return self.own.impulse_gradient(q, velocities, forces, moved, along)


class TermsWithJointRows(WrappedTerms):
    """The terms of contacts in space, `own`, with the constant rows of joints among them.

    Rows of joints do not depend on the configuration, so that their drift and the derivatives of
    their forces are zero.

    Args:
        own: Terms of the contacts in space.
        rows: All contacts.
    """

    def __init__(self, own: Terms, rows: JointContactSet) -> None:
        super().__init__(own)
        self._rows = rows

    def values(self, q: Array, v: Array, u: Array) -> TermValues:
        """Return all terms at a point.

        Args:
            q: Configuration (nq,).
            v: Velocity (nv,).
            u: Input (nu,).
        """
        own, rows = self.own.values(q, v, u), self._rows
        jacobian = rows.with_joint_rows(own.jacobian)
        return TermValues(
            own.mass,
            own.drive,
            jacobian,
            rows.with_zero_rows(own.drift),
            rows.with_joint_gaps(q, own.gaps),
            jacobian @ v,
        )

    def derivatives(self, q: Array, v: Array, a: Array, forces: Array) -> TermDerivatives:
        """Return the derivatives by (q, v), at fixed acceleration and row forces.

        Args:
            q: Configuration (nq,).
            v: Velocity (nv,).
            a: Acceleration (nv,).
            forces: Forces (r,) along the rows.
        """
        rows, nv = self._rows, len(v)
        own = self.own.derivatives(q, v, a, rows.take_space_rows(forces))
        rates = np.zeros((len(rows.owner), 2 * nv))
        rates[:, :nv] = rows.with_zero_rows(own.rates[:, :nv])
        rates[:, nv:] = rows.with_joint_rows(own.rates[:, nv:])
        return TermDerivatives(own.equations, rows.with_zero_rows(own.accelerations), rates)

    def impulse_derivatives(self, q: Array, z: Array, forces: Array) -> ImpulseDerivatives:
        """Return the derivatives by q of momentum and rates.

        Args:
            q: Configuration (nq,).
            z: Velocity (nv,).
            forces: Impulses (r,) along the rows.
        """
        own = self.own.impulse_derivatives(q, z, self._rows.take_space_rows(forces))
        return ImpulseDerivatives(own.momentum, self._rows.with_zero_rows(own.rates))

    def load_turns(self, q: Array, z: Array, closed: tuple[int, ...], rank: int) -> Array | None:
        """Return None: rows of joints act inside a tree of bodies, not on its bodies alone.

        Args:
            q: Configuration (nq,).
            z: Velocity (nv,).
            closed: Closed contacts.
            rank: Rank of J M^-1 J' for their rows.
        """
        return None

    def impulse_gradient(
        self, q: Array, velocities: Array, forces: Array, moved: Array, along: Array
    ) -> Array:
        """Return the gradient (nv,) by q of a sum over k terms; see `Terms.impulse_gradient`.

        Rows of joints are constant, so that their forces and rates have no part in it.

        Args:
            q: Configuration (nq,).
            velocities: z (k, nv).
            forces: f (k, r) of all rows.
            moved: y (k, nv), which multiplies the momentum M z - J' f.
            along: w (k, r), which multiplies the rates J z.
        """
        own_forces, own_along = map(self._rows.take_space_rows, (forces, along))
        return self.own.impulse_gradient(q, velocities, own_forces, moved, own_along)
