"""The figure of `validate`: remainders over epsilon, errors of differences over their step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hybridctl.plots import GREEN, ORANGE, REFERENCE, TRACKING, canvas, save_figure

if TYPE_CHECKING:
    from hybridctl.experiments.linearization.validate import Config, Result

COLORS = (TRACKING, REFERENCE, GREEN, ORANGE)
STYLES = ("o-", "s-", "^-", "d-")


def draw(path: Path, experiment: str, config: Config, results: Mapping[str, Result]) -> None:
    """Remainders on the left, derivative errors with and without saltation on the right."""
    figure = canvas(10.5, 4.8)
    left, right = figure.subplots(1, 2)
    for (name, result), color, style in zip(results.items(), COLORS, STYLES, strict=False):
        label: str | None = name
        for remainders in result.remainders:
            left.loglog(config.sizes, remainders, style, color=color, ms=4, lw=1.0, label=label)
            label = None
        errors = result.derivative_errors
        right.loglog(config.steps, errors, style, color=color, ms=4, lw=1.3, label=name)
        right.loglog(config.steps, result.reset_errors, style[0] + ":", color=color, ms=4, lw=1.3)
    sizes = np.array(config.sizes)
    least = min(float(result.remainders[:, 0].min()) for result in results.values())
    guide = 0.3 * least * (sizes / sizes[0]) ** 2
    left.loglog(sizes, guide, "--", color="black", lw=1.0, label="slope 2")
    left.set_xlabel("epsilon")
    left.set_ylabel("largest |x - alpha - epsilon z|")
    left.set_title("Remainder of the linearization", fontsize=10)
    right.plot([], [], "-", color="black", lw=1.0, label="saltation matrices")
    right.plot([], [], ":", color="black", lw=1.3, label="Jacobians of the resets only")
    right.set_xlabel("step of the difference")
    right.set_ylabel("relative error")
    right.set_title("Derivative of the final state", fontsize=10)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.suptitle(f"First-order validation: {experiment}")
    save_figure(figure, path)
