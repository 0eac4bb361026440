"""Parameters of a cube fitted to some tosses are more likely than published ones on others.

They are friction, restitution and the radius of the corners.

A search for the most likely parameters stops where the order of impacts changes in one toss or
another. So the likelihood of every toss is taken at points all over a box, first a wide one with
few tosses, then narrower ones with all, and a quadratic is fitted to them (see
`estimation.likelihood_quadratic`): its top, errors by curvature and over tosses, tops of the halves
of the tosses, and the roughness of the sum. The parameters are judged on tosses that were not used,
beside published and earlier ones: by likelihood, and by the error of predictions from the last pose
in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from hybridctl.experiments.cube_filter.score import run_cube_filter
from hybridctl.experiments.cube_filter.tosses import ORIGIN, read_tosses, scale_toss
from hybridctl.experiments.filter_models import CubeSettings, cube_model
from hybridctl.experiments.runners import compute_standard_error, tabulate
from rich.console import Console
from rich.table import Table
from scipy.spatial.transform import Rotation
from scipy.stats import qmc

from hybridctl import simulate
from hybridctl.app.experiment import Check, Findings, experiment, open_journal
from hybridctl.app.plots import BASELINE, REFERENCE, TRACKING, make_figure, save_figure
from hybridctl.app.report import show_progress
from hybridctl.base.checks import Array, check_number
from hybridctl.base.errors import ConstraintViolatedError, InputError, SimulationError
from hybridctl.base.journal import Journal, compute_all
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import Count, Positive, Settings
from hybridctl.base.workers import Crew, InProcessExecutor
from hybridctl.estimation import Estimate, FilterModel, Record
from hybridctl.estimation.likelihood import log_likelihoods
from hybridctl.estimation.likelihood_quadratic import LikelihoodQuadratic, Top, fit_quadratics

SUMMARY = (
    "friction, restitution and corner radius of a cube from recorded tosses, held out on others"
)
RECORD = "likelihoods.jsonl"

UNITS = {"friction": (1.0, ""), "restitution": (1.0, ""), "rounding": (1e3, " [mm]")}
NAMES = tuple(UNITS)
SCALE = 1.0225  # true over recorded lengths, by the acceleration of free flights
OTHERS = {  # friction, restitution, radius of the corners in m
    "published": (0.18, 0.125, 0.0),
    "published, with round corners": (0.18, 0.125, 5.4e-3),
    "where searches began before": (0.18, 0.25, 1.5e-3),
    "fitted with all levels of noise": (0.16, 0.24, 5.4e-3),
}
FOUND = "found here"


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
    """Ranges of the parameters, with points of a Sobol sequence scrambled by the seed."""

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

    def draw_points(self) -> Array:
        """Return the points (m, 3)."""
        low, high = np.array([getattr(self, name) for name in NAMES]).T
        sequence = qmc.Sobol(3, seed=self.seed).random_base2((self.points - 1).bit_length())
        return np.asarray(qmc.scale(sequence[: self.points], low, high))


@dataclass(frozen=True)
class Config(Settings):
    """Tosses of the file `data`, and points at which their likelihood is taken.

    fitted, held_out: numbers of tosses, those from 0 and those that follow. every: every n-th of
    the fitted ones is used in the wide box. until: how much of a toss, s. boxes: all others.
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
    """Return the settings with few tosses, and a box that is wide enough for them."""
    box = Box((0.1, 0.3), (0.1, 0.4), (2e-3, 8e-3), 12, 0)
    return Config(config.data, 4, 2, 2, 0.2, box, (box,))


def run(config: Config, folder: RunFolder, console: Console) -> dict[str, Any]:
    """Find the parameters; every likelihood is kept in `RECORD`, from which a run goes on.

    Args:
        config: Settings.
        folder: Folder of the results.
        console: Where tables and progress are shown.

    Returns:
        The content of summary.json.

    Raises:
        InputError: No file of recordings is given.
    """
    if config.data is None:
        raise InputError(f"cube-identify needs data=FILE, recorded tosses; they are from {ORIGIN}")
    journal = open_journal(folder / RECORD, config)
    return experiment(partial(_identify, journal, config.data))(config, folder, console)


def _identify(journal: Journal, data: str, config: Config, console: Console) -> Findings:
    """Return the top of the likelihood's quadratic, judged on other tosses.

    Args:
        journal: Journal of likelihoods.
        data: File of recordings.
        config: Settings.
        console: Where progress is shown.
    """
    numbers = list(range(config.fitted + config.held_out))
    read = read_tosses(data, numbers, config.noise)
    whole = {k: scale_toss(record, SCALE) for k, record in read.items()}
    records = {k: shorten(record, config.until) for k, record in whole.items()}
    values = LikelihoodTable(journal, config.noise, records)
    own, rest = numbers[: config.fitted], numbers[config.fitted :]
    points = np.vstack([box.draw_points() for box in config.boxes])
    wide = config.wide.draw_points()
    with show_progress(console, 0.0, 1.0) as begin:
        scan = values.fill(wide, own[:: config.every])
        likelihoods = values.fill(points, own, begin("points"))
        surface = fit_quadratics(points, likelihoods, depth=config.depth)
    top, n = surface.top(), len(own)
    parts = {
        "first": range(n // 2),
        "second": range(n // 2, n),
        "even": range(0, n, 2),
        "odd": range(1, n, 2),
    }
    halves = {name: surface.top(list(part)) for name, part in parts.items()}
    summary = {
        **_record_top(top),
        "point_errors": surface.point_errors(),
        "fitted": n,
        "points": len(points),
        "halves": [{"name": name, **_record_top(half)} for name, half in halves.items()],
        "scan": [
            {**_name_values(p), "log_likelihood": float(row.sum())}
            for p, row in zip(wide, scan, strict=True)
        ],
        "held_out": _judge_parameters(config, values, top, whole, rest),
    }
    said = "gain in log-likelihood of other tosses over the published parameters"
    tops = {"all tosses": top, "even ones": halves["even"], "odd ones": halves["odd"]}
    return Findings(
        summary,
        _tabulate(summary),
        [Check(said, float(summary["held_out"][-1]["gain"]), least=0.0)],
        draw=lambda folder: _draw_profiles(folder / "figures/profiles.png", surface, tops),
    )


def replace_parameters(settings: CubeSettings, point: Array) -> CubeSettings:
    """Return settings with the parameters of a point.

    Args:
        settings: The settings.
        point: Friction, restitution and radius of the corners in m.
    """
    return replace(settings, **_name_values(point))


def _name_values(point: Array) -> dict[str, Any]:
    return dict(zip(NAMES, point.tolist(), strict=True))


def shorten(record: Record, until: float) -> Record:
    """Return the rows of the first `until` s of a toss.

    Args:
        record: The toss.
        until: Time from its start, s.
    """
    return record.between(-np.inf, float(record.channels["pose"].times.min()) + until)


@dataclass(frozen=True, eq=False)
class LikelihoodTable:
    """Log-likelihoods by point and toss, and numbers of rejected poses, in a journal.

    Every toss has a filter with one hypothesis run on its first poses.
    """

    journal: Journal
    settings: CubeSettings
    records: Mapping[int, Record]

    def fill(
        self, points: Array, numbers: Sequence[int], tick: Callable[[float], None] | None = None
    ) -> Array:
        """Return log-likelihoods (m, n), -inf where a filter fails.

        Args:
            points: Parameters (m, 3).
            numbers: Numbers (n,) of the tosses.
            tick: Function that is called with the share that is done.
        """
        return self._get_entries(points, numbers, tick)[..., 0]

    def count_rejected(self, point: Array, numbers: Sequence[int]) -> int:
        """Return the number of poses that the gate rejected.

        Args:
            point: Parameters (3,).
            numbers: Numbers of the tosses.
        """
        return int(self._get_entries(point[None], numbers)[..., 1].sum())

    def _get_entries(
        self, points: Array, numbers: Sequence[int], tick: Callable[[float], None] | None = None
    ) -> Array:
        """Return log-likelihood and number of rejected poses (m, n, 2); compute missing ones."""
        cases = [(*point, number) for point in points.tolist() for number in numbers]
        found = compute_all(self._evaluate, cases, Crew(InProcessExecutor()), tick, self.journal)
        return np.array(found, dtype=np.float64).reshape(len(points), len(numbers), 2)

    def _evaluate(self, case: tuple[float, float, float, int]) -> tuple[float, int]:
        *point, number = case
        settings = replace_parameters(self.settings, np.array(point))
        try:
            result, rows = run_cube_filter("salted", settings, self.records[number])
        except (SimulationError, ConstraintViolatedError):
            return -np.inf, 0
        return float(log_likelihoods(result, rows).sum()), len(result.rejected)


def _judge_parameters(
    config: Config,
    values: LikelihoodTable,
    top: Top,
    whole: Mapping[int, Record],
    rest: Sequence[int],
) -> list[dict[str, Any]]:
    """Return log-likelihood and errors of predictions on tosses that were not used, by parameters.

    log_likelihood: of all tosses; gain, gain_error: over the first of `OTHERS`, by toss, with its
    standard error. position (m) and turn (rad): medians and means, on the tosses that all predict.

    Args:
        config: Settings.
        values: Likelihoods.
        top: Parameters that were found.
        whole: Tosses, not shortened.
        rest: Numbers of the tosses that were not used.
    """
    first = np.array(OTHERS["published"])
    sharp = replace_parameters(config.noise, first)  # sharp corners are the first to touch
    starts = {n: _find_last_flight(cube_model(sharp), sharp, values.records[n]) for n in rest}
    given = {name: np.array(point) for name, point in OTHERS.items()} | {FOUND: top.values}
    models = [cube_model(replace_parameters(config.noise, point)) for point in given.values()]
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
                **_name_values(point),
                "log_likelihood": float(found.sum()),
                "gain": float(gain.mean()),
                "gain_error": compute_standard_error(gain),
                "rejected": values.count_rejected(point, rest),
                "position": float(position),
                "turn": float(turn),
                "mean_position": float(mean[0]),
                "mean_turn": float(mean[1]),
                "predicted": int(known.sum()),
            }
        )
    return rows


def _find_last_flight(model: FilterModel, settings: CubeSettings, record: Record) -> Estimate:
    """Return the last estimate of a toss before the first event of its filter."""
    result, _ = run_cube_filter("salted", settings, record)
    found: Estimate = result.initial
    for step in result.steps:
        if step.events or step.estimate.mode != model.open:
            break
        found = step.estimate
    return found


def prediction_errors(
    model: FilterModel, record: Record, start: Estimate, ahead: float
) -> tuple[float, float]:
    """Return distance in m and angle in rad between a predicted and a recorded pose.

    They are nan where the record has no row then, or the motion cannot be simulated.

    Args:
        model: Model of the cube.
        record: The toss.
        start: Estimate from which the motion is predicted.
        ahead: Time of the pose after the start, s.
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


def _record_top(top: Top) -> dict[str, Any]:
    """Return a top as it stands in summary.json."""
    columns = zip(NAMES, top.values, top.standard_errors, top.record_errors, strict=True)
    return {
        "parameters": {
            name: {"value": float(v), "standard_error": float(e), "record_error": float(r)}
            for name, v, e, r in columns
        },
        "correlation": top.correlation,
        "roughness": top.roughness,
        "inside": top.inside,
    }


def _tabulate(summary: Mapping[str, Any]) -> list[Table | str]:
    """Return tables of the parameters, of the halves as well, and of other tosses.

    Args:
        summary: Content of summary.json.
    """
    tops = {"all": summary, **{half["name"]: half for half in summary["halves"]}}
    columns = {"tosses": "{name}"}
    for name in NAMES:
        entry = f"parameters[{name}]"
        columns[name] = f"{{{entry}[value]:.4f}} ± {{{entry}[standard_error]:.4f}} "
        columns[name] += f"({{{entry}[record_error]:.4f}})"
    columns["misfit of the quadratic"] = "{roughness:.1f}"
    others = ", ".join(f"{e:.4f}" for e in summary["point_errors"])
    judged = {
        "parameters": "{name}",
        "log-likelihood": "{log_likelihood:.1f}",
        "gain per toss": "{gain:.1f} ± {gain_error:.1f}",
        "poses rejected": "{rejected}",
        "position [mm]": "{position:.1f}",
        "angle [deg]": "{turn:.1f}",
    }
    held_out = {row["name"]: row for row in summary["held_out"]}
    return [
        tabulate("Most likely parameters", tops, columns),
        "±: standard error by the curvature of the likelihood, in brackets by the spread over "
        f"tosses. Error of the first row by the choice of evaluated points: {others}.",
        tabulate("On held-out tosses", held_out, judged),
        "gain: over the first row. position, angle: median error of predictions from the last pose "
        "in flight.",
    ]


def _draw_profiles(path: Path, surface: LikelihoodQuadratic, tops: Mapping[str, Top]) -> None:
    """Save profiles of all tosses and of their halves, and the evaluated points.

    A point is drawn as far from the profile as it is from the quadratic.

    Args:
        path: File of the figure.
        surface: Quadratics of the tosses.
        tops: Their tops, by the tosses that count.
    """
    figure, rests = make_figure(10.0, 3.4), surface.rests.sum(axis=1)
    panels = figure.subplots(1, 3, sharey=True)
    for k, (axes, (name, (unit, label))) in enumerate(zip(panels, UNITS.items(), strict=True)):

        def fall(top: Top, at: Array, k: int = k) -> Array:
            """Return the profile over parameter k, below its top."""
            return np.asarray(-0.5 * ((at - top.values[k]) / top.standard_errors[k]) ** 2)

        x = surface.points[:, k]
        at = np.linspace(x.min(), x.max(), 200)
        for (tosses, top), color in zip(tops.items(), (TRACKING, REFERENCE, BASELINE), strict=True):
            axes.plot(unit * at, fall(top, at), color=color, lw=1.6, label=tosses)
        evaluated = fall(tops["all tosses"], x) + rests
        axes.plot(unit * x, evaluated, ".", color="black", label="evaluated")
        axes.set_xlabel(f"{name}{label}")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("log-likelihood below its top")
    panels[0].legend(fontsize=8)
    figure.suptitle("Profiles of the log-likelihood of the tosses")
    save_figure(figure, path)
