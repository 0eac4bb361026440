"""The figures show bolt's planned step and its walks on plants."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from hybridctl.experiments.walking.bolt_gait import BoltGait

from hybridctl.app.page.motion import Mover, Scene, write_motion
from hybridctl.app.plots import (
    BASELINE,
    CURVES,
    REFERENCE,
    TRACKING,
    Line,
    Panel,
    draw_series,
)
from hybridctl.base.checks import Array
from hybridctl.base.run_folder import RunFolder
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.mechanics.multibody.robot import Robot

_SAMPLES = 200
"""Points of a curve over a step."""
_LIMB = ("{}_HAA", "{}_HFE", "{}_KFE", "{}_FOOT")
"""Frames that are joined to the drawing of a leg."""


def draw_step(path: Path, gait: BoltGait) -> None:
    """Draw torques, angles of the base, force, used friction and swinging foot over a step.

    Args:
        path: File of the figure.
        gait: The gait.
    """
    arc = gait.step.plan.arcs[0]
    times = np.linspace(arc.start, arc.end, _SAMPLES)
    mode, torques = gait.walker.mode(arc.mode), arc.input(times)
    points = [arc.state_and_input(t) for t in times.tolist()]
    assert mode.outputs is not None
    outputs = [mode.outputs(0.0, *point) for point in points]
    normal = np.array([out["normal_force"][0] for out in outputs])
    friction = np.array([out["friction_force"][0] for out in outputs])
    gap = np.array([gait.walker.dynamics.gaps(x[:12])[1] for x, _ in points])
    states = np.array([x for x, _ in points])
    legs = ("stance", "swing")
    names = [f"{leg} {joint}" for leg in legs for joint in ("abduction", "hip", "knee")]
    styles = ["-"] * 3 + ["--"] * 3
    colors = (TRACKING, REFERENCE, BASELINE) * 2
    motors = [Line(times, *look) for look in zip(torques.T, names, colors, styles, strict=True)]
    angles = [
        Line(times, states[:, 3 + k], name, color)
        for k, (name, color) in enumerate(zip(("yaw", "pitch", "roll"), colors, strict=False))
    ]
    used = Line(times, np.linalg.norm(friction, axis=1) / normal, "used")
    limit = Line(times, np.full(_SAMPLES, gait.friction), "coefficient", BASELINE, "--")
    panels = [
        Panel("torque [N m]", motors, zero=True),
        Panel("base [rad]", angles, zero=True),
        Panel("normal force [N]", [Line(times, normal)]),
        Panel("friction / normal", [used, limit]),
        Panel("swinging foot [m]", [Line(times, gap)], zero=True),
    ]
    title = f"Bolt: one step at {gait.speed:g} m/s, left foot on the ground"
    draw_series(path, [[p] for p in panels], title=title, xlabel="time since touchdown [s]")


def draw_walks(path: Path, gait: BoltGait, walks: Mapping[Any, Any]) -> None:
    """Draw height, place across the way and heading of a walk of each case.

    Args:
        path: File of the figure.
        gait: The gait.
        walks: A `BoltWalk` by engine and law.
    """
    places = (("height [m]", 2), ("across [m]", 1), ("heading [rad]", 3), ("roll [rad]", 5))
    colors, panels = _cycle(len(walks)), []
    for label, index in places:
        named = index == 1  # the legend stands where walks have settled
        lines = [
            # Laws nearly agree: every other curve is dashed, so that the one below it is seen.
            Line(
                walk.times,
                walk.states[:, index],
                f"{engine}, {law}" if named else None,
                colors[k],
                "--" if k % 2 else "-",
            )
            for k, ((engine, law), walk) in enumerate(walks.items())
        ]
        panels.append(Panel(label, lines, zero=index != 2))
    title = f"Bolt walks at {gait.speed:g} m/s from a random start"
    draw_series(path, [[p] for p in panels], title=title)


def _cycle(count: int) -> list[str]:
    """Return colours of curves, over again where there are too few."""
    return [CURVES[k % len(CURVES)] for k in range(count)]


def write_walk(folder: RunFolder, gait: BoltGait, run: HybridTrajectory) -> None:
    """Write the motion of a walk for the page.

    Args:
        folder: Folder of the results.
        gait: Gait that is walked.
        run: Recorded samples of the walk.
    """
    robot = gait.walker.robot
    mover = Mover("bolt", run, partial(_compute_limbs, robot))
    first, last = (run(t)[0] for t in (run.start, run.end))
    across = (-0.3, 0.3)
    grid = [
        np.array([[x, y, 0.0] for y in across]) for x in np.arange(first - 0.2, last + 0.4, 0.1)
    ]
    grid += [np.array([[x, y, 0.0] for x in (first - 0.2, last + 0.4)]) for y in across]
    scene = Scene(f"Bolt walks at {gait.speed:g} m/s", [mover], grid, ("x", "y", "z"))
    write_motion(folder, [scene])


def _compute_limbs(robot: Robot, x: Array) -> list[Array]:
    """Return the polylines of the left leg, the right leg and the hips' axis, m."""
    q = x[: robot.nq]
    legs = [
        np.array([robot.point_position(q, frame.format(leg)) for frame in _LIMB])
        for leg in ("FL", "FR")
    ]
    base = robot.point_position(q, "base_link")
    head = robot.point_position(q, "base_link", (0.0, 0.0, 0.1))
    return [*legs, np.array([legs[0][0], base, legs[1][0]]), np.array([base, head])]
