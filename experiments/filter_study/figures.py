"""The figures of the filter study: NEES over the time of the runs, one for each model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hybridctl.plots import CURVES, Line, Panel, series


def draw(path: Path, model: str, found: Mapping[str, Any]) -> None:
    """NEES per degree of freedom of every filter, beside the band; the salted one below all."""
    filters = found["filters"]
    lines = [
        _curve(values, "nees_per_degree", name, color, ".-", 3.5 if name == "salted" else 1.2)
        for (name, values), color in zip(filters.items(), CURVES, strict=False)
    ]
    for key, label in (("low", "99 % band"), ("high", None)):
        lines.append(_curve(filters["salted"], key, label, "black", "--", 1.2))
    panel = Panel("NEES / degree", lines, log=True)
    title = f"{model}, {filters['salted']['runs']} runs at the stated noise: 1 is right"
    series(path, [[panel]], title=title)


def _curve(
    values: Mapping[str, Any], key: str, label: str | None, color: str, style: str, width: float
) -> Line:
    rows = values["nees"]
    times, points = (np.array([row[k] for row in rows]) for k in ("time", key))
    return Line(times, points, label, color, style, width)
