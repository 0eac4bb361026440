"""The figures show the root's path from above, and its errors over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from hybridctl.experiments.legged.recording import MotionCapture

from hybridctl.app.plots import (
    BANDS,
    BASELINE,
    GREEN,
    ORANGE,
    TRACKING,
    Band,
    Line,
    Panel,
    draw_series,
    make_figure,
    save_figure,
)
from hybridctl.base.checks import Array
from hybridctl.estimation.result import FilterResult
from hybridctl.legged.system import STICK

if TYPE_CHECKING:
    from hybridctl.experiments.legged.score import BaseOutcome

COLORS = {"filter": TRACKING, "smoother": GREEN, "odometry": ORANGE, "no mode switches": BASELINE}
SHOWN = ("filter", "smoother", "odometry")


def draw_figures(
    folder: Path, truth: MotionCapture, outcomes: Sequence[BaseOutcome], result: FilterResult
) -> None:
    """Draw all figures into a folder.

    Args:
        folder: The folder.
        truth: Motion capture of the root.
        outcomes: Outcomes of all ways to estimate the base.
        result: Result of the filter, whose contacts are shaded.
    """
    by_name = {outcome.name: outcome for outcome in outcomes}
    _draw_path(folder / "path.png", truth, by_name)
    _draw_errors(folder / "errors.png", by_name, _make_bands(result))


def _draw_path(path: Path, truth: MotionCapture, by_name: dict[str, BaseOutcome]) -> None:
    """Draw the root from above."""
    figure = make_figure(8.0, 3.0)
    axes = figure.subplots()
    seen = np.where(truth.good[:, None], truth.position, np.nan)
    axes.plot(seen[:, 0], seen[:, 1], color="black", lw=2.4, label="motion capture")
    for name in (*SHOWN, "no mode switches"):
        x, y, _ = by_name[name].track.position.T
        axes.plot(x, y, color=COLORS[name], lw=1.4, label=name)
    axes.set_xlabel("x [m]")
    axes.set_ylabel("y [m]")
    axes.grid(alpha=0.3)
    axes.set_aspect("equal")
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    figure.suptitle("The root from above")
    save_figure(figure, path)


def _draw_errors(path: Path, by_name: dict[str, BaseOutcome], bands: Sequence[Band]) -> None:
    """Draw errors of position and yaw, within two standard deviations of the filter."""
    main = by_name["filter"].errors
    assert main.spread is not None
    panels = []
    for k, label in enumerate(("x [mm]", "y [mm]", "z [mm]", "yaw [deg]")):
        scale = 1e3 if k < 3 else np.degrees(1.0)
        lines = []
        for name in SHOWN:
            found = by_name[name].errors
            values = found.position[:, k] if k < 3 else found.angles[:, 2]
            curve = _break_at_gaps(found.times, scale * values)
            lines.append(Line(*curve, name if k == 0 else None, COLORS[name]))
        for sign in (2.0, -2.0):
            spread = sign * scale * main.spread[:, k]
            bound = "filter, 2 standard deviations" if k == 0 and sign > 0.0 else None
            lines.append(Line(main.times, spread, bound, TRACKING, "--", 0.9))
        panels.append([Panel(label, lines, zero=True, legend="lower left")])
    draw_series(path, panels, title="Errors of the root; shaded: feet in contact", bands=bands)


def _break_at_gaps(times: Array, values: Array) -> tuple[Array, Array]:
    """Return a curve with a NaN where rows are missing for more than 0.1 s."""
    late = np.flatnonzero(np.diff(times) > 0.1) + 1
    return np.insert(times, late, times[late]), np.insert(values, late, np.nan)


def _make_bands(result: FilterResult) -> list[Band]:
    """Return a band for each span of time between changes of the feet in contact."""
    edges = [result.initial.time, *(event.time for event in result.events), result.times[-1]]
    modes = [result.initial.mode, *(event.mode_after for event in result.events)]
    found = []
    for start, end, mode in zip(edges[:-1], edges[1:], modes, strict=True):
        assert isinstance(mode, tuple)
        standing = [side for side, state in zip("LR", mode, strict=True) if state == STICK]
        color = BANDS[len(standing)] if len(standing) < 2 else BANDS[0]
        if standing == ["R"]:
            color = BANDS[2]
        found.append(Band(start, end, "".join(standing) if end - start > 0.4 else "", color))
    return found
