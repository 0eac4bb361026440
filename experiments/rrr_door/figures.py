"""The figures of the door experiment: errors, inputs (5.7 of the thesis), poses (5.9), contacts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hybridctl.experiments.contacts.closed_form import draw_contacts
from hybridctl.experiments.rrr_door.laws import DoorRuns
from hybridctl.robots.rrr_door import DoorParameters

from hybridctl import HybridTrajectory, Reference
from hybridctl.app.page.motion import Mover, Scene, write_motion
from hybridctl.app.plots import (
    BASELINE,
    REFERENCE,
    TRACKING,
    Band,
    Line,
    Panel,
    Pose,
    draw_series,
    make_mode_bands,
    save_snapshots,
)
from hybridctl.base.checks import Array
from hybridctl.base.run_folder import RunFolder

NAMES = ("shoulder", "elbow", "wrist")
PERIOD = 2e-3
"""Sampling period of curves, s: finer than a pixel of a run of 2 s."""


def draw_all(parameters: DoorParameters, runs: DoorRuns, folder: RunFolder) -> None:
    """Draw every figure of the experiment, and write the motion for the page.

    Args:
        parameters: Parameters of arm and door.
        runs: The reference and two runs beside it.
        folder: Folder of the results.
    """
    bands = make_mode_bands([(arc.start, arc.end, arc.mode) for arc in runs.tracking.arcs])
    draw_inputs(runs, bands, folder)
    for name, run in (("reference", runs.reference.nominal), ("tracking", runs.tracking)):
        known = replace(run, system=runs.plant)
        draw_contacts(folder, f"{name}_", f"Arm and door, {name}", known)
    draw_errors(runs, bands, folder)
    draw_snapshots(parameters, runs, folder)
    write_scene(parameters, runs, folder)


def draw_inputs(runs: DoorRuns, bands: Sequence[Band], folder: RunFolder) -> None:
    """Draw the torques of the three joints under both kinds of error (Fig. 5.7)."""
    panels = []
    for i, name in enumerate(NAMES):
        lines = [
            *_make_run_lines(runs.conventional, i, "conventional", BASELINE),
            *_make_reference_lines(runs.reference, i),
            *_make_run_lines(runs.tracking, i, "spreading", TRACKING),
        ]
        panels.append([Panel(f"{name} torque [N m]", lines)])
    title = "Inputs: reference, and both kinds of feedback"
    draw_series(folder / "figures/inputs.png", panels, title=title, bands=bands)


def draw_errors(runs: DoorRuns, bands: Sequence[Band], folder: RunFolder) -> None:
    """Draw the norm of the error over all states, with and without reference spreading."""
    spread, clock, conventional = runs.spread_error, runs.clock_error, runs.conventional_error
    lines = [
        Line(conventional.times, conventional.norms, "conventional error, fed back", BASELINE),
        Line(clock.times, clock.norms, "conventional error, spreading fed back", REFERENCE, "--"),
        Line(spread.times, spread.norms, "spread error, fed back", TRACKING),
    ]
    panel = Panel("|error| [rad, rad/s]", lines, log=True, legend="lower left")
    title = "Tracking error with and without reference spreading"
    draw_series(folder / "figures/errors.png", [[panel]], title=title, bands=bands)


def draw_snapshots(parameters: DoorParameters, runs: DoorRuns, folder: RunFolder) -> None:
    """Draw arm and door of reference and tracking at start, events and end (Fig. 5.9).

    Args:
        parameters: Parameters of arm and door.
        runs: Reference and tracking.
        folder: Folder of the results.
    """
    planned = [event.time for event in runs.reference.events]
    last, end = planned[-1], runs.reference.nominal.end
    met = runs.tracking.events[-1].time if runs.tracking.events else last
    times = sorted({0.0, 0.5 * planned[0], *planned, met, 0.5 * (last + end), end})
    save_snapshots(
        folder / "figures/snapshots.png",
        [(f"t = {t:.3f} s", _make_poses(parameters, runs, t)) for t in times],
        title="Reference (orange) and tracking (blue)",
    )


def write_scene(parameters: DoorParameters, runs: DoorRuns, folder: RunFolder) -> None:
    """Write the motion of reference and tracking, for the page.

    Args:
        parameters: Parameters of arm and door.
        runs: Reference and tracking.
        folder: Folder of the results.
    """

    def draw_shape(x: Array) -> list[Array]:
        return compute_outline(parameters, x[:4])

    movers = [
        Mover("reference", runs.reference.nominal, draw_shape, REFERENCE),
        Mover("tracking", runs.tracking, draw_shape, TRACKING, runs.plant),
    ]
    write_motion(folder, [Scene("Arm and door, seen from above", movers)])


def _make_poses(parameters: DoorParameters, runs: DoorRuns, t: float) -> list[Pose]:
    """Return arm and door of reference, half transparent, and of tracking at a time in s."""
    looks = ((runs.reference.nominal, REFERENCE, 0.6), (runs.tracking, TRACKING, 1.0))
    return [
        Pose(compute_outline(parameters, run(t)[:4]), color, alpha) for run, color, alpha in looks
    ]


def compute_outline(p: DoorParameters, q: Array) -> list[Array]:
    """Return the polylines (n, 2) of arm, foot and door in the world, m, at angles q (4,)."""
    turns = np.exp(1j * np.cumsum(q[:3]))
    elbow = p.upper_arm_length * turns[0]
    wrist = elbow + p.forearm_length * turns[1]
    corners = [wrist + turns[2] * (p.foot_length + 1j * y) for y in p.corner_offsets]
    half, length = 0.5 * p.door_thickness, p.door_length
    box = np.array([-1j * half, length - 1j * half, length + 1j * half, 1j * half, -1j * half])
    door = complex(*p.hinge) + np.exp(1j * q[3]) * box
    shapes = ([0.0, elbow, wrist], [wrist, *corners, wrist], door)
    return [np.column_stack([np.real(shape), np.imag(shape)]) for shape in shapes]


def _make_reference_lines(reference: Reference, joint: int) -> list[Line]:
    """Return the curve of a torque of the reference, whose extensions are dashed."""
    lines = []
    for arc, nominal in zip(reference.arcs, reference.nominal.arcs, strict=True):
        times = np.linspace(arc.start, arc.end, int((arc.end - arc.start) / PERIOD) + 2)
        values = arc.input(times)[:, joint]
        inside = (times >= nominal.start) & (times <= nominal.end)
        label = "reference" if arc is reference.arcs[0] else None
        lines.append(Line(times[inside], values[inside], label, REFERENCE))
        for outside in (times < nominal.start, times > nominal.end):
            lines.append(Line(times[outside], values[outside], None, REFERENCE, "--", 1.0))
    return lines


def _make_run_lines(run: HybridTrajectory, joint: int, label: str, color: str) -> list[Line]:
    """Return the curves of a torque of a run, one for each arc; the first has the label."""
    return [
        Line(times, arc.input(times)[:, joint], None if arc.index else label, color)
        for arc, times in run.sampled(PERIOD)
    ]
