"""A ball that is pushed against the floor, and the runs that tuning judges gains by.

Processes of a pool import this module by its name, which a test module does not have there.
"""

from dataclasses import dataclass
from functools import lru_cache

import casadi as ca
import numpy as np

import hybridctl as hc
from hybridctl.base.errors import ReferenceRangeError
from hybridctl.control.tuning.ensemble import outcome

P0 = np.diag([0.03**2, 0.1**2])


@lru_cache(maxsize=1)
def scene():
    """A ball that falls, held back a little by its force, and bounces once."""
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u", 1)
    air = hc.symbolic.SymbolicMode("air", state=x, input=u, field=[x[1], u[0] - 9.81])
    bounce = hc.symbolic.SymbolicTransition(
        "air", "floor", guard=x[0], target="air", reset=[x[0], -0.8 * x[1]]
    )
    system = hc.symbolic.hybrid_system([air], [bounce])
    nominal = hc.simulate(system, "air", [0.5, 0.0], (0.0, 0.7), lambda t, x: np.array([1.0]))
    assert len(nominal.events) == 1
    return system, hc.extend(system, nominal, before=0.2, after=0.2)


@dataclass(frozen=True)
class Trial:
    """The ball from a perturbed start; some members fail, as told."""

    failing: tuple[int, ...] = ()

    def __call__(self, controller, gains, member):
        if member in self.failing:
            raise ReferenceRangeError("as told")
        system, reference = scene()
        rng = np.random.default_rng((3, member))
        start = reference.nominal(0.0) + np.sqrt(np.diag(P0)) * rng.standard_normal(2)
        policy = (hc.ReferenceSpreading if controller == "spreading" else hc.control.ClockTracking)(
            reference, gains
        )
        run = hc.simulate(system, "air", start, (0.0, 0.7), policy, rtol=1e-8, atol=1e-8)
        return outcome(reference, run)
