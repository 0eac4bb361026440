"""Piecewise constant fields that cross all coordinate planes, [Bder] 3.1."""

import numpy as np

import hybridctl as hc
from hybridctl.hybrid.mode import Edge, FieldJacobian, GuardJacobian, GuardSet, Outgoing

FIGURE_3 = {
    "linear": {(-1, -1): (0, 0), (1, -1): (-0.5, 0), (-1, 1): (0, -0.5), (1, 1): (-0.5, -0.5)},
    "piecewise": {(-1, -1): (0, 0), (1, -1): (-0.5, 0), (-1, 1): (0, -0.25), (1, 1): (0, -0.5)},
}
"""Delta of the two fields of [Bder] Fig. 3, whose derivatives are linear and only piecewise so."""


def system(delta, n):
    r"""The field :math:`\dot x = 1 + \Delta(sign\, x)` on R^n, [Bder] (11).

    A mode is the tuple of signs, -1 or 1; guard "x1 rises" fires in modes with the first sign -1,
    and so on. Every component rises, so none ever falls again.
    """
    derivative = FieldJacobian(np.zeros((n, n)), np.zeros((n, 0)))

    def mode(signs):
        return hc.Mode(
            signs,
            hc.VectorSpace(n),
            lambda t, x, u: 1.0 + np.array(delta(signs)),
            jacobian=lambda t, x, u: derivative,
        )

    def outgoing(signs):
        low = [j for j in range(n) if signs[j] < 0]
        names = {f"x{j + 1} rises": j for j in low}
        slopes = GuardJacobian(np.zeros(len(low)), -np.eye(n)[low], np.zeros((len(low), 0)))

        def edge(fired):
            flipped = {names[name] for name in fired if name in names}
            target = tuple(1 if j in flipped else sign for j, sign in enumerate(signs))
            return Edge(hc.Reset.identity(), target) if flipped else None

        guards = GuardSet(tuple(names), lambda t, x, u: -x[low], lambda t, x, u: slopes)
        return Outgoing(guards, edge)

    return hc.HybridSystem(mode, outgoing, [f"x{j + 1} rises" for j in range(n)])


def before_corner(delta, n):
    """Half a second before the origin, where all guards fire at once, [Bder] 3.1."""
    return -0.5 * (1.0 + np.array(delta((-1,) * n)))
