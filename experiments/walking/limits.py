"""Controllers that are tuned with equal budgets differ in the disturbances that they survive."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from hybridctl.experiments.walking.controllers import Tracks, Weights, design
from hybridctl.experiments.walking.gait import Gait
from hybridctl.experiments.walking.walk import Walk, draw_start, push_state, walk, walk_over_step

from hybridctl.base.checks import Array
from hybridctl.base.errors import SimulationError
from hybridctl.base.workers import Crew
from hybridctl.control.detection import DetectedPolicy, Detection
from hybridctl.control.lqr.periodic import PeriodicLqr
from hybridctl.control.tuning.ensemble import standard_error
from hybridctl.hybrid.policy import Policy

MEASURED = 4
"""Steps over which the contraction of errors is measured."""
_UPWARDS = 2 / 3
"""Share of a bracket at which the next size is tried: above the middle, as falls are quicker."""
_GUESS_QUANTILE = 0.75
"""Quantile of the limits so far that is the guess at the next limit."""
_WEIGHT_SPREAD = 1.0
"""Half the range of the logarithms (base 10) of weights that are tried."""
_TUNING_STEPS = 6
"""Greatest number of steps of trials in tuning."""


class Kind(NamedTuple):
    """A kind of trial, with the grid of its sizes.

    Attributes:
        title: Name in words.
        unit: Unit of the sizes.
        step: Distance between two sizes.
        end: Greatest size.
    """

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
"""Kinds of trials that weights are tuned by."""


def run_trial(
    gait: Gait,
    policy: Policy,
    kind: Name,
    size: float,
    start: Array,
    steps: int,
    *,
    whole: bool = False,
) -> Walk:
    """Return the walk through a trial, from a start in mid-step.

    A push is an impulse at the hip at the start, and a step of the ground begins with the first
    touchdown. A slope, another mass and moment of inertia of the torso, and late detection of
    touchdowns last for the whole walk.

    Args:
        gait: Gait that is walked.
        policy: Controller.
        kind: Kind of the trial.
        size: Size of the disturbance, in the unit of its kind.
        start: State in mid-step (14,).
        steps: Number of steps.
        whole: Whether steps that only repeat are simulated, see `walk.is_repeating`.
    """
    if kind.startswith("push"):
        impulse = size if kind == "push forward" else -size
        return walk(gait, policy, push_state(gait, impulse, start), steps, whole=whole)
    if kind in ("up", "down"):
        height = 0.01 * (size if kind == "up" else -size)
        return walk_over_step(gait, policy, height, steps, start, whole=whole)
    if kind == "late":
        late = DetectedPolicy(policy, Detection(1e-3 * size))
        return walk(gait, late, start, steps, whole=whole)
    share = 0.01 * (size if kind in ("slope up", "heavier") else -size)
    torso, tilt = (1.0, share) if kind.startswith("slope") else (1.0 + share, 0.0)
    walker = gait.walker_with(torso=torso, tilt=tilt)
    return walk(gait, policy, start, steps, walker, whole=whole)


def find_last_survived(survives: Callable[[int], bool], guess: int, end: int) -> int:
    """Return the last n from 0 to `end` that survives; 0 always does.

    All n before it are assumed to survive, and none after it. A fall takes a tenth of the time of a
    walk that survives, so the search comes from above: from the guess down by ones, or, if the
    guess survives, up in strides that double. Without a guess, and between an n that survives and
    one that does not, two thirds of the way up are next.

    Args:
        survives: Whether n is survived.
        guess: First n, which should be too high; 0 for no guess.
        end: Greatest n.
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


def find_limit(
    gait: Gait, policy: Policy, kind: Name, start: Array, steps: int, guess: float = 0.0
) -> float:
    """Return the last size of a kind, on its grid and in its unit, that is survived from a start.

    Args:
        gait: Gait that is walked.
        policy: Controller.
        kind: Kind of the trial.
        start: State in mid-step (14,).
        steps: Number of steps to be walked.
        guess: Guess at the limit; the first size that is tried is just above it. 0 for no guess.
    """
    grid = KINDS[kind]

    def survives(n: int) -> bool:
        return run_trial(gait, policy, kind, float(n * grid.step), start, steps).steps >= steps

    first = round(guess / grid.step) + 1 if guess else 0
    return float(grid.step * find_last_survived(survives, first, grid.end // grid.step))


@dataclass(frozen=True)
class Survived:
    """The disturbances that a controller survived.

    Attributes:
        controller: Name of the controller.
        weights: Its LQR weights.
        limits: Limits by kind, from each start, in the units of `KINDS`.
        contraction: Factor of an error from one touchdown to the next, see `measure_contraction`.
    """

    controller: str
    weights: Weights
    limits: Mapping[Name, tuple[float, ...]]
    contraction: float

    @property
    def is_stable(self) -> bool:
        """Whether small errors die out; false after a fall."""
        return self.contraction < 1.0

    def mean(self, kind: Name) -> float:
        """Return the mean limit of a kind over starts."""
        return float(np.mean(self.limits[kind]))

    def error(self, kind: Name) -> float:
        """Return the standard error of the mean limit of a kind; NaN with one start."""
        return standard_error(np.array(self.limits[kind]))

    def record(self) -> dict[str, Any]:
        """Return the limits as they stand in summary.json."""
        w = self.weights
        return {
            "weights": (w.coordinates, w.velocities, w.torques),
            "contraction": self.contraction,
            "is_stable": self.is_stable,
            "limits": {kind: self.mean(kind) for kind in self.limits},
            "standard_errors": {kind: self.error(kind) for kind in self.limits},
            "limits_by_start": self.limits,
        }


def draw_weights(weights: Weights, budget: int, random: np.random.Generator) -> list[Weights]:
    """Return weights to try: the given ones, and random ones around them.

    Args:
        weights: The first weights.
        budget: Number of all weights.
        random: Random numbers.
    """
    factors = 10.0 ** random.uniform(-_WEIGHT_SPREAD, _WEIGHT_SPREAD, size=(budget - 1, 2))
    others = [
        replace(weights, velocities=weights.velocities * a, torques=weights.torques * b)
        for a, b in factors.tolist()
    ]
    return [weights, *others]


Designs: TypeAlias = Mapping[str, Mapping[int, tuple[Weights, PeriodicLqr]]]
"""Weights with their feedback, by number, by the jumps of the design."""


def design_all(gait: Gait, weights: Sequence[Weights], workers: Crew) -> Designs:
    """Return the designs of all weights for both kinds of jumps, but those that fail.

    Args:
        gait: Gait that is walked.
        weights: Weights to try.
        workers: Processes that compute.
    """
    pairs = [(jumps, each) for jumps in ("saltation", "reset") for each in weights]
    made: dict[tuple[str, Weights], PeriodicLqr] = {}
    for pair, future in workers.finished(partial(_design_pair, gait), pairs):
        with suppress(SimulationError):
            made[pair] = future.result()
    found: dict[str, dict[int, tuple[Weights, PeriodicLqr]]] = {"saltation": {}, "reset": {}}
    for jumps, each in pairs:
        if (jumps, each) in made:
            found[jumps][len(found[jumps])] = each, made[jumps, each]
    return found


def _design_pair(gait: Gait, pair: tuple[str, Weights]) -> PeriodicLqr:
    jumps, weights = pair
    return design(gait, weights, jumps)


class Chosen(NamedTuple):
    """A controller with its tuned weights.

    Attributes:
        controller: Name of the controller.
        weights: Number of its weights.
        guesses: Guesses at its limits of the kinds `TUNED`.
    """

    controller: str
    weights: int
    guesses: tuple[float, ...] = (0.0,) * len(TUNED)


@dataclass(frozen=True, eq=False)
class Contest:
    """The contest of all controllers: equal weights to try, equal trials to tune and to judge by.

    Attributes:
        gait: Gait that is walked.
        designs: Designs that are tried.
        tracks: Tracks over as many steps as are walked.
        torque: Greatest torque, N m.
        steps: Number of steps to be walked.
        scatter: Standard deviations of random starts, see `draw_start`.
        seed: Seed of random starts, which are the same for all controllers.
        compiled: Whether the predictive controller is compiled to machine code.
    """

    gait: Gait
    designs: Designs
    tracks: Tracks
    torque: float
    steps: int
    scatter: tuple[float, float]
    seed: int
    compiled: bool = False

    def tune(self, name: str) -> Chosen:
        """Return a controller with the weights of the largest limits in brief trials.

        The trials have one start, and limits count as shares of their grids. `predictive` keeps
        the first weights, because its trials take too long.

        Raises:
            SimulationError: No weights have a feedback.
        """
        designs = self._get_designs(name)
        if not designs:
            raise SimulationError(f"no weights have a feedback for {name}")
        if len(designs) == 1 or name == "predictive":
            return Chosen(name, 0)
        start, steps = self._draw_start(-1), min(_TUNING_STEPS, self.steps)
        found = [Chosen(name, 0)]
        for i in range(len(designs)):
            policy, last = self._make_policy(name, i), found[-1].guesses
            limits = tuple(
                find_limit(self.gait, policy, kind, start, steps, guess)
                for kind, guess in zip(TUNED, last, strict=True)
            )
            found.append(Chosen(name, i, limits))
        ends = np.array([KINDS[kind].end for kind in TUNED])
        return max(found[1:], key=lambda each: float(np.sum(each.guesses / ends)))

    def find_limits(self, chosen: Chosen, kind: Name, starts: int) -> tuple[float, ...]:
        """Return the limits of a kind from several starts, in the unit of the kind.

        Args:
            chosen: Controller and weights.
            kind: Kind of the trial.
            starts: Number of starts.
        """
        policy = self._make_policy(chosen.controller, chosen.weights)
        guess = dict(zip(TUNED, chosen.guesses, strict=True)).get(kind, 0.0)
        found: list[float] = []
        for i in range(starts):
            start = self._draw_start(i)
            found.append(find_limit(self.gait, policy, kind, start, self.steps, guess))
            guess = float(np.quantile(found, _GUESS_QUANTILE))
        return tuple(found)

    def judge(self, chosen: Chosen, limits: Mapping[Name, tuple[float, ...]]) -> Survived:
        """Return the record of a controller with these limits, and measure its contraction."""
        name, i = chosen.controller, chosen.weights
        contraction = measure_contraction(self.gait, self._make_policy(name, i), self.seed)
        return Survived(name, self._get_designs(name)[i][0], limits, contraction)

    def select(self, chosen: Chosen) -> Contest:
        """Return the contest of one controller, for another process: designs are large."""
        own = {chosen.weights: self._get_designs(chosen.controller)[chosen.weights]}
        return replace(self, designs=dict.fromkeys(self.designs, own))

    def _get_designs(self, name: str) -> Mapping[int, tuple[Weights, PeriodicLqr]]:
        return self.designs["reset" if name == "reset" else "saltation"]

    def _draw_start(self, i: int) -> Array:
        random = np.random.default_rng([self.seed, i + 1])
        return draw_start(self.gait, random, self.scatter)

    def _make_policy(self, name: str, i: int) -> Policy:
        weights, lqr = self._get_designs(name)[i]
        return self.tracks.policy(name, lqr, self.torque, weights, self.compiled)


def measure_contraction(gait: Gait, policy: Policy, seed: int) -> float:
    """Return the factor by which an error of 1e-4 shrinks per step after the second.

    It is measured over two steps: an error that shrinks fast is soon that of the simulation. Errors
    are those against a walk from the orbit, because a policy may have an orbit of its own.

    Args:
        gait: Gait that is walked.
        policy: Controller.
        seed: Seed of the error.

    Returns:
        The factor; NaN after a fall.
    """
    random = np.random.default_rng(seed)
    starts = (gait.middle, draw_start(gait, random, (1e-4, 1e-4)))
    walks = [walk(gait, policy, start, MEASURED) for start in starts]
    if any(each.steps < MEASURED for each in walks):
        return float("nan")
    runs = [each.run for each in walks if each.run is not None]
    after = [np.array([e.state_after[1:] for e in run.guard_events[:MEASURED]]) for run in runs]
    errors = np.linalg.norm(after[1] - after[0], axis=1)
    return float((errors[-1] / errors[1]) ** (1.0 / (MEASURED - 2)))
