"""The figure of the filter study: NEES over the time of the run, and over the noise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from hybridctl.experiments.filtering.figures import COLORS

from hybridctl.plots import Line, Panel, series


def draw(path: Path, summary: Mapping[str, Any]) -> None:
    """One row for each model; NEES per degree of freedom of every filter, beside the band."""
    rows = []
    for model, found in summary["models"].items():
        lines = []
        for (name, values), color in zip(found["filters"].items(), COLORS, strict=False):
            lines.append(_curve(values, "nees_per_degree", name, color, ".-"))
        salted = found["filters"]["salted"]
        lines += [
            _curve(salted, "low", "99 % band", "black", "--"),
            _curve(salted, "high", None, "black", "--"),
        ]
        rows.append([Panel(f"{model}: NEES / degree", lines, log=True)])
    series(path, rows, title="Consistency at the stated noise; 1 is right", xlabel="checkpoint")


def _curve(values: Mapping[str, Any], key: str, label: str | None, color: str, style: str) -> Line:
    points = np.array([row[key] for row in values["nees"]])
    return Line(np.arange(1.0, len(points) + 1.0), points, label, color, style)
