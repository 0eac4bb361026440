"""Bolt walks in space on point feet on two engines under the hybrid LQR of a plan, and is pushed.

The claims: a step is found from a crude guess and closes on simulation up to the exchange of legs.
Its feedforward is unstable, and the hybrid LQR by the saltation matrix makes it stable. With this
feedback bolt walks on the engines' compliant contacts from all random starts: on MuJoCo by all
laws, on Drake by the clock. The plan is of a robot with mirrored legs, the plants are those of the
robot's file.

Three laws have these gains:

- "touch": reference spreading on touches that the engine reports;
- "phase": the clock of the plan begins anew at each touch;
- "clock": the plan runs by the clock, whatever touches.

The limit of pushes is measured beside that and not claimed: the largest impulse of a grid, along a
random horizontal direction at a random time of a step, before the first fall that a bisection
finds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from hybridctl.experiments.plant_loop import Engine, driven, make_engine_plant
from hybridctl.experiments.walking import bolt_figures
from hybridctl.experiments.walking.bolt_gait import (
    BoltGait,
    BoltWeights,
    design_bolt_feedback,
    optimise_bolt_gait,
)
from hybridctl.experiments.walking.controllers import Tracks
from hybridctl.experiments.walking.push_limits import (
    compare_limits,
    draw_limits,
    find_limit,
    format_difference,
    format_limit,
    make_limit_record,
)
from hybridctl.experiments.walking.tables import compute_moduli
from hybridctl.experiments.walking.walk import draw_start
from hybridctl.robots import bolt
from rich.console import Console
from rich.table import Table

from hybridctl.app.experiment import Check, Findings, experiment
from hybridctl.app.report import make_record_table, report_alive, show_progress
from hybridctl.base.checks import Array
from hybridctl.base.errors import SimulationError
from hybridctl.base.journal import compute_trials
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import Count, Natural, NotNegative, Positive, Settings
from hybridctl.base.workers import crew
from hybridctl.control.controller import Controller
from hybridctl.control.detectors import Gate, Threshold
from hybridctl.control.lqr.periodic import PeriodicLqr
from hybridctl.control.phase_reset import PhaseReset
from hybridctl.control.spreading import ClockTracking, ReferenceSpreading
from hybridctl.hybrid.policy import Policy
from hybridctl.hybrid.trajectory import HybridTrajectory

SUMMARY = "bolt walks in space on two engines under the hybrid LQR of a plan, and is pushed"

WalkLaw = Literal["touch", "phase", "clock"]
_PERIOD = 1e-3  # s, of the controller
_EXTENSION = 0.03  # s, before and after each touchdown: the foot sinks by 3 cm; no arc turns back
_PATIENCE = 0.05  # s, for which an overdue foot is waited for
_EARLY = 0.3  # steps by which a touchdown may come before its time
_BETWEEN = 0.5  # steps between two touchdowns at least: a foot that lets go touches for a while
_LONG = 2.0  # steps of the gait that one step may take
_LOW = 0.7  # height of the base relative to the gait, below which bolt has fallen
_LEANING = 0.8  # rad, roll or pitch beyond which bolt has fallen
_BASE = "base_link"  # frame that is pushed
_PUSH = 0.05  # s, duration of a push
_IMPULSE = 0.05  # N s, step of the grid of pushes
_MOST = 32  # steps of this grid at which a search ends
_BEFORE, _AFTER = 2, 12  # steps before a push and those to be walked after it


@dataclass(frozen=True)
class Config(Settings):
    """The settings of the experiment.

    Attributes:
        engines: Engines of the plants: "mujoco" or "drake", extras of the package.
        laws: Laws that walk.
        starts: Number of starts in mid-step.
        steps: Number of steps to be walked.
        pushes: Number of random pushes whose limits are searched for; 0 for none.
        scatter: Standard deviations of the starts, in rad and m, and in rad/s and m/s.
        speed: Speed of the gait, m/s.
        time_constant: Time constant of the contacts, s.
        weights: LQR weights of coordinates (1/rad^2), velocities (s^2/rad^2) and torques
            (1/(N m)^2).
        seed: Seed of starts and pushes.
        workers: Number of processes; 0 for one on each processor.
        dask: Address of the scheduler of a cluster that computes instead.
    """

    engines: tuple[Engine, ...] = ("mujoco",)
    laws: tuple[WalkLaw, ...] = ("touch", "phase", "clock")
    starts: Count = 2
    steps: Count = 20
    pushes: Natural = 0
    scatter: tuple[NotNegative, NotNegative] = (0.01, 0.05)
    speed: Positive = 0.3
    time_constant: Positive = 2e-3
    weights: tuple[Positive, Positive, Positive] = (100.0, 1.0, 10.0)
    seed: Natural = 0
    workers: Natural = 1
    dask: str | None = None


def full(config: Config) -> Config:
    """Return the settings with fifty steps from eight starts on two engines, and ten pushes."""
    return replace(config, engines=("mujoco", "drake"), starts=8, steps=50, pushes=10)


def quick(config: Config) -> Config:
    """Return the settings with three steps from one start."""
    return replace(config, starts=1, steps=3)


class BoltPush(NamedTuple):
    """A push on the base.

    Attributes:
        impulse: Impulse (2,) along x and y, N s.
        time: Time at which it begins, s.
    """

    impulse: Array
    time: float


class BoltWalk(NamedTuple):
    """A walk on a plant.

    Attributes:
        steps: Steps before a fall.
        reason: Reason for which it ended early; empty if it did not.
        times: Times (n,) of the samples, s.
        states: States (n, nx).
        run: Recorded samples as a trajectory; None if they are not asked for.
    """

    steps: int
    reason: str
    times: Array
    states: Array
    run: HybridTrajectory | None


Case: TypeAlias = tuple[Engine, WalkLaw]


@dataclass(frozen=True, eq=False)
class BoltBench:
    """A gait with its controllers, and walks under them.

    Attributes:
        config: Settings of the experiment.
        gait: The gait.
        lqr: Feedback around it.
        tracks: The gait over many steps.
    """

    config: Config
    gait: BoltGait
    lqr: PeriodicLqr
    tracks: Tracks

    @staticmethod
    def of(config: Config, gait: BoltGait) -> BoltBench:
        """Return the bench for a gait, with its feedback designed."""
        lqr = design_bolt_feedback(gait, BoltWeights(*config.weights))
        steps = max(config.steps, _BEFORE + _AFTER if config.pushes else 0) + 1
        return BoltBench(config, gait, lqr, Tracks.of(gait, lqr, steps, _EXTENSION, is_held=True))

    def make_controller(self, law: WalkLaw) -> Controller:
        """Return a law in a loop, on states and flags of contact."""
        reference, limits = self.tracks.reference, np.full(6, bolt.TORQUE)
        gains, both = self.lqr.repeated(self.tracks.steps + 1)[1], np.array([-limits, limits])
        policy: Policy
        if law == "clock":
            policy = ClockTracking(reference, gains, limits=both)
        elif law == "phase":
            policy = PhaseReset(reference, gains, limits=both, patience=_PATIENCE)
        else:
            policy = ReferenceSpreading(reference, gains, limits=both, patience=_PATIENCE)
        closes = [f"{foot} closes" for foot in bolt.CONTACTS]
        touches = Threshold("contact", closes, closed=(0,))
        gate = Gate(touches, reference, before=_EARLY * self.gait.period)
        mode = bolt.LEFT_STANCE
        return Controller(self.gait.walker, policy, _PERIOD, gate, mode=mode, limits=limits)

    def walk(
        self,
        case: Case,
        number: int,
        steps: int,
        push: BoltPush | None = None,
        *,
        recorded: bool = False,
    ) -> BoltWalk:
        """Return the walk from a random start.

        Args:
            case: Engine and law.
            number: Number of the start.
            steps: Steps after which it ends.
            push: A push, or None.
            recorded: Whether the walk has its `run`.
        """
        c, gait, (engine, law) = self.config, self.gait, case
        start = draw_start(gait, np.random.default_rng([c.seed, number]), c.scatter)
        robot, contacts = bolt.robot(), bolt.contacts()
        middle = gait.middle[: robot.nq]
        plant = make_engine_plant(engine, robot, contacts, c.time_constant, _PERIOD, middle)
        if push is not None:
            plant.push(_BASE, np.append(push.impulse / _PUSH, 0.0), push.time, push.time + _PUSH)
        loop = self.make_controller(law)
        begun = last = 0.5 * gait.period
        count, reason, times, states = 0, "", list[float](), list[Array]()
        try:
            for sample in driven(plant, begun, start, lambda s: loop.step(*s).u):
                now = sample.time
                times.append(now)
                states.append(sample.state.copy())
                since = now - last
                if sample.sensed["contact"][(count + 1) % 2] and since > _BETWEEN * gait.period:
                    count, last = count + 1, now
                reason = describe_fall(gait, sample.state, since)
                if reason or count == steps:
                    break
        except SimulationError as error:
            reason = type(error).__name__
        found = loop.run() if recorded and len(times) > 1 else None
        return BoltWalk(count, reason, np.array(times), np.array(states), found)

    def run_trial(self, trial: tuple[Case, int]) -> BoltWalk:
        """Return the walk of a case, engine and law, from the start of a number."""
        case, number = trial
        return self.walk(case, number, self.config.steps)

    def find_push_limit(self, trial: tuple[Case, int]) -> float:
        """Return the largest impulse, N s, of the grid that is survived, by bisection.

        Args:
            trial: Engine and law; then the number of the push.
        """
        case, number = trial
        rng = np.random.default_rng([self.config.seed, 1, number])
        angle, part = 2.0 * math.pi * rng.uniform(), rng.uniform()
        direction = np.array([math.cos(angle), math.sin(angle)])
        time = (0.5 + _BEFORE + part) * self.gait.period

        def is_survived(steps: int) -> bool:
            push = BoltPush(steps * _IMPULSE * direction, time)
            return not self.walk(case, number, _BEFORE + _AFTER, push).reason

        return find_limit(is_survived, _MOST) * _IMPULSE


def describe_fall(gait: BoltGait, state: Array, since: float) -> str:
    """Return the reason for which a walk has ended, empty while it has not.

    Args:
        gait: Gait that is walked.
        state: State (24,).
        since: Time since the last touchdown, s.
    """
    if state[2] < _LOW * gait.middle[2]:
        return "falls"
    if np.abs(state[4:6]).max() > _LEANING:
        return "tips over"
    return "stands" if since > _LONG * gait.period else ""


@experiment
def run(config: Config, console: Console) -> Findings:
    """Return the findings: the gait, walks by all laws on all engines, and limits of pushes."""
    with report_alive(console, "looking for the gait"):
        gait = optimise_bolt_gait(config.speed)
    with report_alive(console, "designing feedback"):
        bench = BoltBench.of(config, gait)
    cases = [(engine, law) for engine in config.engines for law in config.laws]
    limits: dict[Case, list[float]] = {case: [] for case in cases}
    with crew(config.workers, config.dask) as workers, show_progress(console, 0.0, 1.0) as begin:
        starts, pushes = range(config.starts), range(config.pushes)
        walks = compute_trials(bench.run_trial, cases, starts, workers, begin("walking"))
        if config.pushes:
            tick = begin("pushing")
            limits = compute_trials(bench.find_push_limit, cases, pushes, workers, tick)
    records = [make_record(case, walks[case], limits[case]) for case in cases]
    for record, more in zip(records, compare_limits(records, "engine", "law"), strict=True):
        record["push_more"] = more
    open_loop, closed = map(compute_moduli, (gait.multipliers, bench.lqr.multipliers))
    claims = [
        Check("closing error of the step in simulation", gait.closing, 1e-8),
        Check("largest multiplier without feedback", float(open_loop.max()), least=1.0),
        Check("largest multiplier under feedback", float(closed.max()), 1.0),
        *(
            Check(f"{format_case(r)}: steps from the worst start", min(r["steps"]), least=steps)
            for r in records
            for steps in [config.steps]
            if r["engine"] == "mujoco" or r["law"] == "clock"
        ),
    ]
    summary: dict[str, Any] = {
        "gait": {
            "duration": gait.period,
            "closing": gait.closing,
            "cost": gait.step.cost,
            "seconds": gait.step.seconds,
            "iterations": gait.step.iterations,
            "multipliers_open": open_loop[:6].tolist(),
            "multipliers_closed": closed[:6].tolist(),
        },
        "walks": records,
    }

    def draw(folder: RunFolder) -> None:
        bolt_figures.draw_step(folder / "figures/step.png", gait)
        shown = {case: walks[case][0] for case in cases}
        bolt_figures.draw_walks(folder / "figures/walks.png", gait, shown)
        if config.pushes:
            draw_limits(folder / "figures/pushes.png", records, "engine", "law")
        shorter = bench.walk(cases[0], 0, min(config.steps, 10), recorded=True)
        if shorter.run is not None:
            bolt_figures.write_walk(folder, gait, shorter.run)

    return Findings(
        summary,
        [make_gait_table(summary["gait"]), make_walk_table(records)],
        claims,
        {"gait": gait.orbit},
        draw=draw,
    )


def make_record(case: Case, walks: list[BoltWalk], limits: list[float]) -> dict[str, Any]:
    """Return the walks of a case as they stand in summary.json.

    Args:
        case: Engine and law.
        walks: Walks from all starts.
        limits: Largest impulses survived, N s, of all pushes.
    """
    return {
        "engine": case[0],
        "law": case[1],
        "steps": [walk.steps for walk in walks],
        "ends": [walk.reason for walk in walks],
        "across": max(float(np.abs(walk.states[:, 1]).max()) for walk in walks),
        "heading": max(float(np.abs(walk.states[:, 3]).max()) for walk in walks),
        **make_limit_record(limits),
    }


def format_case(row: dict[str, Any]) -> str:
    """Return the case of a record in words."""
    return f"{row['engine']}, {row['law']}"


def make_gait_table(record: dict[str, Any]) -> Table:
    """Return the table of the gait, its search and its multipliers."""
    columns = {
        "step, s": "{duration:.3f}",
        "closes to": "{closing:.1e}",
        "search, s": "{seconds:.0f}",
        "iterations": "{iterations}",
        "multipliers": "{multipliers_open:.3g}",
        "under LQR": "{multipliers_closed:.3g}",
    }
    row = {
        **record,
        "multipliers_open": record["multipliers_open"][0],
        "multipliers_closed": record["multipliers_closed"][0],
    }
    return make_record_table("The planned step, and its largest multipliers", [row], columns)


def make_walk_table(records: list[dict[str, Any]]) -> Table:
    """Return the table of the steps of all walks, and of the pushes survived."""
    rows = [
        {
            "name": format_case(r),
            "steps": r["steps"],
            "across": r["across"],
            "heading": r["heading"],
            "push": format_limit(r),
            "more": format_difference(r["push_more"]),
        }
        for r in records
    ]
    columns = {
        "engine, law": "{name}",
        "steps from each start": "{steps}",
        "off the line, m": "{across:.2f}",
        "heading, rad": "{heading:.2f}",
        "push survived, N s": "{push}",
        "more than by the clock": "{more}",
    }
    return make_record_table("Steps before a fall, and pushes", rows, columns)
