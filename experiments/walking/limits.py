"""What each controller survives, after tuning with the same candidates and the same budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from hybridctl.experiments.walking.controllers import NAMES, Tracks, Weights, design
from hybridctl.experiments.walking.gait import Gait
from hybridctl.experiments.walking.walk import Walk, over_a_step, pushed, scattered, walk

from hybridctl.checks import Array
from hybridctl.control.lqr.periodic import PeriodicLqr
from hybridctl.errors import SimulationError
from hybridctl.hybrid.policy import Policy

_MEASURED = 4  # steps
_SPREAD = 1.0  # of the logarithms (base 10) of weights that are tried


@dataclass(frozen=True)
class Trials:
    """What a controller is put through.

    pushes: N s at the hip, each forwards and backwards. heights: m, each up and down. starts: how
    many, of this scatter. steps: that have to be walked.
    """

    pushes: tuple[float, ...]
    heights: tuple[float, ...]
    starts: int
    scatter: tuple[float, float]
    steps: int
    seed: int


@dataclass(frozen=True)
class Survived:
    """What a controller survived.

    push: the largest such that it and all smaller ones on the grid were survived in both
    directions, N s; up, down: likewise of steps, m. holes: how many larger ones were survived
    beyond the first that was not, so that the limit is not a sharp one. walked: of each start.
    contraction: of the error from one touchdown to the next, measured; NaN after a fall.
    """

    controller: str
    weights: Weights
    score: int
    push: float
    up: float
    down: float
    holes: int
    walked: tuple[int, ...]
    contraction: float

    @property
    def is_stable(self) -> bool:
        """Whether small errors die out."""
        return self.contraction < 1.0


def candidates(weights: Weights, budget: int, random: np.random.Generator) -> list[Weights]:
    """The given weights, and others around them in logarithms: the same for every controller."""
    factors = 10.0 ** random.uniform(-_SPREAD, _SPREAD, size=(budget - 1, 2))
    others = [
        replace(weights, velocities=weights.velocities * a, torques=weights.torques * b)
        for a, b in factors.tolist()
    ]
    return [weights, *others]


def compared(
    gait: Gait,
    tried: Sequence[Weights],
    brief: Trials,
    whole: Trials,
    *,
    torque: float,
    extension: float,
    tick: Callable[[float], None],
) -> list[Survived]:
    """Each controller with the candidate that walks most steps in brief trials, in whole ones.

    tick: called with the share that is done.
    """
    designs = {
        jumps: [designed(gait, weights, jumps) for weights in tried]
        for jumps in ("saltation", "reset")
    }
    any_design = next(lqr for lqr in designs["saltation"] if lqr is not None)
    lengths = brief.steps, max(whole.steps, _MEASURED)
    short, long = (Tracks.of(gait, any_design, steps, extension) for steps in lengths)
    found = []
    for k, name in enumerate(NAMES):
        own = designs["reset" if name == "reset" else "saltation"]
        scores = [
            -1 if lqr is None else score(gait, short.policy(name, lqr, torque), brief)
            for lqr in own
        ]
        tick((k + 0.5) / len(NAMES))
        best = int(np.argmax(scores))
        chosen = own[best]
        if chosen is not None:
            policy = long.policy(name, chosen, torque)
            found.append(survived(gait, name, policy, tried[best], scores[best], whole))
        tick((k + 1) / len(NAMES))
    return found


def designed(gait: Gait, weights: Weights, jumps: str) -> PeriodicLqr | None:
    """The feedback of these weights, None where there is none."""
    try:
        return design(gait, weights, jumps)
    except SimulationError:
        return None


def score(gait: Gait, policy: Policy, trials: Trials) -> int:
    """Steps walked in all trials together."""
    walks = [walk(gait, policy, pushed(gait, p), trials.steps) for p in _both(trials.pushes)]
    walks += [over_a_step(gait, policy, h, trials.steps) for h in _both(trials.heights)]
    walks += _from_starts(gait, policy, trials)
    return sum(each.steps for each in walks)


def survived(
    gait: Gait, name: str, policy: Policy, weights: Weights, score: int, trials: Trials
) -> Survived:
    """The largest pushes and steps, and how the starts went."""

    def passes(each: Walk) -> bool:
        return each.steps >= trials.steps

    pushes = [
        all(passes(walk(gait, policy, pushed(gait, p), trials.steps)) for p in (size, -size))
        for size in trials.pushes
    ]
    ways = [
        [passes(over_a_step(gait, policy, sign * h, trials.steps)) for h in trials.heights]
        for sign in (1.0, -1.0)
    ]
    starts = _from_starts(gait, policy, trials)
    return Survived(
        name,
        weights,
        score,
        _largest(trials.pushes, pushes),
        _largest(trials.heights, ways[0]),
        _largest(trials.heights, ways[1]),
        sum(_holes(part) for part in (pushes, *ways)),
        tuple(each.steps for each in starts),
        contraction(gait, policy, trials.seed),
    )


def contraction(gait: Gait, policy: Policy, seed: int) -> float:
    """By how much an error of 1e-4 shrinks per step after the second; NaN after a fall.

    Over two steps: an error that shrinks fast is soon that of the simulation.
    """
    random = np.random.default_rng(seed)
    each = walk(gait, policy, scattered(gait, random, (1e-4, 1e-4)), _MEASURED)
    if each.steps < _MEASURED:
        return float("nan")
    errors = each.errors(gait)
    return float((errors[-1] / errors[1]) ** (1.0 / (_MEASURED - 2)))


def _from_starts(gait: Gait, policy: Policy, trials: Trials) -> list[Walk]:
    random = np.random.default_rng(trials.seed)
    return [
        walk(gait, policy, scattered(gait, random, trials.scatter), trials.steps)
        for _ in range(trials.starts)
    ]


def _both(sizes: Sequence[float]) -> Array:
    return np.concatenate((sizes, np.negative(sizes)))


def _largest(sizes: Sequence[float], passed: Sequence[bool]) -> float:
    """The last size before the first that failed, 0 where the first did."""
    first = list(passed).index(False) if False in passed else len(sizes)
    return float(sizes[first - 1]) if first else 0.0


def _holes(passed: Sequence[bool]) -> int:
    first = list(passed).index(False) if False in passed else len(passed)
    return sum(passed[first:])
