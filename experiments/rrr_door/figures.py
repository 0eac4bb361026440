"""The figures of the door experiment are those of the thesis, 5.4 to 5.9."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hybridctl.experiments.contacts.closed_form import draw_contacts
from hybridctl.experiments.rrr_door.laws import DoorRuns
from hybridctl.experiments.rrr_door.reference import compute_foot, compute_slide
from hybridctl.robots.rrr_door import DoorParameters
from numpy.typing import NDArray

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
from hybridctl.control.reference import Reference
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import HybridTrajectory

NAMES = ("shoulder", "elbow", "wrist", "hinge")
PERIOD = 2e-3
"""Sampling period of curves, s: finer than a pixel of a run of 2 s."""


def draw_all(parameters: DoorParameters, runs: DoorRuns, folder: RunFolder) -> None:
    """Draw every figure of the experiment, and write the motion for the page.

    Args:
        parameters: Parameters of arm and door.
        runs: The reference and two runs beside it.
        folder: Folder of the results.
    """
    if len(runs.reference.arcs) == 2:
        draw_task_space(parameters, runs, folder)
    draw_states(runs, folder)
    draw_inputs(runs, folder)
    for name, run in (("reference", runs.reference.nominal), ("tracking", runs.tracking)):
        known = replace(run, system=runs.plant)
        draw_contacts(folder, f"{name}_", f"Arm and door, {name}", known)
    draw_errors(runs, folder)
    draw_snapshots(parameters, runs, folder)
    write_scene(parameters, runs, folder)


def draw_task_space(parameters: DoorParameters, runs: DoorRuns, folder: RunFolder) -> None:
    """Draw the foot in the world before the event, along the door after it (Fig. 5.4).

    Args:
        parameters: Parameters of arm and door.
        runs: Runs whose reference has one event.
        folder: Folder of the results.
    """
    ante, post = (_sample_motion(runs.plant, arc) for arc in runs.reference.arcs)
    z = np.array([compute_foot(parameters, *motion) for motion in ante[1]])
    angle = np.array([[part[:3].sum() for part in motion] for motion in ante[1]])
    slide = np.array([compute_slide(parameters, *motion) for motion in post[1]])
    door = np.array([[part[3] for part in motion] for motion in post[1]])
    event = runs.reference.events[0].time
    before, after = (ante[0], ante[0] <= event), (post[0], post[0] >= event)
    panels = [
        [
            _make_derivative_panel("x", "m", *before, z.real),
            _make_derivative_panel("s along door", "m", *after, slide),
        ],
        [
            _make_derivative_panel("y", "m", *before, z.imag),
            _make_derivative_panel("door angle", "rad", *after, door),
        ],
        [_make_derivative_panel("theta", "rad", *before, angle)],
    ]
    draw_series(
        folder / "figures/reference_task_space.png",
        panels,
        title="Reference: the foot (x, y, theta) before the impact, and what it does at the door",
    )


def _sample_times(arc: Arc) -> Array:
    """Return times (n,) from start to end of an arc, at most `PERIOD` apart."""
    return np.linspace(arc.start, arc.end, int((arc.end - arc.start) / PERIOD) + 2)


def _sample_motion(plant: HybridSystem, arc: Arc) -> tuple[Array, list[tuple[Array, Array, Array]]]:
    """Return times of an arc, with angles, rates and accelerations (4,) of the joints there."""
    times = _sample_times(arc)
    field = plant.mode(arc.mode).field
    result = []
    for t in map(float, times):
        x, u = arc.state_and_input(t)
        result.append((x[:4], x[4:], field(t, x, u)[4:]))
    return times, result


def _make_derivative_panel(
    name: str, unit: str, times: Array, inside: NDArray[np.bool_], values: Array
) -> Panel:
    """Return the panel of a coordinate with its velocity and acceleration.

    Args:
        name: Name of the coordinate.
        unit: Its unit.
        times: Times (n,), s.
        inside: Which of them are part of the run (n,); the curves are dashed at the others.
        values: Coordinate, velocity and acceleration (n, 3).
    """
    kinds = (
        (f"value [{unit}]", REFERENCE),
        (f"velocity [{unit}/s]", TRACKING),
        (f"acceleration [{unit}/s$^2$]", BASELINE),
    )
    lines = []
    for k, (label, color) in enumerate(kinds):
        lines.append(Line(times[inside], values[inside, k], label, color))
        lines.append(Line(times[~inside], values[~inside, k], None, color, "--"))
    return Panel(name, lines)


def draw_states(runs: DoorRuns, folder: RunFolder) -> None:
    """Draw joint positions and velocities, with the extended arcs dashed (Fig. 5.6)."""

    def make_panel(label: str, column: int) -> Panel:
        followed = _make_run_lines(runs.tracking, column, "states", label="tracking")
        return Panel(label, [*_make_reference_lines(runs.reference, column, "states"), *followed])

    panels = [
        [make_panel(f"{name} [rad]", i), make_panel(f"{name} rate [rad/s]", i + 4)]
        for i, name in enumerate(NAMES)
    ]
    title = "States: reference with its extensions (dashed), and tracking"
    draw_series(
        folder / "figures/states.png", panels, title=title, bands=_make_bands(runs.tracking)
    )


def draw_inputs(runs: DoorRuns, folder: RunFolder) -> None:
    """Draw the torques of the three joints under both kinds of error (Fig. 5.7)."""
    panels = []
    for i, name in enumerate(NAMES[:3]):
        lines = [
            *_make_run_lines(runs.conventional, i, "inputs", label="conventional", color=BASELINE),
            *_make_reference_lines(runs.reference, i, "inputs"),
            *_make_run_lines(runs.tracking, i, "inputs", label="spreading"),
        ]
        panels.append([Panel(f"{name} torque [N m]", lines)])
    title = "Inputs: reference, and both kinds of feedback"
    draw_series(
        folder / "figures/inputs.png", panels, title=title, bands=_make_bands(runs.tracking)
    )


def draw_errors(runs: DoorRuns, folder: RunFolder) -> None:
    """Draw the norm of the error over all states, with and without reference spreading."""
    spread, clock, conventional = runs.spread_error, runs.clock_error, runs.conventional_error
    lines = [
        Line(conventional.times, conventional.norms, "conventional error, fed back", BASELINE),
        Line(clock.times, clock.norms, "conventional error, spreading fed back", REFERENCE, "--"),
        Line(spread.times, spread.norms, "spread error, fed back", TRACKING),
    ]
    panel = Panel("|error| [rad, rad/s]", lines, log=True, legend="lower left")
    title = "Tracking error with and without reference spreading"
    bands = _make_bands(runs.tracking)
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


def _evaluate_arc(arc: Arc, times: Array, column: int, what: str) -> Array:
    """Return a column of the "states" or "inputs" of an arc at times (n,)."""
    return (arc(times) if what == "states" else arc.input(times))[:, column]


def _make_reference_lines(reference: Reference, column: int, what: str) -> list[Line]:
    """Return the curve of a column of the reference, whose extensions are dashed."""
    lines = []
    for arc, nominal in zip(reference.arcs, reference.nominal.arcs, strict=True):
        times = _sample_times(arc)
        values = _evaluate_arc(arc, times, column, what)
        inside = (times >= nominal.start) & (times <= nominal.end)
        label = "reference" if arc is reference.arcs[0] else None
        lines.append(Line(times[inside], values[inside], label, REFERENCE))
        for outside in (times < nominal.start, times > nominal.end):
            lines.append(Line(times[outside], values[outside], None, REFERENCE, "--", 1.0))
    return lines


def _make_run_lines(
    run: HybridTrajectory, column: int, what: str, *, label: str, color: str = TRACKING
) -> list[Line]:
    """Return the curves of a column of a run, one for each arc; the first has the label."""
    return [
        Line(times, _evaluate_arc(arc, times, column, what), None if arc.index else label, color)
        for arc, times in run.sampled(PERIOD)
    ]


def _make_bands(run: HybridTrajectory) -> list[Band]:
    """Return a shaded band for each arc."""
    return make_mode_bands([(arc.start, arc.end, arc.mode) for arc in run.arcs])
