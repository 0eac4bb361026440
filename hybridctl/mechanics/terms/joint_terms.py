"""The terms of contact dynamics where contacts of joints stand beside contacts in space."""

from __future__ import annotations

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.mechanics.contacts.joint_rows import JointContactSet
from hybridctl.mechanics.terms.contact_terms import (
    ImpulseDerivatives,
    OtherTerms,
    TermDerivatives,
    Terms,
    TermValues,
)


class JointTerms(OtherTerms):
    """The terms of the contacts in space, `own`, with the constant rows of joints among them.

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
        """All terms at a point."""
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
        """Derivatives at given acceleration (nv,) and row forces (r,)."""
        rows, nv = self._rows, len(v)
        own = self.own.derivatives(q, v, a, rows.of_space(forces))
        rates = np.zeros((len(rows.owner), 2 * nv))
        rates[:, :nv] = rows.with_zero_rows(own.rates[:, :nv])
        rates[:, nv:] = rows.with_joint_rows(own.rates[:, nv:])
        return TermDerivatives(own.equations, rows.with_zero_rows(own.accelerations), rates)

    def impulse_derivatives(self, q: Array, z: Array, forces: Array) -> ImpulseDerivatives:
        """Derivatives of momentum and rates at a given velocity z (nv,)."""
        own = self.own.impulse_derivatives(q, z, self._rows.of_space(forces))
        return ImpulseDerivatives(own.momentum, self._rows.with_zero_rows(own.rates))

    def load_turns(self, q: Array, z: Array, closed: tuple[int, ...], rank: int) -> Array | None:
        """None: rows of joints act inside a tree of bodies, not on its bodies alone."""
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
        of_space = self._rows.of_space
        return self.own.impulse_gradient(q, velocities, of_space(forces), moved, of_space(along))
