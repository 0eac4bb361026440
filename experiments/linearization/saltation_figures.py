"""Figures of the saltation experiment: after Fig. 1, 5, 6 and 7 of the tutorial, and the errors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
from hybridctl.experiments.convergence import convergence_panel, draw_convergence
from hybridctl.experiments.linearization.saltation_results import ExampleResult, Pair

from hybridctl.app.plots import BASELINE, REFERENCE, TRACKING, Line, Panel, plane
from hybridctl.base.checks import Array
from hybridctl.base.run_folder import RunFolder
from hybridctl.hybrid.trajectory import HybridTrajectory

SAMPLED, RIGHT, WRONG = BASELINE, TRACKING, REFERENCE
MAPS = {"saltation": (RIGHT, "saltation matrix"), "reset_jacobian": (WRONG, "reset's Jacobian")}
ARROWS = 4  # deviations that are drawn of the constant flow
SIGMAS = 2.0
PERIOD = 4e-3  # s, between drawn points
in_plane = partial(plane, labels=("q1, horizontal [m]", "q2, vertical [m]"))


def draw_all(results: Mapping[str, ExampleResult], folder: RunFolder) -> None:
    """All figures of the experiment."""
    figures = folder / "figures"
    balls = {name: result for name, result in results.items() if name != "flow"}
    draw_drop(figures / "drop.png", balls)
    draw_flow(figures / "flow.png", results["flow"])
    draw_pairs(figures / "pairs.png", {name: r for name, r in balls.items() if r.pairs})
    draw_errors(figures / "errors.png", results)


def draw_drop(path: Path, results: Mapping[str, ExampleResult]) -> None:
    """Balls from start to end, and the positions at the end with both predictions."""
    above, below = [], []
    for name, result in results.items():
        paths = [_path(run, None, SAMPLED, 0.5) for run in result.paths]
        nominal = _path(result.maps.run, "nominal")
        ends = Line.through(result.ensembles[0].ends[:, :2], "simulated", "black", ".")
        about = Panel(f"a ball that {name}", [*paths, nominal, *_ellipses(result, start=True)])
        above.append(about)
        below.append(Panel(f"{name}: positions at the end", [*_ellipses(result), ends]))
    title = f"Balls dropped on a slope, ellipses of {SIGMAS:g} standard deviations"
    in_plane(path, [above, below], title=title, surfaces=_surface(results))


def draw_flow(path: Path, result: ExampleResult) -> None:
    """Deviations (left) and a covariance (right) through a change of a constant flow."""
    maps, e = result.maps, result.ensembles[0]
    nominal, (start, end) = _path(maps.run, "nominal"), (maps.run(0.0), maps.run.final_state)
    arrows = []
    for k, run in enumerate(result.paths[:ARROWS]):
        offset = run(0.0) - start
        arrows.append(_path(run, None if k else "simulated", SAMPLED, 1.0))
        for name, (color, label) in MAPS.items():
            tip = np.array([end, end + maps.whole[name] @ offset])
            arrows.append(Line.through(tip[:, :2], None if k else label, color, ".-"))
    clouds = [Line.through(cloud[:, :2], None, SAMPLED, ".") for cloud in (e.starts, e.ends)]
    ellipses = _ellipses(result, start=True)
    caption = f"covariance, ellipses of {SIGMAS:g} standard deviations"
    row = [Panel("deviations", [*arrows, nominal]), Panel(caption, [*clouds, *ellipses, nominal])]
    title = "A constant flow that changes at a line"
    in_plane(path, [row], title=title, surfaces=_surface({"flow": result}))


def draw_pairs(path: Path, results: Mapping[str, ExampleResult]) -> None:
    """Balls that start apart along the direction that the impact takes out, and along the slope."""
    captions = ("along the null vector of the saltation matrix", "along the slope")
    names = (("nominal", "black"), ("one side", RIGHT), ("the other side", WRONG))
    rows = []
    for k, caption in enumerate(captions):
        row = []
        for name, result in results.items():
            pair, lines = result.pairs[k], []
            runs = (result.maps.run, *pair.runs)
            for run, (label, color) in zip(runs, names, strict=True):
                end = run.final_state[None, :2]
                lines += [_path(run, label, color), Line.through(end, None, color, "o")]
            row.append(Panel(f"{name}, apart {caption}\n{_gaps(pair)}", lines))
        rows.append(row)
    title = "Which differences of position an impact takes out"
    in_plane(path, rows, title=title, surfaces=_surface(results))


def draw_errors(path: Path, results: Mapping[str, ExampleResult]) -> None:
    """Errors of predicted deviations over their length, for both maps."""
    panels = []
    for k, (by, (_, label)) in enumerate(MAPS.items()):
        found = {name: result.errors[by] for name, result in results.items()}
        title = f"error of the {label} [m, m/s]"
        panels.append(convergence_panel(title, found, found["sticks"], 2.0 - k))
    title = "Errors of predicted deviations"
    draw_convergence(path, panels, title, "length of the deviation [spreads]")


def _path(
    run: HybridTrajectory, label: str | None, color: str = "black", width: float = 1.4
) -> Line:
    """The positions over a whole run."""
    points = np.concatenate([arc(times)[:, :2] for arc, times in run.sampled(PERIOD)])
    return Line.through(points, label, color, "-", width)


def _surface(results: Mapping[str, ExampleResult]) -> list[Array]:
    """The direction of the line, through the origin, at which the events happen."""
    normal = next(iter(results.values())).example.normal
    return [np.array([normal[1], -normal[0]])]


def _ellipses(result: ExampleResult, *, start: bool = False) -> list[Line]:
    """Covariances of the positions, at the end as predicted, about the nominal ones."""
    e, run = result.ensembles[0], result.maps.run
    drawn = [
        (run(run.start), e.before, SAMPLED, "start", 1.6),
        (run.final_state, e.ended["reset_jacobian"], *MAPS["reset_jacobian"], 1.6),
        (run.final_state, e.ended["saltation"], *MAPS["saltation"], 2.4),
    ]
    return [
        Line.through(centre[:2] + _ellipse(p[:2, :2]), label, color, "-", width)
        for centre, p, color, label, width in drawn[0 if start else 1 :]
    ]


def _ellipse(covariance: Array) -> Array:
    """Points (n, 2) of the ellipse of so many standard deviations about 0."""
    sizes, vectors = np.linalg.eigh(covariance)
    turn = np.linspace(0.0, 2.0 * np.pi, 181)
    radii = SIGMAS * np.sqrt(np.maximum(sizes, 0.0))
    return np.asarray((np.stack([np.cos(turn), np.sin(turn)], 1) * radii) @ vectors.T)


def _gaps(pair: Pair) -> str:
    """Gaps in mm at the start and at the end, as simulated and predicted."""
    gaps = {name: 1e3 * gap for name, gap in pair.record().items() if "gap" in name}
    return (
        "{gap_at_start:.0f} mm at the start, {gap_at_end:.1f} mm at the end "
        "(saltation {saltation_gap:.1f}, Jacobian {reset_jacobian_gap:.1f})"
    ).format(**gaps)
