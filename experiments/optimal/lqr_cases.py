"""The references of the LQR experiment, with their weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from hybridctl.experiments.rrr_door.reference import Design, build
from hybridctl.robots import block, paddle, rrr_door

from hybridctl.checks import Array
from hybridctl.control.lqr.periodic import periodic_lqr
from hybridctl.control.reference import Reference, extend
from hybridctl.hybrid.simulate import simulate
from hybridctl.sensitivity.linearize import Linearization, linearize
from hybridctl.sensitivity.return_map import periodic_orbit

PERIODS = 4
EARLY, LATE = 1e-2, 1e2  # weights on errors before the impact, on inputs after it
BLOCK_START = (0.0, 0.3, 0.2, 1.0, 0.0, 0.0)  # tilted, thrown sideways
BLOCK_END = 0.3


@dataclass(frozen=True, eq=False)
class Case:
    """A reference with its map and the weights of the cost.

    state_weights, input_weights: of each arc. The error before the last impact counts little.
    deviation (ndx,): the standard deviations of the start.
    """

    map: Linearization
    reference: Reference
    state_weights: tuple[Array, ...]
    input_weights: tuple[Array, ...]
    final_weight: Array
    deviation: Array

    @property
    def ndx(self) -> int:
        """The number of deviations."""
        return len(self.deviation)


def on_the_paddle(tolerance: float) -> Case:
    """A ball that bounces on a driven paddle, from apex to apex, where it would not stay."""
    plant, p = paddle.system(), paddle.Parameters()
    orbit = periodic_orbit(plant, paddle.AIR, paddle.apex(), p.period, input=paddle.drive)
    q, r = np.diag([100.0, 10.0, 1.0, 0.1]), 1e-3 * np.eye(1)
    nominal, _ = periodic_lqr(orbit.linearization, q, r).repeated(PERIODS)
    return Case(
        linearize(plant, nominal, rtol=tolerance, atol=tolerance),
        extend(plant, nominal, before=0.5 * p.period, after=0.5 * p.period),
        (q,) * (PERIODS + 1),
        (r,) * (PERIODS + 1),
        q,
        np.array([5e-3, 5e-3, 2e-2, 2e-2]),
    )


def of_the_block(tolerance: float) -> Case:
    """A block that lands corner by corner and slides, pushed and turned at its centre."""
    plant = block.system(actuated=True)
    nominal = simulate(
        plant, ("open", "open"), BLOCK_START, (0.0, BLOCK_END), rtol=tolerance, atol=tolerance
    )
    q, r = np.diag([100.0, 100.0, 10.0, 1.0, 1.0, 0.1]), np.diag([1e-2, 1e-2, 1.0])
    return Case(
        linearize(plant, nominal, rtol=tolerance, atol=tolerance),
        extend(plant, nominal, before=0.02, after=0.02),
        (EARLY * q, EARLY * q, EARLY * q, q),
        (r, r, r, LATE * r),
        q,
        np.array([5e-3, 1e-3, 5e-3, 1e-2, 1e-2, 2e-2]),
    )


def at_the_door(tolerance: float) -> Case:
    """The reference of the thesis, which hits the door with both corners at once."""
    parameters = rrr_door.Parameters()
    plant = rrr_door.system(parameters)
    reference = build(plant, parameters, Design(), rtol=tolerance, atol=tolerance)
    q, r = np.diag([100.0] * 4 + [1.0] * 4), 0.01 * np.eye(3)
    return Case(
        linearize(plant, reference.nominal, rtol=tolerance, atol=tolerance),
        reference,
        (EARLY * q, q),
        (r, LATE * r),
        q,
        np.array([0.02, 0.02, 0.02, 0.01, 0.02, 0.02, 0.02, 0.0]),
    )


CASES: Mapping[str, Callable[[float], Case]] = {
    "paddle": on_the_paddle,
    "block": of_the_block,
    "door": at_the_door,
}
