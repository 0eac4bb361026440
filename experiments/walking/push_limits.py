"""Limits of pushes are found by bisection on a grid, and laws are compared push by push.

All laws meet the same pushes from the same starts. So the difference of two laws has a smaller
error than the means tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from hybridctl.experiments.runners import compute_standard_error

from hybridctl.app.plots import REFERENCE, TRACKING, make_figure, save_figure


def find_limit(is_survived: Callable[[int], bool], most: int) -> int:
    """Return the largest number of steps of a grid that is survived, by bisection.

    Survival need not be monotone: it is one such number, with a fall one step above it.

    Args:
        is_survived: Returns whether a push of a number of steps of the grid is survived.
        most: Number of steps that counts as a fall without being tried; 0 counts as survived.
    """
    survived, fell = 0, most
    while fell - survived > 1:
        tried = (survived + fell) // 2
        if is_survived(tried):
            survived = tried
        else:
            fell = tried
    return survived


def make_limit_record(limits: Sequence[float]) -> dict[str, Any]:
    """Return the limits of a law as they stand in summary.json.

    Args:
        limits: Largest impulses survived, N s, of all pushes; empty for none.
    """
    found = np.array(limits)
    return {
        "push_limits": list(limits),
        "push_mean": float(found.mean()) if limits else None,
        "push_error": compute_standard_error(found) if limits else None,
    }


def compare_limits(
    records: Sequence[Mapping[str, Any]], place: str, law: str
) -> list[dict[str, Any] | None]:
    """Return, for each record, its limits minus those of the clock at the same place.

    Args:
        records: Records of laws, with the entries of `make_limit_record`.
        place: Entry in which records agree that are compared: a robot or an engine.
        law: Entry that names the law, "clock" for the clock.

    Returns:
        Mean and standard error of the differences, N s, and the numbers of pushes of which a law
        survives more or less than the clock; None for the clock itself, without it, and without
        pushes.
    """
    clocks = {r[place]: r["push_limits"] for r in records if r[law] == "clock"}
    found: list[dict[str, Any] | None] = []
    for record in records:
        clock = clocks.get(record[place])
        if record[law] == "clock" or not clock:
            found.append(None)
            continue
        more = np.array(record["push_limits"]) - np.array(clock)
        # Limits are multiples of a grid, as rounded.
        size = np.round(more, 9)
        found.append(
            {
                "mean": float(more.mean()),
                "error": compute_standard_error(more),
                "better": int((size > 0.0).sum()),
                "worse": int((size < 0.0).sum()),
            }
        )
    return found


def format_limit(record: Mapping[str, Any]) -> str:
    """Return mean, standard error and worst of a record's limits; empty without pushes."""
    if record["push_mean"] is None:
        return ""
    worst = min(record["push_limits"])
    return f"{record['push_mean']:.2f}{_format_error(record['push_error'])} ({worst:g})"


def format_difference(difference: Mapping[str, Any] | None) -> str:
    """Return a difference of `compare_limits`, with its numbers of pushes; empty for None."""
    if difference is None:
        return ""
    counts = f"{difference['better']} better, {difference['worse']} worse"
    return f"{difference['mean']:+.2f}{_format_error(difference['error'])}, {counts}"


def _format_error(error: float | None) -> str:
    """Return a standard error with its sign; empty for None."""
    return "" if error is None else f" ± {error:.2f}"


def draw_limits(path: Path, records: Sequence[Mapping[str, Any]], place: str, law: str) -> None:
    """Draw the limits of pushes: a dot for each, and means with standard errors.

    Args:
        path: File of the figure.
        records: Records of laws, with the entries of `make_limit_record`.
        place: Entry by which records share a panel: a robot or an engine.
        law: Entry that names the law.
    """
    places = list(dict.fromkeys(r[place] for r in records))
    counts = [sum(r[place] == each for r in records) for each in places]
    figure = make_figure(7.0, 0.8 + 0.5 * len(places) + 0.36 * len(records))
    panels = figure.subplots(len(places), 1, squeeze=False, height_ratios=counts)[:, 0]
    for axes, each, color in zip(panels, places, cycle((TRACKING, REFERENCE)), strict=False):
        own = [r for r in records if r[place] == each]
        rows = range(len(own))[::-1]
        for row, r in zip(rows, own, strict=True):
            found = np.array(r["push_limits"])
            apart = np.linspace(-0.25, 0.25, len(found)) if len(found) > 1 else np.zeros(1)
            axes.plot(found, row + apart, "o", color=color, markersize=4, alpha=0.5)
            error = r["push_error"] or 0.0
            axes.errorbar(r["push_mean"], row, xerr=error, fmt="k|", capsize=3, markersize=12)
        axes.set_yticks(rows, [f"{each}, {r[law]}" for r in own])
        axes.set_ylim(-0.5, len(own) - 0.5)
        axes.set_xlim(left=0.0)
        axes.grid(axis="x", alpha=0.3)
    panels[-1].set_xlabel("largest impulse survived [N s]: each push, mean and standard error")
    save_figure(figure, path)
