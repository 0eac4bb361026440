"""What each controller survives, after tuning with the same candidates and the same budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from hybridctl.experiments.walking.controllers import Tracks, Weights, design
from hybridctl.experiments.walking.gait import Gait
from hybridctl.experiments.walking.walk import Walk, over_a_step, pushed, scattered, walk

from hybridctl.base.checks import Array
from hybridctl.base.errors import SimulationError
from hybridctl.base.workers import Crew
from hybridctl.control.detection import DetectedPolicy, Detection
from hybridctl.control.lqr.periodic import PeriodicLqr
from hybridctl.control.tuning.ensemble import standard_error
from hybridctl.hybrid.policy import Policy

MEASURED = 4  # steps
_UPWARDS = 2 / 3
_HIGH = 0.75  # the quantile of limits so far that is a guess at the next one
_SPREAD = 1.0  # of the logarithms (base 10) of weights that are tried
_BRIEF = 6  # steps of trials in tuning


class Kind(NamedTuple):
    """A kind of trial in words, with the grid of its sizes: from `step` to `end` in `unit`."""

    title: str
    unit: str
    step: int
    end: int


Name = Literal[
    "push forward",
    "push back",
    "up",
    "down",
    "slope up",
    "slope down",
    "heavier",
    "lighter",
    "late",
]
KINDS: dict[Name, Kind] = {
    "push forward": Kind("push forward", "N s", 1, 80),
    "push back": Kind("push back", "N s", 1, 100),
    "up": Kind("step up", "cm", 1, 20),
    "down": Kind("step down", "cm", 1, 40),
    "slope up": Kind("slope up", "%", 1, 40),
    "slope down": Kind("slope down", "%", 1, 25),
    "heavier": Kind("heavier torso", "%", 10, 500),
    "lighter": Kind("lighter torso", "%", 10, 90),
    "late": Kind("touchdown known late", "ms", 10, 1000),
}
TUNED: tuple[Name, ...] = ("push forward", "push back", "up", "down")


def tried(
    gait: Gait,
    policy: Policy,
    kind: Name,
    size: float,
    start: Array,
    steps: int,
    *,
    whole: bool = False,
) -> Walk:
    """A walk of so many steps from a start in mid-step through a trial of a size, in its unit.

    A push is an impulse at the hip at the start, and a step of the ground begins with the first
    touchdown; gravity leans against the ground, the torso has another mass and moment of inertia,
    and touchdowns are known late, all the way. whole: whether steps are simulated that only repeat
    the last one, see `walk.repeats`.
    """
    if kind.startswith("push"):
        impulse = size if kind == "push forward" else -size
        return walk(gait, policy, pushed(gait, impulse, start), steps, whole=whole)
    if kind in ("up", "down"):
        height = 0.01 * (size if kind == "up" else -size)
        return over_a_step(gait, policy, height, steps, start, whole=whole)
    if kind == "late":
        late = DetectedPolicy(policy, Detection(1e-3 * size))
        return walk(gait, late, start, steps, whole=whole)
    share = 0.01 * (size if kind in ("slope up", "heavier") else -size)
    torso, tilt = (1.0, share) if kind.startswith("slope") else (1.0 + share, 0.0)
    walker = gait.walker_with(torso=torso, tilt=tilt)
    return walk(gait, policy, start, steps, walker, whole=whole)


def last_survived(survives: Callable[[int], bool], guess: int, end: int) -> int:
    """The last n from 0 to `end` that survives, if all before it do and none after it; 0 does.

    A fall takes a tenth of the time of a walk that survives, so that it is looked for from above:
    from a guess, which should be too high, down by ones; if that survives, up in strides that
    double. Without a guess, 0, and between what survives and what does not, two thirds of the way
    up are next.
    """
    low, high, stride = 0, end + 1, 1
    n = min(guess, end)
    while high - low > 1:
        if not low < n < high:
            n = low + max(1, round(_UPWARDS * (high - low)))
        if survives(n):
            low, n, stride = n, n + stride, 2 * stride
        else:
            high, n = n, n - 1 if low == 0 and guess else 0
    return low


def limit(
    gait: Gait, policy: Policy, kind: Name, start: Array, steps: int, guess: float = 0.0
) -> float:
    """The last size of a kind on its grid that is survived from a start, in the unit of its kind.

    guess: at it; the first size that is tried is just above that.
    """
    grid = KINDS[kind]

    def survives(n: int) -> bool:
        return tried(gait, policy, kind, float(n * grid.step), start, steps).steps >= steps

    first = round(guess / grid.step) + 1 if guess else 0
    return float(grid.step * last_survived(survives, first, grid.end // grid.step))


@dataclass(frozen=True)
class Survived:
    """The disturbances that a controller survived.

    limits: by kind, from each start, in the units of `KINDS`. contraction: of the error from one
    touchdown to the next, measured; NaN after a fall.
    """

    controller: str
    weights: Weights
    limits: Mapping[Name, tuple[float, ...]]
    contraction: float

    @property
    def is_stable(self) -> bool:
        """Whether small errors die out."""
        return self.contraction < 1.0

    def mean(self, kind: Name) -> float:
        """The mean over starts."""
        return float(np.mean(self.limits[kind]))

    def error(self, kind: Name) -> float:
        """The standard error of that mean; NaN of one start."""
        return standard_error(np.array(self.limits[kind]))

    def record(self) -> dict[str, Any]:
        """What was survived, as it stands in summary.json."""
        w = self.weights
        return {
            "weights": (w.coordinates, w.velocities, w.torques),
            "contraction": self.contraction,
            "is_stable": self.is_stable,
            "limits": {kind: self.mean(kind) for kind in self.limits},
            "standard_errors": {kind: self.error(kind) for kind in self.limits},
            "limits_by_start": self.limits,
        }


def candidates(weights: Weights, budget: int, random: np.random.Generator) -> list[Weights]:
    """The given weights, and others around them in logarithms: the same for every controller."""
    factors = 10.0 ** random.uniform(-_SPREAD, _SPREAD, size=(budget - 1, 2))
    others = [
        replace(weights, velocities=weights.velocities * a, torques=weights.torques * b)
        for a, b in factors.tolist()
    ]
    return [weights, *others]


Designs = Mapping[str, Mapping[int, tuple[Weights, PeriodicLqr]]]


def designs(gait: Gait, weights: Sequence[Weights], workers: Crew) -> Designs:
    """The weights that have a feedback, numbered, with it, by the jumps that it believes in."""
    pairs = [(jumps, each) for jumps in ("saltation", "reset") for each in weights]
    made: dict[tuple[str, Weights], PeriodicLqr] = {}
    for pair, future in workers.finished(partial(_designed, gait), pairs):
        with suppress(SimulationError):
            made[pair] = future.result()
    found: dict[str, dict[int, tuple[Weights, PeriodicLqr]]] = {"saltation": {}, "reset": {}}
    for jumps, each in pairs:
        if (jumps, each) in made:
            found[jumps][len(found[jumps])] = each, made[jumps, each]
    return found


def _designed(gait: Gait, pair: tuple[str, Weights]) -> PeriodicLqr:
    jumps, weights = pair
    return design(gait, weights, jumps)


class Chosen(NamedTuple):
    """A controller with the number of its weights, and guesses at its limits of `TUNED`."""

    controller: str
    weights: int
    guesses: tuple[float, ...] = (0.0,) * len(TUNED)


@dataclass(frozen=True, eq=False)
class Contest:
    """What controllers have in common: what they try, and the trials of tuning and of judgement.

    tracks: for as many steps as are walked. torque: the greatest, N m. steps: to be walked.
    scatter, seed: of random starts, the same for all. compiled: of the predictive one.
    """

    gait: Gait
    designs: Designs
    tracks: Tracks
    torque: float
    steps: int
    scatter: tuple[float, float]
    seed: int
    compiled: bool = False

    def tuned(self, name: str) -> Chosen:
        """A controller with the weights of the largest limits in brief trials from one start.

        Limits count as shares of their grids; `predictive` has the first weights, for its time.
        Raises `SimulationError` where no weights have a feedback.
        """
        believed = self._designs(name)
        if not believed:
            raise SimulationError(f"no weights have a feedback for {name}")
        if len(believed) == 1 or name == "predictive":
            return Chosen(name, 0)
        start, steps = self._start(-1), min(_BRIEF, self.steps)
        found = [Chosen(name, 0)]
        for i in range(len(believed)):
            policy, last = self._policy(name, i), found[-1].guesses
            limits = tuple(
                limit(self.gait, policy, kind, start, steps, guess)
                for kind, guess in zip(TUNED, last, strict=True)
            )
            found.append(Chosen(name, i, limits))
        ends = np.array([KINDS[kind].end for kind in TUNED])
        return max(found[1:], key=lambda each: float(np.sum(each.guesses / ends)))

    def limits(self, chosen: Chosen, kind: Name, starts: int) -> tuple[float, ...]:
        """The limits of a kind from so many starts."""
        policy = self._policy(chosen.controller, chosen.weights)
        guess = dict(zip(TUNED, chosen.guesses, strict=True)).get(kind, 0.0)
        found: list[float] = []
        for i in range(starts):
            last = limit(self.gait, policy, kind, self._start(i), self.steps, guess)
            found.append(last)
            guess = float(np.quantile(found, _HIGH))
        return tuple(found)

    def survived(self, chosen: Chosen, limits: Mapping[Name, tuple[float, ...]]) -> Survived:
        """The record of a controller whose limits are known, with its contraction measured."""
        name, i = chosen.controller, chosen.weights
        measured = contraction(self.gait, self._policy(name, i), self.seed)
        return Survived(name, self._designs(name)[i][0], limits, measured)

    def alone(self, chosen: Chosen) -> Contest:
        """The contest of one controller, for another process: designs are large."""
        own = {chosen.weights: self._designs(chosen.controller)[chosen.weights]}
        return replace(self, designs=dict.fromkeys(self.designs, own))

    def _designs(self, name: str) -> Mapping[int, tuple[Weights, PeriodicLqr]]:
        return self.designs["reset" if name == "reset" else "saltation"]

    def _start(self, i: int) -> Array:
        random = np.random.default_rng([self.seed, i + 1])
        return scattered(self.gait, random, self.scatter)

    def _policy(self, name: str, i: int) -> Policy:
        weights, lqr = self._designs(name)[i]
        return self.tracks.policy(name, lqr, self.torque, weights, self.compiled)


def contraction(gait: Gait, policy: Policy, seed: int) -> float:
    """The factor by which an error of 1e-4 shrinks per step after the second; NaN after a fall.

    Over two steps: an error that shrinks fast is soon that of the simulation. Of a policy with an
    orbit of its own, that is not quite the gait, errors are those against it.
    """
    random = np.random.default_rng(seed)
    walks = [
        walk(gait, policy, start, MEASURED)
        for start in (gait.middle, scattered(gait, random, (1e-4, 1e-4)))
    ]
    if any(each.steps < MEASURED for each in walks):
        return float("nan")
    runs = [each.run for each in walks if each.run is not None]
    after = [np.array([e.state_after[1:] for e in run.guard_events[:MEASURED]]) for run in runs]
    errors = np.linalg.norm(after[1] - after[0], axis=1)
    return float((errors[-1] / errors[1]) ** (1.0 / (MEASURED - 2)))
