r"""How redundant contacts share loads: the smallest forces inside the friction cones.

Of all multipliers that the equations G lambda = c allow (see `kkt`) those with the least sum of
:math:`\lambda_i^2 / w_i` are taken, twice: first with equal weights, then with w = 1 for normals
and, for the friction of a sticking contact, its normal force in the first solve. On a common plane,
where friction does not change the normal forces, contacts then reach their friction limits
together. A contact that pulls in the first solve has a small weight, about 1e-6 of all normal
forces; in between the weight is a smooth function of the normal force.

Where these forces leave the cones, those of the least such sum inside the cones are taken (see
`coulomb.least`): a contact then stays at its border while others take up the load, and the mode
ends when no forces inside all cones are left. Forces that no mode of contacts could have are
those of the equations alone: they pull, or exceed friction, and say so to the guards.
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from hybridctl.checks import Array
from hybridctl.errors import SimulationError
from hybridctl.mechanics.phase import Phase
from hybridctl.mechanics.tolerances import LEAST_WEIGHT


def friction_weights(phase: Phase, even: Array) -> Array:
    """The weights (m,) for multipliers (m,) of the solve with equal weights.

    l (1 + log(1 + e^(n / l - 1))) for a normal force n, where l is 1e-6 of the norm of all: n
    itself if it is well above l, and l if it pulls. One where there are no normal forces at all.
    """
    weights, normal = np.ones(len(even)), even[: len(phase.closed)]
    least = _least(normal)
    owner = phase.owner[phase.sticking]
    if least > 0.0:
        weights[len(normal) :] = least * (1.0 + np.logaddexp(0.0, normal / least - 1.0)[owner])
    return weights


def weights_derivative(phase: Phase, even: Array, even_z: Array) -> Array:
    """The change (m, .) of `friction_weights` for changes even_z (m, .) of their multipliers."""
    count = len(phase.closed)
    normal, normal_z = even[:count], even_z[:count]
    least = _least(normal)
    if least == 0.0:
        raise SimulationError(
            f"friction of redundant contacts in modes {phase.modes} has no derivative, as they "
            "carry no load by which it is shared"
        )
    least_z = LEAST_WEIGHT * (normal / np.linalg.norm(normal)) @ normal_z
    x = normal / least
    slope = expit(x - 1.0)
    weights_z = slope[:, None] * normal_z
    weights_z += np.outer(1.0 + np.logaddexp(0.0, x - 1.0) - slope * x, least_z)
    change = np.zeros_like(even_z)
    change[count:] = weights_z[phase.owner[phase.sticking]]
    return change


def _least(normal: Array) -> float:
    return LEAST_WEIGHT * float(np.linalg.norm(normal))
