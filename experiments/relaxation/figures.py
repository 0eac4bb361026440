"""Figures of the relaxation experiments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from hybridctl.checks import Array
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.page.motion import Mover, Scene, write_motion
from hybridctl.plots import (
    BANDS,
    CURVES,
    REFERENCE,
    TRACKING,
    Band,
    Line,
    Panel,
    Pose,
    power_law,
    series,
    snapshots,
)
from hybridctl.report import RunFolder

if TYPE_CHECKING:
    from hybridctl.experiments.relaxation.double_pendulum import Relaxation
    from hybridctl.experiments.relaxation.relay import Study

MARKS = ("o-", "s--", "^--", "v--", "D:", "x:")
LINKS = ((TRACKING, "link 1"), (REFERENCE, "link 2"))


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
    folder: RunFolder, curves: Mapping[str, tuple[Array, Array]], flow: tuple[Array, Array]
) -> None:
    """Errors of the ball after its last bounce: of schemes over the step, of the flow."""
    label, colors = "largest |x| [m, m/s]", (*CURVES, REFERENCE)
    lines = [
        Line(steps, errors, name, color, mark)
        for (name, (steps, errors)), color, mark in zip(curves.items(), colors, MARKS, strict=False)
    ]
    steps, errors = next(iter(curves.values()))
    series(
        folder / "figures/scheme.png",
        [[Panel(label, [*lines, power_law(steps, errors, 1.0)], log=True)]],
        title="After the last bounce, by a discrete scheme",
        xlabel="step h [s], epsilon = 0.01 h",
        xlog=True,
    )
    widths, found = flow
    series(
        folder / "figures/flow.png",
        [[Panel(label, [Line(widths, found, style="o-"), power_law(*flow, 0.5)], log=True)]],
        title="After the last bounce, integrated exactly",
        xlabel="epsilon [m]",
        xlog=True,
    )


def draw_ball(folder: RunFolder, times: Array, states: Array, last: float) -> None:
    """Height and velocity of the relaxed ball over time."""
    rows = []
    for values, label in zip(states.T, ("height [m]", "velocity [m/s]"), strict=True):
        height = np.array([values.min(), values.max()])
        end = Line(np.full(2, last), height, "last bounce, closed form", REFERENCE, "--", 1.0)
        rows.append([Panel(label, [Line(times, values), end])])
    title = "Relaxed ball, epsilon = 1 mm, in the chart of the mode entered"
    series(folder / "figures/ball.png", rows, title=title)


def draw_sliding(folder: RunFolder, name: str, found: Study) -> None:
    """Velocity over time, with the phases of sliding shaded."""
    bands = [Band(start, end, "slides", BANDS[1]) for start, end in found.phases]
    lines = [
        Line(found.times, found.states[:, 1], "Filippov", width=3.0),
        Line(found.times, found.relaxed[:, 1], "relaxed, widest strip", REFERENCE, "--"),
    ]
    panel = Panel("velocity [m/s]", lines, zero=True)
    series(folder / f"figures/{name}.png", [[panel]], title=f"Sliding: {name}", bands=bands)


def draw_orders(folder: RunFolder, widths: Array, errors: Mapping[str, Array]) -> None:
    """Errors over epsilon."""
    lines = [
        Line(widths, found, name, color, mark)
        for (name, found), color, mark in zip(errors.items(), CURVES, MARKS, strict=False)
    ]
    first = next(iter(errors.values()))
    series(
        folder / "figures/errors.png",
        [[Panel("largest difference [m, m/s]", [*lines, power_law(widths, first, 1.0)], log=True)]],
        title="Relaxed runs against Filippov's solution",
        xlabel="epsilon [m/s]",
        xlog=True,
    )


def draw_locked(
    folder: RunFolder,
    name: str,
    found: Relaxation,
    locks: list[tuple[float, float]],
    title: str,
) -> None:
    """Angles and velocities; what is behind the stop in black, locks by events shaded."""
    bands = [Band(start, end, "locked, by events", BANDS[1]) for start, end in locks]
    rows = [
        [Panel("angle [deg]", _of_links(found, (0, 2)))],
        [Panel("velocity [deg/s]", _of_links(found, (1, 3)))],
    ]
    title = f"Relaxed double pendulum, {title}; black: in the strip"
    series(folder / f"figures/{name}.png", rows, title=title, bands=bands)


def _of_links(found: Relaxation, entries: tuple[int, int]) -> list[Line]:
    """Entries of the state of both links, in degrees, black where they are in the strip."""
    lines = []
    for entry, (color, name) in zip(entries, LINKS, strict=True):
        degrees = np.degrees(found.states[:, entry])
        behind = np.where(found.behind, degrees, np.nan)
        lines += [
            Line(found.times, degrees, name, color),
            Line(found.times, behind, None, "black", width=2.4),
        ]
    return lines


def draw_reference(folder: RunFolder, pose: Array, found: Relaxation) -> None:
    """The pendulum in a pose (4,), and the angles of the reference of the variations."""
    ((pivot, elbow, tip),) = _links(pose)
    stop = elbow + 0.45 * (elbow - pivot)
    bodies = [
        Pose([np.array([pivot, elbow])]),
        Pose([np.array([elbow, tip])], color=REFERENCE),
        Pose([np.array([elbow, stop])], color="black"),
    ]
    scene = "blue link 1, red link 2, black the stop on link 1", bodies
    snapshots(folder / "figures/start.png", [scene], title="The start", columns=1)
    panel = Panel("angle [deg]", _of_links(found, (0, 2)))
    title = "Reference of the variations; black: in the strip"
    series(folder / "figures/reference.png", [[panel]], title=title)


def draw_variations(folder: RunFolder, sizes: Array, remainders: Array) -> None:
    """Remainders of the first-order variation over the size of the perturbation."""
    lines = [Line(sizes, remainders, "remainder", style="o-"), power_law(sizes, remainders, 2.0)]
    series(
        folder / "figures/variations.png",
        [[Panel("largest entry [rad, rad/s]", lines, log=True)]],
        title="Variation through the strip, in the chart of the mode entered",
        xlabel="perturbation of theta_2 [deg]",
        xlog=True,
    )


def draw_printed(
    folder: RunFolder, exact: HybridTrajectory, printed: Mapping[float, tuple[Array, Array]]
) -> None:
    """theta_2 of a plastic stop, by events and under the field as printed."""
    times = next(iter(printed.values()))[0]
    truth = np.array([exact(t)[2] for t in times.tolist()])
    lines = [Line(times, np.degrees(truth), "by events", "black", width=3.0)]
    for (epsilon, (t, angle)), color, style in zip(
        printed.items(), CURVES, ("-", "--", ":"), strict=False
    ):
        lines.append(Line(t, np.degrees(angle), f"as printed, epsilon = {epsilon:g}", color, style))
    title = "The field of appendix B as printed lets go too late"
    series(folder / "figures/printed.png", [[Panel("angle of link 2 [deg]", lines)]], title=title)
