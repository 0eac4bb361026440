"""First order past Zeno: the derivative of rest, in place of one through infinitely many events.

Relaxed trajectories pass perturbations on from bounce to bounce, by factors of order one for every
width of the strip, so that their derivatives do not converge. What they tend to does have a
derivative from where rest begins: there only perturbations along the guard are left.
"""

from __future__ import annotations

import numpy as np

from hybridctl.checks import Array, instance
from hybridctl.errors import InputError
from hybridctl.hybrid.relaxation.past import PastZeno
from hybridctl.hybrid.relaxation.strip import differences
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.sensitivity.linearize import linearize


def rest_derivative(
    system: PastZeno, trajectory: HybridTrajectory, *, rtol: float = 1e-9, atol: float = 1e-9
) -> Array:
    """The derivative (nx+, nx) of the final state by the state at the last accumulation of events.

    A perturbed state counts as what comes to rest from it: at the same time, projected along what
    the reset changes. So the derivative of rest itself, such as that of a ball on a floor, is zero
    across the guard. system: that of `past_zeno`, with which the trajectory was simulated. rtol,
    atol: of the variational flow.

    Raises `InputError` for another system, and where no event ends infinitely many; besides what
    `linearize` raises for what follows.
    """
    instance("system", system, PastZeno)
    events = instance("trajectory", trajectory, HybridTrajectory).events
    rests = [k for k, event in enumerate(events) if event.accumulation is not None]
    if not rests:
        raise InputError("no event of the trajectory ends infinitely many, see linearize")
    last = rests[-1]
    after = HybridTrajectory(trajectory.arcs[last + 1 :], events[last + 1 :])
    flow = linearize(system, after, rtol=rtol, atol=atol).state_transition
    return np.asarray(flow @ _landing(system, trajectory, last))


def _landing(system: PastZeno, trajectory: HybridTrajectory, k: int) -> Array:
    """The derivative of the projection onto rest, at event k."""
    event = trajectory.events[k]
    project = system.mode(event.mode_after).project
    if project is None:
        raise InputError(f"mode {event.mode_after!r} of the trajectory is no rest of this system")
    return differences(project, event.state_after)
