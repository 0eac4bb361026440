r"""Errors as a function of what causes them: of first-order maps against flows, of schemes.

A map that is right to first order, :math:`d \mapsto \Phi d`, linear or piecewise linear, differs
from the flow of a start perturbed by :math:`\varepsilon d` by

.. math:: |x(\varepsilon d) - x(0) - \varepsilon \Phi d| = O(\varepsilon^2),

any other map by :math:`O(\varepsilon)`. The order is the slope of a line through the logarithms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from hybridctl.base.checks import Array

Rows: TypeAlias = Array | Sequence[Array]


@dataclass(frozen=True, eq=False)
class Convergence:
    """Errors over the sizes of what causes them.

    Attributes:
        sizes: Sizes (n,).
        errors: Errors (n,).
    """

    sizes: Array
    errors: Array

    @property
    def order(self) -> float:
        """Slope of log(errors) over log(sizes), by least squares."""
        return float(np.polyfit(np.log(self.sizes), np.log(self.errors), 1)[0])

    @property
    def relative(self) -> Convergence:
        """Errors divided by the sizes: those of difference quotients."""
        return Convergence(self.sizes, self.errors / self.sizes)


def measure_errors(
    flow: Callable[[float], Rows], first_order: Rows, sizes: Sequence[float], norm: float = np.inf
) -> Convergence:
    """Return the largest errors of a first-order map against a flow, by size.

    Args:
        flow: Function that returns perturbations (ndx,) of the flow for a size, one for each
            direction or time.
        first_order: Perturbations that the map predicts for the size 1, in the same order.
        sizes: Sizes of the initial perturbation.
        norm: 2, or inf for the largest entry.
    """
    errors = [
        max(
            float(np.linalg.norm(found - size * predicted, norm))
            for found, predicted in zip(flow(size), first_order, strict=True)
        )
        for size in sizes
    ]
    return Convergence(np.array(sizes), np.array(errors))
