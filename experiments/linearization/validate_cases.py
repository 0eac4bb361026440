"""Cases of `validate`: linearized nominal trajectories of the door and of the biped.

Each is taken with its policy, so that it can be simulated again from a perturbed start, and with
its first-order map under the same feedback.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from hybridctl.experiments.optimal.lqr import replace_jumps
from hybridctl.experiments.rrr_door import tracking as rrr_door
from hybridctl.experiments.rrr_door.laws import run_beside
from hybridctl.robots import biped

from hybridctl import (
    HybridSystem,
    HybridTrajectory,
    Reference,
    ReferenceSpreading,
    linearize,
    simulate,
)
from hybridctl.hybrid import Policy
from hybridctl.sensitivity import Linearization

CORNER_2_SHARE = 0.3  # of the planned force on the door; see `friction`
STIFFNESS, DAMPING = 80.0, 3.0  # N/m, N s/m, of the biped's ground
FALL, DURATION = 0.3, 0.75  # s, until the landing of a biped without a tilt, and until the end
SPEED, SPIN, TILT = 1.0, 1.5, 0.1  # m/s along the ground, rad/s, and rad in the tilted case


@dataclass(frozen=True, eq=False)
class ValidationCase:
    """A nominal trajectory and its map.

    Attributes:
        system: The system.
        policy: Policy that made the trajectory; None for zero input.
        map: Linearization of the trajectory under that policy.
    """

    system: HybridSystem
    policy: Policy | None
    map: Linearization

    @property
    def nominal(self) -> HybridTrajectory:
        """Trajectory that is perturbed."""
        return self.map.trajectory

    def reset_only(self) -> Linearization:
        """Return the map with D_x R in place of the saltation matrices: the control."""
        return replace_jumps(self.map, "reset")


Cases = dict[str, Callable[[], ValidationCase]]


def biped_cases(tolerance: float) -> Cases:
    """Return functions that build the cases of the biped, by name.

    Args:
        tolerance: Tolerance of the simulations.
    """
    return {
        "linear": lambda: landing("linear", 0.0, tolerance),
        "by feet": lambda: landing("by_feet", 0.0, tolerance),
        "tilted": lambda: landing("by_feet", TILT, tolerance),
    }


def door_cases(tolerance: float) -> Cases:
    """Return functions that build the cases of the door, by name.

    Args:
        tolerance: Tolerance of the simulations.
    """
    return {
        "impact": lambda: _strike_door(tolerance, split=False),
        "split impact": lambda: _strike_door(tolerance, split=True),
        "friction": lambda: friction(tolerance, release=False),
        "friction, release": lambda: friction(tolerance, release=True),
    }


def _strike_door(tolerance: float, *, split: bool) -> ValidationCase:
    """Return the reference of the thesis, tracked with reference spreading.

    Both corners hit at once. If `split`, it is the run of the thesis from a perturbed start, in
    which they hit one after the other.
    """
    config = rrr_door.Config()
    plant, reference, policy = _track_door(config, tolerance)
    if not split:
        return _linearize_case(plant, reference.nominal, policy, tolerance)
    deviation = np.array(config.perturbation)
    run = run_beside(plant, reference, policy, deviation, (tolerance, tolerance))
    return _linearize_case(plant, run, policy, tolerance)


def friction(tolerance: float, *, release: bool) -> ValidationCase:
    """Return a case with friction: both corners hit and slide at once, and stop or let go at once.

    Corner 2 bears less than half of the force. Perturbed runs let go of one corner first. With
    equal shares the force on corner 1 would grow again where that is corner 2, and the release
    would have no derivative.

    Args:
        tolerance: Tolerance of the simulations.
        release: Whether the corners let go of the door.
    """
    config = rrr_door.Config(friction=True, release=release)
    config = replace(config, design=replace(config.design, corner_2_share=CORNER_2_SHARE))
    plant, reference, policy = _track_door(config, tolerance)
    return _linearize_case(plant, reference.nominal, policy, tolerance)


def landing(damping: biped.Damping, tilt: float, tolerance: float) -> ValidationCase:
    """Return the biped, with speed and spin, on soft ground; feet touch at once without a tilt.

    Args:
        damping: Law of the ground's dampers.
        tilt: Initial pitch, rad, beside that at which the feet touch at once.
        tolerance: Tolerance of the simulation.
    """
    p = biped.BipedParameters(stiffness=STIFFNESS, damping=DAMPING)
    # Place (x, z, pitch) and velocity at the landing, then back in time along the free fall. The
    # speed downwards is that of a fall of half a second from rest.
    time = -FALL
    velocity = np.array([SPEED, -0.5 * p.gravity, SPIN])
    body = np.array([0.0, p.landing_height, 0.0]) + time * velocity
    body[1] -= 0.5 * p.gravity * time**2
    velocity[1] -= p.gravity * time
    start = np.concatenate([body, velocity]) + tilt * np.eye(6)[2]
    plant = biped.soft(p, damping=damping)
    run = simulate(plant, biped.AIR, start, (0.0, DURATION), rtol=tolerance, atol=tolerance)
    return _linearize_case(plant, run, None, tolerance)


def _track_door(
    config: rrr_door.Config, tolerance: float
) -> tuple[HybridSystem, Reference, ReferenceSpreading]:
    """Return plant, reference and feedback of a setting of the door."""
    _, plant, reference = rrr_door.scene(config, tolerance=tolerance)
    return plant, reference, ReferenceSpreading(reference, rrr_door.schedule(config, reference))


def _linearize_case(
    plant: HybridSystem, run: HybridTrajectory, policy: Policy | None, tolerance: float
) -> ValidationCase:
    """Return a run with its map under the feedback of its policy, also in phantom modes."""
    lin = linearize(
        plant, run, policy=policy, phantom_input="pushing", rtol=tolerance, atol=tolerance
    )
    return ValidationCase(plant, policy, lin)
