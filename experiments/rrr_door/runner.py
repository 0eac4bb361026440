r"""Laws of the door are compared by one means: perturbed members, an ensemble, one gain search.

A member is a door that is off its model and starts beside the reference (`draw_member`). A trial
simulates a member under a law and returns error and peak input: `DoorTrial` on the member's own
plant, `LawTrial` on a given one. `LawSearch` looks for the gains of each law, within a limit of the
peak input that is the same for all, and then gives each law the best of all gains that were found.

Gains are those of a mass on a spring (`SpringGains`): joint i of the arm has
:math:`K_p = \omega^2 m_i` and :math:`K_v = 2 \zeta \omega m_i`, with its entry m_i of the mass
matrix at the impact, and one pair of frequency and damping before the impact and one after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, TypeAlias

import numpy as np
from hybridctl.experiments.rrr_door import tracking as rrr_door
from hybridctl.experiments.rrr_door.laws import make_joint_gain, make_law, run_beside
from hybridctl.robots.rrr_door import DoorParameters, system
from rich.table import Table

from hybridctl import GainSchedule, HybridSystem, HybridTrajectory, Reference, tune
from hybridctl.app.report import make_record_table
from hybridctl.base.checks import Array
from hybridctl.base.settings import Meta, NotNegative, Settings
from hybridctl.control import Ensemble
from hybridctl.control.tuning.ensemble import Controller, Outcome, Statistics, outcome
from hybridctl.control.tuning.search import Validation
from hybridctl.control.tuning.structure import GainStructure
from hybridctl.hybrid import DisturbedPolicy, Policy

CUT = 2.5
"""Largest perturbation, in standard deviations: so no mass or stiffness becomes negative."""
PARAMETER_BOUNDS = (np.log(0.05), np.log(60.0))
"""Bounds of the logarithms of frequencies (rad/s), damping ratios and windows (ms) in a search."""
_TOLERANCE = 1e-7
"""Relative and absolute tolerance of the runs of `LawTrial`."""
Relative: TypeAlias = Annotated[float, Meta(ge=0.0, le=0.9 / CUT)]


@dataclass(frozen=True)
class Perturbations(Settings):
    """Standard deviations of normal distributions, cut off at 2.5 of them; all independent.

    Attributes:
        position: Of the angle of each arm joint at the start, rad; the door starts as planned.
        velocity: Of the rate of each arm joint at the start, rad/s.
        input_bias: Of a constant error of each torque, N m.
        mass: Of the mass and moment of inertia of each link of the arm, relative.
        friction: Of the friction coefficient, relative.
        door_position: Of the place of the hinge, in both directions, m.
        door_stiffness: Of the spring of the hinge, relative.
        delay: Longest delay of the detection of events, s. It is uniform from zero on, and the
            same for all events of a run.
    """

    position: NotNegative = 0.03
    velocity: NotNegative = 0.03
    input_bias: NotNegative = 0.2
    mass: Relative = 0.03
    friction: Relative = 0.2
    door_position: NotNegative = 0.002
    door_stiffness: Relative = 0.1
    delay: NotNegative = 0.001

    @property
    def covariance(self) -> Array:
        """The covariance of the start (8, 8)."""
        arm = np.array([1.0, 1.0, 1.0, 0.0])
        return np.diag(np.concatenate([self.position**2 * arm, self.velocity**2 * arm]))

    @property
    def input_covariance(self) -> Array:
        """The covariance of the error of the torques (3, 3), (N m)^2."""
        return self.input_bias**2 * np.eye(3)


@dataclass(frozen=True)
class Member:
    """The perturbations of one member of an ensemble.

    Attributes:
        parameters: Parameters of its robot and door.
        start: Start minus start of the reference (8,), rad and rad/s.
        bias: Constant error of the torques (3,), N m.
        delay: Delay of the detection of events, s.
    """

    parameters: DoorParameters
    start: Array
    bias: Array
    delay: float

    def run(
        self,
        plant: HybridSystem,
        reference: Reference,
        policy: Policy,
        tolerance: float,
        method: str,
    ) -> HybridTrajectory:
        """Return the run of a policy from the member's start, with the error of its torques.

        Args:
            plant: System that is simulated.
            reference: Reference that the start is relative to.
            policy: Law that tracks it.
            tolerance: Relative and absolute tolerance of the integration.
            method: Method of the integration.
        """
        biased = DisturbedPolicy(policy, lambda t, x: self.bias)
        return run_beside(plant, reference, biased, self.start, (tolerance, tolerance), method)


def draw_member(p: Perturbations, nominal: DoorParameters, seed: int, member: int) -> Member:
    """Return the perturbations of a member, which do not depend on the other members.

    Args:
        p: Sizes of the perturbations.
        nominal: Parameters without them.
        seed: Seed of the ensemble.
        member: Number of the member.
    """
    rng = np.random.default_rng((seed, member))
    normal = np.clip(rng.standard_normal(16), -CUT, CUT)
    position, velocity, bias, mass, rest = np.split(normal, [3, 6, 9, 12])
    values = {}
    for link, factor in zip(("upper_arm", "forearm", "foot"), 1.0 + p.mass * mass, strict=True):
        for name in (f"{link}_mass", f"{link}_inertia"):
            values[name] = float(getattr(nominal, name) * factor)
    values["friction"] = float(nominal.friction * (1.0 + p.friction * rest[0]))
    values["hinge_left"] = float(nominal.hinge_left + p.door_position * rest[1])
    values["hinge_ahead"] = float(nominal.hinge_ahead + p.door_position * rest[2])
    values["hinge_stiffness"] = float(nominal.hinge_stiffness * (1.0 + p.door_stiffness * rest[3]))
    start = np.concatenate([p.position * position, [0.0], p.velocity * velocity, [0.0]])
    return Member(replace(nominal, **values), start, p.input_bias * bias, p.delay * rng.random())


_build_plant = lru_cache(maxsize=512)(system)  # built once in each process, for all candidates


@dataclass(frozen=True)
class DoorTrial:
    """A trial of the door experiment: each member has a plant of its own.

    The reference is that of the nominal plant.

    Attributes:
        door: Settings of the experiment.
        perturbations: Sizes of the perturbations.
        seed: Seed of the members.
        tolerance: Tolerance of the simulation, by an implicit method, as the published gains make
            the wrist stiff. At 1e-4 errors and peaks agree with those at 1e-10 to three digits or
            more, in a tenth of the time.
    """

    door: rrr_door.Config
    perturbations: Perturbations
    seed: int
    tolerance: float = 1e-4

    def __call__(self, controller: Controller, gains: GainSchedule, member: int) -> Outcome:
        """Return the outcome of a member."""
        parameters, _, reference = _build_scene(self.door)
        drawn = draw_member(self.perturbations, parameters, self.seed, member)
        plant = _build_plant(drawn.parameters)
        policy = make_law(controller, plant, reference, gains, delay=drawn.delay)
        return outcome(reference, drawn.run(plant, reference, policy, self.tolerance, "Radau"))


_build_scene = lru_cache(maxsize=2)(rrr_door.scene)  # built once in each process


@dataclass(frozen=True, eq=False)
class Stage:
    """A plant and the reference that laws track on it.

    Attributes:
        plant: System that is simulated.
        reference: Reference that is tracked.
        window: Time around the planned impact in which baselines compare arcs, s.
        delay: Delay of the detection of laws whose name ends with ", late", s.
    """

    plant: HybridSystem
    reference: Reference
    window: float
    delay: float

    def make_law(self, name: str, gains: GainSchedule) -> Policy:
        """Return the law of a name of `laws.make_law`; with ", late" it detects events late."""
        plain, delay = name.removesuffix(", late"), self.delay if name.endswith("late") else 0.0
        return make_law(plain, self.plant, self.reference, gains, self.window, delay=delay)

    def run(self, name: str, gains: GainSchedule, drawn: Member) -> HybridTrajectory:
        """Return the run of a member under a law.

        Args:
            name: Name of the law, see `make_law`.
            gains: Its gains.
            drawn: Perturbations of the member.
        """
        law = self.make_law(name, gains)
        return drawn.run(self.plant, self.reference, law, _TOLERANCE, "DOP853")


@dataclass(frozen=True, eq=False)
class LawTrial:
    """A trial of one law on a stage: members differ in start and torques.

    Attributes:
        stage: Plant and reference.
        name: Name of the law.
        perturbations: Sizes of the perturbations.
        seed: Seed of the members.
    """

    stage: Stage
    name: str
    perturbations: Perturbations
    seed: int

    def __call__(self, controller: Controller, gains: GainSchedule, member: int) -> Outcome:
        """Return the outcome of a member; the trial's own law replaces `controller`."""
        drawn = draw_member(self.perturbations, DoorParameters(), self.seed, member)
        return outcome(self.stage.reference, self.stage.run(self.name, gains, drawn))


@dataclass(frozen=True, eq=False)
class SpringGains:
    """Gains by logarithms of frequency (rad/s) and damping ratio, before and after the impact.

    Attributes:
        reference: Reference whose arcs have the gains.
        masses: Diagonal (3,) of the mass matrix at the impact, kg m^2.
    """

    reference: Reference
    masses: Array

    @staticmethod
    def build(plant: Any, reference: Reference) -> SpringGains:
        """Return the structure with the masses at the first event of a reference."""
        q = reference.events[0].state_before[:4]
        return SpringGains(reference, np.diag(plant.robot.mass_matrix(q))[:3].copy())

    def schedule(self, parameters: Array) -> GainSchedule:
        """Return the gains of four parameters; phantom arcs have those of before their event."""
        pairs = np.exp(parameters).reshape(2, 2).tolist()
        before, after = (
            make_joint_gain(frequency**2 * self.masses, 2.0 * damping * frequency * self.masses)
            for frequency, damping in pairs
        )
        arcs = [before, *[after] * (len(self.reference.arcs) - 1)]
        phantoms = {(k, fired): arcs[k] for k, fired in self.reference.phantoms}
        return GainSchedule.constant(arcs, phantoms)


@dataclass(frozen=True, eq=False)
class LawSearch:
    """A search for the parameters of each law, which then takes the best of all that was found.

    Attributes:
        structure: Gains by their parameters.
        ensemble: Returns the ensemble of a law with these members.
        seen: Members that tune.
        peak_input: Limit of the peak input, N m.
        evaluations: Evaluations of each search.
        error: Error by which parameters within the limit are chosen.
        checked: Members that have the last word on what was tuned; empty for none.
    """

    structure: GainStructure
    ensemble: Callable[[str, Sequence[int]], Ensemble]
    seen: Sequence[int]
    peak_input: float
    evaluations: int
    error: Callable[[Statistics], float]
    checked: Sequence[int] = ()

    def search(
        self,
        laws: Sequence[str],
        pool: Sequence[Array],
        steps: Sequence[float],
        advance: Callable[[float], None],
    ) -> list[Array]:
        """Return the parameters that searches for all laws find, round after round.

        Args:
            laws: Names of the laws.
            pool: Parameters to begin with. Each search begins with the best for its law of these
                and of what the rounds before have found.
            steps: First changes of parameters, one for each round.
            advance: Called with the share of the searches that is done.
        """
        found: list[Array] = []
        for k, step in enumerate(steps):
            known = [*pool, *found]
            for i, law in enumerate(laws, start=1):
                found.append(self._search_law(law, known, step))
                advance((k + i / len(laws)) / len(steps))
        return found

    def _search_law(self, law: str, pool: Sequence[Array], step: float) -> Array:
        last = None
        if self.checked:
            last = Validation(self.ensemble(law, self.checked), self.peak_input)
        found = tune(
            self.structure,
            self.choose(law, pool, self.seen),
            ensemble=self.ensemble(law, self.seen),
            peak_input=self.peak_input,
            evaluations=self.evaluations,
            step=step,
            bounds=PARAMETER_BOUNDS,
            validation=last,
        )
        return found.best.parameters

    def choose(
        self, law: str, pool: Sequence[Array], members: Sequence[int], margin: float = 1.0
    ) -> Array:
        """Return the parameters of least error for a law, of those within the limit.

        Args:
            law: Name of the law.
            pool: Parameters to choose from. If all exceed the limit, those of the lowest peak are
                returned.
            members: Members that judge.
            margin: Share of the limit that counts as the limit.
        """
        if len(pool) == 1:  # nothing to compare: saves the runs
            return pool[0]
        runs, limit = self.ensemble(law, members), margin * self.peak_input

        def rank(parameters: Array) -> tuple[float, float]:
            found = runs(self.structure.schedule(parameters))
            return max(found.peak_input, limit), self.error(found)

        return min(pool, key=rank)


def make_statistics_table(title: str, records: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return the table of statistics by name: errors, peak input, number of failed runs."""
    columns = {
        "": "{name}",
        "mean error": "{mean_error:.4f} ± {standard_error:.4f}",
        "95th percentile": "{p95_error:.4f}",
        "peak input [N m]": "{peak_input:.2f}",
        "failed": "{failed}",
    }
    return make_record_table(title, [{"name": n, **found} for n, found in records.items()], columns)
