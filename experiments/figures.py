"""Curves that several experiments draw: a quantity over a run, shares of values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hybridctl.app.plots import TRACKING, Line
from hybridctl.base.checks import Array
from hybridctl.hybrid.trajectory import HybridTrajectory


def over_time(
    run: HybridTrajectory,
    quantity: Callable[[Array], Array],
    label: str | None = None,
    color: str = TRACKING,
    style: str = "-",
    width: float = 1.4,
) -> Line:
    """The curve over time of a quantity (n,) of the states (n, nx) of a run, every 5 ms."""
    sampled = [(times, quantity(arc(times))) for arc, times in run.sampled(5e-3)]
    times, values = (np.concatenate(column) for column in zip(*sampled, strict=True))
    return Line(times, values, label, color, style, width)


def shares_below(
    values: Array, label: str, color: str, style: str = "-", width: float = 1.6
) -> Line:
    """The steps of the share of values (n,) that are no larger than the abscissa."""
    shares = np.repeat(np.arange(len(values) + 1) / len(values), 2)
    return Line(np.repeat(np.sort(values), 2), shares[1:-1], label, color, style, width)
