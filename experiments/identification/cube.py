"""Friction, restitution and the radius of its corners, of a cube from recorded tosses.

A search for the most likely parameters stops where the order of impacts changes in one toss or
another. So the likelihood of every toss is taken at points all over a box, first a wide one with
few tosses, then narrower ones with all, and a quadratic goes through those (see
`estimation.likelihood_quadratic`): its top, errors by curvature and over tosses, tops of the halves
of the tosses, and how rough the sum is. What is found is judged on tosses that were not used,
beside what is published and what had been fitted before: by likelihood, and by how far a motion
from the last pose in flight is from the pose some time later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from hybridctl.experiments.cube_filter.score import filtered
from hybridctl.experiments.cube_filter.tosses import ORIGIN, moved, recorded
from hybridctl.experiments.filter_models import CubeSettings, cube_model
from rich.console import Console
from rich.table import Table
from scipy.spatial.transform import Rotation
from scipy.stats import qmc

from hybridctl import simulate
from hybridctl.app.experiment import Check, Findings, experiment, open_journal
from hybridctl.app.plots import BASELINE, REFERENCE, TRACKING, canvas, save_figure
from hybridctl.app.report import progress, record_table, table
from hybridctl.base.checks import Array, check_number
from hybridctl.base.errors import ConstraintViolatedError, InputError, SimulationError
from hybridctl.base.journal import Journal, compute_all
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import Count, Positive, Settings
from hybridctl.base.workers import Crew, InProcessExecutor
from hybridctl.estimation import Estimate, FilterModel, Record
from hybridctl.estimation.likelihood import log_likelihoods
from hybridctl.estimation.likelihood_quadratic import LikelihoodQuadratic, Top, fit_quadratics

NAMES = ("friction", "restitution", "rounding")


def at_point(settings: CubeSettings, point: Array) -> CubeSettings:
    """Settings at a point (3,)."""
    return replace(settings, **dict(zip(NAMES, point.tolist(), strict=True)))


def shortened(record: Record, until: float) -> Record:
    """The rows of the first `until` s."""
    return record.between(-np.inf, float(record.channels["pose"].times.min()) + until)


@dataclass(frozen=True, eq=False)
class LikelihoodTable:
    """Log-likelihoods by point and toss, and how many poses the gate rejected, in a journal.

    Every toss has a filter with one hypothesis go along its first poses.
    """

    journal: Journal
    settings: CubeSettings
    records: Mapping[int, Record]

    def fill(
        self, points: Array, numbers: Sequence[int], tick: Callable[[float], None] | None = None
    ) -> Array:
        """Log-likelihoods (m, n) of tosses at points (m, 3); -inf where a filter fails."""
        return self._entries(points, numbers, tick)[..., 0]

    def rejected(self, point: Array, numbers: Sequence[int]) -> int:
        """How many poses of these tosses the gate rejected at a point."""
        return int(self._entries(point[None], numbers)[..., 1].sum())

    def _entries(
        self, points: Array, numbers: Sequence[int], tick: Callable[[float], None] | None = None
    ) -> Array:
        cases = [(*point, number) for point in points.tolist() for number in numbers]
        found = compute_all(self._found, cases, Crew(InProcessExecutor()), tick, self.journal)
        return np.array(found, dtype=np.float64).reshape(len(points), len(numbers), 2)

    def _found(self, case: tuple[float, float, float, int]) -> tuple[float, int]:
        *point, number = case
        settings = at_point(self.settings, np.array(point))
        try:
            result, rows = filtered("salted", settings, self.records[number])
        except (SimulationError, ConstraintViolatedError):
            return -np.inf, 0
        return float(log_likelihoods(result, rows).sum()), len(result.rejected)


def flight(model: FilterModel, settings: CubeSettings, record: Record) -> Estimate:
    """The last estimate of a toss before the first event of its filter."""
    result, _ = filtered("salted", settings, record)
    found: Estimate = result.initial
    for step in result.steps:
        if step.events or step.estimate.mode != model.open:
            break
        found = step.estimate
    return found


def prediction_errors(
    model: FilterModel, record: Record, start: Estimate, ahead: float
) -> tuple[float, float]:
    """How far the motion from a start is from the pose `ahead` s later, in m and in rad.

    nan where the record has no row then, or the motion cannot be simulated.
    """
    poses = record.channels["pose"]
    row = int(np.abs(poses.times - start.time - ahead).argmin())
    end = float(poses.times[row])
    if abs(end - start.time - ahead) > np.diff(poses.times).max():
        return np.nan, np.nan
    at = model.system, start.mode, start.mean, (start.time, end)
    try:
        run = simulate(*at, rtol=1e-7, atol=1e-7, on_zeno="rest")
    except (SimulationError, ConstraintViolatedError):
        return np.nan, np.nan
    found, seen = run.final_state, poses.values[row]
    turn = Rotation.from_quat(found[3:7]).inv() * Rotation.from_quat(seen[3:7])
    return float(np.linalg.norm(found[:3] - seen[:3])), float(turn.magnitude())


SUMMARY = (
    "friction, restitution and corner radius of a cube from recorded tosses, held out on others"
)
RECORD = "likelihoods.jsonl"

SCALE = 1.0225  # true over recorded lengths, by the acceleration of free flights
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
        compliance=0.0,
        gate=0.9999,
        patience=3,
        warm_up=3,
        tolerance=1e-7,
    )


@dataclass(frozen=True)
class Box(Settings):
    """Ranges in which some points of a Sobol sequence lie, by the seed that scrambles it."""

    friction: tuple[float, float]
    restitution: tuple[float, float]
    rounding: tuple[float, float]
    points: Count
    seed: int

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in NAMES:
            low, high = getattr(self, name)
            check_number(f"upper end of {name}", high, above=low)

    def drawn(self) -> Array:
        """The points (m, 3)."""
        low, high = np.array([getattr(self, name) for name in NAMES]).T
        sequence = qmc.Sobol(3, seed=self.seed).random_base2((self.points - 1).bit_length())
        return np.asarray(qmc.scale(sequence[: self.points], low, high))


@dataclass(frozen=True)
class Config(Settings):
    """What is taken of the recordings in the file `data`.

    fitted, held_out: numbers of tosses, those from 0 and those that follow. every: which of the
    fitted ones the wide box is looked at with. until: how much of a toss, s. boxes: all others.
    depth: see `estimation.likelihood_quadratic`. ahead: of predictions, s.
    """

    data: str | None = None
    fitted: Count = 100
    held_out: Count = 100
    every: Count = 5
    until: Positive = 0.3
    wide: Box = Box((0.08, 0.32), (0.02, 0.5), (0.0, 6e-3), 16, 0)
    boxes: tuple[Box, ...] = (
        Box((0.11, 0.25), (0.16, 0.38), (3e-3, 6e-3), 16, 1),
        Box((0.14, 0.24), (0.2, 0.31), (4.2e-3, 8e-3), 4, 2),
    )
    depth: Positive = 60.0
    ahead: Positive = 0.2
    noise: CubeSettings = field(default_factory=_noise)


def quick(config: Config) -> Config:
    """The settings with few tosses, and a box that is wide enough for them."""
    box = Box((0.1, 0.3), (0.1, 0.4), (2e-3, 8e-3), 12, 0)
    return Config(config.data, 4, 2, 2, 0.2, box, (box,))


def run(config: Config, folder: RunFolder, console: Console) -> dict[str, Any]:
    """Find the parameters; every likelihood is kept in `RECORD`, from which a run goes on."""
    if config.data is None:
        raise InputError(f"cube-identify needs data=FILE, recorded tosses; they are from {ORIGIN}")
    journal = open_journal(folder / RECORD, config)
    return experiment(partial(identified, journal))(config, folder, console)


def identified(journal: Journal, config: Config, console: Console) -> Findings:
    """The surface of the likelihood, its top, and how that does on other tosses."""
    assert config.data is not None
    numbers = list(range(config.fitted + config.held_out))
    read = recorded(config.data, numbers, config.noise)
    whole = {k: moved(record, SCALE) for k, record in read.items()}
    records = {k: shortened(record, config.until) for k, record in whole.items()}
    values = LikelihoodTable(journal, config.noise, records)
    own, rest = numbers[: config.fitted], numbers[config.fitted :]
    points, wide = np.vstack([box.drawn() for box in config.boxes]), config.wide.drawn()
    with progress(console, 0.0, 1.0) as begin:
        scan = values.fill(wide, own[:: config.every])
        surface = fit_quadratics(
            points, values.fill(points, own, begin("points")), depth=config.depth
        )
    top = surface.top()
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
        "held_out": judge(config, values, top, whole, rest),
    }
    gain = float(summary["held_out"][-1]["gain"])
    return Findings(
        summary,
        printed(summary),
        [
            Check(
                "gain in log-likelihood of other tosses over the published parameters",
                gain,
                least=0.0,
            )
        ],
        draw=lambda folder: draw_profiles(folder / "figures", surface, top),
    )


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


def halves(surface: LikelihoodQuadratic) -> list[dict[str, Any]]:
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
    config: Config,
    values: LikelihoodTable,
    top: Top,
    whole: Mapping[int, Record],
    rest: Sequence[int],
) -> list[dict[str, Any]]:
    """Parameters on tosses that were not used: log-likelihood, and errors of predictions.

    log_likelihood: of all tosses; gain, gain_error: over the first of `OTHERS`, by toss, with its
    standard error. position (m) and turn (rad): medians and means, on the tosses that all predict.
    """
    sharp = at_point(config.noise, SHARP)  # the first to touch
    starts = {n: flight(cube_model(sharp), sharp, values.records[n]) for n in rest}
    given = {name: np.array(point) for name, point in OTHERS.items()} | {FOUND: top.values}
    models = [cube_model(at_point(config.noise, point)) for point in given.values()]
    predictions = np.array(
        [[prediction_errors(m, whole[n], starts[n], config.ahead) for n in rest] for m in models]
    )
    known = np.isfinite(predictions).all(axis=(0, 2))
    likelihoods, rows = values.fill(np.array(list(given.values())), rest), []
    for (name, point), found, errors in zip(given.items(), likelihoods, predictions, strict=True):
        gain = found - likelihoods[0]
        (position, turn), mean = np.median(errors[known], axis=0), errors[known].mean(axis=0)
        rows.append(
            {
                "name": name,
                **dict(zip(NAMES, point.tolist(), strict=True)),
                "log_likelihood": float(found.sum()),
                "gain": float(gain.mean()),
                "gain_error": float(gain.std(ddof=1) / np.sqrt(len(gain))),
                "rejected": values.rejected(point, rest),
                "position": float(position),
                "turn": float(turn),
                "mean_position": float(mean[0]),
                "mean_turn": float(mean[1]),
                "predicted": int(known.sum()),
            }
        )
    return rows


def printed(summary: Mapping[str, Any]) -> list[Table | str]:
    """What was found, in the halves as well, and how it does on other tosses."""
    found = [
        (
            name,
            *(
                f"{p['value']:.4f} ± {p['standard_error']:.4f} ({p['record_error']:.4f})"
                for p in one["parameters"].values()
            ),
            f"{one['roughness']:.1f}",
        )
        for name, one in (("all", summary), *((half["name"], half) for half in summary["halves"]))
    ]
    others = ", ".join(f"{e:.4f}" for e in summary["point_errors"])
    judged = {
        "parameters": "{name}",
        "log-likelihood": "{log_likelihood:.1f}",
        "gain per toss": "{gain:.1f} ± {gain_error:.1f}",
        "poses rejected": "{rejected}",
        "position [mm]": "{position:.1f}",
        "angle [deg]": "{turn:.1f}",
    }
    return [
        table("Most likely parameters", ("tosses", *NAMES, "misfit of the quadratic"), found),
        "±: standard error by the curvature of the likelihood, in brackets by the spread over "
        f"tosses. Error of the first row by the choice of evaluated points: {others}.",
        record_table("On held-out tosses", summary["held_out"], judged),
        "gain: over the first row. position, angle: median error of predictions from the last pose "
        "in flight.",
    ]


_UNITS = {"friction": (1.0, ""), "restitution": (1.0, ""), "rounding": (1e3, " [mm]")}


def draw_profiles(folder: Path, surface: LikelihoodQuadratic, top: Top) -> None:
    """Profiles of all tosses and of their halves, and what was evaluated, in the folder.

    A point of the evaluation is drawn as far from the profile as it is from the quadratic.
    """
    n = surface.values.shape[1]
    even, odd = surface.top(list(range(0, n, 2))), surface.top(list(range(1, n, 2)))
    tops = {"all tosses": top, "even ones": even, "odd ones": odd}
    figure, rests = canvas(10.0, 3.4), surface.rests.sum(axis=1)
    panels = figure.subplots(1, 3, sharey=True)
    for k, (axes, name) in enumerate(zip(panels, NAMES, strict=True)):
        unit, label = _UNITS[name]
        x = surface.points[:, k]
        at = np.linspace(x.min(), x.max(), 200)
        for (what, one), color in zip(tops.items(), (TRACKING, REFERENCE, BASELINE), strict=True):
            axes.plot(unit * at, _fall(one, k, at), color=color, lw=1.6, label=what)
        axes.plot(unit * x, _fall(top, k, x) + rests, ".", color="black", label="evaluated")
        axes.set_xlabel(f"{name}{label}")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("log-likelihood below its top")
    panels[0].legend(fontsize=8)
    figure.suptitle("Profiles of the log-likelihood of the tosses")
    save_figure(figure, folder / "profiles.png")


def _fall(top: Top, k: int, at: Array) -> Array:
    """The profile of the log-likelihood over parameter k, below its top."""
    return np.asarray(-0.5 * ((at - top.values[k]) / top.standard_errors[k]) ** 2)
