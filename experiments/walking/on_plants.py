"""The five-link walker on MuJoCo, where touchdowns take time, on states and on estimates of them.

The claim: feedback and filter that were designed for impacts without duration walk on contact with
time constants of 1 and 10 ms, if they know the saltation matrix. The same controller with gains
from the Jacobian of the reset, and the same filter with that Jacobian, are put beside them. States
come at 1 kHz with flags of contact, or encoders and an inertial sensor at 250 Hz go through a
filter that knows of touchdowns by these alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import process_time
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from hybridctl.experiments.plant_loop import driven
from hybridctl.experiments.walking import figures
from hybridctl.experiments.walking.controllers import Tracks, Weights, design
from hybridctl.experiments.walking.filtered import SAMPLE, STRATEGIES, EstimateFeedback, Sensing
from hybridctl.experiments.walking.gait import MARGINS, Gait, find
from hybridctl.experiments.walking.walk import STANCES, scattered
from hybridctl.robots import five_link
from rich.console import Console
from rich.table import Table

from hybridctl.app.experiment import Check, Findings, experiment
from hybridctl.app.report import progress, record_table, report_alive
from hybridctl.base.checks import Array
from hybridctl.base.errors import GuardViolatedError, SimulationError
from hybridctl.base.journal import compute_trials
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import Count, Meta, Natural, NotNegative, Positive, Settings
from hybridctl.base.workers import crew
from hybridctl.control.controller import Controller
from hybridctl.control.detectors import Gate, Threshold
from hybridctl.control.lqr.periodic import PeriodicLqr
from hybridctl.control.spreading import ReferenceSpreading
from hybridctl.hybrid.plant import Sample
from hybridctl.interop.mujoco import Compliance, MujocoModel, MujocoPlant

SUMMARY = "the five-link walker on MuJoCo contact, on states and on a filter's estimates"

Known = Literal["state", "estimate"]
CASES: tuple[tuple[Known, str], ...] = (
    ("state", "saltation"),
    ("state", "reset"),
    ("estimate", "saltation"),
    ("estimate", "reset"),
)
_PERIOD = 1e-3  # s, of the controller that knows the state
_EARLY = 0.2  # of a step, by which a touchdown may come before its time
_BETWEEN = 0.5  # of a step, between two touchdowns at least
_LONG = 1.5  # of a step, that one may take
_LOW, _LEANING = 0.75, 1.0  # of the height of the hip, and rad of the torso: a fall


@dataclass(frozen=True)
class Config(Settings):
    """The settings of the experiment.

    time_constants: of the contacts, s. starts, scatter, seed: how many starts in mid-step, with
    standard deviations in rad and m, rad/s and m/s. steps: to walk. speed: of the gait, m/s.
    friction: of the ground. share: of it that the gait may use; with less, feet come down faster,
    which disturbs the filter for longer. torque: the greatest, N m. weights: of torques in 1/(N
    m)^2, where states are known and where they are estimated. level, driven,
    ground: see `filtered.Sensing`; impacts that last are a disturbance to a filter that takes them
    for instants, and feet sink in.
    workers: processes, 0 for one on each processor; dask: the scheduler of a cluster instead.
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
    workers: Natural = 1
    dask: str | None = None


def full(config: Config) -> Config:
    """Twenty steps from eight starts."""
    return replace(config, starts=8, steps=20)


def quick(config: Config) -> Config:
    """Two steps from one start, on the longer contact."""
    return replace(config, time_constants=config.time_constants[-1:], starts=1, steps=2)


class Walked(NamedTuple):
    """A walk: steps before a fall, why it ended early, the time walked, s.

    costs: processor time of each sample of the controller, filter included, s.
    """

    steps: int
    reason: str
    duration: float
    costs: Array


@dataclass(frozen=True, eq=False)
class Bench:
    """A gait with its controllers, and walks under them.

    tracks: by what is known. feedback: by what is known, and by the jumps that gains believe in.
    """

    config: Config
    gait: Gait
    tracks: dict[Known, Tracks]
    feedback: dict[tuple[Known, str], PeriodicLqr]

    @staticmethod
    def of(config: Config, gait: Gait) -> Bench:
        """The bench for a gait, with its controllers designed."""
        tracks: dict[Known, Tracks] = {}
        feedback: dict[tuple[Known, str], PeriodicLqr] = {}
        known: tuple[Known, Known] = ("state", "estimate")
        for kind, weight in zip(known, config.weights, strict=True):
            for jumps in ("saltation", "reset"):
                feedback[kind, jumps] = design(gait, Weights(torques=weight), jumps)
            salted = feedback[kind, "saltation"]
            tracks[kind] = Tracks.of(gait, salted, config.steps + 1, _EXTENSION)
        return Bench(config, gait, tracks, feedback)

    def torques(self, known: Known, jumps: str, seed: int, start: Array) -> Torques:
        """The torques of a controller as a function of samples.

        On estimates the gains are always those of the saltation matrix, and `jumps` is the
        filter's.
        """
        torque, tracks = self.config.torque, self.tracks[known]
        if known == "state":
            return on_states(tracks, self.feedback[known, jumps], torque)
        config = self.config
        sensing = Sensing(config.level, _STRATEGY[jumps], config.driven, config.ground)
        salted = self.feedback[known, "saltation"]
        feedback = EstimateFeedback(tracks, salted, torque, sensing, seed, start)
        return lambda sample: feedback(sample.time, sample.state)

    def walk(self, trial: tuple[tuple[float, Known, str], int]) -> Walked:
        """One walk. trial: time constant, what is known, jumps; number of the start."""
        (constant, known, jumps), number = trial
        c, gait = self.config, self.gait
        start = scattered(gait, np.random.default_rng([c.seed, number]), c.scatter)
        contacts = gait.walker.contacts_in_space("MujocoModel")
        model = MujocoModel(gait.walker.robot, contacts, Compliance(constant))
        plant = MujocoPlant(model, _PERIOD if known == "state" else SAMPLE)
        torques, costs = self.torques(known, jumps, number, start), list[float]()

        def timed(sample: Sample) -> Array:
            begun = process_time()
            u = torques(sample)
            costs.append(process_time() - begun)
            return u

        begun = last = now = 0.5 * gait.period
        steps, reason = 0, ""
        try:
            for sample in driven(plant, begun, start, timed):
                now, since = sample.time, sample.time - last
                if sample.sensed["contact"][(steps + 1) % 2] and since > _BETWEEN * gait.period:
                    steps, last = steps + 1, now
                reason = fallen(gait, sample, since)
                if reason or steps == c.steps:
                    break
        except (SimulationError, GuardViolatedError) as error:
            reason = type(error).__name__
        return Walked(steps, reason, now - begun, np.array(costs))


Torques = Callable[[Sample], Array]
_EXTENSION = 0.2  # s, of the reference before and after touchdowns
_STRATEGY = dict(zip(("saltation", "reset"), STRATEGIES, strict=True))


def on_states(tracks: Tracks, lqr: PeriodicLqr, torque: float) -> Torques:
    """Reference spreading in a loop, on states and flags of contact."""
    walker, period = tracks.gait.walker, tracks.gait.period
    touches = Threshold("contact", [f"{foot} closes" for foot in five_link.CONTACTS], closed=(0,))
    gate = Gate(touches, tracks.reference, before=_EARLY * period)
    gains = lqr.repeated(tracks.steps + 1)[1]
    policy = ReferenceSpreading(tracks.reference, gains, limits=[torque] * 4)
    loop = Controller(walker, policy, _PERIOD, gate, mode=STANCES[0], limits=[torque] * 4)
    return lambda sample: loop.step(*sample).u


def fallen(gait: Gait, sample: Sample, since: float) -> str:
    """The reason why a walk has ended, empty while it has not. since: the last touchdown, s."""
    if sample.state[1] < _LOW * gait.middle[1] or abs(sample.state[2]) > _LEANING:
        return "falls"
    return "stands" if since > _LONG * gait.period else ""


@experiment
def run(config: Config, console: Console) -> Findings:
    """Walk under all controllers on all contacts."""
    with report_alive(console, "looking for the gait"):
        margins = replace(MARGINS, friction=config.share)
        gait = find(config.speed, friction=config.friction, torque=config.torque, margins=margins)
        bench = Bench.of(config, gait)
    cases = [(constant, *case) for constant in config.time_constants for case in CASES]
    with crew(config.workers, config.dask) as workers, progress(console, 0.0, 1.0) as begin:
        walks = compute_trials(bench.walk, cases, range(config.starts), workers, begin("walking"))
    records = [record(*case, found) for case, found in walks.items()]
    claims = [
        Check(f"{name(r)}: steps from the worst start", min(r["steps"]), least=config.steps)
        for r in records
        if r["jumps"] == "saltation"
    ]

    def draw(folder: RunFolder) -> None:
        figures.draw_plants(folder / "figures/plants.png", records, config.steps)

    return Findings({"walks": records}, [walk_table(records)], claims, draw=draw)


def record(constant: float, known: Known, jumps: str, walks: list[Walked]) -> dict[str, Any]:
    """All walks of a controller on a contact, as they stand in summary.json."""
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


def name(row: dict[str, Any]) -> str:
    """A controller and a contact in words."""
    return f"{row['known']}, {row['jumps']}, {1e3 * row['time_constant']:g} ms"


def walk_table(records: list[dict[str, Any]]) -> Table:
    """The table of steps of all walks."""
    rows = [{"name": name(r), **r} for r in records]
    columns = {
        "feedback on, jumps, contact": "{name}",
        "steps from each start": "{steps}",
        "processor share": "{processor_share:.2f}",
        "ms: median, 99 %, longest": "{sample_ms:.2g}",
    }
    title = "Steps on MuJoCo before a fall, and time of a sample by the controller"
    return record_table(title, rows, columns)
