"""What each controller survives, after tuning with the same candidates and the same budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from hybridctl.experiments.walking.controllers import NAMES, Tracks, Weights, design
from hybridctl.experiments.walking.gait import Gait
from hybridctl.experiments.walking.walk import Late, Walk, over_a_step, pushed, scattered, walk
from hybridctl.robots import five_link

from hybridctl.control.lqr.periodic import PeriodicLqr
from hybridctl.errors import SimulationError
from hybridctl.hybrid.policy import Policy
from hybridctl.mechanics.system import ContactSystem

_MEASURED = 4  # steps
_SPREAD = 1.0  # of the logarithms (base 10) of weights that are tried
_BOTH, _ONE = (1.0, -1.0), (1.0,)
_SIGNS = {"push": _BOTH, "up": _ONE, "down": _ONE, "tilt": _BOTH, "mass": _BOTH, "late": _ONE}


@dataclass(frozen=True)
class Trials:
    """What a controller is put through.

    sizes: of kinds of trials, ascending. push: at the hip in mid-step, N s; tilt: of gravity
    against the ground's normal, rad; mass: relative error of the torso's mass and inertia; these
    three in both directions. up, down: steps of the ground, m; late: how late touchdowns are known,
    s.
    starts: how many, of this scatter. steps: that have to be walked.
    """

    sizes: Mapping[str, tuple[float, ...]]
    starts: int
    scatter: tuple[float, float]
    steps: int
    seed: int

    def walked(self, gait: Gait, policy: Policy, kind: str, size: float) -> Walk:
        """One trial; the sign of the size is its direction."""
        if kind == "push":
            return walk(gait, policy, pushed(gait, size), self.steps)
        if kind in ("up", "down"):
            return over_a_step(gait, policy, size if kind == "up" else -size, self.steps)
        if kind == "late":
            return walk(gait, Late(policy, size), gait.middle, self.steps)
        torso, tilt = (1.0 + size, 0.0) if kind == "mass" else (1.0, size)
        walker = _other_walker(gait.friction, torso, tilt)
        return walk(gait, policy, gait.middle, self.steps, walker)

    def started(self, gait: Gait, policy: Policy) -> list[Walk]:
        """From random starts."""
        random = np.random.default_rng(self.seed)
        return [
            walk(gait, policy, scattered(gait, random, self.scatter), self.steps)
            for _ in range(self.starts)
        ]


@lru_cache(maxsize=32)
def _other_walker(friction: float, torso: float, tilt: float) -> ContactSystem:
    return five_link.system(friction, torso=torso, tilt=tilt)


@dataclass(frozen=True)
class Survived:
    """What a controller survived.

    limits: by kind, the largest size such that it and all smaller ones on the grid were survived,
    in both directions where there are two. holes: by kind, how many larger ones were survived
    beyond the first that was not, so that the limit is not a sharp one. walked: of each start.
    contraction: of the error from one touchdown to the next, measured; NaN after a fall.
    """

    controller: str
    weights: Weights
    score: int
    limits: Mapping[str, float]
    holes: Mapping[str, int]
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
    walks = trials.started(gait, policy)
    for kind, sizes in trials.sizes.items():
        for size in sizes:
            walks += [trials.walked(gait, policy, kind, sign * size) for sign in _SIGNS[kind]]
    return sum(each.steps for each in walks)


def survived(
    gait: Gait, name: str, policy: Policy, weights: Weights, score: int, trials: Trials
) -> Survived:
    """The largest sizes of each kind, and how the starts went."""
    passed = {
        kind: [_passes(gait, policy, trials, kind, size) for size in sizes]
        for kind, sizes in trials.sizes.items()
    }
    return Survived(
        name,
        weights,
        score,
        {kind: _largest(trials.sizes[kind], row) for kind, row in passed.items()},
        {kind: _holes(row) for kind, row in passed.items()},
        tuple(each.steps for each in trials.started(gait, policy)),
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


def _passes(gait: Gait, policy: Policy, trials: Trials, kind: str, size: float) -> bool:
    walks = (trials.walked(gait, policy, kind, sign * size) for sign in _SIGNS[kind])
    return all(each.steps >= trials.steps for each in walks)


def _largest(sizes: Sequence[float], passed: Sequence[bool]) -> float:
    """The last size before the first that failed, 0 where the first did."""
    first = list(passed).index(False) if False in passed else len(sizes)
    return float(sizes[first - 1]) if first else 0.0


def _holes(passed: Sequence[bool]) -> int:
    first = list(passed).index(False) if False in passed else len(passed)
    return sum(passed[first:])
