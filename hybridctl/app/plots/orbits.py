"""Figures of periodic orbits."""

from __future__ import annotations

import os

import numpy as np

from hybridctl.app.plots.panels import BASELINE, REFERENCE, TRACKING, Figure, Line, Panel, series
from hybridctl.checks import Array
from hybridctl.sensitivity.stability import Stability

_SHOWN = 24  # directions


def growth(
    found: Stability,
    path: str | os.PathLike[str] | None = None,
    *,
    periods: int = 50,
    title: str = "Deviations from a periodic orbit",
) -> Figure:
    """Lengths of deviations over the periods, to first order, and the bounds of their growth."""
    k: Array = np.arange(periods + 1, dtype=np.float64)
    lengths = np.maximum(found.deviations(periods)[:_SHOWN], np.finfo(np.float64).tiny)
    lines = [Line(k, row, None, BASELINE, width=0.6) for row in lengths]
    for bound, label, color in zip(
        found.growth, ("grows at least", "grows at most"), (REFERENCE, TRACKING), strict=True
    ):
        if bound > 0.0:
            lines.append(
                Line(k, np.power(bound, k), f"{label} by {bound:.4g} a period", color, "--")
            )
    panel = Panel("length over that at first", lines, log=True)
    return series(path, [[panel]], title=f"{title}: {found.verdict}", xlabel="period")
