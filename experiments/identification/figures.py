"""The likelihood over each parameter, with the others most likely."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hybridctl.experiments.identification.likelihoods import NAMES
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hybridctl.estimation.surface import Surface, Top
from hybridctl.plots import BASELINE, REFERENCE, TRACKING, save_figure

_UNITS = {"friction": (1.0, ""), "restitution": (1.0, ""), "rounding": (1e3, " [mm]")}


def draw(folder: Path, surface: Surface, top: Top) -> None:
    """Profiles of all tosses and of their halves, and what was evaluated, in the folder.

    A point of the evaluation is drawn as far from the profile as it is from the quadratic.
    """
    folder.mkdir(exist_ok=True)
    n = surface.values.shape[1]
    even, odd = surface.top(list(range(0, n, 2))), surface.top(list(range(1, n, 2)))
    figure = Figure(figsize=(10.0, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    rests = surface.rests.sum(axis=1)
    for k, (axes, name) in enumerate(zip(figure.subplots(1, 3, sharey=True), NAMES, strict=True)):
        unit, label = _UNITS[name]
        low, high = surface.points[:, k].min(), surface.points[:, k].max()
        at = np.linspace(low, high, 200)
        for one, color, what in (
            (top, TRACKING, "all tosses"),
            (even, REFERENCE, "even ones"),
            (odd, BASELINE, "odd ones"),
        ):
            fall = -0.5 * ((at - one.values[k]) / one.standard_errors[k]) ** 2
            axes.plot(unit * at, fall, color=color, lw=1.6, label=what if k == 0 else None)
        x = surface.points[:, k]
        own = -0.5 * ((x - top.values[k]) / top.standard_errors[k]) ** 2
        axes.plot(unit * x, own + rests, ".", color="black", label="evaluated" if k == 0 else None)
        axes.set_xlabel(f"{name}{label}")
        axes.grid(alpha=0.3)
        if k == 0:
            axes.set_ylabel("log-likelihood below its top")
            axes.legend(fontsize=8)
    figure.suptitle("Profiles of the log-likelihood of the tosses")
    save_figure(figure, folder / "profiles.png")
