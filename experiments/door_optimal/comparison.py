r"""One motion tracked by several controllers, each tuned by the same means and budget.

Gains are those of a mass on a spring: joint i of the arm has :math:`K_p = \omega^2 m_i` and
:math:`K_v = 2 \zeta \omega m_i`, m_i being its entry of the mass matrix at the impact, with one
pair of frequency and damping before the impact and one after it. These four numbers are sought for
the least mean plus 95th percentile of the error, with a limit of the peak input that is the same
for all; then each controller takes the best that was found for any of them. The error is that of
`tuning.ensemble.outcome`: against the arc of the state's own event count, from the end of the
impact on, whatever error is fed back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
from hybridctl.experiments.tuning.door import Draw, Perturbations, draw
from hybridctl.robots import rrr_door

from hybridctl.checks import Array
from hybridctl.control.baselines import ImpactInvariantTracking, NearestTracking
from hybridctl.control.detection import DetectedPolicy, Detection
from hybridctl.control.gains import GainSchedule
from hybridctl.control.reference import Reference, extend
from hybridctl.control.spreading import ClockTracking, ReferenceSpreading
from hybridctl.control.tuning.ensemble import (
    Controller,
    Ensemble,
    Outcome,
    Statistics,
    outcome,
    standard_error,
)
from hybridctl.control.tuning.search import tune
from hybridctl.control.tuning.structure import GainStructure
from hybridctl.hybrid.policy import Policy
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.sensitivity.linearize import Linearization

CONTROLLERS = ("spreading", "spreading, late", "conventional", "nearest arc", "impact-invariant")
_BOUNDS = (np.log(0.05), np.log(60.0))  # of frequencies in rad/s and damping ratios
_STEP = 0.5  # of their logarithms, first
_TOLERANCE = 1e-7


def law(
    name: str,
    plant: HybridSystem,
    reference: Reference,
    gains: GainSchedule,
    window: float | tuple[float, float],
    *,
    metric: Array | None = None,
    blend: float = 0.0,
    velocities: Sequence[int] | None = None,
) -> Policy:
    """The tracking law of this name, of those of `CONTROLLERS` that know of touches at once.

    window: of the baselines, s. metric: of the nearest arc. blend, velocities: of impact-invariant
    tracking.
    """
    if name == "conventional":
        return ClockTracking(reference, gains)
    if name == "nearest arc":
        return NearestTracking(reference, gains, window=window, metric=metric)
    if name == "impact-invariant":
        return ImpactInvariantTracking(
            plant, reference, gains, window=window, blend=blend, velocities=velocities
        )
    return ReferenceSpreading(reference, gains)


@dataclass(frozen=True, eq=False)
class Stage:
    """What is tracked: a plant and its reference, with the window of baselines and the delay, s."""

    plant: HybridSystem
    reference: Reference
    window: float
    delay: float

    def policy(self, name: str, gains: GainSchedule) -> Policy:
        """The controller of this name, of `CONTROLLERS`."""
        plain = law(name.removesuffix(", late"), self.plant, self.reference, gains, self.window)
        return DetectedPolicy(plain, Detection(self.delay)) if name.endswith("late") else plain

    def run(self, name: str, gains: GainSchedule, drawn: Draw) -> HybridTrajectory:
        """The run of a member under one of `CONTROLLERS`."""
        return drawn.run(self.plant, self.reference, self.policy(name, gains), _TOLERANCE, "DOP853")


@dataclass(frozen=True, eq=False)
class StageTrial:
    """Member after member of a stage, under one controller: perturbed starts and torques."""

    stage: Stage
    name: str
    perturbations: Perturbations
    seed: int

    @property
    def structure(self) -> SpringGains:
        """The gains that are looked for."""
        return SpringGains.of(self.stage.plant, self.stage.reference)

    def __call__(self, controller: Controller, gains: GainSchedule, member: int) -> Outcome:
        """Simulate a member; which controller is used is the trial's own choice."""
        drawn = draw(self.perturbations, rrr_door.DoorParameters(), self.seed, member)
        run = self.stage.run(self.name, gains, drawn)
        return outcome(self.stage.reference, run)


@dataclass(frozen=True, eq=False)
class SpringGains:
    """Gains by logarithms of frequency (rad/s) and damping ratio, before and after the impact.

    masses (3,): of the arm's joints, kg m^2.
    """

    reference: Reference
    masses: Array

    @staticmethod
    def of(plant: Any, reference: Reference) -> SpringGains:
        """The structure with the masses at the impact."""
        q = reference.events[0].state_before[:4]
        return SpringGains(reference, np.diag(plant.robot.mass_matrix(q))[:3].copy())

    def schedule(self, parameters: Array) -> GainSchedule:
        """The gains; phantom arcs have those of before their event."""
        pairs = np.exp(parameters).reshape(2, 2).tolist()
        before, after = (self._gain(*pair) for pair in pairs)
        arcs = [before, *[after] * (len(self.reference.arcs) - 1)]
        phantoms = {(k, fired): arcs[k] for k, fired in self.reference.phantoms}
        return GainSchedule.constant(arcs, phantoms)

    def _gain(self, frequency: float, damping: float) -> Array:
        idle = np.zeros((3, 1))
        spring, damper = frequency**2 * self.masses, 2.0 * damping * frequency * self.masses
        return np.hstack([np.diag(spring), idle, np.diag(damper), idle])


@dataclass(frozen=True, eq=False)
class Expected:
    """What tracking is expected to meet: the perturbations, under gains to begin with.

    start: frequency in rad/s and damping ratio before the impact and after it.
    """

    perturbations: Perturbations
    start: tuple[float, float, float, float]

    def feedback(self, free: Linearization) -> Linearization:
        """A linearization under these gains."""
        whole = extend(free.system, free.trajectory, before=0.0, after=0.0)
        structure = SpringGains.of(free.system, whole)
        return free.closed_loop(structure.schedule(np.log(self.start)).arcs)

    @property
    def covariance(self) -> Array:
        """The covariance of the start (8, 8)."""
        p = self.perturbations
        deviations = [p.position] * 3 + [0.0] + [p.velocity] * 3 + [0.0]
        return np.diag(np.square(deviations))

    @property
    def input_covariance(self) -> Array:
        """The covariance of the error of the torques (3, 3), (N m)^2."""
        return self.perturbations.input_bias**2 * np.eye(3)


@dataclass(frozen=True)
class Budget:
    """What each controller gets: members of the ensemble and evaluations of the search.

    peak_input: N m. judged: members that the search has not seen. start: frequency in rad/s and
    damping ratio to begin with, before the impact and after it.
    """

    training: int
    evaluations: int
    judged: int
    peak_input: float
    start: tuple[float, float, float, float]

    @property
    def members(self) -> range:
        """The members of the ensemble that tunes."""
        return range(self.judged, self.judged + self.training)


@dataclass(frozen=True, eq=False)
class Tuned:
    """A controller with the gains that the search found, and what unseen runs say of them."""

    name: str
    parameters: Array
    gains: GainSchedule
    statistics: Statistics

    @property
    def standard_error(self) -> float:
        """The standard error of the mean error."""
        return standard_error(self.statistics.errors)

    def record(self) -> dict[str, Any]:
        """The controller as it stands in summary.json."""
        return {
            "frequencies_and_dampings": self.parameters,
            "mean_error": self.statistics.mean_error,
            "standard_error": self.standard_error,
            "quartiles": np.percentile(self.statistics.errors, (25.0, 50.0, 75.0)),
            "p95_error": self.statistics.p95_error,
            "peak_input": self.statistics.peak_input,
            "failures": self.statistics.failures,
        }


def searched(trial: StageTrial, b: Budget, executor: Executor | None) -> Array:
    """The parameters (4,) at which the search for the controller of a trial ends."""
    found = tune(
        trial.structure,
        np.log(b.start),
        ensemble=Ensemble(trial, b.members, executor),
        peak_input=b.peak_input,
        evaluations=b.evaluations,
        step=_STEP,
        bounds=_BOUNDS,
    )
    return found.best.parameters


def best_of(
    pool: Sequence[Array],
    structure: GainStructure,
    seen: Ensemble,
    peak_input: float,
    error: Callable[[Statistics], float],
) -> Array:
    """The parameters of a pool of least error whose peak input, in N m, is within a limit.

    Of parameters that all exceed the limit those of the lowest peak.
    """

    def rank(parameters: Array) -> tuple[float, float]:
        found = seen(structure.schedule(parameters))
        return max(found.peak_input, peak_input), error(found)

    return min(pool, key=rank)


def tuned(trial: StageTrial, pool: Sequence[Array], b: Budget, executor: Executor | None) -> Tuned:
    """The controller of a trial with the best parameters of a pool, judged on unseen members."""
    seen, structure = Ensemble(trial, b.members, executor), trial.structure
    best = best_of(pool, structure, seen, b.peak_input, lambda s: s.mean_error + s.p95_error)
    gains = structure.schedule(best)
    return Tuned(trial.name, np.exp(best), gains, Ensemble(trial, range(b.judged), executor)(gains))
