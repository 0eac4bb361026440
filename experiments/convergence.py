r"""Errors over the size of what makes them: maps against simulated flows, schemes against limits.

A map that is right to first order, :math:`d \mapsto \Phi d`, piecewise linear or linear, is off the
flow from a start that is off by :math:`\varepsilon d` by

.. math:: |x(\varepsilon d) - x(0) - \varepsilon \Phi d| = O(\varepsilon^2),

any other one by :math:`O(\varepsilon)`. The order is the slope of a line through the logarithms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from hybridctl.app.plots import CURVES, REFERENCE, Line, Panel, power_law, series
from hybridctl.base.checks import Array

STYLES = ("o-", "s--", "^-", "v:", "D:", "x:")
Rows: TypeAlias = Array | Sequence[Array]


@dataclass(frozen=True, eq=False)
class Convergence:
    """Errors (n,) of what shrinks with sizes (n,)."""

    sizes: Array
    errors: Array

    @property
    def order(self) -> float:
        """The slope of log(errors) over log(sizes), by least squares."""
        return float(np.polyfit(np.log(self.sizes), np.log(self.errors), 1)[0])

    @property
    def relative(self) -> Convergence:
        """The errors by the sizes, which are those of difference quotients."""
        return Convergence(self.sizes, self.errors / self.sizes)


def convergence(
    flow: Callable[[float], Rows], first_order: Rows, sizes: Sequence[float], norm: float = np.inf
) -> Convergence:
    """The errors of a first-order map against a flow, the largest for each size.

    flow: deviations (ndx,) of the flow for a size, in several directions or at several times.
    first_order: those that the map predicts for the size 1. norm: 2, or inf for entries.
    """
    return Convergence(
        np.array(sizes), np.array([_largest(flow(size), size, first_order, norm) for size in sizes])
    )


def _largest(found: Rows, size: float, first_order: Rows, norm: float) -> float:
    pairs = zip(found, first_order, strict=True)
    return max(float(np.linalg.norm(one - size * predicted, norm)) for one, predicted in pairs)


def convergence_panel(
    label: str, found: Mapping[str, Convergence], guide: Convergence, order: float
) -> Panel:
    """Errors by name on logarithmic axes, and a line of an order below those of the guide."""
    return Panel(
        label, [*curves(found), power_law(guide.sizes, 0.5 * guide.errors, order)], log=True
    )


def curves(found: Mapping[str, Convergence]) -> list[Line]:
    """Errors by name over their sizes."""
    looks = zip(found.items(), (*CURVES, REFERENCE), STYLES, strict=False)
    return [
        Line(one.sizes, np.maximum(one.errors, np.finfo(np.float64).eps), name, color, style)
        for (name, one), color, style in looks
    ]


def draw_convergence(path: Path, panels: Sequence[Panel], title: str, xlabel: str) -> None:
    """Panels of errors beside each other, over the logarithm of the sizes."""
    series(path, [panels], title=title, xlabel=xlabel, xlog=True)
