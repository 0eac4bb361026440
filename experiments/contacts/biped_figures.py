"""The figure of the biped experiment: motion after the landing as a function of the pitch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hybridctl.checks import Array
from hybridctl.page.motion import Mover, Scene, write_motion
from hybridctl.plots import REFERENCE, TRACKING, Line, Panel, series
from hybridctl.report import RunFolder

if TYPE_CHECKING:
    from hybridctl.experiments.contacts.biped import Result
    from hybridctl.robots.biped import Parameters

    from hybridctl.hybrid.trajectory import HybridTrajectory

SHOWN = ((4, "rise [m/s]"), (2, "pitch [rad]"), (5, "pitch rate [rad/s]"))
SIDES = ((-1.0, REFERENCE, "right foot first"), (1.0, TRACKING, "left foot first"))
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


def draw_flow(folder: RunFolder, results: Mapping[str, Result]) -> None:
    """A column for each ground: drops as dots, and the one-sided derivatives as tangents."""
    rows = [
        [
            Panel(f"{name}\n{label}", _flow(result, component), least=2e-3)
            for name, result in results.items()
        ]
        for component, label in SHOWN
    ]
    title = "A biped a moment after it has landed, on four kinds of ground"
    series(folder / "figures/flow.png", rows, title=title, xlabel="initial pitch [rad]")


def _flow(result: Result, component: int) -> list[Line]:
    """A component of the final state over the pitch; without tangents where it jumps at level."""
    lines = [Line(result.pitches, result.finals[:, component], "simulated", "black", ".")]
    if result.sides is None:
        return lines
    size = np.array([0.0, TANGENT * float(result.pitches.max())])
    return lines + [
        Line(sign * size, result.level[component] + slope * size, name, color)
        for slope, (sign, color, name) in zip(result.sides[:, component], SIDES, strict=True)
    ]
