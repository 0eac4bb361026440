"""The figures show the walker's gait, its motion, and disturbances that are survived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hybridctl.experiments.walking.controllers import TITLES
from hybridctl.experiments.walking.gait import Gait
from hybridctl.experiments.walking.limits import KINDS, TUNED, Name, Survived

from hybridctl import HybridTrajectory
from hybridctl.app.page.motion import Mover, Scene, write_motion
from hybridctl.app.plots import (
    BASELINE,
    REFERENCE,
    TRACKING,
    Line,
    Panel,
    draw_series,
    make_figure,
    save_figure,
)
from hybridctl.base.checks import Array
from hybridctl.base.run_folder import RunFolder

_SAMPLES = 200
"""Points of a curve over a step."""


def draw_gait(path: Path, gait: Gait) -> None:
    """Draw torques, force, used friction and height of the swinging foot over a step."""
    arc = gait.step.run.arcs[0]
    times = np.linspace(arc.start, arc.end, _SAMPLES)
    mode, torques = gait.walker.mode(arc.mode), arc.input(times)
    points = [arc.state_and_input(t) for t in times.tolist()]
    assert mode.outputs is not None
    outputs = [mode.outputs(0.0, *point) for point in points]
    names = ("stance hip", "stance knee", "swing hip", "swing knee")
    colors = (TRACKING, "#85a9d0", REFERENCE, "#e29a90")
    joints = [Line(times, *look) for look in zip(torques.T, names, colors, strict=True)]
    normal = np.array([out["normal_force"][0] for out in outputs])
    friction = np.array([out["friction_force"][0] for out in outputs])
    used = Line(times, np.abs(friction).max(axis=1) / normal, "used")
    limit = Line(times, np.full(_SAMPLES, gait.friction), "coefficient", BASELINE, "--")
    gap = np.array([gait.walker.dynamics.gaps(x[:7])[1] for x, _ in points])
    panels = [
        Panel("torque [N m]", joints, zero=True),
        Panel("normal force [N]", [Line(times, normal)]),
        Panel("friction / normal", [used, limit]),
        Panel("swinging foot [m]", [Line(times, gap)], zero=True),
    ]
    title = f"One step at {gait.speed:g} m/s, left foot on the ground"
    draw_series(path, [[p] for p in panels], title=title, xlabel="time since touchdown [s]")


_PAIRS: tuple[tuple[Name | None, Name], ...] = (
    ("push back", "push forward"),
    ("down", "up"),
    ("slope down", "slope up"),
    ("lighter", "heavier"),
    (None, "late"),
)


def draw_limits(path: Path, found: Sequence[Survived]) -> None:
    """Draw what each controller survives, with a panel for both directions of a disturbance.

    Bars are means with standard errors, and dots are the starts. Grids end at the dashed lines.
    Unstable controllers are hatched.
    """
    pairs = [pair for pair in _PAIRS if pair[1] in found[0].limits]
    figure = make_figure(2.0 + 2.4 * len(pairs), 1.6 + 0.4 * len(found))
    panels = figure.subplots(1, len(pairs), sharey=True, squeeze=False)[0]
    for axes, pair in zip(panels, pairs, strict=True):
        titles = []
        for kind, sign, color in zip(pair, (-1.0, 1.0), (REFERENCE, TRACKING), strict=True):
            if kind is None or kind not in found[0].limits:
                continue
            titles.append(KINDS[kind].title)
            axes.axvline(sign * KINDS[kind].end, color=BASELINE, lw=1.0, ls="--")
            for row, each in enumerate(found):
                hatch = None if each.is_stable else "///"
                size = sign * each.mean(kind)
                axes.barh(row, size, height=0.6, color=color, hatch=hatch, edgecolor="white")
                axes.errorbar(size, row, xerr=each.error(kind), color="black", capsize=2, lw=1.0)
                starts = sign * np.array(each.limits[kind])
                axes.plot(starts, np.full(len(starts), row), ".", color="black", ms=3, alpha=0.4)
        axes.set_title(", ".join(titles), fontsize=9)
        axes.set_xlabel(KINDS[pair[1]].unit, fontsize=8)
        axes.xaxis.set_major_formatter(lambda x, _: f"{abs(x):g}")
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3, axis="x")
        axes.set_axisbelow(True)
    panels[0].set_yticks(range(len(found)), [TITLES[each.controller] for each in found])
    panels[0].invert_yaxis()
    legend = "dashed: ends of the grids"
    if not all(each.is_stable for each in found):
        legend += "; hatched: unstable"
    title = "What controllers survive: means over starts, standard errors, and each start"
    figure.suptitle(f"{title}\n({legend})", fontsize=10)
    save_figure(figure, path)


def draw_shares(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Draw what is survived over the cost, a point for each share of friction.

    Points of gaits that are not ready for early and late landings are joined.

    Args:
        path: File of the figure.
        records: Records of `tables.make_share_record`; the last one is the gait that ships.
    """
    figure = make_figure(8.0, 3.6)
    *plain, shipped = records
    for axes, ways in zip(figure.subplots(1, 2), (TUNED[:2], TUNED[2:]), strict=True):
        for way, color in zip(ways, (TRACKING, REFERENCE), strict=True):
            costs, survived = [r["cost"] for r in plain], [r["limits"][way] for r in plain]
            axes.plot(costs, survived, "o-", color=color, label=KINDS[way].title)
            axes.plot(shipped["cost"], shipped["limits"][way], "*", color=color, ms=12)
        for r in plain:
            at = r["cost"], r["limits"][ways[0]]
            axes.annotate(f"{r['share']:g}", at, xytext=(0, -14), textcoords="offset points")
        axes.set_xlabel("integral of squared torques [N² m² s]")
        axes.set_ylabel(f"survived [{KINDS[ways[0]].unit}]")
        axes.set_ylim(bottom=0.0)
        axes.margins(x=0.1)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.suptitle("Gaits by the share of friction that they may use (stars: the one that ships)")
    save_figure(figure, path)


def write_walk(folder: RunFolder, gait: Gait, run: HybridTrajectory) -> None:
    """Write the motion of a walk with its forces, for the page.

    Args:
        folder: Folder of the results.
        gait: Gait that is walked.
        run: Run of the walk.
    """
    mover = Mover("walker", run, _compute_limbs, system=gait.walker)
    ends = [run(t)[0] for t in (run.start, run.end)]
    ground = np.array([[min(ends) - 0.5, 0.0], [max(ends) + 0.5, 0.0]])
    scene = Scene(f"Walking at {gait.speed:g} m/s", [mover], [ground], ("x", "z"))
    write_motion(folder, [scene])


def _compute_limbs(x: Array) -> list[Array]:
    """Return the polylines of the left leg, the right leg and the torso, m."""
    hip = np.array([x[0], x[1]])
    limbs = []
    for i in (3, 5):
        femur, tibia = x[2] + x[i], x[2] + x[i] + x[i + 1]
        knee = hip - 0.4 * np.array([np.sin(femur), np.cos(femur)])
        foot = knee - 0.4 * np.array([np.sin(tibia), np.cos(tibia)])
        limbs.append(np.array([hip, knee, foot]))
    torso = 0.63 * np.array([np.sin(x[2]), np.cos(x[2])])
    return [*limbs, np.array([hip, hip + torso])]


def draw_plants(path: Path, records: Sequence[Mapping[str, Any]], most: int) -> None:
    """Draw a dot for the steps of each start before a fall, in a row for each case.

    Args:
        path: File of the figure.
        records: Records of `on_plants`.
        most: Number of steps that were to be walked.
    """
    figure = make_figure(7.0, 1.2 + 0.32 * len(records))
    axes = figure.subplots()
    labels = []
    for row, r in zip(range(len(records))[::-1], records, strict=True):
        color = TRACKING if r["jumps"] == "saltation" else BASELINE
        apart = np.linspace(-0.25, 0.25, len(r["steps"])) if len(r["steps"]) > 1 else np.zeros(1)
        axes.plot(r["steps"], row + apart, "o", color=color, markersize=4)
        labels.append(f"{1e3 * r['time_constant']:g} ms, {r['known']}, {r['jumps']}")
    axes.set_yticks(range(len(records))[::-1], labels)
    axes.set_xlim(-0.5, most + 0.5)
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("steps before a fall, a dot for each start")
    axes.grid(axis="x", alpha=0.3)
    save_figure(figure, path)
