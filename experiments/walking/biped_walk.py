"""A five-link biped walks on gaits found by optimisation, under feedback across its touchdowns.

The claims: a gait is found from a crude guess, and closes on simulation to 1e-8. It is unstable
under its feedforward, and stable under hybrid LQR by the saltation matrix, tracked with reference
spreading. The same design by the Jacobian of the reset alone may not be stable. From random starts
in mid-step the biped walks on.

`full` puts seven controllers, tuned with the same budget, through pushes, steps and slopes both
ways, a torso of another mass, and late detection. It also looks for gaits at several speeds, and
walks on a filter's estimates from noisy sensors. Limits are kept in `RECORD` as they are found, so
that an interrupted run continues.

A fall is a slip, or a foot that lets go before the other one lands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
from hybridctl.experiments.walking import figures, tables
from hybridctl.experiments.walking.controllers import EXTENSION, NAMES, Tracks, Weights, design
from hybridctl.experiments.walking.filtered import (
    STRATEGIES,
    Filtered,
    Pushed,
    Sensing,
    walk_on_estimates,
)
from hybridctl.experiments.walking.gait import MARGINS, Gait, optimise_gait
from hybridctl.experiments.walking.limits import (
    KINDS,
    MEASURED,
    Chosen,
    Contest,
    Name,
    Survived,
    design_all,
    draw_weights,
)
from hybridctl.experiments.walking.walk import Walk, draw_start, walk
from rich.console import Console

from hybridctl.app.experiment import Check, Findings, experiment, open_journal
from hybridctl.app.report import report_alive, show_progress
from hybridctl.base.function_cache import find_compiler
from hybridctl.base.journal import compute_all, compute_trials
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import (
    Count,
    Meta,
    Natural,
    NotNegative,
    Positive,
    Settings,
    UnitInterval,
)
from hybridctl.base.workers import Crew, crew
from hybridctl.control.lqr.periodic import PeriodicLqr

SUMMARY = "a five-link biped walks on gaits found by optimisation, with feedback across touchdowns"


@dataclass(frozen=True)
class Config(Settings):
    """The gait, its feedback, and the trials.

    Attributes:
        speed: Speed of the gait, m/s.
        clearance: Height of the swinging foot in mid-step, m.
        friction: Friction coefficient of the ground.
        share: Share of friction that the gait may use, for forces and landings.
        early: Last share of a step in which the foot would also land inside that share of
            friction, on higher ground.
        late: Time for which the step goes on inside it where the ground is lower, s.
        torque: Greatest torque, N m.
        weights: LQR weights of coordinates (1/rad^2), velocities (s^2/rad^2) and torques
            (1/(N m)^2).
        extension: Extension of the reference before and after touchdowns, s.
        starts: Number of random starts.
        seed: Seed of all random numbers.
        scatter: Standard deviations of the starts, in rad and m, and in rad/s and m/s.
        steps: Number of steps to be walked from them.
        full: Whether all controllers, speeds and filters are run, from `full_starts`.
        full_starts: Number of random starts with `full`.
        budget: Number of weights that each controller but the predictive one is tuned over.
        kinds: Kinds of trials, see `limits.KINDS`; limits are looked for on their grids.
        judged: Number of steps to be walked in a trial, see `walk.is_repeating`.
        predictive_starts: Number of starts for the predictive controller, whose trials take some
            five times as long.
        compiled: Whether functions of the predictive controller, and with `full` those of the
            walker, are machine code, if there is a C compiler.
        speeds: Speeds of further gaits, m/s.
        shares: Shares of friction of further gaits.
        share_steps: Number of steps to be walked in trials of these gaits.
        levels: Levels of the sensors' noise, see `filtered.Sensing`.
        driven: Disturbances that the filter assumes, see `filtered.Sensing`.
        filtered: Number of walks with each filter, and of walks of the predictive controller on
            the salted filter's estimates after a push.
        filtered_steps: Number of steps to be walked on estimates.
        filtered_weight: Weight of torques for walks on estimates: noise asks for lower gains.
        filtered_push: Push for the predictive controller on estimates, N s.
        workers: Number of processes; 0 for one on each processor.
        dask: Address of the scheduler of a cluster that computes instead.
    """

    speed: Positive = 0.7
    clearance: Positive = 0.05
    friction: Positive = 0.7
    share: Annotated[float, Meta(gt=0.0, le=1.0)] = MARGINS.friction
    early: UnitInterval = 0.12
    late: NotNegative = 0.04
    torque: Positive = 100.0
    weights: tuple[Positive, Positive, Positive] = (100.0, 10.0, 0.01)
    extension: Positive = EXTENSION
    starts: Count = 3
    seed: Natural = 0
    scatter: tuple[NotNegative, NotNegative] = (0.01, 0.05)
    steps: Count = 50
    full: bool = False
    full_starts: Count = 20
    budget: Count = 5
    kinds: tuple[Name, ...] = tuple(KINDS)
    judged: Count = 20
    predictive_starts: Count = 5
    compiled: bool = True
    speeds: tuple[Positive, ...] = (0.5, 0.7, 0.9)
    shares: tuple[Positive, ...] = (0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7)
    share_steps: Count = 20
    levels: tuple[Positive, ...] = (0.1, 0.3, 1.0)
    driven: tuple[Positive, ...] = (1e-3,)
    filtered: Count = 5
    filtered_steps: Count = 20
    filtered_weight: Positive = 0.1
    filtered_push: Positive = 30.0
    workers: Natural = 1
    dask: str | None = None


def full(config: Config) -> Config:
    """Return the settings with all controllers, speeds and filters."""
    return replace(config, full=True)


def quick(config: Config) -> Config:
    """Return the settings with few steps from one start."""
    return replace(
        config, starts=1, full_starts=1, steps=2, budget=1, kinds=config.kinds[:1], judged=1,
        predictive_starts=1, compiled=False, speeds=(config.speed,), shares=(config.share,),
        share_steps=2, levels=(0.3,), driven=config.driven[:1], filtered=1, filtered_steps=2,
    )  # fmt: skip


RECORD = "limits.jsonl"
_JUMPS = ("saltation", "reset")
_PUSH_DISTURBANCE = 0.1
"""Disturbance of velocities that a filter assumes where a push is unmeasured, rad^2/s^3."""


def run(config: Config, folder: RunFolder, console: Console) -> dict[str, Any]:
    """Find the gait and walk from random starts; with `full` run all trials.

    Args:
        config: Settings of the study.
        folder: Folder of the results, in which limits are looked up and kept.
        console: Where tables and progress are printed.

    Returns:
        The content of summary.json.
    """
    return experiment(partial(_run_in, folder))(config, folder, console)


def _run_in(folder: RunFolder, config: Config, console: Console) -> Findings:
    """Return the findings; limits are kept in the folder."""
    with report_alive(console, "looking for the gait"):
        gait = find_gait(config, config.speed)
        lqr, blind = (design(gait, Weights(*config.weights), jumps) for jumps in _JUMPS)
    with report_alive(console, "walking"):
        walks = walk_from_starts(config, gait, lqr)
    summary = tables.make_walk_record(gait, lqr, blind) | {
        "steps_walked": [each.steps for each in walks],
        "falls": [each.reason for each in walks],
    }

    def draw(folder: RunFolder) -> None:
        figures.draw_gait(folder / "figures/gait.png", gait)
        if walks[0].run is not None:
            figures.write_walk(folder, gait, walks[0].run)

    steps = min(summary["steps_walked"])
    found = Findings(
        summary,
        [
            tables.make_gait_table([summary]),
            tables.make_multiplier_table(summary),
            tables.make_start_table(gait, walks, config.steps),
        ],
        [
            Check("closing error of the gait in simulation", gait.closing, 1e-8),
            Check("largest multiplier without feedback", summary["multipliers_open"][0], least=1.0),
            Check("largest multiplier under feedback", summary["multipliers_closed"][0], 1.0),
            Check("steps walked from the worst start", steps, least=config.steps),
        ],
        {"gait": gait.orbit},
        draw=draw,
    )
    return add_full_study(config, folder, gait, found, console) if config.full else found


def find_gait(config: Config, speed: float) -> Gait:
    """Return the gait at a speed, m/s."""
    c = config
    return optimise_gait(
        speed,
        friction=c.friction,
        torque=c.torque,
        margins=replace(MARGINS, clearance=c.clearance, friction=c.share, early=c.early),
        late=c.late,
        terms="native" if c.full and _uses_compiler(c) else "auto",
    )


def walk_from_starts(config: Config, gait: Gait, lqr: PeriodicLqr) -> list[Walk]:
    """Return walks from random starts under reference spreading.

    Args:
        config: Settings of the study.
        gait: Gait that is walked.
        lqr: Feedback around it.
    """
    tracks = Tracks.of(gait, lqr, config.steps, config.extension)
    policy = tracks.policy("spreading", lqr, config.torque)
    random = np.random.default_rng(config.seed)
    return [
        walk(gait, policy, draw_start(gait, random, config.scatter), config.steps)
        for _ in range(config.full_starts if config.full else config.starts)
    ]


def add_full_study(
    config: Config, folder: RunFolder, gait: Gait, first: Findings, console: Console
) -> Findings:
    """Return the first findings with those of gaits, controllers and filters.

    Args:
        config: Settings of the study.
        folder: Folder in which limits are looked up and kept.
        gait: Gait at the speed of the settings.
        first: Findings of that gait.
        console: Where progress is printed.
    """
    with show_progress(console, 0.0, 1.0) as begin, crew(config.workers, config.dask) as workers:
        unready = [replace(config, share=share, early=0.0, late=0.0) for share in config.shares]
        shares = compute_all(_study_share, [*unready, config], workers, begin("shares"))
        speeds = [speed for speed in config.speeds if speed != gait.speed]
        others = compute_all(partial(_study_speed, config), speeds, workers, begin("speeds"))
        found = compare_controllers(config, folder, gait, workers, begin("controllers"))
        estimated, after_push = walk_with_filters(config, gait, workers, begin("estimates"))
    gaits = sorted([tables.make_gait_record(gait), *others], key=lambda record: record["speed"])
    summary = {
        "gaits": {f"{record['speed']:g}": record for record in gaits},
        "shares": shares,
        "limits": {each.controller: each.record()["limits"] for each in found},
        "controllers": {each.controller: each.record() for each in found},
        "on_estimates": estimated,
        "predictive_on_estimates": after_push,
    }

    def draw(folder: RunFolder) -> None:
        assert first.draw is not None
        first.draw(folder)
        figures.draw_limits(folder / "figures/limits.png", found)
        figures.draw_shares(folder / "figures/shares.png", shares)

    printed = [
        tables.make_share_table(shares),
        tables.make_gait_table(gaits),
        tables.make_limit_table(found, config.judged, config.budget),
        tables.make_estimate_table(estimated, config.filtered_steps),
    ]
    closing = max(record["closing"] for record in gaits)
    claim = Check("largest closing error of the gaits at all speeds", closing, 1e-8)
    return replace(
        first,
        summary={**first.summary, **summary},
        printed=[*first.printed, *printed],
        checks=[*first.checks, claim],
        draw=draw,
    )


def _study_share(config: Config) -> dict[str, Any]:
    """Return the record of the gait that may use the settings' share of friction."""
    gait = find_gait(config, config.speed)
    lqr = design(gait, Weights(*config.weights))
    tracks = Tracks.of(gait, lqr, config.share_steps, config.extension)
    policy, ready = tracks.policy("value", lqr, config.torque), config.early + config.late > 0.0
    return tables.make_share_record(gait, policy, config.share, ready, config.share_steps)


def _study_speed(config: Config, speed: float) -> dict[str, Any]:
    return tables.make_gait_record(find_gait(config, speed))


def compare_controllers(
    config: Config, folder: RunFolder, gait: Gait, workers: Crew, tick: Callable[[float], None]
) -> list[Survived]:
    """Return the limits of each controller with the weights that suit it best.

    Args:
        config: Settings of the study.
        folder: Folder in which limits are looked up and kept.
        gait: Gait that is walked.
        workers: Processes that compute.
        tick: Called with the share that is done.
    """
    random = np.random.default_rng(config.seed + 1)
    weights = draw_weights(Weights(*config.weights), config.budget, random)
    designs = design_all(gait, weights, workers)
    _, lqr = designs["saltation"][0]
    contest = Contest(
        gait,
        designs,
        Tracks.of(gait, lqr, max(config.judged, MEASURED), config.extension),
        config.torque,
        config.judged,
        config.scatter,
        config.seed,
        _uses_compiler(config),
    )
    record = open_journal(folder / RECORD, config)
    tuned = compute_all(contest.tune, NAMES, workers, None, record)
    chosen = [Chosen(name, number, tuple(rest)) for name, number, rest in tuned]
    slow_first = sorted(chosen, key=lambda each: each.controller != "predictive")
    trials = [(contest.select(each), each, kind) for each in slow_first for kind in config.kinds]
    found = compute_all(partial(_find_limits, config), trials, workers, tick, record, _format_trial)
    limits = dict(zip(map(_format_trial, trials), map(tuple, found), strict=True))
    return [
        contest.judge(
            each, {kind: limits[_format_trial((contest, each, kind))] for kind in config.kinds}
        )
        for each in chosen
    ]


def _format_trial(trial: tuple[Contest, Chosen, Name]) -> str:
    _, chosen, kind = trial
    return f"{chosen.controller}, {kind}"


def _find_limits(config: Config, trial: tuple[Contest, Chosen, Name]) -> tuple[float, ...]:
    contest, chosen, kind = trial
    is_slow = chosen.controller == "predictive"
    starts = config.predictive_starts if is_slow else config.full_starts
    return contest.find_limits(chosen, kind, starts)


def walk_with_filters(
    config: Config, gait: Gait, workers: Crew, tick: Callable[[float], None]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return records of walks on estimates.

    Args:
        config: Settings of the study.
        gait: Gait that is walked.
        workers: Processes that compute. Walks after pushes come first, as they take the longest.
        tick: Called with the share that is done.

    Returns:
        A record for each level of noise and filter, and one of the predictive controller after
        pushes.
    """
    lqr = design(gait, replace(Weights(*config.weights), torques=config.filtered_weight))
    tracks = Tracks.of(gait, lqr, config.filtered_steps + 1, config.extension)
    sensings = [
        Sensing(level, strategy, driven)
        for level in config.levels
        for strategy in STRATEGIES
        for driven in config.driven
    ]
    seeds = range(config.seed, config.seed + config.filtered)
    study = partial(_walk_on_estimates, config, tracks, lqr)
    found = compute_trials(study, [None, *sensings], seeds, workers, tick)
    after_push, *others = (
        dict(zip(("steps_walked", "errors", "falls"), zip(*walks, strict=True), strict=True))
        for walks in found.values()
    )
    names = ({"level": s.level, "driven": s.driven, "filter": s.strategy} for s in sensings)
    records = [{**name, **other} for name, other in zip(names, others, strict=True)]
    return records, {"push forward": config.filtered_push, **after_push}


def _walk_on_estimates(
    config: Config, tracks: Tracks, lqr: PeriodicLqr, trial: tuple[Sensing | None, int]
) -> tuple[int, float, str]:
    """Return the steps of a walk, the error of its estimates, and the reason of a fall.

    Args:
        config: Settings of the study.
        tracks: Tracks for walks without a push.
        lqr: Feedback for walks without a push.
        trial: Sensors and a seed. Without sensors the predictive controller takes a push, on the
            salted filter's estimates.
    """
    sensing, seed = trial
    if sensing is None:
        found = _walk_after_push(config, tracks.gait, seed)
    else:
        found = walk_on_estimates(tracks, lqr, config.torque, sensing, seed)
    return found.walk.steps, found.error, found.walk.reason


def _walk_after_push(config: Config, gait: Gait, seed: int) -> Filtered:
    """Return the walk of the predictive controller on estimates after a push."""
    lqr = design(gait, Weights(*config.weights))
    tracks = Tracks.of(gait, lqr, config.filtered_steps + 1, config.extension)
    sensing = Sensing(max(config.levels), "saltation", _PUSH_DISTURBANCE)
    policy = tracks.policy("predictive", lqr, config.torque, compiled=_uses_compiler(config))
    push = Pushed(policy, config.filtered_push, config.scatter)
    return walk_on_estimates(tracks, lqr, config.torque, sensing, seed, push)


def _uses_compiler(config: Config) -> bool:
    return config.compiled and find_compiler() is not None
