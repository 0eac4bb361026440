"""Friction, restitution and the radius of its corners, of a cube from recorded tosses.

A search for the most likely parameters stops where the order of impacts changes in one toss or
another. So the likelihood of every toss is taken at points all over a box, first a wide one with
few tosses, then narrower ones with all, and a quadratic goes through those (see
`estimation.surface`): its top, errors by curvature and over tosses, tops of the halves of the
tosses, and how rough the sum is. What is found is judged on tosses that were not used, beside what
is published and what had been fitted before: by likelihood, and by how far a motion from the last
pose in flight is from the pose some time later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from hybridctl.experiments.identification import figures
from hybridctl.experiments.identification.likelihoods import (
    NAMES,
    Table,
    flight,
    model_at,
    prediction_errors,
    shortened,
    tosses,
)
from hybridctl.robots.filter_models import CubeSettings, cube_model
from rich.console import Console
from scipy.stats import qmc

from hybridctl.checks import Array, count, number
from hybridctl.errors import InputError
from hybridctl.estimation.surface import Surface, Top, fitted
from hybridctl.report import RunFolder, progress, table

SUMMARY = (
    "friction, restitution and corner radius of a cube from recorded tosses, held out on others"
)

ORIGIN = "DAIRLab/contact-nets on GitHub, data/tosses_processed"
OTHERS = {  # friction, restitution, radius of the corners in m
    "published": (0.18, 0.125, 0.0),
    "published, with round corners": (0.18, 0.125, 5.4e-3),
    "where searches began before": (0.18, 0.25, 1.5e-3),
    "fitted with all levels of noise": (0.16, 0.24, 5.4e-3),
}
FOUND = "found here"
SHARP = np.array(OTHERS["published"])


def _noise() -> CubeSettings:
    return CubeSettings(
        table=-1.3e-4,
        position_noise=5e-4,
        angle_noise=5e-3,
        torque_noise=5e-4,
        reset_noise=0.017,
        reset_torque=9e-4,
        gate=0.9999,
        patience=3,
        warm_up=3,
        tolerance=1e-7,
    )


@dataclass(frozen=True)
class Box:
    """Ranges in which some points of a Sobol sequence lie, by the seed that scrambles it."""

    friction: tuple[float, float]
    restitution: tuple[float, float]
    rounding: tuple[float, float]
    points: int
    seed: int

    def __post_init__(self) -> None:
        count("points", self.points)
        for name in NAMES:
            low, high = getattr(self, name)
            number(f"upper end of {name}", high, above=low)

    def drawn(self) -> Array:
        """The points (m, 3)."""
        low, high = np.array([getattr(self, name) for name in NAMES]).T
        sequence = qmc.Sobol(3, seed=self.seed).random_base2((self.points - 1).bit_length())
        return np.asarray(qmc.scale(sequence[: self.points], low, high))


@dataclass(frozen=True)
class Config:
    """What is taken of the recordings in the file `data`.

    fitted, held_out: numbers of tosses, those from 0 and those that follow. every: which of the
    fitted ones the wide box is looked at with. until: how much of a toss, s. boxes: all others.
    depth: see `estimation.surface`. ahead: of predictions, s. likelihoods: a file to go on with,
    by default a new one in the folder of the run.
    """

    data: str | None = None
    fitted: int = 100
    held_out: int = 100
    every: int = 5
    until: float = 0.3
    wide: Box = Box((0.08, 0.32), (0.02, 0.5), (0.0, 6e-3), 16, 0)
    boxes: tuple[Box, ...] = (
        Box((0.11, 0.25), (0.16, 0.38), (3e-3, 6e-3), 16, 1),
        Box((0.14, 0.24), (0.2, 0.31), (4.2e-3, 8e-3), 4, 2),
    )
    depth: float = 60.0
    ahead: float = 0.2
    likelihoods: str | None = None
    noise: CubeSettings = field(default_factory=_noise)

    def __post_init__(self) -> None:
        for name in ("fitted", "held_out", "every"):
            count(name, getattr(self, name))
        for name in ("until", "depth", "ahead"):
            number(name, getattr(self, name), above=0.0)


def quick(config: Config) -> Config:
    """Few tosses, and a box that is wide enough for them."""
    box = Box((0.1, 0.3), (0.1, 0.4), (2e-3, 8e-3), 12, 0)
    return Config(config.data, 4, 2, 2, 0.2, Box(*vars(box).values()), (box,))


def run(config: Config, folder: RunFolder, console: Console) -> dict[str, Any]:
    """Run the experiment; returns what it writes to summary.json."""
    if config.data is None:
        raise InputError(f"cube-identify needs data=FILE, recorded tosses; they are from {ORIGIN}")
    folder.write_configuration(config, seed=config.wide.seed)
    numbers = range(config.fitted + config.held_out)
    whole = tosses(config.data, numbers, cube_model(config.noise))
    records = {k: shortened(record, config.until) for k, record in whole.items()}
    path = folder / "likelihoods.csv" if config.likelihoods is None else Path(config.likelihoods)
    values = Table.of(path, config.noise, records)
    own, rest = list(numbers[: config.fitted]), list(numbers[config.fitted :])
    points = np.vstack([box.drawn() for box in config.boxes])
    with progress(console, 0.0, float(len(points))) as begin:
        tick = begin("points")
        few, wide = own[:: config.every], config.wide.drawn()
        scan = values.fill(wide, few)
        surface = fitted(points, values.fill(points, own, tick), depth=config.depth)
    top = surface.top()
    judged = judge(config, values, top, whole, rest)
    summary = {
        **_found(top),
        "point_errors": surface.point_errors(),
        "fitted": len(own),
        "points": len(points),
        "halves": halves(surface),
        "scan": [
            {**dict(zip(NAMES, p.tolist(), strict=True)), "log_likelihood": float(row.sum())}
            for p, row in zip(wide, scan, strict=True)
        ],
        "held_out": judged,
    }
    folder.write_json("summary.json", summary)
    print_tables(console, summary)
    with console.status("drawing figures"):
        figures.draw(folder / "figures", surface, top)
    return summary


def _found(top: Top) -> dict[str, Any]:
    columns = zip(top.values, top.standard_errors, top.record_errors, strict=True)
    return {
        "parameters": {
            name: {"value": float(v), "standard_error": float(e), "record_error": float(r)}
            for name, (v, e, r) in zip(NAMES, columns, strict=True)
        },
        "correlation": top.correlation,
        "roughness": top.roughness,
        "inside": top.inside,
    }


def halves(surface: Surface) -> list[dict[str, Any]]:
    """Tops of halves of the tosses."""
    n = surface.values.shape[1]
    parts = {
        "first": range(n // 2),
        "second": range(n // 2, n),
        "even": range(0, n, 2),
        "odd": range(1, n, 2),
    }
    return [{"name": name, **_found(surface.top(list(part)))} for name, part in parts.items()]


def judge(
    config: Config, values: Table, top: Top, whole: dict[int, Any], rest: Sequence[int]
) -> list[dict[str, Any]]:
    """Parameters on tosses that were not used: log-likelihood, and errors of predictions.

    log_likelihood: of all tosses; gain, gain_error: over the first of `OTHERS`, by toss, with its
    standard error. position (m) and turn (rad): medians and means, on the tosses that all predict.
    """
    settings, sharp = model_at(config.noise, SHARP)  # the first to touch
    starts = {n: flight(sharp, settings, values.records[n]) for n in rest}
    given = {name: np.array(point) for name, point in OTHERS.items()} | {FOUND: top.values}
    rows, predictions = [], []
    base = None
    for name, point in given.items():
        found = values.fill(point[None], rest)[0]
        base = found if base is None else base
        model = model_at(config.noise, point)[1]
        errors = [prediction_errors(model, whole[n], starts[n], config.ahead) for n in rest]
        predictions.append([(np.nan, np.nan) if e is None else e for e in errors])
        gain = found - base
        rows.append(
            {
                "name": name,
                **dict(zip(NAMES, point.tolist(), strict=True)),
                "log_likelihood": float(found.sum()),
                "gain": float(gain.mean()),
                "gain_error": float(gain.std(ddof=1) / np.sqrt(len(gain))),
                "rejected": values.rejected(point, rest),
            }
        )
    everywhere = np.isfinite(np.array(predictions)).all(axis=(0, 2))
    for row, errors in zip(rows, np.array(predictions), strict=True):
        median, mean = np.median(errors[everywhere], axis=0), errors[everywhere].mean(axis=0)
        row |= {"position": float(median[0]), "turn": float(median[1])}
        row |= {"mean_position": float(mean[0]), "mean_turn": float(mean[1])}
        row["predicted"] = int(everywhere.sum())
    return rows


def print_tables(console: Console, summary: dict[str, Any]) -> None:
    """What was found, in the halves as well, and how it does on other tosses."""
    rows = [("all", summary), *((half["name"], half) for half in summary["halves"])]
    found = ("tosses", *NAMES, "roughness")
    cells = [
        (
            name,
            *(
                f"{p['value']:.4f} ± {p['standard_error']:.4f} ({p['record_error']:.4f})"
                for p in one["parameters"].values()
            ),
            f"{one['roughness']:.1f}",
        )
        for name, one in rows
    ]
    console.print(table("Most likely", found, cells))
    others = ", ".join(f"{e:.4f}" for e in summary["point_errors"])
    console.print(
        "±: standard error by the curvature, in brackets that over tosses. Other points would "
        f"change the first row by {others}."
    )
    columns = ("held out", "log-likelihood", "gain by toss", "rejected", "mm", "deg")
    cells = [
        (
            row["name"],
            f"{row['log_likelihood']:.1f}",
            f"{row['gain']:.1f} ± {row['gain_error']:.1f}",
            str(row["rejected"]),
            f"{1e3 * row['position']:.1f}",
            f"{np.degrees(row['turn']):.1f}",
        )
        for row in summary["held_out"]
    ]
    console.print(table("On tosses that were not used", columns, cells))
    console.print("mm, deg: median error of predictions from the last pose in flight.")
