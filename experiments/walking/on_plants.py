"""Feedback and filter by the saltation matrix walk on MuJoCo, where touchdowns take time.

The claim: they are designed for impacts without duration, and walk on contact with time constants
of 1 and 10 ms. The same controller with gains from the Jacobian of the reset, and the same filter
with that Jacobian, are run beside them. The controller gets states and flags of contact at 1 kHz,
or the mean of a filter on encoders and an inertial sensor at 250 Hz, without flags.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import process_time
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from hybridctl.experiments.plant_loop import Engine, driven, make_engine_plant
from hybridctl.experiments.walking import figures
from hybridctl.experiments.walking.controllers import Tracks, Weights, design
from hybridctl.experiments.walking.filtered import SAMPLE, STRATEGIES, EstimateFeedback, Sensing
from hybridctl.experiments.walking.gait import MARGINS, Gait, optimise_gait
from hybridctl.experiments.walking.walk import STANCES, draw_start
from hybridctl.robots import five_link
from rich.console import Console
from rich.table import Table

from hybridctl import ReferenceSpreading
from hybridctl.app.experiment import Check, Findings, experiment
from hybridctl.app.report import make_record_table, report_alive, show_progress
from hybridctl.base.checks import Array
from hybridctl.base.errors import GuardViolatedError, SimulationError
from hybridctl.base.journal import compute_trials
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import Count, Meta, Natural, NotNegative, Positive, Settings
from hybridctl.base.workers import crew
from hybridctl.control import Controller, Gate, Threshold
from hybridctl.control.lqr.periodic import PeriodicLqr
from hybridctl.hybrid.plant import Sample

SUMMARY = "the five-link walker on MuJoCo contact, on states and on a filter's estimates"

Known = Literal["state", "estimate"]
CASES: tuple[tuple[Known, str], ...] = (
    ("state", "saltation"),
    ("state", "reset"),
    ("estimate", "saltation"),
    ("estimate", "reset"),
)
_PERIOD = 1e-3  # s, of the controller that gets the state
_EARLY = 0.2  # steps by which a touchdown may come before its time
_BETWEEN = 0.5  # steps between two touchdowns at least: a foot that lets go touches for a while
_LONG = 1.5  # steps of the gait that one step may take
_LOW = 0.75  # height of the hip relative to the gait, below which the walker has fallen
_LEANING = 1.0  # rad, inclination of the torso beyond which the walker has fallen


@dataclass(frozen=True)
class Config(Settings):
    """The settings of the experiment.

    Attributes:
        time_constants: Time constants of the contacts, s.
        starts: Number of starts in mid-step.
        scatter: Their standard deviations, in rad and m, and in rad/s and m/s.
        seed: Seed of the starts.
        steps: Number of steps to be walked.
        speed: Speed of the gait, m/s.
        friction: Friction coefficient of the ground.
        share: Share of friction that the gait may use. With less, feet come down faster, which
            disturbs the filter for longer.
        torque: Greatest torque, N m.
        weights: Weights of torques on states and on estimates, 1/(N m)^2.
        level: See `filtered.Sensing`.
        driven: See `filtered.Sensing`. An impact that lasts is a disturbance to a filter without
            its duration.
        ground: See `filtered.Sensing`. Feet sink into the ground.
        engine: Engine of the plants. On "drake" (an extra of the package) nothing is claimed.
        workers: Number of processes; 0 for one on each processor.
        dask: Address of the scheduler of a cluster that computes instead.
    """

    time_constants: tuple[Positive, ...] = (1e-3, 1e-2)
    starts: Count = 2
    scatter: tuple[NotNegative, NotNegative] = (0.01, 0.05)
    seed: Natural = 0
    steps: Count = 6
    speed: Positive = 0.7
    friction: Positive = 0.7
    share: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.7
    torque: Positive = 100.0
    weights: tuple[Positive, Positive] = (0.01, 0.1)
    level: Positive = 0.3
    driven: Positive = 10.0
    ground: NotNegative = 1e-3
    engine: Engine = "mujoco"
    workers: Natural = 1
    dask: str | None = None


def full(config: Config) -> Config:
    """Return the settings with twenty steps from eight starts."""
    return replace(config, starts=8, steps=20)


def quick(config: Config) -> Config:
    """Return the settings with two steps from one start, on the longer contact."""
    return replace(config, time_constants=config.time_constants[-1:], starts=1, steps=2)


class PlantWalk(NamedTuple):
    """A walk on a plant.

    Attributes:
        steps: Steps before a fall.
        reason: Reason for which it ended early; empty if it did not.
        duration: Time walked, s.
        costs: Processor time of each sample of the controller, with its filter, s.
    """

    steps: int
    reason: str
    duration: float
    costs: Array


@dataclass(frozen=True, eq=False)
class Bench:
    """A gait with its controllers, and walks under them.

    Attributes:
        config: Settings of the experiment.
        gait: The gait.
        tracks: Tracks on states and on estimates.
        feedback: Feedback on states and on estimates, by the jumps of the design.
    """

    config: Config
    gait: Gait
    tracks: dict[Known, Tracks]
    feedback: dict[tuple[Known, str], PeriodicLqr]

    @staticmethod
    def of(config: Config, gait: Gait) -> Bench:
        """Return the bench for a gait, with its controllers designed."""
        tracks: dict[Known, Tracks] = {}
        feedback: dict[tuple[Known, str], PeriodicLqr] = {}
        known: tuple[Known, Known] = ("state", "estimate")
        for kind, weight in zip(known, config.weights, strict=True):
            for jumps in ("saltation", "reset"):
                feedback[kind, jumps] = design(gait, Weights(torques=weight), jumps)
            tracks[kind] = Tracks.of(gait, feedback[kind, "saltation"], config.steps + 1)
        return Bench(config, gait, tracks, feedback)

    def make_torques(self, known: Known, jumps: str, seed: int, start: Array) -> Torques:
        """Return the torques of a controller as a function of samples.

        Args:
            known: Whether the controller gets the state or an estimate.
            jumps: Jumps of the design on states. On estimates the jumps of the filter; the gains
                are then always those of the saltation matrix.
            seed: Seed of the sensors' noise.
            start: Start in mid-step (14,).
        """
        c, tracks = self.config, self.tracks[known]
        if known == "state":
            return make_state_feedback(tracks, self.feedback[known, jumps], c.torque)
        sensing = Sensing(c.level, _STRATEGY[jumps], c.driven, c.ground)
        salted = self.feedback[known, "saltation"]
        feedback = EstimateFeedback(tracks, salted, c.torque, sensing, seed, start)
        return lambda sample: feedback(sample.time, sample.state)

    def walk(self, trial: tuple[tuple[float, Known, str], int]) -> PlantWalk:
        """Return the walk of a trial.

        Args:
            trial: Time constant (s), state or estimate, and jumps; then the number of the start.
        """
        (constant, known, jumps), number = trial
        c, gait = self.config, self.gait
        start = draw_start(gait, np.random.default_rng([c.seed, number]), c.scatter)
        robot, contacts = gait.walker.robot, gait.walker.contacts_in_space("a plant")
        period = _PERIOD if known == "state" else SAMPLE
        middle = gait.middle[: robot.nq]
        plant = make_engine_plant(c.engine, robot, contacts, constant, period, middle)
        torques, costs = self.make_torques(known, jumps, number, start), list[float]()

        def time_torques(sample: Sample) -> Array:
            begun = process_time()
            u = torques(sample)
            costs.append(process_time() - begun)
            return u

        begun = last = now = 0.5 * gait.period
        steps, reason = 0, ""
        try:
            for sample in driven(plant, begun, start, time_torques):
                now, since = sample.time, sample.time - last
                if sample.sensed["contact"][(steps + 1) % 2] and since > _BETWEEN * gait.period:
                    steps, last = steps + 1, now
                reason = describe_fall(gait, sample, since)
                if reason or steps == c.steps:
                    break
        except (SimulationError, GuardViolatedError) as error:
            reason = type(error).__name__
        return PlantWalk(steps, reason, now - begun, np.array(costs))


Torques: TypeAlias = Callable[[Sample], Array]
_STRATEGY = dict(zip(("saltation", "reset"), STRATEGIES, strict=True))


def make_state_feedback(tracks: Tracks, lqr: PeriodicLqr, torque: float) -> Torques:
    """Return reference spreading in a loop, on states and flags of contact.

    Args:
        tracks: Tracks of the gait.
        lqr: Feedback around it.
        torque: Greatest torque, N m.
    """
    walker, period = tracks.gait.walker, tracks.gait.period
    touches = Threshold("contact", [f"{foot} closes" for foot in five_link.CONTACTS], closed=(0,))
    gate = Gate(touches, tracks.reference, before=_EARLY * period)
    gains = lqr.repeated(tracks.steps + 1)[1]
    policy = ReferenceSpreading(tracks.reference, gains, limits=[torque] * 4)
    loop = Controller(walker, policy, _PERIOD, gate, mode=STANCES[0], limits=[torque] * 4)
    return lambda sample: loop.step(*sample).u


def describe_fall(gait: Gait, sample: Sample, since: float) -> str:
    """Return the reason for which a walk has ended, empty while it has not.

    Args:
        gait: Gait that is walked.
        sample: Present sample.
        since: Time since the last touchdown, s.
    """
    if sample.state[1] < _LOW * gait.middle[1] or abs(sample.state[2]) > _LEANING:
        return "falls"
    return "stands" if since > _LONG * gait.period else ""


@experiment
def run(config: Config, console: Console) -> Findings:
    """Return the findings: walks under all controllers on all contacts."""
    with report_alive(console, "looking for the gait"):
        margins = replace(MARGINS, friction=config.share)
        friction, torque = config.friction, config.torque
        gait = optimise_gait(config.speed, friction=friction, torque=torque, margins=margins)
        bench = Bench.of(config, gait)
    cases = [(constant, *case) for constant in config.time_constants for case in CASES]
    with crew(config.workers, config.dask) as workers, show_progress(console, 0.0, 1.0) as begin:
        walks = compute_trials(bench.walk, cases, range(config.starts), workers, begin("walking"))
    records = [make_record(*case, found) for case, found in walks.items()]
    claims = [
        Check(f"{format_case(r)}: steps from the worst start", min(r["steps"]), least=config.steps)
        for r in records
        if r["jumps"] == "saltation" and config.engine == "mujoco"
    ]

    def draw(folder: RunFolder) -> None:
        figures.draw_plants(folder / "figures/plants.png", records, config.steps)

    return Findings({"walks": records}, [make_walk_table(records)], claims, draw=draw)


def make_record(
    constant: float, known: Known, jumps: str, walks: list[PlantWalk]
) -> dict[str, Any]:
    """Return all walks of a case as they stand in summary.json.

    Args:
        constant: Time constant of the contacts, s.
        known: Whether the controller gets the state or an estimate.
        jumps: Jumps of the design or of the filter.
        walks: Walks from all starts.
    """
    costs = np.concatenate([walk.costs for walk in walks])
    taken = np.quantile(costs if costs.size else np.zeros(1), (0.5, 0.99, 1.0))
    return {
        "time_constant": constant,
        "known": known,
        "jumps": jumps,
        "steps": [walk.steps for walk in walks],
        "ends": [walk.reason for walk in walks],
        "processor_share": float(costs.sum() / max(sum(walk.duration for walk in walks), SAMPLE)),
        "sample_ms": dict(zip(("median", "99 %", "longest"), 1e3 * taken, strict=True)),
    }


def format_case(row: dict[str, Any]) -> str:
    """Return the case of a record in words."""
    return f"{row['known']}, {row['jumps']}, {1e3 * row['time_constant']:g} ms"


def make_walk_table(records: list[dict[str, Any]]) -> Table:
    """Return the table of the steps of all walks, and of the time of a sample."""
    rows = [{"name": format_case(r), **r} for r in records]
    columns = {
        "feedback on, jumps, contact": "{name}",
        "steps from each start": "{steps}",
        "processor share": "{processor_share:.2f}",
        "ms: median, 99 %, longest": "{sample_ms:.2g}",
    }
    title = "Steps before a fall, and time of a sample by the controller"
    return make_record_table(title, rows, columns)
