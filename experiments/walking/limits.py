"""What each controller survives, after tuning with the same candidates and the same budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from hybridctl.experiments.walking.controllers import Tracks, Weights, design
from hybridctl.experiments.walking.gait import Gait
from hybridctl.experiments.walking.walk import Walk, over_a_step, pushed, scattered, walk
from hybridctl.robots import five_link

from hybridctl.checks import Array
from hybridctl.control.detection import DetectedPolicy, Detection
from hybridctl.control.lqr.periodic import PeriodicLqr
from hybridctl.errors import SimulationError
from hybridctl.hybrid.policy import Policy
from hybridctl.mechanics.system import ContactSystem

_MEASURED = 4  # steps
_SPREAD = 1.0  # of the logarithms (base 10) of weights that are tried


class Kind(NamedTuple):
    """A kind of trial: its title in tables, how many of its unit there are in ours, and directions.

    setting: which holds the sizes.
    """

    setting: str
    title: str
    factor: float = 1.0
    signs: tuple[float, ...] = (1.0,)


_BOTH = (1.0, -1.0)
KINDS = {
    "push": Kind("pushes", "push [N s]", signs=_BOTH),
    "up": Kind("heights", "step up [cm]", 100.0),
    "down": Kind("heights", "step down [cm]", 100.0),
    "tilt": Kind("tilts", "slope [%]", 100.0, _BOTH),
    "mass": Kind("masses", "mass of the torso, off by [%]", 100.0, _BOTH),
    "late": Kind("delays", "touchdown known late by [ms]", 1000.0),
}


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

    def started(self, gait: Gait, policy: Policy) -> list[Walk]:
        """Walks from random starts."""
        random = np.random.default_rng(self.seed)
        return [
            walk(gait, policy, scattered(gait, random, self.scatter), self.steps)
            for _ in range(self.starts)
        ]

    def walked(self, gait: Gait, policy: Policy) -> dict[str, Array]:
        """Steps (sizes, directions) walked in the trials of each kind."""
        return {
            kind: np.array(
                [
                    [self._walked(gait, policy, kind, sign * size).steps for sign in signs]
                    for size in self.sizes[kind]
                ]
            )
            for kind, signs in ((kind, KINDS[kind].signs) for kind in self.sizes)
        }

    def _walked(self, gait: Gait, policy: Policy, kind: str, size: float) -> Walk:
        if kind == "push":
            return walk(gait, policy, pushed(gait, size), self.steps)
        if kind in ("up", "down"):
            return over_a_step(gait, policy, size if kind == "up" else -size, self.steps)
        if kind == "late":
            return walk(gait, DetectedPolicy(policy, Detection(size)), gait.middle, self.steps)
        torso, tilt = (1.0 + size, 0.0) if kind == "mass" else (1.0, size)
        walker = _other_walker(gait.friction, torso, tilt)
        return walk(gait, policy, gait.middle, self.steps, walker)


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

    def record(self) -> dict[str, Any]:
        """What was survived, as it stands in summary.json; limits in the units of the table."""
        w = self.weights
        return {
            "weights": (w.coordinates, w.velocities, w.torques),
            "score": self.score,
            "contraction": self.contraction,
            "is_stable": self.is_stable,
            "steps_walked": self.walked,
            "limits": {KINDS[k].title: KINDS[k].factor * v for k, v in self.limits.items()},
            "survived_beyond_the_limit": dict(self.holes),
        }


def candidates(weights: Weights, budget: int, random: np.random.Generator) -> list[Weights]:
    """The given weights, and others around them in logarithms: the same for every controller."""
    factors = 10.0 ** random.uniform(-_SPREAD, _SPREAD, size=(budget - 1, 2))
    others = [
        replace(weights, velocities=weights.velocities * a, torques=weights.torques * b)
        for a, b in factors.tolist()
    ]
    return [weights, *others]


Designs = Mapping[str, Sequence[tuple[Weights, PeriodicLqr]]]


def designs(gait: Gait, tried: Sequence[Weights]) -> Designs:
    """The weights that have a feedback, with it, by the jumps that it believes in."""
    found: dict[str, list[tuple[Weights, PeriodicLqr]]] = {"saltation": [], "reset": []}
    for jumps, row in found.items():
        for weights in tried:
            with suppress(SimulationError):
                row.append((weights, design(gait, weights, jumps)))
    return found


@dataclass(frozen=True, eq=False)
class Contest:
    """What controllers have in common: what they try, and the trials of tuning and of judgement.

    torque: the greatest, N m. extension: of the reference past touchdowns, s.
    """

    gait: Gait
    designs: Designs
    brief: Trials
    whole: Trials
    torque: float
    extension: float

    def __call__(self, name: str) -> Survived:
        """A controller with the weights that walk most steps in brief trials, in whole ones.

        Raises `SimulationError` where no weights have a feedback.
        """
        tried = self.designs["reset" if name == "reset" else "saltation"]
        if not tried:
            raise SimulationError(f"no weights have a feedback for {name}")
        scores = []
        for weights, lqr in tried:
            policy = self._policy(name, weights, lqr, self.brief.steps)
            steps = [each.steps for each in self.brief.started(self.gait, policy)]
            for row in self.brief.walked(self.gait, policy).values():
                steps += row.ravel().tolist()
            scores.append(sum(steps))
        best = int(np.argmax(scores))
        weights, lqr = tried[best]
        policy = self._policy(name, weights, lqr, max(self.whole.steps, _MEASURED))
        passed: dict[str, list[bool]] = {
            kind: (row.min(axis=1) >= self.whole.steps).tolist()
            for kind, row in self.whole.walked(self.gait, policy).items()
        }
        first = {kind: _first_failed(row) for kind, row in passed.items()}
        return Survived(
            name,
            weights,
            scores[best],
            {kind: (0.0, *self.whole.sizes[kind])[k] for kind, k in first.items()},
            {kind: sum(passed[kind][k:]) for kind, k in first.items()},
            tuple(each.steps for each in self.whole.started(self.gait, policy)),
            contraction(self.gait, policy, self.whole.seed),
        )

    def _policy(self, name: str, weights: Weights, lqr: PeriodicLqr, steps: int) -> Policy:
        tracks = Tracks.of(self.gait, lqr, steps, self.extension)
        return tracks.policy(name, lqr, self.torque, weights)


def contraction(gait: Gait, policy: Policy, seed: int) -> float:
    """The factor by which an error of 1e-4 shrinks per step after the second; NaN after a fall.

    Over two steps: an error that shrinks fast is soon that of the simulation. Of a policy with an
    orbit of its own, that is not quite the gait, errors are those against it.
    """
    random = np.random.default_rng(seed)
    walks = [
        walk(gait, policy, start, _MEASURED)
        for start in (gait.middle, scattered(gait, random, (1e-4, 1e-4)))
    ]
    if any(each.steps < _MEASURED for each in walks):
        return float("nan")
    runs = [each.run for each in walks if each.run is not None]
    after = [np.array([e.state_after[1:] for e in run.guard_events[:_MEASURED]]) for run in runs]
    errors = np.linalg.norm(after[1] - after[0], axis=1)
    return float((errors[-1] / errors[1]) ** (1.0 / (_MEASURED - 2)))


def _first_failed(passed: list[bool]) -> int:
    """The place of the first failure, the number of all where none failed."""
    return len(passed) if all(passed) else passed.index(False)
