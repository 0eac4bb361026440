"""Figures of the relaxation experiments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hybridctl.checks import Array
from hybridctl.page.motion import Mover, Scene, write_motion
from hybridctl.plots import BANDS, REFERENCE, TRACKING, save_figure
from hybridctl.report import RunFolder

if TYPE_CHECKING:
    from hybridctl.experiments.relaxation.double_pendulum import Relaxation
    from hybridctl.experiments.relaxation.relay import Study
    from matplotlib.axes import Axes

    from hybridctl.hybrid.trajectory import HybridTrajectory

MARKS = ("o-", "s--", "^--", "v--", "D:", "x:")


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure."""
    save_figure(figure, path)


def legend_below(figure: Figure, axes: Axes) -> None:
    """One legend for panels that show the same things, outside of them."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8)


def write_pendulum(folder: RunFolder, runs: Mapping[str, HybridTrajectory]) -> None:
    """The motion of double pendulums with links of 1 m, each a scene, for the page."""
    scenes = [Scene(title, [Mover("links", run, _links)]) for title, run in runs.items()]
    write_motion(folder, scenes)


def _links(x: Array) -> list[Array]:
    """Both links, hanging where both angles are zero."""
    first, second = x[0], x[0] + x[2]
    elbow = np.array([np.sin(first), -np.cos(first)])
    tip = elbow + np.array([np.sin(second), -np.cos(second)])
    return [np.array([np.zeros(2), elbow, tip])]


def draw_errors(
    path: Path, curves: Mapping[str, tuple[Array, Array]], flow: tuple[Array, Array]
) -> None:
    """Errors of the ball after its last bounce: of schemes over the step, of the flow."""
    figure = new_figure(10.0, 4.4)
    left, right = figure.subplots(1, 2)
    for (name, (steps, errors)), mark in zip(curves.items(), MARKS, strict=False):
        left.loglog(steps, errors, mark, ms=3, lw=1.2, label=name)
    steps, errors = next(iter(curves.values()))
    left.loglog(steps, errors[0] * steps / steps[0], ":", color="black", lw=1.0, label="slope 1")
    left.set_xlabel("step h [s], epsilon = 0.01 h")
    left.set_title("Discrete scheme", fontsize=10)
    widths, found = flow
    right.loglog(widths, found, "o-", ms=3, color=TRACKING, label="relaxed flow")
    right.loglog(
        widths, found[0] * np.sqrt(widths / widths[0]), ":", color="black", label="slope 1/2"
    )
    right.set_xlabel("epsilon [m]")
    right.set_title("Relaxed flow, integrated exactly", fontsize=10)
    for axes in (left, right):
        axes.set_ylabel("largest |x| after the last bounce [m, m/s]")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    save(figure, path)


def draw_ball(path: Path, times: Array, states: Array, last: float) -> None:
    """Height and velocity of the relaxed ball over time."""
    figure = new_figure(7.0, 4.6)
    for axes, values, label in zip(
        figure.subplots(2, 1, sharex=True), states.T, ("height [m]", "velocity [m/s]"), strict=True
    ):
        axes.plot(times, values, color=TRACKING, lw=1.2)
        axes.axvline(last, color=REFERENCE, lw=1.0, ls="--", label="last bounce, closed form")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    axes.set_xlabel("t [s]")
    figure.suptitle("Relaxed ball, epsilon = 1 mm, in the chart of the mode entered", fontsize=10)
    save(figure, path)


def draw_sliding(path: Path, studies: Mapping[str, Study]) -> None:
    """Velocities over time, with the phases of sliding shaded."""
    figure = new_figure(8.0, 5.2)
    rows = figure.subplots(len(studies), 1, sharex=True)
    for axes, (name, found) in zip(rows, studies.items(), strict=True):
        for k, (start, end) in enumerate(found.phases):
            label = "slides" if k == 0 else None
            axes.axvspan(start, end, color=BANDS[1], label=label)
        axes.plot(found.times, found.states[:, 1], color=TRACKING, lw=1.4, label="Filippov")
        axes.plot(
            found.times, found.relaxed[:, 1], "--", color=REFERENCE, lw=1.0, label="widest strip"
        )
        axes.set_ylabel("velocity [m/s]")
        axes.set_title(name, fontsize=10)
        axes.grid(alpha=0.3)
    rows[-1].set_xlabel("t [s]")
    legend_below(figure, rows[0])
    save(figure, path)


def draw_orders(path: Path, widths: Array, errors: Mapping[str, Array]) -> None:
    """Errors over epsilon."""
    figure = new_figure(5.6, 4.2)
    axes = figure.subplots()
    for (name, found), mark in zip(errors.items(), MARKS, strict=False):
        axes.loglog(widths, found, mark, ms=4, lw=1.4, label=name)
    first = next(iter(errors.values()))
    axes.loglog(widths, first[0] * widths / widths[0], ":", color="black", lw=1.0, label="slope 1")
    axes.set_xlabel("epsilon [m/s]")
    axes.set_ylabel("largest difference to Filippov's solution")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    save(figure, path)


def draw_locked(
    path: Path, found: Relaxation, locks: list[tuple[float, float]], title: str
) -> None:
    """Angles and velocities; what is behind the stop in black, locks by events shaded."""
    figure = new_figure(8.0, 6.4)
    rows = figure.subplots(2, 1, sharex=True)
    degrees = np.degrees(found.states)
    for axes, entries, label in zip(
        rows, ((0, 2), (1, 3)), ("angle [deg]", "velocity [deg/s]"), strict=True
    ):
        for k, (start, end) in enumerate(locks):
            shown = "locked, by events" if k == 0 else None
            axes.axvspan(start, end, color=BANDS[1], label=shown)
        for entry, color, link in zip(entries, (TRACKING, REFERENCE), (1, 2), strict=True):
            axes.plot(found.times, degrees[:, entry], color=color, lw=1.2, label=f"link {link}")
            black = np.where(found.behind, degrees[:, entry], np.nan)
            axes.plot(found.times, black, color="black", lw=2.2)
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    rows[-1].set_xlabel("t [s]")
    legend_below(figure, rows[0])
    figure.suptitle(f"Relaxed double pendulum, {title}; black: in the strip", fontsize=10)
    save(figure, path)


def draw_reference(path: Path, pose: Array, found: Relaxation) -> None:
    """The pendulum in a pose (4,), and the angles of the reference of the variations."""
    figure = new_figure(9.0, 3.8)
    left, right = figure.subplots(1, 2, width_ratios=(1, 2))
    first, second = pose[0], pose[0] + pose[2]
    joints = np.array([[0.0, 0.0], [np.sin(first), -np.cos(first)]])
    ends = joints[1] + np.array([[0.0, 0.0], [np.sin(second), -np.cos(second)]])
    stop = joints[1] + 0.45 * np.array([[0.0, 0.0], [np.sin(first), -np.cos(first)]])
    left.plot(*joints.T, "o-", color=TRACKING, lw=4, label="link 1")
    left.plot(*ends.T, "o-", color=REFERENCE, lw=4, label="link 2")
    left.plot(*stop.T, color="black", lw=2, label="stop, on link 1")
    left.set_aspect("equal")
    left.set_xlim(-0.6, 1.8)
    left.set_axis_off()
    left.legend(fontsize=8, loc="upper right")
    degrees = np.degrees(found.states)
    for entry, color, name in ((0, TRACKING, "link 1"), (2, REFERENCE, "link 2")):
        right.plot(found.times, degrees[:, entry], color=color, lw=1.4, label=name)
        black = np.where(found.behind, degrees[:, entry], np.nan)
        right.plot(found.times, black, color="black", lw=2.4)
    right.set_xlabel("t [s]")
    right.set_ylabel("angle [deg]")
    right.set_title("Reference of the variations; black: in the strip", fontsize=10)
    right.grid(alpha=0.3)
    right.legend(fontsize=8)
    save(figure, path)


def draw_variations(path: Path, sizes: Array, remainders: Array) -> None:
    """Remainders of the first-order variation over the size of the perturbation."""
    figure = new_figure(5.6, 4.2)
    axes = figure.subplots()
    axes.loglog(sizes, remainders, "o-", color=TRACKING, ms=4, lw=1.4, label="remainder")
    axes.loglog(sizes, remainders[0] * (sizes / sizes[0]) ** 2, ":", color="black", label="slope 2")
    axes.set_xlabel("perturbation of theta_2 [deg]")
    axes.set_ylabel("largest entry [rad, rad/s]")
    axes.set_title("Variation through the strip, in the chart of the mode entered", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    save(figure, path)


def draw_printed(
    path: Path, exact: HybridTrajectory, printed: Mapping[float, tuple[Array, Array]]
) -> None:
    """theta_2 of a plastic stop, by events and under the field as printed."""
    figure = new_figure(7.0, 4.2)
    axes = figure.subplots()
    times = next(iter(printed.values()))[0]
    truth = np.array([exact(t)[2] for t in times.tolist()])
    axes.plot(times, np.degrees(truth), color="black", lw=2.0, label="by events")
    for (epsilon, (t, angle)), style in zip(printed.items(), ("-", "--", ":"), strict=False):
        axes.plot(t, np.degrees(angle), style, lw=1.3, label=f"as printed, epsilon = {epsilon:g}")
    axes.set_xlabel("t [s]")
    axes.set_ylabel("angle of link 2 [deg]")
    axes.set_title("The field of appendix B as printed lets go too late", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    save(figure, path)
