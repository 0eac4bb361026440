"""The walker's predictive controller survives each of these trials from random starts.

A trial is a disturbance of one size, after which twenty steps are to be walked: pushes of the hip
in mid-step and at other phases of a step, slopes, and steps of the ground, none of which the
controller measures; plans that come late; and a filter's estimates in place of states. Other laws
can be put through the same trials but the last two.

    python -m hybridctl.experiments.walking.ahead FOLDER

keeps each walk in FOLDER as it ends, continues an interrupted run, and prints the table.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from hybridctl.experiments.walking import limits
from hybridctl.experiments.walking.biped_walk import Config, find_gait
from hybridctl.experiments.walking.controllers import Tracks, Weights, design
from hybridctl.experiments.walking.filtered import Pushed, Sensing, walk_on_estimates
from hybridctl.experiments.walking.gait import Gait
from hybridctl.experiments.walking.walk import (
    Walk,
    draw_start,
    find_mid_step,
    find_place,
    push_state,
    walk,
)
from rich.console import Console
from rich.table import Table

from hybridctl.app.experiment import open_journal
from hybridctl.app.report import make_table
from hybridctl.base.journal import compute_all
from hybridctl.base.workers import Crew, InProcessExecutor
from hybridctl.control.lqr.periodic import PeriodicLqr

RECORD = "walks.jsonl"
_SENSING = Sensing(1.0, "saltation", driven=0.1)
"""Sensors and filter, which assumes this disturbance of velocities because a push is unmeasured."""


class WalkTrial(NamedTuple):
    """A trial of a walk.

    Attributes:
        kind: Kind of the disturbance.
        size: Its size, in the unit of the kind.
        phase: Share of the first step on the right foot at which a push comes; None for mid-step
            of the left foot.
        delay: Delay of plans, s.
        estimated: Whether the controller gets a filter's estimates instead of states.
    """

    kind: limits.Name
    size: float
    phase: float | None = None
    delay: float = 0.0
    estimated: bool = False

    def __str__(self) -> str:
        kind = limits.KINDS[self.kind]
        words = [f"{kind.title}, {self.size:g} {kind.unit}"]
        words += [] if self.phase is None else [f"at {self.phase:g} of a step"]
        words += [f"plans {1e3 * self.delay:g} ms late"] if self.delay else []
        return ", ".join([*words, "on estimates"] if self.estimated else words)


TRIALS = (
    WalkTrial("push forward", 40.0),
    WalkTrial("push back", 60.0),
    *(WalkTrial("push forward", 30.0, phase) for phase in (0.2, 0.35, 0.5, 0.65, 0.8)),
    WalkTrial("slope down", 10.0),
    WalkTrial("slope up", 15.0),
    WalkTrial("up", 8.0),
    WalkTrial("down", 10.0),
    WalkTrial("push forward", 35.0, delay=0.02),
    WalkTrial("push forward", 30.0, estimated=True),
)


@dataclass(frozen=True, eq=False)
class Judge:
    """A gait with a law, which is put through trials.

    Attributes:
        config: Settings of `biped-walk`.
        gait: The gait.
        lqr: Feedback around it.
        law: Name of the law.
        steps: Number of steps to be walked.
        seed: Seed of the starts, which differ between trials, but not between laws.
        compiled: Whether a predictive controller is compiled to machine code.
    """

    config: Config
    gait: Gait
    lqr: PeriodicLqr
    law: str
    steps: int
    seed: int
    compiled: bool = False

    @staticmethod
    def of(config: Config, law: str, steps: int, seed: int, compiled: bool = False) -> Judge:
        """Return the judge of a law on the gait of `biped-walk`.

        Args:
            config: Settings of `biped-walk`.
            law: Name of the law.
            steps: Number of steps to be walked.
            seed: Seed of the starts.
            compiled: Whether a predictive controller is compiled.
        """
        gait = find_gait(config, config.speed)
        lqr = design(gait, Weights(*config.weights))
        return Judge(config, gait, lqr, law, steps, seed, compiled)

    def can_take(self, trial: WalkTrial) -> bool:
        """Return whether the law can be put through a trial."""
        return self.law == "predictive" or not (trial.delay or trial.estimated)

    def walk(self, number: int, trial: WalkTrial, start: int) -> Walk:
        """Return the walk through a trial.

        Args:
            number: Number of the trial.
            trial: The trial.
            start: Number of the random start.
        """
        gait, torque, scatter = self.gait, self.config.torque, self.config.scatter
        weights = Weights(*self.config.weights)
        law = self.law, self.lqr, torque, weights, self.compiled, trial.delay
        policy = self._tracks.policy(*law)
        if trial.estimated:
            seed = int(np.random.SeedSequence([self.seed, number, start]).generate_state(1)[0])
            push = Pushed(policy, trial.size, scatter)
            return walk_on_estimates(self._tracks, self.lqr, torque, _SENSING, seed, push).walk
        random = np.random.default_rng([self.seed, number, start])
        place = find_mid_step(gait) if trial.phase is None else find_place(gait, trial.phase)
        x = draw_start(gait, random, scatter, place)
        if trial.phase is None:
            return limits.run_trial(gait, policy, trial.kind, trial.size, x, self.steps)
        x = push_state(gait, trial.size, x, place.mode)
        return walk(gait, policy, x, self.steps, place=place, whole=False)

    def count_steps(self, walk: tuple[int, WalkTrial, int]) -> tuple[int, str]:
        """Return the steps of a walk and the reason of a fall, by arguments of `walk`."""
        found = self.walk(*walk)
        return found.steps, found.reason

    @cached_property
    def _tracks(self) -> Tracks:
        return Tracks.of(self.gait, self.lqr, self.steps + 1)


Found: TypeAlias = dict[WalkTrial, list[tuple[int, str]]]
"""Steps, and reason of a fall, from each start of a trial."""


def run_trials(folder: Path, judge: Judge, starts: int, trials: Sequence[WalkTrial]) -> Found:
    """Return all walks by trial; those from the first start come before others.

    Args:
        folder: Folder in which walks are looked up and kept.
        judge: Gait and law.
        starts: Number of random starts.
        trials: Trials; those that the law cannot take are left out.
    """
    settings = {name: getattr(judge, name) for name in ("law", "steps", "seed", "compiled")}
    taken = [(number, trial) for number, trial in enumerate(trials) if judge.can_take(trial)]
    walks = [(*each, start) for start in range(starts) for each in taken]
    journal = open_journal(folder / RECORD, judge.config, **settings)
    kept = compute_all(judge.count_steps, walks, Crew(InProcessExecutor()), None, journal)
    found: Found = {trial: [] for _, trial in taken}
    for (_, trial, _), (steps, reason) in zip(walks, kept, strict=True):
        found[trial].append((steps, reason))
    return found


def make_survival_table(found: Found, judge: Judge) -> Table:
    """Return the table of the starts from which each trial was survived, and of the falls."""
    rows = []
    for trial, walks in found.items():
        falls = [f"{steps}: {why}" for steps, why in walks if steps < judge.steps]
        survived = f"{len(walks) - len(falls)} of {len(walks)}"
        rows.append((str(trial), survived, "; ".join(falls)))
    title = f"Starts from which the law '{judge.law}' walks {judge.steps} steps"
    return make_table(title, ["trial", "survived", "falls after steps"], rows)


def main() -> None:
    """Put a law through all trials, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--law", default="predictive")
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--compiled", action="store_true", help="by a C compiler")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    judge = Judge.of(Config(), given.law, given.steps, given.seed, given.compiled)
    found = run_trials(given.folder, judge, given.starts, TRIALS)
    Console(width=140).print(make_survival_table(found, judge))


if __name__ == "__main__":
    main()
