"""Figures of the saltation experiment: after Fig. 1, 5, 6 and 7 of the tutorial, and the errors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hybridctl.app.plots import BASELINE, GREEN, ORANGE, REFERENCE, TRACKING, canvas, save_figure
from hybridctl.app.report import RunFolder
from hybridctl.checks import Array
from hybridctl.hybrid.trajectory import HybridTrajectory

if TYPE_CHECKING:
    from hybridctl.experiments.linearization.saltation import Pair, Result

SAMPLED, RIGHT, WRONG = BASELINE, TRACKING, REFERENCE
COLORS = (GREEN, ORANGE, TRACKING, REFERENCE)
PATHS = 40  # simulated paths that are drawn of an ensemble
ARROWS = 4  # deviations that are drawn of the constant flow
SIGMAS = 2.0
PERIOD = 4e-3  # s, between drawn points


def draw_all(results: Mapping[str, Result], folder: RunFolder) -> None:
    """All figures of the experiment."""
    figures = folder / "figures"
    balls = {name: result for name, result in results.items() if name != "flow"}
    draw_drop(figures / "drop.png", balls)
    draw_flow(figures / "flow.png", results["flow"])
    draw_pairs(figures / "pairs.png", {name: r for name, r in balls.items() if r.pairs})
    draw_errors(figures / "errors.png", results)


def draw_drop(path: Path, results: Mapping[str, Result]) -> None:
    """Balls from start to end, and the positions at the end with both predictions."""
    figure, grid = _figure(2, len(results), (1.0 + 4.4 * len(results), 9.6))
    for column, (name, result) in enumerate(results.items()):
        nominal, e = result.maps.run, result.ensembles[0]
        overview, end = grid[0][column], grid[1][column]
        for run in e.runs[:PATHS]:
            overview.plot(*_positions(run).T, color=SAMPLED, lw=0.5, alpha=0.5)
        drawn = [_positions(run) for run in (nominal, *e.runs[:PATHS])]
        overview.plot(*drawn[0].T, color="black", lw=1.4, label="nominal")
        drawn += _ellipses(overview, result, with_start=True)
        close = _ellipses(end, result)
        end.plot(*e.ends[:, :2].T, ".", color="black", ms=2.5, label="simulated", zorder=4)
        overview.set_title(f"a ball that {name}", fontsize=10)
        end.set_title(f"{name}: positions at t = {nominal.end:g} s", fontsize=10)
        for axes, points in ((overview, drawn), (end, close)):
            _surface(axes, result)
            _plane(axes, np.concatenate(points))
            axes.legend(fontsize=7, loc="upper right")
    figure.suptitle(f"Balls dropped on a slope, ellipses of {SIGMAS:g} standard deviations")
    save_figure(figure, path)


def draw_flow(path: Path, result: Result) -> None:
    """Deviations (left) and a covariance (right) through a change of a constant flow."""
    figure, ((left, right),) = _figure(1, 2, (11.5, 6.1))
    nominal, e = result.maps.run, result.ensembles[0]
    start, end = (nominal(t)[:2] for t in (nominal.start, nominal.end))
    lengths = [-float(np.linalg.norm(run(run.start) - start)) for run in e.runs]
    longest = [e.runs[k] for k in np.argsort(lengths)[:ARROWS]]
    for k, run in enumerate(longest):
        offset = run(run.start) - start
        left.plot(*_positions(run).T, color=SAMPLED, lw=1.0, label=None if k else "simulated")
        left.plot(*run.final_state, "o", color=SAMPLED, ms=5)
        _arrow(left, start, offset, SAMPLED, None)
        _arrow(left, end, result.maps.wrong @ offset, WRONG, None if k else "reset's Jacobian")
        _arrow(left, end, result.maps.right @ offset, RIGHT, None if k else "saltation matrix")
    left.set_title("deviations", fontsize=10)
    right.plot(*e.ends.T, ".", color=SAMPLED, ms=2, label="simulated")
    right.plot(*np.array([run(run.start) for run in e.runs]).T, ".", color=SAMPLED, ms=2)
    drawn = _ellipses(right, result, with_start=True)
    right.set_title(f"covariance, ellipses of {SIGMAS:g} standard deviations", fontsize=10)
    drawn += [_positions(run) for run in longest]
    for axes in (left, right):
        axes.plot(*_positions(nominal).T, color="black", lw=1.4, label="nominal")
        _surface(axes, result)
        _plane(axes, np.concatenate(drawn))
        axes.legend(fontsize=8, loc="lower right")
    figure.suptitle("A constant flow that changes at a line")
    save_figure(figure, path)


def draw_pairs(path: Path, results: Mapping[str, Result]) -> None:
    """Balls that start apart along the direction that the impact takes out, and along the slope."""
    figure, grid = _figure(2, len(results), (1.0 + 5.0 * len(results), 11.0))
    captions = ("along the null vector of the saltation matrix", "along the slope")
    for column, (name, result) in enumerate(results.items()):
        for axes, pair, caption in zip(
            (grid[0][column], grid[1][column]), result.pairs, captions, strict=True
        ):
            runs = (result.maps.run, *pair.runs)
            drawn = [_positions(run) for run in runs]
            names = ("nominal", "one side", "the other side")
            for points, color, label in zip(drawn, ("black", RIGHT, WRONG), names, strict=True):
                axes.plot(*points.T, color=color, lw=1.3, label=label)
                axes.plot(*points[-1], "o", color=color, ms=5)
            _surface(axes, result)
            _plane(axes, np.concatenate(drawn))
            axes.set_title(f"{name}, apart {caption}\n{_gaps(pair)}", fontsize=9)
            axes.legend(fontsize=8, loc="upper right")
    figure.suptitle("Which differences of position an impact takes out")
    save_figure(figure, path)


def draw_errors(path: Path, results: Mapping[str, Result]) -> None:
    """Errors of predicted deviations over their length, for both maps."""
    figure, grid = _figure(1, 2, (10.5, 4.6), share=True)
    styles = dict(zip(results, (("o", "--"), ("v", ":"), ("s", "-"), ("^", "-")), strict=False))
    for axes, k, title in zip(
        grid[0], (1, 2), ("saltation matrix", "reset's Jacobian"), strict=True
    ):
        for (name, result), color in zip(results.items(), COLORS, strict=False):
            marker, line = styles[name]
            rows = np.array(result.errors)
            axes.loglog(
                rows[:, 0], rows[:, k], marker + line, color=color, ms=4, lw=1.2, label=name
            )
        reference = np.array(results["sticks"].errors)[:, 0]
        scale = 0.3 * results["sticks"].errors[0][k]
        order = 2 if k == 1 else 1
        axes.loglog(
            reference, scale * reference**order, ":", color="black", lw=0.9, label=f"slope {order}"
        )
        axes.set_title(f"prediction by the {title}", fontsize=10)
        axes.set_xlabel("length of the deviation [spreads]")
        axes.set_ylabel("largest error at the end [m, m/s]")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.suptitle("Errors of predicted deviations")
    save_figure(figure, path)


def _figure(
    rows: int, columns: int, size: tuple[float, float], *, share: bool = False
) -> tuple[Figure, list[list[Axes]]]:
    figure = canvas(*size)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=share, sharey=share)
    return figure, grid.tolist()


def _plane(axes: Axes, points: Array) -> None:
    """Square axes to scale around these points."""
    low, high = points.min(axis=0), points.max(axis=0)
    centre, half = 0.5 * (low + high), 0.55 * float((high - low).max())
    axes.set_xlim(centre[0] - half, centre[0] + half)
    axes.set_ylim(centre[1] - half, centre[1] + half)
    axes.set_aspect("equal")
    axes.locator_params(nbins=6)
    axes.set_xlabel("q1, horizontal [m]")
    axes.set_ylabel("q2, vertical [m]")
    axes.grid(alpha=0.3)


def _positions(run: HybridTrajectory) -> Array:
    """Positions (n, 2) over a whole run."""
    return np.concatenate([arc(times)[:, :2] for arc, times in run.sampled(PERIOD)])


def _surface(axes: Axes, result: Result) -> None:
    """The line at which the event happens."""
    n, at = result.example.normal, result.maps.event.state_before[:2]
    along = np.array([n[1], -n[0]])
    axes.axline(tuple(at), tuple(at + along), color="#555555", lw=1.8, zorder=1)


def _ellipses(axes: Axes, result: Result, *, with_start: bool = False) -> list[Array]:
    """Draw covariances of the positions about the nominal ones; returns the curves (n, 2)."""
    e, run = result.ensembles[0], result.maps.run
    drawn = [
        (run.final_state, e.wrong, WRONG, "reset's Jacobian", 1.6),
        (run.final_state, e.right, RIGHT, "saltation matrix", 2.4),
    ]
    if with_start:
        drawn.insert(0, (run(run.start), e.before, SAMPLED, "start", 1.6))
    curves = []
    for centre, covariance, color, label, width in drawn:
        curves.append(centre[:2] + _ellipse(covariance[:2, :2]))
        axes.plot(*curves[-1].T, color=color, lw=width, label=label, zorder=3)
    return curves


def _ellipse(covariance: Array) -> Array:
    """Points (n, 2) of the ellipse of so many standard deviations about 0."""
    sizes, vectors = np.linalg.eigh(covariance)
    turn = np.linspace(0.0, 2.0 * np.pi, 181)
    radii = SIGMAS * np.sqrt(np.maximum(sizes, 0.0))
    return np.asarray((np.stack([np.cos(turn), np.sin(turn)], 1) * radii) @ vectors.T)


def _arrow(axes: Axes, tail: Array, vector: Array, color: str, label: str | None) -> None:
    axes.quiver(
        *tail[:2],
        *vector[:2],
        color=color,
        angles="xy",
        scale_units="xy",
        scale=1.0,
        width=0.004,
        label=label,
        zorder=3,
    )


def _gaps(pair: Pair) -> str:
    """Gaps in mm at the start and at the end, as simulated and predicted."""
    start, end = 2.0 * pair.displacement, float(np.linalg.norm(pair.gap))
    right, wrong = (float(np.linalg.norm(g)) for g in (pair.right, pair.wrong))
    return (
        f"{1e3 * start:.0f} mm at the start, {1e3 * end:.1f} mm at the end "
        f"(saltation {1e3 * right:.1f}, Jacobian {1e3 * wrong:.1f})"
    )
