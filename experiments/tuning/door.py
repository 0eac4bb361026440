"""Perturbed runs of the door experiment: what `tune rrr-door` judges gains by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, TypeAlias

import numpy as np
from hybridctl.experiments.rrr_door import tracking as rrr_door
from hybridctl.experiments.rrr_door.laws import law, run_beside
from hybridctl.robots.rrr_door import DoorParameters, system
from rich.table import Table

from hybridctl import GainSchedule, HybridSystem, Reference
from hybridctl.app.report import record_table
from hybridctl.base.checks import Array
from hybridctl.base.settings import Meta, NotNegative, Settings
from hybridctl.control.tuning.ensemble import Controller, Outcome, outcome
from hybridctl.hybrid import DisturbedPolicy, Policy
from hybridctl.hybrid.trajectory import HybridTrajectory

CUT = 2.5  # standard deviations, the largest perturbation
Relative: TypeAlias = Annotated[float, Meta(ge=0.0, le=0.9 / CUT)]


@dataclass(frozen=True)
class Perturbations(Settings):
    """Standard deviations of normal distributions, cut off at 2.5 of them; all independent.

    position (rad), velocity (rad/s): of each arm joint at the start; the door starts as planned.
    input_bias: a constant error of each torque, N m. mass: of each link of the arm with its
    moment of inertia, relative. friction: of its coefficient, relative. door_position: of the
    hinge, in both directions, m. door_stiffness: of the hinge's spring, relative. delay: the
    longest delay of the detection of events, s; uniform from zero on, the same for all of a run.
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
class Draw:
    """One member: robot, initial deviation (8,), error of the input (3,), delay of detection."""

    parameters: DoorParameters
    start: Array
    bias: Array
    delay: float

    def run(
        self, plant: HybridSystem, reference: Reference, policy: Policy, tolerance: float, by: str
    ) -> HybridTrajectory:
        """The run off a reference at the start, with an error of torques; by: the method."""
        biased = DisturbedPolicy(policy, lambda t, x: self.bias)
        return run_beside(plant, reference, biased, self.start, (tolerance, tolerance), by)


def draw(p: Perturbations, nominal: DoorParameters, seed: int, member: int) -> Draw:
    """The perturbations of a member, the same whatever the others are."""
    rng = np.random.default_rng((seed, member))
    normal = np.clip(rng.standard_normal(16), -CUT, CUT)
    position, velocity, bias, mass, rest = np.split(normal, [3, 6, 9, 12])
    scale = 1.0 + p.mass * mass
    values = {}
    for link, factor in zip(("upper_arm", "forearm", "foot"), scale, strict=True):
        for quantity in ("mass", "inertia"):
            name = f"{link}_{quantity}"
            values[name] = float(getattr(nominal, name) * factor)
    values["friction"] = float(nominal.friction * (1.0 + p.friction * rest[0]))
    values["hinge_left"] = float(nominal.hinge_left + p.door_position * rest[1])
    values["hinge_ahead"] = float(nominal.hinge_ahead + p.door_position * rest[2])
    values["hinge_stiffness"] = float(nominal.hinge_stiffness * (1.0 + p.door_stiffness * rest[3]))
    start = np.concatenate([p.position * position, [0.0], p.velocity * velocity, [0.0]])
    return Draw(replace(nominal, **values), start, p.input_bias * bias, p.delay * rng.random())


_plant = lru_cache(maxsize=512)(system)  # built once in each process, for all candidates


@dataclass(frozen=True)
class DoorTrial:
    """Member after member of the door experiment, tracked from a perturbed start.

    The reference is that of the nominal plant. tolerance: of the simulation, by an implicit method,
    as the published gains make the wrist stiff: at 1e-4 errors and peaks are those at 1e-10 to
    three digits or more, in a tenth of the time.
    """

    door: rrr_door.Config
    perturbations: Perturbations
    seed: int
    tolerance: float = 1e-4

    def __call__(self, controller: Controller, gains: GainSchedule, member: int) -> Outcome:
        """Simulate a member."""
        parameters, reference = _scene(self.door)
        drawn = draw(self.perturbations, parameters, self.seed, member)
        plant = _plant(drawn.parameters)
        policy = law(controller, plant, reference, gains, delay=drawn.delay)
        run = drawn.run(plant, reference, policy, self.tolerance, "Radau")
        return outcome(reference, run)


@lru_cache(maxsize=2)
def _scene(door: rrr_door.Config) -> tuple[DoorParameters, Reference]:
    """The scene, built once in each process."""
    parameters, _, reference = rrr_door.scene(door)
    return parameters, reference


def statistics_table(title: str, records: Mapping[str, Mapping[str, Any]]) -> Table:
    """The records of statistics by name: errors, peak input, and how many runs failed."""
    columns = {
        "": "{name}",
        "mean error": "{mean_error:.4f} ± {standard_error:.4f}",
        "95th percentile": "{p95_error:.4f}",
        "peak input [N m]": "{peak_input:.2f}",
        "failed": "{failed}",
    }
    return record_table(title, [{"name": n, **found} for n, found in records.items()], columns)
