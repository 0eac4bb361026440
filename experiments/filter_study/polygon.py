"""A polygon tumbles on two engines, and filters follow it by a camera: accuracy, honesty, cost.

Truth is Moreau's time stepping where impacts take no time, and MuJoCo where they do. Tosses
differ by their start. Each filter has the same values and the same first estimate, and the levels
of noise of the model `polygon`; it knows the time that impacts take, and the height of the ground
to 0.17 mm. A Kalman filter without any dynamics, for which every change of velocity is noise, is
beside them: its one level is the likeliest on tosses of its own.

The claim: `hypotheses="auto"` loses no toss, and its normalized estimation error squared (NEES) is
between half and twice the number of directions that contacts leave it, on both engines, at 100 and
at 30 Hz.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from time import process_time
from typing import Any, NamedTuple

import numpy as np
from hybridctl.experiments.filter_models import PolygonSettings, polygon_model
from hybridctl.robots import polygon
from rich.console import Console

from hybridctl import Noise, Plane, Series, contact_system
from hybridctl.app.experiment import Check, Findings, experiment, open_journal
from hybridctl.app.plots import CURVES, Line, Panel, draw_series
from hybridctl.app.report import make_record_table, show_progress
from hybridctl.base.checks import Array, check_member
from hybridctl.base.errors import HybridctlError
from hybridctl.base.journal import Journal, compute_all
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import Count, Natural, NotNegative, Positive, Settings
from hybridctl.base.spaces import VectorSpace
from hybridctl.base.workers import crew
from hybridctl.estimation import Estimate, FilterModel, Record
from hybridctl.estimation.consistency import nees
from hybridctl.estimation.result import FilterResult
from hybridctl.interop.mujoco import Compliance, MujocoModel, MujocoPlant
from hybridctl.mechanics import time_stepping
from hybridctl.sampling import run_filter

SUMMARY = "filters follow a tumbling polygon on rigid and on soft contact, by accuracy and cost"
RECORD = "tosses.jsonl"

CASES = {
    "salted, auto": ("salted", "auto"),
    "salted, one order": ("salted", 1),
    "reset's Jacobian, auto": ("reset_jacobian", "auto"),
    "no jump, auto": ("no_jump", "auto"),
    "unscented": ("unscented", 1),
    "particles": ("particle", 1),
    "no dynamics": ("salted", 1),
}
"""Filter and number of orders of impacts by row of the table."""
CLAIMED, FREE = "salted, auto", "no dynamics"
_STEP = 2e-4  # s, of Moreau's time stepping
_GROUND = 1.7e-4  # m, to which filters know the ground: time stepping stops corners of 1.5 m/s up
# to one step late, uniformly, so that they are off by 1.5 m/s / sqrt(3) times its length. On MuJoCo
# it is the same, far below what corners sink in there, which the noise of impacts has.
_PLANT_PERIOD = 1e-3  # s, between samples of MuJoCo's states
_LOST = 10.0  # deviations of the camera by which a lost toss is off at its end; a choice
_DEPTH = 1e6  # m, of a ground that is never reached
_LAST = 5  # values that count as the end
_LEAST_NEES, _MOST_NEES = 0.5, 2.0  # per degree of freedom
_FREE_FORCES = (0.3, 1.0, 3.0, 10.0)  # N sqrt(s): m g sqrt(t) for t of 1 ms to 1 s
_FREE_SEED, _FREE_TOSSES = 10_000, 4  # first seed and number of tosses that choose its level
_START_SPEEDS = (0.1, 0.1, 0.5)  # m/s, m/s, rad/s: deviations of the first estimate


@dataclass(frozen=True)
class Config(Settings):
    """Tosses, contacts and cameras.

    Attributes:
        tosses: Number of tosses for each contact time and camera.
        contact_times: Times that an impact takes, s: on MuJoCo, or 0 by Moreau's time stepping.
        rates: Rates of the camera, Hz.
        particles: Number of particles.
        filters: Rows of the table, see `CASES`. Without "salted, auto" nothing is claimed.
        seed: Seed of the tosses.
        workers: Number of processes; 0 for one on each processor.
        dask: Address of the scheduler of a cluster that computes instead.
    """

    tosses: Count = 16
    contact_times: tuple[NotNegative, ...] = (0.0, 5e-3)
    rates: tuple[Positive, ...] = (100.0, 30.0)
    particles: Count = 30
    filters: tuple[str, ...] = tuple(CASES)
    seed: Natural = 0
    workers: Natural = 0
    dask: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.filters:
            check_member("filters", name, CASES)


def full(config: Config) -> Config:
    """Return the settings with shorter and longer impacts, too."""
    return replace(config, contact_times=(0.0, 2e-3, 5e-3, 1e-2))


def quick(config: Config) -> Config:
    """Return the settings with two tosses at 30 Hz and without particles."""
    chosen = tuple(name for name in config.filters if name != "particles")
    return replace(config, tosses=2, rates=(30.0,), filters=chosen)


class Place(NamedTuple):
    """A contact and a camera.

    Attributes:
        contact_time: Time that an impact takes, s; 0 for an instant.
        rate: Rate of the camera, Hz.
    """

    contact_time: float
    rate: float

    @property
    def short(self) -> str:
        """Name of the contact in a figure."""
        return f"{1e3 * self.contact_time:g} ms" if self.contact_time else "rigid"

    @property
    def title(self) -> str:
        """Title of the table."""
        soft = f"MuJoCo, impacts of {1e3 * self.contact_time:g} ms"
        return f"{soft if self.contact_time else 'Moreau, rigid'}, {self.rate:g} Hz"


class PolygonTrial(NamedTuple):
    """One toss for several filters.

    Attributes:
        place: Contact and camera.
        seed: Seed of start and camera.
        filters: Rows of the table.
        free_forces: Noises of filters without dynamics that come after these, N sqrt(s).
        particles: Number of particles.
    """

    place: Place
    seed: int
    filters: tuple[str, ...]
    free_forces: tuple[float, ...]
    particles: int


class PolygonOutcome(NamedTuple):
    """A filter on one toss.

    Attributes:
        position: Error of the position, root mean square, m.
        velocity: Error of the velocity, root mean square, m/s.
        nees: Mean of the normalized errors squared.
        degrees: Mean of their degrees of freedom.
        is_lost: Whether x or z is off by `_LOST` deviations of the camera at one of the last
            values; also where the filter failed.
        log_likelihood: Mean log-likelihood of a row of the camera: x, z and pitch together.
        cost: Processor time of such a row, s.
        failed: Message of the error that ended the filter, which then has no values; None without.
    """

    position: float = 0.0
    velocity: float = 0.0
    nees: float = 0.0
    degrees: float = 0.0
    is_lost: bool = True
    log_likelihood: float = 0.0
    cost: float = 0.0
    failed: str | None = None


def run(config: Config, folder: RunFolder, console: Console) -> dict[str, Any]:
    """Follow the tosses; each is kept in `RECORD`, from which an interrupted run goes on.

    Args:
        config: Settings.
        folder: Folder of the results.
        console: Where tables and progress are shown.

    Returns:
        The content of summary.json.
    """
    journal = open_journal(folder / RECORD, config)
    return experiment(partial(_compare, journal))(config, folder, console)


def _compare(journal: Journal, config: Config, console: Console) -> Findings:
    """Return the findings on all tosses.

    Args:
        journal: Journal of tosses.
        config: Settings.
        console: Where progress is shown.
    """
    places = [Place(time, rate) for time in config.contact_times for rate in config.rates]
    others = tuple(name for name in config.filters if name != FREE)
    has_free = FREE in config.filters
    own = range(_FREE_SEED, _FREE_SEED + _FREE_TOSSES) if has_free else range(0)
    trials = [
        PolygonTrial(place, seed, (), _FREE_FORCES, config.particles)
        for place in places
        for seed in own
    ]
    with crew(config.workers, config.dask) as workers, show_progress(console, 0.0, 1.0) as begin:
        tried = compute_all(follow, trials, workers, begin("levels"), journal)
        levels = _choose_levels(trials, tried)
        tosses = [
            PolygonTrial(place, seed, others, levels.get(place, ()), config.particles)
            for place in places
            for seed in range(config.seed, config.seed + config.tosses)
        ]
        made = compute_all(follow, tosses, workers, begin("tosses"), journal)
    results: dict[Place, dict[str, list[PolygonOutcome]]] = {}
    for toss, outcomes in zip(tosses, made, strict=True):
        for name, outcome in zip((*others, *[FREE] * has_free), outcomes, strict=True):
            results.setdefault(toss.place, {}).setdefault(name, []).append(PolygonOutcome(*outcome))
    rows = {
        place: [{"filter": name, **_average(outcomes)} for name, outcomes in found.items()]
        for place, found in results.items()
    }
    summary = {
        "places": [
            {**place._asdict(), "free_force": [*levels.get(place, ())], "rows": found}
            for place, found in rows.items()
        ]
    }
    columns = {
        "filter": "{filter}",
        "tosses": "{tosses}",
        "lost": "{lost}",
        "position [mm]": "{position:.2f}",
        "velocity [m/s]": "{velocity:.3f}",
        "NEES / degree": "{nees:.3g}",
        "median": "{median:.2g}",
        "log-likelihood": "{log_likelihood:.2f}",
        "sample [ms]": "{cost:.2f}",
    }
    tables = [make_record_table(place.title, found, columns) for place, found in rows.items()]
    return Findings(summary, tables, _list_checks(rows), draw=partial(_draw, rows))


def _choose_levels(
    trials: Sequence[PolygonTrial], tried: Sequence[Sequence[Sequence[Any]]]
) -> dict[Place, tuple[float, ...]]:
    """Return the likeliest noise (N sqrt(s)) of the filter without dynamics, by place.

    A noise with which it fails on a toss is not taken.

    Args:
        trials: Its tosses.
        tried: Outcomes of each for all `_FREE_FORCES`.
    """
    totals: dict[Place, Array] = {}
    for toss, outcomes in zip(trials, tried, strict=True):
        each = [PolygonOutcome(*outcome) for outcome in outcomes]
        found = np.array([-np.inf if o.failed is not None else o.log_likelihood for o in each])
        totals[toss.place] = totals.get(toss.place, np.zeros(len(found))) + found
    return {place: (_FREE_FORCES[int(each.argmax())],) for place, each in totals.items()}


def _list_checks(rows: Mapping[Place, Sequence[Mapping[str, Any]]]) -> list[Check]:
    """Return the checks of the claim, for each place."""
    checks = []
    for place, found in rows.items():
        for row in (row for row in found if row["filter"] == CLAIMED):
            checks += [
                Check(f"{place.title}: lost tosses of the salted filter", row["lost"], most=0),
                Check(f"{place.title}: its NEES per degree", row["nees"], _MOST_NEES, _LEAST_NEES),
            ]
    return checks


def follow(toss: PolygonTrial) -> tuple[PolygonOutcome, ...]:
    """Return the outcome of each filter on one toss.

    Args:
        toss: The toss and the filters.
    """
    times, truth = simulate_toss(toss.place, toss.seed)
    random = np.random.default_rng((toss.seed, 1))
    settings = _make_settings(toss, 1)
    camera = np.array([settings.position_noise] * 2 + [settings.angle_noise])
    values = truth[:, :3] + camera * random.normal(size=(len(times), 3))
    deviations = np.concatenate((camera, _START_SPEEDS))
    first = truth[0] + deviations * random.normal(size=6)
    record = Record({"pose": Series(times[1:], values[1:])})
    cases = [(name, None) for name in toss.filters]
    outcomes = []
    for name, force in [*cases, *((FREE, force) for force in toss.free_forces)]:
        kind, hypotheses = CASES[name]
        own = _make_settings(toss, hypotheses)
        model = polygon_model(own) if force is None else _remove_dynamics(polygon_model(own), force)
        start = Estimate(model.open, times[0], first, np.diag(deviations**2))
        begun = process_time()
        try:
            result = run_filter(kind, model, own, record, start)
        except HybridctlError as error:
            outcomes.append(PolygonOutcome(failed=str(error)))
            continue
        outcomes.append(_judge(result, truth[1:], camera[0], process_time() - begun))
    return tuple(outcomes)


def _judge(result: FilterResult, truth: Array, camera: float, spent: float) -> PolygonOutcome:
    """Return the errors of a filter.

    Args:
        result: Its result.
        truth: True states (n, 6).
        camera: Deviation of the camera, m.
        spent: Processor time, s.
    """
    space, n = VectorSpace(6), len(truth)
    off = np.array(result.means) - truth
    squares = [nees(space, *pair) for pair in zip(result.mixtures, truth, strict=True)]
    square, degrees = np.array(squares).mean(axis=0).tolist()
    return PolygonOutcome(
        float(np.sqrt((off[:, :2] ** 2).sum(axis=1).mean())),
        float(np.sqrt((off[:, 3:5] ** 2).sum(axis=1).mean())),
        square,
        degrees,
        bool(np.abs(off[-_LAST:, :2]).max() > _LOST * camera),
        result.log_likelihood / n,
        spent / n,
    )


def _make_settings(toss: PolygonTrial, hypotheses: Any) -> PolygonSettings:
    """Return the settings of a filter, which believes all values and never begins anew."""
    return PolygonSettings(
        rate=toss.place.rate,
        contact_time=toss.place.contact_time,
        guard_noise=_GROUND,
        particles=toss.particles,
        hypotheses=hypotheses,
        compliance=0.0,
        gate=None,  # likelihoods are of all values
        patience=None,  # a filter that has lost the motion stays lost
    )


def _remove_dynamics(model: FilterModel, force: float) -> FilterModel:
    """Return a model whose body floats, free of gravity and contact, under white noise.

    Args:
        model: The model of the polygon.
        force: Root of the spectral density of the force, N sqrt(s). The torque's is that times the
            radius.
    """
    parameters = polygon.PolygonParameters(gravity=0.0)
    depths = Plane(point=(0.0, 0.0, -_DEPTH), normal=(0.0, 0.0, 1.0))
    far = [replace(contact, surface=depths) for contact in polygon.contacts(parameters)]
    floating = contact_system(polygon.robot(parameters, actuated=True), far)
    noise = np.diag(np.square([force, force, force * parameters.radius]))
    return replace(
        model,
        system=floating,
        process_noise=Noise(noise, through_input=True),
        reset_noise=None,
        guard_noise={},
    )


def simulate_toss(place: Place, seed: int) -> tuple[Array, Array]:
    """Return times (n,) in s of the camera's values, and the true states (n, 6).

    States are x, z, pitch and their rates in m, rad, m/s and rad/s; MuJoCo's are interpolated
    linearly between samples.

    Args:
        place: Contact and camera.
        seed: Seed of pitch, speed and spin at the start.
    """
    parameters = polygon.PolygonParameters()
    robot, contacts = polygon.robot(parameters, actuated=True), polygon.contacts(parameters)
    duration = PolygonSettings().duration
    random = np.random.default_rng((seed, 0))
    pitch, speed, spin = random.uniform([-np.pi, -1.0, -4.0], [np.pi, 1.0, 4.0])
    x0 = np.array([0.0, 0.25, pitch, speed, 0.0, spin])
    times = np.arange(round(duration * place.rate) + 1) / place.rate
    if not place.contact_time:
        truth = time_stepping(robot, contacts, x0, (0.0, float(times[-1])), step=_STEP)
        return times, np.array([truth(t) for t in times.tolist()])
    soft = Compliance.of(place.contact_time, parameters.restitution)
    plant = MujocoPlant(MujocoModel(robot, contacts, soft), _PLANT_PERIOD)
    states = [plant.reset(0.0, x0).state]
    count = int(np.ceil(times[-1] / _PLANT_PERIOD - 1e-9))
    states += [plant.step(np.zeros(3)).state for _ in range(count)]
    grid = _PLANT_PERIOD * np.arange(count + 1)
    return times, np.array([np.interp(times, grid, column) for column in np.array(states).T]).T


def _average(outcomes: Sequence[PolygonOutcome]) -> dict[str, Any]:
    """Return averages of one filter over tosses, as they stand in summary.json.

    Tosses on which it failed count as lost and are in no average; others that are lost are. `nees`
    is the mean of all squares over that of their degrees of freedom.

    Args:
        outcomes: Its outcomes.
    """
    none = PolygonOutcome(position=np.nan, velocity=np.nan, nees=np.nan, degrees=np.nan)
    whole = [o for o in outcomes if o.failed is None] or [none]
    squares, degrees = (np.array([getattr(o, k) for o in whole]) for k in ("nees", "degrees"))
    return {
        "tosses": len(outcomes),
        "failed": sum(o.failed is not None for o in outcomes),
        "first_failure": next((o.failed for o in outcomes if o.failed is not None), None),
        "lost": sum(o.is_lost for o in outcomes),
        "position": float(np.sqrt(np.mean([o.position**2 for o in whole]))),
        "velocity": float(np.sqrt(np.mean([o.velocity**2 for o in whole]))),
        "nees": float(squares.sum() / degrees.sum()),
        "median": float(np.median(squares / degrees)),
        "log_likelihood": float(np.mean([o.log_likelihood for o in whole])),
        "cost": float(np.mean([o.cost for o in whole])),
    }


def _draw(rows: Mapping[Place, Sequence[Mapping[str, Any]]], folder: RunFolder) -> None:
    """Save the errors of velocities beside the time of a sample, for each place."""
    panels: list[Panel] = []
    looks = list(product("os", CURVES))
    for place, found in rows.items():
        points = [
            Line(
                1e3 * np.array([row["cost"]]),
                1e3 * np.array([row["velocity"]]),
                None if panels else row["filter"],
                color,
                marker,
            )
            for row, (marker, color) in zip(found, looks, strict=False)
        ]
        panels.append(Panel(f"[mm/s]\n{place.short}, {place.rate:g} Hz", points, log=True))
    draw_series(
        folder / "figures/accuracy.png",
        [panels[k : k + 2] for k in range(0, len(panels), 2)],
        title="Errors of velocities by the cost of a filter, on rigid and on soft contact",
        xlabel="processor time of a sample [ms]",
        xlog=True,
    )
