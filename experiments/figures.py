"""Curves of several experiments: a quantity over a run, shares of values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hybridctl.app.plots import TRACKING, Line
from hybridctl.base.checks import Array
from hybridctl.hybrid.trajectory import HybridTrajectory


def make_time_line(
    run: HybridTrajectory,
    quantity: Callable[[Array], Array],
    label: str | None = None,
    color: str = TRACKING,
    style: str = "-",
    width: float = 1.4,
) -> Line:
    """Return the curve over time of a quantity of the states of a run, every 5 ms.

    Args:
        run: The run.
        quantity: Function of states (n, nx) that returns values (n,).
        label: Name of the curve, or None.
        color: Color of the curve.
        style: Style of the curve.
        width: Width of the curve, points.
    """
    sampled = [(times, quantity(arc(times))) for arc, times in run.sampled(5e-3)]
    times, values = (np.concatenate(column) for column in zip(*sampled, strict=True))
    return Line(times, values, label, color, style, width)


def shares_below(
    values: Array, label: str, color: str, style: str = "-", width: float = 1.6
) -> Line:
    """Return the steps of the share of values that are no larger than the abscissa.

    Args:
        values: Values (n,).
        label: Name of the curve.
        color: Color of the curve.
        style: Style of the curve.
        width: Width of the curve, points.
    """
    shares = np.repeat(np.arange(len(values) + 1) / len(values), 2)
    return Line(np.repeat(np.sort(values), 2), shares[1:-1], label, color, style, width)
