"""What `validate` is run on: nominal trajectories of the door and of the biped, linearized.

Each is taken with its policy, so that it can be simulated again from a perturbed start, and with
its first-order map under the same feedback.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from hybridctl.experiments.optimal.lqr import with_jumps
from hybridctl.experiments.rrr_door import tracking as rrr_door
from hybridctl.experiments.rrr_door.laws import run_beside
from hybridctl.robots import biped

from hybridctl.control.reference import Reference
from hybridctl.control.spreading import ReferenceSpreading
from hybridctl.hybrid.policy import Policy
from hybridctl.hybrid.simulate import simulate
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.sensitivity.linearization import Linearization, linearize

CORNER_2_SHARE = 0.3
STIFFNESS, DAMPING = 80.0, 3.0
FALL, SPEED, SPIN, TILT, DURATION = 0.3, 1.0, 1.5, 0.1, 0.75


@dataclass(frozen=True, eq=False)
class ValidationCase:
    """A nominal trajectory with the policy that made it, and its map under that policy."""

    system: HybridSystem
    policy: Policy | None
    map: Linearization

    @property
    def nominal(self) -> HybridTrajectory:
        """The trajectory that is perturbed."""
        return self.map.trajectory

    def reset_only(self) -> Linearization:
        """The map with D_x R in place of the saltation matrices: the error it is tested against."""
        return with_jumps(self.map, "reset")


Cases = dict[str, Callable[[], ValidationCase]]


def biped_cases(tolerance: float) -> Cases:
    """Cases of the biped by name, each built when it is called for."""
    return {
        "linear": lambda: landing("linear", 0.0, tolerance),
        "by feet": lambda: landing("by_feet", 0.0, tolerance),
        "tilted": lambda: landing("by_feet", TILT, tolerance),
    }


def door_cases(tolerance: float) -> Cases:
    """Cases of the door by name, each built when it is called for."""
    return {
        "impact": lambda: impact(tolerance),
        "split impact": lambda: split_impact(tolerance),
        "friction": lambda: friction(tolerance, release=False),
        "friction, release": lambda: friction(tolerance, release=True),
    }


def impact(tolerance: float) -> ValidationCase:
    """The reference of the thesis: both corners hit at once, tracked with reference spreading."""
    config = rrr_door.Config()
    plant, reference, policy = _door(config, tolerance)
    return _case(plant, reference.nominal, policy, tolerance)


def split_impact(tolerance: float) -> ValidationCase:
    """The run of the thesis from its perturbed start: the corners hit one after the other."""
    config = rrr_door.Config()
    plant, reference, policy = _door(config, tolerance)
    deviation = np.array(config.perturbation)
    run = run_beside(plant, reference, policy, deviation, (tolerance, tolerance))
    return _case(plant, run, policy, tolerance)


def friction(tolerance: float, *, release: bool) -> ValidationCase:
    """A case with friction: both corners hit and slide at once, and stop or are let go at once.

    Corner 2 bears less than half of the force. With equal shares the force on corner 1 would grow
    again where corner 2 is let go first, and the release would have no derivative.
    """
    config = rrr_door.Config(friction=True, release=release)
    config = replace(config, design=replace(config.design, corner_2_share=CORNER_2_SHARE))
    plant, reference, policy = _door(config, tolerance)
    return _case(plant, reference.nominal, policy, tolerance)


def landing(damping: biped.Damping, tilt: float, tolerance: float) -> ValidationCase:
    """The biped, with speed and spin, on soft ground; its feet touch at once without a tilt."""
    p = biped.BipedParameters(stiffness=STIFFNESS, damping=DAMPING)
    time = -FALL
    velocity = np.array([SPEED, -0.5 * p.gravity, SPIN])
    body = np.array([0.0, p.landing_height, 0.0]) + time * velocity
    body[1] -= 0.5 * p.gravity * time**2
    velocity[1] -= p.gravity * time
    start = np.concatenate([body, velocity]) + tilt * np.eye(6)[2]
    plant = biped.soft(p, damping=damping)
    run = simulate(plant, biped.AIR, start, (0.0, DURATION), rtol=tolerance, atol=tolerance)
    return _case(plant, run, None, tolerance)


def _door(
    config: rrr_door.Config, tolerance: float
) -> tuple[HybridSystem, Reference, ReferenceSpreading]:
    _, plant, reference = rrr_door.scene(config, tolerance=tolerance)
    return plant, reference, ReferenceSpreading(reference, rrr_door.schedule(config, reference))


def _case(
    plant: HybridSystem, run: HybridTrajectory, policy: Policy | None, tolerance: float
) -> ValidationCase:
    """The map of a run under the feedback of its policy, also in phantom modes."""
    lin = linearize(
        plant, run, policy=policy, phantom_input="pushing", rtol=tolerance, atol=tolerance
    )
    return ValidationCase(plant, policy, lin)
