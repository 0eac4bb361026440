"""Figures of the cube on the table: poses over time, snapshots from the side, its contacts."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np
from hybridctl.robots import cube
from scipy.spatial.transform import Rotation

from hybridctl.checks import Array
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.mechanics import closed_contacts
from hybridctl.page.motion import Mover, Scene, write_motion
from hybridctl.plots import (
    BASELINE,
    ORANGE,
    REFERENCE,
    TRACKING,
    Line,
    Panel,
    Pose,
    energy,
    forces,
    modes,
    series,
    snapshots,
)
from hybridctl.report import RunFolder

STYLES = {
    "events": (TRACKING, "-"),
    "stepping": (REFERENCE, "--"),
    "recorded": (ORANGE, "-"),
}
SCENES = 6


def draw_all(
    model: cube.Parameters,
    times: Array,
    poses: Mapping[str, Array],
    run: HybridTrajectory,
    folder: RunFolder,
) -> None:
    """Save every figure of the experiment."""
    draw_poses(times, poses, folder)
    draw_snapshots(model, times, poses, folder)
    draw_touching(run, folder)
    write_scene(model, run, folder)


def draw_poses(times: Array, poses: Mapping[str, Array], folder: RunFolder) -> None:
    """Position (left) and quaternion (right) of every motion, named in the first panel."""
    steady = {name: _continuous(p) for name, p in poses.items()}
    position = [
        Panel(f"{axis} [mm]", [_line(times, 1e3 * p[:, i], n, i == 0) for n, p in steady.items()])
        for i, axis in enumerate("xyz")
    ]
    attitude = [
        Panel(f"quaternion {part} [1]", [_line(times, p[:, 3 + i], n) for n, p in steady.items()])
        for i, part in enumerate("xyzw")
    ]
    angle = Panel("turned from start [deg]", [_turned(times, p, n) for n, p in poses.items()])
    rows = [[a, b] for a, b in zip([*position, angle], attitude, strict=True)]
    series(folder / "figures/poses.png", rows, title="Position and attitude of the cube")


def _line(times: Array, values: Array, name: str, named: bool = False) -> Line:
    color, style = STYLES[name]
    return Line(times, values, name if named else None, color, style)


def _turned(times: Array, poses: Array, name: str) -> Line:
    """Angle between the attitude and the one at the start."""
    turns = Rotation.from_quat(poses[:, 3:])
    return _line(times, np.degrees((turns[0].inv() * turns).magnitude()), name)


def _continuous(poses: Array) -> Array:
    """Poses whose quaternions do not change sign from one sample to the next."""
    q = poses[:, 3:]
    flips = np.where(np.einsum("ni,ni->n", q[1:], q[:-1]) < 0.0, -1.0, 1.0)
    sign = np.concatenate(([1.0], np.cumprod(flips)))
    return np.hstack((poses[:, :3], sign[:, None] * q))


def draw_snapshots(
    model: cube.Parameters, times: Array, poses: Mapping[str, Array], folder: RunFolder
) -> None:
    """The cube seen along y: by events, and as recorded or else by time stepping."""
    other, color = ("recorded", "orange") if "recorded" in poses else ("stepping", "red")
    shown = {"events": poses["events"], other: poses[other]}
    edges = {name: [_edges(model, p[k]) for k in _instants(times)] for name, p in shown.items()}
    edges = {
        name: [[e[:, [0, 2]] for e in cube] for cube in cubes] for name, cubes in edges.items()
    }
    corners = np.concatenate([line for lists in edges.values() for e in lists for line in e])
    table = np.array([[corners[:, 0].min(), 0.0], [corners[:, 0].max(), 0.0]])
    scenes = []
    for j, k in enumerate(_instants(times)):
        cubes = [Pose(edges[name][j], color=STYLES[name][0], alpha=0.7) for name in shown]
        scenes.append((f"t = {times[k]:.3f} s", [Pose([table], color=BASELINE), *cubes]))
    snapshots(
        folder / "figures/snapshots.png",
        scenes,
        title=f"The cube from the side: events blue, {other} {color}",
        vertical="z",
    )


def _instants(times: Array) -> list[int]:
    return [round(k) for k in np.linspace(0, len(times) - 1, SCENES).tolist()]


def _edges(model: cube.Parameters, pose: Array) -> list[Array]:
    """The twelve edges in the world, (2, 3) each."""
    offsets = np.array([contact.offset for contact in cube.contacts(model)])
    corners = pose[:3] + Rotation.from_quat(pose[3:]).apply(offsets)
    sides = combinations(range(len(cube.SIGNS)), 2)
    return [corners[[a, b]] for a, b in sides if _differ(a, b) == 1]


def _differ(a: int, b: int) -> int:
    """In how many axes two corners differ."""
    return sum(s != t for s, t in zip(cube.SIGNS[a], cube.SIGNS[b], strict=True))


def write_scene(model: cube.Parameters, run: HybridTrajectory, folder: RunFolder) -> None:
    """Write the motion of the cube above a part of the table, for the page."""
    centres = np.array([arc(arc.end)[:2] for arc in run.arcs] + [run(run.start)[:2]])
    margin = 4.0 * model.half_width
    (x0, y0), (x1, y1) = centres.min(axis=0) - margin, centres.max(axis=0) + margin
    table = np.array([(x0, y0, 0.0), (x1, y0, 0.0), (x1, y1, 0.0), (x0, y1, 0.0), (x0, y0, 0.0)])
    mover = Mover("cube", run, lambda x: _edges(model, x[:7]), system=run.system)
    write_motion(folder, [Scene("The cube on the table", [mover], [table], ("x", "y", "z"))])


def draw_touching(run: HybridTrajectory, folder: RunFolder) -> None:
    """Modes and forces of the corners that touch the table at some time, and the energy."""
    energy(run, folder / "figures/energy.png", title="The cube")
    touching = sorted({i for arc in run.arcs for i in closed_contacts(arc.mode)})
    if touching:
        names = [cube.CORNERS[i] for i in touching]
        title = "Corners of the cube"
        modes(run, folder / "figures/modes.png", title=title, contacts=names)
        forces(run, folder / "figures/forces.png", title=title, contacts=names)
