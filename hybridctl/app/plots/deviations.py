"""Figures of deviations: what the first order predicts, and how they grow on periodic orbits."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from hybridctl.app.plots.panels import (
    BASELINE,
    REFERENCE,
    SKY,
    TRACKING,
    Figure,
    Line,
    Panel,
    arrange_panels,
    draw_series,
)
from hybridctl.base.checks import Array, check_member
from hybridctl.base.errors import InputError
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.orbits.stability import Stability
from hybridctl.sensitivity.linearization import Linearization

_SHOWN = 24
"""Largest number of initial directions that are drawn: more lines hide each other. A choice."""
_SAMPLES = 60
"""Samples of an arc: as many as a panel of 4.6 in shows without corners."""


def growth(
    found: Stability,
    path: str | os.PathLike[str] | None = None,
    *,
    periods: int = 50,
    title: str = "Deviations from a periodic orbit",
) -> Figure:
    """Draw lengths of deviations from a periodic orbit, to first order, and bounds of their growth.

    Args:
        found: Stability of the orbit.
        path: File to save the figure in; None to save none.
        periods: Number of periods that are drawn.
        title: Title of the figure.

    Returns:
        The figure, with at most 24 initial directions.
    """
    k: Array = np.arange(periods + 1, dtype=np.float64)
    lengths = np.maximum(found.propagate_lengths(periods)[:_SHOWN], np.finfo(np.float64).tiny)
    lines = [Line(k, row, None, BASELINE, width=0.6) for row in lengths]
    for bound, label, color in zip(
        found.growth, ("grows at least", "grows at most"), (REFERENCE, TRACKING), strict=True
    ):
        if bound > 0.0:
            lines.append(
                Line(k, np.power(bound, k), f"{label} by {bound:.4g} a period", color, "--")
            )
    panel = Panel("length / initial length", lines, log=True)
    return draw_series(path, [[panel]], title=f"{title}: {found.verdict}", xlabel="period")


def prediction(
    lin: Linearization,
    perturbed: HybridTrajectory,
    path: str | os.PathLike[str] | None = None,
    *,
    names: Sequence[str] | None = None,
    title: str = "First order",
) -> Figure:
    """Draw a nominal run, a perturbed one, and its first-order prediction, as [RS] Fig. 3.5.

    The prediction `alpha + z` jumps at the nominal events, the perturbed run at its own; in between
    they are on different sides of an event.

    Args:
        lin: Linearization along the nominal run.
        perturbed: The perturbed run, which begins in the same mode.
        path: File to save the figure in; None to save none.
        names: Labels of the coordinates to draw; None for all.
        title: Title of the figure.

    Returns:
        The figure.

    Raises:
        InputError: The runs begin in different modes.
        UnknownNameError: A name is no label of a coordinate.
    """
    run = lin.trajectory
    first, other = run.arcs[0], perturbed.arcs[0]
    if first.mode != other.mode:
        raise InputError(
            f"perturbed must begin in mode {first.mode!r} of the trajectory, got {other.mode!r}"
        )
    dx0 = first.space.difference(first(first.start), other(other.start))
    labels = lin.system.state_labels(first.mode)
    shown = labels if names is None else [check_member("names", name, labels) for name in names]
    curves = [
        (REFERENCE, "-", "nominal", _sample_states(run)),
        (TRACKING, "-", "perturbed", _sample_states(perturbed)),
    ]
    moved = []
    for arc, z in zip(run.arcs, lin.propagate(dx0), strict=True):
        times = np.linspace(arc.start, arc.end, _SAMPLES)
        states = [arc.space.integrate(arc(t), z(t)[:, 0]) for t in times.tolist()]
        moved.append((times, np.array(states)))
    curves.append((SKY, "--", "predicted", moved))
    panels = []
    for number, name in enumerate(shown):
        k = labels.index(name)
        panels.append(Panel(name, [
            Line(times, states[:, k], label if number == part == 0 else None, color, style)
            for color, style, label, parts in curves
            for part, (times, states) in enumerate(parts)
        ]))  # fmt: skip
    return draw_series(path, arrange_panels(panels), title=title)


def _sample_states(run: HybridTrajectory) -> list[tuple[Array, Array]]:
    """Return times and states of each arc."""
    found = []
    for arc in run.arcs:
        times = np.linspace(arc.start, arc.end, _SAMPLES)
        found.append((times, arc(times)))
    return found
