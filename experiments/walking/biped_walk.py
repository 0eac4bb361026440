"""A five-link biped walks on gaits found by optimisation, under feedback across its touchdowns.

The claims: a gait is found from a crude guess and closes on simulation to 1e-8; it is unstable
under its feedforward, and stable under hybrid LQR that knows the saltation matrix, tracked by
reference spreading; the same design with the Jacobian of the reset alone may not be. From random
starts in mid-step it walks on. `full` puts seven controllers, tuned with the same budget, through
pushes, steps and slopes both ways, a torso of another mass and late detection, looks for gaits
at several speeds, and walks on what a filter makes of noisy sensors. What controllers survive is
kept in `RECORD` as it is found, from which a run that was interrupted goes on.

A slip, or a foot that lets go without the other one taking over, counts as a fall.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
from hybridctl.experiments.walking import figures, shares, tables
from hybridctl.experiments.walking.controllers import NAMES, Tracks, Weights, design
from hybridctl.experiments.walking.filtered import (
    STRATEGIES,
    Filtered,
    Pushed,
    Sensing,
    walk_on_estimates,
)
from hybridctl.experiments.walking.gait import MARGINS, Gait, find
from hybridctl.experiments.walking.limits import (
    KINDS,
    MEASURED,
    Chosen,
    Contest,
    Name,
    Survived,
    candidates,
    designs,
)
from hybridctl.experiments.walking.walk import Walk, scattered, walk
from rich.console import Console

from hybridctl.app.experiment import Check, Findings, experiment, open_journal
from hybridctl.app.report import progress, report_alive
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

    speed: m/s. clearance: of the swinging foot in mid-step, m. friction: of the ground. share: of
    it that the gait may use, of forces and of landings. early: the last part of a step, as a share,
    in which the foot would land inside that too, on ground that is higher; late: how long the step
    goes on so where the ground is lower, s. torque: the greatest, N m. weights: of
    coordinates in 1/rad^2, velocities in s^2/rad^2 and torques in 1/(N m)^2. extension: of the
    reference before and after touchdowns, s. starts, seed, scatter: of random starts, with standard
    deviations in rad and m, rad/s and m/s. steps: to walk.
    full: all controllers and speeds, from `full_starts`. budget: how many weights are tried for
    each controller but the predictive one. kinds: of trials, see `limits.KINDS`; what is survived
    is looked for on their grids, over `judged` steps (see `walk.repeats`), from `full_starts`, and
    `predictive_starts` of them for the predictive controller, which takes some five times as long.
    compiled: whether its functions, and those of the walker in full runs, are machine code, where
    there is a C compiler.
    speeds: of further gaits, m/s. levels: of noise of the sensors, where a filter is in the loop,
    and driven: what it takes to disturb velocities, see `filtered.Sensing`. filtered: walks, each
    of `filtered_steps`, with each filter, with gains for this weight of torques: noise asks for
    less; and as many of the predictive controller on the salted filter's estimates, from random
    starts after a push, `filtered_push`, N s. workers: processes, 0 for one on each processor;
    dask: the scheduler of a cluster instead.
    """

    speed: Positive = 0.7
    clearance: Positive = 0.05
    friction: Positive = 0.7
    share: Annotated[float, Meta(gt=0.0, le=1.0)] = MARGINS.friction
    early: UnitInterval = 0.12
    late: NotNegative = 0.04
    torque: Positive = 100.0
    weights: tuple[Positive, Positive, Positive] = (100.0, 10.0, 0.01)
    extension: Positive = 0.2
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
    """All controllers, speeds and filters."""
    return replace(config, full=True)


def quick(config: Config) -> Config:
    """The settings with few steps from one start."""
    return replace(
        config,
        starts=1,
        full_starts=1,
        steps=2,
        budget=1,
        kinds=config.kinds[:1],
        judged=1,
        predictive_starts=1,
        compiled=False,
        speeds=(config.speed,),
        shares=(config.share,),
        share_steps=2,
        levels=(0.3,),
        driven=config.driven[:1],
        filtered=1,
        filtered_steps=2,
    )


RECORD = "limits.jsonl"
_SHAKEN = 0.1  # rad^2/s^3, disturbs velocities for a filter that is not told of a push


def run(config: Config, folder: RunFolder, console: Console) -> dict[str, Any]:
    """Find the gait, its feedback, and walk from random starts; all trials with `full`."""
    return experiment(partial(_found, folder))(config, folder, console)


def _found(folder: RunFolder, config: Config, console: Console) -> Findings:
    with report_alive(console, "looking for the gait"):
        gait = found_gait(config, config.speed)
        lqr, blind = (design(gait, Weights(*config.weights), jumps) for jumps in _JUMPS)
    with report_alive(console, "walking"):
        walks = walked(config, gait, lqr)
    summary = tables.walk_record(gait, lqr, blind)
    summary |= {
        "steps_walked": [each.steps for each in walks],
        "falls": [each.reason for each in walks],
    }

    def draw(folder: RunFolder) -> None:
        figures.draw_gait(folder / "figures/gait.png", gait)
        largest = float(summary["multipliers_closed"][0])
        figures.draw_errors(folder / "figures/errors.png", gait, walks, largest)
        if walks[0].run is not None:
            figures.write_walk(folder, gait, walks[0].run)

    first = Findings(
        summary,
        [
            tables.gait_table([summary]),
            tables.multiplier_table(summary),
            tables.start_table(gait, walks, config.steps),
        ],
        [
            Check("closing error of the gait in simulation", gait.closing, 1e-8),
            Check("largest multiplier without feedback", summary["multipliers_open"][0], least=1.0),
            Check("largest multiplier under feedback", summary["multipliers_closed"][0], 1.0),
            Check(
                "steps walked from the worst start",
                min(summary["steps_walked"]),
                least=config.steps,
            ),
        ],
        {"gait": gait.orbit},
        draw=draw,
    )
    return everything(config, folder, gait, first, console) if config.full else first


_JUMPS = ("saltation", "reset")


def found_gait(config: Config, speed: float) -> Gait:
    """The gait at a speed."""
    margins = replace(
        MARGINS, clearance=config.clearance, friction=config.share, early=config.early
    )
    return find(
        speed,
        friction=config.friction,
        torque=config.torque,
        margins=margins,
        late=config.late,
        terms="native" if config.full and _is_compiled(config) else "auto",
    )


def walked(config: Config, gait: Gait, lqr: PeriodicLqr) -> list[Walk]:
    """Walks from random starts, under reference spreading."""
    tracks = Tracks.of(gait, lqr, config.steps, config.extension)
    policy = tracks.policy("spreading", lqr, config.torque)
    random = np.random.default_rng(config.seed)
    return [
        walk(gait, policy, scattered(gait, random, config.scatter), config.steps)
        for _ in range(config.full_starts if config.full else config.starts)
    ]


def everything(
    config: Config, folder: RunFolder, gait: Gait, first: Findings, console: Console
) -> Findings:
    """Several speeds, what controllers survive, and walks on estimates, beside the first findings.

    Raises what `find` raises for a speed without a gait.
    """
    with progress(console, 0.0, 1.0) as begin, crew(config.workers, config.dask) as workers:
        others = [replace(config, share=share, early=0.0, late=0.0) for share in config.shares]
        traded = compute_all(_traded, [*others, config], workers, begin("shares"))
        gaits = searched(config, gait, workers, begin("speeds"))
        found = compared(config, folder, gait, workers, begin("controllers"))
        estimated, after_push = on_estimates(config, gait, workers, begin("estimates"))
    summary = {
        "gaits": {f"{record['speed']:g}": record for record in gaits},
        "shares": traded,
        "limits": {each.controller: each.record()["limits"] for each in found},
        "controllers": {each.controller: each.record() for each in found},
        "on_estimates": estimated,
        "predictive_on_estimates": after_push,
    }

    def draw(folder: RunFolder) -> None:
        assert first.draw is not None
        first.draw(folder)
        figures.draw_limits(folder / "figures/limits.png", found)
        shares.draw_shares(folder / "figures/shares.png", traded)

    printed = [
        shares.share_table(traded),
        tables.gait_table(gaits),
        tables.limit_table(found, config.judged, config.budget),
        tables.estimate_table(estimated, config.filtered_steps),
    ]
    return replace(
        first,
        summary={**first.summary, **summary},
        printed=[*first.printed, *printed],
        checks=[
            *first.checks,
            Check(
                "largest closing error of the gaits at all speeds",
                max(r["closing"] for r in gaits),
                1e-8,
            ),
        ],
        draw=draw,
    )


def searched(
    config: Config, gait: Gait, workers: Crew, tick: Callable[[float], None]
) -> list[dict[str, Any]]:
    """The gaits at all speeds, one of which is known."""
    others = [speed for speed in config.speeds if speed != gait.speed]
    found = compute_all(partial(_searched, config), others, workers, tick)
    return sorted([tables.gait_record(gait), *found], key=lambda record: record["speed"])


def _traded(config: Config) -> dict[str, Any]:
    gait = found_gait(config, config.speed)
    lqr = design(gait, Weights(*config.weights))
    tracks = Tracks.of(gait, lqr, config.share_steps, config.extension)
    policy, ready = tracks.policy("value", lqr, config.torque), config.early + config.late > 0.0
    return shares.record(gait, policy, config.share, ready, config.share_steps)


def _searched(config: Config, speed: float) -> dict[str, Any]:
    return tables.gait_record(found_gait(config, speed))


def compared(
    config: Config, folder: RunFolder, gait: Gait, workers: Crew, tick: Callable[[float], None]
) -> list[Survived]:
    """What each controller survives with the weights that suit it best.

    Limits are kept in the folder as they are found.
    """
    random = np.random.default_rng(config.seed + 1)
    tried = designs(gait, candidates(Weights(*config.weights), config.budget, random), workers)
    _, lqr = tried["saltation"][0]
    contest = Contest(
        gait,
        tried,
        Tracks.of(gait, lqr, max(config.judged, MEASURED), config.extension),
        config.torque,
        config.judged,
        config.scatter,
        config.seed,
        _is_compiled(config),
    )
    record = open_journal(folder / RECORD, config)
    weights = compute_all(contest.tuned, NAMES, workers, None, record)
    chosen = [Chosen(name, number, tuple(rest)) for name, number, rest in weights]
    slow_first = sorted(chosen, key=lambda each: each.controller != "predictive")
    trials = [(contest.alone(each), each, kind) for each in slow_first for kind in config.kinds]
    found = compute_all(partial(_limits, config), trials, workers, tick, record, _key)
    limits = dict(zip(map(_key, trials), map(tuple, found), strict=True))
    return [
        contest.survived(each, {kind: limits[_key((contest, each, kind))] for kind in config.kinds})
        for each in chosen
    ]


def _key(trial: tuple[Contest, Chosen, Name]) -> str:
    _, chosen, kind = trial
    return f"{chosen.controller}, {kind}"


def _limits(config: Config, trial: tuple[Contest, Chosen, Name]) -> tuple[float, ...]:
    contest, chosen, kind = trial
    is_slow = chosen.controller == "predictive"
    starts = config.predictive_starts if is_slow else config.full_starts
    return contest.limits(chosen, kind, starts)


def on_estimates(
    config: Config, gait: Gait, workers: Crew, tick: Callable[[float], None]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Walks with a filter in the loop: a record for each kind of sensors and filter, one of pushes.

    Those after pushes come first, as they take the longest.
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
    walk_of = partial(_walk_on_estimates, config, tracks, lqr)
    found = compute_trials(walk_of, [None, *sensings], seeds, workers, tick)
    pushed, *others = (
        dict(zip(("steps_walked", "errors", "falls"), zip(*walks, strict=True), strict=True))
        for walks in found.values()
    )
    names = ({"level": s.level, "driven": s.driven, "filter": s.strategy} for s in sensings)
    records = [{**name, **other} for name, other in zip(names, others, strict=True)]
    return records, {"push forward": config.filtered_push, **pushed}


def _walk_on_estimates(
    config: Config, tracks: Tracks, lqr: PeriodicLqr, trial: tuple[Sensing | None, int]
) -> tuple[int, float, str]:
    """The steps of a walk, the error of its estimates, and the reason of a fall.

    trial: sensors and a seed; without sensors the predictive controller takes a push, on the salted
    filter's estimates.
    """
    sensing, seed = trial
    if sensing is None:
        found = _pushed(config, tracks.gait, seed)
    else:
        found = walk_on_estimates(tracks, lqr, config.torque, sensing, seed)
    return found.walk.steps, found.error, found.walk.reason


def _pushed(config: Config, gait: Gait, seed: int) -> Filtered:
    lqr = design(gait, Weights(*config.weights))
    tracks = Tracks.of(gait, lqr, config.filtered_steps + 1, config.extension)
    sensing = Sensing(max(config.levels), "saltation", _SHAKEN)
    policy = tracks.policy("predictive", lqr, config.torque, compiled=_is_compiled(config))
    push = Pushed(policy, config.filtered_push, config.scatter)
    return walk_on_estimates(tracks, lqr, config.torque, sensing, seed, push)


def _is_compiled(config: Config) -> bool:
    """Whether functions of the predictive controller are machine code."""
    return config.compiled and find_compiler() is not None
