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
from dataclasses import dataclass
from typing import Any

import numpy as np
from hybridctl.experiments.rrr_door.laws import joint_gains, law
from hybridctl.experiments.tuning.door import Draw, Perturbations, draw
from hybridctl.robots import rrr_door

from hybridctl.base.checks import Array
from hybridctl.control.gains import GainSchedule
from hybridctl.control.reference import Reference, extend
from hybridctl.control.tuning.ensemble import (
    Controller,
    Ensemble,
    Outcome,
    Statistics,
    outcome,
)
from hybridctl.control.tuning.search import Validation, tune
from hybridctl.control.tuning.structure import GainStructure
from hybridctl.hybrid.policy import Policy
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.sensitivity.linearization import Linearization

CONTROLLERS = ("spreading", "spreading, late", "conventional", "nearest arc", "impact-invariant")
_TOLERANCE = 1e-7


@dataclass(frozen=True, eq=False)
class Stage:
    """What is tracked: a plant and its reference, with the window of baselines and the delay, s."""

    plant: HybridSystem
    reference: Reference
    window: float
    delay: float

    def policy(self, name: str, gains: GainSchedule) -> Policy:
        """The controller of this name, of `CONTROLLERS`."""
        plain, delay = name.removesuffix(", late"), self.delay if name.endswith("late") else 0.0
        return law(plain, self.plant, self.reference, gains, self.window, delay=delay)

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
        before, after = (
            joint_gains(frequency**2 * self.masses, 2.0 * damping * frequency * self.masses)
            for frequency, damping in pairs
        )
        arcs = [before, *[after] * (len(self.reference.arcs) - 1)]
        phantoms = {(k, fired): arcs[k] for k, fired in self.reference.phantoms}
        return GainSchedule.constant(arcs, phantoms)


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


@dataclass(frozen=True, eq=False)
class Tuned:
    """A controller with the gains that the search found, and what unseen runs say of them."""

    name: str
    parameters: Array
    gains: GainSchedule
    statistics: Statistics

    def record(self) -> dict[str, Any]:
        """The controller as it stands in summary.json."""
        return {"frequencies_and_dampings": self.parameters, **self.statistics.record()}


@dataclass(frozen=True, eq=False)
class LawSearch:
    """A search for the parameters of each law, which then takes the best of all that was found.

    ensemble: runs of a law with these members. seen: the members that tune; checked: those that
    have the last word on what was tuned, if any. peak_input: the limit, N m. evaluations: of each
    search. bounds: of all parameters. error: by which parameters within the limit are chosen.
    """

    structure: GainStructure
    ensemble: Callable[[str, Sequence[int]], Ensemble]
    seen: Sequence[int]
    peak_input: float
    evaluations: int
    bounds: tuple[float, float]
    error: Callable[[Statistics], float]
    checked: Sequence[int] = ()

    def searched(self, law: str, pool: Sequence[Array], step: float) -> Array:
        """Where the search for a law ends, from the best of a pool for it on.

        step: of the first changes.
        """
        last = None
        if self.checked:
            last = Validation(self.ensemble(law, self.checked), self.peak_input)
        found = tune(
            self.structure,
            self.best(law, pool, self.seen),
            ensemble=self.ensemble(law, self.seen),
            peak_input=self.peak_input,
            evaluations=self.evaluations,
            step=step,
            bounds=self.bounds,
            validation=last,
        )
        return found.best.parameters

    def best(
        self, law: str, pool: Sequence[Array], members: Sequence[int], margin: float = 1.0
    ) -> Array:
        """The parameters of least error of a pool for a law, within a part of the limit.

        Of parameters that all exceed it those of the lowest peak.
        """
        if len(pool) == 1:
            return pool[0]
        runs, limit = self.ensemble(law, members), margin * self.peak_input

        def rank(parameters: Array) -> tuple[float, float]:
            found = runs(self.structure.schedule(parameters))
            return max(found.peak_input, limit), self.error(found)

        return min(pool, key=rank)
