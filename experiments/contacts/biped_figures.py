"""The figure of the biped experiment: motion after the landing as a function of the pitch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hybridctl.checks import Array
from hybridctl.page.motion import Mover, Scene, write_motion
from hybridctl.plots import REFERENCE, TRACKING, save_figure
from hybridctl.report import RunFolder

if TYPE_CHECKING:
    from hybridctl.experiments.contacts.biped import Result
    from hybridctl.robots.biped import Parameters

    from hybridctl.hybrid.trajectory import HybridTrajectory

SHOWN = ((4, "velocity upwards [m/s]"), (2, "pitch [rad]"), (5, "rate of the pitch [rad/s]"))
TANGENT = 0.6  # of the reach, on either side


def write_drops(
    folder: RunFolder, drops: Mapping[str, tuple[Parameters, HybridTrajectory]]
) -> None:
    """The motion of drops, each a scene by its title, for the page."""
    scenes = []
    for title, (parameters, run) in drops.items():
        ground = np.array([(x, -parameters.curvature * x**2) for x in np.linspace(-0.7, 0.7, 41)])
        mover = Mover("biped", run, partial(_outline, parameters))
        scenes.append(Scene(title, [mover], [ground]))
    write_motion(folder, scenes)


def _outline(p: Parameters, x: Array) -> list[Array]:
    """Both limbs, from the body to their feet."""
    sides = ((-1.0, x[2] + p.spread), (1.0, x[2] - p.spread))
    feet = [x[:2] + s * p.length * np.array([np.cos(a), np.sin(a)]) for s, a in sides]
    return [np.array([feet[0], x[:2], feet[1]])]


def draw_flow(path: Path, results: Mapping[str, Result]) -> None:
    """A column for each ground: drops as dots, and the one-sided derivatives as tangents."""
    figure = Figure(figsize=(3.6 * len(results), 8.0), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(SHOWN), len(results), squeeze=False, sharex=True)
    for column, (name, result) in enumerate(results.items()):
        reach = float(result.pitches.max())
        for (component, label), axes in zip(SHOWN, grid[:, column], strict=True):
            values = result.finals[:, component]
            axes.plot(result.pitches, values, "o", color="black", ms=2.5, label="simulated")
            if result.sides is not None:
                for slope, sign, color, title in zip(
                    result.sides[:, component],
                    (-1.0, 1.0),
                    (REFERENCE, TRACKING),
                    ("right foot first", "left foot first"),
                    strict=True,
                ):
                    size = np.array([0.0, TANGENT * reach])
                    line = result.level[component] + slope * size
                    axes.plot(sign * size, line, color=color, lw=1.8, label=title)
            axes.grid(alpha=0.3)
            axes.set_ylabel(label, fontsize=8)
            spread, middle = np.ptp(values), 0.5 * (values.max() + values.min())
            if spread < 1e-3:
                axes.set_ylim(middle - 1e-3, middle + 1e-3)
        kind = name if result.sides is not None else f"{name} (jumps at level)"
        grid[0][column].set_title(kind, fontsize=10)
        grid[-1][column].set_xlabel("initial pitch [rad]")
    grid[0][0].legend(fontsize=7)
    figure.suptitle("A biped a moment after it has landed")
    save_figure(figure, path)
