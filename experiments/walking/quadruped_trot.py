"""Quadrupeds trot on a physics engine under a whole-body programme, and are pushed.

The claim: solo12 and go2 trot from each random start for all strides, on the engine's compliant
contact, whether the clock alone or touches as well decide which feet support them. The limit of
pushes is measured beside that and not claimed: the largest impulse of a grid, along a random
horizontal direction at a random time of a stride, before the first fall that a bisection finds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from hybridctl.experiments.plant_loop import Engine, driven, make_engine_plant
from hybridctl.experiments.walking.planned_trot import (
    TrotTrials,
    load_trot_guess,
    make_multiplier_table,
    make_plan_record,
    make_trial_table,
    plan_trot,
)
from hybridctl.experiments.walking.planned_trot_plant import make_plant_record, make_plant_table
from hybridctl.experiments.walking.push_limits import (
    compare_limits,
    draw_limits,
    find_limit,
    format_difference,
    format_limit,
    make_limit_record,
)
from hybridctl.robots import public
from rich.console import Console
from rich.table import Table

from hybridctl.app.experiment import Check, Findings, experiment
from hybridctl.app.plots import BASELINE, REFERENCE, TRACKING, save_figure
from hybridctl.app.plots.panels import make_figure
from hybridctl.app.report import make_record_table, show_progress
from hybridctl.base.checks import Array
from hybridctl.base.errors import SimulationError
from hybridctl.base.journal import compute_trials
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import Count, Natural, NotNegative, Positive, Settings
from hybridctl.base.workers import crew
from hybridctl.control.trot import Trigger, Trot, TrotController
from hybridctl.control.whole_body import WholeBodyQP, make_rotation

SUMMARY = "quadrupeds trot under a whole-body programme on two engines, and are pushed"

Quadruped = Literal["solo12", "go2"]


class TrotKind(NamedTuple):
    """How a robot trots, and how it is pushed.

    Attributes:
        period: Period of a stride, s.
        clearance: Height of a swinging foot, m.
        torque: Greatest torque, N m; None for the robot's own limits.
        base: Frame that is pushed.
        impulse: Step of the grid of pushes, N s.
    """

    period: float
    clearance: float
    torque: float | None
    base: str
    impulse: float


# solo12's description allows 1000 N m; 2.7 N m is a choice near what its motors give.
KINDS: dict[Quadruped, TrotKind] = {
    "solo12": TrotKind(0.3, 0.04, 2.7, "base_link", 0.5),
    "go2": TrotKind(0.4, 0.06, None, "base", 2.0),
}
_PERIOD = 2e-3  # s, of the controller
_PLANNED_ANGLES = (1e-3, 1e-2)
"""Sizes of perturbations from which planned trots start on the plant, rad. A choice."""
_PLANNED_STARTS = 8
"""Number of such starts of each size."""
_SHARE = 0.8  # of friction that forces may use
_PUSH = 0.05  # s, duration of a push
_BEFORE, _AFTER = 2, 6  # strides before a push and those to be trotted after it
_MOST = 16  # steps of the grid of pushes at which a search ends
_LOW = 0.6  # height of the base relative to the trot's, below which a robot has fallen
_UPRIGHT = 0.7  # cosine of the inclination of the base below which it has fallen


@dataclass(frozen=True)
class Config(Settings):
    """The settings of the experiment.

    Attributes:
        robots: The robots.
        triggers: What decides which feet support a robot; see `hybridctl.control.trot`.
        engine: Engine of the plants: "mujoco" or "drake", extras of the package.
        starts: Number of starts.
        strides: Number of strides to be trotted.
        pushes: Number of random pushes whose limits are searched for; 0 for none.
        scatter: Standard deviations of the starts: of joints, roll and pitch, rad, and of all
            velocities, rad/s and m/s.
        speed: Speed forwards, m/s.
        time_constant: Time constant of the contacts, s.
        planned: Whether a trot in place of solo12 is planned too, with its multipliers open loop
            and under its LQR, simulations under feedback (`planned_trot`), and trots on the engine
            (`planned_trot_plant`); some five minutes of one processor.
        seed: Seed of starts and pushes.
        workers: Number of processes; 0 for one on each processor.
        dask: Address of the scheduler of a cluster that computes instead.
    """

    robots: tuple[Quadruped, ...] = ("solo12", "go2")
    triggers: tuple[Trigger, ...] = ("clock", "touch")
    engine: Engine = "mujoco"
    starts: Count = 2
    strides: Count = 10
    pushes: Natural = 0
    scatter: tuple[NotNegative, NotNegative] = (0.03, 0.1)
    speed: NotNegative = 0.3
    time_constant: Positive = 2e-3
    planned: bool = False
    seed: Natural = 0
    workers: Natural = 1
    dask: str | None = None


def full(config: Config) -> Config:
    """Return the settings with 20 strides from eight starts, ten pushes by three laws, a plan."""
    triggers: tuple[Trigger, ...] = ("clock", "touch", "sure")
    return replace(config, triggers=triggers, starts=8, strides=20, pushes=10, planned=True)


def quick(config: Config) -> Config:
    """Return the settings with three strides of one robot from one start."""
    return replace(config, robots=config.robots[:1], starts=1, strides=3)


class TrotRun(NamedTuple):
    """A trot on a plant.

    Attributes:
        strides: Whole strides before a fall.
        reason: Reason for which it ended early; empty if it did not.
        failures: Samples at which the programme did not converge.
        times: Times (n,) of the samples, s.
        bases: Positions (n, 3) of the base, m.
        forces: Normal forces (n, 4) of the feet, N.
    """

    strides: int
    reason: str
    failures: int
    times: Array
    bases: Array
    forces: Array


class BasePush(NamedTuple):
    """A push on the base.

    Attributes:
        impulse: Impulse (2,) along x and y, N s.
        time: Time at which it begins, s.
    """

    impulse: Array
    time: float


@dataclass(frozen=True, eq=False)
class TrotBench:
    """Trots of all robots by all laws.

    Attributes:
        config: Settings of the experiment.
    """

    config: Config

    def trot(
        self,
        name: Quadruped,
        trigger: Trigger,
        number: int,
        strides: int,
        push: BasePush | None = None,
    ) -> TrotRun:
        """Return the trot from a random start.

        Args:
            name: Name of the robot.
            trigger: What decides which feet support it.
            number: Number of the start.
            strides: Strides after which the trot ends.
            push: A push, or None.
        """
        c, kind = self.config, KINDS[name]
        controller, stance = make_trot(name, trigger, c.speed)
        trot, programme = controller.trot, controller.programme
        robot = programme.robot
        contacts, constant = programme.contacts, c.time_constant
        plant = make_engine_plant(c.engine, robot, contacts, constant, _PERIOD, stance)
        if push is not None:
            force = np.append(push.impulse / _PUSH, 0.0)
            plant.push(kind.base, force, push.time, push.time + _PUSH)
        start = draw_start(programme, stance, np.random.default_rng([c.seed, number]), c.scatter)
        end, reason, now = strides * trot.period, "", 0.0
        times, bases, forces = list[float](), list[Array](), list[Array]()
        try:
            for sample in driven(plant, 0.0, start, lambda s: controller.step(*s)):
                now = sample.time
                times.append(now)
                bases.append(sample.state[:3].copy())
                forces.append(np.array(sample.sensed["normal_force"]))
                reason = describe_fall(trot, sample.state)
                if reason or now > end - 0.5 * _PERIOD:
                    break
        except SimulationError as error:
            reason = type(error).__name__
        whole = int((now + 0.5 * _PERIOD) / trot.period)
        arrays = (np.array(each) for each in (times, bases, forces))
        return TrotRun(whole, reason, controller.failures, *arrays)

    def run_trial(self, trial: tuple[tuple[Quadruped, Trigger], int]) -> TrotRun:
        """Return the trot of a case, robot and trigger, from the start of a number."""
        (name, trigger), number = trial
        return self.trot(name, trigger, number, self.config.strides)

    def find_push_limit(self, trial: tuple[tuple[Quadruped, Trigger], int]) -> float:
        """Return the largest impulse, N s, of the grid that is survived, by bisection.

        Args:
            trial: Robot and trigger; then the number of the push.
        """
        (name, trigger), number = trial
        step = KINDS[name].impulse

        def is_survived(steps: int) -> bool:
            return self.survives_push(name, trigger, number, steps * step)

        return find_limit(is_survived, _MOST) * step

    def survives_push(self, name: Quadruped, trigger: Trigger, number: int, size: float) -> bool:
        """Return whether a robot trots on after a push, which has a random direction and time.

        Args:
            name: Name of the robot.
            trigger: What decides which feet support it.
            number: Number of the push, and of the start.
            size: Impulse of the push, N s.
        """
        rng = np.random.default_rng([self.config.seed, 1, number])
        angle, part = 2.0 * math.pi * rng.uniform(), rng.uniform()
        direction = np.array([math.cos(angle), math.sin(angle)])
        push = BasePush(size * direction, (_BEFORE + part) * KINDS[name].period)
        return not self.trot(name, trigger, number, _BEFORE + 1 + _AFTER, push).reason


def make_trot(
    name: Quadruped, trigger: Trigger, speed: float = 0.3
) -> tuple[TrotController, Array]:
    """Return the controller of a robot's trot, and the configuration (nq,) in which it stands.

    Args:
        name: Name of the robot.
        trigger: What decides which feet support it.
        speed: Speed forwards, m/s.
    """
    robot, kind = public.robot_with_motors(name), KINDS[name]
    limits = None if kind.torque is None else np.full(robot.nu, kind.torque)
    programme = WholeBodyQP(robot, public.contacts(name), limits=limits, share=_SHARE)
    stance = robot.posture(public.MODELS[name].posture)
    stance[2] -= programme.find_feet(stance, np.zeros(robot.nv)).positions[:, 2].mean()
    trot = Trot(kind.period, stance[2], velocity=(speed, 0.0, 0.0), clearance=kind.clearance)
    return TrotController(programme, trot, stance, trigger), stance


def draw_start(
    programme: WholeBodyQP, stance: Array, rng: np.random.Generator, scatter: tuple[float, float]
) -> Array:
    """Return a random state (nq + nv,) near the stance, whose lowest foot is on the ground.

    Args:
        programme: The programme of the robot.
        stance: Configuration (nq,) in which it stands.
        rng: Source of random numbers.
        scatter: Standard deviations of angles, rad, and of velocities, rad/s and m/s.
    """
    robot = programme.robot
    moved = scatter[0] * rng.standard_normal(robot.nv)
    moved[[0, 1, 2, 5]] = 0.0  # place and heading do not matter
    q, v = robot.integrate(stance, moved), scatter[1] * rng.standard_normal(robot.nv)
    q[2] -= programme.find_feet(q, v).positions[:, 2].min()
    return np.concatenate([q, v])


def describe_fall(trot: Trot, state: Array) -> str:
    """Return the reason for which a trot has ended, empty while it has not.

    Args:
        trot: The trot.
        state: State (nq + nv,) of the robot.
    """
    if state[2] < _LOW * trot.height:
        return "falls"
    return "tips over" if make_rotation(state[3:7])[2, 2] < _UPRIGHT else ""


@experiment
def run(config: Config, console: Console) -> Findings:
    """Return the findings: trots of all robots by all laws, and the limits of pushes."""
    bench = TrotBench(config)
    cases = [(name, trigger) for name in config.robots for trigger in config.triggers]
    limits: dict[tuple[Quadruped, Trigger], list[float]] = {case: [] for case in cases}
    with crew(config.workers, config.dask) as workers, show_progress(console, 0.0, 1.0) as begin:
        starts, pushes = range(config.starts), range(config.pushes)
        trots = compute_trials(bench.run_trial, cases, starts, workers, begin("trotting"))
        if config.pushes:
            tick = begin("pushing")
            limits = compute_trials(bench.find_push_limit, cases, pushes, workers, tick)
    records = [make_record(case, trots[case], limits[case]) for case in cases]
    for record, more in zip(records, compare_limits(records, "robot", "trigger"), strict=True):
        record["push_more"] = more
    claims = [
        Check(
            f"{format_case(r)}: strides from the worst start",
            min(r["strides"]),
            least=config.strides,
        )
        for r in records
    ]

    def draw(folder: RunFolder) -> None:
        draw_trot(folder / "figures/trot.png", cases[0], trots[cases[0]][0])
        if config.pushes:
            draw_limits(folder / "figures/pushes.png", records, "robot", "trigger")

    data: dict[str, Any] = {"trots": records}
    tables = [make_trot_table(records)]
    if config.planned:
        trot, trials = plan_trot(0.0, load_trot_guess()), TrotTrials()
        feedback = trot.design_feedback()
        planned = make_plan_record(trot, feedback, trials)
        planned["plant"] = make_plant_record(
            trot,
            *trot.make_reference(feedback, trials.strides),
            _PLANNED_ANGLES,
            _PLANNED_STARTS,
            engine=config.engine,
            time_constant=config.time_constant,
        )
        data["planned"] = planned
        tables += [
            make_multiplier_table(planned),
            make_trial_table(planned),
            make_plant_table(planned["plant"]),
        ]
        claims.append(
            Check(
                "largest multiplier of the planned trot under its LQR",
                planned["closed"][0],
                most=1.0,
            )
        )
        claims += [
            Check(
                f"planned trots that hold from {trial['angle']:.0e} rad ({trial['law']})",
                trial["held"],
                least=trial["starts"],
            )
            for trial in planned["trials"]
        ]
    return Findings(data, tables, claims, draw=draw)


def make_record(
    case: tuple[Quadruped, Trigger], trots: list[TrotRun], limits: list[float]
) -> dict[str, Any]:
    """Return the trots of a case as they stand in summary.json.

    Args:
        case: Robot and trigger.
        trots: Trots from all starts.
        limits: Largest impulses survived, N s, of all pushes.
    """
    return {
        "robot": case[0],
        "trigger": case[1],
        "strides": [trot.strides for trot in trots],
        "ends": [trot.reason for trot in trots],
        "failures": [trot.failures for trot in trots],
        "speed": [float(trot.bases[-1, 0] / max(trot.times[-1], _PERIOD)) for trot in trots],
        **make_limit_record(limits),
    }


def format_case(row: dict[str, Any]) -> str:
    """Return the case of a record in words."""
    return f"{row['robot']} by {row['trigger']}"


def make_trot_table(records: list[dict[str, Any]]) -> Table:
    """Return the table of the strides of all trots, and of the pushes survived."""
    rows = [
        {
            "name": format_case(r),
            "strides": r["strides"],
            "speed": f"{np.mean(r['speed']):.2f}",
            "push": format_limit(r),
            "more": format_difference(r["push_more"]),
        }
        for r in records
    ]
    columns = {
        "robot, trigger": "{name}",
        "strides from each start": "{strides}",
        "m/s": "{speed}",
        "push survived, N s": "{push}",
        "more than by the clock": "{more}",
    }
    return make_record_table("Strides before a fall, and pushes", rows, columns)


def draw_trot(path: Path, case: tuple[Quadruped, Trigger], trot: TrotRun) -> None:
    """Draw the height of the base and the forces of one foot of each pair, three strides.

    Args:
        path: File of the figure.
        case: Robot and trigger.
        trot: The trot.
    """
    shown = trot.times > trot.times[-1] - 3.0 * KINDS[case[0]].period
    figure = make_figure(7.0, 4.0)
    height, force = figure.subplots(2, 1, sharex=True)
    height.plot(trot.times[shown], trot.bases[shown, 2], color=TRACKING)
    height.set_ylabel("height of base [m]")
    names = [contact.name for contact in public.contacts(case[0])]
    for foot, color in ((0, TRACKING), (1, REFERENCE)):
        force.plot(trot.times[shown], trot.forces[shown, foot], color=color, label=names[foot])
    force.axhline(0.0, color=BASELINE, linewidth=0.6)
    force.set_ylabel("normal force [N]")
    force.set_xlabel("time [s]")
    force.set_ylim(top=1.3 * float(trot.forces[shown, :2].max()))  # room for the names
    force.legend(loc="upper left", ncols=2)
    height.set_title(f"{case[0]} by {case[1]}: its last three strides")
    save_figure(figure, path)
