"""Results of the saltation experiment and their figures: after [Salt] Fig. 1, 5, 6 and 7."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from hybridctl.experiments.convergence import Convergence, draw_errors, make_panel
from hybridctl.experiments.linearization.saltation_examples import Example

from hybridctl.app.plots import BASELINE, REFERENCE, TRACKING, Line, Panel, save_plane_pictures
from hybridctl.base.checks import Array
from hybridctl.base.run_folder import RunFolder
from hybridctl.hybrid.trajectory import HybridTrajectory

SAMPLED, RIGHT, WRONG = BASELINE, TRACKING, REFERENCE
MAPS = {"saltation": (RIGHT, "saltation matrix"), "reset_jacobian": (WRONG, "reset's Jacobian")}
ARROWS = 4  # perturbations that are drawn of the constant flow
SIGMAS = 2.0  # standard deviations of an ellipse
PERIOD = 4e-3  # s, between drawn points
draw_in_plane = partial(save_plane_pictures, labels=("q1, horizontal [m]", "q2, vertical [m]"))


@dataclass(frozen=True, eq=False)
class SampledCovariance:
    """An ensemble before and after an event.

    Attributes:
        scale: Factor of its spread.
        starts: Starts (n, nx).
        ends: Simulated ends (n, nx).
        before: Covariance (nx, nx) of the starts about their mean.
        ended: Covariances (nx, nx) of the ends about their mean, as "sampled" and as each map
            predicts it.
    """

    scale: float
    starts: Array
    ends: Array
    before: Array
    ended: Mapping[str, Array]


@dataclass(frozen=True, eq=False)
class Pair:
    """Two balls that start apart on either side of the nominal one, at the same velocity.

    Attributes:
        runs: Their runs.
        record: Unit direction (2,), half the distance at the start, and the distances at the start
            and at the end, and at the end as each map predicts it, m.
    """

    runs: tuple[HybridTrajectory, ...]
    record: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class ExampleResult:
    """Simulations of one example beside its maps.

    Attributes:
        example: The example.
        run: The nominal run.
        jumps: Maps of the event by name.
        maps: Maps from the start to the end of the nominal run by name.
        errors: Errors of perturbations as the maps predict them, by the name of the map.
        ensembles: Ensembles, one for each scale.
        pairs: Pairs along the direction of positions that the event makes equal, and along the
            surface; empty where there are none.
        paths: Runs of the first ensemble, from the farthest start on.
    """

    example: Example
    run: HybridTrajectory
    jumps: Mapping[str, Array]
    maps: Mapping[str, Array]
    errors: Mapping[str, Convergence]
    ensembles: tuple[SampledCovariance, ...]
    pairs: tuple[Pair, ...]
    paths: tuple[HybridTrajectory, ...]


def draw_all(results: Mapping[str, ExampleResult], folder: RunFolder) -> None:
    """Save all figures of the experiment.

    Args:
        results: Results by example.
        folder: Folder of the run.
    """
    figures = folder / "figures"
    balls = {name: result for name, result in results.items() if name != "flow"}
    _draw_drop(figures / "drop.png", balls)
    _draw_flow(figures / "flow.png", results["flow"])
    _draw_pairs(figures / "pairs.png", {name: r for name, r in balls.items() if r.pairs})
    _draw_errors(figures / "errors.png", results)


def _draw_drop(path: Path, results: Mapping[str, ExampleResult]) -> None:
    """Save balls from start to end, and the positions at the end with both predictions."""
    above, below = [], []
    for name, result in results.items():
        paths = [_path(run, None, SAMPLED, 0.5) for run in result.paths]
        nominal = _path(result.run, "nominal")
        ends = Line.from_points(result.ensembles[0].ends[:, :2], "simulated", "black", ".")
        about = Panel(f"a ball that {name}", [*paths, nominal, *_ellipses(result, start=True)])
        above.append(about)
        below.append(Panel(f"{name}: positions at the end", [*_ellipses(result), ends]))
    title = f"Balls dropped on a slope, ellipses of {SIGMAS:g} standard deviations"
    draw_in_plane(path, [above, below], title=title, surfaces=_surface(results))


def _draw_flow(path: Path, result: ExampleResult) -> None:
    """Save perturbations (left) and a covariance (right) through a change of a constant flow."""
    run, e = result.run, result.ensembles[0]
    nominal, (start, end) = _path(run, "nominal"), (run(0.0), run.final_state)
    arrows = []
    for k, path_run in enumerate(result.paths[:ARROWS]):
        offset = path_run(0.0) - start
        arrows.append(_path(path_run, None if k else "simulated", SAMPLED, 1.0))
        for name, (color, label) in MAPS.items():
            tip = np.array([end, end + result.maps[name] @ offset])
            arrows.append(Line.from_points(tip[:, :2], None if k else label, color, ".-"))
    clouds = [Line.from_points(cloud[:, :2], None, SAMPLED, ".") for cloud in (e.starts, e.ends)]
    ellipses = _ellipses(result, start=True)
    caption = f"covariance, ellipses of {SIGMAS:g} standard deviations"
    row = [Panel("deviations", [*arrows, nominal]), Panel(caption, [*clouds, *ellipses, nominal])]
    title = "A constant flow that changes at a line"
    draw_in_plane(path, [row], title=title, surfaces=_surface({"flow": result}))


def _draw_pairs(path: Path, results: Mapping[str, ExampleResult]) -> None:
    """Save balls that start apart along the direction that the impact removes, and the slope."""
    captions = ("along the null vector of the saltation matrix", "along the slope")
    names = (("nominal", "black"), ("one side", RIGHT), ("the other side", WRONG))
    rows = []
    for k, caption in enumerate(captions):
        row = []
        for name, result in results.items():
            pair, lines = result.pairs[k], []
            runs = (result.run, *pair.runs)
            for run, (label, color) in zip(runs, names, strict=True):
                end = run.final_state[None, :2]
                lines += [_path(run, label, color), Line.from_points(end, None, color, "o")]
            row.append(Panel(f"{name}, apart {caption}\n{_gaps(pair)}", lines))
        rows.append(row)
    title = "Which differences of position an impact takes out"
    draw_in_plane(path, rows, title=title, surfaces=_surface(results))


def _draw_errors(path: Path, results: Mapping[str, ExampleResult]) -> None:
    """Save errors of predicted perturbations over their length, for both maps."""
    panels = []
    for k, (by, (_, label)) in enumerate(MAPS.items()):
        found = {name: result.errors[by] for name, result in results.items()}
        title = f"error of the {label} [m, m/s]"
        # Of the saltation matrix errors are of second order, of the reset's Jacobian of first.
        panels.append(make_panel(title, found, found["sticks"], 2.0 - k))
    title = "Errors of predicted deviations"
    draw_errors(path, panels, title, "length of the deviation [spreads]")


def _path(
    run: HybridTrajectory, label: str | None, color: str = "black", width: float = 1.4
) -> Line:
    """Return the curve of positions over a whole run."""
    points = np.concatenate([arc(times)[:, :2] for arc, times in run.sampled(PERIOD)])
    return Line.from_points(points, label, color, "-", width)


def _surface(results: Mapping[str, ExampleResult]) -> list[Array]:
    """Return the direction of the line, through the origin, at which the events happen."""
    normal = next(iter(results.values())).example.normal
    return [np.array([normal[1], -normal[0]])]


def _ellipses(result: ExampleResult, *, start: bool = False) -> list[Line]:
    """Return ellipses of positions about the nominal ones, at the end as predicted."""
    e, run = result.ensembles[0], result.run
    drawn = [
        (run(run.start), e.before, SAMPLED, "start", 1.6),
        (run.final_state, e.ended["reset_jacobian"], *MAPS["reset_jacobian"], 1.6),
        (run.final_state, e.ended["saltation"], *MAPS["saltation"], 2.4),
    ]
    return [
        Line.from_points(centre[:2] + _ellipse(p[:2, :2]), label, color, "-", width)
        for centre, p, color, label, width in drawn[0 if start else 1 :]
    ]


def _ellipse(covariance: Array) -> Array:
    """Return points (n, 2) of the ellipse of `SIGMAS` standard deviations about 0."""
    sizes, vectors = np.linalg.eigh(covariance)
    turn = np.linspace(0.0, 2.0 * np.pi, 181)
    radii = SIGMAS * np.sqrt(np.maximum(sizes, 0.0))
    return np.asarray((np.stack([np.cos(turn), np.sin(turn)], 1) * radii) @ vectors.T)


def _gaps(pair: Pair) -> str:
    """Return the caption: gaps in mm at the start and at the end, simulated and predicted."""
    gaps = {name: 1e3 * gap for name, gap in pair.record.items() if "gap" in name}
    return (
        "{gap_at_start:.0f} mm at the start, {gap_at_end:.1f} mm at the end "
        "(saltation {saltation_gap:.1f}, Jacobian {reset_jacobian_gap:.1f})"
    ).format(**gaps)
