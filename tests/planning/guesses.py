"""Each task of `first_tasks` from ten guesses.

Run by `PYTHONPATH=tests python -m planning.guesses [TASK ...]`.

A line for each guess: whether there is an optimum, its cost, by how much the open loop and the
tracked run differ from the plan, relative to 1 + |x|, and processor time; or what is in the way.
"""

from __future__ import annotations

import sys
import warnings
from time import process_time

import numpy as np
from planning import first_tasks

from hybridctl.base.errors import HybridctlError, RedundantConditionWarning
from hybridctl.planning.optimisation import OptimalTrajectory, optimise

TASKS = ("monoped_jump", "quadruped_jump", "quadruped_bound", "sliding_block", "stairs")
GUESSES = 10
OFF = (0.05, 0.1)  # standard deviations of coordinates and velocities at the ends of phases
TOLERANCE = 5e-2  # of 1 + |x|: what coarse collocation leaves of velocities where feet let go


def spoilt(task, guess, seed):
    """A guess that is off by a straight line between random states at the ends of each phase."""
    n, random = task.system.space.nx, np.random.default_rng(seed)
    off = random.normal(size=(len(task.phases) + 1, n)) * np.repeat(OFF, n // 2)
    return lambda k, s: guess(k, s) + (1.0 - s) * off[k] + s * off[k + 1]


def sought(name: str, seed: int) -> tuple[first_tasks.Task, OptimalTrajectory]:
    """A task and what is found for it from a guess of that seed."""
    task, guess = getattr(first_tasks, name)()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RedundantConditionWarning)
        start = spoilt(task, guess, seed)
        return task, optimise(task, start, max_iterations=1000, refinements=2, tolerance=TOLERANCE)


def line(name: str, seed: int) -> str:
    """What comes of a guess."""
    begun = process_time()
    try:
        _, found = sought(name, seed)
    except HybridctlError as error:
        return f"{process_time() - begun:.1f} s  none: {error}"
    tracked = "-" if found.tracked is None else f"{found.tracked.mismatch:.1e}"
    return (
        f"{process_time() - begun:.1f} s  {found.iterations} iterations  cost {found.cost:.3f}  "
        f"open loop {found.open_loop.mismatch:.1e}  tracked {tracked}  {found.closing.problem}"
    )


if __name__ == "__main__":
    for wanted in sys.argv[1:] or TASKS:
        name, *chosen = wanted.split(":")
        for number in map(int, chosen[0].split(",")) if chosen else range(GUESSES):
            print(f"{name:16} {number}  {line(name, number)}", flush=True)
