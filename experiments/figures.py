"""The curve of the shares of values, which several experiments draw."""

from __future__ import annotations

import numpy as np

from hybridctl.app.plots import Line
from hybridctl.base.checks import Array


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
